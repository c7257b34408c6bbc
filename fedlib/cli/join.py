"""``fedlib join``: take part in a run as one site."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlib.cli.common import (
    CLIENT,
    EXISTING,
    FILE,
    FOLDER,
    check_folder,
    extra,
    options_for_rows,
    printable,
    read_rows,
    writing,
)

if TYPE_CHECKING:
    from fedlib.files import Table
    from fedlib.messages import Message
    from fedlib.protocol import Client

__all__ = ["join"]

EXTENDED = "fedlib.cli.join.extended"


class JoinCommand(click.Command):
    """A command that also takes the arguments of all protocols' clients as options.

    These options require the import of all protocols, which takes time. So they are added only to
    the help text, and when the command line contains an option that the command does not define.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption:
            ctx.meta[EXTENDED] = True
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ctx.meta[EXTENDED] = True
        super().format_options(ctx, formatter)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        if ctx.meta.get(EXTENDED) is True:
            from fedlib.cli.options import client_options

            ctx.meta[EXTENDED] = client_options()
        return [*params[:-1], *ctx.meta.get(EXTENDED, ()), params[-1]]


@click.command(cls=JoinCommand)
@click.argument("url")
@options_for_rows
@click.option(
    "--labels-out",
    type=FILE,
    callback=check_folder,
    help="The file (.csv or .npy) for the cluster of each row, in the order of the rows.",
)
@click.option("--token-file", type=EXISTING, help="The file with this site's token.")
@click.option("--passive", is_flag=True, help="Receive the result without sharing any data.")
@click.option(
    "--protocol",
    help="The only protocol to which this site agrees. With pipeline/NAME or summary, the features"
    " may be text and have gaps. aligned/NAME is a protocol that first aligns the rows.",
)
@click.option(
    "--ca", type=EXISTING, help="The certificate (PEM) of the authority that certified the server."
)
@click.option(
    "--state-dir",
    type=FOLDER,
    help="A folder for this site's state, so that a restarted site continues where it stopped.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds during which calls are repeated while the server does not answer.",
)
@click.option("--insecure", is_flag=True, help="Allow plain HTTP to other machines.")
@click.option("--proxy", help="The proxy that leads to the server, http://host:port.")
def join(
    url: str,
    data: Path,
    columns: str | None,
    target: str | None,
    sample_weight: str | None,
    ids: str | None,
    no_header: bool,
    labels_out: Path | None,
    token_file: Path | None,
    passive: bool,
    protocol: str | None,
    **options: Any,
) -> None:
    """Take part in the run at URL as one site.

    The token is read from --token-file, or else from the environment variable FEDLIB_TOKEN.
    """
    arguments = _client_arguments(options)
    secret = _read_token(token_file)
    raw = protocol is not None and _check_protocol(protocol)
    table = read_rows(data, columns, target, sample_weight, ids, no_header, raw)

    def make(served: str) -> Client:
        from fedlib.site import make_client  # imports the protocols, which takes a second

        return make_client(served, table, arguments, agreed=protocol, passive=passive)

    if protocol is not None:  # so that invalid data are reported before any call
        try:
            make(protocol)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    state = _take_part(url, make, secret, **options)
    if labels_out:
        _write_labels(labels_out, state, table)
    click.echo("finished", err=True)


def _client_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments of the client out of the options and return them."""
    names = [name for name in options if name.startswith(CLIENT)]
    arguments = {name.removeprefix(CLIENT): options.pop(name) for name in names}
    return {name: value for name, value in arguments.items() if value is not None}


def _read_token(file: Path | None) -> str:
    text = file.read_text(errors="replace") if file else os.environ.get("FEDLIB_TOKEN", "")
    if not text.strip():
        raise click.UsageError("the token is missing: use --token-file or FEDLIB_TOKEN")
    return text.strip()


def _check_protocol(protocol: str) -> bool:
    """Return whether the protocol takes raw tables; refuse an unknown protocol."""
    from fedlib.federated import protocols
    from fedlib.site import find_estimator, takes_raw_tables

    if find_estimator(protocol) is None:
        known = ", ".join(protocols())
        raise click.UsageError(
            f"--protocol must be one of {known}, or pipeline/ or aligned/ and one of them; got"
            f" {protocol!r}"
        )
    return takes_raw_tables(protocol)


def _take_part(
    url: str,
    make: Callable[[str], Client],
    secret: str,
    *,
    state_dir: Path | None,
    ca: Path | None,
    **options: Any,
) -> Message | None:
    """Join the run with the client that ``make`` returns, and return its last state."""
    with extra("http"):
        from fedlib.transports.http import JoinError, Unreachable, kept_state
        from fedlib.transports.http import join as join_run
    made: list[Client] = []

    def make_once(served: str) -> Client:
        made.append(make(served))
        click.echo(f"joined {served} with {len(made[0].X)} rows", err=True)
        return made[0]

    try:
        outcome = join_run(
            url, make_once, secret, state_dir=state_dir, ca=str(ca) if ca else None, **options
        )
    except Unreachable as error:
        state = kept_state(state_dir) if state_dir else None
        if getattr(state, "labels", None) is None:
            raise click.ClickException(str(error)) from error
        click.echo(f"{error}; using the labels saved in {state_dir}", err=True)
        return state
    except (JoinError, ValueError) as error:
        raise click.ClickException(printable(str(error))) from error
    except OSError as error:
        raise click.ClickException(f"{url}: {error}") from error
    if outcome == "stopped":
        raise click.ClickException("the server has stopped the run")
    if outcome != "finished":
        raise click.ClickException(f"the run continued without this site: {printable(outcome)}")
    state = made[0].state
    return state


def _write_labels(path: Path, state: Message | None, table: Table) -> None:
    from fedlib.files import write_labels

    labels = getattr(state, "labels", None)
    if labels is None:
        raise click.ClickException("this protocol assigns no labels to the rows of a site")
    with writing(path):
        write_labels(path, labels, table)
