"""``fedlib memory``, and what a locked or restored site does when it joins."""

import re
from pathlib import Path

import click
import pytest
from cli_helpers import invoke, refuse

from fedlib.cli.data import SourceOptions
from fedlib.cli.join import JoinOptions, Site
from fedlib.core.messages import shown
from fedlib.core.site_memory import TableMemory
from fedlib.protection.privacy import epsilon_of
from fedlib.protection.secure.identities import KeyMemory
from fedlib.tables.streams import ReadOptions

pytest.importorskip("opendp")
DATA = Path("north.csv")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    DATA.write_text("x,y\n1,2\n")
    Path("north.key").write_text("")
    Path("token").write_text("secret")


def test_a_site_reads_what_it_remembers():
    memory = TableMemory.of_file(DATA)
    charge = {"protocol": "kmeans", "request": "SumClustersNoisily"}
    for _ in range(3):
        memory.add("charge", "kmeans", charge | {"epsilon": 0.1})
    memory.add("charge", "kmeans", charge | {"rho": 0.02})
    memory.add("sum", "a", "b")
    assert invoke("memory", DATA).splitlines() == [
        f"memory: {memory.path}",
        "charges: 4, with epsilon=0.3 and rho=0.02 in all",
        f"  rho is epsilon={shown(epsilon_of(0.02, 1e-6))} with delta=1e-06",
        "requests declined because of the rows: 0",
        "secure sums without noise: 1",
        "noise that is drawn once: no",
    ]
    assert "secure sums without noise: 0" in invoke("memory", DATA, "--forget-sums")
    assert "charges: 4," in invoke("memory", DATA)  # they are never forgotten


def test_a_locked_site_does_not_join_until_it_is_unlocked():
    TableMemory.of_file(DATA).lock.close("CountWithNoise: of row 3")
    KeyMemory(Path("north.key")).lock.close("AddToy: of row 5")
    join = "join", "http://127.0.0.1:9", "--data", DATA, "--token-file", "token", "--patience=0"
    assert "clear it with fedlib memory DATA --unlock" in refuse(*join)
    doctor = invoke("doctor", *join[1:-1], code=1)
    assert re.search("^fix  memory: .* clear it with fedlib memory DATA --unlock", doctor, re.M)
    given = "memory", DATA, "--secure-key", "north.key"
    reasons = ["failed: CountWithNoise: of row 3", "failed: AddToy: of row 5"]
    shown = invoke(*given).splitlines()[-4:]
    assert shown == [reasons[0], LOCKED, reasons[1], LOCKED]
    shown = invoke(*given, "--unlock").splitlines()[-4:]
    assert shown == [reasons[0], "unlocked", reasons[1], "unlocked"]
    assert "locked" not in invoke(*given)
    assert "no answer" in refuse(*join)


def test_a_damaged_reason_of_a_lock_is_shown_or_named():
    lock = TableMemory.of_file(DATA).lock
    lock.close("CountWithNoise: of row 3")
    lock.path.write_bytes(b"\xff of row 3\n")
    assert invoke("memory", DATA).splitlines()[-2:] == ["failed: \ufffd of row 3", LOCKED]
    lock.path.unlink()
    lock.path.mkdir()
    assert str(lock.path) in refuse("memory", DATA)


LOCKED = "the site is locked; see --unlock"


def test_rows_that_change_under_a_site_are_not_read():
    """What is answered about them would belong to the memory of the earlier rows."""
    rows = Site(JoinOptions(url="", data=SourceOptions(data=DATA), reading=ReadOptions()))
    before = rows.read(DATA)
    DATA.write_text("x,y\n1,2\n3,4\n")
    assert rows.read(DATA) is before
    rows.protected = True  # as the server tells, and then the file is read again
    with pytest.raises(click.ClickException, match="has changed since the start: join again"):
        rows.read(DATA)


def test_a_restored_folder_is_reported(state_folder):
    TableMemory.of_file(DATA, Path("north.key")).add("sum", "a", "b")
    for file in state_folder.iterdir():
        file.unlink()
    output = refuse("memory", DATA, "--secure-key", "north.key")
    assert "the state folder was restored or copied" in output
