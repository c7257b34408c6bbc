"""A run by the command line survives the death of its server and of its sites at any moment."""

import contextlib
import random
import signal
import socket
import time
from itertools import count, cycle
from pathlib import Path

import pandas as pd
import pytest
from cli_helpers import (
    ANSWER,
    CASES,
    HORIZONTAL,
    SITES,
    WITHOUT_LABELS,
    assert_run_as_in_process,
    flags,
    invoke,
    joining,
    refuse,
    serving,
    site_arguments,
)

pytest.importorskip("uvicorn")

NEVER = ("", 0)
JOURNAL = ["--journal", "run.journal"]
TOKENS = ["--tokens", "tokens/clients.json"]
PATIENT = ["--gone-after", "0.2", "--rejoin-timeout", 10 * ANSWER]


@pytest.fixture
def bind():
    """Return an address that is free, so that a server can be started again at the same one.

    Its port is below those that the system gives to outgoing connections. Otherwise a site that
    calls while there is no server could be connected to itself.
    """
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", random.randint(20_000, 30_000))) as free,
        ):
            return f"127.0.0.1:{free.getsockname()[1]}"


def live_until_the_end(start, lives):
    """Start programs again and again until each has ended by itself; return their last processes.

    Parameters
    ----------
    start : dict of str to callable
        Starts a program, which dies at the moment that is passed.
    lives : dict of str to iterator of moments
        Where the lives of each program end. After the last one, it lives on.
    """
    running = {name: begin(next(lives[name], NEVER)) for name, begin in start.items()}
    ended = {}
    until = time.monotonic() + 5 * ANSWER
    while running:
        assert time.monotonic() < until, {name: one.output for name, one in running.items()}
        for name, one in list(running.items()):
            code = one.process.exitcode
            if code == -signal.SIGKILL:
                running[name] = start[name](next(lives[name], NEVER))
            elif code is not None:
                ended[name] = running.pop(name)
        time.sleep(0.005)
    return ended


def run_with_deaths(name, command, bind, *, server, sites):
    """Run a protocol; ``server`` and ``sites`` are the moments at which lives end."""
    outputs = ["--model-out", "model.npz", "--ledger-out", "ledger.csv"]
    serve = ["serve", name, *flags(CASES[name].parameters), *TOKENS]
    serve += ["--bind", bind, *PATIENT, *JOURNAL, *outputs]
    serve += ["--linger", "2"]  # otherwise a site killed after its last reply would wait in vain
    start = {"server": lambda dies: command(*serve, dies=dies)}
    for i, arguments in enumerate(site_arguments(name)):
        join = ["join", f"http://{bind}", *arguments, "--state-dir", f"state-{i}"]
        join += ["--patience", "15"]  # long enough for a server to be started again
        start[str(i)] = lambda dies, join=join: command(*join, dies=dies)
    lives = {who: iter(sites(int(who)) if who != "server" else server()) for who in start}
    ended = live_until_the_end(start, lives)
    for who, one in ended.items():
        # Killed after its last reply, a site that keeps no labels cannot know that the run is over.
        unknown = name in WITHOUT_LABELS and who != "server" and one.process.exitcode == 1
        one.ends(1 if unknown else 0)
        assert not unknown or "no answer" in one.output
    assert_run_as_in_process(name)


def after_each_record():
    """Let the server die after every record that it has written itself."""
    return (("recorded", 0) for _ in count())


def after_some_records():
    """Let the server die now after one record, now after two or more."""
    return (("recorded", n) for n in cycle([2, 0, 4, 1]))


def at_each_moment(site):
    """Let a site die when it has handled a request, has saved the reply, or has sent it."""
    moments = ["handled", "saved", "answered"]
    return ((moments[(i + site) % 3], 0) for i in range(6))


def never(*_):
    return iter(())


@pytest.mark.chaos
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("server", "sites"),
    [(after_each_record, never), (never, at_each_moment), (after_some_records, at_each_moment)],
    ids=["server", "sites", "both"],
)
def test_every_protocol_survives(name, server, sites, command, site, bind):
    run_with_deaths(name, command, bind, server=server, sites=sites)
    ledger = Path("ledger.csv").read_text()
    assert invoke("ledger", "run.journal") == ledger
    invoke("ledger", "run.journal", "--out", "again.csv")
    assert Path("again.csv").read_text() == ledger


def test_an_interrupted_server_is_continued(command, site, bind):
    """Its sites receive no outcome; they call until the server is back."""
    server, url = serving(command, *JOURNAL, *PATIENT, bind=bind)
    sites = [joining(command, url, name, "--patience", ANSWER) for name in SITES[:2]]
    server.prints("2 of 3 clients joined")
    server.signal(signal.SIGTERM)
    assert "the same command continues the run from run.journal" in server.ends(130)
    ledger = pd.read_csv(pd.io.common.StringIO(invoke("ledger", "run.journal")))
    assert set(ledger["message"]) == {"CountCells"}
    journal = Path("run.journal").read_bytes()
    secrets = [Path(f"tokens/{name}.token").read_bytes().strip() for name in SITES]
    assert not any(secret in journal for secret in secrets)
    assert "with min_samples 4 instead of 5" in refuse(
        *HORIZONTAL, "--min-samples", "5", *TOKENS, *JOURNAL, "--bind", bind
    )
    server, url = serving(command, *JOURNAL, *PATIENT, bind=bind)
    sites.append(joining(command, url, SITES[2]))
    for one in (server, *sites):
        one.ends()


def test_a_site_ends_when_another_run_is_served(command, site, bind):
    """Without a journal the run is lost, and its sites say so."""
    server, url = serving(command, bind=bind)
    joined = joining(command, url, "0", "--patience", ANSWER)
    server.prints("1 of 3 clients joined")
    server.signal(signal.SIGKILL)
    server.process.join(ANSWER)
    server, url = serving(command, bind=bind)
    error = "was started again and serves another run; this client has to be started again too"
    assert error in joined.ends(1)
    server.signal(signal.SIGINT)
    server.ends(130)


def test_what_is_no_journal(site):
    Path("labels.csv").write_text("label\n0\n")
    error = "Error: labels.csv is not a journal of fedlib"
    assert refuse(*HORIZONTAL, "--clients", "1", "--journal", "labels.csv") == error
    assert refuse("ledger", "labels.csv") == error
