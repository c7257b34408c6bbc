"""The number of clusters: criteria equal to scikit-learn's on the pooled points, in one run."""

import msgspec
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from fedlib import (
    FederatedGaussianMixture,
    FederatedKMeans,
    GaussianMixtureSelection,
    KMeansSelection,
)
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.core.messages import Declined, decode, encode
from fedlib.core.protocol import TooFewClients
from fedlib.evaluation.selection import GaussianMixtureSelectionClient
from fedlib.sites import models
from fedlib.testing import Recorder

pytestmark = pytest.mark.jit
EXACT = 1e-12  # relative: both sides add the same numbers in another order


def parts(n=90, seed=0):
    """Return three clusters, divided unevenly over the clients A, B and C."""
    rng = np.random.default_rng(seed)
    centres = np.repeat([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], n // 3, axis=0)
    X = rng.permutation(centres + rng.normal(size=(n, 2)))
    return {"A": X[:15], "B": X[15:40], "C": X[40:]}


def kmeans(**options):
    return KMeansSelection(**{"max_clusters": 5, "n_init": 2, "random_state": 0} | options)


def mixture(**options):
    return GaussianMixtureSelection(**{"max_components": 3, "random_state": 0} | options)


def kmeans_clients(data):
    return {name: FederatedKMeansClient(part) for name, part in data.items()}


def mixture_clients(data):
    return {name: GaussianMixtureSelectionClient(part) for name, part in data.items()}


# k-means


def test_the_inertias_of_a_toy():
    """The points 0, 1, 2 and 10, 11, 12 have the mean 6.

    One cluster: 36 + 25 + 16 + 16 + 25 + 36 = 154. Two: 1 + 0 + 1 at each of the means 1 and 11.
    """
    model = kmeans(max_clusters=2).fit([[[0.0], [1.0], [2.0]], [[10.0], [11.0], [12.0]]])
    assert model.to_frame()["inertia"].tolist() == [154.0, 4.0]
    assert model.to_frame().index.tolist() == [1, 2]


def test_inertias_are_those_of_the_pooled_points():
    data = parts()
    X = np.concatenate(list(data.values()))
    model = kmeans().fit(list(data.values()))
    assert model.n_clusters_ == 3
    for k, fitted, inertia in zip(
        model.model_.n_clusters, model.model_.models, model.model_.inertias, strict=True
    ):
        one = FederatedKMeans(k, method="lloyd")
        one._set_model(fitted)
        assert inertia == pytest.approx(-one.to_sklearn().score(X), rel=EXACT)
        assert inertia == pytest.approx(fitted.inertia, rel=EXACT)
    alone = FederatedKMeans(3, method="lloyd", n_init=2, random_state=0).fit(list(data.values()))
    best = model.best_estimator_
    assert best.cluster_centers_.tolist() == alone.cluster_centers_.tolist()
    assert best.get_params() == alone.get_params()
    for mine, others in zip(model.labels_, alone.labels_, strict=True):
        assert mine.tolist() == others.tolist()
    assert model.predict(X).tolist() == np.concatenate(model.labels_).tolist()


def test_the_conversation_of_k_means():
    """The clients fit one model after the other, measure all, and receive the best one."""
    recorder = Recorder(kmeans_clients(parts()))
    model = kmeans(max_clusters=3, min_clusters=2, max_iter=1).fit(recorder)
    names = [type(exchange.requests["A"]).__name__ for exchange in recorder.exchanges]
    fit = ["SummariseGroups", "SumClusters", "SumClusters"]
    assert names == [*fit, *fit, "MeasureInertia", "MeasureInertia", "AssignCentres"]
    sent = recorder.exchanges[-1].requests["A"].centres
    assert sent.tolist() == model.best_estimator_.cluster_centers_.tolist()


# Mixtures


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_criteria_are_those_of_the_pooled_points(covariance_type):
    data = parts()
    X = np.concatenate(list(data.values()))
    options = {"covariance_type": covariance_type, "max_rounds": 20, "tol": 0.0}
    model = mixture(max_components=4, **options).fit(list(data.values()))
    assert model.model_.n_points == len(X)
    for k, fitted, bic, aic in zip(
        model.model_.n_components,
        model.model_.models,
        model.model_.bic,
        model.model_.aic,
        strict=True,
    ):
        one = FederatedGaussianMixture(k, "em", covariance_type=covariance_type)
        one._set_model(fitted)
        assert bic == pytest.approx(one.to_sklearn().bic(X), rel=EXACT)
        assert aic == pytest.approx(one.to_sklearn().aic(X), rel=EXACT)
    assert model.n_components_ == model.to_frame()["BIC"].idxmin()
    alone = FederatedGaussianMixture(model.n_components_, "em", random_state=0, **options)
    alone.fit(list(data.values()))
    assert model.best_estimator_.means_.tolist() == alone.means_.tolist()
    assert model.best_estimator_.get_params() == alone.get_params()
    assert model.predict(X).tolist() == np.concatenate(model.labels_).tolist()


def test_the_criterion_decides():
    data = list(parts().values())
    by_aic = mixture(criterion="aic").fit(data)
    assert by_aic.n_components_ == by_aic.to_frame()["AIC"].idxmin()
    assert by_aic.model_.best == by_aic.model_.aic.argmin()


def test_the_conversation_of_mixtures():
    recorder = Recorder(mixture_clients(parts()))
    mixture(max_components=2, max_rounds=1, tol=0).fit(recorder)
    names = [
        type(next(iter(exchange.requests.values()))).__name__ for exchange in recorder.exchanges
    ]
    fit = ["IntroducePoints", "FitMixture", "SumResponsibilities"]
    assert names == [*fit, *fit, "MeasureLikelihood", "MeasureLikelihood", "AssignComponents"]


def test_mixtures_that_have_not_converged_are_named():
    with pytest.warns(
        ConvergenceWarning, match="with 1, 2 components have not .*max_rounds=1"
    ) as w:
        mixture(max_components=2, max_rounds=1).fit(list(parts().values()))
    assert w[0].filename == __file__


# Both


@pytest.mark.parametrize(
    ("make", "parameters", "message"),
    [
        (kmeans, {"max_clusters": 0}, "'max_clusters' parameter"),
        (kmeans, {"min_clusters": 6}, "min_clusters must be at most max_clusters=5, got 6"),
        (kmeans, {"tol": -1}, "'tol' parameter"),
        (mixture, {"min_components": 4}, "min_components must be at most max_components=3, got 4"),
        (mixture, {"criterion": "knee"}, "'criterion' parameter"),
        (mixture, {"covariance_type": "round"}, "'covariance_type' parameter"),
    ],
)
def test_bad_parameters(make, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(**parameters).protocol()


def test_more_clusters_than_distinct_means():
    with pytest.raises(ValueError, match=r"n_clusters must be in 1\.\.1, .* got 2"):
        kmeans(max_clusters=3).fit([[[1.0]] * 5])
    with pytest.raises(ValueError, match="n_components=3 needs at least 3 distinct points"):
        mixture().fit([[[1.0], [2.0]]])
    with pytest.raises(ValueError, match="the clients have no points"):
        kmeans().fit([np.empty((0, 1))])


@pytest.mark.parametrize("make", [kmeans, mixture])
def test_conventions(make, tmp_path):
    model = make()
    assert clone(model).get_params() == model.get_params()
    for method in (model.to_frame, model.plot):
        with pytest.raises(NotFittedError):
            method()
    with pytest.raises(NotFittedError):
        model.predict([[0.0, 0.0]])
    data = list(parts().values())
    models.save(model.fit(data), tmp_path / "model.json")
    loaded = models.load(tmp_path / "model.json")
    assert loaded.to_frame().equals(model.to_frame())
    assert loaded.predict(data[0]).tolist() == model.predict(data[0]).tolist()


def test_the_figures_mark_the_suggestions():
    data = list(parts().values())
    (ax,) = kmeans().fit(data).plot().axes
    assert [text.get_text() for text in ax.texts] == ["n_clusters = 3"]
    model = mixture().fit(data)
    left, right = model.plot().axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("BIC", "AIC")
    assert left.lines[1].get_ydata()[0] == model.model_.bic.min()


CASES = {
    "k-means": (lambda: kmeans(max_clusters=3), kmeans_clients, "MeasureInertia"),
    "mixture": (lambda: mixture(), mixture_clients, "MeasureLikelihood"),
}


@pytest.mark.parametrize("name", CASES)
def test_all_values_are_of_the_same_clients(name):
    """A is lost at the second measurement, so the others measure all models again."""
    make, clients, measure = CASES[name]
    data, seen = parts(), []

    def fail(request, reply):
        seen.append(type(decode(request)).__name__)
        return None if seen.count(measure) == 2 else reply

    model = make().fit(Recorder(clients(data), {"A": fail}), min_clients=2)
    assert list(model.ledger_.lost) == ["A"]
    rest = np.concatenate([data["B"], data["C"]])
    for i, fitted in enumerate(model.model_.models):
        if name == "k-means":
            one = FederatedKMeans(i + 1)
            one._set_model(fitted)
            expected = -one.to_sklearn().score(rest)
            assert model.model_.inertias[i] == pytest.approx(expected, rel=EXACT)
        else:
            one = FederatedGaussianMixture(i + 1)
            one._set_model(fitted)
            assert model.model_.bic[i] == pytest.approx(one.to_sklearn().bic(rest), rel=EXACT)
    seen.clear()
    with pytest.raises(TooFewClients, match="Lost: 'A'"):
        make().fit(Recorder(clients(data), {"A": fail}))


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_client_is_lost_while_the_models_are_fitted(name, step):
    make, clients, _ = CASES[name]
    seen = []

    def fail(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply

    model = make().fit(Recorder(clients(parts()), {"B": fail}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert len(model.to_frame()) == 3


LIES = {
    "another number of points": {"n_points": 26},
    "an impossible likelihood": {"log_likelihood": 1e6},
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    def tamper(request, reply):
        message = decode(reply)
        if type(message).__name__ != "Likelihood":
            return reply
        return encode(msgspec.structs.replace(message, **LIES[name]))

    data = parts()
    model = mixture().fit(Recorder(mixture_clients(data), {"B": tamper}), min_clients=2)
    assert model.ledger_.lost["B"].startswith("InvalidReply at MeasureLikelihood")
    assert model.model_.n_points == len(data["A"]) + len(data["C"])


def test_a_likelihood_after_declining():
    def decline(request, reply):
        return reply if type(decode(reply)).__name__ == "Likelihood" else encode(Declined())

    recorder = Recorder(mixture_clients(parts()), {"B": decline})
    model = mixture().fit(recorder, min_clients=2)
    assert model.ledger_.lost["B"].startswith("InvalidReply at MeasureLikelihood")


@pytest.mark.parametrize("make", [kmeans, mixture])
def test_a_passive_client_receives_the_suggested_model(make):
    data = list(parts().values())
    model = make().fit(data, passive=[0])
    assert model.predict(data[0]).tolist() == model.labels_[0].tolist()
    assert {e.message for e in model.ledger_ if e.sender == "0"} == {"Declined", "Done"}
