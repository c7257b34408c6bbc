"""The list of all elements of the sources, and the places in the pages that it names.

The tests marked `book` look for the places in the built book.
"""

import csv
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from built_pages import whole

ROOT = Path(__file__).parents[2]
COLUMNS = ["source", "kind", "number", "title", "page", "anchor", "verdict", "table", "note"]
STUDY = yaml.safe_load((ROOT / "notebooks/study.yml").read_text(encoding="utf-8"))
CONTENTS = (ROOT / "book/_toc.yml").read_text(encoding="utf-8")
BUILT = ROOT / "_build" / ("quick" if (ROOT / "_build/quick/html").exists() else "full") / "html"
SUMMARIES = {"concordance"}  # pages without an experiment or a text of their own

# What the sources number themselves, from their lists of contents, figures and tables.
NUMBERED = {
    ("M", "section"): "1 1.1 1.2 1.3 2 2.1 2.2 3 3.1 3.2 4 4.1 4.2 4.3 5 5.1 5.2 5.3 6",
    ("M", "definition"): "1 2 3 4 5 6",
    ("K", "figure"): "1",
    ("K", "step"): "1 2 2.1 2.2 2.3 2.4 3",
    ("P", "section"): "1 2 2.1 2.2 3 3.1 3.2 3.3 4 4.1 4.2 4.3 4.4 4.5 5",
    ("P", "figure"): "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17",
    ("F", "section"): (
        "1 1.1 1.2 1.3 1.4 2 3 3.1 3.2 3.3 3.4 3.4.1 3.4.2 3.5 4 4.1 5 5.1 5.1.1 5.1.2 5.2 5.2.1"
        " 5.2.2 5.2.3 5.2.4 6"
    ),
    ("F", "figure"): "1.1 3.1 3.2 3.3 4.1 5.1 5.2 5.3",
    ("F", "table"): "2.1 3.1 3.2 3.3 3.4 3.5 3.6 3.7 5.1 5.2",
    ("F", "equation"): "3.1 3.2 3.3 5.1",
    ("F", "algorithm"): "1 2 3 4",
}


@pytest.fixture(scope="module")
def elements():
    """Return the notebooks' module, imported as they import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.claims.elements")


@pytest.fixture(scope="module")
def rows():
    with (ROOT / "book/concordance.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def name(row):
    return f"{row['source']} {row['kind']} {row['number']}"


def test_list_is_well_formed(elements, rows):
    pages = elements.pages()
    for row in rows:
        assert row["source"] in {*elements.SOURCES, "M1", "M2"}, name(row)
        assert row["kind"] in elements.KINDS, name(row)
        assert row["verdict"] in elements.VERDICTS, name(row)
        assert row["number"], name(row)
        assert row["title"], name(row)
        assert None not in row.values(), name(row)
        assert all(value == value.strip() for value in row.values()), name(row)
        assert row["page"] in pages or row["verdict"] == "not applicable", name(row)
        assert bool(row["anchor"]) == (row["source"] != "book" and row["page"] != ""), name(row)
        assert (row["source"] == "book") == (row["verdict"] == "beyond"), name(row)
        if row["verdict"] in ("corrected", "partial", "not done", "not applicable"):
            assert row["note"], f"{name(row)}: no reason is given"


def test_each_element_is_listed_once(rows):
    counts = Counter(map(name, rows))
    assert [element for element, n in counts.items() if n > 1] == []


@pytest.mark.parametrize(("key", "numbers"), NUMBERED.items(), ids=map(" ".join, NUMBERED))
def test_everything_with_a_number_is_listed(rows, key, numbers):
    listed = {row["number"] for row in rows if (row["source"], row["kind"]) == key}
    assert set(numbers.split()) - listed == set()


def test_pages_have_the_places_that_the_list_names(elements, rows):
    missing = [
        f"{name(row)}: {row['page']}#{row['anchor']}"
        for row in rows
        if row["anchor"] and row["anchor"] not in dict(elements.targets(row["page"]))
    ]
    assert missing == []


def test_the_list_has_the_places_that_pages_name(elements, rows):
    listed = {(row["page"], row["anchor"]) for row in rows}
    found = [(page, label) for page in elements.pages() for label, _ in elements.targets(page)]
    assert [place for place in found if place not in listed] == []


def test_places_are_unique_in_the_book(elements):
    counts = Counter(label for page in elements.pages() for label, _ in elements.targets(page))
    assert [label for label, n in counts.items() if n > 1] == []


def test_all_targets_have_names_of_the_same_form(elements):
    """A target that the pattern does not know would escape the other tests."""
    for page in elements.pages():
        text = elements.text(page)
        named = re.findall(r"^\(([^()\s]+)\)= *$|^:label: *(\S+)", text, re.MULTILINE)
        labels = [one or other for one, other in named]
        labels = [label for label in labels if not label.startswith("ex-")]  # of exercises
        labels = [label for label in labels if f"]({label})" not in text]  # links within the page
        assert set(labels) <= set(dict(elements.targets(page))), page


def test_all_pages_with_an_experiment_are_listed(rows):
    listed = {row["page"] for row in rows}
    experiments = {f"notebooks/{notebook}" for notebook in STUDY if notebook not in SUMMARIES}
    assert experiments - listed == set()


def test_all_tables_of_printed_numbers_are_listed(rows):
    with (ROOT / "datasets/published.csv").open(encoding="utf-8", newline="") as file:
        printed = {(row["source"], row["table"]) for row in csv.DictReader(file)}
    assert {(row["source"], row["table"]) for row in rows if row["table"]} == printed


def test_all_judged_claims_are_listed(rows):
    with (ROOT / "datasets/claims.csv").open(encoding="utf-8", newline="") as file:
        claims = {(row["source"], row["number"]) for row in csv.DictReader(file)}
    judged = {(row["source"], row["number"]) for row in rows if row["verdict"] == "judged"}
    assert judged == claims


@pytest.mark.book
@pytest.mark.skipif(not BUILT.exists(), reason="no book is built: make book")
def test_built_pages_have_the_places(elements, rows):
    identifiers = {
        page: set(re.findall(r' id="([^"]+)"', (BUILT / f"{page}.html").read_text("utf-8")))
        for page in {row["page"] for row in rows if row["page"]}
    }
    missing = [
        f"{name(row)}: {row['page']}#{row['anchor']}"
        for row in rows
        if row["anchor"]
        and dict(elements.targets(row["page"]))[row["anchor"]] not in identifiers[row["page"]]
    ]
    assert missing == []


@pytest.mark.book
@pytest.mark.skipif(not BUILT.exists(), reason="no book is built: make book")
def test_built_concordance_links_to_each_element(elements, rows):
    page = whole(BUILT / "notebooks/concordance.html")
    links = Counter(re.findall(r'<a href="([^"]+)">', page))
    for row in rows:
        if row["page"]:
            address = re.search('href="([^"]+)"', elements.link(row))[1]
            assert links[address], name(row)
