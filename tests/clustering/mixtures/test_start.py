"""The first mixture: given by the user, or fitted by a client."""

import numpy as np
import pytest

from fedlib import FederatedGaussianMixture
from fedlib.clustering.mixtures.client import GaussianMixtureClient
from fedlib.clustering.mixtures.messages import FitMixture
from fedlib.core.messages import decode

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
    request = decode(transport.exchanges[1].request_bytes["A"], FitMixture)
    assert request.means.tolist() == means
    assert request.weights.size == request.covariances.size == 0


@pytest.mark.filterwarnings("ignore:.*have fewer than")
@each_method
def test_the_client_that_starts_has_enough_points(method):
    X = blobs()
    parts = [X[:0], X[:1], np.zeros((50, 2)), X]
    for seed in range(5):
        model = FederatedGaussianMixture(3, method, random_state=seed).fit(parts)
        receivers = [entry.receiver for entry in model.ledger_ if entry.message == "FitMixture"]
        assert receivers == ["3"]
