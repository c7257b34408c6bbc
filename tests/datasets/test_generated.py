"""The data sets without a file."""

import numpy as np
import pytest

from fedlib.datasets import load

SHAPES = {"shapes_13147": 6, "shapes_38754": 12, "places_56417": 8}


TOYS = {"circles": 2, "moons": 2, "blobs": 3, "varied": 3, "aniso": 3, "no_structure": 1}


@pytest.mark.parametrize(("name", "n_classes"), TOYS.items())
def test_toys_are_standardised(name, n_classes):
    dataset = load(name)
    assert dataset.X.shape == (1000, 2)
    assert dataset.X.flags.c_contiguous
    assert dataset.y.dtype == np.int64
    assert set(dataset.y.tolist()) == set(dataset.target_names) == set(range(n_classes))
    assert np.abs(dataset.X.mean(axis=0)).max() < 1e-12
    assert dataset.X.std(axis=0) == pytest.approx(1)
    assert (dataset.source, dataset.sha256, dataset.groups) == ("real", None, None)
    assert np.array_equal(dataset.X, load(name).X)


def spread(dataset):
    """Return the standard deviations of each class."""
    return [dataset.X[dataset.y == label].std(axis=0) for label in np.unique(dataset.y)]


def test_shapes_of_the_toys():
    circles = load("circles")
    outer, inner = (np.hypot(*circles.X[circles.y == label].T).mean() for label in (0, 1))
    assert inner / outer == pytest.approx(0.5, abs=0.01)
    first, second, third = spread(load("varied"))
    assert second / first == pytest.approx(2.5, rel=0.1)
    assert third / first == pytest.approx(0.5, rel=0.1)
    for one, other in zip(spread(load("blobs")), spread(load("blobs"))[1:], strict=False):
        assert one / other == pytest.approx(1, rel=0.1)
    # A round blob transformed by [[0.6, -0.6], [-0.4, 0.8]] has this correlation.
    aniso = load("aniso")
    expected = -(0.6 * 0.6 + 0.4 * 0.8) / np.sqrt((0.6**2 + 0.4**2) * (0.6**2 + 0.8**2))
    for label in range(3):
        assert np.corrcoef(aniso.X[aniso.y == label].T)[0, 1] == pytest.approx(expected, abs=0.02)
    no_structure = load("no_structure")
    # A uniform variable with standard deviation 1 has this range.
    assert np.ptp(no_structure.X, axis=0) == pytest.approx(np.sqrt(12), rel=0.03)


@pytest.mark.parametrize(("name", "n_shapes"), SHAPES.items())
def test_shapes_that_replace_unpublished_sets(name, n_shapes):
    dataset = load(name)
    assert dataset.X.shape == (int(name.partition("_")[2]), 2)
    assert set(dataset.y.tolist()) == set(dataset.target_names) == set(range(-1, n_shapes))
    assert (dataset.source, dataset.sha256, dataset.groups) == ("generated", None, None)
    assert np.array_equal(dataset.X, load(name).X)


def test_breast_cancer(class_sizes):
    dataset = load("breast_cancer")
    assert dataset.X.shape == (569, 30)
    assert dataset.X.dtype == np.float64
    assert dataset.X.flags.c_contiguous
    assert class_sizes(dataset.y) == {0: 212, 1: 357}
    assert dataset.target_names == {0: "malignant", 1: "benign"}
    assert dataset.feature_names[0] == "mean radius"
    assert (dataset.source, dataset.sha256, dataset.groups) == ("real", None, None)
