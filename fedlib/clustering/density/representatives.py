"""What DBDC, SDBDC and PPDBDC share.

In all three, a client sends representatives of its points, and the server clusters the
representatives of all clients. With the last request, `RelabelPoints`, each client learns clusters
and labels its points. The model is the representatives of all clients and their clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.clustering.density.engine.dbscan import dbscan, nearest_within
from fedlib.core.aggregation import agree_on_features
from fedlib.core.array_fields import MAX_COUNT, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import handles
from fedlib.core.estimator import Clusterer, Federated
from fedlib.core.messages import Array, Done, Labels, Message, MessageError
from fedlib.core.points import PointsClient
from fedlib.core.protocol import Replies

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Points = Annotated[np.ndarray, Array("float64", ("representatives", "features"))]
Radii = Annotated[np.ndarray, Array("float64", ("representatives",), ge=0)]
Weights = Annotated[np.ndarray, Array("int64", ("representatives",), ge=1, le=2**40)]


class RelabelPoints(Message):
    """Relabel your points.

    A point that you know to be covered by one of your representatives belongs to its cluster. Any
    other point belongs to the cluster of the nearest of ``representatives`` that reaches it.

    Attributes
    ----------
    own : array (n_own,) of int64
        The clusters (-1: noise) of the representatives that the client has sent, in its order. No
        entries if all points are placed by ``representatives``.
    representatives : array (n_representatives, n_features) of float64
    radii : array (n_representatives,) of float64
        How far each of ``representatives`` reaches.
    labels : array (n_representatives,) of int64
        The cluster of each of ``representatives``.
    """

    discloses = "the clusters of the client's representatives, or the places and clusters of all"
    asks_for_data = False
    own: Annotated[np.ndarray, Array("int64", ("own",), ge=-1, le=MAX_COUNT)]
    representatives: Points
    radii: Radii
    labels: Annotated[
        np.ndarray, Array("int64", ("representatives",), ge=0, below="representatives")
    ]


class Coverage(Message):
    """The state of a client that has sent representatives.

    Attributes
    ----------
    owner : array (n_points,) of int64
        The index of the representative that covers each row, or -1.
    """

    discloses = "nothing: it stays with the client"
    owner: Annotated[np.ndarray, Array("int64", ("rows",), ge=-1)]


@dataclass(frozen=True)
class RepresentativeModel(Checked):
    """The representatives of all clients, one client after the other, and their clusters.

    Attributes
    ----------
    representatives : array (n_representatives, n_features) of float64
    labels : array (n_representatives,) of int64
        The cluster of each, -1 for noise.
    reach : array (n_representatives,) of float64
        The distance up to which each determines the cluster of a new point.
    radii : array (n_representatives,) of float64, or None
        The radii that the clients have sent.
    weights : array (n_representatives,) of int64, or None
        The numbers of points that the clients have sent.

    Examples
    --------
    >>> places, reach = np.array([[5.0], [0.0]]), np.array([1.0, 2.0])
    >>> RepresentativeModel(places, np.array([0, 1]), reach).place(np.array([[1.9], [2.1], [4.5]]))
    array([ 1, -1,  0])
    """

    representatives: Annotated[Floats, Array("float64", ("representatives", "features"))]
    labels: Annotated[Ints, Array("int64", ("representatives",), ge=-1, below="representatives")]
    reach: Annotated[Floats, Array("float64", ("representatives",), ge=0)]
    radii: Annotated[Floats | None, Array("float64", ("representatives",), ge=0)] = None
    weights: Annotated[Ints | None, Array("int64", ("representatives",), ge=0, le=MAX_COUNT)] = None

    @property
    def n_features(self) -> int:
        """The count of features."""
        return int(self.representatives.shape[1])

    def clustered(self) -> tuple[Floats, Floats, Ints]:
        """Return representatives, reach and labels without noise, in lexicographic order."""
        order = lexicographic_order(self.representatives, self.reach)
        order = order[self.labels[order] >= 0]
        return self.representatives[order], self.reach[order], self.labels[order]

    def place(self, X: Floats) -> Ints:
        """Return the cluster of new points (n_points, n_features), -1 for noise.

        It is the cluster of the nearest clustered representative that reaches the point. Ties go to
        the lexicographically first.
        """
        return _place(X, *self.clustered())


class RepresentativeClient(PointsClient):
    """A client that holds points, as in `PointsClient`, and labels them by representatives."""

    def keep_coverage(self, order: NDArray[np.intp], owner: Ints) -> None:
        """Make `Coverage` the state; ``owner`` refers to the rows in this ``order``."""
        by_row = np.empty(len(order), np.int64)
        by_row[order] = owner
        self.state = Coverage(by_row)

    @handles(RelabelPoints)
    def relabel_points(self, request: RelabelPoints) -> Done:
        labels = _place(self.X, request.representatives, request.radii, request.labels)
        if len(request.own):
            owner = self.recall(Coverage).owner
            n_representatives = int(owner.max(initial=-1)) + 1
            if n_representatives > len(request.own):
                raise ValueError(
                    "own must have a label for each representative that covers points:"
                    f" {n_representatives}; got {len(request.own)}"
                )
            labels = np.where(owner >= 0, request.own[owner], labels)
        self.state = Labels(labels)
        return Done()


class RepresentativeClustering(Clusterer, Federated):
    """Base class of `DBDC`, `SDBDC` and `PPDBDC`."""

    def _set_model(self, model: RepresentativeModel) -> None:
        super()._set_model(model)
        self.representatives_ = model.representatives
        self.representative_labels_ = model.labels
        if model.radii is not None:
            self.radii_ = model.radii
        if model.weights is not None:
            self.weights_ = model.weights
        self.n_features_in_ = model.n_features

    def predict(self, X: ArrayLike) -> Ints:
        """Return the cluster of new points, -1 for noise.

        It is the cluster of the nearest clustered representative that reaches the point.

        Parameters
        ----------
        X : array-like (n_points, n_features)
            Finite numbers.

        Raises
        ------
        ValueError
            When the points are not finite, or their count of features differs from that of `fit`.
        sklearn.exceptions.NotFittedError
            When `fit` has not been called.

        Notes
        -----
        The cost is a k-d tree of the representatives and one search per point.
        """
        points = self._new_points(X)
        return self.model_.place(points)


def gather(replies: Mapping[str, Any], *fields: str) -> list[NDArray[Any]]:
    """Return these fields of all replies, each as one array, one client after the other.

    Raises
    ------
    ValueError
        When the clients disagree on the count of features or on their names.
    """
    agree_on_features(replies)
    return [np.concatenate([getattr(r, field) for r in replies.values()]) for field in fields]


def lexicographic_order(X: NDArray[Any], *more: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order of rows by their first feature, then by the next, and then by ``more``.

    Examples
    --------
    >>> lexicographic_order(np.array([[2, 0], [1, 5], [1, 5], [1, 3]]), np.array([0, 1, 0, 1]))
    array([3, 2, 1, 0])
    """
    return np.lexsort([*more[::-1], *X.T[::-1]])


def cluster_representatives(
    representatives: Floats,
    weights: Ints,
    radii: Floats | None,
    eps: float,
    min_samples: int,
) -> RepresentativeModel:
    """Run DBSCAN on weighted representatives. Each of the model's representatives reaches ``eps``.

    Clusters are numbered by the lexicographically first core representative, so that the result
    does not depend on the order of the representatives.

    Parameters
    ----------
    representatives : array (n_representatives, n_features) of float64
    weights : array (n_representatives,) of int64
        The count of points that each represents.
    radii : array (n_representatives,) of float64, or None
        Added to ``eps`` for the neighbourhood of each.
    eps : float
    min_samples : int

    Examples
    --------
    >>> places, weights = np.array([[1.0], [0.0], [5.0]]), np.array([2, 2, 3])
    >>> cluster_representatives(places, weights, None, eps=1.0, min_samples=4).labels
    array([ 0,  0, -1])
    """
    more = [weights] if radii is None else [weights, radii]
    order = lexicographic_order(representatives, *more)
    sorted_radii = None if radii is None else radii[order]
    labels = np.empty(len(order), np.int64)
    labels[order] = dbscan(representatives[order], eps, min_samples, weights[order], sorted_radii)
    reach = np.full(len(order), float(eps))
    return RepresentativeModel(representatives, labels, reach, radii, weights)


def relabel_requests(
    replies: Replies, model: RepresentativeModel, complete: bool
) -> Mapping[str, Message]:
    """Return the request that ends the protocol for each client.

    If a client's representatives cover all its points (``complete``), it needs their clusters only.
    If not, and for a passive client, the request contains all clustered representatives.
    """
    everything = model.clustered()
    nothing = [field[:0] for field in everything]
    requests: dict[str, Message] = {}
    first = 0
    for name, reply in replies.items():
        stop = first + len(reply.representatives)
        labels = model.labels[first:stop]
        requests[name] = RelabelPoints(labels, *(nothing if complete else everything))
        first = stop
    no_labels = np.empty(0, np.int64)
    return requests | {name: RelabelPoints(no_labels, *everything) for name in replies.declined}


def check_count(representatives: Floats, n_representatives: int | None) -> None:
    """Raise MessageError when there are more than ``n_representatives`` (None: no limit)."""
    if n_representatives is not None and len(representatives) > n_representatives:
        raise MessageError(
            f"there must be at most {n_representatives} representatives, got {len(representatives)}"
        )


def _place(
    X: Floats,
    representatives: Floats,
    reach: Floats,
    labels: Ints,
) -> Ints:
    """Return the cluster of the nearest representative that reaches each point, or -1."""
    return np.append(labels, -1)[nearest_within(X, representatives, reach)]
