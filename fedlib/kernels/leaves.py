"""The leaves of a k-d tree as cells of DBSCAN, and the leaves near a leaf."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.kd_tree import MAX_STACK, are_far, max_by_node

BUCKET = 32  # leaves that are searched for and looked at together


class Leaves(NamedTuple):
    """The leaves of a tree, and how far the points of each node reach.

    Numbers of nodes, leaves and points have the integer type of the tree.

    Attributes
    ----------
    node : array (n_leaves,) of an integer type
        The node of each leaf.
    start : array (n_leaves + 1,) of an integer type
        Where the points of each leaf begin in tree order; the last entry is the number of points.
    first_leaf : array (n_nodes,) of an integer type
        The first leaf of each node.
    n_leaves : array (n_nodes,) of an integer type
        The number of leaves of each node, so the node and its descendants are ``2 * n_leaves - 1``
        consecutive nodes.
    max_squared_radius : array (n_nodes,) of float64
        The largest squared radius of the points of each node.
    """

    node: NDArray[np.integer]
    start: NDArray[np.integer]
    first_leaf: NDArray[np.integer]
    n_leaves: NDArray[np.integer]
    max_squared_radius: NDArray[np.float64]


@kernel
def collect_leaves(tree, squared_radii):
    """Return the `Leaves` of a tree with these squared radii, in tree order or one for all."""
    n_nodes, integer = tree.right.size, tree.right.dtype
    first_leaf, n_of_leaves = np.empty(n_nodes, integer), np.ones(n_nodes, integer)
    n_leaves = 0
    for node in range(n_nodes):
        first_leaf[node] = n_leaves
        n_leaves += tree.right[node] == 0
    node_of_leaf, start = np.empty(n_leaves, integer), np.empty(n_leaves + 1, integer)
    start[n_leaves] = tree.stop[0] if n_nodes else 0
    for node in range(n_nodes - 1, -1, -1):
        if tree.right[node]:
            n_of_leaves[node] = n_of_leaves[node + 1] + n_of_leaves[tree.right[node]]
        else:
            node_of_leaf[first_leaf[node]] = node
            start[first_leaf[node]] = tree.first[node]
    max_squared_radius = max_by_node(tree, squared_radii)
    return Leaves(node_of_leaf, start, first_leaf, n_of_leaves, max_squared_radius)


@kernel
def find_tight(tree, leaves, max_squared_diagonal):
    """Return which leaves (n_leaves,) have a box with at most this squared diagonal."""
    tight = np.empty(leaves.node.size, np.bool_)
    for leaf in range(leaves.node.size):
        node = leaves.node[leaf]
        squared_diagonal = 0.0
        for k in range(tree.lower.shape[1]):
            squared_diagonal += (tree.upper[node, k] - tree.lower[node, k]) ** 2
        tight[leaf] = squared_diagonal <= max_squared_diagonal
    return tight


@kernel
def find_bucket(tree, leaves, leaf):
    """Return the largest node with this leaf and at most ``BUCKET`` leaves."""
    node = 0
    while leaves.n_leaves[node] > BUCKET:
        right = tree.right[node]
        node = node + 1 if leaf < leaves.first_leaf[right] else right
    return node


@kernel
def find_near_buckets(tree, leaves, bucket, buckets):
    """Write the buckets near a bucket to ``buckets``, in the order of the tree; return how many."""
    right, lower, upper, reach = tree.right, tree.lower, tree.upper, leaves.max_squared_radius
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack, n_buckets = 1, 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if are_far(lower, upper, bucket, node, max(reach[bucket], reach[node])):
            continue
        if leaves.n_leaves[node] > BUCKET:
            stack[n_stack] = right[node]
            stack[n_stack + 1] = node + 1
            n_stack += 2
        else:
            buckets[n_buckets] = node
            n_buckets += 1
    return n_buckets


@kernel
def _write_near(tree, leaves, leaf, buckets, near, n_before):
    """Write the leaves near one leaf to ``near``, after ``n_before`` ranges.

    Returns the number of ranges, or -1 if the buffer is full.
    """
    right, lower, upper, reach = tree.right, tree.lower, tree.upper, leaves.max_squared_radius
    a = leaves.node[leaf]
    n_near = n_before
    for bucket in buckets:
        n_leaves = leaves.n_leaves[bucket]
        stop = bucket + 2 * n_leaves - 1
        node = bucket
        while node < stop:
            if are_far(lower, upper, a, node, max(reach[a], reach[node])):
                node += 2 * leaves.n_leaves[node] - 1  # to the next node that is no descendant
                continue
            node += 1
            if right[node - 1]:
                continue
            b = leaves.first_leaf[node - 1]
            if n_near > n_before and near[n_near - 1, 1] == b:
                near[n_near - 1, 1] += 1
            elif n_near == near.shape[0]:
                return -1
            else:
                near[n_near, 0] = b
                near[n_near, 1] = b + 1
                n_near += 1
    return n_near


@kernel
def find_near_leaves(tree, leaves, wanted, near_start, near):
    """Find the leaves near each of the ``wanted`` leaves, until a buffer is full.

    Two leaves are near when the distance of their boxes is at most the largest radius of their
    points. Those near ``wanted[w]`` are the ranges ``near[near_start[w]:near_start[w + 1]]`` of
    leaves, each a first leaf and a stop.

    The tree is searched once per bucket: a node with few leaves. The leaves of a bucket look only
    into the buckets near theirs.

    Parameters
    ----------
    tree : KDTree
    leaves : Leaves
    wanted : array (n_wanted,) of int64
        Leaves, ascending.
    near_start : array (max_wanted + 1,) of int64
        Buffer.
    near : array (max_ranges, 2) of int64
        Buffer, with a row for every leaf or more.

    Returns
    -------
    int
        The number of wanted leaves that are done, at least 1 if there is any.
    """
    buckets = np.empty(leaves.node.size, np.int64)
    n_buckets, bucket_stop = 0, 0
    near_start[0] = 0
    for w in range(wanted.size):
        if w + 1 == near_start.size:
            return w
        if wanted[w] >= bucket_stop:
            bucket = find_bucket(tree, leaves, wanted[w])
            bucket_stop = leaves.first_leaf[bucket] + leaves.n_leaves[bucket]
            n_buckets = find_near_buckets(tree, leaves, bucket, buckets)
        n_near = _write_near(tree, leaves, wanted[w], buckets[:n_buckets], near, near_start[w])
        if n_near < 0:
            return w
        near_start[w + 1] = n_near
    return wanted.size
