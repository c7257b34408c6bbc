"""The client and the estimator: predictions, transports, failures and conventions."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.mixture import GaussianMixture

from fedlib import FederatedGaussianMixture
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.em import NOTHING_GIVEN
from fedlib.clustering.mixtures.messages import (
    FitMixture,
    ImproveMixture,
    IntroducePoints,
    LocalMixture,
    SumResponsibilities,
)
from fedlib.core.in_process import InProcess
from fedlib.core.messages import decode, encode
from fedlib.core.protocol import serve

from .points import (
    blobs,
    clients_with,
    divided,
    draw_start,
    each_covariance_type,
    each_method,
)


@each_covariance_type
@each_method
def test_to_sklearn(covariance_type, method):
    X = blobs(d=3)
    model = FederatedGaussianMixture(
        3, method, covariance_type=covariance_type, random_state=0
    ).fit(divided(X))
    theirs = model.to_sklearn()
    assert (theirs.predict(X) == model.predict(X)).all()
    np.testing.assert_allclose(theirs.predict_proba(X), model.predict_proba(X))
    if covariance_type in ("full", "tied"):
        product, one = theirs.precisions_ @ theirs.covariances_, np.eye(3)
    else:
        product, one = theirs.precisions_ * theirs.covariances_, 1
    np.testing.assert_allclose(product, np.broadcast_to(one, product.shape), atol=1e-9)
    # The likelihood at which scikit-learn would continue is the score.
    again = GaussianMixture(
        3,
        covariance_type=covariance_type,
        weights_init=model.weights_,
        means_init=model.means_,
        precisions_init=theirs.precisions_,
        max_iter=1,
        tol=1e9,
    )
    with pytest.warns(ConvergenceWarning):
        assert model.score(X) == pytest.approx(again.fit(X).lower_bound_)
    n_parameters = {"full": 18, "tied": 6, "diag": 9, "spherical": 3}[covariance_type] + 9 + 2
    assert model.aic(X) == pytest.approx(2 * n_parameters - 2 * 240 * model.score(X))
    assert model.bic(X) == pytest.approx(np.log(240) * n_parameters - 2 * 240 * model.score(X))
    theirs.means_[:] = 0
    assert model.means_.any()


class RecordingInProcess(InProcess):
    """A transport that keeps the bytes of all requests and replies."""

    def __init__(self, clients, n_jobs):
        super().__init__(clients, n_jobs)
        self.exchanges = []

    def exchange(self, requests):
        replies = super().exchange(requests)
        self.exchanges.append((dict(requests), replies))
        return replies


@each_method
def test_the_bytes_do_not_depend_on_the_number_of_threads(method):
    parts = divided(blobs(2000), 5)
    sent = []
    for n_jobs in (1, 4):
        clients = {str(i): GaussianMixtureClient(X) for i, X in enumerate(parts)}
        transport = RecordingInProcess(clients, n_jobs)
        FederatedGaussianMixture(3, method, random_state=1).fit(transport)
        sent.append(transport.exchanges)
    assert sent[0] == sent[1]


def test_the_convergence_warning():
    """With tol=0 there is no warning. Otherwise it names the line that calls `fit`."""
    parts = divided(blobs())
    model = FederatedGaussianMixture(3, "em", tol=0, max_rounds=2, random_state=0).fit(parts)
    assert not model.converged_
    with pytest.warns(ConvergenceWarning, match="tol=1e-09 within max_rounds=2") as caught:
        model.set_params(tol=1e-9).fit(parts)
    assert caught[0].filename == __file__


@each_method
def test_passive_clients(method):
    """Passive clients contribute nothing and receive labels."""
    parts = divided(blobs())
    model = FederatedGaussianMixture(3, method, random_state=0).fit(parts, passive=[1])
    wanted = FederatedGaussianMixture(3, method, random_state=0).fit([parts[0], parts[2]])
    assert np.array_equal(model.means_, wanted.means_)
    assert (model.labels_[1] == model.predict(parts[1])).all()
    with pytest.raises(ValueError, match="every client is passive"):
        model.fit(parts, passive=[0, 1, 2])


@each_method
def test_clients_can_be_rebuilt(method, reborn):
    parts = divided(blobs())
    transport = reborn(GaussianMixtureClient, dict(zip("ABC", parts, strict=True)))
    model = FederatedGaussianMixture(3, method, random_state=0).fit(transport)
    wanted = FederatedGaussianMixture(3, method, random_state=0).fit(parts)
    assert np.array_equal(model.means_, wanted.means_)
    for client, labels in zip(transport.members.values(), wanted.labels_, strict=True):
        assert (client.state.labels == labels).all()


class Leaving(GaussianMixtureClient):
    """A client that answers a number of requests of a class and fails at the next."""

    def __init__(self, X, at, after=0):
        super().__init__(X)
        self.at, self.after = at, after

    def answer(self, request):
        if isinstance(request, self.at):
            self.after -= 1
            if self.after < 0:
                raise ConnectionError
        return super().answer(request)


@pytest.mark.parametrize(
    ("method", "at"), [("em", SumResponsibilities), ("average", ImproveMixture)]
)
def test_a_client_leaves_between_rounds(method, at):
    """The rounds continue with the other clients' points from the last mixture."""
    parts = divided(blobs())
    start = draw_start(blobs(), 3, "full", np.random.default_rng(0))
    clients = clients_with(Leaving(parts[2], at, after=2), parts)
    estimator = FederatedGaussianMixture(3, method, max_rounds=5, tol=0, **start)
    model = clone(estimator).fit(InProcess(clients), min_clients=2)
    assert model.ledger_.lost == {"C": f"ConnectionError at {at.__name__}, step 4"}
    two = clone(estimator).set_params(max_rounds=2).fit(parts)
    then = {
        "weights_init": two.weights_,
        "means_init": two.means_,
        "precisions_init": two.to_sklearn().precisions_,
    }
    rest = clone(estimator).set_params(max_rounds=3, **then).fit(parts[:2])
    np.testing.assert_allclose(model.means_, rest.means_, rtol=1e-9)
    with pytest.raises(ConnectionError, match="2 of 3 clients remain"):
        estimator.fit(InProcess(clients_with(Leaving(parts[2], at), parts)))


def test_rounds_stop_only_with_the_same_clients():
    """With this tol any two rounds stop the run, unless a client left between them."""
    parts = divided(blobs())
    for after, n_rounds in ((9, 2), (1, 3)):
        last = Leaving(parts[2], SumResponsibilities, after)
        model = FederatedGaussianMixture(3, "em", tol=1e9, random_state=0)
        model.fit(InProcess(clients_with(last, parts)), min_clients=2)
        assert model.n_rounds_ == n_rounds


def test_another_client_fits_the_first_mixture_when_one_fails():
    X = blobs()
    clients = {name: Leaving(X, FitMixture) for name in "AB"} | {"C": GaussianMixtureClient(X)}
    for seed in range(4):
        model = FederatedGaussianMixture(3, "em", random_state=seed)
        model.fit(InProcess(clients), min_clients=1)
        assert set(model.ledger_.lost) <= {"A", "B"}
        receivers = [entry.receiver for entry in model.ledger_ if entry.message == "FitMixture"]
        assert receivers[-1] == "C"
        assert model.converged_


def test_the_labels_of_a_lost_part():
    """The labels of a lost part are None, the others are there."""
    X = blobs()
    start = draw_start(X, 2, "full", np.random.default_rng(0))
    model = FederatedGaussianMixture(2, "em", **start).fit([X, X, [[9e99, 0]]], min_clients=1)
    assert model.labels_[2] is None
    assert len(model.labels_[0]) == len(X)
    assert list(model.ledger_.lost) == ["2"]


def test_clients_that_do_not_fit_together(relay):
    parts = {"A": blobs(), "B": blobs(d=3)}
    with pytest.raises(ValueError, match="number of features: 2 at '0'; 3 at '1'"):
        FederatedGaussianMixture(2).fit(list(parts.values()))
    clients = {name: GaussianMixtureClient(X) for name, X in parts.items()}
    with pytest.raises(ValueError, match="number of features: 2 at 'A'; 3 at 'B'"):
        FederatedGaussianMixture(2).fit(relay(clients))
    named = [pd.DataFrame(blobs(), columns=list(names)) for names in ("xy", "yx")]
    clients = {name: GaussianMixtureClient(X) for name, X in zip("AB", named, strict=True)}
    with pytest.raises(ValueError, match="the order differs: 'x' is column 2 instead of 1 at 'B'"):
        FederatedGaussianMixture(2).fit(relay(clients))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_components", 0),
        ("n_components", 1.5),
        ("method", "fedavg"),
        ("covariance_type", "round"),
        ("reg_covar", -1e-9),
        ("reg_covar", np.inf),
        ("max_rounds", 0),
        ("tol", -1.0),
        ("max_local_iter", 0),
        ("random_state", "seed"),
    ],
)
def test_bad_parameters(name, value):
    """They are rejected by name before the first message."""
    parameters = {"n_components": 2} | {name: value}
    with pytest.raises(ValueError, match=name):
        FederatedGaussianMixture(**parameters).protocol()


def test_random_state():
    parts = divided(blobs(apart=1.0))
    models = [FederatedGaussianMixture(3, random_state=s).fit(parts) for s in (1, 1, 2)]
    assert np.array_equal(models[0].means_, models[1].means_)
    assert not np.array_equal(models[0].means_, models[2].means_)


def test_it_is_an_estimator_of_scikit_learn():
    model = FederatedGaussianMixture(2, "average", tol=0.1)
    assert clone(model).get_params() == model.get_params()
    assert re.search(r"method='average', n_components=2", repr(model))
    parts = [part.copy() for part in divided(blobs())]
    before = [part.copy() for part in parts]
    model.fit(parts)
    assert all(map(np.array_equal, parts, before))


def test_a_client_keeps_no_state_except_labels():
    client = GaussianMixtureClient(blobs())
    for request in (IntroducePoints(2), FitMixture(2, 2, "full", 1e-6, 0, *NOTHING_GIVEN)):
        reply = decode(serve(client, encode(request), print))
        assert client.state is None
    assert isinstance(reply, LocalMixture)


# The model ----------------------------------------------------------------------------------------


def test_a_parameter_changed_after_fit_does_not_change_predict():
    X = blobs()
    model = FederatedGaussianMixture(3, "em", random_state=0).fit(divided(X))
    labels, shares = model.predict(X), model.predict_proba(X)
    model.set_params(n_components=2, covariance_type="diag", reg_covar=9.0, tol=9.0, max_rounds=1)
    assert np.array_equal(model.predict(X), labels)
    assert np.array_equal(model.predict_proba(X), shares)
    assert model.to_sklearn().get_params()["tol"] == 1e-3


@each_covariance_type
def test_the_model_has_all_fitted_attributes(covariance_type):
    """An estimator that only has the model predicts the same. It does not warn."""
    X = blobs()
    model = FederatedGaussianMixture(
        3, "em", covariance_type=covariance_type, max_rounds=2, random_state=0
    )
    with pytest.warns(ConvergenceWarning):
        model.fit(divided(X))
    loaded = FederatedGaussianMixture(1, tol=1e-9)
    loaded._set_model(model.model_)
    assert set(vars(model)) - set(vars(loaded)) == {"labels_", "ledger_"}
    assert np.array_equal(loaded.predict(X), model.predict(X))
    assert loaded.score(X) == model.score(X)
    assert loaded.to_sklearn().get_params() == model.to_sklearn().get_params()
    assert model.model_.n_features == model.n_features_in_ == 2


def test_predict_checks_its_points():
    model = FederatedGaussianMixture(2, random_state=0)
    for method in (model.predict, model.predict_proba, model.score):
        with pytest.raises(NotFittedError):
            method([[0.0, 0.0]])
    model.fit(divided(blobs()))
    with pytest.raises(ValueError, match="X must have the 2 features of the mixture, got 3"):
        model.predict(np.zeros((1, 3)))
    for method in (model.predict, model.predict_proba, model.score):
        with pytest.raises(ValueError, match="features"):
            method(np.zeros((1, 1)))


@each_covariance_type
def test_score_samples_and_sample_are_those_of_scikit_learn(covariance_type):
    X = blobs()
    model = FederatedGaussianMixture(3, "em", covariance_type=covariance_type, random_state=0)
    pooled = model.fit(divided(X)).to_sklearn()
    assert model.score_samples(X).tobytes() == pooled.score_samples(X).tobytes()
    np.testing.assert_allclose(model.score_samples(X).mean(), model.score(X))
    assert model.score_samples(X[:0]).shape == (0,)
    points, components = model.sample(200, random_state=1)
    pooled.random_state = 1
    expected, of_which = pooled.sample(200)
    assert points.tobytes() == expected.tobytes()
    assert components.tolist() == of_which.tolist()
    assert not np.array_equal(model.sample(5)[0], model.sample(5)[0])
    with pytest.raises(ValueError, match="n_samples"):
        model.sample(0)


def test_components_without_points_and_equal_components_give_a_warning():
    X = [[0.0], [1.0], [2.0], [3.0]]
    start = {"weights_init": [0.5, 0.5], "precisions_init": np.ones((2, 1, 1))}
    far = FederatedGaussianMixture(2, "em", means_init=[[1.0], [900.0]], **start)
    with pytest.warns(ConvergenceWarning, match=r"the components \[1\] have no points"):
        far.fit([X])
    equal = FederatedGaussianMixture(2, "em", means_init=[[1.0], [1.0]], **start)
    with pytest.warns(ConvergenceWarning, match="the components 0 and 1 are equal"):
        equal.fit([X])
