"""A client's side of vertical DBSCAN: the search for the later neighbours of a block of rows.

`fedlib.kernels.neighbours` describes a block and the two forms in which it is sent. Clients search
by a sweep over sorted values in one feature, on a grid in two or three features, and by comparing
all pairs in more.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from typing import Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fedlib.core.array_types import Bytes, Floats, Ints, Words
from fedlib.kernels.grid import adjacent_pairs, group_points
from fedlib.kernels.neighbours import (
    Grid,
    all_neighbours,
    count_bit_bytes,
    find_windows,
    grid_neighbours,
    sweep_gaps,
    sweep_neighbours,
    write_bits,
    write_gaps,
)

MAX_GRID_FEATURES = 3
MAX_GRID_CELLS = 2.0**40  # up to this, cells 0.1 % larger than eps outweigh all rounding errors
MIN_GRID_EPS = 1e-150  # below this, the squares of distances above eps may underflow


class Search(NamedTuple):
    """How a client finds the later neighbours of some rows.

    Attributes
    ----------
    fill : callable
        Called with the first row and a bitset of zeros, it sets the bits of the later neighbours.
    gaps : callable or None
        Called with the first row, the stop and a number of bytes, it returns the block as gaps, or
        no bytes if there are more. None if bits are the only result of the search.
    """

    fill: Callable[[int, Words], None]
    gaps: Callable[[int, int, int], Bytes] | None = None


def make_search(X: Floats, eps: float) -> Search:
    """Return the cheapest search for points ``X`` (n_rows, n_features) and a radius."""
    twin = _earlier_equal(X)
    if X.shape[1] == 1:
        order = np.argsort(X[:, 0])
        windows = find_windows(X[order, 0], order, eps)
        fill = partial(sweep_neighbours, order, windows, twin)
        return Search(fill, partial(_sweep_gaps, order, windows))
    with np.errstate(over="ignore"):
        extent = np.ptp(X, axis=0).max() / eps if len(X) else 0.0
    if X.shape[1] > MAX_GRID_FEATURES or eps < MIN_GRID_EPS or not extent < MAX_GRID_CELLS:
        return Search(partial(all_neighbours, X, eps, twin))
    return Search(partial(grid_neighbours, X, eps, _make_grid(X, 1.001 * eps), twin))


def _earlier_equal(X: Floats) -> Ints:
    """Return for each row the last row before it with the same point, or -1."""
    order = np.lexsort(X.T)  # stable: equal rows stay in their order
    equal = np.append(False, np.all(X[order[1:]] == X[order[:-1]], axis=1))
    twin = np.full(len(X), -1)
    twin[order[equal]] = order[np.flatnonzero(equal) - 1]
    return twin


def _sweep_gaps(order: Ints, windows: Ints, first: int, stop: int, max_bytes: int) -> Bytes:
    """Return the rows ``first..stop`` as gaps, or no bytes if they take more than ``max_bytes``."""
    sizes = np.diff(windows[first:stop]).ravel()
    # At most this many neighbours come before a row; each of the others takes a byte or more.
    if stop - first + np.maximum(sizes - 1 - np.arange(first, stop), 0).sum() > max_bytes:
        return np.empty(0, np.uint8)
    # In the order of the values both ends of the window only move forward, and so does their sum.
    turns = np.argsort(windows[first:stop].sum(axis=1))
    gaps: Bytes = sweep_gaps(order, windows, turns, first, max_bytes)
    return gaps


def _make_grid(X: Floats, cell_size: float) -> Grid:
    """Return the points sorted into cells."""
    groups = group_points(X - X.min(axis=0, initial=np.inf), cell_size, True)
    touching = _touching(groups.cells)
    return Grid(
        cell=groups.inverse,
        start=np.append(0, np.cumsum(groups.counts)),
        members=np.argsort(groups.inverse, kind="stable"),
        near_start=touching.indptr,
        near=touching.indices,
    )


def _touching(cells: Ints) -> csr_array:
    """Return the relation of cells that share a face, an edge or a corner, or are the same."""
    order = np.lexsort(cells.T[::-1])
    offsets = np.array(list(product((-1, 0, 1), repeat=cells.shape[1])), np.int64)
    i, j = order[adjacent_pairs(cells[order], offsets)].T
    n = len(cells)
    return csr_array((np.ones(len(i), bool), (i, j)), shape=(n, n))


def find_block(
    search: Search, n_rows: int, first: int, stop: int, n_jobs: int
) -> tuple[Literal["gaps", "bits"], Bytes]:
    """Return the block of the rows ``first..stop``: the name of its form, and its bytes.

    The form is the one that takes fewer bytes, or gaps if both take the same. The search runs in
    ``n_jobs`` threads.
    """
    cuts = np.unique(np.linspace(first, stop, n_jobs + 1).astype(int)).tolist()
    max_bytes = int(count_bit_bytes(n_rows, first, stop))
    with ThreadPoolExecutor(n_jobs) as pool:
        if search.gaps is not None:
            parts = list(pool.map(search.gaps, cuts[:-1], cuts[1:], [max_bytes] * len(cuts)))
            if all(map(len, parts)) and sum(map(len, parts)) <= max_bytes:
                return "gaps", np.concatenate(parts)
        bits = np.zeros((stop - first, (n_rows + 63) // 64), np.uint64)
        parts_of_bits = [bits[low - first : high - first] for low, high in pairwise(cuts)]
        list(pool.map(search.fill, cuts, parts_of_bits))
    data = np.empty(max_bytes, np.uint8)
    n_gap_bytes = -1 if search.gaps is not None else write_gaps(bits, first, data)
    if n_gap_bytes >= 0:
        return "gaps", data[:n_gap_bytes]
    write_bits(bits, n_rows, first, data)
    return "bits", data
