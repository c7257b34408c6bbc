"""Cuts that clients agree on: where to divide each feature into bins of about as many rows.

Clients count their values in buckets of a grid that is given beforehand: a bucket is what float32
numbers have in common that agree in their sign, exponent and first digits. Counts are added up, and
only buckets that matter are looked at more closely. So the cuts depend on the pooled data alone,
never on how rows are dealt.

What a client's counts tell: its values to one part in 2**11 at best, and nothing finer. Of values
that lie further apart, such as whole numbers up to 4096, that is everything: how many rows have
each. A row whose value is rare can be seen. No coarser grid could hide that and still tell such
values apart; where it matters, round the column before.

Their error: values that differ by less than one part in 2**11 may share a bucket, and so a bin. A
feature with at most ``max_bin`` occupied buckets has one bin for each; of others, a bin's share of
the rows is off by at most an eighth of a bin on either side, or by the rows of one finest bucket.
The part is one of the value itself: what varies little about a large number, as dates in days or
identifiers do, falls into few buckets. `crowded` finds such features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.messages import Array, Message, MessageError
from fedlib.protocol import Flow

__all__ = ["CountBuckets", "Cuts", "RowsPerBucket", "agree_on_cuts", "bucket_counts", "crowded"]

DEPTHS = (12, 16, 20)  # the leading bits of a float32 that make a bucket, round by round
LARGEST = 2.0**127  # values beyond have no upper edge
CROWD = 4  # how many values a bucket may hold on average before a client should hear of it
Keys = Annotated[np.ndarray, Array("uint32", ("buckets",))]
Sizes = Annotated[np.ndarray, Array("int64", ("features",), ge=0, le=2**32)]


class RowsPerBucket(Message):
    """How many values of each feature lie in each bucket that holds any."""

    discloses = (
        "how many of a client's values lie in each bucket; of whole numbers up to 4096, "
        "the count of each"
    )
    sizes: Sizes
    keys: Keys
    counts: Annotated[np.ndarray, Array("int64", ("buckets",), ge=1, le=2**40)]


class CountBuckets(Message):
    """Count your values in the buckets of ``depth`` bits inside these, of ``depth_before`` bits."""

    discloses = (
        "which buckets hold many rows of all clients; of features with few buckets, which hold any"
    )
    reply = RowsPerBucket
    depth: Annotated[int, msgspec.Meta(ge=1, le=24)]
    depth_before: Annotated[int, msgspec.Meta(ge=0, le=23)]
    sizes: Sizes
    keys: Keys

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes.sum() != len(self.keys):
            raise MessageError("the sizes do not add up to the keys")

    def accept(self, reply: Message) -> RowsPerBucket:
        """Raise MessageError where the buckets are not inside these, sorted and distinct."""
        assert isinstance(reply, RowsPerBucket)
        if len(reply.sizes) != len(self.sizes) or reply.sizes.sum() != len(reply.keys):
            raise MessageError(f"sizes of {len(reply.sizes)} features, {len(self.sizes)} asked")
        deep = np.uint64(self.depth - self.depth_before)
        inside = _tagged(self.sizes, self.keys.astype(np.uint64) << deep)
        given = _tagged(reply.sizes, reply.keys)
        if (given[1:] <= given[:-1]).any() or not np.isin(given >> deep << deep, inside).all():
            raise MessageError("buckets that were not asked for, or not in order")
        return reply


@dataclass(frozen=True)
class Cuts:
    """The bins of every feature.

    ``offsets`` (n_features + 1,) tells where a feature's bins start among those of all, the last of
    each being the bin of its missing values. A value below ``thresholds`` (n_bins,) of float32 lies
    in that bin or an earlier one of its feature; the entry of the last two is above all values.
    """

    offsets: NDArray[np.int64]
    thresholds: NDArray[np.float32]

    def bins(self, X: NDArray[np.float32]) -> NDArray[np.uint16]:
        """Return each value's bin among those of its feature (n_rows, n_features)."""
        bins = np.empty(X.shape, np.uint16)
        for f, column in enumerate(X.T):
            start, missing = self.offsets[f], self.offsets[f + 1] - 1
            inner = self.thresholds[start : max(start, missing - 1)]
            bins[:, f] = np.searchsorted(inner, column, side="right")
            bins[np.isnan(column), f] = missing - start
        return bins


def agree_on_cuts(n_features: int, max_bin: int) -> Flow[Cuts]:
    """Return the flow that agrees on at most ``max_bin`` bins a feature, beside the missing values.

    A run that loses a client while it counts starts counting again.
    """
    while True:
        before: list[str] | None = None
        buckets = [_Buckets.whole() for _ in range(n_features)]
        for depth in DEPTHS:
            asked = [feature.refined(max_bin) for feature in buckets]
            keys = [feature.keys[chosen] for feature, chosen in zip(buckets, asked, strict=True)]
            sizes = np.array([len(k) for k in keys], np.int64)
            replies = yield CountBuckets(
                depth, buckets[0].depth, sizes, np.concatenate(keys).astype(np.uint32)
            )
            if before is not None and replies.lost != before:
                break
            before = replies.lost
            counted = [_split(r.sizes, r.keys, r.counts) for r in replies.values()]
            buckets = [
                feature.replaced(chosen, depth, [reply[f] for reply in counted])
                for f, (feature, chosen) in enumerate(zip(buckets, asked, strict=True))
            ]
        else:
            return _cuts([feature.thresholds(max_bin) for feature in buckets])


def bucket_counts(X: NDArray[np.float32], request: CountBuckets) -> RowsPerBucket:
    """Return the answer of a client with these rows.

    Examples
    --------
    Three values in the two buckets of one bit, those below 0 and the others:

    >>> X = np.array([[-1.0], [2.0], [3.0]], np.float32)
    >>> everything = np.array([1]), np.array([0], np.uint32)
    >>> bucket_counts(X, CountBuckets(1, 0, *everything))
    RowsPerBucket(sizes=array([2]), keys=array([0, 1], dtype=uint32), counts=array([1, 2]))
    """
    if X.shape[1] != len(request.sizes):
        raise ValueError(f"{len(request.sizes)} features asked of a client with {X.shape[1]}")
    found = []
    start = 0
    for column, size in zip(X.T, request.sizes, strict=True):
        keys = _keys(column[~np.isnan(column)])
        inside = np.isin(_prefix(keys, request.depth_before), request.keys[start : start + size])
        found.append(np.unique(_prefix(keys[inside], request.depth), return_counts=True))
        start += size
    return RowsPerBucket(
        np.array([len(keys) for keys, _ in found], np.int64),
        np.concatenate([keys for keys, _ in found]).astype(np.uint32),
        np.concatenate([counts for _, counts in found]).astype(np.int64),
    )


def crowded(X: NDArray[np.float32], offsets: NDArray[np.int64]) -> list[int]:
    """Return the features of rows (n_rows, n_features) that the grid cuts too coarsely.

    These have bins enough for all finest buckets of the rows, but many values in each.

    Examples
    --------
    >>> X = np.arange(100, dtype=np.float32)
    >>> crowded(np.column_stack([X, X + 2**20]), np.array([0, 257, 259]))
    [1]
    """
    found = []
    for f, column in enumerate(X.T):
        values = np.unique(_keys(column[~np.isnan(column)]))
        n_buckets = len(np.unique(_prefix(values, DEPTHS[-1])))
        n_bins = offsets[f + 1] - offsets[f] - 1
        if n_buckets <= n_bins and len(values) > CROWD * n_buckets:
            found.append(f)
    return found


@dataclass(frozen=True)
class _Buckets:
    """The occupied buckets of one feature, of different depths: their lower edges and ends.

    ``keys`` are prefixes of ``depth`` bits, meaningful where ``open``: the others are not refined
    further, and ``low`` and ``high`` bound each as keys of 32 bits.
    """

    depth: int
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def whole(cls) -> _Buckets:
        return cls(0, np.array([0]), np.array([2**32]), np.array([2**40]))

    @property
    def keys(self) -> NDArray[np.int64]:
        return self.low >> (32 - self.depth)

    def refined(self, max_bin: int) -> NDArray[np.bool_]:
        """Return which buckets to look at more closely: all of few, or those with many rows."""
        fine = self.high - self.low == 1 << (32 - self.depth)
        few = len(self.low) <= max_bin
        return fine & (few | (8 * max_bin * self.counts > self.counts.sum()))

    def replaced(
        self,
        chosen: NDArray[np.bool_],
        depth: int,
        counted: Sequence[tuple[NDArray[np.uint32], NDArray[np.int64]]],
    ) -> _Buckets:
        """Return the buckets with the chosen ones replaced by what was counted inside them."""
        said = np.concatenate([keys for keys, _ in counted]).astype(np.int64)
        keys, inverse = np.unique(said, return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, inverse, np.concatenate([counts for _, counts in counted]))
        low = np.append(self.low[~chosen], keys << (32 - depth))
        high = np.append(self.high[~chosen], (keys + 1) << (32 - depth))
        order = np.argsort(low)
        counts = np.append(self.counts[~chosen], counts)
        return _Buckets(depth, low[order], high[order], counts[order])

    def thresholds(self, max_bin: int) -> NDArray[np.float32]:
        """Return what bounds each bin from above: the middle between buckets of adjacent bins."""
        if not len(self.low):
            return np.empty(0, np.float32)
        group = np.arange(len(self.low))
        if len(self.low) > max_bin:
            middle = 2 * np.cumsum(self.counts) - self.counts
            group = middle * max_bin // (2 * self.counts.sum())
        last = np.flatnonzero(np.append(group[1:] != group[:-1], True))
        upper = _value(self.high[last]).astype(np.float64)
        lower = np.append(_value(self.low[last[:-1] + 1]).astype(np.float64), upper[-1:])
        return (0.5 * (upper + lower)).astype(np.float32)


def _cuts(thresholds: Sequence[NDArray[np.float32]]) -> Cuts:
    sizes = [len(feature) + 1 for feature in thresholds]
    above = np.array([LARGEST], np.float32)
    return Cuts(
        np.append(0, np.cumsum(sizes)).astype(np.int64),
        np.concatenate([np.append(feature, above) for feature in thresholds]),
    )


def _split(sizes: NDArray[np.int64], *arrays: NDArray[Any]) -> list[Any]:
    """Return each feature's share of arrays that lie feature by feature."""
    ends = np.cumsum(sizes)[:-1]
    return list(zip(*(np.split(array, ends) for array in arrays), strict=True))


def _tagged(sizes: NDArray[np.int64], keys: NDArray[Any]) -> NDArray[np.uint64]:
    """Return keys with their feature before them, so that those of several can be compared."""
    feature = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    return (feature << np.uint64(32)) | keys.astype(np.uint64)


def _keys(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return whole numbers in the order of the values."""
    bits = (values + np.float32(0)).view(np.uint32)  # -0 is 0
    return np.where(bits >> 31, ~bits, bits | np.uint32(2**31))


def _value(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the values with these keys."""
    keys = keys.astype(np.uint32)
    return np.where(keys >> 31, keys & np.uint32(2**31 - 1), ~keys).view(np.float32)


def _prefix(keys: NDArray[np.uint32], depth: int) -> NDArray[np.uint32]:
    return (keys.astype(np.uint64) >> np.uint64(32 - depth)).astype(np.uint32)
