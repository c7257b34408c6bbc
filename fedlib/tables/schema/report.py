"""Reports: what a site's rows have that a schema does not accept, for the site's eyes only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedlib.core.texts import printable

N_SHOWN = 5  # rows that a line names


@dataclass(frozen=True)
class ColumnReport:
    """What a column has that the schema does not accept, and what was changed.

    Attributes
    ----------
    name : str
    gaps : int
        The count of cells that are blank or a missing value.
    unreadable : int
        The count of cells that are not of the column's type.
    outside : int
        The count of values beyond the limits, or without a category.
    clipped, other, emptied, filled : int
        The counts of cells that were replaced by a limit, by the category ``"other"`` and by a gap,
        and of gaps that were replaced by the declared value.
    repeated : int
        The count of values that repeat an earlier one, if they must be unique.
    lacking : int
        The count of gaps that remain although a value is required.
    rows : mapping of str to tuple of int
        The first rows of each kind, counted from 1, by the names of the counts.
    problems : tuple of str
        The kinds for which the schema says no treatment, by the names of the counts.
    """

    name: str
    gaps: int = 0
    unreadable: int = 0
    outside: int = 0
    clipped: int = 0
    other: int = 0
    emptied: int = 0
    filled: int = 0
    repeated: int = 0
    lacking: int = 0
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def line(self, kind: str) -> str:
        """Return one line about the cells of a kind; it contains no values."""
        count = getattr(self, kind)
        shown = self.rows.get(kind, ())
        more = "…" if count > len(shown) else ""
        place = f" ({'row' if count == 1 else 'rows'} {', '.join(map(str, shown))}{more})"
        what = (WORDS[kind][0] if count == 1 else WORDS[kind][1]).format(count=count)
        remedy = REMEDIES.get(kind, "")
        return f"column {printable(self.name, 60)!r}: {what}{place if shown else ''}{remedy}"


# The words for one cell and for several.
WORDS = {
    "unreadable": (
        "{count} cell is not of the column's type",
        "{count} cells are not of the column's type",
    ),
    "outside": ("{count} value is not accepted", "{count} values are not accepted"),
    "lacking": ("{count} required value is missing", "{count} required values are missing"),
    "repeated": ("{count} value repeats an earlier one", "{count} values repeat an earlier one"),
    "emptied": ("{count} cell became a gap", "{count} cells became gaps"),
    "clipped": ("{count} number became the limit", "{count} numbers became the limits"),
    "other": ("{count} value became 'other'", "{count} values became 'other'"),
    "filled": ("{count} gap was filled", "{count} gaps were filled"),
}
REMEDIES = {
    "repeated": "; if values may repeat, remove primaryKey or constraints.unique, or give the"
    " column the role 'ignore'"
}
CHANGES = ("emptied", "clipped", "other", "filled")


@dataclass(frozen=True)
class Report:
    """What a site's rows have that a schema does not accept, for the site's operator only.

    It depends on single rows, so it must not leave the site.

    Attributes
    ----------
    n_rows : int
        The count of rows.
    columns : tuple of ColumnReport
        One report per column that was read.
    ignored : tuple of str
        The names of the file's columns that the schema does not read.

    Examples
    --------
    >>> report = Report(3, (ColumnReport("age", outside=1, clipped=1, rows={"clipped": (2,)}),))
    >>> print(report)
    column 'age': 1 number became the limit (row 2)
    """

    n_rows: int
    columns: tuple[ColumnReport, ...]
    ignored: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """One line per column and kind of cells that the schema neither accepts nor treats."""
        return tuple(column.line(kind) for column in self.columns for kind in column.problems)

    @property
    def changes(self) -> tuple[str, ...]:
        """One line per column and kind of change, and one for the columns that are not read."""
        return tuple(self._changes())

    def _changes(self) -> Iterator[str]:
        for column in self.columns:
            yield from (column.line(kind) for kind in CHANGES if getattr(column, kind))
        if self.ignored:
            shown = ", ".join(repr(printable(name, 60)) for name in self.ignored[:20])
            more = f" and {len(self.ignored) - 20} more" if len(self.ignored) > 20 else ""
            yield f"columns that are not read: {shown}{more}"

    def __str__(self) -> str:
        """Return the lines of `problems` and `changes`."""
        return "\n".join((*self.problems, *self.changes))
