"""The computations of k-means on the points of one client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray

from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest
from fedlib.core.parameters import count_distinct
from fedlib.kernels.centres import (
    find_mean_and_squares,
    move_centres,
    nearest_centres,
    sum_nearest,
)

MEAN_ROUNDING = 1e-12  # of the largest coordinate
GROUP_SIZE = 3  # the minimum count of points behind a mean from which starts are drawn


def child_centres(
    X: Floats,
    n_clusters: int,
    update_fraction: float,
    *,
    n_init: int,
    max_iter: int,
    tol: float,
    random_state: int | None,
    weights: Floats | None = None,
) -> tuple[Floats, Floats, Ints]:
    """Return a client's centres before and after the update, and the counts after it.

    The first ``int(update_fraction * n_points)`` rows are the update. k-means clusters the other
    rows, the base. If the base has fewer distinct rows than ``n_clusters``, each of these is a
    cluster.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    n_clusters, update_fraction, n_init, max_iter, tol
        As in `FederatedKMeans`.
    random_state : int or None
        The seed of k-means.
    weights : array (n_points,) of float64, optional
        Above 0; by default 1 for each point.

    Returns
    -------
    base : array (n_centers, n_features)
        The centres of k-means.
    centres : array (n_centers, n_features)
        The centres after each row of the update has moved its nearest centre.
    counts : array (n_centers,) of int64
        The count of points of each centre after the update.

    Notes
    -----
    Source: K.

    Examples
    --------
    The base is 1, 3 and 10. Then 11 moves the centre 10 half of the way.

    >>> X = np.array([[11.0], [1.0], [3.0], [10.0]])
    >>> base, centres, counts = child_centres(
    ...     X, 2, 0.25, n_init=10, max_iter=300, tol=1e-4, random_state=0
    ... )
    >>> sorted(base.ravel().tolist()), sorted(centres.ravel().tolist()), sorted(counts.tolist())
    ([2.0, 10.0], [2.0, 10.5], [2, 2])
    """
    settings = {"n_init": n_init, "max_iter": max_iter, "tol": tol, "random_state": random_state}
    base, centres, labels = child_clusters(X, weights, n_clusters, update_fraction, **settings)
    return base, centres, np.bincount(labels[labels >= 0], minlength=len(base)).astype(np.int64)


def child_clusters(
    X: Floats,
    weights: Floats | None,
    n_clusters: int,
    update_fraction: float,
    **settings: Any,
) -> tuple[Floats, Floats, Ints]:
    """Return the centres of `child_centres` before and after the update, and each point's.

    The index of a point's centre is -1 if there is none.
    """
    n_update = int(update_fraction * len(X))
    first, rest = (None, None) if weights is None else (weights[:n_update], weights[n_update:])
    base, labels = _cluster(X[n_update:], rest, n_clusters, settings)
    centres, moved = base.copy(), np.full(n_update, -1, np.int64)
    counts = np.bincount(labels, rest, minlength=len(base))
    if len(base):
        move_centres(X[:n_update], first, centres, counts, moved)
    return base, centres, np.append(moved, labels)


def _cluster(
    rows: Floats, weights: Floats | None, n_clusters: int, settings: Mapping[str, Any]
) -> tuple[Floats, Ints]:
    """Return the centres that k-means finds, at most one per distinct row, and each row's."""
    n_distinct = count_distinct(rows, n_clusters)
    if n_distinct == 0:
        return rows[:0].copy(), np.empty(0, np.int64)
    child = sklearn.cluster.KMeans(n_distinct, **settings).fit(rows, sample_weight=weights)
    found, labels = np.unique(child.labels_, return_inverse=True)
    return child.cluster_centers_[found], labels.astype(np.int64)


def are_means(X: Floats, weights: Floats | None, centres: Floats, labels: Ints) -> bool:
    """Return whether each centre is, up to rounding, the mean of its points.

    Examples
    --------
    >>> X, labels = np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 1])
    >>> are_means(X, None, np.array([[0.5], [5.0]]), labels)
    True
    >>> are_means(X, None, np.array([[0.0], [3.0]]), labels)
    False
    """
    one = np.ones(len(X)) if weights is None else weights
    counted = labels >= 0
    totals = np.bincount(labels[counted], one[counted], len(centres))[:, np.newaxis]
    sums = np.zeros(centres.shape)
    np.add.at(sums, labels[counted], one[counted, np.newaxis] * X[counted])
    rounding = MEAN_ROUNDING * np.abs(X).max(axis=0, initial=0)
    return bool((np.abs(centres * totals - sums) <= rounding * totals).all())


def mean_and_squares(X: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the mean of each feature, and the sum of the squared differences from it.

    Both are 0 if there are no points.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    weights : array (n_points,) of float64, optional
        By default 1 for each point.

    Returns
    -------
    mean, squares : array (n_features,)

    Examples
    --------
    >>> mean_and_squares(np.array([[1.0], [3.0]]))
    (array([2.]), array([2.]))
    """
    mean, squares = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    find_mean_and_squares(X, weights, mean, squares)
    return mean, squares


def group_means(
    X: Floats, n_groups: int, weights: Floats | None = None
) -> tuple[Floats, Ints, Floats]:
    """Return the means, sizes and weights of at most ``n_groups`` groups of neighbouring points.

    The groups are the leaves of a k-d tree. Each has at least three points; fewer than three points
    in total form no group. Without weights, the weight of a group is its size.

    A mean is that of its points without their weights, so that a large weight does not disclose its
    point. Of points that are lighter than the others, only some are in groups, the more of them the
    heavier they are, and count for the rest: otherwise a few of them would shift a mean.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    n_groups : int
        At least 0.
    weights : array (n_points,) of float64, optional
        Above 0.

    Returns
    -------
    means : array (n_groups, n_features)
    counts : array (n_groups,) of int64
    weights : array (n_groups,)
        Their sum is that of the points.

    Examples
    --------
    >>> X = np.array([[0.0], [9.0], [1.0], [8.0], [2.0], [7.0], [1.0], [8.0]])
    >>> means, counts, _ = group_means(X, n_groups=3)
    >>> sorted(means.ravel().tolist()), counts
    ([1.0, 8.0], array([4, 4]))
    """
    rows, starts, represented = _leaves(X, n_groups, weights)
    if not len(starts):
        return X[:0].copy(), np.empty(0, np.int64), np.empty(0)
    counts = np.diff(starts, append=len(rows)).astype(np.int64)
    means = np.add.reduceat(X[rows], starts) / counts[:, np.newaxis]
    return means, counts, np.add.reduceat(represented[rows], starts)


def leaf_groups(X: Floats, n_groups: int, weights: Floats | None = None) -> Ints:
    """Return the group of each point in `group_means`, -1 if there is none."""
    rows, starts, _ = _leaves(X, n_groups, weights)
    groups = np.full(len(X), -1, np.int64)
    groups[rows] = np.searchsorted(starts, np.arange(len(rows)), side="right") - 1
    return groups


def _leaves(X: Floats, n_groups: int, weights: Floats | None) -> tuple[Ints, Ints, Floats]:
    """Return the rows in the order of the leaves of a k-d tree, and where each leaf starts.

    The last array (n_points,) is the weight for which each point counts.
    """
    represented = np.ones(len(X)) if weights is None else _represented(weights, n_groups)
    chosen = np.flatnonzero(represented)
    if n_groups == 0 or len(chosen) < GROUP_SIZE:
        return np.empty(0, np.int64), np.empty(0, np.int64), represented
    leaf_size = max(GROUP_SIZE, -(-len(chosen) // n_groups))
    tree = sklearn.neighbors.KDTree(X[chosen], leaf_size=leaf_size)
    _, rows, nodes, _ = (np.asarray(array) for array in tree.get_arrays())
    leaves = nodes[nodes["is_leaf"] == 1]
    return chosen[rows], np.sort(leaves["idx_start"]), represented


def _represented(weights: Floats, n_groups: int) -> Floats:
    """Return the weight for which each point counts: 0 for light points that others stand for.

    A point is chosen with the probability ``min(1, weight / limit)``, by systematic sampling in the
    order of the rows, and counts for its weight, at least for the limit. The limit is the mean
    weight, or less, so that enough points for ``n_groups`` are chosen.
    """
    if not len(weights):
        return weights
    wanted = min(len(weights), max(n_groups, GROUP_SIZE))
    limit, smallest = float(weights.mean()), float(weights.min())
    while limit > smallest and np.minimum(1, weights / limit).sum() < wanted:
        limit /= 2
    if limit <= smallest:
        return weights
    steps = np.floor(np.cumsum(np.minimum(1, weights / limit)) + 0.5)
    counted = np.where(np.diff(steps, prepend=0.0) > 0, np.maximum(weights, limit), 0.0)
    scaled: Floats = counted * (weights.sum() / counted.sum())
    return scaled


def sum_clusters(
    X: Floats, centres: Floats, weights: Floats | None = None
) -> tuple[Floats, Ints | Floats, float]:
    """Return the sums and counts of the points by nearest centre, and the inertia.

    The inertia is the sum of the squared distances of the points to their nearest centres. With
    weights, all sums are weighted, and the counts are sums of weights.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    centres : array (n_clusters, n_features) of float64
    weights : array (n_points,) of float64, optional

    Returns
    -------
    sums : array (n_clusters, n_features)
    counts : array (n_clusters,) of int64, or of float64 with weights
    inertia : float

    Raises
    ------
    ValueError
        When the points and the centres have different numbers of features, or there is no centre.

    Examples
    --------
    >>> sum_clusters(np.array([[0.0], [1.0], [5.0]]), centres=np.array([[0.0], [4.0]]))
    (array([[1.],
           [5.]]), array([2, 1]), 2.0)
    """
    _check_features(X, centres)
    sums = np.zeros(centres.shape)
    kind: type = np.int64 if weights is None else np.float64
    counts: NDArray[Any] = np.zeros(len(centres), kind)
    inertia = sum_nearest(X, weights, centres, sums, counts)
    return sums, counts, float(inertia)


def assign(X: Floats, centres: Floats) -> tuple[Ints, float]:
    """Return the nearest centre of each point and the inertia; ties go to the first centre.

    Raises
    ------
    ValueError
        When the points and the centres have different numbers of features, or there is no centre.

    Examples
    --------
    >>> assign(np.array([[0.0], [2.0], [5.0]]), centres=np.array([[0.0], [4.0]]))
    (array([0, 0, 1]), 5.0)
    """
    _check_features(X, centres)
    labels = np.empty(len(X), np.int64)
    return labels, float(nearest_centres(X, centres, labels))


def _check_features(X: Floats, centres: Floats) -> None:
    if X.shape[1] != centres.shape[1]:
        raise BadRequest(
            f"X must have the {centres.shape[1]} features of the centres, got {X.shape[1]}"
        )
    if not len(centres):  # the kernels look for the nearest one
        raise BadRequest("there must be at least one centre, got none")
