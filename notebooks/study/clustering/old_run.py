"""The run of `old_sklearn.py`, a program with an environment of its own, and its record."""

import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pandas as pd

PROGRAM = Path(__file__).with_name("old_sklearn.py")
EXACTLY = {"federated": float, "centralised": float}  # read with all digits


def record():
    """Return what the old version computed for the book."""
    return pd.read_csv("old_sklearn.csv", converters=EXACTLY)


def compute():
    """Return what the old version computes, or None if it cannot run on this machine."""
    uv = shutil.which("uv") or Path(sys.executable).with_name("uv")
    command = [str(uv), "run", "--quiet", "--script", str(PROGRAM)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return pd.read_csv(StringIO(done.stdout), converters=EXACTLY)
