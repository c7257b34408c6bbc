"""The server's side of federated summaries: one sub-flow per statistic, and their composition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import ceil, floor, fsum
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.core.aggregation import Disagreement, settle
from fedlib.core.array_fields import MAX_COUNT, Array, Checked
from fedlib.core.array_types import Bytes, Floats, Ints
from fedlib.core.columns import NUMBER, TEXT
from fedlib.core.points import Bounds
from fedlib.core.protocol import Flow, Replies
from fedlib.tables.summary.from_schema import AgreedTable, count_all, count_categories
from fedlib.tables.summary.messages import (
    HIGHEST,
    MAX_MEAN,
    CategoryCounts,
    ClientLost,
    CountBins,
    CountCategories,
    Extremes,
    FindExtremes,
    SumValues,
    TableView,
    ValueMoments,
    agree_on_columns,
    ask,
    columns_of,
    describe,
    from_key,
    n_columns,
    repeat,
    split,
    sub_interval,
    to_keys,
)

REFINEMENT = 256  # parts of an interval per round: 8 rounds for the 2**64 keys


class KeyInterval(NamedTuple):
    """An interval of a column's keys; both ends belong to it."""

    column: int
    low: int = 0
    high: int = HIGHEST


def find_quantiles(
    view: TableView,
    described: Replies,
    columns: Ints,
    fractions: Sequence[float],
    rank_error: float,
) -> Flow[tuple[Floats, Ints]]:
    """Return quantiles (n_quantiles, n_columns) and the largest possible errors of their ranks.

    A quantile lies between two values of neighbouring ranks. For each rank, the search narrows an
    interval: every round divides it into 256 parts, counts the values in each, and continues with
    the part that contains the rank. It ends when the interval contains a single number, or at most
    ``rank_error`` times the count of values.
    """
    counts = np.sum([reply.counts for reply in described.values()], axis=0)
    places = {
        int(j): [q * (counts[j] - 1) for q in fractions] for j in columns if counts[j] and fractions
    }
    ranks = {(j, r) for j, wanted in places.items() for p in wanted for r in (floor(p), ceil(p))}
    values, errors = yield from _find_ranks(view, described, sorted(ranks), rank_error)
    shape = len(fractions), n_columns(described)
    quantiles, worst = np.full(shape, np.nan), np.zeros(shape, np.int64)
    for j, wanted in places.items():
        for i, place in enumerate(wanted):
            low, high = (j, floor(place)), (j, ceil(place))
            quantiles[i, j] = _between(values[low], values[high], place - floor(place))
            worst[i, j] = max(errors[low], errors[high])
    return quantiles, worst


def _find_ranks(
    view: TableView, described: Replies, ranks: Sequence[tuple[int, int]], rank_error: float
) -> Flow[tuple[dict[tuple[int, int], float], dict[tuple[int, int], int]]]:
    """Return the value with each rank of a column, counted from 0, and the error of its rank."""
    place = {target: (KeyInterval(target[0]), target[1]) for target in ranks}
    inside = {
        name: {KeyInterval(j): int(reply.counts[j]) for j, _ in ranks}
        for name, reply in described.items()
    }
    total = {
        KeyInterval(j): sum(known[KeyInterval(j)] for known in inside.values()) for j, _ in ranks
    }
    allowed = {j: rank_error * total[KeyInterval(j)] for j, _ in ranks}

    def is_open(interval: KeyInterval) -> bool:
        few = rank_error > 0 and total[interval] <= allowed[interval.column]
        return interval.low < interval.high and not few

    def contradiction(name: str, reply: Any) -> str | None:
        expected = [inside[name][interval] for interval in intervals]
        same = reply.counts.sum(axis=1).tolist() == expected
        return None if same else ".counts must sum to the numbers of values reported before"

    while intervals := sorted({interval for interval, _ in place.values() if is_open(interval)}):
        request = count_parts(view, intervals, REFINEMENT)
        replies = yield from ask(request, described, contradiction)
        sums = np.sum([reply.counts for reply in replies.values()], axis=0)
        chosen = {}
        for target, (interval, rank) in place.items():
            if interval in intervals:
                row = intervals.index(interval)
                ends = np.cumsum(sums[row])
                part = int(np.searchsorted(ends, rank, side="right"))
                new = KeyInterval(interval.column, *sub_interval(*interval[1:], REFINEMENT, part))
                place[target] = new, rank - int(ends[part] - sums[row, part])
                chosen[new] = row, part
        for new, (row, part) in chosen.items():
            for name, reply in replies.items():
                inside[name][new] = int(reply.counts[row, part])
            total[new] = int(sums[row, part])
    values, errors = {}, {}
    for target, (interval, _) in place.items():
        values[target] = (from_key(interval.low) + from_key(interval.high)) / 2
        if interval.low == interval.high:
            values[target] = from_key(interval.low)
        errors[target] = total[interval] if interval.low < interval.high else 0
    return values, errors


def count_parts(view: TableView, intervals: Sequence[KeyInterval], n_bins: int) -> CountBins:
    """Return the request to count the values in each part of intervals."""
    columns, low, high = (list(ends) for ends in zip(*intervals, strict=True))
    return CountBins(
        *view,
        np.array(columns, np.int64),
        np.array(low, np.uint64),
        np.array(high, np.uint64),
        n_bins,
    )


def _between(low: float, high: float, fraction: float) -> float:
    """Return the value at a fraction of the way, with numpy's rounding."""
    step = high - low
    return low + step * fraction if fraction < 0.5 else high - step * (1 - fraction)


@dataclass(frozen=True)
class TableSummary(Checked):
    """The statistics of all columns over all clients.

    Attributes
    ----------
    features : tuple of str
        The names of the columns, or their positions.
    kinds : array (n_columns,) of uint8
        0 for numbers, 1 for text, 2 for a column without values.
    n_rows : int
        The count of rows of all clients.
    counts : array (n_columns,) of int64
        The count of values.
    means, variances : array (n_columns,)
        NaN for columns of text. Variances are divided by ``counts - 1``.
    minima, maxima : array (n_columns,)
        NaN for columns of text, and for columns with given bounds.
    fractions : array (n_quantiles,)
        The fractions of the quantiles.
    quantiles, rank_errors : array (n_quantiles, n_columns)
        The quantiles, and the largest possible error of their ranks, as a count of rows.
    edges : array (n_columns, n_bins + 1)
        The edges of the histograms.
    histograms : array (n_columns, n_bins) of int64, or of float64 with weights
        The count of values in each bin, or their weight; the last bin contains its right edge.
    categories : tuple of tuple of str
        The categories of each column, sorted; none for numbers.
    category_counts : tuple of array (n_categories,) of int64
        The count of rows with each category.
    category_others : array (n_columns,) of int64
        The count of values whose categories clients have withheld.
    weights : array (n_columns,) or None
        The sum of the weights of the values, if the rows have weights; NaN for columns of text.
    intervals : array (4, n_columns, 2)
        With noise, those of the counts of values and of gaps, the means and the variances; see
        `fedlib.protection.privacy.noise`. Without noise, there are none: (4, 0, 2).
    count_error : float
        With noise, the error of each count of a bin or a category; its interval is ± this.
    """

    features: tuple[str, ...]
    kinds: Annotated[Bytes, Array("uint8", ("columns",), le=2)]
    n_rows: int
    counts: Annotated[Ints, Array("int64", ("columns",), -MAX_COUNT, MAX_COUNT)]
    means: Floats
    variances: Floats
    minima: Floats
    maxima: Floats
    fractions: Floats
    quantiles: Floats
    rank_errors: Annotated[Ints, Array("int64", ("quantiles", "columns"), 0, MAX_COUNT)]
    edges: Floats
    histograms: Ints | Floats
    categories: tuple[tuple[str, ...], ...]
    category_counts: tuple[Ints, ...]
    category_others: Annotated[Ints, Array("int64", ("columns",), -MAX_COUNT, MAX_COUNT)]
    weights: Floats | None = None
    intervals: Floats = field(default_factory=lambda: np.empty((4, 0, 2)))
    count_error: float = 0.0


def make_summary(names: tuple[str, ...], kinds: Bytes, **statistics: Any) -> TableSummary:
    """Return the statistics of columns; those that are not given are NaN, or there are none."""
    n_columns = len(names)
    nothing = dict.fromkeys(("means", "variances", "minima", "maxima"), np.full(n_columns, np.nan))
    return TableSummary(
        names,
        kinds,
        **{
            **nothing,
            "fractions": np.empty(0),
            "quantiles": np.empty((0, n_columns)),
            "rank_errors": np.empty((0, n_columns), np.int64),
            "category_others": np.zeros(n_columns, np.int64),
            **statistics,
        },
    )


def summarise(
    view: TableView,
    fractions: Sequence[float],
    rank_error: float,
    bounds: Bounds,
    n_bins: int,
    max_categories: int,
    min_category_count: int,
    agreed: AgreedTable | None = None,
) -> Flow[TableSummary]:
    """Return the server flow; for the parameters see `FederatedSummary`.

    With the columns of a schema, no request asks for kinds, extremes and names of categories.
    """

    def attempt() -> Flow[TableSummary]:
        if agreed is None:
            replies = yield from describe(view)
            columns = agree_on_columns(replies)
            given = bounds.by_index(columns.names)
        else:
            replies = yield from count_all(view, agreed)
            columns = columns_of(agreed.names, agreed.kinds, replies)
            given = agreed.limits
        numbers, texts = columns.of_kind(NUMBER), columns.of_kind(TEXT)
        means, squares = yield from find_moments(view, replies, numbers)
        unknown = np.setdiff1d(numbers, np.array(list(given), np.int64))
        low, high = yield from find_extremes(view, replies, numbers[:0] if agreed else unknown)
        quantiles, errors = yield from find_quantiles(view, replies, numbers, fractions, rank_error)
        ends = np.array([low, high])
        for j, limits in given.items():
            ends[:, j] = limits
        edges, histograms = yield from _find_histograms(view, replies, ends, n_bins, given)
        if agreed is None:
            categories, counts, others = yield from find_categories(
                view, replies, texts, max_categories, min_category_count
            )
        else:
            categories = agreed.categories
            counts = yield from count_categories(view, replies, agreed, min_category_count)
            others = agreed.others(columns.counts, counts)
        with np.errstate(invalid="ignore", divide="ignore"):
            variances = np.where(columns.counts > 1, squares / (columns.counts - 1.0), np.nan)
        return make_summary(
            columns.names,
            columns.kinds,
            n_rows=columns.n_rows,
            counts=columns.counts,
            means=means,
            variances=variances,
            minima=low,
            maxima=high,
            fractions=np.array(fractions, np.float64),
            quantiles=quantiles,
            rank_errors=errors,
            edges=edges,
            histograms=histograms,
            categories=categories,
            category_counts=counts,
            category_others=others,
        )

    return (yield from repeat(attempt))


def find_moments(view: TableView, described: Replies, columns: Ints) -> Flow[tuple[Floats, Floats]]:
    """Return the mean of each column and the sum of squared deviations from it.

    Both are NaN for columns that are not in ``columns``.
    """

    def contradiction(name: str, reply: ValueMoments) -> str | None:
        counts = described[name].counts[columns]
        margin = 1e-6 * counts * (np.abs(reply.means) + np.sqrt(reply.squares))
        if reply.means[counts == 0].any() or reply.squares[counts <= 1].any():
            return " must be 0 for a column with too few values"
        if (np.abs(reply.remainders) > margin).any():
            return ".remainders must be due to rounding"
        if (reply.squares > (1 + 1e-6) * counts * MAX_MEAN**2).any():
            return ".squares must be of values within ±1e100"
        return None

    means, squares = np.full((2, n_columns(described)), np.nan)
    if len(columns):
        request = SumValues(*view, columns)
        replies = yield from ask(request, described, contradiction)
        n = np.array([described[name].counts[columns] for name in replies])
        parts = np.array([reply.means for reply in replies.values()])
        rest = np.array([reply.remainders for reply in replies.values()])
        spread = np.array([reply.squares for reply in replies.values()])
        total = n.sum(axis=0)
        means[columns] = _exact_sum(np.concatenate([n * parts, rest])) / total
        shifts = np.where(n > 0, parts - means[columns], 0.0)
        about = _exact_sum(np.concatenate([spread, 2 * shifts * rest, n * np.square(shifts)]))
        excess = np.square(_exact_sum(np.concatenate([rest, n * shifts]))) / total
        squares[columns] = np.maximum(about - excess, 0.0)
    return means, squares


def find_extremes(
    view: TableView, described: Replies, columns: Ints
) -> Flow[tuple[Floats, Floats]]:
    """Return the smallest and the largest value of each column; NaN for all other columns."""
    minima, maxima = np.full((2, n_columns(described)), np.nan)
    if len(columns):
        request = FindExtremes(*view, columns)
        replies = yield from ask(request, described, lambda name, reply: None)
        empty = np.array([described[name].counts[columns] == 0 for name in replies])
        extremes: list[Extremes] = list(replies.values())
        minima[columns] = np.where(empty, np.inf, [one.minima for one in extremes]).min(axis=0)
        maxima[columns] = np.where(empty, -np.inf, [one.maxima for one in extremes]).max(axis=0)
    return minima, maxima


def _find_histograms(
    view: TableView, described: Replies, ends: Floats, n_bins: int, bounded: Collection[int]
) -> Flow[tuple[Floats, Ints]]:
    """Return edges and counts of bins of equal width between ``ends`` (2, n_columns).

    Values may lie outside of the ends only in the ``bounded`` columns.
    """
    edges, drawn, intervals = histogram_bins(ends, n_bins)
    counts = np.zeros((n_columns(described), n_bins), np.int64)
    if not drawn:
        return edges, counts
    exact = np.array([j not in bounded for j in drawn])

    def contradiction(name: str, reply: Any) -> str | None:
        sums = reply.counts.reshape(len(drawn), n_bins).sum(axis=1)
        known = described[name].counts[drawn]
        if (sums > known).any() or (exact & (sums != known)).any():
            return ".counts must sum to the number of values"
        return None

    replies = yield from ask(count_parts(view, intervals, 1), described, contradiction)
    sums = np.sum([reply.counts for reply in replies.values()], axis=0)
    counts[drawn] = sums.reshape(len(drawn), n_bins)
    return edges, counts


def histogram_bins(ends: Floats, n_bins: int) -> tuple[Floats, list[int], list[KeyInterval]]:
    """Return the edges (n_columns, n_bins + 1), the columns with a histogram, and their bins.

    A column without ends has no histogram, nor has one whose ends are too close for distinct edges.
    """
    edges = np.full((ends.shape[1], n_bins + 1), np.nan)
    drawn, intervals = [], []
    for j in np.flatnonzero(np.isfinite(ends).all(axis=0)).tolist():
        margin = 0.5 if ends[0, j] == ends[1, j] else 0.0
        between = np.linspace(ends[0, j] - margin, ends[1, j] + margin, n_bins + 1)
        if n_bins and (np.diff(between) > 0).all():
            edges[j] = between
            drawn.append(j)
            keys = to_keys(between).tolist()
            keys[-1] += 1  # the last bin contains its right edge
            intervals += [KeyInterval(j, low, high - 1) for low, high in pairwise(keys)]
    return edges, drawn, intervals


def find_categories(
    view: TableView, described: Replies, columns: Ints, max_categories: int, min_count: int
) -> Flow[tuple[tuple[tuple[str, ...], ...], tuple[Ints, ...], Ints]]:
    """Return the sorted categories of each column and their counts; none for all other columns.

    The third array (n_columns,) has the counts of values whose categories are withheld, which are
    those with fewer than ``min_count`` rows at a client.

    Raises
    ------
    Disagreement
        When a column has more than ``max_categories`` categories, and this is not due to a single
        client, which would leave the run.
    """

    def contradiction(name: str, reply: CategoryCounts) -> str | None:
        sums = [int(counts.sum()) for _, counts in reply.by_column()] + reply.others
        if sums.tolist() != described[name].counts[columns].tolist():
            return ".counts must sum to the number of values"
        return None

    pooled: list[dict[str, int]] = [{} for _ in range(n_columns(described))]
    others = np.zeros(n_columns(described), np.int64)
    if len(columns):
        request = CountCategories(*view, columns, max_categories, min_count)
        replies = yield from ask(request, described, contradiction)
        names = agree_on_columns(described).names
        labels = [names[j] for j in columns]
        settled = yield from settle(replies, partial(_check_categories, labels, max_categories))
        if len(settled) < len(replies):
            raise ClientLost
        for reply in replies.values():
            for j, (categories, counts) in zip(columns, reply.by_column(), strict=True):
                for category, count in zip(categories, counts.tolist(), strict=True):
                    pooled[j][category] = pooled[j].get(category, 0) + count
            others[columns] += reply.others
    sorted_names = tuple(tuple(sorted(counts)) for counts in pooled)
    counted = tuple(
        np.array([counts[name] for name in sorted(counts)], np.int64) for counts in pooled
    )
    return sorted_names, counted, others


def _check_categories(
    labels: Sequence[str], max_categories: int, replies: Mapping[str, CategoryCounts]
) -> None:
    """Raise Disagreement when a column has too many categories.

    The minority is the client without which there would be few enough, if it is the only one.
    """
    for i, label in enumerate(labels):
        lists = {name: split(one.categories, one.lengths)[i] for name, one in replies.items()}
        owners = Counter(category for categories in lists.values() for category in categories)
        if len(owners) <= max_categories:
            continue
        alone = {name: sum(owners[one] == 1 for one in lists[name]) for name in lists}
        causes = [name for name, n in alone.items() if len(owners) - n <= max_categories]
        raise Disagreement(
            f"column {label!r} must have at most max_categories={max_categories} categories, got"
            f" {len(owners)}; leave it out, or set max_categories or min_category_count",
            causes if len(causes) == 1 else (),
        )


def _exact_sum(rows: NDArray[Any]) -> Floats:
    """Return the sum of rows, correctly rounded, so that it does not depend on their order."""
    return np.array([fsum(column) for column in rows.T.tolist()])
