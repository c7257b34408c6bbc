"""Survival times with censoring: by hand, equal to XGBoost, and which times are refused."""

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedlib import FederatedXGBRegressor, Schema
from fedlib.boosting.data import check_targets
from fedlib.kernels.objectives import derivatives, negative_log_likelihoods
from fedlib.sites import models
from fedlib.tables.files import read_table

from .common import METHODS, assert_same_trees, deal, make_rows
from .exact import RULES, different_nodes

AFT = {"objective": "survival:aft"}
DISTRIBUTIONS = ["normal", "logistic", "extreme"]
each = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


def make_times(n=300, seed=0, missing=0.0):
    """Return rows and limits of times: exact ones, and those with a right, a left or two limits."""
    X, _ = make_rows(n, seed=seed, missing=missing)
    rng = np.random.default_rng(seed)
    time = np.exp(np.nan_to_num(X[:, 0]) + 0.5 * rng.normal(size=n))
    kind = rng.integers(0, 4, n)
    low = np.where(kind == 1, 0, time)
    high = np.select([kind == 2, kind == 3], [np.inf, 1.5 * time], time)
    return X, np.column_stack([low, high]).astype(np.float32)


# By hand ----------------------------------------------------------------------------------------


def test_known_times_with_a_normal_distribution():
    """The logarithms 0 and 2, from 0.5 on: g = (0.5 - log t) / σ² and h = 1 / σ²."""
    options = {"base_score": np.exp(0.5), "reg_lambda": 0, "min_child_weight": 0}
    model = FederatedXGBRegressor(
        1, aft_loss_distribution_scale=2.0, learning_rate=1.0, **AFT, **options
    )
    model.fit([([[1.0]], [[1.0, 1.0]]), ([[1.0]], [[np.exp(2.0), np.exp(2.0)]])])
    assert model.trees_[0].value[0] == pytest.approx(0.5)
    assert model.predict([[1.0]])[0] == pytest.approx(np.e)


def likelihood(margin, low, high, sigma, distribution):
    """Return the negative log-likelihood of a time by its textbook formula."""
    z_low, z_high = ((np.log(t) - margin) / sigma if t > 0 else -np.inf for t in (low, high))
    from scipy import stats

    of = {"normal": stats.norm, "logistic": stats.logistic, "extreme": stats.gumbel_l}[distribution]
    if low == high:
        return -np.log(of.pdf(z_low) / (sigma * low))
    return -np.log(of.cdf(z_high) - of.cdf(z_low))


@each
@pytest.mark.parametrize("limits", [(2.0, 2.0), (2.0, np.inf), (0.0, 2.0), (2.0, 3.0)], ids=str)
def test_derivatives_are_those_of_the_likelihood(limits, distribution):
    code, margin, sigma, step = DISTRIBUTIONS.index(distribution), 0.3, 1.3, 1e-4
    before, at, after = (
        likelihood(margin + d, *limits, sigma, distribution) for d in (-step, 0, step)
    )
    g, h = derivatives(*limits, margin, sigma, code)
    assert g == pytest.approx((after - before) / (2 * step), rel=1e-5)
    assert h == pytest.approx((after - 2 * at + before) / step**2, rel=1e-4)
    rows = np.array([limits], np.float32)
    found = negative_log_likelihoods(np.array([margin]), rows, np.array([code, sigma]))
    assert found == pytest.approx([at])


@each
@pytest.mark.parametrize("margin", [-1e5, -800.0, -40.0, 40.0, 800.0, 1e5, 3e38])
def test_derivatives_far_away_are_finite_and_limited(margin, distribution):
    for limits in [(2.0, 2.0), (2.0, np.inf), (0.0, 2.0), (2.0, 3.0), (1e-38, 1e-38)]:
        for sigma in (1e-6, 1.0, 1e6):
            g, h = derivatives(*limits, margin, sigma, DISTRIBUTIONS.index(distribution))
            assert abs(g) <= 15
            assert 0 < h <= 15


# XGBoost ----------------------------------------------------------------------------------------


@pytest.mark.jit
@each
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_the_trees_are_those_of_xgboost_on_the_same_bins(distribution, missing):
    X, y = make_times(400, missing=missing)
    options = {"aft_loss_distribution": distribution, "aft_loss_distribution_scale": 0.8}
    model = FederatedXGBRegressor(6, xgboost_rules=RULES, **AFT, **options)
    trees = model.fit([(X, y)]).trees_
    assert_same_trees(model.fit(deal(X, y, 5)).trees_, trees)
    n_nodes, differences = different_nodes(model, X, y, max_depth=6, **options)
    assert n_nodes > 100
    assert differences == []


@each
@pytest.mark.parametrize("method", METHODS)
def test_predictions_and_metrics_are_those_of_xgboost(distribution, method):
    X, y = make_times(missing=0.1)
    new, limits = make_times(120, seed=1)
    metrics = ["interval-regression-accuracy", "aft-nloglik"]
    options = {"aft_loss_distribution": distribution, "aft_loss_distribution_scale": 1.5}
    parts = [(*part, None, (new, limits)) for part in deal(X, y, 3)]
    model = FederatedXGBRegressor(
        4, method=method, max_depth=3, eval_metric=metrics, **AFT, **options
    ).fit(parts)
    assert model.base_score_ == 0.5
    assert (np.diff(model.losses_) < 0).all()
    data = xgboost.DMatrix(new, label_lower_bound=limits[:, 0], label_upper_bound=limits[:, 1])
    booster = model.to_xgboost()
    np.testing.assert_allclose(booster.predict(data), model.predict(new), rtol=1e-5)
    for name in metrics:
        scored = booster[:4]
        scored.set_param({"eval_metric": name, **options})
        found = model.evals_result_["validation_0"][name][-1]
        assert found == pytest.approx(float(scored.eval(data).rpartition(":")[2]), rel=1e-5)
    taken = FederatedXGBRegressor.from_xgboost(booster)
    np.testing.assert_array_equal(taken.predict(new), model.predict(new))
    assert taken.aft_loss_distribution == distribution


def test_early_stopping_maximises_the_accuracy():
    X, y = make_times()
    metric = {"eval_metric": "interval-regression-accuracy", "early_stopping_rounds": 2}
    model = FederatedXGBRegressor(9, learning_rate=0.9, **metric, **AFT)
    model.fit([(X[:200], y[:200], None, (X[200:], y[200:]))])
    values = model.evals_result_["validation_0"]["interval-regression-accuracy"]
    assert model.best_score_ == max(values)


# Options ------------------------------------------------------------------------------------------


def test_masked_sums_give_the_same_trees():
    X, y = make_times()
    common = {"max_bin": 16, "bounds": [[-4.0] * 4, [4.0] * 4], "max_depth": 3, **AFT}
    clear = FederatedXGBRegressor(4, **common).fit(deal(X, y, 3))
    masked = FederatedXGBRegressor(4, secure=True, **common).fit(deal(X, y, 3))
    assert_same_trees(masked.trees_, clear.trees_)
    with pytest.raises(ValueError, match="max_target must be None for objective='survival:aft'"):
        FederatedXGBRegressor(4, secure=True, max_target=9.0, **common).fit(deal(X, y, 3))


@pytest.mark.usefixtures("fixed_noise")
def test_noise_needs_no_guess():
    """Gradients of all rows lie within ±15, and the first prediction does not depend on rows."""
    X, y = make_times()
    noisy = {"epsilon": 1e6, "bounds": [[-4.0] * 4, [4.0] * 4], "max_depth": 2}
    model = FederatedXGBRegressor(3, **noisy, **AFT).fit(deal(X, y, 2))
    assert model.base_score_ == 0.5
    assert np.corrcoef(np.log(model.predict(X)), X[:, 0])[0, 1] > 0.5


def test_samples_and_weights_and_a_continued_run(tmp_path):
    X, y = make_times()
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    options = {"subsample": 0.7, "random_state": 0, "max_depth": 3, **AFT}
    whole = FederatedXGBRegressor(4, **options).fit([(X, y, weight)])
    first = FederatedXGBRegressor(2, warm_start=True, **options)
    first.fit(deal(X, y, 3, 0, weight)).set_params(n_trees=4).fit(deal(X, y, 3, 0, weight))
    assert_same_trees(first.trees_, whole.trees_)
    models.save(whole, tmp_path / "model.fedlib")
    loaded = models.load(tmp_path / "model.fedlib")
    np.testing.assert_array_equal(loaded.predict(X), whole.predict(X))


# Which times --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "y", "message"),
    [
        ("survival:aft", [1.0, 2.0], "y must have 2 columns, the earliest and the latest time"),
        ("reg:gamma", [[1.0, 2.0]] * 2, "y must have one column for objective='reg:gamma'; got 2"),
        ("survival:aft", [[1.0, 2.0], [3.0, 2.0]], "got 3.0 and 2.0: swap them"),
        ("survival:aft", [[1.0, 2.0], [-1.0, 2.0]], "y must be at least 0 .*; got -1.0"),
        ("survival:aft", [[1.0, 2.0], [0.0, 0.0]], "the upper limit of y must be above 0"),
        ("survival:aft", [[1.0, 2.0], [np.nan, 2.0]], "y has no number in 1 row, row 2"),
        ("survival:aft", [[1.0, 2.0], [1.0, np.nan]], "has the latest time inf"),
        ("survival:aft", [[1.0, 2.0], [np.inf, np.inf]], "y must be finite; got inf in row 2"),
        ("survival:aft", [[1.0, 2.0, 3.0]] * 2, "y must"),
        ("survival:aft", np.ma.masked_equal([[1.0, 2.0], [-9.0, 2.0]], -9.0), "1 row, row 2"),
        (
            "survival:aft",
            np.ma.masked_equal([[1.0, 2.0], [1.0, 9.0]], 9.0),
            "row 2.*time inf",
        ),
        ("survival:aft", np.ma.masked_equal([[1, 2], [1, 9]], 9), "row 2.*time inf"),
    ],
)
def test_times_that_are_refused(objective, y, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBRegressor(1, objective=objective).fit([([[1.0], [2.0]], y)])


def test_times_have_no_r2():
    X, times = make_times(30)
    model = FederatedXGBRegressor(1, **AFT).fit([(X, times)])
    with pytest.raises(ValueError, match="survival:aft.*two times per row.*'aft-nloglik'"):
        model.score(X, times)


def test_a_table_of_two_columns():
    frame = pd.DataFrame({"from": [1, 2], "to": [1.5, np.inf]})
    assert check_targets(frame, 2).tolist() == [[1.0, 1.5], [2.0, np.inf]]


def test_two_columns_of_a_file(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text("age,from,to\n41,1.5,1.5\n57,2,inf\n63,3,Inf\n")
    table = read_table(path, target="from", target_upper="to")
    assert table.X.columns.tolist() == ["age"]
    assert table.y.tolist() == [[1.5, 1.5], [2.0, np.inf], [3.0, np.inf]]
    with pytest.raises(ValueError, match="target must name the column with the earliest times"):
        read_table(path, target_upper="to")
    path.write_text("age,from,to\n41,1.5,1.5\n57,2,\n")
    with pytest.raises(ValueError, match="column 'to' has no value in row 2.*is inf"):
        read_table(path, target="from", target_upper="to")


LIMITED = {"type": "number", "constraints": {"minimum": 0, "maximum": 100}}
FIELDS = [
    {"name": "age", **LIMITED},
    {"name": "from", **LIMITED, "fedlib": {"role": "target"}},
    {"name": "to", **LIMITED, "fedlib": {"role": "target_upper"}},
]


def test_two_columns_of_a_schema(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text("age,from,to\n41,1.5,1.5\n57,2,inf\n63,3,4\n30,0,2\n")
    schema = Schema({"schema": {"fields": FIELDS}})
    from_file = FederatedXGBRegressor(2, schema=schema, **AFT).fit([path, path])
    X = pd.DataFrame({"age": [41.0, 57, 63, 30]})
    y = [[1.5, 1.5], [2, np.inf], [3, 4], [0, 2]]
    from_tuple = FederatedXGBRegressor(2, schema=schema, **AFT).fit([(X, y), (X, y)])
    assert_same_trees(from_file.trees_, from_tuple.trees_)
    masked = FederatedXGBRegressor(2, schema=schema, secure=True, max_bin=4, **AFT)
    masked.fit([path] * 3)
    clear = FederatedXGBRegressor(2, max_bin=4, bounds={"age": (0, 100)}, **AFT)
    assert_same_trees(masked.trees_, clear.fit([(X, np.array(y))] * 3).trees_)
    with pytest.raises(ValueError, match="'target_upper' needs one with the role 'target'"):
        Schema({"schema": {"fields": [FIELDS[0], FIELDS[2]]}})
