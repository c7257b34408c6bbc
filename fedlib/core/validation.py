"""Checks of parameters and data, on top of scikit-learn's.

This is the only module that imports scikit-learn's private names; ``tests/test_validation.py``
tests each of them. They declare the parameter constraints of the estimators, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import check_array
from sklearn.utils._param_validation import (
    Interval,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.validation import _get_feature_names

from fedlib.core.array_types import Floats

__all__ = [
    "Interval",
    "StrOptions",
    "check_every_client_stays",
    "check_ids",
    "check_key",
    "check_option",
    "check_points",
    "count_distinct",
    "feature_names",
    "validate_parameter_constraints",
]


KEY_BYTES = range(16, 65)
MAX_NAMES = 2**16  # in one message, see `fedlib.core.messages.FeatureNames`


def plain_value(value: Any, constraints: Sequence[Any]) -> Any:
    """Return a valid parameter as a plain Python value: a message takes no scalars of NumPy.

    Numbers become those of the type that the constraints name, and other values stay as they are.

    Parameters
    ----------
    value : object
    constraints : sequence
        The parameter's entry in ``_parameter_constraints`` of its estimator.

    Examples
    --------
    >>> plain_value(np.int64(3), [Interval(Integral, 1, None, closed="left")])
    3
    >>> plain_value(1, [Interval(Real, 0, None, closed="left"), None])
    1.0
    >>> plain_value(np.str_("full"), [StrOptions({"full", "diag"})])
    'full'
    """
    if isinstance(value, str):
        return str(value)
    if "boolean" in constraints and isinstance(value, bool | np.bool_):
        return bool(value)
    types = [one.type for one in constraints if isinstance(one, Interval)]
    if Integral in types and isinstance(value, Integral):
        return int(value)
    if types and isinstance(value, Real) and not set(types) <= {Integral}:
        return float(value)
    return value


def check_key(key: object) -> bytes:
    """Return a key that clients share to compare identifiers.

    Raises
    ------
    ValueError
        When it does not have 16 to 64 bytes. The text does not contain it.

    Examples
    --------
    >>> check_key("secret")
    Traceback (most recent call last):
    ...
    ValueError: key must be 16 to 64 secret bytes when ids are given, got str
    """
    if not isinstance(key, bytes) or len(key) not in KEY_BYTES:
        received = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ValueError(f"key must be 16 to 64 secret bytes when ids are given, got {received}")
    return key


def check_ids(ids: Sequence[Any], n_rows: int) -> list[str]:
    """Return the identifiers of rows as text, whole numbers without a decimal point.

    Raises
    ------
    ValueError
        When there is not one identifier per row.

    Examples
    --------
    >>> check_ids([1, 2.0, "3"], 3)
    ['1', '2', '3']
    """
    ids = list(ids)
    if len(ids) != n_rows:
        raise ValueError(f"ids must contain one identifier per row, {n_rows}; got {len(ids)}")
    return [str(int(i) if isinstance(i, float) and i.is_integer() else i) for i in ids]


def check_points(X: ArrayLike, **checks: Any) -> Floats:
    """Return points as a C-ordered float64 array.

    Parameters
    ----------
    X : array-like (n_points, n_features)
        Finite numbers.
    **checks
        Additional arguments of `sklearn.utils.check_array`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers. If it is due to text or a gap, the
        message names the column, the row and the remedy.

    Examples
    --------
    >>> check_points([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]])
    """
    try:
        points: Floats = check_array(X, dtype=np.float64, order="C", **checks)
    except TypeError as error:  # complex numbers in a list
        raise ValueError(str(error)) from error
    except ValueError as error:
        problem = _text_or_gap(X, f"Input {checks.get('input_name', '')}".rstrip())
        if problem is None:
            raise
        raise ValueError(problem) from error
    return points


def _text_or_gap(X: Any, input_name: str) -> str | None:
    """Return a description of the first text or gap in a table; None if there is none."""
    try:
        frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X, dtype=object))
    except (TypeError, ValueError):
        return None
    for j, name in enumerate(feature_names(X) or frame.columns.astype(str)):
        column = frame.iloc[:, j].astype(object)
        gaps = column.isna().to_numpy()
        texts = np.array([isinstance(value, str) and not _is_number(value) for value in column])
        if texts.any():
            row = int(np.argmax(texts))
            return (
                f"column {name!r} must contain numbers, got {column.iloc[row][:40]!r} in row"
                f" {row + 1}; FederatedPipeline(..., encode='one_hot') encodes text"
            )
        if gaps.any():
            return (
                f"{input_name} contains NaN: column {name!r} must contain finite numbers, got no"
                f" value in row {int(np.argmax(gaps)) + 1}; FederatedPipeline(..., impute='mean')"
                " fills gaps"
            )
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def count_distinct(X: Floats, most: int) -> int:
    """Return the number of distinct rows of ``X`` (n, d), but at most ``most``.

    It reads no more rows than it needs, which are usually a few.

    Examples
    --------
    >>> X = np.array([[1.0], [2.0], [1.0]])
    >>> count_distinct(X, 5), count_distinct(X, 1)
    (2, 1)
    """
    found: set[tuple[float, ...]] = set()
    for row in X:
        found.add(tuple(row.tolist()))
        if len(found) >= most:
            break
    return len(found)


def feature_names(X: ArrayLike) -> tuple[str, ...]:
    """Return the column names of a DataFrame, or an empty tuple for anything else.

    Raises
    ------
    ValueError
        When there are more names than a message may contain.

    Examples
    --------
    >>> import pandas as pd
    >>> feature_names(pd.DataFrame({"age": [30], "weight": [70]}))
    ('age', 'weight')
    >>> feature_names([[30, 70]])
    ()
    """
    names = _get_feature_names(X)
    if names is not None and len(names) > MAX_NAMES:
        raise ValueError(
            f"X must have at most {MAX_NAMES} columns with names, got {len(names)}; an array has no"
            " names"
        )
    return () if names is None else tuple(map(str, names))


def check_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError when the value of the parameter ``name`` is not among the allowed ones.

    Examples
    --------
    >>> check_option("border", "far", ("nearest", "absorb"))
    Traceback (most recent call last):
    ...
    ValueError: border must be one of 'nearest', 'absorb'; got 'far'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def check_every_client_stays(
    n_clients: int, passive: Collection[int], min_clients: int | None
) -> None:
    """Raise ValueError when the arguments of ``fit`` let a client be passive or leave the run.

    Call it in the ``fit`` of a protocol that needs every client.

    Examples
    --------
    >>> check_every_client_stays(3, passive=(), min_clients=2)
    Traceback (most recent call last):
    ...
    ValueError: min_clients must be 3, the number of clients, since every client is needed; got 2
    """
    if passive:
        raise ValueError(f"passive must be empty, since every client is needed; got {passive}")
    if min_clients not in (None, n_clients):
        raise ValueError(
            f"min_clients must be {n_clients}, the number of clients, since every client is"
            f" needed; got {min_clients}"
        )
