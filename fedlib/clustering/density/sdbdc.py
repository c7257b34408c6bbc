"""SDBDC: every client sends some of its points, with the count of points that each represents.

A client does not cluster. It chooses representatives, the best one first, until they cover its
points. It sends each with the count of points that it covers and the distance to the furthest of
them. The server runs DBSCAN on the representatives, with these numbers as weights and
neighbourhoods enlarged by these distances. Every client labels its points by the representative
that covers them.

Sources: P, §3.2, and Januzaj, Kriegel and Pfeifle (2004), "Scalable Density-Based Distributed
Clustering".
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Annotated

import msgspec
import numpy as np

from fedlib.clustering.density.representatives import (
    Count,
    Points,
    Positive,
    Radii,
    RepresentativeClient,
    RepresentativeClustering,
    RepresentativeModel,
    Weights,
    check_count,
    cluster_representatives,
    gather,
    lexicographic_order,
    relabel_requests,
)
from fedlib.core.aggregation import agree_on_features, settle
from fedlib.core.client import handles
from fedlib.core.estimator import Example
from fedlib.core.messages import FeatureNames, Message, MessageError
from fedlib.core.parameters import KW_ONLY, Interval, PositiveFloat, PositiveInt
from fedlib.core.protocol import Flow
from fedlib.kernels.representatives import cover_greedily


class WeightedRepresentatives(Message):
    """Representatives of a client's points: how many points each covers, and up to what distance.

    ``radii`` are the distances to the furthest points covered.
    """

    discloses = "some of a client's points, the count of points near each, and how near they are"
    representatives: Points
    weights: Weights
    radii: Radii
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns of ``representatives``."""
        return int(self.representatives.shape[1])


class ChooseRepresentatives(Message):
    """Choose representatives, the best ones first, until a fraction of your points is covered."""

    discloses = "the parameters"
    reply = WeightedRepresentatives
    eps: Positive
    n_representatives: Count | None
    coverage: Annotated[float, msgspec.Meta(gt=0, le=1)]

    def accept(self, reply: Message) -> WeightedRepresentatives:
        """Return the reply if its radii are at most eps and it has no surplus representatives."""
        assert isinstance(reply, WeightedRepresentatives)
        furthest = reply.radii.max(initial=0.0)
        if furthest > self.eps:
            raise MessageError(f"radii must be at most {self.eps}, got {furthest}")
        check_count(reply.representatives, self.n_representatives)
        return reply


def sdbdc(
    eps: float,
    min_samples: int,
    n_representatives: int | None,
    coverage: float,
) -> Flow[RepresentativeModel]:
    """Return the server flow. For the parameters see `SDBDC`.

    Examples
    --------
    The radius of the second representative makes it a core point: its neighbourhood contains the
    first representative, while the first one's does not contain the second.

    >>> from fedlib import SDBDC
    >>> from fedlib.core.protocol import Replies
    >>> flow = SDBDC(eps=1.0, min_samples=5).protocol()
    >>> next(flow)
    ChooseRepresentatives(eps=1.0, n_representatives=None, coverage=1.0)
    >>> places, weights, radii = np.array([[0.0], [1.4]]), np.array([4, 3]), np.array([0.0, 0.5])
    >>> reply = WeightedRepresentatives(places, weights, radii)
    >>> flow.send(Replies({"A": reply}))["A"].own
    array([0, 0])
    """
    replies = yield ChooseRepresentatives(float(eps), n_representatives, float(coverage))
    replies = yield from settle(replies, agree_on_features)
    representatives, weights, radii = gather(replies, "representatives", "weights", "radii")
    model = cluster_representatives(representatives, weights, radii, eps, min_samples)
    complete = n_representatives is None and coverage == 1
    yield relabel_requests(replies, model, complete)
    return model


class SDBDCClient(RepresentativeClient):
    """A client of SDBDC that holds points, as in `PointsClient`."""

    @handles(ChooseRepresentatives)
    def choose_representatives(self, request: ChooseRepresentatives) -> WeightedRepresentatives:
        order = lexicographic_order(self.X)
        X = self.X[order]
        max_representatives = request.n_representatives or len(X)
        cover = cover_greedily(X, request.eps, max_representatives, request.coverage * len(X))
        self.keep_coverage(order, cover.owner)
        weights = np.bincount(cover.owner[cover.owner >= 0], minlength=len(cover.chosen))
        return WeightedRepresentatives(X[cover.chosen], weights, cover.reach, self.features)


class SDBDC(RepresentativeClustering):
    """Scalable density-based distributed clustering: DBSCAN on weighted points of the clients.

    Attributes
    ----------
    representatives_ : array (n_representatives, n_features) of float64
        The representatives of all clients, one client after the other, in the order in which they
        were chosen.
    weights_ : array (n_representatives,) of int64
        The count of points that each covers (CovCnt).
    radii_ : array (n_representatives,) of float64
        The distance from each to the furthest of them (CovRad).
    representative_labels_ : array (n_representatives,) of int64
        The cluster of each, -1 for noise, numbered by the lexicographically first core
        representative.
    labels_ : list of array of int64
        The cluster of each client's points: that of the representative that covers the point, -1
        for noise. A point that is not covered after an early stop, and each point of a passive
        client, belongs to the cluster of the nearest clustered representative within eps. Only if
        `fit` received the parts.
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
    The next representative is always the point with the largest DynRep: the sum of ``eps -
    distance`` over the points within eps that are not covered yet. Ties go to the lexicographically
    first point, so that the result depends neither on the order of rows nor on that of clients. A
    point that is already covered may become a representative of others. Its place is then that of
    one representative, while it is counted by another.

    DynRep is updated when a point becomes covered, and never computed again from the start. So a
    client's cost is twice that of searching every point's neighbourhood. Neighbourhoods at the
    server are asymmetric: two core representatives are in one cluster when either is in the
    neighbourhood of the other. Memory is linear in the count of points.

    False representatives cannot be detected: a chain of them joins the clusters of other clients.

    Sources: P, §3.2; E. Januzaj, H.-P. Kriegel and M. Pfeifle, "Scalable Density-Based Distributed
    Clustering", PKDD 2004.

    Examples
    --------
    The first client's best representative is 0.5, which lies between the others.

    >>> from fedlib import SDBDC
    >>> first, second = [[0.0], [0.5], [1.0]], [[1.5], [9.0]]
    >>> model = SDBDC(eps=1.0, min_samples=4).fit([first, second])
    >>> model.representatives_.ravel(), model.weights_, model.radii_
    (array([0.5, 1.5, 9. ]), array([3, 1, 1]), array([0.5, 0. , 0. ]))
    >>> model.labels_
    [array([0, 0, 0]), array([ 0, -1])]
    """

    name = "sdbdc"
    example = Example("rows", {"eps": 0.5, "min_samples": 4})
    client_class = SDBDCClient
    eps: Annotated[
        PositiveFloat,
        """
        Radius of a neighbourhood, in the units of the features, above 0. A representative covers
        points of its client within eps. At the server, its own neighbourhood is enlarged by the
        distance to the furthest point that it covers.
        """,
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        Minimum count of points covered by the representatives in the neighbourhood of a core
        representative, including itself; at least 1. As neighbourhoods are enlarged, it should be
        higher than for DBSCAN.
        """,
    ]
    _: KW_ONLY
    n_representatives: Annotated[
        int | None,
        None,
        Interval(Integral, 1, 2**40, closed="both"),
        """
        Maximum count of representatives of a client, at least 1; by default no limit.
        """,
    ] = None
    coverage: Annotated[
        float,
        Interval(Real, 0, 1, closed="right"),
        """
        The fraction of its points, in (0, 1], that a client's representatives must cover.
        """,
    ] = 1.0

    def _flow(self) -> Flow[RepresentativeModel]:
        return sdbdc(**self.get_params())
