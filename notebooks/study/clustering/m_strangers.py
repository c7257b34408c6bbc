"""Strangers and failing clients, for Marino's programs (`m_replica`) and for `fedlib` over HTTP."""

import socket
from collections import Counter
from contextlib import contextmanager
from unittest import mock

import httpx

from fedlib import __version__
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.transports.http.wire import NUMBER, PROCESS, VERSION
from study.clustering import m_replica

KEY = "EXECUTED.append('the code of a stranger') or (0, 0)"


@contextmanager
def listeners():
    """Count the sockets that start to listen."""
    counted = Counter()
    listen = socket.socket.listen

    def counting(self, *arguments):
        counted["sockets"] += 1
        return listen(self, *arguments)

    with mock.patch.object(socket.socket, "listen", counting):
        yield counted


def in_words(outcome):
    """Return a status and the message that came with it.

    Examples
    --------
    >>> in_words((201, {"message": "Action not Supported"})), in_words((200, {}))
    ('201 Action not Supported', '200')
    """
    status, content = outcome
    return f"{status} {content['message']}" if "message" in content else str(status)


class Stranger(m_replica.Client):
    """A client without points, which answers with a crafted key and keeps what it receives."""

    def counts(self):
        return {KEY: 1.0}

    def assign(self, cells, labels):
        self.received = cells


class Failing(m_replica.Client):
    """A client that has an error while it counts."""

    def counts(self):
        raise RuntimeError


class Interrupting(m_replica.Client):
    """A client that connects and starts a second run while it should count.

    Attributes
    ----------
    server : m_replica.Server
        To be set before the first run.
    codes : tuple of int
        The statuses of the two calls.
    """

    codes = ()

    def counts(self):
        if not self.codes:
            self.codes = (self.connect(self.server),)
            self.codes += (m_replica.get(self.server, "start")[0],)
        return {}


class FailingClient(HorizontalDBSCANClient):
    """A client of `fedlib` that has an error in every handler."""

    def handle(self, request):
        raise RuntimeError("these words stay at the site")


def call(transport, method, path, token=""):
    """Call the server of `fedlib` as a process of its own; return the status."""
    headers = {PROCESS: "stranger", NUMBER: "1", VERSION: __version__}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    content = b"reply" if path == "/reply" else b""
    url = transport.url + path
    return httpx.request(
        method, url, headers=headers, content=content, timeout=10, trust_env=False
    ).status_code


def crafted_reply(url, token, body):
    """Join `fedlib`, answer the first request with the body, and return what happens next."""
    headers = {PROCESS: "attacker", VERSION: __version__, "Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=20, trust_env=False) as link:
        link.post("/join").raise_for_status()
        number = link.get("/request").headers[NUMBER]
        link.post("/reply", content=body, headers={NUMBER: number})
        answer = link.get("/request")
    return answer.status_code, answer.json()["error"]
