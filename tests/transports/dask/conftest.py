"""Fixtures of the tests of Dask."""

import pytest
from distributed import Client


@pytest.fixture(scope="module")
def cluster():
    """Return a connection to two workers in this process."""
    with Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as client:
        yield client
