"""Sums over the cells near a cell, against sums over all pairs of cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.clustering.density import neighbouring_cells
from fedlib.kernels.range_search import _advance, find_heavy


@given(
    keys=st.lists(st.integers(0, 99), unique=True).map(sorted),
    wanted=st.lists(st.integers(-5, 105), min_size=1).map(sorted),
)
def test_advancing_finds_what_a_search_from_the_start_finds(keys, wanted):
    keys = np.array(keys, np.int64)
    at = 0
    for value in wanted:
        at = _advance(keys, at, value)
        assert at == np.searchsorted(keys, value)


@given(data=st.data(), d=st.integers(1, 3), squared=st.integers(0, 30))
def test_heavy_cells(data, d, squared):
    """The cells of each share are decided alone, and others are left as they are."""
    coordinates = st.tuples(*[st.integers(-6, 6)] * d)
    cells = np.array(sorted(data.draw(st.sets(coordinates, min_size=1, max_size=40))), np.int64)
    n = len(cells)
    counts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    enough = data.draw(st.integers(1, 30))
    near = np.square(cells[:, None] - cells).sum(axis=2) <= squared
    expected = near @ counts >= enough
    first = data.draw(st.integers(0, n))
    heavy = ~expected
    totals = np.concatenate([[0], np.cumsum(counts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbouring_cells, "MIN_NEAR", 0)  # also if the rows contain few cells
        rows = neighbouring_cells._index_rows(cells, squared)
    find_heavy(rows, totals, enough, first, n, heavy)
    assert heavy[first:].tolist() == expected[first:].tolist()
    assert heavy[:first].tolist() == (~expected)[:first].tolist()
