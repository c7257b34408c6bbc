"""The transport to clients in this process: order, errors, threads."""

import gc
import threading
import time

import pytest

from fedlib.core import in_process
from fedlib.core.client import Client
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Done, Failure, decode, encode
from fedlib.core.protocol import Transport

REQUEST = encode(Done())
FAILED = Failure("BrokenBarrierError")  # of a client that waited alone


class Scripted(Client):
    """A client that calls a function and replies `Done`."""

    def __init__(self, act):
        self.act = act
        self.n_requests = 0

    def answer(self, request):
        self.n_requests += 1
        self.act()
        return Done()


def fail():
    raise KeyError("the secret")


def nothing():
    pass


def test_it_is_a_transport():
    transport = InProcess({})
    assert isinstance(transport, Transport)
    assert transport.clients == []
    assert transport.exchange({}) == {}


def test_the_clients_keep_their_order():
    """Clients and replies have the given order, even if a later client answers first."""

    def wait(seconds):
        return Scripted(lambda: time.sleep(seconds))

    transport = InProcess({"b": wait(0.03), "a": wait(0.0), "c": wait(0.01)}, n_jobs=3)
    assert transport.clients == ["b", "a", "c"]
    replies = transport.exchange(dict.fromkeys(transport.clients, REQUEST))
    assert list(replies) == ["b", "a", "c"]
    assert set(map(type, replies.values())) == {bytes}


def test_only_clients_with_a_request_answer():
    clients = {name: Scripted(nothing) for name in "abc"}
    transport = InProcess(clients)
    assert list(transport.exchange({"c": REQUEST, "a": REQUEST})) == ["c", "a"]
    assert [client.n_requests for client in clients.values()] == [1, 0, 1]


def test_a_client_that_raises():
    """Its reply is a `Failure`, its exception is kept, and the other replies arrive."""
    transport = InProcess({"good": Scripted(nothing), "bad": Scripted(fail)})
    replies = transport.exchange(dict.fromkeys(transport.clients, REQUEST))
    assert decode(replies["good"]) == Done()
    assert decode(replies["bad"]) == Failure("KeyError")
    assert b"secret" not in replies["bad"]
    assert list(transport.errors) == ["bad"]
    assert isinstance(transport.errors["bad"], KeyError)


def test_bytes_that_are_not_a_message():
    """The client checks the request too."""
    transport = InProcess({"a": Scripted(nothing)})
    assert decode(transport.exchange({"a": b"\xc1"})["a"]) == Failure("MessageError")


def test_an_error_is_removed_when_the_client_answers_again():
    """A later run over the same transport must not report an earlier error."""
    client = Scripted(fail)
    transport = InProcess({"a": client})
    transport.exchange({"a": REQUEST})
    assert list(transport.errors) == ["a"]
    client.act = nothing
    transport.exchange({"a": REQUEST})
    assert list(transport.errors) == []


@pytest.mark.parametrize(("n_jobs", "reply"), [(2, Done()), (1, FAILED)])
def test_clients_work_at_the_same_time(n_jobs, reply):
    """Two clients that wait for each other succeed only if both work at the same time."""
    barrier = threading.Barrier(2, timeout=5 if n_jobs == 2 else 0.05)
    transport = InProcess({name: Scripted(barrier.wait) for name in "ab"}, n_jobs=n_jobs)
    replies = transport.exchange({"a": REQUEST, "b": REQUEST})
    assert decode(replies["a"]) == reply


@pytest.mark.parametrize(("short", "reply"), [(0, Done()), (float("inf"), FAILED)])
def test_after_short_replies_one_thread_is_used(monkeypatch, short, reply):
    """The time of the first exchange decides whether the clients of the second work together."""
    monkeypatch.setattr(in_process, "SHORT", short)
    clients = {name: Scripted(nothing) for name in "ab"}
    transport = InProcess(clients, n_jobs=2)
    transport.exchange({"a": REQUEST, "b": REQUEST})
    barrier = threading.Barrier(2, timeout=5 if reply == Done() else 0.05)
    for client in clients.values():
        client.act = barrier.wait
    replies = transport.exchange({"a": REQUEST, "b": REQUEST})
    assert decode(replies["a"]) == reply


def test_threads_end_with_their_transport():
    """A hundred fits must not leave their threads behind."""
    before = threading.active_count()
    for _ in range(100):
        InProcess({name: Scripted(nothing) for name in "ab"}).exchange({"a": REQUEST, "b": REQUEST})
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.parametrize("n_jobs", [0, -2, 1.5, "2"])
def test_number_of_threads_is_checked(n_jobs):
    with pytest.raises(ValueError, match="n_jobs must be -1 or an integer of at least 1, got"):
        InProcess({"a": Scripted(nothing)}, n_jobs=n_jobs)
