"""``fedlib flower``: an app for Flower."""

from __future__ import annotations

from pathlib import Path

import click

from fedlib.cli.common import FOLDER


@click.group()
def flower() -> None:
    """Run the protocols on Flower."""


@flower.command()
@click.argument("folder", type=FOLDER)
def new(folder: Path) -> None:
    """Write an app that `flwr run` accepts into a new FOLDER."""
    from fedlib.transports.flower_app import new as write_app

    try:
        write_app(folder)
    except FileExistsError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{folder}: cannot be written: {error}") from error
    click.echo(
        f"{folder}: start flower-superlink and flower-supernode before flwr run; see README.md"
    )
