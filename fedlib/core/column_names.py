"""The names of a table's columns, by which methods find them.

A model, and the clients of one process, have columns in one order. `in_order` puts the columns of
another table into it. A table without names is taken in the order that it has.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from fedlib.core.wording import composed, printable

MAX_NAMES = 2**16  # in one message, see `fedlib.core.messages.FeatureNames`
MAX_SHOWN = 5  # names of columns in the text of an error


def feature_names(X: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, or an empty tuple if they have none.

    Integers become text, and accents are composed (`fedlib.core.wording.composed`). A DataFrame
    whose columns are 0, 1 and so on has no names.

    Raises
    ------
    ValueError
        When names are neither text nor integers, when two are equal, or when there are more than a
        message may contain.

    Examples
    --------
    >>> feature_names(pd.DataFrame({"age": [30], 2019: [70]}))
    ('age', '2019')
    >>> feature_names(pd.DataFrame([[30, 70]])), feature_names([[30, 70]])
    ((), ())
    """
    frame = as_table(X)
    if not isinstance(frame, pd.DataFrame):
        return ()
    given = frame.columns.tolist()
    if given == list(range(len(given))):
        return ()
    for name in given:
        if not isinstance(name, str | Integral) or isinstance(name, bool):
            raise ValueError(
                f"names of columns must be text, got {printable(repr(name), 80)}; set them, such as"
                " with X.columns = [...]"
            )
    names = tuple(composed(str(name)) for name in given)
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the names of columns must be unique, got repeated {listed(repeated)}")
    if len(names) > MAX_NAMES:
        raise ValueError(
            f"X must have at most {MAX_NAMES} columns with names, got {len(names)}; an array has no"
            " names"
        )
    return names


def in_order(X: Any, names: Sequence[str], what: str = "X") -> Any:
    """Return a table with its columns in the order of ``names``.

    A table without names is returned as it is, and so is every table if ``names`` is empty.

    Parameters
    ----------
    X : DataFrame or array-like (n_rows, n_columns)
    names : sequence of str
        The names of the columns, in their order.
    what : str
        A name for the table, for the text of the error.

    Raises
    ------
    ValueError
        When a column is missing or not among ``names``. The text contains only such columns.

    Examples
    --------
    >>> table = pd.DataFrame({"weight": [70], "age": [30]})
    >>> in_order(table, ("age", "weight")).columns.tolist()
    ['age', 'weight']
    >>> in_order(table, ("age", "height"))
    Traceback (most recent call last):
    ...
    ValueError: X must have the columns of the fit: 'height' is missing, and 'weight' is additional
    """
    X = as_table(X)
    given = feature_names(X)
    if not given or not names or given == tuple(names):
        return X
    return X.iloc[:, order(names, given, what)]


def by_client(parts: Any) -> dict[str, Any]:
    """Return the parts of the data by the names of their clients, which are 0, 1, … for a list.

    Parameters
    ----------
    parts : sequence, or mapping or Series with the names of the clients

    Raises
    ------
    ValueError
        When it is something else, such as one table.

    Examples
    --------
    >>> by_client({"north": [[1.0]], "south": [[2.0]]})
    {'north': [[1.0]], 'south': [[2.0]]}
    >>> by_client(np.zeros((20, 2)))
    Traceback (most recent call last):
    ...
    ValueError: parts must be a list with one table per client, got one table; for one client pass \
[X], for several a list such as [X[:10], X[10:]]
    """
    if isinstance(parts, pd.Series):
        parts = parts.to_dict()
    if isinstance(parts, Mapping):
        named = {str(name): part for name, part in parts.items()}
        if len(named) < len(parts):
            raise ValueError(f"the names of clients must be distinct, got {list(parts)}")
        return named
    is_array = isinstance(parts, np.ndarray) and parts.ndim == 2 and parts.dtype.kind != "O"
    if is_array or isinstance(parts, pd.DataFrame) or is_sparse(parts):
        half = parts.shape[0] // 2
        raise ValueError(
            "parts must be a list with one table per client, got one table; for one client pass"
            f" [X], for several a list such as [X[:{half}], X[{half}:]]"
        )
    if isinstance(parts, str) or not isinstance(parts, Sequence | np.ndarray):
        raise ValueError(
            "parts must be a list with one part per client, a mapping with their names, or a"
            f" transport; got a {type(parts).__name__}"
        )
    return {str(i): part for i, part in enumerate(parts)}


def in_common_order(parts: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parts with the columns of all tables in the order of the first one with names.

    Parameters
    ----------
    parts : mapping
        By the client: a table, or a tuple or list that begins with one. A part with names that the
        first one does not have stays as it is.
    names : sequence of str
        The columns that all tables must have, if they are known.

    Raises
    ------
    ValueError
        When a table has other columns than ``names``, or names that are refused.

    Examples
    --------
    >>> first, second = pd.DataFrame({"a": [1], "b": [2]}), pd.DataFrame({"b": [3], "a": [4]})
    >>> in_common_order({"0": first, "1": (second, [0])})["1"][0].columns.tolist()
    ['a', 'b']
    """
    common = tuple(names)
    ordered = {}
    for client, part in parts.items():
        several = isinstance(part, tuple | list) and len(part) > 0
        table, *rest = part if several else (part,)
        try:
            given = feature_names(table)
            common = common or given
            if given and given != common and (names or set(given) == set(common)):
                table = in_order(table, common)
                part = (table, *rest) if several else table
        except ValueError as error:
            raise ValueError(f"parts[{client}]: {error}") from error
        ordered[client] = part
    return ordered


def order(names: Sequence[str], given: Sequence[str], what: str = "X") -> list[int]:
    """Return the position among ``given`` of each of ``names``, as `in_order` needs it.

    Raises
    ------
    ValueError
        When the names are not the same.
    """
    names = [*map(composed, names)]  # a model of before may have other ones
    if set(names) != set(given):
        raise ValueError(f"{what} must have the columns of the fit: {difference(names, given)}")
    places = {name: j for j, name in enumerate(given)}
    return [places[name] for name in names]


def difference(names: Sequence[str], given: Sequence[str]) -> str:
    """Return how the names ``given`` differ from ``names``, or an empty text for the same order.

    Examples
    --------
    >>> difference(["a", "b"], ["b", "c", "d"])
    "'a' is missing, and 'c', 'd' are additional"
    >>> difference(["a", "b", "c"], ["b", "c", "a"])
    "the order differs: 'a' is column 3 instead of 1"
    """
    known, found = set(names), set(given)
    missing = [name for name in names if name not in found]
    further = [name for name in given if name not in known]
    parts = [
        f"{listed(which)} {'are' if len(which) > 1 else 'is'} {how}"
        for which, how in ((missing, "missing"), (further, "additional"))
        if which
    ]
    if not parts and tuple(names) != tuple(given):
        moved = next(i for i, name in enumerate(names) if name != given[i])
        place = list(given).index(names[moved])
        shown = listed([names[moved]])
        parts = [f"the order differs: {shown} is column {place + 1} instead of {moved + 1}"]
    return ", and ".join(parts)


def check_names(given: Sequence[str], names: Sequence[str]) -> None:
    """Raise ValueError when the columns of a run are not those of the model that it continues.

    Examples
    --------
    >>> check_names(("a", "b"), ("a",))
    Traceback (most recent call last):
    ...
    ValueError: the columns must be those of the model: 'b' is additional
    """
    if given and names and (problem := difference(names, given)):
        raise ValueError(f"the columns must be those of the model: {problem}")


def listed(names: Sequence[str]) -> str:
    """Return the first names as text, and how many more there are."""
    shown = ", ".join(printable(repr(name), 80) for name in names[:MAX_SHOWN])
    more = len(names) - MAX_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def check_axes(array: Any) -> None:
    """Raise ValueError if an array is no table.

    Examples
    --------
    >>> check_axes(np.zeros(3))
    Traceback (most recent call last):
    ...
    ValueError: X must be a table with 2 axes, rows and columns, got 1; X.reshape(-1, 1) makes one \
column of numbers, and pd.DataFrame(X) a table of records
    """
    if array.ndim != 2:
        raise ValueError(
            f"X must be a table with 2 axes, rows and columns, got {array.ndim}; X.reshape(-1, 1)"
            " makes one column of numbers, and pd.DataFrame(X) a table of records"
        )


def is_sparse(X: Any) -> bool:
    """Return whether ``X`` is a sparse matrix or array of SciPy.

    SciPy is not imported for it: where nothing has imported it, nothing has made a sparse table.

    Examples
    --------
    >>> is_sparse(np.eye(2))
    False
    """
    scipy_sparse = sys.modules.get("scipy.sparse")
    return scipy_sparse is not None and bool(scipy_sparse.issparse(X))


def as_table(X: Any) -> Any:
    """Return a table of another library as a DataFrame, and a masked array with NaN for gaps.

    NumPy drops a mask in silence and takes the values under it, so whatever makes an array of
    something that a user gave calls this function first.

    Examples
    --------
    >>> as_table(np.ma.masked_equal([1.0, -9.0], -9.0))
    array([ 1., nan])
    """
    if is_sparse(X):
        raise ValueError("X must be dense, got a sparse table; X.toarray() makes a dense one")
    if isinstance(X, np.ma.MaskedArray):
        if not np.ma.is_masked(X):
            return np.ma.getdata(X)
        values = np.array(X, dtype=float if X.dtype.kind == "f" else object)
        values[np.ma.getmaskarray(X)] = np.nan  # a gap in a column of any type
        return values
    if isinstance(X, list | tuple):
        return [as_table(row) for row in X] if any(map(_is_masked_row, X)) else X
    if not isinstance(X, pd.DataFrame) and hasattr(X, "to_pandas"):  # of Arrow or Polars
        return X.to_pandas()
    return X


def _is_masked_row(row: Any) -> bool:
    """Return whether an entry of a list is a masked array, and no masked value."""
    return isinstance(row, np.ma.MaskedArray) and row.ndim > 0
