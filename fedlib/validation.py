"""Checks of parameters and data, on top of scikit-learn's.

This is the only module that imports scikit-learn's private names; ``tests/test_validation.py``
tests each of them. They declare the parameter constraints of the estimators, as in scikit-learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import _get_feature_names

__all__ = [
    "Interval",
    "InvalidParameterError",
    "StrOptions",
    "check_option",
    "check_points",
    "feature_names",
]


def check_points(X: ArrayLike, **checks: Any) -> NDArray[np.float64]:
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
        When the points are not a table of finite numbers.

    Examples
    --------
    >>> check_points([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]])
    """
    try:
        points: NDArray[np.float64] = check_array(X, dtype=np.float64, order="C", **checks)
    except TypeError as error:  # complex numbers in a list
        raise ValueError(str(error)) from error
    return points


def feature_names(X: ArrayLike) -> tuple[str, ...]:
    """Return the column names of a DataFrame, or an empty tuple for anything else.

    Examples
    --------
    >>> import pandas as pd
    >>> feature_names(pd.DataFrame({"age": [30], "weight": [70]}))
    ('age', 'weight')
    >>> feature_names([[30, 70]])
    ()
    """
    names = _get_feature_names(X)
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
