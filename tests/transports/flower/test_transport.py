"""The transport: every protocol, who takes part, and clients that are lost.

All nodes are in this process. A simulation and a real deployment follow in test_simulation.py and
test_deployment.py.
"""

import random

import numpy as np
import pytest
from all_protocols import OURS, PROTOCOLS, fitted, frozen
from flower_helpers import (
    SITES,
    Faulty,
    containing,
    failing,
    make_client,
    model,
    states,
)
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from sklearn.base import clone

from fedlib import FederatedKMeans
from fedlib.core.estimator import Federated
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import protocols
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.testing import seeded_noise
from fedlib.transports.flower import Flower, LocalFlowerGrid, PartitionError, client_app
from fedlib.transports.flower.transport import RECORD


@pytest.mark.parametrize("name", OURS)
def test_every_protocol_gives_the_same_as_in_process(name, monkeypatch):
    parameters, make_parts = PROTOCOLS[name]
    kind, parts, options = protocols()[name], make_parts(), []
    make_clients = Federated._make_clients

    def note(self, names, parts, client_class, given, passive):
        options.extend(given)
        return make_clients(self, names, parts, client_class, given, passive)

    monkeypatch.setattr(Federated, "_make_clients", note)
    here = kind(**parameters).fit(parts)

    def make(context):
        partition = context.node_config["partition-id"]
        return kind.client_class(parts[partition], **options[partition])

    grid = LocalFlowerGrid(client_app(make), len(parts))
    there = kind(**parameters).fit(Flower(grid, len(parts)))
    assert there.ledger_.entries == here.ledger_.entries
    assert len(here.ledger_) > 0
    assert fitted(there) == fitted(here)
    labels = getattr(here, "labels_", None)
    if labels is not None:
        kept = [state.labels for state in states(grid) if hasattr(state, "labels")]
        expected = labels if isinstance(labels, list) else [labels] * len(parts)
        assert frozen(kept) == frozen(expected)


@pytest.mark.parametrize("secure", [False, True], ids=["noise of each client", "noise in shares"])
def test_noise_is_the_same_as_in_process(secure):
    """The nodes are in this process, so the seed reaches the noise of their clients."""
    _, make_parts = PROTOCOLS["kmeans"]
    parts, bounds = make_parts(), [[-2.0, -2.0], [6.0, 6.0]]
    private = {"epsilon": 20.0, "delta": 1e-6, "bounds": bounds, "secure": secure}
    estimator = FederatedKMeans(3, method="lloyd", max_iter=3, random_state=0, **private)
    identities = simulated_identities([str(i) for i in range(len(parts))])

    def make(context):
        partition = context.node_config["partition-id"]
        client = estimator.client_class(parts[partition])
        return SecureClient(client, identities[str(partition)]) if secure else client

    grid = LocalFlowerGrid(client_app(make), len(parts))
    with seeded_noise(0):
        here = clone(estimator).fit(parts)
    with seeded_noise(0):
        there = clone(estimator).fit(Flower(grid, len(parts)))
    assert there.cluster_centers_.tobytes() == here.cluster_centers_.tobytes()
    assert frozen([state.labels for state in states(grid)]) == frozen(here.labels_)
    assert there.ledger_.entries == here.ledger_.entries
    assert any("; the reply has rho=" in entry.discloses for entry in there.ledger_)
    with seeded_noise(1):
        other = clone(estimator).fit(parts)
    assert not np.array_equal(other.cluster_centers_, here.cluster_centers_)


def test_every_protocol_is_tested():
    assert set(OURS) <= set(PROTOCOLS)


# Names, order, and who takes part


def test_names_and_order_are_those_of_the_partitions(grid):
    here = model().fit(SITES)
    configs = list(grid.node_configs.items())
    random.Random(3).shuffle(configs)
    numbers = [configs[i][0] for i in range(len(configs))]
    grid.node_configs = dict(configs)
    grid.node_configs |= {
        node: {"partition-id": i} for i, node in enumerate(sorted(numbers, reverse=True))
    }
    there = model().fit(Flower(grid, 3))
    assert there.ledger_.entries == here.ledger_.entries
    assert frozen([state.labels for state in states(grid)]) == frozen(here.labels_)


def test_two_nodes_with_one_partition_are_refused(grid):
    grid.node_configs[1002]["partition-id"] = 0
    with pytest.raises(PartitionError, match="nodes 1000 and 1002 both have the partition 0"):
        model().fit(Flower(grid, 3))


@pytest.mark.parametrize("partition", [3, -1, None, "1.0"])
def test_a_node_without_one_of_the_partitions_is_left_out(partition, caplog):
    grid = LocalFlowerGrid(client_app(make_client), 4)
    grid.node_configs[1003]["partition-id"] = partition
    grid.node_configs = dict(reversed(grid.node_configs.items()))
    if partition is None:
        del grid.node_configs[1003]["partition-id"]
    there = model().fit(Flower(grid, 3))
    assert there.ledger_.entries == model().fit(SITES).ledger_.entries
    value = "none" if partition is None else partition
    text = f"node 1003 takes no part in this run: its partition-id must be in 0..2, got {value}"
    assert [record.getMessage() for record in caplog.records] == [text]


def test_fewer_clients_than_nodes(grid):
    there = model().fit(Flower(grid, 2))
    assert there.ledger_.entries == model().fit(SITES[:2]).ledger_.entries


class Silent(LocalFlowerGrid):
    """A grid with one more node, which is silent during the first polls."""

    def __init__(self, n_polls):
        super().__init__(client_app(make_client), len(SITES) + 1)
        self.node_configs[1003]["partition-id"] = 1
        self.n_polls = n_polls

    def pull_messages(self, numbers):
        self.n_polls -= 1
        silent = 1003 if self.n_polls > 0 else None
        return super().pull_messages(
            number for number in numbers if self._replies[number].metadata.src_node_id != silent
        )


def test_a_silent_node_does_not_delay_the_run_if_all_clients_are_there():
    grid = Silent(n_polls=10**9)
    there = model().fit(Flower(grid, 3, join_timeout=1))
    assert there.ledger_.entries == model().fit(SITES).ledger_.entries
    assert 10**9 - grid.n_polls == 5  # one poll for the nodes to join, two per step


def test_a_second_node_with_a_partition_is_refused_even_if_it_reports_late():
    with pytest.raises(PartitionError, match="nodes 1001 and 1003 both have the partition 1"):
        model().fit(Flower(Silent(n_polls=3), 3))


def test_nodes_may_join_late(grid):
    late = grid.node_configs.pop(1001)
    polls = []
    get_node_ids = grid.get_node_ids

    def join_late():
        polls.append(1)
        if len(polls) == 3:
            grid.node_configs[1001] = late
        return get_node_ids()

    grid.get_node_ids = join_late
    assert model().fit(Flower(grid, 3)).ledger_.lost == {}


def test_a_node_that_never_joins_is_lost(grid):
    del grid.node_configs[1001]
    transport = Flower(grid, 3, join_timeout=0.05)
    lost = model().fit(transport, min_clients=2).ledger_.lost
    assert lost == {"1": "NeverJoined at CountCells, step 1"}


@pytest.mark.parametrize("why", ["InvalidFab", "PartitionError"])
def test_a_node_that_cannot_take_part_leaves_its_reason(grid, why):
    deliver = grid.deliver
    grid.node_configs[1001]["partition-id"] = 7 if why == "PartitionError" else 1

    def fail(message):
        if message.metadata.dst_node_id == 1001 and why == "InvalidFab":
            return Message(Error(ErrorCode.INVALID_FAB, "/home/clinic"), reply_to=message)
        return deliver(message)

    grid.deliver = fail
    lost = model().fit(Flower(grid, 3, join_timeout=0.05), min_clients=2).ledger_.lost
    assert lost == {"1": f"NeverJoined_{why} at CountCells, step 1"}


def test_a_node_that_fails_to_report_its_partition_receives_a_new_request(grid):
    deliver, delivered = grid.deliver, []

    def fail_once(message):
        delivered.append(message)
        if len(delivered) == 1:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=message)
        return deliver(message)

    grid.deliver = fail_once
    assert model().fit(Flower(grid, 3)).ledger_.lost == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_clients": 0}, "n_clients must be at least 1, got 0"),
        ({"n_clients": 1, "join_timeout": 0}, "join_timeout must be positive, got 0"),
        ({"n_clients": 1, "request_timeout": -1}, "request_timeout must be positive, got -1"),
    ],
)
def test_parameters_are_checked(grid, options, text):
    with pytest.raises(ValueError, match=text):
        Flower(grid, **options)


# Clients that are lost


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (failing(ErrorCode.NODE_UNAVAILABLE), "NodeUnavailable"),
        (failing(ErrorCode.CLIENT_APP_CRASHED), "ClientAppCrashed"),
        (failing(99), "Unknown"),
        (containing({}), "InvalidReply"),
        (containing({RECORD: ConfigRecord({"reply": "text"})}), "InvalidReply"),
        (containing({RECORD: ConfigRecord({"reply": b"\x00invalid"})}), "InvalidReply"),
    ],
)
def test_a_node_without_a_valid_reply_is_lost(change, why):
    survivors = model().fit([SITES[0], SITES[2]])
    there = model().fit(Flower(Faulty(change), 3), min_clients=2)
    assert there.ledger_.lost == {"1": f"{why} at CountCells, step 1"}
    assert fitted(there) == fitted(survivors)
    assert "4711" not in there.ledger_.to_frame().to_string()


def test_the_error_of_too_few_clients_names_the_lost_ones():
    grid = Faulty(failing(ErrorCode.NODE_UNAVAILABLE))
    with pytest.raises(TooFewClients, match="'1': NodeUnavailable at CountCells, step 1"):
        model().fit(Flower(grid, 3))


def test_a_node_that_takes_too_long_is_lost(grid):
    pull = grid.pull_messages
    grid.pull_messages = lambda numbers: [
        reply for reply in pull(numbers) if reply.metadata.src_node_id != 1001
    ]
    transport = Flower(grid, 3, request_timeout=0.05)
    transport._nodes, transport._joined = {"0": 1000, "1": 1001, "2": 1002}, True
    lost = model().fit(transport, min_clients=2).ledger_.lost
    assert lost == {"1": "TimedOut at CountCells, step 1"}


def test_a_message_that_the_superlink_rejects_loses_the_client(grid):
    push = grid.push_messages
    grid.push_messages = lambda messages: [
        number
        if message.metadata.dst_node_id != 1001 or message.metadata.message_type == "query"
        else None
        for number, message in zip(push(messages), messages, strict=True)
    ]
    lost = model().fit(Flower(grid, 3), min_clients=2).ledger_.lost
    assert lost == {"1": "NotSent at CountCells, step 1"}


def test_replies_are_matched_by_their_requests(grid):
    """Order and sender do not matter: the error of a lost node comes from the SuperLink."""
    pull = grid.pull_messages

    def shuffled(numbers):
        stranger = Message(RecordDict(), 1, "train")
        stranger.metadata.__dict__["_reply_to_message_id"] = "another run's"
        return [stranger, *reversed(pull(numbers))]

    grid.pull_messages = shuffled
    assert model().fit(Flower(grid, 3)).ledger_.entries == model().fit(SITES).ledger_.entries
