"""Choosing representatives: points that cover all others within a radius, and centroids.

A representative covers the points within ``eps`` of it that none before it covers. Both ways to
choose return for ``X`` (n, d):

- ``chosen`` (r,): the points chosen, in this order;
- ``owner`` (n,): the number of the representative that covers each point, or -1;
- ``reach`` (r,): a distance from each representative, said at the kernel.

Neighbourhoods are looked up when they are needed and never kept: memory is O(n).
"""

import math

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.centres import sum_by_label
from fedlib.kernels.kd_tree import build, find_around, find_nearest, squared_distance

LEAF = 16
# Whole numbers add up exactly in any order, so points that are equally good stay equally good, and
# what is subtracted again leaves no rounding behind. Their sums fit 64 bits for 2**31 neighbours.
BITS = 32


@kernel
def cover_in_order(X, candidates, eps, most):
    """Let each candidate that is not covered yet be a representative, ``most`` of them at most.

    ``reach`` is the distance to the furthest point within ``eps``, whoever covers it.
    """
    order, first, stop, right, lower, upper = build(X, LEAF, 0.0)
    limit = eps * eps
    n = X.shape[0]
    owner = np.full(n, -1)
    chosen = np.empty(n, np.int64)
    reach = np.zeros(n)
    near = np.empty(n, np.int64)
    r = 0
    for i in candidates:
        if r == most:
            break
        if owner[i] >= 0:
            continue
        found = find_around(X, i, limit, X, order, first, stop, right, lower, upper, near, 0)
        for at in range(found):
            j = near[at]
            reach[r] = max(reach[r], squared_distance(X, i, X, j))
            if owner[j] < 0:
                owner[j] = r
        chosen[r] = i
        r += 1
    return chosen[:r], owner, np.sqrt(reach[:r])


@kernel
def _worth(X, i, j, eps, shift):
    """Return by how much the distance of two neighbours stays below ``eps``, in 2**-shift."""
    short = max(0.0, eps - np.sqrt(squared_distance(X, i, X, j)))
    return np.int64(np.rint(math.ldexp(short, shift)))


@kernel
def _sink(heap, size, known, at):
    """Let the point at a place of the heap sink below those that are better, or as good and first.

    ``known`` (n,) is how good each point is.
    """
    i = heap[at]
    while 2 * at + 1 < size:
        best = 2 * at + 1
        for child in range(best, min(best + 2, size)):
            j = heap[child]
            if known[j] > known[heap[best]] or (known[j] == known[heap[best]] and j < heap[best]):
                best = child
        j = heap[best]
        if known[i] > known[j] or (known[i] == known[j] and i < j):
            break
        heap[at] = j
        at = best
    heap[at] = i


@kernel
def cover_greedily(X, eps, most, enough):
    """Choose the point of the largest DynRep, of equals the first, until ``enough`` are covered.

    DynRep is a point's sum of `_worth` over its neighbours that are not covered yet; with nothing
    covered it is StatRep. It only falls, and by each point once: when that point is covered. The
    heap goes by what DynRep was; the point on its top is the best one once that is up to date.
    ``reach`` is the distance to the furthest point that the representative covers.
    """
    order, first, stop, right, lower, upper = build(X, LEAF, 0.0)
    limit = eps * eps
    shift = BITS - math.frexp(eps)[1]  # a power of two, so that whole numbers and halves stay exact
    n = X.shape[0]
    owner = np.full(n, -1)
    chosen = np.empty(n, np.int64)
    reach = np.zeros(n)
    near = np.empty(n, np.int64)
    covered = np.empty(n, np.int64)
    dyn_rep = np.zeros(n, np.int64)
    for i in range(n):
        found = find_around(X, i, limit, X, order, first, stop, right, lower, upper, near, 0)
        for at in range(found):
            dyn_rep[i] += _worth(X, i, near[at], eps, shift)
    known = dyn_rep.copy()
    heap = np.arange(n)
    for at in range(n // 2 - 1, -1, -1):
        _sink(heap, n, known, at)
    r = 0
    n_covered = 0
    while r < most and n_covered < enough:
        i = heap[0]
        if known[i] != dyn_rep[i]:
            known[i] = dyn_rep[i]
            _sink(heap, n - r, known, 0)
            continue
        heap[0] = heap[n - r - 1]
        _sink(heap, n - r - 1, known, 0)
        found = find_around(X, i, limit, X, order, first, stop, right, lower, upper, near, 0)
        start = n_covered
        for at in range(found):
            j = near[at]
            if owner[j] < 0:
                owner[j] = r
                reach[r] = max(reach[r], squared_distance(X, i, X, j))
                covered[n_covered] = j
                n_covered += 1
        for at in range(start, n_covered):
            j = covered[at]
            found = find_around(X, j, limit, X, order, first, stop, right, lower, upper, near, 0)
            for other in range(found):
                dyn_rep[near[other]] -= _worth(X, j, near[other], eps, shift)
        chosen[r] = i
        r += 1
    return chosen[:r], owner, np.sqrt(reach[:r])


@kernel
def move_to_centroids(X, centroids, most):
    """Move ``centroids`` (k, d) by k-means, in ``most`` rounds at most; one without points stays.

    Returns the nearest centroid of each point, of equals the first.
    """
    limits = np.full(centroids.shape[0], np.inf)
    order, first, stop, right, lower, upper = build(centroids, LEAF, 0.0)
    nearest = find_nearest(X, limits, centroids, order, first, stop, right, lower, upper)
    for _ in range(most):
        sums = np.zeros(centroids.shape)
        counts = np.zeros(centroids.shape[0], np.int64)
        sum_by_label(X, nearest, sums, counts)
        for c in range(centroids.shape[0]):
            for k in range(X.shape[1]):
                if counts[c]:
                    centroids[c, k] = sums[c, k] / counts[c]
        before = nearest
        order, first, stop, right, lower, upper = build(centroids, LEAF, 0.0)
        nearest = find_nearest(X, limits, centroids, order, first, stop, right, lower, upper)
        if np.all(nearest == before):
            break
    return nearest
