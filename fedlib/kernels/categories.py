"""Splits by sets of categories, as XGBoost's ``hist`` finds them.

A category is a number 0, 1, …. A split sends a set of categories to the right and all others to the
left, also those that the set cannot contain. A set is a row of bytes: category c is bit c % 8 of
byte c // 8.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.gains import NO_BOUND, newton_step, split_gain

# The threshold of a split by a set of categories; no threshold between numbers is as large.
BY_CATEGORY = np.finfo(np.float32).max


@kernel
def is_in_set(sets, i, x):
    """Return whether row ``i`` of sets (n, n_bytes) of uint8 contains the category ``x``."""
    if not (0 <= x < 8 * sets.shape[1]):
        return False
    c = int(x)
    return (sets[i, c >> 3] >> np.uint8(c & 7)) & np.uint8(1) != 0


@kernel
def best_single_category(histogram, start, missing, total, node, rule):
    """Return the best split into one category and the others: gain, category, side of missing.

    Of equal gains, the lower category wins, with its missing values on the left.
    """
    gain, category, missing_left = np.float32(0), -1, True
    missing_g, missing_h = histogram[missing, 0], histogram[missing, 1]
    for b in range(start, missing):
        left_g, left_h = total[0] - histogram[b, 0], total[1] - histogram[b, 1]
        new = split_gain(left_g, left_h, node, rule)
        if new > gain:
            gain, category, missing_left = new, b - start, True
        new = split_gain(left_g - missing_g, left_h - missing_h, node, rule)
        if new > gain:
            gain, category, missing_left = new, b - start, False
    return gain, category, missing_left


@kernel
def order_categories(histogram, start, missing, rule):
    """Return the categories in the order of their weights −G/(H + λ), without bounds."""
    weights = np.empty(missing - start, np.float32)
    for b in range(start, missing):
        g, h = histogram[b, 0] * rule.unit, histogram[b, 1] * rule.unit
        weights[b - start] = newton_step(g, h, -NO_BOUND, NO_BOUND, rule)
    return np.argsort(weights, kind="mergesort")  # stable, as in XGBoost


@kernel
def best_partition(histogram, start, order, total, node, rule, max_cat_threshold):
    """Return the best cut of ordered categories: gain, number on the right, side of missing.

    The categories at the beginning of the order go right. Of equal gains, the smaller number of
    categories at the beginning wins, then the smaller number at the end.
    """
    gain, n_right, missing_left = np.float32(0), 0, True
    size = min(max_cat_threshold, order.size)
    right_g, right_h = np.int64(0), np.int64(0)
    for i in range(size - 1):
        right_g += histogram[start + order[i], 0]
        right_h += histogram[start + order[i], 1]
        new = split_gain(total[0] - right_g, total[1] - right_h, node, rule)
        if new > gain:
            gain, n_right, missing_left = new, i + 1, True
    left_g, left_h = np.int64(0), np.int64(0)
    for i in range(order.size - 1, order.size - size, -1):
        left_g += histogram[start + order[i], 0]
        left_h += histogram[start + order[i], 1]
        new = split_gain(left_g, left_h, node, rule)
        if new > gain:
            gain, n_right, missing_left = new, i, False
    return gain, n_right, missing_left


@kernel
def best_category_split(histogram, start, missing, total, node, rule, categories):
    """Return the best split of a node by the categories of one feature.

    The feature's bins are ``start`` to ``missing``; the last one contains its missing values.
    ``total`` are the integer sums of the node, ``node`` is its `NodeScore`.

    Returns
    -------
    gain : float32
        0 if no split is allowed.
    right : array of int64
        The categories that go right.
    missing_left : bool
    """
    if missing - start < categories.max_cat_to_onehot:
        gain, category, missing_left = best_single_category(
            histogram, start, missing, total, node, rule
        )
        return gain, np.full(1, category), missing_left
    order = order_categories(histogram, start, missing, rule)
    gain, n_right, missing_left = best_partition(
        histogram, start, order, total, node, rule, categories.max_cat_threshold
    )
    return gain, order[:n_right], missing_left


@kernel
def goes_left(x, threshold, missing_left, right, i):
    """Return whether a row with the value ``x`` of a node's feature goes left.

    Row ``i`` of ``right`` (n, n_bytes) is the set of categories that go right.
    """
    if x != x:
        return missing_left
    if threshold == BY_CATEGORY:
        return not is_in_set(right, i, x)
    return x < threshold
