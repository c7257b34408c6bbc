"""Secure sums on Flower, whose clients are rebuilt for every message."""

import pytest

pytest.importorskip("flwr")

import numpy as np

from fedlib import ApproximateDBSCAN, FederatedKMeans, FederatedXGBRegressor
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.transports.flower import FIN, LocalFlowerGrid, client_app

PARTS = [[[0.0], [1.0], [9.0]], [[2.0], [8.0]], [[7.5], [10.0]]]
LABELLED = [(X, [x + 1 for (x,) in X]) for X in PARTS]
LLOYD = {"method": "lloyd", "init": [[0.0], [9.0]]}
TREES = {"n_trees": 2, "max_depth": 2, "max_bin": 10, "bounds": [[0.0], [10.0]]}


@pytest.mark.parametrize(
    ("secure", "plain", "attribute"),
    [
        (
            FederatedKMeans(2, **LLOYD, secure=True, bounds=[[0.0], [99.0]]),
            FederatedKMeans(2, **LLOYD),
            "cluster_centers_",
        ),
        (
            ApproximateDBSCAN(1.5, 3, 0.5, secure=True, bounds=[[0.0], [99.0]], max_cells=60),
            ApproximateDBSCAN(1.5, 3, 0.5),
            "cell_labels_",
        ),
        (
            FederatedXGBRegressor(**TREES, secure=True, max_target=16.0),
            FederatedXGBRegressor(**TREES),
            "feature_importances_",
        ),
    ],
    ids=["kmeans", "approximate-dbscan", "xgb-regressor"],
)
def test_the_result_is_that_of_the_run_in_process(secure, plain, attribute):
    identities = simulated_identities(["0", "1", "2"])
    parts = LABELLED if secure.name == "xgb-regressor" else PARTS

    def make(context):
        name = str(context.node_config["partition-id"])
        return SecureClient(secure.client_class(parts[int(name)]), identities[name])

    result = FIN(secure, n_clients=3).start(LocalFlowerGrid(client_app(make), n_nodes=3))
    expected = plain.fit(parts)
    assert np.array_equal(getattr(result.model, attribute), getattr(expected, attribute))
    assert result.ledger.lost == {}
