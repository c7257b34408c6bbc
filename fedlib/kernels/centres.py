"""Centres of points: the nearest centre, sums and counts per centre, and the update of centres.

Sums are compensated: A. Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher
Summen, ZAMM 54, 1974.
"""

import numpy as np

from fedlib.kernels import kernel

BLOCK = 128  # points that are compared with one centre before the next; they fit into the L1 cache


@kernel
def nearest_centres(X, centres, labels):
    """Write the nearest centre of each point into ``labels`` (n,); ties go to the first centre.

    Returns the compensated sum of the squared distances, whose error does not grow with n.

    The innermost loops run over the points of a block, one feature after the other, so that
    compilers turn them into vector instructions. Each distance is still added up in the order of
    the features, as in `find_nearest`, so the result has the same bits.
    """
    n, d = X.shape
    columns = np.zeros((d, BLOCK))
    distances, smallest, nearest = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, np.int64)
    total, compensation = 0.0, 0.0
    for first in range(0, n, BLOCK):
        size = min(BLOCK, n - first)
        for f in range(d):
            for i in range(size):
                columns[f, i] = X[first + i, f]
        smallest[:] = np.inf
        nearest[:] = 0
        for c in range(centres.shape[0]):
            distances[:] = 0.0
            for f in range(d):
                _add_squares(columns[f], centres[c, f], distances)
            _keep_smaller(distances, c, smallest, nearest)
        for i in range(size):
            labels[first + i] = nearest[i]
            total, compensation = add(total, compensation, smallest[i])
    return total + compensation


@kernel
def _add_squares(column, coordinate, distances):
    for i in range(column.size):
        difference = column[i] - coordinate
        distances[i] += difference * difference


@kernel
def _keep_smaller(distances, c, smallest, nearest):
    for i in range(distances.size):
        smaller = distances[i] < smallest[i]
        smallest[i] = distances[i] if smaller else smallest[i]
        nearest[i] = c if smaller else nearest[i]


@kernel
def sum_by_label(X, labels, sums, counts):
    """Add the points to the ``sums`` (k, d) and ``counts`` (k,) of their labels.

    Both arrays must be 0 at the start. The compensated sums hardly depend on the order of the rows.
    """
    compensation = np.zeros(sums.shape)
    for i in range(X.shape[0]):
        c = labels[i]
        counts[c] += 1
        for f in range(X.shape[1]):
            sums[c, f], compensation[c, f] = add(sums[c, f], compensation[c, f], X[i, f])
    sums += compensation


@kernel
def move_centres(X, centres, counts):
    """Move, for one point after the other, the nearest centre towards the point.

    ``counts`` (k,) contains the number of points of which each of the ``centres`` (k, d) is the
    mean.
    The point is added to the nearest centre's points. Both arrays change.
    """
    for i in range(X.shape[0]):
        nearest, _ = find_nearest(X, i, centres)
        n = counts[nearest]
        for f in range(X.shape[1]):
            centres[nearest, f] = (centres[nearest, f] * n + X[i, f]) / (n + 1)
        counts[nearest] = n + 1


@kernel
def find_nearest(X, i, centres):
    """Return the centre nearest to point ``i`` and the squared distance; ties go to the first."""
    nearest, smallest = 0, np.inf
    for c in range(centres.shape[0]):
        squared_distance = 0.0
        for f in range(X.shape[1]):
            difference = X[i, f] - centres[c, f]
            squared_distance += difference * difference
        if squared_distance < smallest:
            nearest, smallest = c, squared_distance
    return nearest, smallest


@kernel
def add(total, compensation, value):
    """Return ``total + value``, and ``compensation`` plus the rounding error of that sum."""
    new = total + value
    if abs(total) >= abs(value):
        compensation += (total - new) + value
    else:
        compensation += (value - new) + total
    return new, compensation
