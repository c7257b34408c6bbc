"""Flower's simulation: every protocol of the package gives the same as in process, and one's own.

One's own is the algorithm that the notebook on FIN defines, cell by cell.
"""

import json
import os
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
            [sys.executable, program, tmp_path],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},  # the notebook's algorithm lies there
        )
        if "timed out during startup" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-4000:]
    same = json.loads(done.stdout.splitlines()[-1])
    ours = [name for name, kind in protocols().items() if kind.__module__.startswith("fedlib.")]
    wanted = {name: {"model": True, "ledger": True, "labels": True} for name in ours}
    assert same == wanted | {"logistic_regression": {"model": True, "ledger": True}}
