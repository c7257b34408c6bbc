"""A run that is killed at any moment continues from its journal with the same result."""

import hashlib
import os
import stat
from typing import Annotated

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from fedlib import FederatedPipeline, HorizontalDBSCAN
from fedlib.boosting.client import BoostingClient
from fedlib.core.aggregation import exclude
from fedlib.core.client import Client, handles
from fedlib.core.in_process import InProcess
from fedlib.core.journal import (
    FRAME,
    MAGIC,
    Answered,
    Asked,
    Header,
    Journal,
    JournalError,
    Noted,
    describe,
    read_ledger,
    read_records,
    run_id,
)
from fedlib.core.messages import Labels, Message
from fedlib.core.protocol import TooFewClients, run
from fedlib.core.registry import protocols
from fedlib.sites import models
from fedlib.tables.pipeline import PipelineClient
from fedlib.testing import Recorder

RNG = np.random.default_rng(0)
PARTS = [RNG.normal(size=(30, 2)) + 2 * site for site in range(3)]
PREDICTIONS = [((X[:, 0] % 1), (X[:, 0] > 2).astype(int)) for X in PARTS]
ROWS_WITH_CLASSES = [(X, (X[:, 0] > 2).astype(int)) for X in PARTS]
DENSITY = {"eps": 0.5, "min_samples": 4}

# Every protocol, with the methods that exchange different messages. A seed that is missing is
# drawn.
CASES = {
    "horizontal-dbscan": ({"cell_size": 0.5, "min_samples": 4, "border": "absorb"}, PARTS),
    "summary": ({}, PARTS),
    "pca": ({}, PARTS),
    "suggest": ({"min_samples": 4, "tolerance": 0.9}, PARTS),
    "kmeans-selection": ({"max_clusters": 2, "n_init": 1, "max_iter": 1}, PARTS),
    "gaussian-mixture-selection": ({"max_components": 2, "max_rounds": 1, "tol": 0.0}, PARTS),
    "clustering-score": ({}, ROWS_WITH_CLASSES),
    "evaluation": ({"n_bins": 5}, PREDICTIONS),
    "regression-score": ({}, PREDICTIONS),
    "approximate-dbscan": ({**DENSITY, "rho": 0.5}, PARTS),
    "vertical-dbscan": (DENSITY, PARTS),
    "dbdc": (DENSITY, PARTS),
    "sdbdc": (DENSITY, PARTS),
    "ppdbdc": (DENSITY, PARTS),
    "kmeans": ({"n_clusters": 3, "n_init": 1, "method": "one_shot"}, PARTS),
    "kmeans lloyd": ({"n_clusters": 3, "n_init": 1, "max_iter": 2, "method": "lloyd"}, PARTS),
    "gaussian-mixture": (
        {"n_components": 2, "max_rounds": 2, "tol": 0.0, "method": "average"},
        PARTS,
    ),
    "gaussian-mixture em": (
        {"n_components": 2, "method": "em", "max_rounds": 2, "tol": 0.0},
        PARTS,
    ),
    "gaussian-mixture-dbscan": ({**DENSITY, "n_components": 2}, PARTS),
    "xgboost": (
        {"n_trees": 1, "max_depth": 2, "method": "top_splits"},
        ROWS_WITH_CLASSES,
    ),
    "xgboost union": ({"n_trees": 1, "max_depth": 1, "method": "union"}, ROWS_WITH_CLASSES),
    "xgboost histogram": ({"n_trees": 2, "max_depth": 1, "method": "histogram"}, ROWS_WITH_CLASSES),
    "xgb-regressor": ({"n_trees": 2, "max_depth": 1, "subsample": 0.9}, ROWS_WITH_CLASSES),
}


class Killed(BaseException):
    """Takes the place of a signal that cannot be caught."""


@pytest.fixture
def killer(monkeypatch):
    """Return a set of moments and a switch, a list that is not empty while it is on.

    Then a run is killed at its first moment that is not in the set, which is added to it.
    The moments are: for each record, when half of it is on the disk, and when it is complete; for
    each exchange, when the clients have replied.
    """
    moments, armed = set(), []

    def kill_at(*moment):
        if armed and moment not in moments:
            moments.add(moment)
            raise Killed

    def append(journal, record, sync=False):
        what = type(record).__name__, journal._n_noted, getattr(record, "step", 0)
        before = journal._file.seek(0, os.SEEK_END)
        write(journal, record, sync)
        if armed and ("torn", *what) not in moments:
            journal._file.truncate((before + journal._file.tell()) // 2)
        kill_at("torn", *what)
        kill_at("after", *what)

    def exchange(transport, requests):
        replies = deliver(transport, requests)
        kill_at("answered", transport.ledger.entries[-1].step)
        return replies

    write, deliver = Journal._append, InProcess.exchange
    monkeypatch.setattr(Journal, "_append", append)
    monkeypatch.setattr(InProcess, "exchange", exchange)
    return moments, armed


def outcome(model, folder):
    """Return everything that a user gets from a fitted estimator, as bytes."""
    models.save(model, folder / "model.npz")
    labels = getattr(model, "labels_", [])
    return (
        (folder / "model.npz").read_bytes(),
        [np.asarray(part).tobytes() for part in labels],
        model.ledger_,
    )


@pytest.mark.filterwarnings("ignore::fedlib.boosting.classes.OneClassWarning")
@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_moment(name, killer, tmp_path):
    """Each attempt is killed at the next moment, so the run dies once at each of them."""
    parameters, parts = CASES[name]
    estimator = protocols()[name.split()[0]](**parameters)
    path = tmp_path / "run.journal"
    moments, armed = killer
    armed.append(True)
    entries = []
    while True:
        try:
            model = clone(estimator).fit(parts, journal=path)
        except Killed:
            known = read_ledger(path).entries
            assert known[: len(entries)] == entries  # nothing of the ledger is lost
            entries = known
        else:
            break
    armed.clear()
    assert read_ledger(path) == model.ledger_
    n_steps = model.ledger_.entries[-1].step
    assert {moment[1] for moment in moments if moment[0] == "answered"} == {*range(1, n_steps + 1)}
    if "random_state" in estimator.get_params():  # the undisturbed run gets the recorded seed
        estimator.set_params(random_state=records(path)[0].seed)
        model.set_params(random_state=estimator.random_state)
    assert outcome(model, tmp_path) == outcome(clone(estimator).fit(parts), tmp_path)


def test_every_protocol_of_the_package_is_tested():
    package = {n for n, kind in protocols().items() if kind.__module__.startswith("fedlib.")}
    assert package == {name.split()[0] for name in CASES}


# A toy: the clients add up what they have seen --------------------------------------------------


class JournalTotal(Message):
    discloses = "the sum of all numbers received so far"
    total: Annotated[int, msgspec.Meta(ge=0)]


class JournalAdd(Message):
    discloses = "a number"
    reply = JournalTotal
    number: int


class Adder(Client):
    """Its state is the sum so far, so a request that is handled twice changes the result."""

    def __init__(self, X=(0.0,)):
        self.X = np.array(X)

    @handles(JournalAdd)
    def add(self, request):
        total = request.number + (0 if self.state is None else int(self.state.labels[0]))
        if total == 666:
            raise ArithmeticError("a secret")
        self.state = Labels(np.array([total]))
        return JournalTotal(total)


def adding(*numbers):
    """Ask for these sums; a client whose sum is 13 is excluded."""
    totals = []
    for number in numbers:
        replies = yield JournalAdd(number)
        unlucky = {name: "13" for name, reply in replies.items() if reply.total == 13}
        replies = yield from exclude(replies, unlucky)
        totals.append({name: reply.total for name, reply in replies.items()})
    return totals


def adders(*names):
    return InProcess({name: Adder() for name in names or "AB"})


class Deaf(InProcess):
    """A transport that must not be used."""

    def exchange(self, requests):
        raise AssertionError("a client was asked")


def records(path):
    with open(path, "rb") as file:
        return list(read_records(file, path))


def test_the_records_of_a_run(tmp_path):
    """Each step has its requests before, and its replies after the exchange."""
    path = tmp_path / "run.journal"
    assert run(adding(2, 3), adders(), journal=path) == [{"A": 2, "B": 2}, {"A": 5, "B": 5}]
    header, *steps = records(path)
    assert header.protocol == "adding"
    assert list(header.clients) == ["A", "B"]
    assert header.versions["numpy"] == np.__version__
    assert [type(record) for record in steps] == [Asked, Answered, Noted] * 2
    assert [record.step for record in steps if not isinstance(record, Noted)] == [1, 1, 2, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run_id(path) == header.run


def test_a_finished_run_is_repeated_without_its_clients(tmp_path):
    path = tmp_path / "run.journal"
    expected = run(adding(2, 3), adders(), journal=path)
    size = path.stat().st_size
    clients = {name: Adder() for name in "AB"}
    assert run(adding(2, 3), Deaf(clients), journal=path) == expected
    assert [client.state.labels.tolist() for client in clients.values()] == [[5], [5]]
    assert path.stat().st_size == size


def test_the_same_transport_continues(tmp_path):
    """An interrupted exchange has changed the states; they are set back before it is repeated."""
    path, transport = tmp_path / "run.journal", adders()
    exchange = transport.exchange

    def interrupted(requests):
        exchange(requests)
        raise KeyboardInterrupt

    transport.exchange = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(adding(2, 3), transport, journal=path)
    transport.exchange = exchange
    assert run(adding(2, 3), transport, journal=path) == [{"A": 2, "B": 2}, {"A": 5, "B": 5}]


def test_failures_are_replayed(tmp_path):
    """A is excluded at 13, B fails at 666; the record names both, and so does the run replayed."""
    path = tmp_path / "run.journal"
    clients = {name: Adder() for name in "ABC"}
    clients["A"].state, clients["B"].state = Labels(np.array([10])), Labels(np.array([660]))
    transport = InProcess(clients)
    expected = run(adding(3, 3), transport, min_clients=1, journal=path)
    assert expected == [{"B": 663, "C": 3}, {"C": 6}]
    ledger = read_ledger(path)
    assert ledger == transport.ledger
    assert ledger.lost == {
        "A": "InvalidReply at JournalAdd, step 1",
        "B": "ArithmeticError at JournalAdd, step 2",
    }
    again = Deaf({name: Adder() for name in "ABC"})
    again._clients["A"].state, again._clients["B"].state = (records(path)[0].states, None)
    assert run(adding(3, 3), again, min_clients=1, journal=path) == expected
    assert again.ledger == ledger


def test_too_few_clients_are_replayed(tmp_path):
    path = tmp_path / "run.journal"
    for transport in (adders(), Deaf({name: Adder() for name in "AB"})):
        with pytest.raises(TooFewClients, match="Lost: 'A': InvalidReply at JournalAdd, step 1"):
            run(adding(13), transport, journal=path)
    assert read_ledger(path) == transport.ledger


# What is refused --------------------------------------------------------------------------------


def test_another_request_stops_the_run(tmp_path):
    path = tmp_path / "run.journal"
    run(adding(2, 3), adders(), journal=path)
    with pytest.raises(JournalError, match="the requests of step 2 to 'A', 'B' are not the rec"):
        run(adding(2, 4), adders(), journal=path)
    with pytest.raises(JournalError, match="the run has ended, but the journal has a step 2"):
        run(adding(2), adders(), journal=path)
    assert run(adding(2, 3, 5), adders(), journal=path)[-1] == {"A": 10, "B": 10}  # it goes on


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"min_samples": 5}, "with min_samples 4 instead of 5"),
        ({"random_state": 3}, "with random_state None instead of 3"),
        ({"min_clients": 2}, "with min_clients 3 instead of 2"),
        ({"parts": PARTS[:2]}, "with the clients '0', '1', '2' instead of '0', '1'"),
        ({"parts": [PARTS[0] + 1, *PARTS[1:]]}, "with the digest of the data of 0 [0-9a-f]{16} in"),
        ({"passive": [1]}, "with the digest of the data of 1 [0-9a-f]{16} instead of"),
        ({"protocol": "dbdc"}, "with the protocol ppdbdc instead of dbdc"),
    ],
)
def test_another_run_is_refused(change, reason, tmp_path):
    path = tmp_path / "run.journal"
    protocols()["ppdbdc"](**DENSITY).fit(PARTS, journal=path)
    before = path.read_bytes()
    estimator = protocols()[change.pop("protocol", "ppdbdc")](**DENSITY)
    parts = change.pop("parts", PARTS)
    options = {name: change.pop(name) for name in ("min_clients", "passive") if name in change}
    with pytest.raises(JournalError, match=f"is the journal of another run, {reason}"):
        estimator.set_params(**change).fit(parts, journal=path, **options)
    assert path.read_bytes() == before


def test_other_versions_are_refused(monkeypatch, tmp_path):
    path = tmp_path / "run.journal"
    run(adding(2), adders(), journal=path)
    versions = {**records(path)[0].versions, "numba": "0.1"}
    monkeypatch.setattr("fedlib.core.journal._versions", lambda: versions)
    with pytest.raises(JournalError, match=r"with the version of numba [\d.]+ instead of 0\.1"):
        run(adding(2), adders(), journal=path)


def test_a_journal_serves_one_run_at_a_time(tmp_path):
    path = tmp_path / "run.journal"
    with Journal(path), pytest.raises(JournalError, match="is in use by another process"):
        run(adding(2), adders(), journal=path)


def test_another_file_is_not_overwritten(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("label\n0\n")
    with pytest.raises(JournalError, match="is not a journal of fedlib"):
        run(adding(2), adders(), journal=path)
    assert path.read_text() == "label\n0\n"


def test_a_transport_that_cannot_continue(tmp_path):
    with pytest.raises(ValueError, match="InProcess, HTTP or Dask; got a Recorder"):
        run(adding(2), Recorder({"A": Adder()}), journal=tmp_path / "run.journal")


# The file ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the bytes of a journal, its records, and where each of them ends."""
    path = tmp_path_factory.mktemp("journal") / "run.journal"
    ends, append = [len(MAGIC)], Journal._append

    def note_end(journal, record, sync=False):
        append(journal, record, sync)
        ends.append(journal._file.tell())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_append", note_end)
        run(adding(2, 3), adders(), journal=path)
    return path.read_bytes(), records(path), ends


@given(data=st.data())
def test_a_truncated_file_has_the_first_records(written, tmp_path_factory, data):
    """A crash leaves a file of any length; complete records are never lost."""
    content, all_records, ends = written
    size = data.draw(st.integers(0, len(content)))
    path = tmp_path_factory.mktemp("truncated") / "run.journal"
    path.write_bytes(content[:size] + bytes(data.draw(st.sampled_from([0, 1, 100]))))
    on_disk = path.read_bytes()  # the added zeros can complete a record
    n_complete = max(0, sum(on_disk.startswith(content[:end]) for end in ends) - 1)
    if size < len(MAGIC) and path.stat().st_size > size:
        return  # zeros in place of the first bytes: not a journal, as the test below checks
    assert records(path) == all_records[:n_complete]
    assert run(adding(2, 3), adders(), journal=path) == [{"A": 2, "B": 2}, {"A": 5, "B": 5}]


@given(data=st.data())
def test_a_changed_byte_is_noticed(written, tmp_path_factory, data):
    """Either the file is refused, or the last record is dropped as incomplete.

    A record with another digest than it states may be one whose bytes did not all reach the disk.
    """
    content, all_records, ends = written
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("changed") / "run.journal"
    path.write_bytes(changed)
    last_digest = ends[-2] + FRAME.size - hashlib.sha256().digest_size
    if place < last_digest:
        with pytest.raises(JournalError, match="is damaged at byte|is not a journal of fedlib"):
            records(path)
    else:
        assert records(path) == all_records[:-1]


def test_a_record_of_another_version(tmp_path):
    path = tmp_path / "run.journal"
    with Journal(path) as journal:
        journal._append(Header("a", "b", {}, {}, 0))
        journal._append(msgspec.structs.replace(Asked(1, {}, [], {}), step="one"))
    with pytest.raises(JournalError, match=r"unknown record at byte \d+: .*`step`|`\$\.step`"):
        records(path)


def test_records_in_a_wrong_order(tmp_path):
    path = tmp_path / "run.journal"
    with Journal(path) as journal:
        journal._append(Answered(1, {}, {}))
    with pytest.raises(JournalError, match="is damaged: it has Answered instead of Header"):
        run(adding(2), adders(), journal=path)
    assert run_id(path) is None


def test_a_full_disk_ends_the_run_and_it_continues(monkeypatch, tmp_path):
    """The record that did not fit is dropped, and its step is repeated."""
    path = tmp_path / "run.journal"
    append = Journal._append

    def full(journal, record, sync=False):
        if isinstance(record, Answered) and record.step == 2:
            append(journal, record)
            journal._file.truncate(journal._file.tell() - 5)
            raise OSError(28, "No space left on device")
        append(journal, record, sync)

    monkeypatch.setattr(Journal, "_append", full)
    with pytest.raises(OSError, match="No space left"):
        run(adding(2, 3), adders(), journal=path)
    monkeypatch.setattr(Journal, "_append", append)
    assert run(adding(2, 3), adders(), journal=path) == [{"A": 2, "B": 2}, {"A": 5, "B": 5}]


def test_parameters_are_compared_by_value():
    arrays = [np.array([[0.5]]), [[0.5]], ((0.5,),), np.array([[0.5]], dtype=object)]
    assert len({describe(array) for array in arrays}) == 1
    assert describe(np.array([[0.5]])) != describe(np.array([[0.25]]))
    assert describe(np.array([0.5])) != describe(np.array([[0.5]]))
    assert describe(np.int64(3)) == describe(3) != describe("3")
    state = np.random.RandomState(0)
    before = describe(state)
    state.random_sample()
    assert describe(state) != before


def test_done_is_not_confused_with_a_missing_reply(tmp_path):
    """A client without a reply has none in the record either."""
    path = tmp_path / "run.journal"
    transport = adders()
    exchange = transport.exchange
    transport.exchange = lambda requests: {"B": exchange(requests)["B"]}
    assert run(adding(2), transport, min_clients=1, journal=path) == [{"B": 2}]
    assert list(records(path)[2].replies) == ["B"]
    again = Deaf({name: Adder() for name in "AB"})
    assert run(adding(2), again, min_clients=1, journal=path) == [{"B": 2}]
    assert again.ledger.lost == {"A": "Lost at JournalAdd, step 1"}


def test_the_digest_of_raw_tables_and_classes(tmp_path):
    """A pipeline's client records a digest of its table, with its text, and of its classes."""
    table = pd.DataFrame({"x": [1.0, 2.0, None], "kind": ["a", "b", None]})
    y = np.array(["ill", "well", "well"])

    def digest(table, y):
        client = PipelineClient((table, y), BoostingClient)
        return InProcess({"A": client}).data_digests()["A"]

    same = digest(table, y)
    assert digest(table.copy(), y.copy()) == same
    changes = [table.replace({"kind": {"a": "c"}}), table.fillna({"x": 3.0}), table[["kind", "x"]]]
    changes.append(table.fillna({"kind": "None"}))
    assert len({same, digest(table, y[::-1].copy()), *(digest(one, y) for one in changes)}) == 6
    model = FederatedPipeline(HorizontalDBSCAN(0.5, 1), impute="mean", encode="one_hot")
    model.fit([table, table], journal=tmp_path / "run.journal")
    with pytest.raises(JournalError, match="the digest of the data of 1"):
        model.fit([table, changes[0]], journal=tmp_path / "run.journal")
