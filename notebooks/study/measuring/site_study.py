"""What sites in processes of their own need: until the first reply, and per step of a run.

It reads ``/proc``, so it needs Linux.
"""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from fedlib.core.in_process import InProcess
from fedlib.core.protocol import run
from fedlib.sites.site import make_client
from fedlib.tables.files import read_table
from fedlib.transports.http import HTTP, digest, new_token
from study.measuring.performance_study import Measured

COMMAND = [sys.executable, "-c", "from fedlib.cli.main import main; main()", "join"]
FIRST = 3  # the steps of a run before the level requests of the trees


@contextmanager
def joined(files, protocol, folder, target=None):
    """Serve a protocol, with one process of ``fedlib join`` per file; yield both.

    Parameters
    ----------
    files : list of path
        The rows of each site.
    protocol : str
    folder : path
        For the tokens and what the sites remember.
    target : str, optional
        The column with the classes.
    """
    tokens = {f"site {i}": new_token() for i in range(len(files))}
    digests = {name: digest(token) for name, token in tokens.items()}
    options = ["--target", target] if target else []
    environment = os.environ | {"FEDLIB_STATE": str(folder), "OMP_NUM_THREADS": "1"}
    processes = []
    try:
        with HTTP(digests, "127.0.0.1:0", protocol=protocol) as transport:
            for path, token in zip(files, tokens.values(), strict=True):
                arguments = [transport.url, "--data", str(path), *options]
                one = {"env": environment | {"FEDLIB_TOKEN": token}, "stderr": subprocess.DEVNULL}
                processes.append(subprocess.Popen([*COMMAND, *arguments], **one))
            yield transport, processes
    finally:
        for process in processes:
            process.wait(60)


def write(X, path, y=None):
    """Write rows, and their classes as the column ``y``, to a CSV file, and return its path."""
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    (frame if y is None else frame.assign(y=y)).to_csv(path, index=False)
    return path


def first_reply(path, protocol, request, folder, target=None):
    """Return what ``fedlib join`` has needed when its first reply arrives.

    Parameters
    ----------
    path, protocol, folder, target
        As for `joined`.
    request : Message
        The first request.

    Returns
    -------
    seconds : Measured
        The processor time of the process.
    memory : int
        The most memory that it has had, in bytes.
    """
    with joined([path], protocol, folder, target) as (transport, [process]):
        return run(_ask(request, process.pid), transport)


def _ask(request, pid):
    yield request
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    memory = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]
    ticks = int(times[11]) + int(times[12])  # in user mode and in the system
    return Measured(ticks / os.sysconf("SC_CLK_TCK")), int(memory) * 1024


def imported(module):
    """Return the processor time of a process that only imports a module, in seconds."""
    process = subprocess.Popen([sys.executable, "-c", f"import {module}"])
    _, process.returncode, usage = os.wait4(process.pid, 0)
    return Measured(usage.ru_utime + usage.ru_stime)


def memory_of_reading(n_rows, n_columns, protocol, request, folder):
    """Return the memory of ``fedlib join`` for a CSV file beyond that for ten rows, in GB."""
    X = np.random.default_rng(0).random((n_rows, n_columns))
    large, small = (write(X[:n], Path(folder) / f"{n}.csv") for n in (n_rows, 10))
    needed = [first_reply(path, protocol, request, folder)[1] for path in (large, small)]
    return Measured((needed[0] - needed[1]) / 1e9)


def step_over_http(estimator, files, folder, target):
    """Return the seconds per step of a run with one process per file; see `seconds_per_step`."""
    with joined(files, estimator.name, folder, target) as (transport, _):
        return seconds_per_step(estimator, transport)


def step_in_process(estimator, files, target):
    """Return the seconds per step of the same run with all clients in this process."""
    clients = {
        f"site {i}": make_client(estimator.name, read_table(path, target=target))
        for i, path in enumerate(files)
    }
    return seconds_per_step(estimator, InProcess(clients))


def seconds_per_step(estimator, transport):
    """Fit the estimator over a transport; return the mean time of a step after the first ones.

    During the first ones, the sites start, read their rows and load the compiled kernels.
    """
    starts, exchange = [], transport.exchange

    def timed(requests):
        starts.append(time.perf_counter())
        return exchange(requests)

    transport.exchange = timed
    estimator.fit(transport)
    return Measured((starts[-1] - starts[FIRST]) / (len(starts) - 1 - FIRST))
