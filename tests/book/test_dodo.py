"""The tasks of the build: reading the study, naming pages, keeping results."""

import importlib.util
import io
from pathlib import Path

import pytest

STUDY = """
first: {results: ["{page}.csv", "n-{n}.csv"], quick: {a: {n: 1}, b: {n: 2}}, full: {a: {n: 9}}}
second: {needs: [first], quick: {page: }}
"""


@pytest.fixture
def dodo(tmp_path, monkeypatch):
    """Return the module of the tasks, in an empty repository with a study of two notebooks."""
    spec = importlib.util.spec_from_file_location("dodo", Path(__file__).parents[2] / "dodo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/study.yml").write_text(STUDY)
    (tmp_path / "_build/results/full").mkdir(parents=True)
    (tmp_path / "_build/results/full/first.csv").write_text("measured\n9\n")
    (tmp_path / "_build/results/full/n-9.csv").write_text("measured\n9\n")
    (tmp_path / "_build/results/full/stale.csv").write_text("of a deleted notebook")
    (tmp_path / "book").mkdir()
    monkeypatch.chdir(tmp_path)
    return module


def test_pages_are_named_after_notebook_and_parameter_set(dodo):
    assert [run[:3] for run in dodo.pages("quick")] == [
        ("first", "first", {"n": 1}),
        ("first-b", "first", {"n": 2}),
        ("second", "second", {}),
    ]
    assert [run[:3] for run in dodo.pages("full")] == [
        ("first", "first", {"n": 9}),
        ("second", "second", {}),
    ]


def test_a_notebook_depends_on_the_results_it_needs(dodo):
    tasks = {task["name"]: task for task in dodo.task_notebook()}
    assert tasks["quick/second"]["task_dep"] == ["notebook:quick/first", "notebook:quick/first-b"]
    needed = set(map(Path, tasks["quick/second"]["file_dep"]))
    results = ("first", "n-1", "first-b", "n-2")
    assert {Path(f"_build/results/quick/{name}.csv") for name in results} <= needed


def test_a_notebook_depends_on_the_files_it_needs(dodo):
    Path("notebooks/study.yml").write_text("first: {needs: [book/x.csv, book/*.md], quick: {a: }}")
    for name in ("b.md", "a.md", "c.txt"):
        (Path("book") / name).write_text("")
    (task,) = (task for task in dodo.task_notebook() if task["name"] == "quick/first")
    needed = [path for path in task["file_dep"] if path.startswith("book/")]
    assert needed == ["book/x.csv", "book/a.md", "book/b.md"]


def test_stale_results_are_removed(dodo):
    dodo.drop_stale_results()
    assert {path.name for path in Path("_build/results/full").iterdir()} == {"first.csv", "n-9.csv"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("first: {quik: {}}", "first has unknown keys \\['quik'\\]"),
        ("first: {full: {a: {}}}", "first has no parameter set under `quick`"),
    ],
)
def test_an_invalid_study_is_refused(dodo, entry, message):
    Path("notebooks/study.yml").write_text(entry)
    with pytest.raises(ValueError, match=message):
        dodo.study()


def test_results_of_a_complete_run_on_real_data_are_kept(dodo):
    kept = dodo.keep_results("full", {"banana": ["real", "ab12"]})
    assert list(kept["tracked"]) == ["first.csv", "n-9.csv"]
    assert Path("book/results/first.csv").read_text() == "measured\n9\n"


@pytest.mark.parametrize(
    ("profile", "source", "message"),
    [("full", "stand-in", "used stand-ins for banana"), ("quick", "real", "")],
)
def test_other_results_are_not_kept(dodo, capsys, profile, source, message):
    assert dodo.keep_results(profile, {"banana": [source, None]}) == {"tracked": {}}
    assert not Path("book/results").exists()
    assert message in capsys.readouterr().out


def test_the_page_of_runs_has_the_times_and_the_data_in_use(dodo):
    for number, (page, *_) in enumerate(dodo.pages("quick")):
        path = dodo.time_of("quick", page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}.5\n")
    data = {"banana": ["real", "ab" * 32], "moons": ["generated", None]}
    tables = dodo.provenance("quick", data)
    assert tables["runs"] == [
        ("page", "parameters", "seconds"),
        ("[](../notebooks/first.ipynb)", "n = 1", "0.5"),
        ("[](../notebooks/first-b.ipynb)", "n = 2", "1.5"),
        ("[](../notebooks/second.ipynb)", "", "2.5"),
        ("**all pages**", "", "4.5"),
    ]
    assert tables["data"][1:] == [("banana", "real", "ab" * 8), ("moons", "generated", "")]
    assert dict(tables["versions"])["numpy"]


def test_a_notebook_without_a_time_runs_again(dodo):
    tasks = {task["name"]: task for task in dodo.task_notebook()}
    assert dodo.time_of("quick", "first-b") in tasks["quick/first-b"]["targets"]


class Outcome(dict):
    """A task of doit, as far as a reporter needs it."""

    def __init__(self, name, values=(), task_dep=()):
        self.name, self.values, self.task_dep = name, dict(values), list(task_dep)


@pytest.mark.parametrize("source", ["real", "stand-in"])
def test_a_build_ends_with_the_data_sets_that_are_stand_ins(dodo, source):
    out = io.StringIO()
    reporter = dodo.Progress(out, {})
    data = {"banana": [source, None], "moons": ["generated", None]}
    tasks = {"data": Outcome("data", data), "book:quick": Outcome("book:quick", (), ["data"])}
    reporter.initialize(tasks, ["book:quick"])
    reporter.complete_run()
    shown = out.getvalue()
    assert ("Generated stand-ins replace 1 of 2 data sets: banana." in shown) == (
        source == "stand-in"
    )
    assert ("FEDLIB_DATA=/path/to/folder make book" in shown) == (source == "stand-in")


def test_pages_are_run_and_written_as_a_build(dodo):
    """Only a build compares with kept rows, and fails for a sentence that does not hold."""
    task = next(dodo.task_notebook())
    [(_, [arguments, _])] = task["actions"]
    assert "--build" in arguments
    (_, action) = dodo.build_pages(Path("_build"), "html")
    assert action.pkwargs["env"]["FEDLIB_BUILD"] == "1"
