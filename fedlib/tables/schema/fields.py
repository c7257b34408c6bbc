"""Fields: from the properties of a descriptor to the columns of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf, isfinite
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fedlib.core.columns import MAX_NUMBER, MAX_TEXT, NUMBER
from fedlib.core.targets import number_text
from fedlib.core.wording import composed, printable
from fedlib.tables.schema.cells import IDENTIFIER, OTHER, Column, Notation
from fedlib.tables.schema.descriptor import (
    MAX_CATEGORIES,
    MAX_NAME,
    REFUSED_CONSTRAINTS,
    REFUSED_FIELD,
    TYPES,
    Constraints,
    Field,
    Labelled,
    Own,
    check_pattern,
    convert,
    only,
    refuse,
    short,
)

EPOCH = datetime(1970, 1, 1).toordinal()
# A date has directives for its day and no others; names of months are English.
DIRECTIVES = "YymdjbB%"
CONSTRAINTS = tuple(name for name in Constraints.__struct_encode_fields__)
# What `Column.outside` may be, by the kind of column.
OUTSIDE = {
    "numbers": ("error", "missing", "clip"),
    "categories": ("error", "missing", OTHER),
    "texts": ("error", "missing"),
}


def read_column(
    place: str, content: Mapping[str, Any], missing: Sequence[str], key: str | None
) -> Column | None:
    """Return the column of a field; None if the run does not read it.

    Parameters
    ----------
    place : str
        The place of the field, for errors.
    content : mapping
        The field of the descriptor.
    missing : sequence of str
        The missing values of all fields that declare none.
    key : str, optional
        The name of the primary key.

    Raises
    ------
    ValueError
        When a property is refused or invalid.
    """
    content = dict(content)
    own = convert(f"{place}.fedlib", content.pop("fedlib", {}), Own)
    name = read_name(place, content)
    place = f"{place} {printable(name, 60)!r}: "
    if own.role == "ignore":
        if name == key:
            raise ValueError(f"{place}the primary key cannot have the role 'ignore'")
        return None
    if content.get("type") not in TYPES:  # before the other properties, whose forms depend on it
        raise ValueError(
            f"{place}type must be one of {', '.join(TYPES)}, got {short(content.get('type'))};"
            " a field with the role 'ignore' may have any type"
        )
    refuse(place, content, REFUSED_FIELD)
    constraints = content.pop("constraints", {})
    if not isinstance(constraints, dict):
        raise ValueError(f"{place}constraints must be an object, got {short(constraints)}")
    refuse(f"{place}constraints.", constraints, REFUSED_CONSTRAINTS)
    only(f"{place}constraints.", constraints, CONSTRAINTS)
    declared = convert(f"{place}constraints", constraints, Constraints)
    column = _column(place, convert(place.rstrip(": "), content, Field), declared, own, missing)
    if name == key:
        column = _identifier(place, column, own)
    return column


def read_name(place: str, content: Mapping[str, Any]) -> str:
    """Return the name of a field without blanks around it."""
    name = content.get("name")
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= MAX_NAME:
        raise ValueError(
            f"{place}.name must be a text of 1 to {MAX_NAME} characters, got {short(name)}"
        )
    return composed(name.strip())


def missing_values(place: str, values: Sequence[str | Labelled]) -> tuple[str, ...]:
    """Return the texts that stand for gaps, without blanks around them."""
    if len(values) > MAX_CATEGORIES:
        raise ValueError(f"{place} must have at most {MAX_CATEGORIES} entries, got {len(values)}")
    texts = [value.value if isinstance(value, Labelled) else value for value in values]
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{place} must contain texts, got {short(text)}")
    return tuple(dict.fromkeys(composed(str(text).strip()) for text in texts))


def _column(
    place: str, content: Field, declared: Constraints, own: Own, missing: Sequence[str]
) -> Column:
    """Return the column of a field whose properties have the right types."""
    notation = replace(_notation(place, content), zone=_zone(place, content, own))
    values = _values(place, content, declared.enum)
    column = Column(
        composed(content.name.strip()),
        content.type,
        own.role,
        own.unit or None,
        own.outside,
        required=declared.required,
        unique=declared.unique,
        values=values,
        pattern=None if declared.pattern is None else composed(declared.pattern),
        min_length=declared.min_length,
        max_length=declared.max_length,
        missing=(
            tuple(missing)
            if content.missing_values is None
            else missing_values(f"{place}missingValues", content.missing_values)
        ),
        notation=notation,
        unconfirmed=tuple(own.unconfirmed),
        labels=_labels(place, content),
    )
    column = _with_limits(place, column, declared)
    _check_texts(place, column)
    _check_outside(place, column)
    numeric = {
        "weight": "weights",
        "base_margin": "base margins",
        "target_upper": "latest times",
    }
    if column.role in numeric and column.kind != NUMBER:
        what = numeric[column.role]
        raise ValueError(f"{place}the {what} must be numbers; remove the role or the categories")
    return column if own.fill is None else replace(column, fill=_fill(place, column, own.fill))


def _notation(place: str, content: Field) -> Notation:
    """Return how the values are written."""
    date = content.format.removeprefix("fmt:")  # the prefix of version 0 of the standard
    if content.type != "date":
        if content.format != "default":
            raise ValueError(
                f"{place}format must be 'default' for the type {content.type!r}, got"
                f" {short(content.format)}"
            )
        date = Notation.date
    elif date == "default":
        date = Notation.date
    else:
        _check_date_format(place, date)
    marks = {"decimalChar": content.decimal_char, "groupChar": content.group_char}
    for name, mark in marks.items():
        if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in "+-"):
            raise ValueError(
                f"{place}{name} must be one character that is no letter, digit or sign, got"
                f" {short(mark)}"
            )
    if content.decimal_char == content.group_char and content.type == "number":
        raise ValueError(
            f"{place}decimalChar and groupChar must differ, got {content.group_char!r}"
        )
    true, false = (
        {composed(text.strip()) for text in words}
        for words in (content.true_values, content.false_values)
    )
    if content.type == "boolean" and (not true or not false or true & false):
        raise ValueError(f"{place}trueValues and falseValues must differ and not be empty")
    return Notation(
        content.decimal_char,
        content.group_char,
        content.bare_number,
        tuple(sorted(true)),
        tuple(sorted(false)),
        date,
    )


def _zone(place: str, content: Field, own: Own) -> str | None:
    """Return the zone in which times have their calendar day."""
    if own.timezone is None:
        return None
    if content.type != "date":
        raise ValueError(f"{place}fedlib.timezone needs the type date, got {content.type!r}")
    try:
        ZoneInfo(own.timezone)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:
        raise ValueError(
            f"{place}fedlib.timezone must be the name of a zone such as 'Europe/Berlin', got"
            f" {short(own.timezone)}"
        ) from error
    return own.timezone


def _check_date_format(place: str, text: str) -> None:
    """Raise ValueError for the format "any", and for directives that are no part of a date."""
    letters = {*re.findall("%(.?)", text, re.DOTALL)} - {"%"}
    if not (letters & {"Y", "y"}) or not letters <= set(DIRECTIVES) or len(text) > MAX_TEXT:
        raise ValueError(
            f"{place}format must be 'default' (yyyy-mm-dd) or consist of %Y or %y, %m, %d, %j, %b"
            f" and %B, got {short(text)}"
        )


def _values(place: str, content: Field, enum: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Return the accepted texts: the enum, or else the categories."""
    categories = content.categories
    listed: dict[str, list[Any]] = {
        name: [value.value if isinstance(value, Labelled) else value for value in given]
        for name, given in {"constraints.enum": enum, "categories": categories}.items()
        if given is not None
    }
    for name, values in listed.items():
        if (
            content.type not in ("string", "integer", "number")
            or not 1 <= len(values) <= MAX_CATEGORIES
        ):
            raise ValueError(
                f"{place}{name} must have 1 to {MAX_CATEGORIES} values of the type string, integer"
                f" or number, got {len(values)} of the type {content.type}"
            )
        listed[name] = [_category(f"{place}{name}", content, value) for value in values]
        if len(set(listed[name])) < len(values):
            raise ValueError(
                f"{place}{name} must not repeat a value; blanks around it do not count"
            )
    if len(listed) == 2 and not set(listed["constraints.enum"]) <= set(listed["categories"]):
        raise ValueError(f"{place}constraints.enum must be a subset of categories")
    return next(map(tuple, listed.values()), None)


def _labels(place: str, content: Field) -> dict[str, str]:
    """Return the labels of the categories that have one."""
    return {
        _category(f"{place}categories", content, one.value): one.label
        for one in content.categories or ()
        if isinstance(one, Labelled) and one.label
    }


def _category(place: str, content: Field, value: Any) -> str:
    """Return a category as the text that it has in a table."""
    if content.type == "string":
        if not isinstance(value, str):
            raise ValueError(f"{place} must contain texts, got {short(value)}")
        text = composed(value.strip())
    else:
        text = number_text(_number(place, content.type, value, Notation()))
    if not 1 <= len(text) <= MAX_TEXT:
        raise ValueError(
            f"{place} must contain texts of 1 to {MAX_TEXT} characters, got {short(value)}"
        )
    return text


def _number(place: str, kind: str, value: Any, notation: Notation) -> float:
    """Return a number or a date in a descriptor as the number that it has in a table."""
    accepted = {
        "date": f"be a date such as '{datetime(2024, 1, 31):{notation.date}}'",
        "integer": "be an integer within ±2**53",
    }.get(kind, f"be a number within ±{MAX_NUMBER:g}")
    try:
        if kind == "date":
            return float(_day(value, notation.date))
        if isinstance(value, str):
            value = value.strip().replace(notation.group or "", "").replace(notation.decimal, ".")
        number = float("nan") if isinstance(value, bool) or value is None else float(value)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"{place} must {accepted}, got {short(value)}") from error
    if (
        not isfinite(number)
        or abs(number) > MAX_NUMBER
        or (kind == "integer" and (number % 1 or abs(number) > 2**53))
    ):
        raise ValueError(f"{place} must {accepted}, got {short(value)}")
    return number + 0.0  # without a negative zero


def _day(value: Any, date_format: str) -> int:
    """Return the days from 1970-01-01 to a date in the format of the field or in ISO 8601."""
    try:
        return datetime.strptime(value, date_format).toordinal() - EPOCH
    except ValueError:
        return datetime.strptime(value, Notation.date).toordinal() - EPOCH


def _with_limits(place: str, column: Column, declared: Constraints) -> Column:
    """Return a column with its limits; truth values are 0 and 1."""
    if column.type == "boolean":
        if declared.minimum is not None or declared.maximum is not None:
            raise ValueError(f"{place}truth values have no minimum and maximum")
        return replace(column, low=0.0, high=1.0)
    ends: dict[str, float | None] = {}
    for end, name in (("low", "minimum"), ("high", "maximum")):
        value = getattr(declared, name)
        if value is not None and column.type == "string":
            raise ValueError(
                f"{place}constraints.{name} needs a number or a date, got a string field"
            )
        ends[end] = (
            None
            if value is None
            else _number(f"{place}constraints.{name}", column.type, value, column.notation)
        )
    low, high = ends["low"], ends["high"]
    if low is not None and high is not None and low > high:
        raise ValueError(f"{place}constraints.minimum must be at most the maximum")
    if column.values is not None and (low is not None or high is not None):
        raise ValueError(f"{place}an enum makes minimum and maximum superfluous; remove them")
    return replace(column, low=low, high=high)


def _check_texts(place: str, column: Column) -> None:
    """Raise ValueError for conditions on texts that are invalid or do not suit the type."""
    given = (column.pattern, column.min_length, column.max_length)
    if column.type != "string" and any(value is not None for value in given):
        raise ValueError(f"{place}pattern, minLength and maxLength need the type string")
    least, most = column.min_length or 0, column.max_length
    if least < 0 or (most is not None and most < least):
        raise ValueError(f"{place}minLength must be from 0 to maxLength")
    if column.pattern is not None:
        check_pattern(f"{place}constraints.pattern", column.pattern)


def _check_outside(place: str, column: Column) -> None:
    """Raise ValueError if there is no such treatment of values for the kind of column."""
    kind = (
        "numbers" if column.kind == NUMBER else "texts" if column.values is None else "categories"
    )
    accepted = OUTSIDE[kind]
    if kind == "numbers" and (column.limits is None or column.type == "boolean"):
        accepted = OUTSIDE["texts"]
    if column.outside not in accepted:
        raise ValueError(
            f"{place}fedlib.outside must be one of {', '.join(accepted)}, got {column.outside!r};"
            " clip needs a minimum or a maximum, and other an enum"
        )


def _fill(place: str, column: Column, fill: Any) -> float | str:
    """Return the value for gaps as the column has it."""
    place = f"{place}fedlib.fill"
    if column.kind == NUMBER:
        kind = "integer" if column.type == "boolean" else column.type
        if column.type == "boolean" and isinstance(fill, bool):
            fill = int(fill)
        number = _number(place, kind, fill, column.notation)
        low, high = column.limits or (-inf, inf)
        if not low <= number <= high:
            raise ValueError(f"{place} must be within the limits, got {short(fill)}")
        return number
    text = composed(fill.strip()) if isinstance(fill, str) else _plain(fill)
    # In a protected run, the category "other" exists in every enumerated column.
    if not text or (column.values is not None and text not in (*column.values, OTHER)):
        raise ValueError(f"{place} must be one of the categories, got {short(fill)}")
    return text


def _plain(number: bool | int | float) -> str:
    return "" if isinstance(number, bool) else number_text(number)


def _identifier(place: str, column: Column, own: Own) -> Column:
    """Return the column of the primary key: all values differ, and none is missing."""
    if own.role != "feature" or own.fill is not None:
        raise ValueError(f"{place}the primary key is the identifier; remove its role and its fill")
    if column.type not in ("string", "integer"):
        raise ValueError(
            f"{place}the primary key must have the type string or integer, got {column.type!r}"
        )
    if column.outside != "error":
        raise ValueError(f"{place}fedlib.outside must be error for the primary key")
    return replace(column, role=IDENTIFIER, required=True, unique=True)


def check_columns(fields: Sequence[str], columns: Sequence[Column], key: str | None) -> None:
    """Raise ValueError if columns contradict each other."""
    if len(set(fields)) < len(fields):
        repeated = Counter(fields).most_common(1)[0][0]
        raise ValueError(f"schema.fields has more than one field {short(repeated)}")
    if key is not None and key not in fields:
        raise ValueError(f"schema.primaryKey must be the name of a field, got {short(key)}")
    for role in ("target", "target_upper", "weight"):
        names = [column.name for column in columns if column.role == role]
        if len(names) > 1:
            raise ValueError(f"only one field can have the role {role!r}, got {short(names)}")
    roles = {column.role for column in columns}
    if "target_upper" in roles and "target" not in roles:
        raise ValueError("a field with the role 'target_upper' needs one with the role 'target'")
    if not any(column.role == "feature" for column in columns):
        raise ValueError("no field is left for the features: all have other roles")
