"""The parts of a page: parameters, figures, tables, badges, boxes."""

import base64
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import CellCounts
from fedlib.core.messages import registry

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("paths")


@pytest.fixture(scope="module")
def pages():
    return importlib.import_module("study.shared.pages")


@pytest.fixture(scope="module")
def parameters():
    return importlib.import_module("study.shared.parameters")


SOURCE = """eps = 0.5  # the radius
sizes = [
    10,  # small
    20,
]  # and large
plain = None"""


def test_meanings_of_parameters_are_the_comments_behind_them(parameters):
    found = parameters.defaults(SOURCE)
    assert found["eps"] == ("0.5", "the radius")
    assert found["sizes"] == ("[\n    10,\n    20,\n]", "small and large")
    assert found["plain"] == ("None", "")


def notebook_of(*, given):
    cells = [nbformat.v4.new_code_cell(SOURCE, metadata={"tags": ["parameters"]})]
    if given:
        tags = {"tags": ["injected-parameters"]}
        cells.append(nbformat.v4.new_code_cell(f"# Parameters\n{given}\n", metadata=tags))
    return nbformat.v4.new_notebook(cells=cells)


def test_the_table_shows_defaults_and_the_values_of_the_page(parameters):
    notebook = notebook_of(given="eps = 2.0\nplain = None")
    parameters.merge(notebook)
    (cell,) = notebook.cells
    assert cell.metadata["tags"] == ["parameters", "remove-input"]
    shown = cell.outputs[0].data["text/html"]
    assert "This page uses <code>eps = 2.0</code>." in shown  # plain has its default value
    assert "<td><code>0.5</code></td><td><strong><code>2.0</code></strong></td>" in shown
    values = {}
    exec(cell.source, values)  # noqa: S102 - a downloaded page runs with the values of the page
    assert values["eps"] == 2.0


def test_a_page_without_given_values_uses_the_defaults(parameters):
    notebook = notebook_of(given="")
    parameters.merge(notebook)
    assert "This page uses the defaults." in notebook.cells[0].outputs[0].data["text/html"]


def test_all_parameters_of_a_page_in_the_pattern_have_a_meaning(parameters):
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        if any(cell.source.find("> **In short.**") >= 0 for cell in cells):
            known = parameters.defaults(parameters.find(cells, "parameters").source)
            assert [name for name, (_, meaning) in known.items() if not meaning] == [], path.stem


@pytest.fixture
def pictures(style):
    return importlib.import_module("study.shared.pictures")


def test_figure_fits_the_page_and_is_closed(pages, pictures):
    with mpl.rc_context():
        plt.subplots(1, 3, figsize=(15, 4))
        shown = pages.figure("`A` < *B*.", name="fig-a-b", alt='"quoted"')
    assert plt.get_fignums() == []
    assert 'id="fig-a-b"' in shown
    assert (
        "<figcaption><code>A</code> &lt; <em>B</em>. <small>fig-a-b</small></figcaption>" in shown
    )
    assert 'alt="&quot;quoted&quot;"' in shown
    assert int(re.search(r'width="(\d+)"', shown)[1]) <= pictures.PAGE_WIDTH * pictures.PIXELS
    assert repr(shown) == "Figure: `A` < *B*."


def widths(shown):
    return [int(width) for width in re.findall(r'<img [^>]*width="(\d+)"', shown)]


def test_a_figure_whose_labels_fill_a_phone_is_not_drawn_again_for_it(pictures):
    for label, is_again in (("short", True), ("long" * 20, False)):
        drawn, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
        axes.set_yticks([0, 1], [label, label], fontsize=7)
        assert ("<picture" in pictures.image(drawn, "bars")) == is_again
        assert not plt.fignum_exists(drawn.number)


def test_a_conversation_has_one_column_for_all_clients_on_a_phone(pages, pictures):
    parts = [[[0.0], [0.1]], [[0.2], [0.3]], [[0.4]]]
    ledger = HorizontalDBSCAN(0.5, 2).fit(parts).ledger_
    shown = pages.conversation(ledger, "A run.", name="fig-run", alt="A diagram.")
    assert plt.get_fignums() == []
    narrow, wide = re.findall(r'base64,([^" ]+)', shown)
    sizes = [pictures.size_of(base64.b64decode(data))[0] for data in (narrow, wide)]
    assert sizes[0] < 1.3 * pictures.PHONE_WIDTH * pictures.PIXELS < sizes[1]


def test_panels_are_images_of_their_own_and_a_legend_above_them_too(pictures):
    drawn, axes = plt.subplots(1, 3, figsize=(7, 2), layout="constrained")
    axes[0].plot([0, 1], label="a line")
    shown = pictures.image(drawn, "three panels")
    assert len(widths(shown)) == 3
    assert shown.count('alt="three panels"') == 1
    assert shown.startswith('<span class="fedlib-panels" style="display:flex;flex-wrap:wrap">')
    assert sum(widths(shown)) == pytest.approx(7 * pictures.PIXELS, abs=8)
    drawn, axes = plt.subplots(1, 3, figsize=(7, 2), layout="constrained")
    axes[0].plot([0, 1], label="a line")
    drawn.legend(loc="outside upper center")
    above, *panels = widths(pictures.image(drawn, "three panels"))
    assert len(panels) == 3
    assert above < 150  # only the legend


def test_a_panel_that_shares_an_axis_has_its_numbers_on_a_phone(pictures):
    for shares in (True, False):
        drawn, axes = plt.subplots(1, 3, figsize=(7, 2), layout="constrained", sharey=shares)
        axes[0].plot([0, 1])
        shown = pictures.image(drawn, "three panels")
        assert len(widths(shown)) == 3
        wider = [int(width) for width in re.findall(r'<source [^>]*width="(\d+)"', shown)]
        assert len(wider) == (2 if shares else 0)
        assert all(a + 5 < b < a + 60 for a, b in zip(widths(shown)[1:], wider, strict=False))
    drawn, axes = plt.subplots(1, 2, figsize=(7, 2), layout="constrained", sharey=True)
    for one in axes:
        one.plot([0, 1])
        one.set_axis_off()
    assert "<source" not in pictures.image(drawn, "two panels without numbers")


@pytest.fixture
def style():
    with mpl.rc_context(fname=ROOT / "notebooks/matplotlibrc"):
        yield


def test_entries_of_a_legend_below_panels_have_lines_of_their_own_on_a_phone(pictures, style):
    drawn, axes = plt.subplots(1, 2, figsize=(7, 2), layout="constrained", sharey=True)
    for label in ("one", "two words", "three"):
        axes[0].plot([0, 1], label=label)
    drawn.legend(loc="outside lower center", ncols=3)
    drawn.supylabel("left")
    shown = pictures.image(drawn, "two panels")
    row, below = shown.split("</span>")[:2]
    assert len(widths(row)) == 2
    assert len(widths(below)) == 3
    assert max(widths(below)) < 150


def test_a_text_between_panels_keeps_them_together(pictures, style):
    drawn, _ = plt.subplots(1, 2, figsize=(7, 2), layout="constrained")
    drawn.text(0.5, 0.5, "between")
    assert len(widths(pictures.image(drawn, "two panels"))) == 1


def test_a_colour_bar_stays_with_its_panel(pictures):
    drawn, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    drawn.colorbar(axes.imshow([[0, 1]]))
    assert len(pictures.layout(drawn)[0]) == 1
    plt.close(drawn)


def test_a_wide_panel_is_drawn_again_for_a_phone(pictures):
    shown = pictures.image(plt.figure(figsize=(7, 3)).subplots().figure, "wide")
    data = re.search(r'<source srcset="data:image/png;base64,([^"]*)" media="[^"]*40rem', shown)[1]
    assert pictures.size_of(base64.b64decode(data))[0] <= pictures.PHONE_WIDTH * pictures.PIXELS
    narrow = plt.figure(figsize=(3, 3)).subplots().figure
    assert "<picture" not in pictures.image(narrow, "narrow")


def test_numbers_of_a_heat_map_do_not_overlap_on_a_phone(pictures):
    drawn, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    axes.imshow(np.zeros((3, 10)), aspect="auto")
    numbers = [axes.text(j, k, "0.123", ha="center") for j in range(10) for k in range(3)]
    drawn.canvas.draw()
    assert not pictures.overlap(numbers)
    assert pictures.png_for_phone(drawn)
    assert not pictures.overlap(numbers)
    assert {text.get_rotation() for text in numbers} == {90}
    plt.close(drawn)


def test_a_figure_with_many_lines_is_as_high_on_a_phone(pictures):
    drawn, axes = plt.subplots(figsize=(7, 8), layout="constrained")
    axes.set_yticks(range(30), [f"line {i}" for i in range(30)])
    assert pictures.png_for_phone(drawn)
    assert tuple(drawn.get_size_inches()) == (pictures.PHONE_WIDTH, 8)
    assert not pictures.overlap(axes.get_yticklabels())
    plt.close(drawn)


def test_long_names_of_rows_get_several_lines_on_a_phone(pictures):
    drawn, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    axes.barh([f"number {i} of the rows, whose name is rather long" for i in range(20)], range(20))
    assert pictures.png_for_phone(drawn)
    drawn.canvas.draw()
    names = axes.get_yticklabels()
    assert {text.get_text().count("\n") for text in names} == {1}
    assert not pictures.overlap(names)
    assert drawn.get_size_inches()[1] < 12
    plt.close(drawn)


@pytest.mark.parametrize("where", ["title", "ticks", "legend"])
def test_a_figure_names_messages_in_words(pictures, where):
    assert registry.keys() >= {CellCounts.__name__, "Done"}
    for name, is_refused in (("2 CellCounts", True), ("2 cell counts", False), ("Done", False)):
        drawn, axes = plt.subplots()
        if where == "title":
            axes.set_title(name)
        elif where == "ticks":
            axes.barh([name], [1])
        else:
            axes.plot([0], label=name)
            axes.legend()
        if is_refused:
            with pytest.raises(ValueError, match="must name messages in words, got CellCounts"):
                pictures.image(drawn, "a figure")
        else:
            pictures.image(drawn, "a figure")
        assert not plt.fignum_exists(drawn.number)


def test_labels_that_would_collide_become_fewer(pictures):
    drawn, axes = plt.subplots(figsize=(2.5, 1))
    axes.plot([-0.05, 0.05], [0, 1])
    axes.locator_params(axis="x", nbins=9)
    drawn.canvas.draw()
    assert pictures.collides(axes.xaxis)
    pictures.png(drawn)
    assert not pictures.collides(axes.xaxis)
    plt.close(drawn)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "horizontal", "alt": "x"}, "name must consist of 'fig'"),
        ({"name": "fig-A", "alt": "x"}, "got 'fig-A'"),
        ({"name": "fig-a", "alt": " "}, "alt of fig-a must be a text, got ' '"),
    ],
)
def test_figure_refuses_bad_names_and_missing_texts(pages, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pages.figure("A caption.", **arguments)


def test_decimals_are_aligned_and_the_best_are_bold(pages):
    frame = pd.DataFrame({"method": ["a", "b"], "printed": ["0.25", "1"], "ARI": [0.5, 0.75]})
    styler = pages.styled(frame)
    shown = pages.table(styler, caption="C.", name="tab-a", best={"ARI": "max"})
    assert f">1{pages.POINT_SPACE}{2 * pages.FIGURE_SPACE}<" in shown
    assert re.search(r"_row1_col2 {\s*font-weight: bold;", shown)
    assert "C. Bold: the best of each column." in shown
    by_row = pages.table(
        pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 2.0]}), best="min", best_in="rows"
    )
    assert re.search(r"row0_col0, #T_\w+_row1_col1 {\s*font-weight: bold", by_row)


def test_whole_numbers_have_separators_of_thousands(pages):
    shown = pages.table(pd.DataFrame({"points": [999, 12345], "met": [True, False]}))
    assert all(text in shown for text in (">999<", ">12,345<", ">True<"))


def test_names_of_index_levels_are_in_the_row_of_the_columns(pages):
    frame = pd.DataFrame({"method": ["a", "b"], "clients": [2, 2], "ARI": [0.5, 0.75]})
    for index in (["method"], ["method", "clients"]):
        shown = pages.table(frame.set_index(index))
        header = re.search("<thead>(.*?)</thead>", shown, re.DOTALL)[1]
        assert header.count("<tr>") == 1
        names = re.findall(r"<th [^>]*>(.*?)</th>", header)
        assert names == [*index, *(name for name in frame if name not in index)]
    wide = frame.pivot(index="method", columns="clients", values="ARI")
    header = re.search("<thead>(.*?)</thead>", pages.table(wide), re.DOTALL)[1]
    assert re.findall(r"<th [^>]*>(.*?)</th>", header) == ["method", "2"]
    levels = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_product([["a"], ["b", "c"]]))
    levels.index.name = "row"
    assert pages.table(levels.style).count("<tr>") == 4  # two of columns, the names, and the row


def test_badge_of_a_result_names_its_origin(pages):
    fresh, kept = (pages.result_badge("a.csv", "5 runs", versions) for versions in (None, "n 1"))
    assert repr(fresh) == "a.csv: 5 runs · measured by this page"
    assert 'title="n 1"' in kept
    assert "kept from the last complete run" in kept


def test_only_long_tables_are_folded(pages):
    assert "<details" not in pages.table(pd.DataFrame({"a": np.arange(12)}))
    shown = pages.table(pd.DataFrame({"a": np.arange(13)}))
    assert "<summary>Show the 13 rows</summary>" in shown
    assert "<label hidden>" in shown


@pytest.mark.parametrize("option", [{"best": "most"}, {"best": "max", "best_in": "cells"}])
def test_table_refuses_unknown_options(pages, option):
    with pytest.raises(ValueError, match="got '(most|cells)'"):
        pages.table(pd.DataFrame({"a": [1.0]}), **option)


def test_table_keeps_the_caption_of_a_styler(pages):
    styler = pd.DataFrame({"a": ["0.1 | 0.1"]}).style.set_caption("Each cell: printed | measured.")
    shown = pages.table(styler, caption="Scores.", name="tab-scores")
    assert (
        "<figcaption>Scores. Each cell: printed | measured. <small>tab-scores</small></figcaption>"
        in shown
    )
    assert "<caption>" not in shown


def test_badge_makes_stand_in_data_visible(pages):
    data = SimpleNamespace(name="heart", source="stand-in", sha256=None, X=np.zeros((1234, 5)))
    assert "background:#b3202c" in pages.badge(data)
    assert repr(pages.badge(data)).startswith("heart: 1,234 rows × 5 features, STAND-IN DATA")
    data.source, data.sha256 = "real", "ab12"
    assert 'title="sha256 ab12"' in pages.badge(data)
    assert "background" not in pages.badge(data)


@pytest.fixture
def document():
    return new_document("page", get_default_settings())


def apply(document, name):
    extension = importlib.import_module("page_pattern")
    getattr(extension, name)(document).apply()


def test_a_quotation_with_a_title_becomes_a_box(document):
    text = [nodes.Text(""), nodes.strong("", "In short."), nodes.Text(" Yes.")]
    document += nodes.block_quote("", nodes.paragraph("", "", *text))
    document += nodes.block_quote("", nodes.paragraph("", "", nodes.strong("", "Any words.")))
    apply(document, "Boxes")
    box, quotation = document.children
    assert [type(child).__name__ for child in box] == ["title", "paragraph"]
    assert box["classes"] == ["fedlib-box", "fedlib-in-short"]
    assert box[1].astext() == "Yes."
    assert isinstance(quotation, nodes.block_quote)


def test_an_output_with_a_caption_becomes_a_target(pages, document):
    box = nodes.admonition("", classes=["fedlib-box", "fedlib-in-short"])
    plt.figure(figsize=(1, 1))
    drawn = pages.figure("A *figure*.", name="fig-a", alt="nothing", in_short=True)
    table = pages.table(pd.DataFrame({"a": [1]}), caption="A table.", name="tab-a")
    document += [box, *(nodes.raw("", html, format="html") for html in (drawn, table))]
    apply(document, "Captions")
    extension = sys.modules["page_pattern"]
    _, figure, listed = document.children
    assert isinstance(figure, extension.CaptionedFigure)
    assert isinstance(listed, extension.CaptionedTable)
    assert set(document.nameids) == {"fig-a", "tab-a"}
    assert extension.caption_text(figure) == "A figure."
    assert 'href="#fig-a"' in box[0]["content"]  # the figure also stands in the box


def test_a_script_for_jupyterlab_becomes_a_file_of_the_book():
    extension = importlib.import_module("page_pattern")
    uri = SimpleNamespace(current_docname="notebooks/a", get_target_uri=lambda name: f"{name}.html")
    content = '<b>x</b><script type="text/plain" data-asset="a.js">f()\n</script><script>y</script>'
    found = extension.store_files(SimpleNamespace(builder=uri), content)
    assert 'data-asset="a.js" data-src="../_static/a.js"></script><script>y' in found
    assert "f()" not in found


@pytest.mark.parametrize("page", ["intro", "sources"])
def test_headlines_have_the_counts_that_a_page_states(page):
    numbers = importlib.import_module("headlines").count()
    text = (ROOT / f"book/{page}.md").read_text(encoding="utf-8")
    names = set(re.findall(r"{{ (\w+) }}", text))
    assert names
    assert names <= {*numbers, "losses_of_sums"}  # the last one is that of `headlines.tabulate`


def test_the_readme_states_how_many_numbers_are_printed():
    counts = importlib.import_module("study.claims.counts").kept()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"the {counts['published']:,} numbers that the sources print" in readme


def test_pictures_of_the_first_page_exist_for_both_themes_and_load_nothing():
    text = (ROOT / "book/intro.md").read_text(encoding="utf-8")
    pictures = re.findall(r"```{image} (\S+)\n:alt: (.{40,})\n:class: only-(light|dark)", text)
    assert [theme for *_, theme in pictures] == ["light", "dark"] * 2
    for address, _, theme in pictures:
        assert f"-{theme}.svg" in address
        drawn = (ROOT / "book" / address).read_text(encoding="utf-8")
        assert re.findall(r'(?:href|src)="(?!#)[^"]*"', drawn) == []
