"""A Flower deployment on this machine: one process for the SuperLink and one per SuperNode."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil

from fedlib.transports.flower_app import new
from study.running import all_protocols

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
BIN = Path(sys.executable).parent
TIMEOUT = 1800  # seconds; a run may have many exchanges


class Run(NamedTuple):
    """The time of a run, and the ledger and the model from its output folder."""

    seconds: float
    ledger: pd.DataFrame
    arrays: dict[str, np.ndarray]


@contextmanager
def deployment(node_configs, **warm_up):
    """Start a deployment of the app's template, with one node per configuration.

    Yields a function that runs a protocol with the given settings and returns a `Run`. A first run
    with the settings ``warm_up`` has then been made, so that all nodes have joined and have the
    app.
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        environment = os.environ | QUIET | {"FLWR_HOME": str(folder), "HOME": str(folder)}
        environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
        app, link, *ports = new(folder / "app"), *free_ports(1 + len(node_configs))
        address = f"127.0.0.1:{link}"
        (folder / "config.toml").write_text(
            f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )

        def start(*command):
            with (folder / "log").open("ab") as log:
                options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                subprocess.Popen(
                    command, cwd=folder, env=environment, start_new_session=True, **options
                )

        def run(**config):
            output = Path(tempfile.mkdtemp(dir=folder))
            config |= {"output": str(output), "n_clients": len(node_configs)}
            done = subprocess.run(
                ["flwr", "run", app, "here", "--stream", "--run-config", as_text(config)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            if not (output / "ledger.csv").exists():  # the status of flwr run is 0 even so
                log = (folder / "log").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"the run failed\n{done.stdout}\n{done.stderr}\n{log}")
            seconds = float(re.search(r"exchanges in ([\d.]+) s", done.stdout)[1])
            ledger = pd.read_csv(output / "ledger.csv", dtype={"sender": str, "receiver": str})
            with np.load(output / "model.npz") as model:
                return Run(seconds, ledger, dict(model))

        try:
            start(
                *("flower-superlink", "--insecure", "--host=127.0.0.1", f"--port={link}"),
                "--disable-runtime-dependency-installation",
            )
            wait_for(link)
            for partition, (port, config) in enumerate(zip(ports, node_configs, strict=True)):
                node_config = as_text({"partition-id": partition, "demo": True} | config)
                start(
                    *("flower-supernode", "--insecure", f"--superlink={address}"),
                    *(f"--port={port}", f"--node-config={node_config}"),
                )
            run(**warm_up)
            yield run
        finally:
            stop(folder)


def deploy(parameters, n_clients):
    """Yield the name of each protocol and its `Run`.

    Parameters
    ----------
    parameters : mapping of str to dict
        The parameters of each protocol by its name. Protocols whose clients have equal options
        share a deployment.
    n_clients : int
    """
    by_options = {}
    for name in parameters:
        configs = [
            {f"client_{key}": value for key, value in all_protocols.options(name, i).items()}
            for i in range(n_clients)
        ]
        by_options.setdefault(as_text(configs[0]), (configs, []))[1].append(name)
    for configs, names in by_options.values():
        with deployment(configs, **settings(names[0], parameters[names[0]])) as run:
            for name in names:
                yield name, run(**settings(name, parameters[name]))


def settings(name, parameters):
    """Return a run's settings for the app.

    Examples
    --------
    >>> settings("kmeans", {"n_clusters": 2, "tol": None})
    {'protocol': 'kmeans', 'parameters': 'n_clusters = 2, tol = None', 'split': 'rows'}
    """
    text = ", ".join(f"{key} = {value!r}" for key, value in parameters.items())
    split = "columns" if name == "vertical-dbscan" else "rows"
    return {"protocol": name, "parameters": text, "split": split}


def as_text(config):
    """Return settings in the format of Flower's command line."""
    return " ".join(f"{key.replace('_', '-')}={json.dumps(v)}" for key, v in config.items())


def free_ports(n):
    """Return free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def wait_for(port):
    """Wait until a process listens on a port."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError("the SuperLink does not answer")


def stop(folder):
    """End all processes whose ``FLWR_HOME`` is this folder."""
    for end in (signal.SIGTERM, signal.SIGKILL):
        ours = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == str(folder):
                    process.send_signal(end)
                    ours.append(process)
        psutil.wait_procs(ours, timeout=10)
