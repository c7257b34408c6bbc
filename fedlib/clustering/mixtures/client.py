"""The client of federated Gaussian mixtures."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from fedlib.clustering.mixtures.em import (
    assign_components,
    fit_start,
    improve,
    log_joint,
    sum_responsibilities,
)
from fedlib.clustering.mixtures.messages import (
    AssignComponents,
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
    min_points,
    parameters,
)
from fedlib.clustering.mixtures.private import (
    NoisyResponsibilitySums,
    SumResponsibilitiesNoisily,
    sum_responsibilities_noisily,
)
from fedlib.clustering.mixtures.secure import (
    SumClippedResponsibilities,
    SumClippedWeightedResponsibilities,
    sum_by_rows,
)
from fedlib.clustering.mixtures.start import Start
from fedlib.core.array_types import Floats
from fedlib.core.client import handles
from fedlib.core.messages import Done, Labels, MessageError
from fedlib.core.validation import count_distinct
from fedlib.protection.secure.points import SummablePoints


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
