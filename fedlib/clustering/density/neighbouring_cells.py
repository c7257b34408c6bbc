"""DBSCAN on counts per cell, up to a factor of ``1 + rho`` in the radius, as plain functions.

`fedlib.clustering.density.approximate` builds a federated protocol from them. A cell is a row of
integers, ``floor(x / side)``, as in `fedlib.clustering.density.cells`.

All that is known about a point is its cell, so two points whose cells differ by ``δ`` (whole
numbers per feature) can be as near as ``side * |max(0, |δ| - 1)|`` and as far apart as
``side * ||δ| + 1|``. Two cells are *near* each other if ``|δ| <= reach``, with ``m = 1 + 2**-11``,

    side = eps * rho / (2 * sqrt(d) * m)    and    reach = sqrt(d) * m * (1 + 2 / rho).

1. Points within ``eps`` of each other are in near cells: then ``|max(0, |δ| - 1)| <= eps / side``,
   so ``|δ| <= eps / side + sqrt(d) = sqrt(d) * (2 * m / rho + 1) <= reach``.
2. Points in near cells are within ``eps * (1 + rho)`` of each other: they are at most ``side *
   (reach + sqrt(d)) <= side * sqrt(d) * m * (2 + 2 / rho) = eps * (1 + rho)`` apart.

A cell is a *core cell* if the cells near it, including itself, contain at least ``min_samples``
points in total. Near core cells are in one cluster. By 1, the cell of a core point of DBSCAN(eps)
is a core cell, and core points within ``eps`` of each other share a cluster. By 2, all points in a
core cell are core points of DBSCAN(eps * (1 + rho)), and those in near core cells are connected
there. This is the guarantee of `fedlib.ApproximateDBSCAN`. The factor m covers the rounding of
``x / side``, which moves an edge of a cell by at most ``2**-13`` of its side while cell indices are
within ±`MAX_CELL`.

Source: J. Gan and Y. Tao, "DBSCAN revisited: mis-claim, un-fixability, and approximation", SIGMOD
2015. There the positions of the points are known, and cells are twice as wide.

Spans: the cells in which the clusters lie, from counts per cell with noise, as plain functions.

`fedlib.clustering.density.approximate` builds a federated protocol from them. Under differential
privacy the labels of single points cannot be published: a label would disclose too much about its
row [1]_. A span shows where a cluster is, and each site labels its own points with it.

Cells, their side and *near* cells are those of the rule above. With noise on all counts, empty
cells look like occupied ones, so all cells of the grid count. With a *margin* t, a cell is a *core
cell* if the noisy counts of the cells near it, including itself, sum to at least ``min_samples +
t``. Near core cells are in one span. If no noisy sum over near cells is wrong by more than t:

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
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import scipy
from numpy.typing import NDArray

from fedlib.clustering.density.cells import place_points
from fedlib.clustering.density.engine.dbscan import cluster, nearest_within
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.threads import check_n_jobs
from fedlib.kernels.grid import Grid, adjacent_pairs
from fedlib.kernels.range_search import find_heavy
from fedlib.protection.privacy import Privacy

MAX_CELL = 2**40  # the largest number of a cell for which the guarantee covers rounding
MIN_RHO = 1e-6  # then squared distances between near cells are exact in float64
MARGIN = 1 + 2.0**-11
MAX_ROWS = 2048  # near a cell; with more of them, distances between cells are cheaper than sums
MIN_NEAR = 1.0  # occupied cells near a cell, per row, below which comparisons are cheaper than sums
MAX_KEY = 2**62


def cell_side(eps: float, rho: float, n_features: int) -> float:
    """Return the side of the cells, just below ``rho * eps / (2 * sqrt(n_features))``.

    Examples
    --------
    >>> round(cell_side(eps=1.0, rho=0.5, n_features=4), 4)
    0.1249
    """
    return eps * rho / (2 * math.sqrt(n_features) * MARGIN)


def squared_reach(rho: float, n_features: int) -> int:
    """Return the largest squared distance between the numbers of two near cells.

    Examples
    --------
    >>> squared_reach(rho=0.5, n_features=4)
    100
    """
    return math.floor(n_features * (MARGIN * (1 + 2 / rho)) ** 2)


def label_core_cells(
    cells: Ints, counts: Ints, rho: float, min_samples: int, n_jobs: int | None = None
) -> Ints:
    """Return the cluster of each core cell, and -1 for the other cells.

    Parameters
    ----------
    cells : array (n_cells, n_features) of int64
        Distinct, sorted lexicographically and within ±`MAX_CELL`.
    counts : array (n_cells,) of int64
        The count of points in each cell, at least 0.
    rho : float
        From `MIN_RHO` to 1. The cells have the side `cell_side`.
    min_samples : int
        The smallest count of points near a core cell.
    n_jobs : int, optional
        As in `fedlib.clustering.density.engine.dbscan.cluster`.

    Returns
    -------
    array (n_cells,) of int64
        Clusters are numbered by their first core cell.

    Notes
    -----
    If the rows of near cells are not too many (with two features: if rho is at least 0.0014) and
    contain several occupied cells each, the time is at most proportional to the count of cells
    times the count of rows near a cell; cells in dense regions cost less. Otherwise, cells are
    compared one by one until a cell has enough points, as DBSCAN compares points.

    Examples
    --------
    With ``rho=1`` and one feature, cells are near each other if they differ by 3 or less.

    >>> cells = np.array([[0], [3], [6], [20]])
    >>> label_core_cells(cells, np.array([1, 1, 1, 9]), rho=1.0, min_samples=3)
    array([-1,  0, -1,  1])
    """
    # Half a unit above an integer, so that rounding cannot decide.
    reach = math.sqrt(squared_reach(rho, cells.shape[1]) + 0.5)
    core = _find_core(cells, counts, rho, min_samples, n_jobs)
    if core is None:
        _, core = cluster(cells, reach, min_samples, counts, n_jobs=n_jobs)
    labels = np.full(len(cells), -1)
    labels[core], _ = cluster(cells[core], reach, 1, n_jobs=n_jobs)
    return labels


def _find_core(
    cells: Ints, counts: Ints, rho: float, min_samples: int, n_jobs: int | None
) -> Bools | None:
    """Return which cells are core cells; None if sums over rows do not pay or keys do not fit."""
    grid = _index_rows(cells, squared_reach(rho, cells.shape[1]))
    if grid is None:
        return None
    n, n_threads = len(cells), check_n_jobs(n_jobs)
    totals = np.zeros(n + 1, np.int64)
    np.cumsum(counts, out=totals[1:])
    core = np.empty(n, bool)
    cuts = np.linspace(0, n, n_threads + 1).astype(np.int64)

    def find(first: int, stop: int) -> None:
        find_heavy(grid, totals, min_samples, first, stop, core)

    with ThreadPoolExecutor(n_threads) as threads:
        list(threads.map(find, cuts[:-1], cuts[1:]))
    return core


def _index_rows(cells: Ints, squared: int) -> Grid | None:
    """Return the keys of the cells and the rows near a cell, or None if sums would not pay."""
    d, reach = cells.shape[1], math.isqrt(squared)
    n_steps = (2 * reach + 1) ** (d - 1)
    if len(cells) == 0 or n_steps > 2 * MAX_ROWS:
        return None
    low, high = cells.min(axis=0), cells.max(axis=0)
    strides = [1]
    for length in (high - low)[:0:-1]:
        strides.insert(0, strides[0] * (int(length) + 1 + reach))
    if (int(high[0] - low[0]) + 1 + reach) * strides[0] >= MAX_KEY:
        return None
    steps = np.array(list(product(range(-reach, reach + 1), repeat=d - 1)), np.int64)
    steps = steps.reshape(n_steps, d - 1)
    left = squared - np.square(steps).sum(axis=1)
    steps, left = steps[left >= 0], left[left >= 0]
    nearest_first = np.argsort(-left, kind="stable")
    offsets = steps[nearest_first] @ np.array(strides[:-1], np.int64)
    reaches = np.sqrt(left[nearest_first]).astype(np.int64)
    n_near = len(cells) * (2 * reaches + 1).sum() / np.prod(high - low + 1.0)  # if evenly spread
    if n_near < MIN_NEAR * len(reaches):
        return None
    return Grid((cells - low) @ np.array(strides), offsets, reaches)


def place_near(X: Floats, eps: float, rho: float, cells: Ints, labels: Ints) -> Ints:
    """Return the cluster of each point: that of its core cell, else that of the nearest one, or -1.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    eps, rho : float
    cells : array (n_cells, n_features) of int64
        The core cells, distinct and sorted lexicographically.
    labels : array (n_cells,) of int64
        The cluster of each core cell.

    Returns
    -------
    array (n_points,) of int64
        A point in no core cell joins the core cell with the nearest centre, if the centre is within
        ``eps`` plus half a diagonal of a cell; ties go to the lexicographically smallest cell.

    Raises
    ------
    ValueError
        When the points and cells differ in the count of features, or a cell lies outside
        ±`fedlib.kernels.grid.MAX_CELL`.

    Notes
    -----
    Any point within ``eps`` of a point in a core cell joins a cluster, and a point that joins one
    is within ``eps`` plus a diagonal of all points in its core cell.

    Examples
    --------
    >>> cells, labels = np.array([[0], [20]]), np.array([0, 1])  # the side is just below 0.5
    >>> place_near(np.array([[0.2], [-0.9], [1.6], [9.1]]), 1.0, 1.0, cells, labels)
    array([ 0,  0, -1,  1])
    """
    d = X.shape[1]
    side = cell_side(eps, rho, d)
    placed = place_points(X, side, cells, labels, adjacency="none")
    others = np.flatnonzero(placed < 0)
    if len(others):
        edge = _edge(cells)
        reach = eps + MARGIN * math.sqrt(d) * side / 2
        nearest = nearest_within(X[others], (cells[edge] + 0.5) * side, reach)
        placed[others] = np.append(labels[edge], -1)[nearest]
    return placed


def _edge(cells: Ints) -> NDArray[np.intp]:
    """Return the indices of the cells that share a face with a cell not among them.

    The cell with the centre nearest to a point outside all cells is one of them: a cell with all
    2d neighbours has one that is nearer to the point.
    """
    d = cells.shape[1]
    pairs = adjacent_pairs(cells, np.eye(d, dtype=np.int64))
    return np.flatnonzero(np.bincount(pairs.ravel(), minlength=len(cells)) < 2 * d)


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
        The count of noises in each sum.
    n_sums : int
        The count of sums.

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
        As in `fedlib.clustering.density.neighbouring_cells.label_core_cells`.
    least : float
        The smallest noisy count of points near a core cell: ``min_samples`` plus the margin.
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
