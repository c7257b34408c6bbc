"""What a run prints: nothing by default, and lines about its steps when asked."""

import inspect
import re

import pytest

from fedlib import FederatedPipeline, HorizontalDBSCAN, VerticalDBSCAN
from fedlib.core import ledger as progress
from fedlib.core.ledger import SERVER, Entry, Ledger, Progress
from fedlib.core.registry import protocols, wrappers

PARTS = [[[0.1], [0.2]], [[5.0]]]
GRID = HorizontalDBSCAN(1.0, 2)


def lines(text):
    """Return printed lines without times."""
    return re.sub(r", \d+ s$", "", text.rstrip("\n"), flags=re.MULTILINE).split("\n")


def test_quiet_by_default(capsys):
    GRID.fit(PARTS)
    assert capsys.readouterr() == ("", "")


def test_each_step(capsys):
    """The sizes are those of the ledger up to the step."""
    entries = GRID.fit(PARTS, verbose=2).ledger_.entries
    first = sum(entry.bytes for entry in entries if entry.step == 1)
    both = sum(entry.bytes for entry in entries)
    assert lines(capsys.readouterr().out) == [
        f"step 1: CountCells to 2 clients, {first} bytes",
        f"step 2: AssignCells to 2 clients, {both} bytes",
        f"the run has ended after 2 steps, {both} bytes",
    ]


def test_at_most_one_line_per_second(capsys, monkeypatch):
    """Steps at 0.4, 0.8, 1.2, … seconds: the third line comes first, and then every third."""
    times = [0.4 * i for i in range(11) for _ in range(2)]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    now = [0.0]
    shown, ledger = Progress(True), Ledger()
    for step in range(1, 8):
        now[0] = times[2 * step]
        ledger.entries.append(Entry(step, SERVER, "A", "Ask", 1000, ""))
        ledger.entries.append(Entry(step, "A", SERVER, "Reply", 1000, ""))
        shown.show(ledger)
    ledger.lost["B"] = "gone"
    now[0] = 9.0
    ledger.entries.append(Entry(8, SERVER, "A", "Ask", 1000, ""))
    shown.show(ledger)
    shown.finish()
    assert capsys.readouterr().out.split("\n") == [
        "step 3: Ask to 1 clients, 6,000 bytes, 1 s",
        "step 6: Ask to 1 clients, 12,000 bytes, 2 s",
        "step 8: Ask to 1 clients, 1 lost, 15,000 bytes, 9 s",
        "the run has ended after 8 steps, 15,000 bytes, 9 s",
        "",
    ]


@pytest.mark.parametrize(
    "fit",
    [
        lambda **options: VerticalDBSCAN(1.0, 2).fit([[[0.1]], [[0.2]]], **options),
        lambda **options: VerticalDBSCAN(1.0, 2).fit([[[0.1]]], ids=[["a"]], **options),
        lambda **options: FederatedPipeline(GRID, scale="minmax").fit(PARTS, **options),
        lambda **options: GRID.fit_predict(PARTS, **options),
    ],
)
def test_other_ways_to_fit(fit, capsys):
    fit()
    assert capsys.readouterr().out == ""
    fit(verbose=True)
    assert capsys.readouterr().out.startswith("the run has ended after ")


def test_a_journal_does_not_depend_on_it(tmp_path, capsys):
    GRID.fit(PARTS, journal=tmp_path / "run.journal")
    GRID.fit(PARTS, journal=tmp_path / "run.journal", verbose=True)
    assert "ended after 2 steps" in capsys.readouterr().out


@pytest.mark.parametrize("verbose", [3, -1, "yes", None])
def test_bad_values(verbose, monkeypatch):
    monkeypatch.setattr("fedlib.core.in_process.InProcess.exchange", None)  # no message may leave
    with pytest.raises(ValueError, match=r"verbose must be False, True or 2; got"):
        GRID.fit(PARTS, verbose=verbose)


@pytest.mark.parametrize("name", [*protocols(), *wrappers()])
def test_every_protocol_has_it(name):
    kind = {**protocols(), **wrappers()}[name]
    assert inspect.signature(kind.fit).parameters["verbose"].default is False
