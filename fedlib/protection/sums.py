"""Sums over the clients behind masks, with noise, or both; see `fedlib.core.aggregation`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from fedlib.core.aggregation import Aggregation, Total
from fedlib.core.messages import Message, arrays
from fedlib.core.privacy_loss import Privacy
from fedlib.core.protocol import Flow
from fedlib.core.replies import Replies
from fedlib.protection.privacy.intervals import Noise
from fedlib.protection.privacy.messages import NOISY
from fedlib.protection.privacy.noise import Sensitivity, noise_scale
from fedlib.protection.secure.fixed_point import Digits
from fedlib.protection.secure.flow import secure_sum
from fedlib.protection.secure.identities import honest_survivors


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
