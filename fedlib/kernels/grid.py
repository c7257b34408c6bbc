"""Cells of a regular grid: counting points, finding adjacent cells, placing points.

A cell is a row of int64 coordinates, ``floor(x / cell_size)``. Only occupied cells are stored, so
the cost depends on their number and not on the distances between them. Coordinates stay within
``±MAX_CELL``, so that the coordinates of a neighbour also fit into 64 bits.

Points sorted by the cell of a grid, and the cells near a cell.

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
    the last, and of two slices, which is the count of cells in a slice.
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
        The count of cells in a slice: a power of 2.
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
        The count of groups, at least 1.
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


MAX_CELL = 2**62
BLOCK = 512  # points that are hashed before the first of them is looked up


class Groups(NamedTuple):
    """Points grouped by cell.

    Attributes
    ----------
    cells : array (n_cells, d) of int64
        The occupied cells, in order of first appearance.
    counts : array (n_cells,) of int64
        The count of points in each cell.
    inverse : array (n,) of int64
        The number of each point's cell; empty when it was not requested.
    outside : int
        The row of the first point whose cell lies outside ``±MAX_CELL``, or -1. Unless it is -1,
        the other fields have no meaning.
    """

    cells: np.ndarray
    counts: np.ndarray
    inverse: np.ndarray
    outside: int


class Candidates(NamedTuple):
    """For each of n cells, the indices of the cells that its points may join.

    Those of cell ``i`` are ``numbers[start[i]:start[i + 1]]``, in ascending order.
    """

    start: np.ndarray
    numbers: np.ndarray


class Table(NamedTuple):
    """A hash table of cells: ``2**n_bits`` entries, searched by linear probing.

    An entry is ``d + 2`` numbers: the cell's d coordinates, its count (0 if the entry is free) and
    its number. Entries are stored next to each other, so that a look-up costs one memory access.
    """

    entries: np.ndarray
    n_bits: int
    d: int


class Block(NamedTuple):
    """The cells and hashes of the points ``first..first + len(hashes)``.

    The coordinates of point ``i`` are ``cells[i * d:(i + 1) * d]``. All points of a block are
    hashed before the first look-up, so that the memory accesses of the look-ups overlap.
    """

    first: int
    cells: np.ndarray
    hashes: np.ndarray


# No inner loop of the next functions slices an array or allocates one: this makes them fast.


@kernel
def _hash(coordinates, start, d):
    """Return the hash of the cell ``coordinates[start:start + d]``."""
    h = np.uint64(0)
    for k in range(start, start + d):
        h = (h ^ np.uint64(coordinates[k])) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(32)
    return h * np.uint64(0x9E3779B97F4A7C15)


@kernel
def _locate(X, cell_size, block):
    """Write the cells and hashes of a block; return the first row outside the range, or -1."""
    first, cells, hashes = block
    d = X.shape[1]
    for i in range(hashes.size):
        for k in range(d):
            quotient = np.floor(X[first + i, k] / cell_size)
            if not abs(quotient) <= MAX_CELL:  # true for NaN too
                return first + i
            cells[i * d + k] = np.int64(quotient)
        hashes[i] = _hash(cells, i * d, d)
    return -1


@kernel
def _count(table, block, n_cells, inverse):
    """Count the points of a block in a table with enough free entries.

    Write the number of each point's cell into ``inverse``, unless that is empty. Return the count
    of cells in the table, which was ``n_cells`` before.
    """
    entries, n_bits, d = table
    first, cells, hashes = block
    width = d + 2
    shift = np.uint64(64 - n_bits)
    for i in range(hashes.size):
        at = np.int64(hashes[i] >> shift) * width
        while entries[at + d] != 0:
            same = True
            for k in range(d):
                same &= entries[at + k] == cells[i * d + k]
            if same:
                break
            at += width
            if at == entries.size:
                at = 0
        if entries[at + d] == 0:
            for k in range(d):
                entries[at + k] = cells[i * d + k]
            entries[at + d + 1] = n_cells
            n_cells += 1
        entries[at + d] += 1
        if inverse.size:
            inverse[first + i] = entries[at + d + 1]
    return n_cells


@kernel
def _empty_table(n_bits, d):
    return Table(np.zeros((d + 2) << n_bits, np.int64), n_bits, d)


@kernel
def _double(table):
    """Return a table with the same cells and twice as many entries."""
    old, _, d = table
    doubled = _empty_table(table.n_bits + 1, d)
    entries = doubled.entries
    shift = np.uint64(64 - doubled.n_bits)
    width = d + 2
    for row in range(0, old.size, width):
        if old[row + d]:
            at = np.int64(_hash(old, row, d) >> shift) * width
            while entries[at + d]:
                at = (at + width) % entries.size
            entries[at : at + width] = old[row : row + width]
    return doubled


@kernel
def group_points(X, cell_size, with_inverse):
    """Return the `Groups` of the points ``X`` (n, d)."""
    n, d = X.shape
    inverse = np.empty(n if with_inverse else 0, np.int64)
    table = _empty_table(12, d)
    n_cells = 0
    block_cells = np.empty(BLOCK * d, np.int64)
    block_hashes = np.empty(BLOCK, np.uint64)
    for first in range(0, n, BLOCK):
        block = Block(first, block_cells, block_hashes[: min(BLOCK, n - first)])
        outside = _locate(X, cell_size, block)
        if outside >= 0:
            return Groups(np.empty((0, d), np.int64), np.empty(0, np.int64), inverse, outside)
        while 2 * (n_cells + block.hashes.size) > 1 << table.n_bits:
            table = _double(table)
        n_cells = _count(table, block, n_cells, inverse)
    cells = np.empty((n_cells, d), np.int64)
    counts = np.empty(n_cells, np.int64)
    entries = table.entries
    for at in range(0, entries.size, d + 2):
        if entries[at + d]:
            cells[entries[at + d + 1]] = entries[at : at + d]
            counts[entries[at + d + 1]] = entries[at + d]
    return Groups(cells, counts, inverse, -1)


@kernel
def _compare(a, offset, b):
    """Return the lexicographic order of ``a + offset`` and ``b``: -1, 0 or 1."""
    for k in range(a.size):
        shifted = a[k] + offset[k]
        if shifted < b[k]:
            return -1
        if shifted > b[k]:
            return 1
    return 0


@kernel
def _merge(cells, offsets, pairs):
    """Return the count of pairs ``(i, j)`` with ``cells[i] + offset == cells[j]``.

    Also write them into ``pairs``, unless that is empty. Shifting keeps sorted cells sorted, so
    each offset is one merge of two sorted lists.
    """
    n = cells.shape[0]
    n_pairs = 0
    for offset in offsets:
        j = 0
        for i in range(n):
            order = 1
            while j < n:
                order = _compare(cells[i], offset, cells[j])
                if order <= 0:
                    break
                j += 1
            if j == n:
                break
            if order == 0:
                if pairs.size:
                    pairs[n_pairs, 0] = i
                    pairs[n_pairs, 1] = j
                n_pairs += 1
    return n_pairs


@kernel
def _touching(a, b):
    """Return whether two cells share a face, an edge or a corner, or are the same."""
    for k in range(a.size):
        if a[k] > b[k] + 1:  # the difference may not fit into 64 bits
            return False
        if b[k] > a[k] + 1:
            return False
    return True


@kernel
def _sweep(cells, pairs):
    """Return the count of pairs of touching cells.

    Also write them into ``pairs``, unless that is empty.
    """
    n = cells.shape[0]
    n_pairs = 0
    for i in range(n):
        for j in range(i + 1, n):
            if cells[j, 0] > cells[i, 0] + 1:
                break
            if _touching(cells[i], cells[j]):
                if pairs.size:
                    pairs[n_pairs, 0] = i
                    pairs[n_pairs, 1] = j
                n_pairs += 1
    return n_pairs


@kernel
def adjacent_pairs(cells, offsets):
    """Return the pairs (p, 2) of sorted ``cells`` (n, d) that differ by one of ``offsets`` (m, d).

    The time is O(n * m * d).
    """
    pairs = np.empty((0, 2), np.int64)
    pairs = np.empty((_merge(cells, offsets, pairs), 2), np.int64)
    _merge(cells, offsets, pairs)
    return pairs


@kernel
def touching_pairs(cells):
    """Return the pairs (p, 2) of sorted ``cells`` (n, d) that share a face, an edge or a corner.

    The time is O(n**2 * d): with many features that is less than `adjacent_pairs` with all
    ``3**d - 1`` offsets needs.
    """
    pairs = np.empty((0, 2), np.int64)
    pairs = np.empty((_sweep(cells, pairs), 2), np.int64)
    _sweep(cells, pairs)
    return pairs


@kernel
def _find(cells, cell, offset):
    """Return the count of ``cell + offset`` in the sorted ``cells``, or -1."""
    low, high = 0, cells.shape[0]
    while low < high:
        middle = (low + high) // 2
        if _compare(cell, offset, cells[middle]) > 0:
            low = middle + 1
        else:
            high = middle
    if low < cells.shape[0] and _compare(cell, offset, cells[low]) == 0:
        return low
    return -1


@kernel
def _write_candidates(cell, cells, offsets, buffer):
    """Write the candidates of one cell into ``buffer``; return their number."""
    itself = _find(cells, cell, np.zeros_like(cell))
    if itself >= 0:
        buffer[0] = itself
        return 1
    n_candidates = 0
    for offset in offsets:
        neighbour = _find(cells, cell, offset)
        if neighbour >= 0:
            buffer[n_candidates] = neighbour
            n_candidates += 1
    if offsets.shape[0] == 0:
        for neighbour in range(cells.shape[0]):
            if _touching(cell, cells[neighbour]):
                buffer[n_candidates] = neighbour
                n_candidates += 1
    return n_candidates


@kernel
def find_candidates(occupied, cells, offsets):
    """Return the `Candidates` among sorted ``cells`` for each of the ``occupied`` cells (n, d).

    A cell that is among ``cells`` is its own only candidate. The candidates of any other cell are
    its neighbours: the cells at one of the ``offsets`` (m, d), which ascend, or all touching cells
    if there are no offsets.
    """
    max_candidates = offsets.shape[0] if offsets.shape[0] else cells.shape[0]
    buffer = np.empty(max(1, max_candidates), np.int64)
    n = occupied.shape[0]
    start = np.zeros(n + 1, np.int64)
    for i in range(n):
        start[i + 1] = start[i] + _write_candidates(occupied[i], cells, offsets, buffer)
    numbers = np.empty(start[-1], np.int64)
    for i in range(n):
        n_candidates = _write_candidates(occupied[i], cells, offsets, buffer)
        numbers[start[i] : start[i + 1]] = buffer[:n_candidates]
    return Candidates(start, numbers)


@kernel
def nearest_candidate(X, inverse, candidates, cells, cell_size):
    """Return for each point the candidate with the nearest centre, or -1; ties go to the first.

    ``inverse`` (n,) is the number of each point's cell, by which ``candidates`` are listed.
    """
    start, numbers = candidates
    nearest = np.full(X.shape[0], -1, np.int64)
    for i in range(X.shape[0]):
        smallest = np.inf
        for c in numbers[start[inverse[i]] : start[inverse[i] + 1]]:
            distance = 0.0
            for k in range(X.shape[1]):
                distance += (X[i, k] - (cells[c, k] * cell_size + cell_size / 2)) ** 2
            if nearest[i] < 0 or distance < smallest:  # the first one, even at infinite distance
                smallest = distance
                nearest[i] = c
    return nearest
