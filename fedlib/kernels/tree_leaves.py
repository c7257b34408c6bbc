"""The leaves of a k-d tree as cells: how far their points reach, and which leaves are near a leaf.

Leaves are searched for by the bucket: a node with few leaves, all of whose leaves look into the
same buckets nearby.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.kd_tree import MAX_STACK, are_far, max_by_node, right_child

BUCKET = 32  # leaves that are searched for and looked at together


class Leaves(NamedTuple):
    """The leaves of a tree, and how far the points of each node reach.

    Attributes
    ----------
    node : array (n_leaves,) of int32 or int64
        The node of each leaf.
    max_squared_radius : array (n_nodes,) or (1,) of float64
        The largest squared radius of the points of each node, or that of all points.
    n_buckets : int
        The number of buckets.
    """

    node: NDArray[np.signedinteger[Any]]
    max_squared_radius: NDArray[np.float64]
    n_buckets: int


@kernel
def collect_leaves(tree, squared_radii):
    """Return the `Leaves` of a tree whose points have these squared radii, by row, or this one."""
    node_of_leaf = np.empty(tree.start.size - 1, tree.low.dtype)
    for node in range(tree.low.size):
        if tree.n_leaves[node] == 1:
            node_of_leaf[tree.first_leaf[node]] = node
    reach = squared_radii if squared_radii.size == 1 else max_by_node(tree, squared_radii)
    return Leaves(node_of_leaf, reach, _count_buckets(tree))


@kernel
def _count_buckets(tree):
    node = n_buckets = 0
    while node < tree.low.size:
        is_bucket = tree.n_leaves[node] <= BUCKET
        n_buckets += is_bucket
        node += 2 * tree.n_leaves[node] - 1 if is_bucket else 1
    return n_buckets


@kernel
def larger_reach(max_squared_radius, a, b):
    """Return the larger one of the squared radii of two nodes (see `Leaves`)."""
    if max_squared_radius.size == 1:
        return max_squared_radius[0]
    return max(max_squared_radius[a], max_squared_radius[b])


@kernel
def find_bucket(tree, leaf):
    """Return the largest node with this leaf and at most ``BUCKET`` leaves."""
    node = 0
    while tree.n_leaves[node] > BUCKET:
        right = right_child(tree, node)
        node = node + 1 if leaf < tree.first_leaf[right] else right
    return node


@kernel
def find_near_buckets(tree, leaves, bucket, buckets):
    """Write the buckets near a bucket to ``buckets``, in the order of the tree; return how many."""
    corners, low, n_points = tree.corners, tree.low, tree.order.size
    reach = leaves.max_squared_radius
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack, n_buckets = 1, 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if are_far(corners, low[bucket], low[node], n_points, larger_reach(reach, bucket, node)):
            continue
        if tree.n_leaves[node] > BUCKET:
            stack[n_stack] = right_child(tree, node)
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
    n_leaves, first_leaf = tree.n_leaves, tree.first_leaf
    corners, low, n_points = tree.corners, tree.low, tree.order.size
    reach = leaves.max_squared_radius
    a = leaves.node[leaf]
    n_near = n_before
    for bucket in buckets:
        stop = bucket + 2 * n_leaves[bucket] - 1
        node = bucket
        while node < stop:
            if are_far(corners, low[a], low[node], n_points, larger_reach(reach, a, node)):
                node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
                continue
            node += 1
            if n_leaves[node - 1] > 1:
                continue
            b = first_leaf[node - 1]
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
        Buffer, with a row for every second leaf or more: leaves in a row are one range.

    Returns
    -------
    int
        The number of wanted leaves that are done, at least 1 if there is any.
    """
    buckets = np.empty(leaves.n_buckets, np.int64)
    n_buckets, bucket_stop = 0, 0
    near_start[0] = 0
    for w in range(wanted.size):
        if w + 1 == near_start.size:
            return w
        if wanted[w] >= bucket_stop:
            bucket = find_bucket(tree, wanted[w])
            bucket_stop = tree.first_leaf[bucket] + tree.n_leaves[bucket]
            n_buckets = find_near_buckets(tree, leaves, bucket, buckets)
        n_near = _write_near(tree, leaves, wanted[w], buckets[:n_buckets], near, near_start[w])
        if n_near < 0:
            return w
        near_start[w + 1] = n_near
    return wanted.size
