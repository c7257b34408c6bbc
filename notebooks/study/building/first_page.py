"""Draw the pictures of the book's first page, each for light and dark pages, and of the README.

``python -m study.building.first_page`` writes them to ``book/_static``, and the runs that this page
and the guide to the methods play to ``book/run_to_watch.html`` and ``book/methods_to_watch.html``.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from sklearn.datasets import make_moons

from fedlib import PPDBDC, FederatedGaussianMixture, FederatedKMeans, HorizontalDBSCAN
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.datasets import load
from fedlib.datasets.partition import split_rows
from fedlib.figures import plots
from study.interactive.theatre import theatre, toy_parts, without_assets

BOOK = Path(__file__).parents[3] / "book"
STATIC = BOOK / "_static"
THEMES = {
    "light": {"text": "#1f2328", "line": "#57606a", "box": "#eef4fb", "border": "#7aa7d6"},
    "dark": {"text": "#e6edf3", "line": "#a8b3bf", "box": "#1d2b3a", "border": "#4f7fae"},
}
CELL = 0.2
STYLE = {"font.size": 12, "svg.hashsalt": "fedlib", "figure.facecolor": "none"}


def sites(n_sites=3, n_points=420):
    """Return the points of each site: parts of two half moons."""
    points, _ = make_moons(n_points, noise=0.07, random_state=0)
    return [points[i::n_sites] for i in range(n_sites)]


def idea(theme):
    """Draw sites with their points, the counts that they send, and the common clusters."""
    parts = sites()
    model = HorizontalDBSCAN(cell_size=CELL, min_samples=3)
    request = next(model.protocol())
    figure = plt.figure(figsize=(7.5, 3.9))
    points = np.vstack(parts)
    lower, upper = points.min(axis=0) - CELL, points.max(axis=0) + CELL

    def panel(left, bottom, width, height, draw):
        ax = figure.add_axes((left, bottom, width, height), facecolor="none")
        draw(ax)
        ax.set(xticks=[], yticks=[], xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
        ax.set_aspect("equal")
        for spine in ax.spines.values():
            spine.set(visible=True, color=theme["border"], linewidth=1.2)

    for i, part in enumerate(parts):
        bottom = 0.61 - 0.29 * i
        reply = HorizontalDBSCANClient(part).handle(request)
        panel(0.07, bottom, 0.21, 0.24, lambda ax, part=part: plots.scatter(part, ax=ax, size=5))
        panel(
            0.37,
            bottom,
            0.21,
            0.24,
            lambda ax, reply=reply: plots.cells(reply.cells, CELL, counts=reply.counts, ax=ax),
        )
        middle = bottom + 0.12
        figure.text(0.03, middle, f"site {i + 1}", rotation=90, va="center", color=theme["text"])
        arrow(figure, (0.285, middle), (0.365, middle), theme)
        arrow(figure, (0.585, middle), (0.665, 0.44), theme)
    model.fit(parts)
    labels = np.concatenate(model.labels_)
    panel(0.675, 0.2, 0.31, 0.48, lambda ax: plots.scatter(points, labels, ax=ax, size=7))
    titles = {0.175: "Rows stay\nat their site", 0.475: "Only a summary\nis sent"}
    titles[0.83] = "All sites get\nthe common clusters"
    for x, title in titles.items():
        figure.text(x, 0.9, title, ha="center", va="bottom", weight="bold", color=theme["text"])
    return figure


def arrow(figure, start, stop, theme, both=False):
    """Draw an arrow between two places of a figure."""
    style = "<|-|>" if both else "-|>"
    figure.add_artist(
        FancyArrowPatch(
            start,
            stop,
            transform=figure.transFigure,
            arrowstyle=style,
            mutation_scale=13,
            color=theme["line"],
            shrinkA=0,
            shrinkB=0,
        )
    )


def architecture(theme):
    """Draw the parts of the package: estimator, flow, transport, clients and ledger."""
    figure = plt.figure(figsize=(7.5, 4.1))

    def box(left, bottom, width, height, title, text):
        figure.add_artist(
            FancyBboxPatch(
                (left, bottom),
                width,
                height,
                transform=figure.transFigure,
                boxstyle="round,pad=0,rounding_size=0.015",
                facecolor=theme["box"],
                edgecolor=theme["border"],
                linewidth=1.4,
            )
        )
        x, y = left + width / 2, bottom + height / 2
        style = {"ha": "center", "color": theme["text"]}
        figure.text(x, y + 0.012, title, va="bottom", weight="bold", **style)
        figure.text(x, y - 0.006, text, va="top", fontsize=10.5, **style)

    box(0.02, 0.74, 0.27, 0.22, "Estimator", "fit, predict,\nlabels_, ledger_")
    box(0.365, 0.74, 0.27, 0.22, "Flow (the server)", "yields requests,\nreturns the model")
    box(0.71, 0.74, 0.27, 0.22, "Ledger", "every message: bytes,\nwhat it discloses")
    box(0.02, 0.4, 0.96, 0.17, "Transport", "in process  ·  HTTP  ·  Flower")
    for i in range(3):
        left = 0.02 + 0.345 * i
        box(left, 0.03, 0.27, 0.2, f"Client {i + 1}", "own rows; one\nmethod per request")
        arrow(figure, (left + 0.135, 0.24), (left + 0.135, 0.39), theme, both=True)
    arrow(figure, (0.295, 0.85), (0.36, 0.85), theme)
    arrow(figure, (0.5, 0.73), (0.5, 0.58), theme, both=True)
    arrow(figure, (0.845, 0.58), (0.845, 0.73), theme)
    small = {"fontsize": 10.5, "color": theme["text"], "va": "center"}
    figure.text(0.48, 0.655, "requests", ha="right", **small)
    figure.text(0.52, 0.655, "replies", ha="left", **small)
    figure.text(0.865, 0.655, "records", ha="left", **small)
    return figure


def tour():
    """Draw the run in the README: a client's points, its reply, and the clusters of all."""
    moons = load("moons")
    parts = [moons.X[rows] for rows in split_rows(moons.X, 5, moons.y)]
    model = HorizontalDBSCAN(cell_size=0.25, min_samples=4)
    reply = HorizontalDBSCANClient(parts[0]).handle(next(model.protocol()))
    model.fit(parts)
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.75), layout="constrained", sharex=True)
    plots.scatter(parts[0], ax=axes[0])
    plots.cells(reply.cells, 0.25, counts=reply.counts, ax=axes[1])
    plots.scatter(np.vstack(parts), np.concatenate(model.labels_), ax=axes[2])
    titles = ("one client's points", "its reply: counts per cell", "the clusters of all clients")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, xticks=[], yticks=[], ylim=axes[0].get_ylim())
    return figure


def run_to_watch():
    """Return the figure that plays a run of DBSCAN on a grid, in the clear and with masks."""
    limits = [[-1.6, -1.0], [2.6, 1.5]]
    shown = theatre(
        {
            "in the clear": HorizontalDBSCAN(cell_size=0.25, min_samples=2),
            "masked": HorizontalDBSCAN(cell_size=0.25, min_samples=2, secure=True, bounds=limits),
        },
        toy_parts(),
        name="fig-run-to-watch",
        caption="Three sites find the clusters of all their points. Press *Play* to watch every "
        "message: its size, what it discloses, and what the server sees. *Masked*, the server "
        "sees random numbers until it has their sum.",
        alt="Three sites with points below a server. The server asks for counts, receives the "
        "counts of each site's cells, and sends the cells of two clusters.",
    )
    return without_assets(shown)


def methods_to_watch():
    """Return the figure that plays four methods on the same rows, for the guide to the methods."""
    start = {"means_init": [[1.0, 1.5], [2.0, 1.5], [3.0, 1.5]], "weights_init": [1 / 3] * 3}
    start["precisions_init"] = [[[1.0, 0.0], [0.0, 1.0]]] * 3
    shown = theatre(
        {
            "counts in cells": HorizontalDBSCAN(cell_size=0.6, min_samples=3),
            "k-means": FederatedKMeans(3, method="lloyd", init=start["means_init"], max_iter=4),
            "Gaussian mixture": FederatedGaussianMixture(3, method="em", max_rounds=2, **start),
            "PPDBDC": PPDBDC(eps=0.7, min_samples=4, eps_rep=0.5, random_state=0),
        },
        toy_parts("blobs"),
        name="fig-methods-to-watch",
        caption="Four methods on the same rows of three sites. Choose one and press *Play*. "
        "Compare what leaves the sites (counts, sums, or representatives), the bytes, and the "
        "number of exchanges.",
        alt="Three sites with points in three groups, below a server. They send counts of cells, "
        "sums per group, or representatives, and the points get the colours of their clusters.",
    )
    return without_assets(shown)


RUNS = {"run_to_watch.html": run_to_watch, "methods_to_watch.html": methods_to_watch}


def main():
    """Write the pictures and the runs."""
    for name, run in RUNS.items():
        (BOOK / name).write_text(run() + "\n", encoding="utf-8")
    figure = tour()
    figure.savefig(STATIC / "tour.png", dpi=200, metadata={"Software": None})
    plt.close(figure)
    for name, draw in {"idea": idea, "architecture": architecture}.items():
        for suffix, theme in THEMES.items():
            with plt.rc_context(STYLE):
                figure = draw(theme)
                metadata = {"Date": None, "Creator": None}
                figure.savefig(STATIC / f"{name}-{suffix}.svg", metadata=metadata)
                plt.close(figure)


if __name__ == "__main__":
    main()
