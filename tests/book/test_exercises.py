"""Tests of the exercises of the pages: each has a grade, and numbers are checked."""

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GRADES = {"★ explain", "★★ compute", "★★★ program"}


@pytest.fixture(scope="module")
def exercises(modules):
    return modules("study.shared.exercises")


def text_of(path):
    """Return the source of a page."""
    if path.suffix == ".md":
        return path.read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


PAGES = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("book/*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_exercise_has_a_grade(path):
    grades = re.findall(r"```\{exercise\} ?(.*)", text_of(path))
    assert set(grades) <= GRADES


def files(entries):
    """Yield the pages of a part of the book."""
    for entry in entries:
        yield entry["file"]
        yield from files(entry.get("sections", ()))


def test_each_part_with_pages_of_its_own_has_two_exercises_that_are_checked():
    parts = yaml.safe_load((ROOT / "book/_toc.yml").read_text("utf-8"))["parts"]
    for part in parts:
        names = list(files(part["chapters"]))
        if part["caption"].startswith(("Appendix", "Back matter")):
            continue
        paths = [ROOT / f"{name}.ipynb" for name in names]
        asked = sum(text_of(path).count("study.ask(") for path in paths if path.exists())
        assert asked >= 2, part["caption"]


def test_an_answer_that_is_no_number_is_refused(exercises):
    with pytest.raises(ValueError, match="answer must be finite .* got answer=nan"):
        exercises.ask("Rows", float("nan"), "Count them.")


@pytest.mark.book
@pytest.mark.parametrize(
    ("typed", "verdict"),
    [
        ("10", "Right."),
        (" 10,04 % ", "Right."),
        ("10.2", "Each <step> waits."),
        ("", "Enter a number, such as 0.5."),
        ("ten", "Enter a number, such as 0.5."),
    ],
)
def test_the_page_checks_the_answer(exercises, browser, typed, verdict):
    page = browser.new_page()
    page.set_content(exercises.ask('Seconds "net"', 10, "Each <step> waits.", 0.05).data)
    page.get_by_label('Seconds "net"').fill(typed)
    page.get_by_role("button", name="Check").click()
    assert page.locator("output").inner_text() == verdict
    page.close()
