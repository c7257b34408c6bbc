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

In the inner loops all integers are unsigned: before an index of another type is used, compiled code
compares it with zero.
"""

from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.bits import ONE, count_ones, lowest
from fedlib.kernels.disjoint_set import number_components, union

LOW_BITS = np.uint64(127)  # the bits of a variable-length integer in one of its bytes
CONTINUED = np.uint64(128)  # set in all of its bytes but the last
MIN_LISTED = 3  # places that are written per word, whether it has as many bits or not


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
def find_windows(values, order, eps):
    """Return the first place and the stop of each row's neighbours in ``order``, as rows (n, 2).

    ``values`` (n,) are those of one feature, sorted, and ``order`` (n,) are their rows. The
    neighbours of a row are a window of them, and both ends of the window only move forward.
    """
    n = values.size
    windows = np.empty((n, 2), np.int64)
    low = 0
    high = 0
    for rank in range(n):
        while not np.sqrt((values[rank] - values[low]) ** 2) < eps:
            low += 1
        while high < n and np.sqrt((values[high] - values[rank]) ** 2) < eps:
            high += 1
        windows[order[rank], 0] = low
        windows[order[rank], 1] = high
    return windows


@kernel
def sweep_neighbours(order, windows, first, bits):
    """Fill a block for one feature, given the sorted rows and the window of each (`find_windows`).

    All rows of a window are set and the earlier ones cleared afterwards, because comparing each
    with the row would take longer.
    """
    for row in range(bits.shape[0]):
        for place in range(windows[first + row, 0], windows[first + row, 1]):
            _set(bits, row, order[place])
        _clear_up_to(bits, row, first + row)


@kernel
def _clear_up_to(bits, row, j):
    """Clear the bits of the columns ``0..j``, including ``j``."""
    for w in range(j >> 6):
        bits[row, w] = 0
    # Two shifts, because a shift by 64 is undefined.
    bits[row, j >> 6] &= ~np.uint64(0) << np.uint64(j & 63) << ONE


@kernel
def sweep_gaps(order, windows, turns, first, max_bytes):
    """Return a block for one feature as gaps, or no bytes if they take more than ``max_bytes``.

    ``order`` and ``windows`` are those of `sweep_neighbours`. The rows of the block are
    ``first + turns``, sorted by their values. Both ends of the window then only move forward, so
    that a single row of bits is needed, and few of its bits change from row to row.
    """
    words = np.zeros((order.size + 63) // 64, np.uint64)
    columns = np.empty(64 * words.size + MIN_LISTED, np.int32)
    by_turn = np.empty(max_bytes, np.uint8)
    ranges = np.empty((turns.size, 2), np.int64)  # of the bytes of each row
    low, high, at = 0, 0, 0
    for turn in turns:
        next_low, next_high = windows[first + turn, 0], windows[first + turn, 1]
        _flip_bits(words, order, low, min(high, next_low))
        _flip_bits(words, order, max(high, next_low), next_high)
        low, high = next_low, next_high
        ranges[turn, 0] = at
        at = _write_row(words, first + turn, columns, by_turn, at)
        if at < 0:
            return np.empty(0, np.uint8)
        ranges[turn, 1] = at
    out = np.empty(at, np.uint8)
    at = 0
    for row in range(turns.size):
        start, stop = ranges[row]
        out[at : at + stop - start] = by_turn[start:stop]
        at += stop - start
    return out


@kernel
def _flip_bits(words, order, low, high):
    """Flip the bits of the rows ``order[low:high]``."""
    for place in range(low, high):
        j = order[place]
        words[j >> 6] ^= ONE << np.uint64(j & 63)


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
def _list_row(words, i, columns):
    """Write the columns after ``i`` whose bits are set to ``columns``; return their number.

    Columns are written beyond their number: a loop over the bits of each word would end after a
    number of turns that the processor cannot predict, and this costs more than a few useless steps.
    """
    w, n_words = np.uint64(i >> 6), np.uint64(words.size)
    # Two shifts, because a shift by 64 is undefined.
    word = words[w] & (~np.uint64(0) << np.uint64(i & 63) << ONE)
    n_columns = np.uint64(0)
    while True:
        at = n_columns
        n_columns += count_ones(word)
        for _ in range(MIN_LISTED):
            columns[at] = (w << np.uint64(6)) + lowest(word)
            word &= word - ONE
            at += ONE
        while word:
            columns[at] = (w << np.uint64(6)) + lowest(word)
            word &= word - ONE
            at += ONE
        w += ONE
        if w == n_words:
            return n_columns
        word = words[w]


@kernel
def _write_row(words, i, columns, out, start):
    """Write row ``i`` as gaps to ``out``, from ``start``; return the end, or -1 if beyond ``out``.

    ``columns`` is a buffer for all columns and `MIN_LISTED` more.
    """
    at, size = np.uint64(start), np.uint64(out.size)
    previous = np.uint64(i)
    for k in range(_list_row(words, i, columns)):
        column = np.uint64(columns[k])
        gap = column - previous
        previous = column
        while gap > LOW_BITS:
            if at == size:
                return -1
            out[at] = (gap & LOW_BITS) | CONTINUED
            gap >>= np.uint64(7)
            at += ONE
        if at == size:
            return -1
        out[at] = gap
        at += ONE
    if at == size:
        return -1
    out[at] = 0
    return np.int64(at + ONE)


@kernel
def write_gaps(bits, first, out):
    """Write a block as gaps into ``out``; return the number of bytes, or -1 if they do not fit."""
    columns = np.empty(64 * bits.shape[1] + MIN_LISTED, np.int32)
    at = 0
    for row in range(bits.shape[0]):
        at = _write_row(bits[row], first + row, columns, out, at)
        if at < 0:
            break
    return at


@kernel
def read_gaps(data, n, first, bits):
    """Overwrite a block with gaps; return whether the bytes are a valid block of these rows."""
    at = 0
    for row in range(bits.shape[0]):
        bits[row] = 0  # here, because the row stays in the cache for what follows
        at = _read_row(data, at, first + row, n, bits[row])
        if at < 0:
            return False
    return at == data.size


@kernel
def _read_row(data, at, i, n, words):
    """Set the bits of row ``i``; return where its gaps end, or -1 if they are not valid."""
    at, size = np.uint64(at), np.uint64(data.size)
    j, last = np.uint64(i), np.uint64(n - 1)
    while at < size:
        gap = np.uint64(data[at])
        at += ONE
        if gap > LOW_BITS:
            gap &= LOW_BITS
            shift = np.uint64(7)
            while True:
                if at == size or shift > 56:
                    return -1
                byte = np.uint64(data[at])
                at += ONE
                gap |= (byte & LOW_BITS) << shift
                shift += np.uint64(7)
                if byte <= LOW_BITS:
                    break
        if gap == 0:
            return np.int64(at)
        if gap > last - j:
            return -1
        j += gap
        words[j >> np.uint64(6)] |= ONE << (j & np.uint64(63))
    return -1


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
    """Overwrite a block with bits; return whether the bytes are a valid block of these rows."""
    if data.size != count_bit_bytes(n, first, first + bits.shape[0]):
        return False
    at = 0
    for row in range(bits.shape[0]):
        bits[row] = 0
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
def list_pairs(block, other, first):
    """List the pairs in both of two blocks that begin with the row ``first``.

    Return the number of neighbours of each row, and the column (int32) of each, row by row.
    """
    counts = np.empty(block.shape[0], np.int64)
    max_row = 64 * block.shape[1]
    columns = np.empty(max_row, np.int32)
    n_pairs = 0
    for row in range(block.shape[0]):
        if n_pairs + max_row > columns.size:
            larger = np.empty(2 * columns.size, np.int32)
            larger[:n_pairs] = columns[:n_pairs]
            columns = larger
        stop = _list_common(block[row], other[row], first + row, columns, n_pairs)
        counts[row] = stop - n_pairs
        n_pairs = stop
    return counts, columns[:n_pairs].copy()


@kernel
def _list_common(words, others, i, columns, at):
    """Write the columns in both of two rows ``i`` to ``columns``, from ``at``; return the end.

    It is a function of its own: compiled code is several times faster if ``columns`` is not
    replaced in it.
    """
    for w in range(i >> 6, words.size):
        word = words[w] & others[w]
        while word:
            columns[at] = (w << 6) + np.int64(lowest(word))
            word &= word - ONE
            at += 1
    return at


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
