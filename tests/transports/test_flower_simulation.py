"""Flower's simulation: every protocol of the package gives the same as in process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedlib.federated import protocols

pytestmark = pytest.mark.flower


def test_every_protocol_gives_the_same_in_simulation(tmp_path):
    program = Path(__file__).parent / "flower_simulation.py"
    for _ in range(3):  # on a busy machine Ray may not start within its own 30 seconds
        done = subprocess.run(
            [sys.executable, program, tmp_path / "current"],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        if "timed out during startup" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-4000:]
    same = json.loads(done.stdout.splitlines()[-1])
    ours = [name for name, kind in protocols().items() if kind.__module__.startswith("fedlib.")]
    assert same == {name: [True, True] for name in ours}
