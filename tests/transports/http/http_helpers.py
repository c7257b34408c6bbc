"""Helpers of the tests of the HTTP transport: a quick server, clients in threads, calls by hand."""

import threading
import time
from dataclasses import fields
from pathlib import Path

import httpx

from fedlib import HorizontalDBSCAN, __version__
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.transports.http import HTTP, Limits, digest, join, new_token
from fedlib.transports.http.wire import PROCESS, VERSION

SITE = Path(__file__).with_name("site.py")
ANSWER = 60  # seconds after which a test that still waits has failed
TOKENS = {name: new_token() for name in ("0", "1", "2")}
DIGESTS = {name: digest(token) for name, token in TOKENS.items()}


def estimator():
    """Return an estimator that has not been fitted."""
    return HorizontalDBSCAN(cell_size=0.5, min_samples=4)


def wait_for(condition, seconds=10):
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition has not become true"
        time.sleep(0.01)


def with_limits(**options):
    """Return arguments of `HTTP`, the limits among them as one object."""
    limits = {one.name: options.pop(one.name) for one in fields(Limits) if one.name in options}
    return {"limits": Limits(**limits), **options}


def serve(names="012", **options):
    """Return a transport to some of the three clients, with a short ``gone_after``."""
    options = {
        "gone_after": 2,
        "silent_after": 2,
        "join_timeout": ANSWER,
        "request_timeout": ANSWER,
        **options,
    }
    return HTTP({name: DIGESTS[name] for name in names}, "127.0.0.1:0", **with_limits(**options))


def session(transport, name="0"):
    """Return a client's session."""
    return transport._service.sessions[name]


def attend(start, transport, clients, **options):
    """Make each client join in its own thread; return the futures of the results of `join`."""
    return [
        start(join, transport.url, client, TOKENS[name], patience=ANSWER, **options)
        for name, client in clients.items()
    ]


def caller(transport, name="0", process="stranger"):
    """Return a link for calls by hand."""
    headers = {"Authorization": f"Bearer {TOKENS[name]}", PROCESS: process, VERSION: __version__}
    return httpx.Client(base_url=transport.url, headers=headers, timeout=ANSWER, trust_env=False)


def address(transport):
    """Return the host and the port that a transport listens on."""
    return "127.0.0.1", int(transport.url.rpartition(":")[2])


def refused(response, code):
    """Assert that a call was refused with a short reason in JSON."""
    assert response.status_code == code, response.text
    assert list(response.json()) == ["error"]
    assert 0 < len(response.json()["error"]) < 200
    return True


class Slow(HorizontalDBSCANClient):
    """A client that answers only after ``go`` is set, and records its requests."""

    def __init__(self, X):
        super().__init__(X)
        self.requests = []
        self.working, self.go = threading.Event(), threading.Event()

    def answer(self, request):
        self.requests.append(request)
        self.working.set()
        assert self.go.wait(ANSWER)
        return super().answer(request)
