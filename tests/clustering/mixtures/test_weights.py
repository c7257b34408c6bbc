"""Gaussian mixtures of rows that have weights."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib import FederatedGaussianMixture, FederatedPipeline, GaussianMixtureSelection, Schema
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.em import (
    NOTHING_GIVEN,
    fit_mixture,
    fit_start,
    improve,
    sum_responsibilities,
)
from fedlib.clustering.mixtures.messages import (
    ImproveWeightedMixture,
    Mixture,
    WeightedImprovedMixture,
    WeightedResponsibilitySums,
    parameters,
)
from fedlib.core.messages import decode, encode
from fedlib.testing import Recorder

RNG = np.random.default_rng(0)
X = np.concatenate([centre + RNG.normal(size=(40, 2)) for centre in (0.0, 4.0, 8.0)])
X = X[RNG.permutation(len(X))]
WEIGHTS = RNG.integers(0, 4, len(X)).astype(float)
START = {
    "weights_init": np.full(3, 1 / 3),
    "means_init": [[0.0, 0.0], [4.0, 4.0], [8.0, 8.0]],
    "precisions_init": np.tile(np.eye(2), (3, 1, 1)),
}
BOUNDS = [[-5.0, -5.0], [15.0, 15.0]]
ROUNDS = {"max_rounds": 4, "tol": 0.0}
MASKED = {"secure": True, "bounds": BOUNDS}
KINDS = ["full", "tied", "diag", "spherical"]


def split(X, weights=WEIGHTS):
    return list(zip(np.array_split(X, 3), np.array_split(weights, 3), strict=True))


def repeated(X=X, weights=WEIGHTS):
    return np.repeat(X, weights.astype(int), axis=0)


def assert_equal(model, wanted):
    for name in ("weights_", "means_", "covariances_", "lower_bounds_"):
        found, expected = getattr(model, name), getattr(wanted, name)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "protection"), [("em", {}), ("average", {}), ("em", MASKED)], ids=str
)
def test_integer_weights_count_as_many_equal_rows(method, protection):
    limit = {"max_weight": 3.0} if protection else {}
    options = START | ROUNDS | protection
    model = FederatedGaussianMixture(3, method, **options, **limit).fit(split(X))
    parts = [repeated(*part) for part in split(X)]
    assert_equal(model, FederatedGaussianMixture(3, method, **options).fit(parts))


@given(st.sampled_from(KINDS), st.integers(0, 2**16))
def test_the_computations_on_one_set_of_points(kind, seed):
    """The start from k-means, EM, and the sums: weighted points as repeated ones."""
    weights = np.random.default_rng(seed).integers(1, 4, len(X)).astype(float)
    many = repeated(X, weights)
    first = Mixture(np.full(2, 0.5), X[:2], np.eye(2)[None].repeat(2, 0), "full")
    found, wanted = sum_responsibilities(X, first, weights), sum_responsibilities(many, first)
    assert found.n_points == wanted.n_points
    assert found.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-12)
    for name in ("counts", "sums", "products"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=1e-9, atol=1e-9
        )
    improved = improve(X, first, 1e-6, 5, 0.0, weights), improve(many, first, 1e-6, 5, 0.0)
    for one, other in zip(*map(parameters, improved), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    one = fit_mixture(X, 1, kind, sample_weight=weights)  # k-means draws nothing
    for a, b in zip(parameters(one), parameters(fit_mixture(many, 1, kind)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_a_start_that_would_be_singular_has_the_variances_of_weighted_points():
    line = np.array([[0.0, 1.0], [2.0, 1.0], [6.0, 1.0]])
    weights = np.array([1.0, 2.0, 1.0])
    found = fit_start(line, 1, "diag", 0.0, 0, NOTHING_GIVEN, weights)
    wanted = fit_start(repeated(line, weights), 1, "diag", 0.0, 0, NOTHING_GIVEN)
    np.testing.assert_allclose(found.covariances, wanted.covariances, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, START, START | MASKED | {"max_weight": 2.0}])
def test_rows_of_weight_0_get_a_label_and_shape_nothing(options):
    far = np.array([[90.0, 90.0]])
    with_far = [(np.concatenate([part, far]), np.append(w, 0.0)) for part, w in split(X)]
    model, wanted = (
        FederatedGaussianMixture(3, "em", random_state=0, **ROUNDS, **options).fit(parts)
        for parts in (with_far, split(X))
    )
    assert_equal(model, wanted)
    assert model.labels_[0][-1] == wanted.predict(far)[0]


@pytest.mark.parametrize("method", ["em", "average"])
def test_weights_of_1_give_the_mixture_without_weights(method):
    options = {"random_state": 0, "max_rounds": 3, "tol": 0.0}
    model = FederatedGaussianMixture(3, method, **options).fit(split(X, np.ones(len(X))))
    wanted = FederatedGaussianMixture(3, method, **options).fit(np.array_split(X, 3))
    assert_equal(model, wanted)


def test_weights_are_clipped_to_the_largest_one():
    options = START | ROUNDS | MASKED
    model = FederatedGaussianMixture(3, "em", **options, max_weight=1.5).fit(split(X))
    clipped = split(X, np.minimum(WEIGHTS, 1.5))
    assert_equal(model, FederatedGaussianMixture(3, "em", **START, **ROUNDS).fit(clipped))


@pytest.mark.usefixtures("fixed_noise")
def test_noisy_sums_of_weights_are_near_those_without_noise():
    noise = {"epsilon": 1e6, "delta": 1e-6, "bounds": BOUNDS, "max_weight": 3.0}
    noisy = FederatedGaussianMixture(3, "em", **START, **ROUNDS, **noise).fit(split(X))
    wanted = FederatedGaussianMixture(3, "em", **START, **ROUNDS).fit(split(X))
    np.testing.assert_allclose(noisy.means_, wanted.means_, atol=0.2)


def test_protected_sums_need_the_largest_weight():
    for options in (MASKED, {"epsilon": 1.0, "bounds": BOUNDS}):
        with pytest.raises(ValueError, match="points have weights.*set max_weight"):
            FederatedGaussianMixture(3, "em", **START, **ROUNDS, **options).fit(split(X))
    with pytest.raises(ValueError, match="max_weight needs secure=True or epsilon"):
        FederatedGaussianMixture(3, max_weight=2.0).fit(split(X))


def test_the_schema_names_the_weights_and_the_largest_one():
    limits = {"minimum": -5, "maximum": 15, "required": True}
    fields = [{"name": name, "type": "number", "constraints": limits} for name in ("a", "b")]
    weight = {"name": "w", "type": "number", "fedlib": {"role": "weight"}}
    weight["constraints"] = {"minimum": 0, "maximum": 3, "required": True}
    schema = Schema({"schema": {"fields": [*fields, weight]}})
    tables = [pd.DataFrame(part, columns=["a", "b"]).assign(w=w) for part, w in split(X)]
    wanted = FederatedGaussianMixture(3, "em", **START, **ROUNDS).fit(split(X))
    for secure in (False, True):
        model = FederatedGaussianMixture(3, "em", **START, **ROUNDS, schema=schema, secure=secure)
        assert_equal(model.fit(tables), wanted)
        pipeline = FederatedPipeline(
            FederatedGaussianMixture(3, "em", **START, **ROUNDS, secure=secure),
            scale=None,
            schema=schema,
        )
        assert_equal(pipeline.fit(tables).estimator_, wanted)


@pytest.mark.parametrize("method", ["em", "average"])
def test_a_client_that_lies_about_its_weights_is_excluded(method):
    parts = zip("ABC", split(X), strict=True)
    clients = {name: GaussianMixtureClient(part) for name, part in parts}
    seen = []

    def lie(request, reply):
        message = decode(reply)
        if not isinstance(message, WeightedResponsibilitySums | WeightedImprovedMixture):
            return reply
        seen.append(message)
        changed = {name: getattr(message, name) for name in message.__struct_fields__}
        changed["n_points"] *= 1 if len(seen) == 1 else 2
        return encode(type(message)(**changed))

    options = {"random_state": 1, "max_rounds": 3, "tol": 0.0}
    model = FederatedGaussianMixture(2, method, **options)
    model.fit(Recorder(clients, {"C": lie}), min_clients=2)
    assert list(model.ledger_.lost) == ["C"]


def test_an_improved_mixture_of_light_points_is_accepted():
    """The sum of their weights is below the number of components."""
    light = [(part, weights / 1000) for part, weights in split(X)]
    model = FederatedGaussianMixture(3, "average", **START, **ROUNDS).fit(light)
    wanted = FederatedGaussianMixture(3, "average", **START, **ROUNDS).fit(split(X))
    np.testing.assert_allclose(model.means_, wanted.means_, rtol=1e-10)
    mixture = Mixture(np.ones(1), np.zeros((1, 2)), np.eye(2)[None], "full")
    request = ImproveWeightedMixture(*parameters(mixture), "full", 0.0, 1, 0.0)
    client = GaussianMixtureClient((X[:1], [1.0]))
    assert not client.handle(request).improved


def test_without_rows_of_a_weight_there_is_no_mixture():
    for options in ({}, MASKED | {"max_weight": 1.0}):
        with pytest.raises(ValueError, match="no points|distinct points"):
            FederatedGaussianMixture(3, "em", **START, **options).fit(split(X, np.zeros(len(X))))


def test_the_selection_of_components_takes_no_weights():
    """Its criteria need the number of rows."""
    with pytest.raises(ValueError, match=r"parts\[0\]"):
        GaussianMixtureSelection(2).fit(split(X))
