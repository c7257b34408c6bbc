"""The cells of a grid as plain functions: count points, add counts, find clusters, place points.

`fedlib.clustering.density.horizontal` builds a federated protocol from them. A cell is a row of
integers, ``floor(x / cell_size)``; only occupied cells are stored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.parameters import check_option
from fedlib.kernels.density import connected_components
from fedlib.kernels.grid import (
    MAX_CELL,
    Candidates,
    adjacent_pairs,
    find_candidates,
    group_points,
    nearest_candidate,
    touching_pairs,
)
from fedlib.kernels.node_search import (
    Box,
    bounding_box,
    cells_of,
    count_in_box,
    extremes,
    place_in_box,
    point_keys,
    run_lengths,
    sort_keys,
)

# When too many columns are the cause of noise; see `warn_of_noise`.
MANY_FEATURES, MANY_ROWS, MOST_ROWS, HALF = 3, 100, 0.9, 0.5


def count_cells(X: Floats, cell_size: float) -> tuple[Ints, Ints]:
    """Return the occupied cells of points and the count of points in each.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    cell_size : float

    Returns
    -------
    cells : array (n_cells, n_features) of int64
        Sorted lexicographically.
    counts : array (n_cells,) of int64

    Raises
    ------
    ValueError
        When a point's cell lies outside ±2**62.

    Examples
    --------
    >>> count_cells(np.array([[0.2, -0.1], [2.5, 0.4], [0.9, -0.9]]), cell_size=1.0)
    (array([[ 0, -1],
           [ 2,  0]]), array([2, 1]))
    """
    if len(X) == 0:
        return np.empty(X.shape, np.int64), np.empty(0, np.int64)
    box = _box_of_points(X, cell_size)
    if box is None:
        groups = group_points(X, cell_size, False)
        order = _lexicographic_order(groups.cells)
        return groups.cells[order], groups.counts[order]
    if box.size <= X.size:  # then the array of counts is no larger than the points
        counts = count_in_box(X, cell_size, box)
        keys = np.flatnonzero(counts)
        return cells_of(keys, box), counts[keys]
    keys, counts = run_lengths(sort_keys(point_keys(X, cell_size, box), box.size))
    return cells_of(keys, box), counts


def groups_of_cells(X: Floats, cell_size: float) -> Ints:
    """Return the index of each point's cell among those of `count_cells`."""
    cells, _ = count_cells(X, cell_size)
    return place_points(X, cell_size, cells, np.arange(len(cells)), adjacency="none")


def label_in_range(X: Floats, cell_size: float, place: Callable[..., Ints]) -> tuple[Ints, str]:
    """Return the clusters of points, -1 for those without a cell, and why they have none.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    cell_size : float
    place : callable
        Returns the clusters of points; it raises ValueError if a cell lies outside ±2**62.

    Examples
    --------
    >>> X = np.array([[0.5], [1e30]])
    >>> label_in_range(X, 1.0, lambda X: count_cells(X, 1.0)[1])[0]
    array([ 1, -1])
    """
    try:
        return place(X), ""
    except ValueError:
        inside = in_range(X, cell_size)
        if inside.all():
            raise
    labels = np.full(len(X), -1)
    labels[inside] = place(X[inside])
    n_odd, first = len(X) - inside.sum(), inside.argmin()
    return labels, (
        f"{n_odd} of {len(X)} rows, the first is row {first}, are so large that they have no cell"
        f" of the size {cell_size:g}; their label is -1"
    )


def in_range(X: Floats, cell_size: float) -> Bools:
    """Return for each point of X (n_points, n_features) whether its cell lies within ±2**62.

    Examples
    --------
    >>> in_range(np.array([[0.5], [1e30]]), cell_size=1.0)
    array([ True, False])
    """
    with np.errstate(all="ignore"):
        cells: Floats = np.floor(X / cell_size)
    return np.logical_and.reduce(np.abs(cells) <= MAX_CELL, axis=1)


def add_counts(cells: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return the distinct cells, sorted lexicographically, and the sum of the counts of each.

    Parameters
    ----------
    cells : array (n, n_features) of int64
        Cells in any order, possibly repeated.
    counts : array (n,) of int64

    Returns
    -------
    cells : array (n_cells, n_features) of int64
    counts : array (n_cells,) of int64

    Examples
    --------
    >>> add_counts(np.array([[2], [0], [2]]), np.array([1, 5, 3]))
    (array([[0],
           [2]]), array([5, 4]))
    """
    box = _box_of_cells(cells)
    if box is not None and box.size <= cells.size:
        total = np.zeros(box.size, np.int64)
        keys = _keys(cells, box)
        np.add.at(total, keys, counts)
        occupied = np.zeros(box.size, bool)
        occupied[keys] = True
        keys = np.flatnonzero(occupied)
        return cells_of(keys, box), total[keys]
    order = _lexicographic_order(cells)
    cells, counts = cells[order], counts[order]
    first = np.ones(len(cells), bool)
    first[1:] = (cells[1:] != cells[:-1]).any(axis=1)
    return cells[first], np.add.reduceat(counts, np.flatnonzero(first)) if len(counts) else counts


def distinct_and_sorted(cells: Ints) -> bool:
    """Return whether cells (n_cells, n_features) are distinct and in lexicographic order.

    Examples
    --------
    >>> distinct_and_sorted(np.array([[0, 2], [0, 3], [1, 0]]))
    True
    >>> distinct_and_sorted(np.array([[0, 2], [0, 2]]))
    False
    """
    before, after = cells[:-1], cells[1:]
    larger = np.zeros(len(before), bool)
    for j in reversed(range(cells.shape[1])):  # the first feature counts most
        larger = (before[:, j] < after[:, j]) | ((before[:, j] == after[:, j]) & larger)
    return bool(larger.all())


def warn_of_noise(
    cells: Ints, counts: Ints, labels: Ints, min_samples: int, width: int = 1
) -> None:
    """Warn when nearly all rows are in cells without a cluster because of many columns.

    The count of columns is the cause if each of at least three features by itself has half of the
    rows in intervals with ``min_samples`` rows, and all features together leave at least nine of
    ten rows in cells without a cluster. Fewer than 100 rows say little. All this follows from the
    cells and counts that the server has.

    Parameters
    ----------
    cells : array (n_cells, n_features) of int64
    counts, labels : array (n_cells,) of int64
        The count of rows and the cluster of each cell, or -1.
    min_samples : int
    width : int, default=1
        The length of an interval of one feature, in cells.

    Warns
    -----
    UserWarning
        With the remedy.

    Examples
    --------
    200 rows at the corners of a cube: each feature has 100 at either end.

    >>> corners = np.indices((2, 2, 2)).reshape(3, -1).T
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_noise(corners, np.full(8, 25), np.full(8, -1), min_samples=100)
    >>> str(caught[0].message).partition(",")[0]
    '100 % of the rows lie in cells without a cluster'
    """
    n_features, n_rows = cells.shape[1], counts.sum()
    n_noise = counts[labels < 0].sum()
    if n_features < MANY_FEATURES or n_rows < MANY_ROWS or n_noise < MOST_ROWS * n_rows:
        return
    for column in cells.T // width:
        _, intervals = np.unique(column, return_inverse=True)
        sums = np.bincount(intervals, counts)
        if sums[sums >= min_samples].sum() < HALF * n_rows:
            return
    warnings.warn(
        f"{100 * n_noise / n_rows:.0f} % of the rows lie in cells without a cluster, though each of"
        f" the {n_features} features by itself has intervals with min_samples={min_samples} rows:"
        " cells of many columns are nearly empty; find principal components first, for example with"
        " FederatedPipeline(..., scale='standard', pca=2)",
        stacklevel=2,
    )


def label_cells(
    cells: Ints,
    counts: Ints,
    min_samples: int,
    border: str = "nearest",
    adjacency: str = "faces",
    random_state: Any = None,
) -> Ints:
    """Return the cluster of each cell.

    Parameters
    ----------
    cells : array (n_cells, n_features) of int64
        Distinct and sorted lexicographically, as `sum_cells` returns them.
    counts : array (n_cells,) of int64
    min_samples, border, adjacency, random_state
        As in `HorizontalDBSCAN`.

    Returns
    -------
    array (n_cells,) of int64
        The cluster of each cell, or -1. Clusters are numbered by their first dense cell.

    Raises
    ------
    ValueError
        When ``border`` or ``adjacency`` is unknown.

    Examples
    --------
    >>> cells = np.array([[0], [1], [3], [4]])
    >>> label_cells(cells, np.array([9, 9, 1, 9]), min_samples=5)
    array([ 0,  0, -1,  1])
    """
    check_option("border", border, ("nearest", "absorb"))
    dense = counts >= min_samples
    offsets = _offsets(cells.shape[1], adjacency, len(cells))
    forward = offsets[len(offsets) // 2 :]  # one offset per pair of opposite ones
    pairs = adjacent_pairs(cells, forward) if len(offsets) else touching_pairs(cells)
    labels = connected_components(len(cells), pairs, dense)
    if border == "absorb":
        rank = check_random_state(random_state).permutation(len(cells))
        _absorb(labels, dense, pairs, rank)
    return labels


def _absorb(
    labels: Ints,
    dense: Bools,
    pairs: Ints,
    rank: Ints,
) -> None:
    """Label the border cells that growing clusters absorb when cells are visited by ``rank``.

    A cluster grows to its full size when the first of its dense cells is visited. A border cell
    goes to the first adjacent cluster that grows, unless the cell itself was visited before.
    """
    starts = np.full(labels.max(initial=-1) + 1, len(rank))
    np.minimum.at(starts, labels[dense], rank[dense])
    directed = np.concatenate([pairs, pairs[:, ::-1]])
    leaves_cluster = dense[directed[:, 0]] & ~dense[directed[:, 1]]
    cluster_cell, border_cell = directed[leaves_cluster].T
    start = starts[labels[cluster_cell]]
    reached = start < rank[border_cell]
    latest_first = np.argsort(-start[reached], kind="stable")  # so that the earliest is kept
    labels[border_cell[reached][latest_first]] = labels[cluster_cell[reached][latest_first]]


def place_points(
    X: Floats,
    cell_size: float,
    cells: Ints,
    labels: Ints,
    assign: str = "point",
    adjacency: str = "faces",
) -> Ints:
    """Return the cluster of each point: that of its cell, else that of an adjacent cell, or -1.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    cell_size : float
    cells : array (n_cells, n_features) of int64
        The cells that belong to a cluster, in any order.
    labels : array (n_cells,) of int64
        The cluster of each of these cells.
    assign
        As in `HorizontalDBSCAN`.
    adjacency : {"faces", "full", "none"}
        As in `HorizontalDBSCAN`; with ``"none"``, points in other cells get -1.

    Returns
    -------
    array (n_points,) of int64

    Raises
    ------
    ValueError
        When the points and cells differ in the count of features, a point's cell lies outside
        ±2**62, or ``assign`` or ``adjacency`` is unknown.

    Examples
    --------
    >>> cells, labels = np.array([[0], [2]]), np.array([0, 1])
    >>> place_points(np.array([[0.5], [1.4], [1.6], [7.0]]), 1.0, cells, labels)
    array([ 0,  0,  1, -1])
    """
    check_option("assign", assign, ("point", "cell"))
    if X.shape[1] != cells.shape[1]:
        raise ValueError(
            f"X must have {cells.shape[1]} features, as the cells do; got {X.shape[1]}"
        )
    if len(X) == 0 or len(cells) == 0:
        return np.full(len(X), -1)
    _box_of_points(X, cell_size)
    order = _lexicographic_order(cells)
    cells, labels = cells[order], labels[order]
    offsets = _offsets(X.shape[1], adjacency, len(cells))
    box = _box_of_cells(cells, margin=2)
    if box is not None and len(offsets) and box.size <= X.size + cells.size:
        table = np.full(box.size, -1)
        table[_keys(cells, box)] = np.arange(len(cells))
        chosen = place_in_box(X, cell_size, box, table, cells, offsets, assign == "point")
    else:
        chosen = _place_by_hashing(X, cell_size, cells, offsets, assign)
    return np.append(labels, -1)[chosen]


def _place_by_hashing(
    X: Floats,
    cell_size: float,
    cells: Ints,
    offsets: Ints,
    assign: str,
) -> Ints:
    """Return the index of the cell that takes each point, or -1; for cells that lie far apart."""
    groups = group_points(X, cell_size, True)
    candidates = find_candidates(groups.cells, cells, offsets)
    if assign == "point":
        nearest: Ints = nearest_candidate(X, groups.inverse, candidates, cells, cell_size)
        return nearest
    return _largest(candidates)[groups.inverse]


def _largest(candidates: Candidates) -> Ints:
    """Return the last candidate of each cell, or -1."""
    start, indices = candidates
    last = np.full(len(start) - 1, -1)
    exists = start[1:] > start[:-1]
    last[exists] = indices[start[1:][exists] - 1]
    return last


def _box_of_points(X: Floats, cell_size: float) -> Box | None:
    """Return the box of the points' cells, or None if it is too large.

    Dividing and rounding down keep the order of numbers, so the cell of the least value is the
    least cell.

    Raises
    ------
    ValueError
        When a point's cell lies outside ±2**62.
    """
    least, largest, valid = extremes(X)
    with np.errstate(all="ignore"):  # infinite coordinates are outside
        low, high = np.floor(least / cell_size), np.floor(largest / cell_size)
        if not (valid and (low >= -MAX_CELL).all() and (high <= MAX_CELL).all()):
            raise ValueError(
                f"cell_size={cell_size} is too small for row {in_range(X, cell_size).argmin()}:"
                " its cell lies outside ±2**62"
            )
    return bounding_box(low, high)


def _box_of_cells(cells: Ints, margin: int = 0) -> Box | None:
    """Return the box of cells with a margin on all sides, or None if it is too large."""
    if len(cells) == 0:
        return None
    low, high, _ = extremes(cells)
    return bounding_box(low - margin, high + margin)


def _keys(cells: Ints, box: Box) -> NDArray[np.intp]:
    """Return the key of each cell."""
    return ((cells - box.low) @ box.strides).astype(np.intp)


def _lexicographic_order(cells: Ints) -> NDArray[np.intp]:
    """Return the indices that sort cells."""
    return np.lexsort(cells.T[::-1])


def _offsets(n_features: int, adjacency: str, n_cells: int) -> Ints:
    """Return the differences between a cell and its neighbours, in lexicographic order.

    Empty when comparing all cells is cheaper than trying all ``3**n_features - 1`` offsets.
    """
    check_option("adjacency", adjacency, ("faces", "full", "none"))
    if adjacency == "none":
        return np.zeros((1, n_features), np.int64)  # a cell is its own only neighbour
    if adjacency == "faces":
        forward = np.eye(n_features, dtype=np.int64)[::-1]
        return np.concatenate([-forward[::-1], forward])
    if 3.0**n_features > max(n_cells, 3**4):
        return np.empty((0, n_features), np.int64)
    offsets = np.array(list(product((-1, 0, 1), repeat=n_features)), np.int64)
    return offsets[offsets.any(axis=1)]
