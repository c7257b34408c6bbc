"""The later neighbours of each row: finding, packing and intersecting them, block by block.

A block contains the rows ``first..stop`` of the relation *j is a neighbour of i and j > i* among
``n`` rows. In memory it is a bitset: an array (stop - first, ceil(n / 64)) of uint64, low bits
first. A message carries it as bytes, in one of two forms:

- *gaps*: for each row the differences between the numbers of successive neighbours, starting from
  the row itself, as variable-length integers (7 bits per byte, low bits first), then a zero;
- *bits*: for each row one bit per later row, padded to whole bytes.

Two rows are neighbours when their Euclidean distance is below ``eps``: the square root of the sum
of squares, added in the order of the features, in float64. Every search computes it in this way,
including squares that overflow or underflow, so all searches find the same neighbours.
"""

from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.disjoint_set import number_components, union

ONE = np.uint64(1)


class Grid(NamedTuple):
    """Points sorted into cells whose edges are longer than ``eps``.

    Attributes
    ----------
    cell : array (n,) of int64
        The cell of each point.
    start, members : arrays (n_cells + 1,) and (n,) of int64
        The points in cell ``c`` are ``members[start[c]:start[c + 1]]``.
    near_start, near : arrays (n_cells + 1,) and (n_pairs,) of an integer type
        The cells that touch cell ``c``, including itself, are
        ``near[near_start[c]:near_start[c + 1]]``.
    """

    cell: np.ndarray
    start: np.ndarray
    members: np.ndarray
    near_start: np.ndarray
    near: np.ndarray


@kernel
def _set(bits, row, j):
    """Set the bit of column ``j``."""
    bits[row, j >> 6] |= ONE << np.uint64(j & 63)


@kernel
def _are_neighbours(X, i, j, eps):
    squares = 0.0
    for k in range(X.shape[1]):
        squares += (X[i, k] - X[j, k]) ** 2
    return np.sqrt(squares) < eps


@kernel
def sweep_neighbours(x, order, eps, first, bits):
    """Fill a block for one feature ``x`` (n,), whose argsort is ``order``.

    The neighbours of a row are a window of the sorted values, and both ends of the window only
    move forward.
    """
    n = x.size
    stop = first + bits.shape[0]
    low = 0
    high = 0
    for rank in range(n):
        i = order[rank]
        while not np.sqrt((x[i] - x[order[low]]) ** 2) < eps:
            low += 1
        while high < n and np.sqrt((x[order[high]] - x[i]) ** 2) < eps:
            high += 1
        if first <= i < stop:
            for place in range(low, high):
                if order[place] > i:
                    _set(bits, i - first, order[place])


@kernel
def grid_neighbours(X, eps, grid, first, bits):
    """Fill a block for points ``X`` (n, d) by looking at the cells near each row."""
    cell, start, members, near_start, near = grid
    for row in range(bits.shape[0]):
        i = first + row
        for c in near[near_start[cell[i]] : near_start[cell[i] + 1]]:
            for place in range(start[c], start[c + 1]):
                j = members[place]
                if j > i and _are_neighbours(X, i, j, eps):
                    _set(bits, row, j)


@kernel
def all_neighbours(X, eps, first, bits):
    """Fill a block for points ``X`` (n, d) by looking at all later rows."""
    for row in range(bits.shape[0]):
        for j in range(first + row + 1, X.shape[0]):
            if _are_neighbours(X, first + row, j, eps):
                _set(bits, row, j)


@kernel
def _lowest(word):
    """Return the position of the lowest bit that is set, by bisection."""
    position = 0
    for width in (32, 16, 8, 4, 2, 1):
        if word & ((ONE << np.uint64(width)) - ONE) == 0:
            word >>= np.uint64(width)
            position += width
    return position


@kernel
def count_gap_bytes(bits, first):
    """Return the number of bytes of a block as gaps."""
    size = 0
    for row in range(bits.shape[0]):
        previous = first + row
        size += 1
        for w in range(previous >> 6, bits.shape[1]):
            word = bits[row, w]
            while word:
                j = (w << 6) + _lowest(word)
                word &= word - ONE
                gap = j - previous
                previous = j
                while gap:
                    size += 1
                    gap >>= 7
    return size


@kernel
def write_gaps(bits, first, out):
    """Write a block as gaps into ``out``, an array of `count_gap_bytes` bytes."""
    at = 0
    for row in range(bits.shape[0]):
        previous = first + row
        for w in range(previous >> 6, bits.shape[1]):
            word = bits[row, w]
            while word:
                j = (w << 6) + _lowest(word)
                word &= word - ONE
                gap = j - previous
                previous = j
                while gap > 127:
                    out[at] = (gap & 127) | 128
                    gap >>= 7
                    at += 1
                out[at] = gap
                at += 1
        out[at] = 0
        at += 1


@kernel
def read_gaps(data, n, first, bits):
    """Fill a block from gaps; return whether the bytes are a valid block of exactly these rows."""
    at = 0
    for row in range(bits.shape[0]):
        j = first + row
        while True:
            gap = 0
            shift = 0
            while True:
                if at == data.size or shift > 56:
                    return False
                byte = np.int64(data[at])
                at += 1
                gap |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if gap == 0:
                break
            if gap > n - 1 - j:
                return False
            j += gap
            _set(bits, row, j)
    return at == data.size


@kernel
def count_bit_bytes(n, first, stop):
    """Return the number of bytes of a block as bits."""
    size = 0
    for i in range(first, stop):
        size += (n - 1 - i + 7) >> 3
    return size


@kernel
def write_bits(bits, n, first, out):
    """Write a block as bits into ``out``, an array of `count_bit_bytes` zeros."""
    at = 0
    for row in range(bits.shape[0]):
        i = first + row
        for j in range(i + 1, n):
            bit = (bits[row, j >> 6] >> np.uint64(j & 63)) & ONE
            out[at + ((j - i - 1) >> 3)] |= np.uint8(bit << np.uint64((j - i - 1) & 7))
        at += (n - 1 - i + 7) >> 3


@kernel
def read_bits(data, n, first, bits):
    """Fill a block from bits; return whether the bytes are a valid block of exactly these rows."""
    if data.size != count_bit_bytes(n, first, first + bits.shape[0]):
        return False
    at = 0
    for row in range(bits.shape[0]):
        i = first + row
        for byte in range((n - 1 - i + 7) >> 3):
            value = data[at]
            at += 1
            for k in range(8):
                if (value >> k) & 1:
                    j = i + 1 + (byte << 3) + k
                    if j >= n:
                        return False
                    _set(bits, row, j)
    return True


@kernel
def count_pairs(bits):
    """Return the number of bits that are set in each row."""
    counts = np.zeros(bits.shape[0], np.int64)
    for row in range(bits.shape[0]):
        for word in bits[row]:
            while word:
                word &= word - ONE
                counts[row] += 1
    return counts


@kernel
def write_pairs(bits, columns):
    """Write the column of each bit that is set into ``columns``, row by row."""
    n_written = 0
    for row in range(bits.shape[0]):
        for w in range(bits.shape[1]):
            word = bits[row, w]
            while word:
                columns[n_written] = (w << 6) + _lowest(word)
                word &= word - ONE
                n_written += 1


@kernel
def label_rows(start, index, min_samples):
    """Run DBSCAN on a graph and return the cluster of each row (n,); -1 is noise.

    The later neighbours of row ``i`` are ``index[start[i]:start[i + 1]]``. A row counts as its own
    neighbour. Clusters are numbered by their first core row; a border row belongs to the first
    cluster with a core row among its neighbours.
    """
    n = start.size - 1
    degree = np.ones(n, np.int64)
    for i in range(n):
        degree[i] += start[i + 1] - start[i]
        for edge in range(start[i], start[i + 1]):
            degree[index[edge]] += 1
    core = degree >= min_samples
    parent = np.arange(n)
    for i in range(n):
        for edge in range(start[i], start[i + 1]):
            if core[i] and core[index[edge]]:
                union(parent, i, index[edge])
    labels = number_components(parent, core)
    for i in range(n):
        for edge in range(start[i], start[i + 1]):
            j = index[edge]
            if core[i] and not core[j] and (labels[j] < 0 or labels[i] < labels[j]):
                labels[j] = labels[i]
            elif core[j] and not core[i] and (labels[i] < 0 or labels[j] < labels[i]):
                labels[i] = labels[j]
    return labels
