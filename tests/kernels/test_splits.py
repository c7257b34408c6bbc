"""Split finding, compared with sums over the rows for one split at a time."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.kernels import splits as kernels
from fedlib.kernels.gains import SplitRule, fill_gains, score_node, split_gain
from fedlib.kernels.gains import no_limits as unlimited
from fedlib.kernels.histograms import add_histograms, best_splits

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
    return X, kernels.Rows(slot, np.stack([g, h], axis=1))


def gain(gradients, goes_left, reg_lambda, min_child_weight):
    """Return a split's gain by (3.1) without its ½, or -1 if it is not allowed."""
    left, both = gradients[goes_left].sum(axis=0) * UNIT, gradients.sum(axis=0) * UNIT
    right = both - left
    if min(left[1], right[1]) < min_child_weight or min(left[1], right[1]) <= 0:
        return -1.0
    score = [g * g / (h + reg_lambda) for g, h in (left, right, both)]
    return score[0] + score[1] - score[2]


def rounding_error(gradients, reg_lambda, best):
    """Return a bound on the error of a gain near `best`.

    A gain is the difference of three float32 scores, of which the children's add up to the
    parent's score and the gain. Each has three roundings, and their sums two more.
    """
    g, h = gradients.sum(axis=0) * UNIT
    parent = g * g / (h + reg_lambda) if h + reg_lambda else 0.0
    return 2.5 * np.finfo(np.float32).eps * (2 * parent + max(best, 0.0))


def no_limits(histograms, offsets):
    return unlimited(len(histograms), len(offsets) - 1)


def gains_of_all_splits(X, gradients, reg_lambda, min_child_weight, middle):
    """Return the gain of each split (feature, threshold), missing values on the better side."""
    gains = {}
    for f, x in enumerate(X.T):
        values = np.unique(x[~np.isnan(x)])
        for low, high in pairwise(values):
            sides = [
                gain(gradients, (x <= low) | missing, reg_lambda, min_child_weight)
                for missing in (np.zeros(len(x), bool), np.isnan(x))
            ]
            gains[f, float((low + high) / 2 if middle else high)] = max(sides)
    return gains


@given(nodes(), st.integers(1, 4), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.6]))
def test_proposals_are_the_best_splits(drawn, n_candidates, reg_lambda, min_child_weight):
    X, rows = drawn
    totals = kernels.sum_by_slot(rows, 3)
    order = np.argsort(X.T, axis=1, kind="stable").astype(np.int32)
    columns = kernels.SortedColumns(
        order, np.take_along_axis(X.T, order, axis=1), (~np.isnan(X.T)).sum(axis=1)
    )
    rule = SplitRule(UNIT, reg_lambda, 0.0, min_child_weight)
    proposals = kernels.propose_splits(columns, rows, totals, n_candidates, rule)
    for s in range(3):
        here = rows.slot == s
        gradients = rows.gradients[here]
        np.testing.assert_array_equal(totals[s], gradients.sum(axis=0))
        expected = gains_of_all_splits(X[here], gradients, reg_lambda, min_child_weight, True)
        error = rounding_error(gradients, reg_lambda, max(expected.values(), default=0.0))
        by_gain = sorted((g for g in expected.values() if g > 1e-6 + error), reverse=True)
        useful = by_gain[:n_candidates]
        gains, count = proposals.gain[s], proposals.counts[s]
        np.testing.assert_allclose(gains[: len(useful)], useful, rtol=0, atol=error)
        assert count >= len(useful)
        for c in range(count):
            f, t = proposals.feature[s, c], proposals.threshold[s, c]
            direction = int(proposals.direction[s, c])
            assert expected[f, float(t)] == pytest.approx(gains[c], rel=0, abs=error)
            x = X[here, f]
            goes_left = ~(x >= t) if direction == kernels.LEFT else x < t
            found = gain(gradients, goes_left, reg_lambda, min_child_weight)
            assert found == pytest.approx(gains[c], rel=0, abs=error)
            assert direction in (kernels.RIGHT, kernels.LEFT, kernels.NEITHER)
            if direction == kernels.NEITHER:
                assert not np.isnan(x).any()


@given(nodes(), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.6]))
def test_the_best_split_of_a_histogram(drawn, reg_lambda, min_child_weight):
    """It may separate present from missing values; its sums are those of the rows on the left."""
    X, rows = drawn
    d, n_bins = X.shape[1], 5
    offsets = np.arange(d + 1) * (n_bins + 1)
    bins = np.where(np.isnan(X), n_bins, X + 2).astype(np.uint16)
    histograms = np.zeros((3, offsets[-1], 2), np.int64)
    add_histograms(
        (bins + offsets[:-1]).astype(np.uint16), rows.slot, rows.gradients, histograms, False
    )
    assert histograms.shape == (3, offsets[-1], 2)
    rule = SplitRule(UNIT, reg_lambda, 0.0, min_child_weight)
    splits = best_splits(histograms, offsets, rule, no_limits(histograms, offsets))
    for s in range(3):
        here = rows.slot == s
        gradients = rows.gradients[here]
        expected = gains_of_all_splits(X[here], gradients, reg_lambda, min_child_weight, False)
        for f in range(d):
            present = ~np.isnan(X[here, f])
            expected[f, np.inf] = gain(gradients, present, reg_lambda, min_child_weight)
        best = max(expected.values(), default=-1)
        error = rounding_error(gradients, reg_lambda, best)
        if best > 1e-6 + error:
            assert splits.gain[s] == pytest.approx(best, rel=0, abs=error)
        if splits.feature[s] >= 0:
            b = bins[here, splits.feature[s]]
            goes_left = np.where(b == n_bins, splits.missing_left[s], b <= splits.cut[s])
            np.testing.assert_array_equal(splits.left_sums[s], gradients[goes_left].sum(axis=0))
            found = gain(gradients, goes_left, reg_lambda, min_child_weight)
            assert found == pytest.approx(splits.gain[s], rel=0, abs=error)


@given(nodes(), st.integers(0, 99))
def test_sums_of_candidates(drawn, seed):
    X, rows = drawn
    rng = np.random.default_rng(seed)
    count = rng.integers(0, 4, 3)
    start = np.append(0, np.cumsum(count))
    feature = rng.integers(0, X.shape[1], start[-1]).astype(np.int32)
    threshold = rng.integers(-2, 3, start[-1]).astype(np.float32)
    sums = kernels.sum_candidates(X, rows, kernels.Candidates(start, feature, threshold))
    for c, s in enumerate(np.repeat(np.arange(3), count)):
        x, gradients = X[rows.slot == s, feature[c]], rows.gradients[rows.slot == s]
        np.testing.assert_array_equal(sums.left[c], gradients[x < threshold[c]].sum(axis=0))
        np.testing.assert_array_equal(sums.missing[c], gradients[np.isnan(x)].sum(axis=0))
        np.testing.assert_array_equal(sums.totals[s], gradients.sum(axis=0))


@given(nodes(), st.sampled_from([0.0, 0.6]), st.sampled_from([0.0, 1.0]))
def test_gains_of_candidates(drawn, min_child_weight, gamma):
    """A candidate's gain is that with missing values on the better side, 0 if not allowed."""
    X, rows = drawn
    splits = [(f, t) for f in range(X.shape[1]) for t in np.arange(-1.5, 2)]
    feature = np.array([f for f, _ in splits] * 3, np.int32)
    threshold = np.array([t for _, t in splits] * 3, np.float32)
    start = len(splits) * np.arange(4)
    sums = kernels.sum_candidates(X, rows, kernels.Candidates(start, feature, threshold))
    rule = SplitRule(UNIT, 1.0, gamma, min_child_weight)
    gains, directions = kernels.gains_of_candidates(start, sums, rule)
    for c, (f, t) in enumerate(splits * 3):
        here = rows.slot == c // len(splits)
        x, gradients = X[here, f], rows.gradients[here]
        sides = [
            gain(gradients, goes_left, 1.0, min_child_weight) for goes_left in (x < t, ~(x >= t))
        ]
        best = max(sides)
        if best > 2e-6 and abs(best - gamma) > 1e-4:
            expected = best if best >= gamma else 0
            assert gains[c] == pytest.approx(expected, rel=1e-4, abs=2e-6)
        if best <= 0:
            assert gains[c] == 0
        if abs(sides[1] - sides[0]) > 1e-4:
            assert (directions[c] == kernels.LEFT) == (sides[1] > sides[0])


def test_gradients_by_hand():
    """P = 1/2: g is ±1/2 and h 1/4, times the weight; extreme margins give finite numbers."""
    margins = np.array([0, 0, -1e4, 1e4], np.float32)
    positive = np.array([False, True, True, True])
    weights = np.array([1, 2, 1, 1], np.float32)
    gradients = kernels.compute_gradients(margins, positive, weights, BITS)
    np.testing.assert_array_equal(gradients[:3] * UNIT, [[0.5, 0.25], [-1, 0.5], [-1, 0]])
    loss = kernels.sum_losses(margins[:2], positive[:2], weights[:2])
    assert loss == pytest.approx(3 * np.log(2))


@given(st.integers(0, 3000), st.integers(1, 3), st.integers(0, 2**32))
def test_losses_are_those_of_single_rows(n, n_weights, seed):
    """Up to the documented error of each row, and that of a sum of so many."""
    rng = np.random.default_rng(seed)
    margins = (rng.normal(size=n) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    positive = rng.random(n) < 0.5
    weights = rng.choice(rng.uniform(0, 4, n_weights), n).astype(np.float32)
    m = np.where(positive, -margins, margins).astype(np.float64)
    losses = (np.maximum(m, 0) + np.log1p(np.exp(-np.abs(m)))) * weights
    error = 2.0**-51 * weights.sum(dtype=np.float64) + n * 2.0**-52 * losses.sum()
    assert abs(kernels.sum_losses(margins, positive, weights) - math.fsum(losses)) <= error


def test_ties_go_to_the_lower_feature_and_cut():
    """Both features separate the rows equally, and both cuts around an empty bin do too."""
    bins = np.array([[0, 0], [0, 0], [2, 2], [2, 2]], np.uint16)
    gradients = np.array([[1, 1], [1, 1], [-1, 1], [-1, 1]]) << BITS
    offsets = np.array([0, 4, 8])
    rows = kernels.Rows(np.zeros(4, np.int32), gradients)
    histograms = np.zeros((1, offsets[-1], 2), np.int64)
    add_histograms(
        (bins + offsets[:-1]).astype(np.uint16), rows.slot, rows.gradients, histograms, False
    )
    rule = SplitRule(UNIT, 1.0, 0.0, 0.0)
    splits = best_splits(histograms, offsets, rule, no_limits(histograms, offsets))
    assert (splits.feature[0], splits.cut[0], splits.missing_left[0]) == (0, 0, False)
    assert splits.gain[0] == pytest.approx(4 / 3 + 4 / 3)
    np.testing.assert_array_equal(splits.left_sums[0] * UNIT, [2, 2])


@given(
    st.integers(0, 2**32), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 1.0]), st.booleans()
)
def test_gains_of_many_splits_are_those_of_one(seed, reg_alpha, min_child_weight, by_weight):
    """Bit for bit, with empty sides and without a penalty for large weights."""
    rng = np.random.default_rng(seed)
    left = np.stack([rng.integers(-(2**22), 2**22, 40), rng.integers(0, 2**22, 40)])
    left[:, :3] = 0
    rule = SplitRule(
        UNIT, float(rng.integers(0, 2)), 0.0, min_child_weight, reg_alpha, by_weight=by_weight
    )
    node = score_node(rng.integers(-(2**22), 2**22), left[1].max(), rule)
    gains = np.empty(40, np.float32)
    fill_gains(*left, node, rule, 0, gains)
    expected = [split_gain(g, h, node, rule) for g, h in left.T]
    assert gains.tobytes() == np.array(expected, np.float32).tobytes()
