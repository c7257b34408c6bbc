"""Shared by the notebooks: data with their origin, published numbers and result files."""

import hashlib
import os
import platform
import warnings
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display
from pages import PAGE_WIDTH, badge, figure, result_badge, styled, table

from fedlib import __version__, datasets
from fedlib.files import read_table

ROOT = Path(__file__).parents[1]
__all__ = ["figure", "result_badge", "styled", "table"]  # of `pages`, next to all below

RESULTS = Path(os.environ.get("FEDLIB_RESULTS", ROOT / "_build/results/interactive"))
KEPT = ROOT / "book/results"
CLASS = "class"  # the column of classes in a reader's file
KEY = ["source", "table", "dataset", "method", "condition", "run", "metric"]
VERSIONS = ", ".join(
    [f"python {platform.python_version()}"]
    + [f"fedlib {__version__}"]
    + [f"{name} {version(name)}" for name in ("numpy", "scikit-learn", "numba")]
)

pd.options.display.precision = 4


def load(name):
    """Load a data set and show its size and origin: real, generated, a stand-in or your own.

    Parameters
    ----------
    name : str
        One of `fedlib.datasets.NAMES`, or a file that `fedlib.files.read_table` reads, such as
        ``tables/mine.csv``. A relative path begins at the root of the repository. The column
        ``class`` contains the classes; without it, all rows belong to the same class.

    Returns
    -------
    fedlib.datasets.Dataset

    Raises
    ------
    ValueError
        When the name is unknown, or the file cannot be read; the text names the file.
    """
    if name not in datasets.NAMES and Path(name).suffix:
        data = load_own(ROOT / name)
    else:
        with warnings.catch_warnings(action="ignore", category=datasets.StandInWarning):
            data = datasets.load(name)
    display(badge(data))
    return data


def load_own(path):
    """Return the table in a file as a data set; see `load`."""
    try:
        columns = pd.DataFrame(read_table(path, raw=True).X).columns
        table = read_table(path, target=CLASS if CLASS in columns else None)
    except ValueError as error:
        raise ValueError(f"dataset {str(path)!r}: {error}") from error
    classes = np.zeros(len(table.X), int) if table.y is None else table.y
    names, y = np.unique(classes, return_inverse=True)
    return datasets.Dataset(
        name=path.stem,
        X=np.asarray(table.X, dtype=float),
        y=y.astype(np.int64),
        groups=None,
        feature_names=tuple(str(column) for column in columns if column != CLASS),
        target_names=dict(enumerate(map(str, names))),
        source="real",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        description=f"The file {path.name}.",
    )


def checksum(data):
    """Return the SHA-256 of a data set's file, or of its array without a file; "" for stand-ins."""
    if data.source == "stand-in":
        return ""
    return hashlib.sha256(data.X.tobytes()).hexdigest() if data.sha256 is None else data.sha256


def published(**values):
    """Return the published numbers that have these values in their columns, as strings.

    Examples
    --------
    >>> published(source="K", table="sse")["published"].tolist()
    ['1498.2800508864195', '1362.1960103577223']
    """
    table = pd.read_csv(ROOT / "datasets/published.csv", dtype=str, keep_default_na=False)
    table = table.rename(columns={"value": "published"})
    for column, value in values.items():
        table = table[table[column] == value]
    return table.reset_index(drop=True)


def by_metric(rows):
    """Return rows of `published` as a dict of metrics to printed numbers (strings)."""
    return dict(zip(rows["metric"], rows["published"], strict=True))


def repeats(rows):
    """Return which rows equal an earlier one: a boolean array."""
    first = np.unique(rows, axis=0, return_index=True)[1]
    return ~np.isin(np.arange(len(rows)), first)


def judge(published, measured, low=np.nan, high=np.nan, truncated=False):
    """Return how a published number compares with the measured one.

    Parameters
    ----------
    published : str
        As printed; at least 0.
    measured : float
        At least 0.
    low, high : float, optional
        The spread of the measured values.
    truncated : bool, default=False
        Whether the source cut off further digits and did not round, so that a printed number
        stands for all numbers from itself up to the next one.

    Returns
    -------
    str
        ``exact`` if the measured value rounds to the printed digits; ``within`` if the printed
        value lies in low..high, widened by half a unit of its last digit; otherwise ``differs``.
    """
    decimals = len(published.partition(".")[2])
    unit = 10.0**-decimals
    shown = np.floor(measured / unit + 1e-9) * unit if truncated else measured
    if f"{shown:.{decimals}f}" == published:
        return "exact"
    below, above = (unit * (1 - 1e-9), 0.0) if truncated else (0.5 * unit, 0.5 * unit)
    if low - below <= float(published) <= high + above:
        return "within"
    return "differs"


def fidelity(rows, data, measured, spread=None, notes=None, truncated=False):
    """Return rows of `published` with the measured values and the verdict on each.

    Parameters
    ----------
    rows : DataFrame
        From `published`.
    data : Dataset
        The data of the measurement.
    measured : mapping of metric to float
    spread : mapping of metric to (low, high), optional
    notes : mapping of status to str, optional
        The note for the rows of each status.
    truncated : bool, default=False
        As in `judge`.

    Returns
    -------
    DataFrame
        With the columns ``measured``, ``low``, ``high``, ``status``, ``note``, ``sha256`` and
        ``versions`` added.
    """
    rows = rows.copy()
    rows["measured"] = rows["metric"].map(measured).astype(float)
    limits = [(spread or {}).get(metric, (np.nan, np.nan)) for metric in rows["metric"]]
    rows[["low", "high"]] = np.reshape(limits, (-1, 2))
    cells = zip(rows["published"], rows["measured"], rows["low"], rows["high"], strict=True)
    statuses = [judge(*cell, truncated) for cell in cells]
    rows["status"] = pd.Series(statuses, rows.index, dtype=object)
    rows["note"] = [(notes or {}).get(status, "") for status in statuses]
    rows["sha256"] = checksum(data)
    rows["versions"] = VERSIONS
    return rows


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


def save_and_choose(measured, name, of="splits"):
    """Save a result; return it, or the kept one if that is larger, and show which in a badge.

    Parameters
    ----------
    measured : DataFrame
        The result of this run, with a column ``versions``.
    name : str
        The name of the file.
    of : str, default="splits"
        The column whose largest value tells how much was measured.
    """
    save(measured, name)
    shown, versions = measured, None
    if (KEPT / name).exists():
        kept = read(name, [KEPT])
        if kept[of].max() > measured[of].max():
            shown, versions = kept, kept["versions"].iloc[0]
    display(result_badge(name, f"{shown[of].max():,} {of}", versions))
    return shown


def scores_table(columns):
    """Return a mapping of titles to dicts of scores as a table with four digits."""
    return pd.DataFrame(columns).map("{:.4f}".format)


def panels(n, width=4.0, height=3.6, **options):
    """Return a figure and a flat array of ``n`` axes in a row, not wider than the page.

    Parameters
    ----------
    n : int
    width, height : float
        Of one panel, in inches. Panels that are together wider than the page get smaller.
    **options
        Arguments of ``plt.subplots``.
    """
    scale = min(1.0, PAGE_WIDTH / (width * n))
    size = (scale * width * n, scale * height)
    figure, axes = plt.subplots(1, n, figsize=size, layout="constrained", **options)
    return figure, np.atleast_1d(axes)
