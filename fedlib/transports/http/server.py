"""The transport `HTTP`: the server side of a run over HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from uvicorn.config import Config

from fedlib.core.aggregation import AgreedColumns
from fedlib.core.journal import JournalError, Place
from fedlib.core.ledger import Ledger
from fedlib.core.protocol import TooFewClients
from fedlib.transports.http.connections import (
    BACKLOG,
    RESERVE,
    Connection,
    Listener,
    WebServer,
    raise_descriptor_limit,
)
from fedlib.transports.http.limits import Limits
from fedlib.transports.http.service import SessionService
from fedlib.transports.http.sessions import Sessions
from fedlib.transports.http.status import Monitor, Status, networks
from fedlib.transports.http.web import HEADERS, application
from fedlib.transports.http.wire import LONGEST, SHORTEST, Tokens, Welcome, require_tls

MAX_SCHEMA = 48 * 2**10  # characters of a schema that sites can compare with theirs
HEARTBEATS = 4  # heartbeats of a client before it counts as gone
GRACE = 10  # seconds that calls in progress have when the server closes

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class HTTP:
    """A transport to clients that join over HTTP.

    It starts to listen when it is created. Close it, or use it in a ``with`` statement. If an
    exception ends the block, the clients receive "stopped". But if the run has a journal with which
    it can be continued, they keep calling. The web server is an event loop in a thread of its own;
    the run stays in the caller's thread.

    Parameters
    ----------
    tokens : mapping of str to str
        The `digest` of each client's token, by the client's name. Replies are read in the order of
        this mapping.
    bind : str, default="127.0.0.1:8080"
        Host and port to listen on; port 0 takes any free one.
    limits : Limits, optional
        The times, sizes and counts that are allowed.
    cert, key : str, optional
        Files with the server's certificate chain and its private key, for TLS.
    insecure : bool, default=False
        Allow plain HTTP beyond the loopback interface.
    protocol : str, default=""
        The protocol's name, which each client receives when it joins.
    parameters : mapping of str to object, optional
        The protocol's parameters, for the status page.
    status_page : bool, default=True
        Serve the status page at ``/`` to any caller. It contains names and sizes, but no data.
    monitors : collection of str, default=()
        The addresses (``127.0.0.1``) and networks (``10.0.0.0/8``) whose programs may read
        ``/health`` and ``/metrics`` (`fedlib.transports.http.status`); by default none. Calls
        through a proxy have the address of the proxy.
    hosts : collection of str, default=()
        Further names by which browsers and monitoring programs call the server, such as
        ``fedlib.example.org``. Without a token it answers only to them, to the host of ``bind``, to
        localhost and to addresses in numbers.
    run : str, optional
        The identifier of the run, by default random. To continue a run from its journal, pass
        `fedlib.core.journal.run_id` of the journal: the clients continue under this identifier
        only.
    schema : Schema, optional
        The columns on which the study has agreed (`fedlib.Schema`): a site with another one cannot
        join.
    protected : bool, default=False
        Whether the server sees only sums over the clients, or noise, so that the sites apply the
        schema as a protected run does.
    secure : bool, default=False
        Whether the run has secure sums, so that a site without keys does not join.

    Attributes
    ----------
    clients : list of str
        The clients' names.
    errors : dict
        Always empty, because no client runs in this process.
    url : str
        The address that clients join.
    run : str
        The identifier of this run.
    ledger : Ledger or None
        The ledger of the current run, for the status page.
    journaled : bool
        Whether the run has a journal.

    Raises
    ------
    ValueError
        When a parameter is out of range, or plain HTTP would leave this machine.
    OSError
        When the address is in use, or a file cannot be read.

    Examples
    --------
    >>> import threading
    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> from fedlib.transports.http import digest, join, new_token
    >>> tokens = {"north": new_token(), "south": new_token()}
    >>> sites = {"north": [[0.1], [0.2]], "south": [[5.0]]}
    >>> with HTTP({name: digest(t) for name, t in tokens.items()}, "127.0.0.1:0") as transport:
    ...     for name, X in sites.items():
    ...         client = HorizontalDBSCANClient(X)
    ...         threading.Thread(target=join, args=(transport.url, client, tokens[name])).start()
    ...     model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit(transport)
    >>> model.cell_labels_
    array([ 0, -1])
    """

    def __init__(
        self,
        tokens: Mapping[str, str],
        bind: str = "127.0.0.1:8080",
        *,
        limits: Limits | None = None,
        cert: str | None = None,
        key: str | None = None,
        insecure: bool = False,
        protocol: str = "",
        parameters: Mapping[str, Any] | None = None,
        status_page: bool = True,
        monitors: Collection[str] = (),
        hosts: Collection[str] = (),
        run: str | None = None,
        schema: AgreedColumns | None = None,
        protected: bool = False,
        secure: bool = False,
    ):
        limits = limits or Limits()
        if (cert is None) != (key is None):
            raise ValueError("cert and key must be given together, got only one of them")
        known, allowed_monitors = Tokens(tokens), networks(monitors)
        host, port = _split(bind)
        require_tls("bind", host, secure=cert is not None, insecure=insecure)
        self.clients: Sequence[str] = list(tokens)
        self.errors: Mapping[str, BaseException] = {}
        self.run = run or secrets.token_hex(8)
        self.protocol = protocol
        self._schema, self._protected, self._secure = schema, protected, secure
        self.journaled = False
        now = time.monotonic()
        # Deadlines use the monotonic clock, which a correction of the wall clock does not move.
        self._origin = datetime.now() - timedelta(seconds=now)
        self._service = SessionService(Sessions(tokens, limits, now))
        parameters = dict(parameters or {})
        self._monitor = Monitor(self._service, protocol, parameters, self._date, allowed_monitors)
        app = application(
            self._service,
            welcome=self._welcome,
            status=self._monitor.status if status_page else None,
            more=self._monitor.routes(),
            hosts=[host, *hosts],
        )
        context = None
        if cert is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(cert, key)
        needed = len(tokens) + limits.max_strangers + RESERVE
        # From here on callers can connect; they wait in the backlog until the thread serves them.
        sock = _listen(host, port)
        try:
            max_connections = raise_descriptor_limit(needed) - RESERVE
        except ValueError:
            sock.close()
            raise
        listener = Listener(
            sock, context, limits, len(tokens), max_connections, known.client, self._closed
        )
        scheme = "http" if cert is None else "https"
        self.url = f"{scheme}://{bind.rpartition(':')[0]}:{sock.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._server = WebServer(_config(app), listener)
        # A daemon, so that a program that never closes the transport can end.
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Serve in this thread until `close` stops the server."""
        self._loop.set_exception_handler(_log_error)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve())

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # if it is an interruption, the coroutine must not go on alone
            future.cancel()
            raise

    def _do(self, function: Callable[[], Result]) -> Result:
        """Call a function in the event loop, or here if the loop has ended."""

        async def call() -> Result:
            return function()

        return self._submit(call()) if self._thread.is_alive() else function()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close the transport: the outcome is "stopped" after an exception, else "finished".

        If the run has a journal and the exception does not follow from the replies, the run does
        not end (`close` with ``outcome=None``): when it is started again, it continues.
        """
        if kind is not None and self.journaled and not _follows_from_replies(kind):
            self.close(None)
        else:
            self.close("stopped" if kind else "finished")

    @property
    def ledger(self) -> Ledger | None:
        return self._service.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        self._service.ledger = ledger

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each client its request and return the replies.

        The first call waits until all clients have joined, or the join timeout is over. For a
        client that is lost, the reply is an encoded `Failure` with the reason.
        """
        try:
            return self._submit(self._service.exchange(requests))
        except BaseException:  # an interruption
            self._do(self._service.abort)
            raise

    def status(self) -> Status:
        """Return the progress of the run in names, numbers and sizes."""
        return self._do(self._monitor.status)

    # For a journal

    def data_digests(self) -> dict[str, str]:
        """Return nothing: the clients' data are not in this process."""
        return {}

    def states(self, clients: Collection[str]) -> dict[str, bytes]:
        """Return nothing: the clients keep their states."""
        return {}

    def resume(self, place: Place) -> None:
        """Continue the run with requests that follow those answered before."""
        self._do(lambda: self._service.resume(place.numbers))

    def finish(self, outcome: str = "finished") -> None:
        """End the run: from now on, clients that ask for work receive the outcome.

        Only the first outcome counts. The server listens until it is closed.
        """
        self._do(lambda: self._service.end(outcome))

    def close(self, outcome: str | None = "finished") -> None:
        """End the run, wait until all present clients know the outcome, and stop listening.

        With ``outcome=None`` the run does not end: its clients keep calling, and another server
        with the same journal can continue it.
        """
        try:
            if outcome is not None:
                self.finish(outcome)
                if self._thread.is_alive():
                    self._submit(self._service.inform())
        finally:
            self._server.should_exit = True  # the event loop reads it every tenth of a second
            self._thread.join()

    def _welcome(self, name: str) -> Welcome:
        limits = self._service.limits
        # Some heartbeats may be late or lost before the shorter of the two limits is over.
        wanted = min(limits.gone_after, limits.silent_after) / HEARTBEATS
        heartbeat = min(max(wanted, SHORTEST), LONGEST)
        welcome = Welcome(name, self.run, self.protocol, heartbeat, len(self.clients))
        welcome.protected, welcome.secure = self._protected, self._secure
        if self._schema is not None:
            text = self._schema.to_json().decode()
            welcome.digest = self._schema.digest
            welcome.schema = text if len(text) <= MAX_SCHEMA else ""
        return welcome

    def _closed(self, connection: Connection) -> None:
        """Note that a client's connection is closed."""
        if connection.link is not None:
            self._service.disconnect(connection.name, connection.process, connection.link)

    def _date(self, time: float) -> datetime:
        """Return the date of a time of the monotonic clock."""
        return self._origin + timedelta(seconds=time)


def _split(bind: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    with suppress(ValueError):
        parts = urlsplit(f"//{bind}")
        if parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    raise ValueError(f"bind must be host:port with a port in 0..65535, got {bind!r}")


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens and does not block."""
    [(family, _, _, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sock = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock


def _config(app: Any) -> Config:
    """Return the configuration of uvicorn."""
    return Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=HEADERS,
        timeout_graceful_shutdown=GRACE,
    )


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; those of connections are for debugging only."""
    error = context.get("exception")
    level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
    logger.log(level, "%s", context.get("message"), exc_info=error)


def _follows_from_replies(error: type[BaseException]) -> bool:
    """Return whether a run that ended with an error would end with it again when continued.

    `TooFewClients` and the ValueError of a flow follow from the recorded replies. An interruption,
    an error of the journal or of the disk, and an error in the code do not.
    """
    return issubclass(error, ValueError | TooFewClients) and not issubclass(error, JournalError)
