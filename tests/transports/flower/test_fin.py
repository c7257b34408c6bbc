"""FIN: estimators and flows as a Flower strategy."""

import pytest
from all_protocols import fitted
from flower_helpers import SITES, Faulty, failing, model
from flwr.common.constant import ErrorCode

from fedlib.clustering.density.horizontal import CountCells
from fedlib.core.protocol import TooFewClients
from fedlib.transports.flower import FIN


def flow():
    """Return a flow that has not been started."""
    return model().protocol()


def test_fin_fits_an_estimator_and_counts_by_step(grid):
    here = model().fit(SITES)
    result = FIN(model(), n_clients=3).start(grid)
    assert fitted(result.model) == fitted(here)
    assert result.ledger.entries == here.ledger_.entries
    sums = here.ledger_.to_frame().groupby("step")["bytes"].agg(["size", "sum"])
    counted = result.train_metrics_clientapp
    assert {k: (m["messages"], m["bytes"]) for k, m in counted.items()} == {
        step: (row["size"], row["sum"]) for step, row in sums.iterrows()
    }


def test_fin_runs_a_flow_until_it_stops(grid):
    """The flow decides how often it sends a request: here, until the cells are coarse enough."""

    def coarsen(cell_size, max_cells):
        while True:
            replies = yield CountCells(cell_size)
            if max(len(reply.cells) for reply in replies.values()) <= max_cells:
                return cell_size
            cell_size *= 2

    result = FIN(coarsen(0.125, max_cells=1), n_clients=3).start(grid)
    assert result.model == 16.0
    assert len(result.train_metrics_clientapp) == 8
    assert FIN(coarsen(0.125, max_cells=9), n_clients=3).start(grid).model == 0.125


def test_fin_refuses_a_flow_that_has_been_started(grid):
    fin = FIN(flow(), n_clients=3)
    fin.start(grid)
    with pytest.raises(ValueError, match="already been started; each start needs a new flow"):
        fin.start(grid)
    started = flow()
    next(started)
    with pytest.raises(ValueError, match="already been started"):
        FIN(started, n_clients=3).start(grid)
    again = FIN(model(), n_clients=3)  # an estimator is fitted at each start
    assert again.start(grid).ledger.entries == again.start(grid).ledger.entries


def test_fin_survives_dropouts_down_to_min_clients():
    grid = Faulty(failing(ErrorCode.NODE_UNAVAILABLE))
    result = FIN(flow(), n_clients=3, min_clients=2).start(grid)
    assert list(result.ledger.lost) == ["1"]
    grid = Faulty(failing(ErrorCode.NODE_UNAVAILABLE))
    with pytest.raises(TooFewClients):
        FIN(flow(), n_clients=3, min_clients=3).start(grid)


def test_fin_passes_its_timeouts_to_the_transport(grid):
    del grid.node_configs[1001]
    with pytest.raises(TooFewClients, match="NeverJoined"):
        FIN(model(), n_clients=3, join_timeout=0.02).start(grid)
    with pytest.raises(ValueError, match="request_timeout must be positive"):
        FIN(model(), n_clients=2).start(grid, timeout=0)


def test_fin_has_no_rounds(grid):
    with pytest.raises(TypeError, match="FIN has no rounds"):
        FIN(model(), n_clients=3).configure_train(1, None, None, grid)
