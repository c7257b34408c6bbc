"""DBSCAN on cells: what all searches share, and the labels.

A cell is a range of points. Any two of them are in each other's neighbourhood. All cells are one
named tuple, `Cells`; a `Block` contains some of them together with the cells near them. No other
cell has a point within reach of the block's points, or one that reaches them. Squared distances are
computed as in `fedlib.kernels.kd_tree`.

Which cells of a grid are connected: a core point of one is near a core point of the other.

Cells are those of `fedlib.kernels.density`. Connected cells are joined in disjoint sets. The sets
do not depend on the order in which cells are compared.

Disjoint sets, and the connected components of a graph that is given by its edges.

A set is a tree: ``parent[i]`` is the parent of element i, and a root is its own parent.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.kd_tree import are_far, build_part, find_nearest, load, max_nodes

NONE, SOME, ALL = 0, 1, 2  # of a cell's points are core points


class Cells(NamedTuple):
    """Points sorted into cells, and the results for them so far.

    Attributes
    ----------
    points : array (n_points or more, n_features) of float64
        The points. On a grid they are sorted by cell, in Fortran order, and further rows mean
        nothing. For a tree they are those of the caller, in C order.
    rows : array (n_points,) of int32 or int64
        The row in ``points`` of each point, sorted by cell, or no entries if the points are sorted.
        ``weights`` and ``core`` are in this order.
    axes : tuple of int or array of int64
        The indices of the features, 0 to n_features - 1. For a tuple the functions are compiled
        for exactly this count of features: a distance then takes a third to a fifth of the time.
    squared_radii : array (n_points,) or (1,) of float64
        The squared radius of the neighbourhood of each row of ``points``, or of all of them.
    weights : array (n_points,) of float64
        The weight of each point, or no entries if all weights are 1.
    start : array (n_cells + 1,) of int32 or int64
        Where the points of each cell begin; the last entry is the count of points.
    box : array (n_cells,) of int32 or int64
        On a grid, the index in ``boxes`` of the smallest box around each cell's points. A cell
        whose few points need no box has -1.
    boxes : array (n_boxes, 2, n_features) of float64
        The lower and the upper corner of each box.
    core : array (n_points,) of bool
        Which points are core points.
    has_core : array (n_cells,) of int8
        How many points of each cell are core points: `NONE`, `SOME` or `ALL`.
    """

    points: NDArray[np.float64]
    rows: NDArray[np.signedinteger[Any]]
    axes: tuple[int, ...] | NDArray[np.int64]
    squared_radii: NDArray[np.float64]
    weights: NDArray[np.float64]
    start: NDArray[np.signedinteger[Any]]
    box: NDArray[np.signedinteger[Any]]
    boxes: NDArray[np.float64]
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
    """Return the squared distance of the points in two rows."""
    total = 0.0
    for k in range(len(axes)):
        total += (points[i, k] - points[j, k]) ** 2
    return total


@kernel
def squared_distance_to_box(points, axes, i, boxes, b):
    """Return the squared distance of the point in row i to box ``b``."""
    total = 0.0
    for k in range(len(axes)):
        total += max(boxes[b, 0, k] - points[i, k], 0.0, points[i, k] - boxes[b, 1, k]) ** 2
    return total


@kernel
def squared_distances_of_box(points, axes, i, boxes, b):
    """Return the squared distances of row i to the nearest and the farthest place of a box."""
    nearest = farthest = 0.0
    for k in range(len(axes)):
        above, below = points[i, k] - boxes[b, 0, k], boxes[b, 1, k] - points[i, k]
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
    points, start, boxes = cells.points, cells.start, cells.boxes
    largest = 0.0
    for c in range(first, stop):
        squared_diagonal = 0.0
        box = cells.box[c]
        for k in range(len(cells.axes)):
            low = high = points[start[c], k]
            for i in range(start[c] + 1, start[c + 1]):
                low = min(low, points[i, k])
                high = max(high, points[i, k])
            if box >= 0:
                boxes[box, 0, k] = low
                boxes[box, 1, k] = high
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


@kernel
def squared_radius(cells, i):
    """Return the squared radius of the neighbourhood of the point in row i."""
    return cells.squared_radii[i if cells.squared_radii.size > 1 else 0]


@kernel
def how_many(n_core, size):
    """Return whether `NONE`, `SOME` or `ALL` of the points of a cell are core points."""
    if n_core == size:
        return ALL
    return SOME if n_core else NONE


@kernel
def precedes(points, axes, i, j):
    """Return whether row i comes before row j in lexicographic order."""
    for k in range(len(axes)):
        if points[i, k] != points[j, k]:
            return points[i, k] < points[j, k]
    return False


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

    See `find_first_rows` for the first arrays, `number_sets` for ``number``, and for ``joined``
    `fedlib.kernels.range_search.find_border`. -1 is noise.
    """
    for c in range(first, stop):
        for i in range(start[c], start[c + 1]):
            is_core[order[i]] = core[i]
            cell = c if core[i] else joined[i]
            labels[order[i]] = number[cell] if cell >= 0 else -1


@kernel
def find(parent, i):
    """Return the root of ``i``, and halve the path to it."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@kernel
def union(parent, i, j):
    """Join the sets of ``i`` and ``j``; the smaller root becomes the root of both.

    Therefore a root is always the first member of its set.
    """
    i, j = find(parent, i), find(parent, j)
    if i < j:
        parent[j] = i
    else:
        parent[i] = j


@kernel
def number_components(parent, member):
    """Return the component of each ``member`` (n, bool), numbered by its first member, else -1.

    Sets of several elements must consist of members only.
    """
    labels = np.full(parent.size, -1, np.int64)
    n_labels = 0
    for i in range(parent.size):
        if member[i]:
            root = find(parent, i)
            if root == i:
                labels[i] = n_labels
                n_labels += 1
            else:
                labels[i] = labels[root]
    return labels


@kernel
def connected_components(n, pairs, member):
    """Return the component of each of ``n`` nodes, numbered by its first member.

    Only edges ``pairs`` (p, 2) between two nodes that are a ``member`` (n, bool) count. The other
    nodes get -1.
    """
    parent = np.arange(n)
    for p in range(pairs.shape[0]):
        if member[pairs[p, 0]] and member[pairs[p, 1]]:
            union(parent, pairs[p, 0], pairs[p, 1])
    return number_components(parent, member)


PIECE = 128  # points that are searched for before testing whether one is found
FEW = 4  # points in a cell up to which it needs no box: checking that first would not pay
MANY = 1 << 16  # pairs of points in two cells above which trees pay
LEAF_SIZE = 16


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
    boxes, has_core, near = cells.boxes, cells.has_core, block.near
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
                    both = box[a] >= 0 and box[b] >= 0
                    if both and are_far(boxes, box[a], boxes, box[b], squared_radius):
                        continue
                    if have_many_pairs(start, a, b):
                        connected = are_connected_by_trees(cells, a, b)
                    else:
                        connected = _are_points_near(
                            points, axes, core, start, a, b, boxes, box, squared_radius
                        )
                    if connected:
                        union(parent, a, b)
                        root = find(parent, a)


@kernel
def have_many_pairs(start, a, b):
    """Return whether two cells have so many pairs of points that trees pay."""
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
def _are_points_near(points, axes, core, start, a, b, boxes, box, squared_radius):
    """Return whether a core point of one cell is within a radius of one of the other."""
    if box[b] < 0:
        a, b = b, a
    first, stop = start[b], start[b + 1]
    check_box = box[b] >= 0
    for i in range(start[a], start[a + 1]):
        if not core[i] or (
            check_box and squared_distance_to_box(points, axes, i, boxes, box[b]) > squared_radius
        ):
            continue
        for j in range(first, stop):
            if core[j] and squared_distance(points, axes, i, j) <= squared_radius:
                return True
    return False


@kernel
def are_connected_by_trees(cells, a, b):
    """Return whether a core point of one cell is in the neighbourhood of one of the other."""
    rows_a, rows_b = _core_rows(cells, a), _core_rows(cells, b)
    return _any_reaches(cells, rows_b, rows_a) or _any_reaches(cells, rows_a, rows_b)


@kernel
def _core_rows(cells, c):
    """Return the rows of the core points of a cell."""
    places = cells.start[c] + np.flatnonzero(cells.core[cells.start[c] : cells.start[c + 1]])
    return cells.rows[places].astype(np.int64) if cells.rows.size else places


@kernel
def _any_reaches(cells, rows, others):
    """Return whether any of the points in some rows has one of the others in its neighbourhood."""
    points = cells.points
    boxes = np.empty((max_nodes(rows.size, LEAF_SIZE), 2, points.shape[1]))
    tree = build_part(points, rows.copy(), boxes, 0, rows.size, LEAF_SIZE, 0.0)
    piece = np.empty((PIECE, points.shape[1]))
    for begin in range(0, others.size, PIECE):
        members = others[begin : begin + PIECE]
        load(points, members, piece)
        if find_nearest(tree, piece[: members.size], cells.squared_radii).max() >= 0:
            return True
    return False
