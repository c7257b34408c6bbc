"""Applying: a site's rows in the form on which the study has agreed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.core.columns import TEXT
from fedlib.core.threads import check_n_jobs
from fedlib.tables.files import Table
from fedlib.tables.schema.arrow import import_arrow
from fedlib.tables.schema.cells import Values, read_values
from fedlib.tables.schema.columns import IDENTIFIER, OTHER, Column
from fedlib.tables.schema.reading import Source
from fedlib.tables.schema.report import N_SHOWN, ColumnReport, Report

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
    return values, before, Report(source.n_rows, tuple(reports), ignored)


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
        return pd.Series(pd.Categorical(values, categories=column.categories))
    return pd.Series(values, dtype=object if column.kind == TEXT else None)


def _classes(column: Column, values: NDArray[Any]) -> NDArray[Any]:
    """Return the classes: numbers if the field has numbers, or else texts."""
    if column.type == "string":
        return values.astype(np.str_)
    return values.astype(np.float64)  # codes that are enumerated are texts until here
