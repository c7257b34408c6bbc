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

The position of a word's lowest bit is looked up as in C. E. Leiserson, H. Prokop and K. H. Randall,
"Using de Bruijn sequences to index a 1 in a computer word", 1998.
"""

from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.disjoint_set import number_components, union

ONE = np.uint64(1)
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # its 64 windows of 6 bits are all different
POSITIONS = np.empty(64, np.int64)  # of the lowest bit, by the window that it shifts to the top
for position in range(64):
    POSITIONS[((int(DE_BRUIJN) << position) % 2**64) >> 58] = position


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
def sweep_neighbours(values, order, eps, first, bits):
    """Fill a block for one feature, given its sorted ``values`` (n,) and their ``order`` (n,).

    The neighbours of a row are a window of the sorted values, and both ends of the window only
    move forward. All of them are set and the earlier ones cleared afterwards, because comparing
    each with the row would take longer.
    """
    n = values.size
    stop = first + bits.shape[0]
    low = 0
    high = 0
    for rank in range(n):
        while not np.sqrt((values[rank] - values[low]) ** 2) < eps:
            low += 1
        while high < n and np.sqrt((values[high] - values[rank]) ** 2) < eps:
            high += 1
        i = order[rank]
        if first <= i < stop:
            for place in range(low, high):
                _set(bits, i - first, order[place])
            _clear_up_to(bits, i - first, i)


@kernel
def _clear_up_to(bits, row, j):
    """Clear the bits of the columns ``0..j``, including ``j``."""
    for w in range(j >> 6):
        bits[row, w] = 0
    # Two shifts, because a shift by 64 is undefined.
    bits[row, j >> 6] &= ~np.uint64(0) << np.uint64(j & 63) << ONE


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
    """Return the position of the lowest bit that is set."""
    lowest_bit = word & ~(word - ONE)
    return POSITIONS[(lowest_bit * DE_BRUIJN) >> np.uint64(58)]


@kernel
def write_gaps(bits, first, out):
    """Write a block as gaps into ``out``; return the number of bytes, or -1 if they do not fit."""
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
                while gap:
                    if at == out.size:
                        return -1
                    out[at] = (gap & 127) | (128 if gap > 127 else 0)
                    gap >>= 7
                    at += 1
        if at == out.size:
            return -1
        out[at] = 0
        at += 1
    return at


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
    """Write a block as bits into ``out``, an array of `count_bit_bytes` bytes."""
    at = 0
    for row in range(bits.shape[0]):
        for j in range(first + row + 1, n, 8):
            shift = np.uint64(j & 63)
            byte = bits[row, j >> 6] >> shift
            if shift > 56 and (j >> 6) + 1 < bits.shape[1]:
                byte |= bits[row, (j >> 6) + 1] << (np.uint64(64) - shift)
            out[at] = np.uint8(byte & np.uint64(255))
            at += 1


@kernel
def read_bits(data, n, first, bits):
    """Fill a block from bits; return whether the bytes are a valid block of exactly these rows."""
    if data.size != count_bit_bytes(n, first, first + bits.shape[0]):
        return False
    at = 0
    for row in range(bits.shape[0]):
        for j in range(first + row + 1, n, 8):
            byte = np.uint64(data[at])
            at += 1
            if j + 8 > n and byte >> np.uint64(n - j):
                return False
            shift = np.uint64(j & 63)
            bits[row, j >> 6] |= byte << shift
            if shift > 56 and byte >> (np.uint64(64) - shift):
                bits[row, (j >> 6) + 1] |= byte >> (np.uint64(64) - shift)
    return True


@kernel
def list_pairs(bits, first):
    """Return the number of neighbours of each row, and the column (int32) of each, row by row.

    The block begins with the row ``first``.
    """
    counts = np.empty(bits.shape[0], np.int64)
    columns = np.empty(1024, np.int32)
    n_pairs = 0
    for row in range(bits.shape[0]):
        before = n_pairs
        for w in range((first + row) >> 6, bits.shape[1]):
            word = bits[row, w]
            if word and n_pairs + 64 > columns.size:
                larger = np.empty(2 * columns.size, np.int32)
                larger[:n_pairs] = columns[:n_pairs]
                columns = larger
            while word:
                columns[n_pairs] = (w << 6) + _lowest(word)
                word &= word - ONE
                n_pairs += 1
        counts[row] = n_pairs - before
    return counts, columns[:n_pairs].copy()


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
