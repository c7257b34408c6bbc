"""The messages of scores, and the checks that reject invalid replies."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
import numpy as np

from fedlib.boosting.classes import Class, problem_of_classes
from fedlib.core.array_fields import MAX_COUNT
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client
from fedlib.core.messages import Array, FeatureNames, Message, MessageError
from fedlib.core.points import MAX_BOUND
from fedlib.protection.privacy import BoundsArray, Sensitivity, to_unit
from fedlib.protection.secure.points import MAX_SUM
from fedlib.protection.sums import RowTotals, SumRows
from fedlib.tables.summary.messages import MAX_MEAN, MAX_ROWS, MAX_SQUARES

MAX_CLUSTERS = 2**20
MAX_BINS = 2**20
MAX_DISTANCES = 1e240
MAX_LOSS = 2.0**46  # of MAX_ROWS rows: the loss of one row is at most 37
EPS = np.finfo(np.float64).eps  # probabilities are clipped at it in the log-loss, as in sklearn
LARGEST_LOSS = float(-np.log(EPS))  # of one row
ROUNDING = 1e-9  # relative error of sums
UNDERFLOW = 1e-150  # below it, the square of a number is 0
LARGEST_SQUARE = 2.0  # the sum of the squared errors of one row over the classes

Noise = Literal["exclude", "cluster"]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
Bins = Annotated[int, msgspec.Meta(ge=1, le=MAX_BINS)]


class NoRows(ValueError):
    """The clients have no rows, so that nothing can be said about them."""

    def __init__(self) -> None:
        super().__init__("the clients have no rows")


class LabelledMoments(Message):
    """The count of a client's rows in each cluster, their mean, and their squared deviations."""

    discloses = (
        "the size, the mean and the spread of each cluster at a client, and the count of its noise"
        " rows; the mean of a cluster with one row is the row"
    )
    labels: Annotated[np.ndarray, Array("int64", ("clusters",), ge=-1, le=MAX_COUNT)]
    counts: Annotated[np.ndarray, Array("int64", ("clusters",), ge=1, le=MAX_ROWS)]
    means: Annotated[np.ndarray, Array("float64", ("clusters", "features"), -MAX_MEAN, MAX_MEAN)]
    squares: Annotated[np.ndarray, Array("float64", ("clusters", "features"), 0, MAX_SQUARES)]
    n_noise: Count
    n_withheld: Count
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of features."""
        return int(self.means.shape[1])


class SumLabelledRows(Message):
    """Describe the rows of each of your clusters.

    Attributes
    ----------
    noise : {"exclude", "cluster"}
        Whether noise, -1, is left out or counts as one cluster.
    min_group_size : int
        Clusters with fewer rows at a client are withheld.
    max_clusters : int
        The maximum count of clusters of a client.
    """

    discloses = "nothing but the parameters"
    effortless = ("min_group_size", "max_clusters")
    reply = LabelledMoments
    noise: Noise
    min_group_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
    max_clusters: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLUSTERS)]

    def accept(self, reply: Message) -> Message:
        moments = cast(LabelledMoments, reply)
        if problem := self._problem(moments):
            raise MessageError(f"LabelledMoments.{problem}")
        return reply

    def _problem(self, moments: LabelledMoments) -> str | None:
        labels, counts = moments.labels, moments.counts
        noise = counts[labels == -1]
        if len(labels) > self.max_clusters:
            return f"labels must have at most {self.max_clusters} entries, got {len(labels)}"
        if (np.diff(labels) <= 0).any():
            return "labels must be distinct and sorted"
        if len(noise) and (self.noise == "exclude" or noise[0] != moments.n_noise):
            return "counts of noise must be n_noise, and only if noise is a cluster"
        if (counts < self.min_group_size).any():
            return f"counts must be at least {self.min_group_size}"
        if moments.n_withheld and self.min_group_size == 1:
            return "n_withheld must be 0 if every cluster is large enough"
        if moments.squares[counts == 1].any():
            return "squares must be 0 for a cluster with one row"
        if moments.features and len(moments.features) != moments.n_features:
            return "features must have one name per feature"
        return None


class ClusterDistances(Message):
    """Sums over a client's rows in each cluster: of distances to the centroid, and silhouettes."""

    discloses = "the mean distance of a client's rows in each cluster from its centroid"
    distances: Annotated[np.ndarray, Array("float64", ("clusters",), 0, MAX_DISTANCES)]
    silhouettes: Annotated[np.ndarray, Array("float64", ("clusters",), -MAX_ROWS, MAX_ROWS)]


class MeasureDistances(Message):
    """Measure how far your rows are from these centroids; the groups are those described before."""

    discloses = "the centroids of all clusters"
    effortless = ("min_group_size",)
    reply = ClusterDistances
    tolerated = True
    noise: Noise
    min_group_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
    labels: Annotated[np.ndarray, Array("int64", ("clusters",), ge=-1, le=MAX_COUNT)]
    centres: Annotated[np.ndarray, Array("float64", ("clusters", "features"), -MAX_MEAN, MAX_MEAN)]

    def work(self) -> float:
        return float(len(self.labels))

    def reply_lengths(self) -> dict[str, int]:
        return {"clusters": len(self.labels)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.labels) < 2 or (np.diff(self.labels) <= 0).any():
            raise MessageError("MeasureDistances.labels must be at least 2, distinct and sorted")

    def accept(self, reply: Message) -> Message:
        received, wanted = len(cast(ClusterDistances, reply).distances), len(self.labels)
        if received != wanted:
            raise MessageError(f"ClusterDistances must have {wanted} clusters, got {received}")
        return reply


class ClassCounts(Message):
    """The classes of a client's rows, the count of rows of each, and that of the columns."""

    discloses = "the classes of a client's rows, and the count of rows of each"
    classes: Annotated[tuple[Class, ...], msgspec.Meta(max_length=2**10)]
    counts: Annotated[np.ndarray, Array("int64", ("classes",), ge=1, le=MAX_ROWS)]
    n_columns: Annotated[int, msgspec.Meta(ge=1, le=2**10)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) != len(self.counts):
            raise MessageError(f"{len(self.counts)} counts for {len(self.classes)} classes")
        if problem := problem_of_classes(self.classes):
            raise MessageError(problem)

    @property
    def weights(self) -> Ints:
        """The count of rows of each class."""
        return self.counts


class DescribeClasses(Message):
    """Count the rows of each class."""

    discloses = "nothing"
    reply = ClassCounts


class ScoreCounts(Message):
    """Counts and sums over a client's probabilities, per class of its rows.

    Attributes
    ----------
    counts : array (2, n_bins) of int64
        The count of rows of each class in each bin of equal width between 0 and 1.
    above : array (2,) of int64
        The count of rows of each class with a probability above 0.5.
    groups : array (2, n_groups) of int64
        As ``counts``, in the wider bins of the calibration curve.
    sums : array (n_groups,)
        The sum of the probabilities in each of these.
    log_losses, squares : array (2,)
        The sums of the negative logarithm of the probability of the true class, and of the squared
        errors.
    """

    discloses = (
        "the count of a client's rows of each class in each bin of the probabilities; a bin with"
        " one row nearly is the probability of that row"
    )
    counts: Annotated[np.ndarray, Array("int64", ("classes", "bins"), ge=0, le=MAX_ROWS)]
    above: Annotated[np.ndarray, Array("int64", ("classes",), ge=0, le=MAX_ROWS)]
    groups: Annotated[np.ndarray, Array("int64", ("classes", "groups"), ge=0, le=MAX_ROWS)]
    sums: Annotated[np.ndarray, Array("float64", ("groups",), ge=0, le=MAX_ROWS)]
    log_losses: Annotated[np.ndarray, Array("float64", ("classes",), ge=0, le=MAX_LOSS)]
    squares: Annotated[np.ndarray, Array("float64", ("classes",), ge=0, le=MAX_ROWS)]


class CountScores(Message):
    """Count your rows by class and by the probability of the second class."""

    discloses = "the two classes"
    effortless = ("n_bins", "n_groups")
    reply = ScoreCounts
    classes: tuple[Class, Class]
    n_bins: Bins
    n_groups: Bins

    def effective(self, n_features: int) -> dict[str, int]:
        """Return the count of parts of the probabilities, of which the groups are others."""
        return {"n_bins": max(self.n_bins, self.n_groups)}

    def reply_lengths(self) -> dict[str, int]:
        return {"classes": 2, "bins": self.n_bins, "groups": self.n_groups}

    def accept(self, reply: Message) -> Message:
        received = cast(ScoreCounts, reply)
        shapes = received.counts.shape, received.groups.shape
        if shapes != ((2, self.n_bins), (2, self.n_groups)):
            raise MessageError(
                f"ScoreCounts must have 2 classes, {self.n_bins} bins and {self.n_groups} groups,"
                f" got the shapes {shapes[0]} and {shapes[1]}"
            )
        return reply


class ClassScoreTotals(RowTotals):
    """Counts of a client's rows by class, prediction and probability, and sums of their errors."""

    discloses = (
        "the count of a client's rows by class and predicted class, and by bins of the probability"
        " of each class, and the sums of their errors; with noise if the request has a privacy loss"
    )


class ClassTotals(NamedTuple):
    """The values of `ClassScoreTotals`.

    Attributes
    ----------
    confusion : array (n_classes, n_classes)
        The count of rows by class and by predicted class.
    counts : array (n_classes, 2, n_bins)
        The count of rows of other classes and of the class in each bin of its probability.
    log_loss, square : float
        The sums of the log-losses, and of the squared errors over all classes.
    """

    confusion: Floats
    counts: Floats
    log_loss: float
    square: float


class CountClassScores(SumRows, kw_only=True):
    """Count your rows by class, predicted class and probability, and sum the predictions' errors.

    A row adds to one cell of the confusion matrix, and to one bin per class. Its errors are scaled
    to 0..1.
    """

    discloses = "the classes"
    reply = ClassScoreTotals
    classes: Annotated[tuple[Class, ...], msgspec.Meta(min_length=2, max_length=2**10)]
    n_bins: Bins

    def __post_init__(self) -> None:
        super().__post_init__()
        if problem := problem_of_classes(self.classes):
            raise MessageError(problem)

    @property
    def n_values(self) -> int:
        n_classes = len(self.classes)
        return n_classes**2 + 2 * n_classes * self.n_bins + 2

    def work(self) -> float:
        return float(len(self.classes))

    def sensitivity(self) -> Sensitivity:
        n_entries = len(self.classes) + 3
        return Sensitivity(float(n_entries), sqrt(n_entries), n_entries)

    def total(self, X: Any, client: Client) -> ClassScoreTotals:
        """Return the reply of a client.

        Parameters
        ----------
        X : tuple (probabilities, codes)
            Arrays (n_rows, n_classes) and (n_rows,), the indices of the rows' classes.
        client : Client
        """
        probabilities, codes = X
        one = np.ones((len(codes), 1))
        counts = [
            self.add(one, client, groups, n).ravel()
            for groups, n in self.groups(probabilities, codes)
        ]
        errors = self.add(errors_of(probabilities, codes), client)[0]
        return cast(ClassScoreTotals, self.finished(np.concatenate([*counts, errors]), client))

    def groups(self, probabilities: Floats, codes: Ints) -> Iterator[tuple[Ints, int]]:
        """Yield the group of each row (n_rows,) in each partition, and the count of groups."""
        n_classes = len(self.classes)
        yield n_classes * codes + probabilities.argmax(axis=1), n_classes**2
        for k in range(n_classes):
            bins = bins_of(probabilities[:, k], self.n_bins)
            yield self.n_bins * (codes == k) + bins, 2 * self.n_bins

    def parts(self, reply: ClassScoreTotals) -> ClassTotals:
        """Return the values of a reply, or of a sum of replies."""
        n_classes, values = len(self.classes), reply.values
        ends = np.cumsum([n_classes**2, 2 * n_classes * self.n_bins])
        confusion, counts, errors = np.split(values, ends)
        return ClassTotals(
            confusion.reshape(n_classes, n_classes),
            counts.reshape(n_classes, 2, self.n_bins),
            float(errors[0]) * LARGEST_LOSS,
            float(errors[1]) * LARGEST_SQUARE,
        )


def bins_of(scores: Floats, n_bins: int) -> Ints:
    """Return the bin of each probability; a bin contains its right edge."""
    return np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], scores).astype(np.int64)


def errors_of(probabilities: Floats, codes: Ints) -> Floats:
    """Return the log-loss and the squared error of each row (n_rows, 2), scaled to 0..1."""
    right = probabilities[np.arange(len(codes)), codes]
    losses = -np.log(np.clip(right, EPS, 1 - EPS))
    squares = np.square(probabilities).sum(axis=1) - np.square(right) + np.square(1 - right)
    scaled = np.column_stack([losses / LARGEST_LOSS, squares / LARGEST_SQUARE])
    return np.clip(scaled, 0.0, 1.0)


class ErrorSums(Message):
    """Sums over a client's rows: of numbers, of the predictions' errors, and of their squares."""

    discloses = (
        "the count of a client's rows, and the sums of the numbers, of the errors of the"
        " predictions, of their sizes and of the squares; of a single row, its number and its error"
    )
    n_rows: Count
    total: Annotated[float, msgspec.Meta(ge=-MAX_SUM, le=MAX_SUM)]
    squares: Annotated[float, msgspec.Meta(ge=0, le=MAX_SUM)]
    errors: Annotated[float, msgspec.Meta(ge=-MAX_SUM, le=MAX_SUM)]
    absolute_errors: Annotated[float, msgspec.Meta(ge=0, le=MAX_SUM)]
    squared_errors: Annotated[float, msgspec.Meta(ge=0, le=MAX_SUM)]


class SumErrors(Message):
    """Sum your numbers' differences from a centre, the errors of the predictions, and squares."""

    discloses = "the mean of all clients' numbers"
    reply = ErrorSums
    centre: Annotated[float, msgspec.Meta(ge=-4 * MAX_BOUND, le=4 * MAX_BOUND)]

    def accept(self, reply: Message) -> Message:
        sums = cast(ErrorSums, reply)
        n, more = sums.n_rows, 1 + ROUNDING
        farthest, error = MAX_BOUND + abs(self.centre), 2 * MAX_BOUND
        if sums.squares > n * farthest**2 * more or sums.squared_errors > n * error**2 * more:
            raise MessageError("ErrorSums must be of numbers and predictions within ±1e100")
        most, largest = (
            (sqrt(n) * sqrt(squares) + n * UNDERFLOW) * more
            for squares in (sums.squares, sums.squared_errors)
        )
        if abs(sums.total) > most:
            raise MessageError("ErrorSums.total must fit the squares")
        if not abs(sums.errors) <= sums.absolute_errors * more or sums.absolute_errors > largest:
            raise MessageError("ErrorSums.errors must fit their sizes, and these their squares")
        return reply


class SumClippedErrors(SumRows):
    """Clip your numbers and predictions to bounds, and sum them, the errors, and squares."""

    discloses = "the bounds of the numbers"
    bounds: BoundsArray

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bounds.shape[1] != 1:
            raise MessageError(
                f"SumClippedErrors.bounds must be of one column, got {self.bounds.shape[1]}"
            )

    @property
    def n_values(self) -> int:
        return 6

    def sensitivity(self) -> Sensitivity:
        """Return the largest change: a row adds 1, and values within ±1."""
        return Sensitivity(6.0, sqrt(6), 6)

    def terms(self, X: Floats) -> Floats:
        """Return what each row (prediction, number) adds: errors are divided by the range."""
        predicted, numbers = to_unit(X, self.bounds[:, [0, 0]]).T
        errors = (predicted - numbers) / 2
        return np.column_stack(
            [
                np.ones(len(X)),
                numbers,
                np.square(numbers),
                errors,
                np.abs(errors),
                np.square(errors),
            ]
        )

    @property
    def units(self) -> Floats:
        """The units (6,) of the sums, which are about the middle of the bounds."""
        half = float(np.diff(self.bounds[:, 0])[0]) / 2
        return np.array([1.0, half, half**2, 2 * half, 2 * half, 4 * half**2])
