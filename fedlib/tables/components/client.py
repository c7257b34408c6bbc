"""The client of principal components."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedlib.core.array_types import Ints
from fedlib.core.client import handles, partitions
from fedlib.protection.row_sums import RowTotals
from fedlib.protection.secure.points import DescribedPoints
from fedlib.tables.components.messages import Scatter, SumClippedScatter, SumScatter, scatter


class PCAClient(DescribedPoints):
    """A client that holds points; for the parameter see `fedlib.core.points.PointsClient`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers within ±1e100.
    """

    limited = True

    @handles(SumScatter)
    def sum_scatter(self, request: SumScatter) -> Scatter:
        return scatter(self.X, request)

    @handles(SumClippedScatter)
    def sum_clipped_scatter(self, request: SumClippedScatter) -> RowTotals:
        return request.total(self.X, self)

    # Not for `SumClippedScatter`: its bounds tell points of one group apart.
    @partitions(SumScatter, terms=())
    def all_points(self, request: SumScatter) -> Iterable[Ints]:
        yield np.zeros(len(self.X), np.int64)
