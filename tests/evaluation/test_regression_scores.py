"""Scores of predicted numbers: by hand, against scikit-learn on the pooled rows, masked, noisy."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    explained_variance_score,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    root_mean_squared_error,
)

from fedlib import FederatedRegressionScore
from fedlib.core.messages import MessageError
from fedlib.core.protocol import TooFewClients
from fedlib.evaluation.messages import ErrorSums, SumClippedErrors, SumErrors
from fedlib.evaluation.regression_scores import RegressionScoreClient, number_scores
from fedlib.protection.privacy import Privacy, privacy_per_request
from fedlib.protection.privacy.noise import Noise
from fedlib.protection.sums import MaskedNoisySums, NoisySums
from fedlib.sites import models
from fedlib.testing import Recorder, seeded_noise

BOUNDS = [[-20.0], [30.0]]


def predicted(seed=0, sizes=(60, 1, 0, 41), offset=0.0):
    """Return parts with predictions that are biased and have errors."""
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        y = rng.normal(3.0, 2.0, n)
        parts.append((offset + 0.8 * y + 1 + rng.normal(0, 0.5, n), offset + y))
    return parts


def expected(parts):
    """Return scikit-learn's scores of the pooled rows."""
    p, y = (np.concatenate(one) for one in zip(*parts, strict=True))
    return {
        "R2": r2_score(y, p),
        "explained variance": explained_variance_score(y, p),
        "mean absolute error": mean_absolute_error(y, p),
        "mean squared error": mean_squared_error(y, p),
        "root mean squared error": root_mean_squared_error(y, p),
        "mean error": (p - y).mean(),
    }


def test_a_toy_by_hand():
    """The numbers 0 and 2 at one client and 4 at another; errors 1, 0 and -1; their mean is 2."""
    model = FederatedRegressionScore().fit([([1.0, 2.0], [0.0, 2.0]), ([3.0], [4.0])])
    assert model.scores_ == pytest.approx(
        {
            "R2": 1 - 2 / 8,
            "explained variance": 1 - 2 / 8,
            "mean absolute error": 2 / 3,
            "mean squared error": 2 / 3,
            "root mean squared error": np.sqrt(2 / 3),
            "mean error": 0.0,
        }
    )
    assert (model.n_rows_, model.model_.mean) == (3, 2.0)
    assert model.to_frame()["value"].to_dict() == model.scores_
    assert model.ledger_.conversation() == [
        "DescribeFeatures", "Features", "SumErrors", "ErrorSums", "SumErrors", "ErrorSums",
    ]  # fmt: skip


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_scores_of_the_pooled_rows(seed, offset):
    """The squares are about the mean, so a large offset costs no digits."""
    parts = predicted(seed, offset=offset)
    model = FederatedRegressionScore().fit(parts)
    assert model.scores_ == pytest.approx(expected(parts), rel=1e-9)


def test_masked_sums_are_the_same():
    parts = predicted()
    model = FederatedRegressionScore(bounds=BOUNDS, secure=True).fit(parts)
    assert model.scores_ == pytest.approx(expected(parts), rel=1e-6)
    assert model.n_rows_ == 102


def test_numbers_are_clipped_to_the_bounds():
    parts = predicted()
    clipped = [(np.clip(p, 2, 4), np.clip(y, 2, 4)) for p, y in parts]
    model = FederatedRegressionScore(bounds={"estimate": (2.0, 4.0)}, secure=True)
    model.fit([(pd.DataFrame({"estimate": p}), y) for p, y in parts])
    assert model.scores_ == pytest.approx(expected(clipped), rel=1e-6)


@pytest.mark.parametrize("kind", [NoisySums, MaskedNoisySums])
def test_noise_of_the_stated_size(kind):
    """A sum of errors is in units of the range, one of squares in units of its square."""
    parts = predicted(sizes=(10000, 10000))
    n_rows, width = 20000, 18.0
    options = {"bounds": [[-6.0], [12.0]], "epsilon": 5.0, "delta": 1e-6}
    model = FederatedRegressionScore(**options, secure=kind is MaskedNoisySums)
    with seeded_noise(0):
        model.fit(parts)
    sums = kind(privacy_per_request(5.0, 1e-6, 1))
    sums.n_clients = 2
    deviation = sums.deviation(SumClippedErrors(np.array(BOUNDS)).sensitivity()) / n_rows
    units = {"mean error": width, "mean absolute error": width, "mean squared error": width**2}
    for name, unit in units.items():
        error = abs(model.scores_[name] - expected(parts)[name])
        assert 1e-9 < error < 4 * unit * deviation
    assert model.scores_["R2"] == pytest.approx(expected(parts)["R2"], abs=0.1)


def test_a_row_changes_the_sums_by_the_stated_sensitivity():
    request = SumClippedErrors(np.array(BOUNDS))
    rows = np.array([[-99.0, 99.0], [99.0, -99.0], [30.0, 30.0], [-20.0, -20.0], [5.0, 5.0]])
    terms = request.terms(rows)
    assert np.abs(terms).max() <= 1
    assert np.abs(terms).sum(axis=1).max() <= request.sensitivity().l1
    assert terms.shape[1] == request.n_values == request.sensitivity().n_entries


@pytest.mark.parametrize("secure", [False, True])
def test_equal_numbers_and_no_rows(secure):
    options = {"bounds": BOUNDS, "secure": True} if secure else {}
    right, wrong = ([4.0, 4.0], [4.0, 4.0]), ([5.0, 4.0], [4.0, 4.0])
    model = FederatedRegressionScore(**options).fit([right, right])
    assert model.scores_["R2"] == pytest.approx(r2_score([4.0] * 4, [4.0] * 4))
    if not secure:
        assert FederatedRegressionScore().fit([wrong, right]).scores_["R2"] == 0.0
    with pytest.raises(ValueError, match="the clients have no rows"):
        FederatedRegressionScore(**options).fit([([], []), ([], []), ([], [])])


def test_bounds_of_other_columns_are_refused():
    with pytest.raises(MessageError, match="must be of one column, got 2"):
        SumClippedErrors(np.array([[0.0, 0.0], [1.0, 1.0]]))
    with pytest.raises(ValueError, match="bounds must be of one column, the predictions; got 2"):
        FederatedRegressionScore(bounds=[[0, 0], [1, 1]], secure=True).protocol()


def test_noise_may_hide_all_rows():
    """The count is negative by chance or by a liar, and no score is known."""
    request = SumClippedErrors(np.array(BOUNDS), privacy=Privacy(rho=1.0))
    sums, noise = np.array([-9.0, 1.0, -1.0, 1.0, -1.0, -1.0]), Noise(3.0, 1, True)
    scores = number_scores(sums, float(np.mean(BOUNDS)), noise, request.units)
    assert scores.n_rows == 0
    assert np.isnan([scores.mean, scores.r2, scores.mean_absolute_error, scores.mean_error]).all()
    assert scores.intervals[2].tolist() == [0.0, BOUNDS[1][0] - BOUNDS[0][0]]


def test_a_stored_model(tmp_path):
    model = FederatedRegressionScore(bounds=BOUNDS, secure=True).fit(predicted())
    models.save(model, tmp_path / "scores.json")
    assert models.load(tmp_path / "scores.json").scores_ == model.scores_
    assert model.report().startswith(" ")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (([[0.1, 0.9]], [0]), "predictions must be one column; got 2 columns"),
        (([0.1], [0, 1]), "y must contain one number per row, 1; got 2"),
        (([np.nan], [0]), "NaN"),
        (([0.0], [1e101]), "y must lie within"),
        (([0.1], [0], [1.0]), "without weights"),
    ],
)
def test_bad_parts(part, message):
    with pytest.raises(ValueError, match=rf"parts\[0\]: .*{message}"):
        FederatedRegressionScore().fit([part])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"secure": True}, "secure=True needs bounds"),
        ({"epsilon": 1.0}, "epsilon needs bounds"),
        ({"bounds": BOUNDS}, "bounds need secure=True or epsilon"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        FederatedRegressionScore(**parameters).protocol()


# Clients that fail or lie


LIES = {
    "rows in the second round": {"n_rows": 99},
    "a total without squares": {"total": 1e9},
    "errors without sizes": {"errors": 1e9},
    "sizes without squares": {"absolute_errors": 1e9},
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    parts = dict(zip("ABC", predicted(sizes=(30, 40, 30)), strict=True))
    seen = []

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] == "ErrorSums":
            seen.append(fields)
            if len(seen) == 2:
                fields |= LIES[name]
        return msgspec.msgpack.encode(fields)

    clients = {name: RegressionScoreClient(part) for name, part in parts.items()}
    model = FederatedRegressionScore().fit(Recorder(clients, {"B": tamper}), min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at SumErrors, step 3"}
    honest = FederatedRegressionScore().fit([parts["A"], parts["C"]])
    assert model.scores_ == pytest.approx(honest.scores_, rel=1e-9)


def test_a_lost_client_has_no_part_in_the_scores():
    parts = dict(zip("ABC", predicted(sizes=(30, 40, 30)), strict=True))
    clients = {name: RegressionScoreClient(part) for name, part in parts.items()}
    with pytest.raises(TooFewClients, match="Lost: 'B'"):
        FederatedRegressionScore().fit(Recorder(clients, {"B": lambda request, reply: None}))


def test_sums_of_tiny_numbers_are_accepted():
    """Their squares are 0, and no honest client is refused for it."""
    client = RegressionScoreClient(([1e-200, 2e-200], [2e-200, 4e-200]))
    request = SumErrors(0.0)
    assert request.accept(client.handle(request)).squares == 0
    with pytest.raises(MessageError, match="must fit the squares"):
        request.accept(ErrorSums(1, 2.0, 1.0, 0.0, 0.0, 0.0))
