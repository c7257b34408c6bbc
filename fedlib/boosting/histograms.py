"""The method ``"histogram"``: clients sum their gradients per bin, the server finds the splits."""

from __future__ import annotations

import numpy as np

from fedlib.boosting.checks import reasons
from fedlib.boosting.growers import Grower, Level
from fedlib.boosting.histogram_messages import (
    AnyHistograms,
    BuildHistograms,
    BuildPackedHistograms,
    Measured,
)
from fedlib.boosting.leaves import Round, finish_round
from fedlib.boosting.limits import ColumnSampler, OpenNodes
from fedlib.boosting.messages import problem_of_extremes
from fedlib.boosting.training import Training
from fedlib.boosting.trees import children
from fedlib.core.array_types import Bools, Ints
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.histogram_splits import HistogramSplits, children_sums
from fedlib.kernels.histogram_splits import best_splits as best_splits_by_kernel
from fedlib.kernels.histogram_splits import decide as decide_by_kernel
from fedlib.kernels.histograms import subtract_siblings
from fedlib.kernels.splits import Decisions


class HistogramGrower(Grower):
    """Chooses the best cut by the histograms of all clients' rows.

    Of two siblings, clients send the histogram only for the one with the smaller sum of hessians;
    the other is the difference to their parent. When a client was lost since the parent's
    histogram, the remaining clients send both.

    Attributes
    ----------
    lost : list of str
        The clients that were lost before the last histograms.
    histograms : array (n_nodes, n_bins, 2) of int64
        The histograms of the nodes among which the last splits were chosen.
    memory, spare : array (n,) of int64
        The memory of these histograms, and that of the next ones, which `add_up` overwrites. Both
        are used again and again, because new pages of memory take longer than the sums in them.
    parents : array (n_parents,) of int64
        The places in ``histograms`` of the nodes that were split.
    sides : array (2 * n_parents, 2) of int64
        The sums of their children.
    nodes : OpenNodes
        The nodes of the level.
    n_leaves : array (n_outputs,) of int64
        The number of leaves that each tree has so far.
    leaf_sums : list of pairs of arrays
        The indices (n,) and sums (n, 2) of the leaves found so far, level by level.
    """

    def __init__(self, training: Training):
        super().__init__(training)
        self.sampler = ColumnSampler(training.settings, training.described.n_features)
        self.nodes = OpenNodes.roots(training)
        self.n_leaves = np.ones(training.n_outputs, np.int64)
        self.lost: list[str] = []
        self.histograms = np.empty((0, 0, 2), np.int64)
        self.memory, self.spare = np.empty(0, np.int64), np.empty(0, np.int64)
        self.parents = np.empty(0, np.int64)
        self.sides = np.empty((0, 2), np.int64)
        self.leaf_sums: list[tuple[Ints, Ints]] = []

    def grow_round(self) -> Flow[Round | None]:
        """Grow the trees of a round; the sums in their leaves follow from the histograms."""
        self.begin_round()
        decisions = yield from self.split_all_levels()
        if decisions is None:
            return None
        sums = np.zeros((len(decisions.feature), 2), np.int64)
        for nodes, at_nodes in self.leaf_sums:
            sums[nodes] = at_nodes
        if len(self.sides):  # the deepest level, for which no histogram was requested
            sums[-len(self.sides) :] = self.sides
        left = children(decisions.feature, n_roots=self.training.n_outputs)
        return finish_round(decisions, left, sums, self.training)

    def begin_round(self) -> None:
        """Begin the trees of a round."""
        n_trees = self.training.n_outputs
        self.leaf_sums = []
        self.sampler.begin_round(n_trees, self.n_rounds)
        self.nodes = OpenNodes.roots(self.training)
        self.n_leaves = np.ones(n_trees, np.int64)

    def split_level(self, level: Level) -> Flow[Decisions | None]:
        """Choose the splits of a level, as `Grower.split_level`."""
        histograms = yield from self.sum_histograms(level)
        return None if histograms is None else self.choose(level, histograms)

    def sum_histograms(self, level: Level) -> Flow[Ints | None]:
        """Return the sums of the clients' histograms of a level; None when boosting ends."""
        wanted = self.smaller_siblings() if level.first else np.ones(level.n_open, bool)
        histograms, replies = yield from self.ask_for_histograms(level, wanted)
        while level.first and replies.lost != self.lost:
            self.lost, wanted = replies.lost, np.ones(level.n_open, bool)
            histograms, replies = yield from self.ask_for_histograms(level, wanted)
        self.lost = replies.lost
        if self.converged(level, replies):
            return None
        if not wanted.all():
            flat, before = (sums.reshape(len(sums), -1) for sums in (histograms, self.histograms))
            subtract_siblings(flat, wanted, before, self.parents)
        return histograms

    def smaller_siblings(self) -> Bools:
        """Return which nodes of the level have the smaller sum of hessians of two siblings."""
        smaller = np.empty(len(self.sides), bool)
        smaller[0::2] = self.sides[0::2, 1] <= self.sides[1::2, 1]
        smaller[1::2] = ~smaller[0::2]
        return smaller

    def ask_for_histograms(self, level: Level, wanted: Bools) -> Flow[tuple[Ints, Replies]]:
        """Ask for the histograms of the wanted nodes; return their sums over all clients.

        The sums are an array (n_open, n_bins, 2), as in `add_up`. Histograms are checked while they
        are added. If some roots are wrong, those of the other clients are added again; about other
        nodes, `sum_histograms` asks again.
        """
        is_packed = self.training.settings.histograms == "packed"
        request = BuildPackedHistograms if is_packed else BuildHistograms
        largest, n_bins = self.largest_sums(), len(self.training.cuts.thresholds)
        replies = yield from self.ask_about(level, request, largest, wanted=wanted, n_bins=n_bins)
        histograms, measured = self.add_up(wanted, replies)
        found = reasons(
            {
                name: self.problem_of_histograms(level, wanted, name, of_client, largest[name])
                for name, of_client in measured.items()
            }
        )
        replies = yield from self.exclude(replies, found)
        if found and not level.first:
            histograms, _ = self.add_up(wanted, replies)
        return histograms, replies

    def add_up(self, wanted: Bools, replies: Replies) -> tuple[Ints, dict[str, Measured]]:
        """Return the sums of histograms, and what is measured of each.

        The sums of nodes that are not wanted mean nothing. The next call overwrites all, unless
        `choose` has kept them.
        """
        offsets = self.training.cuts.offsets
        size = 2 * offsets[-1] * len(wanted)
        if len(self.spare) < size:
            self.spare = np.empty(size, np.int64)
        histograms = self.spare[:size].reshape(len(wanted), -1, 2)
        histograms[wanted] = 0
        first: AnyHistograms = next(iter(replies.values()))
        return histograms, first.add_up(replies, np.flatnonzero(wanted), offsets, histograms)

    def problem_of_histograms(
        self, level: Level, wanted: Bools, name: str, measured: Measured, weight: float
    ) -> str | None:
        """Return why a client's histograms cannot be right; None if they can."""
        if problem := problem_of_extremes(measured.extremes, weight):
            return problem
        if not measured.are_equal:
            return "the bins of two features do not have the same sum"
        return self.problem_of_sums(level, name, self.sums.complete(name, wanted, measured.totals))

    def choose(self, level: Level, histograms: Ints) -> Decisions:
        """Return each node's best split, and keep what its children and leaves need."""
        splits = self.best_splits(histograms)
        self.keep_max_leaves(splits)
        self.sides, split, leaf = children_sums(splits)
        self.leaf_sums.append((level.first + leaf, splits.sums[leaf]))
        self.histograms, self.parents = histograms, split
        self.memory, self.spare = self.spare, self.memory
        self.nodes = self.nodes.children(split, splits.feature, self.sides, self.training)
        return self.decide(splits)

    def best_splits(self, histograms: Ints) -> HistogramSplits:
        """Return the best split of each open node."""
        training = self.training
        limits = self.sampler.limits(self.nodes, training, self.categories)
        splits: HistogramSplits = best_splits_by_kernel(
            histograms, training.cuts.offsets, training.rule, limits
        )
        return splits

    def decide(self, splits: HistogramSplits) -> Decisions:
        """Return the decisions that make these splits."""
        cuts = self.training.cuts
        decisions: Decisions = decide_by_kernel(
            splits, cuts.offsets, cuts.thresholds, self.categories.is_category
        )
        return decisions

    def keep_max_leaves(self, splits: HistogramSplits) -> None:
        """Make a leaf of each node whose split would give its tree more leaves than allowed."""
        max_leaves = self.training.settings.max_leaves
        if not max_leaves:
            return
        for node in np.flatnonzero(splits.feature >= 0):
            tree = self.nodes.tree[node]
            if self.n_leaves[tree] == max_leaves:
                splits.feature[node] = -1
            else:
                self.n_leaves[tree] += 1
