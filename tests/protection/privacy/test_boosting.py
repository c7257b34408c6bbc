"""Boosting with noise: what one row can change, what is requested, and the trees."""

import numpy as np
import pandas as pd
import pytest

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor, Schema
from fedlib.boosting import tree_client
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.histograms import SumNoisyHistograms
from fedlib.boosting.messages import BeginBoosting
from fedlib.boosting.secure import gradient_limits, row_sensitivity, scaled_gradients
from fedlib.core.ledger import SERVER
from fedlib.protection.privacy import privacy_per_request
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + X[:, 1] ** 2
BOUNDS = [[-2.0, -2.0], [2.0, 2.0]]
TREES = {
    "reg_lambda": 1.0,
    "n_trees": 2,
    "max_depth": 2,
    "max_bin": 6,
    "bounds": BOUNDS,
    "tol": None,
}
GUARANTEE = {"epsilon": 2.0, "delta": 1e-6}


def parts(y):
    return list(zip(np.array_split(X, 3), np.array_split(y, 3), strict=True))


def classifier(**options):
    return FederatedXGBClassifier(
        **{**TREES, **GUARANTEE, "method": "histogram", "classes": [False, True], **options}
    )


@pytest.fixture
def without_noise(monkeypatch):
    """Let clients send their clipped sums."""
    monkeypatch.setattr(tree_client, "add_noise", lambda values, *_: values)


def first_request(n_outputs):
    """Return the request for the histograms of the roots of the first trees."""
    return SumNoisyHistograms(
        decided=0,
        feature=np.empty(0, np.int32),
        threshold=np.empty(0, np.float32),
        missing_left=np.empty(0, bool),
        values=np.empty(0, np.float32),
        first=0,
        n_open=n_outputs,
        weight=0.0,
        wanted=np.ones(n_outputs, bool),
        n_bins=6,
        n_rounds=0,
        privacy=privacy_per_request(1.0, 1e-6, 1),
        max_gradient=2.0,
    )


def begin(client, objective, n_outputs, bits):
    edges = np.array([0, 3, 6]), np.array([0, 2**127, 2**127] * 2, np.float32)
    classes = tuple(range(n_outputs)) if n_outputs > 1 else (False, True)
    request = BeginBoosting(
        () if objective.startswith("reg") else classes,
        0.5,
        bits,
        *edges,
        objective=objective,
        base_margins=(0.3,) * n_outputs if n_outputs > 1 else (),
        parameter=1.0,
    )
    client.handle(request)


def histograms(client, objective, n_outputs):
    """Return the histograms of a client before the first tree."""
    sensitivity = row_sensitivity(gradient_limits(objective, 2.0), 2, n_outputs)
    begin(client, objective, n_outputs, sensitivity.digits)
    return client.handle(first_request(n_outputs)).sums, sensitivity


@pytest.mark.parametrize(
    ("objective", "n_outputs"),
    [
        ("binary:logistic", 1),
        ("multi:softprob", 3),
        ("reg:squarederror", 1),
        ("reg:pseudohubererror", 1),
    ],
)
@pytest.mark.usefixtures("without_noise")
def test_no_row_changes_more_than_stated(objective, n_outputs):
    """Also with a huge target, a huge weight, or missing features: all are clipped."""
    rows = np.array([[1.0, -1.0], [np.nan, 3.0], [-1.0, 9.0], [0.0, 0.0]])
    weights = np.array([1.0, 0.3, 1e6, 1e9])
    kind, labels = BoostingClient, [1, 0, 0, 1]
    if objective.startswith("reg"):
        kind, labels = RegressionClient, [1.0, -3.0, 1e12, -1e12]
    whole, sensitivity = histograms(kind((rows, labels, weights)), objective, n_outputs)
    for i in range(len(rows)):
        rest = [np.delete(array, i, axis=0) for array in (rows, labels, weights)]
        change = whole - histograms(kind(rest), objective, n_outputs)[0]
        l1, l2 = np.abs(change).sum(), np.sqrt((change**2).sum())
        assert 0 < l1 * 2**sensitivity.digits <= sensitivity.units[0]
        assert l2 * 2**sensitivity.digits <= sensitivity.units[1]
        assert (change != 0).sum() <= sensitivity.n_entries


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("secure", [False, True])
def test_without_noise_the_trees_are_those_of_the_plain_run(secure):
    """The unit of gradients is coarser: leaves differ by about a millionth."""
    data = parts(Y > 0.5)
    noisy = classifier(secure=secure).fit(data)
    plain = FederatedXGBClassifier(**TREES, method="histogram", base_score=0.5).fit(data)
    for tree, other in zip(noisy.trees_, plain.trees_, strict=True):
        assert tree.feature.tolist() == other.feature.tolist()
        assert tree.threshold.tolist() == other.threshold.tolist()
        assert tree.value == pytest.approx(other.value, abs=1e-4)
    assert noisy.losses_ == []


@pytest.mark.usefixtures("without_noise")
def test_a_regression_without_noise():
    data = parts(Y)
    options = TREES | {"base_score": 1.0}
    noisy = FederatedXGBRegressor(**options, **GUARANTEE, max_gradient=100.0).fit(data)
    plain = FederatedXGBRegressor(**options).fit(data)
    assert noisy.predict(X) == pytest.approx(plain.predict(X), abs=1e-4)


@pytest.mark.usefixtures("without_noise")
def test_the_largest_gradient_follows_from_the_limits_of_the_targets():
    """Without it, targets far from the first prediction could not be learnt by ten trees."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.random(300)}).assign(cost=lambda t: (200 * t["x"]).round())
    fields = [
        {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 1}},
        {"name": "cost", "type": "number", "constraints": {"minimum": 0, "maximum": 200}},
    ]
    fields = [field | {"fedlib": {"fill": 0}} for field in fields]
    fields[1]["fedlib"] = {"role": "target"}
    fields[1]["constraints"]["required"] = True
    schema = Schema({"name": "study", "schema": {"fields": fields}})
    options = {"schema": schema, "base_score": 70.0, "reg_lambda": 1.0} | GUARANTEE
    parts = [table[:100], table[100:]]
    model = FederatedXGBRegressor(**options).fit(parts)
    assert model.score(table[["x"]], table["cost"]) > 0.8
    text = "max_gradient must be larger or the trees more: 10 trees move a prediction by at most 3 "
    with pytest.warns(UserWarning, match=text):
        FederatedXGBRegressor(**options, max_gradient=1.0).protocol()
    FederatedXGBRegressor(**options, max_gradient=50.0).protocol()
    for objective in ("reg:pseudohubererror", "reg:logistic"):
        FederatedXGBRegressor(
            objective=objective, base_score=0.5, bounds=[[0], [1]], **GUARANTEE
        ).protocol()


@pytest.mark.parametrize("secure", [False, True])
def test_the_requests_and_their_losses(secure):
    """One request per level of a round, each with the same part of the guarantee."""
    clients = {str(i): BoostingClient(part) for i, part in enumerate(parts(Y > 0.5))}
    if secure:
        identities = simulated_identities(list(clients))
        clients = {name: SecureClient(one, identities[name]) for name, one in clients.items()}
    recorder = Recorder(clients)
    with seeded_noise(0):
        classifier(secure=secure).fit(recorder)
    loss = str(privacy_per_request(2.0, 1e-6, TREES["n_trees"] * TREES["max_depth"]))
    asked = "MaskedValues" if secure else "NoisyHistograms"
    replies = [e for e in recorder.ledger if e.message == asked and e.sender == "0"]
    assert 0 < len(replies) <= TREES["n_trees"] * TREES["max_depth"]
    losses = [e.discloses for e in recorder.ledger if e.sender == SERVER and "rho=" in e.discloses]
    assert all(loss in text for text in losses)
    sent = {e.message for e in recorder.ledger if e.sender == "0"}
    assert sent - {"Features", "Done"} <= {
        "NoisyHistograms",
        "SignedKeys",
        "EncryptedShares",
        "MaskedValues",
        "Confirmation",
        "RevealedShares",
    }


def test_the_noise_changes_the_trees():
    """With a large epsilon, the predictions are nearly those without noise."""
    data = parts(Y > 0.5)
    with seeded_noise(0):
        strong, weak = (classifier(epsilon=epsilon).fit(data) for epsilon in (0.1, 1000.0))
    plain = FederatedXGBClassifier(**TREES, method="histogram", base_score=0.5).fit(data)
    expected = plain.predict_proba(X)[:, 1]
    errors = [np.abs(m.predict_proba(X)[:, 1] - expected).mean() for m in (strong, weak)]
    assert errors[1] < 0.02 < errors[0]


def test_a_client_refuses_another_unit_whatever_its_rows_are():
    for client in (BoostingClient((X, Y > 0)), BoostingClient((X[:0], Y[:0] > 0))):
        begin(client, "binary:logistic", 1, bits=25)
        with pytest.raises(ValueError, match="bits must be 20, got 25"):
            client.handle(first_request(1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        (
            {"method": "union", "bounds": None},
            "epsilon needs method='histogram', because",
        ),
        ({"bounds": None}, "epsilon needs bounds, the smallest"),
        ({"tol": 0.1}, "epsilon needs tol=None .got 0.1"),
        ({"grow_policy": "lossguide"}, "epsilon needs grow_policy='depthwise' .got 'lossguide'"),
        ({"scale_pos_weight": 2.0}, "epsilon needs scale_pos_weight=1.0 .got 2.0"),
        ({"eval_metric": "auc"}, "epsilon needs eval_metric=None .got 'auc'"),
        ({"warm_start": True}, "epsilon needs warm_start=False .got True"),
        ({"classes": None}, "epsilon needs classes, those that the labels may have"),
        ({"secure": True, "delta": 0.0}, "needs delta > 0"),
    ],
)
def test_bad_parameters_of_the_classifier(options, text):
    with pytest.raises(ValueError, match=text):
        classifier(**options).protocol()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"objective": "count:poisson", "base_score": 1.0}, "because the hessians have no bound"),
        ({}, "epsilon needs base_score, a guess of the mean .got None"),
        ({"base_score": 1.0, "max_gradient": 0.0}, "max_gradient"),
        (
            {"base_score": 1.0},
            "epsilon needs max_gradient, about the largest difference of a target",
        ),
    ],
)
def test_bad_parameters_of_the_regressor(options, text):
    with pytest.raises(ValueError, match=text):
        FederatedXGBRegressor(**TREES, **GUARANTEE, **options).protocol()


def test_a_huge_noisy_number_is_no_overflow():
    """The largest float, in any unit, does not fit an int64; the sum over three bins does."""
    largest = np.finfo(float).max
    units = scaled_gradients(np.full((1, 3, 2), [largest, -largest]), bits=40)
    totals = units.sum(axis=1, dtype=object)[0].tolist()
    assert totals == pytest.approx([2**60, -(2**60)])


def test_constraints_apply_to_noisy_sums():
    """They restrict the server, so a run asks the same with them and without."""
    options = {"n_trees": 6, "max_depth": 3, "epsilon": 50.0}
    constraints = {"interaction_constraints": [[0], [1]], "monotone_constraints": {0: 1}}
    with seeded_noise(0):
        free = classifier(**options).fit(parts(Y > 0))
    with seeded_noise(0):
        model = classifier(**options, **constraints).fit(parts(Y > 0))
    assert model.ledger_.conversation() == free.ledger_.conversation()
    paths = [set(tree.feature[tree.feature >= 0]) for tree in model.trees_]
    assert max(map(len, paths)) == 1
    assert max(len(set(tree.feature[tree.feature >= 0])) for tree in free.trees_) == 2
    grid = np.column_stack([np.linspace(-2, 2, 50), np.zeros(50)])
    assert (np.diff(model.decision_function(grid)) >= 0).all()
