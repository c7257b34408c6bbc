"""Cells of a regular grid: counting points, finding adjacent cells, placing points.

A cell is a row of int64 coordinates, ``floor(x / cell_size)``. Only occupied cells are stored, so
the cost depends on their number and not on the distances between them. Coordinates stay within
``±MAX_CELL``, so that the coordinates of a neighbour also fit into 64 bits.
"""

from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel

MAX_CELL = 2**62
BLOCK = 512  # points that are hashed before the first of them is looked up


class Groups(NamedTuple):
    """Points grouped by cell.

    Attributes
    ----------
    cells : array (n_cells, d) of int64
        The occupied cells, in order of first appearance.
    counts : array (n_cells,) of int64
        The number of points in each cell.
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
    """For each of n cells, the numbers of the cells that may take its points.

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

    Write the number of each point's cell into ``inverse``, unless that is empty. Return the number
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
    """Return the number of pairs ``(i, j)`` with ``cells[i] + offset == cells[j]``.

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
    """Return the number of pairs of touching cells.

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
    """Return the number of ``cell + offset`` in the sorted ``cells``, or -1."""
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
