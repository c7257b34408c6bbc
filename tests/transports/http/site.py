"""One process of a run over HTTP, a site or the server, that can kill itself at a given moment.

Its arguments are the global ``settings``.
"""

import os
import signal
from pathlib import Path

import httpx
import numpy as np

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.client import Client, handles
from fedlib.core.messages import Done, Message
from fedlib.transports.http import HTTP, Unreachable, join, kept_state
from fedlib.transports.http import client as http_client
from fedlib.transports.http.wire import NUMBER


class Total(Message):
    """The sum so far: the state and the reply of the counting protocol."""

    discloses = "a sum"
    total: int


class AddRows(Message):
    """Add the number of your rows to your total."""

    discloses = "nothing"
    reply = Total


class Restart(Message):
    """Set your total to 0."""

    discloses = "nothing"
    reply = Done


class Counter(Client):
    """A client that needs its state for every reply but the first."""

    def __init__(self, X):
        self.X = np.asarray(X)

    @handles(Restart)
    def restart(self, request):
        self.state = Total(0)
        return Done()

    @handles(AddRows)
    def add_rows(self, request):
        self.state = Total(self.recall(Total).total + len(self.X))
        return self.state


def count_twice():
    """Run the counting protocol: each client counts its rows twice."""
    yield Restart()
    yield AddRows()
    replies = yield AddRows()
    return {name: reply.total for name, reply in replies.items()}


CLIENTS = {
    "horizontal": HorizontalDBSCANClient,
    "counter": Counter,
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def plan_death(moment, number):
    """Make this process kill itself at a moment of its work on one request."""
    real_serve, real_request = http_client.serve, httpx.Client.request
    requests = []

    def serve(client, request, on_error):
        requests.append(request)
        if moment == "computing" and len(requests) == number:
            die()
        return real_serve(client, request, on_error)

    def request(link, method, path, **content):
        here = (content.get("headers") or {}).get(NUMBER) == str(number)
        if here and moment == "before the reply":
            die()
        response = real_request(link, method, path, **content)
        if here and moment == "after the reply":
            die()
        return response

    http_client.serve, httpx.Client.request = serve, request
    if moment == "before joining":
        die()


def be_site(url, token, X, protocol="horizontal", dies=None, labels=None, **options):
    client = CLIENTS[protocol](X)
    if dies:
        plan_death(*dies)
    try:
        join(url, client, token, **options)
    except Unreachable:  # it was started again too late to learn that the run is over
        client.state = kept_state(options.get("state_dir", "nowhere"))
    if labels and hasattr(client.state, "labels"):
        with open(f"{labels}.part", "wb") as file:
            np.save(file, client.state.labels)
        os.replace(f"{labels}.part", labels)


def be_server(tokens, url_file, cell_size, min_samples, **options):
    with HTTP(tokens, "127.0.0.1:0", **options) as transport:
        Path(f"{url_file}.part").write_text(transport.url)
        os.replace(f"{url_file}.part", url_file)
        HorizontalDBSCAN(cell_size, min_samples).fit(transport)


if __name__ == "__main__":
    given = globals()["settings"]
    (be_server if "tokens" in given else be_site)(**given)
