"""Fixtures for the tests of notebooks."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import nbformat
import pytest
from nbformat import v4

ROOT = Path(__file__).parents[2]
PARAMETERS = v4.new_code_cell("n_rows = 3\nname = 'a'", metadata={"tags": ["parameters"]})
PATIENCE = 120  # seconds that a run may take on a busy machine
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


# Run notebooks in forked processes, as the book does: one line of stdin has the path of the output
# and the arguments, and one line of stdout the exit status.
FORKING = f"""
import json, sys
sys.path.insert(0, {str(ROOT / "notebooks")!r})
from study.building.run import start
for line in sys.stdin:
    output, arguments = json.loads(line)
    process = start(arguments, output)
    process.join({PATIENCE})
    process.kill()  # if it still runs
    process.join()
    print(process.exitcode, flush=True)
"""


@pytest.fixture(scope="module")
def modules():
    """Return the notebooks' modules, imported as they import each other."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "notebooks")
        patch.chdir(ROOT)
        yield importlib.import_module


@pytest.fixture(scope="session")
def run_forked():
    """Return a function that runs a notebook in a process that has imported everything."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def run(arguments, output):
            print(json.dumps([str(output), arguments]), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
            return subprocess.CompletedProcess(
                arguments, status, *(Path(f"{output}.{end}").read_text() for end in ("out", "err"))
            )

        yield run
        server.stdin.close()


@pytest.fixture
def run_notebook(tmp_path, run_forked):
    """Return a function that runs a notebook in a forked process, or as a command.

    The notebook `small` has a title, a cell of parameters and the given code cells. The function
    returns the finished process and the path of the executed notebook.
    """

    def run(
        *sources,
        parameters="{}",
        results=(),
        target="out.ipynb",
        forked=True,
        title="# A notebook",
    ):
        cells = [v4.new_markdown_cell(title), PARAMETERS, *map(v4.new_code_cell, sources)]
        for number, cell in enumerate(cells):
            cell.id = str(number)
        notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(notebook, tmp_path / "small.ipynb")
        arguments = [tmp_path / "small.ipynb", tmp_path / target, "--parameters", parameters]
        arguments += ["--results-dir", tmp_path / "results", "--results", *results]
        arguments = list(map(str, arguments))
        if forked:
            return run_forked(arguments, tmp_path / "output"), tmp_path / target
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'notebooks'}:{os.environ.get('PYTHONPATH', '')}",
        }
        done = subprocess.run(
            [sys.executable, "-m", "study.building.run", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment,
        )
        return done, tmp_path / target

    return run
