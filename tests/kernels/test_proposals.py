"""Splits from sums per distinct value, compared with the visit of all rows in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.kernels import proposals as kernels
from fedlib.kernels.gains import SplitRule
from fedlib.kernels.histograms import move_rows_by_bins
from fedlib.kernels.splits import (
    Decisions,
    Rows,
    SortedColumns,
    move_rows,
    propose_splits,
    sum_by_slot,
)


def sorted_columns(X):
    order = np.argsort(X.T, axis=1, kind="stable").astype(np.int32)
    values = np.take_along_axis(X.T, order, axis=1)
    return SortedColumns(order, values, (~np.isnan(X.T)).sum(axis=1))


def ranked_columns(X):
    columns = sorted_columns(X)
    offsets = np.append(0, np.cumsum(kernels.count_values(columns) + 1))
    ranks = np.empty(X.shape, np.uint16)
    return kernels.RankedColumns(ranks, offsets, kernels.rank_values(columns, offsets, ranks))


def random_rows(rng, n):
    X = rng.integers(-3, 4, (n, 3)) / np.float32(2)
    X[rng.random(X.shape) < 0.2] = np.nan
    gradients = np.column_stack([rng.integers(-99, 99, n), rng.integers(1, 99, n)])
    return X, Rows(rng.integers(-1, 3, n).astype(np.int32), gradients)


def test_ranks_count_the_values_of_all_features():
    nan = np.nan
    X = np.array([[2, nan], [-1, nan], [2, nan], [nan, nan], [7, nan]], np.float32)
    ranked = ranked_columns(X)
    np.testing.assert_array_equal(ranked.offsets, [0, 4, 5])
    np.testing.assert_array_equal(ranked.values[:3], [-1, 2, 7])
    np.testing.assert_array_equal(ranked.ranks[:, 0], [1, 0, 1, 3, 2])
    np.testing.assert_array_equal(ranked.ranks[:, 1], [4] * 5)


@given(
    st.integers(0, 60),
    st.integers(1, 5),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.0, 0.25)]),
    st.integers(0, 2**32),
)
def test_both_ways_give_the_same_splits(n, n_candidates, gamma, min_child_weight, penalty, seed):
    X, rows = random_rows(np.random.default_rng(seed), n)
    rule = SplitRule(2.0**-5, 1.0, gamma, min_child_weight, *penalty)
    totals = sum_by_slot(rows, 3)
    expected = propose_splits(sorted_columns(X), rows, totals, n_candidates, rule)
    found = kernels.propose_by_values(ranked_columns(X), rows, 3, n_candidates, rule)
    np.testing.assert_array_equal(found.counts, expected.counts)
    filled = np.arange(n_candidates) < found.counts[:, None]
    for array, other in zip(found[:-1], expected[:-1], strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_array_equal(array[filled], other[filled])


@given(st.integers(0, 40), st.integers(0, 2**32))
def test_moves_by_ranks_are_those_by_values(n, seed):
    """Thresholds may be any numbers: other clients have proposed them."""
    rng = np.random.default_rng(seed)
    X, _ = random_rows(rng, n)
    node, nothing = rng.integers(0, 4, n).astype(np.int32), np.zeros((3, 0), np.uint8)
    feature = np.array([0, -1, 2], np.int32)
    threshold = rng.choice(np.arange(-9, 10) / np.float32(4), 3)
    decisions = Decisions(feature, threshold, rng.random(3) < 0.5, nothing)
    ranks, offsets, values = ranked_columns(X)
    moved, is_possible = move_rows_by_bins(
        ranks, node[None], 1, decisions, 4, offsets, values, True
    )
    assert is_possible
    child = np.array([4, -1, 6], np.int32)
    np.testing.assert_array_equal(moved[0], move_rows(X, node, 1, decisions, child))


@pytest.mark.parametrize(
    ("hessian", "slot", "expected"), [(0, 0, False), (0, -1, True), (1, 0, True)]
)
def test_rows_without_a_hessian(hessian, slot, expected):
    """A value whose rows have none would seem to be absent."""
    rows = Rows(np.array([0, slot], np.int32), np.array([[1, 1], [1, hessian]]))
    assert kernels.have_hessians(rows) == expected


def test_weights_of_slots():
    slot, weights = np.array([1, -1, 0, 1], np.int32), np.array([1, 2, 4, 8], np.float32)
    np.testing.assert_array_equal(kernels.weigh_slots(slot, weights, 3), [4, 9, 0])
