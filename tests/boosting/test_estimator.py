"""The estimator: data of every kind, predictions, parameters and conventions."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.descriptions import DescribeTraining

from .common import assert_same_trees, deal, each_method, make_rows

# Data -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*one class only")
@each_method
def test_text_classes_and_clients_with_one_class(method):
    X, y = make_rows()
    words = np.array(["healthy", "ill"])[y]
    mixed = np.arange(len(y)) < 60
    parts = [(X[~mixed & (y == c)], words[~mixed & (y == c)]) for c in (0, 1)]
    parts.append((X[mixed], words[mixed]))
    model = FederatedXGBClassifier(10, method=method).fit(parts)
    assert model.classes_.tolist() == ["healthy", "ill"]
    assert set(model.predict(X)) == {"healthy", "ill"}
    assert [len(part) for part in model.labels_] == [len(y) for _, y in parts]
    assert model.labels_[0].dtype.kind == "U"
    np.testing.assert_array_equal(model.labels_[1], model.predict(parts[1][0]))
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(proba[:, 1] > 0.5, model.predict(X) == "ill")


@each_method
def test_constant_columns_missing_columns_and_an_empty_part(method):
    """Columns without information are never split, and a client may have no rows."""
    X, y = make_rows()
    X = np.column_stack([np.full(len(X), 3.0), np.full(len(X), np.nan), X])
    parts = [*deal(X, y, 2), (np.empty((0, 6)), [])]
    model = FederatedXGBClassifier(5, method=method, tol=None).fit(parts)
    assert min(tree.feature[tree.feature >= 0].min() for tree in model.trees_) == 2
    assert len(model.labels_[2]) == 0
    assert_same_trees(clone(model).fit(parts[:2]).trees_, model.trees_)


@each_method
def test_a_weight_of_two_is_two_rows(method):
    X, y = make_rows()
    X = X.round()
    twice = np.arange(len(y)) % 3 == 0
    weighted = deal(X, y, 3, 0, np.where(twice, 2.0, 1.0))
    times = [w.astype(int) for _, _, w in weighted]
    repeated = [
        (np.repeat(X, n, axis=0), np.repeat(y, n))
        for (X, y, _), n in zip(weighted, times, strict=True)
    ]
    model = FederatedXGBClassifier(5, method=method, tol=None)
    assert_same_trees(model.fit(weighted).trees_, clone(model).fit(repeated).trees_)


def test_rows_without_weight_do_not_count():
    X, y = make_rows()
    parts = deal(X, y, 2)
    with_more_rows = [
        (np.concatenate([X, X]), np.concatenate([y, 1 - y]), [1.0] * len(y) + [0.0] * len(y))
        for X, y in parts
    ]
    model = FederatedXGBClassifier(5, tol=None, method="top_splits")
    expected = model.fit(parts).predict_proba(X)
    np.testing.assert_allclose(model.fit(with_more_rows).predict_proba(X), expected)


@each_method
def test_missing_values_take_the_better_side(method):
    """All rows without the feature are positive, as are the rows with large values."""
    X = np.array([[1.0], [2.0], [8.0], [9.0], [np.nan], [np.nan]] * 4)
    y = np.array([0, 0, 1, 1, 1, 1] * 4)
    for flip in (False, True):
        model = FederatedXGBClassifier(5, method=method, max_depth=1, min_child_weight=0)
        model.fit(deal(X, 1 - y if flip else y, 2))
        assert not model.trees_[0].missing_left[0]
        mirrored = [(-X, y) for X, y in deal(X, 1 - y if flip else y, 2)]
        assert model.fit(mirrored).trees_[0].missing_left[0]
        assert model.predict([[np.nan]])[0] == (0 if flip else 1)


@pytest.mark.parametrize("kind", [int, float, bool, str, object, np.int8])
def test_classes_of_any_type(kind):
    X, y = make_rows()
    model = FederatedXGBClassifier(3, method="top_splits").fit(deal(X, y.astype(kind), 2))
    assert model.classes_.tolist() == sorted(set(y.astype(kind).tolist()))
    codes = FederatedXGBClassifier(3, method="top_splits").fit(deal(X, y, 2)).predict(X)
    np.testing.assert_array_equal(model.predict(X), model.classes_[codes])


# Predictions ------------------------------------------------------------------------------------


def test_prediction_checks_its_rows():
    X, y = make_rows()
    table = pd.DataFrame(X, columns=list("abcd"))
    model = FederatedXGBClassifier(2, method="top_splits").fit([(table, y)])
    with pytest.raises(ValueError, match="4 features of fit; got 3"):
        model.predict(X[:, :3])
    assert model.predict(table[list("dcba")]).tolist() == model.predict(table).tolist()
    assert model.feature_names_in_.tolist() == list("abcd")


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_prediction_needs_fit(method):
    with pytest.raises(NotFittedError):
        getattr(FederatedXGBClassifier(method="top_splits"), method)([[1.0]])


def test_parameters_changed_after_fit_do_not_change_predictions():
    X, y = make_rows(missing=0.1)
    model = FederatedXGBClassifier(5, learning_rate=0.4, method="top_splits").fit(deal(X, y, 2))
    expected = model.decision_function(X), model.predict_proba(X), model.predict(X)
    model.set_params(n_trees=1, learning_rate=0.1, method="histogram", max_depth=1, reg_lambda=9.0)
    found = model.decision_function(X), model.predict_proba(X), model.predict(X)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [int, float, bool, str])
def test_the_model_alone_predicts(kind):
    """An estimator with only the model predicts the same; its classes are plain values."""
    X, y = make_rows()
    table = pd.DataFrame(X, columns=list("abcd"))
    model = FederatedXGBClassifier(5, method="top_splits").fit([(table, y.astype(kind))])
    assert [type(label) for label in model.model_.classes] == [kind, kind]
    other = FederatedXGBClassifier(1, method="union")
    other._set_model(dataclasses.replace(model.model_))
    np.testing.assert_array_equal(other.predict(table), model.predict(table))
    np.testing.assert_array_equal(other.predict_proba(table), model.predict_proba(table))
    assert other.to_xgboost().save_raw() == model.to_xgboost().save_raw()
    assert other.feature_names_in_.tolist() == list("abcd")
    assert other.n_features_in_ == model.model_.n_features == 4


# Parameters and conventions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "invalid",
    [
        {"n_trees": 0},
        {"n_candidates": 0},
        {"method": "exact"},
        {"max_depth": 31},
        {"learning_rate": 0.0},
        {"learning_rate": 1e39},
        {"reg_lambda": -1.0},
        {"reg_lambda": 1e300},
        {"gamma": -1.0},
        {"gamma": 1e300},
        {"min_child_weight": -1.0},
        {"min_child_weight": 1e300},
        {"max_bin": 1},
        {"tol": "small"},
        {"leaf": "best"},
    ],
)
def test_invalid_parameters(invalid):
    with pytest.raises(ValueError, match=next(iter(invalid))):
        FederatedXGBClassifier(**invalid).protocol()


def test_only_top_splits_has_other_leaves():
    with pytest.raises(ValueError, match="leaf must be 'all' for method='union'; got 'ended'"):
        FederatedXGBClassifier(method="union", leaf="ended").protocol()


def test_estimator_conventions():
    model = FederatedXGBClassifier(5, method="union")
    assert repr(clone(model)) == "FederatedXGBClassifier(method='union', n_trees=5)"
    assert next(model.protocol()) == DescribeTraining(0.3)
    both = {*model.get_params(), *FederatedXGBRegressor().get_params()}
    settings = {*vars(model._settings()), *vars(FederatedXGBRegressor()._settings())}
    assert both < settings
    assert settings - both == {
        "seed",
        "aggregation",
        "agreed",
        "by_classes",
        "constraints",
        "learning_rates",
    }


def test_numpy_numbers_are_parameters():
    X, y = make_rows()
    parts = deal(X, y, 2)
    plain = FederatedXGBClassifier(3, 4, max_depth=2, reg_lambda=0.5, method="top_splits").fit(
        parts
    )
    numbers = {"max_depth": np.int8(2), "reg_lambda": np.float32(0.5)}
    model = FederatedXGBClassifier(np.int64(3), np.int32(4), method="top_splits", **numbers).fit(
        parts
    )
    assert_same_trees(model.trees_, plain.trees_)
