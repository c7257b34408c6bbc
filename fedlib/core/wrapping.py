"""Clients around the client of a protocol.

A `Wrapper` passes requests on; its state contains that of the client it wraps. A `WrappingClient`
first prepares its data and then hands it to a protocol's client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import numpy as np

from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client, LostState, Partitioned
from fedlib.core.messages import Message, decode, encode
from fedlib.core.site_memory import TableMemory


def encode_state(client: Client) -> bytes:
    """Return the encoded state of a client; empty if it has none."""
    return b"" if client.state is None else encode(client.state)


def decode_state(state: bytes) -> Any:
    """Return what `encode_state` has encoded, a message or None."""
    return decode(state) if state else None


class WrappedState(Message):
    """Base class of the states of a `Wrapper`.

    Attributes
    ----------
    inner : bytes
        The state of the protocol's client, encoded; empty if it has none.
    """

    discloses = "nothing: it stays with the client"
    inner: bytes = b""

    @property
    def labels(self) -> Any:
        """The labels in the state of the protocol's client.

        Raises
        ------
        AttributeError
            When it has none.
        """
        return decode_state(self.inner).labels


State = TypeVar("State", bound=WrappedState)


class Passed:
    """An attribute that a client also sets at the client that it wraps, whenever it is set."""

    def __set_name__(self, owner: type[Client], name: str) -> None:
        self.name = name

    def __get__(self, client: Client | None, owner: type[Client]) -> Any:
        default = getattr(Client, self.name)
        return default if client is None else vars(client).get(self.name, default)

    def __set__(self, client: Any, value: Any) -> None:
        vars(client)[self.name] = value
        if client.inner is not None:
            setattr(client.inner, self.name, value)


class Wrapper(Client, Generic[State]):
    """Base class of clients around the client of a protocol.

    Parameters
    ----------
    client : Client
        The protocol's client.

    Attributes
    ----------
    state_class : type
        The class of the states.
    """

    state_class: type[State]
    max_work = Passed()

    def __init__(self, client: Client):
        self.inner = client
        self.X, self.features, self.passive = client.X, client.features, client.passive
        self._state = self.state_class()

    def enter(self, name: str, n_clients: int | None, run: str = "") -> None:
        """Note what a transport tells before the run, also at the wrapped client."""
        super().enter(name, n_clients, run)
        self.inner.enter(name, n_clients, run)

    def check_known(self, request: Message) -> None:
        """Ask the wrapped client about what this client does not answer itself."""
        if type(request) not in self.handlers:
            self.inner.check_known(request)

    def sum_digits(self, request: Message) -> Mapping[str, tuple[int, ...]] | None:
        """Return what the wrapped client returns."""
        return self.inner.sum_digits(request)

    @property
    def memory(self) -> TableMemory | None:
        """What the site remembers about the rows of the wrapped client."""
        return self.inner.memory

    @memory.setter
    def memory(self, memory: TableMemory | None) -> None:
        self.inner.memory = memory

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong at the wrapped client."""
        return self.inner.problems

    @problems.setter
    def problems(self, problems: tuple[str, ...]) -> None:
        self.inner.problems = problems

    @property
    def state(self) -> State:
        """The state of this client, which contains that of the protocol's client."""
        return msgspec.structs.replace(self._state, inner=encode_state(self.inner))

    @state.setter
    def state(self, state: Message | None) -> None:
        state = self.state_class() if state is None else state
        if not isinstance(state, self.state_class):
            raise LostState(
                f"{type(self).__name__} has no {self.state_class.__name__} but a"
                f" {type(state).__name__}"
            )
        self._state = state
        self.inner.state = decode_state(state.inner)

    def renew(self, state: Message | None) -> None:
        """Keep the own state, and renew that of the wrapped client."""
        self.state = state
        self.inner.renew(self.inner.state)

    def _keep(self, **changes: Any) -> None:
        """Change fields of the state."""
        self._state = msgspec.structs.replace(self._state, **changes)


class WrappingClient(Client):
    """A client that answers some requests itself and passes all others to the client it wraps.

    Attributes
    ----------
    inner : Client or None
        The protocol's client; None until `prepares` has arrived.
    inner_rows : array of int64, optional
        Which rows of this client the wrapped client has; by default all in the same order. Rows
        for validation are behind those of ``X``.
    prepares : message class
        The request after which the wrapped client exists.
    wraps : str
        The name of the argument with the class of the client that it wraps.
    """

    wraps: ClassVar[str] = "client_class"
    masked, n_shares, max_work, memory = Passed(), Passed(), Passed(), Passed()
    inner: Client | None = None
    inner_rows: Ints | None = None
    prepares: ClassVar[type[Message]]

    def handle(self, request: Message) -> Message:
        """Return the reply of this client's handler, or else that of the wrapped client.

        Raises
        ------
        LostState
            When the wrapped client is asked before it exists.
        """
        if self._answers(request):
            return super().handle(request)
        return self._prepared().handle(request)

    def check_known(self, request: Message) -> None:
        """Ask the wrapped client, once it exists, about what this client does not answer."""
        if not self._answers(request) and self.inner is not None:
            self.inner.check_known(request)

    def partition(self, request: Message, singly: bool = False) -> Iterable[Ints] | None:
        """Return the partitions of this client's rows, also for replies of the wrapped client."""
        rows: Ints | slice | None = self.inner_rows
        if self._answers(request):
            found, rows = super().partition(request, singly), slice(len(self.X))
        else:
            found = self._prepared().partition(request, singly)
        return None if found is None else (_spread(labels, rows, self._n_rows) for labels in found)

    def stated(self, request: Message) -> Partitioned | None:
        """Return what this client or the wrapped one states about the groups behind a reply."""
        return (
            super().stated(request) if self._answers(request) else self._prepared().stated(request)
        )

    def prepared(self, request: Message) -> Iterable[Ints] | None:
        """Return the partitions by what this client and the wrapped one have made of the rows."""
        stated = self.stated(request)
        if self._answers(request) or (stated is not None and stated.counts):
            return ()
        own, others = self.preparation(), self._prepared().prepared(request)
        if own is None or others is None:
            return None
        return *own, *(_spread(labels, self.inner_rows, self._n_rows) for labels in others)

    def preparation(self) -> Iterable[Ints] | None:
        """Return the partitions (n_rows,) of the rows by what this client has made of them.

        By default they are not known: a site with a minimum count then sends only counts.
        """
        return None

    def weights_of_rows(self) -> Floats | None:
        """Return the weights of this client's rows; 0 for those that the wrapped client lacks."""
        weights = super().weights_of_rows() if self.inner is None else self.inner.weights_of_rows()
        if weights is None or self.inner_rows is None:
            return weights
        spread = np.zeros(self._n_rows)
        spread[self.inner_rows] = weights
        return spread

    def sum_digits(self, request: Message) -> Mapping[str, tuple[int, ...]] | None:
        """Return what the wrapped client returns, once it exists and answers the request."""
        if self.inner is None or self._answers(request):
            return super().sum_digits(request)
        return self.inner.sum_digits(request)

    def renew(self, state: Message | None) -> None:
        """Keep the preparation, and renew the state of the wrapped client."""
        self.state = state
        if self.inner is not None:
            self.inner.renew(self.inner.state)

    def enter(self, name: str, n_clients: int | None, run: str = "") -> None:
        """Note what a transport tells before the run, also at the wrapped client."""
        super().enter(name, n_clients, run)
        if self.inner is not None:
            self.inner.enter(name, n_clients, run)

    def _wrap(self, inner: Client, rows: Ints) -> None:
        """Pass requests on, from now on, to a client that has some rows of this one."""
        inner.n_shares, inner.masked = self.n_shares, self.masked
        inner.max_work, inner.memory = self.max_work, self.memory
        inner.enter(self.name, self.n_clients, self.run)
        self.inner, self.inner_rows = inner, rows

    def _answers(self, request: Message) -> bool:
        """Return whether this client answers a request itself."""
        return type(request) in self.handlers

    @property
    def _n_rows(self) -> int:
        """The count of all rows: those of ``X``, and what a subclass has beside them."""
        return len(self.X)

    def _prepared(self) -> Client:
        if self.inner is None:
            raise LostState(f"{type(self).__name__} has no {self.prepares.__name__}")
        return self.inner

    def _inner_state(self) -> bytes:
        """Return the encoded state of the wrapped client; empty if it has none."""
        return encode_state(self._prepared())

    def _restore_inner(self, state: bytes) -> None:
        """Give the wrapped client a state that `_inner_state` has returned."""
        if state:
            self._prepared().state = decode(state)


def usable_rows(use: Callable[[Ints], object], rows: Ints) -> tuple[Ints, str]:
    """Return the rows that can be used, and why the first other one cannot be.

    A row that cannot be used is left out by itself, so that the state after a delivery does not
    tell whether there is one.

    Parameters
    ----------
    use : callable
        Takes rows, and raises an exception if one of them cannot be used.
    rows : array (n_rows,) of int64

    Examples
    --------
    >>> usable_rows(lambda rows: [1 // (row - 1) for row in rows.tolist()], np.arange(3))
    (array([0, 2]), 'ZeroDivisionError: integer division or modulo by zero')
    """
    try:
        use(rows)
        return rows, ""
    except Exception as error:
        if len(rows) < 2:
            return rows[:0], f"{type(error).__name__}: {error}"
    parts = [usable_rows(use, part) for part in np.array_split(rows, 2)]
    return np.concatenate([kept for kept, _ in parts]), next(text for _, text in parts if text)


def _spread(labels: Ints, rows: Ints | slice | None, n_rows: int) -> Ints:
    """Return the labels of all rows from those of some; -1 for the others."""
    if rows is None:
        return labels
    spread = np.full(n_rows, -1, np.int64)
    spread[rows] = labels
    return spread
