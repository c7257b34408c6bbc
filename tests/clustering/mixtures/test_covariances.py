"""Covariances of the four types."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from fedlib.clustering.mixtures.messages import (
    contract,
    covariance_shape,
    expand,
    positive_definite,
    precisions,
    scatter,
    sklearn_shape,
)

from .points import blobs, each_covariance_type


@each_covariance_type
def test_shapes_and_precisions_are_those_of_scikit_learn(covariance_type):
    X = blobs(d=3)
    theirs = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(X)
    shape = covariance_shape(2, 3, covariance_type)
    ours = theirs.covariances_.reshape(shape)
    assert np.array_equal(sklearn_shape(ours, covariance_type), theirs.covariances_)
    factors, inverses = precisions(ours, covariance_type)
    assert factors.shape == inverses.shape == shape
    np.testing.assert_allclose(
        sklearn_shape(factors, covariance_type), theirs.precisions_cholesky_, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(
        sklearn_shape(inverses, covariance_type), theirs.precisions_, rtol=1e-9, atol=1e-12
    )


@each_covariance_type
def test_contract_undoes_expand(covariance_type):
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(2, 3, 3))
    covariances = contract(factors @ factors.mT, covariance_type)
    assert covariances.shape == covariance_shape(2, 3, covariance_type)
    matrices = expand(covariances, 2, 3, covariance_type)
    assert matrices.shape == (2, 3, 3)
    n_matrices = 2 if covariance_type == "tied" else 1  # the matrices of a tied type are added up
    np.testing.assert_allclose(contract(matrices, covariance_type) / n_matrices, covariances)
    assert positive_definite(covariances, covariance_type)
    assert not positive_definite(-covariances, covariance_type)


@each_covariance_type
def test_scatter_is_the_contracted_outer_product(covariance_type):
    vectors, weights = np.array([[1.0, 2.0], [0.0, 3.0]]), np.array([2.0, 1.0])
    matrices = np.array([[[2.0, 4.0], [4.0, 8.0]], [[0.0, 0.0], [0.0, 9.0]]])
    wanted = contract(matrices, covariance_type)
    assert scatter(vectors, weights, covariance_type).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "matrix", [[[1, 2], [2, 1]], [[1, 0.5], [0, 1]], [[0, 0], [0, 0]], [[1, 0], [0, -1]]]
)
def test_matrices_that_are_not_positive_definite(matrix):
    assert not positive_definite(np.array([matrix], float), "full")
