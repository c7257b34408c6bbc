"""Many runs over HTTP in which sites are killed at random and start again.

The servers of all runs live in this process, one after the other, so whatever a run leaves behind
adds up. The sites are forks of a prepared process, except in every ``INSTALLED``-th run, in which
the installed command starts them. The model, the labels and the ledger of each run are
byte-identical to those of the estimator in process. The number of runs is ``SOAK_RUNS``, by default
200; the seed of the kills is ``SOAK_SEED``.
"""

import contextlib
import gc
import os
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from cli_helpers import CASES, SITES, Command, assert_run_as_in_process, site_arguments

from fedlib.cli.preparation import read_clients
from fedlib.core.registry import protocols
from fedlib.sites import models
from fedlib.tables.files import write_file

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.soak

INSTALLED = 40
LONGEST = 180  # seconds after which a run hangs
PATIENT = {"gone_after": 0.5, "rejoin_timeout": LONGEST, "request_timeout": LONGEST}
ROUNDS = 2  # rounds over all protocols after which no more memory is needed


class Site:
    """A site that is started again after it was killed, and everything that it has printed."""

    def __init__(self, start, arguments):
        self.start, self.arguments = start, arguments
        self.lives = [start(*arguments)]

    @property
    def has_ended(self):
        return self.lives[-1].process.exitcode is not None

    def kill(self):
        """Kill the site and start it again; return whether it had not ended by itself."""
        process = self.lives[-1].process
        process.kill()
        process.join(LONGEST)
        if process.exitcode != -signal.SIGKILL:
            return False
        self.lives.append(self.start(*self.arguments))
        return True

    def close(self):
        """Kill the site if it has not ended, and release its descriptors."""
        for life in self.lives:
            life.process.kill()
            life.process.join()
            life.process.close()


def run_with_kills(name, start, kills):
    """Run a protocol between a server in this process and sites.

    Returns the number of kills and the seconds that the run has taken.

    Parameters
    ----------
    name : str
        The protocol's name. The current folder receives the outputs.
    start : callable
        Starts a program with its arguments.
    kills : list of tuple of float and int
        The times, in seconds from now, and the numbers of the sites that are killed.
    """
    from fedlib.transports.http import HTTP, Limits

    estimator = protocols()[name](**CASES[name].parameters)
    clients = read_clients(Path("tokens/clients.json"))
    n_kills, kills, sites = 0, sorted(kills), []
    with (
        ThreadPoolExecutor(1) as thread,
        HTTP(clients, "127.0.0.1:0", protocol=name, limits=Limits(**PATIENT)) as transport,
        contextlib.ExitStack() as stack,
    ):
        begin = time.monotonic()
        run = thread.submit(lambda: (estimator.fit(transport), transport.finish()))
        for i, arguments in enumerate(site_arguments(name)):
            join = ["join", transport.url, "--state-dir", f"state-{i}", *arguments]
            sites.append(Site(start, join))
            stack.callback(sites[-1].close)
        while not (run.done() and all(site.has_ended for site in sites)):
            seconds = time.monotonic() - begin
            assert seconds < LONGEST, [life.output for site in sites for life in site.lives]
            if run.done():
                run.result()
            if kills and seconds >= kills[0][0]:
                n_kills += sites[kills.pop(0)[1]].kill()
            time.sleep(0.01)
        seconds = time.monotonic() - begin
        for site in sites:
            site.lives[-1].ends()
    models.save(estimator, "model.npz")
    ledger = estimator.ledger_.to_frame().to_csv(index=False, lineterminator="\n")
    write_file(Path("ledger.csv"), ledger.encode())
    assert_run_as_in_process(name)
    return n_kills, seconds


def start_program(forkserver, folder, number, *arguments):
    """Start a program of a run."""
    more = {"installed": True} if number % INSTALLED == INSTALLED // 2 else {}
    return Command(forkserver, folder, arguments, **more)


def resources():
    """Return this process's memory in kB and its numbers of threads and descriptors."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    memory, threads = (
        int(re.search(rf"^{key}:\s+(\d+)", status, re.MULTILINE)[1]) for key in ("VmRSS", "Threads")
    )
    return {"kB": memory, "threads": threads, "descriptors": len(os.listdir("/proc/self/fd"))}


def test_runs_with_random_kills(tmp_path, site, forkserver, capsys):
    rng = random.Random(int(os.environ.get("SOAK_SEED", "0")))
    names, seconds, measured, n_kills = list(CASES), {}, [], 0
    n_runs = int(os.environ.get("SOAK_RUNS", "200"))
    for number in range(-len(names), n_runs):  # the first run of each protocol is undisturbed
        name = names[number % len(names)]
        folder = tmp_path / f"{number}-{name}"
        folder.mkdir()
        (folder / "tokens").symlink_to(site / "tokens")
        times = [
            (rng.uniform(0, seconds[name]), rng.randrange(len(SITES)))
            for _ in range(rng.randint(1, 4) if number >= 0 else 0)
        ]
        start = partial(start_program, forkserver, folder, number)
        with contextlib.chdir(folder):
            delivered, needed = run_with_kills(name, start, times)
        n_kills += delivered
        seconds[name] = min(needed, seconds.get(name, needed))
        measured.append(resources())
        with capsys.disabled():
            print(f"{number}: {name}, {n_kills} kills so far, {measured[-1]}")
    later = measured[ROUNDS * len(names) :]
    quarter = len(later) // 4
    for what in ("kB", "threads", "descriptors") if quarter else ():
        values = [one[what] for one in later]
        growth = median(values[-quarter:]) - median(values[:quarter])
        assert growth <= (0.05 * median(values[:quarter]) if what == "kB" else 0), (what, values)
