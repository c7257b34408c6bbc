"""The server flows that choose the count of clusters, and what they return.

The k-distances of points, and their fraction in sparse cells, from the counts of cells.

The k-distance of a point is its distance to its k-th nearest other point. The server knows only the
count of points in each cell.

The knee of a curve: where it bends most.

Source: V. Satopää, J. Albrecht, D. Irwin, B. Raghavan, Finding a "kneedle" in a haystack: detecting
knee points in system behavior, ICDCS Workshops 2011. For a curve without noise, their knee is the
point that is farthest from the chord between both ends, after both axes are scaled to [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Any

import numpy as np
from scipy.spatial import cKDTree

from fedlib.clustering.density.cells import add_counts
from fedlib.clustering.kmeans.flow import KMeansModel, iterate
from fedlib.clustering.kmeans.messages import AssignCentres, MeasureInertia
from fedlib.clustering.mixtures.em import NOTHING_GIVEN
from fedlib.clustering.mixtures.flow import MixtureModel, fit_in_rounds
from fedlib.clustering.mixtures.messages import (
    AssignComponents,
    CovarianceType,
    MeasureLikelihood,
    parameters,
)
from fedlib.core.aggregation import Aggregation, exclude
from fedlib.core.array_fields import MAX_COUNT, Array, Checked, Index
from fedlib.core.array_types import Floats, Ints
from fedlib.core.messages import Message
from fedlib.core.protocol import Flow, Replies

BLOCK = 2**21  # neighbours that are searched at once
STEPS_PER_DOUBLING = 16  # of the cell size, in `sparse_fractions`


def k_distances(
    cells: Ints, counts: Ints, cell_size: float, min_samples: int
) -> tuple[Floats, Ints]:
    """Return the estimated k-distances of points in ascending order, and the count of points.

    Parameters
    ----------
    cells : array (n_cells, n_features) of int64
        The occupied cells, with coordinates within ±2**53.
    counts : array (n_cells,) of int64
        The count of points in each; more than ``min_samples`` together.
    cell_size : float
    min_samples : int
        The k of the k-distance, at least 1.

    Returns
    -------
    distances : array (n_distances,)
        The distinct distances. Each differs from the k-distance of each of its points by at most
        ``cell_size * sqrt(n_features)``, the diagonal of a cell.
    counts : array (n_distances,) of int64
        The count of points with each distance.

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


def find_knee(x: Floats, y: Floats) -> int:
    """Return the index of the point that is farthest below the chord between both ends.

    Parameters
    ----------
    x : array (n,)
        In ascending order, n > 0.
    y : array (n,)
        Monotone.

    Returns
    -------
    int
        Ties go to the first point. For a curve without a point below its chord, 0 if it descends
        and n - 1 if it ascends or is flat.

    Examples
    --------
    >>> import numpy as np
    >>> find_knee(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 3.0, 2.0, 1.0]))
    1
    """
    width, height = x[-1] - x[0], y[-1] - y[0]
    if height == 0 or width == 0:
        return len(x) - 1
    across, along = (x - x[0]) / width, (y - y[0]) / height  # both from 0 to 1
    below = across - along if height > 0 else along - across
    best = int(below.argmax())
    return len(x) - 1 if height > 0 and below[best] <= 0 else best


@dataclass(frozen=True)
class KMeansChoice(Checked):
    """The models of k-means for a range of numbers of clusters, and the suggested one.

    Attributes
    ----------
    n_clusters : array (n_models,) of int64
        The numbers of clusters, ascending.
    models : tuple of KMeansModel
        The model of each number.
    inertias : array (n_models,)
        The inertia of each model on the points of the same clients.
    best : int
        The index of the suggested model.
    """

    n_clusters: Annotated[Ints, Array("int64", ("models",), 1, MAX_COUNT)]
    models: tuple[KMeansModel, ...]
    inertias: Floats
    best: Annotated[int, Index("models")]


@dataclass(frozen=True)
class MixtureChoice(Checked):
    """The Gaussian mixtures for a range of numbers of components, and the suggested one.

    Attributes
    ----------
    n_components : array (n_models,) of int64
        The numbers of components, ascending.
    models : tuple of MixtureModel
        The mixture of each number.
    n_points : int
        The count of points whose likelihood was measured.
    log_likelihoods : array (n_models,)
        The log-likelihood of these points in each mixture.
    bic, aic : array (n_models,)
        Both criteria for each mixture; lower is better.
    best : int
        The index of the suggested mixture.
    """

    n_components: Annotated[Ints, Array("int64", ("models",), 1, MAX_COUNT)]
    models: tuple[MixtureModel, ...]
    n_points: int
    log_likelihoods: Floats
    bic: Floats
    aic: Floats
    best: Annotated[int, Index("models")]


def select_kmeans(
    n_clusters: Sequence[int], n_init: int, max_iter: int, tol: float, seed: int
) -> Flow[KMeansChoice]:
    """Return the server flow; for the other parameters see `KMeansSelection`."""
    models = []
    for k in n_clusters:
        models.append((yield from iterate(k, None, n_init, max_iter, tol, seed, Aggregation())))
    requests = [MeasureInertia(model.centres) for model in models]
    steps = yield from _of_same_clients(requests, lambda request, replies: {})
    inertias = np.array([fsum(reply.inertia for reply in step.values()) for step in steps])
    counts = np.array(n_clusters, np.int64)
    best = find_knee(counts.astype(np.float64), inertias)
    yield AssignCentres(models[best].centres)
    return KMeansChoice(counts, tuple(models), inertias, best)


def select_mixture(
    n_components: Sequence[int],
    criterion: str,
    covariance_type: CovarianceType,
    reg_covar: float,
    max_rounds: int,
    tol: float,
    random_state: Any,
) -> Flow[MixtureChoice]:
    """Return the server flow; for the other parameters see `GaussianMixtureSelection`."""
    models, start = [], NOTHING_GIVEN
    for k in n_components:
        model, history = yield from fit_in_rounds(
            k, "em", covariance_type, reg_covar, start, max_rounds, tol, 1, 1, random_state, ()
        )
        models.append(model)

    def contradictions(request: MeasureLikelihood, replies: Replies) -> dict[str, str]:
        found = {
            name: history.problem_of_likelihood(name, reply, request)
            for name, reply in replies.items()
        }
        return {name: problem for name, problem in found.items() if problem is not None}

    requests = [MeasureLikelihood(*parameters(m.mixture), covariance_type) for m in models]
    steps = yield from _of_same_clients(requests, contradictions)
    n_points = sum(reply.n_points for reply in steps[-1].values())
    if not n_points:
        raise ValueError("the clients have no points")
    totals = np.array([fsum(reply.log_likelihood for reply in step.values()) for step in steps])
    free = np.array([n_parameters(k, models[0].n_features, covariance_type) for k in n_components])
    bic, aic = free * math.log(n_points) - 2 * totals, 2 * free - 2 * totals
    best = int((bic if criterion == "bic" else aic).argmin())
    yield AssignComponents(*parameters(models[best].mixture), covariance_type)
    counts = np.array(n_components, np.int64)
    return MixtureChoice(counts, tuple(models), n_points, totals, bic, aic, best)


def n_parameters(n_components: int, n_features: int, covariance_type: CovarianceType) -> int:
    """Return the count of free parameters of a Gaussian mixture.

    Examples
    --------
    >>> n_parameters(2, 3, "full")
    19
    """
    triangle = n_features * (n_features + 1) // 2
    covariances = {
        "full": n_components * triangle,
        "tied": triangle,
        "diag": n_components * n_features,
        "spherical": n_components,
    }[covariance_type]
    return covariances + n_components * n_features + n_components - 1


def _of_same_clients(
    requests: Sequence[Message], contradictions: Callable[[Any, Replies], Mapping[str, str]]
) -> Flow[list[Replies]]:
    """Return the replies to each request, all from the same clients.

    If a client is lost in between, the others are asked again.
    """
    while True:
        steps = []
        for request in requests:
            replies = yield request
            replies = yield from exclude(replies, contradictions(request, replies))
            steps.append(replies)
        if all(set(replies) == set(steps[-1]) for replies in steps):
            return steps
