"""DBDC: every client clusters its own points and sends representatives of the clusters.

A client runs DBSCAN on its points. Each cluster it finds is described by a few representatives,
each with the radius of the area it stands for. The server clusters the representatives of all
clients and sends them back; every client then relabels its points, local noise among them, by the
representatives that reach them.

Sources: P, §3.1, and Januzaj, Kriegel and Pfeifle (2004), "DBDC: Density Based Distributed
Clustering". What `sdbdc` and `ppdbdc` share with DBDC is here too: `RelabelPoints`, and the base
classes of their clients and estimators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedlib.dbscan import cluster, dbscan, nearest_within
from fedlib.federated import Federated, PointsClient
from fedlib.kernels import representatives as kernels
from fedlib.messages import Array, Done, FeatureNames, Labels, Message, MessageError
from fedlib.protocol import Flow, agree_on_features, handles
from fedlib.validation import Interval, StrOptions, check_points

__all__ = [
    "DBDC",
    "BuildLocalModel",
    "Coverage",
    "DBDCClient",
    "LocalModel",
    "RelabelPoints",
    "RepresentativeClient",
    "RepresentativeClustering",
    "RepresentativeModel",
    "dbdc",
    "gather",
    "lexicographic_order",
    "move_to_centroids",
    "specific_core_points",
]

MAX_ITER = 300  # of k-means
ROUNDING = 2.0**-40  # radii grow by this share, lest rounding leave out the point that sets them

Positive = Annotated[float, msgspec.Meta(gt=0)]
Points = Annotated[np.ndarray, Array("float64", ("representatives", "features"))]
Radii = Annotated[np.ndarray, Array("float64", ("representatives",), ge=0)]


class LocalModel(Message):
    """The representatives of a client's clusters and how far each reaches."""

    discloses = (
        "the representatives of a client's own clusters (some of its points, or centroids, each of "
        "which is a point of its own where it stands for no other) and the radii of their areas"
    )
    representatives: Points
    radii: Radii
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``representatives``."""
        return int(self.representatives.shape[1])


class BuildLocalModel(Message):
    """Cluster your points and describe the clusters by representatives."""

    discloses = "the parameters"
    reply = LocalModel
    eps: Positive
    min_samples: Annotated[int, msgspec.Meta(ge=1)]
    local_model: Literal["core", "kmeans"]

    def accept(self, reply: Message) -> LocalModel:
        """Raise MessageError where a specific core point reaches less than eps or beyond 2 eps."""
        assert isinstance(reply, LocalModel)
        most = 2 * self.eps * (1 + 2 * ROUNDING)
        if self.local_model == "core" and not np.all(
            (self.eps <= reply.radii) & (reply.radii <= most)
        ):
            raise MessageError(f"a specific core point that does not reach {self.eps}..{most}")
        return reply


class RelabelPoints(Message):
    """Relabel your points.

    ``own`` are the clusters (-1: noise) of the representatives that you sent, in their order: a
    point that you know to be covered by one of them belongs to its cluster. Any other point belongs
    to the cluster of the nearest of ``representatives`` that reaches it.
    """

    discloses = "the clusters of the client's representatives, or the places and clusters of all"
    asks_for_data = False
    own: Annotated[np.ndarray, Array("int64", ("own",), ge=-1)]
    representatives: Points
    radii: Radii
    labels: Annotated[np.ndarray, Array("int64", ("representatives",), ge=0)]


class Coverage(Message):
    """The state of a client that has sent representatives: which of them covers each row, or -1."""

    discloses = "nothing: it stays with the client"
    owner: Annotated[np.ndarray, Array("int64", ("rows",), ge=-1)]


@dataclass(frozen=True)
class RepresentativeModel:
    """The representatives of all clients, one client after the other, and their clusters.

    ``radii`` say how far each reaches when a point is placed; ``own_radii`` and ``weights`` are
    what the clients sent with them, None where they send no such thing.
    """

    representatives: NDArray[np.float64]
    labels: NDArray[np.int64]
    radii: NDArray[np.float64]
    own_radii: NDArray[np.float64] | None = None
    weights: NDArray[np.int64] | None = None

    def clustered(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Return representatives, radii and labels of clusters, in lexicographic order."""
        order = lexicographic_order(self.representatives, self.radii)
        order = order[self.labels[order] >= 0]
        return self.representatives[order], self.radii[order], self.labels[order]


def dbdc(
    eps: float,
    min_samples: int,
    local_model: Literal["core", "kmeans"] = "core",
    eps_global: float | None = None,
) -> Flow[RepresentativeModel]:
    """Return the server flow; for the parameters see `DBDC`.

    Examples
    --------
    >>> from fedlib.protocol import Replies
    >>> flow = dbdc(eps=1.0, min_samples=3)
    >>> next(flow)
    BuildLocalModel(eps=1.0, min_samples=3, local_model='core')
    >>> one = LocalModel(np.array([[0.0]]), np.array([2.0]))
    >>> two = LocalModel(np.array([[9.0], [1.5]]), np.array([1.0, 2.0]))
    >>> flow.send(Replies({"A": one, "B": two})).labels  # of 0.0, 1.5 and 9.0
    array([0, 0, 1])
    """
    eps_global = 2.0 * eps if eps_global is None else eps_global
    if not np.isfinite(eps_global):
        raise ValueError(f"eps_global, by default 2 eps, must be finite; got {eps_global}")
    replies = yield BuildLocalModel(float(eps), int(min_samples), local_model)
    representatives, radii = gather(replies, "representatives", "radii")
    order = lexicographic_order(representatives, radii)
    labels = np.empty(len(order), np.int64)
    # With MinPts 2 whoever has a neighbour is a core point. MinPts 1 gives the same clusters, and
    # to a representative without neighbours one of its own, where DBSCAN would see noise.
    labels[order] = dbscan(representatives[order], eps_global, 1)
    model = RepresentativeModel(representatives, labels, radii, radii)
    yield RelabelPoints(np.empty(0, np.int64), *model.clustered())
    return model


class RepresentativeClient(PointsClient):
    """A client and its points, as in `PointsClient`; it relabels them by representatives."""

    @handles(RelabelPoints)
    def relabel_points(self, request: RelabelPoints) -> Done:
        labels = _place(self.X, request.representatives, request.radii, request.labels)
        if len(request.own):
            owner = self.recall(Coverage).owner
            if owner.max(initial=-1) >= len(request.own):
                raise ValueError(f"{len(request.own)} labels for more representatives")
            labels = np.where(owner >= 0, request.own[owner], labels)
        self.state = Labels(labels)
        return Done()


class DBDCClient(RepresentativeClient):
    """A client of DBDC and its points, as in `RepresentativeClient`."""

    @handles(BuildLocalModel)
    def build_local_model(self, request: BuildLocalModel) -> LocalModel:
        X = self.X[lexicographic_order(self.X)]
        labels, core = cluster(X, request.eps, request.min_samples)
        chosen, radii = specific_core_points(X, core, request.eps)
        representatives = X[chosen]
        if request.local_model == "kmeans":
            moved = [
                move_to_centroids(X[labels == label], X[chosen[labels[chosen] == label]])
                for label in range(labels.max(initial=-1) + 1)
            ]
            representatives = np.concatenate([representatives[:0], *(m[0] for m in moved)])
            radii = np.concatenate([radii[:0], *(m[1] for m in moved)])
        return LocalModel(representatives, radii, self.features)


class RepresentativeClustering(Federated):
    """The base of `DBDC`, `SDBDC` and `PPDBDC`."""

    def _set_model(self, model: RepresentativeModel) -> None:
        self.representatives_ = model.representatives
        self.representative_labels_ = model.labels
        if model.own_radii is not None:
            self.radii_ = model.own_radii
        if model.weights is not None:
            self.weights_ = model.weights
        self.n_features_in_ = model.representatives.shape[1]
        self._placing = model.clustered()

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of new points (n_points, n_features); -1: noise.

        It is that of the nearest representative of a cluster that reaches the point.

        Raises
        ------
        ValueError
            When the points are not finite or have other features than those of `fit`.
        """
        check_is_fitted(self, "representatives_")
        return _place(check_points(X), *self._placing)


class DBDC(RepresentativeClustering):
    """Density-based distributed clustering: DBSCAN at the clients, then of their representatives.

    Parameters
    ----------
    eps : float
        Radius of a neighbourhood in the clients' own DBSCAN, in the units of the features, above 0.
    min_samples : int
        How many of a client's *own* points in its neighbourhood, itself included, make a core
        point, at least 1. Where the rows of a cluster are spread over many clients, each has fewer
        of them.
    local_model : {"core", "kmeans"}, default="core"
        ``"core"``: the representatives are specific core points: no two within eps of each other,
        every core point within eps of one. Each reaches eps beyond the furthest core point within
        its eps. ``"kmeans"``: k-means inside each cluster, from its specific core points; each
        centroid reaches its furthest point.
    eps_global : float, optional
        Representatives at most this far apart are in one cluster, above 0; by default 2 eps.

    Attributes
    ----------
    representatives_ : array (n_representatives, n_features) of float64
        Those of all clients, one client after the other.
    radii_ : array (n_representatives,) of float64
        How far each reaches.
    representative_labels_ : array (n_representatives,) of int64
        The cluster of each, numbered by the lexicographically first representative. None is noise:
        one without neighbours is a cluster of its own.
    labels_ : list of array of int64
        The cluster of each client's points, that of the nearest representative that reaches it, the
        lexicographically first of equals; -1 for noise. Only if the parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    Many sets of specific core points fit the definition. Here a client looks at its core points in
    lexicographic order and takes each that is not within eps of one taken before, so that the
    result depends neither on the order of its rows nor on that of the clients. In k-means a
    centroid that loses all its points is left out.

    Points that are noise at every client leave no trace, even where they are a cluster together.
    Specific core points are points of the clients; a centroid is one too where its cluster of
    k-means holds a single point, or the same one repeatedly.

    A client may lie. A specific core point's radius is checked; that of a centroid may be any, as a
    cluster may be of any width. One too large draws points to the liar's cluster: all that would be
    noise, and those to which the liar's representative is nearer than any other that reaches them.
    Which representatives are in one cluster does not depend on radii.

    Sources: P, §3.1; E. Januzaj, H.-P. Kriegel and M. Pfeifle, "DBDC: Density Based Distributed
    Clustering", EDBT 2004.

    Examples
    --------
    Two clients, each with a part of a chain of points. Neither knows that the chain goes on; their
    representatives 0, 2 and 3 do. What is noise at the second client, 1.5, is not any more.

    >>> from fedlib import DBDC
    >>> first, second = [[0.0], [1.0], [2.0]], [[3.0], [3.5], [4.0], [1.5], [9.0]]
    >>> model = DBDC(eps=1.0, min_samples=2).fit([first, second])
    >>> model.labels_
    [array([0, 0, 0]), array([ 0,  0,  0,  0, -1])]
    >>> model.representatives_.ravel()
    array([0., 2., 3.])
    """

    name = "dbdc"
    client_class = DBDCClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "eps": [Interval(Real, 0, np.inf, closed="neither")],
        "min_samples": [Interval(Integral, 1, None, closed="left")],
        "local_model": [StrOptions({"core", "kmeans"})],
        "eps_global": [None, Interval(Real, 0, np.inf, closed="neither")],
    }

    def __init__(
        self,
        eps: float,
        min_samples: int,
        *,
        local_model: str = "core",
        eps_global: float | None = None,
    ):
        self.eps = eps
        self.min_samples = min_samples
        self.local_model = local_model
        self.eps_global = eps_global

    def _flow(self) -> Flow[RepresentativeModel]:
        return dbdc(**self.get_params())


def specific_core_points(
    X: NDArray[np.float64], core: NDArray[np.bool_], eps: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Choose core points none of which is within eps of another, and which cover all core points.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
        Core points are tried in this order.
    core : array (n_points,) of bool
    eps : float

    Returns
    -------
    chosen : array (n_chosen,) of int64
        Their rows in X.
    radii : array (n_chosen,) of float64
        eps and the distance to the furthest core point within eps.

    Examples
    --------
    >>> X = np.array([[0.0], [0.5], [1.5], [3.0]])
    >>> specific_core_points(X, np.array([True, True, True, False]), eps=1.0)
    (array([0, 2]), array([1.5, 2. ]))
    """
    rows = np.flatnonzero(core)
    chosen, _, reach = kernels.cover_in_order(X[rows], np.arange(len(rows)), eps, len(rows))
    return rows[chosen], (eps + reach) * (1 + ROUNDING)


def move_to_centroids(
    X: NDArray[np.float64], starts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the centroids of k-means, those that have points, and the radius of each.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    starts : array (n_starts, n_features) of float64
        At least one.

    Returns
    -------
    centroids : array (n_centroids, n_features) of float64
    radii : array (n_centroids,) of float64
        The distance to the furthest point of each.

    Examples
    --------
    >>> move_to_centroids(np.array([[0.0], [1.0], [5.0], [8.0]]), np.array([[0.0], [5.0]]))
    (array([[0.5],
           [6.5]]), array([0.5, 1.5]))
    """
    centroids = starts.copy()
    nearest = kernels.move_to_centroids(X, centroids, MAX_ITER)
    radii = np.zeros(len(centroids))
    np.maximum.at(radii, nearest, np.sqrt(((X - centroids[nearest]) ** 2).sum(axis=1)))
    used = np.bincount(nearest, minlength=len(centroids)) > 0
    return centroids[used], radii[used] * (1 + ROUNDING)


def gather(replies: Mapping[str, Any], *fields: str) -> list[NDArray[Any]]:
    """Return these fields of all replies, each in one array; the first are the representatives.

    Raises
    ------
    ValueError
        When the clients disagree on the number of features or on their names.
    """
    agree_on_features(replies)
    return [np.concatenate([getattr(r, field) for r in replies.values()]) for field in fields]


def lexicographic_order(X: NDArray[Any], *more: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order of rows by their first feature, then the next, and then by ``more``."""
    return np.lexsort([*more[::-1], *X.T[::-1]])


def _place(
    X: NDArray[np.float64],
    representatives: NDArray[np.float64],
    radii: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the cluster of the nearest representative that reaches each point, or -1."""
    return np.append(labels, -1)[nearest_within(X, representatives, radii)]
