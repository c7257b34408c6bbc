"""Columns of a query's result: from the values that a driver gives to Arrow arrays.

A column has one kind, which its values or the type of the server decide. What fits none is refused
with its remedy, and only if a run uses the column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from fedlib.core.columns import MAX_EXACT
from fedlib.tables.typed import TypedTable, import_arrow

MAX_DIGITS = 76  # of a decimal number in Arrow
SECOND = 10**6  # in microseconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The kinds of columns of PostgreSQL, by the names of its types; further ones by the category.
POSTGRESQL = {
    **dict.fromkeys(("int2", "int4", "int8", "oid"), "integer"),
    **dict.fromkeys(("float4", "float8"), "float"),
    **dict.fromkeys(("time", "interval"), "duration"),
    "numeric": "decimal",
    "bool": "truth value",
    "date": "date",
    "timestamp": "time",
    "timestamptz": "instant",
    "bpchar": "padded text",
    "uuid": "text",
}
POSTGRESQL_CATEGORIES = {"S": "text", "E": "text"}  # the strings and the enumerations
REMEDIES = {
    "money": "cast it to numeric in the query",
    "bytea": "leave it out, or encode it in the query",
    "timetz": "cast it to time in the query",
}
# The kinds of values of other drivers, by the types of Python.
PYTHON = {
    bool: "truth value",
    int: "integer",
    float: "float",
    Decimal: "decimal",
    str: "text",
    UUID: "text",
    date: "date",
    datetime: "time",
    time: "duration",
    timedelta: "duration",
}
FLOATS, DECIMALS = {"integer", "float"}, {"integer", "decimal"}

DAY = r"\d{4}-\d\d-\d\d"
CLOCK = r"\d\d:\d\d:\d\d(?:\.\d{1,6})?"
INSTANT = rf"^(?P<local>{DAY} {CLOCK})(?P<sign>[-+])(?P<h>\d\d)(?::(?P<m>\d\d))?(?::(?P<s>\d\d))?$"
DURATION = (
    r"^(?:(?P<d>[-+]?\d+) days? ?)?"
    r"(?:(?P<sign>[-+]?)(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)(?:\.(?P<f>\d+))?)?$"
)
DIGITS = r"^[-+]?(?P<whole>\d*)\.?(?P<part>\d*)$"
OUT_OF_RANGE = (
    "it contains infinity or a date before the year 1 or after 9999, which no calendar of Python"
    " has; replace it by NULL in the query, such as NULLIF(x, 'infinity')"
)


class Unreadable(Exception):
    """The values of a column cannot be used; the text says why, and the remedy."""


class ResultColumn:
    """The cells of one column of a result, which arrive in blocks.

    Parameters
    ----------
    of_type : tuple of str, optional
        The name and the category of the column's type in PostgreSQL, if the values are arrays with
        the texts of this server. Otherwise the values say what they are.
    """

    def __init__(self, of_type: tuple[str, str] | None = None):
        self._convert: Callable[[Any], tuple[str, Any]] = from_values
        if of_type is not None:
            self._convert = lambda values: from_texts(values, *of_type)
        self._kinds: set[str] = set()
        self._blocks: list[tuple[str, Any]] = []  # a decimal number is a text until all are known
        self._n_rows = 0
        self.problem = ""

    def add(self, values: Sequence[Any]) -> None:
        """Add a block of cells, None for gaps."""
        self._n_rows += len(values)
        if self.problem:
            return
        try:
            gaps = getattr(values, "null_count", None)
            if gaps == len(values) if gaps is not None else not any(v is not None for v in values):
                self._blocks.append(("", import_arrow().nulls(len(values))))
                return
            kind, block = self._convert(values)
            self._kinds.add(kind)
            self._blocks.append((kind, block))
        except Unreadable as error:
            self.problem, self._blocks = str(error), []

    def array(self) -> Any:
        """Return all cells as an array of Arrow: nulls if there is a `problem`, or no values."""
        arrow = import_arrow()
        try:
            if self._kinds and not self.problem:
                return self._united(arrow)
        except Unreadable as error:
            self.problem = str(error)
        self._blocks = []
        return arrow.nulls(self._n_rows)

    def _united(self, arrow: Any) -> Any:
        blocks, kinds, self._blocks = [block for _, block in self._blocks], self._kinds, []
        if kinds <= DECIMALS and "decimal" in kinds:
            return _decimals([block.cast(arrow.string()) for block in blocks])
        if kinds == FLOATS:
            blocks = [_as_float(block) for block in blocks]
        elif len(kinds) > 1:
            raise _mixed(kinds)
        (kind,) = {block.type for block in blocks} - {arrow.null()}
        return arrow.chunked_array([block.cast(kind) for block in blocks])


def _mixed(kinds: Iterable[str]) -> Unreadable:
    return Unreadable(
        f"it contains values of several types ({', '.join(sorted(kinds))}); cast them to one type"
        " in the query"
    )


def _as_float(block: Any) -> Any:
    """Return integers as floats, if these are equal to them."""
    arrow = import_arrow()
    try:
        return block.cast(arrow.float64())
    except arrow.ArrowInvalid:
        raise Unreadable(
            f"it contains fractions and integers above {MAX_EXACT}; cast them to one type in the"
            " query"
        ) from None


def from_values(values: Sequence[Any]) -> tuple[str, Any]:
    """Return the kind of some values of Python, which are not all None, and their array.

    Raises
    ------
    Unreadable
        When they have several kinds, or one without an array.

    Examples
    --------
    >>> kind, array = from_values([1, None, 2.5])
    >>> kind, array.to_pylist()
    ('float', [1.0, None, 2.5])
    """
    arrow = import_arrow()
    types = {type(value) for value in values} - {type(None)}
    if unknown := [kind.__name__ for kind in types if kind not in PYTHON]:
        raise _other(", ".join(sorted(unknown)))
    kinds = {PYTHON[kind] for kind in types}
    zones = {getattr(value, "tzinfo", None) is not None for value in values if value is not None}
    if zones == {True} and kinds == {"time"}:
        moments = [value and (value - EPOCH) // timedelta(microseconds=1) for value in values]
        return "instant", arrow.array(moments, arrow.timestamp("us", "UTC"))
    if True in zones:
        raise Unreadable("it contains times with a zone beside others; cast it in the query")
    if kinds == FLOATS:
        numbers = [value for value in values if isinstance(value, int)]
        if any(abs(value) > MAX_EXACT for value in numbers):
            raise _mixed(kinds)
        kinds = {"float"}
    elif kinds == DECIMALS:
        kinds = {"decimal"}
    if len(kinds) > 1:
        raise _mixed(kinds)
    (kind,) = kinds
    try:
        return kind, _of_kind(values, kind)
    except OverflowError:
        return "decimal", arrow.array([value if value is None else str(value) for value in values])
    except UnicodeEncodeError:
        raise Unreadable("it contains text that is no Unicode; cast it in the query") from None


def _of_kind(values: Sequence[Any], kind: str) -> Any:
    """Return the array of values of one kind."""
    arrow = import_arrow()
    if kind == "integer":
        return arrow.array(values, arrow.int64())
    if kind == "float":
        floats = [value if value is None else float(value) for value in values]
        return _finite(arrow.array(floats, arrow.float64()))
    if kind == "decimal":
        texts = [value if value is None else f"{Decimal(value):f}" for value in values]
        return arrow.array(texts, arrow.string())
    if kind == "text":
        return arrow.array([value if value is None else str(value) for value in values])
    if kind == "duration":
        values = [
            timedelta(hours=v.hour, minutes=v.minute, seconds=v.second, microseconds=v.microsecond)
            if isinstance(v, time)
            else v
            for v in values
        ]
        return arrow.array(values, arrow.duration("us"))
    types = {"truth value": arrow.bool_(), "date": arrow.date32(), "time": arrow.timestamp("us")}
    return arrow.array(values, types[kind])


def from_texts(texts: Any, name: str, category: str) -> tuple[str, Any]:
    """Return the kind of a column of PostgreSQL, and the array of some of its texts.

    The texts are as the server writes them with ``DateStyle`` ISO and ``IntervalStyle`` postgres.

    Parameters
    ----------
    texts : array of Arrow
        Texts, and nulls for gaps.
    name, category : str
        Those of the type in the catalogue ``pg_type``.

    Raises
    ------
    Unreadable
        When the type or the values have no array.

    Examples
    --------
    >>> import pyarrow as pa
    >>> kind, array = from_texts(pa.array(["1 day 02:00:00", None]), "interval", "T")
    >>> kind, array.to_pylist()
    ('duration', [datetime.timedelta(days=1, seconds=7200), None])
    """
    arrow = import_arrow()
    kind = POSTGRESQL.get(name) or POSTGRESQL_CATEGORIES.get(category)
    if kind is None:
        raise _other(f"PostgreSQL's {name}", REMEDIES.get(name))
    if kind == "integer":
        return kind, texts.cast(arrow.int64())
    if kind == "float":
        return kind, _finite(texts.cast(arrow.float64()))
    if kind == "truth value":
        return kind, arrow.compute.equal(texts, "t")
    if kind == "date":
        return kind, _matching(texts, f"^{DAY}$").cast(arrow.date32())
    if kind == "time":
        return kind, _matching(texts, f"^{DAY} {CLOCK}$").cast(arrow.timestamp("us"))
    if kind == "instant":
        return kind, _instants(texts)
    if kind == "duration":
        return kind, _durations(texts)
    if kind == "padded text":
        return "text", arrow.compute.utf8_rtrim(texts, " ")
    return kind, texts


def _other(name: str, remedy: str | None = None) -> Unreadable:
    return Unreadable(
        f"its type is {name}, and not a number, a text, a date, a time or a truth value;"
        f" {remedy or 'cast it in the query, such as to text, or leave it out'}"
    )


def _matching(texts: Any, pattern: str) -> Any:
    """Return the texts, all of which must match a pattern of dates."""
    arrow = import_arrow()
    if not arrow.compute.all(arrow.compute.match_substring_regex(texts, pattern)).as_py():
        raise Unreadable(OUT_OF_RANGE)
    return texts


def _groups(texts: Any, pattern: str, reason: str) -> tuple[Callable[[str], Any], np.ndarray]:
    """Return a function with the parts of all texts by name, and which of the texts are gaps."""
    arrow = import_arrow()
    found = arrow.compute.extract_regex(texts, pattern)
    if found.null_count > texts.null_count:
        raise Unreadable(reason)
    return lambda name: arrow.compute.struct_field(found, name), texts.is_null().to_numpy(
        zero_copy_only=False
    )


def _integers(texts: Any) -> np.ndarray:
    """Return texts as integers; 0 for an empty text and for a gap."""
    arrow = import_arrow()
    filled = arrow.compute.fill_null(texts, "")
    plain = arrow.compute.replace_substring_regex(filled, r"^[+]|^$", "0")
    numbers: np.ndarray = plain.cast(arrow.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _clock(part: Callable[[str], Any]) -> np.ndarray:
    """Return hours, minutes and seconds with their sign in seconds."""
    seconds = 3600 * _integers(part("h")) + 60 * _integers(part("m")) + _integers(part("s"))
    return seconds * _sign(part)


def _sign(part: Callable[[str], Any]) -> np.ndarray:
    return np.where(part("sign").to_numpy(zero_copy_only=False) == "-", -1, 1)


def _instants(texts: Any) -> Any:
    """Return moments in UTC; each text has the offset of its zone."""
    arrow = import_arrow()
    part, gaps = _groups(texts, INSTANT, OUT_OF_RANGE)
    local = part("local").cast(arrow.timestamp("us")).cast(arrow.int64())
    moments = local.fill_null(0).to_numpy(zero_copy_only=False) - SECOND * _clock(part)
    return arrow.array(moments, arrow.int64(), mask=gaps).cast(arrow.timestamp("us", "UTC"))


def _durations(texts: Any) -> Any:
    """Return durations; a day has 24 hours, and a month no fixed count of days."""
    arrow = import_arrow()
    part, gaps = _groups(
        texts,
        DURATION,
        "it contains intervals with months or years, which have no fixed length, or infinite ones;"
        " compute days in the query, such as by the difference of two dates",
    )
    fractions = _integers(arrow.compute.utf8_rpad(part("f"), 6, "0")) * _sign(part)
    length = SECOND * (86400 * _integers(part("d")) + _clock(part)) + fractions
    return arrow.array(length, arrow.int64(), mask=gaps).cast(arrow.duration("us"))


def _finite(numbers: Any) -> Any:
    """Return floats with gaps in place of NaN."""
    arrow = import_arrow()
    if arrow.compute.any(arrow.compute.is_inf(numbers)).as_py():
        raise Unreadable(
            "it contains infinity, which is no number; replace it by NULL in the query, such as"
            " NULLIF(x, 'Infinity')"
        )
    gap = arrow.scalar(None, arrow.float64())
    return arrow.compute.if_else(arrow.compute.is_nan(numbers), gap, numbers)


def _decimals(blocks: list[Any]) -> Any:
    """Return texts of numbers as decimals, or as floats if there is NaN, which becomes a gap."""
    arrow = import_arrow()
    texts = arrow.chunked_array(blocks)
    lower = arrow.compute.utf8_lower(texts)
    if arrow.compute.any(arrow.compute.match_substring_regex(lower, "nan|inf")).as_py():
        return arrow.chunked_array([_finite(one.cast(arrow.float64())) for one in blocks])
    digits = arrow.compute.extract_regex(texts, DIGITS)
    lengths = [
        arrow.compute.max(
            arrow.compute.utf8_length(arrow.compute.struct_field(digits, name))
        ).as_py()
        for name in ("whole", "part")
    ]
    if sum(lengths) > MAX_DIGITS:
        raise Unreadable(
            f"its numbers have more than {MAX_DIGITS} digits; cast it to double precision or round"
            " it in the query"
        )
    kind = arrow.decimal128 if sum(lengths) <= 38 else arrow.decimal256
    return texts.cast(kind(max(sum(lengths), 1), lengths[1]))


def digest_of_table(table: TypedTable) -> str:
    """Return the SHA-256 digest of the ordered rows of a table, in hexadecimal digits.

    It depends on the names, the types and the cells of the columns, and not on how Arrow divides
    them into blocks.

    Examples
    --------
    >>> import pyarrow as pa
    >>> blocks = pa.chunked_array([["a"], [None, "b"]])
    >>> one, other = TypedTable({"x": blocks}), TypedTable({"x": blocks.combine_chunks()})
    >>> digest_of_table(one) == digest_of_table(other)
    True
    """
    digest = hashlib.sha256()
    for name, column in table.columns.items():
        blocks = getattr(column, "chunks", [column])
        digest.update(json.dumps([name, str(column.type), len(column)]).encode())
        for parts in zip(*map(_bytes_of, blocks), strict=True):
            for part in parts:
                digest.update(part)
    return digest.hexdigest()


def _bytes_of(block: Any) -> Iterator[bytes]:
    """Yield which cells are gaps, the lengths of texts, and the values of an array."""
    arrow = import_arrow()
    types = arrow.types
    yield block.is_null().to_numpy(zero_copy_only=False).tobytes()
    values = block.drop_null()
    if types.is_temporal(values.type):
        width = arrow.int32() if values.type.bit_width == 32 else arrow.int64()
        values = values.cast(width)
    if types.is_floating(values.type) or types.is_integer(values.type):
        yield b""
        yield values.to_numpy(zero_copy_only=False).tobytes()
        return
    texts = values.cast(arrow.large_string())
    yield arrow.compute.binary_length(texts).to_numpy(zero_copy_only=False).tobytes()
    yield "".join(texts.to_pylist()).encode()
