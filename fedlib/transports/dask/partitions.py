"""Partitions: where the data of each client lie, and how a worker reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from dask import delayed
from dask.delayed import Delayed


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
