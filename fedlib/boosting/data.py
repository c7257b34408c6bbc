"""Checks of rows, classes and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array, check_consistent_length, column_or_1d

from fedlib.boosting.cuts import MAX_VALUE
from fedlib.boosting.messages import MAX_WEIGHT
from fedlib.core.array_types import Floats32

__all__ = [
    "check_classes",
]


def check_rows(X: Any, **checks: Any) -> Floats32:
    """Return rows (n_rows, n_features) as a C-ordered float32 array; NaN is a missing value.

    Parameters
    ----------
    X : array-like (n_rows, n_features)
        Numbers within ±2**127, or NaN.
    **checks
        Additional arguments of `sklearn.utils.check_array`.

    Raises
    ------
    ValueError
        When the rows are not a table of such numbers.
    """
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        X = check_array(X, dtype=np.float32, order="C", ensure_all_finite="allow-nan", **checks)
    if X.size and np.nanmax(np.abs(X), initial=0) > MAX_VALUE:
        raise ValueError("X must lie within ±2**127")
    return X


def check_classes(y: Any, n_rows: int) -> NDArray[Any]:
    """Return the classes (n_rows,) of rows as an array of text or of finite numbers.

    Raises
    ------
    ValueError
        When the classes are of another kind or number, or some are text and some are not.
    """
    given, y = y, column_or_1d(y)
    check_consistent_length(y, np.empty(n_rows))
    if y.dtype.kind == "O":
        y = np.array(y.tolist()) if len(y) else y.astype(np.int64)
    if y.dtype.kind == "U":  # numpy turns numbers next to text into text
        odd = [label for label in np.asarray(given, object).flat if not isinstance(label, str)]
        if odd:
            raise ValueError(f"y must be either text or numbers; got both, such as {odd[0]!r}")
    if y.dtype.kind not in "biufU":
        raise ValueError(f"y must be text or numbers; got {y.dtype}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y must be finite")
    return y


def check_targets(y: Any, n_rows: int) -> Floats32:
    """Return the numbers (n_rows,) that a regression learns as float32.

    Raises
    ------
    ValueError
        When they are not finite numbers within ±2**40, or their number is not that of the rows.
    """
    y = column_or_1d(y)
    check_consistent_length(y, np.empty(n_rows))
    if y.dtype.kind == "O":
        y = np.array(y.tolist()) if len(y) else y.astype(np.float64)
    if y.dtype.kind not in "biuf":
        raise ValueError(f"y must contain numbers; got {y.dtype}")
    outside = ~(np.abs(y.astype(np.float64)) <= MAX_WEIGHT)
    if outside.any():
        raise ValueError(f"y must be finite and within ±2**40; got {y[np.argmax(outside)]}")
    return y.astype(np.float32)


def check_weights(weights: Any, n_rows: int) -> Floats32:
    """Return the weights (n_rows,) of rows as float32, all 1 if there are none.

    Raises
    ------
    ValueError
        When a weight is negative or not finite, when the sum exceeds 2**40, or when their number is
        not the number of rows.
    """
    if weights is None:
        return np.ones(n_rows, np.float32)
    weights = column_or_1d(weights, dtype=np.float32)
    check_consistent_length(weights, np.empty(n_rows))
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("sample_weight must be finite and at least 0")
    total = weights.sum(dtype=np.float64)
    if total > MAX_WEIGHT:
        raise ValueError(f"sample_weight must add up to at most 2**40; got {total:g}")
    return weights
