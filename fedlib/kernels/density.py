"""DBSCAN on cells: core points, their connection, and the core point that a border point joins.

A cell is a range of points. Any two of them are in each other's neighbourhood. All cells are one
named tuple, `Cells`; a `Block` contains some of them together with the cells near them. No other
cell has a point within reach of the block's points, or one that reaches them. Squared distances are
computed as in `fedlib.kernels.kd_tree`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.kd_tree import box_of, points_of
from fedlib.kernels.tree_leaves import find_bucket

PIECE = 128  # points that are checked before testing whether the work is done
MAX_TARGETS = 64  # points that are compared with the points near them at the same time
NONE, SOME, ALL = 0, 1, 2  # of a cell's points are core points


class Cells(NamedTuple):
    """Points sorted into cells, and the results for them so far.

    Attributes
    ----------
    points : array (n_points, n_features) of float64
        The points, cell by cell. All arrays with one entry per point are in this order. They may be
        in C or in Fortran order.
    axes : tuple of int or array of int64
        The numbers of the features, 0 to n_features - 1. For a tuple the functions are compiled
        for exactly this number of features: a distance then takes a third to a fifth of the time.
    squared_radii : array (n_points,) or (1,) of float64
        The squared radius of each point's neighbourhood, or of all of them.
    weights : array (n_points,) of float64
        The weight of each point, or no entries if all weights are 1.
    start : array (n_cells + 1,) of int32 or int64
        Where the points of each cell begin; the last entry is the number of points.
    box : array (n_cells,) of int32 or int64
        The row in ``corners`` of the lower corner of the smallest box around each cell's points.
        The upper corner is in the next row. A cell whose few points need no box has -1. With a
        tree, every cell has a box, but the entries of cells of one point have no meaning.
    corners : array (n_rows, n_features) of float64
        The corners of the boxes (see `bound_cells`).
    core : array (n_points,) of bool
        Which points are core points (see `find_core`).
    has_core : array (n_cells,) of int8
        How many points of each cell are core points: `NONE`, `SOME` or `ALL` (see `find_core`).
    """

    points: NDArray[np.float64]
    axes: tuple[int, ...] | NDArray[np.int64]
    squared_radii: NDArray[np.float64]
    weights: NDArray[np.float64]
    start: NDArray[np.signedinteger[Any]]
    box: NDArray[np.signedinteger[Any]]
    corners: NDArray[np.float64]
    core: NDArray[np.bool_]
    has_core: NDArray[np.int8]


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
def squared_distance_to_box(points, axes, i, corners, low, high):
    """Return the squared distance of point i to a box, given by the rows of its corners."""
    total = 0.0
    for k in range(len(axes)):
        total += max(corners[low, k] - points[i, k], 0.0, points[i, k] - corners[high, k]) ** 2
    return total


@kernel
def squared_distances_of_box(points, axes, i, corners, low, high):
    """Return the squared distances of point i to the nearest and the farthest place of a box."""
    nearest = farthest = 0.0
    for k in range(len(axes)):
        above, below = points[i, k] - corners[low, k], corners[high, k] - points[i, k]
        nearest += max(-above, 0.0, -below) ** 2
        farthest += max(above, below) ** 2
    return nearest, farthest


@kernel
def gather(X, order, cells, first, stop):
    """Write the rows ``order[first:stop]`` of ``X`` (n, d) to the points ``first..stop``."""
    points = cells.points
    for i in range(first, stop):
        row = order[i]
        for k in range(len(cells.axes)):
            points[i, k] = X[row, k]


@kernel
def bound_cells(cells, first, stop):
    """Write the boxes of the cells ``first..stop``; return the largest squared diagonal."""
    points, start, corners = cells.points, cells.start, cells.corners
    largest = 0.0
    for c in range(first, stop):
        squared_diagonal = 0.0
        row = cells.box[c]
        for k in range(len(cells.axes)):
            low = high = points[start[c], k]
            for i in range(start[c] + 1, start[c + 1]):
                low = min(low, points[i, k])
                high = max(high, points[i, k])
            if row >= 0:
                corners[row, k] = low
                corners[row + 1, k] = high
            squared_diagonal += (high - low) ** 2
        largest = max(largest, squared_diagonal)
    return largest


@kernel
def sum_weights(weights, first, stop):
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

    That is written for them and their points, too.
    """
    dense = np.empty(stop - first, np.bool_)
    for c in range(first, stop):
        begin, end = cells.start[c], cells.start[c + 1]
        dense[c - first] = sum_weights(cells.weights, begin, end) >= min_samples
        if dense[c - first]:
            cells.core[begin:end] = True
            cells.has_core[c] = ALL
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
    near, cell : array (PIECE,) of int64
        Points near the targets, and their cells.
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
    cell: NDArray[np.int64]
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
    """Return whether the box of a cell of several points is within the bound of any target."""
    low = cells.box[c]
    for t in range(n_targets):
        squared = squared_distance_to_box(
            cells.points, cells.axes, targets.point[t], cells.corners, low, low + 1
        )
        if squared <= targets.bound[t]:
            return True
    return False


@kernel
def squared_radius(cells, i):
    """Return the squared radius of the neighbourhood of point i."""
    return cells.squared_radii[i if cells.squared_radii.size > 1 else 0]


@kernel
def how_many(n_core, size):
    """Return whether `NONE`, `SOME` or `ALL` of the points of a cell are core points."""
    if n_core == size:
        return ALL
    return SOME if n_core else NONE


@kernel
def find_core(block, cells, min_samples):
    """Write which points of a block are core points, and how many of each cell are."""
    targets = _allocate(cells.points.shape[1])
    for g in range(block.group_start.size - 1):
        ranges = block.near[block.near_start[g] : block.near_start[g + 1]]
        n_targets = 0
        for c in block.cells[block.group_start[g] : block.group_start[g + 1]]:
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
            n_core = 0
            for i in range(cells.start[c], cells.start[c + 1]):
                n_core += cells.core[i]
            cells.has_core[c] = how_many(n_core, cells.start[c + 1] - cells.start[c])


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
            if few or start[end] - start[c] == 1 or _matters(cells, c, targets, n_targets):
                for j in range(start[c], start[end]):
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
def _count_in_node(cells, tree, node, i, enough):
    """Return how many points of a node are around point i; the count stops when it is enough.

    A node within the radius is counted as a whole. Rounding is monotone, so the computed distance
    of its farthest place is at least that of each of its points.
    """
    points, axes, limit = cells.points, cells.axes, squared_radius(cells, i)
    corners, n_leaves = tree.corners, tree.n_leaves
    count = 0
    stop = node + 2 * n_leaves[node] - 1
    while node < stop and count < enough:
        low, high = box_of(tree, node)
        nearest, farthest = squared_distances_of_box(points, axes, i, corners, low, high)
        if nearest > limit:
            node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
        elif farthest <= limit:
            begin, end = points_of(tree, node)
            count += end - begin
            node += 2 * n_leaves[node] - 1
        else:
            if n_leaves[node] == 1:
                begin, end = points_of(tree, node)
                for j in range(begin, end):
                    count += squared_distance(points, axes, i, j) <= limit
            node += 1
    return count


@kernel
def find_core_by_tree(wanted, cells, tree, min_samples):
    """Write which points are core points, as `find_core` does, for the leaves of a tree as cells.

    All weights are 1. Most core points have enough others in the bucket of their leaf; for the
    rest, the whole tree is searched.

    Parameters
    ----------
    wanted : array (n_wanted,) of int64
        The cells.
    cells : Cells
    tree : KDTree
    min_samples : float
    """
    for c in wanted:
        bucket = find_bucket(tree, c)
        n_core = 0
        for i in range(cells.start[c], cells.start[c + 1]):
            count = _count_in_node(cells, tree, bucket, i, min_samples)
            if count < min_samples:
                count = _count_in_node(cells, tree, 0, i, min_samples)
            cells.core[i] = count >= min_samples
            n_core += cells.core[i]
        cells.has_core[c] = how_many(n_core, cells.start[c + 1] - cells.start[c])


@kernel
def precedes(points, axes, i, j):
    """Return whether point i comes before point j in lexicographic order."""
    for k in range(len(axes)):
        if points[i, k] != points[j, k]:
            return points[i, k] < points[j, k]
    return False


@kernel
def find_border(block, cells, joined):
    """Write to ``joined`` (n,) which cell each point of a block joins that is no core point.

    It is the cell of the nearest core point that has it in its neighbourhood, or -1. Ties go to the
    first core point in lexicographic order.
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
                joined[i] = -1
                n_targets += 1
                if n_targets == MAX_TARGETS:
                    _find_border_of(targets, n_targets, ranges, cells, joined)
                    n_targets = 0
        _find_border_of(targets, n_targets, ranges, cells, joined)


@kernel
def _find_border_of(targets, n_targets, ranges, cells, joined):
    """Write which cells in some ranges the targets join."""
    points, start, core = cells.points, cells.start, cells.core
    near, cell, columns = targets.near, targets.cell, targets.columns
    size = 0
    for r in range(ranges.shape[0]):
        for c in range(ranges[r, 0], ranges[r, 1]):
            if cells.has_core[c] == NONE or (
                start[c + 1] - start[c] > n_targets and not _matters(cells, c, targets, n_targets)
            ):
                continue
            for j in range(start[c], start[c + 1]):
                if core[j]:
                    near[size], cell[size] = j, c
                    for k in range(len(cells.axes)):
                        columns[k, size] = points[j, k]
                    size += 1
                    if size == PIECE:
                        _find_nearest_core(targets, n_targets, size, cells, joined)
                        size = 0
    _find_nearest_core(targets, n_targets, size, cells, joined)


@kernel
def _find_nearest_core(targets, n_targets, size, cells, joined):
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
                and (best < 0 or squared[n] < bound or precedes(cells.points, cells.axes, j, best))
            ):
                best, bound = j, squared[n]
                joined[i] = targets.cell[n]
        targets.best[t], targets.bound[t] = best, bound


@kernel
def flatten(parent):
    """Make each element's root its parent; a root is the first element of its set."""
    for i in range(parent.size):
        parent[i] = parent[parent[i]]


@kernel
def find_first_rows(start, core, order, first_row, first, stop):
    """Write the first row of a core point of each cell ``first..stop``; without any, -1.

    ``order`` (n,) is the row of each point. For ``start`` and ``core`` see `Cells`.
    """
    for c in range(first, stop):
        row = -1
        for i in range(start[c], start[c + 1]):
            if core[i] and (row < 0 or order[i] < row):
                row = order[i]
        first_row[c] = row


@kernel
def number_sets(parent, first_row):
    """Return the number of the cluster of each cell with core points (n_cells,), else -1.

    Clusters are numbered by their first core row. ``parent`` (n_cells,) is the root of each cell's
    set (see `flatten`). ``first_row`` (see `find_first_rows`) becomes the result.
    """
    is_root = np.zeros(parent.size, np.bool_)
    for c in range(parent.size):
        if first_row[c] >= 0:
            root = parent[c]
            first_row[root] = min(first_row[root], first_row[c])
            is_root[root] = True
    number = first_row
    roots = np.flatnonzero(is_root)
    number[roots[np.argsort(first_row[roots])]] = np.arange(roots.size)
    for c in range(parent.size):  # a root comes before the rest of its set
        if number[c] >= 0:
            number[c] = number[parent[c]]
    return number


@kernel
def write_labels(start, core, order, joined, number, labels, is_core, first, stop):
    """Write by row which points of the cells ``first..stop`` are core points, and all labels.

    See `find_first_rows` for the first arrays, `find_border` for ``joined`` and `number_sets` for
    ``number``. -1 is noise.
    """
    for c in range(first, stop):
        for i in range(start[c], start[c + 1]):
            is_core[order[i]] = core[i]
            cell = c if core[i] else joined[i]
            labels[order[i]] = number[cell] if cell >= 0 else -1
