"""Columns whose source states their types: what each type of Arrow and of a frame becomes."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from fedlib.core.columns import read_columns
from fedlib.tables.files import SiteFile, read_table
from fedlib.tables.schema import Schema
from fedlib.tables.schema.drafting import draft_schema
from fedlib.tables.streams import ReadOptions
from fedlib.tables.typed import TypedTable, frame_of, plain_series

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

NAN = float("nan")
BIG = 2**53 + 1
NOON = datetime(2020, 3, 1, 12)


def written(tmp_path, suffix=".parquet", **columns):
    """Return a file with columns of Arrow."""
    path, table = tmp_path / f"a{suffix}", pa.table(columns)
    tmp_path.mkdir(exist_ok=True)
    if suffix == ".parquet":
        parquet.write_table(table, path)
    elif suffix == ".feather":
        feather.write_feather(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return path


def schema_of(type, name="c", **field):
    return Schema({"schema": {"fields": [{"name": name, "type": type, **field}]}})


def applied(path, type, **field):
    return schema_of(type, **field).apply(path)[0].X["c"].tolist()


NUMBERS = {
    "integers": pa.array([1, 2]),
    "unsigned": pa.array([1, 2], pa.uint8()),
    "halves": pa.array(np.float16([1, 2])),
    "decimals": pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(9, 2)),
    "large decimals": pa.array([Decimal(1), Decimal(2)], pa.decimal256(60, 0)),
    "runs": pa.RunEndEncodedArray.from_arrays([1, 2], [1, 2]),
}


@pytest.mark.parametrize("array", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_every_type_are_numbers(array):
    frame, unreadable = frame_of(TypedTable({"c": array}))
    assert (frame["c"].tolist(), unreadable) == ([1, 2], {})


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
def test_files_of_arrow_have_the_same_content(suffix, tmp_path):
    gaps = pa.array([1, None, 3], pa.int32())
    path = written(
        tmp_path, suffix, x=pa.array([0.5, 1.5, 2.5]), n=gaps, k=pa.array(["a", None, "b"])
    )
    X = read_table(path, raw=True).X
    assert repr(X.to_dict("list")) == repr(
        {"x": [0.5, 1.5, 2.5], "n": [1.0, NAN, 3.0], "k": ["a", None, "b"]}
    )


def test_a_decimal_is_the_nearest_float_and_one_category(tmp_path):
    exact = [Decimal("0.1"), Decimal("8.7"), None, Decimal("123456789.123456789")]
    path = written(tmp_path, c=pa.array(exact, pa.decimal128(20, 9)))
    assert applied(path, "number")[1] == 8.7
    assert applied(path, "number")[3] == float("123456789.123456789")
    assert applied(path, "string")[:3] == ["0.1", "8.7", None]
    frame = pd.DataFrame({"c": [Decimal("1.50"), Decimal("1.5"), Decimal("1.0"), 1]}, dtype=object)
    assert schema_of("string").apply(frame)[0].X["c"].tolist() == ["1.5", "1.5", "1", "1"]
    category = frame.astype("category")
    assert read_columns(category).columns[0].tolist() == ["1.5", "1.5", "1", "1"]


def test_decimals_and_large_integers_are_identifiers(tmp_path):
    numbers = [Decimal(2**60), Decimal(2**60 + 1)]
    path = written(
        tmp_path,
        i=pa.array(numbers, pa.decimal128(25, 0)),
        j=pa.array([None, BIG], pa.int64()),
        x=pa.array([1.0, 2.0]),
    )
    assert read_table(path, columns="x", ids="i").ids.tolist() == [str(one) for one in numbers]
    with pytest.raises(ValueError, match=f"integers within .* got {BIG} in row 2"):
        read_table(path, columns="j", raw=True)


def test_text_of_a_file_with_types_is_never_a_number_unless_the_mark_is_named(tmp_path):
    path = written(tmp_path, c=pa.array(["001", "01", "1"]), x=pa.array([1.0, 2.0, 3.0]))
    for raw in (False, True):
        with pytest.raises(ValueError, match=r"looks like numbers, such as '001'; keep .*--text c"):
            read_table(path, raw=raw)
        with pytest.raises(ValueError, match=r"decimal mark of the numbers with --decimal"):
            read_table(path, raw=raw, columns="x", target="c")
    codes = written(tmp_path / "b", c=pa.array(["1E50", "1E51", "5A11"]))
    with pytest.raises(ValueError, match=r"looks like numbers, such as '1E50'; keep .*--text c"):
        read_table(codes, raw=True)
    assert read_table(codes, raw=True, text="c").X["c"].tolist() == ["1E50", "1E51", "5A11"]
    path = written(tmp_path, c=pa.array(["001", "01", "1"]), x=pa.array([1.0, 2.0, 3.0]))
    assert read_table(path, raw=True, text="c").X["c"].tolist() == ["001", "01", "1"]
    assert read_table(path, columns="x", ids="c").ids.tolist() == ["001", "01", "1"]
    assert applied(path, "string") == ["001", "01", "1"]
    german = written(tmp_path, c=pa.array(["1,5", "2", None]))
    assert repr(read_table(german, raw=True, decimal=",").X["c"].tolist()) == repr([1.5, 2.0, NAN])
    assert applied(german, "number", decimalChar=",")[:2] == [1.5, 2.0]


def test_dictionaries_are_categories_also_of_numbers(tmp_path):
    codes = pa.array([1, 2, None, 1]).dictionary_encode()
    path = written(tmp_path, c=codes, t=pa.array(["b", None, "a", "b"]).dictionary_encode())
    X = read_table(path, raw=True).X
    assert read_columns(X).columns[0].tolist() == ["1", "2", None, "1"]
    assert read_columns(X).columns[1].tolist() == ["b", None, "a", "b"]
    frame = pd.DataFrame({"c": pd.Categorical([1.0, 2.0, None, 1.0]), "x": [1.0, 2.0, 3.0, 4.0]})
    frame.to_parquet(tmp_path / "b.parquet")
    X = read_table(tmp_path / "b.parquet", raw=True).X
    assert read_columns(X).columns[0].tolist() == ["1", "2", None, "1"]
    assert applied(path, "integer")[:2] == [1.0, 2.0]
    assert applied(path, "string") == ["1", "2", None, "1"]


def test_an_index_with_a_name_is_a_column(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="patient"))
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", ids="patient").ids.tolist() == ["a", "b"]
    frame.reset_index(drop=True)[lambda rows: rows.x > 1].to_parquet(tmp_path / "b.parquet")
    assert [*read_table(tmp_path / "b.parquet").X] == ["x"]


def test_a_folder_named_like_a_partition_adds_no_column(tmp_path):
    (tmp_path / "year=2020").mkdir()
    assert [*read_table(written(tmp_path / "year=2020", x=pa.array([1.0]))).X] == ["x"]


UNREADABLE = {
    "bytes": (pa.array([b"ab", None]), "cannot be used: it contains binary; convert"),
    "lists": (pa.array([[1], [2]]), "cannot be used: it contains list<.*>; convert it"),
    "structs": (pa.array([{"a": 1}, None]), "cannot be used: it contains struct<.*>"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_no_run_can_use_is_refused_if_it_is_used(kind, tmp_path):
    array, message = UNREADABLE[kind]
    path = written(tmp_path, c=array, x=pa.array([1.0, 2.0]))
    assert read_table(path, columns="x").X["x"].tolist() == [1.0, 2.0]
    for read in (lambda: read_table(path), lambda: read_table(path, raw=True)):
        with pytest.raises(ValueError, match=f"column 'c' {message}"):
            read()
    with pytest.raises(ValueError, match=f"column 'c' {message}"):
        applied(path, "string")
    assert str(SiteFile.read(path, ReadOptions()).describe()[0]) == "cannot be used"
    assert draft_schema(path).skipped == ("c", "x")[: 1 + (kind == "none")]


def test_a_column_of_nulls_has_gaps_only(tmp_path):
    path = written(tmp_path, c=pa.nulls(2), x=pa.array([1.0, 2.0]))
    assert repr(read_table(path, raw=True).X["c"].tolist()) == repr([NAN, NAN])
    assert applied(path, "string") == [None, None]


@pytest.mark.parametrize("clock", ["zones of Arrow", "zones of pandas", "objects", "Arrow's dtype"])
def test_the_calendar_day_of_a_time_with_a_zone_needs_the_zone_of_the_place(clock, tmp_path):
    instants = [datetime(2020, 2, 29, 23, 30, tzinfo=UTC), None]
    array = pa.array(instants, pa.timestamp("us", "UTC"))
    source = {
        "zones of Arrow": lambda: written(tmp_path, c=array),
        "zones of pandas": lambda: pd.DataFrame({"c": pd.to_datetime(instants)}),
        "objects": lambda: pd.DataFrame({"c": pd.Series(instants, dtype=object)}),
        "Arrow's dtype": lambda: pd.DataFrame(
            {"c": pd.Series(instants, dtype=pd.ArrowDtype(array.type))}
        ),
    }[clock]()
    for type in ("date", "string"):
        with pytest.raises(ValueError, match="times with the zone UTC.*fedlib.*timezone"):
            applied(source, type)
    berlin = applied(source, "date", fedlib={"timezone": "Europe/Berlin"})
    assert repr(berlin) == repr([float((date(2020, 3, 1) - date(1970, 1, 1)).days), NAN])
    assert applied(source, "date", fedlib={"timezone": "UTC"})[0] == berlin[0] - 1
    plain = schema_of("date")
    assert plain.digest == schema_of("date", fedlib={"timezone": "Europe/Berlin"}).digest
    with pytest.raises(ValueError, match="timezone must be the name of a zone such as .*'Berlin'"):
        schema_of("date", fedlib={"timezone": "Berlin"})
    with pytest.raises(ValueError, match="timezone needs the type date, got 'number'"):
        schema_of("number", fedlib={"timezone": "UTC"})


def test_dates_and_times_are_calendar_days(tmp_path):
    days = [date(2020, 3, 1), None, date(1066, 10, 14)]
    path = written(tmp_path, c=pa.array(days), t=pa.array([NOON, None, NOON]))
    expected = (date(2020, 3, 1) - date(1970, 1, 1)).days
    assert applied(path, "date")[0] == expected
    assert applied(path, "date")[2] == (date(1066, 10, 14) - date(1970, 1, 1)).days
    assert applied(path, "string") == ["2020-03-01", None, "1066-10-14"]
    kept = read_table(path, columns="c", text="c", raw=True).X["c"]
    assert kept.dropna().tolist() == ["2020-03-01", "1066-10-14"]
    times = schema_of("date", name="t").apply(path)[0].X["t"]
    assert times[0] == expected
    texts = schema_of("string", name="t").apply(path)[0].X["t"]
    assert texts.tolist()[0] == "2020-03-01T12:00:00.000000"


DURATIONS = {
    "durations": [timedelta(hours=30), None],
    "times of day": [time(6), None],
    "both": [timedelta(hours=30), time(6)],
}


@pytest.mark.parametrize("kind", DURATIONS)
def test_a_duration_is_a_number_with_a_unit(kind, tmp_path):
    values = DURATIONS[kind]
    first = 30 if isinstance(values[0], timedelta) else 6
    sources = [pd.DataFrame({"c": pd.Series(values, dtype=object)})]
    if kind != "both":
        sources.append(written(tmp_path, c=pa.array(values)))
    for source in sources:
        hours = applied(source, "number", fedlib={"unit": "h"})
        assert hours[0] == first
        assert applied(source, "number", fedlib={"unit": "min"})[0] == 60 * first
        assert applied(source, "number", fedlib={"unit": "d"})[0] == first / 24
        for field in ({}, {"fedlib": {"unit": "years"}}):
            with pytest.raises(ValueError, match=r"durations.*unit.*among s, min, h, d"):
                applied(source, "number", **field)


def test_drafts_state_the_zone_and_the_unit_of_the_file(tmp_path):
    path = written(
        tmp_path,
        at=pa.array([datetime(2020, 3, 1, tzinfo=UTC)] * 24, pa.timestamp("us", "Europe/Berlin")),
        stay=pa.array([timedelta(hours=30)] * 24),
        code=pa.array(["1E50", "1E51"] * 12),
    )
    fields = {one["name"]: one for one in draft_schema(path)._descriptor["schema"]["fields"]}
    assert fields["at"]["type"] == "date"
    assert fields["at"]["fedlib"]["timezone"] == "Europe/Berlin"
    assert "timezone" in fields["at"]["fedlib"]["unconfirmed"]
    assert fields["stay"]["fedlib"]["unit"] == "s"
    assert fields["code"]["constraints"]["enum"] == ["1E50", "1E51"]
    assert draft_schema(path).check(path).problems == ()


def test_bytes_of_a_frame_are_never_decoded():
    for content in (b"\xff", b"ab"):
        frame = pd.DataFrame({"c": [content, None]})
        with pytest.raises(ValueError, match="column 'c' contains bytes.*decode"):
            applied(frame, "string")


def test_bytes_of_an_array_are_never_text(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[b"ab"], [b"cd"]]))
    for options in ({"text": "0"}, {"columns": "0", "raw": True}):
        with pytest.raises(ValueError, match="bytes"):
            read_table(tmp_path / "a.npy", **options)


def test_times_with_and_without_a_zone_are_not_mixed():
    with pytest.raises(ValueError, match="'c' contains times with a zone and without one"):
        plain_series(pd.Series([NOON, NOON.replace(tzinfo=UTC)], dtype=object, name="c"))


def test_an_arrow_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlib.tables.streams.ALWAYS_UNPACKED", 1000)
    path = written(tmp_path, ".feather", x=pa.array(np.zeros(2**18)))
    with pytest.raises(ValueError, match="unpacks to more than .* too much for its size"):
        read_table(path)
