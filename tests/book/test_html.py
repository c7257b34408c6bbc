"""The built pages in a browser, opened as files.

They make no request to another host, log no error, have no serious accessibility violation and fit
the window, on a desktop with light colours and on a phone with dark ones. The pages that Sphinx
makes from the source code all have the same form, so only one of each kind is visited in this way,
and the others in one window of either width. `make book` builds the pages. Without a book or
without Chromium, these tests are skipped.
"""

import shutil
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

BUILD = Path(__file__).parents[2] / "_build"
BOOK = BUILD / ("quick" if (BUILD / "quick/html/index.html").exists() else "full") / "html"
INDEX = BOOK / "index.html"  # redirects to the first page
APART = INDEX, BOOK / "404.html"  # tested by themselves
PAGES = [
    page
    for page in sorted(BOOK.rglob("*.html"))
    if "_static" not in page.parts and page not in APART
]
SAMPLES = {
    f"book/reference/fedlib.{name}.html"
    for name in (
        "HorizontalDBSCAN",
        "core.messages.MessageError",
        "boosting.messages",
        "core.protocol.run",
    )
} | {"_modules/fedlib/core/ledger.html"}
GENERATED = [
    page
    for page in PAGES
    if page.relative_to(BOOK).parts[0] == "_modules" or page.parent == BOOK / "book/reference"
]
VISITED = [
    page for page in PAGES if page not in GENERATED or str(page.relative_to(BOOK)) in SAMPLES
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
VIEWS = ("light", 1280), ("dark", 390)  # a desktop and a phone


def on_one_worker(pages, name):
    """Return parameters for a fixture; the tests of one page run in the same process."""
    return [
        pytest.param(page, id=name(page), marks=pytest.mark.xdist_group(name(page)))
        for page in pages
    ]


pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="no book is built: make book"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
]
FAST = {"resultTypes": ["violations"]}  # without the list of passed checks

# Boxes in the article that are cut off on the right and do not scroll inside another box.
CUT_OFF = """width => [...document.querySelectorAll('article *:not(mjx-assistive-mml *)')]
  .filter(element => {
    const box = element.getBoundingClientRect()
    if (box.width === 0 || box.right <= width + 1) return false
    for (let outer = element; outer.tagName !== 'BODY'; outer = outer.parentElement)
      if (getComputedStyle(outer).overflowX !== 'visible') return false
    return true
  })
  .map(element => element.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def contexts(browser):
    return {
        (scheme, width): browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        for scheme, width in VIEWS
    }


@pytest.fixture(
    scope="module",
    params=on_one_worker(
        product(VISITED, VIEWS), lambda visit: f"{visit[0].relative_to(BOOK)}-{visit[1][0]}"
    ),
)
def visit(contexts, request):
    """Open a page, once for all its tests; return it, its requests and its log."""
    address, view = request.param
    page = contexts[view].new_page()
    requests, errors = listen(page)
    page.goto(address.as_uri(), wait_until="networkidle")
    page.evaluate("async () => { await window.MathJax?.startup?.promise }")  # wait for the formulas
    page.add_style_tag(content="* { transition: none !important }")  # no colours in between
    yield page, requests, errors
    page.close()


def listen(page):
    """Return two lists that grow: the addresses that a page requests, and what it logs."""
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
    return requests, errors


def check_log(requests, errors):
    """Assert that a page requested files of the book only, and logged no error."""
    assert len(requests) > 5  # the page itself, styles, scripts
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert [text for text in errors if not text.startswith(("log:", "info:", "debug:"))] == []


def check_width(page, width):
    """Assert that nothing is cut off in a window of a width."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_OFF, width) == []


def test_index_redirects_to_the_first_page(browser):
    page = browser.new_page()
    page.goto(INDEX.as_uri())
    page.wait_for_url("**/book/intro.html", timeout=5000)


def test_requests_no_other_host_and_logs_no_error(visit):
    _, requests, errors = visit
    check_log(requests, errors)


def test_axe_finds_nothing_serious(visit):
    page, *_ = visit
    found = [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in Axe().run(page, options=FAST).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    assert found == []


def test_fits_the_window(visit):
    page, *_ = visit
    check_width(page, page.viewport_size["width"])


@pytest.mark.parametrize("address", GENERATED, ids=lambda path: path.stem)
def test_pages_from_the_source_code_log_no_error_and_fit(contexts, address):
    page = contexts["light", 1280].new_page()
    requests, errors = listen(page)
    page.goto(address.as_uri(), wait_until="load")
    check_width(page, 1280)
    page.set_viewport_size({"width": 390, "height": 900})
    check_width(page, 390)
    page.close()
    check_log(requests, errors)


def test_keyboard_reaches_the_text_and_the_search(browser):
    """The first key leads to a link that skips the navigation; Ctrl + K opens the search."""
    page = browser.new_page()
    page.goto((BOOK / "book/intro.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main-content"
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.type") != "search"
    page.close()
