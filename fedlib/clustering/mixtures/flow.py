"""The server's flow of federated Gaussian mixtures, and the model that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Any

import numpy as np
import sklearn
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from fedlib.clustering.mixtures.checks import PointsHistory, agree_on_magnitude, few_points
from fedlib.clustering.mixtures.em import Moments, Start, assign_components, maximise
from fedlib.clustering.mixtures.messages import (
    MATRICES,
    SINGULAR_ADVICE,
    AssignComponents,
    CovarianceType,
    FitMixture,
    ImprovedMixture,
    ImproveMixture,
    ImproveWeightedMixture,
    IntroducePoints,
    Mixture,
    ResponsibilitySums,
    SumResponsibilities,
    SumWeightedResponsibilities,
    covariance_shape,
    min_points,
    parameters,
    precisions,
    sklearn_shape,
)
from fedlib.core.aggregation import NoMinority, agree_on_features, exclude, settle
from fedlib.core.array_types import Floats, Ints
from fedlib.core.column_names import check_names
from fedlib.core.messages import MessageError
from fedlib.core.parameters import check_option
from fedlib.core.protocol import Flow, Reject, Replies

WORSE = 1.0  # of a mean log-likelihood: more than averages of similar clients lose
HIDING_RATIO = 2.0**16  # of coordinates: in a sum, the squares of the smaller ones lose 32 bits


@dataclass(frozen=True)
class MixtureModel:
    """The fitted mixture and how the rounds went.

    Attributes
    ----------
    mixture : Mixture
    log_likelihoods : list of float
        The mean log-likelihood of all clients' points at the start of each round.
    converged : bool
        Whether the rounds stopped by ``tol``.
    reg_covar, tol, max_rounds : float, float, int
        The parameters of the fit, which `to_sklearn` passes on.
    """

    mixture: Mixture
    log_likelihoods: list[float]
    converged: bool
    reg_covar: float
    tol: float
    max_rounds: int

    @property
    def n_features(self) -> int:
        """The count of features of the points."""
        return int(self.mixture.means.shape[1])

    def place(self, X: Floats) -> Ints:
        """Return the most probable component of each point (n_points, n_features).

        Raises
        ------
        ValueError
            When the points have a different count of features.
        """
        if X.shape[1] != self.n_features:
            raise ValueError(
                f"X must have the {self.n_features} features of the mixture, got {X.shape[1]}"
            )
        return assign_components(X, self.mixture)

    def as_start(self, n_components: int, covariance_type: str) -> Start:
        """Return the mixture as the first one of another fit.

        Raises
        ------
        ValueError
            When the fit has another count of components or kind of covariances.
        """
        kind = {"n_components": n_components, "covariance_type": covariance_type}
        own = len(self.mixture.means), self.mixture.covariance_type
        for (name, got), value in zip(kind.items(), own, strict=True):
            if got != value:
                raise ValueError(
                    f"{name} must be {value!r}, that of the mixture that warm_start continues, or"
                    f" warm_start must be False; got {got!r}"
                )
        return Start(*parameters(self.mixture))

    def to_sklearn(self) -> sklearn.mixture.GaussianMixture:
        """Return a fitted `sklearn.mixture.GaussianMixture` with copies of the arrays."""
        weights, means, covariances = parameters(self.mixture)
        covariance_type = self.mixture.covariance_type
        model = sklearn.mixture.GaussianMixture(
            len(weights),
            covariance_type=covariance_type,
            tol=self.tol,
            reg_covar=self.reg_covar,
            max_iter=self.max_rounds,
        )
        model.weights_, model.means_ = weights.copy(), means.copy()
        model.covariances_ = sklearn_shape(covariances, covariance_type).copy()
        factors, inverses = precisions(covariances, covariance_type)
        model.precisions_cholesky_ = sklearn_shape(factors, covariance_type)
        model.precisions_ = sklearn_shape(inverses, covariance_type)
        model.converged_, model.n_iter_ = self.converged, len(self.log_likelihoods)
        model.lower_bounds_ = list(self.log_likelihoods)
        model.lower_bound_ = model.lower_bounds_[-1]
        model.n_features_in_ = self.n_features
        return model


def federated_gaussian_mixture(
    n_components: int,
    method: str,
    covariance_type: CovarianceType,
    reg_covar: float,
    start: Start,
    max_rounds: int,
    tol: float,
    max_local_iter: int,
    n_init: int,
    random_state: Any,
    names: Sequence[str],
) -> Flow[MixtureModel]:
    """Return the server's flow.

    ``start`` comes from `fedlib.clustering.mixtures.em.given_start`. ``names`` are those of the
    columns of the mixture that the fit continues, if they are known. For the other parameters see
    `FederatedGaussianMixture`.
    """
    model, _ = yield from fit_in_rounds(
        n_components,
        method,
        covariance_type,
        reg_covar,
        start,
        max_rounds,
        tol,
        max_local_iter,
        n_init,
        random_state,
        names,
    )
    yield AssignComponents(*parameters(model.mixture), covariance_type)
    return model


def fit_in_rounds(
    n_components: int,
    method: str,
    covariance_type: CovarianceType,
    reg_covar: float,
    start: Start,
    max_rounds: int,
    tol: float,
    max_local_iter: int,
    n_init: int,
    random_state: Any,
    names: Sequence[str],
) -> Flow[tuple[MixtureModel, PointsHistory]]:
    """Return the fitted model and what the clients have reported; they do not receive the model.

    Of ``n_init`` starts, the model is the one with the largest last likelihood. Likelihoods are
    comparable only if they are of the same clients' points: after a loss, earlier models are
    dropped, because they are also of the lost client's points.
    """
    check_option("method", method, ("average", "em"))
    replies = yield IntroducePoints(n_components)
    replies = yield from settle(replies, agree_on_features)
    check_names(next((one.features for one in replies.values() if one.features), ()), names)
    replies = yield from settle(replies, agree_on_magnitude)
    weighted = any(reply.weighted for reply in replies.values())
    history = PointsHistory(
        {
            name: None if reply.magnitude is None else 2.0**reply.magnitude
            for name, reply in replies.items()
        },
        reg_covar,
    )
    rng = check_random_state(random_state)
    best: MixtureModel | None = None
    best_points: dict[str, float] = {}
    for _ in range(1 if len(start.means) else n_init):  # nothing is drawn for given means
        mixture = yield from _first_mixture(
            n_components, covariance_type, history, replies, start, rng, weighted
        )
        model, n_points = yield from _improve(
            mixture, method, history, weighted, max_rounds, tol, max_local_iter
        )
        replies = replies.without(set(replies) - set(n_points), replies.lost)
        if (
            best is None
            or n_points != best_points
            or model.log_likelihoods[-1] > best.log_likelihoods[-1]
        ):
            best, best_points = model, n_points
    assert best is not None
    return best, history


def _improve(
    mixture: Mixture,
    method: str,
    history: PointsHistory,
    weighted: bool,
    max_rounds: int,
    tol: float,
    max_local_iter: int,
) -> Flow[tuple[MixtureModel, dict[str, float]]]:
    """Return the model after the rounds from a first mixture, and each client's n_points."""
    covariance_type, reg_covar = mixture.covariance_type, history.reg_covar
    sums, improved = SumResponsibilities, ImproveMixture
    if weighted:
        sums, improved = SumWeightedResponsibilities, ImproveWeightedMixture
    log_likelihoods: list[float] = []
    first: dict[str, float] = {}
    previous: dict[str, float] = {}
    converged = False
    while not converged and len(log_likelihoods) < max_rounds:
        current = *parameters(mixture), covariance_type
        if method == "em":
            replies = yield sums(*current)
        else:
            replies = yield improved(*current, reg_covar, max_local_iter, tol)
        replies = yield from exclude(replies, history.problems(replies, mixture))
        next_mixture: Callable[[Mapping[str, Any]], Mixture] = average_mixtures
        if method == "em":
            next_mixture = partial(step_of_em, mixture, reg_covar=reg_covar)
        replies, mixture = yield from _without_the_largest(replies, next_mixture, history)
        n_points = {name: reply.n_points for name, reply in replies.items()}
        first = first or n_points
        averaged_first = method == "average" and not (log_likelihoods or weighted)
        if averaged_first and (problem := few_points(n_points, mixture)):
            warnings.warn(problem, ConvergenceWarning, stacklevel=2)
        total = fsum(reply.log_likelihood for reply in replies.values())
        log_likelihoods.append(total / sum(n_points.values()))
        # Likelihoods are comparable only if both are of the same clients' points.
        same_clients = n_points == previous
        converged = same_clients and abs(log_likelihoods[-1] - log_likelihoods[-2]) < tol
        previous = n_points
    worse = max(log_likelihoods) - log_likelihoods[-1] > WORSE
    if method == "average" and worse and previous == first:  # of the same clients' points
        warnings.warn(
            f"the points are less likely than the mixture before the averages was: the mean"
            f" log-likelihood fell from {max(log_likelihoods):.4g} to {log_likelihoods[-1]:.4g},"
            " because the clients have different kinds of points; use method='em'",
            ConvergenceWarning,
            stacklevel=2,
        )
    model = MixtureModel(mixture, log_likelihoods, converged, reg_covar, tol, max_rounds)
    return model, previous


def _without_the_largest(
    replies: Replies,
    next_mixture: Callable[[Mapping[str, Any]], Mixture],
    history: PointsHistory,
) -> Generator[Reject, Replies, tuple[Replies, Mixture]]:
    """Return the replies and their next mixture.

    If the replies together give no valid mixture, the clients with far larger points than the
    others are excluded, because their variances can hide those of the others. A majority stays. If
    that does not help, or the points are of a similar size, the error is raised, and no client is
    excluded. Without ``reg_covar``, rounding decides whether a covariance of collinear points is
    valid, so that the error is `NoMinority`.
    """
    limits = history.limits
    try:
        return replies, next_mixture(replies)
    except MessageError as error:
        by_size = sorted(replies, key=lambda name: -(limits.get(name) or 0.0))
        for n_excluded in range(1, (len(by_size) + 1) // 2):
            excluded, next_size = by_size[:n_excluded], limits.get(by_size[n_excluded]) or 0.0
            if (limits.get(excluded[-1]) or 0.0) < HIDING_RATIO * next_size:
                continue
            rest = replies.without(excluded, replies.lost)
            with suppress(MessageError, ValueError):
                mixture = next_mixture(rest)
                reasons = dict.fromkeys(excluded, f"with this reply, {error}")
                replies = yield from exclude(replies, reasons, error)
                return replies, mixture
        if history.reg_covar == 0:
            raise NoMinority(str(error)) from error
        raise


def _first_mixture(
    n_components: int,
    covariance_type: CovarianceType,
    history: PointsHistory,
    replies: Replies,
    start: Start,
    rng: np.random.RandomState,
    weighted: bool,
) -> Flow[Mixture]:
    """Return the user's mixture if it is complete, else one fitted by a client drawn at random.

    ``replies`` are the clients' introductions. If the client drawn is lost, or its mixture cannot
    be of its points, the next one drawn replaces it. Given means are completed by the points of all
    clients, because one client may have points near some of them only.
    """
    n_features = agree_on_features(replies)
    check_start(start, n_features, covariance_type)
    if start.complete:
        return Mixture(*start, covariance_type)
    if len(start.means):
        found = yield from _around_means(covariance_type, history, start, weighted)
        if found is not None:
            return found
    able = [name for name, reply in replies.items() if reply.can_start]
    for i in rng.permutation(len(able)):
        seed = int(rng.randint(2**31))
        replies = yield {
            able[i]: FitMixture(
                n_components, n_features, covariance_type, history.reg_covar, seed, *start
            )
        }
        for name, local in replies.items():
            problem = history.problem_of_start(name, local, start)
            replies = yield from exclude(replies, {} if problem is None else {name: problem})
        for local in replies.values():
            return Mixture(*parameters(local), covariance_type)
    raise ValueError(
        f"no remaining client can fit the first mixture: n_components={n_components} needs at"
        f" least {min_points(n_components)} distinct points"
    )


def _around_means(
    covariance_type: CovarianceType, history: PointsHistory, start: Start, weighted: bool
) -> Flow[Mixture | None]:
    """Return the given means with weights and covariances of all points by their nearest mean.

    None if a covariance of the points near a mean is singular.
    """
    nearest = nearest_means(start.means, covariance_type)
    sums = SumWeightedResponsibilities if weighted else SumResponsibilities
    replies = yield sums(*parameters(nearest), covariance_type)
    replies = yield from exclude(replies, history.problems(replies, nearest))
    step = partial(step_of_em, nearest, reg_covar=history.reg_covar)
    try:
        _, mixture = yield from _without_the_largest(replies, step, history)
        weights = start.weights if len(start.weights) else mixture.weights
        covariances = start.covariances if len(start.covariances) else mixture.covariances
        return Mixture(weights, start.means, covariances, covariance_type)
    except MessageError:
        return None


def nearest_means(means: Floats, covariance_type: CovarianceType) -> Mixture:
    """Return a mixture whose components take the points that are nearest to their means.

    Its standard deviation is a tenth of the smallest distance of two means, so that only points
    halfway between means are shared.
    """
    k, d = means.shape
    squares = np.square(means[:, np.newaxis] - means).sum(axis=-1)
    variance = 0.01 * float(squares[squares > 0].min(initial=np.inf))
    shape = covariance_shape(k, d, covariance_type)
    unit = np.eye(d) if covariance_type in MATRICES else 1.0
    spread = variance if np.isfinite(variance) else 1.0
    covariances = np.broadcast_to(spread * np.asarray(unit), shape).copy()
    return Mixture(np.full(k, 1 / k), means, covariances, covariance_type)


def check_start(start: Start, n_features: int, covariance_type: CovarianceType) -> None:
    """Raise ValueError when the given parameters have another count of features than the points.

    Spherical covariances fit any number of features.
    """
    given = {"means_init": start.means}
    if covariance_type != "spherical":
        given["precisions_init"] = start.covariances
    for name, array in given.items():
        if len(array) and array.shape[-1] != n_features:
            raise ValueError(
                f"{name} must have the {n_features} features of the clients' points,"
                f" got {array.shape[-1]}"
            )


def step_of_em(
    mixture: Mixture, replies: Mapping[str, ResponsibilitySums], reg_covar: float
) -> Mixture:
    """Return the mixture after one step of EM over the points of all clients.

    Raises
    ------
    ValueError
        When the clients have no points.
    """
    if not any(reply.n_points for reply in replies.values()):
        raise ValueError("the clients have no points")
    moments = Moments(
        np.sum([reply.counts for reply in replies.values()], axis=0),
        np.sum([reply.sums for reply in replies.values()], axis=0),
        np.sum([reply.products for reply in replies.values()], axis=0),
    )
    return maximise(mixture.means, mixture.covariances, mixture.covariance_type, moments, reg_covar)


def average_mixtures(replies: Mapping[str, ImprovedMixture]) -> Mixture:
    """Return the average of the improved mixtures, weighted by the clients' counts of points.

    Raises
    ------
    ValueError
        When no client improved the mixture.
    """
    improved = [reply for reply in replies.values() if reply.improved]
    if not improved:
        raise ValueError(
            "no client can improve the mixture: it needs one point per component, at least two, and"
            f" positive definite covariances; {SINGULAR_ADVICE}"
        )
    n_points = np.array([reply.n_points for reply in improved], float)
    weights, means, covariances = (
        np.average(arrays, axis=0, weights=n_points)
        for arrays in zip(*map(parameters, improved), strict=True)
    )
    return Mixture(weights / weights.sum(), means, covariances, improved[0].covariance_type)
