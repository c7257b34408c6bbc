"""The status of a run: its progress, as shown by the status page and the command line.

It consists of names, numbers and sizes. No data and no token can be on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any

from fedlib.core.ledger import SERVER, Ledger
from fedlib.transports.http.session import Session, State
from fedlib.transports.http.sessions import Sessions

MAX_STEPS = 20  # steps of the conversation that are shown
MAX_CLIENTS = 100  # clients that are described one by one
# The states in the order in which clients are described if there are too many.
URGENCY = (
    State.LOST,
    State.AWAY,
    State.EXPECTED,
    State.WORKING,
    State.ANSWERED,
    State.WAITING,
    State.DONE,
)


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


class Traffic:
    """The messages of a ledger, counted. An update costs as much as there are new messages.

    Attributes
    ----------
    step : int
        The number of the last step.
    request : str
        The name of its request.
    to_clients, from_clients : int
        The size of all messages in each direction, in bytes.
    """

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, ledger: Ledger | None) -> None:
        self._ledger, self._n_counted = ledger, 0
        self.step, self.request = 0, ""
        self.to_clients = self.from_clients = 0
        # The number of messages and their size, for the last steps.
        self._lines: dict[tuple[int, bool, str, str], list[int]] = {}

    @property
    def bytes(self) -> int:
        """The size of all messages."""
        return self.to_clients + self.from_clients

    def update(self, ledger: Ledger | None) -> None:
        """Count what is new in a ledger; begin again if it is another one."""
        if ledger is not self._ledger:
            self._begin(ledger)
        if ledger is None:
            return
        new = ledger.entries[self._n_counted :]
        self._n_counted += len(new)
        for entry in new:
            sent = entry.sender == SERVER
            if sent:
                self.step, self.request = entry.step, entry.message
                self.to_clients += entry.bytes
            else:
                self.from_clients += entry.bytes
            key = entry.step, sent, entry.message, entry.discloses
            line = self._lines.setdefault(key, [0, 0])
            line[0] += 1
            line[1] += entry.bytes
        first = self.step - MAX_STEPS
        self._lines = {key: line for key, line in self._lines.items() if key[0] > first}

    def conversation(self) -> list[ConversationLine]:
        """Return the messages of the last steps, grouped by step, direction and class."""
        lines = [
            ConversationLine(step, sent, message, n, n_bytes, discloses)
            for (step, sent, message, discloses), (n, n_bytes) in self._lines.items()
        ]
        return sorted(lines, key=lambda line: (line.step, not line.to_clients))


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
        If there are more than 100, only 100: first those that are lost, away, expected or working.
    states : mapping of str to int
        The number of clients in each state.
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
    states: Mapping[str, int]
    joined: int
    opened: bool
    step: int
    request: str
    asked: int
    answered: int
    bytes: int
    conversation: Sequence[ConversationLine] = field(default_factory=list)

    @property
    def n_clients(self) -> int:
        """The number of clients."""
        return sum(self.states.values())

    @property
    def others(self) -> dict[str, int]:
        """The number of clients in each state that ``clients`` leaves out."""
        described = Counter(client.state for client in self.clients)
        left = {state: n - described[state] for state, n in self.states.items()}
        return {state: n for state, n in left.items() if n}

    def numbers(self) -> dict[str, Any]:
        """Return the fields of which the headline consists."""
        names = ("outcome", "joined", "n_clients", "step", "request", "asked", "answered", "bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def headline(self) -> str:
        """The state of the run in one line."""
        if self.outcome:
            return f"{self.outcome} after {_count(self.step, 'step')}, {size(self.bytes)}"
        if not self.step or not self.opened:
            return f"{self.joined} of {_count(self.n_clients, 'client')} joined"
        replies = f"{self.answered} of {self.asked} answered"
        progress = replies if self.asked else "the server is computing"
        return f"step {self.step}: {self.request}, {progress}, {size(self.bytes)}"


def take_status(
    sessions: Sessions,
    traffic: Traffic,
    ledger: Ledger | None,
    protocol: str,
    parameters: Mapping[str, Any],
    now: float,
    clock: Callable[[float], datetime],
) -> Status:
    """Return the status of a run; ``clock`` converts a time of the sessions."""
    traffic.update(ledger)
    lost = dict(ledger.lost) if ledger else {}
    states: dict[State, list[str]] = {state: [] for state in URGENCY}
    for name, session in sessions.by_name.items():
        states[session.state].append(name)
    described = list(sessions.by_name)
    if len(described) > MAX_CLIENTS:
        described = list(islice(chain.from_iterable(states.values()), MAX_CLIENTS))
    open_requests = [s for s in sessions.by_name.values() if s.request is not None]
    return Status(
        protocol=protocol,
        parameters=parameters,
        outcome=sessions.outcome,
        clients=[
            _client_status(name, sessions[name], lost.get(name), now, clock) for name in described
        ],
        states={state.value: len(names) for state, names in states.items()},
        joined=sessions.n_present,
        opened=sessions.opened,
        step=traffic.step,
        request=traffic.request,
        asked=len(open_requests),
        answered=sum(session.reply is not None for session in open_requests),
        bytes=traffic.bytes,
        conversation=traffic.conversation(),
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
