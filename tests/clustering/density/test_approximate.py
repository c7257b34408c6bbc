"""Approximate DBSCAN as a protocol: a toy by hand, the conversation, lost and lying clients."""

import math

import msgspec
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedlib import ApproximateDBSCAN
from fedlib.clustering.density.approximate import (
    ApproximateDBSCANClient,
    AssignCoreCells,
    CountSmallCells,
)
from fedlib.clustering.density.horizontal import CellCounts
from fedlib.clustering.density.neighbouring_cells import MARGIN, MAX_CELL
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Done, Failure, decode, encode
from fedlib.core.protocol import TooFewClients, serve

# With rho = 1 and this eps, cells are squares of side 1, and cells are near each other if their
# squared distance is at most 18: (3, 3) and (4, 1) apart, but not (4, 2). A point in no core cell
# joins a core cell whose centre is within 3.54. Core cells have 4 points in near cells.
EPS = 2 * math.sqrt(2) * MARGIN
FIRST = [
    [0.5, 0.5],  # cell (0, 0), with 2 points; near (3, 3) and (4, -1), so 4 points in all: core
    [3.5, 3.5],  # cell (3, 3); near (0, 0) and (4, -1), so 4 points in all: core, cluster 0
    [7.5, 0.5],  # cell (7, 0); near (4, -1) and (8, -1): 3 points, not core. (4, -1) is 3.16 away
    [30.2, 30.2],  # cell (30, 30), with 4 points: core, cluster 1
    [30.8, 30.8],
]
SECOND = [
    [0.9, 0.1],
    [4.5, -0.5],  # cell (4, -1); near (0, 0), (3, 3), (7, 0) and (8, -1): core, cluster 0
    [8.5, -0.5],  # cell (8, -1); near (4, -1), but 4.0 from its centre: noise
    [30.4, 30.6],
    [30.6, 30.4],
]
PARTS = [FIRST, SECOND]
CELLS = [[0, 0], [3, 3], [4, -1], [7, 0], [8, -1], [30, 30]]
LABELS = [[0, 0, 0, 1, 1], [0, 0, -1, 1, 1]]


def toy():
    return ApproximateDBSCAN(EPS, 4, 1.0)


def three_clients():
    return {
        "A": ApproximateDBSCANClient(FIRST),
        "B": ApproximateDBSCANClient(SECOND),
        "C": ApproximateDBSCANClient([[7.4, 0.4]]),  # (7, 0) would have 4 points near it
    }


def labels_of(clients):
    return [None if c.state is None else c.state.labels.tolist() for c in clients.values()]


def test_toy():
    model = toy().fit(PARTS)
    assert [part.tolist() for part in model.labels_] == LABELS
    assert model.cells_.tolist() == CELLS
    assert model.cell_counts_.tolist() == [2, 1, 1, 1, 1, 4]
    assert model.cell_labels_.tolist() == [0, 0, 0, -1, -1, 1]
    assert model.n_features_in_ == 2
    assert model.predict([[3.5, 7.03], [3.5, 7.05]]).tolist() == [0, -1]  # 3.54 is between


def test_the_conversation(relay):
    """Two exchanges; no coordinate is sent."""
    parts = {"A": FIRST, "B": SECOND}
    transport = relay({name: ApproximateDBSCANClient(X) for name, X in parts.items()})
    model = toy().fit(transport)
    counted, assigned = transport.exchanges
    assert set(map(type, counted.requests.values())) == {CountSmallCells}
    assert set(map(type, counted.replies.values())) == {CellCounts}
    assert set(map(type, assigned.requests.values())) == {AssignCoreCells}
    assert set(map(type, assigned.replies.values())) == {Done}
    assert assigned.requests["A"].cells.tolist() == [CELLS[i] for i in (0, 1, 2, 5)]
    assert [entry.message for entry in model.ledger_.entries if entry.sender == "A"] == [
        "CellCounts",
        "Done",
    ]
    assert not [
        x for X in parts.values() for x in np.ravel(X) if x.tobytes() in transport.all_bytes
    ]


@pytest.mark.parametrize("shares", [1, 2, 7])
def test_the_distribution_of_the_rows_does_not_matter(shares):
    X = np.random.default_rng(0).normal(size=(400, 2)) * [1, 3]
    together = ApproximateDBSCAN(0.3, 5, 0.2, n_jobs=2).fit([X])
    apart = ApproximateDBSCAN(0.3, 5, 0.2).fit([X[i::shares] for i in range(shares)])
    for i, part in enumerate(apart.labels_):
        assert part.tolist() == together.labels_[0][i::shares].tolist()
        assert apart.predict(X[i::shares]).tolist() == part.tolist()
    assert len(set(together.labels_[0])) > 2


def test_clients_can_be_rebuilt_before_each_request(reborn):
    transport = reborn(ApproximateDBSCANClient, {"A": FIRST, "B": SECOND})
    toy().fit(transport)
    assert labels_of(transport.members) == LABELS


def test_a_passive_client_receives_labels_and_counts_nothing():
    model = toy().fit([*PARTS, [[7.4, 0.4], [0.4, 0.4], [99.0, 0.0]]], passive=[2])
    assert [part.tolist() for part in model.labels_] == [*LABELS, [0, 0, -1]]
    assert model.cell_counts_.sum() == 10


def test_a_client_without_rows():
    model = toy().fit([*PARTS, np.empty((0, 2))])
    assert [part.tolist() for part in model.labels_] == [*LABELS, []]
    nothing = toy().fit([np.empty((0, 2))])
    assert nothing.cells_.shape == (0, 2)
    assert nothing.predict([[0.0, 0.0]]).tolist() == [-1]


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("lost", ["A", "B", "C"])
def test_a_client_leaves(step, lost, relay):
    """Lost in step 1, it is as if it had never been there; in step 2, its counts remain."""
    clients = three_clients()
    kind = (CountSmallCells, AssignCoreCells)[step - 1]
    transport = relay(clients, {lost: lambda q, r: None if isinstance(decode(q), kind) else r})
    model = toy().fit(transport, min_clients=2)
    assert list(model.ledger_.lost) == [lost]
    rest = [client.X for name, client in clients.items() if step == 2 or name != lost]
    expected = toy().fit(rest)
    assert model.cell_counts_.tolist() == expected.cell_counts_.tolist()
    assert model.cell_labels_.tolist() == expected.cell_labels_.tolist()
    with pytest.raises(TooFewClients, match=lost):
        toy().fit(relay(three_clients(), transport.tamper))


def counts_of(cells, counts, features=()):
    return encode(CellCounts(np.array(cells), np.array(counts), features))


LIES = {
    "far": (counts_of([[0, 0], [0, MAX_CELL + 1]], [1, 1]), "cells must lie within"),
    "far below": (counts_of([[0, -MAX_CELL - 1]], [1]), "cells must lie within"),
    "not sorted": (counts_of([[0, 1], [0, 0]], [1, 1]), "in lexicographic order"),
    "not distinct": (counts_of([[0, 0], [0, 0]], [1, 1]), "must be distinct"),
    "too many points": (counts_of([[0, 0], [0, 1]], [2**40, 1]), "must sum to at most"),
    "too many cells": (counts_of([[0, i] for i in range(6)], [1] * 6), "at most max_cells=5"),
    "another class": (encode(Done()), "CellCounts"),
    "another feature": (counts_of([[0, 0, 0]], [1]), "disagree on the number of features"),
    "names missing": (counts_of([[0, 0]], [1], ["x"]), "one name per feature"),
}


@pytest.mark.parametrize("lie", LIES)
def test_only_the_lying_client_leaves(lie, relay, caplog):
    """The log names the reason."""
    reply, reason = LIES[lie]

    def tamper(request, honest):
        return reply if isinstance(decode(request), CountSmallCells) else honest

    clients = three_clients()
    model = toy().set_params(max_cells=5).fit(relay(clients, {"C": tamper}), min_clients=2)
    assert model.ledger_.lost == {"C": "InvalidReply at CountSmallCells, step 1"}
    assert reason in caplog.text
    assert model.cells_.tolist() == CELLS
    assert labels_of(clients) == [*LABELS, None]


REQUEST = AssignCoreCells(EPS, 1.0, np.array([[0, 0]]), np.array([0]))


def changed(**fields):
    document = msgspec.msgpack.decode(encode(REQUEST))
    return msgspec.msgpack.encode(document | fields)


@pytest.mark.parametrize(
    ("request_bytes", "error"),
    [
        (changed(eps=0.0), "MessageError"),
        (changed(eps=math.inf), "MessageError"),
        (changed(rho=0.0), "MessageError"),
        (changed(rho=1.5), "MessageError"),
        (changed(labels=msgspec.msgpack.decode(encode(REQUEST))["cells"]), "MessageError"),
        (encode(CountSmallCells(1e-12, 1e-6)), "ValueError"),
        (encode(CountSmallCells(5e-324, 1e-6)), "ValueError"),
    ],
)
def test_a_server_that_sends_an_invalid_request(request_bytes, error):
    """The client replies with a failure and keeps the state that it had."""
    client = ApproximateDBSCANClient(FIRST)
    assert decode(serve(client, encode(REQUEST), print)) == Done()
    before = client.state
    assert decode(serve(client, request_bytes, lambda error: None)) == Failure(error)
    assert client.state is before


def test_clients_with_other_features():
    left = pd.DataFrame({"age": [1.0, 2.0], "pressure": [80.0, 90.0]})
    swapped = left[["pressure", "age"]]
    expected = "features: 'age', 'pressure' at '0'; the order differs: 'age' is column 2 instead of"
    clients = {"0": ApproximateDBSCANClient(left), "1": ApproximateDBSCANClient(swapped)}
    with pytest.raises(ValueError, match=expected):
        toy().fit(InProcess(clients))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eps", 0),
        ("eps", math.nan),
        ("eps", "1"),
        ("min_samples", 0),
        ("min_samples", 2.5),
        ("rho", 0.0),
        ("rho", 1e-7),
        ("rho", 1.01),
        ("rho", math.nan),
        ("max_cells", 0),
        ("n_jobs", 1.5),
    ],
)
def test_invalid_parameters(name, value, monkeypatch):
    """The error names the parameter and what is accepted."""
    monkeypatch.setattr("fedlib.core.estimator.run", None)  # no message may leave
    model = toy().set_params(**{name: value})
    with pytest.raises(
        ValueError, match=rf"The '{name}' parameter of ApproximateDBSCAN must be .*"
    ):
        model.fit(PARTS)


def test_an_invalid_number_of_threads(relay):
    transport = relay(three_clients())
    with pytest.raises(ValueError, match="n_jobs must be -1 or an integer of at least 1, got 0"):
        toy().set_params(n_jobs=0).fit(transport)
    assert transport.exchanges == []


def test_it_follows_the_conventions_of_scikit_learn():
    model = toy()
    assert clone(model).get_params() == model.get_params()
    fitted = clone(model).fit(PARTS)
    fitted.set_params(eps=99.0, rho=0.1, min_samples=1)
    assert fitted.predict(FIRST).tolist() == LABELS[0]
    with pytest.raises(ValueError, match="2 features"):
        fitted.predict([[1.0]])
