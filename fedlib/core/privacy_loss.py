"""The privacy loss of a reply, as its request states it; see `fedlib.protection.privacy`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fedlib.core.messages import Message, MessageError

__all__ = ["Privacy", "privacy_of"]

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
    fedlib.core.messages.MessageError: Privacy must have either epsilon or rho above 0, got \
0.0 and 0.0
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
    """Return the privacy part of a request, or None; also of a request that a secure sum wraps.

    Examples
    --------
    >>> from fedlib.clustering.kmeans.messages import FindCentres
    >>> privacy_of(FindCentres(3, 0.25, 10, 300, 1e-4, 0)) is None
    True
    """
    privacy = getattr(request, "privacy", None)
    return privacy if isinstance(privacy, Privacy) else None
