"""``fedlib unit``."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import invoke

from fedlib.cli.preparation import COMMANDS

ARGUMENTS = {
    "serve": ("kmeans", "--n-clusters", "3", "--tokens", "tokens/clients.json"),
    "join": ("https://host:8443", "--data", "north.csv", "--columns", 'age,"50% of, $x"'),
}
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def analyze(*arguments):
    """Run systemd-analyze and return its output and its status."""
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)
    return done.stdout + done.stderr, done.returncode


@pytest.fixture(params=COMMANDS)
def unit(request, tmp_path):
    """Return the path of a unit."""
    path = tmp_path / f"fedlib-{request.param}.service"
    path.write_text(invoke("unit", request.param, *ARGUMENTS[request.param]))
    return path


def test_the_command_is_that_of_this_environment():
    text = invoke("unit", "join", *ARGUMENTS["join"])
    program = Path(sys.executable).with_name("fedlib")
    assert (
        f"ExecStart={program} join https://host:8443 --data north.csv --columns"
        ' "age,\\"50%% of, $$x\\""\n' in text
    )
    assert "User=fedlib\n" in text
    assert "StateDirectory=fedlib\n" in text


def test_what_is_refused():
    assert "'join', 'serve'" in invoke("unit", "predict", code=2)
    assert "--user must have" in invoke("unit", "--user", "a b", "serve", code=2)


@needs_systemd
def test_systemd_accepts_the_units(unit):
    output, status = analyze("verify", str(unit))
    assert unit.name not in output
    assert status == 0


@needs_systemd
def test_systemd_calls_the_units_safe(unit):
    """The exposure is at most 1.5 of 10, and above without the hardening."""
    output, status = analyze("security", "--offline=true", "--threshold=15", str(unit))
    assert status == 0, output
    bare = re.sub(r"\n(Protect|Private|Restrict(?!P)|System|Capab|NoNew).*", "", unit.read_text())
    unit.write_text(bare)
    assert analyze("security", "--offline=true", "--threshold=15", str(unit))[1] != 0
