"""Figures for the book: points and their clusters, the cells of a grid, a run's messages.

Functions that draw into one panel take its axes as ``ax`` (by default the current ones) and return
them. `compare` creates a figure of several panels.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from numpy.typing import ArrayLike

from fedlib.figures.scores import match_clusters

SERVER = "server"  # its name as a sender or receiver
NOISE = "#8c8c8c"
NO_CLUSTER = "#dcdcdc"
FAILURE = "#b3202c"
MARKERS = "osD^v"
LETTER = 0.0076  # width of a letter in inches, per point of its size
WIDEST = 7.0  # width of a page, in inches
LINE = 0.28  # height of one more line of small letters; the height of a row is 1
BLUE = "#3f90da"
RED = "#bd1f01"


def colours(labels: ArrayLike) -> np.ndarray:
    """Return one RGBA colour per label.

    The ten colours can be distinguished by colour-blind readers; label 10 has the first one again.

    Parameters
    ----------
    labels : array (n,) of int
        Noise, -1, is grey.

    Examples
    --------
    >>> from fedlib.figures.plots import colours
    >>> colours([0, 1, -1]).shape
    (3, 4)
    """
    cycle = mpl.colors.to_rgba_array([*mpl.color_sequences["petroff10"], NOISE])
    labels = np.asarray(labels, int)
    return cycle[np.where(labels < 0, 10, labels % 10)]


def scatter(
    points: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
    size: float = 6,
) -> Axes:
    """Draw points (n, 2) in the colours of their clusters, and noise as small grey crosses.

    Clusters beyond the tenth repeat the colours with another marker. If there is noise or more
    than one cluster, the title ends with their numbers.

    Examples
    --------
    >>> from fedlib.figures.plots import scatter
    >>> scatter([[0, 0], [1, 1], [5, 5]], [0, 0, -1], title="toy").get_title()
    'toy: 1 cluster, 1 noise point'
    """
    ax = ax or plt.gca()
    points = np.asarray(points, float)
    labels = np.zeros(len(points), int) if labels is None else np.asarray(labels)
    noise = labels < 0
    x, y = points.T
    ax.scatter(x[noise], y[noise], s=size, c=NOISE, marker="x", linewidths=0.7)
    for ten in range(labels.max(initial=-1) // 10 + 1):
        these = ~noise & (labels // 10 == ten)
        marker = MARKERS[ten % len(MARKERS)]
        ax.scatter(x[these], y[these], size, colours(labels[these]), marker=marker, linewidths=0)
    if title is not None:
        n_clusters = len(np.unique(labels[~noise]))
        counted = f": {_count(n_clusters, 'cluster')}, {_count(noise.sum(), 'noise point')}"
        ax.set_title(title + (counted if noise.any() or n_clusters > 1 else ""))
    ax.set_aspect("equal")
    return ax


def _count(n: int, noun: str) -> str:
    """Return a count with its noun, such as ``"2 clusters"``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def compare(
    points: ArrayLike,
    labellings: Mapping[str, ArrayLike],
    *,
    size: float = 6,
    width: float = 3.7,
    height: float = 3.9,
) -> Figure:
    """Draw the same points once per labelling, side by side, with black crosses for noise.

    The first labelling is the reference for the colours. A cluster of another one is paired with
    at most one of its clusters, such that pairs have as many points in common as possible, and has
    its colour. A title that is too wide for its panel gets shorter, or else breaks into lines.

    Parameters
    ----------
    points : array (n, 2)
    labellings : mapping of str to array (n,) of int
        The title of each panel and the labels of the points in it.
    size : float, default=6
        Of the points.
    width, height : float
        Of one panel, in inches. Panels that are together wider than 7 inches get smaller.

    Examples
    --------
    >>> from fedlib.figures.plots import compare
    >>> figure = compare([[0, 0], [1, 1]], {"classes": [0, 1], "DBSCAN": [0, -1]})
    >>> [ax.get_title() for ax in figure.axes]
    ['classes: 2 clusters, 0 noise points', 'DBSCAN: 1 cluster, 1 noise point']
    """
    n = len(labellings)
    scale = min(1.0, WIDEST / (width * n))
    figure = plt.figure(figsize=(scale * width * n, scale * height), layout="constrained")
    axes = figure.subplots(1, n, sharex=True, sharey=True, squeeze=False)
    first = np.asarray(next(iter(labellings.values())))
    for ax, (title, labels) in zip(axes[0], labellings.items(), strict=True):
        scatter(points, match_clusters(labels, first), title=title, ax=ax, size=size)
        ax.collections[0].set(sizes=[max(size, 12)], color="black", zorder=3)  # the noise
    letters, titles = int(scale * width / _letter()), [ax.get_title() for ax in axes[0]]
    shorter = [re.sub("(, 0 noise)? points?$", "", title) for title in titles]
    if max(map(len, shorter)) <= letters < max(map(len, titles)):
        titles = shorter
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(textwrap.fill(title, letters), size=_small())
    return figure


def strip(
    values: Mapping[str, ArrayLike],
    printed: Mapping[str, float] | None = None,
    *,
    horizontal: bool = False,
    alpha: float = 0.5,
    ax: Axes | None = None,
) -> Axes:
    """Draw repeated measurements as one strip of dots per name, with printed numbers as red lines.

    Parameters
    ----------
    values : mapping of str to array (n,)
        The measurements by name. Their dots are spread at random (with a fixed seed) across the
        strip, so that they hide each other less.
    printed : mapping of str to float, optional
        Published numbers, drawn across the strips of the same names.
    horizontal : bool, default=False
        Draw the strips one below the other, and not side by side.
    alpha : float, default=0.5
        Opacity of the dots.
    ax : Axes, optional

    Examples
    --------
    >>> from fedlib.figures.plots import strip
    >>> ax = strip({"ARI": [0.7, 0.8], "AMI": [0.6, 0.7]}, {"ARI": 0.75})
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['ARI', 'AMI']
    """
    ax = ax or plt.gca()
    names = [name for name, _ in values.items()]  # a DataFrame will do as well
    rng = np.random.default_rng(0)
    for i, (name, measured) in enumerate(values.items()):
        measured = np.asarray(measured, float)
        across = i + rng.uniform(-0.25, 0.25, len(measured))
        x, y = (measured, across) if horizontal else (across, measured)
        ax.scatter(x, y, s=6, c=BLUE, alpha=alpha, linewidths=0)
        if printed and name in printed:
            lines = ax.vlines if horizontal else ax.hlines
            lines(float(printed[name]), i - 0.35, i + 0.35, color=RED, lw=1.5)
    if horizontal:
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
    else:
        ax.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    return ax


def calls(
    ax: Axes, names: Sequence[str], arrows: Sequence[tuple[int, int, str]], title: str
) -> Axes:
    """Draw calls between the parts of a program, each part a column, time running downwards.

    Parameters
    ----------
    ax : Axes
    names : sequence of str
        The parts.
    arrows : sequence of (int, int, str)
        The calls in order: from which column, to which column, and the text above the arrow.
    title : str

    Examples
    --------
    >>> from fedlib.figures.plots import calls
    >>> _, ax = plt.subplots()  # not a figure that is open already
    >>> ax = calls(ax, ["server", "client"], [(0, 1, "request"), (1, 0, "reply")], "toy")
    >>> [text.get_text() for text in ax.texts]
    ['server', 'client', '', 'request', '', 'reply']
    """
    for x, name in enumerate(names):
        ax.plot([x, x], [0.2, -len(arrows) - 0.2], lw=0.8, color="grey", zorder=0)
        ax.text(x, 0.4, name, ha="center", va="bottom", fontsize=_small(), weight="bold")
    style = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0}
    for row, (start, stop, text) in enumerate(arrows):
        y = -row - 0.5
        ax.annotate("", xy=(stop, y), xytext=(start, y), arrowprops=style)
        ax.text((start + stop) / 2, y + 0.08, text, ha="center", va="bottom", fontsize=_small())
    ax.set(xlim=(-0.6, len(names) - 0.4), ylim=(-8.4, 1.6))
    ax.set_title(title)
    ax.axis("off")
    return ax


def cells(
    cells: ArrayLike,
    cell_size: float,
    *,
    labels: ArrayLike | None = None,
    counts: ArrayLike | None = None,
    numbers: bool = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw cells (n, 2) of a grid, coloured by cluster or shaded by count.

    Parameters
    ----------
    cells : array (n, 2) of int
        The coordinates; cell (i, j) covers [i, i+1) × [j, j+1), multiplied by ``cell_size``.
    cell_size : float
    labels : array (n,) of int, optional
        The cluster of each cell; -1 is drawn in light grey.
    counts : array (n,) of int, optional
        Drawn as shades of blue if no labels are given.
    numbers : bool, default=False
        Write each count into its cell.
    ax : Axes, optional
    **style
        Arguments of matplotlib's PolyCollection.

    Examples
    --------
    >>> from fedlib.figures.plots import cells
    >>> len(cells([[0, 0], [3, 1]], 0.5, labels=[0, -1]).collections[-1].get_paths())
    2
    """
    ax = ax or plt.gca()
    corners = np.asarray(cells, float).reshape(-1, 1, 2)
    squares = (corners + np.array([[0, 0], [1, 0], [1, 1], [0, 1]])) * cell_size
    if labels is not None:
        unlabelled = np.asarray(labels)[:, np.newaxis] < 0
        faces = np.where(unlabelled, mpl.colors.to_rgba(NO_CLUSTER), colours(labels))
        style.setdefault("facecolors", faces)
    elif counts is not None:
        style.update(array=np.asarray(counts), cmap="Blues", norm=mpl.colors.PowerNorm(0.5, 0))
    style.setdefault("edgecolors", "white")
    style.setdefault("linewidths", 0.4)
    ax.add_collection(PolyCollection(list(squares), **style))
    if numbers and counts is not None:
        counts = np.asarray(counts)
        is_dark = counts > counts.max() / 3
        for (x, y), count, dark in zip(squares.mean(axis=1), counts, is_dark, strict=True):
            colour = "white" if dark and labels is None else "black"
            ax.text(x, y, str(count), ha="center", va="center", color=colour, fontsize=_small())
    ax.autoscale_view()
    ax.set_aspect("equal")
    return ax


def sequence_diagram(
    messages: pd.DataFrame, *, ax: Axes | None = None, max_clients: int = 4, max_steps: int = 6
) -> Axes:
    """Draw the messages of a run; time runs downwards.

    A row represents one kind of message in one step. Its arrow points from the server to the last
    receiver, with a dot at each of the others, or from the senders, each with a dot, to the
    server. Its label contains the messages' name in words, their count, their
    total bytes, and the data that they disclose. Failures are red.

    Parameters
    ----------
    messages : DataFrame
        One row per message with the columns ``step``, ``sender``, ``receiver``, ``message``,
        ``bytes`` and ``discloses``, as `fedlib.core.ledger.Ledger.to_frame` returns them. The
        server is called ``"server"``.
    ax : Axes, optional
        By default those of a new figure, high enough for all rows.
    max_clients : int, default=4
        If there are more clients, only the first ones are drawn, and one column for all others.
    max_steps : int, default=6
        If there are more steps, only the first ones and the last one are drawn.
    """
    entries = list(messages.itertuples(index=False))
    names = list(dict.fromkeys(e.receiver for e in entries if e.sender == SERVER))
    shown = names if len(names) <= max_clients else names[: max_clients - 1]
    column = {name: i + 1 for i, name in enumerate(shown)}
    rest = len(shown) + 1
    rows = _rows(entries, max_steps)
    heads = {0: SERVER} | {i: "client " + str(name) for name, i in column.items()}
    if len(names) > len(shown):
        heads[rest] = f"{len(names) - len(shown)} {'more ' if shown else ''}clients"
    width = min(1.5 * len(heads) + 1.5, WIDEST)
    letters = int(width / len(heads) * max(heads) / _letter())
    notes = [textwrap.wrap(row[0].discloses, letters) if row else [] for row in rows]
    heights = [1 + LINE * max(len(note) - 1, 0) for note in notes]
    if ax is None:
        size = (width, 0.62 * sum(heights) + 0.8)
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    for i, head in heads.items():
        ax.axvline(i, color="#c8c8c8", lw=1, zorder=0)
        ax.text(i, 0, head, ha="center", va="center", weight="bold", bbox=_box())
    for y, row, note in zip(1 + np.cumsum([0, *heights]), rows, notes, strict=False):
        if not row:
            text = f"… {_count(_steps(entries) - max_steps, 'step')} left out …"
            ax.text(max(heads) / 2, y, text, ha="center", va="center", bbox=_box())
            continue
        ends = [e.receiver if e.sender == SERVER else e.sender for e in row]
        _arrow(ax, y, row, sorted({column.get(name, rest) for name in ends}), "\n".join(note))
    ax.set_xlim(-0.5, max(heads) + 0.5)
    ax.set_ylim(sum(heights) + 0.7, -0.5)
    ax.axis("off")
    return ax


def _steps(entries: Sequence[Any]) -> int:
    """Return the count of steps."""
    return max((e.step for e in entries), default=0)


def _rows(entries: Sequence[Any], max_steps: int) -> list[list[Any]]:
    """Return the entries to draw, grouped by step, direction and message.

    Requests come before replies. An empty row represents the steps that are left out.
    """
    last = _steps(entries)
    left_out = range(max_steps, last) if last > max_steps else range(0)

    def kind(e: Any) -> tuple[int, bool, str]:
        return e.step, e.sender != SERVER, e.message

    drawn = sorted((e for e in entries if e.step not in left_out), key=kind)
    rows = [list(group) for _, group in groupby(drawn, key=kind)]
    if left_out:
        rows.insert(next(i for i, row in enumerate(rows) if row[0].step == last), [])
    return rows


def in_words(message: str) -> str:
    """Return the name of a message class in words: count cells for CountCells."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", message).lower()


def _arrow(ax: Axes, y: float, row: Sequence[Any], ends: list[int], note: str) -> None:
    """Draw one row between the server's column and the columns of the clients in it."""
    entry, size = row[0], sum(e.bytes for e in row)
    colour = FAILURE if entry.message == "Failure" else "#204a87"
    is_request = entry.sender == SERVER
    tip, tail = (ends[-1], 0) if is_request else (0, ends[-1])
    style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "lw": 1.2}
    ax.annotate("", xy=(tip, y), xytext=(tail, y), arrowprops=style | {"mutation_scale": 14})
    passed = ends[:-1] if is_request else ends  # a dot marks each other client in the row
    ax.plot(passed, [y] * len(passed), ls="", marker="o", color=colour, ms=5, zorder=5)
    many = f"{len(row)} × " if len(row) > 1 else ""
    text = f"{many}{in_words(entry.message)}, {size:,} bytes"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    ax.text(0.12, y - 0.1, text, va="bottom", color=colour, bbox=box)
    ax.text(0.12, y + 0.08, note, va="top", fontsize=_small(), color="#555", bbox=box)


def _small() -> float | str:
    """Return the size of small text, as the style in use has it for the labels of ticks."""
    size: float | str = mpl.rcParams["xtick.labelsize"]
    return size


def _letter() -> float:
    """Return the width of a letter of small text, in inches."""
    return LETTER * FontProperties(size=_small()).get_size_in_points()


def _box() -> dict[str, object]:
    """Return the style of the box around a column's name."""
    return {"facecolor": "white", "edgecolor": "#888", "boxstyle": "round,pad=0.35"}


class Slider(str):
    """HTML with a slider that shows one of several figures, without additional files."""

    def _repr_html_(self) -> str:
        return str(self)


def slider(frames: Mapping[Any, Figure], name: str, start: int = 0, dpi: int = 90) -> Slider:
    """Return a slider that shows one of several figures, in JupyterLab and on a published page.

    Parameters
    ----------
    frames : mapping of value to Figure
        The figures, and the value that the slider shows for each. The figures are closed.
    name : str
        The name of the values.
    start : int, default=0
        The index of the frame shown first.
    dpi : int, default=90
        Resolution of the images.

    Examples
    --------
    >>> from fedlib.figures.plots import slider
    >>> frames = {eps: plt.figure(figsize=(1, 1)) for eps in (0.1, 0.2)}
    >>> print(slider(frames, "eps")[:32])
    <figure class="fedlib-slider" id
    """
    images = []
    for i, (value, figure) in enumerate(frames.items()):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
        plt.close(figure)
        source = base64.b64encode(buffer.getvalue()).decode()
        hidden = "" if i == start else " hidden"
        alt = html.escape(f"{name} = {value}")
        images.append(
            f'<img style="max-width:100%" alt="{alt}" src="data:image/png;base64,{source}"{hidden}>'
        )
    key = "slider-" + hashlib.sha256("".join(images).encode()).hexdigest()[:12]
    values = html.escape("|".join(map(str, frames)))
    first = html.escape(str(list(frames)[start]))
    script = (
        "const f=this.closest('figure'),v=f.dataset.values.split('|');"
        "f.querySelectorAll('img').forEach((m,i)=>{m.hidden=i!=this.value});"
        "f.querySelector('output').textContent=v[this.value];"
        "this.setAttribute('aria-valuetext',v[this.value])"
    )
    return Slider(
        f'<figure class="fedlib-slider" id="{key}" data-values="{values}">'
        f'<label style="display:block">{html.escape(name)} = <output>{first}</output> '
        f'<input type="range" min="0" max="{len(images) - 1}" value="{start}" '
        f'aria-label="{html.escape(name)}" aria-valuetext="{first}" oninput="{script}">'
        f"</label>{''.join(images)}</figure>"
    )


def column_histograms(
    panels: Mapping[str, tuple[ArrayLike, ArrayLike]], n_columns: int = 4, max_categories: int = 12
) -> Figure:
    """Draw one panel per column of a table: a histogram, or the counts of the categories.

    Parameters
    ----------
    panels : mapping of str to (array, array)
        The title of each panel, the counts, and either the edges of the bins, one more than
        counts, or the names of the categories, as many as counts.
    n_columns : int, default=4
        The count of panels side by side.
    max_categories : int, default=12
        The count of the most frequent categories that are drawn.

    Returns
    -------
    Figure
    """
    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure = plt.figure(figsize=(2.6 * n_columns, 2 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (title, (counts, places)) in zip(axes.flat, panels.items(), strict=False):
        counts, places = np.asarray(counts), np.asarray(places)
        ax.set_title(title, fontsize="small")
        ax.tick_params(labelsize="x-small")
        if len(places) == len(counts):
            order = np.argsort(-counts, kind="stable")[:max_categories][::-1]
            ax.barh(range(len(order)), counts[order], color=BLUE)
            ax.set_yticks(range(len(order)), places[order])
        elif counts.any():
            ax.stairs(counts, places, fill=True, color=BLUE)
    return figure
