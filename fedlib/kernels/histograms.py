"""Histograms of gradients: which rows belong to which node, their sums per bin, and checks of sums.

For the units of gradients see `fedlib.kernels.splits`.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.categories import BY_CATEGORY

NOWHERE = np.int32(-1)  # the slot of a row that is in no open node


@kernel
def open_slots(node, ended, drawn, first, slot_of_node):
    """Return the slot (n,) of each row in the nodes ``node`` (n,), `NOWHERE` if it has none.

    The open nodes are ``first``, first + 1, …; ``slot_of_node`` has the slot of each. A row has no
    slot if it is not ``drawn`` (n,) or has ``ended`` (n,), which is then at least 0.
    """
    slots = np.empty(node.size, np.int32)
    for i in range(node.size):
        j = node[i] - first
        is_open = 0 <= j < slot_of_node.size and ended[i] < 0 and drawn[i]
        slots[i] = slot_of_node[j] if is_open else NOWHERE
    return slots


@kernel
def sort_by_slot(slot, n_slots):
    """Return the rows in the order of their slots, and the first one of each slot in this order.

    Rows without a slot come first. ``start`` has n_slots + 1 entries, the last one n.
    """
    start = np.zeros(n_slots + 2, np.int64)
    for i in range(slot.size):
        start[slot[i] + 2] += 1
    for s in range(n_slots + 1):
        start[s + 1] += start[s]
    order = np.empty(slot.size, np.uint32)
    for i in range(slot.size):
        s = slot[i] + 1
        order[start[s]] = i
        start[s] += 1
    return order, start[: n_slots + 1]


@kernel
def sum_histograms(bins, n_bins, rows, n_slots):
    """Return the sums (n_slots, n_bins, 2) of the gradients in each bin.

    ``bins`` (n, d) of an unsigned type is each value's bin among those of all features. The rows of
    a slot are added one after the other, because the histogram of one slot fits into the fastest
    cache, and two at a time, so that one addition need not wait for the other.
    """
    d = bins.shape[1]
    order, start = sort_by_slot(rows.slot, n_slots)
    sums = np.zeros((n_slots, n_bins, 2), np.int64)
    for s in range(n_slots):
        of_slot = sums[s]
        for k in range(start[s], start[s + 1] - 1, 2):
            i, j = order[k], order[k + 1]
            g, h = rows.gradients[i, 0], rows.gradients[i, 1]
            next_g, next_h = rows.gradients[j, 0], rows.gradients[j, 1]
            for f in range(d):
                b, next_b = bins[i, f], bins[j, f]
                of_slot[b, 0] += g
                of_slot[b, 1] += h
                of_slot[next_b, 0] += next_g
                of_slot[next_b, 1] += next_h
        if (start[s + 1] - start[s]) % 2 == 1:
            i = order[start[s + 1] - 1]
            for f in range(d):
                of_slot[bins[i, f], 0] += rows.gradients[i, 0]
                of_slot[bins[i, f], 1] += rows.gradients[i, 1]
    return sums


@kernel
def largest_absolute_sum(gradients):
    """Return the larger one of the sums of absolute gradients (n, 2) and of hessians, as a float.

    As integers the sums could overflow.
    """
    g, h = 0.0, 0.0
    for i in range(gradients.shape[0]):
        g += abs(np.float64(gradients[i, 0]))
        h += abs(np.float64(gradients[i, 1]))
    return max(g, h)


@kernel
def sum_features(histograms, offsets):
    """Return the sums (n_slots, 2) of histograms over the bins of the first feature.

    Also return whether those of every other feature are the same. The bins of feature f are
    ``offsets[f]`` to ``offsets[f + 1]``.
    """
    totals, are_equal = np.zeros((histograms.shape[0], 2), np.int64), True
    for s in range(histograms.shape[0]):
        histogram = histograms[s]
        for f in range(offsets.size - 1):
            g, h = np.int64(0), np.int64(0)
            for b in range(np.uint64(offsets[f]), np.uint64(offsets[f + 1])):
                g += histogram[b, 0]
                h += histogram[b, 1]
            if f == 0:
                totals[s, 0], totals[s, 1] = g, h
            are_equal &= g == totals[s, 0] and h == totals[s, 1]
    return totals, are_equal


@kernel
def extremes(sums):
    """Return the smallest and the largest entry of each column of ``sums`` (n, 2), or 0."""
    least_g, most_g, least_h, most_h = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(sums.shape[0]):
        least_g, most_g = min(least_g, sums[i, 0]), max(most_g, sums[i, 0])
        least_h, most_h = min(least_h, sums[i, 1]), max(most_h, sums[i, 1])
    return least_g, most_g, least_h, most_h


@kernel
def cut_bins(decisions, offsets, thresholds):
    """Return the last bin (n,) that goes left at each of n splits, among those of all features.

    Also return whether there is such a bin for every split: not if it is by a set of categories, or
    if its threshold is not one between two bins of its feature. For bins see
    `fedlib.boosting.cuts.Cuts`.
    """
    cuts = np.full(decisions.feature.size, -1, np.int64)
    for j in range(cuts.size):
        f, threshold = decisions.feature[j], decisions.threshold[j]
        if f < 0:
            continue
        start, last = offsets[f], max(offsets[f], offsets[f + 1] - 2)
        cuts[j] = start + np.searchsorted(thresholds[start:last], threshold)
        if cuts[j] == last or thresholds[cuts[j]] != threshold or threshold == BY_CATEGORY:
            return cuts, False
    return cuts, True


@kernel
def move_rows_by_bin(bins, node, first, decisions, child, cuts, offsets):
    """Return the nodes (n,) of rows, as `fedlib.kernels.splits.move_rows`, by the rows' bins.

    ``cuts`` are those of `cut_bins`. A table of bins is smaller than the rows, and histograms need
    the same bins next, so that they come from the main memory only once.
    """
    moved, n_decided = np.empty_like(node), np.uint32(decisions.feature.size)
    missing = np.array([offsets[max(f, 0) + 1] - 1 for f in decisions.feature])
    for i in range(node.size):
        moved[i] = node[i]
        j = np.uint32(node[i] - first)  # large for a node before the first
        if j < n_decided and decisions.feature[j] >= 0:
            b = np.int64(bins[i, np.uint32(decisions.feature[j])])
            is_missing_left = (b == missing[j]) & decisions.missing_left[j]
            moved[i] = child[j] + ((b > cuts[j]) & (not is_missing_left))
    return moved
