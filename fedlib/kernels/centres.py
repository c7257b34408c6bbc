"""Centres of points: the nearest centre, sums and counts per centre, and the update of centres.

Where a function takes ``weights`` (n,), None stands for a weight of 1 per point. Numba compiles
both cases separately, so unweighted points cost what they cost without this argument.

Sums are compensated: A. Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher
Summen, ZAMM 54, 1974.
"""

from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel, reordering_kernel

BLOCK = 256  # points that are compared with one centre before the next; they fit into the L1 cache
FEW = 6  # up to so many features, comparing distances is faster than comparing scores
PART = 4096  # rows whose squares are added at once
ROUNDING = 2.0**-53
SMALLEST = 1e-300  # above the rounding errors of products of tiny numbers


@kernel
def find_mean_and_squares(X, weights, mean, squares):
    """Write the mean of each feature (d,), and add the squares of the differences from it.

    ``squares`` (d,) must be 0 at the start. It is added up in parts of ``PART`` rows, which keeps
    rounding errors small.
    """
    n, d = X.shape
    mean[:] = 0.0
    total = float(n)
    if weights is not None:
        total = weights.sum()
    for i in range(n):
        for f in range(d):
            if weights is None:
                mean[f] += X[i, f]
            else:
                mean[f] += weights[i] * X[i, f]
    mean /= total if total > 0.0 else 1.0
    part = np.empty(d)
    for first in range(0, n, PART):
        part[:] = 0.0
        for i in range(first, min(first + PART, n)):
            for f in range(d):
                difference = X[i, f] - mean[f]
                if weights is None:
                    part[f] += difference * difference
                else:
                    part[f] += weights[i] * (difference * difference)
        squares += part


class Nearest(NamedTuple):
    """The nearest centre of each point of a block."""

    centres: np.ndarray  # (BLOCK,)
    distances: np.ndarray  # (BLOCK,): squared, added up in the order of the features


@kernel
def nearest_centres(X, centres, labels):
    """Write the nearest centre of each point into ``labels`` (n,); ties go to the first centre.

    Returns the compensated sum of the squared distances, whose error does not grow with n.
    """
    search, nearest = _prepare(centres), _nothing()
    total, compensation = 0.0, 0.0
    for first in range(0, X.shape[0], BLOCK):
        block = X[first : first + BLOCK]
        _find_nearest_of_block(block, centres, search, nearest)
        labels[first : first + BLOCK] = nearest.centres[: block.shape[0]]
        total, compensation = _add_distances(total, compensation, block.shape[0], None, nearest)
    return total + compensation


@kernel
def sum_nearest(X, weights, centres, sums, counts):
    """Add each point to the ``sums`` (k, d) and ``counts`` (k,) of its nearest centre.

    Both arrays must be 0 at the start; ``counts`` has sums of weights, if there are weights. The
    unweighted sums are those of `nearest_centres` and `sum_by_label`.

    Returns the sum of the squared distances. It is a function of the centres and of sums of each
    cluster about its own mean (see `fedlib.core.points`), so that its last bits depend on single
    points no more than those sums do.
    """
    search, nearest = _prepare(centres), _nothing()
    compensation = np.zeros(sums.shape)
    labels = np.empty(X.shape[0], np.int32)
    for first in range(0, X.shape[0], BLOCK):
        block = X[first : first + BLOCK]
        _find_nearest_of_block(block, centres, search, nearest)
        labels[first : first + BLOCK] = nearest.centres[: block.shape[0]]
        if weights is None:
            _add_points(block, nearest.centres, sums, compensation, counts)
        else:
            part = weights[first : first + BLOCK]
            _add_weighted_points(block, part, nearest.centres, sums, compensation, counts)
    return _squares_about(X, weights, labels, centres, sums, compensation, counts)


@kernel
def _squares_about(X, weights, labels, centres, sums, compensation, counts):
    """Round the sums, and return that of squares about the centres, moved from the means."""
    k, d = centres.shape
    means, moved, rest = np.zeros((k, d)), 0.0, 0.0
    for c in range(k):
        for f in range(d):
            before = sums[c, f]
            sums[c, f] += compensation[c, f]
            if counts[c] > 0:
                means[c, f] = sums[c, f] / counts[c]
            product, error = multiply(float(counts[c]), means[c, f])
            low = (before - sums[c, f]) + compensation[c, f]
            remainder = ((sums[c, f] - product) - error) + low
            shift = means[c, f] - centres[c, f]
            moved, rest = add(moved, rest, shift * (2.0 * remainder + counts[c] * shift))
    for i in range(X.shape[0]):  # written out, since a call of `_squared_distance` takes longer
        c, square = labels[i], 0.0
        for f in range(d):
            difference = X[i, f] - means[c, f]
            square += difference * difference
        moved, rest = add(moved, rest, square if weights is None else weights[i] * square)
    return max(moved + rest, 0.0)


@kernel
def sum_by_label(X, labels, sums, counts):
    """Add the points to the ``sums`` (k, d) and ``counts`` (k,) of their labels.

    Both arrays must be 0 at the start. The compensated sums hardly depend on the order of the rows.
    """
    compensation = np.zeros(sums.shape)
    _add_points(X, labels, sums, compensation, counts)
    sums += compensation


@kernel
def _add_points(X, labels, sums, compensation, counts):
    for i in range(X.shape[0]):
        c = labels[i]
        counts[c] += 1
        for f in range(X.shape[1]):
            sums[c, f], compensation[c, f] = add(sums[c, f], compensation[c, f], X[i, f])


@kernel
def _add_weighted_points(X, weights, labels, sums, compensation, counts):
    for i in range(X.shape[0]):
        c, weight = labels[i], weights[i]
        counts[c] += weight
        for f in range(X.shape[1]):
            added, error = multiply(weight, X[i, f])
            sums[c, f], compensation[c, f] = add(sums[c, f], compensation[c, f] + error, added)


@kernel
def _add_distances(total, compensation, size, weights, nearest):
    for i in range(size):
        distance = nearest.distances[i]
        if weights is not None:
            distance = weights[i] * distance
        total, compensation = add(total, compensation, distance)
    return total, compensation


class _Search(NamedTuple):
    """The centres, and the arrays of the points that are compared with them."""

    shift: np.ndarray  # (d,): subtracted from points and centres, so that numbers are small
    factors: np.ndarray  # (k, d): -2 times the centres; k is even and d a multiple of 4
    squares: np.ndarray  # (k,): the squared lengths of the centres
    columns: np.ndarray  # (d, BLOCK): the points
    lengths: np.ndarray  # (BLOCK,): the squared lengths of the points
    scores: np.ndarray  # (BLOCK,)
    others: np.ndarray  # (BLOCK,): the scores of the next centre
    smallest: np.ndarray  # (BLOCK,)
    second: np.ndarray  # (BLOCK,)


@kernel
def _nothing():
    return Nearest(np.zeros(BLOCK, np.int64), np.zeros(BLOCK))


@kernel
def _prepare(centres):
    k, d = centres.shape
    shift = np.zeros(d)
    for c in range(k if d > FEW else 0):
        shift += centres[c] / k
    # A centre that is infinitely far away and features of 0 fill up groups of two and of four.
    factors, squares = np.zeros((k + k % 2, d + -d % 4)), np.zeros(k + k % 2)
    squares[k:] = np.inf
    for c in range(k):
        for f in range(d):
            difference = centres[c, f] - shift[f]
            factors[c, f] = -2.0 * difference
            squares[c] += difference * difference
    columns, rest = np.zeros((d + -d % 4, BLOCK)), np.empty((5, BLOCK))
    return _Search(shift, factors, squares, columns, rest[0], rest[1], rest[2], rest[3], rest[4])


@kernel
def _find_nearest_of_block(X, centres, search, nearest):
    """Write the nearest centre of each point, with the same bits as `find_nearest`."""
    d = X.shape[1]
    turn_into_columns(X, search.shift, search.columns)
    if d <= FEW:
        _compare_distances(centres, search, nearest)
    else:
        _compare_scores(X, centres, search, nearest)


@kernel
def turn_into_columns(X, shift, columns):
    """Write the points of a block, minus the shift, one feature after the other.

    Groups of eight points are one vector of a column and are read only once from memory.
    """
    n, d = X.shape
    for first in range(0, n - 7, 8):
        for f in range(d):
            for i in range(8):
                columns[f, first + i] = X[first + i, f] - shift[f]
    for i in range(n - n % 8, n):
        for f in range(d):
            columns[f, i] = X[i, f] - shift[f]


@kernel
def _compare_distances(centres, search, nearest):
    """Compare the points of a block with one centre after the other."""
    labels, smallest, distances = nearest.centres, nearest.distances, search.scores
    labels[:] = 0
    smallest[:] = np.inf
    for c in range(centres.shape[0]):
        distances[:] = 0.0
        for f in range(centres.shape[1]):
            coordinate = centres[c, f]
            for i in range(BLOCK):
                difference = search.columns[f, i] - coordinate
                distances[i] += difference * difference
        for i in range(BLOCK):
            smaller = distances[i] < smallest[i]
            smallest[i] = distances[i] if smaller else smallest[i]
            labels[i] = c if smaller else labels[i]


@kernel
def _compare_scores(X, centres, search, nearest):
    """Compare ``squares - 2 * point @ centre``: a squared distance without the point's square.

    A score needs one multiplication per feature. If the two smallest of a point differ by less than
    their rounding errors can be, `find_nearest` decides.
    """
    n, d = X.shape
    _score(search, nearest.centres)
    # A score has at most 2 d + 3 roundings of terms that together are at most twice the sum of both
    # squared lengths; the differences from the shift and `find_nearest` round as many again.
    factor, largest = 32.0 * (d + 4) * ROUNDING, search.squares[: centres.shape[0]].max()
    for i in range(n):
        error = factor * (search.lengths[i] + largest) + SMALLEST
        if search.second[i] - search.smallest[i] > error:
            nearest.distances[i] = _squared_distance(X, i, centres, nearest.centres[i])
        else:  # also if a number is not finite
            nearest.centres[i], nearest.distances[i] = find_nearest(X, i, centres)


@reordering_kernel
def _score(search, nearest):
    """Write each point's centre of the smallest score, that score and the second smallest.

    Two centres are compared at once, so that the points are read half as often.
    """
    columns, scores, others = search.columns, search.scores, search.others
    lengths, smallest, second = search.lengths, search.smallest, search.second
    d = columns.shape[0]
    lengths[:] = 0.0
    for f in range(d):
        for i in range(BLOCK):
            lengths[i] += columns[f, i] * columns[f, i]
    smallest[:] = np.inf
    second[:] = np.inf
    nearest[:] = 0
    for c in range(0, search.squares.size, 2):
        of_one, of_other = search.factors[c], search.factors[c + 1]
        scores[:], others[:] = search.squares[c], search.squares[c + 1]
        for f in range(0, d, 4):
            a, b = of_one[f : f + 4], of_other[f : f + 4]
            for i in range(BLOCK):
                x, y, z, w = columns[f, i], columns[f + 1, i], columns[f + 2, i], columns[f + 3, i]
                scores[i] += x * a[0] + y * a[1] + z * a[2] + w * a[3]
                others[i] += x * b[0] + y * b[1] + z * b[2] + w * b[3]
        for i in range(BLOCK):
            one, other, best = scores[i], others[i], smallest[i]
            low, high = min(one, other), max(one, other)
            second[i] = min(second[i], min(high, max(low, best)))
            smallest[i] = min(low, best)
            closer = c if one <= other else c + 1
            nearest[i] = closer if low < best else nearest[i]


@kernel
def move_centres(X, weights, centres, counts, labels):
    """Move, for one point after the other, the nearest centre towards the point.

    ``counts`` (k,) contains the number, or the weight, of the points of which each of the
    ``centres`` (k, d) is the mean. The point is added to the nearest centre's points. Both arrays
    change, and ``labels`` (n,) becomes the nearest centre of each point.
    """
    for i in range(X.shape[0]):
        nearest, _ = find_nearest(X, i, centres)
        labels[i] = nearest
        n = counts[nearest]
        if weights is None:
            for f in range(X.shape[1]):
                centres[nearest, f] = (centres[nearest, f] * n + X[i, f]) / (n + 1)
            counts[nearest] = n + 1
        else:
            total = n + weights[i]
            for f in range(X.shape[1]):
                centres[nearest, f] = (centres[nearest, f] * n + weights[i] * X[i, f]) / total
            counts[nearest] = total


@kernel
def find_nearest(X, i, centres):
    """Return the centre nearest to point ``i`` and the squared distance; ties go to the first."""
    nearest, smallest = 0, np.inf
    for c in range(centres.shape[0]):
        squared_distance = _squared_distance(X, i, centres, c)
        if squared_distance < smallest:
            nearest, smallest = c, squared_distance
    return nearest, smallest


@kernel
def _squared_distance(X, i, centres, c):
    total = 0.0
    for f in range(X.shape[1]):
        difference = X[i, f] - centres[c, f]
        total += difference * difference
    return total


@kernel
def add(total, compensation, value):
    """Return ``total + value``, and ``compensation`` plus the rounding error of that sum.

    The error is computed without a comparison of sizes: D. Knuth, The Art of Computer Programming,
    volume 2, section 4.2.2.
    """
    new = total + value
    added = new - total
    return new, compensation + ((total - (new - added)) + (value - added))


@kernel
def multiply(a, b):
    """Return the product of two numbers, and its rounding error.

    T. J. Dekker, A floating-point technique for extending the available precision, Numerische
    Mathematik 18, 1971.
    """
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


@kernel
def _halves(value):
    scaled = 134217729.0 * value  # 2**27 + 1
    high = scaled - (scaled - value)
    return high, value - high
