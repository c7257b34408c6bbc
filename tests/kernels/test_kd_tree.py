"""The tree of boxes: every node's points, box and children; which leaves are near a leaf."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlib.kernels import kd_tree


@st.composite
def clouds(draw):
    n, d = draw(st.integers(0, 90)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, draw(st.sampled_from([1, 3, 50])), (n, d)).astype(float)


@given(clouds(), st.integers(1, 20), st.sampled_from([0.0, 2.0, 30.0]))
def test_nodes_hold_their_points(X, leaf_size, diagonal):
    """The order is a permutation, boxes fit, children share a node, leaves are small enough."""
    order, first, stop, right, lower, upper = kd_tree.build(X, leaf_size, diagonal)
    assert sorted(order) == list(range(len(X)))
    for node in range(len(first)):
        own = X[order[first[node] : stop[node]]]
        np.testing.assert_array_equal(lower[node], own.min(axis=0))
        np.testing.assert_array_equal(upper[node], own.max(axis=0))
        small = len(own) <= leaf_size or ((upper[node] - lower[node]) ** 2).sum() <= diagonal
        assert (right[node] == 0) == small
        if right[node]:
            assert first[node] == first[node + 1] < stop[node + 1] == first[right[node]]
            assert stop[right[node]] == stop[node]


@given(clouds(), st.sampled_from([0.0, 2.0, 30.0]), st.integers(1, 200), st.integers(0, 2**32))
def test_near_leaves_by_brute_force(X, diagonal, room, seed):
    """Leaves whose boxes are within the reach of either, however little room there is."""
    limits = np.random.default_rng(seed).integers(0, 20, len(X)).astype(float)
    order, first, _, right, lower, upper = kd_tree.build(X, 1, diagonal)
    start, first_leaf, furthest = kd_tree.collect_leaves(order, first, right, limits)
    leaves = np.flatnonzero(right == 0)
    n = len(leaves)
    assert (len(start), start[-1]) == (n + 1, len(X))
    low, high = lower[leaves], upper[leaves]
    reach = np.array([limits[order[a:b]].max() for a, b in pairwise(start)])
    gap = np.maximum(np.maximum(low[:, None] - high[None], low[None] - high[:, None]), 0)
    wanted = (gap**2).sum(axis=2) <= np.maximum(reach[:, None], reach[None, :])
    found = np.zeros((n, n), bool)
    near_start, near = np.empty(8, np.int64), np.empty((max(n, room), 2), np.int64)
    which = np.arange(n)
    done = 0
    while done < n:
        some = kd_tree.near_in_tree(
            which, done, leaves, right, lower, upper, first_leaf, furthest, near_start, near
        )
        assert some >= 1
        for w in range(some):
            for a, b in near[near_start[w] : near_start[w + 1]]:
                found[done + w, a:b] = True
        done += some
    np.testing.assert_array_equal(found, wanted)
