"""Flower's simulation, in one run of it: every protocol of the package, and the one of fin.ipynb.

A program of its own, because a simulation takes a process over. Its argument is a folder: there its
nodes read which protocol they are running, and there they leave their labels. It prints what came
of it.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import numpy as np

from fedlib.federated import Federated, protocols
from fedlib.ledger import Ledger
from fedlib.protocol import run
from fedlib.transports.flower import FIN, Flower, ServerApp, client_app
from fedlib.transports.in_process import InProcess

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "fin.ipynb"
OWN = "logistic_regression"  # the notebook's algorithm
N_NODES = 3


def own_algorithm(folder):
    """Return the notebook's algorithm as a module that the nodes can import as well."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    tagged = [cell.source for cell in cells if "own-algorithm" in cell.metadata.get("tags", [])]
    text = "\n\n\n".join(
        [
            "from typing import Annotated\n\nimport numpy as np\n\n"
            "from fedlib.messages import Array, Message\nfrom fedlib.protocol import Client",
            *tagged,
        ]
    )
    (folder / f"{OWN}.py").write_text(text)
    return import_module(OWN)


def own_parts():
    """Return rows with their classes, one part a node."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = (X[:, 0] + rng.normal(size=90) > 0).astype(float)
    return [(X[i::N_NODES], y[i::N_NODES]) for i in range(N_NODES)]


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


def nodes(folder, parts, options, own):
    """Return the nodes' app; all that it needs travels with it, or can be imported."""
    kinds = {name: protocols()[name].client_class for name in options}

    def make_client(context):
        name, node = (folder / "current").read_text(), context.node_config["partition-id"]
        if name == OWN:
            return own.LogisticClient(*parts[name][node])
        return kinds[name](parts[name][node], **options[name][node])

    def keep_labels(client, context):
        if hasattr(client.state, "labels"):
            name, node = (folder / "current").read_text(), context.node_config["partition-id"]
            np.save(folder / f"{name}-{node}.npy", client.state.labels)

    return client_app(make_client, after=keep_labels)


def same_labels(folder, name, here, frozen):
    """Tell whether the nodes' labels are those in process; a protocol without any has none."""
    paths = sorted(folder.glob(f"{name}-[0-9].npy"))
    labels = getattr(here, "labels_", [])
    if not isinstance(labels, list):
        labels = [labels] * N_NODES
    return frozen([np.load(path) for path in paths]) == frozen(labels)


def main(folder):
    from flwr.simulation import run_simulation
    from test_flower import OURS, PROTOCOLS, fitted, frozen

    own = own_algorithm(folder)
    rows = {name: PROTOCOLS[name] for name in OURS}
    parts = {name: make_parts() for name, (_, make_parts) in rows.items()} | {OWN: own_parts()}
    here, options = fit_in_process(rows)
    there, server = {}, ServerApp()

    @server.main()
    def serve(grid, context):
        for name, (parameters, _) in rows.items():
            (folder / "current").write_text(name)
            transport = Flower(grid, len(parts[name]), join_timeout=60)
            there[name] = protocols()[name](**parameters).fit(transport)
        (folder / "current").write_text(OWN)
        flow = own.logistic_regression(n_features=4, tol=1e-8)
        there[OWN] = FIN(flow, n_clients=N_NODES, join_timeout=60).start(grid)

    run_simulation(
        server,
        nodes(folder, parts, options, own),
        num_supernodes=N_NODES,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
    same = {
        name: {
            "model": fitted(there[name]) == fitted(here[name]),
            "ledger": there[name].ledger_.entries == here[name].ledger_.entries,
            "labels": same_labels(folder, name, here[name], frozen),
        }
        for name in rows
    }
    clients = {str(i): own.LogisticClient(*part) for i, part in enumerate(parts[OWN])}
    ledger = Ledger()
    coefficients = run(own.logistic_regression(4, 1e-8), InProcess(clients), ledger=ledger)
    same[OWN] = {
        "model": frozen(there[OWN].model) == frozen(coefficients),
        "ledger": there[OWN].ledger.entries == ledger.entries,
    }
    print(json.dumps(same))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
