"""Histograms, moves of rows and checks of sums, compared with numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlib.boosting.cuts import bounded_cuts
from fedlib.kernels import histograms as kernels
from fedlib.kernels.buckets import BY_CATEGORY
from fedlib.kernels.splits import Decisions, move_rows

CUTS = bounded_cuts(np.array([[-2.0] * 3, [2.0] * 3]), 5)


def random_rows(rng, n):
    """Return rows with gaps, some of them at the bounds of bins."""
    X = np.round(rng.normal(size=(n, 3)) * 5) / 5
    X[rng.random(X.shape) < 0.2] = np.nan
    return X.astype(np.float32)


def random_splits(rng, first, n_nodes):
    """Return splits between bins, leaves among them, and the children."""
    feature = rng.integers(-1, 3, n_nodes).astype(np.int32)
    threshold = np.array([rng.choice(CUTS.inner(max(f, 0))) for f in feature], np.float32)
    sides = rng.random(n_nodes) < 0.5
    decisions = Decisions(feature, threshold, sides, np.zeros((n_nodes, 0), np.uint8))
    child = first + n_nodes + 2 * (np.cumsum(feature >= 0) - 1)
    return decisions, np.where(feature < 0, -1, child).astype(np.int32)


@given(st.integers(0, 40), st.integers(0, 2**32))
def test_moves_by_bins_are_those_by_values(n, seed):
    rng = np.random.default_rng(seed)
    X, first = random_rows(rng, n), int(rng.integers(0, 3))
    node = rng.integers(0, first + 6, n).astype(np.int32)
    decisions, child = random_splits(rng, first, 4)
    bins = (CUTS.bins(X) + CUTS.offsets[:-1]).astype(np.uint16)
    bounds = CUTS.offsets, CUTS.thresholds
    nodes, is_possible = kernels.move_rows_by_bins(
        bins, np.stack([node, node[::-1]]), first, decisions, first + 4, *bounds, False
    )
    moved = nodes[0]
    assert is_possible
    np.testing.assert_array_equal(moved, move_rows(X, node, first, decisions, child))
    np.testing.assert_array_equal(nodes[1], move_rows(X, node[::-1], first, decisions, child))
    for i in range(n):
        j = node[i] - first
        if not 0 <= j < 4 or decisions.feature[j] < 0:
            assert moved[i] == node[i]
            continue
        x = X[i, decisions.feature[j]]
        is_left = decisions.missing_left[j] if np.isnan(x) else x < decisions.threshold[j]
        assert moved[i] == child[j] + (not is_left)


@given(st.integers(0, 600), st.integers(0, 2**32))
def test_bins_are_those_of_a_search(n, seed):
    """Also for a feature without a threshold between bins, and for values at the bounds."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 12, 3)
    offsets = np.append(0, np.cumsum(sizes))
    thresholds = np.concatenate([np.sort(rng.integers(-5, 6, k)) for k in sizes]) / np.float32(2)
    X = (rng.integers(-12, 13, (n, 3)) / 4).astype(np.float32)
    X[rng.random(X.shape) < 0.2] = np.nan
    bins = kernels.find_bins(X, offsets, thresholds.astype(np.float32))
    for f, k in enumerate(sizes):
        inner = thresholds[offsets[f] : offsets[f] + k - 2]
        expected = np.searchsorted(inner, X[:, f], side="right")
        expected[np.isnan(X[:, f])] = k - 1
        np.testing.assert_array_equal(bins[:, f], expected)


def test_values_of_the_trees_of_two_outputs():
    margins, nodes = np.zeros((2, 2), np.float32), np.array([[0, 1], [1, 0]], np.int32)
    added = kernels.add_values(margins, nodes, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(added, [[1, 2], [2, 1]])


def test_values_too_large_for_float32():
    largest = np.finfo(np.float32).max
    margins = np.array([[largest], [-largest]], np.float32)
    values = np.array([largest, -largest], np.float32)
    added = kernels.add_values(margins, np.array([[0, 1]], np.int32), values)
    np.testing.assert_array_equal(added, margins)


def test_splits_without_a_bin_that_ends_them():
    """Rows may lie above the last bound, so a split there is not one between bins."""
    decisions, _ = random_splits(np.random.default_rng(0), 0, 1)
    decisions.feature[0] = 1
    last = CUTS.thresholds[CUTS.offsets[2] - 1]
    for threshold in (np.nextafter(decisions.threshold[0], np.float32(9)), last, BY_CATEGORY):
        decisions.threshold[0] = threshold
        assert not kernels.cut_bins(decisions, CUTS.offsets, CUTS.thresholds)[1]
    decisions.feature[0] = len(CUTS.offsets) - 1  # one more than there are
    assert not kernels.cut_bins(decisions, CUTS.offsets, CUTS.thresholds)[1]


@given(st.integers(0, 30), st.integers(1, 4), st.integers(0, 2**32))
def test_histograms_of_open_nodes(n, n_nodes, seed):
    rng = np.random.default_rng(seed)
    node, ended = rng.integers(0, 6, n).astype(np.int32), rng.integers(-1, 1, n).astype(np.int32)
    drawn, is_wanted = rng.random(n) < 0.7, rng.random(n_nodes) < 0.7
    slot = kernels.open_slots(node, ended, drawn, 1, is_wanted)
    bins, gradients = rng.integers(0, 9, (n, 3)).astype(np.uint16), rng.integers(-9, 9, (n, 2))
    found = np.full((int(is_wanted.sum()), 9, 2), 7)
    kernels.add_histograms(bins, slot, gradients, found, True)
    no_split = np.zeros((0, 0), np.uint8)
    splits = 0, Decisions(node[:0], np.empty(0, np.float32), drawn[:0], no_split), 1
    cuts = np.array([0, 3, 6, 9]), np.zeros(9, np.float32)
    places = np.stack([node, node]), np.stack([ended, ended]), drawn
    both = np.stack([gradients, gradients])
    twice = np.full_like(found, 7)
    moved, _ = kernels.move_and_sum(bins, cuts, places, splits, (1, is_wanted), both, twice)
    np.testing.assert_array_equal(moved, places[0])
    np.testing.assert_array_equal(twice, 2 * found)
    for s, j in enumerate(np.flatnonzero(is_wanted)):
        here = (node == 1 + j) & (ended < 0) & drawn
        np.testing.assert_array_equal(slot[here], s)
        for b in range(9):
            which = (bins[here] == b).sum(axis=1)
            np.testing.assert_array_equal(found[s, b], which @ gradients[here])
    counted = [np.isin(node - 1, np.flatnonzero(is_wanted)), ended < 0, drawn]
    np.testing.assert_array_equal(slot >= 0, np.all(counted, axis=0))


def test_dense_histograms_are_added_and_measured():
    """The bins of two features have the same sums, until one bin changes in one column."""
    histograms = np.array([[[1, 2], [3, 4], [4, 6]], [[0, 1], [0, 1], [0, 2]]])
    offsets, nodes = np.array([0, 2, 3]), np.array([2, 0])
    sums = np.ones((3, 3, 2), np.int64)
    totals, are_equal, extremes = kernels.add_dense(histograms, nodes, offsets, sums)
    assert are_equal
    np.testing.assert_array_equal(totals, [[4, 6], [0, 2]])
    np.testing.assert_array_equal(extremes, [0, 4, 0, 6])
    np.testing.assert_array_equal(
        sums, 1 + np.stack([histograms[1], 0 * histograms[0], histograms[0]])
    )
    for s, b, k in np.ndindex(histograms.shape):
        changed = histograms.copy()
        changed[s, b, k] += 1
        assert not kernels.add_dense(changed, nodes, offsets, sums)[1]


def test_extremes_of_sums():
    sums = np.array([[3, 1], [-7, 4], [2, -1]])
    assert kernels.extremes(sums.ravel()) == (-7, 3, -1, 4)
    assert kernels.extremes(sums[:0].ravel()) == (0, 0, 0, 0)
    assert kernels.absolute_sums(sums) == (-1, 12, 6)  # 3 + 7 + 2 and 1 + 4 + 1
    assert kernels.absolute_sums(sums[:0]) == (0, 0, 0)


def test_the_sibling_is_the_difference_to_the_parent():
    before, wanted = np.array([[9, 9], [0, 0], [5, 6]]), np.array([True, False, False, True])
    sums = np.array([[1, 2], [7, 7], [7, 7], [3, 4]])
    kernels.subtract_siblings(sums, wanted, before, np.array([2, 0]))
    np.testing.assert_array_equal(sums, [[1, 2], [4, 4], [6, 5], [3, 4]])
