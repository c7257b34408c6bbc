"""Figures of the search for F's settings."""

import f_search
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

COLOURS = dict(
    zip(f_search.TABLES, ("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#444444"), strict=True)
)
MARKERS = dict(zip(f_search.TABLES, "os^Dv", strict=True))
LABELS = {"trees": "trees", "depth": "maximum depth", "rate": "learning rate"}
LOWEST = -25  # differences below are drawn here


def profiles(settings):
    """Draw the best likelihood per value of a parameter, less the best of the table."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), sharey=True, layout="constrained")
    for ax, (name, label) in zip(axes, LABELS.items(), strict=True):
        values = sorted(settings[name].unique(), key=_number)
        for table, rows in settings.groupby("table", sort=True):
            best = rows.groupby(name)["whole"].max() - rows["whole"].max()
            best = best.reindex([value for value in values if value in best.index])
            places = [values.index(value) for value in best.index]
            style = {"color": COLOURS[table], "marker": MARKERS[table], "ms": 5, "lw": 1.4}
            ax.plot(places, best.clip(lower=LOWEST), label=f"Table {table}", **style)
        ax.set_xticks(range(len(values)), values)
        ax.set(xlabel=label, ylim=(LOWEST - 1, 1))
        ax.axhline(-np.log(10), color="0.7", lw=1, ls=":")
    axes[0].set_ylabel("log-likelihood less the best")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=5)
    return figure


def _number(value):
    """Return the sort key of a parameter's value; F's rule comes last."""
    return pd.to_numeric(value, errors="coerce") if value != f_search.RULE else np.inf


def reached(judged, names):
    """Draw the share of each table's numbers that are inside, for one setting and for any."""
    _, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
    tables, width = list(judged.index), 0.8 / len(names)
    for place, (column, (label, colour)) in enumerate(names.items()):
        x = np.arange(len(tables)) + width * (place - (len(names) - 1) / 2)
        share = judged[column] / judged["numbers"]
        ax.bar(x, share, 0.9 * width, color=colour, label=label)
        for at, part, count in zip(x, share, judged[column], strict=True):
            ax.text(at, part + 0.01, str(count), ha="center", va="bottom", size="small")
    ax.set_xticks(range(len(tables)), [f"{t}\n({judged.loc[t, 'numbers']})" for t in tables])
    ax.set(ylim=(0, 1.12), xlabel="table (numbers printed)", ylabel="share of the numbers")
    ax.legend(ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.18))
