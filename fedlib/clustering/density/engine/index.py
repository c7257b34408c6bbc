"""The points of the DBSCAN engine, sorted into cells, and how to find the cells near a cell.

The cells are those of a grid (`fedlib.kernels.grid`) or of the leaves of a k-d tree
(`fedlib.kernels.forests`). Any two points of a cell are neighbours of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.core.array_types import Floats, Ints
from fedlib.kernels import forests as tree_leaves
from fedlib.kernels import grid as sorted_grid
from fedlib.kernels import kd_tree

Rows = NDArray[np.signedinteger[Any]]  # of 32 bits if they suffice

# With up to this count of features a grid is used, and kernels are compiled for each number.
GRID_FEATURES = 4
REACH = 2  # cells along a feature to the farthest one near a cell: sqrt(GRID_FEATURES), rounded up
# By how much the diagonal of a cell differs from eps, and the maximum count of cells along a
# feature. The margin is far above the rounding of such a quotient. With four features two cells are
# at least eps wide, so that near cells are at most two apart; with less, a cell's diagonal is less.
MARGINS = 3 * [(-(2.0**-10), 2.0**40)] + [(2.0**-28, 2.0**20)]
KEY_BITS = 62  # of a key together with the index of a row
LEAF_SIZE = 16  # points of the smallest nodes of a tree; twice as many take a tenth longer
MIN_HALVED = 10_000  # points from which two threads build a tree


class GridIndex(NamedTuple):
    """Points sorted into the cells of a grid, and how to find the cells near a cell."""

    order: Rows  # (n,) the row of each point, cell by cell
    start: Rows  # (n_cells + 1,) where the points of each cell begin
    find_near: Callable[[Ints, bool, Ints, Ints, Ints], int]  # see `clustering.OnGrid._blocks`
    max_ranges: int  # of near cells of one group


class TreeIndex(NamedTuple):
    """Points in the leaves of a tree, which `node_search` and `leaf_connections` search."""

    order: Rows  # as in `GridIndex`
    start: Rows
    tree: kd_tree.KDTree
    leaves: tree_leaves.Leaves


class Shares(NamedTuple):
    """Threads, each of which works on an equal share of the rows."""

    threads: ThreadPoolExecutor
    n_threads: int
    n_rows: int

    @property
    def n_shares(self) -> int:
        """The count of shares, none of which is empty."""
        return min(self.n_threads, self.n_rows)

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Return the results of a function of the first row and the stop of each share.

        Further arguments have one entry per share.
        """
        cuts = np.linspace(0, self.n_rows, self.n_shares + 1).astype(np.int64)
        # For few points, handing over a single share takes longer than the work itself.
        run = map if self.n_shares == 1 else self.threads.map
        return list(run(function, cuts[:-1], cuts[1:], *arguments))


def index_by_grid(X: Floats, eps: float, shares: Shares) -> GridIndex | None:
    """Return a grid whose cells' diagonal is about ``eps``, or None if it is too wide.

    With four features, a cell may contain points that are slightly farther from each other.
    """
    n, d = X.shape
    margin, max_side = MARGINS[d - 1]
    cell_size = eps / math.sqrt(d) * (1 + margin)
    boxes = np.array(shares.map(partial(sorted_grid.bound_points, X)))
    origin = boxes[:, 0].min(axis=0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        extent = (boxes[:, 1].max(axis=0) - origin) / cell_size
    if not (extent < max_side).all():
        return None
    slice_size = 2 ** (d - 1)
    strides = [slice_size]
    lengths = [int(length) // 2 + 1 for length in extent[:-1]] + [int(extent[-1]) + 1]
    for length in lengths[:0:-1]:
        strides.insert(0, strides[0] * (length + REACH + sorted_grid.SPAN))
    largest_key, row_bits = lengths[0] * strides[0], n.bit_length()
    if largest_key.bit_length() + row_bits > KEY_BITS:
        return None
    keys = np.empty(n, np.int64)
    compute_keys = partial(sorted_grid.compute_keys, X, origin, cell_size, np.array(strides))
    shares.map(partial(compute_keys, row_bits, keys))
    keys = _sort(keys, row_bits, row_bits + largest_key.bit_length(), shares)
    cell_keys, start, order = _split_keys(keys, row_bits, largest_key, shares)
    steps = sorted(product((-1, 0, 1), repeat=d - 1), key=lambda steps: sum(map(abs, steps)))
    offsets = np.array([np.dot(step, strides[:-1]) for step in steps], np.int64)
    grid = sorted_grid.Grid(cell_keys, offsets, np.full(len(steps), REACH * slice_size))
    find_near = partial(sorted_grid.find_near_cells, grid, slice_size)
    return GridIndex(order, start, find_near, len(offsets))


def _sort(keys: Ints, low: int, high: int, shares: Shares) -> Ints:
    """Return the keys, stably sorted by their bits ``low..high``; the argument is overwritten."""
    others = np.empty_like(keys)
    for shift in range(low, high, sorted_grid.DIGIT_BITS):
        counts = np.array(shares.map(partial(sorted_grid.count_digits, keys, shift)))
        ends = counts.T.cumsum().reshape(counts.T.shape).T
        shares.map(partial(sorted_grid.move_keys, keys, shift, others), ends - counts)
        keys, others = others, keys
    return keys


def _split_keys(
    keys: Ints, row_bits: int, largest_key: int, shares: Shares
) -> tuple[Rows, Rows, Rows]:
    """Return the keys of the cells, where the points of each begin, and the rows."""
    n_cells = np.cumsum([0, *shares.map(partial(sorted_grid.count_cells, keys, row_bits))])
    dtype = np.int32 if len(keys) < 2**31 else np.int64
    cell_keys: Rows = np.empty(n_cells[-1], np.int32 if largest_key < 2**31 else np.int64)
    start: Rows = np.empty(n_cells[-1] + 1, dtype)
    order: Rows = np.empty(len(keys), dtype)
    start[-1] = len(keys)
    split = partial(sorted_grid.split_keys, keys, row_bits, cell_keys, start, order)
    shares.map(split, n_cells[:-1])
    return cell_keys, start, order


def index_by_tree(X: Floats, squared_radii: Floats, n_threads: int) -> TreeIndex:
    """Return a tree whose leaves are the largest nodes that can be cells, or have few points."""
    max_squared_diagonal = squared_radii.min()
    tree = _build_tree(X, max_squared_diagonal, n_threads)
    leaves, start = tree_leaves.collect_leaves(tree, squared_radii, max_squared_diagonal)
    return TreeIndex(tree.order, start, tree, leaves)


def _build_tree(X: Floats, max_squared_diagonal: float, n_threads: int) -> kd_tree.KDTree:
    """Return the tree; with several threads, two build the halves below the root."""
    n = len(X)
    order = np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)

    def build(boxes: Floats, first: int, stop: int) -> kd_tree.KDTree:
        return kd_tree.build_part(X, order, boxes, first, stop, LEAF_SIZE, max_squared_diagonal)

    if n_threads == 1 or n < MIN_HALVED:
        return build(np.empty((kd_tree.max_nodes(n, LEAF_SIZE), 2, X.shape[1])), 0, n)
    middle = n // 2
    of_left, of_right = (kd_tree.max_nodes(size, LEAF_SIZE) for size in (middle, n - middle))
    boxes = np.empty((1 + of_left + of_right, 2, X.shape[1]))
    kd_tree.halve(X, order, boxes[0])
    parts = boxes[1 : 1 + of_left], boxes[1 + of_left :]
    with ThreadPoolExecutor(2) as threads:
        left, right = threads.map(build, parts, (0, middle), (middle, n))
    return kd_tree.merge(boxes, left, right)
