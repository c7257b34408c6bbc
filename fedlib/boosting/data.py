"""Checks of rows, columns, targets and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_array

from fedlib.boosting.cuts import MAX_VALUE
from fedlib.boosting.messages import MAX_WEIGHT
from fedlib.core.array_types import Floats32
from fedlib.core.labels import read_targets, read_weights
from fedlib.core.texts import printable
from fedlib.core.validation import feature_names

MAX_NAMES = 5  # in the text of an error, and the characters of each
MAX_NAME = 40


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


def check_targets(y: Any, n_rows: int) -> Floats32:
    """Return the numbers (n_rows,) that a regression learns as float32.

    Raises
    ------
    ValueError
        When they are not finite numbers within ±2**40, or their number is not that of the rows.
    """
    numbers = read_targets(y, n_rows=n_rows)
    outside = np.abs(numbers) > MAX_WEIGHT
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"y must be finite and within ±2**40; got {numbers[row]:g} in row {row + 1}"
        )
    return numbers.astype(np.float32)


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
    numbers = read_weights(weights, n_rows=n_rows)
    rounded = np.minimum(numbers, 2 * MAX_WEIGHT).astype(np.float32)
    if rounded.sum(dtype=np.float64) > MAX_WEIGHT:
        raise ValueError(f"sample_weight must add up to at most 2**40; got {numbers.sum():g}")
    return rounded


def in_order(X: Any, names: Sequence[str], what: str = "X") -> Any:
    """Return a table with its columns in the order of ``names``.

    Parameters
    ----------
    X : DataFrame or array-like (n_rows, n_features)
        A table whose columns have no names is returned as it is.
    names : sequence of str
        The names of the columns; empty if they are not known.
    what : str, default="X"
        The name of the argument, for errors.

    Raises
    ------
    ValueError
        When a column is missing or is not among the names. The text has only these columns.

    Examples
    --------
    >>> import pandas as pd
    >>> in_order(pd.DataFrame({"b": [1], "a": [2]}), ["a", "b"]).columns.tolist()
    ['a', 'b']
    >>> in_order(pd.DataFrame({"b": [1], "c": [2]}), ["a", "b"])
    Traceback (most recent call last):
    ...
    ValueError: X must have the columns of the model: 'a' is missing; 'c' is not among them
    """
    repeats = isinstance(X, pd.DataFrame) and not X.columns.is_unique
    given = tuple(map(str, X.columns)) if repeats else feature_names(X)
    if not given or not len(names) or given == tuple(names):
        return X
    if problem := difference(given, names):
        raise ValueError(f"{what} must have the columns of the model: {problem}")
    if not isinstance(X, pd.DataFrame):
        raise ValueError(
            f"{what} must have the columns in the order of the model, or be a DataFrame of pandas;"
            f" got a {type(X).__name__} with another order"
        )
    places = {name: place for place, name in enumerate(given)}
    return X.iloc[:, [places[name] for name in names]]


def parts_in_order(parts: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return parts ``(X, y, …)`` with the columns of each table in the order of ``names``."""
    return [
        (in_order(part[0], names, f"parts[{i}]"), *part[1:])
        if isinstance(part, tuple | list) and len(part)
        else part  # its client raises the error
        for i, part in enumerate(parts)
    ]


def check_names(given: Sequence[str], names: Sequence[str]) -> None:
    """Raise ValueError when the columns of a run are not those of the model that it continues.

    Examples
    --------
    >>> check_names(("b", "a"), ("a", "b"))
    Traceback (most recent call last):
    ...
    ValueError: the columns must have the order of the model; column 1 is 'b' instead of 'a'
    """
    if not given or not names or tuple(given) == tuple(names):
        return
    if problem := difference(given, names):
        raise ValueError(f"the columns must be those of the model: {problem}")
    place = next(i for i, name in enumerate(names) if given[i] != name)
    raise ValueError(
        f"the columns must have the order of the model; column {place + 1} is"
        f" {_shown(given[place : place + 1])} instead of {_shown(names[place : place + 1])}"
    )


def difference(given: Sequence[str], names: Sequence[str]) -> str:
    """Return which columns are missing, repeated or not among ``names``; empty if there are none.

    Examples
    --------
    >>> difference(["a", "b", "b"], ["a"])
    "'b' is not among them"
    >>> difference(["a", "a"], ["a"])
    "'a' occurs more than once"
    """
    known, counts = set(names), Counter(given)
    parts = [
        ([name for name in names if name not in counts], "is missing", "are missing"),
        ([name for name in counts if name not in known], "is not among them", "are not among them"),
        (
            [name for name, n in counts.items() if n > 1 and name in known],
            "occurs more than once",
            "occur more than once",
        ),
    ]
    return "; ".join(
        f"{_shown(found)} {one if len(found) == 1 else many}" for found, one, many in parts if found
    )


def _shown(names: Sequence[str]) -> str:
    """Return the first names as text, and the count of the others."""
    shown = ", ".join(printable(repr(name), MAX_NAME) for name in names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
