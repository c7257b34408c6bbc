"""``fedlib ledger``: the ledger of a run that has a journal, also while it is in progress."""

from __future__ import annotations

from pathlib import Path

import click

from fedlib.cli.common import EXISTING, FILE, check_folder, writing
from fedlib.core.journal import read_ledger
from fedlib.tables.columns import csv_bytes
from fedlib.tables.files import write_file


@click.command("ledger")
@click.argument("journal", type=EXISTING)
@click.option(
    "--out", type=FILE, callback=check_folder, help="Write to this file (CSV) instead of printing."
)
def show_ledger(journal: Path, out: Path | None) -> None:
    """Print the ledger of the run in a journal.

    JOURNAL is a file that `fedlib serve --journal` writes. It has all messages up to now, even if
    the server has died.
    """
    try:
        table = csv_bytes(read_ledger(journal).to_frame())
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if out is None:
        click.echo(table.decode(), nl=False)
    else:
        with writing(out):
            write_file(out, table)
