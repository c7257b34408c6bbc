"""The array fields of messages: their annotation, the check of their values, and their bytes.

An array is sent as its dtype, its shape and its raw little-endian bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

MAX_AXES = 32
PIECE = 2**15  # values that are checked at once
SMALL = 2**10  # bytes that are copied at once: a new object of bytes is aligned
MAX_EMPTY_AXIS = 2**16  # an array without elements costs no bytes, so its lengths need a bound
_NAMES = ("bool", "uint8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in _NAMES}  # as sent


# Dtype, shape and values. The values stay where they are in the message, so that unchecked bytes
# never occupy more than a few times their size in memory.
OnWire = tuple[str, Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_AXES)], memoryview]


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
    fedlib.core.messages.MessageError: Readings.values has 2 readings, Readings.times 3
    """

    dtype: str
    axes: tuple[str, ...]
    ge: float | None = None
    le: float | None = None

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
