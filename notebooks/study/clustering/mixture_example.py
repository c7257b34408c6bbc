"""Vasilopoulou's example of mixtures at clients with DBSCAN (Figure 5.2, Table 5.2), rebuilt."""

import numpy as np

from fedlib.clustering.mixtures.em import assign_components
from fedlib.clustering.mixtures.messages import Mixture

# The points per Gaussian of each cluster, which F prints.
SIZES = {"client 1": [[50, 20, 5, 7], [32, 18, 4, 4]], "client 2": [[80, 8, 7, 5]]}
CORNERS = {"client 1": [(0, 0), (0, 6)], "client 2": [(8, 2)]}


def chain(groups, corner, rng):
    """Return groups of points along a bent line; no point lies far from its group's centre."""
    steps = np.array([[0, 0], [1.2, 0.36], [2.4, 0], [3.6, 0.36]])
    offsets = [np.clip(rng.normal(0, 0.12, (n, 2)), -0.25, 0.25) for n in groups]
    return np.concatenate([np.add(corner, at) + o for at, o in zip(steps, offsets, strict=True)])


def points_of(seed):
    """Return the points of both clients: one chain per cluster."""
    rng = np.random.default_rng(seed)
    return {
        client: np.concatenate(
            [chain(g, at, rng) for g, at in zip(SIZES[client], CORNERS[client], strict=True)]
        )
        for client in SIZES
    }


def mixtures_of(reply):
    """Return the mixtures of a client's clusters."""
    bounds = np.cumsum(reply.n_components)[:-1]
    arrays = (np.split(a, bounds) for a in (reply.weights, reply.means, reply.covariances))
    return [Mixture(*mixture, "full") for mixture in zip(*arrays, strict=True)]


def counts_of(reply, X):
    """Return the sizes of a client's clusters and the points of their Gaussians, descending."""
    mixtures = mixtures_of(reply)
    nearest = np.array([np.abs(X[:, None] - m.means).sum(axis=2).min(axis=1) for m in mixtures])
    member = nearest.argmin(axis=0)
    return [
        sorted(np.bincount(assign_components(X[member == i], m), minlength=n), reverse=True)
        for i, (m, n) in enumerate(zip(mixtures, reply.n_components, strict=True))
    ]
