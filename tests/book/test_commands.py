"""The commands of fedlib as pages run them, and what the pages show of a server."""

import asyncio
import signal
import threading
import warnings
from contextlib import chdir
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from fedlib.sites.models import load

SERVE = "fedlib serve horizontal-dbscan --cell-size 0.5 --min-samples 2 --model-out model.npz"
JOIN = "fedlib join {url} --data {name}.csv --token-file tokens/site-{i}.token"


@pytest.fixture(scope="module")
def commands(modules):
    return modules("study.running.commands")


def test_a_command_runs_in_the_background_until_it_is_killed(commands, tmp_path, capsys):
    with chdir(tmp_path):
        commands.terminal("fedlib token north")
    assert "north" in capsys.readouterr().out
    run = commands.Commands(tmp_path)
    run.start("server", f"{SERVE} --tokens tokens/clients.json --bind 127.0.0.1:0")
    assert run.wait_for("server", commands.ADDRESS)[1].startswith("http://127.0.0.1:")
    run.kill()
    assert run.wait(10) == {"server": -signal.SIGKILL}


def test_a_command_that_fails_shows_its_error_in_its_log(commands, tmp_path):
    run = commands.Commands(tmp_path)
    run.start("wrong", "fedlib toke")
    assert run.wait() == {"wrong": 2}
    assert "No such command" in run.log("wrong")
    with pytest.raises(AssertionError, match="No such command"):
        run.wait_for("wrong", "never printed", seconds=0)


def test_a_server_and_its_sites_run_in_threads(commands, tmp_path):
    for name, shift in {"north": 0, "south": 9}.items():
        points = "\n".join(f"{shift + x / 10},{x / 10}" for x in range(5))
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{points}\n")
    serve = f"{SERVE} --clients 2 --bind 127.0.0.1:0"
    commands.run_at_sites(tmp_path, serve, JOIN, ["north", "south"])
    assert np.unique(load(tmp_path / "model.npz").cell_labels_).tolist() == [0, 1]


def test_the_error_of_a_command_is_printed(commands, capsys):
    commands.terminal("fedlib toke")
    assert capsys.readouterr().out.startswith("Error: No such command")


def test_errors_and_warnings_of_a_call_are_printed(commands, capsys):
    def call():
        warnings.warn("a scale", UserWarning, stacklevel=1)
        raise ValueError("a gap")

    commands.attempt(call)
    assert capsys.readouterr().out == "ValueError: a gap\nUserWarning: a scale\n"


@pytest.mark.parametrize("with_browser", [False, True])
def test_pictures_of_a_page_have_no_times(modules, monkeypatch, with_browser):
    module = modules("study.running.status_page")
    seconds = iter(range(100))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"<p>asked <time>{next(seconds)} s ago</time></p>".encode())

        def log_message(self, *_):
            pass

    if not with_browser:
        monkeypatch.setattr(module.shutil, "which", lambda name: None)
    elif not any(map(module.shutil.which, ("chromium", "chromium-browser"))):
        pytest.skip("needs Chromium")
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        first, second = (asyncio.run(module.pictures(url, (300, 200), "A page")) for _ in range(2))
        server.shutdown()
        thread.join()
    assert first == second
    assert ['width="300"' in first[0], 'width="200"' in first[1]] == [True, True]
    assert all("A page" in picture for picture in first)
