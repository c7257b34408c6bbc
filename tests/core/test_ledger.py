import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.ledger import SERVER, Entry, Ledger
from fedlib.core.messages import Declined, Done, Failure
from fedlib.core.protocol import run

COLUMNS = ["step", "sender", "receiver", "message", "bytes", "discloses"]
PARTS = {"A": [[0.1], [0.2]], "B": [[5.0]], "C": [[0.3]]}


@pytest.fixture
def ledger():
    """Return the ledger of two steps with three clients: one is passive, one fails."""
    ledger = Ledger()
    for step, replies in ((1, [Done(), Declined(), Failure("OSError")]), (2, [Done(), Done()])):
        names = "ABC"[: len(replies)]
        for name in names:
            ledger.record(step, SERVER, name, Done(), 10)
        for name, reply in zip(names, replies, strict=True):
            ledger.record(step, name, SERVER, reply, 7)
    ledger.lost["C"] = "OSError at Done, step 1"
    return ledger


@pytest.fixture
def axes():
    return plt.figure().add_subplot()


def texts(ax):
    return "\n".join(text.get_text() for text in ax.texts)


def test_one_entry_per_message(relay):
    """The ledger has one entry per message, in order, with the number of bytes sent."""
    clients = {name: HorizontalDBSCANClient(X) for name, X in PARTS.items()}
    transport, ledger = relay(clients), Ledger()
    run(HorizontalDBSCAN(1.0, 2).protocol(), transport, ledger=ledger)
    expected = []
    for step, exchange in enumerate(transport.exchanges, 1):
        sent, received = exchange.request_bytes, exchange.reply_bytes
        expected += [(step, SERVER, name, len(data)) for name, data in sent.items()]
        expected += [(step, name, SERVER, len(data)) for name, data in received.items()]
    assert [(e.step, e.sender, e.receiver, e.bytes) for e in ledger] == expected
    assert len(ledger) == len(expected) == 12
    assert ledger.bytes == sum(size for *_, size in expected)


def test_disclosure():
    """Each entry contains what the class of its message declares."""
    model = HorizontalDBSCAN(1.0, 2).fit(list(PARTS.values()))
    frame = model.ledger_.to_frame().drop_duplicates("message").set_index("message")
    assert frame.discloses["CountCells"] == "the cell size"
    assert frame.discloses["CellCounts"].startswith("the occupied cells")
    assert frame.discloses["Done"] == "nothing"


def test_a_failure_shows_its_type(ledger):
    assert [e.discloses for e in ledger if e.message == "Failure"] == [
        "the type of an error (OSError)"
    ]


def test_no_contents_are_kept(ledger):
    assert list(Entry._fields) == COLUMNS
    with pytest.raises(AttributeError):
        ledger.entries[0].bytes = 0


def test_conversation(ledger):
    """Requests come before replies, and each class is listed once per step."""
    assert ledger.conversation() == ["Done", "Done", "Declined", "Failure", "Done", "Done"]


def test_to_frame(ledger):
    frame = ledger.to_frame()
    assert list(frame.columns) == COLUMNS
    assert len(frame) == len(ledger) == 10
    assert frame.iloc[0].tolist() == [1, SERVER, "A", "Done", 10, "nothing"]
    assert frame["bytes"].sum() == ledger.bytes == 5 * 10 + 5 * 7
    assert frame["step"].dtype == frame["bytes"].dtype == np.int64


def test_summary(ledger):
    summary = ledger.summary()
    assert list(summary.columns) == [
        "step", "direction", "message", "discloses", "messages", "bytes"
    ]  # fmt: skip
    rows = summary.drop(columns="discloses").to_numpy().tolist()
    assert rows == [
        [1, "to clients", "Done", 3, 30],
        [1, "to server", "Done", 1, 7],
        [1, "to server", "Declined", 1, 7],
        [1, "to server", "Failure", 1, 7],
        [2, "to clients", "Done", 2, 20],
        [2, "to server", "Done", 2, 14],
    ]


def test_an_empty_ledger(axes):
    """A ledger without entries can be converted and drawn."""
    empty = Ledger()
    assert (len(empty), empty.bytes, empty.conversation(), list(empty)) == (0, 0, [], [])
    assert empty.to_frame().columns.tolist() == COLUMNS
    assert empty.summary().empty
    assert "<table" in empty._repr_html_()
    assert empty.plot(ax=axes) is axes


def test_a_ledger_in_a_notebook(ledger):
    html = ledger._repr_html_()
    assert "OSError" in html
    assert html.count("<tr") == 1 + 10


def test_ledgers_are_independent():
    first, second = Ledger(), Ledger()
    first.record(1, SERVER, "A", Done(), 10)
    first.lost["A"] = "why"
    assert (len(second), second.lost) == (0, {})


def test_plot(ledger, axes):
    """There is one column per party, and one arrow with name and size per row of the summary."""
    assert ledger.plot(ax=axes) is axes
    shown = texts(axes)
    for party in (SERVER, "client A", "client B", "client C"):
        assert party in shown
    assert "3 × done, 30 bytes" in shown
    assert "2 × done, 20 bytes" in shown
    assert "declined, 7 bytes" in shown
    assert "failure, 7 bytes" in shown
    assert "the type of an error (OSError)" in shown
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 6  # the rows of test_summary


@pytest.mark.parametrize("clients", ["A", "ABC"])
def test_plot_of_long_disclosures(clients, monkeypatch):
    """They are wrapped into lines that end inside the figure and above the next row."""
    monkeypatch.setattr(Done, "discloses", "many words of one client " * 9)
    ledger = Ledger()
    for name in clients:
        ledger.record(1, SERVER, name, Done(), 10)
        ledger.record(1, name, SERVER, Done(), 7)
    ax = ledger.plot()
    ax.figure.draw_without_rendering()
    small = [text for text in ax.texts if text.get_text().startswith("many words")]
    assert len(small) == 2
    for note in small:
        box = note.get_window_extent()
        assert box.x1 < ax.bbox.x1
        heads = [text.get_window_extent() for text in ax.texts if text not in small]
        assert not any(box.overlaps(head) for head in heads)


def test_plot_of_many_clients():
    """The first clients have a column each; one more column represents the rest."""
    model = HorizontalDBSCAN(1.0, 2).fit([[[0.1]]] * 9)
    shown = texts(model.ledger_.plot(max_clients=4))
    assert "client 2" in shown
    assert "client 3" not in shown
    assert "6 more clients" in shown
    assert "9 × count cells" in shown
