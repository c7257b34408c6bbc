"""Invalid and extreme messages."""

import msgspec
import numpy as np
import pytest
from sklearn.base import clone

from fedlib import FederatedGaussianMixture
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.messages import (
    ImprovedMixture,
    ImproveMixture,
    Mixture,
    ResponsibilitySums,
    SumResponsibilities,
)
from fedlib.core.messages import MessageError
from fedlib.core.protocol import TooFewClients

from .points import EYE, blobs, clients_with, draw_start, float64

MEANS = [[0.0, 0.0], [1.0, 1.0]]
# Fields that make a valid reply invalid, by the reply's class.
INVALID = {
    "ResponsibilitySums": {
        "a negative count": {"counts": float64(-1.0, 5.0)},
        "counts of more points": {"counts": float64(3.0, 3.0)},
        "NaN": {"sums": float64([np.nan, 0], [0, 0])},
        "infinite": {"products": float64(np.inf * np.ones((2, 2)), EYE)},
        "another number of features": {"sums": float64([0.0], [0.0])},
        "one component": {
            "counts": float64(4.0),
            "sums": float64([0, 0]),
            "products": float64(EYE),
        },
        "products of another type": {"products": float64(EYE)},
        "a negative variance": {"products": float64(-EYE, EYE)},
        "not positive definite": {"products": float64([[1, 3], [3, 1]], EYE)},
        "sums larger than the products allow": {"sums": float64([9, 9], [0, 0])},
        "a sum without points": {"counts": float64(0.0, 4.0), "sums": float64([1, 0], [0, 0])},
        "a mean out of range": {
            "sums": float64([2e100, 0], [0, 0]),
            "products": float64(1e201 * EYE, EYE),
        },
        "a negative number of points": {"n_points": -4},
        "a likelihood of NaN": {"log_likelihood": float("nan")},
    },
    "ImprovedMixture": {
        "weights that sum to 2": {"weights": float64(1.0, 1.0)},
        "a negative weight": {"weights": float64(-0.5, 1.5)},
        "NaN": {"means": float64([np.nan, 0], [0, 0])},
        "not positive definite": {"covariances": float64([[1, 2], [2, 1]], EYE)},
        "an asymmetric covariance": {"covariances": float64([[1, 0.5], [0, 1]], EYE)},
        "singular": {"covariances": float64(np.zeros((2, 2)), EYE)},
        "another covariance type": {
            "covariance_type": "diag",
            "covariances": float64([[1, 1]], [[1, 1]]),
        },
        "another number of features": {
            "means": float64([0], [1]),
            "covariances": float64([[1]], [[1]]),
        },
        "one component": {
            "weights": float64(1.0),
            "means": float64([0, 0]),
            "covariances": float64(EYE),
        },
        "a negative number of points": {"n_points": -1},
        "improved on no points": {"n_points": 0, "improved": True},
    },
    "LocalMixture": {
        "NaN": {"means": float64([np.nan, 0], [0, 0])},
        "another number of features": {
            "means": float64([0], [1]),
            "covariances": float64([[1]], [[1]]),
        },
    },
}


@pytest.mark.parametrize(
    ("reply_name", "name"), [(reply, name) for reply, fields in INVALID.items() for name in fields]
)
def test_a_client_with_an_invalid_reply_is_lost(relay, reply_name, name):
    """The run continues, and its result is that of the other clients."""
    X = blobs()
    parts = [X[:80], X[80:160], X[160:164]]
    altered = []

    def alter(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] != reply_name:
            return reply
        altered.append(fields | INVALID[reply_name][name])
        return msgspec.msgpack.encode(altered[-1])

    clients = clients_with(GaussianMixtureClient(parts[2]), parts)
    method = "average" if reply_name == "ImprovedMixture" else "em"
    model = FederatedGaussianMixture(2, method, tol=0, max_rounds=2, random_state=0)
    if reply_name == "LocalMixture":
        with pytest.raises(TooFewClients, match="InvalidReply at FitMixture"):
            model.fit(relay(clients, dict.fromkeys("ABC", alter)), min_clients=1)
        return
    model.set_params(**draw_start(X, 2, "full", np.random.default_rng(0)))
    model.fit(relay(clients, {"C": alter}), min_clients=2)
    assert model.ledger_.lost["C"].startswith("InvalidReply at ")
    assert len(altered) == 1
    assert np.array_equal(model.means_, clone(model).fit(parts[:2]).means_)


def test_replies_are_valid_before_they_are_altered():
    """The replies contain the fields that `INVALID` replaces."""
    mixture = np.array([0.5, 0.5]), np.array(MEANS), np.array([EYE, EYE]), "full"
    sums = np.array([2.0, 2.0]), np.zeros((2, 2)), np.array([EYE, EYE])
    SumResponsibilities(*mixture).accept(ResponsibilitySums(4, -1.0, *sums))
    reply = ImprovedMixture(*mixture, 4, -1.0, True)
    ImproveMixture(*mixture, 1e-6, 10, 1e-3).accept(reply)


def test_responsibilities_that_underflow_are_accepted():
    """Their sums have few digits, so that a variance of 0 can be slightly negative."""
    client = GaussianMixtureClient(blobs(30, apart=0))
    for apart in np.linspace(34, 42, 400):
        means = np.array([[0.0, 0.0], [apart, apart / 7]])
        request = SumResponsibilities(np.array([0.5, 0.5]), means, np.array([EYE, EYE]), "full")
        request.accept(client.handle(request))


def test_the_largest_valid_numbers_do_not_overflow(relay):
    """They make the mixture useless but do not end the run."""

    def alter(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] != "ResponsibilitySums":
            return reply
        extreme = {
            "n_points": 2**40,
            "counts": float64(2.0**39, 2.0**39),
            "sums": float64([1e110, 0], [-1e110, 0]),
            "products": float64(1e240 * EYE, 1e240 * EYE),
            "log_likelihood": -1e200,
        }
        return msgspec.msgpack.encode(fields | extreme)

    X = blobs()
    start = draw_start(X, 2, "full", np.random.default_rng(0))
    clients = {"A": GaussianMixtureClient(X), "B": GaussianMixtureClient(X[:9])}
    model = FederatedGaussianMixture(2, "em", tol=0, max_rounds=4, **start)
    model.fit(relay(clients, {"B": alter}), min_clients=1)
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covariances_).all()


def test_a_client_with_one_point_discloses_it():
    """Its sums divided by its counts are the point, as the ledger states."""
    mixture = np.array([0.5, 0.5]), np.array(MEANS), np.array([EYE, EYE]), "full"
    reply = GaussianMixtureClient([[7.0, 8.0]]).handle(SumResponsibilities(*mixture))
    assert (reply.sums[0] / reply.counts[0] + MEANS[0]).tolist() == pytest.approx([7, 8])
    assert "for a single point, the point itself" in reply.discloses


def test_invalid_mixtures():
    for wrong in (
        {"weights": np.array([0.5, 0.6])},
        {"covariances": np.array([-EYE, EYE])},
        {"covariances": np.array([EYE])},
    ):
        parts = {
            "weights": np.array([0.5, 0.5]),
            "means": np.array(MEANS),
            "covariances": np.array([EYE, EYE]),
            "covariance_type": "full",
        }
        Mixture(**parts)
        with pytest.raises(MessageError, match="Mixture"):
            Mixture(**parts | wrong)
