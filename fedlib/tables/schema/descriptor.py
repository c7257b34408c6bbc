"""Descriptors: the parts of the standard that have a meaning for a run, and those refused.

A descriptor is a Data Resource of the standard Data Package, version 2, in JSON
(https://datapackage.org/standard/data-resource). The rules:

- A property with a meaning for a run must have the form that the standard prescribes.
- A property of the standard that cannot be obeyed is refused with its remedy. It is never ignored.
- Everything else, such as titles, licences and sources, is kept and has no effect.
- Descriptors come from strangers, so their size is bounded.

Regular expressions are those of RE2, whose time is linear in the length of a text. So no pattern of
a stranger can keep a site busy, as nested repetitions can with Python's module re.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from fedlib.core.wording import printable, without_mark
from fedlib.tables.typed import import_arrow

PROFILE = "https://datapackage.org/profiles/2.0/dataresource.json"
PROFILES = "https://datapackage.org/profiles/"
TABULAR = "tabular-data-resource"  # in version 1 of the standard
MAX_BYTES = 2**24  # of a descriptor
MAX_FIELDS = 2**16
MAX_CATEGORIES = 2**12  # of one field; also the limit of its missing values
MAX_NAME = 1000  # characters of a name
TYPES = ("number", "integer", "string", "boolean", "date")
ROLES = ("target", "target_upper", "weight", "base_margin", "feature", "ignore")

# What the standard defines and fedlib cannot obey, with the remedy.
REFUSED_RESOURCE = {
    "resources": "it is a Data Package; give the descriptor of one resource",
    "fields": 'it is a Table Schema; write it into a Data Resource, {"name": …, "schema": …}',
    "data": "rows belong into the file of each site",
}
REFUSED_SCHEMA = {
    "foreignKeys": "one file per site is read; remove it",
    "uniqueKeys": "use constraints.unique of a field, or primaryKey",
}
REFUSED_DIALECT = {
    "headerRows": "the names must be in one row, the first one",
    "commentRows": "use commentChar, or remove these rows from the file",
}
REFUSED_FIELD = {"delimiter": "lists are not supported", "itemType": "lists are not supported"}
REFUSED_CONSTRAINTS = {
    "exclusiveMinimum": "use minimum",
    "exclusiveMaximum": "use maximum",
    "jsonSchema": "objects and arrays are not supported",
}
HARMLESS = {"foreignKeys": ([],), "uniqueKeys": ([],), "headerRows": ([1],), "commentRows": ([],)}

Kind = TypeVar("Kind")
Scalar = bool | int | float | str


class Labelled(msgspec.Struct):
    """A missing value or a category with a label, which has no effect."""

    value: Scalar
    label: str = ""


class Constraints(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The constraints of a field."""

    required: bool = False
    unique: bool = False
    minimum: int | float | str | None = None
    maximum: int | float | str | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    enum: list[Scalar] | None = None


class Own(msgspec.Struct, forbid_unknown_fields=True):
    """What the standard lacks: the object ``fedlib`` of a field."""

    role: Literal["target", "target_upper", "weight", "base_margin", "feature", "ignore"] = (
        "feature"
    )
    unit: str | None = None
    timezone: str | None = None
    outside: Literal["missing", "other", "clip", "error"] = "error"
    fill: bool | int | float | str | None = None
    unconfirmed: list[str] = []


class Field(msgspec.Struct, rename="camel"):
    """A field that a run reads."""

    name: str
    type: str = "any"
    format: str = "default"
    missing_values: list[str | Labelled] | None = None
    categories: list[Scalar | Labelled] | None = None
    decimal_char: str = "."
    group_char: str | None = None
    bare_number: bool = True
    true_values: tuple[str, ...] = ("true", "True", "TRUE", "1")
    false_values: tuple[str, ...] = ("false", "False", "FALSE", "0")


class Dialect(msgspec.Struct, rename="camel"):
    """How the cells are separated in a text file."""

    delimiter: str | None = None
    quote_char: str = '"'
    double_quote: bool = True
    escape_char: str | None = None
    header: bool = True
    comment_char: str | None = None
    skip_initial_space: bool = False
    null_sequence: str | None = None
    line_terminator: Literal["\r\n", "\n", "\r"] = "\r\n"


class TableSchema(msgspec.Struct, rename="camel"):
    """The property ``schema`` of a resource."""

    fields: list[dict[str, Any]]
    missing_values: tuple[str | Labelled, ...] = ("",)
    primary_key: str | list[str] = []
    fields_match: str | list[str] = "subset"


def decode(data: bytes) -> dict[str, Any]:
    """Return the object in a JSON text.

    Raises
    ------
    ValueError
        When the text is too long or is no JSON object.

    Examples
    --------
    >>> decode(b"[1]")
    Traceback (most recent call last):
    ...
    ValueError: the descriptor must be a JSON object, got a list
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"the descriptor must have at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        content = msgspec.json.decode(without_mark(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the descriptor is no JSON text: {printable(str(error))}") from error
    if not isinstance(content, dict):
        raise ValueError(f"the descriptor must be a JSON object, got a {type(content).__name__}")
    return content


def check_resource(content: Mapping[str, Any]) -> tuple[TableSchema, Dialect, str | None]:
    """Return the schema, the dialect and the encoding of a descriptor.

    Raises
    ------
    ValueError
        When a property is refused or does not have the form that the standard prescribes.
    """
    refuse("", content, {} if "schema" in content else REFUSED_RESOURCE)
    refuse("", content, {"data": REFUSED_RESOURCE["data"]})
    profile = content.get("$schema", PROFILE)
    if not (
        isinstance(profile, str) and profile.startswith(PROFILES) and "/dataresource." in profile
    ):
        raise ValueError(f"$schema must be {PROFILE}, got {short(profile)}")
    if content.get("profile", TABULAR) not in (TABULAR, "data-resource"):
        raise ValueError(f"profile must be {TABULAR!r}, got {short(content['profile'])}")
    if content.get("type", "table") != "table":
        raise ValueError(f"type must be 'table', got {short(content['type'])}")
    for name in ("schema", "dialect"):
        if not isinstance(content.get(name, {}), dict):
            raise ValueError(
                f"{name} must be an object within the descriptor, got {short(content[name])}"
            )
    if "schema" not in content:
        raise ValueError("the property schema is missing; it contains the fields")
    refuse("schema.", content["schema"], REFUSED_SCHEMA)
    schema = convert("schema", content["schema"], TableSchema)
    if not 1 <= len(schema.fields) <= MAX_FIELDS:
        raise ValueError(
            f"schema.fields must have 1 to {MAX_FIELDS} entries, got {len(schema.fields)}"
        )
    return schema, _dialect(content.get("dialect", {})), _encoding(content.get("encoding"))


def _dialect(content: Mapping[str, Any]) -> Dialect:
    refuse("dialect.", content, REFUSED_DIALECT)
    dialect = convert("dialect", content, Dialect)
    for name, text in {
        "delimiter": dialect.delimiter,
        "quoteChar": dialect.quote_char,
        "escapeChar": dialect.escape_char,
    }.items():
        if text is not None and (len(text) != 1 or not text.isascii() or text in "\r\n\0"):
            raise ValueError(f"dialect.{name} must be one ASCII character, got {short(text)}")
    if dialect.comment_char == "":
        raise ValueError("dialect.commentChar must have at least one character, got ''")
    return dialect


def _encoding(name: Any) -> str | None:
    """Return the name of an encoding of text that Python knows."""
    if name is None:
        return None
    try:
        "".encode(name)  # refuses codecs that are no encodings of text, such as zip
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"encoding must be the name of an encoding such as 'utf-8', got {short(name)}"
        ) from error
    return str(name)


def convert(place: str, content: Any, kind: type[Kind]) -> Kind:
    """Return a part of a descriptor as a Struct; an error names the place."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$", f"`{place}")
        place = "" if "`" + place in text else f"{place}: "
        raise ValueError(printable(f"{place}{text[:1].lower()}{text[1:]}", 300)) from error


def refuse(place: str, content: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    """Raise ValueError if an object has a property that cannot be obeyed."""
    for name, remedy in refused.items():
        if name in content and content[name] not in HARMLESS.get(name, ()):
            raise ValueError(f"{place}{name} cannot be obeyed: {remedy}")


def only(place: str, content: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ValueError if an object has a property that is not known."""
    known = tuple(known)
    for name in content:
        if name not in known:
            raise ValueError(
                f"{place}{printable(name, 60)} is unknown; known are {', '.join(known)}"
            )


def short(value: object) -> str:
    """Return a value from a descriptor for an error."""
    return printable(repr(value), 60)


MAX_PATTERN = 1000  # characters


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
