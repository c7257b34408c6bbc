"""Gradients, their sums and the splits of gradient-boosted trees, in XGBoost's arithmetic.

Gradients and hessians are float32. They are summed as integer multiples of 2**-bits, so that a sum
does not depend on the order of the rows. The caller chooses ``bits`` so that no sum reaches 2**53;
then every sum is also exact as a float64. Gains are float32.

The kernels loop over the features one after the other. Clients call them from several threads, and
parallel kernels called from several threads abort the process on numba's workqueue layer.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.buckets import BY_CATEGORY, goes_left
from fedlib.kernels.gains import score_node, split_gain

ONE = np.float32(1)
MIN_HESSIAN = np.float32(1e-16)
MAX_EXPONENT = np.float32(88.7)  # the exponential of more overflows a float32
LARGEST_PRODUCT = 2.0**1000  # of factors up to 2, far from an overflow
MIN_GAIN = np.float32(1e-6)

RIGHT, LEFT, NEITHER = 0, 1, 2  # the side of missing values; NEITHER: the node has none


class Rows(NamedTuple):
    """The places and gradients of n rows.

    ``slot`` (n,) of int32 is the number of a row's node among the open nodes, or -1 for a row in
    none of them. ``gradients`` (n, 2) of int64 contains each row's gradient and hessian.
    """

    slot: NDArray[np.int32]
    gradients: NDArray[np.int64]


class SortedColumns(NamedTuple):
    """The values of n rows and d features, in ascending order of each feature.

    ``order`` (d, n) of int32 contains the rows in this order, rows without a value last. ``values``
    (d, n) of float32 contains their values, and ``n_present`` (d,) the count of rows with a value.
    """

    order: NDArray[np.int32]
    values: NDArray[np.float32]
    n_present: NDArray[np.int64]


class Proposals(NamedTuple):
    """The best splits of each slot, the best first.

    The arrays (slots, n_candidates) are filled up to ``counts`` (slots,). ``direction`` is the side
    of missing values. A threshold lies halfway between two adjacent values of the slot's rows.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    direction: NDArray[np.uint8]
    gain: NDArray[np.float32]
    counts: NDArray[np.int64]


class Candidates(NamedTuple):
    """Splits to evaluate; those of slot s are ``start[s]`` to ``start[s + 1]``."""

    start: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]


class CandidateSums(NamedTuple):
    """The sums of gradients and hessians of candidates.

    ``left`` (candidates, 2) sums the rows left of each candidate, ``missing`` (candidates, 2) the
    rows without its feature, and ``totals`` (slots, 2) all rows of each slot.
    """

    left: NDArray[np.int64]
    missing: NDArray[np.int64]
    totals: NDArray[np.int64]


class Decisions(NamedTuple):
    """The chosen splits of n consecutive nodes; ``feature`` is -1 for a leaf.

    Where the threshold is ``BY_CATEGORY``, the categories in ``right`` (n, n_bytes) go right.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    right: NDArray[np.uint8]

    def take(self, which: Any) -> "Decisions":
        """Return the splits of some of the nodes."""
        columns: tuple[NDArray[Any], ...] = self
        return Decisions(*(column[which] for column in columns))


@kernel
def log_odds(share):
    """Return the log-odds of a share of positive rows, both float32."""
    return np.float32(-np.log(np.float32(ONE / share - ONE)))


@kernel
def compute_gradients(margins, positive, weights, bits):
    """Return each row's gradient and hessian (n, 2) as integer multiples of 2**-bits."""
    gradients = np.empty((margins.size, 2), np.int64)
    fill_gradients(margins, positive, weights, bits, gradients)
    return gradients


@kernel
def fill_gradients(margins, positive, weights, bits, gradients):
    """Fill in the ``gradients`` (n, 2) of rows; see `compute_gradients`."""
    scale = 2.0**bits
    for i in range(margins.size):
        x = min(-margins[i], MAX_EXPONENT)
        p = np.float32(ONE / np.float32(np.float32(np.exp(x)) + ONE))
        y = ONE if positive[i] else np.float32(0)
        g = np.float32(np.float32(p - y) * weights[i])
        h = np.float32(max(np.float32(p * np.float32(ONE - p)), MIN_HESSIAN) * weights[i])
        gradients[i, 0] = np.int64(math.floor(np.float64(g) * scale + 0.5))
        gradients[i, 1] = np.int64(math.floor(np.float64(h) * scale + 0.5))


@kernel
def sum_losses(margins, positive, weights):
    """Return the sum of the rows' weighted log-losses.

    The logarithms of 1 + exp(-|m|) are not computed one by one: rows of equal weight that follow
    each other are multiplied first. The error is at most 2**-51 per row and unit of weight, next to
    that of the sum itself.
    """
    total, product, weight = 0.0, 1.0, np.float32(0)
    for i in range(margins.size):
        m = np.float64(margins[i])
        if weights[i] != weight or product > LARGEST_PRODUCT:
            total += math.log(product) * weight
            product, weight = 1.0, weights[i]
        product *= 1.0 + math.exp(-abs(m))  # at most 2
        loss = max(m, 0.0)
        if positive[i]:
            loss -= m
        total += loss * weight
    return total + math.log(product) * weight


@kernel
def gain_and_direction(left_g, left_h, missing_g, missing_h, node, rule):
    """Return a split's gain and the side of missing values: left only if strictly better."""
    right = split_gain(left_g, left_h, node, rule)
    if missing_g == 0 and missing_h == 0:
        return right, NEITHER
    left = split_gain(left_g + missing_g, left_h + missing_h, node, rule)
    if left > right:
        return left, LEFT
    return right, RIGHT


@kernel
def sum_by_slot(rows, n_slots):
    """Return the sums (n_slots, 2) of the gradients of each slot's rows."""
    sums = np.zeros((n_slots, 2), np.int64)
    for i in range(rows.slot.size):
        s = rows.slot[i]
        if s >= 0:
            sums[s, 0] += rows.gradients[i, 0]
            sums[s, 1] += rows.gradients[i, 1]
    return sums


@kernel
def sum_bins(histogram, start, stop):
    """Return the sums of gradients and hessians over a range of bins."""
    g, h = np.int64(0), np.int64(0)
    for b in range(start, stop):
        g += histogram[b, 0]
        h += histogram[b, 1]
    return g, h


@kernel
def insert_proposal(proposals, s, f, threshold, direction, gain):
    """Insert a split among those of slot ``s``, after those of at least its gain; drop the last."""
    n_candidates = proposals.gain.shape[1]
    c = min(proposals.counts[s], n_candidates - 1)
    while c > 0 and proposals.gain[s, c - 1] < gain:
        proposals.feature[s, c] = proposals.feature[s, c - 1]
        proposals.threshold[s, c] = proposals.threshold[s, c - 1]
        proposals.direction[s, c] = proposals.direction[s, c - 1]
        proposals.gain[s, c] = proposals.gain[s, c - 1]
        c -= 1
    proposals.feature[s, c] = f
    proposals.threshold[s, c] = threshold
    proposals.direction[s, c] = direction
    proposals.gain[s, c] = gain
    proposals.counts[s] = min(proposals.counts[s] + 1, n_candidates)


@kernel
def sum_missing(columns, f, rows, sums):
    """Add the gradients of rows without feature ``f`` to the sums (slots, 2)."""
    for i in range(columns.n_present[f], columns.order.shape[1]):
        r = columns.order[f, i]
        s = rows.slot[r]
        if s >= 0:
            sums[s, 0] += rows.gradients[r, 0]
            sums[s, 1] += rows.gradients[r, 1]


@kernel
def halfway(low, high):
    """Return a float32 above ``low`` and at most ``high``, halfway between them if there is one."""
    middle = np.float32(0.5 * (np.float64(low) + np.float64(high)))
    return middle if middle > low else high


@kernel
def no_proposals(n_slots, n_candidates):
    """Return `Proposals` with room for ``n_candidates`` of each slot."""
    shape = n_slots, n_candidates
    return Proposals(
        np.empty(shape, np.int32),
        np.empty(shape, np.float32),
        np.empty(shape, np.uint8),
        np.empty(shape, np.float32),
        np.zeros(n_slots, np.int64),
    )


@kernel
def propose_splits(columns, rows, totals, n_candidates, rule):
    """Return the best `Proposals` of each slot, at most ``n_candidates``.

    ``totals`` (slots, 2) are the sums of each slot's rows. Ties go to the lower feature, then to
    the lower threshold.
    """
    n_slots = totals.shape[0]
    proposals = no_proposals(n_slots, n_candidates)
    left, missing = np.empty((n_slots, 2), np.int64), np.empty((n_slots, 2), np.int64)
    last, seen = np.empty(n_slots, np.float32), np.empty(n_slots, np.bool_)
    nodes = [score_node(totals[s, 0], totals[s, 1], rule) for s in range(n_slots)]
    threshold_gain = np.full(n_slots, max(MIN_GAIN, np.float32(rule.gamma)))  # must be exceeded
    for f in range(columns.order.shape[0]):
        left[:], missing[:], seen[:] = 0, 0, False
        sum_missing(columns, f, rows, missing)
        for i in range(columns.n_present[f]):
            r = columns.order[f, i]
            s = rows.slot[r]
            if s < 0:
                continue
            value = columns.values[f, i]
            if seen[s] and value != last[s]:
                gain, direction = gain_and_direction(
                    left[s, 0], left[s, 1], missing[s, 0], missing[s, 1], nodes[s], rule
                )
                if gain > threshold_gain[s]:
                    insert_proposal(proposals, s, f, halfway(last[s], value), direction, gain)
                    if proposals.counts[s] == n_candidates:
                        threshold_gain[s] = proposals.gain[s, n_candidates - 1]
            left[s, 0] += rows.gradients[r, 0]
            left[s, 1] += rows.gradients[r, 1]
            last[s] = value
            seen[s] = True
    return proposals


@kernel
def sum_candidates(X, rows, candidates):
    """Return the `CandidateSums` of the rows."""
    start, feature, threshold = candidates
    left, missing = np.zeros((feature.size, 2), np.int64), np.zeros((feature.size, 2), np.int64)
    for i in range(rows.slot.size):
        s = rows.slot[i]
        if s >= 0:
            g, h = rows.gradients[i, 0], rows.gradients[i, 1]
            for c in range(start[s], start[s + 1]):
                x = X[i, feature[c]]
                if x < threshold[c]:
                    left[c, 0] += g
                    left[c, 1] += h
                elif x != x:
                    missing[c, 0] += g
                    missing[c, 1] += h
    return CandidateSums(left, missing, sum_by_slot(rows, start.size - 1))


@kernel
def gains_of_candidates(start, sums, rule):
    """Return each candidate's gain, 0 if it may not be chosen, and its side of missing values.

    The candidates of slot s are ``start[s]`` to ``start[s + 1]``.
    """
    left, missing = sums.left, sums.missing
    gains, directions = np.empty(len(left), np.float32), np.empty(len(left), np.uint8)
    for s in range(start.size - 1):
        node = score_node(sums.totals[s, 0], sums.totals[s, 1], rule)
        for c in range(start[s], start[s + 1]):
            gain, directions[c] = gain_and_direction(
                left[c, 0], left[c, 1], missing[c, 0], missing[c, 1], node, rule
            )
            gains[c] = gain if gain > MIN_GAIN and gain >= rule.gamma else np.float32(0)
    return gains, directions


@kernel
def move_rows(X, node, first, decisions, child):
    """Return the nodes (n,) of rows after splits of the nodes ``first``, first + 1, ….

    The left child of node first + j is ``child[j]``; the right child follows it.
    """
    feature, threshold, missing_left, right = decisions
    moved, n_decided = np.empty_like(node), np.uint32(feature.size)
    has_sets = right.shape[1] > 0
    for i in range(node.size):
        moved[i] = node[i]
        j = np.uint32(node[i] - first)  # large for a node before the first
        if j < n_decided and feature[j] >= 0:
            x = X[i, np.uint32(feature[j])]  # an unsigned index cannot count from the end
            # The side is hard to predict, so it is computed without a branch.
            is_right = (x >= threshold[j]) | ((x != x) & (not missing_left[j]))
            if has_sets and threshold[j] == BY_CATEGORY:
                is_right = not goes_left(x, threshold[j], missing_left[j], right, j)
            moved[i] = child[j] + is_right
    return moved
