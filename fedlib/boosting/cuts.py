"""Cuts: how clients agree on bins of each feature with about equally many rows.

With sample weights, bins have about equal weight, as those of XGBoost's weighted sketch: clients
then add up the weights in each bucket, in a unit in which they are integers.

Clients count their values in the buckets of a fixed grid. A bucket contains the float32 numbers
with the same sign, exponent and leading digits. The server adds up the counts, and the clients then
count again inside the buckets that matter, three times altogether. So the cuts depend only on the
pooled data, not on how the rows are distributed over the clients.

Disclosure: the counts disclose a client's values to one part in 2**11 at best, and nothing finer.
Values that are further apart are disclosed completely: for integers up to 4096, the count of rows
with each value, and so every row with a rare value. A coarser grid could not separate such values.
If that is too much, round the column before training.

Accuracy: values that differ by less than one part in 2**11 may share a bucket, and so a bin. A
feature with at most ``max_bin`` occupied buckets gets one bin per bucket. For other features, the
fraction of the rows in a bin is off by at most an eighth of a bin on either side, or by the rows of
one of the finest buckets. The resolution is relative to the value, so a feature that varies little
around a large number (dates as days, identifiers) falls into few buckets. `coarse_features` finds
such features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, frexp, ldexp
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.core.aggregation import exclude
from fedlib.core.array_types import Bools, Floats, Floats32, Ints
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow
from fedlib.kernels import buckets as kernels
from fedlib.kernels.buckets import Buckets, SortedKeys
from fedlib.kernels.histograms import find_bins

DEPTHS = (12, 16, 20)  # the count of leading bits of a float32 that define a bucket, per round
MAX_VALUE = 2.0**127  # the bucket of a larger value would have no finite upper edge
MAX_VALUES_PER_BUCKET = 4  # distinct values on average; with more, the buckets are too coarse
MAX_COUNT = 2**40  # of a bucket
MAX_BITS = 190  # of the unit of weights, which are float32
Keys = Annotated[np.ndarray, Array("uint32", ("buckets",))]
Sizes = Annotated[np.ndarray, Array("int64", ("features",), ge=0, le=2**32)]


class RowsPerBucket(Message):
    """The count of a client's values in each occupied bucket of each feature, or their weight."""

    discloses = (
        "the count of a client's values in each bucket, or the sum of their weights; for integers"
        " up to 4096, that of the rows with each value"
    )
    sizes: Sizes
    keys: Keys
    counts: Annotated[np.ndarray, Array("int64", ("buckets",), ge=1, le=MAX_COUNT)]


class CountBuckets(Message):
    """Count your values in the buckets of ``depth`` bits inside the given buckets.

    The ``keys`` are the leading ``depth_before`` bits of the given buckets, feature by feature, and
    ``sizes`` is the count of keys per feature. With ``weight_bits``, a value counts as its weight
    in units of 2**-weight_bits, rounded, and at least as one unit.
    """

    discloses = (
        "the buckets with many rows of all clients; for features with few buckets, those with any"
        " row"
    )
    effortless = ("depth", "depth_before")
    reply = RowsPerBucket
    depth: Annotated[int, msgspec.Meta(ge=1, le=DEPTHS[-1])]
    depth_before: Annotated[int, msgspec.Meta(ge=0, lt=DEPTHS[-1])]
    sizes: Sizes
    keys: Keys
    weight_bits: Annotated[int, msgspec.Meta(ge=-MAX_BITS, le=MAX_BITS)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes.sum() != len(self.keys):
            raise MessageError("the sizes do not add up to the keys")

    def reply_lengths(self) -> dict[str, int]:
        # The constraints of the fields allow a depth below the previous one.
        n_finer = len(self.keys) << max(0, self.depth - self.depth_before)
        return {"features": len(self.sizes), "buckets": n_finer}

    def memory(self) -> float:
        return float(len(self.keys))  # a client has at most as many buckets as rows

    def accept(self, reply: Message) -> RowsPerBucket:
        """Raise MessageError unless the sizes are right.

        Whether the counts are possible, the flow checks while it adds them up.
        """
        assert isinstance(reply, RowsPerBucket)
        if len(reply.sizes) != len(self.sizes):
            raise MessageError(
                f"buckets of {len(reply.sizes)} features, {len(self.sizes)} were requested"
            )
        if reply.sizes.sum() != len(reply.keys):
            raise MessageError("the sizes do not add up to the keys")
        return reply


@dataclass(frozen=True)
class Cuts:
    """The bins of every feature.

    Attributes
    ----------
    offsets : array (n_features + 1,) of int64
        The first bin of each feature among the bins of all features. The last bin of each feature
        contains its missing values.
    thresholds : array (n_bins,) of float32
        The upper bound of each bin, excluded. The bound of a feature's last two bins is above all
        values.
    """

    offsets: Ints
    thresholds: Floats32

    def bins(self, X: Floats32) -> NDArray[np.uint16]:
        """Return the bin (n_rows, n_features) of each value, counted from its feature's first."""
        bins: NDArray[np.uint16] = find_bins(X, self.offsets, self.thresholds)
        return bins

    def inner(self, f: int) -> Floats32:
        """Return the thresholds between the bins of a feature, without that for missing values."""
        start, missing = self.offsets[f], self.offsets[f + 1] - 1
        return self.thresholds[start : max(start, missing - 1)]


def agree_on_cuts(
    n_rows: Mapping[str, int],
    n_features: int,
    max_bin: int,
    n_categories: Mapping[int, int] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Flow[Cuts]:
    """Return a flow that agrees on at most ``max_bin`` bins per feature, plus the missing values.

    A feature in ``n_categories`` has as many bins as it has categories; they are not counted.

    When a client is lost while the clients count, the count starts again without it. ``n_rows`` are
    the numbers of rows that the clients declared. A client that counts more, or whose counts of the
    finer buckets differ from that of the coarser one, is excluded. With the ``weights`` that the
    rows of each client have together, values count as their weights.
    """
    categories, bits, most = n_categories or {}, None, dict(n_rows)
    if weights is not None:
        bits = unit_of_weights(sum(weights.values()))
        most = {name: n + ceil(ldexp(weights[name], bits)) for name, n in n_rows.items()}
    while True:
        lost_before: list[str] | None = None
        previous: dict[str, RowsPerBucket] = {}
        buckets = [
            _Buckets.empty() if f in categories else _Buckets.whole() for f in range(n_features)
        ]
        for depth in DEPTHS:
            chosen = [feature.to_refine(max_bin) for feature in buckets]
            keys = [feature.keys[which] for feature, which in zip(buckets, chosen, strict=True)]
            request = CountBuckets(
                depth=depth,
                depth_before=buckets[0].depth,
                sizes=np.array([len(k) for k in keys], np.int64),
                keys=np.concatenate(keys).astype(np.uint32),
                weight_bits=bits,
            )
            replies = yield request
            counted, reasons = _add_up(request, replies, previous, most)
            replies = yield from exclude(replies, reasons)
            if lost_before is not None and replies.lost != lost_before:
                break  # the buckets chosen so far contain rows of the lost client
            if reasons:
                counted, _ = _add_up(request, replies, previous, most)
            lost_before, previous = replies.lost, dict(replies)
            buckets = [
                feature.refined(which, depth, keys, counts)
                for feature, which, (keys, counts) in zip(
                    buckets, chosen, _by_feature(*counted), strict=True
                )
            ]
        else:
            return _cuts(
                [
                    _between_categories(categories[f])
                    if f in categories
                    else feature.thresholds(max_bin)
                    for f, feature in enumerate(buckets)
                ]
            )


def unit_of_weights(total: float) -> int:
    """Return the bits of the unit in which clients add up weights with this total.

    No bucket of honest clients has more than `MAX_COUNT` units: half of it is room for rounding.

    Examples
    --------
    >>> unit_of_weights(1.0), unit_of_weights(1000.0), unit_of_weights(0.0)
    (38, 29, 0)
    """
    return int(np.clip(38 - frexp(total)[1] + 1, -MAX_BITS, MAX_BITS)) if total else 0


def bounded_cuts(
    limits: Floats, n_bins: int, n_categories: Mapping[int, int] | None = None
) -> Cuts:
    """Return bins of equal width between bounds that the clients have agreed on.

    The first and the last bin of a feature also contain the values outside of its bounds.

    Parameters
    ----------
    limits : array (2, n_features)
        The lower and the upper bound of each feature, within ±2**127.
    n_bins : int
        The count of bins per feature, besides that for missing values; at least 2.
    n_categories : mapping of int to int, optional
        The features that have one bin per category instead, and their numbers of categories. Their
        bounds are not used.

    Raises
    ------
    ValueError
        When the bins are too narrow for float32.

    Examples
    --------
    >>> bounded_cuts(np.array([[0.0], [10.0]]), n_bins=4).inner(0)
    array([2.5, 5. , 7.5], dtype=float32)
    """
    categories = n_categories or {}
    inner = np.linspace(limits[0], limits[1], n_bins + 1).T[:, 1:-1].astype(np.float32)
    if any((np.diff(inner[f]) <= 0).any() for f in range(len(inner)) if f not in categories):
        raise ValueError(
            f"bounds must be further apart for {n_bins} bins of float32 numbers; got"
            f" {limits.tolist()}"
        )
    return _cuts(
        [
            _between_categories(categories[f])
            if f in categories
            else np.append(of_feature, np.float32(MAX_VALUE))
            for f, of_feature in enumerate(inner)
        ]
    )


def _between_categories(n_categories: int) -> Floats32:
    """Return the upper bounds of the bins of a feature with one bin per category."""
    return np.arange(n_categories, dtype=np.float32) + np.float32(0.5)


_WRONG = {
    kernels.UNSORTED: "the buckets are not sorted and distinct",
    kernels.NOT_REQUESTED: "some buckets were not requested",
    kernels.CONTRADICTION: "RowsPerBucket.counts differ from those of the coarser buckets",
    kernels.TOO_MANY: "RowsPerBucket.counts must sum to at most the rows or weights, {}",
}


def _add_up(
    request: CountBuckets,
    replies: Mapping[str, RowsPerBucket],
    previous: Mapping[str, RowsPerBucket],
    n_rows: Mapping[str, int],
) -> tuple[Buckets, dict[str, str]]:
    """Return the sums of all replies, and the reason to exclude each client that is wrong.

    The first counts of a feature are of at most all rows. Later ones divide the buckets of the
    previous reply.
    """
    nothing = RowsPerBucket(
        np.zeros_like(request.sizes), np.empty(0, np.uint32), np.empty(0, np.int64)
    )
    counted, status = kernels.add_buckets(
        request.sizes,
        request.keys,
        request.depth - request.depth_before,
        _one_after_the_other(list(replies.values())),
        _one_after_the_other([previous.get(name, nothing) for name in replies]),
        np.array([name in previous for name in replies], bool),
        np.array([n_rows.get(name, 0) for name in replies], np.int64),
    )
    reasons = {}
    for name, found in zip(replies, status.tolist(), strict=True):
        if name not in n_rows:
            reasons[name] = "RowsPerBucket from a client that declined to describe its rows"
        elif found != kernels.POSSIBLE:
            reasons[name] = _WRONG[found].format(n_rows[name])
    return counted, reasons


def _one_after_the_other(replies: Sequence[RowsPerBucket]) -> Buckets:
    return Buckets(
        np.stack([reply.sizes for reply in replies]),
        np.concatenate([reply.keys for reply in replies]),
        np.concatenate([reply.counts for reply in replies]),
    )


def sorted_keys(X: Floats32) -> SortedKeys:
    """Return the keys of the values of each feature in ascending order, missing values last.

    Keys are unsigned integers in the order of the values; buckets are made of their leading bits.
    """
    values = np.array(X.T, order="C")
    values.sort(axis=1)  # missing values come last
    return SortedKeys(float_keys(values), np.count_nonzero(~np.isnan(values), axis=1))


def sorted_weights(X: Floats32, weight: Floats32, bits: int) -> Ints:
    """Return the sums (n_features, n_rows + 1) of weights, in units, up to each of `sorted_keys`.

    Examples
    --------
    >>> X = np.array([[2.0], [1.0], [np.nan]], np.float32)
    >>> sorted_weights(X, np.array([0.5, 2, 1], np.float32), bits=1)
    array([[0, 4, 5, 7]])
    """
    units = np.clip(np.rint(np.ldexp(weight.astype(np.float64), bits)), 1, MAX_COUNT)
    ordered = units.astype(np.int64)[np.argsort(X.T, axis=1, kind="stable")]
    return np.pad(np.cumsum(ordered, axis=1), ((0, 0), (1, 0)))


def bucket_counts(
    columns: SortedKeys, request: CountBuckets, weights: Ints | None = None
) -> RowsPerBucket:
    """Return the reply of a client whose rows have these `sorted_keys` and `sorted_weights`.

    Raises
    ------
    ValueError
        When the request is about another count of features.

    Examples
    --------
    Three values in the two buckets of one bit, the negative numbers and the others:

    >>> X = np.array([[-1.0], [2.0], [3.0]], np.float32)
    >>> everything = np.array([1]), np.array([0], np.uint32)
    >>> bucket_counts(sorted_keys(X), CountBuckets(1, 0, *everything))
    RowsPerBucket(sizes=array([2]), keys=array([0, 1], dtype=uint32), counts=array([1, 2]))
    """
    if len(columns.keys) != len(request.sizes):
        raise ValueError(
            f"the request is about {len(request.sizes)} features, the client has"
            f" {len(columns.keys)}"
        )
    n_finer, n_dropped = request.depth - request.depth_before, 32 - request.depth
    counted = kernels.count_buckets(
        columns, np.uint64(n_dropped), request.sizes, request.keys, np.uint64(n_finer)
    )
    if weights is None:
        return RowsPerBucket(*counted)
    ends, counts = np.cumsum(counted.sizes)[:-1], []
    for f, found in enumerate(np.split(counted.keys.astype(np.uint64), ends)):
        keys = columns.keys[f, : columns.n_present[f]]
        edges = [found << np.uint64(n_dropped), (found + np.uint64(1)) << np.uint64(n_dropped)]
        first, end = (np.searchsorted(keys, edge.astype(np.float64)) for edge in edges)
        counts.append(np.minimum(weights[f, end] - weights[f, first], MAX_COUNT))
    return RowsPerBucket(counted.sizes, counted.keys, np.concatenate(counts))


def groups_of_buckets(X: Floats32, request: CountBuckets) -> Iterator[Ints]:
    """Yield, per feature, the bucket of each row that `bucket_counts` counts, -1 for the others."""
    dropped, finer = np.uint64(32 - request.depth), np.uint64(request.depth - request.depth_before)
    requested = _by_feature(request.sizes, request.keys)
    for values, (inside,) in zip(np.array(X.T, order="C"), requested, strict=True):
        buckets = float_keys(values).astype(np.uint64) >> dropped
        counted = np.isin(buckets >> finer, inside) & ~np.isnan(values)
        yield np.where(counted, buckets.astype(np.int64), -1)


def coarse_features(columns: SortedKeys, cuts: Cuts) -> list[int]:
    """Return the features with these `sorted_keys` for which the finest buckets are too coarse.

    Such a feature has a bin for each of its finest buckets, but many distinct values per bucket.
    Bins between given bounds may be narrower than buckets.

    Examples
    --------
    >>> X = np.arange(100, dtype=np.float32)
    >>> X = np.column_stack([X, X + 2**20])
    >>> fine, coarse = np.arange(0.5, 100), [2.0**20, 2.0**21]
    >>> thresholds = np.concatenate([fine, coarse]).astype(np.float32)
    >>> coarse_features(sorted_keys(X), Cuts(np.array([0, 100, 102]), thresholds))
    [1]
    """
    coarse = []
    n_keys = kernels.count_distinct(columns, np.uint64(0))
    n_buckets = kernels.count_distinct(columns, np.uint64(32 - DEPTHS[-1]))
    n_bins = np.diff(cuts.offsets) - 1
    may_be = (n_buckets <= n_bins) & (n_keys > MAX_VALUES_PER_BUCKET * n_buckets)
    for f in np.flatnonzero(may_be).tolist():
        keys = np.unique(columns.keys[f, : columns.n_present[f]])
        used = np.unique(np.searchsorted(cuts.inner(f), float_values(keys), side="right"))
        if len(keys) > MAX_VALUES_PER_BUCKET * len(used):
            coarse.append(f)
    return coarse


@dataclass(frozen=True)
class _Buckets:
    """The occupied buckets of one feature, in ascending order.

    A bucket covers the 32-bit keys from ``low`` up to, not including, ``high``. Buckets may have
    different sizes; ``depth`` is the count of bits of the finest.
    """

    depth: int
    low: Ints
    high: Ints
    counts: Ints

    @classmethod
    def whole(cls) -> _Buckets:
        """Return one bucket of all numbers; its count only has to be positive."""
        return cls(0, np.array([0]), np.array([2**32]), np.array([2**40]))

    @classmethod
    def empty(cls) -> _Buckets:
        """Return no bucket."""
        return cls(0, *(np.empty(0, np.int64) for _ in range(3)))

    @property
    def keys(self) -> Ints:
        """The leading ``depth`` bits; they identify only buckets of this depth."""
        return self.low >> (32 - self.depth)

    def to_refine(self, max_bin: int) -> Bools:
        """Return which buckets to count in finer ones: all if they are few, else the largest."""
        finest = self.high - self.low == 1 << (32 - self.depth)
        few = len(self.low) <= max_bin
        # Of many buckets only those with more rows than an eighth of a bin, which is the error.
        return finest & (few | (8 * max_bin * self.counts > self.counts.sum()))

    def refined(
        self,
        chosen: Bools,
        depth: int,
        reported: NDArray[np.uint32],
        counts: Ints,
    ) -> _Buckets:
        """Return the buckets with the chosen ones replaced by the clients' keys and counts."""
        keys = reported.astype(np.int64)
        low = np.append(self.low[~chosen], keys << (32 - depth))
        high = np.append(self.high[~chosen], (keys + 1) << (32 - depth))
        order = np.argsort(low)
        counts = np.append(self.counts[~chosen], counts)
        return _Buckets(depth, low[order], high[order], counts[order])

    def thresholds(self, max_bin: int) -> Floats32:
        """Return each bin's upper bound, halfway to the first bucket of the next bin."""
        if not len(self.low):
            return np.empty(0, np.float32)
        bin_of = np.arange(len(self.low))
        if len(self.low) > max_bin:
            twice_middle = 2 * np.cumsum(self.counts) - self.counts  # the rank of the middle row
            # Doubled, so that all are integers and no rounding moves a cut.
            bin_of = twice_middle * max_bin // (2 * self.counts.sum())
        last = np.flatnonzero(np.append(bin_of[1:] != bin_of[:-1], True))
        upper = float_values(self.high[last]).astype(np.float64)
        lower = np.append(float_values(self.low[last[:-1] + 1]).astype(np.float64), upper[-1:])
        return (0.5 * (upper + lower)).astype(np.float32)


def _cuts(thresholds: Sequence[Floats32]) -> Cuts:
    """Return the cuts with these upper bounds, and one more bin per feature for missing values."""
    sizes = [len(feature) + 1 for feature in thresholds]
    above_all = np.array([MAX_VALUE], np.float32)
    return Cuts(
        offsets=np.append(0, np.cumsum(sizes)).astype(np.int64),
        thresholds=np.concatenate([np.append(feature, above_all) for feature in thresholds]),
    )


def _by_feature(sizes: Ints, *arrays: NDArray[Any]) -> list[Any]:
    """Return, per feature, its piece of each array; ``sizes`` are the pieces' lengths."""
    ends = np.cumsum(sizes)[:-1]
    return list(zip(*(np.split(array, ends) for array in arrays), strict=True))


def float_keys(values: Floats32) -> NDArray[np.uint32]:
    """Return unsigned integers in the order of the values."""
    bits = (values + np.float32(0)).view(np.uint32)  # -0 becomes 0
    # The bits of positive floats ascend with the value, those of negative ones descend: the latter
    # are inverted, and the former get the leading bit that puts them behind.
    return np.where(bits >> 31, ~bits, bits | np.uint32(2**31))


def float_values(keys: NDArray[Any]) -> Floats32:
    """Return the values with these keys."""
    keys = keys.astype(np.uint32)
    return np.where(keys >> 31, keys & np.uint32(2**31 - 1), ~keys).view(np.float32)
