"""Scores of predictions for held-out rows whose classes are known.

Each client has the class of each of its rows, and the probability of the second class, or of each
class, that a model gives to it. The model itself takes no part. The first round counts the classes,
the second one counts rows by class and probability (`fedlib.evaluation.class_scores` for several
columns of probabilities, and for sums with masks or noise).

Source of the area under the ROC curve from a histogram: D. Bamber, The area above the ordinal
dominance graph and the area below the receiver operating characteristic graph, Journal of
Mathematical Psychology 12, 1975.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedlib.boosting.classes import (
    Class,
    agree_on_kind,
    agree_on_two_classes,
    check_known,
    class_weights,
    given_classes,
)
from fedlib.core.aggregation import agree, settle
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import BadRequest, Client, handles, partitions
from fedlib.core.estimator import Example
from fedlib.core.messages import Message
from fedlib.core.parameters import KW_ONLY, Interval, OptionalBounds
from fedlib.core.points import check_points
from fedlib.core.protocol import Flow, Replies
from fedlib.core.targets import read_classes
from fedlib.evaluation.class_scores import (
    SCORES,
    ClassScores,
    PredictionScores,
    class_evaluation,
    class_scores,
    contradiction,
    contradiction_of_two,
    edges,
    log_losses,
    problem_of_columns,
    rows_by_class,
    squared_errors,
    two_class_scores,
)
from fedlib.evaluation.messages import (
    MAX_BINS,
    ClassCounts,
    ClassScoreTotals,
    CountClassScores,
    CountScores,
    DescribeClasses,
    ScoreCounts,
    bins_of,
)
from fedlib.evaluation.reported import Scored
from fedlib.protection.estimator import is_protected
from fedlib.protection.secure.points import DescribeFeatures, Features
from fedlib.tables.summary.messages import ask, repeat

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ROW_SUM = 1e-6  # the largest difference to 1 of the sum of a row's probabilities


def evaluation(n_bins: int, n_groups: int) -> Flow[PredictionScores | ClassScores]:
    """Return the server flow; for the parameters see `FederatedEvaluation`."""

    def attempt() -> Flow[PredictionScores | ClassScores]:
        replies = yield DescribeClasses()
        replies = yield from settle(replies, agree_on_kind)
        replies = yield from settle(replies, agree_on_columns)
        if agree_on_columns(replies) > 1:
            return (yield from _several(replies, n_bins))
        replies = yield from settle(replies, agree_on_two_classes)
        (first, second), totals = class_weights(replies)
        request = CountScores((first, second), n_bins, n_groups)

        def contradiction(name: str, reply: ScoreCounts) -> str | None:
            return contradiction_of_two(request, declared[name], reply)

        declared = {name: rows_by_class(reply, request.classes) for name, reply in replies.items()}
        replies = yield from ask(request, replies, contradiction)
        return two_class_scores(request.classes, np.array(totals, np.int64), list(replies.values()))

    return (yield from repeat(attempt))


def agree_on_columns(replies: Mapping[str, Any]) -> int:
    """Return the count of columns of the probabilities; raise Disagreement if it differs."""
    columns = {name: reply.n_columns for name, reply in replies.items()}
    return int(agree("the number of columns of the probabilities", columns)) if columns else 1


def _several(replies: Replies, n_bins: int) -> Flow[ClassScores]:
    """Ask for the scores of several columns, each of a class that some client has."""
    classes = _all_classes(replies)
    request = CountClassScores(classes=classes, n_bins=n_bins)
    declared = {name: rows_by_class(reply, classes) for name, reply in replies.items()}
    replies = yield from ask(
        request, replies, lambda name, reply: contradiction(request, declared[name], reply)
    )
    total = np.sum([reply.values for reply in replies.values()], axis=0)
    return class_scores(request, ClassScoreTotals(total))


def _all_classes(replies: Mapping[str, Any]) -> tuple[Class, ...]:
    """Return the classes of all clients; raise ValueError when they are not those of the columns.

    Without ``classes``, the columns are those of the classes that the clients' rows have.
    """
    classes = tuple(class_weights(replies, only_two=False)[0])
    if problem := problem_of_columns(agree_on_columns(replies), classes):
        raise ValueError(f"{problem}; if no row has one of the classes, set classes")
    return classes


class EvaluationClient(Client):
    """A client that holds predicted probabilities and true classes.

    Parameters
    ----------
    part : tuple (probabilities, y)
        ``probabilities`` (n_rows,) or (n_rows, 1): those of the second class, in [0, 1]; or
        (n_rows, n_classes): those of all classes in ascending order, of which the sum is 1. ``y``
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
    open_requests: tuple[type[Message], ...] = (DescribeFeatures,)

    def __init__(self, part: tuple[ArrayLike, ArrayLike]):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise ValueError("a part must be (probabilities, y), without weights")
        table = part[0] if np.ndim(part[0]) != 1 else np.reshape(part[0], (-1, 1))
        self.X = check_points(table, ensure_min_samples=0)
        inside = (self.X >= 0) & (self.X <= 1)
        if not inside.all():
            row, column = np.argwhere(~inside)[0]
            raise ValueError(
                f"probabilities must lie in [0, 1], got {self.X[row, column]:g} in row {row + 1}"
            )
        wrong = np.abs(self.X.sum(axis=1) - 1) > ROW_SUM
        if self.n_features > 1 and wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                "the probabilities of all classes must add up to 1, got"
                f" {self.X[row].sum():g} in row {row + 1}"
            )
        self.y = read_classes(part[1], n_rows=len(self.X))

    @handles(DescribeClasses)
    def describe_classes(self, request: DescribeClasses) -> ClassCounts:
        classes, counts = np.unique(self.y, return_counts=True)
        return ClassCounts(tuple(classes.tolist()), counts.astype(np.int64), self.n_features)

    @partitions(DescribeClasses, counts=True, terms=())
    def classes(self, request: DescribeClasses) -> Iterable[Ints]:
        yield np.unique(self.y, return_inverse=True)[1]

    @handles(DescribeFeatures)
    def describe_features(self, request: DescribeFeatures) -> Features:
        return Features(self.n_features)

    @handles(CountClassScores)
    def count_class_scores(self, request: CountClassScores) -> ClassScoreTotals:
        return request.total(self._scored(request.classes), self)

    @partitions(CountClassScores, terms=())
    def groups_of_classes(self, request: CountClassScores) -> Iterable[Ints]:
        for groups, _ in request.groups(*self._scored(request.classes)):
            yield groups

    def _scored(self, classes: Sequence[Class]) -> tuple[Floats, Ints]:
        """Return the probability of each class, and the index of each row's class.

        An unknown class counts as the first one. Behind masks and with noise, an error would
        disclose that there is such a row.
        """
        if problem := problem_of_columns(self.n_features, tuple(classes)):
            raise BadRequest(problem)
        try:
            check_known(self.y, classes)
        except ValueError as error:
            self.note(f"{error}; such rows count as rows of the first class")
        places = {label: k for k, label in enumerate(classes)}
        codes = np.array([places.get(label, 0) for label in self.y.tolist()], np.int64)
        scores = self.X if self.n_features > 1 else np.column_stack([1 - self.X, self.X])
        return scores, codes

    @partitions(CountScores, terms=())
    def bins(self, request: CountScores) -> Iterable[Ints]:
        positive, scores = (self.y == request.classes[1]).astype(np.int64), self.X[:, 0]
        yield 2 * bins_of(scores, request.n_bins) + positive
        yield 2 * bins_of(scores, request.n_groups) + positive
        yield 2 * (scores > 0.5) + positive

    @handles(CountScores)
    def count_scores(self, request: CountScores) -> ScoreCounts:
        positive = (self.y == request.classes[1]).astype(np.int64)
        scores = self.X[:, 0]
        right = np.where(positive == 1, scores, 1 - scores)
        groups = bins_of(scores, request.n_groups)
        return ScoreCounts(
            _table(positive, bins_of(scores, request.n_bins), request.n_bins),
            np.bincount(positive[scores > 0.5], minlength=2),
            _table(positive, groups, request.n_groups),
            _sums(groups, scores, request.n_groups),
            _sums(positive, log_losses(right), 2),
            _sums(positive, squared_errors(right), 2),
        )


def _sums(codes: Ints, values: Floats, n_groups: int) -> Floats:
    """Return the sum of the values of each group (n_groups,)."""
    return np.bincount(codes, values, n_groups).astype(np.float64)  # of no values, it is integer


def _table(positive: Ints, bins: Ints, n_bins: int) -> Ints:
    """Return the count of rows by class and bin (2, n_bins)."""
    return np.bincount(positive * n_bins + bins, minlength=2 * n_bins).reshape(2, n_bins)


class FederatedEvaluation(Scored):
    """Scores of a classifier's predictions for held-out rows of several clients.

    Attributes
    ----------
    model_ : PredictionScores or ClassScores
        The scores, and the counts from which they derive; the latter for several columns of
        probabilities, and with `classes`, `secure` or `epsilon`.
    scores_ : dict of str to float
        ``"accuracy"``; ``"balanced accuracy"``, the mean recall of the classes; ``"AUC"``, the area
        under the ROC curve, for several classes the mean of each against the others;
        ``"log-loss"``; ``"Brier score"``, the mean squared error of the probabilities. NaN, with a
        warning, where rows or noise leave a score unknown.
    intervals_ : dict of str to (low, high)
        The interval of each score. With `epsilon`, it contains the true score with a probability of
        99%; without it, it is as wide as `auc_error_` says, or the score.
    auc_error_ : float
        The largest possible error of the AUC; with `epsilon`, the larger distance to the ends of
        its interval.
    classes_ : array (n_classes,)
        The classes in ascending order.
    confusion_matrix_ : array (n_classes, n_classes) of int64
        The count of rows by class and by predicted class, as in scikit-learn. With `epsilon`,
        counts with noise, from 0 on.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, there are not two classes for one column of probabilities,
        or not one class per column.

    See Also
    --------
    FederatedXGBClassifier : a classifier whose `predict_proba` gives the probabilities.
    FederatedClusteringScore : scores of a clustering, without classes.

    Notes
    -----
    A part is ``(probabilities, y)``: the probability of the second class of each row, such as
    ``model.predict_proba(X)[:, 1]``, and the class; or the probabilities of all classes, such as
    ``model.predict_proba(X)``. Any model can be evaluated. Take rows that had no part in its
    training.

    Accuracy, balanced accuracy, log-loss, Brier score and calibration curve equal those of
    scikit-learn on the pooled rows. The AUC is exact except for pairs of rows of both classes in
    one bin: each of them counts one half, so the error is at most half of their fraction.

    *Disclosure.* The count of rows of each class in each bin. A bin with a single row nearly
    discloses its probability. With ``secure=True``, the server sees these counts of all clients
    together. With `epsilon`, they have noise, which widens the intervals: take as few bins as you
    need, and many rows. Scores follow from the noisy counts as they are, because counts that are
    cut at 0 would draw the AUC to 1/2.

    *Cost.* Two rounds. The reply of a client has 16 bytes per bin, for several columns per class.

    Examples
    --------
    >>> from fedlib import FederatedEvaluation
    >>> north = [0.9, 0.2, 0.7], ["well", "ill", "ill"]
    >>> south = [0.4, 0.8], ["ill", "well"]
    >>> model = FederatedEvaluation().fit([north, south])
    >>> [f"{name}: {score:.3f}" for name, score in list(model.scores_.items())[:3]]
    ['accuracy: 0.800', 'balanced accuracy: 0.833', 'AUC: 1.000']
    >>> model.auc_error_, model.confusion_matrix_.tolist()
    (0.0, [[2, 1], [0, 2]])
    """

    name = "evaluation"
    example = Example("probabilities", {"n_bins": 5}, {"classes": [0, 1]})
    client_class = EvaluationClient
    has_labels = False
    _: KW_ONLY
    n_bins: Annotated[
        int,
        Interval(Integral, 1, MAX_BINS, closed="both"),
        """
        The count of bins in which the probabilities are counted for the area under the ROC curve,
        in 1..2**20. More bins give a smaller `auc_error_` and disclose more.
        """,
    ] = 1000
    n_groups: Annotated[
        int,
        Interval(Integral, 1, MAX_BINS, closed="both"),
        """
        The count of bins of the calibration curve, in 1..2**20. Only for one column of
        probabilities in a run without `classes`, `secure` and `epsilon`.
        """,
    ] = 10
    classes: Annotated[
        ArrayLike | None,
        "array-like",
        list,
        None,
        """
        All classes, on which the clients have agreed: those of the columns of the probabilities, in
        ascending order. By default the classes of all rows. ``secure=True`` and `epsilon` need
        them, or a `schema` with them.
        """,
    ] = None
    bounds: Annotated[
        OptionalBounds,
        "Must be None: the bounds of probabilities are 0 and 1.",
    ] = None
    known_bounds = MappingProxyType({})

    def _score(self) -> Flow[PredictionScores | ClassScores]:
        if self.bounds is not None:
            raise ValueError(
                f"bounds must be None, because probabilities lie in [0, 1]; got {self.bounds!r}"
            )
        classes = self._given_classes()
        if not classes:
            return evaluation(self.n_bins, self.n_groups)
        return class_evaluation(classes, self.n_bins, self._aggregation(1))

    def _lacking(self) -> list[str]:
        lacking = super()._lacking()
        if is_protected(self) and self.classes is None and self.schema is None:
            lacking.append("classes, those that the rows may have (got classes=None)")
        return lacking

    def _given_classes(self) -> tuple[Class, ...]:
        """Return the agreed classes; none if they follow from the rows."""
        classes = self.classes
        if classes is None and self.schema is not None and is_protected(self):
            classes = self.schema.classes
        return () if classes is None else given_classes(classes, only_two=False)

    def _check_clients(self, clients: dict[str, Client]) -> None:
        super()._check_clients(clients)
        if classes := self._given_classes():
            for name, client in clients.items():
                problem = problem_of_columns(client.n_features, classes)
                if problem and not client.passive:
                    raise ValueError(f"parts[{name}]: {problem}")
            return
        described: dict[str, Any] = {
            name: client.handle(DescribeClasses())
            for name, client in clients.items()
            if not client.passive
        }
        agree_on_kind(described)
        if agree_on_columns(described) > 1:
            _all_classes(described)
            return
        agree_on_two_classes(described)
        if described:
            class_weights(described)

    def _set_model(self, model: PredictionScores | ClassScores) -> None:
        super()._set_model(model)
        self.classes_ = np.array(model.classes)
        self.confusion_matrix_ = np.maximum(model.confusion, 0)
        self.auc_error_ = model.auc_error
        values = model.accuracy, model.balanced_accuracy, model.auc, model.log_loss, model.brier
        self._set_scores(dict(zip(SCORES, values, strict=True)), model.intervals)

    def to_frame(self) -> pd.DataFrame:
        """Return the calibration curve, one row per bin, or the scores of each class.

        Returns
        -------
        DataFrame
            With the columns ``above`` and ``up to`` (the edges of the bin), ``count``, ``mean
            probability``, and ``share`` (of the rows of the second class). The last two are NaN in
            a bin without rows. Of `ClassScores`, one row per class: ``class``, ``count``,
            ``precision``, ``recall``, ``AUC``, and the largest ``error of the AUC``, NaN where
            there are no rows.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        model = self.model_
        if isinstance(model, ClassScores):
            return _of_each_class(model, self.epsilon is not None)
        low, high = edges(model.groups.shape[1])
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
        """Draw the ROC curve and the calibration curve, or the ROC curve of each class.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        from fedlib.figures.scores import class_curves, curves

        model = self.model_
        if isinstance(model, ClassScores):
            above = np.cumsum(model.counts[:, :, ::-1], axis=2)
            fractions = np.clip(above / np.maximum(above[:, :, -1:], 1), 0, 1)
            curves_ = np.maximum.accumulate(fractions, axis=2)  # noise could lower it
            return class_curves(curves_, model.classes, auc=model.auc)
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
        has_noise = self.epsilon is not None
        lines = [
            f"{name}: {score:.4f}"
            + (" (between {:.4f} and {:.4f})".format(*self.intervals_[name]) if has_noise else "")
            for name, score in self.scores_.items()
        ]
        lines.append(f"largest error of the AUC: {self.auc_error_:.4f}")
        table = self.to_frame().to_string(index=False, float_format="{:.4g}".format)
        return "\n".join([*lines, "", table])


def _of_each_class(model: ClassScores, has_noise: bool) -> pd.DataFrame:
    """Return the scores of each class, one row per class."""
    columns = {
        "class": list(model.classes),
        "count": np.maximum(model.confusion.sum(axis=1), 0),
        "precision": model.precisions,
        "recall": model.recalls,
        "AUC": model.aucs,
        "error of the AUC": model.auc_errors,
    }
    if has_noise:
        columns["error of the precision"] = model.precision_errors
        columns["error of the recall"] = model.recall_errors
    return pd.DataFrame(columns)
