"""Counts in buckets, their sums over clients, and the checks of them, compared with numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.kernels import buckets as kernels


def random_columns(rng, sizes):
    """Return the `SortedKeys` of columns with so many values; their keys share many prefixes."""
    keys = np.zeros((len(sizes), max(sizes, default=0)), np.uint32)
    for f, n in enumerate(sizes):
        keys[f, :n] = np.sort(rng.integers(0, 2**32, n, dtype=np.uint32) & np.uint32(0xC00000FF))
    return kernels.SortedKeys(keys, np.array(sizes))


@st.composite
def counts(draw):
    """Return the columns of clients, a depth, how much finer it is, and the requested buckets."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    depth = draw(st.integers(1, 24))
    n_finer = draw(st.integers(0, min(depth, 12)))
    d = draw(st.integers(1, 3))
    n = st.lists(st.integers(0, 30), min_size=d, max_size=d)
    columns = [random_columns(rng, draw(n)) for _ in range(draw(st.integers(1, 3)))]
    requested = []
    for f in range(d):
        keys = np.concatenate([c.keys[f, : c.n_present[f]] for c in columns]).astype(np.int64)
        some = rng.permutation(keys >> (32 - depth + n_finer))[: max(1, len(keys) // 2)]
        requested.append(np.unique(some).astype(np.uint32))
    return columns, depth, n_finer, requested


def expected_counts(keys, depth, n_finer, requested):
    distinct, n = np.unique(keys.astype(np.int64) >> (32 - depth), return_counts=True)
    is_inside = np.isin(distinct >> n_finer, requested)
    return distinct[is_inside], n[is_inside]


def in_one(requested):
    return np.array([len(keys) for keys in requested]), np.concatenate(requested)


def count(columns, depth, n_finer, requested):
    sizes, keys = in_one(requested)
    return kernels.count_buckets(columns, np.uint64(32 - depth), sizes, keys, np.uint64(n_finer))


def one_after_the_other(found):
    arrays = [np.concatenate([getattr(b, name) for b in found]) for name in ("keys", "counts")]
    return kernels.Buckets(np.stack([b.sizes for b in found]), *arrays)


@given(counts())
def test_counts_inside_of_buckets_and_their_sums(case):
    columns, depth, n_finer, requested = case
    found = [count(c, depth, n_finer, requested) for c in columns]
    for c, of_client in zip(columns, found, strict=True):
        ends = np.cumsum(of_client.sizes)[:-1]
        split = zip(np.split(of_client.keys, ends), np.split(of_client.counts, ends), strict=True)
        for f, (keys, n) in enumerate(split):
            present = c.keys[f, : c.n_present[f]]
            expected = expected_counts(present, depth, n_finer, requested[f])
            np.testing.assert_array_equal(keys, expected[0])
            np.testing.assert_array_equal(n, expected[1])
        np.testing.assert_array_equal(
            kernels.count_distinct(c, np.uint64(32 - depth)),
            [
                len(np.unique(k[:n] >> (32 - depth)))
                for k, n in zip(c.keys, c.n_present, strict=True)
            ],
        )
    n_rows = np.array([c.keys.shape[1] for c in columns])
    replies, nobody = one_after_the_other(found), np.zeros(len(columns), bool)
    sums, status = kernels.add_buckets(
        *in_one(requested), n_finer, replies, replies, nobody, n_rows
    )
    assert (status == kernels.POSSIBLE).all()
    first = 0
    for f, size in enumerate(sums.sizes):
        pooled = np.concatenate([c.keys[f, : c.n_present[f]] for c in columns])
        expected = expected_counts(pooled, depth, n_finer, requested[f])
        np.testing.assert_array_equal(sums.keys[first : first + size], expected[0])
        np.testing.assert_array_equal(sums.counts[first : first + size], expected[1])
        first += size
    # The same counts divide those of the coarser buckets, which are the requested ones and others.
    coarse = max(depth - n_finer, 1)
    everything = [np.arange(2, dtype=np.uint32)] * len(requested)
    if depth > n_finer:
        before = [count(c, coarse, coarse - 1, everything) for c in columns]
        previous = one_after_the_other(before)
        status = kernels.add_buckets(
            *in_one(requested), n_finer, replies, previous, ~nobody, 0 * n_rows
        )[1]
        assert (status == kernels.POSSIBLE).all()


SIZES, KEYS = np.array([2, 1]), np.array([3, 5, 4], np.uint32)  # requested; each is divided by 4
BEFORE = kernels.Buckets(
    np.array([3, 1]), np.array([3, 5, 6, 4], np.uint32), np.array([5, 2, 9, 1])
)
RIGHT = [2, 1], [12, 21, 17], [5, 2, 1]
WRONG = {
    "twice": (([2, 1], [12, 12, 17], [5, 2, 1]), kernels.UNSORTED),
    "order": (([2, 1], [21, 12, 17], [2, 5, 1]), kernels.UNSORTED),
    "not requested": (([2, 1], [12, 25, 17], [5, 2, 1]), kernels.NOT_REQUESTED),
    "beyond all": (([2, 1], [12, 21, 2**32 - 1], [5, 2, 1]), kernels.NOT_REQUESTED),
    "another feature's": (([2, 2], [12, 21, 13, 17], [5, 2, 1, 1]), kernels.NOT_REQUESTED),
    "one more": (([2, 1], [12, 21, 17], [5, 3, 1]), kernels.CONTRADICTION),
    "one left out": (([1, 1], [12, 17], [5, 1]), kernels.CONTRADICTION),
    "the last left out": (([2, 0], [12, 21], [5, 2]), kernels.CONTRADICTION),
}


def status_of(reply, previous, n_rows=0):
    """Return what a reply is, next to right ones before and after it."""
    arrays = [
        (np.array(s), np.array(k, np.uint32), np.array(c)) for s, k, c in (RIGHT, reply, RIGHT)
    ]
    replies = one_after_the_other([kernels.Buckets(*a) for a in arrays])
    before = one_after_the_other([BEFORE, previous or BEFORE, BEFORE])
    has_previous = np.array([True, previous is not None, True])
    limits = np.array([0, n_rows, 0])
    return kernels.add_buckets(SIZES, KEYS, 2, replies, before, has_previous, limits)[1].tolist()


@pytest.mark.parametrize("case", WRONG)
def test_wrong_counts_are_noticed(case):
    reply, expected = WRONG[case]
    assert status_of(reply, BEFORE) == [kernels.POSSIBLE, expected, kernels.POSSIBLE]


def test_a_first_reply_has_at_most_all_rows():
    assert status_of(RIGHT, None, n_rows=7) == [kernels.POSSIBLE] * 3
    assert status_of(RIGHT, None, n_rows=6)[1] == kernels.TOO_MANY
