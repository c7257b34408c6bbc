"""Disjoint sets and connected components, compared with SciPy."""

import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlib.kernels.density import connected_components, find, union


@st.composite
def graphs(draw):
    """Draw a number of nodes, edges that may repeat, loop and run backwards, and the members."""
    n = draw(st.integers(1, 25))
    n_pairs = draw(st.integers(0, 40))
    pairs = draw(arrays(np.int64, (n_pairs, 2), elements=st.integers(0, n - 1)))
    return n, pairs, draw(arrays(bool, n))


@given(graphs())
def test_components_are_those_of_scipy(graph):
    """Two members are in one component if they are connected through members."""
    n, pairs, member = graph
    kept = pairs[member[pairs].all(axis=1)]
    matrix = scipy.sparse.coo_array((np.ones(len(kept)), kept.T), shape=(n, n))
    component = scipy.sparse.csgraph.connected_components(matrix, directed=False)[1]
    labels = connected_components(n, pairs, member)
    assert (labels[~member] == -1).all()
    together = component[:, None] == component
    assert np.array_equal(
        (labels[:, None] == labels)[member][:, member], together[member][:, member]
    )


@given(graphs())
def test_components_are_numbered_by_their_first_member(graph):
    """In the order of the members, each new label is the next number."""
    labels = connected_components(*graph)
    used, first = np.unique(labels[labels >= 0], return_index=True)
    assert used.tolist() == list(range(len(used)))
    assert (np.diff(first) > 0).all()


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_edges_does_not_matter(graph, random):
    """Neither the order of the edges nor their direction changes a label."""
    n, pairs, member = graph
    shuffled = [edge[:: random.choice([1, -1])] for edge in pairs.tolist()]
    random.shuffle(shuffled)
    other = np.array(shuffled, np.int64).reshape(-1, 2)
    wanted = connected_components(n, pairs, member)
    assert np.array_equal(connected_components(n, other, member), wanted)


def test_no_nodes():
    labels = connected_components(0, np.empty((0, 2), np.int64), np.empty(0, bool))
    assert labels.shape == (0,)


def test_only_members_join():
    # 0-1-2-3: node 1 is not a member, so 0 is a component and 2, 3 are another.
    pairs = np.array([[0, 1], [1, 2], [2, 3]])
    labels = connected_components(4, pairs, np.array([True, False, True, True]))
    assert labels.tolist() == [0, -1, 1, 1]


def test_the_root_is_the_first_of_its_set():
    """A set's root is its smallest member, for any order of joining."""
    parent = np.arange(6)
    for i, j in ((5, 4), (4, 2), (3, 5), (2, 2)):
        union(parent, i, j)
    assert [find(parent, i) for i in range(6)] == [0, 1, 2, 2, 2, 2]


def test_a_long_chain():
    """A path of 100,000 nodes, joined from its last edge on, is one component."""
    n = 100_000
    pairs = np.column_stack([np.arange(n - 1), np.arange(1, n)])[::-1].copy()
    assert not connected_components(n, pairs, np.ones(n, bool)).any()
