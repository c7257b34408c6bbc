"""The figure in which a reader tries a table: read in the page, sent nowhere, and right."""

import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe

from fedlib import HorizontalDBSCAN

ROOT = Path(__file__).parents[2]
SETTINGS = {"cell_size": 0.1, "min_samples": 3, "n_clients": 3, "site": 0}

pytestmark = [
    pytest.mark.book,  # they need no book, but Chromium
]


@pytest.fixture(scope="module")
def content():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        interactive = importlib.import_module("study.interactive.interactive")
        figure = interactive.figure("own-table")
    return f"<!doctype html><html lang='en'><title>x</title><main><h1>x</h1>{figure}</main></html>"


@pytest.fixture
def page(browser, content):
    """Return a page with the figure; it must log no error and make no request of any kind."""
    page, events = browser.new_page(viewport={"width": 390, "height": 900}), []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("request", lambda request: events.append(request.url))
    page.on("websocket", lambda socket: events.append(socket.url))
    page.set_content(content)
    yield page
    page.close()
    assert events == []


def give(page, text, name="mine.csv"):
    """Choose a file with a text, and wait until the page says something about it."""
    file = {"name": name, "mimeType": "text/csv", "buffer": text.encode()}
    page.set_input_files("[type=file]", [file])
    page.wait_for_function("document.querySelector('.status').textContent !== ''")
    return page.locator(".status").text_content()


def computed(page, settings=SETTINGS):
    return page.evaluate("s => document.querySelector('figure').compute(s)", settings)


def points(page):
    """Return the places of the circles, the second axis upwards."""
    found = page.evaluate(
        "[...document.querySelectorAll('.points circle')].map(c => [c.cx.baseVal.value, "
        "-c.cy.baseVal.value])"
    )
    return np.array(found)


@pytest.fixture(scope="module")
def table():
    """Return a table with gaps, text, a constant and three columns of numbers."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 200)
    frame = pd.DataFrame(
        {
            "patient": [f"p{i}" for i in range(200)],
            "age": (30 + 30 * group + rng.normal(0, 5, 200)).round(1),
            "note, short": ['said "no"\nand left'] * 200,
            "site": 7,
            "crp": (5 + 40 * group + rng.normal(0, 4, 200)).round(2),
            "bmi": rng.normal(27, 4, 200).round(1),
        }
    )
    frame.loc[[3, 50], "crp"] = np.nan
    return frame


def expected(table, first, second, n_clients=3):
    """Return the labels of the complete rows, by fedlib."""
    X = table[[first, second]].dropna().to_numpy()
    X = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    model = HorizontalDBSCAN(SETTINGS["cell_size"], SETTINGS["min_samples"])
    parts = model.fit([X[i::n_clients] for i in range(n_clients)]).labels_
    labels = np.empty(len(X), int)
    for i, part in enumerate(parts):
        labels[i::n_clients] = part
    return X, labels.tolist()


def test_a_file_is_read_and_clustered_as_fedlib_does_without_any_request(page, table):
    said = give(page, table.to_csv(index=False))
    assert said == (
        "mine.csv: 198 rows are shown; 2 have no number in one of the columns and are left out."
        " The file has not left this page."
    )
    assert page.locator("select").first.locator("option").all_text_contents() == [
        "age",
        "crp",
        "bmi",
    ]
    X, labels = expected(table, "age", "crp")
    np.testing.assert_allclose(points(page), X, atol=1e-6)
    assert computed(page)["labels"] == labels
    assert max(labels) > 0
    classes = page.evaluate(
        "[...document.querySelectorAll('.points circle')].map(c => c.className.baseVal)"
    )
    assert len(set(classes)) > 1


def test_other_columns_and_other_sites_are_computed_again(page, table):
    give(page, table.to_csv(index=False))
    page.get_by_label("Second column").select_option("bmi")
    assert computed(page)["labels"] == expected(table, "age", "bmi")[1]
    assert "198" not in page.locator(".status").text_content()  # bmi has no gaps
    summary = page.locator(".summary").text_content()
    slider = page.get_by_role("slider", name="Sites")
    slider.press("End")
    assert page.locator(".summary").text_content() != summary
    site = page.get_by_role("slider", name="Site with rings")
    site.press("ArrowRight")
    assert page.locator(".points .ringed").count() == 20


@pytest.mark.parametrize(("sep", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ",")])
def test_separators_decimal_commas_and_marks_of_the_encoding(page, table, sep, decimal):
    text = "\ufeff" + table.to_csv(index=False, sep=sep, decimal=decimal, lineterminator="\r\n")
    give(page, text)
    assert computed(page)["labels"] == expected(table, "age", "crp")[1]


def test_a_large_table_is_thinned_evenly(page):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(7000, 2)), columns=["a", "b"])
    said = give(page, frame.to_csv(index=False))
    assert said.startswith("mine.csv: 2334 rows are shown, one of every 3.")
    thin = frame.iloc[::3].reset_index(drop=True)
    assert computed(page)["labels"] == expected(thin, "a", "b")[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.csv has 0 columns of numbers, and two are needed"),
        ("a,b\nx,1\ny,2\n", "mine.csv has 1 columns of numbers"),
        ("a,b\n1,\n2,\n,3\n,4\n", "All values of a chosen column are equal in the complete rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_remedy(page, text, message):
    before = computed(page)["labels"]
    assert message in give(page, text)
    assert computed(page)["labels"] == before


def test_it_is_accessible_and_fits_a_phone_with_a_file(page, table):
    give(page, table.rename(columns={"crp": "a very long name " * 10}).to_csv(index=False))
    violations = Axe().run(page).response["violations"]
    assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_dropped_file_is_read(page, table):
    page.evaluate(
        """text => {
          const transfer = new DataTransfer()
          transfer.items.add(new File([text], 'dropped.csv'))
          document.querySelector('.controls').dispatchEvent(
            new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: transfer}))
        }""",
        table.to_csv(index=False),
    )
    page.wait_for_function("document.querySelector('.status').textContent !== ''")
    assert page.locator(".status").text_content().startswith("dropped.csv: 198 rows")
