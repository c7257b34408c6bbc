"""Fixtures of the tests of Dask."""

import pytest
from distributed import Client


@pytest.fixture(scope="module")
def cluster():
    """Return a connection to two workers in this process."""
    with Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client
