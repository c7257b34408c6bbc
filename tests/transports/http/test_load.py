"""Thousands of sites at the same time, from one other process (``load.py``).

The default tests run a few; ``make test-load`` runs as many as the documentation promises, prints
the measured numbers and compares them with the promises.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from http_helpers import ANSWER, wait_for
from load import Fill, Filling, rows

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.core.messages import decode, encode
from fedlib.transports.http import HTTP, digest, join, new_token

LOAD = Path(__file__).with_name("load.py")
LONG = 600  # seconds after which a full test that still waits has failed


@contextmanager
def sites(n_sites, kind, folder, **options):
    """Serve a number of sites, and wait until each is waiting for its next request."""
    tokens = {f"site-{i}": new_token() for i in range(n_sites)}
    (folder / "tokens").write_text("\n".join(tokens.values()))
    digests = {name: digest(token) for name, token in tokens.items()}
    begin = time.perf_counter()
    with HTTP(digests, "127.0.0.1:0", **options) as transport:
        transport.start_up = time.perf_counter() - begin
        command = [sys.executable, LOAD, transport.url, folder / "tokens", str(kind)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        held = transport._service.sessions.by_name.values()
        wait_for(lambda: all(session.held for session in held), LONG)
        yield transport
    ends, _ = process.communicate(timeout=LONG)
    assert json.loads(ends) == {"finished": n_sites}


def ask_all(transport, size):
    """Ask all sites once with a number of bytes; return the seconds and the replies."""
    request = encode(Fill(bytes(size)))
    begin = time.perf_counter()
    replies = transport.exchange(dict.fromkeys(transport.clients, request))
    return time.perf_counter() - begin, replies


def resident():
    """Return the memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_two_hundred_sites_wait_on_one_connection_each(tmp_path):
    with sites(200, 1000, tmp_path) as transport:
        assert len(transport._server.listener.connections) == 200
        for _ in range(3):
            _, replies = ask_all(transport, 1000)
            assert list(replies) == transport.clients
            assert {decode(reply, Filling).data for reply in replies.values()} == {bytes(1000)}
        assert transport.status().joined == 200


def test_the_site_of_the_load_gives_the_same_result_as_a_client(tmp_path):
    here = HorizontalDBSCAN(cell_size=0.5, min_samples=3).fit([rows(site) for site in range(20)])
    with sites(20, "dbscan", tmp_path) as transport:
        there = HorizontalDBSCAN(cell_size=0.5, min_samples=3).fit(transport)
    assert there.cell_labels_.tobytes() == here.cell_labels_.tobytes()


@pytest.mark.load
def test_ten_thousand_waiting_sites(tmp_path, capsys):
    empty = resident()
    with sites(10_000, 1000, tmp_path) as transport:
        waiting = resident() - empty
        rounds = []
        for _ in range(3):
            seconds, replies = ask_all(transport, 1000)
            assert {decode(reply, Filling).data for reply in replies.values()} == {bytes(1000)}
            rounds.append(seconds)
        after = resident() - empty
        start_up = transport.start_up
    with capsys.disabled():
        print(
            f"\n10,000 sites: start-up {start_up:.2f} s, rounds of 1 kB"
            f" {', '.join(f'{seconds:.1f}' for seconds in rounds)} s,"
            f" {waiting:.0f} MiB waiting, {after:.0f} MiB after three rounds"
        )
    assert max(waiting, after) <= 400


@pytest.mark.load
def test_a_thousand_sites_of_horizontal_dbscan(tmp_path, capsys):
    parts = [rows(site) for site in range(1000)]
    here = HorizontalDBSCAN(cell_size=0.5, min_samples=3).fit(parts)
    with sites(1000, "dbscan", tmp_path) as transport:
        begin = time.perf_counter()
        there = HorizontalDBSCAN(cell_size=0.5, min_samples=3).fit(transport)
        seconds = time.perf_counter() - begin
    with capsys.disabled():
        print(f"\n1,000 sites of horizontal DBSCAN: {seconds:.2f} s")
    assert there.cell_labels_.tobytes() == here.cell_labels_.tobytes()
    assert there.ledger_.lost == {}


@contextmanager
def bare_server():
    """Serve two calls with nothing but Starlette and uvicorn; return the address."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def get(request):
        return Response(b"x" * 40)

    async def post(request):
        await request.body()
        return Response(b"{}")

    app = Starlette(routes=[Route("/", get), Route("/", post, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    wait_for(lambda: server.started)
    [port] = [sock.getsockname()[1] for one in server.servers for sock in one.sockets]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.load
def test_a_round_trip_costs_little_more_than_two_bare_calls(capsys):
    bare, ours = [], []
    client, token = HorizontalDBSCANClient([[0.1], [0.2]]), new_token()
    request = encode(CountCells(1.0))
    with bare_server() as url, HTTP({"a": digest(token)}, "127.0.0.1:0") as transport:
        site = threading.Thread(target=join, args=(transport.url, client, token))
        site.start()
        [reply] = transport.exchange({"a": request}).values()
        with httpx.Client(base_url=url, trust_env=False) as link:
            for _ in range(500):
                begin = time.perf_counter()
                link.get("/")
                link.post("/", content=reply)
                bare.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                transport.exchange({"a": request})
                ours.append(time.perf_counter() - begin)
    site.join(ANSWER)
    ratio = sorted(ours)[250] / sorted(bare)[250]
    with capsys.disabled():
        print(
            f"\nround trip {sorted(ours)[250] * 1e3:.2f} ms, two bare calls"
            f" {sorted(bare)[250] * 1e3:.2f} ms: {ratio:.2f} times"
        )
    assert ratio <= 1.5
