"""The same protocols over HTTP: equal results, guarded doors, and failures that are survived.

Most tests drive clients as threads; those about processes that die fork them from one that has
imported everything. Every protocol between processes is tried in test_cli.py.
"""

import functools
import hmac
import logging
import multiprocessing
import os
import runpy
import signal
import socket
import threading
import time
import traceback
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlib import HorizontalDBSCAN, VerticalDBSCAN
from fedlib.horizontal_dbscan import CellCounts, CountCells, HorizontalDBSCANClient
from fedlib.ledger import Ledger
from fedlib.messages import Done, Failure, MessageError, decode, encode
from fedlib.protocol import Client, TooFewClients, run
from fedlib.transports.http import client as http_client
from fedlib.transports.http import server as http
from fedlib.transports.http.server import (
    HTTP,
    SEQUENCE,
    SESSION,
    JoinError,
    digest,
    join,
    new_token,
)
from fedlib.vertical_dbscan import VerticalDBSCANClient

SITE = Path(__file__).with_name("site.py")
toy = runpy.run_path(str(SITE), run_name="http_site")
ANSWER = 60  # seconds within which everything ends that ends at all
MODEL = HorizontalDBSCAN(cell_size=0.5, min_samples=4)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Every thread that a test starts has ended soon after it."""
    before = set(threading.enumerate())
    yield
    soon(lambda: set(threading.enumerate()) <= before)


def soon(condition, seconds=10):
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "this has not come true"
        time.sleep(0.01)


@pytest.fixture
def start():
    """Return what calls a function in a thread, and gives the future of its result."""
    with ThreadPoolExecutor(32, thread_name_prefix="test") as pool:
        yield pool.submit


@pytest.fixture(scope="module")
def points():
    """Three sites' rows of the same three clusters and some noise."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]], 60, axis=0)
    X = np.vstack([centres + rng.normal(scale=0.4, size=(180, 2)), rng.uniform(-2, 7, (20, 2))])
    return np.array_split(rng.permutation(X), 3)


TOKENS = {name: new_token() for name in ("0", "1", "2")}
DIGESTS = {name: digest(token) for name, token in TOKENS.items()}


def serve(names="012", **options):
    """Return a transport for some of the three clients, quick to notice what is wrong."""
    options = {"gone_after": 2, "join_timeout": ANSWER, "request_timeout": ANSWER, **options}
    return HTTP({name: DIGESTS[name] for name in names}, "127.0.0.1:0", **options)


def attend(start, transport, clients, **options):
    """Let clients join, each in a thread; return the futures of how it ended."""
    return [
        start(join, transport.url, client, TOKENS[name], patience=ANSWER, **options)
        for name, client in clients.items()
    ]


class Slow(HorizontalDBSCANClient):
    """A client that works until it is let go, and counts what it was asked."""

    def __init__(self, X):
        super().__init__(X)
        self.asked = []
        self.working, self.go = threading.Event(), threading.Event()

    def answer(self, request):
        self.asked.append(request)
        self.working.set()
        assert self.go.wait(ANSWER)
        return super().answer(request)


def caller(transport, name="0", session="stranger"):
    """Return a link for calls by hand."""
    headers = {"Authorization": f"Bearer {TOKENS[name]}", SESSION: session}
    return httpx.Client(base_url=transport.url, headers=headers, timeout=ANSWER, trust_env=False)


def refused(response, code):
    """Assert that a call was refused with a short reason in JSON."""
    assert response.status_code == code, response.text
    assert list(response.json()) == ["error"]
    assert 0 < len(response.json()["error"]) < 200
    return True


# The same results


def test_horizontal_over_http_is_what_it_is_in_process(points, start):
    here = MODEL.fit(points, passive=[1])
    there = HorizontalDBSCAN(**MODEL.get_params())
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


def test_vertical_over_http_is_what_it_is_in_process(points, start):
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


def test_a_client_may_be_made_from_the_protocols_name(points, start):
    told = []

    def make(protocol):
        told.append(protocol)
        return HorizontalDBSCANClient(points[0])

    with serve("0", protocol="horizontal-dbscan") as transport:
        [end] = attend(start, transport, {"0": make})
        MODEL.fit(transport)
    assert (end.result(ANSWER), told) == ("finished", ["horizontal-dbscan"])


def test_a_large_message_travels_in_both_directions(start):
    class Echo(Client):
        X = None

        def answer(self, request):
            return request

    counts = CellCounts(np.arange(2**19)[:, None], np.ones(2**19, np.int64))
    with serve("0") as transport:
        attend(start, transport, {"0": Echo()})
        assert transport.exchange({"0": encode(counts)})["0"] == encode(counts)


# Processes that die


@pytest.fixture(scope="module")
def nursery():
    """Return what starts processes that need not import anything any more."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedlib.transports.http.server", "pytest"])
    processes = []

    def bear(**given):
        options = {"init_globals": {"settings": given}, "run_name": "__main__"}
        process = context.Process(target=runpy.run_path, args=(str(SITE),), kwargs=options)
        process.start()
        processes.append(process)
        return process

    yield bear
    for process in processes:
        process.kill()
        process.join()


MOMENTS = [
    ("before joining", 0),
    ("computing", 1),
    ("before the reply", 1),
    ("after the reply", 1),
    ("computing", 2),
    ("before the reply", 2),
    ("after the reply", 2),
]
each_moment = pytest.mark.parametrize("dies", MOMENTS, ids=lambda dies: f"{dies[0]} {dies[1]}")


@pytest.fixture(scope="module")
def two_sites(points):
    return points[:2], HorizontalDBSCAN(**MODEL.get_params()).fit(points[:2])


def run_with_a_death(two_sites, nursery, start, folder, dies, again=None, min_clients=None):
    """Run two clients, of which the second dies; return the model and the first client."""
    (stays, leaves), _ = two_sites
    client = HorizontalDBSCANClient(stays)
    stays_away = {"join_timeout": ANSWER if dies[1] else 1.5, "gone_after": 1.5}
    comes_back = {"rejoin_timeout": ANSWER, "gone_after": 0.4}
    model = HorizontalDBSCAN(**MODEL.get_params())
    given = {"token": TOKENS["1"], "X": leaves.tolist(), "labels": str(folder / "labels")}
    with serve("01", **(stays_away if again is None else comes_back)) as transport:
        given["url"] = transport.url
        attend(start, transport, {"0": client})
        victim = nursery(dies=dies, **(again or {}), **given)

        def bear_again():
            victim.join(ANSWER)
            assert victim.exitcode == -signal.SIGKILL
            return nursery(**again, **given, patience=3) if again is not None else None

        reborn = start(bear_again)
        model.fit(transport, min_clients=min_clients)
    if reborn.result(ANSWER):
        reborn.result().join(ANSWER)
        assert reborn.result().exitcode == 0
    return model, client


@pytest.mark.parametrize("keeps_state", [True, False])
@each_moment
def test_a_client_that_is_killed_and_started_again(
    dies, keeps_state, two_sites, nursery, start, tmp_path
):
    again = {"state_dir": str(tmp_path / "state")} if keeps_state else {}
    model, client = run_with_a_death(two_sites, nursery, start, tmp_path, dies, again)
    here = two_sites[1]
    assert client.state.labels.tobytes() == here.labels_[0].tobytes()
    pd.testing.assert_frame_equal(model.ledger_.to_frame(), here.ledger_.to_frame())
    if keeps_state or dies != ("after the reply", 2):
        assert np.load(tmp_path / "labels").tobytes() == here.labels_[1].tobytes()
    else:  # the labels died with the process, whose work was done
        assert not (tmp_path / "labels").exists()


@each_moment
def test_a_client_that_is_killed_and_stays_away(dies, two_sites, nursery, start, tmp_path):
    if dies == ("after the reply", 2):  # nobody needs it any more
        model, client = run_with_a_death(two_sites, nursery, start, tmp_path, dies)
        assert model.ledger_.lost == {}
        assert client.state.labels.tobytes() == two_sites[1].labels_[0].tobytes()
        return
    why = {
        ("before joining", 0): "'1': NeverJoined at CountCells, step 1",
        ("computing", 1): "'1': Gone at CountCells, step 1",
        ("before the reply", 1): "'1': Gone at CountCells, step 1",
        ("after the reply", 1): "'1': Gone at AssignCells, step 2",
        ("computing", 2): "'1': Gone at AssignCells, step 2",
        ("before the reply", 2): "'1': Gone at AssignCells, step 2",
    }[dies]
    with pytest.raises(TooFewClients, match=f"1 of 2 clients left, 2 needed. Lost: {why}"):
        run_with_a_death(two_sites, nursery, start, tmp_path, dies)


@pytest.mark.parametrize("dies", [MOMENTS[2], MOMENTS[4]], ids=str)
def test_the_run_goes_on_without_a_client_that_can_be_spared(
    dies, two_sites, nursery, start, tmp_path
):
    model, client = run_with_a_death(two_sites, nursery, start, tmp_path, dies, min_clients=1)
    assert list(model.ledger_.lost) == ["1"]
    shared = two_sites[0] if dies[1] == 2 else two_sites[0][:1]
    expected = HorizontalDBSCAN(**MODEL.get_params()).fit(shared).labels_[0]
    assert client.state.labels.tobytes() == expected.tobytes()


def test_a_client_that_is_killed_at_work_is_noticed_within_five_seconds(nursery, start, points):
    with HTTP({"0": DIGESTS["0"]}, "127.0.0.1:0") as transport:
        site = nursery(url=transport.url, token=TOKENS["0"], X=points[0].tolist())
        assert decode(transport.exchange({"0": encode(CountCells(0.5))})["0"]).counts.sum() > 0
        os.kill(site.pid, signal.SIGSTOP)  # now it cannot answer
        reply = start(transport.exchange, {"0": encode(CountCells(0.5))})
        time.sleep(0.5)
        assert not reply.done()
        os.kill(site.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert decode(reply.result(ANSWER)["0"]) == Failure("Gone")
        assert time.monotonic() - killed < 5


def test_a_server_that_is_killed_ends_its_clients(nursery, start, tmp_path, points):
    file = tmp_path / "url"
    digests = {"0": DIGESTS["0"], "1": DIGESTS["1"]}
    server = nursery(tokens=digests, url_file=str(file), cell_size=0.5, min_samples=4)
    soon(file.exists, ANSWER)
    client = Slow(points[0])
    end = start(join, file.read_text(), client, TOKENS["0"], patience=1)
    idle = start(join, file.read_text(), HorizontalDBSCANClient(points[1]), TOKENS["1"], patience=1)
    assert client.working.wait(ANSWER)
    server.kill()
    server.join()
    killed = time.monotonic()
    client.go.set()
    for future in (end, idle):
        with pytest.raises(JoinError, match="no answer"):
            future.result(ANSWER)
    assert time.monotonic() - killed < 5


def test_a_client_process_leaves_when_it_is_interrupted(nursery, points):
    with serve("0") as transport:
        site = nursery(url=transport.url, token=TOKENS["0"], X=points[0].tolist())
        soon(lambda: transport._seats["0"].session and transport._seats["0"].calls)
        os.kill(site.pid, signal.SIGINT)
        site.join(5)
        assert site.exitcode == 1


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_client_that_needs_its_state_does_not_go_on_without(keeps_state, nursery, tmp_path):
    """It is killed after its first count of seven rows; the second must not begin at 0."""
    options = {"state_dir": str(tmp_path)} if keeps_state else {}
    given = {"token": TOKENS["0"], "X": [[0.0]] * 7, "protocol": "counter"}
    with serve("0", rejoin_timeout=ANSWER, gone_after=0.4) as transport:
        first = nursery(url=transport.url, dies=("after the reply", 2), **options, **given)

        def bear_again():
            first.join(ANSWER)
            return nursery(url=transport.url, **options, **given)

        thread = threading.Thread(target=bear_again)
        thread.start()
        ledger = Ledger()
        if keeps_state:
            assert run(toy["count_twice"](), transport, ledger=ledger) == {"0": 14}
        else:
            with pytest.raises(TooFewClients, match="'0': LostState at AddRows, step 3"):
                run(toy["count_twice"](), transport, ledger=ledger)
        thread.join(ANSWER)


# Clients that are slow, gone, back, or late


def test_work_may_take_longer_than_the_time_after_which_a_silent_client_is_gone(points, start):
    client = Slow(points[0])
    with serve("0", gone_after=0.5) as transport:
        [end] = attend(start, transport, {"0": client})
        model = start(MODEL.fit, transport)
        assert client.working.wait(ANSWER)
        time.sleep(1.5)
        assert not model.done()
        client.go.set()
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_a_server_too_busy_to_listen_loses_nobody(points, start):
    """As a flow that computes for long between two requests and holds the interpreter."""
    with serve("0", gone_after=0.4) as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        assert isinstance(
            decode(transport.exchange({"0": encode(CountCells(1.0))})["0"]), CellCounts
        )
        with transport._changed:  # nobody's signs of life are noted meanwhile
            time.sleep(1)
            reply = transport.exchange({"0": encode(CountCells(1.0))})["0"]
        assert isinstance(decode(reply), CellCounts)
    assert end.result(ANSWER) == "finished"


@pytest.mark.parametrize("limit", ["request_timeout", "max_seconds"])
def test_a_client_that_takes_too_long_is_lost_and_told(limit, points, start):
    client = Slow(points[1])
    clients = {"0": HorizontalDBSCANClient(points[0]), "1": client}
    with serve("01", **{limit: 1}) as transport:
        ends = attend(start, transport, clients)
        why = "Lost: '1': TimedOut at CountCells, step 1"
        with pytest.raises(TooFewClients, match=why):
            MODEL.fit(transport)
        client.go.set()
        assert ends[1].result(ANSWER) == "TimedOut"
    assert ends[0].result(ANSWER) == "finished"


def test_a_run_that_lasts_too_long_asks_nobody_any_more(points, start):
    with serve("0", max_seconds=0.5) as transport:
        attend(start, transport, {"0": Slow(points[0])})[0].cancel()
        time.sleep(0.6)
        reply = transport.exchange({"0": encode(CountCells(1.0))})["0"]
        assert decode(reply).error in {"TimedOut", "NeverJoined"}
        transport._seats["0"].told = True


def test_who_never_joins_is_named(points, start):
    with serve("012", join_timeout=0.5) as transport:
        ends = attend(start, transport, {"1": HorizontalDBSCANClient(points[1])})
        with pytest.raises(TooFewClients) as raised:
            MODEL.fit(transport)
        late = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})[0]
        assert late.result(ANSWER) == "NeverJoined"
    assert "'0': NeverJoined" in str(raised.value)
    assert "'2': NeverJoined" in str(raised.value)
    assert "'1'" not in str(raised.value)
    assert ends[0].result(ANSWER) == "finished"


def test_a_lost_reply_is_given_again_and_handled_once(points, start, monkeypatch):
    """The first post of each reply is lost on its way, and the answer to the second one too."""
    client = Slow(points[0])
    client.go.set()
    real, posts, statuses = httpx.Client.request, [], []

    def lossy(link, method, path, **content):
        if path != "/reply":
            return real(link, method, path, **content)
        posts.append(content["headers"][SEQUENCE])
        if posts.count(posts[-1]) == 1:
            raise httpx.WriteError("lost")
        response = real(link, method, path, **content)
        statuses.append(response.status_code)
        if posts.count(posts[-1]) == 2:
            raise httpx.ReadError("lost")
        return response

    with serve("0") as transport:
        monkeypatch.setattr(httpx.Client, "request", lossy)
        [end] = attend(start, transport, {"0": client})
        model = MODEL.fit(transport)
    assert end.result(ANSWER) == "finished"
    assert [type(request).__name__ for request in client.asked] == ["CountCells", "AssignCells"]
    assert posts[:5] == ["1", "1", "1", "2", "2"]
    assert statuses[:3] == [200] * 3
    assert len(model.ledger_) == 4


def test_a_request_that_is_asked_again_is_answered_from_memory(points, tmp_path):
    client = Slow(points[0])
    client.go.set()
    request = encode(CountCells(0.5))
    replies = []

    def handle(call):
        if call.url.path == "/join":
            told = {"client": "0", "run": "r", "protocol": "", "heartbeat": 60}
            return httpx.Response(200, json=told)
        if call.url.path == "/reply":
            replies.append(call.content)
            return httpx.Response(200, json={})
        if len(replies) == 3:
            return httpx.Response(410, json={"error": "finished"})
        return httpx.Response(200, content=request, headers={SEQUENCE: "7"})

    for own in (client, HorizontalDBSCANClient(points[1])):  # the second is another process
        with httpx.Client(base_url="http://test", transport=httpx.MockTransport(handle)) as link:
            assert http_client._Stay(link, own, tmp_path, 1).run() == "finished"
    assert len(client.asked) == 1
    assert len(set(replies)) == 1


def test_state_of_another_run_is_no_memory_and_of_another_client_refused(tmp_path):
    kept = http_client._Memory("run", "0", 3, b"reply", b"state")
    kept.save(tmp_path / "new")
    assert http_client._Memory.load(tmp_path / "new", "run", "0") == kept
    other = http_client._Memory.load(tmp_path / "new", "other", "0")
    assert other == http_client._Memory("other", "0")
    with pytest.raises(ValueError, match="is that of client '0', and this one is '1'"):
        http_client._Memory.load(tmp_path / "new", "run", "1")
    assert http_client._Memory.load(tmp_path, "run", "0") == http_client._Memory("run", "0")
    [file] = (tmp_path / "new").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"state_dir holds a damaged file: .*client\.state"):
        http_client._Memory.load(tmp_path / "new", "run", "0")


def test_closing_in_the_middle_of_a_request_ends_everybody(points, start):
    client = Slow(points[0])
    clients = {"0": client, "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        model = start(MODEL.fit, transport)
        assert client.working.wait(ANSWER)
        begin = time.monotonic()
        transport.close()
        assert time.monotonic() - begin < 2
        with pytest.raises(TooFewClients, match="'0': Closed"):
            model.result(ANSWER)
        client.go.set()
        assert ends[0].result(ANSWER) == "Closed"
        assert ends[1].result(ANSWER) in {"Closed", "finished"}  # had it answered?


def test_a_client_that_answers_with_an_error_leaves_and_is_told_so(points, start):
    class Broken(HorizontalDBSCANClient):
        def answer(self, request):
            raise ZeroDivisionError("secret")

    clients = {"0": Broken(points[0]), "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        model = HorizontalDBSCAN(**MODEL.get_params()).fit(transport, min_clients=1)
        begin = time.monotonic()
    assert time.monotonic() - begin < 1  # nobody waits for it
    assert [end.result(ANSWER) for end in ends] == ["ZeroDivisionError", "finished"]
    assert model.ledger_.lost == {"0": "ZeroDivisionError at CountCells, step 1"}


def test_a_client_whose_reply_is_none_is_told_that_the_run_goes_on_without_it(points, start):
    class Liar(HorizontalDBSCANClient):
        def answer(self, request):
            return Done()

    clients = {"0": Liar(points[0]), "1": HorizontalDBSCANClient(points[1])}
    with serve("01") as transport:
        ends = attend(start, transport, clients)
        model = HorizontalDBSCAN(**MODEL.get_params()).fit(transport, min_clients=1)
    assert [end.result(ANSWER) for end in ends] == [model.ledger_.lost["0"], "finished"]
    assert model.ledger_.lost["0"].endswith("at CountCells, step 1")


def test_a_client_that_leaves_may_come_back_while_there_is_time(points, start):
    with serve("0", rejoin_timeout=ANSWER) as transport, caller(transport, session="a") as link:
        link.post("/join")
        model = start(MODEL.fit, transport)
        soon(lambda: transport._seats["0"].asked is not None)
        assert link.post("/leave").status_code == 200
        time.sleep(0.3)
        assert not model.done()
        assert transport.status().clients[0].state == "away"
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_a_server_that_gives_up_says_so(points, start):
    with suppress(KeyError), serve("0") as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        soon(lambda: transport._seats["0"].session)
        raise KeyError
    assert end.result(ANSWER) == "stopped"


def test_the_server_can_be_interrupted(points, start):
    client = Slow(points[0])
    client.go.set()
    main = threading.main_thread().ident
    with serve("01") as transport:
        [end] = attend(start, transport, {"0": client})
        soon(lambda: transport._seats["0"].session)
        start(lambda: (time.sleep(0.3), signal.pthread_kill(main, signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            MODEL.fit(transport)
    assert end.result(ANSWER) == "finished"


def test_a_client_can_be_interrupted(points, start):
    main = threading.main_thread().ident
    with serve("01", join_timeout=1, gone_after=0.5) as transport:
        model = start(MODEL.fit, transport)
        start(lambda: (time.sleep(0.5), signal.pthread_kill(main, signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            join(transport.url, HorizontalDBSCANClient(points[0]), TOKENS["0"])
        left = time.monotonic()
        with pytest.raises(TooFewClients, match="'0': Left"):
            model.result(ANSWER)
        assert time.monotonic() - left < 2


def test_after_a_run_everything_is_closed(points, start):
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    with HTTP({"0": DIGESTS["0"]}, f"127.0.0.1:{address[1]}", gone_after=2) as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        MODEL.fit(transport)
        begin = time.monotonic()
    assert time.monotonic() - begin < 1.5
    transport.close()  # again does no harm
    assert end.result(ANSWER) == "finished"
    assert threading.active_count() <= before + 1  # the pool's own
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 1)
    HTTP(DIGESTS, f"127.0.0.1:{address[1]}").close()


# Who may say what


def test_a_token_serves_one_living_client_at_a_time(points, start):
    client = Slow(points[0])
    with serve("0") as transport:
        [end] = attend(start, transport, {"0": client})
        model = start(MODEL.fit, transport)
        assert client.working.wait(ANSWER)
        with pytest.raises(JoinError, match="/join: a client with this token is here already"):
            join(transport.url, HorizontalDBSCANClient(points[1]), TOKENS["0"], patience=0.3)
        with caller(transport) as link:
            assert refused(link.post("/join"), 409)
        client.go.set()
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_an_unknown_token_is_refused_everywhere(start):
    with serve("0") as transport, caller(transport) as link:
        rules = transport._server.wsgi_app.url_map.iter_rules()
        for rule in (rule for rule in rules if rule.rule != "/"):
            for token in ("", "Bearer", f"Bearer {new_token()}", f"Bearer {DIGESTS['0']}", "é"):
                for method in rule.methods - {"HEAD"}:
                    headers = {"Authorization": token.encode()}
                    assert refused(link.request(method, rule.rule, headers=headers), 401)
        with pytest.raises(JoinError, match="/join: unknown token"):
            join(transport.url, Client(), new_token(), patience=ANSWER)


def test_every_token_is_compared_in_full(monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return real(a, b)

    real = hmac.compare_digest
    with serve() as transport:
        monkeypatch.setattr(hmac, "compare_digest", compare)
        for token in (*TOKENS.values(), new_token()):
            compared.clear()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(http, "abort", lambda code, why: why)
                transport._admit(f"Bearer {token}")
            assert compared == [(digest(token), kept) for kept in DIGESTS.values()]


def test_a_reply_is_taken_from_who_was_asked_for_what_was_asked_once(start):
    first, second = encode(Done()), encode(Failure("Else"))
    with serve("01") as transport, caller(transport, "0", "a") as link:
        for link.headers[SESSION], name in (("b", "1"), ("a", "0")):
            link.headers["Authorization"] = f"Bearer {TOKENS[name]}"
            assert link.post("/join").json()["client"] == name

        def reply(sequence, body, **headers):
            return link.post("/reply", content=body, headers={SEQUENCE: sequence, **headers})

        assert refused(reply("1", first), 409)  # nobody asked
        replies = start(transport.exchange, {"0": encode(CountCells(1.0))})
        asked = link.get("/request")
        assert (asked.headers[SEQUENCE], asked.content) == ("1", encode(CountCells(1.0)))
        assert link.get("/request").content == asked.content  # asking takes nothing away
        other = {"Authorization": f"Bearer {TOKENS['1']}", SESSION: "b"}
        assert refused(reply("1", first, **other), 409)  # somebody else was asked
        assert refused(reply("1", first, **{SESSION: "b"}), 409)
        for sequence in ("0", "2", "-1", "9" * 30):
            assert refused(reply(sequence, first), 409)
        for sequence in ("", "one", "1.0", "9" * 5000):
            assert refused(reply(sequence, first), 400)
        for body in (b"", b"x", first[:-1], first + b"x", b"\xc1" * 100):
            assert refused(reply("1", body), 400)
        assert not replies.done()
        assert reply("1", first).status_code == 200
        assert replies.result(ANSWER) == {"0": first}
        assert reply("1", first).status_code == 200  # again
        assert refused(reply("1", second), 409)  # another one

        replies = start(transport.exchange, {"0": encode(CountCells(2.0))})
        assert link.get("/request").headers[SEQUENCE] == "2"
        assert reply("1", first).status_code == 200  # late
        assert not replies.done()
        assert reply("2", second).status_code == 200
        assert replies.result(ANSWER) == {"0": second}
        for seat in transport._seats.values():
            assert (seat.asked, seat.reply) == (None, None)  # no message is kept
            seat.told = True


def test_a_call_needs_a_session(start):
    with serve("0") as transport, caller(transport) as link:
        paths = [("POST", "/heartbeat"), ("GET", "/request"), ("POST", "/reply"), ("POST", "/join")]
        for session in ("", "x" * 65):
            for method, path in paths:
                assert refused(link.request(method, path, headers={SESSION: session}), 400)
        for method, path in paths[:2]:
            assert refused(link.request(method, path), 409)  # it has not joined
        headers = {SEQUENCE: "1", SESSION: "é".encode()}
        assert refused(link.post("/reply", headers=headers), 409)


def test_a_message_that_is_too_large_is_refused(points, start):
    clients = {"0": HorizontalDBSCANClient(points[0])}
    with serve("0", max_bytes=4000) as transport, caller(transport, session="a") as link:
        link.post("/join")
        headers = {SEQUENCE: "1"}
        for size in (4001, 10**5, 10**7):
            assert refused(link.post("/reply", content=bytes(size), headers=headers), 413)
        pieces = (b"x" for _ in range(3))  # of a length that nobody knows
        assert refused(link.post("/reply", content=pieces, headers=headers), 413)
        assert refused(link.post("/reply", content=bytes(4000), headers=headers), 400)
        transport._seats["0"].session = ""
        [end] = attend(start, transport, clients)
        assert MODEL.fit(transport).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_a_refused_body_is_not_kept_in_memory():
    """What a caller without a token sends is read in pieces and thrown away."""
    size, piece = 2**26, bytes(2**16)
    with serve("0") as transport:
        address = ("127.0.0.1", int(transport.url.rpartition(":")[2]))
        with socket.create_connection(address, ANSWER) as line:
            tracemalloc.start()
            line.sendall(f"POST /reply HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode())
            for _ in range(size // len(piece)):
                line.sendall(piece)
            assert line.recv(2**16).startswith(b"HTTP/1.1 401 ")
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert peak < size / 8


def test_a_client_has_few_calls_under_way(start):
    with serve("0") as transport, caller(transport, session="a") as link:
        link.post("/join")
        held = [start(link.get, "/request") for _ in range(http.MAX_CALLS)]
        soon(lambda: transport._seats["0"].calls == http.MAX_CALLS)
        assert refused(link.post("/heartbeat"), 429)
        transport.close()
        for call in held:
            assert refused(call.result(ANSWER), 410)


def test_unknown_paths_and_wrong_methods():
    with serve("0") as transport, caller(transport) as link:
        for path in ("/data", "/static/x", "/join/", "/request/0", "/%00"):
            assert refused(link.get(path), 404)
        for method, path in (("GET", "/join"), ("GET", "/reply"), ("POST", "/request")):
            assert refused(link.request(method, path), 405)
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            assert refused(link.request(method, "/reply"), 405)


def test_a_question_without_an_answer_is_held_for_a_while(monkeypatch):
    monkeypatch.setattr(http, "HOLD", 0.2)
    with serve("0", gone_after=0.1) as transport, caller(transport) as link:
        link.post("/join")
        begin = time.monotonic()
        assert link.get("/request").status_code == 204
        assert 0.2 <= time.monotonic() - begin < 5


def test_a_held_question_gives_way_to_a_new_process(start):
    with serve("0", gone_after=0.2) as transport, caller(transport, session="a") as link:
        link.post("/join")
        held = start(link.get, "/request")
        soon(lambda: transport._seats["0"].calls == 1)
        soon(lambda: link.post("/join", headers={SESSION: "b"}).status_code == 200)
        assert refused(held.result(ANSWER), 409)
        transport._seats["0"].told = True


def test_no_address_gives_away_data(points, start):
    """Whoever calls, with or without a token, only hears what the server itself asks it."""
    clients = {"0": HorizontalDBSCANClient(points[0]), "1": Slow(points[1])}
    with serve("01") as transport:
        rules = {
            rule.rule: rule.methods for rule in transport._server.wsgi_app.url_map.iter_rules()
        }
        assert rules == {
            "/": {"GET", "HEAD"},
            "/join": {"POST"},
            "/leave": {"POST"},
            "/heartbeat": {"POST"},
            "/request": {"GET", "HEAD"},
            "/reply": {"POST"},
        }
        ends = attend(start, transport, clients)
        model = start(MODEL.fit, transport)
        assert clients["1"].working.wait(ANSWER)  # and the reply of the other may be there
        soon(lambda: transport._seats["0"].reply is not None)
        kept = transport._seats["0"].reply
        heard = b""
        with caller(transport, "1", transport._seats["1"].session) as link:
            for path, methods in rules.items():
                for method in methods:
                    for authorization in (link.headers["Authorization"], "")[path == "/leave" :]:
                        headers = {"Authorization": authorization}
                        response = link.request(method, path, headers=headers)
                        heard += response.content + str(response.headers).encode()
        assert encode(CountCells(0.5)) in heard
        assert len(kept) > 100
        arrays = decode(kept)
        for secret in (arrays.cells.tobytes(), arrays.counts.tobytes(), b"CellCounts"):
            assert secret not in heard
        assert len(heard) < 40_000
        clients["1"].go.set()
        model.result(ANSWER)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 2


def test_no_token_is_shown_anywhere(points, start, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    shown = ""
    with serve("0") as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        soon(lambda: transport._seats["0"].session)
        with pytest.raises(JoinError) as taken:
            join(transport.url, Client(), TOKENS["0"], patience=0)
        with pytest.raises(JoinError) as unknown:
            join(transport.url, Client(), TOKENS["1"], patience=0)
        MODEL.fit(transport)
        shown += repr(transport) + repr(vars(transport))
    with pytest.raises(JoinError) as unreachable:
        join(transport.url, Client(), TOKENS["0"], patience=0)
    with pytest.raises(ValueError, match="token must consist of visible ASCII") as bad:
        join(transport.url, Client(), TOKENS["0"] + "\n")
    for error in (taken, unknown, unreachable, bad):
        shown += "".join(traceback.format_exception(error.value))
    assert end.result(ANSWER) == "finished"
    shown += caplog.text + "".join(capfd.readouterr())
    assert "/join" in shown
    for token in TOKENS.values():
        assert token not in shown


# Noise


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


def test_two_thousand_malformed_calls_do_not_harm_a_run(points, start):
    here = HorizontalDBSCAN(**MODEL.get_params()).fit(points[:2])
    clients = {name: Slow(X) for name, X in zip("01", points[:2], strict=True)}
    clients["1"].go.set()
    seen = set()
    with serve("01", gone_after=10) as transport:
        ends = attend(start, transport, clients)
        model = start(HorizontalDBSCAN(**MODEL.get_params()).fit, transport)
        assert clients["0"].working.wait(ANSWER)
        session = transport._seats["0"].session
        link = caller(transport)
        tokens = st.sampled_from([f"Bearer {TOKENS['0']}"] * 3 + [f"Bearer {new_token()}", ""])
        sessions = st.sampled_from([session] * 3 + ["stranger", ""])
        paths = st.sampled_from(["/reply"] * 5 + ["/join", "/request", "/heartbeat"])

        @settings(max_examples=2000, database=None, suppress_health_check=list(HealthCheck))
        @given(paths, tokens | VALUES, sessions | VALUES, st.just("1") | VALUES, BODIES)
        def call(path, token, who, sequence, body):
            given = {"Authorization": token, SESSION: who, SEQUENCE: sequence}
            headers = {name: value.encode("latin-1") for name, value in given.items()}
            method = "GET" if path == "/request" else "POST"
            response = link.request(method, path, content=body, headers=headers)
            seen.add((path, response.status_code))
            if response.status_code != 200:
                assert response.status_code in {400, 401, 409}
                assert refused(response, response.status_code)
            else:  # the client itself; a reply is none of these
                assert (token, who) == (f"Bearer {TOKENS['0']}", session)
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


def test_malformed_http_does_not_harm_a_run(points, start, capfd):
    client = Slow(points[0])
    with serve("0", gone_after=10) as transport:
        [end] = attend(start, transport, {"0": client})
        model = start(MODEL.fit, transport)
        assert client.working.wait(ANSWER)
        address = ("127.0.0.1", int(transport.url.rpartition(":")[2]))
        start_line = b"POST /reply HTTP/1.1\r\nHost: x\r\n"
        known = f"Authorization: Bearer {TOKENS['0']}\r\n{SESSION}: {transport._seats['0'].session}"
        known = start_line + known.encode() + f"\r\n{SEQUENCE}: 1\r\n".encode()

        def say(data):
            answer = b""
            with socket.create_connection(address, ANSWER) as line, suppress(ConnectionError):
                with suppress(OSError):  # the server may have hung up
                    line.sendall(data)
                    line.shutdown(socket.SHUT_WR)
                while piece := line.recv(2**16):
                    answer += piece
            return answer

        @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from([b"", start_line, known]), st.binary(max_size=100))
        def shout(beginning, data):
            assert b" 200 " not in say(beginning + data).partition(b"\r\n")[0]

        shout()
        for headers, code in {
            b"Content-Length: 1000000000000": 413,
            b"Transfer-Encoding: chunked": 413,
            b"Content-Length: -5": 400,
            b"Content-Length: 5": 400,  # fewer bytes come
            b"Content-Length: x": 400,
            b"X: " + b"x" * 2**17: 413,
        }.items():
            assert (
                f" {code} ".encode() in say(known + headers + b"\r\n\r\nab").partition(b"\r\n")[0]
            )
        client.go.set()
        assert model.result(ANSWER).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"
    assert capfd.readouterr() == ("", "")


# Plain HTTP and TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Return a folder with a server's certificate and key, and its and another authority."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("certificates")
    today = datetime.now(UTC)

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certify(subject, issuer, key, signer, *extensions):
        builder = x509.CertificateBuilder(name(issuer), name(subject), key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(today - timedelta(1)).not_valid_after(
            today + timedelta(1)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def authority(text):
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(**dict.fromkeys(USAGES, False) | {"key_cert_sign": True})
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        (folder / f"{text}.pem").write_bytes(certify(text, text, key, key, constraint, usage))
        return key

    right, _ = authority("right"), authority("wrong")
    key = ec.generate_private_key(ec.SECP256R1())
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    names = x509.SubjectAlternativeName(addresses)
    (folder / "cert.pem").write_bytes(certify("localhost", "right", key, right, names))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@pytest.fixture
def serve_tls(certificates):
    cert, key = (str(certificates / f"{name}.pem") for name in ("cert", "key"))
    return functools.partial(serve, cert=cert, key=key)


def test_tls_with_the_right_authority(certificates, serve_tls, points, start):
    here = HorizontalDBSCAN(**MODEL.get_params()).fit(points[:2])
    clients = {name: HorizontalDBSCANClient(X) for name, X in zip("01", points[:2], strict=True)}
    with serve_tls("01") as transport:
        assert transport.url.startswith("https://127.0.0.1:")
        ends = attend(start, transport, clients, ca=str(certificates / "right.pem"))
        MODEL.fit(transport)
    assert [end.result(ANSWER) for end in ends] == ["finished"] * 2
    for client, labels in zip(clients.values(), here.labels_, strict=True):
        assert client.state.labels.tobytes() == labels.tobytes()


@pytest.mark.parametrize("authority", ["wrong", None])
def test_a_server_that_nobody_vouches_for_is_not_told_anything(authority, certificates, serve_tls):
    ca = authority and str(certificates / f"{authority}.pem")
    begin = time.monotonic()
    with serve_tls("0") as transport:
        with pytest.raises(JoinError, match="certificate verify failed"):
            join(transport.url, Client(), TOKENS["0"], ca=ca, patience=ANSWER)
        assert transport._seats["0"].session == ""
    assert time.monotonic() - begin < 5  # it does not try again


def test_silent_and_plain_callers_hold_up_nobody(certificates, serve_tls, points, start, capfd):
    with serve_tls("0") as transport:
        address = ("127.0.0.1", int(transport.url.rpartition(":")[2]))
        silent = [socket.create_connection(address) for _ in range(3)]
        with pytest.raises(JoinError, match="no answer"):
            join(transport.url.replace("https", "http"), Client(), TOKENS["0"], patience=0)
        begin = time.monotonic()
        ca = str(certificates / "right.pem")
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])}, ca=ca)
        MODEL.fit(transport)
        assert time.monotonic() - begin < 5
        for line in silent:
            line.close()
    assert end.result(ANSWER) == "finished"
    assert capfd.readouterr() == ("", "")


def test_callers_that_say_nothing_take_no_thread(points, start):
    """As many as there are threads, and more, and the page is there at once."""
    with serve("0") as transport:
        address = ("127.0.0.1", int(transport.url.rpartition(":")[2]))
        silent = [socket.create_connection(address) for _ in range(3 * http.MAX_CALLS)]
        begin = time.monotonic()
        assert caller(transport).get("/").status_code == 200
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        MODEL.fit(transport)
        assert time.monotonic() - begin < 5
        for line in silent:
            line.close()
    assert end.result(ANSWER) == "finished"


def test_plain_http_stays_on_the_machine_unless_one_insists(points, start):
    message = "beyond the loopback interface: use TLS, or say insecure"
    for host in ("0.0.0.0", "[::]", "192.0.2.1", "example.org"):
        with pytest.raises(ValueError, match=f"bind is .*{message}"):
            HTTP(DIGESTS, f"{host}:0")
        with pytest.raises(ValueError, match=f"url is .*{message}"):
            join(f"http://{host}:80", Client(), TOKENS["0"])
    with serve_insecurely() as transport:
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])}, insecure=True)
        MODEL.fit(transport)
    assert end.result(ANSWER) == "finished"


def serve_insecurely():
    return HTTP({"0": DIGESTS["0"]}, "0.0.0.0:0", insecure=True, gone_after=2)


# Parameters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_timeout": 0}, "join_timeout must be above 0; got 0"),
        ({"request_timeout": -1}, "request_timeout must be above 0; got -1"),
        ({"gone_after": float("nan")}, "gone_after must be above 0; got nan"),
        ({"rejoin_timeout": -1}, "rejoin_timeout must be at least 0; got -1"),
        ({"max_seconds": 0}, "max_seconds must be above 0; got 0"),
        ({"max_bytes": 0}, "max_bytes must be above 0; got 0"),
        ({"cert": "cert.pem"}, "cert and key must be given together"),
        ({"bind": "8080"}, "bind must be host:port, with a port in 0..65535; got '8080'"),
        ({"bind": "localhost:http"}, "bind must be host:port"),
        ({"bind": "127.0.0.1:65536"}, "bind must be host:port"),
        ({"tokens": {"0": "secret"}}, "tokens must hold digests of tokens; that of '0' is none"),
        ({"tokens": {"0": "0" * 64, "1": "0" * 64}}, "tokens must differ from client to client"),
        ({"tokens": {"server": "0" * 64}}, "tokens must not name a client 'server'"),
    ],
)
def test_bad_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message) as raised:
        HTTP(**{"tokens": DIGESTS, **options})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1:80", {}, "url must begin with http:// or https://"),
        ("ftp://127.0.0.1", {}, "url must begin with http:// or https://"),
        ("http://", {}, "url must begin with http:// or https://"),
        ("http://127.0.0.1", {"token": ""}, "token must consist of visible ASCII characters"),
        ("http://127.0.0.1", {"patience": -1}, "patience must be at least 0; got -1"),
    ],
)
def test_a_client_that_cannot_join_says_why(url, options, message):
    with pytest.raises(ValueError, match=message):
        join(url, Client(), **{"token": TOKENS["0"], **options})


@pytest.mark.filterwarnings("ignore:unclosed <socket")  # the web server's own
def test_an_address_in_use_is_an_error():
    with serve("0") as transport, pytest.raises(OSError, match="in use"):
        HTTP(DIGESTS, transport.url.removeprefix("http://"))


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(200, text="hello"), "is no server of this package"),
        (httpx.Response(200, json={"client": "0"}), "is no server of this package"),
        (httpx.Response(302, headers={"Location": "/"}), "status 302"),
        (httpx.Response(404, json=["error"]), "status 404"),
        (httpx.Response(502, text="bad gateway"), "status 502"),
    ],
)
def test_what_is_no_server_of_ours(response, message):
    answers = httpx.MockTransport(lambda call: response)
    with (
        httpx.Client(base_url="http://test", transport=answers) as link,
        pytest.raises(JoinError, match=message),
    ):
        http_client._Stay(link, Client(), None, 0).run()
