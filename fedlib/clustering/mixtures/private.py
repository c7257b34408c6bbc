"""Expectation-maximisation with differential privacy: the sums have noise, the start is no data.

A row is clipped to the bounds and scaled to [-1, 1]. Its responsibilities are at least 0 and add up
to 1, so it changes the counts by at most 1 together, the sums by 1 per feature, and the sums of
squares and products by 1 each.

Source: M. Park, J. Foulds, K. Choudhary, M. Welling, DP-EM: differentially private expectation
maximization, AISTATS 2017.
"""

from __future__ import annotations

from math import nan, sqrt
from typing import Annotated

import numpy as np
from scipy.special import softmax

from fedlib.clustering.kmeans.flow import spread_start, warn_of_noise
from fedlib.clustering.mixtures.em import Start, log_joint
from fedlib.clustering.mixtures.flow import MixtureModel, check_start
from fedlib.clustering.mixtures.messages import (
    MATRICES,
    AssignComponents,
    CovarianceType,
    Mixture,
    contract,
    expand,
    parameters,
)
from fedlib.core.array_types import Floats, Ints
from fedlib.core.messages import Array, Message
from fedlib.core.protocol import Flow
from fedlib.protection.privacy import (
    NOISY,
    BoundsArray,
    NoisyRequest,
    Privacy,
    Sensitivity,
    add_noise,
    from_unit,
    quantise,
    to_unit,
)
from fedlib.protection.secure.points import MaxWeight, agree_on_bounded_features
from fedlib.protection.sums import NoisySums

BLOCK = 4096  # points whose products are computed at once
SMALLEST_VARIANCE = 1e-6  # of a component, in squared half widths of the bounds
NOISES = 2  # the least variance of a component, in standard deviations of the noise in it


class NoisyResponsibilitySums(Message):
    """Sums over a client's scaled points, weighted by responsibilities, with noise.

    ``moments`` has a row per component: the count, the sum of each feature, and the sums of the
    squares, or of all products, of features.
    """

    discloses = "per component: the number, mean and covariance of a client's points, with noise"
    moments: Annotated[np.ndarray, Array("float64", ("components", "moments"), -NOISY, NOISY)]


class SumResponsibilitiesNoisily(NoisyRequest, Mixture):
    """Clip your points to bounds, sum them by the responsibilities of this mixture, add noise."""

    discloses = "the Gaussian mixture of all clients' points so far, with noise, and the bounds"
    reply = NoisyResponsibilitySums
    privacy: Privacy
    bounds: BoundsArray
    max_weight: MaxWeight | None = None  # the weight of a row that counts as one; None: no weights

    def reply_lengths(self) -> dict[str, int]:
        n_features = self.means.shape[1]
        n_products = len(_pairs(n_features, self.covariance_type)[0])
        return {"components": len(self.means), "moments": 1 + n_features + n_products}

    def sensitivity(self) -> Sensitivity:
        n_components, n_features = self.means.shape
        return _rounded_sensitivity(n_components, n_features, self.covariance_type)


def _pairs(n_features: int, covariance_type: CovarianceType) -> tuple[Ints, Ints]:
    """Return the pairs of features whose products are summed."""
    first, second = np.triu_indices(n_features)
    kept = (first == second) | (covariance_type in MATRICES)
    return first[kept], second[kept]


def row_sensitivity(n_features: int, covariance_type: CovarianceType) -> Sensitivity:
    """Return the largest change by one row.

    The responsibilities distribute a row of moments over the components: neither norm is larger
    than that of the row itself, but all components change.

    Examples
    --------
    >>> row_sensitivity(2, "full").l1  # a count, two sums, two squares and a product
    6.0
    """
    n = 1 + n_features + len(_pairs(n_features, covariance_type)[0])
    return Sensitivity(float(n), sqrt(n), n)


def sum_responsibilities_noisily(
    X: Floats,
    request: SumResponsibilitiesNoisily,
    n_shares: int,
    sample_weight: Floats | None = None,
) -> NoisyResponsibilitySums:
    """Return the noisy sums of a client; ``sample_weight`` has a number from 0 to 1 per row.

    Raises
    ------
    ValueError
        When the points have another count of features.
    LinAlgError
        When a covariance is not positive definite, with and without points.
    """
    scaled = to_unit(X, request.bounds)
    n_components, n_features = request.means.shape
    sensitivity = _rounded_sensitivity(n_components, n_features, request.covariance_type)
    first, second = _pairs(n_features, request.covariance_type)
    total = np.zeros((n_components, 1 + n_features + len(first)))
    for start in range(0, max(len(X), 1), BLOCK):  # without points, too: the errors are the same
        block = scaled[start : start + BLOCK]
        weights = _responsibilities(from_unit(block, request.bounds), request)
        if sample_weight is not None:
            weights = weights * sample_weight[start : start + BLOCK, np.newaxis]
        rows = np.hstack([np.ones((len(block), 1)), block, block[:, first] * block[:, second]])
        for k in range(n_components):
            total[k] += quantise(weights[:, [k]] * rows, sensitivity).sum(axis=0)
    return NoisyResponsibilitySums(add_noise(total, sensitivity, request.privacy, n_shares))


def _responsibilities(X: Floats, mixture: Mixture) -> Floats:
    """Return the responsibilities (n_points, n_components), whose sum is never above 1.

    They are 0 for a point whose densities all underflow: an error would disclose that there is one.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.nan_to_num(softmax(log_joint(X, mixture), axis=1))
    scaled: Floats = weights * (1 - 2.0**-40)  # more than the rounding of a sum of 1
    return scaled


def _rounded_sensitivity(
    n_components: int, n_features: int, covariance_type: CovarianceType
) -> Sensitivity:
    """Return `row_sensitivity`, with the count of entries in all components, for the rounding."""
    one = row_sensitivity(n_features, covariance_type)
    return Sensitivity(one.l1, one.l2, one.n_entries * n_components)


def private_em(
    n_components: int,
    covariance_type: CovarianceType,
    reg_covar: float,
    start: Start,
    bounds: Floats,
    max_rounds: int,
    seed: int,
    aggregation: NoisySums,
    max_weight: float | None = None,
) -> Flow[MixtureModel]:
    """Return the flow of EM with noise.

    A component keeps its parameters in a round in which its count is smaller than the standard
    deviation of its noise. Eigenvalues of a covariance that the noise has made too small are
    raised.

    Parameters
    ----------
    n_components, covariance_type, reg_covar, max_rounds
        As in `FederatedGaussianMixture`.
    start : Start
        The parameters that are given; the others do not depend on the data.
    bounds : array (2, n_features)
    seed : int
        Draws the means of the start.
    aggregation : NoisySums
        With the loss of each round.
    max_weight : float, optional
        The largest weight of a row, if rows have weights. They are divided by it, so that one row
        changes a sum by no more than without weights.
    """
    sensitivity = _rounded_sensitivity(n_components, bounds.shape[1], covariance_type)
    aggregation.scale(sensitivity)  # an epsilon that is too small is refused before any message
    yield from agree_on_bounded_features(aggregation, bounds.shape[1])
    check_start(start, bounds.shape[1], covariance_type)
    mixture = _complete(start, n_components, covariance_type, bounds, seed)
    noise, privacy = aggregation.deviation(sensitivity), aggregation.privacy
    n_rows = 0.0
    for _ in range(max_rounds):
        request = SumResponsibilitiesNoisily(
            *parameters(mixture), covariance_type, privacy, bounds, max_weight
        )
        total, _ = yield from aggregation.sum(request)
        n_rows += float(total.moments[:, 0].sum()) / max_rounds
        mixture = _step(mixture, total.moments, bounds, reg_covar, noise)
    yield AssignComponents(*parameters(mixture), covariance_type)
    warn_of_noise("max_rounds", max_rounds, n_rows / n_components, noise, privacy)
    return MixtureModel(mixture, [nan] * max_rounds, False, reg_covar, 0.0, max_rounds)


def _complete(
    start: Start, n_components: int, covariance_type: CovarianceType, bounds: Floats, seed: int
) -> Mixture:
    """Return the first mixture: what is not given is spread between the bounds."""
    weights, means, covariances = start
    if not len(weights):
        weights = np.full(n_components, 1 / n_components)
    if not len(means):
        means = spread_start(n_components, bounds, seed)
    if not len(covariances):
        half = (bounds[1] - bounds[0]) / 2
        variances = np.square(half / n_components ** (1 / len(half)))
        matrices = np.repeat(np.diag(variances)[np.newaxis], n_components, axis=0)
        covariances = contract(matrices, covariance_type)
        if covariance_type == "tied":
            covariances = covariances / n_components
    return Mixture(weights, means, covariances, covariance_type)


def _step(
    mixture: Mixture, moments: Floats, bounds: Floats, reg_covar: float, noise: float
) -> Mixture:
    """Return the mixture after one step of EM, from noisy moments of scaled points."""
    n_components, n_features = mixture.means.shape
    covariance_type = mixture.covariance_type
    half = (bounds[1] - bounds[0]) / 2
    first, second = _pairs(n_features, covariance_type)
    old = expand(mixture.covariances, n_components, n_features, covariance_type)
    means, matrices = mixture.means.copy(), np.array(old)
    counts = np.maximum(moments[:, 0], max(noise, 1.0))
    for k in np.flatnonzero(moments[:, 0] > max(noise, 1.0)):
        mean = np.clip(moments[k, 1 : 1 + n_features] / counts[k], -1, 1)
        second_moments = np.zeros((n_features, n_features))
        second_moments[first, second] = moments[k, 1 + n_features :] / counts[k]
        second_moments[second, first] = second_moments[first, second]
        square = np.outer(mean, mean)
        if covariance_type not in MATRICES:
            square = np.diag(np.diag(square))
        means[k] = from_unit(mean, bounds)
        scaled = _positive(second_moments - square, noise / counts[k])
        matrices[k] = scaled * np.outer(half, half) + reg_covar * np.eye(n_features)
    weights = counts / counts.sum()
    if covariance_type == "tied":
        covariances = np.tensordot(weights, matrices, axes=1)[np.newaxis]
    else:
        covariances = contract(matrices, covariance_type)
    return Mixture(weights, means, covariances, covariance_type)


def _positive(matrix: Floats, noise: float) -> Floats:
    """Return a covariance whose variances in all directions are above the noise in them.

    Otherwise the noise would make some components so narrow that another one takes their points.
    """
    values, vectors = np.linalg.eigh(matrix)
    least = np.clip(NOISES * noise, SMALLEST_VARIANCE, 1.0)
    raised: Floats = (vectors * np.clip(values, least, 1.0)) @ vectors.T
    return (raised + raised.T) / 2
