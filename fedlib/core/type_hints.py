"""Type hints: read an annotation, and check a value against it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from fedlib.core.messages import Message


def field_names(kind: type) -> list[str] | None:
    """Return the fields of a dataclass, NamedTuple or message class; None for any other class."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind) if field.init]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(kind._fields)
    if issubclass(kind, Message):
        return list(kind.__struct_fields__)
    return None


def resolve_alias(hint: Any) -> Any:
    """Return the type that an alias of the `type` statement stands for, or the hint itself.

    From NumPy 2.5 on, ``NDArray`` is such an alias on Python 3.12 and later, and before it was
    ``np.ndarray`` with arguments: at run time, ``get_origin(NDArray[np.float64])`` is another one.

    Examples
    --------
    >>> from numpy.typing import NDArray
    >>> get_origin(resolve_alias(NDArray[np.float64]))
    <class 'numpy.ndarray'>
    """
    while True:
        alias, arguments = get_origin(hint) or hint, get_args(hint)
        if not hasattr(alias, "__value__"):
            return hint
        hint = alias.__value__[arguments] if arguments else alias.__value__


def class_of(hint: Any) -> Any:
    """Return the class of a hint without its type arguments.

    Examples
    --------
    >>> class_of(list[int]), class_of(int)
    (<class 'list'>, <class 'int'>)
    """
    hint = resolve_alias(hint)
    return get_origin(hint) or hint


def alternatives(hint: Any) -> list[Any]:
    """Return the members of a union, without aliases and the metadata of `Annotated`."""
    hint = resolve_alias(hint)
    origin = get_origin(hint)
    if origin is Annotated:
        return alternatives(get_args(hint)[0])
    if origin in (Union, UnionType):
        return [option for part in get_args(hint) for option in alternatives(part)]
    return [Any if isinstance(hint, TypeVar) else hint]


def item_hints(option: Any, kind: type, n_items: int) -> list[Any] | None:
    """Return the hints of the items of a list or tuple; None if the option is another type."""
    if option is Any or option is kind:
        return [Any] * n_items
    if get_origin(option) is not kind:
        return None
    arguments = get_args(option)
    if kind is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
        return [arguments[0]] * n_items
    return list(arguments) if len(arguments) == n_items else None


def fits(value: Any, option: Any) -> bool:
    """Return whether a value is of a type; an int is a float too, but a bool is not an int."""
    if option is Any:
        return True
    if option is NoneType or value is None:
        return option is NoneType and value is None
    origin = get_origin(option)
    if origin is Literal:
        return any(type(value) is type(member) and value == member for member in get_args(option))
    if isinstance(value, np.ndarray):
        return _fits_array(value, option)
    if not isinstance(option, type):
        return False
    if isinstance(value, bool | np.bool_):
        return option in (bool, np.bool_)
    if isinstance(value, int | np.integer) and option in (int, float):
        return True
    return isinstance(value, option) or (isinstance(value, np.floating) and option is float)


def _fits_array(array: np.ndarray, option: Any) -> bool:
    if option is np.ndarray:
        return True
    if get_origin(option) is not np.ndarray:
        return False
    (scalar,) = get_args(get_args(option)[1]) or (Any,)
    unknown = scalar is Any or not isinstance(scalar, type)
    return unknown or np.issubdtype(array.dtype, scalar)


def describe_hint(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
