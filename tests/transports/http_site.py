"""One process of a run over HTTP, a site or the server, with a death planned if wanted.

Its settings are the global ``settings``, or else come as JSON by the standard input.
"""

import json
import os
import signal
import sys
from pathlib import Path

import httpx
import numpy as np

from fedlib import HorizontalDBSCAN
from fedlib.horizontal_dbscan import HorizontalDBSCANClient
from fedlib.transports import http
from fedlib.vertical_dbscan import VerticalDBSCANClient

CLIENTS = {"horizontal": HorizontalDBSCANClient, "vertical": VerticalDBSCANClient}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def plan_death(moment, sequence):
    """Make this process kill itself at a moment of its work on one request."""
    real_serve, real_call = http.serve, httpx.Client.request
    asked = []

    def serve(client, request):
        asked.append(request)
        if moment == "computing" and len(asked) == sequence:
            die()
        return real_serve(client, request)

    def call(link, method, path, **content):
        here = content.get("headers", {}).get(http.SEQUENCE) == str(sequence)
        if here and moment == "before the reply":
            die()
        response = real_call(link, method, path, **content)
        if here and moment == "after the reply":
            die()
        return response

    http.serve, httpx.Client.request = serve, call
    if moment == "before joining":
        die()


def be_site(url, token, X, protocol="horizontal", passive=False, dies=None, labels=None, **options):
    client = CLIENTS[protocol](X)
    client.passive = passive
    if dies:
        plan_death(*dies)
    http.join(url, client, token, **options)
    if labels and client.state is not None:
        with open(f"{labels}.part", "wb") as file:
            np.save(file, client.state.labels)
        os.replace(f"{labels}.part", labels)


def be_server(tokens, url_file, cell_size, min_samples, **options):
    with http.HTTP(tokens, "127.0.0.1:0", **options) as transport:
        Path(f"{url_file}.part").write_text(transport.url)
        os.replace(f"{url_file}.part", url_file)
        HorizontalDBSCAN(cell_size, min_samples).fit(transport)


if __name__ == "__main__":
    given = globals().get("settings") or json.load(sys.stdin)
    (be_server if "tokens" in given else be_site)(**given)
