"""The transport `HTTP`: equal results, clients that are slow or leave, and the end of a run."""

import signal
import socket
import threading
import time
from contextlib import nullcontext, suppress
from typing import Annotated

import numpy as np
import pandas as pd
import pytest
from http_helpers import (
    ANSWER,
    DIGESTS,
    TOKENS,
    Slow,
    attend,
    caller,
    estimator,
    serve,
    session,
    wait_for,
)

from fedlib import VerticalDBSCAN
from fedlib.clustering.density.horizontal import CellCounts, CountCells, HorizontalDBSCANClient
from fedlib.clustering.density.vertical import VerticalDBSCANClient
from fedlib.core.client import Client
from fedlib.core.journal import JournalError, run_id
from fedlib.core.messages import Array, Done, Labels, Message, decode, encode
from fedlib.core.protocol import TooFewClients, run
from fedlib.transports.http import HTTP, Limits, join, wire

GONE = Limits(gone_after=2)


def test_horizontal_dbscan_over_http_equals_in_process(points, start):
    here = estimator().fit(points, passive=[1])
    there = estimator()
    clients = {name: HorizontalDBSCANClient(X) for name, X in zip("012", points, strict=True)}
    clients["1"].passive = True
    with serve() as transport:
        ends = attend(start, transport, clients)
        there.fit(transport)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 3
    pd.testing.assert_frame_equal(there.ledger_.to_frame(), here.ledger_.to_frame())
    for client, labels in zip(clients.values(), here.labels_, strict=True):
        assert client.state.labels.tobytes() == labels.tobytes()
    assert there.cell_labels_.tobytes() == here.cell_labels_.tobytes()
    assert transport.ledger is there.ledger_


def test_vertical_dbscan_over_http_equals_in_process(points, start):
    columns = [np.vstack(points)[:, [i]] for i in range(2)]
    here = VerticalDBSCAN(eps=0.4, min_samples=4).fit(columns)
    clients = {name: VerticalDBSCANClient(X) for name, X in zip("01", columns, strict=True)}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        there = VerticalDBSCAN(eps=0.4, min_samples=4).fit(transport)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 2
    assert there.labels_.tobytes() == here.labels_.tobytes()
    assert len(set(there.labels_)) > 2
    pd.testing.assert_frame_equal(there.ledger_.to_frame(), here.ledger_.to_frame())
    assert clients["0"].state.labels.tobytes() == here.labels_.tobytes()


class EchoLabels(Message):
    """Return the labels."""

    discloses = "labels"
    reply = Labels
    labels: Annotated[np.ndarray, Array("int64", ("rows",))]


def test_a_large_message_travels_in_both_directions(start):
    class Echo(Client):
        X = None

        def answer(self, request):
            return Labels(request.labels)

    labels = np.arange(2**20)
    request, reply = encode(EchoLabels(labels)), encode(Labels(labels))
    with serve("0") as transport:
        attend(start, transport, {"0": Echo()})
        assert transport.exchange({"0": request})["0"] == reply


def test_work_may_take_longer_than_gone_after(points, start):
    client = Slow(points[0])
    with serve("0", gone_after=0.5) as transport:
        [end] = attend(start, transport, {"0": client})
        model = start(estimator().fit, transport)
        assert client.working.wait(ANSWER)
        time.sleep(1.5)
        assert not model.done()
        client.go.set()
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_a_server_that_is_too_busy_to_listen_loses_no_client(points, start):
    """A flow that computes for long between two requests may keep the interpreter busy."""
    with serve("0", gone_after=0.4) as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        assert isinstance(
            decode(transport.exchange({"0": encode(CountCells(1.0))})["0"]), CellCounts
        )
        busy = start(transport._do, lambda: time.sleep(1))  # no sign of life is noted meanwhile
        reply = transport.exchange({"0": encode(CountCells(1.0))})["0"]
        busy.result(ANSWER)
        assert isinstance(decode(reply), CellCounts)
    assert end.result(ANSWER) == "finished"


@pytest.mark.parametrize("limit", ["request_timeout", "max_seconds"])
def test_a_client_that_takes_too_long_is_lost_and_informed(limit, points, start):
    client = Slow(points[1])
    clients = {"0": HorizontalDBSCANClient(points[0]), "1": client}
    with serve("01", **{limit: 1}) as transport:
        ends = attend(start, transport, clients)
        why = "Lost: '1': TimedOut at CountCells, step 1"
        with pytest.raises(TooFewClients, match=why):
            estimator().fit(transport)
        client.go.set()
        assert ends[1].result(ANSWER) == "TimedOut"
    assert ends[0].result(ANSWER) == "finished"


def test_a_run_that_has_lasted_too_long_sends_no_more_requests(points, start):
    with serve("0", max_seconds=0.5) as transport:
        attend(start, transport, {"0": Slow(points[0])})[0].cancel()
        time.sleep(0.6)
        reply = transport.exchange({"0": encode(CountCells(1.0))})["0"]
        assert decode(reply).error in {"TimedOut", "NeverJoined"}
        session(transport).informed = True


def test_clients_that_never_join_are_named(points, start):
    with serve("012", join_timeout=0.5) as transport:
        ends = attend(start, transport, {"1": HorizontalDBSCANClient(points[1])})
        with pytest.raises(TooFewClients) as raised:
            estimator().fit(transport)
        late = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})[0]
        assert late.result(ANSWER) == "NeverJoined"
    assert "'0': NeverJoined" in str(raised.value)
    assert "'2': NeverJoined" in str(raised.value)
    assert "'1'" not in str(raised.value)
    assert ends[0].result(ANSWER) == "finished"


def test_closing_during_an_exchange_ends_all_clients(points, start):
    client = Slow(points[0])
    clients = {"0": client, "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        model = start(estimator().fit, transport)
        assert client.working.wait(ANSWER)
        begin = time.monotonic()
        transport.close()
        assert time.monotonic() - begin < 2
        with pytest.raises(TooFewClients, match="'0': Closed"):
            model.result(ANSWER)
        client.go.set()
        assert ends[0].result(ANSWER) == "Closed"
        assert ends[1].result(ANSWER) in {"Closed", "finished"}  # finished, if it had replied


def test_a_client_that_fails_leaves_and_returns_its_error(points, start):
    class Broken(HorizontalDBSCANClient):
        def answer(self, request):
            raise ZeroDivisionError("secret")

    clients = {"0": Broken(points[0]), "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        model = estimator().fit(transport, min_clients=1)
        begin = time.monotonic()
    assert time.monotonic() - begin < 1  # the server does not wait for it
    assert [end.result(ANSWER) for end in ends] == ["ZeroDivisionError", "finished"]
    assert model.ledger_.lost == {"0": "ZeroDivisionError at CountCells, step 1"}


class Liar(HorizontalDBSCANClient):
    """A client that replies with a message of the wrong class."""

    def answer(self, request):
        return Done()


REASON = "InvalidReply at CountCells, step 1 (expected CellCounts or Declined or Failure, got Done)"


def test_a_client_whose_reply_is_rejected_receives_the_reason(points, start):
    clients = {"0": Liar(points[0]), "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        model = estimator().fit(transport, min_clients=1)
    assert model.ledger_.lost == {"0": "InvalidReply at CountCells, step 1"}
    assert [end.result(ANSWER) for end in ends] == [model.ledger_.why_lost("0"), "finished"]


@pytest.mark.parametrize("min_clients", [1, 2])
def test_a_client_whose_reply_a_direct_run_rejects_receives_the_reason(min_clients, points, start):
    """No estimator is needed, and the rejected reply may also end the run."""
    clients = {"0": Liar(points[0]), "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        fails = pytest.raises(TooFewClients, match="'0': InvalidReply at CountCells, step 1")
        with fails if min_clients == 2 else nullcontext():
            run(estimator().protocol(), transport, min_clients=min_clients)
        rejected = transport.status().clients[0]
        assert (rejected.state, rejected.why) == ("lost", "InvalidReply at CountCells, step 1")
    ends = [end.result(ANSWER) for end in ends]
    assert ends == [REASON, "finished"]


def test_the_status_shows_a_direct_run(points, start):
    with serve("0", protocol="horizontal-dbscan") as transport:
        assert transport.status().headline == "0 of 1 client joined"
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        run(estimator().protocol(), transport)
        status = transport.status()
        with caller(transport) as link:
            page = link.get("/").text
    assert end.result(ANSWER) == "finished"
    messages = [(line.step, line.message, line.messages) for line in status.conversation]
    expected = [(1, "CountCells", 1), (1, "CellCounts", 1), (2, "AssignCells", 1), (2, "Done", 1)]
    assert messages == expected
    assert status.bytes == transport.ledger.bytes > 0
    assert status.headline.startswith("step 2: AssignCells, the server is computing, ")
    assert "CellCounts from clients" in page


def test_a_client_that_has_left_may_join_again_in_time(points, start):
    with serve("0", rejoin_timeout=ANSWER) as transport, caller(transport, process="a") as link:
        link.post("/join")
        model = start(estimator().fit, transport)
        wait_for(lambda: session(transport).request is not None)
        assert link.post("/leave").status_code == 200
        time.sleep(0.3)
        assert not model.done()
        assert transport.status().clients[0].state == "away"
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_a_refusal_is_a_word(start):
    with serve("0") as transport, caller(transport) as link:
        answer = link.post("/leave", headers={wire.REASON: "My rows: 1, 2"})
        assert (answer.status_code, session(transport).refused) == (400, "")
        assert link.post("/leave", headers={wire.REASON: "NoSecureKey"}).status_code == 200
        assert session(transport).refused == "NoSecureKey"


def test_a_server_that_gives_up_informs_its_clients(points, start):
    with suppress(KeyError), serve("0") as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        wait_for(lambda: session(transport).process)
        raise KeyError
    assert end.result(ANSWER) == "stopped"


class Failing(HTTP):
    """A transport whose second exchange raises ``error``."""

    error: type[BaseException]

    def exchange(self, requests):
        if self.ledger.entries[-1].step == 2:
            raise self.error("for the test")
        return super().exchange(requests)


def fail_with(error, bind, journal):
    """Run until the second step, which raises an error."""
    with suppress(error), Failing({"0": DIGESTS["0"]}, bind, limits=GONE) as transport:
        transport.error = error
        estimator().fit(transport, journal=journal)


@pytest.fixture
def bind():
    """Return an address that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, OSError, JournalError])
def test_a_run_with_a_journal_that_gives_up_can_be_continued(error, bind, points, start, tmp_path):
    """Its clients do not receive "stopped": they call until the server is back, and finish."""
    path, client = tmp_path / "run.journal", HorizontalDBSCANClient(points[0])
    end = start(join, f"http://{bind}", client, TOKENS["0"], patience=ANSWER)
    fail_with(error, bind, path)
    assert not end.done()
    with HTTP({"0": DIGESTS["0"]}, bind, run=run_id(path), limits=GONE) as transport:
        assert estimator().fit(transport, journal=path).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"
    assert client.state.labels.tolist() == estimator().fit(points[:1]).labels_[0].tolist()


@pytest.mark.parametrize("error", [TooFewClients, ValueError])
def test_a_run_that_would_fail_again_is_stopped(error, bind, points, start, tmp_path):
    """These errors follow from the replies, which the journal would repeat."""
    client = HorizontalDBSCANClient(points[0])
    end = start(join, f"http://{bind}", client, TOKENS["0"], patience=ANSWER)
    fail_with(error, bind, tmp_path / "run.journal")
    assert end.result(ANSWER) == "stopped"


def test_the_server_can_be_interrupted(points, start):
    client = Slow(points[0])
    client.go.set()
    main = threading.main_thread().ident
    with serve("01") as transport:
        [end] = attend(start, transport, {"0": client})
        wait_for(lambda: session(transport).process)
        start(lambda: (time.sleep(0.3), signal.pthread_kill(main, signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            estimator().fit(transport)
    assert end.result(ANSWER) == "finished"


def test_a_server_that_is_interrupted_during_an_exchange_informs_its_clients(points, start):
    client = Slow(points[0])
    main = threading.main_thread().ident
    with serve("0") as transport:
        [end] = attend(start, transport, {"0": client})
        start(lambda: (client.working.wait(ANSWER), signal.pthread_kill(main, signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            estimator().fit(transport)
        client.go.set()
        transport.close("stopped")
    assert end.result(ANSWER) == "stopped"


def test_after_a_run_everything_is_closed(points, start):
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with HTTP({"0": DIGESTS["0"]}, f"127.0.0.1:{address[1]}", limits=GONE) as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        estimator().fit(transport)
        begin = time.monotonic()
    assert time.monotonic() - begin < 1.5
    transport.close()  # closing twice is allowed
    assert end.result(ANSWER) == "finished"
    assert threading.active_count() <= before + 1  # the thread of `start`
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1)
    HTTP(DIGESTS, f"127.0.0.1:{address[1]}").close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cert": "cert.pem"}, "cert and key must be given together"),
        ({"bind": "8080"}, "bind must be host:port with a port in 0..65535, got '8080'"),
        ({"bind": "localhost:http"}, "bind must be host:port"),
        ({"bind": "127.0.0.1:65536"}, "bind must be host:port"),
        ({"tokens": {"0": "secret"}}, "tokens must contain digests, that of '0' is not a digest"),
        ({"tokens": {"0": "0" * 64, "1": "0" * 64}}, "tokens must differ between clients"),
        ({"tokens": {"server": "0" * 64}}, "tokens must not contain a client called 'server'"),
    ],
)
def test_invalid_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message) as raised:
        HTTP(**{"tokens": DIGESTS, **options})
    assert "secret" not in str(raised.value)


def test_an_address_in_use_is_an_error():
    with serve("0") as transport, pytest.raises(OSError, match="in use"):
        HTTP(DIGESTS, transport.url.removeprefix("http://"))
