"""Core points and border points of DBSCAN on a tree: points compared with the nodes around them.

Up to 16 points descend the tree together, one per lane of the vector registers. They search a small
node around the first of them before the whole tree. Most core points have enough neighbours there,
and a border point finds a core point there, so that few other nodes matter to it.

`Cells` are those of `fedlib.kernels.density`, and `Leaves` those of `fedlib.kernels.forests`.

Cells of a grid as numbers within a box: counting and placing points without hashing.

A box is a range of cells along each feature. The key of a cell is its number within the box, in
lexicographic order, so keys sort like cells. A box with few cells is an array of counts; in a
larger one, points are counted by sorting their keys.

Keys are computed in floating point, which compilers turn into vector instructions. They are exact,
because a box contains at most `MAX_SIZE` cells.
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

MAX_SIZE = 2**53  # a float64 holds every integer up to here
BLOCK = 1024  # points whose keys are computed before the first is used
DIGIT = 11  # bits per pass of the sort: its 2048 counters fit the cache of the first level


class Box(NamedTuple):
    """A range of cells along each of d features; see `bounding_box`.

    Attributes
    ----------
    low, high : array (d,) of float64
        The coordinates of the first and the last cell along each feature.
    strides : array (d,) of float64
        The key of a cell is the sum of ``(cell - low) * strides``.
    size : int
        The count of cells.
    """

    low: np.ndarray
    high: np.ndarray
    strides: np.ndarray
    size: int


def bounding_box(low, high):
    """Return the `Box` from the cell ``low`` to the cell ``high`` (d,), or None if it is too large.

    Coordinates beyond ±`MAX_SIZE` are too large, too.
    """
    # As integers of Python, whose product cannot overflow before it is compared.
    low, high = [int(a) for a in low], [int(b) for b in high]
    widths = [b - a + 1 for a, b in zip(low, high, strict=True)]
    strides = [1]
    for width in reversed(widths):
        strides.append(strides[-1] * width)
    size = strides.pop()
    if max(size, -min(low), max(high)) > MAX_SIZE:
        return None
    return Box(np.array(low, float), np.array(high, float), np.array(strides[::-1], float), size)


@kernel
def extremes(X):
    """Return the least and the largest value (d,) of each column of ``X`` (n, d), n > 0.

    Also return whether no value is NaN; otherwise the first two have no meaning.
    """
    n, d = X.shape
    least, largest = X[0].copy(), X[0].copy()
    valid = True
    for first in range(0, n, BLOCK):  # a block stays in the cache for all of its columns
        for k in range(d):
            low, high = least[k], largest[k]
            for i in range(first, min(first + BLOCK, n)):
                low = min(low, X[i, k])
                high = max(high, X[i, k])
                valid &= X[i, k] == X[i, k]  # false for NaN
            least[k], largest[k] = low, high
    return least, largest, valid


@kernel
def _block_keys(X, cell_size, box, first, keys):
    """Write the keys of the points ``X[first : first + len(keys)]``."""
    keys[:] = 0.0
    for k in range(X.shape[1]):
        low, stride = box.low[k], box.strides[k]
        for i in range(keys.size):
            keys[i] += (np.floor(X[first + i, k] / cell_size) - low) * stride


@kernel
def count_in_box(X, cell_size, box):
    """Return the count of points in each cell of a box (size,) that contains all points."""
    n = X.shape[0]
    counts = np.zeros(box.size, np.int64)
    buffer = np.empty(BLOCK)
    for first in range(0, n, BLOCK):
        keys = buffer[: min(BLOCK, n - first)]
        _block_keys(X, cell_size, box, first, keys)
        for i in range(keys.size):
            counts[np.int64(keys[i])] += 1
    return counts


@kernel
def point_keys(X, cell_size, box):
    """Return the key (n,) of each point's cell in a box that contains all points."""
    n = X.shape[0]
    result = np.empty(n, np.int64)
    buffer = np.empty(BLOCK)
    for first in range(0, n, BLOCK):
        keys = buffer[: min(BLOCK, n - first)]
        _block_keys(X, cell_size, box, first, keys)
        for i in range(keys.size):
            result[first + i] = np.int64(keys[i])
    return result


@kernel
def sort_keys(keys, size):
    """Return ``keys`` (n,) sorted; all are in 0..size - 1. The array itself is overwritten.

    A radix sort. Each pass sorts by one digit and reads memory in order, so its time per key does
    not grow with their number, unlike that of a sort by comparisons.
    """
    source, target = keys, np.empty_like(keys)
    starts = np.empty(1 << DIGIT, np.int64)
    mask = (1 << DIGIT) - 1
    shift = 0
    while (size - 1) >> shift > 0:
        starts[:] = 0
        for key in source:
            starts[(key >> shift) & mask] += 1
        total = 0
        for digit in range(starts.size):
            starts[digit], total = total, total + starts[digit]
        for key in source:
            digit = (key >> shift) & mask
            target[starts[digit]] = key
            starts[digit] += 1
        source, target = target, source
        shift += DIGIT
    return source


@kernel
def run_lengths(keys):
    """Return the distinct values of sorted ``keys`` (n,) and the count of times each occurs."""
    n_runs = 0
    for i in range(keys.size):
        n_runs += i == 0 or keys[i] != keys[i - 1]
    distinct, counts = np.empty(n_runs, np.int64), np.zeros(n_runs, np.int64)
    run = -1
    for i in range(keys.size):
        if i == 0 or keys[i] != keys[i - 1]:
            run += 1
            distinct[run] = keys[i]
        counts[run] += 1
    return distinct, counts


@kernel
def cells_of(keys, box):
    """Return the cells (n, d) with these keys (n,)."""
    # In integers: a rounded quotient of floats could be one too large.
    n, d = keys.size, box.low.size
    cells = np.empty((n, d), np.int64)
    low, strides = box.low.astype(np.int64), box.strides.astype(np.int64)
    for i in range(n):
        rest = keys[i]
        for k in range(d):
            digit = rest // strides[k]
            rest -= digit * strides[k]
            cells[i, k] = low[k] + digit
    return cells


@kernel
def place_in_box(X, cell_size, box, table, cells, offsets, nearest):
    """Return for each point (n,) the number of the cell that takes it, or -1.

    A point in one of the cells belongs to it. Any other point goes to one of the cells next to its
    own: to the one with the nearest centre (ties go to the first) or, unless ``nearest``, to the
    last one.

    Parameters
    ----------
    X : array (n, d) of float64
    cell_size : float
    box : Box
        It contains the cells and at least two more along each feature at either end, so that a
        neighbour of a point next to the cells lies within it too.
    table : array (size,) of int64
        The number of each cell by its key, or -1.
    cells : array (n_cells, d) of int64
    offsets : array (m, d) of int64
        From a cell to its neighbours, in ascending order.
    nearest : bool
    """
    n = X.shape[0]
    steps = (offsets * box.strides).sum(axis=1).astype(np.int64)
    chosen = np.full(n, -1, np.int64)
    buffer, inside = np.empty(BLOCK), np.empty(BLOCK, np.bool_)
    for first in range(0, n, BLOCK):
        keys = buffer[: min(BLOCK, n - first)]
        _block_keys(X, cell_size, box, first, keys)
        _find_inside(X, cell_size, box, first, inside[: keys.size])
        for i in range(keys.size):
            if inside[i]:
                key = np.int64(keys[i])
                chosen[first + i] = table[key]
                if table[key] < 0:
                    chosen[first + i] = _neighbour(
                        X, first + i, cell_size, table, key, steps, cells, nearest
                    )
    return chosen


@kernel
def _find_inside(X, cell_size, box, first, inside):
    """Write whether the points ``X[first : first + len(inside)]`` are inside the box's margin."""
    inside[:] = True
    for k in range(X.shape[1]):
        low, high = box.low[k] + 1, box.high[k] - 1
        for i in range(inside.size):
            coordinate = np.floor(X[first + i, k] / cell_size)
            inside[i] &= (low <= coordinate) & (coordinate <= high)


@kernel
def _neighbour(X, i, cell_size, table, key, steps, cells, nearest):
    """Return the neighbour of the cell ``key`` that takes point ``i``, or -1."""
    chosen = -1
    smallest = np.inf
    for step in steps:
        c = table[key + step]
        if c >= 0:
            distance = 0.0
            for k in range(X.shape[1]):
                distance += (X[i, k] - (cells[c, k] * cell_size + cell_size / 2)) ** 2
            if not nearest or chosen < 0 or distance < smallest:  # `<`: ties go to the first
                smallest = distance
                chosen = c
    return chosen


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
