"""Boosting with secure sums: the server sees histograms of all clients, and of no single one.

The clients agree on bins and classes before the run. What the server otherwise checks for each
client, it checks for the sum: an impossible one ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedlib.boosting.classes import check_weights_of_classes
from fedlib.boosting.described import EVERYONE, Described, Pool, agree_on_names, check_weight
from fedlib.boosting.descriptions import SumClasses, SumTargets
from fedlib.boosting.first_scores import ResidualSums, SumRoots
from fedlib.boosting.growers import Grower, Level
from fedlib.boosting.histograms import HistogramGrower, SumHistograms
from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.lossguide import LossguideGrower
from fedlib.boosting.messages import MAX_LOSS, MAX_SUM, MAX_WEIGHT
from fedlib.boosting.settings import Settings
from fedlib.boosting.training import Training
from fedlib.core.aggregation import Aggregation
from fedlib.core.agreement import agree_on_features
from fedlib.core.messages import Message, MessageError
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.secure.flow import ImpossibleSum
from fedlib.protection.secure.points import CountPoints, DescribeFeatures


def describe_securely(settings: Settings) -> Flow[Described]:
    """Return the sums over the labels of all clients, by two secure sums.

    The first one counts the rows, from which the digits of the second one follow.

    Raises
    ------
    ValueError
        When the clients disagree on the features, or no row or class has a weight.
    """
    aggregation = settings.aggregation
    replies = yield from aggregation.describe(DescribeFeatures())
    found, _ = yield from aggregation.sum(CountPoints())
    n_rows = max(found.n_points, 1)
    sums, shift, members = yield from _sum_labels(settings, aggregation, n_rows)
    check_weight(sums.weight)
    rate = settings.learning_rate + shift / sums.weight
    largest = n_rows * settings.max_weight * max(settings.scale_pos_weight, 1)
    return Described(
        sums={EVERYONE: sums.scaled(settings.scale_pos_weight)},
        n_rows={EVERYONE: found.n_points},
        classes=list(settings.classes),
        n_features=agree_on_features(replies),
        features=agree_on_names(replies),
        texts=[],
        learning_rate=float(np.float32(rate)),
        replies=replies,
        pool=Pool(members, min(largest, MAX_SUM)),
    )


def _sum_labels(
    settings: Settings, aggregation: Aggregation, n_rows: int
) -> Flow[tuple[LabelSums, float, tuple[str, ...]]]:
    """Return the sums over the labels, that of the shifts of the learning rate, and their clients.

    All clients together have at most ``n_rows`` rows.
    """
    rate, largest = settings.learning_rate, settings.max_weight
    if not settings.is_regression:
        request = SumClasses(settings.classes, rate, largest, n_rows)
        total, members = yield from aggregation.sum(request)
        classes = tuple(total.weights.tolist())
        check_weight(sum(classes))
        check_weights_of_classes(settings.classes, classes)
        return LabelSums(sum(classes), classes), total.shift, members
    objective = settings.objective, settings.parameter
    targets = SumTargets(*objective, rate, largest, settings.max_target, n_rows)
    total, members = yield from aggregation.sum(targets)
    sums = LabelSums(
        weight=total.weight,
        total=total.total,
        squares=total.squares,
        gradient=total.gradient,
        hessian=total.hessian,
    )
    return sums, total.shift, members


class SecureGrower(HistogramGrower):
    """Grows trees from secure sums: there is one client, `EVERYONE`.

    Attributes
    ----------
    members : tuple of str
        The clients whose rows the last sum contains.
    absent, absent_before : list of str
        The clients of earlier sums that the last one does not contain, now and in the last round.
    """

    def __init__(self, training: Training):
        super().__init__(training)
        assert training.described.pool is not None
        self.pool = training.described.pool
        self.members = self.pool.members
        self.absent: list[str] = []
        self.absent_before: list[str] = []

    def ask(
        self, request: type[Message], largest: Mapping[str, float], **fields: Any
    ) -> Flow[Replies]:
        """Return the sum of the clients' histograms, or of roots, as the reply of `EVERYONE`."""
        if request is SumRoots:
            return (yield from self.ask_for_sum(request(**fields, weight=largest[EVERYONE])))
        rows = self.training.rows_of(EVERYONE)
        loss = rows.objective.largest_loss(rows.sums, self.max_margin, rows.parameter)
        n_finished = self.n_rounds - (len(fields["values"]) > 0)  # before this request
        asked = SumHistograms(
            **fields,
            weight=largest[EVERYONE],
            n_rounds=n_finished,
            max_loss=min(2 * loss, MAX_LOSS),
            max_sum=self.pool.largest_weight,
        )
        return (yield from self.ask_for_sum(asked))

    def ask_for_sum(self, asked: Message) -> Flow[Replies]:
        """Return the sum of the clients' replies to a request as the reply of `EVERYONE`."""
        aggregation = self.training.settings.aggregation
        total, members = yield from aggregation.sum(asked)
        try:
            asked.accept(total)
        except MessageError as error:
            yield from self.exclude(Replies({}), {EVERYONE: str(error)})
        self.absent += [name for name in self.members if name not in members]
        self.members = members
        return Replies({EVERYONE: total}, lost=self.absent)

    def exclude(self, replies: Replies, reasons: Mapping[str, str]) -> Flow[Replies]:
        """Raise ImpossibleSum if there is a reason: it is not known which client is wrong."""
        for reason in reasons.values():
            raise ImpossibleSum(
                f"a sum over {len(self.members)} clients is impossible, so at least one client has"
                f" sent wrong values: {reason}"
            )
        return replies
        yield  # a generator, as in the base class

    def problem_of_sums(self, level: Level, name: str, sums: Any) -> str | None:
        """Return why sums cannot be right; they can only be compared while no client is lost."""
        if not self.absent:
            return super().problem_of_sums(level, name, sums)
        self.sums.open[name] = sums
        return self.training.rows_of(name).problem(self.training.unit, sums, self.max_margin)

    def problem_of_weight(self, name: str, reply: ResidualSums) -> str | None:
        """Return why a weight cannot be right; only while no client is lost."""
        return None if self.absent else super().problem_of_weight(name, reply)

    @property
    def largest_weight(self) -> float:
        return min(self.pool.largest_weight, MAX_WEIGHT)

    def converged(self, level: Level, replies: Replies) -> bool:
        """Return whether the previous round was the last; not if a client was lost meanwhile."""
        if level.first == 0:
            if self.absent != self.absent_before:
                self.training.client_losses = {}
            self.absent_before = list(self.absent)
            self.training.weights[EVERYONE] = replies[EVERYONE].weight
        return super().converged(level, replies)


class SecureLossguideGrower(SecureGrower, LossguideGrower):
    """Splits the leaf with the largest gain first, with secure sums."""


SECURE_GROWERS: dict[str, type[Grower]] = {
    "histogram": SecureGrower,
    "lossguide": SecureLossguideGrower,
}
