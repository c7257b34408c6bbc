"""One run of DBSCAN on points that are sorted into cells: those of a grid, or those of a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlib.clustering.density.engine.index import GridIndex, Rows, TreeIndex
from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.kernels import density, leaf_connections, node_search, range_search
from fedlib.kernels import density as connections

BLOCK = 1024  # groups of cells in a block
PIECE = 1 << 12  # cells that are listed at the same time
BUFFER = 1 << 12  # ranges of near cells in a block, or those of one group if they are more

AnyIndex = TypeVar("AnyIndex", GridIndex, TreeIndex)


class Clustering(Generic[AnyIndex]):
    """One run of DBSCAN on indexed points. A subclass searches for the cells near a cell.

    Each thread works on an equal share of the points, in whole cells, and writes their results. In
    the third step it joins the cells of its share. Those near another share are joined at the end.
    A search for the set of a cell may shorten paths in another share, to indices that are valid
    whenever they are read, because the index of a cell's parent only falls.
    """

    def __init__(
        self,
        index: AnyIndex,
        X: Floats,
        squared_radii: Floats,
        weights: Floats,
        min_samples: float,
        threads: ThreadPoolExecutor,
        n_threads: int,
    ):
        self.index: AnyIndex = index
        self.X, self.threads = X, threads
        self.min_samples = float(min_samples)
        self.cells = density.Cells(
            **self._layout(),
            squared_radii=squared_radii,
            weights=weights[index.order] if weights.size else weights,
            start=index.start,
            core=np.empty(len(X), bool),
            has_core=np.empty(len(index.start) - 1, np.int8),
        )
        cuts = np.linspace(0, len(X), n_threads + 1).astype(index.start.dtype)
        self.shares = np.searchsorted(index.start, cuts)

    def _layout(self) -> dict[str, Any]:
        """Return the fields of `Cells` with the places of the points."""
        raise NotImplementedError

    def sort_points(self) -> bool:
        """Copy the points into the cells; return whether any two of a cell are neighbours."""
        raise NotImplementedError

    def run(self) -> tuple[Ints, Bools]:
        """Return labels and core flags by row; to be called after `sort_points`.

        This works only once: arrays are freed as soon as possible, the points before the labels.
        """
        self._map(self._find_core)
        parent = self._find_sets()
        start, core, order = self.index.start, self.cells.core, self.index.order
        joined = np.empty_like(order)  # the cell of each point that is no core point
        self._map(partial(self._find_border, joined))
        del self.cells, self.index
        first_row = np.empty_like(parent)
        self._map(partial(density.find_first_rows, start, core, order, first_row))
        cluster = density.number_sets(parent, first_row)
        labels, is_core = np.empty(len(order), np.int64), np.empty(len(order), bool)
        found = start, core, order, joined, cluster
        self._map(partial(density.write_labels, *found, labels, is_core))
        return labels, is_core

    def _map(self, step: Callable[[int, int], Any]) -> list[Any]:
        """Return the results of a function of the first cell and the stop of each share."""
        firsts, stops = self.shares[:-1], self.shares[1:]
        run = map if len(firsts) == 1 else self.threads.map  # as in `Shares.map`
        return list(run(step, firsts, stops))

    def _find_core(self, first: int, stop: int) -> None:
        for begin, end in _pieces(first, stop):
            dense = density.find_dense(self.cells, begin, end, self.min_samples)
            self._search_core(_list_cells(~dense, begin))

    def _search_core(self, cells: Ints) -> None:
        """Find the core points of these cells among the points near them."""
        raise NotImplementedError

    def _find_sets(self) -> Rows:
        """Return for each cell the first one that it is connected with, by way of others, too."""
        n_cells = len(self.cells.has_core)
        parent = np.arange(n_cells, dtype=self.index.start.dtype)
        crossing = np.zeros(n_cells, bool)  # which cells are near another share
        self._map(partial(self._join_cells, self.cells.has_core, parent, crossing))
        self._join_cells(crossing.view(np.int8), parent, crossing, 0, n_cells)
        density.flatten(parent)
        return parent

    def _join_cells(
        self,
        wanted: NDArray[np.int8],
        parent: Rows,
        crossing: Bools,
        first: int,
        stop: int,
    ) -> None:
        """Join those of the cells ``first..stop`` that are not 0 in ``wanted`` with each other.

        Also mark those near others.
        """
        raise NotImplementedError

    def _find_border(self, joined: Rows, first: int, stop: int) -> None:
        """Assign the border points of some cells to clusters; noise gets -1."""
        for begin, end in _pieces(first, stop):
            some = self.cells.has_core[begin:end] != density.ALL
            self._search_border(_list_cells(some, begin), joined)

    def _search_border(self, cells: Ints, joined: Rows) -> None:
        """Assign the border points of a range of cells."""
        raise NotImplementedError


class OnGrid(Clustering[GridIndex]):
    """A run on the cells of a grid, into which the points are copied."""

    def _layout(self) -> dict[str, Any]:
        n, d = self.X.shape
        box, boxes = _allocate_boxes(self.index.start, d)
        return {
            # A single row is in C order, too, and all kernels would be compiled for it.
            "points": np.empty((max(n, 2), d), order="F"),
            "rows": np.empty(0, self.index.order.dtype),
            "axes": tuple(range(d)),  # kernels are compiled for each count of features
            "box": box,
            "boxes": boxes,
        }

    def sort_points(self) -> bool:
        # Rounding is monotone: the diagonals of the cells' boxes decide.
        return max(self._map(self._sort_points)) <= self.cells.squared_radii.min()

    def _sort_points(self, first: int, stop: int) -> float:
        start = self.cells.start
        density.gather(self.X, self.index.order, self.cells, start[first], start[stop])
        largest: float = density.bound_cells(self.cells, first, stop)
        return largest

    def _search_core(self, cells: Ints) -> None:
        for block in self._blocks(cells):
            range_search.find_core(block, self.cells, self.min_samples)

    def _join_cells(
        self, wanted: NDArray[np.int8], parent: Rows, crossing: Bools, first: int, stop: int
    ) -> None:
        for begin, end in _pieces(first, stop):
            for block in self._blocks(_list_cells(wanted[begin:end], begin), earlier=True):
                connections.join_cells(block, self.cells, first, parent, crossing)

    def _search_border(self, cells: Ints, joined: Rows) -> None:
        for block in self._blocks(cells):
            range_search.find_border(block, self.cells, joined)

    def _blocks(self, cells: Ints, earlier: bool = False) -> Iterator[density.Block]:
        """Yield these cells (ascending) in blocks. Each overwrites the previous one.

        With ``earlier``, the cells near a group need not include later ones.
        """
        group_start, near_start = np.empty((2, BLOCK + 1), np.int64)
        n_ranges = max(BUFFER, self.index.max_ranges)
        near = np.empty((n_ranges, 2), self.cells.start.dtype)
        done = 0
        while done < len(cells):
            rest = cells[done:]
            n_groups = self.index.find_near(rest, earlier, group_start, near_start, near)
            yield density.Block(rest, group_start[: n_groups + 1], near_start, near)
            done += group_start[n_groups]


class OnTree(Clustering[TreeIndex]):
    """A run on the leaves of a tree. The points stay in place."""

    def _layout(self) -> dict[str, Any]:
        d = self.X.shape[1]
        return {
            "points": self.X,
            "rows": self.index.order,
            "axes": np.arange(d),
            "box": np.empty(0, self.index.start.dtype),
            "boxes": np.empty((0, 2, d)),
        }

    def sort_points(self) -> bool:
        return True

    def _search_core(self, cells: Ints) -> None:
        node_search.find_core(cells, self.cells, self.index.tree, self.min_samples)

    def _join_cells(
        self, wanted: NDArray[np.int8], parent: Rows, crossing: Bools, first: int, stop: int
    ) -> None:
        tree, leaves = self.index.tree, self.index.leaves
        leaf_connections.join_leaves(
            wanted, self.cells, tree, leaves, first, stop, parent, crossing
        )

    def _search_border(self, cells: Ints, joined: Rows) -> None:
        node_search.find_border(cells, self.cells, self.index.tree, self.index.leaves, joined)


def _pieces(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the first cell and the stop of successive pieces, so that lists of cells stay short."""
    for begin in range(first, stop, PIECE):
        yield begin, min(begin + PIECE, stop)


def _list_cells(wanted: NDArray[np.generic], begin: int) -> Ints:
    """Return the wanted cells; the first entry is that of the cell ``begin``."""
    cells = np.flatnonzero(wanted)
    cells += begin
    return cells


def _allocate_boxes(start: Rows, d: int) -> tuple[Rows, Floats]:
    """Return `Cells.box`, and space for `Cells.boxes`, given where the cells begin."""
    has_box = np.diff(start) > connections.FEW
    box = np.cumsum(has_box, dtype=start.dtype)
    boxes = np.empty((int(box[-1]), 2, d))
    box -= 1
    box[~has_box] = -1
    return box, boxes
