"""The built pages in a browser, opened as files.

They make no request to another host, log no error, have no serious accessibility violation and fit
the window, on a desktop with light colours and on a phone with dark ones. A page is opened once, in
one of the two views, and then changes to the other one. The pages that Sphinx makes from the source
code all have the same form, so one of each kind is visited in this way, and the others only with
light colours and without a search for violations. `make book` builds the pages. Without a book or
without Chromium, these tests are skipped.
"""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

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
DESKTOP, PHONE = ("light", 1280), ("dark", 390)  # the colours and the width of the window
RESIZED = 400  # ms after which the theme has adapted a page; it waits for the end of a resizing

pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="no book is built: make book"),
]
# Results without the list of passed checks. Styles are preloaded only for a rule on rotation that
# is not used: a page that is a file may not read them, and logs an error.
FAST = {"resultTypes": ["violations"], "preload": False}
# These rules take most of the time, because they look for what is painted behind each text.
OF_COLOURS = ["color-contrast", "link-in-text-block"]
ALL_BUT_COLOURS = FAST | {"rules": {name: {"enabled": False} for name in OF_COLOURS}}
FIND = "options => axe.run(options).then(found => found.violations)"

# Violations of the rules of colours by one element for each kind of element, its own colours and
# font, the colour around it, and all that is painted behind it or hides it.
FIND_COLOURS = """options => {
  const transparent = 'rgba(0, 0, 0, 0),none,1,auto,none,none'
  const layers = new Map([[null, '']])
  const behind = element => {
    if (!layers.has(element)) {
      const s = getComputedStyle(element), outer = behind(element.parentElement)
      const layer = [s.backgroundColor, s.backgroundImage, s.opacity, s.clip, s.clipPath, s.filter]
      layers.set(element, layer.join() === transparent ? outer : outer + '|' + layer.join())
    }
    return layers.get(element)
  }
  const samples = new Map()
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue
    if (!element.checkVisibility({visibilityProperty: true})) continue
    const s = getComputedStyle(element)
    const key = [
      element.tagName, element.getAttribute('class'), s.color, s.fontSize, s.fontWeight,
      s.textDecorationLine, getComputedStyle(element.parentElement).color, behind(element)
    ].join('#')
    if (!samples.has(key)) samples.set(key, element)
  }
  return axe.run({include: [...samples.values()]}, options).then(found => found.violations)
}"""

# Boxes in the article that are cut off on the right and do not scroll inside another box.
CUT_OFF = """width => [...document.querySelectorAll('article *')]
  .filter(element => {
    const box = element.getBoundingClientRect()
    if (box.width === 0 || box.right <= width + 1) return false
    for (let outer = element; outer.tagName !== 'BODY'; outer = outer.parentElement)
      if (getComputedStyle(outer).overflowX !== 'visible') return false
    return true
  })
  .map(element => element.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def tab(browser):
    """Return a tab in which a test opens its page, the addresses it requests, and its log."""
    page = browser.new_page()
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
    return page, requests, errors


def show(page, view):
    """Give a page the colours and the window of a view."""
    colours, width = view
    page.emulate_media(color_scheme=colours)
    page.set_viewport_size({"width": width, "height": 900})


def load(tab, address, view):
    """Open a page in a view, and wait until it is complete."""
    page, requests, errors = tab
    page.goto("about:blank")  # ends what the page before has begun
    requests.clear()
    errors.clear()
    show(page, view)
    page.goto(address.as_uri(), wait_until="load")


def errors_of(tab):
    """Return a page's requests to other hosts, and what it logged except messages."""
    _, requests, errors = tab
    assert len(requests) > 5  # the page itself, styles, scripts
    elsewhere = [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    return elsewhere + [text for text in errors if not text.startswith(("log:", "info:", "debug:"))]


def too_wide(page, width):
    """Return what is cut off in a window of a width."""
    scrolled = page.evaluate("document.documentElement.scrollWidth")
    return page.evaluate(CUT_OFF, width) + ["the page"] * (scrolled > width)


def cut_figures(page):
    """Return the figures of which a phone shows only a part at a time."""
    return page.evaluate(
        """() => [...document.querySelectorAll('figure.fedlib-figure .fedlib-scroll')]
          .filter(box => box.querySelector('img') && box.scrollWidth > box.clientWidth + 1)
          .map(box => box.closest('figure').id)"""
    )


def violations(page):
    """Return the serious violations that axe finds; the page must have axe."""
    found = page.evaluate(FIND, ALL_BUT_COLOURS)
    found += page.evaluate(FIND_COLOURS, FAST | {"runOnly": OF_COLOURS})
    return [
        f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def test_index_redirects_to_the_first_page(browser):
    page = browser.new_page()
    page.goto(INDEX.as_uri())
    page.wait_for_url("**/book/intro.html", timeout=5000)


@pytest.mark.parametrize("address", VISITED, ids=lambda path: str(path.relative_to(BOOK)))
def test_a_page_in_both_views(tab, address):
    """Every other page starts on a phone: what runs only when a page is opened runs in each."""
    page, _, errors = tab
    views = (DESKTOP, PHONE) if VISITED.index(address) % 2 else (PHONE, DESKTOP)
    load(tab, address, views[0])
    page.evaluate(Axe().axe_script)
    page.add_style_tag(content="* { transition: none !important }")  # no colours in between
    for view in views:
        show(page, view)
        if view != views[0]:
            page.wait_for_timeout(RESIZED)
        assert page.evaluate("document.documentElement.dataset.theme") == view[0]
        assert too_wide(page, view[1]) == [], view
        assert cut_figures(page) == [], view
        assert errors_of(tab) == [], view
        assert violations(page) == [], view
        errors.clear()  # axe logs errors of its own when it asks frames


def test_bad_colours_and_names_are_violations(tab):
    """A grey text between others of its kind, a link that only its colour shows, a picture."""
    page, *_ = tab
    load(tab, BOOK / "book/intro.html", DESKTOP)
    page.evaluate(Axe().axe_script)
    page.evaluate(
        """() => document.querySelector('article').insertAdjacentHTML('beforeend', `
          <p>Black</p><p style="color: #999">Grey</p><img src="">
          <p style="color: #000">A <a href="#" style="color: #222; text-decoration: none">link</a>
          in a text</p>`)"""
    )
    rules = {violation.partition(":")[0] for violation in violations(page)}
    assert rules == {*OF_COLOURS, "image-alt"}


@pytest.mark.parametrize("address", GENERATED, ids=lambda path: path.stem)
def test_pages_from_the_source_code_log_no_error_and_fit(tab, address):
    page, *_ = tab
    load(tab, address, DESKTOP)
    assert too_wide(page, DESKTOP[1]) == []
    page.set_viewport_size({"width": PHONE[1], "height": 900})
    assert too_wide(page, PHONE[1]) == []
    assert errors_of(tab) == []


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
