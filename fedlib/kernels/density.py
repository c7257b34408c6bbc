"""DBSCAN on cells: core points, their connection, and the core point that a border point joins.

A cell is a range of points. In a *tight* cell, any two of them are in each other's neighbourhood.
All cells are one named tuple, `Cells`; a `Block` contains some of them together with the cells near
them. No other cell has a point within reach of the block's points, or one that reaches them.
Squared distances are computed as in `fedlib.kernels.kd_tree`.

Arrays that number points or cells are of 32 bits if that is enough, to save memory.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.leaves import find_bucket

PIECE = 128  # points that are checked before testing whether the work is done
MAX_TARGETS = 64  # points that are compared with the points near them at the same time


class Cells(NamedTuple):
    """Points sorted into cells, and the results for them so far.

    Attributes
    ----------
    points : array (n_points or more, n_features) of float64
        The points, cell by cell. All arrays with one entry per point are in this order. Further
        rows may be corners of boxes.
    axes : tuple of int or array of int64
        The numbers of the features, 0 to n_features - 1. For a tuple the functions are compiled
        for exactly this number of features: a distance then takes a third to a fifth of the time.
    squared_radii : array (n_points,) or (1,) of float64
        The squared radius of each point's neighbourhood, or of all of them.
    weights : array (n_points,) of float64
        The weight of each point, or no entries if all weights are 1.
    start : array (n_cells + 1,) of an integer type
        Where the points of each cell begin; the last entry is the number of points.
    tight : array (n_cells,) of bool
        Which cells are tight, or no entries if all are.
    lower, upper : array (n_corners, n_features) of float64
        Corners of the smallest boxes around the points of cells: ``points`` itself (see
        `bound_cells`) or those of a tree.
    box : array (n_cells,) of an integer type
        The row of each cell's lower corner. That of its upper corner is the next one if it is
        behind the points, otherwise the same.
    core : array (n_points,) of bool
        Which points are core points (see `find_core`).
    n_core : array (n_cells,) of an integer type
        The number of core points in each cell (see `find_core`).
    """

    points: NDArray[np.float64]
    axes: tuple[int, ...] | NDArray[np.int64]
    squared_radii: NDArray[np.float64]
    weights: NDArray[np.float64]
    start: NDArray[np.integer]
    tight: NDArray[np.bool_]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    box: NDArray[np.integer]
    core: NDArray[np.bool_]
    n_core: NDArray[np.integer]


class Block(NamedTuple):
    """Some cells, in groups, and the cells near each group.

    Attributes
    ----------
    cells : array (n_block,) of int64
        The cells of the block.
    group_start : array (n_groups + 1,) of int64
        The cells of group ``g`` are ``cells[group_start[g]:group_start[g + 1]]``.
    near_start : array (n_groups + 1 or more,) of int64
        Where the ranges of near cells begin for each group of the block.
    near : array (n_ranges or more, 2) of int64
        The ranges: their first cell and their stop. They contain the cells near any cell of the
        group. A cell is near itself.
    """

    cells: NDArray[np.int64]
    group_start: NDArray[np.int64]
    near_start: NDArray[np.int64]
    near: NDArray[np.int64]


@kernel
def squared_distance(points, axes, i, j):
    """Return the squared distance of two points."""
    total = 0.0
    for k in range(len(axes)):
        total += (points[i, k] - points[j, k]) ** 2
    return total


@kernel
def squared_distance_to_box(points, axes, i, lower, upper, low, high):
    """Return the squared distance of point i to the box with these rows as corners."""
    total = 0.0
    for k in range(len(axes)):
        total += max(lower[low, k] - points[i, k], 0.0, points[i, k] - upper[high, k]) ** 2
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
def find_box(cells, c):
    """Return the rows of the lower and of the upper corner of a cell's box."""
    low = np.int64(cells.box[c])
    return low, low + (low >= cells.core.size)


@kernel
def number_boxes(start, box):
    """Write the row of each cell's lower corner to ``box`` (n_cells,); return the number of rows.

    A point by itself is its box. The boxes of all other cells are two rows each, after all points.
    """
    n_rows = np.int64(start[-1])
    for c in range(box.size):
        if start[c + 1] - start[c] == 1:
            box[c] = start[c]
        else:
            box[c] = n_rows
            n_rows += 2
    return n_rows


@kernel
def bound_cells(cells, first, stop):
    """Write the boxes of the cells ``first..stop`` that have more than one point."""
    points, start = cells.points, cells.start
    for c in range(first, stop):
        begin, end = np.int64(start[c]), np.int64(start[c + 1])
        if end - begin == 1:
            continue
        box = np.int64(cells.box[c])
        for k in range(len(cells.axes)):
            low = high = points[begin, k]
            for i in range(begin + 1, end):
                low = min(low, points[i, k])
                high = max(high, points[i, k])
            points[box, k] = low
            points[box + 1, k] = high


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
    """Return which of the cells ``first..stop`` are tight and have the weight of a core point.

    All of their points are core points. This and the numbers of core points are written.
    """
    dense = np.empty(stop - first, np.bool_)
    for c in range(first, stop):
        begin, end = cells.start[c], cells.start[c + 1]
        dense[c - first] = (cells.tight.size == 0 or cells.tight[c]) and (
            _sum_weights(cells.weights, begin, end) >= min_samples
        )
        if dense[c - first]:
            cells.core[begin:end] = True
            cells.n_core[c] = end - begin
    return dense


class Targets(NamedTuple):
    """Points that are compared with the points near them, and a buffer for the latter.

    Attributes
    ----------
    point : array (MAX_TARGETS,) of int64
        The targets.
    bound : array (MAX_TARGETS,) of float64
        The squared distance up to which other points matter for each target.
    total : array (MAX_TARGETS,) of float64
        The weight around each target so far.
    best : array (MAX_TARGETS,) of int64
        The best point for each target so far, or -1.
    near : array (PIECE,) of int64
        Points near the targets.
    columns : array (n_features, PIECE) of float64
        Their coordinates, one feature after the other, for vector instructions.
    squared : array (PIECE,) of float64
        Their squared distances from one target.
    """

    point: NDArray[np.int64]
    bound: NDArray[np.float64]
    total: NDArray[np.float64]
    best: NDArray[np.int64]
    near: NDArray[np.int64]
    columns: NDArray[np.float64]
    squared: NDArray[np.float64]


@kernel
def _allocate(n_features):
    """Return targets that are not filled in."""
    return Targets(
        np.empty(MAX_TARGETS, np.int64),
        np.empty(MAX_TARGETS),
        np.empty(MAX_TARGETS),
        np.empty(MAX_TARGETS, np.int64),
        np.empty(PIECE, np.int64),
        np.empty((n_features, PIECE)),
        np.empty(PIECE),
    )


@kernel
def _compare(targets, points, i, size):
    """Write the squared distances of point i and the first ``size`` points of the buffer."""
    squared = targets.squared[:size]
    x, column = points[i, 0], targets.columns[0, :size]
    for j in range(size):
        squared[j] = (x - column[j]) ** 2
    for k in range(1, points.shape[1]):
        x, column = points[i, k], targets.columns[k, :size]
        for j in range(size):
            squared[j] += (x - column[j]) ** 2


@kernel
def _matters(cells, c, targets, n_targets):
    """Return whether the box of a cell is within the bound of any target."""
    low, high = find_box(cells, c)
    for t in range(n_targets):
        squared = squared_distance_to_box(
            cells.points, cells.axes, targets.point[t], cells.lower, cells.upper, low, high
        )
        if squared <= targets.bound[t]:
            return True
    return False


@kernel
def squared_radius(cells, i):
    """Return the squared radius of the neighbourhood of point i."""
    return cells.squared_radii[i if cells.squared_radii.size > 1 else 0]


@kernel
def find_core(block, cells, min_samples):
    """Write which points of a block are core points, and how many there are in each cell."""
    targets = _allocate(cells.points.shape[1])
    for g in range(block.group_start.size - 1):
        ranges = block.near[block.near_start[g] : block.near_start[g + 1]]
        n_targets = 0
        for c in block.cells[block.group_start[g] : block.group_start[g + 1]]:
            cells.n_core[c] = 0
            for i in range(cells.start[c], cells.start[c + 1]):
                cells.core[i] = False
                targets.point[n_targets] = i
                targets.bound[n_targets] = squared_radius(cells, i)
                targets.total[n_targets] = 0.0
                n_targets += 1
                if n_targets == MAX_TARGETS:
                    _find_core_of(targets, n_targets, ranges, cells, min_samples)
                    n_targets = 0
        _find_core_of(targets, n_targets, ranges, cells, min_samples)
        for c in block.cells[block.group_start[g] : block.group_start[g + 1]]:
            for i in range(cells.start[c], cells.start[c + 1]):
                cells.n_core[c] += cells.core[i]


@kernel
def _find_core_of(targets, n_targets, ranges, cells, min_samples):
    """Write which targets are core points, by the weights of the points in some ranges of cells."""
    points, start, near, columns = cells.points, cells.start, targets.near, targets.columns
    size = 0
    for r in range(ranges.shape[0]):
        c, stop = ranges[r]
        few = start[stop] - start[c] <= PIECE  # then no cell is looked at by itself
        while c < stop:
            end = stop if few else c + 1
            if few or _matters(cells, c, targets, n_targets):
                for j in range(np.int64(start[c]), np.int64(start[end])):
                    near[size] = j
                    for k in range(len(cells.axes)):
                        columns[k, size] = points[j, k]
                    size += 1
                    if size == PIECE:
                        n_targets = _add_weights(targets, n_targets, size, cells, min_samples)
                        size = 0
                        if n_targets == 0:
                            return
            c = end
    _add_weights(targets, n_targets, size, cells, min_samples)


@kernel
def _add_weights(targets, n_targets, size, cells, min_samples):
    """Add the weights of the buffered points around each target; return how many targets remain.

    A target that has enough becomes a core point and is removed.
    """
    point, bound, total, squared = targets.point, targets.bound, targets.total, targets.squared
    n_left = 0
    for t in range(n_targets):
        i, limit = point[t], bound[t]
        _compare(targets, cells.points, i, size)
        if cells.weights.size:
            for j in range(size):
                if squared[j] <= limit:
                    total[t] += cells.weights[targets.near[j]]
        else:
            count = 0
            for j in range(size):
                count += squared[j] <= limit
            total[t] += count
        if total[t] >= min_samples:
            cells.core[i] = True
        else:
            point[n_left], bound[n_left], total[n_left] = i, limit, total[t]
            n_left += 1
    return n_left


@kernel
def _count_in_node(cells, tree, n_leaves, node, i, enough):
    """Return how many points of a node are around point i; the count stops when it is enough.

    A node within the radius is counted as a whole. Rounding is monotone, so the computed distance
    of its farthest place is at least that of each of its points.
    """
    points, axes, limit = cells.points, cells.axes, squared_radius(cells, i)
    count = 0
    stop = node + 2 * n_leaves[node] - 1
    while node < stop and count < enough:
        nearest, farthest = _squared_distances_of_box(points, axes, i, tree.lower, tree.upper, node)
        within = farthest <= limit
        if within:
            count += tree.stop[node] - tree.first[node]
        if within or nearest > limit:
            node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
            continue
        if tree.right[node] == 0:
            for j in range(np.int64(tree.first[node]), np.int64(tree.stop[node])):
                count += squared_distance(points, axes, i, j) <= limit
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
        for i in range(np.int64(cells.start[c]), np.int64(cells.start[c + 1])):
            count = _count_in_node(cells, tree, leaves.n_leaves, bucket, i, min_samples)
            if count < min_samples:
                count = _count_in_node(cells, tree, leaves.n_leaves, 0, i, min_samples)
            cells.core[i] = count >= min_samples
            n_core += cells.core[i]
        cells.n_core[c] = n_core


@kernel
def _precedes(points, axes, i, j):
    """Return whether point i comes before point j in lexicographic order."""
    for k in range(len(axes)):
        if points[i, k] != points[j, k]:
            return points[i, k] < points[j, k]
    return False


@kernel
def find_border(block, cells, labels):
    """Write the labels of the points of a block that are not core points; -1 is noise.

    Such a point gets the label of the nearest core point that has it in its neighbourhood. Ties go
    to the first core point in lexicographic order. ``labels`` (n_points,) has the labels of all
    core points.
    """
    targets = _allocate(cells.points.shape[1])
    reach = cells.squared_radii[0] if cells.squared_radii.size == 1 else np.inf
    for g in range(block.group_start.size - 1):
        ranges = block.near[block.near_start[g] : block.near_start[g + 1]]
        n_targets = 0
        for c in block.cells[block.group_start[g] : block.group_start[g + 1]]:
            for i in range(cells.start[c], cells.start[c + 1]):
                if cells.core[i]:
                    continue
                targets.point[n_targets] = i
                targets.bound[n_targets] = reach
                targets.best[n_targets] = -1
                n_targets += 1
                if n_targets == MAX_TARGETS:
                    _find_border_of(targets, n_targets, ranges, cells, labels)
                    n_targets = 0
        _find_border_of(targets, n_targets, ranges, cells, labels)


@kernel
def _find_border_of(targets, n_targets, ranges, cells, labels):
    """Write the labels of the targets, which are those of core points in some ranges of cells."""
    points, start, core = cells.points, cells.start, cells.core
    near, columns = targets.near, targets.columns
    size = 0
    for r in range(ranges.shape[0]):
        for c in range(ranges[r, 0], ranges[r, 1]):
            if cells.n_core[c] == 0 or (
                start[c + 1] - start[c] > n_targets and not _matters(cells, c, targets, n_targets)
            ):
                continue
            for j in range(np.int64(start[c]), np.int64(start[c + 1])):
                if core[j]:
                    near[size] = j
                    for k in range(len(cells.axes)):
                        columns[k, size] = points[j, k]
                    size += 1
                    if size == PIECE:
                        _find_nearest_core(targets, n_targets, size, cells)
                        size = 0
    _find_nearest_core(targets, n_targets, size, cells)
    for t in range(n_targets):
        best = targets.best[t]
        labels[targets.point[t]] = labels[best] if best >= 0 else -1


@kernel
def _find_nearest_core(targets, n_targets, size, cells):
    """Compare each target with the buffered core points."""
    squared = targets.squared
    for t in range(n_targets):
        i, best, bound = targets.point[t], targets.best[t], targets.bound[t]
        _compare(targets, cells.points, i, size)
        for n in range(size):
            j = targets.near[n]
            if (
                squared[n] <= bound
                and squared[n] <= squared_radius(cells, j)
                and (best < 0 or squared[n] < bound or _precedes(cells.points, cells.axes, j, best))
            ):
                best, bound = j, squared[n]
        targets.best[t], targets.bound[t] = best, bound


@kernel
def find_border_by_tree(wanted, cells, tree, leaves, labels):
    """Write the labels of border points, as `find_border` does, for the leaves of a tree as cells.

    The bucket of a point's leaf is searched first. The nearest core point in it bounds the search
    of the whole tree.
    """
    for c in wanted:
        bucket = find_bucket(tree, leaves, c)
        for i in range(np.int64(cells.start[c]), np.int64(cells.start[c + 1])):
            if not cells.core[i]:
                best, bound = _find_nearest_in_node(cells, tree, leaves, bucket, i, -1, np.inf)
                best, bound = _find_nearest_in_node(cells, tree, leaves, 0, i, best, bound)
                labels[i] = labels[best] if best >= 0 else -1


@kernel
def _find_nearest_in_node(cells, tree, leaves, node, i, best, bound):
    """Return the best core point for point i so far and its squared distance."""
    points, axes, lower, upper = cells.points, cells.axes, tree.lower, tree.upper
    reach = leaves.max_squared_radius
    stop = node + 2 * np.int64(leaves.n_leaves[node]) - 1
    while node < stop:
        to_box = squared_distance_to_box(points, axes, i, lower, upper, node, node)
        if to_box > min(bound, reach[node]):
            node += 2 * np.int64(leaves.n_leaves[node]) - 1  # to the next that is no descendant
            continue
        if tree.right[node] == 0:
            for j in range(np.int64(tree.first[node]), np.int64(tree.stop[node])):
                if not cells.core[j] or j == best:
                    continue
                squared = squared_distance(points, axes, i, j)
                if squared <= min(bound, squared_radius(cells, j)) and (
                    best < 0 or squared < bound or _precedes(points, axes, j, best)
                ):
                    best, bound = j, squared
        node += 1
    return best, bound
