"""Horizontal DBSCAN on a toy problem by hand, and on unusual parts."""

import numpy as np
import pandas as pd
import pytest
from sklearn.utils import check_random_state

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import (
    AssignCells,
    CellCounts,
    CountCells,
    HorizontalDBSCANClient,
)
from fedlib.core.messages import Done, encode
from fedlib.core.protocol import Replies, serve

BORDERS, ADJACENCIES = ["nearest", "absorb"], ["faces", "full"]

# The labels of the toy's two parts in each deterministic reading.
READINGS = {
    ("nearest", "point", "faces"): [[0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 0, -1, -1]],
    # All points of (1, 0) take (2, 0), the lexicographically largest neighbour.
    ("nearest", "cell", "faces"): [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, -1, -1]],
    # Corners count: (1, 1) touches both dense cells and its point is midway, (-1, -1) touches one.
    ("nearest", "point", "full"): [[0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 0, 0, 0]],
    ("nearest", "cell", "full"): [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0]],
}


@pytest.mark.parametrize(("border", "assign", "adjacency"), READINGS)
def test_toy(toy, border, assign, adjacency, lists):
    model = HorizontalDBSCAN(1.0, 4, border=border, assign=assign, adjacency=adjacency)
    model.fit(toy.parts)
    assert lists(model.labels_) == READINGS[border, assign, adjacency]
    assert model.cells_.tolist() == [[-1, -1], [0, 0], [1, 0], [1, 1], [2, 0]]
    assert model.cell_counts_.tolist() == [1, 4, 3, 1, 4]
    assert model.cell_labels_.tolist() == [-1, 0, -1, -1, 1]
    assert model.n_features_in_ == 2


@pytest.mark.parametrize("seed", range(20))
def test_toy_with_absorbed_cells(toy, seed, lists):
    """The cluster visited first absorbs (1, 0), unless (1, 0) was visited before both."""
    rank = check_random_state(seed).permutation(5)
    left, middle, right = rank[[1, 2, 4]]
    model = HorizontalDBSCAN(1.0, 4, border="absorb", random_state=seed).fit(toy.parts)
    if middle < min(left, right):
        assert model.cell_labels_.tolist() == [-1, 0, -1, -1, 1]
        assert lists(model.labels_) == toy.labels
    else:
        first = 0 if left < right else 1
        assert model.cell_labels_.tolist() == [-1, 0, first, -1, 1]
        # It gets all points of (1, 0), and also the point in (1, 1), one cell further out.
        assert lists(model.labels_) == [
            [0, 0, 1, 1, first, first],
            [0, 0, 1, 1, first, first, -1],
        ]


def test_the_seeds_cover_all_cases_of_absorption():
    """Among the seeds above, each of the three cells is visited first at least once."""
    ranks = [check_random_state(seed).permutation(5)[[1, 2, 4]].argmin() for seed in range(20)]
    assert set(ranks) == {0, 1, 2}


def test_the_conversation(toy):
    """There are two requests and two replies per client."""
    model = HorizontalDBSCAN(1.0, 4).fit(toy.parts)
    assert model.ledger_.conversation() == ["CountCells", "CellCounts", "AssignCells", "Done"]
    assert len(model.ledger_) == 8


def test_the_flow_by_hand():
    """The server sends the cell size, and then the cells that belong to a cluster."""
    flow = HorizontalDBSCAN(1, 2).protocol()
    assert next(flow) == CountCells(1.0)
    first = CellCounts(np.array([[0, 0], [5, 5]]), np.array([1, 1]))
    second = CellCounts(np.array([[0, 0], [0, 1]]), np.array([1, 3]))
    request = flow.send(Replies({"A": first, "B": second}))
    cells, labels = np.array([[0, 0], [0, 1]]), np.array([0, 0])
    assert request == AssignCells(1.0, cells, labels, "point", "faces")
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done(), "B": Done()}))
    model = finished.value.value
    assert model.cells.tolist() == [[0, 0], [0, 1], [5, 5]]
    assert model.counts.tolist() == [2, 3, 1]
    assert model.labels.tolist() == [0, 0, -1]
    assert (model.cell_size, model.assign, model.adjacency) == (1.0, "point", "faces")
    assert model.n_features == 2


def test_counts_disclose_only_counts():
    """Two clients with different points in the same cells send the same bytes."""
    replies = [
        serve(HorizontalDBSCANClient(X), encode(CountCells(1.0)))
        for X in ([[0.1, 0.2], [0.9, 0.9], [3.3, -2.0]], [[3.9, -1.1], [0.0, 0.0], [0.5, 0.5]])
    ]
    assert replies[0] == replies[1]


def test_clients_with_few_rows(lists):
    """Clients with no rows, one row or only noise take part like all others."""
    nothing, one, noise = np.empty((0, 1)), [[0.3]], [[50.0], [70.0]]
    model = HorizontalDBSCAN(1.0, 2).fit([nothing, one, noise, [[0.4], [1.5]]])
    assert lists(model.labels_) == [[], [0], [-1, -1], [0, 0]]
    assert all(part.dtype == np.int64 for part in model.labels_)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("d", [1, 2, 7])
def test_only_empty_clients(border, adjacency, d, lists):
    model = HorizontalDBSCAN(1.0, 1, border=border, adjacency=adjacency)
    model.fit([np.empty((0, d))] * 2)
    assert lists(model.labels_) == [[], []]
    assert model.cells_.shape == (0, d)
    assert model.cell_counts_.shape == model.cell_labels_.shape == (0,)
    assert model.predict(np.zeros((3, d))).tolist() == [-1, -1, -1]


def test_only_noise(toy, lists):
    model = HorizontalDBSCAN(1.0, 5, border="absorb", random_state=0).fit([toy.first])
    assert lists(model.labels_) == [[-1] * 6]
    assert (model.cell_labels_ == -1).all()


def test_one_row(lists):
    assert lists(HorizontalDBSCAN(1.0, 1).fit([[[-0.0, 0.0]]]).labels_) == [[0]]


def test_passive_clients(toy, lists):
    """The points of a passive client are not counted, but labelled by the same rule."""
    model = HorizontalDBSCAN(1.0, 4).fit([toy.first, toy.second, toy.second], passive=[2])
    assert lists(model.labels_) == [*toy.labels, toy.labels[1]]
    alone = HorizontalDBSCAN(1.0, 2).fit(toy.parts, passive=[1])
    assert np.array_equal(alone.labels_[1], alone.predict(toy.second))
    assert np.array_equal(alone.cells_, HorizontalDBSCAN(1.0, 2).fit([toy.first]).cells_)


def test_all_passive(toy):
    with pytest.raises(ValueError, match="every client is passive"):
        HorizontalDBSCAN(1.0, 4).fit(toy.parts, passive=[0, 1])


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: np.asfortranarray(X, float),
        lambda X: np.array(X, np.float32),
        lambda X: np.array(X, ">f8"),
        lambda X: np.repeat(np.array(X), 2, axis=0)[::2],
        lambda X: pd.DataFrame(X, columns=["x", "y"]),
        lambda X: tuple(map(tuple, X)),
        lambda X: np.array(X, object),
    ],
)
def test_any_table_of_numbers(toy, convert, lists):
    model = HorizontalDBSCAN(1.0, 4, assign="cell").fit([convert(toy.first), convert(toy.second)])
    assert lists(model.labels_) == READINGS["nearest", "cell", "faces"]


def test_the_data_are_not_modified(toy):
    parts = [np.array(toy.first), np.array(toy.second)]
    for part in parts:
        part.flags.writeable = False
    HorizontalDBSCAN(1.0, 4).fit(parts)
    assert [part.tolist() for part in parts] == toy.parts
