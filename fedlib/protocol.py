"""Protocols: a server flow and clients, and `run`, which lets them talk over any transport.

The rules:

- The server is a generator, the flow. It yields one request to everybody or a mapping of clients to
  requests, is resumed with the `Replies`, and returns the model. It knows no network.
- A client is an object with one handler a request. What it must remember between two requests is
  its ``state``, a message, so that a client can be rebuilt elsewhere from its data and state.
- `run` is the only place that deals with bytes, disclosure and failures. A client that fails, or
  whose answer is not what the request asks for, leaves for the rest of the run. With fewer than
  ``min_clients`` left, `TooFewClients` is raised at the flow's ``yield``.
- `serve` is its other end: one request's bytes in, one reply's bytes out, never an exception.
- Both leave one thread to BLAS and OpenMP, so that no sum depends on how many cores there are.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, singledispatchmethod
from numbers import Integral
from typing import Any, Protocol, TypeVar, runtime_checkable

from threadpoolctl import OpenBLASController, ThreadpoolController

from fedlib.ledger import SERVER, Ledger
from fedlib.messages import Declined, Done, Failure, Message, MessageError, decode, encode

__all__ = [
    "Client",
    "Flow",
    "LostState",
    "Replies",
    "TooFewClients",
    "Transport",
    "agree",
    "agree_on_names",
    "run",
    "serve",
]

Model = TypeVar("Model")
State = TypeVar("State", bound=Message)
Flow = Generator[Message | Mapping[str, Message], "Replies", Model]

logger = logging.getLogger(__name__)


@runtime_checkable
class Transport(Protocol):
    """What carries bytes between the server and its clients.

    ``clients`` are their names, in the order in which replies are read. ``exchange`` delivers each
    request and returns the replies, a `Failure` or nothing for a client that gave none. ``errors``
    holds the exceptions of clients that live in this process.
    """

    clients: Sequence[str]
    errors: Mapping[str, BaseException]

    def exchange(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]: ...


class Replies(Mapping[str, Any]):
    """The replies of one step by client, in the transport's order whatever order they came in.

    A client that declined or is lost is not among them; ``declined`` names those that declined in
    this step, ``lost`` those that have left the run so far.
    """

    def __init__(
        self,
        replies: Mapping[str, Message],
        declined: Sequence[str] = (),
        lost: Sequence[str] = (),
    ):
        self._replies = dict(replies)
        self.declined = list(declined)
        self.lost = list(lost)

    def __getitem__(self, client: str) -> Any:
        return self._replies[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __repr__(self) -> str:
        return f"Replies({self._replies!r})"


class TooFewClients(RuntimeError):
    """Fewer clients are left than the run needs. The text names who left, when and why."""


class LostState(RuntimeError):
    """A client was rebuilt without the state that its next answer needs."""


class Client:
    """Base class of a protocol's clients.

    Attributes
    ----------
    X : array
        Its data, which it validates when it is made.
    features : tuple of str
        The names of its features, where they have any.
    passive : bool
        A passive client does what it is told and declines whatever asks for its data.
    state : Message or None
        All that it must remember between two requests beside its data.
    """

    X: Any
    features: tuple[str, ...] = ()
    passive = False
    state: Any = None

    def recall(self, kind: type[State]) -> State:
        """Return the state, or raise `LostState` where it is not what an earlier request left."""
        if not isinstance(self.state, kind):
            raise LostState(f"{type(self).__name__} has no {kind.__name__}")
        return self.state

    @singledispatchmethod
    def handle(self, request: Message) -> Message:
        """Answer a request; subclasses register one handler for each."""
        raise TypeError(f"{type(self).__name__} has no answer to {type(request).__name__}")

    def answer(self, request: Message) -> Message:
        """Answer a request, or decline where a passive client must."""
        if self.passive and request.reply is not Done:
            return Declined()
        return self.handle(request)


def serve(
    client: Client, request: bytes, on_error: Callable[[Exception], object] = logger.exception
) -> bytes:
    """Return the bytes of a client's reply to a request's bytes.

    An error, of the client or in the bytes, becomes a `Failure` that carries its type alone; the
    error itself goes to ``on_error``, by default to this side's log.
    """
    try:
        with one_thread():
            return encode(client.answer(decode(request)))
    except Exception as error:
        on_error(error)
        return encode(Failure(type(error).__name__))


@lru_cache(maxsize=2)
def _libraries(kind: str, n_modules: int) -> list[Any]:
    """Return the libraries that are loaded: looked for again only when modules were imported."""
    return list(ThreadpoolController().select(user_api=kind).lib_controllers)


def _limit(kind: str) -> list[tuple[Any, int]]:
    """Leave one thread to these libraries; return what each had."""
    libraries = _libraries(kind, len(sys.modules))
    had = [(library, library.get_num_threads()) for library in libraries]
    _set([(library, 1) for library in libraries])
    return had


def _set(numbers: list[tuple[Any, int]]) -> None:
    # OpenBLAS heeds only the thread that spoke first, until that thread lets go.
    OpenBLASController.clear_controlling_thread(force=True)
    for library, number in numbers:
        library.set_num_threads(number)
    OpenBLASController.clear_controlling_thread(force=True)


_lock = threading.Lock()
_blas: dict[str, Any] = {"inside": 0, "had": []}


@contextmanager
def one_thread() -> Iterator[None]:
    """Leave one thread to BLAS and OpenMP, for this thread's work.

    OpenMP's limit is the thread's own. That of BLAS is the process's: it is lifted when the last
    of several threads is done.
    """
    openmp = _limit("openmp")
    with _lock:
        _blas["inside"] += 1
        if _blas["inside"] == 1:
            _blas["had"] = _limit("blas")
    try:
        yield
    finally:
        with _lock:
            _blas["inside"] -= 1
            if _blas["inside"] == 0:
                _set(_blas["had"])
        _set(openmp)


def agree(what: str, values: Mapping[str, Any], show: Callable[[Any], str] = str) -> Any:
    """Return what all clients say; ``show`` puts it into words.

    Raises
    ------
    ValueError
        When they do not all say the same; it names the clients.

    Examples
    --------
    >>> agree("the number of features", {"A": 2, "B": 2, "C": 3})
    Traceback (most recent call last):
    ...
    ValueError: clients disagree on the number of features: 2 at 'A', 'B'; 3 at 'C'
    """
    said: dict[Any, list[str]] = {}
    for client, value in values.items():
        said.setdefault(value, []).append(repr(client))
    if len(said) > 1:
        sides = "; ".join(f"{show(value)} at {', '.join(names)}" for value, names in said.items())
        raise ValueError(f"clients disagree on {what}: {sides}")
    return next(iter(said))


def agree_on_names(features: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where clients that name their features do not name the same, in order.

    To be asked before `agree` on their number, which does not say whose column is missing. A client
    that names none is believed to have the others'.
    """
    named = {client: tuple(names) for client, names in features.items() if names}
    if named:
        agree("the features", named, ", ".join)


def run(
    flow: Flow[Model],
    transport: Transport,
    *,
    min_clients: int | None = None,
    ledger: Ledger | None = None,
) -> Model:
    """Run a flow over a transport and return its model.

    Parameters
    ----------
    flow : generator
        The server's side of a protocol.
    transport : Transport
    min_clients : int, optional
        The number of clients, in 1..n, without which the run cannot go on; by default all.
    ledger : Ledger, optional
        Where to record the messages.

    Raises
    ------
    TooFewClients
        When clients failed and fewer than ``min_clients`` are left. In process it is chained to the
        error of the last client that failed.
    ValueError
        When there is no client, ``min_clients`` is out of range, every client is passive, or the
        clients disagree.

    Examples
    --------
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient, horizontal_dbscan
    >>> from fedlib.transports.in_process import InProcess
    >>> parts = {"A": [[0.1], [0.2]], "B": [[5.0]]}
    >>> clients = {name: HorizontalDBSCANClient(X) for name, X in parts.items()}
    >>> model = run(horizontal_dbscan(cell_size=1.0, min_samples=2), InProcess(clients))
    >>> model.cells.tolist(), model.labels.tolist()
    ([[0], [5]], [0, -1])
    """
    names = list(transport.clients)
    if not names:
        raise ValueError("there are no clients")
    if SERVER in names:
        raise ValueError(f"no client may be called {SERVER!r}")
    needed = len(names) if min_clients is None else min_clients
    if not isinstance(needed, Integral) or not 1 <= needed <= len(names):
        raise ValueError(f"min_clients must be in 1..{len(names)}, the clients; got {min_clients}")
    ledger = Ledger() if ledger is None else ledger
    lost = ledger.lost
    action: Callable[[Any], Message | Mapping[str, Message]] = flow.send
    news: Any = None
    step = 0
    while True:
        step += 1
        try:
            with one_thread():
                asked = action(news)
        except StopIteration as finished:
            return finished.value
        requests = _address(asked, [name for name in names if name not in lost], lost)
        sent = {name: encode(request) for name, request in requests.items()}
        for name, request in requests.items():
            ledger.record(step, SERVER, name, request, len(sent[name]))
        received = transport.exchange(sent)
        replies: dict[str, Message] = {}
        declined = []
        for name, request in requests.items():
            data = received.get(name, b"")
            reply = _read(data, request)
            ledger.record(step, name, SERVER, reply, len(data))
            if isinstance(reply, Failure):
                lost[name] = f"{reply.error} at {type(request).__name__}, step {step}"
            elif isinstance(reply, Declined):
                declined.append(name)
            else:
                replies[name] = reply
        left = len(names) - len(lost)
        if left < needed:
            text = f"{left} of {len(names)} clients left, {needed} needed"
            action, news = flow.throw, _end(TooFewClients, text, lost, transport.errors)
        elif len(declined) == left:
            text = f"every client{' left' if lost else ''} is passive: nobody shares anything"
            action, news = flow.throw, _end(ValueError, text, lost, transport.errors)
        else:
            action, news = flow.send, Replies(replies, declined, list(lost))


def _address(
    asked: Message | Mapping[str, Message], present: list[str], lost: Mapping[str, str]
) -> dict[str, Message]:
    """Return the request for each client, in the transport's order."""
    if isinstance(asked, Message):
        return dict.fromkeys(present, asked)
    strangers = [name for name in asked if name not in present]
    if strangers:
        gone = {name: lost.get(name, "unknown") for name in strangers}
        raise ValueError(f"the flow asked clients that are not there: {gone}")
    return {name: asked[name] for name in present if name in asked}


def _read(data: bytes, request: Message) -> Message:
    """Decode a client's reply; whatever else it sent becomes a `Failure`."""
    if not data:
        return Failure("Lost")
    try:
        reply = decode(data, request.reply, Declined, Failure)
        if isinstance(reply, request.reply):
            request.check(reply)
        return reply
    except MessageError as error:
        return Failure(type(error).__name__)


def _end(
    kind: type[Exception], text: str, lost: Mapping[str, str], errors: Mapping[str, BaseException]
) -> Exception:
    """Return the error that ends a run: it names who was lost and is caused by their last error."""
    who = "; ".join(f"{name!r}: {why}" for name, why in lost.items())
    error = kind(f"{text}. Lost: {who}" if lost else text)
    error.__cause__ = next((errors[name] for name in reversed(list(lost)) if name in errors), None)
    return error
