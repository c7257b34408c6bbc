"""Validation: the metrics of rows that clients keep from training, as sums that they send.

The metrics are XGBoost's and equal to those of the pooled rows, except for ``"auc"``. Its sums are
the weights of both classes in intervals of the predicted probability. Pairs of rows in the same
interval count one half, and half of their fraction is the error bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan, sqrt
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedlib.boosting.growers import Grower, Level
from fedlib.boosting.messages import MetricName, Splits
from fedlib.boosting.trees import BoostedTrees, Tree
from fedlib.core.array_types import Floats, Floats32
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow

__all__ = [
    "RowScores",
    "ScoreRows",
]

N_INTERVALS = 1024  # of probabilities, for the AUC
SMALLEST = 1e-16  # probability in a log-loss, as in XGBoost
SMALLEST_MEAN = 1e-6  # of a gamma distribution, as in XGBoost
Loss = Callable[[Floats, NDArray[Any], float], Floats]


class RowScores(Message):
    """The weighted sum of each metric over a client's rows for validation, and their weight."""

    discloses = (
        "the metrics of a client's rows for validation; for the AUC, how many rows of each class "
        "have which probability"
    )
    sums: Annotated[np.ndarray, Array("float64", ("metrics",), ge=-(2.0**200), le=2.0**200)]
    weight: Annotated[float, msgspec.Meta(ge=0, le=2.0**40)]
    positives: Annotated[np.ndarray, Array("float64", ("intervals",), ge=0, le=2.0**40)]
    negatives: Annotated[np.ndarray, Array("float64", ("intervals",), ge=0, le=2.0**40)]


class ScoreRows(Splits, kw_only=True):
    """Sum these metrics over the rows that you keep for validation."""

    discloses = "the splits chosen last and the leaves of the finished tree"
    reply = RowScores
    metrics: Annotated[tuple[MetricName, ...], msgspec.Meta(min_length=1, max_length=16)]

    def reply_lengths(self) -> dict[str, int]:
        n_intervals = N_INTERVALS if "auc" in self.metrics else 0
        return {"metrics": len(self.metrics), "intervals": n_intervals}

    def accept(self, reply: Message) -> RowScores:
        """Raise MessageError unless there is one sum per metric, and intervals for the AUC."""
        assert isinstance(reply, RowScores)
        n_intervals = N_INTERVALS if "auc" in self.metrics else 0
        if len(reply.sums) != len(self.metrics) or len(reply.positives) != n_intervals:
            raise MessageError(
                f"{len(reply.sums)} sums and {len(reply.positives)} intervals for the metrics"
                f" {', '.join(self.metrics)}"
            )
        for name, total in zip(self.metrics, reply.sums, strict=True):
            if total < 0 and name != "gamma-nloglik":  # the logarithm of a density
                raise MessageError(f"the sum of {name} is negative")
        return reply


def _of_class(p: Floats, codes: NDArray[Any]) -> Floats:
    """Return each row's probability of its class; a single column is that of the second class."""
    if p.shape[1] == 1:
        p = np.column_stack([1 - p, p])
    return p[np.arange(len(p)), codes.astype(np.int64)]


def _log_loss(p: Floats, codes: NDArray[Any], _: float) -> Floats:
    return -np.log(np.maximum(_of_class(p, codes), SMALLEST))


def _is_wrong(p: Floats, codes: NDArray[Any], _: float) -> Floats:
    predicted = p[:, 0] > 0.5 if p.shape[1] == 1 else p.argmax(axis=1)
    return (predicted != codes).astype(np.float64)


def _pseudo_huber(p: Floats, y: NDArray[Any], slope: float) -> Floats:
    return slope**2 * (np.sqrt(1 + ((p[:, 0] - y) / slope) ** 2) - 1)


def _poisson(p: Floats, y: NDArray[Any], _: float) -> Floats:
    p = np.maximum(p[:, 0], SMALLEST)
    return np.maximum(gammaln(y.astype(np.float64) + 1) + p - y * np.log(p), 0)


def _gamma(p: Floats, y: NDArray[Any], _: float) -> Floats:
    p = np.maximum(p[:, 0], SMALLEST_MEAN)
    return y / p + np.log(p)


def _gamma_deviance(p: Floats, y: NDArray[Any], _: float) -> Floats:
    ratio = (y + SMALLEST_MEAN) / (p[:, 0] + SMALLEST_MEAN)
    return np.maximum(2 * (ratio - np.log(ratio) - 1), 0)


def _tweedie(p: Floats, y: NDArray[Any], power: float) -> Floats:
    p = np.maximum(p[:, 0], SMALLEST)
    return y * p ** (1 - power) / (power - 1) + p ** (2 - power) / (2 - power)


METRICS: Mapping[str, Loss] = {
    "logloss": _log_loss,
    "error": _is_wrong,
    "auc": lambda p, codes, _: np.zeros(len(p)),
    "mlogloss": _log_loss,
    "merror": _is_wrong,
    "rmse": lambda p, y, _: (p[:, 0] - y) ** 2,
    "mae": lambda p, y, _: np.abs(p[:, 0] - y),
    "mphe": _pseudo_huber,
    "poisson-nloglik": _poisson,
    "gamma-nloglik": _gamma,
    "gamma-deviance": _gamma_deviance,
    "tweedie-nloglik": _tweedie,
}


def score_rows(
    metrics: Sequence[str],
    predictions: Floats,
    targets: NDArray[Any],
    weights: Floats32,
    parameter: float,
) -> RowScores:
    """Return a client's sums.

    Parameters
    ----------
    metrics : sequence of str
    predictions : array (n_rows, columns) of float64
        Probabilities of classes, or of the second class alone, or numbers.
    targets : array (n_rows,)
        The numbers of classes, or numbers.
    weights : array (n_rows,) of float32
    parameter : float
        The parameter of the objective.

    Examples
    --------
    >>> p, y, w = np.array([[0.9], [0.2]]), np.array([1, 1]), np.ones(2, np.float32)
    >>> score_rows(["error"], p, y, w, 0.0).sums
    array([1.])
    """
    wide = weights.astype(np.float64)
    sums = [(METRICS[name](predictions, targets, parameter) * wide).sum() for name in metrics]
    counts = np.zeros((2, N_INTERVALS if "auc" in metrics else 0))
    if "auc" in metrics:
        interval = np.minimum((predictions[:, 0] * N_INTERVALS).astype(int), N_INTERVALS - 1)
        np.add.at(counts, (targets.astype(int), interval), wide)
    return RowScores(
        sums=np.array(sums, np.float64),
        weight=float(wide.sum()),
        positives=counts[1],
        negatives=counts[0],
    )


class Validation:
    """The server's record of the metrics after each round.

    Parameters
    ----------
    metrics : sequence of str
    early_stopping_rounds : int or None
        End after this many rounds without a better last metric.
    start : BoostedTrees or None
        The model that the run continues. Its rounds count; those without these metrics are NaN.

    Attributes
    ----------
    results : list of lists of float
        The values of each metric after each round.
    auc_errors : list of float
        The error bound of the AUC after each round, if it is a metric.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        early_stopping_rounds: int | None,
        start: BoostedTrees | None = None,
    ):
        self.metrics = tuple(metrics)
        self.early_stopping_rounds = early_stopping_rounds
        n_rounds = 0 if start is None else start.n_rounds
        before = [] if start is None else [*start.evaluations, start.auc_errors]
        if start is None or start.metrics != self.metrics:
            before = [[]] * (len(metrics) + 1)
        known = [values[:n_rounds] + [nan] * (n_rounds - len(values)) for values in before]
        self.results: list[list[float]] = known[:-1]
        self.auc_errors = known[-1] if "auc" in metrics else []

    @property
    def best_round(self) -> int:
        """The first round with the best value of the last metric."""
        values = np.array(self.results[-1])
        return int(np.nanargmax(values) if self.metrics[-1] == "auc" else np.nanargmin(values))

    @property
    def is_over(self) -> bool:
        """Whether the last metric has not become better for too many rounds."""
        if self.early_stopping_rounds is None:
            return False
        return len(self.results[-1]) - 1 - self.best_round >= self.early_stopping_rounds

    def kept(self, trees: list[Tree], n_outputs: int) -> list[Tree]:
        """Return the trees up to the best round; without early stopping, all."""
        if self.early_stopping_rounds is None or not trees:
            return trees
        return trees[: (self.best_round + 1) * n_outputs]

    def score(self, grower: Grower) -> Flow[None]:
        """Ask for the metrics after a round.

        Raises
        ------
        ValueError
            When no client has rows for validation.
        """
        replies = yield from grower.ask_about(
            Level(0, 0), ScoreRows, grower.largest_sums(), metrics=self.metrics
        )
        weight = sum(reply.weight for reply in replies.values())
        if weight == 0:
            raise ValueError(
                "no client has rows for validation with a weight above 0: set validation_fraction,"
                " or give parts (X, y, sample_weight, (X_eval, y_eval))"
            )
        sums = sum(reply.sums for reply in replies.values())
        positives = sum(reply.positives for reply in replies.values())
        negatives = sum(reply.negatives for reply in replies.values())
        for name, values, total in zip(self.metrics, self.results, sums, strict=True):
            if name == "auc":
                auc, error = _auc(positives, negatives)
                values.append(auc)
                self.auc_errors.append(error)
            else:
                values.append(sqrt(total / weight) if name == "rmse" else float(total / weight))


def _auc(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Return the AUC and its error bound; 0.5 and 0.5 if a class has no rows."""
    pairs = positives.sum() * negatives.sum()
    if pairs == 0:
        return 0.5, 0.5
    below = np.cumsum(negatives) - negatives
    tied = float((positives * negatives).sum() / pairs)
    return float((positives * below).sum() / pairs) + tied / 2, tied / 2
