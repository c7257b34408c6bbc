"""Points sorted by the cell of a grid, and the cells near a cell.

Two cells next to each other along each feature but the last one form a *slice* of 1, 2 or 4 cells,
and the slices along the last feature form a *tube*. A cell is identified by its key: the cells of a
slice have consecutive keys, and so have the slices of a tube. The occupied cells near a cell are
one range of the sorted keys for each tube near it. A tube is twice as wide as a cell, so there are
3 such ranges with two features and 9 with three.

Keys leave a gap between two tubes that is wider than any search along a tube. The gap must be wider
by ``SPAN`` keys for `find_near_cells`: then no group of cells lies in two tubes, and the ranges of
a group do not overlap. When cells are visited in ascending order, these ranges ascend too, so that
each tube needs only two indices that never move back.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel

SPAN = 8  # keys along a tube that are searched for at once
DIGIT_BITS = 11  # sorted in one pass; the counters of all digits fit into the fastest cache


class Grid(NamedTuple):
    """The occupied cells of a grid, and which cells are near a cell.

    Attributes
    ----------
    keys : array (n_cells,) of int32 or int64
        The keys of the occupied cells, ascending.
    row_offsets : array (n_rows,) of int64
        The tubes near a cell: the differences of their keys from the cell's key.
    row_reach : array (n_rows,) of int64
        How many keys to look at in each of these tubes, to either side.
    """

    keys: NDArray[np.signedinteger[Any]]
    row_offsets: NDArray[np.int64]
    row_reach: NDArray[np.int64]


@kernel
def bound_points(X, first, stop):
    """Return the corners of the box around the rows ``first..stop`` of ``X``, at least one."""
    lower, upper = X[first].copy(), X[first].copy()
    for i in range(first, stop):
        for k in range(X.shape[1]):
            lower[k] = min(lower[k], X[i, k])
            upper[k] = max(upper[k], X[i, k])
    return lower, upper


@kernel
def compute_keys(X, origin, cell_size, strides, row_bits, keys, first, stop):
    """Write the key of the cell of each row ``first..stop`` of ``X`` (n, d) to ``keys`` (n,).

    The lowest ``row_bits`` bits are the number of the row. So one array is sorted instead of two.
    ``strides`` (d,) are the differences of the keys of two successive tubes along each feature but
    the last, and of two slices, which is the number of cells in a slice.
    """
    last = X.shape[1] - 1
    for i in range(first, stop):
        key = np.int64((X[i, last] - origin[last]) / cell_size) * strides[last]
        for k in range(last):
            cell = np.int64((X[i, k] - origin[k]) / cell_size)
            key += (cell >> 1) * strides[k] + ((cell & 1) << k)
        keys[i] = key << row_bits | i


@kernel
def count_digits(keys, shift, first, stop):
    """Return how often each digit occurs at a place of the keys ``first..stop``."""
    counts = np.zeros(1 << DIGIT_BITS, np.int64)
    for i in range(first, stop):
        counts[(keys[i] >> shift) & ((1 << DIGIT_BITS) - 1)] += 1
    return counts


@kernel
def move_keys(keys, shift, target, first, stop, place):
    """Write the keys ``first..stop`` to ``target``, the first one of each digit to its ``place``.

    Doing this for one digit after the other, beginning with the lowest, sorts the keys: a radix
    sort, whose cost is linear in their number.
    """
    place = place.copy()
    for i in range(first, stop):
        digit = (keys[i] >> shift) & ((1 << DIGIT_BITS) - 1)
        target[place[digit]] = keys[i]
        place[digit] += 1


@kernel
def count_cells(keys, row_bits, first, stop):
    """Return how many cells begin in the range ``first..stop`` of the sorted keys."""
    n_cells = 0
    for i in range(first, stop):
        n_cells += i == 0 or keys[i] >> row_bits != keys[i - 1] >> row_bits
    return n_cells


@kernel
def split_keys(keys, row_bits, cell_keys, start, order, first, stop, cell):
    """Write the row of each key ``first..stop``, and the cells that begin there, from ``cell`` on.

    Of a cell, its key is written, and where its points begin.
    """
    for i in range(first, stop):
        order[i] = keys[i] & ((1 << row_bits) - 1)
        key = keys[i] >> row_bits
        if i == 0 or key != keys[i - 1] >> row_bits:
            cell_keys[cell] = key
            start[cell] = i
            cell += 1


@kernel
def find_near_cells(grid, slice_size, wanted, earlier, group_start, near_start, near):
    """Find the occupied cells near each group of the ``wanted`` cells, until a buffer is full.

    A group is a few of the wanted cells whose keys differ by less than ``SPAN``. The cells of group
    g are ``wanted[group_start[g]:group_start[g + 1]]``. The cells near them are the ranges
    ``near[near_start[g]:near_start[g + 1]]`` of cells, each a first cell and a stop, nearest tubes
    first. They contain all cells near any cell of the group, and some others in the same tubes.
    They consist of whole slices.

    Parameters
    ----------
    grid : Grid
        ``row_reach`` are multiples of ``slice_size``.
    slice_size : int
        The number of cells in a slice: a power of 2.
    wanted : array (n_wanted,) of int64
        Cells, ascending; at least one.
    earlier : bool
        Whether cells after the last one of a group may be left out.
    group_start, near_start : array (max_groups + 1,) of int64
        Buffers.
    near : array (max_ranges, 2) of int64
        Buffer, with ``n_rows`` rows or more.

    Returns
    -------
    int
        The number of groups, at least 1.
    """
    keys, offsets, reach = grid.keys, grid.row_offsets, grid.row_reach
    first = np.empty(offsets.size, np.int64)
    inside = slice_size - 1  # the bits of a key that number the cells of a slice
    for row in range(offsets.size):
        begin = (keys[wanted[0]] & ~inside) + offsets[row] - reach[row]
        first[row] = np.searchsorted(keys, begin)
    stop = first.copy()
    n_groups, n_near, done = 0, 0, 0
    group_start[0] = near_start[0] = 0
    while done < wanted.size:
        if n_near + offsets.size > near.shape[0] or n_groups + 1 == near_start.size:
            break
        low = high = keys[wanted[done]]
        while done < wanted.size and keys[wanted[done]] < low + SPAN:
            high = keys[wanted[done]]
            done += 1
        for row in range(offsets.size):
            begin = (low & ~inside) + offsets[row] - reach[row]
            end = (high | inside) + offsets[row] + reach[row]
            if earlier and begin > high:
                continue
            a, b = first[row], stop[row]
            while a < keys.size and keys[a] < begin:
                a += 1
            while b < keys.size and keys[b] <= end:
                b += 1
            if b > a:
                near[n_near, 0] = a
                near[n_near, 1] = b
                n_near += 1
            first[row], stop[row] = a, b
        n_groups += 1
        group_start[n_groups], near_start[n_groups] = done, n_near
    return n_groups
