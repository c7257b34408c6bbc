"""Sums over the labels of rows, and what follows from them for the objectives.

The server knows the sums over each client's labels (`LabelSums`). From them follow the predictions
before the first tree, the unit of gradients, and the largest sums that a client can have. The
functions are those of `fedlib.boosting.objectives.Objective`.

Quantiles, the median and expectiles: their links, responses and largest sums.

``levels`` are numbers in 0..1 in ascending order, one per output. Quantiles are sorted where they
would cross, and expectiles are the lowest one and positive gaps, as in XGBoost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, fsum, log, sqrt
from typing import Any

import numpy as np
import scipy

from fedlib.core.array_types import Floats, Floats32
from fedlib.kernels import forests as kernels
from fedlib.kernels import splits

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
    def of(cls, reply: Any) -> LabelSums:
        """Return the sums of a regression that a message has in fields of the same names."""
        names = ("weight", "total", "squares", "gradient", "hessian")
        return cls(**{name: getattr(reply, name) for name in names})

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


# Two classes


def inside_0_and_1(fraction: float) -> np.float32:
    """Return the nearest float32 above 0 and below 1."""
    zero, one = np.float32(0), np.float32(1)
    return min(max(np.float32(fraction), np.nextafter(zero, one)), np.nextafter(one, zero))


def fraction(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    """Return the fraction of the second class; with ``is_scaled``, one Newton step from 1/2."""
    negative, positive = sums.classes
    if not is_scaled:
        return [inside_0_and_1(positive / sums.weight)]
    return [
        inside_0_and_1(
            float(scipy.special.expit(2 * (positive - negative) / (positive + negative)))
        )
    ]


def fraction_of_totals(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    """Return the mean of fractions."""
    return [inside_0_and_1(sums.total / sums.weight)]


def first_logistic(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    p = float(scipy.special.expit(margins[0]))
    return np.array([[sums.weight * p - sums.classes[1], sums.weight * p * (1 - p)]])


def first_fractions(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    p = float(scipy.special.expit(margins[0]))
    return np.array([[sums.weight * p - sums.total, sums.weight * p * (1 - p)]])


def largest_logistic(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    return sums.weight, sums.weight / 4


def largest_logistic_loss(sums: LabelSums, margin: float, parameter: Any) -> float:
    return sums.weight * (margin + log(2))


def expit(margins: Floats32) -> Floats:
    return np.asarray(scipy.special.expit(margins.astype(np.float64)))


def log_odds(scores: Sequence[Any]) -> Floats32:
    return np.array([splits.log_odds(np.float32(score)) for score in scores], np.float32)


# Several classes


def centred_log_fractions(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    """Return the logarithms of the classes' fractions in float32, with the mean 0."""
    factor = 1.0 / sums.weight
    fractions = [np.float32(np.float32(weight) * factor) for weight in sums.classes]
    logs = [
        np.float32(np.log(np.float32(fraction + np.float32(SMALLEST_FRACTION))))
        for fraction in fractions
    ]
    mean = np.float32(fsum(map(float, logs)) / len(logs))
    return [np.float32(value - mean) for value in logs]


def first_softmax(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    p = scipy.special.softmax(np.array(margins, np.float64))
    g = sums.weight * p - np.array(sums.classes)
    return np.column_stack([g, 2 * sums.weight * p * (1 - p)])


# Regression


def mean(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    return [np.float32(sums.total / sums.weight)]


def unknown(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    raise AssertionError("it does not follow from sums over labels")


def unknown_sums(sums: LabelSums, margins: Sequence[float], parameter: Any) -> None:
    """Return None: the first sums do not follow from sums over labels."""


def newton_step_from_0(sums: LabelSums, is_scaled: bool) -> list[np.float32]:
    return [np.float32(-sums.gradient / max(sums.hessian, 1e-6))]


def identity(scores: Sequence[Any]) -> Floats32:
    return np.array(scores, np.float32)


def log_link(scores: Sequence[Any]) -> Floats32:
    with np.errstate(divide="ignore", invalid="ignore"):  # the caller refuses infinite margins
        return np.log(np.array(scores, np.float32))


def as_float64(margins: Floats32) -> Floats:
    return margins.astype(np.float64)


def exp_response(margins: Floats32) -> Floats:
    return np.exp(margins.astype(np.float64))


def first_squared(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    return np.array([[sums.weight * margins[0] - sums.total, sums.weight]])


def first_poisson(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    mean = exp(margins[0])
    return np.array([[sums.weight * mean - sums.total, sums.weight * mean * exp(parameter)]])


def largest_squared(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    return sums.weight * margin + sums.absolute, sums.weight


def largest_poisson(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    means = sums.weight * exp(min(margin, LARGEST_EXPONENT))
    return means + sums.total, means * exp(min(parameter, LARGEST_EXPONENT))


def largest_poisson_loss(sums: LabelSums, margin: float, parameter: Any) -> float:
    means = sums.weight * exp(min(margin, LARGEST_EXPONENT))
    return means + sums.squares + sums.total * margin


# With a link of the logarithm, sums of targets and of rows have factors exp(a·margin). A unit that
# follows from them leaves room for sums that grow by 2**8 while trees grow.


def powers(margin: float, parameter: Any) -> tuple[float, float]:
    """Return the factors of targets and of rows in gradients of Tweedie regression."""
    return exp((1 - parameter) * margin), exp((2 - parameter) * margin)


def first_gamma(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    ratios = sums.total * exp(-margins[0])
    return np.array([[sums.weight - ratios, ratios]])


def largest_gamma(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    ratios = sums.total * exp(min(margin, LARGEST_EXPONENT))
    return sums.weight + ratios, ratios


def largest_gamma_loss(sums: LabelSums, margin: float, parameter: Any) -> float:
    ratios = sums.total * exp(min(margin, LARGEST_EXPONENT))
    return ratios + sums.weight * (margin - log(SMALLEST_POSITIVE))


def total_gamma(sums: LabelSums, margins: Sequence[float], parameter: Any) -> float:
    return 2.0**8 * max(sums.weight, sums.total * exp(min(-margins[0], LARGEST_EXPONENT)))


def first_tweedie(sums: LabelSums, margins: Sequence[float], parameter: Any) -> Floats:
    of_targets, of_rows = powers(margins[0], parameter)
    of_targets, of_rows = sums.total * of_targets, sums.weight * of_rows
    h = (parameter - 1) * of_targets + (2 - parameter) * of_rows
    return np.array([[of_rows - of_targets, h]])


def largest_tweedie(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    margin = min(margin, LARGEST_EXPONENT)
    of_targets = sums.total * powers(-margin, parameter)[0]
    of_rows = sums.weight * powers(margin, parameter)[1]
    return of_targets + of_rows, (parameter - 1) * of_targets + (2 - parameter) * of_rows


def largest_tweedie_loss(sums: LabelSums, margin: float, parameter: Any) -> float:
    margin = min(margin, LARGEST_EXPONENT)
    of_targets = sums.total * powers(-margin, parameter)[0]
    of_rows = sums.weight * powers(margin, parameter)[1]
    return of_targets / (parameter - 1) + of_rows / (2 - parameter)


def total_tweedie(sums: LabelSums, margins: Sequence[float], parameter: Any) -> float:
    of_targets, of_rows = powers(max(margins[0], -LARGEST_EXPONENT), parameter)
    return 2.0**8 * max(sums.total * of_targets, sums.weight * of_rows)


LARGEST_CURVATURE = 0.5 / 0.04  # of a quantile's surrogate, per weight
ROOM = 2.0**4  # for residuals that grow while trees grow


def with_array(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of margins, targets, weights, a tuple and perhaps bits."""

    def called(margins: Any, targets: Any, weights: Any, parameter: Any, *bits: int) -> Any:
        return kernel(margins, targets, weights, np.array(parameter, np.float64), *bits)

    return called


def quantiles(margins: Floats32) -> Floats:
    """Return the predicted quantiles (n, outputs) of margins, in ascending order.

    Examples
    --------
    >>> quantiles(np.array([[3.0, 2.0]], np.float32))
    array([[2., 3.]])
    """
    return np.sort(margins, axis=1).astype(np.float64)


def expectiles(margins: Floats32) -> Floats:
    """Return the predicted expectiles (n, outputs) of margins.

    Examples
    --------
    >>> expectiles(gaps([1.0, 3.0])[np.newaxis]).round(5)
    array([[1., 3.]])
    """
    found: Floats32 = kernels.expectiles(np.ascontiguousarray(margins, np.float32))
    return found.astype(np.float64)


def gaps(scores: Sequence[Any]) -> Floats32:
    """Return the margins of expectiles: the first one, and the inverse of softplus of the gaps."""
    values = np.array(scores, np.float32)
    least = kernels.LEAST_GAP
    gap = np.maximum(np.diff(values) - least, least)
    values[1:] = gap + np.log(-np.expm1(-gap))
    return values


def absolute_residuals(sums: LabelSums, margin: float) -> float:
    """Return an upper bound of the weighted sum of absolute residuals."""
    return sums.weight * margin + sums.absolute


def largest_root(sums: LabelSums, margin: float) -> float:
    """Return an upper bound of the weighted sum of the roots of absolute residuals."""
    return float(np.sqrt(sums.weight * absolute_residuals(sums, margin)))


def largest_quantile(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    """Return upper bounds of the sums for scales, the second half of ``parameter``."""
    scales = parameter[len(parameter) // 2 :]
    return sums.weight * max(scales, default=0.0), sums.weight * LARGEST_CURVATURE


def largest_absolute(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    """Return upper bounds of the sums for a scale, the only ``parameter``."""
    return sums.weight * max(parameter, default=0.0), sums.weight


def largest_absolute_loss(sums: LabelSums, margin: float, parameter: Any) -> float:
    """Return an upper bound of the absolute error, which no pinball loss exceeds."""
    return absolute_residuals(sums, margin)


def total_quantile(sums: LabelSums, margins: Sequence[float], parameter: Any) -> float:
    """Return the size of sums; no scale is larger than the mean of absolute residuals."""
    return ROOM * max(sums.weight, absolute_residuals(sums, max(map(abs, margins))))


def _farthest(margin: float, n_levels: int) -> float:
    """Return an upper bound of the size of expectiles."""
    return n_levels * (margin + 1.0) if n_levels > 1 else margin


def largest_expectile(sums: LabelSums, margin: float, parameter: Any) -> tuple[float, float]:
    """Return upper bounds of the sums: each output moves all expectiles from its own on."""
    n = len(parameter)
    return n * absolute_residuals(sums, _farthest(margin, n)), n * sums.weight


def largest_expectile_loss(sums: LabelSums, margin: float, parameter: Any) -> float:
    """Return an upper bound of the asymmetric squared error."""
    farthest = _farthest(margin, len(parameter))
    return 2 * (sums.weight * farthest**2 + sums.squares)


def total_expectile(sums: LabelSums, margins: Sequence[float], parameter: Any) -> float:
    """Return the size of sums."""
    n = len(parameter)
    farthest = _farthest(max(map(abs, margins)), n)
    return n * max(sums.weight, 4 * absolute_residuals(sums, farthest))
