"""Protocols: a server flow, its clients, and `run`, which connects them over any transport.

The rules:

- The server is a generator, the flow. It yields one request for all clients, or a mapping of
  clients to requests. It is resumed with the `Replies` and returns the model. It knows no network.
  It yields `Reject` to exclude clients whose replies cannot be right. If it fails because of a
  reply, `fedlib.core.search` excludes the client that sent the reply.
- A client is an object with one handler per request. The data that it must keep between two
  requests are its ``state``, a message, so a transport can rebuild the client from its data and its
  state.
- `run` is the only place that handles bytes, disclosure and failures. A client that fails, or whose
  reply does not fit the request, leaves the run. When fewer than ``min_clients`` remain,
  `TooFewClients` is raised at the flow's ``yield``.
- `serve` is the client's side of `run`: it takes the bytes of one request and returns the bytes of
  one reply. It never raises an exception.
- With a journal (`fedlib.core.journal`), a run continues after a crash of the server.
- Both sides limit BLAS and OpenMP to one thread, so that no sum depends on the count of cores.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

import msgspec

from fedlib.core.client import Client
from fedlib.core.journal import Journal
from fedlib.core.ledger import SERVER, Ledger, Progress
from fedlib.core.messages import Declined, Failure, Message, MessageError, decode, encode
from fedlib.core.threads import one_thread


class Combined(Message):
    """Stands for a reply that the transport has added to the reply of another client.

    Only a transport that combines replies creates it. It may do so before the server reads them, if
    `Client.combinable` lists the class of the replies. ``combine`` of that class is a static method
    that takes the replies of several clients to one request, in the order of the clients, and
    returns one reply that stands for all of them, or raises ValueError if they do not fit together.
    Add integers: a sum of floats depends on how the replies are grouped.
    """

    discloses = "nothing by itself: it is part of a combined reply"
    into: Annotated[str, msgspec.Meta(max_length=2**16)]


class Replies(Mapping[str, Any]):
    """The replies of one step, by client, in the transport's order.

    Parameters
    ----------
    replies : mapping of str to Message
        The reply of each client, as returned by `Message.accept`.
    declined : sequence of str
        The clients that declined in this step.
    lost : sequence of str
        The clients that have left the run so far.
    combined : mapping of str to str
        The clients whose replies the transport has combined with those of others. For each, the
        client that has the combined reply.
    """

    def __init__(
        self,
        replies: Mapping[str, Any],
        declined: Sequence[str] = (),
        lost: Sequence[str] = (),
        combined: Mapping[str, str] | None = None,
    ):
        self._replies = dict(replies)
        self.declined = list(declined)
        self.lost = list(lost)
        self.combined = dict(combined or {})

    def __getitem__(self, client: str) -> Any:
        return self._replies[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __repr__(self) -> str:
        return f"Replies({self._replies!r})"

    def without(self, clients: Collection[str], lost: Sequence[str]) -> Replies:
        """Return the replies of the other clients; ``lost`` are the clients lost so far."""
        kept = {name: reply for name, reply in self.items() if name not in clients}
        combined = {name: into for name, into in self.combined.items() if into not in clients}
        return Replies(kept, self.declined, lost, combined)

    @property
    def n_all(self) -> int:
        """The count of clients that have been in the run."""
        return len(self) + len(self.declined) + len(self.lost)

    def n_clients(self, client: str) -> int:
        """Return the count of clients whose data the reply of this client contains."""
        return 1 + list(self.combined.values()).count(client)


@dataclass(frozen=True)
class Reject:
    """Yielded by a flow instead of a request: these clients leave the run.

    Their replies are valid by themselves but cannot be right, as the flow has found out by
    comparing them with what it knows. The run sends nothing. It resumes the flow with `Replies`
    that contain only the lost clients, or throws the error. See `fedlib.core.aggregation`.

    Attributes
    ----------
    reasons : mapping of str to str
        The reason for each client, for the server's log.
    error : Exception or None
        Thrown when too few clients remain; by default `TooFewClients`.
    """

    reasons: Mapping[str, str]
    error: Exception | None = None


__all__ = [
    "Flow",
    "GroupsTooSmall",
    "InvalidRequest",
    "LocalTransport",
    "Reject",
    "Replies",
    "TooFewClients",
    "Transport",
    "run",
    "serve",
]

NEVER_JOINED = "NeverJoined"
MIN_COUNT = "min_count"  # the rule of a site about small groups of rows, as `Declined` names it

Model = TypeVar("Model")
Flow = Generator["Message | Mapping[str, Message] | Reject", "Replies", Model]

logger = logging.getLogger(__name__)


@runtime_checkable
class Transport(Protocol):
    """Carries bytes between the server and its clients.

    Attributes
    ----------
    clients : sequence of str
        The clients' names, in the order in which replies are read.
    errors : mapping of str to exception
        The last exception of each client that runs in this process.
    ledger : Ledger or None
        The ledger of the current run. `run` sets it before the first exchange, so that a transport
        can show the progress and send a lost client the reason.
    """

    clients: Sequence[str]
    errors: Mapping[str, BaseException]
    ledger: Ledger | None

    def exchange(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Deliver each request and return the replies.

        For a client that sent no reply, return an encoded `Failure` or leave the client out. The
        error of a client that has never joined begins with ``NeverJoined``.
        """
        ...


@runtime_checkable
class LocalTransport(Transport, Protocol):
    """A transport that has the data of all clients within reach and creates the clients itself.

    Attributes
    ----------
    combines : bool
        Whether it may combine replies (`Message.combine`).
    """

    combines: bool

    def create_clients(
        self,
        client_class: type[Client],
        options: Sequence[Mapping[str, Any]],
        passive: Collection[int],
    ) -> None:
        """Create the clients of a new run, with these options for each, where the data are."""
        ...

    def labels(self, read: Callable[[Any], Any], lost: Collection[str]) -> Any:
        """Return the labels of all rows; ``read`` returns those of one client after the run."""
        ...


class InvalidRequest(MessageError):
    """A flow's request breaks the rules of its class, so that every client would refuse it.

    The run sends nothing, and the flow receives this error at its ``yield``.
    """


class TooFewClients(RuntimeError):
    """Fewer clients remain than the run needs. The text names each lost client and the reason."""


class GroupsTooSmall(ValueError):
    """Clients that have shared data decline a request, because a group of rows is too small.

    If the request is ``tolerated`` (`Message`), the flow receives this error at its ``yield``.
    These clients remain in the run: they decline further requests for data and receive the result.
    Otherwise they leave the run.

    Attributes
    ----------
    clients : sequence of str
        The clients that decline; empty if the flow raises it.
    """

    clients: Sequence[str] = ()


def serve(
    client: Client,
    request: bytes,
    on_error: Callable[[Exception], object] = logger.exception,
    read: Callable[[bytes], Message] = decode,
) -> bytes:
    """Return the bytes of a client's reply to the bytes of a request.

    An error in the bytes or in the client becomes a `Failure`, which carries only the error's type.
    The exception itself is passed to ``on_error``, by default the log of this process. ``read`` may
    remember the messages of several clients, because nobody can change a message.
    """
    try:
        with one_thread():
            return encode(client.answer(read(request)))
    except Exception as error:
        on_error(error)
        return encode(client.fail(error))


@one_thread()  # once for all steps, because setting it takes longer than a short step
def run(
    flow: Flow[Model],
    transport: Transport,
    *,
    min_clients: int | None = None,
    ledger: Ledger | None = None,
    journal: Journal | str | os.PathLike[str] | None = None,
    verbose: bool | int = False,
) -> Model:
    """Run a flow over a transport and return its model.

    Parameters
    ----------
    flow : generator
        The server's side of a protocol.
    transport : Transport
    min_clients : int, optional
        The count of clients that must remain, in 1..n; by default all n.
    ledger : Ledger, optional
        The ledger that records the messages; by default a new one. It becomes ``transport.ledger``.
    journal : path, optional
        A file that records the run, so that the same call continues it after a crash: it resumes
        the flow with the recorded replies and asks no client for them. ``ledger`` must be empty.
        Parameters of the flow are not compared, but a request that differs from the recorded one
        stops the run. See `fedlib.core.journal`.
    verbose : bool or int, default=False
        Whether to print lines about the steps; see `fedlib.core.ledger.Progress`.

    Raises
    ------
    TooFewClients
        When fewer than ``min_clients`` remain. In process it is chained to the error of the client
        that failed last.
    ValueError
        When there is no client, ``min_clients`` is out of range, or every client is passive.
    fedlib.core.journal.JournalError
        A ValueError: when the journal is of another run, damaged or in use.
    fedlib.core.aggregation.Disagreement
        A ValueError: when the clients disagree, and those that agree are too few.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> from fedlib.core.in_process import InProcess
    >>> parts = {"A": [[0.1], [0.2]], "B": [[5.0]]}
    >>> clients = {name: HorizontalDBSCANClient(X) for name, X in parts.items()}
    >>> flow = HorizontalDBSCAN(cell_size=1.0, min_samples=2).protocol()
    >>> model = run(flow, InProcess(clients))
    >>> model.cells.tolist(), model.labels.tolist()
    ([[0], [5]], [0, -1])
    """
    if journal is not None and not isinstance(journal, Journal):
        with Journal(journal) as opened:
            opened.begin(getattr(flow, "__qualname__", type(flow).__name__), {})
            return run(
                flow,
                transport,
                min_clients=min_clients,
                ledger=ledger,
                journal=opened,
                verbose=verbose,
            )
    progress = Progress(verbose)
    names = _check_names(transport.clients)
    needed = _check_min_clients(min_clients, len(names))
    transport.ledger = ledger = Ledger() if ledger is None else ledger
    if journal is not None:
        journal.enrol(transport, needed)
    current = _Run(transport, names, ledger, journal)
    resume: Callable[[], Message | Mapping[str, Message] | Reject] = partial(next, flow)
    while True:
        try:
            asked = resume()
        except StopIteration as finished:
            progress.finish()
            if journal is not None:
                journal.finish(transport)
            model: Model = finished.value
            return model
        lost_before = dict(ledger.lost)
        try:
            replies = current.take(asked)
        except InvalidRequest as invalid:
            resume = partial(flow.throw, invalid)
            continue
        progress.show(ledger)
        if journal is not None:
            journal.note(ledger)
        error = _reason_to_stop(replies, len(names), needed)
        if isinstance(error, TooFewClients) and not isinstance(asked, Reject):
            suspect = _suspect(current.requests, lost_before, ledger.lost)
            advice = current.advice(lost_before)
            kind = GroupsTooSmall if advice else TooFewClients
            error = kind(f"{_joined(ledger.lost, len(names), needed) or error}{suspect}{advice}")
        if error is None and current.refused:
            resume = partial(flow.throw, _too_small(current))
        elif error is None:
            resume = partial(flow.send, replies)
        elif isinstance(asked, Reject) and asked.error is not None:
            resume = partial(
                flow.throw, _describe(asked.error, lost_before, ledger, transport.errors)
            )
        else:
            resume = partial(flow.throw, _describe(error, ledger.lost, ledger, transport.errors))


@dataclass
class _Run:
    """A run between two steps.

    Attributes
    ----------
    transport, ledger, journal
        As in `run`.
    names : list of str
        The clients at the beginning.
    step : int
        The count of exchanges so far.
    requests : dict of str to Message
        The requests of the last exchange.
    replies : Replies
        What the flow has received last.
    shared : set of str
        The clients that have shared data. Such a client may no longer decline: a result that
        contains one half of its data would be silently wrong.
    refused : list of str
        Those among them that have now declined a request that is ``tolerated``.
    """

    transport: Transport
    names: list[str]
    ledger: Ledger
    journal: Journal | None
    step: int = 0
    requests: dict[str, Message] = field(default_factory=dict)
    replies: Replies = field(default_factory=lambda: Replies({}))
    shared: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def take(self, asked: Message | Mapping[str, Message] | Reject) -> Replies:
        """Take one step: exclude clients, or ask for replies."""
        return self.reject(asked) if isinstance(asked, Reject) else self.exchange(asked)

    def reject(self, rejected: Reject) -> Replies:
        """Record that clients leave the run because of their last replies; send nothing.

        With a combined reply, all clients leave whose data it contains.
        """
        combined, reasons = self.replies.combined, dict(rejected.reasons)
        reasons |= {name: reasons[into] for name, into in combined.items() if into in reasons}
        for name, reason in reasons.items():
            request = type(self.requests[name]).__name__
            self.ledger.note_rejected(name, request, reason)
            self.ledger.lost[name] = f"InvalidReply at {request}, step {self.step}"
        self.replies = Replies({}, self.replies.declined, list(self.ledger.lost), combined)
        self.refused = []
        return self.replies

    def exchange(self, asked: Message | Mapping[str, Message]) -> Replies:
        """Send the requests of one step, read the replies, and record both.

        Raises
        ------
        InvalidRequest
            When a request breaks the rules of its class; nothing is sent.
        """
        present = [name for name in self.names if name not in self.ledger.lost]
        requests = _address(asked, present, self.ledger.lost)
        distinct = {id(request): request for request in requests.values()}
        encoded = {key: _encode(request) for key, request in distinct.items()}  # once each
        self.step, self.requests = self.step + 1, requests
        sent = {name: encoded[id(request)] for name, request in self.requests.items()}
        for name, request in self.requests.items():
            self.ledger.record(self.step, SERVER, name, request, len(sent[name]))
        if self.journal is None:
            received = self.transport.exchange(sent)
        else:
            received = self.journal.exchange(self.transport, self.step, sent, self.ledger)
        replies: dict[str, Any] = {}
        declined: list[str] = []
        self.refused = []
        combined: dict[str, str] = {}
        combines = getattr(self.transport, "combines", False)
        for name, request in self.requests.items():
            data = received.get(name, b"")
            reply, accepted, problem = _read(data, request, combines)
            if isinstance(reply, Combined) and reply.into not in replies:
                reply, problem = Failure("InvalidReply"), "no combined reply contains it"
            if problem:
                self.ledger.note_rejected(name, type(request).__name__, problem)
            self.ledger.record(self.step, name, SERVER, reply, len(data))
            if isinstance(reply, Failure):
                self._lose(name, reply.error)
            elif isinstance(reply, Declined):
                rule = f" ({reply.rule})" if reply.rule else ""
                if rule:
                    logger.warning("client %r declined %s%s", name, type(request).__name__, rule)
                if name in self.shared and request.tolerated and reply.rule == MIN_COUNT:
                    self.refused.append(name)
                elif name in self.shared:
                    self._lose(name, f"Declined{rule}")
                else:
                    declined.append(name)
            else:
                if isinstance(reply, Combined):
                    combined[name] = reply.into
                else:
                    replies[name] = accepted
                    names = getattr(reply, "features", ())
                    if isinstance(names, tuple) and not self.ledger.features:
                        self.ledger.features = names
                if request.asks_for_data:
                    self.shared.add(name)
        self.replies = Replies(replies, declined, list(self.ledger.lost), combined)
        return self.replies

    def advice(self, lost_before: Collection[str]) -> str:
        """Return what the user can do, if clients have now left because of small groups."""
        refused = [
            type(self.requests[name]).advice
            for name, why in self.ledger.lost.items()
            if name not in lost_before and why.startswith(f"Declined ({MIN_COUNT})")
        ]
        return next((f"; {advice}" for advice in refused if advice), "")

    def _lose(self, name: str, why: str) -> None:
        request = type(self.requests[name]).__name__
        self.ledger.lost[name] = f"{why} at {request}, step {self.step}"


def _too_small(current: _Run) -> GroupsTooSmall:
    """Return the error for a flow whose request was refused."""
    request = type(next(iter(current.requests.values()))).__name__
    which = ", ".join(map(repr, current.refused))
    error = GroupsTooSmall(
        f"{which} declined {request} (min_count): its groups of rows, together with those of"
        " earlier replies, are too small for the site's policy"
    )
    error.clients = tuple(current.refused)
    return error


def _check_names(clients: Sequence[str]) -> list[str]:
    names = list(clients)
    if not names:
        raise ValueError("there are no clients")
    if SERVER in names:
        raise ValueError(f"a client must not be called {SERVER!r}")
    return names


def _check_min_clients(min_clients: int | None, n_clients: int) -> int:
    needed = n_clients if min_clients is None else min_clients
    if not isinstance(needed, Integral) or not 1 <= needed <= n_clients:
        raise ValueError(
            f"min_clients must be in 1..{n_clients}, the number of clients; got {min_clients}"
        )
    return int(needed)


def _address(
    asked: Message | Mapping[str, Message], present: list[str], lost: Mapping[str, str]
) -> dict[str, Message]:
    """Return the request for each client, in the transport's order."""
    if isinstance(asked, Message):
        return dict.fromkeys(present, asked)
    absent = {name: lost.get(name, "unknown") for name in asked if name not in present}
    if absent:
        raise ValueError(f"the flow addressed clients that are not in the run: {absent}")
    return {name: asked[name] for name in present if name in asked}


def _encode(request: Message) -> bytes:
    """Return the bytes of a request; raise InvalidRequest if no client could read them."""
    try:
        data = encode(request)
        decode(data, type(request), aligned=False)
    except MessageError as error:
        raise InvalidRequest(f"{type(request).__name__} cannot be sent: {error}") from error
    return data


def _read(data: bytes, request: Message, combines: bool) -> tuple[Message, Any, str]:
    """Return a client's reply, the value that the flow receives for it, and what is wrong with it.

    A reply that does not fit its request becomes ``Failure("InvalidReply")``. `Combined` is
    accepted only if the transport ``combines`` replies.
    """
    if not data:
        return Failure("Lost"), None, ""
    try:
        others = (Declined,) * request.asks_for_data + (Combined,) * combines
        reply = decode(data, request.reply, *others, Failure)
        accepted = request.accept(reply) if isinstance(reply, request.reply) else None
    except MessageError as error:
        return Failure("InvalidReply"), None, str(error)
    return reply, accepted, ""


def _reason_to_stop(replies: Replies, n_clients: int, needed: int) -> Exception | None:
    """Return the error that ends the run, if any."""
    remaining = n_clients - len(replies.lost)
    if remaining < needed:
        return TooFewClients(f"{remaining} of {n_clients} clients remain, {needed} are needed")
    if len(replies.declined) == remaining:
        which = "every remaining client" if replies.lost else "every client"
        return ValueError(f"{which} is passive or declined, so nobody shares any data")
    return None


def _joined(lost: Mapping[str, str], n_clients: int, needed: int) -> str:
    """Return how many clients have joined, if that alone ends the run, else no text."""
    if not all(why.startswith(NEVER_JOINED) for why in lost.values()):
        return ""
    n_joined = n_clients - len(lost)
    joined = f"{n_joined} of {n_clients} clients have" if n_joined else "no client has"
    return f"{joined} joined in time, {needed} are needed"


def _suspect(
    requests: Mapping[str, Message], lost_before: Collection[str], lost: Mapping[str, str]
) -> str:
    """Return a remark if most clients failed at the same request, else no text."""
    failed = [why for name, why in lost.items() if name not in lost_before]
    n_failed = sum(not why.startswith(NEVER_JOINED) for why in failed)
    if n_failed < 2 or 2 * n_failed <= len(requests):
        return ""
    request = type(next(iter(requests.values()))).__name__
    return f"; {n_failed} of {len(requests)} failed at {request}, which points to the request"


def _describe(
    error: Exception, lost: Collection[str], ledger: Ledger, errors: Mapping[str, BaseException]
) -> Exception:
    """Return the error with the lost clients in its text and their last exception as its cause."""
    if not lost:
        return error
    reasons = "; ".join(f"{name!r}: {ledger.why_lost(name)}" for name in lost)
    described = type(error)(f"{error}. Lost: {reasons}")
    described.__cause__ = next(
        (errors[name] for name in reversed(list(lost)) if name in errors), None
    )
    return described
