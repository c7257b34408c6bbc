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

The idea of server and clients as Flask programs is that of M1 and M2, chapter 4; their clients had
to listen, and any caller could start a run or read a client's data.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import httpx
import msgspec
from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.wsgi import Server
from flask import Flask, Response, abort, request
from werkzeug.exceptions import HTTPException

from fedlib.ledger import SERVER, Ledger
from fedlib.messages import MAX_BYTES, Failure, MessageError, decode, encode
from fedlib.protocol import Client, serve

__all__ = ["HTTP", "JoinError", "digest", "join", "new_token"]

HOLD = 10.0  # seconds for which the server holds an unanswered question for work
RETRY = 0.2  # seconds after which a client calls again
BEATS = 5  # heartbeats within the time after which a client is gone
MAX_CALLS = 4  # calls that a client may have under way
PIECE = 2**18  # bytes that are handed to or taken from a connection at a time
SEQUENCE, SESSION = "Fedlib-Sequence", "Fedlib-Session"
BINARY = "application/octet-stream"

logger = logging.getLogger(__name__)


class JoinError(RuntimeError):
    """The server refuses a client, or cannot be reached; the text says why."""


def new_token() -> str:
    """Return a new secret for one client.

    Examples
    --------
    >>> len(new_token())
    43
    """
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return what the server keeps of a token: its SHA-256 in hexadecimal digits.

    Examples
    --------
    >>> digest("secret")[:16]
    '2bb80d537b1da3e3'
    """
    return hashlib.sha256(token.encode()).hexdigest()


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
    told: bool = False  # whether this session knows that its stay is over


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
        _refuse_plain("bind", host, secure=cert is not None, insecure=insecure)
        self.clients: Sequence[str] = list(tokens)
        self.errors: Mapping[str, BaseException] = {}
        self.ledger: Ledger | None = None
        self.run = secrets.token_hex(8)
        self.protocol = protocol
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Tell the clients that are there that the run is over, and stop."""
        try:
            with self._changed:
                self._finished = True
                self._changed.notify_all()
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

    # What follows is called in the condition `_changed`.

    def _wait(self, until: float) -> bool:
        """Wait for a change, but not past a time; tell whether there is time left."""
        self._changed.wait(min(max(0.0, until - time.monotonic()), HOLD))
        return time.monotonic() < until

    def _wait_for_clients(self) -> None:
        """Wait, once, until all clients have joined."""
        deadline = min(time.monotonic() + self.join_timeout, self._end)
        while not self._opened:
            joined = all(seat.session for seat in self._seats.values())
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
            seat.left = "Gone"
        elif self._finished:
            seat.left = "Closed"
        return not seat.left

    def _gone(self, seat: _Seat, start: float) -> float:
        """Return when a client is lost that gives no sign of life from now on.

        Time before the exchange does not count: the server may have been too busy to listen.
        """
        return max(seat.seen, start) + self.gone_after + self.rejoin_timeout

    def _take(self, name: str) -> bytes:
        seat = self._seats[name]
        reply, seat.asked, seat.reply = seat.reply, None, None
        return encode(Failure(seat.left)) if reply is None else reply

    def _alive(self, seat: _Seat) -> bool:
        return bool(seat.session) and time.monotonic() - seat.seen < self.gone_after

    def _over(self, seat: _Seat) -> bool:
        return self._finished or bool(seat.left)

    def _check(self, seat: _Seat, session: str) -> None:
        """Refuse a session that does not sit here, or whose stay is over."""
        if seat.session != session:
            abort(409, "another client has joined with this token, or none yet")
        if self._over(seat):
            seat.told = True
            self._changed.notify_all()
            abort(410, seat.left or "finished")

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
                if self._alive(seat) and not self._over(seat):
                    abort(409, "a client with this token is here already")
                seat.session, seat.told = session, False
            seat.seen = time.monotonic()
            self._changed.notify_all()
        heartbeat = self.gone_after / BEATS
        return {"client": name, "run": self.run, "protocol": self.protocol, "heartbeat": heartbeat}

    def _stay(self, name: str, session: str) -> None:
        with self._changed:
            self._check(self._seats[name], session)

    def _next(self, name: str, session: str) -> tuple[int, bytes] | None:
        """Return the request that follows, with its number; None if none comes for a while."""
        seat, until = self._seats[name], time.monotonic() + HOLD
        with self._changed:
            while True:
                self._check(seat, session)
                if seat.asked is not None and seat.reply is None:
                    return seat.sequence, seat.asked
                if not self._wait(until):
                    return None

    def _accept(self, name: str, session: str, sequence: int, body: bytes) -> None:
        """Take a reply, unless nobody asked for it or another one was given."""
        seat, told = self._seats[name], (sequence, hashlib.sha256(body).digest())
        with self._changed:
            self._check(seat, session)
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


def _refuse_plain(what: str, host: str, *, secure: bool, insecure: bool) -> None:
    """Raise ValueError where plain HTTP would leave the machine unasked."""
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not (secure or loopback or insecure):
        raise ValueError(
            f"{what} is {host!r}, beyond the loopback interface: use TLS, or say insecure"
        )


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

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        """Log what goes wrong with a connection, which is no news for standard error."""
        logger.debug("%s", msg, exc_info=traceback)


def _application(transport: HTTP) -> Flask:
    """Return the WSGI application in front of a transport."""
    app = Flask("fedlib", static_folder=None)
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


class _Welcome(msgspec.Struct):
    """What a client is told when it joins."""

    client: str
    run: str
    protocol: str
    heartbeat: Annotated[float, msgspec.Meta(gt=0)]


class _Memory(msgspec.Struct):
    """What a restarted client needs: its last reply, to which request, and its state after it."""

    run: str
    client: str
    sequence: int = 0
    reply: bytes = b""
    state: bytes = b""

    def save(self, folder: Path) -> None:
        """Write it so that a crash leaves either the old or the new one."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "client.part"
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)  # the state holds what the site may keep to itself
        with part.open("wb") as file:
            file.write(msgspec.msgpack.encode(self))
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / "client.state")

    @classmethod
    def load(cls, folder: Path | None, run: str, client: str) -> _Memory:
        """Read it, if there is one and it is this client's in this run."""
        path = folder / "client.state" if folder else None
        if path and path.exists():
            try:
                memory = msgspec.msgpack.decode(path.read_bytes(), type=cls)
            except msgspec.DecodeError as error:
                raise ValueError(f"state_dir holds a damaged file: {path}") from error
            if (memory.run, memory.client) == (run, client):
                return memory
        return cls(run, client)


def join(
    url: str,
    client: Client | Callable[[str], Client],
    token: str,
    *,
    state_dir: str | Path | None = None,
    ca: str | None = None,
    insecure: bool = False,
    patience: float = 30,
) -> str:
    """Take part in a run as one client, until it is over.

    Parameters
    ----------
    url : str
        Where the server is.
    client : Client, or function of str
        The protocol's client with this site's data, or what makes it from the protocol's name.
    token : str
        This client's secret.
    state_dir : path, optional
        A folder for the client's state. A process that is started again with it goes on where the
        last one was, without it from no state.
    ca : str, optional
        A file with the certificate authority that vouches for the server, if not a public one.
    insecure : bool, default=False
        Allow plain HTTP beyond the loopback interface.
    patience : float, default=30
        Seconds, at least 0, for which to call again while the server does not answer or another
        client, maybe this one's last process, has the seat.

    Returns
    -------
    str
        ``"finished"``, or why the server went on without this client: ``"TimedOut"``, ``"Gone"``,
        ``"NeverJoined"`` or ``"Closed"``.

    Raises
    ------
    JoinError
        When the server refuses this client, cannot be trusted, or does not answer.
    ValueError
        When a parameter is out of range, plain HTTP would leave the machine, or the state cannot be
        read.
    OSError
        When the state cannot be written, or a file cannot be read.

    Examples
    --------
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient
    >>> client = HorizontalDBSCANClient([[0.1], [0.2]])
    >>> join("http://example.org", client, new_token())
    Traceback (most recent call last):
    ...
    ValueError: url is 'example.org', beyond the loopback interface: use TLS, or say insecure
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"url must begin with http:// or https:// and a host; got {url!r}")
    _refuse_plain("url", parts.hostname, secure=parts.scheme == "https", insecure=insecure)
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError("token must consist of visible ASCII characters")
    if not patience >= 0:
        raise ValueError(f"patience must be at least 0; got {patience}")
    headers = {"Authorization": f"Bearer {token}", SESSION: secrets.token_hex(16)}
    verify = ssl.create_default_context(cafile=ca)
    with httpx.Client(
        base_url=url, headers=headers, verify=verify, timeout=2 * HOLD, trust_env=False
    ) as link:
        return _Stay(link, client, Path(state_dir) if state_dir else None, patience).run()


class _Over(Exception):
    """The server said that the stay is over, and why."""


class _Stay:
    """A client's stay in a run."""

    def __init__(
        self,
        link: httpx.Client,
        client: Client | Callable[[str], Client],
        folder: Path | None,
        patience: float,
    ):
        self.link, self.client, self.folder, self.patience = link, client, folder, patience
        self.ended = ""  # what the server said, by then, on a heartbeat

    def run(self) -> str:
        try:
            joined = self.call("POST", "/join", retry={409})
            try:
                welcome = msgspec.json.decode(joined.content, type=_Welcome)
            except msgspec.DecodeError as error:
                raise JoinError(f"{self.link.base_url} is no server of this package") from error
            client = (
                self.client if isinstance(self.client, Client) else self.client(welcome.protocol)
            )
            memory = _Memory.load(self.folder, welcome.run, welcome.client)
            if memory.state:
                client.state = decode(memory.state)
            with self.heartbeats(welcome.heartbeat):
                while True:
                    asked = self.call("GET", "/request")
                    if asked.status_code == 200:
                        memory = self.answer(client, asked, memory)
        except _Over as over:
            return str(over)

    def answer(self, client: Client, asked: httpx.Response, memory: _Memory) -> _Memory:
        """Answer a request, or send the answer again that was given to it before."""
        sequence = int(asked.headers[SEQUENCE])
        if sequence != memory.sequence:
            reply = serve(client, asked.content)
            state = b"" if client.state is None else encode(client.state)
            memory = _Memory(memory.run, memory.client, sequence, reply, state)
            if self.folder:
                memory.save(self.folder)
        self.call("POST", "/reply", content=memory.reply, headers={SEQUENCE: str(sequence)})
        return memory

    @contextmanager
    def heartbeats(self, interval: float) -> Iterator[None]:
        """Give signs of life, every so many seconds, beside what is done meanwhile."""
        done = threading.Event()

        def beat() -> None:
            while not self.ended and not done.wait(interval):
                with suppress(httpx.TransportError):  # the work's own calls have the patience
                    told = self.link.post("/heartbeat", timeout=2 * interval)
                    if told.status_code == 410:
                        self.ended = _reason(told)

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def call(
        self, method: str, path: str, retry: Collection[int] = (), **content: Any
    ) -> httpx.Response:
        """Call the server, and again while it does not answer or says so; `_Over` when it is."""
        until = float("inf")
        while not self.ended:
            try:
                response = self.link.request(method, path, **content)
            except httpx.TransportError as error:
                why = f"no answer ({type(error).__name__}: {error})"
                again = "CERTIFICATE_VERIFY_FAILED" not in why
            else:
                if response.is_success:
                    return response
                why, code = _reason(response), response.status_code
                if code == 410:
                    raise _Over(why)
                again = code in {429, *retry} or code >= 500
            until = min(until, time.monotonic() + self.patience)
            if not again or time.monotonic() >= until:
                raise JoinError(f"{str(self.link.base_url).rstrip('/')}{path}: {why}")
            time.sleep(RETRY)
        raise _Over(self.ended)


def _reason(response: httpx.Response) -> str:
    """Return why the server refused a call."""
    with suppress(ValueError, LookupError, TypeError):
        return str(response.json()["error"])
    return f"status {response.status_code}"
