"""``fedlib join``: take part in a run as one site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlib.cli.common import (
    CLIENT,
    EXISTING,
    FILE,
    FOLDER,
    check_folder,
    check_reading,
    data_option,
    extra,
    naming,
    read_rows,
    read_schema,
    read_token,
    reading,
    reading_options,
    report,
    writing,
)
from fedlib.core.texts import printable
from fedlib.tables.streams import ReadOptions
from fedlib.transports.http.wire import CannotJoin

if TYPE_CHECKING:
    from fedlib.core.client import Client
    from fedlib.core.messages import Message
    from fedlib.core.site_memory import TableMemory
    from fedlib.protection.policy import Policy
    from fedlib.protection.secure import Identity
    from fedlib.tables.files import Table
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

    Attributes
    ----------
    reading : ReadOptions
        How its files are read.
    arguments : mapping of str to object
        Additional arguments of the protocol's client.
    """

    url: str
    data: Path
    reading: ReadOptions
    arguments: Mapping[str, Any]
    schema: Path | None
    eval_data: Path | None
    labels_out: Path | None
    token_file: Path | None
    passive: bool
    protocol: str | None
    ca: Path | None
    state_dir: Path | None
    policy: Path | None
    ledger_out: Path | None
    secure_key: Path | None
    public_keys: Path | None
    insecure: bool
    proxy: str | None
    patience: float = 0.0

    @classmethod
    def of(cls, given: dict[str, Any]) -> JoinOptions:
        """Return the options with the values that a command has received."""
        arguments = {
            name.removeprefix(CLIENT): value
            for name, value in given.items()
            if name.startswith(CLIENT) and value is not None
        }
        others = {name: value for name, value in given.items() if not name.startswith(CLIENT)}
        return cls(reading=reading(others), arguments=arguments, **others)

    @property
    def raw(self) -> bool:
        """Whether the agreed protocol takes raw tables."""
        return raw_tables(self.protocol)


def join_options(checked: bool = True) -> list[click.Parameter]:
    """Return the argument and the options from which `JoinOptions` follow.

    Parameters
    ----------
    checked : bool, default=True
        Whether the files must exist, and whether it must be possible to write to the folders.
    """
    existing, folder = (EXISTING, check_folder) if checked else (FILE, None)
    return [
        click.Argument(["url"]),
        data_option(existing),
        *reading_options(),
        click.Option(
            ["--schema"],
            type=existing,
            help="This site's copy of the schema of the study (JSON): the columns of the data are"
            " read by it, and the site takes part in no run with another one.",
        ),
        click.Option(
            ["--eval-data"],
            type=existing,
            help="A file with rows for validation only, with the columns of the data, for a"
            " protocol that validates.",
        ),
        click.Option(
            ["--labels-out"],
            type=FILE,
            callback=folder,
            help="The file (.csv or .npy) for the cluster of each row, in the order of the rows.",
        ),
        click.Option(["--token-file"], type=existing, help="The file with this site's token."),
        click.Option(
            ["--passive"], is_flag=True, help="Receive the result without sharing any data."
        ),
        click.Option(
            ["--protocol"],
            help="The only protocol to which this site agrees. With pipeline/NAME, summary, xgboost"
            " or xgb-regressor, the features may be text and have gaps. aligned/NAME is a protocol"
            " that first aligns the rows, leave-one-site-out/NAME one that is validated.",
        ),
        click.Option(
            ["--ca"],
            type=existing,
            help="The authority (PEM) that has signed the server's certificate.",
        ),
        click.Option(
            ["--state-dir"],
            type=FOLDER,
            help="A folder for this site's state, so that a restarted site continues where it"
            " stopped.",
        ),
        click.Option(
            ["--policy"],
            type=existing,
            help="The file (TOML) with the rules about what may leave this site.",
        ),
        click.Option(
            ["--ledger-out"],
            type=FILE,
            callback=folder,
            help="Write the messages to and from this site with what they disclose (CSV).",
        ),
        click.Option(
            ["--secure-key"],
            type=existing,
            help="This site's private key NAME.key. The site then sends data only as terms of"
            " secure sums.",
        ),
        click.Option(
            ["--public-keys"],
            type=existing,
            help="The public keys of all sites.  [default: keys.json next to the private key]",
        ),
        click.Option(["--insecure"], is_flag=True, help="Allow plain HTTP to other machines."),
        click.Option(["--proxy"], help="The proxy for the calls to the server, http://host:port."),
    ]


PATIENCE = click.Option(
    ["--patience"],
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds during which calls are repeated while the server does not answer.",
)


def _join(**given: Any) -> None:
    """Take part in the run at URL as one site.

    The token is read from --token-file, or else from the environment variable FEDLIB_TOKEN.
    """
    take_part(JoinOptions.of(given))


join = JoinCommand("join", params=[*join_options(), PATIENCE], callback=_join, help=_join.__doc__)


def take_part(
    options: JoinOptions, review: Callable[[Message, Message], bool] | None = None
) -> None:
    """Take part in a run; ``review`` returns whether a reply may be sent."""
    rules = read_policy(options.policy)
    identity = read_identity(options.secure_key, options.public_keys)
    secret = read_token(options.token_file)
    protocol, rows = options.protocol, SiteRows(options, identity is not None)
    rows.read(options.data)  # so that what cannot be read is reported before any call
    guarded = bool(options.policy or options.ledger_out or review)
    states: list[Message | None] = []
    memory = read_memory(options.data, options.secure_key, rows.digests[options.data])

    def make(served: str) -> Client:
        from fedlib.sites.site import make_client  # imports the protocols, which takes a second

        client = make_client(
            served,
            rows.read(options.data),
            options.arguments,
            agreed=protocol,
            passive=options.passive,
            eval_table=None if options.eval_data is None else rows.read(options.eval_data),
            identity=identity,
            memory=memory,
        )
        if not guarded:
            return client
        from fedlib.protection.policy import GuardedClient

        return GuardedClient(client, rules, served, review)

    def accept(welcome: Welcome) -> None:
        check_welcome(welcome, options)
        n_keys = len(identity.public_keys) if identity else welcome.n_clients
        if welcome.secure and n_keys < welcome.n_clients:
            raise CannotJoin(
                f"the file of public keys has {n_keys} sites, and the run {welcome.n_clients}: get"
                " the file keys.json with the keys of all sites",
                "TooFewKeys",
            )
        if rows.schema is not None:
            rows.accept(welcome)

    if protocol is not None:  # so that invalid data are reported before any call
        try:
            check_allowed(rules, protocol)
            check_labels(protocol, options.labels_out)
            make(protocol)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    try:
        problems = _run(options, make, secret, states, rows, accept)
    finally:
        if options.ledger_out:
            _write_ledger(options.ledger_out, states)
    if options.labels_out:
        _write_labels(options.labels_out, states[-1], rows.read(options.data))
    if problems:
        raise click.ClickException(
            "the run has finished, but its result does not fit all rows:"
            f" {printable('; '.join(problems))}"
        )
    report("finished")


class SiteRows:
    """The rows in a site's files, as its schema has them if there is one.

    Parameters
    ----------
    options : JoinOptions
    protected : bool
        Whether the site takes part in protected runs only.
    """

    def __init__(self, options: JoinOptions, protected: bool):
        self.options, self.protected = options, protected
        self.schema = read_schema(options.schema)
        if self.schema is not None:
            check_reading(self.schema, options.reading)
        self.digests: dict[Path, str] = {}
        self._tables: dict[tuple[Path, bool], Table] = {}

    def read(self, path: Path) -> Table:
        """Return the rows in a file; with a schema, tell the operator what it changes."""
        from fedlib.core.site_memory import digest_of

        key = path, self.protected
        if key not in self._tables:
            before = self.digests.get(path) or digest_of(path)  # that of this process's memory
            self._tables[key], self.digests[path] = self._read(path), before
            if digest_of(path) != before:
                raise click.ClickException(f"{path} has changed since the start: join again")
        return self._tables[key]

    def _read(self, path: Path) -> Table:
        if self.schema is None:
            return read_rows(path, self.options.reading, self.options.raw)
        sheet = self.options.reading.sheet
        with naming(path):
            table, changes = self.schema.apply(path, self.protected, sheet=sheet)
        for line in str(changes).splitlines():
            report(f"{path.name}: {printable(line)}")
        return table

    def accept(self, welcome: Welcome) -> None:
        """Raise ValueError, with the differences, if the run has another schema."""
        from fedlib.tables.schema.schema import check_same

        self.protected = self.protected or welcome.protected
        try:
            check_same(self.schema, welcome.digest, welcome.schema)
        except ValueError as error:
            raise CannotJoin(str(error), "OtherSchema") from error


def read_policy(path: Path | None) -> Policy | None:
    """Return the rules in a file."""
    if path is None:
        return None
    from fedlib.protection.policy import Policy

    with naming(path):
        return Policy.read(path)


def read_identity(private: Path | None, public: Path | None) -> Identity | None:
    """Return the keys of this site and of the others; None without a private key."""
    if private is None:
        if public is not None:
            raise click.UsageError("--public-keys needs --secure-key")
        return None
    from fedlib.core.site_memory import SiteIsLocked
    from fedlib.protection.secure import Identity

    try:
        identity = Identity.read(private, public)
        if identity.memory is not None:
            identity.memory.lock.check()
        return identity
    except (SiteIsLocked, ValueError) as error:
        raise click.ClickException(str(error)) from error


def read_memory(data: Path, key: Path | None, digest: str | None = None) -> TableMemory:
    """Return what this site remembers about the rows in a file, which has the digest."""
    from fedlib.core.site_memory import OldMemory, SiteIsLocked, TableMemory, digest_of

    try:
        memory = TableMemory.of_digest(digest or digest_of(data), key)
        assert memory.lock is not None
        memory.lock.check()
        memory.values("")  # reports a file that cannot be read, or is too old
    except OSError as error:
        raise click.ClickException(f"the state folder ($FEDLIB_STATE): {error}") from error
    except (OldMemory, SiteIsLocked, ValueError) as error:
        raise click.ClickException(str(error)) from error
    return memory


def check_allowed(policy: Policy | None, protocol: str) -> None:
    """Raise ValueError when the rules do not allow a protocol."""
    if policy is not None and policy.rules(protocol) is None:
        allowed = ", ".join(policy.protocols or ())
        raise ValueError(f"the protocol {protocol} is not allowed by the policy, only {allowed}")


def check_welcome(welcome: Welcome, options: JoinOptions) -> None:
    """Raise ValueError when this site cannot take part in a run as it wants to."""
    if welcome.secure and options.secure_key is None:
        raise CannotJoin("the run has secure sums: join with --secure-key NAME.key", "NoSecureKey")
    check_labels(welcome.protocol, options.labels_out)


def check_labels(protocol: str, file: Path | None) -> None:
    """Raise ValueError when there will be no labels for a file."""
    if file is None:
        return
    from fedlib.core.registry import find_estimator, unwrapped  # takes a second

    around, name = unwrapped(protocol)
    known = [one for one in (*around, find_estimator(name)) if one is not None]
    if not all(one.has_labels for one in known):
        raise ValueError(f"{protocol} gives the rows no labels: join without --labels-out")


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


def _run(
    options: JoinOptions,
    make: Callable[[str], Client],
    secret: str,
    states: list[Message | None],
    rows: SiteRows,
    accept: Callable[[Welcome], None],
) -> Sequence[str]:
    """Join the run with the client that ``make`` returns; append its last state to ``states``.

    ``accept`` raises ValueError if this site cannot take part. Return the problems with the result
    (`Client.problems`).
    """
    with extra("http"):
        from fedlib.transports.http import Checkpoint, JoinError, Unreachable, kept_state
        from fedlib.transports.http import join as join_run
    made: list[Client] = []
    url, state_dir = options.url, options.state_dir

    def make_once(served: str) -> Client:
        made.append(make(served))
        n_rows = len(made[0].X)
        report(f"joined {served} with {n_rows} rows", {"protocol": served, "rows": n_rows})
        return made[0]

    try:
        outcome = join_run(
            url,
            make_once,
            secret,
            state_dir=state_dir,
            ca=str(options.ca) if options.ca else None,
            patience=options.patience,
            insecure=options.insecure,
            proxy=options.proxy,
            schema=rows.schema.digest if rows.schema else "",
            accept=accept,
        )
    except Unreachable as error:
        state = kept_state(state_dir) if state_dir else None
        states.append(state)
        if getattr(state, "labels", None) is None:
            raise click.ClickException(str(error)) from error
        report(f"{error}; using the labels saved in {state_dir}", level=logging.WARNING)
        kept = Checkpoint.read(state_dir) if state_dir else None
        return kept.problems if kept else ()
    except (JoinError, ValueError) as error:
        raise click.ClickException(printable(str(error))) from error
    except OSError as error:  # of a file of this site: the server's answers are no such errors
        raise click.ClickException(printable(str(error))) from error
    finally:
        states += [client.state for client in made]
    if outcome == "stopped":
        raise click.ClickException("the server has stopped the run")
    if outcome != "finished":
        raise click.ClickException(f"the run continued without this site: {printable(outcome)}")
    return [problem for client in made for problem in client.problems]


def _write_ledger(path: Path, states: list[Message | None]) -> None:
    """Write the site's ledger; it is empty if the site has not joined."""
    from fedlib.core.ledger import Ledger
    from fedlib.tables.columns import csv_bytes
    from fedlib.tables.files import write_file

    ledger = getattr(states[-1], "ledger", None) if states else None
    with writing(path):
        write_file(path, csv_bytes((ledger or Ledger()).to_frame()), mode=0o600)


def _write_labels(path: Path, state: Message | None, table: Table) -> None:
    from fedlib.tables.files import write_labels

    labels = getattr(state, "labels", None)
    if labels is None:
        raise click.ClickException("the rows of this site have no labels after this run")
    with writing(path):
        write_labels(path, labels, table)
