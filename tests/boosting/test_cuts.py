"""Cuts: they depend only on the pooled rows, and their accuracy and disclosure are as stated."""

from itertools import count

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import r2_score

from fedlib import FederatedXGBRegressor
from fedlib.boosting.client import RegressionClient
from fedlib.boosting.cuts import (
    CountBuckets,
    RowsPerBucket,
    agree_on_cuts,
    bucket_counts,
    coarse_features,
    sorted_keys,
    sorted_weights,
)
from fedlib.boosting.descriptions import DescribeTargets
from fedlib.boosting.messages import BeginBoosting, unchecked_copy
from fedlib.core.messages import MessageError, encode
from fedlib.core.protocol import Reject, Replies
from fedlib.testing import Recorder

from .common import first_message


def agree(parts, max_bin=256, lose=None, replies_of_first=None):
    """Return the cuts of clients with these rows; the last one is lost at request ``lose``.

    The replies of the first client are appended to ``replies_of_first``.
    """
    n_rows = {str(i): len(X) for i, X in enumerate(parts)}
    flow = agree_on_cuts(n_rows, parts[0].shape[1], max_bin)
    request = next(flow)
    for number in count():
        replies = {str(i): bucket_counts(sorted_keys(X), request) for i, X in enumerate(parts)}
        for reply in replies.values():
            request.accept(reply)
        if replies_of_first is not None:
            replies_of_first.append(replies["0"])
        lost = []
        if lose is not None and number >= lose:
            lost = [list(replies)[-1]]
            del replies[lost[0]]
        try:
            request = flow.send(Replies(replies, lost=lost))
        except StopIteration as end:
            return end.value
    raise AssertionError("count never ends")


def weighted(X, weight, max_bin=16, n_clients=1):
    """Return the inner cuts of clients with these rows of one feature."""
    rows = np.array_split(np.arange(len(X)), n_clients)
    parts = [(X[i], np.zeros(len(i)), None if weight is None else weight[i]) for i in rows]
    options = {"max_bin": max_bin, "base_score": 0.0, "max_depth": 1}
    recorder = Recorder({str(i): RegressionClient(part) for i, part in enumerate(parts)})
    FederatedXGBRegressor(1, **options).fit(recorder)
    begin = first_message(recorder.exchanges, BeginBoosting, "0")
    return begin.thresholds[: begin.offsets[1] - 2]


def test_bins_have_equal_weight():
    """A row of weight k counts like k rows; the fractions of the weight are off by an eighth."""
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(3000, 1)), rng.integers(1, 6, 3000).astype(float)
    X[:20] = np.nan
    cuts = weighted(X, weight)
    np.testing.assert_array_equal(cuts, weighted(np.repeat(X, weight.astype(int), axis=0), None))
    for scaled in (weight / 4, weight * 2.0**-60, weight * 2.0**20):
        np.testing.assert_array_equal(cuts, weighted(X, scaled))
    np.testing.assert_array_equal(cuts, weighted(X, weight, n_clients=3))
    np.testing.assert_array_equal(weighted(X, None), weighted(X, np.full(3000, 2.5)))
    extreme = np.where(X[:, 0] > 0, 1e-6, 1.0)
    cuts = weighted(X, extreme)
    assert (cuts < 0.1).mean() > 0.9
    present = ~np.isnan(X[:, 0])
    bins = np.searchsorted(cuts, X[present, 0], side="right")
    shares = np.bincount(bins, extreme[present]) / extreme[present].sum()
    assert np.abs(shares - 1 / 16).max() < 0.3 / 16 + 0.01


def test_weighted_bins_learn_what_xgboost_learns():
    """Most bins would lie where hardly any weight is if all rows counted once."""
    rng = np.random.default_rng(0)
    heavy = rng.random((600, 1))
    X = np.vstack([heavy, rng.uniform(0, 1000, (5000, 1))])
    y = np.append(np.sin(12 * heavy[:, 0]), np.zeros(5000)) + rng.normal(size=5600) * 0.1
    w, order = np.repeat([1.0, 0.1], [600, 5000]), rng.permutation(5600)
    X, y, w = X[order], y[order], w[order]
    options = {"max_bin": 32, "min_child_weight": 0.5}
    parts = [(X[:2000], y[:2000], w[:2000]), (X[2000:], y[2000:], w[2000:])]
    model = FederatedXGBRegressor(40, **options).fit(parts)
    booster = xgboost.train({"tree_method": "hist", **options}, xgboost.DMatrix(X, y, weight=w), 40)
    ours, theirs = model.predict(heavy), booster.predict(xgboost.DMatrix(heavy))
    truth = np.sin(12 * heavy[:, 0])
    assert r2_score(truth, ours) > r2_score(truth, theirs) - 0.02 > 0.9


def test_without_weights_the_messages_are_as_before():
    rows = RegressionClient((np.arange(6.0)[:, None], np.zeros(6)))
    request = DescribeTargets(0.3, objective="reg:squarederror", parameter=0.0)
    assert b"has_weights" not in encode(rows.handle(request))
    count = CountBuckets(6, 0, np.array([1]), np.zeros(1, np.uint32))
    assert b"weight_bits" not in encode(count)


def test_more_weight_than_declared_is_refused():
    flow = agree_on_cuts({"0": 3, "1": 3}, 1, 4, weights={"0": 0.75, "1": 2.0})
    request, X = next(flow), column([1, 2, 3])
    replies = {}
    for name, weight in (("0", 0.25), ("1", 5.0)):
        units = sorted_weights(X, np.full(3, weight, np.float32), request.weight_bits)
        replies[name] = bucket_counts(sorted_keys(X), request, units)
    asked = flow.send(Replies(replies))
    assert isinstance(asked, Reject)
    assert list(asked.reasons) == ["1"]
    assert "must sum to at most the rows or weights" in asked.reasons["1"]


def column(values):
    return np.reshape(np.array(values, np.float32), (-1, 1))


def thresholds(cuts, f=0):
    """Return the bounds between the bins of a feature."""
    return cuts.thresholds[cuts.offsets[f] : cuts.offsets[f + 1] - 2]


def test_few_values_get_one_bin_each():
    """The bounds are halfway between the values, to one part in 2**11."""
    cuts = agree([column([-3, 5, 0, 5]), column([np.nan, 7, -3])])
    np.testing.assert_allclose(thresholds(cuts), [-1.5, 2.5, 6], rtol=2**-11)
    bins = cuts.bins(column([-4, -3, -1, 0, 5, 8, np.nan]))
    assert bins.ravel().tolist() == [0, 0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_values_one_part_in_a_thousand_apart_are_separated(scale):
    values = scale * 1.001 ** np.arange(-100, 100)
    cuts = agree([column(np.concatenate([values, -values]))], 512)
    assert len(np.unique(cuts.bins(column(values)))) == 200
    assert len(np.unique(cuts.bins(column(-values)))) == 200


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 60), st.integers(1, 3)),
        elements=st.floats(-1e6, 1e6, width=32) | st.just(np.nan) | st.integers(-3, 3).map(float),
    ),
    st.integers(2, 20),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_cuts_depend_only_on_the_pooled_rows(X, max_bin, n_clients, seed):
    order = np.random.default_rng(seed).permutation(len(X))
    cuts = agree([X], max_bin)
    other = agree([X[i] for i in np.array_split(order, n_clients)], max_bin)
    np.testing.assert_array_equal(cuts.thresholds, other.thresholds)
    np.testing.assert_array_equal(cuts.offsets, other.offsets)
    bins = cuts.bins(X)
    for f, column in enumerate(X.T):
        present = ~np.isnan(column)
        n_bins = cuts.offsets[f + 1] - cuts.offsets[f] - 1
        assert n_bins <= max_bin
        assert set(bins[present, f]) == set(range(n_bins))  # no bin is empty
        assert (bins[~present, f] == n_bins).all()
        at = cuts.thresholds[cuts.offsets[f] :][:n_bins]
        assert (np.diff(at) > 0).all()
        assert (column[present] < at[bins[present, f]]).all()
        above = present & (bins[:, f] > 0)
        assert (column[above] >= at[bins[above, f] - 1]).all()


@pytest.mark.parametrize("data", ["heart", "integers"])
def test_integers_are_disclosed_with_their_counts(data, request):
    """As `RowsPerBucket` discloses: the lower edge of a bucket of 20 bits is the number itself."""
    if data == "heart":
        X = request.getfixturevalue("real_data")("heart").X
        X = X[:, (np.round(X) == X).all(axis=0)].astype(np.float32)
        assert X.shape[1] >= 10
    else:
        X = np.random.default_rng(0).integers(-4096, 4097, (300, 2)).astype(np.float32)
    first, replies = X[:40], []
    agree([first, X[40:]], replies_of_first=replies)
    last = replies[-1]
    bits = last.keys.astype(np.int64) << 12
    edges = np.where(bits >> 31, bits & (2**31 - 1), ~bits).astype(np.uint32).view(np.float32)
    edges = np.where(
        edges < 0, -np.ceil(-edges - 1), edges
    )  # for negative numbers it is the upper edge
    stops = np.cumsum(last.sizes)
    for f, column in enumerate(first.T):
        here = slice(stops[f] - last.sizes[f], stops[f])
        values, counts = np.unique(column, return_counts=True)
        np.testing.assert_array_equal(edges[here], values)
        np.testing.assert_array_equal(last.counts[here], counts)


@given(
    hnp.arrays(np.float32, (12, 2), elements=st.floats(-(2.0**99), 2.0**99, width=32)),
    st.integers(0, 2**12 - 1),
)
def test_nothing_finer_than_a_bucket_is_disclosed(X, low_bits):
    """Values that agree in 20 bits, to one part in 2**11, give the same messages."""
    same = ((X.view(np.uint32) & np.uint32(2**32 - 2**12)) | np.uint32(low_bits)).view(np.float32)
    replies, others = [], []
    agree([X + np.float32(0)], replies_of_first=replies)
    agree([same], replies_of_first=others)
    assert replies == others or (X == 0).any()


def test_features_that_vary_little_around_a_large_number_are_coarse():
    """Features with few values, or with a small ``max_bin``, do not count as coarse."""
    x = np.random.default_rng(0).uniform(0, 100, 500)
    X = np.column_stack([x, x + 1e6, x > 50, x.round(), np.full(500, np.nan)]).astype(np.float32)
    assert coarse_features(sorted_keys(X), agree([X])) == [1]
    assert coarse_features(sorted_keys(X), agree([X], 4)) == [1]
    assert coarse_features(sorted_keys(X[:0]), agree([X])) == []
    spread = 1.001 ** np.arange(-2000, 2000, dtype=np.float32)
    assert coarse_features(sorted_keys(column(spread)), agree([column(spread)])) == []


def test_bins_have_about_equally_many_rows():
    """The error is at most an eighth of a bin on either side."""
    X = column(np.random.default_rng(0).lognormal(size=20_000))
    counts = np.bincount(agree([X], 32).bins(X).ravel())
    assert len(counts) == 32
    share = 20_000 / 32
    assert (abs(counts - share) <= share / 4).all()


def test_the_count_starts_again_when_a_client_is_lost():
    """The cuts are those of the remaining clients."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(300, 2)).astype(np.float32) for _ in range(3)]
    cuts = agree(parts, 16, lose=1)
    np.testing.assert_array_equal(cuts.thresholds, agree(parts[:2], 16).thresholds)


@pytest.mark.parametrize(("sizes", "keys"), [([1, 0], [3]), ([2], [3])])
def test_sizes_that_do_not_fit_are_rejected(sizes, keys):
    request = CountBuckets(6, 2, np.array([1]), np.array([0], np.uint32))
    request.accept(RowsPerBucket(np.array([2]), np.array([3, 4], np.uint32), np.array([1, 1])))
    keys = np.array(keys, np.uint32)
    with pytest.raises(MessageError):
        request.accept(RowsPerBucket(np.array(sizes), keys, np.ones(len(keys), np.int64)))


WRONG = {
    "the buckets are not sorted": lambda r: {"keys": r.keys[::-1].copy()},
    "some buckets were not requested": lambda r: {"keys": r.keys | np.uint32(2**31)},
    "differ from those of the coarser": lambda r: {"counts": r.counts + 1},
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_client_with_wrong_counts_is_excluded(reason):
    """In the second round, when the requested buckets are those of positive numbers."""
    parts = [column([1.0, 5.0, 90.0]), column([2.0, 3.0])]
    flow = agree_on_cuts({"0": 3, "1": 2}, 1, 256)
    request = next(flow)
    for number in range(2):
        replies = {str(i): bucket_counts(sorted_keys(X), request) for i, X in enumerate(parts)}
        if number == 1:
            replies["0"] = unchecked_copy(replies["0"], **WRONG[reason](replies["0"]))
        request = flow.send(Replies(replies))
    assert isinstance(request, Reject)
    assert list(request.reasons) == ["0"]
    assert reason in request.reasons["0"]


def test_a_request_about_other_features():
    request = CountBuckets(6, 0, np.array([1, 1]), np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match="about 2 features, the client has 1"):
        bucket_counts(sorted_keys(column([1.0])), request)
