"""Sums over the clients behind masks, with noise, or both; see `fedlib.core.aggregation`.

Sums over rows, from one declaration that serves all four kinds of aggregation.

A request states what each row adds and how much one row can change (`SumRows`). From this follow
the sum in the clear, the digits of masked sums, and the noise and its digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlib.core.aggregation import Aggregation, Total
from fedlib.core.array_types import Floats, Ints
from fedlib.core.client import Client
from fedlib.core.messages import Array, Message, Privacy, arrays
from fedlib.core.protocol import Flow, Replies
from fedlib.protection.privacy.noise import (
    NOISY,
    Noise,
    NoisyRequest,
    Sensitivity,
    add_noise,
    noise_scale,
    quantise,
)
from fedlib.protection.secure.fixed_point import Digits, add_rows, digits_for, summed
from fedlib.protection.secure.flow import secure_sum
from fedlib.protection.secure.identities import honest_survivors
from fedlib.protection.secure.points import NumberOfPoints

FIRST_ROWS = 2**31  # of all clients, until a first sum has counted them
MAX_TERMS = 2**22  # in memory at a time


class RowTotals(Message):
    """Sums over a client's rows."""

    discloses = "sums over a client's rows, with noise if the request has a privacy loss"
    values: Annotated[np.ndarray, Array("float64", ("values",), -NOISY, NOISY)]


class SumRows(NoisyRequest, kw_only=True):
    """Base class of requests to sum what each row adds.

    A subclass defines ``sensitivity()``, ``n_values`` and ``terms(X)`` from its own fields, and its
    client's handler returns ``request.total(self.X, self)``. The flow asks for
    ``aggregation.sum(Subclass(..., privacy=aggregation.privacy))``, whatever the aggregation is.

    Attributes
    ----------
    privacy : Privacy or None
        The privacy loss of the reply, if it has noise.
    n_rows : int
        The count of rows of all clients, from which the digits of masked sums without noise
        follow, to which what each row adds is rounded; a first sum can count them.
    """

    discloses = "the bounds of the rows, and earlier results"
    effortless = ("n_rows",)
    reply: ClassVar[type[Message]] = RowTotals
    privacy: Privacy | None = None
    n_rows: NumberOfPoints = FIRST_ROWS

    @property
    def n_values(self) -> int:
        """The count of sums."""
        raise NotImplementedError(f"{type(self).__name__} does not state its n_values")

    def terms(self, X: Any) -> Floats:
        """Return what each row adds (n_rows, n_values).

        Each row must be clipped, so that it never adds more than ``sensitivity()`` states.
        """
        raise NotImplementedError(f"{type(self).__name__} does not state its terms")

    def total(self, X: Any, client: Client) -> RowTotals:
        """Return the reply of a client with the rows ``X``."""
        n_rows = max(1, MAX_TERMS // max(1, self.n_values))
        starts = range(0, max(1, len(X)), n_rows)  # also without rows: it checks their columns
        added = [self.add(self.terms(X[start : start + n_rows]), client)[0] for start in starts]
        return self.finished(sum(added[1:], start=added[0]), client)

    def add(
        self, terms: Floats, client: Client, groups: Ints | None = None, n_groups: int = 1
    ) -> NDArray[Any]:
        """Return the sums (n_groups, n_terms) of what rows add, rounded as the protection needs."""
        digits = None if self.privacy is not None else client.row_digits(self)
        if self.privacy is not None:
            terms = quantise(terms, self.sensitivity())
        return add_rows(terms, digits, "values", groups, n_groups)

    def finished(self, values: NDArray[Any], client: Client) -> RowTotals:
        """Return the reply of these sums, with noise if the request has a privacy loss."""
        if self.privacy is not None:
            noisy = add_noise(values, self.sensitivity(), self.privacy, client.n_shares)
            return self.reply(noisy)  # type: ignore[return-value]
        return summed(self.reply, client.row_digits(self), values=values)  # type: ignore[return-value]

    def reply_lengths(self) -> dict[str, int]:
        return {"values": self.n_values}

    def sum_digits(self, n_clients: int) -> dict[str, tuple[int, ...]]:
        """Return the digits with which no noisy value is rounded; without noise, all that fit."""
        if self.privacy is not None:
            return super().sum_digits(n_clients)
        return {"values": (digits_for(self.n_rows * self.sensitivity().l2, n_clients),)}


class MaskedSums(Aggregation):
    """Secure sums: the server sees totals only (`fedlib.protection.secure`)."""

    masked = True

    def __init__(self, first: int = 1) -> None:
        self._identifiers = count(first)  # a client answers each of them once in a run

    def sum(
        self,
        request: Message,
        check: Callable[[Replies], Mapping[str, str]] | None = None,
    ) -> Flow[Total]:
        return (yield from secure_sum(request, self._identifiers, self._digits(request)))

    def _digits(self, request: Message) -> Digits | None:
        """Return the digits after the point, which each site computes, too."""
        return request.sum_digits(self.n_clients)


class NoisySums(Aggregation):
    """Sums of replies that have noise (`fedlib.protection.privacy`).

    Parameters
    ----------
    privacy : Privacy
        The privacy loss of each request.

    Attributes
    ----------
    sensitivity : Sensitivity or None
        The largest change by one row, for requests that do not state it themselves.
    """

    sensitivity: Sensitivity | None = None

    def __init__(self, privacy: Privacy):
        self.privacy: Privacy = privacy

    def _add(self, terms: Sequence[Any]) -> Any:
        # Two false replies can add up to more than a reply may contain, and honest ones cannot.
        return np.clip(sum(terms), -NOISY, NOISY)

    @property
    def n_shares(self) -> int:
        """How many clients share the noise of a total."""
        return 1

    def scale(self, sensitivity: Sensitivity, n_values: int = 1) -> float:
        """Return the scale of the noise that each client adds (`noise_scale`).

        Raises
        ------
        ValueError
            When the noise would be too large for its type.
        """
        return noise_scale(sensitivity, self.privacy, self.n_shares, n_values)

    def noise(self, request: Any, n_clients: int) -> Noise:
        n_values = math.prod(request.reply_lengths().values())
        scale = self.scale(request.sensitivity(), n_values)
        return Noise(scale, n_clients, is_gaussian=self.privacy.rho > 0)

    def deviation(self, sensitivity: Sensitivity) -> float:
        """Return the standard deviation of the noise in a value of a total.

        Examples
        --------
        A count with rho = 0.02. Each of 10 clients adds noise with a standard deviation of 5. With
        secure sums, each adds half of it, so that four honest survivors are enough.

        >>> one_row, privacy = Sensitivity(1.0, 1.0, 1), Privacy(rho=0.02)
        >>> for sums in (NoisySums(privacy), MaskedNoisySums(privacy)):
        ...     sums.n_clients = 10
        ...     print(round(sums.deviation(one_row), 2))
        15.81
        7.91
        """
        variance = self.n_clients * (2 if self.privacy.epsilon else 1)
        return self.scale(sensitivity) * math.sqrt(variance)


class MaskedNoisySums(NoisySums, MaskedSums):
    """Secure sums of replies that have shares of the noise."""

    def __init__(self, privacy: Privacy, first: int = 1):
        MaskedSums.__init__(self, first)
        NoisySums.__init__(self, privacy)

    def _digits(self, request: Message) -> Digits | None:
        if self.sensitivity is None:
            return super()._digits(request)
        return dict.fromkeys(arrays(request.reply), (self.sensitivity.digits,))

    @property
    def n_shares(self) -> int:
        """How many honest clients a total has for certain."""
        return honest_survivors(self.n_clients) if self.n_clients else 1
