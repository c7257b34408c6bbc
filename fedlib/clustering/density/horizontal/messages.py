"""Messages of horizontal DBSCAN, and the model that its flow returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import msgspec
import numpy as np

from fedlib.clustering.density.bounded_cells import (
    MAX_POINTS,
)
from fedlib.clustering.density.cells import (
    add_counts,
    distinct_and_sorted,
    place_points,
)
from fedlib.core.aggregation import agree_on_features
from fedlib.core.array_fields import MAX_COUNT, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.messages import Array, FeatureNames, Message, MessageError
from fedlib.kernels.grid import MAX_CELL

Cells = Annotated[np.ndarray, Array("int64", ("cells", "features"), ge=-MAX_CELL, le=MAX_CELL)]

Assign = Literal["point", "cell"]

Adjacency = Literal["faces", "full"]

CellSize = Annotated[float, msgspec.Meta(gt=0)]


class CellCounts(Message):
    """The occupied cells, the number of the client's points in each, and the features' names."""

    discloses = "the occupied cells of a client and its number of points in each"
    grouped_by = "counts"
    cells: Cells
    counts: Annotated[np.ndarray, Array("int64", ("cells",), ge=1, le=MAX_POINTS)]
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``cells``."""
        return int(self.cells.shape[1])

    @staticmethod
    def combine(replies: Sequence[CellCounts]) -> CellCounts:
        """Return the sum of the counts of several clients, which is exact.

        Raises
        ------
        ValueError
            When the clients disagree on the number of features or on their names.
        """
        numbered = {str(i): reply for i, reply in enumerate(replies)}
        features = next((reply.features for reply in replies if reply.features), ())
        return CellCounts(*sum_cells(numbered), features)


class CountCells(Message):
    """Count your points in each cell of the grid."""

    discloses = "the cell size"
    reply = CellCounts
    cell_size: CellSize

    def accept(self, reply: Message) -> Message:
        return accept_counts(cast(CellCounts, reply))


def accept_counts(reply: CellCounts) -> CellCounts:
    """Return the reply if it can be the count of one client's points.

    Raises
    ------
    MessageError
        When the cells are not distinct and sorted, or there are more than `MAX_POINTS` points.
    """
    if not distinct_and_sorted(reply.cells):
        raise MessageError("CellCounts.cells must be distinct and in lexicographic order")
    total = int(reply.counts.sum(dtype=np.float64))
    if total > MAX_POINTS:
        raise MessageError(f"CellCounts.counts must sum to at most {MAX_POINTS}, got about {total}")
    return reply


class AssignCells(Message):
    """Label your points: these are the cells that belong to clusters."""

    discloses = "the cells of all clients' clusters"
    asks_for_data = False
    cell_size: CellSize
    cells: Cells
    labels: Annotated[np.ndarray, Array("int64", ("cells",), ge=0, below="cells")]
    assign: Assign
    adjacency: Adjacency

    def place(self, X: Floats) -> Ints:
        """Return the cluster of each point, or -1."""
        return place_points(X, self.cell_size, self.cells, self.labels, self.assign, self.adjacency)


@dataclass(frozen=True)
class GridModel(Checked):
    """The occupied cells with their clusters, and the rule that labels points.

    Attributes
    ----------
    cell_size : float
    cells : array (n_cells, n_features) of int64
        The occupied cells of all clients, sorted lexicographically.
    counts : array (n_cells,) of int64
        The number of points in each cell.
    labels : array (n_cells,) of int64
        The cluster of each cell, or -1.
    assign, adjacency : str
        As in `HorizontalDBSCAN`.
    """

    cell_size: float
    cells: Cells
    counts: Annotated[Ints, Array("int64", ("cells",), ge=0, le=MAX_COUNT)]
    labels: Annotated[Ints, Array("int64", ("cells",), ge=-1, below="cells")]
    assign: Assign
    adjacency: Adjacency

    @property
    def n_features(self) -> int:
        """The number of features of the points."""
        return int(self.cells.shape[1])

    @property
    def clusters(self) -> AssignCells:
        """The message with which each client labels its points."""
        clustered = self.labels >= 0
        return AssignCells(
            self.cell_size,
            self.cells[clustered],
            self.labels[clustered],
            self.assign,
            self.adjacency,
        )

    def place(self, X: Floats) -> Ints:
        """Return the cluster of each point (n_points, n_features), or -1, by the clients' rule."""
        return self.clusters.place(X)


def sum_cells(
    replies: Mapping[str, CellCounts],
) -> tuple[Ints, Ints]:
    """Return the occupied cells of all clients and the number of points in each.

    Parameters
    ----------
    replies : mapping of str to CellCounts
        The reply of each client, at least one.

    Returns
    -------
    cells : array (n_cells, n_features) of int64
        Sorted lexicographically.
    counts : array (n_cells,) of int64

    Raises
    ------
    ValueError
        When the clients disagree on the number of features or on their names.

    Examples
    --------
    >>> first = CellCounts(np.array([[0, 0], [2, 1]]), np.array([5, 1]))
    >>> second = CellCounts(np.array([[2, 1]]), np.array([3]))
    >>> sum_cells({"A": first, "B": second})
    (array([[0, 0],
           [2, 1]]), array([5, 4]))
    """
    agree_on_features(replies)
    cells = np.concatenate([reply.cells for reply in replies.values()])
    counts = np.concatenate([reply.counts for reply in replies.values()])
    return add_counts(cells, counts)
