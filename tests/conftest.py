"""What several test modules share."""

import os
import signal
from pathlib import Path

import numba
import pandas as pd
import pytest
from hypothesis import settings

from fedlib import datasets
from fedlib.messages import decode, encode
from fedlib.protocol import serve
from fedlib.transports.in_process import InProcess

ROOT = Path(__file__).parents[1]

# A shell starts its background jobs with SIGINT ignored, and so would be all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels compile at the first example, so no example has a deadline.
settings.register_profile("compiled", deadline=None, max_examples=50)
settings.register_profile("interpreted", deadline=None, max_examples=12)
settings.load_profile("interpreted" if numba.config.DISABLE_JIT else "compiled")


def pytest_configure(config):
    if numba.config.DISABLE_JIT:
        # Compiled code wraps around, as hashes do on purpose, and overflows to infinity silently.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered in scalar")


@pytest.fixture
def real_data():
    """Return a loader of the real data sets, which skips a test where they are not at hand."""

    def load(name):
        if not os.environ.get("FEDLIB_DATA"):
            pytest.skip("needs the real data: FEDLIB_DATA names no folder")
        return datasets.load(name)

    return load


@pytest.fixture(scope="session")
def published():
    """Return the table of all published numbers; every value is the text as printed."""
    return pd.read_csv(ROOT / "datasets" / "published.csv", dtype=str, keep_default_na=False)


class Relay(InProcess):
    """A transport that keeps all bytes that travel and lets a test replace a client's replies.

    ``tamper`` maps a client to a function of its request's and its reply's bytes, which returns
    the bytes that arrive, or None for no reply at all.
    """

    def __init__(self, clients, tamper=None):
        super().__init__(clients)
        self.tamper = tamper or {}
        self.requests = []
        self.replies = []

    def exchange(self, requests):
        replies = super().exchange(requests)
        for name, change in self.tamper.items():
            if name in replies:
                reply = change(requests[name], replies.pop(name))
                if reply is not None:
                    replies[name] = reply
        self.requests.append(dict(requests))
        self.replies.append(dict(replies))
        return replies

    @property
    def travelled(self):
        """All bytes that travelled, in one string."""
        return b"|".join(data for step in (*self.requests, *self.replies) for data in step.values())


@pytest.fixture
def relay():
    return Relay


class Reborn:
    """A transport whose clients are made anew for each request, from their data and state."""

    def __init__(self, make, parts):
        self.make = make
        self.parts = parts
        self.clients = list(parts)
        self.errors = {}
        self.ledger = None
        self.states = {}

    def exchange(self, requests):
        return {name: self.serve(name, request) for name, request in requests.items()}

    def serve(self, name, request):
        client = self.make(self.parts[name])
        if name in self.states:
            client.state = decode(self.states[name])
        reply = serve(client, request, print)
        if client.state is not None:
            self.states[name] = encode(client.state)
        return reply


@pytest.fixture
def reborn():
    return Reborn
