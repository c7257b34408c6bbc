"""What the pages on performance share: timing next to peers, the results, and growth."""

import os
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from math import gamma, pi

import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.ticker import EngFormatter, NullFormatter

import study
from study.shared.results import is_build

OF_READER = "The words are those of the book, about its sizes; the numbers are those of this run."
PAUSE = 0.4  # seconds; OpenMP's threads wait in a loop for 0.2 by default
PEERS = ("dbscan", "xgboost", "lightgbm", "faiss-cpu", "scikit-learn-intelex")
COLUMNS = [
    *("row", "work", "peer", "ours_seconds", "peer_seconds", "ratio"),
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
    """Return the median time of each function; in every repetition each runs once, in turn.

    Before each, a pause lets the threads of the one before fall asleep: those of OpenMP first wait
    in a loop, which takes a core from whatever runs next.
    """
    times = {name: [] for name in functions}
    for _ in range(n_repeats):
        for name, function in functions.items():
            time.sleep(PAUSE)
            times[name].append(seconds(function))
    return {name: statistics.median(values) for name, values in times.items()}


def compare(row, work, ours, peers, n_repeats=3, *, warm=True):
    """Measure one kind of work of the table of all results, next to each of its peers.

    Parameters
    ----------
    row : int
        The kind of work, an identifier by which the results are ordered.
    work : str
        What is computed, with its size.
    ours : callable
        The computation with fedlib, without arguments.
    peers : mapping of str to callable
        The same work with other programs.
    n_repeats : int
        The median of this many times counts.
    warm : bool
        Whether our computation runs once before, which compiles its kernels.

    Returns
    -------
    DataFrame
        One line per peer, with the columns of `COLUMNS`.
    """
    if warm:
        ours()
    times = medians({"": ours, **peers}, n_repeats)
    rows = []
    for peer in peers:
        rows.append([row, work, peer, times[""], times[peer], times[""] / times[peer]])
    frame = pd.DataFrame(rows, columns=COLUMNS[:-2])
    return stamped(frame)


def stamped(frame):
    """Return results with the number of cores and the versions."""
    return frame.assign(cores=os.cpu_count(), versions=VERSIONS)


def finish(frames, family):
    """Save the rows of a page, and return those that it shows.

    A build shows the rows of the last complete run instead if they are of other sizes.
    """
    measured = pd.concat(frames, ignore_index=True)
    study.save(measured, f"performance-{family}.csv")
    if not is_build() or not (study.KEPT / "performance.csv").exists():
        return measured
    kept = study.read("performance.csv", [study.KEPT])
    kept = kept[kept["row"].isin(measured["row"])].reset_index(drop=True)
    is_kept = set(kept["work"]) != set(measured["work"])
    shown = kept if is_kept else measured
    badge(shown, is_kept)
    return shown


def badge(shown, is_kept):
    """Show where the results come from."""
    versions = shown["versions"].iloc[0] if is_kept else None
    display(study.result_badge("performance.csv", f"{shown['cores'].iloc[0]} cores", versions))


def show(measured, name, caption):
    """Show rows of results as a table."""
    columns = ["work", "peer", "ours_seconds", "peer_seconds", "ratio"]
    shown = measured[columns].rename(columns={"ours_seconds": "ours, s", "peer_seconds": "peer, s"})
    formats = dict.fromkeys(("ours, s", "peer, s", "ratio"), _digits)
    return study.table(shown, formats, caption=caption, name=name)


def _digits(value):
    """Return a number with three digits, but without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


# What the results mean. The key has the kind of work (`row`) and the beginnings of the work and of
# the peer; ``{ratio}`` and ``{seconds}``, which is our time, are filled in.
SENTENCES = {
    (1, "", ""): "A client counts its points in the time of {ratio} sums over the data, if the "
    "cells are few.",
    (2, "", "X.sum()"): "With about as many cells as points, it needs the time of {ratio} sums.",
    (2, "", "np.unique"): "NumPy's `unique` takes far longer: our time is {ratio} of it.",
    (3, "", ""): "Ten clients cluster ten times as many points as scikit-learn, in {ratio} of its "
    "time.",
    (
        4,
        "",
        "",
    ): "With two and three features, `fedlib.clustering.density.engine.dbscan` takes {ratio} of the"
    " time of the package `dbscan`.",
    (5, "", "dbscan"): "With four to ten features, it takes {ratio} of that time.",
    (5, "", "scikit-learn"): "Next to scikit-learn with a ball tree, it takes {ratio} of the time.",
    (6, "vertical DBSCAN, 5,000", ""): "Vertical DBSCAN of 5,000 rows takes {ratio} of the time of "
    "matrices with all pairs.",
    (6, "vertical DBSCAN, 100,000", ""): "For 100,000 rows, which are too many for such matrices, "
    "it takes {seconds} s.",
    (7, "", "scikit-learn"): "The rounds of federated Lloyd take {ratio} of the time of "
    "scikit-learn on pooled rows, with and without Intel's extension.",
    (7, "", "faiss"): "Next to faiss, which computes with 32 bits, they take {ratio} of the time.",
    (8, "", ""): "Federated EM takes {ratio} of the time of scikit-learn on pooled rows.",
    (9, "boosting, histogram", "xgboost, hist"): "Boosting from histograms takes {ratio} times as "
    "long as XGBoost's `hist` on pooled rows.",
    (9, "boosting, histogram", "lightgbm"): "It takes {ratio} times as long as LightGBM there.",
    (9, "boosting, top_splits", ""): "Splits by vote take {ratio} of the time of XGBoost's exact "
    "search on pooled rows.",
    (10, "", ""): "Two hundred exchanges with ten clients in one process take {seconds} s, "
    "{ratio} times as long as calls of an empty function by a pool of threads.",
    (11, "", "bytes"): "To encode and decode a large message takes as long as to copy it {ratio} "
    "times into new memory.",
    (11, "", "memcpy"): "To copy it into memory in use is faster; our time is that of {ratio} such "
    "copies.",
    (12, "", "DynRep"): "SDBDC takes {ratio} of the time of its published rule.",
    (12, "", "PPDBDC"): "It takes {ratio} times as long as PPDBDC.",
    (13, "cells and labels on Dask, 100,000,000", ""): "Clusters of a hundred million points in "
    "files take {seconds} s.",
    (13, "cells and labels on Dask, 1,000,000,000", ""): "Those of a billion points take "
    "{seconds} s.",
    (14, "", ""): "Over HTTP on one machine, a step of boosting takes {ratio} times as long as in "
    "one process.",
    (15, "", ""): "Until its first reply, `fedlib join` needs {seconds} s of processor time, "
    "{ratio} of that of importing scikit-learn.",
    (16, "Lloyd", ""): "With weights of 1, the rounds of Lloyd take {ratio} times as long as "
    "without weights.",
    (16, "EM", ""): "With weights of 1, EM takes {ratio} times as long as without weights.",
    (18, "SDBDC", ""): "SDBDC of rows at three places takes {ratio} of the time of as many "
    "different rows.",
    (18, "vertical DBSCAN", ""): "Vertical DBSCAN of equal rows takes {ratio} of the time of as "
    "many different rows, of which each has about 50 neighbours.",
    (19, "", ""): "Boosting of many columns takes {ratio} times as long as XGBoost's `hist` on "
    "pooled rows, with few and with many clients.",
    (20, "", ""): "To read a large CSV file takes {ratio} times the memory of its numbers.",
}


def sentences(measured):
    """Return what the results mean, as a list in Markdown with an item per kind of work.

    The numbers of lines that share a sentence become a range. A reader's run may have other sizes,
    and says so.
    """
    items = {}
    for (row, work, peer), text in SENTENCES.items():
        of_row = measured[measured["row"] == row]
        begins = of_row["work"].str.startswith(work) & of_row["peer"].str.startswith(peer)
        lines = of_row[begins]
        if len(lines):
            text = text.format(
                ratio=_range(lines["ratio"]), seconds=f"{lines['ours_seconds'].max():.2g}"
            )
            items.setdefault(row, []).append(text)
    text = "\n".join(f"- {' '.join(texts)}" for texts in items.values())
    return text if is_build() else f"{OF_READER}\n\n{text}"


def _range(ratios):
    """Return the smallest and the largest ratio, with two digits; a small one as a fraction.

    Examples
    --------
    >>> _range([0.123, 4.56]), _range([0.02])
    ('0.12 to 4.6', '1/50')
    """
    ends = min(ratios), max(ratios)
    low, high = (f"1/{1 / end:.0f}" if end < 0.1 else f"{end:.2g}" for end in ends)
    return low if low == high else f"{low} to {high}"


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


def radius(n, d, expected):
    """Return the radius of a ball that contains this many of n points spread over the unit cube."""
    return (expected / n * gamma(d / 2 + 1) / pi ** (d / 2)) ** (1 / d)


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
