"""The sessions of a run in an event loop: the clock, held calls, and the exchanges of the run."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fedlib.core.ledger import Ledger
from fedlib.core.messages import (
    Declined,
    Failure,
    Message,
    MessageError,
    decode,
    encode,
)
from fedlib.transports.http.session import Reply
from fedlib.transports.http.sessions import Sessions
from fedlib.transports.http.wire import HOLD

LARGE = 2**18  # bytes from which a reply is checked outside the event loop

OnHold = Callable[["asyncio.Future[None]"], object]  # receives the future that ends the waiting

_random = random.Random()  # the global generator belongs to the user

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expected:
    """The conditions that a reply must meet before the run reads it.

    Parameters
    ----------
    request : Message or None
        The request; None if it is not a message of this package.
    limit : int
        The maximum size of the reply, in bytes.
    """

    request: Message | None
    limit: int

    @classmethod
    def by(cls, request: bytes, max_bytes: int) -> Expected:
        """Return the conditions for replies to a request, given by its bytes."""
        try:
            message = decode(request)
        except MessageError:
            return cls(None, max_bytes)
        return cls(message, min(message.reply_limit(), max_bytes))

    def check(self, body: bytes) -> None:
        """Raise MessageError when the reply is not a message of an expected class."""
        if self.request is not None:
            may_decline = (Declined,) if self.request.asks_for_data else ()
            decode(body, self.request.reply, *may_decline, Failure, aligned=False)


class SessionService:
    """Adds the clock and the waiting to `Sessions`. All methods run in one event loop.

    The methods that serve a client's call raise `RefusedCall` if its session does not allow it.

    Parameters
    ----------
    sessions : Sessions

    Attributes
    ----------
    sessions : Sessions
    ledger : Ledger or None
        The ledger of the current run. It contains the clients whose replies the run has rejected.
    exchanges : int
        The count of exchanges that have ended.
    seconds : float
        How long they took together, without the time before the first request was sent.
    """

    def __init__(self, sessions: Sessions):
        self.sessions, self.limits = sessions, sessions.limits
        self.exchanges, self.seconds = 0, 0.0
        self._ledger: Ledger | None = None
        self._n_rejected = 0  # clients whose rejection has been noted
        self._expected: dict[str, Expected] = {}
        # The held calls, by client: those for the next request, and heartbeats.
        self._asking: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._beating: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._condition: Callable[[], bool] | None = None  # what the run waits for
        self._fulfilled = asyncio.Event()

    @property
    def ledger(self) -> Ledger | None:
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger | None) -> None:
        self._ledger, self._n_rejected = ledger, 0

    # Calls of clients

    @contextmanager
    def call(self, name: str, process: str, link: int | None = None) -> Iterator[None]:
        """Register a call of a client's process: a sign of life, and a call in progress."""
        session = self.sessions[name]
        self._note_rejected()
        session.enter(process, time.monotonic(), link)
        try:
            yield
        finally:
            session.exit()

    def join(self, name: str, process: str, link: int | None = None) -> None:
        """Make a process the current process of a client."""
        session = self.sessions[name]
        before = session.process
        session.join(process, time.monotonic(), link)
        if before != process:
            self._wake(name)
        self._changed(name)

    async def heartbeat(self, name: str, process: str, on_hold: OnHold) -> None:
        """Accept a sign of life, and hold the call while the client works."""
        session = self.sessions[name]
        session.call(process)
        if not self._asking[name]:
            await self._hold(name, process, self._beating, on_hold)
            session.call(process)

    def leave(self, name: str, process: str) -> None:
        """Note that a client's process stops."""
        self.sessions[name].leave(process, time.monotonic())
        self._wake(name)
        self._changed(name)

    def refuse(self, name: str, reason: str) -> None:
        """Note that a client's process does not join."""
        self.sessions[name].refuse(reason)
        self._changed(name)

    def disconnect(self, name: str, process: str, link: int) -> None:
        """Note that a connection of a client's process has been closed."""
        self.sessions[name].unlink(process, link)

    async def next_request(
        self, name: str, process: str, on_hold: OnHold
    ) -> tuple[int, bytes] | None:
        """Wait for the next request and return its number and bytes; None if there is none yet."""
        session = self.sessions[name]
        asked = session.next_request(process)
        if asked is None:
            _set_all(self._beating.pop(name, set()))  # waiting takes only one connection
            await self._hold(name, process, self._asking, on_hold)
            asked = session.next_request(process)
        return asked

    async def _hold(
        self,
        name: str,
        process: str,
        held: defaultdict[str, set[asyncio.Future[None]]],
        on_hold: OnHold,
    ) -> None:
        """Hold a call until something changes for its client, for at most ``HOLD`` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        # Calls that began together end at different times, so that the next ones do not collide.
        timer = loop.call_later(HOLD * _random.uniform(0.75, 1), _set_all, (future,))
        on_hold(future)
        session = self.sessions[name]
        session.hold(process)
        held[name].add(future)
        try:
            await future
        finally:
            timer.cancel()
            held[name].discard(future)
            session.release(process, time.monotonic())

    def admit(self, name: str, process: str, number: int, length: int) -> bool:
        """Return whether a reply of this length may be read; False if it is too large.

        A new one that is too large, or empty, loses its client.
        """
        if not self.sessions[name].admit(process, number, length):
            return True
        limit = self._expected[name].limit
        if 0 < length <= limit:
            return True
        self.reject(name, number, f"a reply of {length} bytes, 1 to {limit} are allowed")
        return False

    async def accept(self, name: str, process: str, number: int, body: bytes) -> None:
        """Accept a reply, unless it is malformed: then its client is lost at once."""
        session = self.sessions[name]
        arguments = self._expected.get(name), number, body
        if len(body) < LARGE:
            reply, problem = _inspect(*arguments)
        else:
            reply, problem = await asyncio.to_thread(_inspect, *arguments)
        session.call(process)
        if problem:
            self.reject(name, number, problem)
        session.accept(process, reply)
        _set_all(self._beating.pop(name, set()))
        self._changed(name)

    def reject(self, name: str, number: int, problem: str) -> None:
        """Lose a client that has sent a malformed reply, if it is to its open request."""
        session = self.sessions[name]
        if number != session.number or not session.awaited:
            return
        request = type(self._expected[name].request).__name__
        ledger = Ledger() if self.ledger is None else self.ledger
        ledger.note_rejected(name, request, problem)
        step = f", step {ledger.entries[-1].step}" if ledger else ""
        why = f"InvalidReply at {request}{step} ({ledger.rejected[name]})"
        session.lose(why, time.monotonic())
        self._wake(name)
        self._changed(name)

    # The run

    async def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Ask the clients, wait until each has replied or is lost, and return the replies."""
        sessions = self.sessions
        self._note_rejected()
        sessions.await_clients(time.monotonic())
        await self._until(lambda: sessions.ready(time.monotonic()))
        distinct = set(requests.values())
        kinds = {request: Expected.by(request, self.limits.max_bytes) for request in distinct}
        self._expected = {name: kinds[request] for name, request in requests.items()}
        begin = time.monotonic()
        sessions.ask(requests, begin)
        for name in requests:
            self._wake(name)
        await self._until(sessions.complete)
        self.exchanges, self.seconds = self.exchanges + 1, self.seconds + time.monotonic() - begin
        return {
            name: self._failure(name) if reply is None else reply
            for name, reply in sessions.take().items()
        }

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds. It is checked at each tick, and by `_changed` at events."""
        tick = min(0.5, self.limits.gone_after / 10)
        self._condition = condition
        try:
            while True:
                now = time.monotonic()
                self.sessions.expire(now)
                self._fulfilled.clear()
                if condition():
                    return
                try:
                    await asyncio.wait_for(self._fulfilled.wait(), tick)
                except TimeoutError:
                    if time.monotonic() - now > 2 * tick + 0.1:
                        self.sessions.excuse(time.monotonic())
        finally:
            self._condition = None

    def resume(self, numbers: Mapping[str, int]) -> None:
        """Continue a run in which each client has answered this count of requests."""
        self._note_rejected()
        self.sessions.resume(numbers)

    def abort(self) -> None:
        """End the exchange without its replies."""
        self.sessions.abort()

    def end(self, outcome: str) -> None:
        """End the run. The first outcome counts."""
        self._note_rejected()
        self.sessions.end(outcome, time.monotonic())
        for name in self.sessions.by_name:
            self._wake(name)
        self._fulfilled.set()

    async def inform(self) -> None:
        """Wait until every present process has received the outcome of the run."""
        until = time.monotonic() + self.limits.gone_after
        while (now := time.monotonic()) < until and self.sessions.uninformed(now):
            await asyncio.sleep(0.01 + 1e-5 * len(self.sessions.by_name))

    def _failure(self, name: str) -> bytes:
        """Return what replaces the reply of a lost client: its reason without request and step."""
        return encode(Failure(self.sessions[name].reason.partition(" ")[0]))

    def _changed(self, name: str) -> None:
        """Check whether a client is lost and whether the run can continue, in O(1)."""
        self.sessions.check(name, time.monotonic())
        if self._condition is not None and self._condition():
            self._fulfilled.set()

    def _wake(self, name: str) -> None:
        """End the held calls of a client."""
        for held in (self._asking, self._beating):
            _set_all(held.pop(name, ()))

    def _note_rejected(self) -> None:
        """Lose the clients whose replies the run has rejected since the last check."""
        if self.ledger is not None and len(self.ledger.lost) != self._n_rejected:
            lost = {name: self.ledger.why_lost(name) for name in self.ledger.lost}
            self._n_rejected = len(lost)
            self.sessions.reject(lost)
            for name in lost:
                self._wake(name)


def _set_all(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in tuple(futures):
        if not future.done():
            future.set_result(None)


def _inspect(expected: Expected | None, number: int, body: bytes) -> tuple[Reply, str]:
    """Return a reply with its hash, and the reason why it is malformed, if it is."""
    problem = ""
    try:
        if expected is not None:
            expected.check(body)
    except MessageError as error:
        problem = str(error)
    return Reply(number, body), problem
