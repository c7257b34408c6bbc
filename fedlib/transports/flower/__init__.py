"""Flower: any flow of this package, or one of yours, on Flower's SuperLink and SuperNodes.

The rules:

- A site is a SuperNode. The name of its client is the number of its partition, which the server
  requests first. So names and order are the same as on every other transport.
- The ServerApp runs the flow. Each step pushes its requests to all nodes together and pulls
  replies until every node has answered or the time is up. A reply is matched to its request by
  message identifier, not by sender: for a node that has left, the SuperLink replies.
- Requests are numbered. A SuperNode starts one process per message, so the client is created again
  each time. Its state stays with the node, under the number of the request that produced it. A node
  without the state that the next request needs, such as one that was restarted, reports `LostState`
  and leaves the run. A repeated request gets the same reply.
- Only the bytes of messages travel. An error is named by its type; the text that Flower adds to it
  is not read.
- Flower's telemetry, its update check and Ray's usage statistics are switched off when this package
  is imported, unless environment variables enable them, even if Flower was imported before.

The idea of one strategy that runs any algorithm of a server and clients, with any number of
exchanges, is F's FIN (chapter 4).
"""

import os

# Flower reads these variables when it is imported, so they are set first.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import telemetry

from fedlib.transports.flower.app import client_app
from fedlib.transports.flower.fin import FIN, FINResult, show_errors_in_one_line
from fedlib.transports.flower.transport import Flower, LocalFlowerGrid, PartitionError

__all__ = [
    "FIN",
    "Context",
    "FINResult",
    "Flower",
    "Grid",
    "LocalFlowerGrid",
    "PartitionError",
    "ServerApp",
    "client_app",
    "show_errors_in_one_line",
]

telemetry.FLWR_TELEMETRY_ENABLED = os.environ["FLWR_TELEMETRY_ENABLED"]  # if it was read before
