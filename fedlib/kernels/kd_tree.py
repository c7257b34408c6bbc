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
from fedlib.kernels.instructions import prefetch_row

MAX_STACK = 66  # one more than the depth of any tree that fits in memory
AHEAD = 32  # a row is requested this many places before it is read
LOADED = 1 << 12  # points of a node that are copied before it is split further


class KDTree(NamedTuple):
    """A k-d tree: nested boxes around points.

    A node is a range of places. `order` maps each place to a row of the points, which are neither
    copied nor moved. Each node has the smallest box that contains its points. Nodes are in
    preorder: the left child of ``node`` is ``node + 1``, and for the right one see `right_child`.
    Nodes are split at the median of the widest side of their box, so the depth is at most
    ``log2(n_points) + 1``.

    Attributes
    ----------
    points : array (n_points, n_features) of float64
    order : array (n_points,) of int32 or int64
        The row of the point at each place. The type of the arrays below is the same.
    start : array (n_leaves + 1,)
        The place of the first point of each leaf; the last entry is the count of points.
    first_leaf, n_leaves : array (n_nodes,)
        The first leaf of each node and the number of its leaves. So the node and its descendants
        are ``2 * n_leaves - 1`` consecutive nodes.
    boxes : array (n_nodes, 2, n_features) of float64
        The lower and the upper corner of each node's box.
    """

    points: NDArray[np.float64]
    order: NDArray[np.signedinteger[Any]]
    start: NDArray[np.signedinteger[Any]]
    first_leaf: NDArray[np.signedinteger[Any]]
    n_leaves: NDArray[np.signedinteger[Any]]
    boxes: NDArray[np.float64]


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
def load(points, order, copies):
    """Write the points with the rows ``order`` (m,) one after the other to ``copies`` (m, d)."""
    for place in range(order.size):
        if place + AHEAD < order.size:
            prefetch_row(points, np.int64(order[place + AHEAD]))
        for k in range(points.shape[1]):
            copies[place, k] = points[order[place], k]


@kernel
def bound(points, order, box):
    """Write the box (2, d) of the points with the rows ``order`` (m,).

    Returns the number of its widest side and its squared diagonal.
    """
    box[0] = np.inf
    box[1] = -np.inf
    for place in range(order.size):
        if place + AHEAD < order.size:
            prefetch_row(points, np.int64(order[place + AHEAD]))
        for k in range(points.shape[1]):
            x = points[order[place], k]
            box[0, k] = min(box[0, k], x)
            box[1, k] = max(box[1, k], x)
    return measure(box)


@kernel
def bound_copies(copies, box):
    """Write the box (2, d) of points (m, d) and return what `bound` does."""
    box[0] = np.inf
    box[1] = -np.inf
    for i in range(copies.shape[0]):
        for k in range(copies.shape[1]):
            box[0, k] = min(box[0, k], copies[i, k])
            box[1, k] = max(box[1, k], copies[i, k])
    return measure(box)


@kernel
def measure(box):
    """Return the number of a box's widest side and its squared diagonal."""
    widest = 0
    squared_diagonal = 0.0
    for k in range(box.shape[1]):
        side = box[1, k] - box[0, k]
        squared_diagonal += side**2
        if side > box[1, widest] - box[0, widest]:
            widest = k
    return widest, squared_diagonal


@kernel
def select_median(copies, order, feature):
    """Reorder some points so that the one of rank ``len(order) // 2`` in a feature is in its place.

    ``copies`` (m, d) are the points in the rows ``order`` (m,). Both are reordered, because reading
    copies next to each other takes half the time of looking up the points.
    """
    middle = order.size // 2
    first, last = 0, order.size - 1
    while first < last:
        a = copies[first, feature]
        b = copies[(first + last) // 2, feature]
        c = copies[last, feature]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = first, last
        while i <= j:
            while copies[i, feature] < pivot:
                i += 1
            while copies[j, feature] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                for k in range(copies.shape[1]):
                    copies[i, k], copies[j, k] = copies[j, k], copies[i, k]
                i += 1
                j -= 1
        if middle <= j:
            last = j
        elif middle >= i:
            first = i
        else:
            break


@kernel
def _max_leaves(n_points, leaf_size):
    """Return the maximum count of leaves: nodes are halved until they have few points."""
    n_leaves = 1
    while n_points > n_leaves * leaf_size:
        n_leaves *= 2
    return min(n_leaves, max(1, 2 * n_points // (leaf_size + 1)))


@kernel
def max_nodes(n_points, leaf_size):
    """Return the maximum count of nodes of a tree."""
    return 2 * _max_leaves(n_points, leaf_size) - 1


@kernel
def build(points, leaf_size, max_squared_diagonal):
    """Return the tree of some points.

    A node becomes a leaf when it has at most ``leaf_size`` points (at least 1), or when the squared
    diagonal of its box is at most ``max_squared_diagonal`` (at least 0).
    """
    order = np.arange(points.shape[0])
    boxes = np.empty((max_nodes(order.size, leaf_size), 2, points.shape[1]))
    return build_part(points, order, boxes, 0, order.size, leaf_size, max_squared_diagonal)


@kernel
def halve(points, order, box):
    """Sort the rows of all points so that the first half is the left child of the root.

    Writes the root's box (2, n_features).
    """
    widest, _ = bound(points, order, box)
    _halve_by(points, order, widest, np.empty((order.size, 1)))


@kernel
def _halve_by(points, order, feature, values):
    """Sort rows so that the first half has the lower values; ``values`` (m, 1) is a buffer."""
    load(points[:, feature : feature + 1], order, values)
    select_median(values, order, 0)


@kernel
def build_part(points, order, boxes, first, stop, leaf_size, max_squared_diagonal):
    """Return the tree of the places ``first..stop``, as `build` does.

    Parameters
    ----------
    points : array (n_points, n_features) of float64
    order : array (n_points,) of int32 or int64
        The row of each point; these are sorted.
    boxes : array (`max_nodes`, 2, n_features) of float64
        Space for the boxes.
    first, stop : int
    leaf_size : int
    max_squared_diagonal : float
    """
    max_leaves = _max_leaves(stop - first, leaf_size)
    start = np.empty(max_leaves + 1, order.dtype)
    first_leaf = np.empty(2 * max_leaves - 1, order.dtype)
    n_leaves = np.zeros_like(first_leaf)
    values = np.empty((stop - first if stop - first > LOADED else 0, 1))
    copies, loaded, loaded_stop = np.empty((min(LOADED, stop - first), points.shape[1])), 0, 0
    stack = np.empty((MAX_STACK, 2), np.int64)  # ranges of points that become nodes
    stack[0] = first, stop
    n_stack = 1 if stop > first else 0
    node = leaf = 0
    while n_stack:
        n_stack -= 1
        begin, end = stack[n_stack]
        members, size = order[begin:end], end - begin
        if begin >= loaded_stop and size <= LOADED:
            loaded, loaded_stop = begin, end
            load(points, members, copies)
        is_loaded = begin < loaded_stop
        if is_loaded:
            part = copies[begin - loaded : end - loaded]
            widest, squared_diagonal = bound_copies(part, boxes[node])
        else:
            widest, squared_diagonal = bound(points, members, boxes[node])
        first_leaf[node] = leaf
        if size > leaf_size and squared_diagonal > max_squared_diagonal:
            if is_loaded:
                select_median(part, members, widest)
            else:
                _halve_by(points, members, widest, values[:size])
            middle = begin + size // 2
            stack[n_stack] = middle, end
            stack[n_stack + 1] = begin, middle
            n_stack += 2
        else:
            start[leaf] = begin
            n_leaves[node] = 1
            leaf += 1
        node += 1
    start[leaf] = stop
    tree = KDTree(
        points,
        order,
        start[: leaf + 1],
        first_leaf[:node],
        n_leaves[:node],
        boxes[:node],
    )
    _count_leaves(tree)
    return tree


@kernel
def _count_leaves(tree):
    """Write the count of leaves of all nodes that have 0 so far, the others being leaves."""
    for node in range(tree.n_leaves.size - 1, -1, -1):
        if tree.n_leaves[node] == 0:
            right = right_child(tree, node)
            tree.n_leaves[node] = tree.n_leaves[node + 1] + tree.n_leaves[right]


@kernel
def merge(boxes, left, right):
    """Return the tree whose root has the roots of two trees of parts as children.

    ``boxes`` begins with the box of the root and those of the left tree. Somewhere behind are those
    of the right one, which move forward: there is no second copy of the boxes.
    """
    n_left, n_right = left.start.size - 1, right.start.size - 1
    first_leaf = np.concatenate((left.first_leaf[:1], left.first_leaf, right.first_leaf))
    first_leaf[2 * n_left :] += n_left
    n_leaves = np.concatenate((left.n_leaves[:1], left.n_leaves, right.n_leaves))
    n_leaves[0] = n_left + n_right
    start = np.concatenate((left.start[:n_left], right.start))
    for node in range(right.n_leaves.size):
        boxes[2 * n_left + node] = right.boxes[node]
    boxes = boxes[: n_leaves.size]
    return KDTree(left.points, left.order, start, first_leaf, n_leaves, boxes)


@kernel
def sort_points(tree):
    """Return the same tree with a copy of the points by place: near points are near in memory."""
    points = np.empty_like(tree.points)
    load(tree.points, tree.order, points)
    rows = np.arange(tree.order.size)
    return KDTree(points, rows, tree.start, tree.first_leaf, tree.n_leaves, tree.boxes)


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
    boxes = tree.boxes
    total = 0.0
    for k in range(X.shape[1]):
        total += max(boxes[node, 0, k] - X[i, k], 0.0, X[i, k] - boxes[node, 1, k]) ** 2
    return total


@kernel
def are_far(boxes_a, a, boxes_b, b, squared_radius):
    """Return whether box ``a`` of some boxes (n, 2, d) is farther than a radius from another."""
    a, b = np.uint64(a), np.uint64(b)  # signed ones might count from the end
    total = 0.0
    for k in range(boxes_a.shape[2]):
        above = boxes_a[a, 0, k] - boxes_b[b, 1, k]
        below = boxes_b[b, 0, k] - boxes_a[a, 1, k]
        total += max(above, 0.0, below) ** 2
        if total > squared_radius:
            return True
    return False


@kernel
def radius_search(tree, queries, i, squared_radius, buffer, position):
    """Write the rows of all points around query ``i`` to ``buffer``, from ``position`` on.

    The rows are in tree order. Nothing is written to an empty buffer. Returns the position after
    the last row, so the count of points is the difference.
    """
    points, order = tree.points, tree.order
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
            if squared_distance(queries, i, points, order[place]) <= squared_radius:
                if buffer.size:
                    buffer[position] = order[place]
                position += 1
    return position


@kernel
def find_within(tree, queries, squared_radii):
    """Return all points within each query's squared radius, as CSR arrays (start, index).

    The rows of the points around query i are ``index[start[i]:start[i + 1]]``, ascending.
    """
    by_place = sort_points(tree)
    n_queries = queries.shape[0]
    start = np.zeros(n_queries + 1, np.int64)
    index = np.empty(0, np.int64)
    for i in range(n_queries):
        start[i + 1] = radius_search(by_place, queries, i, squared_radii[i], index, start[i])
    index = np.empty(start[-1], np.int64)
    for i in range(n_queries):
        radius_search(by_place, queries, i, squared_radii[i], index, start[i])
        found = index[start[i] : start[i + 1]]
        found[:] = tree.order[found]
        found.sort()
    return start, index


@kernel
def _one_of(values, i):
    """Return the value of element ``i``; a single value is that of all of them."""
    return values[i if values.size > 1 else 0]


@kernel
def max_by_node(tree, squared_radii):
    """Return the largest squared radius of the points of each node.

    For ``squared_radii`` see `find_nearest`.
    """
    largest = np.zeros(tree.n_leaves.size)
    for node in range(tree.n_leaves.size - 1, -1, -1):
        if tree.n_leaves[node] > 1:
            largest[node] = max(largest[node + 1], largest[right_child(tree, node)])
        else:
            first, stop = points_of(tree, node)
            for place in range(first, stop):
                radius = _one_of(squared_radii, tree.order[place])
                largest[node] = max(largest[node], radius)
    return largest


@kernel
def _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack):
    """Return the nearest point that reaches query ``i``, or -1."""
    points, order = tree.points, tree.order
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
            squared = squared_distance(queries, i, points, j)
            if squared <= _one_of(squared_radii, j) and (
                squared < smallest or (squared == smallest and (found < 0 or j < found))
            ):
                found, smallest = j, squared
    return found


@kernel
def find_nearest(tree, queries, squared_radii):
    """Return the nearest point that reaches each query, or -1.

    The point in row j reaches a query at a squared distance of at most ``squared_radii[j]``, or of
    at most ``squared_radii[0]`` if there is only this one. Ties go to the lowest row.
    """
    max_squared_radius = max_by_node(tree, squared_radii)
    stack = np.empty(MAX_STACK, np.int64)
    nearest = np.empty(queries.shape[0], np.int64)
    for i in range(queries.shape[0]):
        nearest[i] = _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack)
    return nearest
