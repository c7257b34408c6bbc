"""DBSCAN with point weights and individual radii, in memory linear in the count of points.

The points are sorted into cells so that any two points of a cell are neighbours of each other. So
all core points of a cell are in one cluster, and a cell of enough weight has core points only. Only
cells near each other remain to be compared. These pairs are searched for in each step instead of
being stored.

With up to four features, the cells are those of a grid whose diagonal is about ``eps``. With more
features, with individual radii, or when the data are too wide for 64-bit cell keys, they are the
leaves of a k-d tree, or parts of leaves.

Sources: M. Ester, H.-P. Kriegel, J. Sander and X. Xu, "A density-based algorithm for discovering
clusters in large spatial databases with noise", KDD 1996; for cells of diagonal ``eps``:
A. Gunawan, "A faster algorithm for DBSCAN", Eindhoven 2013.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from fedlib.clustering.density.engine.clustering import Clustering, OnGrid, OnTree
from fedlib.clustering.density.engine.index import (
    GRID_FEATURES,
    Shares,
    index_by_grid,
    index_by_tree,
)
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.column_names import as_table
from fedlib.core.points import check_points
from fedlib.core.threads import check_n_jobs
from fedlib.kernels import kd_tree

LEAF_SIZE = 16  # of the tree for searches
MIN_GRID_EPS = 1e-150  # below it, or above its inverse, squares of distances near eps lose digits


def dbscan(
    X: ArrayLike,
    eps: float,
    min_samples: float,
    sample_weight: ArrayLike | None = None,
    radii: ArrayLike | None = None,
    *,
    n_jobs: int | None = None,
) -> Ints:
    """Return the cluster of each point, -1 for noise.

    This is the first array that `cluster` returns; see there for parameters, errors and cost.

    Examples
    --------
    >>> from fedlib.clustering.density.engine.dbscan import dbscan
    >>> dbscan([[0.0], [1.0], [2.0], [5.0], [9.0], [9.5], [10.0]], eps=1, min_samples=3)
    array([ 0,  0,  0, -1,  1,  1,  1])
    """
    return cluster(X, eps, min_samples, sample_weight, radii, n_jobs=n_jobs)[0]


def cluster(
    X: ArrayLike,
    eps: float,
    min_samples: float,
    sample_weight: ArrayLike | None = None,
    radii: ArrayLike | None = None,
    *,
    n_jobs: int | None = None,
) -> tuple[Ints, Bools]:
    """Return the cluster of each point, -1 for noise, and which points are core points.

    Parameters
    ----------
    X : array-like (n_points, n_features)
        Finite numbers; there may be no rows.
    eps : float
        Radius of a neighbourhood, in the units of the features, above 0. Points at exactly this
        distance belong to it.
    min_samples : float
        Minimum weight of a core point's neighbourhood, including the point itself; above 0.
    sample_weight : float or array-like (n_points,), optional
        Weight of each point, at least 0; by default 1. A single number applies to all points.
    radii : float or array-like (n_points,), optional
        Added to ``eps`` for the neighbourhood of each point, at least 0; by default 0.
    n_jobs : int, optional
        Count of threads, at least 1, or -1 for one per core; by default 1. The result does not
        depend on it.

    Returns
    -------
    labels : array (n_points,) of int64
        The cluster of each point, -1 for noise. As in scikit-learn, clusters are numbered by their
        first core point.
    core : array (n_points,) of bool
        Which points are core points.

    Raises
    ------
    ValueError
        When a parameter is out of range, or an array has another length than ``X``.

    Notes
    -----
    The neighbourhood of point i contains the points j with ``d(i, j) <= eps + radii[i]``. Two core
    points are in one cluster when either is in the other's neighbourhood. Any other point joins the
    nearest core point in whose neighbourhood it is. Ties go to the first core point in
    lexicographic order of the coordinates. So the order of the rows affects only the indices of the
    clusters. scikit-learn assigns such a point to the first cluster that reaches it; everything
    else is the same.

    Squares are compared: the sum of the squared differences, in the order of the features, with the
    square of the radius, all in float64, as in scikit-learn's trees. So a radius above 1e154
    reaches all points, and one below 1e-162 only equal ones. Weights are added in no fixed order.
    The result is the same for any order of the rows if the weights are integers whose sum is below
    2**53, or if no sum is within rounding of ``min_samples``.

    Memory is linear in the count of points. Without weights and radii, many points need less than
    60 bytes each beyond the data with up to ten features. Weights and radii add 8 to 16. ``X`` is
    copied unless it is an array of float64 in C order.

    Sorting the points into cells takes time linear in their number with a grid and O(n log n) with
    a tree. After that, the time depends on the count of points in neighbouring cells, and rises
    with the count of features.

    Examples
    --------
    >>> from fedlib.clustering.density.engine.dbscan import cluster
    >>> labels, core = cluster([[0.0], [1.0], [2.0], [5.0]], eps=1, min_samples=3)
    >>> labels, core
    (array([ 0,  0,  0, -1]), array([False,  True, False, False]))
    >>> cluster([[0.0], [3.0]], eps=1, min_samples=2, radii=[2, 0])[0]
    array([0, 0])
    """
    points = _check_points(X, "X")
    eps = _check_positive(eps, "eps")
    min_samples = _check_positive(min_samples, "min_samples")
    n_threads = check_n_jobs(n_jobs)
    n = len(points)
    weights = np.empty(0)  # means that all weights are 1
    if sample_weight is not None:
        weights = _check_per_point(sample_weight, n, "sample_weight")
    reach = np.array([eps])
    if radii is not None:
        with np.errstate(over="ignore"):  # an infinite radius reaches everything
            reach = eps + _check_per_point(radii, n, "radii")
    if n == 0:
        return np.empty(0, np.int64), np.empty(0, bool)
    squared_radii = _square(reach)
    if squared_radii.min() == squared_radii.max():
        squared_radii = squared_radii[:1]
    with ThreadPoolExecutor(n_threads) as threads:
        arguments = points, squared_radii, weights, min_samples, threads, n_threads
        clustering: Clustering | None = None
        has_square = MIN_GRID_EPS <= eps <= 1 / MIN_GRID_EPS
        if radii is None and points.shape[1] <= GRID_FEATURES and has_square:
            index = index_by_grid(points, eps, Shares(threads, n_threads, n))
            clustering = None if index is None else OnGrid(index, *arguments)
            del index  # so that the clustering can free it
        if clustering is None or not clustering.sort_points():
            clustering = None  # not needed while the tree is built
            clustering = OnTree(index_by_tree(points, squared_radii, n_threads), *arguments)
        return clustering.run()


def neighbours_within(X: ArrayLike, points: ArrayLike, radius: ArrayLike) -> tuple[Ints, Ints]:
    """Return which ``points`` lie within a radius of each row of ``X``, as CSR arrays.

    Parameters
    ----------
    X : array-like (n_queries, n_features)
        Finite numbers; there may be no rows.
    points : array-like (n_points, n_features)
        Finite numbers; there may be no rows.
    radius : float or array-like (n_queries,)
        Radius around each query, in the units of the features, at least 0. Points at exactly this
        distance are within it.

    Returns
    -------
    start : array (n_queries + 1,) of int64
    index : array (n_neighbours,) of int64
        The neighbours of row i are ``index[start[i]:start[i + 1]]``, ascending.

    Raises
    ------
    ValueError
        When an argument is out of range, or the numbers of features differ.

    Notes
    -----
    Memory is linear in the count of all neighbours: pass a block of rows if they are too many.
    Time is O(n_points log n_points) for a k-d tree and two searches per query.

    Examples
    --------
    >>> from fedlib.clustering.density.engine.dbscan import neighbours_within
    >>> neighbours_within([[0.0], [5.0]], [[3.0], [1.0], [0.5]], radius=1)
    (array([0, 2, 2]), array([1, 2]))
    """
    queries, places = _check_pair(X, points)
    squared_radii = _square(_check_per_point(radius, len(queries), "radius"))
    return kd_tree.find_within(kd_tree.build(places, LEAF_SIZE, 0.0), queries, squared_radii)


def nearest_within(X: ArrayLike, points: ArrayLike, radius: ArrayLike) -> Ints:
    """Return for each row of ``X`` the nearest of ``points`` that reaches it, or -1.

    Parameters
    ----------
    X : array-like (n_queries, n_features)
        Finite numbers; there may be no rows.
    points : array-like (n_points, n_features)
        Finite numbers; there may be no rows.
    radius : float or array-like (n_points,)
        How far each *point* reaches, in the units of the features, at least 0; inf for any
        distance.

    Returns
    -------
    array (n_queries,) of int64
        Indices into ``points``. Ties go to the lowest index.

    Raises
    ------
    ValueError
        When an argument is out of range, or the numbers of features differ.

    Notes
    -----
    Time is O(n_points log n_points) for a k-d tree and one search per query; memory is linear.

    Examples
    --------
    >>> from fedlib.clustering.density.engine.dbscan import nearest_within
    >>> nearest_within([[0.0], [4.0], [9.0]], [[1.0], [5.0]], radius=[1, 3])
    array([ 0,  1, -1])
    """
    queries, places = _check_pair(X, points)
    squared_radii = _square(_check_per_point(radius, len(places), "radius", infinite=True))
    return kd_tree.find_nearest(kd_tree.build(places, LEAF_SIZE, 0.0), queries, squared_radii)


def _check_points(X: ArrayLike, name: str) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):  # the check adds up all coordinates
        return check_points(X, ensure_min_samples=0, input_name=name)


def _check_pair(X: ArrayLike, points: ArrayLike) -> tuple[Floats, Floats]:
    queries, places = _check_points(X, "X"), _check_points(points, "points")
    if queries.shape[1] != places.shape[1]:
        raise ValueError(
            "X and points must have the same number of features, got"
            f" {queries.shape[1]} and {places.shape[1]}"
        )
    return queries, places


def _check_positive(value: float, name: str) -> float:
    """Return the value as a float of 64 bits, in which all bounds are computed."""
    try:
        number = float(value) if isinstance(value, Real) else np.nan
    except OverflowError:
        number = np.inf
    if not 0 < number < np.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def _check_per_point(values: ArrayLike, n: int, name: str, infinite: bool = False) -> Floats:
    """Return one number of at least 0 per point; a single number applies to all points."""
    try:
        numbers = np.array(as_table(values), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from error
    if numbers.ndim == 0:
        numbers = np.full(n, numbers)
    if numbers.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), got {numbers.shape}")
    wrong = numbers[~((numbers >= 0) & (infinite | np.isfinite(numbers)))]
    if wrong.size:
        finite = "" if infinite else "finite and "
        raise ValueError(f"{name} must be {finite}at least 0, got {float(wrong[0])!r}")
    return numbers


def _square(radii: Floats) -> Floats:
    with np.errstate(over="ignore"):  # a radius whose square is infinite reaches everything
        return np.square(radii, dtype=np.float64)
