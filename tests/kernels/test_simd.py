"""Points in vector registers: the compiled functions agree with plain Python to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from fedlib.kernels import simd

within = njit(lambda columns, points, i, limit: simd.lanes_within(columns, points, i, limit))
near_box = njit(
    lambda lower, upper, limits, boxes, b: simd.lanes_near_box(lower, upper, limits, boxes, b)
)


@st.composite
def clouds(draw):
    """Draw points: on a lattice, where distances equal limits, or anywhere, at any scale."""
    d, size = draw(st.integers(1, 12)), draw(st.integers(0, simd.LANES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1e-150, 1.0, 1e150]))
    if draw(st.booleans()):
        X = rng.integers(0, 4, (40, d)) * scale
    else:
        X = rng.normal(size=(40, d)) * scale
    return X, rng.integers(0, 40, size), scale**2


@given(clouds(), st.sampled_from([0.0, 1.0, 3.0, np.inf]))
def test_points_within_a_distance(cloud, limit):
    """The bits are those of all squared distances; unused lanes have none, even without a limit."""
    X, rows, squared_scale = cloud
    columns = np.empty((X.shape[1], simd.LANES))
    simd.load_columns(X, rows, columns)
    np.testing.assert_array_equal(columns[:, : len(rows)], X[rows].T)
    for i in (0, 20):
        squared = np.zeros(len(rows))
        for k in range(X.shape[1]):
            squared += (X[i, k] - X[rows, k]) ** 2
        found = within(columns, X, i, limit * squared_scale)
        assert found == sum(1 << lane for lane in np.flatnonzero(squared <= limit * squared_scale))
        in_python = simd.lanes_within(columns, X, i, limit * squared_scale)
        assert in_python == found
        assert isinstance(in_python, np.uint64)


@given(clouds(), clouds())
def test_boxes_near_a_box(cloud, other):
    """Points or boxes near a box, and near all of it; a box near all of it is near."""
    X, rows, squared_scale = cloud
    d = X.shape[1]
    corners = np.resize(other[0], (2, 2, d))
    boxes = np.sort(corners, axis=1)
    lower, upper = np.empty((2, d, simd.LANES))
    simd.load_columns(X, rows, lower)
    simd.load_columns(X, rows, upper)
    limits = np.arange(simd.LANES) * squared_scale
    for widths in (0.0, np.abs(np.resize(X, (d, simd.LANES)))):
        near, whole = near_box(lower, upper + widths, limits, boxes, 1)
        assert (near, whole) == simd.lanes_near_box(lower, upper + widths, limits, boxes, 1)
        assert near < 1 << len(rows)
        assert whole & near == whole


def test_lanes_in_another_order():
    """The instructions compute places for the order of C only."""
    columns = np.zeros((2, simd.LANES))
    with pytest.raises(TypingError, match="must be in C order"):
        within(columns, np.asfortranarray(np.zeros((3, 2))), 0, 1.0)
    with pytest.raises(TypingError, match="must be in C order"):
        near_box(columns, columns, columns[0], np.zeros((3, 2, 2)).T, 0)
