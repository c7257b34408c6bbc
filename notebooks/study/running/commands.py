"""The commands of fedlib as a page runs them, in processes or in threads."""

import atexit
import io
import multiprocessing
import os
import re
import shlex
import sys
import threading
import time
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

ADDRESS = r"at (http://\S+)"  # in the log of a server


class Commands:
    """Commands in processes of their own, which end with the notebook at the latest.

    The processes are forks of one that has loaded the library, because each would need seconds.

    Parameters
    ----------
    folder : path
        Their working directory, also for their logs.
    preload : sequence of str
        The modules that they need besides that of the command line.

    Attributes
    ----------
    processes : dict of str to multiprocessing.Process
        The commands, by name.
    """

    def __init__(self, folder, preload=()):
        self.folder, self.processes = Path(folder), {}
        here = str(Path(__file__).resolve().parents[2])
        if here not in sys.path:  # the new processes get this list, and not the current folder
            sys.path.append(here)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["fedlib.cli.main", *preload])
        atexit.register(self.kill)

    def start(self, name, command):
        """Start a command in the background."""
        arguments = shlex.split(command)[1:], self.folder, self._log(name)
        self.processes[name] = self.context.Process(target=_run_logged, args=arguments)
        self.processes[name].start()

    def log(self, name):
        """Return what a command has printed so far."""
        return self._log(name).read_text() if self._log(name).exists() else ""

    def wait_for(self, name, pattern, seconds=120):
        """Wait until a command has printed a pattern, and return the match."""
        until = time.monotonic() + seconds
        while not (match := re.search(pattern, self.log(name))):
            assert time.monotonic() < until, self.log(name)
            time.sleep(0.02)
        return match

    def wait(self, seconds=120):
        """Wait until all commands have ended, and return their exit codes by name."""
        for process in self.processes.values():
            process.join(seconds)
        return {name: process.exitcode for name, process in self.processes.items()}

    def kill(self):
        """End all commands at once."""
        for process in self.processes.values():
            process.kill()

    def _log(self, name):
        return self.folder / f"{name}.log"


def _run_logged(arguments, folder, log):
    """Run a command of fedlib in this process, with its output in a file."""
    from fedlib.cli.main import cli  # an optional package

    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    cli.main(arguments, "fedlib")


def terminal(command):
    """Run a command in this process; print its error as a terminal would."""
    import click  # an optional package, as is what the commands import

    from fedlib.cli.main import cli

    try:
        cli.main(shlex.split(command)[1:], "fedlib", standalone_mode=False)
    except click.ClickException as error:
        print(f"Error: {error.format_message()}")


def run_at_sites(folder, serve, join, names):
    """Run a server and its sites side by side in threads; return what they print.

    Parameters
    ----------
    folder : path
        The working directory of all commands.
    serve : str
        The command of the server.
    join : str
        The command of a site, with ``{url}``, ``{name}`` and ``{i}``, which counts from 1.
    names : sequence of str
        The sites.
    """
    out, log = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(log):
        server = threading.Thread(target=terminal, args=(serve,))
        server.start()
        while not (match := re.search(ADDRESS, log.getvalue())):
            assert server.is_alive(), out.getvalue()
            time.sleep(0.02)
        commands = [join.format(url=match[1], name=name, i=i) for i, name in enumerate(names, 1)]
        sites = [threading.Thread(target=terminal, args=(command,)) for command in commands]
        for site in sites:
            site.start()
        for thread in (*sites, server):
            thread.join()
    assert "finished after" in log.getvalue(), out.getvalue()
    return out.getvalue()


def attempt(call):
    """Print the error and the warnings of a call, as a terminal would.

    Examples
    --------
    >>> attempt(lambda: int("one"))
    ValueError: invalid literal for int() with base 10: 'one'
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except ValueError as error:
            print(f"{type(error).__name__}: {error}")
    for warning in caught:
        print(f"{warning.category.__name__}: {warning.message}")
