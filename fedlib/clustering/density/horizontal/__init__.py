"""Horizontal federated DBSCAN: each client holds different rows of the same features.

Every client lays the same grid over its points and reports the number of its points in each
occupied cell. The server adds up the counts. A cell is dense when it contains at least
``min_samples`` points, and adjacent dense cells form a cluster. The server sends the cells of all
clusters back, and each client uses them to label its own points.

Sources: M1 and M2, §3.1 and §4.2. Their pseudocode and their listings differ; ``border`` and
``assign`` select one of the readings.
"""

from fedlib.clustering.density.horizontal.client import HorizontalDBSCANClient
from fedlib.clustering.density.horizontal.estimator import HorizontalDBSCAN
from fedlib.clustering.density.horizontal.flow import horizontal_dbscan
from fedlib.clustering.density.horizontal.messages import (
    AssignCells,
    CellCounts,
    CountCells,
    GridModel,
    sum_cells,
)

__all__ = [
    "AssignCells",
    "CellCounts",
    "CountCells",
    "GridModel",
    "HorizontalDBSCAN",
    "HorizontalDBSCANClient",
    "horizontal_dbscan",
    "sum_cells",
]
