"""The server's flows of horizontal DBSCAN: with counts in the clear, masked, or with noise."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlib.clustering.density.bounded_cells import (
    ONE_CELL,
    CountGrid,
    CountWithNoise,
    Grid,
    GridCounts,
    occupied_cells,
)
from fedlib.clustering.density.cells import (
    label_cells,
    warn_of_noise,
)
from fedlib.clustering.density.horizontal.messages import (
    Adjacency,
    Assign,
    CountCells,
    GridModel,
    sum_cells,
)
from fedlib.clustering.density.neighbouring_cells import noise_margin
from fedlib.core.aggregation import Aggregation, agree_on_features, exclude, settle
from fedlib.core.array_types import Ints
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.secure.points import agree_on_bounded_features
from fedlib.protection.sums import NoisySums

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
