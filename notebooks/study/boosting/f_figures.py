"""Figures of the search for Vasilopoulou's settings."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from study.boosting import f_search

COLOURS = dict(
    zip(f_search.TABLES, ("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#444444"), strict=True)
)
MARKERS = dict(zip(f_search.TABLES, "os^Dv", strict=True))
LABELS = {
    "trees": "trees",
    "depth": "maximum depth",
    "rate": "learning rate",
    "leaf": "leaf",
    "update": "update by the",
}
LOWEST = -25  # differences below are drawn here


def profiles(settings, names):
    """Draw the best likelihood per value of these parameters, less the best of the table."""
    figure = plt.figure(figsize=(7.5, 6), layout="constrained")
    axes = _two_rows(figure, names)
    for ax, name in zip(axes, names, strict=True):
        values = sorted(settings[name].unique(), key=_number)
        for table, rows in settings.groupby("table", sort=True):
            best = (rows.groupby(name)["whole"].max() - rows["whole"].max()).clip(lower=LOWEST)
            best = best.reindex(values)  # a gap in the line where nothing was measured
            style = {"color": COLOURS[table], "marker": MARKERS[table], "ms": 5, "lw": 1.4}
            numbers = [value for value in values if value != f_search.RULE]
            ax.plot(range(len(numbers)), best[numbers], label=f"Table {table}", **style)
            if f_search.RULE in values:
                ax.plot([len(numbers)], best[[f_search.RULE]], **style)
        ax.set_xticks(range(len(values)), values)
        ax.set(xlabel=LABELS[name], ylim=(LOWEST - 1, 1), xlim=(-0.4, len(values) - 0.6))
        ax.axhline(-np.log(10), color="0.7", lw=1, ls=":")
    figure.supylabel("log-likelihood less the best", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)


def _two_rows(figure, names):
    """Return the first panel in a row of its own, and the others below with these widths."""
    below = list(names)[1:]
    grid = figure.add_gridspec(2, len(below), width_ratios=[names[name] for name in below])
    top = figure.add_subplot(grid[0, :])
    rest = [figure.add_subplot(grid[1, i], sharey=top) for i in range(len(below))]
    for ax in rest[1:]:
        ax.tick_params(labelleft=False)
    return [top, *rest]


def _number(value):
    """Return the sort key of a parameter's value; texts come last, in alphabetical order."""
    number = pd.to_numeric(value, errors="coerce")
    return (1, 0, value) if np.isnan(number) else (0, number, "")


def reached(judged, names):
    """Draw the share of each table's numbers that are inside, for one setting and for any."""
    _, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    tables, width = list(judged.index), 0.8 / len(names)
    for place, (column, (label, colour)) in enumerate(names.items()):
        x = np.arange(len(tables)) + width * (place - (len(names) - 1) / 2)
        share = judged[column] / judged["numbers"]
        ax.bar(x, share, 0.9 * width, color=colour, label=label)
        for at, part, count in zip(x, share, judged[column], strict=True):
            ax.text(at, part + 0.01, str(count), ha="center", va="bottom", size=9)
    ax.set_xticks(range(len(tables)), [f"{t}\n({judged.loc[t, 'numbers']})" for t in tables])
    ax.set(ylim=(0, 1.12), xlabel="table (numbers printed)", ylabel="share of the numbers")
    ax.legend(ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.18))
