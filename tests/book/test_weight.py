"""Pages are light: their bytes, and the time until a reader on a slow line sees something."""

import re
from functools import cache
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "_build"
BOOK = BUILD / ("quick" if (BUILD / "quick/html/index.html").exists() else "full") / "html"
PAGES = [
    page
    for page in sorted(BOOK.rglob("*.html"))
    if "_static" not in page.parts and page not in (BOOK / "index.html", BOOK / "404.html")
]
BLOCKING = 450_000  # bytes that a page must have before the browser shows it
ALL = 900_000  # bytes of a page with all that it shows
PATIENCE = 3000  # ms until the first text is visible
SLOW = {"offline": False, "latency": 150, "downloadThroughput": 2e5, "uploadThroughput": 1e5}
MEASURED = (
    "book/intro",
    "book/claims",
    "book/glossary",
    "book/reference/fedlib.HorizontalDBSCAN",
    "book/run_at_real_sites",
    "notebooks/fidelity",
    "notebooks/explore",
    "notebooks/horizontal_dbscan",
    "notebooks/xgboost",
    "notebooks/your_own_data",
)

pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="no book is built: make book"),
    pytest.mark.xdist_group("site"),
]

SHEET = re.compile(r'<link\b[^>]*\brel="stylesheet"[^>]*>')
SCRIPT = re.compile(r'<script\b[^>]*\ssrc="[^"]*"[^>]*>')  # no data-src, which is loaded on use
IMAGE = re.compile(r"<img\b[^>]*>")
ADDRESS = re.compile(r'\b(?:href|src)="([^"?#]*)')
FONT = re.compile(r"url\(([^)]*\.woff2?)\)")


@cache
def size(path):
    """Return the bytes of a file."""
    return path.stat().st_size


def files_of(page, text, tags):
    """Return the files that some elements of a page load."""
    addresses = [ADDRESS.search(tag)[1] for tag in tags.findall(text)]
    return {(page.parent / one).resolve() for one in addresses if not one.startswith("data:")}


def weights(page):
    """Return the bytes of a page that block its display, and those of all that it loads.

    Pictures for dark colours are not counted, because a page shows those of one of the themes, and
    hidden ones, the frames of a slider, neither: they come when they are shown.
    """
    text = page.read_text(encoding="utf-8")
    sheets = files_of(page, text, SHEET)
    scripts = files_of(page, text, SCRIPT)
    waiting = files_of(page, text, re.compile(r'<script defer\b[^>]*\bsrc="[^"]*"[^>]*>'))
    shown = "".join(tag for tag in IMAGE.findall(text) if not re.search("only-dark| hidden", tag))
    fonts = {
        (sheet.parent / address.strip("'\"")).resolve()
        for sheet in sheets
        for address in FONT.findall(sheet.read_text(encoding="utf-8"))
    }
    blocking = size(page) + sum(map(size, sheets | (scripts - waiting)))
    return blocking, blocking + sum(map(size, waiting | fonts | files_of(page, shown, IMAGE)))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(BOOK)))
def test_a_page_has_few_bytes(page):
    blocking, everything = weights(page)
    # The index is one long list, whose beginning is visible before the rest arrives.
    assert blocking <= BLOCKING or page.name == "genindex.html"
    assert everything <= ALL


@pytest.mark.parametrize("name", MEASURED)
def test_a_page_is_visible_after_three_seconds_at_1600_kilobits(browser, address, name):
    """The line has 1.6 Mbit/s and a delay of 150 ms; nothing is compressed or in a cache."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    context.new_cdp_session(page).send("Network.emulateNetworkConditions", SLOW)
    page.goto(f"{address}/{name}.html", wait_until="commit")
    painted = page.evaluate(
        """() => new Promise(resolve => new PerformanceObserver(list => {
          const first = list.getEntriesByName('first-contentful-paint')[0]
          if (first) resolve(first.startTime)
        }).observe({type: 'paint', buffered: true}))"""
    )
    context.close()
    assert painted <= PATIENCE
