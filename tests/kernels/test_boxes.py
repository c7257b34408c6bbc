"""Counting and placing points by the keys of their cells within a box."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlib.clustering.density import cells as grid
from fedlib.kernels.node_search import (
    BLOCK,
    MAX_SIZE,
    bounding_box,
    cells_of,
    extremes,
    point_keys,
    run_lengths,
    sort_keys,
)

FEW = st.sampled_from([-1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0])


@st.composite
def points(draw):
    """Points whose cells fill a box, or lie far apart, or so far that no box contains them."""
    n, d = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    scale = draw(st.sampled_from([1.0, 1e-6, 1e3, 1e6, 1e12]))
    return scale * draw(arrays(float, (n, d), elements=FEW | st.floats(-3, 3)))


@given(points(), st.sampled_from([0.03, 0.5, 1.0, 1e5]))
def test_counts_are_those_of_numpy(X, cell_size):
    """With an array of counts, by sorting, and by hashing."""
    cells, counts = grid.count_cells(X, cell_size)
    floored = np.floor(X / cell_size).astype(np.int64)
    expected, expected_counts = np.unique(floored, axis=0, return_counts=True)
    assert np.array_equal(cells, expected)
    assert np.array_equal(counts, expected_counts)


@given(points(), st.data())
def test_sums_are_those_of_numpy(X, data):
    """Repeated cells, also with a count of 0, within a small box and far apart."""
    cells = np.floor(X / 0.5).astype(np.int64)
    counts = data.draw(arrays(np.int64, len(cells), elements=st.integers(0, 2**40)))
    distinct, inverse = np.unique(cells, axis=0, return_inverse=True)
    expected = np.zeros(len(distinct), np.int64)
    np.add.at(expected, inverse.ravel(), counts)
    found, totals = grid.add_counts(cells, counts)
    assert np.array_equal(found, distinct)
    assert np.array_equal(totals, expected)


@given(points(), st.data())
@pytest.mark.parametrize("assign", ["point", "cell"])
@pytest.mark.parametrize("adjacency", ["faces", "full"])
def test_a_table_places_points_as_hashing_does(assign, adjacency, X, data):
    """The neighbours of new points are the same, at the edges of the box and outside it too."""
    cells = np.unique(np.floor(X[: data.draw(st.integers(1, len(X)))]), axis=0).astype(np.int64)
    new = X + data.draw(st.sampled_from([0.0, 1.0, -1.0, 2.5, -2.5]))
    offsets = grid._offsets(X.shape[1], adjacency, len(cells))
    chosen = grid._place_by_hashing(new, 1.0, cells, offsets, assign)
    many = np.tile(new, (64, 1))  # enough points for a table of a small box
    placed = grid.place_points(many, 1.0, cells, np.arange(len(cells)), assign, adjacency)
    assert np.array_equal(placed, np.tile(chosen, 64))


def test_keys_sort_like_cells():
    """A box of 3 x 4 cells: the cell (1, 5) is the first, (3, 8) the last one."""
    box = bounding_box(np.array([1, 5]), np.array([3, 8]))
    assert (box.size, box.strides.tolist()) == (12, [4.0, 1.0])
    X = np.array([[1.0, 5.0], [1.9, 6.0], [2.0, 5.0], [3.5, 8.5]])
    keys = point_keys(X, 1.0, box)
    assert keys.tolist() == [0, 1, 4, 11]
    assert np.array_equal(cells_of(keys, box), np.floor(X))


@pytest.mark.parametrize("n", [0, 1, 5, 3000])
@pytest.mark.parametrize("size", [1, 2, 2**11, 2**11 + 1, 2**33, MAX_SIZE])
def test_keys_are_sorted(n, size):
    """The sizes are those at which the sort needs another pass."""
    keys = np.random.default_rng(0).integers(0, size, n)
    keys[n // 2 :] = keys[: n - n // 2]  # every key at least twice
    expected, expected_counts = np.unique(keys, return_counts=True)
    distinct, counts = run_lengths(sort_keys(keys, size))
    assert np.array_equal(distinct, expected)
    assert np.array_equal(counts, expected_counts)


@pytest.mark.parametrize(
    ("low", "high", "size"),
    [
        ([0], [MAX_SIZE - 1], MAX_SIZE),
        ([0], [MAX_SIZE], None),  # one cell too many
        ([-MAX_SIZE - 1], [-MAX_SIZE], None),  # too far out
        ([0, 0], [2**30, 2**30], None),
        ([-5, 2], [4, 2], 10),
    ],
)
def test_the_largest_boxes(low, high, size):
    box = bounding_box(np.array(low), np.array(high))
    assert (None if box is None else box.size) == size


@pytest.mark.parametrize("row", [0, 1, BLOCK, BLOCK + 5])
def test_extremes_notice_nan(row):
    X = np.arange(2.0 * (BLOCK + 9)).reshape(-1, 2)
    least, largest, valid = extremes(X)
    assert (least.tolist(), largest.tolist()) == ([0, 1], X[-1].tolist())
    assert valid
    X[row, 1] = np.nan
    assert not extremes(X)[2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**63, -(2.0**63), 1e300])
def test_the_first_row_out_of_range_is_named(bad):
    X = np.zeros((9, 2))
    X[4:, 1] = bad
    with pytest.raises(ValueError, match=r"cell_size=1.0 is too small for row 4"):
        grid.count_cells(X, 1.0)
    with pytest.raises(ValueError, match=r"cell_size=1.0 is too small for row 4"):
        grid.place_points(X, 1.0, np.zeros((1, 2), np.int64), np.zeros(1, np.int64))
