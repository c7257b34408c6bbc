"""Horizontal federated DBSCAN: clients hold other rows of the same features.

Every client lays the same grid over its points and tells how many of them lie in each occupied
cell. The server adds the counts up, calls a cell dense when it holds ``min_samples`` points, and
joins adjacent dense cells into clusters. The clients get the labelled cells and place their points.

Sources: M1 and M2, §3.1 and §4.2, whose pseudocode and listings differ; ``border`` and ``assign``
name the readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedlib.federated import Federated, PointsClient
from fedlib.kernels.disjoint_set import connected_components
from fedlib.kernels.grid import (
    MAX_CELL,
    adjacent_pairs,
    find_candidates,
    group_points,
    nearest_candidate,
    touching_pairs,
)
from fedlib.messages import Array, Done, FeatureNames, Labels, Message
from fedlib.protocol import Flow, agree_on_features, handles
from fedlib.validation import Interval, StrOptions, check_points

__all__ = [
    "AssignCells",
    "CellCounts",
    "CountCells",
    "GridModel",
    "HorizontalDBSCAN",
    "HorizontalDBSCANClient",
    "count_cells",
    "horizontal_dbscan",
    "label_cells",
    "place_points",
    "sum_cells",
]

Cells = Annotated[np.ndarray, Array("int64", ("cells", "features"), ge=-MAX_CELL, le=MAX_CELL)]
Assign = Literal["point", "cell"]
Adjacency = Literal["faces", "full"]
CellSize = Annotated[float, msgspec.Meta(gt=0)]


class CellCounts(Message):
    """How many of a client's points lie in each cell that holds any, and any features' names."""

    discloses = "the occupied cells of a client and its number of points in each"
    cells: Cells
    counts: Annotated[np.ndarray, Array("int64", ("cells",), ge=1, le=2**40)]
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The number of columns of ``cells``."""
        return int(self.cells.shape[1])


class CountCells(Message):
    """Count your points in each cell of the grid."""

    discloses = "the cell size"
    reply = CellCounts
    cell_size: CellSize


class AssignCells(Message):
    """Place your points by these cells and their clusters."""

    discloses = "the cells of all clients' clusters"
    asks_for_data = False
    cell_size: CellSize
    cells: Cells
    labels: Annotated[np.ndarray, Array("int64", ("cells",), ge=0)]
    assign: Assign
    adjacency: Adjacency


@dataclass(frozen=True)
class GridModel:
    """All occupied cells (n_cells, n_features), sorted, with their counts and labels (-1: none)."""

    cells: NDArray[np.int64]
    counts: NDArray[np.int64]
    labels: NDArray[np.int64]


def horizontal_dbscan(
    cell_size: float,
    min_samples: int,
    border: str = "nearest",
    assign: Assign = "point",
    adjacency: Adjacency = "faces",
    random_state: Any = None,
) -> Flow[GridModel]:
    """Return the server flow; for the parameters see `HorizontalDBSCAN`."""
    replies = yield CountCells(float(cell_size))
    cells, counts = sum_cells(replies)
    labels = label_cells(cells, counts, min_samples, border, adjacency, random_state)
    given = labels >= 0
    yield AssignCells(float(cell_size), cells[given], labels[given], assign, adjacency)
    return GridModel(cells, counts, labels)


class HorizontalDBSCANClient(PointsClient):
    """A client and its points, as in `PointsClient`."""

    @handles(CountCells)
    def count_cells(self, request: CountCells) -> CellCounts:
        return CellCounts(*count_cells(self.X, request.cell_size), self.features)

    @handles(AssignCells)
    def assign_cells(self, request: AssignCells) -> Done:
        labels = place_points(
            self.X,
            request.cell_size,
            request.cells,
            request.labels,
            request.assign,
            request.adjacency,
        )
        self.state = Labels(labels)
        return Done()


class HorizontalDBSCAN(Federated):
    """DBSCAN on a grid, over clients that hold other rows of the same features.

    Parameters
    ----------
    cell_size : float
        The edge of the grid's cells, in the units of the features, above 0. All clients' features
        must be scaled alike.
    min_samples : int
        How many points of all clients together make a cell dense, at least 1.
    border : {"nearest", "absorb"}, default="nearest"
        What becomes of a cell that is not dense. ``"nearest"``: its points look for an adjacent
        dense cell; deterministic (the theses' pseudocode). ``"absorb"``: a cluster that grows takes
        the cells at its border too, unless they were visited before, and points one cell further
        out can then join them; depends on the order in which cells are visited (the theses'
        listings, and their figures).
    assign : {"point", "cell"}, default="point"
        How the points of a cell without a cluster choose among adjacent cells with one.
        ``"point"``: each takes the nearest centre, of equals the lexicographically smaller (M1).
        ``"cell"``: all take the lexicographically largest (what M2's listing does).
    adjacency : {"faces", "full"}, default="faces"
        Which cells are adjacent: those that share a face (the theses), or an edge or corner too.
    random_state : int, RandomState or None, default=None
        Draws the order of the cells for ``border="absorb"``.

    Attributes
    ----------
    cells_ : array (n_cells, n_features) of int64
        The occupied cells of all clients, sorted.
    cell_counts_ : array (n_cells,) of int64
        The number of points in each.
    cell_labels_ : array (n_cells,) of int64
        The cluster of each; -1 where it has none. Clusters are numbered by their first dense cell.
    labels_ : list of array of int64
        The cluster of each client's points, -1 for noise. Only if the parts were given to `fit`.
    ledger_ : Ledger
    n_features_in_ : int

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Notes
    -----
    Labels depend neither on how the rows are dealt to the clients nor on the clients' order. The
    cost is O(points) at the clients and O(occupied cells) at the server, but for the sorting of the
    cells. Only ``adjacency="full"`` in many features costs more: a cell has 3**n_features - 1
    neighbours to look at, and from where that is more than there are cells, all cells are compared.
    A cell's coordinates must lie within ±2**62.

    Sources: M1, §3.1 and §4.2; M2, §3.1 and §4.2.

    Examples
    --------
    Six points on a line in cells of width 1. The cells 0 and 1 are dense and adjacent; 2 is not,
    but next to a dense cell; 9 is noise.

    >>> from fedlib import HorizontalDBSCAN
    >>> first, second = [[0.1], [0.3], [1.2]], [[1.9], [2.5], [9.0]]
    >>> model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit([first, second])
    >>> model.labels_
    [array([0, 0, 0]), array([ 0,  0, -1])]
    >>> model.cells_.ravel(), model.cell_counts_, model.cell_labels_
    (array([0, 1, 2, 9]), array([2, 2, 1, 1]), array([ 0,  0, -1, -1]))
    >>> model.predict([[0.9], [-0.5], [5.0]])
    array([ 0,  0, -1])
    """

    name = "horizontal-dbscan"
    client_class = HorizontalDBSCANClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "cell_size": [Interval(Real, 0, np.inf, closed="neither")],
        "min_samples": [Interval(Integral, 1, None, closed="left")],
        "border": [StrOptions({"nearest", "absorb"})],
        "assign": [StrOptions({"point", "cell"})],
        "adjacency": [StrOptions({"faces", "full"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        cell_size: float,
        min_samples: int,
        *,
        border: str = "nearest",
        assign: str = "point",
        adjacency: str = "faces",
        random_state: Any = None,
    ):
        self.cell_size = cell_size
        self.min_samples = min_samples
        self.border = border
        self.assign = assign
        self.adjacency = adjacency
        self.random_state = random_state

    def _flow(self) -> Flow[GridModel]:
        return horizontal_dbscan(**self.get_params())

    def _set_model(self, model: GridModel) -> None:
        self.cells_ = model.cells
        self.cell_counts_ = model.counts
        self.cell_labels_ = model.labels
        self.n_features_in_ = model.cells.shape[1]
        self._rule = float(self.cell_size), self.assign, self.adjacency

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of new points (n_points, n_features) by the clients' rule; -1: none.

        Raises
        ------
        ValueError
            When the points are not finite or have other features than those of `fit`.
        """
        check_is_fitted(self, "cell_labels_")
        given = self.cell_labels_ >= 0
        cell_size, assign, adjacency = self._rule
        cells, labels = self.cells_[given], self.cell_labels_[given]
        return place_points(check_points(X), cell_size, cells, labels, assign, adjacency)


def count_cells(
    X: NDArray[np.float64], cell_size: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the occupied cells of points, sorted, and the number of points in each.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    cell_size : float

    Returns
    -------
    cells : array (n_cells, n_features) of int64
    counts : array (n_cells,) of int64

    Raises
    ------
    ValueError
        When a point's cell lies outside ±2**62.

    Examples
    --------
    >>> count_cells(np.array([[0.2, -0.1], [2.5, 0.4], [0.9, -0.9]]), cell_size=1.0)
    (array([[ 0, -1],
           [ 2,  0]]), array([2, 1]))
    """
    cells, counts, _ = _group(X, cell_size, np.empty(0, np.int64))
    order = _sorted(cells)
    return cells[order], counts[order]


def sum_cells(
    replies: Mapping[str, CellCounts],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted cells that clients occupy and the sum of their counts.

    Raises
    ------
    ValueError
        When the clients disagree on the number of features or on their names.
    """
    agree_on_features(replies)
    cells = np.concatenate([reply.cells for reply in replies.values()])
    counts = np.concatenate([reply.counts for reply in replies.values()])
    order = _sorted(cells)
    cells, counts = cells[order], counts[order]
    first = np.ones(len(cells), bool)
    first[1:] = (cells[1:] != cells[:-1]).any(axis=1)
    return cells[first], np.add.reduceat(counts, np.flatnonzero(first)) if len(counts) else counts


def label_cells(
    cells: NDArray[np.int64],
    counts: NDArray[np.int64],
    min_samples: int,
    border: str = "nearest",
    adjacency: str = "faces",
    random_state: Any = None,
) -> NDArray[np.int64]:
    """Return the cluster of each cell, numbered by first dense cell; -1 for a cell without one.

    Parameters
    ----------
    cells : array (n_cells, n_features) of int64
        Distinct and lexicographically sorted, as `sum_cells` gives them.
    counts : array (n_cells,) of int64
    min_samples, border, adjacency, random_state
        As in `HorizontalDBSCAN`.

    Examples
    --------
    >>> cells = np.array([[0], [1], [3], [4]])
    >>> label_cells(cells, np.array([9, 9, 1, 9]), min_samples=5)
    array([ 0,  0, -1,  1])
    """
    _one_of("border", border, ("nearest", "absorb"))
    dense = counts >= min_samples
    offsets = _offsets(cells.shape[1], adjacency, len(cells))
    half = offsets[len(offsets) // 2 :]
    pairs = adjacent_pairs(cells, half) if len(offsets) else touching_pairs(cells)
    labels = connected_components(len(cells), pairs, dense)
    if border == "absorb":
        rank = check_random_state(random_state).permutation(len(cells))
        _absorb(labels, dense, pairs, rank)
    return labels


def _absorb(
    labels: NDArray[np.int64],
    dense: NDArray[np.bool_],
    pairs: NDArray[np.int64],
    rank: NDArray[np.int64],
) -> None:
    """Give border cells to the clusters that reach them when cells are visited in order of rank.

    A cluster grows, all at once, when the first of its dense cells is visited. A border cell goes
    to the first adjacent cluster to grow, unless it was visited itself before.
    """
    starts = np.full(labels.max(initial=-1) + 1, len(rank))
    np.minimum.at(starts, labels[dense], rank[dense])
    both = np.concatenate([pairs, pairs[:, ::-1]])
    cluster_cell, border_cell = both[dense[both[:, 0]] & ~dense[both[:, 1]]].T
    start = starts[labels[cluster_cell]]
    reached = start < rank[border_cell]
    latest_first = np.argsort(-start[reached], kind="stable")
    labels[border_cell[reached][latest_first]] = labels[cluster_cell[reached][latest_first]]


def place_points(
    X: NDArray[np.float64],
    cell_size: float,
    cells: NDArray[np.int64],
    labels: NDArray[np.int64],
    assign: str = "point",
    adjacency: str = "faces",
) -> NDArray[np.int64]:
    """Return the cluster of each point: its cell's, or else that of an adjacent cell, or -1.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    cell_size : float
    cells : array (n_cells, n_features) of int64
        The cells that have a cluster.
    labels : array (n_cells,) of int64
    assign, adjacency
        As in `HorizontalDBSCAN`.

    Raises
    ------
    ValueError
        When the points and cells differ in the number of features, or a point's cell lies outside
        ±2**62.

    Examples
    --------
    >>> cells, labels = np.array([[0], [2]]), np.array([0, 1])
    >>> place_points(np.array([[0.5], [1.4], [1.6], [7.0]]), 1.0, cells, labels)
    array([ 0,  0,  1, -1])
    """
    _one_of("assign", assign, ("point", "cell"))
    if X.shape[1] != cells.shape[1]:
        raise ValueError(f"the points have {X.shape[1]} features, the cells {cells.shape[1]}")
    inverse = np.empty(len(X), np.int64)
    own = _group(X, cell_size, inverse)[0]
    order = _sorted(cells)
    cells, labels = cells[order], labels[order]
    start, index = find_candidates(own, cells, _offsets(X.shape[1], adjacency, len(cells)))
    if assign == "point":
        chosen = nearest_candidate(X, inverse, cells, cell_size, start, index)
    else:
        last = np.full(len(own), -1)
        found = start[1:] > start[:-1]
        last[found] = index[start[1:][found] - 1]
        chosen = last[inverse]
    return np.append(labels, -1)[chosen]


def _group(
    X: NDArray[np.float64], cell_size: float, inverse: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    cells, counts, outside = group_points(X, cell_size, inverse)
    if outside >= 0:
        raise ValueError(
            f"cell_size={cell_size} is too small for row {outside}: its cell lies outside ±2**62"
        )
    return cells, counts, inverse


def _sorted(cells: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the lexicographic order of cells."""
    return np.lexsort(cells.T[::-1])


def _offsets(n_features: int, adjacency: str, n_cells: int) -> NDArray[np.int64]:
    """Return what leads from a cell to its neighbours, in lexicographic order.

    Empty where it is cheaper to look through all cells than at all 3**n_features - 1 offsets.
    """
    _one_of("adjacency", adjacency, ("faces", "full"))
    if adjacency == "faces":
        forward = np.eye(n_features, dtype=np.int64)[::-1]
        return np.concatenate([-forward[::-1], forward])
    if 3.0**n_features > max(n_cells, 3**4):
        return np.empty((0, n_features), np.int64)
    offsets = np.array(list(product((-1, 0, 1), repeat=n_features)), np.int64)
    return offsets[offsets.any(axis=1)]


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}; got {value!r}")
