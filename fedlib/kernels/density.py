"""DBSCAN on cells: core points, their connection, and the core point that a border point joins.

A cell is a range of points. Any two of them are in each other's neighbourhood. All cells are one
named tuple, `Cells`; a `Block` contains some of them together with the cells near them. No other
cell has a point within reach of the block's points, or one that reaches them. Squared distances are
computed as in `fedlib.kernels.kd_tree`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.disjoint_set import find, union
from fedlib.kernels.kd_tree import are_far, build, find_bucket, find_near_buckets, find_nearest

PIECE = 128  # points that are checked before testing whether the work is done
FEW = 4  # points in a cell up to which checking its box first does not pay
MANY = 1 << 16  # pairs of points in two cells from which a tree pays
LEAF_SIZE = 16
NO_SET, SEVERAL_SETS = -1, -2


class Cells(NamedTuple):
    """Points sorted into cells, and the results for them so far.

    Attributes
    ----------
    points : array (n_points, n_features) of float64
        The points, cell by cell. All arrays with one entry per point are in this order.
    axes : tuple of int or array of int64
        The numbers of the features, 0 to n_features - 1. For a tuple the functions are compiled
        for exactly this number of features: a distance then takes a third to a fifth of the time.
    squared_radii : array (n_points,) of float64
        The squared radius of each point's neighbourhood.
    weights : array (n_points,) of float64
        The weight of each point, or no entries if all weights are 1.
    start : array (n_cells + 1,) of int64
        Where the points of each cell begin; the last entry is the number of points.
    lower, upper : array (n_cells, n_features) of float64
        The corners of the smallest box around each cell's points (see `bound_cells`).
    core : array (n_points,) of bool
        Which points are core points (see `find_core`).
    n_core : array (n_cells,) of int64
        The number of core points in each cell (see `find_core`).
    """

    points: NDArray[np.float64]
    axes: tuple[int, ...] | NDArray[np.int64]
    squared_radii: NDArray[np.float64]
    weights: NDArray[np.float64]
    start: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    core: NDArray[np.bool_]
    n_core: NDArray[np.int64]


class Block(NamedTuple):
    """Some cells and the cells near each of them.

    Attributes
    ----------
    cells : array (n_block,) of int64
        The cells of the block.
    near_start : array (n_block + 1 or more,) of int64
        Where the ranges of near cells begin for each cell of the block.
    near : array (n_ranges or more, 2) of int64
        The ranges: their first cell and their stop. A cell is near itself.
    """

    cells: NDArray[np.int64]
    near_start: NDArray[np.int64]
    near: NDArray[np.int64]


@kernel
def _squared_distance(points, axes, i, j):
    total = 0.0
    for k in range(len(axes)):
        total += (points[i, k] - points[j, k]) ** 2
    return total


@kernel
def _squared_distance_to_box(points, axes, i, lower, upper, c):
    total = 0.0
    for k in range(len(axes)):
        total += max(lower[c, k] - points[i, k], 0.0, points[i, k] - upper[c, k]) ** 2
    return total


@kernel
def _squared_distances_of_box(points, axes, i, lower, upper, c):
    """Return the squared distances of point i to the nearest and the farthest place of a box."""
    nearest = farthest = 0.0
    for k in range(len(axes)):
        above, below = points[i, k] - lower[c, k], upper[c, k] - points[i, k]
        nearest += max(-above, 0.0, -below) ** 2
        farthest += max(above, below) ** 2
    return nearest, farthest


@kernel
def gather(X, order, points, first, stop):
    """Write the rows ``order[first:stop]`` of ``X`` (n, d) to ``points[first:stop]``."""
    for i in range(first, stop):
        for k in range(X.shape[1]):
            points[i, k] = X[order[i], k]


@kernel
def bound_cells(cells, first, stop):
    """Write the boxes of the cells ``first..stop``."""
    points, start, lower, upper = cells.points, cells.start, cells.lower, cells.upper
    for c in range(first, stop):
        for k in range(len(cells.axes)):
            low = high = points[start[c], k]
            for i in range(start[c] + 1, start[c + 1]):
                low = min(low, points[i, k])
                high = max(high, points[i, k])
            lower[c, k] = low
            upper[c, k] = high


@kernel
def _add_weights(points, axes, weights, i, squared_radius, first, stop, total, enough):
    """Add the weights of the points ``first..stop`` around point i, until they are enough."""
    for begin in range(first, stop, PIECE):
        if total >= enough:
            break
        end = min(stop, begin + PIECE)
        if weights.size:
            for j in range(begin, end):
                if _squared_distance(points, axes, i, j) <= squared_radius:
                    total += weights[j]
        else:
            count = 0
            for j in range(begin, end):
                count += _squared_distance(points, axes, i, j) <= squared_radius
            total += count
    return total


@kernel
def _sum_weights(weights, first, stop):
    """Return the weight of the points ``first..stop``."""
    if weights.size == 0:
        return float(stop - first)
    total = 0.0
    for i in range(first, stop):
        total += weights[i]
    return total


@kernel
def find_dense(cells, first, stop, min_samples):
    """Return which of the cells ``first..stop`` have the weight that makes all points core points.

    Their points and numbers of core points are written.
    """
    dense = np.empty(stop - first, np.bool_)
    for c in range(first, stop):
        begin, end = cells.start[c], cells.start[c + 1]
        dense[c - first] = _sum_weights(cells.weights, begin, end) >= min_samples
        if dense[c - first]:
            cells.core[begin:end] = True
            cells.n_core[c] = end - begin
    return dense


@kernel
def find_core(block, cells, min_samples):
    """Write which points of a block are core points, and how many there are in each cell."""
    near_start, near = block.near_start, block.near
    points, axes, weights = cells.points, cells.axes, cells.weights
    squared_radii, start, core = cells.squared_radii, cells.start, cells.core
    for w in range(block.cells.size):
        c = block.cells[w]
        first, stop = start[c], start[c + 1]
        weight = _sum_weights(weights, first, stop)
        n_core = 0
        for i in range(first, stop):
            total, r2 = weight, squared_radii[i]
            for r in range(near_start[w], near_start[w + 1]):
                a, b = start[near[r, 0]], start[near[r, 1]]
                if a <= first < b:  # the cell itself is counted already
                    total = _add_weights(points, axes, weights, i, r2, a, first, total, min_samples)
                    a = stop
                total = _add_weights(points, axes, weights, i, r2, a, b, total, min_samples)
                if total >= min_samples:
                    break
            core[i] = total >= min_samples
            n_core += core[i]
        cells.n_core[c] = n_core


@kernel
def _count_in_node(cells, tree, n_leaves, node, i, enough):
    """Return how many points of a node are around point i; the count stops when it is enough.

    A node within the radius is counted as a whole. Rounding is monotone, so the computed distance
    of its farthest place is at least that of each of its points.
    """
    points, axes, squared_radius = cells.points, cells.axes, cells.squared_radii[i]
    count = 0
    stop = node + 2 * n_leaves[node] - 1
    while node < stop and count < enough:
        nearest, farthest = _squared_distances_of_box(points, axes, i, tree.lower, tree.upper, node)
        within = farthest <= squared_radius
        if within:
            count += tree.stop[node] - tree.first[node]
        if within or nearest > squared_radius:
            node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
            continue
        if tree.right[node] == 0:
            for j in range(tree.first[node], tree.stop[node]):
                count += _squared_distance(points, axes, i, j) <= squared_radius
        node += 1
    return count


@kernel
def find_core_by_tree(wanted, cells, tree, leaves, min_samples):
    """Write which points are core points, as `find_core` does, for the leaves of a tree as cells.

    All weights are 1. Most core points have enough others in the bucket of their leaf; for the
    rest, the whole tree is searched.

    Parameters
    ----------
    wanted : array (n_wanted,) of int64
        The cells.
    cells : Cells
    tree : KDTree
    leaves : Leaves
    min_samples : float
    """
    for c in wanted:
        bucket = find_bucket(tree, leaves, c)
        n_core = 0
        for i in range(cells.start[c], cells.start[c + 1]):
            count = _count_in_node(cells, tree, leaves.n_leaves, bucket, i, min_samples)
            if count < min_samples:
                count = _count_in_node(cells, tree, leaves.n_leaves, 0, i, min_samples)
            cells.core[i] = count >= min_samples
            n_core += cells.core[i]
        cells.n_core[c] = n_core


@kernel
def join_cells(block, cells, stop, parent, crossing):
    """Unite the sets of cells that are connected: each cell of a block and the later cells near it.

    Cells from ``stop`` on are left out. A cell that is near one of them is marked in ``crossing``.
    """
    near_start, near, n_core = block.near_start, block.near, cells.n_core
    for w in range(block.cells.size):
        a = block.cells[w]
        root = find(parent, a)
        for r in range(near_start[w], near_start[w + 1]):
            if near[r, 1] > stop:
                crossing[a] = True
            for b in range(max(near[r, 0], a + 1), min(near[r, 1], stop)):
                if n_core[b] == 0 or parent[b] == root or find(parent, b) == root:
                    continue
                if _are_connected(cells, a, b):
                    union(parent, a, b)
                    root = find(parent, a)


@kernel
def join_leaves(wanted, cells, tree, leaves, stop, parent, crossing):
    """Unite the sets of cells that are connected, as `join_cells` does, for the leaves of a tree.

    Whole buckets of leaves are compared. Once the leaves of two buckets are in the same set, no
    pair of them needs to be looked at.

    Parameters
    ----------
    wanted : array (n_wanted,) of int64
        The cells whose later near cells are looked at, ascending; all have core points.
    cells : Cells
    tree : KDTree
    leaves : Leaves
    stop : int
        Cells from this one on are left out. A cell whose bucket is near one of them is marked in
        ``crossing``.
    parent : array (n_cells,) of int64
    crossing : array (n_cells,) of bool
    """
    buckets = np.empty(leaves.node.size, np.int64)
    sets = np.full(leaves.first_leaf.size, SEVERAL_SETS)  # of each bucket, see `_find_set`
    for inside in (True, False):  # most buckets are in one set before they are compared
        w = 0
        while w < wanted.size:
            bucket = find_bucket(tree, leaves, wanted[w])
            last = w
            while (
                last < wanted.size
                and wanted[last] < leaves.first_leaf[bucket] + leaves.n_leaves[bucket]
            ):
                last += 1
            part, part_set = wanted[w:last], np.full(1, SEVERAL_SETS)
            buckets[0], n_buckets = bucket, 1
            if not inside:
                n_buckets = find_near_buckets(tree, leaves, bucket, buckets)
            for other in buckets[:n_buckets]:
                first = leaves.first_leaf[other]
                end = first + leaves.n_leaves[other]
                if end > stop:
                    crossing[part] = True
                if end <= part[0] or (other == bucket) != inside:
                    continue
                here = _find_set(part_set, 0, part, cells, parent)
                there = _find_set(sets, other, range(first, min(end, stop)), cells, parent)
                single = here != SEVERAL_SETS and there != SEVERAL_SETS
                if there != NO_SET and not (single and here == there):
                    _join_bucket(part, other, single, cells, tree, leaves, stop, parent)
            w = last


@kernel
def _join_bucket(part, bucket, single, cells, tree, leaves, stop, parent):
    """Unite the sets of some cells with those of the later cells of a bucket, before ``stop``.

    If both are ``single`` sets, the first connection is enough.
    """
    reach = leaves.max_squared_radius
    node_stop = bucket + 2 * leaves.n_leaves[bucket] - 1
    for a in part:
        root, leaf, node = find(parent, a), leaves.node[a], bucket
        while node < node_stop:
            if are_far(tree.lower, tree.upper, leaf, node, max(reach[leaf], reach[node])):
                node += 2 * leaves.n_leaves[node] - 1  # to the next node that is no descendant
                continue
            node += 1
            if tree.right[node - 1]:
                continue
            b = leaves.first_leaf[node - 1]
            if b <= a or b >= stop or cells.n_core[b] == 0 or find(parent, b) == root:
                continue
            if _are_connected(cells, a, b):
                union(parent, a, b)
                root = find(parent, a)
                if single:
                    return


@kernel
def _find_set(sets, i, numbers, cells, parent):
    """Return the set of those cells that have core points, `NO_SET` or `SEVERAL_SETS`.

    It is kept in ``sets[i]``: cells in one set stay together.
    """
    if sets[i] == SEVERAL_SETS:
        sets[i] = _common_set(numbers, cells, parent)
    elif sets[i] != NO_SET:
        sets[i] = find(parent, sets[i])
    return sets[i]


@kernel
def _common_set(numbers, cells, parent):
    common = NO_SET
    for c in numbers:
        if cells.n_core[c]:
            root = find(parent, c)
            if common == NO_SET:
                common = root
            elif root != common:
                return SEVERAL_SETS
    return common


@kernel
def _are_connected(cells, a, b):
    """Return whether a core point of one cell is in the neighbourhood of one of the other."""
    if cells.n_core[a] * cells.n_core[b] > MANY:
        return _connected_by_trees(cells, a, b)
    return _connected_by_pairs(cells, a, b)


@kernel
def _connected_by_pairs(cells, a, b):
    """Return what `_are_connected` does, at the cost of the number of pairs of points."""
    points, axes, start, core = cells.points, cells.axes, cells.start, cells.core
    squared_radii, lower, upper = cells.squared_radii, cells.lower, cells.upper
    first, stop = start[b], start[b + 1]
    check_box = stop - first > FEW
    largest = 0.0  # squared radius in cell b
    if check_box:
        for j in range(first, stop):
            largest = max(largest, squared_radii[j])
    for i in range(start[a], start[a + 1]):
        r2 = squared_radii[i]
        if not core[i] or (
            check_box
            and _squared_distance_to_box(points, axes, i, lower, upper, b) > max(r2, largest)
        ):
            continue
        for j in range(first, stop):
            if core[j] and _squared_distance(points, axes, i, j) <= max(r2, squared_radii[j]):
                return True
    return False


@kernel
def _connected_by_trees(cells, a, b):
    """Return what `_connected_by_pairs` does, for cells with many core points."""
    X, squared_radii_x = _core_points(cells, a)
    Y, squared_radii_y = _core_points(cells, b)
    return _any_reaches(Y, squared_radii_y, X) or _any_reaches(X, squared_radii_x, Y)


@kernel
def _core_points(cells, c):
    """Return the core points (m, d) of a cell and their squared radii."""
    points = np.empty((cells.n_core[c], len(cells.axes)))
    squared_radii = np.empty(cells.n_core[c])
    n = 0
    for i in range(cells.start[c], cells.start[c + 1]):
        if cells.core[i]:
            for k in range(len(cells.axes)):
                points[n, k] = cells.points[i, k]
            squared_radii[n] = cells.squared_radii[i]
            n += 1
    return points, squared_radii


@kernel
def _any_reaches(points, squared_radii, queries):
    """Return whether any of the points has a query in its neighbourhood."""
    tree = build(points, LEAF_SIZE, 0.0)
    for begin in range(0, queries.shape[0], PIECE):
        if find_nearest(tree, queries[begin : begin + PIECE], squared_radii).max() >= 0:
            return True
    return False


@kernel
def _precedes(points, axes, i, j):
    """Return whether point i comes before point j in lexicographic order."""
    for k in range(len(axes)):
        if points[i, k] != points[j, k]:
            return points[i, k] < points[j, k]
    return False


@kernel
def find_border(block, cells, nearest):
    """Write the core point that each other point of a block joins, or -1, to ``nearest`` (n,).

    It is the nearest core point that has the point in its neighbourhood. Ties go to the first in
    lexicographic order.
    """
    near_start, near = block.near_start, block.near
    points, axes, start, core = cells.points, cells.axes, cells.start, cells.core
    lower, upper, n_core = cells.lower, cells.upper, cells.n_core
    squared_radii = cells.squared_radii
    for w in range(block.cells.size):
        c = block.cells[w]
        for i in range(start[c], start[c + 1]):
            if core[i]:
                continue
            best, best_squared = -1, np.inf
            for r in range(near_start[w], near_start[w + 1]):
                for b in range(near[r, 0], near[r, 1]):
                    if n_core[b] == 0 or (
                        _squared_distance_to_box(points, axes, i, lower, upper, b) > best_squared
                    ):
                        continue
                    for j in range(start[b], start[b + 1]):
                        if not core[j]:
                            continue
                        squared = _squared_distance(points, axes, i, j)
                        if squared <= squared_radii[j] and (
                            best < 0
                            or squared < best_squared
                            or (squared == best_squared and _precedes(points, axes, j, best))
                        ):
                            best, best_squared = j, squared
            nearest[i] = best


@kernel
def number_clusters(order, cell_of, parent, core, nearest):
    """Return labels and core flags by row; clusters are numbered by their first core row.

    ``order`` (n,) is the row of each point, ``cell_of`` (n,) its cell, and ``nearest`` (n,) the
    core point that it joins if it is not a core point itself.
    """
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
