"""The first mixture: given by the user, or fitted by a client."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fedlib import FederatedGaussianMixture
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.messages import FitMixture, SumResponsibilities
from fedlib.core.messages import decode
from fedlib.testing import Recorder

from .points import blobs, divided, each_method


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights_init", [0.5, 0.6]),
        ("weights_init", [1.0]),
        ("weights_init", [-1.0, 2.0]),
        ("means_init", [0.0, 1.0]),
        ("means_init", [[0.0], [np.nan]]),
        ("means_init", [[0.0]] * 3),
        ("precisions_init", np.ones((2, 2))),
        ("precisions_init", [np.eye(2), -np.eye(2)]),
        ("precisions_init", np.ones((2, 2, 3))),
    ],
)
def test_bad_starts(name, value):
    """They are rejected by name before the first message."""
    with pytest.raises(ValueError, match=name):
        FederatedGaussianMixture(2, **{name: value}).protocol()


@pytest.mark.parametrize(
    "start",
    [
        {"means_init": [[0.0], [1.0]]},
        {"precisions_init": [np.eye(3), np.eye(3)]},
        {"covariance_type": "diag", "precisions_init": np.ones((2, 1))},
    ],
)
def test_a_start_with_another_number_of_features(start):
    with pytest.raises(ValueError, match=r"the 2 features of the clients' points, got \d"):
        FederatedGaussianMixture(2, **start).fit(divided(blobs()))


@pytest.mark.filterwarnings("ignore:.*(have no points|are equal)")
def test_the_given_part_of_a_start_is_used(relay):
    transport = relay({"A": GaussianMixtureClient(blobs())})
    means = [[50.0, 50.0], [0.0, 0.0]]
    FederatedGaussianMixture(2, "em", means_init=means, random_state=0).fit(transport)
    request = decode(transport.exchanges[1].request_bytes["A"], SumResponsibilities)
    assert request.means.tolist() == means
    second = decode(transport.exchanges[2].request_bytes["A"], SumResponsibilities)
    assert second.means.tolist() == means
    weights = [0.25, 0.75]
    model = FederatedGaussianMixture(2, "em", weights_init=weights, random_state=0)
    model.fit(other := relay({"A": GaussianMixtureClient(blobs())}))
    request = decode(other.exchanges[1].request_bytes["A"], FitMixture)
    assert request.weights.tolist() == weights
    assert request.means.size == request.covariances.size == 0


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("weighted", [False, True])
def test_given_means_are_completed_by_the_points_of_all_clients(covariance_type, weighted):
    """Also if each client has points of one kind only, as in scikit-learn's fit of all points."""
    rng = np.random.default_rng(0)
    kinds = [rng.normal(centre, 1, (150, 2)) for centre in (0.0, 6.0, 12.0)]
    means, X = [[0.0, 0.0], [6.0, 6.0], [12.0, 12.0]], np.vstack(kinds)
    options = {"covariance_type": covariance_type, "means_init": means, "random_state": 0}
    best = GaussianMixture(3, **options).fit(X).score(X)
    parts = [(kind, np.ones(len(kind))) for kind in kinds] if weighted else kinds
    model = FederatedGaussianMixture(3, **options).fit(parts)
    assert model.score(X) == pytest.approx(best, abs=1e-3)
    assert "FitMixture" not in {entry.message for entry in model.ledger_}


def test_averages_that_get_worse_are_reported():
    """Each client improves all components on its own points, and the averages fit no points."""
    rng = np.random.default_rng(0)
    kinds = [rng.normal(centre, 1, (150, 2)) for centre in (0.0, 6.0)]
    model = FederatedGaussianMixture(2, "average", means_init=[[0.0, 0.0], [6.0, 6.0]])
    with pytest.warns(ConvergenceWarning, match="less likely than the mixture before.*method='em'"):
        model.fit(kinds)


@pytest.mark.filterwarnings("ignore:.*have fewer than")
@each_method
def test_the_client_that_starts_has_enough_points(method):
    X = blobs()
    parts = [X[:0], X[:1], np.zeros((50, 2)), X]
    for seed in range(5):
        model = FederatedGaussianMixture(3, method, random_state=seed).fit(parts)
        receivers = [entry.receiver for entry in model.ledger_ if entry.message == "FitMixture"]
        assert receivers == ["3"]


def likelihoods_by_start(X, n_init, method):
    """Return the last likelihood of each of some starts, which single runs repeat in order."""
    rng = np.random.RandomState(0)
    options = {"max_rounds": 3, "tol": 0, "random_state": rng}
    models = [FederatedGaussianMixture(3, method, **options).fit(X) for _ in range(n_init)]
    return [model.lower_bound_ for model in models]


@each_method
def test_the_best_of_several_starts_is_the_result(method):
    """The starts follow each other in the random numbers, and clients introduce themselves once."""
    parts = divided(blobs(apart=1.0))
    found = likelihoods_by_start(parts, 4, method)
    assert len(set(found)) > 1
    options = {"max_rounds": 3, "tol": 0, "random_state": 0}
    for n_init in (1, 2, 4):
        model = FederatedGaussianMixture(3, method, n_init=n_init, **options).fit(parts)
        assert model.lower_bound_ == max(found[:n_init])
        conversation = model.ledger_.conversation()
        assert conversation.count("IntroducePoints") == conversation.count("AssignComponents") == 1
        assert conversation.count("FitMixture") == n_init
        assert len(model.lower_bounds_) == 3


@each_method
def test_starts_before_a_loss_do_not_count(method):
    """Their likelihoods are of other points, and their mixtures of the lost client's points."""
    parts = dict(zip("ABC", divided(blobs(apart=1.0)), strict=True))
    request = {"em": "SumResponsibilities", "average": "ImproveMixture"}[method]
    options = {"max_rounds": 2, "tol": 0, "random_state": 0}
    seen = []

    def fail(asked, reply):
        seen.append(type(decode(asked)).__name__)
        return None if seen.count(request) == 3 else reply

    clients = {name: GaussianMixtureClient(X) for name, X in parts.items()}
    recorder = Recorder(clients, {"C": fail})
    model = FederatedGaussianMixture(3, method, n_init=2, **options).fit(recorder, min_clients=2)
    assert list(model.ledger_.lost) == ["C"]
    rounds = [exchange for exchange in recorder.exchanges if "A" in exchange.replies]
    last = [one for one in rounds if type(one.requests["A"]).__name__ == request][-1]
    total = sum(reply.log_likelihood for reply in last.replies.values())
    n_points = sum(reply.n_points for reply in last.replies.values())
    assert sorted(last.replies) == ["A", "B"]
    assert model.lower_bound_ == pytest.approx(total / n_points)


def test_several_starts_need_starts_that_are_drawn():
    start = {
        "weights_init": [0.5, 0.5],
        "means_init": [[0.0], [1.0]],
        "precisions_init": [np.eye(1)] * 2,
    }
    limits = {"bounds": [[0.0], [1.0]]}
    for options, message in [
        (start, "n_init must be 1 with weights_init.*all starts would be equal; got 3"),
        (start | limits | {"secure": True}, "needs n_init=1, because all starts would be equal"),
        (limits | {"epsilon": 1.0}, "needs n_init=1, because runs with noise have no likelihoods"),
    ]:
        with pytest.raises(ValueError, match=message):
            FederatedGaussianMixture(2, n_init=3, **options).protocol()
