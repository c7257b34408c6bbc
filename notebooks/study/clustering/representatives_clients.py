"""Clients of DBDC's successors that the pages vary, their rows, and how the pages run them."""

import time

import numpy as np
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from fedlib.clustering.density.engine.dbscan import dbscan, neighbours_within
from fedlib.clustering.density.ppdbdc import (
    BlurredRepresentatives,
    DrawRepresentatives,
    PPDBDCClient,
)
from fedlib.clustering.density.representatives import Coverage
from fedlib.clustering.density.sdbdc import (
    ChooseRepresentatives,
    SDBDCClient,
    WeightedRepresentatives,
)
from fedlib.core.client import Client, handles
from fedlib.core.messages import encode
from fedlib.datasets.partition import split_rows
from fedlib.kernels.representatives import cover_in_order
from fedlib.testing import Recorder
from study.shared.timing import timed


class Remembering(Client):
    """A client that replies from memory to a request that it had before."""

    def __init__(self, client):
        self.client, self.memory = client, {}

    def handle(self, request):
        key = encode(request)
        if key not in self.memory:
            self.memory[key] = self.client.handle(request), self.client.state
        reply, self.client.state = self.memory[key]
        return reply


class RandomClient(SDBDCClient):
    """A client of SDBDC that draws its representatives at random."""

    def __init__(self, X, random_state):
        super().__init__(X)
        self.random_state = random_state

    @handles(ChooseRepresentatives)
    def choose_representatives(self, request):
        X = self.X
        order = np.random.default_rng(self.random_state).permutation(len(X))
        n = len(X) if request.n_representatives is None else request.n_representatives
        chosen, owner, _ = cover_in_order(X, order, request.eps, n)
        covered = owner >= 0
        distances = np.linalg.norm(X[covered] - X[chosen[owner[covered]]], axis=1)
        radii = np.zeros(len(chosen))
        np.maximum.at(radii, owner[covered], distances)
        self.state = Coverage(owner)
        return WeightedRepresentatives(X[chosen], np.bincount(owner[covered]), radii)


class HoldBackClient(PPDBDCClient):
    """A client of PPDBDC that sends no representative of fewer than k points."""

    def __init__(self, X, random_state, k):
        super().__init__(X, random_state)
        self.k = k

    @handles(DrawRepresentatives)
    def draw_representatives(self, request):
        reply = super().draw_representatives(request)
        keep = reply.weights >= self.k
        number = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)  # -1 stays -1
        self.state = Coverage(number[self.state.owner])
        return BlurredRepresentatives(reply.representatives[keep], reply.weights[keep])


def seeded(client_class, parts, dealing=0, **options):
    """Return one client per part, each with its own seed."""
    return [
        client_class(part, random_state=1000 * dealing + i, **options)
        for i, part in enumerate(parts)
    ]


def choosers(choice, parts, dealing=0):
    """Return one client of SDBDC per part that chooses ``"greedy"`` or at random."""
    if choice == "greedy":
        return [SDBDCClient(part) for part in parts]
    return seeded(RandomClient, parts, dealing)


def sweep(estimator, clients, values):
    """Yield all labels, and the clients' representatives, for each MinPts."""
    recorder = Recorder({str(i): Remembering(client) for i, client in enumerate(clients)})
    for value in values:
        clone(estimator).set_params(min_samples=max(2, round(value))).fit(recorder)
        representatives, _ = recorder.exchanges[-2:]
        labels = np.concatenate([client.state.labels for client in clients])
        yield labels, list(representatives.replies.values())


def run_times(estimator, parts, n_repeats=1):
    """Return the times of the fastest run: of the slowest party, the server and all parties."""
    runs = []
    for _ in range(n_repeats):
        recorder = Recorder({str(i): estimator.client_class(part) for i, part in enumerate(parts)})
        estimator.fit(recorder)
        of_parties = [exchange.client_seconds.values() for exchange in recorder.exchanges]
        slowest = sum(map(max, of_parties))
        server = sum(exchange.server_seconds for exchange in recorder.exchanges)
        times = {
            "slowest party": slowest,
            "server": server,
            "all parties": sum(map(sum, of_parties)),
        }
        runs.append(times | {"time": slowest + server})
    return min(runs, key=lambda times: times["time"])


def time_anew(parts, eps):
    """Return the processor time in which the slowest party chooses all anew; see below."""
    return max(timed(choose_all_anew, X, eps, clock=time.process_time)[0][0] for X in parts)


def choose_all_anew(X, eps):
    """Choose representatives as P describes it: compute all of DynRep again every time."""
    start, near = neighbours_within(X, X, eps)
    rows = np.repeat(np.arange(len(X)), np.diff(start))
    closer = eps - np.linalg.norm(X[rows] - X[near], axis=1)
    matrix = csr_array((closer, near, start), shape=(len(X), len(X)))
    uncovered, chosen = np.ones(len(X)), []
    while uncovered.any():
        best = np.argmax(np.round(matrix @ uncovered, 9))
        chosen.append(best)
        uncovered[near[start[best] : start[best + 1]]] = 0
    return np.array(chosen)


def turned_regions(X, n_clients, dealing, n_dealings):
    """Return the rows of each client, which holds a region of the map.

    The map is turned before each cut, by equal parts of a quarter turn, so that the regions of two
    dealings differ.
    """
    angle = np.pi / 2 * dealing / n_dealings
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return split_rows(X @ turn, n_clients, how="spatial")


def strips(X, n_clients):
    """Return the rows of each client, which holds a strip of the map; all are equally wide.

    Unlike the regions of `turned_regions`, they have different numbers of rows.
    """
    x = X[:, 0]
    edges = np.linspace(x.min(), x.max(), n_clients + 1)[1:-1]
    strip = np.digitize(x, edges)
    return [np.flatnonzero(strip == i) for i in range(n_clients)]


def share_shape(X, shape, n_clients, n_holders):
    """Return the rows of each client, if one shape is split at random among the first few.

    Parameters
    ----------
    X : array (n, 2)
    shape : array of bool (n,)
        Which points belong to it; the clients hold regions of all others.
    n_clients, n_holders : int
    """
    own, others = np.flatnonzero(shape), np.flatnonzero(~shape)
    regions = [others[part] for part in split_rows(X[others], n_clients, how="spatial")]
    for i, part in enumerate(split_rows(X[own], n_holders, how="uniform", random_state=0)):
        regions[i] = np.append(regions[i], own[part])
    return regions


def fitting_radii(X, shapes, min_samples):
    """Return the radii that find as many large clusters as there are shapes, each with its ARI.

    A cluster with at least 0.5 % of the points is large.
    """
    fitting = []
    for eps in np.arange(1, 8.01, 0.25):
        labels = dbscan(X, eps, min_samples)
        sizes = np.bincount(labels[labels >= 0], minlength=1)
        if (sizes >= len(labels) / 200).sum() == shapes.max() + 1:
            fitting.append((eps, adjusted_rand_score(shapes, labels)))
    return fitting
