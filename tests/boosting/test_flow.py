"""The conversation: its order, its bytes, the agreement before the first tree, and its end."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import FederatedXGBClassifier
from fedlib.boosting.classes import OneClassWarning
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.descriptions import DescribeTraining
from fedlib.boosting.messages import ProposeSplits
from fedlib.boosting.trees import predict_margins
from fedlib.core.in_process import InProcess
from fedlib.kernels import splits as kernels
from fedlib.testing import Recorder

from .common import (
    METHODS,
    TOY,
    assert_same_trees,
    deal,
    dealings,
    each_method,
    make_rows,
    replies_to,
)

SETTING_UP = ["DescribeTraining", "TrainingDescription", "BeginBoosting", "Done"]
COUNTING = ["CountBuckets", "RowsPerBucket"] * 3
LEVEL = {
    "top_splits": ["ProposeSplits", "SplitProposals"],
    "union": ["ProposeSplits", "SplitProposals", "EvaluateSplits", "CandidateSums"],
    "histogram": ["BuildPackedHistograms", "PackedHistograms"],
}


@each_method
def test_conversation(method):
    """One exchange per level (two for "union"), and one for the leaves unless sums are known."""
    model = FederatedXGBClassifier(2, method=method, max_depth=2, tol=None)
    model.fit(deal(*make_rows(), 3))
    assert [tree.depth for tree in model.trees_] == [2, 2]
    leaves = [] if method == "histogram" else ["SumLeaves", "LeafSums"]
    start = SETTING_UP[:2] + (COUNTING if method == "histogram" else []) + SETTING_UP[2:]
    trees = 2 * (2 * LEVEL[method] + leaves)
    assert model.ledger_.conversation() == [*start, *trees, "KeepTrees", "Done"]


def test_it_can_be_driven_by_hand():
    flow = FederatedXGBClassifier(n_trees=1, max_depth=1, method="top_splits").protocol()
    assert next(flow) == DescribeTraining(0.3)
    clients = {name: BoostingClient(part) for name, part in zip("AB", TOY, strict=True)}
    begin = flow.send(replies_to(clients, DescribeTraining(0.3)))
    assert begin.classes == (0, 1)
    assert begin.base_margin == 0
    requests = flow.send(replies_to(clients, begin))
    assert [type(request) for request in requests.values()] == [ProposeSplits] * 2
    assert requests["A"].n_candidates == 10
    assert requests["A"].weight == 2


@each_method
def test_clients_can_be_rebuilt_before_each_request(method):
    parts = dict(zip("abc", deal(*make_rows(missing=0.1), 3), strict=True))
    model = FederatedXGBClassifier(3, method=method, max_depth=3, tol=None)
    expected = model.fit(list(parts.values())).trees_
    clients = {name: BoostingClient(part) for name, part in parts.items()}
    recorder = Recorder(clients, rebuild=lambda name: BoostingClient(parts[name]))
    assert_same_trees(model.fit(recorder).trees_, expected)


class Listening(InProcess):
    """A transport to clients in threads that keeps all bytes."""

    def __init__(self, clients, n_jobs):
        super().__init__(clients, n_jobs)
        self.all_bytes = []

    def exchange(self, requests):
        replies = super().exchange(requests)
        self.all_bytes += [*requests.values(), *replies.values()]
        return replies


@each_method
@pytest.mark.parametrize("n_jobs", [1, 3])
def test_all_bytes_are_the_same_every_time(method, n_jobs):
    """The bytes do not depend on whether the clients work in parallel."""
    parts = deal(*make_rows(), 3)
    recorded = []
    for jobs in (n_jobs, n_jobs, 1):
        transport = Listening({str(i): BoostingClient(part) for i, part in enumerate(parts)}, jobs)
        FederatedXGBClassifier(3, method=method, tol=None).fit(transport)
        recorded.append(transport.all_bytes)
    assert recorded[0] == recorded[1] == recorded[2]


@pytest.mark.filterwarnings("ignore:.*one class only")
@settings(max_examples=10)
@given(dealings(), st.integers(0, 9), st.sampled_from(METHODS))
def test_the_order_of_clients_and_rows_does_not_matter(parts, seed, method):
    """The order of the clients and the order of a client's rows do not change the trees."""
    rng = np.random.default_rng(seed)
    model = FederatedXGBClassifier(2, method=method, max_depth=3, min_child_weight=0, tol=None)
    expected = model.fit(parts).trees_
    mixed = []
    for c in rng.permutation(len(parts)):
        order = rng.permutation(len(parts[c][1]))
        mixed.append((parts[c][0][order], parts[c][1][order]))
    assert_same_trees(model.fit(mixed).trees_, expected)


# Agreement before the first tree ----------------------------------------------------------------


def test_clients_disagree_on_the_columns():
    X, y = make_rows()
    with pytest.raises(ValueError, match="number of features: 4 at '0'; 3 at '1'"):
        FederatedXGBClassifier(method="top_splits").fit([(X, y), (X[:, :3], y)])
    clients = {"A": BoostingClient((X, y)), "B": BoostingClient((X[:, :3], y))}
    with pytest.raises(ValueError, match="number of features: 4 at 'A'; 3 at 'B'"):
        FederatedXGBClassifier(method="top_splits").fit(InProcess(clients))


@pytest.mark.parametrize("over_a_transport", [False, True])
def test_a_missing_column_is_named(over_a_transport):
    X, y = make_rows()
    table = pd.DataFrame(X, columns=list("abcd"))
    parts = [(table, y), (table[list("abd")], y)]
    if over_a_transport:
        parts = InProcess({str(i): BoostingClient(part) for i, part in enumerate(parts)})
    with pytest.raises(ValueError, match="'a', 'b', 'c', 'd' at '0'; 'c' is missing at '1'"):
        FederatedXGBClassifier(method="top_splits").fit(parts)


def test_missing_names_are_assumed_with_a_warning():
    X, y = make_rows()
    table = pd.DataFrame(X, columns=list("abcd"))
    with pytest.warns(
        UserWarning, match="no feature names from '1', '2': assumed to be a, b, c, d"
    ):
        model = FederatedXGBClassifier(1, method="top_splits").fit([(table, y), (X, y), (X, y)])
    assert model.feature_names_in_.tolist() == list("abcd")


def test_names_from_a_client_are_printable_in_the_warning():
    X, y = make_rows()
    table = pd.DataFrame(X, columns=["\x1b[2Jfinished", "b" * 10_000, "c", "d"])
    with pytest.warns(UserWarning, match=r"assumed to be \\x1b\[2Jfinished, b+…, as at") as caught:
        FederatedXGBClassifier(1, method="top_splits").fit([(table, y), (X, y)])
    assert len(str(caught[0].message)) < 1000


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([["a", "b"], ["b", "c"]], "2 classes; the clients have 3: 'a', 'b', 'c'"),
        ([[1, 1], [1, 1]], "2 classes; the clients have 1: 1"),
        ([["a", "b"], [0, 1]], "numbers or text: text at '0'; numbers at '1'"),
    ],
)
def test_there_must_be_two_classes_of_one_kind(classes, message):
    X = [[1.0], [2.0]]
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(objective="binary:logistic", method="top_splits").fit(
            [(X, y) for y in classes]
        )


def test_both_classes_need_weight():
    with pytest.raises(ValueError, match="rows with a weight above 0"):
        FederatedXGBClassifier(method="top_splits", eval_metric="logloss").fit(
            [([[1.0], [2.0]], [0, 0], None, ([[3.0]], [1]))]
        )
    with pytest.raises(ValueError, match="at least 2 classes; the clients have 1: 0"):
        FederatedXGBClassifier(method="top_splits").fit([([[1.0], [2.0]], [0, 1], [1.0, 0.0])])


@pytest.mark.parametrize("method", ["top_splits", "union"])
def test_clients_with_one_class_find_no_splits(method):
    """The server names them, since the model may be poor; rows of weight 0 do not count."""
    X, y = make_rows()
    pure = [(X[y == k], y[y == k]) for k in (0, 1)]
    text = f"2 of 3 clients have rows of one class only, '0', '1': with method='{method}'"
    with pytest.warns(OneClassWarning, match=f"{text}.*method='histogram' gives the trees of all"):
        FederatedXGBClassifier(1, method=method).fit([*pure, (X, y)])
    with pytest.warns(OneClassWarning, match="1 of 2 clients have rows of one class only, '1'"):
        FederatedXGBClassifier(1, method=method).fit([(X, y), (X, y, y == 1)])
    FederatedXGBClassifier(1, method="histogram").fit(pure)


def test_at_least_one_client_needs_classes():
    with pytest.raises(ValueError, match="a client without labels .* must be passive"):
        FederatedXGBClassifier(method="top_splits").fit(
            InProcess({"A": BoostingClient(([[1.0]], None))})
        )


def test_learning_rates_are_averaged_by_rows():
    X, y = make_rows()
    clients = {"A": BoostingClient((X[:80], y[:80]), learning_rate=0.1)}
    clients["B"] = BoostingClient((X[80:], y[80:]))
    model = FederatedXGBClassifier(1, learning_rate=0.4, method="top_splits").fit(
        InProcess(clients)
    )
    assert model.learning_rate_ == pytest.approx(0.1 * 80 / 120 + 0.4 * 40 / 120)


# The end ----------------------------------------------------------------------------------------


def test_it_stops_when_the_loss_falls_by_less_than_tol():
    """The tree that lowered it by too little is the last one; its loss is recorded."""
    X, y = make_rows(400)
    model = FederatedXGBClassifier(100, method="histogram", tol=0.01).fit(deal(X, y, 3))
    falls = -np.diff(model.losses_)
    assert len(model.trees_) == len(falls) < 100
    assert (falls[:-1] >= 0.01).all()
    assert falls[-1] < 0.01
    margins = predict_margins(model.trees_, np.float32(0), X.astype(np.float32))
    m = margins + kernels.log_odds(np.float32(model.base_share_))
    expected = np.mean(np.log1p(np.exp(np.where(y == 1, -m, m))))
    assert model.losses_[-1] == pytest.approx(expected, rel=1e-4)
