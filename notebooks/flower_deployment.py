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

import psutil

from fedlib.flower_app import new

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.02",
}
BIN = Path(sys.executable).parent
PATIENCE = 1800  # seconds, for a run of many exchanges


@contextmanager
def deployment(n_nodes):
    """Start one with the app's template; what it gives runs a protocol and returns its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        environment = os.environ | QUIET | {"FLWR_HOME": str(folder), "HOME": str(folder)}
        environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
        app, link, *nodes = new(folder / "app"), *free_ports(1 + n_nodes)
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
            text = " ".join(f"{key.replace('_', '-')}={json.dumps(v)}" for key, v in config.items())
            done = subprocess.run(
                ["flwr", "run", app, "here", "--stream", "--run-config", text],
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=True,
            )
            return float(re.search(r"exchanges in ([\d.]+) s", done.stdout)[1])

        try:
            start(
                *("flower-superlink", "--insecure", "--host=127.0.0.1", f"--port={link}"),
                "--disable-runtime-dependency-installation",
            )
            wait_for(link)
            for partition, port in enumerate(nodes):
                start(
                    *("flower-supernode", "--insecure", f"--superlink={address}"),
                    *(f"--port={port}", f"--node-config=partition-id={partition}"),
                )
            yield run
        finally:
            stop(folder)


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
