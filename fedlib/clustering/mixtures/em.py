"""Expectation-maximisation (EM) of a Gaussian mixture on one set of points.

A step of EM has two halves. `sum_responsibilities` computes the responsibility of each component
for each point and returns sums over the points. `maximise` computes the next mixture from the sums
alone, so the sums of several sets of points can be added before it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn
from numpy.typing import ArrayLike
from sklearn import config_context

from fedlib.clustering.mixtures.messages import (
    MATRICES,
    MAX_ITER,
    TINY,
    CovarianceType,
    Mixture,
    ResponsibilitySums,
    WeightedResponsibilitySums,
    contract,
    expand,
    parameters,
    positive_definite,
    scatter,
)
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest
from fedlib.core.column_names import as_table
from fedlib.core.messages import MessageError
from fedlib.kernels.mixtures import (
    Densities,
    Moments,
    add_expected,
    add_weighted,
    maximise_full,
    whiten,
)
from fedlib.kernels.mixtures import log_joint as log_joint_by_kernel


class Start(NamedTuple):
    """The given parameters of the first mixture. A parameter that is not given is empty.

    Attributes
    ----------
    weights : array (n_components,)
    means : array (n_components, n_features)
    covariances : array
        In the shape of `fedlib.clustering.mixtures.messages.covariance_shape`.
    """

    weights: Floats
    means: Floats
    covariances: Floats

    @property
    def complete(self) -> bool:
        """Whether all three parameters are given."""
        return all(map(len, self))


NOTHING_GIVEN = Start(np.empty(0), np.empty((0, 1)), np.empty((0, 1, 1)))


def given_start(
    n_components: int,
    covariance_type: CovarianceType,
    weights: ArrayLike | None,
    means: ArrayLike | None,
    precisions: ArrayLike | None,
) -> Start:
    """Check the parameters of the first mixture that the user gave, and return them.

    Parameters
    ----------
    n_components : int
    covariance_type : {"full", "tied", "diag", "spherical"}
    weights : array-like (n_components,) or None
        At least 0; their sum is 1.
    means : array-like (n_components, n_features) or None
    precisions : array-like or None
        The inverses of the covariances, symmetric and positive definite, in scikit-learn's shape.

    Raises
    ------
    ValueError
        When they are not parameters of a mixture of ``n_components`` components.

    Examples
    --------
    >>> start = given_start(2, "spherical", None, None, precisions=[4.0, 0.5])
    >>> start.covariances.ravel(), start.complete
    (array([0.25, 2.  ]), False)
    """
    start = NOTHING_GIVEN
    if weights is not None:
        start = start._replace(weights=_check_weights(weights, n_components))
    if means is not None:
        start = start._replace(means=_check_array("means_init", means, (n_components, None)))
    if precisions is not None:
        n_features = None if means is None else start.means.shape[1]
        covariances = _invert(precisions, n_components, n_features, covariance_type)
        start = start._replace(covariances=covariances)
    return start


def _check_weights(weights: ArrayLike, n_components: int) -> Floats:
    checked = _check_array("weights_init", weights, (n_components,))
    if (checked < 0).any() or abs(checked.sum() - 1) > 1e-6:
        raise ValueError(f"weights_init must be at least 0 and sum to 1, got {checked}")
    return checked


def _invert(
    precisions: ArrayLike,
    n_components: int,
    n_features: int | None,
    covariance_type: CovarianceType,
) -> Floats:
    """Return the covariances of precisions in scikit-learn's shape."""
    name, k, d = "precisions_init", n_components, n_features
    shape = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}[covariance_type]
    checked = _check_array(name, precisions, shape)
    if covariance_type in MATRICES:
        checked = checked.reshape(-1, *checked.shape[-2:])
        square = checked.shape[1] == checked.shape[2]
    else:
        checked = checked.reshape(k, 1, -1)
        square = True
    if not square or not positive_definite(checked, covariance_type):
        raise ValueError(f"{name} must be symmetric and positive definite, got\n{checked}")
    inverse = np.linalg.inv(checked) if covariance_type in MATRICES else 1 / checked
    return np.asarray(inverse, float)


def _check_array(name: str, array: ArrayLike, shape: tuple[int | None, ...]) -> Floats:
    """Return an array of finite numbers of a shape, in which None allows any length."""
    values = np.asarray(as_table(array), float)
    fits = values.ndim == len(shape) and all(
        wanted in (None, length) for wanted, length in zip(shape, values.shape, strict=True)
    )
    lengths = ", ".join("n_features" if length is None else str(length) for length in shape)
    if not fits or not values.size:
        raise ValueError(f"{name} must have the shape ({lengths}), got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite numbers")
    return values


LOG_2PI = np.log(2 * np.pi)
# Added to the variances of a first mixture that would be singular: a fraction of the mean variance.
# It is scikit-learn's default reg_covar for standardised features.
START_REGULARISATION = 1e-6


class _Parameters(NamedTuple):
    """The parameters of a mixture between two steps of EM: a `Mixture` without its checks.

    The checks take longer than a step on a few hundred points.
    """

    weights: Floats
    means: Floats
    covariances: Floats
    covariance_type: CovarianceType


def fit_mixture(
    X: Floats,
    n_components: int,
    covariance_type: CovarianceType = "full",
    reg_covar: float = 1e-6,
    random_state: Any = None,
    start: Start = NOTHING_GIVEN,
    max_iter: int = MAX_ITER,
    tol: float = 1e-3,
    sample_weight: Floats | None = None,
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
    sample_weight : array (n_points,) of float64, optional
        Above 0. A point with an integer weight counts like as many equal points in each step.

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
        kmeans = sklearn.cluster.KMeans(n_components, n_init=1, random_state=random_state)
        kmeans.fit(X, sample_weight=sample_weight)
    centres = kmeans.cluster_centers_
    moments = _zeros(centres)
    of_clusters = np.eye(n_components)[kmeans.labels_]
    if sample_weight is not None:
        of_clusters *= sample_weight[:, np.newaxis]
    add_weighted(X, centres, of_clusters, moments)
    moments = moments._replace(products=contract(moments.products, covariance_type))
    covariances = np.empty(0)
    if not moments.counts.all():  # a cluster without points gets the covariance of all points
        pooled = np.cov(X, rowvar=False, bias=True, aweights=sample_weight)
        pooled = pooled.reshape(1, X.shape[1], X.shape[1])
        covariances = contract(np.repeat(pooled, n_components, axis=0), covariance_type)
    from_kmeans = _Parameters(np.empty(0), centres, covariances, covariance_type)
    first = _next_parameters(from_kmeans, moments, reg_covar)
    if any(map(len, start)):
        pairs = zip(start, first[:3], strict=True)
        weights, means, covariances = (given if len(given) else fitted for given, fitted in pairs)
        first = _Parameters(weights, means, covariances, covariance_type)
    return _improve(X, first, reg_covar, max_iter, tol, sample_weight)


def fit_start(
    X: Floats,
    n_components: int,
    covariance_type: CovarianceType,
    reg_covar: float,
    random_state: Any,
    start: Start,
    sample_weight: Floats | None = None,
) -> Mixture:
    """Return `fit_mixture`, or if it is singular, a mixture with larger variances.

    The points of one client may be too few, or collinear, although those of all clients are not.

    Examples
    --------
    >>> X = np.array([[0.0, 1.0], [1.0, 1.0], [8.0, 1.0], [9.0, 1.0]])  # a constant column
    >>> fit_start(X, 1, "diag", 0.0, 0, NOTHING_GIVEN).covariances.round(6).tolist()
    [[[16.250008, 8e-06]]]
    """
    fit = partial(fit_mixture, X, n_components, covariance_type, sample_weight=sample_weight)
    try:
        return fit(reg_covar, random_state, start)
    except MessageError:
        if sample_weight is None:
            variances = X.var(axis=0)
        else:
            differences = X - np.average(X, axis=0, weights=sample_weight)
            variances = np.average(np.square(differences), axis=0, weights=sample_weight)
        return fit(reg_covar + START_REGULARISATION * float(variances.mean()), random_state, start)


def improve(
    X: Floats,
    mixture: Mixture,
    reg_covar: float,
    max_iter: int,
    tol: float,
    sample_weight: Floats | None = None,
) -> Mixture:
    """Return the mixture after at most ``max_iter`` steps of EM on points.

    The steps stop when the mean log-likelihood of the points changes by less than ``tol``.

    Raises
    ------
    MessageError
        When a covariance is not positive definite, or a number is too large.
    """
    current = _Parameters(*parameters(mixture), mixture.covariance_type)
    return _improve(X, current, reg_covar, max_iter, tol, sample_weight)


def _improve(
    X: Floats,
    current: _Parameters,
    reg_covar: float,
    max_iter: int,
    tol: float,
    sample_weight: Floats | None,
) -> Mixture:
    previous = -np.inf
    weight = len(X) if sample_weight is None else sample_weight.sum()
    for _ in range(max_iter):
        try:
            moments, total = _expect(X, current, sample_weight)
        except np.linalg.LinAlgError:
            Mixture(*current)  # raises the error that says what is wrong with the covariances
            raise
        if not math.isfinite(total):
            raise MessageError("the log-likelihood of the points must be finite")
        current = _next_parameters(current, moments, reg_covar)
        log_likelihood = total / weight
        if abs(log_likelihood - previous) < tol:
            break
        previous = log_likelihood
    return Mixture(*current)


def sum_responsibilities(
    X: Floats, mixture: Mixture, sample_weight: Floats | None = None
) -> ResponsibilitySums:
    """Return the sums over points that the M step of EM needs.

    With weights, it returns `WeightedResponsibilitySums`.

    Notes
    -----
    The points are summed in chunks of 128, one after the other. The rounding error of a sum of
    ``n`` terms is at most ``(n / 128 + 128) * 2**-53`` times the sum of their sizes. All sums are 0
    if one of them is not finite.

    Examples
    --------
    >>> mixture = Mixture(np.ones(1), np.array([[1.0]]), np.ones((1, 1, 1)), "full")
    >>> sums = sum_responsibilities(np.array([[1.0], [4.0]]), mixture)
    >>> sums.counts, sums.sums, sums.products
    (array([2.]), array([[3.]]), array([[[9.]]]))
    """
    moments, log_likelihood = _expect(X, mixture, sample_weight)
    if not np.isfinite([log_likelihood, *(array.sum() for array in moments)]).all():
        # A mixture far from some point; behind masks an error would disclose that there is one.
        moments, log_likelihood = _zeros(mixture.means), 0.0
        moments = moments._replace(products=contract(moments.products, mixture.covariance_type))
    if sample_weight is None:
        return ResponsibilitySums(len(X), log_likelihood, *moments)
    return WeightedResponsibilitySums(
        n_points=float(sample_weight.sum()), log_likelihood=log_likelihood, **moments._asdict()
    )


def _expect(
    X: Floats, mixture: Mixture | _Parameters, sample_weight: Floats | None
) -> tuple[Moments, float]:
    """Return the moments of `sum_responsibilities`, contracted, and the log-likelihood."""
    _check_features(X, mixture)
    moments = _zeros(mixture.means)
    log_likelihood = add_expected(np.ascontiguousarray(X), sample_weight, prepare(mixture), moments)
    products = contract(moments.products, mixture.covariance_type)
    return Moments(moments.counts, moments.sums, products), float(log_likelihood)


def _zeros(centres: Floats) -> Moments:
    n_components, n_features = centres.shape
    products = np.zeros((n_components, n_features, n_features))
    return Moments(np.zeros(n_components), np.zeros(centres.shape), products)


def maximise(
    means: Floats,
    covariances: Floats,
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
    if covariance_type == "full":
        new = np.empty(moments.products.shape)
        maximise_full(np.array(moments.products), shift, n, float(reg_covar), new)
    else:
        new = _maximise_contracted(moments.products, shift, n, reg_covar, covariance_type)
    empty = moments.counts <= TINY
    if empty.any():
        shift[empty] = 0
        if covariance_type != "tied":
            new[empty] = covariances[empty]
    return _Parameters(n / n.sum(), means + shift, new, covariance_type)


def _maximise_contracted(
    products: Floats,
    shift: Floats,
    n: Floats,
    reg_covar: float,
    covariance_type: CovarianceType,
) -> Floats:
    """Return the covariances that `maximise_full` writes, for the other three types."""
    within = products - scatter(shift, n, covariance_type)
    if covariance_type != "tied":
        return within / n[:, np.newaxis, np.newaxis] + reg_covar
    new = within / n.sum()
    new = (new + new.mT) / 2  # the difference of large sums may be asymmetric by rounding
    return new + reg_covar * np.eye(new.shape[-1])


def _check_features(X: Floats, mixture: Mixture | _Parameters) -> None:
    n_features = mixture.means.shape[1]
    if X.shape[1] != n_features:
        raise BadRequest(f"X must have the {n_features} features of the mixture, got {X.shape[1]}")


def log_joint(X: Floats, mixture: Mixture) -> Floats:
    """Return the logarithm of weight times density (n_points, n_components).

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    mixture : Mixture

    Raises
    ------
    ValueError
        When the points and the mixture have different numbers of features.

    Examples
    --------
    >>> mixture = Mixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)), "full")
    >>> np.exp(log_joint(np.array([[0.0]]), mixture)) == 1 / np.sqrt(2 * np.pi)
    array([[ True]])
    """
    _check_features(X, mixture)
    joint = np.empty((len(X), len(mixture.means)))
    log_joint_by_kernel(np.ascontiguousarray(X), prepare(mixture), joint)
    return joint


def prepare(mixture: Mixture | _Parameters) -> Densities:
    """Return what the densities of a mixture's components follow from.

    Raises
    ------
    LinAlgError
        When a covariance is not positive definite.
    """
    n_components, n_features = mixture.means.shape
    matrices = expand(mixture.covariances, n_components, n_features, mixture.covariance_type)
    whitening = np.empty(matrices.shape)
    if not whiten(np.array(matrices), whitening):
        raise np.linalg.LinAlgError("a covariance is not positive definite")
    log_factors = np.log(whitening.diagonal(0, 1, 2)).sum(axis=1)
    log_factors -= 0.5 * n_features * LOG_2PI
    with np.errstate(divide="ignore"):  # a weight may be 0
        log_factors += np.log(mixture.weights)
    return Densities(np.array(mixture.means), whitening, log_factors)


def assign_components(X: Floats, mixture: Mixture) -> Ints:
    """Return the most probable component of each point (n_points,); ties go to the first."""
    return log_joint(X, mixture).argmax(axis=1).astype(np.int64)
