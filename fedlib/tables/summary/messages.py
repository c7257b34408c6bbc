"""The messages of federated summaries, and the checks that reject invalid replies.

Keys: integers in the order of floating point numbers, and counts of keys in intervals.

Halving an interval of keys always ends with a single number after 64 steps, no matter how the
values are distributed. Halving an interval of values does not.

The columns of all clients, and requests to the clients that have described theirs.

Every statistic must describe the same rows. So a client that is lost between two requests ends the
attempt with `ClientLost`, and `repeat` starts again with the clients that remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.core.aggregation import agree_on_features, agree_on_kind, exclude, settle
from fedlib.core.array_fields import OF_CLIENT
from fedlib.core.array_types import Bytes, Floats, Ints, Words
from fedlib.core.columns import EMPTY, MAX_NUMBER, MAX_TEXT
from fedlib.core.messages import Array, FeatureNames, Message, MessageError
from fedlib.core.points import MAX_BOUND
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.privacy.noise import TwoRows
from fedlib.protection.secure.fixed_point import digits_of_limits
from fedlib.protection.secure.points import NumberOfPoints, farthest

SIGN = np.uint64(2**63)
HIGHEST = 2**64 - 1


def to_keys(values: Floats) -> Words:
    """Return a key per value; keys have the order of the values.

    Parameters
    ----------
    values : array of float64
        Finite numbers. Both zeros have the same key.

    Examples
    --------
    >>> keys = to_keys(np.array([-2.0, -0.0, 0.0, 1e-300, 3.0]))
    >>> (np.diff(keys.astype(object)) > 0).tolist()
    [True, False, True, True]
    >>> [from_key(int(key)) for key in keys]
    [-2.0, 0.0, 0.0, 1e-300, 3.0]
    """
    bits = (np.ascontiguousarray(values, np.float64) + 0.0).view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def from_key(key: int) -> float:
    """Return the number that has a key, in 0..2**64 - 1."""
    bits = np.uint64(key)
    bits = bits ^ SIGN if bits & SIGN else ~bits
    return float(bits.view(np.float64))


def count_keys(keys: Words, low: int, high: int, n_bins: int) -> Ints:
    """Return the count of keys in each of ``n_bins`` parts of an interval.

    Parameters
    ----------
    keys : array (n_values,) of uint64
    low, high : int
        The ends of the interval; both belong to it.
    n_bins : int
        The count of parts, at least 1. Parts beyond ``high`` are empty.

    Examples
    --------
    >>> count_keys(np.array([3, 4, 7, 9, 20], np.uint64), low=4, high=9, n_bins=3)
    array([1, 1, 1])
    """
    inside = keys[(keys >= np.uint64(low)) & (keys <= np.uint64(high))]
    return np.bincount(_parts(inside, low, high, n_bins), minlength=n_bins)


def bins_of_keys(keys: Words, low: int, high: int, n_bins: int) -> Ints:
    """Return the part of the interval in which each key is, -1 if in none; see `count_keys`."""
    inside = (keys >= np.uint64(low)) & (keys <= np.uint64(high))
    bins = np.full(len(keys), -1, np.int64)
    bins[inside] = _parts(keys[inside], low, high, n_bins)
    return bins


def _parts(inside: Words, low: int, high: int, n_bins: int) -> Ints:
    """Return the part in which each key of an interval is."""
    if n_bins == 1:  # the width of all keys together does not fit into 64 bits
        return np.zeros(len(inside), np.int64)
    return ((inside - np.uint64(low)) // np.uint64(_width(low, high, n_bins))).astype(np.int64)


def sub_interval(low: int, high: int, n_bins: int, i: int) -> tuple[int, int]:
    """Return the ends of part ``i`` of an interval.

    Examples
    --------
    >>> sub_interval(4, 9, 3, 1)
    (6, 7)
    """
    width = _width(low, high, n_bins)
    return low + i * width, min(high, low + (i + 1) * width - 1)


def _width(low: int, high: int, n_bins: int) -> int:
    return (high - low) // n_bins + 1


MAX_ROWS = 2**40
MAX_COLUMNS = 2**16
MAX_BINS = 2**16
MAX_SQUARES = 1e240
MAX_MEAN = 1.01 * MAX_NUMBER  # a mean may exceed the bound by rounding

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
Positions = Annotated[np.ndarray, Array("int64", ("chosen",), ge=0, below=OF_CLIENT)]
ColumnCounts = Annotated[np.ndarray, Array("int64", ("columns",), ge=0, le=MAX_ROWS)]
Category = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class TableView(NamedTuple):
    """What clients do to their raw tables before they compute a statistic.

    Attributes
    ----------
    categorical : tuple of str
        The columns whose numbers are codes of categories.
    drop_gaps : bool
        Whether rows with a gap are left out.
    fill_columns : array (n_filled,) of int64
        The positions of the columns whose gaps are filled.
    fill_values : array (n_filled,) of float64
        The value for the gaps of each of these columns.
    """

    categorical: tuple[str, ...] = ()
    drop_gaps: bool = False
    fill_columns: Ints = np.empty(0, np.int64)
    fill_values: Floats = np.empty(0)


class ColumnDescription(Message):
    """The count of a client's rows, and the kind and count of values of each column."""

    discloses = "a client's count of rows, its columns and the count of gaps in each"
    n_rows: Count
    kinds: Annotated[np.ndarray, Array("uint8", ("columns",), le=EMPTY)]
    counts: ColumnCounts
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns."""
        return len(self.kinds)


class TableRequest(Message):
    """Base class of the requests for a statistic; the fields are those of `TableView`."""

    discloses = "nothing but the parameters"
    categorical: FeatureNames
    drop_gaps: bool
    fill_columns: Annotated[np.ndarray, Array("int64", ("filled",), ge=0, below=OF_CLIENT)]
    fill_values: Annotated[np.ndarray, Array("float64", ("filled",), -MAX_MEAN, MAX_MEAN)]


class DescribeColumns(TableRequest):
    """Describe your columns: their kinds, and how many values they have."""

    discloses = "the values that fill gaps, if there are any"
    reply = ColumnDescription

    def accept(self, reply: Message) -> Message:
        described = cast(ColumnDescription, reply)
        if (described.counts > described.n_rows).any():
            raise MessageError("ColumnDescription.counts must be at most n_rows")
        if ((described.counts == 0) != (described.kinds == EMPTY)).any():
            raise MessageError("ColumnDescription.kinds must be empty where counts are 0")
        if described.features and len(described.features) != described.n_features:
            raise MessageError("ColumnDescription.features must have one name per column")
        return reply


class ColumnSums(Message):
    """The count of rows and values, and sums of some columns about their centres."""

    discloses = "the count of rows and values, and the sums of values and of their squares"
    n_rows: Count
    counts: ColumnCounts
    sums: Annotated[np.ndarray, Array("float64", ("chosen",), -MAX_SQUARES, MAX_SQUARES)]
    squares: Annotated[np.ndarray, Array("float64", ("chosen",), ge=0, le=MAX_SQUARES)]


class SumColumns(TableRequest):
    """Sum the differences of the values of some columns from their centres, and their squares."""

    discloses = "the means of all clients' values"
    reply = ColumnSums
    n_columns: Annotated[int, msgspec.Meta(ge=0, le=MAX_COLUMNS)]
    columns: Positions
    centres: Annotated[np.ndarray, Array("float64", ("chosen",), -MAX_MEAN, MAX_MEAN)]

    def work(self) -> float:
        return float(len(self.columns))

    def reply_lengths(self) -> dict[str, int]:
        return {"columns": self.n_columns, "chosen": len(self.columns)}


class SumClippedColumns(SumColumns):
    """Clip the values of some columns to limits, and sum them in units of half their range.

    The sums do not depend on the units of the columns, so that all have the same digits.
    """

    discloses = "the limits of the columns, and the count of rows and the means of all clients"
    effortless = ("n_rows",)
    limits: Annotated[np.ndarray, TwoRows("float64", ("ends", "chosen"), -MAX_BOUND, MAX_BOUND)]
    n_rows: NumberOfPoints

    def scaled(self, values: Floats) -> Floats:
        """Return values (n_values, n_chosen) as differences from the centres, in these units."""
        with np.errstate(over="ignore"):
            scaled: Floats = np.clip(values, *self.limits) - self.centres
            return scaled / half_range(self.limits)

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        with np.errstate(over="ignore"):
            reach = farthest(self.centres, self.limits) / half_range(self.limits)
            limits = {"sums": self.n_rows * reach, "squares": self.n_rows * np.square(reach)}
        return digits_of_limits(limits, n_clients)


def half_range(limits: Floats) -> Floats:
    """Return half of the difference of the limits (2, n_columns) of each column."""
    half: Floats = (limits[1] - limits[0]) / 2
    return half


class ValueMoments(Message):
    """The mean of each column of numbers, and the sum of squared deviations from it.

    ``remainders`` are the sums of deviations. They are not 0 because the means are rounded.
    """

    discloses = "the mean and the spread of a client's values; the mean of one value is the value"
    means: Annotated[np.ndarray, Array("float64", ("chosen",), -MAX_MEAN, MAX_MEAN)]
    remainders: Annotated[np.ndarray, Array("float64", ("chosen",), -MAX_SQUARES, MAX_SQUARES)]
    squares: Annotated[np.ndarray, Array("float64", ("chosen",), ge=0, le=MAX_SQUARES)]


class SumValues(TableRequest):
    """Report the mean and the spread of some columns of numbers."""

    discloses = "the values that fill gaps, if there are any"
    reply = ValueMoments
    columns: Positions

    def reply_lengths(self) -> dict[str, int]:
        return {"chosen": len(self.columns)}

    def accept(self, reply: Message) -> Message:
        _check_length("ValueMoments.means", cast(ValueMoments, reply).means, self.columns)
        return reply


class Extremes(Message):
    """The smallest and the largest value of each column; 0 for a column without values."""

    discloses = "a client's smallest and largest value in each column, which are values of rows"
    extremes = True
    minima: Annotated[np.ndarray, Array("float64", ("chosen",), -MAX_MEAN, MAX_MEAN)]
    maxima: Annotated[np.ndarray, Array("float64", ("chosen",), -MAX_MEAN, MAX_MEAN)]


class FindExtremes(TableRequest):
    """Report the smallest and the largest value of some columns of numbers."""

    discloses = "the values that fill gaps, if there are any"
    reply = Extremes
    columns: Positions

    def reply_lengths(self) -> dict[str, int]:
        return {"chosen": len(self.columns)}

    def accept(self, reply: Message) -> Message:
        extremes = cast(Extremes, reply)
        _check_length("Extremes.minima", extremes.minima, self.columns)
        if (extremes.minima > extremes.maxima).any():
            raise MessageError("Extremes.minima must be at most Extremes.maxima")
        return reply


class BinCounts(Message):
    """The count of a client's values in each part of each interval."""

    discloses = (
        "the count of a client's values in each part of each interval; a part with one value"
        " encloses the value of one row"
    )
    counts: Annotated[np.ndarray, Array("int64", ("intervals", "bins"), ge=0, le=MAX_ROWS)]


class CountBins(TableRequest):
    """Count your values in the parts of intervals, whose ends are keys."""

    discloses = "intervals that contain a quantile, or the bins of a histogram"
    reply = BinCounts
    advice = (
        "quantiles (also scale='robust' and impute='median') and histograms count few rows: leave"
        " them out, with impute='mean', or let the sites lower min_count"
    )
    columns: Annotated[np.ndarray, Array("int64", ("intervals",), ge=0, below=OF_CLIENT)]
    low: Annotated[np.ndarray, Array("uint64", ("intervals",))]
    high: Annotated[np.ndarray, Array("uint64", ("intervals",))]
    n_bins: Annotated[int, msgspec.Meta(ge=1, le=MAX_BINS)]

    def work(self) -> float:
        return float(len(self.columns))

    def effective(self, n_features: int) -> dict[str, int]:
        """Return the count of parts of all intervals of a column."""
        return {"n_bins": int(np.bincount(self.columns).max(initial=0)) * self.n_bins}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.low > self.high).any():
            raise MessageError("CountBins.low must be at most CountBins.high")

    def reply_lengths(self) -> dict[str, int]:
        return {"intervals": len(self.columns), "bins": self.n_bins}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return {}

    def accept(self, reply: Message) -> Message:
        shape, wanted = cast(BinCounts, reply).counts.shape, (len(self.columns), self.n_bins)
        if shape != wanted:
            raise MessageError(f"BinCounts.counts must have the shape {wanted}, got {shape}")
        return reply


class CategoryCounts(Message):
    """The categories of the columns of text, one column after the other, and their counts.

    ``others`` are the counts of values of each column whose categories are withheld.
    """

    discloses = (
        "every category that a client has, except rare ones that it withholds, and the number of"
        " its rows with each"
    )
    lengths: Annotated[np.ndarray, Array("int64", ("chosen",), ge=0, le=MAX_ROWS)]
    categories: tuple[Category, ...]
    counts: Annotated[np.ndarray, Array("int64", ("categories",), ge=1, le=MAX_ROWS)]
    others: Annotated[np.ndarray, Array("int64", ("chosen",), ge=0, le=MAX_ROWS)]

    def by_column(self) -> Iterator[tuple[tuple[str, ...], Ints]]:
        """Yield the categories and the counts of each column."""
        counts = split(self.counts, self.lengths)
        yield from zip(split(self.categories, self.lengths), counts, strict=True)


class CountCategories(TableRequest):
    """Count your rows with each category of some columns of text.

    Withhold a category with fewer than ``min_count`` rows.
    """

    reply = CategoryCounts
    effortless = ("max_categories", "min_count")
    columns: Positions
    max_categories: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
    min_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]

    def accept(self, reply: Message) -> Message:
        received = cast(CategoryCounts, reply)
        _check_length("CategoryCounts.lengths", received.lengths, self.columns)
        if not received.lengths.sum() == len(received.counts) == len(received.categories):
            raise MessageError("CategoryCounts.lengths must sum to the number of categories")
        if received.lengths.max(initial=0) > self.max_categories:
            raise MessageError(
                f"CategoryCounts.lengths must be at most {self.max_categories},"
                f" got {received.lengths.max()}"
            )
        if (received.counts < self.min_count).any():
            raise MessageError(f"CategoryCounts.counts must be at least {self.min_count}")
        if self.min_count == 1 and received.others.any():
            raise MessageError("CategoryCounts.others must be 0 if no category is withheld")
        for categories, _ in received.by_column():
            if list(categories) != sorted(set(categories)):
                raise MessageError("CategoryCounts.categories must be distinct and sorted")
        return reply


def split(items: Any, lengths: Ints) -> list[Any]:
    """Return consecutive slices of a sequence with these lengths.

    Examples
    --------
    >>> split(("a", "b", "c"), np.array([2, 0, 1]))
    [('a', 'b'), (), ('c',)]
    """
    ends = np.cumsum(lengths).tolist()
    return [items[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def _check_length(name: str, received: NDArray[Any], wanted: NDArray[Any]) -> None:
    if len(received) != len(wanted):
        raise MessageError(f"{name} must have {len(wanted)} entries, got {len(received)}")


class ClientLost(Exception):
    """A client that has contributed to a statistic is lost."""


class Columns(NamedTuple):
    """The columns of all clients.

    Attributes
    ----------
    names : tuple of str
        The names; their positions 0, 1 and so on if they have none.
    named : bool
        Whether the columns have names.
    kinds : array (n_columns,) of uint8
        `NUMBER`, `TEXT` or `EMPTY` for each column.
    n_rows : int
        The count of rows.
    counts : array (n_columns,) of int64
        The count of values.
    """

    names: tuple[str, ...]
    named: bool
    kinds: Bytes
    n_rows: int
    counts: Ints

    def of_kind(self, *kinds: int) -> Ints:
        """Return the positions of the columns of these kinds."""
        return np.flatnonzero(np.isin(self.kinds, kinds)).astype(np.int64)


def repeat(attempt: Callable[[], Flow[Any]]) -> Flow[Any]:
    """Run a flow again, without the lost clients, until no client is lost during it."""
    while True:
        try:
            return (yield from attempt())
        except ClientLost:
            continue


def describe(view: TableView) -> Flow[Replies]:
    """Ask for the columns; return the descriptions of the clients that agree on them."""
    replies = yield DescribeColumns(*view)
    replies = yield from settle(replies, agree_on_features)
    return (yield from settle(replies, agree_on_columns))


def agree_on_columns(described: Mapping[str, ColumnDescription]) -> Columns:
    """Return the columns on whose kinds all clients agree.

    Raises
    ------
    Disagreement
        When a column contains numbers at one client and text at another.
    """
    return columns_of(*agree_on_kinds(described), described)


def columns_of(names: tuple[str, ...], kinds: Bytes, described: Mapping[str, Any]) -> Columns:
    """Return the columns of clients that have counted their rows and values."""
    named = any(one.features for one in described.values())
    n_rows = sum(reply.n_rows for reply in described.values())
    counts = np.sum([reply.counts for reply in described.values()], axis=0)
    return Columns(names, named, kinds, n_rows, counts.astype(np.int64))


def agree_on_kinds(described: Mapping[str, Any]) -> tuple[tuple[str, ...], Bytes]:
    """Return the names of the columns, or their positions, and the kinds on which clients agree.

    A column without values at a client agrees with every kind.

    Raises
    ------
    Disagreement
        When a column contains numbers at one client and text at another.
    """
    first = next(iter(described.values()))
    kinds = np.full(first.n_features, EMPTY, np.uint8)
    names = next((one.features for one in described.values() if one.features), ())
    labels = names or tuple(map(str, range(first.n_features)))
    for j, label in enumerate(labels):
        of_clients = {client: int(reply.kinds[j]) for client, reply in described.items()}
        kinds[j] = agree_on_kind("column", label, of_clients)
    return labels, kinds


def ask(
    request: Message, described: Replies, contradiction: Callable[[str, Any], str | None]
) -> Flow[Replies]:
    """Send a request; return the replies of the described clients.

    Parameters
    ----------
    request : Message
    described : Replies
        The descriptions of the clients whose statistics are combined.
    contradiction : callable
        Returns why a client's reply contradicts what it has sent before, or None.

    Raises
    ------
    ClientLost
        When the reply of a described client is missing.
    """
    replies = yield request
    reasons: dict[str, str] = {}
    for name, reply in replies.items():
        if name not in described:
            reasons[name] = f"{type(reply).__name__} from a client that declined to describe"
        elif reason := contradiction(name, reply):
            reasons[name] = f"{type(reply).__name__}{reason}"
    replies = yield from exclude(replies, reasons)
    if set(replies) != set(described):
        raise ClientLost
    return replies


def n_columns(described: Replies) -> int:
    return int(next(iter(described.values())).n_features)
