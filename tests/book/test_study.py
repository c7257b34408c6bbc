"""The stored notebooks, the study that runs them, the table of contents, and shared modules."""

import importlib
import json
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest
import yaml
from scipy.stats import ttest_1samp

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STUDY = yaml.safe_load((ROOT / "notebooks/study.yml").read_text(encoding="utf-8")) or {}
CONTENTS = (ROOT / "book/_toc.yml").read_text(encoding="utf-8")

EXECUTED = sorted((ROOT / "_build/stage").glob("*/notebooks/*.ipynb"))
FIGURE = re.compile(r'<figure class="fedlib-figure[^>]*id="([\w-]+)">(.*?)<figcaption>', re.DOTALL)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def in_contents(entry):
    """Yield every file in the table of contents."""
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
def test_notebook_is_in_the_study_and_the_contents(path):
    assert path.stem in STUDY
    assert f"notebooks/{path.stem}" in PAGES


@pytest.mark.parametrize("name", STUDY)
def test_study_names_notebooks_and_their_parameters(name):
    known = set(papermill.inspect_notebook(str(ROOT / f"notebooks/{name}.ipynb")))
    for profile in ("quick", "full"):
        for parameters in STUDY[name].get(profile, {}).values():
            assert set(parameters or {}) <= known


@pytest.mark.book
@pytest.mark.parametrize("profile", sorted({path.parts[-3] for path in EXECUTED}))
def test_each_figure_appears_once(profile):
    pages = defaultdict(list)
    for path in (path for path in EXECUTED if path.parts[-3] == profile):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                shown = "".join(output.get("data", {}).get("text/html", ""))
                for name, content in FIGURE.findall(shown):
                    pages[re.sub(r' id="[^"]*"', "", content)].append((path.stem, name))
    assert [names for names in pages.values() if len(names) > 1] == []


def test_all_pages_in_the_contents_exist():
    executed = {
        f"notebooks/{name}{suffix}"
        for name, entry in STUDY.items()
        for suffix in ["", *(f"-{key}" for key in entry["quick"])]
    }
    written = {str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob("book/*.md")}
    files = {page for page in PAGES if page.startswith(("book/", "notebooks/"))}
    assert files <= executed | written
    assert written <= files


def test_tracked_results_are_in_the_study():
    written = [
        re.sub(r"\{\w+\}", "*", result)
        for entry in STUDY.values()
        for result in entry.get("results", [])
    ]
    for path in ROOT.glob("book/results/*.[cj]s*"):
        assert any(path.match(pattern) for pattern in written), path.name


@pytest.fixture(scope="module")
def study():
    """Return the notebooks' shared module, imported as they import it."""
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
def test_judge_compares_in_the_printed_digits(
    study, printed, measured, low, high, truncated, status
):
    assert study.judge(printed, measured, low, high, truncated) == status


def test_repeats_marks_all_but_the_first_of_equal_rows(study):
    rows = np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    assert study.repeats(rows).tolist() == [False, False, True, True]


def test_a_file_of_the_reader_is_a_data_set(study, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("age,class,crp\n41,b,2.5\n57,a,30.1\n60,b,1\n")
    data = study.load(str(path))
    assert (data.name, data.feature_names, data.source) == ("mine", ("age", "crp"), "real")
    assert data.X.tolist() == [[41, 2.5], [57, 30.1], [60, 1]]
    assert [data.target_names[number] for number in data.y] == ["b", "a", "b"]
    path.write_text("age\n41\n57\n")
    assert study.load(str(path)).y.tolist() == [0, 0]  # one class
    path.write_text("age,crp\n41,1\nold,2\n")
    with pytest.raises(ValueError, match=r"mine\.csv: column 'age' .*'old'"):
        study.load(str(path))
    with pytest.raises(ValueError, match=r"name must be one of .*'banan'"):
        study.load("banan")


def test_published_numbers_keep_their_printed_digits(study):
    rows = study.published(source="M1", table="horizontal", dataset="banana", method="dbscan")
    printed = study.by_metric(rows)
    assert list(printed) == ["AMI", "ARI", "Purity", "BCubed precision", "BCubed recall"]
    assert all(re.fullmatch(r"\d\.\d{4}", number) for number in printed.values())


def test_a_printed_row_determines_the_measure_of_its_column(study):
    """TP 68, FN 4, TN 41, FP 1: the specificity is 41/42, the predictive value 41/45."""
    boosting_study = importlib.import_module("study.boosting.boosting_study")
    row = {"accuracy": "0.956", "sensitivity": "0.944"}
    for third, reading in (("0.976", "as specificity"), ("0.911", "as NPV")):
        found = boosting_study.explanations({**row, "specificity": third}, 72, 42)
        counts = {key: found[key] for key in ("matrices", "as specificity", "as NPV")}
        assert counts == {"matrices": 1, "as specificity": 0, "as NPV": 0, reading: 1}


def scores_of(boosting_study, **methods):
    """Return what methods score, split by split, all measures alike."""
    return pd.concat(
        [
            pd.DataFrame(dict.fromkeys(boosting_study.SCORES, values)).assign(
                method=method, n_clients=1, dataset="d", split=range(len(values))
            )
            for method, values in methods.items()
        ]
    )


@pytest.mark.parametrize(
    ("differences", "tendency"),
    [
        ([0.01, 0.02, 0.03], "shows no change"),
        ([0.019, 0.020, 0.021], "rises"),
        ([-0.019, -0.020, -0.021], "falls"),
        ([0.0, 0.0, 0.0], "shows no change"),
    ],
)
def test_the_interval_of_its_mean_decides_on_a_change(study, differences, tendency):
    """The splits scatter more than the methods differ, but both follow the split."""
    boosting_study = importlib.import_module("study.boosting.boosting_study")
    before = np.array([0.7, 0.9, 0.8])
    runs = scores_of(boosting_study, before=before, after=before + differences)
    pairs = {"there": (("before", 1), ("after", 1)), "back": (("after", 1), ("before", 1))}
    each = boosting_study.paired(runs, ["dataset"], pairs)
    found = boosting_study.changes(each, ["dataset"]).set_index(["change", "metric"])
    there, back = found.loc[("there", "AUC")], found.loc[("back", "AUC")]
    limits = ttest_1samp(each.loc[each["change"] == "there", "AUC"], 0).confidence_interval()
    np.testing.assert_allclose([there["mean_low"], there["mean_high"]], limits, atol=1e-12)
    assert boosting_study.tendency(there) == tendency
    np.testing.assert_allclose(back["mean"], -there["mean"])
    again = boosting_study.paired(
        each.assign(method=each["change"], n_clients=1),
        ["dataset"],
        {"more": (("back", 1), ("there", 1))},
    )
    np.testing.assert_allclose(again["AUC"], 2 * np.array(differences), atol=1e-12)


def test_a_verdict_uses_the_most_plausible_setting(study):
    boosting_study = importlib.import_module("study.boosting.boosting_study")
    row = ["F", "3.7", "d", "federated_xgboost", "80-20", "2 clients"]
    published = pd.DataFrame([[*row, "AUC"], [*row, "specificity"]], columns=study.KEY)
    plausible = published.assign(mean=0.9, low=0.89, high=0.91, splits=50, p_value=0.0004)
    plausible = plausible.assign(setting="depth 3, 50 trees", reach="reachable with depth 9")
    published = published.assign(published=["0.800", "0.911"])
    data = SimpleNamespace(source="real", sha256="")
    judged = boosting_study.verdict(published, plausible, data)
    assert judged["status"].tolist() == ["differs", "differs"]
    below, above = judged["note"]
    assert below.startswith("depth 3, 50 trees; below the central 95 % of 50 splits by itself; ")
    assert "not plausible as a whole: less than 0.1 % of splits" in below
    assert below.endswith("; reachable with depth 9")
    assert "; above the central 95 %" in above
    assert above.endswith("the column is taken for the negative predictive value")
    shown = boosting_study.that_differ(judged)
    assert shown["note"].tolist() == ["reachable with depth 9"] * 2
    inside = boosting_study.verdict(published.assign(published="0.910"), plausible, data)
    assert inside["status"].tolist() == ["within", "within"]
    lucky = boosting_study.verdict(published, plausible.assign(p_value=0.25), data)
    assert lucky["status"].tolist() == ["within", "within"]
    assert "below the central 95 %" in lucky["note"][0]
    assert "reachable" not in lucky["note"][0]
    data.source = "stand-in"
    assert boosting_study.verdict(published, plausible, data).empty


@pytest.mark.book
@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_outputs_name_no_address_in_memory_and_no_folder(path):
    """Such outputs differ between runs and between machines."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<.{1,200}? at 0x[0-9a-f]{6,}", text) == []
    assert str(ROOT) not in text


def test_notes_on_differing_rows_omit_their_common_parts(study):
    note = "depth 3; below the interval; its row; reachable with depth 9; the column is x"
    numbers = dict.fromkeys(["dataset", "method", "condition", "run", "metric", "published"], "x")
    rows = [numbers | {"status": status, "note": note} for status in ("within", "differs")]
    judged = pd.DataFrame(rows).assign(measured=1.0, low=0.0, high=2.0)
    boosting_study = importlib.import_module("study.boosting.boosting_study")
    shown = boosting_study.that_differ(judged)
    assert shown["note"].tolist() == ["reachable with depth 9"]
    assert shown["95 %"].tolist() == ["0.000–2.000"]
    assert "dataset" not in shown  # there is one
    two = pd.concat([judged, judged.assign(dataset="y")])
    assert boosting_study.that_differ(two)["dataset"].tolist() == ["x", "y"]
    assert boosting_study.that_differ(judged[:0]).empty


def test_predictions_after_fewer_trees_are_those_of_a_smaller_model(modules):
    boosting = modules("study.boosting.boosting_study")
    X = np.random.default_rng(0).normal(size=(80, 3))
    data = SimpleNamespace(X=X, y=(X[:, 0] > 0).astype(int))
    train, test = np.arange(60), np.arange(60, 80)
    for n, predicted in boosting.after_trees(data, train, test, (1, 3)):
        model = boosting.original(X[train], data.y[train], n, tree_method="hist")
        expected = model.predict(boosting.xgboost.DMatrix(X[test]))
        np.testing.assert_array_equal(predicted, expected)


def test_each_printed_row_is_explained(modules):
    boosting = modules("study.boosting.boosting_study")
    y = np.repeat([0, 1], 50)  # ten test rows of each class
    published = pd.DataFrame(
        [("", "accuracy", "0.900"), ("", "sensitivity", "0.900"), ("", "specificity", "0.900")],
        columns=["run", "metric", "published"],
    )
    [row] = boosting.explain(published, y).to_dict("records")
    assert row["clients"] == "original"
    assert (row["matrices"], row["as specificity"], row["as NPV"]) == (1, 1, 1)
    assert row["TN/(TN+FN)"] == "9/10"
