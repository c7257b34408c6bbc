"""Dataset-JSON of CDISC: every data type, what a column cannot be read for, and other JSON."""

import json

import pandas as pd
import pytest
from sheets import write_dataset as write

from fedlib.tables.dataset_json import MAX_BYTES, read_dataset_json
from fedlib.tables.files import read_table
from fedlib.tables.schema import Schema
from fedlib.tables.schema.drafting import draft_schema

pytest.importorskip("pyarrow")


def applied(path, type, **field):
    fields = [{"name": "c", "type": type, **field}]
    return Schema({"schema": {"fields": fields}}).apply(path)[0].X["c"].tolist()


@pytest.mark.parametrize("suffix", [".json", ".ndjson"])
def test_numbers_texts_truth_values_and_gaps(suffix, tmp_path):
    columns = {
        "AGE": ("integer", [63, None, 71.0]),
        "SITEID": ("string", ["007", "1E50", None]),
        "BMI": ("float", [25, 30.5, None]),
        "DOSE": (("decimal", "decimal"), ["0.1", "1,234.50", None]),
        "SAFE": ("boolean", [True, False, True]),
    }
    path = write(tmp_path / f"dm{suffix}", columns)
    X = read_table(path, raw=True, text="SITEID").X
    assert X["AGE"].fillna(-1).tolist() == [63, -1, 71]
    assert X["SITEID"].tolist()[:2] == ["007", "1E50"]
    assert X["SITEID"].isna().tolist() == [False, False, True]
    assert X["BMI"].fillna(-1).tolist() == [25, 30.5, -1]
    assert X["DOSE"].fillna(-1).tolist() == [0.1, 1234.5, -1]
    assert X["SAFE"].tolist() == [True, False, True]
    with pytest.raises(ValueError, match="'SITEID' .*looks like numbers, such as '007'; .*--text"):
        read_table(path, raw=True)


def test_decimals_are_the_nearest_floats_and_large_ones_are_refused(tmp_path):
    exact = ["8.7", "123456789.123456789", "1E-7", "9" * 80]
    path = write(tmp_path / "a.json", {"c": ("decimal", exact)})
    assert applied(path, "number") == [8.7, 123456789.123456789, 1e-7, float("9" * 80)]
    path = write(tmp_path / "a.json", {"c": ("decimal", ["9007199254740993", None])})
    with pytest.raises(ValueError, match="got 9007199254740993 in row 1"):
        read_table(path, raw=True)


@pytest.mark.parametrize("target", ["integer", None])
def test_dates_and_times_are_days_and_durations_whatever_a_receiver_makes_of_them(target, tmp_path):
    columns = {
        "c": (("date", target), ["2020-03-01", None, "", "1899-12-31"]),
        "m": (
            ("datetime", target),
            ["2020-03-01T23:59", "2020-03-01", None, "2020-03-02T00:00:01"],
        ),
        "t": (("time", target), ["12:30", "00:00:01.5", None, None]),
    }
    path = write(tmp_path / "a.json", columns)
    days = applied(path, "date")
    assert [days[0], days[3]] == [18322, -25568]
    assert pd.isna(days[1:3]).all()
    fields = [
        {"name": "m", "type": "date"},
        {"name": "t", "type": "number", "fedlib": {"unit": "s"}},
    ]
    X = Schema({"schema": {"fields": fields}}).apply(path)[0].X
    assert X["m"].fillna(-1).tolist() == [18322, 18322, -1, 18323]
    assert X["t"].fillna(-1).tolist() == [45000, 1.5, -1, -1]


def test_times_with_a_zone_need_the_zone_of_the_day(tmp_path):
    path = write(
        tmp_path / "a.json",
        {"c": ("datetime", ["2020-03-01T23:30:00Z", "2020-03-02T00:30:00.250+02:00", None])},
    )
    with pytest.raises(ValueError, match=r"times with the zone UTC, .* \"Europe/Berlin\""):
        applied(path, "date")
    berlin = applied(path, "date", fedlib={"timezone": "Europe/Berlin"})
    assert berlin[:2] == [18323, 18322]  # the second is 23:30 there


@pytest.mark.parametrize(
    ("kind", "cells", "message"),
    [
        ("date", ["2020-03-01", "2020-03"], "'2020-03' in row 2, .* complete date .* dataType str"),
        ("date", ["2020-02-30"], "'2020-02-30' in row 1"),
        ("date", ["2020-03-01T10:00:00"], "needs a complete date"),
        ("date", [21550], "contains 21550 in row 1, but its dataType date"),
        ("datetime", ["2020-03-01T10"], "needs a time such as"),
        ("datetime", ["2020-03-01T10:00", "2020-03-01T10:00Z"], "with a zone and without one"),
        ("time", ["25:00"], "needs a time of day"),
        ("integer", [1, 56.7], "56.7 in row 2, .* needs an integer .* dataType float"),
        ("integer", [10**18], "needs an integer of at most 18 digits"),
        ("integer", [True], "contains True in row 1"),
        ("integer", ["5"], "contains '5' in row 1"),
        ("float", ["."], "needs a number"),
        ("decimal", ["1,5"], "'1,5' in row 1, .* needs a number in a text"),
        ("string", [None, 5], "contains 5 in row 2, .* needs a text"),
        ("boolean", ["Y"], "needs true or false"),
        ("text", ["a"], "dataType 'text' .* which the standard does not have"),
        (("string", "integer"), ["5"], "targetDataType 'integer', which the standard"),
    ],
)
def test_a_column_that_does_not_fit_its_type_disturbs_only_runs_that_use_it(
    kind, cells, message, tmp_path
):
    path = write(tmp_path / "a.json", {"c": (kind, cells), "x": ("integer", [1] * len(cells))})
    assert read_table(path, columns="x").X["x"].tolist() == [1] * len(cells)
    with pytest.raises(ValueError, match=f"column 'c' .*{message}"):
        read_table(path, columns="c", raw=True)


def test_the_draft_has_no_partial_dates_and_its_rows_fit(tmp_path):
    columns = {
        "SEX": ("string", ["F", "M"] * 20),
        "AGE": ("integer", [*range(40, 80)]),
        "RFSTDTC": ("date", [f"2020-03-{i % 28 + 1:02}" for i in range(40)]),
        "BRTHDTC": ("date", [*(["1960-01-01"] * 39), "1928"]),
    }
    path = write(tmp_path / "dm.ndjson", columns)
    schema = draft_schema(path)
    assert (schema.categories["SEX"], schema.skipped) == (("F", "M", "other"), ("BRTHDTC",))
    assert b"1928" not in schema.to_json()
    assert schema.check(path).problems == ()


def test_records_columns_and_rows_agree(tmp_path):
    columns = {"a": ("integer", [1, 2]), "b": ("integer", [3, 4])}
    path = write(tmp_path / "a.json", columns, records=3)
    with pytest.raises(ValueError, match="records is 3, but there are 2 rows; the file is incompl"):
        read_table(path)
    path = write(tmp_path / "a.ndjson", columns)
    path.write_text(path.read_text().replace("[2, 4]", "[2]"))
    with pytest.raises(ValueError, match="row 2 has 1 values for 2 columns"):
        read_table(path)
    path = write(tmp_path / "a.json", columns)
    path.write_text(path.read_text().replace('"name": "b"', '"name": "a"'))
    with pytest.raises(ValueError, match="there is more than one column 'a'"):
        read_table(path)


def test_metadata_without_rows_have_columns(tmp_path):
    path = tmp_path / "a.json"
    head = {"datasetJSONVersion": "1.1", "records": 0}
    path.write_text(json.dumps({**head, "columns": [{"name": "a", "dataType": "integer"}]}))
    assert {name: len(cells) for name, cells in read_dataset_json(path).columns.items()} == {"a": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "it is no Dataset-JSON: Expected `object`, got `array`"),
        ('{"schema": {}}', "datasetJSONVersion must be 1.1, got ''"),
        (
            '{"datasetJSONVersion": "1.0.0", "clinicalData": {}}',
            "got '1.0.0'; .* convert_1_0_to_1_1",
        ),
        ('{"datasetJSONVersion": "1.10"}', "datasetJSONVersion must be 1.1, got '1.10'"),
        ('{"datasetJSONVersion": "1.1.3"}', "missing required field `records`"),
        ("a,b\n1,2\n", "it is no Dataset-JSON: JSON is malformed"),
        (
            '{"datasetJSONVersion": "1.1", "records": 1, "columns": [], "rows": [[[]]]}',
            "got `array`",
        ),
    ],
)
def test_other_json_is_refused(text, message, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a.json: .*{message}.*\.csv or \.parquet"):
        read_table(tmp_path / "a.json")


def test_a_file_has_a_limit(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(
        ValueError, match="must have at most 1,073,741,824 bytes, got 1,073,741,825"
    ):
        read_table(tmp_path / "a.json")
