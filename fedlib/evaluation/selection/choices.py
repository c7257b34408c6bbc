"""The server flows that choose the number of clusters, and what they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Any

import numpy as np

from fedlib.clustering.kmeans.flow import KMeansModel, iterate
from fedlib.clustering.kmeans.messages import AssignCentres, MeasureInertia
from fedlib.clustering.mixtures.covariances import CovarianceType
from fedlib.clustering.mixtures.flow import MixtureModel, fit_in_rounds
from fedlib.clustering.mixtures.messages import AssignComponents, MeasureLikelihood, parameters
from fedlib.clustering.mixtures.start import NOTHING_GIVEN
from fedlib.core.aggregation import Aggregation
from fedlib.core.agreement import exclude
from fedlib.core.array_fields import MAX_COUNT, Array, Checked, Index
from fedlib.core.array_types import Floats, Ints
from fedlib.core.messages import Message
from fedlib.core.protocol import Flow, Replies
from fedlib.evaluation.selection.knee import find_knee


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
        The number of points whose likelihood was measured.
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
    """Return the number of free parameters of a Gaussian mixture.

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
