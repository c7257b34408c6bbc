"""The status page: its content, what it must not contain, and how it looks in Chromium."""

import re
import shutil
import threading
import time

import httpx
import numpy as np
import pytest

from fedlib import __version__
from fedlib.clustering.density.horizontal import CellCounts, CountCells
from fedlib.core.ledger import Ledger
from fedlib.core.messages import Failure, encode
from fedlib.transports.http import HTTP, Limits, digest, new_token
from fedlib.transports.http.status import Traffic, size
from fedlib.transports.http.wire import NUMBER, PROCESS, VERSION

NAMES = ("north", "south", "<b>&west</b>", "east", "never-" + "x" * 58)
TOKENS = {name: new_token() for name in NAMES}
COUNTS = encode(CellCounts(np.array([[4711, 4712]]), np.array([4713])))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
PHONE, DESKTOP = 390, 1280
PARAMETERS = {"cell_size": 0.03, "init": "array of shape (3, 2)"}


@pytest.fixture(autouse=True)
def all_threads_end():
    """Replace the check of the same name: this module's server and browser outlive a test."""


@pytest.fixture(scope="module")
def transport():
    """Return a server during its third step, with a client in each state."""
    digests = {name: digest(token) for name, token in TOKENS.items()}
    limits = Limits(gone_after=60, rejoin_timeout=60, join_timeout=0.1)
    about = {"protocol": "horizontal-dbscan", "parameters": PARAMETERS}
    with HTTP(digests, "127.0.0.1:0", **about, limits=limits) as server:
        links = {}
        for name in NAMES[:-1]:
            headers = {"Authorization": f"Bearer {TOKENS[name]}", PROCESS: f"session-{name}"}
            headers[VERSION] = __version__
            links[name] = httpx.Client(base_url=server.url, headers=headers, trust_env=False)
            links[name].post("/join")
        server.ledger = ledger = Ledger()
        request = CountCells(0.03)
        for step in (1, 2):
            for name in NAMES:
                ledger.record(step, "server", name, request, 1234)
                reply = Failure("ValueError") if (step, name) == (2, "east") else request
                ledger.record(step, name, "server", reply, 10**6 * step)
        ledger.lost["east"] = "ValueError at CountCells, step 2"
        asked = dict.fromkeys(NAMES[:3], encode(request))
        for name in asked:
            ledger.record(3, "server", name, request, 36)
        exchange = threading.Thread(target=server.exchange, args=(asked,))
        exchange.start()
        while server.status().asked < 3:
            time.sleep(0.01)
        links["north"].post("/reply", content=COUNTS, headers={NUMBER: "1"})
        links["<b>&west</b>"].post("/leave")
        yield server
        for link in links.values():
            link.post("/leave")
            link.close()
        server.close()
        exchange.join()


def get(transport, path="/"):
    return httpx.get(transport.url + path, trust_env=False)


def test_it_shows_the_clients_and_the_messages(transport):
    page = get(transport)
    text = " ".join(re.sub(r"<[^>]*>", " ", page.text.partition("<main>")[2]).split())
    for part in (
        "horizontal-dbscan step 3: CountCells, 1 of 3 answered, 15.0 MB",
        "cell_size 0.03 init array of shape (3, 2)",
        "Clients: 3 of 5 present",
        "north answered joined",
        "south working joined",
        "&lt;b&gt;&amp;west&lt;/b&gt; away left",
        "east lost ValueError at CountCells, step 2 last seen",
        "x expected Messages",
        "2 Failure from clients 1 2.0 MB the type of an error (ValueError)",
        "3 CountCells to clients 3 108 B the cell size",
    ):
        assert part in text
    assert page.headers["Refresh"] == "2"
    assert "Refresh" not in get(transport, "/?still").headers


def test_it_shows_no_data_and_no_secret(transport):
    page = get(transport)
    received = page.text + str(page.headers)
    for secret in ("4711", "4712", "4713", "session-", transport.run):
        assert secret not in received
    for token in TOKENS.values():
        assert token not in received
        assert digest(token) not in received
    assert "<b>" not in page.text
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert "uvicorn" not in received.lower()


def test_it_ends_with_the_run_and_can_be_turned_off():
    with HTTP({"a": "0" * 64}, "127.0.0.1:0") as server:
        assert "0 of 1 client joined" in get(server).text
        server.finish()
        page = get(server)
        assert "finished after 0 steps, 0 B" in page.text
        assert "Refresh" not in page.headers
    with HTTP({"a": "0" * 64}, "127.0.0.1:0", status_page=False) as server:
        refused = get(server)
        assert (refused.status_code, list(refused.json())) == (404, ["error"])


def test_a_long_conversation_shows_its_last_steps():
    with HTTP({"a": "0" * 64}, "127.0.0.1:0") as server:
        server.ledger = Ledger()
        for step in range(1, 1001):
            server.ledger.record(step, "server", "a", CountCells(1.0), 10)
        steps = [line.step for line in server.status().conversation]
        assert steps == list(range(981, 1001))
        assert "Messages since step 981" in get(server).text
        assert server.status().bytes == 10_000


def test_thousands_of_clients_are_counted_and_some_are_described():
    """First those that are lost, away, expected or working."""
    names = [f"site-{i:04}" for i in range(3000)]
    with HTTP({name: digest(name) for name in names}, "127.0.0.1:0") as server:
        sessions = server._service.sessions
        for name in names[:2940]:
            sessions[name].join("process", now=0)
        sessions["site-2000"].leave("process", now=0)
        sessions["site-1000"].lose("Gone")
        page, status = get(server).text, server.status()
        shown = re.findall(r"<strong>(site-\d+)</strong>", page)
        assert shown[:3] == ["site-1000", "site-2000", "site-2940"]
        assert (len(shown), len(status.clients)) == (100, 100)
        assert status.states["waiting"] == 2938
        assert "Clients: 2939 of 3000 present" in page  # one has left; the lost one is present
        assert "<p>2,900 more: 2,900 waiting.</p>" in page
        assert len(page) < 50_000
        for name in names:  # so that the end is not delayed
            sessions[name].informed = True


def test_the_traffic_is_counted_once():
    traffic, ledger = Traffic(), Ledger()
    for step in (1, 2, 3):
        ledger.record(step, "server", "a", CountCells(1.0), 10)
        ledger.record(step, "a", "server", Failure("X"), 5)
        for _ in range(2):
            traffic.update(ledger)
    assert (traffic.step, traffic.request, traffic.to_clients, traffic.from_clients) == (
        3,
        "CountCells",
        30,
        15,
    )
    assert traffic.bytes == ledger.bytes
    traffic.update(Ledger())  # another run
    assert (traffic.step, traffic.bytes, traffic.conversation()) == (0, 0, [])


def test_sizes_are_readable():
    assert [size(n) for n in (0, 1000, 999_949, 5 * 10**9, 10**13)] == [
        "0 B",
        "1.0 kB",
        "999.9 kB",
        "5.0 GB",
        "10000.0 GB",
    ]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_it_is_readable_everywhere(transport, browser, width, scheme, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    wrong, calls = [], []
    with browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    ) as context:
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda call: calls.append(call.url))
        page.goto(f"{transport.url}/?still")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
        page.screenshot(path=tmp_path / f"status-{scheme}-{width}.png", full_page=True)
        page.goto(f"{transport.url}/?still")
        found = axe.Axe().run(page).response["violations"]
    assert [violation["id"] for violation in found] == []
    assert wrong == []
    assert set(calls) == {f"{transport.url}/?still"}
