"""The built book as a site: links, downloads, images, search, wrong addresses, and the PDF."""

import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from built_pages import parts_of
from pypdf import PdfReader

BUILD = Path(__file__).parents[2] / "_build"
BUILT = BUILD / ("quick" if (BUILD / "quick/html/index.html").exists() else "full")
BOOK = BUILT / "html"
PDF = BUILT / "book.pdf"
PAGES = [page for page in sorted(BOOK.rglob("*.html")) if "_static" not in page.parts]

pytestmark = [
    pytest.mark.book,
    pytest.mark.skipif(not PAGES, reason="no book is built: make book"),
    pytest.mark.xdist_group("site"),
]

SCRIPT = re.compile(r"<script\b[^>]*>.*?</script>|<!--.*?-->", re.DOTALL)
REFERENCE = re.compile(r'<(?:a|img|link|iframe|source)\b[^>]*?\s(?:href|src)="([^"]*)"')
IMAGE = re.compile(r"<img\b[^>]*>")

# Words that a reader may search for, and the page that must come first.
SEARCHES = {
    "HorizontalDBSCAN": "book/reference/fedlib.HorizontalDBSCAN.html",
    "FederatedXGBClassifier": "book/reference/fedlib.FederatedXGBClassifier.html",
    "CountCells": "book/reference/fedlib.clustering.density.horizontal.html",
    "split_rows": "book/reference/fedlib.datasets.partition.split_rows.html",
    "TooFewClients": "book/reference/fedlib.core.protocol.TooFewClients.html",
    "PPDBDC": "book/reference/fedlib.PPDBDC.html",
    "glossary": "book/glossary.html",
    "threat model": "notebooks/privacy_threat_model.html",
    "bibliography": "book/bibliography.html",
    "changelog": "book/changelog.html",
}


@cache
def markup(page):
    """Return a page without its scripts."""
    return SCRIPT.sub("", page.read_text(encoding="utf-8"))


@cache
def identifiers(page):
    """Return the places of a page to which a link can lead, also in parts that it loads later."""
    text = markup(page) + "".join(parts_of(page))
    return set(re.findall(r'\s(?:id|name)="([^"]+)"', text))


def leads_nowhere(page, reference):
    """Return whether a reference to the book has no file, or no place in its file."""
    parts = urlsplit(reference.replace("&amp;", "&"))
    if parts.scheme or parts.netloc:
        return False
    base = BOOK if parts.path.startswith("/") else page.parent
    path = unquote(parts.path).lstrip("/")
    target = Path(os.path.normpath(base / path)) if path else page
    if target.is_dir():
        target /= "index.html"
    if parts.fragment and target.suffix == ".html" and target.is_file():
        return unquote(parts.fragment) not in identifiers(target)
    return not target.is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(BOOK)))
def test_links_images_and_downloads_exist(page):
    references = sorted(set(REFERENCE.findall(markup(page))))
    assert [reference for reference in references if leads_nowhere(page, reference)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(BOOK)))
def test_images_have_alternative_texts(page):
    assert [tag[:200] for tag in IMAGE.findall(markup(page)) if 'alt="' not in tag] == []


def test_every_notebook_can_be_downloaded():
    for page in BOOK.glob("notebooks/*.html"):
        assert f"_sources/notebooks/{page.stem}.ipynb" in markup(page)
        assert (BOOK / f"_sources/notebooks/{page.stem}.ipynb").exists()


def test_pages_are_numbered_in_the_order_of_the_contents():
    entry = re.compile(r'<li class="toctree-l[12][^>]*><a[^>]*>\s*([\d.]+)\. ')
    entries = entry.findall(markup(BOOK / "book/intro.html"))
    numbers = [tuple(map(int, number.split("."))) for number in entries]
    assert numbers[0] == (1,)
    assert len(numbers) > 50
    for (chapter, *below), number in pairwise(numbers):
        assert number in {(chapter + 1,), (chapter, sum(below) + 1)}


def test_pages_state_their_title_and_description_for_previews():
    for page in [*BOOK.glob("notebooks/*.html"), *BOOK.glob("book/*.html")]:
        tags = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)"', markup(page)))
        assert tags.keys() >= {"title", "description"}, page.name
        assert not tags["description"].startswith("Question"), page.name
        addresses = [tags[name] for name in ("url", "image") if name in tags]
        assert all(urlsplit(address).scheme for address in addresses), page.name


@pytest.fixture(scope="module")
def tab(browser):
    return browser.new_page()


@pytest.mark.parametrize(("words", "page"), SEARCHES.items(), ids=SEARCHES)
def test_search_finds_the_page_first(tab, address, words, page):
    tab.goto(f"{address}/search.html?q={words.replace(' ', '+')}")
    first = tab.locator("#search-results ul.search li a").first
    first.wait_for()
    assert first.get_attribute("href").removeprefix("./").partition("#")[0] == page


def test_a_wrong_address_leads_back_to_the_book(tab, address):
    failed = []
    tab.goto("about:blank")  # ends the requests of the page before
    tab.on("requestfailed", lambda request: failed.append(request.url))
    tab.on("pageerror", lambda error: failed.append(str(error)))
    tab.goto(f"{address}/no/such/page.html")
    assert "Page not found" in tab.title()
    assert tab.evaluate("getComputedStyle(document.querySelector('h1')).fontFamily") != ""
    assert failed == []
    tab.click("text=the reference")
    tab.wait_for_url("**/book/reference.html")


def test_a_printed_page_says_what_only_the_web_page_shows(browser, address, tmp_path):
    """A figure that computes is loaded when the reader comes to it; paper has no empty frame."""
    tab = browser.new_page()
    tab.goto(f"{address}/notebooks/kmeans_choices.html", wait_until="load")
    tab.pdf(path=tmp_path / "page.pdf")
    tab.close()
    printed = " ".join(page.extract_text() for page in PdfReader(tmp_path / "page.pdf").pages)
    note = "Only the web page shows this part."
    before, _, after = " ".join(printed.split()).partition("Lloyd's iteration in this page")
    assert before.count(note) == 1
    assert note not in after
    assert "Check" not in printed  # the button below an exercise


@pytest.mark.skipif(not PDF.exists(), reason="no PDF is printed: make pdf")
def test_pdf_is_tagged_and_has_an_outline():
    book = PdfReader(PDF)
    assert book.trailer["/Root"]["/MarkInfo"]["/Marked"]
    assert book.trailer["/Root"]["/Lang"] == "en"
    assert len(book.outline) > 0
    assert len(book.pages) > 100
    texts = [book.pages[number].extract_text() for number in (0, 50, 100)]
    assert f"51 of {len(book.pages)}" in texts[1]
