"""From the texts in the cells of a column to its values: numbers, text and gaps.

The rules, which do not depend on how many cells of a kind there are:

- Spaces around a text do not count, and accents are composed. An empty text and the words of
  ``na_values`` are gaps.
- A column whose other cells are numbers, or one of the words in `GAP_WORDS`, contains numbers; the
  words are gaps. A column with such words only has no values.
- Any other column contains text, in which NA is a word: it can be a category, such as Namibia.
- The truth values true, True and TRUE have one spelling in text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from fedlib.core.columns import GAP_WORDS, MAX_EXACT, TRUTH
from fedlib.core.texts import composed
from fedlib.tables.formulas import unguarded

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
    gaps = [text == "" or text in words for text in texts]
    others = [
        text
        for text, gap in zip(texts, gaps, strict=True)
        if not gap and text.lower() not in GAP_WORDS
    ]
    for mark, number in ((".", POINT), (",", COMMA)):
        if mark in decimals and all(number.fullmatch(text) for text in others):
            values = _numbers(texts, number, mark, bool((codes < 0).any()))
            used = any(mark in text for text in others)
            return without_numbers(_placed(values, codes, column), words), mark if used else ""
    clean = [str(text) for text in unique] == texts and not any(gaps)
    if clean and not any(text.lower() in TRUTH for text in others):
        return column, ""
    values = np.empty(len(texts), object)
    values[:] = [
        None if gap else TRUTH.get(text.lower(), text)
        for text, gap in zip(texts, gaps, strict=True)
    ]
    return _placed(values, codes, column), ""


def _plain(text: object) -> str:
    """Return a text without spaces around it and with composed accents."""
    return composed(unguarded(str(text)).strip())


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


def _placed(values: np.ndarray, codes: np.ndarray, column: pd.Series) -> pd.Series:
    """Return one value per cell, by the number of its text; -1 is a gap."""
    if not len(values):
        return pd.Series(np.full(len(column), np.nan), column.index, name=column.name)
    taken = values[codes]
    if (codes < 0).any():
        if values.dtype != object:
            taken = taken.astype(np.float64)
        taken[codes < 0] = None if values.dtype == object else np.nan
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
    values = np.empty(len(texts), object)
    values[:] = [None if text == "" or text in words else text for text in texts]
    return _placed(values, codes, column)


def without_numbers(column: pd.Series, words: Collection[str]) -> pd.Series:
    """Return a column of numbers with gaps in place of those among some words, however written.

    Examples
    --------
    >>> without_numbers(pd.Series([41, -999, -0.5]), ["unknown", "-999.0", "-0,5"]).tolist()
    [41.0, nan, nan]
    """
    gaps = column.isin(numbers_among(words))
    return column.mask(gaps) if gaps.any() else column


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
    texts = np.empty(len(column), object)
    texts[:] = [
        None if gap else _spelled(value)
        for value, gap in zip(column.to_numpy(object), column.isna(), strict=True)
    ]
    return pd.Series(texts, column.index, name=column.name)


def _spelled(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return f"{value:.0f}"
    return str(value)
