"""Alignment: find the rows that all clients have, before a protocol for different columns.

The clients hold different columns, of rows that overlap and are in different orders. Each client
replaces the identifier of every row by a pseudonym, its HMAC-SHA256 under a key that the clients
share and the server does not know. The server intersects the pseudonyms and reports to each client
which of its rows all clients have. The protocol then runs on these rows, in the order of their
pseudonyms, in the same run and ledger.

Source: H. Krawczyk, M. Bellare, R. Canetti, HMAC: Keyed-Hashing for Message Authentication, RFC
2104, 1997; its section 5 is about truncation.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from inspect import signature
from typing import Annotated, Any, Self, TypeVar

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from fedlib.core.aggregation import agree, require_all
from fedlib.core.array_types import Bools, Ints
from fedlib.core.client import Client, LostState, WrappingClient, handles
from fedlib.core.column_names import as_table
from fedlib.core.estimator import Federated
from fedlib.core.messages import Array, Done, Message, MessageError, decode
from fedlib.core.parameters import Kind, check_every_client_stays, check_key
from fedlib.core.protocol import Flow, LocalTransport, Transport
from fedlib.core.registry import ALIGNED
from fedlib.core.targets import read_ids

NOISE = -1  # the label of a row in no cluster
SIZE = 16  # bytes of a pseudonym: two of a billion rows are equal with a probability of 1e-21
# In one process, there is nobody from whom identifiers could be hidden. A fixed key gives the same
# order of the rows in every run.
KEY_IN_PROCESS = bytes(32)

Model = TypeVar("Model")


class Pseudonyms(Message):
    """The pseudonyms of a client's rows in ascending order, and a digest of the key."""

    discloses = (
        "the count of a client's rows, and which of them other clients have too; runs with the"
        " same key have the same pseudonyms"
    )
    key_digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z", max_length=32)]
    pseudonyms: Annotated[np.ndarray, Array("uint8", ("rows", "bytes"))]


class ListPseudonyms(Message):
    """Report the pseudonyms of your rows in ascending order."""

    discloses = "nothing"
    reply = Pseudonyms

    def accept(self, reply: Message) -> tuple[str, list[bytes]]:
        """Return the digest of the key and the pseudonyms; raise unless they are ascending."""
        assert isinstance(reply, Pseudonyms)
        if reply.pseudonyms.shape[1] != SIZE:
            raise MessageError(
                f"Pseudonyms.pseudonyms must have {SIZE} bytes, got {reply.pseudonyms.shape[1]}"
            )
        listed = [row.tobytes() for row in reply.pseudonyms]
        if listed != sorted(set(listed)):
            raise MessageError("Pseudonyms.pseudonyms must be ascending and distinct")
        return reply.key_digest, listed


class KeepRows(Message):
    """Keep the rows whose pseudonyms are marked, in ascending order of the pseudonyms."""

    discloses = "which of the client's rows all other clients have"
    asks_for_data = False
    remains = True
    kept: Annotated[np.ndarray, Array("bool", ("rows",))]


class AlignedState(Message):
    """The state of a client that knows the common rows.

    Attributes
    ----------
    n_rows : int
        The count of the client's rows.
    rows : array (n_common,) of int64
        The common rows, in the order of the protocol.
    inner : bytes
        The state of the protocol's client, encoded; empty if it has none.
    """

    discloses = "nothing: it stays with the client"
    n_rows: Annotated[int, msgspec.Meta(ge=0)]
    rows: Annotated[np.ndarray, Array("int64", ("common",), ge=0)]
    inner: bytes

    @property
    def labels(self) -> np.ma.MaskedArray[Any, Any]:
        """The labels of all rows; masked for rows that not all clients have.

        Raises
        ------
        AttributeError
            When the protocol's client has no labels.
        """
        inner: Any = decode(self.inner) if self.inner else None
        return _spread(inner.labels, self.rows, self.n_rows)


def aligned(protocol: Flow[Model]) -> Flow[Model]:
    """Return the server flow: find the common rows, then run the protocol on them.

    Parameters
    ----------
    protocol : Flow
        The flow of a protocol whose clients hold different columns.

    Raises
    ------
    ValueError
        When the clients have different keys or no row in common, or one of them declines.
    TooFewClients
        When a client is lost.

    Examples
    --------
    >>> from fedlib import VerticalDBSCAN
    >>> from fedlib.core.protocol import Replies
    >>> flow = aligned(VerticalDBSCAN(eps=1.0, min_samples=2).protocol())
    >>> next(flow)
    ListPseudonyms()
    >>> requests = flow.send(Replies({"A": ("", [b"1", b"3"]), "B": ("", [b"1", b"2", b"3"])}))
    >>> requests["B"]
    KeepRows(kept=array([ True, False,  True]))
    """
    replies = require_all((yield ListPseudonyms()))
    agree("the key", {name: key for name, (key, _) in replies.items()}, lambda digest: digest[:8])
    lists = {name: listed for name, (_, listed) in replies.items()}
    common = set.intersection(*map(set, lists.values()))
    if not common:
        sizes = ", ".join(f"{len(listed)} at {name!r}" for name, listed in lists.items())
        raise ValueError(f"no row is at all clients; they have {sizes}. Compare the identifiers")
    require_all((yield {name: KeepRows(_marks(listed, common)) for name, listed in lists.items()}))
    return (yield from protocol)


def _marks(listed: Sequence[bytes], common: Collection[bytes]) -> Bools:
    return np.array([one in common for one in listed], bool)


def pseudonym(identifier: str, key: bytes) -> bytes:
    """Return the pseudonym of an identifier: the first 16 bytes of its HMAC-SHA256.

    Examples
    --------
    >>> pseudonym("patient 7", bytes(32)).hex()
    '89b2caf61cbca54fde64749e8e0fa24b'
    """
    return _mac(key, "row", identifier)


def _mac(key: bytes, purpose: str, text: str) -> bytes:
    """Return an HMAC; the purpose separates rows from the digest of the key."""
    return hmac.digest(key, f"{purpose}:{text}".encode(), "sha256")[:SIZE]


class AlignedClient(WrappingClient):
    """A client that finds the common rows and hands them to a protocol's client.

    It answers `ListPseudonyms` and `KeepRows` itself and passes every other request to the client
    that it wraps, which is created when the common rows are known. That client also gets the
    identifiers of the common rows and the key, so it detects a server that marks other rows.

    Parameters
    ----------
    part : array-like or DataFrame (n_rows, n_features), or a tuple of arrays
        The client's columns.
    client_class : type of Client
        The class of the protocol's clients. It takes the arguments ``ids`` and ``key``.
    ids : sequence
        The identifiers of the n_rows rows: text, which is compared without the blanks around it, or
        integers of any type. None may be missing, and each may occur only once.
    key : bytes
        A random secret of 16 to 64 bytes that all clients share and the server does not know. The
        pseudonyms are the same in all runs with the same key, so use a new key for each study.
    **options
        Further arguments of the protocol's client.

    Raises
    ------
    ValueError
        When the data, the identifiers, the key or an option is invalid, or identifiers occur more
        than once. The text has the count of these identifiers, but not the identifiers.

    Examples
    --------
    >>> from fedlib.clustering.density.vertical import DescribeRows, VerticalDBSCANClient
    >>> X, key = [[1.0], [2.0], [3.0]], bytes(32)
    >>> client = AlignedClient(X, VerticalDBSCANClient, ids=["a", "b", "c"], key=key)
    >>> client.handle(ListPseudonyms()).pseudonyms.shape
    (3, 16)
    >>> client.handle(KeepRows(np.array([True, False, True])))
    Done()
    >>> client.handle(DescribeRows()).n_rows
    2
    """

    prepares = KeepRows

    def __init__(
        self,
        part: Any,
        client_class: type[Client],
        ids: Sequence[Any] | None = None,
        key: bytes | None = None,
        **options: Any,
    ):
        self._make = client_class
        self._options = options
        if ids is None:
            raise ValueError("ids are missing: alignment needs the identifier of every row")
        self._key = check_key(key)
        checked: Any = client_class(part, ids=ids, key=key, **options)  # type: ignore[call-arg]
        self.X, self._part = checked.X, part
        self._ids = read_ids(ids, len(self.X))
        listed = [(pseudonym(identifier, self._key), i) for i, identifier in enumerate(self._ids)]
        self._listed = sorted(listed)
        self._rows: Ints | None = None

    @property
    def state(self) -> AlignedState | None:
        """The common rows and the state of the wrapped client; None before they are known."""
        if self._rows is None:
            return None
        return AlignedState(len(self.X), self._rows, self._inner_state())

    @state.setter
    def state(self, state: Message | None) -> None:
        self._rows, self.inner = None, None
        if isinstance(state, AlignedState):
            n_rows = len(self.X)
            if state.n_rows != n_rows or state.rows.max(initial=-1) >= n_rows:
                raise LostState(f"the state is that of another table, this one has {n_rows} rows")
            self._keep(state.rows)
            self._restore_inner(state.inner)
        elif state is not None:
            raise LostState(f"AlignedClient has no AlignedState but a {type(state).__name__}")

    @handles(ListPseudonyms)
    def list_pseudonyms(self, request: ListPseudonyms) -> Pseudonyms:
        joined = b"".join(one for one, _ in self._listed)
        rows = np.frombuffer(joined, np.uint8).reshape(-1, SIZE)
        return Pseudonyms(_mac(self._key, "key", "").hex(), rows)

    @handles(KeepRows)
    def keep_rows(self, request: KeepRows) -> Done:
        if len(request.kept) != len(self.X):
            raise ValueError(
                f"there must be {len(self.X)} marks, one per row; got {len(request.kept)}"
            )
        order = np.array([row for _, row in self._listed], np.int64)
        self._keep(order[request.kept])
        return Done()

    def preparation(self) -> Iterable[Ints]:
        """Return no partitions: rows are only chosen and put in order."""
        return ()

    def _keep(self, rows: Ints) -> None:
        """Create the protocol's client with some rows, in this order."""
        ids = [self._ids[row] for row in rows]
        part = _take(self._part, rows)
        self._wrap(self._make(part, ids=ids, key=self._key, **self._options), rows)  # type: ignore[call-arg]
        self._rows = rows


def _take(part: Any, rows: Ints) -> Any:
    """Return some rows of a table, or of each table in a tuple."""
    if isinstance(part, tuple):
        return tuple(_take(one, rows) for one in part)
    part = as_table(part)
    return part.iloc[rows] if isinstance(part, pd.DataFrame) else np.asarray(part)[rows]


def _spread(labels: NDArray[Any], rows: Ints, n_rows: int) -> np.ma.MaskedArray[Any, Any]:
    """Return one label per row, masked for rows that are not in ``rows``.

    Under the mask is -1, noise: ``numpy.concatenate`` and ``numpy.asarray`` drop the mask.
    """
    shape = n_rows, *labels.shape[1:]
    whole: np.ma.MaskedArray[Any, Any] = np.ma.array(
        np.full(shape, NOISE, labels.dtype), mask=np.ones(shape, bool), fill_value=NOISE
    )
    whole[rows] = labels
    return whole


class AlignedRows(Federated):
    """A protocol for different columns, on clients whose rows overlap and are in different orders.

    The rows that all clients have are found by keyed hashes of their identifiers, in the same run
    and ledger. The result is that of the protocol on the joined rows. The other rows get no label.

    Attributes
    ----------
    estimator_ : Federated
        The fitted estimator of the protocol, for the common rows in the order of their pseudonyms.
    model_ : object
        The model of the protocol.
    labels_ : list of masked array (n_rows,)
        The labels of each client's rows in the client's order, masked for rows that not all clients
        have. Only if the parts were given to `fit`. A label file has an empty field for them. What
        drops the mask, such as ``numpy.concatenate``, gives them the label -1 of noise;
        ``numpy.ma.concatenate`` keeps the mask.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When the clients of the protocol take no identifiers, the clients have different keys or no
        row in common, or a client's identifiers repeat.
    TooFewClients
        When a client is lost: all clients are needed.

    See Also
    --------
    VerticalDBSCAN : with ``ids``, it checks that all rows are already the same.

    Notes
    -----
    *Disclosure.* The server learns the count of rows of each client and the size of every overlap,
    but no identifier: without the key, it cannot test guesses. It recognises a pseudonym in all
    runs with the same key. Each client learns which of its rows all clients have. A client knows
    the key and must not share it with the server.

    *Cost.* Two exchanges; 16 bytes per row to the server and one byte per row to each client.

    A client can invent pseudonyms, or leave some out, to make the overlap smaller. It cannot make
    it larger.

    Examples
    --------
    One client knows the age of four people, the other one the income of four. Three are the same.

    >>> from fedlib import AlignedRows, VerticalDBSCAN
    >>> age, income = [[30.0], [31.0], [80.0], [32.0]], [[2.0], [1.0], [1.5], [9.0]]
    >>> ids = [["ann", "bob", "cem", "dee"], ["dee", "ann", "bob", "eve"]]
    >>> model = AlignedRows(VerticalDBSCAN(eps=1.5, min_samples=3)).fit([age, income], ids=ids)
    >>> model.labels_[0]
    masked_array(data=[0, 0, --, 0],
                 mask=[False, False,  True, False],
           fill_value=-1)
    >>> model.labels_[1].tolist()
    [0, 0, 0, None]
    """

    client_class = AlignedClient
    same_columns = False
    estimator: Annotated[
        Federated,
        Federated,
        Kind("Federated"),
        """
        The estimator of a protocol whose clients hold different columns of the same rows.
        """,
    ]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The protocol's name: ``aligned/`` and the name of the estimator's protocol."""
        return f"{ALIGNED}{self.estimator.name}"

    def _flow(self) -> Flow[Any]:
        check_alignable(type(self.estimator))
        return aligned(self.estimator.protocol())

    def fit(
        self,
        parts: Sequence[Any] | Transport,
        *,
        passive: Collection[int] = (),
        min_clients: int | None = None,
        ids: Sequence[Sequence[Any]] | None = None,
        key: bytes | None = None,
        journal: str | os.PathLike[str] | None = None,
        verbose: bool | int = False,
    ) -> Self:
        """Find the common rows and fit the model to them.

        Parameters
        ----------
        parts : list of array-like (n_rows, n_features), or Transport
            A list with the columns of each client, to run all clients in this process, or a
            transport to clients that hold their data.
        passive : ()
            Must be empty: no client can be passive.
        min_clients : int, optional
            Only the count of clients is accepted: all clients are needed.
        ids : list of sequences
            The identifiers of each part's rows; required for a list of parts.
        key : bytes, optional
            The key of the pseudonyms, for a list of parts; by default a fixed one. The order of the
            common rows, and so the numbering of clusters, depends on it.
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
            When a parameter, a part, an identifier or the key is invalid.
        TooFewClients
            When a client failed.
        """
        n_clients = len(parts.clients if isinstance(parts, Transport) else parts)
        check_every_client_stays(n_clients, passive, min_clients)
        if isinstance(parts, Transport):
            if ids is not None or key is not None:
                raise ValueError(
                    "ids and key apply to a list of parts; over a transport, clients have them"
                )
            return self._fit(parts, journal=journal, verbose=verbose)
        if ids is None or len(ids) != n_clients:
            received = "none" if ids is None else len(ids)
            raise ValueError(f"ids must contain one sequence per part, {n_clients}; got {received}")
        key = KEY_IN_PROCESS if key is None else key
        options = [{"ids": one, "key": key} for one in ids]
        return self._fit(parts, options=options, journal=journal, verbose=verbose)

    def _client_factory(
        self, options: Sequence[dict[str, Any]]
    ) -> tuple[type[Any], Sequence[dict[str, Any]]]:
        wrapped = {"client_class": self.estimator.client_class}
        return self.client_class, [{**one, **wrapped} for one in options]

    def _check_clients(self, clients: Mapping[str, Client]) -> None:
        """Accept all clients: only the flow can compare them."""

    def _set_model(self, model: Model) -> None:
        super()._set_model(model)
        self.estimator_ = clone(self.estimator)
        self.estimator_._set_model(model)

    def _set_labels(self, host: LocalTransport) -> None:
        super()._set_labels(host)
        self.estimator_.ledger_ = self.ledger_


def check_alignable(estimator: type[Federated]) -> None:
    """Raise ValueError when the clients of a protocol take no identifiers."""
    if not {"ids", "key"} <= set(signature(estimator.client_class).parameters):
        raise ValueError(
            f"{estimator.name} needs no alignment: its clients hold different rows of the same"
            " columns"
        )
