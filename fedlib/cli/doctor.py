"""``fedlib doctor``: check whether a site can take part in a run, without joining it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from fedlib.cli.common import (
    EXISTING,
    FILE,
    OUTPUT,
    check_reading,
    command,
    extra,
    naming,
    read_file,
)
from fedlib.cli.data import MAYBE_ROWS, ROWS
from fedlib.cli.join import JoinCommand, JoinOptions, Site, check_allowed, raw_tables
from fedlib.core.wording import printable

with extra("http"):
    from fedlib.transports.http.diagnosis import Finding, diagnose

if TYPE_CHECKING:
    from fedlib.protection.policy import Policy
    from fedlib.protection.secure import Identity
    from fedlib.tables.files import SiteFile, Table
    from fedlib.tables.schema import Schema
    from fedlib.transports.http.wire import Welcome

Value = TypeVar("Value")


@partial(command, command_class=JoinCommand)
def doctor(options: JoinOptions) -> None:
    """Check whether this site can take part in the run at URL.

    It takes the options of `fedlib join` and checks the data, the folders, the token, the way to
    the server, the certificate, the clock, the version and the protocol. Each line is ok, or names
    what to do. The lines on the columns of the data are for this site only: nothing of them is
    sent. The site does not join, and the run is not affected. The exit status is 1 if something is
    not ok.
    """
    failed = False
    for finding in _findings(Site(options)):
        failed = failed or not finding.ok
        click.echo(f"{'ok ' if finding.ok else 'fix'}  {finding.subject}: {_line(finding.text)}")
    click.get_current_context().exit(int(failed))


def _line(text: str) -> str:
    return " ".join(printable(text).split())


def _findings(site: Site) -> Iterator[Finding]:
    """Yield the results of all checks."""
    options = site.options
    schema: Schema | None = None
    if options.schema is not None:
        schema, finding = _read("--schema", lambda: site.schema, _columns)
        yield finding
        if schema is None:
            return
    table = yield from (_unchecked(options) if schema is None else _agreed(site, schema))
    if options.eval_data is not None:
        data = options.eval_data
        yield _read("--eval-data", lambda: site.read(data), _size)[1]
    outputs = {"--labels-out": options.labels_out, "--ledger-out": options.ledger_out}
    for option, path in outputs.items():
        if path is not None:
            yield _folder(option, path.absolute().parent)
    if options.state_dir is not None:
        yield _folder("--state-dir", options.state_dir)
    rules: Policy | None = None
    if options.policy is not None:
        valid = f"the rules in {options.policy} are valid"
        rules, finding = _read("--policy", lambda: site.rules, lambda _: valid)
        yield finding
    if options.secure_key or options.public_keys:
        yield _read("--secure-key", lambda: site.identity, _keys)[1]
    known = "what this site remembers about the data can be read"
    yield _read("memory", lambda: site.memory, lambda _: known)[1]
    token, finding = _read("token", lambda: site.secret, lambda _: "")
    if token is None:
        yield finding
        return
    if options.token_file is not None:
        yield _privacy(options.token_file)
    welcomes: list[Welcome] = []
    try:
        yield from diagnose(options.url, token, welcomes=welcomes, **options.link)
    except OSError as error:
        yield Finding("certificate", False, f"--ca {options.ca} cannot be read: {error}")
    except ValueError as error:
        yield Finding("reachability", False, str(error))
    if table is not None:
        for welcome in welcomes:
            yield from _schema(schema, welcome)
            yield _protocol(welcome, table, site, rules)


def _unchecked(options: JoinOptions) -> Generator[Finding, None, Table | None]:
    """Describe the columns of the data; return the rows."""
    file, finding = _read(
        "data", lambda: read_file(options.data.rows, options.reading), lambda _: ""
    )
    if file is None:
        yield finding
        return None
    checked = _read("data", lambda: _table(file, options), _size)
    yield checked[1]
    separator = file.content.separator
    found = f"separated by {separator}; " if separator else ""
    yield Finding("columns", True, f"{found}listed for you only, nothing of this is sent")
    for column in file.describe():
        yield Finding(f"column {column.name}", True, str(column))
    return checked[0]


def _agreed(site: Site, schema: Schema) -> Generator[Finding, None, Table | None]:
    """Name what in the data the schema does not accept; return the rows as the run has them."""
    options = site.options
    with suppress(ValueError, click.ClickException):  # the next check reports it
        for problem in schema.check(options.data.rows, sheet=options.reading.sheet).problems:
            yield Finding("data", False, problem)
    check_reading(schema, options.reading)
    checked = _read("data", lambda: site.read(options.data.rows), _size)
    yield checked[1]
    return checked[0]


def _table(file: SiteFile, options: JoinOptions) -> Table:
    """Return the rows that the run would take."""
    raw = raw_tables(options.protocol)
    with naming(options.data.rows):
        return file.table(raw)


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


def _schema(schema: Schema | None, welcome: Welcome) -> Iterator[Finding]:
    """Compare the schema of the site with that of the run, if there are any."""
    from fedlib.tables.schema.schema import check_same

    try:
        check_same(schema, welcome.digest, welcome.schema)
    except ValueError as error:
        yield Finding("schema", False, f"{error}{'' if schema else ', with --schema'}")
    else:
        if schema is not None:
            yield Finding("schema", True, "the run has the same")


def _columns(schema: Schema | None) -> str:
    assert schema is not None
    return f"{len(schema.columns)} columns, digest {schema.digest[:12]}"


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


def _protocol(welcome: Welcome, table: Table, site: Site, policy: Policy | None) -> Finding:
    """Check that the rules and options allow the run of the server, and that the data fit it."""
    from fedlib.sites.site import make_client

    served, options = welcome.protocol, site.options
    try:
        site.check_welcome(welcome)
        check_allowed(policy, served)
        make_client(
            served, table, options.arguments, agreed=options.protocol, passive=options.passive
        )
    except ValueError as error:
        return Finding("protocol", False, str(error))
    return Finding("protocol", True, f"the data fit {served}")


# It says itself which files are missing, and which folders cannot be written.
for one in doctor.params:
    if one.type in (EXISTING, OUTPUT, ROWS):
        one.type = MAYBE_ROWS if one.type is ROWS else FILE
