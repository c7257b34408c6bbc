"""The command ``fedlib``: its subcommands by name, and how it ends."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from fedlib import __version__
from fedlib.cli.common import FORMATS, configure, handler, in_json, report
from fedlib.core.wording import printable

# The module, the attribute and the help text of each command. The text is repeated here so that
# the list of commands imports none of them.
COMMANDS = {
    "doctor": ("doctor", "doctor", "Check whether this site can take part in the run at URL."),
    "flower": ("preparation", "flower", "Run the protocols on Flower."),
    "inspect": (
        "inspect",
        "inspect_command",
        "Take part in a run and see every reply before it is sent.",
    ),
    "join": ("join", "join", "Take part in the run at URL as one site."),
    "ledger": ("memory", "show_ledger", "Print the ledger of the run in a journal."),
    "memory": (
        "memory",
        "memory",
        "Print what this site remembers about the rows in DATA, or unlock the site.",
    ),
    "predict": ("predict", "predict", "Write the clusters or classes of new rows."),
    "protocols": ("inspect", "list_protocols", "List the protocols and their disclosures."),
    "schema": ("schema", "schema", "Draft the schema of a study, or check rows against it."),
    "serve": ("serve", "serve", "Wait for the sites, run a protocol, write model and ledger."),
    "token": ("preparation", "token", "Create a secret token for each client NAME."),
    "unit": (
        "preparation",
        "unit",
        "Print a hardened systemd unit that runs `fedlib serve` or `fedlib join`.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"fedlib.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__)
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import a module first, for example one that defines another protocol.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, value: configure(value),
    help="How progress, warnings and errors are written: json is one object per line.",
)
def cli(modules: Sequence[str]) -> None:
    """Federated clustering and boosting between real sites.

    One machine serves a run. Each site joins it and computes on its own data. Sites call the
    server, which never calls them.
    """
    sys.path.insert(0, "")  # as `python -m` does, for modules in the current folder
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise click.UsageError(f"cannot import {module}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status.

    Examples
    --------
    >>> main(["protocols", "--names"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    configure("text")
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    warnings.showwarning = _show_warning
    try:
        status = cli.main(arguments, "fedlib", standalone_mode=False) or 0
    except click.exceptions.Exit as done:
        status = done.exit_code
    except click.Abort:
        status = 130
        report("interrupted")
    except click.ClickException as error:
        status = error.exit_code
        if in_json():
            report(error.format_message(), {"exit_status": status}, logging.ERROR)
        else:
            error.show()
    sys.exit(status)


def _show_warning(message: Warning | str, *place: Any, **further: Any) -> None:
    """Print a warning without its place in the code."""
    report(printable(str(message)), level=logging.WARNING)  # it may contain names from a site
