"""Figures as images of a page, which also fit a phone."""

import base64
import html
import io
import struct
import warnings
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator
from PIL import Image

PAGE_WIDTH = 7.0  # of the text in a window of 1,280 pixels, in inches at 96 pixels per inch
PIXELS = 96  # of a page per inch
RESOLUTION = 160  # of a figure, in its pixels per inch
PHONE_WIDTH = 3.7  # of the text on a phone, in inches
NARROW = 1.0  # inches: a column of panels is wider
WHITE = 250  # of 255: what is lighter in all colours is not drawn


def image(drawn, alt):
    """Return a figure as HTML, and close the figure.

    Panels side by side are images of their own, which stand below each other on a phone, and so is
    a legend or a title above all of them. A wide figure of one panel is drawn again for a phone, so
    that its text keeps its size, unless its labels leave no room for the panel.
    """
    width, height = drawn.get_size_inches()
    if width > PAGE_WIDTH:
        drawn.set_size_inches(PAGE_WIDTH, height * PAGE_WIDTH / width)
        width, height = drawn.get_size_inches()
    data = png(drawn)
    columns, top = layout(drawn)
    above, panels = cut(data, columns, top)
    if panels:
        total = sum(size_of(panel)[0] for panel in panels)
        shares = [99.9 * size_of(panel)[0] / total for panel in panels]  # of a narrow row
        styles = [f"max-width:{share:.2f}%;height:auto" for share in shares]
        row = "".join(map(tag, panels, [alt] + [""] * (len(panels) - 1), styles))
        body = f'<span class="fedlib-panels" style="display:flex;flex-wrap:wrap">{row}</span>'
        if above:
            body = tag(above, "", "display:block;margin:auto") + body
    else:
        body = tag(data, alt)
        if width > PHONE_WIDTH and len(columns) == 1 and (narrow := png_for_phone(drawn)):
            source = f'srcset="{address(narrow)}" media="(max-width: 40rem)"'
            body = f"<picture><source {source}>{body}</picture>"
    plt.close(drawn)
    return body


def layout(drawn):
    """Return the left and right ends of the columns of panels, and the top of the highest panel.

    They are in pixels of the saved figure. A narrow column, such as a colour bar, belongs to the
    one on its left. The top is 0 if nothing of the figure itself, such as a legend for all panels,
    is above it, and None if such a thing is elsewhere.
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
    columns = [[round((x - outer.x0 + pad) * RESOLUTION) for x in column] for column in columns]
    others = [one for one in [*drawn.legends, *drawn.texts] if one.get_visible()]
    if not others or not boxes:
        return columns, 0
    top = max(box[1, 1] for box in boxes)
    lowest = min(one.get_window_extent().y0 for one in others) / drawn.dpi
    is_above = lowest > top - 0.02  # inches
    return columns, round((outer.y1 + pad - (lowest + top) / 2) * RESOLUTION) if is_above else None


def cut(data, columns, top):
    """Return what is above the panels of a PNG, and each panel, as PNGs; see `layout`.

    The first is None if nothing is above. There are no panels if they cannot be separated by a
    vertical line where nothing is drawn.
    """
    if top is None:
        return None, []
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    drawn = (np.asarray(picture)[top:] < WHITE).any(axis=(0, 2))
    cuts = [0]
    for (_, right), (left, _) in pairwise(columns):
        empty = [x for x in range(max(right, 0), left) if not drawn[x]]
        if empty:
            cuts.append(empty[len(empty) // 2])
    if len(cuts) == 1:
        return None, []
    above = None
    if top:
        inked = np.flatnonzero((np.asarray(picture)[:top] < WHITE).any(axis=(0, 2)))
        above = crop(picture, (inked[0], 0, inked[-1] + 1, top))
    ends = pairwise([*cuts, picture.width])
    return above, [crop(picture, (left, top, right, picture.height)) for left, right in ends]


def crop(picture, box):
    """Return a part of a picture as PNG."""
    buffer = io.BytesIO()
    picture.crop(box).save(buffer, "PNG")
    return buffer.getvalue()


def png(drawn):
    """Return the bytes of a figure as PNG, with fewer ticks where labels would overlap."""
    drawn.canvas.draw()
    for axis in (axes.xaxis for axes in drawn.axes):
        for most in (4, 3, 2, 1):
            if isinstance(axis.get_major_locator(), MaxNLocator) and collides(axis):
                axis.set_major_locator(MaxNLocator(most))
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=RESOLUTION, metadata={"Software": None})
    return buffer.getvalue()


def png_for_phone(drawn):
    """Return the bytes of a figure as PNG as wide as a phone; None if its labels have no room.

    It is at most as high as wide, unless the labels of lines would overlap. Numbers in a heat
    map are turned if they would overlap.
    """
    height = drawn.get_size_inches()[1]
    drawn.set_size_inches(PHONE_WIDTH, min(height, PHONE_WIDTH))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            drawn.canvas.draw()
            if any(overlap(axes.get_yticklabels()) for axes in drawn.axes):
                drawn.set_size_inches(PHONE_WIDTH, height)
                drawn.canvas.draw()
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
