"""What the pages on performance share: timing next to peers, the results, and growth."""

import os
import statistics
import time
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pandas as pd
import study
from matplotlib.ticker import EngFormatter, NullFormatter

PEERS = ("dbscan", "xgboost", "lightgbm", "faiss-cpu", "scikit-learn-intelex")
COLUMNS = [
    *("row", "work", "peer", "ours_seconds", "peer_seconds", "ratio", "goal", "met"),
    *("cores", "versions"),
]


def _version(package):
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"without {package}"


VERSIONS = ", ".join([study.VERSIONS, *map(_version, PEERS)])


class Measured(float):
    """The seconds that a function has measured itself, because it also prepares its work."""


def seconds(function):
    """Return the time of one call."""
    start = time.perf_counter()
    found = function()
    return found if isinstance(found, Measured) else time.perf_counter() - start


def medians(functions, n_repeats):
    """Return the median time of each function; in every repetition each runs once, in turn."""
    times = {name: [] for name in functions}
    for _ in range(n_repeats):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return {name: statistics.median(values) for name, values in times.items()}


def compare(row, work, ours, peers, goals, n_repeats=3, max_seconds=None):
    """Measure one row of the table of all results, next to each of its peers.

    Parameters
    ----------
    row : int
        The number of the row.
    work : str
        What is computed, with its size.
    ours : callable
        The computation with fedlib, without arguments.
    peers : mapping of str to callable
        The same work with other programs.
    goals : mapping of str to float
        For some peers, the ratio of our time to theirs that must not be exceeded.
    n_repeats : int
        The median of this many times counts.
    max_seconds : float, optional
        The goal for our time itself.

    Returns
    -------
    DataFrame
        One line per peer, with the columns of `COLUMNS`.
    """
    times = medians({"": ours, **peers}, n_repeats)
    rows = []
    for peer in peers:
        ratio = times[""] / times[peer]
        goal, met = "", ""
        if peer in goals:
            goal, met = f"ratio <= {goals[peer]:g}", ratio <= goals[peer]
        elif max_seconds is not None:
            goal, met = f"seconds <= {max_seconds:g}", times[""] <= max_seconds
        rows.append([row, work, peer, times[""], times[peer], ratio, goal, met])
    frame = pd.DataFrame(rows, columns=COLUMNS[:-2])
    return frame.assign(cores=os.cpu_count(), versions=VERSIONS)


def finish(frames, family):
    """Save the rows of a page and return them."""
    measured = pd.concat(frames, ignore_index=True)
    study.save(measured, f"performance-{family}.csv")
    return measured


def show(measured, name, caption):
    """Show rows of results as a table."""
    columns = ["row", "work", "peer", "ours_seconds", "peer_seconds", "ratio", "goal", "met"]
    shown = measured[columns].rename(columns={"ours_seconds": "ours, s", "peer_seconds": "peer, s"})
    formats = {"ours, s": "{:.3g}", "peer, s": "{:.3g}", "ratio": "{:.3g}"}
    return study.table(shown, formats, caption=caption, name=name)


def answers(measured):
    """Return how much faster or slower each kind of work is than its peer, one row each."""
    times = np.where(measured["ratio"] <= 1, 1 / measured["ratio"], measured["ratio"])
    direction = np.where(measured["ratio"] <= 1, "faster", "slower")
    verdict = measured["met"].astype(str).map({"": "", "True": "met", "False": "missed"})
    return pd.DataFrame(
        {
            "row": measured["row"],
            "work": measured["work"],
            "peer": measured["peer"],
            "than the peer": [
                f"{factor:.3g} times {word}" for factor, word in zip(times, direction, strict=True)
            ],
            "goal": verdict,
        }
    )


def exponent(sizes, values):
    """Return the slope of a line through points on logarithmic axes.

    Examples
    --------
    >>> print(exponent([1, 10, 100], [2, 20, 200]).round(3))
    1.0
    """
    return np.polyfit(np.log(sizes), np.log(values), 1)[0]


def draw_growth(ax, sizes, curves, xlabel, ylabel):
    """Draw curves on logarithmic axes; the legend has the slope of each."""
    for (label, values), marker in zip(curves.items(), "os^Dv", strict=False):
        slope = exponent(sizes, values)
        ax.loglog(sizes, values, marker=marker, label=f"{label}: {slope:.2f}")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_xticks(sizes, minor=False)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(title="slope", loc="best")


# The points


def uniform(n, d, rng):
    """Return points that are spread evenly over the unit cube."""
    return rng.random((n, d))


def blobs(n, d, rng):
    """Return points of fifty round clouds of different widths on a thin background."""
    centres, widths = rng.random((50, d)), rng.uniform(0.002, 0.03, 50)
    cloud = rng.integers(0, 50, n)
    X = centres[cloud] + rng.normal(size=(n, d)) * widths[cloud, None]
    X[: n // 20] = rng.random((n // 20, d))
    return X


def skewed(n, d, rng):
    """Return points that become denser towards one corner."""
    return rng.random((n, d)) ** 3


def one_cell(n, d, rng):
    """Return points that are all within a small part of any radius used here."""
    return 0.5 + 1e-6 * rng.random((n, d))


def line(n, d, rng):
    """Return points on the diagonal."""
    return np.repeat(rng.random((n, 1)), d, axis=1)


def duplicates(n, d, rng):
    """Return points of which each exists about a thousand times."""
    return rng.random((max(1, n // 1000), d))[rng.integers(0, max(1, n // 1000), n)]
