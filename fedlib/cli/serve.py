"""``fedlib serve``: the server of one run."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import numpy as np

from fedlib.cli.common import (
    FOLDER,
    Flag,
    InputFile,
    Output,
    call_with,
    extra,
    in_json,
    in_one_line,
    options_of,
    report,
    writing,
)
from fedlib.cli.options import (
    align_options,
    parameter_options,
    pipeline_options,
    validation_options,
)
from fedlib.cli.preparation import make_tokens, read_clients
from fedlib.core.estimator import Federated
from fedlib.core.journal import JournalError, run_id
from fedlib.core.ledger import Ledger
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import innermost, protocols
from fedlib.core.wording import printable
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
            run_server(served, schema, call_with(ServeOptions, values))

        summary = (inspect.getdoc(estimator) or "").partition("\n")[0]
        text = f"Serve one run of {cmd_name}.\n\n{summary}"
        params = [*parameters, *further, *validates, *options_of(ServeOptions)]
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


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What the operator of a server says about a run, besides the parameters of the protocol."""

    n_clients: Annotated[
        int | None,
        click.IntRange(1, 10_000),
        "The number N of sites. Tokens are created for site-1 to site-N if they have none.",
        {"flag": "--clients"},
    ] = None
    token_dir: Annotated[Path, FOLDER, "The folder in which --clients writes tokens."] = Path(
        "tokens"
    )
    tokens: Annotated[InputFile, "The file clients.json that fedlib token has written."] = None
    bind: Annotated[str, "Host and port to listen on."] = "127.0.0.1:8080"
    cert: Annotated[InputFile, "The server's certificate chain (PEM), for TLS."] = None
    key: Annotated[InputFile, "The certificate's private key (PEM)."] = None
    insecure: Annotated[Flag, "Allow plain HTTP beyond this machine."] = False
    min_clients: Annotated[
        int | None,
        click.IntRange(1),
        "The count of sites that must remain until the end.  [default: all]",
    ] = None
    limits: Annotated[Limits, parameter_options]
    journal: Annotated[
        Output,
        "Record the run in this file. If the server dies, the same command continues it.",
    ] = None
    linger: Annotated[
        float,
        click.FloatRange(0),
        "Seconds to listen after the run, for the status page and for sites that return.",
    ] = 0.0
    status_page: Annotated[
        bool, "Show names, steps and sizes, but no data, at / to anyone who can connect."
    ] = True
    monitors: Annotated[
        Sequence[str],
        "Answer /health and /metrics (Prometheus) to this address or network, such as 127.0.0.1 or"
        " 10.0.0.0/8; can be repeated.  [default: none]",
        {"flag": "--monitor", "metavar": "ADDRESS", "multiple": True},
    ] = ()
    hosts: Annotated[
        Sequence[str],
        "Show the status page and the metrics also to callers that call the server by this name,"
        " such as fedlib.example.org; can be repeated.  [default: localhost and addresses]",
        {"flag": "--host", "metavar": "NAME", "multiple": True},
    ] = ()
    model_out: Annotated[Output, "Write the model: .npz (NumPy) or .json."] = None
    ledger_out: Annotated[Output, "Write the ledger (CSV)."] = None


def run_server(estimator: Federated, schema: Schema | None, options: ServeOptions) -> None:
    """Serve one run. The ledger is written even if the run fails.

    With a journal, an interrupted run can be continued: the sites receive no outcome and keep
    calling.
    """
    tokens, journal, model_out = options.tokens, options.journal, options.model_out
    if (options.n_clients is None) == (tokens is None):
        raise click.UsageError("name the sites with either --clients or --tokens")
    with in_one_line(ValueError, error_class=click.UsageError):
        estimator.protocol()
    clients = read_clients(tokens) if tokens else _site_tokens(options)
    if options.min_clients is not None and options.min_clients > len(clients):
        raise click.UsageError(
            f"--min-clients must be at most {len(clients)}, the number of clients;"
            f" got {options.min_clients}"
        )
    with in_one_line(JournalError, OSError):
        run = run_id(journal) if journal else None
    transport = _listen(estimator, clients, options, run=run, schema=schema)
    outcome = None if journal else "stopped"
    try:
        report(
            f"{estimator.name} at {transport.url}",
            {"protocol": estimator.name, "url": transport.url},
        )
        if tokens is None:
            report(f"each site's token: {options.token_dir}{os.sep}site-N.token")
        with _progress(transport):
            estimator.fit(transport, min_clients=options.min_clients, journal=journal)
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
    except ModelFileError as error:
        raise click.ClickException(f"{model_out}: {error}") from error
    except (TooFewClients, ValueError) as error:
        outcome = "stopped"
        if isinstance(error, TooFewClients):
            _report_lost(transport)
        raise click.ClickException(printable(str(error))) from error
    finally:
        if outcome:
            transport.finish(outcome)
        try:
            if options.ledger_out:
                with writing(options.ledger_out):
                    ledger = transport.ledger or Ledger()
                    write_file(options.ledger_out, csv_bytes(ledger.to_frame()))
            interrupted = sys.exc_info()[0] is KeyboardInterrupt
            time.sleep(options.linger if outcome and not interrupted else 0)
        finally:
            transport.close(outcome)
            if outcome is None and sys.exc_info()[0] is KeyboardInterrupt:
                report(f"the same command continues the run from {journal}")


def _listen(
    estimator: Federated, clients: dict[str, str], options: ServeOptions, **more: Any
) -> HTTP:
    """Return a transport that listens; ``more`` are further arguments of it."""
    with extra("http"):
        from fedlib.transports.http import HTTP
    parameters = {name: _summary(value) for name, value in estimator.get_params().items()}
    same = ("bind", "limits", "insecure", "status_page", "monitors", "hosts")
    more |= {name: getattr(options, name) for name in same}
    inner, unusable = innermost(estimator), in_one_line(ValueError, error_class=click.UsageError)
    with in_one_line(OSError, before=f"{options.bind}: "), unusable:
        return HTTP(
            clients,
            protocol=estimator.name,
            parameters=parameters,
            protected=is_protected(inner),
            secure=bool(getattr(inner, "secure", False)),
            cert=str(options.cert) if options.cert else None,
            key=str(options.key) if options.key else None,
            **more,
        )


def _summary(value: object) -> object:
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if isinstance(value, Schema):
        return f"schema {value.digest[:12]}"
    return str(value) if isinstance(value, Federated) else value


def _site_tokens(options: ServeOptions) -> dict[str, str]:
    """Return the digests of the tokens of site-1 to site-N; existing tokens remain valid."""
    folder, n_clients = options.token_dir, options.n_clients or 0
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
