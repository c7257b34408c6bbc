"""Approximate DBSCAN from counts per cell alone, with a guarantee.

Every client lays the same fine grid over its points and reports the count of its points in each
occupied cell; no position leaves it. The server adds up the counts and clusters the cells. Its
clusters lie between those of DBSCAN with ``eps`` and with ``eps * (1 + rho)``:
`fedlib.clustering.density.neighbouring_cells` has the rule and its proof. The server sends the
cells of all clusters back, and each client uses them to label its own points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, ClassVar, cast

import numpy as np

from fedlib.clustering.density.bounded_cells import (
    MAX_GRID,
    MAX_KEY,
    ONE_CELL,
    CellClusters,
    CountGrid,
    CountWithNoise,
    Eps,
    Grid,
    GridCounts,
    NoisyCounts,
    Rho,
    bounded_grid,
    count_in_grid,
    count_on_grid,
    count_with_noise,
    groups_of_blocks,
)
from fedlib.clustering.density.cells import (
    count_cells,
    groups_of_cells,
    label_in_range,
    warn_of_noise,
)
from fedlib.clustering.density.horizontal import (
    CellCounts,
    accept_counts,
    sum_cells,
    with_too_many_cells,
)
from fedlib.clustering.density.neighbouring_cells import (
    MAX_CELL,
    MIN_RHO,
    ball_of_cells,
    cell_side,
    find_spans,
    label_core_cells,
    noise_margin,
    place_near,
)
from fedlib.core.aggregation import Aggregation, agree_on_features, exclude, settle
from fedlib.core.array_fields import MAX_COUNT, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest, OddRows, handles, partitions
from fedlib.core.estimator import EXAMPLE_BOUNDS, Example
from fedlib.core.messages import Array, Done, Labels, Message, MessageError
from fedlib.core.parameters import (
    KW_ONLY,
    Flag,
    Interval,
    Kind,
    OptionalBounds,
    OptionalPositiveFloat,
    OptionalPositiveInt,
    PositiveFloat,
    PositiveInt,
)
from fedlib.core.protocol import Flow
from fedlib.core.threads import check_n_jobs
from fedlib.protection.estimator import ProtectedFederated
from fedlib.protection.secure.points import DescribedPoints, agree_on_bounded_features
from fedlib.protection.sums import NoisySums

DEFAULT_MAX_BLOCKS = 2**22  # 32 MiB of counts per client

Cells = Annotated[np.ndarray, Array("int64", ("cells", "features"), ge=-MAX_CELL, le=MAX_CELL)]


class CountSmallCells(Message):
    """Count your points in each cell of the grid that ``eps`` and ``rho`` define."""

    discloses = "eps and rho, which define the cell size"
    reply = CellCounts
    eps: Eps
    rho: Rho

    def effective(self, n_features: int) -> dict[str, float]:
        """Return the side of the cells."""
        return {"cell_size": cell_side(self.eps, self.rho, n_features)}

    def accept(self, reply: Message) -> Message:
        counted = accept_counts(cast(CellCounts, reply))
        if counted.cells.size and max(-counted.cells.min(), counted.cells.max()) > MAX_CELL:
            raise MessageError(f"CellCounts.cells must lie within ±{MAX_CELL}")
        return counted


class AssignCoreCells(Message):
    """Label your points: these are the core cells of the clusters."""

    discloses = "the core cells of all clients' clusters"
    asks_for_data = False
    eps: Eps
    rho: Rho
    cells: Cells
    labels: Annotated[np.ndarray, Array("int64", ("cells",), ge=0, below="cells")]

    def place(self, X: Floats) -> Ints:
        """Return the cluster of each point, or -1."""
        return place_near(X, self.eps, self.rho, self.cells, self.labels)


@dataclass(frozen=True)
class ApproximateModel(Checked):
    """The occupied cells with their clusters.

    Attributes
    ----------
    eps, rho : float
        As in `ApproximateDBSCAN`.
    cells : array (n_cells, n_features) of int64
        The occupied cells of all clients, sorted lexicographically.
    counts : array (n_cells,) of int64
        The count of points in each cell; with noise, it can be below 0.
    labels : array (n_cells,) of int64
        The cluster of each core cell, and -1 for the other cells.
    margin : float
        With noise, what is added to ``min_samples``; see
        `fedlib.clustering.density.neighbouring_cells`.
        ``cells`` are then core cells only. Without noise, 0.
    """

    eps: float
    rho: float
    cells: Cells
    counts: Annotated[Ints, Array("int64", ("cells",), ge=-MAX_COUNT, le=MAX_COUNT)]
    labels: Annotated[Ints, Array("int64", ("cells",), ge=-1, below="cells")]
    margin: float = 0.0

    @property
    def core_cells(self) -> AssignCoreCells:
        """The message with which each client labels its points."""
        core = self.labels >= 0
        return AssignCoreCells(self.eps, self.rho, self.cells[core], self.labels[core])

    def place(self, X: Floats) -> Ints:
        """Return the cluster of each point (n_points, n_features), or -1, by the clients' rule."""
        return self.core_cells.place(X)


def approximate_dbscan(
    eps: float,
    min_samples: int,
    rho: float,
    grid: Grid | None,
    max_cells: int | None,
    aggregation: Aggregation,
    n_jobs: int | None,
) -> Flow[ApproximateModel]:
    """Return the server flow; for the parameters see `ApproximateDBSCAN`.

    ``grid`` contains the cells within the bounds, or is None if the clients report the occupied
    cells.
    """
    if grid is None:
        cells, counts = yield from _count_occupied(eps, rho, max_cells)
    else:
        yield from agree_on_bounded_features(aggregation, len(grid.low))
        limit = DEFAULT_MAX_BLOCKS if max_cells is None else max_cells
        side = cell_side(eps, rho, len(grid.low))
        given = float(eps), float(rho)
        cells, counts = yield from count_on_grid(side, grid, limit, aggregation, *given)
    labels = label_core_cells(cells, counts, rho, min_samples, n_jobs)
    width = max(1, int(eps / cell_side(eps, rho, cells.shape[1])))
    warn_of_noise(cells, counts, labels, min_samples, width)
    model = ApproximateModel(float(eps), float(rho), cells, counts, labels)
    yield model.core_cells
    return model


def private_dbscan(
    eps: float,
    min_samples: int,
    rho: float,
    grid: Grid,
    aggregation: NoisySums,
    n_jobs: int | None,
) -> Flow[ApproximateModel]:
    """Return the server flow with noise on all counts.

    See `ApproximateDBSCAN` and `fedlib.clustering.density.neighbouring_cells`. There is one
    request for counts.
    """
    aggregation.scale(ONE_CELL)  # an epsilon that is too small is refused before any message
    replies = yield from agree_on_bounded_features(aggregation, len(grid.low))
    side = cell_side(eps, rho, len(grid.low))
    request = CountWithNoise(side, *grid, aggregation.privacy, float(eps), float(rho))
    total, _ = yield from aggregation.sum(request)
    shape, n_cells = tuple(grid.shape.tolist()), total.counts.size
    scale = aggregation.scale(ONE_CELL, n_cells)
    n_near = int(ball_of_cells(shape, rho).sum())
    margin = noise_margin(scale, aggregation.privacy, n_near * len(replies), n_cells)
    counts = total.counts.reshape(shape)
    places, labels = find_spans(counts, rho, min_samples + margin, n_jobs)
    noisy = np.rint(counts[tuple(places.T)]).astype(np.int64)
    model = ApproximateModel(float(eps), float(rho), places + grid.low, noisy, labels, margin)
    yield model.core_cells
    return model


def _count_occupied(eps: float, rho: float, max_cells: int | None) -> Flow[tuple[Ints, Ints]]:
    """Return the occupied cells of all clients, sorted lexicographically, and their counts."""
    replies = yield CountSmallCells(float(eps), float(rho))
    replies = yield from settle(replies, agree_on_features)
    replies = yield from exclude(replies, with_too_many_cells(replies, max_cells))
    return sum_cells(replies)


class ApproximateDBSCANClient(DescribedPoints):
    """A client that holds points; for the parameters see `fedlib.core.points.PointsClient`."""

    combinable = (CellCounts,)

    @handles(CountSmallCells)
    def count_cells(self, request: CountSmallCells) -> CellCounts:
        side = cell_side(request.eps, request.rho, self.n_features)
        cells, counts = count_cells(self.X, side)
        if cells.size and max(-cells.min(), cells.max()) > MAX_CELL:
            raise ValueError(
                f"eps={request.eps} and rho={request.rho} are too small for these points:"
                f" a cell of side {side} lies outside ±2**40"
            )
        return CellCounts(cells, counts, self.features)

    @partitions(CountSmallCells, counts=True, terms=())
    def cells(self, request: CountSmallCells) -> Iterable[Ints]:
        yield groups_of_cells(self.X, cell_side(request.eps, request.rho, self.n_features))

    @handles(CountGrid)
    def count_grid(self, request: CountGrid) -> GridCounts:
        _check_stated(request)
        counted = count_in_grid(self.X, request)
        if n := counted.n_outside:
            self.note(f"{n} of {len(self.X)} points lie outside the agreed bounds: they are noise")
        return counted

    @partitions(CountGrid, counts=True, terms=())
    def blocks(self, request: CountGrid) -> Iterable[Ints]:
        yield groups_of_blocks(self.X, request)

    @handles(CountWithNoise)
    def count_with_noise(self, request: CountWithNoise) -> NoisyCounts:
        _check_stated(request)
        return count_with_noise(self.X, request, self.n_shares)

    @handles(AssignCoreCells)
    def assign_core_cells(self, request: AssignCoreCells) -> Done:
        side = cell_side(request.eps, request.rho, self.n_features)
        labels, problem = label_in_range(self.X, side, request.place)
        self.state = Labels(labels)
        if problem:
            raise OddRows(problem)
        return Done()


def _check_stated(request: CountGrid | CountWithNoise) -> None:
    """Raise BadRequest unless a request states the parameters that define its cells."""
    if request.eps is None:
        raise BadRequest(f"{type(request).__name__} must have eps and rho, got a cell size only")


class ApproximateDBSCAN(CellClusters, ProtectedFederated):
    """DBSCAN from counts per cell alone, exact up to a factor of ``1 + rho`` in the radius.

    The clients hold different rows of the same features. They send counts and no positions.

    Attributes
    ----------
    model_ : ApproximateModel
        The result of the protocol; all other attributes except the labels and the ledger derive
        from it.
    cells_ : array (n_cells, n_features) of int64
        The occupied cells of all clients, sorted lexicographically. With an epsilon, the core
        cells.
    cell_counts_ : array (n_cells,) of int64
        The count of points in each cell, with the noise if there is an epsilon.
    cell_labels_ : array (n_cells,) of int64
        The cluster of each core cell, and -1 for the other cells. Clusters are numbered by their
        first core cell.
    spans_ : list of array (n, n_features) of int64
        The core cells of each cluster.
    noise_margin_ : float
        With an epsilon, the bound within which the summed noise near every cell stays with a
        probability of at least 95 %, else 0. It is added to `min_samples`.
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

    See Also
    --------
    HorizontalDBSCAN : fewer and larger cells, without a guarantee.
    fedlib.clustering.density.engine.dbscan.cluster : exact DBSCAN for points in one place.

    Warns
    -----
    UserWarning
        When at least nine of ten rows, of at least 100, are in cells without a cluster, though each
        of three or more features by itself has half of the rows in intervals of about `eps` with
        `min_samples` rows: there are too many columns for a grid. Not with noise.

    Notes
    -----
    The guarantee, for the points of all clients together (proof:
    `fedlib.clustering.density.neighbouring_cells`):

    - The core points of a cluster of DBSCAN(eps) are in one cluster here.
    - The points in the core cells of a cluster here are core points of one cluster of
      DBSCAN(eps * (1 + rho)).
    - A point that DBSCAN(eps) puts into a cluster is not noise here, and a point that is not noise
      here is not noise in DBSCAN(eps * (1 + rho)).

    So if no cluster changes when ``eps`` grows by the factor ``1 + rho``, the core points of all
    three agree. A border point joins the core cell with the nearest centre.

    The labels depend neither on how the rows are distributed over the clients nor on the order of
    the clients. The time is O(n_points) per client, plus, at the server, at most O(n_cells / rho)
    with two features. The count of occupied cells, and the size of the messages, grows with
    ``(1 / rho) ** n_features`` until nearly every point has a cell of its own: with many features,
    a small rho discloses nearly as much as the points rounded to the side of a cell.

    With an epsilon, the core cells of each cluster are a *span*: they show where the cluster is,
    and some may be empty. The guarantee is weaker (proof:
    `fedlib.clustering.density.neighbouring_cells`). With the margin t of the noise and a
    probability of at least 95 %, the core points of a cluster of DBSCAN(eps, min_samples + 2 t) are
    in one span, and the points of a span are core points of one cluster of DBSCAN(3 eps (1 + rho),
    min_samples). The margin grows with the square root of the count of near cells, so it is
    smallest for ``rho=1``. It does not grow with the count of points: choose ``min_samples`` well
    above it.

    False counts cannot be detected: a client that reports a chain of core cells joins the clusters
    of other clients.

    Source: J. Gan and Y. Tao, "DBSCAN revisited: mis-claim, un-fixability, and approximation",
    SIGMOD 2015.

    Examples
    --------
    With one feature, ``eps=1`` and ``rho=1``, cells are just below 0.5 wide.

    >>> from fedlib import ApproximateDBSCAN
    >>> first, second = [[0.1], [0.3], [1.2]], [[1.9], [2.7], [9.0]]
    >>> model = ApproximateDBSCAN(eps=1.0, min_samples=3, rho=1.0).fit([first, second])
    >>> model.labels_
    [array([0, 0, 0]), array([ 0,  0, -1])]
    >>> model.cells_.ravel(), model.cell_counts_, model.cell_labels_
    (array([ 0,  2,  3,  5, 18]), array([2, 1, 1, 1, 1]), array([ 0,  0,  0,  0, -1]))
    >>> model.predict([[0.9], [-0.5], [5.0]])
    array([ 0,  0, -1])
    """

    name = "approximate-dbscan"
    example = Example(
        "rows", {"eps": 0.5, "min_samples": 4, "rho": 0.5}, {"rho": 1.0, "bounds": EXAMPLE_BOUNDS}
    )
    former_names: ClassVar[dict[str, str]] = {"grid_bounds": "bounds"}
    client_class = ApproximateDBSCANClient
    eps: Annotated[
        PositiveFloat,
        """
        The radius of a neighbourhood, in the units of the features; positive and finite. All
        clients must scale their features in the same way.
        """,
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        The count of points, of all clients together, within ``eps`` of a core point, including
        the point itself; at least 1.
        """,
    ]
    rho: Annotated[
        float,
        Interval(Real, MIN_RHO, 1, closed="both"),
        """
        The accuracy, from 1e-6 to 1. Cells have a side of ``rho * eps / (2 * sqrt(n_features))``,
        slightly less because of rounding.
        """,
    ] = 0.05
    _: KW_ONLY
    bounds: Annotated[
        OptionalBounds,
        """
        The lowest and the highest value of each feature, on which the clients have agreed. Then all
        clients count their points in the same cells within the bounds, empty or not. A client with
        a point outside leaves the run. The result is the same as without bounds.
        """,
    ] = None
    max_cells: Annotated[
        OptionalPositiveInt,
        """
        The maximum count of cells that one client may report, at least 1. Without bounds, a client
        that reports more leaves the run, and None means no limit. With bounds, it is at most 2**24,
        with `epsilon` five million unless the sites permit more, and None means 2**22. A grid with
        more cells is refined where there are points, in several exchanges: first the clients count
        in larger blocks of cells, and then in the parts of the blocks that contain points of any
        client. The run ends with `fedlib.clustering.density.bounded_cells.TooManyBlocks` if too
        many cells are occupied.
        """,
    ] = None
    secure: Annotated[
        Flag,
        """
        Whether the server sees sums of the clients' counts; see `fedlib.protection.secure`. It
        needs `bounds`. The result is the same. If the grid is refined, the server sees the
        sums for larger blocks, too, which follow from those for the cells, and the clients learn
        which larger blocks contain points of any of them. If a client is lost between two of these
        sums, they differ by its counts: then ``max_cells`` should allow a single sum.
        """,
    ] = False
    epsilon: Annotated[
        OptionalPositiveFloat,
        """
        With an epsilon, the run is (epsilon, delta)-differentially private for each row, added or
        removed; see `fedlib.protection.privacy`. It needs `bounds`, which must not depend on
        the data, with at most `max_cells` cells. All counts have noise, also those of empty cells,
        and rows outside of the bounds are not counted. The result is spans, see the notes. With
        ``secure=True``, which needs ``delta > 0``, the noise is shared among the clients.
        """,
    ] = None
    delta: Annotated[
        float,
        Interval(Real, 0, 1, closed="left"),
    ] = 0.0
    n_jobs: Annotated[
        int | None,
        Integral,
        None,
        Kind("int"),
        """
        The count of threads of the server, at least 1, or -1 for one per core; None means 1. The
        result does not depend on it.
        """,
    ] = None

    def _flow(self) -> Flow[ApproximateModel]:
        check_n_jobs(self.n_jobs)
        parameters = self.get_params()
        max_cells = parameters.pop("max_cells")
        for name in ("secure", "epsilon", "delta", "bounds", "schema"):
            del parameters[name]
        if self.bounds is None and not self.secure and self.epsilon is None:
            return approximate_dbscan(
                **parameters, grid=None, max_cells=max_cells, aggregation=self._sums()
            )
        bounds = self._bounds()
        aggregation = self._aggregation(1, bounds)
        if max_cells is not None and max_cells > MAX_GRID:
            raise ValueError(f"max_cells must be at most {MAX_GRID} with bounds, got {max_cells}")
        limits = bounds.limits
        side = cell_side(self.eps, self.rho, limits.shape[1])
        if isinstance(aggregation, NoisySums):
            grid = bounded_grid(limits, side, max_cells or DEFAULT_MAX_BLOCKS, MAX_CELL)
            return private_dbscan(**parameters, grid=grid, aggregation=aggregation)
        grid = bounded_grid(limits, side, MAX_KEY - 1, MAX_CELL)
        return approximate_dbscan(
            **parameters, grid=grid, max_cells=max_cells, aggregation=aggregation
        )

    def _set_model(self, model: ApproximateModel) -> None:
        super()._set_model(model)
        self.noise_margin_ = model.margin
        core = model.core_cells
        sizes = np.bincount(core.labels)
        in_spans = core.cells[np.argsort(core.labels, kind="stable")]
        self.spans_ = np.split(in_spans, np.cumsum(sizes)[:-1]) if len(sizes) else []
