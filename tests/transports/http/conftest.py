"""Fixtures of the tests of the HTTP transport."""

import runpy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

# pytest's importlib mode does not let test modules import their neighbours.
sys.path.append(str(Path(__file__).parent))

from http_helpers import SITE, wait_for

collect_ignore = ["load.py", "site.py"]  # imported twice, they would define messages twice


@pytest.fixture(autouse=True)
def all_threads_end():
    """Check that every thread that a test starts ends soon after it."""
    before = set(threading.enumerate())
    yield
    wait_for(lambda: set(threading.enumerate()) <= before)


@pytest.fixture
def start():
    """Return a function that calls a function in a thread and returns the future of its result."""
    with ThreadPoolExecutor(32, thread_name_prefix="test") as pool:
        yield pool.submit


@pytest.fixture(scope="session")
def points():
    """Return three sites' rows of the same three clusters and some noise."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]], 60, axis=0)
    X = np.vstack([centres + rng.normal(scale=0.4, size=(180, 2)), rng.uniform(-2, 7, (20, 2))])
    return np.array_split(rng.permutation(X), 3)


@pytest.fixture(scope="session")
def spawn(forkserver):
    """Return a function that starts ``site.py`` in a process that has already imported fedlib."""
    processes = []

    def start(**given):
        options = {"init_globals": {"settings": given}, "run_name": "__main__"}
        process = forkserver.Process(target=runpy.run_path, args=(str(SITE),), kwargs=options)
        process.start()
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()
