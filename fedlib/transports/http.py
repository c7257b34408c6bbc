"""HTTP: the server waits, clients call out, so no site has to accept a connection.

The rules:

- A client joins, asks for its next request (the answer is held back until there is one), and posts
  its reply. A heartbeat beside the work tells that it is alive. The server never connects to a
  client, and no address gives away anybody's data.
- Every call carries the client's token, of which the server holds only the digest, and the session
  it got when it joined. A token serves one living session at a time.
- Requests are numbered. A reply is accepted from the client that was asked, for the request that
  was asked, once; the same reply again is ignored, another one is refused.
- A client writes its state and its reply down before it sends the reply, so that a restarted one
  goes on where it was.
- Plain HTTP is for the loopback interface, unless one insists.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import msgspec
from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.wsgi import Server
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from fedlib.ledger import Ledger
from fedlib.messages import MAX_BYTES, Failure, MessageError, decode, encode
from fedlib.protocol import Client, serve

__all__ = ["HTTP", "JoinError", "digest", "join", "new_token"]

HOLD = 10.0  # seconds for which the server holds an unanswered question for work
MAX_CALLS = 4  # calls that a client may have under way
SEQUENCE, SESSION = "Fedlib-Sequence", "Fedlib-Session"
BINARY = "application/octet-stream"


class JoinError(RuntimeError):
    """The server refuses a client, or cannot be reached; the text says why."""


def new_token() -> str:
    """Return a new secret for one client."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return what the server keeps of a token: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class _Seat:
    """What the server knows of one client."""

    session: str = ""
    seen: float = 0.0
    calls: int = 0
    sequence: int = 0
    asked: bytes | None = None
    reply: bytes | None = None
    accepted: dict[int, bytes] = field(default_factory=dict)
    left: str = ""
    told: bool = False


class HTTP:
    """A transport whose clients join over HTTP.

    Parameters
    ----------
    tokens : mapping of str to str
        The `digest` of each client's token, by the client's name; their order is the order of the
        replies.
    bind : str, default="127.0.0.1:8080"
        Host and port to listen on; port 0 takes a free one.
    join_timeout : float, default=600
        Seconds to wait for clients to join, above 0. Those that have not joined then are lost.
    request_timeout : float, default=3600
        Seconds that a client may take to answer, above 0.
    gone_after : float, default=5
        Seconds without a sign of life after which a client is gone.
    rejoin_timeout : float, default=0
        Seconds for which a client that is gone may come back before it is lost.
    max_seconds : float, optional
        Seconds that the whole run may last.
    max_bytes : int, default=2**30
        Size of the greatest message accepted.
    cert, key : str, optional
        Files with the server's certificate chain and key, for TLS.
    insecure : bool, default=False
        Allow plain HTTP beyond the loopback interface.
    protocol : str, default=""
        The protocol's name, which a client is told when it joins.

    Attributes
    ----------
    url : str
        Where clients join.
    ledger : Ledger or None
        The ledger of the run under way, for the status page.

    Raises
    ------
    ValueError
        When a parameter is out of range, or plain HTTP would leave the machine.

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
            "max_seconds": max_seconds or 1,
            "max_bytes": max_bytes,
        }.items():
            if not value > 0:
                raise ValueError(f"{name} must be above 0; got {value}")
        if len(set(tokens.values())) < len(tokens):
            raise ValueError("tokens must differ from client to client")
        if (cert is None) != (key is None):
            raise ValueError("cert and key must be given together")
        host, _, port = bind.rpartition(":")
        _refuse_plain("bind", host, secure=cert is not None, insecure=insecure)
        self.clients: Sequence[str] = list(tokens)
        self.errors: Mapping[str, BaseException] = {}
        self.run = secrets.token_hex(8)
        self.protocol = protocol
        self.ledger: Ledger | None = None
        self.join_timeout, self.request_timeout = join_timeout, request_timeout
        self.gone_after, self.rejoin_timeout = gone_after, rejoin_timeout
        self.max_bytes = max_bytes
        self._tokens = dict(tokens)
        self._seats = {name: _Seat() for name in tokens}
        self._changed = threading.Condition()
        self._finished = self._opened = False
        self._end = time.monotonic() + max_seconds if max_seconds else float("inf")
        threads = 2 * MAX_CALLS * max(1, len(tokens))
        self._server = Server((host, int(port)), _application(self), numthreads=threads)
        self._server.max_request_body_size = max_bytes + 2**16  # the application tells it better
        if cert is not None:
            self._server.ssl_adapter = BuiltinSSLAdapter(cert, key)
        self._server.prepare()
        scheme = "http" if cert is None else "https"
        self.url = f"{scheme}://{host}:{self._server.bind_addr[1]}"
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Tell the clients that the run is over, and stop."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()
            until = time.monotonic() + self.gone_after
            while any(self._alive(seat) for seat in self._seats.values()):
                if not self._changed.wait(until - time.monotonic()):
                    break
        self._server.stop()

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Ask the clients and wait until each has answered or is lost."""
        with self._changed:
            self._wait_for_clients()
            for name, asked in requests.items():
                seat = self._seats[name]
                seat.sequence, seat.asked, seat.reply = seat.sequence + 1, asked, None
            self._changed.notify_all()
            deadline = min(time.monotonic() + self.request_timeout, self._end)
            while waiting := [name for name in requests if self._still_working(name, deadline)]:
                now = time.monotonic()
                ends = [self._seats[name].seen + self._patience for name in waiting]
                self._changed.wait(max(0.01, min(deadline, *ends) - now))
            return {name: self._take(name) for name in requests}

    @property
    def _patience(self) -> float:
        return self.gone_after + self.rejoin_timeout

    def _alive(self, seat: _Seat) -> bool:
        fresh = time.monotonic() - seat.seen < self.gone_after
        return bool(seat.session) and fresh and not seat.told

    def _wait_for_clients(self) -> None:
        """Wait, once, until all clients have joined."""
        deadline = min(time.monotonic() + self.join_timeout, self._end)
        while not self._opened and not all(seat.session for seat in self._seats.values()):
            if not self._changed.wait(deadline - time.monotonic()):
                break
        self._opened = True

    def _still_working(self, name: str, deadline: float) -> bool:
        """Tell whether to wait on for a client; note why not, if it is lost."""
        seat = self._seats[name]
        if seat.reply is not None or seat.left:
            return False
        now = time.monotonic()
        if not seat.session:
            seat.left = "NeverJoined"
        elif now - seat.seen >= self._patience:
            seat.left = "Gone"
        elif now >= deadline:
            seat.left = "TimedOut"
        return not seat.left

    def _take(self, name: str) -> bytes:
        seat = self._seats[name]
        reply, seat.asked = seat.reply, None
        return reply if reply is not None else encode(Failure(seat.left))

    # What follows is called by the application, one call a thread.

    def _admit(self, authorization: str) -> str:
        """Return the name of the client whose token this is; every token is compared in full."""
        given = digest(authorization.removeprefix("Bearer "))
        found = ""
        for name, kept in self._tokens.items():
            if hmac.compare_digest(given, kept):
                found = name
        return found

    def _sit(self, name: str, session: str) -> dict[str, str] | None:
        """Give a client its session; None while another one with its token is alive."""
        with self._changed:
            seat = self._seats[name]
            if self._alive(seat) and seat.session != session:
                return None
            seat.session, seat.seen = session, time.monotonic()
            self._changed.notify_all()
            return {"client": name, "run": self.run, "protocol": self.protocol}

    @contextmanager
    def _call(self, name: str, session: str) -> Iterator[_Seat | None]:
        """Count a call of a client and note the sign of life; None for a foreign session."""
        seat = self._seats[name]
        with self._changed:
            mine = bool(seat.session) and hmac.compare_digest(seat.session, session)
            if mine:
                seat.seen = time.monotonic()
                self._changed.notify_all()
            seat.calls += 1
        try:
            yield seat if mine else None
        finally:
            with self._changed:
                seat.calls -= 1

    def _next(self, seat: _Seat) -> tuple[int, bytes] | None:
        """Return the request that follows, with its number; None if none comes for a while."""
        until = time.monotonic() + HOLD
        with self._changed:
            while not self._over(seat):
                if seat.asked is not None and seat.reply is None:
                    return seat.sequence, seat.asked
                if not self._changed.wait(until - time.monotonic()):
                    break
        return None

    def _over(self, seat: _Seat) -> bool:
        return self._finished or bool(seat.left)

    def _dismiss(self, seat: _Seat) -> None:
        """Note that a client knows that its stay is over."""
        with self._changed:
            seat.told = True
            self._changed.notify_all()

    def _accept(self, seat: _Seat, sequence: int, body: bytes) -> bool:
        """Take a reply; False if nobody asked for it, or another one was given."""
        told = hashlib.sha256(body).digest()
        with self._changed:
            if sequence in seat.accepted:
                return hmac.compare_digest(seat.accepted[sequence], told)
            if self._over(seat) or seat.asked is None or sequence != seat.sequence:
                return False
            seat.accepted[sequence] = told
            seat.reply = body
            self._changed.notify_all()
            return True


def _refuse_plain(what: str, host: str, *, secure: bool, insecure: bool) -> None:
    """Raise ValueError where plain HTTP would leave the machine unasked."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not (secure or loopback or insecure):
        raise ValueError(
            f"{what} is {host!r}, beyond the loopback interface: use TLS, or say insecure"
        )


def _application(transport: HTTP) -> Flask:
    """Return the WSGI application in front of a transport."""
    app = Flask("fedlib")
    app.config["MAX_CONTENT_LENGTH"] = transport.max_bytes

    @app.errorhandler(HTTPException)
    def tell(error: HTTPException) -> tuple[dict[str, str], int]:
        return {"error": error.name}, error.code or 500

    def refuse(code: int, why: str) -> tuple[dict[str, str], int]:
        return {"error": why}, code

    def answer(handle: Callable[[str, _Seat], Any], *, seated: bool = True) -> Any:
        """Answer a client's call, or say why not."""
        name = transport._admit(request.headers.get("Authorization", ""))
        if not name:
            return refuse(401, "unknown token")
        with transport._call(name, request.headers.get(SESSION, "")) as seat:
            if seated and seat is None:
                return refuse(409, "another client has joined with this token, or none yet")
            if transport._seats[name].calls > MAX_CALLS:
                return refuse(429, "too many calls under way")
            if seat is not None and transport._over(seat):
                transport._dismiss(seat)
                return refuse(410, seat.left or "finished")
            return handle(name, seat or transport._seats[name])

    @app.post("/join")
    def join() -> Any:
        def sit(name: str, seat: _Seat) -> Any:
            given = transport._sit(name, request.headers.get(SESSION, ""))
            return given or refuse(409, "a client with this token is here already")

        return answer(sit, seated=False)

    @app.post("/heartbeat")
    def heartbeat() -> Any:
        return answer(lambda name, seat: {})

    @app.get("/request")
    def next_request() -> Any:
        def wait(name: str, seat: _Seat) -> Any:
            found = transport._next(seat)
            if found is None:
                return Response(status=204)
            return Response(found[1], headers={SEQUENCE: str(found[0])}, mimetype=BINARY)

        return answer(wait)

    @app.post("/reply")
    def reply() -> Any:
        def take(name: str, seat: _Seat) -> Any:
            sequence, body = request.headers.get(SEQUENCE, ""), request.get_data()
            try:
                decode(body, max_bytes=transport.max_bytes)
            except MessageError:
                return refuse(400, "the body is no message")
            if not sequence.isdecimal():
                return refuse(400, f"{SEQUENCE} is missing or no number")
            if not transport._accept(seat, int(sequence), body):
                return refuse(409, "nobody asked for this reply, or another one was given")
            return {}

        return answer(take)

    return app


class _Memory(msgspec.Struct):
    """What a restarted client needs: its last reply, to which request, and its state after it."""

    run: str = ""
    sequence: int = 0
    reply: bytes = b""
    state: bytes = b""

    def save(self, folder: Path | None) -> None:
        """Write it so that a crash leaves either the old or the new one."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "client.part"
        with part.open("wb") as file:
            file.write(msgspec.msgpack.encode(self))
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / "client.state")

    @classmethod
    def load(cls, folder: Path | None, run: str) -> _Memory:
        """Read it, if it belongs to this run."""
        path = folder / "client.state" if folder else None
        if path and path.exists():
            memory = msgspec.msgpack.decode(path.read_bytes(), type=cls)
            if memory.run == run:
                return memory
        return cls(run)


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
    """Take part in a run as one client, until it is over; return how it ended.

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
        last one was.
    ca : str, optional
        A file with the certificate authority that vouches for the server, if not a public one.
    insecure : bool, default=False
        Allow plain HTTP beyond the loopback interface.
    patience : float, default=30
        Seconds for which to try again when the server does not answer or the seat is still taken.

    Raises
    ------
    JoinError
        When the server refuses this client, or does not answer.
    ValueError
        When plain HTTP would leave the machine.
    """
    parts = urlsplit(url)
    _refuse_plain("url", parts.hostname or "", secure=parts.scheme == "https", insecure=insecure)
    headers = {"Authorization": f"Bearer {token}", SESSION: secrets.token_hex(16)}
    verify: Any = ssl.create_default_context(cafile=ca) if ca else True
    with httpx.Client(
        base_url=url, headers=headers, verify=verify, timeout=2 * HOLD, trust_env=False
    ) as link:
        return _Stay(link, client, Path(state_dir) if state_dir else None, patience).run()


class _Stay:
    """A client's stay in a run."""

    def __init__(
        self,
        link: httpx.Client,
        client: Client | Callable[[str], Client],
        folder: Path | None,
        patience: float,
    ):
        self.link, self.folder, self.patience = link, folder, patience
        self.make = client if callable(client) else lambda protocol: client
        self.over = threading.Event()
        self.ended = ""

    def run(self) -> str:
        joined = self.call("POST", "/join", retry={409}).json()
        if self.over.is_set():
            return self.ended
        self.client = self.make(joined["protocol"])
        memory = _Memory.load(self.folder, joined["run"])
        if memory.state:
            self.client.state = decode(memory.state)
        beat = threading.Thread(target=self.beat, name="heartbeat", daemon=True)
        beat.start()
        try:
            while not self.over.is_set():
                asked = self.call("GET", "/request")
                if asked.status_code == 200:
                    memory = self.answer(asked, memory)
        finally:
            self.over.set()
            beat.join()
        return self.ended

    def answer(self, asked: httpx.Response, memory: _Memory) -> _Memory:
        """Answer a request, or send the answer again that was given to it before."""
        sequence = int(asked.headers[SEQUENCE])
        if sequence != memory.sequence:
            reply = serve(self.client, asked.content)
            state = encode(self.client.state) if self.client.state is not None else b""
            memory = _Memory(memory.run, sequence, reply, state)
            memory.save(self.folder)
        self.call("POST", "/reply", content=memory.reply, headers={SEQUENCE: str(sequence)})
        return memory

    def beat(self) -> None:
        """Give a sign of life every second until the stay is over."""
        while not self.over.wait(1.0):
            try:
                self.call("POST", "/heartbeat")
            except JoinError as error:
                self.ended = str(error)
                self.over.set()

    def call(
        self, method: str, path: str, retry: Collection[int] = (), **content: Any
    ) -> httpx.Response:
        """Call the server, again and again while it does not answer; note when the run is over."""
        until = time.monotonic() + self.patience
        while True:
            try:
                response = self.link.request(method, path, **content)
                why = response.json()["error"] if response.is_error else ""
            except (httpx.TransportError, ValueError, KeyError) as error:
                response, why = None, f"no answer: {type(error).__name__}"
            if response is not None and response.status_code == 410:
                self.ended = why
                self.over.set()
                return response
            if response is not None and not response.is_error:
                return response
            retryable = response is None or response.status_code in {429, 503, *retry}
            if not retryable or time.monotonic() >= until or self.over.is_set():
                raise JoinError(f"{path}: {why}")
            time.sleep(0.2)
