"""The endpoints of the web server under the fuzzer: any bytes on one connection of a client."""

import asyncio
import logging
import re

from uvicorn.config import Config

from fedlib.clustering.density.horizontal import CountCells
from fedlib.core.messages import encode
from fedlib.transports.http import digest
from fedlib.transports.http.connections import Connection, Listener, WebServer
from fedlib.transports.http.limits import Limits
from fedlib.transports.http.service import SessionService
from fedlib.transports.http.sessions import Sessions
from fedlib.transports.http.web import HEADERS, application
from fedlib.transports.http.wire import Tokens, Welcome

TOKENS = {"a": "s", "b": "t"}  # short, so that the fuzzer finds them
CODES = {200, 204, 400, 401, 404, 405, 409, 410, 413, 421, 428, 429, 431}
REQUEST = encode(CountCells(1.0))


class Line(asyncio.Transport):
    """The server's end of a connection without a socket. It collects what the server sends."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent, self.closing = b"", False

    def write(self, data):
        if not self.closing:  # as on a socket, the bytes are lost
            self.sent += bytes(data)

    def close(self):
        self.closing = True

    abort = close

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def get_protocol(self):
        return None


def codes(sent):
    """Return the status codes of the answers on a connection."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", sent)]


async def talk(pieces):
    """Send pieces of bytes to a server that waits for one reply; return what it answered."""
    loop = asyncio.get_running_loop()
    errors = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    limits = Limits(join_timeout=0.001, gone_after=1000, max_bytes=1000)
    service = SessionService(Sessions(TOKENS, limits, now=0))
    app = application(service, welcome=lambda name: Welcome(name, "r", "p", 1.0), status=None)
    known = Tokens({name: digest(token) for name, token in TOKENS.items()})
    config = Config(
        app, http=Connection, ws="none", lifespan="off", log_config=None, headers=HEADERS
    )
    config.load()
    listener = Listener(None, None, limits, 2, 100, known.client, lambda _: None)
    server = WebServer(config, listener)
    exchange = loop.create_task(service.exchange({"a": REQUEST, "b": REQUEST}))
    line = Line()
    await asyncio.sleep(0.002)  # joining is over, and the requests are open
    connection = Connection(listener, "127.0.0.1", config, server.server_state, {}, loop)
    listener.connections.add(connection)
    connection.connection_made(line)
    for piece in pieces:
        connection.data_received(piece)
        for _ in range(5):
            await asyncio.sleep(0)
    connection.eof_received()
    for _ in range(20):
        await asyncio.sleep(0)
    line.closing = True
    connection.connection_lost(None)
    exchange.cancel()
    await asyncio.gather(exchange, return_exceptions=True)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert errors == []
    for session in service.sessions.by_name.values():
        assert session.calls == 0
        assert session.held == 0
    assert not listener.connections
    return line.sent


def call_endpoints(data):
    """Send bytes, in pieces where there is a byte 0xff; check every answer."""
    logging.disable(logging.CRITICAL)
    try:
        sent = asyncio.run(talk(data.split(b"\xff")))
    finally:
        logging.disable(logging.NOTSET)
    assert set(codes(sent)) <= CODES, sent
    assert REQUEST not in sent or b"Bearer" in data
