"""Files of results: of this run, and of the last complete one."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from IPython.display import display

from fedlib import __version__
from study.shared.data import checksum
from study.shared.pages import ROOT, result_badge

RESULTS = Path(os.environ.get("FEDLIB_RESULTS", ROOT / "_build/results/interactive"))
KEPT = ROOT / "book/results"
KEY = ["source", "table", "dataset", "method", "condition", "run", "metric"]
VERSIONS = ", ".join(
    [f"python {platform.python_version()}"]
    + [f"fedlib {__version__}"]
    + [f"{name} {version(name)}" for name in ("numpy", "scikit-learn", "numba")]
)


def read(pattern, folders=(RESULTS, KEPT)):
    """Return the results whose file names match a pattern, in one table.

    The first of the folders that has such files counts: by default this run's, or else that of the
    last complete run.
    """
    paths = next(filter(None, (sorted(folder.glob(pattern)) for folder in folders)))
    text = ("published", "sha256", "versions", "passive", "counterexample", *KEY)
    text = dict.fromkeys(text, str)
    numbers = {column: [""] for column in ("measured", "low", "high", "agreeing", "runs")}
    tables = [
        pd.read_csv(path, dtype=text, keep_default_na=False, na_values=numbers) for path in paths
    ]
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def save(frame, name, data=None):
    """Write a result file of this run; with ``data``, add the checksum and the versions."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    if data is not None:
        frame = frame.assign(sha256=checksum(data), versions=VERSIONS)
    frame.to_csv(RESULTS / name, index=False, lineterminator="\n")


def is_build():
    """Return whether the page is run for the book, and not by a reader."""
    return "FEDLIB_BUILD" in os.environ


def save_and_choose(measured, name, of="splits", for_readers=False):
    """Save a result; return it, or the kept one if that is larger, and show which in a badge.

    A reader's run returns what it has measured.

    Parameters
    ----------
    measured : DataFrame
        The result of this run, with a column ``versions``.
    name : str
        The name of the file.
    of : str, default="splits"
        The column whose largest value tells how much was measured.
    for_readers : bool, default=False
        Whether a reader's run does the same, because the page's sentences are about the kept one.
    """
    save(measured, name)
    shown, versions = measured, None
    if (is_build() or for_readers) and (KEPT / name).exists():
        kept = read(name, [KEPT])
        if kept[of].max() > measured[of].max():
            shown, versions = kept, kept["versions"].iloc[0]
    display(result_badge(name, f"{shown[of].max():,} {of}", versions))
    return shown
