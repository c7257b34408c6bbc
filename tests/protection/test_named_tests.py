"""The pages on protection name tests that exist."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/privacy_*.ipynb"))
PAGES = [*NOTEBOOKS, *(ROOT / "book" / f"{name}.md" for name in ("how_we_attack", "protect"))]
PLACE = re.compile(r"`(tests/[\w/]+\.py)`|`(test_\w+)`")


def text_of(page):
    """Return the text of a page without its code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "markdown")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_names_tests_and_all_of_them_exist(page):
    """A name belongs to the file that the page has named last."""
    file, defined, n_named = "", set(), 0
    for path, name in PLACE.findall(text_of(page)):
        if path:
            file = path
            code = (ROOT / path).read_text(encoding="utf-8")
            defined = set(re.findall(r"^ *def (test_\w+)", code, re.M))
        else:
            n_named += 1
            assert name in defined, f"{file} has no {name}"
    assert n_named
