"""Quantiles, the median and expectiles: their links, responses and largest sums.

``levels`` are numbers in 0..1 in ascending order, one per output. Quantiles are sorted where they
would cross, and expectiles are the lowest one and positive gaps, as in XGBoost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedlib.boosting.label_sums import LabelSums
from fedlib.core.array_types import Floats, Floats32
from fedlib.kernels import levels as kernels

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


def total_absolute(sums: LabelSums, margins: Sequence[float], parameter: Any) -> float:
    """Return the size of sums."""
    return total_quantile(sums, margins, parameter)


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
