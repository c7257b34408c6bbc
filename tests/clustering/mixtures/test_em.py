"""EM on one set of points."""

from math import fsum

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from fedlib.clustering.mixtures.em import (
    fit_mixture,
    improve,
    log_joint,
    maximise,
    sum_responsibilities,
)
from fedlib.clustering.mixtures.messages import Mixture, sklearn_shape
from fedlib.core.messages import MessageError
from fedlib.kernels.mixtures import CHUNK

from .points import blobs, each_covariance_type


@each_covariance_type
@pytest.mark.parametrize("seed", range(3))
def test_the_first_fit_is_sklearns(covariance_type, seed):
    X = blobs(seed=seed)
    theirs = GaussianMixture(
        3, covariance_type=covariance_type, max_iter=500, random_state=seed
    ).fit(X)
    ours = fit_mixture(X, 3, covariance_type, random_state=seed, max_iter=500)
    np.testing.assert_allclose(ours.means, theirs.means_, atol=1e-9)
    np.testing.assert_allclose(
        sklearn_shape(ours.covariances, covariance_type), theirs.covariances_, atol=1e-9
    )


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_a_cluster_without_points_gets_the_covariance_of_all_points(monkeypatch, covariance_type):
    class AllInOne(KMeans):
        def fit(self, X, sample_weight=None):
            super().fit(X)
            self.labels_[:] = 0
            return self

    monkeypatch.setattr("sklearn.cluster.KMeans", AllInOne)
    X = blobs()
    first = fit_mixture(X, 2, covariance_type, random_state=0, max_iter=0)
    pooled = np.cov(X, rowvar=False, bias=True)
    wanted = pooled if covariance_type == "full" else np.diag(pooled)[np.newaxis]
    np.testing.assert_allclose(first.covariances[1], wanted)
    np.testing.assert_allclose(first.weights, [1, 0], atol=1e-15)


def test_improve_stops_by_tol():
    X = blobs()
    mixture = fit_mixture(X, 3, random_state=0, max_iter=1)
    one = improve(X, mixture, 1e-6, max_iter=1, tol=0)
    far = improve(X, mixture, 1e-6, max_iter=100, tol=1e9)
    assert not np.array_equal(one.means, far.means)
    assert np.array_equal(far.means, improve(X, one, 1e-6, max_iter=1, tol=0).means)


def test_the_error_of_sums_over_several_chunks():
    """The sums are within the documented bound of correctly rounded sums of the same terms.

    With one component, every responsibility is 1, and the terms are the points themselves.
    """
    n = 70 * CHUNK + 5
    X = np.random.default_rng(0).normal(size=(n, 2)) * [1.0, 1e6]
    sums = sum_responsibilities(X, Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None], "full"))
    bound = (n / CHUNK + CHUNK) * 2.0**-53
    assert sums.counts == [n]
    for f in range(2):
        assert abs(sums.sums[0, f] - fsum(X[:, f])) <= bound * abs(X[:, f]).sum()
        for g in range(2):
            terms = X[:, f] * X[:, g]
            assert abs(sums.products[0, f, g] - fsum(terms)) <= bound * abs(terms).sum()


def test_the_log_joint_over_several_chunks_is_that_of_each_point():
    mixture = fit_mixture(blobs(), 3, random_state=0)
    X = np.tile(blobs(), (2, 1))
    assert len(X) > CHUNK
    whole = log_joint(X, mixture)
    np.testing.assert_allclose(whole[: len(blobs())], log_joint(blobs(), mixture), rtol=1e-12)
    np.testing.assert_array_equal(whole[CHUNK - 1], log_joint(X[:CHUNK], mixture)[-1])


def test_improve_gives_the_same_mixture_as_single_checked_steps():
    X = blobs()
    first = step = fit_mixture(X, 3, random_state=0, max_iter=1)
    for _ in range(4):
        sums = sum_responsibilities(X, step)
        step = maximise(step.means, step.covariances, "full", sums, 1e-6)
    assert improve(X, first, 1e-6, max_iter=4, tol=0) == step


@pytest.mark.parametrize("max_iter", [1, 5])
def test_improve_refuses_a_covariance_that_collapses(max_iter):
    X = np.column_stack([np.arange(20.0), np.zeros(20)])
    mixture = Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None], "full")
    with pytest.raises(MessageError, match="covariances must be positive definite"):
        improve(X, mixture, 0.0, max_iter, tol=0)


@pytest.mark.parametrize("function", [sum_responsibilities, log_joint])
def test_points_have_the_features_of_the_mixture(function):
    mixture = Mixture(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)), "full")
    with pytest.raises(ValueError, match="X must have the 1 features of the mixture, got 50"):
        function(np.zeros((2000, 50)), mixture)
