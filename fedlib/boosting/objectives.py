"""The objectives of boosting: everything in which one differs from another, as pure functions.

The server knows the sums over each client's labels (`LabelSums`). From them follow the margins
before the first tree, the unit of gradients, and the largest sums that a client can have.

Gradients, hessians, links and initial margins are XGBoost's. The ``parameter`` of an objective is
the slope of the pseudo-Huber loss or the maximum step of Poisson regression; otherwise 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, fsum, log, log2, sqrt
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from fedlib.core.array_types import Floats, Floats32, Ints
from fedlib.kernels import objectives, splits

__all__ = [
    "LabelSums",
    "Objective",
]

SUM_BITS = 52  # no sum of a client reaches 2**52 units, so each is exact as a float64

SMALLEST_FRACTION = 1e-6  # XGBoost's, in the logarithm of a class's fraction
LARGEST_EXPONENT = 80.0  # of a Poisson margin in bounds; more overflows a float32


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
    total : callable (sums, parameter) -> float
        The size of all clients' sums, which determines the unit of gradients.
    default_metric : str
        XGBoost's metric for validation.
    check_score : callable (score) -> bool
        Whether a given ``base_score`` is valid.
    valid_scores : str
        Which ones are, in words.
    smallest_target : float
        The smallest target allowed.
    """

    gradients: Callable[..., Ints]
    loss: Callable[..., float]
    base_scores: Callable[[LabelSums, bool], list[np.float32]]
    link: Callable[[Sequence[Any]], Floats32]
    response: Callable[[Floats32], Floats]
    first_sums: Callable[[LabelSums, Sequence[float], float], Floats | None]
    largest_sums: Callable[[LabelSums, float, float], tuple[float, float]]
    largest_loss: Callable[[LabelSums, float, float], float]
    total: Callable[[LabelSums, float], float]
    default_metric: str
    check_score: Callable[[float], bool] = lambda score: True
    valid_scores: str = "a finite number"
    smallest_target: float = -float("inf")


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
    return [_inside_0_and_1(float(expit(2 * (positive - negative) / (positive + negative))))]


def _first_logistic(sums: LabelSums, margins: Sequence[float], parameter: float) -> Floats:
    p = float(expit(margins[0]))
    return np.array([[sums.weight * p - sums.classes[1], sums.weight * p * (1 - p)]])


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
    p = softmax(np.array(margins, np.float64))
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


OBJECTIVES: Mapping[str, Objective] = {
    "binary:logistic": Objective(
        gradients=objectives.logistic,
        loss=objectives.logistic_loss,
        base_scores=_fraction,
        link=_log_odds,
        response=lambda margins: expit(margins.astype(np.float64)),
        first_sums=_first_logistic,
        largest_sums=lambda sums, margin, parameter: (sums.weight, sums.weight / 4),
        largest_loss=lambda sums, margin, parameter: sums.weight * (margin + log(2)),
        total=lambda sums, parameter: sums.weight,
        default_metric="logloss",
        check_score=lambda score: 0 < score < 1,
        valid_scores="above 0 and below 1",
    ),
    "multi:softprob": Objective(
        gradients=objectives.softmax,
        loss=objectives.softmax_loss,
        base_scores=_centred_log_fractions,
        link=_identity,
        response=lambda margins: softmax(margins.astype(np.float64), axis=1),
        first_sums=_first_softmax,
        largest_sums=lambda sums, margin, parameter: (sums.weight, sums.weight / 2),
        largest_loss=lambda sums, margin, parameter: (
            sums.weight * (2 * margin + log(max(len(sums.classes), 2)))
        ),
        total=lambda sums, parameter: 2 * sums.weight,
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
        total=lambda sums, parameter: max(sums.weight, 4 * sums.absolute),
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
        total=lambda sums, parameter: sums.weight * max(parameter, 1.0),
        default_metric="mphe",
    ),
    "count:poisson": Objective(
        gradients=objectives.poisson,
        loss=objectives.poisson_loss,
        base_scores=_mean,
        link=_log,
        response=lambda margins: np.exp(margins.astype(np.float64)),
        first_sums=_first_poisson,
        largest_sums=_largest_poisson,
        largest_loss=_largest_poisson_loss,
        total=lambda sums, parameter: 2.0**6 * exp(parameter) * max(sums.weight, sums.total),
        default_metric="poisson-nloglik",
        check_score=lambda score: score > 0,
        valid_scores="above 0",
        smallest_target=0.0,
    ),
}


def unit_bits(total: float) -> int:
    """Return the ``bits`` of the unit 2**-bits of sums of at most ``total``, above 0."""
    return SUM_BITS - ceil(log2(total))


def check_smallest(y: Floats32, objective: str) -> None:
    """Raise ValueError when a target is below the smallest one that the objective allows.

    Examples
    --------
    >>> check_smallest(np.array([3.0, -1.0]), "count:poisson")
    Traceback (most recent call last):
    ...
    ValueError: y must be at least 0 for objective='count:poisson'; got -1.0
    """
    smallest = OBJECTIVES[objective].smallest_target
    if (y < smallest).any():
        raise ValueError(
            f"y must be at least {smallest:g} for objective={objective!r}; got {y.min()}"
        )


def target_sums(y: Floats32, weight: Floats32, objective: str, parameter: float) -> LabelSums:
    """Return the sums over the rows of a client with the targets ``y`` (n_rows,)."""
    wide = y.astype(np.float64)
    sums = LabelSums(weight=fsum(weight), total=fsum(weight * wide), squares=fsum(weight * wide**2))
    size = OBJECTIVES[objective].total(sums, parameter)
    if size == 0:
        return sums
    bits = unit_bits(size)
    at_zero = np.zeros((len(y), 1), np.float32)
    gradients = OBJECTIVES[objective].gradients(at_zero, y, weight, parameter, bits)
    gradient, hessian = (gradients[0].sum(axis=0) * 2.0**-bits).tolist()
    return replace(sums, gradient=gradient, hessian=hessian)
