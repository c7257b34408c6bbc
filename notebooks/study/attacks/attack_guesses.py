"""Where the rows of a client are, guessed from its replies.

Each guess takes a request and the reply to it, and returns an array with one guess per row.
"""

from itertools import pairwise

import numpy as np
from sklearn.neighbors import KDTree

from fedlib.clustering.density.neighbouring_cells import cell_side
from fedlib.clustering.mixtures.messages import ResponsibilitySums
from fedlib.clustering.mixtures.private import NoisyResponsibilitySums
from fedlib.protection.privacy.noise import from_unit
from fedlib.tables.summary.messages import from_key, sub_interval

# Guesses of points ------------------------------------------------------------------------------


def cell_centres(request, reply):
    """Guess that points are in the middle of their cells."""
    side = getattr(request, "cell_size", None)
    if side is None:
        side = cell_side(request.eps, request.rho, reply.n_features)
    return (reply.cells + 0.5) * side


def block_centres(request, reply):
    """Guess that points are in the middle of the occupied blocks of a bounded grid."""
    keys = request.keys if len(request.keys) else np.arange(request.n_blocks)
    occupied = keys[reply.counts > 0]
    blocks = np.stack(np.unravel_index(occupied, request.grid.blocks(request.side)), axis=1)
    return (request.low + (blocks + 0.5) * request.side) * request.cell_size


def fullest_cells(request, reply):
    """Guess the middle of the cells with the largest noisy counts, as many as there are points."""
    n_points = int(np.clip(np.rint(reply.counts.sum()), 1, len(reply.counts)))
    fullest = np.sort(np.argsort(-reply.counts, kind="stable")[:n_points])
    cells = np.stack(np.unravel_index(fullest, tuple(request.shape)), axis=1)
    return (request.low + cells + 0.5) * request.cell_size


def noisy_means(request, reply):
    """Guess the mean of each cluster or component from noisy sums of scaled points."""
    if isinstance(reply, NoisyResponsibilitySums):
        counts, sums = np.split(reply.moments[:, : 1 + request.means.shape[1]], [1], axis=1)
    else:
        counts, sums = reply.counts[:, np.newaxis], reply.sums
    filled = counts[:, 0] >= 1
    return from_unit(sums[filled] / counts[filled], request.bounds)


def cluster_means(request, reply):
    """Guess the mean of each cluster; that of a single point is the point."""
    filled = reply.counts > 0
    return reply.sums[filled] / reply.counts[filled][:, np.newaxis]


def component_means(request, reply):
    """Guess the mean of each component, and both points of a component that has only two."""
    if isinstance(reply, ResponsibilitySums):
        filled = reply.counts > 1e-6
        shift = reply.sums[filled] / reply.counts[filled][:, np.newaxis]
        return request.means[filled] + shift
    return reply.means


def both_points(means, covariances):
    """Return the two points behind each mean and covariance matrix: mean ± the half distance.

    Two points at mean ± v have the covariance matrix v·vᵀ, so its largest eigenvalue is the square
    of the length of v, and the eigenvector its direction.
    """
    values, vectors = np.linalg.eigh(covariances)
    half = vectors[..., -1] * np.sqrt(values[..., -1])[:, np.newaxis]
    return np.concatenate([means + half, means - half])


def moved_points(replies):
    """Return points that moved from one cluster to another between two sums of the same rows.

    If exactly one point has left one cluster and joined another, the changes of both sums are the
    point, with opposite signs.

    Parameters
    ----------
    replies : list of ClusterSums
    """
    found = [np.empty((0, replies[0].sums.shape[-1]))]
    for before, after in pairwise(replies):
        if before.sums.shape != after.sums.shape:
            continue
        for counts, sums in zip(
            after.counts - before.counts, after.sums - before.sums, strict=True
        ):
            gained, lost = sums[counts == 1], -sums[counts == -1]
            if len(gained) and len(lost):
                distance, _ = KDTree(lost).query(gained)
                found.append(gained[distance[:, 0] < 1e-9])
    return np.concatenate(found)


# Guesses of values: pairs of a column's number and a value ---------------------------------------

COLUMN = 1e6  # a column's number is multiplied by this, so that values of others are never near


def as_values(X):
    """Return all values of a table as rows (column, value)."""
    columns = np.repeat(COLUMN * np.arange(X.shape[1]), len(X))
    return np.column_stack([columns, X.T.ravel()])


def pairs(columns, values):
    """Return guesses of values as rows (column, value)."""
    return np.column_stack([COLUMN * np.asarray(columns), values])


def extremes(request, reply):
    """Guess the smallest and the largest value of each column."""
    columns = np.tile(request.columns, 2)
    return pairs(columns, np.concatenate([reply.minima, reply.maxima]))


def bin_middles(request, reply):
    """Guess the middle of each occupied part of an interval."""
    rows, bins = np.nonzero(reply.counts)
    middles = []
    for row, i in zip(rows.tolist(), bins.tolist(), strict=True):
        ends = sub_interval(int(request.low[row]), int(request.high[row]), request.n_bins, i)
        middles.append(sum(map(from_key, ends)) / 2)
    return pairs(request.columns[rows], middles)


def noisy_bin_middles(request, reply):
    """Guess the middle of each bin whose noisy count is at least 1."""
    n_columns, n_bins = request.bounds.shape[1], request.n_bins
    counts = reply.values[1:].reshape(n_columns, 3 + n_bins)[:, 3:]
    columns, bins = np.nonzero(counts >= 1)
    low, high = request.bounds
    return pairs(columns, low[columns] + (bins + 0.5) * ((high - low) / n_bins)[columns])


def buckets(request, reply):
    """Guess the middle of each occupied bucket, which is an interval of float32 numbers."""
    shift = 32 - request.depth
    low = reply.keys.astype(np.uint64) << np.uint64(shift)
    ends = []
    for key in (low, low + np.uint64(2**shift - 1)):
        key = key.astype(np.uint32)
        sign = np.uint32(2**31)
        ends.append(np.where(key & sign, key ^ sign, ~key).view(np.float32))
    columns = np.repeat(np.arange(len(reply.sizes)), reply.sizes)
    return pairs(columns, np.mean(ends, axis=0))


def probabilities(request, reply):
    """Guess the middle of each occupied bin of the probabilities."""
    bins = np.flatnonzero(reply.counts.sum(axis=0))
    return pairs(np.zeros(len(bins)), (bins + 0.5) / reply.counts.shape[1])


def probabilities_of_the_last_class(request, reply):
    """Guess the middle of each bin of the last class whose count is at least 1."""
    counts = request.parts(reply).counts[-1].sum(axis=0)
    bins = np.flatnonzero(counts >= 1)
    return pairs(np.zeros(len(bins)), (bins + 0.5) / request.n_bins)
