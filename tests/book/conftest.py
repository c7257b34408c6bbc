"""Fixtures for the tests of notebooks."""

import importlib
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
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


# Run a notebook in a forked process, as the book does; print its output and end with its status.
FORKED = f"""
import sys
sys.path.insert(0, {str(ROOT / "notebooks")!r})
from study.building.run import start
process = start(sys.argv[2:], sys.argv[1])
process.join()
print(open(f"{{sys.argv[1]}}.out").read(), end="")
sys.exit(process.exitcode)
"""


@pytest.fixture(scope="module")
def modules():
    """Return the notebooks' modules, imported as they import each other."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "notebooks")
        patch.chdir(ROOT)
        yield importlib.import_module


@pytest.fixture
def run_notebook(tmp_path):
    """Return a function that runs a notebook, as a command or in a forked process.

    The notebook `small` has a title, a cell of parameters and the given code cells. The function
    returns the finished process and the path of the executed notebook.
    """

    def run(
        *sources,
        parameters="{}",
        results=(),
        target="out.ipynb",
        forked=False,
        title="# A notebook",
    ):
        cells = [v4.new_markdown_cell(title), PARAMETERS, *map(v4.new_code_cell, sources)]
        for number, cell in enumerate(cells):
            cell.id = str(number)
        notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(notebook, tmp_path / "small.ipynb")
        command = [sys.executable, "-m", "study.building.run"]
        if forked:
            command = [sys.executable, "-c", FORKED, tmp_path / "output"]
        command += [
            tmp_path / "small.ipynb",
            tmp_path / target,
            "--parameters",
            parameters,
            "--results-dir",
            tmp_path / "results",
        ]
        command += ["--results", *results]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'notebooks'}:{os.environ.get('PYTHONPATH', '')}",
        }
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        return done, tmp_path / target

    return run
