"""Federated Gaussian mixtures: clients hold other rows of the same features.

A mixture is fitted by expectation-maximisation (EM). ``method="em"``: a round is one step of it
over all points of all clients. Each client takes its points' shares in the components and sends
their sums, their weighted sums and their weighted outer products; the server adds them up and has
the very mixture that EM would have on the pooled points. ``method="average"``: a round is FedAvg.
Each client improves the mixture on its own points and sends it, and the server averages.

Source: F, §5.1, for ``"average"``. What it leaves open is settled under `FederatedGaussianMixture`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.federated import Federated, PointsClient
from fedlib.messages import Array, Done, FeatureNames, Labels, Message, MessageError
from fedlib.protocol import Flow, agree_on_features, handles
from fedlib.validation import Interval, StrOptions, check_points

__all__ = [
    "AssignComponents",
    "FederatedGaussianMixture",
    "FitMixture",
    "GaussianMixtureClient",
    "ImproveMixture",
    "ImprovedMixture",
    "IntroducePoints",
    "LocalMixture",
    "Mixture",
    "MixtureModel",
    "PointsIntroduction",
    "ResponsibilitySums",
    "SumResponsibilities",
    "federated_gaussian_mixture",
    "fit_mixture",
    "improve",
]

Array64 = NDArray[np.float64]
CovarianceType = Literal["full", "tied", "diag", "spherical"]
MATRICES = ("full", "tied")  # the kinds whose covariances are matrices, not variances

# No mean lies further out; sums over points are bounded too, so that whatever clients say, no sum
# of it overflows.
LARGEST = 1e100
LARGEST_SUM = 1e120
LARGEST_SQUARE = LARGEST_SUM**2
# As in scikit-learn, what each component has beside its points: nothing is divided by zero.
TINY = 10 * np.finfo(np.float64).eps
SMALLEST = np.finfo(np.float64).tiny  # numbers below have fewer digits

Weights = Annotated[np.ndarray, Array("float64", ("components",), ge=0, le=1)]
Means = Annotated[np.ndarray, Array("float64", ("components", "features"), ge=-LARGEST, le=LARGEST)]
Covariances = Annotated[
    np.ndarray,
    Array("float64", ("matrices", "rows", "columns"), ge=-LARGEST_SQUARE, le=LARGEST_SQUARE),
]
Sums = Annotated[
    np.ndarray, Array("float64", ("components", "features"), ge=-LARGEST_SUM, le=LARGEST_SUM)
]
LogLikelihood = Annotated[float, msgspec.Meta(ge=-LARGEST_SQUARE, le=LARGEST_SQUARE)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Mixture(Message):
    """A Gaussian mixture; its weights sum to 1, its covariances are positive definite.

    The covariances of k components in d features are an array (k, d, d) if ``"full"``, (1, d, d) if
    ``"tied"``, (k, 1, d) if ``"diag"`` and (k, 1, 1) if ``"spherical"``.
    """

    discloses = "a Gaussian mixture"
    weights: Weights
    means: Means
    covariances: Covariances
    covariance_type: CovarianceType

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if abs(self.weights.sum() - 1) > 1e-6:
            raise MessageError(f"{name}.weights must sum to 1")
        wanted = covariance_shape(len(self.weights), self.means.shape[1], self.covariance_type)
        if self.covariances.shape != wanted:
            raise MessageError(f"{name}.covariances must have the shape {wanted}")
        if not positive_definite(self.covariances, self.covariance_type):
            raise MessageError(
                f"{name}.covariances must be positive definite: fewer components, a larger"
                " reg_covar or features on another scale may help"
            )


class PointsIntroduction(Message):
    """How many features a client's points have, any names, and whether they can start a mixture."""

    discloses = "the number and names of the features, whether there are enough distinct points"
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    can_start: bool
    features: FeatureNames = ()


class IntroducePoints(Message):
    """Say what features your points have, and whether so many of them are distinct."""

    discloses = "the number of components"
    reply = PointsIntroduction
    n_components: Annotated[int, msgspec.Meta(ge=1)]


class LocalMixture(Mixture):
    """A mixture that was fitted to the points of one client alone."""

    discloses = "the Gaussian mixture of one client's points"


class FitMixture(Message):
    """Fit a mixture to your points; where a start is given (not empty), start from it."""

    discloses = "a seed, and any start that the server's user gave"
    reply = LocalMixture
    n_components: Annotated[int, msgspec.Meta(ge=1)]
    n_features: Annotated[int, msgspec.Meta(ge=1)]
    covariance_type: CovarianceType
    reg_covar: Annotated[float, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    weights: Annotated[np.ndarray, Array("float64", ("weights",), ge=0, le=1)]
    means: Annotated[np.ndarray, Array("float64", ("means", "features"))]
    covariances: Annotated[np.ndarray, Array("float64", ("matrices", "rows", "columns"))]

    def accept(self, reply: Message) -> Message:
        _check_alike(cast(Mixture, reply), (self.n_components, self.n_features), self)
        return reply


class ResponsibilitySums(Message):
    """A client's points, summed over by their shares in each component, about its current mean.

    ``products`` has the shape of the mixture's covariances: outer products, summed over all
    components if ``"tied"``; of each feature if ``"diag"``, their mean if ``"spherical"``.
    """

    discloses = "by component: number, mean and covariance of a client's points (of one: itself)"
    n_points: Count
    log_likelihood: LogLikelihood
    counts: Annotated[np.ndarray, Array("float64", ("components",), ge=0, le=2.0**41)]
    sums: Sums
    products: Covariances


class SumResponsibilities(Mixture):
    """Sum your points up by their shares in the components of this mixture."""

    discloses = "the Gaussian mixture of all clients' points so far"
    reply = ResponsibilitySums

    def accept(self, reply: Message) -> Message:
        sums = cast(ResponsibilitySums, reply)
        if sums.sums.shape != self.means.shape or sums.products.shape != self.covariances.shape:
            raise MessageError("ResponsibilitySums does not have the mixture's shape")
        if abs(sums.counts.sum() - sums.n_points) > 1e-6 * max(1, sums.n_points):
            raise MessageError("ResponsibilitySums.counts must sum to n_points")
        if not _possible(sums, self):
            raise MessageError("ResponsibilitySums is of no points that could be")
        return reply


class ImprovedMixture(Mixture):
    """A mixture improved on one client's points, and the likelihood of the one that it was given.

    A client with fewer points than components cannot improve anything: it sends the mixture back
    and says so (``improved``), and is left out of the average.
    """

    discloses = "how many points a client has, their log-likelihood, and their Gaussian mixture"
    n_points: Count
    log_likelihood: LogLikelihood
    improved: bool


class ImproveMixture(Mixture):
    """Evaluate this mixture on your points, then improve it on them."""

    discloses = "the average of all clients' Gaussian mixtures so far"
    reply = ImprovedMixture
    reg_covar: Annotated[float, msgspec.Meta(ge=0)]
    max_iter: Annotated[int, msgspec.Meta(ge=1)]
    tol: Annotated[float, msgspec.Meta(ge=0)]

    def accept(self, reply: Message) -> Message:
        mixture = cast(ImprovedMixture, reply)
        _check_alike(mixture, self.means.shape, self)
        if mixture.improved and mixture.n_points < least_points(len(self.weights)):
            raise MessageError("ImprovedMixture is improved on too few points")
        return reply


class AssignComponents(Mixture):
    """Give each of your points to the component to which it most probably belongs."""

    discloses = "the Gaussian mixture of all clients' points"
    asks_for_data = False


@dataclass(frozen=True)
class MixtureModel:
    """The mixture, the number of rounds, the log-likelihood of each, whether it converged."""

    mixture: Mixture
    n_rounds: int
    log_likelihoods: list[float]
    converged: bool


def federated_gaussian_mixture(
    n_components: int,
    method: str = "average",
    covariance_type: CovarianceType = "full",
    reg_covar: float = 1e-6,
    weights_init: ArrayLike | None = None,
    means_init: ArrayLike | None = None,
    precisions_init: ArrayLike | None = None,
    max_rounds: int = 100,
    tol: float = 1e-3,
    max_local_iter: int = 100,
    random_state: Any = None,
) -> Flow[MixtureModel]:
    """Return the server flow; for the parameters see `FederatedGaussianMixture`."""
    if method not in ("average", "em"):
        raise ValueError(f"method must be 'average' or 'em'; got {method!r}")
    start = given_start(n_components, covariance_type, weights_init, means_init, precisions_init)
    mixture = yield from _start(
        int(n_components), covariance_type, float(reg_covar), start, random_state
    )
    history: list[float] = []
    present: list[str] = []
    converged = False
    while not converged and len(history) < max_rounds:
        said = *_arrays(mixture), covariance_type
        if method == "em":
            replies = yield SumResponsibilities(*said)
            mixture = add_up(mixture, replies, reg_covar)
        else:
            replies = yield ImproveMixture(*said, float(reg_covar), int(max_local_iter), float(tol))
            mixture = average(replies)
        n_points = sum(reply.n_points for reply in replies.values())
        history.append(fsum(reply.log_likelihood for reply in replies.values()) / n_points)
        # The likelihoods of other clients' points are not compared with these clients'.
        same = present == list(replies)
        converged = same and abs(history[-1] - history[-2]) < tol
        present = list(replies)
    yield AssignComponents(*_arrays(mixture), covariance_type)
    return MixtureModel(mixture, len(history), history, converged)


class Start(NamedTuple):
    """What of a mixture the user gave; empty where nothing."""

    weights: Array64
    means: Array64
    covariances: Array64


def _start(
    n_components: int,
    covariance_type: CovarianceType,
    reg_covar: float,
    start: Start,
    random_state: Any,
) -> Flow[Mixture]:
    """Return the first mixture: the user's, or one fitted by one client drawn at random.

    Where that client is lost, the next one drawn takes its place.
    """
    replies = yield IntroducePoints(n_components)
    n_features = agree_on_features(replies)
    given = {"means_init": start.means}
    if covariance_type != "spherical":
        given["precisions_init"] = start.covariances
    for name, array in given.items():
        if len(array) and array.shape[-1] != n_features:
            raise ValueError(
                f"{name} has {array.shape[-1]} features, the clients' points {n_features}"
            )
    if all(map(len, start)):
        return Mixture(*start, covariance_type)
    rng = check_random_state(random_state)
    able = [name for name, reply in replies.items() if reply.can_start]
    for i in rng.permutation(len(able)):
        seed = int(rng.randint(2**31))
        local = yield {
            able[i]: FitMixture(n_components, n_features, covariance_type, reg_covar, seed, *start)
        }
        for own in local.values():
            return Mixture(*_arrays(own), covariance_type)
    raise ValueError(
        f"no client (left) can fit the first mixture: n_components={n_components} needs at least"
        f" {least_points(n_components)} distinct points"
    )


class GaussianMixtureClient(PointsClient):
    """A client and its points, as in `PointsClient`."""

    @handles(IntroducePoints)
    def introduce_points(self, request: IntroducePoints) -> PointsIntroduction:
        distinct = len(np.unique(self.X, axis=0))
        return PointsIntroduction(
            self.X.shape[1], distinct >= least_points(request.n_components), self.features
        )

    @handles(FitMixture)
    def fit_mixture(self, request: FitMixture) -> LocalMixture:
        mixture = fit_mixture(
            self.X,
            request.n_components,
            request.covariance_type,
            request.reg_covar,
            request.seed,
            start=Start(request.weights, request.means, request.covariances),
        )
        return LocalMixture(*_arrays(mixture), request.covariance_type)

    @handles(SumResponsibilities)
    def sum_responsibilities(self, request: SumResponsibilities) -> ResponsibilitySums:
        return sum_responsibilities(self.X, request)

    @handles(ImproveMixture)
    def improve_mixture(self, request: ImproveMixture) -> ImprovedMixture:
        n_points = len(self.X)
        likelihood = float(np.logaddexp.reduce(log_joint(self.X, request), axis=1).sum())
        better: Mixture = request
        improved = n_points >= least_points(len(request.weights))
        if improved:
            better = improve(self.X, request, request.reg_covar, request.max_iter, request.tol)
        return ImprovedMixture(
            *_arrays(better), request.covariance_type, n_points, likelihood, improved
        )

    @handles(AssignComponents)
    def assign_components(self, request: AssignComponents) -> Done:
        self.state = Labels(assign_components(self.X, request))
        return Done()


class FederatedGaussianMixture(Federated):
    """A Gaussian mixture fitted over clients that hold other rows of the same features.

    Parameters
    ----------
    n_components : int
        The number of components, at least 1.
    method : {"average", "em"}, default="average"
        What a round is. ``"em"``: one step of EM over all points, exactly. ``"average"``: each
        client's own EM from the common mixture, then FedAvg: the average of the clients' weights,
        means and covariances, in proportion to their numbers of points.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        Each component's own covariance, one for all, each component's variance of each feature, or
        one variance for each component.
    reg_covar : float, default=1e-6
        Added to every variance at each step, at least 0, in squared units of the features.
    weights_init : array-like (n_components,), default=None
    means_init : array-like (n_components, n_features), default=None
    precisions_init : array-like, default=None
        The first mixture; precisions are inverse covariances, in the shape of ``covariances_``.
        Where not all three are given, one client drawn at random fits a mixture to its own points,
        starting from those that are, and that is the first mixture (F, §5.1).
    max_rounds : int, default=100
        The most rounds, at least 1.
    tol : float, default=1e-3
        The rounds stop when the mean log-likelihood of all points changes by less than this from
        one round to the next, with the same clients in both. At least 0; with 0 all rounds are run.
    max_local_iter : int, default=100
        The most steps of EM of a client within a round of ``"average"``, at least 1; they stop by
        ``tol`` too.
    random_state : int, RandomState or None, default=None
        Draws the client that fits the first mixture, and the start of that fit.

    Attributes
    ----------
    weights_ : array (n_components,)
    means_ : array (n_components, n_features)
    covariances_ : array
        (n_components, n_features, n_features) if ``"full"``, (n_features, n_features) if
        ``"tied"``, (n_components, n_features) if ``"diag"``, (n_components,) if ``"spherical"``.
    converged_ : bool
    n_rounds_ : int
    lower_bound_ : float
        The mean log-likelihood of all clients' points at the start of the last round, as in
        scikit-learn.
    lower_bounds_ : list of float
        The same of every round.
    labels_ : list of array of int64
        The component of each client's points. Only if the parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range; when no client has ``n_components`` distinct points (at
        least two) to fit the first mixture to; when a covariance is not positive definite.

    Warns
    -----
    ConvergenceWarning
        When ``tol`` is above 0 and was not reached within ``max_rounds``.

    Notes
    -----
    With ``"em"`` the mixture after each round is scikit-learn's after as many iterations on the
    pooled points from the same start, up to rounding, however the rows are dealt. Sums are taken
    about the current means, since raw second moments lose digits where means are large. The
    likelihood of the mixture that a round was given comes with the round's sums: a round is one
    question and one answer. With one client, ``"average"`` is EM on that client.

    A component to which no point belongs keeps its mean and covariance; its weight is nearly 0.

    F is silent on how far a client improves the mixture: as far as scikit-learn does by default
    (100 steps, or a change of the log-likelihood below 1e-3), is the reading here. F's rounds are
    a fixed number. A client with fewer points than components, or fewer than two, takes no part in
    the average, only in the likelihood. Components stay matched because all start from the same
    mixture; averages of positive definite covariances are positive definite.

    What a client gives away: under ``"em"`` the number, mean and covariance of its points by
    component, which for a client with one point is that point; under ``"average"`` its own mixture
    in each round; the client that starts, its own mixture under both.

    Source: F, §5.1.

    Examples
    --------
    >>> from fedlib import FederatedGaussianMixture
    >>> first, second = [[0.0], [1.0], [9.0], [10.0]], [[2.0], [3.0], [8.0], [11.0]]
    >>> model = FederatedGaussianMixture(2, method="em", random_state=0).fit([first, second])
    >>> sorted(model.means_.ravel().round(3).tolist())
    [1.5, 9.5]
    >>> bool(model.predict([[1.5]])[0] == model.labels_[0][0])
    True
    """

    name = "gaussian-mixture"
    client_class = GaussianMixtureClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions({"average", "em"})],
        "covariance_type": [StrOptions({"full", "tied", "diag", "spherical"})],
        "reg_covar": [Interval(Real, 0, np.inf, closed="left")],
        "weights_init": ["array-like", None],
        "means_init": ["array-like", None],
        "precisions_init": ["array-like", None],
        "max_rounds": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, np.inf, closed="left")],
        "max_local_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int,
        method: str = "average",
        *,
        covariance_type: CovarianceType = "full",
        reg_covar: float = 1e-6,
        weights_init: ArrayLike | None = None,
        means_init: ArrayLike | None = None,
        precisions_init: ArrayLike | None = None,
        max_rounds: int = 100,
        tol: float = 1e-3,
        max_local_iter: int = 100,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.method = method
        self.covariance_type = covariance_type
        self.reg_covar = reg_covar
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.max_rounds = max_rounds
        self.tol = tol
        self.max_local_iter = max_local_iter
        self.random_state = random_state

    def _flow(self) -> Flow[MixtureModel]:
        # A flow runs only from its first message on: a bad start must be heard of before.
        first = self.weights_init, self.means_init, self.precisions_init
        given_start(self.n_components, self.covariance_type, *first)
        return federated_gaussian_mixture(**self.get_params())

    def _set_model(self, model: MixtureModel) -> None:
        self._mixture = mixture = model.mixture
        self.weights_ = mixture.weights
        self.means_ = mixture.means
        self.covariances_ = outward(mixture.covariances, mixture.covariance_type)
        self.n_features_in_ = mixture.means.shape[1]
        self.n_rounds_ = model.n_rounds
        self.lower_bounds_ = model.log_likelihoods
        self.lower_bound_ = model.log_likelihoods[-1]
        self.converged_ = model.converged
        if not model.converged and self.tol > 0:
            warnings.warn(
                f"not converged to tol={self.tol} within max_rounds={self.max_rounds}",
                ConvergenceWarning,
                stacklevel=4,
            )

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the component to which each point (n_points, n_features) most probably belongs."""
        return assign_components(self._check_points(X), self._mixture)

    def predict_proba(self, X: ArrayLike) -> Array64:
        """Return the share (n_points, n_components) of each point in each component."""
        return self.to_sklearn().predict_proba(self._check_points(X))

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log-likelihood of points (n_points, n_features)."""
        return float(self.to_sklearn().score(self._check_points(X)))

    def bic(self, X: ArrayLike) -> float:
        """Return the Bayesian information criterion on points; the lower the better."""
        return float(self.to_sklearn().bic(self._check_points(X)))

    def aic(self, X: ArrayLike) -> float:
        """Return Akaike's information criterion on points; the lower the better."""
        return float(self.to_sklearn().aic(self._check_points(X)))

    def to_sklearn(self) -> GaussianMixture:
        """Return the mixture as scikit-learn's object, fitted."""
        check_is_fitted(self, "weights_")
        kind = self._mixture.covariance_type
        model = GaussianMixture(
            len(self.weights_),
            covariance_type=kind,
            tol=self.tol,
            reg_covar=self.reg_covar,
            max_iter=self.max_rounds,
        )
        model.weights_, model.means_ = self.weights_.copy(), self.means_.copy()
        model.covariances_ = self.covariances_.copy()
        inner = self._mixture.covariances
        if kind in MATRICES:
            inverse = np.linalg.inv(np.linalg.cholesky(inner))
            factors, precisions = inverse.mT, inverse.mT @ inverse
        else:
            factors, precisions = 1 / np.sqrt(inner), 1 / inner
        model.precisions_cholesky_ = outward(factors, kind)
        model.precisions_ = outward(precisions, kind)
        model.converged_, model.n_iter_ = self.converged_, self.n_rounds_
        model.lower_bound_, model.lower_bounds_ = self.lower_bound_, list(self.lower_bounds_)
        model.n_features_in_ = self.n_features_in_
        return model

    def _check_points(self, X: ArrayLike) -> Array64:
        check_is_fitted(self, "weights_")
        points = check_points(X)
        if points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"the points have {points.shape[1]} features, the mixture {self.n_features_in_}"
            )
        return points


# EM on one set of points -------------------------------------------------------------------------


def fit_mixture(
    X: Array64,
    n_components: int,
    covariance_type: CovarianceType = "full",
    reg_covar: float = 1e-6,
    random_state: Any = None,
    start: Start | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
) -> Mixture:
    """Fit a mixture to points by EM, from k-means: what scikit-learn's `GaussianMixture` does.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
        At least ``n_components`` of them must be distinct.
    n_components, covariance_type, reg_covar, random_state, max_iter, tol
        As in scikit-learn's.
    start : Start, optional
        What is given of the first mixture takes the place of what comes from k-means.

    Examples
    --------
    >>> X = np.array([[0.0], [1.0], [2.0], [8.0], [9.0], [10.0]])
    >>> fit_mixture(X, 2, random_state=0).weights.round(3)
    array([0.5, 0.5])
    """
    kmeans = KMeans(n_components, n_init=1, random_state=random_state).fit(X)
    centres = kmeans.cluster_centers_
    counts, sums, products = _sums(X, centres, np.eye(n_components)[kmeans.labels_])
    pooled = np.cov(X, rowvar=False, bias=True).reshape(1, X.shape[1], X.shape[1])
    spread = contract(np.repeat(pooled, n_components, axis=0), covariance_type)
    products = contract(products, covariance_type)
    first = maximise(centres, spread, counts, sums, products, covariance_type, reg_covar)
    if start:
        parts = zip(start, _arrays(first), strict=True)
        own, means, covariances = (given if len(given) else fitted for given, fitted in parts)
        first = Mixture(own, means, covariances, covariance_type)
    return improve(X, first, reg_covar, max_iter, tol)


def improve(
    X: Array64, mixture: Mixture, reg_covar: float = 1e-6, max_iter: int = 100, tol: float = 1e-3
) -> Mixture:
    """Return the mixture after EM on points, until their mean log-likelihood changes by < tol."""
    previous = -np.inf
    for _ in range(max_iter):
        sums = sum_responsibilities(X, mixture)
        mixture = maximise(
            mixture.means,
            mixture.covariances,
            sums.counts,
            sums.sums,
            sums.products,
            mixture.covariance_type,
            reg_covar,
        )
        likelihood = sums.log_likelihood / len(X)
        if abs(likelihood - previous) < tol:
            break
        previous = likelihood
    return mixture


def sum_responsibilities(X: Array64, mixture: Mixture) -> ResponsibilitySums:
    """Return the sums over points that one step of EM needs."""
    joint = log_joint(X, mixture)
    likelihoods = np.logaddexp.reduce(joint, axis=1)
    shares = np.exp(joint - likelihoods[:, np.newaxis])
    counts, sums, products = _sums(X, mixture.means, shares)
    products = contract(products, mixture.covariance_type)
    return ResponsibilitySums(len(X), float(likelihoods.sum()), counts, sums, products)


def maximise(
    means: Array64,
    covariances: Array64,
    counts: Array64,
    sums: Array64,
    products: Array64,
    covariance_type: CovarianceType,
    reg_covar: float,
) -> Mixture:
    """Return the mixture that maximises the likelihood given all points' sums about the means.

    An empty component keeps its mean and covariance.
    """
    n = counts + TINY
    shift = sums / n[:, np.newaxis]
    between = contract(_outer(shift) * n[:, np.newaxis, np.newaxis], covariance_type)
    tied = covariance_type == "tied"
    new = (products - between) / (n.sum() if tied else n[:, np.newaxis, np.newaxis])
    if covariance_type in MATRICES:
        new = (new + new.mT) / 2  # a difference of large sums can round either half otherwise
        new = new + reg_covar * np.eye(new.shape[-1])
    else:
        new = new + reg_covar
    if not tied:
        new = np.where((counts > TINY)[:, np.newaxis, np.newaxis], new, covariances)
    shift[counts <= TINY] = 0
    return Mixture(n / n.sum(), means + shift, new, covariance_type)


def add_up(
    mixture: Mixture, replies: Mapping[str, ResponsibilitySums], reg_covar: float
) -> Mixture:
    """Return the mixture after one step of EM over the points of all clients."""
    said = list(replies.values())
    if not any(reply.n_points for reply in said):
        raise ValueError("the clients have no points")
    return maximise(
        mixture.means,
        mixture.covariances,
        np.sum([reply.counts for reply in said], axis=0),
        np.sum([reply.sums for reply in said], axis=0),
        np.sum([reply.products for reply in said], axis=0),
        mixture.covariance_type,
        reg_covar,
    )


def average(replies: Mapping[str, ImprovedMixture]) -> Mixture:
    """Return the average of the clients' improved mixtures by their numbers of points."""
    said = [reply for reply in replies.values() if reply.improved]
    if not said:
        raise ValueError("no client has as many points as there are components, and at least two")
    shares = np.array([reply.n_points for reply in said], float)
    weights, means, covariances = (
        np.average(arrays, axis=0, weights=shares)
        for arrays in zip(*map(_arrays, said), strict=True)
    )
    return Mixture(weights / weights.sum(), means, covariances, said[0].covariance_type)


def log_joint(X: Array64, mixture: Mixture) -> Array64:
    """Return the logarithm of weight times density (n_points, n_components) at each point."""
    n_components, n_features = mixture.means.shape
    matrices = expand(mixture.covariances, n_components, n_features, mixture.covariance_type)
    joint = np.empty((len(X), n_components))
    for k, whitening in enumerate(np.linalg.inv(np.linalg.cholesky(matrices))):
        whitened = (X - mixture.means[k]) @ whitening.T
        joint[:, k] = np.log(whitening.diagonal()).sum() - 0.5 * (whitened**2).sum(axis=1)
    with np.errstate(divide="ignore"):  # a weight may be 0
        return joint - 0.5 * n_features * np.log(2 * np.pi) + np.log(mixture.weights)


def assign_components(X: Array64, mixture: Mixture) -> NDArray[np.int64]:
    """Return the component to which each point most probably belongs, of equals the first."""
    return log_joint(X, mixture).argmax(axis=1).astype(np.int64)


def least_points(n_components: int) -> int:
    """Return how many points it takes to fit so many components: as many, and at least two."""
    return max(2, n_components)


def _sums(X: Array64, centres: Array64, shares: Array64) -> tuple[Array64, Array64, Array64]:
    """Return for each component the sums of shares and, about its centre, of points and products.

    The raw moments of a cluster far from the origin would lose the digits that its spread is in.
    """
    n_components, n_features = centres.shape
    sums = np.empty((n_components, n_features))
    products = np.empty((n_components, n_features, n_features))
    for k, centre in enumerate(centres):
        difference = X - centre
        weighted = shares[:, k, np.newaxis] * difference
        sums[k] = weighted.sum(axis=0)
        products[k] = weighted.T @ difference
    return shares.sum(axis=0), sums, products


def _outer(vectors: Array64) -> Array64:
    return vectors[:, :, np.newaxis] * vectors[:, np.newaxis, :]


def _arrays(mixture: Mixture) -> tuple[Array64, Array64, Array64]:
    return mixture.weights, mixture.means, mixture.covariances


def _check_alike(reply: Mixture, shape: tuple[int, ...], request: FitMixture | Mixture) -> None:
    if reply.means.shape != shape or reply.covariance_type != request.covariance_type:
        raise MessageError(f"{type(reply).__name__} does not have the mixture's shape")


def _possible(sums: ResponsibilitySums, mixture: Mixture) -> bool:
    """Say whether there are points with these sums: no variance below zero, no mean out of range.

    Rounding may take a variance below zero by a tiny part of the second moment.
    """
    n = (sums.counts + TINY)[:, np.newaxis]
    shift = sums.sums / n
    between = contract(_outer(shift) * n[:, np.newaxis], mixture.covariance_type)
    within = sums.products - between
    if mixture.covariance_type in MATRICES:
        scale = np.trace(sums.products, axis1=1, axis2=2)[:, np.newaxis]
        least = np.linalg.eigvalsh(within)
    else:
        scale, least = sums.products, within
    near = np.abs(mixture.means + shift).max() <= LARGEST / 2
    least = least + SMALLEST  # shares that underflow keep no digits to be exact in
    return bool(near and (scale >= 0).all() and (least >= -1e-9 * scale).all())


# Covariances in the four shapes ------------------------------------------------------------------


def covariance_shape(n_components: int, n_features: int, kind: str) -> tuple[int, ...]:
    """Return the shape that a mixture's covariances have within messages."""
    return {
        "full": (n_components, n_features, n_features),
        "tied": (1, n_features, n_features),
        "diag": (n_components, 1, n_features),
        "spherical": (n_components, 1, 1),
    }[kind]


def expand(covariances: Array64, n_components: int, n_features: int, kind: str) -> Array64:
    """Return each component's matrix (n_components, n_features, n_features)."""
    if kind not in MATRICES:
        covariances = covariances * np.eye(n_features)
    return np.broadcast_to(covariances, (n_components, n_features, n_features))


def contract(matrices: Array64, kind: str) -> Array64:
    """Return of each component's sum of products what a covariance of this kind needs."""
    if kind == "full":
        return matrices
    if kind == "tied":
        return matrices.sum(axis=0, keepdims=True)
    diagonals = np.diagonal(matrices, axis1=1, axis2=2)[:, np.newaxis]
    return diagonals if kind == "diag" else diagonals.mean(axis=2, keepdims=True)


def positive_definite(covariances: Array64, kind: str) -> bool:
    """Say whether covariances are symmetric and positive definite."""
    if kind not in MATRICES:
        return bool((covariances > 0).all())
    try:
        np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        return False
    skew = np.abs(covariances - covariances.mT)
    return bool((skew <= 1e-9 * np.abs(covariances).max(initial=0)).all())


def outward(array: Array64, kind: str) -> Array64:
    """Return covariances, or what is shaped like them, in scikit-learn's shape."""
    if kind == "full":
        return array.copy()
    if kind == "tied":
        return array[0].copy()
    return array[:, 0].copy() if kind == "diag" else array[:, 0, 0].copy()


def given_start(
    n_components: int,
    kind: str,
    weights: ArrayLike | None,
    means: ArrayLike | None,
    precisions: ArrayLike | None,
) -> Start:
    """Return what is given of the first mixture.

    Raises
    ------
    ValueError
        When it is no part of a mixture of ``n_components`` components.
    """
    k: int = n_components
    start = Start(np.empty(0), np.empty((0, 1)), np.empty((0, 1, 1)))
    if weights is not None:
        given = _given("weights_init", weights, (k,))
        if (given < 0).any() or abs(given.sum() - 1) > 1e-6:
            raise ValueError(f"weights_init must be at least 0 and sum to 1; got {given}")
        start = start._replace(weights=given)
    if means is not None:
        start = start._replace(means=_given("means_init", means, (k, None)))
    if precisions is not None:
        d = None if means is None else start.means.shape[1]
        wanted = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}[kind]
        given = _given("precisions_init", precisions, wanted)
        if kind in MATRICES:
            given = given.reshape(-1, *given.shape[-2:])
            square = given.shape[1] == given.shape[2]
        else:
            given = given.reshape(k, 1, -1)
            square = True
        if not square or not positive_definite(given, kind):
            raise ValueError("precisions_init must be symmetric and positive definite")
        inverse = np.linalg.inv(given) if kind in MATRICES else 1 / given
        start = start._replace(covariances=np.asarray(inverse, float))
    return start


def _given(name: str, array: ArrayLike, shape: tuple[int | None, ...]) -> Array64:
    values = np.asarray(array, float)
    fits = values.ndim == len(shape) and all(
        wanted in (None, length) for wanted, length in zip(shape, values.shape, strict=True)
    )
    if not fits or not values.size or not np.isfinite(values).all():
        wanted = ", ".join("n_features" if length is None else str(length) for length in shape)
        raise ValueError(
            f"{name} must be finite numbers of shape ({wanted}); got the shape {values.shape}"
        )
    return values
