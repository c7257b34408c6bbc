"""Fixtures of the tests of the command line."""

import sys
from pathlib import Path

import pytest

# pytest's importlib mode does not let test modules import their neighbours.
sys.path.append(str(Path(__file__).parent))

from cli_helpers import SITES, Command, invoke, rows


@pytest.fixture
def command(forkserver, tmp_path):
    """Return a function that starts a process of the command line in the test's folder."""
    started = []

    def start(*arguments, **more):
        started.append(Command(forkserver, tmp_path, map(str, arguments), **more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.join()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder with the rows and tokens of three sites; the test runs in it."""
    monkeypatch.chdir(tmp_path)
    invoke("token", *SITES)
    for name, part in zip(SITES, rows(), strict=True):
        part.to_csv(f"{name}.csv", index=False)
    return tmp_path
