"""Vertical federated DBSCAN: clients hold other features of the same rows.

Two rows are neighbours when they are neighbours in every client's features. Each client says which
rows are neighbours in its own, the server keeps the pairs that all of them name, and runs DBSCAN on
the graph of these pairs. With one feature a client the neighbourhood is a box, not a ball.

The relation is symmetric, so only later neighbours travel, in blocks of rows. Source: M1 and M2,
§3.2 and §4.3.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import pairwise, product
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.utils import check_array

from fedlib.federated import Federated
from fedlib.kernels import neighbours as kernels
from fedlib.kernels.grid import adjacent_pairs, group_points
from fedlib.messages import Array, Done, Labels, Message, MessageError
from fedlib.protocol import Client, Flow, Replies, TooFewClients, Transport, agree, handles
from fedlib.validation import Interval

__all__ = [
    "AssignLabels",
    "DescribeRows",
    "FindNeighbours",
    "NeighbourBlock",
    "RowDescription",
    "VerticalDBSCAN",
    "VerticalDBSCANClient",
    "vertical_dbscan",
]

BLOCK_BYTES = 2**25  # a block in memory, one bit a pair
MAX_GRID_FEATURES = 3
MAX_GRID_CELLS = 2.0**40  # an edge 1/1000 above eps then outweighs all rounding
MIN_GRID_EPS = 1e-150  # below it squares of distances above eps may vanish
KEY_BYTES = range(16, 65)

Row = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Find = Callable[[int, NDArray[np.uint64]], None]


class RowDescription(Message):
    """How many rows a client has, and a digest of their identifiers ("" if it has none)."""

    discloses = "the number of rows, and whether the rows' identifiers are the same everywhere"
    n_rows: Row
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class DescribeRows(Message):
    """Say how many rows you have and in which order."""

    discloses = "nothing"
    reply = RowDescription


class NeighbourBlock(Message):
    """The later neighbours of a block of rows, as gaps or as bits."""

    discloses = "which rows lie within eps of each other in the client's features"
    form: Literal["gaps", "bits"]
    data: Annotated[np.ndarray, Array("uint8", ("bytes",))]

    def read(self, n_rows: int, first: int, stop: int) -> NDArray[np.uint64]:
        """Return the block as a bitset (stop - first, ceil(n_rows / 64)), low bits first.

        Raises
        ------
        MessageError
            When the bytes are no block of exactly these rows.
        """
        bits = _bitset(n_rows, stop - first)
        read = kernels.read_gaps if self.form == "gaps" else kernels.read_bits
        if not read(self.data, n_rows, first, bits):
            raise MessageError(f"these bytes are no block of the rows {first}..{stop}")
        return bits


class FindNeighbours(Message):
    """Find the later neighbours of the rows first..stop among n_rows."""

    discloses = "eps"
    reply = NeighbourBlock
    eps: Annotated[float, msgspec.Meta(gt=0)]
    n_rows: Row
    first: Row
    stop: Row

    def accept(self, reply: Message) -> NDArray[np.uint64]:
        """Return the block as a bitset; raise MessageError unless it covers exactly these rows."""
        assert isinstance(reply, NeighbourBlock)
        return reply.read(self.n_rows, self.first, self.stop)


class AssignLabels(Message):
    """These are the clusters of the rows."""

    discloses = "the cluster of every row"
    asks_for_data = False
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=-1)]


def vertical_dbscan(eps: float, min_samples: int) -> Flow[NDArray[np.int64]]:
    """Return the server flow; for the parameters see `VerticalDBSCAN`.

    Raises
    ------
    ValueError
        When the clients disagree on their rows, or one of them is passive.
    TooFewClients
        When a client is lost.

    Examples
    --------
    >>> flow = vertical_dbscan(eps=1.5, min_samples=3)
    >>> next(flow)
    DescribeRows()
    >>> from fedlib.protocol import Replies
    >>> flow.send(Replies({"A": RowDescription(4, ""), "B": RowDescription(4, "")}))
    FindNeighbours(eps=1.5, n_rows=4, first=0, stop=4)
    """
    replies = _all((yield DescribeRows()))
    n_rows = agree("the number of rows", {name: r.n_rows for name, r in replies.items()})
    digests = {name: reply.digest for name, reply in replies.items()}
    agree("the rows' identifiers, their order or the key", digests, lambda d: d[:8] or "none")
    counts, columns = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    block = _block_rows(n_rows)
    for first in range(0, n_rows, block):
        stop = min(first + block, n_rows)
        replies = _all((yield FindNeighbours(float(eps), n_rows, first, stop)))
        common = reduce(lambda a, b: np.bitwise_and(a, b, out=a), replies.values())
        counts.append(kernels.count_pairs(common))
        columns.append(np.empty(counts[-1].sum(), np.int32))
        kernels.write_pairs(common, columns[-1])
    start = np.append(0, np.cumsum(np.concatenate(counts)))
    labels = kernels.label_rows(start, np.concatenate(columns), min_samples)
    _all((yield AssignLabels(labels)))
    return labels


def _all(replies: Replies) -> Replies:
    """Return the replies of all clients: without one, its features would silently not count."""
    if replies.declined:
        raise ValueError(f"every client is needed, but these are passive: {replies.declined}")
    if replies.lost:
        raise TooFewClients(f"every client is needed, but these are lost: {replies.lost}")
    return replies


def _block_rows(n_rows: int) -> int:
    """Return how many rows' neighbours fit into a block."""
    return max(1, 8 * BLOCK_BYTES // max(1, n_rows))


def _bitset(n_rows: int, n_block: int) -> NDArray[np.uint64]:
    return np.zeros((n_block, (n_rows + 63) // 64), np.uint64)


class VerticalDBSCANClient(Client):
    """A client and its features of the common rows.

    Parameters
    ----------
    X : array-like (n_rows, n_features)
        Finite numbers; rows in the same order at every client.
    ids : sequence, optional
        The rows' identifiers, n_rows of them, compared as text (whole numbers without a decimal
        point). Clients whose identifiers are not the same in the same order are refused.
    key : bytes, optional
        A random secret of 16 to 64 bytes that all clients share and the server does not have;
        needed with ``ids``. The server only sees a digest under this key, so it cannot try
        identifiers.
    n_jobs : int, optional
        Threads that look for neighbours, at least 1; by default as many as there are processors.

    Raises
    ------
    ValueError
        When the data are not a table of finite numbers, or ids, key or n_jobs do not fit.

    Examples
    --------
    Of the rows 0, 1 and 2, the first two are neighbours: the gap from row 0 to row 1, and an end
    for each row.

    >>> client = VerticalDBSCANClient([[0.0], [0.5], [9.0]])
    >>> client.handle(FindNeighbours(eps=1.0, n_rows=3, first=0, stop=3))
    NeighbourBlock(form='bits', data=array([1, 0], dtype=uint8))
    """

    def __init__(
        self,
        X: ArrayLike,
        ids: Sequence[Any] | None = None,
        key: bytes | None = None,
        n_jobs: int | None = None,
    ):
        self.X = check_array(X, dtype=np.float64, order="C", ensure_min_samples=0)
        self.digest = "" if ids is None else _digest(ids, key, len(self.X))
        if n_jobs is not None and not (isinstance(n_jobs, Integral) and n_jobs >= 1):
            raise ValueError(f"n_jobs must be a whole number, at least 1; got {n_jobs}")
        self._n_jobs = int(n_jobs or os.cpu_count() or 1)
        self._found: tuple[float, Find] | None = None

    @handles(DescribeRows)
    def describe_rows(self, request: DescribeRows) -> RowDescription:
        return RowDescription(len(self.X), self.digest)

    @handles(FindNeighbours)
    def find_neighbours(self, request: FindNeighbours) -> NeighbourBlock:
        n_rows, first, stop = len(self.X), request.first, request.stop
        if request.n_rows != n_rows or not first < stop <= min(n_rows, first + _block_rows(n_rows)):
            raise ValueError(f"rows {first}..{stop} of {request.n_rows}, for a client of {n_rows}")
        if self._found is None or self._found[0] != request.eps:
            self._found = request.eps, _finder(self.X, request.eps)
        find = self._found[1]
        bits = _bitset(n_rows, stop - first)
        cuts = np.linspace(first, stop, self._n_jobs + 1).astype(int)
        shares = [(low, bits[low - first : high - first]) for low, high in pairwise(cuts)]
        with ThreadPoolExecutor(self._n_jobs) as pool:
            list(pool.map(lambda share: find(*share), shares))
        return _pack(bits, n_rows, first, stop)

    @handles(AssignLabels)
    def assign_labels(self, request: AssignLabels) -> Done:
        if len(request.labels) != len(self.X):
            raise ValueError(f"{len(request.labels)} labels for {len(self.X)} rows")
        self.state = Labels(request.labels)
        return Done()


def _digest(ids: Sequence[Any], key: bytes | None, n_rows: int) -> str:
    """Return the digest of identifiers under a key."""
    if not isinstance(key, bytes) or len(key) not in KEY_BYTES:
        given = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ValueError(f"key must be 16 to 64 secret bytes where ids are given; got {given}")
    ids = list(ids)
    if len(ids) != n_rows:
        raise ValueError(f"ids must be as many as rows, {n_rows}; got {len(ids)}")
    whole = [int(i) if isinstance(i, float) and i.is_integer() else i for i in ids]
    texts = [str(identifier).encode() for identifier in whole]
    told = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return hmac.new(key, told, hashlib.sha256).hexdigest()


def _finder(X: NDArray[np.float64], eps: float) -> Find:
    """Return what fills a block of neighbours from its first row on, by the cheapest search."""
    if X.shape[1] == 1:
        return partial(kernels.sweep_neighbours, X[:, 0].copy(), np.argsort(X[:, 0]), eps)
    with np.errstate(over="ignore"):
        extent = np.ptp(X, axis=0).max() / eps if len(X) else 0.0
    if X.shape[1] > MAX_GRID_FEATURES or eps < MIN_GRID_EPS or not extent < MAX_GRID_CELLS:
        return partial(kernels.all_neighbours, X, eps)
    cell = np.empty(len(X), np.int64)
    cells, counts, _ = group_points(X - X.min(axis=0, initial=np.inf), 1.001 * eps, cell)
    start = np.append(0, np.cumsum(counts))
    touching = _touching(cells)
    return partial(
        kernels.grid_neighbours,
        X,
        eps,
        cell,
        start,
        np.argsort(cell, kind="stable"),
        touching.indptr,
        touching.indices,
    )


def _touching(cells: NDArray[np.int64]) -> csr_array:
    """Return which cells share a face, edge or corner, each with itself among them."""
    order = np.lexsort(cells.T[::-1])
    offsets = np.array(list(product((-1, 0, 1), repeat=cells.shape[1])), np.int64)
    i, j = order[adjacent_pairs(cells[order], offsets)].T
    n = len(cells)
    return csr_array((np.ones(len(i), bool), (i, j)), shape=(n, n))


def _pack(bits: NDArray[np.uint64], n_rows: int, first: int, stop: int) -> NeighbourBlock:
    """Return a block in whichever form is smaller."""
    as_gaps = kernels.count_gap_bytes(bits, first)
    as_bits = kernels.count_bit_bytes(n_rows, first, stop)
    data = np.zeros(min(as_gaps, as_bits), np.uint8)
    if as_gaps <= as_bits:
        kernels.write_gaps(bits, first, data)
        return NeighbourBlock("gaps", data)
    kernels.write_bits(bits, n_rows, first, data)
    return NeighbourBlock("bits", data)


class VerticalDBSCAN(Federated):
    """DBSCAN over clients that hold other features of the same rows.

    Parameters
    ----------
    eps : float
        Two rows are neighbours when their Euclidean distance in every client's features is
        *below* eps, which is above 0. Distances are computed in float64: squares of differences
        below about 1e-162 vanish, those above 1e154 are infinite.
    min_samples : int
        How many neighbours, itself included, make a row a core point, at least 1.

    Attributes
    ----------
    labels_ : array (n_rows,) of int64
        The cluster of every row, -1 for noise. Clusters are numbered by their first core point; a
        border point belongs to the first cluster that reaches it.
    ledger_ : Ledger

    Raises
    ------
    ValueError
        When a parameter is out of range, or the clients disagree on the rows.
    TooFewClients
        When a client is lost: none can be done without.

    Notes
    -----
    The result is that of DBSCAN with the greatest of the clients' distances. With one client it is
    DBSCAN itself, but for the strict inequality. Memory at the server is O(pairs that are
    neighbours everywhere) plus one block of 32 MiB a client; a block of neighbours travels as gaps
    or as bits, whichever is smaller. Clients find neighbours by a sorted sweep in one feature, on
    a grid in two or three, and by comparing all pairs in more.

    Sources: M1, §3.2 and §4.3; M2, §3.2 and §4.3.

    Examples
    --------
    Four people, of whom one client knows the age and the other the income. The first three are
    neighbours in both; the fourth only by age.

    >>> from fedlib import VerticalDBSCAN
    >>> age, income = [[30.0], [31.0], [32.0], [31.5]], [[1.0], [1.5], [2.0], [9.0]]
    >>> VerticalDBSCAN(eps=1.5, min_samples=3).fit([age, income]).labels_
    array([ 0,  0,  0, -1])
    """

    name = "vertical-dbscan"
    client_class = VerticalDBSCANClient
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "eps": [Interval(Real, 0, np.inf, closed="neither")],
        "min_samples": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, eps: float, min_samples: int):
        self.eps = eps
        self.min_samples = min_samples

    def _flow(self) -> Flow[NDArray[np.int64]]:
        return vertical_dbscan(self.eps, self.min_samples)

    def fit(
        self,
        parts: Sequence[Any] | Transport,
        *,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        ids: Sequence[Sequence[Any]] | None = None,
    ) -> Self:
        """Run the protocol where the data live.

        Parameters
        ----------
        parts : list of array-like (n_rows, n_features), or Transport
            One block of columns a client, which are then run in this process, or a transport to
            clients that have their data.
        passive : ()
            No client can be passive here.
        min_clients : int, optional
            No client can be done without, so nothing but their number.
        ids : list of sequences, optional
            Each part's row identifiers, compared through digests.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            When a parameter or a part is not valid, or the clients disagree on their rows.
        TooFewClients
            When a client failed, or sent no block of the rows it was asked for.
        """
        n_clients = len(parts.clients if isinstance(parts, Transport) else parts)
        if passive:
            raise ValueError(f"passive must be empty, every client is needed; got {passive}")
        if min_clients not in (None, n_clients):
            raise ValueError(f"min_clients must be {n_clients}, all of them; got {min_clients}")
        if ids is None:
            return super().fit(parts)
        if isinstance(parts, Transport):
            raise ValueError("ids is for parts; over a transport each client has its own")
        if len(ids) != len(parts):
            raise ValueError(f"ids must be one sequence a part, {len(parts)}; got {len(ids)}")
        key = secrets.token_bytes(32)
        return self._fit(parts, options=[{"ids": own, "key": key} for own in ids])

    def _set_model(self, model: NDArray[np.int64]) -> None:
        self.labels_ = model

    def _set_labels(self, clients: dict[str, Client]) -> None:
        """Keep what `_set_model` set: the server knows all labels."""

    def _check_clients(self, clients: dict[str, Client]) -> None:
        agree("the number of rows", {name: len(client.X) for name, client in clients.items()})
