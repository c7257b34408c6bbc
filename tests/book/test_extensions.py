"""The book's extensions of Sphinx: faults that stop a build, light pages, formulas."""

import doctest
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from built_pages import content_of
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from fontTools.ttLib import TTFont

ROOT = Path(__file__).parents[2]
BOX = ["fedlib-box"]
EXTENSIONS = ("formulas", "light_pages", "page_checks", "page_search")


@pytest.fixture(scope="module")
def load():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book/_ext")
        yield importlib.import_module


@pytest.mark.parametrize("name", EXTENSIONS)
def test_examples(load, name):
    results = doctest.testmod(load(name))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.fixture
def document():
    return new_document("page", get_default_settings())


def test_each_kind_of_fault_is_found_and_nothing_else(load, document):
    document += [
        nodes.paragraph("", "costs $5 or $6, and −0.5 % or 10-0"),
        nodes.paragraph("", "a formula $k$"),
        nodes.literal("", "$k$ and -0.0"),
        nodes.paragraph("", "by -0.00%"),
        nodes.admonition("", nodes.title("", "In short"), classes=BOX),
        nodes.admonition(
            "", nodes.title("", "A"), nodes.paragraph("", "B"), classes=["fedlib-box"]
        ),
        nodes.container("", nodes.literal_block("", "Warning: x"), classes=["output", "stderr"]),
        nodes.raw("", '<select name="a"></select><path d="-0 1"><td>-0.0</td>', format="html"),
        nodes.raw("", '<input aria-label="eps"><label>k <input></label>', format="html"),
        nodes.raw("", "<table><td>none</td></table><table><th>a</th></table>", format="html"),
        nodes.raw("", "<th>b</th><td class='x'> NaN </td><td>nan, since n = 0</td>", format="html"),
    ]
    found = [text for _, text in load("page_checks").faults(document)]
    assert found == [
        "a formula is not drawn: '$k$'",
        "a zero has a sign: '-0.00'",
        "a zero has a sign: '-0.0'",
        'a control has no name: <select name="a">',
        "a table has no rows: <table><th>a</th></table>",
        "a cell has no value: 'NaN'",
        "the box is empty",
        "a cell prints to stderr: 'Warning: x'",
    ]


def test_a_formula_with_an_unknown_command_is_refused(load):
    with pytest.raises(ValueError, match=r"does not know \\unknown in the formula"):
        load("formulas").to_mathml(r"\unknown x")


@pytest.mark.parametrize("environment", ["aligned", "gathered"])
def test_a_formula_of_two_lines_has_two_rows(load, environment):
    text = rf"\begin{{{environment}}} a &= b \\ c &= d \end{{{environment}}}"
    shown = load("formulas").to_mathml(text if environment == "aligned" else text.replace("&", ""))
    assert shown.count("<mtr>") == 2
    assert "&<" not in shown


def test_the_name_of_an_operator_has_no_star(load):
    shown = load("formulas").to_mathml(r"\operatorname*{arg\,max}_s x")
    assert re.sub("<[^>]*>", "", shown) == "argmaxsx"
    assert 'mathvariant="normal"' in shown


def test_lines_without_an_environment_are_refused(load):
    with pytest.raises(ValueError, match="does not align the lines of the formula"):
        load("formulas").to_mathml(r"a &= b \\ c &= d")


def test_a_tag_becomes_the_number_of_a_formula(load):
    body = []
    translator = SimpleNamespace(body=body, starttag=lambda *_, **__: "<div>")
    with pytest.raises(nodes.SkipNode):
        load("formulas").visit_displaymath(
            translator, nodes.math_block("", r"x \tag{3.1}", number=None)
        )
    assert body[1:-1] == ['<span class="eqno">(3.1)', "</span>"]
    assert "3.1" not in body[-1]


def test_pages_wait_for_scripts_and_images_that_they_do_not_need_at_once(load):
    page = (
        '<script src="_static/documentation_options.js?v=1"></script><script src="a.js"></script>'
        '<script async src="b.js"></script><script>inline</script><img src="c.png">'
    )
    assert load("light_pages").light_page(page) == (
        '<script src="_static/documentation_options.js?v=1"></script>'
        '<script defer src="a.js"></script><script async src="b.js"></script>'
        '<script>inline</script><img loading="lazy" src="c.png">'
    )


def test_rules_of_style_sheets_are_kept_if_a_page_can_use_them(load):
    sheet = (
        '@charset "utf-8";:root{--a:"}"}.used>.w-md\\:1,.gone a{x:y}a:not(.gone){x:y}'
        ":is(.gone,.used) b{x:y}@media print{.gone{x:y}.used{x:z}}@font-face{src:url(a)}"
        "@keyframes gone{from{x:y}}"
    )
    assert load("light_pages").without_unused(sheet, {"used", "w-md:1"}) == (
        '@charset "utf-8";:root{--a:"}"}.used>.w-md\\:1{x:y}a:not(.gone){x:y}'
        ":is(.gone,.used) b{x:y}@media print{.used{x:z}}@font-face{src:url(a)}"
        "@keyframes gone{from{x:y}}"
    )


def test_a_font_keeps_only_the_characters_in_use(load, tmp_path):
    theme = Path(importlib.import_module("pydata_sphinx_theme").__file__).parent
    source = next(theme.rglob("fa-solid-900.ttf"))
    for suffix in (".ttf", ".woff2"):
        (tmp_path / f"fa{suffix}").write_bytes(source.with_suffix(suffix).read_bytes())
    load("light_pages").keep_characters(tmp_path / "fa.ttf", {0xF0C9})
    assert [path.name for path in tmp_path.iterdir()] == ["fa.woff"]
    assert set(TTFont(tmp_path / "fa.woff").getBestCmap()) == {0xF0C9}


def test_the_description_of_a_page_is_its_question(load, document):
    document += nodes.paragraph("", 'Question. How "far"\nis it?')
    context = {"metatags": "", "meta": None}
    load("addresses").describe(None, "page", "page.html", context, document)
    assert context["meta"] == {"og:description": "How &quot;far&quot; is it?"}
    assert 'content="How &quot;far&quot; is it?"' in context["metatags"]


@pytest.mark.parametrize(("address", "kept"), [("", False), ("https://example.org/", True)])
def test_previews_have_an_address_only_if_the_book_has_one(load, address, kept):
    tags = '<meta property="og:url" content="a" />\n<meta property="og:title" content="b" />\n'
    app = SimpleNamespace(config=SimpleNamespace(html_baseurl=address))
    context = {"metatags": tags}
    load("addresses").drop_relative(app, "page", "page.html", context, None)
    assert ("og:url" in context["metatags"]) == kept
    assert "og:title" in context["metatags"]


def test_heavy_parts_become_files_and_light_ones_stay(load, tmp_path):
    long = "<table>" + "<tr><td>x</td></tr>" * 300 + "</table>"
    heavy = f"<div>{long * 8}</div>"
    listed = '<li class="toctree-l2"></li>' * 300
    box = '<div class="fedlib-scroll" tabindex="0">'
    page = (
        f"<head></head><details><summary>nav</summary>{'<li>' * 2000}</details>"
        f"<details><summary>open</summary>{listed}<li class='current'></li></details>"
        f"<details><summary>other</summary>{listed}</details>"
        f'<details class="a"><summary>Show</summary><label><input></label>{long}</details>'
        f"<details><summary>Show</summary><table></table></details>{box}{long}</div>{box}{heavy}</div>"
    )
    light = load("light_pages").store_parts(page, tmp_path / "notebooks", tmp_path)
    stored = {path: content_of(path) for path in sorted((tmp_path / "_static/parts").iterdir())}
    assert light.count(listed) == 1  # where the reader is
    assert [path for path, content in stored.items() if content == listed]
    files = [path for path, content in stored.items() if content != listed]
    assert len(files) == 2
    assert light.count(long) == 1  # in a box that is visible at once
    for file in files:
        address = f'data-part="{file.stem}" data-source="../_static/parts/{file.name}"'
        assert address in light
        assert long in stored[file]
    assert "<summary>Show</summary><label><input></label><div data-part" in light
    assert '<script defer src="../_static/parts.js"></script>\n</head>' in light
    assert load("light_pages").store_parts("<p>light</p>", tmp_path, tmp_path) == "<p>light</p>"


def test_a_search_finds_the_text_of_a_page_without_its_footnotes(load, document):
    text = nodes.paragraph("", "Nothing leaves", nodes.footnote_reference("", "1"), nodes.Text("."))
    document += [text, nodes.footnote("", nodes.label("", "1"), nodes.paragraph("", "test_x"))]
    fields, summary = load("page_search").fields_of(document, False)
    assert (fields["text"], summary) == (["Nothing leaves."], "Nothing leaves.")


def test_a_box_keeps_its_footnotes(load, document):
    note = nodes.footnote_reference("", auto=1)  # whose number is not known yet
    parts = [nodes.strong("", "In short."), nodes.Text(" No row."), note, nodes.Text("")]
    document += nodes.block_quote("", nodes.paragraph("", "", *parts))
    load("page_pattern").Boxes(document).apply()
    (box,) = document.children
    assert box["classes"] == ["fedlib-box", "fedlib-in-short"]
    assert box[1].children == [nodes.Text("No row."), note]
