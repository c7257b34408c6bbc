"""Validation: the metrics of rows that clients keep from training, as sums that they send.

The metrics are XGBoost's and equal to those of the pooled rows, except for ``"auc"`` and
``"aucpr"``. Their sums are the weights of both classes in intervals of the predicted probability;
for several classes, those of each class and of all others, whose areas are averaged by the weights
of the classes, as XGBoost does. For ``"auc"``, pairs of rows in the same interval count one half,
and half of their fraction is the error bound. For ``"aucpr"``, the curve is interpolated within an
interval as XGBoost does it for equal predictions, and the bound is the distance to the curves on
which the rows of an interval have the best or the worst order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from math import isnan, log, nan, sqrt
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import scipy
from numpy.typing import NDArray

from fedlib.boosting.messages import MAX_WEIGHT, MetricName, Splits
from fedlib.boosting.objectives import LARGEST_LIKELIHOOD, Parameter
from fedlib.boosting.server_state import ROUNDING
from fedlib.boosting.tree_growers import Grower, Level
from fedlib.boosting.trees import BoostedTrees, Tree
from fedlib.core.array_types import Floats, Floats32
from fedlib.core.messages import Array, Message, MessageError
from fedlib.core.protocol import Flow
from fedlib.kernels.objectives import negative_log_likelihoods

N_INTERVALS = 1024  # of probabilities, for the AUC
SMALLEST = 1e-16  # probability in a log-loss, as in XGBoost
SMALLEST_MEAN = 1e-6  # of a gamma distribution, as in XGBoost
SMALLEST_TARGET = float(np.finfo(np.float32).tiny)  # where XGBoost divides by 0
MAX_PREDICTION = float(np.finfo(np.float32).max)
MOST = 2.0**120  # of a row's percentage error, so that no sum is too large for a message
Value = TypeVar("Value")
Loss = Callable[[Floats, NDArray[Any], Any], Floats]


class RowScores(Message):
    """The weighted sum of each metric over a client's rows for validation, and their weight."""

    discloses = (
        "the metrics of a client's rows for validation; for auc and aucpr, how many rows of each "
        "class have which probability"
    )
    sums: Annotated[np.ndarray, Array("float64", ("metrics",), ge=-(2.0**200), le=2.0**200)]
    weight: Annotated[float, msgspec.Meta(ge=0, le=2.0**40)]
    positives: Annotated[np.ndarray, Array("float64", ("intervals",), ge=0, le=2.0**40)]
    negatives: Annotated[np.ndarray, Array("float64", ("intervals",), ge=0, le=2.0**40)]


class ScoreRows(Splits, kw_only=True):
    """Sum these metrics over the rows that you keep for validation.

    With ``eval_set``, sum over those of the set with this name; a client without it has no rows.
    """

    discloses = "the splits chosen last and the leaves of the finished tree"
    reply = RowScores
    metrics: Annotated[tuple[MetricName, ...], msgspec.Meta(min_length=1, max_length=16)]
    n_outputs: Annotated[int, msgspec.Meta(ge=1, le=2**10)] = 1
    eval_set: Annotated[str, msgspec.Meta(max_length=200)] = ""

    @property
    def n_intervals(self) -> int:
        """The count of intervals of probability, those of all outputs one after the other."""
        return self.n_outputs * N_INTERVALS if set(self.metrics) & AREAS.keys() else 0

    def reply_lengths(self) -> dict[str, int]:
        return {"metrics": len(self.metrics), "intervals": self.n_intervals}

    def accept(self, reply: Message) -> RowScores:
        """Raise MessageError unless there is one sum per metric, and intervals for areas."""
        assert isinstance(reply, RowScores)
        if len(reply.sums) != len(self.metrics) or len(reply.positives) != self.n_intervals:
            raise MessageError(
                f"{len(reply.sums)} sums and {len(reply.positives)} intervals for the metrics"
                f" {', '.join(self.metrics)}"
            )
        for name, total in zip(self.metrics, reply.sums, strict=True):
            if total < 0 and name not in SIGNED:
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


def _percentage(p: Floats, y: NDArray[Any], _: float) -> Floats:
    return np.minimum(np.abs((p[:, 0] - y) / np.maximum(np.abs(y), SMALLEST_TARGET)), MOST)


def _pseudo_huber(p: Floats, y: NDArray[Any], slope: float) -> Floats:
    return slope**2 * (np.sqrt(1 + ((p[:, 0] - y) / slope) ** 2) - 1)


def _poisson(p: Floats, y: NDArray[Any], _: float) -> Floats:
    p = np.maximum(p[:, 0], SMALLEST)
    return np.maximum(scipy.special.gammaln(y.astype(np.float64) + 1) + p - y * np.log(p), 0)


def _gamma(p: Floats, y: NDArray[Any], _: float) -> Floats:
    p = np.maximum(p[:, 0], SMALLEST_MEAN)
    return y / p + np.log(p)


def _gamma_deviance(p: Floats, y: NDArray[Any], _: float) -> Floats:
    ratio = (y + SMALLEST_MEAN) / (p[:, 0] + SMALLEST_MEAN)
    return np.maximum(2 * (ratio - np.log(ratio) - 1), 0)


def _tweedie(p: Floats, y: NDArray[Any], power: float) -> Floats:
    p = np.maximum(p[:, 0], SMALLEST)
    return y * p ** (1 - power) / (power - 1) + p ** (2 - power) / (2 - power)


def _pinball(p: Floats, y: NDArray[Any], levels: Any) -> Floats:
    d = y[:, np.newaxis] - p
    alpha = np.array(levels[: p.shape[1]])
    return np.asarray(np.maximum(alpha * d, (alpha - 1) * d).mean(axis=1))


def _expectile(p: Floats, y: NDArray[Any], levels: Any) -> Floats:
    d = p - y[:, np.newaxis]
    alpha = np.array(levels)
    return np.asarray((np.where(d >= 0, 1 - alpha, alpha) * d**2).mean(axis=1))


def _survival(p: Floats, limits: NDArray[Any], parameter: Any) -> Floats:
    with np.errstate(divide="ignore"):
        log_times = np.log(p[:, 0])
    likelihoods: Floats = negative_log_likelihoods(log_times, limits, np.array(parameter))
    return likelihoods


def _is_within(p: Floats, limits: NDArray[Any], _: Any) -> Floats:
    return ((p[:, 0] >= limits[:, 0]) & (p[:, 0] <= limits[:, 1])).astype(np.float64)


METRICS: Mapping[str, Loss] = {
    "logloss": _log_loss,
    "error": _is_wrong,
    "auc": lambda p, codes, _: np.zeros(len(p)),
    "aucpr": lambda p, codes, _: np.zeros(len(p)),
    "mlogloss": _log_loss,
    "merror": _is_wrong,
    "rmse": lambda p, y, _: (p[:, 0] - y) ** 2,
    "mae": lambda p, y, _: np.abs(p[:, 0] - y),
    "mape": _percentage,
    "mphe": _pseudo_huber,
    "poisson-nloglik": _poisson,
    "gamma-nloglik": _gamma,
    "gamma-deviance": _gamma_deviance,
    "tweedie-nloglik": _tweedie,
    "quantile": _pinball,
    "expectile": _expectile,
    "aft-nloglik": _survival,
    "interval-regression-accuracy": _is_within,
}
SIGNED = ("gamma-nloglik", "aft-nloglik")  # the logarithms of densities
OF_TIMES = {
    "aft-nloglik": (-LARGEST_LIKELIHOOD, LARGEST_LIKELIHOOD),
    "interval-regression-accuracy": (0.0, 1.0),
}  # the smallest and the largest value for one row


def score_rows(
    metrics: Sequence[str],
    predictions: Floats,
    targets: NDArray[Any],
    weights: Floats32,
    parameter: Parameter,
) -> RowScores:
    """Return a client's sums.

    Parameters
    ----------
    metrics : sequence of str
    predictions : array (n_rows, columns) of float64
        Probabilities of classes, or of the second class alone, or numbers.
    targets : array (n_rows,) or (n_rows, 2)
        The numbers of classes, or numbers, or the limits of times.
    weights : array (n_rows,) of float32
    parameter : float or tuple of float
        The parameter of the objective.

    Examples
    --------
    >>> p, y, w = np.array([[0.9], [0.2]]), np.array([1, 1]), np.ones(2, np.float32)
    >>> score_rows(["error"], p, y, w, 0.0).sums
    array([1.])
    """
    wide = weights.astype(np.float64)
    sums = [(METRICS[name](predictions, targets, parameter) * wide).sum() for name in metrics]
    n_outputs = predictions.shape[1] if set(metrics) & AREAS.keys() else 0
    counts = np.zeros((2, n_outputs, N_INTERVALS))
    for k in range(n_outputs):
        interval = np.minimum((predictions[:, k] * N_INTERVALS).astype(int), N_INTERVALS - 1)
        is_positive = (targets == (k if n_outputs > 1 else 1)).astype(int)
        np.add.at(counts[:, k], (is_positive, interval), wide)
    return RowScores(
        sums=np.array(sums, np.float64),
        weight=float(wide.sum()),
        positives=counts[1].ravel(),
        negatives=counts[0].ravel(),
    )


class Validation:
    """The server's record of the metrics after each round.

    Parameters
    ----------
    metrics : sequence of str
    early_stopping_rounds : int or None
        End after this many rounds without a better last metric of the last set.
    start : BoostedTrees or None
        The model that the run continues. Its rounds count; those without these metrics are NaN.
    eval_sets : sequence of str
        The names of the sets of rows; empty: all rows for validation are one set.

    Attributes
    ----------
    results : list of lists of float
        The values after each round, of all metrics of the first set, of the second set, ….
    errors : list of lists of float
        The error bounds of these values; empty for a metric that is exact.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        early_stopping_rounds: int | None,
        start: BoostedTrees | None = None,
        eval_sets: Sequence[str] = (),
    ):
        self.metrics, self.eval_sets = tuple(metrics), tuple(eval_sets)
        self.early_stopping_rounds = early_stopping_rounds
        self._weights: dict[tuple[str, str], float] = {}  # of the rows of a client and a set
        n_rounds, n_results = 0, len(self.metrics) * max(len(self.eval_sets), 1)
        before: list[list[float]] = [[]] * (2 * n_results)
        if start is not None:
            n_rounds = start.n_rounds
            if (start.metrics, start.eval_sets) == (self.metrics, self.eval_sets):
                before = [*start.evaluations, *start.evaluation_errors]
        known = [values[:n_rounds] + [nan] * (n_rounds - len(values)) for values in before]
        self.results: list[list[float]] = known[:n_results]
        self.errors: list[list[float]] = known[n_results:]
        self._undefined: set[tuple[str, str]] = set()  # the metrics and sets of which a user knows
        for name, errors in zip(self._names, self.errors, strict=True):
            if name not in AREAS:
                errors.clear()

    @property
    def _names(self) -> tuple[str, ...]:
        """The metric of each entry of ``results``."""
        return self.metrics * max(len(self.eval_sets), 1)

    @property
    def best_round(self) -> int | None:
        """The first round with the best value of the last metric; None if all are undefined."""
        values = np.array(self.results[-1])
        if np.isnan(values).all():
            return None
        return int(np.nanargmax(values) if self.metrics[-1] in MAXIMISED else np.nanargmin(values))

    @property
    def is_over(self) -> bool:
        """Whether the last metric has not become better for too many rounds."""
        best = self.best_round
        if self.early_stopping_rounds is None or best is None:
            return False
        return len(self.results[-1]) - 1 - best >= self.early_stopping_rounds

    @property
    def latest(self) -> dict[str, dict[str, float]]:
        """The latest value of each metric, by set."""
        values = [values[-1] for values in self.results]
        return by_set(self.eval_sets, self.metrics, values) if self.metrics else {}

    def kept(self, trees: list[Tree], n_outputs: int) -> list[Tree]:
        """Return the trees up to the best round; without early stopping or a best one, all."""
        best = self.best_round if self.early_stopping_rounds is not None else None
        return trees if best is None else trees[: (best + 1) * n_outputs]

    def score(self, grower: Grower) -> Flow[None]:
        """Ask for the metrics after a round, one set after the other.

        Raises
        ------
        ValueError
            When no client has rows for validation.
        """
        found: list[tuple[float, float | None]] = []
        for eval_set in self.eval_sets or ("",):
            found += yield from self._score_set(grower, eval_set)
        for (value, error), values, errors in zip(found, self.results, self.errors, strict=True):
            values.append(value)
            if error is not None:
                errors.append(error)

    def _score_set(self, grower: Grower, eval_set: str) -> Flow[list[tuple[float, float | None]]]:
        """Return the value of each metric, and its error bound unless it is exact."""
        n_outputs = grower.training.n_outputs
        replies = yield from grower.ask_about(
            Level(0, 0),
            ScoreRows,
            grower.largest_sums(),
            metrics=self.metrics,
            n_outputs=n_outputs if set(self.metrics) & AREAS.keys() else 1,
            eval_set=eval_set,
        )
        limits = self._limits(grower)
        replies = yield from grower.exclude_wrong(
            replies, lambda name, reply: self._problem(reply, limits, (name, eval_set))
        )
        weight = sum(reply.weight for reply in replies.values())
        if weight == 0:
            of_set = f" named {eval_set!r} in eval_sets" if eval_set else ""
            raise ValueError(
                f"no client has rows for validation{of_set} with a weight above 0: set"
                " validation_fraction, or give parts (X, y, sample_weight, (X_eval, y_eval))"
            )
        sums = sum(reply.sums for reply in replies.values())
        positives, negatives = (
            sum(getattr(reply, name) for reply in replies.values()).reshape(-1, N_INTERVALS)
            for name in ("positives", "negatives")
        )
        found: list[tuple[float, float | None]] = []
        for name, total in zip(self.metrics, sums, strict=True):
            if name in AREAS:
                areas = [AREAS[name](*of) for of in zip(positives, negatives, strict=True)]
                found.append(_mean_area(areas, positives.sum(axis=1)))
                if isnan(found[-1][0]):
                    self._warn_of_one_class(name, eval_set)
            else:
                value = sqrt(total / weight) if name == "rmse" else float(total / weight)
                found.append((value, None))
        return found

    def _warn_of_one_class(self, name: str, eval_set: str) -> None:
        """Warn once per metric and set that an area is undefined."""
        if (name, eval_set) in self._undefined:
            return
        self._undefined.add((name, eval_set))
        decides = (name, eval_set) == (self.metrics[-1], (self.eval_sets or ("",))[-1])
        effect = (
            "; early_stopping_rounds has no effect while it is"
            if decides and self.early_stopping_rounds is not None
            else ""
        )
        of_set = f" in {eval_set!r}" if eval_set else ""
        warnings.warn(
            f"the rows for validation of all clients{of_set} have one class, so {name} is NaN"
            f"{effect}: give rows of several classes, or another eval_metric",
            stacklevel=2,
        )

    def _limits(self, grower: Grower) -> Floats:
        """Return the smallest and the largest value (n_metrics, 2) of each metric for one row."""
        training, ends = grower.training, np.array([0.0, 1.0])
        p = ends[:, np.newaxis]  # probabilities of classes
        if training.objective.n_columns > 1:
            return np.array([OF_TIMES[name] for name in self.metrics])
        if training.settings.is_regression:
            given = any(training.described.n_margins.values())  # also of rows for validation only
            margin = max(grower.max_margin, MAX_WEIGHT * given) * (1 + ROUNDING)
            low, high = np.clip(training.objective.targets, -MAX_WEIGHT, MAX_WEIGHT)
            ends = np.array([low, max(low, 0.0), high])
            with np.errstate(over="ignore"):
                far = np.repeat([[-margin], [margin]], training.n_outputs, axis=1)
                p = training.objective.response(far.astype(np.float32))
            p = np.clip(p, -MAX_PREDICTION, MAX_PREDICTION)
        # All metrics are convex in the margin, and in the target on either side of 0.
        p, y = np.repeat(p, len(ends), axis=0), np.tile(ends, len(p))
        parameter = training.settings.parameter
        largest = [METRICS[name](p, y, parameter).max() for name in self.metrics]
        if training.objective.has_levels:  # one level may be low and another one high
            largest = [2 * value for value in largest]
        least = [log(SMALLEST_MEAN) if name == "gamma-nloglik" else 0.0 for name in self.metrics]
        return np.column_stack([least, largest])

    def _problem(self, reply: RowScores, limits: Floats, key: tuple[str, str]) -> str | None:
        """Return why no rows can have these scores, or None; ``key`` is the client and the set."""
        if self._weights.setdefault(key, reply.weight) != reply.weight:
            return "the weight of the rows for validation is not that of the round before"
        low, high = (reply.weight * limits * (1 + ROUNDING)).T
        if (reply.sums < low).any() or (reply.sums > high).any():
            return "the scores exceed what rows of this weight can have"
        counts = (reply.positives + reply.negatives).reshape(-1, N_INTERVALS).sum(axis=1)
        if (np.abs(counts - reply.weight) > ROUNDING * reply.weight).any():
            return "the intervals do not add up to the weight of the rows"
        return None


def by_set(
    eval_sets: Sequence[str], metrics: Sequence[str], values: Sequence[Value]
) -> dict[str, dict[str, Value]]:
    """Return the values of all metrics of one set after the other by set and metric.

    Examples
    --------
    >>> by_set(("a", "b"), ("rmse",), [1.0, 2.0]), by_set((), ("rmse",), [1.0])
    ({'a': {'rmse': 1.0}, 'b': {'rmse': 2.0}}, {'validation_0': {'rmse': 1.0}})
    """
    n = len(metrics)
    return {
        name: dict(zip(metrics, values[i * n : i * n + n], strict=True))
        for i, name in enumerate(eval_sets or ("validation_0",))
    }


def _mean_area(areas: Sequence[tuple[float, float]], weights: Floats) -> tuple[float, float]:
    """Return the mean of the classes' areas and that of their error bounds.

    Undefined areas do not count. If all are, the mean is NaN.

    Examples
    --------
    >>> _mean_area([(0.5, 0.25), (nan, nan)], np.array([3.0, 0.0]))
    (0.5, 0.25)
    """
    defined = ~np.isnan(areas)[:, 0]
    if not defined.any():
        return nan, nan
    of_class = weights[defined] if len(areas) > 1 else None
    value, error = np.average(np.array(areas)[defined], axis=0, weights=of_class).tolist()
    return value, error


def _auc(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Return the AUC and its error bound, NaN if a class has no rows, as in XGBoost."""
    pairs = positives.sum() * negatives.sum()
    if pairs == 0:
        return nan, nan
    below = np.cumsum(negatives) - negatives
    tied = float((positives * negatives).sum() / pairs)
    return float((positives * below).sum() / pairs) + tied / 2, tied / 2


def _aucpr(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Return the area below the curve of precision and recall, and its error bound.

    Both are NaN if a class has no rows, as in XGBoost.
    """
    total = positives.sum()
    if total * negatives.sum() == 0:
        return nan, nan
    tp, fp = np.cumsum(positives[::-1]), np.cumsum(negatives[::-1])  # from the highest on
    tp_before, fp_before = tp - positives[::-1], fp - negatives[::-1]
    area, best, worst = (
        _precision_area(tp_before, tp, low, high) / total
        for low, high in ((fp_before, fp), (fp_before, fp_before), (fp, fp))
    )
    return area, max(best - area, area - worst, 0.0)


def _precision_area(tp_before: Floats, tp: Floats, fp_before: Floats, fp: Floats) -> float:
    """Return the sum of the integrals of precision over the true positives of each interval.

    Within an interval, false positives grow in proportion to true ones, from ``fp_before`` to
    ``fp`` (Davis and Goadrich, 2006).
    """
    rises = tp > tp_before
    tp_before, tp, fp_before, fp = (one[rises] for one in (tp_before, tp, fp_before, fp))
    slope = (fp - fp_before) / (tp - tp_before)
    a, b = 1 + slope, fp_before - slope * tp_before
    start = np.where(tp_before + fp_before > 0, tp_before + fp_before, tp + fp)
    areas = (tp - tp_before) / a - b / a**2 * np.log((tp + fp) / start)
    return float(areas.sum())


AREAS: Mapping[str, Callable[[Floats, Floats], tuple[float, float]]] = {
    "auc": _auc,
    "aucpr": _aucpr,
}
MAXIMISED = {*AREAS, "interval-regression-accuracy"}
