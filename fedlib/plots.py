"""Pictures for the book: points and their clusters, cells of a grid, the conversation of a run."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedlib.ledger import SERVER, Entry, Ledger

__all__ = ["Slider", "cells", "colours", "scatter", "sequence_diagram", "slider"]

NOISE = "#8c8c8c"
NO_CLUSTER = "#dcdcdc"
FAILURE = "#b3202c"
MARKERS = "osD^v"
LETTERS = 26  # of small print between two columns of a sequence diagram
LINE = 0.22  # the height of one more line of it, where a row has 1


def colours(labels: ArrayLike) -> np.ndarray:
    """Return an RGBA colour for each label: ten that colour-blind readers can tell, then again.

    Parameters
    ----------
    labels : array (n,) of int
        -1, noise, is grey.

    Examples
    --------
    >>> from fedlib.plots import colours
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
    """Draw points (n, 2) in the colours of their clusters, noise as small grey crosses.

    Clusters beyond the tenth repeat the colours with another marker. With labels, the title ends
    with the number of clusters and of noise points. Returns the axes.

    Examples
    --------
    >>> from fedlib.plots import scatter
    >>> scatter([[0, 0], [1, 1], [5, 5]], [0, 0, -1], title="toy").get_title()
    'toy: 1 cluster, 1 noise point'
    """
    ax = ax or plt.gca()
    points = np.asarray(points, float)
    labels = np.zeros(len(points), int) if labels is None else np.asarray(labels)
    noise = labels < 0
    x, y = points.T
    ax.scatter(x[noise], y[noise], s=size, c=NOISE, marker="x", linewidths=0.7)
    for turn in range(labels.max(initial=-1) // 10 + 1):
        now = ~noise & (labels // 10 == turn)
        marker = MARKERS[turn % len(MARKERS)]
        ax.scatter(x[now], y[now], s=size, c=colours(labels[now]), marker=marker, linewidths=0)
    if title is not None:
        found = len(np.unique(labels[~noise]))
        counted = f": {_number(found, 'cluster')}, {_number(noise.sum(), 'noise point')}"
        ax.set_title(title + (counted if noise.any() or found > 1 else ""))
    ax.set_aspect("equal")
    return ax


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


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
    """Draw cells (n, 2) of a grid, coloured by cluster or shaded by count. Returns the axes.

    Parameters
    ----------
    cells : array (n, 2) of int
        Their coordinates; cell (i, j) covers [i, i+1) × [j, j+1) times ``cell_size``.
    cell_size : float
    labels : array (n,) of int, optional
        Clusters; -1 is drawn in light grey.
    counts : array (n,) of int, optional
        Used as shades of blue where no labels are given.
    numbers : bool, default=False
        Write each cell's count into it.
    ax : Axes, optional
    **style
        Passed on to matplotlib's PolyCollection.

    Examples
    --------
    >>> from fedlib.plots import cells
    >>> len(cells([[0, 0], [3, 1]], 0.5, labels=[0, -1]).collections[-1].get_paths())
    2
    """
    ax = ax or plt.gca()
    corners = np.asarray(cells, float).reshape(-1, 1, 2)
    squares = (corners + np.array([[0, 0], [1, 0], [1, 1], [0, 1]])) * cell_size
    if labels is not None:
        none = np.asarray(labels)[:, np.newaxis] < 0
        faces = np.where(none, mpl.colors.to_rgba(NO_CLUSTER), colours(labels))
        style.setdefault("facecolors", faces)
    elif counts is not None:
        style.update(array=np.asarray(counts), cmap="Blues", norm=mpl.colors.PowerNorm(0.5, 0))
    style.setdefault("edgecolors", "white")
    style.setdefault("linewidths", 0.4)
    ax.add_collection(PolyCollection(list(squares), **style))
    if numbers and counts is not None:
        counts = np.asarray(counts)
        strong = counts > counts.max() / 3
        for (x, y), count, dark in zip(squares.mean(axis=1), counts, strong, strict=True):
            colour = "white" if dark and labels is None else "black"
            ax.text(x, y, str(count), ha="center", va="center", color=colour, fontsize="x-small")
    ax.autoscale_view()
    ax.set_aspect("equal")
    return ax


def sequence_diagram(
    ledger: Ledger, *, ax: Axes | None = None, max_clients: int = 4, max_steps: int = 6
) -> Axes:
    """Draw a ledger's conversation; time runs downwards. Returns the axes.

    A row is one kind of message in one step: an arrow from the server to its receivers or from its
    senders to the server, with the message's name, how many there were, their bytes, and below it
    what they disclose. Failures are red. Of many clients the first are drawn, with one column for
    the rest; of many steps the first and the last.
    """
    names = list(dict.fromkeys(e.receiver for e in ledger if e.sender == SERVER))
    shown = names if len(names) <= max_clients else names[: max_clients - 1]
    column = {name: i + 1 for i, name in enumerate(shown)}
    rest = len(shown) + 1
    rows = _rows(ledger, max_steps)
    heads = {0: SERVER} | {i: f"client {name}" for name, i in column.items()}
    if len(names) > len(shown):
        heads[rest] = f"{len(names) - len(shown)} more clients"
    width = LETTERS * max(2, *heads)
    notes = [textwrap.wrap(row[0].discloses, width) if row else [] for row in rows]
    heights = [1 + LINE * max(len(note) - 1, 0) for note in notes]
    if ax is None:
        size = (1.5 * (len(shown) + 2) + 1.5, 0.62 * sum(heights) + 0.8)
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    for i, head in heads.items():
        ax.axvline(i, color="#c8c8c8", lw=1, zorder=0)
        ax.text(i, 0, head, ha="center", va="center", weight="bold", bbox=_box())
    for y, row, note in zip(1 + np.cumsum([0, *heights]), rows, notes, strict=False):
        if not row:
            text = f"… {_number(_steps(ledger) - max_steps, 'step')} left out …"
            ax.text(max(heads) / 2, y, text, ha="center", va="center", bbox=_box())
            continue
        ends = [e.receiver if e.sender == SERVER else e.sender for e in row]
        _arrow(ax, y, row, sorted({column.get(name, rest) for name in ends}), "\n".join(note))
    ax.set_xlim(-0.5, max(heads) + 0.5)
    ax.set_ylim(sum(heights) + 0.7, -0.5)
    ax.axis("off")
    return ax


def _steps(ledger: Ledger) -> int:
    return max((e.step for e in ledger), default=0)


def _rows(ledger: Ledger, max_steps: int) -> list[list[Entry]]:
    """Group the entries shown by step, direction and message; an empty row marks what is left out.

    The sort is stable, so that within a step requests come first and then replies.
    """
    last = _steps(ledger)
    left_out = range(max_steps, last) if last > max_steps else range(0)

    def kind(e: Entry) -> tuple[int, bool, str]:
        return e.step, e.sender != SERVER, e.message

    entries = sorted((e for e in ledger if e.step not in left_out), key=kind)
    rows = [list(group) for _, group in groupby(entries, key=kind)]
    if left_out:
        rows.insert(next(i for i, row in enumerate(rows) if row[0].step == last), [])
    return rows


def _arrow(ax: Axes, y: float, row: Sequence[Entry], ends: list[int], note: str) -> None:
    """Draw one row between the server's column and the columns of the clients in it."""
    entry, size = row[0], sum(e.bytes for e in row)
    colour = FAILURE if entry.message == "Failure" else "#204a87"
    ax.plot([0, ends[-1]], [y, y], color=colour, lw=1.2)
    heads, marker = (ends, ">") if entry.sender == SERVER else ([0], "<")
    ax.plot(heads, [y] * len(heads), ls="", marker=marker, color=colour, ms=7, zorder=5)
    if entry.sender != SERVER:
        ax.plot(ends, [y] * len(ends), ls="", marker="o", color=colour, ms=4)
    many = f"{len(row)} × " if len(row) > 1 else ""
    text = f"{many}{entry.message}, {size:,} bytes"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    ax.text(0.12, y - 0.1, text, va="bottom", color=colour, bbox=box)
    ax.text(0.12, y + 0.08, note, va="top", fontsize="x-small", color="#555", bbox=box)


def _box() -> dict[str, object]:
    return {"facecolor": "white", "edgecolor": "#888", "boxstyle": "round,pad=0.35"}


class Slider(str):
    """Frames of a figure behind a slider, as HTML that needs nothing else."""

    def _repr_html_(self) -> str:
        return str(self)


def slider(frames: Mapping[Any, Figure], name: str, start: int = 0, dpi: int = 90) -> Slider:
    """Put figures behind a slider that works in JupyterLab and in the published page alike.

    Parameters
    ----------
    frames : mapping of value to Figure
        The figures by the value that the slider shows for each. They are closed.
    name : str
        What the values are.
    start : int, default=0
        The frame shown first.
    dpi : int, default=90

    Examples
    --------
    >>> from fedlib.plots import slider
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
        f'aria-valuetext="{first}" oninput="{script}">'
        f"</label>{''.join(images)}</figure>"
    )
