"""The server's side of sums with noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedlib.messages import Message, arrays
from fedlib.privacy.noise import Sensitivity
from fedlib.protocol import Flow
from fedlib.secure.flow import secure_sum

__all__ = ["noisy_sum"]


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
        The numbers of the secure sums of this run. Without it, each client adds all the noise, and
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
    sums = {
        name: np.sum([getattr(reply, name) for reply in replies.values()], axis=0)
        for name in fields
    }
    return request.reply(**sums)
