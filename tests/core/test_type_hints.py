"""What annotations mean at run time, also where a library writes them as an alias."""

from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_origin

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlib.core.parameters import alternatives, class_of, fits

T = TypeVar("T")


class Alias:
    """What the `type` statement of Python 3.12 makes; NumPy 2.5 declares ``NDArray`` by it."""

    def __init__(self, value):
        self.__value__ = value


ARRAY_OF = Alias(np.ndarray[Any, np.dtype[T]])
ARRAY_OF_FLOATS = Alias(GenericAlias(ARRAY_OF, (np.float64,)))

each_hint = pytest.mark.parametrize(
    "hint",
    [NDArray[np.float64], GenericAlias(ARRAY_OF, (np.float64,)), ARRAY_OF_FLOATS],
    ids=["NumPy's", "alias", "alias of an alias"],
)


@each_hint
def test_an_alias_is_the_type_that_it_stands_for(hint):
    (option,) = alternatives(Annotated[hint, "metadata"])
    assert get_origin(option) is class_of(hint) is np.ndarray


@each_hint
def test_an_array_is_of_an_alias_only_with_its_dtype(hint):
    (option,) = alternatives(hint)
    assert fits(np.zeros(2), option)
    assert not fits(np.zeros(2, int), option)
    assert not fits(0.0, option)


def test_an_alias_may_stand_in_a_union():
    options = alternatives(None | NDArray[np.int64])
    assert [fits(None, one) for one in options] == [True, False]
    assert [fits(np.arange(2), one) for one in options] == [False, True]
