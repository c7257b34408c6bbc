"""The client of horizontal DBSCAN."""

from __future__ import annotations

from collections.abc import Iterable

from fedlib.clustering.density.bounded_cells import (
    CountGrid,
    CountWithNoise,
    GridCounts,
    NoisyCounts,
    count_in_grid,
    count_with_noise,
    groups_of_blocks,
)
from fedlib.clustering.density.cells import (
    count_cells,
    groups_of_cells,
    label_in_range,
)
from fedlib.clustering.density.horizontal.messages import (
    AssignCells,
    CellCounts,
    CountCells,
)
from fedlib.core.array_types import Ints
from fedlib.core.client import OddRows, handles, partitions
from fedlib.core.messages import Done, Labels
from fedlib.protection.secure.points import DescribedPoints


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
