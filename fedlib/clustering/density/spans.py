"""Spans: the cells in which the clusters lie, from counts per cell with noise, as plain functions.

`fedlib.clustering.density.approximate` builds a federated protocol from them. Under differential
privacy the labels of single points cannot be published: a label would disclose too much about its
row [1]_. A span shows where a cluster is, and each site labels its own points with it.

Cells, their side and *near* cells are those of `fedlib.clustering.density.near_cells`. With noise
on all counts, empty cells look like occupied ones, so all cells of the grid count. With a *margin*
t, a cell is a *core cell* if the noisy counts of the cells near it, including itself, sum to at
least ``min_samples + t``. Near core cells are in one span. If no noisy sum over near cells is wrong
by more than t:

1. The core points of a cluster of DBSCAN with ``eps`` and ``min_samples + 2 * t`` are in core cells
   of one span: the sum around the cell of such a point is at least ``min_samples + 2 * t``, so the
   noisy one is at least ``min_samples + t``. Points within ``eps`` are in near cells.
2. The points in a span and those near its core cells are core points of one cluster of DBSCAN with
   ``3 * eps * (1 + rho)`` and ``min_samples``: the points near a core cell are at least
   ``min_samples``, and at most ``2 * eps * (1 + rho)`` apart. A point near a core cell and one near
   another core cell near the first are at most ``3 * eps * (1 + rho)`` apart.

The factor 3 is the price of not knowing which cells are empty: two clusters can be joined by a
place between them that has enough points of both around it.

References
----------
.. [1] Y. Qiu, K. Yi, Approximate DBSCAN under differential privacy, 2025, arXiv 2508.08749.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from fedlib.clustering.density.engine.dbscan import cluster
from fedlib.clustering.density.near_cells import squared_reach
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.protection.privacy import Privacy

FAILURE = 0.05  # the probability that a noisy sum is wrong by more than the margin


def ball_of_cells(shape: tuple[int, ...], rho: float) -> Bools:
    """Return which cells around the middle one are near it, cut to the size of a grid.

    Examples
    --------
    With one feature and ``rho=1``, cells up to 3 apart are near each other.

    >>> ball_of_cells((100,), rho=1.0).sum(), ball_of_cells((2,), rho=1.0).sum()
    (np.int64(7), np.int64(3))
    """
    squared = squared_reach(rho, len(shape))
    reaches = [min(math.isqrt(squared), n - 1) for n in shape]
    steps = np.ix_(*[np.arange(-reach, reach + 1) ** 2 for reach in reaches])
    near: Bools = sum(steps, np.zeros((), np.int64)) <= squared
    return near


def sum_near(counts: Floats, rho: float) -> Floats:
    """Return the sum of the counts of the cells near each cell.

    Parameters
    ----------
    counts : array (n_1, ..., n_d)
        The counts of all cells of a grid, with any sign.
    rho : float

    Returns
    -------
    array (n_1, ..., n_d) of float64

    Notes
    -----
    The time does not depend on ``rho``: a million cells take a quarter of a second. Rounding is
    relative to the largest sum, and far below any noise.

    Examples
    --------
    >>> sum_near(np.array([0.0, 1.0, 0.0, 0.0, 0.0, 2.0]), rho=1.0).round(9)
    array([1., 1., 3., 3., 3., 2.])
    """
    near: Floats = scipy.signal.fftconvolve(counts, ball_of_cells(counts.shape, rho), mode="same")
    return near


def noise_margin(scale: float, privacy: Privacy, n_noises: int, n_sums: int) -> float:
    """Return the bound of all sums of noise, which fails with a probability of at most `FAILURE`.

    Parameters
    ----------
    scale : float
        The scale of each noise, as `fedlib.protection.privacy.noise_scale` returns it.
    privacy : Privacy
        With ``rho`` the noise is Gaussian, with ``epsilon`` it is Laplace noise.
    n_noises : int
        The number of noises in each sum.
    n_sums : int
        The number of sums.

    Notes
    -----
    The probabilities of the single sums, in both directions, are added up (union bound). For
    Laplace noise, each is Chernoff's bound.

    Examples
    --------
    >>> round(noise_margin(1.0, Privacy(rho=0.5), n_noises=1, n_sums=1), 2)
    1.96
    >>> round(noise_margin(1.0, Privacy(epsilon=1.0), n_noises=100, n_sums=1), 1)
    38.8
    """
    log_level = math.log(FAILURE / 2 / n_sums)
    if privacy.rho:
        return float(scale * math.sqrt(n_noises) * scipy.stats.norm.isf(math.exp(log_level)))

    def excess(x: float) -> float:
        """Return the logarithm of the bound for x scales, less the one that is wanted."""
        u = (math.hypot(n_noises, x) - n_noises) / x
        return -u * x - n_noises * math.log1p(-u * u) - log_level

    most = 1.0
    while excess(most) > 0:
        most *= 2
    return float(scale * scipy.optimize.brentq(excess, 1e-9, most))


def find_spans(
    counts: Floats, rho: float, least: float, n_jobs: int | None = None
) -> tuple[Ints, Ints]:
    """Return the core cells of a grid, as places within it, and the span of each.

    Parameters
    ----------
    counts : array (n_1, ..., n_d)
        The counts of all cells.
    rho : float
        As in `fedlib.clustering.density.near_cells.label_core_cells`.
    least : float
        The smallest noisy number of points near a core cell: ``min_samples`` plus the margin.
    n_jobs : int, optional
        As in `fedlib.clustering.density.engine.dbscan.cluster`.

    Returns
    -------
    places : array (n_cells, d) of int64
        Sorted lexicographically.
    labels : array (n_cells,) of int64
        Spans are numbered by their first cell.

    Examples
    --------
    Cells are near each other if they differ by 3 or less.

    >>> counts = np.array([5.1, -0.3, 0.2, 0.0, 0.1, -0.2, 0.0, 0.1, 0.0, -0.1, 0.2, 4.8])
    >>> places, labels = find_spans(counts, rho=1.0, least=4.0)
    >>> places.ravel(), labels
    (array([ 0,  1,  2,  3,  8,  9, 10, 11]), array([0, 0, 0, 0, 1, 1, 1, 1]))
    """
    places = np.argwhere(sum_near(counts, rho) >= least).astype(np.int64)
    reach = math.sqrt(squared_reach(rho, counts.ndim) + 0.5)  # so that rounding cannot decide
    labels, _ = cluster(places, reach, 1, n_jobs=n_jobs)
    return places, labels
