"""Trees as an XGBoost model: the same predictions, and names that XGBoost accepts."""

import numpy as np
import pytest
import xgboost

from fedlib.boosting.export import to_booster
from fedlib.boosting.trees import BoostedTrees, predict_margins

from .common import SMALL_TREE, X_SMALL, make_tree


def booster_of(trees, share, n_features, features=()):
    margin = float(np.log(share / (1 - share)))
    model = BoostedTrees(trees, [0, 1], [share], [margin], 0.3, n_features, tuple(features), [])
    return to_booster(model)


def test_xgboost_predicts_the_same():
    booster = booster_of([SMALL_TREE] * 2, 0.25, 2, ["a", "b"])
    data = xgboost.DMatrix(X_SMALL, feature_names=["a", "b"])
    margins = booster.predict(data, output_margin=True)
    expected = predict_margins([SMALL_TREE] * 2, np.log(1 / 3), X_SMALL)
    np.testing.assert_allclose(margins, expected, rtol=1e-6)
    assert booster.num_boosted_rounds() == 2
    assert booster.feature_names == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "accepted"),
    [
        (["BMI [kg/m2]", "sugar < 5"], ["BMI (kg/m2)", "sugar _ 5"]),
        (["a", "a"], ["a_0", "a_1"]),
        (["x[", "x(", "x(_0"], ["x(_0_0", "x(_1", "x(_0_2"]),
    ],
)
def test_names_become_distinct_and_free_of_brackets(names, accepted):
    booster = booster_of([SMALL_TREE], 0.5, len(names), names)
    assert booster.feature_names == accepted
    data = xgboost.DMatrix(np.zeros((1, len(names))), feature_names=accepted)
    assert booster.predict(data, output_margin=True) == [10]
    assert len(booster.trees_to_dataframe()) == 5


def test_trees_of_one_leaf_and_no_trees():
    leaf = make_tree([-1], [0], [2])
    data = xgboost.DMatrix(np.zeros((1, 3)))
    assert booster_of([leaf], 0.5, 3).predict(data, output_margin=True) == [2]
    assert booster_of([], 0.5, 3).predict(data, output_margin=True) == [0]
