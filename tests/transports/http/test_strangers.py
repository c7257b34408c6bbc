"""Callers without a token cannot stop a run, whatever they send and however slowly."""

import asyncio
import contextlib
import os
import resource
import socket
import threading
import time

import pytest
import uvicorn
from http_helpers import ANSWER, TOKENS, address, attend, caller, estimator, serve, wait_for

from fedlib import __version__
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.transports.http import connections
from fedlib.transports.http.limits import Limits
from fedlib.transports.http.wire import PROCESS, VERSION

SHORT = {"stranger_seconds": 0.5}
KNOWN = f"Authorization: Bearer {TOKENS['0']}\r\n{PROCESS}: a\r\n{VERSION}: {__version__}\r\n"
SLOW = {
    "silent": (b"", b""),
    "slow headers": (b"POST /join HTTP/1.1\r\nX: ", b"x"),
    "slow blank lines": (b"", b"\r\n"),
    "slow body of a refused call": (b"POST /reply HTTP/1.1\r\nContent-Length: 9999\r\n\r\n", b"x"),
    "slow request line": (b"", b"G"),
}


@contextlib.contextmanager
def slow_callers(transport, beginning, piece, n_callers=24):
    """Keep connections open that send a beginning, and then the same piece again and again."""
    done = threading.Event()
    lines = [socket.create_connection(address(transport), ANSWER) for _ in range(n_callers)]
    for line in lines:
        line.sendall(beginning)

    def trickle():
        while not done.wait(0.05):
            for line in lines:
                with contextlib.suppress(OSError):
                    line.sendall(piece)

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield lines
    finally:
        done.set()
        thread.join()
        for line in lines:
            line.close()


def ended(line):
    """Return whether the server has closed a connection."""
    try:
        while line.recv(2**16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("attack", SLOW)
def test_slow_strangers_do_not_delay_a_run_and_are_closed(attack, points, start):
    beginning, piece = SLOW[attack]
    with serve("0", **SHORT) as transport:
        listener = transport._server.listener
        with slow_callers(transport, beginning, piece) as lines:
            [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
            assert estimator().fit(transport).ledger_.lost == {}
            assert all(ended(line) for line in lines)
            wait_for(lambda: len(listener.connections) <= 1)  # that of the client
    assert end.result(ANSWER) == "finished"


def test_a_stranger_that_does_not_read_its_answer_is_closed():
    with (
        serve("0", **SHORT) as transport,
        socket.create_connection(address(transport), ANSWER) as line,
    ):
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: not transport._server.listener.connections)


def test_too_many_strangers_close_the_first_of_them():
    limits = {"max_strangers": 4, "max_per_address": 2}  # and one per client
    with (
        serve("0", gone_after=0.2, **limits) as transport,
        contextlib.ExitStack() as stack,
    ):
        listener = transport._server.listener
        lines = []
        for n in range(8):
            source = (f"127.0.0.{1 + n // 4}", 0)
            line = socket.create_connection(address(transport), ANSWER, source)
            lines.append(stack.enter_context(line))
            wait_for(lambda line=line: line.getsockname() in callers(listener))
        open_now = [line.getsockname() in callers(listener) for line in lines]
        assert open_now == [False, False, True, True, False, True, True, True]
        with caller(transport) as link:  # an honest caller is the last one
            assert link.post("/join").status_code == 200


def callers(listener):
    """Return the addresses of the callers whose connections are open."""
    opened = [one.transport for one in listener.connections if one.transport is not None]
    return {transport.get_extra_info("peername") for transport in opened}


def test_file_descriptors_are_never_exhausted(points, start):
    """A server that may open few connections closes strangers instead of its clients."""
    with serve("0") as transport, contextlib.ExitStack() as stack:
        listener = transport._server.listener
        listener.max_connections = 5
        [end] = attend(start, transport, {"0": HorizontalDBSCANClient(points[0])})
        for _ in range(20):
            stack.enter_context(socket.create_connection(address(transport), ANSWER))
        wait_for(lambda: len(listener.connections) == 5)
        assert estimator().fit(transport).ledger_.lost == {}
    assert end.result(ANSWER) == "finished"


def test_a_server_without_file_descriptors_waits_and_continues():
    """It waits between two attempts to accept, and accepts when a descriptor is free again."""
    with serve("0") as transport:
        used = [os.dup(0)]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            # Exactly one more descriptor is free: that of the caller. The server has none.
            resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 1, limit[1]))
            os.close(used.pop())
            line = socket.create_connection(address(transport), ANSWER)
            begin, calls = time.process_time(), len(transport._server.listener.connections)
            time.sleep(1)
            assert time.process_time() - begin < 0.5
            assert calls == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        with line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(2**16).startswith(b"HTTP/1.1 200 ")


def test_a_server_that_may_not_open_enough_files_says_so_at_the_start():
    with pytest.raises(ValueError, match=r"tokens need 10000000000 file descriptors, this process"):
        connections.raise_descriptor_limit(10**10)


@pytest.mark.parametrize(
    ("limits", "headers", "n_bytes"),
    [
        ({"idle_seconds": 0.5}, "X: ", 0),  # the headers do not end
        ({"body_seconds": 0.5, "bytes_per_second": 1e9}, "Content-Length: 9\r\n\r\n", 3),
    ],
)
def test_a_known_caller_has_deadlines_too(limits, headers, n_bytes):
    with (
        serve("0", gone_after=0.2, **limits) as transport,
        socket.create_connection(address(transport), ANSWER) as line,
    ):
        line.sendall(f"POST /join HTTP/1.1\r\n{KNOWN}Content-Length: 0\r\n\r\n".encode())
        assert b" 200 " in line.recv(2**16)
        line.sendall(f"POST /heartbeat HTTP/1.1\r\n{KNOWN}{headers}".encode() + bytes(n_bytes))
        assert ended(line)


def test_calls_cannot_be_piled_up_on_one_connection():
    with serve("0") as transport:
        with socket.create_connection(address(transport), ANSWER) as line:
            line.sendall(f"GET /request HTTP/1.1\r\n{KNOWN}\r\n".encode() * 100)
            assert ended(line)
        wait_for(lambda: not transport._server.listener.connections)


def test_a_client_has_few_connections():
    with serve("0", gone_after=0.2) as transport, contextlib.ExitStack() as stack:
        answers = []
        for _ in range(connections.MAX_LINKS + 1):
            line = stack.enter_context(socket.create_connection(address(transport), ANSWER))
            line.sendall(f"POST /join HTTP/1.1\r\n{KNOWN}Content-Length: 0\r\n\r\n".encode())
            answers.append(line.recv(2**16).split()[1])
        assert answers == [b"200"] * connections.MAX_LINKS + [b"429"]


def test_a_caller_that_is_closed_before_it_opens_leaves_no_socket():
    """An event loop that accepts a caller and ends at once has not begun to set it up."""

    async def accept_and_close():
        with socket.create_server(("127.0.0.1", 0)) as waiting:
            waiting.setblocking(False)
            listener = connections.Listener(
                waiting, None, Limits(), 0, 9, lambda token: None, lambda connection: None
            )
            with socket.create_connection(waiting.getsockname(), ANSWER) as line:
                config = uvicorn.Config(None, ws="none", log_config=None)
                config.load()
                listener._accept(connections.WebServer(config, listener))
                listener.close()
                await asyncio.wait_for(listener.wait_closed(), ANSWER)
                line.settimeout(ANSWER)
                assert line.recv(1) == b""

    asyncio.run(accept_and_close())
