"""Packed histograms: they return exactly, and a run with them grows the same trees."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.histograms import (
    BuildHistograms,
    BuildPackedHistograms,
    PackedHistograms,
    unpack,
)
from fedlib.core.in_process import InProcess
from fedlib.core.messages import MAX_WORK, MessageError, cost_error, decode, encode
from fedlib.testing import Recorder

from .common import Unreliable, assert_same_trees, deal, make_rows, pack_sums
from .test_objectives import make_counts

SUMS = st.sampled_from([0, 0, 0, 1, -1, 127, 128, -128, -129, 2**40, 3 * 2**30, -(2**62), 2**62])


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(0, 3), st.integers(1, 9), st.just(2)), elements=SUMS)
)
@settings(max_examples=60)
def test_histograms_return_exactly(sums):
    packed = decode(encode(pack_sums(sums, 1.5)))
    histograms = unpack(packed, request_for(*sums.shape[:2]))
    np.testing.assert_array_equal(histograms.sums, sums)
    assert histograms.loss == 1.5


@pytest.mark.parametrize("parameters", [{}, {"grow_policy": "lossguide", "max_leaves": 8}])
def test_the_trees_are_the_same_for_fewer_bytes(parameters):
    X, y = make_rows(300, missing=0.1)
    for estimator, labels in (
        (FederatedXGBClassifier(3, tol=None, histograms="dense", **parameters), y),
        (FederatedXGBRegressor(3, histograms="dense", **parameters), make_counts(300)[1]),
    ):
        parts = deal(X, labels, 3)
        trees = estimator.fit(parts).trees_
        n_bytes = estimator.ledger_.to_frame()["bytes"].sum()
        estimator.set_params(histograms="packed").fit(parts)
        assert_same_trees(estimator.trees_, trees)
        assert estimator.ledger_.to_frame()["bytes"].sum() < 0.5 * n_bytes


def request_for(n_nodes, n_bins, kind=BuildPackedHistograms):
    """Return a request about all of some nodes."""
    fields = {"feature": np.empty(0, np.int32), "threshold": np.empty(0, np.float32)}
    fields |= {"missing_left": np.empty(0, bool), "decided": 0, "first": 0, "n_open": n_nodes}
    fields |= {"values": np.empty(0, np.float32), "weight": 1.0, "n_bins": n_bins}
    return kind(**fields, wanted=np.ones(n_nodes, bool))


def test_as_many_sums_may_be_packed_as_sent_densely():
    for kind in (BuildHistograms, BuildPackedHistograms):
        request = request_for(16, 2_560_000, kind)
        assert request.memory() == 2 * 16 * 2_560_000
        assert not cost_error(request, MAX_WORK)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filled": np.zeros(2, np.uint8)}, "2 bytes of bits for 8 bins"),
        ({"values": np.zeros(3, np.uint8)}, "3 bytes for 16 sums of 1"),
    ],
)
def test_histograms_that_do_not_fit_are_refused(changes, message):
    fields = {"filled": np.full(1, 255, np.uint8), "values": np.ones(16, np.uint8)}
    packed = PackedHistograms(**{"shift": 0, "width": 1, "loss": 0.0, **fields, **changes})
    with pytest.raises(MessageError, match=message):
        request_for(1, 8).accept(packed)


# The fields of a reply about one node with two features of four bins, and why it cannot be right.
LIES = {
    "an int64 is too small": ({"shift": 62, "values": [100, 0] * 8}, "exceed the weight"),
    "a negative hessian": ({"values": [0, 255] * 8}, "a negative sum of hessians"),
    "too much": ({"shift": 52, "values": [1, 1] * 8}, "exceed the weight"),
    "features differ": ({"values": [1, 1] * 7 + [1, 2]}, "two features do not have the same sum"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_packs_impossible_sums_is_lost(lie):
    """And the trees are those of the other clients, as if it had sent nothing."""
    _, y = make_rows(60)
    X = np.repeat([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], 20, axis=0)
    parts = dict(zip("ABC", deal(X, y, 3), strict=True))
    fields, reason = LIES[lie]
    values = np.array(fields["values"], np.uint8)

    def tamper(request, reply):
        message = decode(reply)
        if not isinstance(message, PackedHistograms):
            return reply
        wrong = {"shift": 0, "width": 1, "loss": message.loss, **fields, "values": values}
        return encode(PackedHistograms(filled=np.full(1, 255, np.uint8), **wrong))

    clients = {name: BoostingClient(part) for name, part in parts.items()}
    model = FederatedXGBClassifier(2, tol=None)
    model.fit(Recorder(clients, tamper={"C": tamper}), min_clients=2)
    assert reason in model.ledger_.why_lost("C")
    trees = model.trees_
    clients = {name: BoostingClient(part) for name, part in parts.items()}
    clients["C"] = Unreliable(parts["C"], (BuildPackedHistograms,), 0)
    assert_same_trees(trees, model.fit(InProcess(clients), min_clients=2).trees_)
