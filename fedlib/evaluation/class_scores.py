"""Scores of the probabilities of several classes, from counts and sums over all clients.

A class is compared with all others. The sums are one request, whether the server sees those of each
client, only masked ones, or ones with noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedlib.boosting.classes import Class
from fedlib.core.aggregation import Aggregation
from fedlib.core.agreement import agree_on_features
from fedlib.core.array_types import Floats, Ints
from fedlib.core.protocol import Flow
from fedlib.evaluation.messages import ROUNDING, ClassScoreTotals, CountClassScores
from fedlib.protection.secure.points import DescribeFeatures

__all__ = ["ClassScores", "class_evaluation"]


@dataclass(frozen=True)
class ClassScores:
    """The scores of probabilities of several classes, and the counts from which they derive.

    Attributes
    ----------
    classes : tuple of classes
        In ascending order, like the columns of probabilities.
    counts : array (n_classes, 2, n_bins) of int64
        The number of rows of other classes and of the class in each bin of equal width of the
        probability of the class.
    confusion : array (n_classes, n_classes) of int64
        The number of rows by class and by the most probable class.
    accuracy, balanced_accuracy, auc, log_loss, brier : float
        The balanced accuracy is the mean recall of the classes, and the AUC the mean area of each
        class against the others; classes without rows do not count. The Brier score of several
        classes is a sum over them, for two it is that of one.
    auc_error : float
        The largest possible error of ``auc`` because of the bins.
    aucs, auc_errors : array (n_classes,)
        Those of each class; NaN for a class without rows.
    """

    classes: tuple[Class, ...]
    counts: Ints
    confusion: Ints
    accuracy: float
    balanced_accuracy: float
    auc: float
    auc_error: float
    aucs: Floats
    auc_errors: Floats
    log_loss: float
    brier: float


def class_evaluation(
    classes: tuple[Class, ...], n_bins: int, aggregation: Aggregation
) -> Flow[ClassScores]:
    """Return the server flow for classes on which the clients have agreed before the run."""
    request = CountClassScores(classes=classes, n_bins=n_bins, privacy=aggregation.privacy)
    replies = yield from aggregation.describe(DescribeFeatures())
    if problem := problem_of_columns(agree_on_features(replies), classes):
        raise ValueError(problem)
    total, _ = yield from aggregation.sum(request)
    return class_scores(request, total)


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


def contradiction(request: CountClassScores, declared: Ints, reply: ClassScoreTotals) -> str | None:
    """Return why a reply contradicts itself or the rows declared before, or None."""
    n, found = int(declared.sum()), request.parts(reply)
    counts = reply.values[:-2]
    if (counts < 0).any() or (counts != np.rint(counts)).any():
        return ".values must begin with counts"
    sides = np.column_stack([n - declared, declared])
    if not np.array_equal(found.confusion.sum(axis=1), declared) or not np.array_equal(
        found.counts.sum(axis=2), sides
    ):
        return ".values must sum to the numbers of rows reported before"
    errors = reply.values[-2:]
    if (errors < 0).any() or (errors > n * (1 + ROUNDING)).any():
        return ".values must end with errors between 0 and the number of rows"
    return None


def class_scores(request: CountClassScores, total: ClassScoreTotals) -> ClassScores:
    """Return the scores from the sums of all clients, which can have noise.

    Raises
    ------
    ValueError
        When there are no rows.
    """
    found = request.parts(total)
    confusion, counts = (
        np.maximum(np.rint(one), 0).astype(np.int64) for one in (found.confusion, found.counts)
    )
    sizes = confusion.sum(axis=1)
    n, has_rows = int(sizes.sum()), sizes > 0
    if not n and request.privacy is None:
        raise ValueError("the clients have no rows")
    n = max(n, 1)  # noise can hide all rows
    with np.errstate(invalid="ignore"):
        recalls = np.diag(confusion) / sizes
    areas = np.array([area_under_curve(of_class) for of_class in counts]).T.copy()
    has_area = ~np.isnan(areas[0])
    auc, auc_error = areas[:, has_area].mean(axis=1) if has_area.any() else (np.nan, np.nan)
    return ClassScores(
        request.classes,
        counts,
        confusion,
        float(np.trace(confusion) / n),
        float(recalls[has_rows].mean()) if has_rows.any() else np.nan,
        float(auc),
        float(auc_error),
        areas[0],
        areas[1],
        found.log_loss / n,
        found.square / n / (2 if len(request.classes) == 2 else 1),  # as in scikit-learn
    )


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
    negative, positive = counts.astype(np.float64)
    n_pairs = negative.sum() * positive.sum()
    if not n_pairs:
        return np.nan, np.nan
    below = np.cumsum(negative) - negative
    tied = (positive * negative).sum() / 2
    return float(((positive * below).sum() + tied) / n_pairs), float(tied / n_pairs)
