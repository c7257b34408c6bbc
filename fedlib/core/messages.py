"""Messages between the server and its clients, and their encoding as bytes.

A message is a frozen class of typed fields. Requests are imperatives (``CountCells``), replies are
nouns (``CellCounts``). Class attributes complete it:

- ``discloses``: the information that the receiver gets, which the ledger shows next to the size.
- ``reply``: for a request, the class of its reply; by default `Done`.
- ``asks_for_data``: for a request, whether a passive client declines it; by default True. Set it to
  False for a request that only delivers a result.
- ``grouped_by``, ``extremes``: for a reply, what the rules of a site need to know.

The annotations and the request also bound the size of a reply, if they can (`Message.reply_limit`).
The size of many replies depends on the site's data alone, such as that of its occupied cells; they
have only the bound of the transport.

The wire format:

- A message is one MessagePack map that contains the name of its class. An array is its dtype, its
  shape and its raw little-endian bytes.
- Decoding checks everything: the class, the type and range of each field, the dtype, count of axes
  and lengths of each array. Floating point numbers must be finite. Nothing is unpickled or
  evaluated. A failed check raises `MessageError`.
- Two messages are equal when their bytes are equal.

How much work a request may ask for, judged from the request alone, before it is computed.

A request states the operations per row and feature (`Message.work`), and for how many values a
client needs memory whatever its rows are (`Message.memory`). The noise of a reply is drawn for each
value, whatever the rows are, and counts as operations, too. The count of the rows plays no part: a
refusal that depends on it would disclose it. So the time for a reply grows with the rows of the
site, and the limit is one per row. It also holds for requests that deliver a result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import cache
from math import isfinite, prod
from typing import Annotated, Any, ClassVar, NamedTuple, dataclass_transform, get_type_hints

import msgspec
import numpy as np

from fedlib.core.array_fields import (
    Array,
    MessageError,
    OnWire,
    arrays,
    check_arrays,
    check_lengths,
    from_wire,
    to_wire,
)

__all__ = [
    "Array",
    "Declined",
    "Done",
    "Failure",
    "FeatureNames",
    "Labels",
    "Message",
    "MessageError",
    "arrays",
    "check_arrays",
    "decode",
    "encode",
]

MAX_BYTES = 2**30
registry: dict[str, type[Message]] = {}

_DECODING_ERRORS = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


@dataclass_transform(frozen_default=True)
class Message(
    msgspec.Struct,
    frozen=True,
    eq=False,
    tag=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """Base class of all messages. A subclass is added to ``registry`` under its name.

    Attributes
    ----------
    discloses : str
        The information that the receiver gets, in a few words. Every subclass must set it.
    reply : message class, default=Done
        For a request, the class of its reply.
    asks_for_data : bool, default=True
        For a request, whether a passive client declines it.
    grouped_by : str, default=""
        For a reply whose values belong to groups of rows, the field with the count of rows of each
        group, if a site may leave out the small ones; see `fedlib.protection.policy`.
    per_group : tuple of str, default=()
        For a reply, the fields that are tuples with one number per group, besides its arrays.
    tolerated : bool, default=False
        For a request, whether the flow catches `fedlib.core.protocol.GroupsTooSmall`.
    advice : str, default=""
        For a request, what a user can do if sites decline it because groups of rows are too small.
    needs : str, default=""
        For a request, what a client that cannot handle it lacks, and the remedy.
    extremes : bool, default=False
        For a reply, whether it contains the smallest or the largest value of a feature.
    begins : bool, default=False
        For a request that delivers something, whether the client forgets all earlier results.
    remains : bool, default=False
        For a request that delivers something, whether that outlives a request which ``begins``.
    effortless : tuple of str, default=()
        For a request, the fields with integers that do not multiply its work (`work`).
    reply_axes : mapping of str to (int or str), default={}
        For a request, the lengths of axes of the reply's arrays, by the names of the axes. Each is
        a number, a field or property of the request (an integer, or something with so many
        entries), or an axis of the request's arrays. `reply_lengths` and `accept` follow from them.
    combine : callable, default=None
        For a reply, a static method that adds up several; see `fedlib.core.protocol.Combined`.

    Raises
    ------
    MessageError
        When an array breaks the `Array` in its annotation, or a float is not finite.
    TypeError
        When a subclass does not set ``discloses``, or its name is already in use.

    Examples
    --------
    >>> class Heights(Message):
    ...     discloses = "the heights"
    ...     values: Annotated[np.ndarray, Array("float64", ("people",), ge=0)]
    >>> heights = Heights(np.array([1.8, 1.6]))
    >>> decode(encode(heights)) == heights
    True
    """

    discloses: ClassVar[str]
    reply: ClassVar[type[Message]]
    asks_for_data: ClassVar[bool] = True
    grouped_by: ClassVar[str] = ""
    per_group: ClassVar[tuple[str, ...]] = ()
    tolerated: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    extremes: ClassVar[bool] = False
    begins: ClassVar[bool] = False
    remains: ClassVar[bool] = False
    effortless: ClassVar[tuple[str, ...]] = ()
    reply_axes: ClassVar[Mapping[str, int | str]] = {}
    combine: ClassVar[Any] = None

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        if not getattr(cls, "discloses", None):
            raise TypeError(f"{cls.__name__} must set discloses, a text about the disclosed data")
        other = registry.get(cls.__name__, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"a message {cls.__name__} already exists, in {other.__module__}")
        registry[cls.__name__] = cls

    def __post_init__(self) -> None:
        kind = type(self)
        rules = _rules(kind)
        for field, default in rules.defaults:
            value = getattr(self, field)  # msgspec omits a default only if it is the same object
            if value is not default and type(value) is type(default) and value == default:
                msgspec.structs.force_setattr(self, field, default)
        check_arrays(self)
        for field in rules.scalars:
            value = getattr(self, field)
            if isinstance(value, float) and not isfinite(value):
                raise MessageError(f"{kind.__name__}.{field} must be finite")

    def accept(self, reply: Message) -> Any:
        """Return what the flow receives for a reply of the class ``reply``: by default the reply.

        By default, the axes of its arrays must have the lengths of ``reply_axes``. Override it to
        check more of the reply, or to decode its content.

        Raises
        ------
        MessageError
            When the reply does not fit this request.
        """
        check_lengths(reply, self._exact_lengths())
        return reply

    def reply_limit(self) -> int:
        """Return the maximum size of a reply to this request, in bytes (`size_limit`)."""
        lengths = self.reply_lengths()
        return max(size_limit(kind, lengths) for kind in (self.reply, Declined, Failure))

    def reply_lengths(self) -> Mapping[str, int]:
        """Return the lengths, or the largest lengths, of axes of the reply's arrays by their names.

        A server refuses a larger reply before it reads it. By default they are those of
        ``reply_axes``. Override it in a request that determines only the largest lengths.
        """
        return self._exact_lengths()

    def _exact_lengths(self) -> dict[str, int]:
        """Return the lengths of ``reply_axes``."""
        if not self.reply_axes:
            return {}
        own = {
            axis: length
            for field, array in arrays(type(self)).items()
            for axis, length in zip(array.axes, getattr(self, field).shape, strict=True)
        }
        lengths = {}
        for axis, of in self.reply_axes.items():
            found: Any = own.get(str(of), of)
            if isinstance(found, str):
                found = getattr(self, found)
            lengths[axis] = found if isinstance(found, int) else len(found)
        return lengths

    def work(self) -> float:
        """Return the operations per row and feature for the reply, up to a small constant factor.

        Override it in a request that needs fewer. By default, each row is compared with each entry
        of all sequences and with each 8 bytes of arrays, as many times as the product of the
        integers says that are not `effortless`: a request that is forgotten is refused rather than
        computed. The rows themselves play no part, so that a refusal discloses nothing about them.
        """
        n_entries, n_times = 0.0, 1.0
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, np.ndarray):
                n_entries += value.nbytes / 8
            elif isinstance(value, str | bytes):
                n_entries += len(value) / 8
            elif isinstance(value, tuple | dict):
                n_entries += len(value)
            elif type(value) is int and field not in self.effortless:
                n_times *= max(1, value)
        return max(1.0, n_entries) * n_times

    def memory(self) -> float:
        """Return the count of values for which a client needs memory, whatever its rows are."""
        return self.reply_size()

    def reply_size(self) -> float:
        """Return the count of values in the arrays of the reply, as `reply_lengths` says."""
        lengths = self.reply_lengths()
        marks = arrays(self.reply).values()
        return sum(
            prod(float(min(lengths.get(axis, 1), 2**1000)) for axis in mark.axes) for mark in marks
        )

    def effective(self, n_features: int) -> Mapping[str, Any]:
        """Return the parameters that this request amounts to, where a field does not state them.

        A rule of a site about a parameter is about this value, at a client with ``n_features``.
        """
        return {}

    def sum_digits(self, n_clients: int) -> Mapping[str, tuple[int, ...]] | None:
        """Return the binary digits after the point of the reply's fields of floats in secure sums.

        ``n_clients`` is the count of clients of the run.

        Override it in a request whose reply is a sum of what each row adds: a site refuses other
        digits. By default None: the reply is no such sum, and a site does not mask it.
        """
        return None

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return encode(self) == encode(other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # msgspec defines its own __ne__

    __hash__ = None  # type: ignore[assignment]


class _Rules(NamedTuple):
    """The checks of a message class, found once.

    Attributes
    ----------
    defaults : tuple of (str, object)
        The fields that have a default, with it.
    scalars : tuple of str
        The fields without an array.
    """

    defaults: tuple[tuple[str, Any], ...]
    scalars: tuple[str, ...]


@cache
def _rules(message_class: type[Message]) -> _Rules:
    fields, defaults = message_class.__struct_fields__, message_class.__struct_defaults__
    return _Rules(
        defaults=tuple(zip(fields[len(fields) - len(defaults) :], defaults, strict=True)),
        scalars=tuple(field for field in fields if field not in arrays(message_class)),
    )


def size_limit(message_class: type[Message], lengths: Mapping[str, int] | None = None) -> int:
    """Return the maximum size of the messages of a class, in bytes.

    It follows from the annotations. A class with an array that has an axis of unknown length, or
    with a text or a sequence without a ``max_length``, has no bound of its own, and the result is
    ``MAX_BYTES``.

    Parameters
    ----------
    message_class : message class
    lengths : mapping of str to int, optional
        The known lengths of axes, by their names.

    Examples
    --------
    >>> size_limit(Done)
    18
    >>> size_limit(Labels) == MAX_BYTES
    True
    >>> size_limit(Labels, {"rows": 1000}) - size_limit(Labels, {"rows": 0})
    8000
    """
    known = lengths or {}
    size = _fixed_size(message_class)
    for array in arrays(message_class).values():
        if not known.keys() >= set(array.axes):
            return MAX_BYTES
        # an array of three values: a text, an array of numbers, and bytes
        size += _HEADER + len(array.dtype) + _HEADER + _NUMBER * len(array.axes) + 2 * _HEADER
        size += np.dtype(array.dtype).itemsize * prod(known[axis] for axis in array.axes)
    return min(size, MAX_BYTES)


@cache
def _fixed_size(message_class: type[Message]) -> int:
    """Return the maximum size of the messages of a class without the values of arrays."""
    hints = get_type_hints(message_class, include_extras=True)
    size = _HEADER + len("type") + _HEADER + len(message_class.__name__)
    for field in message_class.__struct_fields__:
        size += _HEADER + len(field)
        if field not in arrays(message_class):
            size += _bound(msgspec.inspect.type_info(hints[field]))
    return size


_HEADER = 5  # the most bytes that MessagePack puts before a text, a sequence or a map
_NUMBER = 9  # the most bytes of a number, a truth value or nothing


def _bound(kind: msgspec.inspect.Type) -> int:
    """Return the maximum size of a value of a type, at least ``MAX_BYTES`` if it has none."""
    match kind:
        case (
            msgspec.inspect.IntType()
            | msgspec.inspect.FloatType()
            | msgspec.inspect.BoolType()
            | msgspec.inspect.NoneType()
        ):
            return _NUMBER
        case msgspec.inspect.LiteralType(values):
            return max(_HEADER + 4 * len(str(value)) for value in values)
        case msgspec.inspect.StrType(max_length=int(length)):
            return _HEADER + 4 * length  # of UTF-8
        case msgspec.inspect.BytesType(max_length=int(length)):
            return _HEADER + length
        case msgspec.inspect.UnionType(types):
            return max(map(_bound, types))
        case msgspec.inspect.TupleType(items):
            return _HEADER + sum(map(_bound, items))
        case msgspec.inspect.VarTupleType(item, max_length=int(length)):
            return _HEADER + length * _bound(item)
    return MAX_BYTES


class Done(Message):
    """The reply to a request that only delivers something."""

    discloses = "nothing"


Message.reply = Done


class Declined(Message):
    """The reply of a client that does not share the requested data.

    A passive client gives no rule. A site with a policy gives the name of the rule that forbids the
    reply; see `fedlib.protection.policy`.
    """

    discloses = "nothing"
    rule: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{0,32}\Z", max_length=32)] = ""


# Empty when the features have no names.
FeatureNames = Annotated[tuple[str, ...], msgspec.Meta(max_length=2**16)]


class Labels(Message):
    """The state of a client that knows the cluster of each of its rows (-1: noise)."""

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=-1)]


class Failure(Message):
    """Sent instead of a reply when a client fails.

    It carries the type of the error and never its text, which may contain data.
    """

    discloses = "the type of an error"
    error: Annotated[str, msgspec.Meta(pattern=r"^\w{1,100}\Z", max_length=100)]


class _Tag(msgspec.Struct):
    type: str


_encoder = msgspec.msgpack.Encoder(enc_hook=to_wire)
_tag_decoder = msgspec.msgpack.Decoder(_Tag)


class _OnWire(NamedTuple):
    """The decoder of a message class, and the fields that it leaves as an `OnWire` each."""

    decoder: msgspec.msgpack.Decoder[Any]
    arrays: tuple[str, ...]


@cache
def _on_wire(message_class: type[Message]) -> _OnWire:
    hints = get_type_hints(message_class, include_extras=True)
    arrays = [key for key, hint in hints.items() if getattr(hint, "__origin__", hint) is np.ndarray]
    fields: list[Any] = [
        (field.name, OnWire if field.name in arrays else hints[field.name])
        + (() if field.required else (field.default,))
        for field in msgspec.structs.fields(message_class)
    ]
    name = message_class.__name__
    wire = msgspec.defstruct(name, fields, tag=name, forbid_unknown_fields=True, kw_only=True)
    return _OnWire(msgspec.msgpack.Decoder(wire), tuple(arrays))


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Equal messages give equal bytes.

    Raises
    ------
    MessageError
        When the value of a field has a type that cannot be sent.
    """
    try:
        return _encoder.encode(message)
    except (NotImplementedError, OverflowError, TypeError, ValueError) as error:
        raise MessageError(f"{type(message).__name__} cannot be sent: {error}") from error


def class_name(data: bytes) -> str:
    """Return the name of the class of an encoded message, without a check of anything else.

    It is empty if there is none.

    Examples
    --------
    >>> class_name(encode(Done())), class_name(b"Done")
    ('Done', '')
    """
    try:
        return _tag_decoder.decode(data).type
    except msgspec.MsgspecError:
        return ""


def decode(
    data: bytes, *expected: type[Message], max_bytes: int = MAX_BYTES, aligned: bool = True
) -> Message:
    """Return the message in the bytes. Its arrays are read-only; they may be views of the bytes.

    Parameters
    ----------
    data : bytes
    *expected : message classes
        The classes that are accepted; by default all.
    max_bytes : int, default=2**30
        The maximum size, in bytes.
    aligned : bool, default=True
        Whether arrays are at aligned addresses, as kernels need them. A mere check does without.

    Raises
    ------
    MessageError
        When the bytes are truncated, larger than ``max_bytes`` or not a message; when the class is
        unknown or unexpected; when a field breaks its rules.

    Examples
    --------
    >>> decode(encode(Done()))
    Done()
    >>> decode(encode(Done()), Failure)
    Traceback (most recent call last):
    ...
    fedlib.core.array_fields.MessageError: expected Failure, got Done
    >>> decode(b"Done")
    Traceback (most recent call last):
    ...
    fedlib.core.array_fields.MessageError: not a message: Expected `object`, got `int`
    """
    if len(data) > max_bytes:
        raise MessageError(f"a message of {len(data)} bytes, at most {max_bytes} are allowed")
    try:
        name = _tag_decoder.decode(data).type
        message_class = registry.get(name)
        if message_class is None:
            raise MessageError(f"a message of the unknown class {name[:100]!r}")
        if expected and message_class not in expected:
            wanted = " or ".join(c.__name__ for c in expected)
            raise MessageError(f"expected {wanted}, got {name}")
        on_wire = _on_wire(message_class)
        values = msgspec.structs.asdict(on_wire.decoder.decode(data))
        for field in on_wire.arrays:
            values[field] = from_wire(values[field], aligned)
        return message_class(**values)
    except MessageError:
        raise
    except _DECODING_ERRORS as error:
        raise MessageError(f"not a message: {error}") from error


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


MAX_VALUES = MAX_BYTES // 8  # of one reply
MAX_WORK = 10**8  # operations per row and feature for one reply: a second per row at most
NOISE = 20  # operations for the noise of one value: `MAX_WORK` draws for two minutes
STEP = 100  # operations of one step of an iteration, however few rows and centres there are


class TooMuchWork(ValueError):
    """A request asks for more operations or memory than the client is willing to spend."""


def cost_error(request: Message, most: float) -> str:
    """Return why a client should refuse a request; empty if it may answer.

    Parameters
    ----------
    request : Message
    most : float
        The most operations per row and feature.

    Examples
    --------
    >>> from fedlib.clustering.kmeans.messages import FindCentres
    >>> cost_error(FindCentres(3, 0.25, n_init=2**40, max_iter=300, tol=0.0, seed=0), MAX_WORK)
    'FindCentres needs 4.53e+16 operations per row and feature, more than max_work=1e+08'
    """
    name, work, n_values = type(request).__name__, work_of(request), request.memory()
    if work > most:
        return (
            f"{name} needs {work:.3g} operations per row and feature, more than max_work={most:.3g}"
        )
    if n_values > MAX_VALUES:
        return f"{name} asks for {n_values:.3g} values, more than {MAX_VALUES}"
    return ""


def work_of(request: Message) -> float:
    """Return the operations of a request: those per row and feature, and those of its noise."""
    n_noises = 0.0 if privacy_of(request) is None else request.reply_size()
    return request.work() + NOISE * n_noises


def check_work(request: Message, most: float) -> None:
    """Raise TooMuchWork when a client should refuse a request; see `cost_error`."""
    if problem := cost_error(request, most):
        raise TooMuchWork(problem)
