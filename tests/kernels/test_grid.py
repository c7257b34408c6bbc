"""The kernels of the grid: grouping points, finding pairs of cells, choosing candidates."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlib.kernels.grid import (
    BLOCK,
    MAX_CELL,
    Candidates,
    adjacent_pairs,
    find_candidates,
    group_points,
    nearest_candidate,
    touching_pairs,
)

FAR = [-MAX_CELL, -MAX_CELL + 1, MAX_CELL - 1, MAX_CELL]
coordinates = st.integers(-2, 2) | st.sampled_from(FAR)


def all_offsets(d):
    offsets = np.array([o for o in product((-1, 0, 1), repeat=d) if any(o)], np.int64)
    return offsets.reshape(-1, d)


def face_offsets(d):
    return np.array([o for o in all_offsets(d).tolist() if np.abs(o).sum() == 1], np.int64)


def half(offsets):
    """Return the offsets to the lexicographically larger cells."""
    return offsets[len(offsets) // 2 :]


def shift(cell, offset):
    return tuple(c + o for c, o in zip(cell, offset, strict=True))


@st.composite
def sorted_cells(draw, max_dimension=4, max_cells=25, min_dimension=1):
    """Draw distinct cells in lexicographic order, some of them at the ends of the range."""
    d = draw(st.integers(min_dimension, max_dimension))
    cells = draw(st.sets(st.tuples(*[coordinates] * d), max_size=max_cells))
    return np.array(sorted(cells), np.int64).reshape(-1, d)


def as_set(pairs):
    listed = [tuple(pair) for pair in pairs.tolist()]
    assert len(set(listed)) == len(listed)  # no pair is repeated
    return set(listed)


# Counting points ------------------------------------------------------------------------------


@st.composite
def points(draw):
    d = draw(st.integers(1, 5))
    n = draw(st.integers(0, 40))
    scale = draw(st.sampled_from([1.0, 1e-6, 1e6, 1e12]))
    few = st.sampled_from([-1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0])
    return scale * draw(arrays(float, (n, d), elements=few | st.floats(-3, 3)))


@given(points(), st.sampled_from([0.03, 0.5, 1.0, 1e5]))
def test_groups_are_those_of_numpy(X, cell_size):
    """Cells, counts and inverse are those of ``np.unique`` of ``floor(X / cell_size)``."""
    cells, counts, inverse, outside = group_points(X, cell_size, True)
    assert outside == -1
    floored = np.floor(X / cell_size).astype(np.int64)
    expected, expected_counts = np.unique(floored, axis=0, return_counts=True)
    order = np.lexsort(cells.T[::-1])
    assert np.array_equal(cells[order], expected)
    assert np.array_equal(counts[order], expected_counts)
    assert np.array_equal(cells[inverse], floored)


@given(points())
def test_cells_come_in_order_of_appearance(X):
    """The first point lies in cell 0, and each new cell gets the next number."""
    inverse = group_points(X, 0.5, True).inverse
    used, first = np.unique(inverse, return_index=True)
    assert used.tolist() == list(range(len(used)))
    assert (np.diff(first) > 0).all()


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_no_point_is_lost_between_blocks(n):
    """The numbers of points are those at which one block ends and the next one begins."""
    X = np.arange(n, dtype=float)[:, None] // 3
    cells, counts, inverse, outside = group_points(X, 1.0, True)
    assert outside == -1
    assert cells.ravel().tolist() == list(range((n + 2) // 3))
    assert counts.sum() == n
    assert np.array_equal(inverse, np.arange(n) // 3)


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("stride", [1, 2**20, 2**31, 2**32, 2**48])
def test_the_table_grows(d, stride):
    """Thousands of distant cells, some of them multiples of powers of two, as for a weak hash."""
    X = stride * np.random.default_rng(0).integers(-4000, 4000, (6000, d)).astype(float)
    cells, counts, inverse, outside = group_points(X, 1.0, True)
    assert outside == -1
    assert np.array_equal(cells[inverse], X.astype(np.int64))
    assert np.array_equal(counts, np.bincount(inverse))
    assert len(np.unique(cells, axis=0)) == len(cells)


def test_without_inverse():
    """The inverse is empty if it was not requested; nothing else changes."""
    X = np.array([[0.1, 2.0], [-0.1, 2.0], [0.2, 2.9]])
    cells, counts, inverse, outside = group_points(X, 1.0, False)
    assert (cells.tolist(), counts.tolist(), outside) == ([[0, 2], [-1, 2]], [2, 1], -1)
    assert inverse.shape == (0,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), 1e300])
@pytest.mark.parametrize("row", [0, 3, BLOCK, BLOCK + 5])
def test_the_first_row_out_of_range_is_returned(bad, row):
    X = np.zeros((BLOCK + 9, 2))
    X[row:, 1] = bad
    assert group_points(X, 1.0, True).outside == row


def test_the_ends_of_the_range_are_cells():
    X = np.array([[2.0**62], [-(2.0**62)]])
    cells, _, _, outside = group_points(X, 1.0, True)
    assert outside == -1
    assert cells.ravel().tolist() == [MAX_CELL, -MAX_CELL]
    beyond = np.nextafter(2.0**62, np.inf)
    for x in (beyond, -beyond):
        assert group_points(np.array([[0.0], [x]]), 1.0, True).outside == 1


# Pairs of cells -------------------------------------------------------------------------------


@given(sorted_cells(), st.data())
def test_adjacent_pairs_are_those_of_a_search(cells, data):
    """The pairs (i, j) are exactly those with cells[i] + offset == cells[j], for any offsets."""
    offsets = all_offsets(cells.shape[1])
    chosen = data.draw(arrays(bool, len(offsets)))
    number = {tuple(cell): i for i, cell in enumerate(cells.tolist())}
    expected = {
        (i, number[shift(cell, offset)])
        for cell, i in number.items()
        for offset in offsets[chosen].tolist()
        if shift(cell, offset) in number
    }
    assert as_set(adjacent_pairs(cells, offsets[chosen])) == expected


@given(sorted_cells(max_dimension=6))
@example(np.array([[-MAX_CELL], [MAX_CELL]]))
@example(np.array([[0, -MAX_CELL], [1, MAX_CELL]]))
@example(np.array([[-MAX_CELL, 0], [MAX_CELL - 1, 0], [MAX_CELL, 0]]))
def test_touching_pairs_are_those_of_all_offsets(cells):
    """Comparing all cells and merging with every offset find the same pairs."""
    merged = adjacent_pairs(cells, half(all_offsets(cells.shape[1])))
    assert as_set(touching_pairs(cells)) == as_set(merged)


def test_no_cells_have_no_pairs():
    none = np.empty((0, 3), np.int64)
    assert adjacent_pairs(none, face_offsets(3)).shape == (0, 2)
    assert touching_pairs(none).shape == (0, 2)


def test_many_dimensions():
    """In 40 dimensions, with too many offsets to list (3**40), touching cells are found."""
    cells = np.zeros((4, 40), np.int64)
    cells[1, 7:] = 1
    cells[2] = 1
    cells[3, 0] = 2  # touches the cell of ones, but not the cell of zeros
    assert as_set(touching_pairs(cells)) == {(0, 1), (0, 2), (1, 2), (2, 3)}


# Candidates of points -------------------------------------------------------------------------


@st.composite
def occupied_and_cells(draw):
    cells = draw(sorted_cells())
    d = cells.shape[1]
    occupied = draw(st.lists(st.tuples(*[coordinates] * d), max_size=12))
    return np.array(occupied, np.int64).reshape(-1, d), cells


@given(occupied_and_cells(), st.sampled_from(["faces", "full", "full, without offsets"]))
@example((np.array([[-MAX_CELL]]), np.array([[MAX_CELL]])), "full, without offsets")
def test_candidates_are_those_of_a_search(occupied_cells, adjacency):
    """The only candidate of a cell is itself, or else its neighbours in lexicographic order."""
    occupied, cells = occupied_cells
    d = cells.shape[1]
    around = (face_offsets if adjacency == "faces" else all_offsets)(d).tolist()
    offsets = np.empty((0, d), np.int64) if "without" in adjacency else np.array(around)
    start, numbers = find_candidates(occupied, cells, offsets)
    number = {tuple(cell): i for i, cell in enumerate(cells.tolist())}
    assert start[0] == 0
    assert len(start) == len(occupied) + 1
    for i, cell in enumerate(map(tuple, occupied.tolist())):
        neighbours = sorted(shift(cell, o) for o in around if shift(cell, o) in number)
        expected = [cell] if cell in number else neighbours
        assert numbers[start[i] : start[i + 1]].tolist() == [number[c] for c in expected]


def nearest(X, cells, cell_size):
    """Return the nearest of all cells for each point."""
    start = np.arange(len(X) + 1) * len(cells)
    everything = Candidates(start, np.tile(np.arange(len(cells)), len(X)))
    return nearest_candidate(X, np.arange(len(X)), everything, cells, cell_size)


@given(sorted_cells(), st.integers(0, 2**32 - 1))
def test_the_nearest_centre_is_chosen(cells, seed):
    """Every point takes the candidate with the nearest centre; ties go to the first."""
    cells = cells[(np.abs(cells) < 9).all(axis=1)]
    X = np.random.default_rng(seed).integers(-24, 24, (9, cells.shape[1])) / 8
    chosen = nearest(X, cells, 0.5)
    for point, choice in zip(X.tolist(), chosen.tolist(), strict=True):
        distances = [
            sum((x - (c * 0.5 + 0.25)) ** 2 for x, c in zip(point, cell, strict=True))
            for cell in cells.tolist()
        ]
        assert choice == (distances.index(min(distances)) if distances else -1)


def test_ties_go_to_the_first():
    # The centres of the cells 0 and 2 have the same distance from 1.5.
    assert nearest(np.array([[1.5]]), np.array([[0], [2]]), 1.0).tolist() == [0]
    # The centres of the four cells that share a face with cell (1, 1) are equally far from its own.
    around = np.array([[0, 1], [1, 0], [1, 2], [2, 1]])
    assert nearest(np.array([[1.5, 1.5]]), around, 1.0).tolist() == [0]
    assert nearest(np.array([[1.5, 1.5]]), around[::-1].copy(), 1.0).tolist() == [0]


def test_a_point_without_candidates():
    none = Candidates(np.zeros(2, np.int64), np.empty(0, np.int64))
    X, cells = np.zeros((2, 1)), np.empty((0, 1), np.int64)
    chosen = nearest_candidate(X, np.zeros(2, np.int64), none, cells, 1.0)
    assert chosen.tolist() == [-1, -1]


def test_distances_beyond_floating_point():
    """A point takes a cell even if the square of its distance overflows."""
    X = np.array([[3.1e200]])
    assert nearest(X, np.array([[3]]), 1e200).tolist() == [0]
