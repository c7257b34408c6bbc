"""XGBoost's own federated plugin as a peer: its server and clients as processes of one machine.

The plugin's server listens on all interfaces of the machine. So the processes run in a network
namespace of their own, from which nothing else can be reached. This needs Linux and `unshare`.
"""

import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NAMESPACE = ["unshare", "--user", "--map-root-user", "--net"]
LOOPBACK = ["ip", "link", "set", "lo", "up"]
PORT = 9091


def is_possible():
    """Return whether this machine lets a user make a network namespace."""
    if not shutil.which(NAMESPACE[0]) or not shutil.which(LOOPBACK[0]):
        return False
    return subprocess.run([*NAMESPACE, *LOOPBACK], capture_output=True).returncode == 0


def train(parts, parameters, n_trees):
    """Train with one client process per part, and check that all have the same model.

    Parameters
    ----------
    parts : list of (X, y)
        The rows and classes of each client.
    parameters : dict
        Of `xgboost.train`.
    n_trees : int

    Returns
    -------
    float
        The seconds from the moment in which all processes have their rows until the last one has
        the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        for rank, (X, y) in enumerate(parts):
            np.savez(Path(folder) / f"{rank}.npz", X=X, y=y)
        texts = [f"{name}={value}" for name, value in parameters.items()]
        script = [sys.executable, __file__, folder, str(len(parts)), str(n_trees), *texts]
        inner = ["sh", "-c", f'{" ".join(LOOPBACK)} && exec "$@"', "sh", *script]
        done = subprocess.run([*NAMESPACE, *inner], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"XGBoost's federated plugin failed:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def _serve(n_clients):
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=n_clients, port=PORT)


def _work(folder, rank, n_clients, n_trees, parameters, ready, models):
    import xgboost

    with np.load(Path(folder) / f"{rank}.npz") as part:
        X, y = part["X"], part["y"]
    communicator = {
        "dmlc_communicator": "federated",
        "federated_server_address": f"localhost:{PORT}",
        "federated_world_size": n_clients,
        "federated_rank": rank,
    }
    ready.wait()
    with xgboost.collective.CommunicatorContext(**communicator):
        model = xgboost.train(parameters, xgboost.DMatrix(X, y), n_trees)
        models.put(bytes(model.save_raw()))


def _main(folder, n_clients, n_trees, *texts):
    n_clients, n_trees = int(n_clients), int(n_trees)
    parameters = dict(text.split("=", 1) for text in texts)
    import xgboost.federated  # noqa: F401  # once, for all processes

    context = multiprocessing.get_context("fork")
    ready, models = context.Barrier(n_clients + 1), context.Queue()
    server = context.Process(target=_serve, args=(n_clients,), daemon=True)
    server.start()
    for rank in range(n_clients):
        arguments = (folder, rank, n_clients, n_trees, parameters, ready, models)
        context.Process(target=_work, args=arguments, daemon=True).start()
    time.sleep(1)  # the server listens before the clients have loaded their rows
    ready.wait(timeout=300)
    start = time.perf_counter()
    received = {models.get(timeout=1800) for _ in range(n_clients)}
    if len(received) != 1:
        raise RuntimeError(f"the clients have {len(received)} different models")
    print(time.perf_counter() - start)


if __name__ == "__main__":
    _main(*sys.argv[1:])
