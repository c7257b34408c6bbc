"""Counts of values in buckets of a grid, feature by feature; see `fedlib.boosting.cuts`.

A value's key is an unsigned integer in the order of the values. The key of a bucket is the leading
bits that its values have in common.

Splits by sets of categories, as XGBoost's ``hist`` finds them.

A category is a number 0, 1, …. A split sends a set of categories to the right and all others to the
left, also those that the set cannot contain. A set is a row of bytes: category c is bit c % 8 of
byte c // 8.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.kernels import kernel
from fedlib.kernels.gains import NO_BOUND, newton_step, split_gain

# The threshold of a split by a set of categories; no threshold between numbers is as large.
BY_CATEGORY = np.finfo(np.float32).max


@kernel
def is_in_set(sets, i, x):
    """Return whether row ``i`` of sets (n, n_bytes) of uint8 contains the category ``x``."""
    if not (0 <= x < 8 * sets.shape[1]):
        return False
    c = int(x)
    return (sets[i, c >> 3] >> np.uint8(c & 7)) & np.uint8(1) != 0


@kernel
def best_single_category(histogram, start, missing, total, node, rule):
    """Return the best split into one category and the others: gain, category, side of missing.

    Of equal gains, the lower category wins, with its missing values on the left.
    """
    gain, category, missing_left = np.float32(0), -1, True
    missing_g, missing_h = histogram[missing, 0], histogram[missing, 1]
    for b in range(start, missing):
        left_g, left_h = total[0] - histogram[b, 0], total[1] - histogram[b, 1]
        new = split_gain(left_g, left_h, node, rule)
        if new > gain:
            gain, category, missing_left = new, b - start, True
        new = split_gain(left_g - missing_g, left_h - missing_h, node, rule)
        if new > gain:
            gain, category, missing_left = new, b - start, False
    return gain, category, missing_left


@kernel
def order_categories(histogram, start, missing, rule):
    """Return the categories in the order of their weights −G/(H + λ), without bounds."""
    weights = np.empty(missing - start, np.float32)
    for b in range(start, missing):
        g, h = histogram[b, 0] * rule.unit, histogram[b, 1] * rule.unit
        weights[b - start] = newton_step(g, h, -NO_BOUND, NO_BOUND, rule)
    return np.argsort(weights, kind="mergesort")  # stable, as in XGBoost


@kernel
def best_partition(histogram, start, order, total, node, rule, max_cat_threshold):
    """Return the best cut of ordered categories: gain, number on the right, side of missing.

    The categories at the beginning of the order go right. Of equal gains, the smaller number of
    categories at the beginning wins, then the smaller number at the end.
    """
    gain, n_right, missing_left = np.float32(0), 0, True
    size = min(max_cat_threshold, order.size)
    right_g, right_h = np.int64(0), np.int64(0)
    for i in range(size - 1):
        right_g += histogram[start + order[i], 0]
        right_h += histogram[start + order[i], 1]
        new = split_gain(total[0] - right_g, total[1] - right_h, node, rule)
        if new > gain:
            gain, n_right, missing_left = new, i + 1, True
    left_g, left_h = np.int64(0), np.int64(0)
    for i in range(order.size - 1, order.size - size, -1):
        left_g += histogram[start + order[i], 0]
        left_h += histogram[start + order[i], 1]
        new = split_gain(left_g, left_h, node, rule)
        if new > gain:
            gain, n_right, missing_left = new, i, False
    return gain, n_right, missing_left


@kernel
def best_category_split(histogram, start, missing, total, node, rule, categories):
    """Return the best split of a node by the categories of one feature.

    The feature's bins are ``start`` to ``missing``; the last one contains its missing values.
    ``total`` are the integer sums of the node, ``node`` is its `NodeScore`.

    Returns
    -------
    gain : float32
        0 if no split is allowed.
    right : array of int64
        The categories that go right.
    missing_left : bool
    """
    if missing - start < categories.max_cat_to_onehot:
        gain, category, missing_left = best_single_category(
            histogram, start, missing, total, node, rule
        )
        return gain, np.full(1, category), missing_left
    order = order_categories(histogram, start, missing, rule)
    gain, n_right, missing_left = best_partition(
        histogram, start, order, total, node, rule, categories.max_cat_threshold
    )
    return gain, order[:n_right], missing_left


@kernel
def goes_left(x, threshold, missing_left, right, i):
    """Return whether a row with the value ``x`` of a node's feature goes left.

    Row ``i`` of ``right`` (n, n_bytes) is the set of categories that go right.
    """
    if x != x:
        return missing_left
    if threshold == BY_CATEGORY:
        return not is_in_set(right, i, x)
    return x < threshold


POSSIBLE, UNSORTED, NOT_REQUESTED, CONTRADICTION, TOO_MANY = range(5)  # what a reply can be


class SortedKeys(NamedTuple):
    """The ``keys`` (n_features, n) of values, ascending; the first ``n_present`` (n_features,).

    The keys after these are of missing values, and mean nothing.
    """

    keys: NDArray[np.uint32]
    n_present: NDArray[np.int64]


class Buckets(NamedTuple):
    """The occupied buckets of each feature: their ``keys`` and the ``counts`` of values.

    Both are one feature after the other; ``sizes`` (n_features,) are the counts of buckets. Those
    of several clients are one client after the other, with ``sizes`` (n_clients, n_features).
    """

    sizes: NDArray[np.int64]
    keys: NDArray[np.uint32]
    counts: NDArray[np.int64]


@kernel
def count_prefixes(keys, n_dropped, requested, n_finer, prefixes, counts):
    """Write the distinct prefixes of ascending ``keys`` (n,), and how often each occurs.

    A prefix is a key without its last ``n_dropped`` bits. Only those inside the ``requested``
    buckets are counted, which are ascending and ``n_finer`` bits shorter. Return their number.
    """
    n_found, bucket, is_inside = 0, 0, False
    previous = np.uint64(2**32)  # which no prefix is
    for key in keys:
        prefix = np.uint64(key) >> n_dropped
        if prefix != previous:
            previous = prefix
            while bucket < requested.size and requested[bucket] < prefix >> n_finer:
                bucket += 1
            is_inside = bucket < requested.size and requested[bucket] == prefix >> n_finer
            if is_inside:
                prefixes[n_found], counts[n_found] = prefix, 0
                n_found += 1
        if is_inside:
            counts[n_found - 1] += 1
    return n_found


@kernel
def count_buckets(columns, n_dropped, sizes, requested, n_finer):
    """Return the `Buckets` that `count_prefixes` finds in the `SortedKeys` of all features.

    ``requested`` are one feature after the other; ``sizes`` are their numbers.
    """
    n_found, n_values, first = np.zeros(sizes.size, np.int64), np.int64(0), 0
    for f in range(sizes.size):
        n_values += min(columns.n_present[f], sizes[f] << np.int64(n_finer))
    keys, counts = np.empty(n_values, np.uint32), np.empty(n_values, np.int64)
    place = 0
    for f in range(sizes.size):
        present, inside = columns.keys[f, : columns.n_present[f]], requested[first:]
        n_found[f] = count_prefixes(
            present, n_dropped, inside[: sizes[f]], n_finer, keys[place:], counts[place:]
        )
        place += n_found[f]
        first += sizes[f]
    return Buckets(n_found, keys[:place].copy(), counts[:place].copy())


@kernel
def count_distinct(columns, n_dropped):
    """Return the count of distinct prefixes (n_features,) of `SortedKeys`."""
    n_distinct = np.zeros(columns.n_present.size, np.int64)
    for f in range(n_distinct.size):
        previous = np.uint64(2**32)
        for i in range(columns.n_present[f]):
            prefix = np.uint64(columns.keys[f, i]) >> n_dropped
            n_distinct[f] += prefix != previous
            previous = prefix
    return n_distinct


@kernel
def differs(keys, counts, before, counts_before, requested, place, n_finer):
    """Return whether a client's counts in a feature's buckets differ from those it sent before.

    Those are of buckets that are ``n_finer`` bits coarser, and only the ``requested`` ones are
    compared. The keys ascend, and ``place`` is that of `add_feature`.
    """
    k = 0
    for i in range(before.size):
        key = np.int64(before[i])
        r = place[key] if key < place.size else requested.size
        if r >= requested.size or requested[r] != key:
            continue
        total = np.int64(0)
        while k < keys.size and np.int64(keys[k]) >> n_finer == key:
            total += counts[k]
            k += 1
        if total != counts_before[i]:
            return True
    return k < keys.size


@kernel
def add_feature(keys, counts, requested, place, n_finer, sums):
    """Add a client's counts to the ``sums`` (n_requested << n_finer,) of finer buckets.

    The place of each requested bucket is ``place[key]``; other entries of it mean nothing. Return
    what the reply is, and the total of its counts.
    """
    total, low_bits = np.int64(0), (1 << n_finer) - 1
    for i in range(keys.size):
        key = np.int64(keys[i])
        if i and key <= np.int64(keys[i - 1]):
            return UNSORTED, total
        prefix = key >> n_finer
        r = place[prefix] if prefix < place.size else requested.size
        if r >= requested.size or requested[r] != prefix:
            return NOT_REQUESTED, total
        sums[(r << n_finer) + (key & low_bits)] += counts[i]
        total += counts[i]
    return POSSIBLE, total


@kernel
def first_places(sizes):
    """Return where the first bucket of each client is, by sizes (n_clients, n_features)."""
    first = np.zeros(sizes.shape[0], np.int64)
    for c in range(1, first.size):
        first[c] = first[c - 1] + sizes[c - 1].sum()
    return first


@kernel
def max_or_zero(values):
    """Return the largest of values that are at least 0; 0 if there are none."""
    largest = np.int64(0)
    for value in values:
        largest = max(largest, np.int64(value))
    return largest


@kernel
def add_buckets(sizes, requested, n_finer, replies, previous, has_previous, n_rows):
    """Return the sums of clients' `Buckets` in the requested ones, and check each client's.

    Those of the ``replies`` are ``n_finer`` bits finer. ``requested`` are the keys, one feature
    after the other, and ``sizes`` their numbers. A client's counts must divide those of its
    ``previous`` reply, if it has one, as ``has_previous`` (n_clients,) says; if not, there are at
    most ``n_rows`` (n_clients,) values per feature.

    Returns
    -------
    sums : Buckets
        They mean something if all replies are possible.
    status : array (n_clients,)
        `POSSIBLE`, or what is wrong with a client's reply.
    """
    n_clients, n_features = replies.sizes.shape
    status, first = np.zeros(n_clients, np.int64), 0
    at, at_before = first_places(replies.sizes), first_places(previous.sizes)
    all_sums = np.zeros(max_or_zero(sizes) << n_finer, np.int64)
    place = np.zeros(max_or_zero(requested) + 1, np.int64)
    n_found = np.zeros(n_features, np.int64)
    n_most = min(replies.keys.size, sizes.sum() << n_finer)
    keys, counts = np.empty(n_most, np.uint32), np.empty(n_most, np.int64)
    n = 0
    for f in range(n_features):
        of_feature = requested[first : first + sizes[f]]
        for r in range(of_feature.size):
            place[of_feature[r]] = r
        sums = all_sums[: sizes[f] << n_finer]
        sums[:] = 0
        for c in range(n_clients):
            now = slice(at[c], at[c] + replies.sizes[c, f])
            before = slice(at_before[c], at_before[c] + previous.sizes[c, f])
            at[c], at_before[c] = now.stop, before.stop
            of_client, numbers = replies.keys[now], replies.counts[now]
            found, total = add_feature(of_client, numbers, of_feature, place, n_finer, sums)
            if found == POSSIBLE and not has_previous[c] and total > n_rows[c]:
                found = TOO_MANY
            if found == POSSIBLE and has_previous[c]:
                coarser, of_coarser = previous.keys[before], previous.counts[before]
                if differs(of_client, numbers, coarser, of_coarser, of_feature, place, n_finer):
                    found = CONTRADICTION
            status[c] = max(status[c], found)
        for i in range(sums.size):
            if sums[i]:
                bucket, low_bits = np.int64(of_feature[i >> n_finer]), i & ((1 << n_finer) - 1)
                keys[n] = (bucket << n_finer) + low_bits
                counts[n] = sums[i]
                n += 1
                n_found[f] += 1
        first += sizes[f]
    return Buckets(n_found, keys[:n], counts[:n]), status
