"""What the pages on performance compare fedlib with computes the same, or only exchanges."""

import numpy as np
import pytest
from sklearn.cluster import DBSCAN

from fedlib import FederatedKMeans
from fedlib.core.in_process import InProcess
from fedlib.core.ledger import Ledger
from fedlib.core.protocol import run
from fedlib.kernels.representatives import cover_greedily

X = np.random.default_rng(0).normal(size=(60, 2))


@pytest.fixture(scope="module")
def peers(modules):
    return modules("study.measuring.peers")


def test_programs_for_lloyd_start_and_end_alike(peers):
    ours = FederatedKMeans(3, method="lloyd", init=X[:3], max_iter=2, tol=0).fit([X])
    programs = peers.lloyd(X, X[:3], 2)
    theirs = programs["scikit-learn"]()
    np.testing.assert_allclose(theirs.cluster_centers_, ours.cluster_centers_)


def test_programs_for_boosting_are_those_that_are_there(peers, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert peers.histogram_boosting(X, X[:, 0] > 0, 5) == {}


def test_matrices_give_the_clusters_of_the_largest_difference(peers):
    found = peers.dbscan_by_matrices(X, 0.4, 4)
    expected = DBSCAN(eps=0.4, min_samples=4, metric="chebyshev").fit(X)
    assert found.labels_.tolist() == expected.labels_.tolist()


def test_representatives_as_defined_cover_all_points(peers):
    chosen = peers.representatives_as_defined(X, 0.8)
    assert (np.linalg.norm(X[:, None] - X[chosen], axis=2) <= 0.8).any(axis=1).all()
    assert len(chosen) <= 2 * len(cover_greedily(X, 0.8, len(X), len(X))[0])


def test_an_exchange_is_a_kilobyte_in_each_direction(modules):
    echo = modules("study.measuring.echo")
    ledger = Ledger()
    run(echo.flow(2), InProcess({"a": echo.EchoClient()}), ledger=ledger)
    assert len(ledger.entries) == 4
    assert all(1024 < entry.bytes < 1100 for entry in ledger.entries)
    echo.exchange(3, 2)


def test_the_pool_calls_each_client_in_each_exchange(peers, monkeypatch):
    calls = []

    class Pool(peers.ThreadPoolExecutor):
        def map(self, function, clients):
            calls.append(list(clients))
            return super().map(function, clients)

    monkeypatch.setattr(peers, "ThreadPoolExecutor", Pool)
    peers.thread_pool(3, 2)
    assert calls == [[0, 1, 2]] * 2


def test_the_memory_of_a_call_is_released_before_the_next(modules):
    peak_bytes = modules("study.shared.timing").peak_bytes
    assert peak_bytes(np.ones, 10**6) >= 8e6
    assert peak_bytes(np.ones, 10) < 1e6
    with pytest.raises(ZeroDivisionError):
        peak_bytes(lambda: 1 / 0)
    assert not modules("tracemalloc").is_tracing()
