"""The kernels of mixtures against SciPy and sums of whole arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedlib.kernels.mixtures import (
    CHUNK,
    Densities,
    Moments,
    add_expected,
    add_weighted,
    log_joint,
    maximise_full,
)


@st.composite
def problems(draw):
    """Draw points around 0, a mixture, and its weights, means and covariances."""
    n = draw(st.one_of(st.integers(0, 20), st.integers(CHUNK - 9, 2 * CHUNK + 9)))
    k, d = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    factors = rng.normal(size=(k, d, d))
    weights, means = rng.dirichlet(np.ones(k)), rng.normal(size=(k, d))
    covariances = factors @ factors.mT + np.eye(d)  # well-conditioned
    whitening = np.linalg.inv(np.linalg.cholesky(covariances))
    log_factors = np.log(weights) - 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1]
    return rng.normal(size=(n, d)) * 2, Densities(means, whitening, log_factors), covariances


def zeros(k, d):
    return Moments(np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d)))


def joint_of_scipy(X, densities, covariances):
    weights = densities.log_factors + 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1]
    pairs = zip(densities.means, covariances, strict=True)
    logs = [multivariate_normal(m, c).logpdf(X).reshape(len(X)) for m, c in pairs]
    return np.column_stack(logs) + weights


def moments_of_arrays(X, centres, weights):
    """Return the same sums from whole arrays."""
    differences = X[:, np.newaxis] - centres
    products = np.einsum("nk,nkf,nkg->kfg", weights, differences, differences)
    return Moments(weights.sum(axis=0), np.einsum("nk,nkf->kf", weights, differences), products)


def assert_same_sums(found, wanted, scale):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13 * scale)


@given(problems())
def test_log_joint_is_that_of_scipy(problem):
    X, densities, covariances = problem
    joint = np.empty((len(X), len(covariances)))
    log_joint(X, densities, joint)
    np.testing.assert_allclose(joint, joint_of_scipy(X, densities, covariances), rtol=1e-10)


@given(problems())
def test_expected_moments(problem):
    X, densities, covariances = problem
    moments = zeros(*densities.means.shape)
    log_likelihood = add_expected(X, None, densities, moments)
    joint = joint_of_scipy(X, densities, covariances)
    logs = logsumexp(joint, axis=1)
    np.testing.assert_allclose(log_likelihood, logs.sum(), rtol=1e-10)
    wanted = moments_of_arrays(X, densities.means, np.exp(joint - logs[:, np.newaxis]))
    assert_same_sums(moments, wanted, (X**2).sum() + len(X))


@given(problems())
def test_weighted_moments_are_added(problem):
    X, densities, _ = problem
    k, d = densities.means.shape
    weights = np.random.default_rng(len(X)).random((len(X), k))
    moments = zeros(k, d)
    for _ in range(2):
        add_weighted(X, densities.means, weights, moments)
    wanted = moments_of_arrays(X, densities.means, 2 * weights)
    assert_same_sums(moments, wanted, (X**2).sum() + len(X))


@given(problems())
def test_full_covariances_have_the_bits_of_numpy(problem):
    X, densities, _ = problem
    moments = zeros(*densities.means.shape)
    add_expected(X, None, densities, moments)
    n = moments.counts + 1e-15
    shift = moments.sums / n[:, np.newaxis]
    covariances = np.empty(moments.products.shape)
    maximise_full(moments.products, shift, n, 0.5, covariances)
    scatter = shift[:, :, np.newaxis] * shift[:, np.newaxis] * n[:, np.newaxis, np.newaxis]
    wanted = (moments.products - scatter) / n[:, np.newaxis, np.newaxis]
    wanted = (wanted + wanted.mT) / 2 + 0.5 * np.eye(len(covariances[0]))
    np.testing.assert_array_equal(covariances, wanted)
    np.testing.assert_array_equal(covariances, covariances.mT)


def test_a_point_has_the_same_bits_wherever_it_stands():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(CHUNK + 13, 6))
    densities = Densities(rng.normal(size=(3, 6)), np.tril(rng.normal(size=(3, 6, 6))), np.zeros(3))
    whole, single = np.empty((len(X), 3)), np.empty((1, 3))
    log_joint(X, densities, whole)
    for i in range(len(X)):
        log_joint(X[i : i + 1], densities, single)
        assert single[0].tolist() == whole[i].tolist()


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_component_of_weight_zero_has_no_points(weight):
    with np.errstate(divide="ignore"):
        log_factors = np.log([1.0, weight])
    densities = Densities(np.zeros((2, 1)), np.ones((2, 1, 1)), log_factors)
    moments = zeros(2, 1)
    add_expected(np.array([[1.0], [3.0]]), None, densities, moments)
    assert moments.counts.tolist() == ([2.0, 0.0] if weight == 0 else [1.0, 1.0])


def test_densities_of_zero_give_no_number():
    """The caller says that the log-likelihood must be finite."""
    densities = Densities(np.zeros((1, 1)), np.ones((1, 1, 1)), np.array([-np.inf]))
    assert np.isnan(add_expected(np.ones((2, 1)), None, densities, zeros(1, 1)))
