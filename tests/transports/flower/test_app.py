"""The app of a site's node: errors, passive sites, and the state between two requests."""

import pytest
from all_protocols import frozen
from flower_helpers import SITES, Faulty, make_client, model, states
from flwr.app import ConfigRecord, Message, RecordDict

from fedlib.clustering.density.horizontal import CountCells
from fedlib.core.client import Client, handles
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Failure, Labels, decode, encode
from fedlib.core.messages import Message as FedlibMessage
from fedlib.core.protocol import TooFewClients, run
from fedlib.transports.flower import Flower, LocalFlowerGrid, client_app
from fedlib.transports.flower.transport import RECORD


@pytest.mark.parametrize("where", ["make_client", "after"])
def test_only_the_type_of_an_error_leaves_the_site(where, caplog):
    def fail(*_):
        raise FileNotFoundError("/home/clinic/patients.csv")

    app = client_app(fail) if where == "make_client" else client_app(make_client, fail)
    grid = Faulty(lambda message, reply: reply, app=app)
    replies = []
    grid.change = lambda message, reply: replies.append(reply) or reply
    with pytest.raises(TooFewClients, match="'1': FileNotFoundError at CountCells") as caught:
        model().fit(Flower(grid, 3))
    assert "clinic" not in str(caught.value)
    assert b"clinic" not in replies[0].content[RECORD]["reply"]
    assert "clinic" in caplog.text  # in the log of the site


def test_a_passive_node_shares_nothing(grid):
    grid.node_configs[1001]["passive"] = True
    here, there = model().fit(SITES, passive=[1]), model().fit(Flower(grid, 3))
    assert there.ledger_.entries == here.ledger_.entries
    assert frozen([state.labels for state in states(grid)]) == frozen(here.labels_)


@pytest.mark.parametrize("passive", ["false", "true", 1])
def test_passive_must_be_true_or_false(grid, passive, caplog):
    grid.node_configs[1001]["passive"] = passive
    there = model().fit(Flower(grid, 3), min_clients=2)
    assert there.ledger_.lost == {"1": "ValueError at CountCells, step 1"}
    assert f"passive must be true or false, without quotes; got {passive!r}" in caplog.text


def test_a_site_can_keep_its_labels():
    kept = {}

    def keep(client, context):
        if isinstance(client.state, Labels):
            kept[context.node_config["partition-id"]] = client.state.labels.tolist()

    model().fit(Flower(LocalFlowerGrid(client_app(make_client, keep), 3), 3))
    assert kept == {i: part.tolist() for i, part in enumerate(model().fit(SITES).labels_)}


# The state that stays with a node


class Visited(FedlibMessage):
    discloses = "the number of requests to this client"
    times: int


class Visit(FedlibMessage):
    discloses = "nothing"
    reply = Visited


class VisitCount(FedlibMessage):
    discloses = "nothing: it stays with the client"
    times: int


class Visitor(Client):
    @handles(Visit)
    def visit(self, request):
        self.state = VisitCount(self.state.times + 1 if self.state else 1)
        return Visited(self.state.times)


def visit(times):
    counts = []
    for _ in range(times):
        replies = yield Visit()
        counts.append([reply.times for reply in replies.values()])
    return counts


@pytest.fixture
def visitors():
    return LocalFlowerGrid(client_app(lambda context: Visitor()), 2)


def test_a_client_rebuilt_for_every_message_has_its_state(visitors):
    assert run(visit(3), Flower(visitors, 2)) == [[1, 1], [2, 2], [3, 3]]


def test_another_run_starts_without_state(visitors):
    assert run(visit(2), Flower(visitors, 2)) == [[1, 1], [2, 2]]
    assert run(visit(1), Flower(visitors, 2)) == [[1, 1]]


def test_a_second_flow_over_the_same_transport_has_the_state(visitors):
    transport = Flower(visitors, 2)
    run(visit(2), transport)
    assert run(visit(1), transport) == [[3, 3]]


def test_a_node_that_lost_its_state_is_lost(visitors):
    def forget(times):
        counts = yield from visit(times)
        visitors._states[1001] = RecordDict()  # as a restarted SuperNode does
        return counts + (yield from visit(times))

    transport = Flower(visitors, 2)
    ledger = Ledger()
    assert run(forget(2), transport, min_clients=1, ledger=ledger) == [[1, 1], [2, 2], [3], [4]]
    assert ledger.lost == {"1": "LostState at Visit, step 3"}


def test_a_repeated_request_gets_the_same_reply(visitors):
    fields = {"session": "a", "sequence": 1, "request": encode(Visit())}

    def send(**changes):
        record = RecordDict({RECORD: ConfigRecord(fields | changes)})
        (reply,) = visitors.send_and_receive([Message(record, 1000, "train")])
        return decode(reply.content[RECORD]["reply"])

    lost = Failure("LostState")
    assert send() == send() == Visited(1)
    assert send(sequence=2) == send(sequence=2) == Visited(2)
    assert send() == lost  # an older request
    assert send(sequence=2, request=encode(CountCells(1.0))) == lost  # another request
    assert send(sequence=4) == lost
    assert send(sequence=3) == Visited(3)  # the refused requests changed nothing
    assert send(session="b", sequence=2) == lost
    assert send(session="b") == Visited(1)
