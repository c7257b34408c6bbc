"""Border points of DBSCAN: chains that reach them, and clusters that contest them."""

import numpy as np
from sklearn.cluster import DBSCAN
from sklearn.neighbors import NearestNeighbors


def chain(previous, start, end):
    """Return the points of the shortest chain from one point to another, with both.

    Parameters
    ----------
    previous : array of int (n, n)
        The predecessors of `scipy.sparse.csgraph.shortest_path`.
    start, end : int

    Examples
    --------
    >>> print(chain(np.array([[-9, 0, 1]]), 0, 2))
    [0, 1, 2]
    """
    points = [end]
    while points[0] != start:
        points.insert(0, int(previous[start, points[0]]))
    return points


def contested(X, eps, min_samples):
    """Return the contested border points, which points are core points, and all neighbourhoods.

    A border point is contested if it is within reach of two clusters.
    """
    near = NearestNeighbors(radius=eps).fit(X).radius_neighbors(X, return_distance=False)
    is_core = np.array([len(some) >= min_samples for some in near])
    clusters = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(X)
    reached = [len(set(clusters[some[is_core[some]]])) for some in near]
    return np.flatnonzero(~is_core & (np.array(reached) > 1)), is_core, near


def differ(labels, reference, is_core):
    """Return which labels differ from a reference.

    Each cluster first gets the label that its core points have in the reference.

    Examples
    --------
    >>> is_core = np.array([True, False, True])
    >>> print(differ(np.array([1, 0, 0]), np.array([0, 0, 1]), is_core))
    [False  True False]
    """
    renamed = dict(zip(labels[is_core], reference[is_core], strict=True)) | {-1: -1}
    return np.array([renamed[label] for label in labels]) != reference
