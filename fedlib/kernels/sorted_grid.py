"""A grid's cells in row-major order: points sorted by cell, and which cells lie near a cell.

A cell is known by its key, the sum of its coordinates times their strides. A row of cells along the
last feature has consecutive keys, and between two rows there is more room than any search crosses.
So the occupied cells near a cell are, for each row near it, one range of the sorted keys, and as
the cells ascend so do the ranges: each row has two pointers that only move forward.
"""

import numpy as np

from fedlib.kernels import kernel

DIGIT = 11  # bits that one pass of the sort looks at: its counters fit the fastest cache


@kernel
def find_keys(X, origin, cell_size, strides, keys, first, stop):
    """Write the key of the cell of each row ``first..stop`` of ``X`` (n, d)."""
    for i in range(first, stop):
        key = np.int64(0)
        for k in range(X.shape[1]):
            key += np.int64((X[i, k] - origin[k]) / cell_size) * strides[k]
        keys[i] = key


@kernel
def sort_keys(keys, largest):
    """Return the stable argsort of ``keys`` (n,) in 0..largest and the sorted keys."""
    n = keys.size
    order = np.arange(n)
    keys = keys.copy()
    other_order = np.empty(n, np.int64)
    other_keys = np.empty(n, np.int64)
    place = np.empty(1 << DIGIT, np.int64)
    shift = 0
    while largest >> shift:
        place[:] = 0
        for i in range(n):
            place[(keys[i] >> shift) & ((1 << DIGIT) - 1)] += 1
        total = 0
        for digit in range(place.size):
            total, place[digit] = total + place[digit], total
        for i in range(n):
            digit = (keys[i] >> shift) & ((1 << DIGIT) - 1)
            other_keys[place[digit]] = keys[i]
            other_order[place[digit]] = order[i]
            place[digit] += 1
        keys, other_keys = other_keys, keys
        order, other_order = other_order, order
        shift += DIGIT
    return order, keys


@kernel
def find_cells(sorted_keys):
    """Return the distinct keys and where the points of each begin, with the end as the last."""
    n = sorted_keys.size
    n_cells = 0
    for i in range(n):
        n_cells += i == 0 or sorted_keys[i] != sorted_keys[i - 1]
    cell_keys = np.empty(n_cells, np.int64)
    cell_start = np.empty(n_cells + 1, np.int64)
    cell_start[n_cells] = n
    at = 0
    for i in range(n):
        if i == 0 or sorted_keys[i] != sorted_keys[i - 1]:
            cell_keys[at] = sorted_keys[i]
            cell_start[at] = i
            at += 1
    return cell_keys, cell_start


@kernel
def near_in_grid(which, done, cell_keys, rows, reach, near_start, near):
    """Find the ranges of cells near the cells ``which[done:]``, until there is no more room.

    ``rows`` (m,) are the differences of key to each row near a cell, ``reach`` (m,) how far to
    look along it. ``near`` (room, 2), of which m rows are enough for one cell, receives ranges of
    cells, ``near_start`` where those of each cell begin. Returns how many cells were done.
    """
    low = np.empty(rows.size, np.int64)
    for m in range(rows.size):
        low[m] = np.searchsorted(cell_keys, cell_keys[which[done]] + rows[m] - reach[m])
    high = low.copy()
    at = 0
    near_start[0] = 0
    for w in range(done, which.size):
        if at + rows.size > near.shape[0] or w - done + 1 == near_start.size:
            return w - done
        key = cell_keys[which[w]]
        for m in range(rows.size):
            a, b = low[m], high[m]
            while a < cell_keys.size and cell_keys[a] < key + rows[m] - reach[m]:
                a += 1
            while b < cell_keys.size and cell_keys[b] <= key + rows[m] + reach[m]:
                b += 1
            if b > a:
                near[at, 0] = a
                near[at, 1] = b
                at += 1
            low[m], high[m] = a, b
        near_start[w - done + 1] = at
    return which.size - done
