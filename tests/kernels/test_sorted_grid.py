"""Points sorted by the cell of a grid: keys, sorting, and the cells near a cell."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedlib.clustering.density.engine import index as dbscan_index
from fedlib.clustering.density.engine.index import Shares
from fedlib.kernels import grid as sorted_grid

keys = hnp.arrays(
    np.int64, st.integers(1, 200), elements=st.integers(0, 2**61 - 1) | st.integers(0, 20)
)


@given(keys, st.integers(1, 4), st.integers(0, 40))
def test_sorting_is_stable(keys, n_threads, low):
    """The order is that of NumPy's stable sort, for keys of any size and any number of shares."""
    expected = keys[np.argsort(keys >> low, kind="stable")]
    with ThreadPoolExecutor(n_threads) as threads:
        found = dbscan_index._sort(keys, low, 61, Shares(threads, n_threads, len(keys)))
    np.testing.assert_array_equal(found, expected)


@given(keys, st.integers(1, 4), st.sampled_from([0, 3, 40]))
def test_cells_are_the_distinct_keys(keys, n_threads, row_bits):
    keys.sort()
    with ThreadPoolExecutor(n_threads) as threads:
        shares = Shares(threads, n_threads, len(keys))
        cell_keys, start, order = dbscan_index._split_keys(
            keys, row_bits, int(keys[-1] >> row_bits), shares
        )
    distinct, counts = np.unique(keys >> row_bits, return_counts=True)
    np.testing.assert_array_equal(cell_keys, distinct)
    np.testing.assert_array_equal(np.diff(start), counts)
    np.testing.assert_array_equal(order, (keys & ((1 << row_bits) - 1)).astype(order.dtype))


def test_keys_by_hand():
    """The cells (0, 0), (1, 0), (1, 2) and (2, 1), of size 2 from (-1, 0).

    Slices have two cells, and tubes are 10 keys apart. The last cell is in the second tube.
    """
    X = np.array([[-1.0, 0.0], [1.0, 1.9], [2.9, 4.0], [3.0, 2.0]])
    keys = np.empty(4, np.int64)
    sorted_grid.compute_keys(X, np.array([-1.0, 0.0]), 2.0, np.array([10, 2]), 3, keys, 0, 4)
    assert keys.tolist() == [0, 8 * 1 + 1, 8 * 5 + 2, 8 * 12 + 3]


def test_keys_with_three_features_by_hand():
    """The cell (1, 3, 4) is the third of its slice, the fifth slice of the tube (0, 1)."""
    keys = np.empty(2, np.int64)
    X = np.array([[0.0, 0.0, 0.0], [1.5, 3.5, 4.5]])
    sorted_grid.compute_keys(X, np.zeros(3), 1.0, np.array([1000, 100, 4]), 1, keys, 0, 2)
    assert keys.tolist() == [0, 2 * (100 + 4 * 4 + 1 + 2) + 1]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_the_box_of_some_rows(seed, n):
    X = np.random.default_rng(seed).integers(-9, 9, (n + 2, 3)).astype(float)
    lower, upper = sorted_grid.bound_points(X, 1, n + 1)
    np.testing.assert_array_equal(lower, X[1 : n + 1].min(axis=0))
    np.testing.assert_array_equal(upper, X[1 : n + 1].max(axis=0))


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(9, 30), st.booleans())
def test_near_cells_by_brute_force(seed, n, n_ranges, earlier):
    """Cells at most two apart along each feature are found, for any size of the buffer.

    With ``earlier``, this is promised only for earlier cells. Groups are cells of fewer than
    ``SPAN`` successive keys. Other cells that are found lie in tubes near the group.
    """
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 9, (n, 3))
    strides = np.array([15 * 76, 76, 4])
    keys = np.empty(n, np.int64)
    sorted_grid.compute_keys(cells.astype(float), np.zeros(3), 1.0, strides, 6, keys, 0, n)
    keys, rows = np.unique(keys >> 6, return_index=True)
    cells = cells[rows]
    offsets = np.array([a * 15 * 76 + b * 76 for a, b in product(range(-1, 2), repeat=2)])
    grid = sorted_grid.Grid(keys, offsets, np.full(9, 2 * 4))
    expected = (np.abs(cells[:, None] - cells[None, :]) <= 2).all(axis=2)
    wanted = np.flatnonzero(rng.random(len(cells)) < 0.7)
    near_pairs = np.zeros((len(wanted), len(cells)), bool)
    (group_start, near_start), near = np.empty((2, 8), np.int64), np.empty((n_ranges, 2), np.int64)
    done = 0
    while done < len(wanted):
        n_groups = sorted_grid.find_near_cells(
            grid, 4, wanted[done:], earlier, group_start, near_start, near
        )
        assert n_groups >= 1
        assert group_start[0] == near_start[0] == 0
        for g in range(n_groups):
            part = np.arange(done + group_start[g], done + group_start[g + 1])
            group = wanted[part]
            assert keys[group].max() - keys[group].min() < sorted_grid.SPAN
            for a, b in near[near_start[g] : near_start[g + 1]]:
                assert not near_pairs[part[0], a:b].any()
                near_pairs[part[0] : part[-1] + 1, a:b] = True
                tubes = cells[a:b, None, :2] // 2 - cells[group, :2] // 2
                assert (np.abs(tubes) <= 1).all()
                steps = np.abs(cells[a:b, None, 2] - cells[group, 2])
                assert (steps.min(axis=1) <= 2 + sorted_grid.SPAN // 4).all()
        done += group_start[n_groups]
    promised = (np.arange(len(cells)) <= wanted[:, None]) | (not earlier)
    assert (near_pairs | ~(expected[wanted] & promised)).all()
