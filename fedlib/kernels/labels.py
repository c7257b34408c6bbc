"""The labels of DBSCAN: sets of core points are numbered, and labels written by row."""

import numpy as np

from fedlib.kernels import kernel


@kernel
def number_sets(cells, order, parent):
    """Return the cluster (n_sets,) of each set; ``parent`` becomes the set of each element.

    Parameters
    ----------
    cells : Cells
    order : array (n_points,) of an integer type
        The row of each point. Clusters are numbered by their first core row.
    parent : array (n_cells,) or (n_points,) of an integer type
        Disjoint sets of the cells or of the points (see `fedlib.kernels.disjoint_set`). Elements
        without core points are in sets of their own, which get the number -1.
    """
    by_cell = parent.size == cells.n_core.size  # if they are as many as the points, they are equal
    n_sets = 0
    for e in range(parent.size):  # a root is the first element of its set
        if parent[e] != e:
            parent[e] = parent[parent[e]]
        elif cells.n_core[e] if by_cell else cells.core[e]:
            parent[e] = n_sets
            n_sets += 1
        else:
            parent[e] = -1
    first_row = np.full(n_sets, order.size, order.dtype)
    for c in range(cells.n_core.size):
        if cells.n_core[c]:
            for i in range(cells.start[c], cells.start[c + 1]):
                if cells.core[i]:
                    e = parent[c if by_cell else i]
                    first_row[e] = min(first_row[e], order[i])
    roots = np.flatnonzero(first_row < order.size)
    number = np.full(n_sets, -1, order.dtype)
    number[roots[np.argsort(first_row[roots])]] = np.arange(roots.size)
    return number


@kernel
def label_core(cells, sets, number, labels, first, stop):
    """Write the labels of the core points of the cells ``first..stop``.

    For ``sets`` (the parents) and ``number`` see `number_sets`.
    """
    by_cell = sets.size == cells.n_core.size
    for c in range(first, stop):
        for i in range(cells.start[c], cells.start[c + 1]):
            if cells.core[i]:
                labels[i] = number[sets[c if by_cell else i]]


@kernel
def scatter(order, labels, core, row_labels, row_core, first, stop):
    """Write labels and core flags of the points ``first..stop`` by row."""
    for i in range(first, stop):
        row_labels[order[i]] = labels[i]
        row_core[order[i]] = core[i]
