"""One process of a run over HTTP, a site or the server, with a death planned if wanted.

Its settings are the global ``settings``.
"""

import os
import signal
from pathlib import Path

import httpx
import numpy as np

from fedlib import HorizontalDBSCAN
from fedlib.horizontal_dbscan import HorizontalDBSCANClient
from fedlib.messages import Done, Message
from fedlib.protocol import Client
from fedlib.transports.http import client as http_client
from fedlib.transports.http import server as http


class Total(Message):
    """The sum so far: the toy protocol's state and reply."""

    discloses = "a sum"
    total: int


class AddRows(Message):
    """Add the number of your rows to your total."""

    discloses = "nothing"
    reply = Total


class Restart(Message):
    """Begin at 0."""

    discloses = "nothing"
    reply = Done


class Counter(Client):
    """A client that needs its state for every answer but the first."""

    def __init__(self, X):
        self.X = np.asarray(X)

    def handle(self, request):
        if isinstance(request, Restart):
            self.state = Total(0)
            return Done()
        self.state = Total(self.recall(Total).total + len(self.X))
        return self.state


def count_twice():
    """Run the toy protocol: each client counts its rows twice."""
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


def plan_death(moment, sequence):
    """Make this process kill itself at a moment of its work on one request."""
    real_serve, real_call = http_client.serve, httpx.Client.request
    asked = []

    def serve(client, request, on_error):
        asked.append(request)
        if moment == "computing" and len(asked) == sequence:
            die()
        return real_serve(client, request, on_error)

    def call(link, method, path, **content):
        here = (content.get("headers") or {}).get(http_client.SEQUENCE) == str(sequence)
        if here and moment == "before the reply":
            die()
        response = real_call(link, method, path, **content)
        if here and moment == "after the reply":
            die()
        return response

    http_client.serve, httpx.Client.request = serve, call
    if moment == "before joining":
        die()


def be_site(url, token, X, protocol="horizontal", dies=None, labels=None, **options):
    client = CLIENTS[protocol](X)
    if dies:
        plan_death(*dies)
    try:
        http.join(url, client, token, **options)
    except http_client.Unreachable:  # it came back too late to hear that all is done
        client.state = http_client.kept_state(options.get("state_dir", "nowhere"))
    if labels and hasattr(client.state, "labels"):
        with open(f"{labels}.part", "wb") as file:
            np.save(file, client.state.labels)
        os.replace(f"{labels}.part", labels)


def be_server(tokens, url_file, cell_size, min_samples, **options):
    with http.HTTP(tokens, "127.0.0.1:0", **options) as transport:
        Path(f"{url_file}.part").write_text(transport.url)
        os.replace(f"{url_file}.part", url_file)
        HorizontalDBSCAN(cell_size, min_samples).fit(transport)


if __name__ == "__main__":
    given = globals()["settings"]
    (be_server if "tokens" in given else be_site)(**given)
