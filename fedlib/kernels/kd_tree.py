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


class Nodes(NamedTuple):
    """The nodes of a tree without its points; the attributes are those of `KDTree`."""

    first: NDArray[np.integer]
    stop: NDArray[np.integer]
    right: NDArray[np.integer]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


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
def _bound_node(nodes, values, node):
    """Write the box of a node; return its widest side and its squared diagonal."""
    lower, upper = nodes.lower, nodes.upper
    n_features = values.shape[1]
    for k in range(n_features):
        lower[node, k] = np.inf
        upper[node, k] = -np.inf
    for place in range(nodes.first[node], nodes.stop[node]):
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
def max_nodes(n, leaf_size):
    """Return the number of nodes over ``n`` points if only their number makes a node a leaf.

    All nodes at one depth have the same number of points or one more.
    """
    n_level, n_above, size = 1, 0, n
    while size > leaf_size:
        n_above += n_level
        n_level *= 2
        size = n // n_level
    n_larger = n - size * n_level if size == leaf_size else 0  # they are halved once more
    return n_above + n_level + 2 * n_larger


@kernel
def _allocate(values, order, n_nodes):
    """Return nodes that are not filled in; their integers have the type of ``order``."""
    n_features = values.shape[1]
    return Nodes(
        np.empty(n_nodes, order.dtype),
        np.empty(n_nodes, order.dtype),
        np.zeros(n_nodes, order.dtype),
        np.empty((n_nodes, n_features)),
        np.empty((n_nodes, n_features)),
    )


@kernel
def build(points, leaf_size, max_squared_diagonal):
    """Return the tree of some points.

    A node becomes a leaf when it has at most ``leaf_size`` points (at least 1), or when the squared
    diagonal of its box is at most ``max_squared_diagonal`` (at least 0).
    """
    order = np.arange(points.shape[0])
    nodes = split(points.copy(), order, leaf_size, max_squared_diagonal)
    return KDTree(points, order, nodes.first, nodes.stop, nodes.right, nodes.lower, nodes.upper)


@kernel
def halve(values, order):
    """Sort points and their rows so that the first half is the left child of the root."""
    root = _allocate(values, order, 1)
    root.first[0], root.stop[0] = 0, order.size
    widest, _ = _bound_node(root, values, 0)
    _select_median(values, order, 0, order.size, order.size // 2, widest)


@kernel
def split(values, order, leaf_size, max_squared_diagonal):
    """Sort points into tree order, in place, and return the nodes.

    Parameters
    ----------
    values : array (n_points, n_features) of float64
        The points.
    order : array (n_points,) of an integer type
        Their rows, which are sorted with them. The nodes have the same integer type.
    leaf_size, max_squared_diagonal : float
        See `build`.
    """
    n = order.size
    nodes = _allocate(values, order, max_nodes(n, leaf_size))
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
            nodes.right[parent] = node
        nodes.first[node] = first
        nodes.stop[node] = stop
        widest, squared_diagonal = _bound_node(nodes, values, node)
        if stop - first > leaf_size and squared_diagonal > max_squared_diagonal:
            middle = (first + stop) // 2
            _select_median(values, order, first, stop, middle, widest)
            stack[n_stack] = middle, stop, node
            stack[n_stack + 1] = first, middle, -1
            n_stack += 2
    return Nodes(
        nodes.first[:n_nodes],
        nodes.stop[:n_nodes],
        nodes.right[:n_nodes],
        nodes.lower[:n_nodes],
        nodes.upper[:n_nodes],
    )


@kernel
def merge(left, right):
    """Return the nodes whose root has the roots of two halves (see `halve`) as children."""
    n_left, middle = left.right.size, np.int64(left.stop[0])
    nodes = _allocate(left.lower, left.first, 1 + n_left + right.right.size)
    nodes.first[0], nodes.stop[0], nodes.right[0] = 0, middle + right.stop[0], 1 + n_left
    nodes.lower[0] = np.minimum(left.lower[0], right.lower[0])
    nodes.upper[0] = np.maximum(left.upper[0], right.upper[0])
    for part, node, place in ((left, 1, 0), (right, 1 + n_left, middle)):
        stop = node + part.right.size
        nodes.first[node:stop] = part.first + place
        nodes.stop[node:stop] = part.stop + place
        nodes.right[node:stop] = np.where(part.right > 0, part.right + node, 0)
        nodes.lower[node:stop] = part.lower
        nodes.upper[node:stop] = part.upper
    return nodes


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
def max_by_node(tree, squared_radii):
    """Return the largest squared radius of the points of each node.

    The squared radii are in tree order, or one for all points.
    """
    largest = np.zeros(tree.right.size)
    if squared_radii.size == 1:
        largest[:] = squared_radii[0]
        return largest
    for node in range(tree.right.size - 1, -1, -1):
        if tree.right[node]:
            largest[node] = max(largest[node + 1], largest[tree.right[node]])
        else:
            for place in range(tree.first[node], tree.stop[node]):
                largest[node] = max(largest[node], squared_radii[place])
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
    max_squared_radius = max_by_node(tree, squared_radii[tree.order])
    stack = np.empty(MAX_STACK, np.int64)
    nearest = np.empty(queries.shape[0], np.int64)
    for i in range(queries.shape[0]):
        nearest[i] = _find_nearest_to(tree, queries, i, squared_radii, max_squared_radius, stack)
    return nearest
