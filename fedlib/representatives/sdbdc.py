"""SDBDC: every client sends as many of its points as it takes to represent all of them.

A client does not cluster. It chooses representatives, the best one first, and says with each how
many of its points it covers and how far away the furthest of them is. The server runs DBSCAN on the
representatives, with these counts as weights and neighbourhoods that are wider by these distances.
Every client gives its points the cluster of the representative that covers them.

Sources: P, §3.2, and Januzaj, Kriegel and Pfeifle (2004), "Scalable Density-Based Distributed
Clustering".
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.dbscan import dbscan
from fedlib.kernels.representatives import cover_greedily
from fedlib.messages import Array, FeatureNames, Message, MessageError
from fedlib.protocol import Flow, Replies, handles
from fedlib.representatives.dbdc import (
    Coverage,
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
from fedlib.validation import Interval

__all__ = [
    "SDBDC",
    "ChooseRepresentatives",
    "SDBDCClient",
    "WeightedRepresentatives",
    "cluster_representatives",
    "relabel_requests",
    "sdbdc",
]

Weights = Annotated[np.ndarray, Array("int64", ("representatives",), ge=1, le=2**40)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class WeightedRepresentatives(Message):
    """Representatives of a client's points, how many each covers and how far the furthest is."""

    discloses = "some of a client's points, and how many others lie how near to each"
    representatives: Points
    weights: Weights
    radii: Radii
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``representatives``."""
        return int(self.representatives.shape[1])


class ChooseRepresentatives(Message):
    """Choose representatives, the best ones first, until a share of your points is covered."""

    discloses = "the parameters"
    reply = WeightedRepresentatives
    eps: Positive
    n_representatives: Number | None
    coverage: Annotated[float, msgspec.Meta(gt=0, le=1)]

    def accept(self, reply: Message) -> WeightedRepresentatives:
        """Raise MessageError where a point is covered from too far, or there are too many."""
        assert isinstance(reply, WeightedRepresentatives)
        if reply.radii.max(initial=0.0) > self.eps:
            raise MessageError("a representative that covers points beyond eps")
        not_too_many(reply.representatives, self.n_representatives)
        return reply


def sdbdc(
    eps: float,
    min_samples: int,
    n_representatives: int | None = None,
    coverage: float = 1.0,
) -> Flow[RepresentativeModel]:
    """Return the server flow; for the parameters see `SDBDC`.

    Examples
    --------
    The second representative is a core point only because its neighbourhood is wider by 0.5: it
    reaches the first, which does not reach it.

    >>> flow = sdbdc(eps=1.0, min_samples=5)
    >>> next(flow)
    ChooseRepresentatives(eps=1.0, n_representatives=None, coverage=1.0)
    >>> places, weights, radii = np.array([[0.0], [1.4]]), np.array([4, 3]), np.array([0.0, 0.5])
    >>> said = WeightedRepresentatives(places, weights, radii)
    >>> flow.send(Replies({"A": said}))["A"].own
    array([0, 0])
    """
    replies = yield ChooseRepresentatives(float(eps), n_representatives, float(coverage))
    representatives, weights, radii = gather(replies, "representatives", "weights", "radii")
    model = cluster_representatives(representatives, weights, radii, eps, min_samples)
    complete = n_representatives is None and coverage == 1
    yield relabel_requests(replies, model, complete)
    return model


def cluster_representatives(
    representatives: NDArray[np.float64],
    weights: NDArray[np.int64],
    radii: NDArray[np.float64] | None,
    eps: float,
    min_samples: int,
) -> RepresentativeModel:
    """Run DBSCAN on weighted representatives, each neighbourhood wider by its radius if given.

    Clusters are numbered by the lexicographically first core representative, whatever the order of
    the representatives.
    """
    more = [weights] if radii is None else [weights, radii]
    order = lexicographic_order(representatives, *more)
    labels = np.empty(len(order), np.int64)
    wider = None if radii is None else radii[order]
    labels[order] = dbscan(representatives[order], eps, min_samples, weights[order], wider)
    reach = np.full(len(order), float(eps))
    return RepresentativeModel(representatives, labels, reach, radii, weights)


def relabel_requests(
    replies: Replies, model: RepresentativeModel, complete: bool
) -> Mapping[str, Message]:
    """Return what each client is told.

    Where a client's representatives cover all its points (``complete``), their clusters are all it
    needs. Else, and for a passive client, the representatives of all clusters come with them.
    """
    everyone = model.clustered()
    nobody = [field[:0] for field in everyone]
    requests: dict[str, Message] = {}
    at = 0
    for name, reply in replies.items():
        own = model.labels[at : at + len(reply.representatives)]
        requests[name] = RelabelPoints(own, *(nobody if complete else everyone))
        at += len(own)
    none = np.empty(0, np.int64)
    return requests | {name: RelabelPoints(none, *everyone) for name in replies.declined}


def not_too_many(representatives: NDArray[np.float64], n_representatives: int | None) -> None:
    """Raise MessageError where there are more representatives than were asked for."""
    if n_representatives is not None and len(representatives) > n_representatives:
        raise MessageError(f"more than {n_representatives} representatives")


class SDBDCClient(RepresentativeClient):
    """A client of SDBDC and its points, as in `RepresentativeClient`."""

    @handles(ChooseRepresentatives)
    def choose_representatives(self, request: ChooseRepresentatives) -> WeightedRepresentatives:
        order = lexicographic_order(self.X)
        X = self.X[order]
        most = len(X) if request.n_representatives is None else request.n_representatives
        chosen, sorted_owner, radii = cover_greedily(
            X, request.eps, most, request.coverage * len(X)
        )
        owner = np.empty(len(X), np.int64)
        owner[order] = sorted_owner
        self.state = Coverage(owner)
        weights = np.bincount(owner[owner >= 0], minlength=len(chosen))
        return WeightedRepresentatives(X[chosen], weights, radii, self.features)


class SDBDC(RepresentativeClustering):
    """Scalable density-based distributed clustering: DBSCAN on weighted points of the clients.

    Parameters
    ----------
    eps : float
        Radius of a neighbourhood, in the units of the features, above 0. A representative covers
        the points of its client within eps; its own neighbourhood at the server is wider by the
        distance to the furthest point it covers.
    min_samples : int
        How many points of all clients the representatives in a neighbourhood must cover, itself
        included, to make a core representative, at least 1. As neighbourhoods are wider, more are
        needed than for DBSCAN.
    n_representatives : int, optional
        How many representatives a client chooses at most, at least 1; by default as many as it
        takes.
    coverage : float, default=1.0
        The share of its points, in (0, 1], that a client's representatives must cover.

    Attributes
    ----------
    representatives_ : array (n_representatives, n_features) of float64
        Those of all clients, one client after the other, in the order in which they were chosen.
    weights_ : array (n_representatives,) of int64
        How many points each covers (CovCnt): the number of points it stands for.
    radii_ : array (n_representatives,) of float64
        The distance to the furthest of them (CovRad).
    representative_labels_ : array (n_representatives,) of int64
        The cluster of each, -1 for noise, numbered by the lexicographically first core
        representative.
    labels_ : list of array of int64
        The cluster of each client's points, that of the representative that covers it; -1 for
        noise. A point that none covers, after an early stop, and the points of a passive client
        belong to the cluster of the nearest representative of a cluster within eps. Only if the
        parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    The next representative is always the point with the largest DynRep: the sum, over the points
    within eps of it that are not covered yet, of what their distance falls short of eps. Of equals
    the lexicographically first is taken, so that the result depends neither on the order of rows
    nor on that of clients. A point that is covered may still become a representative of others; it
    stands at the place of one, and is counted by another.

    A client's cost is twice that of looking up every point's neighbourhood, for DynRep is updated
    when a point becomes covered and never computed anew. Neighbourhoods at the server are
    asymmetric: two core representatives are in one cluster when either reaches the other.

    Sources: P, §3.2; E. Januzaj, H.-P. Kriegel and M. Pfeifle, "Scalable Density-Based Distributed
    Clustering", PKDD 2004.

    Examples
    --------
    The first client's best representative is 0.5: it lies in the midst of the others.

    >>> from fedlib import SDBDC
    >>> first, second = [[0.0], [0.5], [1.0]], [[1.5], [9.0]]
    >>> model = SDBDC(eps=1.0, min_samples=4).fit([first, second])
    >>> model.representatives_.ravel(), model.weights_, model.radii_
    (array([0.5, 1.5, 9. ]), array([3, 1, 1]), array([0.5, 0. , 0. ]))
    >>> model.labels_
    [array([0, 0, 0]), array([ 0, -1])]
    """

    name = "sdbdc"
    client_class = SDBDCClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "eps": [Interval(Real, 0, np.inf, closed="neither")],
        "min_samples": [Interval(Integral, 1, None, closed="left")],
        "n_representatives": [None, Interval(Integral, 1, 2**40, closed="both")],
        "coverage": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(
        self,
        eps: float,
        min_samples: int,
        *,
        n_representatives: int | None = None,
        coverage: float = 1.0,
    ):
        self.eps = eps
        self.min_samples = min_samples
        self.n_representatives = n_representatives
        self.coverage = coverage

    def _flow(self) -> Flow[RepresentativeModel]:
        return sdbdc(**self.get_params())
