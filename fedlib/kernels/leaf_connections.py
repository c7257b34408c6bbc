"""Which cells of a tree are connected: a core point of one is near a core point of the other.

Connected cells are joined in disjoint sets, as in `fedlib.kernels.density`. `Cells` are those
of `fedlib.kernels.density`, and `Leaves` those of `fedlib.kernels.forests`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.density import (
    NONE,
    are_connected_by_trees,
    find,
    have_many_pairs,
    squared_distance,
    squared_distance_to_box,
    squared_radius,
    union,
)
from fedlib.kernels.forests import cells_of, find_bucket, find_near_buckets, wider_radius
from fedlib.kernels.kd_tree import bound
from fedlib.kernels.packing import ONE, count_ones, lowest
from fedlib.kernels.simd import (
    LANES,
    NO_LANES,
    begin_descent,
    first_lanes,
    lanes_near_box,
    lanes_within,
    load_columns,
    push_children,
)

NO_SET, SEVERAL_SETS = -1, -2


class Part(NamedTuple):
    """Cells of one bucket that are compared with others together, one per lane.

    Attributes
    ----------
    cell, node : arrays (LANES,) of int64
        Each cell and the node of its leaf.
    lower, upper : array (n_features, LANES) of float64
        The corners of the cells' boxes; NaN in unused lanes.
    limits : array (LANES,) of float64
        The squared distance up to which each cell is compared with others.
    leaf : array (n_features, LANES) of float64
        The points of another leaf.
    """

    cell: NDArray[np.int64]
    node: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    limits: NDArray[np.float64]
    leaf: NDArray[np.float64]


@kernel
def _make_part(n_features):
    return Part(
        np.empty(LANES, np.int64),
        np.empty(LANES, np.int64),
        np.empty((n_features, LANES)),
        np.empty((n_features, LANES)),
        np.empty(LANES),
        np.empty((n_features, LANES)),
    )


@kernel
def _fill_part(part, chosen, bucket, cells, tree, leaves):
    """Load cells of a bucket (at most LANES); return their lanes."""
    box = np.empty((2, cells.points.shape[1]))
    leaf = tree.first_leaf[bucket]
    part.lower[:] = np.nan
    part.upper[:] = np.nan
    part.limits[:] = leaves.max_squared_radius[0]
    for lane in range(chosen.size):
        c = chosen[lane]
        while leaves.first_cell[leaf + 1] <= c:
            leaf += 1
        part.cell[lane], part.node[lane] = c, leaves.node[leaf]
        if leaves.first_cell[leaf + 1] - leaves.first_cell[leaf] == 1:
            box[:] = tree.boxes[leaves.node[leaf]]
        else:
            bound(cells.points, cells.rows[cells.start[c] : cells.start[c + 1]], box)
        part.lower[:, lane], part.upper[:, lane] = box[0], box[1]
    return first_lanes(chosen.size)


@kernel
def join_leaves(wanted, cells, tree, leaves, first, stop, parent, crossing):
    """Unite the sets of cells that are connected, for the cells of a tree.

    Up to 16 cells of a bucket are compared with another bucket together. If all of them are in the
    same set already, no pair needs to be compared.

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
    buckets, part = np.empty(leaves.n_buckets, np.int64), _make_part(cells.points.shape[1])
    # That of each bucket is kept at its first leaf, see `_find_set`.
    sets = np.full(leaves.node.size, SEVERAL_SETS, parent.dtype)
    for inside in (True, False):  # most buckets are in one set before they are compared
        at = first
        while at < stop:
            bucket, _, end = find_bucket(tree, leaves, at)
            chosen = at + np.flatnonzero(wanted[at : min(end, stop)])
            at = end
            buckets[0], n_buckets = bucket, 1
            if not inside and chosen.size:
                n_buckets = find_near_buckets(tree, leaves, bucket, buckets)
                for other in buckets[:n_buckets]:
                    if cells_of(tree, leaves.first_cell, other)[1] > stop:
                        crossing[chosen] = True
            for begin in range(0, chosen.size, LANES):
                few = chosen[begin : begin + LANES]
                lanes = _fill_part(part, few, bucket, cells, tree, leaves)
                part_set = np.full(1, SEVERAL_SETS, parent.dtype)
                for other in buckets[:n_buckets]:
                    first_other, stop_other = cells_of(tree, leaves.first_cell, other)
                    if stop_other <= few[0] or (other == bucket) != inside:
                        continue
                    here = _find_set(part_set, 0, few, cells, parent)
                    leaf, others = tree.first_leaf[other], range(first_other, min(stop_other, stop))
                    there = _find_set(sets, leaf, others, cells, parent)
                    single = here != SEVERAL_SETS and there != SEVERAL_SETS
                    if there != NO_SET and not (single and here == there):
                        _join_bucket(part, lanes, other, single, cells, tree, leaves, stop, parent)


@kernel
def _join_bucket(part, lanes, other, single, cells, tree, leaves, stop, parent):
    """Unite the sets of some cells with those of later cells of another bucket, before ``stop``.

    If both are ``single`` sets, the first connection is enough.
    """
    n_leaves, reach = tree.n_leaves, leaves.max_squared_radius
    stack, n_stack = begin_descent(other, lanes), 1
    nodes, near_lanes = stack
    while n_stack:
        n_stack -= 1
        node = nodes[n_stack]
        if reach.size > 1:
            for lane in range(count_ones(lanes)):
                part.limits[lane] = wider_radius(reach, part.node[lane], node)
        near = near_lanes[n_stack]
        near &= lanes_near_box(part.lower, part.upper, part.limits, tree.boxes, node)[0]
        if near == NO_LANES:
            continue
        if n_leaves[node] > 1:
            n_stack = push_children(tree, node, near, stack, n_stack)
            continue
        leaf = tree.first_leaf[node]
        begin, end = leaves.first_cell[leaf], min(leaves.first_cell[leaf + 1], stop)
        if cells.start[end] - cells.start[begin] > LANES:
            joined = _join_cells_of(part, near, begin, end, node, single, cells, tree, parent)
        else:
            largest = wider_radius(reach, node, node)
            joined = _join_points_of(part, near, begin, end, largest, single, cells, parent)
        if joined and single:
            return


@kernel
def _join_cells_of(part, near, begin, end, node, single, cells, tree, parent):
    """Unite the sets of cells in some lanes with those of later ones of the cells ``begin..end``.

    The latter are those of the leaf that is ``node``. Returns whether any were united. If both are
    ``single`` sets, the first connection is enough.
    """
    joined = False
    while near:
        a = part.cell[lowest(near)]
        near &= near - ONE
        root = find(parent, a)
        for b in range(max(begin, a + 1), end):
            if cells.has_core[b] == NONE or find(parent, b) == root:
                continue
            if _are_connected(cells, a, b, tree.boxes, node):
                union(parent, a, b)
                root = find(parent, a)
                joined = True
                if single:
                    return joined
    return joined


@kernel
def _join_points_of(part, near, begin, end, largest, single, cells, parent):
    """Do what `_join_cells_of` does, for cells ``begin..end`` with at most LANES points in all.

    ``largest`` is the largest squared radius of these points.
    """
    start, core, rows, points = cells.start, cells.core, cells.rows, cells.points
    first = start[begin]
    is_loaded = joined = False
    while near:
        a = part.cell[lowest(near)]
        near &= near - ONE
        root = find(parent, a)
        wanted = NO_LANES  # the core points of cells in other sets
        for b in range(max(begin, a + 1), end):
            if cells.has_core[b] != NONE and find(parent, b) != root:
                for place in range(start[b], start[b + 1]):
                    wanted |= np.uint64(core[place]) << np.uint64(place - first)
        if wanted == NO_LANES:
            continue
        if not is_loaded:
            load_columns(points, rows[first : start[end]], part.leaf)
            is_loaded = True
        for place in range(start[a], start[a + 1]):
            if not core[place]:
                continue
            limit = max(largest, squared_radius(cells, rows[place]))
            found = wanted & lanes_within(part.leaf, points, rows[place], limit)
            while found:
                other = first + np.int64(lowest(found))
                if not _are_near(cells, rows[place], rows[other]):
                    found &= found - ONE
                    continue
                b = begin
                while start[b + 1] <= other:
                    b += 1
                union(parent, a, b)
                joined = True
                if single:
                    return joined
                of_b = first_lanes(start[b + 1] - first) & ~first_lanes(start[b] - first)
                wanted &= ~of_b
                found &= ~of_b
            if wanted == NO_LANES:
                break
    return joined


@kernel
def _are_near(cells, i, j):
    """Return whether two rows are near each other, given that the largest radius reaches so far."""
    if cells.squared_radii.size == 1:
        return True
    limit = max(squared_radius(cells, i), squared_radius(cells, j))
    return squared_distance(cells.points, cells.axes, i, j) <= limit


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
def _are_connected(cells, a, b, boxes, node):
    """Return whether a core point of one cell is in the neighbourhood of one of the other.

    Cell b is in the box of a node.
    """
    if have_many_pairs(cells.start, a, b):
        return are_connected_by_trees(cells, a, b)
    return _connected_by_pairs(cells, a, b, boxes, node)


@kernel
def _connected_by_pairs(cells, a, b, boxes, node):
    """Return what `_are_connected` does, at the cost of the count of pairs of points."""
    points, axes, start, core, rows = cells.points, cells.axes, cells.start, cells.core, cells.rows
    first, stop = start[b], start[b + 1]
    largest = 0.0  # squared radius in cell b
    for j in rows[first:stop]:
        largest = max(largest, squared_radius(cells, j))
    for place in range(start[a], start[a + 1]):
        i = rows[place]
        if not core[place]:
            continue
        r2 = squared_radius(cells, i)
        if squared_distance_to_box(points, axes, i, boxes, node) > max(r2, largest):
            continue
        for other in range(first, stop):
            if core[other]:
                j = rows[other]
                if squared_distance(points, axes, i, j) <= max(r2, squared_radius(cells, j)):
                    return True
    return False
