"""Figures and tables of scores with passive clients: printed, measured, and of all choices."""

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from fedlib.figures import plots
from study.clustering.passive_search import GROUPS, METRICS, RUNS
from study.shared.layouts import as_printed
from study.shared.pages import table

COLOURS = dict(zip(GROUPS, (plots.BLUE, "#ffa90e", plots.RED), strict=True))
MARKERS = dict(zip(GROUPS, "osD", strict=True))
PERCENT = np.array([10, 20, 30])
TITLES = {
    "metric": {metric: metric for metric in METRICS},
    "condition": {group: group.capitalize() for group in GROUPS},
    "run": {run: run for run in RUNS} | {"mean": "μ", "std": "σ"},
}


def show_tables(compared, percent):
    """Show the printed and measured scores of both editions, for a percentage of clients."""
    for source in ("M1", "M2"):
        shown = (compared["source"] == source) & (compared["table"] == f"passive {percent}%")
        cells = as_printed(compared[shown], ["metric", "condition"], ["run"], TITLES, decimals=4)
        name = f"tab-passive-{source.lower()}-{percent}"
        display(table(cells, caption=f"{source}, {percent} % passive clients.", name=name))


def by_metric(draw, title):
    """Call ``draw(ax, metric)`` for one panel per metric, with a common legend in the last."""
    _, axes = plt.subplots(2, 3, figsize=(7.5, 5.3), layout="constrained")
    *axes, legend = axes.ravel()
    for ax, metric in zip(axes, METRICS, strict=True):
        draw(ax, metric)
        ax.set_title(metric)
        ax.grid(axis="y", lw=0.3)
    for ax in axes[2:]:
        ax.set_xlabel("% passive")
    for ax in (axes[0], axes[3]):
        ax.set_ylabel("mean ± std")
    legend.axis("off")
    legend.legend(*axes[0].get_legend_handles_labels(), loc="center", title=title)


def resistance(mean, std):
    """Draw mean and deviation of each score against the percentage, one curve per group."""

    def draw(ax, metric):
        for i, group in enumerate(GROUPS):
            y, spread = mean.loc[group][metric], std.loc[group][metric]
            style = {"color": COLOURS[group], "marker": MARKERS[group], "ms": 4, "lw": 1.2}
            ax.errorbar(y.index + i - 1, y, spread, capsize=2, label=group, **style)
        ax.set_xticks(y.index)

    by_metric(draw, "clients")


def five_runs(source, printed, measured, everyone=None):
    """Draw the printed and the measured means and deviations of an edition's five runs.

    Parameters
    ----------
    source : str
        The edition.
    printed, measured : DataFrame
        From `passive_search.statistics`.
    everyone : DataFrame, optional
        Mean and deviation of all choices by percentage, drawn as a band.
    """

    def numbers(frame, cell, statistic):
        keys = [(source, f"passive {percent}%", statistic) for percent in PERCENT]
        return frame.loc[keys, [cell]].to_numpy().ravel()

    def draw(ax, metric):
        if everyone is not None:
            middle, spread = everyone[metric, "mean"], everyone[metric, "std"]
            band = {"color": "0.5", "alpha": 0.25, "linewidth": 0, "label": "all choices"}
            ax.fill_between(PERCENT, middle - spread, middle + spread, **band)
            ax.plot(PERCENT, middle, color="0.4", lw=1)
        for i, group in enumerate(GROUPS):
            for frame, name, shift in ((printed, "printed", -0.6), (measured, "measured", 0.6)):
                y, spread = (numbers(frame, (group, metric), s) for s in ("mean", "std"))
                fill = "white" if name == "printed" else COLOURS[group]
                style = {"color": COLOURS[group], "marker": MARKERS[group], "mfc": fill, "ls": ""}
                style |= {"ms": 5, "lw": 1.2, "capsize": 2, "label": f"{group}, {name}"}
                ax.errorbar(PERCENT + 2.6 * (i - 1) + shift, y, spread, **style)
        ax.set_xticks(PERCENT)

    by_metric(draw, "clients, numbers")


def printed_pairs(ax, x, y, runs, misprints):
    """Draw two scores of the printed runs against each other, and the misprints of the second.

    Parameters
    ----------
    ax : Axes
    x, y : str
        The metrics.
    runs : DataFrame
        One row per run and group, one column per metric.
    misprints : DataFrame
        From `Search.misprints`.
    """
    ax.scatter(runs[x], runs[y], s=22, color=plots.BLUE, label="printed", zorder=2)
    for cell in misprints[misprints["metric"] == y].itertuples():
        if (key := (cell.source, cell.table, cell.run, cell.group)) not in runs.index:
            continue
        other = runs.loc[key, x]
        cross = {"s": 90, "marker": "x", "color": plots.RED, "zorder": 3}
        ax.scatter(other, float(cell.published), label="misprint", **cross)
        ring = {"facecolors": "none", "edgecolors": plots.RED}
        ax.scatter(other, float(cell.measured), s=70, label="measured instead", zorder=3, **ring)
    ax.set(xlabel=x, ylabel=y)
    ax.locator_params(nbins=6)
    ax.legend()


def losses_of_pairs(losses, n_clients):
    """Draw the loss of each pair of passive clients, and of one alone on the diagonal.

    Parameters
    ----------
    losses : Series
        By choice of passive clients, as tuples.
    n_clients : int
    """
    grid = np.full((n_clients, n_clients), np.nan)
    for choice, value in losses.items():
        if len(choice) in (1, 2):
            grid[choice[0], choice[-1]] = grid[choice[-1], choice[0]] = value
    figure, ax = plt.subplots(figsize=(6.4, 5), layout="constrained")
    image = ax.imshow(grid, cmap="cividis_r", vmin=0)
    for i, j in np.ndindex(grid.shape):
        ink = "white" if grid[i, j] > grid.max() / 2 else "black"
        ax.text(j, i, f"{grid[i, j]:.2f}", ha="center", va="center", size=9, color=ink)
    ax.set(xticks=range(n_clients), yticks=range(n_clients), xlabel="passive", ylabel="passive")
    ax.spines[:].set_visible(False)
    figure.colorbar(image, label="loss of overall AMI")
