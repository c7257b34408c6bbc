"""Boosted trees: their nodes, level by level, what they predict, and the same as an XGBoost model.

The nodes of a tree are numbered level by level; the two children of a node have adjacent numbers.
So which nodes are split tells the whole shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.kernels import splits as kernels

if TYPE_CHECKING:
    from xgboost import Booster

__all__ = ["Tree", "children", "level_starts", "node_totals", "predict_margins", "to_booster"]

FOR_XGBOOST = str.maketrans("[]<", "()_")


@dataclass(frozen=True)
class Tree:
    """A tree; every array has one entry a node (n_nodes,), the root's first.

    Attributes
    ----------
    feature : array of int32
        The feature that splits the node; -1 for a leaf.
    threshold : array of float32
        Rows below it go left.
    missing_left : array of bool
        Whether rows that lack the feature go left.
    left : array of int32
        The left child, the right one follows it; -1 for a leaf.
    value : array of float32
        What a leaf adds to the log-odds of its rows, the learning rate included; 0 elsewhere.
    gain : array of float32
        The gain of the split over all clients' rows, XGBoost's, that is twice (3.1); 0 for a leaf.
    cover : array of float32
        The sum of the hessians of all clients' rows.
    weight : array of float32
        −G/(H + λ) of all clients' rows.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    left: NDArray[np.int32]
    value: NDArray[np.float32]
    gain: NDArray[np.float32]
    cover: NDArray[np.float32]
    weight: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.feature)

    @property
    def depth(self) -> int:
        """The number of splits on the longest way to a leaf."""
        return len(level_starts(self.feature)) - 2

    def to_frame(self) -> pd.DataFrame:
        """Return the nodes as a table."""
        columns = dict(vars(self))
        left = columns["left"]
        return pd.DataFrame(columns).assign(right=np.where(left < 0, -1, left + 1))


def children(feature: NDArray[np.int32], first: int = 0) -> NDArray[np.int32]:
    """Return the left child of each node of a level, or of a whole tree; -1 for leaves.

    ``first`` is the number of the first of these nodes. The children follow the nodes when they are
    a level, and the root when they are a tree.

    Examples
    --------
    >>> children(np.array([4, -1, 2, -1, -1]))
    array([ 1, -1,  3, -1, -1], dtype=int32)
    """
    split = feature >= 0
    after = first + len(feature) if first else 1
    return np.where(split, after + 2 * (np.cumsum(split) - 1), -1).astype(np.int32)


def level_starts(feature: NDArray[np.int32]) -> list[int]:
    """Return the number of the first node of each level, and that of nodes.

    Examples
    --------
    >>> level_starts(np.array([4, -1, 2, -1, -1]))
    [0, 1, 3, 5]

    Raises
    ------
    ValueError
        When there are too few or too many nodes to be a tree.
    """
    starts = [0, 1]
    while n_split := int((feature[starts[-2] : starts[-1]] >= 0).sum()):
        starts.append(starts[-1] + 2 * n_split)
    if starts[-1] != len(feature):
        raise ValueError(f"{len(feature)} nodes, but the splits make {starts[-1]}")
    return starts


def node_totals(feature: NDArray[np.int32], sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what lies at each node or below it, from the sums (n_nodes, …) at each node itself.

    Examples
    --------
    >>> node_totals(np.array([4, -1, -1]), np.array([0, 2, 3]))
    array([5, 2, 3])
    """
    totals = sums.copy()
    left = children(feature)
    for low, high in reversed(list(pairwise(level_starts(feature)))):
        split = low + np.flatnonzero(feature[low:high] >= 0)
        totals[split] += totals[left[split]] + totals[left[split] + 1]
    return totals


def predict_margins(
    trees: Sequence[Tree], base_margin: float, X: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the log-odds of rows (n_rows, n_features), NaN where a value is missing."""
    margins = np.full(len(X), base_margin, np.float32)
    if trees:
        kernels.sum_trees(
            np.ascontiguousarray(X),
            np.append(0, np.cumsum([len(tree) for tree in trees])),
            np.concatenate([tree.feature for tree in trees]),
            np.concatenate([tree.threshold for tree in trees]),
            np.concatenate([tree.missing_left for tree in trees]),
            np.concatenate([tree.left for tree in trees]),
            np.concatenate([tree.value for tree in trees]),
            margins,
        )
    return margins


def to_booster(
    trees: Sequence[Tree], share: float, n_features: int, features: Sequence[str] = ()
) -> Booster:
    """Return an `xgboost.Booster` that predicts what the trees predict.

    Parameters
    ----------
    trees : sequence of Tree
    share : float
        The share of positive rows that the log-odds start from, above 0 and below 1.
    n_features : int
    features : sequence of str, optional
        The features' names. XGBoost takes no ``[``, ``]`` or ``<`` in a name, and no name twice: it
        gets ``(``, ``)`` and ``_`` for these, and the feature's number after names that are alike.

    Raises
    ------
    ImportError
        When xgboost is not installed.
    """
    import xgboost

    nothing = xgboost.DMatrix(np.zeros((2, n_features)), label=[0.0, 1.0])
    options = {"objective": "binary:logistic", "base_score": 0.5, "max_depth": 1}
    empty = xgboost.train(options, nothing, 1)  # for the rest of the model, as this version has it
    model = json.loads(empty.save_raw("json"))
    learner = model["learner"]
    given = learner["learner_model_param"]["base_score"]
    written = repr(float(share))
    learner["learner_model_param"]["base_score"] = f"[{written}]" if "[" in given else written
    learner["feature_names"] = _names(features)
    learner["feature_types"] = ["float"] * len(features)
    forest = learner["gradient_booster"]["model"]
    forest["gbtree_model_param"]["num_trees"] = str(len(trees))
    forest["iteration_indptr"] = list(range(len(trees) + 1))
    forest["tree_info"] = [0] * len(trees)
    forest["trees"] = [_tree_model(tree, number, n_features) for number, tree in enumerate(trees)]
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(model), "utf-8"))
    return booster


def _names(features: Sequence[str]) -> list[str]:
    """Return names that XGBoost accepts, distinct."""
    names = [name.translate(FOR_XGBOOST) for name in features]
    while len(set(names)) < len(names):
        names = [f"{name}_{f}" if names.count(name) > 1 else name for f, name in enumerate(names)]
    return names


def _tree_model(tree: Tree, number: int, n_features: int) -> dict[str, Any]:
    """Return a tree as XGBoost's JSON has it: a leaf's value stands where a threshold would."""
    split = tree.feature >= 0
    n = len(tree)
    parents = np.full(n, 2**31 - 1)
    parents[tree.left[split]] = parents[tree.left[split] + 1] = np.flatnonzero(split)
    arrays = {
        "base_weights": np.where(split, tree.weight, tree.value),
        "default_left": (split & tree.missing_left).astype(int),
        "left_children": tree.left,
        "loss_changes": tree.gain,
        "parents": parents,
        "right_children": np.where(split, tree.left + 1, -1),
        "split_conditions": np.where(split, tree.threshold, tree.value),
        "split_indices": np.where(split, tree.feature, 0),
        "split_type": np.zeros(n, int),
        "sum_hessian": tree.cover,
    }
    categories = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
    return {
        **{name: array.tolist() for name, array in arrays.items()},
        **{name: [] for name in categories},
        "id": number,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }
