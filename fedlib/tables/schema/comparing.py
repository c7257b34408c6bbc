"""Comparing: what differs between the columns of two schemas."""

from __future__ import annotations

from collections.abc import Sequence

from fedlib.core.texts import printable
from fedlib.tables.schema.columns import Column


def differences(columns: Sequence[Column], others: Sequence[Column]) -> list[str]:
    """Return what differs between columns here and there, one line per difference.

    Examples
    --------
    >>> differences([Column("x", "number")], [Column("x", "integer"), Column("y", "number")])
    ["column 'x': the type is number here and integer there", "column 'y' is only there"]
    """
    here, there = ({c.name: c.canonical for c in some} for some in (columns, others))
    lines = []
    for name in dict.fromkeys([*here, *there]):
        column = f"column {printable(name, 60)!r}"
        if name not in there or name not in here:
            lines.append(f"{column} is only {'here' if name in here else 'there'}")
            continue
        lines += [
            f"{column}: the {what} is {_shown(value)} here and {_shown(remote)} there"
            for (what, value), remote in zip(here[name].items(), there[name].values(), strict=True)
            if value != remote
        ]
    common = [[name for name in one if name in two] for one, two in ((here, there), (there, here))]
    return [*lines, "the order of the columns differs"] if common[0] != common[1] else lines


def _shown(value: object) -> str:
    """Return a property in a line of a difference."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "not declared" if value is None else printable(str(value), 60)
