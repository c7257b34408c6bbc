"""SHAP values: what each feature adds to a margin, equal to XGBoost's and to their definition."""

from itertools import combinations
from math import factorial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.sites import models

from .common import deal, make_rows
from .test_validation import CASES, estimator_for


def expected_value(tree, row, known, node=0):
    """Return the mean of a tree if only some features of a row are known, weighted by covers."""
    f = tree.feature[node]
    if f < 0:
        return float(tree.value[node])
    left = tree.left[node]
    if f in known:
        goes_left = tree.missing_left[node] if np.isnan(row[f]) else row[f] < tree.threshold[node]
        return expected_value(tree, row, known, left + (not goes_left))
    sides = [expected_value(tree, row, known, child) for child in (left, left + 1)]
    return float(np.average(sides, weights=tree.cover[left : left + 2]))


def shapley(tree, row):
    """Return the Shapley value of each feature by its definition."""
    d, out = len(row), np.zeros(len(row))
    for f in range(d):
        others = [g for g in range(d) if g != f]
        for size in range(d):
            weight = factorial(size) * factorial(d - size - 1) / factorial(d)
            for known in combinations(others, size):
                with_f = expected_value(tree, row, {*known, f})
                out[f] += weight * (with_f - expected_value(tree, row, set(known)))
    return out


def test_the_values_are_those_of_the_definition():
    X, y = make_rows(200, missing=0.1)
    model = FederatedXGBClassifier(3, method="histogram", max_depth=3).fit(deal(X, y, 3))
    rows = X[:20].astype(np.float32)
    expected = [sum(shapley(tree, row) for tree in model.trees_) for row in rows]
    found = model.predict_contributions(X[:20])
    np.testing.assert_allclose(found[:, :-1], expected, atol=1e-5)
    means = [expected_value(tree, rows[0], set()) for tree in model.trees_]
    np.testing.assert_allclose(found[:, -1], model.model_.base_margins[0] + sum(means), atol=1e-5)


@pytest.mark.parametrize("objective", CASES)
def test_the_values_add_up_to_the_margin(objective):
    X, y = CASES[objective][0](150, missing=0.1)
    model = estimator_for(objective, n_trees=3, method="histogram", max_depth=3)
    model.fit(deal(X, y, 2))
    values = model.predict_contributions(X)
    several = objective == "multi:softprob"
    assert values.shape == (len(X), *([3] if several else []), X.shape[1] + 1)
    margins = model.model_.margins(X.astype(np.float32))
    np.testing.assert_allclose(values.sum(axis=-1).reshape(margins.shape), margins, atol=1e-4)


def test_columns_have_names_in_any_order_and_may_have_text():
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"town": rng.choice(list("abc"), 90), "BMI [kg/m2]": rng.normal(size=90)})
    y = (data["town"] == "a") + 0.1 * data["BMI [kg/m2]"]
    model = FederatedXGBRegressor(4, method="histogram", min_category_count=1, max_depth=2)
    model.fit([(data[:50], y[:50]), (data[50:], y[50:])])
    values = model.predict_contributions(data[data.columns[::-1]])
    np.testing.assert_allclose(values.sum(axis=1), model.predict(data), atol=1e-5)
    assert values[:, 0].std() > values[:, 1].std() > 0
    booster = model.to_xgboost()
    table = data.assign(town=pd.Categorical(data["town"], categories=model.model_.levels[0]))
    table.columns = booster.feature_names
    theirs = booster.predict(xgboost.DMatrix(table, enable_categorical=True), pred_contribs=True)
    np.testing.assert_allclose(values, theirs, atol=1e-6)


def test_covers_with_noise_explain_nothing(tmp_path):
    X, y = make_rows(100)
    model = FederatedXGBClassifier(
        2, method="histogram", epsilon=5.0, delta=1e-6, classes=[0, 1], bounds=[[-2] * 4, [2] * 4]
    ).fit(deal(X, y, 3))
    models.save(model.set_params(epsilon=None, delta=0.0), tmp_path / "model.npz")
    for one in (model, models.load(tmp_path / "model.npz")):
        with pytest.raises(ValueError, match="of a run with epsilon have noise"):
            one.predict_contributions(X)


def test_other_features_are_refused():
    X, y = make_rows(100)
    model = FederatedXGBClassifier(2, method="histogram").fit([(X, y)])
    with pytest.raises(ValueError, match="X must have the 4 features of fit; got 2"):
        model.predict_contributions(X[:, :2])


def test_the_plot_shows_the_features_that_add_most():
    X, y = CASES["multi:softprob"][0](150, missing=0.1)
    model = FederatedXGBClassifier(3, method="histogram", objective="multi:softprob")
    model.fit(deal(X, y, 2))
    figure = plt.figure()
    chosen = model.classes_[1].item()
    ax = model.plot_contributions(X, output=chosen, most=2, ax=figure.subplots())
    values = model.predict_contributions(X)[:, 1, :-1]
    order = np.argsort(-np.abs(values).mean(axis=0))[:2]
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"feature {f}" for f in order]
    for drawn, f in zip(ax.collections, order, strict=True):
        points = np.asarray(drawn.get_offsets())
        np.testing.assert_allclose(points[:, 0], values[:, f])
        assert len(np.unique(points, axis=0)) > 0.9 * len(np.unique(values[:, f]))
    with pytest.raises(ValueError, match="output must be one of the classes"):
        model.plot_contributions(X, ax=ax)
    plt.close(figure)
