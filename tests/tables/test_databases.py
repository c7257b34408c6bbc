"""Databases: types, the read-only transaction, one moment, limits of time, and no passwords."""

import logging
import math
import re
import sqlite3
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from urllib.parse import quote

import pyarrow as pa
import pytest

from fedlib.tables import databases
from fedlib.tables.databases import Database, UnreadableDatabase, parse_query
from fedlib.tables.files import SiteFile, read_table
from fedlib.tables.result_columns import digest_of_table
from fedlib.tables.streams import ReadOptions
from fedlib.tables.typed import TypedTable

pytest.importorskip("sqlalchemy")


@pytest.fixture
def postgresql(postgresql_socket):
    """Return a function that executes statements, and the address of the database."""
    psycopg = pytest.importorskip("psycopg")
    about = f"host={postgresql_socket} user=tester dbname=postgres"
    with psycopg.connect(about, autocommit=True) as link:
        link.execute("DROP SCHEMA public CASCADE")
        link.execute("CREATE SCHEMA public")
        link.address = f"postgresql://tester@/postgres?host={postgresql_socket}"
        yield link


@pytest.fixture
def sqlite(tmp_path):
    """Return a connection to a new file of SQLite, and its address."""

    class Link(sqlite3.Connection):
        address = f"sqlite:///{quote(str(tmp_path / 'a?b #1%20.db'))}"

    link = sqlite3.connect(tmp_path / "a?b #1%20.db", factory=Link)
    yield link
    link.close()


@pytest.fixture
def mariadb(mariadb_socket):
    """Return a function that executes statements, and the address of the database."""
    pymysql = pytest.importorskip("pymysql")
    link = pymysql.connect(unix_socket=str(mariadb_socket), user="root", autocommit=True)
    run = link.cursor().execute
    run("DROP DATABASE IF EXISTS clinic")
    run("CREATE DATABASE clinic")
    run("USE clinic")
    yield run, f"mysql+pymysql://root@localhost/clinic?unix_socket={mariadb_socket}"
    link.close()


def cells(database):
    """Return the type and the values of each column that can be read."""
    table = database.read()
    return {
        name: (str(column.type), column.to_pylist())
        for name, column in table.columns.items()
        if name not in table.unreadable
    }


# The expression of a value, its type in Arrow, and what it is.
READ = {
    "1::smallint": ("int64", 1),
    "2147483647": ("int64", 2147483647),
    "9007199254740993::bigint": ("int64", 9007199254740993),
    "1.50::numeric": ("decimal128(3, 2)", Decimal("1.50")),
    "(10::numeric ^ 40) + 0.25": ("decimal256", Decimal(f"1{40 * '0'}.25")),
    "avg(x) OVER ()": ("decimal128(17, 16)", Decimal("1.5000000000000000")),
    "sum(x::bigint) OVER ()": ("decimal128(1, 0)", Decimal(3)),
    "0.1::real": ("double", 0.1),
    "0.1::double precision + 0.2": ("double", 0.1 + 0.2),
    "'NaN'::double precision": ("double", None),
    "true": ("bool", True),
    "'a b '::text": ("string", "a b "),
    "'ab'::char(5)": ("string", "ab"),
    "'ab '::varchar": ("string", "ab "),
    "'001'::text": ("string", "001"),
    "'one'::kind": ("string", "one"),
    "7::age": ("int64", 7),
    "'6b1f3f0e-0000-4000-8000-000000000001'::uuid": (
        "string",
        "6b1f3f0e-0000-4000-8000-000000000001",
    ),
    "date '2024-02-29'": ("date32[day]", date(2024, 2, 29)),
    "timestamp '2024-02-29 12:30:00.5'": (
        "timestamp[us]",
        datetime(2024, 2, 29, 12, 30, 0, 500000),
    ),
    # Midnight of summer in Berlin is on the day before in UTC.
    "timestamptz '2024-07-01 00:00'": (
        "timestamp[us, tz=UTC]",
        datetime(2024, 6, 30, 22, tzinfo=UTC),
    ),
    # Berlin had the mean time of its place until 1893.
    "timestamptz '1890-01-01 00:00'": (
        "timestamp[us, tz=UTC]",
        datetime(1889, 12, 31, 23, 6, 32, tzinfo=UTC),
    ),
    "time '24:00:00'": ("duration[us]", timedelta(days=1)),
    "interval '-1 day -00:00:01.25'": ("duration[us]", timedelta(days=-1, seconds=-1.25)),
    "interval '400 days'": ("duration[us]", timedelta(days=400)),
    "'%s %% :name'::text": ("string", "%s %% :name"),
    "NULL::integer": ("null", None),
}


def test_values_of_postgresql_are_right(postgresql):
    postgresql.execute("CREATE TYPE kind AS ENUM ('one', 'two')")
    postgresql.execute("CREATE DOMAIN age AS integer")
    listed = ", ".join(f'{expression} AS "c{j}"' for j, expression in enumerate(READ))
    query = f"SELECT {listed} FROM (VALUES (1), (2)) AS v(x)"
    found = cells(Database(postgresql.address, query))
    assert len(found) == len(READ)
    for j, (expression, (kind, value)) in enumerate(READ.items()):
        arrow, values = found[f"c{j}"]
        assert arrow.startswith(kind), expression
        assert values == [value, value], expression


REFUSED = {
    "1::numeric / 3 * 'Infinity'::numeric": "it contains infinity, .* NULLIF",
    "'-Infinity'::double precision": "it contains infinity, .* NULLIF",
    "date 'infinity'": "it contains infinity or a date before the year 1 .* NULLIF",
    "date '0044-03-15 BC'": "a date before the year 1 or after 9999",
    "timestamp '-infinity'": "it contains infinity or a date",
    "timestamptz '20000-01-01'": "after 9999",
    "interval '1 month'": "intervals with months or years, which have no fixed length",
    "interval '1 year 3 days'": "intervals with months or years",
    "timetz '12:00+02'": "PostgreSQL's timetz, .* cast it to time in the query",
    "12.34::money": "PostgreSQL's money, .* cast it to numeric in the query",
    "'\\x00'::bytea": "PostgreSQL's bytea, .* encode it in the query",
    "'{}'::json": "PostgreSQL's json, ",
    "'{}'::jsonb": "PostgreSQL's jsonb, ",
    "ARRAY[1, 2]": "PostgreSQL's _int4, ",
    "int4range(1, 2)": "PostgreSQL's int4range, .* cast it in the query, such as to text",
    "point(1, 2)": "PostgreSQL's point, ",
    "B'101'": "PostgreSQL's bit, ",
    "ROW(1, 2)": "PostgreSQL's record, ",
    "10::numeric ^ 80": "more than 76 digits; cast it to double precision",
}


def test_what_cannot_be_read_is_refused_by_name_and_disturbs_no_other_column(postgresql):
    listed = ", ".join(f'{expression} AS "c{j}"' for j, expression in enumerate(REFUSED))
    database = Database(postgresql.address, f"SELECT {listed}, 1 AS x, 2 AS y ORDER BY 1")
    table = database.read()
    assert [*table.unreadable] == [f"c{j}" for j in range(len(REFUSED))]
    for (expression, reason), found in zip(REFUSED.items(), table.unreadable.values(), strict=True):
        assert re.search(reason, found), (expression, found)
    assert read_table(database, columns="x,y").X.to_numpy().tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="column 'c0' .*infinity"):
        read_table(database, columns="x,c0")


def test_a_gap_changes_no_type(postgresql):
    query = (
        "SELECT * FROM (VALUES (9007199254740993, NULL, 'NaN'), (NULL, 'f'::bool, 2.5)) v(a,b,c)"
    )
    assert cells(Database(postgresql.address, query)) == {
        "a": ("int64", [9007199254740993, None]),
        "b": ("bool", [None, False]),
        "c": ("double", [None, 2.5]),
    }


def test_a_gap_is_no_empty_text_and_a_column_of_gaps_has_rows(postgresql):
    query = "SELECT * FROM (VALUES (NULL), (''), ('a\"\n,'), (NULL)) AS t (x)"
    table = Database(postgresql.address, query).read()
    assert table.columns["x"].to_pylist() == [None, "", 'a"\n,', None]


def test_many_rows_arrive_in_blocks_and_their_types_are_united(postgresql, monkeypatch):
    monkeypatch.setattr(databases, "N_BYTES", 200)
    query = (
        "SELECT i, CASE WHEN i > 50 THEN i / 8.0 END AS n, repeat('é', i) AS t"
        " FROM generate_series(1, 100) i ORDER BY i"
    )
    table = Database(postgresql.address, query).read()
    assert table.columns["i"].num_chunks > 15
    assert table.columns["i"].to_pylist() == [*range(1, 101)]
    n = [None if i <= 50 else Decimal(i) / 8 for i in range(1, 101)]
    assert table.columns["n"].to_pylist() == n
    assert table.columns["t"].to_pylist() == ["é" * i for i in range(1, 101)]


@pytest.mark.parametrize(
    "query",
    [
        "WITH gone AS (DELETE FROM t RETURNING i) SELECT i FROM gone",
        "SELECT i FROM t FOR UPDATE",
        "SELECT nextval('s') AS i",
        "SELECT spoil() AS i",
    ],
)
def test_a_query_that_writes_to_postgresql_fails(query, postgresql):
    postgresql.execute("CREATE TABLE t AS SELECT 1 AS i; CREATE SEQUENCE s")
    postgresql.execute(
        "CREATE FUNCTION spoil() RETURNS integer LANGUAGE sql"
        " AS 'INSERT INTO t VALUES (2) RETURNING i'"
    )
    with pytest.raises(UnreadableDatabase, match="the query must only read: "):
        Database(postgresql.address, query).read()
    assert postgresql.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_a_query_that_writes_to_sqlite_fails(sqlite):
    sqlite.execute("CREATE TABLE t AS SELECT 1 AS i")
    sqlite.commit()
    query = "WITH one AS (SELECT 1 AS i) INSERT INTO t SELECT i FROM one"
    with pytest.raises(ValueError, match="the query must only read; leave INTO out"):
        Database(sqlite.address, query)
    query = "WITH one AS (SELECT 1 AS i) DELETE FROM t RETURNING i"
    with pytest.raises(UnreadableDatabase, match="the query must only read: .*readonly database"):
        Database(sqlite.address, query).read()


def test_the_rows_stay_those_of_the_first_reading(sqlite):
    """A run reads them several times, and what it answers is about one table."""
    sqlite.execute("CREATE TABLE t AS SELECT 1 AS i")
    sqlite.commit()
    database = Database(sqlite.address, "SELECT i FROM t ORDER BY i")
    before = database.digest
    sqlite.execute("INSERT INTO t VALUES (2)")
    sqlite.commit()
    assert cells(database) == {"i": ("int64", [1])}
    again = Database(sqlite.address, "SELECT i FROM t ORDER BY i")
    assert cells(again) == {"i": ("int64", [1, 2])}
    assert (database.digest, again.source) == (before, database.source)
    assert again.digest != before


def test_the_transaction_has_one_snapshot(postgresql):
    query = (
        "SELECT current_setting('transaction_isolation') AS a,"
        " current_setting('transaction_read_only') AS b"
    )
    found = cells(Database(postgresql.address, query))
    assert (found["a"][1], found["b"][1]) == (["repeatable read"], ["on"])


def test_settings_of_the_server_do_not_change_values(postgresql):
    """The texts are read by one style of dates, but the order of day and month stays."""
    for setting in ("datestyle = 'German, DMY'", "intervalstyle = 'sql_standard'"):
        postgresql.execute(f"ALTER ROLE tester SET {setting}")
    postgresql.execute("ALTER ROLE tester SET extra_float_digits = -3")
    query = (
        "SELECT '01/02/2024'::date AS d, interval '1 day 02:00' AS i, 0.1::float8 + 0.2 AS f,"
        " timestamptz '2024-01-02 03:04+00' AS t"
    )
    try:
        assert {
            name: values for name, (_, values) in cells(Database(postgresql.address, query)).items()
        } == {
            "d": [date(2024, 2, 1)],
            "i": [timedelta(days=1, hours=2)],
            "f": [0.1 + 0.2],
            "t": [datetime(2024, 1, 2, 3, 4, tzinfo=UTC)],
        }
    finally:
        postgresql.execute("ALTER ROLE tester RESET ALL")


SLOW = {
    "postgresql": "SELECT pg_sleep(60)::text AS x",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " SELECT max(i) AS x FROM n",
    "mariadb": "SELECT sleep(60) AS x",
}


@pytest.mark.parametrize("server", SLOW)
def test_a_query_that_takes_too_long_is_given_up(server, request):
    link = request.getfixturevalue(server)
    address = link[1] if server == "mariadb" else link.address
    before = time.monotonic()
    with pytest.raises(UnreadableDatabase, match="has not ended within 0.5 s; .* --query-timeout"):
        Database(address, SLOW[server], 0.5).read()
    assert time.monotonic() - before < 30


def test_an_endless_result_is_given_up(sqlite):
    """Each block arrives in time, but not all of them."""
    query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    with pytest.raises(UnreadableDatabase, match="has not ended within 0.3 s"):
        Database(sqlite.address, query, 0.3).read()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("postgresql://tester@127.0.0.1:9/db", "there is no connection: .*PGPASSFILE"),
        ("postgresql://tester@/db?host=/nowhere", "there is no connection: .*correct the address"),
        ("sqlite:////nowhere/site.db", "there is no such file; write sqlite:///relative"),
    ],
)
def test_an_unreachable_server_is_one_error(address, message):
    with pytest.raises(UnreadableDatabase, match=message) as raised:
        Database(address, "SELECT 1 AS x").read()
    assert str(raised.value).startswith(address.split("@")[0].split("tester")[0][:8])
    assert raised.value.__context__ is None


SECRET = "gehe1m/p@ss wört"
QUOTED = "gehe1m%2Fp%40ss%20w%C3%B6rt"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://locked:{QUOTED}@localhost/db",
        f"postgresql://localhost/db?password={QUOTED}",
        f"mysql+pymysql://localhost/db?passwd={QUOTED}",
        f"mssql+pyodbc:///?odbc_connect=DRIVER%3Da%3BPWD%3D{QUOTED}",
    ],
)
def test_a_password_in_an_address_is_refused_with_the_remedy(address):
    with pytest.raises(
        ValueError, match="contains a password, .*PGPASSFILE.* --data-from-env"
    ) as raised:
        Database(address, "SELECT 1 AS x")
    assert "gehe1m" not in str(raised.value)


@pytest.mark.parametrize("address", [f"postgresql://a:{SECRET}:b@[", f"nothing://a:{QUOTED}@b/c"])
def test_an_address_that_cannot_be_read_is_not_repeated(address):
    with pytest.raises(ValueError, match="address cannot be read|does not know nothing;") as raised:
        Database(address, "SELECT 1 AS x", from_environment=True)
    chain = (raised.value, raised.value.__context__, raised.value.__cause__)
    assert not any("gehe1m" in str(one) for one in chain)


def test_no_text_contains_the_password(postgresql, postgresql_socket, caplog):
    caplog.set_level(logging.DEBUG)
    postgresql.execute("DROP ROLE IF EXISTS locked")
    postgresql.execute(f"CREATE ROLE locked LOGIN PASSWORD '{SECRET}'")
    address = f"postgresql://locked:{QUOTED}@/postgres?host={postgresql_socket}"
    database = Database(address, "SELECT current_user::text AS x", from_environment=True)
    assert cells(database) == {"x": ("string", ["locked"])}
    shown = [str(database), repr(database), database.source, database.name]
    failing = f"SELECT (y || '')::integer AS x FROM (VALUES ('{SECRET}')) AS t(y)"
    with pytest.raises(UnreadableDatabase, match=r'syntax for type integer: "\*\*\*"') as raised:
        Database(address, failing, from_environment=True).read()
    shown += [str(raised.value), repr(raised.value.__context__), repr(raised.value.__cause__)]
    wrong = address.replace("gehe1m", "gehe1mer")
    with pytest.raises(UnreadableDatabase, match="password authentication failed") as raised:
        Database(wrong, "SELECT 1 AS x", from_environment=True).read()
    shown += [str(raised.value), repr(raised.value.__context__), caplog.text]
    assert not any("gehe1m" in text for text in shown), shown
    assert "locked" not in database.source  # and no user


def test_the_source_names_server_schema_and_query(postgresql, postgresql_socket):
    one = Database(postgresql.address, "SELECT 1 AS x -- one\n")
    same = Database(postgresql.address, " SELECT  1 AS\nx;")
    other = Database(postgresql.address, "SELECT 2 AS x")
    assert one.source == same.source != other.source
    assert one.source.startswith(f"postgresql://{postgresql_socket}:5432/postgres, schema public, ")
    postgresql.execute("CREATE SCHEMA other")
    postgresql.execute("ALTER ROLE tester SET search_path = other")
    try:
        moved = Database(postgresql.address, "SELECT 1 AS x").source
    finally:
        postgresql.execute("ALTER ROLE tester RESET ALL")
        postgresql.execute("DROP SCHEMA other")
    assert moved == one.source.replace("schema public", "schema other")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "must begin with SELECT or WITH, got ''"),
        ("DELETE FROM t", "must begin with SELECT or WITH, got 'DELETE'"),
        ("SELECT 1 AS x; COMMIT", "must be one statement, got several"),
        ("SELECT 1 AS x; -- a comment\n DROP TABLE t;", "must be one statement"),
        ("SELECT 'a AS x", "quotation mark ' that is not closed"),
        ("SELECT x INTO t FROM a", "must only read; leave INTO out"),
        (r"SELECT 'a\'; COMMIT; --' AS x", "must be one statement"),
    ],
)
def test_a_query_is_one_select(query, message):
    with pytest.raises(ValueError, match=message):
        parse_query(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT ';' AS x;",
        "-- first\n/* second; */ SELECT 1 AS x; -- last;",
        'SELECT 1 AS "a;b"',
        "SELECT $tag$a;'b$tag$ AS x",
        "SELECT E'a\\'; COMMIT; --' AS x",
        "WITH a AS (SELECT 1 AS x) SELECT x FROM a;;",
        "SELECT '' AS x, 'it''s;' AS y",
    ],
)
def test_semicolons_in_quotation_marks_and_comments_end_no_query(query, postgresql):
    assert parse_query(query).text.rstrip(";") in query
    assert Database(postgresql.address, query).read().columns["x" if "a;b" not in query else "a;b"]


def test_backslashes_are_escapes_where_the_database_has_them():
    assert parse_query(r"SELECT 'a\'; COMMIT; --' AS x", "mysql").ordered is False


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT x FROM t ORDER BY x", True),
        ("SELECT x FROM t order\n by x limit 3", True),
        ("SELECT row_number() OVER (ORDER BY x) AS x FROM t", False),
        ("SELECT x FROM (SELECT x FROM t ORDER BY x) AS t", False),
        ("SELECT x FROM t -- ORDER BY x", False),
    ],
)
def test_an_order_is_one_of_the_whole_query(query, ordered):
    assert parse_query(query).ordered is ordered


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1 AS a, 2 AS b, 3 AS a", "columns with the same name: a; give each its own"),
        ("SELECT 1 AS a, 2", "column 2 of the query has no name; give it one with AS"),
        ('SELECT 1 AS "é", 2 AS "e\u0301"', "columns with the same name: é"),
    ],
)
def test_each_column_has_a_name_of_its_own(query, message, postgresql):
    with pytest.raises(UnreadableDatabase, match=message):
        Database(postgresql.address, query).read()


def test_names_are_quoted_as_the_query_says(postgresql):
    postgresql.execute('CREATE SCHEMA "Big Schema"')
    postgresql.execute('CREATE TABLE "Big Schema"."A;b" AS SELECT 1 AS "X y"')
    try:
        found = cells(Database(postgresql.address, 'SELECT * FROM "Big Schema"."A;b"'))
    finally:
        postgresql.execute('DROP SCHEMA "Big Schema" CASCADE')
    assert found == {"X y": ("int64", [1])}


def test_values_of_sqlite_say_what_they_are(sqlite):
    sqlite.execute("CREATE TABLE t (i, f, mixed, t, d DATE, b, words, empty, large)")
    sqlite.execute("INSERT INTO t VALUES (1, 1.5, 2, '01', '2024-01-31', x'00', 'a', NULL, 1)")
    sqlite.execute("INSERT INTO t VALUES (NULL, 2, 2.5, 'b', NULL, NULL, 3, NULL, 1e400)")
    sqlite.commit()
    database = Database(sqlite.address, "SELECT * FROM t ORDER BY rowid")
    assert cells(database) == {
        "i": ("int64", [1, None]),
        "f": ("double", [1.5, 2.0]),
        "mixed": ("double", [2.0, 2.5]),
        "t": ("string", ["01", "b"]),
        "d": ("string", ["2024-01-31", None]),
        "empty": ("null", [None, None]),
    }
    assert {name: reason[:60] for name, reason in database.read().unreadable.items()} == {
        "b": "its type is bytes, and not a number, a text, a date, a time ",
        "words": "it contains values of several types (integer, text); cast th",
        "large": "it contains infinity, which is no number; replace it by NULL",
    }


def test_types_of_sqlite_may_change_after_many_rows(sqlite, monkeypatch):
    monkeypatch.setattr(databases, "N_ROWS", 2)
    sqlite.execute("CREATE TABLE t (a, b, c)")
    rows = [(None, 1, 2**53 + 1), (None, 2, 1), (1, 2.5, 0.5), (2, None, 1)]
    sqlite.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    sqlite.commit()
    database = Database(sqlite.address, "SELECT * FROM t ORDER BY rowid")
    assert cells(database) == {
        "a": ("int64", [None, None, 1, 2]),
        "b": ("double", [1.0, 2.0, 2.5, None]),
    }
    assert "fractions and integers above 9007199254740992" in database.read().unreadable["c"]


def test_percent_signs_and_colons_are_no_parameters(sqlite):
    query = "SELECT '%s %(a)s %% :name ?' AS x, 7 % 4 AS y"
    assert cells(Database(sqlite.address, query)) == {
        "x": ("string", ["%s %(a)s %% :name ?"]),
        "y": ("int64", [3]),
    }


def test_values_of_mariadb_are_right(mariadb):
    run, address = mariadb
    run(
        "CREATE TABLE t (i BIGINT UNSIGNED, n DECIMAL(5, 2), f FLOAT, d DATE, m DATETIME(3),"
        " s TIME, c CHAR(5), e ENUM('a', 'b'), b BLOB, y YEAR)"
    )
    run(
        "INSERT INTO t VALUES (18446744073709551615, 1.50, 0.1, '2024-02-29',"
        " '2024-02-29 12:30:00.5', '-30:00:01', 'ab', 'b', 'x', 2024)"
    )
    run("INSERT INTO t (i) VALUES (1)")
    found = cells(Database(address, "SELECT t.*, '%s' AS p, 'it\\'s;' AS q FROM t ORDER BY y DESC"))
    assert {name: (kind, values[0]) for name, (kind, values) in found.items()} == {
        "i": ("decimal128(20, 0)", Decimal(18446744073709551615)),
        "n": ("decimal128(3, 2)", Decimal("1.50")),
        "f": ("double", 0.1),
        "d": ("date32[day]", date(2024, 2, 29)),
        "m": ("timestamp[us]", datetime(2024, 2, 29, 12, 30, 0, 500000)),
        "s": ("duration[us]", -timedelta(hours=30, seconds=1)),
        "c": ("string", "ab"),
        "e": ("string", "b"),
        "y": ("int64", 2024),
        "p": ("string", "%s"),
        "q": ("string", "it's;"),
    }
    assert all(values[1] is None for name, (_, values) in found.items() if name not in "ipq")


def test_a_query_that_writes_to_mariadb_fails(mariadb):
    run, address = mariadb
    run("CREATE SEQUENCE s")
    with pytest.raises(UnreadableDatabase, match="the query must only read: .*READ ONLY"):
        Database(address, "SELECT NEXT VALUE FOR s AS x").read()


def test_options_of_files_are_refused(sqlite):
    database = Database(sqlite.address, "SELECT 1 AS x")
    for option in ({"separator": ";"}, {"sheet": "a"}, {"header": False}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} applies to files only"):
            SiteFile.read(database, ReadOptions(**option))


def test_a_table_is_read_as_from_a_file(sqlite):
    sqlite.execute("CREATE TABLE t (id TEXT, age INTEGER, kind TEXT)")
    sqlite.executemany("INSERT INTO t VALUES (?, ?, ?)", [("p1", 41, "a"), ("p2", 57, "b")])
    sqlite.commit()
    table = read_table(Database(sqlite.address, "SELECT * FROM t"), ids="id", target="kind")
    assert table.X.to_numpy().tolist() == [[41.0], [57.0]]
    assert (table.ids.tolist(), table.y.tolist()) == (["p1", "p2"], ["a", "b"])


@pytest.mark.parametrize("package", ["sqlalchemy", "psycopg", "pymysql"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    address = {"pymysql": "mysql+pymysql://a/b"}.get(package, "postgresql://a/b")
    with pytest.raises(ValueError, match="is missing: pip install") as raised:
        Database(address, "SELECT 1 AS x")
    assert ("fedlib-study[sql]" if package != "pymysql" else "pymysql") in str(raised.value)


ARRAYS = {
    "int": pa.array([1, None, 3]),
    "float": pa.array([0.5, None, math.pi]),
    "text": pa.array(["a", None, "bé"]),
    "decimal": pa.array([Decimal("1.5"), None, Decimal("2.5")]),
    "bool": pa.array([True, None, False]),
    "date": pa.array([date(2024, 1, 1), None, date(2024, 1, 2)]),
    "instant": pa.array([datetime(2024, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
    "duration": pa.array([timedelta(1), None, None], pa.duration("us")),
    "null": pa.nulls(3),
    "codes": pa.array(["a", None, "b"]).dictionary_encode(),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_digest_is_of_the_ordered_rows(name):
    array = ARRAYS[name]
    digest = digest_of_table(TypedTable({"x": array}))
    blocks = pa.chunked_array([array.slice(0, 1), array.slice(1)])
    assert digest_of_table(TypedTable({"x": blocks})) == digest
    others = [
        {"y": array},
        {"x": array.slice(1)},
        {"x": array, "y": array},
        {"x": array.cast(pa.string())},
    ]
    if name != "null":
        others.append({"x": array.take(pa.array([1, 0, 2]))})
    if name == "text":
        others.append({"x": pa.array(["ab", None, "é"])})
        others.pop(3)
    assert digest not in [digest_of_table(TypedTable(one)) for one in others]
