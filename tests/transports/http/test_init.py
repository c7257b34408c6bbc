"""The package's names are imported when they are first used."""

import subprocess
import sys

import pytest

from fedlib.transports import http


def test_every_name_can_be_imported():
    assert set(http.__all__) <= set(dir(http))
    for name in http.__all__:
        assert getattr(http, name).__name__ == name


@pytest.mark.parametrize(
    ("names", "unused"),
    [
        ("join, JoinError, Unreachable, kept_state", {"starlette", "uvicorn", "httptools"}),
        ("new_token, digest", {"starlette", "uvicorn", "httptools", "httpx"}),
    ],
)
def test_a_site_does_not_import_what_only_the_server_needs(names, unused):
    program = f"import sys; from fedlib.transports.http import {names}; print(*sys.modules)"
    run = [sys.executable, "-c", program]
    output = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert unused & set(output.split()) == set()
