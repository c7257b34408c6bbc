"""DBSCAN with point weights and individual radii, in memory linear in the number of points.

The points are sorted into cells so that any two points of a cell are neighbours of each other. So
all core points of a cell are in one cluster, and a cell of enough weight has core points only. Only
cells near each other remain to be compared. These pairs are searched for in each step instead of
being stored.

With up to four features, the cells are those of a grid whose diagonal is about ``eps``. With more
features, with individual radii, or when the data are too wide for 64-bit cell numbers, they are the
leaves of a k-d tree, or parts of leaves.

Sources: M. Ester, H.-P. Kriegel, J. Sander and X. Xu, "A density-based algorithm for discovering
clusters in large spatial databases with noise", KDD 1996; for cells of diagonal ``eps``:
A. Gunawan, "A faster algorithm for DBSCAN", Eindhoven 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.clustering.density.engine.index import (
    GRID_FEATURES,
    Index,
    Rows,
    Shares,
    index_by_grid,
    index_by_tree,
)
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.points import check_points
from fedlib.core.threads import check_n_jobs
from fedlib.kernels import connections, density, kd_tree, leaf_connections, near_nodes, near_ranges

__all__ = ["cluster", "dbscan", "nearest_within", "neighbours_within"]


LEAF_SIZE = 16  # of the tree for searches
BLOCK = 1024  # groups of cells in a block
PIECE = 1 << 12  # cells that are listed at the same time
MIN_GRID_EPS = 1e-150  # below it, or above its inverse, squares of distances near eps lose digits
BUFFER = 1 << 12  # ranges of near cells in a block, or those of one group if they are more


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
        Number of threads, at least 1, or -1 for one per core; by default 1. The result does not
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
    lexicographic order of the coordinates. So the order of the rows affects only the numbers of the
    clusters. scikit-learn assigns such a point to the first cluster that reaches it; everything
    else is the same.

    Squares are compared: the sum of the squared differences, in the order of the features, with the
    square of the radius, all in float64, as in scikit-learn's trees. So a radius above 1e154
    reaches all points, and one below 1e-162 only equal ones. Weights are added in no fixed order.
    The result is the same for any order of the rows if the weights are integers whose sum is below
    2**53, or if no sum is within rounding of ``min_samples``.

    Memory is linear in the number of points. Without weights and radii, many points need less than
    60 bytes each beyond the data with up to ten features. Weights and radii add 8 to 16. ``X`` is
    copied unless it is an array of float64 in C order.

    Sorting the points into cells takes time linear in their number with a grid and O(n log n) with
    a tree. After that, the time depends on the number of points in neighbouring cells, and rises
    with the number of features.

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
        start = partial(
            _Clustering, points, squared_radii, weights, min_samples, threads, n_threads
        )
        clustering = None
        has_square = MIN_GRID_EPS <= eps <= 1 / MIN_GRID_EPS
        if radii is None and points.shape[1] <= GRID_FEATURES and has_square:
            index = index_by_grid(points, eps, Shares(threads, n_threads, n))
            clustering = None if index is None else start(index)
            del index  # so that the clustering can free it
        if clustering is None or not clustering.sort_points():
            clustering = None  # not needed while the tree is built
            clustering = start(index_by_tree(points, squared_radii, n_threads))
            clustering.sort_points()
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
    Memory is linear in the number of all neighbours: pass a block of rows if they are too many.
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


class _Clustering:
    """One run of DBSCAN on indexed points.

    Each thread works on an equal share of the points, in whole cells, and writes their results. In
    the third step it joins the cells of its share. Those near another share are joined at the end.
    A search for the set of a cell may shorten paths in another share, to numbers that are valid
    whenever they are read, because the number of a cell's parent only falls.
    """

    def __init__(
        self,
        X: Floats,
        squared_radii: Floats,
        weights: Floats,
        min_samples: float,
        threads: ThreadPoolExecutor,
        n_threads: int,
        index: Index,
    ):
        n, d = X.shape
        self.X = X
        self.index = index
        self.min_samples = float(min_samples)
        self.threads = threads
        if index.leaves is None:
            points, rows = np.empty((n, d), order="F"), np.empty(0, index.order.dtype)
            box, boxes = _allocate_boxes(index.start, d)
        else:
            points, rows = X, index.order
            box, boxes = np.empty(0, index.start.dtype), np.empty((0, 2, d))
        self.cells = density.Cells(
            points=points,
            rows=rows,
            axes=tuple(range(d)) if index.leaves is None else np.arange(d),
            squared_radii=squared_radii,
            weights=weights[index.order] if weights.size else weights,
            start=index.start,
            box=box,
            boxes=boxes,
            core=np.empty(n, bool),
            has_core=np.empty(len(index.start) - 1, np.int8),
        )
        cuts = np.linspace(0, n, n_threads + 1).astype(index.start.dtype)
        self.shares = np.searchsorted(index.start, cuts)

    def sort_points(self) -> bool:
        """Copy the points into the cells; return whether any two of a cell are neighbours.

        Rounding is monotone, so this is so if the diagonal of each cell's box is at most the
        radius. The points of a tree stay in place, and any two of a cell are neighbours.
        """
        if self.index.leaves is not None:
            return True
        return max(self._map(self._sort_points)) <= self.cells.squared_radii.min()

    def run(self) -> tuple[Ints, Bools]:
        """Return labels and core flags by row; to be called after `sort_points`.

        This works only once: arrays are freed as soon as possible, the points before the labels.
        """
        self._map(self._find_core)
        parent = self._find_sets()
        start, core, order = self.index.start, self.cells.core, self.index.order
        joined = np.empty_like(order)  # the cell of each point that is no core point
        self._map(partial(self._find_border, joined))
        del self.cells, self.index
        first_row = np.empty_like(parent)
        self._map(partial(density.find_first_rows, start, core, order, first_row))
        number = density.number_sets(parent, first_row)
        labels, is_core = np.empty(len(order), np.int64), np.empty(len(order), bool)
        found = start, core, order, joined, number
        self._map(partial(density.write_labels, *found, labels, is_core))
        return labels, is_core

    def _map(self, step: Callable[[int, int], Any]) -> list[Any]:
        """Return the results of a function of the first cell and the stop of each share."""
        firsts, stops = self.shares[:-1], self.shares[1:]
        run = map if len(firsts) == 1 else self.threads.map  # as in `Shares.map`
        return list(run(step, firsts, stops))

    def _sort_points(self, first: int, stop: int) -> float:
        start = self.cells.start
        density.gather(self.X, self.index.order, self.cells, start[first], start[stop])
        largest: float = density.bound_cells(self.cells, first, stop)
        return largest

    def _find_core(self, first: int, stop: int) -> None:
        for begin, end in _pieces(first, stop):
            dense = density.find_dense(self.cells, begin, end, self.min_samples)
            wanted = _list_cells(~dense, begin)
            if self.index.leaves is not None:
                near_nodes.find_core(wanted, self.cells, self.index.leaves[0], self.min_samples)
                continue
            for block in self._blocks(wanted):
                near_ranges.find_core(block, self.cells, self.min_samples)

    def _find_sets(self) -> Rows:
        """Return for each cell the first one that it is connected with, by way of others, too."""
        n_cells = len(self.cells.has_core)
        parent = np.arange(n_cells, dtype=self.index.start.dtype)
        crossing = np.zeros(n_cells, bool)  # which cells are near another share
        self._map(partial(self._join_cells, self.cells.has_core, parent, crossing))
        self._join_cells(crossing.view(np.int8), parent, crossing, 0, n_cells)
        density.flatten(parent)
        return parent

    def _join_cells(
        self,
        wanted: NDArray[np.int8],
        parent: Rows,
        crossing: Bools,
        first: int,
        stop: int,
    ) -> None:
        """Join those of the cells ``first..stop`` that are not 0 in ``wanted`` with each other.

        Also mark those near others.
        """
        if self.index.leaves is not None:
            tree, leaves = self.index.leaves
            leaf_connections.join_leaves(
                wanted, self.cells, tree, leaves, first, stop, parent, crossing
            )
            return
        for begin, end in _pieces(first, stop):
            for block in self._blocks(_list_cells(wanted[begin:end], begin), earlier=True):
                connections.join_cells(block, self.cells, first, parent, crossing)

    def _find_border(self, joined: Rows, first: int, stop: int) -> None:
        """Write which cell each point of some cells joins that is no core point, or -1."""
        for begin, end in _pieces(first, stop):
            wanted = _list_cells(self.cells.has_core[begin:end] != density.ALL, begin)
            if self.index.leaves is not None:
                near_nodes.find_border(wanted, self.cells, *self.index.leaves, joined)
                continue
            for block in self._blocks(wanted):
                near_ranges.find_border(block, self.cells, joined)

    def _blocks(self, cells: Ints, earlier: bool = False) -> Iterator[density.Block]:
        """Yield these cells of a grid (ascending) in blocks. Each overwrites the previous one.

        With ``earlier``, the cells near a group need not include later ones.
        """
        assert self.index.find_near is not None
        group_start, near_start = np.empty((2, BLOCK + 1), np.int64)
        n_ranges = max(BUFFER, self.index.max_ranges)
        near = np.empty((n_ranges, 2), self.cells.start.dtype)
        done = 0
        while done < len(cells):
            rest = cells[done:]
            n_groups = self.index.find_near(rest, earlier, group_start, near_start, near)
            yield density.Block(rest, group_start[: n_groups + 1], near_start, near)
            done += group_start[n_groups]


def _pieces(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the first cell and the stop of successive pieces, so that lists of cells stay short."""
    for begin in range(first, stop, PIECE):
        yield begin, min(begin + PIECE, stop)


def _list_cells(wanted: NDArray[np.generic], begin: int) -> Ints:
    """Return the wanted cells; the first entry is that of the cell ``begin``."""
    cells = np.flatnonzero(wanted)
    cells += begin
    return cells


def _allocate_boxes(start: Rows, d: int) -> tuple[Rows, Floats]:
    """Return `Cells.box`, and space for `Cells.boxes`, given where the cells begin."""
    has_box = np.diff(start) > connections.FEW
    box = np.cumsum(has_box, dtype=start.dtype)
    boxes = np.empty((int(box[-1]), 2, d))
    box -= 1
    box[~has_box] = -1
    return box, boxes


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
        numbers = np.array(values, dtype=np.float64)
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
