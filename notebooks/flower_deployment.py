"""A Flower deployment on this machine: a SuperLink and its SuperNodes, each a process."""

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

from fedlib.flower_app import new

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
BIN = Path(sys.executable).parent
PATIENCE = 1800  # seconds, for a run of many exchanges


class Run(NamedTuple):
    """What a run took, and what it left in its output folder."""

    seconds: float
    ledger: pd.DataFrame
    arrays: dict[str, np.ndarray]


@contextmanager
def deployment(node_configs, **warm_up):
    """Start one with the app's template and a node for each configuration.

    What it gives runs a protocol and returns a `Run`. A first run, with the settings ``warm_up``,
    is behind it, so that all nodes have joined and have the app.
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
                timeout=PATIENCE,
                check=False,
            )
            if not (output / "ledger.csv").exists():  # flwr run has status 0 all the same
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
                own = as_text({"partition-id": partition, "demo": True} | config)
                start(
                    *("flower-supernode", "--insecure", f"--superlink={address}"),
                    *(f"--port={port}", f"--node-config={own}"),
                )
            run(**warm_up)
            yield run
        finally:
            stop(folder)


def as_text(config):
    """Return settings as Flower's command line takes them."""
    return " ".join(f"{key.replace('_', '-')}={json.dumps(v)}" for key, v in config.items())


def free_ports(n):
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def wait_for(port):
    """Wait until somebody listens."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError("the SuperLink does not answer")


def stop(folder):
    """End all processes that were started with this folder as their home."""
    for end in (signal.SIGTERM, signal.SIGKILL):
        ours = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == str(folder):
                    process.send_signal(end)
                    ours.append(process)
        psutil.wait_procs(ours, timeout=10)
