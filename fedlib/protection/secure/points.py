"""Agreement on the features, and the digits of the sums, for secure protocols on points.

Fixed point needs a bound on the values. It follows from the bounds of the features, to which each
client clips its points, and from the count of all points.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation, agree_on_features
from fedlib.core.array_types import Floats
from fedlib.core.client import BadRequest, handles
from fedlib.core.messages import Array, FeatureNames, Message
from fedlib.core.points import MAX_BOUND, MAX_WEIGHT, PointsClient
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.privacy.noise import BoundsArray, clipped, from_unit
from fedlib.protection.secure.fixed_point import Reply, add_rows, digits_of_limits, summed

logger = logging.getLogger(__name__)

MAX_POINTS = 2**50
NumberOfPoints = Annotated[int, msgspec.Meta(ge=1, le=MAX_POINTS)]  # of all clients
MAX_SUM = 1e300
MaxWeight = Annotated[float, msgspec.Meta(gt=0, le=MAX_WEIGHT)]  # to which weights are clipped


class Features(Message):
    """The count of features and their names."""

    discloses = "the number and the names of the features"
    n_features: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    features: FeatureNames = ()


class DescribeFeatures(Message):
    """Report the number and the names of your features."""

    discloses = "nothing"
    reply = Features


class PointCount(Message):
    """The count of a client's points."""

    discloses = "the count of points"
    n_points: Annotated[int, msgspec.Meta(ge=0, le=MAX_POINTS)]


class CountPoints(Message):
    """Count your points."""

    discloses = "nothing"
    reply = PointCount

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return {}


class PointSums(Message):
    """The sums of the points' differences from a centre, and of their squares."""

    discloses = "the sums of points and of their squares"
    sums: Annotated[np.ndarray, Array("float64", ("features",), -MAX_SUM, MAX_SUM)]
    squares: Annotated[np.ndarray, Array("float64", ("features",), ge=0, le=MAX_SUM)]


class WeightedPointSums(PointSums):
    """Weighted sums of the points' differences from a centre, and of their squares."""

    discloses = "the weighted sums of points and of their squares, and the sum of the weights"
    weight: Annotated[float, msgspec.Meta(ge=0, le=MAX_SUM)]


class SumPoints(Message):
    """Clip your points to bounds, and sum their differences from a centre and the squares."""

    discloses = "the bounds, and the number and the mean of all points"
    effortless = ("n_points",)
    reply: ClassVar[type[Message]] = PointSums
    centre: Annotated[np.ndarray, Array("float64", ("features",), -4 * MAX_BOUND, 4 * MAX_BOUND)]
    bounds: BoundsArray
    n_points: NumberOfPoints

    def reply_lengths(self) -> dict[str, int]:
        return {"features": len(self.centre)}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return digits_of_limits(self._limits(self.n_points), n_clients)

    def _limits(self, most: float) -> dict[str, Any]:
        """Return the largest sums of points that count for at most ``most`` points."""
        reach = farthest(self.centre, self.bounds)
        return {"sums": most * reach, "squares": most * np.square(reach)}


class SumWeightedPoints(SumPoints):
    """Clip points and weights; add up weighted differences from a centre, and their squares."""

    discloses = "the bounds, the largest weight, and the number and the mean of all points"
    effortless = ("n_points",)
    reply = WeightedPointSums
    max_weight: MaxWeight

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        most = self.n_points * self.max_weight
        return digits_of_limits(self._limits(most) | {"weight": most}, n_clients)


def farthest(centres: Floats, bounds: Floats) -> Floats:
    """Return the largest distance of points within bounds from centres, per feature.

    Examples
    --------
    >>> farthest(np.array([[1.0], [6.0]]), np.array([[0.0], [4.0]]))
    array([[3.],
           [6.]])
    """
    return np.maximum(np.abs(bounds[0] - centres), np.abs(bounds[1] - centres))


class DescribedPoints(PointsClient):
    """A client with points, of a protocol that can work with secure sums over bounded features."""

    open_requests: tuple[type[Message], ...] = (DescribeFeatures,)

    @handles(DescribeFeatures)
    def describe_features(self, request: DescribeFeatures) -> Features:
        return Features(self.n_features, self.features)


def clip_weights(weights: Floats, max_weight: float) -> Floats:
    """Return the weights of rows, clipped to a limit; log at the site how many are above it."""
    if n_above := int((weights > max_weight).sum()):
        logger.warning(
            "%d of %d weights are above max_weight=%g, as which they count",
            n_above, len(weights), max_weight,
        )  # fmt: skip
    return np.minimum(weights, max_weight)


class SummablePoints(DescribedPoints):
    """A client with points, of a protocol that can work with secure sums of coordinates.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers within ±1e100.
    """

    limited = True
    _clipped: tuple[float, Floats] | None = None  # the last limit, and the weights

    def clipped_weight(self, max_weight: float) -> Floats:
        """Return the weights of the points, clipped to a limit; without weights they are 1."""
        if self._clipped is None or self._clipped[0] != max_weight:  # once, not in each round
            weights = np.ones(len(self.X)) if self.weight is None else self.weight
            self._clipped = max_weight, clip_weights(weights, max_weight)
        return self._clipped[1]

    def check_unweighted(self) -> None:
        """Raise BadRequest when the points have weights, and the server asks for none."""
        if self.weight is not None:
            raise BadRequest(
                "the points have weights, of which one row's change must be known: set max_weight,"
                " or declare the column and its largest value in a schema of all sites"
            )

    @handles(CountPoints)
    def count_points(self, request: CountPoints) -> PointCount:
        return PointCount(len(self.X))

    def _check_centre(self, request: SumPoints) -> None:
        if len(request.centre) != self.n_features:
            raise BadRequest(
                f"centre must have the {self.n_features} features of the points, got"
                f" {len(request.centre)}"
            )

    @handles(SumPoints)
    def sum_points(self, request: SumPoints) -> PointSums:
        self._check_centre(request)
        self.check_unweighted()
        return self._point_sums(PointSums, request, np.ones(len(self.X)))

    @handles(SumWeightedPoints)
    def sum_weighted_points(self, request: SumWeightedPoints) -> WeightedPointSums:
        self._check_centre(request)
        weights = self.clipped_weight(request.max_weight)
        total = add_rows(weights[:, np.newaxis], self.row_digits(request), "weight")[0, 0]
        return self._point_sums(WeightedPointSums, request, weights, weight=total)

    def _point_sums(
        self, reply: type[Reply], request: SumPoints, weights: Floats, **more: Any
    ) -> Reply:
        shifted, digits = clipped(self.X, request.bounds) - request.centre, self.row_digits(request)
        terms = {"sums": shifted, "squares": np.square(shifted)}
        sums = {
            name: add_rows(weights[:, np.newaxis] * of_rows, digits, name)[0]
            for name, of_rows in terms.items()
        }
        return summed(reply, digits, **sums, **more)


def agree_on_bounded_features(aggregation: Aggregation, n_bounded: int) -> Flow[Replies]:
    """Return the clients' descriptions of their features, whose number must be that of the bounds.

    Raises
    ------
    ValueError
        When the clients disagree on the features, or the number is another one.
    """
    replies = yield from aggregation.describe(DescribeFeatures())
    if (n_features := agree_on_features(replies)) != n_bounded:
        raise ValueError(
            f"bounds must have the {n_features} features of the clients' points, got {n_bounded}"
        )
    return replies


def count_bounded_points(aggregation: Aggregation, bounds: Floats) -> Flow[int]:
    """Agree on the features, whose bounds are given, and count all points by a masked sum.

    Raises
    ------
    ValueError
        When the clients disagree on the features, have others than the bounds, or have no points.
    """
    yield from agree_on_bounded_features(aggregation, bounds.shape[1])
    total, _ = yield from aggregation.sum(CountPoints())
    if not total.n_points:
        raise ValueError("the clients have no points")
    n_points: int = total.n_points
    return n_points


def find_variance(
    aggregation: Aggregation, bounds: Floats, n_points: int, max_weight: float | None = None
) -> Flow[float]:
    """Return the variance of all points, averaged over the features, by two masked sums.

    With ``max_weight``, to which the clients clip the weights, it is weighted.

    Raises
    ------
    ValueError
        When all weights are 0.
    """
    centre = from_unit(np.zeros(bounds.shape[1]), bounds)
    for _ in range(2):  # about the middle and then about the mean, so that no digits cancel out
        if max_weight is None:
            total, _ = yield from aggregation.sum(SumPoints(centre, bounds, n_points))
            weight = float(n_points)
        else:
            request = SumWeightedPoints(centre, bounds, n_points, max_weight)
            total, _ = yield from aggregation.sum(request)
            weight = total.weight
            check_total_weight(weight)
        centre = centre + total.sums / weight
    return float(total.squares.mean() / weight)


def check_total_weight(weight: float) -> None:
    """Raise ValueError when no point has a weight."""
    if weight <= 0:
        raise ValueError("at least one point must have a weight above 0, but all have 0")
