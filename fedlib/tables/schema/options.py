"""Options of reading next to a schema, which says itself how its columns are read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedlib.tables.read_options import ReadOptions
from fedlib.tables.schema.schema import Schema

# Where a schema has what the options of reading say.
IN_SCHEMA = {
    "columns": "give the role 'ignore' to the fields of the other columns",
    "header": "declare header in its dialect",
    "skip_lines": "remove the lines from the file",
    "separator": "declare delimiter in its dialect",
    "decimal": "declare decimalChar in the fields",
    "encoding": "declare encoding in it",
    "na_values": "declare missingValues in it",
    "text": "give the type string or an enum to the fields",
}


def check_options(schema: Schema, options: ReadOptions) -> None:
    """Raise ValueError if options say something else than a schema.

    They may name the columns as the schema does, and the sheet of an Excel file.

    Examples
    --------
    >>> field = {"name": "ill", "type": "integer", "fedlib": {"role": "target"}}
    >>> schema = Schema({"schema": {"fields": [{"name": "age", "type": "integer"}, field]}})
    >>> check_options(schema, ReadOptions(target="ill"))
    >>> check_options(schema, ReadOptions(target="sick", sample_weight="n", decimal=","))
    Traceback (most recent call last):
    ...
    ValueError: a schema says how its columns are read; these options do not fit: target 'sick' \
(the schema has 'ill'), sample-weight 'n' (the schema has no such column), decimal (declare \
decimalChar in the fields); how a file is written, such as its separator, this site declares in \
its own copy of the schema, which --schema names
    """
    roles: dict[str, Any] = {
        "target": schema.target,
        "target_upper": schema.target_upper,
        "sample_weight": schema.weight,
        "ids": schema.identifier,
        "base_margin": schema.base_margin or None,
    }
    wrong = []
    for field in fields(ReadOptions):
        option, value = field.name.replace("_", "-"), getattr(options, field.name)
        if field.name in roles and value not in (None, known := roles[field.name]):
            has = "no such column" if known is None else repr(known)
            wrong.append(f"{option} {value!r} (the schema has {has})")
        elif field.name in IN_SCHEMA and value not in (None, field.default, ()):
            wrong.append(f"{option} ({IN_SCHEMA[field.name]})")
    if wrong:
        raise ValueError(
            f"a schema says how its columns are read; these options do not fit: {', '.join(wrong)};"
            " how a file is written, such as its separator, this site declares in its own copy of"
            " the schema, which --schema names"
        )
