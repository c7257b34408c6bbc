"""The transport `HTTP`: the server side of a run over HTTP."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlsplit

from fedlib.ledger import Ledger
from fedlib.messages import MAX_BYTES
from fedlib.transports.http.limits import Limits
from fedlib.transports.http.sessions import Sessions
from fedlib.transports.http.shared import SharedSessions
from fedlib.transports.http.status import Status, take_status
from fedlib.transports.http.tokens import Tokens
from fedlib.transports.http.web import TLS, WebServer, application
from fedlib.transports.http.wire import Welcome, require_tls

__all__ = ["HTTP"]

HEARTBEATS = 5  # heartbeats of a client within `gone_after`


class HTTP:
    """A transport to clients that join over HTTP.

    It starts to listen when it is created. Close it, or use it in a ``with`` statement.

    Parameters
    ----------
    tokens : mapping of str to str
        The `digest` of each client's token, by the client's name. Replies are read in the order of
        this mapping.
    bind : str, default="127.0.0.1:8080"
        Host and port to listen on; port 0 takes any free one.
    join_timeout : float, default=600
        Seconds to wait for clients to join, above 0. Clients that have not joined by then are lost
        (NeverJoined).
    request_timeout : float, default=3600
        Seconds that a client may take to reply, above 0; then it is lost (TimedOut).
    gone_after : float, default=5
        Seconds without a call, above 0, after which a client counts as gone. Clients send five
        heartbeats in this time.
    rejoin_timeout : float, default=0
        Seconds, at least 0, during which a client that is gone or has left may join again before it
        is lost (Gone, Left).
    max_seconds : float, optional
        The maximum time for joining and the run together, in seconds, above 0. After this time, all
        clients whose replies are missing are lost (TimedOut).
    max_bytes : int, default=2**30
        The maximum size of a reply, in bytes, above 0.
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

    Attributes
    ----------
    clients : list of str
        The clients' names.
    errors : dict
        Always empty, because no client runs in this process.
    url : str
        The address that clients join.
    run : str
        A random identifier of this run.
    ledger : Ledger or None
        The ledger of the current run, for the status page.

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
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient
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
        join_timeout: float = 600,
        request_timeout: float = 3600,
        gone_after: float = 5,
        rejoin_timeout: float = 0,
        max_seconds: float | None = None,
        max_bytes: int = MAX_BYTES,
        cert: str | None = None,
        key: str | None = None,
        insecure: bool = False,
        protocol: str = "",
        parameters: Mapping[str, Any] | None = None,
        status_page: bool = True,
    ):
        limits = Limits(join_timeout, request_timeout, gone_after, rejoin_timeout, max_seconds)
        if not max_bytes > 0:
            raise ValueError(f"max_bytes must be positive, got {max_bytes}")
        if (cert is None) != (key is None):
            raise ValueError("cert and key must be given together, got only one of them")
        known = Tokens(tokens)
        host, port = _split(bind)
        require_tls("bind", host, secure=cert is not None, insecure=insecure)
        self.clients: Sequence[str] = list(tokens)
        self.errors: Mapping[str, BaseException] = {}
        self.run = secrets.token_hex(8)
        self.protocol = protocol
        self.parameters = dict(parameters or {})
        now = time.monotonic()
        self._origin = datetime.now() - timedelta(seconds=now)
        self._shared = SharedSessions(Sessions(tokens, limits, now))
        app = application(
            self._shared,
            known,
            welcome=self._welcome,
            status=self.status if status_page else None,
            max_bytes=max_bytes,
        )
        self._server = WebServer((host, port), app, len(tokens))
        if cert is not None:
            self._server.ssl_adapter = TLS(cert, key)
        self._server.prepare()
        scheme = "http" if cert is None else "https"
        self.url = f"{scheme}://{bind.rpartition(':')[0]}:{self._server.bind_addr[1]}"
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close("stopped" if kind else "finished")

    @property
    def ledger(self) -> Ledger | None:
        return self._shared.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        self._shared.ledger = ledger

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each client its request and return the replies.

        The first call waits until all clients have joined, or the join timeout is over. For a
        client that is lost, the reply is an encoded `Failure` with the reason.
        """
        return self._shared.exchange(requests)

    def status(self) -> Status:
        """Return the progress of the run in names, numbers and sizes."""
        with self._shared.locked() as now:
            return take_status(
                self._shared.sessions, self.ledger, self.protocol, self.parameters, now, self._date
            )

    def finish(self, outcome: str = "finished") -> None:
        """End the run: from now on, clients that ask for work receive the outcome.

        Only the first outcome counts. The server listens until it is closed.
        """
        self._shared.end(outcome)

    def close(self, outcome: str = "finished") -> None:
        """End the run, wait until all present clients know the outcome, and stop listening."""
        try:
            self.finish(outcome)
            self._shared.inform()
        finally:
            self._server.stop()
            self._thread.join()

    def _welcome(self, name: str) -> Welcome:
        heartbeat = self._shared.sessions.limits.gone_after / HEARTBEATS
        return Welcome(name, self.run, self.protocol, heartbeat)

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
