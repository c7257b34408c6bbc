"""Shared parts of the commands: types of options, the options for a file of rows, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fedlib.tables.files import Table

FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True, readable=True)
FOLDER = click.Path(path_type=Path, file_okay=False)
CLIENT = "client_"  # prefix of the names of options that are arguments of a client

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


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


def options_for_rows(command: Decorated) -> Decorated:
    """Add the options that name a file of rows and the columns in it."""
    options = [
        click.option(
            "--data",
            type=EXISTING,
            required=True,
            help="The file with the rows: .csv, .tsv, .arff, .parquet or .npy.",
        ),
        click.option(
            "--columns", help="The features, separated by commas.  [default: all other columns]"
        ),
        click.option("--target", help="The column with the classes, for a protocol that needs it."),
        click.option(
            "--sample-weight", help="The column with the weights, for a protocol that uses them."
        ),
        click.option("--ids", help="The column with the identifiers of the rows."),
        click.option(
            "--no-header",
            is_flag=True,
            help="The text file has no column names; the columns are called 0, 1, …",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def read_rows(
    data: Path,
    columns: str | None,
    target: str | None,
    sample_weight: str | None,
    ids: str | None,
    no_header: bool,
    raw: bool = False,
) -> Table:
    """Return the rows that the options name; ``raw`` ones may contain text and gaps."""
    from fedlib.tables.files import read_table

    try:
        return read_table(data, columns, target, sample_weight, ids, not no_header, raw)
    except ValueError as error:
        raise click.ClickException(f"{data}: {error}") from error
