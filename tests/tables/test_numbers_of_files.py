"""Columns of plain numbers are read as numbers, with the same values as from their texts."""

import numpy as np
import pytest

from fedlib import Schema
from fedlib.tables.schema import reading

FIELDS = [
    {"name": "a", "type": "number", "constraints": {"minimum": -50, "maximum": 50}},
    {"name": "n", "type": "integer"},
    {"name": "t", "type": "string"},
]
CELLS = ["1", "-0", "1e3", "0.1", "", "NA", '"7"', "9007199254740993", ".5", "5."]
ODD = [
    " 2",
    "+2",
    "x",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1,5",
    "'3",
    " ",
    "NA ",
    "1e400",
    "0x1",
    "nan(1)",
]


def schema(missing=("", "NA"), **properties):
    fields = [dict(field) for field in FIELDS]
    fields[0] |= properties
    outside = {"outside": "missing"}
    fields = [field | {"fedlib": outside} for field in fields[:2]] + fields[2:]
    return Schema({"schema": {"fields": fields, "missingValues": list(missing)}})


def both_ways(monkeypatch, agreed, path):
    """Return the tables and reports by numbers where possible, and always by texts."""
    fast = agreed.apply(path)
    with monkeypatch.context() as changed:
        changed.setattr(reading, "_read_numbers", lambda *_: None)
        slow = agreed.apply(path)
    for table, _ in (fast, slow):
        table.X["t"] = table.X["t"].fillna("a gap")
    assert fast[1] == slow[1]
    for name in fast[0].X:
        first, second = (table.X[name].to_numpy() for table, _ in (fast, slow))
        assert first.dtype == second.dtype
        if first.dtype == np.float64:
            first, second = first.view(np.int64), second.view(np.int64)
        assert first.tolist() == second.tolist(), name
    return fast


def write(path, cells):
    """Write each cell next to others; rows of nothing but gaps are there, too."""
    rows = [f"{cell},{i},{cell}" for i, cell in enumerate(cells)] + ["1,,", ",,"]
    path.write_text("a,n,t\n" + "\n".join(rows) + "\n")


def test_plain_numbers_are_not_read_as_texts(tmp_path, monkeypatch):
    write(tmp_path / "a.csv", CELLS)
    seen = []
    original = reading._read_numbers
    monkeypatch.setattr(
        reading, "_read_numbers", lambda *given: seen.append(original(*given)) or seen[-1]
    )
    table, _ = both_ways(monkeypatch, schema(), tmp_path / "a.csv")
    assert seen[0] is not None
    assert table.X["a"].tolist()[:2] == [1, 0]
    assert np.isnan(table.X["a"].iloc[[4, 5]]).all()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("missing", [("", "NA"), ("",), ("x", "-0"), ("7", "NA")])
def test_odd_cells_have_the_same_values(odd, missing, tmp_path, monkeypatch):
    write(tmp_path / "a.csv", [*CELLS, odd.join('""') if "," in odd else odd])
    both_ways(monkeypatch, schema(missing), tmp_path / "a.csv")


@pytest.mark.parametrize(
    "properties",
    [{"decimalChar": ","}, {"groupChar": " "}, {"bareNumber": False}, {"missingValues": ["5."]}],
)
def test_other_notations_have_the_same_values(properties, tmp_path, monkeypatch):
    write(tmp_path / "a.csv", CELLS)
    both_ways(monkeypatch, schema(**properties), tmp_path / "a.csv")
