"""Health and metrics: their numbers, and who may read them."""

import httpx
import pytest
from http_helpers import ANSWER, TOKENS, attend, estimator, refused, serve, wait_for
from prometheus_client.parser import text_string_to_metric_families

from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.transports.http import HTTP, digest, new_token


def get(transport, path):
    return httpx.get(transport.url + path, trust_env=False)


def metrics(transport):
    """Return the value of each sample by its name and its labels in alphabetical order."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(get(transport, "/metrics").text)
        for sample in family.samples
    }


def test_the_numbers_of_a_run(points, start):
    with serve("012", monitors=["127.0.0.1"], protocol="horizontal-dbscan") as transport:
        before = metrics(transport)
        assert before["fedlib_clients", "expected"] == 3
        assert before["fedlib_clients", "waiting"] == before["fedlib_clients_present",] == 0
        assert before["fedlib_step",] == before["fedlib_step_seconds_count",] == 0
        assert get(transport, "/health").json() == {"status": "running", "step": 0}
        clients = {str(i): HorizontalDBSCANClient(X) for i, X in enumerate(points)}
        last = {"2": clients.pop("2")}
        ends = attend(start, transport, clients)
        wait_for(lambda: metrics(transport)["fedlib_clients_present",] == 2)
        assert metrics(transport)["fedlib_clients", "waiting"] == 2
        ends += attend(start, transport, last)
        ledger = estimator().fit(transport).ledger_
        sent = sum(entry.bytes for entry in ledger if entry.sender == "server")
        after = metrics(transport)
        assert after["fedlib_step",] == after["fedlib_step_seconds_count",] == 2
        assert 0 < after["fedlib_step_seconds_sum",] < ANSWER
        assert after["fedlib_message_bytes_total", "to_clients"] == sent
        assert after["fedlib_message_bytes_total", "from_clients"] == ledger.bytes - sent
        assert after["fedlib_run_info", "", "horizontal-dbscan"] == 1
        transport.finish()
        assert metrics(transport)["fedlib_run_info", "finished", "horizontal-dbscan"] == 1
        health = get(transport, "/health")
        assert (health.status_code, health.json()["status"]) == (200, "finished")
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 3


def test_a_stopped_run_is_not_healthy():
    with HTTP({"a": "0" * 64}, "127.0.0.1:0", monitors=["127.0.0.0/8"]) as transport:
        transport.finish("stopped")
        health = get(transport, "/health")
        assert (health.status_code, health.json()["status"]) == (503, "stopped")


@pytest.mark.parametrize("monitors", [[], ["10.0.0.0/8", "::1", "127.0.0.2"]])
def test_nobody_else_may_read_them(monitors):
    """With a token neither, and the answer is that to a path that does not exist."""
    token = new_token()
    with HTTP({"a": digest(token)}, "127.0.0.1:0", monitors=monitors) as transport:
        for path in ("/health", "/metrics", "/no-such-path"):
            for headers in ({}, {"Authorization": f"Bearer {token}"}):
                answer = httpx.get(transport.url + path, headers=headers, trust_env=False)
                assert refused(answer, 404)
                assert answer.json() == {"error": "Not Found"}


def test_they_contain_no_secret(points, start):
    with serve("0", monitors=["127.0.0.1"]) as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        estimator().fit(transport)
        shown = get(transport, "/metrics").text + get(transport, "/health").text
        for secret in (transport.run, TOKENS["0"], digest(TOKENS["0"])):
            assert secret not in shown
    assert end.result(ANSWER) == "finished"


def test_a_monitor_must_be_an_address():
    with pytest.raises(ValueError, match="monitors must be addresses such as 127.0.0.1"):
        HTTP({"a": "0" * 64}, "127.0.0.1:0", monitors=["localhost"])
