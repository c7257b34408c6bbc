"""Trees as arrays of nodes: the order of their nodes, and the leaves that rows reach."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.categories import BY_CATEGORY, goes_left


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
    """Return the tree number ``t`` of a forest."""
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
