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


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(25, 60), st.booleans())
def test_near_cells_by_brute_force(seed, n, n_ranges, later):
    """Cells at most two apart along each feature, for any size of the buffer.

    With ``later``, this is promised only for later cells, and no other cell is added.
    """
    rng = np.random.default_rng(seed)
    cells = np.unique(rng.integers(0, 9, (n, 3)), axis=0)
    strides = np.array([11 * 11, 11, 1])
    row_offsets = np.array([a * 121 + b * 11 for a, b in product(range(-2, 3), repeat=2)])
    grid = sorted_grid.Grid(cells @ strides, row_offsets, np.full(25, 2))
    expected = (np.abs(cells[:, None] - cells[None, :]) <= 2).all(axis=2)
    wanted = np.flatnonzero(rng.random(len(cells)) < 0.7)
    near_pairs = np.zeros((len(wanted), len(cells)), bool)
    near_start, near = np.empty(8, np.int64), np.empty((n_ranges, 2), np.int64)
    done = 0
    while done < len(wanted):
        n_done = sorted_grid.find_near_cells(grid, wanted[done:], later, near_start, near)
        assert n_done >= 1
        for w in range(n_done):
            for a, b in near[near_start[w] : near_start[w + 1]]:
                near_pairs[done + w, a:b] = True
        done += n_done
    expected = expected[wanted]
    assert not (near_pairs & ~expected).any()
    promised = (np.arange(len(cells)) >= wanted[:, None]) | (not later)
    np.testing.assert_array_equal(near_pairs & promised, expected & promised)
