"""The estimator of horizontal DBSCAN."""

from __future__ import annotations

from numbers import Real
from typing import Annotated, ClassVar

from fedlib.clustering.density.bounded_cells import (
    CellClusters,
    bounded_grid,
)
from fedlib.clustering.density.horizontal.client import HorizontalDBSCANClient
from fedlib.clustering.density.horizontal.flow import (
    horizontal_dbscan,
    private_horizontal_dbscan,
    secure_horizontal_dbscan,
)
from fedlib.clustering.density.horizontal.messages import (
    GridModel,
)
from fedlib.core.estimator import EXAMPLE_BOUNDS, Example
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
from fedlib.core.protocol import Flow
from fedlib.protection.estimator import ProtectedFederated
from fedlib.protection.sums import NoisySums


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
        The number of points in each cell.
    cell_labels_ : array (n_cells,) of int64
        The cluster of each cell, or -1. Clusters are numbered by their first dense cell.
    labels_ : list of array of int64
        The cluster of each client's points; -1 for noise. Only if the parts were given to `fit`.
    ledger_ : Ledger
        The record of all messages.
    n_features_in_ : int
        The number of features.
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
    neighbours, and when that exceeds the number of cells, all pairs of cells are compared instead.
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
        The number of points, of all clients together, from which a cell is dense; at least 1.
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
        The maximum number of cells that one client may report, at least 1. A client that reports
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
