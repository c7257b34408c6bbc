"""The functions that count points in cells, label cells and place points."""

from itertools import combinations, product

import numpy as np
import pytest

from fedlib.clustering.density.cells import add_counts, count_cells, label_cells, place_points
from fedlib.kernels.grid import MAX_CELL

ADJACENCIES = ["faces", "full"]


def test_count_cells_sorts():
    X = np.array([[3.0, 0.0], [-1.0, 5.0], [-1.0, -5.0], [3.0, 0.5]])
    cells, counts = count_cells(X, 1.0)
    assert cells.tolist() == [[-1, -5], [-1, 5], [3, 0]]
    assert counts.tolist() == [1, 1, 2]


def test_place_points_in_any_order_of_cells():
    """The cells need not be sorted: a tie still goes to the lexicographically smaller one."""
    X = np.array([[1.5, 0.5], [0.5, 0.5]])
    cells, labels = np.array([[2, 0], [0, 0]]), np.array([7, 3])
    assert place_points(X, 1.0, cells, labels).tolist() == [3, 3]
    assert place_points(X, 1.0, cells, labels, assign="cell").tolist() == [7, 3]


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_every_pair_of_neighbours(d, adjacency):
    """Of two neighbours at the same distance, a point takes the smaller, a cell the larger one."""
    X = np.full((1, d), 0.5)
    offsets = [o for o in product((-1, 0, 1), repeat=d) if any(o)]
    if adjacency == "faces":
        offsets = [o for o in offsets if np.abs(o).sum() == 1]
    for first, second in combinations(offsets, 2):
        cells, labels = np.array([second, first]), np.array([1, 0])
        assert place_points(X, 1.0, cells, labels, "cell", adjacency).tolist() == [1]
        if np.abs(first).sum() == np.abs(second).sum():
            assert place_points(X, 1.0, cells, labels, "point", adjacency).tolist() == [0]


def test_adjacent_cells_at_the_ends_of_the_range():
    cells = np.array([[-MAX_CELL], [-MAX_CELL + 1], [MAX_CELL - 1], [MAX_CELL]])
    for adjacency in ADJACENCIES:
        labels = label_cells(cells, np.ones(4, int), 1, adjacency=adjacency)
        assert labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("border", lambda cells, counts: label_cells(cells, counts, 2, border="absorbed")),
        ("adjacency", lambda cells, counts: label_cells(cells, counts, 2, adjacency="edges")),
        ("assign", lambda cells, labels: place_points(cells + 0.5, 1.0, cells, labels, "cel")),
    ],
)
def test_invalid_options(name, function):
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        function(np.array([[0], [1]]), np.array([3, 3]))


def test_counts_of_repeated_cells_are_added():
    cells, counts = add_counts(np.array([[1, 0], [0, 9], [1, 0], [0, 8]]), np.array([1, 2, 3, 4]))
    assert cells.tolist() == [[0, 8], [0, 9], [1, 0]]
    assert counts.tolist() == [4, 2, 4]


@pytest.mark.parametrize("d", [1, 3])
def test_no_cells(d):
    """Without cells there is nothing to add, to label or to take a point."""
    cells, counts = count_cells(np.empty((0, d)), 1.0)
    assert (cells.shape, counts.shape) == ((0, d), (0,))
    assert [array.shape for array in add_counts(cells, counts)] == [(0, d), (0,)]
    assert label_cells(cells, counts, 1).shape == (0,)
    assert place_points(np.zeros((2, d)), 1.0, cells, counts).tolist() == [-1, -1]


def test_points_with_another_number_of_features():
    with pytest.raises(ValueError, match="X must have 2 features, as the cells do; got 1"):
        place_points(np.zeros((1, 1)), 1.0, np.zeros((1, 2), np.int64), np.zeros(1, np.int64))
