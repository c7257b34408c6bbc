"""The tables of the page that helps to choose a method, the links between twins, the citation."""

import importlib
import re
from pathlib import Path

import pandas as pd
import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from sphinx import addnodes

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("paths")


@pytest.fixture(scope="module")
def methods():
    return importlib.import_module("study.measuring.methods")


@pytest.fixture(scope="module")
def kept(methods):
    return pd.read_csv(ROOT / "book/results/accuracy_loss.csv")


def test_every_estimator_of_a_source_is_compared(methods):
    """Those that fit a model of rows, by the list of protocols."""
    from fedlib.core.registry import protocols

    compared = {type(method.estimator) for method in methods.methods()}
    others = {"xgb-regressor", "summary", "evaluation", "regression-score", "clustering-score"}
    others |= {"suggest", "pca"}
    others |= {name for name in protocols() if name.endswith("-selection")}
    fitted = {one for name, one in protocols().items() if name not in others}
    assert fitted == compared


def test_accuracy_is_that_of_the_complete_run(methods, kept):
    found = methods.accuracy(("k-means, Lloyd", "SSE per row"), kept)
    rows = kept[(kept["method"] == "k-means, Lloyd") & (kept["dataset"] == "all")]
    assert found["pooled"] == rows["pooled"].iloc[0]
    assert [found["at random"], found["by region"]] == rows["federated"].tolist()
    assert "by region" not in methods.accuracy(("vertical", "ARI with the classes"), kept)


def test_a_method_that_was_not_measured_is_refused(methods, kept):
    with pytest.raises(ValueError, match="no row of k-means, SSE"):
        methods.accuracy(("k-means", "SSE"), kept)
    with pytest.raises(ValueError, match="has 2 rows of grid"):
        methods.accuracy(("grid", "ARI with the classes"), pd.concat([kept, kept]))


def test_only_methods_whose_server_needs_sums_have_secure_sums(methods):
    secure = {m.words: methods.available(m.estimator, "secure") for m in methods.methods()}
    assert secure["k-means as on pooled rows"]
    assert secure["density clusters from counts in a grid"]
    assert not secure["k-means in one exchange of centres"]
    assert not secure["density clusters over columns"]
    assert not secure["trees from proposals of splits"]


def test_all_methods_are_in_the_tables_with_what_they_sent(methods):
    tables = methods.tables()
    lines = tables["methods_cost"].splitlines()[2:]
    assert len(lines) == len(methods.methods())
    for line in lines:
        sent, received, exchanges = line.split(" | ")[2:5]
        assert int(sent.replace(",", "")) > 0
        assert int(received.replace(",", "")) > 0
        assert int(exchanges) >= 2
    page = (ROOT / "book/which_method.md").read_text(encoding="utf-8")
    assert set(re.findall(r"{{ (\w+) }}", page)) == set(tables)


def test_the_first_page_says_what_the_table_of_losses_says(methods):
    """A mixture loses by region, although its sums are exact: it starts at one site."""
    kept = pd.read_csv(ROOT / "book/results/accuracy_loss.csv")
    kept = kept[kept["dataset"].eq("all")].set_index(["method", "score", "partition"])
    [(name, said)] = methods.sums().items()
    for method, score in (
        ("k-means, Lloyd", "SSE per row"),
        ("mixture, em", "log-likelihood per row"),
        ("XGBoost, histogram", "AUC"),
    ):
        row = kept.loc[(method, score, "regions")]
        assert f"{row['federated']:.3f}".replace("-", "−") in said
        assert f"(pooled: {row['pooled']:.3f})".replace("-", "−") in said
    page = (ROOT / "book/intro.md").read_text(encoding="utf-8")
    assert f"{{{{ {name} }}}}" in page
    assert "Nothing is lost" not in page


LINK = re.compile(r"\]\((?:\.\./)?notebooks/(\w+)\.ipynb\)")
SLIDERS = ("plots.slider(", "interactive.figure(")


@pytest.mark.parametrize("name", ["README.md", "book/intro.md"])
def test_a_page_that_is_linked_for_its_sliders_has_one(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    sentences = re.split(r"(?<=\.) ", re.sub(r"\s+", " ", text))
    promised = [one for one in sentences if re.search(r"[Dd]rag .*slider", one)]
    assert promised
    linked = {page for sentence in promised for page in LINK.findall(sentence)}
    assert linked
    for page in linked:
        code = (ROOT / f"notebooks/{page}.ipynb").read_text(encoding="utf-8")
        assert any(slider in code for slider in SLIDERS), page


def test_the_citation_has_what_the_file_states():
    cited = importlib.import_module("headlines").cite()
    page = (ROOT / "book/cite.md").read_text(encoding="utf-8")
    assert set(re.findall(r"{{ (\w+) }}", page)) == set(cited)
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version = re.search(r"^version: (.+)$", text, re.MULTILINE)[1]
    assert f"version = {{{version}}}" in cited["citation_bibtex"]
    assert f"Version {version}." in cited["citation_text"]


def page_of(name, pages, monkeypatch):
    """Return the links that a page with a box gets, and its section."""
    twins = importlib.import_module("twins")
    document = new_document("page", get_default_settings())
    box = nodes.admonition("", classes=["fedlib-box", "fedlib-in-short"])
    document += nodes.section("", nodes.title("", "T"), nodes.paragraph("", "Q"), box)
    transform = twins.Twins(document)
    monkeypatch.setattr(twins.Twins, "env", property(lambda _: Environment(name, pages)))
    transform.apply()
    return list(document.findall(addnodes.pending_xref)), document[0]


class Environment:
    """What the transform needs of Sphinx."""

    def __init__(self, docname, found_docs):
        self.docname, self.found_docs = docname, found_docs


def test_a_page_and_its_twins_link_to_each_other(monkeypatch):
    pages = {"kmeans", "kmeans-3d", "kmeans_choices"}
    [link], section = page_of("kmeans", pages, monkeypatch)
    assert (link["reftarget"], link.astext()) == ("/kmeans-3d", "3d")
    assert section[-1].astext() == "The same page with different parameters: 3d."
    [link], section = page_of("kmeans-3d", pages, monkeypatch)
    assert link["reftarget"] == "/kmeans"
    assert not link["refexplicit"]  # Sphinx inserts the title
    links, section = page_of("kmeans_choices", pages, monkeypatch)
    assert links == []
    assert len(section) == 3
