"""HTTP, the sites' half: a client calls the server, and answers what it is asked.

What both halves share stands here too: tokens, the headers of a call, and that plain HTTP does not
leave the machine unasked. The rules are those of `fedlib.transports.http.server`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import msgspec

from fedlib.messages import Message, MessageError, decode, encode
from fedlib.protocol import Client, logger, serve

__all__ = ["JoinError", "Unreachable", "digest", "forget", "join", "kept_state", "new_token"]

HOLD = 10.0  # seconds for which the server holds an unanswered question for work
RETRY = 0.2  # seconds after which a client calls again
SEQUENCE, SESSION = "Fedlib-Sequence", "Fedlib-Session"
STATE = "client.state"  # the file in a client's state_dir


class JoinError(RuntimeError):
    """The server refuses a client, or cannot be reached; the text says why."""


class Unreachable(JoinError):
    """The server does not answer."""


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


def refuse_plain(what: str, host: str, *, secure: bool, insecure: bool) -> None:
    """Raise ValueError where plain HTTP would leave the machine unasked."""
    loopback = host == "localhost"
    with suppress(ValueError):
        loopback = loopback or ipaddress.ip_address(host).is_loopback
    if not (secure or loopback or insecure):
        raise ValueError(
            f"{what} is {host!r}, beyond the loopback interface: use TLS, or say insecure"
        )


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
        part.replace(folder / STATE)

    @classmethod
    def read(cls, folder: Path) -> _Memory | None:
        """Return what is written there, of whichever run and client; None where nothing is."""
        path = folder / STATE
        if not path.exists():
            return None
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"state_dir holds a damaged file: {path}") from error

    @classmethod
    def load(cls, folder: Path | None, run: str, client: str) -> _Memory:
        """Return what this client has to remember of this run.

        What an earlier run left is of no use any more, and is written over by the first reply.
        Another client's folder is refused: the two would write over each other.
        """
        memory = cls.read(folder) if folder else None
        if memory is None:
            return cls(run, client)
        if memory.client != client:
            raise ValueError(
                f"state_dir {folder} is that of client {memory.client!r}, and this one is"
                f" {client!r}: give each client a folder of its own"
            )
        return memory if memory.run == run else cls(run, client)


def kept_state(state_dir: str | Path) -> Message | None:
    """Return the state that a client wrote down, of whichever run it was; None if it did not.

    For a client whose process died when its work was done, and whose server has gone meanwhile.

    Raises
    ------
    ValueError
        When it cannot be read.

    Examples
    --------
    >>> kept_state("no/such/folder") is None
    True
    """
    memory = _Memory.read(Path(state_dir))
    if memory is None or not memory.state:
        return None
    try:
        return decode(memory.state)
    except MessageError as error:
        raise ValueError(f"state_dir holds a state that cannot be read: {state_dir}") from error


def forget(state_dir: str | Path) -> None:
    """Remove a client's state, once all that it was kept for is done.

    Examples
    --------
    >>> forget("no/such/folder")
    """
    (Path(state_dir) / STATE).unlink(missing_ok=True)


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
        ``"finished"``; ``"stopped"`` where the server gave up; or why it went on without this
        client: ``"TimedOut"``, ``"Gone"``, ``"Left"``, ``"NeverJoined"``, ``"Closed"``, the type of
        the error with which this client answered, or what was wrong with its reply, and when.

    Raises
    ------
    JoinError
        When the server refuses this client or cannot be trusted; `Unreachable` when it does not
        answer.
    ValueError
        When a parameter is out of range, plain HTTP would leave the machine, or the state cannot be
        read or is another client's.
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
    refuse_plain("url", parts.hostname, secure=parts.scheme == "https", insecure=insecure)
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
    """A client's stay in a run, which it leaves in so many words if it can."""

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
            try:
                self.work(welcome)
            except _Over:
                raise
            except BaseException:
                self.leave()
                raise
        except _Over as over:
            return str(over)
        raise AssertionError("work ends by an exception")

    def work(self, welcome: _Welcome) -> None:
        """Answer request after request; `_Over` ends it."""
        client = self.client if isinstance(self.client, Client) else self.client(welcome.protocol)
        memory = _Memory.load(self.folder, welcome.run, welcome.client)
        if memory.state:
            client.state = decode(memory.state)
        with self.heartbeats(welcome.heartbeat):
            while True:
                asked = self.call("GET", "/request")
                if asked.status_code == 200:
                    memory = self.answer(client, asked, memory)

    def leave(self) -> None:
        """Tell the server not to wait, if it listens."""
        with suppress(httpx.TransportError):
            self.link.post("/leave", timeout=1)

    def answer(self, client: Client, asked: httpx.Response, memory: _Memory) -> _Memory:
        """Answer a request, or send the answer again that was given to it before."""
        sequence = int(asked.headers[SEQUENCE])
        if sequence != memory.sequence:
            errors: list[Exception] = []
            reply = serve(client, asked.content, errors.append)
            state = b"" if client.state is None else encode(client.state)
            memory = _Memory(memory.run, memory.client, sequence, reply, state)
            if self.folder:
                memory.save(self.folder)
            for error in errors:
                logger.error("%s: %s", type(error).__name__, error, exc_info=error)
                self.call("POST", "/reply", content=reply, headers={SEQUENCE: str(sequence)})
                self.leave()  # whoever answers with an error is asked no more
                raise _Over(type(error).__name__)
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
                kind = Unreachable if again and why.startswith("no answer") else JoinError
                raise kind(f"{str(self.link.base_url).rstrip('/')}{path}: {why}")
            time.sleep(RETRY)
        raise _Over(self.ended)


def _reason(response: httpx.Response) -> str:
    """Return why the server refused a call."""
    with suppress(ValueError, LookupError, TypeError):
        return str(response.json()["error"])
    return f"status {response.status_code}"
