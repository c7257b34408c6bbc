"""The messages of principal components, and the sums and coordinates of points."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, cast

import msgspec
import numpy as np

from fedlib.core.array_types import Floats
from fedlib.core.client import Unanswerable
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.points import MAX_BOUND, MAX_COORDINATE, rounded_mean
from fedlib.core.threads import one_thread
from fedlib.protection.privacy import BoundsArray, Sensitivity, to_unit
from fedlib.protection.secure.points import MAX_POINTS, MAX_SUM
from fedlib.protection.sums import SumRows

ROUNDING = 1e-6  # relative, of the sums of an honest client
UNDERFLOW = 1e-150  # below it, the square of a difference is 0


def n_pairs(n_features: int) -> int:
    """Return the count of pairs of features, each with itself, too."""
    return n_features * (n_features + 1) // 2


class Scatter(Message):
    """The number of a client's points, and the sums of differences from a centre and products."""

    discloses = (
        "the number of a client's points, and the sums of the features and of their products; of a"
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
    Unanswerable
        A ValueError: when the points have another number of features.
    """
    if X.shape[1] != len(request.centre):
        raise Unanswerable(
            f"centre must have the {X.shape[1]} features of the points, got {len(request.centre)}"
        )
    mean = rounded_mean(X)
    shifted, shift = X - mean, mean - request.centre  # see `fedlib.core.points`
    remainders = shifted.sum(axis=0)
    sums = remainders + len(X) * shift
    products = shifted.T @ shifted + np.outer(remainders, shift) + np.outer(shift, sums)
    return Scatter(len(X), sums, products[np.triu_indices(X.shape[1])])
