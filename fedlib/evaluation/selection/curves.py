"""The k-distances of points, and their fraction in sparse cells, from the counts of cells.

The k-distance of a point is its distance to its k-th nearest other point. The server knows only the
number of points in each cell.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial import cKDTree

from fedlib.clustering.density.cells import add_counts
from fedlib.core.array_types import Floats, Ints

BLOCK = 2**21  # neighbours that are searched at once
STEPS_PER_DOUBLING = 16  # of the cell size, in `sparse_fractions`


def k_distances(
    cells: Ints, counts: Ints, cell_size: float, min_samples: int
) -> tuple[Floats, Ints]:
    """Return the estimated k-distances of points in ascending order, and the number of points.

    Parameters
    ----------
    cells : array (n_cells, n_features) of int64
        The occupied cells, with coordinates within ±2**53.
    counts : array (n_cells,) of int64
        The number of points in each; more than ``min_samples`` together.
    cell_size : float
    min_samples : int
        The k of the k-distance, at least 1.

    Returns
    -------
    distances : array (n_distances,)
        The distinct distances. Each differs from the k-distance of each of its points by at most
        ``cell_size * sqrt(n_features)``, the diagonal of a cell.
    counts : array (n_distances,) of int64
        The number of points with each distance.

    Notes
    -----
    The estimate is the distance of the centres of the point's cell and of the first cell, in the
    order of these distances, up to which there are at least k other points. It is at least
    ``cell_size * sqrt(n_features / 6)``, the root of the mean squared distance of two points that
    are spread evenly over one cell.

    The time is O(n_cells * min_samples * log(n_cells)) for few features.

    Examples
    --------
    Three points in one cell, and one point two cells further. The second nearest other point of
    the first three is in their cell.

    >>> cells, counts = np.array([[0], [2]]), np.array([3, 1])
    >>> k_distances(cells, counts, 1.0, min_samples=2)
    (array([0.40824829, 2.        ]), array([3, 1]))
    """
    tree = cKDTree(cells.astype(np.float64))
    n_near = min(min_samples + 1, len(cells))  # no cell is empty
    nearest = np.empty(len(cells))
    step = max(1, BLOCK // n_near)
    for first in range(0, len(cells), step):
        block = slice(first, first + step)
        apart, rows = tree.query(tree.data[block], np.arange(1, n_near + 1))
        reached = np.cumsum(counts[rows], axis=1) > min_samples  # the point itself does not count
        nearest[block] = apart[np.arange(len(apart)), reached.argmax(axis=1)]
    whole = np.rint(np.square(nearest))  # so that equal distances are equal numbers
    squares, where = np.unique(np.maximum(whole, cells.shape[1] / 6), return_inverse=True)
    points = np.zeros(len(squares), np.int64)
    np.add.at(points, where, counts)
    return cell_size * np.sqrt(squares), points


def curve_ranks(counts: Ints) -> Floats:
    """Return the fraction of points up to and with each distance, from 0 for the first point to 1.

    Examples
    --------
    >>> curve_ranks(np.array([2, 3]))
    array([0.25, 1.  ])
    """
    ranks: Floats = (np.cumsum(counts) - 1.0) / max(1, counts.sum() - 1)
    return ranks


def sparse_fractions(
    cells: Ints, counts: Ints, cell_size: float, min_samples: int
) -> tuple[Floats, Floats]:
    """Return the fraction of points in sparse cells, for larger and larger cells.

    A cell is sparse if each of its points has fewer than ``min_samples`` other points in it.

    Parameters
    ----------
    cells, counts, cell_size, min_samples
        As in `k_distances`.

    Returns
    -------
    sizes : array (n_sizes,)
        Ascending multiples of ``cell_size``, at most 16 between one size and its double. The last
        is the first size for which no cell is sparse, or the extent of the points.
    fractions : array (n_sizes,)
        The smallest fraction for this size or a smaller one, so that it never rises.

    Examples
    --------
    >>> sparse_fractions(np.array([[0], [1], [2]]), np.array([3, 2, 1]), 1.0, min_samples=2)
    (array([1., 2., 3.]), array([0.5       , 0.16666667, 0.        ]))
    """
    span = int((cells.max(axis=0) - cells.min(axis=0)).max()) + 1
    n_doublings = math.log2(max(1, span))
    steps = 2 ** (np.arange(math.ceil(n_doublings * STEPS_PER_DOUBLING) + 1) / STEPS_PER_DOUBLING)
    sizes, fractions = [], []
    for multiple in np.unique(np.rint(steps).astype(np.int64)).tolist():
        _, sums = add_counts(cells // multiple, counts)
        sizes.append(multiple * cell_size)
        fractions.append(sums[sums <= min_samples].sum() / counts.sum())
        if fractions[-1] == 0:
            break
    return np.array(sizes), np.minimum.accumulate(np.array(fractions))
