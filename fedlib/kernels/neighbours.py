"""The later neighbours of each row: finding, packing and intersecting them, block by block.

A block contains the rows ``first..stop`` of the relation *j is a neighbour of i and j > i* among
``n`` rows. In memory it is a bitset: an array (stop - first, ceil(n / 64)) of uint64, low bits
first. A message carries it as bytes, in one of two forms:

- *gaps*: for each row the differences between the indices of successive neighbours, starting from
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
from fedlib.kernels.density import number_components, union
from fedlib.kernels.packing import ONE, count_ones, lowest

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
def _copy_equal(bits, row, first, twin):
    """Copy a row of a block from an equal one; return whether there is one in ``bits``.

    ``twin`` (n,) is the row before each that has the same point, or -1.
    """
    i = first + row
    if twin[i] < first:
        return False
    for w in range(i >> 6, bits.shape[1]):
        bits[row, w] = bits[twin[i] - first, w]
    _clear_up_to(bits, row, i)
    return True


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
def sweep_neighbours(order, windows, twin, first, bits):
    """Fill a block for one feature, given the sorted rows and the window of each (`find_windows`).

    All rows of a window are set and the earlier ones cleared afterwards, because comparing each
    with the row would take longer.
    """
    for row in range(bits.shape[0]):
        if _copy_equal(bits, row, first, twin):
            continue
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
def grid_neighbours(X, eps, grid, twin, first, bits):
    """Fill a block for points ``X`` (n, d) by looking at the cells near each row."""
    cell, start, members, near_start, near = grid
    for row in range(bits.shape[0]):
        if _copy_equal(bits, row, first, twin):
            continue
        i = first + row
        for c in near[near_start[cell[i]] : near_start[cell[i] + 1]]:
            for place in range(start[c], start[c + 1]):
                j = members[place]
                if j > i and _are_neighbours(X, i, j, eps):
                    _set(bits, row, j)


@kernel
def all_neighbours(X, eps, twin, first, bits):
    """Fill a block for points ``X`` (n, d) by looking at all later rows."""
    for row in range(bits.shape[0]):
        if _copy_equal(bits, row, first, twin):
            continue
        for j in range(first + row + 1, X.shape[0]):
            if _are_neighbours(X, first + row, j, eps):
                _set(bits, row, j)


@kernel
def _list_row(words, i, columns):
    """Write the columns after ``i`` whose bits are set to ``columns``; return their number.

    Columns are written beyond their number: a loop over the bits of each word would end after a
    count of turns that the processor cannot predict, and this costs more than a few useless steps.
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
    """Write a block as gaps into ``out``; return the count of bytes, or -1 if they do not fit."""
    least = np.uint64(bits.shape[0])  # bytes: at least one for each neighbour, and one for each row
    for row in range(bits.shape[0]):
        for w in range(bits.shape[1]):
            least += count_ones(bits[row, w])
    if least > np.uint64(out.size):
        return -1
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
    """Return the count of bytes of a block as bits."""
    size = 0
    for i in range(first, stop):
        size += (n - 1 - i + 7) >> 3
    return size


@kernel
def write_bits(bits, n, first, out):
    """Write a block as bits into ``out``, an array of `count_bit_bytes` bytes."""
    n_words = np.uint64(bits.shape[1])
    at = np.uint64(0)
    for row in range(bits.shape[0]):
        words = bits[row]
        start = np.uint64(first + row + 1)  # the column of the row's first bit
        w, shift = start >> np.uint64(6), start & np.uint64(63)
        n_bytes = (np.uint64(n) - start + np.uint64(7)) >> np.uint64(3)
        while n_bytes:
            word = words[w] >> shift
            w += ONE
            if shift and w < n_words:
                word |= words[w] << (np.uint64(64) - shift)
            if n_bytes >= np.uint64(8):
                for k in range(8):
                    out[at + np.uint64(k)] = np.uint8(word >> np.uint64(8 * k))
                at += np.uint64(8)
                n_bytes -= np.uint64(8)
                continue
            while n_bytes:
                out[at] = np.uint8(word & np.uint64(255))
                word >>= np.uint64(8)
                at += ONE
                n_bytes -= ONE


@kernel
def read_bits(data, n, first, bits):
    """Overwrite a block with bits; return whether the bytes are a valid block of these rows."""
    if data.size != count_bit_bytes(n, first, first + bits.shape[0]):
        return False
    n_words = np.uint64(bits.shape[1])
    at = np.uint64(0)
    for row in range(bits.shape[0]):
        words = bits[row]
        words[:] = 0
        start = np.uint64(first + row + 1)  # the column of the row's first bit
        w, shift = start >> np.uint64(6), start & np.uint64(63)
        n_bits = np.uint64(n) - start
        while n_bits:
            word = np.uint64(0)
            if n_bits >= np.uint64(64):
                for k in range(8):
                    word |= np.uint64(data[at + np.uint64(k)]) << np.uint64(8 * k)
                at += np.uint64(8)
                n_left = n_bits - np.uint64(64)
            else:
                for k in range((n_bits + np.uint64(7)) >> np.uint64(3)):
                    word |= np.uint64(data[at]) << np.uint64(8 * k)
                    at += ONE
                if word >> n_bits:
                    return False
                n_left = np.uint64(0)
            words[w] |= word << shift
            w += ONE
            if shift and w < n_words:
                words[w] |= word >> (np.uint64(64) - shift)
            n_bits = n_left
    return True


@kernel
def list_pairs(block, other, first):
    """List the pairs in both of two blocks that begin with the row ``first``.

    Many equal points would give many equal lists. So a row shares the list of an earlier row of the
    block, its *leader*, if the leader's list contains the row, and behind it the row's neighbours.

    Returns
    -------
    counts : array (n_rows,) of int64
        The count of neighbours of each row that is listed itself, 0 for the others.
    leaders : array (n_rows,) of int32
        The row whose list each shares, or the row itself.
    columns : array (n_pairs,) of int32
        The neighbours, list by list.
    """
    n_rows = block.shape[0]
    counts = np.zeros(n_rows, np.int64)
    leaders = np.arange(first, first + n_rows).astype(np.int32)
    max_row = 64 * block.shape[1]
    columns = np.empty(max_row, np.int32)
    n_pairs = 0
    for row in range(n_rows):
        i, leader = first + row, leaders[row] - first
        if leader < row and _continues(block[leader], other[leader], block[row], other[row], i):
            continue
        leaders[row] = i
        if n_pairs + max_row > columns.size:
            larger = np.empty(2 * columns.size, np.int32)
            larger[:n_pairs] = columns[:n_pairs]
            columns = larger
        stop = _list_common(block[row], other[row], i, columns, n_pairs)
        for j in columns[n_pairs:stop]:
            if j >= first + n_rows:
                break
            leaders[j - first] = i  # to be tried when its turn comes
        counts[row] = stop - n_pairs
        n_pairs = stop
    return counts, leaders, columns[:n_pairs].copy()


@kernel
def _continues(words, others, later_words, later_others, i):
    """Return whether two pairs of rows have the same common columns after ``i``."""
    mask = ~np.uint64(0) << np.uint64(i & 63) << ONE
    for w in range(i >> 6, words.size):
        if ((words[w] & others[w]) ^ (later_words[w] & later_others[w])) & mask:
            return False
        mask = ~np.uint64(0)
    return True


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
def label_rows(start, index, leaders, min_samples):
    """Run DBSCAN on a graph and return the cluster of each row (n,); -1 is noise.

    The rows ``index[start[i]:start[i + 1]]`` are the later neighbours of row ``i``, and those
    behind row ``j`` in this list are the later neighbours of ``j`` if ``leaders[j]`` is ``i``. A
    row counts as its own neighbour. Clusters are numbered by their first core row; a border row
    belongs to the first cluster with a core row among its neighbours.
    """
    n = start.size - 1
    degree = np.ones(n, np.int64)
    for i in range(n):
        degree[i] += start[i + 1] - start[i]
        n_members = 1  # rows of the list that are neighbours of all behind them
        for edge in range(start[i], start[i + 1]):
            j = index[edge]
            degree[j] += n_members
            if leaders[j] == i:
                degree[j] += start[i + 1] - edge - 1
                n_members += 1
    core = degree >= min_samples
    parent = np.arange(n)
    for i in range(n):
        first = i if core[i] else -1  # the first core row among the members
        for edge in range(start[i], start[i + 1]):
            j = index[edge]
            if core[j] and first >= 0:
                union(parent, first, j)
            elif core[j] and leaders[j] == i:
                first = j
    labels = number_components(parent, core)
    for i in range(n):
        label = labels[i] if core[i] else -1  # the members' cluster
        for edge in range(start[i], start[i + 1]):
            j = index[edge]
            if not core[j]:
                labels[j] = _first_cluster(labels[j], label)
            elif leaders[j] == i:
                label = labels[j]
        label = -1  # the first cluster of a core row behind
        for edge in range(start[i + 1] - 1, start[i] - 1, -1):
            j = index[edge]
            if core[j]:
                label = _first_cluster(label, labels[j])
            elif leaders[j] == i:
                labels[j] = _first_cluster(labels[j], label)
        if not core[i]:
            labels[i] = _first_cluster(labels[i], label)
    return labels


@kernel
def _first_cluster(a, b):
    """Return the lower of two labels; -1 is none."""
    return max(a, b) if a < 0 or b < 0 else min(a, b)
