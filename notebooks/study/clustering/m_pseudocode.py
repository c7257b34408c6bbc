"""Marino's pseudocode, line by line: DBSCAN (§1.3), and the server of vertical DBSCAN (§3.2).

The comments contain the line numbers of the blocks on the pages. The functions are slow; the pages
compare `fedlib` with them.
"""

import numpy as np


def dbscan(neighbours, min_samples, order):
    """Return the labels that the pseudocode of DBSCAN gives for an order of the points.

    Parameters
    ----------
    neighbours : list of array of int
        The neighbourhood of each point, including itself.
    min_samples : int
    order : sequence of int
        The pseudocode draws each next unvisited point at random; here it is the next in this order.

    Returns
    -------
    array (n_points,) of int
        The cluster of each point, or -1. Clusters are numbered in the order of their creation.

    Examples
    --------
    Point 1 is the only core point. Point 3 is noise.

    >>> dbscan([[0, 1], [0, 1, 2], [1, 2], [3]], 3, order=[3, 0, 1, 2])
    array([ 0,  0,  0, -1])
    """
    labels = np.full(len(neighbours), -1)
    visited = np.zeros(len(neighbours), bool)  # line 1
    n_clusters = 0
    for p in order:  # lines 2, 3 and 15
        if visited[p]:
            continue
        visited[p] = True  # 4
        if len(neighbours[p]) < min_samples:  # 5
            continue  # 14: the label of noise is -1 from the start
        labels[p] = n_clusters  # 6
        candidates = list(neighbours[p])  # 7
        for q in candidates:  # 8: the list grows while it is read
            if not visited[q]:  # 9
                visited[q] = True  # 10
                if len(neighbours[q]) >= min_samples:  # 11
                    candidates.extend(neighbours[q])
            if labels[q] < 0:  # 12
                labels[q] = n_clusters
        n_clusters += 1  # 13
    return labels


def server_dbscan(near, min_samples):
    """Return the labels that Server_DBSCAN and Expand_Cluster give for a neighbour matrix.

    Parameters
    ----------
    near : array (n_rows, n_rows) of bool
        The relation on which all clients agree; every row is near itself.
    min_samples : int

    Returns
    -------
    array (n_rows,) of int
        The cluster of each row, or -1.

    Examples
    --------
    >>> near = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]], bool)
    >>> server_dbscan(near, 3)
    array([ 0,  0,  0, -1])
    """
    labels = np.full(len(near), -1)
    visited = np.zeros(len(near), bool)
    n_clusters = 0
    for i in range(len(near)):  # line 7
        if not visited[i]:  # 8
            visited[i] = True  # 9
            if near[i].sum() >= min_samples:  # 10 to 12
                _expand(near, i, n_clusters, min_samples, labels, visited)  # 14, 15
                n_clusters += 1  # 13
    return labels  # 16


def _expand(near, i, cluster, min_samples, labels, visited):
    """Add row i, and all rows that can be reached from it, to a cluster."""
    labels[i] = cluster  # line 17
    to_visit = np.flatnonzero(near[i]).tolist()
    for j in to_visit:  # 18: the list grows while it is read
        if not visited[j]:  # 19
            visited[j] = True  # 20
            if near[j].sum() >= min_samples:  # 21
                to_visit += np.flatnonzero(near[j]).tolist()  # 22
        if labels[j] < 0:  # 23
            labels[j] = cluster
