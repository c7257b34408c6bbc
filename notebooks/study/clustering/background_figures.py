"""Figures of the pages on what P builds on: partitions, neighbourhoods, steps, flows, indexes."""

from itertools import groupby

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Circle, Polygon, Rectangle

import study
from fedlib.core.ledger import SERVER
from fedlib.figures import plots

DARK, GREY = "#204a87", "#6b6b6b"
SMALL = 9


def partitions(sets, medoids, clusters):
    """Draw each set once with the partition of CLARANS and once with the clusters of DBSCAN."""
    figure, axes = plt.subplots(
        2, len(sets), figsize=(7.5, 5.6), layout="constrained", sharex=True, sharey=True
    )
    for (above, below), (name, (X, _)) in zip(axes.T, sets.items(), strict=True):
        of_set, chosen = medoids[name]
        plots.scatter(X, of_set, ax=above, size=5)
        above.plot(*X[chosen].T, "P", color="black", mec="white", ms=10)
        plots.scatter(X, clusters[name], ax=below, size=5)
        above.set_title(name, fontsize=9)
        for ax in (above, below):
            ax.set(xticks=[], yticks=[])
    for ax, method in zip(axes[:, 0], ("CLARANS, k = 4", "DBSCAN"), strict=True):
        ax.set_ylabel(method, fontsize=9)
    return figure


def metric_panels(X, centre, eps, inside):
    """Draw the neighbourhood of one point by each metric, with the points inside."""
    diamond = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    shapes = {
        "Manhattan": Polygon(X[centre] + eps * diamond, fill=False),
        "Euclidean": Circle(X[centre], eps, fill=False),
        "maximum": Rectangle(X[centre] - eps, 2 * eps, 2 * eps, fill=False),
    }
    figure, axes = study.panels(3, width=3, height=3.3)
    for ax, (metric, near) in zip(axes, inside.items(), strict=True):
        ax.scatter(*X.T, s=14, c="#bdbdbd", linewidths=0)
        ax.scatter(*X[near].T, s=20, c=plots.BLUE, linewidths=0)
        ax.scatter(*X[centre], s=110, c=plots.RED, marker="*", zorder=3)
        ax.add_patch(shapes[metric])
        shapes[metric].set(edgecolor=plots.RED, linewidth=1.5)
        ax.set_title(f"{metric}: {near.sum()} points", fontsize=9)
        window = np.array([-1.7, 1.7]) * eps
        ax.set(xlim=X[centre, 0] + window, ylim=X[centre, 1] + window, xticks=[], yticks=[])
        ax.set_aspect("equal")
    return figure


def named_points(ax, X, names, labels, core=None):
    """Draw named points: the colour is the cluster, a ring means not assigned, a cross noise."""
    for x, name, label in zip(X, names, labels, strict=True):
        if label < -1:
            ax.plot(*x, "o", color="white", mec=GREY, ms=8)
        elif label < 0:
            ax.plot(*x, "x", color="black", ms=7, mew=2)
        else:
            ax.plot(*x, "o", color=plots.colours([label])[0], ms=9)
        ax.annotate(name, x, (6, 6), textcoords="offset points", fontsize=9)
    ax.set_aspect("equal")
    ax.set(xticks=[], yticks=[])


def neighbourhood_circles(X, names, labels, core, eps):
    """Draw clusters with the circles of core points in black and of border points in grey."""
    figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for x, is_core, label in zip(X, core, labels, strict=True):
        if label >= 0:
            ax.add_patch(Circle(x, eps, fill=False, ec="black" if is_core else "#b5b5b5", lw=1))
    named_points(ax, X, names, labels)
    ax.autoscale_view()
    return figure


def moments(X, names, panels):
    """Draw the labels at several moments of a run, one panel per title."""
    figure, axes = plt.subplots(
        2, 2, figsize=(7.5, 3.6), layout="constrained", sharex=True, sharey=True
    )
    for ax, (title, labels) in zip(axes.flat, panels.items(), strict=True):
        named_points(ax, X, names, labels)
        ax.set_title(title, fontsize=10.5)
        ax.margins(0.06, 0.16)
    return figure


def flow_chart(ledger, actions, title):
    """Draw the flow of a run from its ledger: boxes for work, arrows for messages.

    Parameters
    ----------
    ledger : Ledger
    actions : mapping of str to str or list of str
        What a message's receiver does with it: one text, or one per client.
    title : str
    """
    rows = [
        (key, list(group))
        for key, group in groupby(
            sorted(ledger, key=lambda e: (e.step, e.sender != SERVER, e.message)),
            key=lambda e: (e.step, e.sender != SERVER, e.message),
        )
    ]
    names = list(dict.fromkeys(e.receiver for e in ledger if e.sender == SERVER))
    figure, ax = plt.subplots(figsize=(7.5, 1.1 + 1.25 * len(rows)), layout="constrained")
    middle = (len(names) - 1) / 2
    _box(ax, middle, 0, len(names), f"{SERVER}: starts the run")
    for row, ((_, to_server, message), entries) in enumerate(rows, 1):
        texts = actions.get(message, "ends the run")
        if to_server:
            _box(ax, middle, row, len(names), f"{SERVER}: {texts}")
        else:
            texts = [texts] * len(names) if isinstance(texts, str) else texts
            for x, (name, text) in enumerate(zip(names, texts, strict=True)):
                _box(ax, x, row, 0.92, f"client {name}:\n{text}")
        for x in range(len(names)):
            style = {"arrowstyle": "-|>", "color": DARK, "lw": 1.5, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (x, row - 0.26), (x, row - 0.74), arrowprops=style)
        size = sum(entry.bytes for entry in entries)
        text = f"{len(entries)} × {plots.in_words(message)}, {size:,} bytes"
        background = {"facecolor": "white", "edgecolor": "none", "pad": 2}
        place = {"ha": "center", "va": "center", "color": DARK, "bbox": background}
        ax.text(middle, row - 0.5, text, fontsize=9, **place)
    ax.set(xlim=(-0.55, len(names) - 0.45), ylim=(len(rows) + 0.35, -0.35))
    ax.set_title(title)
    ax.axis("off")
    return figure


def _box(ax, x, y, width, text):
    """Draw a box around a text."""
    corner = x - width / 2 + 0.02, y - 0.25
    style = {"facecolor": "#eef3fa", "edgecolor": DARK, "linewidth": 1}
    ax.add_patch(Rectangle(corner, width - 0.04, 0.5, **style))
    ax.text(x, y, text, ha="center", va="center", fontsize=SMALL)


def radius_curves(curves, eps):
    """Draw sorted MinPts-distances, one curve per name."""
    figure, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
    styles = [("black", "-"), (plots.BLUE, "-"), ("#e76300", "-"), ("#832db6", "-")]
    styles += [(GREY, "--"), (GREY, ":")]
    for (name, (share, distance)), (colour, style) in zip(curves.items(), styles, strict=True):
        ax.plot(share, distance, style, color=colour, lw=1.8, label=name)
    ax.axhline(eps, color=plots.RED, lw=1)
    ax.text(0.55, eps, f"eps = {eps:g}", color=plots.RED, va="bottom", fontsize=9)
    ax.set(xlabel="share of the points, most isolated first", ylabel="distance to the MinPts-th")
    ax.legend()
    return figure


def represented_area(X, core, s, eps, reach):
    """Draw what a specific core point stands for: its neighbourhood, and those of core points."""
    figure, ax = plt.subplots(figsize=(5.6, 5), layout="constrained")
    distance = np.linalg.norm(X - X[s], axis=1)
    covered = np.flatnonzero(core & (distance <= eps))
    for c in covered:
        ax.add_patch(Circle(X[c], eps, fill=False, ec="#c8c8c8", lw=0.8))
    ax.add_patch(Circle(X[s], eps, fill=False, ec=plots.BLUE, lw=2))
    ax.add_patch(Circle(X[s], reach, fill=False, ec=plots.RED, lw=2))
    ax.scatter(*X[~core].T, s=16, c="#b5b5b5", linewidths=0)
    ax.scatter(*X[core].T, s=22, c=DARK, linewidths=0)
    ax.scatter(*X[s], s=140, c=plots.RED, marker="*", zorder=3)
    ax.set(xlim=X[s, 0] + np.array([-1.1, 1.1]) * reach, xticks=[], yticks=[])
    ax.set(ylim=X[s, 1] + np.array([-1.1, 1.1]) * reach)
    ax.set_aspect("equal")
    return figure


def index_panels(panels, points, query, radius):
    """Draw the boxes of each index, those that one query opens (blue) and excludes (orange).

    Parameters
    ----------
    panels : mapping of str to (Boxes, list of int, list of int)
        The title, the boxes, and the numbers of those opened and excluded.
    points : array (n, 2)
    query : array (2,)
    radius : float
    """
    figure, axes = study.panels(len(panels), width=3, height=3.3, sharex=True, sharey=True)
    for ax, (title, (boxes, opened, excluded)) in zip(axes, panels.items(), strict=True):
        leaves = [node for node, children in enumerate(boxes.children) if not children]
        for chosen, style in (
            (leaves, {"fill": False, "ec": "#c8c8c8", "lw": 0.6}),
            (excluded, {"fill": False, "ec": "#e76300", "lw": 1.3, "zorder": 3}),
            (opened, {"fc": "#bcdcf5", "ec": DARK, "lw": 1}),
        ):
            for node in chosen:
                size = boxes.upper[node] - boxes.lower[node]
                ax.add_patch(Rectangle(boxes.lower[node], *size, **style))
        ax.scatter(*points.T, s=1.5, c="#555", linewidths=0, zorder=2)
        ax.add_patch(Circle(query, radius, fill=False, ec=plots.RED, lw=1.8, zorder=4))
        ax.set_title(f"{title}: {len(opened)} opened,\n{len(excluded)} excluded", fontsize=9)
        ax.set(xticks=[], yticks=[])
        ax.set_aspect("equal")
    return figure


INDEXES = {"quadtree": (plots.BLUE, "o-"), "k-d tree": ("#e76300", "s-"), "grid": ("#832db6", "^-")}


def leaf_size_plot(runs):
    """Draw boxes and distances per query against the size of the leaves."""
    figure, axes = study.panels(2, width=4.3, height=3.4)
    for ax, counted in zip(axes, ("boxes", "distances"), strict=True):
        for index, rows in runs.groupby("index", sort=False):
            colour, style = INDEXES[index]
            if index == "grid":
                ax.axhline(rows[counted].iloc[0], color=colour, ls="--", label="grid, no leaves")
            else:
                ax.plot(rows["leaf size"], rows[counted], style, color=colour, label=index)
        ax.set_xscale("log", base=2)
        ax.set_xticks([4, 16, 64, 256], ["4", "16", "64", "256"])
        ax.set(xlabel="most points in a leaf", title=f"{counted} per query", ylim=(0, None))
    axes[0].legend()
    return figure


def growth_plot(runs):
    """Draw the work of a query against the number of points, one panel per choice of radius."""
    figure, axes = study.panels(2, width=4.3, height=3.6, sharey=True)
    for ax, (title, of_panel) in zip(axes, runs.groupby("radius", sort=False), strict=True):
        for index, rows in of_panel.groupby("index", sort=False):
            colour, style = INDEXES[index]
            ax.loglog(rows["points"], rows["work"], style, color=colour, label=index)
        sizes = of_panel.groupby("points")["neighbours"].first()
        ax.loglog(sizes.index, sizes.index, ":", color="black", label="no index")
        ax.loglog(sizes, "--", color=GREY, label="neighbours")
        ax.set(xlabel="points", title=title)
        ax.set_xticks(sizes.index, [f"{n / 1000:.0f}k" for n in sizes.index])
        ax.set_xticks([], minor=True)
    axes[0].set_ylabel("boxes and distances per query")
    axes[1].legend()
    return figure
