"""Replies as whole numbers modulo 2**64, so that masks hide them and cancel out exactly.

Integers are sums of integers. A floating-point field has a number of binary digits after the
point: a value ``x`` is sent as ``rint(x * 2**digits)``. The sum over n clients is wrong by at most
``n * 2**-(digits + 1)``, in addition to the rounding of the result to float64. A client whose
values could make the sum overflow refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, log2, prod
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedlib.messages import Message, arrays

__all__ = ["Digits", "TooFewDigits", "TooLarge", "digits_for", "from_words", "n_words", "to_words"]

Digits = Mapping[str, tuple[int, ...]]
Words = NDArray[np.uint64]
Reply = TypeVar("Reply", bound=Message)

LIMIT = 63  # bits of a positive number


class TooLarge(ValueError):
    """A value is too large for the digits after the point."""


class TooFewDigits(ValueError):
    """The digits after the point would round a value that must not be rounded."""


def digits_for(largest: float, n_clients: int) -> int:
    """Return the number of digits after the point for a field.

    Parameters
    ----------
    largest : float
        A bound on the absolute value of every client's entries; positive.
    n_clients : int

    Examples
    --------
    Ten clients, entries within ±1000: the sum has 49 digits after the point.

    >>> digits_for(1000.0, 10)
    49
    """
    return LIMIT - ceil(log2(n_clients)) - ceil(log2(largest))


def to_words(reply: Message, digits: Digits, n_clients: int, *, exact: bool = False) -> Words:
    """Return all fields of a reply, one after the other, modulo 2**64.

    Parameters
    ----------
    reply : Message
        Its fields are numbers and arrays of int64 or float64.
    digits : mapping of str to tuple of int
        For each field of floats, the digits after the point: one number, or one per entry of the
        last axis.
    n_clients : int
        The largest number of clients whose words are added.
    exact : bool, default=False
        Whether digits that would round a value are refused. The privacy of noise in shares holds
        for the sum of what the clients have drawn, and not if each is rounded first.

    Returns
    -------
    array (n_words,) of uint64

    Raises
    ------
    TooLarge
        When the sum over the clients could overflow.
    TooFewDigits
        When a value must not be rounded, but would be.
    TypeError
        When a field cannot be added, or has no digits.

    Examples
    --------
    >>> from fedlib.kmeans import Inertia
    >>> to_words(Inertia(2.75), {"inertia": (2,)}, n_clients=3)
    array([11], dtype=uint64)
    """
    parts = [np.empty(0, np.int64)]
    for name in reply.__struct_fields__:
        values = np.asarray(getattr(reply, name))
        if values.dtype.kind == "f":
            values = _scaled(name, values, digits, exact)
        elif values.dtype.kind not in "iu":
            raise TypeError(f"{type(reply).__name__}.{name} cannot be added")
        bound = 2.0**LIMIT / n_clients
        if values.size and max(float(values.max()), -float(values.min())) >= bound:
            raise TooLarge(
                f"{type(reply).__name__}.{name} must be below 2**63 / {n_clients} in units of its"
                " last digit"
            )
        parts.append(values.astype(np.int64).ravel())
    return np.concatenate(parts).view(np.uint64)


def _scaled(name: str, values: NDArray[Any], digits: Digits, exact: bool) -> NDArray[np.float64]:
    """Return floats in units of the last digit, rounded to whole numbers."""
    if name not in digits:
        raise TypeError(f"the floating-point field {name} has no digits")
    scaled = np.ldexp(values, np.array(digits[name], np.int32).reshape(_shape(values)))
    rounded: NDArray[np.float64] = np.rint(scaled)
    if exact and (rounded != scaled).any():
        raise TooFewDigits(f"{digits[name]} digits would round {name}, which has noise")
    return rounded


def _shape(values: NDArray[Any]) -> tuple[int, ...]:
    return (-1,) if values.ndim else ()


def _fields(request: Message) -> Iterator[tuple[str, bool, tuple[int, ...]]]:
    """Yield the fields of the reply to a request: name, whether it contains floats, and shape."""
    reply, lengths = request.reply, request.reply_lengths()
    marks = arrays(reply)
    for field in msgspec.structs.fields(reply):
        if field.name in marks:
            mark = marks[field.name]
            shape = tuple(lengths[axis] for axis in mark.axes)
            yield field.name, mark.dtype.startswith("float"), shape
        else:
            kind = msgspec.inspect.type_info(field.type)
            yield field.name, isinstance(kind, msgspec.inspect.FloatType), ()


def n_words(request: Message) -> int:
    """Return the number of words of a reply. The request determines the lengths of all axes."""
    return sum(prod(shape) for _, _, shape in _fields(request))


def from_words(request: Message, words: Words, digits: Digits) -> Any:
    """Return the reply, of the class of the request, that has the given words.

    Raises
    ------
    MessageError
        When a value breaks the annotation of its field.

    Examples
    --------
    >>> from fedlib.kmeans import MeasureInertia
    >>> request = MeasureInertia(np.zeros((1, 2)))
    >>> from_words(request, np.array([11], np.uint64), {"inertia": (2,)})
    Inertia(inertia=2.75)
    """
    values: dict[str, Any] = {}
    rest = words.view(np.int64)
    for name, is_float, shape in _fields(request):
        field, rest = rest[: prod(shape)].reshape(shape), rest[prod(shape) :]
        if is_float:
            places = np.array(digits[name], np.int32).reshape(_shape(field))
            field = np.ldexp(field.astype(np.float64), -places)
        values[name] = field if shape else field.item()
    return request.reply(**values)
