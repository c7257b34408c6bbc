"""What the pages on performance compare fedlib with: other programs, and definitions as they are.

The programs are optional: only those that are installed are returned.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, KMeans


def lloyd(X, start, n_iter):
    """Return programs for exactly this many iterations of Lloyd, by name.

    Parameters
    ----------
    X : array (n, n_features)
    start : array (n_clusters, n_features)
        The first centres.
    n_iter : int
    """
    options = {"init": start, "n_init": 1, "max_iter": n_iter, "tol": 0, "algorithm": "lloyd"}
    programs = {"scikit-learn": partial(KMeans(len(start), **options).fit, X)}
    if find_spec("sklearnex"):
        import sklearnex.cluster

        intel = sklearnex.cluster.KMeans(len(start), **options)
        programs["scikit-learn-intelex"] = partial(intel.fit, X)
    if find_spec("faiss"):
        import faiss

        def train():
            whole = {"niter": n_iter, "max_points_per_centroid": len(X)}
            model = faiss.Kmeans(X.shape[1], len(start), **whole)
            model.train(X.astype(np.float32), init_centroids=start.astype(np.float32))

        programs["faiss, float32"] = train
    return programs


def histogram_boosting(X, y, n_trees):
    """Return programs, besides XGBoost, that boost trees of depth six by histograms, by name.

    Parameters
    ----------
    X, y : array
        The pooled rows.
    n_trees : int
    """
    programs = {}
    if find_spec("lightgbm"):
        import lightgbm

        options = {"n_estimators": n_trees, "max_depth": 6, "num_leaves": 63, "verbose": -1}
        programs["lightgbm"] = partial(lightgbm.LGBMClassifier(**options).fit, X, y)
    return programs


def dbscan_by_matrices(X, eps, min_samples):
    """Return DBSCAN of rows that are neighbours if they are in every feature, from matrices.

    The memory grows with the square of the number of rows.
    """
    far = sum(np.abs(column[:, None] - column) >= eps for column in X.T)
    return DBSCAN(eps=0.5, min_samples=min_samples, metric="precomputed").fit(1.0 * far)


def representatives_as_defined(X, eps):
    """Return representatives; DynRep is computed again for all points after every choice.

    All distances are computed before, so the memory grows with the square of the number of points.
    """
    reached = (cdist(X, X) <= eps).astype(np.float32)
    uncovered, chosen = np.ones(len(X), np.float32), []
    while (gains := reached @ uncovered).max() > 0:
        chosen.append(int(gains.argmax()))
        uncovered[reached[chosen[-1]] > 0] = 0
    return chosen


def thread_pool(n_clients, n_exchanges):
    """Call an empty function for each client and exchange, in as many threads as clients."""
    with ThreadPoolExecutor(n_clients) as pool:
        for _ in range(n_exchanges):
            list(pool.map(lambda _: None, range(n_clients)))
