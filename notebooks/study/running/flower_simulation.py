"""Flower's simulation: clients in worker processes of Ray."""

import tempfile
from contextlib import suppress
from pathlib import Path

from fedlib.transports.flower import Flower, ServerApp, client_app

ATTEMPTS = 3  # Ray may fail to start in 30 seconds on a busy machine


def simulate(names, make, run, n_clients, n_workers):
    """Run protocols one after the other in one simulation.

    Parameters
    ----------
    names : list of str
    make : callable
        Returns the client of a protocol's name and the client's number.
    run : callable
        Takes a protocol's name and a transport. Its first call, which starts Ray's workers, is made
        twice.
    n_clients, n_workers : int
    """
    for _ in range(ATTEMPTS if names else 0):
        with suppress(RuntimeError), tempfile.TemporaryDirectory() as folder:
            _simulate(names, make, run, n_clients, n_workers, Path(folder) / "current")
            break


def _simulate(names, make, run, n_clients, n_workers, current):
    """Run one simulation; `current` is a file with the name of the running protocol."""
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid, context):
        for name in [names[0], *names]:
            current.write_text(name)
            run(name, Flower(grid, n_clients))

    app = client_app(lambda context: make(current.read_text(), context.node_config["partition-id"]))
    start = {"num_cpus": n_workers, "include_dashboard": False, "log_to_driver": False}
    start |= {"logging_level": "error"}
    config = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": start}
    run_simulation(server, app, n_clients, backend_config=config)
