"""The objectives of boosting: everything in which one differs from another, as pure functions.

The server knows the sums over each client's labels (`LabelSums`). From them follow the margins
before the first tree, the unit of gradients, and the largest sums that a client can have.

Gradients, hessians, links and initial margins are XGBoost's. The ``parameter`` of an objective is
the slope of the pseudo-Huber loss, the maximum step of Poisson regression or the variance power of
Tweedie regression; otherwise 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, fsum, log, log2, sqrt
from typing import Any

import numpy as np
import scipy

from fedlib.core.array_types import Floats, Floats32, Ints
from fedlib.core.messages import MessageError
from fedlib.kernels import objectives, splits

__all__ = [
    "LabelSums",
    "Objective",
]

SUM_BITS = 52  # no sum of a client reaches 2**52 units, so each is exact as a float64

SMALLEST_FRACTION = 1e-6  # XGBoost's, in the logarithm of a class's fraction
LARGEST_EXPONENT = 80.0  # of a margin in bounds; more overflows a float32
SMALLEST_POSITIVE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class LabelSums:
    """Sums over the labels of rows: those of one client, or of all clients.

    Attributes
    ----------
    weight : float
        The total weight of the rows.
    classes : tuple of float
        The weight of the rows of each class; empty for a regression.
    total, squares : float
        The sums of w·y and w·y² of a regression.
    gradient, hessian : float
        The sums of a regression's gradients and hessians for the prediction 0.
    """

    weight: float
    classes: tuple[float, ...] = ()
    total: float = 0.0
    squares: float = 0.0
    gradient: float = 0.0
    hessian: float = 0.0

    @classmethod
    def of_all(cls, parts: Sequence[LabelSums]) -> LabelSums:
        """Return the sums over all clients, each rounded once."""
        return cls(
            weight=fsum(part.weight for part in parts),
            classes=tuple(map(fsum, zip(*(part.classes for part in parts), strict=True))),
            total=fsum(part.total for part in parts),
            squares=fsum(part.squares for part in parts),
            gradient=fsum(part.gradient for part in parts),
            hessian=fsum(part.hessian for part in parts),
        )

    def scaled(self, scale_pos_weight: float) -> LabelSums:
        """Return the sums with the weight of the second of two classes multiplied by a factor."""
        if scale_pos_weight == 1.0:
            return self
        negative, positive = self.classes
        positive *= scale_pos_weight
        return LabelSums(negative + positive, (negative, positive))

    @property
    def absolute(self) -> float:
        """An upper bound of the sum of w times the absolute value of y."""
        return sqrt(self.weight * self.squares)


@dataclass(frozen=True)
class Objective:
    """One objective.

    Attributes
    ----------
    gradients : callable (margins, targets, weights, parameter, bits) -> array (outputs, n, 2)
        The gradients and hessians of rows as integers; see `fedlib.kernels.objectives`.
    loss : callable (margins, targets, weights, parameter) -> float
        The sum of the rows' losses.
    base_scores : callable (sums, is_scaled) -> list of float32
        The initial predictions as XGBoost estimates them; ``is_scaled`` says whether
        ``scale_pos_weight`` is not 1.
    link : callable (scores) -> array (outputs,) of float32
        The margins of these predictions.
    response : callable (margins (n, outputs)) -> array (n, columns) of float64
        The predictions of these margins: probabilities, or the target itself.
    first_sums : callable (sums, margins, parameter) -> array (outputs, 2) or None
        The sums of a client's gradients and hessians in the first tree; None: they are unknown.
    largest_sums : callable (sums, largest margin, parameter) -> (float, float)
        Upper bounds of the sums of absolute gradients and of hessians, for one output.
    largest_loss : callable (sums, largest margin, parameter) -> float
        An upper bound of the loss.
    total : callable (sums, margins, parameter) -> float
        The size of all clients' sums, which determines the unit of gradients; ``margins`` are those
        before the first tree.
    default_metric : str
        XGBoost's metric for validation.
    check_score : callable (score) -> bool
        Whether a given ``base_score`` is valid.
    valid_scores : str
        Which ones are, in words.
    targets : tuple of float
        The smallest and the largest target allowed.
    valid_targets : str
        Which ones are, in words.
    parameter_name : str
        XGBoost's name of the parameter; empty if there is none.
    """

    gradients: Callable[..., Ints]
    loss: Callable[..., float]
    base_scores: Callable[[LabelSums, bool], list[np.float32]]
    link: Callable[[Sequence[Any]], Floats32]
    response: Callable[[Floats32], Floats]
    first_sums: Callable[[LabelSums, Sequence[float], float], Floats | None]
    largest_sums: Callable[[LabelSums, float, float], tuple[float, float]]
    largest_loss: Callable[[LabelSums, float, float], float]
    total: Callable[[LabelSums, Sequence[float], float], float]
    default_metric: str
    check_score: Callable[[float], bool] = lambda score: True
    valid_scores: str = "a finite number"
    targets: tuple[float, float] = (-float("inf"), float("inf"))
    valid_targets: str = "a finite number"
    parameter_name: str = ""


# Two classes


def _inside_0_and_1(fraction: float) -> np.float32:
    """Return the nearest float32 above 0 and below 1."""
    zero, one = np.float32(0), np.float32(1)
    return min(max(np.float32(fraction), np.nextafter(zero, one)), np.nextafter(one, zero))


def _fraction(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    """Return the fraction of the second class; with ``is_scaled``, one Newton step from 1/2."""
    negative, positive = sums.classes
    if not is_scaled:
        return [_inside_0_and_1(positive / sums.weight)]
    return [
        _inside_0_and_1(
            float(scipy.special.expit(2 * (positive - negative) / (positive + negative)))
        )
    ]


def _first_logistic(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    p = float(scipy.special.expit(margins[0]))
    return np.array([[sums.weight * p - sums.classes[1], sums.weight * p * (1 - p)]])


def _first_fractions(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    p = float(scipy.special.expit(margins[0]))
    return np.array([[sums.weight * p - sums.total, sums.weight * p * (1 - p)]])


def _largest_logistic(sums: LabelSums, margin: float, parameter: float) -> tuple[float, float]:
    return sums.weight, sums.weight / 4


def _largest_logistic_loss(sums: LabelSums, margin: float, parameter: float) -> float:
    return sums.weight * (margin + log(2))


def _expit(margins: Floats32) -> Floats:
    return np.asarray(scipy.special.expit(margins.astype(np.float64)))


def _log_odds(scores: Sequence[Any]) -> Floats32:
    return np.array([splits.log_odds(np.float32(score)) for score in scores], np.float32)


# Several classes


def _centred_log_fractions(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    """Return the logarithms of the classes' fractions in float32, with the mean 0."""
    factor = 1.0 / sums.weight
    fractions = [np.float32(np.float32(weight) * factor) for weight in sums.classes]
    logs = [
        np.float32(np.log(np.float32(fraction + np.float32(SMALLEST_FRACTION))))
        for fraction in fractions
    ]
    mean = np.float32(fsum(map(float, logs)) / len(logs))
    return [np.float32(value - mean) for value in logs]


def _first_softmax(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    p = scipy.special.softmax(np.array(margins, np.float64))
    g = sums.weight * p - np.array(sums.classes)
    return np.column_stack([g, 2 * sums.weight * p * (1 - p)])


# Regression


def _mean(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    return [np.float32(sums.total / sums.weight)]


def _newton_step_from_0(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    return [np.float32(-sums.gradient / max(sums.hessian, 1e-6))]


def _identity(scores: Sequence[Any]) -> Floats32:
    return np.array(scores, np.float32)


def _log(scores: Sequence[Any]) -> Floats32:
    with np.errstate(divide="ignore", invalid="ignore"):  # the caller refuses infinite margins
        return np.log(np.array(scores, np.float32))


def _as_float64(margins: Floats32) -> Floats:
    return margins.astype(np.float64)


def _exp(margins: Floats32) -> Floats:
    return np.exp(margins.astype(np.float64))


def _first_squared(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    return np.array([[sums.weight * margins[0] - sums.total, sums.weight]])


def _first_poisson(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    mean = exp(margins[0])
    return np.array([[sums.weight * mean - sums.total, sums.weight * mean * exp(parameter)]])


def _largest_squared(sums: LabelSums, margin: float, parameter: float) -> tuple[float, float]:
    return sums.weight * margin + sums.absolute, sums.weight


def _largest_poisson(sums: LabelSums, margin: float, parameter: float) -> tuple[float, float]:
    means = sums.weight * exp(min(margin, LARGEST_EXPONENT))
    return means + sums.total, means * exp(min(parameter, LARGEST_EXPONENT))


def _largest_poisson_loss(sums: LabelSums, margin: float, parameter: float) -> float:
    means = sums.weight * exp(min(margin, LARGEST_EXPONENT))
    return means + sums.squares + sums.total * margin


# With a link of the logarithm, sums of targets and of rows have factors exp(a·margin). A unit that
# follows from them leaves room for sums that grow by 2**8 while trees grow.


def _powers(margin: float, parameter: float) -> tuple[float, float]:
    """Return the factors of targets and of rows in gradients of Tweedie regression."""
    return exp((1 - parameter) * margin), exp((2 - parameter) * margin)


def _first_gamma(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    ratios = sums.total * exp(-margins[0])
    return np.array([[sums.weight - ratios, ratios]])


def _largest_gamma(sums: LabelSums, margin: float, parameter: float) -> tuple[float, float]:
    ratios = sums.total * exp(min(margin, LARGEST_EXPONENT))
    return sums.weight + ratios, ratios


def _largest_gamma_loss(sums: LabelSums, margin: float, parameter: float) -> float:
    ratios = sums.total * exp(min(margin, LARGEST_EXPONENT))
    return ratios + sums.weight * (margin - log(SMALLEST_POSITIVE))


def _total_gamma(sums: LabelSums, margins: Sequence[float], parameter: float) -> float:
    return 2.0**8 * max(sums.weight, sums.total * exp(min(-margins[0], LARGEST_EXPONENT)))


def _first_tweedie(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    of_targets, of_rows = _powers(margins[0], parameter)
    of_targets, of_rows = sums.total * of_targets, sums.weight * of_rows
    h = (parameter - 1) * of_targets + (2 - parameter) * of_rows
    return np.array([[of_rows - of_targets, h]])


def _largest_tweedie(sums: LabelSums, margin: float, parameter: float) -> tuple[float, float]:
    margin = min(margin, LARGEST_EXPONENT)
    of_targets = sums.total * _powers(-margin, parameter)[0]
    of_rows = sums.weight * _powers(margin, parameter)[1]
    return of_targets + of_rows, (parameter - 1) * of_targets + (2 - parameter) * of_rows


def _largest_tweedie_loss(sums: LabelSums, margin: float, parameter: float) -> float:
    margin = min(margin, LARGEST_EXPONENT)
    of_targets = sums.total * _powers(-margin, parameter)[0]
    of_rows = sums.weight * _powers(margin, parameter)[1]
    return of_targets / (parameter - 1) + of_rows / (2 - parameter)


def _total_tweedie(sums: LabelSums, margins: Sequence[float], parameter: float) -> float:
    of_targets, of_rows = _powers(max(margins[0], -LARGEST_EXPONENT), parameter)
    return 2.0**8 * max(sums.total * of_targets, sums.weight * of_rows)


OBJECTIVES: Mapping[str, Objective] = {
    "binary:logistic": Objective(
        gradients=objectives.logistic,
        loss=objectives.logistic_loss,
        base_scores=_fraction,
        link=_log_odds,
        response=_expit,
        first_sums=_first_logistic,
        largest_sums=_largest_logistic,
        largest_loss=_largest_logistic_loss,
        total=lambda sums, margins, parameter: sums.weight,
        default_metric="logloss",
        check_score=lambda score: 0 < score < 1,
        valid_scores="above 0 and below 1",
    ),
    "reg:logistic": Objective(
        gradients=objectives.logistic_of_fractions,
        loss=objectives.logistic_of_fractions_loss,
        base_scores=lambda sums, is_scaled: [_inside_0_and_1(sums.total / sums.weight)],
        link=_log_odds,
        response=_expit,
        first_sums=_first_fractions,
        largest_sums=_largest_logistic,
        largest_loss=_largest_logistic_loss,
        total=lambda sums, margins, parameter: sums.weight,
        default_metric="rmse",
        check_score=lambda score: 0 < score < 1,
        valid_scores="above 0 and below 1",
        targets=(0.0, 1.0),
        valid_targets="in 0..1",
    ),
    "multi:softprob": Objective(
        gradients=objectives.softmax,
        loss=objectives.softmax_loss,
        base_scores=_centred_log_fractions,
        link=_identity,
        response=lambda margins: scipy.special.softmax(margins.astype(np.float64), axis=1),
        first_sums=_first_softmax,
        largest_sums=lambda sums, margin, parameter: (sums.weight, sums.weight / 2),
        largest_loss=lambda sums, margin, parameter: (
            sums.weight * (2 * margin + log(max(len(sums.classes), 2)))
        ),
        total=lambda sums, margins, parameter: 2 * sums.weight,
        default_metric="mlogloss",
    ),
    "reg:squarederror": Objective(
        gradients=objectives.squared_error,
        loss=objectives.squared_error_loss,
        base_scores=_mean,
        link=_identity,
        response=_as_float64,
        first_sums=_first_squared,
        largest_sums=_largest_squared,
        largest_loss=lambda sums, margin, parameter: 2 * (sums.weight * margin**2 + sums.squares),
        total=lambda sums, margins, parameter: max(sums.weight, 4 * sums.absolute),
        default_metric="rmse",
    ),
    "reg:pseudohubererror": Objective(
        gradients=objectives.pseudo_huber,
        loss=objectives.pseudo_huber_loss,
        base_scores=_newton_step_from_0,
        link=_identity,
        response=_as_float64,
        first_sums=lambda sums, margins, parameter: None,
        largest_sums=lambda sums, margin, parameter: (sums.weight * parameter, sums.weight),
        largest_loss=lambda sums, margin, parameter: (
            parameter * (sums.weight * margin + sums.absolute)
        ),
        total=lambda sums, margins, parameter: sums.weight * max(parameter, 1.0),
        default_metric="mphe",
        parameter_name="huber_slope",
    ),
    "count:poisson": Objective(
        gradients=objectives.poisson,
        loss=objectives.poisson_loss,
        base_scores=_mean,
        link=_log,
        response=_exp,
        first_sums=_first_poisson,
        largest_sums=_largest_poisson,
        largest_loss=_largest_poisson_loss,
        total=lambda sums, margins, parameter: (
            2.0**6 * exp(parameter) * max(sums.weight, sums.total)
        ),
        default_metric="poisson-nloglik",
        check_score=lambda score: score > 0,
        valid_scores="above 0",
        targets=(0.0, float("inf")),
        valid_targets="at least 0",
        parameter_name="max_delta_step",
    ),
    "reg:gamma": Objective(
        gradients=objectives.gamma,
        loss=objectives.gamma_loss,
        base_scores=_mean,
        link=_log,
        response=_exp,
        first_sums=_first_gamma,
        largest_sums=_largest_gamma,
        largest_loss=_largest_gamma_loss,
        total=_total_gamma,
        default_metric="gamma-nloglik",
        check_score=lambda score: score > 0,
        valid_scores="above 0",
        targets=(SMALLEST_POSITIVE, float("inf")),
        valid_targets="above 0",
    ),
    "reg:tweedie": Objective(
        gradients=objectives.tweedie,
        loss=objectives.tweedie_loss,
        base_scores=_mean,
        link=_log,
        response=_exp,
        first_sums=_first_tweedie,
        largest_sums=_largest_tweedie,
        largest_loss=_largest_tweedie_loss,
        total=_total_tweedie,
        default_metric="tweedie-nloglik",
        check_score=lambda score: score > 0,
        valid_scores="above 0",
        targets=(0.0, float("inf")),
        valid_targets="at least 0",
        parameter_name="tweedie_variance_power",
    ),
}


def unit_bits(total: float) -> int:
    """Return the ``bits`` of the unit 2**-bits of sums of at most ``total``, above 0."""
    return SUM_BITS - ceil(log2(total))


def check_allowed(y: Floats32, objective: str) -> None:
    """Raise ValueError when the objective does not allow a target.

    Examples
    --------
    >>> check_allowed(np.array([3.0, -1.0]), "count:poisson")
    Traceback (most recent call last):
    ...
    ValueError: y must be at least 0 for objective='count:poisson'; got -1.0
    """
    low, high = OBJECTIVES[objective].targets
    if (outside := (y < low) | (y > high)).any():
        raise ValueError(
            f"y must be {OBJECTIVES[objective].valid_targets} for objective={objective!r}; got"
            f" {y[outside][0]}"
        )


def target_sums(y: Floats32, weight: Floats32, objective: str, parameter: float) -> LabelSums:
    """Return the sums over the rows of a client with the targets ``y`` (n_rows,)."""
    wide = y.astype(np.float64)
    sums = LabelSums(weight=fsum(weight), total=fsum(weight * wide), squares=fsum(weight * wide**2))
    size = OBJECTIVES[objective].total(sums, [0.0], parameter)
    if size == 0:
        return sums
    bits = unit_bits(size)
    at_zero = np.zeros((len(y), 1), np.float32)
    gradients = OBJECTIVES[objective].gradients(at_zero, y, weight, parameter, bits)
    gradient, hessian = (gradients[0].sum(axis=0) * 2.0**-bits).tolist()
    return replace(sums, gradient=gradient, hessian=hessian)


def first_size(
    margins: Floats32, y: Floats32, weight: Floats32, objective: str, parameter: float
) -> float:
    """Return a power of two above the sums of absolute gradients and hessians at base margins.

    Parameters
    ----------
    margins : array (n_rows, 1) of float32
    y, weight : array (n_rows,) of float32

    Raises
    ------
    ValueError
        When they may exceed 2**80.

    Examples
    --------
    >>> margins, one = np.array([[5.0]], np.float32), np.ones(1, np.float32)
    >>> first_size(margins, one, one, "reg:squarederror", 0.0)
    4.0
    """
    chosen, sums = OBJECTIVES[objective], target_sums(y, weight, objective, parameter)
    largest = float(np.abs(margins).max(initial=0))
    limit = max(chosen.largest_sums(sums, largest, parameter))
    if limit > 2.0**80:
        raise ValueError(
            f"base_margin must be smaller for objective={objective!r}: gradients would be as large"
            f" as {limit:.1g}; got {largest:g} in size"
        )
    if limit == 0:
        return 0.0
    bits = unit_bits(limit)
    gradients = chosen.gradients(margins, y, weight, parameter, bits)[0]
    return 2.0 ** (ceil(log2(max(np.abs(gradients).sum(axis=0).max(), 1))) - bits)


def check_power(objective: str, parameter: float) -> None:
    """Raise MessageError when the parameter is no variance power, and the objective needs one."""
    if objective == "reg:tweedie" and not 1.001 <= parameter <= 1.999:
        raise MessageError(f"a variance power of {parameter}, outside of 1.001..1.999")
