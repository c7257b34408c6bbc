"""Fixtures for the tests of notebooks."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import matplotlib as mpl
import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import sync_playwright

# pytest's importlib mode does not let test modules import their neighbours.
sys.path.append(str(Path(__file__).parent))

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "_build"
BOOK = BUILD / ("quick" if (BUILD / "quick/html/index.html").exists() else "full") / "html"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PARAMETERS = v4.new_code_cell("n_rows = 3\nname = 'a'", metadata={"tags": ["parameters"]})
PATIENCE = 600  # seconds that a run may take on a busy machine
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
def browser():
    """Return Chromium. Not for the session: other tests of a process may have event loops."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        pytest.skip("no Chromium on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class NotFoundHandler(SimpleHTTPRequestHandler):
    """A server of files that answers wrong addresses with the book's own page, as hosts do."""

    def log_message(self, *args):
        """Print nothing."""

    def send_error(self, code, *args):
        """Send the page for wrong addresses."""
        content = (BOOK / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def address():
    """Return the address of the built book."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(NotFoundHandler, directory=BOOK))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def paths():
    """Let a test import the extensions of the book."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book/_ext")
        yield


@pytest.fixture(scope="module")
def modules():
    """Return the notebooks' modules, imported as they import each other."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
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
        options=(),
    ):
        cells = [v4.new_markdown_cell(title), PARAMETERS, *map(v4.new_code_cell, sources)]
        for number, cell in enumerate(cells):
            cell.id = str(number)
        notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(notebook, tmp_path / "small.ipynb")
        arguments = [tmp_path / "small.ipynb", tmp_path / target, "--parameters", parameters]
        arguments += [*options, "--results-dir", tmp_path / "results", "--results", *results]
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
