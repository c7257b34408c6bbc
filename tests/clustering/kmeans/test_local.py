"""The computations on one client's points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans

from fedlib.clustering.kmeans.local import (
    GROUP_SIZE,
    assign,
    child_centres,
    group_means,
    leaf_groups,
    sum_clusters,
)

from .points import blobs

QUARTERS = st.integers(-9, 9).map(lambda quarters: quarters / 4)
STOP = {"n_init": 10, "max_iter": 300, "tol": 1e-4}


@given(
    arrays(np.float64, st.tuples(st.integers(0, 25), st.integers(1, 3)), elements=QUARTERS),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.25, 0.5, 0.99]),
)
@settings(max_examples=25)
def test_a_child_counts_every_row_once(X, n_clusters, update_fraction):
    """The weighted mean of the centres is the mean of the rows, also of few or repeated rows."""
    base, centres, counts = child_centres(
        X, n_clusters, update_fraction, **STOP | {"n_init": 1}, random_state=0
    )
    rest = X[int(update_fraction * len(X)) :]
    assert len(base) == len(centres) == len(counts) <= n_clusters
    assert len(centres) <= len(np.unique(rest, axis=0))
    assert counts.sum() == len(X)
    np.testing.assert_allclose(counts @ centres, X.sum(axis=0), atol=1e-9)


def test_base_and_update_are_those_of_the_source():
    """scikit-learn clusters the last three quarters; the first quarter moves the centres."""
    X = blobs(41)[0]
    base, centres, _ = child_centres(X, 3, 0.25, **STOP, random_state=42)
    central = KMeans(3, n_init=10, random_state=42).fit(X[10:])
    assert base.tolist() == central.cluster_centers_.tolist()
    assert (base != centres).any()
    unmoved, same, _ = child_centres(X, 3, 0.0, **STOP, random_state=42)
    assert unmoved.tolist() == same.tolist()


@given(st.integers(0, 300), st.integers(0, 60), st.integers(1, 4))
def test_each_group_has_at_least_three_points(n, n_groups, d):
    """Every point is in one group, and groups are few and have at least three points."""
    X = np.random.default_rng(n).normal(size=(n, d))
    means, counts, weights = group_means(X, n_groups)
    assert weights.tolist() == counts.tolist()
    assert len(means) == len(counts) <= n_groups
    assert (counts >= GROUP_SIZE).all()
    assert counts.sum() == (n if n >= GROUP_SIZE and n_groups else 0)
    if len(counts):
        np.testing.assert_allclose(counts @ means, X.sum(axis=0), atol=1e-9)


@given(st.integers(3, 300), st.integers(1, 60), st.floats(0, 12))
def test_groups_of_weighted_points_are_few_and_have_the_weight_of_all(n, n_groups, spread):
    rng = np.random.default_rng(n)
    X, weights = rng.normal(size=(n, 2)), 10 ** rng.uniform(-spread, 0, n)
    means, counts, of_groups = group_means(X, n_groups, weights)
    groups = leaf_groups(X, n_groups, weights)
    assert 1 <= len(means) == len(counts) == len(of_groups) <= n_groups
    assert (counts >= GROUP_SIZE).all()
    assert np.bincount(groups[groups >= 0]).tolist() == counts.tolist()
    for group, mean in enumerate(means):
        np.testing.assert_allclose(X[groups == group].mean(axis=0), mean)
    assert of_groups.sum() == pytest.approx(weights.sum())
    assert (of_groups > 0).all()


def test_equal_weights_change_no_group():
    X = np.random.default_rng(0).normal(size=(100, 2))
    plain, weighted = group_means(X, 9), group_means(X, 9, np.full(100, 0.3))
    for one, other in zip(plain[:2], weighted[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(weighted[2], 0.3 * plain[2])


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 3))
def test_sums_are_those_of_the_nearest_centres(n, n_clusters, d):
    rng = np.random.default_rng(n)
    X, centres = rng.normal(size=(n, d)), rng.normal(size=(n_clusters, d))
    sums, counts, inertia = sum_clusters(X, centres)
    squared = ((X[:, np.newaxis] - centres) ** 2).sum(axis=2)
    nearest = squared.argmin(axis=1)
    assert counts.tolist() == np.bincount(nearest, minlength=n_clusters).tolist()
    np.testing.assert_allclose(sums, np.eye(n_clusters)[nearest].T @ X, atol=1e-12)
    np.testing.assert_allclose(inertia, squared.min(axis=1).sum(), rtol=1e-12)


@pytest.mark.parametrize("function", [sum_clusters, assign])
@pytest.mark.parametrize(
    ("shape", "message"), [((0, 3), "at least one centre"), ((2, 2), "the 2 features")]
)
def test_there_are_centres_with_the_features_of_the_points(function, shape, message):
    with pytest.raises(ValueError, match=message):
        function(np.zeros((4, 3)), np.zeros(shape))
