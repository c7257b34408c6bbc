"""Worker processes that are killed during a run."""

import gc
import os
import signal
import time

import numpy as np
import psutil
import pytest
from all_protocols import PROTOCOLS, fitted
from distributed import Client, LocalCluster

from fedlib import HorizontalDBSCAN
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import protocols
from fedlib.transports.dask import Dask

pytestmark = pytest.mark.dask

PARTS = [np.arange(20.0).reshape(10, 2) + i for i in range(4)]


@pytest.fixture
def workers():
    """Return a connection to two worker processes; a killed one is started again."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def kill(client, n=1):
    """Kill n workers and wait until the scheduler has noticed it."""
    running = client.run(os.getpid)
    for address in list(running)[:n]:
        os.kill(running[address], signal.SIGKILL)
    while set(list(running)[:n]) & set(client.scheduler_info(n_workers=-1)["workers"]):
        pass


def listening():
    """Return the addresses at which this process listens."""
    connections = psutil.Process().net_connections(kind="inet")
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}


def functions(parts):
    return [lambda part=part: part for part in parts]


class Killing(Dask):
    """A transport that kills a worker before its second exchange and before its fifth."""

    n_exchanges = 0

    def exchange(self, requests):
        self.n_exchanges += 1
        if self.n_exchanges in (2, 5):
            kill(self.client)
        return super().exchange(requests)


def model():
    """Return an estimator that has not been fitted."""
    return HorizontalDBSCAN(cell_size=2.0, min_samples=2)


@pytest.mark.parametrize("name", ["horizontal-dbscan", "kmeans", "gaussian-mixture", "xgboost"])
def test_the_loss_of_a_worker_costs_a_recomputation(name, workers):
    """The result and all messages are the same as without the loss."""
    parameters, make_parts = PROTOCOLS[name]
    parts = make_parts()
    here = protocols()[name](**parameters).fit(parts)
    there = protocols()[name](**parameters).fit(Killing(functions(parts), workers, combine=False))
    assert fitted(there) == fitted(here)
    assert there.ledger_ == here.ledger_
    if name != "gaussian-mixture":
        assert there.labels_.compute().tolist() == np.concatenate(here.labels_).tolist()


def deadly(path, part):
    """Return the part, but kill this process the first time."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def test_a_worker_that_dies_while_it_reads(workers, tmp_path):
    reading = [
        *functions(PARTS[:-1]),
        lambda: deadly(tmp_path / "killed", PARTS[-1]),
    ]
    there = model().fit(Dask(reading, workers))
    assert (tmp_path / "killed").exists()
    assert fitted(there) == fitted(model().fit(PARTS))


def test_a_partition_that_always_kills_its_worker(workers):
    """Dask gives up after some attempts; only this client is lost."""

    def suicide():
        os.kill(os.getpid(), signal.SIGKILL)

    there = model().fit(Dask([*functions(PARTS), suicide], workers, keep="reload"), min_clients=4)
    assert there.ledger_.lost == {"4": "KilledWorker at CountCells, step 1"}
    assert fitted(there) == fitted(model().fit(PARTS))


def test_a_lost_worker_can_count_as_lost_clients(workers):
    """Its partitions leave the run. Half of the partitions belong to each worker."""
    with pytest.raises(TooFewClients, match="2 of 4 clients remain"):
        model().fit(Killing(functions(PARTS), workers, lost="client"))
    workers.wait_for_workers(2)
    there = model().fit(Killing(functions(PARTS), workers, lost="client"), min_clients=2)
    assert list(there.ledger_.lost.values()) == ["WorkerLost at AssignCells, step 2"] * 2
    assert there.labels_.npartitions == 2
    assert len(there.labels_.compute()) == 20


def test_a_cluster_without_workers_ends_the_run():
    """The error names the reason; there is no hang."""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        pytest.raises(TooFewClients, match="'0': NoWorker at CountCells, step 1"),
    ):
        model().fit(Dask(functions(PARTS), client, worker_timeout=1))


def kept(workers):
    """Return what the workers have in memory."""
    held = workers.run(lambda dask_worker: list(dask_worker.data))
    return [key for keys in held.values() for key in keys]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        gc.collect()


def test_the_workers_have_no_data_after_close(workers):
    transport = Dask(functions(PARTS), workers)
    there = model().fit(transport)
    assert len(kept(workers)) > 4
    transport.close()
    wait_until(lambda: len(kept(workers)) == 4)  # the states, for the labels
    del there
    wait_until(lambda: not kept(workers))


def test_a_cluster_of_its_own():
    """Without a connection, the transport starts worker processes and ends them."""
    with Dask(functions(PARTS)) as transport:
        there = model().fit(transport)
        pids = transport.client.run(os.getpid).values()
        assert os.getpid() not in pids
    assert fitted(there) == fitted(model().fit(PARTS))
    assert transport.client.status == "closed"


def test_the_own_cluster_listens_on_this_machine_only_and_takes_no_usual_port():
    before = listening()
    with Dask(functions(PARTS)):
        new = listening() - before
    assert {address for address, _ in new} == {"127.0.0.1"}
    assert not {port for _, port in new} & {8786, 8787}
