"""Processes that are killed, interrupted and started again at every moment of a run."""

import os
import runpy
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
from http_helpers import (
    ANSWER,
    DIGESTS,
    SITE,
    TOKENS,
    Slow,
    attend,
    estimator,
    serve,
    session,
    wait_for,
)

from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.core.messages import Failure, decode, encode
from fedlib.core.protocol import TooFewClients, run
from fedlib.transports.http import HTTP, JoinError, join

counting = runpy.run_path(str(SITE), run_name="http_site")


# When a client kills itself, and during its work on which request.
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
    return points[:2], estimator().fit(points[:2])


def run_with_a_death(two_sites, spawn, start, folder, dies, again=None, min_clients=None):
    """Run two clients, of which the second kills itself; return the model and the first client.

    ``again`` contains the options with which the second is started again, if it is.
    """
    (stays, leaves), _ = two_sites
    client = HorizontalDBSCANClient(stays)
    stays_away = {"join_timeout": ANSWER if dies[1] else 1.5, "gone_after": 1.5}
    comes_back = {"rejoin_timeout": ANSWER, "gone_after": 0.4}
    model = estimator()
    given = {"token": TOKENS["1"], "X": leaves.tolist(), "labels": str(folder / "labels")}
    with serve("01", **(stays_away if again is None else comes_back)) as transport:
        given["url"] = transport.url
        attend(start, transport, {"0": client})
        victim = spawn(dies=dies, **(again or {}), **given)

        def restart():
            victim.join(ANSWER)
            assert victim.exitcode == -signal.SIGKILL
            return spawn(**again, **given, patience=3) if again is not None else None

        second = start(restart)
        model.fit(transport, min_clients=min_clients)
    if second.result(ANSWER):
        second.result().join(ANSWER)
        assert second.result().exitcode == 0
    return model, client


@pytest.mark.parametrize("keeps_state", [True, False])
@each_moment
def test_a_client_that_is_killed_and_started_again(
    dies, keeps_state, two_sites, spawn, start, tmp_path
):
    again = {"state_dir": str(tmp_path / "state")} if keeps_state else {}
    model, client = run_with_a_death(two_sites, spawn, start, tmp_path, dies, again)
    here = two_sites[1]
    assert client.state.labels.tobytes() == here.labels_[0].tobytes()
    pd.testing.assert_frame_equal(model.ledger_.to_frame(), here.ledger_.to_frame())
    if keeps_state or dies != ("after the reply", 2):
        assert np.load(tmp_path / "labels").tobytes() == here.labels_[1].tobytes()
    else:  # they were lost with the process, whose work was done
        assert not (tmp_path / "labels").exists()


@each_moment
def test_a_client_that_is_killed_and_stays_away(dies, two_sites, spawn, start, tmp_path):
    if dies == ("after the reply", 2):  # it is not needed any more
        model, client = run_with_a_death(two_sites, spawn, start, tmp_path, dies)
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
    left = "have joined in time" if dies == ("before joining", 0) else "remain"
    with pytest.raises(TooFewClients, match=f"1 of 2 clients {left}, 2 are needed. Lost: {why}"):
        run_with_a_death(two_sites, spawn, start, tmp_path, dies)


@pytest.mark.parametrize("dies", [MOMENTS[2], MOMENTS[4]], ids=str)
def test_the_run_continues_without_a_client_if_enough_remain(
    dies, two_sites, spawn, start, tmp_path
):
    model, client = run_with_a_death(two_sites, spawn, start, tmp_path, dies, min_clients=1)
    assert list(model.ledger_.lost) == ["1"]
    shared = two_sites[0] if dies[1] == 2 else two_sites[0][:1]
    expected = estimator().fit(shared).labels_[0]
    assert client.state.labels.tobytes() == expected.tobytes()


def test_a_client_that_is_killed_at_work_is_noticed_within_five_seconds(spawn, start, points):
    with HTTP({"0": DIGESTS["0"]}, "127.0.0.1:0") as transport:
        site = spawn(url=transport.url, token=TOKENS["0"], X=points[0].tolist())
        assert decode(transport.exchange({"0": encode(CountCells(0.5))})["0"]).counts.sum() > 0
        os.kill(site.pid, signal.SIGSTOP)  # now it cannot reply
        reply = start(transport.exchange, {"0": encode(CountCells(0.5))})
        time.sleep(0.5)
        assert not reply.done()
        os.kill(site.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert decode(reply.result(ANSWER)["0"]) == Failure("Gone")
        assert time.monotonic() - killed < 5


def test_a_server_that_is_killed_ends_its_clients(spawn, start, tmp_path, points):
    file = tmp_path / "url"
    digests = {"0": DIGESTS["0"], "1": DIGESTS["1"]}
    server = spawn(tokens=digests, url_file=str(file), cell_size=0.5, min_samples=4)
    wait_for(file.exists, ANSWER)
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


def test_a_client_process_leaves_when_it_is_interrupted(spawn, points):
    with serve("0") as transport:
        site = spawn(url=transport.url, token=TOKENS["0"], X=points[0].tolist())
        wait_for(lambda: session(transport).process and session(transport).calls)
        os.kill(site.pid, signal.SIGINT)
        site.join(5)
        assert site.exitcode == 1


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_client_does_not_continue_without_the_state_that_it_needs(keeps_state, spawn, tmp_path):
    """It is killed after its first count of seven rows. The second count must not begin at 0."""
    options = {"state_dir": str(tmp_path)} if keeps_state else {}
    given = {"token": TOKENS["0"], "X": [[0.0]] * 7, "protocol": "counter"}
    with serve("0", rejoin_timeout=ANSWER, gone_after=0.4) as transport:
        first = spawn(url=transport.url, dies=("after the reply", 2), **options, **given)

        def restart():
            first.join(ANSWER)
            return spawn(url=transport.url, **options, **given)

        thread = threading.Thread(target=restart)
        thread.start()
        if keeps_state:
            assert run(counting["count_twice"](), transport) == {"0": 14}
        else:
            with pytest.raises(TooFewClients, match="'0': LostState at AddRows, step 3"):
                run(counting["count_twice"](), transport)
        thread.join(ANSWER)
