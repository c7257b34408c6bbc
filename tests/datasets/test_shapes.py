"""Shapes and places: noise, gaps, densities, sizes and seeds."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from fedlib.datasets.stand_ins import places, shapes


def density(X, k=10):
    """Return the density around each point, from the distance to its k-th neighbour."""
    return k / (np.pi * cKDTree(X).query(X, k + 1)[0][:, -1] ** 2)


@pytest.mark.parametrize(("crowded", "share"), [(False, 0.06), (True, 0.10)])
def test_noise_is_thinner_than_any_shape(crowded, share):
    X, y = shapes(20_000, crowded)
    assert (y == -1).mean() == pytest.approx(share, abs=0.01)
    typical = [np.median(density(X)[y == shape]) for shape in range(-1, y.max() + 1)]
    assert typical[0] < min(typical[1:]) / 2


def test_shapes_far_apart():
    """The gaps between shapes are wider than those between the points of a shape."""
    X, y = shapes(13_147)
    for shape in range(6):
        inside, others = X[y == shape], X[(y >= 0) & (y != shape)]
        assert cKDTree(others).query(inside)[0].min() > 1.5
        assert cKDTree(inside).query(inside, 2)[0][:, 1].max() < 1.5


def test_places_vary_in_density_by_orders_of_magnitude():
    X, _ = places(20_000)
    low, high = np.quantile(density(X), [0.01, 0.99])
    assert high > 1000 * low


@pytest.mark.parametrize("draw", [shapes, places])
def test_sizes_and_seeds(draw):
    for n_points in (0, 1, 777):
        X, y = draw(n_points)
        assert (X.shape, y.shape) == ((n_points, 2), (n_points,))
    assert np.array_equal(draw(50, random_state=3)[0], draw(50, random_state=3)[0])
    assert not np.array_equal(draw(50, random_state=3)[0], draw(50, random_state=4)[0])
    with pytest.raises(ValueError, match="n_points must be at least 0, got -1"):
        draw(-1)
