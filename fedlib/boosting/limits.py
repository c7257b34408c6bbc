"""What limits the splits of a node: drawn features, and constraints as in XGBoost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedlib.boosting.training import Training
from fedlib.core.array_types import Bools, Floats32, Ints, Ints32
from fedlib.kernels.gains import Categories, Limits, newton_steps, no_limits

if TYPE_CHECKING:  # a site does not need the estimators' parameters
    from fedlib.boosting.settings import Settings


class OpenNodes(NamedTuple):
    """The trees (n_open,), depths (n_open,) and bounds (n_open, 4) of open nodes.

    The bounds are those of `fedlib.kernels.gains.Limits`. ``path`` (n_open, n_features) of bool
    says which features split the nodes above; without interaction constraints, it is
    (n_open, 0).
    """

    tree: Ints
    depth: Ints
    bounds: Floats32
    path: Bools

    @classmethod
    def roots(cls, training: Training) -> OpenNodes:
        """Return the roots of the trees of a round."""
        n_trees = training.n_outputs
        bounds = no_limits(n_trees, 0).bounds
        path = np.zeros((n_trees, training.interactions.shape[1]), bool)
        return cls(np.arange(n_trees), np.zeros(n_trees, np.int64), bounds, path)

    def take(self, which: Ints) -> OpenNodes:
        """Return the nodes at these positions."""
        return OpenNodes(self.tree[which], self.depth[which], self.bounds[which], self.path[which])

    def children(
        self,
        split: Ints,
        feature: Ints32,
        sides: Ints,
        training: Training,
    ) -> OpenNodes:
        """Return the children of the nodes at the positions ``split`` (n_split,).

        ``feature`` (n_open,) are the features by which nodes are split, and ``sides``
        (2 * n_split, 2) the children's sums, in pairs.
        """
        parent = np.repeat(split, 2)
        bounds = self.bounds[parent]
        if training.rule.constrained:
            bounds[:, 2:] = bounds[:, :2]
            constraint = training.monotone[feature[split]]
            middle = middles(sides, bounds[:, 2:], training)
            rises, falls = np.flatnonzero(constraint > 0), np.flatnonzero(constraint < 0)
            bounds[2 * rises, 1] = bounds[2 * rises + 1, 0] = middle[rises]
            bounds[2 * falls, 0] = bounds[2 * falls + 1, 1] = middle[falls]
        path = self.path[parent]
        if path.size:
            path[np.arange(len(parent)), feature[parent]] = True
        return OpenNodes(self.tree[parent], self.depth[parent] + 1, bounds, path)


def may_interact(path: Bools, groups: Bools) -> Bools:
    """Return which features (n_open, n_features) may follow on the paths to nodes.

    As in XGBoost, these are the features of the path, and those of each group that contains the
    whole path; for a root, all features.

    Parameters
    ----------
    path : array (n_open, n_features) of bool
        The features that split the nodes above.
    groups : array (n_groups, n_features) of bool

    Examples
    --------
    Of four features, the first two may interact, and the second with the third:

    >>> groups = np.array([[1, 1, 0, 0], [0, 1, 1, 0]], bool)
    >>> path = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], bool)
    >>> may_interact(path, groups).astype(int).tolist()
    [[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    """
    contains: Bools = ~(path @ ~groups.T)  # of booleans: whether any product is true
    return path | (contains @ groups) | ~path.any(axis=1, keepdims=True)


def middles(sides: Ints, bounds: Floats32, training: Training) -> Floats32:
    """Return the mean (n,) of the weights of each pair of siblings with sums (2n, 2)."""
    g, h = (sides * training.unit).T
    weights = newton_steps(g, h, np.ascontiguousarray(bounds), training.rule)
    return (weights[0::2] + weights[1::2]) / np.float32(2)


class ColumnSampler:
    """Draws the features of each tree, level and node, as XGBoost does, from our own streams.

    Each round has a stream of its own, so that a run that continues a model draws what one run of
    all rounds draws.

    Parameters
    ----------
    settings : Settings
    n_features : int
    """

    def __init__(self, settings: Settings, n_features: int):
        self.fractions = (
            settings.colsample_bytree,
            settings.colsample_bylevel,
            settings.colsample_bynode,
        )
        self.n_features = n_features
        self.seed = settings.seed
        self.of_tree: list[Ints] = []
        self.of_level: dict[tuple[int, int], Ints] = {}

    def begin_round(self, n_trees: int, n_round: int) -> None:
        """Draw the features of the trees of the round with the index ``n_round``."""
        self.random = np.random.default_rng([self.seed, n_round])
        everything = np.arange(self.n_features)
        self.of_tree = [self._draw(everything, self.fractions[0]) for _ in range(n_trees)]
        self.of_level = {}

    def limits(self, nodes: OpenNodes, training: Training, categories: Categories) -> Limits:
        """Return the limits of open nodes."""
        n_nodes = len(nodes.tree)
        allowed = np.ones((n_nodes, self.n_features), bool)
        if min(self.fractions) < 1:
            allowed[:] = False
            for node, key in enumerate(zip(nodes.tree.tolist(), nodes.depth.tolist(), strict=True)):
                if key not in self.of_level:
                    self.of_level[key] = self._draw(self.of_tree[key[0]], self.fractions[1])
                allowed[node, self._draw(self.of_level[key], self.fractions[2])] = True
        if nodes.path.size:
            allowed &= may_interact(nodes.path, training.interactions)
        return Limits(nodes.bounds, training.monotone, allowed, categories)

    def _draw(self, features: Ints, fraction: float) -> Ints:
        if fraction == 1:
            return features
        size = max(1, int(fraction * len(features)))
        return self.random.choice(features, size, replace=False)
