"""A k-d tree: which points lie within a radius, and which is the nearest that reaches a query.

The tree is one named tuple, `KDTree`, which `build` returns and every search takes.

A squared distance is the sum of the squared differences in the order of the features, in float64. A
point is within ``r`` when its squared distance is at most ``r * r``. Squared distances to boxes are
summed in the same order, and rounding is monotone. So a box that is computed to be too far away
contains no point that would have been accepted.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel

MAX_STACK = 66  # one more than the depth of any tree that fits in memory


class KDTree(NamedTuple):
    """A k-d tree: nested boxes around points.

    A node is a range of the points in tree order, with the smallest box that contains them. Nodes
    are in preorder: the left child of ``node`` is ``node + 1``, and for the right one see
    `right_child`. Nodes are split at the median of the widest side of their box, so the depth is at
    most ``log2(n_points) + 1``. A box of a single point is not stored.

    Attributes
    ----------
    corners : array (n_points + 2 * n_boxes or more, n_features) of float64
        The points in tree order, followed by the lower and the upper corner of each stored box.
    order : array (n_points,) of int32 or int64
        The row of each point, in tree order. The type of the arrays below is the same.
    start : array (n_leaves + 1,)
        Where the points of each leaf begin; the last entry is the number of points.
    first_leaf, n_leaves : array (n_nodes,)
        The first leaf of each node and the number of its leaves. So the node and its descendants
        are ``2 * n_leaves - 1`` consecutive nodes.
    low : array (n_nodes,)
        The row of the lower corner of each node's box in ``corners`` (see `box_of`).
    """

    corners: NDArray[np.float64]
    order: NDArray[np.signedinteger[Any]]
    start: NDArray[np.signedinteger[Any]]
    first_leaf: NDArray[np.signedinteger[Any]]
    n_leaves: NDArray[np.signedinteger[Any]]
    low: NDArray[np.signedinteger[Any]]


@kernel
def right_child(tree, node):
    """Return the right child of a node that is no leaf."""
    return node + 2 * tree.n_leaves[node + 1]


@kernel
def points_of(tree, node):
    """Return the place of a node's first point and the stop."""
    leaf = tree.first_leaf[node]
    return tree.start[leaf], tree.start[leaf + tree.n_leaves[node]]


@kernel
def box_of(tree, node):
    """Return the rows of the lower and the upper corner of a node's box."""
    low = tree.low[node]
    return low, low + (low >= tree.order.size)


@kernel
def select_median(values, order, first, stop, middle, feature):
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
def bound_points(corners, first, stop, low):
    """Write the box of some points to a row and the next; return its widest side and its diagonal.

    The diagonal is squared.
    """
    n_features = corners.shape[1]
    high = low + 1
    for k in range(n_features):
        corners[low, k] = np.inf
        corners[high, k] = -np.inf
    for place in range(first, stop):
        for k in range(n_features):
            x = corners[place, k]
            corners[low, k] = min(corners[low, k], x)
            corners[high, k] = max(corners[high, k], x)
    widest = 0
    squared_diagonal = 0.0
    for k in range(n_features):
        side = corners[high, k] - corners[low, k]
        squared_diagonal += side**2
        if side > corners[high, widest] - corners[low, widest]:
            widest = k
    return widest, squared_diagonal


@kernel
def _max_leaves(n_points, leaf_size):
    """Return the maximum number of leaves: nodes are halved until they have few points."""
    n_leaves = 1
    while n_points > n_leaves * leaf_size:
        n_leaves *= 2
    return min(n_leaves, max(1, 2 * n_points // (leaf_size + 1)))


@kernel
def max_boxes(n_points, leaf_size):
    """Return the maximum number of nodes with several points."""
    return max(0, min(n_points, 2 * _max_leaves(n_points, leaf_size)) - 1)


@kernel
def allocate(points, leaf_size):
    """Return the corners of a tree's boxes, of which only the points are filled in.

    The last two rows remain free.
    """
    n = points.shape[0]
    corners = np.empty((n + 2 * max_boxes(n, leaf_size) + 2, points.shape[1]))
    corners[:n] = points
    return corners


@kernel
def build(points, leaf_size, max_squared_diagonal):
    """Return the tree of some points.

    A node becomes a leaf when it has at most ``leaf_size`` points (at least 1), or when the squared
    diagonal of its box is at most ``max_squared_diagonal`` (at least 0).
    """
    n = points.shape[0]
    corners = allocate(points, leaf_size)
    return build_part(corners, np.arange(n), 0, n, n, leaf_size, max_squared_diagonal)


@kernel
def halve(corners, order):
    """Sort the points so that the first half is the left child of the root; write the root's box.

    For the arguments see `build_part`.
    """
    n = order.size
    widest, _ = bound_points(corners, 0, n, n)
    select_median(corners, order, 0, n, n // 2, widest)


@kernel
def build_part(corners, order, first, stop, row, leaf_size, max_squared_diagonal):
    """Return the tree of the points ``first..stop``, as `build` does.

    Parameters
    ----------
    corners : array (n_rows, n_features) of float64
        The points (see `allocate`); these are sorted, and their boxes written.
    order : array (n_points,) of int32 or int64
        The row of each point; these are sorted, too.
    first, stop : int
    row : int
        The row of ``corners`` from which on the boxes are written.
    leaf_size : int
    max_squared_diagonal : float
    """
    max_leaves = _max_leaves(stop - first, leaf_size)
    start = np.empty(max_leaves + 1, order.dtype)
    first_leaf = np.empty(2 * max_leaves - 1, order.dtype)
    n_leaves, low = np.zeros_like(first_leaf), np.empty_like(first_leaf)
    stack = np.empty((MAX_STACK, 2), np.int64)  # ranges of points that become nodes
    stack[0] = first, stop
    n_stack = 1 if stop > first else 0
    node = leaf = 0
    while n_stack:
        n_stack -= 1
        begin, end = stack[n_stack]
        first_leaf[node] = leaf
        low[node] = begin
        widest, squared_diagonal = 0, 0.0
        if end - begin > 1:
            low[node] = row
            widest, squared_diagonal = bound_points(corners, begin, end, row)
            row += 2
        if end - begin > leaf_size and squared_diagonal > max_squared_diagonal:
            middle = (begin + end) // 2
            select_median(corners, order, begin, end, middle, widest)
            stack[n_stack] = middle, end
            stack[n_stack + 1] = begin, middle
            n_stack += 2
        else:
            start[leaf] = begin
            n_leaves[node] = 1
            leaf += 1
        node += 1
    start[leaf] = stop
    tree = KDTree(corners, order, start[: leaf + 1], first_leaf[:node], n_leaves[:node], low[:node])
    _count_leaves(tree)
    return tree


@kernel
def _count_leaves(tree):
    """Write the number of leaves of all nodes that have 0 so far, the others being leaves."""
    for node in range(tree.low.size - 1, -1, -1):
        if tree.n_leaves[node] == 0:
            right = right_child(tree, node)
            tree.n_leaves[node] = tree.n_leaves[node + 1] + tree.n_leaves[right]


@kernel
def merge(left, right):
    """Return the tree whose root has the roots of two trees of parts as children (see `halve`)."""
    n_left, n_right = left.start.size - 1, right.start.size - 1
    first_leaf = np.concatenate((left.first_leaf[:1], left.first_leaf, right.first_leaf))
    first_leaf[2 * n_left :] += n_left
    n_leaves = np.concatenate((left.n_leaves[:1], left.n_leaves, right.n_leaves))
    n_leaves[0] = n_left + n_right
    low = np.concatenate((left.low[:1], left.low, right.low))
    low[0] = left.order.size
    start = np.concatenate((left.start[:n_left], right.start))
    return KDTree(left.corners, left.order, start, first_leaf, n_leaves, low)


@kernel
def number_by_place(tree):
    """Return the same tree with the places of the points as their rows."""
    rows = np.arange(tree.order.size)
    return KDTree(tree.corners, rows, tree.start, tree.first_leaf, tree.n_leaves, tree.low)


@kernel
def squared_distance(X, i, Y, j):
    """Return the squared distance of row ``i`` of ``X`` and row ``j`` of ``Y``."""
    total = 0.0
    for k in range(X.shape[1]):
        total += (X[i, k] - Y[j, k]) ** 2
    return total


@kernel
def squared_distance_to_node(X, i, tree, node):
    """Return the squared distance of row ``i`` of ``X`` to the box of a node."""
    corners = tree.corners
    low, high = box_of(tree, node)
    total = 0.0
    for k in range(X.shape[1]):
        total += max(corners[low, k] - X[i, k], 0.0, X[i, k] - corners[high, k]) ** 2
    return total


@kernel
def is_far(lower, upper, corners, low, n_points, squared_radius):
    """Return whether the box of two corners (n_features,) is farther from another than a radius.

    The other one is given by the row of its lower corner, as in `are_far`.
    """
    low = np.uint64(low)  # a signed one might count from the end
    high = low + np.uint64(low >= n_points)
    total = 0.0
    for k in range(corners.shape[1]):
        above, below = lower[k] - corners[high, k], corners[low, k] - upper[k]
        total += max(above, 0.0, below) ** 2
        if total > squared_radius:
            return True
    return False


@kernel
def are_far(corners, low_a, low_b, n_points, squared_radius):
    """Return whether two boxes, given by the rows of their lower corners, are farther apart.

    Rows before ``n_points`` are those of boxes of a single point (see `box_of`).
    """
    low_a, low_b = np.uint64(low_a), np.uint64(low_b)  # signed ones might count from the end
    high_a = low_a + np.uint64(low_a >= n_points)
    high_b = low_b + np.uint64(low_b >= n_points)
    total = 0.0
    for k in range(corners.shape[1]):
        above, below = (
            corners[low_a, k] - corners[high_b, k],
            corners[low_b, k] - corners[high_a, k],
        )
        total += max(above, 0.0, below) ** 2
        if total > squared_radius:
            return True
    return False


@kernel
def find_around(tree, queries, i, squared_radius, buffer, position):
    """Write the rows of all points around query ``i`` to ``buffer``, from ``position`` on.

    The rows are in tree order. Nothing is written to an empty buffer. Returns the position after
    the last row, so the number of points is the difference.
    """
    corners, order = tree.corners, tree.order
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack = 1 if order.size else 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if squared_distance_to_node(queries, i, tree, node) > squared_radius:
            continue
        if tree.n_leaves[node] > 1:
            stack[n_stack] = right_child(tree, node)
            stack[n_stack + 1] = node + 1
            n_stack += 2
            continue
        first, stop = points_of(tree, node)
        for place in range(first, stop):
            if squared_distance(queries, i, corners, place) <= squared_radius:
                if buffer.size:
                    buffer[position] = order[place]
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
def max_by_node(tree, squared_radii):
    """Return the largest squared radius of the points of each node."""
    largest = np.zeros(tree.low.size)
    for node in range(tree.low.size - 1, -1, -1):
        if tree.n_leaves[node] > 1:
            largest[node] = max(largest[node + 1], largest[right_child(tree, node)])
        else:
            first, stop = points_of(tree, node)
            for place in range(first, stop):
                largest[node] = max(largest[node], squared_radii[tree.order[place]])
    return largest


@kernel
def _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack):
    """Return the nearest point that reaches query ``i``, or -1."""
    corners, order = tree.corners, tree.order
    found, smallest = -1, np.inf
    stack[0] = 0
    n_stack = 1 if order.size else 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        bound = min(smallest, max_squared_radius[node])
        if squared_distance_to_node(queries, i, tree, node) > bound:
            continue
        if tree.n_leaves[node] > 1:
            near, far = node + 1, right_child(tree, node)
            to_near = squared_distance_to_node(queries, i, tree, near)
            if to_near > squared_distance_to_node(queries, i, tree, far):
                near, far = far, near
            stack[n_stack] = far
            stack[n_stack + 1] = near  # looked at first
            n_stack += 2
            continue
        first, stop = points_of(tree, node)
        for place in range(first, stop):
            j = order[place]
            squared = squared_distance(queries, i, corners, place)
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
    max_squared_radius = max_by_node(tree, squared_radii)
    stack = np.empty(MAX_STACK, np.int64)
    nearest = np.empty(queries.shape[0], np.int64)
    for i in range(queries.shape[0]):
        nearest[i] = _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack)
    return nearest
