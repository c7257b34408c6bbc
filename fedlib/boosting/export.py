"""Boosted trees as an XGBoost model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlib.boosting.trees import Tree

if TYPE_CHECKING:
    from xgboost import Booster

__all__ = ["to_booster"]

NAME_CHARACTERS = str.maketrans("[]<", "()_")  # XGBoost rejects the first three
NO_PARENT = 2**31 - 1


def to_booster(
    trees: Sequence[Tree], share: float, n_features: int, features: Sequence[str] = ()
) -> Booster:
    """Return an `xgboost.Booster` with the same predictions as the trees.

    Parameters
    ----------
    trees : sequence of Tree
    share : float
        The share of positive rows from which the log-odds start, above 0 and below 1.
    n_features : int
    features : sequence of str, optional
        The features' names. XGBoost requires names that are distinct and contain no ``[``, ``]`` or
        ``<``. These characters become ``(``, ``)`` and ``_``, and names that are then equal get the
        feature's number appended.

    Returns
    -------
    booster : xgboost.Booster

    Raises
    ------
    ImportError
        When xgboost is not installed.
    """
    import xgboost

    # An empty model of the installed version supplies every entry that is not replaced below.
    data = xgboost.DMatrix(np.zeros((2, n_features)), label=[0.0, 1.0])
    options = {"objective": "binary:logistic", "base_score": 0.5, "max_depth": 1}
    model = json.loads(xgboost.train(options, data, 1).save_raw("json"))
    learner = model["learner"]
    parameters, base_score = learner["learner_model_param"], repr(float(share))
    is_list = "[" in parameters["base_score"]  # the format depends on the version
    parameters["base_score"] = f"[{base_score}]" if is_list else base_score
    learner["feature_names"] = _accepted_names(features)
    learner["feature_types"] = ["float"] * len(features)
    forest = learner["gradient_booster"]["model"]
    forest["gbtree_model_param"]["num_trees"] = str(len(trees))
    forest["iteration_indptr"] = list(range(len(trees) + 1))
    forest["tree_info"] = [0] * len(trees)
    forest["trees"] = [_tree_model(tree, number, n_features) for number, tree in enumerate(trees)]
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(model), "utf-8"))
    return booster


def _accepted_names(features: Sequence[str]) -> list[str]:
    """Return distinct names that XGBoost accepts."""
    names = [name.translate(NAME_CHARACTERS) for name in features]
    while len(set(names)) < len(names):
        names = [f"{name}_{f}" if names.count(name) > 1 else name for f, name in enumerate(names)]
    return names


def _tree_model(tree: Tree, number: int, n_features: int) -> dict[str, Any]:
    """Return a tree as in XGBoost's JSON, which keeps a leaf's value in place of a threshold."""
    split = tree.feature >= 0
    n = len(tree)
    parents = np.full(n, NO_PARENT)
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
