"""HTTP: the server waits, clients call out, so no site has to accept a connection.

The rules:

- A client joins, asks for its next request (the answer is held back until there is one), and posts
  its reply. A heartbeat beside the work tells that it is alive. The server never connects to a
  client, and no address gives away anybody's data.
- Every call carries the client's token, of which the server holds only the digest, and the session
  that the client's process chose when it started. A token serves one living session at a time.
- Requests are numbered. A reply is accepted from the client that was asked, for the request that
  was asked, once; the same reply again is ignored, another one is refused.
- A client writes its state and its reply down before it sends the reply, so that a restarted one
  goes on where it was.
- Plain HTTP is for the loopback interface, unless one insists.
- A page at ``/`` shows how the run goes: names, steps, sizes, what is disclosed; nobody's data.
- A caller that says nothing takes no thread. One that dribbles a call out holds one of them for as
  long as it likes, so on an open network let the sites' addresses in alone.

This is the server's half; `fedlib.transports.http.client` is the sites'.

The idea of server and clients as Flask programs is that of M1 and M2, chapter 4; their clients had
to listen, and any caller could start a run or read a client's data.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.wsgi import Server
from flask import Flask, Response, abort, render_template, request
from werkzeug.exceptions import HTTPException

from fedlib.ledger import SERVER, Entry, Ledger
from fedlib.messages import MAX_BYTES, Failure, MessageError, decode, encode
from fedlib.transports.http.client import (
    HOLD,
    SEQUENCE,
    SESSION,
    JoinError,
    digest,
    join,
    new_token,
    refuse_plain,
)

__all__ = ["HTTP", "JoinError", "Status", "digest", "join", "new_token"]

BEATS = 5  # heartbeats within the time after which a client is gone
SHOWN = 20  # steps of the conversation on the status page
REFRESH = 2  # seconds after which the status page is loaded again
MAX_CALLS = 4  # calls that a client may have under way
PIECE = 2**18  # bytes that are handed to or taken from a connection at a time
BINARY = "application/octet-stream"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

logger = logging.getLogger(__name__)


@dataclass
class _Seat:
    """What the server knows of one client."""

    session: str = ""  # of the process that sits here
    seen: float = 0.0  # when it last gave a sign of life
    calls: int = 0
    sequence: int = 0  # the number of its last request
    asked: bytes | None = None  # that request, until its exchange ends
    reply: bytes | None = None
    accepted: tuple[int, bytes] = (0, b"")  # the last reply's number and digest
    left: str = ""  # why the client is lost
    away: float | None = None  # when it said that it leaves; it may come back
    told: bool = False  # whether this session knows that its stay is over
    since: datetime | None = None  # when it joined, was lost or left, for people


class HTTP:
    """A transport whose clients join over HTTP.

    It listens from the moment it is made; close it, or use it in a ``with`` statement.

    Parameters
    ----------
    tokens : mapping of str to str
        The `digest` of each client's token, by the client's name; their order is the order of the
        replies.
    bind : str, default="127.0.0.1:8080"
        Host and port to listen on; port 0 takes a free one.
    join_timeout : float, default=600
        Seconds to wait for clients to join, above 0. Those that have not joined then are lost
        (NeverJoined).
    request_timeout : float, default=3600
        Seconds that a client may take to answer, above 0; then it is lost (TimedOut).
    gone_after : float, default=5
        Seconds without a sign of life, above 0, after which a client is gone. Clients give five
        signs in this time.
    rejoin_timeout : float, default=0
        Seconds, at least 0, for which a client that is gone may come back before it is lost (Gone).
    max_seconds : float, optional
        Seconds, above 0, that joining and run may last; whoever is asked then is lost (TimedOut).
    max_bytes : int, default=2**30
        Size in bytes, above 0, of the greatest reply accepted.
    cert, key : str, optional
        Files with the server's certificate chain and key, for TLS.
    insecure : bool, default=False
        Allow plain HTTP beyond the loopback interface.
    protocol : str, default=""
        The protocol's name, which a client is told when it joins.
    parameters : mapping of str, optional
        The protocol's parameters, for the status page.
    status_page : bool, default=True
        Show the status page at ``/`` to whoever asks: no data, but names and sizes.

    Attributes
    ----------
    clients : list of str
        The clients' names.
    url : str
        Where clients join.
    ledger : Ledger or None
        The ledger of the run under way, for the status page.

    Raises
    ------
    ValueError
        When a parameter is out of range, or plain HTTP would leave the machine.
    OSError
        When the address is taken, or a file cannot be read.

    Examples
    --------
    >>> import threading
    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient
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
        for name, value in {
            "join_timeout": join_timeout,
            "request_timeout": request_timeout,
            "gone_after": gone_after,
            "max_seconds": 1 if max_seconds is None else max_seconds,
            "max_bytes": max_bytes,
        }.items():
            if not value > 0:
                raise ValueError(f"{name} must be above 0; got {value}")
        if not rejoin_timeout >= 0:
            raise ValueError(f"rejoin_timeout must be at least 0; got {rejoin_timeout}")
        if (cert is None) != (key is None):
            raise ValueError("cert and key must be given together")
        _check_tokens(tokens)
        host, port = _split(bind)
        refuse_plain("bind", host, secure=cert is not None, insecure=insecure)
        self.clients: Sequence[str] = list(tokens)
        self.errors: Mapping[str, BaseException] = {}
        self.ledger: Ledger | None = None
        self.run = secrets.token_hex(8)
        self.protocol = protocol
        self.parameters = dict(parameters or {})
        self.status_page = status_page
        self.outcome = ""  # how the run ended, once it has
        self.join_timeout, self.request_timeout = join_timeout, request_timeout
        self.gone_after, self.rejoin_timeout = gone_after, rejoin_timeout
        self.max_bytes = max_bytes
        self._tokens = dict(tokens)
        self._seats = {name: _Seat() for name in tokens}
        self._changed = threading.Condition()  # all of the seats' state is read and written in it
        self._finished = self._opened = False
        self._end = time.monotonic() + (float("inf") if max_seconds is None else max_seconds)
        self._server = _Server((host, port), _application(self), len(tokens))
        if cert is not None:
            self._server.ssl_adapter = _TLS(cert, key)
        self._server.prepare()
        scheme = "http" if cert is None else "https"
        self.url = f"{scheme}://{bind.rpartition(':')[0]}:{self._server.bind_addr[1]}"
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close("stopped" if kind else "finished")

    def finish(self, outcome: str = "finished") -> None:
        """Tell whoever asks for work from now on that the run is over, and how it ended.

        The first outcome counts. The server listens until it is closed.
        """
        with self._changed:
            if not self._finished:
                self._finished, self.outcome = True, outcome
            self._changed.notify_all()

    def close(self, outcome: str = "finished") -> None:
        """Tell the clients that are there that the run is over, and stop."""
        try:
            self.finish(outcome)
            with self._changed:
                until = time.monotonic() + self.gone_after
                while any(self._alive(s) and not s.told for s in self._seats.values()):
                    if not self._wait(until):
                        break
        finally:
            self._server.stop()
            self._thread.join()

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Ask the clients and wait until each has answered or is lost."""
        with self._changed:
            self._wait_for_clients()
            start = time.monotonic()
            deadline = min(start + self.request_timeout, self._end)
            for name, asked in requests.items():
                seat = self._seats[name]
                seat.sequence, seat.asked = seat.sequence + 1, asked
            self._changed.notify_all()
            seats = [self._seats[name] for name in requests]
            while waiting := [seat for seat in seats if self._works(seat, start, deadline)]:
                self._wait(min(deadline, *(self._gone(seat, start) for seat in waiting)))
            return {name: self._take(name) for name in requests}

    def status(self) -> Status:
        """Return how the run goes, in names, numbers and sizes."""
        entries = list(self.ledger.entries) if self.ledger else []
        lost = dict(self.ledger.lost) if self.ledger else {}
        asked = next((e for e in reversed(entries) if e.sender == SERVER), None)
        with self._changed:
            now = time.monotonic()
            clients = []
            for name, seat in self._seats.items():
                seen = now - seat.seen if seat.session else None
                state, why = self._describe(seat, lost.get(name, ""))
                unknown = state == "lost" and not seat.left and self._sits(seat)
                since = None if unknown else seat.since
                clients.append(ClientStatus(name, state, why, since, seen))
            under_way = [seat for seat in self._seats.values() if seat.asked is not None]
            return Status(
                protocol=self.protocol,
                parameters=self.parameters,
                outcome=self.outcome,
                clients=clients,
                joined=sum(self._sits(seat) for seat in self._seats.values()),
                opened=self._opened,
                step=asked.step if asked else 0,
                request=asked.message if asked else "",
                asked=len(under_way),
                answered=sum(seat.reply is not None for seat in under_way),
                bytes=sum(entry.bytes for entry in entries),
                conversation=_conversation(entries),
            )

    # What follows is called in the condition `_changed`.

    def _describe(self, seat: _Seat, lost: str) -> tuple[str, str]:
        """Return what a client does, in a word, and why it is lost."""
        if lost or seat.left:
            return "lost", lost or seat.left
        if not seat.session:
            return "expected", ""
        if self._finished:
            return "done", ""
        if seat.away is not None:
            return "away", ""
        if seat.asked is not None:
            return ("working" if seat.reply is None else "answered"), ""
        return "waiting", ""

    def _wait(self, until: float) -> bool:
        """Wait for a change, but not past a time; tell whether there is time left."""
        self._changed.wait(min(max(0.0, until - time.monotonic()), HOLD))
        return time.monotonic() < until

    def _wait_for_clients(self) -> None:
        """Wait, once, until all clients have joined."""
        deadline = min(time.monotonic() + self.join_timeout, self._end)
        while not self._opened:
            joined = all(self._sits(seat) for seat in self._seats.values())
            self._opened = joined or self._finished or not self._wait(deadline)

    def _works(self, seat: _Seat, start: float, deadline: float) -> bool:
        """Tell whether to wait on for a client; note why not, if it is lost."""
        if seat.reply is not None or seat.left:
            return False
        now = time.monotonic()
        if not seat.session:
            seat.left = "NeverJoined"
        elif now >= deadline:
            seat.left = "TimedOut"
        elif now >= self._gone(seat, start):
            seat.left = "Gone" if seat.away is None else "Left"
        elif self._finished:
            seat.left = "Closed"
        if seat.left:
            seat.since = datetime.now()
        return not seat.left

    def _gone(self, seat: _Seat, start: float) -> float:
        """Return when a client is lost that gives no sign of life from now on.

        Time before the exchange does not count: the server may have been too busy to listen.
        """
        if seat.away is not None:
            return max(seat.away, start) + self.rejoin_timeout
        return max(seat.seen, start) + self.gone_after + self.rejoin_timeout

    def _take(self, name: str) -> bytes:
        seat = self._seats[name]
        reply, seat.asked, seat.reply = seat.reply, None, None
        return encode(Failure(seat.left)) if reply is None else reply

    def _alive(self, seat: _Seat) -> bool:
        return self._sits(seat) and time.monotonic() - seat.seen < self.gone_after

    def _sits(self, seat: _Seat) -> bool:
        return bool(seat.session) and seat.away is None

    def _over(self, name: str) -> str:
        """Return why a client's stay is over; nothing while it goes on.

        The run, not the transport, finds out that a reply is not what was asked for.
        """
        lost = self.ledger.lost if self.ledger else {}
        return self._seats[name].left or lost.get(name, "") or self.outcome

    def _check(self, name: str, session: str) -> None:
        """Refuse a session that does not sit here, or whose stay is over."""
        seat = self._seats[name]
        if seat.session != session:
            abort(409, "another client has joined with this token, or none yet")
        if why := self._over(name):
            seat.told = True
            self._changed.notify_all()
            abort(410, why)

    # What follows is called by the application, one call a thread.

    @contextmanager
    def _call(self, authorization: str, session: str) -> Iterator[str]:
        """Let in the call of a client, whose name it gives, and count it."""
        name = self._admit(authorization)
        if not 0 < len(session) <= 64:
            abort(400, f"{SESSION} is missing or too long")
        seat = self._seats[name]
        with self._changed:
            if seat.calls >= MAX_CALLS:
                abort(429, "too many calls under way")
            seat.calls += 1
            if seat.session == session:
                seat.seen = time.monotonic()
        try:
            yield name
        finally:
            with self._changed:
                seat.calls -= 1

    def _admit(self, authorization: str) -> str:
        """Return the name of the client whose token this is; every token is compared in full."""
        given = digest(authorization.removeprefix("Bearer "))
        found = ""
        for name, kept in self._tokens.items():
            if hmac.compare_digest(given, kept):
                found = name
        return found or abort(401, "unknown token")

    def _sit(self, name: str, session: str) -> dict[str, str | float]:
        """Give a client its seat, unless another one with its token is there and at work.

        Whoever comes when its stay is over may sit down too, and hears of it when it asks for work:
        so it knows of which run the state is that it has.
        """
        seat = self._seats[name]
        with self._changed:
            if seat.session != session:
                if self._alive(seat) and not self._over(name):
                    abort(409, "a client with this token is here already")
                seat.session, seat.told, seat.away = session, False, None
                if not seat.left:
                    seat.since = datetime.now()
            seat.seen = time.monotonic()
            self._changed.notify_all()
        heartbeat = self.gone_after / BEATS
        return {"client": name, "run": self.run, "protocol": self.protocol, "heartbeat": heartbeat}

    def _stay(self, name: str, session: str) -> None:
        with self._changed:
            self._check(name, session)

    def _leave(self, name: str, session: str) -> None:
        """Note that a client does not wait for more; it may come back if there is time for it."""
        seat = self._seats[name]
        with self._changed:
            self._check(name, session)
            seat.away, seat.since = time.monotonic(), datetime.now()
            self._changed.notify_all()

    def _next(self, name: str, session: str) -> tuple[int, bytes] | None:
        """Return the request that follows, with its number; None if none comes for a while."""
        seat, until = self._seats[name], time.monotonic() + HOLD
        with self._changed:
            while True:
                self._check(name, session)
                if seat.asked is not None and seat.reply is None:
                    return seat.sequence, seat.asked
                if not self._wait(until):
                    return None

    def _accept(self, name: str, session: str, sequence: int, body: bytes) -> None:
        """Take a reply, unless nobody asked for it or another one was given."""
        seat, told = self._seats[name], (sequence, hashlib.sha256(body).digest())
        with self._changed:
            self._check(name, session)
            if seat.accepted == told:
                return
            if seat.asked is None or seat.reply is not None or sequence != seat.sequence:
                abort(409, "nobody asked for this reply, or another one was given")
            seat.reply, seat.accepted = body, told
            self._changed.notify_all()


def _check_tokens(tokens: Mapping[str, str]) -> None:
    """Raise ValueError, which shows none, where the server could not tell clients by them."""
    for name, kept in tokens.items():
        if not re.fullmatch("[0-9a-f]{64}", kept):
            raise ValueError(f"tokens must hold digests of tokens; that of {name!r} is none")
    if len(set(tokens.values())) < len(tokens):
        raise ValueError("tokens must differ from client to client")
    if SERVER in tokens:
        raise ValueError(f"tokens must not name a client {SERVER!r}")


def _split(bind: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    with suppress(ValueError):
        parts = urlsplit(f"//{bind}")
        if parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    raise ValueError(f"bind must be host:port, with a port in 0..65535; got {bind!r}")


@dataclass(frozen=True)
class ClientStatus:
    """How one client fares: what it does, or why and when it was lost, and its last sign of life.

    ``state`` is expected, waiting, working, answered, away, lost or done; ``seen`` is in seconds.
    """

    name: str
    state: str
    why: str
    since: datetime | None
    seen: float | None


@dataclass(frozen=True)
class Said:
    """A step's equal messages in one line: their class, number, bytes and what they disclose."""

    step: int
    to_clients: bool
    message: str
    messages: int
    bytes: int
    discloses: str


@dataclass(frozen=True)
class Status:
    """How a run goes, in names, numbers and sizes: what the status page shows.

    ``outcome`` is empty while it goes on. ``conversation`` holds the last `SHOWN` steps.
    """

    protocol: str
    parameters: Mapping[str, Any]
    outcome: str
    clients: Sequence[ClientStatus]
    joined: int
    opened: bool
    step: int
    request: str
    asked: int
    answered: int
    bytes: int
    conversation: Sequence[Said] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The state of the run in a line."""
        if self.outcome:
            return f"{self.outcome} after {_count(self.step, 'step')}, {size(self.bytes)}"
        if not self.step or not self.opened:
            return f"{self.joined} of {_count(len(self.clients), 'client')} joined"
        how = f"{self.answered} of {self.asked} answered" if self.asked else "the server computes"
        return f"step {self.step}: {self.request}, {how}, {size(self.bytes)}"


def size(n_bytes: int) -> str:
    """Return a number of bytes in the unit that suits it.

    Examples
    --------
    >>> size(999), size(1234567)
    ('999 B', '1.2 MB')
    """
    number, units = float(n_bytes), ["B", "kB", "MB", "GB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.0f} B" if units[0] == "B" else f"{number:.1f} {units[0]}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _conversation(entries: Sequence[Entry]) -> list[Said]:
    """Return the last steps of a ledger, equal messages of a step in one line."""
    last = entries[-1].step if entries else 0
    groups: dict[tuple[int, bool, str, str], list[int]] = {}
    for entry in reversed(entries):
        if entry.step <= last - SHOWN:
            break
        key = entry.step, entry.sender == SERVER, entry.message, entry.discloses
        groups.setdefault(key, []).append(entry.bytes)
    said = [Said(*key[:3], len(sizes), sum(sizes), key[3]) for key, sizes in groups.items()]
    return sorted(said, key=lambda line: (line.step, not line.to_clients))


class _TLS(BuiltinSSLAdapter):
    """TLS that leaves the handshake to the thread that reads, so that no silent caller blocks it.

    The server shakes hands in the one thread that accepts connections and sees to idle ones.
    """

    def wrap(self, sock: Any) -> tuple[Any, dict[str, str]]:
        options: dict[str, Any] = {"server_side": True, "do_handshake_on_connect": False}
        return self.context.wrap_socket(sock, **options), {}


class _Server(Server):
    """The web server: threads enough for all clients and some strangers, small headers, quiet."""

    max_request_header_size = 2**16
    expiration_interval = 0.1  # seconds; it looks this often whether it is to stop

    def __init__(self, address: tuple[str, int], app: Flask, n_clients: int):
        threads = 2 * MAX_CALLS * max(1, n_clients)
        super().__init__(address, app, threads, request_queue_size=threads, shutdown_timeout=1)
        self.keep_alive_conn_limit = threads
        self.server_name = "fedlib"

    def process_conn(self, conn: Any) -> None:
        """Take a thread for a connection when something has come on it, not before."""
        if conn.last_used is None:
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        """Log what goes wrong with a connection, which is no news for standard error."""
        logger.debug("%s", msg, exc_info=traceback)


def _application(transport: HTTP) -> Flask:
    """Return the WSGI application in front of a transport."""
    folder = str(Path(__file__).parent)
    app = Flask("fedlib", static_folder=None, template_folder=folder)
    app.jinja_env.filters["size"] = size
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False

    @contextmanager
    def call() -> Iterator[tuple[str, str]]:
        session = request.headers.get(SESSION, "")
        with transport._call(request.headers.get("Authorization", ""), session) as name:
            yield name, session

    @app.before_request
    def limit() -> None:
        length = request.headers.get("Content-Length", "0")
        if not length.isdecimal():
            abort(400, "Content-Length is no number")
        if int(length) > transport.max_bytes or "Transfer-Encoding" in request.headers:
            abort(413, f"a body must give its length, of {transport.max_bytes} bytes at most")

    @app.after_request
    def secure(response: Response) -> Response:
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.after_request
    def drain(response: Response) -> Response:
        """Read what is left of a refused body, lest the server do it in one piece."""
        with suppress(HTTPException, OSError, ValueError):
            while response.status_code != 413 and request.stream.read(PIECE):
                pass
        return response

    @app.errorhandler(HTTPException)
    def tell(error: HTTPException) -> tuple[dict[str, str | None], int]:
        return {"error": error.description}, error.code or 500

    @app.post("/join")
    def join() -> Any:
        with call() as (name, session):
            return transport._sit(name, session)

    @app.post("/heartbeat")
    def heartbeat() -> Any:
        with call() as (name, session):
            transport._stay(name, session)
            return {}

    @app.post("/leave")
    def leave() -> Any:
        with call() as (name, session):
            transport._leave(name, session)
            return {}

    @app.get("/")
    def status_page() -> Any:
        if not transport.status_page:
            abort(404, "the status page is turned off")
        status, still = transport.status(), "still" in request.args
        page = render_template("status.html", status=status, still=still, now=datetime.now())
        response = Response(page, headers=PAGE_HEADERS)
        if not (status.outcome or still):
            response.headers["Refresh"] = str(REFRESH)
        return response

    @app.get("/request")
    def next_request() -> Any:
        with call() as (name, session):
            found = transport._next(name, session)
        if found is None:
            return Response(status=204)
        sequence, body = found
        headers = {SEQUENCE: str(sequence), "Content-Length": str(len(body))}
        pieces = (body[i : i + PIECE] for i in range(0, len(body), PIECE))
        return Response(pieces, headers=headers, mimetype=BINARY)

    @app.post("/reply")
    def reply() -> Any:
        with call() as (name, session):
            sequence = request.headers.get(SEQUENCE, type=int)
            if sequence is None:
                abort(400, f"{SEQUENCE} is missing or no number")
            transport._stay(name, session)
            try:
                body = request.get_data(cache=False)
                decode(body, max_bytes=transport.max_bytes)
            except (MessageError, OSError):
                abort(400, "the body is no message, or stopped coming")
            transport._accept(name, session, sequence, body)
            return {}

    return app
