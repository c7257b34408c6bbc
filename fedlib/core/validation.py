"""Checks of parameters and data, on top of scikit-learn's.

This is the only module that imports scikit-learn's private names; ``tests/test_validation.py``
tests each of them. They declare the parameter constraints of the estimators, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import _param_validation
from sklearn.utils._param_validation import StrOptions, validate_parameter_constraints

from fedlib.core.array_types import Floats

__all__ = [
    "Interval",
    "StrOptions",
    "check_every_client_stays",
    "check_key",
    "check_option",
    "count_distinct",
    "validate_parameter_constraints",
]


KEY_BYTES = range(16, 65)
LARGEST_INTEGER = 2**53  # the integers up to it are exact as float64, and their sums fit an int64


class Interval(_param_validation.Interval):
    """The range of a parameter, as in scikit-learn, without numbers that no message can contain.

    An interval of integers without an upper end ends at 2**53. An interval of real numbers does not
    contain an integer beyond the largest float64.

    Examples
    --------
    >>> 10**20 in Interval(Integral, 1, None, closed="left")
    False
    >>> 10**400 in Interval(Real, 0, None, closed="left")
    False
    """

    def __init__(self, kind: type, left: Any, right: Any, *, closed: str):
        if kind is Integral and right is None:
            right, closed = LARGEST_INTEGER, "both" if closed == "left" else "right"
        super().__init__(kind, left, right, closed=closed)

    def __contains__(self, value: Any) -> bool:
        try:
            float(value)
        except OverflowError:
            return False
        return bool(super().__contains__(value))


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
