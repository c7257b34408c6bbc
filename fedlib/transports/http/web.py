"""The web application and its server: they translate HTTP calls into events of the sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.wsgi import Server
from flask import Flask, Response, abort, render_template, request
from werkzeug.exceptions import HTTPException

from fedlib.transports.http.sessions import MAX_CALLS, Refusal, RefusedCall
from fedlib.transports.http.shared import SharedSessions
from fedlib.transports.http.status import Status, size
from fedlib.transports.http.tokens import Tokens
from fedlib.transports.http.wire import NUMBER, PROCESS, Welcome

__all__ = ["TLS", "WebServer", "application"]

CODES = {Refusal.CONFLICT: 409, Refusal.OVER: 410, Refusal.TOO_MANY: 429}
MAX_PROCESS = 64  # characters of the identifier of a client's process
REFRESH = 2  # seconds after which a browser reloads the status page
PIECE = 2**18  # bytes that are written to or read from a connection at once
BINARY = "application/octet-stream"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

logger = logging.getLogger(__name__)


def application(
    shared: SharedSessions,
    tokens: Tokens,
    *,
    welcome: Callable[[str], Welcome],
    status: Callable[[], Status] | None,
    max_bytes: int,
) -> Flask:
    """Return the WSGI application.

    Parameters
    ----------
    shared : SharedSessions
    tokens : Tokens
    welcome : callable
        Returns the answer to a client that has joined, by its name.
    status : callable, optional
        Returns the status of the run; without it there is no status page.
    max_bytes : int
        The largest body accepted.
    """
    app = Flask("fedlib", static_folder=None, template_folder=str(Path(__file__).parent))
    app.jinja_env.filters["size"] = size
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    _add_rules(app, max_bytes)
    _add_calls(app, shared, tokens, welcome)
    _add_status_page(app, status)
    return app


def _add_rules(app: Flask, max_bytes: int) -> None:
    """Add what holds for all calls: the limit of a body, headers, and the form of errors."""

    @app.before_request
    def limit() -> None:
        length = request.headers.get("Content-Length", "0")
        if not length.isdecimal():
            abort(400, "Content-Length must be a number")
        if int(length) > max_bytes or "Transfer-Encoding" in request.headers:
            abort(413, f"a body must have a Content-Length of at most {max_bytes} bytes")

    @app.after_request
    def secure(response: Response) -> Response:
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.after_request
    def drain(response: Response) -> Response:
        """Read the rest of a refused body in pieces; the server would read it as a whole."""
        with suppress(HTTPException, OSError, ValueError):
            while response.status_code != 413 and request.stream.read(PIECE):
                pass
        return response

    @app.errorhandler(HTTPException)
    def explain(error: HTTPException) -> tuple[dict[str, str | None], int]:
        return {"error": error.description}, error.code or 500

    @app.errorhandler(RefusedCall)
    def refuse(refused: RefusedCall) -> tuple[dict[str, str], int]:
        return {"error": str(refused)}, CODES[refused.refusal]


def _add_calls(
    app: Flask, shared: SharedSessions, tokens: Tokens, welcome: Callable[[str], Welcome]
) -> None:
    """Add the calls of clients."""

    @contextmanager
    def call() -> Iterator[tuple[str, str]]:
        """Authenticate a call; return the client's name and the identifier of its process."""
        name = tokens.client(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if name is None:
            abort(401, "unknown token")
        process = request.headers.get(PROCESS, "")
        if not 0 < len(process) <= MAX_PROCESS:
            abort(400, f"{PROCESS} must have 1 to {MAX_PROCESS} characters")
        with shared.call(name, process):
            yield name, process

    @app.post("/join")
    def join() -> Any:
        with call() as (name, process):
            shared.join(name, process)
            return msgspec.to_builtins(welcome(name))

    @app.post("/heartbeat")
    def heartbeat() -> Any:
        with call() as (name, process):
            shared.heartbeat(name, process)
            return {}

    @app.post("/leave")
    def leave() -> Any:
        with call() as (name, process):
            shared.leave(name, process)
            return {}

    @app.get("/request")
    def next_request() -> Any:
        with call() as (name, process):
            asked = shared.next_request(name, process)
        if asked is None:
            return Response(status=204)
        number, body = asked
        headers = {NUMBER: str(number), "Content-Length": str(len(body))}
        pieces = (body[i : i + PIECE] for i in range(0, len(body), PIECE))
        return Response(pieces, headers=headers, mimetype=BINARY)

    @app.post("/reply")
    def reply() -> Any:
        with call() as (name, process):
            number = request.headers.get(NUMBER, type=int)
            if number is None:
                abort(400, f"{NUMBER} must be a number")
            shared.heartbeat(name, process)  # before the body is read into memory
            shared.accept(name, process, number, _read_body())
            return {}


def _read_body() -> bytes:
    """Return the complete body of the call. Only the run decodes it."""
    try:
        body = request.get_data(cache=False)
    except OSError:
        body = b""
    if not body or len(body) != request.content_length:
        abort(400, "the body is empty or incomplete")
    return body


def _add_status_page(app: Flask, status: Callable[[], Status] | None) -> None:
    @app.get("/")
    def status_page() -> Any:
        if status is None:
            abort(404, "the status page is turned off")
        current, still = status(), "still" in request.args
        page = render_template("status.html", status=current, still=still, now=datetime.now())
        response = Response(page, headers=PAGE_HEADERS)
        if not (current.outcome or still):
            response.headers["Refresh"] = str(REFRESH)
        return response


class TLS(BuiltinSSLAdapter):
    """TLS with the handshake in the thread that reads the call.

    By default, the handshake takes place in the one thread that accepts connections, and a caller
    that does not answer would block it.
    """

    def wrap(self, sock: Any) -> tuple[Any, dict[str, str]]:
        options: dict[str, Any] = {"server_side": True, "do_handshake_on_connect": False}
        return self.context.wrap_socket(sock, **options), {}


class WebServer(Server):
    """The web server, with enough threads for all clients and some strangers, and small headers."""

    max_request_header_size = 2**16
    expiration_interval = 0.1  # seconds between two checks whether to stop

    def __init__(self, address: tuple[str, int], app: Flask, n_clients: int):
        threads = 2 * MAX_CALLS * max(1, n_clients)
        super().__init__(address, app, threads, request_queue_size=threads, shutdown_timeout=1)
        self.keep_alive_conn_limit = threads
        self.server_name = "fedlib"

    def process_conn(self, conn: Any) -> None:
        """Give a connection a thread when its first bytes arrive, not before."""
        if conn.last_used is None:
            self.put_conn(conn)
        else:
            super().process_conn(conn)

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        """Log the errors of connections for debugging only; callers cause them at will."""
        logger.debug("%s", msg, exc_info=traceback)
