"""Cells in row-major order: keys, sorting, and the ranges of cells near a cell."""

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
    """The order is numpy's stable one, for keys of any width; the keys given stay as they are."""
    before = keys.copy()
    order, sorted_keys = sorted_grid.sort_keys(keys, keys.max(initial=0))
    np.testing.assert_array_equal(keys, before)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(sorted_keys, np.sort(keys))


@given(keys)
def test_cells_are_the_distinct_keys(keys):
    cell_keys, cell_start = sorted_grid.find_cells(np.sort(keys))
    distinct, counts = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(cell_keys, distinct)
    np.testing.assert_array_equal(np.diff(cell_start), counts)


def test_keys_by_hand():
    """Cells of side 2 from (-1, 0): (0, 0), (1, 0) and (1, 2), a row being 10 keys apart."""
    X = np.array([[-1.0, 0.0], [1.0, 1.9], [2.9, 4.0]])
    out = np.empty(3, np.int64)
    sorted_grid.find_keys(X, np.array([-1.0, 0.0]), 2.0, np.array([10, 1]), out, 0, 3)
    assert out.tolist() == [0, 10, 12]


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(25, 60))
def test_near_cells_by_brute_force(seed, n, room):
    """Cells at most two apart along each feature, in as many calls as the room asks for."""
    rng = np.random.default_rng(seed)
    cells = np.unique(rng.integers(0, 9, (n, 3)), axis=0)
    strides = np.array([11 * 11, 11, 1])
    rows = np.array([a * 121 + b * 11 for a, b in product(range(-2, 3), repeat=2)])
    wanted = (np.abs(cells[:, None] - cells[None, :]) <= 2).all(axis=2)
    which = np.flatnonzero(rng.random(len(cells)) < 0.7)
    found = np.zeros((len(which), len(cells)), bool)
    near_start, near = np.empty(8, np.int64), np.empty((room, 2), np.int64)
    reach = np.full(25, 2)
    done = 0
    while done < len(which):
        some = sorted_grid.near_in_grid(which, done, cells @ strides, rows, reach, near_start, near)
        assert some >= 1
        for w in range(some):
            for a, b in near[near_start[w] : near_start[w + 1]]:
                found[done + w, a:b] = True
        done += some
    np.testing.assert_array_equal(found, wanted[which])
