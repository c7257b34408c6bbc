"""Disjoint sets, and the connected components of a graph that is given by its edges.

A set is a tree: ``parent[i]`` is the parent of element i, and a root is its own parent.
"""

import numpy as np

from fedlib.kernels import kernel


@kernel
def find(parent, i):
    """Return the root of ``i``, and halve the path to it."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@kernel
def union(parent, i, j):
    """Join the sets of ``i`` and ``j``; the smaller root becomes the root of both.

    Therefore a root is always the first member of its set.
    """
    i, j = find(parent, i), find(parent, j)
    if i < j:
        parent[j] = i
    else:
        parent[i] = j


@kernel
def number_components(parent, member):
    """Return the component of each ``member`` (n, bool), numbered by its first member, else -1.

    Sets of several elements must consist of members only.
    """
    labels = np.full(parent.size, -1, np.int64)
    n_labels = 0
    for i in range(parent.size):
        if member[i]:
            root = find(parent, i)
            if root == i:
                labels[i] = n_labels
                n_labels += 1
            else:
                labels[i] = labels[root]
    return labels


@kernel
def connected_components(n, pairs, member):
    """Return the component of each of ``n`` nodes, numbered by its first member.

    Only edges ``pairs`` (p, 2) between two nodes that are a ``member`` (n, bool) count. The other
    nodes get -1.
    """
    parent = np.arange(n)
    for p in range(pairs.shape[0]):
        if member[pairs[p, 0]] and member[pairs[p, 1]]:
            union(parent, pairs[p, 0], pairs[p, 1])
    return number_components(parent, member)
