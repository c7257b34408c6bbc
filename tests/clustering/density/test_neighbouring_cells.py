"""Core cells and the points they take: by hand, and between two runs of exact DBSCAN."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.clustering.density import neighbouring_cells
from fedlib.clustering.density.cells import count_cells, place_points
from fedlib.clustering.density.engine.dbscan import cluster
from fedlib.clustering.density.neighbouring_cells import (
    cell_side,
    label_core_cells,
    place_near,
    squared_reach,
)


@pytest.mark.parametrize("rho", [1e-6, 0.003, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("d", [1, 2, 3, 7, 50])
def test_side_and_reach(rho, d):
    """The side has the promised bound; the two inequalities of the proof hold for the reach."""
    side, reach = cell_side(1.0, rho, d), math.sqrt(squared_reach(rho, d))
    rounding = math.sqrt(d) * 2.0**-12  # of two numbers of cells, at most 2**-13 per feature each
    assert 0.999 * rho <= side * 2 * math.sqrt(d) <= rho
    assert side * (reach + math.sqrt(d) + rounding) <= 1 + rho
    # All whole numbers up to the real bound are within reach.
    assert squared_reach(rho, d) >= math.floor((1 / side + math.sqrt(d) + rounding) ** 2)


def points(data, d):
    """Draw points whose distances are often exactly ``eps``, and points in general position."""
    whole = st.integers(-6, 6).map(float)
    fraction = st.floats(-6, 6, allow_subnormal=False)
    coordinate = data.draw(st.sampled_from([whole, whole.map(lambda x: x / 2), fraction]))
    rows = st.lists(st.tuples(*[coordinate] * d), min_size=1, max_size=30)
    return np.array(data.draw(rows))


@pytest.mark.parametrize("d", [2, 3, 4])
@given(
    data=st.data(), rho=st.sampled_from([1.0, 0.5, 0.2, 0.05]), eps=st.sampled_from([1.0, 1.5, 2.5])
)
@settings(max_examples=25)
def test_clusters_lie_between_those_of_eps_and_of_a_larger_eps(d, data, rho, eps):
    X, min_samples = points(data, d), data.draw(st.integers(1, 6))
    side = cell_side(eps, rho, d)
    cells, counts = count_cells(X, side)
    cell_labels = label_core_cells(cells, counts, rho, min_samples)
    core = cell_labels >= 0
    in_core_cell = place_points(X, side, cells[core], cell_labels[core], adjacency="none")
    labels = place_near(X, eps, rho, cells[core], cell_labels[core])
    exact, exact_core = cluster(X, eps, min_samples)
    wide, wide_core = cluster(X, eps * (1 + rho), min_samples)
    for number in set(exact[exact_core]):
        inside = in_core_cell[exact_core & (exact == number)]
        assert inside.min() == inside.max() >= 0
    for number in set(in_core_cell) - {-1}:
        inside = in_core_cell == number
        assert wide_core[inside].all()
        assert len(set(wide[inside])) == 1
    assert (labels[exact >= 0] >= 0).all()
    assert (wide[labels >= 0] >= 0).all()
    assert (labels == in_core_cell)[in_core_cell >= 0].all()


def test_the_reach_and_the_side_cannot_be_larger():
    """Two points at a distance of ``eps`` need the whole reach. Wider cells connect farther points.

    Both pairs lie on a diagonal, the direction in which the bounds are tight.
    """
    eps, rho = math.sqrt(2), 0.5
    side = cell_side(eps, rho, 2)
    start = 0.9999 * side  # so that the distance of four sides ends in the fifth cell from here
    cells, counts = count_cells(np.array([[start, start], [start + 1, start + 1]]), side)
    assert np.square(cells[1] - cells[0]).sum() == squared_reach(rho, 2)
    assert label_core_cells(cells, counts, rho, 2).tolist() == [0, 0]
    too_far = np.array([[0.0, 0.0], [1.51, 1.51]])  # eps * (1 + rho) is a distance of 1.5 each
    for factor, expected in [(1, [-1, -1]), (2, [0, 0])]:
        cells, counts = count_cells(too_far, factor * side)
        assert label_core_cells(cells, counts, rho, 2).tolist() == expected


@given(data=st.data(), d=st.integers(1, 4), n_jobs=st.sampled_from([None, 2]))
@settings(max_examples=30)
def test_sums_over_rows_and_comparisons_of_cells_agree(data, d, n_jobs):
    cells, counts = count_cells(points(data, d), 0.5)
    rho, min_samples = data.draw(st.sampled_from([1.0, 0.6])), data.draw(st.integers(1, 9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbouring_cells, "MAX_ROWS", 0)
        expected = label_core_cells(cells, counts, rho, min_samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbouring_cells, "MIN_NEAR", 0)
        without = neighbouring_cells._index_rows(cells, squared_reach(rho, d)) is None
        assert without == (d == 4 and rho == 0.6)  # then the rows near a cell are too many
        labels = label_core_cells(cells, counts, rho, min_samples, n_jobs)
    assert labels.tolist() == expected.tolist()


def test_sums_over_rows_only_where_rows_contain_many_cells():
    """In a full square, and not with cells that lie ten apart."""
    full = np.argwhere(np.ones((40, 40)))
    squared = squared_reach(1.0, 2)
    assert neighbouring_cells._index_rows(full, squared) is not None
    assert neighbouring_cells._index_rows(full * 10, squared) is None


def test_keys_that_do_not_fit_into_64_bits():
    """Cells that lie far apart are compared one by one."""
    cells = np.array([[-(2**40), 0], [-(2**40), 1], [2**40, -(2**40)]])
    assert neighbouring_cells._index_rows(cells, squared_reach(1.0, 2)) is None
    assert label_core_cells(cells, np.ones(3, np.int64), 1.0, 2).tolist() == [0, 0, -1]


def test_no_cells():
    none = np.empty((0, 2), np.int64)
    assert label_core_cells(none, np.empty(0, np.int64), 0.5, 3).tolist() == []
    assert place_near(np.zeros((2, 2)), 1.0, 0.5, none, np.empty(0, np.int64)).tolist() == [-1, -1]


@given(data=st.data(), d=st.integers(1, 3))
@settings(max_examples=30)
def test_points_join_the_nearest_of_all_core_cells(data, d):
    """Only cells at the edge are searched; the nearest one of all cells is among them."""
    rho, eps = 1.0, 1.0
    X, side = points(data, d) / 4, cell_side(1.0, 1.0, d)
    block = np.stack(np.meshgrid(*[np.arange(-2, 3)] * d, indexing="ij"), -1).reshape(-1, d)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(block), max_size=len(block))))
    cells = block[kept | (np.abs(block).max(axis=1) < 2)]
    placed = place_near(X, eps, rho, cells, np.arange(len(cells)))
    distances = np.linalg.norm(X[:, None] - (cells + 0.5) * side, axis=2)
    nearest = distances.min(axis=1)
    joined = placed >= 0
    np.testing.assert_allclose(distances[joined, placed[joined]], nearest[joined])
    assert (nearest[joined] <= eps + side * math.sqrt(d) / 2 * 1.001).all()
    assert (nearest[~joined] > eps + side * math.sqrt(d) / 2 * 0.999).all()
