"""A protocol that does nothing but exchange messages."""

from typing import Annotated

import numpy as np

from fedlib.core.client import Client, handles
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Array, Message
from fedlib.core.protocol import run


class PerformanceReply(Message):
    """A kilobyte of numbers."""

    discloses = "nothing: the numbers are those of the request"
    values: Annotated[np.ndarray, Array("float64", ("values",))]


class PerformanceRequest(Message):
    """Return these numbers."""

    discloses = "nothing"
    reply = PerformanceReply
    values: Annotated[np.ndarray, Array("float64", ("values",))]


class EchoClient(Client):
    """A client that returns what it receives."""

    @handles(PerformanceRequest)
    def echo(self, request):
        return PerformanceReply(request.values)


def flow(n_exchanges):
    """Return the flow of so many exchanges of a kilobyte."""
    for _ in range(n_exchanges):
        yield PerformanceRequest(np.arange(128.0))


def exchange(n_clients, n_exchanges):
    """Run the flow with so many clients in this process."""
    run(flow(n_exchanges), InProcess({f"client {i}": EchoClient() for i in range(n_clients)}))
