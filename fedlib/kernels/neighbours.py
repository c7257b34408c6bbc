"""Which later rows are neighbours of a row: finding, packing and intersecting, block by block.

A block is the rows ``first..stop`` of the relation *j is a neighbour of i and j > i* among ``n``
rows. In memory it is a bitset (stop - first, ceil(n / 64)) of uint64. On its way it is a stream of
bytes in one of two forms:

- *gaps*: for each row the differences between its neighbours' numbers, beginning at the row itself,
  as variable-length integers (7 bits a byte, low first), ended by a zero;
- *bits*: for each row one bit for every later row, filled up to whole bytes.

Two rows are neighbours when their Euclidean distance is below ``eps``: the square root of the sum
of squares taken in the order of the features, in float64. Every search computes it alike, down to
squares that overflow or vanish.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.disjoint_set import number_components, union

ONE = np.uint64(1)


@kernel
def _set(bits, row, j):
    bits[row, j >> 6] |= ONE << np.uint64(j & 63)


@kernel
def _near(X, i, j, eps):
    total = 0.0
    for k in range(X.shape[1]):
        total += (X[i, k] - X[j, k]) ** 2
    return np.sqrt(total) < eps


@kernel
def sweep_neighbours(x, order, eps, first, bits):
    """Fill a block for one feature ``x`` (n,), whose argsort is ``order``."""
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
            for at in range(low, high):
                if order[at] > i:
                    _set(bits, i - first, order[at])


@kernel
def grid_neighbours(X, eps, cell, start, members, near_start, near, first, bits):
    """Fill a block for points sorted into cells that are larger than ``eps``.

    ``cell`` (n,) is each point's cell; ``members[start[c]:start[c + 1]]`` are a cell's points and
    ``near[near_start[c]:near_start[c + 1]]`` the cells that touch it, itself among them.
    """
    for row in range(bits.shape[0]):
        i = first + row
        for at in range(near_start[cell[i]], near_start[cell[i] + 1]):
            for place in range(start[near[at]], start[near[at] + 1]):
                j = members[place]
                if j > i and _near(X, i, j, eps):
                    _set(bits, row, j)


@kernel
def all_neighbours(X, eps, first, bits):
    """Fill a block by looking at all later rows."""
    for row in range(bits.shape[0]):
        for j in range(first + row + 1, X.shape[0]):
            if _near(X, first + row, j, eps):
                _set(bits, row, j)


@kernel
def _lowest(word):
    """Return the number of the lowest bit set, by halving."""
    at = 0
    for width in (32, 16, 8, 4, 2, 1):
        if word & ((ONE << np.uint64(width)) - ONE) == 0:
            word >>= np.uint64(width)
            at += width
    return at


@kernel
def count_gap_bytes(bits, first):
    """Return the length of a block in the form of gaps."""
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
    """Write a block as gaps into ``out``, which has `count_gap_bytes` bytes."""
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
    """Fill a block from gaps; return whether the bytes are a block of exactly these rows."""
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
    """Return the length of a block in the form of bits."""
    size = 0
    for i in range(first, stop):
        size += (n - 1 - i + 7) >> 3
    return size


@kernel
def write_bits(bits, n, first, out):
    """Write a block as bits into ``out``, zeros of `count_bit_bytes` bytes."""
    at = 0
    for row in range(bits.shape[0]):
        i = first + row
        for j in range(i + 1, n):
            bit = (bits[row, j >> 6] >> np.uint64(j & 63)) & ONE
            out[at + ((j - i - 1) >> 3)] |= np.uint8(bit << np.uint64((j - i - 1) & 7))
        at += (n - 1 - i + 7) >> 3


@kernel
def read_bits(data, n, first, bits):
    """Fill a block from bits; return whether the bytes are a block of exactly these rows."""
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
    """Return the number of bits set in each row."""
    counts = np.zeros(bits.shape[0], np.int64)
    for row in range(bits.shape[0]):
        for word in bits[row]:
            while word:
                word &= word - ONE
                counts[row] += 1
    return counts


@kernel
def write_pairs(bits, out):
    """Write the column of each bit set, row by row, into ``out``."""
    at = 0
    for row in range(bits.shape[0]):
        for w in range(bits.shape[1]):
            word = bits[row, w]
            while word:
                out[at] = (w << 6) + _lowest(word)
                word &= word - ONE
                at += 1


@kernel
def label_rows(start, index, min_samples):
    """Run DBSCAN on a graph given by each row's later neighbours as CSR (start, index).

    A row counts as its own neighbour. Clusters are numbered by their first core row; a border row
    belongs to the first of the clusters that reach it; -1 is noise.
    """
    n = start.size - 1
    degree = np.ones(n, np.int64)
    for i in range(n):
        degree[i] += start[i + 1] - start[i]
        for at in range(start[i], start[i + 1]):
            degree[index[at]] += 1
    core = degree >= min_samples
    parent = np.arange(n)
    for i in range(n):
        for at in range(start[i], start[i + 1]):
            if core[i] and core[index[at]]:
                union(parent, i, index[at])
    labels = number_components(parent, core)
    for i in range(n):
        for at in range(start[i], start[i + 1]):
            j = index[at]
            if core[i] and not core[j] and (labels[j] < 0 or labels[i] < labels[j]):
                labels[j] = labels[i]
            elif core[j] and not core[i] and (labels[i] < 0 or labels[j] < labels[i]):
                labels[i] = labels[j]
    return labels
