"""Thousands of sites in one process, to load a server over HTTP.

A site is an `asyncio.Protocol` with one connection, and the least that a client must do: it joins,
asks for its next request, replies, and stops when the run is over. ``python load.py URL FILE KIND``
runs one site per line of FILE, which is a token, until all have ended. It prints how many ended
for which reason. KIND is a number of bytes, the size of each reply, or ``dbscan`` for clients of
horizontal DBSCAN with 100 rows each.
"""

import asyncio
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from fedlib import __version__
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.core.messages import Message, encode
from fedlib.core.protocol import serve

RETRY = 0.2  # seconds after which a site opens a new connection
N_ROWS = 100


class Filling(Message):
    """The reply to `Fill`."""

    discloses = "nothing"
    data: bytes


class Fill(Message):
    """Reply with some bytes."""

    discloses = "nothing"
    reply = Filling
    data: bytes


class Site(asyncio.Protocol):
    """One site: ``answer`` returns the bytes of the reply to the bytes of a request."""

    def __init__(self, address, token, number, answer):
        self.address, self.answer = address, answer
        self.head = f"Host: x\r\nAuthorization: Bearer {token}\r\nFedlib-Session: load-{number}\r\n"
        self.head += f"Fedlib-Version: {__version__}\r\n"
        self.loop = asyncio.get_running_loop()
        self.end = self.loop.create_future()
        self.transport, self.data = None, b""

    async def connect(self):
        try:
            await self.loop.create_connection(lambda: self, *self.address)
        except OSError:
            self.connection_lost(None)

    def connection_made(self, transport):
        self.transport, self.data = transport, b""
        self.call("POST /join", "Content-Length: 0\r\n")

    def connection_lost(self, error):
        if not self.end.done():
            self.loop.call_later(RETRY, lambda: self.loop.create_task(self.connect()))

    def call(self, line, headers="", body=b""):
        self.transport.write(f"{line} HTTP/1.1\r\n{self.head}{headers}\r\n".encode() + body)

    def data_received(self, data):
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        status, *lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        if found and len(body) >= int(headers.get(b"content-length", 0)):
            self.data = b""
            self.answered(int(status.split()[1]), headers.get(b"fedlib-sequence"), body)

    def answered(self, code, number, body):
        if number is not None:
            reply = self.answer(body)
            length = f"Content-Length: {len(reply)}\r\nFedlib-Sequence: {number.decode()}\r\n"
            self.call("POST /reply", length, reply)
        elif code in (200, 204):
            self.call("GET /request")
        else:
            self.end.set_result(json.loads(body)["error"])
            self.transport.close()


async def attend(url, tokens, answers):
    """Run one site per token; return how they ended."""
    parts = urlsplit(url)
    address = parts.hostname, parts.port
    numbered = enumerate(zip(tokens, answers, strict=True))
    sites = [Site(address, token, number, answer) for number, (token, answer) in numbered]
    for site in sites:
        await site.connect()
    return Counter([await site.end for site in sites])


def rows(site):
    """Return the rows of a site: parts of a thousand clusters."""
    rng = np.random.default_rng(site)
    return rng.integers(0, 30, (N_ROWS, 2)) + rng.normal(scale=0.1, size=(N_ROWS, 2))


def answers(kind, n_sites):
    """Return one function per site."""
    if kind == "dbscan":
        return [partial(serve, HorizontalDBSCANClient(rows(site))) for site in range(n_sites)]
    reply = encode(Filling(bytes(int(kind))))
    return [lambda request: reply] * n_sites


if __name__ == "__main__":
    url, file, kind = sys.argv[1:]
    tokens = Path(file).read_text().split()
    print(json.dumps(asyncio.run(attend(url, tokens, answers(kind, len(tokens))))))
