"""The clients of a protocol and their handlers.

`fedlib.core.protocol` has the rules, and both sides of a run.

Clients around the client of a protocol.

A `Wrapper` passes requests on; its state contains that of the client it wraps. A `WrappingClient`
first prepares its data and then hands it to a protocol's client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from fedlib.core.array_fields import OF_CLIENT, check_indices, index_fields
from fedlib.core.array_types import Floats, Ints
from fedlib.core.messages import (
    MAX_WORK,
    Declined,
    Done,
    Failure,
    Message,
    MessageError,
    check_work,
    decode,
    encode,
    privacy_of,
)
from fedlib.core.site_memory import TableMemory
from fedlib.core.wording import printable

State = TypeVar("State", bound=Message)
Handler = TypeVar("Handler", bound=Callable[..., Message])
Partitioner = TypeVar("Partitioner", bound=Callable[..., Iterable[Ints]])

logger = logging.getLogger(__name__)

# Times the largest value. Preprocessing, components and a sum can subtract three such numbers one
# after the other: of the 53 binary digits of a value, 17 are left.
FAR = 2.0**12
FAR_FROM_ROW = 2.0**40  # times one value, of which a difference then keeps fewer than 13 bits
TINY = 2.0**-400  # the square of a smaller number can be rounded to a multiple of the least float


class OddRows(ValueError):
    """Some rows do not fit a delivered result. The other rows have their labels."""


class BadRequest(ValueError):
    """A request does not fit the columns or the earlier requests, whatever the rows are.

    A handler raises it before it looks at the rows. It is no failure of the site.
    """


class ProtectedFailure(Exception):
    """A reply with noise could not be computed. The reason stays in the log of the site."""


class LostState(RuntimeError):
    """A client was rebuilt without the state that its next reply needs."""


ALL = "all"  # the role of all columns of a schema


def roles_of(client_class: Any) -> tuple[str, ...]:
    """Return the columns that a client takes beside the features, in the order of its part.

    Those of ``(X, y, sample_weight)`` if the class is ``supervised``, and base margins if it
    ``takes_margins``; that of ``(X, sample_weight)`` if it ``takes_weights``. A class that
    ``describes`` a table takes all columns as features, too.
    """
    if getattr(client_class, "supervised", False):
        margins = getattr(client_class, "takes_margins", False)
        return "target", "weight", *(["base_margin"] if margins else [])
    weights = ("weight",) if getattr(client_class, "takes_weights", False) else ()
    return (*weights, ALL) if getattr(client_class, "describes", False) else weights


def handles(request: type[Message]) -> Callable[[Handler], Handler]:
    """Return a decorator that makes a method of a `Client` the handler of a request class.

    Examples
    --------
    >>> from fedlib.clustering.density.horizontal import CellCounts, CountCells
    >>> class EmptyClient(Client):
    ...     @handles(CountCells)
    ...     def count_cells(self, request):
    ...         return CellCounts(np.empty((0, 2), np.int64), np.empty(0, np.int64))
    >>> import numpy as np
    >>> EmptyClient().handle(CountCells(cell_size=1.0)).counts
    array([], dtype=int64)
    """

    def mark(method: Handler) -> Handler:
        method.request_class = request  # type: ignore[attr-defined]
        return method

    return mark


class Partitioned(NamedTuple):
    """What a client states about the groups behind the replies to a request; see `partitions`.

    Attributes
    ----------
    method : str
        The name of the method that yields the groups.
    singly, counts : bool
    terms : tuple of str or None
        None: all fields.
    """

    method: str
    singly: bool
    counts: bool
    terms: tuple[str, ...] | None


def by_rounding(X: ArrayLike, centre: ArrayLike) -> Iterable[Ints]:
    """Yield the rows as groups of their own next to which a centre is so far that they are rounded.

    Next to a centre that is much larger than all values, a difference keeps only the first digits
    of a value. The sum of such differences counts the values above a threshold, which the centre
    sets. A partition with single rows makes a site with a minimum count decline the request. A few
    large values, like a code for a missing one, do not hide that the others are rounded.

    Parameters
    ----------
    X : array (n_rows,) or (n_rows, n_columns)
        Values; NaN for gaps.
    centre : float or array (n_columns,)

    Examples
    --------
    >>> ages = np.array([3.0, 60.0, 97.0])
    >>> [groups.tolist() for groups in by_rounding(ages, 2.0**59)]
    [[1, 2, 3]]
    >>> [*by_rounding(ages, 1000.0)]
    []
    """
    sizes, distance = np.abs(np.nan_to_num(np.asarray(X, np.float64))), np.abs(centre)
    largest = sizes.max(axis=0, initial=0)
    alone = (distance > FAR * largest) & (largest > 0) | (distance > FAR_FROM_ROW * sizes)
    alone &= sizes > 0
    rows = alone if alone.ndim == 1 else alone.any(axis=1)
    if rows.any():
        yield np.where(rows, np.arange(1, len(rows) + 1), 0)


def partitions(
    *requests: type[Message],
    singly: bool = False,
    counts: bool = False,
    terms: tuple[str, ...] | None = None,
) -> Callable[[Partitioner], Partitioner]:
    """Return a decorator that makes a method of a `Client` state the groups behind replies.

    The method takes a request and yields one array (n_rows,) of integers per partition of the
    client's rows: the group of each row, or -1 for a row that the reply leaves out. All values of
    the reply must be sums over the rows of single groups, with or without the weights of the rows
    (`Client.weights_of_rows`). If the reply names its groups
    (`Message.grouped_by`), the numbers are their indices in it.

    A request that no method is marked for has a reply that contains more than such sums.

    Parameters
    ----------
    *requests : message classes
    singly : bool, default=False
        Whether the reply also contains sums over larger groups of functions that the server
        chooses. A site then sends it only if it looks at each group by itself.
    counts : bool, default=False
        Whether the terms of a row do not depend on its features, except through its groups. By
        default, what a wrapper has made of the features divides the rows, too (`Client.prepared`).
    terms : tuple of str, optional
        The fields of the request that change what a row adds, if its group stays the same. A site
        with a minimum count answers a request only for one choice of them, because the difference
        of two answers can belong to single rows. By default these are all fields. Name none if
        other values give no other sums of one group, or sums that follow from each other: a centre
        is no term if it only moves sums (`fedlib.core.points`), and a limit that only clips is
        none if the rows beyond it are a group.

    Examples
    --------
    >>> from fedlib.clustering.kmeans import FederatedKMeansClient
    >>> from fedlib.clustering.kmeans.messages import SumClusters
    >>> FederatedKMeansClient.partitioners[SumClusters]
    Partitioned(method='clusters', singly=False, counts=False, terms=())
    """

    def mark(method: Partitioner) -> Partitioner:
        stated = Partitioned(method.__name__, singly, counts, terms)
        method.partitioned_classes = dict.fromkeys(requests, stated)  # type: ignore[attr-defined]
        return method

    return mark


class Client:
    """Base class of a protocol's clients. A subclass marks one handler per request (`handles`).

    Attributes
    ----------
    X : array
        The client's data, validated when the client is created.
    weight : array (n_rows,), or None
        The weights of the rows; None if they have none.
    features : tuple of str
        The names of the features; empty if they have none.
    passive : bool
        Whether the client receives the result but declines every request that asks for its data.
    state : Message or None
        All that the client must remember between two requests besides its data.
    handlers : dict of message class to str
        The requests that the class can answer and the names of the methods that do it.
    partitioners : dict of message class to Partitioned
        The requests whose replies are sums over groups of rows, and what the client states about
        them (`partitions`).
    name : str
        The client's name in the run; empty before the run.
    run : str
        The identifier of the run, of which there is one per run; empty in process.
    n_clients : int or None
        The count of clients of the run, as the server reports it; None if it does not.
    max_feature : float
        The largest absolute value of a feature that the client takes.
    gaps_allowed : bool
        Whether the client takes features with gaps.
    combinable : tuple of message classes
        The replies that a transport may combine, because the server only needs their sum.
    open_requests : tuple of message classes
        The requests for data whose replies describe no rows, such as the names of the features. A
        client with secure sums answers them without masks, and a site with a budget free of charge:
        the reply, and whether there is one, must be the same for all rows.
    n_shares : int
        How many clients add noise to a sum for certain; more than 1 only within secure sums.
    masked : bool
        Whether the replies to sums are masked.
    memory : TableMemory or None
        What the site remembers about the rows beyond this client; None in a simulation.
    max_work : float
        The most operations per row and feature for one reply (`Message.work`).
    problems : tuple of str
        What is odd about the rows, and what went wrong with requests that deliver a result. The
        server does not learn it.
    """

    X: Any
    weight: Any = None
    features: tuple[str, ...] = ()
    passive = False
    name = ""
    run = ""
    n_clients: int | None = None
    max_feature: ClassVar[float] = 1e100
    gaps_allowed: ClassVar[bool] = False
    combinable: ClassVar[tuple[type[Message], ...]] = ()
    open_requests: tuple[type[Message], ...] = ()
    n_shares = 1
    masked = False
    problems: tuple[str, ...] = ()
    max_work: float = MAX_WORK
    memory: TableMemory | None = None
    state: Any = None
    handlers: ClassVar[dict[type[Message], str]] = {}
    partitioners: ClassVar[dict[type[Message], Partitioned]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        marked = {
            method.request_class: name
            for name, method in vars(cls).items()
            if hasattr(method, "request_class")
        }
        partitioned = {
            request: stated
            for method in vars(cls).values()
            for request, stated in getattr(method, "partitioned_classes", {}).items()
        }
        for base in cls.__bases__:
            marked |= getattr(base, "handlers", {})
            partitioned |= getattr(base, "partitioners", {})
        cls.handlers, cls.partitioners = marked, partitioned

    @property
    def n_features(self) -> int:
        """The count of columns of ``X``."""
        return int(self.X.shape[1])

    def enter(self, name: str, n_clients: int | None, run: str = "") -> None:
        """Note the client's name, the count of clients and the identifier of the run.

        A transport calls it before the run.
        """
        self.name, self.n_clients, self.run = name, n_clients, run

    def renew(self, state: Message | None) -> None:
        """Begin another session after one that ended with this state.

        What protects the rows must outlive a session, which a server can end when it likes.
        Override it in a client that has such a memory.
        """
        self.state = None

    def recall(self, kind: type[State]) -> State:
        """Return the state.

        Raises
        ------
        LostState
            When the state is not of this class, as after a restart without the saved state.
        """
        if not isinstance(self.state, kind):
            raise LostState(f"{type(self).__name__} has no {kind.__name__}")
        return self.state

    def handle(self, request: Message) -> Message:
        """Return the reply of the request's handler.

        Raises
        ------
        TypeError
            When no handler is marked for the request's class.
        """
        self.check_known(request)
        reply: Message = getattr(self, self.handlers[type(request)])(request)
        return reply

    def check_known(self, request: Message) -> None:
        """Check what does not depend on the rows: so a server cannot lock a site by such a request.

        Raises
        ------
        TypeError
            When no handler is marked for the request's class.
        BadRequest
            When a field is an index into the client's features, and too large.
        """
        if type(request) not in self.handlers:
            text = f"{type(self).__name__} has no handler for {type(request).__name__}"
            raise TypeError(f"{text}; {request.needs}" if request.needs else text)
        if OF_CLIENT in index_fields(type(request)).values():
            try:
                check_indices(request, {OF_CLIENT: self.n_features})
            except MessageError as error:
                raise BadRequest(str(error)) from error

    def sum_digits(self, request: Message) -> Mapping[str, tuple[int, ...]] | None:
        """Return the digits of a request in secure sums (`Message.sum_digits`).

        Override it if they also follow from the state.
        """
        return request.sum_digits(self.n_clients or 1)

    def row_digits(self, request: Message) -> Mapping[str, tuple[int, ...]] | None:
        """Return the digits to which a handler rounds what each row adds; None without masks.

        Otherwise a site would round its own sum, which shows how large this sum is, if the server
        lets the digits be coarse.
        """
        return self.sum_digits(request) if self.masked else None

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or `Declined` if a passive client must not share.

        The reply to a request that delivers a result (``asks_for_data`` is False) is `Done`,
        whatever the rows are. If its handler fails, the reason is logged and becomes one of
        `problems`.

        Raises
        ------
        fedlib.core.messages.TooMuchWork
            A ValueError: when the request is too much work, before anything is computed from rows.
        ProtectedFailure
            When a reply with noise fails, whatever the reason is. It locks the site's memory.
        fedlib.core.site_memory.SiteIsLocked
            When the site is locked, and the reply would have noise.
        """
        if request.asks_for_data:
            if self.passive:
                return Declined()
            check_work(request, self.max_work)
            return self.handle(request) if privacy_of(request) is None else self._noisy(request)
        check_work(request, self.max_work)
        try:
            return self.handle(request)
        except Exception as error:
            self.note(f"{type(request).__name__}: {error}", not isinstance(error, OddRows))
            return Done()

    def _noisy(self, request: Message) -> Message:
        """Return a reply with noise. What fails for some rows only is one constant answer."""
        lock = None if self.memory is None else self.memory.lock
        if lock is not None:
            lock.check()
        self.check_known(request)
        try:
            return self.handle(request)
        except (BadRequest, LostState):  # for all rows alike
            raise
        except Exception as error:
            failed = ProtectedFailure(f"{type(request).__name__}: {error}")
            if lock is not None:
                lock.close(str(failed))
            raise failed from error

    def note(self, problem: str, exc_info: bool = False) -> None:
        """Log what the server must not learn, and add it to `problems` once."""
        if problem not in self.problems:
            logger.warning("%s", printable(problem), exc_info=exc_info)
            self.problems = (*self.problems, problem)

    def fail(self, error: Exception) -> Failure:
        """Return what is sent instead of a reply after an error: its type, but not its text."""
        return Failure(type(error).__name__)

    def partition(self, request: Message, singly: bool = False) -> Iterable[Ints] | None:
        """Return the partitions of the rows behind a reply (`partitions`).

        None if the reply contains more than sums over groups of rows, or with ``singly``, if it is
        not known over which. Call it after `answer`.
        """
        stated = self.stated(request)
        if stated is None or stated.singly > singly:
            return None
        groups: Iterable[Ints] = getattr(self, stated.method)(request)
        if stated.counts or not self._has_tiny_numbers():
            return groups
        return *groups, np.arange(len(self.X))

    def _has_tiny_numbers(self) -> bool:
        """Return whether squares of the rows' numbers keep only the first digits, or none.

        A sum of them would count the rows above a threshold, if a delivery makes them so small.
        """
        X = self.X
        if not isinstance(X, np.ndarray) or X.dtype.kind != "f":
            return False
        return bool(((np.abs(X) < TINY) & (X != 0)).any())

    def stated(self, request: Message) -> Partitioned | None:
        """Return what this client states about the groups behind a reply; None if it is nothing."""
        return self.partitioners.get(type(request))

    def prepared(self, request: Message) -> Iterable[Ints] | None:
        """Return the partitions (n_rows,) of the rows by what deliveries have made of them.

        Each separates the rows of which the server could choose the features: rows of different
        groups may have features that tell them apart in a sum. None if it is not known. A client
        whose own rows never change has none.
        """
        return ()

    def weights_of_rows(self) -> Floats | None:
        """Return the weights (n_rows,) of the rows in `partition`; None if they have none."""
        return None if self.weight is None else np.asarray(self.weight, np.float64)


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


OwnState = TypeVar("OwnState", bound=WrappedState)


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


class Wrapper(Client, Generic[OwnState]):
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

    state_class: type[OwnState]
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
    def state(self) -> OwnState:
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
