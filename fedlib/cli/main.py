"""The command line: ``fedlib token``, ``fedlib serve``, ``fedlib join``, ``fedlib protocols``.

Nothing here knows a protocol. A protocol's options come from its estimator's signature, parameter
constraints and docstring, a site's further options from the signatures of the clients, so that a
new estimator is served and joined as soon as it is imported.

The rules:

- What can be found wrong before a call is made is found before: files, columns, options.
- One line tells how it goes, on standard error.
- Status 0: done. 1: it failed, and one line says why. 2: the command is wrong. 130: interrupted.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import version
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import click
import msgspec
import numpy as np

from fedlib import __version__
from fedlib.federated import Federated, protocols
from fedlib.files import Table, read_array, read_table, write_file, write_labels
from fedlib.ledger import SERVER, Ledger
from fedlib.messages import Message
from fedlib.protocol import Client, TooFewClients
from fedlib.validation import Interval, InvalidParameterError, StrOptions

if TYPE_CHECKING:
    from fedlib.transports.http.server import HTTP

__all__ = ["cli", "main", "messages_of", "save_model"]

POLL = 0.1  # seconds after which the server's progress is looked at again
OWN = "client_"  # begins the names of options that are a client's own arguments
NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True, readable=True)
FOLDER = click.Path(path_type=Path, file_okay=False)
ABOVE_0 = click.FloatRange(0, min_open=True)


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
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("error: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        sys.exit(cli.main(arguments, "fedlib", standalone_mode=False) or 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)


class _OneLine(logging.Formatter):
    """An error's own line says enough: no traceback."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return ""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).rstrip()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import a module of your own first, which may bring further protocols.",
)
def cli(modules: Sequence[str]) -> None:
    """Federated clustering and boosting between real sites.

    One machine serves a run; each site joins it, computes on its own data, and only calls out.
    """
    sys.path.insert(0, "")  # as `python -m` does: one's own module may lie here
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise click.UsageError(f"cannot import {module}: {error}") from error


# Tokens


@cli.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--dir", "folder", type=FOLDER, default="tokens", show_default=True, help="Where to write them."
)
@click.option("--renew", is_flag=True, help="Replace the token of a client that has one.")
def token(names: Sequence[str], folder: Path, renew: bool) -> None:
    """Make a secret token for each client NAME.

    DIR/NAME.token is for that site alone. DIR/clients.json is for the server: it holds digests,
    from which no token can be made. Clients that are there already stay.
    """
    path = folder / "clients.json"
    clients = read_clients(path) if path.exists() else {}
    taken = [name for name in names if name in clients]
    if taken and not renew:
        raise click.UsageError(f"{', '.join(taken)}: there is a token already; --renew replaces it")
    make_tokens(names, folder, clients)
    for name in names:
        click.echo(f"{folder / name}.token: for {name} alone")
    click.echo(f"{path}: for the server, {len(clients)} clients")


def make_tokens(names: Sequence[str], folder: Path, clients: dict[str, str]) -> None:
    """Write a token for each name, and the digests of all."""
    from fedlib.transports.http.client import digest, new_token

    for name in names:
        if not NAME.fullmatch(name) or name == SERVER:
            raise click.UsageError(
                f"a client's name is 1 to 64 letters, digits, _ - or . and not {SERVER!r};"
                f" got {name!r}"
            )
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in names:
            secret = new_token()
            write_file(folder / f"{name}.token", f"{secret}\n".encode(), mode=0o600)
            clients[name] = digest(secret)
        write_file(folder / "clients.json", f"{json.dumps(clients, indent=1)}\n".encode())


def read_clients(path: Path) -> dict[str, str]:
    """Return the digests of all clients' tokens by name."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise click.UsageError(f"{path} is no file of clients by fedlib token: {error}") from error


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error}") from error


def _check_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse a file that could not be written when all the work is done."""
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"the folder of {path} does not exist or cannot be written to")
    return path


# What a protocol says of itself


class Parameter(click.ParamType):
    """The type of an option whose value must meet scikit-learn's parameter constraints.

    It turns text into what the constraints allow; whether it is in range the estimator says.
    """

    def __init__(self, constraints: Sequence[Any]):
        self.constraints = list(constraints)
        self.options = sorted(
            option
            for constraint in constraints
            if isinstance(constraint, StrOptions)
            for option in constraint.options
        )
        self.numbers = [c.type for c in constraints if isinstance(c, Interval)]
        self.whole = Integral in self.numbers or "random_state" in constraints
        self.real = any(number not in (None, Integral) for number in self.numbers)
        self.array = "array-like" in constraints
        self.none = None in constraints
        kinds = [*self.options, *(["none"] if self.none else [])]
        kinds += ["FLOAT"] if self.real else ["INTEGER"] if self.whole else []
        kinds += ["FILE"] if self.array else []
        self.name = "|".join(kinds) or "text"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{self.name}]" if "|" in self.name else self.name.upper()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str) or value in self.options:
            return value
        if self.none and value.lower() == "none":
            return None
        kinds: list[Callable[[str], Any]] = [int] if self.whole else []
        for kind in [*kinds, float] if self.real else kinds:
            try:
                return kind(value)
            except ValueError:
                pass
        if self.array:
            try:
                return read_array(Path(value))
            except (OSError, ValueError) as error:
                self.fail(f"{value} is no array in a .npy or .csv file: {error}", param, ctx)
        self.fail(f"{value!r} is none of: {self.name.replace('|', ', ')}", param, ctx)


def parameter_docs(described: object) -> dict[str, str]:
    """Return what a numpydoc docstring says of each parameter.

    Examples
    --------
    >>> parameter_docs(Parameter)
    {}
    >>> from fedlib import VerticalDBSCAN
    >>> parameter_docs(VerticalDBSCAN)["min_samples"]
    'How many neighbours, itself included, make a row a core point, at least 1.'
    """
    text = inspect.getdoc(described) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-{3,}$|\Z)", text, re.M | re.S)
    docs: dict[str, str] = {}
    waiting: list[str] = []  # for the text, which several parameters may share
    for block in re.split(r"\n(?=\w)", section[1].rstrip() if section else ""):
        names, _, body = block.partition("\n")
        waiting += re.split(r",\s*", names.partition(" : ")[0])
        if body:
            words = " ".join(body.split()).replace("``", "").replace("`", "").replace("**", "^")
            docs |= dict.fromkeys(waiting, words)
            waiting = []
    return docs


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-').lower()}"


def protocol_options(estimator: type[Federated]) -> list[click.Option]:
    """Return an option for each parameter of an estimator."""
    docs = parameter_docs(estimator)
    options = []
    for name, parameter in inspect.signature(estimator).parameters.items():
        constraints = estimator._parameter_constraints.get(name, [])
        given: dict[str, Any] = {"help": docs.get(name, ""), "show_default": True}
        required = parameter.default is inspect.Parameter.empty
        given |= {"required": True} if required else {"default": parameter.default}
        flags = f"{_flag(name)}/--no-{_flag(name)[2:]}"
        kind = Parameter(constraints)
        if "boolean" in constraints and not (kind.options or kind.numbers):
            options.append(click.Option([flags, name], **given))
        else:
            options.append(click.Option([_flag(name), name], type=kind, **given))
    return options


def messages_of(estimator: type[Federated]) -> list[type[Message]]:
    """Return the messages of a protocol: each request with its reply, as its client answers them.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> [message.__name__ for message in messages_of(HorizontalDBSCAN)]
    ['CountCells', 'CellCounts', 'AssignCells', 'Done']
    """
    requests = estimator.client_class.handlers
    return [message for request in requests for message in (request, request.reply)]


@cli.command("protocols")
@click.option("--names", is_flag=True, help="The names alone.")
def list_protocols(names: bool) -> None:
    """List the protocols, and what leaves the building in each."""
    for name, estimator in protocols().items():
        if names:
            click.echo(name)
            continue
        click.echo(f"{name}: {(inspect.getdoc(estimator) or '').partition(chr(10))[0]}")
        told = messages_of(estimator)
        for request, reply in zip(told[::2], told[1::2], strict=True):
            click.echo(f"  server  {request.__name__}: {request.discloses}")
            click.echo(f"  site    {reply.__name__}: {reply.discloses}")


# The server


class _Serve(click.Group):
    """One command for each protocol there is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(protocols())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        estimator = protocols().get(cmd_name)
        if estimator is None:
            return None
        own = protocol_options(estimator)
        doc = (inspect.getdoc(estimator) or "").partition("\n")[0]

        def run(**given: Any) -> int:
            parameters = {str(option.name): given.pop(str(option.name)) for option in own}
            return serve(estimator(**parameters), **given)

        text = f"Serve one run of {cmd_name}.\n\n{doc}"
        return click.Command(cmd_name, params=[*own, *SERVE], callback=run, help=text)


@cli.command("serve", cls=_Serve, subcommand_metavar="PROTOCOL [OPTIONS]...")
def _serve() -> None:
    """Wait for the sites, run a protocol with them, and write model and ledger."""


SERVE: list[click.Parameter] = [
    click.Option(
        ["--clients", "n_clients"],
        type=click.IntRange(1, 10_000),
        help="How many sites there are; makes a token for each of site-1 to site-N that has none.",
    ),
    click.Option(
        ["--token-dir"],
        type=FOLDER,
        default="tokens",
        show_default=True,
        help="Where --clients writes tokens.",
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
        help="How many sites must stay to the end.  [default: all]",
    ),
    *(
        click.Option([flag], type=kind, default=default, show_default=True, help=text)
        for flag, kind, default, text in [
            ("--join-timeout", ABOVE_0, 600.0, "Seconds to wait for the sites to join."),
            ("--request-timeout", ABOVE_0, 3600.0, "Seconds that a site may take to answer."),
            ("--gone-after", ABOVE_0, 5.0, "Seconds without a sign of life before a site is gone."),
            (
                "--rejoin-timeout",
                click.FloatRange(0),
                0.0,
                "Seconds for which a site that is gone may come back before it is lost.",
            ),
            ("--max-bytes", click.IntRange(1), 2**30, "Size of the greatest reply accepted."),
            (
                "--linger",
                click.FloatRange(0),
                0.0,
                "Seconds for which to stay after the run: for the status page, and for sites that"
                " come back.",
            ),
        ]
    ),
    click.Option(["--max-seconds"], type=ABOVE_0, help="Seconds that the whole run may last."),
    click.Option(
        ["--status-page/--no-status-page"],
        default=True,
        show_default=True,
        help="Show names, steps and sizes, no data, at / to whoever can connect.",
    ),
    click.Option(
        ["--model-out"],
        type=FILE,
        callback=_check_folder,
        help="Write the model: .npz (numpy) or .json.",
    ),
    click.Option(
        ["--ledger-out"], type=FILE, callback=_check_folder, help="Write the ledger (CSV)."
    ),
]


def serve(
    estimator: Federated,
    *,
    n_clients: int | None,
    token_dir: Path,
    tokens: Path | None,
    bind: str,
    min_clients: int | None,
    linger: float,
    model_out: Path | None,
    ledger_out: Path | None,
    **options: Any,
) -> int:
    """Serve one run; return the exit status."""
    from fedlib.transports.http.server import HTTP

    if (n_clients is None) == (tokens is None):
        raise click.UsageError("either --clients or --tokens says which sites there are")
    try:
        estimator.protocol()
    except InvalidParameterError as error:
        raise click.UsageError(str(error)) from error
    clients = read_clients(tokens) if tokens else _site_tokens(n_clients or 0, token_dir)
    if min_clients is not None and min_clients > len(clients):
        raise click.UsageError(f"--min-clients is {min_clients}, of {len(clients)} clients")
    for file in ("cert", "key"):
        options[file] = options[file] and str(options[file])
    shown = {name: _shown(value) for name, value in estimator.get_params().items()}
    try:
        transport = HTTP(clients, bind, protocol=estimator.name, parameters=shown, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{bind}: {error}") from error
    outcome = "stopped"
    try:
        click.echo(f"{estimator.name} at {transport.url}", err=True)
        if tokens is None:
            click.echo(f"each site's token: {token_dir}{os.sep}site-N.token", err=True)
        with _progress(transport):
            estimator.fit(transport, min_clients=min_clients)
            transport.finish()
            outcome = "finished"
        if model_out:
            save_model(estimator, model_out)
        return 0
    except TooFewClients as error:
        for client in transport.status().clients:
            if client.state == "lost":
                when = client.since.strftime(" at %H:%M:%S") if client.since else ""
                click.echo(f"lost{when}: {client.name}, {client.why}", err=True)
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    finally:
        transport.finish(outcome)
        try:
            if ledger_out:
                with _written(ledger_out):
                    table = (transport.ledger or Ledger()).to_frame()
                    write_file(ledger_out, table.to_csv(index=False, lineterminator="\n").encode())
            time.sleep(linger if sys.exc_info()[0] is not KeyboardInterrupt else 0)
        finally:
            transport.close()


def _site_tokens(n_clients: int, folder: Path) -> dict[str, str]:
    """Return the digests of site-1 to site-N; tokens that were handed out before stay valid."""
    path = folder / "clients.json"
    clients = read_clients(path) if path.exists() else {}
    names = [f"site-{i}" for i in range(1, n_clients + 1)]
    missing = [name for name in names if name not in clients]
    if missing:
        make_tokens(missing, folder, clients)
    return {name: clients[name] for name in names}


def _shown(value: object) -> object:
    return f"array of shape {value.shape}" if isinstance(value, np.ndarray) else value


@contextmanager
def _progress(transport: HTTP) -> Iterator[None]:
    """Tell how the run goes: on one line of a terminal, else in a line whenever it changes."""
    done = threading.Event()
    terminal = sys.stderr.isatty()
    told = [""]

    def tell() -> None:
        text = transport.status().headline
        if text != told[0]:
            told[0] = text
            click.echo(f"\r\x1b[2K{text}" if terminal else text, err=True, nl=not terminal)

    def watch() -> None:
        while not done.wait(POLL):
            tell()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        tell()
        if terminal:
            click.echo(err=True)


def save_model(estimator: Federated, path: Path) -> None:
    """Write what an estimator has learnt: its parameters and its public fitted attributes.

    A ``.json`` file holds all of it as text. Any other holds the arrays, in numpy's ``.npz`` format
    without pickle, and the rest as JSON text under ``model.json``, where an array's place says
    ``{"array": name}``. What neither can hold is named in a warning.

    Examples
    --------
    >>> import tempfile
    >>> from fedlib import HorizontalDBSCAN
    >>> model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit([[[0.1], [0.2]], [[5.0]]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.npz")
    ...     save_model(model, path)
    ...     saved = np.load(path)
    >>> saved["cell_labels_"], json.loads(str(saved["model.json"]))["protocol"]
    (array([ 0, -1]), 'horizontal-dbscan')
    """
    arrays: dict[str, np.ndarray] = {}
    keep = None if path.suffix == ".json" else arrays
    fitted = {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and not name.startswith("_") and name != "ledger_"
    }
    known: dict[str, dict[str, Any]] = {"parameters": {}, "attributes": {}}
    for part, values in zip(known, (estimator.get_params(), fitted), strict=True):
        for name, value in values.items():
            try:
                known[part][name] = _plain(value, name, keep)
            except TypeError as error:
                click.echo(f"warning: {path.name} is without {name}: {error}", err=True)
    versions = {"fedlib": __version__} | {name: version(name) for name in ("numpy", "scikit-learn")}
    text = json.dumps(
        {"protocol": estimator.name, "estimator": type(estimator).__name__}
        | known
        | {"versions": versions},
        indent=1,
    )
    data = io.BytesIO(text.encode())
    if keep is not None:
        data = io.BytesIO()
        files: dict[str, Any] = {"model.json": np.array(text), **arrays}
        np.savez_compressed(data, **files)
    with _written(path):
        write_file(path, data.getvalue())


def _plain(value: Any, name: str, arrays: dict[str, np.ndarray] | None) -> Any:
    """Return a value in JSON's terms, its arrays set aside; TypeError where that cannot be."""
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), name, arrays)
    if isinstance(value, np.ndarray):
        if arrays is None or value.dtype.hasobject:
            return _plain(value.tolist(), name, arrays)
        arrays[name] = value
        return {"array": name}
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(own, f"{name}.{key}", arrays) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own, f"{name}.{i}", arrays) for i, own in enumerate(value)]
    raise TypeError(f"it holds a value of class {type(value).__name__}")


# The sites


class _Join(click.Command):
    """The command with an option for each further argument of any protocol's client."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not hasattr(self, "_generated"):
            self._generated = list(client_options().values())
        own = super().get_params(ctx)
        return [*own[:-1], *self._generated, own[-1]]


def client_arguments(estimator: type[Federated]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a protocol's client beside its data."""
    signature = inspect.signature(estimator.client_class)
    return dict(list(signature.parameters.items())[1:])


def client_options() -> dict[str, click.Option]:
    """Return an option for each argument that some protocol's client takes, by its name.

    Identifiers come from the data, by ``--ids``; a secret of bytes comes from a file.
    """
    options: dict[str, click.Option] = {}
    for protocol, estimator in protocols().items():
        kind = estimator.client_class
        hints = get_type_hints(kind.__init__)
        docs = parameter_docs(kind) | parameter_docs(kind.__init__)
        for name in client_arguments(estimator):
            if name == "ids":
                continue
            if name in options:
                text = (options[name].help or "").replace("; for ", f"; for {protocol}, ")
                options[name].help = text
                continue
            wanted = set(get_args(hints.get(name))) | {hints.get(name)}
            types = [(bytes, EXISTING), (bool, click.BOOL), (int, click.INT), (float, click.FLOAT)]
            whole = [(Any, click.INT)] if name == "random_state" else []
            given = next((t for known, t in [*types, *whole] if known in wanted), click.STRING)
            said = f"{docs.get(name, '').rstrip('.') or name}; for {protocol}."
            said = f"A file that holds: {said}" if given is EXISTING else said
            options[name] = click.Option(
                [_flag(name), OWN + name],
                type=given,
                required=False,
                help=said,
            )
    return options


@cli.command(cls=_Join)
@click.argument("url")
@click.option(
    "--data",
    type=EXISTING,
    required=True,
    help="This site's rows: .csv, .tsv, .arff, .parquet or .npy.",
)
@click.option("--columns", help="The features, with commas between.  [default: all the others]")
@click.option("--target", help="The column with the classes, for a protocol that learns them.")
@click.option("--sample-weight", help="The column with the rows' weights, for such a protocol.")
@click.option("--ids", help="The column with the rows' identifiers.")
@click.option("--no-header", is_flag=True, help="The text file has no names; columns are 0, 1, …")
@click.option(
    "--labels-out",
    type=FILE,
    callback=_check_folder,
    help="Write each row's cluster, row for row: .csv or .npy.",
)
@click.option("--token-file", type=EXISTING, help="The file with this site's token.")
@click.option("--passive", is_flag=True, help="Take the result and share nothing of the data.")
@click.option("--protocol", help="The protocol to which this site agrees; any other is refused.")
@click.option("--ca", type=EXISTING, help="The authority (PEM) that vouches for the server.")
@click.option(
    "--state-dir",
    type=FOLDER,
    help="Where to keep this site's state, so that it can be killed and started again.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds for which to call again when the server does not answer.",
)
@click.option("--insecure", is_flag=True, help="Allow plain HTTP beyond this machine.")
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
    state_dir: Path | None,
    ca: Path | None,
    **given: Any,
) -> None:
    """Take part in the run at URL as one site.

    The token is read from --token-file, or else from the environment variable FEDLIB_TOKEN.
    """
    from fedlib.transports.http import client as http_client

    own = {}
    for name in [name for name in given if name.startswith(OWN)]:
        value = given.pop(name)
        if value is not None:
            name = name.removeprefix(OWN)
            own[name] = value.read_bytes() if isinstance(value, Path) else value
    text = token_file.read_text(errors="replace") if token_file else os.environ.get("FEDLIB_TOKEN")
    secret = (text or "").strip()
    if not secret:
        raise click.UsageError("the token is missing: --token-file, or FEDLIB_TOKEN")
    if protocol is not None and protocol not in protocols():
        raise click.UsageError(f"there is no protocol {protocol!r} here: {', '.join(protocols())}")
    try:
        table = read_table(data, columns, target, sample_weight, ids, header=not no_header)
    except ValueError as error:
        raise click.ClickException(f"{data}: {error}") from error
    made: list[Client] = []

    def make(told: str) -> Client:
        made.append(make_client(told, protocol, table, own, passive))
        click.echo(f"joined {told} with {len(made[0].X)} rows", err=True)
        return made[0]

    try:
        if protocol is not None:  # what is wrong with the data is wrong before any call
            make_client(protocol, protocol, table, own, passive)
        outcome = http_client.join(
            url, make, secret, state_dir=state_dir, ca=str(ca) if ca else None, **given
        )
        state = made[0].state
    except http_client.Unreachable as error:
        state = http_client.kept_state(state_dir) if state_dir else None
        if getattr(state, "labels", None) is None:
            raise click.ClickException(str(error)) from error
        outcome = "finished"
        click.echo(f"{error}; these labels are the ones kept in {state_dir}", err=True)
    except (http_client.JoinError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{url}: {error}") from error
    if outcome != "finished":
        if outcome == "stopped":
            raise click.ClickException("the server has stopped the run")
        raise click.ClickException(f"the run goes on without this site: {outcome}")
    if labels_out:
        labels = getattr(state, "labels", None)
        if labels is None:
            raise click.ClickException("this protocol has given the site no labels")
        with _written(labels_out):
            write_labels(labels_out, labels, table)
    if state_dir:
        http_client.forget(state_dir)
    click.echo("finished", err=True)


def make_client(
    told: str, agreed: str | None, table: Table, own: Mapping[str, Any], passive: bool
) -> Client:
    """Return the client of a protocol, if it is here and the site agrees to it."""
    estimator = protocols().get(told)
    if agreed is not None and told != agreed:
        raise ValueError(f"the server runs {told!r}; this site agrees to {agreed!r} only")
    if estimator is None:
        raise ValueError(f"the server runs {told!r}; here are {', '.join(protocols())}")
    taken = client_arguments(estimator)
    strangers = [_flag(name) for name in own if name not in taken]
    if strangers:
        raise ValueError(f"a client of {told} has no use for {', '.join(strangers)}")
    options = dict(own)
    if "ids" in taken and table.ids is not None:
        options["ids"] = table.ids.tolist()
    part = table.X
    if getattr(estimator.client_class, "supervised", False):
        if table.y is None:
            raise ValueError(f"{told} learns classes: --target names the column that has them")
        part = (table.X, table.y)
        if table.sample_weight is not None:
            part = (*part, table.sample_weight)
    client: Client = estimator.client_class(part, **options)
    client.passive = passive
    return client


# Flower


@cli.group("flower")
def _flower() -> None:
    """Run the protocols on Flower, where one server is not enough."""


@_flower.command("new")
@click.argument("folder", type=FOLDER)
def new_flower_app(folder: Path) -> None:
    """Write an app into a new FOLDER, which `flwr run` takes as it is."""
    from fedlib.flower_app import new

    try:
        new(folder)
    except FileExistsError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{folder}: cannot be written: {error}") from error
    click.echo(f"{folder}: README.md says how to run it")
