"""Curves of k-distances, and the scores of the radii that are read off them."""

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from fedlib import FederatedGaussianMixture, FederatedKMeans, HorizontalDBSCAN
from fedlib.evaluation.selection import find_knee


def pooled_curve(X, k):
    """Return the sorted k-distances of all rows, and the index of the knee."""
    distances, _ = NearestNeighbors(n_neighbors=k + 1).fit(X).kneighbors(X)
    curve = np.sort(distances[:, -1])
    return curve, find_knee(np.linspace(0, 1, len(curve)), curve)


def weighted_curve(places, weights, min_samples):
    """Return fractions of the points, and the distance that the MinPts-th of each of these exceeds.

    Parameters
    ----------
    places : array (n, n_features)
        Points, or representatives.
    weights : array of int (n,)
        How many points each stands for.
    min_samples : int

    Examples
    --------
    >>> fractions, distances = weighted_curve(np.array([[0.0], [1.0], [5.0]]), np.ones(3), 2)
    >>> print(fractions.round(2), distances)
    [0.33 0.67 1.  ] [4. 1. 1.]
    """
    distance = cdist(places, places)
    order = distance.argsort(axis=1)
    is_enough = weights[order].cumsum(axis=1) >= min_samples
    last = np.take_along_axis(order, is_enough.argmax(axis=1)[:, np.newaxis], axis=1)
    to_last = np.take_along_axis(distance, last, axis=1)[:, 0]
    falling = np.argsort(-to_last, kind="stable")
    return weights[falling].cumsum() / weights.sum(), to_last[falling]


def grid_ari(X, y, cell_size, min_samples, seeds):
    """Return the ARI of horizontal DBSCAN: the median over visit orders with these seeds."""
    options = {"border": "absorb"}
    models = [HorizontalDBSCAN(cell_size, min_samples, **options, random_state=s) for s in seeds]
    return float(np.median([adjusted_rand_score(y, m.fit([X]).labels_[0]) for m in models]))


def criteria_of_sklearn(X, kmeans, mixture):
    """Return what scikit-learn computes on pooled rows with a model of two selections.

    Parameters
    ----------
    X : array (n, n_features)
    kmeans, mixture
        Models with as many clusters, of `KMeansSelection` and `GaussianMixtureSelection`.

    Returns
    -------
    tuple
        The inertia, the BIC and the AIC.
    """
    clusters = FederatedKMeans(len(kmeans.centres))
    clusters._set_model(kmeans)
    components = FederatedGaussianMixture(len(mixture.mixture.weights))
    components._set_model(mixture)
    return -clusters.to_sklearn().score(X), components.bic(X), components.aic(X)
