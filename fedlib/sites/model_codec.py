"""The values in a model file: parameters and models to JSON and arrays, and back.

`fedlib.sites.models` describes the format.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import numpy as np

from fedlib.core.estimator import Federated
from fedlib.core.messages import check_arrays
from fedlib.core.parameters import (
    alternatives,
    class_of,
    describe_hint,
    field_names,
    fits,
    item_hints,
)
from fedlib.core.registry import find_estimator
from fedlib.tables.schema import Schema

DOCUMENT = "model.json"
MAX_FLOAT = 8  # bytes per element; wider floats differ between machines
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class ModelFileError(ValueError):
    """A file is not a valid model file, or a model cannot be stored in one."""


def find_class(protocol: object) -> type[Federated]:
    """Return the estimator of a protocol."""
    estimator_class = find_estimator(protocol) if isinstance(protocol, str) else None
    if estimator_class is None:
        raise ModelFileError(
            f"unknown protocol {protocol!r}; import the module that defines it before loading"
        )
    return estimator_class


@contextmanager
def fitting(estimator_class: type[Federated]) -> Iterator[None]:
    """Turn the errors of an estimator that rejects its parameters or model into one class."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(f"does not fit {estimator_class.__name__}: {error}") from error


# Values to JSON


class Writer:
    """Converts values to JSON and collects their arrays.

    Attributes
    ----------
    arrays : dict of str to array
        The arrays by name.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def write_parameters(self, estimator: Federated, name: str) -> dict[str, Any]:
        """Return the parameters of an estimator as JSON."""
        written = {}
        for parameter, value in estimator.get_params(deep=False).items():
            path = f"{name}.{parameter}"
            if inspect.isfunction(value) or inspect.ismethod(value):
                default = inspect.signature(type(estimator)).parameters[parameter].default
                text = f"{parameter} is a function, which is stored as the default, {default!r}"
                warnings.warn(text, stacklevel=4)
                value = default
            if isinstance(value, np.random.RandomState | np.random.Generator):
                text = f"{parameter} is a {type(value).__name__}, which is stored as None"
                warnings.warn(text, stacklevel=4)
                value = None
            if isinstance(value, Federated):
                inner = self.write_parameters(value, path)
                written[parameter] = {"estimator": value.name, "parameters": inner}
            elif isinstance(value, Schema):
                written[parameter] = {"schema": value.to_json().decode()}
            elif isinstance(value, dict):
                items = [self.write(item, path) for item in value.items()]
                written[parameter] = {"dict": items}
            else:
                written[parameter] = self.write(value, path)
        return written

    def write(self, value: Any, name: str) -> Any:
        """Return a value as JSON; ``name`` is its path in the model."""
        if isinstance(value, np.ndarray):
            return {"array": self._add(value, name)}
        if isinstance(value, np.generic):
            check_dtype(value.dtype, name)
            return {"scalar": self.write(value.item(), name), "dtype": value.dtype.str}
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if type(value) is list:
            return [self.write(item, _join(name, i)) for i, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [self.write(item, _join(name, i)) for i, item in enumerate(value)]}
        if (names := field_names(type(value))) is not None:
            content = {n: self.write(getattr(value, n), _join(name, n)) for n in names}
            return {"class": type(value).__name__, "fields": content}
        raise ModelFileError(f"{name or 'model'} cannot be stored: it is a {type(value).__name__}")

    def _add(self, array: np.ndarray, name: str) -> str:
        check_dtype(array.dtype, name)
        name = name or "model"
        while name in self.arrays or name == DOCUMENT:
            name += "_"
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        self.arrays[name] = np.asarray(little, order=_order(array))
        return name


def _join(name: str, part: object) -> str:
    return f"{name}.{part}" if name else str(part)


def table_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the dtype, shape and order of arrays by name."""
    return {
        name: {"dtype": array.dtype.str, "shape": list(array.shape), "order": _order(array)}
        for name, array in arrays.items()
    }


def _order(array: np.ndarray) -> Literal["C", "F"]:
    """Return the order of an array in memory, on which sums by BLAS may depend."""
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def check_dtype(dtype: np.dtype[Any], name: str) -> None:
    """Raise ModelFileError unless a model file can contain arrays of a dtype."""
    if dtype.kind not in "biufU" or (dtype.kind == "f" and dtype.itemsize > MAX_FLOAT):
        raise ModelFileError(f"{name or 'model'} cannot be stored: its dtype is {dtype}")


# JSON to values


class Reader:
    """Converts JSON to values and checks them against type hints.

    Parameters
    ----------
    arrays : mapping of str to array
        The arrays by name.
    build : bool, default=True
        Whether the objects of the model are made, which check their own structure. Otherwise only
        the types are checked.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], *, build: bool = True):
        self.arrays, self.build = arrays, build

    def read_parameters(
        self, estimator_class: type[Federated], stored: Mapping[str, Any], name: str
    ) -> dict[str, Any]:
        """Return the parameters of an estimator by their present names."""
        parameters: dict[str, Any] = dict(estimator_class.former_values)
        for written, value in stored.items():
            path = f"{name}.{written}"
            parameter = estimator_class.former_names.get(written, written)
            match value:
                case {"estimator": str(protocol), "parameters": dict(inner)} if len(value) == 2:
                    inner_class = find_class(protocol)
                    values = self.read_parameters(inner_class, inner, path)
                    with fitting(inner_class):
                        parameters[parameter] = inner_class(**values)
                        parameters[parameter]._validate_params()
                case {"schema": str(text)} if len(value) == 1:
                    with fitting(estimator_class):
                        parameters[parameter] = Schema.from_json(text.encode())
                case {"dict": list(items)} if len(value) == 1:
                    pairs = [self.read(item, tuple[Any, Any], path) for item in items]
                    parameters[parameter] = dict(pairs)
                case _:
                    parameters[parameter] = self.read(value, Any, path)
        return parameters

    def read(self, value: Any, hint: Any, name: str) -> Any:
        """Return the value that JSON represents; ``name`` is its path in the model."""
        allowed = alternatives(hint)
        match value:
            case {"class": str(kind), "fields": dict(content)} if len(value) == 2:
                return self._read_object(kind, content, allowed, name)
            case {"tuple": list(items)} if len(value) == 1:
                return tuple(self._read_items(items, tuple, allowed, name))
            case list(items):
                return self._read_items(items, list, allowed, name)
            case {"array": str(key)} if len(value) == 1 and key in self.arrays:
                result: Any = self.arrays[key]
            case {"scalar": scalar, "dtype": str(dtype)} if len(value) == 2:
                result = self._read_scalar(scalar, dtype, name)
            case {"float": "nan" | "inf" | "-inf"} if len(value) == 1:
                result = NON_FINITE[value["float"]]
            case None | bool() | int() | float() | str():
                result = value
            case _:
                raise ModelFileError(f"{name} contains {str(value)[:60]!r}")
        if type(result) is int and float in allowed and int not in allowed:
            try:
                float(result)
            except OverflowError:
                raise ModelFileError(
                    f"{name} must be {describe_hint(hint)}, got a larger integer"
                ) from None
        if not any(fits(result, option) for option in allowed):
            kind = getattr(result, "dtype", type(result).__name__)
            raise ModelFileError(f"{name} must be {describe_hint(hint)}, got {kind}")
        return result

    def _read_object(
        self, kind: str, content: dict[str, Any], allowed: list[Any], name: str
    ) -> Any:
        classes = [c for c in allowed if getattr(class_of(c), "__name__", "") == kind]
        made: Any = class_of(classes[0]) if classes else NoneType
        known = field_names(made)
        if known is None:
            raise ModelFileError(f"{name} must not be of the class {kind[:100]}")
        unknown = [field for field in content if field not in known]
        if unknown:
            raise ModelFileError(f"{name}: {kind} has no field {unknown[0][:100]}")
        variables = dict(
            zip(getattr(made, "__parameters__", ()), get_args(classes[0]), strict=False)
        )
        hints = {
            n: variables.get(h, h) if isinstance(h, TypeVar) else h
            for n, h in hints_of(made).items()
        }
        values = {
            field: self.read(value, hints[field], f"{name}.{field}")
            for field, value in content.items()
        }
        if not self.build:
            return values
        try:
            content = made(**values)
            check_arrays(content)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{name}: {error}") from error
        return content

    def _read_items(self, items: list[Any], kind: type, allowed: list[Any], name: str) -> list[Any]:
        for option in allowed:
            hints = item_hints(option, kind, len(items))
            if hints is not None:
                return [
                    self.read(item, hint, f"{name}.{i}")
                    for i, (item, hint) in enumerate(zip(items, hints, strict=True))
                ]
        raise ModelFileError(f"{name} must not be a {kind.__name__} of {len(items)} items")

    def _read_scalar(self, value: Any, dtype: str, name: str) -> Any:
        plain = self.read(value, Any, name)
        try:
            kind = np.dtype(dtype)
            check_dtype(kind, name)
            scalar = kind.type(plain)
        except (OverflowError, TypeError, ValueError) as error:
            raise ModelFileError(f"{name} is not a scalar of {dtype[:20]}: {error}") from error
        if type(scalar.item()) is not type(plain):
            raise ModelFileError(f"{name} is not a scalar of {dtype[:20]}: {plain!r}")
        return scalar


@cache  # a model of 100 trees asks for the same class 100 times
def hints_of(described: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of a class or a function."""
    try:
        return get_type_hints(described)
    except NameError as error:
        name = getattr(described, "__qualname__", described)
        raise ModelFileError(f"the annotations of {name} cannot be resolved: {error}") from error
