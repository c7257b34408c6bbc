"""How trees grow: one level, or one leaf, of all trees of a round at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from fedlib.boosting.checks import NodeHistory, reasons
from fedlib.boosting.first_scores import ResidualSums, SumRoots, differ, squared_mean_roots
from fedlib.boosting.leaves import Round, leaves
from fedlib.boosting.levels import largest_root
from fedlib.boosting.messages import (
    MAX_SUM,
    MAX_WEIGHT,
    Growth,
    unchecked_copy,
)
from fedlib.boosting.training import Training
from fedlib.boosting.trees import Tree
from fedlib.core.agreement import exclude
from fedlib.core.array_types import Ints
from fedlib.core.messages import Message
from fedlib.core.protocol import Flow, Replies
from fedlib.kernels.splits import Decisions


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
        found = {name: self.problem_of_weight(name, reply) for name, reply in replies.items()}
        replies = yield from self.exclude(replies, reasons(found))
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
        """The number of finished rounds of the model, with those that the run continues."""
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

    def problem_of_sums(self, level: Level, name: str, sums: Ints) -> str | None:
        """Return why a client's sums in the open nodes cannot be right; None if they can.

        The sums must be those of the declared rows, and next to those of the parents.
        """
        rows, training = self.training.rows_of(name), self.training
        problem = self.sums.problem(name, sums)
        if problem is None:
            problem = rows.problem(training.unit, sums, self.max_margin)
        if problem is None and level.first == 0 and self.knows_first:
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
