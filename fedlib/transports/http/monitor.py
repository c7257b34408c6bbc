"""Health and metrics of a run, for the programs that watch a server.

``/health`` answers whether the run goes on, and ``/metrics`` with numbers in the text format of
Prometheus. Both consist of names, numbers and sizes, like the status page. They are answered only
to the addresses that the operator of the server names; for all others they do not exist.

===================================  ==============================================================
Metric                               Meaning
===================================  ==============================================================
``fedlib_clients``                   clients by ``state``: expected, waiting, working, answered,
                                     away, lost, done
``fedlib_clients_present``           clients with a process present
``fedlib_step``                      the number of the current step
``fedlib_message_bytes_total``       the size of all messages by ``direction``: to_clients,
                                     from_clients
``fedlib_step_seconds``              a summary: how many exchanges have ended, and how long they
                                     took together
``fedlib_run_info``                  1, with the ``protocol`` and the ``outcome`` (empty: the run
                                     goes on)
===================================  ==============================================================
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedlib.transports.http.service import SessionService
from fedlib.transports.http.status import Status, Traffic


def networks(addresses: Collection[str]) -> list[Any]:
    """Return addresses and networks in the form of `ipaddress`.

    Raises
    ------
    ValueError
        When one is neither an address nor a network.

    Examples
    --------
    >>> networks(["127.0.0.1", "10.0.0.0/8"])
    [IPv4Network('127.0.0.1/32'), IPv4Network('10.0.0.0/8')]
    >>> networks(["localhost"])
    Traceback (most recent call last):
    ...
    ValueError: monitors must be addresses such as 127.0.0.1 or networks such as 10.0.0.0/8, got \
'localhost'
    """
    known = []
    for address in addresses:
        try:
            known.append(ipaddress.ip_network(address))
        except ValueError as error:
            raise ValueError(
                "monitors must be addresses such as 127.0.0.1 or networks such as 10.0.0.0/8, got"
                f" {address!r}"
            ) from error
    return known


class Monitor(Collector):
    """The two endpoints.

    Parameters
    ----------
    service : SessionService
    traffic : Traffic
        The messages of the run.
    status : callable
        Returns the status of the run.
    allowed : list of networks
        The callers that receive an answer.
    """

    def __init__(
        self,
        service: SessionService,
        traffic: Traffic,
        status: Callable[[], Status],
        allowed: list[Any],
    ):
        self.service, self.traffic, self.status, self.allowed = service, traffic, status, allowed
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def routes(self) -> list[Route]:
        """Return the routes of the endpoints; none if nobody may call them."""
        endpoints = {"/health": self.health, "/metrics": self.metrics} if self.allowed else {}
        return [Route(path, call, methods=["GET"]) for path, call in endpoints.items()]

    async def health(self, request: Request) -> Response:
        """Answer 200 while the run goes on and when it has finished, 503 when it was stopped."""
        self._check(request)
        status = self.status()
        state = status.outcome or "running"
        content = {"status": state, "step": status.step}
        return JSONResponse(content, 503 if state == "stopped" else 200)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of the run."""
        self._check(request)
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    def _check(self, request: Request) -> None:
        """Refuse a caller whose address is not allowed, as if there were no such path."""
        address = ipaddress.ip_address(request.scope["connection"].address.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if not any(address in network for network in self.allowed):
            raise HTTPException(404)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        status = self.status()
        clients = GaugeMetricFamily("fedlib_clients", "Clients by state.", labels=["state"])
        for state, number in status.states.items():
            clients.add_metric([state], number)
        yield clients
        yield GaugeMetricFamily(
            "fedlib_clients_present", "Clients with a process present.", status.joined
        )
        yield GaugeMetricFamily("fedlib_step", "The number of the current step.", status.step)
        sizes = CounterMetricFamily(
            "fedlib_message_bytes", "The size of all messages.", labels=["direction"]
        )
        sizes.add_metric(["to_clients"], self.traffic.to_clients)
        sizes.add_metric(["from_clients"], self.traffic.from_clients)
        yield sizes
        yield SummaryMetricFamily(
            "fedlib_step_seconds",
            "The duration of the exchanges that have ended.",
            self.service.exchanges,
            self.service.seconds,
        )
        run = GaugeMetricFamily("fedlib_run_info", "The run.", labels=["protocol", "outcome"])
        run.add_metric([status.protocol, status.outcome], 1)
        yield run

    def describe(self) -> list[Metric]:
        """Return nothing, so that a registry does not collect when the monitor is registered."""
        return []
