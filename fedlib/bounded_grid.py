"""Counts per cell of an agreed grid, so that the server needs nothing but sums over the clients.

The clients agree on bounds of the features instead of reporting which cells they occupy. Every
client counts its points in the same blocks of cells, and the server adds up the counts, so it need
not see those of one client. If the grid has too many cells for one message, the server asks for
larger blocks first, and then for the parts of the occupied ones only. The sums for larger blocks
follow from those for the cells, so they disclose nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.agreement import exclude
from fedlib.cells import count_cells
from fedlib.horizontal_dbscan import MAX_POINTS
from fedlib.messages import Array, Message, MessageError
from fedlib.near_cells import MAX_CELL, MIN_RHO, cell_side
from fedlib.protocol import Flow

__all__ = [
    "BlockCounts",
    "CountBlocks",
    "Grid",
    "TooManyBlocks",
    "add_replies",
    "count_blocks",
    "count_on_grid",
    "make_grid",
]

Ints = NDArray[np.int64]
MAX_KEY = 2**62

Eps = Annotated[float, msgspec.Meta(gt=0)]
Rho = Annotated[float, msgspec.Meta(ge=MIN_RHO, le=1)]


class TooManyBlocks(ValueError):
    """More blocks of cells are occupied than one request may ask for."""


class Grid(NamedTuple):
    """The cells within agreed bounds.

    Attributes
    ----------
    eps, rho : float
        They define the side of the cells; see `fedlib.near_cells`.
    low : array (n_features,) of int64
        The first cell.
    shape : array (n_features,) of int64
        The number of cells along each feature.
    """

    eps: float
    rho: float
    low: Ints
    shape: Ints

    def blocks(self, side: int) -> tuple[int, ...]:
        """Return the number of blocks of ``side`` cells along each feature."""
        return tuple(-(-int(n) // side) for n in self.shape)


class BlockCounts(Message):
    """The number of a client's points in each block of cells."""

    discloses = "the number of a client's points in each block of cells, occupied or not"
    row_counts = ("counts",)
    counts: Annotated[np.ndarray, Array("int64", ("blocks",), ge=0, le=MAX_POINTS)]


class CountBlocks(Message):
    """Count your points in blocks of cells of a grid.

    Attributes
    ----------
    eps, rho : float
        They define the side of the cells.
    low, shape : array (n_features,) of int64
        The first cell of the grid and the number of cells along each feature.
    side : int
        The number of cells along the edge of a block.
    keys : array (n_keys,) of int64
        The numbers of the blocks, ascending, in lexicographic order within the grid. No entries for
        all blocks.
    """

    discloses = "the grid, and which larger blocks contain points of any client"
    reply = BlockCounts
    eps: Eps
    rho: Rho
    low: Annotated[np.ndarray, Array("int64", ("features",), ge=-MAX_CELL, le=MAX_CELL)]
    shape: Annotated[np.ndarray, Array("int64", ("features",), ge=1, le=2 * MAX_CELL)]
    side: Annotated[int, msgspec.Meta(ge=1, le=2 * MAX_CELL)]
    keys: Annotated[np.ndarray, Array("int64", ("keys",), ge=0, le=MAX_KEY)]

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.eps, self.rho, self.low, self.shape)

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return len(self.keys) or math.prod(self.grid.blocks(self.side))

    def reply_lengths(self) -> dict[str, int]:
        return {"blocks": self.n_blocks}

    def accept(self, reply: Message) -> Message:
        counts = cast(BlockCounts, reply).counts
        if len(counts) != self.n_blocks:
            raise MessageError(
                f"BlockCounts.counts must have {self.n_blocks} entries, got {len(counts)}"
            )
        if counts.sum(dtype=np.float64) > MAX_POINTS:
            raise MessageError(f"BlockCounts.counts must sum to at most {MAX_POINTS}")
        return reply


def make_grid(eps: float, rho: float, grid_bounds: ArrayLike) -> Grid:
    """Return the grid that contains all points within bounds.

    Parameters
    ----------
    eps, rho : float
    grid_bounds : array-like (2, n_features)
        The lowest and the highest value of each feature; both are within the bounds.

    Raises
    ------
    ValueError
        When a bound is not finite or not above the one below it, or the cells are too many for
        numbers of 64 bits.

    Examples
    --------
    >>> make_grid(eps=1.0, rho=1.0, grid_bounds=[[0.0], [5.0]]).shape
    array([11])
    """
    limits = np.asarray(grid_bounds, dtype=np.float64)
    if limits.ndim != 2 or len(limits) != 2 or limits.shape[1] == 0:
        raise ValueError(f"grid_bounds must have shape (2, n_features), got {limits.shape}")
    if not (np.isfinite(limits).all() and (limits[0] < limits[1]).all()):
        raise ValueError(f"grid_bounds must be finite and ascending, got {limits.tolist()}")
    cells = np.floor(limits / cell_side(eps, rho, limits.shape[1]))
    n_cells = math.prod(cells[1] - cells[0] + 1)
    if np.abs(cells).max() > MAX_CELL or n_cells >= MAX_KEY:
        raise ValueError(
            f"grid_bounds must contain fewer than 2**62 cells, got about {n_cells:.3g}"
        )
    low, high = cells.astype(np.int64)
    return Grid(float(eps), float(rho), low, high - low + 1)


def count_on_grid(
    grid: Grid, max_blocks: int, add_up: Callable[[CountBlocks], Flow[Ints]]
) -> Flow[tuple[Ints, Ints]]:
    """Return the occupied cells of all clients, sorted lexicographically, and their counts.

    Parameters
    ----------
    grid : Grid
    max_blocks : int
        The maximum number of blocks in one request.
    add_up : callable
        Returns a flow that returns the sum of the clients' counts for a request: `add_replies`, or
        secure sums.

    Raises
    ------
    TooManyBlocks
        When more blocks are occupied than ``max_blocks`` allows; the text has the number.
    """
    side = 1
    while math.prod(grid.blocks(side)) > max_blocks:
        side *= 2
    keys = np.empty(0, np.int64)
    while True:
        request = CountBlocks(*grid, side, keys)
        counts = yield from add_up(request)
        occupied = np.flatnonzero(counts)
        found = keys[occupied] if len(keys) else occupied
        if side == 1 or len(found) == 0:
            cells = np.stack(np.unravel_index(found, grid.blocks(1)), axis=1)
            return cells + grid.low, counts[occupied]
        keys = _split(found, grid, side)
        side //= 2
        if len(keys) > max_blocks:
            raise TooManyBlocks(
                f"{len(keys)} blocks of {side} cells per feature are needed, more than"
                f" max_blocks={max_blocks}; use a larger rho or narrower bounds"
            )


def _split(keys: Ints, grid: Grid, side: int) -> Ints:
    """Return the keys of the halves along each feature of blocks, ascending, within the grid."""
    coordinates = np.stack(np.unravel_index(keys, grid.blocks(side)), axis=1)
    d, shape = len(grid.shape), np.array(grid.blocks(side // 2))
    halves = np.stack(np.unravel_index(np.arange(2**d), (2,) * d), axis=1)
    children = (2 * coordinates[:, None] + halves).reshape(-1, d)
    children = children[(children < shape).all(axis=1)]
    return np.sort(np.ravel_multi_index(tuple(children.T), tuple(shape))).astype(np.int64)


def add_replies(max_blocks: int) -> Callable[[CountBlocks], Flow[Ints]]:
    """Return a function that adds up the clients' counts in the open.

    A client leaves the run if its counts sum to another number than at the first request, or if the
    parts of its occupied blocks alone are more than ``max_blocks``.
    """
    n_points: dict[str, int] = {}

    def problem(name: str, counts: Ints, request: CountBlocks) -> str:
        total = int(counts.sum())
        if n_points.setdefault(name, total) != total:
            return f"BlockCounts.counts must sum to {n_points[name]} as before, got {total}"
        n_parts = np.count_nonzero(counts) * 2 ** len(request.low)
        if request.side > 1 and n_parts > max_blocks:
            return f"BlockCounts.counts must have at most {max_blocks} parts, got {n_parts}"
        return ""

    def add_up(request: CountBlocks) -> Flow[Ints]:
        replies = yield request
        problems = {name: problem(name, one.counts, request) for name, one in replies.items()}
        wrong = {name: text for name, text in problems.items() if text}
        replies = yield from exclude(replies, wrong)
        total = np.zeros(request.n_blocks, np.int64)
        for reply in replies.values():
            total += reply.counts
        return total

    return add_up


def count_blocks(X: NDArray[np.float64], request: CountBlocks) -> Ints:
    """Return the number of points in each block of a request.

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    request : CountBlocks

    Raises
    ------
    ValueError
        When a point lies outside the grid, or the numbers of features differ.
    """
    grid, d = request.grid, X.shape[1]
    if d != len(grid.low):
        raise ValueError(
            f"grid_bounds must have the {d} features of the points, got {len(grid.low)}"
        )
    shape = grid.blocks(request.side)
    if math.prod(shape) >= MAX_KEY:
        raise ValueError(f"the grid must have fewer than 2**62 blocks, got {math.prod(shape)}")
    cells, counts = count_cells(X, cell_side(grid.eps, grid.rho, d))
    cells -= grid.low
    outside = ~((cells >= 0) & (cells < grid.shape)).all(axis=1)
    if outside.any():
        raise ValueError(
            f"{counts[outside].sum()} of {len(X)} points lie outside the agreed bounds"
        )
    keys = np.ravel_multi_index(tuple((cells // request.side).T), shape)
    if not len(request.keys):
        return np.bincount(keys, counts, request.n_blocks).astype(np.int64)
    at = np.searchsorted(request.keys, keys)
    listed = at < len(request.keys)
    listed[listed] = request.keys[at[listed]] == keys[listed]
    return np.bincount(at[listed], counts[listed], request.n_blocks).astype(np.int64)
