"""A fit that continues the fitted mixture."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fedlib import FederatedGaussianMixture
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.protection.estimator import mask_clients
from fedlib.sites import models
from fedlib.testing import Recorder

from .points import blobs, divided, draw_start, each_covariance_type, each_method


def state(model):
    """Return the bytes of the fitted mixture."""
    return [array.tobytes() for array in (model.weights_, model.means_, model.covariances_)]


@each_method
def test_rounds_of_two_fits_are_those_of_one(method):
    """The first fit chooses among its starts; the next one has no start and asks for none."""
    parts = divided(blobs(apart=1.0))
    options = {"tol": 0, "random_state": 0, "warm_start": True}
    model = FederatedGaussianMixture(3, method, max_rounds=2, n_init=2, **options).fit(parts)
    assert model.ledger_.conversation().count("FitMixture") == 2
    first = model.lower_bounds_
    model.set_params(max_rounds=3).fit(parts)
    assert "FitMixture" not in model.ledger_.conversation()
    assert len(model.lower_bounds_) == model.n_rounds_ == 3
    long = {"max_rounds": 5, "n_init": 2} | options
    whole = FederatedGaussianMixture(3, method, **long).fit(parts)
    assert first + model.lower_bounds_ == whole.lower_bounds_
    assert state(model) == state(whole)


@each_covariance_type
def test_further_rounds_are_those_of_sklearn(covariance_type):
    X = blobs(apart=2.0)
    start = draw_start(X, 3, covariance_type, np.random.default_rng(0))
    options = {"covariance_type": covariance_type, "tol": 0, "warm_start": True} | start
    model = FederatedGaussianMixture(3, max_rounds=4, **options)
    reference = GaussianMixture(3, max_iter=4, **options)
    for _ in range(3):
        model.fit(divided(X))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            reference.fit(X)
        for name in ("weights_", "means_", "covariances_"):
            expected = getattr(reference, name)
            assert getattr(model, name) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert model.lower_bound_ == pytest.approx(reference.lower_bound_, rel=1e-9)
        continued = model.to_sklearn()
        assert continued.lower_bounds_ == model.lower_bounds_


def test_without_it_each_fit_begins_again():
    parts = divided(blobs())
    model = FederatedGaussianMixture(3, max_rounds=2, tol=0, random_state=0)
    assert state(model.fit(parts)) == state(model.fit(parts))
    model.set_params(warm_start=True)
    assert state(model) != state(model.fit(parts))


def test_masked_sums_continue_a_mixture_without_a_given_start():
    parts, limits = divided(blobs()), [[-99.0, -99.0], [99.0, 99.0]]
    options = {"max_rounds": 2, "tol": 0, "random_state": 0, "warm_start": True}
    model = FederatedGaussianMixture(3, **options).fit(parts)
    masked = FederatedGaussianMixture(3, **options).fit(parts)
    masked.set_params(secure=True, bounds=limits).fit(parts)
    model.fit(parts)
    assert masked.means_ == pytest.approx(model.means_, rel=1e-9)
    with pytest.raises(ValueError, match="needs method='em', weights_init, means_init and"):
        FederatedGaussianMixture(3, secure=True, bounds=limits, warm_start=True).protocol()


def test_saved_and_recorded_fits_continue(tmp_path):
    """Also with a journal, which records a seed in a copy of the estimator."""
    parts = divided(blobs())
    model = FederatedGaussianMixture(3, max_rounds=2, tol=0, warm_start=True).fit(parts)
    models.save(model, tmp_path / "model.json")
    loaded = models.load(tmp_path / "model.json")
    loaded.fit(parts, journal=tmp_path / "run.journal")
    assert state(loaded) == state(model.fit(parts))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 2}, "n_components must be 3, .* or warm_start must be False; got 2"),
        ({"covariance_type": "diag"}, "covariance_type must be 'full', .*; got 'diag'"),
        (
            {"epsilon": 1.0, "bounds": [[0.0, 0.0], [1.0, 1.0]]},
            "epsilon needs warm_start=False, because the fitted mixture may depend on rows",
        ),
    ],
)
def test_another_kind_of_mixture_is_refused_and_the_fitted_one_stays(parameters, message):
    parts = divided(blobs())
    model = FederatedGaussianMixture(3, max_rounds=2, tol=0, random_state=0, warm_start=True)
    before = state(model.fit(parts))
    with pytest.raises(ValueError, match=message):
        model.set_params(**parameters).fit(parts)
    assert state(model) == before


def test_other_columns_are_refused():
    model = FederatedGaussianMixture(3, max_rounds=2, tol=0, random_state=0, warm_start=True)
    before = state(model.fit(divided(blobs())))
    with pytest.raises(ValueError, match="must have the 3 features"):
        model.fit(divided(blobs(d=3)))
    assert state(model) == before


NAMED = {"max_rounds": 2, "tol": 0, "random_state": 0, "warm_start": True}


def named(columns):
    """Return parts whose columns have names."""
    return [pd.DataFrame(part, columns=list(columns)) for part in divided(blobs())]


def sites(parts):
    """Return clients with these parts, as at sites, where nobody puts columns in order."""
    return {name: GaussianMixtureClient(part) for name, part in zip("ABC", parts, strict=True)}


def test_columns_of_other_names_are_refused():
    model = FederatedGaussianMixture(3, **NAMED).fit(named("ab"))
    before = state(model)
    with pytest.raises(ValueError, match="'b' is missing, and 'c' is additional"):
        model.fit(named("ac"))
    with pytest.raises(ValueError, match="columns must be those of the model: 'b' is missing"):
        model.fit(Recorder(sites(named("ac"))))
    with pytest.raises(ValueError, match="columns must be those of the model: the order differs"):
        model.fit(Recorder(sites(named("ba"))))
    assert state(model) == before


def test_columns_in_another_order_are_put_in_order_in_one_process():
    model, same = (FederatedGaussianMixture(3, **NAMED).fit(named("ab")) for _ in range(2))
    model.fit([part[["b", "a"]] for part in named("ab")])
    assert state(model) == state(same.fit(named("ab")))


def test_masked_sums_refuse_columns_of_other_names():
    model = FederatedGaussianMixture(3, **NAMED).fit(named("ab"))
    model.set_params(secure=True, bounds=[[-99.0, -99.0], [99.0, 99.0]])
    with pytest.raises(ValueError, match="'b' is missing, and 'c' is additional"):
        model.fit(Recorder(mask_clients(sites(named("ac")))))
    model.set_params(bounds={"a": (-99, 99), "c": (-99, 99)})
    with pytest.raises(ValueError, match="columns must be those of the model: 'b' is missing"):
        model.protocol()
