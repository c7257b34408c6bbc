"""Rows of weight 0 shape nothing: the fit is the one without them, and they are predicted."""

import numpy as np
import pandas as pd
import pytest

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor

from .common import METHODS, assert_same_trees, deal, make_rows

X, Y = make_rows(120)
X = X.round()  # many equal rows, of which some have a weight
BOUNDS = np.array([[-4.0] * 4, [4.0] * 4])


def parts_of(X, y, classes=()):
    """Return three weighted parts: rows of weight 0 are far away, or of other classes."""
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    X, y = X.copy(), y.copy()
    away = np.flatnonzero(weight == 0)[::2]
    X[away] *= 100
    if classes:
        y = y.astype(object)
        y[away] = np.resize(np.array(classes, object), len(away))
    return deal(X, y, 3, 0, weight)


def without(parts):
    """Return the parts without the rows of weight 0."""
    return [tuple(values[part[2] > 0] for values in part) for part in parts]


def check(estimator, parts):
    """Check that rows of weight 0 change nothing, and that they are predicted."""
    model = estimator.fit(parts)
    labels, trees, losses = model.labels_, model.trees_, model.losses_
    bare = estimator.fit(without(parts))
    assert_same_trees(trees, bare.trees_)
    np.testing.assert_allclose(losses, bare.losses_, rtol=1e-12)
    for part, of_rows in zip(parts, labels, strict=True):
        np.testing.assert_array_equal(of_rows, bare.predict(part[0]))


OPTIONS = [
    {},
    {"subsample": 0.6, "random_state": 0},
    {"validation_fraction": 0.3, "random_state": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_numbers(method, options):
    check(FederatedXGBRegressor(3, method=method, **options), parts_of(X, X[:, 0] + X[:, 1]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_classes(method, options):
    parts = parts_of(X, Y, classes=(7, 8))
    check(FederatedXGBClassifier(3, method=method, tol=None, **options), parts)
    several = FederatedXGBClassifier(
        2, method=method, tol=None, objective="multi:softprob", **options
    )
    check(several, parts)
    assert several.classes_.tolist() == [0, 1]


@pytest.mark.parametrize("bounds", [None, BOUNDS])
def test_bins(bounds):
    X, _ = make_rows(400)  # more values than bins
    parts = parts_of(X, X[:, 0])
    check(FederatedXGBRegressor(3, max_bin=5, bounds=bounds), parts)


def test_masked_sums():
    options = {"method": "histogram", "tol": None, "bounds": BOUNDS, "classes": [0, 1]}
    parts = parts_of(X, Y, classes=(7,))
    check(FederatedXGBClassifier(3, secure=True, max_weight=2, **options), parts)


def test_targets_that_the_objective_does_not_allow():
    parts = parts_of(X, np.abs(X[:, 0]))
    for _, y, weight in parts:
        y[weight == 0] = -3
    check(FederatedXGBRegressor(3, objective="count:poisson"), parts)


@pytest.mark.filterwarnings("ignore:feature 'c' contains 'z', categories that the training did")
def test_categories():
    """A category that only rows without a weight have is unknown, and a column may be empty."""
    rows = [
        pd.DataFrame(part).assign(c=np.where(part[:, 1] > 0, "a", "b"), e=np.nan)
        for part, *_ in parts_of(X, Y)
    ]
    parts = [(table, *more) for table, (_, *more) in zip(rows, parts_of(X, Y), strict=True)]
    for table, _, weight in parts:
        table.loc[weight == 0, "c"] = "z"
        table.loc[weight == 0, "e"] = 5.0
    check(FederatedXGBClassifier(3, method="histogram", tol=None), parts)
