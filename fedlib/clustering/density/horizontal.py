"""Horizontal federated DBSCAN: each client holds different rows of the same features.

Every client lays the same grid over its points and reports the count of its points in each
occupied cell. The server adds up the counts. A cell is dense when it contains at least
``min_samples`` points, and adjacent dense cells form a cluster. The server sends the cells of all
clusters back, and each client uses them to label its own points.

Sources: M1 and M2, §3.1 and §4.2. Their pseudocode and their listings differ; ``border`` and
``assign`` select one of the readings.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
import numpy as np

from fedlib.clustering.density.bounded_cells import (
    MAX_POINTS,
    ONE_CELL,
    CellClusters,
    CountGrid,
    CountWithNoise,
    Grid,
    GridCounts,
    NoisyCounts,
    bounded_grid,
    count_in_grid,
    count_with_noise,
    groups_of_blocks,
    occupied_cells,
)
from fedlib.clustering.density.cells import (
    add_counts,
    count_cells,
    distinct_and_sorted,
    groups_of_cells,
    label_cells,
    label_in_range,
    place_points,
    warn_of_noise,
)
from fedlib.clustering.density.neighbouring_cells import noise_margin
from fedlib.core.aggregation import Aggregation, agree_on_features, exclude, settle
from fedlib.core.array_fields import MAX_COUNT, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import OddRows, handles, partitions
from fedlib.core.estimator import EXAMPLE_BOUNDS, Example
from fedlib.core.messages import Array, Done, FeatureNames, Labels, Message, MessageError
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Interval,
    OptionalBounds,
    OptionalPositiveFloat,
    OptionalPositiveInt,
    PositiveFloat,
    PositiveInt,
    RandomSource,
    StrOptions,
)
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.grid import MAX_CELL
from fedlib.protection.estimator import ProtectedFederated
from fedlib.protection.secure.points import DescribedPoints, agree_on_bounded_features
from fedlib.protection.sums import NoisySums

Cells = Annotated[np.ndarray, Array("int64", ("cells", "features"), ge=-MAX_CELL, le=MAX_CELL)]

Assign = Literal["point", "cell"]

Adjacency = Literal["faces", "full"]

CellSize = Annotated[float, msgspec.Meta(gt=0)]


class CellCounts(Message):
    """The occupied cells, the count of the client's points in each, and the features' names."""

    discloses = "the occupied cells of a client and its count of points in each"
    grouped_by = "counts"
    cells: Cells
    counts: Annotated[np.ndarray, Array("int64", ("cells",), ge=1, le=MAX_POINTS)]
    features: FeatureNames = ()

    @property
    def n_features(self) -> int:
        """The count of columns of ``cells``."""
        return int(self.cells.shape[1])

    @staticmethod
    def combine(replies: Sequence[CellCounts]) -> CellCounts:
        """Return the sum of the counts of several clients, which is exact.

        Raises
        ------
        ValueError
            When the clients disagree on the count of features or on their names.
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
        The count of points in each cell.
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
        """The count of features of the points."""
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
    """Return the occupied cells of all clients and the count of points in each.

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
        When the clients disagree on the count of features or on their names.

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


class HorizontalDBSCANClient(DescribedPoints):
    """A client that holds points; for the parameters see `fedlib.core.points.PointsClient`."""

    combinable = (CellCounts,)

    @handles(CountCells)
    def count_cells(self, request: CountCells) -> CellCounts:
        return CellCounts(*count_cells(self.X, request.cell_size), self.features)

    @partitions(CountCells, counts=True, terms=())
    def cells(self, request: CountCells) -> Iterable[Ints]:
        yield groups_of_cells(self.X, request.cell_size)

    @handles(CountGrid)
    def count_grid(self, request: CountGrid) -> GridCounts:
        return count_in_grid(self.X, request)

    @partitions(CountGrid, counts=True, terms=())
    def blocks(self, request: CountGrid) -> Iterable[Ints]:
        yield groups_of_blocks(self.X, request)

    @handles(CountWithNoise)
    def count_with_noise(self, request: CountWithNoise) -> NoisyCounts:
        return count_with_noise(self.X, request, self.n_shares)

    @handles(AssignCells)
    def assign_cells(self, request: AssignCells) -> Done:
        labels, problem = label_in_range(self.X, request.cell_size, request.place)
        self.state = Labels(labels)
        if problem:
            raise OddRows(problem)
        return Done()


MAX_NARROW, MIN_WIDE = 2, 100  # values within one cell's length lie in at most two cells


def horizontal_dbscan(
    cell_size: float,
    min_samples: int,
    border: str,
    assign: Assign,
    adjacency: Adjacency,
    max_cells: int | None,
    random_state: Any,
) -> Flow[GridModel]:
    """Return the server flow; for the parameters see `HorizontalDBSCAN`."""
    rules = float(cell_size), min_samples, border, assign, adjacency, random_state
    replies = yield CountCells(float(cell_size))
    replies = yield from settle(replies, agree_on_features)
    replies = yield from exclude(replies, with_too_many_cells(replies, max_cells))
    cells, counts = sum_cells(replies)
    return (yield from _cluster_cells(cells, counts, replies, *rules))


def secure_horizontal_dbscan(
    grid: Grid, aggregation: Aggregation, **parameters: Any
) -> Flow[GridModel]:
    """Return the server flow with masked sums of the counts in all cells of a bounded grid."""
    replies = yield from agree_on_bounded_features(aggregation, len(grid.low))
    total, _ = yield from aggregation.sum(CountGrid(parameters["cell_size"], *grid))
    return (yield from _cluster_cells(*occupied_cells(grid, total), replies, **parameters))


def private_horizontal_dbscan(
    grid: Grid, aggregation: NoisySums, **parameters: Any
) -> Flow[GridModel]:
    """Return the server flow with noise on the counts in all cells of a bounded grid.

    A cell counts as occupied if its noisy count is so large that the noise alone would reach it in
    no cell, with a probability of 95 %.
    """
    aggregation.scale(ONE_CELL)  # an epsilon that is too small is refused before any message
    replies = yield from agree_on_bounded_features(aggregation, len(grid.low))
    request = CountWithNoise(parameters["cell_size"], *grid, aggregation.privacy)
    total, _ = yield from aggregation.sum(request)
    n_clients, n_values = aggregation.n_clients, len(total.counts)
    least = noise_margin(aggregation.scale(ONE_CELL), aggregation.privacy, n_clients, n_values)
    counts = np.clip(np.where(total.counts >= least, np.rint(total.counts), 0), 0, 2**50)
    cells = occupied_cells(grid, GridCounts(counts.astype(np.int64), 0))
    return (yield from _cluster_cells(*cells, replies, **parameters))


def _cluster_cells(
    cells: Ints,
    counts: Ints,
    replies: Replies,
    cell_size: float,
    min_samples: int,
    border: str,
    assign: Assign,
    adjacency: Adjacency,
    random_state: Any,
) -> Flow[GridModel]:
    """Cluster the occupied cells, and let the clients label their points."""
    _warn_of_scales(cells, next((r.features for r in replies.values() if r.features), ()))
    labels = label_cells(cells, counts, min_samples, border, adjacency, random_state)
    warn_of_noise(cells, counts, labels, min_samples)
    model = GridModel(cell_size, cells, counts, labels, assign, adjacency)
    yield model.clusters
    return model


def with_too_many_cells(replies: Replies, max_cells: int | None) -> dict[str, str]:
    """Return the reason to exclude each client that reported more than ``max_cells`` cells."""
    if max_cells is None:
        return {}
    return {
        name: f"CellCounts.cells must have at most max_cells={max_cells} rows, got {n_cells}"
        for name, reply in replies.items()
        if (n_cells := len(reply.cells)) > max_cells * replies.n_clients(name)
    }


def _warn_of_scales(cells: Ints, features: Sequence[str]) -> None:
    """Warn when one feature hardly leaves a cell while another one extends over hundreds."""
    if not len(cells):
        return
    spans = cells.max(axis=0) - cells.min(axis=0) + 1
    narrow, wide = int(spans.argmin()), int(spans.argmax())
    if spans[narrow] <= MAX_NARROW and spans[wide] >= MIN_WIDE:
        names = features or [str(j) for j in range(len(spans))]
        warnings.warn(
            f"feature {names[wide]!r} extends over {spans[wide]} cells, but {names[narrow]!r} over"
            f" {spans[narrow]}, so it hardly counts; scale the features alike, for example with"
            " FederatedPipeline(..., scale='standard')",
            stacklevel=2,
        )


class HorizontalDBSCAN(CellClusters, ProtectedFederated):
    """DBSCAN on a grid, over clients that hold different rows of the same features.

    Attributes
    ----------
    model_ : GridModel
        The result of the protocol; all other attributes except the labels and the ledger derive
        from it.
    cells_ : array (n_cells, n_features) of int64
        The occupied cells of all clients, sorted lexicographically.
    cell_counts_ : array (n_cells,) of int64
        The count of points in each cell.
    cell_labels_ : array (n_cells,) of int64
        The cluster of each cell, or -1. Clusters are numbered by their first dense cell.
    labels_ : list of array of int64
        The cluster of each client's points; -1 for noise. Only if the parts were given to `fit`.
    ledger_ : Ledger
        The record of all messages.
    n_features_in_ : int
        The count of features.
    feature_names_in_ : array (n_features,) of str
        The names of the columns; only if the clients' columns have names.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Warns
    -----
    UserWarning
        When a feature extends over at most two cells and another one over at least 100: their
        scales differ too much for one cell size. When at least nine of ten rows, of at least 100,
        are in cells without a cluster, though each of three or more features by itself has half of
        the rows in intervals with `min_samples` rows: there are too many columns for a grid.

    Notes
    -----
    The labels depend neither on how the rows are distributed over the clients nor on the order of
    the clients. The time is O(n_points) per client and O(n_cells) at the server, plus sorting the
    cells. ``adjacency="full"`` costs more with many features: a cell has ``3**n_features - 1``
    neighbours, and when that exceeds the count of cells, all pairs of cells are compared instead.
    The coordinates of the cells must lie within ±2**62.

    False counts cannot be detected: a client that reports a chain of dense cells joins the clusters
    of other clients.

    Sources: M1, §3.1 and §4.2; M2, §3.1 and §4.2.

    Examples
    --------
    Six points on a line, in cells of width 1. Cells 0 and 1 are dense and adjacent. Cell 2 is not
    dense, but adjacent to a dense cell. The point in cell 9 is noise.

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
    example = Example("rows", {"cell_size": 0.5, "min_samples": 4}, {"bounds": EXAMPLE_BOUNDS})
    former_names: ClassVar[dict[str, str]] = {"grid_bounds": "bounds"}
    client_class = HorizontalDBSCANClient
    cell_size: Annotated[
        PositiveFloat,
        """
        The edge length of the grid's cells, in the units of the features; positive and finite. All
        clients must scale their features in the same way.
        """,
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        The count of points, of all clients together, from which a cell is dense; at least 1.
        """,
    ]
    _: KW_ONLY
    border: Annotated[
        str,
        StrOptions({"nearest", "absorb"}),
        """
        The treatment of occupied cells that are not dense.

        - ``"nearest"``: they belong to no cluster, and their points join an adjacent dense cell, if
          there is one. Deterministic; the pseudocode of the theses.
        - ``"absorb"``: a growing cluster includes the cells at its border, unless they were visited
          before, and points one cell further out can then join these cells. The result depends on
          the order in which cells are visited. The listings of the theses work in this
          way, and their figures were computed with it.
        """,
    ] = "nearest"
    assign: Annotated[
        str,
        StrOptions({"point", "cell"}),
        """
        How a point in a cell without a cluster chooses among the adjacent cells with a cluster.

        - ``"point"``: it takes the cell with the nearest centre; ties go to the lexicographically
          smallest cell (M1).
        - ``"cell"``: all points of a cell take the lexicographically largest one (M2's listing).
        """,
    ] = "point"
    adjacency: Annotated[
        str,
        StrOptions({"faces", "full"}),
        """
        ``"faces"``: cells that share a face are adjacent (the theses). ``"full"``: cells that share
        an edge or a corner are adjacent too.
        """,
    ] = "faces"
    max_cells: Annotated[
        OptionalPositiveInt,
        """
        The maximum count of cells that one client may report, at least 1. A client that reports
        more leaves the run. It protects the memory of the server, which needs about 500 bytes per
        cell. A combined reply may have as many cells per client. By default there is no limit.
        """,
    ] = None
    random_state: Annotated[
        RandomSource,
        """
        Determines the order in which ``border="absorb"`` visits the cells.
        """,
    ] = None
    secure: Annotated[
        Flag,
        """
        Whether the server sees sums of the clients' counts; see `fedlib.protection.secure`. It
        needs `bounds`. If all points lie within them, the result is the same.
        """,
    ] = False
    bounds: Annotated[
        OptionalBounds,
        """
        For ``secure=True`` and `epsilon`: the smallest and the largest coordinates. The grid
        between them has at most 2**24 cells, with `epsilon` five million unless the sites permit
        more (``max_work`` of a policy). A client sends 8 bytes per cell, occupied or not.
        """,
    ] = None
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        With an epsilon, the run is (epsilon, delta)-differentially private for each row, added or
        removed; see `fedlib.protection.privacy`. It needs `bounds`, which must not depend on
        the data. All counts have noise, also those of empty cells. Cells count as empty up to a
        threshold that the noise exceeds nowhere with a probability of 95 %. Rows outside of the
        bounds are not counted.
        """,
    ] = None
    delta: Annotated[
        float,
        Interval(Real, 0, 1, closed="left"),
    ] = 0.0

    def _set_model(self, model: GridModel) -> None:  # a saved model is read as this class
        super()._set_model(model)

    def _flow(self) -> Flow[GridModel]:
        names = ("min_samples", "border", "assign", "adjacency", "random_state")
        parameters = {name: getattr(self, name) for name in names}
        parameters["cell_size"] = self.cell_size
        if not self.secure and self.epsilon is None:
            self._refuse_limits()
            return horizontal_dbscan(max_cells=self.max_cells, **parameters)
        bounds = self._bounds()
        grid = bounded_grid(bounds.limits, self.cell_size)  # limits the cells
        aggregation = self._aggregation(1, bounds)
        if isinstance(aggregation, NoisySums):
            return private_horizontal_dbscan(grid, aggregation, **parameters)
        return secure_horizontal_dbscan(grid, aggregation, **parameters)
