"""Flower with its grid in this process: every protocol, dropouts, lost states, lies.

Simulation and a real deployment follow in test_flower_simulation.py and
test_flower_deployment.py.
"""

import importlib
import random
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

import fedlib
from fedlib import HorizontalDBSCAN
from fedlib.cli.main import cli
from fedlib.federated import Federated, protocols
from fedlib.flower_app import TEMPLATE, new
from fedlib.horizontal_dbscan import CountCells, HorizontalDBSCANClient, horizontal_dbscan
from fedlib.messages import Labels, decode, encode
from fedlib.messages import Message as FedlibMessage
from fedlib.protocol import Client, TooFewClients, run
from fedlib.transports.flower import FIN, Flower, GridInProcess, PartitionError, client_app
from fedlib.transports.flower.records import RECORD

SITES = [[[0.1], [0.3], [1.2]], [[1.9], [2.5], [9.0]], [[0.2], [5.0]]]


def make_client(context):
    return HorizontalDBSCANClient(SITES[context.node_config["partition-id"]])


def model(**options):
    return HorizontalDBSCAN(cell_size=1.0, min_samples=2, **options)


@pytest.fixture
def grid():
    return GridInProcess(client_app(make_client), len(SITES))


# Every protocol of the package: the same model, labels and conversation as in process.


def _blobs(n_parts=3):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    X = np.concatenate([c + rng.normal(scale=0.4, size=(40, 2)) for c in centres])
    return np.array_split(X[rng.permutation(len(X))], n_parts)


def _columns():
    X = np.concatenate(_blobs())
    return [X[:, :1], X[:, 1:], X.sum(axis=1, keepdims=True)]


def _supervised():
    return [(X, (X[:, 0] > 2).astype(int)) for X in _blobs()]


# A protocol's parameters and what makes its parts: a new protocol is a new row.
PROTOCOLS = {
    "horizontal-dbscan": ({"cell_size": 0.5, "min_samples": 4}, _blobs),
    "vertical-dbscan": ({"eps": 0.5, "min_samples": 4}, _columns),
    "dbdc": ({"eps": 0.5, "min_samples": 4}, _blobs),
    "sdbdc": ({"eps": 0.5, "min_samples": 4}, _blobs),
    "ppdbdc": ({"eps": 0.5, "min_samples": 4, "random_state": 0}, _blobs),
    "kmeans": ({"n_clusters": 3, "random_state": 0}, _blobs),
    "gaussian-mixture": ({"n_components": 3, "random_state": 0}, _blobs),
    "gaussian-mixture-dbscan": (
        {"eps": 0.5, "min_samples": 4, "n_components": 3, "random_state": 0},
        _blobs,
    ),
    "xgboost": ({"n_trees": 3, "n_candidates": 4}, _supervised),
}
OURS = [name for name, kind in protocols().items() if kind.__module__.startswith("fedlib.")]


def frozen(value):
    """Return a value of any kind as bytes and tuples, equal only where every bit is."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, FedlibMessage):
        return encode(value)
    if isinstance(value, dict):
        return tuple((key, frozen(v)) for key, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if is_dataclass(value):
        return type(value), frozen(vars(value))
    return value


def fitted(estimator):
    """Return all that `fit` learns, but for the rows' labels, which stay with the clients."""
    learnt = {k: v for k, v in vars(estimator).items() if k.endswith("_")}
    return frozen({k: v for k, v in sorted(learnt.items()) if k not in {"labels_", "ledger_"}})


def states(grid):
    """Return what each client remembers, in the order of the partitions."""
    nodes = sorted(grid.node_configs, key=lambda node: grid.node_configs[node]["partition-id"])
    kept = [grid._states[node][RECORD]["state"] for node in nodes]
    return [decode(state) if state else None for state in kept]


@pytest.mark.parametrize("name", OURS)
def test_every_protocol_gives_the_same_as_in_process(name, monkeypatch):
    parameters, make_parts = PROTOCOLS[name]
    kind, parts, options = protocols()[name], make_parts(), []
    make_clients = Federated._make_clients

    def note(self, parts, own, passive):
        options.extend(own)
        return make_clients(self, parts, own, passive)

    monkeypatch.setattr(Federated, "_make_clients", note)
    here = kind(**parameters).fit(parts)

    def make(context):
        partition = context.node_config["partition-id"]
        return kind.client_class(parts[partition], **options[partition])

    grid = GridInProcess(client_app(make), len(parts))
    there = kind(**parameters).fit(Flower(grid, len(parts)))
    assert there.ledger_.entries == here.ledger_.entries
    assert len(here.ledger_) > 0
    assert fitted(there) == fitted(here)
    labels = getattr(here, "labels_", None)
    if labels is not None:
        kept = [state.labels for state in states(grid) if hasattr(state, "labels")]
        expected = labels if isinstance(labels, list) else [labels] * len(parts)
        assert frozen(kept) == frozen(expected)


def test_every_protocol_has_a_row():
    assert set(OURS) <= set(PROTOCOLS)


# Names, order, and who is there.


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
    with pytest.raises(PartitionError, match="nodes 1000 and 1002 both have partition 0"):
        model().fit(Flower(grid, 3))


@pytest.mark.parametrize("partition", [3, -1, None, "1.0"])
def test_a_node_without_one_of_the_partitions_is_left_out(partition, caplog):
    grid = GridInProcess(client_app(make_client), 4)
    grid.node_configs[1003]["partition-id"] = partition
    grid.node_configs = dict(reversed(grid.node_configs.items()))
    if partition is None:
        del grid.node_configs[1003]["partition-id"]
    there = model().fit(Flower(grid, 3))
    assert there.ledger_.entries == model().fit(SITES).ledger_.entries
    got = "none" if partition is None else partition
    wanted = f"node 1003 has no part in this run: its partition-id must be in 0..2; got {got}"
    assert [record.getMessage() for record in caplog.records] == [wanted]


def test_fewer_clients_than_nodes(grid):
    there = model().fit(Flower(grid, 2))
    assert there.ledger_.entries == model().fit(SITES[:2]).ledger_.entries


class Silent(GridInProcess):
    """A grid in which one more node is silent until it has been asked for a while."""

    def __init__(self, n_looks):
        super().__init__(client_app(make_client), len(SITES) + 1)
        self.node_configs[1003]["partition-id"] = 1
        self.n_looks = n_looks

    def pull_messages(self, numbers):
        self.n_looks -= 1
        silent = 1003 if self.n_looks > 0 else None
        return super().pull_messages(
            number for number in numbers if self._replies[number].metadata.src_node_id != silent
        )


def test_nobody_waits_for_a_silent_node_when_all_clients_are_there():
    grid = Silent(n_looks=10**9)
    there = model().fit(Flower(grid, 3, join_timeout=1))
    assert there.ledger_.entries == model().fit(SITES).ledger_.entries
    assert 10**9 - grid.n_looks == 5  # one for the nodes to join, two a step


def test_a_second_node_with_a_partition_is_refused_even_if_it_tells_late():
    with pytest.raises(PartitionError, match="nodes 1001 and 1003 both have partition 1"):
        model().fit(Flower(Silent(n_looks=3), 3))


def test_nodes_may_come_late(grid):
    late = grid.node_configs.pop(1001)
    seen = []
    get_node_ids = grid.get_node_ids

    def come():
        seen.append(1)
        if len(seen) == 3:
            grid.node_configs[1001] = late
        return get_node_ids()

    grid.get_node_ids = come
    assert model().fit(Flower(grid, 3)).ledger_.lost == {}


def test_a_node_that_never_comes_is_lost(grid):
    del grid.node_configs[1001]
    transport = Flower(grid, 3, join_timeout=0.05)
    lost = model().fit(transport, min_clients=2).ledger_.lost
    assert lost == {"1": "NeverJoined at CountCells, step 1"}


@pytest.mark.parametrize("why", ["InvalidFab", "PartitionError"])
def test_a_node_that_cannot_be_seated_leaves_its_reason(grid, why):
    deliver = grid.deliver
    grid.node_configs[1001]["partition-id"] = 7 if why == "PartitionError" else 1

    def fail(message):
        if message.metadata.dst_node_id == 1001 and why == "InvalidFab":
            return Message(Error(ErrorCode.INVALID_FAB, "/home/clinic"), reply_to=message)
        return deliver(message)

    grid.deliver = fail
    lost = model().fit(Flower(grid, 3, join_timeout=0.05), min_clients=2).ledger_.lost
    assert lost == {"1": f"NeverJoined_{why} at CountCells, step 1"}


def test_a_node_that_fails_to_say_its_partition_is_asked_again(grid):
    deliver, asked = grid.deliver, []

    def fail_once(message):
        asked.append(message)
        if len(asked) == 1:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=message)
        return deliver(message)

    grid.deliver = fail_once
    assert model().fit(Flower(grid, 3)).ledger_.lost == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_clients": 0}, "n_clients must be at least 1; got 0"),
        ({"n_clients": 1, "join_timeout": 0}, "join_timeout must be above 0; got 0"),
        ({"n_clients": 1, "request_timeout": -1}, "request_timeout must be above 0; got -1"),
    ],
)
def test_parameters_are_checked(grid, options, text):
    with pytest.raises(ValueError, match=text):
        Flower(grid, **options)


# Dropouts and errors.


class Faulty(GridInProcess):
    """A grid in which one node's replies to requests are replaced: by another message, or none."""

    def __init__(self, change, node=1001, app=None):
        super().__init__(app or client_app(make_client), len(SITES))
        self.change, self.node = change, node

    def deliver(self, message):
        reply = super().deliver(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == self.node:
            return self.change(message, reply)
        return reply


def _error(code):
    return lambda message, reply: Message(Error(code, "patient 4711"), reply_to=message)


def _content(record):
    return lambda message, reply: Message(RecordDict(record), reply_to=message)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_error(ErrorCode.NODE_UNAVAILABLE), "NodeUnavailable"),
        (_error(ErrorCode.CLIENT_APP_CRASHED), "ClientAppCrashed"),
        (_error(99), "Unknown"),
        (_content({}), "InvalidReply"),
        (_content({RECORD: ConfigRecord({"reply": "text"})}), "InvalidReply"),
        (_content({RECORD: ConfigRecord({"reply": b"\x00lies"})}), "InvalidReply"),
    ],
)
def test_a_node_that_gives_no_valid_reply_is_lost(change, why):
    survivors = model().fit([SITES[0], SITES[2]])
    there = model().fit(Flower(Faulty(change), 3), min_clients=2)
    assert there.ledger_.lost == {"1": f"{why} at CountCells, step 1"}
    assert fitted(there) == fitted(survivors)
    assert "4711" not in there.ledger_.to_frame().to_string()


def test_too_few_clients_end_the_run_and_say_who_was_lost():
    grid = Faulty(_error(ErrorCode.NODE_UNAVAILABLE))
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


def test_a_message_that_the_superlink_does_not_take_is_a_lost_client(grid):
    push = grid.push_messages
    grid.push_messages = lambda messages: [
        number
        if message.metadata.dst_node_id != 1001 or message.metadata.message_type == "query"
        else None
        for number, message in zip(push(messages), messages, strict=True)
    ]
    lost = model().fit(Flower(grid, 3), min_clients=2).ledger_.lost
    assert lost == {"1": "NotSent at CountCells, step 1"}


def test_replies_count_by_what_they_reply_to(grid):
    """Not by their order, nor by their sender: a lost node's error comes from the SuperLink."""
    pull = grid.pull_messages

    def shuffled(numbers):
        stranger = Message(RecordDict(), 1, "train")
        stranger.metadata.__dict__["_reply_to_message_id"] = "another run's"
        return [stranger, *reversed(pull(numbers))]

    grid.pull_messages = shuffled
    assert model().fit(Flower(grid, 3)).ledger_.entries == model().fit(SITES).ledger_.entries


@pytest.mark.parametrize("where", ["make_client", "after"])
def test_an_error_at_a_site_is_named_by_its_type_alone(where, caplog):
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
    assert "clinic" in caplog.text  # it stays in the site's own log


def test_a_passive_node_shares_nothing(grid):
    grid.node_configs[1001]["passive"] = True
    here, there = model().fit(SITES, passive=[1]), model().fit(Flower(grid, 3))
    assert there.ledger_.entries == here.ledger_.entries
    assert frozen([state.labels for state in states(grid)]) == frozen(here.labels_)


@pytest.mark.parametrize("passive", ["false", "true", 1])
def test_passive_is_true_or_false(grid, passive, caplog):
    grid.node_configs[1001]["passive"] = passive
    there = model().fit(Flower(grid, 3), min_clients=2)
    assert there.ledger_.lost == {"1": "ValueError at CountCells, step 1"}
    assert f"passive must be true or false, without quotes; got {passive!r}" in caplog.text


def test_a_site_may_keep_its_labels():
    kept = {}

    def keep(client, context):
        if isinstance(client.state, Labels):
            kept[context.node_config["partition-id"]] = client.state.labels.tolist()

    model().fit(Flower(GridInProcess(client_app(make_client, keep), 3), 3))
    assert kept == {i: part.tolist() for i, part in enumerate(model().fit(SITES).labels_)}


# The state that stays with a node.


class Visited(FedlibMessage):
    discloses = "how often this client was asked"
    times: int


class Visit(FedlibMessage):
    discloses = "nothing"
    reply = Visited


class VisitCount(FedlibMessage):
    discloses = "nothing: it stays with the client"
    times: int


class Visitor(Client):
    def handle(self, request):
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
    return GridInProcess(client_app(lambda context: Visitor()), 2)


def test_a_client_made_anew_for_every_message_has_its_state(visitors):
    assert run(visit(3), Flower(visitors, 2)) == [[1, 1], [2, 2], [3, 3]]


def test_another_run_starts_without_state(visitors):
    assert run(visit(2), Flower(visitors, 2)) == [[1, 1], [2, 2]]
    assert run(visit(1), Flower(visitors, 2)) == [[1, 1]]


def test_a_run_that_goes_on_has_its_state(visitors):
    transport = Flower(visitors, 2)
    run(visit(2), transport)
    assert run(visit(1), transport) == [[3, 3]]


def test_a_node_that_lost_its_state_is_lost(visitors):
    def forget(times):
        counts = yield from visit(times)
        visitors._states[1001] = RecordDict()  # as a restarted SuperNode does
        return counts + (yield from visit(times))

    transport = Flower(visitors, 2)
    ledger = fedlib.ledger.Ledger()
    assert run(forget(2), transport, min_clients=1, ledger=ledger) == [[1, 1], [2, 2], [3], [4]]
    assert ledger.lost == {"1": "LostState at Visit, step 3"}


def test_the_same_request_again_gets_the_same_reply(visitors):
    asked = {"session": "a", "sequence": 1, "request": encode(Visit())}

    def ask(**changes):
        record = RecordDict({RECORD: ConfigRecord(asked | changes)})
        (reply,) = visitors.send_and_receive([Message(record, 1000, "train")])
        return decode(reply.content[RECORD]["reply"])

    lost = fedlib.messages.Failure("LostState")
    assert ask() == ask() == Visited(1)
    assert ask(sequence=2) == ask(sequence=2) == Visited(2)
    assert ask() == lost  # that time is over
    assert ask(sequence=2, request=encode(CountCells(1.0))) == lost  # another one with its number
    assert ask(sequence=4) == lost
    assert ask(sequence=3) == Visited(3)  # none of these has changed anything
    assert ask(session="b", sequence=2) == lost
    assert ask(session="b") == Visited(1)


# FIN.


def test_fin_fits_an_estimator_and_counts_by_step(grid):
    here = model().fit(SITES)
    result = FIN(model(), n_clients=3).start(grid)
    assert fitted(result.model) == fitted(here)
    assert result.ledger.entries == here.ledger_.entries
    sums = here.ledger_.to_frame().groupby("step")["bytes"].agg(["size", "sum"])
    counted = result.train_metrics_clientapp
    assert {k: (m["messages"], m["bytes"]) for k, m in counted.items()} == {
        step: (row["size"], row["sum"]) for step, row in sums.iterrows()
    }


def test_fin_runs_a_flow_until_it_stops(grid):
    """How often it asks is the flow's own affair: here until the cells are coarse enough."""

    def coarsen(cell_size, most):
        while True:
            replies = yield CountCells(cell_size)
            if max(len(reply.cells) for reply in replies.values()) <= most:
                return cell_size
            cell_size *= 2

    result = FIN(coarsen(0.125, most=1), n_clients=3).start(grid)
    assert result.model == 16.0
    assert len(result.train_metrics_clientapp) == 8
    assert FIN(coarsen(0.125, most=9), n_clients=3).start(grid).model == 0.125


def test_fin_refuses_a_flow_that_has_been_started(grid):
    fin = FIN(horizontal_dbscan(1.0, 2), n_clients=3)
    fin.start(grid)
    with pytest.raises(ValueError, match="started before: each start needs a new one"):
        fin.start(grid)
    flow = horizontal_dbscan(1.0, 2)
    next(flow)
    with pytest.raises(ValueError, match="started before"):
        FIN(flow, n_clients=3).start(grid)
    again = FIN(model(), n_clients=3)  # an estimator is fitted anew
    assert again.start(grid).ledger.entries == again.start(grid).ledger.entries


def test_fin_survives_dropouts_down_to_min_clients():
    grid = Faulty(_error(ErrorCode.NODE_UNAVAILABLE))
    result = FIN(horizontal_dbscan(1.0, 2), n_clients=3, min_clients=2).start(grid)
    assert list(result.ledger.lost) == ["1"]
    grid = Faulty(_error(ErrorCode.NODE_UNAVAILABLE))
    with pytest.raises(TooFewClients):
        FIN(horizontal_dbscan(1.0, 2), n_clients=3, min_clients=3).start(grid)


def test_fin_gives_its_timeouts_to_the_transport(grid):
    del grid.node_configs[1001]
    with pytest.raises(TooFewClients, match="NeverJoined"):
        FIN(model(), n_clients=3, join_timeout=0.02).start(grid)
    with pytest.raises(ValueError, match="request_timeout must be above 0"):
        FIN(model(), n_clients=2).start(grid, timeout=0)


def test_fin_has_no_rounds(grid):
    with pytest.raises(TypeError, match="FIN has no rounds"):
        FIN(model(), n_clients=3).configure_train(1, None, None, grid)


# Nothing reaches out.


def isolated(program, home, **environment):
    """Return what a program says in a process of its own, with nothing in its environment."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(home), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_reaches_out(tmp_path):
    """In a process where every connection is an error; the switches are off before flwr loads."""
    program = """
        import os, socket, sys
        def refuse(*arguments, **options):
            os._exit(99)
        socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
        from fedlib import HorizontalDBSCAN
        from fedlib.horizontal_dbscan import HorizontalDBSCANClient
        from fedlib.transports.flower import FIN, GridInProcess, client_app
        from flwr.supercore import telemetry
        assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
        telemetry.event(telemetry.EventType.PING).result()
        assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        grid = GridInProcess(client_app(lambda context: HorizontalDBSCANClient([[0.1]])), 1)
        FIN(HorizontalDBSCAN(cell_size=1.0, min_samples=1), n_clients=1).start(grid)
        print("done")
    """
    assert isolated(program, tmp_path) == "done\n"


@pytest.mark.parametrize(
    ("said", "flag"), [({}, "0"), ({"FLWR_TELEMETRY_ENABLED": "1"}, "1")], ids=["unsaid", "on"]
)
def test_telemetry_is_off_unless_the_environment_says_on(said, flag, tmp_path):
    """Although Flower was imported first, and has read the environment."""
    program = """
        from flwr.supercore import telemetry
        assert telemetry.FLWR_TELEMETRY_ENABLED == "1"
        import fedlib.transports.flower
        print(telemetry.FLWR_TELEMETRY_ENABLED)
    """
    assert isolated(program, tmp_path, **said) == f"{flag}\n"


# The app.


def test_the_command_writes_the_app_once(tmp_path):
    folder = tmp_path / "app"
    done = CliRunner().invoke(cli, ["flower", "new", str(folder)])
    assert done.exit_code == 0, done.output
    template = {path.relative_to(TEMPLATE) for path in TEMPLATE.rglob("*.[pmt]*[ydl]")}
    written = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert written == template >= {Path("README.md"), Path("pyproject.toml")}
    again = CliRunner().invoke(cli, ["flower", "new", str(folder)])
    assert again.exit_code == 2
    assert "is not empty" in again.output


def test_the_command_says_when_the_app_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = CliRunner().invoke(cli, ["flower", "new", str(file / "app")])
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {file / 'app'}: cannot be written")


def test_the_app_asks_no_index_for_fedlib():
    """On PyPI the name is another project's."""
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Return the app's two modules and its run's configuration."""
    monkeypatch.syspath_prepend(new(tmp_path / "app"))
    client, server = (
        importlib.import_module(f"fedlib_app.{name}_app") for name in ("client", "server")
    )
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    yield client.app, server.app, config["config"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedlib_app"]:
        del sys.modules[name]


def serve(app, grid):
    """Run the app's server on a grid."""
    app[1](grid, Context(1, 0, {}, RecordDict(), grid.run_config))


def test_the_app_runs_the_protocol_that_its_configuration_names(app, tmp_path, capsys):
    changes = {
        "protocol": "vertical-dbscan",
        "parameters": "eps = 0.3, min_samples = 5",
        "split": "columns",
        "n-clients": 2,
        "output": str(tmp_path / "output"),
    }
    grid = GridInProcess(app[0], 2, app[2] | changes)
    for node, own in grid.node_configs.items():
        own |= {"labels": str(tmp_path / f"{node}.csv"), "demo": True}
    serve(app, grid)
    X = fedlib.datasets.load("moons").X
    here = fedlib.VerticalDBSCAN(eps=0.3, min_samples=5).fit([X[:, :1], X[:, 1:]])
    with np.load(tmp_path / "output" / "model.npz") as model:
        assert frozen(model["labels_"]) == frozen(here.labels_)
    for node in grid.node_configs:
        kept = pd.read_csv(tmp_path / f"{node}.csv")["label"]
        assert kept.tolist() == here.labels_.tolist()
    assert "3 exchanges in" in capsys.readouterr().out


def test_the_app_refuses_a_protocol_that_is_not_there(app):
    grid = GridInProcess(app[0], 3, app[2] | {"protocol": "kmean"})
    with pytest.raises(ValueError, match="protocol must be one of .*kmeans.*; got 'kmean'"):
        serve(app, grid)


@pytest.fixture
def sites(app, tmp_path):
    """Return a grid whose nodes have their rows in files."""
    changes = {"parameters": "cell_size = 1.0, min_samples = 2", "min-clients": 2}
    grid = GridInProcess(app[0], 3, app[2] | changes)
    for own, rows in zip(grid.node_configs.values(), SITES, strict=True):
        own["data"] = str(tmp_path / f"{own['partition-id']}.csv")
        pd.DataFrame(rows, columns=["x"]).to_csv(own["data"], index=False)
    return grid


def test_a_site_of_the_app_has_its_file_and_its_say(app, sites, capsys):
    serve(app, sites)
    assert frozen([state.labels for state in states(sites)]) == frozen(model().fit(SITES).labels_)
    sites.node_configs[1001]["protocol"] = "kmeans"  # the only one that this site agrees to
    serve(app, sites)
    assert "client 1 was lost: ValueError at CountCells, step 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("slip", "text"),
    [
        ({"dta": "1.csv"}, "node-config has dta; it may have"),
        ({"Passive": True}, "node-config has Passive; it may have"),
        ({"data": None}, "got data=None, demo=False"),
        ({"data": None, "dta": "1.csv"}, "node-config has dta; it may have"),
        ({"demo": True}, "demo=true, and not both; got data='"),
        ({"data": None, "demo": "true"}, "got data=None, demo='true'"),
    ],
)
def test_a_slip_in_a_sites_configuration_brings_no_toy_data(app, sites, slip, text, capsys, caplog):
    own = sites.node_configs[1001]
    changed = {name: value for name, value in (own | slip).items() if value is not None}
    own.clear()
    own |= changed
    serve(app, sites)
    assert "client 1 was lost: ValueError at CountCells, step 1" in capsys.readouterr().out
    assert text in caplog.text


def test_a_sites_secret_is_read_from_its_file(app, tmp_path):
    """Vertical DBSCAN with identifiers, which the sites hash with a key that they share."""
    X, ids = np.array([[0.1, 0.2], [0.3, 0.1], [9.0, 5.0]]), ["a", "b", "c"]
    changes = {"protocol": "vertical-dbscan", "parameters": "eps = 1.0, min_samples = 2"}
    changes |= {"n-clients": 2, "output": str(tmp_path / "output")}
    grid = GridInProcess(app[0], 2, app[2] | changes)
    key = tmp_path / "rows.key"
    key.write_bytes(bytes(range(32)))
    for column, own in enumerate(grid.node_configs.values()):
        frame = pd.DataFrame({"patient": ids, "x": X[:, column]})
        frame.to_csv(tmp_path / f"{column}.csv", index=False)
        own |= {"data": str(tmp_path / f"{column}.csv"), "ids": "patient", "client-n-jobs": 1}
        own["client-key"] = str(key)
    serve(app, grid)
    here = fedlib.VerticalDBSCAN(eps=1.0, min_samples=2).fit([X[:, :1], X[:, 1:]], ids=[ids, ids])
    with np.load(tmp_path / "output" / "model.npz") as model:
        assert frozen(model["labels_"]) == frozen(here.labels_)
    other = tmp_path / "other.key"
    other.write_bytes(bytes(32))
    grid.node_configs[1001]["client-key"] = str(other)
    with pytest.raises(ValueError, match="clients disagree on the rows' identifiers"):
        serve(app, grid)
