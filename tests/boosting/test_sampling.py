"""Rows drawn by their values: properties of the keys and of the draws."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.boosting.data import drawn_rows, row_keys

VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.nan, 2.0**127])
TABLES = st.tuples(st.integers(0, 30), st.integers(1, 3)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=VALUES)
)
SHARES = st.floats(0, 1)


def distinct(X):
    """Return the first of equal rows; both zeros are equal, and so are missing values."""
    rows = [tuple("gap" if value != value else float(value) + 0 for value in row) for row in X]
    first = {row: i for i, row in reversed(list(enumerate(rows)))}
    return X[sorted(first.values())]


@given(TABLES)
def test_keys_are_distinct_also_for_equal_rows(X):
    assert len(np.unique(row_keys(X))) == len(X)


@given(TABLES, st.randoms(use_true_random=False))
def test_keys_do_not_depend_on_the_order_of_the_rows(X, random):
    order = np.array(random.sample(range(len(X)), len(X)), int)
    assert sorted(row_keys(X[order])) == sorted(row_keys(X))
    rows = distinct(X)
    order = np.array(random.sample(range(len(rows)), len(rows)), int)
    np.testing.assert_array_equal(row_keys(rows[order]), row_keys(rows)[order])


@given(TABLES, st.data())
def test_keys_of_different_rows_do_not_depend_on_the_client(X, data):
    rows = distinct(X)
    cut = data.draw(st.integers(0, len(rows)))
    parts = np.concatenate([row_keys(rows[:cut]), row_keys(rows[cut:])])
    np.testing.assert_array_equal(parts, row_keys(rows))


@given(TABLES)
def test_both_zeros_and_all_missing_values_are_equal(X):
    other = np.where(X == 0, np.float32(0) - X, X)
    other[np.isnan(X)] = -np.float32(np.nan)
    np.testing.assert_array_equal(row_keys(other), row_keys(X))


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**19), SHARES, SHARES)
def test_a_larger_share_draws_the_same_rows_and_more(seed, n_round, share, other):
    keys = row_keys(np.arange(50, dtype=np.float32)[:, None])
    few, many = (drawn_rows(keys, s, seed, n_round) for s in sorted((share, other)))
    assert not (few & ~many).any()
    assert not drawn_rows(keys, 0.0, seed, n_round).any()
    assert drawn_rows(keys, 1.0, seed, n_round).all()


@given(st.integers(0, 2**31 - 2), st.integers(0, 2**19))
def test_another_seed_or_round_draws_other_rows(seed, n_round):
    """Of 500 rows, two independent halves differ in 250 ± 11; all of them never agree."""
    keys = row_keys(np.arange(500, dtype=np.float32)[:, None])
    drawn = drawn_rows(keys, 0.5, seed, n_round)
    for other in (
        drawn_rows(keys, 0.5, seed + 1, n_round),
        drawn_rows(keys, 0.5, seed, n_round + 1),
    ):
        assert 150 < (drawn != other).sum() < 350
