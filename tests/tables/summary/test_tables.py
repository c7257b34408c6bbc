"""Raw tables: numbers, text and gaps; everything else is refused with the column and the remedy."""

import datetime

import numpy as np
import pandas as pd
import pytest

from fedlib.tables.summary.tables import EMPTY, NUMBER, TEXT, read_columns


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
        ([2**53 + 2, 1], "'c' must contain whole numbers within .* in row 1; identifiers are no"),
        (pd.to_datetime(["2020-01-31", None]), "'c' must contain numbers or text, got datetime64"),
        ([datetime.date(2020, 1, 31), None], "'c' .* got dates; replace dates by numbers"),
        (["2020-01-31", "2021-05-01"], "'c' .* got '2020-01-31'; replace dates by numbers"),
        (["31.01.2020 10:30", "1.2.2021"], "'c' .* replace dates by numbers"),
        ([1, "m"], "'c' must contain either numbers or text, got both, such as 'm'; leave cells"),
        (["1", "2", "NA"], "got numbers and 'NA' in row 3; leave cells without a value empty"),
        ([True, "m"], "'c' must contain either numbers or text, got both"),
        ([1j, 2.0], "'c' must contain numbers or text, got complex numbers"),
        ([{1}, 2.0], "'c' must contain either numbers or text"),
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
