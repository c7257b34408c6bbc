"""Applying: a site's rows in the form on which the study has agreed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.core.array_types import Ints
from fedlib.core.columns import TEXT
from fedlib.core.threads import check_n_jobs
from fedlib.core.wording import printable
from fedlib.tables.files import Table
from fedlib.tables.schema.cells import IDENTIFIER, OTHER, Column, Values, read_values
from fedlib.tables.schema.reading import Source
from fedlib.tables.typed import Labels, import_arrow

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
    labels : tuple of str
        One line per code whose label in the file is not that of the schema.

    Examples
    --------
    >>> report = Report(3, (ColumnReport("age", outside=1, clipped=1, rows={"clipped": (2,)}),))
    >>> print(report)
    column 'age': 1 number became the limit (row 2)
    """

    n_rows: int
    columns: tuple[ColumnReport, ...]
    ignored: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

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
        yield from self.labels
        if self.ignored:
            shown = ", ".join(repr(printable(name, 60)) for name in self.ignored[:20])
            more = f" and {len(self.ignored) - 20} more" if len(self.ignored) > 20 else ""
            yield f"columns that are not read: {shown}{more}"

    def __str__(self) -> str:
        """Return the lines of `problems` and `changes`."""
        return "\n".join((*self.problems, *self.changes))


# The roles whose columns must not have gaps.
NEEDED = ("target", "target_upper", "weight", "base_margin")
N_PROBLEMS = 20  # in the text of an error


def apply_columns(
    columns: Sequence[Column], source: Source, protected: bool
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], Report]:
    """Return the values of all columns by name, those before gaps are filled, and the changes.

    Cells without a treatment keep their value, or are gaps if they cannot be read; the report names
    them under `Report.problems`.

    Parameters
    ----------
    columns : sequence of Column
        The columns, of a protected run if ``protected``.
    source : Source
    protected : bool
        Whether gaps are filled, and cells that cannot be read are gaps.
    """

    def apply(column: Column) -> tuple[NDArray[Any], NDArray[Any], ColumnReport]:
        return _apply(column, source.cells.pop(column.name), protected)  # frees its texts

    # Arrow keeps what it has freed: here the blocks of the file, and later the cells.
    memory = import_arrow().default_memory_pool()
    memory.release_unused()
    # Arrow and NumPy work without the interpreter's lock.
    with ThreadPoolExecutor(check_n_jobs(-1)) as pool:
        applied = list(pool.map(apply, columns))
    memory.release_unused()
    names = [column.name for column in columns]
    filled, given, reports = zip(*applied, strict=True) if applied else ((), (), ())
    ignored = tuple(name for name in source.names if name not in set(names))
    values, before = dict(zip(names, filled, strict=True)), dict(zip(names, given, strict=True))
    labels = tuple(_other_labels(columns, source.labels))
    return values, before, Report(source.n_rows, tuple(reports), ignored, labels)


def _other_labels(columns: Sequence[Column], labels: Labels) -> Iterator[str]:
    """Yield a line per code that has another label in a file than in the schema."""
    for column in columns:
        found = labels.get(column.name, {})
        for code, label in column.labels.items():
            other = found.get(code, label)
            if other.strip().casefold() != label.strip().casefold():
                yield (
                    f"column {printable(column.name, 60)!r}: the code {printable(code, 60)} is"
                    f" {printable(other, 60)!r} in the file and {printable(label, 60)!r} in the"
                    " schema; if the meaning differs, correct the codes"
                )


def _apply(
    column: Column, cells: Any, protected: bool
) -> tuple[NDArray[Any], NDArray[Any], ColumnReport]:
    """Return the values of one column, those before gaps are filled, and what was changed."""
    read: Values = read_values(column, cells)
    values, masks = read.values, {"gaps": read.gaps}
    problems = []
    emptied = lacking = read.gaps & False
    if read.unreadable.any():
        masks["unreadable"] = read.unreadable
        if column.outside == "missing" or (protected and column.role != IDENTIFIER):
            emptied = read.unreadable
        else:
            problems.append("unreadable")
    if read.outside.any():
        masks["outside"] = read.outside
        if column.outside == "missing":
            emptied = emptied | read.outside
            values[read.outside] = None if column.kind == TEXT else np.nan
        elif column.outside == "clip":
            masks["clipped"] = read.outside
            values = np.clip(values, column.low, column.high)
        elif column.outside == OTHER and not column.drafted_classes:
            masks["other"] = read.outside
            values[read.outside] = OTHER
        else:
            problems.append("outside")
    if emptied.any():
        masks["emptied"] = emptied
    lacking, given = read.gaps | emptied, values
    if protected and column.fill is not None and lacking.any():
        masks["filled"] = lacking
        values = given.copy()
        values[lacking] = column.fill
        lacking = lacking & False
    if column.required or column.role in NEEDED:
        masks["lacking"] = lacking
    if column.unique:
        masks["repeated"] = pd.Series(values).duplicated().to_numpy() & pd.notna(values)
    problems += [name for name in ("lacking", "repeated") if name in masks and masks[name].any()]
    counts = {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}
    rows = {
        name: tuple((np.flatnonzero(mask)[:N_SHOWN] + 1).tolist())
        for name, mask in masks.items()
        if counts[name]
    }
    return values, given, ColumnReport(column.name, **counts, rows=rows, problems=tuple(problems))


def check(columns: Sequence[Column], report: Report, protected: bool) -> None:
    """Raise ValueError if there are cells without a treatment; the text contains no values.

    In a protected run, only rows that cannot take part are an error, because a site that fails says
    something about its rows.
    """
    if not protected:
        problems = report.problems
    else:
        needed = {c.name for c in columns if c.role in (*NEEDED, IDENTIFIER)}
        problems = Report(
            report.n_rows, tuple(column for column in report.columns if column.name in needed)
        ).problems
    if problems:
        shown = "; ".join(problems[:N_PROBLEMS])
        more = len(problems) - N_PROBLEMS
        raise ValueError(
            f"the rows do not fit the schema: {shown}{f'; and {more} more' if more > 0 else ''};"
            " correct the file, or declare fedlib.outside or missingValues in the schema"
        )


def to_table(
    columns: Sequence[Column], values: dict[str, NDArray[Any]], given: dict[str, NDArray[Any]]
) -> Table:
    """Return the columns by their roles; ``given`` are the values before gaps are filled."""
    features = {
        column.name: _feature(column, values[column.name])
        for column in columns
        if column.role == "feature"
    }
    margins = [values[column.name] for column in columns if column.role == "base_margin"]
    others = [column for column in columns if column.role not in ("feature", IDENTIFIER)]
    described = {
        column.name: features[column.name]
        if column.role == "feature" and given[column.name] is values[column.name]
        else _feature(column, given[column.name])
        for column in [*(c for c in columns if c.role == "feature"), *others]
    }
    roles = {column.role: column for column in columns if column.role != "feature"}
    names = ("target", "target_upper", "weight", IDENTIFIER)
    target, upper, weight, key = (roles.get(role) for role in names)
    y = None if target is None else _classes(target, values[target.name])
    return Table(
        pd.DataFrame(features, copy=False),  # the columns are not copied into one block
        y if upper is None or y is None else np.column_stack([y, values[upper.name]]),
        None if weight is None else values[weight.name],
        None if key is None else pd.Series(values[key.name], name=key.name, dtype=object),
        np.column_stack(margins) if margins else None,
        pd.DataFrame(described, copy=False),
    )


def _feature(column: Column, values: NDArray[Any]) -> pd.Series:
    """Return a feature; an enumerated one has pandas' categories, so that codes remain text."""
    if column.categories is not None:
        codes, texts = pd.factorize(values)  # faster than pandas makes categories of objects
        known = {text: code for code, text in enumerate(column.categories)}
        found: Ints = np.array([*(known[text] for text in texts), -1], np.int64)[codes]
        dtype = pd.CategoricalDtype([*column.categories])
        return pd.Series(pd.Categorical.from_codes(found, dtype=dtype))
    return pd.Series(values, dtype=object if column.kind == TEXT else None, copy=False)


def _classes(column: Column, values: NDArray[Any]) -> NDArray[Any]:
    """Return the classes: numbers if the field has numbers, or else texts."""
    if column.type == "string":
        return values.astype(np.str_)
    return values.astype(np.float64)  # codes that are enumerated are texts until here
