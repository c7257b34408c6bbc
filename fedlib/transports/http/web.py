"""The web application: it translates HTTP calls into events of the sessions."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import jinja2
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from fedlib.core.wording import printable
from fedlib.transports.http.connections import Connection
from fedlib.transports.http.service import SessionService
from fedlib.transports.http.session import Refusal, RefusedCall
from fedlib.transports.http.status import Status, size
from fedlib.transports.http.wire import (
    NEXT,
    NUMBER,
    PROCESS,
    REASON,
    SCHEMA,
    VERSION,
    Welcome,
    check_schema,
    check_version,
)

CODES = {
    Refusal.CONFLICT: 409,
    Refusal.OVER: 410,
    Refusal.UNKNOWN: 428,
    Refusal.TOO_MANY: 429,
}
HEADERS = [("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]  # of all answers
CLOSE = {"Connection": "close"}
MAX_PROCESS = 64  # characters of the identifier of a client's process
FRESH = 0.5  # seconds for which a status page is reused
REFRESH = 2  # seconds after which a browser reloads the status page
PIECE = 2**18  # bytes that are written to a connection at once
BINARY = "application/octet-stream"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def application(
    service: SessionService,
    *,
    welcome: Callable[[str], Welcome],
    status: Callable[[], Status] | None,
    more: Sequence[Route] = (),
    hosts: Collection[str] = (),
) -> Starlette:
    """Return the ASGI application. Its server is a `WebServer`, which identifies the callers.

    Parameters
    ----------
    service : SessionService
    welcome : callable
        Returns the answer to a client that has joined, by its name.
    status : callable, optional
        Returns the status of the run; without it there is no status page.
    more : sequence of Route, optional
        Further routes, which need no token either.
    hosts : collection of str
        The names by which callers without a token may call the server (`known_host`).
    """
    calls = Calls(service, welcome)
    pages = [Route("/", _status_page(service, status), methods=["GET"]), *more]
    routes = [
        Route("/join", calls.join, methods=["POST"]),
        Route("/heartbeat", calls.heartbeat, methods=["POST"]),
        Route("/leave", calls.leave, methods=["POST"]),
        Route("/request", calls.request, methods=["GET"]),
        Route("/reply", calls.reply, methods=["POST"]),
        Route("/check", calls.check, methods=["GET"]),
        *(Route(one.path, _at(hosts, one.endpoint), methods=["GET"]) for one in pages),
    ]
    handled = (HTTPException, RefusedCall, ClientDisconnect)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(handled, calls.explain))
    app.router.redirect_slashes = False
    return app


def known_host(host: str, hosts: Collection[str]) -> bool:
    """Return whether a header ``Host`` names this server.

    A page of a stranger in the browser of a person who can reach the server could make the
    stranger's name stand for the server's address (DNS rebinding) and read what needs no token. The
    browser then sends the stranger's name. An address in numbers cannot be made to stand for
    another one.

    Parameters
    ----------
    host : str
        The name or address, with or without a port.
    hosts : collection of str
        The names of the server besides ``localhost``.

    Examples
    --------
    >>> [known_host(host, ["fl.example.org"]) for host in ("localhost:80", "[::1]", "10.0.0.1:80")]
    [True, True, True]
    >>> [known_host(host, ["fl.example.org"]) for host in ("FL.example.org:8443", "evil.example")]
    [True, False]
    """
    name = _host_name(host)
    with suppress(ValueError):
        ip_address(name)
        return True
    return bool(name) and name in {"localhost", *map(_host_name, hosts)}


def _host_name(host: str) -> str:
    """Return a host without its port, in small letters; empty if it is none."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    return ""


def _at(hosts: Collection[str], endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers only if the caller calls the server by one of its names."""

    async def call(request: Request) -> Response:
        called = request.headers.getlist("Host")
        if len(called) != 1 or not known_host(called[0], hosts):
            name = printable(", ".join(called), 100)
            raise HTTPException(
                421,
                f"the server is not known as {name!r}: call it by its address or by localhost, or"
                " let its operator name it with --host",
            )
        return await endpoint(request)

    return call


def _json(content: object, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), code, headers, "application/json")


class Calls:
    """The calls of clients.

    Parameters
    ----------
    service, welcome
        As for `application`.
    """

    def __init__(self, service: SessionService, welcome: Callable[[str], Welcome]):
        self.service, self.welcome = service, welcome
        self._read: set[str] = set()  # the clients whose bodies are being read

    async def explain(self, request: Request, error: Exception) -> Response:
        """Return the answer to a refused call."""
        if isinstance(error, ClientDisconnect):  # nobody receives it
            code, text = 400, "the body is incomplete"
        elif isinstance(error, RefusedCall):
            code, text = CODES[error.refusal], str(error)
        else:
            assert isinstance(error, HTTPException)
            code, text = error.status_code, error.detail
        known = bool(request.scope["connection"].name)
        drain = known and _length(request) <= self.service.limits.max_bytes
        return _json({"error": text}, code, None if drain else CLOSE)

    async def check(self, request: Request) -> Response:
        """Answer as to a join, without any effect on the run."""
        name = _known(request).name
        _require_version(request)
        return _json(self.welcome(name))

    async def join(self, request: Request) -> Response:
        with self._call(request) as (name, process, connection):
            _require_version(request)
            welcome = self.welcome(name)
            try:
                check_schema(request.headers.get(SCHEMA, ""), welcome.digest)
            except ValueError as error:
                logger.warning("site %r cannot join: %s", name, printable(str(error)))
                self.service.refuse(name, "OtherSchema")
                raise HTTPException(400, str(error)) from error
            self.service.join(name, process, connection.link)
            return _json(welcome)

    async def heartbeat(self, request: Request) -> Response:
        with self._call(request) as (name, process, connection):
            await self.service.heartbeat(name, process, connection.hold)
            return _json({})

    async def leave(self, request: Request) -> Response:
        with self._call(request) as (name, process, _):
            reason = request.headers.get(REASON)
            if reason is None:
                self.service.leave(name, process)
            elif re.fullmatch("[A-Za-z]{1,40}", reason):
                logger.warning("site %r does not join: %s", name, reason)
                self.service.refuse(name, reason)
            else:
                raise HTTPException(400, f"{REASON} must be a word of 1 to 40 letters")
            return _json({})

    async def request(self, request: Request) -> Response:
        with self._call(request) as (name, process, connection):
            return await self._next(name, process, connection)

    async def _next(self, name: str, process: str, connection: Connection) -> Response:
        """Wait for the next request, and return it or the answer that there is none yet."""
        asked = await self.service.next_request(name, process, connection.hold)
        if asked is None:
            return Response(status_code=204)
        number, body = asked
        headers = {NUMBER: str(number)}
        if len(body) <= PIECE:
            return Response(body, headers=headers, media_type=BINARY)
        headers["Content-Length"] = str(len(body))
        return StreamingResponse(_pieces(body), headers=headers, media_type=BINARY)

    async def reply(self, request: Request) -> Response:
        with self._call(request) as (name, process, connection):
            await self._accept(request, name, process)
            if NEXT in request.headers:
                return await self._next(name, process, connection)
            return _json({})

    async def _accept(self, request: Request, name: str, process: str) -> None:
        """Read and accept a reply, which is not kept while the call waits for what is next."""
        number, length = _number(request), _length(request)
        if not self.service.admit(name, process, number, length):
            raise HTTPException(413, f"a body of {length} bytes is not accepted")
        with self._reading(name):
            body = b"".join([piece async for piece in request.stream()])
        await self.service.accept(name, process, number, body)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Allow one body per client to be read at a time, which limits the memory."""
        if name in self._read:
            raise HTTPException(429, "a reply of this client is being read")
        self._read.add(name)
        try:
            yield
        finally:
            self._read.remove(name)

    @contextmanager
    def _call(self, request: Request) -> Iterator[tuple[str, str, Connection]]:
        """Register a call; return the client, the identifier of its process, and the connection."""
        connection = _known(request)
        process = request.headers.get(PROCESS, "")
        if not 0 < len(process) <= MAX_PROCESS:
            raise HTTPException(400, f"{PROCESS} must have 1 to {MAX_PROCESS} characters")
        connection.process = process
        with self.service.call(connection.name, process, connection.link):
            yield connection.name, process, connection


def _known(request: Request) -> Connection:
    """Return the connection of a call with a valid token."""
    connection: Connection = request.scope["connection"]
    if not connection.name:
        raise HTTPException(401, "unknown token")
    if _length(request) and request.url.path != "/reply":
        raise HTTPException(413, "only a reply may have a body")
    return connection


def _require_version(request: Request) -> None:
    """Refuse a site whose version of fedlib does not fit."""
    try:
        check_version(request.headers.get(VERSION, "of an unknown version"))
    except ValueError as error:
        raise HTTPException(400, str(error)) from error


def _number(request: Request) -> int:
    """Return the number of the request that a reply is for."""
    try:
        return int(request.headers[NUMBER])
    except (KeyError, ValueError) as error:
        raise HTTPException(400, f"{NUMBER} must be a number") from error


def _length(request: Request) -> int:
    """Return the length of a call's body, which the connection has checked."""
    return int(request.headers.get("Content-Length", 0))


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for i in range(0, len(body), PIECE):
        yield body[i : i + PIECE]


def _status_page(service: SessionService, status: Callable[[], Status] | None) -> Endpoint:
    """Return the endpoint of the status page, which is made anew at most twice per second."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, autoescape=True)
    environment.filters["size"] = size
    pages: dict[tuple[bool, str], tuple[float, str]] = {}

    async def page(request: Request) -> Response:
        if status is None:
            raise HTTPException(404, "the status page is turned off")
        kind = still, outcome = "still" in request.query_params, service.sessions.outcome
        made, text = pages.get(kind, (-math.inf, ""))
        if time.monotonic() - made > FRESH:
            template = environment.get_template("status.html")
            text = template.render(status=status(), still=still, now=datetime.now())
            pages[kind] = time.monotonic(), text
        refresh = {} if outcome or still else {"Refresh": str(REFRESH)}
        return HTMLResponse(text, headers={**PAGE_HEADERS, **refresh, **CLOSE})

    return page
