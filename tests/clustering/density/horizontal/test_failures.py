"""Horizontal DBSCAN with clients that fail, and with invalid messages of clients and servers."""

import math

import msgspec
import numpy as np
import pytest

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import (
    AssignCells,
    CellCounts,
    CountCells,
    HorizontalDBSCANClient,
    sum_cells,
)
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Done, Failure, decode
from fedlib.core.protocol import run, serve


class Leaving(HorizontalDBSCANClient):
    """A client that fails at one kind of request."""

    def __init__(self, X, at):
        super().__init__(X)
        self.at = at

    def answer(self, request):
        if isinstance(request, self.at):
            raise ConnectionError("gone")
        return super().answer(request)


def clients_with(toy, last):
    """Return the clients of the toy problem and a third one."""
    return {
        "A": HorizontalDBSCANClient(toy.first),
        "B": HorizontalDBSCANClient(toy.second),
        "C": last,
    }


def test_a_client_leaves_before_it_has_counted(toy):
    """The result is that of a run with the other clients only."""
    clients = clients_with(toy, Leaving(toy.second, CountCells))
    model = HorizontalDBSCAN(1.0, 4).fit(InProcess(clients), min_clients=2)
    assert model.ledger_.lost == {"C": "ConnectionError at CountCells, step 1"}
    assert model.cell_counts_.tolist() == [1, 4, 3, 1, 4]
    assert clients["C"].state is None
    assert clients["A"].state.labels.tolist() == toy.labels[0]


def test_a_client_leaves_after_it_has_counted(toy):
    """Its points remain counted; only its labels are missing."""
    clients = clients_with(toy, Leaving(toy.second, AssignCells))
    model = HorizontalDBSCAN(1.0, 4).fit(InProcess(clients), min_clients=2)
    assert model.ledger_.lost == {"C": "ConnectionError at AssignCells, step 2"}
    assert model.cell_counts_.tolist() == [2, 6, 4, 2, 6]
    assert clients["C"].state is None


@pytest.mark.parametrize("at", [CountCells, AssignCells])
def test_by_default_all_clients_must_remain(toy, at):
    text = "2 of 3 clients remain, 3 are needed. Lost: 'C'"
    with pytest.raises(ConnectionError, match=text):
        HorizontalDBSCAN(1.0, 4).fit(InProcess(clients_with(toy, Leaving(toy.second, at))))


def test_labels_of_a_lost_part(toy, lists):
    """A part too far out for the grid is lost: its labels are None; the others have labels."""
    parts = [toy.first, [[1e30, 0.0]], toy.second]
    with pytest.warns(UserWarning, match=r"parts\[1\] left the run: ValueError.*is too small"):
        model = HorizontalDBSCAN(1.0, 4).fit(parts, min_clients=2)
    first, second = toy.labels
    assert lists(model.labels_) == [first, None, second]
    assert model.ledger_.lost == {"1": "ValueError at CountCells, step 1"}


def int64(shape, *values):
    """Return an array as it is encoded in a message."""
    return ["int64", list(shape), np.array(values, np.int64).tobytes()]


INVALID_FIELDS = {
    "negative counts": {"counts": int64([2], 5, -1)},
    "empty cells": {"counts": int64([2], 5, 0)},
    "too many points": {"counts": int64([2], 5, 2**40 + 1)},
    "counts that overflow": {"counts": int64([2], 2**63 - 1, 2**63 - 1)},
    "cells out of range": {"cells": int64([2, 2], 0, 0, 0, 2**62 + 1)},
    "the smallest integer": {"cells": int64([2, 2], 0, 0, 0, -(2**63))},
    "more counts than cells": {"counts": int64([3], 1, 1, 1)},
    "more cells than counts": {"cells": int64([3, 2], 0, 0, 0, 1, 0, 2)},
    "one count": {"counts": int64([], 1)},
    "flat cells": {"cells": int64([2], 0, 1)},
    "fractional counts": {"counts": ["float64", [2], np.array([0.5, 1.5]).tobytes()]},
    "boolean cells": {"cells": ["bool", [2, 2], bytes(4)]},
    "an unknown field": {"names": ["Alice", "Bob"]},
    "no counts": {"counts": None},
}


@pytest.mark.parametrize("change", INVALID_FIELDS)
def test_a_client_that_sends_an_invalid_reply(toy, relay, change):
    """It leaves the run; the result is that of a run with the other clients only."""

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        return msgspec.msgpack.encode(fields | INVALID_FIELDS[change])

    def tamper_with_counts(request, reply):
        return tamper(request, reply) if isinstance(decode(reply), CellCounts) else reply

    valid = {"cells": int64([2, 2], 0, 0, 0, 1), "counts": int64([2], 5, 1)}
    reply = msgspec.msgpack.encode({"type": "CellCounts"} | valid)
    assert isinstance(decode(reply), CellCounts)  # without the change it is valid

    clients = clients_with(toy, HorizontalDBSCANClient([[0.5, 0.5], [0.5, 1.5]]))
    model = HorizontalDBSCAN(1.0, 4).fit(relay(clients, {"C": tamper_with_counts}), min_clients=2)
    assert model.ledger_.lost == {"C": "InvalidReply at CountCells, step 1"}
    assert model.cell_counts_.tolist() == [1, 4, 3, 1, 4]
    assert clients["B"].state.labels.tolist() == toy.labels[1]


REQUEST = {
    "type": "AssignCells",
    "cell_size": 1.0,
    "cells": int64([1, 2], 0, 0),
    "labels": int64([1], 0),
    "assign": "point",
    "adjacency": "faces",
}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cell_size": 0.0}, "MessageError"),
        ({"cell_size": math.inf}, "MessageError"),
        ({"cell_size": math.nan}, "MessageError"),
        ({"cells": int64([1, 2], 0, 2**63 - 1)}, "MessageError"),
        ({"labels": int64([1], -1)}, "MessageError"),
        ({"labels": int64([2], 0, 0)}, "MessageError"),
        ({"assign": "none"}, "MessageError"),
        ({"adjacency": "all"}, "MessageError"),
    ],
)
def test_a_server_that_sends_an_invalid_request(toy, change, error):
    """The client replies with a failure and keeps the state that it had."""
    client = HorizontalDBSCANClient(toy.first)
    assert decode(serve(client, msgspec.msgpack.encode(REQUEST), print)) == Done()
    before = client.state
    reply = serve(client, msgspec.msgpack.encode(REQUEST | change), lambda error: None)
    assert decode(reply) == Failure(error)
    assert client.state is before


def test_an_unknown_request(toy):
    with pytest.raises(TypeError, match="HorizontalDBSCANClient has no handler for Done"):
        HorizontalDBSCANClient(toy.first).handle(Done())


def test_coordinates_are_never_sent(relay):
    """The bytes of a run contain no coordinate as a 64-bit number."""
    rng = np.random.default_rng(0)
    parts = rng.uniform(size=(2, 40, 2))
    transport = relay(
        {name: HorizontalDBSCANClient(X) for name, X in zip("AB", parts, strict=True)}
    )
    run(HorizontalDBSCAN(0.1, 3).protocol(), transport)
    assert not [x for x in parts.ravel() if x.tobytes() in transport.all_bytes]


def test_clients_with_other_numbers_of_features():
    cells = CellCounts(np.empty((0, 0), np.int64), np.empty(0, np.int64))
    with pytest.raises(ValueError, match="features: 0 at 'B'; 1 at 'A'|1 at 'A'; 0 at 'B'"):
        sum_cells({"A": CellCounts(np.array([[1]]), np.array([1])), "B": cells})
