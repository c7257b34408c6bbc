"""The methods ``"top_splits"`` and ``"union"``: clients propose splits, the server chooses."""

from __future__ import annotations

from math import isclose
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.checks import ROUNDING, reasons
from fedlib.boosting.growers import Grower, Level, finish_tree, leaves
from fedlib.boosting.messages import (
    EvaluateSplits,
    LeafSums,
    ProposeSplits,
    SplitProposals,
    SumLeaves,
)
from fedlib.boosting.trees import Tree
from fedlib.kernels import splits as kernels
from fedlib.kernels.splits import Decisions
from fedlib.protocol import Flow, Replies

__all__ = ["TopSplits", "UnionSplits"]


class Proposals(NamedTuple):
    """The proposals of all clients, one entry per proposal.

    ``node`` counts from the level's first node; ``weight`` is that of the client's rows there.
    """

    node: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    direction: NDArray[np.uint8]
    gain: NDArray[np.float32]
    weight: NDArray[np.float64]

    def take(self, positions: NDArray[np.int64]) -> Proposals:
        """Return the proposals at these positions."""
        columns: tuple[NDArray[Any], ...] = self
        return Proposals(*(column[positions] for column in columns))


class ProposalGrower(Grower):
    """Base class of the growers that ask clients for splits and for the sums in the leaves."""

    def grow(self, values: NDArray[np.float32]) -> Flow[Tree | None]:
        """Grow a tree, as `Grower.grow`."""
        decisions = yield from self.split_all_levels(values)
        if decisions is None:
            return None
        training, n_nodes = self.training, len(decisions.feature)
        replies = yield from self.ask_about(Level(0, 0), SumLeaves, training.unit, n_nodes=n_nodes)
        replies = yield from self.exclude(
            replies,
            reasons({name: self.problem_of_leaves(name, replies[name]) for name in replies}),
        )
        sums = sum(reply.sums for reply in replies.values())
        return finish_tree(decisions, sums, training)

    def problem_of_leaves(self, name: str, reply: LeafSums) -> str | None:
        """Return why a client's sums in the leaves cannot be right; None if they can."""
        rows, training = self.training.rows_of(name), self.training
        problem = rows.problem(training.unit, reply.sums)
        if problem is None and self.is_first_tree:
            total = reply.sums.sum(axis=0)
            problem = rows.problem_of_first(training.share, training.unit, total)
        return problem

    def problem_of_proposals(self, level: Level, name: str, reply: SplitProposals) -> str | None:
        """Return why a client's proposals cannot be right; None if they can."""
        training, rows = self.training, self.training.rows_of(name)
        may_end = training.settings.leaf == "ended"
        if level.first == 0 and not isclose(reply.weight[0], rows.weight, rel_tol=ROUNDING):
            return "the weight at the root is not that of the declared rows"
        return self.weights.problem(name, reply.weight, ROUNDING, may_end) or rows.problem_of_gains(
            training.unit, training.settings.reg_lambda, reply
        )

    def ask_for_proposals(
        self, level: Level, gamma: float, min_child_weight: float
    ) -> Flow[Replies]:
        """Ask for the clients' best splits, subject to these limits on their rows alone."""
        settings = self.training.settings
        replies = yield from self.ask_about(
            level,
            ProposeSplits,
            1.0,
            n_features=self.training.n_features,
            n_candidates=settings.n_candidates,
            reg_lambda=settings.reg_lambda,
            gamma=gamma,
            min_child_weight=min_child_weight,
            may_end=settings.leaf == "ended",
        )
        problems = {
            name: self.problem_of_proposals(level, name, reply) for name, reply in replies.items()
        }
        replies = yield from self.exclude(replies, reasons(problems))
        return replies


class TopSplits(ProposalGrower):
    """Chooses the split with the largest sum of its proposers' gains, weighted by rows (3.3)."""

    def split_level(self, level: Level) -> Flow[Decisions | None]:
        """Choose the splits of a level, as `Grower.split_level`."""
        settings = self.training.settings
        replies = yield from self.ask_for_proposals(
            level, settings.gamma, settings.min_child_weight
        )
        if self.converged(level, replies):
            return None
        return choose_by_votes(_pool(replies), level.n_open, settings.gamma)


class UnionSplits(ProposalGrower):
    """Chooses the proposed split with the largest gain over all clients' rows."""

    def split_level(self, level: Level) -> Flow[Decisions | None]:
        """Choose the splits of a level, as `Grower.split_level`."""
        training = self.training
        n_clients = sum(weight > 0 for weight in training.weights.values())
        replies = yield from self.ask_for_proposals(
            level, gamma=0.0, min_child_weight=training.settings.min_child_weight / n_clients
        )
        if self.converged(level, replies):
            return None
        proposals = _pool(replies)
        order, starts = _group_equal(proposals, proposals.gain)
        if not len(starts):
            return leaves(level.n_open)
        decisions = yield from self.choose_by_sums(level, proposals.take(order[starts]))
        return decisions

    def choose_by_sums(self, level: Level, candidates: Proposals) -> Flow[Decisions]:
        """Ask for the sums of all distinct proposals; return each node's best split."""
        count = np.bincount(candidates.node, minlength=level.n_open)
        replies = yield from self.ask(
            EvaluateSplits,
            self.training.unit,
            first=level.first,
            count=count,
            feature=candidates.feature,
            threshold=candidates.threshold,
        )
        problems = {
            name: self.problem_of_sums(level, name, reply.totals) for name, reply in replies.items()
        }
        replies = yield from self.exclude(replies, reasons(problems))
        sums = kernels.CandidateSums(
            left=sum(reply.left for reply in replies.values()),
            missing=sum(reply.missing for reply in replies.values()),
            totals=sum(reply.totals for reply in replies.values()),
        )
        start = np.append(0, np.cumsum(count))
        gain, direction = kernels.gains_of_candidates(start, sums, self.training.rule)
        best = _first_of_the_largest(candidates.node, gain)
        best = best[gain[best] > 0]
        return _decide(candidates.take(best), direction[best] == kernels.LEFT, level.n_open)


def choose_by_votes(proposals: Proposals, n_open: int, gamma: float) -> Decisions:
    """Return each node's split with the most votes.

    A proposer's vote is its gain by (3.1), times the weight of its rows in the node. Missing values
    go left if the votes for that outweigh those for the right; ties go to the right. Of splits with
    equal votes, the lower feature wins, then the lower threshold.
    """
    vote = proposals.weight * (0.5 * (proposals.gain.astype(np.float64) - gamma))
    order, starts = _group_equal(proposals, vote, proposals.direction)
    votes, votes_left, votes_right = (
        np.add.reduceat(of[order], starts) if len(starts) else of
        for of in (
            vote,
            np.where(proposals.direction == kernels.LEFT, vote, 0.0),
            np.where(proposals.direction == kernels.RIGHT, vote, 0.0),
        )
    )
    candidates = proposals.take(order[starts])
    best = _first_of_the_largest(candidates.node, votes)
    return _decide(candidates.take(best), (votes_left > votes_right)[best], n_open)


def _decide(chosen: Proposals, missing_left: NDArray[np.bool_], n_open: int) -> Decisions:
    """Return the decisions for a level with these splits, at most one per node."""
    decisions = leaves(n_open)
    decisions.feature[chosen.node] = chosen.feature
    decisions.threshold[chosen.node] = chosen.threshold
    decisions.missing_left[chosen.node] = missing_left
    return decisions


def _pool(replies: Replies) -> Proposals:
    """Return the proposals of all clients."""
    columns: list[list[NDArray[Any]]] = [
        [
            np.repeat(np.arange(len(reply.count)), reply.count),
            reply.feature,
            reply.threshold,
            reply.direction,
            reply.gain,
            np.repeat(reply.weight, reply.count),
        ]
        for reply in replies.values()
    ]
    return Proposals(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _group_equal(
    proposals: Proposals, *ties: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order of the proposals and the starts, in it, of each group of equal splits.

    ``ties`` order the proposals of a group, so that sums over them do not depend on the order of
    the clients.
    """
    node, feature, threshold = proposals.node, proposals.feature, proposals.threshold
    order = np.lexsort((*reversed(ties), threshold, feature, node))
    is_new = np.ones(len(order), bool)
    is_new[1:] = np.logical_or.reduce(
        [key[order][1:] != key[order][:-1] for key in (node, feature, threshold)]
    )
    return order, np.flatnonzero(is_new)


def _first_of_the_largest(node: NDArray[np.int64], vote: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each node's largest vote; ties go to the first."""
    order = np.lexsort((np.arange(len(vote)), -vote, node))
    is_first = np.ones(len(order), bool)
    is_first[1:] = node[order][1:] != node[order][:-1]
    return order[is_first]
