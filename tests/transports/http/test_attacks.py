"""Malformed calls, large bodies and silent callers do not harm a run."""

import socket
import time
import tracemalloc
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from http_helpers import (
    ANSWER,
    TOKENS,
    Slow,
    address,
    attend,
    caller,
    estimator,
    refused,
    serve,
    session,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlib.clustering.density.horizontal import CellCounts, HorizontalDBSCANClient
from fedlib.core.ledger import Ledger
from fedlib.core.messages import MessageError, decode, encode
from fedlib.core.protocol import run
from fedlib.transports.http import new_token, service
from fedlib.transports.http.session import MAX_CALLS
from fedlib.transports.http.wire import NUMBER, PROCESS


def is_message(data):
    try:
        decode(data)
    except MessageError:
        return False
    return True


VALID = encode(CellCounts(np.array([[0, 0]]), np.array([3])))
BODIES = st.one_of(
    st.binary(max_size=200),
    st.integers(0, len(VALID) - 1).map(lambda n: VALID[:n]),
    st.tuples(st.integers(0, len(VALID) - 1), st.binary(min_size=1, max_size=4)).map(
        lambda change: VALID[: change[0]] + change[1] + VALID[change[0] + len(change[1]) :]
    ),
).filter(lambda body: not is_message(body))
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=80).map(str.strip)


def is_another_number(text):
    """Return whether a header's value is not the number of the first request."""
    try:
        return int(text) != 1
    except ValueError:
        return True


def examples(few, many):
    """Run a test with a few examples by default, and with many for `make test-liars`."""
    values = [few, pytest.param(many, marks=pytest.mark.liars)]
    return pytest.mark.parametrize("n_examples", values)


NUMBERS = st.sampled_from(["0", "2", "-1", ""]) | VALUES.filter(is_another_number)


@examples(200, 2000)
def test_malformed_calls_do_not_harm_a_run(n_examples, points, start, monkeypatch):
    monkeypatch.setattr(service, "HOLD", 0.01)  # for heartbeats
    here = estimator().fit(points[:2])
    clients = {name: Slow(X) for name, X in zip("01", points[:2], strict=True)}
    clients["1"].go.set()
    seen = set()
    with serve("01", gone_after=10) as transport:
        ends = attend(start, transport, clients)
        model = start(estimator().fit, transport)
        assert clients["0"].working.wait(ANSWER)
        process = session(transport).process
        link = caller(transport)
        tokens = st.sampled_from([f"Bearer {TOKENS['0']}"] * 3 + [f"Bearer {new_token()}", ""])
        processes = st.sampled_from([process] * 3 + ["stranger", ""])
        paths = st.sampled_from(["/reply"] * 5 + ["/join", "/request", "/heartbeat"])

        @settings(
            max_examples=n_examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(paths, tokens | VALUES, processes | VALUES, NUMBERS, BODIES)
        def call(path, token, sender, number, body):
            given = {"Authorization": token, PROCESS: sender, NUMBER: number}
            headers = {name: value.encode("latin-1") for name, value in given.items()}
            method = "GET" if path == "/request" else "POST"
            response = link.request(method, path, content=body, headers=headers)
            seen.add((path, response.status_code))
            if response.status_code != 200:
                assert response.status_code in {400, 401, 409, 413}
                assert refused(response, response.status_code)
            else:  # only the process itself could have made the call
                assert (token, sender) == (f"Bearer {TOKENS['0']}", process)
                assert path != "/reply"

        with link:
            call()
        assert {code for path, code in seen if path == "/reply"} == {400, 401, 409}
        clients["0"].go.set()
        fitted = model.result(ANSWER)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 2
    assert fitted.cell_labels_.tobytes() == here.cell_labels_.tobytes()
    assert clients["0"].state.labels.tobytes() == here.labels_[0].tobytes()
    pd.testing.assert_frame_equal(fitted.ledger_.to_frame(), here.ledger_.to_frame())


@pytest.mark.parametrize(
    "body", [b"x", b"\xc1" * 100, VALID[:-1], VALID + b"x"], ids=["x", "c1", "cut", "long"]
)
def test_a_malformed_reply_loses_only_its_sender(body, points, start):
    with serve("01") as transport, caller(transport) as link:
        assert link.post("/join").status_code == 200
        [end] = attend(start, transport, {"1": HorizontalDBSCANClient(points[1])})
        ledger = Ledger()
        labels = start(run, estimator().protocol(), transport, min_clients=1, ledger=ledger)
        assert link.get("/request").headers[NUMBER] == "1"
        for _ in range(2):  # it learns it at once
            response = link.post("/reply", content=body, headers={NUMBER: "1"})
            assert refused(response, 410)
            reason = response.json()
            assert reason == {
                "error": f"InvalidReply at CountCells, step 1 ({ledger.rejected['0']})"
            }
        labels.result(ANSWER)
        assert link.get("/request").json() == reason
        assert ledger.why_lost("0") == reason["error"]
    assert end.result(ANSWER) == "finished"
    assert list(ledger.lost) == ["0"]


@examples(50, 300)
def test_malformed_http_does_not_harm_a_run(n_examples, points, start, capfd):
    client = Slow(points[0])
    with serve("0", gone_after=10) as transport:
        [end] = attend(start, transport, {"0": client})
        model = start(estimator().fit, transport)
        assert client.working.wait(ANSWER)
        start_line = b"POST /reply HTTP/1.1\r\nHost: x\r\n"
        known = f"Authorization: Bearer {TOKENS['0']}\r\n{PROCESS}: stranger"
        known = start_line + known.encode() + f"\r\n{NUMBER}: 1\r\n".encode()

        def send(data, ends=True):
            answer = b""
            with (
                socket.create_connection(address(transport), ANSWER) as line,
                suppress(ConnectionError),
            ):
                with suppress(OSError):  # the server may have closed the connection
                    line.sendall(data)
                    if ends:
                        line.shutdown(socket.SHUT_WR)
                while piece := line.recv(2**16):
                    answer += piece
            return answer

        @settings(
            max_examples=n_examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.sampled_from([b"", start_line, known]), st.binary(max_size=100))
        def call(beginning, data):
            assert b" 200 " not in send(beginning + data).partition(b"\r\n")[0]

        call()
        for headers, code in {
            b"Transfer-Encoding: chunked": 413,
            b"Content-Length: 2\r\nTransfer-Encoding: chunked": 400,
            b"Content-Length: -5": 400,
            b"Content-Length: 2\r\nContent-Length: 3": 400,
            b"Content-Length: 2\r\nContent-Length: 2": 400,
            b"Content-Length: x": 400,
            b"Content-Length: +2": 400,
            b"Content-Length : 2": 400,
            b"X : y": 400,
            b" X: y": 400,
            b"X: " + b"x" * 2**15: 431,
        }.items():
            answer = send(known + headers + b"\r\n\r\nab", ends=False)
            assert f" {code} ".encode() in answer.partition(b"\r\n")[0]
        client.go.set()
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"
    assert capfd.readouterr() == ("", "")


def test_a_refused_body_is_not_read():
    """After a call without a valid token the connection is closed."""
    size, piece = 2**26, bytes(2**16)
    with serve("0") as transport, socket.create_connection(address(transport), ANSWER) as line:
        tracemalloc.start()
        line.sendall(f"POST /reply HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode())
        pieces = (line.sendall(piece) for _ in range(size // len(piece)))
        with pytest.raises(ConnectionError):
            list(pieces)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < size / 8


def test_silent_callers_take_no_thread(points, start):
    """Even if they outnumber the server's threads, they do not delay the page or a run."""
    with serve("0") as transport:
        silent = [socket.create_connection(address(transport)) for _ in range(3 * MAX_CALLS)]
        begin = time.monotonic()
        with caller(transport) as link:
            assert link.get("/").status_code == 200
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        estimator().fit(transport)
        assert time.monotonic() - begin < 5
        for line in silent:
            line.close()
    assert end.result(ANSWER) == "finished"
