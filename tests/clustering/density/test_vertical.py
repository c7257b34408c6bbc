"""Vertical DBSCAN: a toy by hand, its conversation, failures, and agreement with DBSCAN."""

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.cluster import DBSCAN

from fedlib import VerticalDBSCAN
from fedlib.clustering.density import vertical as vertical_dbscan
from fedlib.clustering.density.vertical import (
    AssignLabels,
    DescribeRows,
    FindNeighbours,
    NeighbourBlock,
    RowLabels,
    VerticalDBSCANClient,
)
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Failure, encode
from fedlib.core.protocol import TooFewClients, run

CONVERSATION = [
    "DescribeRows",
    "RowDescription",
    "FindNeighbours",
    "NeighbourBlock",
    "AssignLabels",
    "Done",
]


def test_toy_by_hand():
    """Seven rows, one feature at each of two clients, eps 1.5; core rows have three neighbours."""
    first = [0.0, 1.0, 2.0, 3.0, 9.0, 1.0, 20.0]
    second = [0.0, 1.0, 2.0, 3.0, 9.0, 9.0, 2.0]
    expected = [
        0,  # border: its only neighbour, row 1, is a core row
        0,  # core: rows 0, 1, 2
        0,  # core: rows 1, 2, 3
        0,  # border: its neighbour row 2 is a core row
        -1,  # no neighbours
        -1,  # near rows 0, 1 and 2 in the first feature, near row 4 in the second: none in both
        -1,  # near rows 1, 2 and 3 in the second feature only
    ]
    parts = [np.reshape(first, (-1, 1)), np.reshape(second, (-1, 1))]
    model = VerticalDBSCAN(eps=1.5, min_samples=3).fit(parts)
    assert model.labels_.tolist() == expected
    assert model.ledger_.conversation() == CONVERSATION
    assert isinstance(model.model_, RowLabels)
    assert model.model_.labels.tolist() == expected


def test_neighbours_are_strictly_nearer_than_eps():
    """A distance of exactly eps does not count (M1 and M2, §3.2); a slightly smaller one does."""
    parts = [np.array([[0.0], [1.0]])]
    assert VerticalDBSCAN(1.0, 2).fit(parts).labels_.tolist() == [-1, -1]
    assert VerticalDBSCAN(np.nextafter(1.0, 2), 2).fit(parts).labels_.tolist() == [0, 0]


def maximum_distance(parts):
    """Return the maximum over the parts of the Euclidean distance, in the kernels' arithmetic."""
    n = len(parts[0])
    largest = np.zeros((n, n))
    for part in parts:
        total = np.zeros((n, n))
        for column in part.T:
            with np.errstate(over="ignore"):
                total += (column[:, None] - column[None]) ** 2
        largest = np.maximum(largest, np.sqrt(total))
    return np.minimum(largest, np.finfo(float).max)  # scikit-learn rejects infinity


@st.composite
def problems(draw):
    """Draw rows on a coarse lattice, with many ties and repeated rows; split the columns."""
    n, d = draw(st.integers(1, 50)), draw(st.integers(1, 6))
    step = draw(st.sampled_from([1.0, 0.1, 1e-3, 1e6, 1e-153, 1e-163, 1e-200, 1e153, 1e155, 1e200]))
    X = step * draw(hnp.arrays(np.float64, (n, d), elements=st.integers(-9, 9).map(float)))
    client = draw(st.lists(st.integers(0, 3), min_size=d, max_size=d))
    parts = [X[:, np.array(client) == c] for c in sorted(set(client))]
    return parts, step * draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0])), draw(st.integers(1, 6))


@given(problems())
def test_labels_are_those_of_dbscan_with_the_maximum_distance(problem):
    """The numbering and the border rows agree too, for any data and split of columns."""
    parts, eps, min_samples = problem
    central = DBSCAN(eps=np.nextafter(eps, 0), min_samples=min_samples, metric="precomputed")
    expected = central.fit_predict(maximum_distance(parts))
    np.testing.assert_array_equal(VerticalDBSCAN(eps, min_samples).fit(parts).labels_, expected)


@pytest.mark.parametrize("n_features", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-9])
def test_every_search_finds_the_same(n_features, scale):
    """The sweep, the grid and the comparison of all pairs agree with all distances, in blocks."""
    X = scale * (np.random.default_rng(n_features).random((300, n_features)) + 5)
    eps = 0.2 * scale
    client = VerticalDBSCANClient(X, n_jobs=3)
    near = np.triu(maximum_distance([X]) < eps, 1)
    for first, stop in ((0, 1), (0, 300), (37, 201), (299, 300)):
        request = FindNeighbours(eps, 300, first, stop)
        bits = request.accept(client.handle(request))
        columns = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :300]
        np.testing.assert_array_equal(columns.astype(bool), near[first:stop])


@pytest.mark.parametrize("n_features", [1, 2, 4])
@pytest.mark.parametrize(("eps", "form"), [(0.01, "gaps"), (0.9, "bits")])
def test_a_block_does_not_depend_on_the_threads(n_features, eps, form):
    """Each thread writes some of the rows. Few neighbours are sent as gaps, many as bits."""
    X = np.random.default_rng(0).random((150, n_features))
    request = FindNeighbours(eps, 150, 20, 110)
    blocks = [VerticalDBSCANClient(X, n_jobs=n).handle(request) for n in (1, 2, 7, 100)]
    assert blocks[0].form == form
    assert blocks == blocks[:1] * 4


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_a_sweep_sends_the_smaller_form(n_jobs):
    """Whatever eps is, the form is chosen by the bytes of all rows, and not of those of a thread.

    The rows are sorted, so that the threads find different numbers of neighbours.
    """
    X = np.sort(np.random.default_rng(1).random((100, 1)) ** 3, axis=0)
    wide = np.hstack([X, np.zeros((100, 3))])  # compares all pairs, with the same distances
    forms = set()
    for eps in np.geomspace(1e-2, 1, 15):
        request = FindNeighbours(eps, 100, 0, 100)
        block = VerticalDBSCANClient(X, n_jobs=n_jobs).handle(request)
        assert block == VerticalDBSCANClient(wide, n_jobs=1).handle(request)
        forms.add(block.form)
    assert forms == {"gaps", "bits"}


@pytest.mark.parametrize("n_features", [1, 2, 4])
def test_equal_rows_are_found_as_others(n_features):
    """A row that is copied from an equal one of the block, 0.0 and -0.0 included, is that searched.

    With blocks of one row there is none to copy from.
    """
    rng = np.random.default_rng(n_features)
    X = rng.choice([-0.0, 0.0, 0.5, 2.0], (200, n_features))
    requests = [FindNeighbours(0.6, 200, row, row + 1) for row in range(200)]
    client = VerticalDBSCANClient(X, n_jobs=2)
    rows = [client.handle(request).read(200, request.first, request.stop) for request in requests]
    block = client.handle(FindNeighbours(0.6, 200, 0, 200)).read(200, 0, 200)
    np.testing.assert_array_equal(block, np.concatenate(rows))
    near = np.sqrt(((X[:, None] - X) ** 2).sum(axis=2)) < 0.6
    pairs = np.unpackbits(block.view(np.uint8), axis=1, bitorder="little")[:, :200]
    np.testing.assert_array_equal(pairs, np.triu(near, 1))


def test_the_search_runs_in_as_many_threads_as_requested(monkeypatch):
    """Three jobs wait for each other, so the search ends only if they run at the same time."""
    barrier = threading.Barrier(3)
    firsts = []

    def search(X, eps, twin, first, bits):
        firsts.append(first)
        barrier.wait(timeout=60)

    monkeypatch.setattr("fedlib.clustering.density.vertical.all_neighbours", search)
    client = VerticalDBSCANClient(np.zeros((9, 4)), n_jobs=3)
    client.handle(FindNeighbours(1.0, 9, 0, 9))
    assert sorted(firsts) == [0, 3, 6]


def test_an_error_in_a_thread_is_an_error_of_the_client(monkeypatch):
    def search(X, eps, twin, first, bits):
        raise MemoryError

    monkeypatch.setattr("fedlib.clustering.density.vertical.all_neighbours", search)
    with pytest.raises(MemoryError):
        VerticalDBSCANClient(np.zeros((9, 4)), n_jobs=2).handle(FindNeighbours(1.0, 9, 0, 9))


def test_rows_too_far_apart_for_the_grid():
    """All pairs are compared when the cells' numbers would be inexact."""
    X = np.array([[0.0, 0.0], [1e-9, 0.0], [1e9, 1e9]])
    assert VerticalDBSCAN(1e-8, 2).fit([X]).labels_.tolist() == [0, 0, -1]


def test_labels_do_not_depend_on_the_size_of_blocks(monkeypatch):
    """Each block is one exchange."""
    X = np.random.default_rng(0).random((200, 2))
    one = VerticalDBSCAN(0.1, 4).fit([X[:, :1], X[:, 1:]])
    monkeypatch.setattr(vertical_dbscan, "BLOCK_BYTES", 200)
    many = VerticalDBSCAN(0.1, 4).fit([X[:, :1], X[:, 1:]])
    np.testing.assert_array_equal(one.labels_, many.labels_)
    assert many.ledger_.conversation().count("FindNeighbours") == 25
    assert one.ledger_.conversation() == CONVERSATION


@pytest.mark.parametrize("n", [0, 1])
def test_zero_or_one_row(n):
    model = VerticalDBSCAN(1.0, 1).fit([np.zeros((n, 1)), np.zeros((n, 2))])
    assert model.labels_.tolist() == [0] * n


def test_labels_reach_the_clients():
    X = np.array([[0.0], [0.5], [9.0]])
    clients = {"left": VerticalDBSCANClient(X), "right": VerticalDBSCANClient(X)}
    model = VerticalDBSCAN(1.0, 2).fit(InProcess(clients))
    for client in clients.values():
        np.testing.assert_array_equal(client.state.labels, model.labels_)


def test_identifiers_in_another_order_are_rejected():
    X = np.zeros((3, 1))
    VerticalDBSCAN(1.0, 2).fit([X, X], ids=[["a", "b", "c"], ["a", "b", "c"]])
    with pytest.raises(ValueError, match="identifiers, their order or the key: .*'0', '2'; .*'1'"):
        VerticalDBSCAN(1.0, 2).fit([X] * 3, ids=[["a", "b", "c"], ["a", "c", "b"], ["a", "b", "c"]])


def test_identifiers_cannot_be_guessed_without_the_key():
    """The digest depends on the key, and on the boundaries between identifiers."""
    X = np.zeros((2, 1))
    digests = {
        VerticalDBSCANClient(X, ids, key).digest
        for ids in (["ab", "c"], ["a", "bc"])
        for key in (b"one secret of 24 bytes..", b"another of 24 bytes.....")
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": ["a"], "key": bytes(16)}, "ids must contain one identifier per row, 2; got 1"),
        ({"ids": ["a", "b"]}, "key must be 16 to 64 secret bytes .* got NoneType"),
        ({"ids": ["a", "b"], "key": b"short"}, "key must be 16 to 64 secret bytes .* got 5 bytes"),
        ({"ids": ["a", "b"], "key": "text, not bytes!"}, "key must be .* got str"),
        ({"n_jobs": 0}, "n_jobs must be a positive integer, got 0"),
        ({"n_jobs": 1.5}, "n_jobs must be a positive integer, got 1.5"),
        ({"X": [[np.nan]]}, "NaN"),
        ({"X": [1.0, 2.0]}, "2 axes, rows and columns, got 1"),
    ],
)
def test_invalid_data_of_a_client(arguments, message):
    with pytest.raises(ValueError, match=message):
        VerticalDBSCANClient(**({"X": [[0.0], [1.0]]} | arguments))


@pytest.mark.parametrize(
    ("eps", "min_samples", "name"),
    [
        (0, 3, "eps"),
        (np.nan, 3, "eps"),
        (np.inf, 3, "eps"),
        ("1", 3, "eps"),
        (1.0, 0, "min_samples"),
    ],
)
def test_invalid_parameters_are_named(eps, min_samples, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        VerticalDBSCAN(eps, min_samples).fit([[[0.0]]])


def test_clients_with_other_numbers_of_rows_are_named():
    parts = [np.zeros((3, 1)), np.zeros((4, 1)), np.zeros((3, 2))]
    with pytest.raises(ValueError, match="number of rows: 3 at '0', '2'; 4 at '1'"):
        VerticalDBSCAN(1.0, 2).fit(parts)
    clients = {name: VerticalDBSCANClient(X) for name, X in zip("ABC", parts, strict=True)}
    with pytest.raises(ValueError, match="number of rows: 3 at 'A', 'C'; 4 at 'B'"):
        VerticalDBSCAN(1.0, 2).fit(InProcess(clients))


def test_ids_apply_to_parts():
    X = np.zeros((2, 1))
    with pytest.raises(ValueError, match="one sequence per part, 2; got 1"):
        VerticalDBSCAN(1.0, 2).fit([X, X], ids=[["a", "b"]])
    with pytest.raises(ValueError, match="ids applies to a list of parts"):
        VerticalDBSCAN(1.0, 2).fit(InProcess({"A": VerticalDBSCANClient(X)}), ids=[["a", "b"]])


class FaultyClient(VerticalDBSCANClient):
    """A client that fails at one class of requests, or sends a given reply to them."""

    def __init__(self, X, request_class, reply=None):
        super().__init__(X)
        self.request_class, self.reply = request_class, reply

    def answer(self, request):
        if not isinstance(request, self.request_class):
            return super().answer(request)
        if self.reply is None:
            raise OSError("disk full")
        return self.reply


@pytest.mark.parametrize("min_clients", [None, 1])
@pytest.mark.parametrize("request_class", [DescribeRows, FindNeighbours, AssignLabels])
def test_every_client_is_needed_to_the_end(request_class, min_clients):
    """There is no result from fewer features, even if the run could continue."""
    X = np.array([[0.0], [0.5]])
    clients = {"A": VerticalDBSCANClient(X), "B": FaultyClient(X, request_class)}
    with pytest.raises(TooFewClients, match="'B'"):
        run(VerticalDBSCAN(1.0, 2).protocol(), InProcess(clients), min_clients=min_clients)


def test_a_passive_client_is_rejected():
    X = np.array([[0.0], [0.5]])
    clients = {"A": VerticalDBSCANClient(X), "B": VerticalDBSCANClient(X)}
    clients["B"].passive = True
    with pytest.raises(ValueError, match=r"passive or decline: \['B'\]"):
        VerticalDBSCAN(1.0, 2).fit(InProcess(clients))


@pytest.mark.parametrize(
    "data",
    [
        [3, 0, 0, 0],  # a row beyond the last
        [0, 0],  # too few rows
        [1, *[255] * 8, 127, 0, 0, 0],  # a gap that would overflow
        [*[255] * 8, 127, 0, 0, 0],
    ],
)
def test_a_block_of_other_rows_is_an_invalid_reply(data):
    X = np.array([[0.0], [0.5], [1.0]])
    block = NeighbourBlock("gaps", np.array(data, np.uint8))
    clients = {"A": VerticalDBSCANClient(X), "B": FaultyClient(X, FindNeighbours, block)}
    with pytest.raises(TooFewClients, match="'B': InvalidReply at FindNeighbours, step 2"):
        VerticalDBSCAN(1.0, 2).fit(InProcess(clients))


def test_a_client_does_not_allocate_more_than_a_block():
    """A short request must not cost the client memory for all pairs of rows."""
    client = VerticalDBSCANClient(np.zeros((50_000, 1)))
    with pytest.raises(
        ValueError, match="rows 0..50000 of 50000 are not a block of the 50000 rows"
    ):
        client.handle(FindNeighbours(1.0, 50_000, 0, 50_000))


def test_every_client_is_needed_from_the_start():
    X = np.zeros((2, 1))
    with pytest.raises(ValueError, match="passive must be empty"):
        VerticalDBSCAN(1.0, 2).fit([X, X], passive=[1])
    with pytest.raises(ValueError, match="min_clients must be 2, .* got 1"):
        VerticalDBSCAN(1.0, 2).fit([X, X], min_clients=1)


def test_whole_numbers_identify_rows_in_any_type():
    """Integers match equal floats and equal text: a column may have been read with another type."""
    X = np.zeros((3, 1))
    ids = [[1, 2, 3], np.array([1.0, 2.0, 3.0]), ["1", "2", "3"]]
    assert VerticalDBSCAN(1.0, 2).fit([X] * 3, ids=ids).labels_.tolist() == [0, 0, 0]


def test_identifiers_at_only_some_clients_are_rejected():
    X = np.zeros((1, 1))
    clients = {"A": VerticalDBSCANClient(X, ["a"], bytes(16)), "B": VerticalDBSCANClient(X)}
    with pytest.raises(ValueError, match="none at 'B'"):
        VerticalDBSCAN(1.0, 2).fit(InProcess(clients))


@pytest.mark.jit
def test_many_rows_need_no_matrix():
    """A matrix would have 1.6 billion entries; here only a few blocks of 8 MiB are allocated."""
    n = 40_000
    X = np.random.default_rng(0).random((n, 2))
    eps = (50 / n) ** 0.5 / 2
    tracemalloc.start()
    model = VerticalDBSCAN(eps, 50).fit([X[:, :1], X[:, 1:]])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**30
    central = DBSCAN(eps=np.nextafter(eps, 0), min_samples=50, metric="chebyshev")
    np.testing.assert_array_equal(model.labels_, central.fit_predict(X))


@pytest.mark.parametrize(("n_rows", "first", "stop"), [(3, 0, 4), (3, 2, 2), (3, 3, 1), (4, 0, 3)])
def test_a_client_rejects_blocks_of_other_rows(n_rows, first, stop):
    client = VerticalDBSCANClient(np.zeros((3, 1)))
    transport = InProcess({"A": client})
    reply = transport.exchange({"A": encode(FindNeighbours(1.0, n_rows, first, stop))})["A"]
    assert reply == encode(Failure("ValueError"))
    assert "rows" in str(transport.errors["A"])


def test_estimator_conventions():
    model = VerticalDBSCAN(eps=0.5, min_samples=3)
    assert repr(clone(model)) == "VerticalDBSCAN(eps=0.5, min_samples=3)"
    assert next(model.protocol()) == vertical_dbscan.DescribeRows()


def test_the_model_alone_sets_the_attributes():
    fitted = VerticalDBSCAN(1.0, 2).fit([[[0.0], [0.5], [9.0]]])
    loaded = VerticalDBSCAN(7.0, 1)
    loaded._set_model(fitted.model_)
    assert loaded.labels_.tolist() == [0, 0, -1]
