"""Scores of predicted numbers for held-out rows whose numbers are known.

Each client has the number of each of its rows, and the one that a model predicts. The model itself
takes no part. The first sum finds the mean of all numbers, about which the second one adds up the
squares; masked or noisy sums are one, about the middle of the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, nan
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import by_rounding, handles, partitions
from fedlib.core.estimator import Example
from fedlib.core.parameters import KW_ONLY, OptionalBounds
from fedlib.core.points import Bounds, Moments, check_coordinates
from fedlib.core.protocol import Flow, Replies
from fedlib.core.targets import read_targets
from fedlib.evaluation.messages import ErrorSums, NoRows, SumClippedErrors, SumErrors
from fedlib.evaluation.reported import Scored
from fedlib.protection.estimator import is_protected
from fedlib.protection.privacy.noise import Noise, estimate, hides, ratio
from fedlib.protection.secure.points import DescribedPoints, agree_on_bounded_features
from fedlib.protection.sums import RowTotals

RESULTS = (
    "count of rows",
    "mean",
    "R2",
    "explained variance",
    "mean absolute error",
    "mean squared error",
    "mean error",
)


@dataclass(frozen=True)
class NumberScores:
    """The scores of predicted numbers; an error is the prediction minus the number.

    Attributes
    ----------
    n_rows : int
    mean : float
        That of the numbers.
    r2, explained_variance : float
        As in scikit-learn. For equal numbers, 1 if there are no errors and 0 otherwise.
    mean_absolute_error, mean_squared_error, mean_error : float
    intervals : array (5, 2)
        Those of the scores from ``r2`` on; see `fedlib.protection.privacy.noise`. Scores that
        noise hides are NaN.
    problems : tuple of str
        Why scores are NaN.
    """

    n_rows: int
    mean: float
    r2: float
    explained_variance: float
    mean_absolute_error: float
    mean_squared_error: float
    mean_error: float
    intervals: Floats = field(default_factory=lambda: np.full((5, 2), np.nan))
    problems: tuple[str, ...] = ()


def regression_score(bounds: Bounds | None, aggregation: Aggregation) -> Flow[NumberScores]:
    """Return the server flow; for the parameters see `FederatedRegressionScore`.

    Raises
    ------
    ValueError
        When the clients have no rows.
    """
    yield from agree_on_bounded_features(aggregation, 1)
    if bounds is not None:
        request = SumClippedErrors(bounds.limits, privacy=aggregation.privacy)
        total, clients = yield from aggregation.sum(request)
        noise, middle = aggregation.noise(request, len(clients)), float(bounds.limits.mean())
        return number_scores(total.values, middle, noise, request.units)
    counts: dict[str, int] = {}

    def check(replies: Replies) -> dict[str, str]:
        return {
            name: "ErrorSums.n_rows must be the number of rows reported before"
            for name, reply in replies.items()
            if counts.setdefault(name, reply.n_rows) != reply.n_rows
        }

    centre = 0.0
    for _ in range(2):  # about 0 and then about the mean, so that no digits cancel out
        before = centre
        total, _ = yield from aggregation.sum(SumErrors(before), check)
        centre = before + total.total / max(total.n_rows, 1)
    return number_scores(np.array(msgspec.structs.astuple(total), np.float64), before)


def number_scores(
    sums: Floats, centre: float, noise: Noise | None = None, units: Floats | float = 1.0
) -> NumberScores:
    """Return the scores from the sums of all clients about a centre.

    Parameters
    ----------
    sums : array (6,)
        As in `ErrorSums`, in ``units``.
    centre : float
        In noisy sums, the middle of the bounds.
    noise : Noise, optional
    units : array (6,), optional
    """
    n = sums[0]
    if noise is None and not n:
        raise NoRows
    largest = np.full(len(RESULTS), inf)
    if noise is not None:
        width = float(np.asarray(units)[3])
        largest[[1, 4, 5, 6]] = width / 2, width, width**2, width
    largest[[2, 3]] = 1.0
    possible = np.column_stack([np.zeros_like(largest), largest])
    possible[[1, 6], 0], possible[[2, 3], 0] = -largest[[1, 6]], -inf
    found = estimate(lambda values: _results(values * units), sums, noise, possible)
    values, problems = found.values, []
    if noise is None:
        same = np.isnan(values[[2, 3]])  # equal numbers, as in scikit-learn
        errors = np.array([values[5], values[5] - values[6] ** 2])
        values[[2, 3]] = np.where(same, np.where(errors > 0, 0.0, 1.0), values[[2, 3]])
        if n < 2:
            values[[2, 3]] = nan
            problems.append("R2 and the explained variance are NaN, because they need two rows")
        found.intervals[:] = values[:, np.newaxis]
    elif found.hidden.any():
        names = [name for name, hidden in zip(RESULTS, found.hidden, strict=True) if hidden]
        problems.append(hides(names))
    intervals = found.intervals[2:].copy()
    mean, r2, explained, absolute, squared, bias = values[1:].tolist()
    n_rows, mean = max(round(n), 0), centre + mean
    return NumberScores(
        n_rows, mean, r2, explained, absolute, squared, bias, intervals, tuple(problems)
    )


def _results(sums: Floats) -> Floats:
    """Return `RESULTS` (n, 7) of sums (n, 6), NaN where rows or differences must exist and do not.

    Examples
    --------
    >>> _results(np.array([[4.0, 0.0, 8.0, 0.0, 2.0, 2.0]])).tolist()
    [[4.0, 0.0, 0.75, 0.75, 0.5, 0.5, 0.0]]
    """
    n, total, squares, errors, sizes, squared = sums.T
    shift, bias = ratio(total, n), ratio(errors, n)
    spread = squares - n * shift**2
    results = [
        n,
        shift,
        1 - ratio(squared, spread),
        1 - ratio(squared - n * bias**2, spread),
        ratio(sizes, n),
        ratio(squared, n),
        bias,
    ]
    return np.column_stack(results)


class RegressionScoreClient(DescribedPoints):
    """A client that holds predicted and true numbers.

    Parameters
    ----------
    part : tuple (predictions, y)
        ``predictions`` (n_rows,) or (n_rows, 1) and ``y`` (n_rows,): finite numbers within ±1e100.

    Attributes
    ----------
    supervised : bool
        True: the client needs the true numbers.

    Raises
    ------
    ValueError
        When the part is not such a tuple.
    """

    supervised: ClassVar[bool] = True
    limited: ClassVar[bool] = True

    def __init__(self, part: tuple[ArrayLike, ArrayLike]):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise ValueError("a part must be (predictions, y), without weights")
        super().__init__(part[0] if np.ndim(part[0]) != 1 else np.reshape(part[0], (-1, 1)))
        if self.n_features != 1:
            raise ValueError(f"predictions must be one column; got {self.n_features} columns")
        self.y = check_coordinates("y", np.array(read_targets(part[1], n_rows=len(self.X)), float))

    @handles(SumErrors)
    def sum_errors(self, request: SumErrors) -> ErrorSums:
        numbers = Moments.of([self.y]).about(np.array([request.centre]))
        errors = self.X[:, 0] - self.y
        sums = *numbers[2:], errors, np.abs(errors), np.square(errors)
        return ErrorSums(len(self.y), *(float(one.sum()) for one in sums))

    @handles(SumClippedErrors)
    def sum_clipped_errors(self, request: SumClippedErrors) -> RowTotals:
        return request.total(np.column_stack([self.X[:, 0], self.y]), self)

    @partitions(SumErrors, terms=())
    def all_rows(self, request: SumErrors) -> Iterable[Ints]:
        yield np.zeros(len(self.y), np.int64)
        yield from by_rounding(self.y, np.abs(self.X).max(initial=0))


class FederatedRegressionScore(Scored):
    """Scores of predicted numbers for held-out rows of several clients.

    Attributes
    ----------
    model_ : NumberScores
    scores_ : dict of str to float
        ``"R2"``, ``"explained variance"``, ``"mean absolute error"``, ``"mean squared error"``,
        ``"root mean squared error"``, and ``"mean error"``, that of the predictions minus the
        numbers. NaN, with a warning, where rows or noise leave a score unknown.
    intervals_ : dict of str to (low, high)
        With `epsilon`, the interval that contains the true score with a probability of 99%;
        without it, both ends are the score.
    n_rows_ : int
        The count of rows of all clients.
    ledger_ : Ledger
        The messages of the run and their sizes.

    Raises
    ------
    ValueError
        When a parameter is out of range, or the clients have no rows.

    See Also
    --------
    FederatedXGBRegressor : a model whose `predict` gives the predictions.
    FederatedEvaluation : scores of the probabilities of classes.

    Notes
    -----
    A part is ``(predictions, y)``. Any model can be evaluated. Take rows that had no part in its
    training. The scores equal those of scikit-learn on the pooled rows; with bounds, those of
    numbers and predictions that are clipped to them.

    *Disclosure.* Six sums of each client; of a client with one row, the row. With ``secure=True``,
    the sums of all clients together; with `epsilon`, sums with noise.

    *Cost.* Three rounds, two with masks or noise. The replies have a constant size.

    Examples
    --------
    >>> from fedlib import FederatedRegressionScore
    >>> north, south = ([2.5, 0.0], [3.0, -0.5]), ([2.0, 8.0], [2.0, 7.0])
    >>> model = FederatedRegressionScore().fit([north, south])
    >>> round(model.scores_["R2"], 3), model.scores_["mean absolute error"]
    (0.949, 0.5)
    """

    name = "regression-score"
    example = Example("estimates", {}, {"bounds": [[-3.0], [8.0]]})
    client_class = RegressionScoreClient
    has_labels = False
    _: KW_ONLY
    bounds: Annotated[
        OptionalBounds,
        """
        With `secure` or `epsilon`, the smallest and the largest number, on which the sites have
        agreed: one column with two rows, or by the name of the column. Numbers and predictions are
        clipped to them. By default the limits of the predictions in the `schema`.
        """,
    ] = None

    def _score(self) -> Flow[NumberScores]:
        if not is_protected(self):
            self._refuse_limits()
            return regression_score(None, self._aggregation(1))
        bounds = self._bounds()
        if (n_columns := bounds.limits.shape[1]) != 1:
            raise ValueError(f"bounds must be of one column, the predictions; got {n_columns}")
        return regression_score(bounds, self._aggregation(1, bounds))

    def _set_model(self, model: NumberScores) -> None:
        super()._set_model(model)
        self.n_rows_ = model.n_rows
        squares = [model.mean_squared_error, *model.intervals[3]]
        root, *ends = np.sqrt(np.maximum(squares, 0)).tolist()
        self._set_scores(
            {
                "R2": model.r2,
                "explained variance": model.explained_variance,
                "mean absolute error": model.mean_absolute_error,
                "mean squared error": model.mean_squared_error,
                "root mean squared error": root,
                "mean error": model.mean_error,
            },
            np.insert(model.intervals, 4, ends, axis=0),
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the scores, one row per score; with `epsilon`, also the ends of their intervals.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        columns: dict[str, Any] = {"value": self.scores_}
        if self.epsilon is not None:
            low, high = zip(*self.intervals_.values(), strict=True)
            columns |= {"low": dict(zip(self.scores_, low, strict=True))}
            columns |= {"high": dict(zip(self.scores_, high, strict=True))}
        return pd.DataFrame(columns)
