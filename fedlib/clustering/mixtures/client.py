"""The client of federated Gaussian mixtures."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from fedlib.clustering.mixtures.checks import log_density_range
from fedlib.clustering.mixtures.em import (
    Start,
    assign_components,
    fit_start,
    improve,
    log_joint,
    sum_responsibilities,
)
from fedlib.clustering.mixtures.flow import MixtureModel, step_of_em
from fedlib.clustering.mixtures.messages import (
    MATRICES,
    AssignComponents,
    CovarianceType,
    FitMixture,
    ImprovedMixture,
    ImproveMixture,
    ImproveWeightedMixture,
    IntroducePoints,
    LocalMixture,
    Mixture,
    PointsIntroduction,
    ResponsibilitySums,
    SumResponsibilities,
    SumWeightedResponsibilities,
    WeightedImprovedMixture,
    WeightedResponsibilitySums,
    min_points,
    parameters,
    scatter,
)
from fedlib.clustering.mixtures.private import (
    NoisyResponsibilitySums,
    SumResponsibilitiesNoisily,
    sum_responsibilities_noisily,
)
from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Floats
from fedlib.core.client import handles
from fedlib.core.messages import Done, Labels, MessageError
from fedlib.core.parameters import count_distinct
from fedlib.core.protocol import Flow
from fedlib.protection.privacy import BoundsArray, clipped
from fedlib.protection.secure.fixed_point import Digits, add_rows, digits_of_limits, summed
from fedlib.protection.secure.flow import ImpossibleSum
from fedlib.protection.secure.points import (
    MaxWeight,
    NumberOfPoints,
    SummablePoints,
    count_bounded_points,
    farthest,
)

MAX_TERMS = 2**20  # in memory at a time
ROUNDING = 2.0**-40  # of the largest products: far more than the digits of a sum lose


class SumClippedResponsibilities(SumResponsibilities):
    """Clip your points to bounds, then sum them by the responsibilities of this mixture."""

    discloses = (
        "the Gaussian mixture of all clients' points so far, the bounds, and the count of all"
        " points"
    )
    effortless = ("n_points",)
    bounds: BoundsArray
    n_points: NumberOfPoints

    @property
    def most(self) -> float:
        """The count of points for which the points of a client count at most."""
        return self.n_points

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits(self._limits(), n_clients)

    def _limits(self) -> dict[str, Any]:
        reach, n = farthest(self.means, self.bounds), self.most
        low, high = log_density_range(self, reach)
        return {
            "log_likelihood": n * (1 + max(abs(low), abs(high))),
            "counts": 2.0 * n,
            "sums": n * reach.max(axis=0),
            "products": n * self.largest_products().max(axis=(0, 1)),
        }

    def largest_products(self) -> Floats:
        """Return bounds on the products of one point, in the shape of one covariance."""
        reach = farthest(self.means, self.bounds).max(axis=0, keepdims=True)
        return scatter(reach, np.ones(1), self.covariance_type)


class SumClippedWeightedResponsibilities(SumClippedResponsibilities):
    """Clip your points and their weights, then sum them by the responsibilities of this mixture."""

    discloses = (
        "the Gaussian mixture of all clients' points so far, the bounds, the largest weight, and"
        " the count of all points"
    )
    effortless = ("n_points",)
    reply = WeightedResponsibilitySums
    max_weight: MaxWeight

    @property
    def most(self) -> float:
        return self.n_points * self.max_weight

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits(self._limits() | {"n_points": self.most}, n_clients)


def sum_by_rows(
    X: Floats,
    request: SumClippedResponsibilities,
    digits: Digits | None,
    sample_weight: Floats | None = None,
) -> ResponsibilitySums:
    """Return the sums of `fedlib.clustering.mixtures.em.sum_responsibilities` over clipped points.

    With digits, each term of a row is rounded to them (`add_rows`), and counts as 0 if the
    densities of its point all underflow: an error would disclose that there is one.

    Raises
    ------
    ValueError
        When the points and the mixture have different numbers of features.
    """
    (k, d), kind = request.means.shape, request.covariance_type
    X, weight = clipped(X, request.bounds), np.ones(len(X))
    if sample_weight is not None:
        weight = sample_weight
    number = np.float64 if digits is None else np.int64
    total: dict[str, Any] = {
        "log_likelihood": np.zeros(1, number),
        "counts": np.zeros(k, number),
        "sums": np.zeros((k, d), number),
        "products": np.zeros(request.covariances.shape, number),
    }

    def add(name: str, terms: Floats, *place: int, repeat: int = 1) -> None:
        repeated = None if digits is None else {name: digits[name] * repeat}
        added = add_rows(terms, repeated, name)
        target = total[name][place]
        total[name][place] = target + added.reshape(target.shape)

    size = max(1, MAX_TERMS // d**2)
    for start in range(0, max(1, len(X)), size):  # without points, too: the errors are the same
        block, of_rows = X[start : start + size], weight[start : start + size, np.newaxis]
        joint = log_joint(block, request)
        with np.errstate(invalid="ignore"):
            log_density = np.logaddexp.reduce(joint, axis=1, keepdims=True)
            shares = of_rows * np.exp(joint - log_density)
            add("log_likelihood", of_rows * log_density)
        add("counts", shares)
        for c in range(k):
            shifted = block - request.means[c]
            terms = shares[:, [c]] * shifted
            add("sums", terms, c)
            place = 0 if kind == "tied" else c
            if kind in MATRICES:
                outer = (terms[:, :, np.newaxis] * shifted[:, np.newaxis]).reshape(-1, d * d)
                add("products", outer, place, repeat=d)
            else:
                squares = terms * shifted
                if kind == "spherical":
                    squares = squares.mean(axis=1, keepdims=True)
                add("products", squares, place)
    total["log_likelihood"] = total["log_likelihood"][0]
    if sample_weight is None:
        return summed(ResponsibilitySums, digits, n_points=len(X), **total)
    of_points = add_rows(weight[:, np.newaxis], digits, "n_points")[0, 0]
    return summed(WeightedResponsibilitySums, digits, n_points=of_points, **total)


def secure_em(
    covariance_type: CovarianceType,
    reg_covar: float,
    start: Start,
    bounds: Floats,
    max_rounds: int,
    tol: float,
    aggregation: Aggregation,
    max_weight: float | None = None,
) -> Flow[MixtureModel]:
    """Return the server's flow with secure sums; for the parameters see `FederatedGaussianMixture`.

    ``start`` is complete, and ``bounds`` (2, n_features) are of its features. If the points have
    weights, the clients clip them to ``max_weight``.

    Raises
    ------
    ValueError
        When the clients disagree on the features, have others than the bounds, or have no points;
        when a covariance is not positive definite by rounding.
    ImpossibleSum
        When no points have the products in a sum.
    """
    n_points = yield from count_bounded_points(aggregation, bounds)
    mixture = Mixture(*start, covariance_type)
    log_likelihoods: list[float] = []
    previous, converged = 0, False
    while not converged and len(log_likelihoods) < max_rounds:
        arguments = *parameters(mixture), covariance_type, bounds, n_points
        request = (
            SumClippedResponsibilities(*arguments)
            if max_weight is None
            else SumClippedWeightedResponsibilities(*arguments, max_weight)
        )
        total, _ = yield from aggregation.sum(request)
        mixture = _step(request, total, reg_covar)
        log_likelihoods.append(total.log_likelihood / total.n_points)
        same_rows = total.n_points == previous
        converged = same_rows and abs(log_likelihoods[-1] - log_likelihoods[-2]) < tol
        previous = total.n_points
    yield AssignComponents(*parameters(mixture), covariance_type)
    return MixtureModel(mixture, log_likelihoods, converged, reg_covar, tol, max_rounds)


def _step(
    request: SumClippedResponsibilities, total: ResponsibilitySums, reg_covar: float
) -> Mixture:
    """Return the mixture after one step of EM over all clients' points.

    The covariances of points are positive semidefinite. If they are not, and more than rounding is
    needed to make them so, a client has lied.
    """
    try:
        return step_of_em(request, {"all clients": total}, reg_covar)
    except MessageError as error:
        square = np.square(farthest(request.means, request.bounds)).sum(axis=1).max()
        rounding = ROUNDING * request.most * square
        is_matrix = request.covariance_type in MATRICES
        shift = rounding * (np.eye(request.means.shape[1]) if is_matrix else 1.0)
        moved = msgspec.structs.replace(total, products=total.products + shift)
        try:
            step_of_em(request, {"all clients": moved}, reg_covar)
        except MessageError:
            raise ImpossibleSum(
                f"the sum of {type(request).__name__} over all clients is impossible, so at least"
                f" one client has sent wrong values: {error}"
            ) from error
        raise


class GaussianMixtureClient(SummablePoints):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`."""

    takes_weights = True

    @handles(IntroducePoints)
    def introduce_points(self, request: IntroducePoints) -> PointsIntroduction:
        wanted = min_points(request.n_components)
        X, weights = self.weighted_points
        can_start = count_distinct(X, wanted) == wanted
        magnitude = int(np.frexp(np.abs(X).max())[1]) if len(X) else None
        return PointsIntroduction(
            self.n_features, can_start, magnitude, self.features, weights is not None
        )

    @handles(FitMixture)
    def fit_mixture(self, request: FitMixture) -> LocalMixture:
        X, weights = self.weighted_points
        mixture = fit_start(
            X,
            request.n_components,
            request.covariance_type,
            request.reg_covar,
            request.seed,
            Start(request.weights, request.means, request.covariances),
            weights,
        )
        return LocalMixture(*parameters(mixture), request.covariance_type)

    @handles(SumResponsibilities)
    def sum_responsibilities(self, request: SumResponsibilities) -> ResponsibilitySums:
        self.check_unweighted()
        return sum_responsibilities(self.X, request)

    @handles(SumWeightedResponsibilities)
    def sum_weighted_responsibilities(
        self, request: SumWeightedResponsibilities
    ) -> ResponsibilitySums:
        X, weights = self.counted_points()
        return sum_responsibilities(X, request, weights)

    @handles(SumClippedResponsibilities)
    def sum_clipped_responsibilities(
        self, request: SumClippedResponsibilities
    ) -> ResponsibilitySums:
        self.check_unweighted()
        return sum_by_rows(self.X, request, self.row_digits(request))

    @handles(SumClippedWeightedResponsibilities)
    def sum_clipped_weighted_responsibilities(
        self, request: SumClippedWeightedResponsibilities
    ) -> ResponsibilitySums:
        X, weights = self.counted_points()
        clipped_weights = np.minimum(weights, request.max_weight)
        return sum_by_rows(X, request, self.row_digits(request), clipped_weights)

    @handles(SumResponsibilitiesNoisily)
    def sum_noisily(self, request: SumResponsibilitiesNoisily) -> NoisyResponsibilitySums:
        if request.max_weight is None:
            self.check_unweighted()
            return sum_responsibilities_noisily(self.X, request, self.n_shares)
        weight = self.clipped_weight(request.max_weight) / request.max_weight
        return sum_responsibilities_noisily(self.X, request, self.n_shares, weight)

    @handles(ImproveMixture)
    def improve_mixture(self, request: ImproveMixture) -> ImprovedMixture:
        self.check_unweighted()
        densities = np.logaddexp.reduce(log_joint(self.X, request), axis=1)
        mixture, improved = _improved(self.X, None, request)
        return ImprovedMixture(
            *parameters(mixture),
            request.covariance_type,
            len(self.X),
            float(densities.sum()),
            improved,
        )

    @handles(ImproveWeightedMixture)
    def improve_weighted_mixture(self, request: ImproveWeightedMixture) -> WeightedImprovedMixture:
        X, weights = self.counted_points()
        densities = np.logaddexp.reduce(log_joint(X, request), axis=1)
        mixture, improved = _improved(X, weights, request)
        return WeightedImprovedMixture(
            *parameters(mixture),
            request.covariance_type,
            n_points=float(weights.sum()),
            log_likelihood=float(weights @ densities),
            improved=improved,
        )

    @handles(AssignComponents)
    def assign_components(self, request: AssignComponents) -> Done:
        self.state = Labels(assign_components(self.X, request))
        return Done()


def _improved(X: Floats, weights: Floats | None, request: ImproveMixture) -> tuple[Mixture, bool]:
    """Return the improved mixture and True, or the request and False if it cannot be improved."""
    if len(X) >= min_points(len(request.weights)):
        with suppress(MessageError):  # a covariance of these points is singular
            settings = request.reg_covar, request.max_iter, request.tol
            return improve(X, request, *settings, weights), True
    return request, False
