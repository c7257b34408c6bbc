"""Progress, warnings and errors of a command: one line each on standard error, as text or JSON.

With ``--log-format json`` each line is one JSON object. Its keys are ``time`` (ISO 8601 in UTC),
``level``, ``logger`` and ``message``, and further ones that depend on the event, such as ``client``
or ``step``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from fedlib.core.names import printable

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
