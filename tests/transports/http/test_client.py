"""`join`: lost calls, repeated requests, interruptions, and servers that cannot be used."""

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from http_helpers import ANSWER, TOKENS, Slow, attend, estimator, serve

from fedlib.clustering.density.horizontal import CountCells, HorizontalDBSCANClient
from fedlib.core.client import Client
from fedlib.core.messages import encode
from fedlib.core.protocol import TooFewClients
from fedlib.core.registry import find_estimator, unwrapped
from fedlib.transports.http import JoinError, Unreachable, join
from fedlib.transports.http.client import ClientLoop, connect, reason_of
from fedlib.transports.http.wire import NUMBER, Welcome


def test_a_client_may_be_made_from_the_protocols_name(points, start):
    names = []

    def make(protocol):
        names.append(protocol)
        return HorizontalDBSCANClient(points[0])

    with serve("0", protocol="horizontal-dbscan") as transport:
        [end] = attend(start, transport, {"0": make})
        estimator().fit(transport)
    assert (end.result(ANSWER), names) == ("finished", ["horizontal-dbscan"])


def test_a_reply_that_is_lost_is_sent_again_and_handled_once(points, start, monkeypatch):
    """The first post of each reply is lost on its way; so is an answer with the next request."""
    client = Slow(points[0])
    client.go.set()
    real, posts, statuses = httpx.Client.request, [], []

    def lossy(link, method, path, **content):
        if path != "/reply":
            return real(link, method, path, **content)
        posts.append(content["headers"][NUMBER])
        if posts.count(posts[-1]) == 1:
            raise httpx.WriteError("lost")
        response = real(link, method, path, **content)
        statuses.append(response.status_code)
        if posts == ["1", "1"]:
            raise httpx.ReadError("lost")
        return response

    with serve("0") as transport:
        monkeypatch.setattr(httpx.Client, "request", lossy)
        [end] = attend(start, transport, {"0": client})
        model = estimator().fit(transport)
    assert end.result(ANSWER) == "finished"
    assert [type(request).__name__ for request in client.requests] == ["CountCells", "AssignCells"]
    assert posts == ["1", "1", "1", "2", "2"]
    assert statuses == [200, 200, 410]
    assert len(model.ledger_) == 4


def test_a_request_that_comes_again_is_answered_from_the_checkpoint(points, tmp_path):
    client = Slow(points[0])
    client.go.set()
    request = encode(CountCells(0.5))
    replies = []

    def handle(call):
        if call.url.path == "/join":
            welcome = {"client": "0", "run": "r", "protocol": "", "heartbeat": 60}
            return httpx.Response(200, json=welcome)
        if call.url.path == "/reply":
            replies.append(call.content)
            return httpx.Response(200, json={})
        if len(replies) == 3:
            return httpx.Response(410, json={"error": "finished"})
        return httpx.Response(200, content=request, headers={NUMBER: "7"})

    for process in (client, HorizontalDBSCANClient(points[1])):  # the second only reads the reply
        with httpx.Client(base_url="http://test", transport=httpx.MockTransport(handle)) as link:
            assert ClientLoop(link, process, tmp_path, 1).run() == "finished"
    assert len(client.requests) == 1
    assert len(set(replies)) == 1


@contextmanager
def proxy():
    """Return the address of a proxy, and the first line of each connection through it."""
    asked, done = [], threading.Event()

    def pump(source, target):
        with suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
        for line in (source, target):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def relay(line):
        with line:
            head = line.recv(2**16)
            asked.append(head.partition(b"\r\n")[0].decode())
            method, target, _ = asked[-1].split()
            host = target if method == "CONNECT" else urlsplit(target).netloc
            name, _, port = host.partition(":")
            with socket.create_connection((name, int(port)), ANSWER) as onward:
                if method == "CONNECT":
                    line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    onward.sendall(head)
                back = threading.Thread(target=pump, args=(onward, line))
                back.start()
                pump(line, onward)
                back.join()

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(8) as pool:
        listening.settimeout(0.05)

        def accept():
            while not done.is_set():
                with suppress(TimeoutError):
                    pool.submit(relay, listening.accept()[0])

        accepting = pool.submit(accept)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            done.set()
            accepting.result()


def test_all_calls_pass_through_the_proxy(points, start):
    here = estimator().fit(points[:1])
    client = HorizontalDBSCANClient(points[0])
    with proxy() as (address, asked), serve("0") as transport:
        [end] = attend(start, transport, {"0": client}, proxy=address)
        estimator().fit(transport)
        transport.close()
        assert end.result(ANSWER) == "finished"
    assert client.state.labels.tolist() == here.labels_[0].tolist()
    assert asked
    assert {line.split()[1].rpartition("/")[0] for line in asked} == {transport.url}


def test_a_site_sends_its_replies_and_nothing_else(points, start, monkeypatch):
    """It opens no port, and calls the server alone, whatever proxy the environment names."""
    sent, handled = [], []

    class Kept(HorizontalDBSCANClient):
        def answer(self, request):
            handled.append(super().answer(request))
            return handled[-1]

    def listen(*_):
        raise AssertionError("a site opens a port")

    handle = httpx.HTTPTransport.handle_request

    def record(transport, request):
        sent.append((request.url, bytes(request.headers.raw.__repr__(), "utf-8"), request.read()))
        return handle(transport, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", record)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve("0") as transport:
        monkeypatch.setattr(socket.socket, "listen", listen)
        [end] = attend(start, transport, {"0": Kept(points[0])})
        estimator().fit(transport)
    assert end.result(ANSWER) == "finished"
    assert [body for _, _, body in sent if body] == [encode(reply) for reply in handled]
    assert {f"{url.scheme}://{url.netloc.decode()}" for url, *_ in sent} == {transport.url}
    assert not any(url.query for url, *_ in sent)
    assert max(len(headers) for _, headers, _ in sent) < 1000


def test_a_proxy_that_cannot_be_reached_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    with serve("0") as transport:
        with pytest.raises(Unreachable, match="no answer"):
            join(transport.url, Client(), TOKENS["0"], patience=0, proxy=closed)
        assert transport.status().joined == 0


def test_a_client_can_be_interrupted(points, start):
    main = threading.main_thread().ident
    with serve("01", join_timeout=1, gone_after=0.5) as transport:
        model = start(estimator().fit, transport)
        start(lambda: (time.sleep(0.5), signal.pthread_kill(main, signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            join(transport.url, HorizontalDBSCANClient(points[0]), TOKENS["0"])
        left = time.monotonic()
        with pytest.raises(TooFewClients, match="'0': Left"):
            model.result(ANSWER)
        assert time.monotonic() - left < 2


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1:80", {}, "url must begin with http:// or https://"),
        ("ftp://127.0.0.1", {}, "url must begin with http:// or https://"),
        ("http://", {}, "url must begin with http:// or https://"),
        ("http://127.0.0.1:x", {}, "url and proxy must be valid, got 'http://127.0.0.1:x' and"),
        ("http://127.0.0.1", {"proxy": "http://a:x"}, "url and proxy must be valid, got"),
        ("http://127.0.0.1", {"proxy": "a:1"}, "proxy must begin with http:// or https:// and a"),
        (
            "http://127.0.0.1",
            {"token": ""},
            "token must consist of one or more visible ASCII characters",
        ),
        ("http://127.0.0.1", {"patience": -1}, "patience must be at least 0, got -1"),
    ],
)
def test_invalid_arguments_of_join_are_named(url, options, message):
    with pytest.raises(ValueError, match=message):
        join(url, Client(), **{"token": TOKENS["0"], **options})


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(200, text="hello"), "is not a server of fedlib"),
        (httpx.Response(200, json={"client": "0"}), "is not a server of fedlib"),
        (httpx.Response(302, headers={"Location": "/"}), "status 302"),
        (httpx.Response(404, json=["error"]), "status 404"),
        (httpx.Response(502, text="bad gateway"), "status 502"),
    ],
)
def test_servers_that_are_not_of_fedlib(response, message):
    answers = httpx.MockTransport(lambda call: response)
    with (
        httpx.Client(base_url="http://test", transport=answers) as link,
        pytest.raises(JoinError, match=message),
    ):
        ClientLoop(link, Client(), None, 0).run()


def test_a_location_that_is_no_address_is_not_read(monkeypatch):
    answer = httpx.Response(302, headers={"Location": "a:b"}, content=b"")
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda *_: answer)
    with (
        connect("http://127.0.0.1:9", TOKENS["0"], ca=None, insecure=False, proxy=None) as link,
        pytest.raises(JoinError, match="status 302"),
    ):
        ClientLoop(link, Client(), None, 0).run()


def test_pauses_grow_and_are_random(monkeypatch):
    """Many clients of a server that was stopped do not call at the same time."""

    def pauses():
        taken = []
        clock = SimpleNamespace(monotonic=lambda: sum(taken), sleep=taken.append)
        monkeypatch.setattr("fedlib.transports.http.client.time", clock)
        with (
            httpx.Client(base_url="http://test", transport=httpx.MockTransport(refuse)) as link,
            pytest.raises(Unreachable, match="/join: no answer"),
        ):
            ClientLoop(link, Client(), None, 30).run()
        return taken

    def refuse(call):
        raise httpx.ConnectError("refused")

    first, second = pauses(), pauses()
    longest = [0.2, 0.4, 0.8, 1.6, *[2.0] * len(first)]
    for pause, whole in zip(first, longest, strict=False):
        assert whole / 2 <= pause <= whole
    assert 30 <= sum(first) <= 32  # the patience, and the last pause
    assert first != second


WELCOME = {"client": "0", "run": "r", "protocol": "", "heartbeat": 60}


class Enough(Exception):
    """A site has made as many calls as a test counts."""


def calls_of(monkeypatch, answer, most=40):
    """Return how many calls a site makes in four seconds, and in which time it makes ``most``."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda pause: setattr(clock, "now", clock.now + pause)
    monkeypatch.setattr("fedlib.transports.http.client.time", clock)
    times = []

    def handle(call):
        if call.url.path in ("/join", "/leave", "/heartbeat"):
            return httpx.Response(200, json=WELCOME)
        times.append(clock.now)
        if len(times) == most:
            raise Enough
        return answer(call)

    site = HorizontalDBSCANClient([[0.1]])
    with (
        httpx.Client(base_url="http://test", transport=httpx.MockTransport(handle)) as link,
        suppress(Enough, JoinError),
    ):
        ClientLoop(link, site, None, 30).run()
    return sum(time <= 4 for time in times), len(times)


@pytest.mark.parametrize("code", range(200, 600))
def test_no_status_leads_to_calls_without_pause(code, monkeypatch):
    n_calls, _ = calls_of(monkeypatch, lambda call: httpx.Response(code))
    assert 1 <= n_calls < 20


def test_a_request_that_is_repeated_without_end_is_answered_with_pauses(monkeypatch):
    request, numbers = encode(CountCells(0.5)), iter(range(1, 1000))

    def repeat(call):
        return httpx.Response(200, content=request, headers={NUMBER: "7"})

    def proceed(call):
        return httpx.Response(200, content=request, headers={NUMBER: str(next(numbers))})

    assert calls_of(monkeypatch, repeat)[0] < 20
    assert calls_of(monkeypatch, proceed) == (40, 40)  # new requests need no pause


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "", "9" * 19])
def test_the_number_of_a_request_is_an_integer(number, monkeypatch):
    answers = iter([httpx.Response(200, json=WELCOME)])
    strange = httpx.Response(200, headers={NUMBER: number})
    transport = httpx.MockTransport(lambda call: next(answers, strange))
    with (
        httpx.Client(base_url="http://test", transport=transport) as link,
        pytest.raises(JoinError, match="Fedlib-Sequence must be an integer with at most 18 digits"),
    ):
        ClientLoop(link, Client(), None, 0).run()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("heartbeat", [1e300, 3601, 0.01, 0, -1, None]),
        ("protocol", ["leave-one-site-out/" * 3000, "x" * 1001, 1]),
        ("client", ["x" * 1001, None]),
        ("run", ["x" * 1001, None]),
        ("digest", ["x" * 1001, None]),
        ("n_clients", [-1, 2**40, 0.5]),
        ("schema", [1, None]),
        ("protected", [1, None]),
        ("secure", [1, None]),
    ],
)
def test_a_welcome_is_checked_before_a_site_uses_it(field, values):
    assert Welcome.read(json.dumps(WELCOME).encode()).client == "0"
    for value in values:
        answer = httpx.Response(200, json={**WELCOME, field: value})
        transport = httpx.MockTransport(lambda call, answer=answer: answer)
        with (
            httpx.Client(base_url="http://test", transport=transport) as link,
            pytest.raises(JoinError, match=rf"is not a server of fedlib: .*\$\.{field}"),
        ):
            ClientLoop(link, Client(), None, 0, accept=pytest.fail).run()


def test_every_field_of_a_welcome_has_bounds():
    for field in msgspec.structs.fields(Welcome):
        hint = msgspec.inspect.type_info(field.type)
        match hint:
            case msgspec.inspect.FloatType() | msgspec.inspect.IntType():
                assert hint.ge is not None, field.name
                assert hint.le is not None, field.name
            case msgspec.inspect.StrType():
                assert hint.max_length or field.name == "schema"  # which is read as a schema
            case _:
                assert isinstance(hint, msgspec.inspect.BoolType)


def test_the_names_of_a_welcome_end_no_site_whatever_their_parts_are():
    parts = [f"{part}/" * (1000 // len(part) - 1) for part in ("aligned", "pipeline")]
    for name in [*parts, *(f"{part}kmeans" for part in parts)]:
        assert unwrapped(name)[1] in ("", "kmeans")
        assert find_estimator(name) is None


def test_the_reason_of_a_refusal_is_read_from_any_answer():
    for text in ("[" * 60000, '{"error":' * 9000, "", "1", '{"error": 5}'):
        assert reason_of(httpx.Response(500, text=text)) in ("status 500", "5")


# Answers that a site does not read ----------------------------------------------------------------


class Strange(BaseHTTPRequestHandler):
    """A server whose welcome or request has a strange body."""

    protocol_version = "HTTP/1.1"
    welcome: ClassVar[bytes] = b""
    encoding: ClassVar[str] = "identity"
    length: ClassVar[int] = 0  # of the answer to each call that is not a join
    calls: ClassVar[list[Any]] = []
    sent: ClassVar[list[int]] = []
    lost: ClassVar[tuple[str, ...]] = ()  # the paths at which it knows no process

    def log_message(self, *arguments):
        """Print nothing."""

    def answer(self, code, body=b"", length=None, **headers):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(428 if self.path in self.lost else 200, self.welcome)

    def do_GET(self):
        if self.path in self.lost:
            type(self).lost = (self.path, "/join")
            self.answer(428)
            return
        self.calls.append(self.headers)
        self.answer(200, length=self.length, Content_Encoding=self.encoding, Fedlib_Sequence="1")
        with suppress(OSError):
            for sent in range(0, self.length, 2**20):
                self.wfile.write(bytes(2**20))
                self.sent.append(sent)


@pytest.fixture
def strange(start):
    """Yield the handler of a server and the function that joins it as a site."""
    handler = type("Handler", (Strange,), {"calls": [], "sent": []})
    content = {"client": "0", "run": "r", "protocol": "", "heartbeat": 60}
    handler.welcome = json.dumps(content).encode()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        start(server.serve_forever)
        url = f"http://127.0.0.1:{server.server_port}"
        site = HorizontalDBSCANClient([[0.1]])
        yield handler, lambda: join(url, site, TOKENS["0"], patience=0)
        server.shutdown()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity"])
def test_an_encoded_answer_is_refused(strange, encoding):
    handler, join_it = strange
    handler.encoding = encoding
    with pytest.raises(JoinError, match=f"must not be encoded, it is '{encoding}'"):
        join_it()
    assert handler.calls[0]["Accept-Encoding"] == "identity"


def test_an_answer_is_read_up_to_the_limit(strange, monkeypatch):
    """The limits are those of a message and of a text; here 4 MB and 1 kB."""
    monkeypatch.setattr("fedlib.transports.http.client.MAX_BYTES", 2**22)
    monkeypatch.setattr("fedlib.transports.http.client.MAX_TEXT", 2**10)
    handler, join_it = strange
    handler.length = 2**28
    with pytest.raises(JoinError, match="/request: the answer is larger than 4194304 bytes"):
        join_it()
    assert len(handler.sent) < 2**7  # the rest of 2**8 blocks was not read
    handler.welcome = b" " * 2000
    with pytest.raises(JoinError, match="/join: the answer is larger than 1024 bytes"):
        join_it()


@pytest.mark.parametrize("path", ["/join", "/request"])
def test_a_server_that_knows_no_process_at_a_join_is_one_error(strange, path):
    handler, join_it = strange
    handler.lost = (path,)
    with pytest.raises(JoinError, match=r"/join: status 428"):
        join_it()
