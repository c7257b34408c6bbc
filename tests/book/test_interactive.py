"""The figures that compute in the page: the browser must find what fedlib finds."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

ROOT = Path(__file__).parents[2]
METHODS = ("horizontal-dbscan", "own-table", "kmeans", "ppdbdc", "boosting")
N_SETTINGS = 12  # per method, besides the first settings

pytestmark = [
    pytest.mark.book,  # they need no book, but Chromium and some time
]


@pytest.fixture(scope="module")
def interactive():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.interactive.interactive")


@pytest.fixture(scope="module")
def examples(interactive):
    return {name: interactive.EXAMPLES[name]() for name in METHODS}


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def content(interactive, examples, method):
    figure = interactive.render(examples[method])
    return f"<!doctype html><html lang='en'><title>x</title><main><h1>x</h1>{figure}</main></html>"


@pytest.fixture(scope="module")
def page(browser, content):
    """Return a page with one figure, on a phone; it must log no error."""
    page, errors = browser.new_page(viewport={"width": 390, "height": 900}), []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url))
    page.set_content(content)
    yield page
    page.close()
    assert errors == []


def settings_of(example):
    """Return the first settings, both ends of each slider, and random settings."""
    rng = np.random.default_rng(0)
    ends = [
        example.first | {slider.name: slider.values[end]}
        for slider in example.sliders
        for end in (0, -1)
    ]
    drawn = [
        {slider.name: slider.values[rng.integers(len(slider.values))] for slider in example.sliders}
        for _ in range(N_SETTINGS)
    ]
    return [example.first, *ends, *drawn]


def test_the_browser_computes_what_fedlib_computes(page, examples, method):
    example = examples[method]
    for settings in settings_of(example):
        computed = page.evaluate(
            "settings => document.querySelector('figure').compute(settings)", settings
        )
        expected = example.compute(settings)
        assert computed["labels"] == expected.labels, settings
        assert computed["ringed"] == expected.ringed, settings
        assert computed["summary"] == expected.summary, settings
        assert len(computed["shapes"]) == len(expected.shapes), settings
        for shape, wanted in zip(computed["shapes"], expected.shapes, strict=True):
            assert shape.keys() == wanted.keys()
            assert (shape.pop("kind"), shape.pop("class")) == (
                wanted.pop("kind"),
                wanted.pop("class"),
            )
            assert shape == pytest.approx(wanted, rel=0, abs=1e-9), settings


def drawn(page):
    """Return the classes of the points, the outlines of the shapes, and the summary."""
    return page.evaluate(
        """() => [
          [...document.querySelectorAll('.points circle')].map(e => e.getAttribute('class')),
          [...document.querySelectorAll('.shapes *')].map(e => {
            const box = e.getBBox()
            return [box.x, box.y, box.width, box.height]
          }),
          document.querySelector('.summary').textContent,
        ]"""
    )


def test_a_slider_moved_there_and_back_by_keyboard_draws_the_first_picture_again(page, method):
    points, shapes, summary = drawn(page)
    slider = page.get_by_role("slider").first
    slider.focus()
    slider.press("ArrowRight")
    assert drawn(page)[1] != shapes
    assert drawn(page)[2] == page.locator("[aria-live=polite]").text_content() != summary
    shown = slider.get_attribute("aria-valuetext")
    assert page.locator("output").first.text_content() == shown
    slider.press("ArrowLeft")
    again = drawn(page)
    assert (again[0], again[2]) == (points, summary)
    np.testing.assert_allclose(again[1], shapes, atol=1e-3)  # the stored picture is rounded


def test_the_figure_is_accessible_and_fits_a_phone(page, method):
    violations = Axe().run(page).response["violations"]
    assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_javascript_the_picture_and_the_settings_remain(browser, content, examples, method):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.set_content(content)
    assert page.locator(".points circle").count() == len(examples[method].data["points"])
    assert page.locator(".shapes *").count() > 0
    assert not page.locator(".controls").is_visible()
    assert "The sliders need JavaScript. The picture shows" in page.content()
    page.context.close()


def test_an_unknown_figure_is_refused(interactive):
    with pytest.raises(ValueError, match="name must be one of .*; got 'dbscan'"):
        interactive.figure("dbscan")
