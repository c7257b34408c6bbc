"""Boosting with secure sums: the server sees histograms of all clients, and of no single one.

The clients agree on bins and classes before the run. What the server otherwise checks for each
client, it checks for the sum: an impossible one ends the run.

Boosting with differential privacy: histograms have noise, and nothing else depends on rows.

The gradient of a row is clipped, so the row changes one bin per feature of one node per tree by at
most what `gradient_limits` states. A feature of text has one bin per category of the schema. Bins,
classes and the prediction before the first tree do not depend on the data; there is no loss and no
validation. Each level of a round is one request, so the count of requests is at most
``n_trees * max_depth``.

The server makes the totals of all features of a node equal before it chooses a split: each is an
estimate of the same total, and their mean has less noise.

Source: Q. Li, Z. Wu, Z. Wen, B. He, Privacy-preserving gradient boosting decision trees, AAAI 2020,
for clipped gradients; S. Maddock, G. Cormode, T. Wang, C. Maple, S. Jha, Federated boosted decision
trees with differential privacy, CCS 2022, for noisy histograms and their accounting.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from fedlib.boosting.classes import check_weights_of_classes
from fedlib.boosting.descriptions import (
    EVERYONE,
    Described,
    Pool,
    SumClasses,
    SumTargets,
    agree_on_names,
    check_weight,
)
from fedlib.boosting.first_scores import ResidualSums, SumRoots
from fedlib.boosting.histograms import (
    HistogramGrower,
    LossguideGrower,
    SumHistograms,
    SumNoisyHistograms,
)
from fedlib.boosting.label_sums import LabelSums
from fedlib.boosting.messages import MAX_LOSS, MAX_SUM, MAX_WEIGHT
from fedlib.boosting.objectives import OBJECTIVES, Parameter
from fedlib.boosting.server_state import Training
from fedlib.boosting.settings import Settings
from fedlib.boosting.tree_growers import Grower, Level
from fedlib.core.aggregation import Aggregation, agree_on_features
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest
from fedlib.core.messages import Message, MessageError
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.privacy import Sensitivity
from fedlib.protection.secure.flow import ImpossibleSum
from fedlib.protection.secure.points import CountPoints, DescribeFeatures
from fedlib.protection.sums import NoisySums

MAX_GRADIENT = 1e6


def gradient_limits(
    objective: str, max_gradient: float, parameter: Parameter = 0.0
) -> tuple[float, float]:
    """Return the largest absolute gradient and the largest hessian of a row, for one output.

    Those of classes, of ``"reg:logistic"`` and of survival times follow from the objective. A row
    has a weight of at most 1. ``parameter`` is that of the objective.

    Raises
    ------
    fedlib.core.client.BadRequest
        When the objective has no such limits.

    Examples
    --------
    >>> gradient_limits("binary:logistic", 5.0), gradient_limits("reg:squarederror", 5.0)
    ((1.0, 0.25), (5.0, 1.0))
    """
    chosen = OBJECTIVES[objective]
    if chosen.row_limits is None:
        raise BadRequest(f"{objective} has no noise: {chosen.unbounded}")
    return chosen.row_limits(max_gradient, parameter)


def default_gradient(
    objective: str, parameter: float, base_score: float, limits: tuple[float, float] | None
) -> float | None:
    """Return the largest gradient of a row that public facts determine, or None.

    Parameters
    ----------
    objective : str
    parameter : float
        The slope of the pseudo-Huber loss, which no gradient exceeds.
    base_score : float
        The first prediction.
    limits : (low, high), optional
        Those of all targets.

    Examples
    --------
    >>> default_gradient("reg:squarederror", 1.0, 70.0, (0.0, 200.0))
    130.0
    >>> default_gradient("reg:squarederror", 1.0, 70.0, None) is None
    True
    """
    chosen = OBJECTIVES[objective]
    known = None if chosen.has_levels else chosen.row_limits
    if known is not None and isfinite(largest := known(inf, parameter)[0]):  # whatever is clipped
        return largest
    if objective == "reg:pseudohubererror":
        return min(parameter, MAX_GRADIENT)
    if limits is None or limits[0] == limits[1] == base_score:
        return None
    return min(max(abs(end - base_score) for end in limits), MAX_GRADIENT)


def row_sensitivity(limits: tuple[float, float], n_features: int, n_outputs: int) -> Sensitivity:
    """Return the largest change of a level's histograms by one row.

    The row is in one node per tree of the round, and there in one bin per feature.

    Examples
    --------
    >>> row_sensitivity((3.0, 4.0), n_features=4, n_outputs=1)
    Sensitivity(l1=28.0, l2=10.0, n_entries=8)
    """
    g, h = limits
    n_bins = n_features * n_outputs
    return Sensitivity(n_bins * (g + h), sqrt(n_bins * (g**2 + h**2)), 2 * n_bins)


def penalty(deviation: float, n_bins: int) -> float:
    """Return the default of ``reg_lambda`` for sums with noise.

    It is 1, as without noise, plus 16 times the standard deviation of the noise in the sum of a
    node's hessians over the bins of one feature. So a leaf of few rows, whose sums are mostly
    noise, has a small weight, and splits into such leaves gain little. The page "How much accuracy
    does differential privacy cost?" compares factors.

    Parameters
    ----------
    deviation : float
        The standard deviation of the noise in a bin.
    n_bins : int
        The count of bins of the feature that has the most.

    Examples
    --------
    >>> penalty(0.0, 8), penalty(2.5, 4)
    (1.0, 81.0)
    """
    return float(np.float32(1 + 16 * deviation * sqrt(n_bins)))


def clipped(gradients: Ints, limits: tuple[float, float], bits: int) -> Ints:
    """Return gradients (n_outputs, n_rows, 2), in units of 2**-bits, within the limits.

    Examples
    --------
    >>> clipped(np.array([[[-9, 9], [1, 1]]]), (1.0, 0.25), bits=3).tolist()
    [[[-8, 2], [1, 1]]]
    """
    g, h = (int(limit * 2.0**bits) for limit in limits)
    return np.stack([np.clip(gradients[..., 0], -g, g), np.clip(gradients[..., 1], 0, h)], axis=-1)


def describe_privately(settings: Settings, aggregation: NoisySums) -> Flow[Described]:
    """Ask the clients for their features, and for nothing that depends on their rows."""
    replies = yield from aggregation.describe(DescribeFeatures())
    n_features = agree_on_features(replies)
    limits = gradient_limits(settings.objective, settings.max_gradient, settings.parameter)
    one_row = row_sensitivity(limits, n_features, settings.n_outputs)
    aggregation.sensitivity = one_row
    assert settings.bounds is not None  # noise needs them
    n_bins = int(np.diff(settings.bounds.offsets).max())
    return Described(
        sums={},
        n_rows={},
        classes=list(settings.classes),
        n_features=n_features,
        features=agree_on_names(replies),
        texts=[],
        learning_rate=float(np.float32(settings.learning_rate)),
        replies=replies,
        reg_lambda=penalty(aggregation.deviation(one_row), n_bins),
    )


class PrivateGrower(HistogramGrower):
    """Grows trees from noisy sums of all clients' histograms."""

    def ask(
        self, request: type[Message], largest: Mapping[str, float], **fields: Any
    ) -> Flow[Replies]:
        """Return the noisy sum of the clients' histograms as the reply of `EVERYONE`."""
        settings = self.training.settings
        assert settings.aggregation.privacy is not None
        asked = SumNoisyHistograms(
            **fields,
            weight=0.0,
            n_rounds=self.n_rounds - (len(fields["values"]) > 0),
            privacy=settings.aggregation.privacy,
            max_gradient=settings.max_gradient,
        )
        total, _ = yield from settings.aggregation.sum(asked)
        return Replies({EVERYONE: total})

    def sum_histograms(self, level: Level) -> Flow[Ints | None]:
        """Return the noisy histograms of all nodes of a level, with equal totals per node.

        Every node is requested: a row is in one of two siblings only, so both cost no more.
        """
        n_bins = len(self.training.cuts.thresholds)
        replies = yield from self.ask_about(
            level,
            SumNoisyHistograms,
            {},
            wanted=np.ones(level.n_open, bool),
            n_bins=n_bins,
        )
        sums = scaled_gradients(replies[EVERYONE].sums, self.training.bits)
        return with_equal_totals(sums, self.training.cuts.offsets)


def scaled_gradients(sums: Floats, bits: int) -> Ints:
    """Return noisy histograms (n_nodes, n_bins, 2) in units of 2**-bits, as integers.

    Numbers that only a lie can have are limited, so that the total of the bins fits an int64.

    Examples
    --------
    >>> scaled_gradients(np.array([[[0.5, 2.0**60]]]), bits=40).tolist() == [[[2**39, 2**60]]]
    True
    """
    limit = 2.0**60 / max(sums.shape[1], 1)
    largest = np.ldexp(limit, -bits)
    return np.rint(np.ldexp(np.clip(sums, -largest, largest), bits)).astype(np.int64)


def with_equal_totals(histograms: Ints, offsets: Ints) -> Ints:
    """Return histograms (n_nodes, n_bins, 2) in which all features of a node have the same total.

    It is the mean of the features' totals. The differences are spread evenly over the bins, which
    is the nearest such histogram if all features have equally many bins.

    Examples
    --------
    Two features with two bins: the totals are 10 and 14, and both become 12.

    >>> noisy = np.array([[[4, 0], [6, 0], [7, 0], [7, 0]]])
    >>> with_equal_totals(noisy, np.array([0, 2, 4]))[0, :, 0]
    array([5, 7, 6, 6])
    """
    sizes = np.diff(offsets)
    totals = np.add.reduceat(histograms, offsets[:-1], axis=1)
    missing = np.rint(totals.mean(axis=1, keepdims=True)).astype(np.int64) - totals
    share, rest = np.divmod(missing, sizes[:, np.newaxis])
    equal = histograms + np.repeat(share, sizes, axis=1)
    equal[:, offsets[:-1]] += rest
    return equal


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
    return LabelSums.of(total), total.shift, members


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
