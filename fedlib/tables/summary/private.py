"""Summaries with differential privacy: one request for all sums, each with noise.

A value is clipped to the bounds of its column and scaled to [-1, 1]. Then a row changes the number
of rows by 1, and for each column at most the number of values, the sum, the sum of squares and the
count of one bin, each by at most 1.
"""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Floats, Ints
from fedlib.core.bounds import Bounds
from fedlib.core.columns import NUMBER, RawTable
from fedlib.core.messages import Array, Message
from fedlib.core.protocol import Flow
from fedlib.protection.privacy import (
    NOISY,
    BoundsArray,
    NoisyRequest,
    Privacy,
    Sensitivity,
    add_noise,
    quantise,
    to_unit,
)
from fedlib.protection.secure.points import agree_on_bounded_features
from fedlib.protection.sums import NoisySums
from fedlib.tables.summary.agreed import AgreedTable, check_lengths, chosen_numbers, count_known
from fedlib.tables.summary.flow import TableSummary
from fedlib.tables.summary.messages import MAX_BINS, Category, split

__all__ = [
    "NoisyColumnSums",
]


class NoisyColumnSums(Message):
    """Sums over a client's rows, with noise.

    The number of rows, then for each column the number of values, the sum and the sum of squares of
    the scaled values, and the counts of the bins.
    """

    discloses = "counts, sums, sums of squares and histograms of the columns, with noise"
    values: Annotated[np.ndarray, Array("float64", ("values",), -NOISY, NOISY)]


class SumColumnsNoisily(NoisyRequest):
    """Clip your columns to bounds, count and sum them, and add noise."""

    discloses = "the bounds of the columns"
    reply = NoisyColumnSums
    privacy: Privacy
    bounds: BoundsArray
    n_bins: Annotated[int, msgspec.Meta(ge=0, le=MAX_BINS)]

    def reply_lengths(self) -> dict[str, int]:
        return {"values": 1 + self.bounds.shape[1] * (3 + self.n_bins)}

    def sensitivity(self) -> Sensitivity:
        return column_sensitivity(self.bounds.shape[1], self.n_bins)


class SumChosenColumnsNoisily(SumColumnsNoisily):
    """Clip some columns of numbers to bounds, count and sum them, and add noise."""

    discloses = "the bounds of the columns"
    columns: Annotated[np.ndarray, Array("int64", ("features",), ge=0, le=2**16)]


class SumAgreedColumnsNoisily(SumChosenColumnsNoisily):
    """Do this, count your rows with given categories of other columns, and add noise."""

    discloses = "the bounds of the columns, and the categories of the schema"
    texts: Annotated[np.ndarray, Array("int64", ("texts",), ge=0, le=2**16)]
    lengths: Annotated[np.ndarray, Array("int64", ("texts",), ge=0, le=2**16)]
    categories: tuple[Category, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lengths(self.lengths, self.categories)

    def reply_lengths(self) -> dict[str, int]:
        return {"values": super().reply_lengths()["values"] + len(self.categories)}

    def sensitivity(self) -> Sensitivity:
        return column_sensitivity(self.bounds.shape[1], self.n_bins, len(self.texts))


def column_sensitivity(n_columns: int, n_bins: int, n_texts: int = 0) -> Sensitivity:
    """Return the largest change by one row.

    Examples
    --------
    One row, and for each of two columns a value, its sum, its square and a bin. A column of text
    adds one category.

    >>> column_sensitivity(2, n_bins=10)
    Sensitivity(l1=9.0, l2=3.0, n_entries=9)
    """
    n = 1 + n_columns * (4 if n_bins else 3) + n_texts
    return Sensitivity(float(n), sqrt(n), n)


def sum_columns_noisily(
    table: RawTable, request: SumColumnsNoisily, n_shares: int
) -> NoisyColumnSums:
    """Return the noisy sums of a client. A text is a gap.

    Raises
    ------
    ValueError
        When the table has another number of columns. No row can cause it.
    """
    n_bins, sensitivity = request.n_bins, request.sensitivity()
    columns = getattr(request, "columns", np.arange(table.shape[1]))
    scaled = to_unit(chosen_numbers(table, columns), request.bounds)
    values = [np.array([float(len(table))])]
    for column in scaled.T:
        column = column[~np.isnan(column)]
        moments = quantise(np.column_stack([column, np.square(column)]), sensitivity).sum(axis=0)
        n_values = np.array([float(len(column))])
        values += [n_values, moments, _bin_counts(column, n_bins)]
    if isinstance(request, SumAgreedColumnsNoisily):
        lists = split(request.categories, request.lengths)
        values += count_known(table, request.texts, lists, min_count=1)
    noisy = add_noise(np.concatenate(values), sensitivity, request.privacy, n_shares)
    return NoisyColumnSums(noisy)


def _bin_counts(scaled: Floats, n_bins: int) -> Ints:
    """Return the number of scaled values in each of ``n_bins`` bins, which may be none."""
    if not n_bins:
        return np.zeros(0, np.int64)
    bins = np.minimum(((scaled + 1) / 2 * n_bins).astype(np.int64), n_bins - 1)
    return np.bincount(bins, minlength=n_bins)


def private_summary(bounds: Bounds, n_bins: int, aggregation: NoisySums) -> Flow[TableSummary]:
    """Return the server flow with noise; for the parameters see `FederatedSummary`.

    ``bounds`` are those of all columns, in their order. There is one request for data.
    """
    limits = bounds.limits
    request = SumColumnsNoisily(aggregation.privacy, limits, n_bins)
    aggregation.scale(request.sensitivity())  # too small an epsilon is refused before any message
    names = yield from agree_on_names(aggregation, bounds)
    total, _ = yield from aggregation.sum(request)
    return _summary(names, limits, n_bins, total.values)


def agree_on_names(aggregation: Aggregation, bounds: Bounds) -> Flow[tuple[str, ...]]:
    """Return the names of the columns, whose bounds are given; their positions if they have none.

    Raises
    ------
    ValueError
        When the clients disagree on the columns, or have other ones than the bounds.
    """
    n_columns = bounds.limits.shape[1]
    replies = yield from agree_on_bounded_features(aggregation, n_columns)
    stated = next((reply.features for reply in replies.values() if reply.features), ())
    return bounds.names or stated or tuple(map(str, range(n_columns)))


def agreed_private_summary(
    agreed: AgreedTable, n_bins: int, aggregation: NoisySums
) -> Flow[TableSummary]:
    """Return the server flow with noise and a schema, which has the limits of all columns."""
    numbers = agreed.numbers
    limits = agreed.ends[:, numbers]
    texts, lengths, categories = agreed.lists
    request = SumAgreedColumnsNoisily(
        aggregation.privacy, limits, n_bins, numbers, texts, lengths, categories
    )
    aggregation.scale(request.sensitivity())  # too small an epsilon is refused before any message
    aggregation.features = agreed.names
    yield from agree_on_bounded_features(aggregation, len(agreed.names))
    total, _ = yield from aggregation.sum(request)
    end = len(total.values) - len(categories)
    found = _summary(tuple(agreed.names[j] for j in numbers), limits, n_bins, total.values[:end])
    category_counts = agreed.by_column(as_counts(total.values[end:]))
    n_columns = len(agreed.names)

    def spread(values: NDArray[Any], empty: Any) -> NDArray[Any]:
        """Return the values of columns of numbers among those of all columns."""
        everything = np.full((n_columns, *values.shape[1:]), empty, values.dtype)
        everything[numbers] = values
        return everything

    counts = spread(found.counts, 0)
    counts[texts] = [int(category_counts[j].sum()) for j in texts]
    nothing = np.full(n_columns, np.nan)
    return TableSummary(
        features=agreed.names,
        kinds=agreed.kinds,
        n_rows=found.n_rows,
        counts=counts,
        means=spread(found.means, np.nan),
        variances=spread(found.variances, np.nan),
        minima=nothing,
        maxima=nothing,
        fractions=np.empty(0),
        quantiles=np.empty((0, n_columns)),
        rank_errors=np.empty((0, n_columns), np.int64),
        edges=spread(found.edges, np.nan),
        histograms=spread(found.histograms, 0),
        categories=agreed.categories,
        category_counts=category_counts,
        category_others=np.zeros(n_columns, np.int64),
    )


def noisy_moments(limits: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the variance of each column between limits, from noisy sums."""
    found = _summary(("",) * limits.shape[1], limits, 0, values)
    n_values = np.maximum(found.counts, 2)
    return found.means, found.variances * (n_values - 1) / n_values


def _summary(names: tuple[str, ...], limits: Floats, n_bins: int, values: Floats) -> TableSummary:
    """Return the statistics that follow from the noisy sums."""
    n = len(names)
    columns = values[1:].reshape(n, 3 + n_bins)
    low, half = limits[0], (limits[1] - limits[0]) / 2
    n_values = np.maximum(columns[:, 0], 1.0)
    means = np.clip(columns[:, 1] / n_values, -1, 1)
    variances = np.clip(columns[:, 2] / n_values - np.square(means), 0, 1)
    unbiased = n_values / np.maximum(n_values - 1, 1)
    nothing = np.full(n, np.nan)
    return TableSummary(
        features=names,
        kinds=np.full(n, NUMBER, np.uint8),
        n_rows=int(as_counts(values[:1])[0]),
        counts=as_counts(columns[:, 0]),
        means=low + half * (1 + means),
        variances=variances * unbiased * np.square(half),
        minima=nothing,
        maxima=nothing,
        fractions=np.empty(0),
        quantiles=np.empty((0, n)),
        rank_errors=np.empty((0, n), np.int64),
        edges=edges_between(limits, n_bins),
        histograms=as_counts(columns[:, 3:]),
        categories=((),) * n,
        category_counts=(np.empty(0, np.int64),) * n,
        category_others=np.zeros(n, np.int64),
    )


def edges_between(limits: Floats, n_bins: int) -> Floats:
    """Return the edges (n_columns, n_bins + 1) of bins of equal width between limits."""
    return np.linspace(limits[0], limits[1], n_bins + 1, axis=1)


def as_counts(noisy: Floats) -> Ints:
    """Return noisy counts as integers from 0 on."""
    return np.clip(np.rint(noisy), 0, NOISY).astype(np.int64)
