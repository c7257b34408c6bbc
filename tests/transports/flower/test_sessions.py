"""What protects the rows outlives a session, which the server names as it likes."""

import logging

import numpy as np
import pytest

from fedlib import PPDBDC, FederatedKMeans, FederatedPipeline
from fedlib.clustering.density.bounded_cells import CountWithNoise
from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.clustering.density.ppdbdc import DrawRepresentatives, PPDBDCClient
from fedlib.core.protocol import TooFewClients, run
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.protection.privacy import Privacy
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.tables.pipeline import PipelineClient
from fedlib.tables.pipeline.messages import Preprocess
from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app

X = np.random.default_rng(0).random((60, 2))


def ask(grid, *requests):
    """Send requests in a session of their own; return the replies to the last one."""

    def flow():
        replies = None
        for request in requests:
            replies = yield request
        return list(replies.values())

    return run(flow(), Flower(grid, 1))


def grid(make_client):
    return LocalFlowerGrid(client_app(make_client), n_nodes=1)


def guarded(policy):
    return GuardedClient(HorizontalDBSCANClient(X), Policy.from_dict(policy), "horizontal-dbscan")


def test_rounds_are_counted_over_sessions():
    nodes = grid(lambda context: guarded({"max_rounds": 2}))
    assert len(ask(nodes, CountCells(0.5))) == len(ask(nodes, CountCells(0.6))) == 1
    with pytest.raises(ValueError, match="every client is passive or declined"):
        ask(nodes, CountCells(0.7))


def test_a_declined_request_is_remembered():
    nodes = grid(lambda context: guarded({"min_clients": 2}))
    for _ in range(2):
        with pytest.raises(ValueError, match="every client is passive or declined"):
            ask(nodes, CountCells(0.5))


def test_groups_are_counted_over_sessions():
    """Two grids, shifted against each other by the cell size, differ by a few rows."""
    nodes = grid(lambda context: guarded({"min_count": 3}))
    sizes = [1.0 - i / 50 for i in range(20)]
    answered = [ask(nodes, CountCells(size))[0].counts.sum() for size in sizes]
    assert answered[0] == 60
    assert min(answered) < 60


def test_a_budget_needs_a_memory(tmp_path, caplog):
    request = CountWithNoise(1.0, np.array([0, 0]), np.array([2, 2]), Privacy(rho=0.01))
    budget = {"epsilon": 1.0, "delta": 1e-6}
    with caplog.at_level(logging.ERROR), pytest.raises(TooFewClients, match="ValueError at Count"):
        ask(grid(lambda context: guarded({"budget": budget})), request)
    assert "a budget on Flower needs a memory" in caplog.text
    path = tmp_path / "policy.toml"
    path.write_text("budget = { epsilon = 1, delta = 1e-6 }")
    client = HorizontalDBSCANClient(X)
    nodes = grid(lambda context: GuardedClient(client, Policy.read(path), "horizontal-dbscan"))
    privacy = Privacy(rho=0.02)  # more than half of the budget
    request = CountWithNoise(1.0, np.array([0, 0]), np.array([2, 2]), privacy)
    assert len(ask(nodes, request)) == 1
    with pytest.raises(ValueError, match="every client is passive or declined"):
        ask(nodes, request)


def test_a_second_secure_run_is_refused():
    """The identifiers of its sums were used before, and the server begins the sessions."""
    identities = simulated_identities(["0", "1", "2"])

    def make(context):
        name = str(context.node_config["partition-id"])
        return SecureClient(FederatedKMeans.client_class(X[int(name) :: 3]), identities[name])

    nodes = LocalFlowerGrid(client_app(make), n_nodes=3)
    options = {"method": "lloyd", "init": X[:2], "max_iter": 2, "bounds": [[0, 0], [1, 1]]}
    estimator = FederatedKMeans(2, **options, secure=True)
    estimator.fit(Flower(nodes, 3))
    with pytest.raises(TooFewClients, match="RepeatedStep at AdvertiseKeys"):
        estimator.fit(Flower(nodes, 3))


def test_the_noise_of_ppdbdc_is_drawn_once():
    request = DrawRepresentatives(0.2, None, 1.0, "centred", 5)
    nodes = grid(lambda context: PPDBDCClient(X))
    first, second = (ask(nodes, request)[0].representatives for _ in range(2))
    assert first.tolist() == second.tolist()
    with pytest.raises(TooFewClients, match="AnotherDraw"):
        ask(nodes, DrawRepresentatives(0.3, None, 1.0, "centred", 5))


def test_other_scales_do_not_draw_again():
    """A pipeline that scales the points in another way would average out the noise as well."""
    one, zero = np.ones(2), np.zeros(2, np.int64)
    kinds = np.zeros(2, np.uint8)
    rules = [
        Preprocess((), kinds, (), "fill", one, 0 * one, scale * one, zero, (), "ignore")
        for scale in (1.0, 2.0)
    ]
    request = DrawRepresentatives(0.2, None, 1.0, "centred", 5)
    nodes = grid(lambda context: PipelineClient(X, PPDBDCClient))
    first = ask(nodes, rules[0], request)[0].representatives
    assert ask(nodes, rules[0], request)[0].representatives.tolist() == first.tolist()
    with pytest.raises(TooFewClients, match="AnotherDraw"):
        ask(nodes, rules[1], request)


def test_an_honest_second_session_gives_the_same_labels():
    nodes = grid(lambda context: PipelineClient(X, PPDBDCClient))
    models = [
        FederatedPipeline(PPDBDC(0.2, 4), scale="minmax").fit(Flower(nodes, 1)) for _ in range(2)
    ]
    weights = [model.estimator_.weights_.tolist() for model in models]
    assert weights[0] == weights[1]
