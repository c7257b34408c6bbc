"""What a notebook shows: figures and tables with captions, badges of data sets and of results.

Each function returns HTML that JupyterLab shows as it is. In the book, `book/_ext/page_pattern.py`
numbers the figures and tables and makes their names targets of ``{numref}`name```.
"""

import html
import inspect
import re
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown
from pandas.io.formats.style import Styler

from study.shared.pictures import PAGE_WIDTH, image

ROOT = Path(__file__).parents[3]

# Some sites of the examples have one class only, on purpose.
warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ clients have rows of one class")
pd.options.display.precision = 4

VISIBLE_ROWS = 12
DECIMAL = re.compile(r"[-+]?[\d,]*\d(\.\d+)?")
NUMBER = re.compile(r"([-+]?[\d,]*\.?\d+(e[-+]?\d+)?%?)?")
FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit and as a decimal point
WRAPPED = {"number": "9rem", "discloses": "10rem", "note": "6rem"}
WRAPPED |= {"counterexample": "6rem", "in short": "14rem"}
# Of verdicts on numbers and on claims in words, for light and dark pages.
SHADES = {"exact": "#2b8f47", "within": "#3f7fd6", "misprint": "#a5691f", "differs": "#d1404c"}
SHADES |= {"holds": "#2b8f47", "holds partly": "#3f7fd6", "refuted": "#d1404c"}
# Colours for a badge in JupyterLab, where the book's style sheet is absent.
BADGES = {"real": ("#1a7f37", "real data"), "generated": ("#0550ae", "generated data")}
BADGES |= {"stand-in": ("#b3202c", "STAND-IN DATA, not comparable")}
# The filter needs JavaScript, so it is hidden until the reader opens the table.
FILTER = (
    '<label hidden>Filter the rows: <input type="search" oninput="const q=this.value.'
    "toLowerCase();this.closest('details').querySelectorAll('tbody tr').forEach(r=>{r.hidden="
    '!r.textContent.toLowerCase().includes(q)})"></label>'
)
SHOW_FILTER = "this.querySelector('label').hidden=false"
stand_ins: set[str] = set()  # the data sets that this page has loaded, with generated rows


class Page(str):
    """HTML, shown by JupyterLab and by the book."""

    plain: str

    def __new__(cls, text, plain):
        page = super().__new__(cls, text)
        page.plain = plain
        return page

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": str(self), "text/plain": self.plain}

    def __repr__(self):
        return self.plain


def figure(caption, *, name, alt, content=None, phone=None, in_short=False):
    """Return a figure with a caption; it is the last expression of its cell.

    A figure wider than the page is made narrower, so that its text keeps its size.

    Parameters
    ----------
    caption : str
        What the figure shows and what to see in it. `` `code` `` and ``*emphasis*`` are possible.
    name : str
        The target of references, such as ``fig-kmeans-children``: unique in the book.
    alt : str
        The text for readers who do not see the figure.
    content : Figure or HTML, optional
        By default the current figure. HTML, such as a slider, has its own texts for images.
    phone : Figure, optional
        The same for a phone. By default a figure of one panel is made as narrow as one.
    in_short : bool, default=False
        Whether the box "In short" at the top of the published page shows this figure, too.

    Raises
    ------
    ValueError
        When the name is not of this form, or a text is empty.

    Examples
    --------
    >>> _ = plt.plot([0, 1])
    >>> figure("A line.", name="fig-line", alt="A line from 0 to 1.")
    Figure: A line.
    """
    check(name, "fig", caption=caption, alt=alt)
    content = plt.gcf() if content is None else content
    if isinstance(content, str):
        body = f'<div class="fedlib-scroll" tabindex="0">{content}</div>'
    else:
        body = f'<div class="fedlib-scroll" tabindex="0">{image(content, alt, phone)}</div>'
    kind = "fedlib-figure fedlib-in-short" if in_short else "fedlib-figure"
    return Page(
        f'<figure class="{kind}" id="{name}">{body}{captioned(caption, name)}</figure>',
        f"Figure: {caption}",
    )


def conversation(ledger, caption, *, name, alt, max_steps=6):
    """Return the sequence diagram of a run as a figure; on a phone, all clients are one column.

    Parameters
    ----------
    ledger : Ledger
    caption, name, alt : str
        As for `figure`.
    max_steps : int, default=6
        If there are more steps, only the first ones and the last one are drawn.
    """
    drawn, phone = (ledger.plot(max_clients=n, max_steps=max_steps).figure for n in (4, 1))
    return figure(caption, name=name, alt=alt, content=drawn, phone=phone)


def source(*objects):
    """Return the source of functions and classes, without their docstrings, as Markdown."""
    texts = []
    for item in objects:
        docstring = rf' *"""{re.escape(item.__doc__)}"""\n+'
        texts.append(re.sub(docstring, "", inspect.getsource(item).rstrip(), count=1))
    return Markdown("```python\n" + "\n\n\n".join(texts) + "\n```")


def check(name, prefix, **texts):
    """Raise ValueError for a name of another form or an empty text."""
    if not re.fullmatch(rf"{prefix}-[a-z0-9-]+", name):
        form = f"{prefix!r}, a hyphen, and small letters, digits and hyphens"
        raise ValueError(f"name must consist of {form}; got {name!r}")
    for parameter, text in texts.items():
        if not text.strip():
            raise ValueError(f"{parameter} of {name} must be a text, got {text!r}")


def captioned(caption, name):
    """Return a caption with the name by which texts refer to it; the book has numbers instead."""
    return f"<figcaption>{inline(caption)} <small>{name}</small></figcaption>"


def inline(text):
    """Return a text with `code` and *emphasis* as HTML.

    Examples
    --------
    >>> inline("`eps` < *1*")
    '<code>eps</code> &lt; <em>1</em>'
    """
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def table(
    frame, formats=None, precision=4, *, caption=None, name=None, best=None, best_in="columns"
):
    """Return a table with aligned numbers and coloured statuses.

    More than 12 rows are folded and get a box that filters them. An index of row numbers is not
    shown.

    Parameters
    ----------
    frame : DataFrame or Styler
        A Styler, such as one from `layouts.as_printed`, keeps its cells and its caption.
    formats : mapping of str to format, or format, optional
        As in pandas' ``Styler.format``.
    precision : int, default=4
        The decimals of other numbers.
    caption, name : str, optional
        As in `figure`; the name starts with ``tab-``. A table without a caption has no number.
    best : {"max", "min"} or mapping of column or row to them, optional
        Which number to mark in each column, or in those of the mapping.
    best_in : {"columns", "rows"}, default="columns"
        Whether the numbers of a column or those of a row compete.

    Raises
    ------
    ValueError
        When the name is not of this form, or an option is unknown.

    Examples
    --------
    >>> scores = pd.DataFrame({"method": ["a", "b"], "ARI": [0.5, 0.75]})
    >>> print(table(scores, caption="Scores.", name="tab-scores", best="max")[:43])
    <figure class="fedlib-table" id="tab-scores
    """
    styler = frame if isinstance(frame, Styler) else styled(frame, formats, precision)
    if best is not None:
        mark_best(styler, best, best_in, precision)
        caption = caption and f"{caption} Bold: the best of each {best_in.removesuffix('s')}."
    parts = [caption, styler.caption]
    styler.caption = None
    body = folded(styler)
    if caption is None and name is None:
        above = f"<p>{inline(parts[1])}</p>" if parts[1] else ""
        return Page(f'<div class="fedlib-table">{above}{body}</div>', styler.data.to_string())
    check(name or "", "tab", caption=caption or "")  # the caption itself, without a Styler's
    return numbered_table(body, styler.data.to_string(), " ".join(filter(None, parts)), name)


def numbered_table(body, text, caption, name):
    """Return HTML with tables as one numbered table of the page.

    Parameters
    ----------
    body : str
        The tables, in HTML.
    text : str
        The same without HTML.
    caption, name : str
        As of `table`.
    """
    check(name, "tab", caption=caption)
    return Page(
        f'<figure class="fedlib-table" id="{name}">{captioned(caption, name)}{body}</figure>',
        f"Table: {caption}\n{text}",
    )


def styled(frame, formats=None, precision=4):
    """Return a frame as a Styler with aligned numbers and marked statuses; see `table`."""
    writers = [
        writer(formats.get(column) if isinstance(formats, dict) else formats, precision)
        for column in frame.columns
    ]
    texts = [
        [write(value) for value in frame.iloc[:, i] if pd.notna(value)]
        for i, write in enumerate(writers)
    ]
    aligned = [align(write, column) for write, column in zip(writers, texts, strict=True)]
    styler = frame.style.format(dict(zip(frame.columns, aligned, strict=True)), na_rep="")
    styler.set_table_attributes('class="dataframe"')
    if frame.index.name is None and pd.api.types.is_integer_dtype(frame.index.dtype):
        styler.hide(axis="index")
    if "status" in frame:
        styler.map(shade, subset=["status"])
    for column in frame.columns.intersection(list(WRAPPED)):
        wrap = {"white-space": "normal", "min-width": WRAPPED[column]}
        styler.set_properties(subset=[column], **wrap)
    classes = ["fedlib-number" if all(map(NUMBER.fullmatch, column)) else "" for column in texts]
    if len(frame) and frame.index.is_unique and frame.columns.is_unique:
        styler.set_td_classes(pd.DataFrame([classes] * len(frame), frame.index, frame.columns))
    return styler


def writer(form, precision):
    """Return the function that writes a value of a column."""
    if callable(form):
        return form
    if form is not None:
        return form.format

    def write(value):
        if pd.api.types.is_float(value):
            return f"{value:.{precision}f}"
        if pd.api.types.is_integer(value) and not isinstance(value, bool | np.bool_):
            return f"{value:,}"
        return str(value)

    return write


def align(write, texts):
    """Return a function that also fills up missing decimals with spaces of the same width.

    Examples
    --------
    >>> align(str, ["1.25", "3"])(3) == "3" + POINT_SPACE + 2 * FIGURE_SPACE
    True
    """
    if not all(map(DECIMAL.fullmatch, texts)):
        return write
    most = max((len(text.partition(".")[2]) for text in texts), default=0)

    def padded(value):
        text = write(value)
        _, point, decimals = text.partition(".")
        missing = FIGURE_SPACE * (most - len(decimals))
        return text + ("" if point or not most else POINT_SPACE) + missing

    return padded


def shade(status):
    """Return the style of a status: a bar at the cell's edge, which repeats what the word says."""
    return f"font-weight: bold; box-shadow: inset 0.25rem 0 {SHADES.get(status, '#888888')}"


def mark_best(styler, best, best_in, precision):
    """Make the best numbers of each column or row bold."""
    if best_in not in ("columns", "rows"):
        raise ValueError(f"best_in must be 'columns' or 'rows', got {best_in!r}")
    wanted = set(best.values()) if isinstance(best, dict) else {best}
    if not wanted <= {"max", "min"}:
        raise ValueError(f"best must be 'max', 'min' or a mapping to them, got {best!r}")
    lines = styler.data.apply(pd.to_numeric, errors="coerce").round(precision)
    lines = lines if best_in == "columns" else lines.T
    styles = pd.DataFrame("", lines.index, lines.columns)
    for line in lines:
        how = best.get(line) if isinstance(best, dict) else best
        if how and lines[line].notna().any():
            styles.loc[lines[line] == getattr(lines[line], how)(), line] = "font-weight: bold"
    styler.apply(lambda _: styles if best_in == "columns" else styles.T, axis=None)


def folded(styler):
    """Return a table in a box that scrolls, folded if it has many rows."""
    n_rows = len(styler.data)
    if stand_ins and not n_rows:
        return "<p>There is nothing to compare: generated data replace those of the source.</p>"
    is_long = n_rows > VISIBLE_ROWS
    # The filter hides rows, so a label of the index must not span several of them.
    rows = break_names(styler.to_html(sparse_index=False) if is_long else styler.to_html())
    rows = merge_headers(rows)
    for column in set(re.findall(r"(col\d+) fedlib-number", rows)):
        rows = rows.replace(f'level0 {column}"', f'level0 {column} fedlib-number"')
    rows = f'<div class="fedlib-scroll" tabindex="0">{rows}</div>'
    if not is_long:
        return rows
    return (
        f'<details class="fedlib-fold" ontoggle="{SHOW_FILTER}">'
        f"<summary>Show the {n_rows:,} rows</summary>{FILTER}{rows}</details>"
    )


def merge_headers(rows):
    """Write the names of a table's index levels into the row with those of its columns.

    pandas writes them into a row of their own, which is empty otherwise. A table with several
    levels of columns keeps it.
    """
    header = re.search(r"(<thead>\s*<tr>.*?</tr>)\s*<tr>(.*?)</tr>\s*</thead>", rows, re.DOTALL)
    if header is None or "<tr>" in header[2] or "index_name" not in header[2]:
        return rows
    names = iter(re.findall(r'<th class="index_name level\d+" >(.*?)</th>', header[2]))
    columns = re.sub(
        r'<th class="(?:blank|index_name)(?: level\d+)?" >.*?</th>',
        lambda cell: f'<th class="index_name" >{next(names)}</th>',
        header[1],
    )
    return rows.replace(header[0], f"{columns}\n  </thead>")


def break_names(rows):
    """Allow the lines of a table's cells to break within long names, such as ``min_count``.

    Examples
    --------
    >>> break_names('<td id="a_b">n_clients</td><td>CellCounts</td>')
    '<td id="a_b">n_<wbr>clients</td><td>Cell<wbr>Counts</td>'
    """
    return re.sub(
        r"(<(?:td|th|a)\b[^>]*>)([^<]*)",
        lambda text: text[1] + re.sub(r"(?<=_)|(?<=[a-z])(?=[A-Z])", "<wbr>", text[2]),
        rows,
    )


def badge(data):
    """Return a badge with the size, the origin and, on hover, the checksum of a data set."""
    colour, origin = BADGES[data.source]
    if data.source == "real" and data.sha256 is None:
        origin = "from scikit-learn"
    size = f"{data.X.shape[0]:,} rows × {data.X.shape[1]} features"
    checksum = f"sha256 {data.sha256}" if data.sha256 else "no file, so no checksum"
    filled = f"background:{colour};color:white;" if data.source == "stand-in" else ""
    return Page(
        f'<span class="fedlib-data fedlib-{data.source}" title="{checksum}" style="{filled}'
        f'display:inline-block;border:1px solid {colour};border-radius:4px;padding:0 .5em">'
        f"<strong>{html.escape(data.name)}</strong> {size} · {origin}</span>",
        f"{data.name}: {size}, {origin}; {checksum}",
    )


def result_badge(name, size, versions=None):
    """Return a badge of a result file that a page shows.

    Parameters
    ----------
    name : str
        Of the file.
    size : str
        What was measured, such as ``"50 splits"``; it may be empty.
    versions : str, optional
        The versions that produced it, shown on hover, if it was kept from the last complete run.
        By default the page has measured it itself.
    """
    origin = "measured by this page" if versions is None else "kept from the last complete run"
    colour = "#1a7f37" if versions is None else "#0550ae"
    text = " · ".join(filter(None, [size, origin]))
    return Page(
        f'<span class="fedlib-data" title="{html.escape(versions or "")}" style="'
        f'display:inline-block;border:1px solid {colour};border-radius:4px;padding:0 .5em">'
        f"<strong>{html.escape(name)}</strong> {html.escape(text)}</span>",
        f"{name}: {text}" + (f" ({versions})" if versions else ""),
    )


def scores_table(columns):
    """Return a mapping of titles to dicts of scores as a table with four digits."""
    return pd.DataFrame(columns).map("{:.4f}".format)


def panels(n, width=4.0, height=3.6, **options):
    """Return a figure and a flat array of ``n`` axes in a row, not wider than the page.

    Parameters
    ----------
    n : int
    width, height : float
        Of one panel, in inches. Panels that are together wider than the page get smaller.
    **options
        Arguments of ``plt.subplots``.
    """
    scale = min(1.0, PAGE_WIDTH / (width * n))
    size = (scale * width * n, scale * height)
    figure, axes = plt.subplots(1, n, figsize=size, layout="constrained", **options)
    return figure, np.atleast_1d(axes)
