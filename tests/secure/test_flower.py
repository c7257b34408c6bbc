"""Secure sums on Flower, whose clients are rebuilt for every message."""

import pytest

pytest.importorskip("flwr")

import numpy as np

from fedlib import ApproximateDBSCAN, FederatedKMeans
from fedlib.secure import SecureClient, simulated_identities
from fedlib.transports.flower import FIN, GridInProcess, client_app

PARTS = [[[0.0], [1.0], [9.0]], [[2.0], [8.0]], [[7.5], [10.0]]]


@pytest.mark.parametrize(
    ("secure", "plain", "attribute"),
    [
        (
            FederatedKMeans(2, method="lloyd", init=[[0.0], [9.0]], secure=True),
            FederatedKMeans(2, method="lloyd", init=[[0.0], [9.0]]),
            "cluster_centers_",
        ),
        (
            ApproximateDBSCAN(1.5, 3, 0.5, secure=True, grid_bounds=[[0.0], [99.0]], max_cells=60),
            ApproximateDBSCAN(1.5, 3, 0.5),
            "cell_labels_",
        ),
    ],
    ids=["kmeans", "approximate-dbscan"],
)
def test_the_result_is_that_of_the_run_in_process(secure, plain, attribute):
    identities = simulated_identities(["0", "1", "2"])

    def make(context):
        name = str(context.node_config["partition-id"])
        return SecureClient(secure.client_class(PARTS[int(name)]), identities[name])

    result = FIN(secure, n_clients=3).start(GridInProcess(client_app(make), n_nodes=3))
    expected = plain.fit(PARTS)
    assert np.array_equal(getattr(result.model, attribute), getattr(expected, attribute))
    assert result.ledger.lost == {}
