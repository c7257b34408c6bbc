"""Keys: integers in the order of floating point numbers, and counts of keys in intervals.

Halving an interval of keys always ends with a single number after 64 steps, no matter how the
values are distributed. Halving an interval of values does not.
"""

from __future__ import annotations

import numpy as np

from fedlib.core.array_types import Floats, Ints, Words

SIGN = np.uint64(2**63)
HIGHEST = 2**64 - 1


def to_keys(values: Floats) -> Words:
    """Return a key per value; keys have the order of the values.

    Parameters
    ----------
    values : array of float64
        Finite numbers. Both zeros have the same key.

    Examples
    --------
    >>> keys = to_keys(np.array([-2.0, -0.0, 0.0, 1e-300, 3.0]))
    >>> (np.diff(keys.astype(object)) > 0).tolist()
    [True, False, True, True]
    >>> [from_key(int(key)) for key in keys]
    [-2.0, 0.0, 0.0, 1e-300, 3.0]
    """
    bits = (np.ascontiguousarray(values, np.float64) + 0.0).view(np.uint64)
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def from_key(key: int) -> float:
    """Return the number that has a key, in 0..2**64 - 1."""
    bits = np.uint64(key)
    bits = bits ^ SIGN if bits & SIGN else ~bits
    return float(bits.view(np.float64))


def count_keys(keys: Words, low: int, high: int, n_bins: int) -> Ints:
    """Return the number of keys in each of ``n_bins`` parts of an interval.

    Parameters
    ----------
    keys : array (n_values,) of uint64
    low, high : int
        The ends of the interval; both belong to it.
    n_bins : int
        The number of parts, at least 1. Parts beyond ``high`` are empty.

    Examples
    --------
    >>> count_keys(np.array([3, 4, 7, 9, 20], np.uint64), low=4, high=9, n_bins=3)
    array([1, 1, 1])
    """
    inside = keys[(keys >= np.uint64(low)) & (keys <= np.uint64(high))]
    return np.bincount(_parts(inside, low, high, n_bins), minlength=n_bins)


def bins_of_keys(keys: Words, low: int, high: int, n_bins: int) -> Ints:
    """Return the part of the interval in which each key is, -1 if in none; see `count_keys`."""
    inside = (keys >= np.uint64(low)) & (keys <= np.uint64(high))
    bins = np.full(len(keys), -1, np.int64)
    bins[inside] = _parts(keys[inside], low, high, n_bins)
    return bins


def _parts(inside: Words, low: int, high: int, n_bins: int) -> Ints:
    """Return the part in which each key of an interval is."""
    if n_bins == 1:  # the width of all keys together does not fit into 64 bits
        return np.zeros(len(inside), np.int64)
    return ((inside - np.uint64(low)) // np.uint64(_width(low, high, n_bins))).astype(np.int64)


def sub_interval(low: int, high: int, n_bins: int, i: int) -> tuple[int, int]:
    """Return the ends of part ``i`` of an interval.

    Examples
    --------
    >>> sub_interval(4, 9, 3, 1)
    (6, 7)
    """
    width = _width(low, high, n_bins)
    return low + i * width, min(high, low + (i + 1) * width - 1)


def _width(low: int, high: int, n_bins: int) -> int:
    return (high - low) // n_bins + 1
