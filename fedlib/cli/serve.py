"""``fedlib serve``: the server of one run."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fedlib.cli.common import (
    EXISTING,
    FILE,
    FOLDER,
    check_folder,
    extra,
    in_json,
    report,
    writing,
)
from fedlib.cli.options import (
    align_options,
    parameter_options,
    pipeline_options,
    validation_options,
)
from fedlib.cli.tokens import make_tokens, read_clients
from fedlib.core.estimator import Federated
from fedlib.core.journal import JournalError, run_id
from fedlib.core.ledger import Ledger
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import innermost, protocols
from fedlib.core.texts import printable
from fedlib.protection.estimator import is_protected
from fedlib.sites.models import ModelFileError, save
from fedlib.tables.columns import csv_bytes
from fedlib.tables.files import write_file
from fedlib.tables.schema import Schema
from fedlib.transports.http.limits import Limits

if TYPE_CHECKING:
    from fedlib.transports.http import HTTP

MAX_REPORT = 2**20  # characters
POLL = 0.1  # seconds between two checks of the progress


class ProtocolCommands(click.Group):
    """A group with one command per protocol."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(protocols())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        estimator = protocols().get(cmd_name)
        if estimator is None:
            return None
        parameters = parameter_options(estimator)
        further = [*pipeline_options(estimator), *align_options(estimator)]
        validates = validation_options(estimator, [*parameters, *further])

        def run(**values: Any) -> None:
            chosen, rules, validation = (
                {str(option.name): values.pop(str(option.name)) for option in options}
                for options in (parameters, further, validates)
            )
            schema = chosen.get("schema") or rules.get("schema")
            served = _validate(_wrap(estimator(**chosen), rules), validation)
            run_server(served, schema=schema, **values)

        summary = (inspect.getdoc(estimator) or "").partition("\n")[0]
        text = f"Serve one run of {cmd_name}.\n\n{summary}"
        params = [*parameters, *further, *validates, *OPTIONS]
        return click.Command(cmd_name, params=params, callback=run, help=text, short_help=summary)


@click.group(cls=ProtocolCommands, subcommand_metavar="PROTOCOL [OPTIONS]...")
def serve() -> None:
    """Wait for the sites, run a protocol, write model and ledger."""


def _wrap(estimator: Federated, rules: dict[str, Any]) -> Federated:
    """Return the estimator in a pipeline or with alignment, if an option asks for it."""
    if rules.get("align"):
        from fedlib.tables.alignment import AlignedRows

        return AlignedRows(estimator)
    if any(rules.get(name) is not None for name in ("scale", "impute", "encode")):
        from fedlib.tables.pipeline import FederatedPipeline

        common = set(FederatedPipeline._get_param_names()) & set(estimator._get_param_names())
        rules |= {name: getattr(estimator, name) for name in common}
        # Facts of the raw columns, which the estimator does not see.
        estimator.set_params(**dict.fromkeys(common & {"bounds", "schema"}))
        return FederatedPipeline(estimator, **rules)
    return estimator


def _validate(estimator: Federated, values: dict[str, Any]) -> Federated:
    """Return the estimator, or its validation over sites if an option asks for it."""
    if not values.pop("leave_one_site_out", False):
        return estimator
    from fedlib.sites.leave_one_out import LeaveOneSiteOut

    return LeaveOneSiteOut(estimator, **values)


LIMITS = parameter_options(Limits)
OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--clients", "n_clients"],
        type=click.IntRange(1, 10_000),
        help="The number N of sites. Tokens are created for site-1 to site-N if they have none.",
    ),
    click.Option(
        ["--token-dir"],
        type=FOLDER,
        default="tokens",
        show_default=True,
        help="The folder in which --clients writes tokens.",
    ),
    click.Option(
        ["--tokens"], type=EXISTING, help="The file clients.json that fedlib token has written."
    ),
    click.Option(
        ["--bind"], default="127.0.0.1:8080", show_default=True, help="Host and port to listen on."
    ),
    click.Option(["--cert"], type=EXISTING, help="The server's certificate chain (PEM), for TLS."),
    click.Option(["--key"], type=EXISTING, help="The certificate's private key (PEM)."),
    click.Option(["--insecure"], is_flag=True, help="Allow plain HTTP beyond this machine."),
    click.Option(
        ["--min-clients"],
        type=click.IntRange(1),
        help="The number of sites that must remain until the end.  [default: all]",
    ),
    *LIMITS,
    click.Option(
        ["--journal"],
        type=FILE,
        callback=check_folder,
        help="Record the run in this file. If the server dies, the same command continues it.",
    ),
    click.Option(
        ["--linger"],
        type=click.FloatRange(0),
        default=0.0,
        show_default=True,
        help="Seconds to listen after the run, for the status page and for sites that return.",
    ),
    click.Option(
        ["--status-page/--no-status-page"],
        default=True,
        show_default=True,
        help="Show names, steps and sizes, but no data, at / to anyone who can connect.",
    ),
    click.Option(
        ["--monitor", "monitors"],
        multiple=True,
        metavar="ADDRESS",
        help="Answer /health and /metrics (Prometheus) to this address or network, such as"
        " 127.0.0.1 or 10.0.0.0/8; can be repeated.  [default: none]",
    ),
    click.Option(
        ["--host", "hosts"],
        multiple=True,
        metavar="NAME",
        help="Show the status page and the metrics also to callers that call the server by this"
        " name, such as fedlib.example.org; can be repeated.  [default: localhost and addresses]",
    ),
    click.Option(
        ["--model-out"],
        type=FILE,
        callback=check_folder,
        help="Write the model: .npz (NumPy) or .json.",
    ),
    click.Option(
        ["--ledger-out"], type=FILE, callback=check_folder, help="Write the ledger (CSV)."
    ),
]


def run_server(
    estimator: Federated,
    *,
    schema: Schema | None,
    n_clients: int | None,
    token_dir: Path,
    tokens: Path | None,
    min_clients: int | None,
    journal: Path | None,
    linger: float,
    model_out: Path | None,
    ledger_out: Path | None,
    **options: Any,
) -> None:
    """Serve one run. The ledger is written even if the run fails.

    With a journal, an interrupted run can be continued: the sites receive no outcome and keep
    calling.
    """
    if (n_clients is None) == (tokens is None):
        raise click.UsageError("name the sites with either --clients or --tokens")
    try:
        estimator.protocol()
        options["limits"] = Limits(**{str(one.name): options.pop(str(one.name)) for one in LIMITS})
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    clients = read_clients(tokens) if tokens else _site_tokens(n_clients or 0, token_dir)
    if min_clients is not None and min_clients > len(clients):
        raise click.UsageError(
            f"--min-clients must be at most {len(clients)}, the number of clients;"
            f" got {min_clients}"
        )
    with _reporting_journal():
        run = run_id(journal) if journal else None
    transport = _listen(estimator, clients, {**options, "run": run, "schema": schema})
    outcome = None if journal else "stopped"
    try:
        report(
            f"{estimator.name} at {transport.url}",
            {"protocol": estimator.name, "url": transport.url},
        )
        if tokens is None:
            report(f"each site's token: {token_dir}{os.sep}site-N.token")
        with _progress(transport):
            estimator.fit(transport, min_clients=min_clients, journal=journal)
            transport.finish()
            outcome = "finished"
        if table := estimator.report():
            click.echo(printable(table, MAX_REPORT))
        if model_out:
            with writing(model_out):
                save(estimator, model_out)
    except JournalError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if journal is None:
            raise
        raise click.ClickException(f"{journal}: cannot be written: {error}") from error
    except TooFewClients as error:
        outcome = "stopped"
        _report_lost(transport)
        raise click.ClickException(printable(str(error))) from error
    except ModelFileError as error:
        raise click.ClickException(f"{model_out}: {error}") from error
    except ValueError as error:
        outcome = "stopped"
        raise click.ClickException(printable(str(error))) from error
    finally:
        if outcome:
            transport.finish(outcome)
        try:
            if ledger_out:
                with writing(ledger_out):
                    ledger = transport.ledger or Ledger()
                    write_file(ledger_out, csv_bytes(ledger.to_frame()))
            time.sleep(linger if outcome and sys.exc_info()[0] is not KeyboardInterrupt else 0)
        finally:
            transport.close(outcome)
            if outcome is None and sys.exc_info()[0] is KeyboardInterrupt:
                report(f"the same command continues the run from {journal}")


@contextmanager
def _reporting_journal() -> Iterator[None]:
    """Turn an error in reading the journal into one line."""
    try:
        yield
    except (JournalError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _listen(estimator: Federated, clients: dict[str, str], options: dict[str, Any]) -> HTTP:
    """Return a transport that listens."""
    with extra("http"):
        from fedlib.transports.http import HTTP
    for file in ("cert", "key"):
        options[file] = options[file] and str(options[file])
    parameters = {name: _summary(value) for name, value in estimator.get_params().items()}
    try:
        inner = innermost(estimator)
        return HTTP(
            clients,
            protocol=estimator.name,
            parameters=parameters,
            protected=is_protected(inner),
            secure=bool(getattr(inner, "secure", False)),
            **options,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{options['bind']}: {error}") from error


def _summary(value: object) -> object:
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if isinstance(value, Schema):
        return f"schema {value.digest[:12]}"
    return str(value) if isinstance(value, Federated) else value


def _site_tokens(n_clients: int, folder: Path) -> dict[str, str]:
    """Return the digests of the tokens of site-1 to site-N; existing tokens remain valid."""
    path = folder / "clients.json"
    clients = read_clients(path) if path.exists() else {}
    names = [f"site-{i}" for i in range(1, n_clients + 1)]
    missing = [name for name in names if name not in clients]
    if missing:
        make_tokens(missing, folder, clients)
    return {name: clients[name] for name in names}


def _report_lost(transport: HTTP) -> None:
    """Print one line per lost client: when it was lost, and why."""
    for client in transport.status().clients:
        if client.state == "lost":
            fields, when = {"client": client.name, "reason": client.why}, ""
            if client.since:
                fields["since"] = client.since.astimezone(UTC).isoformat(timespec="milliseconds")
                when = client.since.strftime(" at %H:%M:%S")
            report(f"lost{when}: {client.name}, {client.why}", fields, logging.WARNING)


@contextmanager
def _progress(transport: HTTP) -> Iterator[None]:
    """Show the progress: on one line of a terminal, otherwise one line per change."""
    done = threading.Event()
    terminal = sys.stderr.isatty() and not in_json()
    shown = ""

    def show() -> None:
        nonlocal shown
        status = transport.status()
        if status.headline == shown:
            return
        shown = status.headline
        if terminal:
            click.echo(f"\r\x1b[2K{shown}", err=True, nl=False)
        else:
            report(shown, status.numbers())

    def watch() -> None:
        while not done.wait(POLL):
            show()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        show()
        if terminal:
            click.echo(err=True)
