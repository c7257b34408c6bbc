"""Bounds of columns: limits that all sites know, and that do not depend on the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlib.core.array_types import Floats
from fedlib.core.names import as_table, feature_names, listed
from fedlib.core.texts import composed

MAX_BOUND = 1e100  # so that no square overflows


class Bounds(NamedTuple):
    """The smallest and the largest value of columns.

    Attributes
    ----------
    limits : array (2, n_columns)
        The smaller values, then the larger ones.
    names : tuple of str
        The names of the columns; empty if the bounds are those of all columns in their order.
    """

    limits: Floats
    names: tuple[str, ...] = ()

    def by_index(self, names: Sequence[str]) -> dict[int, tuple[float, float]]:
        """Return the bounds by the index of the column among ``names``.

        Raises
        ------
        ValueError
            When there is no such column, or there are bounds of another count of columns.
        """
        low, high = self.limits.tolist()
        if not self.names and self.limits.size and len(low) != len(names):
            raise ValueError(f"bounds must have {len(names)} columns, got {len(low)}")
        unknown = [name for name in self.names if name not in names]
        if unknown:
            raise ValueError(
                f"bounds must be of columns of the data, {', '.join(names[:20])};"
                f" got {', '.join(unknown)}"
            )
        which = [names.index(name) for name in self.names] or range(len(low))
        return {j: pair for j, *pair in zip(which, low, high, strict=True)}  # type: ignore[misc]


NO_BOUNDS = Bounds(np.empty((2, 0)))  # of no column


def check_bounds(given: Any, largest: float = MAX_BOUND) -> Bounds:
    """Return bounds, after a check.

    Parameters
    ----------
    given : mapping of str to (low, high), or array-like (2, n_columns)
        Either by the names of columns, or the smaller values of all columns and then the larger
        ones.
    largest : float
        The largest absolute value.

    Raises
    ------
    ValueError
        When they are not finite numbers within ±``largest``, the lower below the upper.

    Examples
    --------
    >>> check_bounds({"age": (0, 120), "bmi": (10, 80)})
    Bounds(limits=array([[  0.,  10.],
           [120.,  80.]]), names=('age', 'bmi'))
    >>> check_bounds([[0, 10], [120, 80]]).names
    ()
    >>> check_bounds({"age": (120, 0)})
    Traceback (most recent call last):
    ...
    ValueError: bounds of 'age' must be two numbers, the lower below the upper, within ±1e+100, \
got (120, 0)
    """
    wanted = f"two numbers, the lower below the upper, within ±{largest:g}"
    if isinstance(given, Mapping):
        names = tuple(composed(str(name)) for name in given)
        limits = [_pair(pair) for pair in given.values()]
        for name, (low, high), pair in zip(names, limits, given.values(), strict=True):
            if not -largest <= low < high <= largest:
                raise ValueError(f"bounds of {name!r} must be {wanted}, got {pair!r}")
        return Bounds(np.array(limits, np.float64).reshape(-1, 2).T.copy(), names)
    try:
        array = np.array(as_table(given), np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 2 or len(array) != 2 or not array.size:
        raise ValueError(
            "bounds must be {name: (low, high)}, or two rows with a number per column: the lower"
            f" bounds and the upper ones; got {given!r}"
        )
    valid = (np.abs(array) <= largest).all(axis=0) & (array[0] < array[1])
    if not valid.all():
        names, j = feature_names(given), int(np.argmin(valid))
        raise ValueError(
            f"bounds of column {listed(names[j : j + 1]) if names else j} must be {wanted}, got"
            f" {tuple(array[:, j].tolist())}"
        )
    return Bounds(array, feature_names(given))


def _pair(value: Any) -> tuple[float, float]:
    try:
        low, high = map(float, value)
    except (TypeError, ValueError):
        return np.nan, np.nan  # which is no valid pair
    return low, high
