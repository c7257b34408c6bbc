"""Rows of databases, and sources with a name: a changed table keeps its budget and its noise."""

import re
import sqlite3
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from cli_helpers import (
    SITES,
    assert_labels_as_in_process,
    fitted,
    invoke,
    refuse,
    rows,
    serving,
)

from fedlib import HorizontalDBSCAN
from fedlib.cli.data import SourceOptions
from fedlib.cli.join import JoinOptions, Site
from fedlib.clustering.density.ppdbdc import AnotherDraw, DrawRepresentatives, PPDBDCClient
from fedlib.core.site_memory import EarlierRows, TableMemory
from fedlib.protection.privacy import Budget, DisclosureBudgetSpent, Privacy
from fedlib.sites import models
from fedlib.tables.schema import Schema
from fedlib.tables.streams import ReadOptions

pytest.importorskip("sqlalchemy")
ADDRESS = "sqlite:///clinic.db"
DATABASE = "--query", "rows.sql"
JOIN = "join", "http://127.0.0.1:9", "--token-file", "tokens/0.token", "--patience=0"
PASSWORD = "gehe1m"
NOISE = Privacy(epsilon=0.75)


def fill(table, name="patients"):
    """Replace a table of the database."""
    with sqlite3.connect("clinic.db") as link:
        table.to_sql(name, link, if_exists="replace", index=False)
    link.close()


@pytest.fixture
def clinic(site):
    """Return the rows in a database of SQLite, with the query to them."""
    table = rows()[0]
    fill(table)
    Path("rows.sql").write_text("SELECT * FROM patients ORDER BY rowid;\n")
    return table


def memory(*options, data=ADDRESS):
    """Return the lines of what a site remembers, by their first words."""
    lines = invoke("memory", data, *(DATABASE if data == ADDRESS else ()), *options).splitlines()
    return dict(line.split(": ", 1) for line in lines if not line.startswith(" "))


def memory_of(**options):
    """Return the memory with which a site joins."""
    given = SourceOptions(data=ADDRESS, query=Path("rows.sql"), **options)
    return Site(JoinOptions(url="", data=given, reading=ReadOptions())).memory


@pytest.mark.parametrize("options", [[], ["--source", "clinic"]])
def test_a_changed_table_of_a_source_keeps_what_the_site_remembers(options, clinic):
    given = {"source": "clinic"} if options else {}
    Budget(1.0, memory=memory_of(**given)).charge(NOISE, "kmeans", "SumClustersNoisily")
    memory_of(**given).add("declined", "kmeans")
    fill(clinic[:-1])
    with pytest.raises(DisclosureBudgetSpent):
        Budget(1.0, memory=memory_of(**given)).charge(NOISE, "kmeans", "SumClustersNoisily")
    found = memory(*options)
    assert found["charges"].startswith("1, with epsilon=0.75")
    assert found["requests declined because of the rows"] == "1"
    assert found["changes of the rows"] == "1"
    assert found["source"].startswith("clinic" if options else "sqlite:////")
    assert memory(*options)["changes of the rows"] == "1"  # the same rows are no further change


def test_another_query_is_another_source_unless_they_have_one_name(clinic):
    before = memory()["memory"], memory("--source", "a")["memory"]
    Path("rows.sql").write_text("-- the cohort\nSELECT *\nFROM patients ORDER BY rowid")
    assert (memory()["memory"], memory("--source", "a")["memory"]) == before
    Path("rows.sql").write_text("SELECT * FROM patients ORDER BY x")
    after = memory()["memory"], memory("--source", "a")["memory"]
    assert after[0] != before[0]
    assert after[1] == before[1] != memory("--source", "b")["memory"]


def test_a_file_and_a_database_share_the_memory_of_one_name(clinic):
    memory_of(source="clinic").add("declined", "kmeans")
    found = memory("--source", " clinic ", data="0.csv")
    assert found["requests declined because of the rows"] == "1"
    assert found["changes of the rows"] == "1"  # other bytes
    plain = memory(data="0.csv")
    assert plain["memory"] != found["memory"]
    assert not {"source", "changes of the rows"} & {*plain}


def test_the_operator_declares_other_people(clinic):
    """The records stay in the file, and the earlier rows do not come back with a new budget."""
    kept = memory_of()
    Budget(1.0, memory=kept).charge(NOISE, "kmeans", "SumClustersNoisily")
    for kind in ("declined", "sum", "noise"):
        kept.add(kind, "a", "b")
    declare = "memory", ADDRESS, *DATABASE, "--other-people"
    assert "have not changed, so the people in them are the same" in refuse(*declare)
    fill(rows()[1])
    invoke(*declare)
    found = memory()
    assert found["charges"].startswith("0,")
    assert found["requests declined because of the rows"] == "0"
    assert found["secure sums without noise"] == "0"
    assert found["noise that is drawn once"] == "no"
    assert found["changes of the rows"] == "0"
    assert found["declarations of other people"] == "1"
    Budget(1.0, memory=memory_of()).charge(NOISE, "kmeans", "SumClustersNoisily")
    assert kept.path.read_text().count('"epsilon":0.75') == 2
    assert "have not changed" in refuse(*declare)
    fill(clinic)
    earlier = "the rows of this source are those of an earlier time"
    with pytest.raises(click.ClickException, match=earlier):
        memory_of()
    assert earlier in refuse(*declare)


def test_a_file_without_a_name_has_no_other_people(clinic):
    assert "name it with --source" in refuse("memory", "0.csv", "--other-people", code=2)


def test_earlier_rows_are_an_error_of_their_own():
    TableMemory.of_source("a", "1").add("declined", "a")
    TableMemory.of_source("a", "2").begin_anew("2")
    with pytest.raises(EarlierRows):
        TableMemory.of_source("a", "1")
    assert TableMemory.of_source("a", "3").values("declined") == []


def test_changed_rows_get_no_second_noise_of_ppdbdc():
    X = np.random.default_rng(0).random((30, 2))
    request = DrawRepresentatives(0.2, None, 1.0, "centred", 5)

    def draw(points, digest):
        client = PPDBDCClient(points)
        client.memory = TableMemory.of_source("clinic", digest)
        return client.answer(request).representatives.tolist()

    first = draw(X, "1")
    changed = X.copy()
    changed[0] += 0.01
    for other in (X[:-1], changed):
        with pytest.raises(AnotherDraw, match="rows or the features have changed .*--other-people"):
            draw(other, "2")
    assert draw(X, "1") == first
    TableMemory.of_source("clinic", "2").begin_anew("2")
    assert draw(X[:-1], "2") != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "the rows need either a file or an address, or --data-from-env, got neither"),
        (f"--data {ADDRESS} --data-from-env CLINIC --query rows.sql", "got both"),
        (f"--data {ADDRESS}", "a database needs --query, the file with one SELECT"),
        ("--data 0.csv --query rows.sql", "--query is for a database; leave it out"),
        ("--data-from-env CLINIC --query rows.sql", "variable CLINIC must contain the address"),
        (f"--data {ADDRESS} --query 0.csv", "the query must begin with SELECT or WITH, got 'X'"),
        (f"--data {ADDRESS} --query rows.sql --query-timeout 0", "0.0 is not in the range x>0"),
        ("--data 0.csv --source ", "--source must be a name, got an empty text"),
        (
            f"--data postgresql://a:{PASSWORD}@b/c --query rows.sql",
            "the address contains a password, which other users of this machine could see;",
        ),
        (f"--data nothing://a@{PASSWORD}/c --query rows.sql", "SQLAlchemy does not know nothing;"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, clinic, monkeypatch):
    monkeypatch.setenv("CLINIC", f"{PASSWORD}.csv")
    given = options.split(" ") if options else []
    refused = refuse(*JOIN, *given, code=2)
    assert message in refused
    assert PASSWORD not in refused


def test_a_query_without_an_order_is_reported(clinic):
    ordered = invoke("memory", ADDRESS, *DATABASE)
    Path("rows.sql").write_text("SELECT * FROM patients")
    warned = invoke("memory", ADDRESS, *DATABASE)
    assert "warning: rows.sql: without ORDER BY, the order of the rows may change" in warned
    assert "warning" not in ordered


def test_an_unreachable_server_is_one_line(clinic):
    given = "--data", "postgresql://tester@127.0.0.1:9/clinic", *DATABASE
    refused = refuse(*JOIN, *given)
    assert refused.startswith("Error: postgresql://127.0.0.1:9/clinic: there is no connection: ")
    found = invoke("doctor", *JOIN[1:-1], *given, code=1)
    assert "fix  data: postgresql://127.0.0.1:9/clinic: there is no connection: " in found


def test_rows_that_do_not_fit_are_named(clinic):
    fill(clinic.assign(words="a"))
    refused = refuse(*JOIN, "--data", ADDRESS, *DATABASE)
    assert re.search("sqlite:///clinic.db: column 'words' must contain finite numbers", refused)
    refused = refuse(*JOIN, "--data", ADDRESS, *DATABASE, "--separator", ";")
    assert "sqlite:///clinic.db: separator applies to files only" in refused


def test_doctor_describes_the_columns(clinic):
    found = invoke("doctor", *JOIN[1:-1], "--data", ADDRESS, *DATABASE, code=1)
    assert "ok   data: 45 rows of 2 features" in found
    assert "ok   column x: numbers from -1.99729 to 5.66688, 0 gaps" in found
    assert "ok   memory: " in found


def test_predict_takes_new_rows_from_a_database(clinic, monkeypatch):
    models.save(fitted("kmeans"), "model.npz")
    arguments = "predict", "model.npz", "--labels-out", "labels.csv"
    invoke(*arguments, "--data", "0.csv")
    expected = Path("labels.csv").read_bytes()
    monkeypatch.setenv("CLINIC", ADDRESS)
    for given in (["--data", ADDRESS], ["--data-from-env", "CLINIC"]):
        Path("labels.csv").unlink()
        invoke(*arguments, *given, *DATABASE)
        assert Path("labels.csv").read_bytes() == expected


def test_a_schema_is_drafted_and_checked_with_a_database(clinic, monkeypatch):
    fill(pd.DataFrame({"age": [*range(40, 60)], "sex": ["f", "m"] * 10}))
    invoke("schema", "draft", ADDRESS, *DATABASE, "--out", "schema.json")
    assert Schema.read(Path("schema.json")).categories == {"sex": ("f", "m", "other")}
    monkeypatch.setenv("CLINIC", ADDRESS)
    given = "schema", "check", "schema.json", "--data-from-env", "CLINIC", *DATABASE
    assert "ok    20 rows fit the schema" in invoke(*given)
    fill(pd.DataFrame({"age": [50, 999], "sex": ["f", "m"]}))
    assert "fix   column 'age': 1 " in invoke(*given, code=1)


def test_a_run_on_postgresql_leaves_no_password_anywhere(command, site, postgresql_socket):
    """The labels are those of the files; one site names its database in the environment."""
    psycopg = pytest.importorskip("psycopg")
    about = f"host={postgresql_socket} user=tester dbname=postgres"
    with psycopg.connect(about, autocommit=True) as link:
        link.execute("DROP SCHEMA IF EXISTS study CASCADE; DROP ROLE IF EXISTS nurse")
        link.execute(f"CREATE SCHEMA study; CREATE ROLE nurse LOGIN PASSWORD '{PASSWORD}'")
        link.execute("GRANT USAGE ON SCHEMA study TO nurse")
        for name, part in zip(SITES, rows(), strict=True):
            link.execute(f'CREATE TABLE study."{name}" (i int, x float8, y float8)')
            values = [(i, *row) for i, row in enumerate(part.to_numpy().tolist())]
            link.cursor().executemany(f'INSERT INTO study."{name}" VALUES (%s, %s, %s)', values)
            link.execute(f'GRANT SELECT ON study."{name}" TO nurse')
            Path(f"{name}.sql").write_text(f'SELECT x, y FROM study."{name}" ORDER BY i')
    options = ["--border", "absorb", "--random-state", "0"]
    server, url = serving(command, *options)
    address = f"postgresql://{{}}@/postgres?host={postgresql_socket}"
    sites = []
    for name in SITES:
        data = ["--data", address.format("tester")]
        environment = {}
        if name == "0":
            data = ["--data-from-env", "CLINIC"]
            environment = {"CLINIC": address.format(f"nurse:{PASSWORD}")}
        given = [*data, "--query", f"{name}.sql", "--labels-out", f"labels-{name}.csv"]
        given += ["--token-file", f"tokens/{name}.token", "--ledger-out", f"ledger-{name}.csv"]
        given += ["--state-dir", f"state-{name}"]
        sites.append(command("join", url, *given, environment=environment))
    outputs = [one.ends() for one in [*sites, server]]
    assert_labels_as_in_process(
        HorizontalDBSCAN(cell_size=0.5, min_samples=4, border="absorb", random_state=0)
    )
    files = [path for path in site.rglob("*") if path.is_file()]
    assert {"ledger-0.csv", "labels-0.csv"} <= {path.name for path in files}
    assert [path for path in files if path.parent.name == "state"]  # the memories of the sources
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]
    assert not [output for output in outputs if PASSWORD in output]
