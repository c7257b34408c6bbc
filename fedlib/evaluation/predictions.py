"""Scores of predictions for held-out rows whose classes are known.

Each client has the class of each of its rows, and the probability of the second class that a model
gives to it. The model itself takes no part. The first round counts the classes, the second one
counts rows by class and probability.

Source of the area under the ROC curve from a histogram: D. Bamber, The area above the ordinal
dominance graph and the area below the receiver operating characteristic graph, Journal of
Mathematical Psychology 12, 1975.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.classes import Class, agree_on_kind, agree_on_two_classes, class_weights
from fedlib.core.agreement import settle
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client, handles, partitions
from fedlib.core.estimator import Federated
from fedlib.core.labels import read_classes
from fedlib.core.parameters import KW_ONLY
from fedlib.core.points import check_points
from fedlib.core.protocol import Flow
from fedlib.core.validation import Interval
from fedlib.evaluation.messages import (
    MAX_BINS,
    ClassCounts,
    CountScores,
    DescribeClasses,
    ScoreCounts,
)
from fedlib.tables.summary.columns import ask, repeat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EvaluationClient", "FederatedEvaluation", "PredictionScores", "evaluation"]

EPS = np.finfo(np.float64).eps  # probabilities are clipped at it in the log-loss, as in sklearn
ROUNDING = 1e-9  # relative error of sums


@dataclass(frozen=True)
class PredictionScores:
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
    auc_error : float
        The largest possible error of ``auc``.
    """

    classes: tuple[Class, Class]
    counts: Ints
    confusion: Ints
    groups: Ints
    group_means: Floats
    accuracy: float
    auc: float
    auc_error: float
    log_loss: float
    brier: float


def evaluation(n_bins: int, n_groups: int) -> Flow[PredictionScores]:
    """Return the server flow; for the parameters see `FederatedEvaluation`."""

    def attempt() -> Flow[PredictionScores]:
        replies = yield DescribeClasses()
        replies = yield from settle(replies, agree_on_kind)
        replies = yield from settle(replies, agree_on_two_classes)
        (first, second), totals = class_weights(replies)
        request = CountScores((first, second), n_bins, n_groups)

        def contradiction(name: str, reply: ScoreCounts) -> str | None:
            return _contradiction(request, declared[name], reply)

        declared = {name: _by_class(reply, request.classes) for name, reply in replies.items()}
        replies = yield from ask(request, replies, contradiction)
        return _scores(request.classes, np.array(totals, np.int64), list(replies.values()))

    return (yield from repeat(attempt))


def _by_class(reply: ClassCounts, classes: tuple[Class, Class]) -> Ints:
    """Return the number of a client's rows of both classes."""
    known = dict(zip(reply.classes, reply.counts.tolist(), strict=True))
    return np.array([known.get(one, 0) for one in classes], np.int64)


def _contradiction(request: CountScores, declared: Ints, reply: ScoreCounts) -> str | None:
    """Return why counts and sums contradict each other or the declared rows, or None."""
    for name in ("counts", "groups"):
        if getattr(reply, name).sum(axis=1).tolist() != declared.tolist():
            return f".{name} must sum to the numbers of rows reported before"
    low, high = _edges(request.n_groups)
    n = reply.groups.sum(axis=0)
    if _outside(reply.sums, n * low, n * high):
        return ".sums must be of probabilities in their bins"
    low, high = _edges(request.n_bins)
    least, most = reply.counts[:, low >= 0.5].sum(axis=1), reply.counts[:, high > 0.5].sum(axis=1)
    if ((reply.above < least) | (reply.above > most)).any():
        return ".above must fit the counts in the bins"
    for name, loss in (("log_losses", _log_loss), ("squares", _squared_error)):
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


def _log_loss(right: Floats) -> Floats:
    """Return the log-loss for probabilities of the true class."""
    return -np.log(np.clip(right, EPS, 1 - EPS))


def _squared_error(right: Floats) -> Floats:
    """Return the squared error for probabilities of the true class."""
    return np.square(1 - right)


def _edges(n_bins: int) -> tuple[Floats, Floats]:
    """Return the lower and the upper edges of bins of equal width between 0 and 1."""
    edges = np.linspace(0, 1, n_bins + 1)
    return edges[:-1], edges[1:]


def _scores(
    classes: tuple[Class, Class], totals: Ints, replies: list[ScoreCounts]
) -> PredictionScores:
    counts, above, groups, sums, losses, squares = (
        np.sum([getattr(reply, name) for reply in replies], axis=0)
        for name in ("counts", "above", "groups", "sums", "log_losses", "squares")
    )
    auc, auc_error = _area_under_curve(counts)
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


def _area_under_curve(counts: Ints) -> tuple[float, float]:
    """Return the area under the ROC curve from counts per class and bin, and its largest error.

    The area is the fraction of the pairs of rows of both classes in which the second class has the
    larger probability. A pair in one bin counts one half; in truth it counts between 0 and 1.

    Examples
    --------
    >>> _area_under_curve(np.array([[3, 1], [1, 3]]))
    (0.75, 0.1875)
    """
    negative, positive = counts.astype(np.float64)
    n_pairs = negative.sum() * positive.sum()
    below = np.cumsum(negative) - negative
    tied = (positive * negative).sum() / 2
    return float(((positive * below).sum() + tied) / n_pairs), float(tied / n_pairs)


class EvaluationClient(Client):
    """A client that holds predicted probabilities and true classes.

    Parameters
    ----------
    part : tuple (probabilities, y)
        ``probabilities`` (n_rows,) or (n_rows, 1): those of the second class, in [0, 1]. ``y``
        (n_rows,): the classes, text or numbers. No class may be missing.

    Attributes
    ----------
    supervised : bool
        True: the client needs classes.

    Raises
    ------
    ValueError
        When the part is not such a tuple.
    """

    supervised: ClassVar[bool] = True

    def __init__(self, part: tuple[ArrayLike, ArrayLike]):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise ValueError("a part must be (probabilities, y), without weights")
        table = part[0] if np.ndim(part[0]) != 1 else np.reshape(part[0], (-1, 1))
        self.X = check_points(table, ensure_min_samples=0)
        if self.n_features != 1:
            raise ValueError(
                "probabilities must be one column, that of the second class; got"
                f" {self.n_features} columns"
            )
        inside = (self.X >= 0) & (self.X <= 1)
        if not inside.all():
            row = int(np.argmin(inside))
            raise ValueError(
                f"probabilities must lie in [0, 1], got {self.X[row, 0]:g} in row {row + 1}"
            )
        self.y = read_classes(part[1], n_rows=len(self.X))

    @handles(DescribeClasses)
    def describe_classes(self, request: DescribeClasses) -> ClassCounts:
        classes, counts = np.unique(self.y, return_counts=True)
        return ClassCounts(tuple(classes.tolist()), counts.astype(np.int64))

    @partitions(DescribeClasses)
    def classes(self, request: DescribeClasses) -> Iterable[Ints]:
        yield np.unique(self.y, return_inverse=True)[1]

    @partitions(CountScores)
    def bins(self, request: CountScores) -> Iterable[Ints]:
        positive, scores = (self.y == request.classes[1]).astype(np.int64), self.X[:, 0]
        yield 2 * _bins(scores, request.n_bins) + positive
        yield 2 * _bins(scores, request.n_groups) + positive
        yield 2 * (scores > 0.5) + positive

    @handles(CountScores)
    def count_scores(self, request: CountScores) -> ScoreCounts:
        positive = (self.y == request.classes[1]).astype(np.int64)
        scores = self.X[:, 0]
        right = np.where(positive == 1, scores, 1 - scores)
        groups = _bins(scores, request.n_groups)
        return ScoreCounts(
            _table(positive, _bins(scores, request.n_bins), request.n_bins),
            np.bincount(positive[scores > 0.5], minlength=2),
            _table(positive, groups, request.n_groups),
            _sums(groups, scores, request.n_groups),
            _sums(positive, _log_loss(right), 2),
            _sums(positive, _squared_error(right), 2),
        )


def _bins(scores: Floats, n_bins: int) -> Ints:
    """Return the bin of each probability; a bin contains its right edge."""
    return np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], scores).astype(np.int64)


def _sums(codes: Ints, values: Floats, n_groups: int) -> Floats:
    """Return the sum of the values of each group (n_groups,)."""
    return np.bincount(codes, values, n_groups).astype(np.float64)  # of no values, it is integer


def _table(positive: Ints, bins: Ints, n_bins: int) -> Ints:
    """Return the number of rows by class and bin (2, n_bins)."""
    return np.bincount(positive * n_bins + bins, minlength=2 * n_bins).reshape(2, n_bins)


class FederatedEvaluation(Federated):
    """Scores of a classifier's predictions for held-out rows of several clients.

    Attributes
    ----------
    model_ : PredictionScores
        The scores, and the counts from which they derive.
    scores_ : dict of str to float
        ``"accuracy"``; ``"AUC"``, the area under the ROC curve; ``"log-loss"``; ``"Brier score"``,
        the mean squared error of the probabilities.
    auc_error_ : float
        The largest possible error of the AUC.
    classes_ : array (2,)
        The classes in ascending order.
    confusion_matrix_ : array (2, 2) of int64
        The number of rows by class and by predicted class, as in scikit-learn.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, or there are not two classes.

    See Also
    --------
    FederatedXGBClassifier : a classifier whose `predict_proba` gives the probabilities.
    FederatedClusteringScore : scores of a clustering, without classes.

    Notes
    -----
    A part is ``(probabilities, y)``: the probability of the second class of each row, such as
    ``model.predict_proba(X)[:, 1]``, and the class. Any model can be evaluated. Take rows that had
    no part in its training.

    Accuracy, log-loss, Brier score and calibration curve equal those of scikit-learn on the pooled
    rows. The AUC is exact except for pairs of rows of both classes in one bin: each of them counts
    one half, so the error is at most half of their fraction.

    *Disclosure.* The number of rows of each class in each bin. A bin with a single row nearly
    discloses its probability.

    *Cost.* Two rounds. The reply of a client has 16 bytes per bin.

    Examples
    --------
    >>> from fedlib import FederatedEvaluation
    >>> north = [0.9, 0.2, 0.7], ["well", "ill", "ill"]
    >>> south = [0.4, 0.8], ["ill", "well"]
    >>> model = FederatedEvaluation().fit([north, south])
    >>> {name: round(score, 3) for name, score in model.scores_.items()}
    {'accuracy': 0.8, 'AUC': 1.0, 'log-loss': 0.453, 'Brier score': 0.148}
    >>> model.auc_error_, model.confusion_matrix_.tolist()
    (0.0, [[2, 1], [0, 2]])
    """

    name = "evaluation"
    client_class = EvaluationClient
    has_labels = False
    _: KW_ONLY
    n_bins: Annotated[
        int,
        Interval(Integral, 1, MAX_BINS, closed="both"),
        """
        The number of bins in which the probabilities are counted for the area under the ROC curve,
        in 1..2**20. More bins give a smaller `auc_error_` and disclose more.
        """,
    ] = 1000
    n_groups: Annotated[
        int,
        Interval(Integral, 1, MAX_BINS, closed="both"),
        "The number of bins of the calibration curve, in 1..2**20.",
    ] = 10

    def _flow(self) -> Flow[PredictionScores]:
        return evaluation(self.n_bins, self.n_groups)

    def _check_clients(self, clients: Mapping[str, Client]) -> None:
        described: dict[str, Any] = {
            name: client.handle(DescribeClasses())
            for name, client in clients.items()
            if not client.passive
        }
        agree_on_kind(described)
        agree_on_two_classes(described)
        if described:
            class_weights(described)

    def _set_model(self, model: PredictionScores) -> None:
        super()._set_model(model)
        self.classes_ = np.array(model.classes)
        self.confusion_matrix_ = model.confusion
        self.auc_error_ = model.auc_error
        self.scores_ = {
            "accuracy": model.accuracy,
            "AUC": model.auc,
            "log-loss": model.log_loss,
            "Brier score": model.brier,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the calibration curve: one row per bin.

        Returns
        -------
        DataFrame
            With the columns ``above`` and ``up to`` (the edges of the bin), ``count``, ``mean
            probability``, and ``share`` (of the rows of the second class). The last two are NaN in
            a bin without rows.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        low, high = _edges(model.groups.shape[1])
        count = model.groups.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            fraction = model.groups[1] / count
        columns = {
            "above": low,
            "up to": high,
            "count": count,
            "mean probability": model.group_means,
            "share": fraction,
        }
        return pd.DataFrame(columns)

    def plot(self) -> Figure:
        """Draw the ROC curve and the calibration curve.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        from fedlib.figures.scores import curves

        model = self.model_
        above = np.cumsum(model.counts[:, ::-1], axis=1) / model.counts.sum(axis=1, keepdims=True)
        sizes = model.groups.sum(axis=0)
        filled = sizes > 0
        fractions = model.groups[1, filled] / sizes[filled]
        return curves(
            above,
            model.classes,
            model.group_means[filled],
            fractions,
            auc=model.auc,
            log_loss=model.log_loss,
        )

    def report(self) -> str:
        """Return the scores and the calibration curve as text."""
        lines = [f"{name}: {score:.4f}" for name, score in self.scores_.items()]
        lines.append(f"largest error of the AUC: {self.auc_error_:.4f}")
        table = self.to_frame().to_string(index=False, float_format="{:.4g}".format)
        return "\n".join([*lines, "", table])
