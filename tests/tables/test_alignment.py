"""Alignment: a toy by hand, its conversation, failures, and agreement with a join of the tables."""

import hashlib
import hmac

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import AlignedRows, HorizontalDBSCAN, VerticalDBSCAN
from fedlib.clustering.density.vertical import DescribeRows, FindNeighbours, VerticalDBSCANClient
from fedlib.core.aggregation import Disagreement
from fedlib.core.client import LostState
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Labels, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.sites import models
from fedlib.sites.site import make_client, make_estimator
from fedlib.tables.alignment import (
    AlignedClient,
    AlignedState,
    KeepRows,
    ListPseudonyms,
    Pseudonyms,
    pseudonym,
)
from fedlib.tables.files import Table, write_labels
from fedlib.testing import Recorder

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
VERTICAL = VerticalDBSCAN(eps=1.5, min_samples=2)


def client(X, ids, key=KEY):
    return AlignedClient(X, VerticalDBSCANClient, ids=ids, key=key, n_jobs=1)


def column(*values):
    return np.array(values, float).reshape(-1, 1)


def test_a_toy_by_hand():
    """The clients share b, c and d; b and c are neighbours in both features, d is far from them."""
    first = column(0, 1, 2, 9), ["a", "b", "c", "d"]
    second = column(9, 9, 2, 1), ["e", "d", "b", "c"]
    model = AlignedRows(VERTICAL).fit([first[0], second[0]], ids=[first[1], second[1]])
    assert [labels.tolist() for labels in model.labels_] == [[None, 0, 0, -1], [None, -1, 0, 0]]
    assert sorted(model.estimator_.labels_.tolist()) == [-1, 0, 0]
    assert model.ledger_.conversation() == [
        "ListPseudonyms",
        "Pseudonyms",
        "KeepRows",
        "Done",
        "DescribeRows",
        "RowDescription",
        "FindNeighbours",
        "NeighbourBlock",
        "AssignLabels",
        "Done",
    ]


def test_pseudonyms_are_keyed_hashes_in_ascending_order():
    """Their order says nothing about the order of the rows; whole numbers are read as text."""
    reply = client(column(1, 2, 3), [7.0, "8", 9]).handle(ListPseudonyms())
    expected = sorted(
        hmac.new(KEY, f"row:{i}".encode(), hashlib.sha256).digest()[:16] for i in (7, 8, 9)
    )
    assert [row.tobytes() for row in reply.pseudonyms] == expected
    assert pseudonym("7", KEY) in expected
    assert pseudonym("7", OTHER_KEY) not in expected


@st.composite
def overlapping(draw):
    """Draw the rows of two to four clients: identifiers in any order, with overlaps or without."""
    lists = st.lists(st.integers(0, 12), min_size=1, max_size=10, unique=True)
    ids = draw(st.lists(lists, min_size=2, max_size=4))
    values = st.integers(-4, 4).map(float)
    tables = [
        pd.DataFrame({"id": one, f"x{i}": [draw(values) for _ in one]}) for i, one in enumerate(ids)
    ]
    return tables, draw(st.sampled_from([KEY, OTHER_KEY]))


@settings(max_examples=30)
@given(overlapping())
def test_equal_to_the_protocol_on_the_joined_tables(drawn):
    """Compared with pandas' merge, in the order of the pseudonyms, for every key."""
    tables, key = drawn
    joined = tables[0]
    for table in tables[1:]:
        joined = joined.merge(table, on="id")
    fit = AlignedRows(VERTICAL).fit
    parts = [table.drop(columns="id") for table in tables]
    ids = [table["id"] for table in tables]
    if joined.empty:
        with pytest.raises(ValueError, match="no row is at all clients; they have"):
            fit(parts, ids=ids, key=key)
        return
    joined["order"] = [pseudonym(str(i), key) for i in joined["id"]]
    joined = joined.sort_values("order").reset_index(drop=True)
    names = [f"x{i}" for i in range(len(tables))]
    central = VERTICAL.fit([joined[[name]] for name in names])
    model = fit(parts, ids=ids, key=key)
    assert model.estimator_.labels_.tolist() == central.labels_.tolist()
    known = dict(zip(joined["id"], central.labels_.tolist(), strict=True))
    for one, labels in zip(ids, model.labels_, strict=True):
        assert labels.tolist() == [known.get(i) for i in one]


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "Int64", "object", "category"])
def test_identifiers_of_every_type_of_number_are_the_same(dtype):
    parts = [column(0, 1, 9), column(1, 2, 3)]
    ids = [np.array([1, 2, 3]), pd.Series([3, 2, 1], dtype=dtype)]
    model = AlignedRows(VERTICAL).fit(parts, ids=ids, key=KEY)
    assert not any(np.ma.getmaskarray(labels).any() for labels in model.labels_)
    expected = AlignedRows(VERTICAL).fit(parts, ids=[["1", "2 ", "3"], list("321")], key=KEY)
    assert [labels.tolist() for labels in model.labels_] == [
        labels.tolist() for labels in expected.labels_
    ]
    table = Table(parts[1], ids=ids[1])  # from a file
    site = make_client("aligned/vertical-dbscan", table, {"n_jobs": 1, **KEYED})
    assert site.handle(ListPseudonyms()) == client(parts[1], list("321")).handle(ListPseudonyms())


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, pd.NaT, "", " "])
@pytest.mark.parametrize("estimator", [AlignedRows(VERTICAL), VERTICAL], ids=["aligned", "same"])
def test_rows_without_an_identifier_are_refused(gap, estimator):
    ids = ["p1", gap, "p3"]
    if estimator is VERTICAL:
        with pytest.raises(ValueError, match="ids have no identifier in 1 row, row 2: leave this"):
            VerticalDBSCANClient(column(1, 2, 3), ids=ids, key=KEY)
        return
    with pytest.raises(ValueError, match=r"parts\[0\]: ids have no identifier in 1 row, row 2"):
        estimator.fit([column(1, 2, 3)] * 2, ids=[ids, ids])


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=8))
def test_repeated_identifiers_are_refused_by_their_number(ids):
    repeated = sum(ids.count(one) > 1 for one in set(ids))
    X = np.zeros((len(ids), 1))
    if not repeated:
        assert client(X, ids).handle(ListPseudonyms()).pseudonyms.shape == (len(ids), 16)
        return
    with pytest.raises(ValueError, match=f"but {repeated} of them occur more than once") as error:
        AlignedRows(VERTICAL).fit([X], ids=[ids])
    assert str(error.value).startswith("parts[0]: ids must identify the rows")
    assert not any(repr(one) in str(error.value) for one in ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": None}, "ids are missing"),
        ({"ids": ["a"]}, "one identifier per row, 2; got 1"),
        ({"key": None}, "key must be 16 to 64 secret bytes .* got NoneType"),
        ({"key": bytes(15)}, "got 15 bytes"),
        ({"key": "x" * 32}, "got str"),
        ({"n_jobs": 0}, "n_jobs must be a positive integer"),
    ],
)
def test_bad_clients_are_refused(options, message):
    arguments = {"ids": ["a", "b"], "key": KEY} | options
    with pytest.raises(ValueError, match=message):
        AlignedClient(column(1, 2), VerticalDBSCANClient, **arguments)


def test_different_keys_are_named():
    members = {
        n: client(column(1, 2), list("ab"), key) for n, key in (("A", KEY), ("B", OTHER_KEY))
    }
    with pytest.raises(Disagreement, match=r"clients disagree on the key: \w{8} at 'A'; \w{8} at"):
        AlignedRows(VERTICAL).fit(InProcess(members))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": None}, "ids must contain one sequence per part, 2; got none"),
        ({"ids": ["ab"]}, "one sequence per part, 2; got 1"),
        ({"passive": [0]}, "passive must be empty"),
        ({"min_clients": 1}, "min_clients must be 2"),
    ],
)
def test_bad_arguments_of_fit(arguments, message):
    parts = [column(1, 2), column(1, 2)]
    with pytest.raises(ValueError, match=message):
        AlignedRows(VERTICAL).fit(parts, **({"ids": [list("ab"), list("ba")]} | arguments))
    with pytest.raises(ValueError, match="ids and key apply to a list of parts"):
        AlignedRows(VERTICAL).fit(InProcess({"A": client(parts[0], list("ab"))}), ids=[list("ab")])


def test_only_protocols_for_different_columns_are_aligned():
    with pytest.raises(ValueError, match="horizontal-dbscan needs no alignment"):
        AlignedRows(HorizontalDBSCAN(1.0, 2)).protocol()


def pair():
    return {
        "A": client(column(1, 2, 3), list("abc")),
        "B": client(column(1, 1, 9), list("cbd")),
    }


def replaced(message_class, changed):
    """Return a function that replaces a client's replies of a class."""

    def tamper(request, reply):
        message = decode(reply)
        return encode(changed(message)) if isinstance(message, message_class) else reply

    return tamper


@pytest.mark.parametrize(
    "changed",
    [
        lambda reply: Pseudonyms(reply.key_digest, reply.pseudonyms[::-1].copy()),
        lambda reply: Pseudonyms(reply.key_digest, reply.pseudonyms[[0, 0, 1]].copy()),
        lambda reply: Pseudonyms(reply.key_digest, reply.pseudonyms[:, :15].copy()),
        lambda reply: Labels(np.zeros(3, np.int64)),
    ],
    ids=["descending", "repeated", "short", "another message"],
)
def test_impossible_pseudonyms_lose_the_client(changed):
    transport = Recorder(pair(), {"B": replaced(Pseudonyms, changed)})
    with pytest.raises(TooFewClients, match="InvalidReply at ListPseudonyms"):
        AlignedRows(VERTICAL).fit(transport)


def test_invented_pseudonyms_only_reduce_the_overlap():
    def invent(reply):
        rows = np.array([[0] * 16, reply.pseudonyms[0], [255] * 16], np.uint8)
        return Pseudonyms(reply.key_digest, rows)

    transport = Recorder(pair(), {"B": replaced(Pseudonyms, invent)})
    with pytest.raises((ValueError, TooFewClients)):
        AlignedRows(VERTICAL).fit(transport)


@pytest.mark.parametrize("lost_at", ["ListPseudonyms", "KeepRows", "DescribeRows"])
def test_a_lost_client_ends_the_run(lost_at):
    def lose(request, reply):
        return None if type(decode(request)).__name__ == lost_at else reply

    with pytest.raises(TooFewClients, match=f"'B': Lost at {lost_at}"):
        AlignedRows(VERTICAL).fit(Recorder(pair(), {"B": lose}))


def test_a_passive_client_ends_the_run():
    members = pair()
    members["B"].passive = True
    with pytest.raises(ValueError, match=r"every client is needed, .* decline: \['B'\]"):
        AlignedRows(VERTICAL).fit(InProcess(members))


def test_a_server_that_marks_other_rows_is_detected():
    """The wrapped clients compare digests of the identifiers that they keep."""
    members = pair()
    for name, kept in (("A", [True, True, False]), ("B", [False, True, True])):
        members[name].handle(KeepRows(np.array(kept)))
    digests = {member.handle(DescribeRows()).digest for member in members.values()}
    assert len(digests) == 2
    with pytest.raises(ValueError, match="there must be 3 marks, one per row; got 2"):
        members["A"].handle(KeepRows(np.ones(2, bool)))


def test_requests_before_the_rows_are_known_and_foreign_states():
    one = client(column(1, 2), list("ab"))
    with pytest.raises(LostState, match="AlignedClient has no KeepRows"):
        one.handle(FindNeighbours(1.0, 2, 0, 2))
    with pytest.raises(LostState, match="no AlignedState but a Labels"):
        one.state = Labels(np.zeros(2, np.int64))
    for n_rows, row in ((3, 0), (2, 2)):
        with pytest.raises(LostState, match="that of another table, this one has 2 rows"):
            one.state = AlignedState(n_rows, np.array([row]), b"")
    assert one.state is None


def test_rebuilt_clients_continue_and_a_journal_too(tmp_path):
    expected = AlignedRows(VERTICAL).fit(InProcess(pair()))
    recorder = Recorder(pair(), rebuild=lambda name: pair()[name])
    there = AlignedRows(VERTICAL).fit(recorder)
    assert there.ledger_ == expected.ledger_
    assert there.estimator_.labels_.tolist() == expected.estimator_.labels_.tolist()
    parts, ids = [column(1, 2, 3), column(1, 1, 9)], [list("abc"), list("cbd")]
    for _ in range(2):
        model = AlignedRows(VERTICAL).fit(parts, ids=ids, journal=tmp_path / "run.journal")
    states = [member.state.labels.tolist() for member in recorder.members.values()]
    again = AlignedRows(VERTICAL).fit(parts, ids=ids, key=KEY)
    assert [labels.tolist() for labels in again.labels_] == states
    assert [np.ma.is_masked(labels) for labels in model.labels_] == [True, True]


def test_rows_without_a_partner_are_noise_where_the_mask_is_dropped():
    rng, size = np.random.default_rng(0), 40
    X = np.vstack([rng.normal(0, 0.3, (size, 2)), rng.normal(3, 0.3, (size, 2))])
    names, kept = [f"p{i}" for i in range(2 * size)], rng.permutation(2 * size)[:70]
    parts, ids = [X[:, :1], X[kept, 1:]], [names, [names[i] for i in kept]]
    model = AlignedRows(VerticalDBSCAN(eps=0.5, min_samples=4)).fit(parts, ids=ids)
    first = model.labels_[0]
    assert set(model.estimator_.model_.labels.tolist()) == {0, 1}
    for dropped in (np.asarray(first), np.concatenate([first]), np.array(first), first.filled()):
        assert dropped.tolist() == [-1 if label is None else label for label in first.tolist()]
    assert np.ma.concatenate(model.labels_).mask.sum() == 10


def test_over_flower():
    pytest.importorskip("flwr")
    from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app

    ids = [pd.Series(list(one), name="id") for one in ("abc", "cbd")]
    parts = [column(1, 2, 3), column(1, 1, 9)]

    def make(context):
        i = context.node_config["partition-id"]
        one = make_client("vertical-dbscan", Table(parts[i], ids=ids[i]), {"n_jobs": 1, **KEYED})
        assert isinstance(one, VerticalDBSCANClient)
        return make_client(
            "aligned/vertical-dbscan", Table(parts[i], ids=ids[i]), {"n_jobs": 1, **KEYED}
        )

    there = AlignedRows(VERTICAL).fit(Flower(LocalFlowerGrid(client_app(make), 2), 2))
    here = AlignedRows(VERTICAL).fit(parts, ids=ids, key=KEY)
    assert there.ledger_ == here.ledger_
    assert there.estimator_.labels_.tolist() == here.estimator_.labels_.tolist()


KEYED = {}


@pytest.fixture(autouse=True)
def key_file(tmp_path, monkeypatch):
    (tmp_path / "rows.key").write_bytes(KEY)
    monkeypatch.setitem(KEYED, "key", str(tmp_path / "rows.key"))


def test_names_and_files(tmp_path):
    """A saved model is that of the protocol; label files have empty fields or NaN."""
    estimator = make_estimator("aligned/vertical-dbscan", {"eps": 1.5, "min_samples": 2})
    assert estimator.name == "aligned/vertical-dbscan"
    assert estimator.get_params()["estimator__eps"] == 1.5
    parts, ids = [column(1, 2, 3), column(1, 1, 9)], [list("abc"), list("cbd")]
    estimator.fit(parts, ids=ids)
    for name in ("model.npz", "model.json"):
        models.save(estimator, tmp_path / name)
        loaded = models.load(tmp_path / name)
        assert isinstance(loaded, AlignedRows)
        assert loaded.model_.labels.tolist() == estimator.model_.labels.tolist()
        assert loaded.estimator_.labels_.tolist() == estimator.estimator_.labels_.tolist()
    table = Table(parts[1], ids=pd.Series(list("cbd"), name="patient"))
    write_labels(tmp_path / "labels.csv", estimator.labels_[1], table)
    assert (tmp_path / "labels.csv").read_text() == "patient,label\nc,0\nb,0\nd,\n"
    write_labels(tmp_path / "labels.npy", estimator.labels_[1], table)
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), [0, 0, np.nan])
