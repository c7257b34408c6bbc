"""Quantiles over all clients, by dividing intervals that contain them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np

from fedlib.core.array_types import Floats, Ints
from fedlib.core.protocol import Flow, Replies
from fedlib.tables.summary.columns import ask, n_columns
from fedlib.tables.summary.keys import HIGHEST, from_key, sub_interval
from fedlib.tables.summary.messages import CountBins, TableView

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
    ``rank_error`` times the number of values.
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
        replies = yield from count_values(view, described, intervals, REFINEMENT, contradiction)
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


def count_values(
    view: TableView,
    described: Replies,
    intervals: Sequence[KeyInterval],
    n_bins: int,
    contradiction: Callable[[str, Any], str | None],
) -> Flow[Replies]:
    """Ask for the number of values in each part of intervals."""
    request = count_parts(view, intervals, n_bins)
    return (yield from ask(request, described, contradiction))


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
