"""Dataset-JSON 1.1 of CDISC: tables of clinical studies with the types of their columns.

A ``.json`` file is one object with columns and rows. In an ``.ndjson`` file, the first line has the
columns, and each further line is one row. Labels of columns have no meaning for a run.

Source: https://cdisc-org.github.io/DataExchange-DatasetJson/doc/dataset-json1-1.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedlib.core.wording import printable, without_mark
from fedlib.tables.typed import TypedTable, import_arrow

SUFFIXES = (".json", ".ndjson")
MAX_BYTES = 2**30  # JSON is read as a whole, and takes several times its size in memory
REMEDY = ", or save the rows as .csv or .parquet"


class _Version(msgspec.Struct):
    version: str = msgspec.field(default="", name="datasetJSONVersion")


class _Column(msgspec.Struct, rename="camel"):
    name: str
    data_type: str
    target_data_type: str | None = None


class _Dataset(msgspec.Struct):
    records: int
    columns: list[_Column]
    rows: list[list[bool | int | float | str | None]] = []


class _Kind(NamedTuple):
    """How the cells of a data type are read.

    ``json`` are their types in JSON, and ``form`` is the expression that their texts match.
    """

    json: tuple[type, ...]
    read: Callable[[Any], Any]
    accepted: str
    form: str = "(?s).*"


def _decimal(number: str | float) -> Decimal:
    """Return a number without the commas between thousands, which the standard allows."""
    return Decimal(str(number).replace(",", ""))


DAY, CLOCK = "[0-9]{4}(-[0-9]{2}){2}", r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
NUMERAL = r"[+-]?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?"
MOMENT = rf"{DAY}(T{CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}})?)?"
WHOLE = r"-?[0-9]{1,18}(\.0)?"
OTHER = "; export it with the dataType float, or string if it is an identifier"
PARTIAL = "; complete it, or export the column with the dataType string"
TEXT = _Kind((str,), str, "a text")
KINDS = {
    **dict.fromkeys(("string", "URI"), TEXT),
    **dict.fromkeys(("float", "double"), _Kind((int, float), float, "a number")),
    "integer": _Kind((int, float), int, f"an integer of at most 18 digits{OTHER}", WHOLE),
    "decimal": _Kind((str, int, float), _decimal, 'a number in a text, such as "1.50"', NUMERAL),
    "boolean": _Kind((bool,), bool, "true or false"),
    "date": _Kind((str,), date.fromisoformat, f"a complete date (yyyy-mm-dd){PARTIAL}", DAY),
    "time": _Kind((str,), time.fromisoformat, f"a time of day (hh:mm:ss){PARTIAL}", CLOCK),
    # Also a date without a time, because a run takes the calendar day of a time.
    "datetime": _Kind(
        (str,), datetime.fromisoformat, f"a time such as 2024-01-31T12:30:00{PARTIAL}", MOMENT
    ),
}
# Types that a receiver makes integers in SAS; here they stay dates and times.
CONVERTED = ("date", "datetime", "time")


def read_dataset_json(path: Path) -> TypedTable:
    """Return the columns of a Dataset-JSON file.

    Raises
    ------
    ValueError
        When the file is no Dataset-JSON 1.1, or its rows do not agree with its columns and with the
        count of records.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(
            f"the file must have at most {MAX_BYTES:,} bytes, got {size:,}; split it{REMEDY}"
        )
    data = without_mark(path.read_bytes())
    head, _, rest = data.partition(b"\n") if path.suffix.lower() == ".ndjson" else (data, b"", b"")
    try:
        version = msgspec.json.decode(head, type=_Version).version
        if not re.fullmatch(r"1\.1(\.(0|[1-9][0-9]*))?", version):
            raise ValueError(
                f"datasetJSONVersion must be 1.1, got {printable(version, 20)!r}; convert version"
                f" 1.0, such as by CDISC's program convert_1_0_to_1_1.py{REMEDY}"
            )
        dataset = msgspec.json.decode(head, type=_Dataset)
        rows = dataset.rows + msgspec.json.Decoder(list[Any]).decode_lines(rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"it is no Dataset-JSON: {printable(str(error), 200)}; export it again{REMEDY}"
        ) from error
    names = [column.name for column in dataset.columns]
    if len(rows) != dataset.records:
        raise ValueError(
            f"records is {dataset.records}, but there are {len(rows)} rows; the file is incomplete,"
            " so export the dataset again"
        )
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise ValueError(f"there is more than one column {printable(repeated[0], 60)!r}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} values for {len(names)} columns")
    columns, unreadable = {}, {}
    for j, column in enumerate(dataset.columns):
        try:
            columns[column.name] = _array(column, [row[j] for row in rows])
        except ValueError as error:
            columns[column.name] = import_arrow().nulls(len(rows))
            unreadable[column.name] = str(error)
    return TypedTable(columns, unreadable=unreadable)


def _array(column: _Column, cells: list[Any]) -> Any:
    """Return the cells of a column as an array of Arrow."""
    arrow, name, target = import_arrow(), column.data_type, column.target_data_type
    same = target in (None, name) or (target == "integer" and name in CONVERTED)
    if name not in KINDS or not same:
        raise ValueError(
            f"has the dataType {printable(name, 20)!r} and the targetDataType"
            f" {printable(str(target), 20)!r}, which the standard does not have; correct them"
        )
    kind, values = KINDS[name], list[Any]()
    for number, cell in enumerate(cells, 1):
        gap = cell is None or (cell == "" and kind is not TEXT)
        try:
            if not (gap or (type(cell) in kind.json and re.fullmatch(kind.form, str(cell)))):
                raise ValueError
            values.append(None if gap else kind.read(cell))
        except ValueError as error:
            raise ValueError(
                f"contains {printable(repr(cell), 40)} in row {number}, but its dataType {name}"
                f" needs {kind.accepted}"
            ) from error
    if name == "datetime" and len({one.tzinfo is None for one in values if one is not None}) > 1:
        raise ValueError("contains times with a zone and without one; use one kind")
    if values.count(None) == len(values):
        return arrow.nulls(len(values), arrow.string() if kind is TEXT else arrow.float64())
    try:
        array = arrow.array(values)
    except arrow.ArrowInvalid:  # more digits than a decimal of Arrow has
        return arrow.array([one if one is None else float(one) for one in values])
    return array.cast(arrow.timestamp("us", "UTC")) if getattr(array.type, "tz", None) else array
