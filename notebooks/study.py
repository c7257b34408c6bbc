"""What the notebooks share: data with their provenance, the published numbers, tidy results."""

import os
import platform
import warnings
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedlib import __version__, datasets

ROOT = Path(__file__).parents[1]
RESULTS = Path(os.environ.get("FEDLIB_RESULTS", ROOT / "_build/results/interactive"))
KEPT = ROOT / "book/results"
KEY = ["source", "table", "dataset", "method", "condition", "run", "metric"]
WRAPPED = {"number": "11rem", "discloses": "11rem", "note": "20rem"}  # columns of text in a table
VERSIONS = ", ".join(
    [f"python {platform.python_version()}"]
    + [f"fedlib {__version__}"]
    + [f"{name} {version(name)}" for name in ("numpy", "scikit-learn", "numba")]
)

plt.rcParams.update(
    {
        "figure.figsize": (8, 4),
        "figure.dpi": 100,
        "savefig.bbox": "tight",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": "medium",
        "legend.frameon": False,
    }
)
pd.options.display.precision = 4


def load(name):
    """Load a data set and print where it comes from; a stand-in is said to be one."""
    with warnings.catch_warnings(action="ignore", category=datasets.StandInWarning):
        data = datasets.load(name)
    size = f"{name}: {data.X.shape[0]:,} rows, {data.X.shape[1]} features"
    if data.source == "real":
        print(f"{size}. Real data{f', sha256 {data.sha256[:12]}…' if data.sha256 else ''}.")
    elif data.source == "generated":
        print(f"{size}. Generated:\nthe source's own set was never published.")
    else:
        print(
            f"{size}. STAND-IN DATA: the file is not here;\n"
            "a generated set of the same size takes its place.\n"
            "No figure on this page is comparable with the published ones."
        )
    return data


def published(**where):
    """Return the published numbers, as strings, that have these values in their columns."""
    table = pd.read_csv(ROOT / "datasets/published.csv", dtype=str, keep_default_na=False)
    table = table.rename(columns={"value": "published"})
    for column, value in where.items():
        table = table[table[column] == value]
    return table.reset_index(drop=True)


def judge(published, measured, low=np.nan, high=np.nan, truncated=False):
    """Return how a published number, as printed, compares with what was measured.

    ``exact``: the measured value rounds to the printed digits. ``within``: the printed value lies
    in low..high, widened by half a unit of its last digit. Otherwise ``differs``. Of a number that
    is ``truncated`` the source cut off further digits: it stands for all from the printed one up
    to the next, and so it is compared. Both are numbers of at least 0.
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
    """Return rows of `published` with what was measured beside them.

    Parameters
    ----------
    rows : DataFrame
        From `published`.
    data : Dataset
        What it was measured on.
    measured : mapping of metric to float
    spread : mapping of metric to (low, high), optional
    notes : mapping of status to str, optional
    truncated : bool, default=False
        As in `judge`.
    """
    rows = rows.copy()
    rows["measured"] = rows["metric"].map(measured).astype(float)
    limits = [(spread or {}).get(metric, (np.nan, np.nan)) for metric in rows["metric"]]
    rows[["low", "high"]] = np.reshape(limits, (-1, 2))
    cells = zip(rows["published"], rows["measured"], rows["low"], rows["high"], strict=True)
    statuses = [judge(*cell, truncated) for cell in cells]
    rows["status"] = pd.Series(statuses, rows.index, dtype=object)
    rows["note"] = [(notes or {}).get(status, "") for status in statuses]
    rows["sha256"] = data.sha256 or ""
    rows["versions"] = VERSIONS
    return rows


def claim(values, published, table, metric, dataset="", method="", condition="", note=""):
    """Return a claim that P makes in words as a row like those of `fidelity`.

    Parameters
    ----------
    values : array-like
        What was measured, once a run.
    published : str
        The side of which number the claim puts it on, such as ``"above 0.9"`` or ``"below 0"``; or
        the number itself, judged as in `judge`.
    table : str
        Section and figure.
    metric : str
        The claim in a few words.

    Returns
    -------
    dict
        ``measured`` is the median, ``low`` and ``high`` the least and the greatest value.
        ``status`` is ``exact`` where all values bear the claim out, ``within`` where some do, else
        ``differs``.
    """
    values = np.asarray(values, float)
    middle, low, high = np.median(values), values.min(), values.max()
    side, _, limit = published.rpartition(" ")
    if side:
        borne_out = values > float(limit) if side == "above" else values < float(limit)
        status = "exact" if borne_out.all() else "within" if borne_out.any() else "differs"
        note = f"{note}; {borne_out.sum()} of {len(values)} runs bear it out".lstrip("; ")
    else:
        status = judge(published, middle, low, high)
    what = ["P", table, dataset, method, condition, "", metric, published]
    found = [middle, low, high, status, note]
    columns = [*KEY, "published", "measured", "low", "high", "status", "note"]
    return dict(zip(columns, what + found, strict=True)) | {"sha256": "", "versions": VERSIONS}


def read(pattern, folders=(RESULTS, KEPT)):
    """Return the results that match a pattern, of this run or else of the last complete one."""
    paths = next(filter(None, (sorted(folder.glob(pattern)) for folder in folders)))
    text = dict.fromkeys(("published", "sha256", "versions", "passive", *KEY), str)
    numbers = {column: [""] for column in ("measured", "low", "high")}
    tables = [
        pd.read_csv(path, dtype=text, keep_default_na=False, na_values=numbers) for path in paths
    ]
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def save(frame, name, data=None):
    """Write a tidy result where the build looks for it, with the data's checksum and versions."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    if data is not None:
        frame = frame.assign(sha256=data.sha256 or "", versions=VERSIONS)
    frame.to_csv(RESULTS / name, index=False, lineterminator="\n")


def table(frame, formats=None, precision=4):
    """Return a table that the book styles, its numbers formatted and any status marked.

    An index of mere row numbers is left out.
    """
    styler = frame.style.format(formats, precision=precision, na_rep="")
    styler.set_table_attributes('class="dataframe"')
    if frame.index.name is None and pd.api.types.is_integer_dtype(frame.index.dtype):
        styler.hide(axis="index")
    if "status" in frame:
        styler.map(_mark, subset=["status"])
    for column in frame.columns.intersection(list(WRAPPED)):
        wrap = {"white-space": "normal", "min-width": WRAPPED[column]}
        styler.set_properties(subset=[column], **wrap)
    return styler


def _mark(status):
    """Colour a status so that it can be read at a glance; the word itself says the same."""
    shades = {"exact": "#1a7f37", "within": "#0550ae", "misprint": "#7d4e00", "differs": "#b3202c"}
    return f"font-weight: bold; color: white; background-color: {shades.get(status, '#555555')}"


def scores_table(columns):
    """Return scores side by side: a mapping of titles to score dicts as a table of four digits."""
    return pd.DataFrame(columns).map("{:.4f}".format)


def panels(n, width=4.0, height=3.6, **options):
    """Return a figure and a flat array of ``n`` axes in a row."""
    figure, axes = plt.subplots(1, n, figsize=(width * n, height), layout="constrained", **options)
    return figure, np.atleast_1d(axes)
