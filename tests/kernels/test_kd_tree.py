"""The k-d tree: each node's points, box and children; searches; and the leaves near a leaf."""

from itertools import pairwise

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from fedlib.kernels import forests as tree_leaves
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
    assert sorted(tree.order) == list(range(len(X)))
    for node, n_leaves in enumerate(tree.n_leaves):
        first, stop = kd_tree.points_of(tree, node)
        points = X[tree.order[first:stop]]
        low, high = tree.boxes[node]
        np.testing.assert_array_equal(low, points.min(axis=0))
        np.testing.assert_array_equal(high, points.max(axis=0))
        squared_diagonal = ((high - low) ** 2).sum()
        is_small = len(points) <= leaf_size or squared_diagonal <= max_squared_diagonal
        assert (n_leaves == 1) == is_small
        if n_leaves > 1:
            right = kd_tree.right_child(tree, node)
            middle = kd_tree.points_of(tree, right)[0]
            assert first < middle < stop
            assert kd_tree.points_of(tree, node + 1) == (first, middle)
            assert kd_tree.points_of(tree, right) == (middle, stop)
            assert n_leaves == tree.n_leaves[node + 1] + tree.n_leaves[right]


@given(clouds(), st.integers(1, 20))
def test_two_halves_merge_into_the_same_tree(X, leaf_size):
    """The halves below the root are built apart, as two threads do."""
    assume(len(X) > leaf_size)
    whole = kd_tree.build(X, leaf_size, -1.0)
    n, middle = len(X), len(X) // 2
    order = np.arange(n)
    sizes = [kd_tree.max_nodes(size, leaf_size) for size in (middle, n - middle)]
    boxes = np.empty((1 + sum(sizes), 2, X.shape[1]))
    kd_tree.halve(X, order, boxes[0])
    parts = (boxes[1 : 1 + sizes[0]], 0, middle), (boxes[1 + sizes[0] :], middle, n)
    halves = [kd_tree.build_part(X, order, *part, leaf_size, -1.0) for part in parts]
    merged = kd_tree.merge(boxes, *halves)
    for name in ("order", "start", "first_leaf", "n_leaves", "boxes"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))


def test_large_nodes():
    """Nodes that are too large to be copied are split by the values of one feature alone."""
    X = np.random.default_rng(0).random((5 * kd_tree.LOADED, 2))
    tree, before = kd_tree.build(X, 16, 0.0), X.copy()
    assert sorted(tree.order) == list(range(len(X)))
    np.testing.assert_array_equal(X, before)
    for node in np.flatnonzero(tree.n_leaves > 1):
        points = X[tree.order[slice(*kd_tree.points_of(tree, node))]]
        np.testing.assert_array_equal(tree.boxes[node], [points.min(axis=0), points.max(axis=0)])
        widest = np.ptp(points, axis=0).argmax()
        values, middle = points[:, widest], len(points) // 2
        assert values[:middle].max() <= values[middle:].min()


def test_sorted_points():
    """A tree with sorted points has the same nodes, and each point at its place."""
    X = np.random.default_rng(0).random((100, 3))
    tree = kd_tree.build(X, 8, 0.0)
    by_place = kd_tree.sort_points(tree)
    np.testing.assert_array_equal(by_place.points, X[tree.order])
    np.testing.assert_array_equal(by_place.order, np.arange(100))
    np.testing.assert_array_equal(by_place.boxes, tree.boxes)


def test_an_empty_buffer_only_counts():
    """Two of the points are within 1 of the query; their rows follow what the buffer contains."""
    tree = kd_tree.build(np.array([[0.0], [5.0], [1.0]]), 1, 0.0)
    query, buffer = np.array([[0.5]]), np.full(4, -1)
    assert kd_tree.radius_search(tree, query, 0, 1.0, np.empty(0, np.int64), 0) == 2
    assert kd_tree.radius_search(tree, query, 0, 1.0, buffer, 1) == 3
    assert buffer.tolist() == [-1, 0, 2, -1]


@given(clouds(), st.integers(1, 20), st.sampled_from([0.0, 2.0, 30.0]))
def test_cells_of_leaves(X, leaf_size, max_squared_diagonal):
    """Cells are ranges of a leaf's points with a small diagonal; points stay in their leaves."""
    assume(len(X) > 0)
    tree = kd_tree.build(X, leaf_size, max_squared_diagonal)
    members = [sorted(tree.order[a:b]) for a, b in pairwise(tree.start)]
    leaves, start = tree_leaves.collect_leaves(tree, np.zeros(1), max_squared_diagonal)
    squared_diagonals = (np.diff(tree.boxes[leaves.node], axis=1) ** 2).sum(axis=(1, 2))
    assert leaves.node.tolist() == np.flatnonzero(tree.n_leaves == 1).tolist()
    assert [sorted(tree.order[a:b]) for a, b in pairwise(tree.start)] == members
    np.testing.assert_array_equal(start[leaves.first_cell], tree.start)
    for begin, end in pairwise(start):
        assert begin < end
        sides = np.ptp(X[tree.order[begin:end]], axis=0)
        assert (sides**2).sum() <= max_squared_diagonal
    is_single = np.diff(leaves.first_cell) == 1
    np.testing.assert_array_equal(is_single, squared_diagonals <= max_squared_diagonal)


@given(clouds(), st.sampled_from([0.0, 2.0, 30.0]), st.integers(0, 2**32))
def test_near_buckets_by_brute_force(X, max_squared_diagonal, seed):
    """Buckets are a partition; those near one have boxes within the radius of either."""
    assume(len(X) > 0)
    squared_radii = np.random.default_rng(seed).integers(0, 20, len(X)).astype(float)
    tree = kd_tree.build(X, 4, max_squared_diagonal)
    leaves, start = tree_leaves.collect_leaves(tree, squared_radii, max_squared_diagonal)
    found = [tree_leaves.find_bucket(tree, leaves, cell) for cell in range(len(start) - 1)]
    assert all(a <= cell < b and b - a <= 32 for cell, (_, a, b) in enumerate(found))
    buckets = np.unique([bucket for bucket, _, _ in found])
    assert len(buckets) == leaves.n_buckets
    reach = np.array(
        [squared_radii[tree.order[slice(*kd_tree.points_of(tree, node))]].max() for node in buckets]
    )
    lower, upper = tree.boxes[buckets].transpose(1, 0, 2)
    gap = np.maximum(np.maximum(lower[:, None] - upper[None], lower[None] - upper[:, None]), 0)
    expected = (gap**2).sum(axis=2) <= np.maximum(reach[:, None], reach[None, :])
    for bucket, near in zip(buckets, expected, strict=True):
        written = np.empty(len(buckets), np.int64)
        n_near = tree_leaves.find_near_buckets(tree, leaves, bucket, written)
        assert written[:n_near].tolist() == buckets[near].tolist()
