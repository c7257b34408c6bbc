"""Run one notebook with one set of parameters, in its own process.

``python -m study.building.run notebooks/kmeans.ipynb page.ipynb --set dataset=3d n_seeds=2``
writes the executed notebook to ``page.ipynb``. A name that is not in the notebook's cell of
parameters is an error, and nothing runs. (`make run` does this, and makes a web page of it.)

The executed notebook contains its outputs but no times or paths of the run, so a second run gives
the same bytes. A failure is reported on stdout: the notebook, its parameters, the cell, and the end
of the traceback. stderr is left to the kernel, because its last messages matter if it dies.

Importing the libraries takes most of the time of a short notebook. ``make book`` runs many, so it
imports them once, in a server process, and forks each runner and its kernel from there (`start`).
"""

import argparse
import ast
import contextlib
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

# An optional dependency of jsonschema that is not used here. Its import takes longer than all
# others together.
sys.modules.setdefault("rfc3987_syntax", None)

import nbformat  # noqa: E402
import papermill  # noqa: E402
from jupyter_client.provisioning import local_provisioner  # noqa: E402
from nbclient.exceptions import DeadKernelError  # noqa: E402

from study.shared.parameters import merge  # noqa: E402

ROOT = Path(__file__).absolute().parents[3]
ENVIRONMENT = {
    "JUPYTER_PREFER_ENV_PATH": "1",  # use this environment's kernel, not one in the user's home
    "MATPLOTLIBRC": str(ROOT / "notebooks"),
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # from tqdm.auto, which draws no bar here
    "SOURCE_DATE_EPOCH": "0",  # the date in SVG figures
    "TQDM_DISABLE": "1",
}
CELL_FILE = re.compile(r"/[^\s\"']*/ipykernel_\d+/\d+\.py")
STYLED_TABLE = re.compile(r"\bT_[0-9a-f]{5}(?=[_\"\s])")  # pandas chooses the identifier at random
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# A number that is rounded to zero, in what a reader sees and not in a tag.
SIGNED_ZERO = re.compile(r"(?<![\w.,-])[-−](0(?:\.0+)?)(?![\w.,]|-\d)(?![^<]*>)")
# What gives a place in a page a name: `(name)=`, the option of a formula, a label after `$$`.
TARGET = re.compile(
    r"^\([a-z0-9-]+\)=[ \t]*\n?|^:label:(?! *ex-).*\n|(?<=\$\$) *\([a-z0-9-]+\)$", re.MULTILINE
)
# The name of a figure or a table, in an output and in the text.
CAPTIONED = re.compile(r'(?<=<figure class="fedlib-)(?:[a-z -]+" id=")([a-z0-9-]+)')
REFERENCE = re.compile(r"\{numref\}`(?:[^`<]+<)?([a-z0-9-]+)")
TITLE = re.compile(r"^# .+", re.MULTILINE)
EXERCISE = re.compile(
    r"(?:^:label: *|\{solution(?:-start)?\} *|\{ref\}`)ex-[a-z0-9-]+", re.MULTILINE
)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TRACEBACK_LINES = 15


class NotebookError(Exception):
    """A failure; the text is the report to print."""


def describe(source, parameters):
    """Return the notebook's name and its parameters on one line."""
    return " ".join([Path(source).stem, *(f"{name}={value}" for name, value in parameters.items())])


def execute(source, parameters):
    """Execute the notebook at `source` in its folder and return it.

    Its cells of parameters are merged by `parameters.merge`, and `strip` removes the traces of the
    run.

    Raises
    ------
    NotebookError
        When a parameter is unknown, a cell fails or the kernel dies.
    """
    refuse_unknown(source, parameters)
    with tempfile.TemporaryDirectory() as scratch:
        progress = Path(scratch) / "notebook.ipynb"  # papermill rewrites it around every cell
        try:
            notebook = papermill.execute_notebook(
                source,
                progress,
                parameters,
                kernel_name="python3",
                language="python",
                cwd=Path(source).parent,
                progress_bar=False,
                extra_arguments=["--log-level=CRITICAL"],  # keeps the kernel's log off stderr
            )
        except papermill.PapermillExecutionError as error:
            end = ANSI.sub("", "\n".join(error.traceback)).splitlines()[-TRACEBACK_LINES:]
        except DeadKernelError:
            end = ["The kernel died: another process ended it, or compiled code crashed."]
        else:
            merge(notebook)
            return strip(notebook)
        unfinished = nbformat.read(progress, as_version=4)
    raise NotebookError("\n".join([*name_cell(source, parameters, unfinished), *end]))


def refuse_unknown(source, parameters):
    """Raise NotebookError for an unknown parameter, of which papermill only warns in its log."""
    cells = nbformat.read(source, as_version=4).cells
    if sum("parameters" in cell.metadata.get("tags", []) for cell in cells) != 1:
        raise NotebookError(f"{Path(source).stem}: exactly one cell must have the tag `parameters`")
    known = papermill.inspect_notebook(str(source))
    for name in parameters:
        if name not in known:
            raise NotebookError(
                f"{Path(source).stem}: unknown parameter {name!r}; "
                f"its parameters cell has {', '.join(sorted(known)) or 'none'}"
            )


def name_cell(source, parameters, unfinished):
    """Return lines that name the notebook, its parameters and the cell that failed.

    Cells are counted from 1 in the notebook's source, without the cells that papermill adds.
    """
    added = {"injected-parameters", "papermill-error-cell-tag"}
    kept = [cell for cell in unfinished.cells if not added & set(cell.metadata.get("tags", []))]
    started = [cell.metadata.get("papermill", {}).get("start_time") is not None for cell in kept]
    number = sum(started)  # papermill stops at the first cell that fails
    if number == 0:
        return [f"{describe(source, parameters)}: failed before its first cell"]
    title = f"{describe(source, parameters)}: cell {number} of {len(kept)} failed"
    return [title, *(f"    {line}" for line in kept[number - 1].source.splitlines())]


def strip(notebook):
    """Remove what differs from run to run: times, paths, widget state, random identifiers.

    A number that is rounded to zero loses its sign.
    """
    for holder in (notebook, *notebook.cells):
        for key in ("papermill", "widgets", "execution"):
            holder.metadata.pop(key, None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":  # warnings name a file
                output.text = CELL_FILE.sub("cell", output.text).replace(f"{ROOT}/", "")
            elif "text/html" in output.get("data", {}):
                output.data["text/html"] = name_styles(output.data["text/html"])
                output.data["text/plain"] = ADDRESS.sub("", output.data["text/plain"])  # not shown
            for kind in {"text/html", "text/markdown"} & output.get("data", {}).keys():
                output.data[kind] = SIGNED_ZERO.sub(r"\1", output.data[kind])
    return notebook


def name_styles(text):
    """Return HTML in which the identifiers of styled tables follow from the content.

    The printed book is one page: with numbers, a table would get the styles of another notebook's.
    """
    digest = sha256(STYLED_TABLE.sub("T_", text).encode()).hexdigest()[:8]
    names = {}
    return STYLED_TABLE.sub(
        lambda match: names.setdefault(match[0], f"T_{digest}_{len(names)}"), text
    )


def drop_targets(notebook, suffix):
    """Make the names of places unique, for a page that repeats another one's text.

    Names in the text are removed: links lead to the page of the first parameter set. The names of
    figures, tables and exercises, and the references to them, get a suffix, and so does the title.
    Cells with the tag `once`, which would show the same again, are left out.
    """
    notebook.cells = [c for c in notebook.cells if "once" not in c.metadata.get("tags", [])]
    named = set()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if page := output.get("data", {}).get("text/html"):
                named |= set(CAPTIONED.findall(page))
                output.data["text/html"] = CAPTIONED.sub(rf"\g<0>{suffix}", page)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if suffix.startswith("-"):  # a page of the book, such as kmeans-3d
                cell.source = TITLE.sub(rf"\g<0> ({suffix[1:]})", cell.source)
            text = EXERCISE.sub(rf"\g<0>{suffix}", TARGET.sub("", cell.source))
            cell.source = REFERENCE.sub(
                lambda match: match[0] + (suffix if match[1] in named else ""), text
            )


def setting(text):
    """Return the name and the value of a parameter such as ``n_seeds=2``.

    The value is JSON or a Python literal; everything else is text.

    Examples
    --------
    >>> [setting(text) for text in ("n=1_000", "used=[2, 10]", "dataset=3d", "show=false")]
    [('n', 1000), ('used', [2, 10]), ('dataset', '3d'), ('show', False)]
    """
    name, separator, value = text.partition("=")
    if not (name.isidentifier() and separator):
        raise argparse.ArgumentTypeError(f"a parameter must be name=value, got {text!r}")
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return name, parse(value)
    return name, value


def main(arguments=None):
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the notebook")
    parser.add_argument("target", type=Path, help="the path of the executed notebook")
    parser.add_argument("--parameters", type=json.loads, default={}, help="a JSON object")
    parser.add_argument(
        "--set",
        type=setting,
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="parameters, one by one; they add to --parameters",
    )
    parser.add_argument(
        "--results-dir",
        type=Path,
        default=Path("results"),
        help="passed on to the notebook as $FEDLIB_RESULTS",
    )
    parser.add_argument(
        "--complete",
        action="store_true",
        help="measure all rows that pages show otherwise from book/results, as $FEDLIB_COMPLETE",
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="make a page of the book, as $FEDLIB_BUILD: its rows must be kept, its sentences hold",
    )
    parser.add_argument("--results", nargs="*", default=[], help="files that it must write there")
    options = parser.parse_args(arguments)
    if not options.source.is_file():
        known = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
        parser.error(f"there is no notebook {options.source}; there are {', '.join(known)}")
    parameters = options.parameters | dict(options.set)
    results = [options.results_dir.absolute() / name for name in options.results]
    options.results_dir.mkdir(parents=True, exist_ok=True)
    for path in results:
        path.unlink(missing_ok=True)  # a file of an earlier run must not count as a result
    os.environ |= ENVIRONMENT | {"FEDLIB_RESULTS": str(options.results_dir.absolute())}
    os.environ |= {"FEDLIB_BUILD": "1"} if options.build else {}
    os.environ |= {"FEDLIB_COMPLETE": "1"} if options.complete else {}
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # its errors are printed below
    try:
        with tempfile.TemporaryDirectory() as state:  # a notebook must not remember earlier runs
            os.environ["FEDLIB_STATE"] = state
            notebook = execute(options.source, parameters)
        if missing := [path.name for path in results if not path.exists()]:
            raise NotebookError(
                f"{describe(options.source, parameters)}: did not write "
                f"{', '.join(missing)}, which study.yml promises"
            )
    except NotebookError as error:
        print(error)
        return 1
    if options.target.stem != options.source.stem:
        drop_targets(notebook, options.target.stem.removeprefix(options.source.stem))
    options.target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, options.target)
    return 0


# The modules that the server imports before it forks. pyplot is not among them: it connects to the
# kernel when it is imported.
PRELOADED = (
    "papermill",
    "ipykernel.kernelapp",
    "matplotlib.axes",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "matplotlib.font_manager",
    "pandas",
    "sklearn.cluster",
    "sklearn.metrics",
    "sklearn.mixture",
    "sklearn.model_selection",
    "sklearn.neighbors",
    "xgboost",
    "fedlib.datasets.tables",
    "fedlib.evaluation.metrics",
    "fedlib.boosting.estimator",
    "fedlib.clustering.density.horizontal",
    "fedlib.clustering.kmeans",
    "fedlib.clustering.mixtures.dbscan",
    "fedlib.clustering.mixtures.estimator",
    "fedlib.clustering.density.dbdc",
    "fedlib.clustering.density.ppdbdc",
    "fedlib.clustering.density.sdbdc",
    "fedlib.clustering.density.vertical",
)


def start(arguments, output):
    """Return a process, forked from the server, that runs `main`.

    Parameters
    ----------
    arguments : list of str
        The arguments of the command.
    output : path
        Where the output goes: stdout to ``output.out``, stderr to ``output.err``.
    """
    os.environ |= ENVIRONMENT  # the server reads it when it imports
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=_run_forked, args=(arguments, str(output)))
    process.start()
    return process


def _run_forked(arguments, output):
    """Run `main` in a forked process, with a kernel that is forked too."""
    for stream, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(f"{output}{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, stream)
    # The kernel is forked now, while this process has no event loop and no sockets.
    kernel = ForkedKernel()
    local_provisioner.launch_kernel = kernel.launch
    status = main(arguments)
    sys.stdout.flush()
    sys.exit(status)


class ForkedKernel:
    """A kernel's process. It waits until `launch` sends its command; then it is like a Popen."""

    stdin = stdout = stderr = None

    def __init__(self):
        receiver, self.sender = os.pipe()
        self.returncode = None
        self.pid = os.fork()
        if self.pid:
            os.close(receiver)
            return
        os.setsid()  # signals for the kernel must not reach the runner
        os.close(self.sender)
        with contextlib.suppress(BaseException), os.fdopen(receiver) as pipe:
            if launched := pipe.read():
                _be_kernel(**json.loads(launched))
        os._exit(1)

    def launch(self, command, env, cwd=None, **_):
        """Let the kernel run a command, as `jupyter_client.launch_kernel` would."""
        launched = {"command": command, "env": dict(env), "cwd": os.path.abspath(cwd or ".")}
        with os.fdopen(self.sender, "w") as pipe:
            json.dump(launched | {"parent": os.getpid()}, pipe)
        return self

    def poll(self):
        """Return the exit status, or None while the kernel runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        """Return the exit status when the kernel has ended."""
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        """Send a signal to the kernel."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Ask the kernel to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """End the kernel at once."""
        self.send_signal(signal.SIGKILL)


def _be_kernel(command, env, cwd, parent):
    """Turn this forked process into the kernel that a command would start."""
    from ipykernel.kernelapp import IPKernelApp

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    arguments = command[command.index("ipykernel_launcher") + 1 :]
    sys.argv = ["ipykernel_launcher", *arguments]
    IPKernelApp.launch_instance([*arguments, f"--IPKernelApp.parent_handle={parent}"])
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
