"""How the server grows the trees of a round: level by level, in the same way for every method.

A round has one tree per output: one in all for two classes and for a regression, one per class for
several classes. The trees of a round grow side by side, and their nodes are numbered together: the
roots first, then level by level. The request for a level also reports the decisions for the
previous level, so a round costs one exchange per level. How the splits of a level are chosen is the
subject of `fedlib.boosting.proposals` and `fedlib.boosting.histograms`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.agreement import exclude
from fedlib.boosting.checks import DeclaredRows, NodeHistory
from fedlib.boosting.cuts import Cuts
from fedlib.boosting.described import Pool
from fedlib.boosting.messages import (
    MAX_SUM,
    Class,
    Growth,
    Levels,
    ObjectiveName,
    unchecked_copy,
)
from fedlib.boosting.objectives import OBJECTIVES, LabelSums, Objective
from fedlib.boosting.trees import Tree, children, node_totals
from fedlib.kernels import gains as kernels
from fedlib.kernels.forests import level_order
from fedlib.kernels.gains import Categories, SplitRule
from fedlib.kernels.splits import Decisions
from fedlib.loss import Privacy
from fedlib.messages import Message
from fedlib.protocol import Flow, Replies

__all__ = ["Grower", "Level", "Round", "Settings", "Training", "finish_round", "leaves"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of a run; for their meaning see `FederatedXGBClassifier`.

    ``reg_lambda``, ``reg_alpha``, ``gamma``, ``min_child_weight`` and ``max_delta_step`` must be
    float32 numbers, as in XGBoost.
    """

    objective: ObjectiveName
    n_trees: int
    n_candidates: int
    method: Literal["top_splits", "union", "histogram"]
    max_depth: int
    learning_rate: float
    reg_lambda: float
    gamma: float
    min_child_weight: float
    max_bin: int
    tol: float | None
    leaf: Literal["all", "ended", "parent"]
    huber_slope: float
    base_score: float | None
    reg_alpha: float
    max_delta_step: float
    scale_pos_weight: float
    subsample: float
    colsample_bytree: float
    colsample_bylevel: float
    colsample_bynode: float
    monotone_constraints: tuple[int, ...]
    grow_policy: Literal["depthwise", "lossguide"]
    max_leaves: int
    max_cat_to_onehot: int
    max_cat_threshold: int
    min_category_count: int
    histograms: Literal["dense", "packed"]
    validation_fraction: float
    eval_metric: tuple[str, ...]
    early_stopping_rounds: int | None
    seed: int
    secure: bool
    feature_bounds: Cuts | None  # the bins between them; None if bins follow from the data
    privacy: Privacy | None  # the loss of each request for histograms, if they have noise
    max_gradient: float
    classes: tuple[Class, ...]  # on which they have agreed; empty if they follow from the data

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers."""
        return self.objective not in ("binary:logistic", "multi:softprob")

    @property
    def parameter(self) -> float:
        """The parameter of the objective."""
        if self.objective == "reg:pseudohubererror":
            return self.huber_slope
        return self.max_delta_step if self.objective == "count:poisson" else 0.0


@dataclass(kw_only=True)
class Training:
    """The state of the server while trees grow.

    Attributes
    ----------
    settings : Settings
    classes : list of bool, int, float or str
        The classes in ascending order; empty for a regression.
    base_scores : list of float
        The prediction before the first tree, one per output.
    base_margins : list of float
        The margins of these predictions.
    learning_rate : float
        The learning rate on which the clients agreed.
    bits : int
        Gradients are multiples of 2**-bits.
    n_features : int
    features : tuple of str
        The features' names; empty if they have none.
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
    pool : Pool or None
        What sums over all clients need, if the server sees only these. There is one client then,
        `EVERYONE`.
    """

    settings: Settings
    classes: list[Class]
    base_scores: list[float]
    base_margins: list[float]
    learning_rate: float
    bits: int
    n_features: int
    features: tuple[str, ...]
    weights: dict[str, float]
    declared: dict[str, DeclaredRows]
    cuts: Cuts
    levels: Levels
    losses: list[float] = field(default_factory=list)
    client_losses: dict[str, float] = field(default_factory=dict)
    pool: Pool | None = None

    @cached_property
    def unit(self) -> float:
        """The unit of gradients and hessians."""
        return 2.0**-self.bits

    @cached_property
    def rule(self) -> SplitRule:
        """The rule for splits by the sums of all clients."""
        settings = self.settings
        return SplitRule(
            self.unit,
            settings.reg_lambda,
            settings.gamma,
            settings.min_child_weight,
            settings.reg_alpha,
            settings.max_delta_step,
            any(settings.monotone_constraints),
        )

    @cached_property
    def monotone(self) -> NDArray[np.int8]:
        """The monotone constraint of each feature."""
        constraints = self.settings.monotone_constraints or (0,) * self.n_features
        return np.array(constraints, np.int8)

    @property
    def categories(self) -> Categories:
        """The features with categories, and how to split them."""
        is_category = np.array(
            [known is not None for known in self.levels or (None,) * self.n_features]
        )
        n_bins = np.diff(self.cuts.offsets) if len(self.cuts.thresholds) else is_category * 1
        return Categories(
            is_category,
            self.settings.max_cat_to_onehot,
            self.settings.max_cat_threshold,
            n_bytes=int((max(n_bins[is_category], default=0) + 7) // 8),
        )

    @property
    def objective(self) -> Objective:
        """The objective of the run."""
        return OBJECTIVES[self.settings.objective]

    @property
    def n_outputs(self) -> int:
        """The number of trees per round."""
        return len(self.base_margins)

    def remove(self, lost: Sequence[str]) -> None:
        """Remove the clients that are lost."""
        for name in lost:
            self.weights.pop(name, None)

    def rows_of(self, name: str) -> DeclaredRows:
        """Return the rows that a client has declared; none for a passive one."""
        if name in self.declared:
            return self.declared[name]
        nothing = LabelSums(0.0, (0.0,) * len(self.classes))
        parameter = self.settings.parameter
        return DeclaredRows(0, nothing, self.objective, parameter, self.n_outputs, False)

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


class Level(NamedTuple):
    """The open nodes of a level: ``n_open`` nodes from number ``first`` on."""

    first: int
    n_open: int


class Round(NamedTuple):
    """The trees of a round, one per output, and the values of all nodes in the clients' order."""

    trees: list[Tree]
    values: NDArray[np.float32]


class Grower:
    """Grows trees. A subclass chooses the splits of a level and obtains the sums in the leaves."""

    def __init__(self, training: Training):
        self.training = training
        self.max_margin = max(map(abs, training.base_margins))  # no margin of a row is larger
        self.is_first_round = True
        self.categories = training.categories
        self.n_bytes = self.categories.n_bytes  # of a set of categories
        self.weights, self.sums = NodeHistory(), NodeHistory()
        self.report()

    def grow(self) -> Flow[Round | None]:
        """Grow the trees of a round.

        Returns
        -------
        round : Round or None
            None if the previous round lowered the loss by so little that it is the last one.
        """
        grown = yield from self.grow_round()
        if grown is None:
            return None
        self.update["values"] = grown.values
        self.max_margin += float(np.abs(grown.values).max(initial=0))
        self.is_first_round = False
        return grown

    def continue_from(self, trees: Sequence[Tree]) -> None:
        """Take note of the trees that a run continues."""
        self.max_margin += sum(float(np.abs(tree.value).max(initial=0)) for tree in trees)
        self.is_first_round = not trees

    def grow_round(self) -> Flow[Round | None]:
        """Do the work of `grow`."""
        raise NotImplementedError

    def split_level(self, level: Level) -> Flow[Decisions | None]:
        """Choose the splits of a level.

        For the roots, first check `converged`, and return None if it is true.
        """
        raise NotImplementedError

    def split_all_levels(self) -> Flow[Decisions | None]:
        """Choose all splits of a round; for None see `grow`.

        The request for the roots sends the previous trees' values to the clients, and its replies
        contain the new loss. So measuring the loss costs no message.
        """
        levels: list[Decisions] = []
        level = Level(0, self.training.n_outputs)
        for history in (self.weights, self.sums):
            history.begin_tree()
        while level.n_open:
            if len(levels) == self.training.settings.max_depth:
                levels.append(leaves(level.n_open, self.n_bytes))
                break
            for history in (self.weights, self.sums):
                history.begin_level()
            decisions = yield from self.split_level(level)
            if decisions is None:
                return None
            levels.append(decisions)
            self.report(level.first, decisions)
            for history in (self.weights, self.sums):
                history.split(decisions.feature >= 0)
            n_split = int((decisions.feature >= 0).sum())
            level = Level(level.first + level.n_open, 2 * n_split)
        return Decisions(*(np.concatenate(arrays) for arrays in zip(*levels, strict=True)))

    def converged(self, level: Level, replies: Replies) -> bool:
        """Return whether these are the replies about roots and the previous round was the last."""
        if level.first > 0:
            return False
        return self.training.has_converged({name: reply.loss for name, reply in replies.items()})

    def report(self, decided: int = 0, decisions: Decisions | None = None) -> None:
        """Set the decisions that the next `Growth` request reports; by default none."""
        decisions = leaves(0, self.n_bytes) if decisions is None else decisions
        self.update: dict[str, Any] = {
            "decided": decided,
            **decisions._asdict(),
            "values": np.empty(0, np.float32),
        }

    def largest_sum(self, name: str) -> float:
        """Return the largest sum of a client, as `Growth.weight` defines it."""
        if name not in self.training.declared:
            return 0.0
        rows = self.training.rows_of(name)
        g, h = rows.objective.largest_sums(rows.sums, self.max_margin, rows.parameter)
        return min(max(g, 4 * h), MAX_SUM * self.training.unit)

    def ask(
        self, request: type[Message], largest: Mapping[str, float], **fields: Any
    ) -> Flow[Replies]:
        """Send the same request to every client and return the replies.

        Each request also contains the largest sum that the client's reply may have.
        """
        asked: Message = request(**fields, weight=0.0)
        replies = yield {
            name: unchecked_copy(asked, weight=float(largest[name]))
            for name in self.training.weights
        }
        self.training.remove(replies.lost)
        return replies

    def ask_about(
        self, level: Level, request: type[Growth], largest: Mapping[str, float], **fields: Any
    ) -> Flow[Replies]:
        """Send a `Growth` request about a level, as `ask`; it reports the latest decisions once."""
        update = self.update
        self.report()
        right = update.pop("right")
        if right.size:
            update["right"] = right.tobytes()
        replies = yield from self.ask(request, largest, **update, **level._asdict(), **fields)
        replies = yield from self.exclude(replies, self.impossible_losses(replies))
        return replies

    def largest_sums(self) -> dict[str, float]:
        """Return the largest sum of each client, in units."""
        unit = self.training.unit
        return {name: self.largest_sum(name) / unit for name in self.training.weights}

    def exclude(self, replies: Replies, reasons: Mapping[str, str]) -> Flow[Replies]:
        """Exclude clients whose replies cannot be right; return the replies of the others."""
        replies = yield from exclude(replies, reasons)
        self.training.remove(replies.lost)
        return replies

    def problem_of_sums(self, level: Level, name: str, sums: NDArray[np.int64]) -> str | None:
        """Return why a client's sums in the open nodes cannot be right; None if they can.

        The sums must be those of the declared rows, and next to those of the parents.
        """
        rows, training = self.training.rows_of(name), self.training
        problem = self.sums.problem(name, sums)
        if problem is None:
            problem = rows.problem(training.unit, sums, self.max_margin)
        if problem is None and level.first == 0 and self.is_first_round:
            problem = rows.problem_of_first(training.base_margins, training.unit, sums)
        return problem

    def impossible_losses(self, replies: Replies) -> dict[str, str]:
        """Return the reason to exclude each client whose loss no rows can have."""
        reasons = {}
        for name, reply in replies.items():
            rows = self.training.rows_of(name)
            largest = 1.000001 * rows.objective.largest_loss(
                rows.sums, self.max_margin, rows.parameter
            )
            if (loss := getattr(reply, "loss", 0.0)) > largest:
                reasons[name] = f"loss must be at most {largest}, got {loss}"
        return reasons


def leaves(n_nodes: int, n_bytes: int = 0) -> Decisions:
    """Return the decisions that make all nodes leaves; a set of categories has ``n_bytes``."""
    return Decisions(
        np.full(n_nodes, -1, np.int32),
        np.zeros(n_nodes, np.float32),
        np.zeros(n_nodes, bool),
        np.zeros((n_nodes, n_bytes), np.uint8),
    )


def finish_round(
    decisions: Decisions,
    left: NDArray[np.int32],
    sums: NDArray[np.int64],
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
        tree = finish_tree(of_tree, sums[order], training)
        values[order] = tree.value
        trees.append(tree)
    return Round(trees, values)


def finish_tree(decisions: Decisions, sums: NDArray[np.int64], training: Training) -> Tree:
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
    value = _newton_steps(leaf_sums, bounds, training) * np.float32(training.learning_rate)
    value[split] = 0
    g, h = (totals * training.unit).T
    scores = kernels.scores(g, h, bounds, rule)
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


def _bounds(
    feature: NDArray[np.int32], totals: NDArray[np.int64], training: Training
) -> NDArray[np.float32]:
    """Return the bounds (n_nodes, 2) of each node's weight, those of its parent's children.

    The children of a node split by a feature with a constraint are bounded by the mean of their
    weights, on one side each. As in XGBoost, that applies to their children and not to themselves.
    """
    own = np.ascontiguousarray(kernels.no_limits(len(feature), 0).bounds[:, :2])
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


def _newton_steps(
    sums: NDArray[np.int64], bounds: NDArray[np.float32], training: Training
) -> NDArray[np.float32]:
    """Return −G/(H + λ) of sums (n, 2), 0 if H is below ``min_child_weight``."""
    g, h = (sums * training.unit).T
    return kernels.newton_steps(g, h, bounds, training.rule)
