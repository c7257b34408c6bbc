"""The checks of parameters and data, and the private names of scikit-learn that they build on.

If a test of the first part fails after an update of scikit-learn, the behaviour of a private name
has changed. Its docstring states what breaks. The only module to adapt is `fedlib.core.parameters`.
"""

from numbers import Integral, Real

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import _get_feature_names

from fedlib.core.parameters import Interval, StrOptions, check_option, count_distinct

# scikit-learn's private names --------------------------------------------------------------------


class Constrained(BaseEstimator):
    """An estimator with the kinds of constraints that the package declares."""

    _parameter_constraints = {  # noqa: RUF012
        "size": [Interval(Real, 0, np.inf, closed="neither")],
        "number": [Interval(Integral, 1, None, closed="left")],
        "share": [Interval(Real, 0, 1, closed="right")],
        "kind": [StrOptions({"a", "b"}), None],
        "random_state": ["random_state"],
        "flag": ["boolean"],
    }

    def __init__(self, size=1.0, number=1, share=0.5, kind="a", random_state=None, flag=True):
        self.size = size
        self.number = number
        self.share = share
        self.kind = kind
        self.random_state = random_state
        self.flag = flag


def test_estimators_read_their_constraints():
    """`Federated.protocol` calls `_validate_params`, which must read `_parameter_constraints`.

    Otherwise every invalid parameter is accepted.
    """
    Constrained()._validate_params()
    with pytest.raises(InvalidParameterError):
        Constrained(size=0)._validate_params()
    with pytest.raises(InvalidParameterError):
        Constrained(kind="c")._validate_params()


@pytest.mark.parametrize(
    "valid",
    [
        {"size": 1e-300},
        {"size": 1e300},
        {"size": 3},
        {"size": np.float32(0.5)},
        {"number": 1},
        {"number": np.int64(10**12)},
        {"share": 1},
        {"kind": "b"},
        {"kind": None},
        {"random_state": 7},
        {"random_state": np.random.RandomState(0)},
        {"flag": np.True_},
    ],
)
def test_values_that_constraints_accept(valid):
    """Estimators accept the numbers of numpy, and integers for real numbers."""
    Constrained(**valid)._validate_params()


@pytest.mark.parametrize(
    "invalid",
    [
        {"size": 0},
        {"size": -1.0},
        {"size": np.inf},
        {"size": np.nan},
        {"size": "1"},
        {"number": 0},
        {"number": 2.0},
        {"number": "2"},
        {"share": 0},
        {"share": 1.01},
        {"kind": "c"},
        {"random_state": -1},
        {"random_state": "seed"},
        {"flag": "yes"},
    ],
)
def test_values_that_constraints_reject(invalid):
    """The ends of an interval belong to it as ``closed`` states; NaN is in no interval."""
    (name,) = invalid
    with pytest.raises(InvalidParameterError, match=f"The '{name}' parameter of Constrained must"):
        Constrained(**invalid)._validate_params()


@pytest.mark.parametrize(
    ("invalid", "text"),
    [
        (
            {"size": -1.0},
            "The 'size' parameter of Constrained must be a float in the range (0.0, inf)."
            " Got -1.0 instead.",
        ),
        (
            {"number": 0},
            "The 'number' parameter of Constrained must be an int in the range"
            " [1, 9007199254740992]. Got 0 instead.",
        ),
    ],
)
def test_the_text_of_an_error_names_the_range(invalid, text):
    """Users see this text, in the command line too, and other tests match its beginning."""
    with pytest.raises(InvalidParameterError) as caught:
        Constrained(**invalid)._validate_params()
    assert str(caught.value) == text


def test_the_text_of_an_error_lists_the_options():
    """Sets have no order, so the options have no order either."""
    with pytest.raises(InvalidParameterError) as caught:
        Constrained(kind="c")._validate_params()
    text = str(caught.value)
    assert text.startswith("The 'kind' parameter of Constrained must be a str among {")
    assert "'a'" in text
    assert "'b'" in text
    assert text.endswith(" or None. Got 'c' instead.")


def test_an_invalid_parameter_is_a_value_error():
    """The documentation promises ValueError for a parameter out of range."""
    assert issubclass(InvalidParameterError, ValueError)


def test_feature_names_of_dataframes_and_arrays():
    """Clients compare the names of their columns; without names they compare only the number."""
    frame = pd.DataFrame([[1.0, 2.0]], columns=["age", "weight"])
    assert _get_feature_names(frame).tolist() == ["age", "weight"]
    assert _get_feature_names(frame.to_numpy()) is None
    assert _get_feature_names([[1.0, 2.0]]) is None
    assert _get_feature_names(pd.DataFrame([[1.0, 2.0]])) is None  # columns 0 and 1 are not names


def test_columns_that_are_partly_named():
    """A mixture of text and numbers is an error, not a list of names."""
    with pytest.raises(TypeError):
        _get_feature_names(pd.DataFrame([[1.0, 2.0]], columns=["age", 1]))


# The package's own checks ------------------------------------------------------------------------


def test_distinct_rows_are_counted_up_to_a_limit():
    X = np.repeat(np.arange(30.0), 2)[:, np.newaxis]
    for rows in (X, X[::-1], np.random.default_rng(0).permutation(X)):
        assert count_distinct(rows, 5) == 5
        assert count_distinct(rows, 100) == 30
    assert count_distinct(X[:0], 3) == 0
    assert count_distinct(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]]), 3) == 2


def test_options():
    check_option("border", "nearest", ("nearest", "absorb"))
    with pytest.raises(ValueError, match="border must be one of 'nearest', 'absorb'; got None"):
        check_option("border", None, ("nearest", "absorb"))
