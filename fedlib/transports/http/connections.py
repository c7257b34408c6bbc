"""The connections of the web server: who may open how many, and how long each may take.

uvicorn parses the calls and answers them. This module adds the rules that protect a run from
strangers, callers without a valid token:

- A stranger's connection is closed after ``stranger_seconds``, also if it is silent, sends its
  headers or a TLS handshake byte by byte, or has not read its answer. A stranger can make one call,
  and the server does not read its body.
- If there are too many strangers, the oldest connection is closed. An honest caller sends its token
  immediately, so its connection is never among the oldest. The same rule holds for the strangers
  with the same address.
- The process opens no more connections than its limit of file descriptors permits.
- Headers are limited in size, also while they arrive. The server refuses what RFC 9112 calls
  ambiguous: a second Content-Length, a Transfer-Encoding, a negative length, a space before a
  colon. A caller must wait for the answer before it makes the next call.
- Calls with a token have their own deadlines: one for the headers, and one for the body, which
  grows with the length of the body.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import Server

from fedlib.transports.http.limits import Limits

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

MAX_HEADERS = 2**14  # bytes of a call's method, path and headers together
PER_HEADER = 32  # bytes that each header counts for besides its name and value, as in RFC 9113
MAX_LINKS = 8  # open connections per client
RESERVE = 128  # file descriptors for everything but connections
BACKLOG = 4096  # connections that the operating system keeps until they are accepted

logger = logging.getLogger(__name__)
uvicorn_logger = logging.getLogger("fedlib.uvicorn")
uvicorn_logger.setLevel(logging.ERROR)  # any caller can cause its warnings


def raise_descriptor_limit(needed: int) -> int:
    """Raise the limit of open file descriptors as far as allowed, and return it.

    Raises
    ------
    ValueError
        When the limit stays below the number needed.
    """
    if resource is None:
        return max(needed, 2**14)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or hard == resource.RLIM_INFINITY:
        wanted = max(soft, needed) if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft < needed:
        raise ValueError(
            f"tokens need {needed} file descriptors, this process may open {soft}: raise its hard"
            " limit (ulimit -Hn), or serve fewer clients"
        )
    return soft


class Refused(Exception):
    """A call that cannot be read; the connection ends after the answer."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


def _too_long() -> Refused:
    return Refused(431, f"the headers may have at most {MAX_HEADERS} bytes")


class Connection(HttpToolsProtocol):
    """One connection.

    Parameters
    ----------
    listener : Listener
        Counts the connections.
    address : str
        The caller's address.
    *arguments
        Passed to uvicorn's protocol.

    Attributes
    ----------
    client : str
        The name of the client whose token the current call carries; empty for a stranger.
    link : int or None
        An identifier of the connection; None when it is closed.
    process : str
        The identifier of the client's process, set by the application.
    held : Future or None
        What the current call waits for, set by the application.
    opening : Task or None
        The task that sets up the connection, including the TLS handshake.
    """

    identifiers = itertools.count(1)

    def __init__(self, listener: Listener, address: str, *arguments: Any):
        super().__init__(*arguments)
        self.listener, self.limits, self.address = listener, listener.limits, address
        self.logger, self.access_log = uvicorn_logger, False
        self.link: int | None = next(self.identifiers)
        self.name = self.process = ""
        self.held: asyncio.Future[None] | None = None
        self.opening: asyncio.Task[None] | None = None
        self._n_headers = 0  # bytes of the headers of the current call
        # The parser keeps a header until its end has arrived, so the bytes before that count, too.
        self._in_headers, self._n_received = True, 0
        self._timer: asyncio.TimerHandle | None = None
        self.limit(self.limits.stranger_seconds)

    def limit(self, seconds: float | None) -> None:
        """Close the connection after this time, unless another limit is set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.close)

    def close(self) -> None:
        """Close the connection immediately and discard what has not been sent yet."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def hold(self, future: asyncio.Future[None]) -> None:
        """Remember what the current call waits for, to end it when the connection is closed."""
        self.held = future
        if self.link is None and not future.done():
            future.set_result(None)

    # Events of the connection

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.limit(None)
        if self.held is not None and not self.held.done():
            self.held.set_result(None)
        self.listener.forget(self)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._n_received += len(data)
        try:
            self.parser.feed_data(data)
            if self._in_headers and self._n_received > 2 * MAX_HEADERS:
                self._refuse(_too_long())
        except httptools.HttpParserUpgrade:
            self._refuse(Refused(400, "this server speaks HTTP/1.1 only"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, Refused) else Refused(400, "malformed HTTP"))

    def _refuse(self, refused: Refused) -> None:
        """Answer a call that cannot be read, and close the connection."""
        if self.cycle is None or self.cycle.response_complete:
            body = json.dumps({"error": str(refused)}).encode()
            head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            answer = [STATUS_LINE[refused.code], head, b"connection: close\r\n\r\n", body]
            self.transport.write(b"".join(answer))
        self.transport.close()

    # Events of the parser

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            raise Refused(400, "a call must wait for the answer to the one before it")
        super().on_message_begin()
        self._n_headers = 0

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value, PER_HEADER)
        super().on_header(name, value)

    def _count(self, part: bytes, further: int = 0) -> None:
        self._n_headers += len(part) + further
        if self._n_headers > MAX_HEADERS:
            raise _too_long()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        size = self._body_size()
        tokens = [value for name, value in self.headers if name == b"authorization"]
        self.listener.identify(self, tokens[0] if tokens else b"")
        if self.name:
            self.limit(self.limits.body_seconds + size / self.limits.bytes_per_second)
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def _body_size(self) -> int:
        """Return the length of the body."""
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            raise Refused(413, "a body must have a Content-Length")
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if len(lengths) > 1 or not all(value.isdigit() for value in lengths):
            raise Refused(400, "Content-Length must be one number")
        return int(lengths[0]) if lengths else 0

    def on_message_complete(self) -> None:
        self._in_headers, self._n_received = True, 0
        super().on_message_complete()
        if self.name:
            self.limit(self.limits.idle_seconds if self.cycle.response_complete else None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.name and not self.cycle.more_body:
            self.limit(self.limits.idle_seconds)


class Listener:
    """Accepts and counts connections, and closes the oldest when there are too many.

    Parameters
    ----------
    sock : socket
        It listens and does not block.
    context : ssl.SSLContext or None
        For TLS.
    limits : Limits
    n_clients : int
    max_connections : int
    client : callable
        Returns the name of the client with a token, or None.
    on_closed : callable
        Receives each connection of a client that is closed.

    Attributes
    ----------
    connections : set of Connection
        The open connections.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext | None,
        limits: Limits,
        n_clients: int,
        max_connections: int,
        client: Callable[[str], str | None],
        on_closed: Callable[[Connection], object],
    ):
        self.sock, self.context, self.limits = sock, context, limits
        self.max_strangers = limits.max_strangers + n_clients
        self.max_per_address = limits.max_per_address + n_clients
        self.max_connections = max_connections
        self._client, self._on_closed = client, on_closed
        self.connections: set[Connection] = set()
        # Ordered sets: the oldest connection comes first.
        self._strangers: dict[Connection, None] = {}
        self._by_address: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._n_links: Counter[str] = Counter()
        self._pause: asyncio.TimerHandle | None = None  # without file descriptors

    def start(self, server: Server) -> None:
        """Start to accept connections for a server."""
        asyncio.get_running_loop().add_reader(self.sock, self._accept, server)

    def _accept(self, server: Server) -> None:
        """Accept one connection. The loop calls it again while callers wait, and others between."""
        loop = asyncio.get_running_loop()
        try:
            sock, address = self.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the caller has gone
        except OSError:  # the process has no file descriptor left
            self._close_first(self._strangers)
            loop.remove_reader(self.sock)
            self._pause = loop.call_later(0.1, self.start, server)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # answers are short
        connection = Connection(self, address[0], server.config, server.server_state, {}, loop)
        if self._make_room(address[0]):
            self.connections.add(connection)
            self._strangers[connection] = self._by_address[address[0]][connection] = None
            connection.opening = loop.create_task(self._open(connection, sock))
            connection.opening.add_done_callback(partial(self._opened, connection, sock))
        else:
            connection.limit(None)
            sock.close()

    def _make_room(self, address: str) -> bool:
        """Close a stranger if there are too many; return whether one more is allowed."""
        if len(self._by_address[address]) >= self.max_per_address:
            self._close_first(self._by_address[address])
        elif len(self._strangers) >= self.max_strangers:
            self._close_first(self._strangers)
        elif len(self.connections) >= self.max_connections:
            return self._close_first(self._strangers)
        return True

    def _close_first(self, connections: dict[Connection, None]) -> bool:
        """Close the oldest connection; return whether there was one."""
        first = next(iter(connections), None)
        if first is not None:
            self.forget(first)
            first.close()
        return first is not None

    async def _open(self, connection: Connection, sock: socket.socket) -> None:
        """Set up a connection."""
        options: dict[str, Any] = {}
        if self.context is not None:
            seconds = self.limits.stranger_seconds
            options = {"ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": 1}
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: connection, sock, ssl=self.context, **options)

    def _opened(
        self, connection: Connection, sock: socket.socket, opening: asyncio.Task[None]
    ) -> None:
        """Forget a caller that has gone, does not speak TLS, is too slow, or was closed before."""
        connection.opening = None
        if opening.cancelled() or opening.exception() is not None:
            sock.close()  # a task that is cancelled before it begins has no transport that does it
            self.forget(connection)

    def identify(self, connection: Connection, authorization: bytes) -> None:
        """Identify the client whose token a call carries.

        Raises
        ------
        Refused
            When the client has too many connections.
        """
        token = authorization.decode("latin-1").removeprefix("Bearer ")
        name = self._client(token) or ""
        if name == connection.name:
            return
        self._release(connection)
        connection.name = name
        if not name:
            connection.limit(self.limits.stranger_seconds)
            return
        if self._n_links[name] >= MAX_LINKS:
            connection.name = ""
            raise Refused(429, f"more than {MAX_LINKS} connections at the same time")
        self._n_links[name] += 1

    def _release(self, connection: Connection) -> None:
        """Remove a connection from the strangers, or from those of its client."""
        self._strangers.pop(connection, None)
        same = self._by_address.get(connection.address, {})
        same.pop(connection, None)
        if not same:
            self._by_address.pop(connection.address, None)
        if connection.name:
            self._n_links[connection.name] -= 1
            self._on_closed(connection)

    def forget(self, connection: Connection) -> None:
        """Note that a connection is closed."""
        if connection in self.connections:
            self.connections.remove(connection)
            self._release(connection)
            connection.link = None
            connection.limit(None)

    def close(self) -> None:
        """Accept no more connections, and close the open ones within a second."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.sock)
        if self._pause is not None:
            self._pause.cancel()
        self.sock.close()
        for connection in [*self._strangers]:
            connection.close()
        loop.call_later(1, self._close_all)

    def _close_all(self) -> None:
        for connection in [*self.connections]:
            connection.close()

    async def wait_closed(self) -> None:
        """Wait until no connection is open."""
        while self.connections:
            await asyncio.sleep(0.02)


class WebServer(Server):
    """uvicorn's server with a `Listener`."""

    def __init__(self, config: Config, listener: Listener):
        super().__init__(config)
        self.listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = [self.listener]  # type: ignore[list-item]  # what `shutdown` closes
        self.listener.start(self)
        self.started = True
