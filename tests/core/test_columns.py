"""Raw tables: numbers, text and gaps; everything else is refused with the column and the remedy."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    FederatedXGBRegressor,
)
from fedlib.core.columns import EMPTY, NUMBER, TEXT, read_columns
from fedlib.sites.site import make_client
from fedlib.tables.files import Table


def test_kinds_and_gaps_of_columns():
    """One column per kind of content that pandas knows."""
    frame = pd.DataFrame(
        {
            "float": [1.5, np.nan, -0.0],
            "nullable": pd.array([1, None, 3], "Int64"),
            "object": np.array([1, None, 2.5], object),
            "text": ["a", None, ""],
            "category": pd.Categorical([3, None, 7]),
            "truth": [True, False, True],
            "nothing": [None, None, None],
            "string": pd.array(["a", None, "b"], "string"),
        }
    )
    table = read_columns(frame)
    assert table.features == tuple(frame.columns)
    assert table.kinds.tolist() == [NUMBER] * 3 + [TEXT] * 3 + [EMPTY, TEXT]
    assert table.counts.tolist() == [2, 2, 2, 1, 2, 3, 0, 2]
    assert table.columns[3].tolist() == ["a", None, None]
    assert table.columns[4].tolist() == ["3", None, "7"]
    assert table.columns[5].tolist() == ["True", "False", "True"]
    assert table.complete.tolist() == [False] * 3
    assert not np.signbit(table.columns[0][2])  # both zeros are one value


@pytest.mark.parametrize(
    "X",
    [[[1, "a"], [None, "b"]], np.array([[1, "a"], [None, "b"]], object), ((1, "a"), (None, "b"))],
)
def test_tables_without_names(X):
    table = read_columns(X)
    assert table.features == ()
    assert table.labels == ("0", "1")
    assert table.kinds.tolist() == [NUMBER, TEXT]
    assert table.shape == (2, 2)


def test_codes_of_categories_become_text():
    table = read_columns(pd.DataFrame({"code": [1.0, 2.5, np.nan], "x": [1.0, 2.0, 3.0]}))
    assert table.with_text(["code"]).columns[0].tolist() == ["1", "2.5", None]
    assert table.with_text(["code"]).kinds.tolist() == [TEXT, NUMBER]
    with pytest.raises(ValueError, match="there is no column age; the columns are code, x"):
        table.with_text(["age"])


def test_gaps_are_filled():
    table = read_columns([[1.0, None], [np.nan, None]])
    filled = table.filled([0, 1], [7.0, 8.0])
    assert [column.tolist() for column in filled.columns] == [[1.0, 7.0], [8.0, 8.0]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            [1.0, np.inf],
            "column 'c' must contain finite numbers within ±1e\\+100, got inf in row 2",
        ),
        ([2**53 + 2, 1], "'c' must contain integers within .* in row 1; identifiers are no"),
        (pd.to_datetime(["2020-01-31", None]), "'c' must contain numbers or text, got datetime64"),
        ([datetime.date(2020, 1, 31), None], "'c' .* got dates; replace dates by numbers"),
        (["2020-01-31", "2021-05-01"], "'c' .* got '2020-01-31'; replace dates by numbers"),
        (["31.01.2020 10:30", "1.2.2021"], "'c' .* replace dates by numbers"),
        ([1, "m"], "'c' must contain either numbers or text, got both, such as 'm'; leave cells"),
        (["1", "2", "V45"], "got numbers and 'V45' in row 3; .* declare codes as text, with X"),
        ([b"a", "b"], "'c' must contain numbers or text, got bytes; decode them"),
        (pd.to_timedelta(["1D", None]), "'c' must contain numbers or text, got timedelta64"),
        ([np.timedelta64(1, "D"), 2.0], "got durations and numbers; replace"),
        (
            pd.Series([2**60, None], dtype=object),
            "'c' must contain integers within ±2..53, .* in row 1",
        ),
        ([Decimal("Infinity")], "must contain finite numbers within .* got inf in row 1"),
        ([True, "m"], "'c' must contain either numbers or text, got both"),
        ([1j, 2.0], "'c' must contain numbers or text, got complex numbers"),
        ([{1}, 2.0], "'c' must contain numbers or text, got values of the type set; convert"),
        (["a" * 201, "b"], "'c' must contain texts of at most 200 characters, got 201; leave"),
        (pd.Categorical(["a" * 201, "b"]), "'c' must contain texts of at most 200 characters"),
    ],
)
def test_other_content_is_refused(column, message):
    with pytest.raises(ValueError, match=message):
        read_columns(pd.DataFrame({"c": column}))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([1.0, 2.0], "X must be a table with 2 axes, rows and columns, got 1"),
        (np.zeros((2, 0)), "the table has no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "columns must be unique, got repeated .*a"),
    ],
)
def test_what_is_no_table_is_refused(X, message):
    with pytest.raises(ValueError, match=message):
        read_columns(X)


def test_numbers_and_texts_of_the_wrong_kind():
    table = read_columns(pd.DataFrame({"c": ["m", None]}))
    with pytest.raises(ValueError, match="column 'c' must contain numbers, got 'm' in row 1"):
        table.numbers(0)
    assert read_columns(pd.DataFrame({"c": [1.0, None]})).texts(0).tolist() == ["1", None]


def test_spellings_that_do_not_make_categories():
    """Blanks, the case of truth values and the type of a number are not part of a category."""
    frame = pd.DataFrame(
        {
            "sex": ["M", "F ", " M"],
            "dead": ["true", "FALSE", None],
            "code": pd.Categorical([1.0, 2.5, 1.0]),
            "words": ["TRUE", "no", "true"],
        }
    )
    columns = [column.tolist() for column in read_columns(frame).columns]
    assert columns[0] == ["M", "F", "M"]
    assert (
        columns[1]
        == ["True", "False", None]
        == read_columns(pd.DataFrame({"dead": [True, False, None]})).columns[0].tolist()
    )
    assert columns[2] == ["1", "2.5", "1"]
    assert columns[3] == ["TRUE", "no", "true"]


@pytest.mark.parametrize("word", ["NA", "n/a", "NULL", ".", " NaN ", "?", ""])
def test_words_for_gaps_are_gaps_among_numbers(word):
    table = read_columns(pd.DataFrame({"crp": [word, "5.25", word, word, "7"]}))
    assert table.kinds.tolist() == [NUMBER if word else TEXT]
    if word:
        np.testing.assert_array_equal(table.columns[0], [np.nan, 5.25, np.nan, np.nan, 7.0])
    assert read_columns(pd.DataFrame({"c": [word, "DE"]})).kinds.tolist() == [TEXT]


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        ([Decimal("1.5"), None, Decimal("2.5")], [1.5, np.nan, 2.5]),
        (np.array([1, 2, 3], object), [1.0, 2.0, 3.0]),
        (pd.arrays.SparseArray([0.0, 0.0, 2.0]), [0.0, 0.0, 2.0]),
        (pd.array([1.5, None, 2.0], "Float64"), [1.5, np.nan, 2.0]),
        ([np.float32(0.5), 1, None], [0.5, 1.0, np.nan]),
    ],
)
def test_numbers_of_other_types(column, numbers):
    np.testing.assert_array_equal(read_columns(pd.DataFrame({"c": column})).columns[0], numbers)


def test_masked_values_are_gaps_and_sparse_tables_are_refused():
    masked = np.ma.masked_values([[0.0, 1.0], [-999.0, 2.0]], -999.0)
    np.testing.assert_array_equal(read_columns(masked).columns[0], [0.0, np.nan])
    texts = np.ma.array([["a", 1], ["b", 2]], object, mask=[[True, False], [False, True]])
    assert read_columns(texts).columns[0].tolist() == [None, "b"]
    assert read_columns(texts).counts.tolist() == [1, 1]
    with pytest.raises(ValueError, match="got a sparse table; X.toarray"):
        read_columns(csr_array(np.eye(2)))


def test_columns_of_identifiers_are_noticed_unless_they_are_declared():
    texts = [f"R{i}" for i in range(60)]
    found = read_columns(pd.DataFrame({"age": range(60), "id": texts})).identifiers
    assert found.startswith("column 'id' looks like identifiers: 60 of 60 texts are distinct")
    accepted = [
        pd.Series(texts, dtype="category"),  # declared
        [*texts[:50], *texts[:10]],  # 50 distinct ones
        [*texts, *texts[:10]],  # six sevenths are distinct
    ]
    for column in accepted:
        assert read_columns(pd.DataFrame({"id": column})).identifiers == ""


@pytest.mark.parametrize(
    "estimator",
    [
        FederatedSummary(),
        FederatedPipeline(FederatedKMeans(2), encode="one_hot"),
        FederatedXGBRegressor(2, method="histogram"),
    ],
)
def test_identifiers_are_refused_before_the_run(estimator):
    table = pd.DataFrame({"record": [f"R{i}" for i in range(60)], "age": np.arange(60.0)})
    part = (table, table["age"]) if "XGB" in type(estimator).__name__ else table
    with pytest.raises(ValueError, match=r"parts\[0\]: column 'record' looks like identifiers"):
        estimator.fit([part])
    rows = Table(table, y=table["age"].to_numpy())
    with pytest.raises(ValueError, match="column 'record' looks like identifiers"):
        make_client(estimator.name, rows)


FORMS = {
    "decimal commas": ["17,3", "8,25", "-0,5"],
    "thousands": ["1,234.50", "17.3", "12,000.1"],
    "spaces between thousands": ["1 234", "12 000", "5 678"],
    "per cent": ["5%", "17 %", "0.3%"],
    "units": ["17.3 mg", "8 mg", "12 mg"],
    "signs": ["<5", "<17.3", "<8"],
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_in_another_form_are_no_categories(form):
    """Also with gaps, and next to a few words; a declared column stays what it is."""
    texts = pd.Series([*FORMS[form], None, "", *FORMS[form], "low"], dtype=object)
    frame = pd.DataFrame({"crp": texts, "age": np.arange(len(texts))})
    wanted = "column 'crp' must contain numbers (in one form|without units and signs), got "
    with pytest.raises(ValueError, match=f"{wanted}.*astype\\('category'\\), .*--text crp"):
        read_columns(frame)
    for declared in (read_columns(frame.astype({"crp": "category"})), read_columns(frame, [0])):
        assert declared.kinds.tolist() == [1, 0]
    estimators = [
        FederatedSummary(),
        FederatedPipeline(FederatedKMeans(2), scale="standard", encode="one_hot"),
    ]
    for estimator in estimators:
        with pytest.raises(ValueError, match=wanted):
            estimator.fit([frame, frame])
    y = np.arange(len(frame)) % 2
    with pytest.raises(ValueError, match=wanted):
        FederatedXGBClassifier(2).fit([(frame, y)])


@pytest.mark.parametrize(
    "texts",
    [
        ["1A", "1B", "2A", "2B"],
        ["1st", "2nd", "3rd", "4th"],
        ["0-17", "18-40", "41+", "65+"],
        ["A1", "B2", "C3", "D4"],
        ["5 mg", "5 mg", "10 mg", "10 mg"],
        ["I10", "E11.9", "J45", "I25.1"],
    ],
)
def test_codes_are_categories(texts):
    assert read_columns(pd.DataFrame({"code": texts * 5})).kinds.tolist() == [1]
