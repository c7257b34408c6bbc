"""Texts that look like numbers in another form: with other marks, units or signs."""

from __future__ import annotations

import re
from typing import Literal

import pandas as pd

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
    unique = texts.unique()
    return {text for text in unique if LIKE_NUMBER.fullmatch(text) and not re.fullmatch(DATE, text)}


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
    like = like_numbers(texts)
    if texts.isin(like).mean() > MOST:
        return "marks", like
    matches = {one: match for one in texts.unique() if (match := WITH_UNIT.fullmatch(one.strip()))}
    units = {(m["sign"] or "", m["unit"] or "") for m in matches.values()} - {("", "")}
    spaced = all(m["unit"] and m.string[m.start("unit") - 1] == " " for m in matches.values())
    few = len(units) == 1 or (spaced and 2 * len(units) <= len(matches))
    if not units or not few or len(matches) < MIN_NUMBERS or texts.isin(matches).mean() <= MOST:
        return "", set()
    return "units", {*matches} - like
