"""Fixtures for the tests of notebooks."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

ROOT = Path(__file__).parents[2]
PARAMETERS = v4.new_code_cell("n_rows = 3\nname = 'a'", metadata={"tags": ["parameters"]})
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@pytest.fixture
def run_notebook(tmp_path):
    """Return a function that runs a notebook as the book does.

    The notebook has a title, a cell of parameters and the given code cells. The function returns
    the finished process and the path of the executed notebook.
    """

    def run(*sources, parameters="{}", results=(), target="out.ipynb"):
        cells = [v4.new_markdown_cell("# A notebook"), PARAMETERS, *map(v4.new_code_cell, sources)]
        for number, cell in enumerate(cells):
            cell.id = str(number)
        notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(notebook, tmp_path / "small.ipynb")
        command = [
            sys.executable,
            ROOT / "notebooks/run.py",
            tmp_path / "small.ipynb",
            tmp_path / target,
        ]
        command += ["--parameters", parameters, "--results-dir", tmp_path / "results"]
        command += ["--results", *results]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done, tmp_path / target

    return run
