"""The functions that run on the workers.

A step of a run is at most three kinds of tasks. `answer` has one per client. It takes the client's
data, or the `Member` made of them, and the `Answer` to the last request that has changed the
client's state. So the states form a chain, which Dask repeats if a worker is lost. `extract` takes
the reply from the answer, so that the state stays on the worker. `combine` adds replies.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from dask import delayed
from dask.delayed import Delayed
from dask.sizeof import sizeof
from distributed import Future
from numpy.typing import NDArray

from fedlib.core.client import Client
from fedlib.core.in_process import arrays_of, data_digest
from fedlib.core.messages import Labels, Message, MessageError, decode, encode
from fedlib.core.protocol import Combined, serve


def read_parquet(path: str) -> pd.DataFrame:
    """Return the table in a Parquet file.

    Columns of float64 without gaps are copied once, into the memory layout that the clients need;
    pandas would need several times as long.
    """
    table = pq.read_table(path, use_threads=False, memory_map=True)
    indexed = (table.schema.pandas_metadata or {}).get("index_columns", [])
    plain = all(str(column.type) == "double" and not column.null_count for column in table.columns)
    if not plain or any(isinstance(index, str) for index in indexed):
        frame: pd.DataFrame = table.to_pandas(use_threads=False)
        return frame
    values = np.empty((table.num_rows, table.num_columns))
    for j, column in enumerate(table.columns):
        first = 0
        for chunk in column.chunks:
            values[first : first + len(chunk), j] = chunk.to_numpy()
            first += len(chunk)
    return pd.DataFrame(values, columns=table.column_names)


READERS: dict[str, Callable[[str], Any]] = {".npy": np.load, ".parquet": read_parquet}


@dataclass(frozen=True)
class Source:
    """A file or a function from which a worker reads a partition.

    Attributes
    ----------
    origin : str or callable
        The path of a .parquet or .npy file that every worker can read, or a function without
        arguments that returns the data.
    """

    origin: str | Callable[[], Any]

    def read(self) -> Any:
        """Return the data of the partition."""
        if isinstance(self.origin, str):
            return READERS[Path(self.origin).suffix](self.origin)
        return self.origin()


@dataclass(frozen=True)
class Partitions:
    """The partitions of a data set, in order.

    Attributes
    ----------
    parts : list of Source or Delayed
        One per partition. A Delayed is a partition of a Dask collection; its value is the data.
    divisions : tuple, optional
        Those of a Dask DataFrame.
    chunks : tuple of int, optional
        The numbers of rows in the chunks of a Dask Array, which may be NaN.
    """

    parts: list[Any]
    divisions: tuple[Any, ...] | None = None
    chunks: tuple[int, ...] | None = None

    @classmethod
    def of(cls, data: Any) -> Partitions:
        """Return the partitions of the data that `Dask` accepts.

        Raises
        ------
        ValueError
            When the data are of another type, or have no partitions.

        Examples
        --------
        >>> Partitions.of(["a.parquet", "b.npy"]).parts[1]
        Source(origin='b.npy')
        >>> Partitions.of(da.zeros((6, 2), chunks=(4, 1))).chunks
        (4, 2)
        """
        if isinstance(data, dd.DataFrame | dd.Series):
            return cls(data.to_delayed(), divisions=data.divisions)
        if isinstance(data, da.Array):
            if data.ndim not in (1, 2):
                raise ValueError(f"an Array must have one or two axes, got {data.ndim}")
            whole_rows = data.rechunk({1: -1}) if data.ndim == 2 else data
            return cls(whole_rows.to_delayed().ravel().tolist(), chunks=data.chunks[0])
        if isinstance(data, tuple):
            return cls._of_several([one if one is None else cls.of(one) for one in data])
        if not isinstance(data, Sequence) or isinstance(data, str) or not len(data):
            raise ValueError(
                "partitions must be a Dask DataFrame or Array, a tuple of them, or a list of files"
                f" or functions; got {_describe(data)}"
            )
        return cls([_source(i, one) for i, one in enumerate(data)])

    @classmethod
    def _of_several(cls, given: Sequence[Partitions | None]) -> Partitions:
        """Return partitions that are tuples, such as (X, y); a None is one in all of them.

        Files and functions are read together, too.
        """
        n_parts = max((len(one.parts) for one in given if one is not None), default=0)
        members = [cls([None] * n_parts) if one is None else one for one in given]
        counts = [len(one.parts) for one in members]
        if not counts or len(set(counts)) > 1:
            raise ValueError(f"a tuple's members must have equally many partitions, got {counts}")
        together = delayed(_together, pure=False)
        parts = [together(*parts) for parts in zip(*(one.parts for one in members), strict=True)]
        return cls(parts, members[0].divisions, members[0].chunks)


def _together(*values: Any) -> tuple[Any, ...]:
    return tuple(one.read() if isinstance(one, Source) else one for one in values)


def _source(i: int, origin: Any) -> Source:
    if callable(origin):
        return Source(origin)
    if not isinstance(origin, str | os.PathLike) or Path(origin).suffix not in READERS:
        raise ValueError(
            f"partitions[{i}] must be a function or the path of a .parquet or .npy file; got"
            f" {_describe(origin)}"
        )
    return Source(os.fspath(origin))


def _describe(value: object) -> str:
    return repr(value) if isinstance(value, str | Path | list) else f"a {type(value).__name__}"


def is_delayed(part: object) -> bool:
    """Return whether a partition belongs to a Dask collection."""
    return isinstance(part, Delayed)


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


NAME = "label"


class Stored:
    """A client after a run: its state, and all else only if it is needed.

    Most labels are the state alone, and making the client again would read its data.

    Attributes
    ----------
    state : Message or None
    """

    def __init__(self, seat: Seat, data: Any, answered: Answer | None):
        self.state: Message | None = None if answered is None else unpack(answered.state)
        self._make = partial(seat.make_client, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @cached_property
    def _client(self) -> Client:
        client = self._make()
        client.state = self.state
        return client


def gather_labels(
    client: distributed.Client,
    read: Callable[[Any], NDArray[Any]],
    seats: Mapping[str, Seat],
    answers: Mapping[str, Future | None],
    partitions: Partitions,
) -> Any:
    """Return the labels of a run as a lazy Dask Series or Array.

    Parameters
    ----------
    client : distributed.Client
    read : callable
        Returns the labels of one client.
    seats : mapping of str to Seat
    answers : mapping of str to Future or None
        The last answer of each client that has labels.
    partitions : Partitions
    """
    reader = delayed(read, traverse=False, pure=False)
    chosen = [
        (delayed(seats[name], traverse=False, pure=False), part, answers[name])
        for name, part in zip(seats, partitions.parts, strict=True)
        if name in answers
    ]
    first = delayed(_labels, pure=False)(reader, *chosen[0])
    kind = client.compute(first.dtype).result()
    if partitions.chunks is not None:
        lengths = [n for name, n in zip(seats, partitions.chunks, strict=True) if name in answers]
        return da.concatenate(
            [
                da.from_delayed(delayed(_labels, pure=False)(reader, *one), (n,), kind)
                for n, one in zip(lengths, chosen, strict=True)
            ]
        )
    series = [delayed(_series, pure=False)(reader, *one) for one in chosen]
    complete = len(chosen) == len(seats)
    return dd.from_delayed(
        series,
        pd.Series(np.empty(0, kind), name=NAME),
        partitions.divisions if complete else None,
        verify_meta=False,
    )


def _labels(
    read: Callable[[Any], NDArray[Any]], seat: Seat, data: Any, answered: Answer | None
) -> NDArray[Any]:
    """Return the labels of one partition."""
    return read(Stored(seat, data, answered))


def _series(
    read: Callable[[Any], NDArray[Any]], seat: Seat, data: Any, answered: Answer | None
) -> pd.Series[Any]:
    """Return the labels of one partition with the index of its rows."""
    labels = _labels(read, seat, data, answered)
    table = data[0] if isinstance(data, tuple) else data
    return pd.Series(labels, index=getattr(table, "index", None), name=NAME)


def predict(estimator: Any, X: Any) -> Any:
    """Return the predictions of a fitted estimator for a Dask collection, partition by partition.

    Parameters
    ----------
    estimator : Federated
        A fitted estimator with the method ``predict``.
    X : Dask DataFrame or Array
        The features. An Array has all columns in one chunk.

    Returns
    -------
    Dask Series or Array
        With the index and the partitions of ``X``. It is lazy.

    Raises
    ------
    ValueError
        When ``X`` is not a Dask DataFrame or Array.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit([[[0.1], [0.2]], [[5.0]]])
    >>> X = da.from_array(np.array([[0.7], [9.0]]), chunks=(1, 1))
    >>> predict(model, X).compute(scheduler="synchronous")
    array([ 0, -1])
    """
    model = copy.copy(estimator)
    for name in {"labels_", "ledger_"} & vars(model).keys():  # workers do not need them
        delattr(model, name)
    if isinstance(X, dd.DataFrame):
        meta = _predict_series(X._meta_nonempty, model)
        return X.map_partitions(_predict_series, model, meta=meta.iloc[:0])
    if isinstance(X, da.Array):
        kind = model.predict(np.zeros((1, X.shape[1]))).dtype
        return X.map_blocks(model.predict, dtype=kind, drop_axis=1)
    raise ValueError(f"X must be a Dask DataFrame or Array, got a {type(X).__name__}")


def _predict_series(X: pd.DataFrame, model: Any) -> pd.Series[Any]:
    labels = model.predict(X) if len(X) else np.empty(0, np.int64)
    return pd.Series(labels, index=X.index, name=NAME)
