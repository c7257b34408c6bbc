"""The tasks of `make book` and `make pdf`: run the notebooks that changed, build the pages.

`notebooks/study.yml` lists the runs. One notebook with one parameter set is one task. It runs again
if the notebook, its parameters, the library, the locked packages or the data have changed.
`.venv/bin/doit list --all` lists all tasks, and `.venv/bin/doit notebook:quick/dbscan` runs one.
"""

import csv
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import yaml
from doit.action import CmdAction
from doit.exceptions import TaskFailed, UnmetDependency
from doit.reporter import ZeroReporter
from doit.tools import config_changed, result_dep

PROFILES = ("quick", "full")
# Of an entry of study.yml.
KEYS = {"results", "settles", "settles_in_full", "settles_alone", "needs", *PROFILES}
BUILD = Path("_build")
RESULTS = Path("book/results")
CLAIMS = ["notebooks/study/claims/claim_records.py", "datasets/pages.csv", "datasets/claims.csv"]
CLAIMS += ["datasets/published.csv", "notebooks/study.yml"]  # of the page of all claims
SHOWN_PACKAGES = ["numpy", "scipy", "numba", "scikit-learn", "pandas", "xgboost", "flwr", "msgspec"]
SHOWN_PACKAGES += ["matplotlib", "papermill", "jupyter-book"]
LIBRARY = sorted(map(str, Path("fedlib").rglob("*.py")))
COMMON = [
    *LIBRARY,
    *sorted(map(str, Path("notebooks/study").rglob("*.[jp][sy]"))),
    "datasets/sources.csv",
    "datasets/published.csv",
    "notebooks/matplotlibrc",
    "requirements.lock",
]


def study():
    """Return the content of `study.yml`.

    Raises
    ------
    ValueError
        When an entry has an unknown key or no quick parameter set.
    """
    notebooks = yaml.safe_load(Path("notebooks/study.yml").read_text(encoding="utf-8")) or {}
    for name, entry in notebooks.items():
        if unknown := set(entry) - KEYS:
            raise ValueError(f"study.yml: {name} has unknown keys {sorted(unknown)}")
        if not entry.get("quick"):
            raise ValueError(f"study.yml: {name} has no parameter set under `quick`")
    return notebooks


def pages(profile):
    """Yield ``(page, notebook, parameters, results, needs)`` for each run of a profile."""
    for notebook, entry in study().items():
        sets = entry.get(profile, entry["quick"])
        for index, (name, parameters) in enumerate(sets.items()):
            page = notebook if index == 0 else f"{notebook}-{name}"
            parameters = parameters or {}
            fields = {**parameters, "page": page}
            results = [result.format_map(fields) for result in entry.get("results", [])]
            yield page, notebook, parameters, results, entry.get("needs", [])


def results_of(profile, notebook=None):
    """Return the result files of a profile's runs, or only those of one notebook."""
    return [
        BUILD / "results" / profile / result
        for _, name, _, results, _ in pages(profile)
        for result in results
        if notebook in (None, name)
    ]


def task_data():
    """Fetch the data and record which data sets are real."""
    return {"actions": [drop_stale_results, data_in_use], "uptodate": [False]}


def drop_stale_results():
    """Remove result files that no run writes any more, so that no summary reads them."""
    for profile in PROFILES:
        current = results_of(profile)
        for path in (BUILD / "results" / profile).glob("*"):
            if path not in current and path.suffix != ".part":  # of an interrupted run
                path.unlink()


def data_in_use():
    """Return ``{name: [source, sha256]}``, or a failure if a file has the wrong content."""
    from fedlib import datasets  # a slow import that listing the tasks does not need

    warnings.simplefilter("ignore", datasets.StandInWarning)  # every page states it
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
            arguments = [source, target, "--build", "--parameters", json.dumps(parameters)]
            arguments += ["--complete"] if profile == "full" else []
            arguments += ["--results-dir", str(folder), "--results", *results]
            yield {
                "name": f"{profile}/{page}",
                "doc": " ".join(
                    [notebook, *(f"{key}={value}" for key, value in parameters.items())]
                ),
                "actions": [(run_notebook, [arguments, time_of(profile, page)])],
                "file_dep": [
                    source,
                    *COMMON,
                    *(path for name in needs if "/" in name for path in files(name)),
                    *(path for name in needed for path in results_of(profile, name)),
                ],
                "task_dep": [
                    f"notebook:{profile}/{other}"
                    for other, name, *_ in pages(profile)
                    if name in needed
                ],
                "targets": [
                    target,
                    time_of(profile, page),
                    *(folder / result for result in results),
                ],
                "uptodate": [config_changed({"parameters": parameters}), result_dep("data")],
                "verbosity": 0,
            }


def files(name):
    """Return the files that an entry of `needs` names: one, or those that match its ``*``."""
    return sorted(map(str, Path().glob(name))) if "*" in name else [name]


def time_of(profile, page):
    """Return the file with the seconds of a run. The notebook itself contains no times."""
    return BUILD / "times" / profile / f"{page}.txt"


def run_notebook(arguments, time_file):
    """Run `study.building.run` in a process of its own, or return what it reports as a failure."""
    sys.path.insert(0, "notebooks")
    from study.building.run import start  # a slow import that listing the tasks does not need

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        process = start(arguments, output)
        process.join()
        if process.exitcode:
            texts = [Path(f"{output}.{end}").read_text(errors="replace") for end in ("err", "out")]
            return TaskFailed("".join(texts))
    time_file.parent.mkdir(parents=True, exist_ok=True)
    time_file.write_text(f"{time.perf_counter() - began:.1f}\n", encoding="utf-8")
    return True


def task_results():
    """Copy the results of a complete run on real data to book/results."""
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
    """Copy results to book/results, if complete and on real data; return all checksums there."""
    stand_ins = [name for name, source in data.items() if source[0] == "stand-in"]
    if profile == "full" and stand_ins:
        print(f"{RESULTS} is unchanged: this run used stand-ins for {', '.join(stand_ins)}")
    elif profile == "full":
        RESULTS.mkdir(exist_ok=True)
        for path in results_of(profile):
            # fidelity.csv, claims.csv and performance.csv have what is in these.
            if not path.name.startswith(("fidelity-", "performance-")):
                shutil.copy(path, RESULTS)
    tracked = sorted(path for path in RESULTS.glob("*") if path.is_file())
    return {"tracked": {path.name: sha256(path.read_bytes()).hexdigest() for path in tracked}}


def task_book():
    """Collect the pages and the executed notebooks in one folder and build the HTML."""
    for profile in PROFILES:
        stage = BUILD / "stage" / profile
        yield {
            "name": profile,
            "actions": [
                (stage_pages, [stage, profile]),
                write_claims(stage),
                *build_pages(stage, "html", "-W", "-n", "--keep-going"),
                (publish, [stage / "_build/html", BUILD / profile / "html"]),
            ],
            "getargs": {"data": ("data", None)},
            "file_dep": [
                "_config.yml",
                "CHANGELOG.md",
                "CITATION.cff",
                "requirements.lock",
                "notebooks/study/measuring/methods.py",
                *CLAIMS,
                *LIBRARY,
                *(path for path in Path("book").rglob("*") if is_source(path)),
                *(stage / "notebooks" / f"{page}.ipynb" for page, *_ in pages(profile)),
            ],
            "uptodate": [result_dep(f"results:{profile}")],
            "targets": [BUILD / profile / "html/index.html"],
            "verbosity": 0,
        }


def task_pdf():
    """Build the whole book as one page and print it with Chromium."""
    for profile in PROFILES:
        stage = BUILD / "stage" / profile
        folder = stage / "_build/singlehtml"
        target = BUILD / profile / "book.pdf"
        command = [sys.executable, "book/print_pdf.py", str(folder), str(target)]
        yield {
            "name": profile,
            "actions": [
                (stage_pages, [stage, profile]),
                write_claims(stage),
                *build_pages(stage, "singlehtml"),
                CmdAction(command, shell=False),
            ],
            "getargs": {"data": ("data", None)},
            "task_dep": [f"book:{profile}"],  # it uses the same folder
            "file_dep": ["book/print_pdf.py", BUILD / profile / "html/index.html"],
            "targets": [target],
            "verbosity": 0,
        }


def write_claims(stage):
    """Return the action that writes the page of all claims and their records to the stage."""
    command = [sys.executable, "-m", "study.claims.claim_records", str(stage / "book")]
    command += ["--notebooks", str(stage / "notebooks")]
    environment = {**os.environ, "PYTHONPATH": "notebooks"}
    return CmdAction(command, shell=False, env=environment)


def build_pages(stage, builder, *options):
    """Return the actions that run Sphinx in the stage, on all cores.

    `jupyter-book build` would use one. Sphinx counts its first process, which waits for the others.
    """
    tools, folder = Path(sys.executable).parent, stage.resolve()
    configure = [str(tools / "jupyter-book"), "config", "sphinx", str(folder)]
    configure += ["--toc", str(folder / "book/_toc.yml")]
    build = [str(tools / "sphinx-build"), "-q", "-j", f"{os.cpu_count() + 1}", *options]
    build += ["-b", builder, "-d", "_build/.doctrees", ".", f"_build/{builder}"]
    # Runs of notebooks set a date of 1970, which Sphinx would print as the year of the copyright.
    environment = {**os.environ, "PYTHONPATH": str(folder / "book/_ext"), "FEDLIB_BUILD": "1"}
    return [
        CmdAction(command, shell=False, cwd=stage, env=environment)
        for command in (configure, build)
    ]


def is_source(path):
    """Return whether a path under book/ is written by hand."""
    return path.is_file() and "__pycache__" not in path.parts and RESULTS not in path.parents


def stage_pages(stage, profile, data):
    """Copy the hand-written pages to the stage, and remove an earlier build there."""
    for folder in ("book", "_build"):
        shutil.rmtree(stage / folder, ignore_errors=True)
    shutil.copytree("book", stage / "book", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ("_config.yml", "CHANGELOG.md"):
        shutil.copy(path, stage)
    # The reference names the chapters that use fedlib, also those whose modules do.
    shutil.rmtree(stage / "notebooks/study", ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree("notebooks/study", stage / "notebooks/study", ignore=ignored)
    for name, rows in provenance(profile, data).items():
        with (stage / "book" / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)


def provenance(profile, data):
    """Return the tables of the page `book/runs.md`: each a list of rows, the first the header."""
    runs = [("page", "parameters", "seconds")]
    seconds = []
    for page, _, parameters, *_ in pages(profile):
        seconds.append(float(time_of(profile, page).read_text(encoding="utf-8")))
        values = ", ".join(f"{key} = {value}" for key, value in parameters.items())
        values = values.replace("'", "")  # which the page would show as typographic quotes
        runs.append((f"[](../notebooks/{page}.ipynb)", values, f"{seconds[-1]:.1f}"))
    runs.append(("**all pages**", "", f"{sum(seconds):.1f}"))
    versions = [("package", "version"), ("Python", platform.python_version())]
    versions += [(name, version(name)) for name in SHOWN_PACKAGES]
    sets = [("data set", "used here", "sha256")]
    sets += [(name, source, (digest or "")[:16]) for name, (source, digest) in data.items()]
    return {"runs": runs, "versions": versions, "data": sets}


def publish(built, html):
    """Move the HTML to the path that `make book` prints."""
    shutil.rmtree(html, ignore_errors=True)
    html.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(built, html)


def about_data(data):
    """Return which data sets are stand-ins, and how to get the real ones; "" if there are none.

    Parameters
    ----------
    data : dict of str to (source, sha256)
        The result of `data_in_use`.

    Examples
    --------
    >>> print(about_data({"banana": ["stand-in", None], "moons": ["generated", None]}), end="")
    <BLANKLINE>
    Generated stand-ins replace 1 of 2 data sets: banana.
    Results on them are not comparable with published ones, and their pages say so.
    To use the real data, put the files into a folder and run: FEDLIB_DATA=/path/to/folder make book
    datasets/README.md says where the files are.
    >>> about_data({"banana": ["real", "ab12"]})
    ''
    """
    replaced = [name for name, (source, _) in data.items() if source == "stand-in"]
    if not replaced:
        return ""
    return (
        f"\nGenerated stand-ins replace {len(replaced)} of {len(data)} data sets: "
        f"{', '.join(replaced)}.\n"
        "Results on them are not comparable with published ones, and their pages say so.\n"
        "To use the real data, put the files into a folder and run: "
        "FEDLIB_DATA=/path/to/folder make book\n"
        "datasets/README.md says where the files are.\n"
    )


class Progress(ZeroReporter):
    """Print one line per notebook with its time, and reports of failures at the end, on stderr."""

    desc = "one line per notebook"

    def __init__(self, outstream, options):
        super().__init__(outstream, options)
        self.notebooks = set()
        self.tasks = {}
        self.done = 0
        self.started = {}
        self.failed = []

    def initialize(self, tasks, selected_tasks):
        """Collect the notebooks on which the selected tasks depend."""
        self.tasks = tasks
        reached, stack = set(), list(selected_tasks)
        while stack:
            name = stack.pop()
            if name not in reached:
                reached.add(name)
                stack += tasks[name].task_dep
        self.notebooks = {name for name in reached if name.startswith("notebook:")}

    def execute_task(self, task):
        """Record the start of a task."""
        self.started[task.name] = time.perf_counter()

    def add_success(self, task):
        """Report the time of a task."""
        self.report(task, f"{time.perf_counter() - self.started[task.name]:.1f} s")

    def skip_uptodate(self, task):
        """Report a task that did not have to run."""
        self.report(task, "up to date")

    def add_failure(self, task, fail):
        """Keep the failure for the end, unless the task only lacks the output of another one."""
        if not isinstance(fail, UnmetDependency):
            self.report(task, "FAILED")
            self.failed.append((task, fail))

    def report(self, task, outcome):
        """Print the outcome of a notebook, of the book, or of any task that failed."""
        if task.name in self.notebooks:
            self.done += 1
            self.write(f"[{self.done}/{len(self.notebooks)}] {task.doc}: {outcome}\n")
        elif task.name.startswith(("book:", "pdf:")) or outcome == "FAILED":
            self.write(f"{task.name}: {outcome}\n")
        self.outstream.flush()

    def complete_run(self):
        """Print which data are not the real ones, and the output of the tasks that failed."""
        self.write(about_data(self.tasks["data"].values if "data" in self.tasks else {}))
        for task, fail in self.failed:
            text = "".join(action.err or "" for action in task.actions)
            # Actions in threads redirect sys.stderr and may restore it in the wrong order.
            sys.__stderr__.write(f"\n{text or fail.get_msg()}\n")


DOIT_CONFIG = {"reporter": Progress, "backend": "json", "dep_file": str(BUILD / "doit.json")}
