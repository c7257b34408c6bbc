"""``fedlib schema``: draft the schema of a study, and check a site's rows against it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import click

from fedlib.cli.common import EXISTING, OUTPUT, command, naming, writing

Sheet = Annotated[str | None, "The sheet of an Excel file; needed if there are several."]


@click.group()
def schema() -> None:
    """Draft the schema of a study, or check rows against it.

    A schema is a Data Resource of the standard Data Package, version 2, in JSON. It says which
    columns the rows of all sites have, with types, limits, categories, units and missing values.
    """


@partial(command, group=schema)
def draft(
    data: Annotated[Path, EXISTING],
    *,
    out: Annotated[Path, OUTPUT, "The file to write; an existing one is not replaced."] = Path(
        "schema.json"
    ),
    target: Annotated[str | None, "The column with the classes."] = None,
    ids: Annotated[str | None, "The column with the identifiers of the rows."] = None,
    weight: Annotated[str | None, "The column with the weights."] = None,
    sheet: Sheet = None,
    name: Annotated[str, "The name of the study."] = "study",
) -> None:
    """Write the draft of a schema for the rows in DATA.

    A draft contains no value of a single row. Limits are rounded outward, categories with fewer
    than 10 rows are left out, and columns that look like identifiers are not read. The output names
    the rows that the draft does not accept, such as those of a rare class. Each property under
    "unconfirmed" must be confirmed by a person, who then removes it from the list.
    """
    from fedlib.tables.files import write_file
    from fedlib.tables.schema.drafting import draft_schema, not_read

    if out.exists():
        raise click.UsageError(f"{out} exists; remove it or choose another name with --out")
    with naming(data):
        drafted = draft_schema(data, target, ids, weight, name, sheet)
    with writing(out):
        write_file(out, drafted.to_json())
    click.echo(f"{out}: {len(drafted.columns)} columns to confirm, {len(drafted.skipped)} not read")
    if ids is not None and drafted.identifier is None:
        click.echo(
            f"{ids!r} is no primary key, because its values repeat or are missing in a row: the"
            " draft has it with the role 'ignore'"
        )
    skipped = [column for column in drafted.skipped if column != ids]
    if skipped:
        click.echo(f"not read: {not_read(skipped)}")
    if problems := drafted.check(data, sheet=sheet).problems:
        click.echo(
            "rows that the draft does not accept, such as classes with fewer than 10 rows; add them"
            " to constraints.enum unless they are mistakes:"
        )
        for line in problems:
            click.echo(f"fix   {line}")


@partial(command, group=schema)
def check(
    file: Annotated[Path, EXISTING, {"metavar": "SCHEMA"}],
    data: Annotated[Path, EXISTING],
    sheet: Sheet = None,
) -> None:
    """Check whether the rows in DATA fit SCHEMA.

    Each line names a column, the count of its cells that do not fit, and the first rows with them,
    counted from 1. A line with "fix" needs a correction; "note" says what the schema changes. The
    lines depend on single rows, so they must not leave the site. The exit status is 1 if something
    must be fixed.
    """
    from fedlib.core.wording import printable
    from fedlib.tables.schema import Schema

    with naming(file):
        agreed = Schema.read(file)
    with naming(data):
        report = agreed.check(data, sheet=sheet)
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
