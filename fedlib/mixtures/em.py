"""Expectation-maximisation (EM) of a Gaussian mixture on one set of points.

A step of EM has two halves. `sum_responsibilities` computes the responsibility of each component
for each point and returns sums over the points. `maximise` computes the next mixture from the sums
alone, so the sums of several sets of points can be added before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

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
    kmeans = KMeans(n_components, n_init=1, random_state=random_state).fit(X)
    centres = kmeans.cluster_centers_
    moments = _moments(X, centres, np.eye(n_components)[kmeans.labels_], covariance_type)
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
    """
    previous = -np.inf
    for _ in range(max_iter):
        sums = sum_responsibilities(X, mixture)
        mixture = maximise(
            mixture.means, mixture.covariances, mixture.covariance_type, sums, reg_covar
        )
        log_likelihood = sums.log_likelihood / len(X)
        if abs(log_likelihood - previous) < tol:
            break
        previous = log_likelihood
    return mixture


def sum_responsibilities(X: Array64, mixture: Mixture) -> ResponsibilitySums:
    """Return the sums over points that the M step of EM needs.

    Examples
    --------
    >>> mixture = Mixture(np.ones(1), np.array([[1.0]]), np.ones((1, 1, 1)), "full")
    >>> sums = sum_responsibilities(np.array([[1.0], [4.0]]), mixture)
    >>> sums.counts, sums.sums, sums.products
    (array([2.]), array([[3.]]), array([[[9.]]]))
    """
    joint = log_joint(X, mixture)
    log_likelihoods = np.logaddexp.reduce(joint, axis=1)
    responsibilities = np.exp(joint - log_likelihoods[:, np.newaxis])
    moments = _moments(X, mixture.means, responsibilities, mixture.covariance_type)
    return ResponsibilitySums(len(X), float(log_likelihoods.sum()), *moments)


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
    return Mixture(n / n.sum(), means + shift, new, covariance_type)


def log_joint(X: Array64, mixture: Mixture) -> Array64:
    """Return the logarithm of weight times density (n_points, n_components).

    Examples
    --------
    >>> mixture = Mixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)), "full")
    >>> np.exp(log_joint(np.array([[0.0]]), mixture)) == 1 / np.sqrt(2 * np.pi)
    array([[ True]])
    """
    n_components, n_features = mixture.means.shape
    matrices = expand(mixture.covariances, n_components, n_features, mixture.covariance_type)
    joint = np.empty((len(X), n_components))
    for k, whitening in enumerate(np.linalg.inv(np.linalg.cholesky(matrices))):
        whitened = (X - mixture.means[k]) @ whitening.T
        joint[:, k] = np.log(whitening.diagonal()).sum() - 0.5 * (whitened**2).sum(axis=1)
    with np.errstate(divide="ignore"):  # a weight may be 0
        return joint - 0.5 * n_features * np.log(2 * np.pi) + np.log(mixture.weights)


def assign_components(X: Array64, mixture: Mixture) -> NDArray[np.int64]:
    """Return the most probable component of each point (n_points,); ties go to the first."""
    return log_joint(X, mixture).argmax(axis=1).astype(np.int64)


def _moments(
    X: Array64, centres: Array64, weights: Array64, covariance_type: CovarianceType
) -> Moments:
    """Return the moments of points about the centres, for weights (n_points, n_components).

    The moments of a cluster far from the origin about the origin would lose the digits that
    contain its variance.
    """
    n_components, n_features = centres.shape
    sums = np.empty((n_components, n_features))
    products = np.empty((n_components, n_features, n_features))
    for k, centre in enumerate(centres):
        difference = X - centre
        weighted = weights[:, k, np.newaxis] * difference
        sums[k] = weighted.sum(axis=0)
        products[k] = weighted.T @ difference
    return Moments(weights.sum(axis=0), sums, contract(products, covariance_type))
