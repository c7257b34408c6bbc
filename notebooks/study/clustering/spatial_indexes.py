"""Three indexes for neighbours, searched with counters: a quadtree, a k-d tree, and a grid.

The k-d tree and the grid are those of `fedlib`. The quadtree is P's (§4.1): every node is split in
half along every feature. Every search computes squared distances in the order of the features, as
`fedlib.kernels.kd_tree` does, so that all find the same neighbours.

Source of the quadtree: R. A. Finkel and J. L. Bentley, "Quad trees: a data structure for retrieval
on composite keys", Acta Informatica 4, 1974.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from fedlib.clustering.density.engine.dbscan import neighbours_within
from fedlib.clustering.density.engine.index import (  # the cells that `cluster` uses
    Shares,
    index_by_grid,
)
from fedlib.kernels import kd_tree


class Boxes(NamedTuple):
    """A tree of boxes.

    Attributes
    ----------
    points : array (n, d)
    order : array (n,) of int
        The points of a leaf are ``points[order[first[leaf]:stop[leaf]]]``.
    first, stop : array (n_nodes,) of int
    children : list of list of int
        The children of each node; none for a leaf.
    lower, upper : array (n_nodes, d)
        The corners of each node's box.
    """

    points: np.ndarray
    order: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    children: list
    lower: np.ndarray
    upper: np.ndarray


class Work(NamedTuple):
    """The neighbours of each query, ascending, and what the search did.

    Attributes
    ----------
    start, index : arrays (n_queries + 1,) and (n_neighbours,) of int
        The neighbours of query i are ``index[start[i]:start[i + 1]]``.
    boxes : array (n_queries,) of int
        How many boxes were compared with the query.
    distances : array (n_queries,) of int
        How many distances to points were computed.
    """

    start: np.ndarray
    index: np.ndarray
    boxes: np.ndarray
    distances: np.ndarray


def build_quadtree(points, leaf_size, max_depth=50):
    """Return a tree whose nodes are split in half along every feature, without empty nodes.

    A node with at most ``leaf_size`` points, or at ``max_depth``, is a leaf. All nodes of one depth
    are split at once.
    """
    d = points.shape[1]
    bit = np.arange(d)
    lower, upper = [points.min(axis=0)[np.newaxis]], [points.max(axis=0)[np.newaxis]]
    children, leaf_of = [[]], np.zeros(len(points), int)
    rows, n_nodes = np.arange(len(points)), 1  # of points in nodes of the last depth; all nodes
    for _ in range(max_depth):
        before = n_nodes - len(lower[-1])  # nodes above the last depth
        node = leaf_of[rows] - before
        rows = rows[np.bincount(node)[node] > leaf_size]
        if len(rows) == 0:
            break
        node = leaf_of[rows] - before
        middle = (lower[-1] + upper[-1]) / 2
        quarter = (points[rows] >= middle[node]) @ (1 << bit)
        keys, child = np.unique((node << d) + quarter, return_inverse=True)
        leaf_of[rows] = n_nodes + child
        parent, is_upper = keys >> d, (keys[:, np.newaxis] >> bit) & 1 == 1
        lower.append(np.where(is_upper, middle[parent], lower[-1][parent]))
        upper.append(np.where(is_upper, upper[-1][parent], middle[parent]))
        for number, above in enumerate(parent.tolist(), n_nodes):
            children[before + above].append(number)
            children.append([])
        n_nodes += len(keys)
    order = np.argsort(leaf_of, kind="stable")
    stop = np.cumsum(np.bincount(leaf_of, minlength=n_nodes))
    first = np.append(0, stop[:-1])
    return Boxes(points, order, first, stop, children, np.vstack(lower), np.vstack(upper))


def build_kd_tree(points, leaf_size):
    """Return the k-d tree of `fedlib.kernels`."""
    tree = kd_tree.build(points, leaf_size, 0.0)
    children = [
        [node + 1, kd_tree.right_child(tree, node)] if n_leaves > 1 else []
        for node, n_leaves in enumerate(tree.n_leaves)
    ]
    first, stop = kd_tree.points_of(tree, slice(None))
    return Boxes(points, tree.order, first, stop, children, tree.boxes[:, 0], tree.boxes[:, 1])


def search_tree(tree, queries, radius):
    """Return the `Work` of finding all points within a radius of each query.

    All queries descend together: a node passes those on that its box does not exclude.
    """
    boxes, distances = np.zeros((2, len(queries)), int)
    found, stack = [], [(0, np.arange(len(queries)))]
    while stack:
        node, active = stack.pop()
        boxes[active] += 1
        gaps = _squared_gaps(queries[active], tree.lower[node], tree.upper[node])
        active = active[gaps <= radius * radius]
        if tree.children[node]:
            stack += [(child, active) for child in tree.children[node] if len(active)]
            continue
        members = tree.order[tree.first[node] : tree.stop[node]]
        distances[active] += len(members)
        found.append(_within(tree.points, members, queries, active, radius))
    return _collect(found, boxes, distances)


def walk_tree(tree, query, radius):
    """Return the leaves that one query opens, and the nodes that it excludes."""
    opened, excluded, stack = [], [], [0]
    while stack:
        node = stack.pop()
        gap = _squared_gaps(query[np.newaxis], tree.lower[node], tree.upper[node])[0]
        if gap > radius * radius:
            excluded.append(node)
        elif tree.children[node]:
            stack += tree.children[node]
        else:
            opened.append(node)
    return opened, excluded


def build_grid(points, radius):
    """Return the cells of the engine as boxes without children, and those near each cell.

    The latter is a function of a cell.
    """
    with ThreadPoolExecutor(1) as threads:
        index = index_by_grid(points, radius, Shares(threads, 1, len(points)))
    first, stop = index.start[:-1], index.start[1:]
    group_start, near_start = np.empty(2, np.int64), np.empty(2, np.int64)
    ranges = np.empty((index.max_ranges, 2), np.int64)

    def near(cell):
        """Return the cells near a cell, including itself."""
        index.find_near(np.array([cell]), False, group_start, near_start, ranges)
        return [c for a, b in ranges[: near_start[1]] for c in range(a, b)]

    ordered = points[index.order]
    lower, upper = np.minimum.reduceat(ordered, first), np.maximum.reduceat(ordered, first)
    return Boxes(points, index.order, first, stop, [[]] * len(first), lower, upper), near


def cell_of_points(cells):
    """Return the cell of each point."""
    cell_of = np.empty(len(cells.points), int)
    cell_of[cells.order] = np.repeat(np.arange(len(cells.first)), cells.stop - cells.first)
    return cell_of


def search_grid(cells, near, rows, radius):
    """Return the `Work` of finding the neighbours of some ``rows`` of the points by the grid.

    The cells near the cell of a row are compared with it as boxes.
    """
    queries, cell_of_query = cells.points[rows], cell_of_points(cells)[rows]
    boxes, distances = np.zeros((2, len(rows)), int)
    found = []
    for cell in np.unique(cell_of_query):
        inside = np.flatnonzero(cell_of_query == cell)
        for other in near(cell):
            boxes[inside] += 1
            gaps = _squared_gaps(queries[inside], cells.lower[other], cells.upper[other])
            active = inside[gaps <= radius * radius]
            members = cells.order[cells.first[other] : cells.stop[other]]
            distances[active] += len(members)
            found.append(_within(cells.points, members, queries, active, radius))
    return _collect(found, boxes, distances)


def _squared_gaps(queries, lower, upper):
    """Return the squared distance of each query to a box."""
    outside = np.maximum(np.maximum(lower - queries, 0.0), queries - upper)
    return _sum_of_squares(outside)


def _sum_of_squares(differences):
    total = np.zeros(differences.shape[:-1])
    for k in range(differences.shape[-1]):
        total += differences[..., k] ** 2
    return total


def _within(points, members, queries, active, radius):
    """Return the pairs (query, point) within the radius, as two arrays."""
    squared = _sum_of_squares(queries[active][:, np.newaxis] - points[members])
    query, place = np.nonzero(squared <= radius * radius)
    return active[query], members[place]


def _collect(found, boxes, distances):
    query, point = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort([point, query])
    start = np.append(0, np.cumsum(np.bincount(query, minlength=len(boxes))))
    return Work(start, point[order], boxes, distances)


def count_work(X, rows, radius, leaf_size, chosen=("quadtree", "k-d tree", "grid")):
    """Yield one row per index: what it finds, and the mean work of a query.

    Parameters
    ----------
    X : array (n, n_features)
    rows : array of int
        The points whose neighbours are searched.
    radius : float
    leaf_size : int
        The largest number of points in a leaf of a tree.
    chosen : sequence of str
        The indexes.

    Yields
    ------
    dict
        ``same`` is whether the neighbours are those of the engine of `fedlib`.
    """
    start, found = neighbours_within(X[rows], X, radius)
    builders = {"quadtree": build_quadtree, "k-d tree": build_kd_tree}
    for index in chosen:
        if index == "grid":
            work = search_grid(*build_grid(X, radius), rows, radius)
        else:
            work = search_tree(builders[index](X, leaf_size), X[rows], radius)
        same = np.array_equal(work.start, start) and np.array_equal(work.index, found)
        row = {"index": index, "same": same, "neighbours": len(found) / len(rows)}
        yield row | {"boxes": work.boxes.mean(), "distances": work.distances.mean()}
