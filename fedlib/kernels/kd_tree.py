"""A tree of boxes over points: which points lie within a distance, and which reaches furthest in.

A node is a range ``first..stop`` of the points in tree order, with the smallest box (``lower``,
``upper``) that holds them. Nodes stand in preorder: a node's left child follows it, ``right`` is
the other one, 0 at a leaf. Splits are at the median of the widest side, so the depth is at most
``log2(n) + 1`` whatever the points are.

A squared distance is the sum of the squares in the order of the features, in float64, and a point
is within ``r`` when that is at most ``r * r``. The distances to boxes are computed in the same
order, and rounding is monotone, so a box that seems too far holds no point that would have passed.
"""

import numpy as np

from fedlib.kernels import kernel

DEPTH = 66  # of the deepest tree that memory can hold, and one


@kernel
def _partition(X, order, low, high, middle, k):
    """Reorder ``order[low:high]`` so that feature ``k`` of rank ``middle`` stands in its place."""
    high -= 1
    while low < high:
        a, b, c = X[order[low], k], X[order[(low + high) // 2], k], X[order[high], k]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while X[order[i], k] < pivot:
                i += 1
            while X[order[j], k] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            break


@kernel
def _bound(X, order, first, stop, lower, upper, node):
    """Write a node's box; return its widest side and its squared diagonal."""
    d = X.shape[1]
    for k in range(d):
        lower[node, k] = np.inf
        upper[node, k] = -np.inf
    for at in range(first, stop):
        for k in range(d):
            x = X[order[at], k]
            lower[node, k] = min(lower[node, k], x)
            upper[node, k] = max(upper[node, k], x)
    widest = 0
    diagonal = 0.0
    for k in range(d):
        side = upper[node, k] - lower[node, k]
        diagonal += side**2
        if side > upper[node, widest] - lower[node, widest]:
            widest = k
    return widest, diagonal


@kernel
def build(X, leaf_size, diagonal):
    """Build the tree of ``X`` (n, d).

    A node is a leaf when it has at most ``leaf_size`` (at least 1) points or its squared diagonal
    is at most ``diagonal`` (at least 0). Returns order, first, stop, right, lower, upper.
    """
    n, d = X.shape
    most = 4 * n // (leaf_size + 1) + 1
    order = np.arange(n)
    first = np.empty(most, np.int64)
    stop = np.empty(most, np.int64)
    right = np.zeros(most, np.int64)
    lower = np.empty((most, d))
    upper = np.empty((most, d))
    waiting = np.empty((DEPTH, 3), np.int64)  # ranges to make nodes of, and whose right child it is
    waiting[0] = 0, n, -1
    n_waiting = 1 if n else 0
    n_nodes = 0
    while n_waiting:
        n_waiting -= 1
        low, high, parent = waiting[n_waiting]
        node = n_nodes
        n_nodes += 1
        if parent >= 0:
            right[parent] = node
        first[node] = low
        stop[node] = high
        widest, size = _bound(X, order, low, high, lower, upper, node)
        if high - low > leaf_size and size > diagonal:
            middle = (low + high) // 2
            _partition(X, order, low, high, middle, widest)
            waiting[n_waiting] = middle, high, node
            waiting[n_waiting + 1] = low, middle, -1
            n_waiting += 2
    return (
        order,
        first[:n_nodes],
        stop[:n_nodes],
        right[:n_nodes],
        lower[:n_nodes],
        upper[:n_nodes],
    )


@kernel
def _point_to_box(X, i, lower, upper, node):
    total = 0.0
    for k in range(X.shape[1]):
        total += max(lower[node, k] - X[i, k], 0.0, X[i, k] - upper[node, k]) ** 2
    return total


@kernel
def squared_distance(X, i, Y, j):
    total = 0.0
    for k in range(X.shape[1]):
        total += (X[i, k] - Y[j, k]) ** 2
    return total


@kernel
def find_around(X, i, limit, Y, order, first, stop, right, lower, upper, index, at):
    """Write the points within a query's squared limit from ``at`` on, if there is room at all."""
    waiting = np.empty(DEPTH, np.int64)
    waiting[0] = 0
    n_waiting = 1 if order.size else 0
    while n_waiting:
        n_waiting -= 1
        node = waiting[n_waiting]
        if _point_to_box(X, i, lower, upper, node) > limit:
            continue
        if right[node]:
            waiting[n_waiting] = right[node]
            waiting[n_waiting + 1] = node + 1
            n_waiting += 2
            continue
        for place in range(first[node], stop[node]):
            if squared_distance(X, i, Y, order[place]) <= limit:
                if index.size:
                    index[at] = order[place]
                at += 1
    return at


@kernel
def find_within(X, limits, Y, order, first, stop, right, lower, upper):
    """Return as CSR (start, index) the points ``Y`` within each query's squared limit.

    ``order`` and the rest are the tree of ``Y``; the indices of one query are ascending.
    """
    start = np.zeros(X.shape[0] + 1, np.int64)
    index = np.empty(0, np.int64)
    for i in range(X.shape[0]):
        start[i + 1] = find_around(
            X, i, limits[i], Y, order, first, stop, right, lower, upper, index, start[i]
        )
    index = np.empty(start[-1], np.int64)
    for i in range(X.shape[0]):
        find_around(X, i, limits[i], Y, order, first, stop, right, lower, upper, index, start[i])
        index[start[i] : start[i + 1]].sort()
    return start, index


@kernel
def find_nearest(X, limits, Y, order, first, stop, right, lower, upper):
    """Return for each row of ``X`` the nearest of ``Y`` whose own squared limit it is within.

    The lowest index of equals, or -1 if none reaches it.
    """
    furthest = np.empty(right.size)  # reach of any point of a node
    for node in range(right.size - 1, -1, -1):
        if right[node]:
            furthest[node] = max(furthest[node + 1], furthest[right[node]])
        else:
            furthest[node] = -1.0
            for place in range(first[node], stop[node]):
                furthest[node] = max(furthest[node], limits[order[place]])
    out = np.full(X.shape[0], -1, np.int64)
    waiting = np.empty(DEPTH, np.int64)
    for i in range(X.shape[0]):
        nearest = np.inf
        waiting[0] = 0
        n_waiting = 1 if order.size else 0
        while n_waiting:
            n_waiting -= 1
            node = waiting[n_waiting]
            if _point_to_box(X, i, lower, upper, node) > min(nearest, furthest[node]):
                continue
            if right[node]:
                near, far = node + 1, right[node]
                if _point_to_box(X, i, lower, upper, near) > _point_to_box(X, i, lower, upper, far):
                    near, far = far, near
                waiting[n_waiting] = far
                waiting[n_waiting + 1] = near
                n_waiting += 2
                continue
            for place in range(first[node], stop[node]):
                j = order[place]
                squared = squared_distance(X, i, Y, j)
                if squared <= limits[j] and (
                    squared < nearest or (squared == nearest and (out[i] < 0 or j < out[i]))
                ):
                    nearest = squared
                    out[i] = j
    return out


@kernel
def collect_leaves(order, first, right, limits):
    """Return where the points of each leaf begin, the first leaf of each node, and its reach.

    ``limits`` (n,) are squared; a node's reach is the largest of its points. One more entry than
    there are leaves, or nodes, marks the end.
    """
    n_nodes = right.size
    leaf_start = np.empty(n_nodes + 1, np.int64)
    first_leaf = np.empty(n_nodes + 1, np.int64)
    furthest = np.zeros(n_nodes)
    n_leaves = 0
    for node in range(n_nodes):
        first_leaf[node] = n_leaves
        if right[node] == 0:
            leaf_start[n_leaves] = first[node]
            n_leaves += 1
    first_leaf[n_nodes] = n_leaves
    leaf_start[n_leaves] = order.size
    for node in range(n_nodes - 1, -1, -1):
        if right[node]:
            furthest[node] = max(furthest[node + 1], furthest[right[node]])
        else:
            leaf = first_leaf[node]
            for place in range(leaf_start[leaf], leaf_start[leaf + 1]):
                furthest[node] = max(furthest[node], limits[order[place]])
    return leaf_start[: n_leaves + 1], first_leaf, furthest


@kernel
def _box_to_box(lower, upper, a, b):
    total = 0.0
    for k in range(lower.shape[1]):
        total += max(lower[a, k] - upper[b, k], 0.0, lower[b, k] - upper[a, k]) ** 2
    return total


@kernel
def near_in_tree(
    which, done, leaf_node, right, lower, upper, first_leaf, furthest, near_start, near
):
    """Find the ranges of leaves near the leaves ``which[done:]``, until there is no more room.

    Near is what is within the reach of either. ``near`` (room, 2) receives the ranges,
    ``near_start`` where those of each leaf begin. Returns how many leaves were done.
    """
    waiting = np.empty(DEPTH, np.int64)
    at = 0
    near_start[0] = 0
    for w in range(done, which.size):
        if w - done + 1 == near_start.size:
            return w - done
        own = leaf_node[which[w]]
        begin = at
        waiting[0] = 0
        n_waiting = 1
        while n_waiting:
            n_waiting -= 1
            node = waiting[n_waiting]
            if _box_to_box(lower, upper, own, node) > max(furthest[own], furthest[node]):
                continue
            if right[node]:
                waiting[n_waiting] = right[node]
                waiting[n_waiting + 1] = node + 1
                n_waiting += 2
                continue
            leaf = first_leaf[node]
            if at > begin and near[at - 1, 1] == leaf:
                near[at - 1, 1] += 1
            elif at == near.shape[0]:
                return w - done
            else:
                near[at, 0] = leaf
                near[at, 1] = leaf + 1
                at += 1
        near_start[w - done + 1] = at
    return which.size - done
