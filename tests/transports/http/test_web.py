"""The web application: which calls are accepted, from whom, and what the answers disclose."""

import logging
import re
import time
import traceback

import pytest
from http_helpers import (
    ANSWER,
    DIGESTS,
    TOKENS,
    Slow,
    attend,
    caller,
    estimator,
    refused,
    serve,
    session,
    wait_for,
)

from fedlib import __version__
from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.core.client import Client
from fedlib.core.messages import Declined, Failure, decode, encode
from fedlib.transports.http import JoinError, client, join, new_token, service
from fedlib.transports.http.session import MAX_CALLS
from fedlib.transports.http.wire import NUMBER, PROCESS


def test_a_token_serves_one_live_process_at_a_time(points, start):
    client = Slow(points[0])
    with serve("0") as transport:
        [end] = attend(start, transport, {"0": client})
        model = start(estimator().fit, transport)
        assert client.working.wait(ANSWER)
        with pytest.raises(JoinError, match="/join: a client with this token is already present"):
            join(transport.url, HorizontalDBSCANClient(points[1]), TOKENS["0"], patience=0.3)
        with caller(transport) as link:
            assert refused(link.post("/join"), 409)
        client.go.set()
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def routes(transport):
    """Return the methods of each path."""
    app = transport._server.config.app
    return {route.path: route.methods for route in app.routes}


def test_an_unknown_token_is_refused_everywhere(start):
    with serve("0") as transport, caller(transport) as link:
        for path, methods in routes(transport).items():
            for token in ("", "Bearer", f"Bearer {new_token()}", f"Bearer {DIGESTS['0']}", "é"):
                for method in methods - {"HEAD"} if path != "/" else ():
                    headers = {"Authorization": token.encode()}
                    assert refused(link.request(method, path, headers=headers), 401)
        with pytest.raises(JoinError, match="/join: unknown token"):
            join(transport.url, Client(), new_token(), patience=ANSWER)


def test_a_reply_is_accepted_once_from_the_right_client_for_the_right_request(start):
    first, second = encode(Declined()), encode(Failure("Else"))
    with serve("01") as transport, caller(transport, "0", "a") as link:
        for link.headers[PROCESS], name in (("b", "1"), ("a", "0")):
            link.headers["Authorization"] = f"Bearer {TOKENS[name]}"
            assert link.post("/join").json()["client"] == name

        def reply(number, body, **headers):
            return link.post("/reply", content=body, headers={NUMBER: number, **headers})

        assert refused(reply("1", first), 409)  # no request is open
        replies = start(transport.exchange, {"0": encode(CountCells(1.0))})
        asked = link.get("/request")
        assert (asked.headers[NUMBER], asked.content) == ("1", encode(CountCells(1.0)))
        assert link.get("/request").content == asked.content  # the request stays open
        other = {"Authorization": f"Bearer {TOKENS['1']}", PROCESS: "b"}
        assert refused(reply("1", first, **other), 409)  # the request is for another client
        assert refused(reply("1", first, **{PROCESS: "b"}), 409)
        for number in ("0", "2", "-1", "9" * 30):
            assert refused(reply(number, first), 409)
        for number in ("", "one", "1.0", "9" * 5000):
            assert refused(reply(number, first), 400)
        assert not replies.done()
        assert reply("1", first).status_code == 200
        assert replies.result(ANSWER) == {"0": first}
        assert reply("1", first).status_code == 200  # a copy
        assert refused(reply("1", second), 409)  # another reply

        replies = start(transport.exchange, {"0": encode(CountCells(2.0))})
        assert link.get("/request").headers[NUMBER] == "2"
        assert reply("1", first).status_code == 200  # a late copy
        assert not replies.done()
        assert reply("2", second).status_code == 200
        assert replies.result(ANSWER) == {"0": second}
        for name in "01":
            kept = session(transport, name)
            assert (kept.request, kept.reply) == (None, None)
            kept.informed = True


@pytest.mark.parametrize("version", ["", "0.0.9", "99.1"])
def test_a_site_of_another_version_is_refused_with_both_versions(version, monkeypatch):
    monkeypatch.setattr(client, "__version__", version)
    reason = f"/join: the site has fedlib '{version}', the server {__version__}: install"
    with serve("0") as transport, pytest.raises(JoinError, match=re.escape(reason)):
        join(transport.url, Client(), TOKENS["0"], patience=ANSWER)


def test_a_call_needs_the_identifier_of_a_process_that_has_joined(start):
    with serve("0") as transport, caller(transport) as link:
        paths = [("POST", "/heartbeat"), ("GET", "/request"), ("POST", "/reply"), ("POST", "/join")]
        for process in ("", "x" * 65):
            for method, path in paths:
                assert refused(link.request(method, path, headers={PROCESS: process}), 400)
        for method, path in paths[:2]:
            assert refused(link.request(method, path), 428)  # it has not joined
        headers = {NUMBER: "1", PROCESS: "é".encode()}
        assert refused(link.post("/reply", headers=headers), 428)


def test_a_message_that_is_too_large_is_refused(points, start):
    clients = {"1": HorizontalDBSCANClient(points[1])}
    headers = {NUMBER: "1"}
    with serve("01", max_bytes=4000) as transport, caller(transport, process="a") as link:
        link.post("/join")
        for size in (4001, 10**5):  # nothing is expected yet
            assert refused(link.post("/reply", content=bytes(size), headers=headers), 409)
        pieces = (b"x" for _ in range(3))  # without a Content-Length
        assert refused(link.post("/reply", content=pieces, headers=headers), 413)
        [end] = attend(start, transport, clients)
        model = start(estimator().fit, transport, min_clients=1)
        assert link.get("/request").status_code == 200
        assert refused(link.post("/reply", content=bytes(4001), headers=headers), 413)
        lost = model.result(ANSWER).ledger_.lost
        assert refused(link.get("/request"), 410)
    assert lost == {"0": "InvalidReply at CountCells, step 1"}
    assert end.result(ANSWER) == "finished"


def test_the_calls_of_a_client_in_progress_are_limited(start):
    with serve("0") as transport, caller(transport, process="a") as link:
        link.post("/join")
        delayed = [start(link.get, "/request") for _ in range(MAX_CALLS)]
        wait_for(lambda: session(transport).calls == MAX_CALLS)
        assert refused(link.post("/heartbeat"), 429)
        transport.close()
        for call in delayed:
            assert refused(call.result(ANSWER), 410)


def test_unknown_paths_and_wrong_methods():
    with serve("0") as transport, caller(transport) as link:
        for path in ("/data", "/static/x", "/join/", "/request/0", "/%00"):
            assert refused(link.get(path), 404)
        for method, path in (("GET", "/join"), ("GET", "/reply"), ("POST", "/request")):
            assert refused(link.request(method, path), 405)
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            assert refused(link.request(method, "/reply"), 405)


def test_the_answer_to_an_idle_client_is_delayed(monkeypatch):
    monkeypatch.setattr(service, "HOLD", 0.2)
    with serve("0", gone_after=0.1) as transport, caller(transport) as link:
        link.post("/join")
        begin = time.monotonic()
        assert link.get("/request").status_code == 204
        assert 0.1 <= time.monotonic() - begin < 5


def test_another_process_joins_when_the_present_one_is_silent(start, monkeypatch):
    monkeypatch.setattr(service, "HOLD", 0.2)
    limits = {"gone_after": 0.1, "silent_after": 0.1}
    with serve("0", **limits) as transport, caller(transport, process="a") as link:
        link.post("/join")
        delayed = start(link.get, "/request")
        wait_for(lambda: session(transport).calls == 1)
        assert refused(link.post("/join", headers={PROCESS: "b"}), 409)  # it is held, so alive
        assert delayed.result(ANSWER).status_code == 204
        wait_for(lambda: link.post("/join", headers={PROCESS: "b"}).status_code == 200)
        assert refused(link.get("/request"), 409)
        session(transport).informed = True


def test_no_address_discloses_data(points, start, monkeypatch):
    """A caller receives nothing but its own request, with or without a token."""
    monkeypatch.setattr(service, "HOLD", 0.1)  # for heartbeats
    clients = {"0": HorizontalDBSCANClient(points[0]), "1": Slow(points[1])}
    with serve("01") as transport:
        rules = routes(transport)
        assert rules == {
            "/": {"GET", "HEAD"},
            "/join": {"POST"},
            "/leave": {"POST"},
            "/heartbeat": {"POST"},
            "/request": {"GET", "HEAD"},
            "/reply": {"POST"},
            "/check": {"GET", "HEAD"},
        }
        ends = attend(start, transport, clients)
        model = start(estimator().fit, transport)
        assert clients["1"].working.wait(ANSWER)
        wait_for(lambda: session(transport).reply is not None)
        kept = session(transport).reply
        received = b""
        with caller(transport, "1", session(transport, "1").process) as link:
            for path, methods in rules.items():
                for method in methods:
                    for authorization in (link.headers["Authorization"], "")[path == "/leave" :]:
                        headers = {"Authorization": authorization}
                        response = link.request(method, path, headers=headers)
                        received += response.content + str(response.headers).encode()
        assert encode(CountCells(0.5)) in received
        assert len(kept) > 100
        arrays = decode(kept)
        for secret in (arrays.cells.tobytes(), arrays.counts.tobytes(), b"CellCounts"):
            assert secret not in received
        assert len(received) < 40_000
        clients["1"].go.set()
        model.result(ANSWER)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 2


def test_no_token_is_shown_anywhere(points, start, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    shown = ""
    with serve("0") as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        wait_for(lambda: session(transport).process)
        with pytest.raises(JoinError) as taken:
            join(transport.url, Client(), TOKENS["0"], patience=0)
        with pytest.raises(JoinError) as unknown:
            join(transport.url, Client(), TOKENS["1"], patience=0)
        estimator().fit(transport)
        shown += repr(transport) + repr(vars(transport))
    with pytest.raises(JoinError) as unreachable:
        join(transport.url, Client(), TOKENS["0"], patience=0)
    with pytest.raises(ValueError, match="token must consist of one or more visible ASCII") as bad:
        join(transport.url, Client(), TOKENS["0"] + "\n")
    for error in (taken, unknown, unreachable, bad):
        shown += "".join(traceback.format_exception(error.value))
    assert end.result(ANSWER) == "finished"
    shown += caplog.text + "".join(capfd.readouterr())
    assert "/join" in shown
    for token in TOKENS.values():
        assert token not in shown
