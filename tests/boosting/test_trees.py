"""Trees: their shape, sums over nodes, and predictions."""

import numpy as np
import pytest

from fedlib.boosting.trees import BoostedTrees, children, level_starts, node_totals, predict_margins

from .common import SMALL_TREE, X_SMALL

MARGINS = [10, 20, 30, 10, 30]  # of the rows of X_SMALL


def test_the_shape_follows_from_which_nodes_are_split():
    assert SMALL_TREE.left.tolist() == [1, -1, 3, -1, -1]
    assert level_starts(SMALL_TREE.feature) == [0, 1, 3, 5]
    assert SMALL_TREE.depth == 2
    assert len(SMALL_TREE) == 5
    assert SMALL_TREE.to_frame().right.tolist() == [2, -1, 4, -1, -1]
    # a level whose first node is 7
    assert children(np.array([0, -1, 1]), 7).tolist() == [10, -1, 12]


@pytest.mark.parametrize("feature", [[0], [0, -1], [-1, -1], [0, -1, -1, -1], [0, -1, 0, -1]])
def test_nodes_that_form_no_tree(feature):
    with pytest.raises(ValueError, match="nodes, but the splits make"):
        level_starts(np.array(feature))


def test_totals_include_all_nodes_below():
    totals = node_totals(SMALL_TREE.feature, np.array([[1], [2], [4], [8], [16]]))
    assert totals.ravel().tolist() == [31, 2, 28, 8, 16]


def test_predictions_by_hand():
    expected = [0.5 + margin for margin in MARGINS]
    assert predict_margins([SMALL_TREE], 0.5, X_SMALL).tolist() == expected
    assert predict_margins([SMALL_TREE, SMALL_TREE], 0.0, X_SMALL[:1]).tolist() == [20]
    assert predict_margins([], 0.25, X_SMALL[:1]).tolist() == [0.25]


def test_the_model_predicts_by_its_trees():
    model = BoostedTrees(
        trees=[SMALL_TREE],
        classes=["no", "yes"],
        base_scores=[0.5],
        base_margins=[-20.0],
        learning_rate=0.3,
        n_features=2,
        features=(),
        losses=[],
    )
    assert model.margins(X_SMALL)[:, 0].tolist() == [margin - 20 for margin in MARGINS]
    p = 1 / (1 + np.exp(20 - np.array(MARGINS)))
    predictions = model.predictions(model.margins(X_SMALL))
    np.testing.assert_allclose(predictions, np.column_stack([1 - p, p]))
    with pytest.raises(ValueError, match="2 features of fit; got 1"):
        model.margins(X_SMALL[:, :1])
