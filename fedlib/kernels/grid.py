"""Cells of a regular grid: counting points, finding adjacent cells, placing points.

A cell is a row of int64 coordinates, ``floor(x / cell_size)``. Only occupied cells exist, and the
cost depends on how many there are, not on how far apart they lie. Coordinates
stay within ``±MAX_CELL``, so a neighbour's coordinates are 64-bit numbers too.
"""

import numpy as np

from fedlib.kernels import kernel

MAX_CELL = 2**62


# The table of occupied cells is a flat array of entries: a cell's d coordinates, its count (0 if
# free) and its number. So a point costs one look into memory. Two more rules make it fast: a block
# of cells is hashed before any is looked up, so that the looks overlap; no inner loop slices or
# grows an array.
BLOCK = 512


@kernel
def _hash(cells, at, d):
    h = np.uint64(0)
    for k in range(at, at + d):
        h = (h ^ np.uint64(cells[k])) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(32)
    return h * np.uint64(0x9E3779B97F4A7C15)


@kernel
def _locate(X, cell_size, first, cells, hashes):
    """Write a block of points' cells and hashes; return the row of one out of range, or -1."""
    d = X.shape[1]
    for i in range(hashes.size):
        for k in range(d):
            quotient = np.floor(X[first + i, k] / cell_size)
            if not abs(quotient) <= MAX_CELL:
                return first + i
            cells[i * d + k] = np.int64(quotient)
        hashes[i] = _hash(cells, i * d, d)
    return -1


@kernel
def _enter(table, bits, d, cells, hashes, n_cells, inverse, first):
    """Count a block's points in the table, which has room for them; return the number of cells."""
    width = d + 2
    shift = np.uint64(64 - bits)
    for i in range(hashes.size):
        entry = np.int64(hashes[i] >> shift) * width
        while table[entry + d] != 0:
            same = True
            for k in range(d):
                same &= table[entry + k] == cells[i * d + k]
            if same:
                break
            entry += width
            if entry == table.size:
                entry = 0
        if table[entry + d] == 0:
            for k in range(d):
                table[entry + k] = cells[i * d + k]
            table[entry + d + 1] = n_cells
            n_cells += 1
        table[entry + d] += 1
        if inverse.size:
            inverse[first + i] = table[entry + d + 1]
    return n_cells


@kernel
def _double(table, bits, d):
    """Return a table of ``2**(bits + 1)`` entries that holds those of ``table``."""
    width = d + 2
    doubled = np.zeros(2 * table.size, np.int64)
    for old in range(0, table.size, width):
        if table[old + d]:
            entry = np.int64(_hash(table, old, d) >> np.uint64(63 - bits)) * width
            while doubled[entry + d]:
                entry = (entry + width) % doubled.size
            doubled[entry : entry + width] = table[old : old + width]
    return doubled


@kernel
def group_points(X, cell_size, inverse):
    """Find the occupied cells of ``X`` (n, d), in order of first appearance.

    ``inverse`` (n or 0, int64) receives each point's cell. Returns cells, counts and the row of the
    first point whose cell exceeds ``MAX_CELL`` (-1: none; else the rest is meaningless).
    """
    n, d = X.shape
    bits = 12
    table = np.zeros((d + 2) << bits, np.int64)
    n_cells = 0
    block_cells = np.empty(BLOCK * d, np.int64)
    block_hashes = np.empty(BLOCK, np.uint64)
    for first in range(0, n, BLOCK):
        hashes = block_hashes[: min(BLOCK, n - first)]
        outside = _locate(X, cell_size, first, block_cells, hashes)
        if outside >= 0:
            return np.empty((0, d), np.int64), np.empty(0, np.int64), outside
        while 2 * (n_cells + hashes.size) > 1 << bits:
            table = _double(table, bits, d)
            bits += 1
        n_cells = _enter(table, bits, d, block_cells, hashes, n_cells, inverse, first)
    cells = np.empty((n_cells, d), np.int64)
    counts = np.empty(n_cells, np.int64)
    for entry in range(0, table.size, d + 2):
        if table[entry + d]:
            cells[table[entry + d + 1]] = table[entry : entry + d]
            counts[table[entry + d + 1]] = table[entry + d]
    return cells, counts, -1


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
    """Count, and with room for them write, the pairs ``(i, j)``, ``cells[i] + offset == cells[j]``.

    Shifting keeps sorted cells sorted, so each offset is one merge of two sorted lists.
    """
    n = cells.shape[0]
    found = 0
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
                    pairs[found, 0] = i
                    pairs[found, 1] = j
                found += 1
    return found


@kernel
def _touching(a, b):
    for k in range(a.size):
        if a[k] > b[k] + 1:  # a[k] - b[k] may be no 64-bit number
            return False
        if b[k] > a[k] + 1:
            return False
    return True


@kernel
def _sweep(cells, pairs):
    """Count, and with room for them write, the pairs of cells that share a face, edge or corner."""
    n = cells.shape[0]
    found = 0
    for i in range(n):
        for j in range(i + 1, n):
            if cells[j, 0] > cells[i, 0] + 1:
                break
            if _touching(cells[i], cells[j]):
                if pairs.size:
                    pairs[found, 0] = i
                    pairs[found, 1] = j
                found += 1
    return found


@kernel
def adjacent_pairs(cells, offsets):
    """Return the pairs (p, 2) of sorted ``cells`` (n, d) that one of the offsets (m, d) joins."""
    pairs = np.empty((0, 2), np.int64)
    pairs = np.empty((_merge(cells, offsets, pairs), 2), np.int64)
    _merge(cells, offsets, pairs)
    return pairs


@kernel
def touching_pairs(cells):
    """Return what `adjacent_pairs` finds by all offsets, in dimensions too many for that."""
    pairs = np.empty((0, 2), np.int64)
    pairs = np.empty((_sweep(cells, pairs), 2), np.int64)
    _sweep(cells, pairs)
    return pairs


@kernel
def _find(cells, cell, offset):
    """Return the index of ``cell + offset`` in sorted ``cells``, or -1."""
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
def _candidates(cell, cells, offsets, room):
    """Write the sorted ``cells`` that may take a cell's points into ``room``; return how many.

    The cell itself where it is among them, else its neighbours in lexicographic order. Without
    offsets all touching cells are neighbours.
    """
    itself = _find(cells, cell, np.zeros_like(cell))
    if itself >= 0:
        room[0] = itself
        return 1
    found = 0
    for offset in offsets:
        at = _find(cells, cell, offset)
        if at >= 0:
            room[found] = at
            found += 1
    if offsets.shape[0] == 0:
        for at in range(cells.shape[0]):
            if _touching(cell, cells[at]):
                room[found] = at
                found += 1
    return found


@kernel
def find_candidates(own, cells, offsets):
    """Return as CSR (start, index) the sorted ``cells`` that may take an ``own`` cell's points."""
    room = np.empty(max(1, offsets.shape[0], cells.shape[0] * (offsets.shape[0] == 0)), np.int64)
    start = np.zeros(own.shape[0] + 1, np.int64)
    for i in range(own.shape[0]):
        start[i + 1] = start[i] + _candidates(own[i], cells, offsets, room)
    index = np.empty(start[-1], np.int64)
    for i in range(own.shape[0]):
        found = _candidates(own[i], cells, offsets, room)
        index[start[i] : start[i + 1]] = room[:found]
    return start, index


@kernel
def nearest_candidate(X, inverse, cells, cell_size, start, index):
    """Return for each point the candidate with the nearest centre (the first of equals), or -1."""
    out = np.full(X.shape[0], -1, np.int64)
    for i in range(X.shape[0]):
        best = np.inf
        for at in index[start[inverse[i]] : start[inverse[i] + 1]]:
            distance = 0.0
            for k in range(X.shape[1]):
                distance += (X[i, k] - (cells[at, k] * cell_size + cell_size / 2)) ** 2
            if out[i] < 0 or distance < best:  # even where the distance is infinite
                best = distance
                out[i] = at
    return out
