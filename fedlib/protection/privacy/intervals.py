"""Intervals of results that follow from noisy sums, by the known distribution of the noise.

A noisy sum is t + e: the true sum and noise whose distribution is public. As the noise is
symmetric, to somebody who knows nothing else the true sum is distributed like the noisy one plus
another draw of the noise. So the values of a result for many such draws are the interval in which
the true result lies. Nothing is cut before a result is computed: a sum of values that were cut at 0
is too large. A result that cannot be, such as an R² above 1, is unknown, and so is one that divides
by what may be 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlib.core.array_types import Bools, Floats

LEVEL = 0.99  # the probability with which an interval contains the true result
N_DRAWS, LEAST_DRAWS = 2000, 100
MOST_VALUES = 2**22  # of all draws, which take half a second
AT_ONCE = 2**20  # values in memory


@dataclass(frozen=True)
class Noise:
    """The noise in each value of a sum: independent draws of each client.

    Attributes
    ----------
    scale : float
        That of one client: the standard deviation of Gaussian noise, or the mean absolute value of
        Laplace noise.
    n_clients : int
    is_gaussian : bool

    Examples
    --------
    >>> noise = Noise(2.0, n_clients=4, is_gaussian=True)
    >>> noise.deviation
    4.0
    """

    scale: float
    n_clients: int
    is_gaussian: bool

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in a sum."""
        return self.scale * float(np.sqrt(self.n_clients * (1 if self.is_gaussian else 2)))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Return noise of sums. A sum of Laplace noise is a difference of two gamma variables."""
        if self.is_gaussian:
            return rng.normal(0.0, self.deviation, shape)
        positive, negative = (rng.gamma(self.n_clients, self.scale, shape) for _ in range(2))
        return positive - negative


def ratio(numerator: Any, denominator: Any) -> Floats:
    """Return quotients, NaN where the denominator is not positive.

    Examples
    --------
    >>> ratio(np.array([1.0, 1.0]), np.array([2.0, -2.0]))
    array([0.5, nan])
    """
    some = np.asarray(denominator) > 0
    return np.where(some, numerator / np.where(some, denominator, 1), np.nan)


def hides(names: Sequence[str]) -> str:
    """Return a sentence about results that the noise hides."""
    return (
        f"the noise is too large for the rows: {', '.join(names)}"
        f" {'is' if len(names) == 1 else 'are'} NaN; more rows, fewer bins or a larger epsilon help"
    )


@dataclass(frozen=True)
class Estimates:
    """Results from sums, and where the true ones lie.

    Attributes
    ----------
    values : array (n_results,)
        NaN for a result that the noise makes unknown.
    intervals : array (n_results, 2)
        The lower and the upper end. Each interval contains the true result with a probability of
        99%; the ends of a sum without noise are the result. For an unknown one whose denominator
        may be 0, they are those of all that is possible.
    hidden : array (n_results,) of bool
        Whether the noise makes the result unknown.
    """

    values: Floats
    intervals: Floats
    hidden: Bools


def estimate(
    results: Callable[[Floats], Floats], sums: Floats, noise: Noise | None, possible: Floats
) -> Estimates:
    """Return results of sums with noise, and their intervals.

    Parameters
    ----------
    results : callable
        Returns results (n, n_results) of sums (n, n_sums), NaN where a denominator is not positive.
    sums : array (n_sums,)
        The sums of all clients.
    noise : Noise or None
        That in each sum, or None if there is none.
    possible : array (n_results, 2)
        The smallest and the largest possible value of each result.

    Examples
    --------
    A mean of 100 values between 0 and 1, from their sum and their count. With little noise the
    interval contains it; a mean above 1, or of a count that may be 0, is unknown.

    >>> mean = lambda sums: ratio(sums[:, :1], sums[:, 1:])
    >>> possible = np.array([[0.0, 1.0]])
    >>> for sums, scale in (([50.0, 100.0], 2.0), ([101.0, 100.0], 2.0), ([50.0, 100.0], 60.0)):
    ...     noise = Noise(scale, n_clients=1, is_gaussian=True)
    ...     found = estimate(mean, np.array(sums), noise, possible)
    ...     print(found.values, found.intervals.round(1).tolist())
    [0.5] [[0.4, 0.6]]
    [nan] [[0.9, 1.0]]
    [nan] [[0.0, 1.0]]
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = results(sums[np.newaxis])[0]
        if noise is None:
            return Estimates(values, np.column_stack([values, values]), np.zeros(len(values), bool))
        rng = np.random.default_rng(0)  # equal sums have equal intervals
        n_sums = max(len(sums), 1)
        n_draws = int(np.clip(MOST_VALUES // n_sums, LEAST_DRAWS, N_DRAWS))
        size, drawn = max(1, AT_ONCE // n_sums), []
        for start in range(0, n_draws, size):
            shape = (min(size, n_draws - start), len(sums))
            drawn.append(results(sums + noise.draw(rng, shape)))
    found, (low, high) = np.concatenate(drawn), possible.T
    tail = (1 - LEVEL) / 2
    uncertain = np.isnan(found).mean(axis=0) > tail
    ends = np.nanquantile(np.where(uncertain, 0.0, found), [tail, 1 - tail], axis=0)
    ends = np.where(uncertain, possible.T, np.clip(ends, low, high))
    hidden = uncertain | ~((values >= low) & (values <= high))
    return Estimates(np.where(hidden, np.nan, values), ends.T.copy(), hidden)
