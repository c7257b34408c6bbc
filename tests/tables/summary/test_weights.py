"""Summaries of rows with weights against NumPy on pooled rows, on all kinds of sums."""

import numpy as np
import pandas as pd
import pytest

from fedlib import FederatedSummary, Schema
from fedlib.core.messages import decode, encode
from fedlib.protection.privacy import Privacy
from fedlib.sites.models import load, save
from fedlib.tables.summary import SummaryClient
from fedlib.tables.summary.private import SumWeightedColumns
from fedlib.testing import Recorder, seeded_noise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)) * [1.0, 20.0, 0.1] + [0.0, 100.0, -3.0]
X[5, 1] = X[7, 1] = np.nan
W = RNG.integers(0, 5, 300) / 2
ENDS = [(0, 40), (40, 41), (41, 41), (41, 300)]  # also one row, and none
BOUNDS = [[-4.0, 20.0, -3.5], [4.0, 180.0, -2.5]]
RUN = {"quantiles": (), "bounds": BOUNDS, "max_weight": 2.0}


def parts(rows=X, weights=W):
    return [(rows[a:b], weights[a:b]) for a, b in ENDS]


def check(model, rows, weights, n_bins=10, rtol=1e-9):
    """Compare with NumPy's weighted moments and histograms; integer weights repeat rows."""
    for j, column in enumerate(rows.T):
        known = ~np.isnan(column)
        values, w = np.clip(column[known], BOUNDS[0][j], BOUNDS[1][j]), weights[known]
        mean = np.average(values, weights=w)
        variance = w @ np.square(values - mean) / (w.sum() - 1)
        width = BOUNDS[1][j] - BOUNDS[0][j]
        np.testing.assert_allclose(model.means[j], mean, atol=rtol * width)
        np.testing.assert_allclose(model.variances[j], variance, atol=rtol * width**2)
        np.testing.assert_allclose(model.weights[j], w.sum(), rtol=rtol)
        counts, edges = np.histogram(values, n_bins, (BOUNDS[0][j], BOUNDS[1][j]), weights=w)
        np.testing.assert_allclose(model.histograms[j], counts, atol=rtol * w.sum())
        np.testing.assert_allclose(model.edges[j], edges)
        assert model.counts[j] == known.sum()
    assert model.n_rows == len(rows)


@pytest.mark.parametrize("options", [{}, {"secure": True}])
def test_moments_and_histograms_are_numpys(options):
    fitted = FederatedSummary(**RUN, **options).fit([parts()[i] for i in (0, 1, 3)])
    check(fitted.model_, X, W)
    assert fitted.to_frame()["mean"].notna().all()


def test_an_integer_weight_counts_like_equal_rows():
    weights = (2 * W).astype(int)
    weighted = FederatedSummary(**RUN | {"max_weight": 4.0}).fit(parts(weights=weights)).model_
    repeated = np.repeat(X, weights, axis=0)
    plain = FederatedSummary(quantiles=(), bounds=BOUNDS).fit([repeated]).model_
    np.testing.assert_allclose(weighted.means, plain.means, rtol=1e-9)
    np.testing.assert_allclose(weighted.variances, plain.variances, rtol=1e-9)
    np.testing.assert_allclose(weighted.histograms, plain.histograms, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"secure": True}])
def test_values_and_weights_beyond_the_limits_are_clipped(options):
    far, heavy = X.copy(), W.copy()
    far[0], heavy[1] = [1e99, -1e99, 0.0], 9.0
    model = FederatedSummary(**RUN, **options).fit([parts(far, heavy)[i] for i in (0, 1, 3)]).model_
    check(model, far, np.minimum(heavy, 2.0))


@pytest.mark.parametrize("secure", [False, True])
def test_with_noise(secure):
    noisy = FederatedSummary(**RUN, secure=secure, epsilon=500.0, delta=1e-6, n_bins=4)
    with seeded_noise(0):
        model = noisy.fit([parts()[i] for i in (0, 1, 3)]).model_
    known = ~np.isnan(X)
    expected = [np.average(X[known[:, j], j], weights=W[known[:, j]]) for j in range(3)]
    assert (np.abs(model.means - expected) < np.diff(BOUNDS, axis=0)[0] / 20).all()
    np.testing.assert_allclose(model.weights, W @ known, rtol=0.1)


def test_a_part_without_weights_counts_once_per_row():
    model = FederatedSummary(**RUN).fit([parts()[0], X[40:]]).model_
    check(model, X, np.concatenate([W[:40], np.ones(260)]))


def test_weights_of_0_leave_nothing():
    model = FederatedSummary(**RUN).fit([(X[:9], np.zeros(9))]).model_
    assert np.isnan(model.means).all()
    assert np.isnan(model.variances).all()
    assert model.weights.tolist() == [0.0] * 3
    assert model.n_rows == 9


FIELDS = [
    {
        "name": "age",
        "type": "number",
        "constraints": {"minimum": 0, "maximum": 100},
        "fedlib": {"fill": 50},
    },
    {"name": "sex", "type": "string", "constraints": {"enum": ["f", "m"], "required": True}},
    {
        "name": "w",
        "type": "number",
        "constraints": {"minimum": 0, "maximum": 3, "required": True},
        "fedlib": {"role": "weight"},
    },
]
SCHEMA = Schema({"schema": {"fields": FIELDS}})
TABLE = pd.DataFrame(
    {"age": RNG.uniform(1, 99, 60), "sex": ["f", "m", "m"] * 20, "w": RNG.integers(0, 4, 60) / 1.0}
)


@pytest.mark.parametrize("options", [{}, {"secure": True}])
def test_the_weights_of_a_schema(options):
    estimator = FederatedSummary(quantiles=(), schema=SCHEMA, max_weight=3.0, **options)
    model = estimator.fit([TABLE[:20], TABLE[20:40], TABLE[40:]]).model_
    assert model.features == ("age", "sex", "w")
    assert model.means[0] == pytest.approx(np.average(TABLE["age"], weights=TABLE["w"]))
    assert model.category_counts[1].tolist()[:2] == [20, 40]
    assert model.counts.tolist() == [60, 60, 60]
    unweighted = FederatedSummary(quantiles=(), schema=SCHEMA, **options)
    model = unweighted.fit([TABLE[:20], TABLE[20:40], TABLE[40:]]).model_
    assert model.means[0] == pytest.approx(TABLE["age"].mean())
    assert model.weights is None


@pytest.mark.parametrize("n_bins", [0, 3])
def test_one_row_changes_as_much_as_is_declared(n_bins):
    """The row at the upper limits, with the largest weight, changes every sum by 1."""
    request = SumWeightedColumns(
        np.array([[0.0, 0.0], [1.0, 4.0]]),
        np.arange(2),
        n_bins,
        2.0,
        np.array([2]),
        np.array([2]),
        ("f", "m"),
        privacy=Privacy(rho=1.0),
    )
    sensitivity = request.sensitivity()
    terms = request.terms(np.array([[2.0, 1.0, 4.0, 0.0], [9.0, 1e300, -7.0, 1.0]]))
    assert terms.shape == (2, request.n_values)
    for row in terms:
        assert np.abs(row).sum() == sensitivity.l1 == sensitivity.n_entries
        assert np.linalg.norm(row) == pytest.approx(sensitivity.l2)
    nothing = request.terms(np.array([[1.0, np.nan, np.nan, -1.0]]))
    assert nothing.sum() == 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, r"parts\[0\] has weights, so the run needs max_weight"),
        ({"max_weight": 2.0}, r"quantiles=None.*; bounds of all columns, or a schema"),
        (RUN | {"quantiles": [0.5]}, r"needs quantiles=None \(got \[0.5\]\)"),
        (RUN | {"max_weight": 2.0**41}, r"at most 2\*\*40"),
        (RUN | {"bounds": [[0.0], [1.0]]}, "bounds must have the 3 features"),
    ],
)
def test_errors_name_the_remedy(options, text):
    with pytest.raises(ValueError, match=text):
        FederatedSummary(**options).fit(parts())
    with pytest.raises(ValueError, match="sample_weight"):
        FederatedSummary(**RUN).fit([(X, -W)])


def test_impossible_sums_cost_a_client_its_place():
    def lie(request, reply):
        reply = decode(reply)
        if type(reply).__name__ == "RowTotals":
            values = reply.values.copy()
            values[3] = 1e9
            reply = type(reply)(values)
        return encode(reply)

    clients = {name: SummaryClient((X[i::3], W[i::3])) for i, name in enumerate("ABC")}
    model = FederatedSummary(**RUN).fit(Recorder(clients, tamper={"C": lie}), min_clients=2)
    assert list(model.ledger_.lost) == ["C"]
    rest = np.arange(300) % 3 < 2
    check(model.model_, X[rest], W[rest])


def test_a_model_file_has_the_weights(tmp_path):
    model = FederatedSummary(**RUN).fit(parts())
    save(model, tmp_path / "model.npz")
    loaded = load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.model_.weights, model.model_.weights)
    np.testing.assert_array_equal(loaded.model_.histograms, model.model_.histograms)
