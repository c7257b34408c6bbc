"""How trees grow: one level, or one leaf, of all trees of a round at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.first_scores import ResidualSums, SumRoots, differ, squared_mean_roots
from fedlib.boosting.label_sums import largest_root
from fedlib.boosting.messages import (
    MAX_SUM,
    MAX_WEIGHT,
    EvaluateSplits,
    Growth,
    ProposeSplits,
    SplitProposals,
    SumLeaves,
    unchecked_copy,
)
from fedlib.boosting.server_state import (
    ROUNDING,
    NodeHistory,
    Round,
    Training,
    finish_round,
    joined,
    leaves,
    reasons,
)
from fedlib.boosting.trees import Tree, children, tree_totals
from fedlib.core.aggregation import exclude
from fedlib.core.array_types import Bools, Bytes, Floats, Floats32, Ints, Ints32
from fedlib.core.messages import Message
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.splits import LEFT, RIGHT, CandidateSums, Decisions, gains_of_candidates


class Level(NamedTuple):
    """The open nodes of a level: ``n_open`` nodes from index ``first`` on."""

    first: int
    n_open: int


class Grower:
    """Grows trees. A subclass chooses the splits of a level and obtains the sums in the leaves."""

    def __init__(self, training: Training):
        self.training = training
        self.has_margins = training.described.first_sizes is not None  # rows have base margins
        # no margin of a row is larger
        self.max_margin = MAX_WEIGHT if self.has_margins else max(map(abs, training.base_margins))
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
        if self.training.objective.scaled:
            yield from self.measure_scales()
        grown = yield from self.grow_round()
        if grown is None:
            return None
        self.update["values"] = grown.values
        self.max_margin += float(np.abs(grown.values).max(initial=0))
        self.training.n_rounds += 1
        return grown

    def measure_scales(self) -> Flow[None]:
        """Measure the scale of each output's residuals, and report it with the next request.

        The request sends the previous trees' values, which the clients then have.
        """
        training = self.training
        bounds = {
            name: largest_root(training.rows_of(name).sums, self.max_margin)
            for name in training.weights
        }
        replies = yield from self.ask_about(
            Level(0, 0),
            SumRoots,
            bounds,
            n_outputs=training.n_outputs,
            n_rounds=self.n_rounds - (len(self.update["values"]) > 0),
            max_sum=self.largest_weight,
        )
        replies = yield from self.exclude_wrong(replies, self.problem_of_weight)
        total = ResidualSums(
            fsum(reply.weight for reply in replies.values()),
            np.array(
                [fsum(sums) for sums in zip(*(r.roots for r in replies.values()), strict=True)]
            ),
            np.empty((0, 2)),
        )
        training.scales = squared_mean_roots(total, self.max_margin + training.settings.max_target)
        self.update["scales"] = training.scales

    def problem_of_weight(self, name: str, reply: ResidualSums) -> str | None:
        """Return why a client's rows cannot have the weight that it sent; None if they can."""
        declared = self.training.weights[name]
        if differ(reply.weight, declared, declared):
            return "the rows do not weigh what the client declared"
        return None

    def continue_from(self, trees: Sequence[Tree]) -> None:
        """Take note of the trees that a run continues."""
        self.max_margin += sum(float(np.abs(tree.value).max(initial=0)) for tree in trees)
        self.training.n_rounds = len(trees) // self.training.n_outputs

    @property
    def largest_weight(self) -> float:
        """An upper bound on the weight of one client's rows."""
        return MAX_WEIGHT

    @property
    def n_rounds(self) -> int:
        """The count of finished rounds of the model, with those that the run continues."""
        return self.training.n_rounds

    @property
    def knows_first(self) -> bool:
        """Whether the sums over all rows follow from the labels: before the first tree."""
        return self.n_rounds == 0 and not self.has_margins

    def grow_round(self) -> Flow[Round | None]:
        """Grow one tree per output; see `grow`."""
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
        return joined(levels)

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
        of_weight = {weight: unchecked_copy(asked, weight=weight) for weight in largest.values()}
        replies = yield {name: of_weight[largest[name]] for name in self.training.weights}
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
        return (yield from self.exclude_wrong(replies, self.problem_of_loss))

    def largest_sums(self) -> dict[str, float]:
        """Return the largest sum of each client, in units."""
        unit = self.training.unit
        return {name: self.largest_sum(name) / unit for name in self.training.weights}

    def exclude(self, replies: Replies, reasons: Mapping[str, str]) -> Flow[Replies]:
        """Exclude clients whose replies cannot be right; return the replies of the others."""
        replies = yield from exclude(replies, reasons)
        self.training.remove(replies.lost)
        return replies

    def exclude_wrong(
        self, replies: Replies, problem: Callable[[str, Any], str | None]
    ) -> Flow[Replies]:
        """Exclude clients by what is wrong with the reply of each; return the replies of others."""
        found = {name: problem(name, reply) for name, reply in replies.items()}
        return (yield from self.exclude(replies, reasons(found)))

    def problem_of_sums(self, level: Level, name: str, sums: Ints) -> str | None:
        """Return why a client's sums of the open nodes cannot be right; None if they can.

        The sums must be those of the declared rows, and next to those of the parents.
        """
        rows, training = self.training.rows_of(name), self.training
        problem = self.sums.problem(name, sums)
        if problem is None:
            problem = rows.problem(training.unit, sums, self.max_margin)
        if problem is None and level.first == 0 and self.knows_first:
            problem = rows.problem_of_first(training.base_margins, training.unit, sums)
        return problem

    def problem_of_loss(self, name: str, reply: Message) -> str | None:
        """Return why no rows can have the loss of a reply; None if they can."""
        rows = self.training.rows_of(name)
        most = rows.objective.largest_loss(rows.sums, self.max_margin, rows.parameter)
        loss, largest = getattr(reply, "loss", 0.0), 1.000001 * most
        return f"loss must be at most {largest}, got {loss}" if loss > largest else None


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
        replies = yield from self.exclude_wrong(
            replies, lambda name, reply: self.problem_of_leaves(name, left, reply.sums)
        )
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
        return (yield from self.exclude_wrong(replies, partial(self.problem_of_proposals, level)))


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
        replies = yield from self.exclude_wrong(
            replies, lambda name, reply: self.problem_of_sums(level, name, reply.totals)
        )
        fields = CandidateSums._fields
        sums = CandidateSums(*(sum(getattr(r, of) for r in replies.values()) for of in fields))
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
    pools = [
        Proposals(
            np.repeat(np.arange(len(reply.count)), reply.count),
            *(reply.feature, reply.threshold, reply.direction, reply.gain),
            np.repeat(reply.weight, reply.count),
        )
        for reply in replies.values()
    ]
    return joined(pools)


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
