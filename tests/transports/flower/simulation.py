"""One run of Flower's simulation with every protocol of the package, and the one in fin.ipynb.

It is a separate program, because a simulation takes over its process. Its argument is a folder. In
it, the nodes read which protocol is running and write their labels. The program prints which
results are the same as in process.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import nbformat
import numpy as np

from fedlib.core.estimator import Federated
from fedlib.core.in_process import InProcess
from fedlib.core.ledger import Ledger
from fedlib.core.protocol import run
from fedlib.core.registry import protocols
from fedlib.transports.flower import FIN, Flower, ServerApp, client_app

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "fin.ipynb"
LOGISTIC = "logistic_regression"  # the notebook's algorithm
PATIENCE = 240  # seconds for the nodes to start on a busy machine
N_NODES = 3


def notebook_module(folder):
    """Return the notebook's algorithm as a module that the nodes can import too."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    tagged = [cell.source for cell in cells if "own-algorithm" in cell.metadata.get("tags", [])]
    text = "\n\n\n".join(
        [
            "from typing import Annotated\n\nimport numpy as np\n\n"
            "from fedlib.core.messages import Array, Message",
            "from fedlib.core.client import Client",
            *tagged,
        ]
    )
    (folder / f"{LOGISTIC}.py").write_text(text)
    return import_module(LOGISTIC)


def notebook_parts():
    """Return rows with their classes, one part per node."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = (X[:, 0] + rng.normal(size=90) > 0).astype(float)
    return [(X[i::N_NODES], y[i::N_NODES]) for i in range(N_NODES)]


def fit_in_process(rows):
    """Return the fitted estimators, and the arguments that each passed to its clients."""
    options, make_clients = {}, Federated._make_clients

    def note(self, names, parts, client_class, given, passive):
        options[self.name] = list(given)
        return make_clients(self, names, parts, client_class, given, passive)

    Federated._make_clients = note
    fitted = {
        name: protocols()[name](**parameters).fit(make_parts())
        for name, (parameters, make_parts) in rows.items()
    }
    Federated._make_clients = make_clients
    return fitted, options


def nodes(folder, parts, options, notebook):
    """Return the nodes' app; its code is sent with it or can be imported."""
    kinds = {name: protocols()[name].client_class for name in options}

    def make_client(context):
        name, node = (folder / "current").read_text(), context.node_config["partition-id"]
        if name == LOGISTIC:
            return notebook.LogisticClient(*parts[name][node])
        return kinds[name](parts[name][node], **options[name][node])

    def keep_labels(client, context):
        if hasattr(client.state, "labels"):
            name, node = (folder / "current").read_text(), context.node_config["partition-id"]
            np.save(folder / f"{name}-{node}.npy", client.state.labels)

    return client_app(make_client, after=keep_labels)


def same_labels(folder, name, here, frozen):
    """Return whether the nodes' labels are the same as in process, if the protocol has labels."""
    paths = sorted(folder.glob(f"{name}-[0-9].npy"))
    labels = getattr(here, "labels_", [])
    if not isinstance(labels, list):
        labels = [labels] * N_NODES
    return frozen([np.load(path) for path in paths]) == frozen(labels)


def main(folder):
    sys.path.append(str(Path(__file__).parents[2]))
    from all_protocols import OURS, PROTOCOLS, fitted, frozen
    from flwr.simulation import run_simulation

    notebook = notebook_module(folder)
    rows = {name: PROTOCOLS[name] for name in OURS}
    parts = {name: make_parts() for name, (_, make_parts) in rows.items()} | {
        LOGISTIC: notebook_parts()
    }
    here, options = fit_in_process(rows)
    there, server = {}, ServerApp()

    @server.main()
    def serve(grid, context):
        for name, (parameters, _) in rows.items():
            (folder / "current").write_text(name)
            transport = Flower(grid, len(parts[name]), join_timeout=PATIENCE)
            there[name] = protocols()[name](**parameters).fit(transport)
        (folder / "current").write_text(LOGISTIC)
        flow = notebook.logistic_regression(n_features=4, tol=1e-8)
        there[LOGISTIC] = FIN(flow, n_clients=N_NODES, join_timeout=PATIENCE).start(grid)

    run_simulation(
        server,
        nodes(folder, parts, options, notebook),
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
    clients = {str(i): notebook.LogisticClient(*part) for i, part in enumerate(parts[LOGISTIC])}
    ledger = Ledger()
    coefficients = run(notebook.logistic_regression(4, 1e-8), InProcess(clients), ledger=ledger)
    same[LOGISTIC] = {
        "model": frozen(there[LOGISTIC].model) == frozen(coefficients),
        "ledger": there[LOGISTIC].ledger.entries == ledger.entries,
    }
    print(json.dumps(same))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
