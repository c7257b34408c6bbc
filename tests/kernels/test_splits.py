"""Split finding against sums over all rows, one split at a time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.kernels import splits as kernels

BITS = 20
UNIT = 2.0**-BITS


@st.composite
def nodes(draw):
    """Draw rows with missing values and ties, the slot of each, and their gradients."""
    n, d = draw(st.integers(0, 25)), draw(st.integers(1, 3))
    values = st.integers(-2, 2).map(float) | st.just(np.nan)
    X = draw(hnp.arrays(np.float32, (n, d), elements=values))
    slot = draw(hnp.arrays(np.int32, n, elements=st.integers(-1, 2)))
    scale = 1 << BITS
    g = draw(hnp.arrays(np.int64, n, elements=st.integers(-8, 8))) * scale // 8
    h = draw(hnp.arrays(np.int64, n, elements=st.integers(1, 8))) * scale // 8
    return X, slot, np.stack([g, h], axis=1)


def gain(gradients, goes_left, reg_lambda, min_child_weight):
    """Return a split's gain by (3.1), without its ½, or -1 where it is not allowed."""
    left, both = gradients[goes_left].sum(axis=0) * UNIT, gradients.sum(axis=0) * UNIT
    right = both - left
    if min(left[1], right[1]) < min_child_weight or min(left[1], right[1]) <= 0:
        return -1.0
    score = [g * g / (h + reg_lambda) for g, h in (left, right, both)]
    return score[0] + score[1] - score[2]


def ways(X, gradients, reg_lambda, min_child_weight, middle):
    """Return the gain of every split (feature, threshold), missing values on the better side."""
    found = {}
    for f, x in enumerate(X.T):
        values = np.unique(x[~np.isnan(x)])
        for low, high in pairwise(values):
            sides = [
                gain(gradients, (x <= low) | missing, reg_lambda, min_child_weight)
                for missing in (np.zeros(len(x), bool), np.isnan(x))
            ]
            found[f, float((low + high) / 2 if middle else high)] = max(sides)
    return found


@given(nodes(), st.integers(1, 4), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.6]))
def test_proposals_are_the_best_splits(drawn, n_candidates, reg_lambda, min_child_weight):
    X, slot, gradients = drawn
    n_slots, shape = 3, (3, n_candidates)
    totals = np.zeros((n_slots, 2), np.int64)
    kernels.sum_by_slot(slot, gradients, totals)
    order = np.argsort(X.T, axis=1, kind="stable").astype(np.int32)
    feature, threshold = np.empty(shape, np.int32), np.empty(shape, np.float32)
    direction, gains = np.empty(shape, np.uint8), np.empty(shape, np.float32)
    count = np.empty(n_slots, np.int64)
    kernels.propose_splits(
        order,
        np.take_along_axis(X.T, order, axis=1),
        (~np.isnan(X.T)).sum(axis=1),
        slot,
        gradients,
        totals,
        UNIT,
        reg_lambda,
        0.0,
        min_child_weight,
        feature,
        threshold,
        direction,
        gains,
        count,
    )
    for s in range(n_slots):
        here = slot == s
        np.testing.assert_array_equal(totals[s], gradients[here].sum(axis=0))
        expected = ways(X[here], gradients[here], reg_lambda, min_child_weight, True)
        useful = sorted((of for of in expected.values() if of > 2e-6), reverse=True)[:n_candidates]
        np.testing.assert_allclose(gains[s, : len(useful)], useful, rtol=1e-4, atol=1e-6)
        assert count[s] >= len(useful)
        for c in range(count[s]):
            f, t = feature[s, c], threshold[s, c]
            assert expected[f, float(t)] == pytest.approx(gains[s, c], rel=1e-4, abs=2e-6)
            x = X[here, f]
            sides = {
                kernels.RIGHT: x < t,
                kernels.LEFT: ~(x >= t),
                kernels.NEITHER: x < t,
            }
            side = sides[int(direction[s, c])]
            assert gain(gradients[here], side, reg_lambda, min_child_weight) == pytest.approx(
                gains[s, c], rel=1e-4, abs=2e-6
            )
            if direction[s, c] == kernels.NEITHER:
                assert not np.isnan(x).any()


@given(nodes(), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.6]))
def test_the_best_split_of_a_histogram(drawn, reg_lambda, min_child_weight):
    """Also that between present and missing values; its sums are those of the rows on the left."""
    X, slot, gradients = drawn
    d, n_bins = X.shape[1], 5
    offsets = np.arange(d + 1) * (n_bins + 1)
    bins = np.where(np.isnan(X), n_bins, X + 2).astype(np.uint16)
    sums = np.zeros((3, offsets[-1], 2), np.int64)
    kernels.sum_histograms(bins, offsets, slot, gradients, sums)
    feature, cut = np.empty(3, np.int32), np.empty(3, np.int64)
    left, gains = np.zeros(3, bool), np.empty(3, np.float32)
    left_sums = np.zeros((3, 2), np.int64)
    kernels.best_splits(
        sums,
        offsets,
        UNIT,
        reg_lambda,
        0.0,
        min_child_weight,
        feature,
        cut,
        left,
        gains,
        left_sums,
    )
    for s in range(3):
        here = slot == s
        expected = ways(X[here], gradients[here], reg_lambda, min_child_weight, False)
        for f in range(d):
            present = ~np.isnan(X[here, f])
            expected[f, np.inf] = gain(gradients[here], present, reg_lambda, min_child_weight)
        best = max(expected.values(), default=-1)
        if best > 2e-6:
            assert gains[s] == pytest.approx(best, rel=1e-4, abs=2e-6)
        if feature[s] >= 0:
            b = bins[here, feature[s]]
            goes_left = np.where(b == n_bins, left[s], b <= cut[s])
            np.testing.assert_array_equal(left_sums[s], gradients[here][goes_left].sum(axis=0))
            found = gain(gradients[here], goes_left, reg_lambda, min_child_weight)
            assert found == pytest.approx(gains[s], rel=1e-4, abs=2e-6)


@given(nodes(), st.integers(0, 99))
def test_sums_of_candidates(drawn, seed):
    X, slot, gradients = drawn
    rng = np.random.default_rng(seed)
    count = rng.integers(0, 4, 3)
    start = np.append(0, np.cumsum(count))
    feature = rng.integers(0, X.shape[1], start[-1]).astype(np.int32)
    threshold = rng.integers(-2, 3, start[-1]).astype(np.float32)
    left, missing = np.zeros((2, start[-1], 2), np.int64)
    kernels.sum_candidates(X, slot, gradients, start, feature, threshold, left, missing)
    for c, s in enumerate(np.repeat(np.arange(3), count)):
        x = X[slot == s, feature[c]]
        own = gradients[slot == s]
        np.testing.assert_array_equal(left[c], own[x < threshold[c]].sum(axis=0))
        np.testing.assert_array_equal(missing[c], own[np.isnan(x)].sum(axis=0))


def test_gradients_by_hand():
    """P = 1/2: g is ±1/2 and h 1/4, times the weight; extremes stay finite."""
    margins = np.array([0, 0, -1e4, 1e4], np.float32)
    out = np.empty((4, 2), np.int64)
    weights = np.array([1, 2, 1, 1], np.float32)
    kernels.sum_gradients(margins, np.array([False, True, True, True]), weights, BITS, out)
    np.testing.assert_array_equal(out[:3] * UNIT, [[0.5, 0.25], [-1, 0.5], [-1, 0]])
    assert kernels.sum_losses(margins[:2], np.array([False, True]), weights[:2]) == pytest.approx(
        3 * np.log(2)
    )


def test_equal_gains_go_to_the_lower_feature_and_cut():
    """Both features divide alike, and so do both cuts around an empty bin."""
    bins = np.array([[0, 0], [0, 0], [2, 2], [2, 2]], np.uint16)
    gradients = np.array([[1, 1], [1, 1], [-1, 1], [-1, 1]]) << BITS
    offsets = np.array([0, 4, 8])
    sums = np.zeros((1, 8, 2), np.int64)
    kernels.sum_histograms(bins, offsets, np.zeros(4, np.int32), gradients, sums)
    feature, cut = np.empty(1, np.int32), np.empty(1, np.int64)
    left, gains, left_sums = np.zeros(1, bool), np.empty(1, np.float32), np.zeros((1, 2), np.int64)
    kernels.best_splits(sums, offsets, UNIT, 1.0, 0.0, 0.0, feature, cut, left, gains, left_sums)
    assert (feature[0], cut[0], left[0]) == (0, 0, False)
    assert gains[0] == pytest.approx(4 / 3 + 4 / 3)
