"""In process: the clients are objects in this process and work in threads.

As on any other transport, only bytes pass between server and clients. Equal requests of one step
are read once, because nobody can change a message.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.core.client import Client
from fedlib.core.column_names import by_client
from fedlib.core.journal import Place
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Message, class_name, decode, encode
from fedlib.core.protocol import TooFewClients, serve
from fedlib.core.threads import check_n_jobs, one_thread

# Seconds per reply below which one thread is faster than several, which wait for each other.
SHORT = 5e-5


class InProcess:
    """A transport to clients in this process.

    Parameters
    ----------
    clients : mapping of str to Client
        The clients by name, in the order in which their replies are read.
    n_jobs : int, optional
        The count of clients that work at the same time, at least 1, or -1 for the number of
        processors, which is the default.

    Attributes
    ----------
    errors : dict of str to Exception
        The exception of each client whose last reply was a failure.
    ledger : Ledger or None
        The ledger of the current run.
    journaled : bool
        Whether the run has a journal.

    Raises
    ------
    ValueError
        When ``n_jobs`` is another value.

    Examples
    --------
    >>> from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
    >>> from fedlib.core.messages import decode, encode
    >>> transport = InProcess({"A": HorizontalDBSCANClient([[0.1], [0.2], [5.0]])})
    >>> decode(transport.exchange({"A": encode(CountCells(cell_size=1.0))})["A"])
    CellCounts(cells=array([[0],
           [5]]), counts=array([2, 1]))
    """

    def __init__(self, clients: Mapping[str, Client], n_jobs: int | None = None):
        self._enter(clients)
        self._errors: dict[str, BaseException] = {}
        self.errors: Mapping[str, BaseException] = self._errors
        self.ledger: Ledger | None = None
        self.journaled = False
        self._n_workers = check_n_jobs(-1 if n_jobs is None else n_jobs)
        self._seconds: dict[str, float] = {}  # per client, of the last request of each class
        self._pool = ThreadPoolExecutor(self._n_workers, thread_name_prefix="client")

    def _enter(self, clients: Mapping[str, Client]) -> None:
        self._clients = dict(clients)
        self.clients: Sequence[str] = list(self._clients)
        for name, client in self._clients.items():
            client.enter(name, len(self._clients))

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Deliver the requests and return each client's reply or `Failure`."""
        start = perf_counter()
        kind = class_name(next(iter(requests.values()), b""))
        is_short = self._seconds.get(kind, math.inf) < SHORT
        # This thread serves clients too.
        n_others = 0 if is_short else min(self._n_workers, len(requests)) - 1
        pending = iter(requests.items())  # shared: CPython advances it for one thread at a time
        read = cache(decode)
        others = [self._pool.submit(self._serve_all, pending, read) for _ in range(n_others)]
        replies = dict(self._serve_all(pending, read))
        for task in others:
            replies.update(task.result())
        self._seconds[kind] = (perf_counter() - start) / max(1, len(requests))
        return {name: replies[name] for name in requests}

    def _serve_all(
        self, pending: Iterator[tuple[str, bytes]], read: Callable[[bytes], Message]
    ) -> list[tuple[str, bytes]]:
        """Serve the clients that no other thread has taken from the iterator yet."""
        with one_thread():  # set once for all of them
            return [(name, self._serve(name, request, read)) for name, request in pending]

    def _serve(self, name: str, request: bytes, read: Callable[[bytes], Message]) -> bytes:
        self._errors.pop(name, None)
        return serve(self._clients[name], request, partial(self._errors.__setitem__, name), read)

    def own_error(self, ended: TooFewClients) -> BaseException | None:
        """Return the error of the client whose failure ended the run; None if the server ended it.

        If several clients failed at the same step, it is that of the first. Notes name the client,
        the errors of the others, and the clients that remain.
        """
        lost = {} if self.ledger is None else self.ledger.lost
        at_the_end = {name: why.partition(" at ")[2] for name, why in lost.items()}
        last = next(reversed(at_the_end.values()), None)
        failed = [name for name in lost if name in self._errors and at_the_end[name] == last]
        if not failed:
            return None
        first, *others = failed
        error = self._errors[first]
        error.add_note(f"client {first!r} raised this. {ended}")
        for name in others:
            if repr(self._errors[name]) != repr(error):
                error.add_note(f"client {name!r} raised {self._errors[name]!r}")
        return error

    # For a journal

    def data_digests(self) -> dict[str, str]:
        """Return a digest of the data of each client."""
        return {name: data_digest(client) for name, client in self._clients.items()}

    def states(self, clients: Collection[str]) -> dict[str, bytes]:
        """Return the encoded states of those of these clients that have one."""
        states = {name: self._clients[name].state for name in clients}
        return {name: encode(state) for name, state in states.items() if state is not None}

    def resume(self, place: Place) -> None:
        """Give each client the state that it had at this place of the run."""
        for name, client in self._clients.items():
            state = place.states.get(name)
            client.state = None if state is None else decode(state)


class Parts(InProcess):
    """A transport to one client per part of a list: a `fedlib.core.protocol.LocalTransport`.

    Parameters
    ----------
    parts : sequence, or mapping or Series with the names of the clients
        The data, one part per client.
    make : callable
        Returns the clients by name. It takes the parts by name and the arguments of
        `create_clients`.

    Raises
    ------
    ValueError
        When ``parts`` is something else, such as one table.
    """

    combines = False

    def __init__(self, parts: Any, make: Callable[..., Mapping[str, Client]]):
        super().__init__({})
        self._parts, self._make = by_client(parts), make
        self.clients = list(self._parts)

    def create_clients(
        self,
        client_class: type[Client],
        options: Sequence[Mapping[str, Any]],
        passive: Collection[int],
    ) -> None:
        """Create the clients of a new run."""
        self._enter(self._make(self._parts, client_class, options, passive))

    def report_problems(self, lost: Collection[str], min_clients: int | None) -> None:
        """Report what went wrong at the clients.

        A result that does not fit the rows of a part is an error if no client may be lost. A client
        that failed although the run went on without it gives a warning.
        """
        for name in lost:
            if name in self._errors:
                text = f"parts[{name}] left the run: {self._errors[name]!r}"
                warnings.warn(text, stacklevel=5)
        for name, client in self._clients.items():
            if client.problems and name not in lost:
                text = f"parts[{name}]: {'; '.join(client.problems)}"
                if min_clients is None:
                    raise ValueError(text)
                warnings.warn(text, stacklevel=5)

    def close(self) -> None:
        """Let the threads end now, and not when nothing refers to them any more."""
        self._pool.shutdown(wait=False)

    def labels(self, read: Callable[[Any], Any], lost: Collection[str]) -> list[Any]:
        """Return the labels of each client, None for a lost one."""
        return [None if name in lost else read(one) for name, one in self._clients.items()]


def data_digest(client: Client) -> str:
    """Return a digest of everything in a client's data that a reply can depend on."""
    digest = hashlib.sha256(repr((type(client).__name__, client.passive, client.features)).encode())
    for place, array in arrays_of(client):
        digest.update(repr((place, array.dtype.str, array.shape)).encode())
        if array.dtype.hasobject:  # text, and gaps in it
            digest.update(repr(array.tolist()).encode())
        elif array.size:
            digest.update(np.ascontiguousarray(array).data.cast("B"))
    return digest.hexdigest()[:16]


def arrays_of(client: Client) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays in the attributes of a client, and the place of each."""
    for name, value in sorted(vars(client).items()):
        if not isinstance(value, Mapping):  # the client's cache: it follows from the data
            yield from _arrays(name, value)


def _arrays(place: str, value: object) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays in a value, also those in a sequence or a table, and their places."""
    if isinstance(value, np.ndarray):
        yield place, value
    elif isinstance(value, tuple | list):
        for i, item in enumerate(value):
            yield from _arrays(f"{place}[{i}]", item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(f"{place}[{key!r}]", item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _arrays(f"{place}.{field.name}", getattr(value, field.name))
