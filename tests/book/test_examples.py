"""What readers are told to type runs, with tables of their own: it is found in the texts."""

import json
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import papermill
import pytest
import reading
import yaml

ROOT = Path(__file__).parents[2]
PAGES = reading.pages()
STUDY = yaml.safe_load((ROOT / "notebooks/study.yml").read_text(encoding="utf-8"))
RUNS = {(name, *given): None for text in PAGES.values() for name, given in reading.runs(text)}
PATH = re.compile(r"\S*\w\.(csv|tsv|parquet|arff)$")
# Values with which a notebook ends soon, if it has these parameters.
SMALL = {"n_orders": 3, "n_seeds": 2, "n_splits": 1, "n_trees": 3, "n_smoking": 500}
SMALL |= {"most_clusters": 3, "max_clusters": 3, "names": ["moons"], "interactive": False}
SMALL |= {"n_children": 3, "edges": [0.5, 1.5]}


def parameters(name):
    """Return the names of a notebook's parameters."""
    return papermill.inspect_notebook(str(ROOT / f"notebooks/{name}.ipynb"))


NOTEBOOKS = [p.stem for p in sorted(ROOT.glob("notebooks/*.ipynb"))]
KEPT = [
    name
    for name in NOTEBOOKS
    if re.search(r"study\.(kept|say)\(", (ROOT / f"notebooks/{name}.ipynb").read_text("utf-8"))
]
OF_TABLES = [name for name in NOTEBOOKS if "dataset" in parameters(name)]


def rows(n=150):
    """Return rows in three groups, with the group as the class."""
    rng = np.random.default_rng(0)
    group = np.arange(n) % 3
    centres = np.array([[40.0, 20.0], [70.0, 24.0], [50.0, 48.0]])
    points = (centres[group] + rng.normal(0, 4, (n, 2))).round(1)
    return pd.DataFrame(points, columns=["age", "crp"]).assign(**{"class": group})


def many():
    """Return the same with more columns, and two classes in words."""
    rng = np.random.default_rng(1)
    frame = rows()
    frame.insert(1, "bmi", rng.normal(27, 4, len(frame)).round(1))
    frame.insert(2, "sex", rng.integers(0, 2, len(frame)))
    return frame.assign(**{"class": np.where(frame["class"] == 0, "ill", "well")})


TABLES = {
    "two columns": (lambda: rows().drop(columns="class"), {}),
    "two columns and classes, semicolons": (rows, {"sep": ";", "decimal": ","}),
    "many columns and classes": (many, {}),
}
# Parameters that no row was kept for, of each page with kept rows or with sentences on them: values
# with which it ends soon.
CHANGED = {
    "density_methods": {"settings": {"moons": [0.25, 5]}, "largest": 1000},
    "f_settings": {"n_blobs": 1, "spreads": [0.5]},
    "federated_learning": {"n_seeds": 1, "n_rounds": 5},
    "fin_conclusions": {"n_seeds": 1, "client_numbers": [2]},
    "gmm": {"n_clients": 3, "n_seeds": 2, "n_blobs": 2, "n_starts": 1, "client_numbers": [2, 3]},
    "gmm_dbscan": {"n_seeds": 1, "component_numbers": [2, 3], "compared": ["moons"]},
    "gmm_samples": {"n_points": 200, "component_numbers": [1, 2, 4, 10], "random_state": 1},
    "gmm_steps": {"n_repeats": 5, "random_state": 3},
    "horizontal_dbscan": {"cell_size": 0.04, "n_orders": 5},
    "hospital_files": {"n_patients": 40, "random_state": 1},
    "kmeans": {"n_clusters": 4, "n_seeds": 2},
    "kmeans_choices": {"random_state": 1, "n_seeds": 1, "most_clusters": 3},
    "privacy_differential": {"epsilons": [1.0, 3.0], "n_runs": 2, "n_replies": 50},
    "representatives_accuracy": {"n_clients": [2]},
    "representatives_background": {"n_runs": 2, "n_kmeans_runs": 3, "n_orders": 5},
    "representatives_conclusions": {},  # it has none
    "xgboost": {"n_trees": 5, "n_splits": 1, "n_smoking": 500},
    "xgboost_clients": {"n_splits": 2},
    "xgboost_imbalance": {"n_splits": 2},
    "xgboost_volume": {"n_splits": 2},
}


@pytest.fixture
def own_table(tmp_path):
    """Return a function that writes a table, and returns its path."""

    def write(kind="two columns"):
        make, options = TABLES[kind]
        path = tmp_path / "mine.csv"
        make().to_csv(path, index=False, **options)
        return path

    return write


@pytest.fixture
def run_page(run_forked, tmp_path):
    """Return a function that runs a notebook as `make run` does, and returns the text of its page.

    It returns the report of a run that has failed.
    """

    def run(name, given):
        target = tmp_path / f"{name}.ipynb"
        arguments = [str(ROOT / f"notebooks/{name}.ipynb"), str(target)]
        arguments += ["--results-dir", str(tmp_path / "results"), "--set", *given]
        done = run_forked(arguments, tmp_path / "output")
        assert target.exists() == (done.returncode == 0), done.stderr
        return target.read_text(encoding="utf-8") if target.exists() else done.stdout

    return run


def test_the_examples_are_found():
    assert len(RUNS) >= 3
    assert {name for name, *_ in RUNS} >= {"kmeans", "horizontal_dbscan", "explore"}
    assert {"horizontal_dbscan", "kmeans", "explore", "xgboost"} <= set(OF_TABLES)


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_an_example_names_a_notebook_and_its_parameters(run, modules):
    name, *given = run
    setting = modules("study.building.run").setting
    assert {setting(text)[0] for text in given} <= set(parameters(name))


def makes():
    """Return the words of each call of make that the pages tell to type."""
    found = {}
    for text in PAGES.values():
        for line in (*reading.commands(text), *reading.mentions(text)):
            if line.startswith("make "):
                found[line] = shlex.split(line)[1:]
    return found


@pytest.mark.parametrize("line", makes())
def test_every_target_of_make_on_a_page_exists(line):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", makefile, re.M)
    variables = re.findall(r"\$\(([A-Z]+)\)", makefile)
    for word in makes()[line]:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets)


def test_every_claim_that_a_page_tells_to_verify_exists(modules):
    records = modules("study.claims.claim_records").records()
    words = [w for line in makes().values() for w in line if re.match("CLAIM=[^<]", w)]
    assert words
    assert {word.removeprefix("CLAIM=") for word in words} <= {one["id"] for one in records}


@pytest.mark.filterwarnings("ignore::fedlib.datasets.StandInWarning")  # without a network
@pytest.mark.parametrize("page", [p for p, text in PAGES.items() if reading.blocks(text, "python")])
def test_python_on_a_page_runs(page, tmp_path, monkeypatch, own_table):
    """The blocks of a page share their names; those of a site's rows are given."""
    monkeypatch.chdir(tmp_path)
    points = (rows()[["age", "crp"]] / 100).to_numpy()
    for name in ("north", "south"):
        rows().drop(columns="class").to_csv(f"{name}.csv", index=False)
    names = {"north": points[::2], "south": points[1::2], "parts": [points[::2], points[1::2]]}
    program = tmp_path / "program.py"
    program.write_text("\n".join(reading.blocks(PAGES[page], "python")), encoding="utf-8")
    runpy.run_path(str(program), names)


def in_own_words(run, path):
    """Return the settings of an example, with the path of the test's table."""
    name, *given = run
    return name, [
        f"{text.partition('=')[0]}={path}" if PATH.search(text) else text for text in given
    ]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=" ".join(run), marks=[] if run[0] == "horizontal_dbscan" else marks)
        for marks in [pytest.mark.book]  # one of them is run by `make test`, too
        for run in RUNS
    ],
)
def test_an_example_runs_with_a_table_of_the_reader(run, run_page, own_table):
    shown = run_page(*in_own_words(run, own_table()))
    assert "This page uses" in shown, shown


@pytest.mark.readers
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("name", OF_TABLES)
def test_a_page_takes_a_table_of_the_reader(name, kind, run_page, own_table):
    """A page that cannot use a table says why, in the words of its own check."""
    first = next(iter(STUDY[name]["quick"].values())) or {}
    given = first | {"dataset": str(own_table(kind))}
    given |= {key: value for key, value in SMALL.items() if key in parameters(name)}
    given |= {"cell_size": 5.0} if name == "m_programs" else {}  # it does not scale the columns
    shown = run_page(name, [f"{key}={json.dumps(value)}" for key, value in given.items()])
    if name == "horizontal_dbscan" and kind.startswith("many"):
        assert "ValueError: this page needs two columns" in shown
    elif name == "xgboost" and kind not in ("many columns and classes",):
        assert "ValueError: this page needs a column 'class' with two classes" in shown
    else:
        assert "This page uses" in shown, shown
        assert "kept from the last complete run" not in shown or name == "xgboost"  # its other sets


def test_every_page_with_kept_rows_is_run_with_other_parameters():
    longer = {"passive_clients", "representatives_speed"}  # they take minutes
    assert sorted({*CHANGED, *longer}) == KEPT


@pytest.mark.readers
@pytest.mark.parametrize("name", CHANGED)
def test_parameters_that_were_not_kept_are_measured(name, run_page):
    given = [f"{key}={json.dumps(value)}" for key, value in CHANGED[name].items()]
    shown = run_page(name, given)
    assert "This page uses" in shown, shown
