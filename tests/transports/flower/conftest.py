"""Fixtures of the tests of Flower."""

import sys
from pathlib import Path

import pytest

# pytest's importlib mode does not let test modules import their neighbours.
sys.path.append(str(Path(__file__).parent))

from flower_helpers import SITES, make_client

from fedlib.transports.flower import LocalFlowerGrid, client_app


@pytest.fixture
def grid():
    """Return a grid with one node per site."""
    return LocalFlowerGrid(client_app(make_client), len(SITES))
