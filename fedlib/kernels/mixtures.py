"""The densities of Gaussian components, and weighted sums of points, for mixtures.

Points are handled in chunks that stay in the L1 cache, one feature after the other: the innermost
loops run over the points of a chunk, so that compilers turn them into vector instructions.
"""

import math
from typing import NamedTuple

import numpy as np

from fedlib.kernels import kernel, reordering_kernel
from fedlib.kernels.centres import add, turn_into_columns

CHUNK = 128


class Densities(NamedTuple):
    """The components of a mixture."""

    means: np.ndarray  # (k, d)
    whitening: np.ndarray  # (k, d, d): lower triangles that turn differences into standard normals
    log_factors: np.ndarray  # (k,): logarithms of the weight times the largest density


class Moments(NamedTuple):
    """Weighted sums over points, for each component.

    Attributes
    ----------
    counts : array (k,)
        The sums of the points' weights.
    sums : array (k, d)
        The weighted sums of the points' differences from the component's centre. The sums of points
        about the origin would lose the digits of a cluster's variance if it is far away.
    products : array (k, d, d)
        The weighted sums of these differences' outer products.
    """

    counts: np.ndarray
    sums: np.ndarray
    products: np.ndarray


class _Chunk(NamedTuple):
    """The arrays of one chunk of points."""

    origin: np.ndarray  # (d,): zeros
    columns: np.ndarray  # (d, CHUNK): the points
    differences: np.ndarray  # (d, CHUNK): from one component's mean
    weighted: np.ndarray  # (d, CHUNK): differences times weights
    whitened: np.ndarray  # (CHUNK,)
    joint: np.ndarray  # (k, CHUNK): logarithms of weight times density, or weights
    largest: np.ndarray  # (CHUNK,)


@kernel
def whiten(matrices, whitening):
    """Write the inverse of the Cholesky factor of each matrix (k, d, d) into ``whitening``.

    Returns whether all are positive definite; only their lower triangles are read. For the many
    small matrices of EM on a few points, this is several times as fast as the calls of LAPACK.
    """
    k, d = matrices.shape[:2]
    factor = np.zeros((d, d))
    whitening[:] = 0.0
    for c in range(k):
        for j in range(d):
            for i in range(j, d):
                rest = matrices[c, i, j]
                for g in range(j):
                    rest -= factor[i, g] * factor[j, g]
                if i > j:
                    factor[i, j] = rest / factor[j, j]
                elif 0 < rest < np.inf:
                    factor[j, j] = math.sqrt(rest)
                else:
                    return False
        for i in range(d):
            whitening[c, i, i] = 1.0 / factor[i, i]
            for j in range(i):
                total = 0.0
                for g in range(j, i):
                    total += factor[i, g] * whitening[c, g, j]
                whitening[c, i, j] = -total / factor[i, i]
    return True


@kernel
def maximise_full(products, shift, n, reg_covar, covariances):
    """Write the covariance of each component about its new mean into ``covariances`` (k, d, d).

    ``products`` are about the old means; ``shift`` (k, d) leads from these to the new means, and
    ``n`` (k,) are the sums of the points' weights, above 0. The result has the bits of the same
    operations on whole arrays, which take several times as long for small matrices.
    """
    k, d = shift.shape
    for c in range(k):
        for f in range(d):
            for g in range(d):
                scatter = shift[c, f] * shift[c, g] * n[c]
                covariances[c, f, g] = (products[c, f, g] - scatter) / n[c]
        for f in range(d):
            for g in range(f + 1):  # the difference of large sums may be asymmetric by rounding
                mean = (covariances[c, f, g] + covariances[c, g, f]) / 2
                covariances[c, f, g] = covariances[c, g, f] = mean
            covariances[c, f, f] += reg_covar


@kernel
def log_joint(X, densities, joint):
    """Write the logarithm of weight times density of each point and component into (n, k)."""
    chunk = _new_chunk(densities.means)
    for first in range(0, X.shape[0], CHUNK):
        size = _fill(chunk, X, first)
        _fill_log_joint(chunk, densities, size)
        for i in range(min(CHUNK, X.shape[0] - first)):
            for c in range(joint.shape[1]):
                joint[first + i, c] = chunk.joint[c, i]


@kernel
def add_expected(X, weights, densities, moments):
    """Add the points, weighted by each component's responsibility, to the moments about the means.

    ``weights`` (n,) multiply the responsibilities and the log-likelihoods; None stands for 1, which
    numba compiles separately. Returns the log-likelihood of the points. A sum of n terms has a
    rounding error of at most ``(n / CHUNK + CHUNK) * 2**-53`` times the sum of their sizes.
    """
    chunk = _new_chunk(densities.means)
    total, compensation = 0.0, 0.0
    for first in range(0, X.shape[0], CHUNK):
        size = _fill(chunk, X, first)
        _fill_log_joint(chunk, densities, size)
        for i in range(min(CHUNK, X.shape[0] - first)):
            log_density = _turn_into_responsibilities(chunk.joint, i)
            if weights is not None:
                weight = weights[first + i]
                log_density = weight * log_density
                for c in range(chunk.joint.shape[0]):
                    chunk.joint[c, i] *= weight
            total, compensation = add(total, compensation, log_density)
        chunk.joint[:, min(CHUNK, X.shape[0] - first) : size] = 0.0
        _add_moments(chunk, densities.means, size, moments)
    _mirror(moments.products)
    return total + compensation


@kernel
def add_weighted(X, centres, weights, moments):
    """Add the points with their weights (n, k) to the moments about the centres (k, d)."""
    chunk = _new_chunk(centres)
    for first in range(0, X.shape[0], CHUNK):
        size = _fill(chunk, X, first)
        chunk.joint[:] = 0.0
        for i in range(min(CHUNK, X.shape[0] - first)):
            for c in range(centres.shape[0]):
                chunk.joint[c, i] = weights[first + i, c]
        _add_moments(chunk, centres, size, moments)
    _mirror(moments.products)


@kernel
def _new_chunk(means):
    k, d = means.shape
    one = np.zeros((3, d, CHUNK))
    few = np.zeros((2, CHUNK))
    return _Chunk(np.zeros(d), one[0], one[1], one[2], few[0], np.zeros((k, CHUNK)), few[1])


@kernel
def _fill(chunk, X, first):
    """Write the next points into the columns; return their number, up to a multiple of eight.

    The columns beyond the last point keep numbers of earlier points; their weights are 0.
    """
    points = X[first : first + CHUNK]
    turn_into_columns(points, chunk.origin, chunk.columns)
    return -(-points.shape[0] // 8) * 8


@kernel
def _fill_log_joint(chunk, densities, size):
    """Write the log joint densities of the points of a chunk.

    Every point has the same operations in the same order, so its result does not depend on the
    other points.
    """
    k, d = densities.means.shape
    whitened = chunk.whitened[:size]
    for c in range(k):
        joint = chunk.joint[c, :size]
        joint[:] = 0.0
        for f in range(d):
            _subtract(chunk.columns[f, :size], densities.means[c, f], chunk.differences[f])
            _combine(chunk.differences, densities.whitening[c, f], f + 1, whitened)
            _add_squares(whitened, joint)
        for i in range(size):
            joint[i] = densities.log_factors[c] - 0.5 * joint[i]


@kernel
def _subtract(column, number, differences):
    for i in range(column.size):
        differences[i] = column[i] - number


@kernel
def _combine(columns, factors, n, combined):
    """Write the sum of the first ``n`` columns times their factors."""
    combined[:] = 0.0
    for g in range(0, n - n % 4, 4):
        a, b, c, d = columns[g], columns[g + 1], columns[g + 2], columns[g + 3]
        for i in range(combined.size):
            total = combined[i] + factors[g] * a[i]
            total += factors[g + 1] * b[i]
            total += factors[g + 2] * c[i]
            combined[i] = total + factors[g + 3] * d[i]
    for g in range(n - n % 4, n):
        a = columns[g]
        for i in range(combined.size):
            combined[i] += factors[g] * a[i]


@kernel
def _add_squares(values, totals):
    for i in range(values.size):
        totals[i] += values[i] * values[i]


@kernel
def _turn_into_responsibilities(joint, i):
    """Replace a point's log joint densities by its responsibilities; return its log density."""
    largest = -np.inf
    for c in range(joint.shape[0]):
        largest = max(largest, joint[c, i])
    density = 0.0
    for c in range(joint.shape[0]):
        joint[c, i] = math.exp(joint[c, i] - largest)
        density += joint[c, i]
    for c in range(joint.shape[0]):
        joint[c, i] /= density
    return math.log(density) + largest


@kernel
def _add_moments(chunk, means, size, moments):
    """Add the points of a chunk to the moments; of the products, to the lower triangles."""
    differences, weighted = chunk.differences, chunk.weighted
    for c in range(means.shape[0]):
        weights = chunk.joint[c, :size]
        moments.counts[c] += _sum(weights)
        for f in range(means.shape[1]):
            _subtract(chunk.columns[f, :size], means[c, f], differences[f])
            _multiply(weights, differences[f], weighted[f])
            moments.sums[c, f] += _sum(weighted[f, :size])
            for g in range(f + 1):
                moments.products[c, f, g] += _dot(weighted[f, :size], differences[g])


@kernel
def _mirror(matrices):
    """Copy the lower triangles to the upper ones."""
    for c in range(matrices.shape[0]):
        for f in range(matrices.shape[1]):
            for g in range(f):
                matrices[c, g, f] = matrices[c, f, g]


@kernel
def _multiply(a, b, product):
    for i in range(a.size):
        product[i] = a[i] * b[i]


@reordering_kernel
def _sum(a):
    total = 0.0
    for i in range(a.size):
        total += a[i]
    return total


@reordering_kernel
def _dot(a, b):
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total
