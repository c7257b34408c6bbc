"""The array fields of messages and models: annotations, checks of values and indices, bytes.

An array is sent as its dtype, its shape and its raw little-endian bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from math import prod
from typing import Annotated, Any, get_type_hints

import msgspec
import numpy as np

MAX_AXES = 32
OF_CLIENT = "features of the client"  # for `Array.below`
MAX_COUNT = 2**60  # of rows, also of all clients and with noise
PIECE = 2**15  # values that are checked at once
SMALL = 2**10  # bytes that are copied at once: a new object of bytes is aligned
MAX_EMPTY_AXIS = 2**16  # an array without elements costs no bytes, so its lengths need a bound
_NAMES = ("bool", "uint8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in _NAMES}  # as sent


# Dtype, shape and values. The values stay where they are in the message, so that unchecked bytes
# never occupy more than a few times their size in memory.
OnWire = tuple[str, Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_AXES)], memoryview]


class MessageError(ValueError):
    """Bytes that are not a valid message, or a message or model that breaks its own rules."""


@dataclass(frozen=True)
class Array:
    """The dtype, axes and range of an array field, written in its annotation.

    Parameters
    ----------
    dtype : str
        One of bool, uint8, uint16, int32, uint32, int64, uint64, float32 and float64.
    axes : tuple of str
        One name per axis. Axes of one message that share a name must have the same length.
    ge, le : number, optional
        The smallest and the largest value allowed. Floating point values must always be finite.
    below : str, default=""
        For indices, into what: every value is below its length. It is an axis or a sequence of the
        same object, or `OF_CLIENT`, for indices into the columns of the rows of the reader.

    Examples
    --------
    >>> from fedlib.core.messages import Message
    >>> class Readings(Message):
    ...     discloses = "every reading"
    ...     times: Annotated[np.ndarray, Array("int64", ("readings",), ge=0)]
    ...     values: Annotated[np.ndarray, Array("float64", ("readings", "sensors"))]
    >>> Readings(times=np.arange(3), values=np.zeros((2, 4)))
    Traceback (most recent call last):
    ...
    fedlib.core.array_fields.MessageError: Readings.values has 2 readings, Readings.times 3
    """

    dtype: str
    axes: tuple[str, ...]
    ge: float | None = None
    le: float | None = None
    below: str = ""

    def problem(self, value: object) -> str | None:
        """Return a description of the error in a value, or None if it is valid."""
        if not isinstance(value, np.ndarray):
            return f"must be {self._wanted()}, not {type(value).__name__}"
        dtype = DTYPES[self.dtype]
        if (value.dtype is not dtype and value.dtype != dtype) or value.ndim != len(self.axes):
            return f"must be {self._wanted()}, not of {value.dtype} with shape {value.shape}"
        is_float = dtype.kind == "f"
        if value.size and (is_float or self.ge is not None or self.le is not None):
            for piece in [value] if value.size <= PIECE else _pieces(value):
                if is_float and np.count_nonzero(np.isfinite(piece)) < piece.size:
                    return "must be finite"
                # `reduce` takes half the time of `min` for a small array.
                if self.ge is not None and np.minimum.reduce(piece, axis=None) < self.ge:
                    return f"must be at least {self.ge}"
                if self.le is not None and np.maximum.reduce(piece, axis=None) > self.le:
                    return f"must be at most {self.le}"
        return None

    def _wanted(self) -> str:
        return f"an array of {self.dtype} with axes ({', '.join(self.axes)})"


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the values in pieces that stay in a cache while they are checked."""
    flat = values.reshape(-1)
    for first in range(0, flat.size, PIECE):
        yield flat[first : first + PIECE]


@cache
def arrays(kind: type) -> dict[str, Array]:
    """Return the `Array` of each array field of a message class or a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field: mark
        for field in getattr(kind, "__struct_fields__", hints)
        for mark in getattr(hints[field], "__metadata__", ())
        if isinstance(mark, Array)
    }


def check_arrays(value: Any) -> None:
    """Check the array fields of a message or a dataclass; a field that is None is left out.

    Raises
    ------
    MessageError
        When an array breaks the `Array` in its annotation, or two have another length of the same
        axis.
    """
    kind: type = type(value)
    for field, array in arrays(kind).items():
        content = getattr(value, field)
        if content is None and is_dataclass(kind):  # a field of a model that may be missing
            continue
        if problem := array.problem(content):
            raise MessageError(f"{kind.__name__}.{field} {problem}")
    for first, i, field, j, axis in _equal_lengths(kind):
        one, other = getattr(value, first), getattr(value, field)
        if one is not None and other is not None and one.shape[i] != other.shape[j]:
            name = kind.__name__
            text = f"{name}.{field} has {other.shape[j]} {axis}, {name}.{first} {one.shape[i]}"
            raise MessageError(text)
    for field, owner, place in _inner_indices(kind):
        if (target := getattr(value, owner)) is not None:
            _check_index(value, field, len(target) if place is None else target.shape[place])


@cache
def _equal_lengths(kind: type) -> tuple[tuple[str, int, str, int, str], ...]:
    """Return each two fields with their axes that must have the same length, and its name."""
    first: dict[str, tuple[str, int]] = {}
    equal = []
    for field, array in arrays(kind).items():
        for place, axis in enumerate(array.axes):
            if first.setdefault(axis, (field, place)) != (field, place):
                equal.append((*first[axis], field, place, axis))
    return tuple(equal)


def check_lengths(value: Any, lengths: Mapping[str, int]) -> None:
    """Check that the axes of the array fields have these lengths, by their names.

    Raises
    ------
    MessageError
        When an axis has another length.
    """
    kind: type = type(value)
    for field, array in arrays(kind).items() if lengths else ():
        for axis, length in zip(array.axes, getattr(value, field).shape, strict=True):
            if length != (wanted := lengths.get(axis, length)):
                text = f"{kind.__name__}.{field} has {length} {axis}, {wanted} were requested"
                raise MessageError(text)


def check_indices(value: Any, lengths: Mapping[str, int]) -> None:
    """Check the fields that are indices into something of the reader, which has these lengths.

    Raises
    ------
    MessageError
        When an index is too large.
    """
    kind: type = type(value)
    for field, target in index_fields(kind).items():
        if target in lengths:
            _check_index(value, field, lengths[target])


def _check_index(value: Any, field: str, length: int) -> None:
    kind: type = type(value)
    content = getattr(value, field)
    largest = -1 if content is None else np.max(content, initial=-1)
    if largest >= length:
        target = index_fields(kind)[field]
        text = f"{kind.__name__}.{field} must be below {length}, the count of {target}"
        raise MessageError(f"{text}, got {largest}")
    if content is not None and not isinstance(content, np.ndarray) and content < 0:
        raise MessageError(f"{kind.__name__}.{field} must be at least 0, got {content}")


@dataclass(frozen=True)
class Index:
    """Written in the annotation of one integer: it is an index into ``of``, from 0 on.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Choice(Checked):
    ...     models: tuple[str, ...]
    ...     best: Annotated[int, Index("models")]
    >>> Choice(("a", "b"), 2)
    Traceback (most recent call last):
    ...
    fedlib.core.array_fields.MessageError: Choice.best must be below 2, the count of models, got 2
    """

    of: str


class Checked:
    """Base class of the dataclasses of models: each checks its arrays and indices when it is made.

    A model file may come from a stranger, and kernels do not check their indices.
    """

    def __post_init__(self) -> None:
        check_arrays(self)


@cache
def index_fields(kind: type) -> dict[str, str]:
    """Return the fields of a message class or a dataclass that are indices, and into what."""
    found = {field: array.below for field, array in arrays(kind).items() if array.below}
    for field, hint in get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Index):
                found[field] = mark.of
    return found


@cache
def _inner_indices(kind: type) -> tuple[tuple[str, str, int | None], ...]:
    """Return each index into a field of the same object, that field, and its axis if any."""
    axes: dict[str, tuple[str, int | None]] = {}
    for field, array in arrays(kind).items():
        for place, axis in enumerate(array.axes):
            axes.setdefault(axis, (field, place))
    fields = get_type_hints(kind)
    owners = {target: axes.get(target, (target, None)) for target in index_fields(kind).values()}
    return tuple(
        (field, *owners[target])
        for field, target in index_fields(kind).items()
        if target in axes or target in fields
    )


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name; cached, because numpy is slow here."""
    return dtype.name


def to_wire(value: object) -> object:
    """Return an array as MessagePack can send it.

    Raises
    ------
    NotImplementedError
        When the value is no array, or one of a dtype that cannot be sent.
    """
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"a message cannot contain a {type(value).__name__}")
    name = _name(value.dtype)
    if name not in DTYPES:
        raise NotImplementedError(f"a message cannot contain an array of {value.dtype}")
    little = np.ascontiguousarray(value, DTYPES[name])
    return name, value.shape, little.data if little.size else b""


def from_wire(sent: OnWire, aligned: bool = True) -> np.ndarray:
    """Return the array that was sent, read-only and maybe a view of its bytes in the message.

    Without ``aligned``, the address of a large one may be of any kind, which saves a copy.

    Raises
    ------
    ValueError
        When these are not the parts of an array.
    """
    name, shape, data = sent
    dtype = DTYPES.get(name)
    if dtype is None:
        raise ValueError("an array of an unknown dtype")
    n_bytes = data.nbytes  # its len is wrong in msgspec 0.19
    if prod(shape) * dtype.itemsize != n_bytes:
        raise ValueError(f"an array with axes of an invalid length: {shape}, {n_bytes} bytes")
    if n_bytes == 0 and max(shape) > MAX_EMPTY_AXIS:
        raise ValueError("an empty array with an axis of an invalid length")
    values = data if n_bytes > SMALL else bytes(data)
    array: np.ndarray = np.ndarray(shape, dtype, values)  # raises ValueError for a negative length
    if name == "bool" and bytes(values).translate(None, b"\x00\x01"):  # what is left of the bytes
        raise ValueError("an array of bool with a byte other than 0 and 1")
    return _aligned(array) if aligned and not array.flags.aligned else array


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return a read-only copy at an aligned address, as compiled kernels need it."""
    aligned = array.copy()
    aligned.flags.writeable = False
    return aligned
