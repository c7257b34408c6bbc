"""Raw tables: columns of numbers or text, with gaps, as sites have them.

The rules:

- A column contains numbers or text. Truth values and pandas' categories are text. A column without
  any value has no kind.
- A gap is NaN, None, NaT or an empty text.
- Dates, infinities and numbers beyond ±1e100 are refused. The error names the column and the row,
  counted from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedlib.core.array_types import Bools, Bytes, Floats, Ints
from fedlib.core.validation import feature_names

__all__ = [
    "EMPTY",
    "MAX_NUMBER",
    "NUMBER",
    "TEXT",
    "read_columns",
]

NUMBER, TEXT, EMPTY = range(3)  # the kinds of columns
MAX_NUMBER = 1e100  # so that no sum of squares over any number of clients overflows
MAX_EXACT = 2**53  # whole numbers up to here are float64 numbers
MAX_TEXT = 200  # characters of a category
DATE = r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([T ]\d{1,2}:.*)?\s*"

Column = NDArray[Any]


@dataclass(frozen=True)
class RawTable:
    """A table of numbers and text with gaps.

    Attributes
    ----------
    features : tuple of str
        The names of the columns; empty if they have none.
    columns : tuple of array (n_rows,)
        Numbers as float64 with NaN for a gap, text as objects with None for a gap.
    """

    features: tuple[str, ...]
    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the number of columns."""
        return len(self), len(self.columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the columns, or their positions 0, 1 and so on."""
        return self.features or tuple(map(str, range(len(self.columns))))

    @property
    def kinds(self) -> Bytes:
        """The kind of each column: `NUMBER`, `TEXT` or `EMPTY`."""
        kinds = [
            EMPTY if not present(column).any() else TEXT if column.dtype == object else NUMBER
            for column in self.columns
        ]
        return np.array(kinds, np.uint8)

    @property
    def counts(self) -> Ints:
        """The number of values in each column."""
        return np.array([present(column).sum() for column in self.columns], np.int64)

    @property
    def complete(self) -> Bools:
        """Whether each row has no gap (n_rows,)."""
        return np.logical_and.reduce([present(column) for column in self.columns])

    def rows(self, kept: Bools) -> RawTable:
        """Return the rows where ``kept`` (n_rows,) is true."""
        return replace(self, columns=tuple(column[kept] for column in self.columns))

    def with_text(self, names: Sequence[str]) -> RawTable:
        """Return the table with the numbers of some columns as text: 1.0 becomes "1".

        Raises
        ------
        ValueError
            When there is no such column.
        """
        unknown = [name for name in names if name not in self.labels]
        if unknown:
            raise ValueError(
                f"there is no column {', '.join(unknown)}; the columns are"
                f" {', '.join(self.labels[:20])}"
            )
        columns = [
            _numbers_as_text(column) if label in names and column.dtype != object else column
            for label, column in zip(self.labels, self.columns, strict=True)
        ]
        return replace(self, columns=tuple(columns))

    def filled(self, columns: Sequence[int], values: Sequence[float]) -> RawTable:
        """Return the table with a value for the gaps of some columns of numbers."""
        filled = list(self.columns)
        for j, value in zip(columns, values, strict=True):
            numbers = self.numbers(int(j))
            filled[j] = np.where(np.isnan(numbers), value, numbers)
        return replace(self, columns=tuple(filled))

    def numbers(self, j: int) -> Floats:
        """Return column ``j`` as numbers with NaN for gaps; a column without values has only gaps.

        Raises
        ------
        ValueError
            When the column contains text.
        """
        column = self.columns[j]
        if column.dtype != object:
            return column
        if present(column).any():
            row = int(np.argmax(present(column)))
            raise ValueError(
                f"column {self.labels[j]!r} must contain numbers, got {column[row][:40]!r} in row"
                f" {row + 1}"
            )
        return self.numbers_or_gaps(j)

    def numbers_or_gaps(self, j: int) -> Floats:
        """Return column ``j`` as numbers with NaN for gaps and for texts."""
        column = self.columns[j]
        return np.full(len(column), np.nan) if column.dtype == object else column

    def texts(self, j: int) -> Column:
        """Return column ``j`` as text with None for gaps; numbers become text."""
        column = self.columns[j]
        return column if column.dtype == object else _numbers_as_text(column)


def present(column: Column) -> Bools:
    """Return whether each entry of a column is a value and not a gap."""
    if column.dtype == object:
        return np.array([value is not None for value in column], bool)
    return ~np.isnan(column)


def read_columns(X: Any) -> RawTable:
    """Return a table's columns as numbers or text.

    Parameters
    ----------
    X : DataFrame or array-like (n_rows, n_columns)
        There may be no rows, but there must be columns.

    Raises
    ------
    ValueError
        When it is no table, or a column contains anything except numbers, text and gaps. The text
        names the column, the row and the remedy.

    Examples
    --------
    >>> table = read_columns(pd.DataFrame({"age": [41, None], "sex": ["m", "f"]}))
    >>> table.columns[0], table.columns[1], table.counts
    (array([41., nan]), array(['m', 'f'], dtype=object), array([1, 2]))
    """
    if isinstance(X, pd.DataFrame) and not X.columns.is_unique:
        repeated = X.columns[X.columns.duplicated()].unique()
        raise ValueError(f"the names of columns must be unique, got repeated {list(repeated)}")
    features = feature_names(X)
    frame = X if isinstance(X, pd.DataFrame) else _frame(X)
    if frame.shape[1] == 0:
        raise ValueError("the table has no columns")
    labels = features or tuple(map(str, range(frame.shape[1])))
    return RawTable(
        features, tuple(_read(frame.iloc[:, j], label) for j, label in enumerate(labels))
    )


def _frame(X: ArrayLike) -> pd.DataFrame:
    """Return an array-like as a DataFrame with one dtype per column."""
    array = X if isinstance(X, np.ndarray) else np.asarray(X, dtype=object)
    if array.ndim != 2:
        raise ValueError(f"X must be a table with 2 axes, rows and columns, got {array.ndim}")
    return pd.DataFrame(array).infer_objects()


def _read(column: pd.Series, label: str) -> Column:
    """Return the numbers or texts in a column."""
    dtype, types = column.dtype, pd.api.types
    if isinstance(dtype, pd.CategoricalDtype) or types.is_bool_dtype(dtype):
        return _texts(column.astype(object), label)
    if types.is_complex_dtype(dtype):
        raise ValueError(f"column {label!r} must contain numbers or text, got complex numbers")
    if types.is_numeric_dtype(dtype):
        return _numbers(column, label)
    if not (types.is_object_dtype(dtype) or types.is_string_dtype(dtype)):
        raise _dates(label, dtype)
    values = column[column.notna().to_numpy()].to_numpy(object)
    values = values[values != ""]
    kinds = {_kind(value) for value in values}
    if kinds <= {"text"} or kinds == {"truth value"}:
        _check_texts(column, values, label)
        return _texts(column, label)
    if kinds == {"number"}:
        return _numbers(pd.to_numeric(column), label)
    if "date" in kinds:
        raise _dates(label, "dates")
    odd = next(value for value in values if not isinstance(value, Real) or isinstance(value, bool))
    raise ValueError(
        f"column {label!r} must contain either numbers or text, got both, such as"
        f" {str(odd)[:40]!r}; leave cells without a value empty"
    )


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "truth value"
    if isinstance(value, Real):
        return "number"
    return "date" if hasattr(value, "isoformat") else "other"


def _dates(label: str, found: object) -> ValueError:
    return ValueError(
        f"column {label!r} must contain numbers or text, got {found}; replace dates by numbers,"
        " such as the days since a fixed date, or leave the column out"
    )


def _numbers(column: pd.Series, label: str) -> Column:
    numbers = column.to_numpy(np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        large = np.abs(numbers) > MAX_NUMBER
        inexact = np.abs(numbers) > MAX_EXACT
    if large.any():
        row = int(np.argmax(large))
        raise ValueError(
            f"column {label!r} must contain finite numbers within ±{MAX_NUMBER:g}, got"
            f" {numbers[row]:g} in row {row + 1}"
        )
    if pd.api.types.is_integer_dtype(column) and inexact.any():
        row = int(np.argmax(inexact))
        raise ValueError(
            f"column {label!r} must contain whole numbers within ±2**53, which are exact as 64-bit"
            f" floats, got {column.iloc[row]} in row {row + 1}; identifiers are no features"
        )
    return numbers + 0.0  # a copy without negative zeros


def _check_texts(column: pd.Series, values: NDArray[Any], label: str) -> None:
    """Raise ValueError for dates, for numbers with a few words among them, and for long texts."""
    texts = pd.Series(values, dtype=object).astype(str)
    if not len(texts):
        return
    if texts.str.fullmatch(DATE).mean() > 0.5:
        raise _dates(label, repr(texts.iloc[0][:40]))
    numeric = pd.to_numeric(texts, errors="coerce").notna()
    if 0.5 < numeric.mean() < 1:
        word = texts[~numeric].iloc[0]
        row = int(np.argmax((column.astype(object) == word).to_numpy())) + 1
        raise ValueError(
            f"column {label!r} must contain either numbers or text, got numbers and {word[:40]!r}"
            f" in row {row}; leave cells without a value empty"
        )
    if (longest := int(texts.str.len().max())) > MAX_TEXT:
        raise ValueError(
            f"column {label!r} must contain texts of at most {MAX_TEXT} characters, got {longest};"
            " leave columns with free text out"
        )


def _texts(column: pd.Series, label: str) -> Column:
    gaps = column.isna().to_numpy()
    texts = np.array([None if gap else str(v) for v, gap in zip(column, gaps, strict=True)], object)
    texts[texts == ""] = None
    if any(len(text) > MAX_TEXT for text in texts if text is not None):
        raise ValueError(f"column {label!r} must contain texts of at most {MAX_TEXT} characters")
    return texts


def _numbers_as_text(column: Floats) -> Column:
    return np.array([None if np.isnan(v) else f"{v:.17g}" for v in column], object)
