"""Drafts: a descriptor that one site writes from its rows, for the people of the study to confirm.

Drafts are mailed, so they contain no value of a single row:

- Limits are rounded outward to one significant digit of the column's largest number, and dates to
  decades. Columns with fewer than `MIN_ROWS` values have none.
- Categories with fewer than `MIN_ROWS` rows are left out, and the rest have alphabetical order.
  Rows with them are ``"other"`` in a feature. In the column with the classes they are an error, so
  that no rare class joins another one in silence.
- Identifiers that repeat, or are missing in a row, are not read, because no primary key may be so.
- Text that looks like identifiers or free text is not read (``"role": "ignore"``).

Everything is marked as unconfirmed (`fedlib.tables.schema.schema` explains it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlib.core.array_types import Floats, Ints
from fedlib.core.columns import MAX_EXACT, MAX_TEXT, are_identifiers
from fedlib.core.file_errors import UnreadableFile
from fedlib.core.wording import composed, printable
from fedlib.tables.columns import GROUPED, check_faults
from fedlib.tables.layouts import LEADING_ZERO, find_layout
from fedlib.tables.schema.cells import Column, Notation, encode, read_days, read_numbers
from fedlib.tables.schema.descriptor import (
    MAX_CATEGORIES,
    MAX_FIELDS,
    PROFILE,
    Dialect,
    import_arrow,
)
from fedlib.tables.schema.reading import Undecodable, open_source
from fedlib.tables.schema.schema import Schema
from fedlib.tables.streams import ReadOptions, find_encoding, is_text_file, undecodable

MIN_ROWS = 10  # of a category, and of a column with limits
MISSING = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "-", ".", "?")
TRUE = {"true", "True", "TRUE"}
FALSE = {"false", "False", "FALSE"}
NOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {"decimalChar": ","},
    {"groupChar": ","},
    {"decimalChar": ",", "groupChar": "."},
)
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y%m%d")
FALLBACK = "windows-1252"  # of a text that is not UTF-8; a person must confirm it


class Words(NamedTuple):
    """The different texts of a column without gaps, and the count of rows with each of them."""

    texts: tuple[str, ...]
    counts: Ints

    @property
    def n_rows(self) -> int:
        """The count of rows with a value."""
        return int(self.counts.sum())


def draft_schema(
    path: str | Path,
    target: str | None = None,
    ids: str | None = None,
    weight: str | None = None,
    name: str = "study",
    sheet: str | None = None,
) -> Schema:
    r"""Return the draft of a schema for the rows in a site's file.

    Parameters
    ----------
    path : str or Path
        A text file, or another file that `fedlib.tables.files.read_table` reads.
    target, ids, weight : str, optional
        The names of the columns with the classes, the identifiers and the weights.
    name : str, default="study"
        The name of the resource.
    sheet : str, optional
        The sheet of an Excel file; needed if there are several.

    Raises
    ------
    ValueError
        When the file cannot be read, or it has no such column.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.csv")
    ...     _ = path.write_text("age,sex\n" + "41,f\n57,m\n" * 10 + "63,x\n")
    ...     schema = draft_schema(path)
    >>> schema.limits, schema.categories
    ({'age': (40.0, 70.0)}, {'sex': ('f', 'm', 'other')})
    """
    path = Path(path)
    target, ids, weight = (name and composed(name) for name in (target, ids, weight))
    cells, descriptor, faults = _read(path, sheet)
    names = [*cells]
    roles = {target: "target", weight: "weight"}
    unknown = [given for given in (target, ids, weight) if given is not None and given not in names]
    if unknown:
        raise ValueError(
            f"there is no column {printable(unknown[0], 60)!r}; the columns are"
            f" {', '.join(repr(printable(each, 60)) for each in names[:20])}"
        )
    if ids is not None and not _is_key(cells[ids]):
        roles[ids] = "ignore"
        ids = None
    fields = [
        _field(each, cells[each], roles.get(each), each == ids, faults.get(each, ()))
        for each in names
    ]
    if all(field["fedlib"].get("role") == "ignore" for field in fields):
        raise ValueError(f"no column can be read: {not_read(names)}")
    schema: dict[str, Any] = {"fieldsMatch": "subset", "fields": fields, "missingValues": [""]}
    if ids is not None:
        schema["primaryKey"] = [ids]
    head = {"$schema": PROFILE, "name": name, "path": "site.csv", "type": "table"}
    return Schema({**head, **descriptor, "schema": schema})


def not_read(names: Sequence[str]) -> str:
    """Return why a draft does not read some columns, for the site's operator."""
    listed = ", ".join(repr(printable(name, 60)) for name in names[:20])
    return (
        f"{listed}{' and others' if len(names) > 20 else ''}: not all values are numbers, dates or"
        f" truth values in one form, and no text has {MIN_ROWS} rows, or almost all are different"
    )


def _read(
    path: Path, sheet: str | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, list[str]]]:
    """Return the cells of all columns by name, how the file is written, and Excel's errors."""
    if not is_text_file(path):
        from fedlib.tables.files import SiteFile

        options = ReadOptions(sheet=sheet)
        with _without_options():
            file = SiteFile.read(path, options)
            if codes := [*file.content.leading_zeros]:
                file = SiteFile.read(path, replace(options, text=codes))
        frame = file.content.frame
        faults = {each: [*file.content.faults.get(each, ())] for each in map(str, frame)}
        for each, errors in faults.items():
            check_faults(file.content.faults, each, [*filter(None, errors)])
        return open_source(frame, None, (), Dialect(), None).cells, {}, faults
    found = find_encoding(path, None)
    encodings = [found, FALLBACK] if found == "utf-8" else [found]
    for encoding in encodings:
        try:
            dialect = _dialect(path, encoding)
            cells = open_source(path, None, (), dialect, encoding).cells
            break
        except OSError as error:
            raise ValueError(f"cannot be read: {error}") from error
        except (UnicodeDecodeError, Undecodable) as error:
            if encoding != encodings[-1]:
                continue
            if isinstance(error, Undecodable):
                raise
            raise undecodable(path, error, encoding) from error
    content: dict[str, Any] = {"delimiter": dialect.delimiter}
    if dialect.skip_initial_space:
        content["skipInitialSpace"] = True
    return cells, {"encoding": encoding.removesuffix("-sig"), "dialect": content}, {}


def _dialect(path: Path, encoding: str) -> Dialect:
    """Return how a text file is written; the first row must have names, and nothing above it."""
    with _without_options():
        layout = find_layout(path, encoding, ReadOptions())
    if layout.separator == " ":
        raise ValueError(
            "the fields are separated by spaces, which a schema cannot describe; separate them by"
            " commas"
        )
    if len(layout.names) > MAX_FIELDS:
        raise ValueError(f"there must be at most {MAX_FIELDS} columns, got {len(layout.names)}")
    return Dialect(delimiter=layout.separator or ",", skip_initial_space=layout.spaced_quotes)


@contextmanager
def _without_options() -> Iterator[None]:
    """Name the remedy in an error about a file that names an option, which drafts do not have."""
    try:
        yield
    except ValueError as error:
        if "--" not in str(error) or "--sheet" in str(error):
            raise
        kind = UnreadableFile if isinstance(error, UnreadableFile) else ValueError
        raise kind(
            f"{error}; a schema has no such options, so correct the file: its first line must have"
            " the names"
        ) from error


def _is_key(cells: Any) -> bool:
    """Return whether each cell has a text that no other cell has."""
    codes, words = encode(cells)
    return len(set(codes.tolist())) == len(codes) and all(words.to_pylist())


def _field(
    name: str, cells: Any, role: str | None, key: bool, errors: Sequence[str]
) -> dict[str, Any]:
    """Return the field of a column."""
    words, missing = _words(cells)
    missing += errors  # a person confirms that they are gaps
    if key or role == "ignore":
        content: dict[str, Any] = {"type": "string"}
    else:
        content = _number(words) or _boolean(words) or _date(words) or _string(words)
    own: dict[str, Any] = content.pop("fedlib", {})
    if role is not None:
        own["role"] = role
        own.pop("outside", None)  # no class becomes another one
    if missing:
        content["missingValues"] = ["", *missing]
    unconfirmed = [] if key else ["role"]
    if own.get("role") != "ignore":
        unconfirmed += [prop for prop in content if prop != "constraints"]
        unconfirmed += [f"constraints.{prop}" for prop in content.get("constraints", {})]
        unconfirmed += ["outside"] if "outside" in own else []
        unconfirmed += ["unit"] if content["type"] in ("number", "integer") else []
    return {"name": name, **content, "fedlib": {**own, "unconfirmed": unconfirmed}}


def _words(cells: Any) -> tuple[Words, list[str]]:
    """Return the texts of a column, and the words for missing values that occur."""
    codes, words = encode(cells)
    counts: dict[str, int] = {}
    for text, count in zip(
        words.to_pylist(), np.bincount(codes, minlength=len(words)).tolist(), strict=True
    ):
        if text:
            counts[text] = counts.get(text, 0) + count
    missing = [text for text in MISSING if text in counts]
    kept = {text: count for text, count in counts.items() if text not in missing}
    return Words(tuple(kept), np.array([*kept.values()], np.int64)), missing


def _number(words: Words) -> dict[str, Any] | None:
    """Return the field of a column of numbers; None if it is none, or not in one reading only."""
    if any(map(LEADING_ZERO.fullmatch, words.texts)):
        return None  # codes
    for written in NOTATIONS:
        numbers = _as_numbers(words, written)
        if numbers is not None:
            break
    else:
        return None
    if np.abs(numbers).max() > MAX_EXACT:
        return None  # identifiers
    commas = [text for text in words.texts if "," in text]
    if commas and all(map(GROUPED.fullmatch, commas)):
        return None
    integers = bool((numbers == np.rint(numbers)).all()) and written.get("decimalChar") is None
    if integers and {*words.texts} <= {"0", "1"}:
        return {"type": "boolean"}
    limits = {}
    if words.n_rows >= MIN_ROWS:
        low, high = round_outward(float(numbers.min()), float(numbers.max()), integers)
        limits = {"constraints": {"minimum": low, "maximum": high}}
    return {"type": "integer" if integers else "number", **written, **limits}


def _as_numbers(words: Words, written: Mapping[str, str]) -> Floats | None:
    """Return texts as numbers in a notation; None if one is no number, or if there are none."""
    arrow = import_arrow()
    notation = Notation(written.get("decimalChar", "."), written.get("groupChar"))
    column = Column("", "number", notation=notation)
    numbers, _, unreadable = read_numbers(column, arrow.array(words.texts, arrow.string()))
    return None if not words.texts or unreadable.any() else numbers


def _boolean(words: Words) -> dict[str, Any] | None:
    """Return the field of a column of truth values; None if it is none."""
    return {"type": "boolean"} if words.texts and {*words.texts} <= TRUE | FALSE else None


def _date(words: Words) -> dict[str, Any] | None:
    """Return the field of a column of dates; None if it is none."""
    arrow = import_arrow()
    for format in DATES:
        column = Column("", "date", notation=Notation(date=format))
        days, _, unreadable = read_days(column, arrow.array(words.texts, arrow.string()))
        if words.texts and not unreadable.any():
            break
    else:
        return None
    field: dict[str, Any] = {"type": "date"} | ({} if format == DATES[0] else {"format": format})
    if words.n_rows >= MIN_ROWS:
        first, last = (
            date(1970, 1, 1).fromordinal(int(end) + date(1970, 1, 1).toordinal()).year // 10 * 10
            for end in (days.min(), days.max())
        )
        ends = date(max(first, 1), 1, 1), date(last + 9, 12, 31)
        minimum, maximum = (f"{end:{format}}" for end in ends)
        field["constraints"] = {"minimum": minimum, "maximum": maximum}
    return field


def _string(words: Words) -> dict[str, Any]:
    """Return the field of a column of text."""
    kept = sorted(
        text
        for text, count in zip(words.texts, words.counts.tolist(), strict=True)
        if count >= MIN_ROWS
    )
    long = any(len(text) > MAX_TEXT for text in kept)
    if (
        are_identifiers(len(words.texts), words.n_rows)
        or long
        or not 1 <= len(kept) <= MAX_CATEGORIES
    ):
        return {"type": "string", "fedlib": {"role": "ignore"}}
    return {"type": "string", "constraints": {"enum": kept}, "fedlib": {"outside": "other"}}


def round_outward(low: float, high: float, integers: bool) -> tuple[float, float]:
    """Return rounded limits beyond two extremes, which do not reveal the extremes.

    They are multiples of the largest power of 10 within the larger extreme, and of at least 10 for
    integers. They differ from the extremes, except that 0 limits numbers without a sign.

    Examples
    --------
    >>> round_outward(18, 94, True), round_outward(-0.31, 0.9, False)
    ((10, 100), (-0.4, 1.0))
    >>> round_outward(0.2, 0.7, False)
    (0.1, 0.8)
    """
    largest = max(abs(low), abs(high))
    power = math.floor(math.log10(largest)) if largest else 0
    power = max(power, 1) if integers else power
    step = 10.0**power
    below = round((math.ceil(low / step) - 1) * step, -power)
    above = round((math.floor(high / step) + 1) * step, -power)
    below -= step * (below >= low)  # the quotient was rounded: 0.7 / 0.1 is less than 7
    above += step * (above <= high)
    below, above = round(below, -power), round(above, -power)
    below = below if low < 0 else max(below, 0.0)
    above = above if high > 0 else min(above, 0.0)
    return (int(below), int(above)) if integers else (below, above)
