"""``fedlib memory``: what a site remembers about its rows over all runs, and its lock."""

from __future__ import annotations

from pathlib import Path

import click

from fedlib.cli.common import EXISTING
from fedlib.core.texts import printable


@click.command()
@click.argument("data", type=EXISTING)
@click.option("--secure-key", type=EXISTING, help="This site's private key NAME.key.")
@click.option(
    "--unlock",
    is_flag=True,
    help="Let the site take part in protected runs again after one has failed unexpectedly. Repair"
    " the cause first: each failure is a bit about the rows.",
)
@click.option(
    "--forget-sums",
    is_flag=True,
    help="Let equal secure sums be over other sites than before. Their difference is the values of"
    " the sites that are not in both.",
)
def memory(data: Path, secure_key: Path | None, unlock: bool, forget_sums: bool) -> None:
    """Print what this site remembers about the rows in DATA, or unlock the site.

    The memory is a file in $FEDLIB_STATE, by default ~/.local/state/fedlib. It belongs to the
    content of the file DATA: all policies, protocols and runs share it.
    """
    from fedlib.core.messages import shown
    from fedlib.core.site_memory import OldMemory, TableMemory
    from fedlib.protection.privacy import Budget, epsilon_of
    from fedlib.protection.privacy.accounting import sums_of
    from fedlib.protection.secure.identities import KeyMemory

    try:
        kept = TableMemory.of_file(data, secure_key)
        if forget_sums:
            kept.forget("sum")
        charges = Budget(1.0, memory=kept).charges if kept.values("charge") else []
        counts = {kind: len(kept.values(kind)) for kind in ("declined", "sum", "noise")}
        locks = [kept.lock] if secure_key is None else [kept.lock, KeyMemory(secure_key).lock]
        failed = {
            lock.path: lock.path.read_text(encoding="utf-8", errors="replace").splitlines()
            for lock in locks
            if lock is not None and lock.path.exists()
        }
    except (OldMemory, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    epsilon, rho = sums_of(charges)
    losses = f"epsilon={shown(epsilon)} and rho={shown(rho)}"
    click.echo(f"memory: {kept.path}")
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
