"""DBSCAN through Gaussian mixtures: clients hold other rows of the same features.

Each client clusters its own points, describes every cluster by a Gaussian mixture and sends the
mixtures. The server draws as many points from each as the cluster had, and clusters what it drew
for all clients. The clients get the drawn core points with their clusters and place their own.

Source: F, §5.2. What it leaves open is settled under `GaussianMixtureDBSCAN`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.dbscan import cluster, nearest_within
from fedlib.federated import Federated, PointsClient
from fedlib.messages import Array, Done, FeatureNames, Labels, Message, MessageError
from fedlib.mixtures.federated import (
    LARGEST,
    Mixture,
    assign_components,
    fit_mixture,
    positive_definite,
)
from fedlib.protocol import Flow, agree_on_features, handles
from fedlib.validation import Interval, check_points

__all__ = [
    "AssignPoints",
    "ClusterMixtures",
    "DescribeClusters",
    "DrawnModel",
    "GaussianMixtureDBSCAN",
    "GaussianMixtureDBSCANClient",
    "describe_cluster",
    "draw_points",
    "gaussian_mixture_dbscan",
]

Array64 = NDArray[np.float64]

MAX_POINTS = 10_000_000  # of one client's clusters, which the server draws
# What is added to every variance, in squares of eps and in the cluster's own variance: the second
# matters only for clusters a million times as long as eps.
REGULARISATION = 1e-4
ROUNDING = 1e-10

Eps = Annotated[float, msgspec.Meta(gt=0)]
Means = Annotated[np.ndarray, Array("float64", ("components", "features"), ge=-LARGEST, le=LARGEST)]


class ClusterMixtures(Message):
    """A mixture for each cluster of a client, one after the other, and the clusters' sizes.

    Cluster i has ``n_components[i]`` rows of weights, means and covariances.
    """

    discloses = "the number and sizes of a client's clusters and a Gaussian mixture of each"
    sizes: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=MAX_POINTS)]
    n_components: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=MAX_POINTS)]
    weights: Annotated[np.ndarray, Array("float64", ("components",), ge=0, le=1)]
    means: Means
    covariances: Annotated[
        np.ndarray,
        Array("float64", ("components", "features", "features"), ge=-(LARGEST**2), le=LARGEST**2),
    ]
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``means``."""
        return int(self.means.shape[1])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.means.shape[1] == 0:
            raise MessageError("ClusterMixtures.means has no features")
        if self.sizes.sum() > MAX_POINTS:
            raise MessageError(f"ClusterMixtures.sizes sum to more than {MAX_POINTS}")
        if self.n_components.sum() != len(self.weights):
            raise MessageError("ClusterMixtures.n_components do not sum to the components")
        totals = [own.sum() for own in np.split(self.weights, np.cumsum(self.n_components)[:-1])]
        if len(self.sizes) and np.abs(np.array(totals) - 1).max() > 1e-6:
            raise MessageError("ClusterMixtures.weights must sum to 1 in each cluster")
        if not positive_definite(self.covariances, "full"):
            raise MessageError("ClusterMixtures.covariances must be positive definite")


class DescribeClusters(Message):
    """Find the clusters among your points and describe each by a mixture."""

    discloses = "eps, min_samples, the number of components, a seed"
    reply = ClusterMixtures
    eps: Eps
    min_samples: Annotated[int, msgspec.Meta(ge=1)]
    n_components: Annotated[int, msgspec.Meta(ge=1)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

    def accept(self, reply: Message) -> Message:
        most = cast(ClusterMixtures, reply).n_components.max(initial=0)
        if most > self.n_components:
            raise MessageError(f"ClusterMixtures.n_components must be at most {self.n_components}")
        return reply


class AssignPoints(Message):
    """Give each of your points to the cluster of the nearest of these, within eps."""

    discloses = "points drawn from all clients' mixtures, and their clusters"
    asks_for_data = False
    eps: Eps
    points: Annotated[np.ndarray, Array("float64", ("points", "features"))]
    labels: Annotated[np.ndarray, Array("int64", ("points",), ge=0)]


@dataclass(frozen=True)
class DrawnModel:
    """The drawn points (n_samples, n_features), their clusters, and which are core points."""

    samples: Array64
    labels: NDArray[np.int64]
    core: NDArray[np.bool_]


def gaussian_mixture_dbscan(
    eps: float,
    min_samples: int,
    n_components: int = 10,
    local_min_samples: int | None = None,
    random_state: Any = None,
) -> Flow[DrawnModel]:
    """Return the server flow; for the parameters see `GaussianMixtureDBSCAN`."""
    rng = check_random_state(random_state)
    seed = int(rng.randint(2**31))
    local = int(local_min_samples or min_samples)
    replies = yield DescribeClusters(float(eps), local, int(n_components), seed)
    agree_on_features(replies)
    samples = np.concatenate([draw_points(reply, rng) for reply in replies.values()])
    labels, core = cluster(samples, eps, min_samples)
    yield AssignPoints(float(eps), samples[core], labels[core])
    return DrawnModel(samples, labels, core)


class GaussianMixtureDBSCANClient(PointsClient):
    """A client and its points, as in `PointsClient`."""

    @handles(DescribeClusters)
    def describe_clusters(self, request: DescribeClusters) -> ClusterMixtures:
        labels, _ = cluster(self.X, request.eps, request.min_samples)
        clusters = [self.X[labels == label] for label in range(labels.max(initial=-1) + 1)]
        rng = check_random_state(request.seed)
        mixtures = [
            describe_cluster(own, request.n_components, request.eps, rng.randint(2**31))
            for own in clusters
        ]
        d = self.X.shape[1]
        return ClusterMixtures(
            np.array([len(own) for own in clusters], np.int64),
            np.array([len(mixture.weights) for mixture in mixtures], np.int64),
            np.concatenate([np.empty(0), *(mixture.weights for mixture in mixtures)]),
            np.concatenate([np.empty((0, d)), *(mixture.means for mixture in mixtures)]),
            np.concatenate([np.empty((0, d, d)), *(mixture.covariances for mixture in mixtures)]),
            self.features,
        )

    @handles(AssignPoints)
    def assign_points(self, request: AssignPoints) -> Done:
        self.state = Labels(place_points(self.X, request.points, request.labels, request.eps))
        return Done()


class GaussianMixtureDBSCAN(Federated):
    """DBSCAN on points drawn from mixtures of the clients' clusters.

    Parameters
    ----------
    eps : float
        The radius of a neighbourhood, in the units of the features, above 0; the clients' and the
        server's. All clients' features must be scaled alike.
    min_samples : int
        How many points within ``eps``, itself included, make a core point, at least 1.
    n_components : int, default=10
        The most Gaussians that describe a client's cluster, at least 1 (F: 10).
    local_min_samples : int, default=None
        ``min_samples`` at the clients, at least 1; the same as the server's, as in F, if None.
    random_state : int, RandomState or None, default=None
        Draws the points, and the start of the fits at the clients.

    Attributes
    ----------
    samples_ : array (n_samples, n_features)
        The points that the server drew.
    sample_labels_ : array (n_samples,) of int64
        The cluster of each, -1 for noise.
    core_samples_ : array (n_samples,) of bool
        Which of them are core points, by which new points are placed.
    labels_ : list of array of int64
        The cluster of each client's points, -1 for noise. Only if the parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    A point goes to the cluster of the nearest drawn core point within ``eps``; else it is noise.
    F says so of DBSCAN's points in general, and is silent on how clients use the server's result.

    Points that are noise at their own client are described by nothing and drawn by nobody. A
    cluster that no client can see alone is lost: each of k clients with an equal share of the rows
    sees 1/k of the density, and ``min_samples`` is the same, unless ``local_min_samples`` is lower.

    F gives every cluster ten Gaussians and is silent on small clusters, where that many cannot be
    fitted. Here a cluster of n points in d features gets at most n // (2(d + 1)), and at least one.
    While some component holds fewer than d + 1 of the points (each point counts for the component
    to which it most probably belongs), the fit is repeated with one fewer. Fewer than d + 1
    distinct points are described by one spherical Gaussian. To every variance 1e-4 · eps² is added.

    A mixture with many components, or of few points, gives away where single points are: the drawn
    points then lie close to real ones. A client's clusters may have ten million points at most.

    Source: F, §5.2.

    Examples
    --------
    Two clients, each with one half of each of two clusters.

    >>> import numpy as np
    >>> from fedlib import GaussianMixtureDBSCAN
    >>> rng = np.random.default_rng(0)
    >>> parts = [np.r_[rng.normal(0, 1, (50, 2)), rng.normal(9, 1, (50, 2))] for _ in range(2)]
    >>> model = GaussianMixtureDBSCAN(eps=1.5, min_samples=5, random_state=0).fit(parts)
    >>> model.predict([[0, 0], [9, 9], [4, 5]])
    array([ 0,  1, -1])
    """

    name = "gaussian-mixture-dbscan"
    client_class = GaussianMixtureDBSCANClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "eps": [Interval(Real, 0, np.inf, closed="neither")],
        "min_samples": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "local_min_samples": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        eps: float,
        min_samples: int,
        *,
        n_components: int = 10,
        local_min_samples: int | None = None,
        random_state: Any = None,
    ):
        self.eps = eps
        self.min_samples = min_samples
        self.n_components = n_components
        self.local_min_samples = local_min_samples
        self.random_state = random_state

    def _flow(self) -> Flow[DrawnModel]:
        return gaussian_mixture_dbscan(**self.get_params())

    def _set_model(self, model: DrawnModel) -> None:
        self.samples_ = model.samples
        self.sample_labels_ = model.labels
        self.core_samples_ = model.core
        self.n_features_in_ = model.samples.shape[1]
        self._reach = float(self.eps)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of new points (n_points, n_features) by the clients' rule; -1: none.

        Raises
        ------
        ValueError
            When the points are not finite or have other features than those of `fit`.
        """
        check_is_fitted(self, "samples_")
        core = self.core_samples_
        points = check_points(X)
        return place_points(points, self.samples_[core], self.sample_labels_[core], self._reach)


def describe_cluster(X: Array64, n_components: int, eps: float, random_state: Any) -> Mixture:
    """Return a mixture of at most ``n_components`` Gaussians that describes a cluster's points.

    For the rules of small clusters see `GaussianMixtureDBSCAN`.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
        At least one point.
    n_components : int
    eps : float
        The scale to which variances are regularised.
    random_state : int

    Examples
    --------
    >>> describe_cluster(np.array([[0.0, 0.0], [2.0, 0.0]]), 10, eps=1.0, random_state=0)
    Mixture(weights=array([1.]), means=array([[1., 0.]]), covariances=array([[[0.5001, 0.    ],
            [0.    , 0.5001]]]), covariance_type='full')
    """
    n_points, n_features = X.shape
    least = n_features + 1
    regularisation = REGULARISATION * eps**2 + ROUNDING * X.var(axis=0).sum()
    n_distinct = len(np.unique(X, axis=0))
    if n_distinct < least:
        variance = X.var(axis=0).mean() + regularisation
        matrix = variance * np.eye(n_features)
        return Mixture(np.ones(1), X.mean(axis=0, keepdims=True), matrix[np.newaxis], "full")
    k = min(n_components, max(1, n_points // (2 * least)), n_distinct)
    while True:
        mixture = fit_mixture(X, k, "full", regularisation, random_state)
        held = np.bincount(assign_components(X, mixture), minlength=k)
        if k == 1 or held.min() >= least:
            return mixture
        k -= 1


def draw_points(reply: ClusterMixtures, random_state: Any = None) -> Array64:
    """Draw as many points (n_samples, n_features) from each mixture as its cluster had.

    How many come from each component is itself drawn, as in scikit-learn's `sample`.
    """
    rng = check_random_state(random_state)
    drawn = [np.empty((0, reply.means.shape[1]))]
    factors = np.linalg.cholesky(reply.covariances)
    first = np.cumsum(reply.n_components) - reply.n_components
    for size, start, k in zip(reply.sizes, first, reply.n_components, strict=True):
        own = slice(start, start + k)
        counts = rng.multinomial(size, reply.weights[own] / reply.weights[own].sum())
        for n, mean, factor in zip(counts, reply.means[own], factors[own], strict=True):
            drawn.append(mean + rng.standard_normal((n, len(mean))) @ factor.T)
    return np.concatenate(drawn)


def place_points(
    X: Array64, points: Array64, labels: NDArray[np.int64], eps: float
) -> NDArray[np.int64]:
    """Return the label of the nearest of ``points`` within ``eps`` of each row of X, or -1."""
    nearest = nearest_within(X, points, np.full(len(points), eps))
    return np.append(labels, -1)[nearest]
