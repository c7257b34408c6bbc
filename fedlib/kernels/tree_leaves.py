"""The leaves of a k-d tree as cells: how far their points reach, and which leaves are near a leaf.

A leaf is one cell if any two of its points are neighbours. Else it has few points, which are split
into cells like nodes. But these have no boxes, because most cells may be single points.

Cells are searched for by the bucket: a node with few cells, all of whose leaves look into the same
buckets nearby.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.kd_tree import (
    MAX_STACK,
    are_far,
    bound_copies,
    load,
    max_by_node,
    measure,
    right_child,
    select_median,
)

BUCKET = 32  # cells that are looked at together; no leaf has more


class Leaves(NamedTuple):
    """The leaves of a tree, their cells, and how far the points of each node reach.

    Attributes
    ----------
    node : array (n_leaves,) of int32 or int64
        The node of each leaf.
    first_cell : array (n_leaves + 1,) of int32 or int64
        The first cell of each leaf; the last entry is the number of cells.
    max_squared_radius : array (n_nodes,) or (1,) of float64
        The largest squared radius of the points of each node, or that of all points.
    n_buckets : int
        The number of buckets.
    """

    node: NDArray[np.signedinteger[Any]]
    first_cell: NDArray[np.signedinteger[Any]]
    max_squared_radius: NDArray[np.float64]
    n_buckets: int


@kernel
def collect_leaves(tree, squared_radii, max_squared_diagonal):
    """Return the `Leaves` of a tree, and where the points of each cell begin (n_cells + 1,).

    The points of leaves with several cells are sorted into these.

    Parameters
    ----------
    tree : KDTree
        A leaf that is larger than a cell has at most ``BUCKET`` points.
    squared_radii : array (n_points,) or (1,) of float64
        Those of the points, by row, or of all of them.
    max_squared_diagonal : float
        That of a cell.
    """
    n_leaves = tree.start.size - 1
    node_of_leaf = np.empty(n_leaves, tree.start.dtype)
    first_cell = np.zeros(n_leaves + 1, tree.start.dtype)
    start = np.empty(tree.order.size + 1, tree.start.dtype)
    copies = np.empty((BUCKET, tree.points.shape[1]))
    n_cells = 0
    for node in range(tree.n_leaves.size):
        if tree.n_leaves[node] == 1:
            leaf = tree.first_leaf[node]
            node_of_leaf[leaf] = node
            if measure(tree.boxes[node])[1] <= max_squared_diagonal:
                start[n_cells] = tree.start[leaf]
                n_cells += 1
            else:
                n_cells = _split_leaf(tree, leaf, max_squared_diagonal, copies, start, n_cells)
            first_cell[leaf + 1] = n_cells
    start[n_cells] = tree.order.size
    reach = squared_radii if squared_radii.size == 1 else max_by_node(tree, squared_radii)
    n_buckets = _count_buckets(tree, first_cell)
    leaves = Leaves(node_of_leaf, first_cell, reach, n_buckets)
    return leaves, start[: n_cells + 1].copy()


@kernel
def _split_leaf(tree, leaf, max_squared_diagonal, copies, start, n_cells):
    """Write where the cells of a leaf begin; return their number, with ``n_cells`` before them.

    They are what nodes below the leaf would be. ``copies`` is a buffer for its points.
    """
    first = tree.start[leaf]
    order = tree.order[first : tree.start[leaf + 1]]
    load(tree.points, order, copies)
    box, stack = np.empty((2, copies.shape[1])), np.empty((BUCKET, 2), np.int64)
    stack[0] = 0, order.size
    n_stack = 1
    while n_stack:
        n_stack -= 1
        begin, end = stack[n_stack]
        if end - begin > 1:
            part = copies[begin:end]
            widest, squared_diagonal = bound_copies(part, box)
            if squared_diagonal > max_squared_diagonal:
                select_median(part, order[begin:end], widest)
                middle = begin + (end - begin) // 2
                stack[n_stack] = middle, end
                stack[n_stack + 1] = begin, middle
                n_stack += 2
                continue
        start[n_cells] = first + begin
        n_cells += 1
    return n_cells


@kernel
def cells_of(tree, first_cell, node):
    """Return the first cell of a node and the stop."""
    leaf = tree.first_leaf[node]
    return first_cell[leaf], first_cell[leaf + tree.n_leaves[node]]


@kernel
def is_bucket(tree, first_cell, node):
    """Return whether a node has few cells."""
    first, stop = cells_of(tree, first_cell, node)
    return stop - first <= BUCKET


@kernel
def _count_buckets(tree, first_cell):
    node = n_buckets = 0
    while node < tree.n_leaves.size:
        if is_bucket(tree, first_cell, node):
            n_buckets += 1
            node += 2 * tree.n_leaves[node] - 1
        else:
            node += 1
    return n_buckets


@kernel
def larger_reach(max_squared_radius, a, b):
    """Return the larger one of the squared radii of two nodes (see `Leaves`)."""
    if max_squared_radius.size == 1:
        return max_squared_radius[0]
    return max(max_squared_radius[a], max_squared_radius[b])


@kernel
def find_bucket(tree, leaves, cell):
    """Return the bucket with this cell, its first cell and the stop."""
    node = 0
    while not is_bucket(tree, leaves.first_cell, node):
        right = right_child(tree, node)
        node = node + 1 if cell < leaves.first_cell[tree.first_leaf[right]] else right
    first, stop = cells_of(tree, leaves.first_cell, node)
    return node, first, stop


@kernel
def find_near_buckets(tree, leaves, bucket, buckets):
    """Write the buckets near a bucket to ``buckets``, in the order of the tree; return how many."""
    boxes, reach = tree.boxes, leaves.max_squared_radius
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack, n_buckets = 1, 0
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if are_far(boxes, bucket, boxes, node, larger_reach(reach, bucket, node)):
            continue
        if not is_bucket(tree, leaves.first_cell, node):
            stack[n_stack] = right_child(tree, node)
            stack[n_stack + 1] = node + 1
            n_stack += 2
        else:
            buckets[n_buckets] = node
            n_buckets += 1
    return n_buckets
