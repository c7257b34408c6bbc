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
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from math import inf
from numbers import Real
from typing import Annotated, Any

import msgspec

from fedlib.core.messages import Privacy, exact, round_down, shown
from fedlib.core.site_memory import Record, TableMemory, valid

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
        The count of noises.
    n_values : int
        The count of values.

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
    arguments are decimals (`fedlib.core.messages.exact`).

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
        The largest count of requests for data, at least 1. It must not depend on the data.

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


KIND = "charge"  # of a record
Loss = Annotated[float, msgspec.Meta(ge=0)]


class DisclosureBudgetSpent(Exception):
    """A reply would disclose more about the rows of a site than its budget allows."""


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The privacy loss of one reply, and the request that it answers."""

    protocol: str
    request: str
    epsilon: Loss = 0.0
    rho: Loss = 0.0

    def record(self) -> Record:
        """Return what the memory of the table keeps."""
        return Record(KIND, self.protocol, msgspec.to_builtins(self))


@dataclass
class Budget:
    """A site's limit on the privacy loss of its replies in all runs together.

    Charges with zCDP are added up as rho, and the others as epsilon. The total is the epsilon that
    follows from rho with the budget's delta, plus the sum of the others. Sums and comparisons are
    those of decimals: a budget of 0.3 grants exactly three times 0.1.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for each row over all runs: epsilon is positive and at most 10**6, delta at
        least 0 and below 1.
        With ``delta=0``, only requests with an epsilon and no rho can be answered.
    memory : TableMemory, optional
        Where the charges are kept; by default with this object. The budget of a site belongs to its
        table, so two policies over one table charge the same memory (`of`).

    Raises
    ------
    ValueError
        When epsilon or delta is out of range.

    Notes
    -----
    A charge is never taken back, whatever becomes of the reply. When an attempt to compute a secure
    sum fails, the server repeats it. The site then adds new noise, and the reply is charged again:

    - A site cannot verify that the attempt has failed. The server may have opened the first sum.
    - With the same noise in both replies, the second would be free only if one sum stays closed. If
      the server opened both, for different survivors, their difference would be the replies of
      single sites, with only their own shares of the noise. Two sums with noise of their own
      disclose what two charges count.

    A request that is only delivered again, for example after a server has been started again, is
    not charged: the transports send the last reply a second time.

    Examples
    --------
    >>> budget = Budget(epsilon=1.0, delta=0.0)
    >>> budget.charge(Privacy(epsilon=0.75), "kmeans", "SumClusters")
    >>> float(budget.spent)
    0.75
    >>> budget.charge(Privacy(epsilon=0.5), "kmeans", "SumClusters")
    Traceback (most recent call last):
    ...
    fedlib.protection.privacy.accounting.DisclosureBudgetSpent: SumClusters with epsilon=0.5 would \
raise the spent epsilon from 0.75 to 1.25, the budget is 1.0 with delta=0.0
    """

    epsilon: float
    delta: float = 0.0
    memory: TableMemory = field(default_factory=TableMemory, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_guarantee(self.epsilon, self.delta)

    def of(self, memory: TableMemory) -> Budget:
        """Return this limit on the charges that another memory keeps."""
        return replace(self, memory=memory)

    @property
    def charges(self) -> list[Charge]:
        """The charges until now.

        Raises
        ------
        ValueError
            When the file of the memory cannot be read or does not contain charges.
        """
        return [self._read(value) for value in self.memory.values(KIND)]

    @property
    def spent(self) -> Fraction | float:
        """The epsilon that has been spent, for the budget's delta: a fraction, or infinity."""
        return self.total(self.charges)

    def charge(self, privacy: Privacy, protocol: str, request: str) -> None:
        """Record the loss of a reply, before it leaves the site.

        When the method returns, the charge is on the disk.

        Raises
        ------
        DisclosureBudgetSpent
            When the total would exceed the budget. Nothing is charged then.
        ValueError
            When the file of the memory cannot be used.
        """
        charge = Charge(protocol, request, privacy.epsilon, privacy.rho)
        with self.memory.records() as records:
            self._check([one.value for one in valid(records, KIND)], charge, privacy)
            records.append(charge.record())

    def check(self, privacy: Privacy, protocol: str, request: str) -> None:
        """Raise DisclosureBudgetSpent when `charge` would; nothing is charged."""
        charge = Charge(protocol, request, privacy.epsilon, privacy.rho)
        self._check(self.memory.values(KIND), charge, privacy)

    def _check(self, values: list[Any], charge: Charge, privacy: Privacy) -> None:
        charges = [self._read(value) for value in values]
        before, after = self.total(charges), self.total([*charges, charge])
        if after > exact(self.epsilon):
            raise DisclosureBudgetSpent(
                f"{charge.request} with {privacy} would raise the spent epsilon from"
                f" {shown(before)} to {shown(after)}, the budget is {self.epsilon} with"
                f" delta={self.delta}"
            )

    def _read(self, value: Any) -> Charge:
        """Return a charge from what the memory keeps."""
        try:
            return msgspec.convert(value, Charge)
        except msgspec.ValidationError as error:
            raise ValueError(
                f"{self.memory.path}: a charge must have a protocol and losses: {error}"
            ) from error

    def total(self, charges: list[Charge]) -> Fraction | float:
        """Return the epsilon of charges together, for the budget's delta."""
        epsilon, rho = sums_of(charges)
        converted = epsilon_of(rho, self.delta)
        return inf if converted == inf else epsilon + Fraction(converted)


def sums_of(charges: list[Charge]) -> tuple[Fraction, Fraction]:
    """Return the sums of epsilon and of rho of charges, without rounding."""
    epsilon = sum((exact(one.epsilon) for one in charges), Fraction())
    return epsilon, sum((exact(one.rho) for one in charges), Fraction())
