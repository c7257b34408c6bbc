"""The built pages in a browser, opened as files.

They make no request to another host, log no error, have no serious accessibility violation and fit
the window, on a desktop with light colours and on a phone with dark ones. `make book` builds them.
Without a book or without Chromium, these tests are skipped.
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
PAGES = [
    page for page in sorted(BOOK.rglob("*.html")) if "_static" not in page.parts and page != INDEX
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
VIEWS = ("light", 1280), ("dark", 390)  # a desktop and a phone

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
    params=product(PAGES, VIEWS),
    ids=lambda visit: f"{visit[0].relative_to(BOOK)}-{visit[1][0]}",
)
def visit(contexts, request):
    """Open a page, once for all its tests; return it, its requests and its log."""
    address, view = request.param
    page, requests, errors = contexts[view].new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
    page.goto(address.as_uri(), wait_until="networkidle")
    page.evaluate("async () => { await window.MathJax?.startup?.promise }")  # wait for the formulas
    page.add_style_tag(content="* { transition: none !important }")  # no colours in between
    yield page, requests, errors
    page.close()


def test_index_redirects_to_the_first_page(browser):
    page = browser.new_page()
    page.goto(INDEX.as_uri())
    page.wait_for_url("**/book/intro.html", timeout=5000)


def test_requests_no_other_host_and_logs_no_error(visit):
    _, requests, errors = visit
    assert len(requests) > 5  # the page itself, styles, scripts
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert [text for text in errors if not text.startswith(("log:", "info:", "debug:"))] == []


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
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_OFF, width) == []
