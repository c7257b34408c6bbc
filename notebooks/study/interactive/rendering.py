"""The HTML of a figure that computes in the page; see `study.interactive.interactive`."""

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SCRIPT = Path(__file__).with_name("interactive.js")
TABLE_SCRIPT = SCRIPT.with_name("own_table.js")
# How a reader gives a table of their own.
TABLE_CONTROLS = """<div class="table"><label for="own-table-file">A CSV file of yours (or drop it
here): it stays in this page, nothing is sent</label><input type="file" id="own-table-file"
accept=".csv,.tsv,.txt"></div><div class="columns"><label>First column <select disabled>
<option>of the file</option></select></label> <label>Second column <select disabled>
<option>of the file</option></select></label></div>"""
PAD = 0.06  # the margin of a picture, as a share of its width
STYLE = """
.fedlib-interactive { margin: 1rem 0; color: inherit; }
.fedlib-interactive .controls:not([hidden]) { display: grid; gap: 0.3rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.fedlib-interactive .controls label { display: block; }
.fedlib-interactive .controls output { font-weight: bold; }
.fedlib-interactive input { display: block; width: 100%; margin: 0; accent-color: #3f90da; }
.fedlib-interactive [type="file"] { font: inherit; color: inherit; }
.fedlib-interactive :is(.table, .columns) { min-width: 0; }
.fedlib-interactive select { display: block; width: 100%; font: inherit; color: inherit;
  background: transparent; border: 1px solid #8888; border-radius: 4px; }
.fedlib-interactive option { color: #000; background: #fff; }
.fedlib-interactive .status { margin: 0.3rem 0; min-height: 1.6em; }
.fedlib-interactive .panels { display: grid; gap: 1rem; margin-top: 0.5rem; align-items: end;
  grid-template-columns: repeat(auto-fit, minmax(min(16rem, 100%), 1fr)); }
.fedlib-interactive .panel > span { display: block; font-weight: bold; }
.fedlib-interactive svg { display: block; width: 100%; height: auto; border: 1px solid #8888; }
.fedlib-interactive .summary { margin: 0.5rem 0; min-height: 3.2em; }
.fedlib-interactive svg * { vector-effect: non-scaling-stroke; }
.fedlib-interactive .noise { fill: none; stroke: #8c8c8c; stroke-width: 1; }
.fedlib-interactive .square.noise { fill: #8c8c8c; stroke: none; }
.fedlib-interactive .points .ringed { stroke: currentColor; stroke-width: 1.2; }
.fedlib-interactive :is(.line, .cross) { fill: none; stroke-width: 2; }
.fedlib-interactive .cross { stroke-width: 5; }
@media print { .fedlib-interactive input { display: none !important; } }
"""
# The colours of fedlib.figures.plots, as rules for areas and for lines.
COLOURS = ["#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"]
COLOURS += ["#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"]


class Slider(NamedTuple):
    """A setting: its name, the text of its label, its values and the index of the first one."""

    name: str
    label: str
    values: list
    start: int


class State(NamedTuple):
    """The result for some settings.

    Attributes
    ----------
    labels : list of int
        The cluster or class of each point, -1 for noise.
    ringed : list of int
        The numbers of the points to draw with a ring.
    shapes : list of dict
        What the right panel shows, in the units of the data.
    summary : str
    """

    labels: list[int]
    ringed: list[int]
    shapes: list[dict[str, Any]]
    summary: str


@dataclass(frozen=True)
class Example:
    """What a figure shows.

    Attributes
    ----------
    method : str
        The name of the computation in `interactive.js`.
    title : str
        The name of the figure.
    left, right : str
        The titles of the panels.
    sliders : list of Slider
    data : dict
        What the computation needs, ready for JSON. ``"points"`` are always among it.
    compute : callable
        The same computation with fedlib: a function from settings to `State`.
    reads_tables : bool, default=False
        Whether the reader can replace the points by two columns of a file.
    """

    method: str
    title: str
    left: str
    right: str
    sliders: list[Slider]
    data: dict[str, Any]
    compute: Callable[[dict[str, Any]], State]
    reads_tables: bool = False

    @property
    def first(self):
        """The settings that the figure starts with."""
        return {slider.name: slider.values[slider.start] for slider in self.sliders}


class Page(str):
    """HTML that a notebook shows."""

    def _repr_html_(self):
        return str(self)

    def __repr__(self):
        return "an interactive figure; see it in JupyterLab or in the published page"


def render(example):
    """Return the HTML of a figure with the picture for its first settings."""
    state = example.compute(example.first)
    points = np.array(example.data["points"])
    box, unit = frame(points)
    ringed = set(state.ringed)
    dots = "".join(
        f'<circle class="{colour(label)}{" ringed" if row in ringed else ""}"'
        f' cx="{x:g}" cy="{-y:g}" r="{0.85 * unit:.4g}"/>'
        for row, ((x, y), label) in enumerate(zip(points, state.labels, strict=True))
    )
    shapes = "".join(element(shape, unit) for shape in state.shapes)
    controls = "".join(control(example.method, slider) for slider in example.sliders)
    scripts, status = [SCRIPT], ""
    if example.reads_tables:
        controls = TABLE_CONTROLS + controls
        status = '<p class="status" role="status"></p>'
        scripts.append(TABLE_SCRIPT)
    code = "".join(f"<script>{script.read_text(encoding='utf-8')}</script>" for script in scripts)
    content = {"method": example.method, "data": example.data, "unit": unit}
    text = json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<figure class="fedlib-interactive" aria-label="{html.escape(example.title)}">'
        f"<style>{STYLE}{colour_rules()}</style>"
        f'<div class="controls" hidden>{controls}</div>{status}'
        '<div class="panels">'
        f"{panel(example.left, 'points', box, dots)}{panel(example.right, 'shapes', box, shapes)}"
        f'</div><p class="summary" aria-live="polite">{html.escape(state.summary)}</p>'
        f"<noscript><p>{html.escape(without_script(example))}</p></noscript>"
        f'<script type="application/json">{text}</script>{code}</figure>'
    )


def without_script(example):
    """Return the sentence for a reader without JavaScript."""
    settings = ", ".join(f"{name} = {value}" for name, value in example.first.items())
    return f"The sliders need JavaScript. The picture shows {settings}."


def control(method, slider):
    """Return the HTML of one slider with its label."""
    first, values = slider.values[slider.start], json.dumps(slider.values)
    # Without `for`, the label would belong to the output.
    key = f"{method}-{slider.name}"
    return (
        f'<div><label for="{key}">{html.escape(slider.label)}: <output>{first}</output></label>'
        f'<input type="range" id="{key}" name="{slider.name}" min="0"'
        f' max="{len(slider.values) - 1}" value="{slider.start}" data-values="{values}"'
        f' aria-valuetext="{first}"></div>'
    )


def panel(title, name, box, content):
    """Return the HTML of one picture below its title."""
    title = html.escape(title)
    return (
        f'<div class="panel"><span>{title}</span>'
        f'<svg viewBox="{box}" role="img" aria-label="{title}"><g class="{name}">{content}</g>'
        "</svg></div>"
    )


def frame(points):
    """Return the view box around points, y upwards, and the length of a hundredth of its width."""
    low, high = points.min(axis=0), points.max(axis=0)
    pad = PAD * (high[0] - low[0])
    width, height = high - low + 2 * pad
    box = f"{low[0] - pad:.4g} {-high[1] - pad:.4g} {width:.4g} {height:.4g}"
    return box, round(width / 100, 5)


def colour(label):
    """Return the CSS class of a cluster."""
    return "noise" if label < 0 else f"k{label % 10}"


def colour_rules():
    """Return the CSS rules of the clusters' colours."""
    areas = (f".fedlib-interactive .k{i} {{ fill: {c}; }}" for i, c in enumerate(COLOURS))
    lines = (
        f".fedlib-interactive :is(.line, .cross).k{i} {{ fill: none; stroke: {c}; }}"
        for i, c in enumerate(COLOURS)
    )
    return "\n".join([*areas, *lines])


def element(shape, unit):
    """Return the SVG element of a shape."""
    x, y = shape["x"], -shape["y"]
    size = shape.get("size", 0)
    attributes = {
        "square": f'rect x="{x:.5g}" y="{y - size:.5g}" width="{size:.5g}" height="{size:.5g}"',
        "disc": f'circle cx="{x:.5g}" cy="{y:.5g}" r="{size * unit:.4g}"',
        "line": f'path d="M{x:.5g} {y:.5g}L{shape.get("x2", 0):.5g} {-shape.get("y2", 0):.5g}"',
        "cross": f'path d="M{x - size * unit:.5g} {y:.5g}h{2 * size * unit:.4g}'
        f'M{x:.5g} {y - size * unit:.5g}v{2 * size * unit:.4g}"',
    }[shape["kind"]]
    opacity = f' opacity="{shape["opacity"]:.3g}"' if "opacity" in shape else ""
    return f'<{attributes} class="{shape["kind"]} {shape["class"]}"{opacity}/>'
