"""Trees as an XGBoost model: the same predictions, and names that XGBoost accepts."""

import json

import numpy as np
import pytest
import xgboost

from fedlib.boosting.export import from_booster, to_booster
from fedlib.boosting.rules import NEWEST_RULES
from fedlib.boosting.trees import BoostedTrees, predict_margins
from fedlib.kernels.histograms import BELOW_ALL

from .common import SMALL_TREE, X_SMALL, make_tree
from .exact import RULES


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


def test_a_split_of_missing_from_present_values():
    """Its threshold is −∞ there, as since 3.3, and below all values here."""
    tree = make_tree([0, -1, -1], [BELOW_ALL, 0, 0], [0, 1, 2], [True, False, False])
    booster = booster_of([tree], 0.5, 1)
    learner = json.loads(booster.save_raw("json"))["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    assert trees[0]["split_conditions"][0] == -np.inf
    X = np.array([[np.nan], [-(2.0**127)], [0]], np.float32)
    assert booster.predict(xgboost.DMatrix(X), output_margin=True).tolist() == [1, 2, 2]
    assert predict_margins([tree], 0.0, X).tolist() == [1, 2, 2]
    np.testing.assert_array_equal(from_booster(booster).trees[0].threshold, tree.threshold)


def test_the_rules_are_those_of_the_release_that_wrote_the_booster():
    class Written:
        def __init__(self, *version):
            self.document = json.loads(booster_of([SMALL_TREE], 0.5, 2).save_raw("json"))
            self.document["version"] = list(version or self.document["version"])

        def save_raw(self, kind):
            return json.dumps(self.document).encode()

        def attr(self, name):
            return None

    assert from_booster(Written()).xgboost_rules == RULES
    assert from_booster(Written(3, 3, 9)).xgboost_rules == "3.3"
    with pytest.warns(UserWarning, match="does not know the rules of XGBoost 9.8.7"):
        assert from_booster(Written(9, 8, 7)).xgboost_rules == NEWEST_RULES


def test_trees_of_one_leaf_and_no_trees():
    leaf = make_tree([-1], [0], [2])
    data = xgboost.DMatrix(np.zeros((1, 3)))
    assert booster_of([leaf], 0.5, 3).predict(data, output_margin=True) == [2]
    assert booster_of([], 0.5, 3).predict(data, output_margin=True) == [0]
