"""Tools for tests and experiments: a transport that records all messages and can alter replies."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np

from fedlib.core.array_types import Ints
from fedlib.core.client import Client
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Message, decode, encode
from fedlib.core.protocol import serve

Tamper = Callable[[bytes, bytes], bytes | None]


@dataclass(frozen=True)
class Exchange:
    """One exchange: the messages sent and received, and the processor time that they took.

    Attributes
    ----------
    request_bytes, reply_bytes : dict of str to bytes
        The encoded messages by client. A client whose reply was lost has no entry in
        ``reply_bytes``.
    client_seconds : dict of str to float
        The processor time, in seconds, that each client took to reply.
    server_seconds : float
        The server's processor time, in seconds, since the previous exchange, or since the recorder
        was created.
    """

    request_bytes: dict[str, bytes]
    reply_bytes: dict[str, bytes]
    client_seconds: dict[str, float]
    server_seconds: float

    @property
    def requests(self) -> dict[str, Message]:
        """The requests, decoded."""
        return {name: decode(data) for name, data in self.request_bytes.items()}

    @property
    def replies(self) -> dict[str, Message]:
        """The replies, decoded. Raises `MessageError` if one was replaced by invalid bytes."""
        return {name: decode(data) for name, data in self.reply_bytes.items()}


@contextmanager
def seeded_noise(seed: int) -> Iterator[None]:
    """Make the noise of clients in this process follow from a seed; it protects nothing then.

    NumPy draws this noise, from floats, because the samplers of OpenDP have no seed. The seed of a
    reply's noise is a digest of ``seed``, of the reply without noise, and of how many equal ones
    came before it. So the noise of a run does not depend on the order in which threads of clients
    draw it, and is the same on every transport within this process.

    Parameters
    ----------
    seed : int

    Examples
    --------
    >>> import numpy as np
    >>> from fedlib.protection.privacy import Privacy, Sensitivity, add_noise
    >>> with seeded_noise(0):
    ...     first = add_noise(np.zeros(3), Sensitivity(1.0, 1.0, 1), Privacy(rho=0.1))
    >>> with seeded_noise(0):
    ...     second = add_noise(np.zeros(3), Sensitivity(1.0, 1.0, 1), Privacy(rho=0.1))
    >>> bool((first == second).all())
    True
    """
    drawn: Counter[bytes] = Counter()
    lock = threading.Lock()

    def draw(values: Ints, scale: int, *, gaussian: bool) -> Ints:
        digest = hashlib.sha256(values.tobytes()).digest()
        with lock:
            drawn[digest] += 1
            place = drawn[digest]
        key = hashlib.sha256(f"{seed} {place} ".encode() + digest).digest()
        random = np.random.default_rng(int.from_bytes(key, "big"))
        sample = random.normal if gaussian else random.laplace
        return values + np.rint(sample(0.0, scale, len(values))).astype(np.int64)

    with mock.patch("fedlib.protection.privacy.noise.draw", draw):
        yield


class Recorder:
    """A transport to clients in this process that records every message.

    Clients answer one after the other, so that their times can be compared. All messages stay in
    memory.

    Parameters
    ----------
    clients : mapping of str to Client
        The clients by name, in the order in which their replies are read.
    tamper : mapping of str to callable, optional
        A function per client that takes the bytes of a request and of the client's reply. It
        returns the bytes that the server receives instead, or None to lose the reply.
    rebuild : callable, optional
        A function that takes a client's name and returns a new client with the same data. It is
        called before each request, and the state of the old client is encoded and restored, as on a
        transport that keeps no process alive between two messages.

    Attributes
    ----------
    exchanges : list of Exchange
        All exchanges so far, in order.
    errors : dict of str to Exception
        The exception of each client whose last reply was a failure.
    ledger : Ledger or None
        The ledger of the current run.

    See Also
    --------
    fedlib.core.in_process.InProcess : the transport that `fit` uses for a list of parts.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> parts = {"north": [[0.1], [0.2]], "south": [[0.3], [5.0]]}
    >>> recorder = Recorder({name: HorizontalDBSCANClient(X) for name, X in parts.items()})
    >>> model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit(recorder)
    >>> first, last = recorder.exchanges
    >>> first.requests["north"]
    CountCells(cell_size=1.0)
    >>> {name: reply.counts.tolist() for name, reply in first.replies.items()}
    {'north': [2], 'south': [1, 1]}
    >>> recorder.clients, last.requests["south"].labels
    (['north', 'south'], array([0]))
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        tamper: Mapping[str, Tamper] | None = None,
        rebuild: Callable[[str], Client] | None = None,
    ):
        self.members = dict(clients)
        self.clients: Sequence[str] = list(self.members)
        for name, client in self.members.items():
            client.enter(name, len(self.members))
        self.tamper = dict(tamper or {})
        self.rebuild = rebuild
        self.exchanges: list[Exchange] = []
        self.errors: dict[str, BaseException] = {}
        self.ledger: Ledger | None = None
        self._since = time.process_time()

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Deliver the requests, one client after the other, and record the replies."""
        server_seconds = time.process_time() - self._since
        replies, client_seconds = {}, {}
        for name, request in requests.items():
            start = time.process_time()
            reply = self._serve(name, request)
            client_seconds[name] = time.process_time() - start
            tampered = self.tamper[name](request, reply) if name in self.tamper else reply
            if tampered is not None:
                replies[name] = tampered
        self.exchanges.append(
            Exchange(dict(requests), dict(replies), client_seconds, server_seconds)
        )
        self._since = time.process_time()
        return replies

    def _serve(self, name: str, request: bytes) -> bytes:
        self.errors.pop(name, None)
        if self.rebuild is not None:
            state = self.members[name].state
            self.members[name] = self.rebuild(name)
            self.members[name].enter(name, len(self.members))
            self.members[name].state = None if state is None else decode(encode(state))
        return serve(
            self.members[name], request, lambda error: self.errors.__setitem__(name, error)
        )

    @property
    def all_bytes(self) -> bytes:
        """The bytes of all messages, joined, to search for data that must not leave a client."""
        return b"|".join(
            data
            for exchange in self.exchanges
            for part in (exchange.request_bytes, exchange.reply_bytes)
            for data in part.values()
        )
