"""The best splits of a client's rows, from sums per distinct value.

Most tables have few distinct values per feature. A node's rows are then added up per value, and the
splits follow from these sums. That is faster than `fedlib.kernels.splits.propose_splits`, which
visits the rows in the order of every feature, and gives the same splits: sums are integers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.gains import score_node
from fedlib.kernels.histograms import add_rows, sort_by_slot
from fedlib.kernels.splits import (
    MIN_GAIN,
    gain_and_direction,
    halfway,
    insert_proposal,
    no_proposals,
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
def propose_from_sums(sums, columns, s, rule, proposals):
    """Add the best splits of slot ``s``, whose rows have these sums (values, 2), to `Proposals`.

    Every present row has a positive hessian, so a value without hessian is that of no row.
    """
    offsets, values = columns.offsets, columns.values
    total_g, total_h = np.int64(0), np.int64(0)
    for c in range(offsets[0], offsets[1]):
        total_g += sums[c, 0]
        total_h += sums[c, 1]
    node = score_node(total_g, total_h, rule)
    least, n_candidates = max(MIN_GAIN, np.float32(rule.gamma)), proposals.gain.shape[1]
    for f in range(offsets.size - 1):
        missing = offsets[f + 1] - 1
        missing_g, missing_h = sums[missing, 0], sums[missing, 1]
        left_g, left_h, last, seen = np.int64(0), np.int64(0), np.float32(0), False
        for c in range(np.uint64(offsets[f]), np.uint64(missing)):
            if sums[c, 1] == 0:
                continue
            if seen:
                gain, direction = gain_and_direction(
                    left_g, left_h, missing_g, missing_h, node, rule
                )
                if gain > least:
                    threshold = halfway(last, values[c])
                    insert_proposal(proposals, s, f, threshold, direction, gain)
                    if proposals.counts[s] == n_candidates:
                        least = proposals.gain[s, n_candidates - 1]
            left_g += sums[c, 0]
            left_h += sums[c, 1]
            last, seen = values[c], True


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
