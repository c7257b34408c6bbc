"""The built pages as a reader's browser shows them, straight from the disk.

They make no request to another host, log no error, have no serious accessibility violation in light
and dark, and fit a phone. `make book` builds them; without a book or a Chromium these tests skip.
"""

import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

BUILD = Path(__file__).parents[2] / "_build"
BOOK = BUILD / ("quick" if (BUILD / "quick/html/index.html").exists() else "full") / "html"
INDEX = BOOK / "index.html"  # leads to the first page
PAGES = [
    page for page in sorted(BOOK.rglob("*.html")) if "_static" not in page.parts and page != INDEX
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
PHONE, DESKTOP = 390, 1280

pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="no book is built: make book"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
]
each_page = pytest.mark.parametrize(
    "address",
    [page.as_uri() for page in PAGES],
    ids=[str(page.relative_to(BOOK)) for page in PAGES],
)

# Boxes in the article that stick out to the right and do not scroll inside another box.
STICKING_OUT = """width => [...document.querySelectorAll('article *:not(mjx-assistive-mml *)')]
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


@pytest.fixture
def open_page(browser):
    """Return a function that opens a page and waits until its formulas are drawn."""
    contexts = []

    def open_page(address, *, width=DESKTOP, scheme="light", watch=lambda page: None):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        watch(page)
        page.goto(address, wait_until="load")
        page.evaluate("async () => { await window.MathJax?.startup?.promise }")
        page.add_style_tag(content="* { transition: none !important }")  # colours at rest
        return page

    yield open_page
    for context in contexts:
        context.close()


def test_index_leads_to_the_first_page(browser):
    page = browser.new_page()
    page.goto(INDEX.as_uri())
    page.wait_for_url("**/book/intro.html", timeout=5000)


@each_page
def test_asks_no_other_host_and_logs_no_error(open_page, address):
    requests, errors = [], []

    def watch(page):
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))

    page = open_page(address, watch=watch)
    page.wait_for_load_state("networkidle")
    assert len(requests) > 5  # the page itself, styles, scripts
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert [text for text in errors if not text.startswith(("log:", "info:", "debug:"))] == []


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_axe_finds_nothing_serious(open_page, address, scheme, width):
    page = open_page(address, scheme=scheme, width=width)
    found = [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in Axe().run(page).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    assert found == []


@each_page
def test_fits_a_phone(open_page, address):
    page = open_page(address, width=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert page.evaluate(STICKING_OUT, PHONE) == []
