"""Sums in fewer bytes: without bins that are 0, and with integers as wide as they need to be.

A packed histogram has one bit per bin, which says whether its sums are not 0; the first bin is the
lowest bit of the first byte. Each of these sums is an integer of ``width`` bytes, the lowest byte
first, times 2**shift. Sites write them from their rows and servers add them up, so that empty bins
cost next to nothing.

The bits of a word: how many are set, and the position of the lowest.

They are counted as in H. S. Warren, "Hacker's Delight", 2nd edition, 2012, §5-1. Compilers replace
this by one instruction of the processor.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.histograms import (
    AHEAD,
    move_rows_by_bins,
    open_slots,
    sort_by_slot,
)
from fedlib.kernels.instructions import add_pair, prefetch_row, read_integer, write_integer

ONE = np.uint64(1)
PAIRS = np.uint64(0x5555555555555555)  # the even bits
NIBBLES = np.uint64(0x3333333333333333)  # the lower two of every four bits
BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)  # the lower four of every eight bits
SUM_BYTES = np.uint64(0x0101010101010101)  # a product with it has the sum of the bytes on top


@kernel
def count_ones(word):
    """Return the count of bits that are set."""
    pairs = word - ((word >> np.uint64(1)) & PAIRS)
    nibbles = (pairs & NIBBLES) + ((pairs >> np.uint64(2)) & NIBBLES)
    return (((nibbles + (nibbles >> np.uint64(4))) & BYTES) * SUM_BYTES) >> np.uint64(56)


@kernel
def lowest(word):
    """Return the position of the lowest bit that is set, or 64 if there is none."""
    return count_ones(~word & (word - ONE))


N_BYTES = 8  # of an integer
WORD = 64  # bits
BLOCK = 4096  # bins of features that are done together: their sums have 64 kB
ALL_BITS = np.uint64(2**64 - 1)


class Packed(NamedTuple):
    """The packed histograms of several clients.

    They are the bits ``filled`` (n_clients, n_bytes), and the bytes ``values`` of all clients'
    integers, one client after the other. The other arrays (n_clients,) are the ``first_byte`` of
    each client, its ``width`` and its ``shift``.
    """

    filled: NDArray[np.uint8]
    values: NDArray[np.uint8]
    first_byte: NDArray[np.int64]
    width: NDArray[np.int64]
    shift: NDArray[np.int64]


@kernel
def last_feature(offsets, first):
    """Return the feature after the last one that fits into a block with the ``first`` one."""
    last = first + 1
    while last < offsets.size - 1 and offsets[last + 1] - offsets[first] <= BLOCK:
        last += 1
    return last


@kernel
def largest_block(offsets):
    """Return the largest count of bins of the features that `last_feature` takes together."""
    largest, f = np.int64(0), 0
    while f < offsets.size - 1:
        last = last_feature(offsets, f)
        largest = max(largest, offsets[last] - offsets[f])
        f = last
    return largest


@kernel
def add_block(bins, rows, first_row, gradients, first_bin, sums):
    """Add the gradients of some rows to the sums in their ``bins`` (n, features of a block).

    The first sum is that of ``first_bin``. The bins are those of one output's rows: row i has
    ``bins[i - first_row]``.
    """
    last = rows.size - 1
    for k in range(rows.size):
        prefetch_row(bins, np.int64(rows[min(k + AHEAD, last)]) - first_row)
        i, row = np.int64(rows[k]) - first_row, rows[k]
        g, h = gradients[row, 0], gradients[row, 1]
        for f in range(bins.shape[1]):
            add_pair(sums, np.uint64(bins[i, f]) - np.uint64(first_bin), g, h)


@kernel
def add_few_rows(bins, rows, first_row, gradients, first_bin, sums, words, first_bit):
    """Do the same as `add_block`, and set the bits of these bins, from ``first_bit`` on."""
    last = rows.size - 1
    for k in range(rows.size):
        prefetch_row(bins, np.int64(rows[min(k + AHEAD, last)]) - first_row)
        i, row = np.int64(rows[k]) - first_row, rows[k]
        g, h = gradients[row, 0], gradients[row, 1]
        for f in range(bins.shape[1]):
            b = np.int64(bins[i, f]) - first_bin
            add_pair(sums, b, g, h)
            bit = first_bit + b
            words[bit >> 6] |= ONE << np.uint64(bit & 63)


@kernel
def take_all(sums, words, first_bit, pairs, n_filled):
    """Append the sums that are not 0 to ``pairs``, set their bits, and set all sums to 0.

    The bits begin at ``first_bit``. The pairs must have room for one more: it may be written.

    Returns
    -------
    n_filled : int
        The count of pairs.
    used : int
        The bits that any sum has.
    magnitude : int
        The bits in which any sum differs from its sign. Its highest bit is that of the largest.
    """
    used, magnitude, word = np.int64(0), np.int64(0), np.uint64(0)
    for b in range(sums.shape[0]):
        g, h = sums[b, 0], sums[b, 1]
        sums[b, 0] = sums[b, 1] = 0
        is_filled = (g | h) != 0
        pairs[n_filled, 0], pairs[n_filled, 1] = g, h  # without a branch: it is hard to predict
        n_filled += is_filled
        used |= g | h
        magnitude |= (g ^ (g >> 63)) | (h ^ (h >> 63))
        bit = first_bit + b
        word |= np.uint64(is_filled) << np.uint64(bit & 63)
        if bit & 63 == 63:
            words[bit >> 6] |= word
            word = np.uint64(0)
    words[(first_bit + sums.shape[0] - 1) >> 6] |= word
    return n_filled, used, magnitude


@kernel
def take_few(sums, words, first_bit, pairs, n_filled):
    """Do the same as `take_all` where bits are set; clear those of sums that are 0."""
    used, magnitude, stop = np.int64(0), np.int64(0), first_bit + sums.shape[0]
    for w in range(first_bit >> 6, (stop + 63) >> 6):
        word = words[w] & bits_between(w, first_bit, stop)
        while word:
            b = WORD * w + np.int64(lowest(word)) - first_bit
            word &= word - ONE
            g, h = sums[b, 0], sums[b, 1]
            sums[b, 0] = sums[b, 1] = 0
            if g | h:
                pairs[n_filled, 0], pairs[n_filled, 1] = g, h
                n_filled += 1
            else:
                words[w] ^= ONE << np.uint64((first_bit + b) & 63)
            used |= g | h
            magnitude |= (g ^ (g >> 63)) | (h ^ (h >> 63))
    return n_filled, used, magnitude


@kernel
def bits_between(w, start, stop):
    """Return the bits of word ``w`` that are among those from ``start`` to before ``stop``."""
    bits, low, high = ALL_BITS, start - WORD * w, stop - WORD * w
    if low > 0:
        bits &= ALL_BITS << np.uint64(low)
    if high < WORD:
        bits &= ~(ALL_BITS << np.uint64(high))
    return bits


@kernel
def sum_slots(bins, slot, n_slots, gradients, offsets, words, pairs):
    """Write the sums of rows in the bins of their slots; return what `take_all` returns.

    The bins of a few features are summed at a time, because their sums fit into a fast cache. A
    slot with fewer rows than bins remembers which bins its rows have. With several outputs, the
    ``slot`` and the ``gradients`` of a row follow those of the same row for the output before.
    """
    order, start = sort_by_slot(slot, n_slots)
    n_filled, used, magnitude = 0, np.int64(0), np.int64(0)
    all_sums, n = np.zeros((largest_block(offsets), 2), np.int64), bins.shape[0]
    for s in range(n_slots):
        f, stop = 0, start[s + 1]
        while start[s] < stop and f < offsets.size - 1:
            end, first_bin = last_feature(offsets, f), offsets[f]
            of_block, sums = bins[:, f:end], all_sums[: offsets[end] - first_bin]
            first_bit, k = s * offsets[-1] + first_bin, start[s]
            few = 2 * (stop - k) * (end - f) < sums.shape[0]
            while k < stop:  # the rows ascend, and those of an output follow each other
                first_row = np.int64(order[k]) // n * n
                rows = order[k : k + np.searchsorted(order[k:stop], first_row + n)]
                k += rows.size
                if few:
                    add_few_rows(
                        of_block, rows, first_row, gradients, first_bin, sums, words, first_bit
                    )
                else:
                    add_block(of_block, rows, first_row, gradients, first_bin, sums)
            if few:
                n_filled, seen, beyond = take_few(sums, words, first_bit, pairs, n_filled)
            else:
                n_filled, seen, beyond = take_all(sums, words, first_bit, pairs, n_filled)
            used, magnitude = used | seen, magnitude | beyond
            f = end
    return n_filled, used, magnitude


@kernel
def move_and_pack(bins, cuts, places, splits, level, gradients, words, pairs):
    """Return the nodes of rows after splits; write the histograms of the wanted nodes.

    The arguments are those of `fedlib.kernels.histograms.move_and_sum`, but for ``words``, the bits
    of the packed histograms, which are 0 before, and ``pairs``, which get their integers and must
    have room for one more. Also return whether the splits are between bins, and what `take_all`
    returns.
    """
    nodes, ended, drawn = places
    first, decisions, next_node = splits
    first_open, wanted = level
    nodes, is_possible = move_rows_by_bins(
        bins, nodes, first, decisions, next_node, cuts[0], cuts[1], False
    )
    measured = 0, np.int64(0), np.int64(0)
    if is_possible:
        slot = np.empty(nodes.shape, np.int32)
        for k in range(nodes.shape[0]):
            slot[k] = open_slots(nodes[k], ended[k], drawn, first_open, wanted)
        of_rows, n_slots = gradients.reshape(-1, 2), np.count_nonzero(wanted)
        measured = sum_slots(bins, slot.ravel(), n_slots, of_rows, cuts[0], words, pairs)
    return nodes, is_possible, measured


@kernel
def pack_pairs(pairs, shift, width, values):
    """Write the integers in ``pairs`` (n, 2) without their lowest ``shift`` bits."""
    n_safe = values.size - N_BYTES  # up to here, a whole integer may be written
    place = 0
    for j in range(pairs.shape[0]):
        for side in range(2):
            value = pairs[j, side] >> shift
            if place <= n_safe:
                write_integer(values, place, value)
            else:
                for k in range(width):
                    values[place + k] = np.uint8((value >> (8 * k)) & 255)
            place += width


@kernel
def read_word(filled, w):
    """Return the bits 64 * w to 64 * w + 63; those beyond the last byte are 0."""
    place = N_BYTES * w
    if place + N_BYTES <= filled.size:
        return np.uint64(read_integer(filled, place))
    word = np.uint64(0)
    for k in range(filled.size - place):
        word |= np.uint64(filled[place + k]) << np.uint64(8 * k)
    return word


@kernel
def read_value(values, place, width):
    """Return the integer of ``width`` bytes at a place, before the shift."""
    unused = 8 * (N_BYTES - width)
    if place + N_BYTES <= values.size:
        return (read_integer(values, place) << unused) >> unused
    value = np.int64(0)
    for k in range(width):
        value |= np.int64(values[place + k]) << (8 * k)
    return (value << unused) >> unused  # with the sign


@kernel
def count_filled(filled, start, stop):
    """Return how many of the bits from ``start`` to before ``stop`` are set."""
    n_filled = 0
    for w in range(start >> 6, (stop + 63) >> 6):
        n_filled += np.int64(count_ones(read_word(filled, w) & bits_between(w, start, stop)))
    return n_filled


@kernel
def add_packed(packed, nodes, offsets, sums):
    """Add the packed histograms of all clients to those of ``nodes`` among all ``sums``.

    The sums are an array (n_nodes, n_bins, 2). The bins of a few features are done at a time, one
    client after the other, because their sums fit into a fast cache. Each client's sums are
    measured on the way, so that every integer is read once.

    Returns
    -------
    totals : array (n_clients, n_slots, 2)
        The sums over the bins of the first feature.
    are_equal : array (n_clients,) of bool
        Whether those of every other feature are the same.
    extremes : array (n_clients, 4)
        The smallest and the largest g, and the same of h, or 0, before the shift.
    """
    n_clients, n_slots, n_bins = packed.filled.shape[0], nodes.size, sums.shape[1]
    totals = np.zeros((n_clients, n_slots, 2), np.int64)
    are_equal, extremes = np.ones(n_clients, np.bool_), np.zeros((n_clients, 4), np.int64)
    place = packed.first_byte.copy()  # of each client's next integer
    has_rows = np.empty(n_clients, np.bool_)
    for s in range(n_slots):
        of_node, first_bit = sums[nodes[s]], s * n_bins
        for c in range(n_clients):
            has_rows[c] = count_filled(packed.filled[c], first_bit, first_bit + n_bins) > 0
        f = 0
        while f < offsets.size - 1:
            features = f, last_feature(offsets, f)
            for c in range(n_clients):
                if has_rows[c]:
                    place[c], is_equal = add_client(
                        packed,
                        c,
                        features,
                        offsets,
                        first_bit,
                        place[c],
                        of_node,
                        totals[c, s],
                        extremes[c],
                    )
                    are_equal[c] &= is_equal
            f = features[1]
    return totals, are_equal, extremes


@kernel
def add_client(packed, c, features, offsets, first_bit, place, sums, totals, extremes):
    """Add what client ``c`` has packed about some features of a node; see `add_packed`.

    The node's bits begin at ``first_bit`` and the client's next integer at ``place``. Return the
    place after these, and whether all features have the same totals, which the first one sets.
    """
    filled, values, width, shift = packed.filled[c], packed.values, packed.width[c], packed.shift[c]
    least_g, most_g, least_h, most_h = extremes
    is_equal = True
    for f in range(features[0], features[1]):
        start, stop = first_bit + offsets[f], first_bit + offsets[f + 1]
        total_g, total_h = np.int64(0), np.int64(0)
        for w in range(start >> 6, (stop + 63) >> 6):
            word = read_word(filled, w) & bits_between(w, start, stop)
            while word:
                b = WORD * w - first_bit + np.int64(lowest(word))
                word &= word - ONE
                g, h = read_value(values, place, width), read_value(values, place + width, width)
                place += 2 * width
                least_g, most_g = min(least_g, g), max(most_g, g)
                least_h, most_h = min(least_h, h), max(most_h, h)
                g, h = g << shift, h << shift
                add_pair(sums, b, g, h)
                total_g += g
                total_h += h
        if f == 0:
            totals[0], totals[1] = total_g, total_h
        is_equal &= total_g == totals[0] and total_h == totals[1]
    extremes[0], extremes[1], extremes[2], extremes[3] = least_g, most_g, least_h, most_h
    return place, is_equal
