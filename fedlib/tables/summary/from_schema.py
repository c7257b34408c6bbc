"""What the sites have agreed on before a summary, by a schema or by bounds, and how it is used.

The columns, their kinds, categories and limits are facts of the schema. So no request asks for
them: clients count values and rows with known categories, and report no extremes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation, agree_on_features
from fedlib.core.array_types import Bools, Bytes, Floats, Ints
from fedlib.core.client import BadRequest
from fedlib.core.columns import NUMBER, TEXT, RawTable, parse_booleans
from fedlib.core.messages import Array, FeatureNames, Message, MessageError
from fedlib.core.points import Bounds
from fedlib.core.protocol import Flow, Replies
from fedlib.tables.schema.cells import Column
from fedlib.tables.summary.messages import (
    MAX_COLUMNS,
    MAX_ROWS,
    Category,
    ColumnCounts,
    ColumnSums,
    Count,
    Positions,
    SumClippedColumns,
    SumColumns,
    TableRequest,
    TableView,
    ask,
    half_range,
    split,
)

logger = logging.getLogger(__name__)

FIRST_ROWS = 2**31  # at all clients, until a first sum has counted them
UNLIMITED = 1e100


class ValueCounts(Message):
    """The count of a client's rows, and the count of values of each column."""

    discloses = "a client's count of rows, and the count of gaps in each column"
    n_rows: Count
    counts: ColumnCounts
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns."""
        return len(self.counts)


class CountValues(TableRequest):
    """Count your rows, and the values of each column."""

    reply = ValueCounts

    def accept(self, reply: Message) -> Message:
        assert isinstance(reply, ValueCounts)
        if (reply.counts > reply.n_rows).any():
            raise MessageError("ValueCounts.counts must be at most n_rows")
        return reply


class KnownCategoryCounts(Message):
    """The numbers of rows with each of the requested categories, 0 for those withheld."""

    discloses = "the count of a client's rows with each category of the schema, 0 if it is rare"
    counts: Annotated[np.ndarray, Array("int64", ("categories",), ge=0, le=MAX_ROWS)]


class CountKnownCategories(TableRequest):
    """Count your rows with given categories of some columns; 0 for fewer than ``min_count``."""

    discloses = "the categories of the schema"
    effortless = ("min_count",)
    reply = KnownCategoryCounts
    columns: Positions
    lengths: Annotated[np.ndarray, Array("int64", ("chosen",), ge=0, le=MAX_COLUMNS)]
    categories: tuple[Category, ...]
    min_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lengths(self.lengths, self.categories)

    def by_column(self) -> list[tuple[str, ...]]:
        """Return the categories of each column."""
        return split(self.categories, self.lengths)

    def reply_lengths(self) -> dict[str, int]:
        return {"categories": len(self.categories)}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]] | None:
        """Return no digits, or None with a least count: what is withheld is no sum over rows."""
        return {} if self.min_count == 1 else None

    def accept(self, reply: Message) -> Message:
        assert isinstance(reply, KnownCategoryCounts)
        if len(reply.counts) != len(self.categories):
            raise MessageError(
                f"KnownCategoryCounts.counts must have {len(self.categories)} entries, got"
                f" {len(reply.counts)}"
            )
        return reply


def check_lengths(lengths: Ints, categories: Sequence[str]) -> None:
    """Raise MessageError if the lengths of lists do not add up, or categories repeat."""
    if int(lengths.sum()) != len(categories):
        raise MessageError("lengths must sum to the number of categories")
    for names in split(categories, lengths):
        if len(set(map(parse_booleans, names))) < len(names):
            raise MessageError("categories must be distinct, also truth values in small letters")


def check_columns(table: RawTable, columns: Ints) -> None:
    """Raise BadRequest if a table does not have columns at these positions."""
    if columns.max(initial=-1) >= len(table.columns):
        raise BadRequest(f"column {columns.max()} of a table with {len(table.columns)} columns")


def chosen_numbers(table: RawTable, columns: Ints) -> Floats:
    """Return columns of a table as numbers (n_rows, n_chosen) with NaN for gaps and for texts."""
    check_columns(table, columns)
    numbers = np.empty((len(table), len(columns)))
    for place, j in enumerate(columns.tolist()):
        numbers[:, place] = table.numbers_or_gaps(j)
        if table.kinds[j] == TEXT:
            logger.warning("column %r contains text, which counts as gaps", table.labels[j])
    return numbers


def count_known(
    table: RawTable, columns: Ints, categories: Sequence[Sequence[str]], min_count: int
) -> list[Ints]:
    """Return the count of rows with each category of each column, 0 for fewer than ``min_count``.

    Other texts do not count.

    Parameters
    ----------
    table : RawTable
    columns : array (n_chosen,) of int64
    categories : sequence of sequence of str
    min_count : int
    """
    counts = []
    for groups, names in zip(known_groups(table, columns, categories), categories, strict=True):
        found = np.bincount(groups[groups >= 0], minlength=len(names)).astype(np.int64)
        counts.append(np.where(found >= min_count, found, 0))
    return counts


def known_groups(table: RawTable, columns: Ints, categories: Sequence[Sequence[str]]) -> list[Ints]:
    """Return the position of each row's category in each column (n_rows,), -1 if it has none."""
    check_columns(table, columns)
    groups = []
    for j, names in zip(columns.tolist(), categories, strict=True):
        places = {parse_booleans(name): i for i, name in enumerate(names)}
        found = [places.get(parse_booleans(text), -1) for text in table.texts(j)]
        groups.append(np.array(found, np.int64))
    return groups


class AgreedTable(NamedTuple):
    """The columns of a summary as a schema has them.

    Attributes
    ----------
    names : tuple of str
    kinds : array (n_columns,) of uint8
        `NUMBER` or `TEXT`.
    categories : tuple of tuple of str
        The categories of each column of text in ascending order; none for numbers.
    ends : array (2, n_columns)
        The limits of the columns of numbers that have two; otherwise NaN.
    in_schema : bool
        Whether a schema declares the columns; otherwise, bounds do.
    """

    names: tuple[str, ...]
    kinds: Bytes
    categories: tuple[tuple[str, ...], ...]
    ends: Floats
    in_schema: bool = True

    @classmethod
    def of_bounds(cls, bounds: Bounds) -> AgreedTable:
        """Return columns of numbers between bounds; they have no names if the bounds have none."""
        n_columns = bounds.limits.shape[1]
        kinds = np.full(n_columns, NUMBER, np.uint8)
        return cls(bounds.names, kinds, ((),) * n_columns, bounds.limits, False)

    @classmethod
    def of(cls, columns: Sequence[Column], given: Mapping[int, tuple[float, float]]) -> AgreedTable:
        """Return the features of a schema, with other limits for some of them.

        Examples
        --------
        >>> AgreedTable.of([Column("sex", "string", values=("m", "f"))], {}).categories
        (('f', 'm'),)
        """
        ends = np.full((2, len(columns)), np.nan)
        for j, column in enumerate(columns):
            if column.limits is not None and np.isfinite(column.limits).all():
                ends[:, j] = column.limits
        for j, pair in given.items():
            ends[:, j] = pair
        kinds = np.array([column.kind for column in columns], np.uint8)
        names = tuple(column.name for column in columns)
        categories = tuple(tuple(sorted(column.categories or ())) for column in columns)
        return cls(names, kinds, categories, ends)

    def of_kind(self, kind: int) -> Ints:
        """Return the positions of the columns of a kind."""
        return np.flatnonzero(self.kinds == kind).astype(np.int64)

    @property
    def limits(self) -> dict[int, tuple[float, float]]:
        """The limits of the columns that have some, by position."""
        known = np.flatnonzero(np.isfinite(self.ends).all(axis=0)).tolist()
        return {j: (float(self.ends[0, j]), float(self.ends[1, j])) for j in known}

    @property
    def numbers(self) -> Ints:
        """The positions of the columns of numbers."""
        return self.of_kind(NUMBER)

    @property
    def lists(self) -> tuple[Ints, Ints, tuple[str, ...]]:
        """The columns of text, the counts of their categories, and all categories."""
        texts = self.of_kind(TEXT)
        lists = [self.categories[j] for j in texts]
        lengths = np.array([len(names) for names in lists], np.int64)
        return texts, lengths, tuple(name for names in lists for name in names)

    def by_column(self, counts: Ints) -> tuple[Ints, ...]:
        """Return the counts of all categories as one array per column."""
        texts, lengths, _ = self.lists
        split_counts = dict(zip(texts.tolist(), split(counts, lengths), strict=True))
        return tuple(split_counts.get(j, np.empty(0, np.int64)) for j in range(len(self.names)))

    def of_numbers(self, values: Floats, valid: Bools) -> Floats:
        """Return values of the columns of numbers among all columns, NaN where not valid."""
        everything = np.full(len(self.kinds), np.nan)
        everything[self.numbers] = np.where(valid, values, np.nan)
        return everything

    def others(self, counts: Ints, category_counts: Sequence[Ints]) -> Ints:
        """Return the count of texts (n_columns,) without a counted category."""
        known = np.array([int(one.sum()) for one in category_counts], np.int64)
        return np.where(self.kinds == TEXT, np.maximum(counts - known, 0), 0)

    def request(self, view: TableView, min_count: int) -> CountKnownCategories:
        """Return the request to count the rows with each category."""
        texts, lengths, categories = self.lists
        return CountKnownCategories(*view, texts, lengths, categories, min_count)


def count_all(view: TableView, agreed: AgreedTable) -> Flow[Replies]:
    """Ask for the count of values; return the replies of the clients with the agreed columns."""
    aggregation = Aggregation()
    aggregation.features = agreed.names
    replies = yield from aggregation.describe(CountValues(*view))
    if (n_features := agree_on_features(replies)) != len(agreed.names):
        raise ValueError(f"the schema has {len(agreed.names)} features, the clients {n_features}")
    return replies


def count_categories(
    view: TableView, described: Replies, agreed: AgreedTable, min_count: int
) -> Flow[tuple[Ints, ...]]:
    """Ask the described clients for the count of rows with each category; return the totals."""
    request = agreed.request(view, min_count)
    if not request.categories:
        return agreed.by_column(np.empty(0, np.int64))

    def contradiction(name: str, reply: KnownCategoryCounts) -> str | None:
        sums = [int(counts.sum()) for counts in split(reply.counts, request.lengths)]
        more = np.array(sums) > described[name].counts[request.columns]
        return ".counts must be at most the number of values" if more.any() else None

    replies = yield from ask(request, described, contradiction)
    total: Ints = np.sum([reply.counts for reply in replies.values()], axis=0).astype(np.int64)
    return agreed.by_column(total)


def sum_between(
    view: TableView, n_columns: int, numbers: Ints, limits: Floats, aggregation: Aggregation
) -> Flow[tuple[ColumnSums, Floats, Floats]]:
    """Return the last sums over the clients, the mean of each column, and its variance.

    There are two sums: the first counts the rows, so that the second has all digits, and finds the
    means, about which the second adds up the squares. Variances are divided by the counts. For
    masked sums, clients clip their values to the limits.

    Parameters
    ----------
    view : TableView
    n_columns : int
        The count of all columns.
    numbers : array (n_chosen,) of int64
        The columns to add up.
    limits : array (2, n_chosen)
        Their limits, within ±1e100.
    aggregation : Aggregation
    """
    n_rows, half = FIRST_ROWS, half_range(limits)
    centres = np.where(half < UNLIMITED / 2, limits[0] + half, 0.0)
    for _ in range(2):
        request, unit = SumColumns(*view, n_columns, numbers, centres), np.ones(len(numbers))
        if aggregation.masked:
            request = SumClippedColumns(*view, n_columns, numbers, centres, limits, n_rows)
            unit = half
        total, _ = yield from aggregation.sum(request)
        counts = np.maximum(total.counts[numbers], 1)
        shifts = unit * total.sums / counts
        variances = np.square(unit) * total.squares / counts - np.square(shifts)
        centres, n_rows = centres + shifts, max(total.n_rows, 1)
        if aggregation.masked:
            centres = np.clip(centres, *limits)
    return total, centres, np.maximum(variances, 0.0)
