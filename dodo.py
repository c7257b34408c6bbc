"""The tasks behind `make book`: run the notebooks that changed, stage the pages, build the HTML.

`notebooks/study.yml` says what is run. One notebook with one parameter set is one task, keyed on
the notebook, its parameters, the library, the locked packages and the data. `.venv/bin/doit list
--all` shows them all, `.venv/bin/doit notebook:quick/dbscan` runs one.
"""

import json
import shutil
import sys
import time
import warnings
from hashlib import sha256
from pathlib import Path

import yaml
from doit.action import CmdAction
from doit.exceptions import TaskFailed, UnmetDependency
from doit.reporter import ZeroReporter
from doit.tools import config_changed, result_dep

PROFILES = ("quick", "full")
BUILD = Path("_build")
RESULTS = Path("book/results")
LIBRARY = sorted(map(str, Path("fedlib").rglob("*.py")))
COMMON = [
    *LIBRARY,
    *sorted(map(str, Path("notebooks").glob("*.py"))),
    "datasets/sources.csv",
    "datasets/published.csv",
    "notebooks/matplotlibrc",
    "requirements.lock",
]


def study():
    """Return `study.yml` as it is, checked for misspelt keys."""
    notebooks = yaml.safe_load(Path("notebooks/study.yml").read_text(encoding="utf-8")) or {}
    for name, entry in notebooks.items():
        if unknown := set(entry) - {"results", "needs", *PROFILES}:
            raise ValueError(f"study.yml: {name} has unknown keys {sorted(unknown)}")
        if not entry.get("quick"):
            raise ValueError(f"study.yml: {name} has no parameter set under `quick`")
    return notebooks


def pages(profile):
    """Yield ``(page, notebook, parameters, results, needs)`` for every run of the profile."""
    for notebook, entry in study().items():
        sets = entry.get(profile, entry["quick"])
        for index, (name, parameters) in enumerate(sets.items()):
            page = notebook if index == 0 else f"{notebook}-{name}"
            parameters = parameters or {}
            fields = {**parameters, "page": page}
            results = [result.format_map(fields) for result in entry.get("results", [])]
            yield page, notebook, parameters, results, entry.get("needs", [])


def results_of(profile, notebook=None):
    """Return the result files that the profile's runs write, or those of one notebook."""
    return [
        BUILD / "results" / profile / result
        for _, name, _, results, _ in pages(profile)
        for result in results
        if notebook in (None, name)
    ]


def task_data():
    """Fetch what can be fetched and see which data sets are the real ones."""
    return {"actions": [drop_left_overs, data_in_use], "uptodate": [False]}


def drop_left_overs():
    """Remove results that no notebook promises (any more), so that no summary reads them."""
    for profile in PROFILES:
        promised = results_of(profile)
        for path in (BUILD / "results" / profile).glob("*"):
            if path not in promised:
                path.unlink()


def data_in_use():
    """Return ``{name: [source, sha256]}``; fail for a file that is not what it should be."""
    from fedlib import datasets  # here, so that listing the tasks stays quick

    warnings.simplefilter("ignore", datasets.StandInWarning)  # the notebooks say it themselves
    try:
        loaded = [datasets.load(name) for name in datasets.NAMES]
    except ValueError as error:
        return TaskFailed(str(error))
    return {data.name: [data.source, data.sha256] for data in loaded}


def task_notebook():
    """Run one notebook with one parameter set."""
    for profile in PROFILES:
        for page, notebook, parameters, results, needs in pages(profile):
            source = f"notebooks/{notebook}.ipynb"
            target = f"{BUILD}/stage/{profile}/notebooks/{page}.ipynb"
            folder = BUILD / "results" / profile
            needed = [name for name in needs if "/" not in name]
            command = [sys.executable, "notebooks/run.py", source, target]
            command += ["--parameters", json.dumps(parameters)]
            command += ["--results-dir", str(folder), "--results", *results]
            yield {
                "name": f"{profile}/{page}",
                "doc": " ".join(
                    [notebook, *(f"{key}={value}" for key, value in parameters.items())]
                ),
                "actions": [CmdAction(command, shell=False)],
                "file_dep": [
                    source,
                    *COMMON,
                    *(name for name in needs if "/" in name),
                    *(path for name in needed for path in results_of(profile, name)),
                ],
                "task_dep": [
                    f"notebook:{profile}/{other}"
                    for other, name, *_ in pages(profile)
                    if name in needed
                ],
                "targets": [target, *(folder / result for result in results)],
                "uptodate": [config_changed({"parameters": parameters}), result_dep("data")],
                "verbosity": 0,
            }


def task_results():
    """Keep the results of a complete run on real data under book/results."""
    for profile in PROFILES:
        yield {
            "name": profile,
            "actions": [(keep_results, [profile])],
            "task_dep": [f"notebook:{profile}/{page}" for page, *_ in pages(profile)],
            "getargs": {"data": ("data", None)},
            "uptodate": [False],
            "verbosity": 2,
        }


def keep_results(profile, data):
    """Copy the results where they are tracked; return checksums of what is tracked then."""
    stand_ins = [name for name, source in data.items() if source[0] == "stand-in"]
    if profile == "full" and stand_ins:
        print(f"{RESULTS} stays as it is: stand-ins took the place of {', '.join(stand_ins)}")
    elif profile == "full":
        RESULTS.mkdir(exist_ok=True)
        for path in results_of(profile):
            if not path.name.startswith("fidelity-"):  # fidelity.csv holds these rows
                shutil.copy(path, RESULTS)
    tracked = sorted(path for path in RESULTS.glob("*") if path.is_file())
    return {"tracked": {path.name: sha256(path.read_bytes()).hexdigest() for path in tracked}}


def task_book():
    """Stage the pages beside the executed notebooks and build the HTML."""
    for profile in PROFILES:
        stage = BUILD / "stage" / profile
        jupyter_book = str(Path(sys.executable).with_name("jupyter-book"))
        command = [jupyter_book, "build", ".", "--toc", "book/_toc.yml", "--quiet"]
        command += ["-W", "-n", "--keep-going"]
        yield {
            "name": profile,
            "actions": [
                (stage_pages, [stage]),
                CmdAction(command, shell=False, cwd=stage),
                (publish, [stage / "_build/html", BUILD / profile / "html"]),
            ],
            "file_dep": [
                "_config.yml",
                "requirements.lock",
                *(path for path in Path("book").rglob("*") if is_source(path)),
                *(stage / "notebooks" / f"{page}.ipynb" for page, *_ in pages(profile)),
            ],
            "uptodate": [result_dep(f"results:{profile}")],
            "targets": [BUILD / profile / "html/index.html"],
            "verbosity": 0,
        }


def is_source(path):
    """Tell whether a path under book/ is written by hand."""
    return path.is_file() and "__pycache__" not in path.parts and RESULTS not in path.parents


def stage_pages(stage):
    """Mirror the repository's pages in the stage; what an earlier build left there goes."""
    for folder in ("book", "_build"):
        shutil.rmtree(stage / folder, ignore_errors=True)
    shutil.copytree("book", stage / "book", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("_config.yml", stage)


def publish(built, html):
    """Move the finished pages to the path that `make book` prints."""
    shutil.rmtree(html, ignore_errors=True)
    html.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(built, html)


class Progress(ZeroReporter):
    """One line a notebook with its time; what went wrong comes last, on stderr."""

    desc = "one line a notebook"

    def __init__(self, outstream, options):
        super().__init__(outstream, options)
        self.notebooks = set()
        self.done = 0
        self.started = {}
        self.failed = []

    def initialize(self, tasks, selected_tasks):
        """Find the notebooks that the selected tasks stand on."""
        reached, waiting = set(), list(selected_tasks)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += tasks[name].task_dep
        self.notebooks = {name for name in reached if name.startswith("notebook:")}

    def execute_task(self, task):
        """Note when the task began."""
        self.started[task.name] = time.perf_counter()

    def add_success(self, task):
        """Tell what it took."""
        self.tell(task, f"{time.perf_counter() - self.started[task.name]:.1f} s")

    def skip_uptodate(self, task):
        """Say that it was left as it is."""
        self.tell(task, "up to date")

    def add_failure(self, task, fail):
        """Keep the failure for the end; a task that only lacks its input has not failed itself."""
        if not isinstance(fail, UnmetDependency):
            self.tell(task, "FAILED")
            self.failed.append((task, fail))

    def tell(self, task, outcome):
        """Write the line of a notebook, of the book, or of any failure."""
        if task.name in self.notebooks:
            self.done += 1
            self.write(f"[{self.done}/{len(self.notebooks)}] {task.doc} … {outcome}\n")
        elif task.name.startswith("book:") or outcome == "FAILED":
            self.write(f"{task.name} … {outcome}\n")
        self.outstream.flush()

    def complete_run(self):
        """Show what the failed tasks said."""
        for task, fail in self.failed:
            texts = [action.err for action in task.actions]
            if task.name in self.notebooks:  # its report; stdout of the others is chatter
                texts += [action.out for action in task.actions]
            said = "".join(filter(None, texts))
            sys.stderr.write(f"\n{said or fail.get_msg()}\n")


DOIT_CONFIG = {"reporter": Progress, "backend": "json", "dep_file": str(BUILD / "doit.json")}
