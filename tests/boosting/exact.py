"""Comparison with the trees that the installed XGBoost's ``hist`` grows on the agreed bins.

The compared models follow the rules of its release, `RULES`. All other tests have the default
rules, and nothing in them depends on the installed release.
"""

import json

import numpy as np
import pytest
import xgboost

from fedlib.boosting.categories import read_table
from fedlib.boosting.rules import rules_of

from .common import cuts_of

RULES = rules_of()


def trees_of(booster):
    return json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


def train_on_bins(model, X, y, weight=None, **options):
    """Return XGBoost's trees on the numbers of the bins.

    They start from ``base_margin``, or by default from the model's initial margins.
    """
    assert model.model_.xgboost_rules == RULES
    levels = model.model_.levels
    X = read_table(X).coded(levels)
    n_categories = {f: int(np.nanmax(X[:, f])) + 1 for f, known in enumerate(levels) if known}
    numbers = np.where([f in n_categories for f in range(X.shape[1])], np.nan, X)
    cuts = cuts_of(numbers, options.pop("max_bin", 256), n_categories, weight)
    bins = cuts.bins(X).astype(np.float32)
    bins[np.isnan(X)] = np.nan
    margins = np.array(model.model_.base_margins, np.float32)
    base_margin = options.pop("base_margin", np.tile(margins, (len(X), 1)))
    labels = {"label": y}
    if y.ndim > 1:  # limits of times
        labels = {"label_lower_bound": y[:, 0], "label_upper_bound": y[:, 1]}
    data = xgboost.DMatrix(
        bins,
        **labels,
        weight=weight,
        base_margin=base_margin,
        feature_types=["c" if f in n_categories else "float" for f in range(X.shape[1])],
        enable_categorical=True,
    )
    n_outputs = len(margins)
    n_rounds = len(model.trees_) // n_outputs
    booster = xgboost.train(
        {
            "objective": model.model_.objective,
            "tree_method": "hist",
            "max_bin": 1024,
            "nthread": 1,
            **({"num_class": n_outputs} if n_outputs > 1 and len(model.model_.classes) else {}),
            **options,
        },
        data,
        n_rounds,
    )
    return cuts, trees_of(booster)


def sets_of(tree):
    """Return the categories that go right, by XGBoost's nodes."""
    places = zip(tree["categories_segments"], tree["categories_sizes"], strict=True)
    sets = (tree["categories"][low : low + size] for low, size in places)
    return dict(zip(tree["categories_nodes"], sets, strict=True))


def first_difference(ours, theirs, cuts, tolerance=1e-6):
    """Return both gains at the first node that XGBoost splits otherwise, or None.

    Nodes are compared from the root on, in the order of ours. A split after the last bin separates
    present from missing values; its threshold is any number above all bins. In a node without
    missing values, their side is arbitrary.
    """
    gains = np.array(theirs["loss_changes"], np.float32)
    at = np.array(theirs["split_conditions"], np.float32)
    left, sets = theirs["left_children"], sets_of(theirs)
    pairs = [(0, 0)]
    for node, other in pairs:  # grows while it is read
        f = ours.feature[node]
        if (left[other] >= 0) != (f >= 0):
            return ours.gain[node], gains[other]
        if f < 0:
            assert ours.value[node] == pytest.approx(at[other], rel=tolerance, abs=tolerance)
            continue
        if theirs["split_type"][other]:
            if f != theirs["split_indices"][other] or ours.categories[node] != sets[other]:
                return ours.gain[node], gains[other]
            pairs.append((ours.left[node], left[other]))
            pairs.append((ours.left[node] + 1, theirs["right_children"][other]))
            continue
        start, missing = cuts.offsets[f], cuts.offsets[f + 1] - 1
        inner = cuts.thresholds[start : missing - 1]
        lowest = ours.threshold[node] == -(2.0**127)  # only missing values go left
        cut = 0 if lowest else np.searchsorted(inner, ours.threshold[node]) + 1
        same = f == theirs["split_indices"][other] and cut == min(
            max(0.0, np.ceil(at[other])), missing - start
        )
        if not same:
            return ours.gain[node], gains[other]
        pairs.append((ours.left[node], left[other]))
        pairs.append((ours.left[node] + 1, theirs["right_children"][other]))
    return None


def different_nodes(model, X, y, weight=None, **options):
    """Return the number of nodes and the gains at the trees' first differences from XGBoost."""
    cuts, theirs = train_on_bins(model, X, y, weight, **options)
    assert len(model.trees_) == len(theirs)
    differences = [
        first_difference(one, other, cuts) for one, other in zip(model.trees_, theirs, strict=True)
    ]
    return sum(map(len, model.trees_)), [gains for gains in differences if gains is not None]
