"""Files: read a site's rows, write the results of a run.

The rules:

- The features in a file are finite numbers. Otherwise the error names the column and the row. If
  the run preprocesses the rows, they may also be text, and there may be gaps.
- A file is written completely or not at all.
"""

from __future__ import annotations

import gzip
import io
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib.core.columns import read_columns

__all__ = ["Table", "read_array", "read_table", "write_file", "write_labels"]

# The exceptions of pandas, pyarrow, numpy and scipy for a file that they cannot read.
UNREADABLE = (
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    StopIteration,
    pd.errors.ParserWarning,  # of rows that are longer than the header
    ValueError,
    zlib.error,
)
TEXT = {".csv", ".tsv", ".txt"}
FORMATS = ".csv, .tsv and .txt (also with .gz), .arff, .parquet and .npy"
DECIMAL_COMMA = r"[-+]?\d+(,\d+)?"
MAX_EXACT = 2**53  # whole numbers up to here are float64 numbers

# Without it, pandas before 3.1 errs in the last bit of a number; pandas 3.1 deprecates it.
OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT_NUMBERS: dict[str, Any] = {"float_precision": "round_trip"} if OLD_PANDAS else {}


class Table(NamedTuple):
    """A site's rows.

    Attributes
    ----------
    X : DataFrame or array (n_rows, n_features)
        The features; a DataFrame if they have names.
    y : array (n_rows,), optional
        The classes.
    sample_weight : array (n_rows,), optional
        The weights.
    ids : Series (n_rows,), optional
        The identifiers, with the name of their column.
    """

    X: Any
    y: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    ids: pd.Series | None = None


def read_table(
    path: Path,
    columns: str | None = None,
    target: str | None = None,
    sample_weight: str | None = None,
    ids: str | None = None,
    header: bool = True,
    raw: bool = False,
) -> Table:
    r"""Read a site's rows and check that its features are finite numbers.

    Parameters
    ----------
    path : Path
        A .csv, .tsv, .txt, .arff, .parquet or .npy file. Text is UTF-8 and may be compressed
        (.csv.gz). Its separator is the comma, semicolon or tab that occurs in its first line. With
        another separator than the comma, numbers may have decimal commas, as Excel writes them in
        some countries.
    columns : str, optional
        The names of the features, separated by commas; by default all columns that are not named by
        the next three parameters.
    target, sample_weight, ids : str, optional
        The names of the columns with the classes, the weights and the identifiers.
    header : bool, default=True
        Whether the first row of a text file contains the names. Columns without names, and those of
        a .npy file, are called 0, 1 and so on.
    raw : bool, default=False
        Whether the features may be text and have gaps, for a run that preprocesses them.

    Raises
    ------
    ValueError
        When the file cannot be read, a column is missing, or a feature contains anything except
        finite numbers (if ``raw``, anything except numbers, text and gaps). The text names the
        column and the row, counted from 1.

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
    except UNREADABLE as error:
        raise ValueError(f"cannot be read: {' '.join(str(error).split())}") from error
    others = [name for name in (target, sample_weight, ids) if name is not None]
    names = _feature_columns(frame, columns, others)
    if raw:
        X = frame[names]
        read_columns(X)
    else:
        X = _features(frame[names])
    named = path.suffix != ".npy" and header
    return Table(
        X if named else X.to_numpy(),
        None if target is None else _classes(frame[target]),
        None if sample_weight is None else _numbers(frame[sample_weight]),
        None if ids is None else _complete(frame[ids], "identifier"),
    )


def _feature_columns(frame: pd.DataFrame, columns: str | None, others: Sequence[str]) -> list[str]:
    """Return the names of the features; every named column must exist and be used only once."""
    if columns is None:
        names = [name for name in frame.columns if name not in others]
    else:
        names = [name.strip() for name in columns.split(",")]
    missing = [name for name in [*names, *others] if name not in frame.columns]
    if missing:
        available = ", ".join(map(str, frame.columns[:20]))
        raise ValueError(f"there is no column {', '.join(missing)}; the columns are {available}")
    if not names:
        raise ValueError("no column is left for the features")
    counts = Counter(names)
    repeated = {name for name in names if counts[name] > 1 or name in others}
    if repeated:
        raise ValueError(f"columns used more than once: {', '.join(sorted(repeated))}")
    return names


def read_array(path: Path) -> np.ndarray:
    r"""Return an array of numbers from a .npy file, or from a .csv file without a header.

    Raises
    ------
    OSError, ValueError
        When the file cannot be read.

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


def write_labels(
    path: Path, labels: np.ndarray, table: Table, further: Mapping[str, np.ndarray] | None = None
) -> None:
    """Write the labels of a table's rows, in the order of the rows.

    Parameters
    ----------
    path : Path
        A .npy file for the labels alone, or else a CSV file, which also contains the identifiers if
        the table has them.
    labels : array or masked array (n_rows,)
        A masked label is an empty field, and NaN in a .npy file.
    table : Table
    further : mapping of str to array (n_rows,), optional
        Additional columns of the CSV file, by name.

    Raises
    ------
    ValueError
        When the number of labels is not the number of rows.
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
        np.save(data, _with_nan(labels), allow_pickle=False)
        write_file(path, data.getvalue(), mode=0o600)
        return
    column = pd.Series(np.ma.getdata(labels), dtype=object).where(~np.ma.getmaskarray(labels), "")
    frame = pd.DataFrame({"label": column, **(further or {})})
    if table.ids is not None:
        frame.insert(0, table.ids.name, table.ids.to_numpy(), allow_duplicates=True)
    text = frame.to_csv(index=False, lineterminator="\n")
    write_file(path, text.encode(), mode=0o600)


def _with_nan(labels: np.ndarray) -> np.ndarray:
    """Return labels with NaN in place of masked ones, if there are any."""
    if not np.ma.is_masked(labels):
        return np.ma.getdata(labels)
    return np.where(np.ma.getmaskarray(labels), np.nan, np.ma.getdata(labels))


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that a crash leaves either the old or the new file.

    Parameters
    ----------
    path : Path
    data : bytes
    mode : int, default=0o644
        The permissions of the file.

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
    """Return the table in a file; the columns ``texts`` of a text file remain text."""
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix in TEXT:
        return _read_text(path, header, texts)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        if array.ndim != 2:
            raise ValueError(f"the array must have 2 axes, rows and columns, got {array.ndim}")
        return pd.DataFrame(array, columns=[str(i) for i in range(array.shape[1])])
    if suffix == ".parquet":
        return _read_parquet(path)
    if suffix == ".arff":
        from fedlib.datasets.tables import parse

        return parse("rows.arff", path.read_bytes())
    raise ValueError(f"the format {suffix or 'without a suffix'} is unknown; known are {FORMATS}")


def _read_text(path: Path, header: bool, texts: Sequence[str]) -> pd.DataFrame:
    """Return the table in a text file; the columns ``texts`` remain text."""
    separator, n_skipped = _separator(path)
    options: dict[str, Any] = {
        "sep": separator,
        "header": None,
        "index_col": False,
        "skipinitialspace": True,
        "low_memory": False,  # otherwise numbers and text could be mixed in one column
        "keep_default_na": False,  # a word such as NA is a word and not a missing value
        "encoding": "utf-8-sig",
    }
    names = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            if header:
                first = pd.read_csv(path, skiprows=n_skipped, nrows=1, dtype=object, **options)
                names = [str(name).strip() for name in first.iloc[0]]
                _check_names(names)
            frame = pd.read_csv(
                path,
                skiprows=n_skipped + header,
                names=names,
                dtype=dict.fromkeys(texts, str),
                na_values=[""],
                **options,
                **EXACT_NUMBERS,
            )
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}"
        raise ValueError(f"the text is not UTF-8 (byte {byte}); save the file as UTF-8") from error
    frame.columns = frame.columns.astype(str)
    if separator != ",":
        for name in frame.columns.difference(list(texts)):
            frame[name] = _with_decimal_points(frame[name])
    return frame


def _separator(path: Path) -> tuple[str, int]:
    """Return the separator of a text file, and the number of lines to skip: 1 for ``sep=;``."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        first = file.readline(2**20).decode("utf-8-sig", "replace").rstrip()
    if first.startswith("sep=") and len(first) == 5:  # written by Excel
        return first[4], 1
    if "," in first:
        return ",", 0
    return next((mark for mark in ";\t" if mark in first), ","), 0


def _check_names(names: Sequence[str]) -> None:
    """Raise ValueError if names of columns are numbers, empty or repeated."""
    if pd.to_numeric(pd.Series(names), errors="coerce").notna().all():
        raise ValueError("the first row contains numbers instead of names; use --no-header")
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} has no name")
    repeated = sorted(name for name, n in Counter(names).items() if n > 1)
    if repeated:
        raise ValueError(f"columns with the same name: {', '.join(repeated)}")


def _with_decimal_points(column: pd.Series) -> pd.Series:
    """Return a column of numbers with decimal commas as numbers, and any other column unchanged."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    texts = column.dropna().astype(str).str.strip()
    if not len(texts) or not texts.str.fullmatch(DECIMAL_COMMA).all():
        return column
    return texts.str.replace(",", ".").astype(np.float64).reindex(column.index)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise ValueError('pyarrow is missing: pip install "fedlib-study[http]"') from error


def _complete(column: pd.Series, content: str) -> pd.Series:
    """Return a column; raise ValueError if a value is missing."""
    gaps = np.flatnonzero(column.isna())
    if len(gaps):
        raise ValueError(f"column {column.name!r} has no {content} in row {gaps[0] + 1}")
    return column


def _features(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the features as floats; raise ValueError for anything except finite numbers."""
    if all(dtype.kind in "iuf" for dtype in frame.dtypes):  # faster than one column after another
        numbers = np.asfortranarray(frame.to_numpy(np.float64))
        if np.isfinite(numbers).all() and np.abs(numbers).max(initial=0) <= MAX_EXACT:
            return pd.DataFrame(numbers, columns=frame.columns)
    return pd.DataFrame({name: _feature(frame[name]) for name in frame}, columns=frame.columns)


def _feature(column: pd.Series) -> np.ndarray:
    """Return the numbers in a feature's column; an error names the remedy."""
    try:
        return _numbers(column)
    except ValueError as error:
        raise ValueError(
            f"{error}; text and gaps need a run that preprocesses: fedlib serve with --encode and"
            " --impute, fedlib join with --protocol pipeline/NAME"
        ) from error


def _numbers(column: pd.Series) -> np.ndarray:
    """Return the numbers in a column; raise ValueError if one is missing or not finite."""
    column = _complete(column, "value")
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    valid = np.isfinite(numbers)
    if pd.api.types.is_bool_dtype(column):  # to_numeric would convert truth values
        valid = np.zeros(len(column), bool)
    if not valid.all():
        first = int(np.argmin(valid))
        value = str(column.iloc[first])[:40]
        raise ValueError(
            f"column {column.name!r} must contain finite numbers, got {value!r} in row {first + 1}"
        )
    if not pd.api.types.is_float_dtype(column) and (inexact := np.abs(numbers) > MAX_EXACT).any():
        first = int(np.argmax(inexact))
        raise ValueError(
            f"column {column.name!r} must contain whole numbers within ±2**53, which are exact as"
            f" 64-bit floats, got {str(column.iloc[first])[:40]} in row {first + 1}"
        )
    return numbers


def _classes(column: pd.Series) -> np.ndarray:
    """Return the classes in a column: numbers if all of them are numbers, or else text."""
    column = _complete(column, "class")
    numbers = pd.to_numeric(column, errors="coerce")
    return column.astype(str).to_numpy(np.str_) if numbers.isna().any() else numbers.to_numpy()
