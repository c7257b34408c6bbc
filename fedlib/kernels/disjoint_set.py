"""Disjoint sets: connected components of a graph given by its edges."""

import numpy as np

from fedlib.kernels import kernel


@kernel
def find(parent, i):
    """Return the root of ``i``, halving the path to it."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@kernel
def union(parent, i, j):
    """Join two sets; the smaller root stays, so that a root is the first member of its set."""
    i, j = find(parent, i), find(parent, j)
    if i < j:
        parent[j] = i
    else:
        parent[i] = j


@kernel
def number_components(parent, member):
    """Label the sets of the ``member`` (n, bool) nodes by their first member; -1 for all others."""
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
    """Label the components of the ``member`` (n, bool) nodes under ``pairs`` (p, 2).

    Components are numbered by their first member; a node that is no member gets -1.
    """
    parent = np.arange(n)
    for p in range(pairs.shape[0]):
        if member[pairs[p, 0]] and member[pairs[p, 1]]:
            union(parent, pairs[p, 0], pairs[p, 1])
    return number_components(parent, member)
