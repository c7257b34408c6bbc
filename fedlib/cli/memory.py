"""``fedlib memory`` and ``fedlib ledger``: what a site remembers, and what a run has sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import click

from fedlib.cli.common import EXISTING, Flag, InputFile, Output, command, in_one_line, writing
from fedlib.cli.data import SourceOptions, as_argument, digest_of_rows
from fedlib.core.wording import printable


@command
def memory(
    data: Annotated[SourceOptions, as_argument],
    secure_key: Annotated[InputFile, "This site's private key NAME.key."] = None,
    unlock: Annotated[
        Flag,
        "Let the site take part in protected runs again after one has failed unexpectedly. Repair"
        " the cause first: each failure is a bit about the rows.",
    ] = False,
    forget_sums: Annotated[
        Flag,
        "Let equal secure sums be over other sites than before. Their difference is the values of"
        " the sites that are not in both.",
    ] = False,
    other_people: Annotated[
        Flag,
        "Declare that other people are in the rows of this source than before: budgets, counters"
        " and noise begin anew. A person in both is protected less.",
    ] = False,
) -> None:
    """Print what this site remembers about the rows in DATA, or unlock the site.

    DATA is a file or the address of a database. The memory is a file in $FEDLIB_STATE, by default
    ~/.local/state/fedlib. It belongs to the source of the rows, if there is one (--source), and
    else to the content of the file: all policies, protocols and runs share it.
    """
    from fedlib.core.messages import shown
    from fedlib.core.site_memory import OldMemory
    from fedlib.protection.privacy import Budget, epsilon_of
    from fedlib.protection.privacy.accounting import sums_of
    from fedlib.protection.secure.identities import KeyMemory

    with in_one_line(OldMemory, OSError, ValueError):
        source, digest = data.source_name, digest_of_rows(data.rows)
        if other_people and source is None:
            raise click.UsageError("--other-people is about a source; name it with --source")
        kept = data.memory(digest, secure_key)
        if other_people:
            kept.begin_anew(digest)
        if forget_sums:
            kept.forget("sum")
        charges = Budget(1.0, memory=kept).charges if kept.values("charge") else []
        counts = {
            kind: len(kept.values(kind)) for kind in ("declined", "sum", "noise", "rows", "people")
        }
        locks = [kept.lock] if secure_key is None else [kept.lock, KeyMemory(secure_key).lock]
        failed = {
            lock.path: lock.path.read_text(encoding="utf-8", errors="replace").splitlines()
            for lock in locks
            if lock is not None and lock.path.exists()
        }
    epsilon, rho = sums_of(charges)
    losses = f"epsilon={shown(epsilon)} and rho={shown(rho)}"
    click.echo(f"memory: {kept.path}")
    if source is not None:
        click.echo(f"source: {printable(source)}")
        click.echo(f"changes of the rows: {counts['rows'] - 1}")
        click.echo(f"declarations of other people: {counts['people']}")
    click.echo(f"charges: {len(charges)}, with {losses} in all")
    if rho:
        click.echo(f"  rho is epsilon={shown(epsilon_of(rho, 1e-6))} with delta=1e-06")
    click.echo(f"requests declined because of the rows: {counts['declined']}")
    click.echo(f"secure sums without noise: {counts['sum']}")
    click.echo(f"noise that is drawn once: {'yes' if counts['noise'] else 'no'}")
    for path, lines in failed.items():
        for line in lines:
            click.echo(f"failed: {printable(line)}")
        if unlock:
            path.unlink()
        click.echo("unlocked" if unlock else "the site is locked; see --unlock")


@partial(command, name="ledger")
def show_ledger(
    journal: Annotated[Path, EXISTING],
    out: Annotated[Output, "Write to this file (CSV) instead of printing."] = None,
) -> None:
    """Print the ledger of the run in a journal.

    JOURNAL is a file that `fedlib serve --journal` writes. It has all messages up to now, even if
    the server has died.
    """
    from fedlib.core.journal import read_ledger
    from fedlib.tables.columns import csv_bytes
    from fedlib.tables.files import write_file

    with in_one_line(ValueError):
        table = csv_bytes(read_ledger(journal).to_frame())
    if out is None:
        click.echo(table.decode(), nl=False)
    else:
        with writing(out):
            write_file(out, table)
