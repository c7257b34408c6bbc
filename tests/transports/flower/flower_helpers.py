"""Helpers of the tests of Flower: a protocol, its data, and grids that interfere."""

from flwr.app import Error, Message, RecordDict

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.messages import decode
from fedlib.transports.flower import LocalFlowerGrid, client_app
from fedlib.transports.flower.transport import RECORD

SITES = [[[0.1], [0.3], [1.2]], [[1.9], [2.5], [9.0]], [[0.2], [5.0]]]


def make_client(context):
    """Return a site's client from its node's context."""
    return HorizontalDBSCANClient(SITES[context.node_config["partition-id"]])


def model(**options):
    """Return an estimator that has not been fitted."""
    return HorizontalDBSCAN(cell_size=1.0, min_samples=2, **options)


def states(grid):
    """Return the state of each client, in the order of the partitions."""
    nodes = sorted(grid.node_configs, key=lambda node: grid.node_configs[node]["partition-id"])
    kept = [grid._states[node][RECORD]["state"] for node in nodes]
    return [decode(state) if state else None for state in kept]


class Faulty(LocalFlowerGrid):
    """A grid that replaces one node's replies to requests by other messages."""

    def __init__(self, change, node=1001, app=None):
        super().__init__(app or client_app(make_client), len(SITES))
        self.change, self.node = change, node

    def deliver(self, message):
        reply = super().deliver(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == self.node:
            return self.change(message, reply)
        return reply


def failing(code):
    """Return a change that replaces a reply by an error of Flower."""
    return lambda message, reply: Message(Error(code, "patient 4711"), reply_to=message)


def containing(record):
    """Return a change that replaces the content of a reply."""
    return lambda message, reply: Message(RecordDict(record), reply_to=message)
