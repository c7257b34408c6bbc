"""DBDC: every client clusters its own points and sends representatives of the clusters.

A client runs DBSCAN on its points. It describes each of its clusters by a few representatives, each
with a radius. The server clusters the representatives of all clients and sends them to all of them.
Every client then relabels its points, including local noise, by the nearest representative that
reaches them.

Sources: P, §3.1, and Januzaj, Kriegel and Pfeifle (2004), "DBDC: Density Based Distributed
Clustering".
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

from fedlib.clustering.density.engine.dbscan import cluster, dbscan
from fedlib.clustering.density.representatives import (
    Points,
    Positive,
    Radii,
    RelabelPoints,
    RepresentativeClient,
    RepresentativeClustering,
    RepresentativeModel,
    gather,
    lexicographic_order,
)
from fedlib.core.aggregation import agree_on_features, settle
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import handles
from fedlib.core.estimator import Example
from fedlib.core.messages import FeatureNames, Message, MessageError
from fedlib.core.parameters import (
    KW_ONLY,
    OptionalPositiveFloat,
    PositiveFloat,
    PositiveInt,
    StrOptions,
)
from fedlib.core.protocol import Flow
from fedlib.kernels.representatives import cover_in_order
from fedlib.kernels.representatives import move_to_centroids as move_to_centroids_by_kernel

MAX_ITER = 300  # of k-means
MAX_POINTS = 2**40  # of one client
ROUNDING = 2.0**-40  # radii grow by this fraction, so that rounding excludes no point at the rim


class LocalModel(Message):
    """The representatives of a client's clusters, and how far each reaches."""

    discloses = (
        "representatives of the client's clusters (points of the client, or centroids; the centroid"
        " of a single point is that point) and the radius that each covers"
    )
    representatives: Points
    radii: Radii
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns of ``representatives``."""
        return int(self.representatives.shape[1])


class BuildLocalModel(Message):
    """Cluster your points and describe the clusters by representatives."""

    discloses = "the parameters"
    effortless = ("min_samples",)
    reply = LocalModel
    eps: Positive
    min_samples: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    local_model: Literal["core", "kmeans"]

    def accept(self, reply: Message) -> LocalModel:
        """Return the reply if its radii are possible.

        The radius of a specific core point is between eps and 2 eps. A point is within 2 eps of a
        specific core point, and k-means never increases the sum of the squared distances. So the
        radius of a centroid of n points is at most 2 eps times the square root of n.
        """
        assert isinstance(reply, LocalModel)
        smallest, largest = self.eps, 2 * self.eps * (1 + 2 * ROUNDING)
        if self.local_model == "kmeans":
            smallest, largest = 0.0, largest * MAX_POINTS**0.5
        outside = (reply.radii < smallest) | (reply.radii > largest)
        if outside.any():
            raise MessageError(
                f"a radius must be in {smallest}..{largest}, got {reply.radii[outside][0]}"
            )
        return reply


def dbdc(
    eps: float,
    min_samples: int,
    local_model: Literal["core", "kmeans"],
    eps_global: float | None,
) -> Flow[RepresentativeModel]:
    """Return the server flow. For the parameters see `DBDC`.

    Raises
    ------
    ValueError
        When ``eps_global`` is not finite, or the clients' features differ.

    Examples
    --------
    >>> from fedlib import DBDC
    >>> from fedlib.core.protocol import Replies
    >>> flow = DBDC(eps=1.0, min_samples=3).protocol()
    >>> next(flow)
    BuildLocalModel(eps=1.0, min_samples=3, local_model='core')
    >>> a = LocalModel(np.array([[0.0]]), np.array([2.0]))
    >>> b = LocalModel(np.array([[9.0], [1.5]]), np.array([1.0, 2.0]))
    >>> flow.send(Replies({"A": a, "B": b})).labels  # of 0.0, 1.5 and 9.0
    array([0, 0, 1])
    """
    eps_global = 2.0 * eps if eps_global is None else eps_global
    if not np.isfinite(eps_global):
        raise ValueError(f"eps_global, by default 2 eps, must be finite, got {eps_global}")
    replies = yield BuildLocalModel(float(eps), int(min_samples), local_model)
    replies = yield from settle(replies, agree_on_features)
    representatives, radii = gather(replies, "representatives", "radii")
    order = lexicographic_order(representatives, radii)
    labels = np.empty(len(order), np.int64)
    # The paper uses MinPts 2, so that each representative with a neighbour is a core point. MinPts
    # 1 gives the same clusters; a representative without neighbours is not noise but a cluster.
    labels[order] = dbscan(representatives[order], eps_global, 1)
    model = RepresentativeModel(representatives, labels, radii, radii)
    yield RelabelPoints(np.empty(0, np.int64), *model.clustered())
    return model


class DBDCClient(RepresentativeClient):
    """A client of DBDC that holds points, as in `PointsClient`."""

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


class DBDC(RepresentativeClustering):
    """Density-based distributed clustering: DBSCAN at each client, then on representatives.

    Attributes
    ----------
    representatives_ : array (n_representatives, n_features) of float64
        The representatives of all clients, one client after the other.
    radii_ : array (n_representatives,) of float64
        How far each reaches.
    representative_labels_ : array (n_representatives,) of int64
        The cluster of each, numbered by the lexicographically first representative. None is noise:
        a representative without neighbours is a cluster by itself.
    labels_ : list of array of int64
        The cluster of each client's points: that of the nearest representative that reaches the
        point, -1 for noise. Ties go to the lexicographically first. Only if `fit` received the
        parts.
    model_ : RepresentativeModel
        Everything that `predict` needs.
    ledger_ : Ledger
        The messages of the run.
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    Many sets of specific core points fit the definition. Here a client visits its core points in
    lexicographic order and chooses each that is not within eps of one chosen before. So the result
    depends neither on the order of its rows nor on that of the clients. A centroid of k-means that
    loses all its points is left out.

    Points that are noise at every client are lost, even if they form a cluster together. Specific
    core points are points of the clients. A centroid is one too if its cluster of k-means consists
    of a single point or of equal points.

    A client may send false values. The radius of a specific core point is checked. That of a
    centroid is only bounded, by eps times 2**21, because the server does not know how many points a
    cluster has. If it is too large, the client's cluster gains points: all that would be noise, and
    those to which its representative is nearer than any other that reaches them. Radii do not
    affect which representatives are in one cluster. False representatives cannot be detected: a
    chain of them joins the clusters of other clients.

    The cost is DBSCAN on each client's points and once on all representatives; see
    `fedlib.clustering.density.engine.dbscan.cluster`. Memory is linear in the count of points.

    Sources: P, §3.1; E. Januzaj, H.-P. Kriegel and M. Pfeifle, "DBDC: Density Based Distributed
    Clustering", EDBT 2004.

    Examples
    --------
    Each of two clients has a part of a chain of points. Their representatives 0, 2 and 3 show the
    server that the parts belong together. The point 1.5, noise at the second client, is in the
    cluster as well.

    >>> from fedlib import DBDC
    >>> first, second = [[0.0], [1.0], [2.0]], [[3.0], [3.5], [4.0], [1.5], [9.0]]
    >>> model = DBDC(eps=1.0, min_samples=2).fit([first, second])
    >>> model.labels_
    [array([0, 0, 0]), array([ 0,  0,  0,  0, -1])]
    >>> model.representatives_.ravel()
    array([0., 2., 3.])
    """

    name = "dbdc"
    example = Example("rows", {"eps": 0.5, "min_samples": 4})
    client_class = DBDCClient
    eps: Annotated[
        PositiveFloat,
        """
        Radius of a neighbourhood in the clients' DBSCAN, in the units of the features, above 0.
        """,
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        Minimum count of points of one client in the neighbourhood of a core point, including the
        point itself; at least 1. If the points of a cluster are spread over many clients, each
        client has fewer of them.
        """,
    ]
    _: KW_ONLY
    local_model: Annotated[
        str,
        StrOptions({"core", "kmeans"}),
        """
        How a client chooses representatives. ``"core"``: specific core points. No two are within
        eps of each other, and every core point is within eps of one of them. Each reaches eps
        further than the furthest core point within its eps. ``"kmeans"``: the centroids of k-means
        in each cluster, started from its specific core points. Each reaches its furthest point.
        """,
    ] = "core"
    eps_global: Annotated[
        OptionalPositiveFloat,
        """
        Representatives at most this far apart are in one cluster, in the units of the features,
        above 0; by default 2 eps.
        """,
    ] = None

    def _flow(self) -> Flow[RepresentativeModel]:
        return dbdc(**self.get_params())


def specific_core_points(X: Floats, core: Bools, eps: float) -> tuple[Ints, Floats]:
    """Choose core points, no two within eps of each other, that cover all core points.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
        Core points are tried in this order.
    core : array (n_points,) of bool
        Which points are core points.
    eps : float

    Returns
    -------
    chosen : array (n_chosen,) of int64
        Their rows in X.
    radii : array (n_chosen,) of float64
        The sum of eps and the distance to the furthest core point within eps.

    Examples
    --------
    >>> X = np.array([[0.0], [0.5], [1.5], [3.0]])
    >>> specific_core_points(X, np.array([True, True, True, False]), eps=1.0)
    (array([0, 2]), array([1.5, 2. ]))
    """
    rows = np.flatnonzero(core)
    cover = cover_in_order(X[rows], np.arange(len(rows)), eps, len(rows))
    return rows[cover.chosen], (eps + cover.reach) * (1 + ROUNDING)


def move_to_centroids(X: Floats, starts: Floats) -> tuple[Floats, Floats]:
    """Return the centroids of k-means that have points, and the radius of each.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    starts : array (n_starts, n_features) of float64
        The initial centroids, at least one.

    Returns
    -------
    centroids : array (n_centroids, n_features) of float64
    radii : array (n_centroids,) of float64
        The distance from each to its furthest point.

    Examples
    --------
    >>> move_to_centroids(np.array([[0.0], [1.0], [5.0], [8.0]]), np.array([[0.0], [5.0]]))
    (array([[0.5],
           [6.5]]), array([0.5, 1.5]))
    """
    centroids = starts.copy()
    nearest = move_to_centroids_by_kernel(X, centroids, MAX_ITER)
    radii = np.zeros(len(centroids))
    np.maximum.at(radii, nearest, np.sqrt(((X - centroids[nearest]) ** 2).sum(axis=1)))
    used = np.bincount(nearest, minlength=len(centroids)) > 0
    return centroids[used], radii[used] * (1 + ROUNDING)
