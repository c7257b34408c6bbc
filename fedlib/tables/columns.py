"""What a run may take from the columns of a file, and what each column contains.

The features of a run that does not preprocess are finite numbers. Otherwise they are numbers or
text with gaps, but no codes that look like numbers in part, and no identifiers. Every error names
the column, the row and the remedy.

CSV files that a spreadsheet may open: no cell is a formula.

Classes, categories, names of columns and names of clients come from other sites. A spreadsheet runs
a cell such as ``=HYPERLINK(...)`` when it opens the file. `csv_bytes` writes an apostrophe before
such a text, which spreadsheets take for the mark of a text. The readers of files remove it again,
so that fedlib reads what it has written.

From the texts in the cells of a column to its values: numbers, text and gaps.

The rules, which do not depend on how many cells of a kind there are:

- Spaces around a text do not count, and accents are composed. An empty text and the words of
  ``na_values`` are gaps.
- A column whose other cells are numbers, or one of the words in `GAP_WORDS`, contains numbers; the
  words are gaps. A column with such words only has no values.
- Any other column contains text, in which NA is a word: it can be a category, such as Namibia.
- The truth values true, True and TRUE have one spelling in text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedlib.core.columns import (
    GAP_WORDS,
    MAX_EXACT,
    TRUTH,
    are_identifiers,
    inexact,
    only_texts,
    read_columns,
)
from fedlib.core.targets import kind_of, number_text, numbers_in_form
from fedlib.core.wording import composed

# Spreadsheets skip blanks and quotation marks at the beginning, and some read the wide signs of
# Chinese and Japanese keyboards as the plain ones. A negative number is no formula.
FORMULA = re.compile(
    r"""[\s'"]*(?:[\t\r=+@＝＋＠－]|-(?!(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)?\Z))"""
)


def guarded(value: Any) -> Any:
    """Return a value of a cell, with an apostrophe before a text that could be a formula.

    Parameters
    ----------
    value : object
        Only texts are changed.

    Examples
    --------
    >>> [guarded(value) for value in ("=A1", "-1.5", "-A1", " @SUM(A1)", "well", -1)]
    ["'=A1", '-1.5', "'-A1", "' @SUM(A1)", 'well', -1]
    """
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def without_formula_guard(text: str) -> str:
    r"""Return the text of a cell without the apostrophe that `guarded` has written.

    Examples
    --------
    >>> [without_formula_guard(text) for text in ("'=A1", "'tis", "=A1")]
    ['=A1', "'tis", '=A1']
    >>> without_formula_guard(guarded("'\t")) == "'\t"
    True
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def csv_bytes(frame: pd.DataFrame) -> bytes:
    r"""Return a table as the bytes of a CSV file (UTF-8) without formulas.

    All CSV files that fedlib writes are made here.

    Parameters
    ----------
    frame : DataFrame
        The names of its columns are the first row; its index is not written.

    Examples
    --------
    >>> csv_bytes(pd.DataFrame({"row": [1, 2], "class": ["well", "=A1"]}))
    b"row,class\n1,well\n2,'=A1\n"
    """
    safe = frame.copy(deep=False)
    safe.columns = pd.Index([guarded(name) for name in frame.columns], dtype=object)
    for j, dtype in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):
            safe.isetitem(j, frame.iloc[:, j].astype(object).map(guarded).to_numpy(object))
    text: str = safe.to_csv(index=False, lineterminator="\n")
    if "\r" in text:  # Python's writer does not quote it, and readers take it for the end of a row
        text = safe.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_ALL)
    return text.encode()


# 007 is no number, and 1E50 is more often a code, such as one of ICD-11.
CODE = re.compile(r"0\d+|\d+[eE]\d+")
POINT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
COMMA = re.compile(r"[-+]?(\d+(,\d*)?|,\d+)([eE][-+]?\d+)?")
INTEGER = re.compile(r"[-+]?\d+")
# 1,234 is either 1.234 or 1234.
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
# Quotation marks that no program reads as such.
QUOTED = re.compile(r"'.*'|[\u2018\u201a].*[\u2018\u2019]|[\u201c\u201e].*[\u201c\u201d]", re.S)


def read_cells(
    column: pd.Series, words: Collection[str] = (), decimals: str = "."
) -> tuple[pd.Series, str]:
    """Return a column of texts as numbers if it contains numbers, or else as text.

    Parameters
    ----------
    column : Series
        Texts, and NaN for gaps.
    words : collection of str
        Further words that are gaps.
    decimals : str, default="."
        The decimal marks that numbers may have: ".", "," or both, of which a column has one.

    Returns
    -------
    (Series, str)
        The column, and the decimal mark in it; the mark is empty if there is none.

    Examples
    --------
    >>> column, mark = read_cells(pd.Series(["1,5", "NA ", " 2"]), decimals=".,")
    >>> column.tolist(), mark
    ([1.5, nan, 2.0], ',')
    """
    codes, unique = pd.factorize(column)
    texts = [_plain(text) for text in unique]
    values = [None if text == "" or text in words else text for text in texts]
    others = [text for text in values if text and text.lower() not in GAP_WORDS]
    for mark, number in ((".", POINT), (",", COMMA)):
        if mark in decimals and all(number.fullmatch(text) for text in others):
            numbers = _numbers(texts, number, mark, bool((codes < 0).any()))
            used = any(mark in text for text in others)
            return without_numbers(_placed(numbers, codes, column), words), mark if used else ""
    if values == [str(text) for text in unique] and not any(one.lower() in TRUTH for one in others):
        return column, ""
    return _placed([one and TRUTH.get(one.lower(), one) for one in values], codes, column), ""


def _plain(text: object) -> str:
    """Return a text without spaces around it and with composed accents."""
    return composed(without_formula_guard(str(text)).strip())


def _numbers(texts: list[str], number: re.Pattern[str], mark: str, with_gaps: bool) -> np.ndarray:
    """Return the numbers in texts and NaN for the others; integers if there are no gaps."""
    matches = [text if number.fullmatch(text) else None for text in texts]
    if texts and not with_gaps and all(text and INTEGER.fullmatch(text) for text in matches):
        integers = [int(text) for text in texts]
        if max(map(abs, integers)) < 2**63:
            return np.array(integers, np.int64)
    # Of integers that no float64 equals, every digit is kept for the message.
    values = [np.nan if text is None else _number(text.replace(mark, ".")) for text in matches]
    kept = any(isinstance(value, int) for value in values)
    result = np.empty(len(values), object if kept else np.float64)
    result[:] = values
    return result


def _number(text: str) -> float | int:
    """Return a number; an integer that is no 64-bit float stays an integer."""
    number = float(text)
    if abs(number) >= MAX_EXACT and INTEGER.fullmatch(text) and int(text) != number:
        return int(text)
    return number


def _placed(
    values: np.ndarray | list[str | None], codes: np.ndarray, column: pd.Series
) -> pd.Series:
    """Return one value per cell, by the index of its text; -1 is a gap."""
    if isinstance(values, list):
        values = np.array([*values, None], object)[:-1]  # an array of objects, even if empty
    if not len(values):
        return pd.Series(np.full(len(column), np.nan), column.index, name=column.name)
    if values.dtype == object:
        taken = np.array([*values, None], object)[codes]
        return pd.Series(taken, column.index, object, name=column.name)
    taken = values[codes]
    if (codes < 0).any():
        taken = taken.astype(np.float64)
        taken[codes < 0] = np.nan
    return pd.Series(taken, column.index, name=column.name)


def clean_text(column: pd.Series, words: Collection[str] = ()) -> pd.Series:
    """Return a column of text without spaces around it and with composed accents.

    Examples
    --------
    >>> clean_text(pd.Series([" 007", "NA", "", "?"]), ["?"]).fillna("a gap").tolist()
    ['007', 'NA', 'a gap', 'a gap']
    """
    codes, unique = pd.factorize(column)
    texts = [_plain(text) for text in unique]
    values = [None if text == "" or text in words else text for text in texts]
    return _placed(values, codes, column)


def without_numbers(column: pd.Series, words: Collection[str]) -> pd.Series:
    """Return a column of numbers with gaps in place of those among some words, however written.

    Examples
    --------
    >>> without_numbers(pd.Series([41, -999, -0.5]), ["unknown", "-999.0", "-0,5"]).tolist()
    [41.0, nan, nan]
    """
    gaps = column.isin(numbers_among(words)) if words else None
    return column if gaps is None or not gaps.any() else column.mask(gaps)


def numbers_among(words: Collection[str]) -> list[float]:
    """Return the numbers among words, whose decimal mark is a point or a comma."""
    return [
        float(word.replace(",", "."))
        for word in words
        if POINT.fullmatch(word) or COMMA.fullmatch(word)
    ]


def as_text(column: pd.Series) -> pd.Series:
    """Return a column with its numbers as text: 1.0 becomes "1"; gaps remain.

    Examples
    --------
    >>> as_text(pd.Series([1.0, None, 2.5])).fillna("a gap").tolist()
    ['1', 'a gap', '2.5']
    """
    if only_texts(column):
        return column
    if column.dtype.kind == "M" and column.dt.tz is None:
        return iso_texts(column)
    texts = np.empty(len(column), object)
    texts[:] = [
        None if gap else _spelled(value)
        for value, gap in zip(column.to_numpy(object), column.isna(), strict=True)
    ]
    return pd.Series(texts, column.index, name=column.name)


def _spelled(value: Any) -> str:
    """Return a value as text."""
    kind = kind_of(value)
    if kind == "bytes":
        raise ValueError("a column contains bytes; save texts instead, such as with astype(str)")
    return number_text(value) if kind == "number" else str(value)


def iso_texts(column: pd.Series) -> pd.Series:
    """Return dates without a zone as texts of ISO 8601, with the time of day if one has it.

    Examples
    --------
    >>> iso_texts(pd.Series(pd.to_datetime(["2020-03-01", None]))).tolist()
    ['2020-03-01', None]
    """
    times = column.to_numpy("datetime64[us]")
    days = times.astype("datetime64[D]")
    whole = bool((np.isnat(days) | (days == times)).all())
    texts = np.datetime_as_string(days if whole else times).astype(object)
    texts[np.isnat(days)] = None
    return pd.Series(texts, column.index, object, name=column.name)


PREPROCESS = (
    "text and gaps need a run that preprocesses: fedlib serve with --encode and --impute, fedlib"
    " join with --protocol pipeline/NAME"
)


@dataclass(frozen=True)
class ColumnProfile:
    """What a column of a site's file contains; it stays at the site.

    Attributes
    ----------
    name : str
    kind : str
        "numbers", "text", "identifier", "no values" or "unreadable".
    n_gaps : int
    n_categories : int
        How many different texts there are; 0 for numbers.
    smallest, largest : float
        NaN if there are no numbers.
    """

    name: str
    kind: Literal["numbers", "text", "identifier", "no values", "unreadable"]
    n_gaps: int
    n_categories: int = 0
    smallest: float = np.nan
    largest: float = np.nan

    def __str__(self) -> str:
        gaps = f"{self.n_gaps} gap" + "s" * (self.n_gaps != 1)
        if self.kind == "numbers":
            return f"numbers from {self.smallest:g} to {self.largest:g}, {gaps}"
        if self.kind == "unreadable":
            return "cannot be used"
        if self.kind == "no values":
            return f"no values, {gaps}"
        different = "different texts" if self.kind == "identifier" else "categories"
        return f"{self.kind}, {self.n_categories} {different}, {gaps}"


def describe_columns(
    frame: pd.DataFrame, ids: str | None = None, text: Collection[str] = ()
) -> list[ColumnProfile]:
    """Return what each column of a table contains.

    Parameters
    ----------
    frame : DataFrame
    ids : str, optional
        The column with the identifiers of the rows.
    text : collection of str
        The columns that are text whatever they look like.

    Examples
    --------
    >>> for column in describe_columns(pd.DataFrame({"age": [41, None], "sex": ["m", "f"]})):
    ...     print(f"{column.name}: {column}")
    age: numbers from 41 to 41, 1 gap
    sex: text, 2 categories, 0 gaps
    """
    return [_content(frame[name], name == ids, name in text) for name in frame.columns]


def _content(column: pd.Series, is_ids: bool, is_text: bool) -> ColumnProfile:
    """Return what a column contains."""
    name, n_gaps = str(column.name), int(column.isna().sum())
    if n_gaps == len(column):
        return ColumnProfile(name, "no values", n_gaps)
    values = column.dropna()
    types = pd.api.types
    if types.is_numeric_dtype(column) and not types.is_bool_dtype(column) and not is_ids:
        return ColumnProfile(name, "numbers", n_gaps, 0, float(values.min()), float(values.max()))
    n_distinct = int(values.astype(str).nunique())
    unique = not is_text and are_identifiers(n_distinct, len(values))
    kind: Literal["text", "identifier"] = "identifier" if is_ids or unique else "text"
    return ColumnProfile(name, kind, n_gaps, n_distinct)


# The features.


def raw_features(frame: pd.DataFrame, text: Collection[str], separator: str = "") -> pd.DataFrame:
    """Return features that may be text and have gaps; those of ``text`` have the type category.

    Parameters
    ----------
    frame : DataFrame
        The features.
    text : collection of str
        Those that are text whatever they look like.
    separator : str
        In words, what separates the fields of the file.

    Raises
    ------
    ValueError
        When a feature is anything but numbers or text with gaps.
    """
    kept = [name for name in frame.columns if name in text]
    if kept:
        frame = frame.astype(dict.fromkeys(kept, "category"))
    for name in frame.columns.difference(kept, sort=False):
        column = frame[name]
        if not pd.api.types.is_numeric_dtype(column) and not _is_declared(column):
            check_exact(column)
            check_codes(column)
    read_columns(frame)
    for name in frame.columns:
        _check_identifiers(frame[name], separator)
    return frame


def _is_declared(column: pd.Series) -> bool:
    """Return whether the file declares a column as categories, as ARFF and Parquet can."""
    return isinstance(column.dtype, pd.CategoricalDtype)


def check_codes(column: pd.Series) -> None:
    """Raise ValueError if texts of a column look like numbers or are in quotation marks.

    Numbers may have units, and most texts must look like them. All must be in quotation marks.
    """
    cells = column.to_numpy(object)
    if only_texts(column):
        places = np.flatnonzero(column.notna().to_numpy())
    else:
        places = np.flatnonzero([isinstance(value, str) for value in cells])
    if not len(places):
        return
    texts = pd.Series(cells[places], dtype=object)
    if all(map(QUOTED.fullmatch, texts.unique())):
        raise ValueError(
            f"column {column.name!r} contains {texts.iloc[0][:40]!r}, in quotation marks of another"
            f' kind than "; replace them, or keep them with {_option("--text", column.name)}'
        )
    form, like = numbers_in_form(texts)
    if not form:
        return
    name, keep = column.name, f"keep the column as text with {_as_text_option(column.name)}"
    alike = texts.isin(like).to_numpy()
    mixed = form == "marks" and not alike.all()
    written = ~texts.isin([text for text in like if INTEGER.fullmatch(text)])  # with a mark
    first = int(np.argmax(alike if form == "units" else ~alike if mixed else written))
    found, row = texts.iloc[first], places[first] + 1
    if form == "units":
        raise ValueError(
            f"column {name!r} must contain numbers without units and signs, got {found[:40]!r} in"
            f" row {row}; remove them, or {keep}"
        )
    if mixed:
        raise ValueError(
            f"column {name!r} must contain either numbers or text, got numbers and {found[:40]!r}"
            f" in row {row}; if they are codes, {keep}; if the word is a gap, name it with"
            f" {_option('--na-values', found[:40])}"
        )
    raise ValueError(
        f"column {name!r} must contain numbers in one form, got {found!r} in row {row}; name the"
        " decimal mark of the file with --decimal, write numbers without marks between thousands,"
        f" or {keep}"
    )


def _as_text_option(name: object) -> str:
    """Return how a column is kept as text, on the command line and in Python."""
    return f"{_option('--text', name)} (in Python text=[{name!r}])"


def _option(option: str, value: object) -> str:
    """Return an option with its value, as it is typed."""
    text = str(value)
    return f"{option} {text}" if re.fullmatch(r"[\w.-]+", text) else f"{option} '{text}'"


def _check_identifiers(column: pd.Series, separator: str) -> None:
    """Raise ValueError if the texts of a feature are almost all different."""
    content = _content(column, is_ids=False, is_text=_is_declared(column))
    if content.kind == "identifier":
        # With a wrong separator, a column contains whole rows, which are different too.
        other = f"; if the fields are not separated by {separator}, use --separator"
        raise ValueError(
            f"column {column.name!r} looks like identifiers: {content.n_categories} different"
            f" texts in {len(column) - content.n_gaps} rows; name it with"
            f" {_option('--ids', column.name)}, leave it out with --columns, or keep it as a"
            f" category with {_as_text_option(column.name)}{other if separator else ''}"
        )


def check_no_codes(name: str, text: str, declared: bool) -> None:
    """Raise ValueError for a column of numbers with a text such as 007, which can be a code.

    Parameters
    ----------
    name, text : str
    declared : bool
        Whether the file declares that the column contains text.
    """
    problem, remedy = f"{text!r}, which can be a code", "write numbers without exponents"
    if declared:
        problem = f"text that looks like numbers, such as {text!r}"
        remedy = "name the decimal mark of the numbers with --decimal"
    elif text.startswith("0"):
        problem = f"{text!r}, whose first zero a number does not have"
        remedy = "write numbers without the zero"
    raise ValueError(
        f"column {name!r} contains {problem}; keep codes as text with {_as_text_option(name)}, or"
        f" {remedy}"
    )


def check_faults(faults: Mapping[str, Mapping[str, str]], name: str, gaps: Collection[str]) -> None:
    """Raise ValueError for a cell of a sheet with an error that is not among ``gaps``.

    So is a formula without a stored value, which is no gap whatever the words for gaps are.
    """
    for error, place in faults.get(name, {}).items():
        if not error:
            raise ValueError(
                f"column {name!r} contains a formula without a stored value in {place}; open the"
                " file in a spreadsheet program, which computes it, and save it"
            )
        if error not in gaps:
            raise ValueError(
                f"column {name!r} contains the error {error} in {place}; correct the cell, or if"
                f" it is a gap, name it with {_option('--na-values', error)}, in a schema among"
                " the missingValues"
            )


def features(frame: pd.DataFrame, text: Collection[str]) -> pd.DataFrame:
    """Return the features as floats; raise ValueError for anything except finite numbers."""
    for name in frame.columns:
        if name in text:
            raise ValueError(f"column {name!r} is kept as text; {PREPROCESS}")
    columns = {name: _feature(frame[name]) for name in frame}
    return pd.DataFrame(columns, columns=frame.columns, copy=False)


def _feature(column: pd.Series) -> np.ndarray:
    """Return the numbers in a feature's column; an error names the remedy."""
    if column.dtype.kind in "iuf":
        plain = isinstance(column.dtype, np.dtype)  # na_value would make a copy
        values = (
            column.to_numpy(np.float64) if plain else column.to_numpy(np.float64, na_value=np.nan)
        )
        # NaN if there is a gap
        if max(values.max(initial=0), -values.min(initial=0)) <= MAX_EXACT:
            return values
    try:
        return numbers(column)
    except ValueError as error:
        if not pd.api.types.is_numeric_dtype(column) and not _is_declared(column):
            check_codes(column)  # whose error has a remedy for numbers in another form
        raise ValueError(f"{error}; {PREPROCESS}") from error


# The other columns.


def numbers(column: pd.Series) -> np.ndarray:
    """Return the numbers in a column; raise ValueError if one is missing or not finite."""
    column = complete(column, "value")
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    valid = np.isfinite(values)
    if column.dtype.kind in "bmM":  # to_numeric would convert truth values and dates
        valid[:] = False
    elif column.dtype.kind == "O":
        valid &= [not isinstance(value, bool | np.bool_) for value in column]
    if not valid.all():
        first = int(np.argmin(valid))
        value = str(column.iloc[first])[:40]
        raise ValueError(
            f"column {column.name!r} must contain finite numbers, got {value!r} in row {first + 1}"
        )
    if not pd.api.types.is_float_dtype(column) and (large := np.abs(values) > MAX_EXACT).any():
        raise _inexact(column, large)
    return values


def latest_times(column: pd.Series) -> np.ndarray:
    """Return the numbers in a column that are finite, or inf for a time without an end."""
    given = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    try:
        finite = numbers(column.where(given != np.inf, 0))
    except ValueError as error:
        raise ValueError(
            f"{error}; a time that is only known to be later than the earliest one is inf"
        ) from error
    return np.where(given == np.inf, np.inf, finite)


def check_exact(column: pd.Series) -> None:
    """Raise ValueError for an integer that no 64-bit float equals, in a column with gaps."""
    if only_texts(column):
        return
    large = np.array([isinstance(v, int) and abs(v) > MAX_EXACT for v in column], bool)
    if large.any():
        raise _inexact(column, large)


def _inexact(column: pd.Series, large: np.ndarray) -> ValueError:
    """Return an error for the first of the large integers in a column."""
    first = int(np.argmax(large))
    return inexact(str(column.name), str(column.iloc[first])[:40], first + 1)


def classes(column: pd.Series, is_text: bool) -> np.ndarray:
    """Return the classes in a column: numbers if all of them are numbers, or else text."""
    column = complete(column, "class")
    if not is_text and not _is_declared(column):
        check_codes(column)
        values = pd.to_numeric(column, errors="coerce")
        if not values.isna().any():
            return values.to_numpy()
    return column.astype(str).to_numpy(np.str_)


def identifiers(column: pd.Series) -> pd.Series:
    """Return the identifiers in a column; raise ValueError if one is missing or repeated."""
    column = complete(column, "identifier")
    repeated = column.duplicated(keep=False)
    if repeated.any():
        n = column[repeated].nunique()
        occurring = "1 identifier occurs" if n == 1 else f"{n} identifiers occur"
        raise ValueError(
            f"column {column.name!r} must identify the rows, but {occurring} more than once, in"
            f" {int(repeated.sum())} rows; remove or join these rows, or leave --ids out"
        )
    return column


def complete(column: pd.Series, content: str) -> pd.Series:
    """Return a column; raise ValueError if a value is missing."""
    gaps = np.flatnonzero(column.isna())
    if len(gaps):
        remedy = "" if content == "value" else "; leave such rows out, or correct them"
        raise ValueError(f"column {column.name!r} has no {content} in row {gaps[0] + 1}{remedy}")
    return column
