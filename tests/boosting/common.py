"""Small data sets and helpers that several test modules of this folder share."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.boosting.client import BoostingClient
from fedlib.boosting.cuts import agree_on_cuts, bucket_counts, sorted_keys, sorted_weights
from fedlib.boosting.histograms import pack
from fedlib.boosting.server_state import leaves
from fedlib.boosting.trees import Tree, children, no_sets
from fedlib.core.protocol import Replies
from fedlib.kernels.packing import move_and_pack

METHODS = ["top_splits", "union", "histogram"]
each_method = pytest.mark.parametrize("method", METHODS)

# Two clients with two rows each. p = 1/2 for all rows, so g = ±1/2 and h = 1/4.
TOY = [([[1.0], [3.0]], [0, 1]), ([[2.0], [4.0]], [0, 1])]


def make_tree(feature, threshold, value, missing_left=None):
    """Return a tree with these nodes; its gains, covers and weights are 1."""
    n = len(feature)
    feature = np.array(feature, np.int32)
    ones = np.ones(n, np.float32)
    return Tree(
        feature=feature,
        threshold=np.array(threshold, np.float32),
        missing_left=np.array([False] * n if missing_left is None else missing_left),
        left=children(feature),
        value=np.array(value, np.float32),
        gain=ones,
        cover=ones,
        weight=ones,
        right=no_sets(n),
    )


# The root and its right child are split.
SMALL_TREE = make_tree(
    [0, -1, 1, -1, -1], [1, 0, 5, 0, 0], [0, 10, 0, 20, 30], [True, False, False, False, False]
)
# left; right and left; right twice; missing, so left; right, then missing, so right
X_SMALL = np.array([[0, 9], [1, 4], [1, 5], [np.nan, 9], [2, np.nan]], np.float32)


def make_rows(n=120, d=4, seed=0, missing=0.0):
    """Return rows whose class depends on two of their features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).round(2)
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(scale=0.5, size=n) > 0.7).astype(int)
    X[rng.random(X.shape) < missing] = np.nan
    return X, y


def deal(X, y, n_clients, seed=0, *more):
    """Return the parts of clients with shuffled rows, of an array or a DataFrame."""
    order = np.random.default_rng(seed).permutation(len(y))
    rows = getattr(X, "iloc", X)
    return [(rows[i], y[i], *(m[i] for m in more)) for i in np.array_split(order, n_clients)]


@st.composite
def dealings(draw):
    """Draw the parts of four clients; there are rows of both classes, and many equal values."""
    n, d = draw(st.integers(4, 40)), draw(st.integers(1, 3))
    X = draw(hnp.arrays(np.float32, (n, d), elements=st.integers(-3, 3).map(float)))
    y = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 1)))
    y[:2] = 0, 1
    client = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 3)))
    return [(X[client == c], y[client == c]) for c in range(4)]


class Unreliable(BoostingClient):
    """A client that answers a class of requests a number of times and then fails."""

    def __init__(self, part, request, times):
        super().__init__(part)
        self.request, self.times = request, times

    def answer(self, request):
        if isinstance(request, self.request):
            self.times -= 1
            if self.times < 0:
                raise OSError("gone")
        return super().answer(request)


def replies_to(clients, request):
    """Return the clients' replies to one request, or to one request per client."""
    requests = request if isinstance(request, dict) else dict.fromkeys(clients, request)
    return Replies({name: clients[name].answer(each) for name, each in requests.items()})


def assert_same_trees(trees, others):
    assert len(trees) == len(others)
    for tree, other in zip(trees, others, strict=True):
        for name, array in vars(tree).items():
            np.testing.assert_array_equal(array, getattr(other, name), name)


def cuts_of(X, max_bin=256, n_categories=None, weight=None):
    """Return the cuts on which clients with these rows agree."""
    X, total = np.asarray(X, np.float32), None
    if weight is not None:
        X, weight = X[weight > 0], np.asarray(weight, np.float32)[weight > 0]
        total = {"A": float(weight.astype(np.float64).sum())}
    flow = agree_on_cuts({"A": len(X)}, X.shape[1], max_bin, n_categories, total)
    request = next(flow)
    while True:
        units = None if weight is None else sorted_weights(X, weight, request.weight_bits)
        try:
            request = flow.send(Replies({"A": bucket_counts(sorted_keys(X), request, units)}))
        except StopIteration as end:
            return end.value


def first_message(exchanges, kind, client):
    """Return the first message of a class that was sent to or by a client."""
    for exchange in exchanges:
        for messages in (exchange.requests, exchange.replies):
            if isinstance(messages.get(client), kind):
                return messages[client]
    raise AssertionError(f"no {kind.__name__}")


def pack_sums(sums, loss=0.0):
    """Return packed histograms with these sums (n_nodes, n_bins, 2), from one row per bin."""
    n_nodes, n_bins = sums.shape[:2]
    bins = np.tile(np.arange(n_bins, dtype=np.uint16), n_nodes)[:, None]
    node = np.repeat(np.arange(n_nodes, dtype=np.int32), n_bins)[None]
    return pack_rows(bins, node, sums.reshape(1, -1, 2), np.array([0, n_bins]), n_nodes, loss)


def pack_rows(bins, nodes, gradients, offsets, n_nodes, loss=0.0):
    """Return packed histograms of rows in nodes (n_outputs, n)."""
    n_bins = offsets[-1]
    no_split = leaves(0), n_nodes
    words = np.zeros(-(-n_nodes * n_bins // 64), np.uint64)
    pairs = np.empty((n_nodes * n_bins + 1, 2), np.int64)
    places = nodes, np.full_like(nodes, -1), np.ones(nodes.shape[1], bool)
    level = 0, np.ones(n_nodes, bool)
    cuts = offsets, np.zeros(n_bins, np.float32)
    moved, is_possible, measured = move_and_pack(
        bins, cuts, places, (0, *no_split), level, gradients, words, pairs
    )
    assert is_possible
    np.testing.assert_array_equal(moved, nodes)
    return pack(words, n_nodes * n_bins, pairs, measured, loss)
