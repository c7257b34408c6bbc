"""Compile the kernels that the pages use, so that no page waits for the compiler.

numba compiles a kernel at its first call and keeps the machine code next to the module. This script
fits each protocol once to a few points. ``make install`` runs it.
"""

import warnings

import numpy as np

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)
from fedlib.clustering.density.engine.dbscan import dbscan


def main():
    """Fit all protocols to random points."""
    warnings.simplefilter("ignore")  # so few points do not suffice for a good fit
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) + 4 * rng.integers(0, 2, (200, 1))
    parts, missing = [X[::2], X[1::2]], X.astype(np.float32)
    missing[::7] = np.nan
    classes = (X[:, 0] > 2).astype(int)
    for border in ("nearest", "absorb"):
        for assign in ("point", "cell"):
            for adjacency in ("faces", "full"):
                options = {"border": border, "assign": assign, "adjacency": adjacency}
                HorizontalDBSCAN(0.5, 3, random_state=0, **options).fit(parts).predict(X)
    for columns in ([[0], [1]], [[0, 1], [0]]):
        VerticalDBSCAN(0.5, 4).fit([X[:, part] for part in columns])
    VerticalDBSCAN(0.5, 4).fit([np.hstack([X, X]), X])
    for method in ("one_shot", "lloyd"):
        FederatedKMeans(2, method=method, random_state=0).fit(parts).predict(X)
    for local_model in ("core", "kmeans"):
        DBDC(0.6, 3, local_model=local_model).fit(parts).predict(X)
    SDBDC(0.6, 3).fit(parts)
    PPDBDC(0.6, 3, random_state=0).fit(parts)
    for method in ("average", "em"):
        FederatedGaussianMixture(2, method, random_state=0, max_rounds=2).fit(parts)
    GaussianMixtureDBSCAN(0.6, 3, random_state=0).fit(parts).predict(X)
    for method in ("top_splits", "union", "histogram"):
        rows = [(missing[::2], classes[::2]), (missing[1::2], classes[1::2])]
        FederatedXGBClassifier(2, method=method).fit(rows).predict(missing)
    for n_features in (1, 2, 3, 4, 5):  # up to four, each has kernels of its own
        dbscan(rng.normal(size=(200, n_features)), 0.5, 3)


if __name__ == "__main__":
    main()
