"""Histograms of gradients: which rows belong to which node, their sums per bin, and checks of sums.

For the units of gradients see `fedlib.kernels.splits`.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.categories import BY_CATEGORY

NOWHERE = np.int32(-1)  # the slot of a row that is in no open node


@kernel
def open_slots(node, ended, drawn, first, wanted):
    """Return the slot (n,) of each row in the nodes ``node`` (n,), `NOWHERE` if it has none.

    The open nodes are ``first``, first + 1, …; those that are ``wanted`` (n_open,) are numbered as
    slots. A row has no slot if it is not ``drawn`` (n,) or has ``ended`` (n,), which is then at
    least 0.
    """
    slots, slot_of_node = np.empty(node.size, np.int32), np.full(wanted.size, NOWHERE, np.int32)
    n_slots = 0
    for j in range(wanted.size):
        if wanted[j]:
            slot_of_node[j] = n_slots
            n_slots += 1
    n_open = np.uint32(wanted.size)
    for i in range(node.size):
        j = np.uint32(node[i] - first)  # large for a node before the first
        is_open = j < n_open and ended[i] < 0 and drawn[i]
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
def add_rows(bins, rows, gradients, sums):
    """Add the gradients (n, 2) of some ``rows`` to the sums (n_bins, 2) in each bin.

    ``bins`` (n, d) of an unsigned type is each value's bin among those of all features. Two rows
    are added at a time, so that one addition need not wait for the other.
    """
    d = bins.shape[1]
    for k in range(0, rows.size - 1, 2):
        i, j = rows[k], rows[k + 1]
        g, h = gradients[i, 0], gradients[i, 1]
        next_g, next_h = gradients[j, 0], gradients[j, 1]
        for f in range(d):
            b, next_b = bins[i, f], bins[j, f]
            sums[b, 0] += g
            sums[b, 1] += h
            sums[next_b, 0] += next_g
            sums[next_b, 1] += next_h
    if rows.size % 2 == 1:
        i = rows[rows.size - 1]
        for f in range(d):
            sums[bins[i, f], 0] += gradients[i, 0]
            sums[bins[i, f], 1] += gradients[i, 1]


@kernel
def add_histograms(bins, slot, gradients, sums):
    """Add the gradients (n, 2) of rows to the sums (n_slots, n_bins, 2) in each bin.

    The rows of a slot are added one after the other, because the histogram of one slot fits into
    the fastest cache.
    """
    order, start = sort_by_slot(slot, sums.shape[0])
    for s in range(sums.shape[0]):
        add_rows(bins, order[start[s] : start[s + 1]], gradients, sums[s])


@kernel
def sum_wanted(bins, n_bins, places, first, wanted, gradients):
    """Return the histograms of the wanted nodes, summed over the trees of all outputs.

    ``places`` are the nodes (outputs, n) of the rows, where they ended (outputs, n), and which are
    drawn (n,); see `open_slots`. ``gradients`` are those of each output, (outputs, n, 2). All in
    one kernel, because each call waits for the global interpreter lock afterwards.
    """
    nodes, ended, drawn = places
    n_slots = wanted.sum()
    sums = np.zeros((n_slots, n_bins, 2), np.int64)
    for k in range(nodes.shape[0]):
        slot = open_slots(nodes[k], ended[k], drawn, first, wanted)
        add_histograms(bins, slot, gradients[k], sums)
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
def extremes(pairs):
    """Return the smallest and the largest g and h of pairs g, h, g, h, … (2n,), or 0."""
    least_g, most_g, least_h, most_h = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(pairs.size // 2):
        g, h = pairs[2 * i], pairs[2 * i + 1]
        least_g, most_g = min(least_g, g), max(most_g, g)
        least_h, most_h = min(least_h, h), max(most_h, h)
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
def left_children(feature, next_node):
    """Return the left child (n,) of each of n nodes, -1 for a leaf; the first is ``next_node``."""
    left = np.empty(feature.size, np.int32)
    for j in range(feature.size):
        left[j] = next_node if feature[j] >= 0 else -1
        next_node += 2 * (feature[j] >= 0)
    return left


@kernel
def cut_ranks(decisions, offsets, values):
    """Return the last rank (n,) that goes left at each split; see `cut_bins`.

    ``values`` are those of `fedlib.kernels.proposals.RankedColumns`, so any threshold will do.
    """
    cuts = np.full(decisions.feature.size, -1, np.int64)
    for j in range(cuts.size):
        f, threshold = decisions.feature[j], decisions.threshold[j]
        if f >= 0:
            start = offsets[f]
            cuts[j] = start - 1 + np.searchsorted(values[start : offsets[f + 1] - 1], threshold)
            if threshold == BY_CATEGORY:
                return cuts, False
    return cuts, True


@kernel
def move_rows_by_bins(bins, nodes, first, decisions, next_node, offsets, bounds, are_ranks):
    """Return the nodes (outputs, n) of rows after splits, found by the rows' bins or ranks.

    The nodes ``first``, first + 1, … are split; ``next_node`` is the first child. ``bounds`` are
    the thresholds between the bins of all features, or their values. Also return whether the splits
    are between bins; otherwise the result is useless. A table of bins is smaller than the rows, and
    sums need the same bins next, so they come from the main memory only once.
    """
    feature, missing_left = decisions.feature, decisions.missing_left
    if are_ranks:
        cuts, is_possible = cut_ranks(decisions, offsets, bounds)
    else:
        cuts, is_possible = cut_bins(decisions, offsets, bounds)
    moved = np.empty_like(nodes)
    if not is_possible:
        return moved, False
    left = left_children(feature, next_node)
    missing = np.array([offsets[max(f, 0) + 1] - 1 for f in feature])
    n_decided = np.uint32(feature.size)
    for k in range(nodes.shape[0]):
        for i in range(nodes.shape[1]):
            moved[k, i] = nodes[k, i]
            j = np.uint32(nodes[k, i] - first)  # large for a node before the first
            if j < n_decided and feature[j] >= 0:
                # The side is hard to predict, so it is computed without a branch.
                b = np.int64(bins[i, np.uint32(feature[j])])
                is_missing_left = (b == missing[j]) & missing_left[j]
                moved[k, i] = left[j] + ((b > cuts[j]) & (not is_missing_left))
    return moved, True


@kernel
def complete_siblings(reported, wanted, parents):
    """Return the sums (n_nodes, 2) in all nodes, from those (n_wanted, 2) in the wanted ones.

    If there are ``parents`` (n_nodes / 2, 2), one of two siblings is wanted, and the other is the
    difference to their parent; otherwise the sums in nodes that are not wanted are 0.
    """
    sums, k = np.zeros((wanted.size, 2), np.int64), 0
    for j in range(wanted.size):
        if wanted[j]:
            sums[j] = reported[k]
            k += 1
    for p in range(parents.shape[0]):
        known = 2 * p if wanted[2 * p] else 2 * p + 1
        sums[4 * p + 1 - known] = parents[p] - sums[known]
    return sums
