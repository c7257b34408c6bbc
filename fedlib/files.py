"""Files: a site's rows are read, and what a run has made is written.

The rules:

- A file's features are finite numbers, or else the column and the row are named.
- A file is written whole or not at all.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

__all__ = ["Table", "read_array", "read_table", "write_file", "write_labels"]


class Table(NamedTuple):
    """A site's rows."""

    X: Any  # a DataFrame where the file has names, else an array
    y: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    ids: pd.Series | None = None  # under its column's name


def read_table(
    path: Path,
    columns: str | None = None,
    target: str | None = None,
    sample_weight: str | None = None,
    ids: str | None = None,
    header: bool = True,
) -> Table:
    r"""Read a site's rows, and check that its features are finite numbers.

    Raises
    ------
    ValueError
        When the file cannot be read, lacks a column, or a feature has something that is no number;
        it names the column and the row, counted from 1.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.csv")
    ...     _ = path.write_text("age,bmi,kind\n41,22.5,a\n57,30.1,b\n")
    ...     table = read_table(path, target="kind")
    >>> table.X.columns.tolist(), table.y.tolist()
    (['age', 'bmi'], ['a', 'b'])
    """
    try:
        frame = _read_frame(path, header, [name for name in (ids,) if name])
    except (OSError, ValueError, LookupError, NotImplementedError, StopIteration) as error:
        raise ValueError(f"cannot be read: {' '.join(str(error).split())}") from error
    others = [name for name in (target, sample_weight, ids) if name is not None]
    names = [name.strip() for name in columns.split(",")] if columns is not None else None
    if names is None:
        names = [name for name in frame.columns if name not in others]
    missing = [name for name in [*names, *others] if name not in frame.columns]
    if missing:
        there = ", ".join(map(str, frame.columns[:20]))
        raise ValueError(f"there is no column {', '.join(missing)}; there are {there}")
    if not names:
        raise ValueError("there is no column of features")
    twice = {name for name in names if names.count(name) > 1 or name in others}
    if twice:
        raise ValueError(f"columns that are used twice: {', '.join(sorted(twice))}")
    X = pd.DataFrame({name: _numbers(frame[name]) for name in names}, columns=names)
    named = path.suffix != ".npy" and header
    return Table(
        X if named else X.to_numpy(),
        None if target is None else _classes(frame[target]),
        None if sample_weight is None else _numbers(frame[sample_weight]),
        None if ids is None else _whole(frame[ids], "identifier"),
    )


def read_array(path: Path) -> np.ndarray:
    r"""Return an array of numbers from a .npy file, or a .csv file of rows without names.

    Raises
    ------
    OSError, ValueError
        When it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "centres.csv")
    ...     _ = path.write_text("0,1\n2,3\n")
    ...     read_array(path).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    return np.loadtxt(path, delimiter=",", ndmin=2)


def write_labels(path: Path, labels: np.ndarray, table: Table) -> None:
    """Write the labels of a table's rows, row for row: to .npy, or else as CSV with identifiers.

    Raises
    ------
    ValueError
        When there is not one label for each row.
    OSError
        When the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> table = Table(np.zeros((2, 1)), ids=pd.Series(["a", "b"], name="patient"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels.csv")
    ...     write_labels(path, np.array([0, -1]), table)
    ...     print(path.read_text(), end="")
    patient,label
    a,0
    b,-1
    """
    if len(labels) != len(table.X):
        raise ValueError(f"there are {len(labels)} labels for {len(table.X)} rows")
    if path.suffix == ".npy":
        data = io.BytesIO()
        np.save(data, labels)
        write_file(path, data.getvalue(), mode=0o600)
        return
    frame = pd.DataFrame({"label": labels})
    if table.ids is not None:
        frame.insert(0, table.ids.name, table.ids.to_numpy(), allow_duplicates=True)
    text = frame.to_csv(index=False, lineterminator="\n")
    write_file(path, text.encode(), mode=0o600)


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that a crash leaves either the old or the new one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "new"), b"whole")
    ...     Path(folder, "new").read_bytes()
    b'whole'
    """
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _read_frame(path: Path, header: bool, texts: Sequence[str]) -> pd.DataFrame:
    """Return a file's table; the columns ``texts`` of a text file stay text."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        if array.ndim != 2:
            raise ValueError(f"an array of {array.ndim} axes, where rows and columns are needed")
        return pd.DataFrame(array, columns=[str(i) for i in range(array.shape[1])])
    if suffix == ".parquet":
        return pd.read_parquet(path)
    if suffix == ".arff":
        from fedlib.datasets import _read

        return _read(path.name, path.read_bytes())
    if suffix not in {".csv", ".tsv", ".txt"}:
        raise ValueError(f"{suffix or 'a file without a suffix'} is none of the known kinds")
    frame = pd.read_csv(
        path,
        sep="\t" if suffix == ".tsv" else ",",
        header=0 if header else None,
        dtype=dict.fromkeys(texts, str),
        index_col=False,
        keep_default_na=False,  # a word such as NA is no gap but a word
        na_values=[""],
        encoding="utf-8-sig",
    )
    frame.columns = frame.columns.astype(str).str.strip()
    if header and pd.to_numeric(pd.Series(frame.columns), errors="coerce").notna().all():
        raise ValueError("the first row holds numbers, not names: --no-header")
    return frame


def _whole(column: pd.Series, what: str) -> pd.Series:
    """Return a column in which nothing is missing."""
    gaps = np.flatnonzero(column.isna())
    if len(gaps):
        raise ValueError(f"column {column.name!r} has no {what} in row {gaps[0] + 1}")
    return column


def _numbers(column: pd.Series) -> np.ndarray:
    """Return a column's finite numbers."""
    column = _whole(column, "value")
    truth = pd.api.types.is_bool_dtype(column)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers)) if not truth else np.arange(min(1, len(column)))
    if len(wrong):
        first = wrong[0]
        value = str(column.iloc[first])[:40]
        raise ValueError(f"column {column.name!r} holds {value!r} in row {first + 1}, no number")
    return numbers


def _classes(column: pd.Series) -> np.ndarray:
    """Return a column of classes: numbers where all of them are, else text."""
    column = _whole(column, "class")
    numbers = pd.to_numeric(column, errors="coerce")
    return column.astype(str).to_numpy(np.str_) if numbers.isna().any() else numbers.to_numpy()
