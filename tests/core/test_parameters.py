"""Parameters are declared once, and everything else follows."""

import inspect
from numbers import Integral, Real
from typing import Annotated

import numpy as np
import pytest
from all_protocols import OURS, PROTOCOLS
from sklearn.base import clone
from sklearn.utils._param_validation import InvalidParameterError

from fedlib.cli.options import parameter_docs, parameter_options
from fedlib.core.estimator import Federated
from fedlib.core.parameters import KW_ONLY, LARGEST_INTEGER, Interval, Kind, StrOptions
from fedlib.core.registry import protocols


class Radius(Federated):
    """An estimator with parameters.

    Attributes
    ----------
    model_ : object
    """

    eps: Annotated[float, Interval(Real, 0, None, closed="neither"), "The radius, above 0."]
    _: KW_ONLY
    border: Annotated[
        str,
        StrOptions({"nearest", "drop", "absorb"}),
        """
        What happens to borders.

        - ``"absorb"``: they join.
        """,
    ] = "nearest"
    low: Annotated[int, Interval(Integral, 0, 9, closed="both"), "The ends."] = 0
    high: Annotated[int, Interval(Integral, 0, 9, closed="both")] = 9

    def _flow(self):
        return iter([(self.eps, self.border, self.low)])


class Wider(Radius):
    """One more parameter, and another text."""

    border: Annotated[str, StrOptions({"nearest"}), "The only border."] = "nearest"
    bounds: Annotated[
        list | None, "array-like", None, Kind("array-like (2, n_features)"), "The bounds."
    ] = None


class Own(Radius):
    """An estimator with an ``__init__`` of its own."""

    def __init__(self, eps, more):
        super().__init__(eps)
        self.more = more


def test_the_signature():
    assert str(inspect.signature(Radius)) == (
        "(eps: float, *, border: str = 'nearest', low: int = 0, high: int = 9)"
    )
    assert list(inspect.signature(Wider).parameters) == ["eps", "border", "bounds", "low", "high"]
    assert list(inspect.signature(Own).parameters) == ["eps", "more"]
    with pytest.raises(TypeError, match="positional argument"):
        Radius()
    with pytest.raises(TypeError, match="2 positional arguments"):
        Radius(1.0, "nearest")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Radius(1.0, colour="red")


def test_the_docstring_has_a_section_before_the_attributes():
    assert (
        inspect.getdoc(Radius)
        == """An estimator with parameters.

Parameters
----------
eps : float
    The radius, above 0.
border : {"nearest", "absorb", "drop"}, default="nearest"
    What happens to borders.

    - ``"absorb"``: they join.
low, high : int, default=0 and 9
    The ends.

Attributes
----------
model_ : object"""
    )
    assert parameter_docs(Wider)["border"] == "The only border."
    assert "bounds : array-like (2, n_features), default=None\n    The bounds." in Wider.__doc__


def test_it_is_an_estimator_of_scikit_learn():
    wider = Wider(2.0, bounds=[[0], [1]], low=3)
    copied = clone(wider)
    assert copied.get_params() == wider.get_params()
    assert copied.bounds is not wider.bounds
    assert repr(wider) == "Wider(bounds=[[0], [1]], eps=2.0, low=3)"
    assert wider.set_params(eps=5.0).eps == 5.0
    with pytest.raises(ValueError, match="Invalid parameter 'colour'"):
        wider.set_params(colour="red")
    assert Radius(1.0) != Radius(1.0)  # compared by identity, as all estimators


def test_the_checks():
    with pytest.raises(
        InvalidParameterError, match="The 'eps' parameter of Radius must be a float"
    ):
        Radius(0.0).protocol()
    with pytest.raises(
        InvalidParameterError, match="The 'border' parameter of Wider must be a str"
    ):
        Wider(1.0, border="absorb").protocol()
    radius = Radius(np.int8(2), border="absorb", low=np.int64(3))
    assert [next(flow) for flow in (radius.protocol(), radius._repeated_flow()())] == [
        (2.0, "absorb", 3)
    ] * 2


def test_the_options_of_the_command_line():
    options = {option.name: option for option in parameter_options(Radius)}
    assert options["eps"].required
    assert options["border"].default == "nearest"
    assert options["border"].help.startswith("What happens to borders.")
    assert options["high"].help == "The ends."


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_of_a_protocol_has_a_text_and_a_range(name):
    estimator = protocols()[name]
    docs = parameter_docs(estimator)
    for parameter in inspect.signature(estimator).parameters:
        assert docs[parameter], parameter
        assert parameter in estimator._parameter_constraints, parameter
    assert "__init__" not in inspect.getsource(estimator)


INTEGERS = [
    (name, parameter)
    for name in PROTOCOLS
    for parameter, constraints in protocols()[name]._parameter_constraints.items()
    if any(isinstance(one, Interval) and one.type is Integral for one in constraints)
]


@pytest.mark.parametrize(("name", "parameter"), INTEGERS)
def test_an_integer_that_no_message_can_contain_is_out_of_range(name, parameter):
    parameters, _ = PROTOCOLS[name]
    estimator = protocols()[name](**(parameters | {parameter: 10**20}))
    text = rf"The '{parameter}' parameter .* in the range .*\. Got 100000000000000000000 instead"
    with pytest.raises(InvalidParameterError, match=text):
        estimator.protocol()


@pytest.mark.parametrize("name", ["horizontal-dbscan", "vertical-dbscan", "dbdc", "sdbdc"])
def test_the_largest_min_samples_leaves_only_noise(name):
    parameters, parts = PROTOCOLS[name]
    model = protocols()[name](**(parameters | {"min_samples": LARGEST_INTEGER})).fit(parts())
    assert all((np.ravel(labels) == -1).all() for labels in model.labels_)


def test_an_integer_beyond_all_real_numbers_is_out_of_range():
    with pytest.raises(InvalidParameterError, match="'eps' parameter"):
        Radius(10**400).protocol()
