"""Points sorted by the cell of a grid: keys, sorting, and the cells near a cell."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.kernels import sorted_grid

keys = hnp.arrays(
    np.int64, st.integers(0, 200), elements=st.integers(0, 2**61) | st.integers(0, 20)
)


@given(keys)
def test_sorting_is_stable(keys):
    """The order is that of NumPy's stable sort, for keys of any size; the argument is unchanged."""
    before = keys.copy()
    order, sorted_keys = sorted_grid.sort_keys(keys, keys.max(initial=0))
    np.testing.assert_array_equal(keys, before)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(sorted_keys, np.sort(keys))


@given(keys)
def test_cells_are_the_distinct_keys(keys):
    cell_keys, start = sorted_grid.find_cells(np.sort(keys))
    distinct, counts = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(cell_keys, distinct)
    np.testing.assert_array_equal(np.diff(start), counts)


def test_keys_by_hand():
    """The cells (0, 0), (1, 0) and (1, 2), of size 2 from (-1, 0); rows are 10 keys apart."""
    X = np.array([[-1.0, 0.0], [1.0, 1.9], [2.9, 4.0]])
    keys = np.empty(3, np.int64)
    sorted_grid.compute_keys(X, np.array([-1.0, 0.0]), 2.0, np.array([10, 1]), keys, 0, 3)
    assert keys.tolist() == [0, 10, 12]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_the_box_of_some_rows(seed, n):
    X = np.random.default_rng(seed).integers(-9, 9, (n + 2, 3)).astype(float)
    lower, upper = sorted_grid.bound_points(X, 1, n + 1)
    np.testing.assert_array_equal(lower, X[1 : n + 1].min(axis=0))
    np.testing.assert_array_equal(upper, X[1 : n + 1].max(axis=0))


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(25, 60), st.booleans())
def test_near_cells_by_brute_force(seed, n, n_ranges, earlier):
    """Cells at most two apart along each feature are found, for any size of the buffer.

    With ``earlier``, this is promised only for earlier cells. Groups are cells of fewer than
    ``SPAN`` successive keys. Other cells that are found lie in rows near the group.
    """
    rng = np.random.default_rng(seed)
    cells = np.unique(rng.integers(0, 9, (n, 3)), axis=0)
    strides = np.array([19 * 19, 19, 1])
    row_offsets = np.array([a * 361 + b * 19 for a, b in product(range(-2, 3), repeat=2)])
    grid = sorted_grid.Grid(cells @ strides, row_offsets, np.full(25, 2))
    expected = (np.abs(cells[:, None] - cells[None, :]) <= 2).all(axis=2)
    wanted = np.flatnonzero(rng.random(len(cells)) < 0.7)
    near_pairs = np.zeros((len(wanted), len(cells)), bool)
    (group_start, near_start), near = np.empty((2, 8), np.int64), np.empty((n_ranges, 2), np.int64)
    done = 0
    while done < len(wanted):
        n_groups = sorted_grid.find_near_cells(
            grid, wanted[done:], earlier, group_start, near_start, near
        )
        assert n_groups >= 1
        assert group_start[0] == near_start[0] == 0
        for g in range(n_groups):
            part = np.arange(done + group_start[g], done + group_start[g + 1])
            group_keys = grid.keys[wanted[part]]
            assert group_keys.max() - group_keys.min() < sorted_grid.SPAN
            for a, b in near[near_start[g] : near_start[g + 1]]:
                assert not near_pairs[part[0], a:b].any()
                near_pairs[part[0] : part[-1] + 1, a:b] = True
                distances = grid.keys[a:b, None, None] - group_keys[:, None] - row_offsets
                assert (np.abs(distances).min(axis=(1, 2)) < 2 + sorted_grid.SPAN).all()
        done += group_start[n_groups]
    promised = (np.arange(len(cells)) <= wanted[:, None]) | (not earlier)
    assert (near_pairs | ~(expected[wanted] & promised)).all()
