"""Expectation-maximisation (EM) of a Gaussian mixture on one set of points.

A step of EM has two halves. `sum_responsibilities` computes the responsibility of each component
for each point and returns sums over the points. `maximise` computes the next mixture from the sums
alone, so the sums of several sets of points can be added before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.cluster import KMeans

from fedlib.messages import MessageError
from fedlib.mixtures.covariances import MATRICES, CovarianceType, contract, expand, scatter
from fedlib.mixtures.messages import TINY, Mixture, ResponsibilitySums, parameters
from fedlib.mixtures.start import NOTHING_GIVEN, Start

__all__ = [
    "Moments",
    "assign_components",
    "fit_mixture",
    "improve",
    "log_joint",
    "maximise",
    "sum_responsibilities",
]

Array64 = NDArray[np.float64]

BLOCK = 4096  # points whose densities are computed at once: their arrays stay in a cache
GROUP = 2**14  # values of a block, over all components that are computed at once


class Moments(NamedTuple):
    """Weighted sums over points, for each component.

    Attributes
    ----------
    counts : array (n_components,)
        The sums of the points' weights.
    sums : array (n_components, n_features)
        The weighted sums of the points' differences from the component's mean.
    products : array
        The weighted sums of these differences' outer products: matrices (n_components, n_features,
        n_features), or contracted to the shape of the covariances.
    """

    counts: Array64
    sums: Array64
    products: Array64


class _Parameters(NamedTuple):
    """The parameters of a mixture between two steps of EM: a `Mixture` without its checks.

    The checks take longer than a step on a few hundred points.
    """

    weights: Array64
    means: Array64
    covariances: Array64
    covariance_type: CovarianceType


def fit_mixture(
    X: Array64,
    n_components: int,
    covariance_type: CovarianceType = "full",
    reg_covar: float = 1e-6,
    random_state: Any = None,
    start: Start = NOTHING_GIVEN,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Mixture:
    """Fit a mixture to points by EM from k-means, as scikit-learn's `GaussianMixture` does.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
        At least ``n_components`` points must be distinct.
    n_components, covariance_type, reg_covar, random_state, max_iter, tol
        As in `sklearn.mixture.GaussianMixture`, with its default values.
    start : Start, optional
        Parameters that replace those of the first mixture from k-means.

    Returns
    -------
    Mixture

    Notes
    -----
    A step takes time proportional to ``n_points * n_components * n_features**2``.

    Examples
    --------
    >>> X = np.array([[0.0], [1.0], [2.0], [8.0], [9.0], [10.0]])
    >>> fit_mixture(X, 2, random_state=0).weights.round(3)
    array([0.5, 0.5])
    """
    # The points have been checked, and for a few hundred of them scikit-learn's checks take as
    # long as k-means itself.
    with config_context(assume_finite=True, skip_parameter_validation=True):
        kmeans = KMeans(n_components, n_init=1, random_state=random_state).fit(X)
    centres = kmeans.cluster_centers_
    moments = _moments(X.T, centres, np.eye(n_components)[:, kmeans.labels_])
    moments = moments._replace(products=contract(moments.products, covariance_type))
    pooled = np.cov(X, rowvar=False, bias=True).reshape(1, X.shape[1], X.shape[1])
    covariances = contract(np.repeat(pooled, n_components, axis=0), covariance_type)
    first = maximise(centres, covariances, covariance_type, moments, reg_covar)
    if any(map(len, start)):
        pairs = zip(start, parameters(first), strict=True)
        weights, means, covariances = (given if len(given) else fitted for given, fitted in pairs)
        first = Mixture(weights, means, covariances, covariance_type)
    return improve(X, first, reg_covar, max_iter, tol)


def improve(X: Array64, mixture: Mixture, reg_covar: float, max_iter: int, tol: float) -> Mixture:
    """Return the mixture after at most ``max_iter`` steps of EM on points.

    The steps stop when the mean log-likelihood of the points changes by less than ``tol``.

    Raises
    ------
    MessageError
        When a covariance is not positive definite, or a number is too large.
    """
    current = _Parameters(*parameters(mixture), mixture.covariance_type)
    previous = -np.inf
    for _ in range(max_iter):
        try:
            moments, total = _expect(X, current)
        except np.linalg.LinAlgError:
            Mixture(*current)  # raises the error that says what is wrong with the covariances
            raise
        if not math.isfinite(total):
            raise MessageError("the log-likelihood of the points must be finite")
        current = _next_parameters(current, moments, reg_covar)
        log_likelihood = total / len(X)
        if abs(log_likelihood - previous) < tol:
            break
        previous = log_likelihood
    return Mixture(*current)


def sum_responsibilities(X: Array64, mixture: Mixture) -> ResponsibilitySums:
    """Return the sums over points that the M step of EM needs.

    Notes
    -----
    The points are summed in blocks, and the blocks one after the other. The rounding error of a sum
    of ``n`` terms is at most ``(n / BLOCK + BLOCK) * 2**-53`` times the sum of their sizes.

    Examples
    --------
    >>> mixture = Mixture(np.ones(1), np.array([[1.0]]), np.ones((1, 1, 1)), "full")
    >>> sums = sum_responsibilities(np.array([[1.0], [4.0]]), mixture)
    >>> sums.counts, sums.sums, sums.products
    (array([2.]), array([[3.]]), array([[[9.]]]))
    """
    moments, log_likelihood = _expect(X, mixture)
    return ResponsibilitySums(len(X), log_likelihood, *moments)


def _expect(X: Array64, mixture: Mixture | _Parameters) -> tuple[Moments, float]:
    """Return the moments of `sum_responsibilities`, contracted, and the log-likelihood."""
    densities = _prepare(mixture)
    shape = mixture.means.shape
    total = Moments(np.zeros(shape[0]), np.zeros(shape), np.zeros((*shape, shape[1])))
    log_likelihoods = []
    for first in range(0, len(X), BLOCK):
        columns = np.ascontiguousarray(X[first : first + BLOCK].T)
        joint = _log_joint_of(columns, densities)
        log_likelihoods.append(_turn_into_responsibilities(joint))
        for part, added in zip(total, _moments(columns, mixture.means, joint), strict=True):
            part += added
    products = contract(total.products, mixture.covariance_type)
    return total._replace(products=products), math.fsum(log_likelihoods)


def _turn_into_responsibilities(joint: Array64) -> float:
    """Overwrite a `_log_joint_of` with the responsibilities; return the log-likelihood."""
    largest = joint.max(axis=0)
    joint -= largest
    np.exp(joint, out=joint)
    densities = joint.sum(axis=0)
    joint /= densities
    return float((np.log(densities) + largest).sum())


def maximise(
    means: Array64,
    covariances: Array64,
    covariance_type: CovarianceType,
    moments: Moments | ResponsibilitySums,
    reg_covar: float,
) -> Mixture:
    """Return the mixture that maximises the likelihood given the sums over all points.

    A component without points keeps its mean and covariance.

    Parameters
    ----------
    means, covariances
        The current parameters; the moments are about these means.
    covariance_type : {"full", "tied", "diag", "spherical"}
    moments : Moments or ResponsibilitySums
        With products in the shape of the covariances.
    reg_covar : float
        Added to every variance.

    Raises
    ------
    MessageError
        When a covariance is not positive definite.
    """
    current = _Parameters(np.empty(0), means, covariances, covariance_type)
    return Mixture(*_next_parameters(current, moments, reg_covar))


def _next_parameters(
    current: _Parameters, moments: Moments | ResponsibilitySums, reg_covar: float
) -> _Parameters:
    """Return the result of `maximise` without checks; the current weights are not used."""
    _, means, covariances, covariance_type = current
    n = moments.counts + TINY
    shift = moments.sums / n[:, np.newaxis]
    tied = covariance_type == "tied"
    divisor = n.sum() if tied else n[:, np.newaxis, np.newaxis]
    new = (moments.products - scatter(shift, n, covariance_type)) / divisor
    if covariance_type in MATRICES:
        new = (new + new.mT) / 2  # the difference of large sums may be asymmetric by rounding
        new = new + reg_covar * np.eye(new.shape[-1])
    else:
        new = new + reg_covar
    empty = moments.counts <= TINY
    if not tied:
        new = np.where(empty[:, np.newaxis, np.newaxis], covariances, new)
    shift[empty] = 0
    return _Parameters(n / n.sum(), means + shift, new, covariance_type)


def log_joint(X: Array64, mixture: Mixture) -> Array64:
    """Return the logarithm of weight times density (n_points, n_components).

    Examples
    --------
    >>> mixture = Mixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)), "full")
    >>> np.exp(log_joint(np.array([[0.0]]), mixture)) == 1 / np.sqrt(2 * np.pi)
    array([[ True]])
    """
    densities = _prepare(mixture)
    joint = np.empty((len(X), len(mixture.means)))
    for first in range(0, len(X), BLOCK):
        columns = np.ascontiguousarray(X[first : first + BLOCK].T)
        joint[first : first + BLOCK] = _log_joint_of(columns, densities).T
    return joint


class _Densities(NamedTuple):
    """The components of a mixture as `_log_joint_of` needs them."""

    means: Array64  # (n_components, n_features)
    whitening: Array64  # (n_components, n_features, n_features)
    log_factors: Array64  # (n_components,): of the weight and the largest density


def _prepare(mixture: Mixture | _Parameters) -> _Densities:
    n_components, n_features = mixture.means.shape
    matrices = expand(mixture.covariances, n_components, n_features, mixture.covariance_type)
    whitening = np.linalg.inv(np.linalg.cholesky(matrices))
    log_factors = np.log(np.diagonal(whitening, axis1=1, axis2=2)).sum(axis=1)
    log_factors -= 0.5 * n_features * np.log(2 * np.pi)
    with np.errstate(divide="ignore"):  # a weight may be 0
        return _Densities(mixture.means, whitening, log_factors + np.log(mixture.weights))


def _log_joint_of(columns: Array64, densities: _Densities) -> Array64:
    """Return `log_joint` of one block of points, (n_components, n_points).

    ``columns`` (n_features, n_points) are the points, one feature after the other: so the sums over
    features and components run along whole rows of an array.
    """
    joint = np.empty((len(densities.means), columns.shape[1]))
    for group in _groups(columns, len(densities.means)):
        mean, whitening, log_factors = (array[group] for array in densities)
        whitened = whitening @ (columns - mean[:, :, np.newaxis])
        np.square(whitened, out=whitened)
        joint[group] = log_factors[:, np.newaxis] - 0.5 * whitened.sum(axis=1)
    return joint


def _groups(columns: Array64, n_components: int) -> Iterator[slice]:
    """Yield slices of components whose arrays for one block of points together stay in a cache.

    Few points and features have many components per slice, which saves calls of NumPy.
    """
    size = max(1, GROUP // max(1, columns.size))
    return (slice(first, first + size) for first in range(0, n_components, size))


def assign_components(X: Array64, mixture: Mixture) -> NDArray[np.int64]:
    """Return the most probable component of each point (n_points,); ties go to the first."""
    return log_joint(X, mixture).argmax(axis=1).astype(np.int64)


def _moments(columns: Array64, centres: Array64, weights: Array64) -> Moments:
    """Return the moments of points about the centres, for weights (n_components, n_points).

    ``columns`` (n_features, n_points) are the points. The moments of a cluster far from the origin
    about the origin would lose the digits that contain its variance.
    """
    n_components, n_features = centres.shape
    sums = np.empty((n_components, n_features))
    products = np.empty((n_components, n_features, n_features))
    for group in _groups(columns, n_components):
        differences = columns - centres[group, :, np.newaxis]
        weighted = weights[group, np.newaxis] * differences
        weighted.sum(axis=2, out=sums[group])
        np.matmul(weighted, differences.mT, out=products[group])
    return Moments(weights.sum(axis=1), sums, products)
