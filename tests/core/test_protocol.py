import logging
import re

import pytest

from fedlib.core import in_process
from fedlib.core.client import Client, LostState, handles
from fedlib.core.in_process import InProcess
from fedlib.core.ledger import Ledger
from fedlib.core.messages import (
    Declined,
    Done,
    Failure,
    Message,
    MessageError,
    decode,
    encode,
    registry,
)
from fedlib.core.protocol import Replies, TooFewClients, Transport, run, serve

# A small protocol: each client adds the numbers that it receives to its own ---------------------


class ToySum(Message):
    discloses = "a client's sum"
    total: int


class ToyAdd(Message):
    discloses = "a number"
    reply = ToySum
    number: int


class ToyShow(Message):
    discloses = "the sum of all sums"
    asks_for_data = False
    total: int


def add_up(*numbers):
    """Send each number to all clients, then the grand total; return the sums of each step."""
    steps = []
    for number in numbers:
        replies = yield ToyAdd(number)
        steps.append({name: reply.total for name, reply in replies.items()})
    yield ToyShow(sum(steps[-1].values()))
    return steps


class Adder(Client):
    """A client whose state is its sum so far."""

    def __init__(self, X, passive=False):
        self.X = X
        self.passive = passive
        self.state = ToySum(X)
        self.totals = []

    @handles(ToyAdd)
    def add(self, request: ToyAdd) -> ToySum:
        self.state = ToySum(self.state.total + request.number)
        return self.state

    @handles(ToyShow)
    def show(self, request: ToyShow) -> Done:
        self.totals.append(request.total)
        return Done()


class Breaking(Adder):
    """An adder that raises an exception at its n-th request."""

    def __init__(self, X, at=1, error=None):
        super().__init__(X)
        self.remaining = at
        self.error = error or ZeroDivisionError("my height is 1.83 m")

    def answer(self, request):
        self.remaining -= 1
        if self.remaining == 0:
            raise self.error
        return super().answer(request)


def adders(**numbers):
    return {name: Adder(number) for name, number in numbers.items()}


@pytest.fixture
def three():
    return adders(c=1, a=10, b=100)


# Runs without failures --------------------------------------------------------------------------


def test_a_run(three):
    ledger = Ledger()
    steps = run(add_up(5, 7), InProcess(three), ledger=ledger)
    assert steps == [{"c": 6, "a": 15, "b": 105}, {"c": 13, "a": 22, "b": 112}]
    assert [client.totals for client in three.values()] == [[147]] * 3
    assert ledger.conversation() == ["ToyAdd", "ToySum"] * 2 + ["ToyShow", "Done"]


def test_a_flow_can_be_driven_by_hand():
    """``next(flow)`` is the first request, and ``send`` takes the replies."""
    flow = add_up(5)
    assert next(flow) == ToyAdd(5)
    assert flow.send(Replies({"a": ToySum(6), "b": ToySum(7)})) == ToyShow(13)
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"a": Done(), "b": Done()}))
    assert finished.value.value == [{"a": 6, "b": 7}]


def test_replies_keep_the_order_of_the_transport(three, relay):
    """The flow reads replies in the transport's order, in any order of arrival."""

    class Backwards(relay):
        def exchange(self, requests):
            return dict(reversed(super().exchange(requests).items()))

    transport = Backwards(three)
    assert list(transport.exchange({"c": encode(ToyAdd(0)), "a": encode(ToyAdd(0))})) == ["a", "c"]
    ledger = Ledger()
    steps = run(add_up(5), transport, ledger=ledger)
    assert list(steps[0]) == ["c", "a", "b"]
    assert [entry.sender for entry in ledger][3:6] == ["c", "a", "b"]


def test_a_mapping_addresses_some_clients(three, relay):
    """Each named client receives its own request, in the transport's order; no other does."""

    def flow():
        replies = yield {"b": ToyAdd(2), "c": ToyAdd(3)}
        assert isinstance(replies, Replies)
        nobody = yield {}
        return list(replies), dict(replies), dict(nobody)

    transport = relay(three)
    order, replies, nobody = run(flow(), transport)
    assert order == ["c", "b"]
    assert replies == {"c": ToySum(4), "b": ToySum(102)}
    assert nobody == {}
    assert [list(e.request_bytes) for e in transport.exchanges] == [["c", "b"], []]
    assert three["a"].state == ToySum(10)


def test_equal_requests_of_a_step_are_read_once(three, monkeypatch):
    read = []
    monkeypatch.setattr(in_process, "decode", lambda data: read.append(data) or decode(data))
    run(add_up(5, 7), InProcess(three, n_jobs=1))
    assert len(read) == 3 == len(set(read))


def test_protocols_compose(three):
    """A flow may contain another with ``yield from`` and receives its return value."""

    def twice():
        first = yield from add_up(1)
        second = yield from add_up(1)
        return first + second

    assert run(twice(), InProcess(three)) == [
        {"c": 2, "a": 11, "b": 101},
        {"c": 3, "a": 12, "b": 102},
    ]


def test_a_flow_without_requests(three, relay):
    def flow():
        return "model"
        yield

    transport = relay(three)
    assert run(flow(), transport) == "model"
    assert transport.exchanges == []


def test_an_error_of_the_flow_reaches_the_caller(three):
    def flow():
        yield ToyAdd(1)
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        run(flow(), InProcess(three))


def test_replies():
    replies = Replies({"b": ToySum(1), "a": ToySum(2)})
    assert list(replies) == ["b", "a"]
    assert len(replies) == 2
    assert replies["a"].total == 2
    assert "c" not in replies
    assert repr(replies) == "Replies({'b': ToySum(total=1), 'a': ToySum(total=2)})"
    with pytest.raises(KeyError):
        replies["c"]
    with pytest.raises(TypeError):
        replies["a"] = ToySum(3)


# Lost clients -----------------------------------------------------------------------------------


def test_by_default_all_clients_must_remain(three):
    three["a"] = Breaking(10)
    ledger = Ledger()
    with pytest.raises(TooFewClients) as caught:
        run(add_up(1), InProcess(three), ledger=ledger)
    text = "2 of 3 clients remain, 3 are needed. Lost: 'a': ZeroDivisionError at ToyAdd, step 1"
    assert str(caught.value) == text
    assert caught.value.__cause__ is three["a"].error
    assert ledger.lost == {"a": "ZeroDivisionError at ToyAdd, step 1"}


def test_fewer_clients_may_be_enough(three, relay):
    """A lost client is missing from the replies and gets no more requests; the others continue."""
    three["a"] = Breaking(10, at=2)
    transport, ledger = relay(three), Ledger()
    steps = run(add_up(1, 1, 1), transport, min_clients=2, ledger=ledger)
    assert list(map(list, steps)) == [["c", "a", "b"], ["c", "b"], ["c", "b"]]
    assert [list(e.request_bytes) for e in transport.exchanges] == [
        ["c", "a", "b"],
        ["c", "a", "b"],
        ["c", "b"],
        ["c", "b"],
    ]
    assert ledger.lost == {"a": "ZeroDivisionError at ToyAdd, step 2"}
    assert three["c"].totals == three["b"].totals == [107]


def test_clients_are_lost_one_by_one(three):
    """The error names all lost clients, and its cause is the error of the last one."""
    three["a"] = Breaking(10, at=1)
    three["c"] = Breaking(1, at=3, error=OSError("disk"))
    with pytest.raises(TooFewClients) as caught:
        run(add_up(1, 1, 1), InProcess(three), min_clients=2)
    assert str(caught.value) == (
        "1 of 3 clients remain, 2 are needed. Lost: 'a': ZeroDivisionError at ToyAdd, step 1; "
        "'c': OSError at ToyAdd, step 3"
    )
    assert caught.value.__cause__ is three["c"].error


def test_all_clients_fail():
    clients = {name: Breaking(1) for name in "ab"}
    with pytest.raises(TooFewClients, match="0 of 2 clients remain, 1 are needed"):
        run(add_up(1), InProcess(clients), min_clients=1)


def test_a_step_in_which_most_clients_fail_points_at_the_request(three):
    """A liar's share in the request can make the honest clients fail: they are not to blame."""
    for name in "ab":
        three[name] = Breaking(1)
    text = "2 of 3 failed at ToyAdd, which points to the request. Lost: 'a': ZeroDivisionError"
    with pytest.raises(TooFewClients, match=text):
        run(add_up(1), InProcess(three), min_clients=2)
    three = adders(c=1, b=100) | {"a": Breaking(1)}
    with pytest.raises(TooFewClients) as caught:  # one of three is to blame itself
        run(add_up(1), InProcess(three))
    assert "points to" not in str(caught.value)


class Absent(InProcess):
    """A transport to which some clients have never come."""

    def __init__(self, clients, absent):
        super().__init__(clients)
        self.absent = absent

    def exchange(self, requests):
        replies = {name: encode(Failure("NeverJoined")) for name in requests if name in self.absent}
        return replies | super().exchange(
            {name: data for name, data in requests.items() if name not in self.absent}
        )


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        ("abc", "no client has joined in time, 3 are needed. Lost: 'c': NeverJoined at ToyAdd"),
        ("bc", "1 of 3 clients have joined in time, 3 are needed. Lost: 'c'"),
    ],
)
def test_clients_that_have_never_joined_are_the_cause(three, absent, text):
    with pytest.raises(TooFewClients, match=text) as caught:
        run(add_up(1), Absent(three, absent))
    assert "points to" not in str(caught.value)


def test_a_failure_next_to_a_client_that_has_never_joined(three):
    """Only failures of clients that were asked can point to the request."""
    three["a"] = Breaking(1)
    with pytest.raises(TooFewClients, match=r"1 of 3 clients remain, 3 are needed\. Lost"):
        run(add_up(1), Absent(three, "b"))


def test_the_flow_may_catch_too_few_clients(three, relay):
    """`TooFewClients` is raised at the flow's ``yield``, so the flow can save its work."""
    three["a"] = Breaking(10, at=2)

    def flow():
        steps = []
        try:
            while True:
                replies = yield ToyAdd(1)
                steps.append(len(replies))
        except TooFewClients as error:
            return steps, str(error)

    transport = relay(three)
    steps, text = run(flow(), transport)
    assert steps == [3]
    assert "'a': ZeroDivisionError at ToyAdd, step 2" in text
    assert len(transport.exchanges) == 2


def test_the_flow_may_send_a_last_request(three, relay):
    """After `TooFewClients` the flow can still address the remaining clients."""
    three["a"] = Breaking(10)

    def flow():
        try:
            yield ToyAdd(1)
        except TooFewClients:
            try:
                yield ToyShow(-1)
            except TooFewClients:
                return "sent"

    transport = relay(three)
    assert run(flow(), transport) == "sent"
    assert list(transport.exchanges[1].request_bytes) == ["c", "b"]
    assert three["b"].totals == three["c"].totals == [-1]


@pytest.mark.parametrize("min_clients", [0, 4, -1, 1000])
def test_min_clients_out_of_range(three, relay, min_clients):
    transport = relay(three)
    with pytest.raises(ValueError, match=rf"min_clients must be in 1\.\.3.*got {min_clients}"):
        run(add_up(1), transport, min_clients=min_clients)
    assert transport.exchanges == []


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda request, reply: None, "Lost"),
        (lambda request, reply: b"", "Lost"),
        (lambda request, reply: b"garbage", "InvalidReply"),
        (lambda request, reply: reply[:-1], "InvalidReply"),
        (lambda request, reply: reply + b"\0", "InvalidReply"),
        (lambda request, reply: encode(Done()), "InvalidReply"),  # not the reply to ToyAdd
        (lambda request, reply: request, "InvalidReply"),  # an echo
        (lambda request, reply: encode(Failure("OSError")), "OSError"),
        (lambda request, reply: reply.replace(b"total", b"tital"), "InvalidReply"),
        (lambda request, reply: encode(Failure("a lie: 1, 2, 3")), "InvalidReply"),
    ],
)
def test_a_bad_reply_loses_the_client(three, relay, reply, reason):
    """A client that sends anything but the requested reply leaves; the run continues."""
    transport, ledger = relay(three, {"a": reply}), Ledger()
    steps = run(add_up(1, 1), transport, min_clients=2, ledger=ledger)
    assert list(map(list, steps)) == [["c", "b"], ["c", "b"]]
    assert ledger.lost == {"a": f"{reason} at ToyAdd, step 1"}
    assert not any("a" in e.request_bytes for e in transport.exchanges[1:])


def test_a_rejected_reply_is_logged_at_the_server(three, relay, caplog):
    """The ledger records `InvalidReply`, and the reason is in the server's log."""
    transport = relay(three, {"a": lambda request, reply: encode(Done())})
    with caplog.at_level(logging.WARNING, "fedlib.core.ledger"):
        run(add_up(1), transport, min_clients=2)
    [record] = caplog.records
    text = "the reply of client 'a' to ToyAdd was rejected: expected ToySum or Declined or"
    assert record.getMessage().startswith(text)
    assert transport.ledger.rejected["a"].startswith("expected ToySum or Declined")
    assert transport.ledger.why_lost("a").startswith("InvalidReply at ToyAdd, step 1 (expected T")
    failures = [e for e in transport.ledger if e.message == "Failure"]
    assert [e.discloses for e in failures] == ["the type of an error (InvalidReply)"]


def test_a_request_may_reject_a_reply(three):
    """`Message.accept` decides whether a reply fits its request, and what the flow receives."""

    class ToyAddSmall(ToyAdd):
        def accept(self, reply):
            if reply.total > 100:
                raise MessageError(f"a sum of {reply.total}, at most 100 are allowed")
            return reply.total

    class SmallAdder(Adder):
        @handles(ToyAddSmall)
        def add_small(self, request):
            return self.add(request)

    def flow():
        return dict((yield ToyAddSmall(1)))

    try:
        clients = {name: SmallAdder(client.X) for name, client in three.items()}
        ledger = Ledger()
        assert run(flow(), InProcess(clients), min_clients=2, ledger=ledger) == {"c": 2, "a": 11}
        assert ledger.lost == {"b": "InvalidReply at ToyAddSmall, step 1"}
    finally:
        del registry["ToyAddSmall"]


def test_run_sets_the_transport_s_ledger(three):
    transport = InProcess(three)
    assert transport.ledger is None
    run(add_up(1), transport)
    assert transport.ledger.conversation() == ["ToyAdd", "ToySum", "ToyShow", "Done"]
    ledger = Ledger()
    run(add_up(1), transport, ledger=ledger)
    assert transport.ledger is ledger


def test_replies_of_unknown_clients_are_ignored(three, relay):
    class Crowded(relay):
        def exchange(self, requests):
            return super().exchange(requests) | {"stranger": encode(ToySum(1))}

    assert list(run(add_up(1), Crowded(three))[0]) == ["c", "a", "b"]


def test_the_cause_of_too_few_clients(three, relay):
    """`TooFewClients` has no cause if no client raised an error in this run."""
    three["a"] = Breaking(10)
    transport = relay(three)
    with pytest.raises(TooFewClients):
        run(add_up(1), transport)
    transport.tamper = {"a": lambda request, reply: b"garbage"}
    with pytest.raises(TooFewClients, match="'a': InvalidReply") as caught:
        run(add_up(1), transport)
    assert caught.value.__cause__ is None


def test_the_text_of_an_error_never_travels(three, relay):
    """The text of an exception is neither in any bytes nor in the ledger."""
    three["a"] = Breaking(10, error=ValueError("row 7 is 3.14159"))
    transport, ledger = relay(three), Ledger()
    run(add_up(1), transport, min_clients=2, ledger=ledger)
    assert b"ValueError" in transport.all_bytes
    assert b"3.14159" not in transport.all_bytes
    assert b"row" not in transport.all_bytes
    assert "3.14159" not in repr(ledger)


def test_a_handler_that_stops_iteration(three):
    """StopIteration raised by a handler is an error like any other."""
    three["a"] = Breaking(10, error=StopIteration("end"))
    with pytest.raises(TooFewClients, match="'a': StopIteration"):
        run(add_up(1), InProcess(three))


def test_an_error_with_an_invalid_name(three):
    """An error whose type name no `Failure` may carry costs the client, not the run."""
    for name in ("E" * 500, "no identifier: 3.14", ""):
        three["a"] = Breaking(10, error=type(name, (Exception,), {})())
        ledger = Ledger()
        run(add_up(1), InProcess(three), min_clients=2, ledger=ledger)
        assert ledger.lost == {"a": "InvalidReply at ToyAdd, step 1"}


# Passive clients --------------------------------------------------------------------------------


def test_a_passive_client_shares_nothing(three, relay):
    """It declines requests for data, handles the others, and is not lost."""
    three["a"].passive = True
    transport, ledger = relay(three), Ledger()
    steps = run(add_up(1, 1), transport, ledger=ledger)
    assert list(map(list, steps)) == [["c", "b"], ["c", "b"]]
    assert three["a"].totals == [105]
    assert three["a"].state == ToySum(10)  # its handler did not run
    assert decode(transport.exchanges[0].reply_bytes["a"]) == Declined()
    assert decode(transport.exchanges[2].reply_bytes["a"]) == Done()
    assert ledger.lost == {}


def test_replies_name_the_clients_that_declined(three):
    three["a"].passive = three["b"].passive = True

    def flow():
        sums = yield ToyAdd(1)
        shown = yield ToyShow(1)
        return sums.declined, shown.declined

    assert run(flow(), InProcess(three)) == (["a", "b"], [])


def test_all_passive(three):
    for client in three.values():
        client.passive = True
    with pytest.raises(
        ValueError, match="every client is passive or declined, so nobody shares any data"
    ):
        run(add_up(1), InProcess(three))


def test_all_remaining_clients_are_passive(three):
    three["a"].passive = three["b"].passive = True
    three["c"] = Breaking(1)
    text = (
        "every remaining client is passive or declined, .* 'c': ZeroDivisionError at ToyAdd, step 1"
    )
    with pytest.raises(ValueError, match=text) as caught:
        run(add_up(1), InProcess(three), min_clients=1)
    assert caught.value.__cause__ is three["c"].error


def test_a_passive_client_addressed_alone(three):
    """The run continues when the only addressed client declines: others may share."""
    three["a"].passive = True

    def flow():
        replies = {}
        for name in ("c", "a", "b"):
            replies |= yield {name: ToyAdd(1)}
        return list(replies)

    assert run(flow(), InProcess(three)) == ["c", "b"]


def test_passive_clients_receive_results(three):
    for client in three.values():
        client.passive = True

    def flow():
        replies = yield ToyShow(3)
        return list(replies)

    assert run(flow(), InProcess(three)) == ["c", "a", "b"]


# Misuse -----------------------------------------------------------------------------------------


def test_no_clients():
    with pytest.raises(ValueError, match="there are no clients"):
        run(add_up(1), InProcess({}))


def test_a_flow_addresses_an_unknown_client(three):
    def flow():
        yield {"nobody": ToyAdd(1), "a": ToyAdd(1)}

    with pytest.raises(ValueError, match=r"not in the run: \{'nobody': 'unknown'\}"):
        run(flow(), InProcess(three))
    assert three["a"].state == ToySum(10)


def test_a_flow_addresses_a_lost_client(three):
    three["a"] = Breaking(10)

    def flow():
        yield ToyAdd(1)
        yield {"a": ToyAdd(1)}

    with pytest.raises(
        ValueError, match=r"not in the run: \{'a': 'ZeroDivisionError at ToyAdd, step 1"
    ):
        run(flow(), InProcess(three), min_clients=2)


def test_a_request_that_cannot_be_sent(three, relay):
    """A mistake of the flow is an error at the server, before anything is sent."""

    def flow():
        yield ToyAdd(2**70)

    transport = relay(three)
    with pytest.raises(MessageError, match="ToyAdd cannot be sent"):
        run(flow(), transport)
    assert transport.exchanges == []


def test_the_transport_protocol():
    assert isinstance(InProcess({}), Transport)
    for other in ([], {}, (), "text", object()):
        assert not isinstance(other, Transport)


# The client's side ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (b"", "MessageError"),
        (b"garbage", "MessageError"),
        (encode(ToySum(1)), "TypeError"),  # a reply is not a request
        (encode(Done()), "TypeError"),
        (encode(ToyAdd(1))[:-1], "MessageError"),
    ],
)
def test_serve_never_raises(request_, error):
    """Every error becomes a `Failure`; the exception itself stays on this side."""
    errors = []
    assert decode(serve(Adder(1), request_, errors.append)) == Failure(error)
    assert [type(e).__name__ for e in errors] == [error]


def test_serve_a_reply_that_cannot_be_sent():
    class Huge(Adder):
        def handle(self, request):
            return ToySum(2**70)

    errors = []
    assert decode(serve(Huge(1), encode(ToyAdd(1)), errors.append)) == Failure("MessageError")
    assert "ToySum cannot be sent" in str(errors[0])


def test_a_handler_that_returns_nothing(three):
    class Silent(Adder):
        def handle(self, request):
            return None

    three["a"] = Silent(1)
    with pytest.raises(TooFewClients, match="'a': InvalidReply at ToyAdd, step 1"):
        run(add_up(1), InProcess(three))


def test_errors_are_logged_at_the_client(caplog):
    """Without ``on_error`` the exception and its text are in the log of this process."""
    with caplog.at_level(logging.ERROR, "fedlib.core.protocol"):
        serve(Breaking(1), encode(ToyAdd(1)))
    assert "my height is 1.83 m" in caplog.text


def test_an_unknown_request_names_both():
    with pytest.raises(TypeError, match="Adder has no handler for Failure"):
        Adder(1).handle(Failure("E"))


def test_handlers_are_inherited_and_may_be_overridden():
    class Doubler(Adder):
        def add(self, request):
            return ToySum(2 * super().add(request).total)

    assert Doubler.handlers == Adder.handlers == {ToyAdd: "add", ToyShow: "show"}
    assert Doubler(1).handle(ToyAdd(2)) == ToySum(6)


def test_a_client_is_rebuilt_from_data_and_state(three, reborn):
    """A client that is rebuilt for each request gives the same replies."""
    transport = reborn(Adder, {name: client.X for name, client in three.items()})
    assert run(add_up(5, 7, 9), transport) == run(add_up(5, 7, 9), InProcess(three))
    assert {name: client.state for name, client in transport.members.items()} == {
        name: client.state for name, client in three.items()
    }


def test_the_messages_are_registered_once():
    names = [name for name in registry if re.fullmatch("Toy(Sum|Add|Show)", name)]
    assert sorted(names) == ["ToyAdd", "ToyShow", "ToySum"]


def test_no_client_is_called_server():
    """The ledger could not distinguish its replies from requests."""
    with pytest.raises(ValueError, match="a client must not be called 'server'"):
        run(iter(()), InProcess({"server": Client()}))


@pytest.mark.parametrize("min_clients", [1.5, "1"])
def test_min_clients_is_a_whole_number(min_clients):
    with pytest.raises(ValueError, match="min_clients must be in 1..1"):
        run(iter(()), InProcess({"A": Client()}), min_clients=min_clients)


def test_a_client_without_its_state_fails():
    """A client rebuilt from its data alone must not reply as if it had its state."""
    client = Adder(1)
    assert client.recall(ToySum) is client.state
    client.state = None
    with pytest.raises(LostState, match="Adder has no ToySum"):
        client.recall(ToySum)
