"""Trees as arrays, compared with one row and one node at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlib.kernels.buckets import BY_CATEGORY
from fedlib.kernels.forests import Forest, level_order, sum_trees


def random_tree(rng, max_nodes, n_bytes):
    """Return the columns of a tree whose nodes are numbered level by level."""
    feature, left = [], []
    n_nodes = 1
    while len(feature) < n_nodes:
        is_split = n_nodes + 2 <= max_nodes and rng.random() < 0.7
        feature.append(rng.integers(0, 3) if is_split else -1)
        left.append(n_nodes if is_split else -1)
        n_nodes += 2 * is_split
    threshold = rng.choice(np.array([-1, 0, 0.5, BY_CATEGORY if n_bytes else 1]), n_nodes)
    right = rng.integers(0, 256, (n_nodes, n_bytes))
    return feature, threshold, rng.random(n_nodes) < 0.5, left, rng.normal(size=n_nodes), right


def leaf(forest, root, x):
    """Return the leaf that one row reaches."""
    j = root
    while forest.feature[j] >= 0:
        value = x[forest.feature[j]]
        if np.isnan(value):
            goes_left = forest.missing_left[j]
        elif forest.threshold[j] == BY_CATEGORY:
            bits = np.unpackbits(forest.right[j], bitorder="little")
            goes_left = not (0 <= value < len(bits) and bits[int(value)])
        else:
            goes_left = value < forest.threshold[j]
        j = root + forest.left[j] + (not goes_left)
    return j


@given(
    st.integers(0, 600), st.integers(0, 4), st.integers(0, 1), st.booleans(), st.integers(0, 2**32)
)
def test_rows_reach_the_leaves_of_a_walk(n, n_trees, n_bytes, has_gaps, seed):
    """In blocks of rows, with and without missing values and sets of categories.

    The values are added in the order of the trees.
    """
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, int(rng.integers(1, 16)), n_bytes) for _ in range(n_trees)]
    sizes = [len(tree[0]) for tree in trees]
    dtypes = np.int32, np.float32, np.bool_, np.int32, np.float32, np.uint8
    columns = [
        np.concatenate([np.empty((0, n_bytes) if k == 5 else 0), *(tree[k] for tree in trees)])
        for k in range(6)
    ]
    arrays = [column.astype(dtype) for column, dtype in zip(columns, dtypes, strict=True)]
    forest = Forest(np.append(0, np.cumsum(sizes)).astype(np.int64), *arrays)
    numbers = [-2, -1, 0, 0.25, 1, 3, 9, np.inf]
    X = rng.choice(np.array([*numbers, *[np.nan] * has_gaps]), (n, 3)).astype(np.float32)
    margins, expected = np.zeros(n, np.float32), np.zeros(n, np.float32)
    sum_trees(X, forest, margins)
    for root in forest.start[:-1]:
        expected += forest.value[[leaf(forest, root, x) for x in X]] if n else 0
    assert margins.tobytes() == expected.tobytes()


def test_the_order_of_the_nodes_of_two_trees():
    """The roots are the nodes 0 and 1, and node 1 is split after node 0."""
    left = np.array([2, 4, -1, 6, -1, -1, -1, -1], np.int32)
    assert level_order(left, 0).tolist() == [0, 2, 3, 6, 7]
    assert level_order(left, 1).tolist() == [1, 4, 5]
