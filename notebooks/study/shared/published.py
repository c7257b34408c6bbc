"""Published numbers, and how they compare with measured ones."""

import numpy as np
import pandas as pd

from study.shared.data import checksum
from study.shared.pages import ROOT
from study.shared.results import VERSIONS


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
