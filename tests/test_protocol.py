import logging
import re

import pytest
from threadpoolctl import ThreadpoolController

from fedlib.ledger import Ledger
from fedlib.messages import (
    Declined,
    Done,
    Failure,
    Message,
    MessageError,
    decode,
    encode,
    registry,
)
from fedlib.protocol import (
    Client,
    LostState,
    Replies,
    TooFewClients,
    Transport,
    agree,
    handles,
    run,
    serve,
)
from fedlib.transports.in_process import InProcess

# A small protocol: every client adds the numbers it is told to its own ---------------------------


class ToySum(Message):
    discloses = "a client's sum"
    total: int


class ToyAdd(Message):
    discloses = "a number"
    reply = ToySum
    number: int


class ToyTell(Message):
    discloses = "the sum of all sums"
    asks_for_data = False
    total: int


def add_up(*numbers):
    """Ask everybody once a number; tell the grand total; return each step's sums by client."""
    steps = []
    for number in numbers:
        replies = yield ToyAdd(number)
        steps.append({name: reply.total for name, reply in replies.items()})
    yield ToyTell(sum(steps[-1].values()))
    return steps


class Adder(Client):
    """A client whose state is its sum so far."""

    def __init__(self, X, passive=False):
        self.X = X
        self.passive = passive
        self.state = ToySum(X)
        self.told = []

    @handles(ToyAdd)
    def add(self, request: ToyAdd) -> ToySum:
        self.state = ToySum(self.state.total + request.number)
        return self.state

    @handles(ToyTell)
    def tell(self, request: ToyTell) -> Done:
        self.told.append(request.total)
        return Done()


class Breaking(Adder):
    """An adder that raises at its n-th request."""

    def __init__(self, X, at=1, error=None):
        super().__init__(X)
        self.left = at
        self.error = error or ZeroDivisionError("my height is 1.83 m")

    def answer(self, request):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return super().answer(request)


def adders(**numbers):
    return {name: Adder(number) for name, number in numbers.items()}


@pytest.fixture
def three():
    return adders(c=1, a=10, b=100)


# Runs in which all goes well --------------------------------------------------------------------


def test_a_run(three):
    ledger = Ledger()
    steps = run(add_up(5, 7), InProcess(three), ledger=ledger)
    assert steps == [{"c": 6, "a": 15, "b": 105}, {"c": 13, "a": 22, "b": 112}]
    assert [client.told for client in three.values()] == [[147]] * 3
    assert ledger.conversation() == ["ToyAdd", "ToySum"] * 2 + ["ToyTell", "Done"]


def test_a_flow_can_be_driven_by_hand():
    """``next(flow)`` is the message that would leave, and ``send`` brings what came back."""
    flow = add_up(5)
    assert next(flow) == ToyAdd(5)
    assert flow.send(Replies({"a": ToySum(6), "b": ToySum(7)})) == ToyTell(13)
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"a": Done(), "b": Done()}))
    assert finished.value.value == [{"a": 6, "b": 7}]


def test_replies_keep_the_order_of_the_transport(three, relay):
    """Whatever order replies arrive in, the flow reads them in the transport's."""

    class Backwards(relay):
        def exchange(self, requests):
            return dict(reversed(super().exchange(requests).items()))

    transport = Backwards(three)
    assert list(transport.exchange({"c": encode(ToyAdd(0)), "a": encode(ToyAdd(0))})) == ["a", "c"]
    ledger = Ledger()
    steps = run(add_up(5), transport, ledger=ledger)
    assert list(steps[0]) == ["c", "a", "b"]
    assert [entry.sender for entry in ledger][3:6] == ["c", "a", "b"]


def test_a_mapping_asks_some(three, relay):
    """A mapping sends each named client its own request, in the transport's order, and no other."""

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


def test_protocols_compose(three):
    """A flow may contain another by ``yield from`` and gets what it returns."""

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


def test_an_error_of_the_flow_is_the_caller_s(three):
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


# Clients that leave -----------------------------------------------------------------------------


def test_by_default_all_must_stay(three):
    three["a"] = Breaking(10)
    ledger = Ledger()
    with pytest.raises(TooFewClients) as caught:
        run(add_up(1), InProcess(three), ledger=ledger)
    text = "2 of 3 clients left, 3 needed. Lost: 'a': ZeroDivisionError at ToyAdd, step 1"
    assert str(caught.value) == text
    assert caught.value.__cause__ is three["a"].error
    assert ledger.lost == {"a": "ZeroDivisionError at ToyAdd, step 1"}


def test_fewer_may_suffice(three, relay):
    """Who is lost is missing from the replies and asked no more; the others go on."""
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
    assert three["c"].told == three["b"].told == [107]


def test_the_last_straw(three):
    """Clients leave one by one; the error names all, and its cause is the last one's."""
    three["a"] = Breaking(10, at=1)
    three["c"] = Breaking(1, at=3, error=OSError("disk"))
    with pytest.raises(TooFewClients) as caught:
        run(add_up(1, 1, 1), InProcess(three), min_clients=2)
    assert str(caught.value) == (
        "1 of 3 clients left, 2 needed. Lost: 'a': ZeroDivisionError at ToyAdd, step 1; "
        "'c': OSError at ToyAdd, step 3"
    )
    assert caught.value.__cause__ is three["c"].error


def test_everybody_fails():
    clients = {name: Breaking(1) for name in "ab"}
    with pytest.raises(TooFewClients, match="0 of 2 clients left, 1 needed"):
        run(add_up(1), InProcess(clients), min_clients=1)


def test_the_flow_may_catch_too_few_clients(three, relay):
    """`TooFewClients` is raised at the flow's ``yield``, where it can save what it has."""
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


def test_the_flow_may_say_goodbye(three, relay):
    """After `TooFewClients` the flow can still tell those that are left."""
    three["a"] = Breaking(10)

    def flow():
        try:
            yield ToyAdd(1)
        except TooFewClients:
            try:
                yield ToyTell(-1)
            except TooFewClients:
                return "told"

    transport = relay(three)
    assert run(flow(), transport) == "told"
    assert list(transport.exchanges[1].request_bytes) == ["c", "b"]
    assert three["b"].told == three["c"].told == [-1]


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
        (lambda request, reply: encode(Done()), "InvalidReply"),  # no answer to ToyAdd
        (lambda request, reply: request, "InvalidReply"),  # an echo
        (lambda request, reply: encode(Failure("OSError")), "OSError"),
        (lambda request, reply: reply.replace(b"total", b"tital"), "InvalidReply"),
        (lambda request, reply: encode(Failure("a lie: 1, 2, 3")), "InvalidReply"),
    ],
)
def test_a_bad_reply_loses_the_client(three, relay, reply, reason):
    """Whatever a client sends but the answer asked for, it leaves and the run goes on."""
    transport, ledger = relay(three, {"a": reply}), Ledger()
    steps = run(add_up(1, 1), transport, min_clients=2, ledger=ledger)
    assert list(map(list, steps)) == [["c", "b"], ["c", "b"]]
    assert ledger.lost == {"a": f"{reason} at ToyAdd, step 1"}
    assert not any("a" in e.request_bytes for e in transport.exchanges[1:])


def test_replies_of_strangers_are_ignored(three, relay):
    class Crowded(relay):
        def exchange(self, requests):
            return super().exchange(requests) | {"stranger": encode(ToySum(1))}

    assert list(run(add_up(1), Crowded(three))[0]) == ["c", "a", "b"]


def test_what_a_bad_reply_is_chained_to(three, relay):
    """Where no client raised, `TooFewClients` has no cause; another run's error is none."""
    three["a"] = Breaking(10)
    transport = relay(three)
    with pytest.raises(TooFewClients):
        run(add_up(1), transport)
    transport.tamper = {"a": lambda request, reply: b"garbage"}
    with pytest.raises(TooFewClients, match="'a': InvalidReply") as caught:
        run(add_up(1), transport)
    assert caught.value.__cause__ is None


def test_the_text_of_an_error_never_travels(three, relay):
    """Nothing that the exception says occurs in any bytes or in what the server may report."""
    three["a"] = Breaking(10, error=ValueError("row 7 is 3.14159"))
    transport, ledger = relay(three), Ledger()
    run(add_up(1), transport, min_clients=2, ledger=ledger)
    assert b"ValueError" in transport.all_bytes
    assert b"3.14159" not in transport.all_bytes
    assert b"row" not in transport.all_bytes
    assert "3.14159" not in repr(ledger)


def test_a_handler_that_stops_iteration(three):
    """StopIteration out of a handler is an error like any other and ends no loop."""
    three["a"] = Breaking(10, error=StopIteration("end"))
    with pytest.raises(TooFewClients, match="'a': StopIteration"):
        run(add_up(1), InProcess(three))


def test_an_error_with_an_odd_name(three):
    """A type's name that no `Failure` may carry still loses the client, not the run."""
    for name in ("E" * 500, "no identifier: 3.14", ""):
        three["a"] = Breaking(10, error=type(name, (Exception,), {})())
        ledger = Ledger()
        run(add_up(1), InProcess(three), min_clients=2, ledger=ledger)
        assert ledger.lost == {"a": "InvalidReply at ToyAdd, step 1"}


# Passive clients --------------------------------------------------------------------------------


def test_a_passive_client_shares_nothing(three, relay):
    """It declines what asks for data, does what it is told, and is not lost."""
    three["a"].passive = True
    transport, ledger = relay(three), Ledger()
    steps = run(add_up(1, 1), transport, ledger=ledger)
    assert list(map(list, steps)) == [["c", "b"], ["c", "b"]]
    assert three["a"].told == [105]
    assert three["a"].state == ToySum(10)  # its handler did not even run
    assert decode(transport.exchanges[0].reply_bytes["a"]) == Declined()
    assert decode(transport.exchanges[2].reply_bytes["a"]) == Done()
    assert ledger.lost == {}


def test_replies_name_who_declined(three):
    three["a"].passive = three["b"].passive = True

    def flow():
        asked = yield ToyAdd(1)
        told = yield ToyTell(1)
        return asked.declined, told.declined

    assert run(flow(), InProcess(three)) == (["a", "b"], [])


def test_all_passive(three):
    for client in three.values():
        client.passive = True
    with pytest.raises(ValueError, match="every client is passive: nobody shares anything"):
        run(add_up(1), InProcess(three))


def test_all_that_are_left_are_passive(three):
    three["a"].passive = three["b"].passive = True
    three["c"] = Breaking(1)
    text = "every client left is passive: .* Lost: 'c': ZeroDivisionError at ToyAdd, step 1"
    with pytest.raises(ValueError, match=text) as caught:
        run(add_up(1), InProcess(three), min_clients=1)
    assert caught.value.__cause__ is three["c"].error


def test_a_passive_client_asked_alone(three):
    """That the only client asked declines is no reason to end the run: others may share."""
    three["a"].passive = True

    def flow():
        answers = {}
        for name in ("c", "a", "b"):
            answers |= yield {name: ToyAdd(1)}
        return list(answers)

    assert run(flow(), InProcess(three)) == ["c", "b"]


def test_telling_passive_clients_is_fine(three):
    for client in three.values():
        client.passive = True

    def flow():
        replies = yield ToyTell(3)
        return list(replies)

    assert run(flow(), InProcess(three)) == ["c", "a", "b"]


# Misuse -----------------------------------------------------------------------------------------


def test_no_clients():
    with pytest.raises(ValueError, match="there are no clients"):
        run(add_up(1), InProcess({}))


def test_a_flow_asks_a_stranger(three):
    def flow():
        yield {"nobody": ToyAdd(1), "a": ToyAdd(1)}

    with pytest.raises(ValueError, match=r"not there: \{'nobody': 'unknown'\}"):
        run(flow(), InProcess(three))
    assert three["a"].state == ToySum(10)


def test_a_flow_asks_a_lost_client(three):
    three["a"] = Breaking(10)

    def flow():
        yield ToyAdd(1)
        yield {"a": ToyAdd(1)}

    with pytest.raises(ValueError, match=r"not there: \{'a': 'ZeroDivisionError at ToyAdd, step 1"):
        run(flow(), InProcess(three), min_clients=2)


def test_a_request_that_cannot_be_sent(three, relay):
    """A mistake of the flow is the server's own error, before anything is sent."""

    def flow():
        yield ToyAdd(2**70)

    transport = relay(three)
    with pytest.raises(MessageError, match="ToyAdd cannot be sent"):
        run(flow(), transport)
    assert transport.exchanges == []


def test_agree():
    assert agree("the number", {"A": 2, "B": 2}) == 2
    with pytest.raises(ValueError, match=r"disagree on the number: 2 at 'A', 'C'; 3 at 'B'$"):
        agree("the number", {"A": 2, "B": 3, "C": 2})


def test_what_a_transport_is():
    assert isinstance(InProcess({}), Transport)
    for other in ([], {}, (), "text", object()):
        assert not isinstance(other, Transport)


# The client's end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (b"", "MessageError"),
        (b"garbage", "MessageError"),
        (encode(ToySum(1)), "TypeError"),  # a reply is no request
        (encode(Done()), "TypeError"),
        (encode(ToyAdd(1))[:-1], "MessageError"),
    ],
)
def test_serve_never_raises(request_, error):
    """Bytes in, bytes out: every error becomes a `Failure`, and is told at this side alone."""
    errors = []
    assert decode(serve(Adder(1), request_, errors.append)) == Failure(error)
    assert [type(e).__name__ for e in errors] == [error]


def test_serve_when_the_answer_cannot_be_sent():
    class Huge(Adder):
        def handle(self, request):
            return ToySum(2**70)

    errors = []
    assert decode(serve(Huge(1), encode(ToyAdd(1)), errors.append)) == Failure("MessageError")
    assert "ToySum cannot be sent" in str(errors[0])


def test_a_client_that_forgets_to_answer(three):
    class Silent(Adder):
        def handle(self, request):
            return None

    three["a"] = Silent(1)
    with pytest.raises(TooFewClients, match="'a': InvalidReply at ToyAdd, step 1"):
        run(add_up(1), InProcess(three))


def test_errors_are_logged_at_the_client(caplog):
    """Without ``on_error`` the exception, text and all, is in this side's log."""
    with caplog.at_level(logging.ERROR, "fedlib.protocol"):
        serve(Breaking(1), encode(ToyAdd(1)))
    assert "my height is 1.83 m" in caplog.text


def test_an_unknown_request_names_both():
    with pytest.raises(TypeError, match="Adder has no answer to Failure"):
        Adder(1).handle(Failure("E"))


def test_a_client_s_state_can_travel(three, reborn):
    """A client made anew from its data and its state's bytes answers as if it had lived on."""
    transport = reborn(Adder, {name: client.X for name, client in three.items()})
    assert run(add_up(5, 7, 9), transport) == run(add_up(5, 7, 9), InProcess(three))
    assert {name: decode(data) for name, data in transport.states.items()} == {
        name: client.state for name, client in three.items()
    }


def test_the_toys_are_registered_once():
    names = [name for name in registry if re.fullmatch("Toy(Sum|Add|Tell)", name)]
    assert sorted(names) == ["ToyAdd", "ToySum", "ToyTell"]


def test_no_client_is_called_server():
    """The ledger could not tell its replies from requests."""
    with pytest.raises(ValueError, match="no client may be called 'server'"):
        run(iter(()), InProcess({"server": Client()}))


@pytest.mark.parametrize("min_clients", [1.5, "1"])
def test_min_clients_is_a_whole_number(min_clients):
    with pytest.raises(ValueError, match="min_clients must be in 1..1"):
        run(iter(()), InProcess({"A": Client()}), min_clients=min_clients)


def test_a_client_without_its_state_says_so():
    """A client rebuilt from its data alone must not answer as if nothing were lost."""
    client = Adder(1)
    assert client.recall(ToySum) is client.state
    client.state = None
    with pytest.raises(LostState, match="Adder has no ToySum"):
        client.recall(ToySum)


def test_sums_do_not_depend_on_the_number_of_cores(three):
    """BLAS and OpenMP have one thread while anybody works, and their own again afterwards."""
    before = threads_now()
    seen = {"client": [], "flow": []}

    class Watching(Adder):
        def answer(self, request):
            seen["client"].append(threads_now())
            return super().answer(request)

    def flow():
        for _ in range(3):
            yield ToyAdd(1)
            seen["flow"].append(threads_now())

    run(flow(), InProcess({name: Watching(1) for name in "abcd"}, n_jobs=4))
    assert seen == {"client": [{1}] * 12, "flow": [{1}] * 3}
    assert threads_now() == before


def threads_now():
    return {library["num_threads"] for library in ThreadpoolController().info()}
