"""EM on one set of points."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from fedlib.mixtures.covariances import sklearn_shape
from fedlib.mixtures.em import fit_mixture, improve

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


def test_improve_stops_by_tol():
    X = blobs()
    mixture = fit_mixture(X, 3, random_state=0, max_iter=1)
    one = improve(X, mixture, 1e-6, max_iter=1, tol=0)
    far = improve(X, mixture, 1e-6, max_iter=100, tol=1e9)
    assert not np.array_equal(one.means, far.means)
    assert np.array_equal(far.means, improve(X, one, 1e-6, max_iter=1, tol=0).means)
