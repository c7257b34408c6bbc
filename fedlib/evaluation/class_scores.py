"""Scores of the probabilities of several classes, from counts and sums over all clients.

A class is compared with all others. The sums are one request, whether the server sees those of each
client, only masked ones, or ones with noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import Annotated

import numpy as np

from fedlib.boosting.classes import Class
from fedlib.core.aggregation import Aggregation, agree_on_features
from fedlib.core.array_fields import MAX_COUNT, Array, Checked
from fedlib.core.array_types import Floats, Ints
from fedlib.core.protocol import Flow, Replies
from fedlib.evaluation.messages import (
    EPS,
    LARGEST_LOSS,
    LARGEST_SQUARE,
    MAX_ROWS,
    ROUNDING,
    ClassCounts,
    ClassScoreTotals,
    CountClassScores,
    CountScores,
    NoRows,
    ScoreCounts,
)
from fedlib.protection.privacy.noise import Noise, estimate, hides, ratio
from fedlib.protection.secure.points import DescribeFeatures

SCORES = "accuracy", "balanced accuracy", "AUC", "log-loss", "Brier score"


@dataclass(frozen=True)
class ClassScores(Checked):
    """The scores of probabilities of several classes, and the counts from which they derive.

    Attributes
    ----------
    classes : tuple of classes
        In ascending order, like the columns of probabilities.
    counts : array (n_classes, 2, n_bins) of int64
        The count of rows of other classes and of the class in each bin of equal width of the
        probability of the class.
    confusion : array (n_classes, n_classes) of int64
        The count of rows by class and by the most probable class.
    accuracy, balanced_accuracy, auc, log_loss, brier : float
        The balanced accuracy is the mean recall of the classes, and the AUC the mean area of each
        class against the others; classes without rows do not count. The Brier score of several
        classes is a sum over them, for two it is that of one.
    auc_error : float
        The largest possible error of ``auc`` because of the bins; with noise, the distance of its
        interval.
    aucs, auc_errors : array (n_classes,)
        Those of each class; NaN for a class without rows.
    intervals : array (5, 2)
        That of each of `SCORES`; see `fedlib.protection.privacy.noise`. With noise, counts are
        the nearest integers, which can be negative; scores that the noise hides are NaN.
    precisions, recalls, precision_errors, recall_errors : array (n_classes,)
    problems : tuple of str
        Why scores are NaN.
    """

    classes: tuple[Class, ...]
    counts: Annotated[Ints, Array("int64", ("classes", "pair", "bins"), -MAX_COUNT, MAX_COUNT)]
    confusion: Annotated[Ints, Array("int64", ("classes", "predicted"), -MAX_COUNT, MAX_COUNT)]
    accuracy: float
    balanced_accuracy: float
    auc: float
    auc_error: float
    aucs: Floats
    auc_errors: Floats
    log_loss: float
    brier: float
    intervals: Floats = field(default_factory=lambda: np.full((len(SCORES), 2), np.nan))
    precisions: Floats = field(default_factory=lambda: np.empty(0))
    recalls: Floats = field(default_factory=lambda: np.empty(0))
    precision_errors: Floats = field(default_factory=lambda: np.empty(0))
    recall_errors: Floats = field(default_factory=lambda: np.empty(0))
    problems: tuple[str, ...] = ()


def class_evaluation(
    classes: tuple[Class, ...], n_bins: int, aggregation: Aggregation
) -> Flow[ClassScores]:
    """Return the server flow for classes on which the clients have agreed before the run."""
    request = CountClassScores(classes=classes, n_bins=n_bins, privacy=aggregation.privacy)
    replies = yield from aggregation.describe(DescribeFeatures())
    if problem := problem_of_columns(agree_on_features(replies), classes):
        raise ValueError(problem)

    def check(replies: Replies) -> dict[str, str]:
        problems = {name: contradiction(request, None, reply) for name, reply in replies.items()}
        return {name: f"{request.reply.__name__}{why}" for name, why in problems.items() if why}

    total, clients = yield from aggregation.sum(request, None if request.privacy else check)
    return class_scores(request, total, aggregation.noise(request, len(clients)))


def problem_of_columns(n_columns: int, classes: tuple[Class, ...]) -> str:
    """Return why probabilities do not fit the classes; empty if they do.

    Examples
    --------
    >>> problem_of_columns(1, ("a", "b"))
    ''
    >>> problem_of_columns(2, ("a", "b", "c"))
    "probabilities must have one column per class, in the order 'a', 'b', 'c'; got 2 columns"
    """
    if n_columns == len(classes) or (n_columns, len(classes)) == (1, 2):
        return ""
    return (
        f"probabilities must have one column per class, in the order"
        f" {', '.join(map(repr, classes))}; got {n_columns} columns"
    )


def contradiction(
    request: CountClassScores, declared: Ints | None, reply: ClassScoreTotals
) -> str | None:
    """Return why a reply contradicts itself or the rows of each class declared before, or None."""
    found = request.parts(reply)
    counts = reply.values[:-2]
    if (counts < 0).any() or (counts > MAX_ROWS).any() or (counts != np.rint(counts)).any():
        return ".values must begin with counts"
    if declared is None:
        declared = found.confusion.sum(axis=1).astype(np.int64)
    n = int(declared.sum())
    sides = np.column_stack([n - declared, declared])
    if not np.array_equal(found.confusion.sum(axis=1), declared) or not np.array_equal(
        found.counts.sum(axis=2), sides
    ):
        return ".values must sum to the numbers of rows reported before"
    errors = reply.values[-2:]
    if (errors < 0).any() or (errors > n * (1 + ROUNDING)).any():
        return ".values must end with errors between 0 and the number of rows"
    return None


def class_scores(
    request: CountClassScores, total: ClassScoreTotals, noise: Noise | None = None
) -> ClassScores:
    """Return the scores from the sums of all clients, which can have noise.

    Raises
    ------
    NoRows
        When there are no rows.
    """
    n_classes, found = len(request.classes), request.parts(total)
    confusion, counts = (np.rint(one).astype(np.int64) for one in (found.confusion, found.counts))
    if noise is None and not confusion.any():
        raise NoRows
    largest = [1.0, 1.0, 1.0, LARGEST_LOSS, 1.0 if n_classes == 2 else LARGEST_SQUARE]
    possible = np.zeros((len(largest) + 3 * n_classes, 2))
    possible[:, 1] = largest + 3 * n_classes * [1.0]
    results = estimate(
        lambda sums: _results(request, sums, noise is not None), total.values, noise, possible
    )
    accuracy, balanced, auc, loss, brier = results.values[: len(largest)].tolist()
    intervals, of_classes = np.split(results.intervals, [len(largest)])
    ties = np.maximum(areas(found.counts)[1], 0.0)
    tied = float(_mean(ties[np.newaxis], noise is not None)[0])
    if not isnan(tied):
        intervals[2] = np.clip(intervals[2] + [-tied, tied], 0.0, 1.0)
    precisions, recalls, aucs = results.values[len(largest) :].reshape(3, n_classes)
    errors = np.abs(of_classes - results.values[len(largest) :, np.newaxis]).max(axis=1)
    unknown = [name for name, is_hidden in zip(SCORES, results.hidden, strict=False) if is_hidden]
    problems = [
        *([hides(unknown)] if unknown else []),
        *(["the rows have one class, so the AUC is NaN"] if noise is None and isnan(auc) else []),
    ]
    return ClassScores(
        request.classes,
        counts,
        confusion,
        accuracy,
        balanced,
        auc,
        tied if noise is None else float(np.abs(intervals[2] - auc).max()),
        aucs,
        ties + errors[2 * n_classes :],
        loss,
        brier,
        intervals,
        precisions,
        recalls,
        errors[:n_classes],
        errors[n_classes : 2 * n_classes],
        tuple(problems),
    )


def _results(request: CountClassScores, sums: Floats, has_noise: bool) -> Floats:
    """Return all scores (n, n_results) of sums (n, n_values).

    They are those of `SCORES`, and precision, recall and area of each class; NaN where rows that
    must exist do not. With noise, nobody knows whether a class has no rows, so that the means over
    the classes are NaN then; without it, these classes do not count.
    """
    n_classes = len(request.classes)
    end = n_classes**2
    confusion = sums[:, :end].reshape(-1, n_classes, n_classes)
    counts = sums[:, end:-2].reshape(-1, n_classes, 2, request.n_bins)
    right, sizes = confusion.diagonal(axis1=1, axis2=2), confusion.sum(axis=2)
    n = sizes.sum(axis=1)
    recalls, precisions = ratio(right, sizes), ratio(right, confusion.sum(axis=1))
    aucs, _ = areas(counts)
    squares = LARGEST_SQUARE / (2 if n_classes == 2 else 1)  # as in scikit-learn
    scores = [
        ratio(right.sum(axis=1), n),
        _mean(recalls, has_noise),
        _mean(aucs, has_noise),
        ratio(sums[:, -2] * LARGEST_LOSS, n),
        ratio(sums[:, -1] * squares, n),
    ]
    return np.column_stack([*scores, precisions, recalls, aucs])


def _mean(of_classes: Floats, has_noise: bool) -> Floats:
    """Return the means (n,) over the classes; without noise, of those that are no NaN."""
    counted = ~np.isnan(of_classes) | has_noise
    return ratio(np.where(counted, of_classes, 0.0).sum(axis=-1), counted.sum(axis=-1))


def areas(counts: Floats) -> tuple[Floats, Floats]:
    """Return the areas and their largest errors (...) of counts (..., 2, n_bins); see below."""
    negative, positive = counts[..., 0, :], counts[..., 1, :]
    n_negative, n_positive = negative.sum(axis=-1), positive.sum(axis=-1)
    n_pairs = np.where((n_negative > 0) & (n_positive > 0), n_negative * n_positive, 0.0)
    below = np.cumsum(negative, axis=-1) - negative
    tied = (positive * negative).sum(axis=-1) / 2
    return ratio((positive * below).sum(axis=-1) + tied, n_pairs), ratio(tied, n_pairs)


def area_under_curve(counts: Ints) -> tuple[float, float]:
    """Return the area under the ROC curve from counts per class and bin, and its largest error.

    The area is the fraction of the pairs of rows of both classes in which the second class has the
    larger probability. A pair in one bin counts one half; in truth it counts between 0 and 1.
    Without pairs, both are NaN.

    Examples
    --------
    >>> area_under_curve(np.array([[3, 1], [1, 3]]))
    (0.75, 0.1875)
    """
    area, tied = areas(counts.astype(np.float64))
    return float(area), float(tied)


@dataclass(frozen=True)
class PredictionScores(Checked):
    """The scores of predictions, and the counts from which they derive.

    Attributes
    ----------
    classes : tuple of two classes
        In ascending order. Probabilities are those of the second one.
    counts : array (2, n_bins) of int64
        The count of rows of each class in each bin of equal width between 0 and 1. A bin contains
        its right edge, and the first one also 0.
    confusion : array (2, 2) of int64
        The count of rows by class and by predicted class, which is the second one if its
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
    """Return the count of a client's rows of each class."""
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
