"""Scores of the probability of the second of two classes, from counts and sums of each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedlib.boosting.classes import Class
from fedlib.core.array_fields import MAX_COUNT, Array, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.evaluation.class_scores import area_under_curve
from fedlib.evaluation.messages import EPS, ROUNDING, ClassCounts, CountScores, ScoreCounts


@dataclass(frozen=True)
class PredictionScores(Checked):
    """The scores of predictions, and the counts from which they derive.

    Attributes
    ----------
    classes : tuple of two classes
        In ascending order. Probabilities are those of the second one.
    counts : array (2, n_bins) of int64
        The number of rows of each class in each bin of equal width between 0 and 1. A bin contains
        its right edge, and the first one also 0.
    confusion : array (2, 2) of int64
        The number of rows by class and by predicted class, which is the second one if its
        probability exceeds 0.5.
    groups : array (2, n_groups) of int64
        As ``counts``, in the bins of the calibration curve.
    group_means : array (n_groups,)
        The mean probability in each of these; NaN without rows.
    accuracy, auc, log_loss, brier : float
    balanced_accuracy : float
        The mean recall of both classes.
    auc_error : float
        The largest possible error of ``auc``.
    """

    classes: tuple[Class, Class]
    counts: Annotated[Ints, Array("int64", ("classes", "bins"), 0, MAX_COUNT)]
    confusion: Annotated[Ints, Array("int64", ("classes", "predicted"), 0, MAX_COUNT)]
    groups: Annotated[Ints, Array("int64", ("classes", "groups"), 0, MAX_COUNT)]
    group_means: Floats
    accuracy: float
    auc: float
    auc_error: float
    log_loss: float
    brier: float

    @property
    def intervals(self) -> Floats:
        """The interval (5, 2) of each score: only the area has an error."""
        values = [self.accuracy, self.balanced_accuracy, self.auc, self.log_loss, self.brier]
        intervals = np.column_stack([values, values])
        intervals[2] += [-self.auc_error, self.auc_error]
        return np.clip(intervals, 0.0, [[1.0], [1.0], [1.0], [np.inf], [1.0]])

    @property
    def balanced_accuracy(self) -> float:
        return float((np.diag(self.confusion) / self.confusion.sum(axis=1)).mean())


def rows_by_class(reply: ClassCounts, classes: tuple[Class, ...]) -> Ints:
    """Return the number of a client's rows of each class."""
    known = dict(zip(reply.classes, reply.counts.tolist(), strict=True))
    return np.array([known.get(one, 0) for one in classes], np.int64)


def contradiction_of_two(request: CountScores, declared: Ints, reply: ScoreCounts) -> str | None:
    """Return why counts and sums contradict each other or the declared rows, or None."""
    for name in ("counts", "groups"):
        if getattr(reply, name).sum(axis=1).tolist() != declared.tolist():
            return f".{name} must sum to the numbers of rows reported before"
    low, high = edges(request.n_groups)
    n = reply.groups.sum(axis=0)
    if _outside(reply.sums, n * low, n * high):
        return ".sums must be of probabilities in their bins"
    low, high = edges(request.n_bins)
    least, most = reply.counts[:, low >= 0.5].sum(axis=1), reply.counts[:, high > 0.5].sum(axis=1)
    if ((reply.above < least) | (reply.above > most)).any():
        return ".above must fit the counts in the bins"
    for name, loss in (("log_losses", log_losses), ("squares", squared_errors)):
        right = [(1 - low, 1 - high), (high, low)]  # probabilities of the true class
        ends = np.array([[loss(end) for end in ends] for ends in right])
        bounds = (reply.counts[:, np.newaxis] * ends).sum(axis=2)
        if _outside(getattr(reply, name), bounds[:, 0], bounds[:, 1]):
            return f".{name} must fit the counts in the bins"
    return None


def _outside(values: Floats, low: Floats, high: Floats) -> bool:
    """Return whether a value lies outside its limits by more than rounding."""
    margin = ROUNDING * (1 + high)
    return bool(((values < low - margin) | (values > high + margin)).any())


def log_losses(right: Floats) -> Floats:
    """Return the log-loss for probabilities of the true class."""
    return -np.log(np.clip(right, EPS, 1 - EPS))


def squared_errors(right: Floats) -> Floats:
    """Return the squared error for probabilities of the true class."""
    return np.square(1 - right)


def edges(n_bins: int) -> tuple[Floats, Floats]:
    """Return the lower and the upper edges of bins of equal width between 0 and 1."""
    edges = np.linspace(0, 1, n_bins + 1)
    return edges[:-1], edges[1:]


def two_class_scores(
    classes: tuple[Class, Class], totals: Ints, replies: list[ScoreCounts]
) -> PredictionScores:
    counts, above, groups, sums, losses, squares = (
        np.sum([getattr(reply, name) for reply in replies], axis=0)
        for name in ("counts", "above", "groups", "sums", "log_losses", "squares")
    )
    auc, auc_error = area_under_curve(counts)
    confusion = np.column_stack([totals - above, above])
    n_groups = groups.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums / n_groups
    n = int(totals.sum())
    return PredictionScores(
        classes,
        counts,
        confusion,
        groups,
        means,
        float(np.trace(confusion) / n),
        auc,
        auc_error,
        float(losses.sum() / n),
        float(squares.sum() / n),
    )
