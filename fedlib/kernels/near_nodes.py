"""Core points and border points of DBSCAN on a tree: points compared with the nodes around them.

Up to 16 points descend the tree together, one per lane of the vector registers. They search a small
node around the first of them before the whole tree. Most core points have enough neighbours there,
and a border point finds a core point there, so that few other nodes matter to it.

`Cells` are those of `fedlib.kernels.density`, and `Leaves` those of `fedlib.kernels.forests`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.density import (
    how_many,
    precedes,
    squared_distance,
    squared_radius,
    sum_weights,
)
from fedlib.kernels.kd_tree import points_of, right_child
from fedlib.kernels.lanes import (
    LANES,
    NO_LANES,
    begin_descent,
    first_lanes,
    lanes_near_box,
    lanes_within,
    load_columns,
    push_children,
)
from fedlib.kernels.packing import ONE, count_ones, lowest

NEARBY = 128  # points of the node that is looked at before the whole tree


class Group(NamedTuple):
    """Points that descend a tree together, one per lane.

    Attributes
    ----------
    row : array (LANES,) of int64
        The row of each point in `Cells.points`.
    columns : array (n_features, LANES) of float64
        The points; NaN in unused lanes.
    limits : array (LANES,) of float64
        The squared radius of each search; `_find_nearest` lowers it.
    totals : array (LANES,) of float64
        The weight found around each point so far.
    best : array (LANES,) of int64
        The place of the nearest core point found so far, or -1.
    leaf : array (n_features, LANES) of float64
        Points of a leaf, in the same form.
    """

    row: NDArray[np.int64]
    columns: NDArray[np.float64]
    limits: NDArray[np.float64]
    totals: NDArray[np.float64]
    best: NDArray[np.int64]
    leaf: NDArray[np.float64]


@kernel
def _make_group(n_features):
    return Group(
        np.empty(LANES, np.int64),
        np.empty((n_features, LANES)),
        np.empty(LANES),
        np.empty(LANES),
        np.empty(LANES, np.int64),
        np.empty((n_features, LANES)),
    )


@kernel
def _fill_group(group, places, cells):
    """Load the points at some places; return their lanes."""
    for lane in range(places.size):
        group.row[lane] = cells.rows[places[lane]]
        group.limits[lane] = squared_radius(cells, group.row[lane])
    load_columns(cells.points, group.row[: places.size], group.columns)
    return first_lanes(places.size)


@kernel
def _list_places(wanted, cells, with_core):
    """Return the places of the points of some cells, all of them or those that are not core."""
    start, core = cells.start, cells.core
    n_places = 0
    for c in wanted:
        n_places += start[c + 1] - start[c]
    places = np.empty(n_places, np.int64)
    n_places = 0
    for c in wanted:
        for i in range(start[c], start[c + 1]):
            if with_core or not core[i]:
                places[n_places] = i
                n_places += 1
    return places[:n_places]


@kernel
def _find_nearby(tree, place):
    """Return the largest node with this place that has at most `NEARBY` points, or a leaf."""
    node = 0
    while tree.n_leaves[node] > 1:
        first, stop = points_of(tree, node)
        if stop - first <= NEARBY:
            break
        right = right_child(tree, node)
        node = right if place >= points_of(tree, right)[0] else node + 1
    return node


@kernel
def _add_weights(group, lanes, root, cells, tree, enough):
    """Add to the totals of some lanes the weights around their points in the node ``root``.

    Returns those lanes whose total is not enough. The others drop out on the way. A node within the
    radius is counted as a whole. Rounding is monotone, so the computed distance of its farthest
    place is at least that of each of its points.
    """
    n_leaves, totals, weights = tree.n_leaves, group.totals, cells.weights
    stack, n_stack = begin_descent(root, lanes), 1
    nodes, near_lanes = stack
    while n_stack:
        n_stack -= 1
        node, near = nodes[n_stack], near_lanes[n_stack] & lanes
        if near == NO_LANES:
            continue
        first, stop = points_of(tree, node)
        in_part, in_whole = lanes_near_box(
            group.columns, group.columns, group.limits, tree.boxes, node
        )
        near &= in_part
        whole = near & in_whole
        if whole:
            weight = sum_weights(weights, first, stop)
            near &= ~whole
            while whole:
                lane = lowest(whole)
                whole &= whole - ONE
                totals[lane] += weight
                if totals[lane] >= enough:
                    lanes &= ~(ONE << lane)
        if near == NO_LANES:
            continue
        if n_leaves[node] > 1:
            n_stack = push_children(tree, node, near, stack, n_stack)
            continue
        for begin in range(first, stop, LANES):
            rows = tree.order[begin : min(begin + LANES, stop)]
            load_columns(tree.points, rows, group.leaf)
            rest = near & lanes
            while rest:
                lane = lowest(rest)
                rest &= rest - ONE
                found = lanes_within(group.leaf, tree.points, group.row[lane], group.limits[lane])
                totals[lane] += _weigh_lanes(found, weights, begin)
                if totals[lane] >= enough:
                    lanes &= ~(ONE << lane)
    return lanes


@kernel
def _weigh_lanes(lanes, weights, first):
    """Return the weight of the points in some lanes; the first lane is the place ``first``."""
    if weights.size == 0:
        return float(count_ones(lanes))
    total = 0.0
    while lanes:
        total += weights[first + np.int64(lowest(lanes))]
        lanes &= lanes - ONE
    return total


@kernel
def find_core(wanted, cells, tree, min_samples):
    """Write which points of some cells are core points, and if none, some or all of a cell are.

    Parameters
    ----------
    wanted : array (n_wanted,) of int64
        The cells, ascending.
    cells : Cells
    tree : KDTree
    min_samples : float
    """
    start, core = cells.start, cells.core
    group = _make_group(cells.points.shape[1])
    places = _list_places(wanted, cells, True)
    for begin in range(0, places.size, LANES):
        few = places[begin : begin + LANES]
        lanes = _fill_group(group, few, cells)
        core[few] = True
        for root in (_find_nearby(tree, few[0]), 0):
            group.totals[:] = 0.0
            lanes = _add_weights(group, lanes, root, cells, tree, min_samples)
        while lanes:
            core[few[lowest(lanes)]] = False
            lanes &= lanes - ONE
    for c in wanted:
        n_core = core[start[c] : start[c + 1]].sum()
        cells.has_core[c] = how_many(n_core, start[c + 1] - start[c])


@kernel
def _find_nearest(group, lanes, root, cells, tree, leaves):
    """Search the node ``root`` for the nearest core points that reach the points of some lanes.

    Better ones are written to ``best`` and ``limits``.
    """
    n_leaves, reach = tree.n_leaves, leaves.max_squared_radius
    limits, nearer = group.limits, np.empty(LANES)
    stack, n_stack = begin_descent(root, lanes), 1
    nodes, near_lanes = stack
    while n_stack:
        n_stack -= 1
        node, near = nodes[n_stack], near_lanes[n_stack]
        for lane in range(LANES):
            nearer[lane] = limits[lane] if reach.size == 1 else min(limits[lane], reach[node])
        near &= lanes_near_box(group.columns, group.columns, nearer, tree.boxes, node)[0]
        if near == NO_LANES:
            continue
        if n_leaves[node] > 1:
            n_stack = push_children(tree, node, near, stack, n_stack)
            continue
        first, stop = points_of(tree, node)
        for begin in range(first, stop, LANES):
            end = min(begin + LANES, stop)
            is_core = NO_LANES
            for place in range(begin, end):
                is_core |= np.uint64(cells.core[place]) << np.uint64(place - begin)
            if is_core == NO_LANES:
                continue
            load_columns(tree.points, tree.order[begin:end], group.leaf)
            rest = near
            while rest:
                lane = np.int64(lowest(rest))
                rest &= rest - ONE
                found = is_core & lanes_within(
                    group.leaf, tree.points, group.row[lane], limits[lane]
                )
                while found:
                    _take_if_nearer(group, lane, begin + np.int64(lowest(found)), cells)
                    found &= found - ONE


@kernel
def _take_if_nearer(group, lane, place, cells):
    """Make a core point the best one of a lane, if it reaches the point and is nearer.

    Ties go to the first one in lexicographic order.
    """
    points, axes, rows = cells.points, cells.axes, cells.rows
    best, j = group.best[lane], rows[place]
    squared = squared_distance(points, axes, group.row[lane], j)
    if squared <= min(group.limits[lane], squared_radius(cells, j)) and (
        best < 0 or squared < group.limits[lane] or precedes(points, axes, j, rows[best])
    ):
        group.best[lane], group.limits[lane] = place, squared


@kernel
def find_border(wanted, cells, tree, leaves, joined):
    """Write to ``joined`` (n,) which cell each point of some cells joins that is no core point.

    It is the cell of the nearest core point that has it in its neighbourhood, or -1. Ties go to the
    first core point in lexicographic order. ``leaves`` are those of the tree; for the other
    arguments see `find_core`.
    """
    group = _make_group(cells.points.shape[1])
    places = _list_places(wanted, cells, False)
    for begin in range(0, places.size, LANES):
        few = places[begin : begin + LANES]
        lanes = _fill_group(group, few, cells)
        group.best[:] = -1
        if cells.squared_radii.size > 1:
            group.limits[:] = np.inf
        for root in (_find_nearby(tree, few[0]), 0):
            _find_nearest(group, lanes, root, cells, tree, leaves)
        for lane in range(few.size):
            best = group.best[lane]
            cell = np.searchsorted(cells.start, best, side="right") - 1
            joined[few[lane]] = cell if best >= 0 else -1
