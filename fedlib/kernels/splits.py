"""Gradients, their sums and the splits of gradient-boosted trees, in XGBoost's own arithmetic.

Gradients and hessians are float32. They are summed as whole numbers, multiples of 2**-bits, so that
a sum depends on no order; the caller sees to it that no sum reaches 2**53, so each is a float64
exactly. Gains are float32. A row is in a ``slot``, the number of its node among the open ones; -1
where it has none.

Features are gone through one after the other: clients call these kernels side by side in threads,
and several threads inside parallel kernels abort the process on numba's workqueue layer. The
cores are shared by the clients instead.
"""

import math

import numpy as np

from fedlib.kernels import kernel

ONE = np.float32(1)
LEAST_HESSIAN = np.float32(1e-16)
GREATEST_EXPONENT = np.float32(88.7)  # of e, in float32
LEAST_GAIN = np.float32(1e-6)

RIGHT, LEFT, NEITHER = 0, 1, 2  # where a split sends missing values; NEITHER: there are none


@kernel
def log_odds(share):
    """Return the margin of a share of positive rows, both float32."""
    return np.float32(-np.log(np.float32(ONE / share - ONE)))


@kernel
def sum_gradients(margins, positive, weights, bits, gradients):
    """Write each row's gradient and hessian (n, 2), as multiples of 2**-bits."""
    scale = 2.0**bits
    for i in range(margins.size):
        x = min(-margins[i], GREATEST_EXPONENT)
        p = np.float32(ONE / np.float32(np.float32(np.exp(x)) + ONE))
        y = ONE if positive[i] else np.float32(0)
        g = np.float32(np.float32(p - y) * weights[i])
        h = np.float32(max(np.float32(p * np.float32(ONE - p)), LEAST_HESSIAN) * weights[i])
        gradients[i, 0] = np.int64(math.floor(np.float64(g) * scale + 0.5))
        gradients[i, 1] = np.int64(math.floor(np.float64(h) * scale + 0.5))


@kernel
def sum_losses(margins, positive, weights):
    """Return the sum of the rows' weighted log-losses."""
    total = 0.0
    for i in range(margins.size):
        m = np.float64(margins[i])
        loss = max(m, 0.0) + np.log1p(np.exp(-abs(m)))
        if positive[i]:
            loss -= m
        total += loss * weights[i]
    return total


@kernel
def score(g, h, reg_lambda):
    """Return the similarity score G²/(H + λ) of a node (3.2), a quotient of two float32."""
    if h <= 0:
        return np.float32(0)
    return np.float32(np.float32(g * g) / np.float32(h + reg_lambda))


@kernel
def scores(g, h, reg_lambda):
    """Return the similarity scores of nodes, from their sums (n,)."""
    out = np.empty(g.size, np.float32)
    for i in range(g.size):
        out[i] = score(g[i], h[i], reg_lambda)
    return out


@kernel
def split_gain(left_g, left_h, g, h, parent_score, reg_lambda, min_child_weight):
    """Return a split's gain, twice (3.1) but for γ, as float32; -1 where a side weighs too little.

    ``left_g`` and ``left_h`` are the sums on the left, ``g`` and ``h`` the node's.
    """
    right_h = h - left_h
    if left_h < min_child_weight or right_h < min_child_weight or left_h <= 0 or right_h <= 0:
        return np.float32(-1)
    both = np.float32(score(left_g, left_h, reg_lambda) + score(g - left_g, right_h, reg_lambda))
    return np.float32(both - parent_score)


@kernel
def sum_by_slot(slot, gradients, sums):
    """Add the rows' gradients (n, 2) to the sums (slots, 2) of their slots."""
    for i in range(slot.size):
        s = slot[i]
        if s >= 0:
            sums[s, 0] += gradients[i, 0]
            sums[s, 1] += gradients[i, 1]


@kernel
def sum_histograms(bins, offsets, slot, gradients, sums):
    """Add the rows' gradients to the sums (slots, n_bins, 2).

    ``bins`` (n, d) is each value's bin among its feature's, which start at ``offsets`` (d + 1,).
    """
    n, d = bins.shape
    for i in range(n):
        s = slot[i]
        if s >= 0:
            g, h = gradients[i, 0], gradients[i, 1]
            for f in range(d):
                b = offsets[f] + bins[i, f]
                sums[s, b, 0] += g
                sums[s, b, 1] += h


@kernel
def best_splits(
    sums, offsets, unit, reg_lambda, gamma, min_child_weight, feature, cut, left, gain, left_sums
):
    """Write the best split of each node from its histogram (nodes, n_bins, 2).

    The last bin of each feature is that of its missing values. ``feature`` is -1 where no split
    gains anything. Of equal gains the lower feature wins, then the lower cut; missing values go
    left only where that is strictly better, and then of equal gains the higher cut wins.
    """
    n_nodes, d = sums.shape[0], offsets.size - 1
    for s in range(n_nodes):
        feature[s] = -1
        gain[s] = 0
        total_g, total_h = np.int64(0), np.int64(0)
        for b in range(offsets[0], offsets[1]):
            total_g += sums[s, b, 0]
            total_h += sums[s, b, 1]
        g, h = total_g * unit, total_h * unit
        parent = score(g, h, reg_lambda)
        best = np.float32(0)
        for f in range(d):
            start, missing = offsets[f], offsets[f + 1] - 1
            best_here = np.float32(0)
            best_cut, best_left = -1, False
            left_g, left_h = np.int64(0), np.int64(0)
            for b in range(start, missing):
                left_g += sums[s, b, 0]
                left_h += sums[s, b, 1]
                new = split_gain(
                    left_g * unit, left_h * unit, g, h, parent, reg_lambda, min_child_weight
                )
                if new > best_here:
                    best_here, best_cut = new, b - start
            missing_g, missing_h = sums[s, missing, 0], sums[s, missing, 1]
            if missing_g != 0 or missing_h != 0:
                left_g, left_h = total_g, total_h
                for b in range(missing - 1, start, -1):
                    left_g -= sums[s, b, 0]
                    left_h -= sums[s, b, 1]
                    new = split_gain(
                        left_g * unit, left_h * unit, g, h, parent, reg_lambda, min_child_weight
                    )
                    if new > best_here:
                        best_here, best_cut, best_left = new, b - 1 - start, True
            if best_here > best:
                best = best_here
                feature[s], cut[s], left[s] = f, best_cut, best_left
        if feature[s] < 0 or best <= LEAST_GAIN or best < gamma:
            feature[s] = -1
            continue
        gain[s] = best
        start, missing = offsets[feature[s]], offsets[feature[s] + 1] - 1
        left_sums[s, 0] = sums[s, missing, 0] if left[s] else 0
        left_sums[s, 1] = sums[s, missing, 1] if left[s] else 0
        for b in range(start, start + cut[s] + 1):
            left_sums[s, 0] += sums[s, b, 0]
            left_sums[s, 1] += sums[s, b, 1]


@kernel
def propose_splits(
    order,
    values,
    n_present,
    slot,
    gradients,
    totals,
    unit,
    reg_lambda,
    gamma,
    min_child_weight,
    feature,
    threshold,
    direction,
    gain,
    count,
):
    """Write the best splits of each slot, the best first, and their ``count`` (slots,).

    Parameters
    ----------
    order : array (d, n) of int32
        The rows in ascending order of each feature; those that lack it last.
    values : array (d, n) of float32
        The features in these orders.
    n_present : array (d,) of int64
        How many rows have each feature.
    slot : array (n,) of int32
    gradients : array (n, 2) of int64
    totals : array (slots, 2) of int64
        The sums over each slot's rows.
    feature, threshold, direction, gain : arrays (slots, n_candidates)
        What is written. A threshold lies halfway between two adjacent values of the slot's rows.
    """
    d, n = order.shape
    n_slots, n_candidates = gain.shape
    left_g, left_h = np.empty(n_slots, np.int64), np.empty(n_slots, np.int64)
    missing_g, missing_h = np.empty(n_slots, np.int64), np.empty(n_slots, np.int64)
    last = np.empty(n_slots, np.float32)
    seen = np.empty(n_slots, np.bool_)
    parent = np.empty(n_slots, np.float32)
    least = np.empty(n_slots, np.float32)  # what a split has to exceed
    for s in range(n_slots):
        count[s] = 0
        parent[s] = score(totals[s, 0] * unit, totals[s, 1] * unit, reg_lambda)
        least[s] = max(LEAST_GAIN, np.float32(gamma))
    for f in range(d):
        for s in range(n_slots):
            left_g[s], left_h[s] = 0, 0
            missing_g[s], missing_h[s] = 0, 0
            seen[s] = False
        for i in range(n_present[f], n):
            r = order[f, i]
            s = slot[r]
            if s >= 0:
                missing_g[s] += gradients[r, 0]
                missing_h[s] += gradients[r, 1]
        for i in range(n_present[f]):
            r = order[f, i]
            s = slot[r]
            if s < 0:
                continue
            v = values[f, i]
            if seen[s] and v != last[s]:
                g, h = totals[s, 0] * unit, totals[s, 1] * unit
                new = split_gain(
                    left_g[s] * unit,
                    left_h[s] * unit,
                    g,
                    h,
                    parent[s],
                    reg_lambda,
                    min_child_weight,
                )
                towards = NEITHER
                if missing_g[s] != 0 or missing_h[s] != 0:
                    towards = RIGHT
                    other = split_gain(
                        (left_g[s] + missing_g[s]) * unit,
                        (left_h[s] + missing_h[s]) * unit,
                        g,
                        h,
                        parent[s],
                        reg_lambda,
                        min_child_weight,
                    )
                    if other > new:
                        new, towards = other, LEFT
                if new > least[s]:
                    c = min(count[s], n_candidates - 1)
                    while c > 0 and gain[s, c - 1] < new:
                        feature[s, c] = feature[s, c - 1]
                        threshold[s, c] = threshold[s, c - 1]
                        direction[s, c] = direction[s, c - 1]
                        gain[s, c] = gain[s, c - 1]
                        c -= 1
                    middle = np.float32(0.5 * (np.float64(last[s]) + np.float64(v)))
                    feature[s, c] = f
                    threshold[s, c] = middle if middle > last[s] else v
                    direction[s, c] = towards
                    gain[s, c] = new
                    count[s] = min(count[s] + 1, n_candidates)
                    if count[s] == n_candidates:
                        least[s] = gain[s, n_candidates - 1]
            left_g[s] += gradients[r, 0]
            left_h[s] += gradients[r, 1]
            last[s] = v
            seen[s] = True


@kernel
def sum_candidates(X, slot, gradients, start, feature, threshold, left, missing):
    """Add up what lies left of each candidate and what lacks its feature, (candidates, 2) each.

    The candidates of a slot s are ``start[s]`` to ``start[s + 1]``.
    """
    for i in range(slot.size):
        s = slot[i]
        if s >= 0:
            g, h = gradients[i, 0], gradients[i, 1]
            for c in range(start[s], start[s + 1]):
                x = X[i, feature[c]]
                if x < threshold[c]:
                    left[c, 0] += g
                    left[c, 1] += h
                elif x != x:
                    missing[c, 0] += g
                    missing[c, 1] += h


@kernel
def gains_of_candidates(
    start, left, missing, totals, unit, reg_lambda, gamma, min_child_weight, gain, direction
):
    """Write each candidate's gain, 0 where it may not be chosen, and where missing values go."""
    for s in range(start.size - 1):
        g, h = totals[s, 0] * unit, totals[s, 1] * unit
        parent = score(g, h, reg_lambda)
        for c in range(start[s], start[s + 1]):
            new = split_gain(
                left[c, 0] * unit, left[c, 1] * unit, g, h, parent, reg_lambda, min_child_weight
            )
            direction[c] = RIGHT
            if missing[c, 0] != 0 or missing[c, 1] != 0:
                other = split_gain(
                    (left[c, 0] + missing[c, 0]) * unit,
                    (left[c, 1] + missing[c, 1]) * unit,
                    g,
                    h,
                    parent,
                    reg_lambda,
                    min_child_weight,
                )
                if other > new:
                    new, direction[c] = other, LEFT
            gain[c] = new if new > LEAST_GAIN and new >= gamma else np.float32(0)


@kernel
def move_rows(X, node, first, feature, threshold, missing_left, child):
    """Move rows from the nodes ``first``, first + 1, … to their children; feature -1: a leaf.

    The left child of the node first + j is ``child[j]``, the right one follows it.
    """
    for i in range(node.size):
        j = node[i] - first
        if 0 <= j < feature.size and feature[j] >= 0:
            x = X[i, feature[j]]
            goes_left = x < threshold[j] or (x != x and missing_left[j])
            node[i] = child[j] if goes_left else child[j] + 1


@kernel
def sum_trees(X, start, feature, threshold, missing_left, left, value, margins):
    """Add the values (nodes,) of the leaves that rows (n, d) reach to their margins, in float32.

    The nodes of a tree t are ``start[t]`` to ``start[t + 1]``; ``left`` counts from its root.
    """
    for i in range(margins.size):
        for t in range(start.size - 1):
            j = start[t]
            while feature[j] >= 0:
                x = X[i, feature[j]]
                goes_left = x < threshold[j] or (x != x and missing_left[j])
                j = start[t] + left[j] + (0 if goes_left else 1)
            margins[i] += value[j]
