"""Bounds of the features, between which rows are clipped so that one row can change little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from fedlib.core.array_types import Floats
from fedlib.core.messages import Array

__all__ = [
    "from_unit",
]


MAX_BOUND = 1e100  # so that no square overflows


@dataclass(frozen=True)
class _TwoRows(Array):
    """The rules for bounds in a message: two rows, the lower below the upper.

    Without them, a client would divide by zero, and fail for some rows only.
    """

    def problem(self, value: object) -> str | None:
        """Return a description of the error in a value, or None if it is valid."""
        if (problem := super().problem(value)) is not None:
            return problem
        assert isinstance(value, np.ndarray)
        if len(value) != 2 or not ((value[1] - value[0]) / 2 > 0).all():
            return "must be two rows, the lower below the upper"
        return None


BoundsArray = Annotated[
    np.ndarray, _TwoRows("float64", ("ends", "features"), -MAX_BOUND, MAX_BOUND)
]


def check_bounds(bounds: ArrayLike | None, name: str = "bounds") -> Floats:
    """Return the smallest and the largest value of each feature as an array (2, n_features).

    Raises
    ------
    ValueError
        When they are None, or not two rows of finite numbers, the first below the second.

    Examples
    --------
    >>> check_bounds([[0, 5], [1, 5]])
    Traceback (most recent call last):
    ...
    ValueError: bounds must be two rows, the lower below the upper within ±1e+100; got [[0, 5], \
[1, 5]]
    """
    if bounds is None:
        raise ValueError(
            f"epsilon needs {name}, the smallest and the largest value of each feature, because the"
            " data must not determine them; got None"
        )
    try:
        limits = np.array(bounds, np.float64)
    except (TypeError, ValueError):
        limits = np.empty(0)
    if (
        limits.ndim != 2
        or len(limits) != 2
        or not limits.size
        or not (np.abs(limits) <= MAX_BOUND).all()
        or not (limits[0] < limits[1]).all()
    ):
        raise ValueError(
            f"{name} must be two rows, the lower below the upper within ±{MAX_BOUND:g};"
            f" got {bounds!r}"
        )
    return limits


def to_unit(X: Floats, bounds: Floats) -> Floats:
    """Return points clipped to bounds and scaled, so that every feature is in [-1, 1].

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    bounds : array (2, n_features) of float64

    Raises
    ------
    ValueError
        When the points and the bounds have different numbers of features.

    Examples
    --------
    >>> to_unit(np.array([[0.0], [5.0], [99.0]]), np.array([[0.0], [20.0]])).ravel()
    array([-1. , -0.5,  1. ])
    """
    if X.shape[1] != bounds.shape[1]:
        raise ValueError(
            f"bounds must have the {X.shape[1]} features of the points, got {bounds.shape[1]}"
        )
    low, high = bounds
    middle, half = low + (high - low) / 2, (high - low) / 2
    scaled: Floats = np.clip((np.clip(X, low, high) - middle) / half, -1.0, 1.0)
    return scaled


def from_unit(X: Floats, bounds: Floats) -> Floats:
    """Return points in the units of the features, clipped to the bounds; undoes `to_unit`."""
    low, high = bounds
    points: Floats = np.clip(low + (high - low) / 2 * (1 + X), low, high)
    return points
