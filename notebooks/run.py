"""Run one notebook with one set of parameters, in a process of its own.

The executed notebook carries nothing of the run but its outputs, so running it again gives the same
bytes. A failure is told on stdout: notebook, parameters, cell, and the end of the traceback; stderr
is left to the kernel, whose last words matter if it dies.
"""

import argparse
import json
import logging
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError

ROOT = Path(__file__).absolute().parents[1]
ENVIRONMENT = {
    "JUPYTER_PREFER_ENV_PATH": "1",  # the kernel of this environment, not one in the user's home
    "MATPLOTLIBRC": str(ROOT / "notebooks"),
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm.auto misses ipywidgets; no bar is drawn
    "SOURCE_DATE_EPOCH": "0",  # SVG figures carry a date
    "TQDM_DISABLE": "1",
}
CELL_FILE = re.compile(r"/[^\s\"']*/ipykernel_\d+/\d+\.py")
STYLED_TABLE = re.compile(r"\bT_[0-9a-f]{5}(?=[_\"\s])")  # pandas draws the identifier
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TRACEBACK_LINES = 15


class NotebookError(Exception):
    """What the reader has to be told, ready to print."""


def describe(source, parameters):
    """Return the notebook and its parameters on one line."""
    return " ".join([Path(source).stem, *(f"{name}={value}" for name, value in parameters.items())])


def execute(source, parameters):
    """Execute the notebook at `source` in its own folder and return it without the run's traces."""
    refuse_unknown(source, parameters)
    with tempfile.TemporaryDirectory() as scratch:
        progress = Path(scratch) / "notebook.ipynb"  # rewritten before and after every cell
        try:
            notebook = papermill.execute_notebook(
                source,
                progress,
                parameters,
                kernel_name="python3",
                language="python",
                cwd=Path(source).parent,
                progress_bar=False,
                extra_arguments=["--log-level=CRITICAL"],  # the kernel's own talk on stderr
            )
        except papermill.PapermillExecutionError as error:
            end = ANSI.sub("", "\n".join(error.traceback)).splitlines()[-TRACEBACK_LINES:]
        except DeadKernelError:
            end = [
                "The kernel died: the process was ended from outside or crashed in compiled code."
            ]
        else:
            return strip(notebook)
        unfinished = nbformat.read(progress, as_version=4)
    raise NotebookError("\n".join([*name_cell(source, parameters, unfinished), *end]))


def refuse_unknown(source, parameters):
    """Raise for a parameter that the notebook does not have, of which papermill only warns."""
    cells = nbformat.read(source, as_version=4).cells
    if sum("parameters" in cell.metadata.get("tags", []) for cell in cells) != 1:
        raise NotebookError(f"{Path(source).stem}: exactly one cell has to be tagged `parameters`")
    known = papermill.inspect_notebook(str(source))
    for name in parameters:
        if name not in known:
            raise NotebookError(
                f"{Path(source).stem}: unknown parameter {name!r}; "
                f"its parameters cell has {', '.join(sorted(known)) or 'none'}"
            )


def name_cell(source, parameters, unfinished):
    """Return lines that name the notebook, its parameters and the cell that stopped it.

    Cells are counted from 1 in the notebook as it is kept: what papermill adds is left out.
    """
    added = {"injected-parameters", "papermill-error-cell-tag"}
    kept = [cell for cell in unfinished.cells if not added & set(cell.metadata.get("tags", []))]
    started = [cell.metadata.get("papermill", {}).get("start_time") is not None for cell in kept]
    number = sum(started)  # papermill stops at the cell that failed
    if number == 0:
        return [f"{describe(source, parameters)}: failed before its first cell"]
    title = f"{describe(source, parameters)}: cell {number} of {len(kept)} failed"
    return [title, *(f"    {line}" for line in kept[number - 1].source.splitlines())]


def strip(notebook):
    """Remove what differs from run to run: times, paths, widget state, drawn identifiers."""
    tables = {}
    for holder in (notebook, *notebook.cells):
        for key in ("papermill", "widgets", "execution"):
            holder.metadata.pop(key, None)
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        for output in cell.get("outputs", []):
            if output.output_type == "stream":  # warnings name the file they come from
                output.text = CELL_FILE.sub("cell", output.text).replace(f"{ROOT}/", "")
            elif "text/html" in output.get("data", {}):
                output.data["text/html"] = STYLED_TABLE.sub(
                    lambda found: tables.setdefault(found[0], f"T_{len(tables):05}"),
                    output.data["text/html"],
                )
                output.data["text/plain"] = ADDRESS.sub("", output.data["text/plain"])  # not shown
    return notebook


def main(arguments=None):
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the notebook")
    parser.add_argument("target", type=Path, help="where the executed notebook goes")
    parser.add_argument("--parameters", type=json.loads, default={}, help="a JSON object")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="$FEDLIB_RESULTS")
    parser.add_argument("--results", nargs="*", default=[], help="files it has to write there")
    options = parser.parse_args(arguments)
    results = [options.results_dir.absolute() / name for name in options.results]
    options.results_dir.mkdir(parents=True, exist_ok=True)
    for path in results:
        path.unlink(missing_ok=True)  # a result of an earlier run must not pass for one of this run
    os.environ |= ENVIRONMENT | {"FEDLIB_RESULTS": str(options.results_dir.absolute())}
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # its errors are told here
    try:
        notebook = execute(options.source, options.parameters)
        if missing := [path.name for path in results if not path.exists()]:
            raise NotebookError(
                f"{describe(options.source, options.parameters)}: did not write "
                f"{', '.join(missing)}, which study.yml promises"
            )
    except NotebookError as error:
        print(error)
        return 1
    options.target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, options.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
