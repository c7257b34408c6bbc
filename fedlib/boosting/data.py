"""Checks of rows, columns, targets, weights and base margins, and samples of rows.

Rows are drawn by their values, so that a sample does not depend on which client has a row.

Whether a row is drawn follows from its features, a seed and the index of the round. Equal rows of
one client are drawn independently of each other: they are numbered. One row more changes the
numbers of its equals, so a sample cannot be combined with noise. The stream of random numbers is
our own: with the same seed, XGBoost draws other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedlib.boosting.cuts import MAX_VALUE
from fedlib.boosting.messages import MAX_WEIGHT
from fedlib.boosting.objectives import OBJECTIVES
from fedlib.core.aggregation import Disagreement, agree
from fedlib.core.array_types import Bools, Floats32, Words
from fedlib.core.client import Client
from fedlib.core.column_names import as_table, feature_names
from fedlib.core.columns import REPLACE
from fedlib.core.points import as_numbers, checked_array
from fedlib.core.targets import read_targets, read_weights

DIGITS = 8  # binary ones, that the mean row of most clients must have in units of gradients
NO_MARGINS = (
    "base_margin must not be given with secure=True or epsilon, because the margins of rows are not"
    " clipped, so that one row could change a sum by any amount; leave it out"
)


def check_rows(X: Any, **checks: Any) -> Floats32:
    """Return rows (n_rows, n_features) as a C-ordered float32 array; NaN is a missing value.

    Parameters
    ----------
    X : array-like (n_rows, n_features)
        Numbers within ±2**127, or gaps; see `fedlib.core.points.as_numbers`.
    **checks
        Additional arguments of `sklearn.utils.check_array`.

    Raises
    ------
    ValueError
        When the rows are not a table of such numbers. The text names the column and the row.
    """
    names, given = feature_names(X), as_numbers(X)
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        X = checked_array(given, np.float32, ensure_all_finite=False, **checks)
    if X.size and np.nanmax(np.abs(X), initial=0) > MAX_VALUE:
        row, j = np.argwhere(np.abs(X) > MAX_VALUE)[0]
        raise ValueError(
            f"column {(names[j] if names else str(j))!r} must contain numbers within ±2**127 or"
            f" gaps, got {pd.DataFrame(given).iloc[row, j]:g} in row {row + 1}; {REPLACE}"
        )
    return X


def check_targets(y: Any, n_rows: int) -> Floats32:
    """Return the numbers (n_rows,) that a regression learns as float32.

    Two columns are the earliest and the latest times of rows (n_rows, 2).

    Raises
    ------
    ValueError
        When they are not finite numbers within ±2**40, or their number is not that of the rows. A
        latest time may be infinite.

    Examples
    --------
    >>> check_targets([[1.0, 2.0], [3.0, np.inf]], 2).tolist()
    [[1.0, 2.0], [3.0, inf]]
    """
    table = np.asarray(as_table(y))  # a masked value is NaN
    if table.ndim == 2 and table.shape[1] == 2:
        low = check_targets(table[:, 0], n_rows)
        return np.column_stack([low, _latest_times(table[:, 1], n_rows)])
    numbers = read_targets(y, n_rows=n_rows)
    outside = np.abs(numbers) > MAX_WEIGHT
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"y must be finite and within ±2**40; got {numbers[row]:g} in row {row + 1}"
        )
    return numbers.astype(np.float32)


def _latest_times(column: NDArray[Any], n_rows: int) -> Floats32:
    """Return the latest times of rows, which may be infinite, as float32."""
    try:
        is_infinite = column.astype(np.float64) == np.inf
    except (TypeError, ValueError):  # of texts or gaps: the reader names the first one
        is_infinite = np.zeros(len(column), bool)
    try:
        finite = check_targets(np.where(is_infinite, 0, column), n_rows)
    except ValueError as error:
        raise ValueError(
            f"the second column of y, the latest times: {error}; a time that is only known to be"
            " later than the first column has the latest time inf"
        ) from error
    return np.where(is_infinite, np.float32(np.inf), finite)


def check_allowed(y: Floats32, objective: str) -> None:
    """Raise ValueError when the objective does not allow a target.

    Examples
    --------
    >>> check_allowed(np.array([3.0, -1.0]), "count:poisson")
    Traceback (most recent call last):
    ...
    ValueError: y must be at least 0 for objective='count:poisson'; got -1.0
    >>> check_allowed(np.array([[3.0, np.inf], [2.0, 1.0]]), "survival:aft")
    Traceback (most recent call last):
    ...
    ValueError: the lower limit of y must be at most the upper one; got 2.0 and 1.0: swap them
    """
    chosen, n_columns = OBJECTIVES[objective], 1 if y.ndim == 1 else y.shape[1]
    if n_columns != chosen.n_columns:
        wanted = (
            "2 columns, the earliest and the latest time of each row, which may be infinite (in a"
            " schema, of the roles 'target' and 'target_upper')"
        )
        raise ValueError(
            f"y must have {wanted if chosen.n_columns == 2 else 'one column'} for"
            f" objective={objective!r}; got {n_columns}"
        )
    low, high = chosen.targets
    if (outside := (y < low) | (y > high)).any():
        raise ValueError(
            f"y must be {chosen.valid_targets} for objective={objective!r}; got {y[outside][0]}"
        )
    if n_columns == 1:
        return
    if (swapped := y[:, 0] > y[:, 1]).any():
        first, last = y[swapped][0]
        raise ValueError(
            f"the lower limit of y must be at most the upper one; got {first} and {last}: swap them"
        )
    if (y[:, 1] == 0).any():
        raise ValueError(
            "the upper limit of y must be above 0, because the logarithm of a time is predicted;"
            " got 0: use a shorter unit of time"
        )


def check_size(max_target: float, y: Floats32) -> None:
    """Raise ValueError when a target is beyond ±``max_target``."""
    if y.ndim > 1:  # times, of which no sum depends on the size
        return
    largest = float(np.abs(y).max(initial=0))
    if largest > max_target:
        raise ValueError(f"y must be within ±max_target={max_target:g}; got {largest:g} in size")


def check_weights(weights: Any, n_rows: int) -> Floats32:
    """Return the weights (n_rows,) of rows as float32, all 1 if there are none.

    Raises
    ------
    ValueError
        When a weight is negative or not finite, when the sum exceeds 2**40, or when their number is
        not the count of rows.
    """
    if weights is None:
        return np.ones(n_rows, np.float32)
    numbers = read_weights(weights, n_rows=n_rows)
    rounded = np.minimum(numbers, 2 * MAX_WEIGHT).astype(np.float32)
    if rounded.sum(dtype=np.float64) > MAX_WEIGHT:
        raise ValueError(f"sample_weight must add up to at most 2**40; got {numbers.sum():g}")
    return rounded


def check_margins(margins: Any, n_rows: int, n_columns: int | None = None) -> Floats32:
    """Return the margins of rows before the first tree (n_rows, n_columns) as float32.

    Parameters
    ----------
    margins : array-like (n_rows,) or (n_rows, n_columns)
        Finite numbers within ±2**40; several columns for several classes.
    n_rows : int
    n_columns : int, optional
        The count of columns, if it is known.

    Raises
    ------
    ValueError
        When they are anything else.

    Examples
    --------
    >>> check_margins([0.5, -1], 2).tolist()
    [[0.5], [-1.0]]
    """
    given = np.asarray(as_table(margins))
    table = given[:, np.newaxis] if given.ndim == 1 else given
    if table.ndim != 2 or len(table) != n_rows or n_columns not in (None, table.shape[1]):
        columns = "one column per class" if n_columns is None else f"{n_columns} column(s)"
        raise ValueError(
            f"base_margin must have {n_rows} rows, and {columns} if there are several outputs; got"
            f" the shape {given.shape}"
        )
    columns_of = [read_targets(one, "base_margin") for one in table.T]
    numbers = np.column_stack([*columns_of, np.empty((n_rows, 0))])
    if (largest := np.abs(numbers).max(initial=0)) > MAX_WEIGHT:
        raise ValueError(f"base_margin must be within ±2**40; got {largest:g} in size")
    return numbers.astype(np.float32)


def agree_on_margins(described: Mapping[str, Any]) -> None:
    """Raise Disagreement when the rows of some clients have base margins, and others do not.

    Parameters
    ----------
    described : mapping of str to object
        One object per client with ``has_margins``: replies, or clients.

    Examples
    --------
    >>> from types import SimpleNamespace as Reply
    >>> agree_on_margins({"A": Reply(has_margins=True), "B": Reply(has_margins=False)})
    Traceback (most recent call last):
    ...
    fedlib.core.aggregation.Disagreement: clients disagree on base_margin, which all or none must \
have: given at 'A'; not given at 'B'
    """
    given = {name: "given" if one.has_margins else "not given" for name, one in described.items()}
    if given:
        agree("base_margin, which all or none must have", given)


def check_columns(n_columns: Mapping[str, int], n_outputs: int) -> None:
    """Raise ValueError when base margins do not have one column per output; 0 is without any."""
    for name, n in n_columns.items():
        if n not in (0, n_outputs):
            raise ValueError(
                f"base_margin must have {n_outputs} column(s), one per class or level if there are"
                f" several;"
                f" got {n} at client {name!r}"
            )


def check_precision(sizes: Mapping[str, float], weights: Mapping[str, float], bits: int) -> None:
    """Raise Disagreement when one client's gradients are so large that most others lose theirs.

    Parameters
    ----------
    sizes, weights : mapping of str to float
        The size of each client's sums of gradients, and the weight of its rows.
    bits : int
        Gradients are multiples of 2**-bits, which follows from all sizes.

    Examples
    --------
    >>> check_precision({"A": 5.0, "B": 2.0**80, "C": 3.0}, {"A": 5.0, "B": 1.0, "C": 3.0}, -28)
    Traceback (most recent call last):
    ...
    fedlib.core.aggregation.Disagreement: the gradients of client 'B' are so large, 1.2e+24, that \
those of most others would be rounded to nothing
    """
    least = 2.0 ** (DIGITS - bits)
    lost = [name for name, size in sizes.items() if size < least * weights[name]]
    if 2 * len(lost) > len([name for name in sizes if weights[name]]):
        largest = max(sizes, key=lambda name: sizes[name])
        raise Disagreement(
            f"the gradients of client {largest!r} are so large, {sizes[largest]:.2g}, that those of"
            " most others would be rounded to nothing",
            [largest],
        )


def row_limit(estimator: Any, role: str) -> float:
    """Return the largest weight or target of a row, by the parameter, the schema, or else 1.

    Without masks, and with noise, for which gradients are clipped, it is so large that it has no
    effect.

    Parameters
    ----------
    estimator : Boosted
        With ``max_weight`` or ``max_target``.
    role : {"weight", "target"}

    Raises
    ------
    ValueError
        When the parameter is given without masks, or with noise.
    """
    given = getattr(estimator, f"max_{role}")
    if not estimator.secure or estimator.epsilon is not None:
        if given is not None:
            raise ValueError(
                f"max_{role} needs secure=True without epsilon; got max_{role}={given!r}"
            )
        return MAX_WEIGHT
    columns = () if estimator.schema is None else estimator.schema.columns
    limits = [one.limits for one in columns if one.role == role and one.limits is not None]
    if given is None:
        given = max((abs(end) for ends in limits for end in ends), default=1.0)
    return min(float(np.float32(given)), MAX_WEIGHT)


def check_largest_weight(clients: Mapping[str, Client], largest: float) -> None:
    """Raise ValueError, with the client's name, when a row has a weight above ``largest``."""
    for name, client in clients.items():
        if (found := client.weight.max(initial=0)) > largest:
            raise ValueError(
                f"parts[{name}]: sample_weight must be at most max_weight={largest:g}; got"
                f" {found:g}"
            )


def check_labels(clients: Mapping[str, Client], check: Callable[[Any], object]) -> None:
    """Raise ValueError, with the client's name, when the labels of one do not pass a check.

    Those of rows without a weight are not checked.
    """
    for name, client in clients.items():
        y = getattr(client, "y", None)
        if y is not None and not client.passive:
            try:
                check(y[client.weight > 0])
            except ValueError as error:
                raise ValueError(f"parts[{name}]: {error}") from error


MASK = 2**64 - 1


def row_keys(X: Floats32) -> Words:
    """Return one number per row of ``X`` (n_rows, n_features), different for different rows.

    Examples
    --------
    >>> keys = row_keys(np.array([[1, 2], [2, 1], [1, 2]], np.float32))
    >>> len(np.unique(keys))  # equal rows are numbered
    3
    """
    keys = np.zeros(len(X), np.uint64)
    for column in X.T:
        bits = np.where(np.isnan(column), np.float32(np.nan), column + np.float32(0))
        keys = _mix(keys ^ bits.astype(np.float32).view(np.uint32).astype(np.uint64))
    order = np.argsort(keys, kind="stable")
    new = np.append(True, keys[order][1:] != keys[order][:-1])[: len(X)]
    first = np.maximum.accumulate(np.where(new, np.arange(len(X)), 0))
    copy = np.empty(len(X), np.uint64)
    copy[order] = np.arange(len(X)) - first
    return _mix(keys ^ _mix(copy))


def drawn_rows(keys: Words, fraction: float, seed: int, n_round: int) -> Bools:
    """Return which rows a round draws; each with the probability ``fraction``.

    Examples
    --------
    >>> keys = row_keys(np.arange(1000, dtype=np.float32)[:, None])
    >>> bool(450 < drawn_rows(keys, 0.5, seed=1, n_round=0).sum() < 550)
    True
    """
    stream = _mix(np.array([(seed * 2**20 + n_round) & MASK], np.uint64))
    uniform = _mix(keys ^ stream) >> np.uint64(11)
    return uniform.astype(np.float64) * 2.0**-53 < fraction


def _mix(keys: Words) -> Words:
    """Return well-mixed bits: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
