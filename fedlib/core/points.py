"""Points: tables of finite numbers, as the clustering methods take them, and clients with them.

Sums about a centre that a server chooses, from sums that do not depend on the centre.

The difference of a value and a centre is rounded, and the rounding is a function of the value that
the server chooses with the centre. The sum of many such functions shows single values in its last
bits. So a site adds up the differences from its own mean, and moves only the sums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client
from fedlib.core.column_names import as_table, check_axes, feature_names, listed
from fedlib.core.columns import (
    DATE,
    GAP_WORDS,
    MAX_EXACT,
    REPLACE,
    dates_refused,
    inexact,
    read_column,
)
from fedlib.core.targets import read_weights
from fedlib.core.wording import composed

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


def rounded_mean(X: Floats) -> Floats:
    """Return the mean (n_columns,) or () of rows, 0 without rows; that of equal rows is the row.

    Examples
    --------
    >>> float(np.full(6, 0.1).mean()), float(rounded_mean(np.full(6, 0.1)))
    (0.09999999999999999, 0.1)
    """
    if not len(X):
        return np.zeros(X.shape[1:])
    first = X.mean(axis=0)
    mean: Floats = first + (X - first).mean(axis=0)
    return mean


class Moments(NamedTuple):
    """Counts, means, and sums of the differences of the values of columns from these means.

    Attributes
    ----------
    counts, means : array (n_columns,)
    remainders, squares : array (n_columns,)
        Sums of the differences and of their squares. A mean is rounded, so that its remainder is
        hardly ever 0.
    """

    counts: Floats
    means: Floats
    remainders: Floats
    squares: Floats

    @classmethod
    def of(cls, columns: list[Floats]) -> Moments:
        """Return those of values, which may have other counts in each column.

        Examples
        --------
        >>> Moments.of([np.array([1.0, 3.0])]).about(np.array([0.0]))
        Moments(counts=array([2.]), means=array([0.]), remainders=array([4.]), squares=array([10.]))
        """
        means = np.array([rounded_mean(one) for one in columns], np.float64)
        shifted = [one - mean for one, mean in zip(columns, means, strict=True)]
        counts = np.array([len(one) for one in columns], np.float64)
        remainders = np.array([one.sum() for one in shifted], np.float64)
        squares = np.array([np.square(one).sum() for one in shifted], np.float64)
        return cls(counts, means, remainders, squares)

    def about(self, centres: Floats) -> Moments:
        """Return the sums of the differences from other centres (n_columns,)."""
        shifts = self.means - centres
        moved = self.remainders + self.counts * shifts
        squares = self.squares + shifts * (self.remainders + moved)
        return Moments(self.counts, centres, moved, np.maximum(squares, 0))

    def with_constants(self, counts: Floats, values: Floats) -> Moments:
        """Return those with more rows that have a constant each, (n_columns,), about the mean."""
        total = np.maximum(self.counts + counts, 1)
        own = self.about(self.means + counts * (values - self.means) / total)
        shifts = values - own.means
        remainders = own.remainders + counts * shifts
        return Moments(
            own.counts + counts, own.means, remainders, own.squares + counts * np.square(shifts)
        )


MAX_COORDINATE = 1e100  # so that no sum of squares over any number of clients overflows
MAX_WEIGHT = 2.0**40  # of all points of a client

MAX_FLOAT = float(np.finfo(np.float64).max)


def check_coordinates(name: str, X: Floats) -> Floats:
    """Return points; raise ValueError when a coordinate is beyond ±1e100."""
    largest = max(X.max(initial=0), -X.min(initial=0))  # abs(X) would be a copy
    if largest > MAX_COORDINATE:
        raise ValueError(f"{name} must lie within ±{MAX_COORDINATE:g}, got {largest:g}")
    return X


def with_weights(part: Any, are_taken: bool = True) -> tuple[Any, Any]:
    """Return the table of a part and its weights, which are None if it has none.

    A part with weights is a tuple ``(X, sample_weight)``. A tuple of two rows is a table.

    Raises
    ------
    ValueError
        When the part has weights, and the estimator takes none.

    Examples
    --------
    >>> with_weights(([[1.0], [2.0]], [1, 3])), with_weights(([1.0], [2.0]))
    (([[1.0], [2.0]], [1, 3]), (([1.0], [2.0]), None))
    """
    if isinstance(part, tuple) and len(part) == 2:
        first = as_table(part[0])
        if isinstance(first, pd.DataFrame) or np.ndim(first) == 2:
            if not are_taken:
                raise ValueError(
                    "a part must be X alone, because this estimator takes no weights of rows; got"
                    " a tuple like (X, sample_weight)"
                )
            return first, part[1]
    return part, None


def eval_sets_of(given: Any) -> dict[str, Sequence[Any]]:
    """Return the sets of rows for validation of a part by name.

    Each is ``(X, y)``, ``(X, y, sample_weight)`` or ``(X, y, sample_weight, base_margin)``. XGBoost
    takes a list of them.

    Raises
    ------
    ValueError
        When one is anything else.

    Examples
    --------
    >>> eval_sets_of(([[1.0]], [0])), eval_sets_of(None)
    ({'validation_0': ([[1.0]], [0])}, {})
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        sets = {str(name): one for name, one in given.items()}
    elif isinstance(given, list) and all(isinstance(one, tuple) for one in given):
        sets = {f"validation_{i}": one for i, one in enumerate(given)}
    else:
        sets = {"validation_0": given}
    for one in sets.values():
        if not isinstance(one, tuple | list) or len(one) not in (2, 3, 4):
            raise ValueError(
                "an eval_set must be (X, y), (X, y, sample_weight) or (X, y, sample_weight,"
                " base_margin), the fourth of (X, y, sample_weight, eval_set), or a mapping or a"
                " list of these; got a"
                f" {type(one).__name__}"
                + (f" of {len(one)}" if isinstance(one, tuple | list) else "")
            )
    return sets


def check_weights(weights: Any, n_rows: int) -> Floats:
    """Return the weights (n_rows,) of rows as float64.

    Raises
    ------
    ValueError
        When a weight is negative or not finite, when their number is not that of the rows, or when
        they add up to more than 2**40.

    Examples
    --------
    >>> check_weights([1, 0.5], 2)
    array([1. , 0.5])
    """
    numbers = read_weights(weights, n_rows=n_rows)
    if (total := numbers.sum()) > MAX_WEIGHT:
        raise ValueError(
            f"sample_weight must add up to at most 2**40, got {total:g}; divide all weights of all"
            " clients by one number"
        )
    return numbers


def check_points(X: ArrayLike, **checks: Any) -> Floats:
    """Return points as a C-ordered float64 array.

    Parameters
    ----------
    X : array-like (n_points, n_features)
        Finite numbers. Truth values are 0 and 1, and a text that contains a number is this number.
    **checks
        Additional arguments of `sklearn.utils.check_array`.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers. The text names the column, the row and
        the remedy.

    Examples
    --------
    >>> check_points([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]])
    """
    names = feature_names(X)
    X = as_numbers(X)
    try:
        points: Floats = checked_array(X, np.float64, **checks)
    except ValueError as error:
        if (problem := _not_finite(X, names, checks.get("input_name", ""))) is None:
            raise
        raise ValueError(problem) from error
    return points


def checked_array(X: Any, dtype: type[np.floating[Any]], **checks: Any) -> NDArray[Any]:
    """Return a table of numbers as scikit-learn's ``check_array(X, dtype=dtype, order="C")`` does.

    An array of numbers that passes is returned without scikit-learn, whose import would take most
    of the time until a site's first reply.

    Examples
    --------
    >>> checked_array(np.eye(2, dtype=int), np.float32)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if isinstance(X, pd.DataFrame):  # pandas would make two copies, one of them in another order
        frame, X = X, np.empty(X.shape, dtype)
        for j in range(X.shape[1]):
            X[:, j] = frame.iloc[:, j]
    if type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "biuf":
        array = np.asarray(X, dtype, order="C")
        enough = len(X) >= checks.get("ensure_min_samples", 1) and X.shape[1] > 0
        any_value = not checks.get("ensure_all_finite", True)
        if enough and (
            any_value or np.isfinite((array.min(initial=0), array.max(initial=0))).all()
        ):
            return array
    from sklearn.utils import check_array

    checked: NDArray[Any] = check_array(X, dtype=dtype, order="C", **checks)
    return checked


def as_numbers(X: ArrayLike) -> pd.DataFrame | NDArray[Any]:
    """Return a table with NumPy's own numbers in all columns, and NaN for gaps.

    Parameters
    ----------
    X : array-like (n_rows, n_features)
        Numbers of any type, truth values, and texts that contain numbers.

    Raises
    ------
    ValueError
        When it is no table, or a column contains anything else, or integers beyond ±2**53. The text
        names the column, the row and the remedy.

    Examples
    --------
    >>> as_numbers(pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": ["2", " 3.5"]}))
    array([[1. , 2. ],
           [nan, 3.5]])
    """
    X = as_table(X)
    if not isinstance(X, pd.DataFrame | np.ndarray):
        X = _array(X)
    check_axes(X)
    if not X.shape[1]:
        return X
    if _all_numbers(X):
        _check_exact(X)
        return X
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).infer_objects()
    labels = feature_names(X) or tuple(map(str, range(frame.shape[1])))
    return np.column_stack([_points(frame.iloc[:, j], one) for j, one in enumerate(labels)])


def _all_numbers(X: pd.DataFrame | NDArray[Any]) -> bool:
    """Return whether all columns are NumPy's own numbers or truth values."""
    dtypes = X.dtypes if isinstance(X, pd.DataFrame) else [X.dtype]
    return all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in dtypes)


def _check_exact(X: pd.DataFrame | NDArray[Any]) -> None:
    """Raise ValueError for an integer that is no float64 number."""
    columns = X.items() if isinstance(X, pd.DataFrame) else [(None, X)]
    for name, values in columns:
        array = np.asarray(values)
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size:
            if array.max() <= MAX_EXACT and array.min() >= -MAX_EXACT:
                continue
            place = np.unravel_index(
                np.argmax(np.abs(array.astype(float)) > MAX_EXACT), array.shape
            )
            label = str(name if name is not None else place[1])
            raise inexact(label, array[place], int(place[0]) + 1)


def _points(column: pd.Series, label: str) -> Floats:
    """Return a column of any type as numbers; there may be gaps."""
    if is_bool_dtype(column.dtype):
        return column.to_numpy(np.float64, na_value=np.nan)
    if isinstance(column.dtype, pd.CategoricalDtype) or not is_numeric_dtype(column.dtype):
        cells = column.astype(object)
        if all(isinstance(value, bool | np.bool_) for value in cells.dropna()):
            return cells.where(cells.notna(), np.nan).to_numpy(np.float64)
        column = pd.Series([_cell(value, label, i) for i, value in enumerate(cells, 1)])
    values = read_column(column, label, MAX_FLOAT)
    return np.full(len(column), np.nan) if values.dtype == object else values  # only gaps


def _cell(value: Any, label: str, row: int) -> Any:
    """Return the number in a text, None for a text that is a gap, and another value unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text or text.lower() in GAP_WORDS:
        return None
    if re.fullmatch(DATE, text):
        raise dates_refused(label, f"{text[:40]!r} in row {row}")
    if re.fullmatch(r"[-+]?0[0-9].*", text):
        raise ValueError(
            f"column {label!r} contains {text[:40]!r} in row {row}, whose first zero a number does"
            " not have; write numbers without it, or leave codes out"
        )
    try:
        if re.fullmatch(r"[-+]?[0-9]+", text):
            return int(text)  # so that large ones are refused, and not rounded
        if "_" not in text and text.isascii():  # which `float` accepts
            return float(text)
    except ValueError:
        pass
    raise ValueError(
        f"column {label!r} must contain numbers, got {text[:40]!r} in row {row};"
        " FederatedPipeline(..., encode='one_hot') encodes text"
    )


def _not_finite(X: Any, names: tuple[str, ...], input_name: str) -> str | None:
    """Return the description of the first gap or infinity in a table; None if there is none."""
    if getattr(X, "ndim", 0) != 2 or not _all_numbers(X):
        return None
    values = X.to_numpy(np.float64) if isinstance(X, pd.DataFrame) else X
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    j = int(np.argmax(~np.isfinite(values).all(axis=0)))
    row = int(np.argmax(~np.isfinite(values[:, j])))
    label, value = (names[j] if names else str(j)), values[row, j]
    start = f"Input {input_name}".rstrip()
    if np.isnan(value):
        return (
            f"{start} contains NaN: column {label!r} must contain finite numbers, got no value in"
            f" row {row + 1}; FederatedPipeline(..., impute='mean') fills gaps"
        )
    return (
        f"{start} contains infinity: column {label!r} must contain finite numbers, got {value} in"
        f" row {row + 1}; {REPLACE}"
    )


def _array(X: ArrayLike) -> NDArray[Any]:
    """Return an array-like as an array of numbers or, if it contains anything else, of objects."""
    try:
        array = np.asarray(X)
    except ValueError:  # rows of different lengths
        return np.asarray(X, dtype=object)
    return array if array.dtype.kind in "biufcO" else np.asarray(X, dtype=object)


class PointsClient(Client):
    """A client that holds points.

    Parameters
    ----------
    X : array-like (n_points, n_features)
        Finite numbers. There may be no rows, but there must be columns. If one client's columns
        have names (a DataFrame's), all clients with names must have the same in the same order.

    Attributes
    ----------
    limited : bool
        Whether coordinates must lie within ±1e100, so that no sum of squares overflows.
    takes_weights : bool
        Whether ``X`` may be ``(X, sample_weight)``: points with weights, which are finite and at
        least 0, in sum at most 2**40. A point of weight 0 gets a label, but has no influence.
    weight : array (n_points,) of float64, or None
        The weights; None if there are none.

    Raises
    ------
    ValueError
        When the points are not a table of finite numbers, or beyond the limit; when a weight is
        not valid, there is not one per point, or the client takes none.
    """

    limited: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False
    weight: Floats | None = None

    def __init__(self, X: ArrayLike | tuple[Any, Any]):
        X, weight = with_weights(X, self.takes_weights)
        self.features = feature_names(X)
        self.X = check_points(X, ensure_min_samples=0)
        if self.limited:
            check_coordinates("the points", self.X)
        if weight is not None:
            self.weight = check_weights(weight, len(self.X))
            counted = self.weight > 0
            self._counted = self.X, self.weight
            if not counted.all():
                self._counted = self.X[counted], self.weight[counted]

    @property
    def weighted_points(self) -> tuple[Floats, Floats | None]:
        """The points with a weight above 0, and their weights; None if there are none."""
        return (self.X, None) if self.weight is None else self._counted

    def counted_points(self) -> tuple[Floats, Floats]:
        """Return the points with a weight above 0, and their weights; without weights all are 1."""
        X, weights = self.weighted_points
        return X, np.ones(len(X)) if weights is None else weights

    def groups_of_all(self, groups: Ints) -> Ints:
        """Return the groups of all points from those of `weighted_points`, -1 for the others."""
        if self.weight is None:
            return groups
        of_all = np.full(len(self.X), -1, np.int64)
        of_all[self.weight > 0] = groups
        return of_all
