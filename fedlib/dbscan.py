"""DBSCAN with point weights and a radius for each query point, in memory linear in the points.

The points are sorted into cells of which any two points are in each other's neighbourhood: so all
core points of a cell are in one cluster, a cell of enough weight has core points only, and what is
left to do is a matter of cells near each other. In up to three dimensions the cells are those of a
grid whose diagonal is just below ``eps``; with more, with radii of their own, or where the data
are too wide for 64-bit cell numbers, they are the leaves of a k-d tree. Cells near a cell are
found block by block and forgotten.

Sources: M. Ester, H.-P. Kriegel, J. Sander, X. Xu, "A density-based algorithm for discovering
clusters in large spatial databases with noise", KDD 1996; for cells of diagonal ``eps``
A. Gunawan, "A faster algorithm for DBSCAN", Eindhoven 2013.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array

from fedlib.kernels.density import (
    bound_cells,
    find_border,
    find_core,
    gather,
    join_cells,
    number_clusters,
)
from fedlib.kernels.kd_tree import build, collect_leaves, find_nearest, find_within, near_in_tree
from fedlib.kernels.sorted_grid import find_cells, find_keys, near_in_grid, sort_keys

__all__ = ["cluster", "dbscan", "nearest_within", "neighbours_within"]

GRID_FEATURES = 3  # up to which the grid is used, and kernels are compiled for each number of them
BLOCK = 4096  # cells looked at together
LEAF_SIZE = 16  # of the tree for searches
ROOM = 1 << 16  # ranges of near cells kept at once, or what one cell has where that is more


def dbscan(
    X: ArrayLike,
    eps: float,
    min_samples: float,
    sample_weight: ArrayLike | None = None,
    radii: ArrayLike | None = None,
    *,
    n_jobs: int | None = None,
) -> NDArray[np.int64]:
    """Return the cluster of each point, -1 for noise; for the parameters see `cluster`.

    Examples
    --------
    >>> from fedlib.dbscan import dbscan
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
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the cluster of each point, -1 for noise, and which points are core points.

    Parameters
    ----------
    X : array-like of shape (n_points, n_features)
        Finite numbers; there may be no rows.
    eps : float
        Radius of a neighbourhood, above 0. Points at just this distance are in it.
    min_samples : float
        A core point has at least this weight in its neighbourhood, itself included; above 0.
    sample_weight : array-like of shape (n_points,), optional
        Weight of each point, at least 0; 1 if not given.
    radii : array-like of shape (n_points,), optional
        What each point adds to the radius of its own neighbourhood, at least 0.
    n_jobs : int, optional
        Number of threads; one if not given, -1 for all cores. The result does not depend on it.

    Returns
    -------
    labels : ndarray of shape (n_points,)
        Clusters are numbered by their first core point, as scikit-learn does, -1 is noise.
    core : ndarray of bool, of shape (n_points,)

    Raises
    ------
    ValueError
        If a parameter is out of its range, or an array has another length than `X`.

    Notes
    -----
    Point i's neighbourhood are the points j with ``d(i, j) <= eps + radii[i]``. Two core points are
    in one cluster when either is in the other's neighbourhood. A point that is no core point joins
    the nearest core point in whose neighbourhood it is; of several at the same distance, the one
    that is first in lexicographic order of the coordinates. So no label depends on the order of
    the rows, but for its number. scikit-learn gives such a point to the first cluster that finds
    it; everything else is the same.

    Squares are compared: the sum of the squared differences, in the order of the features, with the
    square of the radius, all in float64, as scikit-learn's trees do. A radius below 1e-154 or above
    1e154 has no square in float64. Weights are added in no fixed order: they decide alike for any
    order of rows when they are whole numbers below 2**53 in sum, or well off `min_samples`.

    Examples
    --------
    >>> from fedlib.dbscan import cluster
    >>> labels, core = cluster([[0.0], [1.0], [2.0], [5.0]], eps=1, min_samples=3)
    >>> labels, core
    (array([ 0,  0,  0, -1]), array([False,  True, False, False]))
    >>> cluster([[0.0], [3.0]], eps=1, min_samples=2, radii=[2, 0])[0]
    array([0, 0])
    """
    points = _as_points(X, "X")
    _positive(eps, "eps")
    _positive(min_samples, "min_samples")
    n_jobs = _threads(n_jobs)
    n = len(points)
    weights = np.empty(0)  # all 1
    if sample_weight is not None:
        weights = _per_point(sample_weight, n, "sample_weight")
    limits = _squares(np.full(n, eps) if radii is None else eps + _per_point(radii, n, "radii"))
    if n == 0:
        return np.empty(0, np.int64), np.empty(0, bool)
    index = _grid(points, eps) if radii is None and points.shape[1] <= GRID_FEATURES else None
    if index is None:
        index = _tree(points, limits)
    return _cluster(points, index, limits, weights, float(min_samples), n_jobs)


def neighbours_within(
    X: ArrayLike, points: ArrayLike, radius: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which ``points`` lie within a radius of each row of ``X``, as CSR (start, index).

    The neighbours of row i are ``index[start[i]:start[i + 1]]``, ascending. Memory grows with all
    neighbourhoods together: pass a block of rows where they are too many.

    Parameters
    ----------
    X : array-like of shape (n_queries, n_features)
    points : array-like of shape (n_points, n_features)
    radius : float or array-like of shape (n_queries,)
        Radius of each query, at least 0; points at just this distance are within it.

    Examples
    --------
    >>> from fedlib.dbscan import neighbours_within
    >>> neighbours_within([[0.0], [5.0]], [[3.0], [1.0], [0.5]], radius=1)
    (array([0, 2, 2]), array([1, 2]))
    """
    queries, places = _as_pair(X, points)
    limits = _squares(_per_point(radius, len(queries), "radius"))
    return find_within(queries, limits, places, *build(places, LEAF_SIZE, 0.0))


def nearest_within(X: ArrayLike, points: ArrayLike, radius: ArrayLike) -> NDArray[np.int64]:
    """Return for each row of ``X`` the nearest of ``points`` that reaches it, or -1.

    Parameters
    ----------
    X : array-like of shape (n_queries, n_features)
    points : array-like of shape (n_points, n_features)
    radius : float or array-like of shape (n_points,)
        How far each *point* reaches, at least 0, inf for any distance. Of points at the same
        distance the one with the lowest index is taken.

    Examples
    --------
    >>> from fedlib.dbscan import nearest_within
    >>> nearest_within([[0.0], [4.0], [9.0]], [[1.0], [5.0]], radius=[1, 3])
    array([ 0,  1, -1])
    """
    queries, places = _as_pair(X, points)
    limits = _squares(_per_point(radius, len(places), "radius", infinite=True))
    return find_nearest(queries, limits, places, *build(places, LEAF_SIZE, 0.0))


class _Index(NamedTuple):
    """Points sorted into cells, of which any two points are in each other's neighbourhood."""

    order: NDArray[np.int64]  # (n,) the row of each point
    cell_start: NDArray[np.int64]  # (n_cells + 1,) where the points of each cell begin
    near: Callable[..., int]  # (which, done, near_start, near): the kernel that finds near cells
    most_near: int  # ranges of near cells that one cell can have


def _grid(X, eps):
    """Return a grid whose cells' diagonal is just below ``eps``, or None if it is too wide."""
    d = X.shape[1]
    # The margin is far above the rounding of a quotient of up to 2**40 cells.
    cell_size = eps / math.sqrt(d) * (1 - 2.0**-10)
    origin = X.min(axis=0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        extent = (X.max(axis=0) - origin) / cell_size
    if not (extent < 2.0**40).all():
        return None
    around = math.floor(math.sqrt(d) * (1 + 2.0**-9)) + 1
    strides = [1]
    for length in extent[:0:-1]:
        strides.insert(0, strides[0] * (int(length) + 1 + around))
    largest = (int(extent[0]) + 1) * strides[0]
    if largest >= 2**62:
        return None
    strides = np.array(strides)
    rows, reach = [], []
    for offset in product(range(-around, around + 1), repeat=d - 1):
        left = d * (1 + 2.0**-8) - sum(max(0, abs(o) - 1) ** 2 for o in offset)
        if left >= 0:
            rows.append(int(np.dot(offset, strides[:-1])))
            reach.append(1 + math.isqrt(int(left)))
    nearest_first = np.argsort(-np.array(reach), kind="stable")
    rows, reach = np.array(rows)[nearest_first], np.array(reach)[nearest_first]
    keys = np.empty(len(X), np.int64)
    find_keys(X, origin, cell_size, strides, keys, 0, len(X))
    order, keys = sort_keys(keys, largest)
    cell_keys, cell_start = find_cells(keys)

    def near(which, done, near_start, near):
        return near_in_grid(which, done, cell_keys, rows, reach, near_start, near)

    return _Index(order, cell_start, near, len(rows))


def _tree(X, limits):
    """Return a tree whose leaves are the largest nodes that can be cells."""
    order, first, _, right, lower, upper = build(X, 1, limits.min())
    leaf_start, first_leaf, furthest = collect_leaves(order, first, right, limits)
    leaf_node = np.flatnonzero(right == 0)

    def near(which, done, near_start, near):
        nodes = (leaf_node, right, lower, upper, first_leaf, furthest)
        return near_in_tree(which, done, *nodes, near_start, near)

    return _Index(order, leaf_start, near, len(leaf_start))


def _cluster(X, index, limits, weights, min_samples, n_jobs):
    """Find core points, join cells that hold some, give border points to the nearest.

    Each thread has an equal share of the points, in whole cells. Of its cells it joins those that
    lie within its share; the others are joined when all are done.
    """
    n, d = X.shape
    order, cell_start = index.order, index.cell_start
    n_cells = len(cell_start) - 1
    points, axes = np.empty((n, d)), np.arange(d)
    if d <= GRID_FEATURES:
        axes = tuple(range(d))
    limits = np.take(limits, order) if limits.min() < limits.max() else limits
    weights = weights[order] if weights.size else weights
    lower, upper = np.empty((n_cells, d)), np.empty((n_cells, d))
    core, n_core = np.empty(n, bool), np.empty(n_cells, np.int64)
    parent, crossing = np.arange(n_cells), np.zeros(n_cells, bool)
    nearest = np.empty(n, np.int64)
    cells = points, axes, limits, cell_start, lower, upper, core, n_core

    def blocks(which):
        near_start = np.empty(BLOCK + 1, np.int64)
        near = np.empty((max(ROOM, index.most_near), 2), np.int64)
        done = 0
        while done < len(which):
            n_which = index.near(which, done, near_start, near)
            yield which, done, n_which, near_start, near
            done += n_which

    def prepare(low, high):
        gather(X, order, cell_start[low], cell_start[high], points)
        bound_cells(points, axes, cell_start, low, high, lower, upper)

    def count(low, high):
        for block in blocks(np.arange(low, high)):
            find_core(*block, points, axes, weights, limits, cell_start, min_samples, core, n_core)

    def join(low, high):
        for block in blocks(low + np.flatnonzero(n_core[low:high])):
            join_cells(*block, *cells, high, parent, crossing)

    def border(low, high):
        sizes = np.diff(cell_start[low : high + 1])
        for block in blocks(low + np.flatnonzero(n_core[low:high] < sizes)):
            find_border(*block, *cells, nearest)

    shares = np.searchsorted(cell_start, np.linspace(0, n, n_jobs + 1).astype(np.int64))
    with ThreadPoolExecutor(n_jobs) as threads:
        for step in (prepare, count, join):
            list(threads.map(step, shares[:-1], shares[1:]))
        for block in blocks(np.flatnonzero(crossing)):
            join_cells(*block, *cells, n_cells, parent, crossing)
        list(threads.map(border, shares[:-1], shares[1:]))
    cell_of = np.repeat(np.arange(n_cells), np.diff(cell_start))
    return number_clusters(order, cell_of, parent, core, nearest)


def _as_points(X, name):
    with np.errstate(over="ignore", invalid="ignore"):  # the check adds up all coordinates
        return check_array(X, dtype=np.float64, order="C", ensure_min_samples=0, input_name=name)


def _as_pair(X, points):
    X, points = _as_points(X, "X"), _as_points(points, "points")
    if X.shape[1] != points.shape[1]:
        raise ValueError(
            f"X and points must have the same features, got {X.shape[1]} and {points.shape[1]}"
        )
    return X, points


def _positive(value, name):
    if not (isinstance(value, Real) and 0 < value < np.inf):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def _per_point(values, n, name, infinite=False):
    """Return one number of at least 0 a point; a single number is everybody's."""
    values = np.array(values, dtype=np.float64)
    if values.ndim == 0:
        values = np.full(n, values)
    if values.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), got {values.shape}")
    wrong = values[~((values >= 0) & (infinite | np.isfinite(values)))]
    if wrong.size:
        finite = "" if infinite else "finite and "
        raise ValueError(f"{name} must be {finite}at least 0, got {float(wrong[0])!r}")
    return values


def _squares(reach):
    with np.errstate(over="ignore"):  # a radius whose square is infinite reaches everything
        return np.square(reach, dtype=np.float64)


def _threads(n_jobs):
    if n_jobs is None:
        return 1
    if not isinstance(n_jobs, Integral) or not (n_jobs == -1 or n_jobs >= 1):
        raise ValueError(f"n_jobs must be a whole number of at least 1, or -1, got {n_jobs!r}")
    return os.cpu_count() or 1 if n_jobs == -1 else int(n_jobs)
