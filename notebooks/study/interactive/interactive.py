"""Figures that compute in the published page, without a server.

A figure is a piece of HTML. It contains the points, the result of `fedlib` for the first settings
as a picture, and `interactive.js`, which computes the result for other settings in the browser.
Without JavaScript and in print, the picture remains.

Every figure is an `Example`: its data, its sliders and the function that computes the same result
with `fedlib`. The tests compare that function with the browser.
"""

from functools import cache
from itertools import pairwise

import numpy as np
from scipy.special import expit
from sklearn.datasets import make_blobs, make_moons

from fedlib import PPDBDC, FederatedKMeans, FederatedXGBClassifier, HorizontalDBSCAN
from fedlib.clustering.density.horizontal import HorizontalDBSCANClient
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.flow import KMeansModel
from fedlib.testing import Recorder
from study.interactive.rendering import Example, Page, Slider, State, colour, render

MIN_WEIGHT = 3  # a representative of PPDBDC that covers fewer points has noise
N_HOLDERS = 4  # clients in the figures without a slider for them
OWN_CELLS = [0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3]  # of the reader's table
N_TILES = 30  # squares across the picture of a model
MOST_CLUSTERS = 8
MOST_TREES = 30


def figure(name):
    """Return an interactive figure for the output of a cell.

    Parameters
    ----------
    name : {"horizontal-dbscan", "own-table", "kmeans", "ppdbdc", "boosting"}

    Raises
    ------
    ValueError
        When there is no such figure.
    """
    if name not in EXAMPLES:
        raise ValueError(f"name must be one of {', '.join(EXAMPLES)}; got {name!r}")
    return Page(render(EXAMPLES[name]()))


def number(n, noun):
    """Return a number with its noun, such as ``"2 clusters"``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def found(labels):
    """Return the sentence on clusters and noise."""
    labels = np.asarray(labels)
    n_clusters = int(labels.max(initial=-1)) + 1
    return f"{number(n_clusters, 'cluster')}, {number(int((labels < 0).sum()), 'noise point')}."


def shortened(X):
    """Return coordinates in steps of 1/256, which are short in JSON and exact in float32."""
    return np.round(np.asarray(X) * 256) / 256


def deal(X, n_clients):
    """Return the rows of each client: row by row in turn, as in `interactive.js`."""
    return [X[i::n_clients] for i in range(n_clients)]


def gather(parts):
    """Return the clients' values in the order of the rows."""
    labels = np.empty(sum(map(len, parts)), int)
    for i, part in enumerate(parts):
        labels[i :: len(parts)] = part
    return labels


def horizontal_dbscan_example():
    """Return the figure of horizontal DBSCAN: cells, their counts, and passive clients."""
    X = shortened(make_moons(800, noise=0.09, random_state=3)[0])

    def compute(s):
        n_sharing = max(1, s["n_clients"] - s["n_passive"])
        passive = range(n_sharing, s["n_clients"])
        model = HorizontalDBSCAN(s["cell_size"], s["min_samples"])
        model.fit(deal(X, s["n_clients"]), passive=passive)
        labels = gather(model.labels_)
        shapes = cell_shapes(model)
        received = f"The server receives counts of {number(len(shapes), 'occupied cell')}; "
        dense = (model.cell_labels_ >= 0).sum()
        ringed = [row for row in range(len(X)) if row % s["n_clients"] in passive]
        summary = f"{found(labels)} {received}{dense} of them are dense."
        return State(labels.tolist(), ringed, shapes, summary)

    return Example(
        "horizontal-dbscan",
        "Horizontal DBSCAN: change the grid and the clients",
        "The clients' points (ring: a passive client's)",
        "What the server sees: cells with counts",
        [
            Slider("cell_size", "Cell size", [0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.25, 0.3, 0.4], 4),
            Slider("min_samples", "Points of a dense cell", list(range(1, 21)), 3),
            Slider("n_clients", "Clients", list(range(1, 11)), 4),
            Slider("n_passive", "Passive clients (at least one shares)", list(range(10)), 0),
        ],
        {"points": X.tolist()},
        compute,
    )


def own_table_example():
    """Return the figure in which a reader tries a table: horizontal DBSCAN without passive clients.

    It starts with points like those that the script reads: both columns are scaled to [0, 1].
    """
    X = make_moons(400, noise=0.08, random_state=0)[0]
    X = shortened((X - X.min(axis=0)) / np.ptp(X, axis=0))

    def compute(s):
        parts = deal(X, s["n_clients"])
        recorder = Recorder({str(i): HorizontalDBSCANClient(p) for i, p in enumerate(parts)})
        model = HorizontalDBSCAN(s["cell_size"], s["min_samples"]).fit(recorder)
        labels = gather([client.state.labels for client in recorder.members.values()])
        counts = [reply.counts for reply in recorder.exchanges[0].replies.values()]
        sent = np.concatenate(counts)
        received = f"The server receives counts of {number(len(model.cells_), 'occupied cell')}; "
        summary = (
            f"{found(labels)} {received}{(model.cell_labels_ >= 0).sum()} of them are dense."
            f" The sites send {number(len(sent), 'count')}; {(sent == 1).sum()} of them are 1,"
            " and place a row to within one cell."
        )
        ringed = [row for row in range(len(X)) if row % s["n_clients"] == s["site"] - 1]
        return State(labels.tolist(), ringed, cell_shapes(model), summary)

    return Example(
        "own-table",
        "Try your table: horizontal DBSCAN on two columns",
        "The rows, in turn at each site (ring: at the chosen site)",
        "What the server sees: cells with counts",
        [
            Slider("cell_size", "Cell size (each column is scaled to 0 … 1)", OWN_CELLS, 5),
            Slider("min_samples", "Rows of a dense cell", list(range(1, 21)), 2),
            Slider("n_clients", "Sites", list(range(1, 11)), 2),
            Slider("site", "Site with rings (0: none)", list(range(11)), 0),
        ],
        {"points": X.tolist()},
        compute,
        reads_tables=True,
    )


def cell_shapes(model):
    """Return the occupied cells of a fitted `HorizontalDBSCAN`: the more points, the darker."""
    most, size = model.cell_counts_.max(), model.cell_size
    cells = zip(model.cells_, model.cell_counts_, model.cell_labels_, strict=True)
    return [
        {"kind": "square", "x": i * size, "y": j * size, "size": size, "class": colour(label)}
        | {"opacity": 0.3 + 0.7 * np.sqrt(n / most)}
        for (i, j), n, label in cells
    ]


def kmeans_example():
    """Return the figure of federated k-means, round by round."""
    X = shortened(make_blobs(600, centers=5, cluster_std=1.1, random_state=4)[0])
    rng = np.random.default_rng(0)
    starts = [X[rng.choice(len(X), MOST_CLUSTERS, replace=False)] for _ in range(6)]

    def compute(s):
        start, parts = starts[s["start"]][: s["n_clusters"]], deal(X, s["n_clients"])
        path, sums, n_iter = [start], [], 0
        if s["rounds"]:
            recorder = Recorder({str(i): FederatedKMeansClient(p) for i, p in enumerate(parts)})
            model = FederatedKMeans(
                len(start), method="lloyd", init=start, max_iter=s["rounds"], tol=0
            )
            n_iter = model.fit(recorder).n_iter_
            rounds = recorder.exchanges[1 : n_iter + 1]
            path = [exchange.requests["0"].centres[0] for exchange in rounds]
            path.append(model.cluster_centers_)
            sums = [(reply.sums[0], reply.counts[0]) for reply in rounds[-1].replies.values()]
        labels = KMeansModel(path[-1], 0.0).place(X)
        ended = n_iter > 0 and (path[-1] == path[-2]).all()
        moving = "no longer move" if ended else "still move" if n_iter else "have not moved yet"
        summary = (
            f"{number(len(start), 'centre')} after {number(n_iter, 'round')}; the centres {moving}."
            f" Each round, the server receives {number(len(parts) * len(start), 'sum')}."
        )
        return State(labels.tolist(), [], kmeans_shapes(path, sums), summary)

    return Example(
        "kmeans",
        "Federated k-means: one round after the other",
        "The clients' points and their clusters",
        "What the server sees: means of the clients",
        [
            Slider("rounds", "Rounds", list(range(31)), 3),
            Slider("n_clusters", "Clusters", list(range(1, MOST_CLUSTERS + 1)), 4),
            Slider("n_clients", "Clients", list(range(1, 11)), 2),
            Slider("start", "Start", list(range(len(starts))), 0),
        ],
        {"points": X.tolist(), "starts": [start.tolist() for start in starts]},
        compute,
    )


def kmeans_shapes(path, sums):
    """Return the path of the centres, the last means of the clients and the centres."""
    shapes = [
        dict(zip(("x", "y", "x2", "y2"), (*begin, *end), strict=True))
        | {"kind": "line", "class": colour(c)}
        for before, after in pairwise(path)
        for c, (begin, end) in enumerate(zip(before, after, strict=True))
    ]
    shapes += [
        {"kind": "disc", "x": x / n, "y": y / n, "size": 1.1, "class": colour(c), "opacity": 0.6}
        for totals, counts in sums
        for c, ((x, y), n) in enumerate(zip(totals, counts, strict=True))
        if n
    ]
    return shapes + [
        {"kind": "cross", "x": x, "y": y, "size": 2.5, "class": colour(c)}
        for c, (x, y) in enumerate(path[-1])
    ]


def ppdbdc_example():
    """Return the figure of PPDBDC: representatives and their noise."""
    rng = np.random.default_rng(5)
    moons = make_moons(440, noise=0.06, random_state=5)[0]
    X = rng.permutation(np.concatenate([moons, rng.uniform((-1.3, -0.8), (2.3, 1.3), (40, 2))]))
    X = shortened(X)
    parts = deal(X, N_HOLDERS)

    def compute(s):
        eps_rep = s["eps_rep"] * s["eps"]
        model = PPDBDC(
            s["eps"], s["min_samples"], eps_rep=eps_rep, noise=s["noise"], random_state=0
        ).fit(parts)
        labels = gather(model.labels_)
        sent = zip(
            model.representatives_, model.weights_, model.representative_labels_, strict=True
        )
        shapes = [
            {"kind": "disc", "x": x, "y": y, "size": 0.6 * np.sqrt(weight)}
            | {"class": colour(label), "opacity": 0.6}
            for (x, y), weight, label in sent
        ]
        single = (model.weights_ < MIN_WEIGHT).sum()
        summary = (
            f"{found(labels)} The server receives {number(len(shapes), 'representative')}"
            f" instead of {number(len(X), 'point')}; {single} of them cover fewer than"
            f" {MIN_WEIGHT} points and have noise."
        )
        return State(labels.tolist(), [], shapes, summary)

    return Example(
        "ppdbdc",
        "PPDBDC: change the representatives and their noise",
        f"The points of {N_HOLDERS} clients",
        "What the server sees: representatives (area: points covered)",
        [
            Slider(
                "eps", "eps, the radius of a neighbourhood", [0.1, 0.14, 0.18, 0.22, 0.3, 0.4], 2
            ),
            Slider("min_samples", "min_samples", [2, 4, 6, 8, 10, 15, 20], 3),
            Slider("eps_rep", "Radius of a representative / eps", [0.1, 0.25, 0.45, 0.7, 1.0], 2),
            Slider(
                "noise", "Noise / radius of a representative", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0], 1
            ),
        ],
        {"points": X.tolist(), "draws": client_draws(parts)},
        compute,
    )


def client_draws(parts):
    """Return the random numbers of PPDBDC's clients for ``random_state=0``.

    Each client first permutes its rows and then draws noise, in each round for the means that need
    it. Two numbers per row suffice for one round, and two more for the rare repetitions.
    """
    seeds = np.random.RandomState(0).randint(2**31 - 1, size=len(parts))
    draws = []
    for seed, part in zip(seeds, parts, strict=True):
        rng = np.random.default_rng(np.random.SeedSequence(int(seed)))
        order = rng.permutation(len(part)).tolist()
        draws.append({"order": order, "uniform": rng.random(4 * len(part)).tolist()})
    return draws


def boosting_example():
    """Return the figure of federated boosting, tree by tree."""
    X, y = make_moons(500, noise=0.25, random_state=1)
    X = shortened(X)
    parts = list(zip(deal(X, N_HOLDERS), deal(y, N_HOLDERS), strict=True))
    tiles = tile(X)

    @cache
    def fit(n_trees, max_depth):
        return FederatedXGBClassifier(
            n_trees, method="histogram", max_depth=max_depth, learning_rate=0.3, tol=None
        ).fit(parts)

    def compute(s):
        model = fit(s["n_trees"], s["max_depth"])
        labels = model.predict(X)
        margins = model.decision_function(np.array(tiles["centres"])).astype(float)
        squares = zip(tiles["corners"], margins, strict=True)
        shapes = [
            {"kind": "square", "x": x, "y": y, "size": tiles["size"]}
            | {"class": colour(int(margin > 0)), "opacity": 0.1 + 0.8 * abs(2 * expit(margin) - 1)}
            for (x, y), margin in squares
        ]
        wrong = np.flatnonzero(labels != y).tolist()
        n_nodes = sum(map(len, model.trees_))
        summary = (
            f"{number(len(wrong), 'point')} of {len(X)} in the wrong class. The model has"
            f" {number(s['n_trees'], 'tree')} with {number(n_nodes, 'node')}."
        )
        return State(labels.tolist(), wrong, shapes, summary)

    depths = [1, 2, 3, 6]
    forests = {depth: fit(MOST_TREES, depth) for depth in depths}
    return Example(
        "boosting",
        "Federated XGBoost: one tree after the other",
        f"The points of {N_HOLDERS} clients (ring: wrong class)",
        "What the server builds: the probability of each class",
        [
            Slider("n_trees", "Trees", list(range(1, MOST_TREES + 1)), 2),
            Slider("max_depth", "Depth of a tree", depths, 1),
        ],
        {
            "points": X.tolist(),
            "classes": y.tolist(),
            "base": forests[1].model_.base_margins[0],
            "forests": {depth: list(map(nodes, model.trees_)) for depth, model in forests.items()},
            "tiles": tiles,
        },
        compute,
    )


def tile(X):
    """Return squares that cover points: their corners, their centres and their size."""
    low, high = X.min(axis=0), X.max(axis=0)
    size = np.ceil(256 * (high[0] - low[0]) / N_TILES) / 256
    steps = np.ceil((high - low) / size).astype(int)
    corners = low + size * np.argwhere(np.ones(steps))
    return {"corners": corners.tolist(), "centres": (corners + size / 2).tolist(), "size": size}


def nodes(tree):
    """Return the nodes of a tree as lists; float32 numbers as equal doubles."""
    names = ("feature", "threshold", "left", "value")
    return {name: getattr(tree, name).tolist() for name in names}


EXAMPLES = {
    "horizontal-dbscan": horizontal_dbscan_example,
    "own-table": own_table_example,
    "kmeans": kmeans_example,
    "ppdbdc": ppdbdc_example,
    "boosting": boosting_example,
}
