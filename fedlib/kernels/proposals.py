"""The best splits of a client's rows, from sums per distinct value.

Most tables have few distinct values per feature. A node's rows are then added up per value, and the
splits follow from these sums. That is faster than `fedlib.kernels.splits.propose_splits`, which
visits the rows in the order of every feature, and gives the same splits: sums are integers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.gains import fill_gains, score_node
from fedlib.kernels.histograms import add_rows, sort_by_slot
from fedlib.kernels.splits import (
    LEFT,
    MIN_GAIN,
    NEITHER,
    RIGHT,
    halfway,
    insert_proposal,
    no_proposals,
    sum_bins,
)


class RankedColumns(NamedTuple):
    """The distinct values of d features, and the rank of the value of each of n rows.

    ``ranks`` (n, d) of an unsigned type counts the values of all features. Those of feature f are
    ``offsets[f]`` to ``offsets[f + 1]``, in ascending order of ``values``; the last one stands for
    missing values.
    """

    ranks: NDArray[np.uint16 | np.uint32]
    offsets: NDArray[np.int64]
    values: NDArray[np.float32]


@kernel
def count_values(columns):
    """Return the number (d,) of distinct values of each feature of `SortedColumns`."""
    d = columns.order.shape[0]
    counts = np.zeros(d, np.int64)
    for f in range(d):
        for i in range(columns.n_present[f]):
            counts[f] += i == 0 or columns.values[f, i] != columns.values[f, i - 1]
    return counts


@kernel
def rank_values(columns, offsets, ranks):
    """Fill in the ``ranks`` (n, d) of `RankedColumns`; return their ``values``."""
    values = np.zeros(offsets[-1], np.float32)
    for f in range(columns.order.shape[0]):
        c = offsets[f] - 1
        for i in range(columns.order.shape[1]):
            r = columns.order[f, i]
            if i >= columns.n_present[f]:
                ranks[r, f] = offsets[f + 1] - 1
                continue
            value = columns.values[f, i]
            if i == 0 or value != columns.values[f, i - 1]:
                c += 1
                values[c] = value
            ranks[r, f] = c
    return values


@kernel
def sum_left(sums, columns, place, left):
    """Fill in the values that a slot's rows have, and the sums left of each.

    A slot's rows have the ``sums`` (values, 2). ``place`` (values + 1,) gets the indices of their
    values, feature by feature, and ``left`` (2, values + 1) the sums of the feature's lower values.
    Return the count of those before each feature, and in all, as an array (d + 1,).

    Every present row has a positive hessian, so a value without hessian is that of no row.
    """
    offsets = columns.offsets
    start = np.zeros(offsets.size, np.int64)
    n = 0
    for f in range(offsets.size - 1):
        g, h = np.int64(0), np.int64(0)
        for c in range(np.uint64(offsets[f]), np.uint64(offsets[f + 1] - 1)):
            # Whether a value is present is hard to predict: the next one overwrites an absent one.
            place[n], left[0, n], left[1, n] = c, g, h
            g += sums[c, 0]
            h += sums[c, 1]
            n += sums[c, 1] != 0
        start[f + 1] = n
    return start


@kernel
def propose_from_sums(sums, columns, s, rule, proposals):
    """Add the best splits of slot ``s``, whose rows have these sums (values, 2), to `Proposals`."""
    offsets, values = columns.offsets, columns.values
    place, left = np.empty(values.size + 1, np.int64), np.empty((2, values.size + 1), np.int64)
    start = sum_left(sums, columns, place, left)
    total = sum_bins(sums, offsets[0], offsets[1])
    node = score_node(total[0], total[1], rule)
    gains = np.empty((2, start[-1]), np.float32)
    fill_gains(left[0, : start[-1]], left[1, : start[-1]], node, rule, 0, gains[0])
    least, n_candidates = max(MIN_GAIN, np.float32(rule.gamma)), proposals.gain.shape[1]
    for f in range(offsets.size - 1):
        missing_g, missing_h = sums[offsets[f + 1] - 1]
        has_gaps = missing_g != 0 or missing_h != 0
        if has_gaps:
            of_feature = slice(start[f], start[f + 1])
            left[0, of_feature] += missing_g
            left[1, of_feature] += missing_h
            fill_gains(
                left[0, of_feature], left[1, of_feature], node, rule, 0, gains[1, of_feature]
            )
        for i in range(start[f] + 1, start[f + 1]):
            gain, direction = gains[0, i], RIGHT if has_gaps else NEITHER
            if has_gaps and gains[1, i] > gain:
                gain, direction = gains[1, i], LEFT
            if gain > least:
                threshold = halfway(values[place[i - 1]], values[place[i]])
                insert_proposal(proposals, s, f, threshold, direction, gain)
                if proposals.counts[s] == n_candidates:
                    least = proposals.gain[s, n_candidates - 1]


@kernel
def propose_by_values(columns, rows, n_slots, n_candidates, rule):
    """Return the best `Proposals` of each slot, as `fedlib.kernels.splits.propose_splits`.

    ``columns`` are `RankedColumns`. Every row with a slot must have a positive hessian.
    """
    proposals = no_proposals(n_slots, n_candidates)
    order, start = sort_by_slot(rows.slot, n_slots)
    sums = np.empty((columns.values.size, 2), np.int64)  # of one slot; it stays in a cache
    for s in range(n_slots):
        sums[:] = 0
        add_rows(columns.ranks, order[start[s] : start[s + 1]], rows.gradients, sums)
        propose_from_sums(sums, columns, s, rule, proposals)
    return proposals


@kernel
def weigh_slots(slot, weights, n_slots):
    """Return the sums (n_slots,) of the rows' weights."""
    sums = np.zeros(n_slots)
    for i in range(slot.size):
        if slot[i] >= 0:
            sums[slot[i]] += weights[i]
    return sums


@kernel
def have_hessians(rows):
    """Return whether every row with a slot has a positive hessian."""
    have = True
    for i in range(rows.slot.size):
        have &= rows.slot[i] < 0 or rows.gradients[i, 1] > 0
    return have
