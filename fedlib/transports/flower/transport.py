"""The transport to the nodes of a Flower grid."""

from __future__ import annotations

import copy
import logging
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedlib.core.aggregation import AgreedColumns
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Failure, encode


class LocalFlowerGrid(Grid):
    """A grid whose nodes are objects in this process, to try out or test an app.

    As in a deployment, a node keeps nothing between two messages except its configuration and the
    state of its context.

    Parameters
    ----------
    app : ClientApp
        The app that the nodes run.
    n_nodes : int
        The count of nodes; their partitions are 0..n_nodes - 1.
    run_config : mapping, optional
        The configuration of the run.

    Attributes
    ----------
    node_configs : dict of int to dict
        The configuration of each node, by its identifier. You may change it.
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
        self._replies: dict[str, Message] = {}
        self.set_run(Run.create_empty(run_id=1))

    def set_run(self, run: Run) -> None:
        """Set the run, in which the nodes' contexts are empty.

        Flower's messages take their origin from this process's identity.
        """
        self._run = run
        self._states = {node: RecordDict() for node in self.node_configs}
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
        """Deliver messages to the nodes, one after the other, and return their identifiers."""
        identifiers = []
        for one in messages:
            identifier = one.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self._replies[identifier] = self.deliver(one)
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to messages, each of them once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and pull their replies."""
        return self.pull_messages(self.push_messages(messages))

    def deliver(self, sent: Message) -> Message:
        """Return a node's reply to a message, or the error that Flower makes of its exception."""
        node = sent.metadata.dst_node_id
        context = Context(
            run_id=self._run.run_id,
            node_id=node,
            node_config=dict(self.node_configs[node]),
            state=copy.deepcopy(self._states[node]),
            run_config=dict(self.run_config),
        )
        try:
            reply = self.app(sent, context)
        except Exception as error:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code, str(error)), reply_to=sent)
        self._states[node] = context.state
        return reply


RECORD = "fedlib"  # the name of our record in a message and in a node's state
PARTITION, REQUEST = "query", "train"  # Flower's types for our two kinds of messages
ERRORS = {
    code: name.title().replace("_", "")
    for name, code in vars(ErrorCode).items()
    if isinstance(code, int)
}


def message(node: int, kind: str, content: Mapping[str, Any], ttl: float) -> Message:
    """Return a message to a node that expires after ``ttl`` seconds."""
    return Message(RecordDict({RECORD: ConfigRecord(dict(content))}), node, kind, ttl=ttl)


def reply(request: Message, content: Mapping[str, Any]) -> Message:
    """Return the reply to a message."""
    return Message(RecordDict({RECORD: ConfigRecord(dict(content))}), reply_to=request)


def fields(received: Message) -> Mapping[str, Any]:
    """Return our fields in a message; none if it has no record of ours."""
    record = received.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else {}


def error_name(received: Message) -> str:
    """Return the name of a Flower error. Its text, which may contain data, is not read."""
    return ERRORS.get(received.error.code, "Unknown")


def failure(name: str) -> bytes:
    """Return the bytes of a `Failure`."""
    return encode(Failure(name))


FIRST_POLL, LAST_POLL = 0.01, 1.0  # seconds between two polls
POLL_FRACTION = 0.05  # the largest delay of a reply by polling, in parts of the time waited so far

Receiver = TypeVar("Receiver", str, int)

logger = logging.getLogger(__name__)


class PartitionError(ValueError):
    """Two nodes have the same partition; the text names them."""


class Flower:
    """A transport to clients on the nodes of a Flower grid.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        The grid that a ServerApp's main function receives.
    n_clients : int
        The count of nodes that take part, at least 1: those whose ``partition-id`` is in
        0..n_clients - 1. All others are left out, with a warning.
    join_timeout : float, default=600
        The time, in seconds, to wait for the nodes; positive. The clients of nodes that are absent
        then are lost as NeverJoined. If a node failed to report its partition, the name of its last
        error is added, as in NeverJoined_InvalidFab.
    request_timeout : float, default=3600
        The time, in seconds, within which a node must answer; positive. Its client is lost
        (TimedOut) otherwise.
    schema : Schema, optional
        The schema of the run, which is sent with the first request, so that a site with another
        one can name the differences in its log.

    Attributes
    ----------
    clients : list of str
        The clients' names: "0", "1" and so on.
    errors : mapping of str to exception
        Empty: the clients run elsewhere.
    ledger : Ledger or None
        The ledger of the current run.

    Raises
    ------
    ValueError
        When a parameter is out of range.
    PartitionError
        From an exchange, when two nodes have the same partition.

    Examples
    --------
    >>> from fedlib import HorizontalDBSCAN
    >>> from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
    >>> from fedlib.transports.flower import LocalFlowerGrid, client_app
    >>> sites = [[[0.1], [0.2]], [[5.0]]]
    >>> def make_client(context):
    ...     return HorizontalDBSCANClient(sites[context.node_config["partition-id"]])
    >>> grid = LocalFlowerGrid(client_app(make_client), n_nodes=2)
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
        schema: AgreedColumns | None = None,
    ):
        if not n_clients >= 1:
            raise ValueError(f"n_clients must be at least 1, got {n_clients}")
        for name, seconds in {
            "join_timeout": join_timeout,
            "request_timeout": request_timeout,
        }.items():
            if not seconds > 0:
                raise ValueError(f"{name} must be positive, got {seconds}")
        self.clients: Sequence[str] = [str(partition) for partition in range(n_clients)]
        self.errors: Mapping[str, BaseException] = {}
        self.ledger: Ledger | None = None
        self.join_timeout, self.request_timeout = join_timeout, request_timeout
        self.schema = schema
        self._grid = grid
        self._session = secrets.token_hex(8)
        self._sequence = dict.fromkeys(self.clients, 0)
        self._nodes: dict[str, int] = {}
        self._unreported: dict[str, int] = {}  # nodes that have not reported their partition yet
        self._absent = "NeverJoined"
        self._joined = False

    def exchange(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send the requests and wait until each client has answered or is lost."""
        if not self._joined:
            self._wait_for_nodes()
            self._joined = True
        self._read_partitions()  # a late report may reveal a second node with one partition
        replies = {name: failure(self._absent) for name in requests if name not in self._nodes}
        pending = self._send({n: data for n, data in requests.items() if n in self._nodes})
        start = time.monotonic()
        unsent = requests.keys() - replies.keys() - set(pending.values())
        replies |= {name: failure("NotSent") for name in unsent}
        while pending and time.monotonic() - start < self.request_timeout:
            for name, reply in self._pull(pending):
                replies[name] = _read_reply(reply)
            if pending:
                _pause(start)
        return replies | {name: failure("TimedOut") for name in pending.values()}

    def _send(self, requests: Mapping[str, bytes]) -> dict[str, str]:
        """Push the requests and return the client of each message that was accepted."""
        messages = {}
        for name, request in requests.items():
            self._sequence[name] += 1
            content: dict[str, Any] = {
                "session": self._session,
                "sequence": self._sequence[name],
                "request": request,
                "clients": len(self.clients),
            }
            if self.schema is not None and self._sequence[name] == 1:
                content["schema"] = self.schema.to_json().decode()
            messages[name] = message(self._nodes[name], REQUEST, content, self.request_timeout)
        return self._push(messages)

    def _wait_for_nodes(self) -> None:
        """Request the partition of every node until all clients have a node."""
        start = time.monotonic()
        reported: set[int] = set()
        while time.monotonic() - start < self.join_timeout:
            known = reported | set(self._unreported.values())
            new = sorted(set(self._grid.get_node_ids()) - known)
            self._unreported |= self._push(
                {node: message(node, PARTITION, {}, self.join_timeout) for node in new}
            )
            reported |= self._read_partitions()
            if len(self._nodes) == len(self.clients):
                return
            _pause(start)
        missing = [name for name in self.clients if name not in self._nodes]
        logger.warning("%s: nodes of the partitions %s", self._absent, ", ".join(missing))

    def _read_partitions(self) -> set[int]:
        """Assign nodes to clients and return the nodes that have reported their partition.

        A node that answered with an error is not returned, so that it receives a new request.
        """
        reported = set()
        for node, reply in self._pull(self._unreported):
            if reply.has_error():
                self._absent = f"NeverJoined_{error_name(reply)}"
                logger.warning("node %d did not report its partition: %s", node, error_name(reply))
                continue
            reported.add(node)
            self._assign(node, fields(reply).get("partition"))
        return reported

    def _assign(self, node: int, partition: object) -> None:
        name = str(partition)
        if name in self._nodes:
            raise PartitionError(
                f"nodes {self._nodes[name]} and {node} both have the partition {name}"
            )
        if name in self.clients:
            self._nodes[name] = node
            return
        self._absent = f"NeverJoined_{PartitionError.__name__}"
        logger.warning(
            "node %d takes no part in this run: its partition-id must be in 0..%d, got %s",
            node,
            len(self.clients) - 1,
            partition,
        )

    def _push(self, messages: Mapping[Receiver, Message]) -> dict[str, Receiver]:
        """Push messages and return the receiver of each that was accepted, by identifier."""
        accepted = set(self._grid.push_messages(list(messages.values()))) if messages else set()
        receivers = {sent.metadata.message_id: to for to, sent in messages.items()}
        return {identifier: to for identifier, to in receivers.items() if identifier in accepted}

    def _pull(self, pending: dict[str, Receiver]) -> list[tuple[Receiver, Message]]:
        """Return the replies that have arrived, with their senders, and take them off the list."""
        replies = self._grid.pull_messages(list(pending)) if pending else []
        known = [reply for reply in replies if reply.metadata.reply_to_message_id in pending]
        return [(pending.pop(reply.metadata.reply_to_message_id), reply) for reply in known]


def _read_reply(reply: Message) -> bytes:
    """Return the bytes of a node's reply, or of the `Failure` that replaces it."""
    if reply.has_error():
        return failure(error_name(reply))
    data = fields(reply).get("reply")
    return data if isinstance(data, bytes) else failure("InvalidReply")


def _pause(start: float) -> None:
    """Sleep before the next poll, the longer the more time has passed since ``start``."""
    elapsed = time.monotonic() - start
    time.sleep(min(max(FIRST_POLL, POLL_FRACTION * elapsed), LAST_POLL))
