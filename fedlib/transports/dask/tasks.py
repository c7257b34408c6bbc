"""The functions that run on the workers.

A step of a run is at most three kinds of tasks. `answer` has one per client. It takes the client's
data, or the `Member` made of them, and the `Answer` to the last request that has changed the
client's state. So the states form a chain, which Dask repeats if a worker is lost. `extract` takes
the reply from the answer, so that the state stays on the worker. `combine` adds replies.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from numpy.typing import NDArray

from fedlib.core.client import Client
from fedlib.core.in_process import arrays_of, data_digest
from fedlib.core.messages import Labels, Message, MessageError, decode, encode
from fedlib.core.protocol import Combined, serve
from fedlib.transports.dask.partitions import Source

State = bytes | NDArray[np.signedinteger[Any]] | None


@dataclass(frozen=True)
class Seat:
    """Everything from which a worker makes a client, except its data."""

    name: str
    n_clients: int
    client_class: type[Client]
    options: Mapping[str, Any]
    passive: bool

    def make_client(self, data: Any) -> Client:
        """Return a new client of these data, which may be a `Source`."""
        part = data.read() if isinstance(data, Source) else data
        client = self.client_class(part, **self.options)  # type: ignore[call-arg]
        client.passive = self.passive
        client.enter(self.name, self.n_clients)
        return client


@dataclass
class Member:
    """A client that stays on a worker, and the packed state that it has.

    It is only a cache: the state that counts is in the last `Answer`.
    """

    client: Client
    state: State = None


def _size_of_member(member: Member) -> int:
    """Return the bytes of a client's arrays: Dask must know them to manage its memory."""
    return sum(array.nbytes for _, array in arrays_of(member.client))


sizeof.register(Member, _size_of_member)


class Answer(NamedTuple):
    """A client's reply, and its packed state if the request has changed it."""

    reply: bytes
    changed: bool
    state: State
    error: str


@dataclass(frozen=True)
class Sent:
    """What a worker returns to the server in one step, for one or more clients.

    Attributes
    ----------
    replies : dict of str to bytes
        The reply of each client that is not in ``combined``.
    combined : dict of str to str
        For each client whose reply is part of another one, the client that has that reply.
    changed : set of str
        The clients whose states have changed.
    errors : dict of str to str
        The exceptions of the clients, as text.
    """

    replies: dict[str, bytes]
    combined: dict[str, str] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    errors: dict[str, str] = field(default_factory=dict)

    def __or__(self, other: Sent) -> Sent:
        return Sent(
            self.replies | other.replies,
            self.combined | other.combined,
            self.changed | other.changed,
            self.errors | other.errors,
        )

    def all_replies(self) -> dict[str, bytes]:
        """Return the bytes for each client, also those that stand for a combined reply."""
        into = {name: encode(Combined(root)) for name, root in self.combined.items()}
        return self.replies | into


def join(seat: Seat, data: Any) -> Member:
    """Return a client of these data, for the whole run."""
    return Member(seat.make_client(data))


def answer(seat: Seat, data: Any, previous: Answer | None, request: bytes) -> Answer:
    """Return a client's answer to a request.

    Parameters
    ----------
    seat : Seat
    data : Member, Source or object
        The client; or its data, from which it is made for this request only.
    previous : Answer or None
        The last answer with a changed state.
    request : bytes
    """
    member = data if isinstance(data, Member) else join(seat, data)
    client, state = member.client, None if previous is None else previous.state
    if member.state is not state:
        client.state = unpack(state)
    before, errors = client.state, list[Exception]()
    reply = serve(client, request, errors.append)
    after = client.state
    packed = state if after is before else pack(after)
    changed = packed is not state and not _equal(packed, state)
    member.state = packed if changed else state
    error = f"{type(errors[0]).__name__}: {errors[0]}" if errors else ""
    return Answer(reply, changed, packed if changed else None, error)


def _equal(one: State, other: State) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and one == other


def pack(state: Message | None) -> State:
    """Return a state as bytes; labels become an array of the smallest integers that hold them.

    A worker keeps the states of all its partitions, and labels of 8 bytes per row would be the
    largest part of its memory.

    Examples
    --------
    >>> pack(Labels(np.array([3, -1])))
    array([ 3, -1], dtype=int8)
    """
    if type(state) is not Labels:
        return None if state is None else encode(state)
    largest = int(state.labels.max(initial=0))
    return state.labels.astype(np.min_scalar_type(-largest - 1))


def unpack(state: State) -> Message | None:
    """Return the state that `pack` has packed."""
    if isinstance(state, np.ndarray):
        return Labels(state.astype(np.int64))
    return None if state is None else decode(state)


def extract(name: str, answered: Answer) -> Sent:
    """Return what the server receives of an answer."""
    changed = frozenset([name] if answered.changed else [])
    errors = {name: answered.error} if answered.error else {}
    return Sent({name: answered.reply}, {}, changed, errors)


def combine(client_class: type[Client], request: bytes, sent: Sequence[Sent]) -> Sent:
    """Return replies to one request with those combined that fit together.

    A reply that is not valid, or that is no reply, stays as it is; so do all of them if they
    disagree, so that the server can exclude the minority.

    Parameters
    ----------
    client_class : type of Client
        The class of the clients. Its module registers the messages on this worker.
    request : bytes
    sent : sequence of Sent
        In the order of the clients.
    """
    together = reduce(operator.or_, sent)
    asked = decode(request)
    assert asked.reply in client_class.combinable
    assert asked.reply.combine is not None
    valid: dict[str, Message] = {}
    for name, data in together.replies.items():
        with suppress(MessageError):
            reply = decode(data, asked.reply)
            asked.accept(reply)
            valid[name] = reply
    if len(valid) < 2:
        return together
    try:
        combined = asked.reply.combine(list(valid.values()))
        data = encode(combined)
        asked.accept(combined)
    except ValueError:
        return together
    root = next(iter(valid))
    moved = dict.fromkeys(list(valid)[1:], root)
    replies = {name: reply for name, reply in together.replies.items() if name not in moved}
    into = {name: moved.get(old, old) for name, old in together.combined.items()} | moved
    return Sent(replies | {root: data}, into, together.changed, together.errors)


def digest(seat: Seat, data: Any) -> str:
    """Return a digest of the data of a client, for the journal."""
    return data_digest(data.client if isinstance(data, Member) else seat.make_client(data))
