"""Labels of the rows of a Dask collection: those of a run, and those that a model predicts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
from dask import delayed
from distributed import Future
from numpy.typing import NDArray

from fedlib.core.client import Client
from fedlib.core.messages import Message
from fedlib.transports.dask.partitions import Partitions
from fedlib.transports.dask.tasks import Answer, Seat, unpack

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
