"""Test the helpers of the pages that run protocols: transports, times, failing clients."""

import numpy as np
import pytest

from fedlib import FederatedKMeans
from fedlib.core.in_process import InProcess
from fedlib.core.messages import encode
from fedlib.core.protocol import TooFewClients, run
from fedlib.testing import Recorder

PARTS = [np.array([[0.0], [1.0], [10.0]]), np.array([[0.5], [9.0], [11.0]])]


def make(i):
    return FederatedKMeans.client_class(PARTS[i])


def model(**options):
    start = np.array([[0.0], [10.0]])
    return FederatedKMeans(2, method="lloyd", init=start, max_iter=3, **options)


def test_transports_carry_the_same_run(modules):
    pytest.importorskip("flwr")
    transports = modules("study.running.transports")
    expected = transports.in_process(model(), make, 2)
    for carry in (transports.over_http, transports.on_grid):
        fitted = carry(model(), make, 2)
        assert fitted.ledger_.entries == expected.ledger_.entries
        assert transports.content(fitted) == transports.content(expected)
    assert transports.round_trips(expected) == expected.ledger_.entries[-1].step


def test_losing_loses_replies_to_one_request(modules):
    transports, median = modules("study.running.transports"), modules("study.running.median")
    numbers = {name: median.NumberClient(1.0) for name in "abc"}

    def total():
        replies = yield median.SendNumber()
        return sum(reply.value for reply in replies.values())

    assert run(total(), transports.Losing(numbers, median.Halve, 2), min_clients=1) == 3
    lost = transports.Losing(numbers, median.SendNumber, 2)
    assert run(total(), lost, min_clients=1) == 1


def test_secured_clients_give_the_plain_result(modules):
    transports = modules("study.running.transports")
    clients = {str(i): make(i % 2) for i in range(4)}
    plain = model().fit(InProcess(clients))
    secure = model(secure=True, bounds=[[0.0], [12.0]]).fit(InProcess(transports.secured(clients)))
    assert np.allclose(plain.cluster_centers_, secure.cluster_centers_)


def test_leaving_clients_are_lost(modules):
    fin_threads, median = modules("study.running.fin_threads"), modules("study.running.median")

    def echo():
        reply = b""
        while True:
            reply = yield reply

    leaving = median.leaving(echo(), 2)
    next(leaving)
    assert [leaving.send(b"1"), leaving.send(b"2")] == [b"1", b"2"]
    with pytest.raises(ConnectionError):
        leaving.send(b"3")

    def ask_twice():
        yield median.SendNumber()
        replies = yield median.SendNumber()
        return [reply.value for reply in replies.values()]

    members = {"a": median.NumberClient(1.0), "b": median.Leaving(median.NumberClient(2.0), 2)}
    assert fin_threads.outcome_of(ask_twice(), Recorder(members)) == "a result: [1.0, 2.0]"
    members["b"] = median.Leaving(median.NumberClient(2.0), 1)
    outcome = fin_threads.outcome_of(ask_twice(), Recorder(members))
    assert outcome.startswith(TooFewClients.__name__)


def test_arrival_orders_the_replies(modules):
    median = modules("study.running.median")
    transport = median.Arrival({name: median.NumberClient(1.0) for name in "abc"}, "cab")
    requests = dict.fromkeys("abc", encode(median.SendNumber()))
    assert list(transport.exchange(requests)) == list("cab")


def test_source_has_no_docstring(modules):
    study, timing = modules("study"), modules("study.shared.timing")
    shown = study.source(timing.fastest).data
    assert shown.splitlines()[1] == "def fastest(work, *arguments, **options):"
    assert '"""' not in shown
    assert timing.fastest(sum, [1, 2], n_repeats=2) >= 0


@pytest.mark.parametrize("name", ["vertical-dbscan", "xgboost", "ppdbdc", "kmeans"])
def test_protocols_fit_what_is_dealt(modules, name):
    every, data = modules("study.running.all_protocols"), modules("fedlib").datasets.load("moons")
    parts = every.deal(name, data, 2, 0)
    clients = {str(i): every.client(name, parts, i) for i in range(2)}
    protocol = modules("fedlib.core.registry").protocols()[name]
    protocol(**every.parameters(0)[name]).fit(InProcess(clients))


def test_replica_and_strangers(modules):
    replica = modules("study.clustering.m_replica")
    strangers = modules("study.clustering.m_strangers")
    sites = {"a": (PARTS[0], np.array([0, 0, 1])), "b": (PARTS[1], np.array([0, 1, 1]))}
    with strangers.listeners() as counted, replica.programs(sites, 2.0, 2) as (server, _):
        assert counted["sockets"] == 3
        no_rows = np.empty((0, 1)), np.empty(0, int)
        with strangers.Failing("c", *no_rows, 2.0) as failing:
            failing.connect(server)
            outcome = strangers.in_words(replica.get(server, "start"))
        assert outcome == "500 Internal Server Error"
