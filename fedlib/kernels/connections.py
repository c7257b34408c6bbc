"""Which cells of a grid are connected: a core point of one is near a core point of the other.

Cells are those of `fedlib.kernels.density`. Connected cells are joined in disjoint sets. The sets
do not depend on the order in which cells are compared.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.density import NONE, squared_distance, squared_distance_to_box
from fedlib.kernels.disjoint_set import find, union
from fedlib.kernels.kd_tree import are_far, build_part, find_nearest, load, max_nodes

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
