"""Boosting with differential privacy: histograms have noise, and nothing else depends on rows.

The gradient of a row is clipped, so the row changes one bin per feature of one node per tree by at
most what `gradient_limits` states. A feature of text has one bin per category of the schema. Bins,
classes and the prediction before the first tree do not depend on the data; there is no loss and no
validation. Each level of a round is one request, so the number of requests is at most
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
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlib.boosting.described import EVERYONE, Described, agree_on_names
from fedlib.boosting.growers import Level
from fedlib.boosting.histograms import HistogramGrower, SumNoisyHistograms
from fedlib.boosting.objectives import OBJECTIVES, Parameter
from fedlib.core.agreement import agree_on_features
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Unanswerable
from fedlib.core.messages import Message
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.privacy import Sensitivity
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.protection.sums import NoisySums

if TYPE_CHECKING:  # a site does not need the estimators' parameters
    from fedlib.boosting.settings import Settings


MAX_GRADIENT = 1e6


def gradient_limits(
    objective: str, max_gradient: float, parameter: Parameter = 0.0
) -> tuple[float, float]:
    """Return the largest absolute gradient and the largest hessian of a row, for one output.

    Those of classes, of ``"reg:logistic"`` and of survival times follow from the objective. A row
    has a weight of at most 1. ``parameter`` is that of the objective.

    Raises
    ------
    fedlib.core.client.Unanswerable
        When the objective has no such limits.

    Examples
    --------
    >>> gradient_limits("binary:logistic", 5.0), gradient_limits("reg:squarederror", 5.0)
    ((1.0, 0.25), (5.0, 1.0))
    """
    chosen = OBJECTIVES[objective]
    if chosen.row_limits is None:
        raise Unanswerable(f"{objective} has no noise: {chosen.unbounded}")
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
        The number of bins of the feature that has the most.

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
        sums = in_units(replies[EVERYONE].sums, self.training.bits)
        return with_equal_totals(sums, self.training.cuts.offsets)


def in_units(sums: Floats, bits: int) -> Ints:
    """Return noisy histograms (n_nodes, n_bins, 2) in units of 2**-bits, as integers.

    Numbers that only a lie can have are limited, so that the total of the bins fits an int64.

    Examples
    --------
    >>> in_units(np.array([[[0.5, 2.0**60]]]), bits=40).tolist() == [[[2**39, 2**60]]]
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
