"""Fixtures: an empty cache, no network, small files, a local server, the real files."""

import hashlib
import http.server
import os
import threading
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from fedlib.datasets import StandInWarning, load, sources, tables

# Rows, columns and rows of each class of the files, as sources.csv states them.
SHAPES = {
    "banana": (4811, 2, {0: 2520, 1: 2291}),
    "s-set1": (5000, 2, None),
    "aggregation": (788, 2, {1: 45, 2: 170, 3: 102, 4: 273, 5: 34, 6: 130, 7: 34}),
    "3MC": (400, 2, {1: 120, 2: 170, 3: 110}),
    "dim_reduced_2d": (629, 2, {0: 36, 1: 551, 2: 42}),
    "dim_reduced_3d": (629, 3, {0: 36, 1: 551, 2: 42}),
    "heart": (303, 13, {0: 138, 1: 165}),
    "diabetes": (768, 8, {0: 500, 1: 268}),
    "smoking": (55692, 25, {0: 35237, 1: 20455}),
}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Use an empty cache and no FEDLIB_DATA, and forget earlier loads."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder)
    monkeypatch.setattr(tables, "_warned", set())
    monkeypatch.setitem(sources._network, "available", True)
    return folder


@pytest.fixture
def requested(cache, monkeypatch):
    """Let every download fail; return the list of the addresses."""
    requested = []

    def refuse(self, url, *args, **kwargs):
        requested.append(url)
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", refuse)
    return requested


@pytest.fixture
def folder(requested, monkeypatch, tmp_path):
    """Let FEDLIB_DATA name an empty folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(folder))
    return folder


@pytest.fixture
def expect(monkeypatch):
    """Return a function that sets the expected content, and the address, of a data set's file."""

    def expect(name, content, url=None):
        source = sources.sources()[name]
        source = source._replace(
            url=url or source.url,
            bytes=str(len(content)),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        monkeypatch.setitem(sources.sources(), name, source)
        return source

    return expect


@pytest.fixture
def load_content(expect, folder):
    """Return a function that loads a data set from a given content of its file."""

    def load_content(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        source = expect(name, content)
        (folder / source.file).write_bytes(content)
        return load(name)

    return load_content


@pytest.fixture
def serve():
    """Return a function that starts a local server of a dict of path to bytes.

    It returns the address and the list of the requested paths.
    """
    servers = []

    def serve(contents):
        requested = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                requested.append(self.path)
                content = contents.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", requested

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def load_stand_in(requested):
    """Return a function that loads the stand-in of a file."""

    def load_stand_in(name):
        with pytest.warns(StandInWarning):
            return load(name)

    return load_stand_in


@pytest.fixture
def real():
    """Return a function that loads a real file; it skips the test if the file is missing."""

    def real(name):
        file = sources.sources()[name].file
        folder = os.environ.get("FEDLIB_DATA")
        if not folder or not (Path(folder) / file).is_file():
            pytest.skip(f"needs the real data: FEDLIB_DATA is not a folder with {file}")
        return load(name)

    return real


@pytest.fixture
def class_sizes():
    """Return a function that counts the rows of each class."""
    return count_values


@pytest.fixture
def check_shape():
    """Return a function that checks the sizes and types of a data set against sources.csv."""
    return check


def count_values(y):
    return dict(zip(*(part.tolist() for part in np.unique(y, return_counts=True)), strict=True))


def check(dataset, name):
    n_rows, n_columns, classes = SHAPES[name]
    assert dataset.name == name
    assert dataset.X.shape == (n_rows, n_columns)
    assert dataset.X.dtype == np.float64
    assert dataset.X.flags.c_contiguous
    assert np.isfinite(dataset.X).all()
    assert dataset.y.shape == (n_rows,)
    assert dataset.y.dtype == np.int64
    assert len(dataset.feature_names) == n_columns
    if classes is None:  # s-set1: 15 classes of about the same size; 2 is not among their numbers
        assert sorted(set(dataset.y.tolist())) == [0, 1, *range(3, 16)]
    else:
        assert count_values(dataset.y) == classes
    assert set(dataset.target_names) == set(dataset.y.tolist())
    if name.startswith("dim_reduced"):
        sizes = {"Ahn": 125, "Horstmann": 162, "Kjome": 19, "Maia": 40, "Premkumar": 25}
        sizes |= {"SteingroverInPrep": 70, "Wood": 153, "Worthy": 35}
        assert count_values(dataset.groups) == sizes
    else:
        assert dataset.groups is None
