"""Summaries with differential privacy: one request for all sums, each with noise.

A value is clipped to the bounds of its column and scaled to [-1, 1]. Then a row changes the number
of rows by 1, and for each column at most the number of values, the sum, the sum of squares and the
count of one bin, each by at most 1.
"""

from __future__ import annotations

import warnings
from math import sqrt
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_fields import OF_CLIENT
from fedlib.core.array_types import Floats, Ints
from fedlib.core.columns import NUMBER, RawTable
from fedlib.core.messages import Array, Message
from fedlib.core.names import listed
from fedlib.core.points import Bounds
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
from fedlib.protection.privacy.noise import Noise, estimate, hides, ratio
from fedlib.protection.secure.points import agree_on_bounded_features
from fedlib.protection.sums import NoisySums
from fedlib.tables.summary.agreed import AgreedTable, check_lengths, chosen_numbers, count_known
from fedlib.tables.summary.flow import TableSummary
from fedlib.tables.summary.messages import MAX_BINS, Category, split


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
    effortless = ("n_bins",)
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
    columns: Annotated[np.ndarray, Array("int64", ("features",), ge=0, below=OF_CLIENT)]


class SumAgreedColumnsNoisily(SumChosenColumnsNoisily):
    """Do this, count your rows with given categories of other columns, and add noise."""

    discloses = "the bounds of the columns, and the categories of the schema"
    texts: Annotated[np.ndarray, Array("int64", ("texts",), ge=0, below=OF_CLIENT)]
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
    total, clients = yield from aggregation.sum(request)
    nothing = np.empty(0, np.int64)
    layout = Layout(names, limits, n_bins, np.arange(len(names)), nothing, nothing)
    return noisy_summary(layout, total.values, aggregation.noise(request, len(clients)))


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
    total, clients = yield from aggregation.sum(request)
    layout = Layout(agreed.names, limits, n_bins, numbers, texts, lengths)
    return noisy_summary(layout, total.values, aggregation.noise(request, len(clients)), agreed)


class Layout(NamedTuple):
    """The sums over rows in a reply with noise, which describe the columns ``names``.

    First comes the count of rows. For each column in ``numbers`` follow the count of its values,
    with a ``max_weight`` the sum of their weights, the sums of the scaled values and of their
    squares, and the bins. For each column in ``texts`` follow the counts of its categories.
    """

    names: tuple[str, ...]
    limits: Floats
    n_bins: int
    numbers: Ints
    texts: Ints
    lengths: Ints
    max_weight: float | None = None

    def blocks(self, sums: Floats) -> tuple[Floats, Floats]:
        """Return the sums of the columns of numbers (n, n_numbers, k), and the other ones."""
        d, k = len(self.numbers), (3 if self.max_weight is None else 4) + self.n_bins
        return sums[:, 1 : 1 + d * k].reshape(len(sums), d, k), sums[:, 1 + d * k :]

    def results(self, sums: Floats) -> Floats:
        """Return counts, gaps, means and variances (n, 4 * n_columns) of sums (n, n_values)."""
        (blocks, categories), first = self.blocks(sums), self.max_weight is not None
        count, mean, variance = np.full((3, len(sums), len(self.names)), np.nan)
        count[:, self.numbers] = blocks[..., 0]
        ends = np.cumsum(self.lengths)
        for j, start, end in zip(self.texts, ends - self.lengths, ends, strict=True):
            count[:, j] = categories[:, start:end].sum(axis=1)
        weight, total, squares = np.moveaxis(blocks[..., first : first + 3], 2, 0)
        low, half = self.limits[0], np.diff(self.limits, axis=0)[0] / 2
        scaled, rows = ratio(total, weight), weight * (self.max_weight or 1.0)
        spread = ratio(squares, weight) - np.square(scaled)
        mean[:, self.numbers] = low + half * (1 + scaled)
        variance[:, self.numbers] = spread * np.square(half) * ratio(rows, rows - 1)
        return np.hstack([count, sums[:, :1] - count, mean, variance])

    @property
    def possible(self) -> Floats:
        """The possible values (4 * n_columns, 2) of the results."""
        ends = np.tile([0.0, np.inf], (4, len(self.names), 1))
        ends[2, self.numbers] = self.limits.T
        return ends.reshape(-1, 2)


def noisy_summary(
    layout: Layout, sums: Floats, noise: Noise, agreed: AgreedTable | None = None
) -> TableSummary:
    """Return the statistics that follow from noisy sums; a ``layout`` says what these are.

    Warns
    -----
    UserWarning
        When the noise hides means or variances, which are NaN, or most frequent categories.
    """
    names, n = layout.names, len(layout.names)
    found = estimate(layout.results, sums, noise, layout.possible)
    _, _, means, variances = found.values.reshape(4, n)
    hidden = found.hidden.reshape(4, n)
    blocks, categories = (of[0] for of in layout.blocks(sums[np.newaxis]))
    unknown = [
        f"the {what} of {names[j]!r}"
        for what, of_columns in (("mean", hidden[2]), ("variance", hidden[3]))
        for j in layout.numbers
        if of_columns[j]
    ]
    if unknown:
        warnings.warn(hides(unknown), stacklevel=2)
    everything = np.array([[-np.inf, np.inf]])
    one_count = estimate(lambda one: one, np.zeros(1), noise, everything).intervals[0]
    error = float(np.abs(one_count).max())
    edges, histograms = np.full((n, layout.n_bins + 1), np.nan), np.zeros((n, layout.n_bins))
    edges[layout.numbers] = edges_between(layout.limits, layout.n_bins)
    histograms[layout.numbers] = blocks[:, blocks.shape[1] - layout.n_bins :]
    category_counts = tuple(np.empty(0, np.int64) for _ in names)
    if agreed is not None:
        category_counts = agreed.by_column(as_counts(categories))
    close = [names[j] for j in layout.texts if not leads(category_counts[j], error)]
    if close:
        warnings.warn(
            "the noise is too large for the rows: the most frequent category (top) of"
            f" {listed(close)} is None, because no count is more than two errors of a count"
            f" ({2 * error:.3g}) above the next; more rows or a larger epsilon help",
            stacklevel=2,
        )
    nothing, first, weights = np.full(n, np.nan), layout.max_weight, None
    if first is not None:
        weights = nothing.copy()
        weights[layout.numbers] = first * np.maximum(blocks[:, 1], 0.0)
    return TableSummary(
        features=names,
        kinds=np.full(n, NUMBER, np.uint8) if agreed is None else agreed.kinds,
        n_rows=int(as_counts(sums[:1], -NOISY)[0]),
        counts=as_counts(layout.results(sums[np.newaxis])[0, :n], -NOISY),
        means=means,
        variances=variances,
        minima=nothing,
        maxima=nothing,
        fractions=np.empty(0),
        quantiles=np.empty((0, n)),
        rank_errors=np.empty((0, n), np.int64),
        edges=edges,
        histograms=as_counts(histograms) if first is None else first * np.maximum(histograms, 0.0),
        categories=((),) * n if agreed is None else agreed.categories,
        category_counts=category_counts,
        category_others=np.zeros(n, np.int64),
        weights=weights,
        intervals=found.intervals.reshape(4, n, 2),
        count_error=error,
    )


def noisy_moments(limits: Floats, values: Floats, noise: Noise | None) -> tuple[Floats, Floats]:
    """Return the mean and the variance of each column between limits, from noisy sums.

    They scale columns, so that they are cut at what is possible. A variance whose interval begins
    at 0 is NaN: the column may be constant.
    """

    def spreads(sums: Floats) -> Floats:
        counts, totals, squares = np.moveaxis(sums.reshape(len(sums), -1, 3), 2, 0)
        return ratio(squares, counts) - np.square(ratio(totals, counts))

    possible = np.tile([0.0, 1.0], (limits.shape[1], 1))
    unknown = estimate(spreads, values[1:], noise, possible).intervals[:, 0] <= 0
    columns, half = values[1:].reshape(limits.shape[1], 3), np.diff(limits, axis=0)[0] / 2
    n_values = np.maximum(columns[:, 0], 1.0)
    means = np.clip(columns[:, 1] / n_values, -1, 1)
    variances = np.clip(columns[:, 2] / n_values - np.square(means), 0, 1)
    variances = np.where(unknown, np.nan, variances * np.square(half))
    return limits[0] + half * (1 + means), variances


def edges_between(limits: Floats, n_bins: int) -> Floats:
    """Return the edges (n_columns, n_bins + 1) of bins of equal width between limits."""
    return np.linspace(limits[0], limits[1], n_bins + 1, axis=1)


def leads(counts: Ints, error: float) -> bool:
    """Return whether the largest count is above all others by more than two errors of a count.

    Examples
    --------
    >>> leads(np.array([9, 5]), 1.0), leads(np.array([9, 5]), 2.0)
    (True, False)
    """
    *_, second, largest = np.sort([0, 0, *counts])
    return bool(largest - second > 2 * error)


def as_counts(noisy: Floats, least: float = 0) -> Ints:
    """Return noisy counts as integers from ``least`` on."""
    return np.clip(np.rint(noisy), least, NOISY).astype(np.int64)
