"""The cells of a grid around which enough points lie, found from counts per cell.

The cells are sorted by key, as in `fedlib.kernels.sorted_grid`. The cells near a cell are a range
of keys in each row near it, so one subtraction of cumulative counts sums a row.
"""

import numpy as np

from fedlib.kernels import kernel


@kernel
def _advance(keys, at, wanted):
    """Return the first index from ``at`` on whose key is at least ``wanted``.

    The steps double until they pass the key, so that a long way takes logarithmic time.
    """
    step = 1
    while at + step <= keys.size and keys[at + step - 1] < wanted:
        at += step
        step *= 2
    stop = min(keys.size, at + step - 1)  # its key is at least wanted, or it is the end
    while at < stop:
        middle = (at + stop) // 2
        if keys[middle] < wanted:
            at = middle + 1
        else:
            stop = middle
    return at


@kernel
def find_heavy(grid, totals, enough, first, stop, heavy):
    """Write to ``heavy[first:stop]`` which cells have near cells with enough points in all.

    Rows are added for all cells in turn, nearest first. A cell with enough points drops out, so
    that dense regions cost a few rows only. Within a row both ends of the range only move forward.

    Parameters
    ----------
    grid : fedlib.kernels.sorted_grid.Grid
        With the nearest rows first.
    totals : array (n_cells + 1,) of int64
        The number of points in all cells before each cell.
    enough : int
        The number of points from which a cell is heavy.
    first, stop : int
        The range of cells.
    heavy : array (n_cells,) of bool
    """
    keys = grid.keys
    heavy[first:stop] = False
    undecided = np.arange(first, stop)
    sums = np.zeros(undecided.size, np.int64)
    n = undecided.size
    for row in range(grid.row_offsets.size):
        low = grid.row_offsets[row] - grid.row_reach[row]
        high = grid.row_offsets[row] + grid.row_reach[row]
        a = b = n_left = 0
        for i in range(n):
            cell = undecided[i]
            a = _advance(keys, a, keys[cell] + low)
            b = _advance(keys, max(a, b), keys[cell] + high + 1)
            total = sums[i] + totals[b] - totals[a]
            if total >= enough:
                heavy[cell] = True
            else:
                undecided[n_left], sums[n_left] = cell, total
                n_left += 1
        n = n_left
        if n == 0:
            break
