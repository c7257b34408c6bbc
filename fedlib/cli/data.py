"""The rows of a site as options of a command: a file, or a query to a database."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from fedlib.cli.common import InputFile, in_one_line, naming, options_of, report
from fedlib.core.wording import composed
from fedlib.tables.streams import is_address

if TYPE_CHECKING:
    from fedlib.cli.common import Rows
    from fedlib.core.site_memory import TableMemory

EXAMPLE = "postgresql://host/name"


class RowsType(click.Path):
    """The type of a file with rows, or of the address of a database."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and is_address(value):
            return value
        return super().convert(value, param, ctx)


ROWS = RowsType(path_type=Path, dir_okay=False, exists=True, readable=True)
MAYBE_ROWS = RowsType(path_type=Path, dir_okay=False)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where the rows are: the options of each command that reads them."""

    data: Annotated[
        Path | str | None,
        ROWS,
        "The file with the rows: .csv, .tsv, .xlsx, .ods, .sav, .dta, .xpt, .sas7bdat, .parquet,"
        " .arff, .npy or a similar one. Or the address of a database without a password, such as"
        f" {EXAMPLE}, with --query.",
    ] = None
    query: Annotated[
        InputFile,
        "The file with the query to the database: one SELECT, which names its columns and orders"
        " its rows.",
    ] = None
    data_from_env: Annotated[
        str | None,
        "Instead of the address of a database, the environment variable that contains it, maybe"
        " with a password.",
        {"metavar": "NAME"},
    ] = None
    query_timeout: Annotated[
        float,
        click.FloatRange(0, min_open=True),
        "Seconds after which the query is given up.",
    ] = 600.0

    def __post_init__(self) -> None:
        if (self.data is None) == (self.data_from_env is None):
            given = "neither" if self.data is None else "both"
            raise ValueError(
                f"the rows need either a file or an address, or --data-from-env, got {given}"
            )
        if isinstance(self.data, Path) and self.query is not None:
            raise ValueError("--query is for a database; leave it out, or give an address")
        if not isinstance(self.data, Path) and self.query is None:
            raise ValueError("a database needs --query, the file with one SELECT")

    @cached_property
    def rows(self) -> Rows:
        """The file, or the query to the database, which is read once.

        A warning says that the rows of the query have no order.
        """
        if isinstance(self.data, Path):
            return self.data
        from fedlib.tables.databases import Database, read_query

        address, name = self.data or "", self.data_from_env
        if name is not None:
            address = os.environ.get(name, "").strip()
            if not is_address(address):
                raise click.UsageError(
                    f"the environment variable {name} must contain the address of a database, such"
                    f" as {EXAMPLE}"
                )
        assert self.query is not None  # or the options are refused
        with in_one_line(ValueError, error_class=click.UsageError):
            database = Database(
                address,
                read_query(self.query),
                self.query_timeout,
                from_environment=name is not None,
            )
        if not database.ordered:
            report(
                f"{self.query}: without ORDER BY, the order of the rows may change from one reading"
                " to the next, and with it that of the labels",
                level=logging.WARNING,
            )
        return database


@dataclass(frozen=True, kw_only=True)
class SourceOptions(DataOptions):
    """Where the rows are, and the name of their source."""

    source: Annotated[
        str | None,
        "The name of the source of the rows. What this site remembers about them, such as spent"
        " budgets, belongs to the name, and not to one version of the rows.  [default: for a file"
        " its content, for a database the server, the schema and the query]",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source is not None and not self.source.strip():
            raise ValueError("--source must be a name, got an empty text")

    @property
    def source_name(self) -> str | None:
        """The name of the source; None for a file without one."""
        if self.source is not None:
            return composed(self.source.strip())
        return None if isinstance(self.rows, Path) else self.rows.source

    def memory(self, digest: str, key: Path | None) -> TableMemory:
        """Return what this site remembers about the rows with a digest (`digest_of_rows`)."""
        from fedlib.core.site_memory import TableMemory

        name = self.source_name
        if name is None:
            return TableMemory.of_digest(digest, key)
        return TableMemory.of_source(name, digest, key)


def digest_of_rows(rows: Rows) -> str:
    """Return the digest of a file, or of the rows of a query in their order."""
    from fedlib.core.site_memory import digest_of

    if isinstance(rows, Path):
        return digest_of(rows)
    with naming(rows):
        return rows.digest


def as_argument(record: Any) -> list[click.Parameter]:
    """Return the options of a record, but its ``data`` as an argument."""
    return [
        click.Argument(["data"], required=False, type=ROWS) if one.name == "data" else one
        for one in options_of(record)
    ]
