"""The sessions of a run, shared by the web server's threads and the thread of the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedlib.ledger import Ledger
from fedlib.messages import Failure, encode
from fedlib.transports.http.sessions import Refusal, RefusedCall, Reply, Sessions
from fedlib.transports.http.wire import HOLD

__all__ = ["SharedSessions"]


class SharedSessions:
    """Adds a lock and the clock to `Sessions`.

    The methods that serve a client's call raise `RefusedCall` if its session does not allow it.

    Parameters
    ----------
    sessions : Sessions
        To be used by others only while they hold the lock (`locked`).

    Attributes
    ----------
    ledger : Ledger or None
        The ledger of the current run. It contains the clients whose replies the run has rejected.
    """

    def __init__(self, sessions: Sessions):
        self.sessions = sessions
        self.ledger: Ledger | None = None
        self._changed = threading.Condition()

    @contextmanager
    def locked(self) -> Iterator[float]:
        """Hold the lock, with the time and with rejected replies noted."""
        with self._changed:
            self._note_rejected()
            try:
                yield time.monotonic()
            except RefusedCall as refused:
                if refused.refusal is Refusal.OVER:  # `close` waits for all clients
                    self._changed.notify_all()
                raise

    def _note_rejected(self) -> None:
        if self.ledger is not None:
            self.sessions.reject(dict(self.ledger.lost))

    def _wait(self, until: float) -> bool:
        """Release the lock until something has changed; return whether there is time left."""
        self._changed.wait(min(max(0.0, until - time.monotonic()), HOLD))
        self._note_rejected()
        return time.monotonic() < until

    # Calls of clients

    @contextmanager
    def call(self, name: str, process: str) -> Iterator[None]:
        """Count the call of a client's process, as a sign of life and as one in progress."""
        session = self.sessions[name]
        with self.locked() as now:
            session.enter(process, now)
        try:
            yield
        finally:
            with self.locked():
                session.exit()

    def join(self, name: str, process: str) -> None:
        """Make a process the current process of a client."""
        with self.locked() as now:
            self.sessions[name].join(process, now)
            self._changed.notify_all()

    def heartbeat(self, name: str, process: str) -> None:
        """Accept a sign of life, which `call` has noted."""
        with self.locked():
            self.sessions[name].call(process)

    def leave(self, name: str, process: str) -> None:
        """Note that a client's process stops."""
        with self.locked() as now:
            self.sessions[name].leave(process, now)
            self._changed.notify_all()

    def next_request(self, name: str, process: str) -> tuple[int, bytes] | None:
        """Wait for the next request and return its number and bytes; None if there is none yet."""
        session = self.sessions[name]
        with self.locked() as now:
            while (request := session.next_request(process)) is None:
                if not self._wait(now + HOLD):
                    break
            return request

    def accept(self, name: str, process: str, number: int, body: bytes) -> None:
        """Accept a reply."""
        reply = Reply(number, body)
        with self.locked():
            self.sessions[name].accept(process, reply)
            self._changed.notify_all()

    # The run

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Ask the clients, wait until each has replied or is lost, and return the replies."""
        sessions = self.sessions
        with self.locked() as now:
            sessions.await_clients(now)
            while not sessions.ready(time.monotonic()):
                self._wait(sessions.next_deadline())
            try:
                sessions.ask(requests, time.monotonic())
                self._changed.notify_all()
                while sessions.expire(time.monotonic()):
                    self._wait(sessions.next_deadline())
            except BaseException:  # an interruption
                sessions.abort()
                raise
            replies = sessions.take()
            return {
                name: self._failure(name) if reply is None else reply
                for name, reply in replies.items()
            }

    def _failure(self, name: str) -> bytes:
        """Return what replaces the reply of a lost client: its reason without request and step."""
        return encode(Failure(self.sessions[name].reason.partition(" ")[0]))

    def end(self, outcome: str) -> None:
        """End the run. The first outcome counts."""
        with self.locked() as now:
            self.sessions.end(outcome, now)
            self._changed.notify_all()

    def inform(self) -> None:
        """Wait until every process that is present has been informed that the run is over."""
        with self.locked() as now:
            until = now + self.sessions.limits.gone_after
            while self.sessions.uninformed(time.monotonic()):
                if not self._wait(until):
                    break
