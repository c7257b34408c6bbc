"""The figure that plays a protocol: what it shows is what was sent, and the browser plays it."""

import html
import importlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from fedlib import (
    DBDC,
    PPDBDC,
    SDBDC,
    AlignedRows,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedXGBClassifier,
    GaussianMixtureDBSCAN,
    HorizontalDBSCAN,
    VerticalDBSCAN,
)

ROOT = Path(__file__).parents[2]
LIMITS = [[-1.6, -1.0], [2.6, 1.5]]
ESTIMATORS = {
    "in the clear": HorizontalDBSCAN(0.25, 2),
    "masked": HorizontalDBSCAN(0.25, 2, secure=True, bounds=LIMITS),
    "with noise": HorizontalDBSCAN(0.25, 4, epsilon=5.0, delta=1e-6, bounds=LIMITS),
}
START = [[1.0, 1.5], [2.0, 1.5], [3.0, 1.5]]
EM = {"method": "em", "weights_init": [1 / 3] * 3, "means_init": START, "max_rounds": 1}
EM |= {"precisions_init": [np.eye(2)] * 3}
HISTOGRAMS = {"n_trees": 2, "method": "histogram", "max_bin": 8, "max_depth": 2, "tol": None}
# Estimators with their toy, and the messages of each whose pictures are not empty.
DRAWN = [
    (PPDBDC(0.3, 4, random_state=0), "moons", {"blurred representatives", "relabel points"}),
    (SDBDC(0.3, 6), "moons", {"weighted representatives", "relabel points"}),
    (DBDC(0.3, 4), "moons", {"local model", "relabel points"}),
    (
        FederatedKMeans(3, method="one_shot", random_state=0),
        "blobs",
        {"local centres", "measure inertia", "assign centres"},
    ),
    (
        FederatedKMeans(3, method="lloyd", init=START, max_iter=2),
        "blobs",
        {"sum clusters", "cluster sums", "assign centres"},
    ),
    (
        FederatedGaussianMixture(3, "average", random_state=0, max_rounds=2),
        "blobs",
        {"local mixture", "improve mixture", "improved mixture", "assign components"},
    ),
    (
        FederatedGaussianMixture(3, **EM),
        "blobs",
        {"sum responsibilities", "responsibility sums", "assign components"},
    ),
    (
        FederatedGaussianMixture(3, secure=True, bounds=LIMITS, **EM),
        "blobs",
        {"mask values", "masked values", "revealed shares", "assign components"},
    ),
    (
        GaussianMixtureDBSCAN(0.3, 4, n_components=2, random_state=0),
        "moons",
        {"cluster mixtures", "assign points"},
    ),
    (
        FederatedXGBClassifier(**HISTOGRAMS),
        "classes",
        {"build packed histograms", "packed histograms", "keep trees"},
    ),
    (
        FederatedXGBClassifier(2, max_depth=2, n_candidates=3, method="top_splits"),
        "classes",
        {"propose splits", "split proposals", "sum leaves", "keep trees"},
    ),
    (VerticalDBSCAN(0.6, 4), "columns", {"neighbour block", "assign labels"}),
]
in_chromium = pytest.mark.book


@pytest.fixture(scope="module")
def theatre():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.interactive.theatre")


@pytest.fixture(scope="module")
def shown(theatre):
    return theatre.theatre(
        ESTIMATORS, theatre.toy_parts(), name="fig-a", caption="A run.", alt="Three sites."
    )


@pytest.fixture(scope="module")
def recordings(shown):
    return recordings_of(shown)


def recordings_of(shown):
    """Return the recordings with their pictures in place of the indices of these."""
    data = json.loads(re.search(r"application/json[^>]*>(.*?)</script>", shown)[1])
    for scene in (scene for each in data["recordings"] for scene in each["scenes"]):
        scene["server"] = data["pictures"][scene["server"]]
        scene["sites"] = [data["pictures"][i] for i in scene["sites"]]
    return data["recordings"]


def test_it_shows_each_message_with_its_size_and_what_it_discloses(theatre, recordings):
    model = HorizontalDBSCAN(0.25, 2).fit(theatre.toy_parts())
    first = recordings[0]
    expected = [theatre.in_words(name) for name in model.ledger_.conversation()]
    assert [scene["message"] for scene in first["scenes"]] == expected
    for scene, entry, (_, of_scene) in zip(
        first["scenes"],
        first["ledger"],
        model.ledger_.to_frame().groupby(["step", "message"], sort=False),
        strict=True,
    ):
        assert list(scene["sizes"].values()) == [theatre.amount(size) for size in of_scene["bytes"]]
        assert of_scene["discloses"].iloc[0] in html.unescape(entry)
    assert first["totals"][-1] == (
        f"Ledger: {len(model.ledger_)} messages, {theatre.amount(model.ledger_.bytes)}"
    )


def test_points_end_in_the_colours_of_their_labels(theatre, recordings):
    labels = HorizontalDBSCAN(0.25, 2).fit(theatre.toy_parts()).labels_
    expected = [" ".join(map(theatre.colour, part)) for part in labels]
    assert recordings[0]["after"] == expected


@pytest.mark.parametrize(
    ("estimator", "shape", "drawn"), DRAWN, ids=lambda value: getattr(value, "name", None)
)
def test_each_protocol_draws_what_it_sends(theatre, estimator, shape, drawn):
    shown = theatre.theatre(
        estimator, theatre.toy_parts(shape), name="fig-a", caption="C.", alt="A."
    )
    (recording,) = recordings_of(shown)
    assert {scene["message"] for scene in recording["scenes"] if scene["server"]} == drawn


def test_means_are_drawn_where_they_are(theatre):
    """The means of a client are at its sums over its counts, in the units of the panel."""
    messages = importlib.import_module("fedlib.clustering.kmeans.messages")
    pictures = importlib.import_module("study.interactive.pictures")
    plane = pictures.Plane(np.array([0.0, 0.0]), np.array([92.0, 62.0]))
    sums = messages.ClusterSums(
        np.array([[[20.0, 40.0], [0.0, 0.0]]]), np.array([[2, 0]]), np.ones(1)
    )
    assert pictures.picture(sums, plane, "") == '<circle class="k0" cx="14" cy="46" r="0.99"/>'


def test_rows_of_one_site_have_no_label_and_equal_pseudonyms_coincide(theatre):
    parts = theatre.toy_parts("columns")
    names = [f"p{i}" for i in range(40)]
    rows = {"site 1": range(30), "site 2": range(10, 40)}
    shown = theatre.theatre(
        AlignedRows(VerticalDBSCAN(0.6, 4)),
        {site: parts[site][list(of_site)] for site, of_site in rows.items()},
        options=[{"ids": [names[i] for i in of], "key": bytes(32)} for of in rows.values()],
        name="fig-a",
        caption="C.",
        alt="A.",
    )
    (recording,) = recordings_of(shown)
    first, second = (classes.split() for classes in recording["after"])
    assert first[:10] == second[20:] == ["plain"] * 10
    assert first[10:] == second[:20]
    scenes = {scene["message"]: scene for scene in recording["scenes"]}
    sent = scenes["pseudonyms"]["sites"]
    circles = [set(re.findall("<circle[^>]*>", picture)) for picture in sent]
    assert len(circles[0] & circles[1]) == 20


def test_masked_and_open_sums_are_the_same_picture(recordings):
    """The server removes the masks from the sum; before, the messages of the sites look alike."""
    clear, masked, noisy = (
        {scene["message"]: scene for scene in recording["scenes"]} for recording in recordings
    )
    assert masked["revealed shares"]["server"] == clear["cell counts"]["server"]
    assert masked["assign cells"]["server"] == clear["assign cells"]["server"]
    assert "cover" in masked["masked values"]["server"]
    assert "ink" not in masked["masked values"]["server"]
    assert 'class="negative"' in noisy["noisy counts"]["server"]


def test_the_page_is_the_same_each_time(theatre, shown):
    again = theatre.theatre(
        ESTIMATORS, theatre.toy_parts(), name="fig-a", caption="A run.", alt="Three sites."
    )
    assert again == shown
    assert len(shown) < theatre.MOST_BYTES


def test_a_large_figure_is_refused(theatre):
    parts = [np.random.default_rng(i).normal(size=(2000, 2)) for i in range(2)]
    with pytest.raises(
        ValueError, match=r"the figure of fig-a must have at most 150,000 bytes, got .*fewer rows"
    ):
        theatre.theatre(HorizontalDBSCAN(0.1, 2), parts, name="fig-a", caption="C.", alt="A.")


@pytest.mark.parametrize(
    ("page", "name"),
    [("intro.md", "run_to_watch.html"), ("which_method.md", "methods_to_watch.html")],
)
def test_pages_without_code_have_the_present_run(theatre, page, name):
    """`python -m study.building.first_page` writes it again."""
    first_page = importlib.import_module("study.building.first_page")
    assert (ROOT / "book" / name).read_text("utf-8").strip() == first_page.RUNS[name]()
    assert f":file: {name}" in (ROOT / "book" / page).read_text("utf-8")


# In the browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(shown):
    return f"<!doctype html><html lang='en'><title>x</title><main><h1>x</h1>{shown}</main></html>"


@pytest.fixture
def opened(browser, content):
    """Return a function that opens the figure; it must log no error and load nothing."""
    contexts, errors = [], []

    def open_page(width=390, scheme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: errors.append(request.url))
        page.set_content(content)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def stored(shown, tmp_path):
    """Return a page of the book with the figure: its recordings and the script are files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book/_ext")
        pattern = importlib.import_module("page_pattern")
    uri = SimpleNamespace(
        current_docname="notebooks/a", get_target_uri=lambda name: f"{name}.html", outdir=tmp_path
    )
    page = tmp_path / "notebooks/a.html"
    page.parent.mkdir()
    content = pattern.store_files(SimpleNamespace(builder=uri), shown)
    page.write_text(f"<!doctype html><html lang='en'><title>x</title>{content}</html>")
    shutil.copy(ROOT / "book/_static/theatre.js", tmp_path / "_static/theatre.js")
    return page


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def state(page):
    """Return the server's picture, the classes of the points and the count of ledger entries."""
    return page.evaluate(
        """() => [
          document.querySelector('.server .overlay').innerHTML,
          [...document.querySelectorAll('.site .points circle')].map(c => c.className.baseVal),
          document.querySelectorAll('.ledger li:not([hidden])').length,
        ]"""
    )


def at_the_start(page):
    """Load the script and go to the first place."""
    press(page, "Play")
    page.get_by_role("slider").press("Home")
    assert state(page)[0] == ""


class TestInChromium:
    pytestmark = in_chromium

    def test_a_page_of_the_book_loads_the_run_when_the_reader_plays_it(self, browser, stored):
        still, limit = stored.stat().st_size, 40_000  # light_pages.HEAVY: what needs JavaScript
        assert still < limit
        page, requests = browser.new_page(), []
        page.on("request", lambda request: requests.append(Path(request.url).name))
        page.goto(stored.as_uri())
        assert requests == ["a.html"]
        press(page, "Play")
        page.wait_for_selector(".chip")
        assert requests[-1] == "theatre.js"
        assert len(requests) == 3
        page.get_by_role("slider").press("End")
        assert state(page)[2] == 4
        page.close()

    def test_the_last_place_is_the_still(self, opened):
        page = opened()
        still = state(page)
        at_the_start(page)
        assert set(state(page)[1]) == {"plain"}
        assert state(page)[2] == 0
        page.get_by_role("slider").press("End")
        assert state(page) == still

    def test_play_runs_to_the_end_and_pause_stops(self, opened):
        page = opened()
        at_the_start(page)
        page.get_by_label("Speed").select_option("4")
        press(page, "Play")
        page.wait_for_selector(".chip")
        press(page, "Pause")
        assert page.locator(".chip").count() == 0
        stopped = state(page)
        page.wait_for_timeout(900)
        assert state(page) == stopped
        press(page, "Play")
        page.wait_for_function("document.querySelectorAll('.ledger li:not([hidden])').length === 4")
        page.wait_for_function("document.querySelector('.play').textContent === 'Play'")
        assert page.get_by_role("slider").get_attribute("aria-valuetext") == "4 of 4"

    def test_keys_step_there_and_back(self, opened):
        page = opened()
        at_the_start(page)
        page.locator(".fedlib-theatre").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(".chip", state="detached")
        assert (
            "count cells · server → 3 sites · 108 B · discloses the cell"
            in page.locator("[aria-live]").text_content()
        )
        page.keyboard.press("ArrowLeft")
        assert state(page)[2] == 0
        page.keyboard.press("End")
        assert state(page)[2] == 4

    def test_another_recording_starts_at_its_beginning(self, opened):
        page = opened()
        at_the_start(page)
        page.get_by_label("masked").check()
        assert state(page)[2] == 0
        page.get_by_role("slider").press("End")
        assert page.locator(".ledger li").count() == 14
        assert "masked values" in page.locator(".ledger").text_content()

    def test_nothing_moves_if_the_reader_wants_no_motion(self, opened):
        page = opened(reduced_motion="reduce")
        at_the_start(page)
        press(page, "Step")
        assert page.locator(".chip").count() == 3
        assert page.evaluate("document.getAnimations().length") == 0

    @pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
    def test_it_is_accessible_and_fits(self, opened, width, scheme):
        page = opened(width, scheme)
        at_the_start(page)
        press(page, "Step")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        violations = Axe().run(page).response["violations"]
        assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []

    def test_without_javascript_and_in_print_the_end_of_the_run_remains(self, opened):
        page = opened(java_script_enabled=False)
        assert page.locator(".server .overlay path").count() > 0
        assert page.locator(".ledger li").count() == 4
        assert not page.get_by_role("button").first.is_visible()
        page.emulate_media(media="print")
        assert page.locator(".ledger li").last.is_visible()
