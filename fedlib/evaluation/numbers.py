"""Scores of predicted numbers for held-out rows whose numbers are known.

Each client has the number of each of its rows, and the one that a model predicts. The model itself
takes no part. The first sum finds the mean of all numbers, about which the second one adds up the
squares; masked or noisy sums are one, about the middle of the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedlib.core.aggregation import Aggregation
from fedlib.core.array_types import Ints
from fedlib.core.bounds import Bounds
from fedlib.core.client import by_rounding, handles, partitions
from fedlib.core.labels import read_targets
from fedlib.core.parameters import KW_ONLY, OptionalBounds
from fedlib.core.points import check_coordinates
from fedlib.core.protocol import Flow
from fedlib.core.replies import Replies
from fedlib.evaluation.messages import ErrorSums, SumClippedErrors, SumErrors
from fedlib.protection.estimator import ProtectedFederated, is_protected
from fedlib.protection.row_sums import RowTotals
from fedlib.protection.secure.points import DescribedPoints, agree_on_bounded_features

__all__ = ["FederatedRegressionScore", "NumberScores", "RegressionScoreClient", "regression_score"]


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
    """

    n_rows: int
    mean: float
    r2: float
    explained_variance: float
    mean_absolute_error: float
    mean_squared_error: float
    mean_error: float


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
        total, _ = yield from aggregation.sum(request)
        return _scores(request.sums(total), float(bounds.limits.mean()))
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
    return _scores(total, before)


def _scores(sums: ErrorSums, centre: float) -> NumberScores:
    """Return the scores from the sums of all clients about a centre."""
    n = sums.n_rows
    if not n:
        raise ValueError("the clients have no rows")
    shift, bias = sums.total / n, sums.errors / n
    spread = sums.squares - n * shift**2
    return NumberScores(
        n,
        centre + shift,
        _explained(sums.squared_errors, spread),
        _explained(sums.squared_errors - n * bias**2, spread),
        sums.absolute_errors / n,
        sums.squared_errors / n,
        bias,
    )


def _explained(errors: float, spread: float) -> float:
    """Return the explained fraction of a spread, as scikit-learn does if there is none.

    Examples
    --------
    >>> _explained(1.0, 4.0), _explained(0.0, 0.0), _explained(1.0, 0.0)
    (0.75, 1.0, 0.0)
    """
    if spread > 0:
        return 1 - errors / spread
    return 0.0 if errors > 0 else 1.0


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
        numbers, errors = self.y - request.centre, self.X[:, 0] - self.y
        sums = (numbers, np.square(numbers), errors, np.abs(errors), np.square(errors))
        return ErrorSums(len(self.y), *(float(one.sum()) for one in sums))

    @handles(SumClippedErrors)
    def sum_clipped_errors(self, request: SumClippedErrors) -> RowTotals:
        return request.total(np.column_stack([self.X[:, 0], self.y]), self.n_shares)

    @partitions(SumErrors, terms=())
    def all_rows(self, request: SumErrors) -> Iterable[Ints]:
        yield np.zeros(len(self.y), np.int64)
        yield from by_rounding(self.y, request.centre)
        yield from by_rounding(self.y, np.abs(self.X).max(initial=0))


class FederatedRegressionScore(ProtectedFederated):
    """Scores of predicted numbers for held-out rows of several clients.

    Attributes
    ----------
    model_ : NumberScores
    scores_ : dict of str to float
        ``"R2"``, ``"explained variance"``, ``"mean absolute error"``, ``"mean squared error"``,
        ``"root mean squared error"``, and ``"mean error"``, that of the predictions minus the
        numbers.
    n_rows_ : int
        The number of rows of all clients.
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

    def _flow(self) -> Flow[NumberScores]:
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
        self.scores_ = {
            "R2": model.r2,
            "explained variance": model.explained_variance,
            "mean absolute error": model.mean_absolute_error,
            "mean squared error": model.mean_squared_error,
            "root mean squared error": sqrt(model.mean_squared_error),
            "mean error": model.mean_error,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the scores, one row per score.

        Raises
        ------
        NotFittedError
            When called before `fit`.
        """
        check_is_fitted(self, "model_")
        return pd.DataFrame({"value": self.scores_})
