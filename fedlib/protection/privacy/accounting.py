"""Conversions between the guarantee of a run and the privacy loss of its requests, by OpenDP.

A run has the guarantee (epsilon, delta) for one row, added or removed. With ``delta > 0``, the
noise is discrete Gaussian and the losses of the requests are added up as zero-concentrated
differential privacy (zCDP), whose parameter is rho. With ``delta = 0`` the noise is discrete
Laplace, and the losses are added up as epsilon.

References
----------
.. [1] M. Bun, T. Steinke, Concentrated differential privacy: simplifications, extensions, and
   lower bounds, TCC 2016.
.. [2] P. Kairouz, Z. Liu, T. Steinke, The distributed discrete Gaussian mechanism for federated
   learning with secure aggregation, ICML 2021: theorem 1.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from numbers import Real
from typing import Any

from fedlib.core.privacy_loss import Privacy, exact, round_down

MAX_EPSILON = 1e6  # a larger one is a mistake: it protects nothing
MAX_RHO = 1e4  # almost no noise; a larger rho is never used
# Beyond these, floats and their squares lose digits. A smaller rho counts as the least one.
LEAST_RHO, MOST_RHO = Fraction(1, 10**250), 10**250


def check_guarantee(epsilon: object, delta: object) -> None:
    """Raise ValueError when epsilon or delta is out of range, or OpenDP is not installed.

    Examples
    --------
    >>> check_guarantee(1.0, 1.0)
    Traceback (most recent call last):
    ...
    ValueError: delta must be at least 0 and below 1, got 1.0
    """
    if not _is_number(epsilon) or not 0 < epsilon <= MAX_EPSILON:  # type: ignore[operator]
        raise ValueError(
            f"epsilon must be a positive number up to {MAX_EPSILON:g}, got {epsilon!r}"
        )
    if not _is_number(delta) or not 0 <= delta < 1:  # type: ignore[operator]
        raise ValueError(f"delta must be at least 0 and below 1, got {delta!r}")
    opendp()


def split_guarantee(
    epsilon: float, delta: float, fraction: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return a fraction of epsilon and delta, and what remains; the sums are at most the whole.

    Raises
    ------
    ValueError
        When epsilon or delta is out of range, or OpenDP is not installed.

    Examples
    --------
    >>> split_guarantee(0.3, 0.0, 0.1)
    ({'epsilon': 0.03, 'delta': 0.0}, {'epsilon': 0.27, 'delta': 0.0})
    """
    check_guarantee(epsilon, delta)
    whole = {"epsilon": exact(epsilon), "delta": exact(delta)}
    first = {name: round_down(value * exact(fraction)) for name, value in whole.items()}
    return first, {name: round_down(value - exact(first[name])) for name, value in whole.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@cache
def opendp() -> Any:
    """Return the OpenDP library.

    Raises
    ------
    ValueError
        When it is not installed.
    """
    try:
        import opendp.prelude as dp
    except ModuleNotFoundError as error:
        raise ValueError(
            "epsilon needs the package opendp, which is not installed: pip install"
            ' "fedlib-study[privacy]"'
        ) from error
    dp.enable_features("contrib")
    return dp


def _distance(dp: Any) -> tuple[Any, Any]:
    return dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)


@cache
def gaussian_rho(sensitivity: float, scale: float) -> float:
    """Return rho of values with Gaussian noise, rounded upwards.

    Parameters
    ----------
    sensitivity : float
        The largest change of the values by one row, in the Euclidean norm.
    scale : float
        The standard deviation of the noise.

    Examples
    --------
    >>> round(gaussian_rho(1.0, 5.0), 12)
    0.02
    """
    dp = opendp()
    return float(dp.m.make_gaussian(*_distance(dp), scale).map(sensitivity))


@cache
def laplace_epsilon(sensitivity: float, scale: float) -> float:
    """Return epsilon of values with Laplace noise, rounded upwards.

    ``sensitivity`` is in the norm of absolute values.

    Examples
    --------
    >>> round(laplace_epsilon(1.0, 5.0), 12)
    0.2
    """
    dp = opendp()
    return float(dp.m.make_laplace(*_distance(dp), scale).map(sensitivity))


def shares_rho(sensitivity: float, scale: float, n_shares: int, n_values: int) -> float:
    """Return rho of values with the sum of several discrete Gaussian noises.

    The sum of discrete Gaussians is not exactly a discrete Gaussian; the difference vanishes as the
    scale grows.

    Parameters
    ----------
    sensitivity : float
        As in `gaussian_rho`, in units.
    scale : float
        The scale of each noise, in units, at least 0.5.
    n_shares : int
        The number of noises.
    n_values : int
        The number of values.

    Examples
    --------
    >>> round(shares_rho(1.0, 5.0, n_shares=4, n_values=1000), 12)
    0.005
    """
    # exp(-a * k / (k + 1)) falls with k, so the first term bounds each of the others.
    tau = 10 * (n_shares - 1) * math.exp(-(math.pi**2) * scale**2)
    rho = gaussian_rho(sensitivity, scale * math.sqrt(n_shares))
    return math.nextafter(rho + tau * n_values / 4, math.inf) if tau else rho


@cache
def _approximate() -> Any:
    """Return OpenDP's conversion of Gaussian noise of scale 1 from zCDP to (epsilon, delta)."""
    dp = opendp()
    return dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*_distance(dp), 1.0))


@cache
def epsilon_of(rho: float | Fraction, delta: float) -> float:
    """Return the smallest epsilon that follows from rho-zCDP for a delta, rounded upwards.

    The result is infinite for ``delta = 0``, and for a rho that is too large to be of any use. Both
    arguments are decimals (`fedlib.core.privacy_loss.exact`).

    Examples
    --------
    >>> round(epsilon_of(0.1, 1e-6), 2)
    2.14
    """
    if rho == 0:
        return 0.0
    exact_rho, largest_delta = max(exact(rho), LEAST_RHO), float(delta)
    if exact_rho > MOST_RHO:
        return math.inf
    distance = math.sqrt(2 * exact_rho)
    while Fraction(distance) ** 2 / 2 < exact_rho:
        distance = math.nextafter(distance, math.inf)
    if largest_delta > exact(delta):
        largest_delta = math.nextafter(largest_delta, 0.0)
    try:
        return float(_approximate().map(distance).epsilon(largest_delta))
    except opendp().OpenDPException:  # an overflow
        return math.inf


@cache
def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho, up to 10**4, that implies (epsilon, delta), for ``delta > 0``.

    The first call for a pair takes 0.2 seconds.

    Examples
    --------
    >>> rho = rho_of(1.0, 1e-6)
    >>> round(rho, 4), bool(0.999 < epsilon_of(rho, 1e-6) <= 1.0)
    (0.0244, True)
    """
    most = exact(epsilon)
    if epsilon_of(MAX_RHO, delta) <= most:
        return MAX_RHO
    found = opendp().binary_search(
        lambda rho: epsilon_of(rho, delta) <= most, bounds=(0.0, MAX_RHO)
    )
    return float(found)


def privacy_per_request(epsilon: float, delta: float, n_requests: int) -> Privacy:
    """Return the privacy loss that each request of a run may have for the run's guarantee.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of the run: epsilon is positive and at most 10**6, and delta at least 0 and
        below 1.
    n_requests : int
        The largest number of requests for data, at least 1. It must not depend on the data.

    Raises
    ------
    ValueError
        When epsilon or delta is out of range, epsilon is too small for so many requests, or OpenDP
        is not installed.

    Examples
    --------
    >>> privacy_per_request(1.0, 0.0, n_requests=4)
    Privacy(epsilon=0.25)
    >>> print(privacy_per_request(1.0, 1e-6, n_requests=4))
    rho=0.006089 (zCDP)
    """
    check_guarantee(epsilon, delta)
    total = rho_of(float(epsilon), float(delta)) if delta else float(epsilon)
    part = round_down(exact(total) / n_requests)
    if not part:
        raise ValueError(f"epsilon must be larger for {n_requests} requests, got {epsilon}")
    return Privacy(rho=part) if delta else Privacy(epsilon=part)
