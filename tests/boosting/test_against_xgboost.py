"""Equality with XGBoost: the trees of its methods ``hist`` and ``exact``, and exported models."""

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer

from fedlib import FederatedXGBClassifier

from .common import assert_same_trees, deal, each_method, make_rows
from .exact import RULES, different_nodes

REAL = [
    "heart",
    "diabetes",
    "breast_cancer",
    "smoking",
    "dim_reduced_2d",
    "dim_reduced_3d",
    "banana",
    "aggregation",
    "s-set1",
    "3MC",
    "moons",
]


@pytest.mark.jit
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("name", REAL)
def test_histogram_is_xgboost_on_the_same_bins(name, missing, real_data):
    """The same structure for any distribution over 1–10 clients, and leaves within 1e-6.

    The choice could differ only if two splits gain the same to the last digit of a float32. On
    these data that does not happen.
    """
    data = real_data(name)
    X, y = data.X, (data.y == data.y.min()).astype(int)
    rng = np.random.default_rng(7)
    X = np.where(rng.random(X.shape) < missing, np.nan, X)
    options = {"gamma": 0.2, "min_child_weight": 0.5, "reg_lambda": 2.0} if missing else {}
    n_trees = 2 if len(y) > 10_000 else 8
    model = FederatedXGBClassifier(
        n_trees, method="histogram", tol=None, xgboost_rules=RULES, **options
    )
    trees = model.fit(deal(X, y, 1)).trees_
    case = 2 * REAL.index(name) + bool(missing)
    n_clients = 2 + case % 9  # all cases together have 2–10 clients, each set has two of them
    assert_same_trees(model.fit(deal(X, y, n_clients, case)).trees_, trees)
    _, differences = different_nodes(model, X, y, max_depth=6, **options)
    for ours, theirs in differences:
        np.testing.assert_array_max_ulp(ours, theirs, 1, np.float32)


@pytest.mark.jit
def test_histogram_is_xgboost_with_weights():
    X, y = load_breast_cancer(return_X_y=True)
    weight = np.random.default_rng(3).random(len(y)).astype(np.float32)
    model = FederatedXGBClassifier(
        20, method="histogram", tol=None, max_depth=4, xgboost_rules=RULES
    )
    model.fit(deal(X, y, 4, 0, weight))
    assert different_nodes(model, X, y, weight, max_depth=4)[1] == []


@pytest.mark.jit
@pytest.mark.parametrize("method", ["top_splits", "union"])
def test_one_client_grows_the_trees_of_exact_xgboost(method):
    X, y = make_rows(300, 5)
    model = FederatedXGBClassifier(
        10, 1, method=method, tol=None, max_depth=4, xgboost_rules=RULES
    ).fit([(X, y)])
    booster = xgboost.train(
        {
            "objective": "binary:logistic",
            "tree_method": "exact",
            "max_depth": 4,
            "base_score": model.base_share_,
            "nthread": 1,
        },
        xgboost.DMatrix(X, y),
        10,
    )
    expected = booster.predict(xgboost.DMatrix(X))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], expected, atol=1e-5)


@each_method
@pytest.mark.parametrize("names", [None, ["age", "BMI [kg/m2]", "BMI (kg/m2)", "sugar <fast>"]])
def test_to_xgboost(method, names, tmp_path):
    X, y = make_rows(missing=0.1)
    model = FederatedXGBClassifier(8, method=method, tol=None, max_depth=4)
    parts = deal(X, y, 3)
    if names:
        parts = [(pd.DataFrame(X, columns=names), y) for X, y in parts]
    booster = model.fit(parts).to_xgboost()
    new = make_rows(seed=5, missing=0.2)[0]
    data = xgboost.DMatrix(new, feature_names=booster.feature_names)
    margins = booster.predict(data, output_margin=True)
    np.testing.assert_array_equal(
        margins, model.decision_function(new if names is None else pd.DataFrame(new, columns=names))
    )
    np.testing.assert_allclose(booster.predict(data), model.predict_proba(new)[:, 1], atol=1e-6)
    booster.save_model(tmp_path / "model.ubj")
    loaded = xgboost.Booster(model_file=tmp_path / "model.ubj")
    np.testing.assert_array_equal(loaded.predict(data, output_margin=True), margins)
    contributions = booster.predict(data, pred_contribs=True)
    np.testing.assert_allclose(contributions.sum(axis=1), margins, atol=1e-5)
    assert len(booster.get_dump(with_stats=True)) == 8
    assert booster.get_score(importance_type="gain")
