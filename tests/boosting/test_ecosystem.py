"""What other tools expect: continued training, importances, stages, and scikit-learn's rules."""

import numpy as np
import pytest
import xgboost
from sklearn.metrics import accuracy_score
from sklearn.utils import estimator_checks

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.export import from_booster
from fedlib.sites import models

from .common import assert_same_trees, deal, make_rows
from .test_objectives import codes
from .test_validation import CASES, estimator_for

each_objective = pytest.mark.parametrize("objective", CASES)


def fitted(objective, **parameters):
    X, y = CASES[objective][0](150, missing=0.1)
    model = estimator_for(objective, n_trees=3, method="histogram", max_depth=3, **parameters)
    return model.fit(deal(X, y, 2)), X, y


@each_objective
def test_a_booster_returns_as_the_same_model(objective):
    model, _, _ = fitted(objective)
    back = from_booster(model.to_xgboost(), None)
    np.testing.assert_allclose(back.base_margins, model.model_.base_margins, rtol=1e-6, atol=1e-6)
    for tree, other in zip(back.trees, model.trees_, strict=True):
        for name in ("feature", "threshold", "missing_left", "left", "value", "gain", "cover"):
            np.testing.assert_array_equal(getattr(tree, name), getattr(other, name), name)


@each_objective
def test_clients_continue_the_training_of_xgboost(objective):
    """Two rounds of XGBoost and two federated ones predict better than the first two."""
    make, _ = CASES[objective]
    X, y = make(200, missing=0.1)
    options = {"num_class": 3} if objective == "multi:softprob" else {}
    options |= {"objective": objective, "max_depth": 3, "nthread": 1}
    booster = xgboost.train(options, xgboost.DMatrix(X, codes(y)), 2)
    kind = type(estimator_for(objective))
    model = kind.from_xgboost(booster, np.unique(y).tolist() if y.dtype.kind == "U" else None)
    margins = booster.predict(xgboost.DMatrix(X), output_margin=True).reshape(len(X), -1)
    np.testing.assert_allclose(model.model_.margins(X.astype(np.float32)), margins, atol=1e-5)
    started = list(model.trees_)
    model.set_params(n_trees=4, method="histogram", max_depth=3, tol=None).fit(deal(X, y, 3))
    assert_same_trees(model.trees_[: len(started)], started)
    assert len(model.trees_) == 2 * len(started)
    assert model.losses_[-1] < model.losses_[0]
    assert not model.ledger_.lost


@pytest.mark.parametrize("method", ["top_splits", "union", "histogram"])
def test_a_warm_start_gives_the_trees_of_one_run(method):
    X, y = make_rows(200)
    parts = deal(X, y, 3)
    expected = FederatedXGBClassifier(4, method=method, tol=None).fit(parts).trees_
    model = FederatedXGBClassifier(2, method=method, tol=None, warm_start=True).fit(parts)
    assert_same_trees(model.set_params(n_trees=4).fit(parts).trees_, expected)
    assert "StartTrees" in model.ledger_.conversation()


def test_a_model_of_another_kind_cannot_be_continued():
    X, y = make_rows()
    model = FederatedXGBClassifier(2, warm_start=True).fit([(X, y)])
    with pytest.raises(ValueError, match="classes must be that of the model"):
        model.fit([(X, y + 1)])
    data = xgboost.DMatrix(X, y)
    other = xgboost.train({"objective": "reg:squaredlogerror"}, data, 1)
    with pytest.raises(
        ValueError, match="must be a gbtree for one of .*; got gbtree for reg:squaredlogerror"
    ):
        FederatedXGBRegressor.from_xgboost(other)
    booster = xgboost.train({"objective": "binary:logistic"}, data, 1)
    with pytest.raises(ValueError, match="objective"):
        FederatedXGBRegressor.from_xgboost(booster)
    with pytest.raises(ValueError, match="2 classes; got 3"):
        FederatedXGBClassifier.from_xgboost(booster, ["a", "b", "c"])


def test_leaves_with_several_values_are_refused():
    X, y = make_rows(90)
    options = {"objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree"}
    booster = xgboost.train(options, xgboost.DMatrix(X, y + (X[:, 0] > 1)), 1)
    with pytest.raises(ValueError, match="3 values: .* multi_strategy='one_output_per_tree'"):
        FederatedXGBClassifier.from_xgboost(booster)


@each_objective
def test_importances_are_those_of_xgboost(objective):
    model, X, _ = fitted(objective)
    scores = model.to_xgboost().get_score(importance_type="gain")
    gains = np.array([scores.get(f"f{f}", 0.0) for f in range(X.shape[1])])
    np.testing.assert_allclose(model.feature_importances_, gains / gains.sum(), rtol=1e-5)


def test_the_last_stage_is_the_prediction():
    model, X, _ = fitted("multi:softprob")
    stages = list(model.staged_predict_proba(X))
    assert len(stages) == 3
    np.testing.assert_array_equal(stages[-1], model.predict_proba(X))
    regressor, X, _ = fitted("count:poisson")
    np.testing.assert_array_equal(list(regressor.staged_predict(X))[-1], regressor.predict(X))


def test_scores_are_those_of_scikit_learn():
    model, X, y = fitted("binary:logistic")
    assert model.score(X, y) == accuracy_score(y, model.predict(X))
    weights = np.arange(len(y))
    expected = accuracy_score(y, model.predict(X), sample_weight=weights)
    assert model.score(X, y, weights) == expected
    regressor, X, y = fitted("reg:squarederror")
    residuals = y - regressor.predict(X)
    assert regressor.score(X, y) == pytest.approx(1 - residuals.var() / y.var(), abs=1e-2)


@pytest.mark.parametrize(
    ("y", "weight", "message"),
    [
        (np.ma.masked_equal([1.0, -9.0], -9.0), None, "y has no number in 1 row, row 2"),
        ([1.0, 2.0], np.ma.masked_equal([1.0, -9.0], -9.0), "sample_weight has no weight"),
        ([1.0, 2.0], [1.0, -1.0], "sample_weight must be finite and at least 0; got -1 in row 2"),
    ],
)
def test_a_score_reads_targets_and_weights_as_the_training_does(y, weight, message):
    model = FederatedXGBRegressor(1).fit([([[0.0], [1.0]], [1.0, 2.0])])
    with pytest.raises(ValueError, match=message):
        model.score([[0.0], [1.0]], y, weight)


def test_scores_of_any_classes():
    """scikit-learn takes fractions for the targets of a regression."""
    X = np.arange(40.0).reshape(-1, 1)
    y = np.where(X[:, 0] < 20, 0.5, 1.5)
    model = FederatedXGBClassifier(n_trees=2).fit([(X, y)])
    assert model.score(X, y) == 1
    assert model.score(X, np.full(40, 0.5)) == 0.5
    assert model.score(X, np.full(40, 2)) == 0  # a class that no row of the fit has
    with pytest.raises(ValueError, match=r"y must contain only the classes \[0.5, 1.5\]; got 0.25"):
        model.score(X, np.full(40, 0.25))
    with pytest.raises(ValueError, match=r"only the classes \[0.5, 1.5\]; got 'ill'"):
        model.score(X, ["ill"] * 40)


@each_objective
def test_saved_models_predict_the_same(objective, tmp_path):
    model, X, _ = fitted(
        objective, early_stopping_rounds=2, validation_fraction=0.2, random_state=0
    )
    models.save(model, tmp_path / "model.npz")
    loaded = models.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.evals_result_ == model.evals_result_
    assert loaded.best_iteration_ == model.best_iteration_


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_estimator_tags_renamed,
        estimator_checks.check_valid_tag_types,
    ],
)
@pytest.mark.parametrize("kind", [FederatedXGBClassifier, FederatedXGBRegressor])
def test_the_conventions_of_scikit_learn(kind, check):
    """The checks that call `fit` with one table do not apply: `fit` takes the parts of clients."""
    check(kind.__name__, kind())
