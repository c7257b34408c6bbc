"""Summaries with secure sums: counts, means and variances, and histograms between limits."""

from __future__ import annotations

import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.bounds import Bounds
from fedlib.core.columns import NUMBER
from fedlib.core.protocol import Flow
from fedlib.protection.secure.points import agree_on_bounded_features
from fedlib.tables.summary.agreed import UNLIMITED, AgreedTable, sum_between
from fedlib.tables.summary.flow import TableSummary, histogram_bins
from fedlib.tables.summary.messages import TableView
from fedlib.tables.summary.private import agree_on_names
from fedlib.tables.summary.quantiles import count_parts


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
