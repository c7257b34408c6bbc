"""Secure sums on Flower, whose clients are rebuilt for every message."""

import pytest

pytest.importorskip("flwr")

from fedlib import FederatedKMeans, FederatedXGBRegressor
from fedlib.boosting.client import RegressionClient
from fedlib.kmeans import FederatedKMeansClient
from fedlib.secure import SecureClient, simulated_identities
from fedlib.transports.flower import FIN, GridInProcess, client_app


def test_the_result_is_that_of_the_run_in_process():
    parts = [[[0.0], [1.0], [9.0]], [[2.0], [8.0]], [[7.5], [10.0]]]
    identities = simulated_identities(["0", "1", "2"])

    def make(context):
        name = str(context.node_config["partition-id"])
        return SecureClient(FederatedKMeansClient(parts[int(name)]), identities[name])

    estimator = FederatedKMeans(2, method="lloyd", init=[[0.0], [9.0]], secure=True)
    result = FIN(estimator, n_clients=3).start(GridInProcess(client_app(make), n_nodes=3))
    expected = FederatedKMeans(2, method="lloyd", init=[[0.0], [9.0]]).fit(parts)
    assert result.model.cluster_centers_.tolist() == expected.cluster_centers_.tolist()
    assert result.ledger.lost == {}


def test_boosting_rebuilds_its_clients_in_the_middle_of_a_tree():
    parts = [([[0.0], [1.0], [9.0]], [1, 1, 5]), ([[2.0], [8.0]], [2, 5]), ([[7.5]], [4])]
    identities = simulated_identities(["0", "1", "2"])

    def make(context):
        name = str(context.node_config["partition-id"])
        return SecureClient(RegressionClient(parts[int(name)]), identities[name])

    trees = {"n_trees": 2, "max_depth": 2, "max_bin": 10, "feature_bounds": [[0.0], [10.0]]}
    estimator = FederatedXGBRegressor(**trees, secure=True)
    result = FIN(estimator, n_clients=3).start(GridInProcess(client_app(make), n_nodes=3))
    expected = FederatedXGBRegressor(**trees).fit(parts)
    points = [[x] for x in range(10)]
    assert result.model.predict(points).tolist() == expected.predict(points).tolist()
    assert result.ledger.lost == {}
