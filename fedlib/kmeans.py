"""Federated k-means: clients hold other rows of the same features.

Two methods. ``"one_shot"``: every client clusters its own points once, a child, and the server
clusters the centres of all children, the parent. ``"lloyd"``: every client tells the sums and
counts of its points by their nearest centre, so that the server's next centres are those that
Lloyd's iteration finds on all points together.

Sources: K, for the child and the parent; [1]_ and [2]_ for the iteration and its start.

References
----------
.. [1] S. Lloyd, Least squares quantization in PCM, IEEE Transactions on Information Theory 28,
   1982.
.. [2] D. Arthur, S. Vassilvitskii, k-means++: the advantages of careful seeding, SODA 2007.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.neighbors import KDTree
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.federated import Federated, PointsClient
from fedlib.kernels.centres import move_centres, nearest_centres, sum_by_label
from fedlib.messages import Array, Done, FeatureNames, Labels, Message, MessageError
from fedlib.protocol import Flow, agree_on_features, handles
from fedlib.validation import Interval, StrOptions, check_points

__all__ = [
    "AssignCentres",
    "ClusterSums",
    "FederatedKMeans",
    "FederatedKMeansClient",
    "FindCentres",
    "GroupMeans",
    "Inertia",
    "KMeansModel",
    "LocalCentres",
    "MeasureInertia",
    "SumClusters",
    "SummariseGroups",
    "child_centres",
    "group_means",
    "lloyd",
    "one_shot",
    "sum_clusters",
]

# No coordinate may be greater, so that no sum of squares of any client overflows on the way.
LIMIT = 1e100
BOUND = 1.01 * LIMIT  # of means in replies, and twice that in requests: room for rounding
GROUP_SIZE = 3  # the least number of points behind a mean that the start is drawn from
GROUPS = 8  # means that a client gives for each cluster sought, at most

Positive = Annotated[int, msgspec.Meta(gt=0, le=2**40)]
Squares = Annotated[float, msgspec.Meta(ge=0, le=1e240)]
Centres = Annotated[np.ndarray, Array("float64", ("clusters", "features"), -2 * BOUND, 2 * BOUND)]
Points = NDArray[np.float64]
Counts = NDArray[np.int64]


class LocalCentres(Message):
    """The centres of a client's own clusters, and how many points are behind each."""

    discloses = "a client's centres and counts; the centre of a cluster of one point is the point"
    centres: Annotated[np.ndarray, Array("float64", ("clusters", "features"), -BOUND, BOUND)]
    counts: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=2**40)]
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``centres``."""
        return int(self.centres.shape[1])


class FindCentres(Message):
    """Cluster the last of your points, and move the centres by the others."""

    discloses = "nothing but the parameters"
    reply = LocalCentres
    n_clusters: Positive
    update_fraction: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    n_init: Positive
    max_iter: Positive
    tol: Annotated[float, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

    def accept(self, reply: Message) -> LocalCentres:
        assert isinstance(reply, LocalCentres)
        if len(reply.counts) > self.n_clusters:
            raise MessageError(f"{len(reply.counts)} centres where {self.n_clusters} were sought")
        return reply


class GroupMeans(Message):
    """A client's number of points, their mean and spread, and the means of groups of them."""

    discloses = (
        f"a client's number of points, their mean and spread, and means of at least {GROUP_SIZE}"
        " neighbouring points; a mean of equal points is the point"
    )
    n_points: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    mean: Annotated[np.ndarray, Array("float64", ("features",), -BOUND, BOUND)]
    squares: Annotated[np.ndarray, Array("float64", ("features",), ge=0, le=1e240)]
    means: Annotated[np.ndarray, Array("float64", ("groups", "features"), -BOUND, BOUND)]
    counts: Annotated[np.ndarray, Array("int64", ("groups",), ge=GROUP_SIZE, le=2**40)]
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``means``."""
        return int(self.means.shape[1])


class SummariseGroups(Message):
    """Say how many points you have and how they spread, and give the means of groups of them."""

    discloses = "nothing but the number of groups"
    reply = GroupMeans
    n_groups: Annotated[int, msgspec.Meta(ge=0, le=2**40)]

    def accept(self, reply: Message) -> GroupMeans:
        assert isinstance(reply, GroupMeans)
        if len(reply.counts) > self.n_groups or reply.counts.sum() > reply.n_points:
            raise MessageError("more groups than asked for, or more points in them than there are")
        return reply


class ClusterSums(Message):
    """The sums of a client's points by nearest centre, their counts, and the squared distances."""

    discloses = "a client's sum and count in each cluster; the sum of a single point is the point"
    sums: Annotated[
        np.ndarray, Array("float64", ("starts", "clusters", "features"), ge=-1e140, le=1e140)
    ]
    counts: Annotated[np.ndarray, Array("int64", ("starts", "clusters"), ge=0, le=2**40)]
    inertias: Annotated[np.ndarray, Array("float64", ("starts",), ge=0, le=1e240)]


class SumClusters(Message):
    """Sum your points by their nearest centre, for the centres of each start."""

    discloses = "the centres"
    reply = ClusterSums
    centres: Annotated[
        np.ndarray, Array("float64", ("starts", "clusters", "features"), -2 * BOUND, 2 * BOUND)
    ]

    def accept(self, reply: Message) -> ClusterSums:
        assert isinstance(reply, ClusterSums)
        if reply.sums.shape != self.centres.shape:
            raise MessageError(f"sums {reply.sums.shape} of centres {self.centres.shape}")
        if len(np.unique(reply.counts.sum(axis=1))) > 1:
            raise MessageError("the points are not as many from every start")
        if (abs(reply.sums) > BOUND * reply.counts[..., np.newaxis]).any():
            raise MessageError("a sum that its count of points cannot have")
        return reply


class Inertia(Message):
    """The sum of the squared distances of a client's points to their nearest centres."""

    discloses = "a client's sum of squared distances"
    inertia: Squares


class MeasureInertia(Message):
    """Say how far your points are from their nearest centres."""

    discloses = "the centres"
    reply = Inertia
    centres: Centres


class AssignCentres(Message):
    """Assign each of your points to its nearest centre."""

    discloses = "the final centres"
    asks_for_data = False
    centres: Centres


@dataclass(frozen=True)
class KMeansModel:
    """Centres and inertia; the rounds of Lloyd's iteration, or else what the children sent."""

    centres: Points
    inertia: float
    n_iter: int | None = None
    local_centres: Points | None = None
    local_counts: Counts | None = None


def one_shot(
    n_clusters: int,
    update_fraction: float = 0.25,
    weighted: bool = False,
    n_init: int = 10,
    max_iter: int = 300,
    tol: float = 1e-4,
    seed: int = 0,
) -> Flow[KMeansModel]:
    """Return the flow of child and parent; for the parameters see `FederatedKMeans`."""
    replies = yield FindCentres(n_clusters, update_fraction, n_init, max_iter, tol, seed)
    agree_on_features(replies)
    centres = np.concatenate([reply.centres for reply in replies.values()])
    counts = np.concatenate([reply.counts for reply in replies.values()])
    _check_distinct(centres, n_clusters, "centres that the clients have")
    parent = KMeans(n_clusters, n_init=n_init, max_iter=max_iter, tol=tol, random_state=seed)
    parent.fit(centres, sample_weight=counts if weighted else None)
    found = parent.cluster_centers_
    replies = yield MeasureInertia(found)
    inertia = fsum(reply.inertia for reply in replies.values())
    yield AssignCentres(found)
    return KMeansModel(found, inertia, None, centres, counts)


def lloyd(
    n_clusters: int,
    init: Points | None = None,
    n_init: int = 10,
    max_iter: int = 300,
    tol: float = 1e-4,
    seed: int = 0,
) -> Flow[KMeansModel]:
    """Return the flow of Lloyd's iteration; for the parameters see `FederatedKMeans`.

    All starts go on in the same rounds. A start is done in the round after which its centres do not
    move; one that stops before, by ``tol`` or ``max_iter``, stays for one more round, which
    measures the inertia of its last centres.
    """
    replies = yield SummariseGroups(0 if init is not None else GROUPS * n_clusters)
    n_features = agree_on_features(replies)
    least_shift = tol * _mean_variance(replies)
    if init is None:
        centres = _draw_starts(replies, n_clusters, n_init, seed)
    elif init.shape[1] != n_features:
        raise ValueError(f"init must have the clients' {n_features} features; got {init.shape[1]}")
    else:
        centres = init[np.newaxis].copy()
    n_iter = np.zeros(len(centres), int)
    inertias = np.full(len(centres), np.inf)
    moving = np.ones(len(centres), bool)
    while (going := np.flatnonzero(np.isinf(inertias))).size:
        replies = yield SumClusters(centres[going])
        sums = _exact_sum(reply.sums for reply in replies.values())
        counts = np.sum([reply.counts for reply in replies.values()], axis=0)
        measured = _exact_sum(reply.inertias for reply in replies.values())
        for start, *found in zip(going, sums, counts, measured, strict=True):
            shift = 0.0
            if moving[start]:
                n_iter[start] += 1
                shift = _move(centres[start], *found[:2])
                moving[start] = shift > least_shift and n_iter[start] < max_iter
            if shift == 0:
                inertias[start] = found[2]
    best = inertias.argmin()
    yield AssignCentres(centres[best])
    return KMeansModel(centres[best], float(inertias[best]), int(n_iter[best]))


class FederatedKMeansClient(PointsClient):
    """A client and its points, as in `PointsClient`, but within ±1e100.

    Raises
    ------
    ValueError
        When the points are no such table.
    """

    def __init__(self, X: ArrayLike):
        super().__init__(X)
        _check_coordinates("a coordinate", self.X)

    @handles(FindCentres)
    def find_centres(self, request: FindCentres) -> LocalCentres:
        _, centres, counts = child_centres(
            self.X,
            request.n_clusters,
            request.update_fraction,
            n_init=request.n_init,
            max_iter=request.max_iter,
            tol=request.tol,
            random_state=request.seed,
        )
        return LocalCentres(centres, counts, self.features)

    @handles(SummariseGroups)
    def summarise_groups(self, request: SummariseGroups) -> GroupMeans:
        mean = np.zeros(self.X.shape[1])
        if len(self.X):
            mean = self.X.mean(axis=0)
        squares = np.square(self.X - mean).sum(axis=0)
        means, counts = group_means(self.X, request.n_groups)
        return GroupMeans(len(self.X), mean, squares, means, counts, self.features)

    @handles(SumClusters)
    def sum_clusters(self, request: SumClusters) -> ClusterSums:
        sums, counts, inertias = zip(
            *[sum_clusters(self.X, centres) for centres in request.centres], strict=True
        )
        return ClusterSums(np.array(sums), np.array(counts), np.array(inertias))

    @handles(MeasureInertia)
    def measure_inertia(self, request: MeasureInertia) -> Inertia:
        return Inertia(_assign(self.X, request.centres)[1])

    @handles(AssignCentres)
    def assign_centres(self, request: AssignCentres) -> Done:
        self.state = Labels(_assign(self.X, request.centres)[0])
        return Done()


class FederatedKMeans(Federated):
    """k-means over clients that hold other rows of the same features.

    Parameters
    ----------
    n_clusters : int
        The number of clusters, at least 1.
    method : {"one_shot", "lloyd"}, default="one_shot"
        ``"one_shot"``: every client clusters its own points and the server clusters the centres
        (K). ``"lloyd"``: the iteration of k-means on all points, a message a round; the result is
        the centralised one from the same start.
    init : "k-means++" or array-like (n_clusters, n_features), default="k-means++"
        Where ``"lloyd"`` starts. ``"k-means++"`` draws from means of neighbouring points, at
        least 3 to a mean, so that no client shows a point for it. For ``"one_shot"``, where every
        client starts on its own, only ``"k-means++"``.
    n_init : int, default=10
        The number of starts, of which the one with the least inertia counts; one where `init` is
        an array. For ``"one_shot"`` the starts of each k-means.
    max_iter : int, default=300
        The greatest number of iterations.
    tol : float, default=1e-4
        Stop when the centres' squared shifts add up to at most `tol` times the features' mean
        variance, as in scikit-learn; 0: when they do not move.
    update_fraction : float, default=0.25
        For ``"one_shot"``: the share of a client's rows, in [0, 1), its first, that does not take
        part in its k-means but moves the centres afterwards, row by row.
    weighted : bool, default=False
        For ``"one_shot"``: weigh each centre by its number of points. K does not.
    random_state : int, RandomState or None, default=None
        For ``"one_shot"`` an int is the seed of the k-means of every client and of the server, as
        in K; of anything else one such seed is drawn. For ``"lloyd"`` it draws the starts.

    Attributes
    ----------
    cluster_centers_ : array (n_clusters, n_features)
    inertia_ : float
        The sum of the squared distances of the points to their nearest centres, over the clients
        that share and have stayed.
    n_iter_ : int
        The number of iterations of the best start. Only ``"lloyd"``.
    local_centers_, local_counts_ : arrays (n_centers, n_features) and (n_centers,)
        What the clients sent, one after the other. Only ``"one_shot"``.
    labels_ : list of array of int64
        The cluster of each client's points. Only if the parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range, or there are fewer distinct centres, or means to draw a
        start from, than `n_clusters`.

    Notes
    -----
    *What is disclosed.* The centre of a cluster of one point is that point, and its sum is. Neither
    method hides it: ``(local_counts_ == 1).sum()`` tells how many clients' points stood bare.

    *One shot.* A client with fewer distinct rows than `n_clusters` has a cluster for each of them;
    one without rows has none. The result depends on the order of the clients.

    *Lloyd.* Of equally near centres a point takes the first. A centre that has no points stays
    where it is; scikit-learn would move it onto the farthest point, which would have to be shown.
    The server adds the clients' sums exactly, so that the order of the clients does not matter, and
    the way in which rows are dealt to them only by rounding. All starts are iterated in the same
    rounds.

    Source: K, for ``"one_shot"``.

    Examples
    --------
    Three clusters on a line; the first client has no point of the last, the second none of the
    first.

    >>> from fedlib import FederatedKMeans
    >>> parts = [[[0.0], [1.0], [10.0]], [[11.0], [20.0], [21.0]]]
    >>> start = [[0.0], [10.0], [20.0]]
    >>> model = FederatedKMeans(3, method="lloyd", init=start).fit(parts)
    >>> model.cluster_centers_.ravel(), model.inertia_, model.n_iter_
    (array([ 0.5, 10.5, 20.5]), 1.5, 2)
    >>> model.labels_
    [array([0, 0, 1]), array([1, 2, 2])]
    >>> model.predict([[4.0], [30.0]])
    array([0, 2])
    """

    name = "kmeans"
    client_class = FederatedKMeansClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, 2**31, closed="left")],
        "method": [StrOptions({"one_shot", "lloyd"})],
        "init": [StrOptions({"k-means++"}), "array-like"],
        "n_init": [Interval(Integral, 1, 2**31, closed="left")],
        "max_iter": [Interval(Integral, 1, 2**31, closed="left")],
        "tol": [Interval(Real, 0, np.inf, closed="left")],
        "update_fraction": [Interval(Real, 0, 1, closed="left")],
        "weighted": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int,
        *,
        method: str = "one_shot",
        init: Any = "k-means++",
        n_init: int = 10,
        max_iter: int = 300,
        tol: float = 1e-4,
        update_fraction: float = 0.25,
        weighted: bool = False,
        random_state: Any = None,
    ):
        self.n_clusters = n_clusters
        self.method = method
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.update_fraction = update_fraction
        self.weighted = weighted
        self.random_state = random_state

    def _flow(self) -> Flow[KMeansModel]:
        k = int(self.n_clusters)
        given = not isinstance(self.init, str)
        if self.method == "one_shot" and given:
            raise ValueError("init must be 'k-means++' where method='one_shot'; got an array")
        seed = _seed(self.random_state)
        stop = int(self.n_init), int(self.max_iter), float(self.tol), seed
        if self.method == "one_shot":
            return one_shot(k, float(self.update_fraction), bool(self.weighted), *stop)
        init = None
        if given:
            init = _check_coordinates("init", check_points(self.init))
            if len(init) != k:
                raise ValueError(f"init must have n_clusters={k} rows; got {len(init)}")
        return lloyd(k, init, *stop)

    def _set_model(self, model: KMeansModel) -> None:
        self.cluster_centers_ = model.centres
        self.inertia_ = model.inertia
        self.n_features_in_ = model.centres.shape[1]
        if model.n_iter is not None:
            self.n_iter_ = model.n_iter
        else:
            self.local_centers_, self.local_counts_ = model.local_centres, model.local_counts

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the nearest centre of each point (n_points, n_features).

        Raises
        ------
        ValueError
            When the points are not finite or have other features than those of `fit`.
        """
        check_is_fitted(self, "cluster_centers_")
        return _assign(check_points(X), self.cluster_centers_)[0]

    def to_sklearn(self) -> KMeans:
        """Return a fitted scikit-learn ``KMeans`` with these centres, so the same predictions.

        It has ``labels_``, the clients' one after the other, where this has them.

        Examples
        --------
        >>> from fedlib import FederatedKMeans
        >>> model = FederatedKMeans(2, random_state=0).fit([[[0.0], [1.0], [8.0], [9.0]]])
        >>> bool((model.to_sklearn().predict([[2.0]]) == model.predict([[2.0]])).all())
        True
        """
        check_is_fitted(self, "cluster_centers_")
        fitted = KMeans(len(self.cluster_centers_), init=self.cluster_centers_, n_init=1)
        with warnings.catch_warnings():  # where two centres coincide
            warnings.simplefilter("ignore")
            fitted.fit(self.cluster_centers_)
        fitted.cluster_centers_ = self.cluster_centers_.copy()
        fitted.inertia_ = self.inertia_
        fitted.n_iter_ = getattr(self, "n_iter_", 0)
        del fitted.labels_
        if hasattr(self, "labels_"):
            labels = [own for own in self.labels_ if own is not None]
            fitted.labels_ = np.concatenate(labels).astype(np.int32)
        return fitted


def child_centres(
    X: Points,
    n_clusters: int,
    update_fraction: float = 0.25,
    *,
    n_init: int = 10,
    max_iter: int = 300,
    tol: float = 1e-4,
    random_state: int | None = None,
) -> tuple[Points, Points, Counts]:
    """Return a client's centres before and after the update, and the counts after it.

    The first ``int(update_fraction * n_points)`` rows are the update, the others the base that
    k-means clusters. With fewer distinct rows in the base than ``n_clusters``, each is a cluster.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    n_clusters, update_fraction, n_init, max_iter, tol
        As in `FederatedKMeans`.
    random_state : int, optional

    Returns
    -------
    base : array (n_centers, n_features)
    centres : array (n_centers, n_features)
    counts : array (n_centers,) of int64

    Examples
    --------
    The base is 1, 3 and 10; then 11 comes and moves the centre 10 by half the way.

    >>> X = np.array([[11.0], [1.0], [3.0], [10.0]])
    >>> base, centres, counts = child_centres(X, 2, random_state=0)
    >>> sorted(base.ravel().tolist()), sorted(centres.ravel().tolist()), sorted(counts.tolist())
    ([2.0, 10.0], [2.0, 10.5], [2, 2])
    """
    n_update = int(update_fraction * len(X))
    update, rest = X[:n_update], X[n_update:]
    n_distinct = min(n_clusters, len(np.unique(rest, axis=0)))
    if n_distinct == 0:
        return X[:0].copy(), X[:0].copy(), np.empty(0, np.int64)
    child = KMeans(n_distinct, n_init=n_init, max_iter=max_iter, tol=tol, random_state=random_state)
    child.fit(rest)
    counts = np.bincount(child.labels_, minlength=n_distinct).astype(np.int64)
    base, counts = child.cluster_centers_[counts > 0], counts[counts > 0]
    centres = base.copy()
    move_centres(update, centres, counts)
    return base, centres, counts


def group_means(X: Points, n_groups: int) -> tuple[Points, Counts]:
    """Return the means of at most ``n_groups`` groups of neighbouring points, and their counts.

    Groups are the leaves of a k-d tree, of at least 3 points each. Fewer than 3 points in all make
    no group.

    Examples
    --------
    >>> X = np.array([[0.0], [9.0], [1.0], [8.0], [2.0], [7.0], [1.0], [8.0]])
    >>> means, counts = group_means(X, n_groups=3)
    >>> sorted(means.ravel().tolist()), counts
    ([1.0, 8.0], array([4, 4]))
    """
    if n_groups == 0 or len(X) < GROUP_SIZE:
        return X[:0].copy(), np.empty(0, np.int64)
    tree = KDTree(X, leaf_size=max(GROUP_SIZE, -(-len(X) // n_groups)))
    _, rows, nodes, _ = (np.asarray(array) for array in tree.get_arrays())
    leaves = nodes[nodes["is_leaf"] == 1]
    leaves = leaves[np.argsort(leaves["idx_start"])]
    counts = (leaves["idx_end"] - leaves["idx_start"]).astype(np.int64)
    return np.add.reduceat(X[rows], leaves["idx_start"]) / counts[:, np.newaxis], counts


def sum_clusters(X: Points, centres: Points) -> tuple[Points, Counts, float]:
    """Return the sums and counts of the points by nearest centre, and the squared distances' sum.

    Examples
    --------
    >>> sum_clusters(np.array([[0.0], [1.0], [5.0]]), centres=np.array([[0.0], [4.0]]))
    (array([[1.],
           [5.]]), array([2, 1]), 2.0)
    """
    labels, inertia = _assign(X, centres)
    sums, counts = np.zeros(centres.shape), np.zeros(len(centres), np.int64)
    sum_by_label(X, labels, sums, counts)
    return sums, counts, inertia


def _assign(X: Points, centres: Points) -> tuple[NDArray[np.int64], float]:
    """Return the nearest centre of each point and the sum of the squared distances."""
    if X.shape[1] != centres.shape[1]:
        raise ValueError(f"points with {X.shape[1]} features, centres with {centres.shape[1]}")
    labels = np.empty(len(X), np.int64)
    return labels, float(nearest_centres(X, centres, labels))


def _move(centres: Points, sums: Points, counts: Counts) -> float:
    """Move the centres that have points to their means; return the sum of the squared shifts."""
    kept = counts > 0
    moved = sums[kept] / counts[kept, np.newaxis]
    shift = float(np.square(moved - centres[kept]).sum())
    centres[kept] = moved
    return shift


def _draw_starts(
    replies: Mapping[str, GroupMeans], n_clusters: int, n_init: int, seed: int
) -> Points:
    """Return ``n_init`` starts (n_init, n_clusters, n_features), by k-means++ on weighted means."""
    means = np.concatenate([reply.means for reply in replies.values()])
    counts = np.concatenate([reply.counts for reply in replies.values()])
    what = f"means of {GROUP_SIZE} or more points that the clients have (or give init as an array)"
    _check_distinct(means, n_clusters, what)
    random = check_random_state(seed)
    starts = [
        kmeans_plusplus(means, n_clusters, sample_weight=counts, random_state=random)[0]
        for _ in range(n_init)
    ]
    return np.array(starts)


def _mean_variance(replies: Mapping[str, GroupMeans]) -> float:
    """Return the mean over the features of the variance of all clients' points."""
    n_points = np.array([[reply.n_points] for reply in replies.values()])
    if not n_points.any():
        raise ValueError("the clients have no points")
    means = np.array([reply.mean for reply in replies.values()])
    centre = (n_points * means).sum(axis=0) / n_points.sum()
    squares = np.array([reply.squares for reply in replies.values()])
    squares = squares + n_points * np.square(means - centre)
    return float(squares.sum(axis=0).mean() / n_points.sum())


def _exact_sum(arrays: Iterable[NDArray]) -> NDArray:
    """Return the elements' sums, correctly rounded, so that their order does not matter."""
    stacked = np.array(list(arrays))
    columns = stacked.reshape(len(stacked), -1).T.tolist()
    return np.array([fsum(column) for column in columns]).reshape(stacked.shape[1:])


def _check_distinct(points: Points, n_clusters: int, what: str) -> None:
    n_distinct = len(np.unique(points, axis=0))
    if n_distinct < n_clusters:
        raise ValueError(
            f"n_clusters must be in 1..{n_distinct}, the distinct {what}; got {n_clusters}"
        )


def _check_coordinates(what: str, X: Points) -> Points:
    if X.size and abs(X).max() > LIMIT:
        raise ValueError(f"{what} must lie within ±{LIMIT:g}; got {abs(X).max():g}")
    return X


def _seed(random_state: Any) -> int:
    """Return an int as it is, and a seed drawn from anything else."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
