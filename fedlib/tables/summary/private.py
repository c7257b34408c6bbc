"""Summaries of clipped rows: all sums of a row are bounded, so that they can have masks and noise.

With noise, one request asks for all sums. A value is clipped to the bounds of its column and scaled
to [-1, 1]. Then a row changes the count of rows by 1, and for each column at most the number of
values, the sum, the sum of squares and the count of one bin, each by at most 1; and for each column
of text the count of rows of one category.

With weights, one request does so for all kinds of sums. A weight is clipped to the largest one and
divided by it. A row also changes the weight of the values of a column, by at most 1, and adds to
the sums and the bins in proportion to its weight.

Masked sums without weights and without noise keep more digits: the means come first, about which
the next sum adds up the squares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import sqrt
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_fields import OF_CLIENT
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client
from fedlib.core.column_names import listed
from fedlib.core.columns import RawTable
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow, Replies
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
from fedlib.protection.secure.points import MaxWeight, agree_on_bounded_features, clip_weights
from fedlib.protection.sums import NoisySums, RowTotals, SumRows
from fedlib.tables.summary.flow import TableSummary, count_parts, histogram_bins, make_summary
from fedlib.tables.summary.from_schema import (
    UNLIMITED,
    AgreedTable,
    check_lengths,
    chosen_numbers,
    count_known,
    known_groups,
    sum_between,
)
from fedlib.tables.summary.messages import MAX_BINS, Category, TableView, split

ROUNDING = 1e-9  # relative, of the sums of an honest client


class NoisyColumnSums(Message):
    """Sums over a client's rows, with noise.

    The count of rows, then for each column the count of values, the sum and the sum of squares of
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
    """Sum the chosen columns, count the rows of each given category, and add noise."""

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
        When the table has another count of columns. No row can cause it.
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
    """Return the count of scaled values in each of ``n_bins`` bins, which may be none."""
    if not n_bins:
        return np.zeros(0, np.int64)
    bins = np.minimum(((scaled + 1) / 2 * n_bins).astype(np.int64), n_bins - 1)
    return np.bincount(bins, minlength=n_bins)


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
        When the table has another count of columns. No row can cause it.
    """
    weight = np.ones(len(table)) if weight is None else weight
    weight = clip_weights(weight, request.max_weight)
    return request.total(rows_of(table, request, weight), client)


def clipped_summary(
    agreed: AgreedTable, n_bins: int, aggregation: Aggregation, max_weight: float | None
) -> Flow[TableSummary]:
    """Return the server flow of masked, noisy or weighted sums; see `FederatedSummary`.

    Parameters
    ----------
    agreed : AgreedTable
        All columns; those of numbers have limits. Without names, the clients' names describe them.
    n_bins : int
    aggregation : Aggregation
    max_weight : float or None
        The largest weight of a row; None if rows have no weights.
    """
    layout = Layout(agreed, n_bins, max_weight)
    if isinstance(aggregation, NoisySums):  # an epsilon too small is refused before any message
        aggregation.scale(layout.request(aggregation).sensitivity())
    aggregation.features = agreed.names
    replies = yield from agree_on_bounded_features(aggregation, len(agreed.kinds))
    if not agreed.names:
        stated = next((reply.features for reply in replies.values() if reply.features), ())
        agreed = agreed._replace(names=stated or tuple(map(str, range(len(agreed.kinds)))))
        layout = layout._replace(agreed=agreed)
    if aggregation.privacy is None and max_weight is None:
        return (yield from _masked_summary(agreed, n_bins, aggregation))
    request = layout.request(aggregation)
    if aggregation.masked and aggregation.privacy is None:  # the first sum finds the digits
        first, _ = yield from aggregation.sum(request)
        n_rows = max(round(first.values[0]), 1)
        request = msgspec.structs.replace(request, n_rows=n_rows)
    check = None if request.privacy else _impossible(request)
    total, clients = yield from aggregation.sum(request, check)
    return _summary(layout, total.values, aggregation.noise(request, len(clients)))


def _masked_summary(
    agreed: AgreedTable, n_bins: int, aggregation: Aggregation
) -> Flow[TableSummary]:
    """Sum the columns, count the bins and the known categories, and return the summary.

    The moments come from one sum, so they describe the same rows. The sum before it only determines
    its digits and the centres about which it sums.
    """
    view, n_columns, columns = TableView(), len(agreed.names), agreed.numbers
    limits = np.clip(agreed.ends[:, columns], -UNLIMITED, UNLIMITED)
    total, found, spread = yield from sum_between(view, n_columns, columns, limits, aggregation)
    counts, n_values = total.counts, total.counts[columns]
    edges, drawn, intervals = histogram_bins(agreed.ends, n_bins)
    histograms = np.zeros((n_columns, n_bins), np.int64)
    if drawn:
        bins, _ = yield from aggregation.sum(count_parts(view, intervals, 1))
        histograms[drawn] = bins.counts.reshape(len(drawn), n_bins)
    known = np.empty(0, np.int64)
    if any(agreed.categories):
        known = (yield from aggregation.sum(agreed.request(view, min_count=1)))[0].counts
    category_counts = agreed.by_column(known)
    others = np.zeros(n_columns, np.int64)
    return make_summary(
        agreed.names,
        agreed.kinds,
        n_rows=total.n_rows,
        counts=counts,
        means=agreed.of_numbers(found, n_values > 0),
        variances=agreed.of_numbers(spread * n_values / np.maximum(n_values - 1, 1), n_values > 1),
        edges=edges,
        histograms=histograms,
        categories=agreed.categories,
        category_counts=category_counts,
        category_others=agreed.others(counts, category_counts) if len(known) else others,
    )


class Layout(NamedTuple):
    """The sums over rows in the reply to one request, which describe the columns of ``agreed``.

    First comes the count of rows. For each column of numbers follow the count of its values, with a
    ``max_weight`` the sum of their weights, the sums of the scaled values and of their squares, and
    the bins. For each column of text follow the counts of its categories.
    """

    agreed: AgreedTable
    n_bins: int
    max_weight: float | None = None

    @property
    def limits(self) -> Floats:
        """The limits (2, n_numbers) of the columns of numbers."""
        limits: Floats = self.agreed.ends[:, self.agreed.numbers]
        return limits

    def request(self, aggregation: Aggregation) -> Any:
        """Return the request for these sums."""
        numbers, lists, privacy = self.agreed.numbers, self.agreed.lists, aggregation.privacy
        if self.max_weight is not None:
            return SumWeightedColumns(
                self.limits, numbers, self.n_bins, self.max_weight, *lists, privacy=privacy
            )
        assert privacy is not None  # masked sums alone have requests with more digits
        if not self.agreed.in_schema:
            return SumColumnsNoisily(privacy, self.limits, self.n_bins)
        return SumAgreedColumnsNoisily(privacy, self.limits, self.n_bins, numbers, *lists)

    def blocks(self, sums: Floats) -> tuple[Floats, Floats]:
        """Return the sums of the columns of numbers (n, n_numbers, k), and the other ones."""
        d, k = self.limits.shape[1], (3 if self.max_weight is None else 4) + self.n_bins
        return sums[:, 1 : 1 + d * k].reshape(len(sums), d, k), sums[:, 1 + d * k :]

    def results(self, sums: Floats) -> Floats:
        """Return counts, gaps, means and variances (n, 4 * n_columns) of sums (n, n_values)."""
        (blocks, categories), first = self.blocks(sums), self.max_weight is not None
        numbers, (texts, lengths, _) = self.agreed.numbers, self.agreed.lists
        count, mean, variance = np.full((3, len(sums), len(self.agreed.names)), np.nan)
        count[:, numbers] = blocks[..., 0]
        ends = np.cumsum(lengths)
        for j, start, end in zip(texts, ends - lengths, ends, strict=True):
            count[:, j] = categories[:, start:end].sum(axis=1)
        weight, total, squares = np.moveaxis(blocks[..., first : first + 3], 2, 0)
        low, half = self.limits[0], np.diff(self.limits, axis=0)[0] / 2
        scaled, rows = ratio(total, weight), weight * (self.max_weight or 1.0)
        spread = ratio(squares, weight) - np.square(scaled)
        mean[:, numbers] = low + half * (1 + scaled)
        variance[:, numbers] = spread * np.square(half) * ratio(rows, rows - 1)
        return np.hstack([count, sums[:, :1] - count, mean, variance])

    @property
    def possible(self) -> Floats:
        """The possible values (4 * n_columns, 2) of the results."""
        ends = np.tile([0.0, np.inf], (4, len(self.agreed.names), 1))
        ends[2, self.agreed.numbers] = self.limits.T
        return ends.reshape(-1, 2)


def _summary(layout: Layout, sums: Floats, noise: Noise | None) -> TableSummary:
    """Return the statistics that follow from sums; a ``layout`` says what these are."""
    agreed, n_bins, max_weight = layout
    n, numbers, least = len(agreed.names), agreed.numbers, 0.0 if noise is None else -NOISY
    blocks, categories = (of[0] for of in layout.blocks(sums[np.newaxis]))
    edges, histograms = np.full((n, n_bins + 1), np.nan), np.zeros((n, n_bins))
    edges[numbers] = edges_between(layout.limits, n_bins)
    histograms[numbers] = blocks[:, blocks.shape[1] - n_bins :]
    found: dict[str, Any] = {"histograms": as_counts(histograms)}
    if max_weight is not None:
        weights = max_weight * np.maximum(blocks[:, 1], 0.0)
        found = {
            "histograms": max_weight * np.maximum(histograms, 0.0),
            "weights": agreed.of_numbers(weights, weights >= 0),
        }
        if noise is None:
            found |= _weighted_moments(layout, blocks, weights)
    category_counts = agreed.by_column(as_counts(categories))
    if noise is not None:
        found |= _noisy_statistics(layout, sums, noise, category_counts)
    return make_summary(
        agreed.names,
        agreed.kinds,
        n_rows=int(as_counts(sums[:1], least)[0]),
        counts=as_counts(layout.results(sums[np.newaxis])[0, :n], least),
        edges=edges,
        categories=agreed.categories,
        category_counts=category_counts,
        **found,
    )


def _weighted_moments(layout: Layout, blocks: Floats, weights: Floats) -> dict[str, Floats]:
    """Return the means and the variances from sums without noise, cut at what is possible."""
    limits, half = layout.limits, np.diff(layout.limits, axis=0)[0] / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.clip(blocks[:, 2] / blocks[:, 1], -1, 1)
        spread = np.clip(blocks[:, 3] / blocks[:, 1] - np.square(means), 0, 1)
        variances = spread * np.square(half) * weights / (weights - 1)
    return {
        "means": layout.agreed.of_numbers(limits[0] + half * (1 + means), weights > 0),
        "variances": layout.agreed.of_numbers(variances, weights > 1),
    }


def _noisy_statistics(
    layout: Layout, sums: Floats, noise: Noise, category_counts: tuple[Ints, ...]
) -> dict[str, Any]:
    """Return the means and the variances from noisy sums, and what the noise adds to results.

    Warns
    -----
    UserWarning
        When the noise hides means or variances, which are NaN, or most frequent categories.
    """
    names, n = layout.agreed.names, len(layout.agreed.names)
    found = estimate(layout.results, sums, noise, layout.possible)
    _, _, means, variances = found.values.reshape(4, n)
    hidden = found.hidden.reshape(4, n)
    unknown = [
        f"the {what} of {names[j]!r}"
        for what, of_columns in (("mean", hidden[2]), ("variance", hidden[3]))
        for j in layout.agreed.numbers
        if of_columns[j]
    ]
    if unknown:
        warnings.warn(hides(unknown), stacklevel=2)
    everything = np.array([[-np.inf, np.inf]])
    one_count = estimate(lambda one: one, np.zeros(1), noise, everything).intervals[0]
    error = float(np.abs(one_count).max())
    texts = layout.agreed.lists[0]
    close = [names[j] for j in texts if not leads(category_counts[j], error)]
    if close:
        warnings.warn(
            "the noise is too large for the rows: the most frequent category (top) of"
            f" {listed(close)} is None, because no count is more than two errors of a count"
            f" ({2 * error:.3g}) above the next; more rows or a larger epsilon help",
            stacklevel=2,
        )
    intervals = found.intervals.reshape(4, n, 2)
    return {
        "means": means,
        "variances": variances,
        "intervals": intervals,
        "count_error": error,
    }


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
