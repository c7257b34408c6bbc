"""CLARANS, a randomised search for k medoids, and sets of points to compare it with DBSCAN.

Source: R. T. Ng and J. Han, "Efficient and effective clustering methods for spatial data mining",
VLDB 1994. `kmedoids_costs.csv` contains costs of another program on the same sets.
"""

from typing import NamedTuple

import numpy as np


class Medoids(NamedTuple):
    """The result of a search.

    Attributes
    ----------
    medoids : array (n_clusters,) of int
        The rows of the medoids.
    cost : float
        The sum of the distances of all points to their nearest medoid.
    local_costs : array (n_local,) of float
        The cost at the end of each local search.
    """

    medoids: np.ndarray
    cost: float
    local_costs: np.ndarray


def clarans(distances, n_clusters, random_state, n_local=2, max_neighbours=None):
    """Return the best medoids of several local searches from random starts.

    A local search replaces one medoid by another point, both drawn at random, whenever this lowers
    the cost. It ends after ``max_neighbours`` draws in a row that do not.

    Parameters
    ----------
    distances : array (n, n)
    n_clusters : int
        At least 2 and below n.
    random_state : int
    n_local : int, default=2
        The number of local searches; 2 is the authors' choice.
    max_neighbours : int, optional
        By default 1.25 % of the ``n_clusters * (n - n_clusters)`` possible exchanges, but at least
        250, as the authors propose.

    Returns
    -------
    Medoids
    """
    rng = np.random.default_rng(random_state)
    n = len(distances)
    if max_neighbours is None:
        max_neighbours = max(250, int(0.0125 * n_clusters * (n - n_clusters)))
    best, local_costs = None, []
    for _ in range(n_local):
        medoids = rng.choice(n, n_clusters, replace=False)
        cost, n_draws = distances[medoids].min(axis=0).sum(), 0
        while n_draws < max_neighbours:
            n_draws += 1
            leaving, entering = rng.integers(n_clusters), rng.integers(n)
            if entering in medoids:
                continue
            others = distances[np.delete(medoids, leaving)].min(axis=0)
            changed = np.minimum(others, distances[entering]).sum()
            if changed < cost:
                medoids[leaving], cost, n_draws = entering, changed, 0
        local_costs.append(cost)
        if best is None or cost < best[1]:
            best = medoids.copy(), cost
    return Medoids(*best, np.array(local_costs))


def best_of_class(distances, labels):
    """Return the medoid of each class: the member with the smallest sum of distances to it."""
    members = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    return np.array([m[distances[np.ix_(m, m)].sum(axis=1).argmin()] for m in members])


def sample_sets(random_state=0):
    """Return three sets of points with the shape of each point (-1 for noise), by name.

    They are of the kinds in P's Fig. 1: balls of different sizes, shapes that are not convex, and
    shapes of different kinds and sizes with noise.
    """
    rng = np.random.default_rng(random_state)
    wave = np.linspace(-1, 1, 400)
    curves = {
        "wave": np.c_[24 + 22 * wave, 80 + 9 * np.sin(np.pi * wave)],
        "arch": _arc([66, 64], 17, 0.1, 3.0),
        "bowl": _arc([80, 66], 17, 3.4, 6.2),
        "hook": np.r_[_arc([32, 32], 17, 1.6, 4.7), np.c_[32 + 28 * (wave + 1), 15 + 0 * wave]],
    }
    mixed = [
        _ball(rng, [25, 72], 17, 330),
        _along(rng, _arc([68, 66], 20, -1.2, 3.2), 2.2),
        _along(rng, np.c_[12 + 35 * (wave + 1), 22 + 5 * np.sin(4 * wave)], 2.2),
        _ball(rng, [70, 66], 6, 60),
    ]
    big_and_small = [_ball(rng, [36, 60], 30, 620)]
    big_and_small += [_ball(rng, c, 8, 45) for c in ([86, 88], [88, 56], [76, 20])]
    return {
        "balls of different sizes": _stack(big_and_small),
        "not convex": _stack([_along(rng, curve, 2.2) for curve in curves.values()]),
        "different shapes, noise": _stack(mixed, rng.uniform(0, 100, (80, 2))),
    }


def equal_balls(n_per_side, random_state=0):
    """Return points of equal balls on a square lattice, and the ball of each point."""
    rng = np.random.default_rng(random_state)
    lattice = np.indices((n_per_side, n_per_side)).reshape(2, -1).T
    return _stack([_ball(rng, 50 * place, 14, 40) for place in lattice])


def _stack(shapes, noise=None):
    """Return the points of all shapes, and the shape of each.

    Coordinates are rounded, so that they do not depend on the last bit of a sine.
    """
    parts = [np.empty((0, 2)) if noise is None else noise, *shapes]
    return np.concatenate(parts).round(3), np.repeat(
        np.arange(len(parts)) - 1, [len(p) for p in parts]
    )


def _ball(rng, centre, radius, n):
    angle, r = rng.uniform(0, 2 * np.pi, n), radius * np.sqrt(rng.random(n))
    return centre + np.c_[r * np.cos(angle), r * np.sin(angle)]


def _arc(centre, radius, first, last):
    angle = np.linspace(first, last, 400)
    return centre + radius * np.c_[np.cos(angle), np.sin(angle)]


def _along(rng, curve, width, density=2.7):
    """Return points near a curve, at most ``width`` away; ``density`` per unit of its length."""
    walked = np.append(0, np.cumsum(np.hypot(*np.diff(curve, axis=0).T)))
    at = rng.uniform(0, walked[-1], round(density * walked[-1]))
    places = np.c_[np.interp(at, walked, curve[:, 0]), np.interp(at, walked, curve[:, 1])]
    return places + _ball(rng, [0, 0], width, len(at))
