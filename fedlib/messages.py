"""Messages: what server and clients say to each other, and how it becomes bytes.

A message is a frozen class of typed fields. Requests are imperatives (``CountCells``), replies are
nouns (``CellCounts``). Two class attributes complete it:

- ``discloses``: in a few words, what its receiver learns. The ledger shows it beside the bytes.
- ``reply``: of a request, the class of its answer; `Done` unless it says otherwise. Where an answer
  has to fit its request in more than its class, the request's ``check`` says how.

The rules of the wire:

- A message is one MessagePack map with its class's name. An array is its dtype, its shape and its
  raw little-endian bytes.
- Decoding checks everything: the class, each field's type and range, each array's dtype, number of
  axes and lengths; floating point numbers are finite. Nothing is unpickled or evaluated. What does
  not pass is a `MessageError`.
- Two messages are equal when their bytes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, ClassVar, dataclass_transform, get_type_hints

import msgspec
import numpy as np

__all__ = [
    "Array",
    "Declined",
    "Done",
    "Failure",
    "FeatureNames",
    "Labels",
    "Message",
    "MessageError",
    "decode",
    "encode",
]

MAX_BYTES = 2**30
MAX_AXES = 32
MAX_EMPTY_AXIS = 2**16  # an array without elements costs no bytes, so its lengths need a bound
DTYPES = frozenset(
    ("bool", "uint8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
)

registry: dict[str, type[Message]] = {}


class MessageError(ValueError):
    """Bytes that are no valid message, or a message that breaks its own rules."""


@dataclass(frozen=True)
class Array:
    """What an array field must be, written in its annotation.

    Parameters
    ----------
    dtype : str
        Its dtype, one of bool, uint8, uint16, int32, uint32, int64, uint64, float32 and float64.
    axes : tuple of str
        A name for each axis. Axes of one message that share a name have the same length.
    ge, le : number, optional
        The least and the greatest value allowed. Floating point values are always finite.

    Examples
    --------
    >>> class Readings(Message):
    ...     discloses = "every reading"
    ...     times: Annotated[np.ndarray, Array("int64", ("readings",), ge=0)]
    ...     values: Annotated[np.ndarray, Array("float64", ("readings", "sensors"))]
    >>> Readings(times=np.arange(3), values=np.zeros((2, 4)))
    Traceback (most recent call last):
    ...
    fedlib.messages.MessageError: Readings.values has 2 readings, Readings.times 3
    """

    dtype: str
    axes: tuple[str, ...]
    ge: float | None = None
    le: float | None = None

    def problem(self, value: object) -> str | None:
        """Say what is wrong with a value, or None."""
        wanted = f"an array of {self.dtype} with axes ({', '.join(self.axes)})"
        if not isinstance(value, np.ndarray):
            return f"must be {wanted}, not {type(value).__name__}"
        if value.dtype != self.dtype or value.ndim != len(self.axes):
            return f"must be {wanted}, not of {value.dtype} with shape {value.shape}"
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return "must be finite"
        if value.size and self.ge is not None and value.min() < self.ge:
            return f"must be at least {self.ge}"
        if value.size and self.le is not None and value.max() > self.le:
            return f"must be at most {self.le}"
        return None


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
    """Base class of all messages; a subclass is entered in ``registry`` under its name.

    Raises
    ------
    MessageError
        When an array breaks the `Array` in its annotation, or a float is not finite.

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

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        if not getattr(cls, "discloses", None):
            raise TypeError(f"{cls.__name__} must say what it discloses")
        other = registry.get(cls.__name__, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there is a message {cls.__name__} already, in {other.__module__}")
        registry[cls.__name__] = cls

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float) and not isfinite(value):
                raise MessageError(f"{type(self).__name__}.{field} must be finite")
        lengths: dict[str, tuple[str, int]] = {}
        for field, array in arrays(type(self)).items():
            value = getattr(self, field)
            name = f"{type(self).__name__}.{field}"
            problem = array.problem(value)
            if problem:
                raise MessageError(f"{name} {problem}")
            for axis, length in zip(array.axes, value.shape, strict=True):
                first, wanted = lengths.setdefault(axis, (name, length))
                if length != wanted:
                    raise MessageError(f"{name} has {length} {axis}, {first} {wanted}")

    def check(self, reply: Message) -> None:
        """Raise MessageError where a reply of the right class does not fit this request."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return encode(self) == encode(other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # msgspec has a __ne__ of its own

    __hash__ = None  # type: ignore[assignment]


@cache
def arrays(message_class: type[Message]) -> dict[str, Array]:
    """Return the `Array` of each array field of a message class."""
    hints = get_type_hints(message_class, include_extras=True)
    return {
        field: mark
        for field in message_class.__struct_fields__
        for mark in getattr(hints[field], "__metadata__", ())
        if isinstance(mark, Array)
    }


class Done(Message):
    """The answer to a request that only tells."""

    discloses = "nothing"


Message.reply = Done


class Declined(Message):
    """The answer of a passive client to any request for its data."""

    discloses = "nothing"


# No name at all where the features have none.
FeatureNames = Annotated[tuple[str, ...], msgspec.Meta(max_length=2**16)]


class Labels(Message):
    """The state of a client that knows the cluster of each of its rows (-1: noise)."""

    discloses = "nothing: it stays with the client"
    labels: Annotated[np.ndarray, Array("int64", ("rows",), ge=-1)]


class Failure(Message):
    """What stands in the place of a reply that could not be given.

    It carries the error's type and never its text, which may hold data.
    """

    discloses = "the type of an error"
    error: Annotated[str, msgspec.Meta(pattern=r"^\w{1,100}\Z")]


@cache
def _little(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """Return a dtype's name, which numpy is slow to find, and the dtype in little-endian order."""
    return dtype.name, dtype.newbyteorder("<")


def _to_wire(value: object) -> object:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"a message cannot hold a {type(value).__name__}")
    name, dtype = _little(value.dtype)
    if name not in DTYPES:
        raise NotImplementedError(f"a message cannot hold an array of {value.dtype}")
    little = np.ascontiguousarray(value, dtype)
    return name, value.shape, little.data if little.size else b""


def _from_wire(raw: msgspec.Raw) -> np.ndarray:
    dtype, shape, data = _array_decoder.decode(raw)
    if dtype not in DTYPES:
        raise ValueError("an array of an unknown dtype")
    if min(shape, default=0) < 0 or max(shape, default=0) > max(len(data), MAX_EMPTY_AXIS):
        raise ValueError("an array with an axis of an impossible length")
    array = np.frombuffer(data, _little(np.dtype(dtype))[1]).reshape(shape)
    if dtype == "bool" and (array.view("uint8") > 1).any():
        raise ValueError("a bool that is neither 0 nor 1")
    return array


class _Tag(msgspec.Struct):
    type: str


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_tag_decoder = msgspec.msgpack.Decoder(_Tag)


_array_decoder = msgspec.msgpack.Decoder(
    tuple[str, Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_AXES)], bytes]
)


def _is_array(hint: Any) -> bool:
    return getattr(hint, "__origin__", hint) is np.ndarray


@cache
def _decoder(message_class: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of the message's fields that leaves its arrays as they are on the wire.

    Arrays are read by their own decoder, so that no bytes become more than a few times their size
    in memory before they have been checked.
    """
    hints = get_type_hints(message_class, include_extras=True)
    fields: list[Any] = [
        (field.name, msgspec.Raw if _is_array(hints[field.name]) else hints[field.name])
        + (() if field.required else (field.default,))
        for field in msgspec.structs.fields(message_class)
    ]
    name = message_class.__name__
    return msgspec.msgpack.Decoder(
        msgspec.defstruct(name, fields, tag=name, forbid_unknown_fields=True)
    )


def encode(message: Message) -> bytes:
    """Return a message's bytes; the same message always gives the same bytes.

    Raises
    ------
    MessageError
        When it holds what a message cannot hold.
    """
    try:
        return _encoder.encode(message)
    except (NotImplementedError, OverflowError, TypeError, ValueError) as error:
        raise MessageError(f"{type(message).__name__} cannot be sent: {error}") from error


def decode(data: bytes, *expected: type[Message], max_bytes: int = MAX_BYTES) -> Message:
    """Return the message that the bytes hold. Its arrays are read-only.

    Parameters
    ----------
    data : bytes
    *expected : message classes
        The classes that are acceptable here; by default all.
    max_bytes : int
        The greatest size accepted, in bytes.

    Raises
    ------
    MessageError
        When the bytes are truncated, too many, no message, a message of an unknown or unexpected
        class, or one whose fields break their rules.

    Examples
    --------
    >>> decode(encode(Done()))
    Done()
    >>> decode(encode(Done()), Failure)
    Traceback (most recent call last):
    ...
    fedlib.messages.MessageError: a Done where Failure was expected
    >>> decode(b"Done")
    Traceback (most recent call last):
    ...
    fedlib.messages.MessageError: not a message: Expected `object`, got `int`
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
            raise MessageError(f"a {name} where {wanted} was expected")
        wire = _decoder(message_class).decode(data)
        values = {field: getattr(wire, field) for field in wire.__struct_fields__}
        for field, value in values.items():
            if isinstance(value, msgspec.Raw):
                values[field] = _from_wire(value)
        return message_class(**values)
    except MessageError:
        raise
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise MessageError(f"not a message: {error}") from error
