"""The server's side of sums with noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedlib.loss import Privacy
from fedlib.messages import Message, arrays
from fedlib.privacy.messages import NOISY
from fedlib.privacy.noise import Sensitivity, noise_scale
from fedlib.protocol import Flow
from fedlib.secure.flow import secure_sum
from fedlib.secure.identities import honest_survivors

__all__ = ["noise_of_sum", "noisy_sum"]


def noisy_sum(
    request: Message, sensitivity: Sensitivity, numbers: Iterator[int] | None = None
) -> Flow[Any]:
    """Return the sum of the clients' replies to a request that has a privacy part.

    A flow calls it as ``total = yield from noisy_sum(request, sensitivity)``.

    Parameters
    ----------
    request : Message
        Its reply has only arrays of float64, with noise from `add_noise`.
    sensitivity : Sensitivity
        Computed like that of the clients. It determines the digits of a secure sum and nothing
        else: the clients do not learn it.
    numbers : iterator of int, optional
        The numbers of the secure sums of this run. If None, each client adds all the noise, and
        the server adds up the replies.

    Returns
    -------
    Message
        Of the class of the reply.
    """
    fields = arrays(request.reply)
    if numbers is not None:
        digits = dict.fromkeys(fields, (sensitivity.digits,))
        total, _ = yield from secure_sum(request, numbers, digits)
        return total
    replies = yield request
    sums = {name: sum(getattr(reply, name) for reply in replies.values()) for name in fields}
    # Two false replies can add up to more than a reply may contain, and honest ones cannot.
    return request.reply(**{name: np.clip(total, -NOISY, NOISY) for name, total in sums.items()})


def noise_of_sum(
    sensitivity: Sensitivity, privacy: Privacy, n_clients: int, *, secure: bool
) -> float:
    """Return the standard deviation of the noise in a value of `noisy_sum`.

    Examples
    --------
    A count with rho = 0.02. Each of 10 clients adds noise with a standard deviation of 5. With
    secure sums, each adds half of it, so that four honest survivors are enough.

    >>> count, privacy = Sensitivity(1.0, 1.0, 1), Privacy(rho=0.02)
    >>> round(noise_of_sum(count, privacy, n_clients=10, secure=False), 2)
    15.81
    >>> round(noise_of_sum(count, privacy, n_clients=10, secure=True), 2)
    7.91
    """
    n_shares = honest_survivors(n_clients) if secure else 1
    scale = noise_scale(sensitivity, privacy, n_shares)
    return scale * math.sqrt(n_clients * (2 if privacy.epsilon else 1))
