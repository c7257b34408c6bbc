"""Vasilopoulou's boosting in one compiled loop, for the search for its settings.

The trees are those of ``FederatedXGBClassifier(method="top_splits")``, as a test checks: the same
kernels compute gradients, proposals and splits. No messages are exchanged, so that a search can
afford many thousand models. One fit returns the predictions after several numbers of trees, because
the first trees of a longer run are those of a shorter one.
"""

from itertools import pairwise
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from fedlib.boosting import rules
from fedlib.kernels import kernel
from fedlib.kernels import splits as kernels
from fedlib.kernels.gains import SplitRule
from study.boosting import RULES

SUM_BITS = 52
BY_WEIGHT = rules.RULES[RULES].by_weight
LEAVES = ("all", "ended", "parent")


class Options(NamedTuple):
    """The settings of one fit; for their meaning see ``FederatedXGBClassifier``.

    ``leaf`` is an index into `LEAVES`. With ``local_update``, each client updates the predictions
    of its rows from the sums of its own leaves, and trees are merged after the last one (F, §3.3).
    """

    depth: int
    rate: float
    reg_lambda: float
    min_child_weight: float
    n_candidates: int
    leaf: int
    local_update: bool
    tol: float


class Growth(NamedTuple):
    """A tree while it grows: its decisions, its left children, and the number of its nodes."""

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    parent: np.ndarray


def boost(parts, X_new, grid, options):
    """Fit Vasilopoulou's trees and return predictions after several numbers of trees.

    Parameters
    ----------
    parts : list of (X, y)
        One part per client; y is 0 or 1, no values are missing.
    X_new : array (n_new, n_features)
    grid : sequence of int
        Numbers of trees in ascending order.
    options : Options

    Returns
    -------
    margins : array (len(grid) + 1, n_new) of float32
        The log-odds of the rows ``X_new``; the last row belongs to F's stopping rule.
    stopped : int
        The number of trees of F's rule, or the largest of the grid if that is less.
    """
    X = np.concatenate([part for part, _ in parts]).astype(np.float32)
    y = np.concatenate([classes for _, classes in parts])
    starts = np.append(0, np.cumsum([len(classes) for _, classes in parts]))
    order = np.empty((X.shape[1], len(X)), np.int32)
    for a, b in pairwise(starts):
        order[:, a:b] = np.argsort(X[a:b].T, axis=1, kind="stable")
    owner = np.repeat(starts[:-1], np.diff(starts))
    values = np.take_along_axis(X.T, order + owner, axis=1)
    share = np.float32(y.mean())
    return _boost(
        X,
        y == 1,
        starts,
        order,
        np.ascontiguousarray(values),
        np.ascontiguousarray(X_new, np.float32),
        np.asarray(grid),
        kernels.log_odds(share),
        SUM_BITS - ceil(log2(len(X))),
        options,
    )


@kernel
def _boost(X, positive, starts, order, values, X_new, grid, base, bits, options):
    n = len(X)
    unit, ones = 2.0**-bits, np.ones(n)
    # In compiled code, a named tuple has no default values.
    rule = SplitRule(
        unit, options.reg_lambda, 0.0, options.min_child_weight, 0.0, 0.0, False, BY_WEIGHT
    )
    margins, new = np.full(n, base, np.float32), np.full(len(X_new), base, np.float32)
    staged = np.empty((grid.size + 1, len(X_new)), np.float32)
    loss, stopped, at = kernels.sum_losses(margins, positive, ones), 0, 0
    for t in range(1, grid[-1] + 1):
        gradients = kernels.compute_gradients(margins, positive, ones, bits)
        tree, node, ended = _grow(X, starts, order, values, gradients, rule, options)
        where = np.where(ended >= 0, ended, node)
        # Rows of a client that ended further up do not count below, as in F's Algorithm 1.
        value = _values(tree, where, gradients, 0, n, unit, options, options.leaf)
        if options.local_update:
            for c in range(starts.size - 1):
                a, b = starts[c], starts[c + 1]
                local = _values(tree, where, gradients, a, b, unit, options, 0)
                for i in range(a, b):
                    margins[i] += local[where[i]]
        else:
            for i in range(n):
                margins[i] += value[node[i]]
        _add_tree(X_new, tree, value, new)
        before, loss = loss, kernels.sum_losses(margins, positive, ones)
        if stopped == 0 and (before - loss) / n < options.tol:
            stopped = t
            staged[-1] = new
        if t == grid[at]:
            staged[at] = new
            at += 1
    if stopped == 0:
        stopped = grid[-1]
        staged[-1] = new
    return staged, stopped


@kernel
def _grow(X, starts, order, values, gradients, rule, options):
    """Return a tree, each row's leaf, and the node in which its client's tree ended, or -1."""
    n, n_clients, s_max = len(X), starts.size - 1, options.n_candidates
    size = 2 ** (options.depth + 1) - 1
    tree = Growth(
        np.full(size, -1, np.int32),
        np.zeros(size, np.float32),
        np.full(size, -1, np.int32),
        np.full(size, -1, np.int32),
    )
    node, ended = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    first, n_open = 0, 1
    for _ in range(options.depth):
        counts = np.zeros((n_clients, n_open), np.int64)
        weight = np.zeros((n_clients, n_open))
        features = np.empty((n_clients, n_open, s_max), np.int32)
        thresholds = np.empty((n_clients, n_open, s_max), np.float32)
        gains = np.empty((n_clients, n_open, s_max), np.float32)
        for c in range(n_clients):
            a, b = starts[c], starts[c + 1]
            slot = np.empty(b - a, np.int32)
            for i in range(b - a):
                j = node[a + i] - first
                is_open = 0 <= j < n_open and ended[a + i] < 0
                slot[i] = j if is_open else -1
                if is_open:
                    weight[c, j] += 1
            rows = kernels.Rows(slot, gradients[a:b])
            present = np.full(X.shape[1], b - a)
            columns = kernels.SortedColumns(order[:, a:b], values[:, a:b], present)
            totals = kernels.sum_by_slot(rows, n_open)
            proposals = kernels.propose_splits(columns, rows, totals, s_max, rule)
            counts[c] = proposals.counts
            features[c], thresholds[c] = proposals.feature, proposals.threshold
            gains[c] = proposals.gain
            if options.leaf == 1:
                for i in range(b - a):
                    if slot[i] >= 0 and proposals.counts[slot[i]] == 0:
                        ended[a + i] = node[a + i]
        n_split = 0
        for s in range(n_open):
            f, threshold = _choose(
                counts[:, s], features[:, s], thresholds[:, s], gains[:, s], weight[:, s]
            )
            if f >= 0:
                tree.feature[first + s] = f
                tree.threshold[first + s] = threshold
                left = first + n_open + 2 * n_split
                tree.left[first + s] = left
                tree.parent[left], tree.parent[left + 1] = first + s, first + s
                n_split += 1
        for i in range(n):
            j = node[i]
            if tree.feature[j] >= 0:
                is_left = X[i, tree.feature[j]] < tree.threshold[j]
                node[i] = tree.left[j] if is_left else tree.left[j] + 1
        first, n_open = first + n_open, 2 * n_split
        if n_split == 0:
            break
    used = first + n_open
    return (
        Growth(tree.feature[:used], tree.threshold[:used], tree.left[:used], tree.parent[:used]),
        node,
        ended,
    )


@kernel
def _choose(counts, features, thresholds, gains, weight):
    """Return the split with the largest sum of votes (3.3); the feature is -1 without a proposal.

    Ties go to the lower feature, then to the lower threshold.
    """
    most = counts.sum()
    feature, threshold = np.empty(most, np.int32), np.empty(most, np.float32)
    votes, n_distinct = np.zeros(most), 0
    for c in range(counts.size):
        for k in range(counts[c]):
            vote = weight[c] * (0.5 * np.float64(gains[c, k]))
            j = 0
            while j < n_distinct and (
                feature[j] != features[c, k] or threshold[j] != thresholds[c, k]
            ):
                j += 1
            if j == n_distinct:
                feature[j], threshold[j] = features[c, k], thresholds[c, k]
                n_distinct += 1
            votes[j] += vote
    best = -1
    for j in range(n_distinct):
        if best < 0 or votes[j] > votes[best]:
            best = j
        elif votes[j] == votes[best]:
            lower = feature[j] == feature[best] and threshold[j] < threshold[best]
            if feature[j] < feature[best] or lower:
                best = j
    if best < 0:
        return np.int32(-1), np.float32(0)
    return feature[best], threshold[best]


@kernel
def _values(tree, where, gradients, a, b, unit, options, leaf):
    """Return the value of every node from the rows a to b, which are in the nodes ``where``."""
    size = tree.feature.size
    sums = np.zeros((size, 2), np.int64)
    for i in range(a, b):
        sums[where[i], 0] += gradients[i, 0]
        sums[where[i], 1] += gradients[i, 1]
    totals = sums.copy()
    for j in range(size - 1, 0, -1):
        totals[tree.parent[j]] += totals[j]
    value = np.zeros(size, np.float32)
    rate = np.float32(options.rate)
    limit = 0.0 if options.local_update else options.min_child_weight
    for j in range(size):
        g, h = totals[j, 0], totals[j, 1]
        if leaf > 0 and j > 0:
            added = sums if leaf == 1 else totals
            g += added[tree.parent[j], 0]
            h += added[tree.parent[j], 1]
        real_g, real_h = g * unit, h * unit
        if real_h > 0 and real_h >= limit:
            value[j] = np.float32(-real_g / (real_h + options.reg_lambda)) * rate
    return value


@kernel
def _add_tree(X, tree, value, margins):
    """Add the values of the leaves that rows reach to their margins."""
    for i in range(len(X)):
        j = 0
        while tree.feature[j] >= 0:
            is_left = X[i, tree.feature[j]] < tree.threshold[j]
            j = tree.left[j] if is_left else tree.left[j] + 1
        margins[i] += value[j]
