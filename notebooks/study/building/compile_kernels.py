"""Compile the kernels that the pages use, so that no page waits for the compiler.

numba compiles a kernel at its first call and keeps the machine code next to the module. This script
fits each protocol once to a few points. ``make install`` runs it.
"""

import multiprocessing
import warnings

import numpy as np

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.clustering.density.engine.dbscan import dbscan

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 2)) + 4 * rng.integers(0, 2, (200, 1))
PARTS = [X[::2], X[1::2]]


def grids():
    """Fit the protocols that find dense cells, or neighbours at every client."""
    for border in ("nearest", "absorb"):
        for assign in ("point", "cell"):
            for adjacency in ("faces", "full"):
                options = {"border": border, "assign": assign, "adjacency": adjacency}
                HorizontalDBSCAN(0.5, 3, random_state=0, **options).fit(PARTS).predict(X)
    for columns in ([[0], [1]], [[0, 1], [0]]):
        VerticalDBSCAN(0.5, 4).fit([X[:, part] for part in columns])
    VerticalDBSCAN(0.5, 4).fit([np.hstack([X, X]), X])


def representatives():
    """Fit the protocols whose clients send points that stand for others."""
    for local_model in ("core", "kmeans"):
        DBDC(0.6, 3, local_model=local_model).fit(PARTS).predict(X)
    SDBDC(0.6, 3).fit(PARTS)
    PPDBDC(0.6, 3, random_state=0).fit(PARTS)
    GaussianMixtureDBSCAN(0.6, 3, random_state=0).fit(PARTS).predict(X)
    for n_features in (1, 2, 3, 4, 5):  # up to four, each has kernels of its own
        dbscan(rng.normal(size=(200, n_features)), 0.5, 3)


def centres():
    """Fit k-means and mixtures."""
    for method in ("one_shot", "lloyd"):
        FederatedKMeans(2, method=method, random_state=0).fit(PARTS).predict(X)
    for method in ("average", "em"):
        FederatedGaussianMixture(2, method, random_state=0, max_rounds=2).fit(PARTS)
    weighted = [(part, np.ones(len(part))) for part in PARTS]
    FederatedKMeans(2, method="lloyd", random_state=0).fit(weighted)
    FederatedGaussianMixture(2, "em", random_state=0, max_rounds=2).fit(weighted)


def boosting(method):
    """Fit boosted trees."""
    missing, classes = X.astype(np.float32), (X[:, 0] > 2).astype(int)
    missing[::7] = np.nan
    for rows in (missing, missing.round()):  # few different values have kernels of their own
        for targets in (classes, classes + (X[:, 1] > 2)):  # two classes, three classes
            parts = [(rows[::2], targets[::2]), (rows[1::2], targets[1::2])]
            FederatedXGBClassifier(2, method=method).fit(parts).predict(missing)
    FederatedXGBRegressor(2, method=method).fit(parts).predict(missing)


def main():
    """Fit all protocols to random points, in one process per processor."""
    warnings.simplefilter("ignore")  # so few points do not suffice for a good fit
    with multiprocessing.get_context("fork").Pool() as pool:
        tasks = [pool.apply_async(boosting, [method]) for method in ("histogram", "top_splits")]
        tasks += [pool.apply_async(fit) for fit in (grids, representatives, centres)]
        tasks += [pool.apply_async(boosting, ["union"])]
        for task in tasks:
            task.get()


if __name__ == "__main__":
    main()
