"""Columns of numbers or text, with gaps, as sites have them.

All protocols read rows here. The rules:

- A column contains numbers or text. Truth values and pandas' categories are text. A column without
  any value has no kind.
- A gap is NaN, None, NaT, a masked value or an empty text, and among numbers also one of the words
  in `GAP_WORDS`.
- Blanks around a text do not count, accents are composed, truth values are "True" and "False" in
  any case, and the category 1.0 is "1".
- Dates, infinities, integers beyond 2**53 and bytes are refused. The error names the column and the
  row, counted from 1, and the remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedlib.core.array_types import Bools, Bytes, Floats, Ints
from fedlib.core.column_names import as_table, check_axes, feature_names, order
from fedlib.core.targets import (
    DATE,
    check_characters,
    kind_of,
    number_text,
    numbers_in_form,
    plain_number,
)
from fedlib.core.wording import composed

NUMBER, TEXT, EMPTY = range(3)  # the kinds of columns
KIND_NAMES = {NUMBER: "numbers", TEXT: "text", EMPTY: "no values"}
MAX_NUMBER = 1e100  # so that no sum of squares over any number of clients overflows
MAX_EXACT = 2**53  # integers up to here are float64 numbers
MAX_TEXT = 200  # characters of a category
# What programs write for "no value"; in a column of numbers these words are gaps.
GAP_WORDS = {"na", "n/a", "nan", "null", "none", "nil", ".", "-", "--", "?", "#n/a"}
TRUTH = {"true": "True", "false": "False"}
READABLE = {"text", "number", "truth value"}  # kinds of values, see `kind_of`
REPLACE = "replace it by a number or a gap, or leave the row out"
# A text column is one of identifiers if it has more distinct texts, and if this fraction of its
# texts are distinct.
MIN_DISTINCT, DISTINCT_FRACTION = 50, 0.9

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
    identifiers : str
        What makes a column look like one of identifiers, for an error; empty if none does.
    """

    features: tuple[str, ...]
    columns: tuple[Column, ...]
    identifiers: str = ""

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def shape(self) -> tuple[int, int]:
        """The count of rows and the count of columns."""
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
        """The count of values in each column."""
        return np.array([present(column).sum() for column in self.columns], np.int64)

    @property
    def complete(self) -> Bools:
        """Whether each row has no gap (n_rows,)."""
        return np.logical_and.reduce([present(column) for column in self.columns])

    def rows(self, kept: Bools) -> RawTable:
        """Return the rows where ``kept`` (n_rows,) is true."""
        return replace(self, columns=tuple(column[kept] for column in self.columns))

    def in_order(self, names: Sequence[str]) -> RawTable:
        """Return the table with its columns in the order of ``names``; see `names.in_order`.

        Raises
        ------
        ValueError
            When a column is missing or not among ``names``.
        """
        if not self.features or not names or self.features == tuple(names):
            return self
        places = order(names, self.features)
        return replace(self, features=tuple(names), columns=tuple(self.columns[j] for j in places))

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


def only_texts(cells: Any) -> bool:
    """Return whether all values of a column that are no gaps are texts; no value is copied.

    Examples
    --------
    >>> only_texts(pd.Series(["a", None])), only_texts(pd.Series(["a", 1]))
    (True, False)
    """
    return bool(pd.api.types.infer_dtype(cells, skipna=True) == "string")


def present(column: Column) -> Bools:
    """Return whether each entry of a column is a value and not a gap."""
    if column.dtype == object:
        return np.array([value is not None for value in column], bool)
    return ~np.isnan(column)


def parse_booleans(text: str | None) -> str | None:
    """Return a truth value in its usual spelling, another text with composed accents, or a gap.

    The other texts of a column decide how its truth values are spelled. Compare texts with
    known categories by this function.

    Examples
    --------
    >>> parse_booleans("TRUE"), parse_booleans("yes"), parse_booleans(None)
    ('True', 'yes', None)
    """
    return text and TRUTH.get(text.lower(), composed(text))


def category_groups(texts: Column, least: int) -> Ints:
    """Return the group of each row (n_rows,): that of its category, -1 for a gap.

    The rows of all categories with fewer than ``least`` rows are one group.

    Examples
    --------
    >>> category_groups(np.array(["f", "x", None, "f", "y"], object), least=2)
    array([ 0,  3, -1,  0,  3])
    """
    groups, known = np.full(len(texts), -1, np.int64), present(texts)
    values = texts[known].astype(str)
    codes, counts = np.unique(values, return_inverse=True, return_counts=True)[1:]
    groups[known] = np.where(counts[codes] >= least, codes, len(counts))
    return groups


def as_categories(label: object) -> str:
    """Return how a person declares that a column contains categories, for an error.

    Examples
    --------
    >>> as_categories("code")
    "X['code'].astype('category'), for a file --text code, or a schema with the type string"
    """
    return (
        f"X[{label!r}].astype('category'), for a file --text {label}, or a schema with the type"
        " string"
    )


def read_columns(X: Any, texts: Collection[int] = ()) -> RawTable:
    """Return a table's columns as numbers or text.

    Parameters
    ----------
    X : DataFrame or array-like (n_rows, n_columns)
        There may be no rows, but there must be columns.
    texts : collection of int, default=()
        The positions of columns that contain text for a model, or in other rows of the client.
        Texts there stay text if they are all numbers, such as "01".

    Returns
    -------
    RawTable
        Its ``identifiers`` name a column of texts that look like identifiers: more than 50 distinct
        ones, and at least nine tenths of its texts distinct. A column of pandas' categories is
        declared and never looks like it.

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
    X = as_table(X)
    features = feature_names(X)
    frame = X if isinstance(X, pd.DataFrame) else _frame(X)
    if frame.shape[1] == 0:
        raise ValueError("the table has no columns")
    labels = features or tuple(map(str, range(frame.shape[1])))
    columns = tuple(
        read_column(frame.iloc[:, j], label, as_text=j in texts) for j, label in enumerate(labels)
    )
    problems = (
        _identifiers(column, label)
        for label, column, dtype in zip(labels, columns, frame.dtypes, strict=True)
        if column.dtype == object and not isinstance(dtype, pd.CategoricalDtype)
    )
    return RawTable(features, columns, next(filter(None, problems), ""))


def _identifiers(column: Column, label: str) -> str:
    """Return what is wrong if nearly all texts of a column are distinct, or else an empty text."""
    values = column[present(column)]
    distinct = len(set(values))
    if not are_identifiers(distinct, len(values)):
        return ""
    return (
        f"column {label!r} looks like identifiers: {distinct} of {len(values)} texts are distinct,"
        " and each would be sent as a category; leave the column out, or if they are categories,"
        f" say so: {as_categories(label)}"
    )


def are_identifiers(n_distinct: int, n_texts: int) -> bool:
    """Return whether so many different texts among so many texts look like identifiers."""
    return n_distinct > MIN_DISTINCT and n_distinct >= DISTINCT_FRACTION * n_texts


def check_no_identifiers(client: Any) -> None:
    """Raise ValueError when a column of a client's raw table looks like one of identifiers.

    It is called for a new client, before the run: afterwards an error would tell the server.
    """
    for table in (getattr(client, "X", None), getattr(client, "table", None)):
        if problem := getattr(table, "identifiers", ""):
            raise ValueError(problem)


def _frame(X: ArrayLike) -> pd.DataFrame:
    """Return an array-like as a DataFrame with one dtype per column."""
    array = X if isinstance(X, np.ndarray) else np.asarray(X, dtype=object)
    check_axes(array)
    return pd.DataFrame(array).infer_objects()


def read_column(
    column: pd.Series, label: str, limit: float = MAX_NUMBER, *, as_text: bool = False
) -> Column:
    """Return the numbers or texts in a column; a number must lie within ±``limit``.

    With ``as_text``, texts are no numbers, whatever they look like.
    """
    dtype, types = column.dtype, pd.api.types
    if isinstance(dtype, pd.CategoricalDtype) or types.is_bool_dtype(dtype):
        return _texts(column.astype(object), label)
    if types.is_complex_dtype(dtype):
        raise ValueError(
            f"column {label!r} must contain numbers or text, got complex numbers; write the real"
            " and the imaginary part as two columns"
        )
    if types.is_numeric_dtype(dtype):
        return _numbers(column, label, limit)
    if not (types.is_object_dtype(dtype) or types.is_string_dtype(dtype)):
        raise (
            _unknown(label, dtype)
            if isinstance(dtype, pd.IntervalDtype)
            else dates_refused(label, dtype)
        )
    values = column[column.notna().to_numpy()].to_numpy(object)
    values = values[values != ""]
    kinds = {"text"} if only_texts(values) else {kind_of(value) for value in values}
    if as_text and "text" in kinds and kinds <= READABLE:
        return _texts(column, label)
    if kinds <= {"text"}:
        numbers = _numbers_with_words(column, values, label)
        return _texts(column, label) if numbers is None else _numbers(numbers, label, limit)
    if kinds == {"truth value"}:
        return _texts(column, label)
    if kinds == {"number"}:
        return _numbers(_as_numbers(column, label), label, limit)
    if kinds & {"date", "duration"}:
        raise dates_refused(label, " and ".join(sorted(f"{kind}s" for kind in kinds)))
    if "bytes" in kinds:
        raise ValueError(
            f"column {label!r} must contain numbers or text, got bytes; decode them with"
            f" X[{label!r}].str.decode('utf-8')"
        )
    if not kinds <= READABLE:
        raise _unknown(label, next(kind for kind in map(kind_of, values) if kind not in READABLE))
    other = "truth value" if "truth value" in kinds else "text"
    odd = next(value for value in values if kind_of(value) == other)
    raise ValueError(
        f"column {label!r} must contain either numbers or text, got both, such as"
        f" {str(odd)[:40]!r}; leave cells without a value empty"
    )


def _as_numbers(column: pd.Series, label: str) -> pd.Series:
    """Return a column of numbers of Python's types, among them decimal ones, as numbers."""
    gaps = column.isna().to_numpy() | (column == "").to_numpy(bool, na_value=False)
    numbers = [np.nan if gap else plain_number(v) for v, gap in zip(column, gaps, strict=True)]
    for row, number in enumerate(numbers):
        if isinstance(number, int) and abs(number) > MAX_EXACT:
            raise inexact(label, column.iloc[row], row + 1)
    return pd.Series(numbers, dtype=np.float64)


def _numbers_with_words(column: pd.Series, values: NDArray[Any], label: str) -> pd.Series | None:
    """Return texts as numbers if all are numbers but some words for gaps; None for other texts.

    Raises
    ------
    ValueError
        For dates, for texts of which most but not all are numbers, and for long texts.
    """
    codes, unique = pd.factorize(values)
    if not len(unique):
        return None
    counts, cells = np.bincount(codes), pd.Series(unique, dtype=object).str.strip()
    if counts[cells.str.fullmatch(DATE).to_numpy(bool)].sum() > 0.5 * len(values):
        raise dates_refused(label, repr(cells.iloc[0][:40]))
    words = cells.str.lower().isin(GAP_WORDS)
    numeric = pd.to_numeric(cells, errors="coerce").notna()
    if words.any() and not words.all() and numeric[~words].all():
        cells = column.astype(object).where(column.notna(), "")
        cells = cells.astype(str).str.strip()
        return pd.to_numeric(cells.mask(cells.str.lower().isin({*GAP_WORDS, ""})))
    if 0.5 * len(values) < counts[numeric.to_numpy()].sum() < len(values):
        word = cells[~numeric & ~words].iloc[0]
        raise ValueError(
            f"column {label!r} must contain either numbers or text, got numbers and {word[:40]!r}"
            f" in row {_row_of(word, column)}; leave cells without a value empty, or declare codes"
            f" as text, with {as_categories(label)}"
        )
    form, odd = numbers_in_form(cells.take(codes))
    others = cells[~numeric & cells.isin(odd)]
    if len(others):
        found = others.iloc[0]
        shown = "in one form" if form == "marks" else "without units and signs"
        raise ValueError(
            f"column {label!r} must contain numbers {shown}, got {found[:40]!r} in row"
            f" {_row_of(found, column)}; convert them to numbers, such as with"
            " pandas.read_csv(decimal=',', thousands='.'), or"
            f" declare codes as text, with {as_categories(label)}"
        )
    if (longest := int(cells.str.len().max())) > MAX_TEXT:
        raise ValueError(
            f"column {label!r} must contain texts of at most {MAX_TEXT} characters, got {longest};"
            " leave columns with free text out"
        )
    return None


def _row_of(text: str, column: pd.Series) -> int:
    """Return the first row, from 1, with a text."""
    return 1 + int(np.argmax((column.astype(object).astype(str).str.strip() == text).to_numpy()))


def dates_refused(label: str, found: object) -> ValueError:
    """Return the error for dates and durations in a column."""
    return ValueError(
        f"column {label!r} must contain numbers or text, got {found}; replace dates by numbers,"
        " such as the days since a fixed date, or leave the column out"
    )


def _unknown(label: str, found: object) -> ValueError:
    return ValueError(
        f"column {label!r} must contain numbers or text, got values of the type {found}; convert"
        " them to numbers or text, or leave the column out"
    )


def inexact(label: str, value: Any, row: int) -> ValueError:
    return ValueError(
        f"column {label!r} must contain integers within ±2**53, which are exact as 64-bit floats,"
        f" got {value} in row {row}; identifiers are no features"
    )


def _numbers(column: pd.Series, label: str, limit: float) -> Floats:
    numbers = column.to_numpy(np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        large = np.abs(numbers) > limit
    if large.any():
        row = int(np.argmax(large))
        within = f" within ±{limit:g}" if limit == MAX_NUMBER else ""
        raise ValueError(
            f"column {label!r} must contain finite numbers{within}, got {numbers[row]:g} in row"
            f" {row + 1}; {REPLACE}"
        )
    if pd.api.types.is_integer_dtype(column):  # compared as integers: floats are rounded
        rounded = (column > MAX_EXACT) | (column < -MAX_EXACT)
        if rounded.any():
            row = int(np.argmax(rounded.to_numpy(bool, na_value=False)))
            raise inexact(label, column.iloc[row], row + 1)
    return numbers + 0.0  # a copy without negative zeros


def _texts(column: pd.Series, label: str) -> Column:
    """Return the texts of a column without blanks around them, None for gaps."""
    cells, gaps = column.to_numpy(object), column.isna().to_numpy()
    if only_texts(cells):  # each text is read once
        codes, cells = pd.factorize(cells)
        gaps = np.zeros(len(cells), bool)
    else:
        codes = np.arange(len(cells))
    words = [None if gap else _text(v) or None for v, gap in zip(cells, gaps, strict=True)]
    values = [text for text in words if text is not None]
    if all(text.lower() in TRUTH for text in values):
        words = [text and TRUTH[text.lower()] for text in words]
    if any(len(text) > MAX_TEXT for text in values):
        raise ValueError(f"column {label!r} must contain texts of at most {MAX_TEXT} characters")
    try:
        check_characters(words, "")
    except ValueError:  # the error names the row
        check_characters([words[code] for code in codes], f"column {label!r}")
    return np.array([*words, None], object)[codes]


def _text(value: object) -> str:
    """Return a category as text; the number 1.0 is the category "1"."""
    return number_text(value) if kind_of(value) == "number" else composed(str(value).strip())


def _numbers_as_text(column: Floats) -> Column:
    return np.array([None if np.isnan(v) else number_text(v) for v in column], object)
