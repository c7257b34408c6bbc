"""Pictures of messages in the plane of the points, as short pieces of SVG.

`picture` draws one message and `together` the replies of several clients, which is what the server
has after an exchange. A `Plane` places the points in a panel of 100 by 70 units and remembers what
later messages refer to, such as a grid. A message without a picture gives an empty text.
"""

from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np

from fedlib.boosting.histograms import (
    Histograms,
    NoisyHistograms,
    PackedHistograms,
    unpack,
)
from fedlib.boosting.messages import BeginBoosting, Growth, KeepTrees, SplitProposals
from fedlib.clustering.density.bounded_cells import CountGrid, CountWithNoise, NoisyCounts
from fedlib.clustering.density.dbdc import LocalModel
from fedlib.clustering.density.horizontal import AssignCells, CellCounts, CountCells
from fedlib.clustering.density.ppdbdc import BlurredRepresentatives
from fedlib.clustering.density.representatives import RelabelPoints
from fedlib.clustering.density.sdbdc import WeightedRepresentatives
from fedlib.clustering.density.vertical import AssignLabels, FindNeighbours, NeighbourBlock
from fedlib.clustering.kmeans.flow import SumClustersNoisily
from fedlib.clustering.kmeans.messages import (
    AssignCentres,
    ClusterSums,
    LocalCentres,
    MeasureInertia,
    SumClusters,
)
from fedlib.clustering.mixtures.dbscan import AssignPoints, ClusterMixtures
from fedlib.clustering.mixtures.messages import Mixture, ResponsibilitySums, expand
from fedlib.core.messages import Message, decode
from fedlib.protection.secure.messages import MaskedValues, MaskValues
from fedlib.tables.alignment import KeepRows, Pseudonyms

WIDTH, HEIGHT, MARGIN = 100, 70, 4
N_COLOURS = 10  # of clusters; more repeat them
N_TILES = 14  # across a panel, of the picture of a classifier
BAR = 16  # the length of the longest bar of a histogram
MASKED_COLUMNS, MASKED_ROWS, MASKED_SIZE = 16, 10, 5  # the masked numbers that are drawn


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
    rows, columns = np.divmod(np.arange(len(shown)), MASKED_COLUMNS)
    corners = np.column_stack([columns, rows]) * MASKED_SIZE + 10
    shades = shown.astype(float) / 2.0**64
    return f'<g class="cover">{squares(corners, MASKED_SIZE, ["grey"] * len(shown), shades)}</g>'


# Representatives --------------------------------------------------------------------------------


def discs(message, plane, client, classes=None):
    """Draw representatives: the more points one stands for, the larger."""
    weights = getattr(message, "weights", np.full(len(message.representatives), 2.0))
    names = classes or ["ink"] * len(weights)
    places = plane.place(message.representatives)
    return f'<g opacity="0.7">{dots(places, names, 0.9 * np.sqrt(weights))}</g>'


@picture.register(LocalModel)
@picture.register(WeightedRepresentatives)
@picture.register(BlurredRepresentatives)
def representatives(message, plane, client):
    """Draw the representatives of a client."""
    plane.memory["sent", client] = message
    return discs(message, plane, client)


@picture.register
def clustered_representatives(message: RelabelPoints, plane, client):
    """Draw the clusters of all representatives, or of those of the client."""
    if len(message.own):
        classes = [colour(label) for label in message.own]
        return discs(plane.memory["sent", client], plane, client, classes)
    return discs(message, plane, client, [colour(label) for label in message.labels])


# k-means ----------------------------------------------------------------------------------------


def crosses(centres, plane):
    """Draw the centres of clusters, each in its colour."""
    return "".join(
        f'<path class="cross {colour(i)}" d="M{x - 3:.4g} {y:.4g}h6M{x:.4g} {y - 3:.4g}v6"/>'
        for i, (x, y) in enumerate(plane.place(centres))
    )


@picture.register(AssignCentres)
@picture.register(MeasureInertia)
@picture.register(SumClustersNoisily)
def centres(message, plane, client):
    """Draw the centres."""
    return crosses(message.centres, plane)


@picture.register
def first_centres(message: SumClusters, plane, client):
    """Draw the centres of the first start."""
    return crosses(message.centres[0], plane)


@picture.register
def local_centres(message: LocalCentres, plane, client):
    """Draw the centres of a client: the more points, the larger."""
    radii = 0.7 * np.sqrt(message.counts)
    return dots(plane.place(message.centres), ["ink"] * len(radii), radii)


@picture.register
def cluster_means(message: ClusterSums, plane, client):
    """Draw the means of a client, which follow from its sums and counts."""
    counts = message.counts[0]
    known = np.flatnonzero(counts)
    means = message.sums[0][known] / counts[known, np.newaxis]
    return dots(plane.place(means), map(colour, known), 0.7 * np.sqrt(counts[known]))


# Mixtures ---------------------------------------------------------------------------------------


def ellipses(means, covariances, plane, classes):
    """Draw Gaussians as ellipses of two standard deviations."""
    drawn = []
    values, vectors = np.linalg.eigh(covariances)
    for (x, y), value, vector, name in zip(
        plane.place(means), values, vectors, classes, strict=True
    ):
        small, large = 2 * plane.scale * np.sqrt(np.maximum(value, 0))
        angle = -np.degrees(np.arctan2(vector[1, 1], vector[0, 1]))
        drawn.append(
            f'<ellipse class="{name}" opacity="0.4" rx="{large:.3g}" ry="{small:.3g}"'
            f' transform="translate({x:.4g} {y:.4g}) rotate({angle:.4g})"/>'
        )
    return "".join(drawn)


@picture.register
def mixture(message: Mixture, plane, client):
    """Draw the components, if there are any."""
    n_components, n_features = message.means.shape
    if not n_components:
        return ""
    shape = n_components, n_features, message.covariance_type
    full = expand(message.covariances, *shape)
    plane.memory["mixture"] = message.means, shape
    return ellipses(message.means, full, plane, map(colour, range(n_components)))


@picture.register
def responsibilities(message: ResponsibilitySums, plane, client):
    """Draw the Gaussian that follows from the sums of a client, per component."""
    means, shape = plane.memory["mixture"]
    counts = np.maximum(message.counts, 1e-9)[:, np.newaxis]
    shifts = message.sums / counts
    squares_ = expand(message.products, *shape) / counts[:, np.newaxis]
    full = squares_ - shifts[:, :, np.newaxis] * shifts[:, np.newaxis]
    return ellipses(means + shifts, full, plane, map(colour, range(len(counts))))


@picture.register
def cluster_mixtures(message: ClusterMixtures, plane, client):
    """Draw the Gaussians of the clusters of a client."""
    return ellipses(message.means, message.covariances, plane, ["ink"] * len(message.means))


@picture.register
def drawn_points(message: AssignPoints, plane, client):
    """Draw the points that the server has drawn from the mixtures, as one path per cluster."""
    paths = {}
    for (x, y), label in zip(plane.place(message.points), message.labels, strict=True):
        paths.setdefault(colour(label), []).append(f"M{x:.4g} {y:.4g}h0")
    return "".join(f'<path class="dot {name}" d="{"".join(d)}"/>' for name, d in paths.items())


# Boosted trees ----------------------------------------------------------------------------------


@picture.register
def begin_boosting(message: BeginBoosting, plane, client):
    """Remember the cuts between the bins."""
    plane.memory["cuts"] = [
        message.thresholds[start:stop]
        for start, stop in zip(message.offsets, message.offsets[1:], strict=False)
    ]
    plane.memory["splits"] = []
    return ""


def cut_lines(splits, plane, opacities):
    """Draw cuts, each of a feature and a threshold, as lines across the panel."""
    drawn = []
    for (feature, threshold), opacity in zip(splits, opacities, strict=True):
        x, y = plane.place([[threshold, threshold]])[0]
        line = f"M{x:.4g} 0V{HEIGHT}" if feature == 0 else f"M0 {y:.4g}H{WIDTH}"
        drawn.append(f'<path class="cut" opacity="{opacity:.2g}" d="{line}"/>')
    return "".join(drawn)


@picture.register
def splits(message: Growth, plane, client):
    """Draw the cuts of the tree so far."""
    plane.memory["asked"], known = message, plane.memory["splits"]
    if len(message.values):
        known.clear()  # a new tree begins
    found = zip(message.feature.tolist(), message.threshold.tolist(), strict=True)
    known += [split for split in found if split[0] >= 0 and split not in known]
    return cut_lines(known, plane, [1.0] * len(known))


@picture.register
def proposals(message: SplitProposals, plane, client):
    """Draw the cuts that a client proposes: the more they gain, the stronger."""
    found = list(zip(message.feature.tolist(), message.threshold.tolist(), strict=True))
    strength = 0.2 + 0.8 * message.gain / max(message.gain.max(initial=0.0), 1e-9)
    return cut_lines(found, plane, strength)


def histogram(sums, plane):
    """Draw the sums of gradients per bin, of the first feature below and of the second at the left.

    A bar has the colour of the class that prevails in its bin.
    """
    gradients, first = sums[:, :, 0].sum(axis=0), 0
    steps = {colour(0): "", colour(1): ""}
    for feature, cuts in enumerate(plane.memory["cuts"]):
        part, first = gradients[first : first + len(cuts)], first + len(cuts)
        edges = np.clip([plane.low[feature], *cuts], plane.low[feature], plane.high[feature])
        ends = plane.place(np.column_stack([edges, edges]))[:, feature]
        lengths = BAR * np.abs(part) / max(np.abs(gradients).max(), 1e-9)
        for start, stop, length, value in zip(ends, ends[1:], lengths, part, strict=False):
            wide = f"{stop - start:.3g}"
            steps[colour(int(value < 0))] += (
                f"M{start:.4g} {HEIGHT}v-{length:.3g}h{wide}v{length:.3g}z"
                if feature == 0
                else f"M0 {start:.4g}h{length:.3g}v{wide}h-{length:.3g}z"
            )
    return "".join(f'<path class="{name}" d="{each}"/>' for name, each in steps.items())


def sums_of(message, plane):
    """Return the sums in a reply, which may be packed."""
    is_packed = isinstance(message, PackedHistograms)
    return (unpack(message, plane.memory["asked"]) if is_packed else message).sums


@picture.register(Histograms)
@picture.register(NoisyHistograms)
@picture.register(PackedHistograms)
def histograms(message, plane, client):
    """Draw the histograms of a client, added up over the nodes."""
    return histogram(sums_of(message, plane), plane)


@together.register(Histograms)
@together.register(NoisyHistograms)
@together.register(PackedHistograms)
def sum_of_histograms(first, replies, plane):
    """Draw the sums over the clients."""
    return histogram(sum(sums_of(reply, plane) for reply in replies.values()), plane)


@picture.register
def trees(message: KeepTrees, plane, client):
    """Draw the classes that the finished model predicts, and how sure it is."""
    size = WIDTH / N_TILES
    corners = np.argwhere(np.ones((N_TILES, int(HEIGHT / size)))) * size
    middle = (plane.low + plane.high) / 2
    shifts = (corners + size / 2 - [WIDTH / 2, HEIGHT / 2]) / [plane.scale, -plane.scale]
    probability = plane.memory["model"].predict_proba(middle + shifts)[:, 1]
    names = [colour(int(p > 0.5)) for p in probability]
    return squares(corners, size, names, 0.1 + 1.4 * np.abs(probability - 0.5))


# Columns of the same rows ------------------------------------------------------------------------


@picture.register
def find_neighbours(message: FindNeighbours, plane, client):
    """Remember the rows of the block."""
    plane.memory["block"] = message
    return ""


def matrix(near):
    """Draw which rows are neighbours: the square (i, j) says it of the rows i and j."""
    size = (HEIGHT - 2 * MARGIN) / len(near)
    corners = np.argwhere(near) * size + [(WIDTH - HEIGHT) / 2 + MARGIN, MARGIN]
    drawn = squares(corners, size, ["ink"] * len(corners), np.ones(len(corners)))
    edge = HEIGHT - 2 * MARGIN
    frame = f'x="{(WIDTH - HEIGHT) / 2 + MARGIN}" y="{MARGIN}" width="{edge}" height="{edge}"'
    return f'<g class="cover"><rect class="lines" {frame}/>{drawn}</g>'


def neighbours(block, request):
    """Return the neighbours in a block of all rows, as a symmetric matrix."""
    n = request.n_rows
    words = block.read(n, request.first, request.stop)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :n].astype(bool)
    return bits | bits.T | np.eye(n, dtype=bool)


@picture.register
def neighbour_block(message: NeighbourBlock, plane, client):
    """Draw the neighbours in the columns of a client."""
    return matrix(neighbours(message, plane.memory["block"]))


@together.register
def common_neighbours(first: NeighbourBlock, replies, plane):
    """Draw the pairs that all clients report."""
    request = plane.memory["block"]
    return matrix(np.all([neighbours(block, request) for block in replies.values()], axis=0))


@picture.register
def row_labels(message: AssignLabels, plane, client):
    """Draw a square per row in the colour of its cluster."""
    size = 6.0
    rows, columns = np.divmod(np.arange(len(message.labels)), int((WIDTH - 2 * MARGIN) / size))
    corners = np.column_stack([columns, rows]) * size + MARGIN
    names = [colour(label) for label in message.labels]
    return squares(corners, size - 1, names, np.ones(len(corners)))


@picture.register
def pseudonyms(message: Pseudonyms, plane, client):
    """Draw each pseudonym at a place that follows from it, so that equal ones coincide."""
    room = np.array([WIDTH, HEIGHT]) - 4 * MARGIN
    places = message.pseudonyms[:, :2] / 255 * room + 2 * MARGIN
    plane.memory["pseudonyms", client] = places
    return f'<g class="cover">{dots(places, ["ring"] * len(places), 1.6)}</g>'


@picture.register
def common_rows(message: KeepRows, plane, client):
    """Draw the pseudonyms of a client, those that all clients have in colour."""
    names = ["k0" if kept else "ring" for kept in message.kept]
    return f'<g class="cover">{dots(plane.memory["pseudonyms", client], names, 1.6)}</g>'
