"""Labels and identifiers: a table of what is given and what is read, or why it is refused."""

import datetime
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from fedlib.core.targets import read_classes, read_ids, read_labels, read_targets, read_weights

DATES = [
    [datetime.date(2020, 1, 31)],
    [datetime.timedelta(1)],
    np.array(["2020-01-31"], "M8[D]"),
    np.array([1], "m8[s]"),
    pd.to_datetime(["2020-01-31"]).tz_localize("UTC"),
    pd.period_range("2020", periods=1),
]
GAPS = [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT, Decimal("nan"), "", " \t"]
GAPS += [np.datetime64("NaT", "D"), np.ma.masked]


def same(array, expected):
    """Compare the values and the types."""
    expected = np.array(expected)
    assert array.dtype.kind == expected.dtype.kind
    assert array.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([0, 1], [0, 1]),
        ([0.5, 1], [0.5, 1.0]),
        ([True, False], [True, False]),
        (np.array([0, 1], np.int8), [0, 1]),
        (np.array([0, 1], object), [0, 1]),
        (np.array([np.int8(0), 1], object), [0, 1]),
        (np.array([0.0, 1.0], np.float32), [0.0, 1.0]),
        (np.array([0, 1], np.longdouble), [0.0, 1.0]),
        ([Decimal(0), Decimal("1.0")], [0, 1]),
        ([Decimal("0.5"), 1], [0.5, 1.0]),
        (pd.Series([0, 1], dtype="category"), [0, 1]),
        (pd.Series([0, 1], dtype="Int64"), [0, 1]),
        (pd.Series([0, 1], dtype="int64[pyarrow]"), [0, 1]),
        (pd.Series([True, False], dtype="boolean"), [True, False]),
        (pd.Index([0, 1]), [0, 1]),
        (range(2), [0, 1]),
        ((one for one in (0, 1)), [0, 1]),
        (np.ma.array([0, 1]), [0, 1]),
        (["a", "b"], ["a", "b"]),
        ([np.str_("a"), "b"], ["a", "b"]),
        ([" a", "b  "], ["a", "b"]),
        (np.array(["a ", "b"]), ["a", "b"]),
        (np.array(["a", "b"], object), ["a", "b"]),
        (np.array(["a", "b"], np.dtypes.StringDType()), ["a", "b"]),
        (["nan", "None"], ["nan", "None"]),  # words, as in a file
        (["0", "1"], ["0", "1"]),
        (pd.Categorical(["a", "b"]), ["a", "b"]),
        (pd.Series(["a", "b"], dtype="str"), ["a", "b"]),
        (pd.Series(["a", "b"], dtype="string"), ["a", "b"]),
        (pd.Series(["a", "b"], dtype="string[pyarrow]"), ["a", "b"]),
        ([[0], [1]], [0, 1]),
        (np.array([["a"], ["b"]]), ["a", "b"]),
        (pd.DataFrame({"y": ["a", "b"]}), ["a", "b"]),
        (pd.DataFrame({"y": pd.Categorical([0, 1])}), [0, 1]),
    ],
)
def test_classes(y, expected):
    same(read_classes(y, n_rows=2), expected)


@pytest.mark.parametrize("empty", [[], np.array([]), np.array([], object), np.array([], str)])
def test_no_rows(empty):
    assert read_classes(empty, n_rows=0).shape == read_targets(empty).shape == (0,)
    assert read_labels(empty).dtype == np.int64
    assert read_ids(empty, 0) == []


@pytest.mark.parametrize("gap", GAPS, ids=repr)
@pytest.mark.parametrize("value", ["a", 1])
def test_missing_values_are_refused_with_their_rows(gap, value):
    four = [value, gap, value, gap]
    for y in (four, pd.Series(four, dtype=object)):
        with pytest.raises(ValueError, match="^y has no class in 2 rows, first in row 2: drop the"):
            read_classes(y)
    with pytest.raises(ValueError, match="^ids have no identifier in 1 row, row 2: leave this row"):
        read_ids([value, gap], 2)
    if value == 1:
        for read, what in ((read_targets, "y has no number"), (read_weights, "has no weight")):
            with pytest.raises(ValueError, match=f"{what} in 1 row, row 1: drop this row"):
                read([gap, 1])
        with pytest.raises(ValueError, match="labels have no cluster in 1 row, row 1: leave this"):
            read_labels([gap, 1])


@pytest.mark.parametrize(
    "given",
    [
        np.ma.array([5, 5, 7], mask=[0, 0, 1]),
        np.ma.array(["a", "b", "c"], mask=[0, 0, 1]),
        np.ma.array([[1], [2], [3]], mask=[[0], [0], [1]]),
        pd.Series([1, 2, None], dtype="category"),
        pd.Series([1, 2, None], dtype="Int64"),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series(["a", "b", None], dtype="str"),
        pd.array([1.0, 2.0, None]),
        np.array([1.0, 2.0, np.nan]),
    ],
    ids=lambda given: f"{type(given).__name__}-{given.dtype}",
)
def test_missing_values_of_every_type(given):
    with pytest.raises(ValueError, match="no class in 1 row, row 3"):
        read_classes(given)
    with pytest.raises(ValueError, match="no identifier in 1 row, row 3"):
        read_ids(given, 3)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", 1], "either text or numbers; got both, such as 1 in row 2 and 'a' in row 1"),
        ([True, "a"], "got both, such as True in row 1"),
        ([b"a"], "got bytes in row 1: decode them to text, such as with value.decode"),
        (np.array([b"a"]), "no bytes: decode them"),
        ([1.0, np.inf], "y must be finite; got inf in row 2"),
        ([Decimal("inf")], "y must be finite; got inf in row 1"),
        ([2**70], "integers within 64 bits"),
        ([1j], "must be text or numbers; got complex in row 1"),
        ([(1, 2), (3,)], "got tuple in row 1"),
        ([[1, 2], [3, 4]], "one class per row, in one column; got 2 columns"),
        (pd.DataFrame({"a": [1], "b": [2]}), "got 2 columns"),
        (np.zeros((1, 1, 1)), "got 3 axes"),
        (scipy.sparse.csr_matrix([[1], [0]]), r"sparse table: use y.toarray\(\).ravel\(\)"),
        ("ab", "must be a list or an array with one class per row, got a str"),
        ({"a": 1}, "got a dict"),
        ({1, 2}, "got a set"),
        (3, "got a int"),
        (None, "got a NoneType"),
        (["a\0"], "other than U.0000; row 1"),
        (["a", "\udce9"], "Unicode characters .* row 2 has another: read the file with its right"),
        *((dates, "y must be text or numbers; got a date in row 1: convert") for dates in DATES),
    ],
)
def test_refused_classes(y, message):
    with pytest.raises(ValueError, match=message):
        read_classes(y)


def test_the_count_of_rows():
    with pytest.raises(ValueError, match="^target must contain one class per row, 3; got 2$"):
        read_classes([1, 2], "target", 3)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]),
        ([Decimal("0.1"), 2], [0.1, 2.0]),
        (np.array([1, 2.5], object), [1.0, 2.5]),
        ([Fraction(1, 2)], [0.5]),
        ([True, False], [1.0, 0.0]),
        (pd.Series([1.5, 2], dtype="category"), [1.5, 2.0]),
        (pd.Series([1.5, 2], dtype="Float64"), [1.5, 2.0]),
        ([[1], [2]], [1.0, 2.0]),
    ],
)
def test_targets_and_weights(y, expected):
    same(read_targets(y), expected)
    same(read_weights(y), expected)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["1"], "must contain numbers; got the text '1' in row 1: convert text to numbers"),
        ([1, np.inf], "must be finite.*; got inf in row 2"),
        ([b"1"], "must be numbers; got bytes"),
        *((dates, "must be numbers; got a date in row 1") for dates in DATES),
    ],
)
def test_refused_targets_and_weights(y, message):
    for read in (read_targets, read_weights):
        with pytest.raises(ValueError, match=message):
            read(y)


def test_negative_weights():
    with pytest.raises(ValueError, match="^sample_weight must be .* at least 0; got -1 in row 2$"):
        read_weights([1, -1])


@pytest.mark.parametrize(
    "labels",
    [
        [0, -1],
        [0.0, -1.0],
        np.array([0, -1], object),
        np.array([0.0, np.int8(-1)], object),
        [Decimal(0), Decimal("-1.0")],
        pd.Categorical([0, -1]),
        pd.Series([0, -1], dtype="Int8"),
        np.ma.array([0, -1]),
        [[0], [-1]],
    ],
)
def test_labels(labels):
    same(read_labels(labels, n_rows=2), [0, -1])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0.5], "labels must be integers from -1 to 2.*53, got 0.5 in row 2"),
        ([-2], "got -2 in row 1"),
        ([2**53 + 2], "got 9007199254740994 in row 1"),
        ([1e300], r"got 1e\+300"),
        (np.array([2**63], np.uint64), "got 9223372036854775808"),
        ([np.inf], "got inf in row 1"),
        (["1"], "got the text '1' in row 1: convert them to integers"),
        ([True], "got the truth value 'True' in row 1"),
        (np.array([True]), "got truth values"),
        (DATES[0], "got a date in row 1"),
        (
            np.ma.array([0, 1, 1], mask=[0, 1, 1]),
            "in 2 rows, first in row 2: leave these",
        ),
    ],
)
def test_refused_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        read_labels(labels)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "float64", "Int32"])
def test_an_integer_is_the_same_identifier_in_every_type(dtype):
    assert read_ids(pd.Series([1, 20], dtype=dtype), 2) == ["1", "20"]
    assert read_ids(pd.Series([1, 20], dtype=dtype).astype("category"), 2) == ["1", "20"]
    assert read_ids(pd.Series([1, 20], dtype=dtype).astype(object), 2) == ["1", "20"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["1", 20], ["1", "20"]),
        ([" p 1 ", "01"], ["p 1", "01"]),
        ([Decimal("1.0"), Decimal("1E+3")], ["1", "1000"]),
        ([2**70, -0.0], [str(2**70), "0"]),
        ([2**53 + 1, 2**53], ["9007199254740993", "9007199254740992"]),
        ([UUID(int=1), np.str_("a")], ["00000000-0000-0000-0000-000000000001", "a"]),
        (["Åse", "1.0"], ["Åse", "1.0"]),
        (np.array([[1], [2]]), ["1", "2"]),
    ],
)
def test_identifiers(ids, expected):
    assert read_ids(ids, len(expected)) == expected
    assert read_ids(read_ids(ids, len(expected)), len(expected)) == expected


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([7, 2**24], np.float32), "got float32 beyond the integers that are all exact"),
        ([7, 2.0**53], "got float beyond the .* exact in it .* in row 2"),
        (np.array([7, 2048], np.float16), "got float16 beyond"),
        ([7, 7.5], "got a number that is no integer in row 2"),
        ([Decimal("7.5")], "no integer in row 1"),
        ([np.inf], "no integer in row 1"),
        ([True], "got a truth value in row 1"),
        ([b"7"], "got bytes in row 1: decode"),
        (np.array([b"7"]), "no bytes: decode"),
        ([7, (7, 7)], "got tuple in row 2"),
        ([(7, 7)], "got 2 columns"),
        (["\ud800"], "row 1 has another"),
        ("7", "got a str"),
        (["a", "c", "b", "a", "b"], "but 2 of them occur more than once, the first in row 1"),
        ([5, "c", "5 ", 5.0], "but 1 of them occur more than once, the first in row 1"),
        *((dates, "got a date in row 1: convert") for dates in DATES),
    ],
)
def test_refused_identifiers(ids, message):
    with pytest.raises(ValueError, match=message) as error:
        read_ids(ids, len(ids))
    assert "'" not in str(error.value)
    assert "7" not in str(error.value)


@given(st.lists(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.binary())))
def test_no_error_about_identifiers_contains_one(ids):
    """A secret that no message has by itself is in every identifier that is text."""
    secret = "5417390"
    values = [f"{one}{secret}" if isinstance(one, str) else one for one in ids]
    error, texts = "", []
    try:
        texts = read_ids(values, len(values))
    except ValueError as refused:
        error = str(refused)
    assert secret not in error
    assert len(set(texts)) == (0 if error else len(values))
    assert all(text == text.strip() != "" for text in texts)
