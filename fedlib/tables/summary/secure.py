"""Summaries with secure sums: counts, means, variances, and histograms between given bounds."""

from __future__ import annotations

import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.bounds import Bounds
from fedlib.core.columns import NUMBER
from fedlib.core.protocol import Flow
from fedlib.protection.secure.points import largest_magnitude
from fedlib.tables.summary.columns import agree_on_kinds
from fedlib.tables.summary.flow import TableSummary, histogram_bins
from fedlib.tables.summary.messages import (
    CountColumnMagnitudes,
    DescribeKinds,
    SumColumns,
    TableView,
)
from fedlib.tables.summary.quantiles import count_parts


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
    means, variances, minima, maxima = np.full((4, n_columns), np.nan)
    present = total.counts[columns] > 0
    means[columns[present]] = centres[present]
    several = total.counts[columns] > 1
    variances[columns[several]] = (about / np.maximum(n_values - 1, 1))[several]
    ends = np.full((2, n_columns), np.nan)
    for j, pair in given.items():
        ends[:, j] = pair
    edges, drawn, intervals = histogram_bins(ends, n_bins)
    histograms = np.zeros((n_columns, n_bins), np.int64)
    if drawn:
        bins, _ = yield from aggregation.sum(count_parts(view, intervals, 1))
        histograms[drawn] = bins.counts.reshape(len(drawn), n_bins)
    return TableSummary(
        features=names,
        kinds=kinds,
        n_rows=total.n_rows,
        counts=total.counts,
        means=means,
        variances=variances,
        minima=minima,
        maxima=maxima,
        fractions=np.empty(0),
        quantiles=np.empty((0, n_columns)),
        rank_errors=np.empty((0, n_columns), np.int64),
        edges=edges,
        histograms=histograms,
        categories=((),) * n_columns,
        category_counts=(np.empty(0, np.int64),) * n_columns,
        category_others=np.zeros(n_columns, np.int64),
    )
