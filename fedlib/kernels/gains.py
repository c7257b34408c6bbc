"""How sums of gradients become weights, scores and gains, in XGBoost's arithmetic.

Sums are integers; `fedlib.kernels.splits` explains their unit. Weights and gains are float32. The
releases of XGBoost have two kinds of arithmetic, see `SplitRule`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel

NO_BOUND = np.finfo(np.float32).max  # the bounds of a weight that no constraint limits


class SplitRule(NamedTuple):
    """How sums become gains, and which splits are allowed.

    Sums are multiples of ``unit``. Each side of a split needs a sum of hessians of at least
    ``min_child_weight``, and the split a gain of at least ``gamma``. The L1 penalty ``reg_alpha``
    moves gradients towards 0. ``max_delta_step`` limits the size of a weight; 0: no limit.
    ``constrained`` is True if any feature has a monotone constraint.

    With ``by_weight``, as since XGBoost 3.4, the score of a node with the weight w is
    −(2Gw + (H + λ)w² + 2α·abs(w)), computed in float64, and ``min_child_weight`` only forbids
    splits. Without it, as before, a node below ``min_child_weight`` has the weight 0, and the score
    is G²/(H + λ), a quotient of two float32; if weights are limited, it is −(2Gw + (H + λ)w²) in
    float32.
    """

    unit: float
    reg_lambda: float
    gamma: float
    min_child_weight: float
    reg_alpha: float = 0.0
    max_delta_step: float = 0.0
    constrained: bool = False
    by_weight: bool = True


class Categories(NamedTuple):
    """The features with categories, and how to split them.

    ``is_category`` (d,) of bool says which features have categories. A feature with fewer than
    ``max_cat_to_onehot`` of them is split into one category and the others. For a feature with
    more, one side of a split has fewer than ``max_cat_threshold`` categories. A set has ``n_bytes``
    bytes; see `fedlib.kernels.buckets`.
    """

    is_category: NDArray[np.bool_]
    max_cat_to_onehot: int
    max_cat_threshold: int
    n_bytes: int


def no_categories(n_features: int) -> Categories:
    """Return the `Categories` of features that are numbers."""
    return Categories(np.zeros(n_features, np.bool_), 4, 64, 0)


class Limits(NamedTuple):
    """What limits the splits of each node.

    ``bounds`` (nodes, 4) of float32 contains the lower and the upper bound of the weights of a
    node's children, and those that the node itself had at its parent. ``monotone`` (d,) of int8 is
    1 for a feature in which predictions may only increase, -1 if they may only decrease, else 0.
    ``allowed`` (nodes, d) of bool says which features may split a node. ``categories`` are
    `Categories`.
    """

    bounds: NDArray[np.float32]
    monotone: NDArray[np.int8]
    allowed: NDArray[np.bool_]
    categories: Categories


def no_limits(n_nodes: int, n_features: int) -> Limits:
    """Return the `Limits` that limit nothing."""
    bounds = np.tile(np.array([-NO_BOUND, NO_BOUND], np.float32), (n_nodes, 2))
    monotone = np.zeros(n_features, np.int8)
    allowed = np.ones((n_nodes, n_features), np.bool_)
    return Limits(bounds, monotone, allowed, no_categories(n_features))


class NodeScore(NamedTuple):
    """A node's sums of gradients and hessians, no longer as integers, and its similarity score.

    ``lower`` and ``upper`` are the bounds of its children's weights.
    """

    g: Any
    h: Any
    score: Any
    lower: Any
    upper: Any


@kernel
def shrink(g, reg_alpha):
    """Return a sum of gradients moved towards 0 by the L1 penalty."""
    if g > reg_alpha:
        return g - reg_alpha
    if g < -reg_alpha:
        return g + reg_alpha
    return 0.0


@kernel
def newton_step(g, h, lower, upper, rule):
    """Return the float32 weight −G/(H + λ) of a node, within all limits of the rule."""
    step = 0.0
    if h > 0 and (rule.by_weight or h >= rule.min_child_weight):
        step = -shrink(g, rule.reg_alpha) / (h + rule.reg_lambda)
        if rule.max_delta_step != 0 and abs(step) > rule.max_delta_step:
            step = math.copysign(rule.max_delta_step, step)
    return min(max(np.float32(step), lower), upper)


@kernel
def newton_steps(g, h, bounds, rule):
    """Return the weights (n,) of nodes with sums ``g`` and ``h`` (n,) and bounds (n, 2)."""
    out = np.empty(g.size, np.float32)
    for i in range(g.size):
        out[i] = newton_step(g[i], h[i], bounds[i, 0], bounds[i, 1], rule)
    return out


@kernel
def score_of_weight(g, h, w, reg_alpha):
    """Return −(2Gw + Hw² + 2α·abs(w)) as float32, for a float32 weight whose square is one, too."""
    square = np.float64(np.float32(w * w))
    return np.float32(-(2.0 * g * w + h * square + 2.0 * reg_alpha * np.float64(abs(w))))


@kernel
def score(g, h, lower, upper, rule):
    """Return the similarity score of a node (3.2), by the arithmetic of the `SplitRule`."""
    if h <= 0:
        return np.float32(0)
    if rule.by_weight:
        w = newton_step(g, h, lower, upper, rule)
        return score_of_weight(g, h + rule.reg_lambda, w, rule.reg_alpha)
    if rule.max_delta_step == 0 and not rule.constrained:
        s = shrink(g, rule.reg_alpha)
        return np.float32(np.float32(s * s) / np.float32(h + rule.reg_lambda))
    w = newton_step(g, h, lower, upper, rule)
    linear = np.float32(np.float32(2) * np.float32(g)) * w
    total_h = np.float32(np.float32(h) + np.float32(rule.reg_lambda))
    return np.float32(-np.float32(np.float32(linear) + np.float32(total_h * np.float32(w * w))))


@kernel
def scores(g, h, bounds, rule):
    """Return the scores (n,) of nodes with sums ``g`` and ``h`` (n,) and bounds (n, 2)."""
    out = np.empty(g.size, np.float32)
    for i in range(g.size):
        out[i] = score(g[i], h[i], bounds[i, 0], bounds[i, 1], rule)
    return out


@kernel
def score_node(total_g, total_h, rule):
    """Return the `NodeScore` of integer sums, without bounds."""
    g, h = total_g * rule.unit, total_h * rule.unit
    return NodeScore(g, h, score(g, h, -NO_BOUND, NO_BOUND, rule), -NO_BOUND, NO_BOUND)


@kernel
def score_bounded_node(total_g, total_h, bounds, rule):
    """Return the `NodeScore` of integer sums; ``bounds`` (4,) are those of `Limits`."""
    g, h = total_g * rule.unit, total_h * rule.unit
    return NodeScore(g, h, score(g, h, bounds[2], bounds[3], rule), bounds[0], bounds[1])


@kernel
def split_gain(left_g, left_h, node, rule, monotone=0):
    """Return the float32 gain of a split with these integer sums on the left, or -1 if not allowed.

    It is XGBoost's gain: twice (3.1), without γ. ``monotone`` is the constraint of the feature.
    """
    g, h = left_g * rule.unit, left_h * rule.unit
    right_h = node.h - h
    if h < rule.min_child_weight or right_h < rule.min_child_weight or h <= 0 or right_h <= 0:
        return np.float32(-1)
    right_g, lower, upper = node.g - g, node.lower, node.upper
    if monotone != 0:
        rise = newton_step(right_g, right_h, lower, upper, rule) - newton_step(
            g, h, lower, upper, rule
        )
        if rise * monotone < 0:
            return np.float32(-1)
    right = score(right_g, right_h, lower, upper, rule)
    return np.float32(np.float32(score(g, h, lower, upper, rule) + right) - node.score)


@kernel
def gains_of_sides(left_g, left_h, node, rule, gains):
    """Fill in the ``gains`` (n,) of splits; ``left_g`` and ``left_h`` (n,) are sums of integers.

    They are those of `split_gain` for a rule that neither limits weights nor is ``by_weight``. A
    processor takes several splits at a time, which a quotient of Python would prevent: it checks
    for zero.
    """
    unit, total_g, total_h, least = rule.unit, node.g, node.h, rule.min_child_weight
    reg_alpha, reg_lambda, parent = rule.reg_alpha, rule.reg_lambda, node.score
    for b in range(gains.size):
        g, h = left_g[b] * unit, left_h[b] * unit
        right_g, right_h = total_g - g, total_h - h
        s, right_s = max(abs(g) - reg_alpha, 0.0), max(abs(right_g) - reg_alpha, 0.0)
        score = np.true_divide(np.float32(s * s), np.float32(h + reg_lambda))
        right_score = np.true_divide(
            np.float32(right_s * right_s), np.float32(right_h + reg_lambda)
        )
        is_allowed = (h >= least) & (right_h >= least) & (h > 0.0) & (right_h > 0.0)
        gain = np.float32(np.float32(score + right_score) - parent)
        gains[b] = gain if is_allowed else np.float32(-1)


@kernel
def gains_by_weight(left_g, left_h, node, rule, gains):
    """Fill in the ``gains`` (n,) as `gains_of_sides`, for a rule that is ``by_weight``."""
    unit, total_g, total_h, least = rule.unit, node.g, node.h, rule.min_child_weight
    reg_alpha, reg_lambda, parent = rule.reg_alpha, rule.reg_lambda, node.score
    for b in range(gains.size):
        g, h = left_g[b] * unit, left_h[b] * unit
        right_g, right_h = total_g - g, total_h - h
        penalized, right_penalized = h + reg_lambda, right_h + reg_lambda
        s = min(max(g, -reg_alpha), reg_alpha) - g
        right_s = min(max(right_g, -reg_alpha), reg_alpha) - right_g
        w = np.float32(np.true_divide(s, penalized))
        right_w = np.float32(np.true_divide(right_s, right_penalized))
        score = score_of_weight(g, penalized, w, reg_alpha)
        right_score = score_of_weight(right_g, right_penalized, right_w, reg_alpha)
        is_allowed = (h >= least) & (right_h >= least) & (h > 0.0) & (right_h > 0.0)
        gain = np.float32(np.float32(score + right_score) - parent)
        gains[b] = gain if is_allowed else np.float32(-1)


@kernel
def fill_gains(left_g, left_h, node, rule, monotone, gains):
    """Fill in the ``gains`` (n,) of splits; ``left_g`` and ``left_h`` (n,) are sums of integers."""
    if rule.max_delta_step == 0 and not rule.constrained:
        if rule.by_weight:
            gains_by_weight(left_g, left_h, node, rule, gains)
        else:
            gains_of_sides(left_g, left_h, node, rule, gains)
        return
    for b in range(gains.size):
        gains[b] = split_gain(left_g[b], left_h[b], node, rule, monotone)
