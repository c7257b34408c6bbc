"""Choosing representatives: points that cover all others within a radius, and centroids.

A representative covers the points within ``eps`` of it that no earlier one covers. Neighbourhoods
are searched when they are needed and never stored, so memory is linear in the count of points.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.centres import sum_by_label
from fedlib.kernels.kd_tree import (
    MAX_STACK,
    build,
    find_nearest,
    points_of,
    radius_search,
    right_child,
    sort_points,
    squared_distance,
    squared_distance_to_node,
)

LEAF_SIZE = 32
GREEDY_LEAF_SIZE = 128  # where the gains of whole leaves are computed by vector instructions
# Gains are integers of this many bits. Their sums are exact in any order, so that equally good
# points stay equally good and a subtraction leaves no rounding behind. A sum fits into 64 bits for
# up to 2**31 neighbours.
GAIN_BITS = 32


class Cover(NamedTuple):
    """Representatives and the points that they cover.

    Attributes
    ----------
    chosen : array (n_representatives,) of int64
        The rows of the representatives, in the order in which they were chosen.
    owner : array (n_points,) of int64
        The number of the representative that covers each point, or -1.
    reach : array (n_representatives,) of float64
        A distance from each representative; see the function that returns it.
    """

    chosen: NDArray[np.int64]
    owner: NDArray[np.int64]
    reach: NDArray[np.float64]


@kernel
def cover_in_order(X, candidates, eps, max_representatives):
    """Return the `Cover` by candidates: each that is not covered yet becomes a representative.

    ``reach`` is the distance to the furthest point within ``eps``, even if another representative
    covers that point.

    Parameters
    ----------
    X : array (n, d) of float64
    candidates : array (m,) of int64
        Rows of ``X``, in the order in which they are tried.
    eps : float
    max_representatives : int
    """
    tree = build(X, LEAF_SIZE, 0.0)
    by_place = sort_points(tree)
    n = X.shape[0]
    owner = np.full(n, -1)
    chosen = np.empty(n, np.int64)
    squared_reach = np.zeros(n)
    near = np.empty(n, np.int64)
    r = 0
    for i in candidates:
        if r == max_representatives:
            break
        if owner[i] >= 0:
            continue
        for place in near[: radius_search(by_place, X, i, eps * eps, near, 0)]:
            squared = squared_distance(X, i, by_place.points, place)
            squared_reach[r] = max(squared_reach[r], squared)
            if owner[tree.order[place]] < 0:
                owner[tree.order[place]] = r
        chosen[r] = i
        r += 1
    return Cover(chosen[:r], owner, np.sqrt(squared_reach[:r]))


@kernel
def _find_ranges(tree, i, squared_radius, ranges):
    """Write the ranges of places in the leaves within a radius of point i; return how many."""
    n_ranges = 0
    stack = np.empty(MAX_STACK, np.int64)
    stack[0] = 0
    n_stack = 1
    while n_stack:
        n_stack -= 1
        node = stack[n_stack]
        if squared_distance_to_node(tree.points, i, tree, node) > squared_radius:
            continue
        first, stop = points_of(tree, node)
        if tree.n_leaves[node] > 1:
            stack[n_stack] = right_child(tree, node)
            stack[n_stack + 1] = node + 1
            n_stack += 2
        elif n_ranges and ranges[n_ranges - 1, 1] == first:
            ranges[n_ranges - 1, 1] = stop
        else:
            ranges[n_ranges] = first, stop
            n_ranges += 1
    return n_ranges


@kernel
def _write_gains(columns, i, first, stop, eps, scale, gains):
    """Write how much less than ``eps`` the distances of some points are, times a power of two.

    The power is the product of the pair ``scale``, because it may itself be above all floats. The
    loops are short and over one array each, so that they are compiled to vector instructions.
    """
    gains = gains[: stop - first]
    gains[:] = 0.0
    for k in range(columns.shape[0]):
        x, column = columns[k, i], columns[k, first:stop]
        for j in range(gains.size):
            gains[j] += (x - column[j]) ** 2
    for j in range(gains.size):
        gains[j] = np.rint(max(0.0, eps - np.sqrt(gains[j])) * scale[0] * scale[1])


@kernel
def _add_gains(tree, columns, i, eps, scale, ranges, gains, times, dyn_rep):
    """Add to each point within ``eps`` of point i what it gains from point i, so many times."""
    for r in range(_find_ranges(tree, i, eps * eps, ranges)):
        first, stop = ranges[r]
        _write_gains(columns, i, first, stop, eps, scale, gains)
        part = dyn_rep[first:stop]
        for j in range(part.size):
            part[j] += np.int64(gains[j]) * times


@kernel
def _group_equal_rows(X):
    """Return the first row of each group of equal rows next to each other, and the stop."""
    n = X.shape[0]
    starts = np.empty(n + 1, np.int64)
    n_groups = 0
    for i in range(n):
        if i == 0 or np.any(X[i] != X[i - 1]):
            starts[n_groups] = i
            n_groups += 1
    starts[n_groups] = n
    return starts[: n_groups + 1]


@kernel
def _precedes(known, rows, i, j):
    """Return whether point i is better than point j, or as good and in an earlier row."""
    return known[i] > known[j] or (known[i] == known[j] and rows[i] < rows[j])


@kernel
def _sift_down(heap, size, known, rows, at):
    """Restore the order of a heap, the best point first, after the point at ``at`` got worse."""
    i = heap[at]
    while 2 * at + 1 < size:
        best = 2 * at + 1
        if best + 1 < size and _precedes(known, rows, heap[best + 1], heap[best]):
            best += 1
        if _precedes(known, rows, i, heap[best]):
            break
        heap[at] = heap[best]
        at = best
    heap[at] = i


@kernel
def _make_heap(known, rows):
    """Return all points as a heap, the best first."""
    heap = np.arange(known.size)
    for at in range(known.size // 2 - 1, -1, -1):
        _sift_down(heap, known.size, known, rows, at)
    return heap


@kernel
def cover_greedily(X, eps, max_representatives, min_covered):
    """Return the `Cover` by the points of the largest DynRep, until ``min_covered`` are covered.

    A point's DynRep is the sum of the gains from the points within ``eps`` that are not covered
    yet. Ties go to the first row. ``reach`` is the distance to the furthest point that the
    representative covers.

    Parameters
    ----------
    X : array (n, d) of float64
    eps : float
    max_representatives : int
    min_covered : float
        The choice ends when this many points are covered.

    Notes
    -----
    DynRep only decreases, and it does so once for each point around: when that point is covered. So
    the heap may be ordered by former values. If the value of its first point is up to date, that
    point is the best; if not, the point is moved down and the next one is looked at. The cost is
    about twice that of searching each point's neighbourhood.

    Equal points gain the same, and are covered together. Only the first of them can be chosen: then
    none of the others gains anything. So equal rows next to each other are one point that counts
    several times.
    """
    starts = _group_equal_rows(X)
    tree = build(X[starts[:-1]], GREEDY_LEAF_SIZE, 0.0)
    rows = tree.order
    tree = sort_points(tree)
    counts = (starts[1:] - starts[:-1])[rows]
    X = tree.points
    columns = np.ascontiguousarray(X.T)
    shift = GAIN_BITS - math.frexp(eps)[1]  # a power of two, so halves stay exact
    scale = math.ldexp(1.0, shift // 2), math.ldexp(1.0, shift - shift // 2)
    n = X.shape[0]
    owner = np.full(n, -1)
    chosen = np.empty(n, np.int64)
    squared_reach = np.zeros(n)
    near = np.empty(n, np.int64)
    ranges = np.empty((tree.start.size, 2), np.int64)
    gains = np.empty(n)
    dyn_rep = np.zeros(n, np.int64)
    for i in range(n):
        _add_gains(tree, columns, i, eps, scale, ranges, gains, counts[i], dyn_rep)
    known = dyn_rep.copy()
    heap = _make_heap(known, rows)
    r = 0
    n_covered = 0
    while r < max_representatives and n_covered < min_covered:
        i = heap[0]
        if known[i] != dyn_rep[i]:
            known[i] = dyn_rep[i]
            _sift_down(heap, n - r, known, rows, 0)
            continue
        heap[0] = heap[n - r - 1]
        _sift_down(heap, n - r - 1, known, rows, 0)
        for j in near[: radius_search(tree, X, i, eps * eps, near, 0)]:
            if owner[j] < 0:
                owner[j] = r
                squared_reach[r] = max(squared_reach[r], squared_distance(X, i, X, j))
                n_covered += counts[j]
                _add_gains(tree, columns, j, eps, scale, ranges, gains, -counts[j], dyn_rep)
        chosen[r] = i
        r += 1
    owner_by_row = np.empty(starts[-1], np.int64)
    for i in range(n):
        owner_by_row[starts[rows[i]] : starts[rows[i] + 1]] = owner[i]
    return Cover(starts[rows[chosen[:r]]], owner_by_row, np.sqrt(squared_reach[:r]))


@kernel
def move_to_centroids(X, centroids, max_rounds):
    """Move ``centroids`` (k, d) by k-means and return the nearest one of each point.

    A centroid without points stays in place. Ties go to the first centroid. The rounds end when no
    point changes its centroid.
    """
    n_centroids = centroids.shape[0]
    everywhere = np.full(n_centroids, np.inf)
    nearest = find_nearest(build(centroids, LEAF_SIZE, 0.0), X, everywhere)
    for _ in range(max_rounds):
        sums = np.zeros(centroids.shape)
        counts = np.zeros(n_centroids, np.int64)
        sum_by_label(X, nearest, sums, counts)
        for c in range(n_centroids):
            for k in range(X.shape[1]):
                if counts[c]:
                    centroids[c, k] = sums[c, k] / counts[c]
        previous = nearest
        nearest = find_nearest(build(centroids, LEAF_SIZE, 0.0), X, everywhere)
        if np.all(nearest == previous):
            break
    return nearest
