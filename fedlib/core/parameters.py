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
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from fedlib.core.validation import Interval, StrOptions

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
