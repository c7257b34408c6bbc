"""Drafts: a descriptor that one site writes from its rows, for the people of the study to confirm.

Drafts are mailed, so they contain no value of a single row:

- Limits are rounded outward to one significant digit of the column's largest number, and dates to
  decades. Columns with fewer than `MIN_ROWS` values have none.
- Categories with fewer than `MIN_ROWS` rows are left out, and the rest have alphabetical order.
  Rows with them are ``"other"`` in a feature. In the column with the classes they are an error, so
  that no rare class joins another one in silence.
- Identifiers that repeat, or are missing in a row, are not read, because no primary key may be so.
- Text that looks like identifiers or free text is not read (``"role": "ignore"``).

A file that states types says more: the labels of codes are documentation in a draft, and the
user-defined missing values are gaps.

Everything is marked as unconfirmed (`fedlib.tables.schema.schema` explains it).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib.core.array_types import Floats, Ints
from fedlib.core.columns import MAX_EXACT, MAX_TEXT, are_identifiers
from fedlib.core.file_errors import UnreadableFile
from fedlib.core.wording import composed, printable
from fedlib.tables.columns import CODE, GROUPED, INTEGER, check_faults
from fedlib.tables.databases import Database
from fedlib.tables.layouts import find_layout
from fedlib.tables.schema.cells import Column, Notation, encode, read_days, read_numbers
from fedlib.tables.schema.descriptor import (
    MAX_CATEGORIES,
    MAX_FIELDS,
    PROFILE,
    Dialect,
)
from fedlib.tables.schema.reading import Undecodable, open_source, read_frame
from fedlib.tables.schema.redcap import Dictionary
from fedlib.tables.schema.schema import Schema
from fedlib.tables.streams import ReadOptions, find_encoding, is_text_file, undecodable
from fedlib.tables.typed import import_arrow, plain_series

MIN_ROWS = 10  # of a category, and of a column with limits
MISSING = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "-", ".", "?")
# The words for truth values; those of PostgreSQL's own files only if both occur.
TRUTHS = ({"true", "True", "TRUE"}, {"false", "False", "FALSE"})
SHORT_TRUTHS = ("t", "f")
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

    def without(self, gaps: Collection[str]) -> Words:
        """Return the texts that are not among some words."""
        kept = [j for j, text in enumerate(self.texts) if text not in gaps]
        return Words(tuple(self.texts[j] for j in kept), self.counts[kept])


class Stated(NamedTuple):
    """What a file states about a column besides its cells.

    Attributes
    ----------
    labels : mapping of str to str
        The labels of its codes.
    missing : mapping of str to str
        The user-defined missing values and the errors in cells, with their labels.
    own : mapping of str to str
        Properties of the object ``fedlib`` of the field.
    unreadable : bool
        Whether no run can use the values.
    field : mapping of str to Any
        The type that a dictionary declares, and the limits if it has any.
    """

    labels: Mapping[str, str] = MappingProxyType({})
    missing: Mapping[str, str] = MappingProxyType({})
    own: Mapping[str, str] = MappingProxyType({})
    unreadable: bool = False
    field: Mapping[str, Any] = MappingProxyType({})


def draft_schema(
    path: str | Path | Database,
    target: str | None = None,
    ids: str | None = None,
    weight: str | None = None,
    name: str = "study",
    sheet: str | None = None,
    dictionary: str | Path | None = None,
) -> Schema:
    r"""Return the draft of a schema for the rows in a site's file.

    Parameters
    ----------
    path : str, Path or Database
        A text file, or what else `fedlib.tables.files.read_table` reads.
    target, ids, weight : str, optional
        The names of the columns with the classes, the identifiers and the weights.
    name : str, default="study"
        The name of the resource.
    sheet : str, optional
        The sheet of an .xlsx or .ods file; needed if there are several.
    dictionary : str or Path, optional
        The data dictionary of a REDCap project, if the rows are its raw export. Its first variable
        has the identifiers unless ``ids`` names another column.

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
    path = path if isinstance(path, Database) else Path(path)
    target, ids, weight = (name and composed(name) for name in (target, ids, weight))
    cells, descriptor, stated = _read(path, sheet)
    names = [*cells]
    if dictionary is not None:
        declared = Dictionary.read(dictionary)
        for each, content in declared.declare(names).items():
            stated[each] = stated.get(each, Stated())._replace(**content)
        ids = ids or (declared.key if declared.key in names else None)
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
        _field(each, cells[each], roles.get(each), each == ids, stated.get(each, Stated()))
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
    path: Path | Database, sheet: str | None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Stated]]:
    """Return the cells of all columns by name, how the file is written, and what it states."""
    if isinstance(path, Database) or not is_text_file(path):
        from fedlib.tables.files import SiteFile

        with _without_options():
            file = SiteFile.read(path, ReadOptions(sheet=sheet), as_written=True).content
        frame, stated = file.frame.copy(deep=False), {}
        for name in map(str, frame):
            errors = [*file.faults.get(name, ())]
            check_faults(file.faults, name, [*filter(None, errors)])
            missing = dict(file.missing.get(name, {})) | dict.fromkeys(errors, "")
            column, own = plain_series(frame[name]), {}
            if zone := getattr(column.dtype, "tz", None):
                column, own = column.dt.tz_localize(None), {"timezone": str(zone)}
            elif pd.api.types.is_timedelta64_dtype(column):
                column, own = column.dt.total_seconds(), {"unit": "s"}
            if pd.api.types.is_datetime64_any_dtype(column):
                column = column.dt.normalize()  # a date is a calendar day
            frame[name] = column
            labels = file.labels.get(name, {})
            stated[name] = Stated(labels, missing, own, name in file.unreadable)
        return read_frame(frame, None).cells, {}, stated
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
        if not re.search("--(?!sheet|query)", str(error)):
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


def _field(name: str, cells: Any, role: str | None, key: bool, stated: Stated) -> dict[str, Any]:
    """Return the field of a column."""
    words = _words(cells)
    gaps = {text: "" for text in MISSING if text in words.texts}
    numbers = words.without(gaps)
    missing = {**gaps, **stated.missing}  # a person confirms that they are gaps
    if key or role == "ignore":
        content: dict[str, Any] = {"type": "string"}
    elif stated.unreadable:
        content = {"type": "string", "fedlib": {"role": "ignore"}}
    elif stated.field.get("type", "string") != "string" and not any(
        map(CODE.fullmatch, words.texts)
    ):
        content = _declared(numbers, stated.field)
    elif not stated.field and (
        found := _labelled(words, stated.labels)
        or _number(numbers)
        or _boolean(numbers)
        or _date(numbers)
    ):
        content = found
    else:  # in a text, NA is a word
        content, missing = _string(words), dict(stated.missing)
    own: dict[str, Any] = {**content.pop("fedlib", {}), **stated.own}
    if role is not None:
        own["role"] = role
        own.pop("outside", None)  # no class becomes another one
    if missing:
        labelled = [
            {"value": text, "label": label} if label else text for text, label in missing.items()
        ]
        content["missingValues"] = ["", *labelled]
    unconfirmed = [] if key else ["role"]
    if own.get("role") != "ignore":
        unconfirmed += [prop for prop in content if prop != "constraints"]
        unconfirmed += [f"constraints.{prop}" for prop in content.get("constraints", {})]
        unconfirmed += [prop for prop in ("outside", "timezone") if prop in own]
        measured = content["type"] in ("number", "integer") and "categories" not in content
        unconfirmed += ["unit"] if measured else []
    return {"name": name, **content, "fedlib": {**own, "unconfirmed": unconfirmed}}


def _words(cells: Any) -> Words:
    """Return the texts of a column."""
    codes, words = encode(cells)
    counts: dict[str, int] = {}
    for text, count in zip(
        words.to_pylist(), np.bincount(codes, minlength=len(words)).tolist(), strict=True
    ):
        if text:
            counts[text] = counts.get(text, 0) + count
    return Words(tuple(counts), np.array([*counts.values()], np.int64))


def _labelled(words: Words, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the field of a column of codes that all have labels; None if it is none.

    The labels are of the file and not of rows, so all of them are listed, in the order of the file.
    """
    common = [
        text
        for text, count in zip(words.texts, words.counts.tolist(), strict=True)
        if count >= MIN_ROWS
    ]
    if not labels or len(labels) > MAX_CATEGORIES or not {*common} <= {*labels}:
        return None
    integers = all(map(INTEGER.fullmatch, labels)) and not any(map(CODE.fullmatch, labels))
    categories = [
        {"value": int(code) if integers else code, "label": label} for code, label in labels.items()
    ]
    kind = "integer" if integers else "string"
    return {"type": kind, "categories": categories, "fedlib": {"outside": "other"}}


def _declared(words: Words, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of a column whose type a dictionary declares.

    The rows say how the values are written, and have limits if the dictionary has none.
    """
    kind = declared["type"]
    if kind == "boolean":
        return dict(declared)
    found = (_date(words) if kind == "date" else _number(words)) or {}
    if kind == "integer" and found.get("type") != kind:
        found = {}  # fractions, which the check of the rows names
    kept = dict(declared)
    if "decimalChar" in kept and not any("," in text for text in words.texts):
        del kept["decimalChar"]  # the export has points
    return kept if "groupChar" in found and "decimalChar" in kept else {**found, **kept}


def _number(words: Words) -> dict[str, Any] | None:
    """Return the field of a column of numbers; None if it is none, or not in one reading only."""
    if any(map(CODE.fullmatch, words.texts)):
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
    found = {*words.texts}
    if found == {*SHORT_TRUTHS}:
        true, false = SHORT_TRUTHS
        return {"type": "boolean", "trueValues": [true], "falseValues": [false]}
    return {"type": "boolean"} if found and found <= TRUTHS[0] | TRUTHS[1] else None


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
