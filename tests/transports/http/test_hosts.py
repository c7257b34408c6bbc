"""Tests of what a server refuses early: names of strangers, bodies, headers without end."""

import socket
from contextlib import suppress

import pytest
from http_helpers import ANSWER, TOKENS, address, caller, refused, serve

from fedlib.transports.http import connections
from fedlib.transports.http.wire import PROCESS


def answer(transport, head):
    """Return the answer to the head of a call that has no body."""
    received = b""
    with (
        socket.create_connection(address(transport), ANSWER) as line,
        suppress(ConnectionError),
    ):
        line.sendall(head + b"Connection: close\r\n\r\n")
        while piece := line.recv(2**16):
            received += piece
    return received


HOSTS = {
    "127.0.0.1": 200,
    "127.0.0.1:8080": 200,
    "[::1]:8080": 200,
    "localhost": 200,
    "LOCALHOST.:80": 200,
    "fl.example.org": 200,
    "FL.example.org:443": 200,
    "evil.example": 421,
    "localhost.evil.example": 421,
    "127.0.0.1.evil.example": 421,
    "fl.example.org@evil.example": 421,
    "[": 421,
    "": 421,
}


def test_what_needs_no_token_is_answered_to_known_names_of_the_server_only():
    with serve("0", hosts=["fl.example.org:8443"], monitors=["127.0.0.1"]) as transport:
        for path in ("/", "/health", "/metrics"):
            for host, code in HOSTS.items():
                call = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n".encode()
                assert answer(transport, call).startswith(f"HTTP/1.1 {code} ".encode()), host
            for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
                call = f"GET {path} HTTP/1.1\r\n".encode() + hosts
                assert b" 200 " not in answer(transport, call).partition(b"\r\n")[0]
        call = b"GET / HTTP/1.1\r\nHost: evil.example\r\n"
        assert b"or let its operator name it with --host" in answer(transport, call)


def test_a_site_may_call_the_server_by_any_name():
    """A web page in a browser has no token."""
    with serve("0") as transport, caller(transport) as link:
        assert link.post("/join", headers={"Host": "any.example"}).status_code == 200


@pytest.mark.parametrize("path", ["/join", "/heartbeat", "/leave", "/request", "/check"])
def test_only_a_reply_may_have_a_body(path):
    """A caller states a body of a terabyte and is refused before it has sent a byte of it."""
    method = "GET" if path in ("/request", "/check") else "POST"
    known = f"Authorization: Bearer {TOKENS['0']}\r\n{PROCESS}: p\r\nContent-Length: {10**12}\r\n"
    with serve("0") as transport:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{known}".encode()
        assert answer(transport, head).startswith(b"HTTP/1.1 413 ")
        with caller(transport) as link:
            assert refused(link.request(method, path, content=b"x"), 413)


@pytest.mark.parametrize("beginning", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\nX"])
def test_headers_without_end_are_refused_while_they_arrive(beginning):
    """The parser would keep them until their end."""
    with serve("0") as transport, socket.create_connection(address(transport), ANSWER) as line:
        n_sent, received = 0, b""
        with suppress(ConnectionError):
            line.sendall(beginning)
            while n_sent < 2**25:
                line.sendall(b"x" * 2**16)
                n_sent += 2**16
        with suppress(ConnectionError):
            received = line.recv(2**16)
    assert n_sent < 2**25
    assert received[:13] in (b"", b"HTTP/1.1 431 ")


def test_the_count_of_headers_is_limited():
    n = connections.MAX_HEADERS // connections.PER_HEADER
    with serve("0") as transport:
        for count, code in ((n // 2, 200), (n, 431)):
            call = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * count
            assert answer(transport, call).startswith(f"HTTP/1.1 {code} ".encode())
