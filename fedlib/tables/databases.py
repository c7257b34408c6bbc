"""Databases: the rows of one query, read in a read-only transaction, as columns with types.

- The query is one SELECT. It names schemas and tables itself, in quotation marks where they need
  them, and gives names to its columns (AS) and an order to its rows (ORDER BY).
- A password comes from the file of the driver (~/.pgpass) or the environment, never from an
  argument, and no text, error or log of fedlib contains it.
- All rows are of one moment, and they are fetched in blocks.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote

from fedlib.core.file_errors import UnreadableFile
from fedlib.core.wording import composed, printable, read_edited
from fedlib.tables.result_columns import ResultColumn, digest_of_table
from fedlib.tables.typed import TypedTable, import_arrow

TIMEOUT = 600.0  # seconds
CONNECT_TIMEOUT = 30  # seconds
N_ROWS = 10_000  # in a block
N_BYTES = 2**24  # in a block of COPY
MYSQL_JSON = 245  # the code of the type, whose values are texts
STEPS = 10_000  # of SQLite between two looks at the clock
POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
SECRETS = ("password", "passwd", "pwd", "sslpassword", "odbc_connect")  # options of an address
PACKAGES = {"psycopg": "fedlib-study[sql]", "MySQLdb": "mysqlclient", "oracledb": "oracledb"}
LEVELS = ("SERIALIZABLE", "REPEATABLE READ", "AUTOCOMMIT")  # the first that a database has
# What a database says about a query that writes.
WRITES = re.compile(
    r"read-?only (transaction|database)|READ ONLY transaction|data-modifying", re.IGNORECASE
)


class UnreadableDatabase(UnreadableFile):
    """The rows of a database cannot be read. The text begins with its name."""


class Statement(NamedTuple):
    """One query.

    Attributes
    ----------
    text : str
        As it is executed.
    plain : str
        Without comments, and with one space for all others: what two equal queries share.
    ordered : bool
        Whether it ends with an ORDER BY.
    """

    text: str
    plain: str
    ordered: bool


def read_query(path: Path) -> str:
    """Return the query in a file.

    Raises
    ------
    ValueError
        When the file cannot be read, or is no text in UTF-8.
    """
    try:
        return read_edited(path).decode()
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path}: the query is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be read: {error.strerror}") from error


class Database:
    """The rows of a query to a database, which are read once.

    Parameters
    ----------
    url : str
        The address, such as ``postgresql://host/name`` or ``sqlite:///file.db``, as SQLAlchemy has
        it. PostgreSQL is read by psycopg 3.
    query : str
        One SELECT.
    timeout : float, default=600
        Seconds after which the query is given up.
    from_environment : bool, default=False
        Whether the address came from the environment, and may contain a password.

    Attributes
    ----------
    ordered : bool
        Whether the query orders its rows.

    Raises
    ------
    ValueError
        When a package is missing, the address contains a password, or the query is not one SELECT.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "site.db")
    ...     with sqlite3.connect(path) as link:
    ...         _ = link.execute("CREATE TABLE patients AS SELECT 41 AS age, 'f' AS sex")
    ...     link.close()
    ...     table = Database(f"sqlite:///{path}", "SELECT * FROM patients ORDER BY age").read()
    >>> {name: column.to_pylist() for name, column in table.columns.items()}
    {'age': [41], 'sex': ['f']}
    """

    def __init__(
        self, url: str, query: str, timeout: float = TIMEOUT, *, from_environment: bool = False
    ):
        self._sqlalchemy = _import_sqlalchemy()
        self._url, self._secrets = _parsed(self._sqlalchemy, url, from_environment)
        self._dialect: str = self._url.get_backend_name()
        self._statement = parse_query(query, self._dialect)
        self.ordered, self.timeout = self._statement.ordered, timeout
        self._until = 0.0

    def __str__(self) -> str:
        host = self._url.host or self._url.query.get("host", "")
        port = "" if self._url.port is None else f":{self._url.port}"
        return f"{self._dialect}://{host}{port}/{self._url.database or ''}"

    def __repr__(self) -> str:
        return f"Database({str(self)!r})"

    @property
    def name(self) -> str:
        """What names the rows in reports."""
        return str(self)

    @cached_property
    def source(self) -> str:
        """The server, the database, the schema and the digest of the query."""
        return self._reported(self._find_source)

    @cached_property
    def _table(self) -> TypedTable:
        return self._reported(self._fetch)

    @cached_property
    def digest(self) -> str:
        """The digest of the ordered rows."""
        return digest_of_table(self.read())

    def read(self) -> TypedTable:
        """Return the rows as they were when this was called first.

        Raises
        ------
        UnreadableDatabase
            When the server cannot be reached, or the query fails, writes, or takes too long.

        Notes
        -----
        The memory is about twice that of the table. The transaction is rolled back.
        """
        return self._table

    def _reported(self, work: Callable[[], Any]) -> Any:
        """Return what a function returns; its errors become one text without secrets."""
        try:
            return work()
        except Exception as error:
            failure = UnreadableDatabase(f"{self}: {self._explained(error)}")
        raise failure  # outside, so that no traceback shows an error of the driver

    def _explained(self, error: Exception) -> str:
        """Return what a driver's error means, and the remedy."""
        if type(error) is ValueError:
            return str(error)
        text = " ".join(printable(str(getattr(error, "orig", None) or error)).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = text or type(error).__name__
        if self._until and monotonic() >= self._until:
            return (
                f"the query has not ended within {self.timeout:g} s; make it faster, or allow more"
                " time with --query-timeout"
            )
        if WRITES.search(text):
            return f"the query must only read: {text}"
        if self._until:
            return f"the query fails: {text}; correct it"
        remedy = ", with the password in ~/.pgpass (PGPASSFILE)" * (self._dialect == "postgresql")
        return f"there is no connection: {text}; correct the address or the access{remedy}"

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Return a connection in a context, in a read-only transaction where there are such."""
        sqlalchemy, dialect = self._sqlalchemy, self._dialect
        options: dict[str, Any] = {"poolclass": sqlalchemy.pool.NullPool, "hide_parameters": True}
        if dialect == "sqlite":
            options["creator"] = self._open_sqlite
        elif dialect in ("postgresql", "mysql", "mariadb"):
            given = (
                {} if "connect_timeout" in self._url.query else {"connect_timeout": CONNECT_TIMEOUT}
            )
            encoding = {"client_encoding": "utf8"} if dialect == "postgresql" else {}
            options["connect_args"] = given | encoding
        engine = sqlalchemy.create_engine(self._url, **options)
        self._until = 0.0
        with engine.connect() as connection:
            connection = connection.execution_options(**self._level(connection))
            self._until = monotonic() + self.timeout
            self._begin(connection)
            yield connection

    def _level(self, connection: Any) -> dict[str, Any]:
        """Return the options by which all that a transaction reads is of one moment."""
        if self._dialect == "postgresql":
            return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        if self._dialect in ("mysql", "mariadb"):
            return {"isolation_level": "REPEATABLE READ"}
        with suppress(NotImplementedError):  # a dialect without levels
            link = connection.connection.dbapi_connection
            known = {*connection.dialect.get_isolation_level_values(link)}
            return {"isolation_level": next(one for one in LEVELS if one in known)}
        return {}

    def _open_sqlite(self) -> sqlite3.Connection:
        path = Path(self._url.database or "")
        if not path.is_file():
            raise ValueError("there is no such file; write sqlite:///relative or sqlite:////path")
        link = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        link.set_progress_handler(lambda: 0 < self._until <= monotonic(), STEPS)
        return link

    def _begin(self, connection: Any) -> None:
        """Begin a transaction that reads one state and ends in time."""
        run, limit = connection.exec_driver_sql, max(int(1000 * self.timeout), 1)
        if self._dialect == "postgresql":
            run(f"SET LOCAL statement_timeout = {limit}").close()
            # What the texts of values are read by; the order of day and month stays.
            run("SET LOCAL datestyle = 'ISO'").close()
            run("SET LOCAL intervalstyle = 'postgres'").close()
            run("SET LOCAL extra_float_digits = 3").close()
        elif self._dialect in ("mysql", "mariadb"):
            maria = connection.dialect.is_mariadb
            name, value = (
                ("max_statement_time", limit / 1000) if maria else ("max_execution_time", limit)
            )
            run(f"SET SESSION {name} = {value}").close()
            run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").close()

    def _find_source(self) -> str:
        server, schema = str(self), ""
        if self._dialect == "sqlite":
            server = f"sqlite:///{Path(self._url.database or '').absolute()}"
        elif self._dialect == "postgresql":
            with self._connected() as connection:
                about = connection.connection.driver_connection.info
                server = f"postgresql://{about.host}:{about.port}/{about.dbname}"
                schema = connection.exec_driver_sql("SELECT current_schema()").scalar()
        return (
            f"{server}{f', schema {schema}' if schema else ''}, query"
            f" {hashlib.sha256(self._statement.plain.encode()).hexdigest()[:16]}"
        )

    def _fetch(self) -> TypedTable:
        with self._connected() as connection:
            fetch = _copied if self._dialect == "postgresql" else _fetched
            described, columns, blocks = fetch(connection, self._statement.text)
            names = _names(described)
            for block in blocks:
                for column, values in zip(columns, block, strict=True):
                    column.add(values)
                if monotonic() >= self._until:
                    raise TimeoutError
        arrays = {name: column.array() for name, column in zip(names, columns, strict=True)}
        problems = {
            name: column.problem
            for name, column in zip(names, columns, strict=True)
            if column.problem
        }
        return TypedTable(arrays, unreadable=problems)


Result = tuple[list[str], list[ResultColumn], Iterator[Sequence[Any]]]


def _fetched(connection: Any, query: str) -> Result:
    """Return the names and the columns of a result, which are empty yet, and its blocks of rows."""
    streamed = {"no_parameters": True, "stream_results": True}
    result = connection.exec_driver_sql(query, execution_options=streamed)
    described = result.cursor.description
    columns = [ResultColumn() for _ in described]
    for column, about in zip(columns, described, strict=True):
        if connection.dialect.name == "mysql" and about[1] == MYSQL_JSON:
            column.problem = "its type is JSON; leave it out, or cast parts of it"
    # The option yield_per has no effect for a query that is text.
    blocks = (list(zip(*block, strict=True)) for block in result.yield_per(N_ROWS).partitions())
    return [about[0] for about in described], columns, blocks


def _copied(connection: Any, query: str) -> Result:
    """Do the same with PostgreSQL's COPY, whose texts Arrow reads.

    No value becomes an object of Python, which is faster, and psycopg would take a month for 30
    days and fail for dates such as infinity.
    """
    driver = connection.connection.driver_connection
    for step in (
        driver.pgconn.prepare(b"", query.encode()),
        described := driver.pgconn.describe_prepared(b""),
    ):
        if step.error_message:
            raise ValueError(step.error_message.decode(errors="replace").strip())
    places = range(described.nfields)
    names = [(described.fname(j) or b"").decode() for j in places]
    types = [str(described.ftype(j)) for j in places]
    found = driver.execute(
        "SELECT oid::text, typname::text, typcategory::text FROM pg_catalog.pg_type"
        f" WHERE oid IN ({', '.join({*types, '0'})})"
    ).fetchall()
    known = {oid: (name, category) for oid, name, category in found}
    return names, [ResultColumn(known[one]) for one in types], _blocks_of(driver, query, len(names))


def _blocks_of(driver: Any, query: str, n_columns: int) -> Iterator[Sequence[Any]]:
    """Yield the columns of blocks of rows as arrays of texts."""
    rows, size = list[bytes](), 0
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY ({query}\n) TO STDOUT (FORMAT csv)".encode()) as copy,
    ):
        for row in copy:
            rows.append(bytes(row))
            size += len(row)
            if size >= N_BYTES:
                yield _texts_in(b"".join(rows), n_columns)
                rows, size = [], 0
    if rows:
        yield _texts_in(b"".join(rows), n_columns)


def _texts_in(data: bytes, n_columns: int) -> Sequence[Any]:
    """Return the columns of rows that COPY has sent, as arrays of texts."""
    arrow, names = import_arrow(), [str(j) for j in range(n_columns)]
    columns: Sequence[Any] = arrow.csv.read_csv(
        arrow.BufferReader(data),
        arrow.csv.ReadOptions(column_names=names, block_size=len(data) + 1),
        arrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        arrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.string()),
            null_values=[""],  # a gap has no quotation marks, and an empty text has them
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).columns
    return [column.combine_chunks() for column in columns]


def _import_sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise ValueError('SQLAlchemy is missing: pip install "fedlib-study[sql]"') from error
    return sqlalchemy


def _parsed(sqlalchemy: Any, text: str, from_environment: bool) -> tuple[Any, list[str]]:
    """Return an address, and its secrets; no error contains a part of it."""
    try:
        url = sqlalchemy.make_url(text)
    except Exception:  # whose text may contain a password
        url = None
    if url is None:  # outside, so that no traceback shows it
        raise ValueError(
            "the address cannot be read; it must be DIALECT://HOST:PORT/DATABASE, with special"
            " characters as in %40 for @"
        )
    secrets = [str(url.query[name]) for name in url.query if name.lower() in SECRETS]
    secrets += [str(url.password)] * (url.password is not None)
    if secrets and not from_environment:
        raise ValueError(
            "the address contains a password, which other users of this machine could see; leave it"
            " out and use the driver's file (~/.pgpass or PGPASSFILE for PostgreSQL), or put the"
            " whole address into an environment variable and name it with --data-from-env NAME"
        )
    if url.drivername in POSTGRESQL:
        url = url.set(drivername="postgresql+psycopg")
    try:
        url.get_dialect().import_dbapi()
    except sqlalchemy.exc.NoSuchModuleError:
        raise ValueError(
            f"SQLAlchemy does not know {url.drivername}; known are postgresql, sqlite,"
            " mysql+pymysql and those of further packages"
        ) from None
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise ValueError(
            f"the driver {package or url.drivername} is missing: pip install"
            f' "{PACKAGES.get(package, package)}"'
        ) from error
    if url.get_backend_name() == "postgresql" and url.get_driver_name() != "psycopg":
        raise ValueError("PostgreSQL is read by psycopg 3 only; begin the address with postgresql:")
    return url, [form for secret in secrets if secret for form in (secret, quote(secret, ""))]


def parse_query(query: str, dialect: str = "postgresql") -> Statement:
    r"""Return a query, which must be one SELECT, maybe with WITH.

    Parameters
    ----------
    query : str
        It may contain comments, and end with a semicolon.
    dialect : str, default="postgresql"
        The kind of database, whose quotation marks are known.

    Raises
    ------
    ValueError
        When it is anything else.

    Examples
    --------
    >>> parse_query("SELECT ';' AS x -- one\nFROM a ORDER BY 1;").plain
    "SELECT ';' AS x FROM a ORDER BY 1"
    >>> parse_query("DELETE FROM a")
    Traceback (most recent call last):
    ...
    ValueError: the query must begin with SELECT or WITH, got 'DELETE'
    """
    plain, depth, end, words = "", 0, 0, list[str]()
    for token in _tokens(dialect).finditer(query):
        text = token[0]
        if token.lastgroup == "blank":
            plain += " " * (not plain.endswith(" "))
            continue
        if text != ";" and plain.rstrip().endswith(";"):
            raise ValueError("the query must be one statement, got several; leave the others out")
        if token.lastgroup == "other" and text in "'\"`":
            raise ValueError(f"the query has a quotation mark {text} that is not closed; close it")
        plain, end = plain + text, end if text == ";" else token.end()
        depth += (text == "(") - (text == ")")
        if token.lastgroup == "word" and not depth:
            words.append(text.upper())
    first = words[0] if words else ""
    if first not in ("SELECT", "WITH"):
        raise ValueError(f"the query must begin with SELECT or WITH, got {first!r}")
    if "INTO" in words:
        raise ValueError("the query must only read; leave INTO out")
    return Statement(query[:end], plain.strip("; "), ("ORDER", "BY") in pairwise(words))


def _tokens(dialect: str) -> re.Pattern[str]:
    """Return the pattern of the parts of a query."""
    maria = dialect in ("mysql", "mariadb")
    escaped = r"(?:[^'\\]|\\.|'')*"
    quoted = [rf"[eE]'{escaped}'", rf"'{escaped}'" if maria else "'(?:[^']|'')*'"]
    quoted += ['"(?:[^"]|"")*"', "`[^`]*`"]
    if dialect == "postgresql":
        quoted.append(r"\$(?P<tag>\w*)\$.*?\$(?P=tag)\$")
    if dialect in ("mssql", "sqlite"):
        quoted.append(r"\[[^\]]*\]")
    comment = r"\s+|--[^\n]*|/\*.*?\*/" + r"|\#[^\n]*" * maria
    return re.compile(
        rf"(?P<blank>{comment})|(?P<quoted>{'|'.join(quoted)})|(?P<word>[^\W\d][\w$]*)|(?P<other>.)",
        re.DOTALL,
    )


def _names(given: list[str]) -> list[str]:
    """Return the names of the columns of a result, which must be unique."""
    names = [composed(str(name).strip()) for name in given]
    if not names:
        raise ValueError("the query has no columns; name them behind SELECT")
    if "" in names or "?column?" in names:
        place = 1 + next(j for j, name in enumerate(names) if name in ("", "?column?"))
        raise ValueError(f"column {place} of the query has no name; give it one with AS")
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise ValueError(
            f"the query has columns with the same name: {', '.join(repeated)}; give each its own"
            " with AS"
        )
    return names
