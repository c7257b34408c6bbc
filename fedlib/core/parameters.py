"""Parameters of estimators, each declared once: its type, range, text and default.

A parameter is a field of the class, annotated with everything that is known of it::

    class Example(Federated):
        eps: Annotated[float, Interval(Real, 0, None, closed="neither"), "The radius, above 0."]
        _: KW_ONLY
        border: Annotated[str, StrOptions({"nearest", "absorb"}), "What borders are."] = "nearest"

From this follow ``__init__`` and its signature, the section "Parameters" of the docstring,
scikit-learn's constraints, by which values are checked and become plain values of Python, and the
options of the command line. A class with an ``__init__`` of its own is left as it is; a dataclass
whose fields are declared in the same way gets the rest from `describe`.

Checks of parameters and data, on top of scikit-learn's.

This is the only module that imports scikit-learn's private names; ``tests/test_validation.py``
tests each of them. They declare the parameter constraints of the estimators, as in scikit-learn.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import _param_validation
from sklearn.utils._param_validation import StrOptions, validate_parameter_constraints

from fedlib.core.array_types import Floats
from fedlib.core.messages import Message

__all__ = [
    "Interval",
    "StrOptions",
    "check_every_client_stays",
    "check_key",
    "check_option",
    "count_distinct",
    "validate_parameter_constraints",
]


KEY_BYTES = range(16, 65)
LARGEST_INTEGER = 2**53  # the integers up to it are exact as float64, and their sums fit an int64


class Interval(_param_validation.Interval):
    """The range of a parameter, as in scikit-learn, without numbers that no message can contain.

    An interval of integers without an upper end ends at 2**53. An interval of real numbers does not
    contain an integer beyond the largest float64.

    Examples
    --------
    >>> 10**20 in Interval(Integral, 1, None, closed="left")
    False
    >>> 10**400 in Interval(Real, 0, None, closed="left")
    False
    """

    def __init__(self, kind: type, left: Any, right: Any, *, closed: str):
        if kind is Integral and right is None:
            right, closed = LARGEST_INTEGER, "both" if closed == "left" else "right"
        super().__init__(kind, left, right, closed=closed)

    def __contains__(self, value: Any) -> bool:
        try:
            float(value)
        except OverflowError:
            return False
        return bool(super().__contains__(value))


def plain_value(value: Any, constraints: Sequence[Any]) -> Any:
    """Return a valid parameter as a plain Python value: a message takes no scalars of NumPy.

    Numbers become those of the type that the constraints name, and other values stay as they are.

    Parameters
    ----------
    value : object
    constraints : sequence
        The parameter's entry in ``_parameter_constraints`` of its estimator.

    Examples
    --------
    >>> plain_value(np.int64(3), [Interval(Integral, 1, None, closed="left")])
    3
    >>> plain_value(1, [Interval(Real, 0, None, closed="left"), None])
    1.0
    >>> plain_value(np.str_("full"), [StrOptions({"full", "diag"})])
    'full'
    """
    if isinstance(value, str):
        return str(value)
    if "boolean" in constraints and isinstance(value, bool | np.bool_):
        return bool(value)
    types = [one.type for one in constraints if isinstance(one, Interval)]
    if Integral in types and isinstance(value, Integral):
        return int(value)
    if types and isinstance(value, Real) and not set(types) <= {Integral}:
        return float(value)
    return value


def check_key(key: object) -> bytes:
    """Return a key that clients share to compare identifiers.

    Raises
    ------
    ValueError
        When it does not have 16 to 64 bytes. The text does not contain it.

    Examples
    --------
    >>> check_key("secret")
    Traceback (most recent call last):
    ...
    ValueError: key must be 16 to 64 secret bytes when ids are given, got str
    """
    if not isinstance(key, bytes) or len(key) not in KEY_BYTES:
        received = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ValueError(f"key must be 16 to 64 secret bytes when ids are given, got {received}")
    return key


def count_distinct(X: Floats, most: int) -> int:
    """Return the count of distinct rows of ``X`` (n, d), but at most ``most``.

    It reads no more rows than it needs, which are usually a few.

    Examples
    --------
    >>> X = np.array([[1.0], [2.0], [1.0]])
    >>> count_distinct(X, 5), count_distinct(X, 1)
    (2, 1)
    """
    found: set[tuple[float, ...]] = set()
    for row in X:
        found.add(tuple(row.tolist()))
        if len(found) >= most:
            break
    return len(found)


def check_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError when the value of the parameter ``name`` is not among the allowed ones.

    Examples
    --------
    >>> check_option("border", "far", ("nearest", "absorb"))
    Traceback (most recent call last):
    ...
    ValueError: border must be one of 'nearest', 'absorb'; got 'far'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def check_every_client_stays(
    n_clients: int, passive: Collection[int], min_clients: int | None
) -> None:
    """Raise ValueError when the arguments of ``fit`` let a client be passive or leave the run.

    Call it in the ``fit`` of a protocol that needs every client.

    Examples
    --------
    >>> check_every_client_stays(3, passive=(), min_clients=2)
    Traceback (most recent call last):
    ...
    ValueError: min_clients must be 3, the number of clients, since every client is needed; got 2
    """
    if passive:
        raise ValueError(f"passive must be empty, since every client is needed; got {passive}")
    if min_clients not in (None, n_clients):
        raise ValueError(
            f"min_clients must be {n_clients}, the number of clients, since every client is"
            f" needed; got {min_clients}"
        )


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


# Types with their ranges, to which a parameter adds its text.
PositiveInt = Annotated[int, Interval(Integral, 1, None, closed="left")]
OptionalPositiveInt = Annotated[int | None, Interval(Integral, 1, None, closed="left"), None]
PositiveFloat = Annotated[float, Interval(Real, 0, np.inf, closed="neither")]
OptionalPositiveFloat = Annotated[float | None, Interval(Real, 0, np.inf, closed="neither"), None]
NonNegativeFloat = Annotated[float, Interval(Real, 0, np.inf, closed="left")]
Fraction = Annotated[float, Interval(Real, 0, 1, closed="left")]  # below 1
Flag = Annotated[bool, "boolean"]
RandomSource = Annotated[Any, "random_state"]
OptionalArray = Annotated[ArrayLike | None, "array-like", None]

Class = TypeVar("Class")


@dataclass(frozen=True)
class Kind:
    """The type of a parameter in words, if it does not follow from the annotation."""

    text: str


OptionalBounds = Annotated[
    Mapping[str, tuple[float, float]] | ArrayLike | None,
    dict,
    "array-like",
    None,
    Kind("dict of str to (low, high), or array-like (2, n_features)"),
]

OptionalNames = Annotated[Sequence[str] | None, list, tuple, None, Kind("list of str")]

SECTION = re.compile(r"^[A-Z][a-z]+( [A-Z][a-z]+)?\n-{3,}$", re.MULTILINE)


@dataclass(frozen=True)
class _Field:
    """A declared parameter.

    Attributes
    ----------
    name : str
    type : object
        The annotation without its metadata.
    constraints : list
        Those of scikit-learn.
    text : str
        The description; empty if the parameter before it has it.
    kind : str
        The type in words; empty if it follows from the annotation and the constraints.
    default : object
        `inspect.Parameter.empty` if there is none.
    keyword : bool
        Whether it is given by name only.
    """

    name: str
    type: Any
    constraints: list[Any]
    text: str
    kind: str
    default: Any
    keyword: bool

    @property
    def head(self) -> str:
        """The type, in the words of a numpydoc docstring."""
        if self.kind:
            return self.kind
        words = []
        for one in self.constraints:
            if isinstance(one, StrOptions):
                options = sorted(one.options, key=lambda option: (option != self.default, option))
                words.append("{" + ", ".join(f'"{option}"' for option in options) + "}")
            elif one == "boolean":
                words.append("bool")
            elif one == "random_state":
                words.append("int, RandomState or None")
            elif one == "array-like":
                words.append("array-like")
            elif one is not None and hasattr(one, "type"):
                words.append("int" if one.type.__name__ == "Integral" else "float")
        return " or ".join(dict.fromkeys(words)) or "object"


def declare(cls: type) -> None:
    """Give a class what follows from its parameters, and those of its bases.

    Raises
    ------
    TypeError
        When a parameter without a default follows one with a default.
    """
    own = [name for name, hint in inspect.get_annotations(cls).items() if _is(hint)]
    if not own or "__init__" in vars(cls):
        return
    cls.__init__ = _make_init(cls, list(_fields(cls).values()))  # type: ignore[misc]
    describe(cls)


def describe(cls: type[Class]) -> type[Class]:
    """Give a class the constraints of its parameters and their docstring, and return it."""
    fields = _fields(cls)
    cls._parameter_constraints = {  # type: ignore[attr-defined]
        name: field.constraints for name, field in fields.items() if field.constraints
    }
    cls.__doc__ = _with_parameters(inspect.cleandoc(cls.__doc__ or ""), list(fields.values()))
    return cls


def _is(hint: Any) -> bool:
    """Return whether an annotation declares a parameter."""
    return get_origin(hint) is Annotated or str(hint).startswith("Annotated[")


def _fields(cls: type) -> dict[str, _Field]:
    """Return the parameters of a class and its bases.

    First come those that may be given by position, those of the bases first; then the others, those
    of the class itself first.
    """
    hints = get_type_hints(cls, include_extras=True)
    fields: dict[str, _Field] = {}
    for base in reversed(cls.__mro__):
        keyword = False
        for name, hint in inspect.get_annotations(base).items():
            keyword |= hint is KW_ONLY or str(hint).rpartition(".")[2] == "KW_ONLY"
            if not _is(hint):
                continue
            kind, *metadata = get_args(hints[name])
            texts = [one for one in metadata if isinstance(one, str) and one not in WORDS]
            default = vars(base).get(name, inspect.Parameter.empty)
            if name in fields and default is inspect.Parameter.empty:
                default = fields[name].default
            fields[name] = _Field(
                name=name,
                type=kind,
                constraints=[
                    one for one in metadata if not isinstance(one, Kind) and one not in texts
                ],
                text=inspect.cleandoc(texts[0]) if texts else "",
                kind="".join(one.text for one in metadata if isinstance(one, Kind)),
                default=default,
                keyword=keyword,
            )
    own_first = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    order = [name for name, field in fields.items() if not field.keyword]
    order += [name for name in own_first if name in fields]
    return {name: fields[name] for name in dict.fromkeys(order)}


WORDS = ("boolean", "array-like", "random_state")  # constraints that are texts


def _make_init(cls: type, fields: list[_Field]) -> Any:
    """Return a function that stores its arguments, with the signature of the parameters."""
    empty, names = inspect.Parameter.empty, {field.name: field for field in fields}
    parts, star = [], False
    for field in fields:
        if field.keyword and not star:
            parts.append("*")
            star = True
        parts.append(field.name + ("" if field.default is empty else f"=_defaults[{field.name!r}]"))
    body = "".join(f"\n    self.{name} = {name}" for name in names)
    space: dict[str, Any] = {"_defaults": {name: field.default for name, field in names.items()}}
    # As `dataclasses` does. The names are those of fields, and no text of a user is among them.
    exec(f"def __init__(self, {', '.join(parts)}):{body}", space)  # noqa: S102
    init = space["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {name: field.type for name, field in names.items()}
    return init


def _with_parameters(doc: str, fields: list[_Field]) -> str:
    """Return a docstring with a section on the parameters, before its first section."""
    lines = ["Parameters", "----------"]
    groups: list[list[_Field]] = []
    for field in fields:
        if field.text or not groups:
            groups.append([field])
        else:
            groups[-1].append(field)
    for group in groups:
        names = ", ".join(field.name for field in group)
        lines += [f"{names} : {_heads(group)}", textwrap.indent(group[0].text, "    ")]
    match = SECTION.search(doc)
    cut = match.start() if match else len(doc)
    before, after = doc[:cut].rstrip(), doc[cut:]
    return f"{before}\n\n" + "\n".join(lines) + (f"\n\n{after}" if after else "\n")


def _heads(group: list[_Field]) -> str:
    """Return the types and defaults of parameters that share a description."""
    head = group[0].head
    defaults = [repr(field.default).replace("'", '"') for field in group]
    if group[0].default is inspect.Parameter.empty:
        return head
    if all(one == "None" for one in defaults):
        return f"{head}, default=None"
    return f"{head}, default={' and '.join(dict.fromkeys(defaults))}"
