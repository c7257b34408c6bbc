"""How the server grows a tree: level by level, in the same way for every method.

The request for a level also reports the decisions for the previous level, so a tree costs one
exchange per level. How the splits of a level are chosen is the subject of
`fedlib.boosting.proposals` and `fedlib.boosting.histograms`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.agreement import exclude
from fedlib.boosting.checks import DeclaredRows, NodeHistory
from fedlib.boosting.cuts import Cuts
from fedlib.boosting.messages import Class, Growth
from fedlib.boosting.trees import Tree, children, node_totals
from fedlib.kernels import splits as kernels
from fedlib.kernels.splits import Decisions, SplitRule
from fedlib.messages import Message
from fedlib.protocol import Flow, Replies

__all__ = ["Grower", "Level", "Settings", "Training", "finish_tree", "leaves"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of a run; for their meaning see `FederatedXGBClassifier`.

    ``reg_lambda``, ``gamma`` and ``min_child_weight`` must be float32 numbers, as in XGBoost.
    """

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


@dataclass(kw_only=True)
class Training:
    """The state of the server while trees grow.

    Attributes
    ----------
    settings : Settings
    classes : list of bool, int, float or str
        The two classes in ascending order.
    share : float
        The share of rows of the second class, by weight.
    base_margin : float
        The log-odds of ``share``.
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
    losses : list of float
        The mean log-loss before the first tree and after each tree but the last.
    client_losses : dict of str to float
        The sum of each client's log-losses, as it reported last.
    """

    settings: Settings
    classes: list[Class]
    share: float
    base_margin: float
    learning_rate: float
    bits: int
    n_features: int
    features: tuple[str, ...]
    weights: dict[str, float]
    declared: dict[str, DeclaredRows]
    cuts: Cuts
    losses: list[float] = field(default_factory=list)
    client_losses: dict[str, float] = field(default_factory=dict)

    @property
    def unit(self) -> float:
        """The unit of gradients and hessians."""
        return 2.0**-self.bits

    @property
    def rule(self) -> SplitRule:
        """The rule for splits by the sums of all clients."""
        settings = self.settings
        return SplitRule(self.unit, settings.reg_lambda, settings.gamma, settings.min_child_weight)

    def remove(self, lost: Sequence[str]) -> None:
        """Remove the clients that are lost."""
        for name in lost:
            self.weights.pop(name, None)

    def rows_of(self, name: str) -> DeclaredRows:
        """Return the rows that a client has declared; none for a passive one."""
        return self.declared.get(name, DeclaredRows(0, 0.0, 0.0))

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


class Grower:
    """Grows trees. A subclass chooses the splits of a level and obtains the sums in the leaves."""

    def __init__(self, training: Training):
        self.training = training
        self.max_margin = abs(training.base_margin)  # no margin of a row is larger
        self.is_first_tree = True
        self.weights, self.sums = NodeHistory(), NodeHistory()
        self.report()

    def grow(self, values: NDArray[np.float32]) -> Flow[Tree | None]:
        """Grow a tree.

        Parameters
        ----------
        values : array of float32
            The values of the previous tree's nodes; empty for the first tree.

        Returns
        -------
        tree : Tree or None
            None if the previous tree lowered the loss by so little that it is the last one.
        """
        raise NotImplementedError

    def split_level(self, level: Level) -> Flow[Decisions | None]:
        """Choose the splits of a level.

        For the root, first check `converged`, and return None if it is true.
        """
        raise NotImplementedError

    def split_all_levels(self, values: NDArray[np.float32]) -> Flow[Decisions | None]:
        """Choose all splits of a tree; for parameters and None see `grow`.

        The request for the root sends the values to the clients, and its replies contain the new
        log-loss. So measuring the loss costs no message.
        """
        self.update["values"] = values
        self.is_first_tree = not len(values)
        self.max_margin += float(np.abs(values).max(initial=0))
        levels: list[Decisions] = []
        level = Level(0, 1)
        for history in (self.weights, self.sums):
            history.begin_tree()
        while level.n_open:
            if len(levels) == self.training.settings.max_depth:
                levels.append(leaves(level.n_open))
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
        """Return whether these are the replies about a root and the previous tree was the last."""
        if level.first > 0:
            return False
        return self.training.has_converged({name: reply.loss for name, reply in replies.items()})

    def report(self, decided: int = 0, decisions: Decisions | None = None) -> None:
        """Set the decisions that the next `Growth` request reports; by default none."""
        decisions = leaves(0) if decisions is None else decisions
        self.update: dict[str, Any] = {
            "decided": decided,
            **decisions._asdict(),
            "values": np.empty(0, np.float32),
        }

    def ask(self, request: type[Message], unit: float, **fields: Any) -> Flow[Replies]:
        """Send the same request to every client and return the replies.

        Each request also contains the weight that the client reported, in the unit of its reply.
        """
        weights = self.training.weights
        replies = yield {
            name: request(**fields, weight=weight / unit) for name, weight in weights.items()
        }
        self.training.remove(replies.lost)
        return replies

    def ask_about(
        self, level: Level, request: type[Growth], unit: float, **fields: Any
    ) -> Flow[Replies]:
        """Send a `Growth` request about a level, as `ask`; it reports the latest decisions once."""
        update = self.update
        self.report()
        replies = yield from self.ask(request, unit, **update, **level._asdict(), **fields)
        replies = yield from self.exclude(replies, self.impossible_losses(replies))
        return replies

    def exclude(self, replies: Replies, reasons: Mapping[str, str]) -> Flow[Replies]:
        """Exclude clients whose replies cannot be right; return the replies of the others."""
        replies = yield from exclude(replies, reasons)
        self.training.remove(replies.lost)
        return replies

    def problem_of_sums(self, level: Level, name: str, sums: NDArray[np.int64]) -> str | None:
        """Return why a client's sums in the open nodes cannot be right; None if they can.

        The sums must be those of the declared rows, and next to those of the parents.
        """
        rows, unit = self.training.rows_of(name), self.training.unit
        problem = self.sums.problem(name, sums) or rows.problem(unit, sums)
        if problem is None and level.first == 0 and self.is_first_tree:
            problem = rows.problem_of_first(self.training.share, unit, sums.sum(axis=0))
        return problem

    def impossible_losses(self, replies: Replies) -> dict[str, str]:
        """Return the reason to exclude each client whose log-loss no rows can have.

        The log-loss of a row is at most its weight times the size of its margin plus log 2.
        """
        largest = 1.000001 * (self.max_margin + log(2))
        return {
            name: f"loss must be at most {self.training.weights[name] * largest}, got {loss}"
            for name, reply in replies.items()
            if (loss := getattr(reply, "loss", 0.0)) > self.training.weights[name] * largest
        }


def leaves(n_nodes: int) -> Decisions:
    """Return the decisions that make all nodes leaves."""
    return Decisions(
        np.full(n_nodes, -1, np.int32), np.zeros(n_nodes, np.float32), np.zeros(n_nodes, bool)
    )


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
    value = _newton_step(leaf_sums, training) * np.float32(training.learning_rate)
    value[split] = 0
    g, h = (totals * training.unit).T
    scores = kernels.scores(g, h, settings.reg_lambda)
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
        weight=_newton_step(totals, training),
    )


def _newton_step(sums: NDArray[np.int64], training: Training) -> NDArray[np.float32]:
    """Return −G/(H + λ) of sums (n, 2), 0 if H is below ``min_child_weight``."""
    settings = training.settings
    g, h = (sums * training.unit).T
    enough = (h > 0) & (h >= settings.min_child_weight)
    step = -g / np.where(enough, h + settings.reg_lambda, 1)
    return np.where(enough, step, 0).astype(np.float32)
