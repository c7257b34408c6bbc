"""The client: its data, its learning rate, its warning, and requests that it refuses."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedlib import FederatedXGBClassifier
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.histograms import BuildHistograms
from fedlib.boosting.messages import BeginBoosting, EvaluateSplits, KeepTrees, StartTrees, SumLeaves
from fedlib.core.messages import Done, MessageError, decode, encode

from .common import make_rows


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ([[1.0]], r"\(X, y\)"),
        (([[1.0]], [0, 1]), "y must contain one class per row, 1; got 2"),
        (([[np.inf]], [0]), "column .0. must .* got inf in row 1"),
        (([[1e300]], [0]), "within .* got 1e.300 in row 1"),
        (([[3e38]], [0]), r"±2\*\*127"),
        (([[1.0]], [np.nan]), "y has no class in 1 row, row 1: drop this row"),
        (([[1.0]], np.array(["2001-01-01"], "M8[D]")), "y must be text or numbers"),
        (([[1.0]], [0], [-1.0]), "sample_weight must be finite and at least 0"),
        (([[1.0]], [0], [1.0, 1.0]), "sample_weight must contain one weight per row, 1; got 2"),
        (([[1.0]], [0], [2.0**41]), r"add up to at most 2\*\*40; got 2.19902e\+12"),
        ((np.empty((3, 0)), [0, 1, 0]), "0 feature"),
    ],
)
def test_invalid_data(part, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(method="top_splits").fit([part])


@pytest.mark.parametrize("rate", [0.0, 1.5, np.nan])
def test_invalid_learning_rate(rate):
    with pytest.raises(ValueError, match=f"above 0 and at most 1; got {rate}"):
        BoostingClient(make_rows(), learning_rate=rate)


def test_it_warns_of_a_feature_that_varies_little_around_a_large_number():
    """The buckets are relative to the values; the other methods split between any two values."""
    rng = np.random.default_rng(0)
    signal = rng.integers(0, 100, 400).astype(float)
    y = (signal > 50).astype(int)
    table = pd.DataFrame({"day": signal + 2**20, "sex": rng.integers(0, 2, 400)})
    parts = [(table[i::2], y[i::2]) for i in range(2)]
    model = FederatedXGBClassifier(5, method="histogram", tol=None)
    with pytest.warns(UserWarning, match=r"features 'day': .* subtract the same number"):
        coarse = model.fit(parts)
    assert (coarse.predict(table) == y).mean() < 0.8
    shifted = [(part - [2**20, 0], y) for part, y in parts]
    assert (model.fit(shifted).predict(table - [2**20, 0]) == y).all()
    by_votes = clone(model).set_params(method="top_splits").fit(parts)
    assert (by_votes.predict(table) == y).mean() > 0.98


def keep_trees(sizes, feature):
    n = len(feature)
    return KeepTrees(
        base_margin=0.0,
        sizes=np.array(sizes, np.int64),
        feature=np.array(feature, np.int32),
        threshold=np.zeros(n, np.float32),
        missing_left=np.zeros(n, bool),
        value=np.zeros(n, np.float32),
    )


@pytest.mark.parametrize(
    ("request_message", "error"),
    [
        (keep_trees([1], [7]), "feature must be below 4"),
        (keep_trees([2], [0, -1]), "2 nodes, but the splits make 3"),
    ],
)
def test_it_refuses_invalid_trees(request_message, error):
    client = BoostingClient((np.zeros((2, 4)), [0, 1]))
    assert client.answer(decode(encode(request_message))) == Done()
    assert error in client.problems[0]
    assert client.state is None


def begun_client(offsets=(0, 3), n_bins=3):
    """Return a client with two rows of one feature in a run that has begun."""
    client = BoostingClient(([[1.0], [2.0]], [0, 1]))
    begin = BeginBoosting((0, 1), 0.0, 40, np.array(offsets), np.full(n_bins, 9, np.float32))
    client.answer(begin)
    return client


def growth(values=(), **fields):
    """Return the fields that all requests to grow a tree have."""
    return {
        "decided": 0,
        "feature": np.empty(0, np.int32),
        "threshold": np.empty(0, np.float32),
        "missing_left": np.empty(0, bool),
        "values": np.array(values, np.float32),
        "first": 0,
        "n_open": 1,
        "weight": 2.0,
        **fields,
    }


def test_it_refuses_requests_that_contradict_themselves():
    client = begun_client()
    client.answer(SumLeaves(**growth(), n_nodes=1))
    with pytest.raises(ValueError, match="0 nodes of a tree that has 1"):
        client.answer(SumLeaves(**growth(), n_nodes=0))
    feature, threshold = np.array([1], np.int32), np.zeros(1, np.float32)
    fields = growth(feature=feature, threshold=threshold, missing_left=np.zeros(1, bool))
    with pytest.raises(ValueError, match="feature must be below 1"):
        client.answer(SumLeaves(**fields, n_nodes=1))
    split = EvaluateSplits(0, np.array([2]), np.zeros(1, np.int32), threshold, 2.0)
    with pytest.raises(ValueError, match="1 splits, but the counts sum to 2"):
        client.answer(split)


def test_it_refuses_histograms_that_do_not_fit_its_bins():
    def ask(client, wanted=1, n_bins=3):
        request = BuildHistograms(**growth(), wanted=np.ones(wanted, bool), n_bins=n_bins)
        return client.answer(request)

    assert ask(begun_client()).sums.shape == (1, 3, 2)
    with pytest.raises(ValueError, match="2 entries of wanted for 1 open nodes"):
        ask(begun_client(), wanted=2)
    with pytest.raises(ValueError, match="4 bins requested; there are 3"):
        ask(begun_client(), n_bins=4)
    for offsets in ((0, 2), (1, 3), (0, 3, 3), (0, 1, 3)):
        with pytest.raises(ValueError, match="the bins do not fit the features"):
            ask(begun_client(offsets))


# A server that sends impossible requests must not reach a kernel, which would write anywhere.

CUTS = {"offsets": np.array([0, 3]), "thresholds": np.array([0, 2.0**127, 2.0**127], np.float32)}


def start(n_classes=3, **fields):
    return BeginBoosting(
        classes=tuple(range(n_classes)),
        base_margin=0.0,
        bits=20,
        objective="multi:softprob",
        **CUTS,
        **fields,
    )


def splits(n_splits, decided, parents):
    return BuildHistograms(
        decided=decided,
        feature=np.zeros(n_splits, np.int32),
        threshold=np.zeros(n_splits, np.float32),
        missing_left=np.zeros(n_splits, bool),
        values=np.empty(0, np.float32),
        first=0,
        n_open=1,
        weight=1e6,
        wanted=np.ones(1, bool),
        n_bins=3,
        parents=parents,
    )


@pytest.mark.parametrize("parents", [(), (7, 0)])
def test_numbers_of_children_fit_32_bits(parents):
    largest = 2**31 - 2 - 3 * 2
    assert len(splits(2, largest, parents).decisions.feature) == 2
    with pytest.raises(MessageError, match="the children of 2 nodes from 2147483641 on"):
        splits(2, largest + 1, parents)  # nor can it be decoded, so it locks no site


def test_each_split_has_a_parent_or_none_has():
    with pytest.raises(MessageError, match="1 parents for 2 splits"):
        splits(2, 5, (1,))


def test_the_sum_of_counts_cannot_overflow():
    empty = {"feature": np.empty(0, np.int32), "threshold": np.empty(0, np.float32)}
    with pytest.raises(MessageError, match="EvaluateSplits.count must be at most"):
        EvaluateSplits(first=0, count=np.full(4, 2**62), weight=1e6, **empty)


def test_each_class_has_a_margin():
    with pytest.raises(MessageError, match="3 classes has 3 margins, got 0"):
        start()
    assert start(base_margins=(0.0, 0.0, 0.0)).first_margins == (0.0, 0.0, 0.0)


def test_first_trees_have_the_outputs_of_the_run():
    X, _ = make_rows(30)
    client = BoostingClient((X[:, :1], np.arange(30) % 3))
    client.handle(start(base_margins=(0.0, 0.0, 0.0)))
    nothing = {"sizes": np.empty(0, np.int64), "missing_left": np.empty(0, bool)}
    nothing |= {"feature": np.empty(0, np.int32)}
    nothing |= dict.fromkeys(("threshold", "value"), np.empty(0, np.float32))
    request = StartTrees(base_margin=0.0, objective="multi:softprob", **nothing)
    with pytest.raises(ValueError, match="trees with 1 outputs in a run with 3"):
        client.handle(request)
