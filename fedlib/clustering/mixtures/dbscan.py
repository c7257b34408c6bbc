"""DBSCAN on points drawn from Gaussian mixtures: clients hold different rows of the same features.

Each client clusters its points, describes every cluster by a Gaussian mixture and sends the
mixtures. From each mixture the server draws as many points as the cluster had, and clusters all
drawn points together. The clients receive the drawn core points with their clusters and assign
their own points to them.

Source: F, §5.2. The notes of `GaussianMixtureDBSCAN` list the choices that F leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from fedlib.clustering.density.engine.dbscan import cluster, nearest_within
from fedlib.clustering.mixtures.em import assign_components, fit_mixture
from fedlib.clustering.mixtures.messages import MAX_ITER, Mixture, positive_definite
from fedlib.core.aggregation import agree_on_features, exclude, settle
from fedlib.core.array_fields import Checked
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import handles
from fedlib.core.estimator import Clusterer, Example, Federated
from fedlib.core.messages import Array, Done, FeatureNames, Labels, Message, MessageError
from fedlib.core.parameters import (
    KW_ONLY,
    Interval,
    OptionalPositiveInt,
    PositiveFloat,
    PositiveInt,
    RandomSource,
    count_distinct,
)
from fedlib.core.points import MAX_COORDINATE, PointsClient
from fedlib.core.protocol import Flow, Replies

MAX_POINTS = 10_000_000  # in all clusters of one client, because the server draws as many
# Added to every variance: this fraction of eps squared, and this fraction of the cluster's
# variance. The second part only matters for clusters a million times as long as eps.
EPS_REGULARISATION = 1e-4
VARIANCE_REGULARISATION = 1e-10

Eps = Annotated[float, msgspec.Meta(gt=0)]
Means = Annotated[
    np.ndarray,
    Array("float64", ("components", "features"), ge=-MAX_COORDINATE, le=MAX_COORDINATE),
]
Covariances = Annotated[
    np.ndarray,
    Array(
        "float64",
        ("components", "features", "features"),
        ge=-(MAX_COORDINATE**2),
        le=MAX_COORDINATE**2,
    ),
]


class ClusterMixtures(Message):
    """The sizes of a client's clusters and one mixture per cluster, one after the other.

    The mixture of cluster i has ``n_components[i]`` rows of weights, means and covariances.
    """

    discloses = "the number and sizes of a client's clusters and a Gaussian mixture of each"
    sizes: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=MAX_POINTS)]
    n_components: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=MAX_POINTS)]
    weights: Annotated[np.ndarray, Array("float64", ("components",), ge=0, le=1)]
    means: Means
    covariances: Covariances
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns of ``means``."""
        return int(self.means.shape[1])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_features == 0:
            raise MessageError("ClusterMixtures.means must have at least one feature")
        if self.sizes.sum() > MAX_POINTS:
            raise MessageError(
                f"ClusterMixtures.sizes must sum to at most {MAX_POINTS}, got {self.sizes.sum()}"
            )
        if self.n_components.sum() != len(self.weights):
            raise MessageError(
                f"ClusterMixtures.n_components must sum to {len(self.weights)}, the number of"
                f" weights, got {self.n_components.sum()}"
            )
        bounds = np.cumsum(self.n_components)[:-1]
        totals = np.array([weights.sum() for weights in np.split(self.weights, bounds)])
        if len(self.sizes) and np.abs(totals - 1).max() > 1e-6:
            raise MessageError(
                f"ClusterMixtures.weights must sum to 1 in each cluster, got the sums {totals}"
            )
        if not positive_definite(self.covariances, "full"):
            raise MessageError("ClusterMixtures.covariances must be positive definite")


class DescribeClusters(Message):
    """Find the clusters of your points and describe each by a mixture."""

    discloses = "eps, min_samples, the count of components, a seed"
    effortless = ("min_samples", "seed")
    reply = ClusterMixtures
    eps: Eps
    min_samples: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    n_components: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

    def work(self) -> float:
        return float(self.n_components * MAX_ITER)

    def accept(self, reply: Message) -> Message:
        n_components = cast(ClusterMixtures, reply).n_components.max(initial=0)
        if n_components > self.n_components:
            raise MessageError(
                f"ClusterMixtures.n_components must be at most {self.n_components},"
                f" got {n_components}"
            )
        return reply


class AssignPoints(Message):
    """Assign each of your points to the cluster of the nearest of these points, within eps."""

    discloses = "points drawn from all clients' mixtures, and their clusters"
    asks_for_data = False
    eps: Eps
    points: Annotated[np.ndarray, Array("float64", ("points", "features"))]
    labels: Annotated[np.ndarray, Array("int64", ("points",), ge=0, below="points")]


@dataclass(frozen=True)
class DrawnModel(Checked):
    """The drawn points, by which new points are placed.

    Attributes
    ----------
    samples : array (n_samples, n_features)
    labels : array (n_samples,) of int64
        The cluster of each drawn point, -1 for noise.
    core : array (n_samples,) of bool
        Which drawn points are core points.
    eps : float
        The maximum distance at which a core point determines a new point's cluster.
    """

    samples: Annotated[Floats, Array("float64", ("samples", "features"))]
    labels: Annotated[Ints, Array("int64", ("samples",), ge=-1, below="samples")]
    core: Annotated[Bools, Array("bool", ("samples",))]
    eps: float

    @property
    def n_features(self) -> int:
        """The count of features of the points."""
        return int(self.samples.shape[1])

    def place(self, X: Floats) -> Ints:
        """Return the cluster of each point (n_points, n_features), -1 for noise.

        Raises
        ------
        ValueError
            When the points have a different count of features.
        """
        return place_points(X, self.samples[self.core], self.labels[self.core], self.eps)


def gaussian_mixture_dbscan(
    eps: float,
    min_samples: int,
    n_components: int,
    local_min_samples: int,
    max_points: int,
    random_state: Any,
) -> Flow[DrawnModel]:
    """Return the server's flow; for the parameters see `GaussianMixtureDBSCAN`."""
    rng = check_random_state(random_state)
    seed = int(rng.randint(2**31))
    replies = yield DescribeClusters(eps, local_min_samples, n_components, seed)
    replies = yield from settle(replies, agree_on_features)
    replies = yield from exclude(replies, _with_too_many_points(replies, max_points))
    samples = np.concatenate([draw_points(reply, rng) for reply in replies.values()])
    labels, core = cluster(samples, eps, min_samples)
    yield AssignPoints(eps, samples[core], labels[core])
    return DrawnModel(samples, labels, core, eps)


def _with_too_many_points(replies: Replies, max_points: int) -> dict[str, str]:
    """Return the reason to exclude each client whose clusters have more than ``max_points``."""
    return {
        name: f"ClusterMixtures.sizes must sum to at most max_points={max_points}, got {n_points}"
        for name, reply in replies.items()
        if (n_points := int(reply.sizes.sum())) > max_points
    }


class GaussianMixtureDBSCANClient(PointsClient):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`."""

    @handles(DescribeClusters)
    def describe_clusters(self, request: DescribeClusters) -> ClusterMixtures:
        labels, _ = cluster(self.X, request.eps, request.min_samples)
        clusters = [self.X[labels == label] for label in range(labels.max(initial=-1) + 1)]
        rng = check_random_state(request.seed)
        seeds = [rng.randint(2**31) for _ in clusters]
        mixtures = [
            describe_cluster(points, request.n_components, request.eps, seed, rng)
            for points, seed in zip(clusters, seeds, strict=True)
        ]
        d = self.n_features
        return ClusterMixtures(
            np.array([len(points) for points in clusters], np.int64),
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


class GaussianMixtureDBSCAN(Clusterer, Federated):
    """DBSCAN on points drawn from Gaussian mixtures of the clients' clusters.

    Attributes
    ----------
    samples_ : array (n_samples, n_features)
        The points that the server drew.
    sample_labels_ : array (n_samples,) of int64
        The cluster of each drawn point, -1 for noise.
    core_samples_ : array (n_samples,) of bool
        Which drawn points are core points.
    labels_ : list of array of int64
        One array per client with the cluster of each point, -1 for noise. Only if `fit` received a
        list.
    model_ : DrawnModel
        The fitted model, from which `predict` and the attributes above are derived.
    ledger_ : Ledger
        The messages of the run and their sizes.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    See Also
    --------
    fedlib.FederatedGaussianMixture : one mixture for the points of all clients.
    fedlib.clustering.density.engine.dbscan.dbscan : DBSCAN on pooled data.

    Notes
    -----
    *Assignment.* A point joins the cluster of the nearest drawn core point within ``eps``; if there
    is none, it is noise. This is DBSCAN's rule for border points; F does not state how clients use
    the server's result.

    *Lost clusters.* Points that are noise at their own client are in no mixture, so the server
    draws no points for them. A cluster that no client can find alone is lost: each of k clients
    with an equal share of the rows has 1/k of the density, but ``min_samples`` is the same unless
    ``local_min_samples`` is lower.

    *Small clusters.* F describes every cluster by ten Gaussians and does not cover clusters that
    are too small for them. Here a cluster of n points in d features gets at most n // (2(d + 1))
    Gaussians, and at least one. If some component has fewer than d + 1 points (a point counts for
    its most probable component), the fit is repeated with one component fewer. Fewer than d + 1
    distinct points are described by one spherical Gaussian. Every variance is increased by
    1e-4 · eps².

    *Disclosure.* A mixture of few points, or with many components, discloses the positions of
    single points: the drawn points then lie close to real ones.

    *False mixtures* cannot be detected: the points drawn from a wide one join the clusters of other
    clients. ``max_points`` limits how many are drawn.

    *Cost.* One request for the mixtures and one message with the result per client. The size of
    both does not depend on the count of points, except for the drawn core points in the result.

    Source: F, §5.2.

    Examples
    --------
    Each of two clients has one half of each of two clusters.

    >>> import numpy as np
    >>> from fedlib import GaussianMixtureDBSCAN
    >>> rng = np.random.default_rng(0)
    >>> parts = [np.r_[rng.normal(0, 1, (50, 2)), rng.normal(9, 1, (50, 2))] for _ in range(2)]
    >>> model = GaussianMixtureDBSCAN(eps=1.5, min_samples=5, random_state=0).fit(parts)
    >>> model.predict([[0, 0], [9, 9], [4, 5]])
    array([ 0,  1, -1])
    """

    name = "gaussian-mixture-dbscan"
    example = Example("rows", {"eps": 0.5, "min_samples": 4, "n_components": 3, "random_state": 0})
    client_class = GaussianMixtureDBSCANClient
    eps: Annotated[
        PositiveFloat,
        """
        The radius of a neighbourhood at the clients and at the server, above 0, in the units of the
        features. All clients' features must have the same scale.
        """,
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        The count of points within ``eps``, including the point itself, that make a core point; at
        least 1.
        """,
    ]
    _: KW_ONLY
    n_components: Annotated[
        PositiveInt,
        """
        The maximum count of Gaussians per cluster of a client, at least 1 (F: 10).
        """,
    ] = 10
    local_min_samples: Annotated[
        OptionalPositiveInt,
        """
        ``min_samples`` at the clients, at least 1. By default the same as at the server, as in F.
        """,
    ] = None
    max_points: Annotated[
        int,
        Interval(Integral, 1, MAX_POINTS, closed="both"),
        """
        The maximum count of points in all clusters of one client, 1 to 10,000,000. The server
        draws as many points, so a client that reports more leaves the run.
        """,
    ] = 1_000_000
    random_state: Annotated[
        RandomSource,
        "Draws the points and the seed of the fits at the clients.",
    ] = None

    def _flow(self) -> Flow[DrawnModel]:
        local_min_samples = self.local_min_samples
        if local_min_samples is None:
            local_min_samples = self.min_samples
        return gaussian_mixture_dbscan(
            self.eps,
            self.min_samples,
            self.n_components,
            int(local_min_samples),
            self.max_points,
            self.random_state,
        )

    def _set_model(self, model: DrawnModel) -> None:
        super()._set_model(model)
        self.samples_ = model.samples
        self.sample_labels_ = model.labels
        self.core_samples_ = model.core
        self.n_features_in_ = model.n_features

    def predict(self, X: ArrayLike) -> Ints:
        """Return the cluster of new points by the clients' rule, -1 for noise.

        Parameters
        ----------
        X : array-like (n_points, n_features)

        Returns
        -------
        array (n_points,) of int64

        Raises
        ------
        ValueError
            When the points are not finite or have a different count of features.
        NotFittedError
            When called before `fit`.
        """
        points = self._new_points(X)
        return self.model_.place(points)


def describe_cluster(
    X: Floats,
    n_components: int,
    eps: float,
    random_state: int,
    generator: np.random.RandomState | None = None,
) -> Mixture:
    """Fit a mixture of at most ``n_components`` Gaussians to a cluster's points.

    For the count of components of small clusters see the notes of `GaussianMixtureDBSCAN`.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
        At least one point.
    n_components : int
        The maximum count of components, at least 1.
    eps : float
        The length relative to which variances are regularised, above 0.
    random_state : int
        The seed of each fit.
    generator : RandomState, optional
        Seeded with ``random_state`` for each fit. By default a new one; making one takes 0.1 ms, a
        tenth of a fit to 100 points.

    Returns
    -------
    Mixture
        With full covariances.

    Examples
    --------
    >>> describe_cluster(np.array([[0.0, 0.0], [2.0, 0.0]]), 10, eps=1.0, random_state=0)
    Mixture(weights=array([1.]), means=array([[1., 0.]]), covariances=array([[[0.5001, 0.    ],
            [0.    , 0.5001]]]), covariance_type='full')
    """
    n_points, n_features = X.shape
    min_points = n_features + 1  # per component
    reg_covar = EPS_REGULARISATION * eps**2 + VARIANCE_REGULARISATION * X.var(axis=0).sum()
    n_distinct = count_distinct(X, max(n_components, min_points))
    if n_distinct < min_points:
        variance = X.var(axis=0).mean() + reg_covar
        covariance = variance * np.eye(n_features)
        return Mixture(np.ones(1), X.mean(axis=0, keepdims=True), covariance[np.newaxis], "full")
    k = min(n_components, max(1, n_points // (2 * min_points)), n_distinct)
    generator = generator or np.random.RandomState()
    while True:
        generator.seed(random_state)
        mixture = fit_mixture(X, k, "full", reg_covar, generator)
        counts = np.bincount(assign_components(X, mixture), minlength=k)
        if k == 1 or counts.min() >= min_points:
            return mixture
        k -= 1


def draw_points(mixtures: ClusterMixtures, random_state: Any = None) -> Floats:
    """Draw points from each mixture, as many as its cluster had.

    The count of points from each component is also random, as in scikit-learn's `sample`.

    Parameters
    ----------
    mixtures : ClusterMixtures
    random_state : int, RandomState or None, default=None

    Returns
    -------
    array (n_samples, n_features)
        The points of the first cluster, then those of the second, and so on.

    Examples
    --------
    >>> one = np.ones(1, int)
    >>> mixtures = ClusterMixtures(3 * one, one, np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    >>> draw_points(mixtures, random_state=0).shape
    (3, 2)
    """
    rng = check_random_state(random_state)
    samples = [np.empty((0, mixtures.n_features))]
    factors = np.linalg.cholesky(mixtures.covariances)
    first = np.cumsum(mixtures.n_components) - mixtures.n_components
    for size, start, k in zip(mixtures.sizes, first, mixtures.n_components, strict=True):
        rows = slice(start, start + k)
        weights = mixtures.weights[rows]
        counts = rng.multinomial(size, weights / weights.sum())
        for n, mean, factor in zip(counts, mixtures.means[rows], factors[rows], strict=True):
            samples.append(mean + rng.standard_normal((n, len(mean))) @ factor.T)
    return np.concatenate(samples)


def place_points(X: Floats, points: Floats, labels: Ints, eps: float) -> Ints:
    """Return the label of the nearest of ``points`` within ``eps`` of each row of X, or -1.

    Examples
    --------
    >>> X, points = np.array([[0.0], [4.0]]), np.array([[0.5], [1.0]])
    >>> place_points(X, points, labels=np.array([7, 8]), eps=1.0)
    array([ 7, -1])
    """
    nearest = nearest_within(X, points, np.full(len(points), eps))
    return np.append(labels, -1)[nearest]
