"""Pictures of messages in the plane of the points, as short pieces of SVG.

`picture` draws one message and `together` the replies of several clients, which is what the server
has after an exchange. A `Plane` places the points in a panel of 100 by 70 units and remembers what
later messages refer to, such as a grid. A message without a picture gives an empty text.
"""

from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np

from fedlib.clustering.density.bounded_cells import CountGrid, CountWithNoise, NoisyCounts
from fedlib.clustering.density.horizontal import AssignCells, CellCounts, CountCells
from fedlib.core.messages import Message, decode
from fedlib.protection.secure.messages import MaskedValues, MaskValues

WIDTH, HEIGHT, MARGIN = 100, 70, 4
N_COLOURS = 10  # of clusters; more repeat them
MASKED_COLUMNS, MASKED_ROWS = 16, 10  # the masked numbers that are drawn, and their rows


@dataclass
class Plane:
    """The plane of the points of a run, and what its messages have said so far.

    Attributes
    ----------
    low, high : array (2,)
        The corners of what is drawn.
    memory : dict
        What a message says that the picture of a later one needs.
    """

    low: np.ndarray
    high: np.ndarray
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def scale(self):
        """The units of a panel per unit of the data."""
        room = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
        return float((room / (self.high - self.low)).min())

    def place(self, X):
        """Return points (n, 2) in the units of a panel, whose second axis points down."""
        middle = (self.low + self.high) / 2
        return (np.asarray(X) - middle) * [self.scale, -self.scale] + [WIDTH / 2, HEIGHT / 2]


def colour(label):
    """Return the CSS class of a cluster, or of noise."""
    return "noise" if label < 0 else f"k{label % N_COLOURS}"


def dots(places, classes, radius=1.1):
    """Return a circle per place, in the units of a panel; ``radius`` is one or one per place."""
    radii = np.broadcast_to(radius, len(places))
    return "".join(
        f'<circle class="{name}" cx="{x:.4g}" cy="{y:.4g}" r="{r:.3g}"/>'
        for (x, y), name, r in zip(places, classes, radii, strict=True)
    )


def squares(corners, size, classes, opacities):
    """Return squares as one path per class and opacity, which is rounded to one digit.

    ``corners`` are the left upper ones, in the units of a panel.
    """
    paths = {}
    for (x, y), name, opacity in zip(corners, classes, opacities, strict=True):
        step = f"M{x:.4g} {y:.4g}h{size:.3g}v{size:.3g}h-{size:.3g}z"
        paths.setdefault((name, f"{opacity:.1f}"), []).append(step)
    return "".join(
        f'<path class="{name}" opacity="{opacity}" d="{"".join(steps)}"/>'
        for (name, opacity), steps in paths.items()
    )


@singledispatch
def picture(message: Message, plane: Plane, client: str):
    """Return the picture of one message from or to a client."""
    return ""


@singledispatch
def together(first: Message, replies: list, plane: Plane):
    """Return the picture of the replies of all clients; ``first`` is one of them."""
    drawn = (picture(reply, plane, client) for client, reply in replies.items())
    return "".join(dict.fromkeys(drawn))


# Horizontal DBSCAN ------------------------------------------------------------------------------


@picture.register(CountCells)
@picture.register(CountGrid)
@picture.register(CountWithNoise)
def grid(message, plane, client):
    """Draw the lines between the cells."""
    plane.memory["grid"] = message
    size = message.cell_size
    first = np.floor(plane.low / size).astype(int)
    last = np.ceil(plane.high / size).astype(int)
    corners = plane.place(np.array([first, last]) * size)
    (left, lower), (right, upper) = corners
    xs = plane.place([[i * size, 0] for i in range(first[0], last[0] + 1)])[:, 0]
    ys = plane.place([[0, j * size] for j in range(first[1], last[1] + 1)])[:, 1]
    lines = "".join(f"M{x:.4g} {upper:.4g}V{lower:.4g}" for x in xs)
    lines += "".join(f"M{left:.4g} {y:.4g}H{right:.4g}" for y in ys)
    return f'<path class="lines" d="{lines}"/>'


def cells(corners, values, plane, classes=None):
    """Draw cells: the more points, the darker; ``corners`` are their indices in the grid."""
    size = plane.memory["grid"].cell_size
    places = plane.place(np.add(corners, [0, 1]) * size)  # the left upper corners
    shades = 0.2 + 0.8 * np.sqrt(np.abs(values) / max(np.abs(values).max(initial=1), 1))
    names = ["ink" if value > 0 else "negative" for value in values]
    return squares(places, size * plane.scale, classes or names, shades)


@picture.register
def cell_counts(message: CellCounts, plane, client):
    """Draw the occupied cells."""
    return cells(message.cells, message.counts, plane)


@together.register
def sum_of_cells(first: CellCounts, replies, plane):
    """Draw the sums of the counts, which is what the server computes from them."""
    return cell_counts(CellCounts.combine(list(replies.values())), plane, "")


@picture.register
def noisy_counts(message: NoisyCounts, plane, client):
    """Draw all cells whose count with noise is not 0; negative ones have another colour."""
    counted = plane.memory["grid"]
    corners = np.argwhere(np.ones(counted.shape)) + counted.low
    values = np.rint(message.counts)
    return cells(corners[values != 0], values[values != 0], plane)


@together.register
def sum_of_noisy_counts(first: NoisyCounts, replies, plane):
    """Draw the sums."""
    total = sum(reply.counts for reply in replies.values())
    return noisy_counts(NoisyCounts(total), plane, "")


@picture.register
def clustered_cells(message: AssignCells, plane, client):
    """Draw the cells of the clusters."""
    plane.memory["grid"] = message
    ones = np.ones(len(message.cells))
    return cells(message.cells, ones, plane, [colour(label) for label in message.labels])


# Secure sums ------------------------------------------------------------------------------------


@picture.register
def wrapped(message: MaskValues, plane, client):
    """Draw the request that is to be answered with masks."""
    return picture(decode(message.request), plane, client)


@picture.register
def masked(message: MaskedValues, plane, client):
    """Draw the first masked numbers as shades of grey: to the server they are random."""
    shown = message.words[: MASKED_COLUMNS * MASKED_ROWS]
    size = min((WIDTH - 2 * MARGIN) / MASKED_COLUMNS, (HEIGHT - 2 * MARGIN) / MASKED_ROWS)
    rows, columns = np.divmod(np.arange(len(shown)), MASKED_COLUMNS)
    corners = np.column_stack([columns, rows]) * size + MARGIN
    shades = shown.astype(float) / 2.0**64
    return f'<g class="cover">{squares(corners, size, ["grey"] * len(shown), shades)}</g>'
