"""The cells of a grid with bounds, all of which are counted, also those without points.

With secure sums, the server must not see which cells a client occupies. So every client counts its
points in all cells of a grid on which the sites have agreed.
"""

from __future__ import annotations

import warnings
from math import prod
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.cells import count_cells
from fedlib.kernels.grid import MAX_CELL
from fedlib.messages import Array, Message
from fedlib.validation import check_points

__all__ = [
    "CountGrid",
    "Grid",
    "GridCounts",
    "bounded_grid",
    "count_in_grid",
    "occupied_cells",
]

Grid = tuple[NDArray[np.int64], NDArray[np.int64]]  # the first cell, the number per feature
MAX_GRID = 2**24  # cells: 128 MB of counts per client


class GridCounts(Message):
    """The number of a client's points in each cell of a bounded grid, and outside of it."""

    discloses = "the number of points in each cell"
    row_counts = ("counts", "n_outside")
    counts: Annotated[np.ndarray, Array("int64", ("cells",), ge=0, le=2**50)]
    n_outside: Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class CountGrid(Message):
    """Count your points in each cell of a bounded grid, in lexicographic order."""

    discloses = "the cell size and the bounds of the grid"
    reply = GridCounts
    cell_size: Annotated[float, msgspec.Meta(gt=0)]
    low: Annotated[np.ndarray, Array("int64", ("features",), ge=-MAX_CELL, le=MAX_CELL)]
    shape: Annotated[np.ndarray, Array("int64", ("features",), ge=1, le=MAX_GRID)]

    def reply_lengths(self) -> dict[str, int]:
        return {"cells": prod(self.shape.tolist())}


def bounded_grid(bounds: ArrayLike, cell_size: float) -> Grid:
    """Return the grid that covers bounds: its first cell and the number of cells per feature.

    Raises
    ------
    ValueError
        When the bounds are not two rows in ascending order, or the grid has too many cells.

    Examples
    --------
    >>> bounded_grid([[0.0, -1.0], [2.5, 0.9]], cell_size=1.0)
    (array([ 0, -1]), array([3, 2]))
    """
    limits = check_points(bounds, input_name="grid_bounds")
    if len(limits) != 2 or (limits[0] > limits[1]).any():
        raise ValueError(f"grid_bounds must be two rows, the lower below the upper; got {bounds!r}")
    low, high = np.floor(limits / cell_size)
    n_cells = float(np.prod(high - low + 1))
    if n_cells > MAX_GRID or max(np.abs([low, high]).max(), 0) > MAX_CELL:
        raise ValueError(
            f"grid_bounds and cell_size must give at most {MAX_GRID} cells, got {n_cells:.6g}"
        )
    return low.astype(np.int64), (high - low + 1).astype(np.int64)


def count_in_grid(X: NDArray[np.float64], request: CountGrid) -> GridCounts:
    """Return the number of points in each cell of a bounded grid, and outside of it.

    Raises
    ------
    ValueError
        When the grid has too many cells.

    Examples
    --------
    >>> request = CountGrid(1.0, np.array([0]), np.array([3]))
    >>> count_in_grid(np.array([[0.5], [2.5], [2.7], [3.5]]), request)
    GridCounts(counts=array([1, 0, 2]), n_outside=1)
    """
    shape = tuple(request.shape.tolist())
    if prod(shape) > MAX_GRID:
        raise ValueError(f"shape must give at most {MAX_GRID} cells, got {prod(shape)}")
    cells, counts = count_cells(X, request.cell_size)
    places = cells - request.low
    inside = ((places >= 0) & (places < request.shape)).all(axis=1)
    dense = np.zeros(prod(shape), np.int64)
    dense[np.ravel_multi_index(tuple(places[inside].T), shape)] = counts[inside]
    return GridCounts(dense, int(counts[~inside].sum()))


def occupied_cells(grid: Grid, total: GridCounts) -> Grid:
    """Return the cells that have points, sorted lexicographically, and their numbers of points.

    Warns
    -----
    UserWarning
        When points lie outside of the grid.

    Examples
    --------
    >>> grid = bounded_grid([[0.0, 5.0], [1.0, 6.0]], cell_size=1.0)
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
    low, shape = grid
    occupied = np.flatnonzero(total.counts)
    cells = np.column_stack(np.unravel_index(occupied, tuple(shape))).astype(np.int64) + low
    return cells, total.counts[occupied]
