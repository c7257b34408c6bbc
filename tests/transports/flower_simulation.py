"""Every protocol of the package on Flower's simulation, in one run of it; prints what came of it.

A program of its own, because a simulation takes a process over. Its argument is a file in which it
tells its nodes which protocol they are running.
"""

import json
import sys
from pathlib import Path

from fedlib.federated import Federated, protocols
from fedlib.transports.flower import Flower, ServerApp, client_app


def fit_in_process(rows):
    """Return the fitted estimators, and the options that each gave its clients."""
    options, make_clients = {}, Federated._make_clients

    def note(self, parts, own, passive):
        options[self.name] = list(own)
        return make_clients(self, parts, own, passive)

    Federated._make_clients = note
    fitted = {
        name: protocols()[name](**parameters).fit(make_parts())
        for name, (parameters, make_parts) in rows.items()
    }
    Federated._make_clients = make_clients
    return fitted, options


def nodes(current, parts, options):
    """Return the nodes' app; all that it needs travels with it."""
    kinds = {name: protocols()[name].client_class for name in parts}

    def make_client(context):
        name, own = current.read_text(), context.node_config["partition-id"]
        return kinds[name](parts[name][own], **options[name][own])

    return client_app(make_client)


def main(current):
    from flwr.simulation import run_simulation
    from test_flower import OURS, PROTOCOLS, fitted

    rows = {name: PROTOCOLS[name] for name in OURS}
    parts = {name: make_parts() for name, (_, make_parts) in rows.items()}
    here, options = fit_in_process(rows)
    there, server = {}, ServerApp()

    @server.main()
    def serve(grid, context):
        for name, (parameters, _) in rows.items():
            current.write_text(name)
            transport = Flower(grid, len(parts[name]), join_timeout=60)
            there[name] = protocols()[name](**parameters).fit(transport)

    run_simulation(
        server,
        nodes(current, parts, options),
        num_supernodes=3,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
    same = {
        name: [
            fitted(there[name]) == fitted(here[name]),
            there[name].ledger_.entries == here[name].ledger_.entries,
        ]
        for name in there
    }
    print(json.dumps(same))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
