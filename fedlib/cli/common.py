"""Shared parts of the commands: types of options, the options for a file of rows, errors.

Progress, warnings and errors of a command: one line each on standard error, as text or JSON.

With ``--log-format json`` each line is one JSON object. Its keys are ``time`` (ISO 8601 in UTC),
``level``, ``logger`` and ``message``, and further ones that depend on the event, such as ``client``
or ``step``.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import is_dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from fedlib.core.file_errors import UnreadableFile
from fedlib.core.wording import printable, read_edited
from fedlib.tables.streams import ReadOptions, split_list

FORMATS = ("text", "json")
FIELDS = "fields"  # the attribute of a log record with the fields of a reported event

progress = logging.getLogger("fedlib.cli")


class TextLines(logging.Formatter):
    """Progress as it is, warnings and errors behind ``warning:`` and ``error:``; no tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return prefix + printable(record.getMessage().rstrip())


class JSONLines(logging.Formatter):
    """One JSON object per line.

    Examples
    --------
    >>> record = logging.makeLogRecord({"msg": "2 of 3 joined", "levelname": "INFO", "name": "a"})
    >>> record.created, record.fields = 0.0, {"joined": 2}
    >>> print(JSONLines().format(record))  # doctest: +NORMALIZE_WHITESPACE
    {"time": "1970-01-01T00:00:00.000+00:00", "level": "info", "logger": "a",
     "message": "2 of 3 joined", "joined": 2}
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage().rstrip()),
        }
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line | getattr(record, FIELDS, {}))


class _Echo(logging.Handler):
    """Writes to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


handler = _Echo()
handler.setFormatter(TextLines())


def configure(log_format: str) -> None:
    """Write all lines in one of the `FORMATS` from now on."""
    handler.setFormatter(JSONLines() if log_format == "json" else TextLines())
    progress.handlers, progress.propagate = [handler], False
    progress.setLevel(logging.INFO)


def in_json() -> bool:
    """Return whether lines are JSON."""
    return isinstance(handler.formatter, JSONLines)


def report(text: str, fields: Mapping[str, Any] | None = None, level: int = logging.INFO) -> None:
    """Print one line about the progress.

    Parameters
    ----------
    text : str
    fields : mapping, optional
        More about the event, for lines in JSON.
    level : int, default=logging.INFO
    """
    progress.log(level, "%s", text, extra={FIELDS: dict(fields or {})})


if TYPE_CHECKING:
    from fedlib.tables.databases import Database
    from fedlib.tables.files import SiteFile, Table
    from fedlib.tables.schema import Report, Schema

    Rows = Path | Database


class OutputFile(click.Path):
    """The type of a file to write: before the run, its folder must exist and be writable."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.access(path.absolute().parent, os.W_OK):
            self.fail(f"the folder of {path} does not exist or cannot be written to", param, ctx)
        return path


FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True, readable=True)
OUTPUT = OutputFile(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
CLIENT = "client_"  # prefix of the names of options that are arguments of a client

# Types of parameters that several commands have.
Flag = Annotated[bool, {"is_flag": True}]
InputFile = Annotated[Path | None, EXISTING]
Output = Annotated[Path | None, OUTPUT]

Result = TypeVar("Result")


@contextmanager
def in_one_line(
    *kinds: type[Exception],
    before: str = "",
    error_class: Callable[[str], Exception] = click.ClickException,
) -> Iterator[None]:
    """Turn errors of these classes into one line, which begins with the text ``before``."""
    try:
        yield
    except kinds as error:
        raise error_class(f"{before}{error}") from error


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn an error in writing a file into one line."""
    return in_one_line(OSError, before=f"{path}: cannot be written: ")


@contextmanager
def extra(name: str) -> Iterator[None]:
    """If an import in the block fails, name the extra that installs the missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "fedlib").partition(".")[0]
        if package == "fedlib":
            raise
        raise click.ClickException(
            f'{package} is not installed: pip install "fedlib-study[{name}]"'
        ) from error


def parameter_docs(described: object) -> dict[str, str]:
    """Return the description of each parameter in a numpydoc docstring.

    Parameters
    ----------
    described : object
        A class or function. Without a section "Parameters" in its docstring, the result is empty.

    Examples
    --------
    >>> from fedlib import VerticalDBSCAN
    >>> sorted(parameter_docs(VerticalDBSCAN))
    ['eps', 'min_samples']
    >>> parameter_docs(ReadOptions)["ids"]
    'The column with the identifiers of the rows.'
    >>> parameter_docs(in_json)
    {}
    """
    text = inspect.getdoc(described) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-{3,}$|\Z)", text, re.M | re.S)
    docs: dict[str, str] = {}
    undescribed: list[str] = []  # several parameters may share one description
    for block in re.split(r"\n(?=\w)", section[1].rstrip() if section else ""):
        names, _, body = block.partition("\n")
        undescribed += re.split(r",\s*", names.partition(" : ")[0])
        if body:
            words = " ".join(body.split()).replace("``", "").replace("`", "").replace("**", "^")
            docs |= dict.fromkeys(undescribed, words)
            undescribed = []
    return docs


TYPES: list[tuple[type, click.ParamType]] = [
    (bytes, EXISTING),  # a secret is read from a file
    (bool, click.BOOL),
    (int, click.INT),
    (float, click.FLOAT),
]


def click_type(types: Collection[Any]) -> click.ParamType:
    """Return click's type for values of these types."""
    return next((option for known, option in TYPES if known in types), click.STRING)


def flag_of(name: str) -> str:
    """Return what a user writes for a parameter."""
    return f"--{name.replace('_', '-').lower()}"


def make_option(
    name: str, default: Any, text: str, kind: click.ParamType, **settings: Any
) -> click.Option:
    """Return the option for a parameter.

    Parameters
    ----------
    name : str
    default : object
        `inspect.Parameter.empty` if the option is required.
    text : str
        The help.
    kind : click.ParamType
        The type of its values. ``click.BOOL`` has the options ``--name`` and ``--no-name``, unless
        it is a flag.
    **settings
        Further ones of `click.Option`, and ``flag``, what a user writes instead of the name.
    """
    flag = settings.pop("flag", flag_of(name))
    if kind is click.BOOL and "is_flag" not in settings:
        flag = f"{flag}/--no-{flag[2:]}"
    if settings.get("multiple") and default is None:
        default = ()
    required = default is inspect.Parameter.empty
    given = {"required": True} if required else {"default": default, "show_default": True}
    return click.Option([flag, name], type=kind, help=text, **given | settings)


def _declared(record: Any) -> Iterator[tuple[inspect.Parameter, Any, list[Any]]]:
    """Yield the parameters of a record or function, with the type and the metadata of each."""
    hints = get_type_hints(record, include_extras=True)
    for name, parameter in inspect.signature(record).parameters.items():
        annotated = get_origin(hints[name]) is Annotated
        kind, *notes = get_args(hints[name]) if annotated else [hints[name]]
        yield parameter, kind, notes


def options_of(record: Any, settings: Mapping[str, Any] | None = None) -> list[click.Parameter]:
    """Return the arguments and options of a command from the parameters of a record or function.

    The metadata of ``Annotated`` say more of a parameter: a text is its help, else the docstring
    has it; a `click.ParamType` is the type of the values; a dictionary has further settings of
    `make_option`. A parameter without a text is an argument. One whose type is a dataclass stands
    for all options of that one, and its metadata may be the function that returns them. A mapping
    stands for options that are added later.

    Parameters
    ----------
    record : callable
        A function, or the class of a record.
    settings : mapping of str to mapping, optional
        Further settings of options by the name of the parameter.

    Examples
    --------
    >>> def show(path: Path, *, least: Annotated[int, "The least count."] = 1) -> None:
    ...     pass
    >>> [(one.name, one.param_type_name, one.type) for one in options_of(show)]
    [('path', 'argument', STRING), ('least', 'option', INT)]
    """
    docs, options = parameter_docs(record), list[click.Parameter]()
    for parameter, kind, notes in _declared(record):
        name = parameter.name
        more: dict[str, Any] = next((one for one in notes if isinstance(one, dict)), {})
        more = more | (settings or {}).get(name, {})
        if is_dataclass(kind):
            make = notes[0] if notes else options_of
            options += make(kind)
        elif get_origin(kind) is not Mapping:
            text = next((one for one in notes if isinstance(one, str)), docs.get(name, ""))
            types = [one for one in notes if isinstance(one, click.ParamType)]
            type_ = types[0] if types else click_type([kind, *get_args(kind)])
            if text:
                options.append(make_option(name, parameter.default, text, type_, **more))
            else:
                options.append(click.Argument([name], type=type_, **more))
    return options


# The options of reading, some of which are more than their types say.
SETTINGS = {
    "skip_lines": {"show_default": False},
    "na_values": {"metavar": "WORD", "multiple": True},
    "text": {"metavar": "COLUMN", "multiple": True},
}
Reading = Annotated[ReadOptions, partial(options_of, settings=SETTINGS)]


def call_with(record: Callable[..., Result], given: dict[str, Any]) -> Result:
    """Call a function, or make a record, with the values of its options (`options_of`).

    They are taken out of ``given``, the values of a command.
    """
    values: dict[str, Any] = {}
    for parameter, kind, _ in _declared(record):
        name = parameter.name
        if is_dataclass(kind):
            with in_one_line(ValueError, error_class=click.UsageError):
                values[name] = call_with(cast("Callable[..., object]", kind), given)
        elif get_origin(kind) is Mapping:
            added = {one: given.pop(one) for one in [*given] if one.startswith(CLIENT)}
            values[name] = {
                one.removeprefix(CLIENT): value for one, value in added.items() if value is not None
            }
        else:
            values[name] = given.pop(name)
    if record is ReadOptions:
        words = [word for text in values["na_values"] for word in split_list(text)]
        values |= {"na_values": words, "text": values["text"] or None}
    return record(**values)


def command(
    function: Callable[..., object],
    name: str = "",
    command_class: type[click.Command] = click.Command,
    group: click.Group | None = None,
    **settings: Any,
) -> click.Command:
    """Return the command that calls a function, with options from its parameters (`options_of`).

    It becomes one of the ``group``, if one is given.
    """
    made = command_class(
        name or function.__name__,
        params=options_of(function),
        callback=lambda **given: call_with(function, given),
        help=function.__doc__,
        **settings,
    )
    if group is not None:
        group.add_command(made)
    return made


def read_file(data: Rows, options: ReadOptions) -> SiteFile:
    """Return the columns in a file or of a query."""
    from fedlib.tables.files import SiteFile

    with naming(data):
        return SiteFile.read(data, options)


def read_rows(data: Rows, options: ReadOptions, raw: bool) -> Table:
    """Return the rows in a file or of a query; ``raw`` ones may contain text and gaps."""
    file = read_file(data, options)
    with naming(data):
        return file.table(raw)


def read_schema(path: Path | None) -> Schema | None:
    """Return the schema in a file; None without one."""
    if path is None:
        return None
    from fedlib.tables.schema import Schema

    with naming(path):
        return Schema.read(path)


def report_changes(path: Rows, changes: Report) -> None:
    """Tell the operator what a schema changes in a file."""
    for line in str(changes).splitlines():
        report(f"{path.name}: {printable(line)}")


def check_reading(schema: Schema, options: ReadOptions) -> None:
    """Refuse the options that say something else than a schema."""
    from fedlib.tables.schema.schema import check_options

    with in_one_line(ValueError, error_class=click.UsageError):
        check_options(schema, options)


@contextmanager
def naming(path: Rows) -> Iterator[None]:
    """Name the file or the database in an error about its content."""
    try:
        yield
    except UnreadableFile as error:
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error


def read_token(file: Path | None) -> str:
    """Return the site's token from a file or the environment."""
    if file is None:
        text = os.environ.get("FEDLIB_TOKEN", "").removeprefix("\ufeff")  # a shell keeps the mark
    else:
        text = read_edited(file).decode(errors="replace")
    if not text.strip():
        empty = f"{file} is empty" if file else "the token is missing"
        raise click.UsageError(f"{empty}: use --token-file or FEDLIB_TOKEN")
    if not re.fullmatch(r"\s*[!-~]+\s*", text):
        raise click.UsageError(
            f"{file or 'FEDLIB_TOKEN'} must contain the site's token as fedlib token writes it, one"
            " line of visible ASCII characters"
        )
    return text.strip()
