"""A session: the server's record of one client, as a state machine.

This module has no threads, no sockets and no clock. The time is an argument, ``now``, in seconds
from any fixed origin (`time.monotonic`).

**Sessions and processes.** A run has one `Session` per client, from the beginning to the end. The
client's processes come and go: a process chooses a random identifier when it starts, and JOIN makes
it the process of its session. It stays so until it leaves, or until another process joins after it
is gone. Every call carries the identifier, so that a call of an earlier process cannot be mistaken
for one of the current process.

**Signs of life.** A call is one, and so is a call that the server holds, for as long as it holds
it. A process is gone after ``silent_after`` seconds without a sign of life, or after only
``gone_after`` seconds if it has no open connection: the operating system closes the connections of
a process that dies.

**Exchanges.** In an exchange the server opens a request in some sessions (ASK). When each of them
has a reply or is lost, the exchange ends (TAKE). A session's requests are numbered, and a reply
carries the number of its request.

**States.**

- EXPECTED: no process has joined yet.
- WAITING: a process is present, and no request is open.
- WORKING: a process is present, and owes the reply to the open request.
- ANSWERED: the reply has arrived, and the exchange is still open for other clients.
- AWAY: the process has left; another one can join until the rejoin timeout.
- LOST: the run continues without this client.
- DONE: the run is over.

A process that cannot take part, for example without the keys of a masked run, refuses to join. This
changes no state: another process may still join, and the refusal is only the reason why none did.

A session in LOST or DONE is *over*, and its ``reason`` is set. A process can still join then, and
receives the reason at its next call.

**Events.** Clients cause the first four, the server the other four:

- JOIN: a process joins with the client's token.
- CALL: the process sends a heartbeat, or asks for its next request.
- LEAVE: the process announces that it stops.
- REPLY: the process sends the reply to the open request.
- ASK: the server opens a request.
- TAKE: the exchange ends, and the server takes the reply, if there is one.
- LOSE: a deadline has passed, or the client's reply was rejected.
- END: the run is over.

**Transitions.** A cell holds the next state, or the reason why a client's call is refused
(`Refusal`). An empty cell cannot occur unless the server has an error.

========  ========  ========  ========  ========  ========  =======  =====  ========
State     JOIN      CALL      LEAVE     REPLY     ASK       TAKE     LOSE   END
========  ========  ========  ========  ========  ========  =======  =====  ========
EXPECTED  WAITING   unknown   unknown   unknown   EXPECTED           LOST   EXPECTED
WAITING   WAITING   WAITING   AWAY      conflict  WORKING            LOST   DONE
WORKING   WORKING   WORKING   AWAY      ANSWERED  WORKING            LOST   DONE
ANSWERED  ANSWERED  ANSWERED  AWAY      conflict  WORKING   WAITING  LOST   DONE
AWAY      WAITING   unknown   unknown   unknown   AWAY      AWAY     LOST   DONE
LOST      LOST      over      over      over      LOST      LOST     LOST   LOST
DONE      DONE      over      over      over      DONE      DONE     LOST   DONE
========  ========  ========  ========  ========  ========  =======  =====  ========

Five rules complete the table:

1. After JOIN, WAITING changes immediately: to DONE if the run is over, to WORKING if a request is
   open, and to ANSWERED if its reply has arrived.
2. A call of any process but the session's own is a conflict, in every state, or unknown if the
   session has no process: then the process must join (again). A conflict is also JOIN while the
   session is not over and another process is present that is not gone.
3. A copy of the last reply that was accepted is ignored in every state that accepts CALL: its
   sender did not receive the answer to the first copy. Another reply with its number is a conflict.
4. A server that continues a run after a crash starts with sessions in EXPECTED and the numbers of
   the last requests (`Sessions.resume`). Its clients' calls are unknown, so they join again.
5. If the run ends during an exchange, the sessions that owe a reply are lost first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn

from fedlib.transports.http.limits import Limits

MAX_CALLS = 4  # calls of one client that may be in progress at the same time


class State(Enum):
    """The states of a session."""

    EXPECTED = "expected"
    WAITING = "waiting"
    WORKING = "working"
    ANSWERED = "answered"
    AWAY = "away"
    LOST = "lost"
    DONE = "done"


class Event(Enum):
    """The events: the first four are a client's, the others the server's."""

    JOIN = "join"
    CALL = "call"
    LEAVE = "leave"
    REPLY = "reply"
    ASK = "ask"
    TAKE = "take"
    LOSE = "lose"
    END = "end"


class Refusal(Enum):
    """Why a client's call is refused."""

    CONFLICT = "conflict"  # the call does not fit the state of the session
    UNKNOWN = "unknown"  # the session has no process: join first
    OVER = "over"  # the session is over
    TOO_MANY = "too many"  # too many calls of this client are in progress


class RefusedCall(Exception):
    """A client made a call that its session does not allow. The text is for the client."""

    def __init__(self, refusal: Refusal, text: str):
        super().__init__(text)
        self.refusal = refusal


class IllegalTransition(RuntimeError):
    """The server caused an event that the session's state does not allow: an error in fedlib."""


EXPECTED, WAITING, WORKING, ANSWERED, AWAY, LOST, DONE = State
JOIN, CALL, LEAVE, REPLY, ASK, TAKE, LOSE, END = Event
_NO, _UNKNOWN, _OVER = Refusal.CONFLICT, Refusal.UNKNOWN, Refusal.OVER


def _row(*cells: State | Refusal | None) -> dict[Event, State | Refusal]:
    return {event: cell for event, cell in zip(Event, cells, strict=True) if cell is not None}


# The table above. An event that is missing in a row is an empty cell.
TRANSITIONS: Mapping[State, Mapping[Event, State | Refusal]] = {
    EXPECTED: _row(WAITING, _UNKNOWN, _UNKNOWN, _UNKNOWN, EXPECTED, None, LOST, EXPECTED),
    WAITING: _row(WAITING, WAITING, AWAY, _NO, WORKING, None, LOST, DONE),
    WORKING: _row(WORKING, WORKING, AWAY, ANSWERED, WORKING, None, LOST, DONE),
    ANSWERED: _row(ANSWERED, ANSWERED, AWAY, _NO, WORKING, WAITING, LOST, DONE),
    AWAY: _row(WAITING, _UNKNOWN, _UNKNOWN, _UNKNOWN, AWAY, AWAY, LOST, DONE),
    LOST: _row(LOST, _OVER, _OVER, _OVER, LOST, LOST, LOST, LOST),
    DONE: _row(DONE, _OVER, _OVER, _OVER, DONE, DONE, LOST, DONE),
}


class Reply:
    """A reply as it arrived. Its hash is computed here, because that takes time for a large body.

    Parameters
    ----------
    number : int
        The number of the request.
    body : bytes
    """

    def __init__(self, number: int, body: bytes):
        self.number = number
        self.body = body
        self.key = (number, len(body), hash(body))  # Python seeds it anew in each process


@dataclass
class Session:
    """The server's record of one client.

    Attributes
    ----------
    state : State
    process : str
        The identifier of the present process; empty if none is present.
    seen : float or None
        When a process last gave a sign of life; None before the first has joined.
    since : float or None
        When the process joined or left, or the client was lost; None if this is not known.
    calls : int
        The count of calls in progress.
    held : int
        The count of calls of the present process that the server holds.
    links : set of int
        The open connections of the present process.
    number : int
        The number of the last request.
    request : bytes or None
        The open request.
    reply : bytes or None
        The reply to it.
    refused : str
        Why a process has refused to join; empty if none has, or another one has joined since.
    reason : str
        Why the session is over: the outcome of the run, or NeverJoined, TimedOut, Gone, Left,
        Closed, or the reason for which the run has rejected the client's reply.
    informed : bool
        Whether the present process knows that the session is over.
    """

    limits: Limits = field(default_factory=Limits)
    state: State = EXPECTED
    process: str = ""
    seen: float | None = None
    since: float | None = None
    calls: int = 0
    held: int = 0
    links: set[int] = field(default_factory=set)
    number: int = 0
    request: bytes | None = None
    reply: bytes | None = None
    refused: str = ""
    reason: str = ""
    informed: bool = False
    _accepted: tuple[int, int, int] = (0, -1, 0)  # as no reply is long

    @property
    def over(self) -> bool:
        """Whether the session is over."""
        return self.state in {LOST, DONE}

    @property
    def absent(self) -> bool:
        """Whether no process is present, although the client is not lost."""
        return not self.process and self.state is not LOST

    @property
    def awaited(self) -> bool:
        """Whether an exchange waits for this client's reply."""
        return self.request is not None and self.reply is None and self.state is not LOST

    def alive(self, now: float) -> bool:
        """Return whether a process is present and not gone."""
        return bool(self.process) and now < self.gone_at(-math.inf)

    def gone_at(self, start: float) -> float:
        """Return when the present process is gone if it gives no other sign of life.

        Silence before ``start`` does not count.
        """
        if self.held:
            return math.inf
        last = start if self.seen is None else max(self.seen, start)
        return last + (self.limits.silent_after if self.links else self.limits.gone_after)

    def missed_at(self, start: float) -> float:
        """Return when the client is lost if it makes no other call.

        Silence before ``start``, the beginning of the exchange, does not count: the server may have
        been too busy to listen.
        """
        if self.state is AWAY:
            gone = start if self.since is None else max(self.since, start)
        else:
            gone = self.gone_at(start)
        return gone + self.limits.rejoin_timeout

    # Events that a client causes. Each raises `RefusedCall` if the session does not allow it.

    def enter(self, process: str, now: float, link: int | None = None) -> None:
        """Begin a call of any kind on a connection: a sign of life of the present process."""
        if self.calls >= MAX_CALLS:
            raise RefusedCall(Refusal.TOO_MANY, f"more than {MAX_CALLS} calls at the same time")
        self.calls += 1
        if self.process == process:
            self._live(now, link)

    def exit(self) -> None:
        """End a call."""
        self.calls -= 1

    def hold(self, process: str) -> None:
        """Start to hold a call."""
        if self.process == process:
            self.held += 1

    def release(self, process: str, now: float) -> None:
        """Stop holding a call."""
        if self.process == process and self.held:
            self.held -= 1
            self.seen = now

    def unlink(self, process: str, link: int) -> None:
        """Note that a connection has been closed."""
        if self.process == process:
            self.links.discard(link)

    def join(self, process: str, now: float, link: int | None = None) -> None:
        """Make a process the present one. If it is already present, only note the sign of life."""
        if self.process != process:
            if self.alive(now) and not self.over:
                raise RefusedCall(Refusal.CONFLICT, "a client with this token is already present")
            self._replace(process)
            self.informed = False
            if self.state is not LOST:
                self.since = now
        self.refused = ""
        self._live(now, link)
        self._move(JOIN)
        if self.state is WAITING and self.reason:
            self.state = DONE
        elif self.state is WAITING and self.request is not None:
            self.state = WORKING if self.reply is None else ANSWERED

    def refuse(self, reason: str) -> None:
        """Note why a process does not join, if none has joined yet."""
        if self.state is EXPECTED:
            self.refused = reason

    def call(self, process: str) -> None:
        """Accept a call that changes nothing."""
        self._check(process)
        self._move(CALL)

    def next_request(self, process: str) -> tuple[int, bytes] | None:
        """Return the number and the bytes of the request that the process owes a reply to, if any.

        The request stays open, so the process can ask for it again.
        """
        self.call(process)
        if self.state is not WORKING or self.request is None:
            return None
        return self.number, self.request

    def leave(self, process: str, now: float) -> None:
        """Note that the process stops."""
        self._check(process)
        self._move(LEAVE)
        self._replace("")
        self.since = now

    def admit(self, process: str, number: int, length: int) -> bool:
        """Return whether a reply of this length is new, before its body is read.

        It is not new if it can be a copy of the last accepted one.
        """
        self.call(process)
        accepted, size, _ = self._accepted
        copy = number == accepted and length == size
        if not copy and (number != self.number or self.state is not WORKING):
            self._refuse(Refusal.CONFLICT, REPLY)
        return not copy

    def accept(self, process: str, reply: Reply) -> None:
        """Accept the reply to the open request, and ignore a copy of the last accepted one."""
        self.call(process)
        if reply.key == self._accepted:
            return
        if reply.number != self.number:
            self._refuse(Refusal.CONFLICT, REPLY)
        self._move(REPLY)
        self.reply, self._accepted = reply.body, reply.key

    # Events that the server causes. Each raises `IllegalTransition` if it cannot occur.

    def ask(self, request: bytes) -> None:
        """Open a request. It replaces one that an aborted exchange has left open."""
        self._move(ASK)
        self.number, self.request, self.reply = self.number + 1, request, None

    def take(self) -> bytes | None:
        """Close the request and return the reply; None if the client is lost."""
        if self.request is None or self.awaited:
            raise IllegalTransition("there is no reply to take")
        self._move(TAKE)
        reply, self.request, self.reply = self.reply, None, None
        return None if self.state is LOST else reply

    def lose(self, reason: str, now: float | None = None) -> None:
        """Note that the run continues without this client. The first reason counts."""
        if self.state is not LOST:
            self._move(LOSE)
            self.reason, self.informed = reason, False
            # A client that had left before keeps the time at which it left.
            self.since = self.since if now is None and not self.process else now

    def end(self, outcome: str) -> None:
        """Note that the run is over."""
        self._move(END)
        self.reason = self.reason or outcome

    def _replace(self, process: str) -> None:
        """Make another process the present one, or none; discard what is known about the last."""
        self.process, self.held, self.links = process, 0, set()

    def _live(self, now: float, link: int | None) -> None:
        """Note a sign of life of the present process."""
        self.seen = now
        if link is not None:
            self.links.add(link)

    def _check(self, process: str) -> None:
        """Refuse the call of a process that is not the present one."""
        if not self.process:
            raise RefusedCall(Refusal.UNKNOWN, "no process of this client has joined: join first")
        if self.process != process:
            raise RefusedCall(Refusal.CONFLICT, "another process of this client has joined")

    def _move(self, event: Event) -> None:
        """Make the transition that the table prescribes."""
        cell = TRANSITIONS[self.state].get(event)
        if cell is None:
            raise IllegalTransition(f"{event.name} cannot occur in the state {self.state.name}")
        if isinstance(cell, Refusal):
            self._refuse(cell, event)
        self.state = cell

    def _refuse(self, refusal: Refusal, event: Event) -> NoReturn:
        if refusal is Refusal.OVER:
            self.informed = True
            raise RefusedCall(refusal, self.reason)
        text = "no such reply is expected" if event is REPLY else "this session has not joined"
        raise RefusedCall(refusal, text)
