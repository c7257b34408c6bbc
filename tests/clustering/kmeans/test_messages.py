"""Invalid and extreme replies."""

import numpy as np
import pytest

from fedlib import FederatedKMeans
from fedlib.clustering.kmeans.estimator import FederatedKMeansClient
from fedlib.clustering.kmeans.messages import (
    MAX_COORDINATE,
    ClusterSums,
    FindCentres,
    GroupMeans,
    LocalCentres,
    SumClusters,
    SummariseGroups,
)
from fedlib.core.in_process import InProcess

from .points import FaultyClient, blobs, each_method, sorted_rows


def sums(shape, value, count):
    return ClusterSums(np.full(shape, value), np.full(shape[:2], count), np.zeros(shape[0]))


INVALID = {
    "more centres than requested": LocalCentres(np.zeros((4, 2)), np.ones(4, np.int64)),
    "more points in groups than points": GroupMeans(
        5, np.zeros(2), np.ones(2), np.zeros((2, 2)), np.full(2, 3)
    ),
    "no weight of a group": GroupMeans(
        9, np.zeros(2), np.ones(2), np.zeros((1, 2)), np.full(1, 3), weight=2.0
    ),
    "weights of groups without weights": GroupMeans(
        9, np.zeros(2), np.ones(2), np.zeros((1, 2)), np.full(1, 3), weights=(2.0,)
    ),
    "groups heavier than all points": GroupMeans(
        9, np.zeros(2), np.ones(2), np.zeros((1, 2)), np.full(1, 3), weight=2.0, weights=(2.1,)
    ),
    "more groups than requested": GroupMeans(
        999, np.zeros(2), np.ones(2), np.zeros((25, 2)), np.full(25, 3)
    ),
    "sums of another number of starts": sums((2, 3, 2), 0.0, 1),
    "sums of another number of features": sums((10, 3, 1), 0.0, 1),
    "sums without points": sums((10, 3, 2), 1.0, 0),
    "sums larger than any coordinate": sums((10, 3, 2), 1e130, 1),
    "different numbers of points per start": ClusterSums(
        np.zeros((10, 3, 2)), np.arange(30).reshape(10, 3), np.zeros(10)
    ),
}
REQUESTS = {LocalCentres: FindCentres, GroupMeans: SummariseGroups, ClusterSums: SumClusters}


@pytest.mark.parametrize("name", INVALID)
def test_a_client_with_an_invalid_reply_is_lost(name):
    reply = INVALID[name]
    request_class = REQUESTS[type(reply)]
    X = blobs()[0]
    clients = {"A": FederatedKMeansClient(X), "B": FaultyClient(X + 1, request_class, 1, reply)}
    method = "one_shot" if request_class is FindCentres else "lloyd"
    model = FederatedKMeans(3, method=method, random_state=0)
    model.fit(InProcess(clients), min_clients=1)
    assert model.ledger_.lost["B"].startswith(f"InvalidReply at {request_class.__name__}")
    np.testing.assert_allclose(model.inertia_, -model.to_sklearn().score(X))


@pytest.mark.parametrize("value", [1e100, 1.01e100])
def test_the_largest_valid_numbers_do_not_overflow(value):
    """The sums and means of these numbers are finite and can be sent.

    Lloyd's iteration excludes the clients, because their sums contradict their descriptions.
    """
    reply = sums((1, 2, 1), value, 1)
    clients = {
        name: FaultyClient([[1.0]], SumClusters, nth, reply)
        for name, nth in zip("ABC", [1, 1, 2], strict=True)
    }
    clients["D"] = FederatedKMeansClient([[0.25], [3.0]])
    model = FederatedKMeans(2, method="lloyd", init=[[0.0], [1.0]])
    model.fit(InProcess(clients), min_clients=1)
    assert [*model.ledger_.lost] == ["A", "B", "C"]
    np.testing.assert_array_equal(sorted_rows(model.cluster_centers_), [[0.25], [3.0]])
    reply = LocalCentres(np.array([[value], [-value]]), np.array([1, 1]))
    clients = {name: FaultyClient([[1.0]], FindCentres, 1, reply) for name in "AB"}
    model = FederatedKMeans(2, method="one_shot", random_state=0).fit(InProcess(clients))
    assert np.isfinite(model.cluster_centers_).all()


@each_method
def test_the_largest_coordinates(method):
    X = MAX_COORDINATE * np.repeat([[-1.0], [1.0]], 8, axis=0)
    model = FederatedKMeans(2, method=method, random_state=0).fit([X, X])
    np.testing.assert_allclose(
        sorted_rows(model.cluster_centers_), [[-MAX_COORDINATE], [MAX_COORDINATE]]
    )
    with pytest.raises(ValueError, match=r"parts\[1\]: the points must lie within ±1e\+100"):
        FederatedKMeans(2, method=method).fit([X, 2 * X])
