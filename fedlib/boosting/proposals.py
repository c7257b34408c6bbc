"""The methods ``"top_splits"`` and ``"union"``: clients propose splits, the server chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.checks import ROUNDING, reasons
from fedlib.boosting.growers import Grower, Level
from fedlib.boosting.leaves import Round, finish_round, leaves
from fedlib.boosting.messages import (
    EvaluateSplits,
    ProposeSplits,
    SplitProposals,
    SumLeaves,
)
from fedlib.boosting.trees import children, tree_totals
from fedlib.core.array_types import Bools, Bytes, Floats, Floats32, Ints, Ints32
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.splits import LEFT, RIGHT, CandidateSums, Decisions, gains_of_candidates


class Proposals(NamedTuple):
    """The proposals of all clients, one entry per proposal.

    ``node`` counts from the level's first node; ``weight`` is that of the client's rows there.
    """

    node: Ints
    feature: Ints32
    threshold: Floats32
    direction: Bytes
    gain: Floats32
    weight: Floats

    def take(self, positions: Ints) -> Proposals:
        """Return the proposals at these positions."""
        columns: tuple[NDArray[Any], ...] = self
        return Proposals(*(column[positions] for column in columns))


class ProposalGrower(Grower):
    """Base class of the growers that ask clients for splits and for the sums in the leaves."""

    def grow_round(self) -> Flow[Round | None]:
        """Grow the trees of a round; clients report the sums in their leaves."""
        decisions = yield from self.split_all_levels()
        if decisions is None:
            return None
        n_nodes = len(decisions.feature)
        left = children(decisions.feature, n_roots=self.training.n_outputs)
        replies = yield from self.ask_about(
            Level(0, 0), SumLeaves, self.largest_sums(), n_nodes=n_nodes
        )
        problems = {
            name: self.problem_of_leaves(name, left, reply.sums) for name, reply in replies.items()
        }
        replies = yield from self.exclude(replies, reasons(problems))
        sums = sum(reply.sums for reply in replies.values())
        return finish_round(decisions, left, sums, self.training)

    def problem_of_leaves(self, name: str, left: Ints32, sums: Ints) -> str | None:
        """Return why a client's sums in the leaves cannot be right; None if they can."""
        rows, training = self.training.rows_of(name), self.training
        problem = rows.problem(training.unit, sums, self.max_margin)
        if problem is None and self.knows_first:
            totals = tree_totals(left, training.n_outputs, sums)
            problem = rows.problem_of_first(training.base_margins, training.unit, totals)
        return problem

    def problem_of_proposals(self, level: Level, name: str, reply: SplitProposals) -> str | None:
        """Return why a client's proposals cannot be right; None if they can."""
        training, rows = self.training, self.training.rows_of(name)
        may_end = training.settings.leaf == "ended"
        weight, is_root = rows.sums.weight, level.first == 0
        if is_root and (reply.weight > (1 + ROUNDING) * weight).any():
            return "the weight at a root is more than that of the declared rows"
        if is_root and not rows.is_sampled and (reply.weight < (1 - ROUNDING) * weight).any():
            return "the weight at a root is not that of the declared rows"
        problem = self.weights.problem(name, reply.weight, ROUNDING, may_end)
        return problem or rows.problem_of_gains(
            training.unit, training.rule.reg_lambda, reply, self.max_margin
        )

    def ask_for_proposals(
        self, level: Level, gamma: float, min_child_weight: float
    ) -> Flow[Replies]:
        """Ask for the clients' best splits, subject to these limits on their rows alone."""
        settings, n_outputs = self.training.settings, self.training.n_outputs
        replies = yield from self.ask_about(
            level,
            ProposeSplits,
            {name: n_outputs * weight for name, weight in self.training.weights.items()},
            n_features=self.training.described.n_features,
            n_candidates=settings.n_candidates,
            reg_lambda=self.training.rule.reg_lambda,
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
            self.largest_sums(),
            first=level.first,
            count=count,
            feature=candidates.feature,
            threshold=candidates.threshold,
        )
        problems = {
            name: self.problem_of_sums(level, name, reply.totals) for name, reply in replies.items()
        }
        replies = yield from self.exclude(replies, reasons(problems))
        sums = CandidateSums(
            left=sum(reply.left for reply in replies.values()),
            missing=sum(reply.missing for reply in replies.values()),
            totals=sum(reply.totals for reply in replies.values()),
        )
        start = np.append(0, np.cumsum(count))
        gain, direction = gains_of_candidates(start, sums, self.training.rule)
        best = _first_of_the_largest(candidates.node, gain)
        best = best[gain[best] > 0]
        return _decide(candidates.take(best), direction[best] == LEFT, level.n_open)


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
            np.where(proposals.direction == LEFT, vote, 0.0),
            np.where(proposals.direction == RIGHT, vote, 0.0),
        )
    )
    candidates = proposals.take(order[starts])
    best = _first_of_the_largest(candidates.node, votes)
    return _decide(candidates.take(best), (votes_left > votes_right)[best], n_open)


def _decide(chosen: Proposals, missing_left: Bools, n_open: int) -> Decisions:
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


def _group_equal(proposals: Proposals, *ties: NDArray[Any]) -> tuple[Ints, Ints]:
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


def _first_of_the_largest(node: Ints, vote: NDArray[Any]) -> Ints:
    """Return the position of each node's largest vote; ties go to the first."""
    order = np.lexsort((np.arange(len(vote)), -vote, node))
    is_first = np.ones(len(order), bool)
    is_first[1:] = node[order][1:] != node[order][:-1]
    return order[is_first]
