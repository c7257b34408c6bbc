"""Every integer that a server or a model file states has bounds, and every index its length."""

from dataclasses import dataclass, is_dataclass
from typing import Annotated, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

from fedlib.core.array_fields import OF_CLIENT, Array, Checked, Index, check_indices, index_fields
from fedlib.core.array_types import Ints
from fedlib.core.client import BadRequest, Client, handles
from fedlib.core.messages import Done, Message, MessageError, arrays
from fedlib.core.parameters import alternatives, class_of, field_names
from fedlib.core.registry import protocols, wrappers


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def models_of(hint, found):
    """Return the classes with fields inside a type hint, in ``found``."""
    for option in alternatives(hint):
        kind = class_of(option)
        for argument in get_args(option):
            if isinstance(argument, type) or get_args(argument):
                models_of(argument, found)
        if isinstance(kind, type) and kind not in found and field_names(kind) is not None:
            found.add(kind)
            for inner in get_type_hints(kind, include_extras=True).values():
                models_of(inner, found)
    return found


ESTIMATORS = [*protocols().values(), *wrappers().values()]
HINTS = [get_type_hints(one._set_model, include_extras=True)["model"] for one in ESTIMATORS]
MODELS = sorted(
    (
        kind
        for kind in set().union(*(models_of(hint, set()) for hint in HINTS))
        if kind.__module__.startswith("fedlib")
    ),
    key=lambda kind: kind.__name__,
)
REQUESTS = sorted(
    {
        request
        for client in subclasses(Client)
        for request in client.handlers
        if request.__module__.startswith("fedlib")
    },
    key=lambda kind: kind.__name__,
)


def test_there_are_models_and_requests():
    assert {"Tree", "GridModel", "Mixture", "TableSummary"} <= {kind.__name__ for kind in MODELS}
    assert {"TakeModel", "KeepTrees", "AssignCells"} <= {kind.__name__ for kind in REQUESTS}


@pytest.mark.parametrize("kind", [*MODELS, *REQUESTS], ids=lambda kind: kind.__name__)
def test_every_array_of_integers_has_bounds(kind):
    for field, array in arrays(kind).items():
        if np.dtype(array.dtype).kind == "i":
            assert array.ge is not None, field
            assert array.le is not None or array.below, field
    if is_dataclass(kind):
        for field, hint in get_type_hints(kind, include_extras=True).items():
            if hint is Ints:  # such arrays without an annotation would not be checked
                raise AssertionError(f"{kind.__name__}.{field} has no bounds")
        assert issubclass(kind, Checked) or not arrays(kind)


def unbounded(kind):
    """Yield the integers of a type that have no bounds."""
    match kind:
        case msgspec.inspect.IntType(ge=low, gt=above, le=high, lt=below):
            if None in (low or above or 0 if (low, above) != (None, None) else None, high or below):
                yield kind
        case msgspec.inspect.UnionType(types):
            # A class is a text or any number, which nothing uses as an index.
            if not any(isinstance(one, msgspec.inspect.StrType) for one in types):
                for one in types:
                    yield from unbounded(one)
        case msgspec.inspect.VarTupleType(item):
            yield from unbounded(item)
        case msgspec.inspect.TupleType(items):
            for one in items:
                yield from unbounded(one)
        case msgspec.inspect.DictType(_, item):
            yield from unbounded(item)
        case (
            msgspec.inspect.StructType(fields=fields)
            | msgspec.inspect.NamedTupleType(fields=fields)
        ):
            for field in fields:
                yield from unbounded(field.type)


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda kind: kind.__name__)
def test_every_integer_of_a_request_has_bounds(request_class):
    hints = get_type_hints(request_class, include_extras=True)
    for field in set(request_class.__struct_fields__) - set(arrays(request_class)):
        assert not list(unbounded(msgspec.inspect.type_info(hints[field]))), field


def test_a_field_without_bounds_is_found():
    assert [*unbounded(msgspec.inspect.type_info(tuple[int, ...]))]
    assert [*unbounded(msgspec.inspect.type_info(Annotated[int, msgspec.Meta(le=5)]))]
    bounded = Annotated[int, msgspec.Meta(ge=0, le=5)]
    assert not [*unbounded(msgspec.inspect.type_info(tuple[bounded, ...]))]


@dataclass(frozen=True)
class Nodes(Checked):
    child: Annotated[Ints, Array("int64", ("nodes",), ge=-1, below="nodes")]
    names: tuple[str, ...]
    best: Annotated[int, Index("names")] = 0
    feature: Annotated[Ints | None, Array("int64", ("nodes",), ge=0, below=OF_CLIENT)] = None


def test_an_index_is_below_the_length_of_its_array():
    assert Nodes(np.array([1, -1]), ("a", "b"), 1).best == 1
    assert Nodes(np.empty(0, np.int64), ("a",)).best == 0
    with pytest.raises(MessageError, match=r"Nodes.child must be below 2, the count of nodes, got"):
        Nodes(np.array([2, -1]), ("a", "b"))
    with pytest.raises(MessageError, match="Nodes.best must be below 1, the count of names, got 1"):
        Nodes(np.array([-1]), ("a",), 1)
    with pytest.raises(MessageError, match="Nodes.best must be at least 0, got -1"):
        Nodes(np.array([-1]), ("a",), -1)
    nodes = Nodes(np.array([-1]), ("a",), 0, np.array([3]))
    check_indices(nodes, {OF_CLIENT: 4})
    with pytest.raises(MessageError, match="must be below 3, the count of features of the client"):
        check_indices(nodes, {OF_CLIENT: 3})


class AskColumns(Message):
    discloses = "nothing"
    columns: Annotated[np.ndarray, Array("int64", ("chosen",), ge=0, below=OF_CLIENT)]


class ColumnsClient(Client):
    X = np.zeros((5, 3))

    @handles(AskColumns)
    def answer_columns(self, request):
        return Done()


def test_an_index_into_the_columns_of_a_site_is_checked_before_the_handler():
    assert ColumnsClient().answer(AskColumns(np.array([0, 2]))) == Done()
    with pytest.raises(BadRequest, match=r"AskColumns.columns must be below 3, .* got 3"):
        ColumnsClient().answer(AskColumns(np.array([0, 3])))


def test_the_indices_into_the_columns_of_a_site_are_declared():
    """The names say that a field is an index into the columns; nothing else would find one."""
    named = {"feature", "features", "columns", "fill_columns", "texts"}
    for kind in REQUESTS:
        for field in named & set(arrays(kind)):
            assert index_fields(kind).get(field) == OF_CLIENT, (kind.__name__, field)
