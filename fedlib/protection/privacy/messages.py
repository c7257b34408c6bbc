"""Requests whose replies have noise."""

from __future__ import annotations

from typing import Any

from fedlib.core.messages import Message, MessageError, arrays
from fedlib.protection.privacy.noise import Sensitivity

NOISY = 2.0**60  # a bound on values with noise, far above those of an honest client


class NoisyRequest(Message):
    """Base class of the requests whose replies have noise.

    A subclass has the field ``privacy``, a `Privacy`. Its ``reply_lengths`` returns the lengths of
    all axes of the reply, and its ``sensitivity`` the largest change by one row, unless the client
    overrides `fedlib.core.client.Client.sum_digits`. The base class has no fields, so that a
    request can also derive from another message.

    Examples
    --------
    >>> from fedlib.core.privacy_loss import Privacy
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
