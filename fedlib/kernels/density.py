"""DBSCAN on cells: core points, their connection, and the core point that a border point joins.

A cell is a range ``cell_start[c]..cell_start[c + 1]`` of the points, of which any two are within
each other's reach; ``lower[c], upper[c]`` is the smallest box that holds them. A block of cells
``which`` comes with ranges of cells: those near ``which[w]``, itself among them, are
``near[near_start[w]:near_start[w + 1]]``, and no other cell has a point within reach of its points
or one that reaches them. ``limits[i]`` is the square of point i's reach. Distances are computed as
in `fedlib.kernels.kd_tree`.

``axes`` are the numbers of the features, 0 to d - 1: an array, or a tuple. For a tuple the kernels
are compiled for this very d, and a distance takes a third to a fifth of the time.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.disjoint_set import find, union
from fedlib.kernels.kd_tree import build, find_nearest

PIECE = 128  # points looked at before asking whether they were enough
FEW = 4  # points up to which they are looked at without a look at their box
MANY = 1 << 16  # pairs of points in two cells from which on a tree is worth building


@kernel
def _squared(points, axes, i, j):
    total = 0.0
    for k in range(len(axes)):
        total += (points[i, k] - points[j, k]) ** 2
    return total


@kernel
def _to_box(points, axes, i, lower, upper, c):
    total = 0.0
    for k in range(len(axes)):
        total += max(lower[c, k] - points[i, k], 0.0, points[i, k] - upper[c, k]) ** 2
    return total


@kernel
def gather(X, order, first, stop, points):
    """Write the rows ``order[first:stop]`` of ``X`` (n, d) to ``points[first:stop]``."""
    for i in range(first, stop):
        for k in range(X.shape[1]):
            points[i, k] = X[order[i], k]


@kernel
def bound_cells(points, axes, cell_start, first, stop, lower, upper):
    """Write the boxes of the cells ``first..stop``."""
    for c in range(first, stop):
        for k in range(len(axes)):
            low = high = points[cell_start[c], k]
            for i in range(cell_start[c] + 1, cell_start[c + 1]):
                low = min(low, points[i, k])
                high = max(high, points[i, k])
            lower[c, k] = low
            upper[c, k] = high


@kernel
def _weigh(points, axes, weights, i, limit, first, stop, total, enough):
    """Add to ``total`` the weight of the points of a range within reach, until it is enough."""
    for begin in range(first, stop, PIECE):
        if total >= enough:
            break
        end = min(stop, begin + PIECE)
        if weights.size:
            for j in range(begin, end):
                if _squared(points, axes, i, j) <= limit:
                    total += weights[j]
        else:
            count = 0
            for j in range(begin, end):
                count += _squared(points, axes, i, j) <= limit
            total += count
    return total


@kernel
def find_core(
    which,
    done,
    n_which,
    near_start,
    near,
    points,
    axes,
    weights,
    limits,
    cell_start,
    enough,
    core,
    n_core,
):
    """Write which points of the cells ``which[done:done + n_which]`` are core, and how many."""
    for w in range(n_which):
        c = which[done + w]
        first, stop = cell_start[c], cell_start[c + 1]
        own = 0.0
        if weights.size:
            for j in range(first, stop):
                own += weights[j]
        else:
            own += stop - first
        n_core[c] = 0
        for i in range(first, stop):
            total = own
            for r in range(near_start[w], near_start[w + 1]):
                a, b = cell_start[near[r, 0]], cell_start[near[r, 1]]
                if a <= first < b:
                    total = _weigh(points, axes, weights, i, limits[i], a, first, total, enough)
                    a = stop
                total = _weigh(points, axes, weights, i, limits[i], a, b, total, enough)
                if total >= enough:
                    break
            core[i] = total >= enough
            n_core[c] += core[i]


@kernel
def _reaching(points, axes, limits, core, lower, upper, cell_start, a, b):
    """Return whether a core point of one cell reaches one of the other, or is reached by it."""
    first, stop = cell_start[b], cell_start[b + 1]
    furthest = np.inf
    if stop - first > FEW:
        furthest = 0.0
        for j in range(first, stop):
            furthest = max(furthest, limits[j])
    for i in range(cell_start[a], cell_start[a + 1]):
        if not core[i] or (
            stop - first > FEW
            and _to_box(points, axes, i, lower, upper, b) > max(limits[i], furthest)
        ):
            continue
        for j in range(first, stop):
            if core[j] and _squared(points, axes, i, j) <= max(limits[i], limits[j]):
                return True
    return False


@kernel
def _core_points(points, axes, limits, core, first, stop):
    """Return the core points (m, d) of a range, and their limits."""
    X = np.empty((stop - first, len(axes)))
    reach = np.empty(stop - first)
    n = 0
    for i in range(first, stop):
        if core[i]:
            for k in range(len(axes)):
                X[n, k] = points[i, k]
            reach[n] = limits[i]
            n += 1
    return X[:n], reach[:n]


@kernel
def _reaching_by_tree(points, axes, limits, core, cell_start, a, b):
    """Return what `_reaching` does, for cells of many points."""
    X, x_reach = _core_points(points, axes, limits, core, cell_start[a], cell_start[a + 1])
    Y, y_reach = _core_points(points, axes, limits, core, cell_start[b], cell_start[b + 1])
    return _reached(X, Y, y_reach) or _reached(Y, X, x_reach)


@kernel
def _reached(X, Y, limits):
    """Return whether a point of ``X`` is within the reach of one of ``Y``."""
    order, first, stop, right, lower, upper = build(Y, 16, 0.0)
    for begin in range(0, X.shape[0], PIECE):
        piece = X[begin : begin + PIECE]
        if find_nearest(piece, limits, Y, order, first, stop, right, lower, upper).max() >= 0:
            return True
    return False


@kernel
def join_cells(
    which,
    done,
    n_which,
    near_start,
    near,
    points,
    axes,
    limits,
    cell_start,
    lower,
    upper,
    core,
    n_core,
    high,
    parent,
    crossing,
):
    """Unite the sets of a block's cells and later cells before ``high`` that belong together.

    A cell with near cells behind ``high`` is noted in ``crossing``.
    """
    for w in range(n_which):
        a = which[done + w]
        root = find(parent, a)
        for r in range(near_start[w], near_start[w + 1]):
            if near[r, 1] > high:
                crossing[a] = True
            for b in range(max(near[r, 0], a + 1), min(near[r, 1], high)):
                if n_core[b] == 0 or parent[b] == root or find(parent, b) == root:
                    continue
                if n_core[a] * n_core[b] > MANY:
                    joined = _reaching_by_tree(points, axes, limits, core, cell_start, a, b)
                else:
                    joined = _reaching(points, axes, limits, core, lower, upper, cell_start, a, b)
                if joined:
                    union(parent, a, b)
                    root = find(parent, a)


@kernel
def _before(points, axes, i, j):
    """Return whether point i comes before point j in lexicographic order."""
    for k in range(len(axes)):
        if points[i, k] != points[j, k]:
            return points[i, k] < points[j, k]
    return False


@kernel
def find_border(
    which,
    done,
    n_which,
    near_start,
    near,
    points,
    axes,
    limits,
    cell_start,
    lower,
    upper,
    core,
    n_core,
    nearest,
):
    """Write for each point of a block that is no core point the nearest that reaches it, or -1.

    Of core points at the same distance the one that is first in lexicographic order.
    """
    for w in range(n_which):
        a = which[done + w]
        for i in range(cell_start[a], cell_start[a + 1]):
            if core[i]:
                continue
            best = np.inf
            nearest[i] = -1
            for r in range(near_start[w], near_start[w + 1]):
                for b in range(near[r, 0], near[r, 1]):
                    if n_core[b] == 0 or _to_box(points, axes, i, lower, upper, b) > best:
                        continue
                    for j in range(cell_start[b], cell_start[b + 1]):
                        if not core[j]:
                            continue
                        squared = _squared(points, axes, i, j)
                        if squared <= limits[j] and (
                            nearest[i] < 0
                            or squared < best
                            or (squared == best and _before(points, axes, j, nearest[i]))
                        ):
                            best = squared
                            nearest[i] = j


@kernel
def number_clusters(order, cell_of, parent, core, nearest):
    """Return labels and core flags in the order of the rows; clusters by their first core row."""
    n = order.size
    labels = np.empty(n, np.int64)
    is_core = np.zeros(n, np.bool_)
    place = np.empty(n, np.int64)
    for p in range(n):
        place[order[p]] = p
    number = np.full(parent.size, -1, np.int64)
    n_clusters = 0
    for i in range(n):
        p = place[i]
        if core[p]:
            is_core[i] = True
            root = find(parent, cell_of[p])
            if number[root] < 0:
                number[root] = n_clusters
                n_clusters += 1
            labels[i] = number[root]
    for p in range(n):
        if not core[p]:
            i = order[p]
            labels[i] = -1 if nearest[p] < 0 else number[find(parent, cell_of[nearest[p]])]
    return labels, is_core
