"""Horizontal DBSCAN for many choices of passive clients and many visit orders."""

from functools import cache

import numpy as np

import study
from fedlib.clustering.density.cells import count_cells, label_cells, place_points
from fedlib.clustering.density.horizontal import CellCounts, sum_cells
from fedlib.evaluation.metrics import clustering_scores


class PassiveRuns:
    """Runs on the same clients, without messages.

    The clients' counts are computed once, and summed once per choice of passive clients.

    Parameters
    ----------
    parts : list of array (n, n_features)
        The points of each client.
    truth : list of array of int (n,)
        Their classes.
    cell_size : float
    min_samples : int
    """

    def __init__(self, parts, truth, cell_size, min_samples):
        self.cell_size, self.min_samples = cell_size, min_samples
        self.replies = [CellCounts(*count_cells(part, cell_size)) for part in parts]
        self.points, self.truth = np.concatenate(parts), np.concatenate(truth)
        self.owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        self.repeated = np.concatenate([study.repeats(part) for part in parts])
        self.cells = cache(self._cells)
        self.columns = cache(self._columns)

    def _cells(self, passive):
        """Return the cells of all clients except the passive ones, and the sums of their counts."""
        replies = {str(i): reply for i, reply in enumerate(self.replies) if i not in passive}
        return sum_cells(replies)

    def label(self, passive, border, seed=None, adjacency="faces", min_samples=None):
        """Return the cluster of each cell of `cells`.

        Parameters
        ----------
        passive : tuple of int
        border, adjacency : str
            As of `HorizontalDBSCAN`.
        seed : int, optional
            Of the visit order, on which ``border="absorb"`` depends.
        min_samples : int, optional
            By default that of all runs.
        """
        needed = self.min_samples if min_samples is None else min_samples
        return label_cells(*self.cells(passive), needed, border, adjacency, seed)

    def place(self, passive, cell_labels, assign="point", adjacency="faces"):
        """Return the labels of all points, client after client."""
        clustered = cell_labels >= 0
        clusters = self.cells(passive)[0][clustered], cell_labels[clustered]
        return place_points(self.points, self.cell_size, *clusters, assign, adjacency)

    def place_as(self, edition, passive, cell_labels):
        """Return the labels of all points as the program of an edition of M places them."""
        if edition == "M1":
            return self.place(passive, cell_labels)
        return np.where(self.repeated, -1, self.place(passive, cell_labels, "cell"))

    def scores(self, labels, passive):
        """Yield the scores of all clients, of the active ones and of any passive ones."""
        is_passive = np.isin(self.owner, passive)
        for group in (np.full(len(labels), True), ~is_passive, is_passive):
            if group.any():
                yield clustering_scores(self.truth[group], labels[group])

    def _columns(self, edition, passive, seeds):
        """Return the distinct columns that visit orders give, and the index of each order's column.

        Only different results are placed and scored.
        """
        by_order = [self.label(passive, "absorb", seed) for seed in seeds]
        by_cells, which = np.unique(by_order, axis=0, return_inverse=True)
        placed = [self.place_as(edition, passive, cell_labels) for cell_labels in by_cells]
        distinct, same = np.unique(placed, axis=0, return_inverse=True)
        columns = [
            [v for scored in self.scores(labels, passive) for v in scored.values()]
            for labels in distinct
        ]
        return np.array(columns), same[which]
