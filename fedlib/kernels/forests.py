"""Trees as arrays of nodes: the order of their nodes, and the leaves that rows reach.

The leaves of a k-d tree as cells: how far their points reach, and which leaves are near a leaf.

A leaf is one cell if any two of its points are neighbours. Else it has few points, which are split
into cells like nodes. But these have no boxes, because most cells may be single points.

Cells are searched for by the bucket: a node with few cells, all of whose leaves look into the same
buckets nearby.

Gradients and losses of quantiles, the median and expectiles, in XGBoost's arithmetic.

The functions take what those of `fedlib.kernels.objectives` take. Their ``parameter`` is an array:
the levels of the outputs in ascending order, and for quantiles and the absolute error the scale of
each output's residuals behind them.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.buckets import BY_CATEGORY, goes_left
from fedlib.kernels.kd_tree import (
    MAX_STACK,
    are_far,
    bound_copies,
    load,
    max_by_node,
    measure,
    right_child,
    select_median,
)
from fedlib.kernels.objectives import store
from fedlib.kernels.splits import MAX_EXPONENT, ONE

BUCKET = 32  # cells that are looked at together; no leaf has more


class Leaves(NamedTuple):
    """The leaves of a tree, their cells, and how far the points of each node reach.

    Attributes
    ----------
    node : array (n_leaves,) of int32 or int64
        The node of each leaf.
    first_cell : array (n_leaves + 1,) of int32 or int64
        The first cell of each leaf; the last entry is the count of cells.
    max_squared_radius : array (n_nodes,) or (1,) of float64
        The largest squared radius of the points of each node, or that of all points.
    n_buckets : int
        The count of buckets.
    """

    node: NDArray[np.signedinteger[Any]]
    first_cell: NDArray[np.signedinteger[Any]]
    max_squared_radius: NDArray[np.float64]
    n_buckets: int


@kernel
def collect_leaves(tree, squared_radii, max_squared_diagonal):
    """Return the `Leaves` of a tree, and where the points of each cell begin (n_cells + 1,).

    The points of leaves with several cells are sorted into these.

    Parameters
    ----------
    tree : KDTree
        A leaf that is larger than a cell has at most ``BUCKET`` points.
    squared_radii : array (n_points,) or (1,) of float64
        Those of the points, by row, or of all of them.
    max_squared_diagonal : float
        That of a cell.
    """
    n_leaves = tree.start.size - 1
    node_of_leaf = np.empty(n_leaves, tree.start.dtype)
    first_cell = np.zeros(n_leaves + 1, tree.start.dtype)
    start = np.empty(tree.order.size + 1, tree.start.dtype)
    copies = np.empty((BUCKET, tree.points.shape[1]))
    n_cells = 0
    for node in range(tree.n_leaves.size):
        if tree.n_leaves[node] == 1:
            leaf = tree.first_leaf[node]
            node_of_leaf[leaf] = node
            if measure(tree.boxes[node])[1] <= max_squared_diagonal:
                start[n_cells] = tree.start[leaf]
                n_cells += 1
            else:
                n_cells = _split_leaf(tree, leaf, max_squared_diagonal, copies, start, n_cells)
            first_cell[leaf + 1] = n_cells
    start[n_cells] = tree.order.size
    reach = squared_radii if squared_radii.size == 1 else max_by_node(tree, squared_radii)
    n_buckets = _count_buckets(tree, first_cell)
    leaves = Leaves(node_of_leaf, first_cell, reach, n_buckets)
    return leaves, start[: n_cells + 1].copy()


@kernel
def _split_leaf(tree, leaf, max_squared_diagonal, copies, start, n_cells):
    """Write where the cells of a leaf begin; return their number, with ``n_cells`` before them.

    They are what nodes below the leaf would be. ``copies`` is a buffer for its points.
    """
    first = tree.start[leaf]
    order = tree.order[first : tree.start[leaf + 1]]
    load(tree.points, order, copies)
    box, stack = np.empty((2, copies.shape[1])), np.empty((BUCKET, 2), np.int64)
    stack[0] = 0, order.size
    n_stack = 1
    while n_stack:
        n_stack -= 1
        begin, end = stack[n_stack]
        if end - begin > 1:
            part = copies[begin:end]
            widest, squared_diagonal = bound_copies(part, box)
            if squared_diagonal > max_squared_diagonal:
                select_median(part, order[begin:end], widest)
                middle = begin + (end - begin) // 2
                stack[n_stack] = middle, end
                stack[n_stack + 1] = begin, middle
                n_stack += 2
                continue
        start[n_cells] = first + begin
        n_cells += 1
    return n_cells


@kernel
def cells_of(tree, first_cell, node):
    """Return the first cell of a node and the stop."""
    leaf = tree.first_leaf[node]
    return first_cell[leaf], first_cell[leaf + tree.n_leaves[node]]


@kernel
def is_leaf_bucket(tree, first_cell, node):
    """Return whether a node has few cells."""
    first, stop = cells_of(tree, first_cell, node)
    return stop - first <= BUCKET


@kernel
def _count_buckets(tree, first_cell):
    node = n_buckets = 0
    while node < tree.n_leaves.size:
        if is_leaf_bucket(tree, first_cell, node):
            n_buckets += 1
            node += 2 * tree.n_leaves[node] - 1
        else:
            node += 1
    return n_buckets


@kernel
def wider_radius(max_squared_radius, a, b):
    """Return the larger one of the squared radii of two nodes (see `Leaves`)."""
    if max_squared_radius.size == 1:
        return max_squared_radius[0]
    return max(max_squared_radius[a], max_squared_radius[b])


@kernel
def find_bucket(tree, leaves, cell):
    """Return the bucket with this cell, its first cell and the stop."""
    node = 0
    while not is_leaf_bucket(tree, leaves.first_cell, node):
        right = right_child(tree, node)
        node = node + 1 if cell < leaves.first_cell[tree.first_leaf[right]] else right
    first, stop = cells_of(tree, leaves.first_cell, node)
    return node, first, stop


@kernel
def find_near_buckets(tree, leaves, bucket, buckets):
    """Write the buckets near a bucket to ``buckets``, in the order of the tree; return how many."""
    boxes, reach = tree.boxes, leaves.max_squared_radius
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack, n_buckets = 1, 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if are_far(boxes, bucket, boxes, node, wider_radius(reach, bucket, node)):
            continue
        if not is_leaf_bucket(tree, leaves.first_cell, node):
            stack[n_stack] = right_child(tree, node)
            stack[n_stack + 1] = node + 1
            n_stack += 2
        else:
            buckets[n_buckets] = node
            n_buckets += 1
    return n_buckets


SMOOTHING = np.float32(0.04)  # XGBoost's: the width of the smooth step, in scales
LEAST_CURVATURE = np.float32(3e-4)  # XGBoost's
LEAST_GAP = np.float32(1e-6)  # XGBoost's, between two expectiles
HALF, TWO = np.float32(0.5), np.float32(2)


@kernel
def quantile(margins, targets, weights, parameter, bits):
    """Return the gradients of XGBoost 3.4's smooth pinball loss.

    For a residual r = margin - target, a level a and a scale S, with x = r / (0.04 S), they are
    g = S / 2 (tanh x + 1 - 2 a) and h = 12.5 max(tanh(x) / x, 3e-4), times the weight.
    """
    n, n_outputs = margins.shape
    scale = 2.0**bits
    gradients = np.empty((n_outputs, n, 2), np.int64)
    for k in range(n_outputs):
        level, spread = np.float32(parameter[k]), np.float32(parameter[n_outputs + k])
        width, height = np.float32(SMOOTHING * spread), np.float32(HALF * spread)
        steepest, tilt = np.float32(HALF / SMOOTHING), np.float32(TWO * level)
        for i in range(n):
            if not width > 0 or weights[i] == 0:
                gradients[k, i] = 0
                continue
            x = np.float32(np.float32(margins[i, k] - targets[i]) / width)
            step = np.float32(np.tanh(x))
            curvature = ONE if x == 0 else np.float32(step / x)
            g = np.float32(height * np.float32(np.float32(step + ONE) - tilt))
            h = np.float32(steepest * max(curvature, LEAST_CURVATURE))
            store(gradients, k, i, np.float32(weights[i] * g), np.float32(weights[i] * h), scale)
    return gradients


@kernel
def quantile_losses(margins, targets, weights, parameter):
    """Return the pinball loss, the mean over the levels."""
    n, n_outputs = margins.shape
    losses = np.zeros(margins.shape[0])
    for i in range(n):
        for k in range(n_outputs):
            d = np.float64(targets[i]) - np.float64(margins[i, k])
            losses[i] += max(parameter[k] * d, (parameter[k] - 1.0) * d) * weights[i]
    return losses / n_outputs


@kernel
def absolute_error(margins, targets, weights, parameter, bits):
    """Return the gradients of XGBoost 3.4's smooth absolute error.

    For a residual r and the scale S, they are h = S / hypot(S, r) and g = r h, times the weight.
    """
    unit = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    spread = np.float32(parameter[0])
    for i in range(margins.shape[0]):
        r = np.float32(margins[i, 0] - targets[i])
        norm = np.float32(math.sqrt(np.float64(spread) * spread + np.float64(r) * r))
        curvature = np.float32(spread / norm) if norm > 0 else ONE
        g = np.float32(np.float32(weights[i] * r) * curvature)
        store(gradients, 0, i, g, np.float32(weights[i] * curvature), unit)
    return gradients


@kernel
def absolute_error_losses(margins, targets, weights, parameter):
    """Return the weighted sum of the absolute errors."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        losses[i] += abs(np.float64(margins[i, 0]) - targets[i]) * weights[i]
    return losses


@kernel
def weighted_roots(margins, targets, weights):
    """Return the weighted square roots (n, outputs) of absolute residuals."""
    roots = np.empty(margins.shape)
    for i in range(margins.shape[0]):
        for k in range(margins.shape[1]):
            root = np.float32(np.sqrt(np.float32(abs(np.float32(margins[i, k] - targets[i])))))
            roots[i, k] = np.float64(np.float32(weights[i] * root))
    return roots


@kernel
def soft_plus(x):
    """Return log(1 + e**x) in float32."""
    if x > 0:
        return np.float32(x + np.float32(np.log1p(np.float32(np.exp(np.float32(-x))))))
    return np.float32(np.log1p(np.float32(np.exp(x))))


@kernel
def expectiles(margins):
    """Return the expectiles (n, outputs) of margins: the first one, and then the gaps' sums."""
    levels = margins.copy()
    for i in range(margins.shape[0]):
        for k in range(1, margins.shape[1]):
            gap = np.float32(LEAST_GAP + soft_plus(margins[i, k]))
            levels[i, k] = np.float32(levels[i, k - 1] + gap)
    return levels


@kernel
def expectile(margins, targets, weights, parameter, bits):
    """Return the gradients of half the asymmetric squared error.

    A residual d of the level a has the weight 1 - a if it is at least 0, otherwise a. A margin of a
    gap moves its own expectile and all above it, so their gradients are added, times the slope of
    the gap, and their hessians, times its square.
    """
    n, n_outputs = margins.shape
    scale = 2.0**bits
    gradients = np.empty((n_outputs, n, 2), np.int64)
    levels = expectiles(margins)
    for i in range(n):
        for j in range(n_outputs):
            g, h = np.float32(0), np.float32(0)
            for k in range(j, n_outputs):
                d = np.float32(levels[i, k] - targets[i])
                level = np.float32(parameter[k])
                side = np.float32(ONE - level) if d >= 0 else level
                g = np.float32(g + np.float32(np.float32(side * d) * weights[i]))
                h = np.float32(h + np.float32(side * weights[i]))
            slope = ONE
            if j > 0:
                x = min(np.float32(-margins[i, j]), MAX_EXPONENT)
                slope = np.float32(ONE / np.float32(np.float32(np.exp(x)) + ONE))
            h = np.float32(np.float32(slope * slope) * h)
            store(gradients, j, i, np.float32(slope * g), h, scale)
    return gradients


@kernel
def expectile_losses(margins, targets, weights, parameter):
    """Return the asymmetric squared error, the mean over the levels."""
    n, n_outputs = margins.shape
    levels = expectiles(margins)
    losses = np.zeros(margins.shape[0])
    for i in range(n):
        for k in range(n_outputs):
            d = np.float64(levels[i, k]) - np.float64(targets[i])
            side = 1.0 - parameter[k] if d >= 0 else parameter[k]
            losses[i] += side * d * d * weights[i]
    return losses / n_outputs


class Forest(NamedTuple):
    """The nodes of all trees; those of tree t are ``start[t]`` to ``start[t + 1]``.

    ``left`` is a node's left child, counted from the tree's root; the right child follows it. For
    ``right`` see `Decisions`.
    """

    start: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    left: NDArray[np.int32]
    value: NDArray[np.float32]
    right: NDArray[np.uint8]


@kernel
def level_order(left, root):
    """Return the nodes of a tree, level by level; ``left`` are the left children, -1 of a leaf."""
    order = np.empty(left.size, np.int64)
    order[0], n_nodes, k = root, 1, 0
    while k < n_nodes:
        child = left[order[k]]
        if child >= 0:
            order[n_nodes], order[n_nodes + 1] = child, child + 1
            n_nodes += 2
        k += 1
    return order[:n_nodes]


@kernel
def add_children(left, totals):
    """Add to each node's ``totals`` (nodes, k) those of its children, which come after it.

    ``left`` are the left children, -1 of a leaf.
    """
    for j in range(left.size - 1, -1, -1):
        for k in range(totals.shape[1] if left[j] >= 0 else 0):
            totals[j, k] += totals[left[j], k] + totals[left[j] + 1, k]


@kernel
def endless(forest):
    """Return a forest in which a row stays in its leaf, and the depth (trees,) of each tree.

    So all rows can take as many steps as a tree is deep.
    """
    start, feature, threshold, missing_left, left, value, right = forest
    is_leaf, depth_of = feature < 0, np.zeros(feature.size, np.int64)
    stays = np.where(is_leaf, np.float32(np.nan), threshold)  # no value is above NaN
    step, depths = left.copy(), np.zeros(start.size - 1, np.int64)
    for t in range(depths.size):
        for j in range(start[t], start[t + 1]):
            depths[t] = max(depths[t], depth_of[j])
            if is_leaf[j]:
                step[j] = j - start[t]
            else:
                child = start[t] + left[j]
                depth_of[child] = depth_of[child + 1] = depth_of[j] + 1
    some = np.maximum(feature, 0)
    return Forest(start, some, stays, missing_left | is_leaf, step, value, right), depths


@kernel
def one_tree(forest, t):
    """Return the tree with the index ``t`` of a forest."""
    start, feature, threshold, missing_left, left, value, right = forest
    nodes = slice(start[t], start[t + 1])
    return Forest(
        start[t : t + 2],
        feature[nodes],
        threshold[nodes],
        missing_left[nodes],
        left[nodes],
        value[nodes],
        right[nodes],
    )


@kernel
def descend(values, width, tree, nodes):
    """Replace the node (n,) of each row in a tree by the child to which it goes.

    ``values`` (n * width,) are those of the rows, one row after the other.
    """
    feature, threshold, missing_left, left = tree[1:5]
    for k in range(np.uint32(nodes.size)):
        j = nodes[k]
        x = values[np.uint32(k * width + np.uint32(feature[j]))]
        is_right = (x >= threshold[j]) | ((x != x) & (not missing_left[j]))
        if tree.right.shape[1] > 0 and threshold[j] == BY_CATEGORY:
            is_right = not goes_left(x, threshold[j], missing_left[j], tree.right, j)
        nodes[k] = left[j] + is_right


@kernel
def descend_by_numbers(values, width, tree, nodes):
    """Do the same as `descend` for rows without missing values and a tree without categories."""
    feature, threshold, left = tree.feature, tree.threshold, tree.left
    for k in range(np.uint32(nodes.size)):
        j = nodes[k]
        x = values[np.uint32(k * width + np.uint32(feature[j]))]
        nodes[k] = left[j] + (x >= threshold[j])


@kernel
def sum_trees(X, forest, margins):
    """Add the values of the leaves that rows (n, d) reach to their margins (n,), in float32.

    A tree stays in a cache while a block of rows passes it, level by level, so that no row waits
    for another one. Each row adds the trees in their order.
    """
    forest, depths = endless(forest)
    block, width = 256, np.uint32(X.shape[1])
    nodes = np.empty(block, np.uint32)
    for first in range(0, margins.size, block):
        n = min(block, margins.size - first)
        values = X[first : first + n].reshape(-1)
        are_numbers = forest.right.shape[1] == 0 and not np.isnan(values).any()
        for t in range(depths.size):
            tree = one_tree(forest, t)
            nodes[:n] = 0
            for _ in range(depths[t]):
                if are_numbers:
                    descend_by_numbers(values, width, tree, nodes[:n])
                else:
                    descend(values, width, tree, nodes[:n])
            for k in range(n):
                margins[first + k] += tree.value[nodes[k]]
