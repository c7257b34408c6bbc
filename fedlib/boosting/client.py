"""The clients of boosting: they keep their rows and answer with sums and proposals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.boosting.classes import Class, check_known
from fedlib.boosting.data import check_allowed, check_size, check_targets
from fedlib.boosting.descriptions import (
    ClassSums,
    DescribeTargets,
    DescribeTraining,
    SumClasses,
    SumTargets,
    TargetDescription,
    TargetSums,
    TrainingDescription,
    initial_scale,
    reply_of_targets,
    target_sums,
)
from fedlib.boosting.first_scores import (
    CountTargets,
    ResidualSums,
    SumResiduals,
    TargetCounts,
    residual_sums,
    target_counts,
)
from fedlib.boosting.label_sums import SMALLEST_POSITIVE
from fedlib.boosting.messages import Growing, PredictedLevels, PredictedTargets, Predictions
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.boosting.row_client import of_run
from fedlib.boosting.tree_client import TreeClient
from fedlib.core.array_types import Bools, Floats32, Ints
from fedlib.core.client import BadRequest, handles, partitions
from fedlib.core.messages import Message
from fedlib.core.targets import read_classes
from fedlib.protection.secure.fixed_point import add_rows, summed


class BoostingClient(TreeClient):
    """A client and its rows.

    Parameters
    ----------
    part : tuple (X, y) or (X, y, sample_weight), or with eval_set and base_margin at its end
        ``X`` (n_rows, n_features): numbers within ±2**127; NaN is a missing value. Columns of a
        DataFrame may be categories or texts. There may be no rows, but there must be columns.
        ``y`` (n_rows,): the classes, text or numbers, or None for a client that stays passive. No
        class may be missing, and blanks around a text do not count.
        ``sample_weight`` (n_rows,): at least 0, in sum at most 2**40; by default 1 for each row.
        A row of weight 0 is predicted, but does not influence classes, bins or splits.
        ``eval_set``: rows for validation, or None; see `FederatedXGBClassifier`.
        ``base_margin`` (n_rows,), or (n_rows, n_classes) for several classes: finite numbers within
        ±2**40, from which the margins of these rows start, as in XGBoost, instead of the margin of
        ``base_score``. All clients that are not passive must have it, or none; not with ``secure``
        or ``epsilon``. An eval set has it as its fourth entry, ``(X, y, sample_weight,
        base_margin)``; without it, its rows start from the margin of ``base_score``.
    learning_rate : float, optional
        The learning rate that this client prefers, above 0 and at most 1; by default the server's.
        The run uses the clients' mean, weighted by their rows.
    min_category_count : int, default=1
        The client withholds the names of categories with fewer rows, at least 1. The run may ask
        for a larger number.

    Attributes
    ----------
    supervised : bool
        True: the client needs classes.
    gaps_allowed : bool
        True: rows may have missing values.
    raw : bool
        True: tables may contain text and gaps.
    validates : bool
        True: a part may contain rows for validation.
    takes_margins : bool
        True: a part may contain base margins.

    Raises
    ------
    ValueError
        When the part or the learning rate is invalid.

    Examples
    --------
    >>> client = BoostingClient(([[1.0], [2.0], [4.0]], ["ill", "well", "ill"]))
    >>> client.handle(DescribeTraining(learning_rate=0.3)).weights
    array([2., 1.])
    """

    def _check_labels(self, y: Any, n_rows: int) -> NDArray[Any]:
        return read_classes(y, n_rows=n_rows)

    @handles(DescribeTraining)
    def describe_training(self, request: DescribeTraining) -> TrainingDescription:
        y, trains = self._labels(), self._hold_out(request)
        classes, codes = np.unique(y[self._counted], return_inverse=True)
        weights = np.bincount(codes[trains[self._counted]], self.weight[trains], len(classes))
        return TrainingDescription(
            **self._description(request, trains),
            classes=tuple(classes.tolist()),
            weights=weights.astype(np.float64),
        )

    @partitions(DescribeTraining, counts=True, terms=())
    def rows_of_classes(self, request: DescribeTraining) -> Iterable[Ints]:
        trains = self._training_rows()
        yield trains.astype(np.int64) - 1
        yield np.where(trains, np.unique(self._labels(), return_inverse=True)[1], -1)
        yield from self._rows_with_values(request.agreed)

    @handles(SumClasses)
    def sum_classes(self, request: SumClasses) -> ClassSums:
        trains = self._training_rows()
        of_rows, weight = self._codes(request.classes), self._limited_weight(request.max_weight)
        digits, of_training = self.row_digits(request), weight[trains, np.newaxis]
        places, shift = of_rows[trains], self._shift(request.learning_rate)
        weights = add_rows(of_training, digits, "weights", places, len(request.classes))
        shifts = add_rows(of_training * np.float64(shift), digits, "shift")[0, 0]
        return summed(ClassSums, digits, weights=weights[:, 0], shift=shifts)

    def _codes(self, classes: Sequence[Class]) -> Ints:
        """Return the index of each row's class; an unknown class counts as the first one.

        Behind masks and with noise, an error would disclose that there is such a row.
        """
        y = self._labels()
        try:
            check_known(y[self._counted], classes)
        except ValueError as error:
            self.note(f"{error}; such rows count as rows of the first class")
        codes = {label: code for code, label in enumerate(classes)}
        return np.array([codes.get(label, 0) for label in y.tolist()], np.int64)

    @of_run
    def _targets(self, state: Growing) -> NDArray[Any]:
        of_rows = self._codes(state.classes)
        return of_rows == 1 if state.objective == "binary:logistic" else of_rows

    def _predict(self, margins: Floats32, objective: str) -> Predictions:
        of_class = OBJECTIVES[objective].response(margins)
        is_second = margins[:, 0] > 0
        return Predictions(margins.argmax(1) if margins.shape[1] > 1 else is_second * 1, of_class)


class RegressionClient(TreeClient):
    """A client whose rows have numbers as labels.

    Parameters
    ----------
    part : tuple (X, y) or (X, y, sample_weight), or with eval_set and base_margin at its end
        As for `BoostingClient`, except for ``y`` (n_rows,): finite numbers within ±2**40. For
        ``"survival:aft"``, ``y`` (n_rows, 2) has the earliest and the latest time of each row:
        equal if the time is known, the latter infinite if it is only known to be later.
    learning_rate : float, optional
        The learning rate that this client prefers, above 0 and at most 1; by default the server's.
    min_category_count : int, default=1
        As for `BoostingClient`.

    Raises
    ------
    ValueError
        When the part or the learning rate is invalid.

    Examples
    --------
    >>> client = RegressionClient(([[1.0], [2.0]], [10.0, 30.0]))
    >>> client.handle(DescribeTargets(0.3, objective="reg:squarederror", parameter=0.0)).total
    40.0
    """

    def _check_labels(self, y: Any, n_rows: int) -> NDArray[Any]:
        return check_targets(y, n_rows)

    @handles(DescribeTargets)
    def describe_targets(self, request: DescribeTargets) -> TargetDescription:
        y, trains = self._labels(), self._hold_out(request)
        check_allowed(y[self._counted], request.objective)
        sums = target_sums(y[trains], self.weight[trains], request.objective, request.parameter)
        return TargetDescription(
            **self._description(request, trains),
            weight=sums.weight,
            total=sums.total,
            squares=sums.squares,
            gradient=sums.gradient,
            hessian=sums.hessian,
            size=self._first_size(request, trains),
        )

    def _first_size(self, request: DescribeTargets, trains: Bools) -> float:
        """Return `initial_scale` of the rows of training; 0 if they have no base margins."""
        if not self.has_margins or self.base_margin is None:
            return 0.0
        rows = (self.base_margin[trains], self._labels()[trains], self.weight[trains])
        return initial_scale(*rows, request.objective, request.parameter)

    # The slope of pseudo-Huber loss makes a sum of gradients a count of rows of one sign.
    @partitions(DescribeTargets, singly=True, counts=True, terms=("objective", "parameter"))
    def rows_with_targets(self, request: DescribeTargets) -> Iterable[Ints]:
        yield self._training_rows().astype(np.int64) - 1
        yield from self._rows_with_values(request.agreed)

    @handles(SumTargets)
    def sum_targets(self, request: SumTargets) -> TargetSums:
        trains, weight = self._training_rows(), self._limited_weight(request.max_weight)
        y = self._allowed(request.objective, request.max_target)
        shift, digits = self._shift(request.learning_rate), self.row_digits(request)
        return reply_of_targets(request, y[trains], weight[trains], shift, digits)

    def _counted_targets(self, request: SumResiduals | CountTargets) -> tuple[Floats32, Floats32]:
        """Return the targets and the weights of the training rows, limited to those of a run."""
        trains = self._training_rows()
        y = self._allowed(request.objective, request.max_target)
        return y[trains], self._limited_weight(request.max_weight)[trains]

    @handles(SumResiduals)
    def sum_residuals(self, request: SumResiduals) -> ResidualSums:
        return residual_sums(request, *self._counted_targets(request), self.row_digits(request))

    @partitions(
        SumResiduals,
        singly=True,
        counts=True,
        terms=("objective", "margin", "max_weight", "max_target"),
    )
    def rows_with_residuals(self, request: SumResiduals) -> Iterable[Ints]:
        yield self._training_rows().astype(np.int64) - 1

    @handles(CountTargets)
    def count_targets(self, request: CountTargets) -> TargetCounts:
        return target_counts(request, *self._counted_targets(request), self.row_digits(request))

    @partitions(CountTargets, counts=True, terms=("objective", "max_weight", "max_target"))
    def rows_of_ranges(self, request: CountTargets) -> Iterable[Ints]:
        trains, weight = self._training_rows(), self._limited_weight(request.max_weight)
        for part in request.groups(self._allowed(request.objective, request.max_target)):
            yield np.where(trains, part, -1)
        yield np.where(trains & (weight != 1), 0, -1)

    @of_run
    def _targets(self, state: Growing) -> NDArray[Any]:
        return self._allowed(state.objective, state.max_target)

    def _allowed(self, objective: str, max_target: float) -> NDArray[Any]:
        """Return the targets, limited to those that the objective and the run allow."""
        y, chosen = self._labels(), OBJECTIVES[objective]
        if (n_columns := 1 if y.ndim == 1 else y.shape[1]) != chosen.n_columns:
            raise BadRequest(f"y has {n_columns} column(s); {objective} has {chosen.n_columns}")
        if chosen.n_columns == 2:
            return self._ordered(y, objective)
        for check in (partial(check_allowed, objective=objective), partial(check_size, max_target)):
            try:
                check(y[self._counted])
            except ValueError as error:
                self.note(f"{error}; such targets count as the nearest valid one")
        low, high = np.array(OBJECTIVES[objective].targets, np.float32)
        return np.clip(y, max(low, -np.float32(max_target)), min(high, np.float32(max_target)))

    def _ordered(self, y: NDArray[Any], objective: str) -> NDArray[Any]:
        """Return the limits of times (n_rows, 2): an upper one above 0 and not below the lower."""
        try:
            check_allowed(y[self._counted], objective)
        except ValueError as error:
            self.note(f"{error}; such times count as the nearest valid ones")
        low = np.clip(y[:, 0], 0, None)
        high = np.maximum(np.maximum(y[:, 1], low), np.float32(SMALLEST_POSITIVE))
        return np.column_stack([low, high])

    def _predict(self, margins: Floats32, objective: str) -> Message:
        found = np.nan_to_num(OBJECTIVES[objective].response(margins))
        return PredictedTargets(found[:, 0]) if found.shape[1] == 1 else PredictedLevels(found)
