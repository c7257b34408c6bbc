"""Passive clients, clients that are lost during a run, and clients whose replies are invalid."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib import FederatedXGBClassifier
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.cuts import CountBuckets
from fedlib.boosting.descriptions import DescribeTraining
from fedlib.boosting.histograms import BuildHistograms
from fedlib.boosting.messages import (
    BeginBoosting,
    EvaluateSplits,
    KeepTrees,
    ProposeSplits,
    SumLeaves,
)
from fedlib.core.in_process import InProcess
from fedlib.core.messages import decode
from fedlib.testing import Recorder

from .common import (
    METHODS,
    Unreliable,
    assert_same_trees,
    cuts_of,
    deal,
    dealings,
    each_method,
    first_message,
    make_rows,
)

# Passive clients --------------------------------------------------------------------------------


@each_method
def test_a_passive_client_receives_the_trees_and_shares_nothing(method):
    X, y = make_rows()
    parts = deal(X, y, 3)
    model = FederatedXGBClassifier(4, method=method, tol=None)
    expected = model.fit(parts[:2]).trees_
    model.fit([*parts[:2], (parts[2][0], None)], passive=[2])
    assert_same_trees(model.trees_, expected)
    np.testing.assert_array_equal(model.labels_[2], model.predict(parts[2][0]))
    frame = model.ledger_.to_frame()
    assert set(frame[frame.sender == "2"].message) == {"Declined", "Done"}


def test_a_client_without_classes_must_be_passive():
    X, y = make_rows()
    with pytest.raises(ValueError, match="'1': ValueError at DescribeTraining"):
        FederatedXGBClassifier(method="top_splits").fit([(X, y), (X, None)])


@each_method
def test_passive_clients_alone_cannot_continue(method):
    X, y = make_rows()
    passive = BoostingClient((X, None))
    passive.passive = True
    clients = {"A": Unreliable((X, y), (ProposeSplits, BuildHistograms), 1), "B": passive}
    model = FederatedXGBClassifier(3, method=method, tol=None)
    with pytest.raises(ValueError, match="every remaining client is passive"):
        model.fit(InProcess(clients), min_clients=1)


# Lost clients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "request_class", "times"),
    [
        ("top_splits", DescribeTraining, 0),
        ("top_splits", BeginBoosting, 0),
        ("top_splits", ProposeSplits, 0),
        ("top_splits", ProposeSplits, 5),
        ("top_splits", SumLeaves, 1),
        ("union", EvaluateSplits, 2),
        ("histogram", CountBuckets, 0),
        ("histogram", CountBuckets, 1),
        ("histogram", BuildHistograms, 0),
        ("histogram", BuildHistograms, 1),
        ("histogram", BuildHistograms, 4),
        ("histogram", KeepTrees, 0),
    ],
)
def test_a_lost_client(method, request_class, times):
    """The others continue without it if they are enough; by default the run ends."""
    X, y = make_rows()
    parts = deal(X, y, 3)

    def clients():
        unreliable = Unreliable(parts[2], request_class, times)
        return {"A": BoostingClient(parts[0]), "B": BoostingClient(parts[1]), "C": unreliable}

    model = FederatedXGBClassifier(3, method=method, max_depth=3, tol=None)
    model.fit(InProcess(clients()), min_clients=2)
    assert list(model.ledger_.lost) == ["C"]
    assert len(model.trees_) == 3
    assert (model.predict(X) == y).mean() > 0.7
    with pytest.raises(OSError, match="client 'C' raised this"):
        model.fit(InProcess(clients()))


def test_a_client_lost_at_the_first_request_leaves_no_trace():
    parts = deal(*make_rows(), 3)
    unreliable = Unreliable(parts[2], DescribeTraining, 0)
    clients = {"A": BoostingClient(parts[0]), "B": BoostingClient(parts[1]), "C": unreliable}
    model = FederatedXGBClassifier(3, max_depth=3, tol=None, method="top_splits")
    trees = model.fit(InProcess(clients), min_clients=2).trees_
    assert_same_trees(model.fit(parts[:2]).trees_, trees)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_client_lost_while_counting_counts_for_the_share_but_not_for_the_cuts(times):
    """Its classes were reported before; the others count again if they had counted with it."""
    X, y = make_rows()
    parts = deal(X, y, 3)
    unreliable = Unreliable(parts[2], CountBuckets, times)
    recorder = Recorder(
        {"A": BoostingClient(parts[0]), "B": BoostingClient(parts[1]), "C": unreliable}
    )
    model = FederatedXGBClassifier(3, method="histogram", tol=None, max_bin=16)
    model.fit(recorder, min_clients=2)
    begin = first_message(recorder.exchanges, BeginBoosting, "A")
    cuts = cuts_of(np.concatenate([part[0] for part in parts[:2]]), 16)
    np.testing.assert_array_equal(begin.offsets, cuts.offsets)
    np.testing.assert_array_equal(begin.thresholds, cuts.thresholds)
    assert not np.array_equal(cuts.thresholds, cuts_of(X, 16).thresholds)
    assert model.base_share_ == np.float32(y.mean())
    rounds = [exchange for exchange in recorder.exchanges if is_count(exchange)]
    assert len(rounds) == (3 if times == 0 else times + 1 + 3)
    for tree in model.trees_:
        split = tree.feature >= 0
        assert np.isin(tree.threshold[split], cuts.thresholds).all()


def is_count(exchange):
    return any(isinstance(request, CountBuckets) for request in exchange.requests.values())


# Invalid replies --------------------------------------------------------------------------------


def sums_of_rows(g=0, h=0):
    """Return a pair of sums as integers, in the unit of a run with 65 to 128 rows."""
    return np.array([g, h]) * 2 ** (52 - 7)


CHANGES = {
    "more rows than a number can hold": ("SplitProposals", "weight", lambda a: a + 2.0**141),
    "more rows than it has": ("SplitProposals", "weight", lambda a: a + 41),
    "too many nodes": ("SplitProposals", "count", lambda a: np.append(a, 0)),
    "a count of more splits": ("SplitProposals", "count", lambda a: a + 1),
    "an unknown feature": ("SplitProposals", "feature", lambda a: a + 4),
    "an infinite gain": ("SplitProposals", "gain", lambda a: a * np.float32(np.inf)),
    "an unknown direction": ("SplitProposals", "direction", lambda a: a + np.uint8(3)),
    "sums of other splits": ("CandidateSums", "left", lambda a: a[1:]),
    "negative hessians": ("CandidateSums", "totals", lambda a: -a - 1),
    "negative hessians left of a split": ("CandidateSums", "left", lambda a: -a - 1),
    "gradients of too many rows": ("CandidateSums", "left", lambda a: a + sums_of_rows(g=90)),
    "hessians of too many rows": ("CandidateSums", "missing", lambda a: a + sums_of_rows(h=90)),
    "leaves beyond all rows": ("LeafSums", "sums", lambda a: a + 2**60),
    "leaves of too many rows": ("LeafSums", "sums", lambda a: a + sums_of_rows(h=21)),
    "leaves of too many negative rows": ("LeafSums", "sums", lambda a: a - sums_of_rows(g=121)),
    "sums of other leaves": ("LeafSums", "sums", lambda a: a[:1]),
    "three sums instead of two": ("LeafSums", "sums", lambda a: a[:, [0, 1, 1]]),
    "too few bins": ("Histograms", "sums", lambda a: a[:, 1:]),
    "histograms of more nodes": ("Histograms", "sums", lambda a: np.repeat(a, 2, axis=0)),
    "histograms beyond all rows": ("Histograms", "sums", lambda a: a + 2**60),
    "the smallest int64": ("Histograms", "sums", lambda a: a * 0 + [-(2**63), 0]),
    "bins of too many rows": ("Histograms", "sums", lambda a: a + sums_of_rows(h=21)),
    "a loss beyond all bounds": ("Histograms", "loss", lambda loss: 1e300),
    "equal buckets": ("RowsPerBucket", "keys", lambda a: a * np.uint32(0)),
    "buckets of other features": ("RowsPerBucket", "sizes", lambda a: np.append(a, 0)),
    "buckets that were not requested": ("RowsPerBucket", "keys", lambda a: a + np.uint32(2**31)),
    "classes without weights": ("TrainingDescription", "weights", lambda a: a[1:]),
    "weights beyond all bounds": ("TrainingDescription", "weights", lambda a: a * 2.0**100),
    "a learning rate above 1": ("TrainingDescription", "learning_rate", lambda rate: 1e300),
    "too many names": ("TrainingDescription", "features", lambda names: ("a", "b", "c", "d", "e")),
    "text and numbers": ("TrainingDescription", "classes", lambda a: (0, "one")),
    "a class that is NaN": ("TrainingDescription", "classes", lambda a: (0.0, np.nan)),
}


def tamper_with(kind, field, change):
    """Return a function that changes one field of one class of reply, bypassing all checks."""

    def tamper(request, reply):
        message = decode(reply)
        if type(message).__name__ != kind:
            return reply
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        fields[field] = change(fields[field])
        encoder = msgspec.msgpack.Encoder(
            enc_hook=lambda a: (a.dtype.name, a.shape, np.ascontiguousarray(a).tobytes())
        )
        return encoder.encode({"type": kind, **fields})

    return tamper


@pytest.mark.parametrize("case", CHANGES)
def test_a_client_with_an_invalid_reply_is_lost(case):
    kind, field, change = CHANGES[case]
    method = {"CandidateSums": "union", "Histograms": "histogram", "RowsPerBucket": "histogram"}
    parts = deal(*make_rows(), 3)
    clients = {c: BoostingClient(part) for c, part in zip("ABC", parts, strict=True)}
    recorder = Recorder(clients, tamper={"C": tamper_with(kind, field, change)})
    dense = {"histograms": "dense"} if kind == "Histograms" else {}
    model = FederatedXGBClassifier(2, method=method.get(kind, "top_splits"), tol=None, **dense)
    model.fit(recorder, min_clients=2)
    assert "InvalidReply" in model.ledger_.lost["C"]
    assert len(model.trees_) == 2


@pytest.mark.filterwarnings("ignore:.*one class only")
@settings(max_examples=20)
@given(dealings(), st.data(), st.sampled_from(METHODS))
def test_no_correct_reply_is_rejected(parts, data, method):
    """With weights of any size, rounding to integers keeps a client's sums within its weight."""
    powers = st.integers(-70, 36).map(lambda power: 2.0**power) | st.just(0.0)
    weighted = [
        (X, y, data.draw(hnp.arrays(np.float64, len(y), elements=powers))) for X, y in parts
    ]
    weighted.append((np.zeros((2, parts[0][0].shape[1])), [0, 1], [1.0, 1.0]))  # both classes
    model = FederatedXGBClassifier(
        3, method=method, min_child_weight=0, reg_lambda=0, learning_rate=1.0, tol=None
    )
    assert not model.fit(weighted).ledger_.lost
