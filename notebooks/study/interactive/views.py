"""What the server sees of each protocol, drawn into a panel: the pictures of `explore`."""

import numpy as np
from matplotlib.collections import EllipseCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D

from fedlib import PPDBDC, ApproximateDBSCAN
from fedlib.clustering.density.neighbouring_cells import cell_side
from fedlib.figures import plots

N_SHOWN_ROWS = 120  # of the table of neighbours
N_TILES = 60  # per side of the picture of a classifier
# From the colour of the first class to that of the second.
CLASSES = LinearSegmentedColormap.from_list(
    "classes", [plots.colours([0])[0], "white", plots.colours([1])[0]]
)


def draw_cells(ax, outcome):
    """Draw the occupied cells; light grey ones are not dense."""
    model = outcome.model
    if isinstance(model, ApproximateDBSCAN):
        size = cell_side(model.eps, model.rho, model.n_features_in_)
    else:
        size = model.cell_size
    plots.cells(model.cells_, size, labels=model.cell_labels_, ax=ax)
    show_all(ax, outcome.X)
    return f"{len(model.cells_):,} cells with counts"


def draw_representatives(ax, outcome):
    """Draw discs: as large as the radius that was sent, or as the number of points covered."""
    model, faces = outcome.model, plots.colours(outcome.model.representative_labels_)
    places = model.representatives_
    if isinstance(model, PPDBDC):
        ax.scatter(*places.T, s=4 * model.weights_, c=faces, alpha=0.6, linewidths=0)
    else:
        diameters = 2 * model.radii_
        discs = EllipseCollection(diameters, diameters, np.zeros(len(places)), units="xy")
        discs.set(offsets=places, offset_transform=ax.transData, facecolor=faces, alpha=0.15)
        ax.add_collection(discs)
        ax.scatter(*places.T, s=5, c=faces, linewidths=0)
    return f"{len(places):,} representatives"


def draw_mixtures(ax, outcome):
    """Draw the mixtures of the clients' clusters and the points drawn from them."""
    model = outcome.model
    draw_points(ax, model.samples_, model.sample_labels_)
    replies = replies_of(outcome, "ClusterMixtures")
    draw_ellipses(ax, [reply.means for reply in replies], [r.covariances for r in replies])
    n_components = sum(len(reply.weights) for reply in replies)
    return f"{n_components} Gaussians; {len(model.samples_):,} points drawn"


def draw_mixture(ax, outcome):
    """Draw the Gaussians of the clients, if they send any, and those of the result."""
    replies = replies_of(outcome, "ImprovedMixture")
    draw_ellipses(ax, [reply.means for reply in replies], [r.covariances for r in replies])
    means, covariances = outcome.model.means_, outcome.model.covariances_
    draw_ellipses(ax, [means], [covariances], edgecolor=plots.RED, linewidth=2)
    ax.scatter(*means.T, s=30, c=plots.RED, marker="x")
    return f"{len(replies)} mixtures (grey), the result (red)"


def draw_centres(ax, outcome):
    """Draw the clients' centres or means, and the centres of the result."""
    model = outcome.model
    if model.method == "one_shot":
        places, counts = model.local_centers_, model.local_counts_
    else:
        replies = replies_of(outcome, "ClusterSums")
        sums = np.concatenate([reply.sums[0] for reply in replies])
        counts = np.concatenate([reply.counts[0] for reply in replies])
        places, counts = sums[counts > 0] / counts[counts > 0, None], counts[counts > 0]
    sizes = np.maximum(8, counts / counts.mean() * 40)
    ax.scatter(*places.T, s=sizes, c=plots.colours(model.predict(places)), alpha=0.5, linewidths=0)
    ax.scatter(*model.cluster_centers_.T, s=80, c="black", marker="+", linewidths=2)
    return f"{len(places)} means of clients, {len(model.cluster_centers_)} centres (+)"


def draw_neighbours(ax, outcome):
    """Draw which of the first rows are neighbours in all features: all that the server learns.

    It is computed from the points again, because decoding the messages takes longer.
    """
    X = outcome.X[:N_SHOWN_ROWS]
    near = (abs(X[:, np.newaxis] - X) <= outcome.model.eps).all(axis=2)
    size = len(near) - 0.5
    ax.imshow(near, cmap="Blues", interpolation="nearest")
    ax.set(xlim=(-0.5, size), ylim=(size, -0.5))
    return f"which of the rows 0 to {len(near) - 1} are neighbours"


def draw_classifier(ax, outcome):
    """Draw the probability of the second class."""
    low, high = outcome.X.min(axis=0), outcome.X.max(axis=0)
    x, y = (np.linspace(low[k], high[k], N_TILES) for k in (0, 1))
    margins = outcome.model.decision_function(
        np.column_stack([a.ravel() for a in np.meshgrid(x, y)])
    )
    shown = 1 / (1 + np.exp(-margins.astype(float))).reshape(N_TILES, N_TILES)
    box = (low[0], high[0], low[1], high[1])
    ax.imshow(shown, cmap=CLASSES, vmin=0, vmax=1, origin="lower", extent=box)
    n_nodes = sum(map(len, outcome.model.trees_))
    return f"{len(outcome.model.trees_)} trees with {n_nodes} nodes, and sums in each"


def replies_of(outcome, name):
    """Return the replies of the last exchange in which clients sent this message."""
    for exchange in reversed(outcome.recorder.exchanges):
        replies = [r for r in exchange.replies.values() if type(r).__name__ == name]
        if replies:
            return replies
    return []


def draw_ellipses(ax, means, covariances, **style):
    """Draw Gaussians as ellipses of two standard deviations."""
    if not means:
        return
    means, covariances = np.concatenate(means), np.concatenate(covariances)
    values, vectors = np.linalg.eigh(covariances)
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    widths, heights = 4 * np.sqrt(np.maximum(values[:, ::-1], 0)).T
    ellipses = EllipseCollection(widths, heights, angles, units="xy")
    style = {"facecolor": "none", "edgecolor": "#444444", "linewidth": 0.8} | style
    ellipses.set(offsets=means, offset_transform=ax.transData, **style)
    ax.add_collection(ellipses)


def show_all(ax, X):
    """Set the limits of a panel to those of the points."""
    low, high = X.min(axis=0), X.max(axis=0)
    ax.set(xlim=(low[0] - 0.1, high[0] + 0.1), ylim=(low[1] - 0.1, high[1] + 0.1), aspect="equal")


def draw_points(ax, X, labels, size=2.2):
    """Draw points, one line of markers per cluster: much faster than one collection.

    `Axes.plot` would also compute limits, which `show_all` sets.
    """
    for label in np.unique(labels):
        colour = plots.colours([label])[0]
        marker = "x" if label < 0 else plots.MARKERS[label // 10 % len(plots.MARKERS)]
        edge = 0.6 if label < 0 else 0
        style = {"linestyle": "none", "markersize": size, "markeredgewidth": edge}
        ax.add_artist(Line2D(*X[labels == label].T, marker=marker, color=colour, **style))
