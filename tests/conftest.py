"""What several test modules share."""

import multiprocessing
import os
import signal
import sys
import tempfile
import zlib
from pathlib import Path

import numba
import pandas as pd
import pytest
from hypothesis import settings

from fedlib import datasets
from fedlib.testing import Recorder, seeded_noise

ROOT = Path(__file__).parents[1]
sys.path.append(str(Path(__file__).parent))  # importlib mode does not let tests import neighbours
sys.path.append(str(ROOT / "notebooks"))
collect_ignore = ["prepared.py"]  # it runs all protocols when it is imported, and has no test

# A shell starts its background jobs with SIGINT ignored, and all processes that the tests start
# would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels compile at the first example, so no example has a deadline.
settings.register_profile("compiled", deadline=None, max_examples=25)
settings.register_profile("interpreted", deadline=None, max_examples=12)
settings.load_profile("interpreted" if numba.config.DISABLE_JIT else "compiled")


def pytest_configure(config):
    if numba.config.DISABLE_JIT:
        # Compiled code wraps around, as hashes do on purpose, and overflows to infinity silently.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered in scalar")


@pytest.fixture(autouse=True)
def no_figures():
    """Close the figures of other tests, in which `plot` without axes would draw."""
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def state_folder(request, tmp_path_factory, monkeypatch):
    """Give each test a memory of its own: what a site remembers outlives its processes."""
    test = zlib.crc32(request.node.nodeid.encode())
    folder = tmp_path_factory.getbasetemp() / "state" / f"{test:08x}"
    monkeypatch.setenv("FEDLIB_STATE", str(folder))
    return folder


@pytest.fixture
def fixed_noise():
    """Draw the noise of clients from a seed: a test of noisy results fails always or never."""
    with seeded_noise(0):
        yield


@pytest.fixture(scope="session")
def postgresql_socket(tmp_path_factory):
    """Return the folder with the socket of a server of PostgreSQL, whose user is ``tester``."""
    import database_servers

    programs = database_servers.find_postgresql()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    with (
        tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder,  # a socket's path is short
        database_servers.postgresql(programs, Path(folder)) as socket,
    ):
        yield socket


@pytest.fixture(scope="session")
def mariadb_socket():
    """Return the socket of a server of MariaDB, whose user is ``root``."""
    import database_servers

    program = database_servers.find_mariadb()
    if program is None:
        pytest.skip("MariaDB is not installed (apt install mariadb-server)")
    with (
        tempfile.TemporaryDirectory(prefix="my", dir="/tmp") as folder,
        database_servers.mariadb(program, Path(folder)) as socket,
    ):
        yield socket


@pytest.fixture
def real_data():
    """Return a loader of the real data sets, which skips a test if they are not available."""

    def load(name):
        if not os.environ.get("FEDLIB_DATA"):
            pytest.skip("needs the real data: FEDLIB_DATA names no folder")
        return datasets.load(name)

    return load


@pytest.fixture(scope="session")
def published():
    """Return the table of all published numbers; values are strings, exactly as printed."""
    return pd.read_csv(ROOT / "datasets" / "published.csv", dtype=str, keep_default_na=False)


@pytest.fixture
def relay():
    """Return the recorder: a transport that keeps all bytes and can replace a client's replies."""
    return Recorder


@pytest.fixture
def reborn():
    """Return a function that creates a transport which rebuilds its clients before each request."""

    def make(client_class, parts):
        clients = {name: client_class(part) for name, part in parts.items()}
        return Recorder(clients, rebuild=lambda name: client_class(parts[name]))

    return make


@pytest.fixture(scope="session")
def forkserver():
    """Return a context whose processes are forks of one that has loaded everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["prepared"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", f"{ROOT / 'tests'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        )
        first = context.Process()
        first.start()
        first.join()
    return context
