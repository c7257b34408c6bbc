"""Histograms of gradients: which rows belong to which node, their sums per bin, and checks of sums.

For the units of gradients see `fedlib.kernels.splits`.

The best splits of nodes by histograms of gradients, in XGBoost's arithmetic.

For the units of gradients see `fedlib.kernels.splits`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.buckets import BY_CATEGORY, best_category_split
from fedlib.kernels.gains import fill_gains, score_bounded_node
from fedlib.kernels.instructions import add_pair, prefetch_row
from fedlib.kernels.splits import MIN_GAIN, Decisions, sum_bins

BELOW_ALL = np.float32(-(2.0**127))  # no value is smaller; see fedlib.boosting.cuts.MAX_VALUE


class HistogramSplits(NamedTuple):
    """The best split of each node, by its histogram.

    ``feature`` is -1 for a node without an allowed split. Bins up to ``cut`` go left, none if it is
    -1, and rows without a value if ``missing_left``. ``sums`` and ``left_sums`` (nodes, 2) are the
    sums in the node and on the left. For a feature with categories, ``right`` (nodes, n_bytes) of
    uint8 is the set of those that go right, and ``cut`` is 0; see `fedlib.kernels.buckets`.
    """

    feature: NDArray[np.int32]
    cut: NDArray[np.int64]
    missing_left: NDArray[np.bool_]
    gain: NDArray[np.float32]
    sums: NDArray[np.int64]
    left_sums: NDArray[np.int64]
    right: NDArray[np.uint8]


class NodeCuts(NamedTuple):
    """All cuts of a node: the sums ``left_g`` and ``left_h`` on the left, and the ``gains``.

    They are arrays (n_bins,). The entry of a bin belongs to the cut before it, and the entry of a
    feature's last bin, that of missing values, to the cut after all others.
    """

    left_g: NDArray[np.float64]
    left_h: NDArray[np.float64]
    gains: NDArray[np.float32]


@kernel
def sum_left(histogram, start, missing, g, h, cuts):
    """Fill in the sums on the left of a feature's cuts, with ``g`` and ``h`` added.

    They are added as integers. The feature's bins are ``start`` to ``missing``.
    """
    left_g, left_h = cuts.left_g, cuts.left_h
    for b in range(start, missing):
        left_g[b], left_h[b] = g, h
        g += histogram[b, 0]
        h += histogram[b, 1]
    left_g[missing], left_h[missing] = g, h


@kernel
def fill_cuts(histogram, offsets, node, rule, monotone, cuts):
    """Fill in the `NodeCuts` of a node whose missing values go right.

    All features are done at once where they can be, because most have few bins.
    """
    n_features, nothing = offsets.size - 1, np.int64(0)
    for f in range(n_features):
        sum_left(histogram, offsets[f], offsets[f + 1] - 1, nothing, nothing, cuts)
    if not rule.constrained:
        fill_gains(cuts.left_g, cuts.left_h, node, rule, 0, cuts.gains)
        return
    for f in range(n_features):
        bins = slice(offsets[f], offsets[f + 1])
        fill_gains(cuts.left_g[bins], cuts.left_h[bins], node, rule, monotone[f], cuts.gains[bins])


@kernel
def best_cut(histogram, start, missing, node, rule, monotone, cuts):
    """Return the best split of a node by one feature: its gain, its cut, and the missing side.

    The feature's bins are ``start`` to ``missing``; the last one contains its missing values. The
    gain is 0 if no cut is allowed. A cut is the number of the last bin on its left. The cut -1 has
    only missing values on its left. Ties go to the lower cut when missing values go right, then to
    the higher cut when they go left. `fill_cuts` has filled in ``cuts``, which change here.
    """
    gain, cut, missing_left = np.float32(0), -1, False
    for b in range(start + 1, missing + 1):
        if cuts.gains[b] > gain:
            gain, cut = cuts.gains[b], b - 1 - start
    g, h = histogram[missing, 0], histogram[missing, 1]
    if g != 0 or h != 0:
        bins = slice(start, missing)  # the cut after all others leaves nothing on the right
        sum_left(histogram, start, missing, g, h, cuts)
        fill_gains(cuts.left_g[bins], cuts.left_h[bins], node, rule, monotone, cuts.gains[bins])
        for b in range(missing - 1, start - 1, -1):
            if cuts.gains[b] > gain:
                gain, cut, missing_left = cuts.gains[b], b - 1 - start, True
    return gain, cut, missing_left


@kernel
def best_splits(histograms, offsets, rule, limits):
    """Return the `HistogramSplits` of nodes with these histograms (nodes, n_bins, 2).

    The last bin of each feature contains its missing values; ``limits`` are `Limits`. Ties go to
    the lower feature, then as in `best_cut`.
    """
    n_nodes, d = histograms.shape[0], offsets.size - 1
    categories = limits.categories
    splits = HistogramSplits(
        np.full(n_nodes, -1, np.int32),
        np.zeros(n_nodes, np.int64),
        np.zeros(n_nodes, np.bool_),
        np.zeros(n_nodes, np.float32),
        np.zeros((n_nodes, 2), np.int64),
        np.zeros((n_nodes, 2), np.int64),
        np.zeros((n_nodes, categories.n_bytes), np.uint8),
    )
    n = histograms.shape[1]
    cuts = NodeCuts(np.empty(n), np.empty(n), np.empty(n, np.float32))
    for s in range(n_nodes):
        histogram = histograms[s]
        total = sum_bins(histogram, offsets[0], offsets[1])
        splits.sums[s, 0], splits.sums[s, 1] = total
        node = score_bounded_node(total[0], total[1], limits.bounds[s], rule)
        best, feature, cut, missing_left = np.float32(0), -1, -1, False
        right = np.empty(0, np.int64)
        fill_cuts(histogram, offsets, node, rule, limits.monotone, cuts)
        for f in range(d):
            if not limits.allowed[s, f]:
                continue
            start, missing = offsets[f], offsets[f + 1] - 1
            if categories.is_category[f]:
                of_set = best_category_split(
                    histogram, start, missing, total, node, rule, categories
                )
                if of_set[0] > best:
                    best, right, missing_left = of_set
                    feature, cut = f, 0
                continue
            monotone = limits.monotone[f]
            found = best_cut(histogram, start, missing, node, rule, monotone, cuts)
            if found[0] > best:
                best, cut, missing_left = found
                feature = f
        if best <= MIN_GAIN or best < rule.gamma:
            continue
        splits.feature[s] = feature
        splits.cut[s] = cut
        splits.missing_left[s] = missing_left
        splits.gain[s] = best
        start, missing = offsets[feature], offsets[feature + 1] - 1
        if categories.is_category[feature]:
            left_g, left_h = sum_bins(histogram, start, missing)
            for c in right:
                left_g -= histogram[start + c, 0]
                left_h -= histogram[start + c, 1]
                splits.right[s, c >> 3] |= np.uint8(1 << (c & 7))
        else:
            left_g, left_h = sum_bins(histogram, start, start + cut + 1)
        splits.left_sums[s, 0] = left_g + (histogram[missing, 0] if missing_left else 0)
        splits.left_sums[s, 1] = left_h + (histogram[missing, 1] if missing_left else 0)
    return splits


@kernel
def decide(splits, offsets, thresholds, is_category):
    """Return the `Decisions` that make these `HistogramSplits`, with zeros for leaves.

    The cut -1 is below all values. ``offsets`` and ``thresholds`` are those of the bins, and
    ``is_category`` (d,) of bool says which features have categories.
    """
    n = splits.feature.size
    threshold, missing_left = np.zeros(n, np.float32), np.zeros(n, np.bool_)
    right = np.zeros_like(splits.right)
    for s in range(n):
        f, cut = splits.feature[s], splits.cut[s]
        if f < 0:
            continue
        missing_left[s], right[s] = splits.missing_left[s], splits.right[s]
        if is_category[f]:
            threshold[s] = BY_CATEGORY
        else:
            threshold[s] = thresholds[offsets[f] + cut] if cut >= 0 else BELOW_ALL
    return Decisions(splits.feature.copy(), threshold, missing_left, right)


@kernel
def children_sums(splits):
    """Return the sums (2 * n_split, 2) of the children of nodes with these splits, in pairs.

    Also return which nodes are split (n_split,), and which are leaves.
    """
    split, leaf = np.flatnonzero(splits.feature >= 0), np.flatnonzero(splits.feature < 0)
    sides = np.empty((2 * split.size, 2), np.int64)
    for i in range(split.size):
        for k in range(2):
            sides[2 * i, k] = splits.left_sums[split[i], k]
            sides[2 * i + 1, k] = splits.sums[split[i], k] - splits.left_sums[split[i], k]
    return sides, split, leaf


NOWHERE = np.int32(-1)  # the slot of a row that is in no open node
LARGEST = np.finfo(np.float32).max
AHEAD = 8  # rows between the one whose bins are loaded and the one that is added


@kernel
def find_bins(X, offsets, thresholds):
    """Return each value's bin (n, d) of uint16 among those of its feature; see `cut_bins`.

    A binary search without branches, for a block of rows at a time: no step of a row waits for that
    of another one.
    """
    bins, block = np.empty(X.shape, np.uint16), 256
    values, low = np.empty(block, np.float32), np.empty(block, np.int64)
    for first in range(0, X.shape[0], block):
        n = min(block, X.shape[0] - first)
        for f in range(X.shape[1]):
            start, missing = offsets[f], offsets[f + 1] - 1
            values[:n], low[:n] = X[first : first + n, f], start
            width = max(0, missing - 1 - start)
            while width > 0:
                half = (width + 1) // 2
                for i in range(n):
                    low[i] += half * (thresholds[low[i] + half - 1] <= values[i])
                width -= half
            for i in range(n):
                bins[first + i, f] = (low[i] if values[i] == values[i] else missing) - start
    return bins


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
def rows_with_slot(slot):
    """Return the rows that have a slot, and the slot of each."""
    rows, slots, n = np.empty(slot.size, np.uint32), np.empty(slot.size, np.uint32), 0
    for i in range(slot.size):
        rows[n], slots[n] = i, slot[i]
        n += slot[i] >= 0  # without a branch: it is hard to predict
    return rows[:n], slots[:n]


@kernel
def sort_by_slot(slot, n_slots):
    """Return the rows that have a slot, sorted by it, and the place of the first one of each slot.

    The places have n_slots + 1 entries, the last one the count of these rows. They are counted and
    placed from both ends at once: neighbours often have the same slot, and a change of its counter
    would have to wait for the one before.
    """
    rows, slots = rows_with_slot(slot)
    n, half, one = rows.size, rows.size // 2, np.uint32(1)
    start = np.zeros(n_slots + 1, np.int64)
    if n_slots == 1:
        start[1] = n
        return rows, start
    counts, others = np.zeros(n_slots, np.uint32), np.zeros(n_slots, np.uint32)
    for i in range(half):
        counts[slots[i]] += one
        others[slots[n - 1 - i]] += one
    if n % 2 == 1:
        counts[slots[half]] += one
    start[1:] = np.cumsum(counts + others)
    order = np.empty(n, np.uint32)
    front, back = start[:-1].astype(np.uint32), start[1:].astype(np.uint32)
    for i in range(half):
        j = n - 1 - i
        s, t = slots[i], slots[j]
        order[front[s]] = rows[i]
        front[s] += one
        back[t] -= one
        order[back[t]] = rows[j]
    if n % 2 == 1:
        order[front[slots[half]]] = rows[half]
    return order, start


@kernel
def add_rows(bins, rows, gradients, sums):
    """Add the gradients (n, 2) of some ``rows`` to the sums (n_bins, 2) in each bin.

    ``bins`` (n, d) of an unsigned type is each value's bin among those of all features.
    """
    last = rows.size - 1
    for k in range(rows.size):
        prefetch_row(bins, np.int64(rows[min(k + AHEAD, last)]))
        i = rows[k]
        g, h = gradients[i, 0], gradients[i, 1]
        for f in range(bins.shape[1]):
            add_pair(sums, bins[i, f], g, h)


@kernel
def add_histograms(bins, slot, gradients, sums, from_zero):
    """Add the gradients (n, 2) of rows to the sums (n_slots, n_bins, 2) in each bin.

    With ``from_zero``, the sums are set to 0 first. The rows of a slot are added one after the
    other, because the histogram of one slot fits into the fastest cache.
    """
    order, start = sort_by_slot(slot, sums.shape[0])
    for s in range(sums.shape[0]):
        if from_zero:
            sums[s] = 0
        add_rows(bins, order[start[s] : start[s + 1]], gradients, sums[s])


@kernel
def absolute_sums(sums):
    """Return the least h of gradients or sums (n, 2), or 0, and the sums of absolute g and h.

    All are floats, because integers could overflow.
    """
    least_h, g, h = 0.0, 0.0, 0.0
    for i in range(sums.shape[0]):
        least_h = min(least_h, np.float64(sums[i, 1]))
        g += abs(np.float64(sums[i, 0]))
        h += abs(np.float64(sums[i, 1]))
    return least_h, g, h


@kernel
def add_dense(reported, nodes, offsets, sums):
    """Add a client's histograms (n_slots, n_bins, 2) to those of ``nodes`` among all ``sums``.

    The bins of feature f are ``offsets[f]`` to ``offsets[f + 1]``.

    Returns
    -------
    totals : array (n_slots, 2)
        The sums over the bins of the first feature.
    are_equal : bool
        Whether those of every other feature are the same.
    extremes : tuple of four int
        The smallest and the largest g, and the same of h, or 0.
    """
    totals, are_equal = np.zeros((nodes.size, 2), np.int64), True
    least_g, most_g, least_h, most_h = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for s in range(nodes.size):
        histogram, of_node = reported[s], sums[nodes[s]]
        for f in range(offsets.size - 1):
            total_g, total_h = np.int64(0), np.int64(0)
            for b in range(np.uint64(offsets[f]), np.uint64(offsets[f + 1])):
                g, h = histogram[b, 0], histogram[b, 1]
                of_node[b, 0] += g
                of_node[b, 1] += h
                total_g += g
                total_h += h
                least_g, most_g = min(least_g, g), max(most_g, g)
                least_h, most_h = min(least_h, h), max(most_h, h)
            if f == 0:
                totals[s, 0], totals[s, 1] = total_g, total_h
            are_equal &= total_g == totals[s, 0] and total_h == totals[s, 1]
    return totals, are_equal, (least_g, most_g, least_h, most_h)


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

    Also return whether there is such a bin for every split: not if it is by a set of categories, if
    its threshold is not one between two bins of its feature, or if there is no such feature. For
    bins see `fedlib.boosting.cuts.Cuts`.
    """
    cuts = np.full(decisions.feature.size, -1, np.int64)
    for j in range(cuts.size):
        f, threshold = decisions.feature[j], decisions.threshold[j]
        if f < 0:
            continue
        if f >= offsets.size - 1:
            return cuts, False
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
def move_and_sum(bins, cuts, places, splits, level, gradients, sums):
    """Return the nodes (outputs, n) of rows after splits; write the histograms of wanted nodes.

    ``cuts`` are the offsets and thresholds of bins. ``places`` are the nodes (outputs, n) before,
    where rows ended (outputs, n), and which are drawn (n,); see `open_slots`. ``splits`` are the
    first node that is split, the decisions and the first child, ``level`` the first open node and
    which ones are wanted. ``gradients`` are those of each output, (outputs, n, 2); ``sums``
    (n_wanted, n_bins, 2) become those over all outputs. numpy has to make this array: it asks the
    system for large pages, which numba does not. Also return whether the splits are between bins,
    as `move_rows_by_bins`; if not, nothing is written.

    All in one kernel, because each call waits for the global interpreter lock afterwards.
    """
    nodes, ended, drawn = places
    first, decisions, next_node = splits
    first_open, wanted = level
    nodes, is_possible = move_rows_by_bins(
        bins, nodes, first, decisions, next_node, cuts[0], cuts[1], False
    )
    for k in range(nodes.shape[0] if is_possible else 0):
        slot = open_slots(nodes[k], ended[k], drawn, first_open, wanted)
        add_histograms(bins, slot, gradients[k], sums, k == 0)
    return nodes, is_possible


@kernel
def add_values(margins, nodes, values):
    """Return margins (n, outputs) plus the values of the rows' nodes (outputs, n), in float32.

    A sum that is too large for float32 becomes the largest number, as in
    `fedlib.boosting.row_client.finite`.
    """
    added = np.empty_like(margins)
    for k in range(nodes.shape[0]):
        for i in range(nodes.shape[1]):
            value = margins[i, k] + values[nodes[k, i]]
            added[i, k] = min(max(value, -LARGEST), LARGEST)
    return added


@kernel
def subtract_siblings(sums, wanted, sums_before, parents):
    """Write the ``sums`` (n_nodes, k) of nodes that are not wanted, of which each has a sibling.

    They are the difference between the sums in the parent, ``sums_before[parents[p]]`` for pair p,
    and those in the sibling.
    """
    for p in range(parents.size):
        known = 2 * p if wanted[2 * p] else 2 * p + 1
        before = sums_before[parents[p]]
        for k in range(sums.shape[1]):
            sums[4 * p + 1 - known, k] = before[k] - sums[known, k]
