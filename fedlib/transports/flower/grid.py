"""A Flower grid in this process."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class GridInProcess(Grid):
    """A grid whose nodes are objects in this process, to try out or test an app.

    As in a deployment, a node keeps nothing between two messages except its configuration and the
    state of its context.

    Parameters
    ----------
    app : ClientApp
        The app that the nodes run.
    n_nodes : int
        The number of nodes; their partitions are 0..n_nodes - 1.
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
        for message in messages:
            identifier = message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self._replies[identifier] = self.deliver(message)
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
