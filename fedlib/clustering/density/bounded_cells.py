"""Counts per cell of a grid with bounds, so that the server needs only sums over the clients.

The clients agree on bounds of the features instead of reporting which cells they occupy. Every
client reports its count for each of the same cells, even if it is 0, and the server adds up the
counts, so it does not need those of single clients.

If the grid has too many cells for one message, the server asks for larger blocks of cells first,
and then only for the parts of the occupied blocks. The sums for larger blocks follow from those for
the cells, so they disclose nothing more to the server. The requests disclose to the clients which
larger blocks contain points of any of them.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.clustering.density.cells import count_cells, place_points
from fedlib.clustering.density.neighbouring_cells import MIN_RHO, cell_side
from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import BadRequest
from fedlib.core.estimator import Clusterer
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.grid import MAX_CELL
from fedlib.protection.estimator import ProtectedFederated
from fedlib.protection.privacy import NOISY, NoisyRequest, Privacy, Sensitivity, add_noise
from fedlib.protection.secure.flow import ImpossibleSum


class CellClusters(Clusterer, ProtectedFederated):
    """Base class of the estimators whose model has ``cells``, ``counts``, ``labels``, ``place``."""

    def _set_model(self, model: Any) -> None:
        super()._set_model(model)
        self.cells_ = model.cells
        self.cell_counts_ = model.counts
        self.cell_labels_ = model.labels
        self.n_features_in_ = model.cells.shape[1]

    def predict(self, X: ArrayLike) -> Ints:
        """Return the cluster of new points by the rule that labelled the clients' points.

        Parameters
        ----------
        X : array-like (n_points, n_features)
            Finite numbers; at least one row.

        Returns
        -------
        array (n_points,) of int64
            The cluster of each point; -1 for a point that belongs to none.

        Raises
        ------
        ValueError
            When the points are not finite, do not have the count of features of `fit`, or lie too
            far out for the grid.
        """
        points = self._new_points(X)
        labels: Ints = self.model_.place(points)
        return labels


Eps = Annotated[float, msgspec.Meta(gt=0)]
Rho = Annotated[float, msgspec.Meta(ge=MIN_RHO, le=1)]

MAX_GRID = 2**24  # numbers in one reply: 128 MB
MAX_KEY = 2**62
MAX_POINTS = 2**40  # of one client; the sum over any number of clients fits an int64


ONE_CELL = Sensitivity(l1=1.0, l2=1.0, n_entries=1)  # a row adds 1 to one count, or nothing


class TooManyBlocks(ValueError):
    """More blocks of cells are occupied than one request may list."""


class Grid(NamedTuple):
    """The cells within agreed bounds.

    Attributes
    ----------
    low : array (n_features,) of int64
        The first cell.
    shape : array (n_features,) of int64
        The count of cells along each feature.
    """

    low: Ints
    shape: Ints

    def blocks(self, side: int) -> tuple[int, ...]:
        """Return the count of blocks of ``side`` cells along each feature."""
        return tuple(-(-int(n) // side) for n in self.shape)


class GridCounts(Message):
    """The count of a client's points in each block of cells, and outside of the grid."""

    discloses = "the count of points in each cell, or block of cells, occupied or not"
    counts: Annotated[np.ndarray, Array("int64", ("blocks",), ge=0, le=2**50)]
    n_outside: Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class CountGrid(Message):
    """Count your points in blocks of cells of a bounded grid.

    Attributes
    ----------
    cell_size : float
    low, shape : array (n_features,) of int64
        The first cell of the grid and the count of cells along each feature.
    side : int
        The count of cells along the edge of a block.
    keys : array (n_keys,) of int64
        The indices of the blocks in the lexicographic order of the grid, ascending. Empty: all
        blocks.
    eps, rho : float or None
        The parameters that define the cell size, if it is no parameter itself: so the rules of a
        site about them hold (`check_cell_size`).
    """

    discloses = "the grid, and which larger blocks contain points of any client"
    effortless = ("side",)
    reply = GridCounts
    cell_size: Annotated[float, msgspec.Meta(gt=0)]
    low: Annotated[np.ndarray, Array("int64", ("features",), ge=-MAX_CELL, le=MAX_CELL)]
    shape: Annotated[np.ndarray, Array("int64", ("features",), ge=1, le=MAX_KEY)]
    side: Annotated[int, msgspec.Meta(ge=1, le=MAX_KEY)] = 1
    keys: Annotated[np.ndarray, Array("int64", ("keys",), ge=0, le=MAX_KEY)] = msgspec.field(
        default_factory=lambda: np.empty(0, np.int64)
    )
    eps: Eps | None = None
    rho: Rho | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cell_size(self)

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.low, self.shape)

    @property
    def n_blocks(self) -> int:
        """The count of blocks."""
        return len(self.keys) or math.prod(self.grid.blocks(self.side))

    def reply_lengths(self) -> dict[str, int]:
        return {"blocks": self.n_blocks}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        return {}

    def accept(self, reply: Message) -> Message:
        counts = cast(GridCounts, reply).counts
        if len(counts) != self.n_blocks:
            raise MessageError(
                f"GridCounts.counts must have {self.n_blocks} entries, got {len(counts)}"
            )
        if counts.sum(dtype=np.float64) > MAX_POINTS:
            raise MessageError(f"GridCounts.counts must sum to at most {MAX_POINTS}")
        return reply


class NoisyCounts(Message):
    """The count of a client's points in each cell of a bounded grid, with noise."""

    discloses = "the count of points in each cell, with noise"
    counts: Annotated[np.ndarray, Array("float64", ("cells",), -NOISY, NOISY)]


class CountWithNoise(NoisyRequest):
    """Count your points in each cell of a bounded grid, and add noise to all counts.

    Points outside of the grid are not counted, and nothing shows whether there are any.

    Attributes
    ----------
    cell_size : float
    low, shape, eps, rho
        As in `CountGrid`.
    privacy : fedlib.protection.privacy.Privacy
    """

    discloses = "the grid"
    reply = NoisyCounts
    cell_size: Annotated[float, msgspec.Meta(gt=0)]
    low: Annotated[np.ndarray, Array("int64", ("features",), ge=-MAX_CELL, le=MAX_CELL)]
    shape: Annotated[np.ndarray, Array("int64", ("features",), ge=1, le=MAX_GRID)]
    privacy: Privacy
    eps: Eps | None = None
    rho: Rho | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cell_size(self)

    def reply_lengths(self) -> dict[str, int]:
        return {"cells": math.prod(self.shape.tolist())}

    def sensitivity(self) -> Sensitivity:
        return ONE_CELL


def check_cell_size(request: CountGrid | CountWithNoise) -> None:
    """Raise MessageError unless the cell size is that of ``eps`` and ``rho``, if there are some.

    Examples
    --------
    >>> CountGrid(0.001, np.array([0]), np.array([9]), eps=1.0, rho=0.5)
    Traceback (most recent call last):
    ...
    fedlib.core.array_fields.MessageError: CountGrid.cell_size must be that of eps and rho, \
0.24987798926305516, got 0.001
    """
    if (request.eps is None) != (request.rho is None):
        raise MessageError(f"{type(request).__name__} must have both eps and rho, or neither")
    if request.eps is not None and request.rho is not None:
        side = cell_side(request.eps, request.rho, max(1, len(request.low)))
        if request.cell_size != side:
            raise MessageError(
                f"{type(request).__name__}.cell_size must be that of eps and rho, {side}, got"
                f" {request.cell_size}"
            )


def bounded_grid(
    limits: Floats, cell_size: float, max_cells: int = MAX_GRID, largest: int = MAX_CELL
) -> Grid:
    """Return the grid that covers bounds: its first cell and the count of cells per feature.

    Parameters
    ----------
    limits : array (2, n_features)
        The lowest and the highest value of each feature; both are within the bounds.
    cell_size : float
    max_cells : int
        The largest count of cells.
    largest : int
        The largest absolute value of a cell's number along a feature.

    Raises
    ------
    ValueError
        When the grid has too many cells.

    Examples
    --------
    >>> bounded_grid(np.array([[0.0, -1.0], [2.5, 0.9]]), cell_size=1.0)
    Grid(low=array([ 0, -1]), shape=array([3, 2]))
    """
    with np.errstate(over="ignore"):
        low, high = np.floor(limits / cell_size)
        n_cells = float(np.prod(high - low + 1))
    if max(high.max(), -low.min()) > largest:
        raise ValueError(
            f"bounds must lie within {largest * cell_size:.6g}, {largest} cells of size"
            f" {cell_size:.6g}; got {limits.tolist()}"
        )
    if n_cells > max_cells:
        raise ValueError(f"bounds must contain at most {max_cells} cells, got {n_cells:.6g}")
    return Grid(low.astype(np.int64), (high - low + 1).astype(np.int64))


# The server -------------------------------------------------------------------------------------


def count_on_grid(
    cell_size: float,
    grid: Grid,
    max_blocks: int,
    aggregation: Aggregation,
    eps: float | None = None,
    rho: float | None = None,
) -> Flow[tuple[Ints, Ints]]:
    """Return the occupied cells of all clients, sorted lexicographically, and their counts.

    Parameters
    ----------
    cell_size : float
    grid : Grid
    max_blocks : int
        The maximum count of blocks in one request.
    aggregation : Aggregation
    eps, rho : float, optional
        The parameters that define the cell size, if there are some.

    Raises
    ------
    fedlib.protection.secure.ImpossibleSum
        A ValueError: when there are more points than in an earlier sum.
    TooManyBlocks
        When more blocks are needed than ``max_blocks`` allows; the text has the number.
    """
    side, checks = 1, _Checks(max_blocks)
    while math.prod(grid.blocks(side)) > max_blocks:
        side *= 2
    keys = np.empty(0, np.int64)
    while True:
        request = CountGrid(cell_size, *grid, side, keys, eps, rho)
        total, _ = yield from aggregation.sum(request, check=partial(checks.of_clients, request))
        checks.of_all(total)
        occupied = np.flatnonzero(total.counts)
        found = keys[occupied] if len(keys) else occupied
        if side == 1 or len(found) == 0:
            return _cells_of(found, grid), total.counts[occupied]
        keys = _split(found, grid, side)
        side //= 2
        if len(keys) > max_blocks:
            raise TooManyBlocks(
                f"{len(keys)} blocks of {side} cells per feature are needed, more than"
                f" max_cells={max_blocks}; use larger cells or narrower bounds"
            )


def _split(keys: Ints, grid: Grid, side: int) -> Ints:
    """Return the keys of the parts of blocks with half their side, ascending, within the grid."""
    coordinates = np.stack(np.unravel_index(keys, grid.blocks(side)), axis=1)
    d, shape = len(grid.shape), np.array(grid.blocks(side // 2))
    halves = np.stack(np.unravel_index(np.arange(2**d), (2,) * d), axis=1)
    children = (2 * coordinates[:, None] + halves).reshape(-1, d)
    children = children[(children < shape).all(axis=1)]
    return np.sort(np.ravel_multi_index(tuple(children.T), tuple(shape))).astype(np.int64)


def _cells_of(keys: NDArray[np.integer], grid: Grid) -> Ints:
    """Return the cells with these numbers within the grid."""
    places = np.stack(np.unravel_index(keys, tuple(grid.shape)), axis=1)
    return places.astype(np.int64) + grid.low


class _Checks:
    """What the counts of one run must have in common, for each client or for all together.

    Parameters
    ----------
    max_blocks : int
        The largest count of parts of a client's own occupied blocks.
    """

    def __init__(self, max_blocks: int):
        self.max_blocks = max_blocks
        self.n_points: dict[str, int] = {}
        self.most = math.inf

    def of_clients(self, request: CountGrid, replies: Replies) -> dict[str, str]:
        """Return the reason to exclude each client whose counts cannot be right.

        It has points outside of the grid, its counts do not sum to the same number as at the first
        request, or its own occupied blocks have too many parts.
        """
        problems = {name: self._problem(name, one, request) for name, one in replies.items()}
        return {name: text for name, text in problems.items() if text}

    def _problem(self, name: str, reply: GridCounts, request: CountGrid) -> str:
        counts = reply.counts
        if reply.n_outside:
            return f"GridCounts.n_outside must be 0, got {reply.n_outside}"
        total = int(counts.sum())
        if self.n_points.setdefault(name, total) != total:
            return f"GridCounts.counts must sum to {self.n_points[name]} as before, got {total}"
        n_parts = np.count_nonzero(counts) * 2 ** len(request.low)
        if request.side > 1 and n_parts > self.max_blocks:
            return f"GridCounts.counts must have at most {self.max_blocks} parts, got {n_parts}"
        return ""

    def of_all(self, total: GridCounts) -> None:
        """Raise ImpossibleSum when there are more points than before; warn of points outside."""
        n_points = int(total.counts.sum())
        if total.n_outside and self.most == math.inf:
            warnings.warn(
                f"{total.n_outside} points lie outside of the bounds: they are noise", stacklevel=2
            )
        if n_points > self.most:
            raise ImpossibleSum(
                f"the parts of the occupied blocks contain {n_points} points, but the blocks"
                f" {self.most}"
            )
        self.most = n_points


def occupied_cells(grid: Grid, total: GridCounts) -> tuple[Ints, Ints]:
    """Return the cells that have points, sorted lexicographically, and their numbers of points.

    Warns
    -----
    UserWarning
        When points lie outside of the grid.

    Examples
    --------
    >>> grid = bounded_grid(np.array([[0.0, 5.0], [1.0, 6.0]]), cell_size=1.0)
    >>> occupied_cells(grid, GridCounts(np.array([0, 3, 0, 1]), 0))
    (array([[0, 6],
           [1, 6]]), array([3, 1]))
    """
    if total.n_outside:
        warnings.warn(
            f"{total.n_outside} points lie outside of the bounds; they are noise unless a cluster"
            " is adjacent",
            stacklevel=2,
        )
    occupied = np.flatnonzero(total.counts)
    return _cells_of(occupied, grid), total.counts[occupied]


# The client -------------------------------------------------------------------------------------


def count_in_grid(X: Floats, request: CountGrid) -> GridCounts:
    """Return the count of points in each block of a request, and outside of the grid.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    request : CountGrid

    Raises
    ------
    ValueError
        When the counts of features differ, or the grid has too many blocks.

    Examples
    --------
    >>> request = CountGrid(1.0, np.array([0]), np.array([3]))
    >>> count_in_grid(np.array([[0.5], [2.5], [2.7], [3.5]]), request)
    GridCounts(counts=array([1, 0, 2]), n_outside=1)
    """
    grid, shape, d = request.grid, request.grid.blocks(request.side), X.shape[1]
    if d != len(grid.low):
        raise BadRequest(f"bounds must have the {d} features of the points, got {len(grid.low)}")
    if request.n_blocks > MAX_GRID or math.prod(shape) >= MAX_KEY:
        raise BadRequest(
            f"the grid must have at most {MAX_GRID} blocks in a request and fewer than 2**62 in"
            f" all, got {request.n_blocks} of {math.prod(shape)}"
        )
    inside = X[_is_inside(X, request)]
    cells, counts = count_cells(inside, request.cell_size)
    blocks = _blocks_of(cells, request)
    listed = blocks >= 0
    totals = np.bincount(blocks[listed], counts[listed], request.n_blocks).astype(np.int64)
    return GridCounts(totals, len(X) - len(inside))


def _is_inside(X: Floats, request: CountGrid | CountWithNoise) -> Bools:
    """Return which points are in a cell of the grid; points far outside may have no cell."""
    with np.errstate(over="ignore"):
        cells = np.floor(X / request.cell_size)
    high = np.minimum(request.low + request.shape, MAX_CELL) - 1
    inside: Bools = ((request.low <= cells) & (cells <= high)).all(axis=1)
    return inside


def groups_of_blocks(X: Floats, request: CountGrid) -> Ints:
    """Return the index of each point's block; the points outside of the grid are the last group."""
    inside, groups = _is_inside(X, request), np.full(len(X), request.n_blocks, np.int64)
    cells, _ = count_cells(X[inside], request.cell_size)
    blocks = _blocks_of(cells, request)
    groups[inside] = place_points(X[inside], request.cell_size, cells, blocks, adjacency="none")
    return groups


def _blocks_of(cells: Ints, request: CountGrid) -> Ints:
    """Return the index of the block of each cell within the grid; -1 if it is not listed."""
    places = (cells - request.low) // request.side
    keys = np.ravel_multi_index(tuple(places.T), request.grid.blocks(request.side))
    if not len(request.keys):
        return keys.astype(np.int64)
    at = np.searchsorted(request.keys, keys)
    listed = request.keys[np.minimum(at, len(request.keys) - 1)] == keys
    return np.where(listed, at, -1).astype(np.int64)


def count_with_noise(X: Floats, request: CountWithNoise, n_shares: int) -> NoisyCounts:
    """Return the count of points in each cell of a grid, with noise.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    request : CountWithNoise
    n_shares : int
        As in `fedlib.protection.privacy.add_noise`.

    Raises
    ------
    ValueError
        When the counts of features differ, or the grid has too many cells. No point can cause it.
    """
    grid = CountGrid(request.cell_size, request.low, request.shape)
    counts = count_in_grid(X, grid).counts
    return NoisyCounts(add_noise(counts, ONE_CELL, request.privacy, n_shares))
