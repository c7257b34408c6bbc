"""The server's flow of principal components, and the model that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from numbers import Integral, Real
from typing import Annotated, cast

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation, agree_on_features
from fedlib.core.array_fields import Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest, handles, partitions
from fedlib.core.messages import MAX_WORK, Array, Message, MessageError, cost_error
from fedlib.core.parameters import Interval, Kind
from fedlib.core.points import MAX_BOUND, MAX_COORDINATE, rounded_mean
from fedlib.core.protocol import Flow, Replies
from fedlib.core.threads import one_thread
from fedlib.protection.privacy import BoundsArray, Sensitivity, from_unit, to_unit
from fedlib.protection.privacy.noise import Estimates, Noise, estimate, hides, ratio
from fedlib.protection.secure.points import (
    MAX_POINTS,
    MAX_SUM,
    DescribedPoints,
    DescribeFeatures,
    agree_on_bounded_features,
)
from fedlib.protection.sums import FIRST_ROWS, RowTotals, SumRows

ROUNDING = 1e-6  # relative, of the sums of an honest client
UNDERFLOW = 1e-150  # below it, the square of a difference is 0


def n_pairs(n_features: int) -> int:
    """Return the count of pairs of features, each with itself, too."""
    return n_features * (n_features + 1) // 2


class Scatter(Message):
    """The count of a client's points, and the sums of differences from a centre and products."""

    discloses = (
        "the count of a client's points, and the sums of the features and of their products; of a"
        " single point, the point itself"
    )
    n_points: Annotated[int, msgspec.Meta(ge=0, le=MAX_POINTS)]
    sums: Annotated[np.ndarray, Array("float64", ("features",), -MAX_SUM, MAX_SUM)]
    products: Annotated[np.ndarray, Array("float64", ("pairs",), -MAX_SUM, MAX_SUM)]


class SumScatter(Message):
    """Sum your points' differences from a centre, and the products of each two features."""

    discloses = "the mean of all clients' points"
    reply = Scatter
    centre: Annotated[np.ndarray, Array("float64", ("features",), -4 * MAX_BOUND, 4 * MAX_BOUND)]

    def work(self) -> float:
        return float(len(self.centre))

    def reply_lengths(self) -> dict[str, int]:
        return {"features": len(self.centre), "pairs": n_pairs(len(self.centre))}

    def accept(self, reply: Message) -> Message:
        received = cast(Scatter, reply)
        lengths = {"features": len(received.sums), "pairs": len(received.products)}
        if lengths != self.reply_lengths():
            raise MessageError(f"Scatter must have {self.reply_lengths()}, got {lengths}")
        products, n = square(received.products, len(self.centre)), received.n_points
        squares, reach = np.diagonal(products), MAX_COORDINATE + np.abs(self.centre)
        if (squares < 0).any() or (squares > (1 + ROUNDING) * n * np.square(reach)).any():
            raise MessageError("Scatter.products must have squares of points within ±1e100")
        norms = np.sqrt(squares) + sqrt(n) * UNDERFLOW
        largest = (1 + ROUNDING) * norms
        if (np.abs(received.sums) > sqrt(n) * largest).any():
            raise MessageError("Scatter.sums must fit the squares in products")
        if (np.abs(products) > largest[:, np.newaxis] * norms).any():
            raise MessageError("Scatter.products must be at most those of the features' squares")
        return reply


class SumClippedScatter(SumRows):
    """Clip your points to bounds, scale them to [-1, 1], and sum them and the products."""

    discloses = "the bounds of the points"
    bounds: BoundsArray

    @property
    def n_values(self) -> int:
        n_features = self.bounds.shape[1]
        return 1 + n_features + n_pairs(n_features)

    def work(self) -> float:
        return float(self.bounds.shape[1])

    def sensitivity(self) -> Sensitivity:
        """Return the largest change: a row adds 1, and values and products within ±1."""
        return Sensitivity(float(self.n_values), sqrt(self.n_values), self.n_values)

    def terms(self, X: Floats) -> Floats:
        rows = to_unit(X, self.bounds)
        first, second = np.triu_indices(rows.shape[1])
        return np.hstack([np.ones((len(rows), 1)), rows, rows[:, first] * rows[:, second]])


def square(pairs: Floats, n_features: int) -> Floats:
    """Return the symmetric matrix from its upper triangle, row by row.

    Examples
    --------
    >>> square(np.array([1.0, 2.0, 3.0]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    matrix = np.empty((n_features, n_features))
    upper = np.triu_indices(n_features)
    matrix[upper] = pairs
    matrix.T[upper] = pairs
    return matrix


@one_thread()
def project(X: Floats, mean: Floats, components: Floats) -> Floats:
    """Return the coordinates (n_points, n_components) of points (n_points, n_features)."""
    with np.errstate(over="ignore", invalid="ignore"):  # of points that no protocol accepts
        coordinates: Floats = (X - mean) @ components.T
    return coordinates


def component_names(n_components: int) -> tuple[str, ...]:
    """Return the names of components, ``pca0`` and so on."""
    return tuple(f"pca{i}" for i in range(n_components))


def scatter(X: Floats, request: SumScatter) -> Scatter:
    """Return the sums of a client's points (n_points, n_features).

    Raises
    ------
    BadRequest
        A ValueError: when the points have another count of features.
    """
    if X.shape[1] != len(request.centre):
        raise BadRequest(
            f"centre must have the {X.shape[1]} features of the points, got {len(request.centre)}"
        )
    mean = rounded_mean(X)
    shifted, shift = X - mean, mean - request.centre  # see `fedlib.core.points`
    remainders = shifted.sum(axis=0)
    sums = remainders + len(X) * shift
    products = shifted.T @ shifted + np.outer(remainders, shift) + np.outer(shift, sums)
    return Scatter(len(X), sums, products[np.triu_indices(X.shape[1])])


class PCAClient(DescribedPoints):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers within ±1e100.
    """

    limited = True

    @handles(SumScatter)
    def sum_scatter(self, request: SumScatter) -> Scatter:
        return scatter(self.X, request)

    @handles(SumClippedScatter)
    def sum_clipped_scatter(self, request: SumClippedScatter) -> RowTotals:
        return request.total(self.X, self)

    # Not for `SumClippedScatter`: its bounds tell points of one group apart.
    @partitions(SumScatter, terms=())
    def all_points(self, request: SumScatter) -> Iterable[Ints]:
        yield np.zeros(len(self.X), np.int64)


Uncertainty = Callable[[Floats], Estimates]


Components = Annotated[
    float | None,
    Interval(Integral, 1, None, closed="left"),
    Interval(Real, 0, 1, closed="neither"),
    None,
    Kind("int, float or None"),
]


@dataclass(frozen=True)
class PCAModel(Checked):
    """Principal components.

    Attributes
    ----------
    mean : array (n_features,)
    components : array (n_components, n_features)
        Orthogonal rows of length 1, by falling variance.
    variances : array (n_components,)
        The variance of the rows along each component, divided by ``n_rows - 1``; NaN if noise hides
        it.
    total_variance : float
        The sum of the variances of all features; NaN if noise hides it.
    n_rows : int
        The count of rows of all clients; with noise, an estimate.
    whiten : bool
        Whether transformed rows have variance 1.
    intervals : array (2, n_components, 2)
        With noise, those of the variances and of their fractions of the total variance. Without
        noise, there are none: (2, 0, 2).
    """

    mean: Annotated[Floats, Array("float64", ("features",))]
    components: Annotated[Floats, Array("float64", ("components", "features"))]
    variances: Floats
    total_variance: float
    n_rows: int
    whiten: bool = False
    intervals: Floats = field(default_factory=lambda: np.empty((2, 0, 2)))

    @property
    def n_features(self) -> int:
        """The count of features of the points."""
        return len(self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the components, ``pca0`` and so on."""
        return component_names(len(self.components))

    @property
    def scale(self) -> Floats:
        """What the coordinates along the components are divided by (n_components,)."""
        if not self.whiten:
            return np.ones(len(self.components))
        return np.maximum(np.sqrt(self.variances), np.finfo(np.float64).eps)

    def transform(self, X: Floats) -> Floats:
        """Return the coordinates (n_points, n_components) of points along the components.

        Raises
        ------
        ValueError
            When the points have a different count of features.
        """
        if X.shape[1] != self.n_features:
            raise ValueError(f"X must have {self.n_features} features, got {X.shape[1]}")
        return project(X, self.mean, self.components) / self.scale

    def limits(self, low: Floats, high: Floats) -> Floats:
        """Return the limits (2, n_components) of the coordinates of points between limits."""
        ends = [self.components * (end - self.mean) for end in (low, high)]
        between: Floats = np.array([np.minimum(*ends).sum(axis=1), np.maximum(*ends).sum(axis=1)])
        return between / self.scale


def find_scatter(
    aggregation: Aggregation, n_features: int, bounds: Floats | None = None
) -> Flow[tuple[int, Floats, Floats, Uncertainty | None]]:
    """Return the count of rows, their mean and their covariance, from sums over the clients.

    With noise, the fourth result returns where the true variances lie, from those of the noisy
    covariance; it is None without noise.

    Parameters
    ----------
    aggregation : Aggregation
    n_features : int
    bounds : array (2, n_features), optional
        The limits of the rows, which masked and noisy sums need.

    Raises
    ------
    ValueError
        When there are too many features, or, without noise, fewer than two rows.
    """
    if bounds is not None:
        return (yield from _clipped_scatter(aggregation, bounds))
    centre = np.zeros(n_features)
    reported: dict[str, int] = {}

    def other_rows(replies: Replies) -> dict[str, str]:
        changed = {
            name: f"Scatter.n_points must be {n} as before, got {reply.n_points}"
            for name, reply in replies.items()
            if (n := reported.get(name, reply.n_points)) != reply.n_points
        }
        reported.update({name: reply.n_points for name, reply in replies.items()})
        return changed

    for _ in range(2):  # about 0, and then about the mean, so that no digits cancel out
        request = SumScatter(centre)
        _check_size(request)
        total, _ = yield from aggregation.sum(request, other_rows)
        _check_rows(total.n_points)
        shift = total.sums / total.n_points
        centre = centre + shift
    about_mean = square(total.products, n_features) - np.outer(total.sums, shift)
    return total.n_points, centre, about_mean / (total.n_points - 1), None


def _clipped_scatter(
    aggregation: Aggregation, bounds: Floats
) -> Flow[tuple[int, Floats, Floats, Uncertainty | None]]:
    """Return the same from sums of rows that are clipped to bounds and scaled."""
    n_features, n_rows = bounds.shape[1], float(FIRST_ROWS)
    for _ in range(2 if aggregation.privacy is None else 1):  # the first one finds the digits
        privacy = aggregation.privacy
        request = SumClippedScatter(bounds, privacy=privacy, n_rows=round(n_rows))
        _check_size(request)
        total, clients = yield from aggregation.sum(request)
        count, sums, pairs = np.split(total.values, [1, 1 + n_features])
        n_rows = float(count[0])
        if privacy is None:
            _check_rows(n_rows)
    n_rows = max(n_rows, 2.0)
    mean, half = sums / n_rows, (bounds[1] - bounds[0]) / 2
    if aggregation.privacy is None:
        mean = np.clip(mean, -1, 1)
    about_mean = square(pairs, n_features) - n_rows * np.outer(mean, mean)
    covariance = about_mean / (n_rows - 1) * half[:, np.newaxis] * half
    noise = aggregation.noise(request, len(clients))
    uncertainty = None if noise is None else partial(_uncertain, total.values, noise, half)
    return round(n_rows), from_unit(mean, bounds), covariance, uncertainty


def _uncertain(sums: Floats, noise: Noise, half: Floats, variances: Floats) -> Estimates:
    """Return where the true variances (n,) along the components lie, in 2 n + 1 results.

    They are those of the variances, of their fractions of the total variance, and of the total.
    By Weyl's inequality, no eigenvalue of a covariance moves by more than the spectral norm of what
    is added, which is at most the Frobenius norm. See `fedlib.protection.privacy.noise` for the
    distribution of what the noise adds.
    """
    n, first, second = len(variances), *np.triu_indices(len(half))
    widths, diagonal = half[first] * half[second], first == second

    def covariances(of: Floats) -> Floats:
        """Return the upper triangles (n_draws, n_pairs)."""
        n_rows, (means, pairs) = of[:, :1], np.split(of[:, 1:], [len(half)], axis=1)
        n_rows = np.where(n_rows > 1, n_rows, np.nan)
        means = means / n_rows
        return (pairs - n_rows * means[:, first] * means[:, second]) / (n_rows - 1) * widths

    received = covariances(sums[np.newaxis])

    def results(of: Floats) -> Floats:
        drawn = covariances(of)
        squares = np.square(drawn - received) * np.where(diagonal, 1, 2)
        norms = np.sqrt(squares.sum(axis=1, keepdims=True))
        total = drawn[:, diagonal].sum(axis=1, keepdims=True)
        ends = np.hstack([variances - norms, variances + norms])
        return np.hstack([ends, ratio(ends, total), total])

    largest = 2 * float(np.square(half).sum())  # of two rows at the ends of the bounds
    possible = np.repeat([[0.0, largest], [0.0, 1.0], [0.0, largest]], [2 * n, 2 * n, 1], axis=0)
    found = estimate(results, sums, noise, possible)
    low, high = [0, 2], [1, 3]
    blocks = found.intervals[:-1].reshape(4, n, 2)
    intervals = np.stack([blocks[low, :, 0], blocks[high, :, 1]], axis=2).reshape(2 * n, 2)
    of_blocks = found.hidden[:-1].reshape(4, n)
    hidden = (of_blocks[low] | of_blocks[high]).ravel() | (intervals[:, 0] <= 0)
    values = found.values[:-1].reshape(4, n)[low].ravel()
    return Estimates(
        np.append(np.where(hidden, np.nan, values), found.values[-1]),
        np.vstack([intervals, found.intervals[-1:]]),
        np.append(hidden, found.hidden[-1]),
    )


def _check_size(request: Message) -> None:
    if problem := cost_error(request, MAX_WORK):
        raise ValueError(f"the features are too many for principal components: {problem}")


def _check_rows(n_rows: float) -> None:
    if n_rows < 2:
        raise ValueError(
            f"principal components need at least 2 rows of all clients, got {n_rows:.0f}"
        )


@one_thread()
def principal_components(
    n_rows: int,
    mean: Floats,
    covariance: Floats,
    uncertainty: Uncertainty | None,
    n_components: float | None,
    whiten: bool = False,
) -> PCAModel:
    """Return the principal components of rows with this mean and covariance.

    The largest entry of each component is positive, as in scikit-learn.

    Parameters
    ----------
    n_rows : int
    mean : array (n_features,)
    covariance : array (n_features, n_features)
    uncertainty : callable or None
        What `find_scatter` returns.
    n_components : int, float or None
        As in `FederatedPCA`.
    whiten : bool, default=False

    Raises
    ------
    ValueError
        When there are fewer features or rows than components.

    Warns
    -----
    UserWarning
        When the noise hides variances, which are NaN.

    Examples
    --------
    >>> covariance = np.array([[4.0, 0.0], [0.0, 9.0]])
    >>> principal_components(5, np.zeros(2), covariance, None, 1).components
    array([[0., 1.]])
    """
    most = min(n_rows, len(mean)) if uncertainty is None else len(mean)
    if n_components is not None and n_components > most:
        raise ValueError(
            "n_components must be at most the number of features and of rows of all clients,"
            f" {most}, got {n_components}"
        )
    values, vectors = np.linalg.eigh(covariance)
    variances, components = np.maximum(values[::-1], 0.0), vectors.T[::-1]
    total = float(variances.sum())  # with noise, only for the choice of components
    n_kept = most if n_components is None else int(n_components)
    if n_components is not None and n_components < 1:
        known = np.cumsum(variances) / total if total else np.ones(len(variances))
        n_kept = min(int(np.searchsorted(known, n_components, side="right")) + 1, most)
    kept = components[:n_kept]
    largest = np.take_along_axis(kept, np.abs(kept).argmax(axis=1)[:, np.newaxis], axis=1)
    kept = kept * np.where(largest < 0, -1.0, 1.0)
    if uncertainty is None:
        return PCAModel(mean, kept, variances[:n_kept].copy(), total, n_rows, whiten)
    found = uncertainty(values[::-1][:n_kept])
    if (hidden := found.hidden[:n_kept]).any():
        names = [component_names(n_kept)[i] for i in np.flatnonzero(hidden)]
        warnings.warn(hides([f"the variance of {name!r}" for name in names]), stacklevel=2)
    intervals = found.intervals[:-1].reshape(2, n_kept, 2)
    known, total = found.values[:n_kept], float(found.values[-1])
    return PCAModel(mean, kept, known, total, n_rows, whiten, intervals)


def pca(
    n_components: float | None,
    whiten: bool,
    aggregation: Aggregation,
    bounds: Floats | None = None,
) -> Flow[PCAModel]:
    """Return the server flow; for the parameters see `FederatedPCA`."""
    if bounds is None:
        replies = yield from aggregation.describe(DescribeFeatures())
        n_features = agree_on_features(replies)
    else:
        n_features = bounds.shape[1]
        yield from agree_on_bounded_features(aggregation, n_features)
    check_n_components(n_components, n_features)
    found = yield from find_scatter(aggregation, n_features, bounds)
    return principal_components(*found, n_components, whiten)


def check_n_components(
    n_components: float | None, n_features: int, name: str = "n_components"
) -> None:
    """Raise ValueError when there are fewer features than components."""
    if n_components is not None and n_components > n_features:
        raise ValueError(
            f"{name} must be at most the number of features, {n_features}, got {n_components}"
        )
