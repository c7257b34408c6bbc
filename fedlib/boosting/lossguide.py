"""The method ``"histogram"`` with XGBoost's ``grow_policy="lossguide"``.

In each step, every tree of the round splits its leaf with the largest gain, so a tree of n leaves
costs n - 1 exchanges. Nodes are numbered in the order in which they appear.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.growers import Level
from fedlib.boosting.histograms import HistogramGrower
from fedlib.boosting.leaves import Round, finish_round, leaves
from fedlib.boosting.limits import OpenNodes
from fedlib.boosting.training import Training
from fedlib.core.array_types import Ints
from fedlib.core.protocol import Flow
from fedlib.kernels.splits import Decisions


class Candidate(NamedTuple):
    """A leaf that can be split: sorted by its gain, then by its number.

    ``decision`` is its split; ``sides`` (2, 2) are the sums of its children. ``lost`` are the
    clients that were lost before its histogram.
    """

    falling_gain: float
    node: int
    decision: Decisions
    sides: Ints
    histogram: Ints
    nodes: OpenNodes
    lost: list[str]


class LossguideGrower(HistogramGrower):
    """Splits the leaf with the largest gain first.

    Attributes
    ----------
    queues : list of lists of Candidate
        The leaves of each tree that can be split, as a heap.
    split : dict of int to tuple
        The decision and the left child of each node that is split.
    totals : dict of int to array (2,)
        The sums in each node.
    reported : dict of str to dict of int to array (2,)
        The sums in each node that each client has reported.
    """

    def __init__(self, training: Training):
        super().__init__(training)
        self.queues: list[list[Candidate]] = []
        self.split: dict[int, tuple[Decisions, int]] = {}
        self.totals: dict[int, Ints] = {}
        self.reported: dict[str, dict[int, NDArray[Any]]] = {}

    def grow_round(self) -> Flow[Round | None]:
        """Grow the trees of a round."""
        self.begin_round()
        self.queues = [[] for _ in range(self.training.n_outputs)]
        self.split, self.totals, self.reported = {}, {}, {}
        level = Level(0, self.training.n_outputs)
        self.sums.begin_tree()
        while level.n_open:
            self.sums.begin_level()
            histograms = yield from self.sum_histograms(level)
            if histograms is None:
                return None
            self.add_candidates(level, histograms)
            level = self.split_best()
            while level.n_open and not self.can_be_split():
                level = self.split_best()
        return self.finish()

    def add_candidates(self, level: Level, histograms: Ints) -> None:
        """Add the open nodes with an allowed split to the queues of their trees."""
        settings = self.training.settings
        splits = self.best_splits(histograms)
        decisions = self.decide(splits)
        for name, sums in self.sums.open.items():
            of_client = self.reported.setdefault(name, {})
            of_client.update(zip(range(level.first, level.first + len(sums)), sums, strict=True))
        for i in range(level.n_open):
            node = level.first + i
            self.totals[node] = splits.sums[i]
            too_deep = settings.max_depth and self.nodes.depth[i] >= settings.max_depth
            if decisions.feature[i] < 0 or too_deep:
                continue
            sides = np.stack([splits.left_sums[i], splits.sums[i] - splits.left_sums[i]])
            candidate = Candidate(
                -float(splits.gain[i]),
                node,
                decisions.take(slice(i, i + 1)),
                sides,
                histograms[i].copy(),
                self.nodes.take(np.array([i])),
                self.lost,
            )
            heapq.heappush(self.queues[self.nodes.tree[i]], candidate)

    def split_best(self) -> Level:
        """Split the best leaf of each tree; return the level of their children."""
        max_leaves = self.training.settings.max_leaves
        chosen = []
        for tree, queue in enumerate(self.queues):
            if queue and (not max_leaves or self.n_leaves[tree] < max_leaves):
                chosen.append(heapq.heappop(queue))
                self.n_leaves[tree] += 1
        first = self.training.n_outputs + 2 * len(self.split)
        if not chosen:
            return Level(first, 0)
        for i, candidate in enumerate(chosen):
            child = first + 2 * i
            self.split[candidate.node] = candidate.decision, child
            self.totals[child], self.totals[child + 1] = candidate.sides
        decisions = Decisions(
            *(np.concatenate(a) for a in zip(*(c.decision for c in chosen), strict=True))
        )
        self.report_split(first, [candidate.node for candidate in chosen], decisions)
        self.sides = np.concatenate([candidate.sides for candidate in chosen])
        self.histograms = np.stack([candidate.histogram for candidate in chosen])
        self.parents = np.arange(len(chosen))
        self.lost = min((candidate.lost for candidate in chosen), key=len)
        self.sums.parents = {
            name: np.stack([sums[candidate.node] for candidate in chosen])
            for name, sums in self.reported.items()
            if all(candidate.node in sums for candidate in chosen)
        }
        nodes = OpenNodes(
            *(np.concatenate(a) for a in zip(*(c.nodes for c in chosen), strict=True))
        )
        everything = np.arange(len(chosen))
        self.nodes = nodes.children(everything, decisions.feature, self.sides, self.training)
        return Level(first, 2 * len(chosen))

    def report_split(self, first: int, parents: list[int], decisions: Decisions) -> None:
        """Add splits to those that the next request reports; ``first`` is the first child."""
        reported = self.update.get("parents", ())
        if not reported:
            self.report(first, decisions)
        else:
            for name, array in decisions._asdict().items():
                self.update[name] = np.concatenate([self.update[name], array])
        self.update["parents"] = (*reported, *parents)

    def can_be_split(self) -> bool:
        """Return whether any of the open nodes may be split again."""
        settings = self.training.settings
        shallow = self.nodes.depth < (settings.max_depth or np.inf)
        few = self.n_leaves[self.nodes.tree] < (settings.max_leaves or np.inf)
        return bool((shallow & few).any())

    def finish(self) -> Round:
        """Return the trees of the round."""
        n_nodes = self.training.n_outputs + 2 * len(self.split)
        decisions, left = leaves(n_nodes, self.n_bytes), np.full(n_nodes, -1, np.int32)
        sums = np.zeros((n_nodes, 2), np.int64)
        for node, total in self.totals.items():
            if node not in self.split:
                sums[node] = total
        for node, (decision, child) in self.split.items():
            columns: tuple[NDArray[Any], ...] = decisions
            split: tuple[NDArray[Any], ...] = decision
            for column, of_node in zip(columns, split, strict=True):
                column[node] = of_node[0]
            left[node] = child
        return finish_round(decisions, left, sums, self.training)
