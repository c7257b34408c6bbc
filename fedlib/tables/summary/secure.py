"""Summaries with secure sums: counts, means, variances, and histograms between given bounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Floats, Ints
from fedlib.core.bounds import Bounds
from fedlib.core.columns import NUMBER
from fedlib.core.protocol import Flow
from fedlib.protection.secure.points import agree_on_bounded_features, largest_magnitude
from fedlib.tables.summary.agreed import UNLIMITED, AgreedTable, sum_between
from fedlib.tables.summary.columns import agree_on_kinds
from fedlib.tables.summary.flow import TableSummary, histogram_bins
from fedlib.tables.summary.messages import (
    CountColumnMagnitudes,
    DescribeKinds,
    SumColumns,
    TableView,
)
from fedlib.tables.summary.quantiles import count_parts


class _Moments(NamedTuple):
    """The counts of rows and of all columns' values, and the moments of the columns of numbers.

    ``squares`` are the sums of squared deviations from the means.
    """

    n_rows: int
    counts: Ints
    means: Floats
    squares: Floats


def secure_summary(
    view: TableView, bounds: Bounds, n_bins: int, aggregation: Aggregation
) -> Flow[TableSummary]:
    """Return the server flow with secure sums; for the parameters see `FederatedSummary`.

    All statistics except the histograms come from one sum, so they describe the same rows. The sums
    before it only determine its digits and the centres about which it sums.
    """
    replies = yield from aggregation.describe(DescribeKinds(*view), agree_on_kinds)
    names, kinds = agree_on_kinds(replies)
    given = bounds.by_index(names)
    columns, n_columns = np.flatnonzero(kinds == NUMBER).astype(np.int64), len(kinds)
    found, clients = yield from aggregation.sum(CountColumnMagnitudes(*view, columns))
    n_rows, centres = max(found.n_rows, 1), np.zeros(len(columns))
    largest = np.array([largest_magnitude(row, clients) for row in found.magnitudes], int)
    squares = n_rows * np.ldexp(1.0, 2 * largest)
    for least in (2.0**-48 * squares, 0.0):  # about 0 and then about the means: no digits cancel
        limits = {"sums": np.sqrt(n_rows * squares).tolist(), "squares": squares.tolist()}
        request = SumColumns(*view, n_columns, columns, centres)
        total, _ = yield from aggregation.sum(request, limits)
        n_values = np.maximum(total.counts[columns], 1)
        shifts = total.sums / n_values
        about = np.maximum(total.squares - np.square(shifts) * n_values, 0.0)
        centres, squares = centres + shifts, about + least
    ends = np.full((2, n_columns), np.nan)
    for j, pair in given.items():
        ends[:, j] = pair
    moments = _Moments(total.n_rows, total.counts, centres, about)
    agreed = AgreedTable(names, kinds, ((),) * n_columns, ends)
    return (yield from _summary(view, agreed, n_bins, moments, aggregation))


def agreed_secure_summary(
    view: TableView, agreed: AgreedTable, n_bins: int, aggregation: Aggregation
) -> Flow[TableSummary]:
    """Return the server flow with secure sums and a schema, which has the limits of all columns."""
    aggregation.features = agreed.names
    yield from agree_on_bounded_features(aggregation, len(agreed.names))
    numbers = agreed.numbers
    limits = np.clip(agreed.ends[:, numbers], -UNLIMITED, UNLIMITED)
    total, means, variances = yield from sum_between(
        view, len(agreed.names), numbers, limits, aggregation
    )
    squares = variances * np.maximum(total.counts[numbers], 1)
    moments = _Moments(total.n_rows, total.counts, means, squares)
    return (yield from _summary(view, agreed, n_bins, moments, aggregation))


def _summary(
    view: TableView,
    agreed: AgreedTable,
    n_bins: int,
    moments: _Moments,
    aggregation: Aggregation,
) -> Flow[TableSummary]:
    """Count the bins and the known categories, and return the summary."""
    names, kinds, categories, ends = agreed
    columns, n_columns, counts = agreed.numbers, len(names), moments.counts
    means, variances, minima, maxima = np.full((4, n_columns), np.nan)
    n_values = counts[columns]
    means[columns[n_values > 0]] = moments.means[n_values > 0]
    unbiased = moments.squares / np.maximum(n_values - 1, 1)
    variances[columns[n_values > 1]] = unbiased[n_values > 1]
    edges, drawn, intervals = histogram_bins(ends, n_bins)
    histograms = np.zeros((n_columns, n_bins), np.int64)
    if drawn:
        bins, _ = yield from aggregation.sum(count_parts(view, intervals, 1))
        histograms[drawn] = bins.counts.reshape(len(drawn), n_bins)
    category_counts = (np.empty(0, np.int64),) * n_columns
    others = np.zeros(n_columns, np.int64)
    if any(categories):
        found, _ = yield from aggregation.sum(agreed.request(view, min_count=1))
        category_counts = agreed.by_column(found.counts)
        others = agreed.others(counts, category_counts)
    return TableSummary(
        features=names,
        kinds=kinds,
        n_rows=moments.n_rows,
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
