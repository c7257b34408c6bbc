"""The package pyarrow, which reads cells, and the regular expressions that it matches.

They are those of RE2, whose time is linear in the length of a text. So no pattern of a stranger can
keep a site busy, as nested repetitions can with Python's module re.
"""

from __future__ import annotations

import re
from typing import Any

from fedlib.tables.schema.descriptor import short

MAX_PATTERN = 1000  # characters


def import_arrow() -> Any:
    """Return the module pyarrow with its parts ``compute`` and ``csv``.

    Raises
    ------
    ValueError
        When it is not installed.
    """
    try:
        import pyarrow as arrow
        import pyarrow.compute
        import pyarrow.csv
    except ImportError as error:
        raise ValueError(
            'a schema needs pyarrow, which is missing: pip install "fedlib-study[http]"'
        ) from error
    return arrow


def check_pattern(place: str, pattern: str) -> None:
    """Raise ValueError if a pattern is no regular expression that RE2 can match.

    Examples
    --------
    >>> check_pattern("x", "(")
    Traceback (most recent call last):
    ...
    ValueError: x must be a regular expression of RE2, without references and look-around, got '('
    """
    arrow = import_arrow()
    # RE2 would read the subtraction of XML Schema's [a-z-[aeiou]] as something else.
    valid = len(pattern) <= MAX_PATTERN and not re.search(r"-\[(?!:)", pattern)
    try:
        # Alone, so that it cannot close the group that makes it match whole texts.
        for text in (pattern, whole(pattern)):
            arrow.compute.match_substring_regex(arrow.array([""]), text)
    except arrow.ArrowInvalid:
        valid = False
    if not valid:
        raise ValueError(
            f"{place} must be a regular expression of RE2, without references and look-around,"
            f" got {short(pattern)}"
        )


def whole(pattern: str) -> str:
    """Return the expression that matches a whole text, as the standard demands."""
    return rf"\A(?:{pattern})\z"
