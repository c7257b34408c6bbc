"""A k-d tree: which points lie within a radius, and which is the nearest that reaches a query.

The tree is one named tuple, `KDTree`, which `build` returns and every search takes.

A squared distance is the sum of the squared differences in the order of the features, in float64. A
point is within ``r`` when its squared distance is at most ``r * r``. Squared distances to boxes are
summed in the same order, and rounding is monotone. So a box that is computed to be too far away
contains no point that would have been accepted.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel

MAX_STACK = 66  # one more than the depth of any tree that fits in memory
BUCKET = 32  # leaves that are searched for and looked at together


class KDTree(NamedTuple):
    """A k-d tree: nested boxes around points.

    A node is a range of the points in tree order, with the smallest box that contains them. Nodes
    are in preorder, so the left child of ``node`` is ``node + 1``. Nodes are split at the median of
    the widest side of their box, so the depth is at most ``log2(n_points) + 1``.

    Attributes
    ----------
    points : array (n_points, n_features) of float64
        The points, in their original order.
    order : array (n_points,) of int64
        The row of each point, in tree order.
    first, stop : array (n_nodes,) of int64
        The points of a node are ``points[order[first[node]:stop[node]]]``.
    right : array (n_nodes,) of int64
        The right child of each node; 0 for a leaf.
    lower, upper : array (n_nodes, n_features) of float64
        The corners of each node's box.
    """

    points: NDArray[np.float64]
    order: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    right: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class Leaves(NamedTuple):
    """The leaves of a tree, and how far the points of each node reach.

    Attributes
    ----------
    node : array (n_leaves,) of int64
        The node of each leaf.
    start : array (n_leaves + 1,) of int64
        Where the points of each leaf begin in tree order; the last entry is the number of points.
    first_leaf : array (n_nodes,) of int64
        The first leaf of each node.
    n_leaves : array (n_nodes,) of int64
        The number of leaves of each node, so the node and its descendants are ``2 * n_leaves - 1``
        consecutive nodes.
    max_squared_radius : array (n_nodes,) of float64
        The largest squared radius of the points of each node.
    """

    node: NDArray[np.int64]
    start: NDArray[np.int64]
    first_leaf: NDArray[np.int64]
    n_leaves: NDArray[np.int64]
    max_squared_radius: NDArray[np.float64]


@kernel
def _select_median(values, order, first, stop, middle, feature):
    """Reorder ``first..stop`` so that the point of rank ``middle`` in a feature is in its place.

    The values (n, n_features) are in the order ``order`` and stay so: reading them one after the
    other takes half the time of looking them up.
    """
    last = stop - 1
    while first < last:
        a = values[first, feature]
        b = values[(first + last) // 2, feature]
        c = values[last, feature]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = first, last
        while i <= j:
            while values[i, feature] < pivot:
                i += 1
            while values[j, feature] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                for k in range(values.shape[1]):
                    values[i, k], values[j, k] = values[j, k], values[i, k]
                i += 1
                j -= 1
        if middle <= j:
            last = j
        elif middle >= i:
            first = i
        else:
            break


@kernel
def _bound_node(tree, values, node):
    """Write the box of a node; return its widest side and its squared diagonal."""
    lower, upper = tree.lower, tree.upper
    n_features = values.shape[1]
    for k in range(n_features):
        lower[node, k] = np.inf
        upper[node, k] = -np.inf
    for place in range(tree.first[node], tree.stop[node]):
        for k in range(n_features):
            x = values[place, k]
            lower[node, k] = min(lower[node, k], x)
            upper[node, k] = max(upper[node, k], x)
    widest = 0
    squared_diagonal = 0.0
    for k in range(n_features):
        side = upper[node, k] - lower[node, k]
        squared_diagonal += side**2
        if side > upper[node, widest] - lower[node, widest]:
            widest = k
    return widest, squared_diagonal


@kernel
def _allocate(points, order, max_nodes):
    """Return a tree whose nodes are not filled in."""
    n_features = points.shape[1]
    return KDTree(
        points,
        order,
        np.empty(max_nodes, np.int64),
        np.empty(max_nodes, np.int64),
        np.zeros(max_nodes, np.int64),
        np.empty((max_nodes, n_features)),
        np.empty((max_nodes, n_features)),
    )


@kernel
def _keep_nodes(tree, n_nodes):
    """Return the tree of the first nodes."""
    return KDTree(
        tree.points,
        tree.order,
        tree.first[:n_nodes],
        tree.stop[:n_nodes],
        tree.right[:n_nodes],
        tree.lower[:n_nodes],
        tree.upper[:n_nodes],
    )


@kernel
def build(points, leaf_size, max_squared_diagonal):
    """Return the tree of some points.

    A node becomes a leaf when it has at most ``leaf_size`` points (at least 1), or when the squared
    diagonal of its box is at most ``max_squared_diagonal`` (at least 0).
    """
    return build_part(points, np.arange(points.shape[0]), leaf_size, max_squared_diagonal)


@kernel
def halve(points):
    """Return the order of the rows in which the first half is the left child of the root."""
    order, values = np.arange(points.shape[0]), points.copy()
    root = _allocate(points, order, 1)
    root.first[0], root.stop[0] = 0, order.size
    widest, _ = _bound_node(root, values, 0)
    _select_median(values, order, 0, order.size, order.size // 2, widest)
    return order


@kernel
def build_part(points, order, leaf_size, max_squared_diagonal):
    """Return the tree of the rows ``order`` of the points, as `build` does; their order changes."""
    n, values = order.size, points[order]
    tree = _allocate(points, order, 4 * n // (leaf_size + 1) + 1)
    # Ranges of points that become nodes, each with the node of which it is the right child, or -1.
    stack = np.empty((MAX_STACK, 3), np.int64)
    stack[0] = 0, n, -1
    n_stack = 1 if n else 0
    n_nodes = 0
    while n_stack:
        n_stack -= 1
        first, stop, parent = stack[n_stack]
        node = n_nodes
        n_nodes += 1
        if parent >= 0:
            tree.right[parent] = node
        tree.first[node] = first
        tree.stop[node] = stop
        widest, squared_diagonal = _bound_node(tree, values, node)
        if stop - first > leaf_size and squared_diagonal > max_squared_diagonal:
            middle = (first + stop) // 2
            _select_median(values, tree.order, first, stop, middle, widest)
            stack[n_stack] = middle, stop, node
            stack[n_stack + 1] = first, middle, -1
            n_stack += 2
    return _keep_nodes(tree, n_nodes)


@kernel
def merge(left, right):
    """Return the tree whose root has the roots of two trees of the same points as children."""
    n_left, middle = left.right.size, left.order.size
    tree = _allocate(
        left.points, np.concatenate((left.order, right.order)), 1 + n_left + right.right.size
    )
    tree.first[0], tree.stop[0], tree.right[0] = 0, tree.order.size, 1 + n_left
    tree.lower[0] = np.minimum(left.lower[0], right.lower[0])
    tree.upper[0] = np.maximum(left.upper[0], right.upper[0])
    for part, node, place in ((left, 1, 0), (right, 1 + n_left, middle)):
        stop = node + part.right.size
        tree.first[node:stop] = part.first + place
        tree.stop[node:stop] = part.stop + place
        tree.right[node:stop] = np.where(part.right, part.right + node, 0)
        tree.lower[node:stop] = part.lower
        tree.upper[node:stop] = part.upper
    return tree


@kernel
def sort_points(tree):
    """Return the same tree with a copy of the points in tree order; its rows are places there."""
    return KDTree(
        tree.points[tree.order],
        np.arange(tree.order.size),
        tree.first,
        tree.stop,
        tree.right,
        tree.lower,
        tree.upper,
    )


@kernel
def squared_distance(X, i, Y, j):
    """Return the squared distance of row ``i`` of ``X`` and row ``j`` of ``Y``."""
    total = 0.0
    for k in range(X.shape[1]):
        total += (X[i, k] - Y[j, k]) ** 2
    return total


@kernel
def squared_distance_to_box(X, i, lower, upper, node):
    """Return the squared distance of row ``i`` of ``X`` to the box of a node."""
    total = 0.0
    for k in range(X.shape[1]):
        total += max(lower[node, k] - X[i, k], 0.0, X[i, k] - upper[node, k]) ** 2
    return total


@kernel
def are_far(lower, upper, a, b, squared_radius):
    """Return whether the boxes of two nodes are farther apart than a radius."""
    total = 0.0
    for k in range(lower.shape[1]):
        total += max(lower[a, k] - upper[b, k], 0.0, lower[b, k] - upper[a, k]) ** 2
        if total > squared_radius:
            return True
    return False


@kernel
def find_around(tree, queries, i, squared_radius, buffer, position):
    """Write the rows of all points around query ``i`` to ``buffer``, from ``position`` on.

    The rows are in tree order. Nothing is written to an empty buffer. Returns the position after
    the last row, so the number of points is the difference.
    """
    points, order, first, stop = tree.points, tree.order, tree.first, tree.stop
    right, lower, upper = tree.right, tree.lower, tree.upper
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack = 1 if order.size else 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if squared_distance_to_box(queries, i, lower, upper, node) > squared_radius:
            continue
        if right[node]:
            stack[n_stack] = right[node]
            stack[n_stack + 1] = node + 1
            n_stack += 2
            continue
        for place in range(first[node], stop[node]):
            j = order[place]
            if squared_distance(queries, i, points, j) <= squared_radius:
                if buffer.size:
                    buffer[position] = j
                position += 1
    return position


@kernel
def find_within(tree, queries, squared_radii):
    """Return all points within each query's squared radius, as CSR arrays (start, index).

    The rows of the points around query i are ``index[start[i]:start[i + 1]]``, ascending.
    """
    n_queries = queries.shape[0]
    start = np.zeros(n_queries + 1, np.int64)
    index = np.empty(0, np.int64)
    for i in range(n_queries):
        start[i + 1] = find_around(tree, queries, i, squared_radii[i], index, start[i])
    index = np.empty(start[-1], np.int64)
    for i in range(n_queries):
        find_around(tree, queries, i, squared_radii[i], index, start[i])
        index[start[i] : start[i + 1]].sort()
    return start, index


@kernel
def _max_by_node(tree, squared_radii):
    """Return the largest squared radius of the points of each node."""
    largest = np.zeros(tree.right.size)
    for node in range(tree.right.size - 1, -1, -1):
        if tree.right[node]:
            largest[node] = max(largest[node + 1], largest[tree.right[node]])
        else:
            for place in range(tree.first[node], tree.stop[node]):
                largest[node] = max(largest[node], squared_radii[tree.order[place]])
    return largest


@kernel
def _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack):
    """Return the nearest point that reaches query ``i``, or -1."""
    points, order, first, stop = tree.points, tree.order, tree.first, tree.stop
    right, lower, upper = tree.right, tree.lower, tree.upper
    found, smallest = -1, np.inf
    stack[0] = 0
    n_stack = 1 if order.size else 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        bound = min(smallest, max_squared_radius[node])
        if squared_distance_to_box(queries, i, lower, upper, node) > bound:
            continue
        if right[node]:
            near, far = node + 1, right[node]
            to_near = squared_distance_to_box(queries, i, lower, upper, near)
            if to_near > squared_distance_to_box(queries, i, lower, upper, far):
                near, far = far, near
            stack[n_stack] = far
            stack[n_stack + 1] = near  # looked at first
            n_stack += 2
            continue
        for place in range(first[node], stop[node]):
            j = order[place]
            squared = squared_distance(queries, i, points, j)
            if squared <= squared_radii[j] and (
                squared < smallest or (squared == smallest and (found < 0 or j < found))
            ):
                found, smallest = j, squared
    return found


@kernel
def find_nearest(tree, queries, squared_radii):
    """Return the nearest point that reaches each query, or -1.

    Point j reaches a query at a squared distance of at most ``squared_radii[j]``. Ties go to the
    lowest row.
    """
    max_squared_radius = _max_by_node(tree, squared_radii)
    stack = np.empty(MAX_STACK, np.int64)
    nearest = np.empty(queries.shape[0], np.int64)
    for i in range(queries.shape[0]):
        nearest[i] = _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack)
    return nearest


@kernel
def collect_leaves(tree, squared_radii):
    """Return the `Leaves` of a tree whose points have these squared radii (n_points,)."""
    n_nodes = tree.right.size
    node_of_leaf = np.flatnonzero(tree.right == 0)
    n_leaves = node_of_leaf.size
    start = np.empty(n_leaves + 1, np.int64)
    start[:n_leaves] = tree.first[node_of_leaf]
    start[n_leaves] = tree.order.size
    first_leaf = np.empty(n_nodes, np.int64)
    leaf = 0
    for node in range(n_nodes):
        first_leaf[node] = leaf
        leaf += tree.right[node] == 0
    n_of_leaves = np.ones(n_nodes, np.int64)
    for node in range(n_nodes - 1, -1, -1):
        if tree.right[node]:
            n_of_leaves[node] = n_of_leaves[node + 1] + n_of_leaves[tree.right[node]]
    max_squared_radius = _max_by_node(tree, squared_radii)
    return Leaves(node_of_leaf, start, first_leaf, n_of_leaves, max_squared_radius)


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
