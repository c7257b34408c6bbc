"""Sums about a centre that a server chooses, from sums that do not depend on the centre.

The difference of a value and a centre is rounded, and the rounding is a function of the value that
the server chooses with the centre. The sum of many such functions shows single values in its last
bits. So a site adds up the differences from its own mean, and moves only the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedlib.core.array_types import Floats


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
