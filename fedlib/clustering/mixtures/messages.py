"""The messages of federated Gaussian mixtures, and the checks that reject invalid ones.

The covariances of a Gaussian mixture, of the four types of scikit-learn's `GaussianMixture`.

In this package the covariances of every type have three axes, so that one formula serves all types.
With k components and d features, their shape is (k, d, d) for ``"full"``, (1, d, d) for ``"tied"``,
(k, 1, d) for ``"diag"`` and (k, 1, 1) for ``"spherical"``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

import msgspec
import numpy as np

from fedlib.core.array_types import Floats
from fedlib.core.messages import STEP, Array, FeatureNames, Message, MessageError
from fedlib.core.points import MAX_COORDINATE
from fedlib.kernels.mixtures import whiten

CovarianceType = Literal["full", "tied", "diag", "spherical"]
MATRICES = ("full", "tied")  # the types whose covariances are matrices; the others are variances


def covariance_shape(
    n_components: int, n_features: int, covariance_type: CovarianceType
) -> tuple[int, ...]:
    """Return the shape of a mixture's covariances.

    Examples
    --------
    >>> covariance_shape(5, 2, "diag")
    (5, 1, 2)
    """
    return {
        "full": (n_components, n_features, n_features),
        "tied": (1, n_features, n_features),
        "diag": (n_components, 1, n_features),
        "spherical": (n_components, 1, 1),
    }[covariance_type]


def expand(
    covariances: Floats, n_components: int, n_features: int, covariance_type: CovarianceType
) -> Floats:
    """Return the covariance matrix (n_components, n_features, n_features) of each component.

    Examples
    --------
    >>> expand(np.array([[[3.0]]]), 1, 2, "spherical")
    array([[[3., 0.],
            [0., 3.]]])
    """
    if covariance_type not in MATRICES:
        covariances = covariances * np.eye(n_features)
    if len(covariances) == n_components:
        return covariances
    return np.broadcast_to(covariances, (n_components, n_features, n_features))


def contract(matrices: Floats, covariance_type: CovarianceType) -> Floats:
    """Reduce each component's sum of outer products to the part that its covariance needs.

    Parameters
    ----------
    matrices : array (n_components, n_features, n_features)
    covariance_type : {"full", "tied", "diag", "spherical"}

    Returns
    -------
    array
        The matrices for ``"full"``, their sum for ``"tied"``, their diagonals for ``"diag"``, and
        the means of their diagonals for ``"spherical"``, in the shape of `covariance_shape`.

    Examples
    --------
    >>> contract(np.array([[[4.0, 1.0], [1.0, 2.0]]]), "spherical")
    array([[[3.]]])
    """
    if covariance_type == "full":
        return matrices
    if covariance_type == "tied":
        return matrices.sum(axis=0, keepdims=True)
    diagonals = np.diagonal(matrices, axis1=1, axis2=2)[:, np.newaxis]
    return diagonals if covariance_type == "diag" else diagonals.mean(axis=2, keepdims=True)


def scatter(vectors: Floats, weights: Floats, covariance_type: CovarianceType) -> Floats:
    """Return the weighted outer product of each component's vector with itself, contracted.

    Parameters
    ----------
    vectors : array (n_components, n_features)
    weights : array (n_components,)
    covariance_type : {"full", "tied", "diag", "spherical"}

    Examples
    --------
    >>> scatter(np.array([[1.0, 2.0]]), np.array([10.0]), "diag")
    array([[[10., 40.]]])
    """
    outer = vectors[:, :, np.newaxis] * vectors[:, np.newaxis, :]
    return contract(outer * weights[:, np.newaxis, np.newaxis], covariance_type)


def positive_definite(covariances: Floats, covariance_type: CovarianceType) -> bool:
    """Return whether covariances are symmetric, up to rounding, and positive definite.

    Server and clients decide it by the factorisation that also computes the densities. Otherwise a
    client could fail on a mixture that the server has accepted.

    Examples
    --------
    >>> positive_definite(np.array([[[1.0, 2.0], [2.0, 1.0]]]), "full")
    False
    """
    if covariance_type not in MATRICES:
        return bool((covariances > 0).all())
    if not whiten(np.array(covariances), np.empty(covariances.shape)):
        return False
    asymmetry = np.abs(covariances - covariances.mT)
    return bool((asymmetry <= 1e-9 * np.abs(covariances).max(initial=0)).all())


def precisions(covariances: Floats, covariance_type: CovarianceType) -> tuple[Floats, Floats]:
    """Return the precisions' Cholesky factors and the precisions, shaped like the covariances.

    A precision is the inverse of a covariance. As in scikit-learn, a factor is upper triangular,
    and the product of a factor and its transpose is the precision.

    Examples
    --------
    >>> precisions(np.array([[[4.0]]]), "full")
    (array([[[0.5]]]), array([[[0.25]]]))
    """
    if covariance_type not in MATRICES:
        return 1 / np.sqrt(covariances), 1 / covariances
    inverse = np.linalg.inv(np.linalg.cholesky(covariances))
    return inverse.mT, inverse.mT @ inverse


def sklearn_shape(array: Floats, covariance_type: CovarianceType) -> Floats:
    """Return a copy of covariances, or of precisions, in the shape that scikit-learn uses.

    Examples
    --------
    >>> sklearn_shape(np.ones((5, 1, 2)), "diag").shape
    (5, 2)
    """
    if covariance_type == "full":
        return array.copy()
    if covariance_type == "tied":
        return array[0].copy()
    return array[:, 0].copy() if covariance_type == "diag" else array[:, 0, 0].copy()


# Bounds on means, sums over points and squares. They leave a margin, so that sums over any number
# of clients do not overflow.
MAX_SUM = 1e120
MAX_SQUARE = MAX_SUM**2
# Added to every component's count of points, as in scikit-learn, so that nothing is divided by 0.
TINY = 10 * np.finfo(np.float64).eps
MAX_ITER = 100  # of EM on the points of one client alone
SINGULAR_ADVICE = "fewer components, a larger reg_covar or differently scaled features may help"
SMALLEST_NORMAL = np.finfo(np.float64).tiny  # smaller numbers have fewer significant digits

Weights = Annotated[np.ndarray, Array("float64", ("components",), ge=0, le=1)]
Means = Annotated[
    np.ndarray,
    Array("float64", ("components", "features"), ge=-MAX_COORDINATE, le=MAX_COORDINATE),
]
Covariances = Annotated[
    np.ndarray,
    Array("float64", ("matrices", "rows", "columns"), ge=-MAX_SQUARE, le=MAX_SQUARE),
]
Sums = Annotated[np.ndarray, Array("float64", ("components", "features"), ge=-MAX_SUM, le=MAX_SUM)]
LogLikelihood = Annotated[float, msgspec.Meta(ge=-MAX_SQUARE, le=MAX_SQUARE)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
TotalWeight = Annotated[float, msgspec.Meta(ge=0, le=2.0**60)]
Magnitude = Annotated[int, msgspec.Meta(ge=-1100, le=333)]  # 2**333 > MAX_COORDINATE


class Mixture(Message):
    """A Gaussian mixture. Its weights sum to 1 and its covariances are positive definite.

    For the shape of the covariances see `fedlib.clustering.mixtures.messages`.
    """

    discloses = "a Gaussian mixture"
    weights: Weights
    means: Means
    covariances: Covariances
    covariance_type: CovarianceType

    @property
    def n_components(self) -> int:
        """The count of components."""
        return len(self.weights)

    def work(self) -> float:
        return float(self.means.size)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        total = self.weights.sum()
        if abs(total - 1) > 1e-6:
            raise MessageError(f"{name}.weights must sum to 1, got the sum {total}")
        wanted = covariance_shape(len(self.weights), self.means.shape[1], self.covariance_type)
        if self.covariances.shape != wanted:
            raise MessageError(
                f"{name}.covariances must have the shape {wanted}, got {self.covariances.shape}"
            )
        if not positive_definite(self.covariances, self.covariance_type):
            raise MessageError(f"{name}.covariances must be positive definite; {SINGULAR_ADVICE}")


class PointsIntroduction(Message):
    """The features of a client's points, and whether a first mixture can be fitted to them.

    No coordinate of a point is above 2**magnitude; the server refuses means and variances beyond.
    """

    discloses = (
        "the number and names of the features, whether there are enough distinct points, the order"
        " of magnitude of the largest coordinate, and whether the points have weights"
    )
    extremes = True
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    can_start: bool
    magnitude: Magnitude | None
    features: FeatureNames = ()
    weighted: bool = False  # whether the points have weights


class IntroducePoints(Message):
    """Report your features, and whether you have enough distinct points to fit a mixture.

    Report also the smallest power of two above all coordinates; None without points.
    """

    discloses = "the count of components"
    effortless = ("n_components",)  # counted up to the distinct rows
    reply = PointsIntroduction
    n_components: Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class LocalMixture(Mixture):
    """A mixture fitted to the points of one client alone."""

    discloses = "the Gaussian mixture of one client's points"


class FitMixture(Message):
    """Fit a mixture to your points. Start from the given parameters; an empty array gives none."""

    discloses = "a seed, and any start that the server's user gave"
    effortless = ("seed",)
    reply = LocalMixture
    n_components: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    covariance_type: CovarianceType
    reg_covar: Annotated[float, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    weights: Annotated[np.ndarray, Array("float64", ("weights",), ge=0, le=1)]
    means: Annotated[np.ndarray, Array("float64", ("means", "features"))]
    covariances: Annotated[np.ndarray, Array("float64", ("matrices", "rows", "columns"))]

    def work(self) -> float:
        return float(self.n_components * MAX_ITER) * self.n_features

    def accept(self, reply: Message) -> Message:
        wanted = self.n_components, self.n_features
        _check_mixture(cast(Mixture, reply), wanted, self.covariance_type)
        return reply


class ResponsibilitySums(Message):
    """Sums over a client's points, weighted by each component's responsibility for each point.

    ``sums`` are of the points' differences from the component's current mean. ``products`` are of
    these differences' outer products, contracted to the shape of the mixture's covariances.
    """

    discloses = (
        "per component: the number, mean and covariance of a client's points; for a single point,"
        " the point itself"
    )
    n_points: Count
    log_likelihood: LogLikelihood
    counts: Annotated[np.ndarray, Array("float64", ("components",), ge=0, le=2.0**41)]
    sums: Sums
    products: Covariances


class WeightedResponsibilitySums(ResponsibilitySums):
    """Sums over points that have weights; ``n_points`` and ``counts`` are sums of weights."""

    discloses = (
        "per component: the weight, weighted mean and covariance of a client's points; for a single"
        " point, the point itself and its weight"
    )
    n_points: TotalWeight  # type: ignore[assignment]


class SumResponsibilities(Mixture):
    """Sum your points, weighted by the responsibility of each component of this mixture."""

    discloses = "the Gaussian mixture of all clients' points so far"
    reply: ClassVar[type[Message]] = ResponsibilitySums

    def reply_lengths(self) -> dict[str, int]:
        axes = "components", "features", "matrices", "rows", "columns"
        return dict(zip(axes, (*self.means.shape, *self.covariances.shape), strict=True))

    def accept(self, reply: Message) -> Message:
        received = cast(ResponsibilitySums, reply)
        for name, array, wanted in (
            ("sums", received.sums, self.means),
            ("products", received.products, self.covariances),
        ):
            if array.shape != wanted.shape:
                raise MessageError(
                    f"ResponsibilitySums.{name} must have the shape {wanted.shape},"
                    f" got {array.shape}"
                )
        total = received.counts.sum()
        if abs(total - received.n_points) > 1e-6 * max(1, received.n_points):
            raise MessageError(
                f"ResponsibilitySums.counts must sum to n_points={received.n_points}, got {total}"
            )
        if not _consistent(received, self):
            raise MessageError("ResponsibilitySums is not consistent with any set of points")
        return reply


class SumWeightedResponsibilities(SumResponsibilities):
    """Sum your weighted points by the responsibility of each component of this mixture."""

    reply = WeightedResponsibilitySums


class ImprovedMixture(Mixture):
    """A mixture improved on one client's points, and the likelihood of the mixture received.

    A client with fewer points than `min_points`, or with a singular covariance, cannot improve the
    mixture: it returns the mixture unchanged with ``improved=False``, and the server leaves it out
    of the average.
    """

    discloses = "how many points a client has, their log-likelihood, and their Gaussian mixture"
    n_points: Count
    log_likelihood: LogLikelihood
    improved: bool


class WeightedImprovedMixture(ImprovedMixture):
    """A mixture improved on points that have weights; ``n_points`` is the sum of the weights."""

    discloses = "the weight of a client's points, their log-likelihood, and their Gaussian mixture"
    n_points: TotalWeight  # type: ignore[assignment]


class ImproveMixture(Mixture):
    """Evaluate this mixture on your points, then improve it on them by EM."""

    discloses = "the average of all clients' Gaussian mixtures so far"
    reply: ClassVar[type[Message]] = ImprovedMixture
    reg_covar: Annotated[float, msgspec.Meta(ge=0)]
    max_iter: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    tol: Annotated[float, msgspec.Meta(ge=0)]

    def work(self) -> float:
        return (super().work() + STEP) * self.max_iter

    def accept(self, reply: Message) -> Message:
        mixture = cast(ImprovedMixture, reply)
        _check_mixture(mixture, self.means.shape, self.covariance_type)
        needed = min_points(len(self.weights))
        counted = self.reply is ImprovedMixture  # a sum of weights says nothing of their number
        if counted and mixture.improved and mixture.n_points < needed:
            raise MessageError(
                f"ImprovedMixture.n_points must be at least {needed} for an improved mixture,"
                f" got {mixture.n_points}"
            )
        return reply


class ImproveWeightedMixture(ImproveMixture):
    """Evaluate this mixture on your weighted points, then improve it on them by EM."""

    reply = WeightedImprovedMixture


class Likelihood(Message):
    """A client's count of points, and their log-likelihood."""

    discloses = "how many points a client has, and their log-likelihood"
    n_points: Count
    log_likelihood: LogLikelihood


class MeasureLikelihood(Mixture):
    """Report the count of your points, and their log-likelihood in this mixture."""

    discloses = "the Gaussian mixture of all clients' points"
    reply = Likelihood


class AssignComponents(Mixture):
    """Assign each of your points to its most probable component."""

    discloses = "the Gaussian mixture of all clients' points"
    asks_for_data = False


def parameters(mixture: Mixture) -> tuple[Floats, Floats, Floats]:
    """Return the weights, means and covariances of a mixture."""
    return mixture.weights, mixture.means, mixture.covariances


def min_points(n_components: int) -> int:
    """Return the minimum count of points for a fit: one per component, and at least two."""
    return max(2, n_components)


def _check_mixture(reply: Mixture, shape: tuple[int, ...], covariance_type: CovarianceType) -> None:
    """Raise MessageError when a mixture does not have the requested shape and covariance type."""
    received = reply.means.shape, reply.covariance_type
    if received != (shape, covariance_type):
        raise MessageError(
            f"{type(reply).__name__} must have means of the shape {shape} and"
            f" {covariance_type!r} covariances, got {received[0]} and {received[1]!r}"
        )


def _consistent(received: ResponsibilitySums, mixture: Mixture) -> bool:
    """Return whether points with these sums exist: no negative variance, no mean out of range."""
    n = received.counts + TINY
    shift = received.sums / n[:, np.newaxis]
    within = received.products - scatter(shift, n, mixture.covariance_type)
    if mixture.covariance_type in MATRICES:
        asymmetry = np.abs(received.products - received.products.swapaxes(1, 2))
        largest = np.abs(received.products).max(axis=(1, 2), keepdims=True)
        if (asymmetry > 1e-9 * largest + SMALLEST_NORMAL).any():
            return False
        scale = np.trace(received.products, axis1=1, axis2=2)[:, np.newaxis]
        smallest = np.linalg.eigvalsh(within)
    else:
        scale, smallest = received.products, within
    in_range = np.abs(mixture.means + shift).max() <= MAX_COORDINATE / 2
    # Rounding can make a variance negative by a tiny part of the second moment. Responsibilities
    # that underflow have too few digits even for that.
    smallest = smallest + SMALLEST_NORMAL
    return bool(in_range and (scale >= 0).all() and (smallest >= -1e-9 * scale).all())
