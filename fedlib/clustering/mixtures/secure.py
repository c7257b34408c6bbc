"""Expectation-maximisation with secure sums: the server sees no client's sums."""

from __future__ import annotations

import msgspec
import numpy as np

from fedlib.clustering.mixtures.checks import log_density_range
from fedlib.clustering.mixtures.covariances import MATRICES, CovarianceType
from fedlib.clustering.mixtures.flow import MixtureModel, check_start, step_of_em
from fedlib.clustering.mixtures.messages import (
    AssignComponents,
    Mixture,
    ResponsibilitySums,
    SumResponsibilities,
    parameters,
)
from fedlib.clustering.mixtures.start import Start
from fedlib.core.aggregation import Aggregation, Limits
from fedlib.core.messages import MessageError
from fedlib.core.protocol import Flow
from fedlib.protection.secure.flow import ImpossibleSum
from fedlib.protection.secure.points import PooledPoints, agree_on_points

ROUNDING = 2.0**-40  # of the largest products: far more than the digits of a sum lose


def secure_em(
    covariance_type: CovarianceType,
    reg_covar: float,
    start: Start,
    max_rounds: int,
    tol: float,
    aggregation: Aggregation,
) -> Flow[MixtureModel]:
    """Return the server's flow with secure sums; for the parameters see `FederatedGaussianMixture`.

    ``start`` is complete.

    Raises
    ------
    ValueError
        When the clients disagree on the features or have no points, or a covariance is not positive
        definite by rounding.
    ImpossibleSum
        When no points have the products in a sum.
    """
    points = yield from agree_on_points(aggregation)
    check_start(start, points.n_features, covariance_type)
    mixture = Mixture(*start, covariance_type)
    log_likelihoods: list[float] = []
    previous, converged = 0, False
    while not converged and len(log_likelihoods) < max_rounds:
        request = SumResponsibilities(*parameters(mixture), covariance_type)
        total, _ = yield from aggregation.sum(request, _limits(points, mixture))
        mixture = _step(mixture, total, reg_covar, points)
        log_likelihoods.append(total.log_likelihood / total.n_points)
        same_rows = total.n_points == previous
        converged = same_rows and abs(log_likelihoods[-1] - log_likelihoods[-2]) < tol
        previous = total.n_points
    yield AssignComponents(*parameters(mixture), covariance_type)
    return MixtureModel(mixture, log_likelihoods, converged, reg_covar, tol, max_rounds)


def _step(
    mixture: Mixture, total: ResponsibilitySums, reg_covar: float, points: PooledPoints
) -> Mixture:
    """Return the mixture after one step of EM over all clients' points.

    The covariances of points are positive semidefinite. If they are not, and more than rounding is
    needed to make them so, a client has lied.
    """
    try:
        return step_of_em(mixture, {"all clients": total}, reg_covar)
    except MessageError as error:
        rounding = ROUNDING * points.n_points * _largest_product(points, mixture)
        is_matrix = mixture.covariance_type in MATRICES
        shift = rounding * (np.eye(points.n_features) if is_matrix else 1.0)
        moved = msgspec.structs.replace(total, products=total.products + shift)
        try:
            step_of_em(mixture, {"all clients": moved}, reg_covar)
        except MessageError:
            raise ImpossibleSum(
                "the sum of SumResponsibilities over all clients is impossible, so at least one"
                f" client has sent wrong values: {error}"
            ) from error
        raise


def _largest_product(points: PooledPoints, mixture: Mixture) -> float:
    """Return a bound on the squared distance of a point from a mean."""
    reach = points.limit + float(np.abs(mixture.means).max())
    return points.n_features * reach**2


def _limits(points: PooledPoints, mixture: Mixture) -> Limits:
    """Return the largest sums of a client for a mixture."""
    reach = points.limit + float(np.abs(mixture.means).max())
    low, high = log_density_range(mixture, points.limit)
    return {
        "log_likelihood": points.limit_of(1 + max(abs(low), abs(high))),
        "counts": points.limit_of(2.0),
        "sums": points.limit_of(reach),
        "products": points.limit_of(_largest_product(points, mixture)),
    }
