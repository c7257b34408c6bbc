"""``fedlib schema``: draft the schema of a study, and check a site's rows against it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import click

from fedlib.cli.common import EXISTING, OUTPUT, InputFile, command, naming, writing
from fedlib.cli.data import DataOptions, as_argument

Sheet = Annotated[str | None, "The sheet of an .xlsx or .ods file; needed if there are several."]


@click.group()
def schema() -> None:
    """Draft the schema of a study, or check rows against it.

    A schema is a Data Resource of the standard Data Package, version 2, in JSON. It says which
    columns the rows of all sites have, with types, limits, categories, units and missing values.
    """


@partial(command, group=schema)
def draft(
    data: Annotated[DataOptions, as_argument],
    *,
    out: Annotated[Path, OUTPUT, "The file to write; an existing one is not replaced."] = Path(
        "schema.json"
    ),
    target: Annotated[str | None, "The column with the classes."] = None,
    ids: Annotated[str | None, "The column with the identifiers of the rows."] = None,
    weight: Annotated[str | None, "The column with the weights."] = None,
    sheet: Sheet = None,
    dictionary: Annotated[
        InputFile, "The data dictionary of a REDCap project, if DATA is its raw export."
    ] = None,
    name: Annotated[str, "The name of the study."] = "study",
) -> None:
    """Write the draft of a schema for the rows in DATA, a file or the address of a database.

    A draft contains no value of a single row. Limits are rounded outward, categories with fewer
    than 10 rows are left out, and columns that look like identifiers are not read. The output names
    the rows that the draft does not accept, such as those of a rare class. Each property under
    "unconfirmed" must be confirmed by a person, who then removes it from the list. The data
    dictionary of a REDCap project says the types, choices, limits and identifiers of its export.
    """
    from fedlib.tables.files import write_file
    from fedlib.tables.schema.drafting import draft_schema, not_read
    from fedlib.tables.schema.redcap import Dictionary

    if out.exists():
        raise click.UsageError(f"{out} exists; remove it or choose another name with --out")
    rows = data.rows
    with naming(rows):
        drafted = draft_schema(rows, target, ids, weight, name, sheet, dictionary)
    with writing(out):
        write_file(out, drafted.to_json())
    click.echo(f"{out}: {len(drafted.columns)} columns to confirm, {len(drafted.skipped)} not read")
    if dictionary is not None:
        declared = Dictionary.read(dictionary)
        ids = ids or declared.key
    if ids is not None and drafted.identifier is None:
        click.echo(
            f"{ids!r} is no primary key, because its values repeat or are missing in a row: the"
            " draft has it with the role 'ignore'"
        )
    skipped = [column for column in drafted.skipped if column != ids]
    if dictionary is not None:
        names = [*(column.name for column in drafted.columns), *drafted.skipped]
        for line in declared.compare(names):
            click.echo(line)
        content = declared.declare(names)
        skipped = [name for name in skipped if not content.get(name, {}).get("unreadable")]
    if skipped:
        click.echo(f"not read: {not_read(skipped)}")
    if problems := drafted.check(rows, sheet=sheet).problems:
        click.echo(
            "rows that the draft does not accept, such as classes with fewer than 10 rows; add them"
            " to constraints.enum unless they are mistakes:"
        )
        for line in problems:
            click.echo(f"fix   {line}")


@partial(command, group=schema)
def check(
    file: Annotated[Path, EXISTING, {"metavar": "SCHEMA"}],
    data: Annotated[DataOptions, as_argument],
    sheet: Sheet = None,
) -> None:
    """Check whether the rows in DATA, a file or the address of a database, fit SCHEMA.

    Each line names a column, the count of its cells that do not fit, and the first rows with them,
    counted from 1. A line with "fix" needs a correction; "note" says what the schema changes. The
    lines depend on single rows, so they must not leave the site. The exit status is 1 if something
    must be fixed.
    """
    from fedlib.core.wording import printable
    from fedlib.tables.schema import Schema

    with naming(file):
        agreed = Schema.read(file)
    rows = data.rows
    with naming(rows):
        report = agreed.check(rows, sheet=sheet)
    for line in report.problems:
        click.echo(f"fix   {line}")
    for line in report.changes:
        click.echo(f"note  {line}")
    if agreed.unconfirmed:
        names = ", ".join(repr(printable(name, 60)) for name in [*agreed.unconfirmed][:20])
        click.echo(f"note  columns with unconfirmed properties: {names}")
    if report.problems:
        raise click.exceptions.Exit(1)
    click.echo(f"ok    {report.n_rows} rows fit the schema {agreed.digest[:16]}")
