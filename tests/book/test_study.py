"""The notebooks as they are kept, the study that runs them and the contents that show them."""

import importlib
import re
from pathlib import Path

import matplotlib as mpl
import nbformat
import papermill
import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STUDY = yaml.safe_load((ROOT / "notebooks/study.yml").read_text(encoding="utf-8")) or {}
CONTENTS = (ROOT / "book/_toc.yml").read_text(encoding="utf-8")

EXECUTED = sorted((ROOT / "_build/stage").glob("*/notebooks/*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def in_contents(entry):
    """Yield every file that the table of contents names."""
    for value in entry.values() if isinstance(entry, dict) else entry:
        if isinstance(value, dict | list):
            yield from in_contents(value)
        elif isinstance(value, str):
            yield value


PAGES = set(in_contents(yaml.safe_load(CONTENTS)))


@each_notebook
def test_notebook_has_no_outputs_and_one_cell_of_parameters(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.source for cell in code if cell.outputs or cell.execution_count] == []
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1


@each_notebook
def test_notebook_is_run_and_shown(path):
    assert path.stem in STUDY
    assert f"notebooks/{path.stem}" in PAGES


@pytest.mark.parametrize("name", STUDY)
def test_study_names_notebooks_and_their_parameters(name):
    known = set(papermill.inspect_notebook(str(ROOT / f"notebooks/{name}.ipynb")))
    for profile in ("quick", "full"):
        for parameters in STUDY[name].get(profile, {}).values():
            assert set(parameters or {}) <= known


def test_contents_name_pages_that_exist():
    executed = {
        f"notebooks/{name}{suffix}"
        for name, entry in STUDY.items()
        for suffix in ["", *(f"-{key}" for key in entry["quick"])]
    }
    written = {str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob("book/*.md")}
    files = {page for page in PAGES if page.startswith(("book/", "notebooks/"))}
    assert files <= executed | written
    assert written <= files


def test_tracked_results_are_promised_by_the_study():
    promised = [
        re.sub(r"\{\w+\}", "*", result)
        for entry in STUDY.values()
        for result in entry.get("results", [])
    ]
    for path in ROOT.glob("book/results/*.[cj]s*"):
        assert any(path.match(pattern) for pattern in promised), path.name


@pytest.fixture(scope="module")
def study():
    """Return the module that the notebooks share, as they import it."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study")


@pytest.mark.parametrize(
    ("printed", "measured", "low", "high", "truncated", "status"),
    [
        ("0.911", 0.9114, 0.0, 0.0, False, "exact"),
        ("0.911", 0.9116, 0.0, 0.0, False, "differs"),
        ("0.911", 0.95, 0.9, 0.9106, False, "within"),
        ("0.911", 0.95, 0.9, 0.9104, False, "differs"),
        ("0.911", 41 / 45, 0.0, 0.0, True, "exact"),
        ("0.29", 0.29, 0.0, 0.0, True, "exact"),
        ("0.911", 0.912, 0.0, 0.0, True, "differs"),
        ("0.911", 0.95, 0.9119, 0.99, True, "within"),
        ("0.911", 0.95, 0.912, 0.99, True, "differs"),
        ("0.911", 0.8, 0.7, 0.9109, True, "differs"),
    ],
)
def test_a_printed_number_stands_for_all_that_print_so(
    study, printed, measured, low, high, truncated, status
):
    assert study.judge(printed, measured, low, high, truncated) == status


def test_a_printed_row_tells_which_measure_its_column_holds(study):
    """TP 68, FN 4, TN 41, FP 1: the specificity is 41/42, the predictive value 41/45."""
    boosting_study = importlib.import_module("boosting_study")
    row = {"accuracy": "0.956", "sensitivity": "0.944"}
    for third, reading in (("0.976", "as specificity"), ("0.911", "as NPV")):
        found = boosting_study.explanations({**row, "specificity": third}, 72, 42)
        counts = {key: found[key] for key in ("matrices", "as specificity", "as NPV")}
        assert counts == {"matrices": 1, "as specificity": 0, "as NPV": 0, reading: 1}


@pytest.mark.book
@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_outputs_name_no_address_in_memory_and_no_folder(path):
    """Such outputs differ from run to run and from machine to machine."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<.{1,200}? at 0x[0-9a-f]{6,}", text) == []
    assert str(ROOT) not in text
