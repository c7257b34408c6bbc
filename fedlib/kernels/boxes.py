"""Cells of a grid as numbers within a box: counting and placing points without hashing.

A box is a range of cells along each feature. The key of a cell is its number within the box, in
lexicographic order, so keys sort like cells. A box with few cells is an array of counts; in a
larger one, points are counted by sorting their keys.

Keys are computed in floating point, which compilers turn into vector instructions. They are exact,
because a box contains at most `MAX_SIZE` cells.
"""

from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel

MAX_SIZE = 2**53  # a float64 holds every integer up to here
BLOCK = 1024  # points whose keys are computed before the first is used
DIGIT = 11  # bits per pass of the sort: its 2048 counters fit the cache of the first level


class Box(NamedTuple):
    """A range of cells along each of d features; see `bounding_box`.

    Attributes
    ----------
    low, high : array (d,) of float64
        The coordinates of the first and the last cell along each feature.
    strides : array (d,) of float64
        The key of a cell is the sum of ``(cell - low) * strides``.
    size : int
        The number of cells.
    """

    low: np.ndarray
    high: np.ndarray
    strides: np.ndarray
    size: int


def bounding_box(low, high):
    """Return the `Box` from the cell ``low`` to the cell ``high`` (d,), or None if it is too large.

    Coordinates beyond ±`MAX_SIZE` are too large, too.
    """
    # As integers of Python, whose product cannot overflow before it is compared.
    low, high = [int(a) for a in low], [int(b) for b in high]
    widths = [b - a + 1 for a, b in zip(low, high, strict=True)]
    strides = [1]
    for width in reversed(widths):
        strides.append(strides[-1] * width)
    size = strides.pop()
    if max(size, -min(low), max(high)) > MAX_SIZE:
        return None
    return Box(np.array(low, float), np.array(high, float), np.array(strides[::-1], float), size)


@kernel
def extremes(X):
    """Return the least and the largest value (d,) of each column of ``X`` (n, d), n > 0.

    Also return whether no value is NaN; otherwise the first two have no meaning.
    """
    n, d = X.shape
    least, largest = X[0].copy(), X[0].copy()
    valid = True
    for first in range(0, n, BLOCK):  # a block stays in the cache for all of its columns
        for k in range(d):
            low, high = least[k], largest[k]
            for i in range(first, min(first + BLOCK, n)):
                low = min(low, X[i, k])
                high = max(high, X[i, k])
                valid &= X[i, k] == X[i, k]  # false for NaN
            least[k], largest[k] = low, high
    return least, largest, valid


@kernel
def _block_keys(X, cell_size, box, first, keys):
    """Write the keys of the points ``X[first : first + len(keys)]``."""
    keys[:] = 0.0
    for k in range(X.shape[1]):
        low, stride = box.low[k], box.strides[k]
        for i in range(keys.size):
            keys[i] += (np.floor(X[first + i, k] / cell_size) - low) * stride


@kernel
def count_in_box(X, cell_size, box):
    """Return the number of points in each cell of a box (size,) that contains all points."""
    n = X.shape[0]
    counts = np.zeros(box.size, np.int64)
    buffer = np.empty(BLOCK)
    for first in range(0, n, BLOCK):
        keys = buffer[: min(BLOCK, n - first)]
        _block_keys(X, cell_size, box, first, keys)
        for i in range(keys.size):
            counts[np.int64(keys[i])] += 1
    return counts


@kernel
def point_keys(X, cell_size, box):
    """Return the key (n,) of each point's cell in a box that contains all points."""
    n = X.shape[0]
    result = np.empty(n, np.int64)
    buffer = np.empty(BLOCK)
    for first in range(0, n, BLOCK):
        keys = buffer[: min(BLOCK, n - first)]
        _block_keys(X, cell_size, box, first, keys)
        for i in range(keys.size):
            result[first + i] = np.int64(keys[i])
    return result


@kernel
def sort_keys(keys, size):
    """Return ``keys`` (n,) sorted; all are in 0..size - 1. The array itself is overwritten.

    A radix sort. Each pass sorts by one digit and reads memory in order, so its time per key does
    not grow with their number, unlike that of a sort by comparisons.
    """
    source, target = keys, np.empty_like(keys)
    starts = np.empty(1 << DIGIT, np.int64)
    mask = (1 << DIGIT) - 1
    shift = 0
    while (size - 1) >> shift > 0:
        starts[:] = 0
        for key in source:
            starts[(key >> shift) & mask] += 1
        total = 0
        for digit in range(starts.size):
            starts[digit], total = total, total + starts[digit]
        for key in source:
            digit = (key >> shift) & mask
            target[starts[digit]] = key
            starts[digit] += 1
        source, target = target, source
        shift += DIGIT
    return source


@kernel
def run_lengths(keys):
    """Return the distinct values of sorted ``keys`` (n,) and the number of times each occurs."""
    n_runs = 0
    for i in range(keys.size):
        n_runs += i == 0 or keys[i] != keys[i - 1]
    distinct, counts = np.empty(n_runs, np.int64), np.zeros(n_runs, np.int64)
    run = -1
    for i in range(keys.size):
        if i == 0 or keys[i] != keys[i - 1]:
            run += 1
            distinct[run] = keys[i]
        counts[run] += 1
    return distinct, counts


@kernel
def cells_of(keys, box):
    """Return the cells (n, d) with these keys (n,)."""
    # In integers: a rounded quotient of floats could be one too large.
    n, d = keys.size, box.low.size
    cells = np.empty((n, d), np.int64)
    low, strides = box.low.astype(np.int64), box.strides.astype(np.int64)
    for i in range(n):
        rest = keys[i]
        for k in range(d):
            digit = rest // strides[k]
            rest -= digit * strides[k]
            cells[i, k] = low[k] + digit
    return cells


@kernel
def place_in_box(X, cell_size, box, table, cells, offsets, nearest):
    """Return for each point (n,) the number of the cell that takes it, or -1.

    A point in one of the cells belongs to it. Any other point goes to one of the cells next to its
    own: to the one with the nearest centre (ties go to the first) or, unless ``nearest``, to the
    last one.

    Parameters
    ----------
    X : array (n, d) of float64
    cell_size : float
    box : Box
        It contains the cells and at least two more along each feature at either end, so that a
        neighbour of a point next to the cells lies within it too.
    table : array (size,) of int64
        The number of each cell by its key, or -1.
    cells : array (n_cells, d) of int64
    offsets : array (m, d) of int64
        From a cell to its neighbours, in ascending order.
    nearest : bool
    """
    n = X.shape[0]
    steps = (offsets * box.strides).sum(axis=1).astype(np.int64)
    chosen = np.full(n, -1, np.int64)
    buffer, inside = np.empty(BLOCK), np.empty(BLOCK, np.bool_)
    for first in range(0, n, BLOCK):
        keys = buffer[: min(BLOCK, n - first)]
        _block_keys(X, cell_size, box, first, keys)
        _find_inside(X, cell_size, box, first, inside[: keys.size])
        for i in range(keys.size):
            if inside[i]:
                key = np.int64(keys[i])
                chosen[first + i] = table[key]
                if table[key] < 0:
                    chosen[first + i] = _neighbour(
                        X, first + i, cell_size, table, key, steps, cells, nearest
                    )
    return chosen


@kernel
def _find_inside(X, cell_size, box, first, inside):
    """Write whether the points ``X[first : first + len(inside)]`` are inside the box's margin."""
    inside[:] = True
    for k in range(X.shape[1]):
        low, high = box.low[k] + 1, box.high[k] - 1
        for i in range(inside.size):
            coordinate = np.floor(X[first + i, k] / cell_size)
            inside[i] &= (low <= coordinate) & (coordinate <= high)


@kernel
def _neighbour(X, i, cell_size, table, key, steps, cells, nearest):
    """Return the neighbour of the cell ``key`` that takes point ``i``, or -1."""
    chosen = -1
    smallest = np.inf
    for step in steps:
        c = table[key + step]
        if c >= 0:
            distance = 0.0
            for k in range(X.shape[1]):
                distance += (X[i, k] - (cells[c, k] * cell_size + cell_size / 2)) ** 2
            if not nearest or chosen < 0 or distance < smallest:  # `<`: ties go to the first
                smallest = distance
                chosen = c
    return chosen
