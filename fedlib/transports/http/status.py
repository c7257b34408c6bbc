"""The status of a run: its progress, as shown by the status page and the command line.

It consists of names, numbers and sizes. No data and no token can be on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedlib.ledger import SERVER, Entry, Ledger
from fedlib.transports.http.sessions import Session, Sessions, State

__all__ = ["ClientStatus", "ConversationLine", "Status", "size", "take_status"]

MAX_STEPS = 20  # steps of the conversation that are shown


@dataclass(frozen=True)
class ClientStatus:
    """The state of one client.

    Attributes
    ----------
    name : str
    state : str
        One of expected, waiting, working, answered, away, lost and done.
    why : str
        The reason why the client is lost; empty if it is not.
    since : datetime or None
        When the client joined, left or was lost; None if this is not known.
    seen : float or None
        Seconds since its last call; None if it has never joined.
    """

    name: str
    state: str
    why: str
    since: datetime | None
    seen: float | None


@dataclass(frozen=True)
class ConversationLine:
    """The messages of one step that have the same class, direction and disclosure.

    Attributes
    ----------
    step : int
    to_clients : bool
    message : str
        The name of their class.
    messages : int
        Their number.
    bytes : int
        Their total size.
    discloses : str
        The information that the receiver gets.
    """

    step: int
    to_clients: bool
    message: str
    messages: int
    bytes: int
    discloses: str


@dataclass(frozen=True)
class Status:
    """The progress of a run.

    Attributes
    ----------
    protocol : str
        The protocol's name.
    parameters : mapping of str
        The protocol's parameters.
    outcome : str
        How the run ended; empty before.
    clients : sequence of ClientStatus
    joined : int
        The number of clients that are present.
    opened : bool
        Whether the run has stopped waiting for clients to join.
    step : int
        The number of the current step.
    request : str
        The name of its request.
    asked, answered : int
        The numbers of open requests and of their replies.
    bytes : int
        The size of all messages.
    conversation : sequence of ConversationLine
        The messages of the last 20 steps.
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
    conversation: Sequence[ConversationLine] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The state of the run in one line."""
        if self.outcome:
            return f"{self.outcome} after {_count(self.step, 'step')}, {size(self.bytes)}"
        if not self.step or not self.opened:
            return f"{self.joined} of {_count(len(self.clients), 'client')} joined"
        replies = f"{self.answered} of {self.asked} answered"
        progress = replies if self.asked else "the server is computing"
        return f"step {self.step}: {self.request}, {progress}, {size(self.bytes)}"


def take_status(
    sessions: Sessions,
    ledger: Ledger | None,
    protocol: str,
    parameters: Mapping[str, Any],
    now: float,
    clock: Callable[[float], datetime],
) -> Status:
    """Return the status of a run; ``clock`` converts a time of the sessions."""
    entries = list(ledger.entries) if ledger else []
    lost = dict(ledger.lost) if ledger else {}
    request = next((entry for entry in reversed(entries) if entry.sender == SERVER), None)
    open_requests = [s for s in sessions.by_name.values() if s.request is not None]
    return Status(
        protocol=protocol,
        parameters=parameters,
        outcome=sessions.outcome,
        clients=[
            _client_status(name, session, lost.get(name), now, clock)
            for name, session in sessions.by_name.items()
        ],
        joined=sessions.n_present,
        opened=sessions.opened,
        step=request.step if request else 0,
        request=request.message if request else "",
        asked=len(open_requests),
        answered=sum(session.reply is not None for session in open_requests),
        bytes=sum(entry.bytes for entry in entries),
        conversation=_conversation(entries),
    )


def _client_status(
    name: str,
    session: Session,
    lost: str | None,
    now: float,
    clock: Callable[[float], datetime],
) -> ClientStatus:
    """Return the status of a client; the ledger's reason also names the request and the step."""
    return ClientStatus(
        name,
        session.state.value,
        (lost or session.reason) if session.state is State.LOST else "",
        None if session.since is None else clock(session.since),
        None if session.seen is None else now - session.seen,
    )


def _conversation(entries: Sequence[Entry]) -> list[ConversationLine]:
    """Return the last steps of a ledger, with equal messages of a step in one line."""
    last = entries[-1].step if entries else 0
    groups: dict[tuple[int, bool, str, str], list[int]] = {}
    for entry in reversed(entries):
        if entry.step <= last - MAX_STEPS:
            break
        key = entry.step, entry.sender == SERVER, entry.message, entry.discloses
        groups.setdefault(key, []).append(entry.bytes)
    lines = [
        ConversationLine(step, to_clients, message, len(sizes), sum(sizes), discloses)
        for (step, to_clients, message, discloses), sizes in groups.items()
    ]
    return sorted(lines, key=lambda line: (line.step, not line.to_clients))


def size(n_bytes: int) -> str:
    """Return a number of bytes in a suitable unit.

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
