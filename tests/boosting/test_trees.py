"""Trees: their shape from which nodes are split, sums, predictions and XGBoost's own form."""

import numpy as np
import pytest
import xgboost

from fedlib.boosting.trees import (
    Tree,
    children,
    level_starts,
    node_totals,
    predict_margins,
    to_booster,
)


def tree(feature, threshold, value, missing_left=None):
    n = len(feature)
    feature = np.array(feature, np.int32)
    rest = np.ones(n, np.float32)
    return Tree(
        feature,
        np.array(threshold, np.float32),
        np.zeros(n, bool) if missing_left is None else np.array(missing_left),
        children(feature),
        np.array(value, np.float32),
        rest,
        rest,
        rest,
    )


# Node 0 is split, its right child 2 too; then 1, 3 and 4 are leaves.
SMALL = tree([0, -1, 1, -1, -1], [1, 0, 5, 0, 0], [0, 10, 0, 20, 30], [True, 0, 0, 0, 0])


def test_the_shape_follows_from_which_nodes_are_split():
    assert SMALL.left.tolist() == [1, -1, 3, -1, -1]
    assert level_starts(SMALL.feature) == [0, 1, 3, 5]
    assert SMALL.depth == 2
    assert len(SMALL) == 5
    assert SMALL.to_frame().right.tolist() == [2, -1, 4, -1, -1]
    # as a level that starts with node 7
    assert children(np.array([0, -1, 1]), 7).tolist() == [10, -1, 12]


@pytest.mark.parametrize("feature", [[0], [0, -1], [-1, -1], [0, -1, -1, -1], [0, -1, 0, -1]])
def test_nodes_that_are_no_tree(feature):
    with pytest.raises(ValueError, match="nodes, but the splits make"):
        level_starts(np.array(feature))


def test_totals_are_sums_over_what_lies_below():
    totals = node_totals(SMALL.feature, np.array([[1], [2], [4], [8], [16]]))
    assert totals.ravel().tolist() == [31, 2, 28, 8, 16]


def test_predictions_by_hand():
    nan = np.nan
    X = np.array([[0, 9], [1, 4], [1, 5], [nan, 9], [2, nan]], np.float32)
    #   0 < 1: left; right and 4 < 5: left; not 5 < 5; missing goes left; missing goes right
    assert predict_margins([SMALL], 0.5, X).tolist() == [10.5, 20.5, 30.5, 10.5, 30.5]
    assert predict_margins([SMALL, SMALL], 0.0, X[:1]).tolist() == [20]
    assert predict_margins([], 0.25, X[:1]).tolist() == [0.25]


def test_xgboost_predicts_the_same():
    X = np.array([[0, 9], [1, 4], [1, 5], [np.nan, 9], [2, np.nan]], np.float32)
    booster = to_booster([SMALL, SMALL], 0.25, 2, ["a", "b"])
    data = xgboost.DMatrix(X, feature_names=["a", "b"])
    margins = booster.predict(data, output_margin=True)
    np.testing.assert_allclose(margins, predict_margins([SMALL] * 2, np.log(1 / 3), X), rtol=1e-6)
    assert booster.num_boosted_rounds() == 2
    assert booster.feature_names == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (["BMI [kg/m2]", "sugar < 5"], ["BMI (kg/m2)", "sugar _ 5"]),
        (["a", "a"], ["a_0", "a_1"]),
        (["x[", "x(", "x(_0"], ["x(_0_0", "x(_1", "x(_0_2"]),
    ],
)
def test_xgboost_gets_names_that_it_takes(names, given):
    """Of no two alike, and without brackets and less-than signs."""
    booster = to_booster([SMALL], 0.5, len(names), names)
    assert booster.feature_names == given
    data = xgboost.DMatrix(np.zeros((1, len(names))), feature_names=given)
    assert booster.predict(data, output_margin=True) == [10]
    assert len(booster.trees_to_dataframe()) == 5


def test_xgboost_takes_trees_of_one_leaf_and_none_at_all():
    leaf = tree([-1], [0], [2])
    data = xgboost.DMatrix(np.zeros((1, 3)))
    assert to_booster([leaf], 0.5, 3).predict(data, output_margin=True) == [2]
    assert to_booster([], 0.5, 3).predict(data, output_margin=True) == [0]
