"""The messages of federated k-means, and the checks that reject invalid replies."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, cast

import msgspec
import numpy as np

from fedlib.clustering.kmeans.local import GROUP_SIZE
from fedlib.core.messages import STEP, Array, FeatureNames, Message, MessageError
from fedlib.core.points import MAX_COORDINATE, MAX_WEIGHT
from fedlib.protection.privacy import BoundsArray
from fedlib.protection.secure.fixed_point import digits_of_limits
from fedlib.protection.secure.points import MaxWeight, NumberOfPoints, farthest

# Points lie within this bound, so that no sum of squares over any number of clients overflows.
# Means may exceed it by rounding. Centres in requests are means of means: twice the bound.
MAX_MEAN = 1.01 * MAX_COORDINATE
MAX_CENTRE = 2 * MAX_MEAN
MAX_SQUARES = 1e240
MAX_POINTS = 2**40
START = 100  # iterations: what a start of scikit-learn costs at least
ROUNDING = 1e-9  # of sums of weights that are added in another order

Positive = Annotated[int, msgspec.Meta(gt=0, le=2**40)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=MAX_WEIGHT)]
TotalWeight = Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)]
Squares = Annotated[float, msgspec.Meta(ge=0, le=MAX_SQUARES)]
Centres = Annotated[np.ndarray, Array("float64", ("clusters", "features"), -MAX_CENTRE, MAX_CENTRE)]


class LocalCentres(Message):
    """The centres of a client's clusters and the count of points in each."""

    discloses = "a client's centres and counts; the centre of a cluster of one point is the point"
    grouped_by = "counts"
    per_group = ("weights",)
    centres: Annotated[np.ndarray, Array("float64", ("clusters", "features"), -MAX_MEAN, MAX_MEAN)]
    counts: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=MAX_POINTS)]
    features: FeatureNames = ()
    weights: tuple[Weight, ...] = ()  # of the points of each cluster, if they have weights

    @property
    def n_features(self) -> int:
        """The count of columns of ``centres``."""
        return int(self.centres.shape[1])


class FindCentres(Message):
    """Cluster the last of your points, then update the centres with the first of them."""

    discloses = "nothing but the parameters"
    effortless = ("seed",)
    reply = LocalCentres
    n_clusters: Positive
    update_fraction: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    n_init: Positive
    max_iter: Positive
    tol: Annotated[float, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

    def work(self) -> float:
        iterations = self.n_init * float(self.max_iter + START)
        return iterations * (self.n_clusters + STEP)

    def accept(self, reply: Message) -> Message:
        n_centres = len(cast(LocalCentres, reply).counts)
        if n_centres > self.n_clusters:
            raise MessageError(
                f"LocalCentres must have at most {self.n_clusters} centres, got {n_centres}"
            )
        if (n_weights := len(cast(LocalCentres, reply).weights)) not in (0, n_centres):
            raise MessageError(
                f"LocalCentres must have {n_centres} weights or none, got {n_weights}"
            )
        return reply


class GroupMeans(Message):
    """A client's count of points, their mean and spread, and the means of groups of points.

    If the points have weights, the mean and the spread are weighted, and groups have weights. The
    means of groups are not weighted, so that a large weight does not disclose its point.
    """

    discloses = (
        f"a client's count of points, their mean and spread, and means of at least {GROUP_SIZE}"
        " neighbouring points; a mean of equal points is the point; the weight of all points and of"
        " each group"
    )
    n_points: Annotated[int, msgspec.Meta(ge=0, le=MAX_POINTS)]
    mean: Annotated[np.ndarray, Array("float64", ("features",), -MAX_MEAN, MAX_MEAN)]
    squares: Annotated[np.ndarray, Array("float64", ("features",), ge=0, le=MAX_SQUARES)]
    means: Annotated[np.ndarray, Array("float64", ("groups", "features"), -MAX_MEAN, MAX_MEAN)]
    counts: Annotated[np.ndarray, Array("int64", ("groups",), ge=GROUP_SIZE, le=MAX_POINTS)]
    features: FeatureNames = ()
    weight: TotalWeight | None = None  # of all points, if they have weights
    weights: tuple[Weight, ...] = ()  # of the groups, if points have weights; their sum is `weight`

    @property
    def n_features(self) -> int:
        """The count of columns of ``means``."""
        return int(self.means.shape[1])


class SummariseGroups(Message):
    """Report the number, mean and spread of your points, and the means of groups of them."""

    discloses = "nothing but the count of groups"
    effortless = ("n_groups",)  # there are at most as many groups as rows
    reply = GroupMeans
    n_groups: Annotated[int, msgspec.Meta(ge=0, le=2**40)]

    def accept(self, reply: Message) -> Message:
        groups = cast(GroupMeans, reply)
        if len(groups.counts) > self.n_groups:
            raise MessageError(
                f"GroupMeans must have at most {self.n_groups} groups, got {len(groups.counts)}"
            )
        if groups.counts.sum() > groups.n_points:
            raise MessageError(
                f"GroupMeans.counts must sum to at most n_points={groups.n_points},"
                f" got {groups.counts.sum()}"
            )
        n_weights = 0 if groups.weight is None else len(groups.counts)
        if len(groups.weights) != n_weights:
            raise MessageError(
                f"GroupMeans must have {n_weights} weights, got {len(groups.weights)}"
            )
        if sum(groups.weights) > (1 + ROUNDING) * (groups.weight or 0.0):
            raise MessageError("GroupMeans.weights must sum to at most weight")
        return reply


class ClusterSums(Message):
    """For each start: the sums and counts of a client's points by nearest centre, the inertia."""

    discloses = "a client's sum and count in each cluster; the sum of a single point is the point"
    sums: Annotated[
        np.ndarray, Array("float64", ("starts", "clusters", "features"), ge=-1e140, le=1e140)
    ]
    counts: Annotated[np.ndarray, Array("int64", ("starts", "clusters"), ge=0, le=MAX_POINTS)]
    inertias: Annotated[np.ndarray, Array("float64", ("starts",), ge=0, le=MAX_SQUARES)]


class WeightedClusterSums(Message):
    """For each start: weighted sums of a client's points by nearest centre; counts are weights."""

    discloses = (
        "a client's weighted sum and weight in each cluster; from those of a single point follow"
        " the point and its weight"
    )
    sums: Annotated[
        np.ndarray, Array("float64", ("starts", "clusters", "features"), ge=-1e140, le=1e140)
    ]
    counts: Annotated[
        np.ndarray, Array("float64", ("starts", "clusters"), ge=0, le=MAX_POINTS * MAX_WEIGHT)
    ]
    inertias: Annotated[np.ndarray, Array("float64", ("starts",), ge=0, le=MAX_SQUARES)]


class SumClusters(Message):
    """Sum your points by their nearest centre, for the centres of each start."""

    discloses = "the centres"
    reply: ClassVar[type[Message]] = ClusterSums
    tolerated = True
    centres: Annotated[
        np.ndarray,
        Array("float64", ("starts", "clusters", "features"), -MAX_CENTRE, MAX_CENTRE),
    ]

    def work(self) -> float:
        return float(self.n_init * self.n_clusters)

    @property
    def n_clusters(self) -> int:
        """The count of centres of a start."""
        return int(self.centres.shape[1])

    @property
    def n_init(self) -> int:
        """The count of starts."""
        return len(self.centres)

    def reply_lengths(self) -> dict[str, int]:
        return dict(zip(("starts", "clusters", "features"), self.centres.shape, strict=True))

    def accept(self, reply: Message) -> Message:
        received, name = cast(ClusterSums, reply), self.reply.__name__
        if received.sums.shape != self.centres.shape:
            raise MessageError(
                f"{name}.sums must have the shape {self.centres.shape}, got {received.sums.shape}"
            )
        totals = received.counts.sum(axis=1)
        tolerance = 0 if totals.dtype.kind == "i" else ROUNDING * totals.max(initial=0)
        if np.ptp(totals) > tolerance if len(totals) else False:
            raise MessageError(
                f"{name}.counts must have the same sum for every start, got"
                f" {np.unique(totals).tolist()}"
            )
        if (abs(received.sums) > MAX_MEAN * received.counts[..., np.newaxis]).any():
            raise MessageError(f"{name}.sums are too large for the counts of points")
        return reply


class SumWeightedClusters(SumClusters):
    """Sum your weighted points by their nearest centre, for the centres of each start."""

    reply = WeightedClusterSums


class SumClippedClusters(SumClusters):
    """Clip your points to bounds, then sum them by their nearest centre."""

    discloses = "the centres, the bounds, and the count of all points"
    effortless = ("n_points",)
    bounds: BoundsArray
    n_points: NumberOfPoints

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits(self._limits(self.n_points), n_clients)

    def _limits(self, most: float) -> dict[str, Any]:
        """Return the largest sums of points that count for at most ``most`` points."""
        squares = np.square(farthest(self.centres, self.bounds)).sum(axis=-1)
        return {
            "sums": most * np.abs(self.bounds).max(axis=0),
            "inertias": most * squares.max(axis=-1, initial=0),
        }


class SumClippedWeightedClusters(SumClippedClusters):
    """Clip your points and their weights, then sum the points by their nearest centre."""

    discloses = "the centres, the bounds, the largest weight, and the count of all points"
    effortless = ("n_points",)
    reply = WeightedClusterSums
    max_weight: MaxWeight

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        most = self.n_points * self.max_weight
        return digits_of_limits(self._limits(most) | {"counts": most}, n_clients)


class Inertia(Message):
    """The sum of the squared distances of a client's points to their nearest centres."""

    discloses = "a client's sum of squared distances"
    inertia: Squares


class MeasureInertia(Message):
    """Report the sum of the squared distances of your points to their nearest centres."""

    discloses = "the centres"
    reply = Inertia
    tolerated = True
    centres: Centres

    def work(self) -> float:
        return float(self.n_clusters)

    @property
    def n_clusters(self) -> int:
        """The count of centres."""
        return len(self.centres)


class AssignCentres(Message):
    """Assign each of your points to its nearest centre."""

    discloses = "the final centres"
    asks_for_data = False
    centres: Centres
