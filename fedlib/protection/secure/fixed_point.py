"""Replies as integers modulo 2**64, so that masks hide them and cancel out exactly.

Integers are sums of integers. A floating-point field has a count of binary digits after the point:
what a row adds, ``x``, counts as ``rint(x * 2**digits)`` (`add_rows`). The sum over n rows is wrong
by at most ``n * 2**-(digits + 1)``, in addition to the rounding of sums to float64.

A value that is too large for 64 bits is reduced modulo 2**64, like the sum itself. An error or a
limit instead would show the server, without masks, that the value is so large. Digits follow from
what a request states, so that honest values cannot be too large, and each site computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, log2, prod
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.core.array_types import Floats, Ints, Words
from fedlib.core.messages import Message, MessageError, arrays

Digits = Mapping[str, tuple[int, ...]]
Reply = TypeVar("Reply", bound=Message)

LIMIT = 63  # bits of a positive number
BLOCK = 2**15  # terms that are rounded at a time, and fit into a cache
SMALLEST = 2.0**-600
NUMBERS = {msgspec.inspect.IntType: "int", msgspec.inspect.FloatType: "float"}
MIN_DIGITS = 8  # with fewer, a sum of rounded values could be a count of the larger ones


class WrongDigits(ValueError):
    """The digits after the point are not those of the request, or are too few."""


def digits_for(largest: float, n_clients: int) -> int:
    """Return the digits after the point for a field.

    Parameters
    ----------
    largest : float
        A bound on the absolute value of every client's entries; positive.
    n_clients : int

    Raises
    ------
    ValueError
        When there would be fewer than `MIN_DIGITS`, which no site accepts.

    Examples
    --------
    Ten clients, entries within ±1000: the sum has 49 digits after the point.

    >>> digits_for(1000.0, 10)
    49
    """
    digits = 0  # for infinity, too
    if largest < 2.0**LIMIT:
        digits = LIMIT - ceil(log2(n_clients)) - ceil(log2(largest))
    if digits < MIN_DIGITS:
        raise ValueError(
            f"a secure sum over {n_clients} clients must be below 2**{LIMIT - MIN_DIGITS}, but a"
            f" client's part of it can be {largest:.3g}; scale the features (or the targets and"
            " weights), so that they are smaller"
        )
    return digits


def digits_of_limits(limits: Mapping[str, ArrayLike], n_clients: int) -> dict[str, tuple[int, ...]]:
    """Return the digits after the point for fields with limits.

    Parameters
    ----------
    limits : mapping of str to float or array-like (n_entries,)
        For each field, the largest absolute value of every client's entries: one, or one per entry
        of the last axis. A limit below `SMALLEST` counts as it, so that limits of 0 have digits.
    n_clients : int

    Raises
    ------
    ValueError
        As `digits_for`.

    Examples
    --------
    >>> digits_of_limits({"sums": [1000.0, 1.0], "inertia": 4.0}, n_clients=10)
    {'sums': (49, 59), 'inertia': (57,)}
    """
    return {
        name: tuple(
            digits_for(one, n_clients)
            for one in np.maximum(np.atleast_1d(limit), SMALLEST).tolist()
        )
        for name, limit in limits.items()
    }


def check_digits(request: Message, digits: Digits, wanted: Digits | None) -> None:
    """Check, before rows are read, that replies to a request can be added with these digits.

    Parameters
    ----------
    request : Message
        The request of the protocol.
    digits : mapping of str to tuple of int
        What a server has sent.
    wanted : mapping of str to tuple of int, or None
        The digits that follow from the request (`Message.sum_digits`); None if it states none.

    Raises
    ------
    WrongDigits
        When the digits are not the wanted ones, or a field has none or cannot be added.

    Examples
    --------
    >>> from fedlib.protection.secure.points import CountPoints
    >>> check_digits(CountPoints(), {"n_points": (8,)}, {})
    Traceback (most recent call last):
    ...
    fedlib.protection.secure.fixed_point.WrongDigits: n_points must have the digits None after \
the point, got (8,)
    """
    if wanted is None:  # a threshold of a site's own sum would show the sums of single sites
        raise WrongDigits(
            f"{type(request).__name__} cannot be masked: it does not state that its reply is a sum"
            " over rows (sum_digits)"
        )
    for name in {**wanted, **digits}:
        if digits.get(name) != wanted.get(name):
            raise WrongDigits(
                f"{name} must have the digits {wanted.get(name)} after the point, got"
                f" {digits.get(name)}"
            )
    for name, kind in _kinds(request.reply).items():
        if kind not in ("int", "float") or (kind == "float" and name not in wanted):
            raise WrongDigits(
                f"{type(request).__name__} cannot be masked: it states no digits of {name}"
            )


@cache  # a masked run asks for it in every step
def _kinds(reply: type[Message]) -> dict[str, str]:
    """Return for each field whether it contains numbers of the type int or float, or others."""
    marks, kinds = arrays(reply), {}
    for name, kind in _types(reply).items():
        if name in marks:
            kinds[name] = marks[name].dtype.rstrip("0123456789")
        else:
            kinds[name] = NUMBERS.get(type(msgspec.inspect.type_info(kind)), "others")
    return kinds


@dataclass(frozen=True)
class WordSums:
    """What a handler returns behind masks: the words of a reply, which has no class with limits.

    A limit of a site's own sum would be a threshold, and float64 would round the sum.
    """

    words: Words


def add_rows(
    terms: ArrayLike,
    digits: Digits | None,
    name: str,
    groups: Ints | None = None,
    n_groups: int = 1,
) -> NDArray[Any]:
    """Return sums of what rows add; behind masks, of terms that are rounded to the last digit.

    So the sum of a site is a sum over its rows, however coarse the digits are, and the sums of two
    halves add up to that of all rows, modulo 2**64. A term that is not finite counts as 0.

    Parameters
    ----------
    terms : array-like (n_rows, n_terms)
    digits : mapping of str to tuple of int, or None
        The digits after the point of each field: one number, or one per term. None without masks.
    name : str
        The field of the reply.
    groups : array (n_rows,) of int64, optional
        The group to which each row adds; by default all rows add to one.
    n_groups : int, default=1

    Returns
    -------
    array (n_groups, n_terms)
        Sums of float64 without digits. Otherwise sums in units of the last digit, modulo 2**64, of
        int64.

    Examples
    --------
    A site with three rows does not show that it has more than one, because each is less than half.

    >>> add_rows([[0.25], [0.25], [0.25]], {"weight": (0,)}, "weight")
    array([[0]])
    >>> add_rows([[0.25], [0.25], [0.25]], None, "weight")
    array([[0.75]])
    """
    terms = np.asarray(terms, np.float64)
    n_terms = terms.shape[1]
    sums = np.zeros((n_groups, n_terms), np.float64 if digits is None else np.uint64)
    size = max(1, BLOCK // max(1, n_terms))
    for start in range(0, len(terms), size):
        values = terms[start : start + size]
        if digits is not None:
            values = _modulo(_scaled(name, values, digits))
        if groups is None:
            sums[0] += values.sum(axis=0)
        else:
            places = groups[start : start + size, np.newaxis] * n_terms + np.arange(n_terms)
            np.add.at(sums.reshape(-1), places.ravel(), values.ravel())
    return sums if digits is None else sums.view(np.int64)


def summed(reply: type[Reply], digits: Digits | None, **fields: Any) -> Reply:
    """Return a reply whose floats are results of `add_rows`; behind masks, its words.

    Parameters
    ----------
    reply : message class
    digits : mapping of str to tuple of int, or None
        Those of the request (`Client.row_digits`); None without masks.
    **fields
        All fields of the reply.

    Examples
    --------
    >>> from fedlib.clustering.kmeans.messages import Inertia
    >>> for digits in (None, {"inertia": (2,)}):
    ...     sums = add_rows([[1.25], [1.5]], digits, "inertia")
    ...     print(summed(Inertia, digits, inertia=sums[0, 0]))
    Inertia(inertia=2.75)
    WordSums(words=array([11], dtype=uint64))
    """
    if digits is None:
        numbers = {k: v.item() if isinstance(v, np.generic) else v for k, v in fields.items()}
        return reply(**numbers)
    parts = [np.asarray(fields[name]).ravel() for name in reply.__struct_fields__]
    words: Any = WordSums(np.concatenate([one.astype(np.int64).view(np.uint64) for one in parts]))
    return cast(Reply, words)


def to_words(reply: Message | WordSums, digits: Digits) -> Words:
    """Return all fields of a reply, one after the other, modulo 2**64.

    Parameters
    ----------
    reply : Message or WordSums
        The fields of a message are numbers and arrays of int64 or float64.
    digits : mapping of str to tuple of int
        For each field of floats, the digits after the point: one number, or one per entry of the
        last axis.

    Returns
    -------
    array (n_words,) of uint64

    Raises
    ------
    TypeError
        When a field cannot be added, or has no digits.

    Examples
    --------
    >>> from fedlib.clustering.kmeans.messages import Inertia
    >>> to_words(Inertia(2.75), {"inertia": (2,)})
    array([11], dtype=uint64)
    >>> to_words(Inertia(2.0**70 + 2.0**20), {"inertia": (0,)})  # modulo 2**64
    array([1048576], dtype=uint64)
    """
    if isinstance(reply, WordSums):
        return reply.words
    parts = [np.empty(0, np.uint64)]
    for name in reply.__struct_fields__:
        values = np.asarray(getattr(reply, name))
        if values.dtype.kind == "f":
            words = _modulo(_scaled(name, values, digits))
        elif values.dtype.kind in "iu":
            words = values.astype(np.int64).view(np.uint64)
        else:
            raise TypeError(f"{type(reply).__name__}.{name} cannot be added")
        parts.append(words.ravel())
    return np.concatenate(parts)


def _scaled(name: str, values: NDArray[Any], digits: Digits) -> Floats:
    """Return floats in units of the last digit, rounded to integers; 0 for what is infinite."""
    if name not in digits:
        raise TypeError(f"the floating-point field {name} has no digits")
    scale = np.ldexp(1.0, np.array(digits[name], np.int32).reshape(_shape(values)))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled: Floats = np.rint(values * scale)
    finite = np.isfinite(scaled)
    return scaled if finite.all() else np.where(finite, scaled, 0.0)


def _modulo(values: Floats) -> Words:
    """Return integers modulo 2**64.

    From 2**63 on, a float is a multiple of 2**11, so its remainder is exact, and so is the sum of
    a negative remainder and 2**64.
    """
    large = np.abs(values) >= 2.0**LIMIT
    if not large.any():
        return values.astype(np.int64).view(np.uint64)
    words = np.where(large, 0.0, values).astype(np.int64).view(np.uint64)
    rest = np.fmod(values, 2.0**64)
    rest = np.where(rest < 0, rest + 2.0**64, rest)
    return np.where(large, np.where(large, rest, 0.0).astype(np.uint64), words)


def _shape(values: NDArray[Any]) -> tuple[int, ...]:
    return (-1,) if values.ndim else ()


def _fields(request: Message) -> Iterator[tuple[str, bool, tuple[int, ...]]]:
    """Yield the fields of the reply to a request: name, whether it contains floats, and shape."""
    marks, lengths = arrays(request.reply), request.reply_lengths()
    for name, kind in _kinds(request.reply).items():
        shape = tuple(lengths[axis] for axis in marks[name].axes) if name in marks else ()
        yield name, kind == "float", shape


def n_words(request: Message) -> int:
    """Return the count of words of a reply. The request determines the lengths of all axes."""
    return sum(prod(shape) for _, _, shape in _fields(request))


def from_words(request: Message, words: Words, digits: Digits) -> Any:
    """Return the reply, of the class of the request, that has the given words.

    Raises
    ------
    MessageError
        When a value breaks the annotation of its field.

    Examples
    --------
    >>> from fedlib.clustering.kmeans.messages import MeasureInertia
    >>> request = MeasureInertia(np.zeros((1, 2)))
    >>> from_words(request, np.array([11], np.uint64), {"inertia": (2,)})
    Inertia(inertia=2.75)
    """
    values: dict[str, Any] = {}
    kinds = _types(request.reply)
    rest = words.view(np.int64)
    for name, is_float, shape in _fields(request):
        field, rest = rest[: prod(shape)].reshape(shape), rest[prod(shape) :]
        if is_float:
            places = np.array(digits[name], np.int32).reshape(_shape(field))
            field = np.ldexp(field.astype(np.float64), -places)
        values[name] = field if shape else _checked(field.item(), kinds[name])
    return request.reply(**values)


@cache
def _types(reply: type[Message]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(reply)}


def _checked(value: Any, kind: Any) -> Any:
    """Return a number of a message, whose class checks its arrays only."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MessageError(str(error)) from error
