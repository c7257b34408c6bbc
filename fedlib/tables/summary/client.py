"""The client of federated summaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlib.core.array_types import Bools, Ints
from fedlib.core.client import Client, by_rounding, handles, partitions
from fedlib.core.columns import RawTable, category_groups, present, read_columns
from fedlib.core.messages import Message
from fedlib.core.points import Moments, check_weights, with_weights
from fedlib.protection.secure.fixed_point import add_rows, summed
from fedlib.protection.secure.points import DescribeFeatures, Features
from fedlib.protection.sums import RowTotals
from fedlib.tables.summary.from_schema import (
    CountKnownCategories,
    CountValues,
    KnownCategoryCounts,
    ValueCounts,
    check_columns,
    chosen_numbers,
    count_known,
    known_groups,
)
from fedlib.tables.summary.messages import (
    BinCounts,
    CategoryCounts,
    ColumnDescription,
    ColumnSums,
    CountBins,
    CountCategories,
    DescribeColumns,
    Extremes,
    FindExtremes,
    SumClippedColumns,
    SumColumns,
    SumValues,
    TableRequest,
    TableView,
    ValueMoments,
    bins_of_keys,
    count_keys,
    to_keys,
)
from fedlib.tables.summary.private import (
    NoisyColumnSums,
    SumAgreedColumnsNoisily,
    SumColumnsNoisily,
    SumWeightedColumns,
    rows_of,
    sum_columns_noisily,
    sum_weighted_columns,
)


class SummaryClient(Client):
    """A client that holds a raw table.

    Parameters
    ----------
    X : DataFrame or array-like (n_rows, n_columns), or a tuple ``(X, sample_weight)``
        Numbers and text with gaps; see `fedlib.core.columns`. Only `SumWeightedColumns` uses the
        weights.

    Attributes
    ----------
    counted : array (n_rows,) of bool, or None
        The rows that the statistics describe; None: all rows.
    raw : bool
        True: the client takes tables with text and gaps.
    describes : bool
        True: of a schema, it also takes the columns with classes, weights and margins.

    Raises
    ------
    ValueError
        When a column contains anything except numbers, text and gaps, or a weight is not valid.
    """

    raw: ClassVar[bool] = True
    describes: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    open_requests: tuple[type[Message], ...] = (DescribeFeatures,)
    X: RawTable
    counted: Bools | None = None

    def __init__(self, X: Any):
        X, weight = with_weights(X)
        self.X = read_columns(X)
        self.weight = None if weight is None else check_weights(weight, len(self.X))
        self.features = self.X.features

    @property
    def described(self) -> RawTable:
        """The rows of the table that the statistics describe."""
        return self.X if self.counted is None else self.X.rows(self.counted)

    def view(self, request: TableRequest | TableView) -> RawTable:
        """Return the table as a request wants it: categories as text, gaps dropped or filled."""
        table = self.described.with_text(request.categorical)
        if request.drop_gaps:
            table = table.rows(table.complete)
        return table.filled(request.fill_columns.tolist(), request.fill_values.tolist())

    def _values(self, request: TableRequest, columns: Ints) -> list[NDArray[Any]]:
        """Return the values of columns of numbers, without gaps."""
        table = self.view(request)
        check_columns(table, columns)
        numbers = [table.numbers_or_gaps(j) for j in columns.tolist()]
        return [column[~np.isnan(column)] for column in numbers]

    @handles(DescribeColumns)
    def describe_columns(self, request: DescribeColumns | TableView) -> ColumnDescription:
        table = self.view(request)
        return ColumnDescription(len(table), table.kinds, table.counts, self.features)

    @handles(DescribeFeatures)
    def describe_features(self, request: DescribeFeatures) -> Features:
        return Features(self.X.shape[1], self.features)

    @handles(SumColumnsNoisily)
    def sum_columns_noisily(self, request: SumColumnsNoisily) -> NoisyColumnSums:
        return sum_columns_noisily(self.described, request, self.n_shares)

    @handles(SumAgreedColumnsNoisily)
    def sum_agreed_columns(self, request: SumAgreedColumnsNoisily) -> NoisyColumnSums:
        return sum_columns_noisily(self.described, request, self.n_shares)

    @handles(SumWeightedColumns)
    def sum_weighted_columns(self, request: SumWeightedColumns) -> RowTotals:
        return sum_weighted_columns(self.X, request, self.weight, self)

    @partitions(SumWeightedColumns, terms=("bounds", "max_weight"))
    def rows_with_weights(self, request: SumWeightedColumns) -> Iterable[Ints]:
        """Yield the rows with a value in each column, by bin, and those of each category.

        What is clipped is a group: so the sums tell nothing about fewer rows that lie beyond a
        limit of the request.
        """
        rows = rows_of(
            self.X, request, np.ones(len(self.X)) if self.weight is None else self.weight
        )
        d = len(request.columns)
        numbers, groups = rows[:, 1 : 1 + d], rows[:, 1 + d :]
        yield (rows[:, 0] > request.max_weight).astype(np.int64)
        bins = request.bins(np.clip(numbers, *request.bounds)) if request.n_bins else 0 * numbers
        yield from np.where(np.isnan(numbers), -1, bins).astype(np.int64).T
        yield from by_rounding(numbers, np.abs(request.bounds).max(axis=0))
        yield from (numbers < request.bounds[0]).astype(np.int64).T
        yield from (numbers > request.bounds[1]).astype(np.int64).T
        yield from groups.astype(np.int64).T

    @handles(SumColumns)
    def sum_columns(self, request: SumColumns) -> ColumnSums:
        table = self.view(request)
        moments = self._moments(request, table).about(request.centres)
        return ColumnSums(len(table), table.counts, moments.remainders, moments.squares)

    @handles(SumClippedColumns)
    def sum_clipped_columns(self, request: SumClippedColumns) -> ColumnSums:
        table = self.view(request)
        scaled = request.scaled(chosen_numbers(table, request.columns))
        counts = table.counts.copy()
        counts[request.columns] = np.count_nonzero(~np.isnan(scaled), axis=0)
        terms = {"sums": np.nan_to_num(scaled), "squares": np.nan_to_num(np.square(scaled))}
        digits = self.row_digits(request)
        sums = {k: add_rows(of_rows, digits, k)[0] for k, of_rows in terms.items()}
        return summed(ColumnSums, digits, n_rows=len(table), counts=counts, **sums)

    @handles(SumValues)
    def sum_values(self, request: SumValues) -> ValueMoments:
        return ValueMoments(*self._moments(request, self.view(request))[1:])

    def _moments(self, request: SumColumns | SumValues, table: RawTable) -> Moments:
        """Return those of the chosen columns; what fills gaps is added as a constant."""
        check_columns(table, request.columns)
        fills = dict(zip(request.fill_columns[::-1], request.fill_values[::-1], strict=True))
        unfilled = table
        if fills:
            unfilled = self.view(TableView(request.categorical, request.drop_gaps))
        chosen = request.columns.tolist()
        moments = Moments.of([one[~np.isnan(one)] for one in map(unfilled.numbers_or_gaps, chosen)])
        if not fills:
            return moments
        values = np.array([fills.get(j, 0.0) for j in chosen])
        filled = np.where([j in fills for j in chosen], len(table) - moments.counts, 0)
        return moments.with_constants(filled, values)

    @handles(FindExtremes)
    def find_extremes(self, request: FindExtremes) -> Extremes:
        columns = self._values(request, request.columns)
        ends = [(v.min(), v.max()) if len(v) else (0.0, 0.0) for v in columns]
        minima, maxima = np.array(ends, np.float64).reshape(-1, 2).T.copy()
        return Extremes(minima, maxima)

    @handles(CountBins)
    def count_bins(self, request: CountBins) -> BinCounts:
        chosen, rows = np.unique(request.columns, return_inverse=True)
        keys = [to_keys(values) for values in self._values(request, chosen)]
        ends = zip(rows.tolist(), request.low.tolist(), request.high.tolist(), strict=True)
        counts = [count_keys(keys[i], low, high, request.n_bins) for i, low, high in ends]
        return BinCounts(np.array(counts, np.int64).reshape(-1, request.n_bins))

    @handles(CountCategories)
    def count_categories(self, request: CountCategories) -> CategoryCounts:
        table = self.view(request)
        names: list[str] = []
        found: list[Ints] = [np.empty(0, np.int64)]
        lengths, others = [], []
        for j in request.columns.tolist():
            texts = table.texts(j)
            values = texts[present(texts)].astype(str)
            categories, counts = np.unique(values, return_counts=True)
            large = counts >= request.min_count
            others.append(int(counts[~large].sum()))
            categories, counts = categories[large], counts[large]
            if len(categories) > request.max_categories:
                raise ValueError(
                    f"column {table.labels[j]!r} must have at most"
                    f" max_categories={request.max_categories} categories, got {len(categories)};"
                    " leave it out, or set max_categories or min_category_count"
                )
            names += categories.tolist()
            found.append(counts.astype(np.int64))
            lengths.append(len(categories))
        return CategoryCounts(
            np.array(lengths, np.int64),
            tuple(names),
            np.concatenate(found),
            np.array(others, np.int64),
        )

    @handles(CountValues)
    def count_values(self, request: CountValues) -> ValueCounts:
        table = self.view(request)
        return ValueCounts(len(table), table.counts, self.features)

    @handles(CountKnownCategories)
    def count_known_categories(self, request: CountKnownCategories) -> KnownCategoryCounts:
        counts = count_known(
            self.view(request), request.columns, request.by_column(), request.min_count
        )
        return KnownCategoryCounts(np.concatenate([np.empty(0, np.int64), *counts]))

    @partitions(CountKnownCategories, terms=())
    def rows_by_known_category(self, request: CountKnownCategories) -> Iterable[Ints]:
        """Yield the category of each row; the rows with other texts are one group."""
        table, lists = self.view(request), request.by_column()
        of_columns = known_groups(table, request.columns, lists)
        for j, groups, names in zip(request.columns.tolist(), of_columns, lists, strict=True):
            counts = np.bincount(groups + 1, minlength=len(names) + 1)
            other = (groups < 0) | (counts[groups + 1] < request.min_count)
            other &= present(table.texts(j))
            yield self._all_rows(request, np.where(other, len(names), groups))

    # Not for `SumClippedColumns`: its limits tell values of one group apart.
    @partitions(DescribeColumns, CountValues, SumColumns, SumValues, terms=())
    def rows_with_values(
        self, request: DescribeColumns | CountValues | SumColumns | SumValues
    ) -> Iterable[Ints]:
        """Yield the rows with a value in each column; filled gaps do not count."""
        chosen = getattr(request, "columns", np.arange(self.X.shape[1])).tolist()
        unfilled = self.view(TableView(request.categorical, request.drop_gaps))
        yield self._all_rows(request, np.zeros(len(unfilled), np.int64))
        for j in chosen:
            yield self._all_rows(request, present(unfilled.columns[j]) - 1)

    @partitions(CountBins, terms=())
    def bins(self, request: CountBins) -> Iterable[Ints]:
        ends = zip(request.low.tolist(), request.high.tolist(), strict=True)
        table = self.view(request)
        for j, (low, high) in zip(request.columns.tolist(), ends, strict=True):
            numbers = table.numbers_or_gaps(j)
            of_rows = bins_of_keys(to_keys(numbers), low, high, request.n_bins)
            yield self._all_rows(request, np.where(np.isnan(numbers), -1, of_rows))

    @partitions(CountCategories, terms=())
    def rows_by_category(self, request: CountCategories) -> Iterable[Ints]:
        """Yield the category of each row; those that are withheld are one group."""
        table = self.view(request)
        for j in request.columns.tolist():
            groups = category_groups(table.texts(j), request.min_count)
            yield self._all_rows(request, groups)

    def _all_rows(self, request: TableRequest, labels: Ints) -> Ints:
        """Return the groups of all rows from those of the rows in a request's view."""
        groups = np.full(len(self.X), -1, np.int64)
        kept = np.ones(len(self.X), bool) if self.counted is None else self.counted
        if request.drop_gaps:
            kept = kept & self.X.with_text(request.categorical).complete
        groups[kept] = labels
        return groups
