"""Columns: what a field of a descriptor means for a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from fedlib.core.columns import NUMBER, TEXT
from fedlib.core.texts import printable

OTHER = "other"
IDENTIFIER = "identifier"


@dataclass(frozen=True)
class Notation:
    """How the values of a field are written in a text file; it has no effect on a run.

    Attributes
    ----------
    decimal : str
        The character before the fraction.
    group : str, optional
        The character between groups of digits.
    bare : bool
        Whether a number has nothing before and after it, such as a currency.
    true, false : tuple of str
        The words for truth values.
    date : str
        The format of dates, as for `datetime.datetime.strptime`.
    """

    decimal: str = "."
    group: str | None = None
    bare: bool = True
    true: tuple[str, ...] = ()
    false: tuple[str, ...] = ()
    date: str = "%Y-%m-%d"


@dataclass(frozen=True)
class Column:
    """A column of the rows of a run, as the study has agreed on it.

    Attributes
    ----------
    name : str
    type : str
        ``"number"``, ``"integer"``, ``"string"``, ``"boolean"`` or ``"date"``.
    role : str
        ``"feature"``, ``"target"``, ``"target_upper"``, ``"weight"``, ``"base_margin"`` or
        ``"identifier"``.
    unit : str, optional
        The unit of measurement.
    outside : str
        What becomes of a value that is not accepted: ``"error"``, ``"missing"`` (a gap), ``"clip"``
        (the nearest limit) or ``"other"`` (this category).
    fill : float or str, optional
        The value for the gaps in a protected run.
    required, unique : bool
        Whether gaps and repeated values are errors.
    low, high : float, optional
        The smallest and the largest accepted number; of a date, days since 1970-01-01.
    values : tuple of str, optional
        The only accepted texts.
    pattern : str, optional
        The regular expression (RE2) that a whole text must match.
    min_length, max_length : int, optional
        The accepted counts of characters of a text.
    missing : tuple of str
        The texts that stand for a gap, besides a blank cell.
    notation : Notation
    unconfirmed : tuple of str
        The properties that a person must still confirm.
    """

    name: str
    type: str
    role: str = "feature"
    unit: str | None = None
    outside: str = "error"
    fill: float | str | None = None
    required: bool = False
    unique: bool = False
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    missing: tuple[str, ...] = ()
    notation: Notation = field(default_factory=Notation)
    unconfirmed: tuple[str, ...] = ()

    @property
    def kind(self) -> int:
        """The kind of the column in a table: `NUMBER` or `TEXT`."""
        text = self.type == "string" or self.values is not None or self.role == IDENTIFIER
        return TEXT if text else NUMBER

    @property
    def drafted_classes(self) -> bool:
        """Whether no person has confirmed that a class without a name here is ``"other"``."""
        return self.role == "target" and "outside" in self.unconfirmed

    @property
    def categories(self) -> tuple[str, ...] | None:
        """The categories of an enumerated column, with ``"other"`` where it stands for the rest."""
        if self.values is None or self.outside != OTHER or OTHER in self.values:
            return self.values
        return (*self.values, OTHER)

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the largest accepted number; None if there is no limit."""
        if self.kind == TEXT or (self.low is None and self.high is None):
            return None
        return (-inf if self.low is None else self.low, inf if self.high is None else self.high)

    @property
    def canonical(self) -> dict[str, Any]:
        """What matters for a run, by the words that `Schema.difference` uses."""
        return {
            "type": self.type,
            "role": self.role,
            "unit": self.unit,
            "minimum": self.low,
            "maximum": self.high,
            "list of categories": self.values,
            "treatment of values outside": self.outside,
            "value for gaps": self.fill,
            "list of missing values": sorted({*self.missing} - {""}),
            "requirement of a value": self.required,
            "requirement of unique values": self.unique,
            "pattern": self.pattern,
            "minimum length": self.min_length,
            "maximum length": self.max_length,
        }

    def lacking(self) -> list[str]:
        """Return what a protected run needs and the column does not declare, for an error.

        Examples
        --------
        >>> Column("age", "number", low=0.0, unconfirmed=("minimum",)).lacking()
        ["a minimum and a maximum of 'age'", "the confirmation of minimum of 'age'"]
        """
        if self.role == IDENTIFIER:
            return []
        name, lacking = repr(printable(self.name, 60)), []
        if self.kind == TEXT and self.values is None:
            lacking.append(f"an enum of {name}")
        if self.kind == NUMBER and (self.low is None or self.high is None):
            lacking.append(f"a minimum and a maximum of {name}")
        elif self.kind == NUMBER and self.role == "feature" and self.low == self.high:
            lacking.append(
                f"a maximum of {name} above its minimum, or its role 'ignore' (got {self.low:g} for"
                " both)"
            )
        if self.unconfirmed:
            properties = printable(", ".join(self.unconfirmed), 200)
            lacking.append(f"the confirmation of {properties} of {name}")
        return lacking

    def protected(self) -> Column:
        """Return the column as a protected run applies it: nothing depends on single values.

        It must lack nothing (`lacking`).
        """
        if self.role == IDENTIFIER:
            return self
        if self.kind == TEXT:
            return replace(self, outside=OTHER)
        return replace(self, outside="missing" if self.type == "boolean" else "clip")
