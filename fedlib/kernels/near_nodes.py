"""Core points and border points of DBSCAN on a tree: points compared with the nodes around them.

Each point looks at the bucket of its cell first. Most core points have enough others there, and a
border point finds a core point nearby, so that few other nodes matter. For the rest, the whole tree
is searched.

`Cells` are those of `fedlib.kernels.density`, and `Leaves` those of `fedlib.kernels.tree_leaves`.
"""

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.density import (
    NONE,
    how_many,
    precedes,
    squared_distance,
    squared_distance_to_box,
    squared_distances_of_box,
    squared_radius,
    sum_weights,
)
from fedlib.kernels.kd_tree import box_of, points_of
from fedlib.kernels.near_ranges import weigh
from fedlib.kernels.tree_leaves import cells_of, find_bucket


@kernel
def _weigh_node(cells, tree, node, i, enough):
    """Return the weight of the points of a node around point i; the sum stops when it is enough.

    A node within the radius is counted as a whole. Rounding is monotone, so the computed distance
    of its farthest place is at least that of each of its points.
    """
    points, axes, limit = cells.points, cells.axes, squared_radius(cells, i)
    corners, n_leaves, weights = tree.corners, tree.n_leaves, cells.weights
    total = 0.0
    stop = node + 2 * n_leaves[node] - 1
    while node < stop and total < enough:
        low, high = box_of(tree, node)
        nearest, farthest = squared_distances_of_box(points, axes, i, corners, low, high)
        if nearest > limit:
            node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
        elif farthest <= limit:
            begin, end = points_of(tree, node)
            total += sum_weights(weights, begin, end)
            node += 2 * n_leaves[node] - 1
        else:
            if n_leaves[node] == 1:
                begin, end = points_of(tree, node)
                total += weigh(points, axes, weights, i, begin, end, limit)
            node += 1
    return total


@kernel
def find_core(wanted, cells, tree, leaves, min_samples):
    """Write which points of some cells are core points, and if none, some or all of a cell are.

    Parameters
    ----------
    wanted : array (n_wanted,) of int64
        The cells, ascending.
    cells : Cells
    tree : KDTree
    leaves : Leaves
    min_samples : float
    """
    bucket = bucket_stop = 0
    for c in wanted:
        if c >= bucket_stop:
            bucket, _, bucket_stop = find_bucket(tree, leaves, c)
        n_core = 0
        for i in range(cells.start[c], cells.start[c + 1]):
            total = _weigh_node(cells, tree, bucket, i, min_samples)
            if total < min_samples:
                total = _weigh_node(cells, tree, 0, i, min_samples)
            cells.core[i] = total >= min_samples
            n_core += cells.core[i]
        cells.has_core[c] = how_many(n_core, cells.start[c + 1] - cells.start[c])


@kernel
def find_border(wanted, cells, tree, leaves, joined):
    """Write to ``joined`` (n,) which cell each point of some cells joins that is no core point.

    It is the cell of the nearest core point that has it in its neighbourhood, or -1. Ties go to the
    first core point in lexicographic order. For the other arguments see `find_core`.
    """
    bucket = bucket_stop = 0
    for c in wanted:
        if c >= bucket_stop:
            bucket, _, bucket_stop = find_bucket(tree, leaves, c)
        for i in range(cells.start[c], cells.start[c + 1]):
            if not cells.core[i]:
                bound = cells.squared_radii[0] if cells.squared_radii.size == 1 else np.inf
                nearest = -1, bound, -1
                nearest = _find_nearest(cells, tree, leaves, bucket, i, nearest)
                joined[i] = _find_nearest(cells, tree, leaves, 0, i, nearest)[2]


@kernel
def _find_nearest(cells, tree, leaves, node, i, nearest):
    """Return the nearest core point of a node that reaches point i, if better than ``nearest``.

    It comes with its squared distance, up to which other points matter, and its cell.
    """
    points, axes, core, start = cells.points, cells.axes, cells.core, cells.start
    corners, n_leaves, reach = tree.corners, tree.n_leaves, leaves.max_squared_radius
    best, bound, best_cell = nearest
    stop = node + 2 * n_leaves[node] - 1
    while node < stop:
        low, high = box_of(tree, node)
        limit = bound if reach.size == 1 else min(bound, reach[node])
        if squared_distance_to_box(points, axes, i, corners, low, high) > limit:
            node += 2 * n_leaves[node] - 1  # to the next node that is no descendant
            continue
        node += 1
        if n_leaves[node - 1] > 1:
            continue
        begin, end = cells_of(tree, leaves.first_cell, node - 1)
        for c in range(begin, end):
            if cells.has_core[c] == NONE:
                continue
            for j in range(start[c], start[c + 1]):
                if not core[j]:
                    continue
                squared = squared_distance(points, axes, i, j)
                if (
                    squared <= bound
                    and squared <= squared_radius(cells, j)
                    and (best < 0 or squared < bound or precedes(points, axes, j, best))
                ):
                    best, bound, best_cell = j, squared, c
    return best, bound, best_cell
