"""Which cells of DBSCAN are connected: a core point of one is near a core point of the other.

Cells are those of `fedlib.kernels.density`. Connected cells are joined in disjoint sets. The sets
do not depend on the order in which cells are compared.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.density import NONE, squared_distance, squared_distance_to_box, squared_radius
from fedlib.kernels.disjoint_set import find, union
from fedlib.kernels.kd_tree import are_far, build, find_nearest, is_far
from fedlib.kernels.tree_leaves import cells_of, find_bucket, find_near_buckets, larger_reach

PIECE = 128  # points that are searched for before testing whether one is found
FEW = 4  # points in a cell up to which it needs no box: checking that first would not pay
MANY = 1 << 16  # pairs of points in two cells above which trees pay
LEAF_SIZE = 16
NO_SET, SEVERAL_SETS = -1, -2


@kernel
def join_cells(block, cells, first, parent, crossing):
    """Unite the sets of cells that are connected: the cells of a block and earlier cells near them.

    Most earlier cells are in the cell's set already, because the nearest rows come first. A range
    of such cells is passed over by vector instructions.

    Parameters
    ----------
    block : Block
        All of its cells have core points.
    cells : Cells
        All radii are the same.
    first : int
        Cells before this one are left out. The cells of a group that is near one of them are
        marked in ``crossing``.
    parent : array (n_cells,) of int32 or int64
    crossing : array (n_cells,) of bool
    """
    corners, has_core, near = cells.corners, cells.has_core, block.near
    points, axes, core, start = cells.points, cells.axes, cells.core, cells.start
    box, squared_radius = cells.box, cells.squared_radii[0]
    for g in range(block.group_start.size - 1):
        for a in block.cells[block.group_start[g] : block.group_start[g + 1]]:
            root = find(parent, a)
            for r in range(block.near_start[g], block.near_start[g + 1]):
                begin, stop = max(near[r, 0], first), min(near[r, 1], a)
                if near[r, 0] < first:
                    crossing[a] = True
                if _are_joined(parent, has_core, root, begin, stop):
                    continue
                for b in range(stop - 1, begin - 1, -1):
                    if has_core[b] == NONE or parent[b] == root:
                        continue
                    parent[b] = find(parent, b)
                    if parent[b] == root:
                        continue
                    low_a, low_b = box[a], box[b]
                    both = low_a >= 0 and low_b >= 0
                    if both and are_far(corners, low_a, low_b, 0, squared_radius):
                        continue
                    if _have_many_pairs(start, a, b):
                        connected = _connected_by_trees(cells, a, b)
                    else:
                        connected = _are_points_near(
                            points, axes, core, start, a, b, corners, box, squared_radius
                        )
                    if connected:
                        union(parent, a, b)
                        root = find(parent, a)


@kernel
def _have_many_pairs(start, a, b):
    return (start[a + 1] - start[a]) * (start[b + 1] - start[b]) > MANY


@kernel
def _are_joined(parent, has_core, root, begin, stop):
    """Return whether the cells ``begin..stop`` with core points are children of a root.

    Unsigned indices are needed for vector instructions: signed ones might count from the end.
    """
    n_others = 0
    for b in range(np.uint64(begin), np.uint64(max(begin, stop))):
        n_others += (parent[b] != root) & (has_core[b] != NONE)
    return n_others == 0


@kernel
def _are_points_near(points, axes, core, start, a, b, corners, box, squared_radius):
    """Return whether a core point of one cell is within a radius of one of the other."""
    if box[b] < 0:
        a, b = b, a
    first, stop = start[b], start[b + 1]
    low = box[b]
    check_box = low >= 0
    for i in range(start[a], start[a + 1]):
        if not core[i] or (
            check_box
            and squared_distance_to_box(points, axes, i, corners, low, low + 1) > squared_radius
        ):
            continue
        for j in range(first, stop):
            if core[j] and squared_distance(points, axes, i, j) <= squared_radius:
                return True
    return False


@kernel
def join_leaves(wanted, cells, tree, leaves, first, stop, parent, crossing):
    """Unite the sets of cells that are connected, for the cells of a tree.

    Whole buckets are compared. Once the cells of two buckets are in the same set, no pair of them
    needs to be looked at.

    Parameters
    ----------
    wanted : array (n_cells,) of int8 or bool
        The cells ``first..stop`` that are not 0 here are those whose later near cells are looked
        at. All of them have core points.
    cells : Cells
    tree : KDTree
    leaves : Leaves
    first, stop : int
        Cells from ``stop`` on are left out. A cell whose bucket is near one of them is marked in
        ``crossing``.
    parent : array (n_cells,) of int32 or int64
    crossing : array (n_cells,) of bool
    """
    buckets = np.empty(leaves.n_buckets, np.int64)
    # That of each bucket is kept at its first leaf, see `_find_set`.
    sets = np.full(leaves.node.size, SEVERAL_SETS, parent.dtype)
    for inside in (True, False):  # most buckets are in one set before they are compared
        at = first
        while at < stop:
            bucket, _, end = find_bucket(tree, leaves, at)
            part = at + np.flatnonzero(wanted[at : min(end, stop)])
            at = end
            boxes, part_set = _boxes_of(part, cells), np.full(1, SEVERAL_SETS, parent.dtype)
            buckets[0], n_buckets = bucket, 1
            if part.size == 0:
                n_buckets = 0
            elif not inside:
                n_buckets = find_near_buckets(tree, leaves, bucket, buckets)
            for other in buckets[:n_buckets]:
                begin, end = cells_of(tree, leaves.first_cell, other)
                if end > stop:
                    crossing[part] = True
                if end <= part[0] or (other == bucket) != inside:
                    continue
                here = _find_set(part_set, 0, part, cells, parent)
                leaf, others = tree.first_leaf[other], range(begin, min(end, stop))
                there = _find_set(sets, leaf, others, cells, parent)
                single = here != SEVERAL_SETS and there != SEVERAL_SETS
                if there != NO_SET and not (single and here == there):
                    _join_bucket(
                        part, boxes, bucket, other, single, cells, tree, leaves, stop, parent
                    )


@kernel
def _boxes_of(part, cells):
    """Return the lower and the upper corners of the boxes of some cells (n_part, 2, n_features)."""
    points, start, n_features = cells.points, cells.start, cells.points.shape[1]
    boxes = np.empty((part.size, 2, n_features))
    for p in range(part.size):
        first, stop, row = start[part[p]], start[part[p] + 1], cells.box[part[p]]
        for k in range(n_features):
            if row >= 0:
                low, high = cells.corners[row, k], cells.corners[row + 1, k]
            else:
                low = high = points[first, k]
                for i in range(first + 1, stop):
                    low, high = min(low, points[i, k]), max(high, points[i, k])
            boxes[p, 0, k], boxes[p, 1, k] = low, high
    return boxes


@kernel
def _join_bucket(part, boxes, bucket, other, single, cells, tree, leaves, stop, parent):
    """Unite the sets of a part of a bucket with those of later cells of another, before ``stop``.

    For ``boxes`` see `_boxes_of`. If both are ``single`` sets, the first connection is enough.
    """
    n_leaves, first_cell, reach = tree.n_leaves, leaves.first_cell, leaves.max_squared_radius
    corners, low, n_points = tree.corners, tree.low, tree.order.size
    node_stop = other + 2 * n_leaves[other] - 1
    leaf = tree.first_leaf[bucket]
    for p in range(part.size):
        a, lower, upper = part[p], boxes[p, 0], boxes[p, 1]
        while first_cell[leaf + 1] <= a:
            leaf += 1
        root, node_of_a, node = find(parent, a), leaves.node[leaf], other
        while node < node_stop:
            limit = larger_reach(reach, node_of_a, node)
            if is_far(lower, upper, corners, low[node], n_points, limit):
                node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
                continue
            node += 1
            if n_leaves[node - 1] > 1:
                continue
            begin, end = cells_of(tree, first_cell, node - 1)
            for b in range(max(begin, a + 1), min(end, stop)):
                if cells.has_core[b] == NONE or find(parent, b) == root:
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
        if cells.has_core[c] != NONE:
            root = find(parent, c)
            if common == NO_SET:
                common = root
            elif root != common:
                return SEVERAL_SETS
    return common


@kernel
def _are_connected(cells, a, b):
    """Return whether a core point of one cell is in the neighbourhood of one of the other."""
    if _have_many_pairs(cells.start, a, b):
        return _connected_by_trees(cells, a, b)
    return _connected_by_pairs(cells, a, b)


@kernel
def _connected_by_pairs(cells, a, b):
    """Return what `_are_connected` does, at the cost of the number of pairs of points."""
    points, axes, start, core = cells.points, cells.axes, cells.start, cells.core
    first, stop, low = start[b], start[b + 1], cells.box[b]
    check_box = low >= 0
    largest = 0.0  # squared radius in cell b
    if check_box:
        for j in range(first, stop):
            largest = max(largest, squared_radius(cells, j))
    for i in range(start[a], start[a + 1]):
        r2 = squared_radius(cells, i)
        if not core[i] or (
            check_box
            and squared_distance_to_box(points, axes, i, cells.corners, low, low + 1)
            > max(r2, largest)
        ):
            continue
        for j in range(first, stop):
            if core[j] and squared_distance(points, axes, i, j) <= max(
                r2, squared_radius(cells, j)
            ):
                return True
    return False


@kernel
def _connected_by_trees(cells, a, b):
    """Return what `_connected_by_pairs` does, for cells with many points."""
    X, squared_radii_x = _core_points(cells, a)
    Y, squared_radii_y = _core_points(cells, b)
    return _any_reaches(Y, squared_radii_y, X) or _any_reaches(X, squared_radii_x, Y)


@kernel
def _core_points(cells, c):
    """Return the core points (m, d) of a cell and their squared radii."""
    n = cells.core[cells.start[c] : cells.start[c + 1]].sum()
    points, squared_radii = np.empty((n, len(cells.axes))), np.empty(n)
    n = 0
    for i in range(cells.start[c], cells.start[c + 1]):
        if cells.core[i]:
            for k in range(len(cells.axes)):
                points[n, k] = cells.points[i, k]
            squared_radii[n] = squared_radius(cells, i)
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
