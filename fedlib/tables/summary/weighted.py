"""Summaries of rows with weights: one request for the sums of all columns, on all kinds of sums.

A value is clipped to the limits of its column and scaled to [-1, 1], and a weight is clipped to the
largest one and divided by it. Then a row changes the number of rows by 1, and for each column at
most the number of values, their weight, the sum, the sum of squares and the weight in one bin, each
by at most 1; and for each column of text the number of rows of one category.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Annotated

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_fields import OF_CLIENT
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import Client
from fedlib.core.columns import NUMBER, RawTable
from fedlib.core.messages import Array, MessageError
from fedlib.core.points import Bounds
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.privacy import BoundsArray, Sensitivity, to_unit
from fedlib.protection.secure.points import MaxWeight, agree_on_bounded_features, clip_weights
from fedlib.protection.sums import NoisySums, RowTotals, SumRows
from fedlib.tables.summary.agreed import (
    UNLIMITED,
    AgreedTable,
    check_lengths,
    chosen_numbers,
    known_groups,
    sum_between,
)
from fedlib.tables.summary.flow import TableSummary, count_parts, histogram_bins
from fedlib.tables.summary.messages import MAX_BINS, Category, TableView, split
from fedlib.tables.summary.private import (
    Layout,
    agree_on_names,
    as_counts,
    edges_between,
    noisy_summary,
)


def secure_summary(bounds: Bounds, n_bins: int, aggregation: Aggregation) -> Flow[TableSummary]:
    """Return the server flow with secure sums; for the parameters see `FederatedSummary`.

    ``bounds`` are those of all columns, in their order.
    """
    names = yield from agree_on_names(aggregation, bounds)
    kinds = np.full(len(names), NUMBER, np.uint8)
    agreed = AgreedTable(names, kinds, ((),) * len(names), bounds.limits)
    return (yield from _summary(agreed, n_bins, aggregation))


def agreed_secure_summary(
    agreed: AgreedTable, n_bins: int, aggregation: Aggregation
) -> Flow[TableSummary]:
    """Return the server flow with secure sums and a schema, which has the limits of all columns."""
    aggregation.features = agreed.names
    yield from agree_on_bounded_features(aggregation, len(agreed.names))
    return (yield from _summary(agreed, n_bins, aggregation))


def _summary(agreed: AgreedTable, n_bins: int, aggregation: Aggregation) -> Flow[TableSummary]:
    """Sum the columns, count the bins and the known categories, and return the summary.

    The moments come from one sum, so they describe the same rows. The sum before it only determines
    its digits and the centres about which it sums.
    """
    view, n_columns, columns = TableView(), len(agreed.names), agreed.numbers
    limits = np.clip(agreed.ends[:, columns], -UNLIMITED, UNLIMITED)
    total, found, spread = yield from sum_between(view, n_columns, columns, limits, aggregation)
    names, kinds, categories, ends = agreed
    counts = total.counts
    means, variances, minima, maxima = np.full((4, n_columns), np.nan)
    n_values = counts[columns]
    means[columns[n_values > 0]] = found[n_values > 0]
    unbiased = spread * n_values / np.maximum(n_values - 1, 1)
    variances[columns[n_values > 1]] = unbiased[n_values > 1]
    edges, drawn, intervals = histogram_bins(ends, n_bins)
    histograms = np.zeros((n_columns, n_bins), np.int64)
    if drawn:
        bins, _ = yield from aggregation.sum(count_parts(view, intervals, 1))
        histograms[drawn] = bins.counts.reshape(len(drawn), n_bins)
    category_counts = (np.empty(0, np.int64),) * n_columns
    others = np.zeros(n_columns, np.int64)
    if any(categories):
        known, _ = yield from aggregation.sum(agreed.request(view, min_count=1))
        category_counts = agreed.by_column(known.counts)
        others = agreed.others(counts, category_counts)
    return TableSummary(
        features=names,
        kinds=kinds,
        n_rows=total.n_rows,
        counts=counts,
        means=means,
        variances=variances,
        minima=minima,
        maxima=maxima,
        fractions=np.empty(0),
        quantiles=np.empty((0, n_columns)),
        rank_errors=np.empty((0, n_columns), np.int64),
        edges=edges,
        histograms=histograms,
        categories=categories,
        category_counts=category_counts,
        category_others=others,
    )


ROUNDING = 1e-9  # relative, of the sums of an honest client


class SumWeightedColumns(SumRows):
    """Clip your values and weights, sum the columns of numbers with weights, and count the rest."""

    discloses = "the limits of the columns, the largest weight, and the categories of the schema"
    bounds: BoundsArray
    columns: Annotated[np.ndarray, Array("int64", ("features",), ge=0, below=OF_CLIENT)]
    n_bins: Annotated[int, msgspec.Meta(ge=0, le=MAX_BINS)]
    max_weight: MaxWeight
    texts: Annotated[np.ndarray, Array("int64", ("texts",), ge=0, below=OF_CLIENT)]
    lengths: Annotated[np.ndarray, Array("int64", ("texts",), ge=0, le=2**16)]
    categories: tuple[Category, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lengths(self.lengths, self.categories)
        if len(np.unique(self.columns)) < len(self.columns):  # each with limits of its own
            raise MessageError("SumWeightedColumns.columns must be different columns")

    @property
    def n_values(self) -> int:
        return 1 + len(self.columns) * (4 + self.n_bins) + len(self.categories)

    def effective(self, n_features: int) -> dict[str, int]:
        """Return that rare categories are counted, too, if they are in the clear or masked."""
        return {"min_count": 1} if self.categories and self.privacy is None else {}

    def work(self) -> float:
        return float(4 + self.n_bins + len(self.categories))

    def sensitivity(self) -> Sensitivity:
        """Return the largest change: 1 for each entry that one row changes."""
        n = 1 + len(self.columns) * (5 if self.n_bins else 4) + len(self.texts)
        return Sensitivity(float(n), sqrt(n), n)

    def bins(self, values: Floats) -> Ints:
        """Return the bin of each value (n_rows, n_columns) within the limits."""
        edges = edges_between(self.bounds, self.n_bins)
        found = [
            np.searchsorted(inner, column, side="right")
            for inner, column in zip(edges[:, 1:-1], values.T, strict=True)
        ]
        return np.array(found, np.int64).reshape(len(edges), len(values)).T

    def terms(self, X: Floats) -> Floats:
        """Return what rows add; a row of ``X`` is its weight, its numbers, and its categories."""
        d = len(self.columns)
        weight, numbers, groups = np.split(X, [1, 1 + d], axis=1)
        present = ~np.isnan(numbers)
        weights = np.clip(weight, 0.0, self.max_weight) / self.max_weight * present
        values = np.where(present, numbers, self.bounds[0])
        scaled = to_unit(values, self.bounds)
        moments = [present.astype(float), weights, weights * scaled, weights * np.square(scaled)]
        blocks = np.stack(moments, axis=2)
        if self.n_bins:
            clipped = np.clip(values, *self.bounds)
            hot = self.bins(clipped)[:, :, np.newaxis] == np.arange(self.n_bins)
            blocks = np.concatenate([blocks, weights[:, :, np.newaxis] * hot], axis=2)
        known = [
            column[:, np.newaxis] == np.arange(length)
            for column, length in zip(groups.T, self.lengths.tolist(), strict=True)
        ]
        ones = np.ones((len(X), 1))
        return np.hstack([ones, blocks.reshape(len(X), d * (4 + self.n_bins)), *known])


def rows_of(table: RawTable, request: SumWeightedColumns, weight: Floats) -> Floats:
    """Return the rows of a table as `SumWeightedColumns.terms` takes them."""
    lists = split(request.categories, request.lengths)
    groups = known_groups(table, request.texts, lists)
    return np.column_stack([weight, chosen_numbers(table, request.columns), *groups])


def sum_weighted_columns(
    table: RawTable, request: SumWeightedColumns, weight: Floats | None, client: Client
) -> RowTotals:
    """Return the sums of a client; without weights they are 1. A text is a gap of a number.

    Raises
    ------
    ValueError
        When the table has another number of columns. No row can cause it.
    """
    weight = np.ones(len(table)) if weight is None else weight
    weight = clip_weights(weight, request.max_weight)
    return request.total(rows_of(table, request, weight), client)


def weighted_summary(
    agreed: AgreedTable,
    n_bins: int,
    max_weight: float,
    aggregation: Aggregation,
    describe: Flow[tuple[str, ...]],
) -> Flow[TableSummary]:
    """Return the server flow; for the parameters see `FederatedSummary`.

    Parameters
    ----------
    agreed : AgreedTable
        All columns; those of numbers have limits. ``describe`` replaces the names.
    n_bins : int
    max_weight : float
    aggregation : Aggregation
    describe : flow
        Lets the clients agree on their columns, and returns the names.
    """
    numbers, n_columns = agreed.numbers, len(agreed.kinds)
    limits, half = agreed.ends[:, numbers], np.diff(agreed.ends[:, numbers], axis=0)[0] / 2
    request = SumWeightedColumns(
        limits, numbers, n_bins, max_weight, *agreed.lists, privacy=aggregation.privacy
    )
    if isinstance(aggregation, NoisySums):
        aggregation.scale(request.sensitivity())  # an epsilon too small is refused at once
    agreed = agreed._replace(names=(yield from describe))
    if aggregation.masked and aggregation.privacy is None:  # the first sum finds the digits
        first, _ = yield from aggregation.sum(request)
        n_rows = max(round(first.values[0]), 1)
        request = msgspec.structs.replace(request, n_rows=n_rows)
    total, clients = yield from aggregation.sum(
        request, None if request.privacy else _impossible(request)
    )
    noise = aggregation.noise(request, len(clients))
    if noise is not None:
        layout = Layout(agreed.names, limits, n_bins, numbers, *agreed.lists[:2], max_weight)
        return noisy_summary(layout, total.values, noise, agreed)
    end = 1 + len(numbers) * (4 + n_bins)
    columns = total.values[1:end].reshape(len(numbers), 4 + n_bins)
    weights = max_weight * np.maximum(columns[:, 1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.clip(columns[:, 2] / columns[:, 1], -1, 1)
        spread = np.clip(columns[:, 3] / columns[:, 1] - np.square(means), 0, 1)
        variances = spread * np.square(half) * weights / (weights - 1)
    counts = np.zeros(n_columns, np.int64)
    counts[numbers] = as_counts(columns[:, 0])
    category_counts = agreed.by_column(as_counts(total.values[end:]))
    for j in agreed.lists[0]:
        counts[j] = category_counts[j].sum()
    edges, histograms = np.full((n_columns, n_bins + 1), np.nan), np.zeros((n_columns, n_bins))
    edges[numbers] = edges_between(limits, n_bins)
    histograms[numbers] = max_weight * np.maximum(columns[:, 4:], 0.0)
    nothing = np.full(n_columns, np.nan)

    def of_all(values: Floats, valid: Bools) -> Floats:
        """Return the values of columns of numbers among all columns, NaN where not valid."""
        everything = nothing.copy()
        everything[numbers] = np.where(valid, values, np.nan)
        return everything

    return TableSummary(
        features=agreed.names,
        kinds=agreed.kinds,
        n_rows=int(as_counts(total.values[:1])[0]),
        counts=counts,
        means=of_all(limits[0] + half * (1 + means), weights > 0),
        variances=of_all(variances, weights > 1),
        minima=nothing,
        maxima=nothing,
        fractions=np.empty(0),
        quantiles=np.empty((0, n_columns)),
        rank_errors=np.empty((0, n_columns), np.int64),
        edges=edges,
        histograms=histograms,
        categories=agreed.categories,
        category_counts=category_counts,
        category_others=np.zeros(n_columns, np.int64),
        weights=of_all(weights, weights >= 0),
    )


def agree_on_schema(aggregation: Aggregation, names: tuple[str, ...]) -> Flow[tuple[str, ...]]:
    """Return the names of a schema's columns, which the clients must have."""
    aggregation.features = names
    yield from agree_on_bounded_features(aggregation, len(names))
    return names


def _impossible(request: SumWeightedColumns) -> Callable[[Replies], dict[str, str]]:
    """Return the check of single replies: no sum exceeds the weight, nor the weight the count."""
    d, n_bins = len(request.columns), request.n_bins

    def check(replies: Replies) -> dict[str, str]:
        reasons = {}
        for name, reply in replies.items():
            n_rows, rest = reply.values[0], reply.values[1:]
            block = rest[: d * (4 + n_bins)].reshape(d, 4 + n_bins)
            limits = np.column_stack([np.full(d, n_rows), block[:, 0], block[:, 1], block[:, 1]])
            sizes = np.abs(block[:, :4])
            binned = block[:, 4:].sum(axis=1) if n_bins else np.zeros(d)
            bad = (sizes > limits * (1 + ROUNDING) + ROUNDING).any() or (block[:, 4:] < 0).any()
            bad |= bool((binned > block[:, 1] * (1 + ROUNDING) + ROUNDING).any())
            others = rest[d * (4 + n_bins) :]
            if n_rows < 0 or bad or ((others < 0) | (others > n_rows)).any():
                reasons[name] = "RowTotals.values must be sums of rows within max_weight"
        return reasons

    return check
