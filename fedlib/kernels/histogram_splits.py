"""The best splits of nodes by histograms of gradients, in XGBoost's arithmetic.

For the units of gradients see `fedlib.kernels.splits`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.categories import BY_CATEGORY, best_category_split
from fedlib.kernels.gains import fill_gains, score_bounded_node
from fedlib.kernels.splits import MIN_GAIN, Decisions, sum_bins

BELOW_ALL = np.float32(-(2.0**127))  # no value is smaller; see fedlib.boosting.cuts.MAX_VALUE


class HistogramSplits(NamedTuple):
    """The best split of each node, by its histogram.

    ``feature`` is -1 for a node without an allowed split. Bins up to ``cut`` go left, none if it is
    -1, and rows without a value if ``missing_left``. ``sums`` and ``left_sums`` (nodes, 2) are the
    sums in the node and on the left. For a feature with categories, ``right`` (nodes, n_bytes) of
    uint8 is the set of those that go right, and ``cut`` is 0; see `fedlib.kernels.categories`.
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
