"""``fedlib doctor``: check whether a site can take part in a run, without joining it."""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedlib.cli.common import EXISTING, FILE, extra, read_rows
from fedlib.cli.join import (
    JoinCommand,
    check_allowed,
    client_arguments,
    join,
    raw_tables,
    read_identity,
    read_policy,
    read_token,
)
from fedlib.core.texts import printable

with extra("http"):
    from fedlib.transports.http.diagnosis import Finding, diagnose

if TYPE_CHECKING:
    from fedlib.protection.policy import Policy
    from fedlib.protection.secure import Identity
    from fedlib.tables.files import Table
    from fedlib.transports.http.wire import Welcome

Value = TypeVar("Value")

UNUSED = {"patience"}  # options of `fedlib join` that mean nothing here


def _options() -> list[click.Parameter]:
    """Return the options of `fedlib join`; this command checks their files and folders itself."""
    options = [copy.copy(option) for option in join.params if option.name not in UNUSED]
    for option in options:
        option.callback = None
        option.type = FILE if option.type is EXISTING else option.type
    return options


@click.command(cls=JoinCommand, params=_options())
@click.pass_context
def doctor(context: click.Context, **given: Any) -> None:
    """Check whether this site can take part in the run at URL.

    It takes the options of `fedlib join` and checks the data, the folders, the token, the way to
    the server, the certificate, the clock, the version and the protocol. Each line is ok, or names
    what to do. The site does not join, and the run is not affected. The exit status is 1 if
    something is not ok.
    """
    failed = False
    for finding in _findings(client_arguments(given), **given):
        failed = failed or not finding.ok
        click.echo(f"{'ok ' if finding.ok else 'fix'}  {finding.subject}: {_line(finding.text)}")
    context.exit(int(failed))


def _line(text: str) -> str:
    return " ".join(printable(text).split())


def _findings(
    arguments: dict[str, Any],
    *,
    url: str,
    token_file: Path | None,
    labels_out: Path | None,
    state_dir: Path | None,
    protocol: str | None,
    passive: bool,
    ca: Path | None,
    insecure: bool,
    proxy: str | None,
    policy: Path | None,
    ledger_out: Path | None,
    secure_key: Path | None,
    public_keys: Path | None,
    eval_data: Path | None,
    **columns: Any,
) -> Iterator[Finding]:
    """Yield the results of all checks."""

    def rows(**given: Any) -> Table:
        return read_rows(**{**columns, **given}, raw=raw_tables(protocol))

    checked = _read("data", rows, _size)
    table, finding = checked
    yield finding
    if eval_data is not None:
        yield _read("--eval-data", lambda: rows(data=eval_data), _size)[1]
    for option, file in {"--labels-out": labels_out, "--ledger-out": ledger_out}.items():
        if file is not None:
            yield _folder(option, file.absolute().parent)
    if state_dir is not None:
        yield _folder("--state-dir", state_dir)
    rules: Policy | None = None
    if policy is not None:
        rules, finding = _read(
            "--policy", lambda: read_policy(policy), lambda _: f"the rules in {policy} are valid"
        )
        yield finding
    if secure_key is not None or public_keys is not None:
        yield _read("--secure-key", lambda: read_identity(secure_key, public_keys), _keys)[1]
    token, finding = _read("token", lambda: read_token(token_file), lambda _: "")
    if token is None:
        yield finding
        return
    if token_file is not None:
        yield _privacy(token_file)
    welcomes: list[Welcome] = []
    authority = str(ca) if ca else None
    try:
        yield from diagnose(
            url, token, ca=authority, insecure=insecure, proxy=proxy, welcomes=welcomes
        )
    except OSError as error:
        yield Finding("certificate", False, f"--ca {ca} cannot be read: {error}")
    except ValueError as error:
        yield Finding("reachability", False, str(error))
    if table is not None:
        for welcome in welcomes:
            yield _protocol(welcome.protocol, table, arguments, protocol, passive, rules)


def _read(
    subject: str, read: Callable[[], Value], describe: Callable[[Value], str]
) -> tuple[Value | None, Finding]:
    """Return what can be read, or None, and the result of the check with this subject."""
    try:
        value = read()
    except click.ClickException as error:
        return None, Finding(subject, False, error.format_message())
    except OSError as error:
        return None, Finding(subject, False, str(error))
    return value, Finding(subject, True, describe(value))


def _size(table: Table) -> str:
    """Return how large a table is."""
    n_rows, n_features = table.X.shape
    return f"{n_rows} rows of {n_features} features"


def _keys(identity: Identity | None) -> str:
    """Return which key was read."""
    assert identity is not None  # or there is no --secure-key
    return f"the key of {identity.name}, one of {len(identity.public_keys)} sites"


def _folder(option: str, folder: Path) -> Finding:
    """Check that a folder can be written, or made."""
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    if existing.is_dir() and os.access(existing, os.W_OK):
        return Finding(option, True, f"{folder} can be written")
    return Finding(option, False, f"{folder} cannot be written; choose another folder")


def _privacy(file: Path) -> Finding:
    """Check that other users of this machine cannot read the token."""
    if os.name == "posix" and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return Finding("--token-file", False, f"other users can read it; chmod 600 {file}")
    return Finding("--token-file", True, f"only its owner can read {file}")


def _protocol(
    served: str,
    table: Table,
    arguments: dict[str, Any],
    agreed: str | None,
    passive: bool,
    policy: Policy | None,
) -> Finding:
    """Check that the rules allow the protocol that the server runs, and that the data fit it."""
    from fedlib.sites.site import make_client

    try:
        check_allowed(policy, served)
        make_client(served, table, arguments, agreed=agreed, passive=passive)
    except ValueError as error:
        return Finding("protocol", False, str(error))
    return Finding("protocol", True, f"the data fit {served}")
