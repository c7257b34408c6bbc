"""What a site may disclose about each row in all runs together, and what it has disclosed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import fsum, inf
from pathlib import Path
from typing import Annotated

import msgspec

from fedlib.core.privacy_loss import Privacy
from fedlib.core.records import open_private
from fedlib.protection.privacy.accounting import check_guarantee, epsilon_of

Loss = Annotated[float, msgspec.Meta(ge=0)]


class DisclosureBudgetSpent(Exception):
    """A reply would disclose more about the rows of a site than its budget allows."""


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The privacy loss of one reply, and the request that it answers."""

    protocol: str
    request: str
    epsilon: Loss = 0.0
    rho: Loss = 0.0


@dataclass
class Budget:
    """A site's limit on the privacy loss of its replies in all runs together.

    Charges with zCDP are added up as rho, and the others as epsilon. The total is the epsilon that
    follows from rho with the budget's delta, plus the sum of the others.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for each row over all runs: epsilon is positive and at most 10**6, delta at
        least 0 and below 1.
        With ``delta=0``, only requests with an epsilon and no rho can be answered.
    file : path, optional
        The file that keeps the charges, one line of JSON per reply. Without it they are kept in
        memory. Several programs can use one file at the same time.

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
    >>> budget.spent
    0.75
    >>> budget.charge(Privacy(epsilon=0.5), "kmeans", "SumClusters")
    Traceback (most recent call last):
    ...
    fedlib.protection.privacy.budget.DisclosureBudgetSpent: SumClusters with epsilon=0.5 would \
raise the spent epsilon from 0.75 to 1.25, the budget is 1.0 with delta=0.0
    """

    epsilon: float
    delta: float = 0.0
    file: Path | None = None

    def __post_init__(self) -> None:
        check_guarantee(self.epsilon, self.delta)
        self._charges: list[Charge] = []
        self._lock = threading.Lock()

    @property
    def charges(self) -> list[Charge]:
        """The charges until now.

        Raises
        ------
        ValueError
            When the file cannot be read or does not contain charges.
        """
        return _read(self.file) if self.file is not None else list(self._charges)

    @property
    def spent(self) -> float:
        """The epsilon that has been spent, for the budget's delta."""
        return self._total(self.charges)

    def charge(self, privacy: Privacy, protocol: str, request: str) -> None:
        """Record the loss of a reply, before it is computed.

        When the method returns, the charge is on the disk.

        Raises
        ------
        DisclosureBudgetSpent
            When the total would exceed the budget. Nothing is charged then.
        ValueError
            When the file cannot be used.
        """
        with self._lock, self._locked():
            charges = self.charges
            charge = Charge(protocol, request, privacy.epsilon, privacy.rho)
            before, after = self._total(charges), self._total([*charges, charge])
            if after > self.epsilon:
                raise DisclosureBudgetSpent(
                    f"{request} with {privacy} would raise the spent epsilon from {before:.6g} to"
                    f" {after:.6g}, the budget is {self.epsilon} with delta={self.delta}"
                )
            if self.file is None:
                self._charges.append(charge)
            else:
                _append(self.file, charge)

    def _total(self, charges: list[Charge]) -> float:
        rho = fsum(charge.rho for charge in charges)
        if rho and not self.delta:
            return inf
        return fsum([*(charge.epsilon for charge in charges), epsilon_of(rho, self.delta)])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other programs from charging the same file."""
        if self.file is None:
            yield
            return
        import fcntl  # not on Windows

        try:
            lock = os.fdopen(open_private(Path(f"{self.file}.lock")), "ab")
        except OSError as error:
            raise ValueError(f"{self.file}: cannot be written: {error}") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read(file: Path) -> list[Charge]:
    """Return the charges in a file; none if there is no file."""
    try:
        lines = file.read_bytes().splitlines() if file.exists() else []
        return [msgspec.json.decode(line, type=Charge) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{file} must contain one charge per line: {error}") from error


def _append(file: Path, charge: Charge) -> None:
    try:
        with os.fdopen(open_private(file, os.O_APPEND), "ab") as opened:
            opened.write(msgspec.json.encode(charge) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise ValueError(f"{file}: cannot be written: {error}") from error
