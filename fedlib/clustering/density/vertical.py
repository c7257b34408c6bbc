"""Vertical federated DBSCAN: each client holds different features of the same rows.

Two rows are neighbours only if they are neighbours in every client's features. Each client reports
which rows are neighbours in its features. The server intersects these relations and runs DBSCAN on
the graph of the remaining pairs. With one feature per client, a neighbourhood is a box and not a
ball.

The relation is symmetric, so each client sends only the later neighbours of each row, in blocks of
rows.

Sources: M1 and M2, §3.2 and §4.3.

A client's side of vertical DBSCAN: the search for the later neighbours of a block of rows.

`fedlib.kernels.neighbours` describes a block and the two forms in which it is sent. Clients search
by a sweep over sorted values in one feature, on a grid in two or three features, and by comparing
all pairs in more.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from fedlib.core.aggregation import agree, require_all
from fedlib.core.array_fields import Checked
from fedlib.core.array_types import Bytes, Floats, Ints, Words
from fedlib.core.client import Client, OddRows, handles, partitions
from fedlib.core.estimator import Clusterer, Example, Federated
from fedlib.core.messages import Array, Done, Labels, Message, MessageError
from fedlib.core.parameters import PositiveFloat, PositiveInt, check_every_client_stays, check_key
from fedlib.core.points import check_points
from fedlib.core.protocol import Flow, Replies, Transport
from fedlib.core.targets import read_ids
from fedlib.kernels.grid import adjacent_pairs, group_points
from fedlib.kernels.neighbours import (
    Grid,
    all_neighbours,
    count_bit_bytes,
    find_windows,
    grid_neighbours,
    label_rows,
    list_pairs,
    read_bits,
    read_gaps,
    sweep_gaps,
    sweep_neighbours,
    write_bits,
    write_gaps,
)

MAX_GRID_FEATURES = 3
MAX_GRID_CELLS = 2.0**40  # up to this, cells 0.1 % larger than eps outweigh all rounding errors
MIN_GRID_EPS = 1e-150  # below this, the squares of distances above eps may underflow


class Search(NamedTuple):
    """How a client finds the later neighbours of some rows.

    Attributes
    ----------
    fill : callable
        Called with the first row and a bitset of zeros, it sets the bits of the later neighbours.
    gaps : callable or None
        Called with the first row, the stop and a count of bytes, it returns the block as gaps, or
        no bytes if there are more. None if bits are the only result of the search.
    """

    fill: Callable[[int, Words], None]
    gaps: Callable[[int, int, int], Bytes] | None = None


def make_search(X: Floats, eps: float) -> Search:
    """Return the cheapest search for points ``X`` (n_rows, n_features) and a radius."""
    twin = _earlier_equal(X)
    if X.shape[1] == 1:
        order = np.argsort(X[:, 0])
        windows = find_windows(X[order, 0], order, eps)
        fill = partial(sweep_neighbours, order, windows, twin)
        return Search(fill, partial(_sweep_gaps, order, windows))
    with np.errstate(over="ignore"):
        extent = np.ptp(X, axis=0).max() / eps if len(X) else 0.0
    if X.shape[1] > MAX_GRID_FEATURES or eps < MIN_GRID_EPS or not extent < MAX_GRID_CELLS:
        return Search(partial(all_neighbours, X, eps, twin))
    return Search(partial(grid_neighbours, X, eps, _make_grid(X, 1.001 * eps), twin))


def _earlier_equal(X: Floats) -> Ints:
    """Return for each row the last row before it with the same point, or -1."""
    order = np.lexsort(X.T)  # stable: equal rows stay in their order
    equal = np.append(False, np.all(X[order[1:]] == X[order[:-1]], axis=1))
    twin = np.full(len(X), -1)
    twin[order[equal]] = order[np.flatnonzero(equal) - 1]
    return twin


def _sweep_gaps(order: Ints, windows: Ints, first: int, stop: int, max_bytes: int) -> Bytes:
    """Return the rows ``first..stop`` as gaps, or no bytes if they take more than ``max_bytes``."""
    sizes = np.diff(windows[first:stop]).ravel()
    # At most this many neighbours come before a row; each of the others takes a byte or more.
    if stop - first + np.maximum(sizes - 1 - np.arange(first, stop), 0).sum() > max_bytes:
        return np.empty(0, np.uint8)
    # In the order of the values both ends of the window only move forward, and so does their sum.
    turns = np.argsort(windows[first:stop].sum(axis=1))
    gaps: Bytes = sweep_gaps(order, windows, turns, first, max_bytes)
    return gaps


def _make_grid(X: Floats, cell_size: float) -> Grid:
    """Return the points sorted into cells."""
    groups = group_points(X - X.min(axis=0, initial=np.inf), cell_size, True)
    touching = _touching(groups.cells)
    return Grid(
        cell=groups.inverse,
        start=np.append(0, np.cumsum(groups.counts)),
        members=np.argsort(groups.inverse, kind="stable"),
        near_start=touching.indptr,
        near=touching.indices,
    )


def _touching(cells: Ints) -> csr_array:
    """Return the relation of cells that share a face, an edge or a corner, or are the same."""
    order = np.lexsort(cells.T[::-1])
    offsets = np.array(list(product((-1, 0, 1), repeat=cells.shape[1])), np.int64)
    i, j = order[adjacent_pairs(cells[order], offsets)].T
    n = len(cells)
    return csr_array((np.ones(len(i), bool), (i, j)), shape=(n, n))


def find_block(
    search: Search, n_rows: int, first: int, stop: int, n_jobs: int
) -> tuple[Literal["gaps", "bits"], Bytes]:
    """Return the block of the rows ``first..stop``: the name of its form, and its bytes.

    The form is the one that takes fewer bytes, or gaps if both take the same. The search runs in
    ``n_jobs`` threads.
    """
    cuts = np.unique(np.linspace(first, stop, n_jobs + 1).astype(int)).tolist()
    max_bytes = int(count_bit_bytes(n_rows, first, stop))
    with ThreadPoolExecutor(n_jobs) as pool:
        if search.gaps is not None:
            parts = list(pool.map(search.gaps, cuts[:-1], cuts[1:], [max_bytes] * len(cuts)))
            if all(map(len, parts)) and sum(map(len, parts)) <= max_bytes:
                return "gaps", np.concatenate(parts)
        bits = np.zeros((stop - first, (n_rows + 63) // 64), np.uint64)
        parts_of_bits = [bits[low - first : high - first] for low, high in pairwise(cuts)]
        list(pool.map(search.fill, cuts, parts_of_bits))
    data = np.empty(max_bytes, np.uint8)
    n_gap_bytes = -1 if search.gaps is not None else write_gaps(bits, first, data)
    if n_gap_bytes >= 0:
        return "gaps", data[:n_gap_bytes]
    write_bits(bits, n_rows, first, data)
    return "bits", data


# The size of a block in memory, at one bit per pair of rows. Larger arrays are new memory for each
# block, which the system clears page by page.
BLOCK_BYTES = 2**23

Row = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class RowDescription(Message):
    """The count of rows and a digest of their identifiers ("" if they have none)."""

    discloses = "the count of rows, and whether the rows' identifiers are the same everywhere"
    n_rows: Row
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class DescribeRows(Message):
    """Report the count of your rows and a digest of their identifiers."""

    discloses = "nothing"
    reply = RowDescription


class NeighbourBlock(Message):
    """The later neighbours of a block of rows, as gaps or as bits."""

    discloses = "which rows lie within eps of each other in the client's features"
    form: Literal["gaps", "bits"]
    data: Annotated[np.ndarray, Array("uint8", ("bytes",))]

    def read(self, n_rows: int, first: int, stop: int) -> Words:
        """Return the block as a bitset (stop - first, ceil(n_rows / 64)), low bits first.

        Raises
        ------
        MessageError
            When the bytes are not a valid block of exactly these rows.
        """
        bits = np.empty((stop - first, (n_rows + 63) // 64), np.uint64)
        read = read_gaps if self.form == "gaps" else read_bits
        if not read(self.data, n_rows, first, bits):
            raise MessageError(f"the data are not a valid block of the rows {first}..{stop}")
        return bits


class FindNeighbours(Message):
    """Find the later neighbours of the rows first..stop, of n_rows rows."""

    discloses = "eps"
    effortless = ("n_rows", "first", "stop")
    reply = NeighbourBlock
    eps: Annotated[float, msgspec.Meta(gt=0)]
    n_rows: Row
    first: Row
    stop: Row

    def reply_lengths(self) -> dict[str, int]:
        """Return the length of the block as bits: a client sends the smaller of the two forms."""
        return {"bytes": int(count_bit_bytes(self.n_rows, self.first, self.stop))}

    def accept(self, reply: Message) -> Words:
        """Return the block as a bitset; raise MessageError unless it has exactly these rows."""
        assert isinstance(reply, NeighbourBlock)
        return reply.read(self.n_rows, self.first, self.stop)


class AssignLabels(Message):
    """Store the cluster of each row."""

    discloses = "the cluster of every row"
    asks_for_data = False
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=-1, below="rows")]


@dataclass(frozen=True)
class RowLabels(Checked):
    """The cluster of every row.

    It cannot label new rows: the features of a new row are at different clients.

    Attributes
    ----------
    labels : array (n_rows,) of int64
        -1 is noise.
    """

    labels: Annotated[Ints, Array("int64", ("rows",), ge=-1, below="rows")]


def vertical_dbscan(eps: float, min_samples: int) -> Flow[RowLabels]:
    """Return the server flow; for the parameters see `VerticalDBSCAN`.

    Raises
    ------
    ValueError
        When the clients disagree on their rows, or one of them is passive.
    TooFewClients
        When a client is lost.

    Examples
    --------
    >>> flow = VerticalDBSCAN(eps=1.5, min_samples=3).protocol()
    >>> next(flow)
    DescribeRows()
    >>> from fedlib.core.protocol import Replies
    >>> flow.send(Replies({"A": RowDescription(4, ""), "B": RowDescription(4, "")}))
    FindNeighbours(eps=1.5, n_rows=4, first=0, stop=4)
    """
    n_rows = _agree_on_rows(require_all((yield DescribeRows())))
    counts = [np.empty(0, np.int64)]
    leaders, columns = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    for first, stop in _blocks(n_rows):
        blocks = require_all((yield FindNeighbours(float(eps), n_rows, first, stop)))
        common, last = _intersect(blocks)
        block_counts, block_leaders, block_columns = list_pairs(common, last, first)
        counts.append(block_counts)
        leaders.append(block_leaders)
        columns.append(block_columns)
    start = np.append(0, np.cumsum(np.concatenate(counts)))
    labels = label_rows(start, np.concatenate(columns), np.concatenate(leaders), min_samples)
    require_all((yield AssignLabels(labels)))
    return RowLabels(labels)


def _agree_on_rows(replies: Replies) -> int:
    """Return the count of rows on which all clients agree."""
    n_rows = agree("the number of rows", {name: r.n_rows for name, r in replies.items()})
    digests = {name: reply.digest for name, reply in replies.items()}
    agree("the rows' identifiers, their order or the key", digests, lambda d: d[:8] or "none")
    return int(n_rows)


def _max_block_rows(n_rows: int) -> int:
    """Return the count of rows whose neighbours fit into a block."""
    return max(1, 8 * BLOCK_BYTES // max(1, n_rows))


def _blocks(n_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each block and the row after its last."""
    size = _max_block_rows(n_rows)
    for first in range(0, n_rows, size):
        yield first, min(first + size, n_rows)


def _intersect(blocks: Replies) -> tuple[Words, Words]:
    """Return two blocks of which the intersection is that of all clients; overwrites the first."""
    common, *others = blocks.values()
    for block in others[:-1]:
        common &= block
    return common, others[-1] if others else common


class VerticalDBSCANClient(Client):
    """A client that holds some features of the common rows.

    Parameters
    ----------
    X : array-like (n_rows, n_features)
        Finite numbers. The rows must be in the same order at every client.
    ids : sequence, optional
        The identifiers of the n_rows rows: text, which is compared without the blanks around it, or
        integers of any type. None may be missing, and each may occur only once. The run ends with
        an error unless all clients have the same identifiers in the same order.
    key : bytes, optional
        A random secret of 16 to 64 bytes that all clients share and the server does not know;
        required with ``ids``. The server receives only a digest under this key, so it cannot test
        guesses of the identifiers.
    n_jobs : int, optional
        The count of threads that search for neighbours, at least 1; by default the number of
        processors.

    Raises
    ------
    ValueError
        When the data are not a table of finite numbers, or ids, key or n_jobs is invalid.

    Examples
    --------
    Of the rows 0, 1 and 2, the first two are neighbours. The reply has one byte for row 0, whose
    lowest bit is row 1, one byte for row 1, and none for row 2, which has no later row.

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
        self.X = check_points(X, ensure_min_samples=0)
        self.digest = "" if ids is None else _digest(ids, key, len(self.X))
        if n_jobs is not None and not (isinstance(n_jobs, Integral) and n_jobs >= 1):
            raise ValueError(f"n_jobs must be a positive integer, got {n_jobs}")
        self._n_jobs = int(n_jobs or os.cpu_count() or 1)
        self._search: tuple[float, Search] | None = None  # eps and the search for it

    @handles(DescribeRows)
    def describe_rows(self, request: DescribeRows) -> RowDescription:
        return RowDescription(len(self.X), self.digest)

    @partitions(DescribeRows, counts=True, terms=())
    def all_rows(self, request: DescribeRows) -> Iterable[Ints]:
        yield np.zeros(len(self.X), np.int64)

    @handles(FindNeighbours)
    def find_neighbours(self, request: FindNeighbours) -> NeighbourBlock:
        n_rows, first, stop = len(self.X), request.first, request.stop
        last_stop = min(n_rows, first + _max_block_rows(n_rows))
        if request.n_rows != n_rows or not first < stop <= last_stop:
            raise ValueError(
                f"the rows {first}..{stop} of {request.n_rows} are not a block of the {n_rows} rows"
            )
        if self._search is None or self._search[0] != request.eps:
            self._search = request.eps, make_search(self.X, request.eps)
        return NeighbourBlock(*find_block(self._search[1], n_rows, first, stop, self._n_jobs))

    @handles(AssignLabels)
    def assign_labels(self, request: AssignLabels) -> Done:
        if len(request.labels) != len(self.X):
            self.state = Labels(np.full(len(self.X), -1, np.int64))
            raise OddRows(
                f"there must be {len(self.X)} labels, one per row; got {len(request.labels)}"
            )
        self.state = Labels(request.labels)
        return Done()


def _digest(ids: Sequence[Any], key: bytes | None, n_rows: int) -> str:
    """Return the digest of identifiers under a key, as hexadecimal text."""
    secret = check_key(key)
    texts = [identifier.encode() for identifier in read_ids(ids, n_rows)]
    # With their lengths, so that no two lists of identifiers give the same bytes.
    content = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


class VerticalDBSCAN(Clusterer, Federated):
    """DBSCAN over clients that hold different features of the same rows.

    Neighbours must be neighbours at every client: the result is that of DBSCAN with the maximum of
    the clients' distances, and not with the Euclidean distance over all features. Rows have more
    neighbours, so there is less noise, and clusters that are apart in pooled data can be one. The
    more clients and features there are, the more the labels differ (see the examples).

    Attributes
    ----------
    model_ : RowLabels
        The result of the protocol.
    labels_ : array (n_rows,) of int64
        The cluster of every row; -1 for noise. Clusters are numbered by their first core row; a
        border row belongs to the first cluster that reaches it.
    ledger_ : Ledger
        The record of all messages.

    Raises
    ------
    ValueError
        When a parameter is out of range, or the clients disagree on the rows.
    TooFewClients
        When a client is lost: all clients are needed.

    See Also
    --------
    AlignedRows : finds the common rows first, if the clients' rows differ.

    Notes
    -----
    With one client, the result is that of DBSCAN itself, except for the strict inequality.

    Every client is needed: the run ends with `TooFewClients` when one is lost, whatever
    ``min_clients`` is. False neighbours cannot be detected. Two rows must be neighbours at every
    client, so a client that reports none makes all rows noise; false neighbours that only one
    client reports have no effect.

    The memory of the server is O(pairs that are neighbours at every client) plus one block of
    8 MiB per client. A block is sent as gaps or as bits, whichever takes fewer bytes. Clients
    search for neighbours by a sweep over sorted values in one feature, on a grid in two or three
    features, and by comparing all pairs in more. Equal rows of a block are searched and listed
    once.

    Sources: M1, §3.2 and §4.3; M2, §3.2 and §4.3.

    Examples
    --------
    One client knows the age of four people, the other one their income. The first three people are
    neighbours in both; the fourth only in age.

    >>> from fedlib import VerticalDBSCAN
    >>> age, income = [[30.0], [31.0], [32.0], [31.5]], [[1.0], [1.5], [2.0], [9.0]]
    >>> VerticalDBSCAN(eps=1.5, min_samples=3).fit([age, income]).labels_
    array([ 0,  0,  0, -1])

    What it costs that neighbours must be neighbours at every client: the labels of 150 flowers,
    of which two clients have two features each, or four clients one each, against those of DBSCAN
    on all four features, by the adjusted Rand index.

    >>> from sklearn.cluster import DBSCAN
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.metrics import adjusted_rand_score
    >>> from sklearn.preprocessing import scale
    >>> X = scale(load_iris().data)
    >>> pooled = DBSCAN(eps=0.5, min_samples=5).fit_predict(X)
    >>> for n_clients in (1, 2, 4):
    ...     model = VerticalDBSCAN(0.5, 5).fit(np.split(X, n_clients, axis=1))
    ...     print(n_clients, round(adjusted_rand_score(pooled, model.labels_), 2))
    1 1.0
    2 0.79
    4 0.62
    """

    name = "vertical-dbscan"
    example = Example("columns", {"eps": 0.5, "min_samples": 4})
    same_columns = False
    client_class = VerticalDBSCANClient
    eps: Annotated[
        PositiveFloat,
        """
        Two rows are neighbours when their Euclidean distance in every client's features is *below*
        eps; positive and finite. Distances are computed in float64: the squares of differences
        below about 1e-162 vanish, and those of differences above 1e154 are infinite.
        """,
    ]
    min_samples: Annotated[
        PositiveInt,
        """
        The count of neighbours, including the row itself, from which a row is a core row; at
        least 1.
        """,
    ]

    def _flow(self) -> Flow[RowLabels]:
        return vertical_dbscan(self.eps, self.min_samples)

    def fit(
        self,
        parts: Sequence[Any] | Transport,
        *,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        ids: Sequence[Sequence[Any]] | None = None,
        journal: str | os.PathLike[str] | None = None,
        verbose: bool | int = False,
    ) -> Self:
        """Fit the model to the data of several clients.

        Parameters
        ----------
        parts : list of array-like (n_rows, n_features), or Transport
            A list with one block of columns per client, to run all clients in this process, or a
            transport to clients that hold their data.
        passive : ()
            Must be empty: no client can be passive in this protocol.
        min_clients : int, optional
            Only the count of clients is accepted: all clients are needed.
        ids : list of sequences, optional
            The identifiers of each part's rows, compared by their digests.
        journal : path, optional
            A file that records the run, so that the same call continues it after a crash; see
            `fedlib.core.journal`.
        verbose : bool or int, default=False
            True: print a line about the run at most once per second, and one at its end; 2: one per
            step. Nothing crosses the network for it.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            When a parameter or a part is invalid, or the clients disagree on their rows.
        TooFewClients
            When a client failed, or its reply is not a valid block of the requested rows.
        """
        n_clients = len(parts.clients if isinstance(parts, Transport) else parts)
        check_every_client_stays(n_clients, passive, min_clients)
        if ids is None:
            return super().fit(parts, journal=journal, verbose=verbose)
        if isinstance(parts, Transport):
            raise ValueError("ids applies to a list of parts; over a transport, clients have ids")
        if len(ids) != len(parts):
            raise ValueError(
                f"ids must contain one sequence per part, {len(parts)}; got {len(ids)}"
            )
        key = secrets.token_bytes(32)
        options = [{"ids": part, "key": key} for part in ids]
        return self._fit(parts, options=options, journal=journal, verbose=verbose)

    def _set_model(self, model: RowLabels) -> None:
        super()._set_model(model)
        self.labels_ = model.labels

    def _has_labels(self) -> bool:
        return False  # the model has those of all rows

    def _check_clients(self, clients: dict[str, Client]) -> None:
        agree("the number of rows", {name: len(client.X) for name, client in clients.items()})
