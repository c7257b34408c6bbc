"""Rows drawn by their values, so that a sample does not depend on which client has a row.

Whether a row is drawn follows from its features, a seed and the index of the round. Equal rows of
one client are drawn independently of each other: they are numbered. One row more changes the
numbers of its equals, so a sample cannot be combined with noise. The stream of random numbers is
our own: with the same seed, XGBoost draws other rows.
"""

from __future__ import annotations

import numpy as np

from fedlib.core.array_types import Bools, Floats32, Words

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
