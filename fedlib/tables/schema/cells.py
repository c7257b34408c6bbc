"""Cells: one column of a file as numbers or texts, with what does not fit the schema.

A column is converted as a whole: its different texts are looked up once, and its numbers are cast
by Arrow. Regular expressions are those of RE2, whose time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.columns import MAX_EXACT, MAX_NUMBER, NUMBER, TEXT, TRUTH
from fedlib.core.targets import number_text
from fedlib.core.wording import printable
from fedlib.tables.columns import numbers_among
from fedlib.tables.schema.descriptor import whole
from fedlib.tables.typed import import_arrow

OTHER = "other"
IDENTIFIER = "identifier"


@dataclass(frozen=True)
class Notation:
    """How the values of a field are written in a text file; it has no effect on a run.

    Attributes
    ----------
    decimal : str
        The character before the fraction.
    group : str, optional
        The character between groups of digits.
    bare : bool
        Whether a number has nothing before and after it, such as a currency.
    true, false : tuple of str
        The words for truth values.
    date : str
        The format of dates, as for `datetime.datetime.strptime`.
    zone : str, optional
        Where a time with a zone has its calendar day, such as ``"Europe/Berlin"``.
    """

    decimal: str = "."
    group: str | None = None
    bare: bool = True
    true: tuple[str, ...] = ()
    false: tuple[str, ...] = ()
    date: str = "%Y-%m-%d"
    zone: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of the rows of a run, as the study has agreed on it.

    Attributes
    ----------
    name : str
    type : str
        ``"number"``, ``"integer"``, ``"string"``, ``"boolean"`` or ``"date"``.
    role : str
        ``"feature"``, ``"target"``, ``"target_upper"``, ``"weight"``, ``"base_margin"`` or
        ``"identifier"``.
    unit : str, optional
        The unit of measurement.
    outside : str
        What becomes of a value that is not accepted: ``"error"``, ``"missing"`` (a gap), ``"clip"``
        (the nearest limit) or ``"other"`` (this category).
    fill : float or str, optional
        The value for the gaps in a protected run.
    required, unique : bool
        Whether gaps and repeated values are errors.
    low, high : float, optional
        The smallest and the largest accepted number; of a date, days since 1970-01-01.
    values : tuple of str, optional
        The only accepted texts.
    pattern : str, optional
        The regular expression (RE2) that a whole text must match.
    min_length, max_length : int, optional
        The accepted counts of characters of a text.
    missing : tuple of str
        The texts that stand for a gap, besides a blank cell.
    notation : Notation
    unconfirmed : tuple of str
        The properties that a person must still confirm.
    labels : mapping of str to str
        The labels of the categories that have one, which have no effect.
    """

    name: str
    type: str
    role: str = "feature"
    unit: str | None = None
    outside: str = "error"
    fill: float | str | None = None
    required: bool = False
    unique: bool = False
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    missing: tuple[str, ...] = ()
    notation: Notation = field(default_factory=Notation)
    unconfirmed: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> int:
        """The kind of the column in a table: `NUMBER` or `TEXT`."""
        text = self.type == "string" or self.values is not None or self.role == IDENTIFIER
        return TEXT if text else NUMBER

    @property
    def drafted_classes(self) -> bool:
        """Whether no person has confirmed that a class without a name here is ``"other"``."""
        return self.role == "target" and "outside" in self.unconfirmed

    @property
    def categories(self) -> tuple[str, ...] | None:
        """The categories of an enumerated column, with ``"other"`` where it stands for the rest."""
        if self.values is None or self.outside != OTHER or OTHER in self.values:
            return self.values
        return (*self.values, OTHER)

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the largest accepted number; None if there is no limit."""
        if self.kind == TEXT or (self.low is None and self.high is None):
            return None
        return (-inf if self.low is None else self.low, inf if self.high is None else self.high)

    @property
    def canonical(self) -> dict[str, Any]:
        """What matters for a run, by the words that `Schema.difference` uses."""
        return {
            "type": self.type,
            "role": self.role,
            "unit": self.unit,
            "minimum": self.low,
            "maximum": self.high,
            "list of categories": self.values,
            "treatment of values outside": self.outside,
            "value for gaps": self.fill,
            "list of missing values": sorted({*self.missing} - {""}),
            "requirement of a value": self.required,
            "requirement of unique values": self.unique,
            "pattern": self.pattern,
            "minimum length": self.min_length,
            "maximum length": self.max_length,
        }

    def lacking(self) -> list[str]:
        """Return what a protected run needs and the column does not declare, for an error.

        Examples
        --------
        >>> Column("age", "number", low=0.0, unconfirmed=("minimum",)).lacking()
        ["a minimum and a maximum of 'age'", "the confirmation of minimum of 'age'"]
        """
        if self.role == IDENTIFIER:
            return []
        name, lacking = repr(printable(self.name, 60)), []
        if self.kind == TEXT and self.values is None:
            lacking.append(f"an enum of {name}")
        if self.kind == NUMBER and (self.low is None or self.high is None):
            lacking.append(f"a minimum and a maximum of {name}")
        elif self.kind == NUMBER and self.role == "feature" and self.low == self.high:
            lacking.append(
                f"a maximum of {name} above its minimum, or its role 'ignore' (got {self.low:g} for"
                " both)"
            )
        if self.unconfirmed:
            properties = printable(", ".join(self.unconfirmed), 200)
            lacking.append(f"the confirmation of {properties} of {name}")
        return lacking

    def protected(self) -> Column:
        """Return the column as a protected run applies it: nothing depends on single values.

        It must lack nothing (`lacking`).
        """
        if self.role == IDENTIFIER:
            return self
        if self.kind == TEXT:
            return replace(self, outside=OTHER)
        return replace(self, outside="missing" if self.type == "boolean" else "clip")


EXPONENT = r"(?:[eE][-+]?[0-9]{1,9})?"
PLAIN = Notation()

# A column of a file or a frame: texts as an array of Arrow, or numbers as float64 with NaN.
Cells = Any


@dataclass(frozen=True)
class Values:
    """The values of a column, and the cells without a value that the schema accepts.

    Attributes
    ----------
    values : array (n_rows,)
        Numbers as float64 with NaN, or texts as objects with None. The entries of cells that are
        not accepted are as in the file, or gaps if they cannot be read.
    gaps : array (n_rows,) of bool
        Whether the cell is blank or a missing value.
    unreadable : array (n_rows,) of bool
        Whether the cell is no number, integer, date or truth value.
    outside : array (n_rows,) of bool
        Whether the value is beyond the limits, no category, or does not match the pattern.
    """

    values: NDArray[Any]
    gaps: Bools
    unreadable: Bools
    outside: Bools


def read_values(column: Column, cells: Cells) -> Values:
    """Return the values of a column.

    Parameters
    ----------
    column : Column
    cells : array of Arrow with texts, or array (n_rows,) of float64
        The cells of the file; NaN and null are gaps.
    """
    if column.kind == TEXT:
        return _texts(column, *encode(cells))
    numbers: Floats
    gaps: Bools
    unreadable: Bools
    if isinstance(cells, np.ndarray) and _all_accepted(column, cells):
        nothing = np.zeros(len(cells), bool)
        return Values(cells + 0.0, nothing, nothing, nothing)
    if isinstance(cells, np.ndarray):
        numbers, gaps = cells, _gaps_of_numbers(column, cells)
        unreadable = np.zeros(len(cells), bool)
    elif column.type in ("number", "integer"):
        numbers, gaps, unreadable = read_numbers(column, cells)
    else:
        codes, words = encode(cells)
        read = read_days if column.type == "date" else _truth_values
        numbers, gaps, unreadable = read(column, words)
        numbers, gaps, unreadable = numbers[codes], gaps[codes], unreadable[codes]
    numbers = numbers + 0.0  # a copy without negative zeros
    unreadable = unreadable | _unusable(column, numbers)
    # A time that is only known to be later than the earliest one has no end.
    is_open = np.isposinf(numbers) & (column.role == "target_upper")
    unreadable &= ~is_open
    if gaps.any() or unreadable.any():
        numbers[gaps | unreadable] = np.nan
    low, high = column.limits or (-np.inf, np.inf)
    outside = (numbers < low) | ((numbers > high) & ~is_open)
    return Values(numbers, gaps, unreadable, outside)


def _all_accepted(column: Column, numbers: Floats) -> bool:
    """Return whether all numbers are accepted as they are; no array is made for the answer."""
    if not len(numbers) or column.type not in ("number", "integer"):
        return False
    least, most = float(numbers.min()), float(numbers.max())  # NaN if there is a gap
    low, high = column.limits or (-inf, inf)
    limit = MAX_EXACT - 1 if column.type == "integer" else MAX_NUMBER
    return (
        max(low, -limit) <= least
        and most <= min(high, limit)
        and not any(least <= gap <= most for gap in numbers_among(column.missing))
        and (column.type == "number" or bool((numbers == np.rint(numbers)).all()))
    )


def plain_numbers(column: Column) -> bool:
    """Return whether a column has numbers as programs write them, and no number is a gap."""
    notation = column.notation
    return (
        column.kind == NUMBER
        and column.type in ("number", "integer")
        and (notation.decimal, notation.group, notation.bare) == (PLAIN.decimal, None, True)
        and not any(re.search(r"[0-9]|(?i:inf|nan)", word) for word in column.missing)
    )


def _unusable(column: Column, numbers: Floats) -> Bools:
    """Return which numbers cannot be in a table, or are no integers though they should be."""
    with np.errstate(invalid="ignore"):
        unusable: Bools = np.abs(numbers) > MAX_NUMBER
        if column.type == "integer":
            # 2**53 itself may be a rounded 2**53 + 1.
            unusable |= (np.abs(numbers) >= MAX_EXACT) | (numbers != np.rint(numbers))
            unusable &= ~np.isnan(numbers)
    return unusable


def _gaps_of_numbers(column: Column, numbers: Floats) -> Bools:
    """Return which numbers are missing values: NaN, or those that the column declares."""
    gaps: Bools = np.isnan(numbers) | np.isin(numbers, numbers_among(column.missing))
    return gaps


def encode(cells: Cells) -> tuple[Ints, Any]:
    """Return the position of each cell's text, and the texts as `plain_texts` returns them."""
    arrow = import_arrow()
    if isinstance(cells, np.ndarray):
        numbers, codes = np.unique(cells, return_inverse=True)
        words = [None if np.isnan(v) else number_text(v) for v in numbers]
        return codes, arrow.array(words, arrow.string())
    encoded = cells.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(), plain_texts(encoded.dictionary)


def plain_texts(texts: Any) -> Any:
    """Return an array of Arrow without blanks around its texts and with composed accents."""
    compute = import_arrow().compute
    return compute.utf8_normalize(compute.utf8_trim_whitespace(texts), form="NFC")


def _gaps(column: Column, words: Any) -> Any:
    """Return which texts are gaps, as an array of Arrow."""
    arrow = import_arrow()
    missing = arrow.array([None, "", *column.missing], arrow.string())
    return arrow.compute.is_in(words, value_set=missing)


def _texts(column: Column, codes: Ints, words: Any) -> Values:
    """Return the values of a column of text."""
    gaps = _gaps(column, words).to_numpy(zero_copy_only=False)
    texts = np.array([*words.to_pylist(), None], object)[:-1]  # an array of objects, even if empty
    unreadable = np.zeros(len(texts), bool)
    if column.type != "string":  # numbers that are codes of categories, or identifiers
        numbers, nan, unreadable = read_numbers(column, words)
        gaps = gaps | nan
        unreadable = unreadable | _unusable(column, numbers)
        read = ~(gaps | unreadable)
        texts[read] = [number_text(v) for v in numbers[read]]
    outside = unreadable & False
    if column.values is not None:
        known = set(column.values)
        texts = _spelled(texts, column.values)
        # What is no number is no category either.
        unknown = np.array([text not in known for text in texts], bool)
        outside, unreadable = unreadable | unknown, outside
    outside = (outside | ~_matching(column, words)) & ~gaps
    texts[gaps | unreadable] = None
    return Values(texts[codes], gaps[codes], unreadable[codes], outside[codes])


def _spelled(texts: NDArray[Any], values: Sequence[str]) -> NDArray[Any]:
    """Return texts with truth values as the enum spells them, whatever their case."""
    words = {value.lower(): value for value in values if value.lower() in TRUTH}
    if len(words) < sum(value.lower() in TRUTH for value in values) or not words:
        return texts
    known = {*values}
    spelled = [
        text if text is None or text in known else words.get(text.lower(), text) for text in texts
    ]
    return np.array([*spelled, None], object)[:-1]


def _matching(column: Column, words: Any) -> Bools:
    """Return which texts have an accepted length and match the pattern."""
    arrow = import_arrow()
    matching: Bools = np.ones(len(words), bool)
    lengths = arrow.compute.utf8_length(words).to_numpy(zero_copy_only=False)
    if column.min_length is not None:
        matching &= lengths >= column.min_length
    if column.max_length is not None:
        matching &= lengths <= column.max_length
    if column.pattern is not None:
        matches = arrow.compute.match_substring_regex(words, whole(column.pattern))
        matching &= matches.fill_null(True).to_numpy(zero_copy_only=False)
    return matching


def read_numbers(column: Column, cells: Any) -> tuple[Floats, Bools, Bools]:
    """Return texts as numbers, which are gaps, and which are no numbers."""
    arrow = import_arrow()
    compute = arrow.compute
    # Only then, because a column has millions of numbers, which have no accents.
    accents = not "".join(column.missing).isascii()
    texts = plain_texts(cells) if accents else compute.utf8_trim_whitespace(cells)
    gaps = _gaps(column, texts)
    if compute.any(gaps).as_py():
        texts = compute.if_else(gaps, arrow.scalar(None, arrow.string()), texts)
    gaps = gaps.to_numpy(zero_copy_only=False)
    notation = column.notation
    plain = notation.group is None and notation.bare and notation.decimal == PLAIN.decimal
    try:
        if not plain:
            raise arrow.ArrowInvalid
        numbers = _cast(texts)
    except arrow.ArrowInvalid:
        numbers = _cast(_in_plain_notation(texts, notation))
    if np.count_nonzero(np.isnan(numbers)) > texts.null_count:  # NaN as a word, or no number
        words = compute.match_substring_regex(texts, "^[-+]?(?i:nan)$")
        gaps = gaps | words.fill_null(False).to_numpy(zero_copy_only=False)
    gaps = gaps | np.isin(numbers, numbers_among(column.missing))  # -9.0 and -9,0 for -9
    return numbers, gaps, ~(gaps | np.isfinite(numbers))


def _cast(texts: Any) -> Floats:
    numbers: Floats = texts.cast(import_arrow().float64()).to_numpy(zero_copy_only=False)
    return numbers


def _in_plain_notation(texts: Any, notation: Notation) -> Any:
    """Return the numbers among texts as Arrow reads them, and null for all other texts."""
    arrow = import_arrow()
    compute = arrow.compute
    point = re.escape(notation.decimal)
    digits = "[0-9]+"
    if notation.group is not None:
        # Digits in threes, or in twos before the last three: 1.5 with groups by "." is an error.
        group = re.escape(notation.group)
        digits = f"(?:[0-9]{{1,3}}(?:{group}[0-9]{{2,3}})*{group}[0-9]{{3}}|[0-9]+)"
    if not notation.bare:
        texts = compute.replace_substring_regex(texts, f"^[^-+0-9{point}]+", "")
        texts = compute.replace_substring_regex(texts, f"[^0-9{point}]+$", "")
    number = rf"\A[-+]?(?:{digits}(?:{point}[0-9]*)?|{point}[0-9]+){EXPONENT}\z"
    valid = compute.match_substring_regex(texts, number)
    texts = compute.if_else(valid, texts, arrow.scalar(None, arrow.string()))
    if notation.group is not None:
        texts = compute.replace_substring(texts, notation.group, "")
    if notation.decimal != PLAIN.decimal:
        texts = compute.replace_substring(texts, notation.decimal, PLAIN.decimal)
    return texts


def read_days(column: Column, words: Any) -> tuple[Floats, Bools, Bools]:
    """Return texts as days since 1970-01-01, which are gaps, and which are no dates."""
    gaps = _gaps(column, words).to_numpy(zero_copy_only=False)
    texts = pd.Series(words.to_pylist(), dtype=object).where(~gaps, None)
    dates = pd.to_datetime(texts, format=column.notation.date, errors="coerce")
    days = dates.to_numpy("datetime64[D]")
    numbers = np.where(np.isnat(days), np.nan, days.astype(np.int64).astype(np.float64))
    return numbers, gaps, np.isnan(numbers) & ~gaps


def _truth_values(column: Column, words: Any) -> tuple[Floats, Bools, Bools]:
    """Return texts as 0 and 1, which are gaps, and which are no truth values."""
    gaps = _gaps(column, words).to_numpy(zero_copy_only=False)
    known = dict.fromkeys(column.notation.false, 0.0) | dict.fromkeys(column.notation.true, 1.0)
    numbers = np.array([known.get(text, np.nan) for text in words.to_pylist()], np.float64)
    return np.where(gaps, np.nan, numbers), gaps, np.isnan(numbers) & ~gaps
