"""Names of columns: another order is put right, and differences are named."""

import numpy as np
import pandas as pd
import pytest

from fedlib.core.column_names import feature_names, in_order


def test_names_of_features():
    assert feature_names(pd.DataFrame({"age": [30], "weight": [70]})) == ("age", "weight")
    assert all(type(name) is str for name in feature_names(pd.DataFrame({"age": [30]})))
    for X in (np.zeros((1, 2)), [[1, 2]], pd.DataFrame([[1, 2]]), None):
        assert feature_names(X) == ()


def test_more_names_than_a_message_may_contain():
    table = pd.DataFrame(np.zeros((1, 2**16 + 1))).rename(columns=str)
    with pytest.raises(ValueError, match="at most 65536 columns with names, got 65537"):
        feature_names(table)
    assert len(feature_names(table.iloc[:, 1:])) == 2**16
    assert feature_names(table.to_numpy()) == ()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            pd.MultiIndex.from_tuples([("y", 1), ("y", 2)]),
            r"must be text, got \('y', 1\); set them",
        ),
        ([None, "a"], "must be text, got (nan|None)"),
        ([1.5, "a"], "must be text, got 1.5"),
        ([True, "a"], "must be text, got True"),
        (["a", "a"], "must be unique, got repeated 'a'"),
        ([1, "1"], "must be unique, got repeated '1'"),
    ],
)
def test_names_that_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        feature_names(pd.DataFrame([[1, 2]], columns=columns))


def test_integers_are_names_unless_they_count_the_columns():
    assert feature_names(pd.DataFrame([[1, 2]], columns=[2019, 2020])) == ("2019", "2020")
    assert feature_names(pd.DataFrame([[1, 2]], columns=[1, 0])) == ("1", "0")
    assert feature_names(pd.DataFrame([[1, 2]], columns=np.array([0, 1]))) == ()


def test_columns_are_put_into_order():
    table = pd.DataFrame({"b": [1, 2], 2019: [3, 4], "a": [5, 6]}, index=["p", "q"])
    ordered = in_order(table, ("a", "b", "2019"))
    assert ordered.to_numpy().tolist() == [[5, 1, 3], [6, 2, 4]]
    assert ordered.index.tolist() == ["p", "q"]
    assert in_order(table, ()) is table
    array = table.to_numpy()
    assert in_order(array, ("a", "b", "2019")) is array


def test_only_differences_are_named():
    names = [f"c{i}" for i in range(100)]
    table = pd.DataFrame([range(100)], columns=[*names[:90], *(f"d{i}" for i in range(10))])
    with pytest.raises(ValueError, match="'c90', .* and 5 more are missing, and 'd0'") as error:
        in_order(table, names)
    assert len(str(error.value)) < 300
