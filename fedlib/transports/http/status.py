"""The status of a run: its progress, as shown by the status page and the command line.

It consists of names, numbers and sizes. No data and no token can be on the page.

Health and metrics of a run, for the programs that watch a server.

``/health`` answers whether the run goes on, and ``/metrics`` with numbers in the text format of
Prometheus. Both consist of names, numbers and sizes, like the status page. They are answered only
to the addresses that the operator of the server names; for all others they do not exist.

===================================  ==============================================================
Metric                               Meaning
===================================  ==============================================================
``fedlib_clients``                   clients by ``state``: expected, waiting, working, answered,
                                     away, lost, done
``fedlib_clients_present``           clients with a process present
``fedlib_step``                      the number of the current step
``fedlib_message_bytes_total``       the size of all messages by ``direction``: to_clients,
                                     from_clients
``fedlib_step_seconds``              a summary: how many exchanges have ended, and how long they
                                     took together
``fedlib_run_info``                  1, with the ``protocol`` and the ``outcome`` (empty: the run
                                     goes on)
===================================  ==============================================================
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedlib.core.ledger import SERVER, Ledger
from fedlib.transports.http.service import SessionService
from fedlib.transports.http.session import Session, State

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
        # The count of messages and their size, for the last steps.
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
        The count of clients in each state.
    joined : int
        The count of clients that are present.
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
        """The count of clients."""
        return sum(self.states.values())

    @property
    def others(self) -> dict[str, int]:
        """The count of clients in each state that ``clients`` leaves out."""
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


def size(n_bytes: int) -> str:
    """Return a count of bytes in a suitable unit.

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


def networks(addresses: Collection[str]) -> list[Any]:
    """Return addresses and networks in the form of `ipaddress`.

    Raises
    ------
    ValueError
        When one is neither an address nor a network.

    Examples
    --------
    >>> networks(["127.0.0.1", "10.0.0.0/8"])
    [IPv4Network('127.0.0.1/32'), IPv4Network('10.0.0.0/8')]
    >>> networks(["localhost"])
    Traceback (most recent call last):
    ...
    ValueError: monitors must be addresses such as 127.0.0.1 or networks such as 10.0.0.0/8, got \
'localhost'
    """
    known = []
    for address in addresses:
        try:
            known.append(ipaddress.ip_network(address))
        except ValueError as error:
            raise ValueError(
                "monitors must be addresses such as 127.0.0.1 or networks such as 10.0.0.0/8, got"
                f" {address!r}"
            ) from error
    return known


class Monitor(Collector):
    """Takes the status of a run, and answers with it at two endpoints.

    Parameters
    ----------
    service : SessionService
    protocol : str
    parameters : mapping of str
        Those of the protocol.
    clock : callable
        Converts a time of the sessions.
    allowed : list of networks
        The callers that receive an answer.

    Attributes
    ----------
    traffic : Traffic
        The messages of the run.
    """

    def __init__(
        self,
        service: SessionService,
        protocol: str,
        parameters: Mapping[str, Any],
        clock: Callable[[float], datetime],
        allowed: list[Any],
    ):
        self.service, self.protocol, self.parameters = service, protocol, parameters
        self.clock, self.allowed, self.traffic = clock, allowed, Traffic()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def status(self) -> Status:
        """Return the status of the run."""
        sessions, traffic, ledger = self.service.sessions, self.traffic, self.service.ledger
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
            protocol=self.protocol,
            parameters=self.parameters,
            outcome=sessions.outcome,
            clients=[self._client(name, sessions[name], lost.get(name)) for name in described],
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

    def _client(self, name: str, session: Session, lost: str | None) -> ClientStatus:
        """Return the status of a client; the ledger's reason also has the request and the step."""
        return ClientStatus(
            name,
            session.state.value,
            (lost or session.reason) if session.state is State.LOST else "",
            None if session.since is None else self.clock(session.since),
            None if session.seen is None else time.monotonic() - session.seen,
        )

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints; none if nobody may call them."""
        endpoints = {"/health": self.health, "/metrics": self.metrics} if self.allowed else {}
        return [Route(path, call, methods=["GET"]) for path, call in endpoints.items()]

    async def health(self, request: Request) -> Response:
        """Answer 200 while the run goes on and when it has finished, 503 when it was stopped."""
        self._check(request)
        status = self.status()
        state = status.outcome or "running"
        content = {"status": state, "step": status.step}
        return JSONResponse(content, 503 if state == "stopped" else 200)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of the run."""
        self._check(request)
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    def _check(self, request: Request) -> None:
        """Refuse a caller whose address is not allowed, as if there were no such path."""
        address = ipaddress.ip_address(request.scope["connection"].address.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if not any(address in network for network in self.allowed):
            raise HTTPException(404)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        status = self.status()
        clients = GaugeMetricFamily("fedlib_clients", "Clients by state.", labels=["state"])
        for state, number in status.states.items():
            clients.add_metric([state], number)
        yield clients
        yield GaugeMetricFamily(
            "fedlib_clients_present", "Clients with a process present.", status.joined
        )
        yield GaugeMetricFamily("fedlib_step", "The number of the current step.", status.step)
        sizes = CounterMetricFamily(
            "fedlib_message_bytes", "The size of all messages.", labels=["direction"]
        )
        sizes.add_metric(["to_clients"], self.traffic.to_clients)
        sizes.add_metric(["from_clients"], self.traffic.from_clients)
        yield sizes
        yield SummaryMetricFamily(
            "fedlib_step_seconds",
            "The duration of the exchanges that have ended.",
            self.service.exchanges,
            self.service.seconds,
        )
        run = GaugeMetricFamily("fedlib_run_info", "The run.", labels=["protocol", "outcome"])
        run.add_metric([status.protocol, status.outcome], 1)
        yield run

    def describe(self) -> list[Metric]:
        """Return nothing, so that a registry does not collect when the monitor is registered."""
        return []
