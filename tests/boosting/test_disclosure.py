"""What the replies disclose to the server: as their ``discloses`` texts state."""

import numpy as np
import pytest

from fedlib import FederatedXGBClassifier
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.histograms import Histograms
from fedlib.boosting.messages import CandidateSums, EvaluateSplits, LeafSums
from fedlib.testing import Recorder

from .common import cuts_of, deal, first_message, make_rows


def record(parts):
    return Recorder({name: BoostingClient(p) for name, p in zip("AB", parts, strict=True)})


def rows_and_positive_rows(sums, model, n_rows):
    """Return the numbers of rows and positive rows behind sums (…, 2) of the first tree."""
    p = np.float64(np.float32(model.base_share_))
    g, h = np.moveaxis(sums * 2.0 ** (np.ceil(np.log2(n_rows)) - 52), -1, 0)
    n = h / (p * (1 - p))
    return np.stack([n, n * p - g], axis=-1)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_histograms_disclose_the_classes_in_every_bin(missing):
    X, y = make_rows(200, missing=missing)
    parts = deal(X, y, 2)
    recorder = record(parts)
    model = FederatedXGBClassifier(1, tol=None, histograms="dense").fit(recorder)
    cuts = cuts_of(X)
    classes = parts[0][1]
    truth = np.zeros((len(cuts.thresholds), 2))
    for f, bins in enumerate(cuts.bins(parts[0][0].astype(np.float32)).T):
        np.add.at(truth, cuts.offsets[f] + bins, np.column_stack([np.ones(len(bins)), classes]))
    reply = first_message(recorder.exchanges, Histograms, "A")
    disclosed = rows_and_positive_rows(reply.sums[0], model, len(y))
    np.testing.assert_allclose(disclosed, truth, atol=1e-3)
    assert (truth[:, 0] == 1).any()  # the class of a single row


def test_candidates_and_leaves_disclose_classes():
    X, y = make_rows(200)
    parts = deal(X, y, 2)
    recorder = record(parts)
    model = FederatedXGBClassifier(1, method="union", max_depth=1).fit(recorder)
    rows, classes = parts[0][0].astype(np.float32), parts[0][1]

    request = first_message(recorder.exchanges, EvaluateSplits, "A")
    reply = first_message(recorder.exchanges, CandidateSums, "A")
    goes_left = rows[:, request.feature] < request.threshold
    truth = np.stack([goes_left.sum(axis=0), goes_left[classes == 1].sum(axis=0)], axis=-1)
    disclosed = rows_and_positive_rows(reply.left, model, len(y))
    np.testing.assert_allclose(disclosed, truth, atol=1e-3)

    tree = model.trees_[0]
    left = rows[:, tree.feature[0]] < tree.threshold[0]
    truth = [[0, 0], *([side.sum(), classes[side].sum()] for side in (left, ~left))]
    sums = first_message(recorder.exchanges, LeafSums, "A").sums
    np.testing.assert_allclose(rows_and_positive_rows(sums, model, len(y)), truth, atol=1e-3)
