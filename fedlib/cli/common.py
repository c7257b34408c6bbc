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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlib.core.file_errors import UnreadableFile
from fedlib.core.texts import printable, read_edited
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
    from fedlib.tables.files import SiteFile, Table
    from fedlib.tables.schema import Schema

FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True, readable=True)
FOLDER = click.Path(path_type=Path, file_okay=False)
CLIENT = "client_"  # prefix of the names of options that are arguments of a client
METAVARS = {"na_values": "WORD", "text": "COLUMN"}  # of options that may be repeated


def check_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Check before the run that the folder of an output file exists and can be written to."""
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"the folder of {path} does not exist or cannot be written to")
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error in writing a file into one line."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error}") from error


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
    >>> parameter_docs(check_folder)
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


def data_option(existing: click.ParamType = EXISTING) -> click.Option:
    """Return the option that names the file of rows."""
    return click.Option(
        ["--data"],
        type=existing,
        required=True,
        help="The file with the rows: .csv, .tsv, .xlsx, .arff, .parquet or .npy.",
    )


def reading_options() -> list[click.Option]:
    """Return one option per field of `ReadOptions`."""
    docs = parameter_docs(ReadOptions)
    options = []
    for field in fields(ReadOptions):
        flag = f"--{field.name.replace('_', '-')}"
        settings: dict[str, Any] = {"help": docs[field.name]}
        if field.name == "header":
            flag, settings["default"] = f"{flag}/--no-header", None
        elif isinstance(field.default, int):
            settings |= {"type": click.INT, "default": field.default}
        elif field.name in METAVARS:
            settings |= {"metavar": METAVARS[field.name], "multiple": True}
        options.append(click.Option([flag], **settings))
    return options


def reading(given: dict[str, Any]) -> ReadOptions:
    """Take the values of `reading_options` out of those of a command and return them."""
    values = {field.name: given.pop(field.name) for field in fields(ReadOptions)}
    words = [word for text in values["na_values"] for word in split_list(text)]
    try:
        return ReadOptions(**values | {"na_values": words, "text": values["text"] or None})
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def read_file(data: Path, options: ReadOptions) -> SiteFile:
    """Return the columns in a file."""
    from fedlib.tables.files import SiteFile

    with naming(data):
        return SiteFile.read(data, options)


def read_rows(data: Path, options: ReadOptions, raw: bool) -> Table:
    """Return the rows in a file; ``raw`` ones may contain text and gaps."""
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


def check_reading(schema: Schema, options: ReadOptions) -> None:
    """Refuse the options that say something else than a schema."""
    from fedlib.tables.schema.schema import check_options

    try:
        check_options(schema, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error about its content."""
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
