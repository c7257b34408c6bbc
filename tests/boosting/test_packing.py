"""Packed histograms: they return exactly, and a run with them grows the same trees."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.messages import BuildHistograms
from fedlib.boosting.packing import BuildPackedHistograms, PackedHistograms, pack, unpack
from fedlib.core.messages import MessageError, decode, encode
from fedlib.core.work import MAX_WORK, problem_of_work

from .common import assert_same_trees, deal, make_rows
from .test_objectives import make_counts

SUMS = st.sampled_from([0, 0, 0, 1, -1, 127, 128, -128, -129, 2**40, 3 * 2**30, -(2**62), 2**62])


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(0, 3), st.integers(1, 9), st.just(2)), elements=SUMS)
)
@settings(max_examples=60)
def test_histograms_return_exactly(sums):
    packed = decode(encode(pack(sums, 1.5)))
    histograms = unpack(packed, *sums.shape[:2])
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


def test_as_many_sums_may_be_packed_as_sent_densely():
    fields = {"feature": np.empty(0, np.int32), "threshold": np.empty(0, np.float32)}
    fields |= {"missing_left": np.empty(0, bool), "decided": 0, "first": 0, "n_open": 16}
    fields |= {
        "values": np.empty(0, np.float32),
        "weight": 1.0,
        "wanted": np.ones(16, bool),
        "n_bins": 2_560_000,
    }
    for request in (BuildHistograms(**fields), BuildPackedHistograms(**fields)):
        assert request.memory() == 2 * 16 * 2_560_000
        assert not problem_of_work(request, MAX_WORK)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filled": np.zeros(2, np.uint8)}, "bytes of bits for 1 × 8 bins"),
        ({"planes": np.zeros(3, np.uint8)}, "3 bytes for 16 sums of 1"),
        ({"shift": 62, "planes": np.full(16, 100, np.uint8)}, "exceed an int64"),
    ],
)
def test_impossible_histograms_are_refused(changes, message):
    fields = {"filled": np.full(1, 255, np.uint8), "planes": np.ones(16, np.uint8)}
    fields = {"shift": 0, "width": 1, "loss": 0.0, **fields, **changes}
    with pytest.raises(MessageError, match=message):
        unpack(PackedHistograms(**fields), 1, 8)
