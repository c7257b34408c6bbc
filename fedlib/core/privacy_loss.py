"""The privacy loss of a reply, as its request states it; see `fedlib.protection.privacy`."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Annotated, Any

import msgspec

from fedlib.core.messages import Message, MessageError

Loss = Annotated[float, msgspec.Meta(ge=0)]


def exact(value: Any) -> Fraction:
    """Return a privacy loss, a guarantee or a delta as the decimal that a person types.

    A float is a binary fraction near the decimal: three times ``0.1`` is more than ``0.3``. What is
    added up and compared is therefore the shortest decimal with the same float.

    Examples
    --------
    >>> exact(0.1), 3 * exact(0.1) == exact(0.3)
    (Fraction(1, 10), True)
    """
    return value if isinstance(value, Fraction) else Fraction(repr(float(value)))


def round_down(value: Fraction) -> float:
    """Return the largest float whose decimal is at most a value, at least 0.

    Examples
    --------
    >>> round_down(Fraction(3, 10)), round_down(Fraction(1, 3))
    (0.3, 0.3333333333333333)
    """
    rounded = float(value)
    while exact(rounded) > value:
        rounded = math.nextafter(rounded, -math.inf)
    return rounded


def shown(loss: Fraction | float) -> str:
    """Return a privacy loss as text with up to six digits, rounded up.

    Examples
    --------
    >>> shown(Fraction(3, 10)), shown(Fraction(1, 3)), shown(math.inf)
    ('0.3', '0.333334', 'inf')
    """
    if loss == math.inf:
        return "inf"
    context, value = Context(prec=6, rounding=ROUND_CEILING), exact(loss)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{float(rounded):.6g}"


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
    fedlib.core.array_fields.MessageError: Privacy must have either epsilon or rho above 0, got \
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
        return f"rho={shown(self.rho)} (zCDP)" if self.rho else f"epsilon={shown(self.epsilon)}"


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
