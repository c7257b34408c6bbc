"""What the server knows during training: bins, sums and losses, and what contradicts them.

Checks of a client's replies against what it has reported before.

A client declares its rows before the first tree. From then on its rows only move: from a node to
the node's children. So the sums of two siblings are exactly the sum of their parent, the bins of
every feature have the same sum, and the sums at the root belong to the declared weights. A reply
that breaks such a rule excludes its client.

A client can still invent rows, as long as it invents the same rows in all its replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.cuts import Cuts
from fedlib.boosting.descriptions import Described
from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.messages import Levels, SplitProposals
from fedlib.boosting.objectives import OBJECTIVES, Objective, Parameter
from fedlib.boosting.rules import split_rule
from fedlib.boosting.settings import Settings
from fedlib.boosting.trees import Tree, children, node_totals
from fedlib.core.array_types import Bools, Floats32, Ints, Ints32
from fedlib.kernels import gains
from fedlib.kernels.forests import level_order
from fedlib.kernels.gains import Categories, Limits, SplitRule, newton_steps, no_limits
from fedlib.kernels.histograms import absolute_sums, subtract_siblings
from fedlib.kernels.splits import Decisions

ROUNDING = 1e-5  # of a client's weight; gradients are float32


@dataclass(frozen=True)
class DeclaredRows:
    """The rows that a client has declared, and what their sums can be.

    Attributes
    ----------
    n_rows : int
    sums : LabelSums
        The sums over the rows' labels.
    objective : Objective
    parameter : float or tuple of float
        The parameter of the objective, with the scales of the round.
    n_outputs : int
        The count of trees per round.
    is_sampled : bool
        Whether each tree uses a part of the rows only.
    """

    n_rows: int
    sums: LabelSums
    objective: Objective
    parameter: Parameter
    n_outputs: int
    is_sampled: bool

    def problem_of_first(self, margins: Sequence[float], unit: float, sums: Ints) -> str | None:
        """Return why rows cannot have these sums (n_outputs, 2) before the first tree, or None.

        All rows then have the same margins. Each row is rounded to a whole ``unit``.
        """
        expected = self.objective.first_sums(self.sums, margins, self.parameter)
        if expected is None or self.is_sampled:
            return None
        g, h = self.objective.largest_sums(self.sums, max(map(abs, margins)), self.parameter)
        margin = (ROUNDING * max(g, h) + 1e-15) / unit + self.n_rows
        if (np.abs(sums - expected / unit) > margin).any():
            return "the sums of the first tree are not those of the declared rows"
        return None

    def problem(self, unit: float, sums: Ints, largest_margin: float) -> str | None:
        """Return why rows cannot have these sums (n_nodes, 2) in disjoint nodes; None if they can.

        No margin of a row is larger than ``largest_margin``.
        """
        least_h, g, h = absolute_sums(sums)
        if least_h < 0:
            return "a negative sum of hessians"
        largest_g, largest_h = self.objective.largest_sums(
            self.sums, largest_margin, self.parameter
        )
        scale, rounded = self.n_outputs * (1 + ROUNDING) / unit, self.n_outputs * self.n_rows
        if g > scale * largest_g + rounded or h > scale * largest_h + rounded:
            return "the sums exceed what the declared rows can have"
        return None

    def problem_of_gains(
        self, unit: float, reg_lambda: float, proposed: SplitProposals, largest_margin: float
    ) -> str | None:
        """Return why no rows of the reported weights have such gains; None if some have.

        With |G| at most w in a node, G²/(H + λ) is at most w²/λ, and the scores of two children
        together are not more. If an objective's gradients are larger than weights, w is the bound
        for all rows.
        """
        if reg_lambda == 0:
            return None
        largest, _ = self.objective.largest_sums(self.sums, largest_margin, self.parameter)
        weight = np.repeat(proposed.weight, proposed.count)
        weight = np.where(largest > self.sums.weight, largest, weight) + self.n_rows * unit
        if (proposed.gain > (1 + ROUNDING) * weight * (weight / reg_lambda)).any():
            return "the gains exceed what the declared rows can have"
        return None


class NodeHistory:
    """What each client has reported about the nodes that were split last.

    Attributes
    ----------
    open : dict of str to array (n_open, …)
        Per client, the sums or weights of the open nodes.
    parents : dict of str to array (n_parents, …)
        The same in the nodes of the level before that were split.
    """

    def __init__(self) -> None:
        self.open: dict[str, NDArray[Any]] = {}
        self.parents: dict[str, NDArray[Any]] = {}

    def begin_tree(self) -> None:
        """Forget the tree before: the next level is the root."""
        self.parents = {}

    def begin_level(self) -> None:
        """Forget the nodes of the level before."""
        self.open = {}

    def split(self, which: Bools) -> None:
        """Note which of the open nodes are split."""
        self.parents = {name: reported[which] for name, reported in self.open.items()}

    def complete(self, name: str, wanted: Bools, reported: Ints) -> Ints:
        """Return the sums in all open nodes, from those in the ``wanted`` ones of two siblings."""
        parents = self.parents.get(name)
        sums = np.zeros((len(wanted), 2), np.int64)
        sums[wanted] = reported
        if parents is not None and len(reported) < len(wanted):
            subtract_siblings(sums, wanted, parents, np.arange(len(parents)))
        return sums

    def problem(
        self, name: str, reported: NDArray[Any], tolerance: float = 0.0, may_fall: bool = False
    ) -> str | None:
        """Record a client's sums of the open nodes; return why they do not fit their parents'.

        Parameters
        ----------
        name : str
            The client.
        reported : array (n_open, …)
            At the root one node, else the children of the nodes that were split, in pairs.
        tolerance : float
            The rounding errors, as a fraction of the parents' values.
        may_fall : bool
            Whether rows may have stayed in the parents.
        """
        self.open[name] = reported
        parents = self.parents.get(name)
        if parents is None or len(reported) != 2 * len(parents):
            return None
        excess = reported[0::2] + reported[1::2] - parents
        if not np.count_nonzero(excess):
            return None
        outside = excess if may_fall else np.abs(excess)
        if (outside > tolerance * np.abs(parents)).any():
            return "the children of a node do not add up to the node"
        return None


def reasons(problems: Mapping[str, str | None]) -> dict[str, str]:
    """Return the clients with a problem, and the problem of each."""
    return {name: problem for name, problem in problems.items() if problem is not None}


@dataclass(kw_only=True)
class Training:
    """The state of the server while trees grow.

    Attributes
    ----------
    settings : Settings
    described : Described
        The clients' rows at the beginning. With masked sums or noise, there is one client then,
        `EVERYONE`.
    base_scores : list of float
        The prediction before the first tree, one per output.
    base_margins : list of float
        The margins of these predictions.
    bits : int
        Gradients are multiples of 2**-bits.
    weights : dict of str to float
        The total weight of each remaining client's rows, as it reported; 0 for passive clients.
    declared : dict of str to DeclaredRows
        The rows of each client that is not passive, as it reported them.
    cuts : Cuts
        The bins of all features; for histograms only.
    levels : tuple of tuple of str or None
        The categories of each feature, None for a feature of numbers; empty if all features are
        numbers.
    losses : list of float
        The mean loss before the first round and after each round but the last.
    client_losses : dict of str to float
        The sum of each client's losses, as it reported last.
    n_rounds : int
        The count of finished rounds of the model, with those that the run continues.
    scales : tuple of float
        The scale of each output's residuals in this round; empty if the objective has none.
    """

    settings: Settings
    described: Described
    base_scores: list[float]
    base_margins: list[float]
    bits: int
    weights: dict[str, float]
    declared: dict[str, DeclaredRows]
    cuts: Cuts
    levels: Levels
    losses: list[float] = field(default_factory=list)
    client_losses: dict[str, float] = field(default_factory=dict)
    n_rounds: int = 0
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.objective.scaled:  # 0 until the first round has measured them
            self.scales = (0.0,) * self.n_outputs

    @property
    def parameter(self) -> Parameter:
        """The parameter of the objective, with the scales of this round at its end."""
        own = self.settings.parameter
        return own + self.scales if isinstance(own, tuple) else own

    @cached_property
    def unit(self) -> float:
        """The unit of gradients and hessians."""
        return 2.0**-self.bits

    @cached_property
    def rule(self) -> SplitRule:
        """The rule for splits by the sums of all clients."""
        settings = self.settings
        if settings.reg_lambda is None:
            settings = settings.replaced(reg_lambda=self.described.reg_lambda)
        return split_rule(self.unit, settings, settings, any(settings.monotone_constraints))

    @cached_property
    def monotone(self) -> NDArray[np.int8]:
        """The monotone constraint of each feature."""
        constraints = self.settings.monotone_constraints or (0,) * self.described.n_features
        return np.array(constraints, np.int8)

    @cached_property
    def interactions(self) -> Bools:
        """Which features (n_groups, n_features) each group that may interact has."""
        groups = self.settings.interaction_constraints
        members = np.zeros((len(groups), self.described.n_features if groups else 0), bool)
        for i, group in enumerate(groups):
            members[i, list(group)] = True
        return members

    @property
    def categories(self) -> Categories:
        """The features with categories, and how to split them."""
        is_category = np.array(
            [known is not None for known in self.levels or (None,) * self.described.n_features]
        )
        n_bins = np.diff(self.cuts.offsets) if len(self.cuts.thresholds) else is_category * 1
        return Categories(
            is_category,
            self.settings.max_cat_to_onehot,
            self.settings.max_cat_threshold,
            n_bytes=int((max(n_bins[is_category], default=0) + 7) // 8),
        )

    @property
    def withheld(self) -> tuple[int, ...]:
        """The features with a bin for texts that are none of their categories."""
        n_bins = np.diff(self.cuts.offsets) - 1  # without that of missing values
        return tuple(
            f for f, known in enumerate(self.levels) if known is not None and n_bins[f] > len(known)
        )

    @property
    def objective(self) -> Objective:
        """The objective of the run."""
        return OBJECTIVES[self.settings.objective]

    @property
    def n_outputs(self) -> int:
        """The count of trees per round."""
        return len(self.base_margins)

    def learning_rate(self, n_round: int) -> float:
        """Return the learning rate of the round with this index."""
        rates = self.settings.learning_rates
        return rates[n_round] if rates else self.described.learning_rate

    def remove(self, lost: Sequence[str]) -> None:
        """Remove the clients that are lost."""
        for name in lost:
            self.weights.pop(name, None)

    def rows_of(self, name: str) -> DeclaredRows:
        """Return the rows that a client has declared; none for a passive one."""
        if name in self.declared:
            rows = self.declared[name]
            return replace(rows, parameter=self.parameter) if self.scales else rows
        nothing = LabelSums(0.0, (0.0,) * len(self.described.classes))
        return DeclaredRows(0, nothing, self.objective, self.parameter, self.n_outputs, False)

    def has_converged(self, losses: Mapping[str, float]) -> bool:
        """Record the clients' losses; return whether the last tree lowered the mean by too little.

        Only clients that are still there count, before the tree as well as after it.
        """
        reported = {name: loss for name, loss in losses.items() if name in self.weights}
        weight = sum(self.weights[name] for name in reported) or 1.0
        before = sum(self.client_losses.get(name, 0.0) for name in reported) / weight
        after = sum(reported.values()) / weight
        is_first = not self.client_losses
        self.client_losses = reported
        self.losses.append(after)
        tol = self.settings.tol
        return not is_first and tol is not None and not before - after >= tol


class Round(NamedTuple):
    """The trees of a round, one per output, and the values of all nodes in the clients' order."""

    trees: list[Tree]
    values: Floats32


def leaves(n_nodes: int, n_bytes: int = 0) -> Decisions:
    """Return the decisions that make all nodes leaves; a set of categories has ``n_bytes``."""
    return Decisions(
        np.full(n_nodes, -1, np.int32),
        np.zeros(n_nodes, np.float32),
        np.zeros(n_nodes, bool),
        np.zeros((n_nodes, n_bytes), np.uint8),
    )


Columns = TypeVar("Columns", bound=tuple[Any, ...])


def joined(parts: Sequence[Columns]) -> Columns:
    """Return a named tuple of arrays, each one part after the other."""
    make: Any = type(parts[0])
    whole: Columns = make(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return whole


def finish_round(
    decisions: Decisions,
    left: Ints32,
    sums: Ints,
    training: Training,
) -> Round:
    """Return the trees with these splits.

    Parameters
    ----------
    decisions : Decisions
        The splits of all nodes of the round; the roots are the first nodes.
    left : array (n_nodes,) of int32
        The left child of each node, -1 for a leaf.
    sums : array (n_nodes, 2) of int64
        The sums at each node itself.
    training : Training
    """
    values = np.zeros(len(left), np.float32)
    trees = []
    for root in range(training.n_outputs):
        order = level_order(left, root)
        of_tree = decisions.take(order)
        tree = build_tree(of_tree, sums[order], training)
        values[order] = tree.value
        trees.append(tree)
    return Round(trees, values)


def build_tree(decisions: Decisions, sums: Ints, training: Training) -> Tree:
    """Return the tree with these splits and the sums (n_nodes, 2) at each node itself."""
    settings = training.settings
    feature = decisions.feature
    left = children(feature)
    split = np.flatnonzero(feature >= 0)
    totals = node_totals(feature, sums)
    leaf_sums = totals.copy()
    if settings.leaf != "all":
        parent = np.full(len(feature), -1)
        parent[left[split]] = parent[left[split] + 1] = split
        added = sums if settings.leaf == "ended" else totals
        leaf_sums[1:] += added[parent[1:]]
    bounds, rule = _bounds(feature, totals, training), training.rule
    learning_rate = np.float32(training.learning_rate(training.n_rounds))
    value = _newton_steps(leaf_sums, bounds, training) * learning_rate
    value[split] = 0
    g, h = (totals * training.unit).T
    scores = gains.scores(g, h, bounds, rule)
    gain = np.zeros(len(feature), np.float32)
    gain[split] = (scores[left[split]] + scores[left[split] + 1]) - scores[split]
    return Tree(
        feature=feature,
        threshold=decisions.threshold,
        missing_left=decisions.missing_left,
        left=left,
        value=value,
        gain=gain,
        cover=h.astype(np.float32),
        weight=_newton_steps(totals, bounds, training),
        right=decisions.right,
    )


def _bounds(feature: Ints32, totals: Ints, training: Training) -> Floats32:
    """Return the bounds (n_nodes, 2) of each node's weight, those of its parent's children.

    The children of a node split by a feature with a constraint are bounded by the mean of their
    weights, on one side each. As in XGBoost, that applies to their children and not to themselves.
    """
    own = np.ascontiguousarray(gains.no_limits(len(feature), 0).bounds[:, :2])
    if not training.rule.constrained:
        return own
    of_parent, left = own.copy(), children(feature)
    for node in np.flatnonzero(feature >= 0):
        pair = slice(left[node], left[node] + 2)
        of_parent[pair] = own[pair] = own[node]
        steps = _newton_steps(totals[pair], of_parent[pair], training)
        middle = (steps[0] + steps[1]) / np.float32(2)
        constraint = training.monotone[feature[node]]
        if constraint:
            own[left[node], 1 if constraint > 0 else 0] = middle
            own[left[node] + 1, 0 if constraint > 0 else 1] = middle
    return of_parent


def _newton_steps(sums: Ints, bounds: Floats32, training: Training) -> Floats32:
    """Return −G/(H + λ) of sums (n, 2), 0 if H is below ``min_child_weight``."""
    g, h = (sums * training.unit).T
    return gains.newton_steps(g, h, bounds, training.rule)


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
