"""Bounds of the features, between which rows are clipped so that one row can change little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedlib.core.array_types import Floats
from fedlib.core.bounds import MAX_BOUND
from fedlib.core.client import Unanswerable
from fedlib.core.messages import Array


@dataclass(frozen=True)
class TwoRows(Array):
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


BoundsArray = Annotated[np.ndarray, TwoRows("float64", ("ends", "features"), -MAX_BOUND, MAX_BOUND)]


def clipped(X: Floats, bounds: Floats) -> Floats:
    """Return points (n_points, n_features) clipped to bounds (2, n_features).

    Raises
    ------
    Unanswerable
        A ValueError: when the points and the bounds have different numbers of features.

    Examples
    --------
    >>> clipped(np.array([[0.0], [5.0], [99.0]]), np.array([[1.0], [20.0]])).ravel()
    array([ 1.,  5., 20.])
    """
    if X.shape[1] != bounds.shape[1]:
        raise Unanswerable(
            f"bounds must have the {X.shape[1]} features of the points, got {bounds.shape[1]}"
        )
    low, high = bounds
    return np.clip(X, low, high)


def to_unit(X: Floats, bounds: Floats) -> Floats:
    """Return points clipped to bounds and scaled, so that every feature is in [-1, 1].

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    bounds : array (2, n_features) of float64

    Raises
    ------
    Unanswerable
        A ValueError: when the points and the bounds have different numbers of features.

    Examples
    --------
    >>> to_unit(np.array([[0.0], [5.0], [99.0]]), np.array([[0.0], [20.0]])).ravel()
    array([-1. , -0.5,  1. ])
    """
    low, high = bounds
    middle, half = low + (high - low) / 2, (high - low) / 2
    scaled: Floats = np.clip((clipped(X, bounds) - middle) / half, -1.0, 1.0)
    return scaled


def from_unit(X: Floats, bounds: Floats) -> Floats:
    """Return points in the units of the features, clipped to the bounds; undoes `to_unit`."""
    low, high = bounds
    points: Floats = np.clip(low + (high - low) / 2 * (1 + X), low, high)
    return points
