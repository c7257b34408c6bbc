"""The client of federated Gaussian mixtures."""

from __future__ import annotations

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
    IntroducePoints,
    LocalMixture,
    Mixture,
    PointsIntroduction,
    ResponsibilitySums,
    SumResponsibilities,
    min_points,
    parameters,
)
from fedlib.clustering.mixtures.private import (
    NoisyResponsibilitySums,
    SumResponsibilitiesNoisily,
    sum_responsibilities_noisily,
)
from fedlib.clustering.mixtures.secure import SumClippedResponsibilities
from fedlib.clustering.mixtures.start import Start
from fedlib.core.client import handles
from fedlib.core.messages import Done, Labels, MessageError
from fedlib.core.validation import count_distinct
from fedlib.protection.privacy import clipped
from fedlib.protection.secure.points import SummablePoints

__all__ = ["GaussianMixtureClient"]


class GaussianMixtureClient(SummablePoints):
    """A client that holds points; for the parameter see `fedlib.core.estimator.PointsClient`."""

    @handles(IntroducePoints)
    def introduce_points(self, request: IntroducePoints) -> PointsIntroduction:
        wanted = min_points(request.n_components)
        can_start = count_distinct(self.X, wanted) == wanted
        magnitude = int(np.frexp(np.abs(self.X).max())[1]) if len(self.X) else None
        return PointsIntroduction(self.n_features, can_start, magnitude, self.features)

    @handles(FitMixture)
    def fit_mixture(self, request: FitMixture) -> LocalMixture:
        mixture = fit_start(
            self.X,
            request.n_components,
            request.covariance_type,
            request.reg_covar,
            request.seed,
            Start(request.weights, request.means, request.covariances),
        )
        return LocalMixture(*parameters(mixture), request.covariance_type)

    @handles(SumResponsibilities)
    def sum_responsibilities(self, request: SumResponsibilities) -> ResponsibilitySums:
        return sum_responsibilities(self.X, request)

    @handles(SumClippedResponsibilities)
    def sum_clipped_responsibilities(
        self, request: SumClippedResponsibilities
    ) -> ResponsibilitySums:
        return sum_responsibilities(clipped(self.X, request.bounds), request)

    @handles(SumResponsibilitiesNoisily)
    def sum_noisily(self, request: SumResponsibilitiesNoisily) -> NoisyResponsibilitySums:
        return sum_responsibilities_noisily(self.X, request, self.n_shares)

    @handles(ImproveMixture)
    def improve_mixture(self, request: ImproveMixture) -> ImprovedMixture:
        n_points = len(self.X)
        log_likelihood = float(np.logaddexp.reduce(log_joint(self.X, request), axis=1).sum())
        mixture: Mixture = request
        improved = n_points >= min_points(len(request.weights))
        if improved:
            try:
                mixture = improve(self.X, request, request.reg_covar, request.max_iter, request.tol)
            except MessageError:  # a covariance of these points is singular
                improved = False
        return ImprovedMixture(
            *parameters(mixture), request.covariance_type, n_points, log_likelihood, improved
        )

    @handles(AssignComponents)
    def assign_components(self, request: AssignComponents) -> Done:
        self.state = Labels(assign_components(self.X, request))
        return Done()
