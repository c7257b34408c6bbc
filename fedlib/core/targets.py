"""The labels and the identifiers of rows: one value per row, read here by all protocols.

The rules:

- One value per row: a list, an array, a Series, or a table with one column.
- A missing value is refused, with the count of such rows and the first of them: None, NaN, NaT,
  NA, a masked entry, and text without a character other than blanks.
- The value counts and not its type: 1 is the same as ``np.int8``, as ``Decimal``, in a nullable or
  categorical column, or as an object in an array.
- Blanks around a text do not count, and accents are composed (`fedlib.core.wording.composed`).
- Bytes, dates, durations and other objects are refused; the error names the remedy.

Rows are counted from 1. The errors about identifiers never contain one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.column_names import is_sparse
from fedlib.core.wording import composed

# A number in whatever form: with another decimal mark or with marks between thousands.
ANY_NUMBER = r"[-+\u2212]?[.,]?\d[\d.,'\u2019\u00a0\u202f ]*([eE][-+]?\d+)?"


LIKE_NUMBER = re.compile(ANY_NUMBER + r"\s?%?")


# Also with a sign before it or a unit behind it, which is one word.
WITH_UNIT = re.compile(
    rf"(?P<sign>[<>\u2264\u2265~\u00b1$\u20ac\u00a3\u00a5]=?)?\s?{ANY_NUMBER}"
    r"(?P<unit>\s*[^\W\d_]\S*|\s*[%\u2030\u00b0]\S*)?"
)


DATE = r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([T ]\d{1,2}:.*)?\s*"


MIN_NUMBERS = 3  # different ones, in a column of numbers with units


MOST = 0.5  # of the texts in a column of codes look like numbers


Form = Literal["marks", "units", ""]


def like_numbers(texts: pd.Series) -> set[str]:
    """Return the texts that look like numbers in any form, and not like dates.

    Examples
    --------
    >>> sorted(like_numbers(pd.Series(["17,3", "1 234", "5%", "1.2.1950", "a1"])))
    ['1 234', '17,3', '5%']
    """
    return {
        text
        for text in texts.unique()
        if LIKE_NUMBER.fullmatch(text) and not re.fullmatch(DATE, text)
    }


def numbers_in_form(texts: pd.Series) -> tuple[Form, set[str]]:
    """Return in which form most texts are numbers, and the texts that are numbers in it.

    The form is "marks" for numbers that may have other marks, "units" if they have a unit or a
    sign, such as 20 kg and <5, and empty if most texts are no numbers. There is one unit, or it
    stands behind a space and each one has several numbers. So the codes 1A and 1B, and 1st and 2nd,
    have no units.

    Examples
    --------
    >>> numbers_in_form(pd.Series(["17.3 mg", "8 mg", "12 mg", "low"]))[0]
    'units'
    >>> numbers_in_form(pd.Series(["1A", "1B", "2A"]))
    ('', set())
    """
    like, counts = like_numbers(texts), texts.value_counts()
    if counts[counts.index.isin(like)].sum() > MOST * len(texts):
        return "marks", like
    matches = {one: match for one in counts.index if (match := WITH_UNIT.fullmatch(one.strip()))}
    units = {(m["sign"] or "", m["unit"] or "") for m in matches.values()} - {("", "")}
    spaced = all(m["unit"] and m.string[m.start("unit") - 1] == " " for m in matches.values())
    few = len(units) == 1 or (spaced and 2 * len(units) <= len(matches))
    most = counts[counts.index.isin(matches)].sum() > MOST * len(texts)
    if not units or not few or len(matches) < MIN_NUMBERS or not most:
        return "", set()
    return "units", {*matches} - like


MAX_LABEL = 2**53  # integers up to here are float64 numbers
DROP = "drop these rows"
OUT = "leave these rows out"


def read_classes(y: Any, what: str = "y", n_rows: int | None = None) -> NDArray[Any]:
    """Return the classes of rows as an array of text or of finite numbers.

    Numbers stay numbers and text stays text: 1 and "1" are different classes. Blanks around a text
    do not count, so "ill " is the class "ill".

    Parameters
    ----------
    y : array-like (n_rows,) or (n_rows, 1)
    what : str, default="y"
        The name of the argument, for errors.
    n_rows : int, optional
        The count of rows; by default any.

    Returns
    -------
    classes : array (n_rows,)

    Raises
    ------
    ValueError
        When a row has no class, some classes are text and some are numbers, or they are neither.

    Examples
    --------
    >>> read_classes(["ill ", "well"]).tolist(), read_classes(np.array([1, 0], object)).tolist()
    (['ill', 'well'], [1, 0])
    >>> read_classes(["ill", None, "well"])
    Traceback (most recent call last):
    ...
    ValueError: y has no class in 1 row, row 2: drop this row
    """
    values = _complete(y, what, "class", n_rows, DROP)
    if values.dtype.kind in "biuf":
        _check_finite(values, what)
        return values.astype(np.float64) if values.dtype == np.longdouble else values
    if not len(values):
        return values.astype(np.int64)
    kinds = [_kind(value) for value in values]
    _check_kinds(kinds, what, "text or numbers")
    if len(set(kinds) - {"truth value"} | {"number"}) == 1:
        return _as_numbers(values, what)
    if (odd := next((i for i, kind in enumerate(kinds) if kind != "text"), None)) is not None:
        text = kinds.index("text")
        raise ValueError(
            f"{what} must be either text or numbers; got both, such as {values[odd]!r} in row"
            f" {odd + 1} and {str(values[text])[:40]!r} in row {text + 1}: convert all to text"
        )
    texts = [composed(value.strip()) for value in values]
    check_characters(texts, what)
    if "," in (written := truth_spelling(set(texts))):
        raise ValueError(
            f"{what} must have truth values in one spelling; got {written}: convert them to text in"
            " one spelling, or to True and False"
        )
    return np.array(texts, np.str_)


def truth_spelling(classes: Iterable[str]) -> str:
    """Return how the truth values among classes are written; several ways have a comma.

    Examples
    --------
    >>> truth_spelling(["TRUE", "FALSE", "ill"]), truth_spelling(["TRUE", "true"])
    ('TRUE', 'TRUE, true')
    """
    found = [text for text in classes if text.lower() in ("true", "false")]
    ways = {"TRUE" if t.isupper() else "true" if t.islower() else "True" for t in found}
    return ", ".join(sorted(ways))


def read_targets(y: Any, what: str = "y", n_rows: int | None = None) -> Floats:
    """Return the finite numbers that a regression learns.

    Raises
    ------
    ValueError
        When a row has no number, or not a finite one.

    Examples
    --------
    >>> read_targets([Decimal("0.5"), 2])
    array([0.5, 2. ])
    """
    return _numbers(y, what, "number", n_rows)


def read_weights(weights: Any, what: str = "sample_weight", n_rows: int | None = None) -> Floats:
    """Return the weights of rows: finite numbers from 0.

    Raises
    ------
    ValueError
        When a row has no weight, or an invalid one.

    Examples
    --------
    >>> read_weights([1, -1])
    Traceback (most recent call last):
    ...
    ValueError: sample_weight must be finite and at least 0; got -1 in row 2
    """
    numbers = _numbers(weights, what, "weight", n_rows, "finite and at least 0")
    if (numbers < 0).any():
        row = int(np.argmax(numbers < 0))
        raise ValueError(
            f"{what} must be finite and at least 0; got {numbers[row]:g} in row {row + 1}"
        )
    return numbers


def read_labels(labels: Any, what: str = "labels", n_rows: int | None = None) -> Ints:
    """Return the clusters of rows: integers from -1, which is noise, to 2**53.

    Raises
    ------
    ValueError
        When a row has no label, or another one. A masked label is that of a row that took no part
        in the clustering, so it is no noise.

    Examples
    --------
    >>> read_labels(np.array([0, 1.0, -1], object))
    array([ 0,  1, -1])
    """
    values = _complete(
        labels, what, "cluster", n_rows, f"{OUT}, or set their labels to -1 if they are noise"
    )
    if not len(values):
        return np.empty(0, np.int64)
    allowed = "integers from -1 to 2**53"
    if values.dtype.kind == "O":
        kinds = [_kind(value) for value in values]
        _check_kinds(kinds, what, allowed)
        odd = [kind != "number" for kind in kinds]
        if any(odd):
            row = odd.index(True)
            raise ValueError(
                f"{what} must be {allowed}, got the {kinds[row]} {str(values[row])[:40]!r} in row"
                f" {row + 1}: convert them to integers"
            )
        values = np.array([plain_number(value) for value in values], object)
    elif values.dtype.kind == "b":
        raise ValueError(f"{what} must be {allowed}, got truth values: convert them to integers")
    valid = np.array((values >= -1) & (values <= MAX_LABEL), bool)
    valid[valid] = values[valid] == np.floor(values[valid].astype(np.float64))
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(f"{what} must be {allowed}, got {values[row]!s} in row {row + 1}")
    return values.astype(np.int64)


def read_ids(ids: Any, n_rows: int) -> list[str]:
    """Return the identifiers of rows as text; integers are the same text in every type of number.

    Text stays as it is without the blanks around it: "1" and the integer 1 are the same identifier,
    "01" and "1.0" are others.

    Raises
    ------
    ValueError
        When a row has no identifier, or one that is neither text nor an exact integer, or when an
        identifier occurs more than once. The text has rows, but no identifiers.

    Examples
    --------
    >>> read_ids(np.array([1, 2], np.float32), 2), read_ids([Decimal(1), " p 2 "], 2)
    (['1', '2'], ['1', 'p 2'])
    """
    values = _complete(ids, "ids", "identifier", n_rows, OUT)
    texts: list[str] = []
    for row, value in enumerate(values, 1):
        text = _id_text(value)
        if text is None:
            raise ValueError(
                f"ids must be text or integers; got {_described(value)} in row {row}"
                f"{_REMEDIES.get(_kind(value), ': convert it to text')}"
            )
        texts.append(text)
    check_characters(texts, "ids")
    if len(set(texts)) < len(texts):
        counts = Counter(texts)
        repeated = sum(n > 1 for n in counts.values())
        row = next(row for row, text in enumerate(texts, 1) if counts[text] > 1)
        raise ValueError(
            f"ids must identify the rows, but {repeated} of them occur more than once, the first in"
            f" row {row}: keep one row of each, or add what tells the rows apart to the identifiers"
        )
    return texts


def _id_text(value: Any) -> str | None:
    """Return an identifier as text; None for a value that is none."""
    if isinstance(value, str):
        return composed(value.strip())
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, Integral | Decimal):
        return str(number) if isinstance(number := plain_number(value), int) else None
    if isinstance(value, float | np.floating):
        exact = abs(float(value)) < _first_inexact(value)
        return str(int(value)) if exact and value == int(value) else None
    return None


def _first_inexact(value: Any) -> int:
    """Return the first integer from which on some integers are none of this type of number."""
    digits = np.finfo(value.dtype).nmant if isinstance(value, np.floating) else 52
    return int(2 ** (digits + 1))


def _described(value: Any) -> str:
    """Return what kind of value an identifier is, without the value."""
    kind = _kind(value)
    if kind != "number":
        return f"a {kind}" if kind in ("date", "truth value") else kind
    if isinstance(value, float | np.floating) and np.inf > abs(float(value)) >= _first_inexact(
        value
    ):
        name = type(value).__name__
        return (
            f"{name} beyond the integers that are all exact in it (read the column as integers or"
            " text)"
        )
    return "a number that is no integer"


# One value per row -----------------------------------------------------------------------------

_REMEDIES = {
    "bytes": ": decode them to text, such as with value.decode()",
    "date": ": convert dates and durations to text or numbers",
}


def _complete(given: Any, what: str, content: str, n_rows: int | None, remedy: str) -> NDArray[Any]:
    """Return one value per row as an array of numbers or objects; refuse missing values."""
    values, missing = _entries(given, what, content, n_rows)
    if n_missing := int(missing.sum()):
        has, first = "have" if what.endswith("s") else "has", int(np.argmax(missing)) + 1
        if n_missing == 1:
            where = f"1 row, row {first}"
            remedy = remedy.replace("these rows", "this row").replace("their labels", "its label")
            remedy = remedy.replace("they are", "it is")
        else:
            where = f"{n_missing} rows, first in row {first}"
        raise ValueError(f"{what} {has} no {content} in {where}: {remedy}")
    if values.dtype.kind == "S":
        raise ValueError(f"{what} must contain no bytes{_REMEDIES['bytes']}")
    return values


def _entries(given: Any, what: str, content: str, n_rows: int | None) -> tuple[NDArray[Any], Bools]:
    """Return one value per row, as an array of numbers, bytes or objects, and which are missing."""
    if is_sparse(given):
        raise ValueError(
            f"{what} must be a list or an array, got a sparse table: use {what}.toarray().ravel()"
        )
    array = _array(given, what, content)
    mask = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else None
    if array.ndim == 2 and array.shape[1] == 1:
        array, mask = array[:, 0], None if mask is None else mask[:, 0]
    if array.ndim != 1:
        shape = f"{array.shape[1]} columns" if array.ndim == 2 else f"{array.ndim} axes"
        raise ValueError(f"{what} must contain one {content} per row, in one column; got {shape}")
    if n_rows not in (None, len(array)):
        raise ValueError(f"{what} must contain one {content} per row, {n_rows}; got {len(array)}")
    if array.dtype.kind in "mM":
        array = array.astype(f"{array.dtype.kind}8[us]")  # nanoseconds would become integers
    if array.dtype.kind not in "biufS":
        array = array.astype(object)
    if array.dtype.kind == "O":
        missing = np.fromiter(map(_is_missing, array), bool, len(array))
    else:
        missing = np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), bool)
    return array, missing if mask is None else missing | mask


def _array(given: Any, what: str, content: str) -> NDArray[Any]:
    """Return an array with the elements as they are: no number next to a text becomes text."""
    if isinstance(given, np.ndarray):
        return np.asarray(np.ma.getdata(given))
    if pd.api.types.is_extension_array_dtype(given):  # such as categories, nullable or Arrow types
        return np.asarray(given.astype(object), object)
    if isinstance(given, pd.DataFrame) and given.shape[1] == 1:
        return _array(given.iloc[:, 0], what, content)
    if hasattr(given, "__array__"):
        return np.ma.getdata(np.asarray(given))
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise ValueError(
            f"{what} must be a list or an array with one {content} per row, got a"
            f" {type(given).__name__}"
        )
    listed = list(given)
    if all(type(value) is int for value in listed) or all(type(value) is float for value in listed):
        array = np.asarray(listed)  # the usual case, in a tenth of the time
        if array.dtype.kind in "if":
            return array
    try:
        array = np.array(listed, object)
    except ValueError:  # rows of different lengths
        array = np.empty(len(listed), object)
        array[:] = listed
    return array


def _is_missing(value: Any) -> bool:
    if value is None or value is pd.NA or value is pd.NaT or value is np.ma.masked:
        return True
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def kind_of(value: Any) -> str:
    """Return what a value is: a text, number, truth value, date, duration, bytes, or its type.

    Examples
    --------
    >>> kind_of("1"), kind_of(Decimal(1)), kind_of(np.datetime64("2020-01-31")), kind_of([])
    ('text', 'number', 'date', 'list')
    """
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "truth value"
    if isinstance(value, np.timedelta64) or hasattr(value, "total_seconds"):
        return "duration"
    if isinstance(value, np.datetime64) or hasattr(value, "isoformat"):
        return "date"
    if isinstance(value, Real | Decimal):
        return "number"
    return "bytes" if isinstance(value, bytes) else type(value).__name__


def _kind(value: Any) -> str:
    """Return `kind_of` a label, for which a duration is a date, and a buffer is bytes."""
    kind = kind_of(value)
    alike = {"duration": "date", "Period": "date", "bytearray": "bytes", "memoryview": "bytes"}
    return alike.get(kind, kind)


def _check_kinds(kinds: list[str], what: str, allowed: str) -> None:
    """Raise ValueError when a value is neither a text nor a number nor a truth value."""
    for row, kind in enumerate(kinds, 1):
        if kind not in ("text", "number", "truth value"):
            found = "a date" if kind == "date" else kind
            raise ValueError(
                f"{what} must be {allowed}; got {found} in row {row}"
                f"{_REMEDIES.get(kind, ': convert it to a number')}"
            )


def check_characters(texts: Iterable[str | None], what: str) -> None:
    """Raise ValueError for text that no message can contain, or that arrays would shorten."""
    for row, text in enumerate(texts, 1):
        if text and ("\0" in text or any("\ud800" <= character <= "\udfff" for character in text)):
            raise ValueError(
                f"{what} must be text of Unicode characters other than U+0000; row {row} has"
                " another: read the file with its right encoding"
            )


def _check_finite(numbers: NDArray[Any], what: str, allowed: str = "finite") -> None:
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"{what} must be {allowed}; got {numbers[row]} in row {row + 1}: {DROP}")


def plain_number(value: Any) -> int | float | bool:
    """Return a number as Python's; a Decimal that is an integer becomes one.

    Examples
    --------
    >>> plain_number(Decimal("1.0")), plain_number(np.float32(0.5))
    (1, 0.5)
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return float(value)


def number_text(value: Any) -> str:
    """Return a number as the text of a category: the shortest one that is the same float64.

    The type of the number does not matter, so that a value is one category in all tables.

    Examples
    --------
    >>> [number_text(value) for value in (1.0, 0.1, np.float32(0.5), Decimal("1.50"), 10**20)]
    ['1', '0.1', '0.5', '1.5', '100000000000000000000']
    """
    number = plain_number(value)
    if isinstance(number, float) and number.is_integer() and abs(number) <= MAX_LABEL:
        number = int(number)
    return repr(number)


def _as_numbers(values: NDArray[Any], what: str) -> NDArray[Any]:
    """Return objects that are numbers or truth values as an array of numbers."""
    numbers = np.array([plain_number(value) for value in values])
    integers = all(isinstance(value, Integral | np.bool_) for value in values)
    if numbers.dtype.kind not in ("biu" if integers else "biuf"):
        raise ValueError(
            f"{what} must contain integers within 64 bits; got larger ones: convert all to text"
        )
    _check_finite(numbers, what)
    return numbers


def _numbers(
    given: Any, what: str, content: str, n_rows: int | None, allowed: str = "finite"
) -> Floats:
    """Return finite numbers as float64."""
    values = _complete(given, what, content, n_rows, DROP)
    if values.dtype.kind == "O":
        kinds = [_kind(value) for value in values]
        _check_kinds(kinds, what, "numbers")
        if "text" in kinds:
            row = kinds.index("text")
            raise ValueError(
                f"{what} must contain numbers; got the text {str(values[row])[:40]!r} in row"
                f" {row + 1}: convert text to numbers"
            )
        values = np.array([plain_number(value) for value in values], np.float64)
    _check_finite(values, what, allowed)
    return values.astype(np.float64)
