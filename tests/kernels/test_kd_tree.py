"""The k-d tree: each node's points, box and children; searches; and the leaves near a leaf."""

from itertools import pairwise

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from fedlib.kernels import kd_tree


@st.composite
def clouds(draw):
    """Draw points on a lattice, all equal in the extreme case."""
    n, d = draw(st.integers(0, 90)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, draw(st.sampled_from([1, 3, 50])), (n, d)).astype(float)


@given(clouds(), st.integers(1, 20), st.sampled_from([0.0, 2.0, 30.0]))
def test_nodes_contain_their_points(X, leaf_size, max_squared_diagonal):
    """The order is a permutation, boxes fit, children split a node, leaves are small enough."""
    tree = kd_tree.build(X, leaf_size, max_squared_diagonal)
    assert tree.points is X
    assert sorted(tree.order) == list(range(len(X)))
    for node in range(len(tree.first)):
        points = X[tree.order[tree.first[node] : tree.stop[node]]]
        np.testing.assert_array_equal(tree.lower[node], points.min(axis=0))
        np.testing.assert_array_equal(tree.upper[node], points.max(axis=0))
        squared_diagonal = ((tree.upper[node] - tree.lower[node]) ** 2).sum()
        right = tree.right[node]
        is_small = len(points) <= leaf_size or squared_diagonal <= max_squared_diagonal
        assert (right == 0) == is_small
        if right:
            assert tree.first[node] == tree.first[node + 1]
            assert tree.first[node + 1] < tree.stop[node + 1] == tree.first[right]
            assert tree.stop[right] == tree.stop[node]


@given(clouds(), st.integers(1, 20))
def test_two_halves_merge_into_the_same_tree(X, leaf_size):
    """The halves below the root are built apart, as two threads do."""
    assume(len(X) > leaf_size)
    whole = kd_tree.build(X, leaf_size, -1.0)
    order, middle = kd_tree.halve(X), len(X) // 2
    halves = [
        kd_tree.build_part(X, rows, leaf_size, -1.0) for rows in (order[:middle], order[middle:])
    ]
    for ours, expected in zip(kd_tree.merge(*halves), whole, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_an_empty_buffer_only_counts():
    """Two of the points are within 1 of the query; their rows follow what the buffer contains."""
    tree = kd_tree.build(np.array([[0.0], [5.0], [1.0]]), 1, 0.0)
    query, buffer = np.array([[0.5]]), np.full(4, -1)
    assert kd_tree.find_around(tree, query, 0, 1.0, np.empty(0, np.int64), 0) == 2
    assert kd_tree.find_around(tree, query, 0, 1.0, buffer, 1) == 3
    assert buffer.tolist() == [-1, 0, 2, -1]


@given(
    clouds(),
    st.sampled_from([0.0, 2.0, 30.0]),
    st.integers(1, 200),
    st.integers(0, 2**32),
)
def test_near_leaves_by_brute_force(X, max_squared_diagonal, n_ranges, seed):
    """Leaves whose boxes are within the radius of either, for any size of the buffer."""
    squared_radii = np.random.default_rng(seed).integers(0, 20, len(X)).astype(float)
    tree = kd_tree.build(X, 1, max_squared_diagonal)
    leaves = kd_tree.collect_leaves(tree, squared_radii)
    n = len(leaves.node)
    assert leaves.node.tolist() == np.flatnonzero(tree.right == 0).tolist()
    assert (len(leaves.start), leaves.start[-1]) == (n + 1, len(X))
    lower, upper = tree.lower[leaves.node], tree.upper[leaves.node]
    reach = np.array([squared_radii[tree.order[a:b]].max() for a, b in pairwise(leaves.start)])
    gap = np.maximum(np.maximum(lower[:, None] - upper[None], lower[None] - upper[:, None]), 0)
    expected = (gap**2).sum(axis=2) <= np.maximum(reach[:, None], reach[None, :])
    near_pairs = np.zeros((n, n), bool)
    near_start, near = np.empty(8, np.int64), np.empty((max(n, n_ranges), 2), np.int64)
    done = 0
    while done < n:
        wanted = np.arange(done, n)
        n_done = kd_tree.find_near_leaves(tree, leaves, wanted, near_start, near)
        assert n_done >= 1
        for w in range(n_done):
            for a, b in near[near_start[w] : near_start[w + 1]]:
                near_pairs[done + w, a:b] = True
        done += n_done
    np.testing.assert_array_equal(near_pairs, expected)
