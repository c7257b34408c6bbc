"""Leaf values, and the trees that follow from the splits of a round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedlib.boosting.training import Training
from fedlib.boosting.trees import Tree, children, node_totals
from fedlib.core.array_types import Floats32, Ints, Ints32
from fedlib.kernels import gains
from fedlib.kernels.forests import level_order
from fedlib.kernels.splits import Decisions


class Round(NamedTuple):
    """The trees of a round, one per output, and the values of all nodes in the clients' order."""

    trees: list[Tree]
    values: Floats32


def leaves(n_nodes: int, n_bytes: int = 0) -> Decisions:
    """Return the decisions that make all nodes leaves; a set of categories has ``n_bytes``."""
    return Decisions(
        np.full(n_nodes, -1, np.int32),
        np.zeros(n_nodes, np.float32),
        np.zeros(n_nodes, bool),
        np.zeros((n_nodes, n_bytes), np.uint8),
    )


def finish_round(
    decisions: Decisions,
    left: Ints32,
    sums: Ints,
    training: Training,
) -> Round:
    """Return the trees with these splits.

    Parameters
    ----------
    decisions : Decisions
        The splits of all nodes of the round; the roots are the first nodes.
    left : array (n_nodes,) of int32
        The left child of each node, -1 for a leaf.
    sums : array (n_nodes, 2) of int64
        The sums at each node itself.
    training : Training
    """
    values = np.zeros(len(left), np.float32)
    trees = []
    for root in range(training.n_outputs):
        order = level_order(left, root)
        of_tree = decisions.take(order)
        tree = finish_tree(of_tree, sums[order], training)
        values[order] = tree.value
        trees.append(tree)
    return Round(trees, values)


def finish_tree(decisions: Decisions, sums: Ints, training: Training) -> Tree:
    """Return the tree with these splits and the sums (n_nodes, 2) at each node itself."""
    settings = training.settings
    feature = decisions.feature
    left = children(feature)
    split = np.flatnonzero(feature >= 0)
    totals = node_totals(feature, sums)
    leaf_sums = totals.copy()
    if settings.leaf != "all":
        parent = np.full(len(feature), -1)
        parent[left[split]] = parent[left[split] + 1] = split
        added = sums if settings.leaf == "ended" else totals
        leaf_sums[1:] += added[parent[1:]]
    bounds, rule = _bounds(feature, totals, training), training.rule
    learning_rate = np.float32(training.learning_rate(training.n_rounds))
    value = _newton_steps(leaf_sums, bounds, training) * learning_rate
    value[split] = 0
    g, h = (totals * training.unit).T
    scores = gains.scores(g, h, bounds, rule)
    gain = np.zeros(len(feature), np.float32)
    gain[split] = (scores[left[split]] + scores[left[split] + 1]) - scores[split]
    return Tree(
        feature=feature,
        threshold=decisions.threshold,
        missing_left=decisions.missing_left,
        left=left,
        value=value,
        gain=gain,
        cover=h.astype(np.float32),
        weight=_newton_steps(totals, bounds, training),
        right=decisions.right,
    )


def _bounds(feature: Ints32, totals: Ints, training: Training) -> Floats32:
    """Return the bounds (n_nodes, 2) of each node's weight, those of its parent's children.

    The children of a node split by a feature with a constraint are bounded by the mean of their
    weights, on one side each. As in XGBoost, that applies to their children and not to themselves.
    """
    own = np.ascontiguousarray(gains.no_limits(len(feature), 0).bounds[:, :2])
    if not training.rule.constrained:
        return own
    of_parent, left = own.copy(), children(feature)
    for node in np.flatnonzero(feature >= 0):
        pair = slice(left[node], left[node] + 2)
        of_parent[pair] = own[pair] = own[node]
        steps = _newton_steps(totals[pair], of_parent[pair], training)
        middle = (steps[0] + steps[1]) / np.float32(2)
        constraint = training.monotone[feature[node]]
        if constraint:
            own[left[node], 1 if constraint > 0 else 0] = middle
            own[left[node] + 1, 0 if constraint > 0 else 1] = middle
    return of_parent


def _newton_steps(sums: Ints, bounds: Floats32, training: Training) -> Floats32:
    """Return −G/(H + λ) of sums (n, 2), 0 if H is below ``min_child_weight``."""
    g, h = (sums * training.unit).T
    return gains.newton_steps(g, h, bounds, training.rule)
