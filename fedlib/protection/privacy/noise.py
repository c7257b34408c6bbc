"""The noise that a client adds to its sums.

All values are whole multiples of a unit, a power of two that is about a millionth of what one row
can change. Rows are rounded to the unit before they are added up, so sums are exact, the change by
one row is known exactly, and no digit of a noisy value depends on the rounding of floats [1]_.

OpenDP draws the noise, discrete Gaussian or discrete Laplace [2]_, from the random numbers of the
operating system. Its samplers are exact, because they use fractions instead of floats.

References
----------
.. [1] I. Mironov, On significance of the least significant bits for differential privacy, CCS 2012.
.. [2] C. L. Canonne, G. Kamath, T. Steinke, The discrete Gaussian for differential privacy,
   NeurIPS 2020.

Intervals of results that follow from noisy sums, by the known distribution of the noise.

A noisy sum is t + e: the true sum and noise whose distribution is public. As the noise is
symmetric, to somebody who knows nothing else the true sum is distributed like the noisy one plus
another draw of the noise. So the values of a result for many such draws are the interval in which
the true result lies. Nothing is cut before a result is computed: a sum of values that were cut at 0
is too large. A result that cannot be, such as an R² above 1, is unknown, and so is one that divides
by what may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedlib.core.array_types import Bools, Floats, Ints
from fedlib.core.client import BadRequest
from fedlib.core.messages import Array, Message, MessageError, Privacy, arrays, exact
from fedlib.core.points import MAX_BOUND
from fedlib.protection.privacy.accounting import gaussian_rho, laplace_epsilon, opendp, shares_rho

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


@dataclass(frozen=True)
class TwoRows(Array):
    """The rules for bounds in a message: two rows, the lower below the upper.

    Without them, a client would divide by zero, and fail for some rows only.
    """

    def problem(self, value: object) -> str | None:
        """Return a description of the error in a value, or None if it is valid."""
        if (problem := super().problem(value)) is not None:
            return problem
        assert isinstance(value, np.ndarray)
        if len(value) != 2 or not ((value[1] - value[0]) / 2 > 0).all():
            return "must be two rows, the lower below the upper"
        return None


BoundsArray = Annotated[np.ndarray, TwoRows("float64", ("ends", "features"), -MAX_BOUND, MAX_BOUND)]


def clipped(X: Floats, bounds: Floats) -> Floats:
    """Return points (n_points, n_features) clipped to bounds (2, n_features).

    Raises
    ------
    BadRequest
        A ValueError: when the points and the bounds have different numbers of features.

    Examples
    --------
    >>> clipped(np.array([[0.0], [5.0], [99.0]]), np.array([[1.0], [20.0]])).ravel()
    array([ 1.,  5., 20.])
    """
    if X.shape[1] != bounds.shape[1]:
        raise BadRequest(
            f"bounds must have the {X.shape[1]} features of the points, got {bounds.shape[1]}"
        )
    low, high = bounds
    return np.clip(X, low, high)


def to_unit(X: Floats, bounds: Floats) -> Floats:
    """Return points clipped to bounds and scaled, so that every feature is in [-1, 1].

    Parameters
    ----------
    X : array (n_points, n_features) of float64
    bounds : array (2, n_features) of float64

    Raises
    ------
    BadRequest
        A ValueError: when the points and the bounds have different numbers of features.

    Examples
    --------
    >>> to_unit(np.array([[0.0], [5.0], [99.0]]), np.array([[0.0], [20.0]])).ravel()
    array([-1. , -0.5,  1. ])
    """
    low, high = bounds
    middle, half = low + (high - low) / 2, (high - low) / 2
    scaled: Floats = np.clip((clipped(X, bounds) - middle) / half, -1.0, 1.0)
    return scaled


def from_unit(X: Floats, bounds: Floats) -> Floats:
    """Return points in the units of the features, clipped to the bounds; undoes `to_unit`."""
    low, high = bounds
    points: Floats = np.clip(low + (high - low) / 2 * (1 + X), low, high)
    return points


DIGITS = 20  # binary digits of a unit, relative to the sensitivity
MAX_UNITS = 2**53  # sums of floats are exact up to here
MIN_SHARE = 64  # units: the sum of noises of this scale is as good as one noise
MAX_SCALE = 2**40  # units: noisy sums stay far below the largest integer of 64 bits


@dataclass(frozen=True)
class Sensitivity:
    """The largest change of a vector by one row that is added or removed.

    A client computes it from its own bounds on rows, never from a number that it has received.

    Attributes
    ----------
    l1, l2 : float
        The sum of absolute changes, and the square root of the sum of their squares.
    n_entries : int
        The largest count of entries that one row changes.

    Examples
    --------
    A row adds 1 to one of many counts.

    >>> Sensitivity(l1=1.0, l2=1.0, n_entries=1).digits
    20
    """

    l1: float
    l2: float
    n_entries: int

    @property
    def digits(self) -> int:
        """The binary digits after the point of all values; a unit is ``2.0**-digits``."""
        return DIGITS + 1 - math.frexp(self.l2)[1]

    @property
    def units(self) -> tuple[float, float]:
        """``l1`` and ``l2`` in units, with what the rounding of a row can add."""
        return (
            math.ldexp(self.l1, self.digits) + self.n_entries / 2,
            math.ldexp(self.l2, self.digits) + math.sqrt(self.n_entries) / 2,
        )


def quantise(rows: NDArray[Any], sensitivity: Sensitivity) -> Floats:
    """Return what rows add to a sum, rounded to whole units.

    Examples
    --------
    >>> quantise(np.array([0.1]), Sensitivity(1.0, 1.0, 1)) * 2**20
    array([104858.])
    """
    rounded: Floats = np.ldexp(np.rint(np.ldexp(rows, sensitivity.digits)), -sensitivity.digits)
    return rounded


def noise_scale(
    sensitivity: Sensitivity, privacy: Privacy, n_shares: int = 1, n_values: int = 1
) -> float:
    """Return the scale of the noise that a client adds.

    It is the standard deviation of Gaussian noise, for ``rho``, or the mean absolute value of
    Laplace noise, for ``epsilon``.

    Parameters
    ----------
    sensitivity : Sensitivity
    privacy : Privacy
    n_shares : int, default=1
        The count of clients whose noise is certain to be in the revealed sum; more than 1 only in
        a secure sum.
    n_values : int, default=1
        The count of values, if there are shares.

    Raises
    ------
    ValueError
        When the noise would be too large for its type, or there are shares of Laplace noise.

    Examples
    --------
    A count with rho = 0.02 has noise with a standard deviation of 5. Of four shares, each has half
    of it.

    >>> count = Sensitivity(1.0, 1.0, 1)
    >>> round(noise_scale(count, Privacy(rho=0.02)), 3)
    5.0
    >>> round(noise_scale(count, Privacy(rho=0.02), n_shares=4), 3)
    2.5
    """
    return math.ldexp(_scale(sensitivity, privacy, n_shares, n_values), -sensitivity.digits)


def _scale(sensitivity: Sensitivity, privacy: Privacy, n_shares: int, n_values: int) -> int:
    """Return the scale of the noise in units."""
    l1, l2 = sensitivity.units
    if privacy.epsilon and n_shares > 1:
        raise BadRequest("shares of noise are Gaussian, which needs delta > 0, got delta=0")

    allowed = privacy.epsilon or privacy.rho

    def loss(scale: int) -> float:
        if privacy.epsilon:
            return laplace_epsilon(l1, scale)
        if n_shares == 1:
            return gaussian_rho(l2, scale)
        return shares_rho(l2, scale, n_shares, n_values)

    def ratio(scale: int) -> Fraction:
        if privacy.epsilon:
            return Fraction(l1) / scale
        return Fraction(l2) ** 2 / (2 * n_shares * scale**2)

    wanted = l1 / privacy.epsilon if privacy.epsilon else l2 / math.sqrt(2 * privacy.rho * n_shares)
    if wanted >= MAX_SCALE:
        raise BadRequest(
            f"epsilon must be larger: {privacy} needs noise of more than"
            f" {MAX_SCALE >> DIGITS} times the change by one row"
        )
    scale = max(math.ceil(wanted), MIN_SHARE if n_shares > 1 else 1)
    # Rarely more than once: by rounding, or because a float is above the decimal that is charged.
    while loss(scale) > allowed or ratio(scale) > exact(allowed):
        scale += 1
    return scale


def add_noise(
    values: NDArray[Any], sensitivity: Sensitivity, privacy: Privacy, n_shares: int = 1
) -> Floats:
    """Return values with noise that gives one reply its privacy.

    Parameters
    ----------
    values : array of any shape
        All values of the reply that depend on the rows, also those that are 0. They are whole
        numbers, or sums of rows from `quantise`. Values beyond 2**53 units are clipped.
    sensitivity : Sensitivity
        The change of all values together.
    privacy : Privacy
        From the request.
    n_shares : int, default=1
        The client's ``n_shares``.

    Returns
    -------
    array of float64
        Of the same shape: multiples of the unit, which can be negative.

    Raises
    ------
    ValueError
        When a value is not a multiple of the unit, which no rows can cause.

    Notes
    -----
    OpenDP takes about 20 microseconds per value with Gaussian noise, and 12 with Laplace noise.

    Examples
    --------
    >>> noisy = add_noise(np.zeros(1000), Sensitivity(1.0, 1.0, 1), Privacy(rho=0.02))
    >>> bool(4 < noisy.std() < 6)
    True
    """
    scaled = np.ldexp(np.asarray(values, np.float64), sensitivity.digits)
    # Clipping changes no difference by more, and an error would disclose that there are many rows.
    scaled = np.clip(scaled, -MAX_UNITS, MAX_UNITS)
    whole = scaled.astype(np.int64).ravel()
    if (whole != scaled.ravel()).any():
        raise ValueError("values must be sums of rows from quantise")
    scale = _scale(sensitivity, privacy, n_shares, whole.size)
    noisy = draw(whole, scale, gaussian=privacy.rho > 0)
    return np.ldexp(noisy.astype(np.float64), -sensitivity.digits).reshape(scaled.shape)


def draw(values: Ints, scale: int, *, gaussian: bool) -> Ints:
    """Return whole values (n,) with discrete noise, drawn by OpenDP.

    A value x of the noise has a probability proportional to ``exp(-x**2 / (2 * scale**2))`` if it
    is Gaussian, and to ``exp(-abs(x) / scale)`` if it is not. Tests and the pages of the book
    replace this function by one with a seed; see `fedlib.testing.seeded_noise`.
    """
    dp = opendp()
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if gaussian:
        mechanism = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), float(scale))
    else:
        mechanism = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), float(scale))
    return np.array(mechanism(values.tolist()), np.int64)


NOISY = 2.0**60  # a bound on values with noise, far above those of an honest client


class NoisyRequest(Message):
    """Base class of the requests whose replies have noise.

    A subclass has the field ``privacy``, a `Privacy`. Its ``reply_lengths`` returns the lengths of
    all axes of the reply, and its ``sensitivity`` the largest change by one row, unless the client
    overrides `fedlib.core.client.Client.sum_digits`. The base class has no fields, so that a
    request can also derive from another message.

    Examples
    --------
    >>> from fedlib.core.messages import Privacy
    >>> from fedlib.tables.summary.private import NoisyColumnSums, SumColumnsNoisily
    >>> import numpy as np
    >>> request = SumColumnsNoisily(Privacy(rho=1.0), np.array([[0.0], [1.0]]), n_bins=2)
    >>> request.accept(NoisyColumnSums(np.zeros(7)))
    Traceback (most recent call last):
    ...
    fedlib.core.array_fields.MessageError: NoisyColumnSums.values must have the shape (6,), got (7,)
    """

    discloses = "the bounds of the rows, and earlier results, which have noise"

    def sensitivity(self) -> Sensitivity:
        """Return the largest change of the reply by one row, from the fields of this request."""
        raise NotImplementedError(f"{type(self).__name__} does not state its sensitivity")

    def memory(self) -> float:
        """Return the count of values; each counts as eight, which noise needs while it is drawn."""
        return 8 * super().memory()

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        """Return the digits with which no noisy value is rounded."""
        return dict.fromkeys(arrays(self.reply), (self.sensitivity().digits,))

    def accept(self, reply: Message) -> Any:
        """Return the reply.

        Raises
        ------
        MessageError
            When its arrays do not have the lengths that this request determines.
        """
        lengths = self.reply_lengths()
        for field, array in arrays(type(reply)).items():
            wanted = tuple(lengths[axis] for axis in array.axes)
            shape = getattr(reply, field).shape
            if shape != wanted:
                raise MessageError(
                    f"{type(reply).__name__}.{field} must have the shape {wanted}, got {shape}"
                )
        return reply
