"""The client side: `join` calls the server and answers its requests until the run is over."""

from __future__ import annotations

import random
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from fedlib import __version__
from fedlib.core.client import Client
from fedlib.core.messages import MAX_BYTES, encode
from fedlib.core.protocol import logger, serve
from fedlib.core.wording import printable
from fedlib.transports.http.checkpoint import Checkpoint, reserved
from fedlib.transports.http.wire import (
    HOLD,
    NEXT,
    NUMBER,
    PROCESS,
    REASON,
    SCHEMA,
    VERSION,
    CannotJoin,
    Welcome,
    require_tls,
)

RETRY, MAX_RETRY = 0.2, 2.0  # seconds between two attempts of a call, at first and at most
_random = random.Random()  # the global generator belongs to the user
GIVE_UP = 1.0  # seconds to wait at the end for the answer to a heartbeat
FINISHED = "finished"
CONNECT = 10.0  # seconds within which a connection must be open
MAX_TEXT = 2**16  # bytes of an answer in JSON
WITH_REQUEST = ("/request", "/reply")  # the ends of paths whose answers may contain a request


class JoinError(RuntimeError):
    """The server refuses this client or cannot be trusted; the text gives the reason."""


class Unreachable(JoinError):
    """The server does not answer."""


class SessionLost(JoinError):
    """The server does not know this process, or not any longer: it must join again."""


class RunEnded(Exception):
    """The run is over for this client; the text gives the reason."""


def join(
    url: str,
    client: Client | Callable[[str], Client],
    token: str,
    *,
    state_dir: str | Path | None = None,
    ca: str | None = None,
    insecure: bool = False,
    patience: float = 30,
    proxy: str | None = None,
    schema: str = "",
    accept: Callable[[Welcome], None] | None = None,
) -> str:
    """Take part in a run as one client, until it is over.

    Parameters
    ----------
    url : str
        The server's address.
    client : Client, or callable
        The protocol's client with this site's data, or a function that takes the name of the
        protocol and returns the client.
    token : str
        This client's secret.
    state_dir : path, optional
        A folder for the client's checkpoint. A process that is started again with the same folder
        continues where the last one stopped; without it, it starts without a state.
    ca : str, optional
        A file with the certificate of the authority that signed the server's certificate; by
        default, the public authorities are trusted.
    insecure : bool, default=False
        Allow plain HTTP beyond the loopback interface.
    patience : float, default=30
        Seconds, at least 0, during which a call is repeated while the server does not answer, for
        example because it is started again with its journal, or while another process with this
        token is present, such as the previous process of this client. The pauses between the
        attempts grow to two seconds and are random, so that many clients do not call at the same
        time.
    proxy : str, optional
        The address of the proxy through which this site reaches the server, ``http://host:port``.
        Without it, calls are direct. Environment variables are ignored.
    schema : str
        The digest of the schema of this site, or empty. The server refuses another one.
    accept : callable, optional
        Called with the server's `Welcome` before this client joins, while it can still refuse with
        a ValueError: nothing has been sent then but the token and the digest. The server learns the
        reason of `CannotJoin`, and of another ValueError that it is a refusal.

    Returns
    -------
    str
        ``"finished"``; ``"stopped"`` if the server ended the run early; or the reason why the run
        continued without this client: ``"TimedOut"``, ``"Gone"``, ``"Left"``, ``"NeverJoined"``,
        ``"Closed"``, the type of the error with which this client replied, or why its reply was
        rejected, with the request and the step. If the result does not fit some rows of this site,
        the client's ``problems`` say so; the server does not learn it.

    Raises
    ------
    JoinError
        When the server refuses this client or cannot be trusted; `Unreachable` when it does not
        answer.
    ValueError
        When a parameter is out of range, plain HTTP would leave this machine, or the checkpoint
        cannot be read or belongs to another client, or another process uses its folder.
    OSError
        When the checkpoint cannot be written, or a file cannot be read.

    Examples
    --------
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> from fedlib.transports.http import new_token
    >>> client = HorizontalDBSCANClient([[0.1], [0.2]])
    >>> join("http://127.0.0.1:1", client, new_token(), patience=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedlib.transports.http.client.Unreachable: http://127.0.0.1:1/join: no answer (ConnectError: ...
    """
    if not patience >= 0:
        raise ValueError(f"patience must be at least 0, got {patience}")
    folder = Path(state_dir) if state_dir else None
    with connect(url, token, ca=ca, insecure=insecure, proxy=proxy) as link, reserved(folder):
        link.headers[SCHEMA] = schema
        return ClientLoop(link, client, folder, patience, accept).run()


def connect(
    url: str, token: str, *, ca: str | None, insecure: bool, proxy: str | None
) -> httpx.Client:
    """Return the link for the calls of one client's process; for the parameters see `join`.

    Raises
    ------
    ValueError
        When a parameter is out of range, or plain HTTP would leave this machine.
    OSError
        When the file of the authority cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"url must begin with http:// or https:// and a host, got {url!r}")
    require_tls("url", parts.hostname, secure=parts.scheme == "https", insecure=insecure)
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError("token must consist of one or more visible ASCII characters")
    headers = {"Authorization": f"Bearer {token}", PROCESS: secrets.token_hex(16)}
    headers |= {VERSION: __version__, "Accept-Encoding": "identity"}
    try:
        verify = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ValueError(
            f"ca must be a file with a certificate in PEM, got {ca}: {error}"
        ) from error
    timeout = httpx.Timeout(2 * HOLD, connect=CONNECT)
    try:
        transport = LimitedTransport(verify=verify, proxy=_proxy(proxy), trust_env=False)
        return httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)
    except httpx.InvalidURL as error:
        raise ValueError(
            f"url and proxy must be valid, got {url!r} and {proxy!r}: {error}"
        ) from error


class Pauses:
    """The pauses between calls that lead to nothing new: they grow, and are random."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with a short pause again, after something new."""
        self.longest, self.since = RETRY, time.monotonic()

    def take(self) -> None:
        """Wait for the part of a pause that has not passed since the last one.

        A right server holds a call for longer than any pause, so that nothing is left of it.
        """
        passed = time.monotonic() - self.since
        time.sleep(max(0.0, self.longest * _random.uniform(0.5, 1) - passed))
        self.longest = RETRY if passed >= MAX_RETRY else min(2 * self.longest, MAX_RETRY)
        self.since = time.monotonic()


class TooLarge(JoinError):
    """An answer is larger than a site reads, or compressed."""


class LimitedTransport(httpx.HTTPTransport):
    """Refuses compressed answers, and stops reading an answer at a limit.

    A compressed answer could grow to a thousand times its size before anybody looks at it.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the answer, whose body is not read yet.

        Raises
        ------
        TooLarge
            When the answer has an encoding.
        """
        response = super().handle_request(request)
        # httpx reads it also where it follows no redirect, and fails with one that is no address.
        response.headers.pop("Location", None)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            response.close()
            raise TooLarge(
                f"{request.url}: the answer must not be encoded, it is {encoding[:20]!r}"
            )
        assert isinstance(response.stream, httpx.SyncByteStream)
        limit = MAX_BYTES if request.url.path.endswith(WITH_REQUEST) else MAX_TEXT
        response.stream = LimitedStream(response.stream, str(request.url), limit)
        return response


class LimitedStream(httpx.SyncByteStream):
    """The body of an answer, up to a count of bytes."""

    def __init__(self, stream: httpx.SyncByteStream, url: str, limit: int):
        self.stream, self.url, self.limit = stream, url, limit

    def __iter__(self) -> Iterator[bytes]:
        n_read = 0
        for block in self.stream:
            n_read += len(block)
            if n_read > self.limit:
                raise TooLarge(f"{self.url}: the answer is larger than {self.limit} bytes")
            yield block

    def close(self) -> None:
        """Close the connection."""
        self.stream.close()


def _proxy(address: str | None) -> httpx.Proxy | None:
    """Return the proxy with an address."""
    if address is None:
        return None
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"proxy must begin with http:// or https:// and a host, got {address!r}")
    return httpx.Proxy(address)


class ClientLoop:
    """The calls of one client's process, from joining to the end of the run.

    Parameters
    ----------
    link : httpx.Client
        Carries the calls, with the headers that identify this client.
    client, folder, patience
        As for `join`.
    """

    def __init__(
        self,
        link: httpx.Client,
        client: Client | Callable[[str], Client],
        folder: Path | None,
        patience: float,
        accept: Callable[[Welcome], None] | None = None,
    ):
        self.accept = accept
        self.link, self.client, self.folder, self.patience = link, client, folder, patience
        self.checkpoint = Checkpoint("", "")
        self.ended = ""  # the reason for the end, if a heartbeat received it first
        self.working = threading.Event()  # only then are heartbeats needed

    def run(self) -> str:
        """Take part until the run is over; return the reason for its end.

        A process that is started again after its run has finished calls the server only once: the
        server may be gone, and the result is in the checkpoint.
        """
        kept = Checkpoint.read(self.folder) if self.folder else None
        if kept is not None and kept.finished:
            self.patience = 0
        try:
            if self.accept is not None:
                self.check(self.accept)
            welcome = self.join()
            with self.heartbeats(welcome.heartbeat):
                self.work(welcome)
        except RunEnded as ended:
            self.note_end(str(ended))
            return str(ended)
        raise AssertionError("work ends with an exception")

    def note_end(self, reason: str) -> None:
        """Note in the checkpoint that the run has finished."""
        if self.folder and reason == FINISHED and (kept := Checkpoint.read(self.folder)):
            kept.finished = True
            kept.save(self.folder)

    def check(self, accept: Callable[[Welcome], None]) -> None:
        """Ask for the `Welcome` without joining; if it is refused, tell the server that it is."""
        welcome = self.welcome("GET", "/check")
        try:
            accept(welcome)
        except ValueError as error:
            self.leave(error.reason if isinstance(error, CannotJoin) else "Refused")
            raise

    def join(self) -> Welcome:
        """Join the run; wait while another process of this client is present."""
        return self.welcome("POST", "/join", retry={409})

    def welcome(self, method: str, path: str, **options: Any) -> Welcome:
        """Return the answer to a join or a check."""
        response = self.call(method, path, **options)
        try:
            return Welcome.read(response.content)
        except ValueError as error:
            raise JoinError(f"{self.link.base_url} is not a server of fedlib: {error}") from error

    def work(self, welcome: Welcome) -> None:
        """Answer one request after the other, until `RunEnded` is raised."""
        self.working.set()  # creating the client may import large packages
        make = self.client
        client = make if isinstance(make, Client) else make(welcome.protocol)
        client.enter(welcome.client, welcome.n_clients or None, welcome.run)
        self.checkpoint = Checkpoint.load(self.folder, welcome.run, welcome.client)
        self.checkpoint.restore(client, self.folder)
        client.problems = self.checkpoint.problems
        response, pauses = None, Pauses()
        while True:
            try:
                if response is None:
                    self.working.clear()
                    response = self.call("GET", "/request")
                self.working.set()
                number, request, response = self.number_of(response), response.content, None
                if number in (None, self.checkpoint.number):
                    pauses.take()
                else:
                    pauses.restart()
                if number is not None:
                    response = self.answer(client, number, request)
            except SessionLost:
                pauses.take()
                self.join_again()

    def number_of(self, response: httpx.Response) -> int | None:
        """Return the number of the request in an answer; None if there is none."""
        number = response.headers.get(NUMBER)
        if number is not None and not re.fullmatch(r"[0-9]{1,18}", number):
            raise JoinError(
                f"{self.link.base_url} is not a server of fedlib: {NUMBER} must be an integer with"
                f" at most 18 digits, got {printable(number, 60)!r}"
            )
        return None if number is None else int(number)

    def join_again(self) -> None:
        """Join the run again after the server was started again; it repeats open requests.

        Raises
        ------
        JoinError
            When the server does not continue the run.
        """
        if self.join().run != self.checkpoint.run:
            self.leave()
            raise JoinError(
                f"{self.link.base_url} was started again and serves another run; this client has"
                " to be started again too"
            )

    def leave(self, reason: str = "") -> None:
        """Notify the server, if it can be reached, that this process stops or never joins."""
        with suppress(httpx.TransportError, TooLarge):
            self.link.post("/leave", timeout=1, headers={REASON: reason} if reason else None)

    def answer(self, client: Client, number: int, request: bytes) -> httpx.Response:
        """Reply to a request; return the server's answer, which may be the next request.

        If the checkpoint has the reply, the request is not handled again.
        """
        errors: list[Exception] = []
        if number != self.checkpoint.number:
            reply = serve(client, request, errors.append)
            state = b"" if client.state is None else encode(client.state)
            last = self.checkpoint
            self.checkpoint = Checkpoint(
                last.run, last.client, number, reply, state, problems=client.problems
            )
            if self.folder:
                self.checkpoint.save(self.folder)
        for error in errors:
            logger.error("%s: %s", type(error).__name__, error, exc_info=error)
        headers = {NUMBER: str(number)} | ({} if errors else {NEXT: "1"})
        response = self.call(
            "POST",
            "/reply",
            content=self.checkpoint.reply,
            headers=headers,
            extensions={"trace": self.note_sent},
        )
        for error in errors:
            self.leave()  # a client that has failed receives no further requests
            raise RunEnded(type(error).__name__)
        return response

    def note_sent(self, event: str, info: Any) -> None:
        """Note that a reply is sent: while this client waits for what is next, it does not work."""
        if event == "http11.send_request_body.complete":
            self.working.clear()

    @contextmanager
    def heartbeats(self, interval: float) -> Iterator[None]:
        """Send heartbeats during the block, while this client works; leave if it fails.

        The server holds a heartbeat, so the next one follows ``interval`` seconds after its answer.
        The first one follows ``interval`` seconds after the work has begun: short work needs none.
        """
        done = threading.Event()

        def beat() -> None:
            while self.working.wait() and not (done.wait(interval) or self.ended):
                if self.working.is_set():
                    # `call` decides when to give up
                    with suppress(httpx.TransportError, TooLarge):
                        response = self.link.post("/heartbeat")
                        if response.status_code == 410:
                            self.ended = reason_of(response)

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        except RunEnded:
            raise
        except BaseException:
            self.leave()  # the server then answers the heartbeat that it holds
            raise
        finally:
            done.set()
            self.working.set()
            thread.join(GIVE_UP)

    def call(
        self, method: str, path: str, retry: Collection[int] = (), **content: Any
    ) -> httpx.Response:
        """Call the server, repeatedly if it does not answer or is busy, and return its answer.

        Parameters
        ----------
        method, path : str
        retry : collection of int, default=()
            Additional status codes after which the call is repeated.
        **content
            Passed to `httpx.Client.request`.

        Raises
        ------
        RunEnded
            When the run is over for this client.
        SessionLost
            When the server does not know this process.
        JoinError
            When the server refuses the call, or does not answer for ``patience`` seconds.
        """
        until, pauses = float("inf"), Pauses()
        address = f"{str(self.link.base_url).rstrip('/')}{path}"
        while not self.ended:
            try:
                response = self.link.request(method, path, **content)
            except httpx.TransportError as error:
                kind: type[JoinError] = Unreachable
                reason = f"no answer ({type(error).__name__}: {error})"
                other = other_scheme(self.link.base_url, error)
                reason += f"; {other}" if other else ""
                again = "CERTIFICATE_VERIFY_FAILED" not in reason and not other
            else:
                if response.is_success:
                    return response
                kind, reason, code = JoinError, reason_of(response), response.status_code
                if code == 410:
                    raise RunEnded(reason)
                if code == 428:
                    raise SessionLost(f"{address}: {reason}")
                again = code in {429, *retry} or code >= 500
            until = min(until, time.monotonic() + self.patience)
            if not again or time.monotonic() >= until:
                kind = kind if again else JoinError
                raise kind(f"{address}: {reason}")
            pauses.take()
        raise RunEnded(self.ended)


def other_scheme(url: httpx.URL, error: httpx.TransportError) -> str:
    """Return a remedy if a call failed because the server uses TLS and the URL not, or vice versa.

    It calls the port once more, with TLS and without the token, if that is needed to find out.
    """
    if url.scheme == "https":
        plain = "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error)
        return "the server does not use TLS: call it as http://" if plain else ""
    if not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return ""
    return "the server uses TLS: call it as https://" if uses_tls(url.host, url.port or 80) else ""


def uses_tls(host: str, port: int) -> bool:
    """Return whether a server answers the first message of a TLS handshake with a TLS record."""
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), hello, server_hostname=host
        ).do_handshake()
    try:
        with socket.create_connection((host, port), CONNECT) as line:
            line.sendall(hello.read())
            return line.recv(1) in (b"\x15", b"\x16")  # an alert, or a handshake
    except OSError:
        return False


def reason_of(response: httpx.Response) -> str:
    """Return the server's reason for refusing a call."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return str(response.json()["error"])
    return f"status {response.status_code}"
