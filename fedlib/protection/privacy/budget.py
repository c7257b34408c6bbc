"""What a site may disclose about each row in all runs together, and what it has disclosed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf
from typing import Annotated, Any

import msgspec

from fedlib.core.privacy_loss import Privacy, exact, shown
from fedlib.core.site_memory import Record, TableMemory
from fedlib.protection.privacy.accounting import check_guarantee, epsilon_of

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
    fedlib.protection.privacy.budget.DisclosureBudgetSpent: SumClusters with epsilon=0.5 would \
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
        """Record the loss of a reply, before it is computed.

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
            charges = [self._read(one.value) for one in records if one.kind == KIND]
            before, after = self.total(charges), self.total([*charges, charge])
            if after > exact(self.epsilon):
                raise DisclosureBudgetSpent(
                    f"{request} with {privacy} would raise the spent epsilon from {shown(before)}"
                    f" to {shown(after)}, the budget is {self.epsilon} with delta={self.delta}"
                )
            records.append(charge.record())

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
