"""Requests whose replies have noise, and how much of a row such a reply may disclose."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fedlib.messages import Message, MessageError, arrays

__all__ = ["NOISY", "NoisyRequest", "Privacy", "privacy_of"]

NOISY = 2.0**60  # a bound on values with noise, so that no sum over clients overflows

Loss = Annotated[float, msgspec.Meta(ge=0)]


class Privacy(Message):
    """The largest privacy loss of one reply: either ``epsilon`` or ``rho`` is positive.

    Attributes
    ----------
    epsilon : float
        The reply is epsilon-differentially private.
    rho : float
        The reply has rho-zero-concentrated differential privacy.

    Examples
    --------
    >>> print(Privacy(rho=0.02))
    rho=0.02 (zCDP)
    >>> Privacy()
    Traceback (most recent call last):
    ...
    fedlib.messages.MessageError: Privacy must have either epsilon or rho above 0, got 0.0 and 0.0
    """

    discloses = "the privacy loss of a reply"
    epsilon: Loss = 0.0
    rho: Loss = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon > 0) == (self.rho > 0):
            raise MessageError(
                "Privacy must have either epsilon or rho above 0, got"
                f" {self.epsilon} and {self.rho}"
            )

    def __str__(self) -> str:
        """Return the loss as text."""
        return f"rho={self.rho:.6g} (zCDP)" if self.rho else f"epsilon={self.epsilon:.6g}"


def privacy_of(request: Message) -> Privacy | None:
    """Return the privacy part of a request, also of one that a secure sum wraps.

    Examples
    --------
    >>> from fedlib.kmeans import FindCentres
    >>> privacy_of(FindCentres(3, 0.25, 10, 300, 1e-4, 0)) is None
    True
    """
    privacy = getattr(request, "privacy", None)
    return privacy if isinstance(privacy, Privacy) else None


class NoisyRequest(Message):
    """Base class of the requests whose replies have noise.

    A subclass has the field ``privacy``, a `Privacy`. Its ``reply_lengths`` returns the lengths of
    all axes of the reply. The base class has no fields, so that a request can also derive from
    another message.

    Examples
    --------
    >>> from fedlib.summary.private import NoisyColumnSums, SumColumnsNoisily
    >>> import numpy as np
    >>> request = SumColumnsNoisily(Privacy(rho=1.0), np.array([[0.0], [1.0]]), n_bins=2)
    >>> request.accept(NoisyColumnSums(np.zeros(7)))
    Traceback (most recent call last):
    ...
    fedlib.messages.MessageError: NoisyColumnSums.values must have the shape (6,), got (7,)
    """

    discloses = "the bounds of the rows, and earlier results, which have noise"

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
