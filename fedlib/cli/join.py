"""``fedlib join``: take part in a run as one site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from fedlib.cli.common import (
    FOLDER,
    Flag,
    InputFile,
    Output,
    Reading,
    check_reading,
    command,
    extra,
    in_one_line,
    naming,
    read_rows,
    read_schema,
    read_token,
    report,
    report_changes,
    writing,
)
from fedlib.cli.data import SourceOptions, digest_of_rows
from fedlib.core.wording import printable
from fedlib.transports.http.wire import CannotJoin

if TYPE_CHECKING:
    from fedlib.cli.common import Rows
    from fedlib.core.client import Client
    from fedlib.core.messages import Message
    from fedlib.core.site_memory import TableMemory
    from fedlib.protection.policy import Policy
    from fedlib.protection.secure import Identity
    from fedlib.tables.files import Table
    from fedlib.tables.schema import Schema
    from fedlib.transports.http.wire import Welcome

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


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """What a site says about itself and the run: the options of `fedlib join`.

    ``arguments`` are further ones of the protocol's client.
    """

    url: str
    data: SourceOptions
    reading: Reading
    schema: Annotated[
        InputFile,
        "This site's copy of the schema of the study (JSON): the columns of the data are read by"
        " it, and the site takes part in no run with another one.",
    ] = None
    eval_data: Annotated[
        InputFile,
        "A file with rows for validation only, with the columns of the data, for a protocol that"
        " validates.",
    ] = None
    labels_out: Annotated[
        Output,
        "The file (.csv or .npy) for the cluster of each row, in the order of the rows.",
    ] = None
    token_file: Annotated[InputFile, "The file with this site's token."] = None
    passive: Annotated[Flag, "Receive the result without sharing any data."] = False
    protocol: Annotated[
        str | None,
        "The only protocol to which this site agrees. With pipeline/NAME, summary, xgboost or"
        " xgb-regressor, the features may be text and have gaps. aligned/NAME is a protocol that"
        " first aligns the rows, leave-one-site-out/NAME one that is validated.",
    ] = None
    ca: Annotated[InputFile, "The authority (PEM) that has signed the server's certificate."] = None
    state_dir: Annotated[
        Path | None,
        FOLDER,
        "A folder for this site's state, so that a restarted site continues where it stopped.",
    ] = None
    policy: Annotated[
        InputFile, "The file (TOML) with the rules about what may leave this site."
    ] = None
    ledger_out: Annotated[
        Output,
        "Write the messages to and from this site with what they disclose (CSV).",
    ] = None
    secure_key: Annotated[
        InputFile,
        "This site's private key NAME.key. The site then sends data only as terms of secure sums.",
    ] = None
    public_keys: Annotated[
        InputFile,
        "The public keys of all sites.  [default: keys.json next to the private key]",
    ] = None
    insecure: Annotated[Flag, "Allow plain HTTP to other machines."] = False
    proxy: Annotated[str | None, "The proxy for the calls to the server, http://host:port."] = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def link(self) -> dict[str, Any]:
        """What the connection to the server needs besides its address and the token."""
        ca = str(self.ca) if self.ca else None
        return {"ca": ca, "insecure": self.insecure, "proxy": self.proxy}


Patience = Annotated[
    float,
    click.FloatRange(0),
    "Seconds during which calls are repeated while the server does not answer.",
]


@partial(command, command_class=JoinCommand)
def join(options: JoinOptions, patience: Patience = 30.0) -> None:
    """Take part in the run at URL as one site.

    The token is read from --token-file, or else from the environment variable FEDLIB_TOKEN.
    """
    take_part(options, patience)


def take_part(
    options: JoinOptions,
    patience: float,
    review: Callable[[Message, Message], bool] | None = None,
) -> None:
    """Take part in a run; ``review`` returns whether a reply may be sent."""
    site = Site(options, review)
    site.check()
    try:
        problems = site.join(patience)
    finally:
        if options.ledger_out:
            _write_ledger(options.ledger_out, site.state)
    if options.labels_out:
        _write_labels(options.labels_out, site.state, site.read(options.data.rows))
    if problems:
        raise click.ClickException(
            "the run has finished, but its result does not fit all rows:"
            f" {printable('; '.join(problems))}"
        )
    report("finished")


class Site:
    """A site in a run: what its options name, which is read when it is first needed.

    Attributes
    ----------
    protected : bool
        Whether the site takes part in protected runs only.
    state : Message or None
        The last state of its client.
    """

    def __init__(
        self, options: JoinOptions, review: Callable[[Message, Message], bool] | None = None
    ):
        self.options, self.review = options, review
        self.protected = options.secure_key is not None
        self.state: Message | None = None
        self._clients: list[Client] = []
        self._digests: dict[Rows, str] = {}
        self._tables: dict[tuple[Rows, bool], Table] = {}

    @cached_property
    def rules(self) -> Policy | None:
        """The rules about what may leave this site."""
        path = self.options.policy
        if path is None:
            return None
        from fedlib.protection.policy import Policy

        with naming(path):
            return Policy.read(path)

    @cached_property
    def identity(self) -> Identity | None:
        """The keys of this site and of the others; None without a private key."""
        private, public = self.options.secure_key, self.options.public_keys
        if private is None:
            if public is not None:
                raise click.UsageError("--public-keys needs --secure-key")
            return None
        from fedlib.core.site_memory import SiteIsLocked
        from fedlib.protection.secure import Identity

        with in_one_line(SiteIsLocked, ValueError):
            identity = Identity.read(private, public)
            if identity.memory is not None:
                identity.memory.lock.check()
        return identity

    @cached_property
    def secret(self) -> str:
        """The site's token."""
        return read_token(self.options.token_file)

    @cached_property
    def schema(self) -> Schema | None:
        """The site's copy of the schema of the study."""
        return read_schema(self.options.schema)

    @cached_property
    def memory(self) -> TableMemory:
        """What this site remembers about its rows, as they were when they were read first."""
        from fedlib.core.site_memory import OldMemory, SiteIsLocked

        rows = self.options.data.rows
        unreadable = in_one_line(OSError, before="the state folder ($FEDLIB_STATE): ")
        with unreadable, in_one_line(OldMemory, SiteIsLocked, ValueError):
            digest = self._digests.get(rows) or digest_of_rows(rows)
            memory = self.options.data.memory(digest, self.options.secure_key)
            assert memory.lock is not None
            memory.lock.check()
            memory.values("")  # reports a file that cannot be read, or is too old
        return memory

    def read(self, path: Rows) -> Table:
        """Return the rows; with a schema, tell the operator what it changes."""
        key = path, self.protected
        if key not in self._tables:
            before = self._digests.get(path) or digest_of_rows(
                path
            )  # that of this process's memory
            self._tables[key], self._digests[path] = self._read(path), before
            if digest_of_rows(path) != before:
                raise click.ClickException(f"{path} has changed since the start: join again")
        return self._tables[key]

    def _read(self, path: Rows) -> Table:
        options = self.options
        if self.schema is None:
            return read_rows(path, options.reading, raw_tables(options.protocol))
        with naming(path):
            table, changes = self.schema.apply(path, self.protected, sheet=options.reading.sheet)
        report_changes(path, changes)
        return table

    def check(self) -> None:
        """Report what cannot be read or does not fit the agreed protocol, before any call."""
        options = self.options
        _ = self.rules, self.identity, self.secret  # reads them
        if self.schema is not None:
            check_reading(self.schema, options.reading)
        self.read(options.data.rows)
        _ = self.memory
        if options.protocol is not None:
            with in_one_line(ValueError):
                check_allowed(self.rules, options.protocol)
                self.check_labels(options.protocol)
                self.make(options.protocol)

    def check_labels(self, protocol: str) -> None:
        """Raise ValueError when a protocol gives no labels for the file of the labels."""
        if self.options.labels_out is None:
            return
        from fedlib.core.registry import find_estimator, unwrapped  # takes a second

        around, name = unwrapped(protocol)
        known = [one for one in (*around, find_estimator(name)) if one is not None]
        if not all(one.has_labels for one in known):
            raise ValueError(f"{protocol} gives the rows no labels: join without --labels-out")

    def check_welcome(self, welcome: Welcome) -> None:
        """Raise ValueError when this site cannot take part in a run as it wants to."""
        if welcome.secure and self.options.secure_key is None:
            text = "the run has secure sums: join with --secure-key NAME.key"
            raise CannotJoin(text, "NoSecureKey")
        self.check_labels(welcome.protocol)

    def make(self, served: str) -> Client:
        """Return the client for a protocol, guarded if there are rules or somebody looks on."""
        from fedlib.sites.site import make_client  # imports the protocols, which takes a second

        options, evaluated = self.options, self.options.eval_data
        client = make_client(
            served,
            self.read(options.data.rows),
            options.arguments,
            agreed=options.protocol,
            passive=options.passive,
            eval_table=None if evaluated is None else self.read(evaluated),
            identity=self.identity,
            memory=self.memory,
        )
        if not (options.policy or options.ledger_out or self.review):
            return client
        from fedlib.protection.policy import GuardedClient

        return GuardedClient(client, self.rules, served, self.review)

    def accept(self, welcome: Welcome) -> None:
        """Raise ValueError if this site cannot take part in the run."""
        self.check_welcome(welcome)
        n_keys = len(self.identity.public_keys) if self.identity else welcome.n_clients
        if welcome.secure and n_keys < welcome.n_clients:
            raise CannotJoin(
                f"the file of public keys has {n_keys} sites, and the run {welcome.n_clients}: get"
                " the file keys.json with the keys of all sites",
                "TooFewKeys",
            )
        if self.schema is None:
            return
        from fedlib.tables.schema.schema import check_same

        self.protected = self.protected or welcome.protected
        with in_one_line(ValueError, error_class=partial(CannotJoin, reason="OtherSchema")):
            check_same(self.schema, welcome.digest, welcome.schema)

    def _enter(self, served: str) -> Client:
        """Return the client that takes part."""
        client = self.make(served)
        self._clients.append(client)
        n_rows = len(client.X)
        report(f"joined {served} with {n_rows} rows", {"protocol": served, "rows": n_rows})
        return client

    def join(self, patience: float) -> Sequence[str]:
        """Join the run until it is over; return the problems with the result."""
        with extra("http"):
            from fedlib.transports.http import Checkpoint, JoinError, Unreachable
            from fedlib.transports.http import join as join_run
        options, schema, folder = self.options, self.schema, self.options.state_dir
        try:
            outcome = join_run(
                options.url,
                self._enter,
                self.secret,
                state_dir=folder,
                patience=patience,
                schema=schema.digest if schema else "",
                accept=self.accept,
                **options.link,
            )
        except Unreachable as error:
            kept = Checkpoint.read(folder) if folder else None
            self.state = kept.decoded(folder) if kept else None
            if kept is None or getattr(self.state, "labels", None) is None:
                raise click.ClickException(str(error)) from error
            report(f"{error}; using the labels saved in {folder}", level=logging.WARNING)
            return kept.problems
        # An OSError is one of a file of this site: the server's answers are no such errors.
        except (JoinError, ValueError, OSError) as error:
            raise click.ClickException(printable(str(error))) from error
        finally:
            for client in self._clients:
                self.state = client.state
        if outcome == "stopped":
            raise click.ClickException("the server has stopped the run")
        if outcome != "finished":
            raise click.ClickException(f"the run continued without this site: {printable(outcome)}")
        return [problem for client in self._clients for problem in client.problems]


def check_allowed(policy: Policy | None, protocol: str) -> None:
    """Raise ValueError when the rules do not allow a protocol."""
    if policy is not None and policy.rules(protocol) is None:
        allowed = ", ".join(policy.protocols or ())
        raise ValueError(f"the protocol {protocol} is not allowed by the policy, only {allowed}")


def raw_tables(protocol: str | None) -> bool:
    """Return whether the agreed protocol takes raw tables; refuse an unknown protocol."""
    if protocol is None:
        return False
    from fedlib.core.registry import find_client, protocols, wrappers
    from fedlib.sites.site import takes_raw_tables

    if find_client(protocol) is None:
        known = ", ".join(protocols())
        raise click.UsageError(
            f"--protocol must be one of {known}, or {' or '.join(wrappers())} and one of them; got"
            f" {protocol!r}"
        )
    return takes_raw_tables(protocol)


def _write_ledger(path: Path, state: Message | None) -> None:
    """Write the site's ledger; it is empty if the site has not joined."""
    from fedlib.core.ledger import Ledger
    from fedlib.tables.columns import csv_bytes
    from fedlib.tables.files import write_file

    ledger = getattr(state, "ledger", None)
    with writing(path):
        write_file(path, csv_bytes((ledger or Ledger()).to_frame()), mode=0o600)


def _write_labels(path: Path, state: Message | None, table: Table) -> None:
    from fedlib.tables.files import write_labels

    labels = getattr(state, "labels", None)
    if labels is None:
        raise click.ClickException("the rows of this site have no labels after this run")
    with writing(path):
        write_labels(path, labels, table)
