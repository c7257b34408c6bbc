"""Flower: any flow of this package, or of yours, on Flower's SuperLink and SuperNodes.

The rules:

- A site is a SuperNode. Its client's name is the number of its partition, which it says when asked
  first, so names and order are those of every other transport.
- The ServerApp runs the flow. Each step pushes its requests to all nodes at once and pulls replies
  until every node has answered or the time is over. A reply is matched by the message that it
  replies to, whoever sent it: for a node that is gone, it is the SuperLink.
- Requests are numbered. A SuperNode starts a process for every message, so the client is made anew
  each time; its state stays with the node, under the number of the request that left it. A node
  that does not have the state that the next request needs says so (`LostState`) and is lost, as one
  that was restarted. The same request again gets the same reply.
- Only bytes of messages travel. An error is named by its type; the text that Flower adds to it is
  not read.
- Flower's telemetry, its update check and Ray's usage statistics are off as soon as this module is
  imported, unless the environment says otherwise; whether Flower was imported before is all one.

The idea of a strategy under which any algorithm of a server and clients runs, with as many
exchanges as it needs, is F's FIN (chapter 4).
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import telemetry
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedlib.ledger import Ledger
from fedlib.messages import Failure, decode, encode
from fedlib.protocol import Client, Flow, LostState, run, serve

__all__ = [
    "FIN",
    "ClientApp",
    "Context",
    "FINResult",
    "Flower",
    "Grid",
    "GridInProcess",
    "PartitionError",
    "ServerApp",
    "client_app",
]

telemetry.FLWR_TELEMETRY_ENABLED = os.environ["FLWR_TELEMETRY_ENABLED"]  # if read before

RECORD = "fedlib"
PARTITION, REQUEST = "query", "train"  # Flower's types of our two messages
FIRST_POLL, LAST_POLL = 0.01, 1.0  # seconds between two looks for replies
POLL_SHARE = 0.05  # of the time waited so far, by which looking may delay a reply
ERRORS = {
    code: name.title().replace("_", "")
    for name, code in vars(ErrorCode).items()
    if isinstance(code, int)
}

logger = logging.getLogger(__name__)


class PartitionError(ValueError):
    """Two nodes have the same partition; the text names them."""


class Flower:
    """A transport to clients on the nodes of a Flower grid.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        What a ServerApp's main function is given.
    n_clients : int
        How many nodes take part, at least 1: those whose ``partition-id`` is in 0..n_clients - 1.
        Any other is left out, with a warning.
    join_timeout : float, default=600
        Seconds, above 0, to wait for the nodes. The clients of those that are not there then are
        lost: NeverJoined, and the last error of a node that could not be seated, as in
        NeverJoined_InvalidFab.
    request_timeout : float, default=3600
        Seconds, above 0, that a node may take to answer; then its client is lost (TimedOut).

    Attributes
    ----------
    clients : list of str
        The clients' names: "0", "1" and so on.

    Raises
    ------
    ValueError
        When a parameter is out of range.
    PartitionError
        From an exchange, when two nodes turn out to have the same partition.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient
    >>> sites = [[[0.1], [0.2]], [[5.0]]]
    >>> def make_client(context):
    ...     return HorizontalDBSCANClient(sites[context.node_config["partition-id"]])
    >>> grid = GridInProcess(client_app(make_client), n_nodes=2)
    >>> model = HorizontalDBSCAN(cell_size=1.0, min_samples=2).fit(Flower(grid, n_clients=2))
    >>> model.cell_labels_
    array([ 0, -1])
    """

    def __init__(
        self,
        grid: Grid,
        n_clients: int,
        *,
        join_timeout: float = 600,
        request_timeout: float = 3600,
    ):
        if not n_clients >= 1:
            raise ValueError(f"n_clients must be at least 1; got {n_clients}")
        for name, seconds in {
            "join_timeout": join_timeout,
            "request_timeout": request_timeout,
        }.items():
            if not seconds > 0:
                raise ValueError(f"{name} must be above 0; got {seconds}")
        self.clients: Sequence[str] = [str(partition) for partition in range(n_clients)]
        self.errors: Mapping[str, BaseException] = {}
        self.ledger: Ledger | None = None
        self.join_timeout, self.request_timeout = join_timeout, request_timeout
        self._grid = grid
        self._session = secrets.token_hex(8)
        self._sequence = dict.fromkeys(self.clients, 0)
        self._nodes: dict[str, int] = {}
        self._asked: dict[str, Any] = {}  # nodes that have not told their partition yet
        self._absent = "NeverJoined"
        self._joined = False

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Ask the clients and wait until each has answered or is lost."""
        if not self._joined:
            self._wait_for_nodes()
            self._joined = True
        self._seat_nodes()  # one that tells its partition late may be a second one with it
        replies = {name: _failure(self._absent) for name in requests if name not in self._nodes}
        messages = {}
        for name in [name for name in requests if name in self._nodes]:
            self._sequence[name] += 1
            asked = {
                "session": self._session,
                "sequence": self._sequence[name],
                "request": requests[name],
            }
            messages[name] = _message(self._nodes[name], REQUEST, asked, self.request_timeout)
        waiting = self._push(messages)
        replies |= {name: _failure("NotSent") for name in messages.keys() - waiting.values()}
        start = time.monotonic()
        while waiting and time.monotonic() - start < self.request_timeout:
            for name, reply in self._pull(waiting):
                replies[name] = _read_reply(reply)
            _pause(waiting, start)
        return replies | {name: _failure("TimedOut") for name in waiting.values()}

    def _wait_for_nodes(self) -> None:
        """Ask every node for its partition until all clients are there."""
        start = time.monotonic()
        told: set[int] = set()
        while time.monotonic() - start < self.join_timeout:
            new = sorted(set(self._grid.get_node_ids()) - told - set(self._asked.values()))
            self._asked |= self._push(
                {node: _message(node, PARTITION, {}, self.join_timeout) for node in new}
            )
            told |= self._seat_nodes()
            if len(self._nodes) == len(self.clients):
                return
            _pause(True, start)
        missing = [name for name in self.clients if name not in self._nodes]
        logger.warning("%s: nodes of the partitions %s", self._absent, ", ".join(missing))

    def _seat_nodes(self) -> set[int]:
        """Note which clients nodes are; return those that told, for others are asked again."""
        told = set()
        for node, reply in self._pull(self._asked):
            if reply.has_error():
                self._absent = f"NeverJoined_{_error(reply)}"
                logger.warning("node %d did not tell its partition: %s", node, _error(reply))
                continue
            told.add(node)
            partition = _fields(reply).get("partition")
            name = str(partition)
            if name in self._nodes:
                both = f"nodes {self._nodes[name]} and {node}"
                raise PartitionError(f"{both} both have partition {name}")
            if name in self.clients:
                self._nodes[name] = node
            else:
                self._absent = f"NeverJoined_{PartitionError.__name__}"
                wanted = f"0..{len(self.clients) - 1}"
                logger.warning(
                    "node %d has no part in this run: its partition-id must be in %s; got %s",
                    *(node, wanted, partition),
                )
        return told

    def _push(self, messages: Mapping[Any, Message]) -> dict[str, Any]:
        """Send messages and return who is to answer which; a message may not be accepted."""
        accepted = set(self._grid.push_messages(list(messages.values()))) if messages else set()
        sent = {message.metadata.message_id: to for to, message in messages.items()}
        return {number: to for number, to in sent.items() if number in accepted}

    def _pull(self, waiting: dict[str, Any]) -> list[tuple[Any, Message]]:
        """Return who has answered, and strike them off the list of those waited for."""
        replies = self._grid.pull_messages(list(waiting)) if waiting else []
        known = [reply for reply in replies if reply.metadata.reply_to_message_id in waiting]
        return [(waiting.pop(reply.metadata.reply_to_message_id), reply) for reply in known]


def client_app(
    make_client: Callable[[Context], Client],
    after: Callable[[Client, Context], object] | None = None,
) -> ClientApp:
    """Return the app that a site's SuperNode runs.

    Parameters
    ----------
    make_client : callable
        Makes the site's client from Flower's context, whose ``node_config`` is the site's own
        (its ``partition-id``, say, or where its data lie) and whose ``run_config`` is the run's. It
        is called for every request. Where ``node_config`` says ``passive=true``, the client is
        passive; anything else than true or false is an error.
    after : callable, optional
        Called with the client and the context after each request that was answered: to keep the
        site's own labels, say.

    Examples
    --------
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient
    >>> app = client_app(lambda context: HorizontalDBSCANClient([[0.1], [0.2]]))
    """
    app = ClientApp()

    @app.query()
    def tell_partition(message: Message, context: Context) -> Message:
        return _reply(message, {"partition": context.node_config.get("partition-id", "none")})

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        try:
            reply = _answer(_fields(message), context, make_client, after)
        except Exception as error:
            logger.exception("a request was not answered")
            reply = _failure(type(error).__name__)
        return _reply(message, {"reply": reply})

    return app


def _answer(
    asked: Mapping[str, Any],
    context: Context,
    make_client: Callable[[Context], Client],
    after: Callable[[Client, Context], object] | None,
) -> bytes:
    """Answer a request from the state that the one before it left, and keep the new state."""
    session, sequence = asked["session"], asked["sequence"]
    digest = hashlib.sha256(asked["request"]).digest()
    memory: Mapping[str, Any] = context.state.get(RECORD, {})
    if memory.get("session") != session:
        memory = {"sequence": 0, "digest": b"", "state": b""}
    if (memory["sequence"], memory["digest"]) == (sequence, digest):
        return cast(bytes, memory["reply"])
    if sequence != memory["sequence"] + 1:
        raise LostState(f"request {sequence}, but the state is that of {memory['sequence']}")
    passive = context.node_config.get("passive", False)
    if not isinstance(passive, bool):
        raise ValueError(f"passive must be true or false, without quotes; got {passive!r}")
    client = make_client(context)
    client.passive = client.passive or passive
    if memory["state"]:
        client.state = decode(memory["state"])
    reply = serve(client, asked["request"])
    state = b"" if client.state is None else encode(client.state)
    if after is not None:
        after(client, context)
    context.state[RECORD] = ConfigRecord(
        {
            "session": session,
            "sequence": sequence,
            "digest": digest,
            "reply": reply,
            "state": state,
        }
    )
    return reply


@dataclass(repr=False)
class FINResult(Result):
    """What a run under `FIN` gives: Flower's result with the model and the ledger.

    ``train_metrics_clientapp`` holds, for each step of the flow, how many messages and bytes
    travelled. ``model`` is the fitted estimator, or what the flow returned.
    """

    model: Any = None
    ledger: Ledger = field(default_factory=Ledger)


class FIN(Strategy):
    """A Flower strategy that runs a flow: as many exchanges as it needs, until it ends.

    There are no rounds, so `configure_train` and its like are not called: the flow says what to
    ask, whom and how often. It stops when it returns, early if it wants to; a node that is lost
    does not end it while ``min_clients`` are left.

    Parameters
    ----------
    protocol : estimator or flow
        An estimator of this package, which is fitted at every start, or a flow (a generator), which
        can be run once.
    n_clients, join_timeout
        As in `Flower`.
    min_clients : int, optional
        How many clients must stay; by default all.

    Examples
    --------
    In a ServerApp this is the whole of the main function:

    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.horizontal_dbscan import HorizontalDBSCANClient
    >>> def main(grid, context):
    ...     return FIN(HorizontalDBSCAN(cell_size=1.0, min_samples=2), n_clients=1).start(grid)
    >>> app = client_app(lambda context: HorizontalDBSCANClient([[0.1], [0.2], [5.0]]))
    >>> result = main(GridInProcess(app, n_nodes=1), context=None)
    >>> result.model.cell_labels_
    array([ 0, -1])
    >>> result.ledger.conversation()
    ['CountCells', 'CellCounts', 'AssignCells', 'Done']
    """

    def __init__(
        self,
        protocol: Any,
        n_clients: int,
        *,
        min_clients: int | None = None,
        join_timeout: float = 600,
    ):
        self.protocol = protocol
        self.n_clients = n_clients
        self.min_clients = min_clients
        self.join_timeout = join_timeout

    def start(self, grid: Grid, *, timeout: float = 3600) -> FINResult:  # type: ignore[override]
        """Run the protocol on a grid.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        timeout : float, default=3600
            Seconds, above 0, that a node may take to answer one request.

        Raises
        ------
        ValueError
            When the flow has been started before, or as `fedlib.protocol.run` and `Flower` do.
        TooFewClients
            As `fedlib.protocol.run` does.
        """
        flow: Flow[Any] = self.protocol
        if inspect.isgenerator(flow) and inspect.getgeneratorstate(flow) != inspect.GEN_CREATED:
            raise ValueError("the flow has been started before: each start needs a new one")
        self.summary()
        transport = Flower(
            grid, self.n_clients, join_timeout=self.join_timeout, request_timeout=timeout
        )
        if hasattr(self.protocol, "fit"):
            model = self.protocol.fit(transport, min_clients=self.min_clients)
            ledger: Ledger = model.ledger_
        else:
            ledger = Ledger()
            model = run(flow, transport, min_clients=self.min_clients, ledger=ledger)
        metrics: dict[int, MetricRecord] = {}
        for entry in ledger:
            step = metrics.setdefault(entry.step, MetricRecord({"messages": 0, "bytes": 0}))
            step["messages"] = cast(int, step["messages"]) + 1
            step["bytes"] = cast(int, step["bytes"]) + entry.bytes
        return FINResult(train_metrics_clientapp=metrics, model=model, ledger=ledger)

    def summary(self) -> None:
        """Log what is about to run."""
        logger.info("FIN runs %r with %d clients", self.protocol, self.n_clients)

    def _no_rounds(self, *_: Any, **__: Any) -> Any:
        raise TypeError("FIN has no rounds: call start, which runs the flow to its end")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _no_rounds


class GridInProcess(Grid):
    """A grid whose nodes live in this process: to try out an app, or to test it.

    As in a deployment, all that a node keeps between two messages is its configuration and its
    context's state.

    Parameters
    ----------
    app : ClientApp
        What the nodes run.
    n_nodes : int
        How many there are; their partitions are 0..n_nodes - 1.
    run_config : mapping, optional
        The run's configuration.

    Attributes
    ----------
    node_configs : dict of int to dict
        Each node's configuration, by its identifier. May be changed.
    """

    def __init__(
        self,
        app: ClientApp,
        n_nodes: int,
        run_config: Mapping[str, bool | float | int | str] | None = None,
    ):
        self.app = app
        self.run_config = dict(run_config or {})
        self.node_configs: dict[int, dict[str, Any]] = {
            1000 + i: {"partition-id": i, "num-partitions": n_nodes} for i in range(n_nodes)
        }
        self._states = {node: RecordDict() for node in self.node_configs}
        self._replies: dict[str, Message] = {}
        self.set_run(Run.create_empty(run_id=1))

    def set_run(self, run: Run) -> None:
        """Set the run; Flower's messages take their origin from this process's identity."""
        self._run = run
        TaskIdentity.run_id, TaskIdentity.node_id = run.run_id, SUPERLINK_NODE_ID
        TaskIdentity.task_id = 1

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the identifiers of the nodes."""
        return list(self.node_configs)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let the nodes answer messages, one after the other."""
        numbers = []
        for message in messages:
            number = message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self._replies[number] = self.deliver(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to messages; each is given once."""
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and pull their replies."""
        return self.pull_messages(self.push_messages(messages))

    def deliver(self, message: Message) -> Message:
        """Return a node's reply to a message, or the error that Flower makes of its exception."""
        node = message.metadata.dst_node_id
        context = Context(
            run_id=self._run.run_id,
            node_id=node,
            node_config=dict(self.node_configs[node]),
            state=copy.deepcopy(self._states[node]),
            run_config=dict(self.run_config),
        )
        try:
            reply = self.app(message, context)
        except Exception as error:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code, str(error)), reply_to=message)
        self._states[node] = context.state
        return reply


def _message(node: int, kind: str, fields: Mapping[str, Any], ttl: float) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(dict(fields))}), node, kind, ttl=ttl)


def _reply(message: Message, fields: Mapping[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(dict(fields))}), reply_to=message)


def _fields(message: Message) -> Mapping[str, Any]:
    """Return our fields in a message; none where it is not one of ours."""
    record = message.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else {}


def _read_reply(reply: Message) -> bytes:
    """Return the bytes of a node's reply, or those of the `Failure` that it comes to."""
    if reply.has_error():
        return _failure(_error(reply))
    data = _fields(reply).get("reply")
    return data if isinstance(data, bytes) else _failure("InvalidReply")


def _error(reply: Message) -> str:
    """Return the name of a Flower error; its text, which may hold data, is left alone."""
    return ERRORS.get(reply.error.code, "Unknown")


def _failure(name: str) -> bytes:
    return encode(Failure(name))


def _pause(more: object, start: float) -> None:
    """Wait a little before the next look for replies, longer the longer it takes."""
    if more:
        elapsed = time.monotonic() - start
        time.sleep(min(max(FIRST_POLL, POLL_SHARE * elapsed), LAST_POLL))
