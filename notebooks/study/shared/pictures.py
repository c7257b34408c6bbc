"""Figures as images of a page, which also fit a phone."""

import base64
import html
import io
import re
import struct
import textwrap
import warnings
from bisect import bisect
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.category import StrCategoryLocator
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, MaxNLocator
from PIL import Image

from fedlib.core.messages import registry

PAGE_WIDTH = 7.0  # of the text in a window of 1,280 pixels, in inches at 96 pixels per inch
PIXELS = 96  # of a page per inch
RESOLUTION = 160  # of a figure, in its pixels per inch
PHONE_WIDTH = 3.7  # of the text on a phone, in inches
NARROW = 1.0  # inches: a column of panels is wider
WHITE = 250  # of 255: what is lighter in all colours is not drawn
CLOSE = 0.02  # inches: a legend may reach so far into the panels
CLASS_NAME = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]*)+\b")
LETTERS = 26  # of a line of a long name on a phone
GAP = 28  # pixels of a figure: between the entries of a legend, and more than between words


def image(drawn, alt, phone=None):
    """Return a figure as HTML, and close the figure, and that for a phone if there is one.

    Panels side by side are images of their own, which stand below each other on a phone, and so
    are the entries of a legend above or below all of them. A panel that shares the vertical axis
    of the first one shows its numbers on a phone, too. A wide figure of one panel is drawn again
    for a phone, so that its text keeps its size, unless its labels leave no room for the panel.

    Raises
    ------
    ValueError
        When a text of the figure contains the class name of a message.
    """
    width, height = drawn.get_size_inches()
    if width > PAGE_WIDTH:
        drawn.set_size_inches(PAGE_WIDTH, height * PAGE_WIDTH / width)
        width, height = drawn.get_size_inches()
    data = png(drawn)
    refuse_class_names(drawn)
    columns, rows, origin = layout(drawn)
    above, panels, below = cut(data, columns, rows)
    if panels:
        narrow = with_numbers(panels, *numbers(drawn, columns, origin))
        body = row(above, "justify-content:center") + row(panels, "", alt, narrow)
        body += row(below, "justify-content:center")
    else:
        body = tag(data, alt)
        narrow = None
        if phone is not None:
            narrow = png(phone)
            plt.close(phone)
        elif width > PHONE_WIDTH and len(columns) == 1:
            narrow = png_for_phone(drawn)
        body = for_phones(body, narrow)
    plt.close(drawn)
    return body


def refuse_class_names(drawn):
    """Raise ValueError if a text of a figure contains the class name of a message.

    A name of one word, such as ``Done``, can be an ordinary word.
    """
    for text in drawn.findobj(Text):
        names = registry.keys() & CLASS_NAME.findall(text.get_text())
        if text.get_visible() and names:
            plt.close(drawn)
            raise ValueError(
                f"a figure must name messages in words, got {min(names)} in {text.get_text()!r}: "
                "use fedlib.figures.plots.in_words"
            )


def for_phones(image, narrow):
    """Return an element ``img`` for which a phone shows another PNG, if there is one."""
    if narrow is None:
        return image
    width, height = size_of(narrow)
    size = f'width="{width}" height="{height}"'
    source = f'<source srcset="{address(narrow)}" media="(max-width: 40rem)" {size}>'
    return f'<picture style="display:contents">{source}{image}</picture>'


def row(pictures, style, alt="", narrow=None):
    """Return PNGs side by side, which stand below each other if they have no room.

    Those in ``narrow`` take their places on a phone, where it has one.
    """
    if not pictures:
        return ""
    total = sum(size_of(picture)[0] for picture in pictures)
    shares = [99.9 * size_of(picture)[0] / total for picture in pictures]  # of a narrow row
    styles = [f"max-width:{share:.2f}%;height:auto" for share in shares]
    images = map(tag, pictures, [alt] + [""] * (len(pictures) - 1), styles)
    images = "".join(map(for_phones, images, narrow or [None] * len(pictures)))
    style = ";".join(filter(None, ["display:flex;flex-wrap:wrap", style]))
    return f'<span class="fedlib-panels" style="{style}">{images}</span>'


def layout(drawn):
    """Return the ends of the columns of panels, the top and bottom of all, and the left end of all.

    The left and right ends of the columns, and the top and the bottom, are in pixels of the saved
    figure, the left end of all in inches (`pixels`). A narrow column, such as a colour bar, belongs
    to the one on its left. The top and the bottom are None if a part of the figure itself, such as
    a legend for all panels, is neither above nor below nor on the left of all panels.
    """
    outer, pad = drawn.get_tightbbox(), plt.rcParams["savefig.pad_inches"]
    boxes = [axes.get_tightbbox().get_points() / drawn.dpi for axes in drawn.axes]
    columns = []
    for left, right in sorted(tuple(box[:, 0]) for box in boxes):
        is_narrow = right - left < NARROW
        if columns and (is_narrow or left < columns[-1][1]):
            columns[-1][1] = max(columns[-1][1], right)
        else:
            columns.append([left, right])
    columns = [[pixels(x, outer.x0) for x in column] for column in columns]
    total = round((outer.y1 - outer.y0 + 2 * pad) * RESOLUTION)
    if not boxes:
        return columns, (0, total), outer.x0
    (left, bottom), (_, top) = np.min(boxes, axis=(0, 1)), np.max(boxes, axis=(0, 1))
    others = [
        one.get_window_extent().get_points() / drawn.dpi
        for one in [*drawn.legends, *drawn.texts]
        if one.get_visible()
    ]
    above = [low for (_, low), _ in others if low > top - CLOSE]
    below = [high for _, (_, high) in others if high < bottom + CLOSE]
    beside = [right for _, (right, _) in others if right < left + CLOSE]
    if len(above) + len(below) + len(beside) < len(others):
        return columns, None, outer.x0
    ends = [(min(above) + top) / 2] if above else [outer.y1 + pad]
    ends += [(max(below) + bottom) / 2] if below else [outer.y0 - pad]
    return columns, tuple(round((outer.y1 + pad - end) * RESOLUTION) for end in ends), outer.x0


def pixels(x, origin):
    """Return the pixel of a saved figure at ``x`` inches, if the figure begins at ``origin``."""
    return round((x - origin + plt.rcParams["savefig.pad_inches"]) * RESOLUTION)


def cut(data, columns, rows):
    """Return what is above the panels of a PNG, the panels, and what is below, each as PNGs.

    There are no panels if they cannot be separated by a vertical line where nothing is drawn; see
    `layout`. What is above or below is divided where it has wide gaps, as between the entries of
    a legend.
    """
    if rows is None:
        return [], [], []
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    top, bottom = np.clip(rows, 0, picture.height)
    drawn = inked(picture, top, bottom)
    cuts = [0]
    for (_, right), (left, _) in pairwise(columns):
        empty = [x for x in range(max(right, 0), left) if not drawn[x]]
        if empty:
            cuts.append(empty[len(empty) // 2])
    if len(cuts) == 1:
        return [], [], []
    ends = pairwise([*cuts, picture.width])
    panels = [crop(picture, (left, top, right, bottom)) for left, right in ends]
    return entries(picture, 0, top), panels, entries(picture, bottom, picture.height)


def numbers(drawn, columns, origin):
    """Return where the numbers on the left of the first column end, and which others share them.

    Parameters
    ----------
    drawn : Figure
    columns, origin
        As `layout` returns them.

    Returns
    -------
    end : int
        In pixels of the saved figure; 0 if it has no numbers.
    sharing : list of bool
        Whether each column has the same numbers as the first one and does not show them.
    """
    places = [[] for _ in columns]
    lefts = [left for left, _ in columns]
    for axes in drawn.axes:
        left = pixels(axes.get_window_extent().x0 / drawn.dpi, origin)
        places[bisect(lefts, left) - 1].append(axes)
    shared = drawn.axes[0].get_shared_y_axes()
    sharing = [
        any(
            shared.joined(one, first) and not one.yaxis.get_tick_params().get("labelleft", True)
            for one in there
            for first in places[0]
        )
        for there in places
    ]
    ends = [
        pixels(text.get_window_extent().x1 / drawn.dpi, origin)
        for axes in places[0]
        if axes.axison and axes.yaxis.get_visible()
        for text in axes.get_yticklabels()
        if text.get_text() and text.get_visible()
    ]
    return max(ends, default=0), sharing


def with_numbers(panels, end, sharing):
    """Return each panel that needs it with the numbers of the first on its left, others as None.

    Parameters
    ----------
    panels : list of bytes
        As PNG.
    end, sharing
        As `numbers` returns them.
    """
    if end <= 0 or len(sharing) != len(panels):  # no numbers, or columns that are not separated
        return None
    first = Image.open(io.BytesIO(panels[0]))
    left = first.crop((0, 0, end, first.height))
    needed = zip(panels, sharing, strict=True)
    return [joined(left, panel) if shares else None for panel, shares in needed]


def joined(left, panel):
    """Return a picture and a PNG of the same height side by side, as PNG."""
    right = Image.open(io.BytesIO(panel))
    both = Image.new("RGB", (left.width + right.width, right.height))
    both.paste(left, (0, 0))
    both.paste(right, (left.width, 0))
    return crop(both, (0, 0, *both.size))


def inked(picture, top, bottom):
    """Return for each column of pixels whether something is drawn between two rows."""
    return (np.asarray(picture)[top:bottom] < WHITE).any(axis=(0, 2))


def entries(picture, top, bottom):
    """Return what is drawn between two rows of a picture, divided at wide gaps, as PNGs."""
    drawn = np.flatnonzero(inked(picture, top, bottom))
    if not len(drawn):
        return []
    parts = np.split(drawn, np.flatnonzero(np.diff(drawn) > GAP) + 1)
    ends = [np.clip([part[0] - GAP // 2, part[-1] + GAP // 2], 0, picture.width) for part in parts]
    return [crop(picture, (left, top, right, bottom)) for left, right in ends]


def crop(picture, box):
    """Return a part of a picture as PNG."""
    buffer = io.BytesIO()
    picture.crop(box).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def png(drawn):
    """Return the bytes of a figure as PNG, with fewer ticks where labels would overlap.

    `savefig` alone would arrange the figure again and draw it once more to learn its size, which
    takes twice as long.
    """
    drawn.set_dpi(RESOLUTION)
    drawn.draw_without_rendering()
    crowded = [
        axes.xaxis
        for axes in drawn.axes
        if isinstance(axes.xaxis.get_major_locator(), MaxNLocator) and collides(axes.xaxis)
    ]
    for axis in crowded:
        for most in (4, 3, 2, 1):
            if collides(axis):
                axis.set_major_locator(MaxNLocator(most))
    if crowded:
        drawn.draw_without_rendering()
    engine, buffer = drawn.get_layout_engine(), io.BytesIO()
    drawn.set_layout_engine("none")
    drawn.savefig(
        buffer,
        format="png",
        dpi=RESOLUTION,
        bbox_inches=drawn.get_tightbbox().padded(plt.rcParams["savefig.pad_inches"]),
        metadata={"Software": None},
        pil_kwargs={"compress_level": 1},  # pages have other formats
    )
    drawn.set_layout_engine(engine)
    return buffer.getvalue()


def png_for_phone(drawn):
    """Return the bytes of a figure as PNG as wide as a phone; None if its labels have no room.

    It is at most as high as wide, unless the labels of rows would overlap; long ones get several
    lines. Numbers in a heat map are turned if they would overlap.
    """
    height = drawn.get_size_inches()[1]
    for axis in (axes.yaxis for axes in drawn.axes):
        if isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator):
            texts = [text.get_text() for text in axis.get_ticklabels()]
            names = [textwrap.fill(text, LETTERS, break_long_words=False) for text in texts]
            if any("\n" in name for name in names):
                axis.set_ticks(axis.get_ticklocs(), names)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            for size in (min(height, PHONE_WIDTH), height, 1.25 * height, 1.6 * height, 2 * height):
                drawn.set_size_inches(PHONE_WIDTH, size)
                drawn.draw_without_rendering()
                if not any(overlap(axes.get_yticklabels()) for axes in drawn.axes):
                    break
            for axes in drawn.axes:
                if axes.images and overlap(axes.texts):
                    plt.setp(axes.texts, rotation=90)
            return png(drawn)
        except UserWarning:
            return None


def overlap(texts):
    """Return whether two of the texts overlap."""
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    return any(one.overlaps(other) for one, other in combinations(boxes, 2))


def collides(axis):
    """Return whether labels of a horizontal axis overlap."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [tick.label1.get_window_extent() for tick in ticks if tick.label1.get_text()]
    return any(one.x1 > other.x0 for one, other in pairwise(boxes))


def address(data):
    """Return an address that contains a PNG."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def size_of(data):
    """Return the width and the height of a PNG on the page, in pixels."""
    sizes = struct.unpack(">II", data[16:24])  # in the header
    return [round(size / RESOLUTION * PIXELS) for size in sizes]


def tag(data, alt, style=""):
    """Return a PNG as an element ``img`` of its own size."""
    width, height = size_of(data)
    styled = f'style="{style}" ' if style else ""
    return (
        f'<img alt="{html.escape(alt)}" width="{width}" height="{height}" {styled}'
        f'src="{address(data)}">'
    )
