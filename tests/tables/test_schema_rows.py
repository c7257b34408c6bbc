"""Schemas applied to rows: types, gaps, every constraint, and what becomes of values outside."""

import datetime
import gzip
import sys

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedlib.core.columns import read_columns
from fedlib.tables.schema import Schema, read_with_schema


def schema_of(*fields, **content):
    """Return a schema with fields; the first one is x."""
    schema = {"fields": list(fields), **content.pop("schema", {})}
    return Schema({"name": "rows", "schema": schema, **content})


def field(kind="number", own=None, /, name="x", **properties):
    """Return a field; properties of the standard that are constraints are moved there."""
    known = {
        "required",
        "unique",
        "minimum",
        "maximum",
        "enum",
        "pattern",
        "minLength",
        "maxLength",
    }
    constraints = {key: value for key, value in properties.items() if key in known}
    rest = {key: value for key, value in properties.items() if key not in known}
    return {"name": name, "type": kind, "constraints": constraints, "fedlib": own or {}, **rest}


def applied(schema, cells, protected=False, name="x"):
    """Return the column x and its report."""
    table, report = schema.apply(pd.DataFrame({name: cells}, dtype=object), protected)
    values = [None if pd.isna(value) else value for value in table.X[name]]
    return values, next(column for column in report.columns if column.name == name)


# Types


@pytest.mark.parametrize(
    ("column", "cells", "values"),
    [
        (field(), ["1", " -2.5 ", "+1e3", ".5", "5.", "", "NaN", None], [1, -2.5, 1000, 0.5, 5]),
        (field("integer"), ["1", "41.0", "-3", " ", "", "", "", ""], [1, 41, -3]),
        (field(decimalChar=","), ["1,5", "2", "-,5", "1e1"], [1.5, 2, -0.5, 10]),
        (field(groupChar=","), ["1,234.5", "12,34,567", "1234", "1"], [1234.5, 1234567, 1234, 1]),
        (field(decimalChar=",", groupChar="."), ["1.234,5", "12"], [1234.5, 12]),
        (field("integer", groupChar=" "), ["1 234", "1"], [1234, 1]),
        (field(bareNumber=False), ["95%", "€ 5.5", "EUR -3", "7"], [95, 5.5, -3, 7]),
        (field("boolean"), ["true", "FALSE", "1", "0", " True"], [1, 0, 1, 0, 1]),
        (field("boolean", trueValues=["ja"], falseValues=["nein"]), ["ja", "nein"], [1, 0]),
        (field("date"), ["1970-01-01", "2024-02-29", "1969-12-31"], [0, 19782, -1]),
        (field("date", format="%d.%m.%Y"), ["02.01.1970", ""], [1, None]),
        (field("date", format="fmt:%d/%m/%y"), ["02/01/70"], [1]),
        (field("string"), [" a ", "", "b c", None], ["a", None, "b c"]),
        (field("integer", enum=[1, 2]), ["1", "2.0", " 1", ""], ["1", "2", "1"]),
        (field("number", categories=[0.5, 1]), ["0.5", "1.0"], ["0.5", "1"]),
    ],
)
def test_cells_are_read_by_type(column, cells, values):
    values = values + [None] * (len(cells) - len(values))
    assert applied(schema_of(column), cells)[0] == values


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (field(), ["1", "one", "1_0", "0x10", "1,5", "inf", "1e200", "1e999", "--1"]),
        (field("integer"), ["1", "1.5", str(2**53 + 2), "q"]),
        (field(groupChar="."), ["1"]),
        (field(decimalChar=",", groupChar="."), ["1", "1.5", "1.23", "1.2345"]),
        (field(decimalChar=","), ["1", "1.5"]),
        (field("boolean"), ["1", "yes", "2"]),
        (field("date"), ["2024-01-31", "2024-02-30", "31.01.2024", "2024-1", "20240101"]),
    ],
)
def test_cells_of_another_type_are_counted_and_not_quoted(column, cells):
    if column.get("groupChar") == "." and "decimalChar" not in column:
        with pytest.raises(ValueError, match="must differ"):
            schema_of(column)
        return
    n_odd = len(cells) - 1
    with pytest.raises(ValueError, match="of the column's type") as caught:
        applied(schema_of(column), cells)
    assert f"column 'x': {n_odd} cell" in str(caught.value)
    assert not any(f"{cell!r}" in str(caught.value) for cell in cells)
    values, report = applied(schema_of(column | {"fedlib": {"outside": "missing"}}), cells)
    assert (report.emptied, report.unreadable) == (n_odd, n_odd)
    assert report.rows["emptied"] == tuple(range(2, len(cells) + 1))[:5]
    assert values[1:] == [None] * n_odd


@given(st.lists(st.floats(-1e99, 1e99) | st.none(), min_size=1))
def test_numbers_are_read_to_the_last_bit(numbers):
    cells = ["" if number is None else repr(number) for number in numbers]
    assert applied(schema_of(field()), cells)[0] == numbers


@given(st.lists(st.dates(datetime.date(1700, 1, 1), datetime.date(2250, 1, 1)), min_size=1))
def test_dates_are_days(dates):
    days = [(date - datetime.date(1970, 1, 1)).days for date in dates]
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d"):
        cells = [date.strftime(form) for date in dates]
        assert applied(schema_of(field("date", format=form)), cells)[0] == days


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=1))
def test_any_text_is_a_number_or_an_odd_cell(cells):
    schema = schema_of(field("number", {"outside": "missing"}, minimum=-1, maximum=1))
    values, report = applied(schema, cells)
    assert report.gaps + report.emptied + sum(v is not None for v in values) == len(cells)


# Gaps


@pytest.mark.parametrize("word", ["-9", "-9.0", "-9.00", "-9e0"])
def test_a_missing_number_is_a_gap_however_it_is_written(word):
    cells = {".": ["-9", "-9.0", "-9.000", "1.5"], ",": ["-9", "-9,0", "-9,000", "1,5"]}
    for mark, texts in cells.items():
        schema = schema_of(field("number", decimalChar=mark, missingValues=[word]))
        values, report = applied(schema, texts)
        assert values == [None, None, None, 1.5]
        assert report.gaps == 3
    numbers = schema_of(field("number", missingValues=[word]))
    assert applied(numbers, [-9, -9.0, 2.5])[0] == [None, None, 2.5]


def test_missing_values_are_gaps():
    first = field("integer", missingValues=["-9", {"value": "-8", "label": "refused"}])
    schema = schema_of(first, field("string", name="y"), schema={"missingValues": ["", "NA"]})
    frame = pd.DataFrame({"x": ["1", "-9", "-8"], "y": ["NA", "-9", " na"]})
    table, report = schema.apply(frame)
    assert [column.gaps for column in report.columns] == [2, 1]
    assert table.X["y"].tolist() == [None, "-9", "na"]
    with pytest.raises(ValueError, match="1 cell is not of the column's type"):
        schema.apply(frame.assign(x=["1", "-9", "NA"]))  # the field's own list replaces the other
    numbers = schema.apply(frame.assign(x=[1.0, -9.0, np.nan]))[0]
    assert numbers.X["x"].isna().tolist() == [False, True, True]
    sequence = schema_of(field(), dialect={"nullSequence": "\\N"})
    assert applied(sequence, ["\\N", "1"])[0] == [None, 1]


# Limits, categories and patterns

AGES = ["17", "18", "99", "100", ""]


def test_numbers_outside_the_limits():
    limits = {"minimum": 18, "maximum": 99}
    with pytest.raises(ValueError, match=r"column 'x': 2 values are not accepted \(rows 1, 4\)"):
        applied(schema_of(field("integer", **limits)), AGES)
    clipped, report = applied(schema_of(field("integer", {"outside": "clip"}, **limits)), AGES)
    assert clipped == [18, 18, 99, 99, None]
    assert (report.clipped, report.outside, report.gaps) == (2, 2, 1)
    missing, report = applied(schema_of(field("integer", {"outside": "missing"}, **limits)), AGES)
    assert missing == [None, 18, 99, None, None]
    assert (report.emptied, report.rows["emptied"]) == (2, (1, 4))
    low = schema_of(field("integer", {"outside": "clip"}, minimum=18))
    assert applied(low, AGES)[0] == [18, 18, 99, 100, None]


def test_dates_outside_the_limits():
    own = field("date", {"outside": "clip"}, format="%d.%m.%Y", minimum="01.01.2000")
    assert applied(schema_of(own), ["31.12.1999", "02.01.2000"])[0] == [10957, 10958]


def test_texts_without_a_category():
    cells = [" a", "b ", "c", "A", ""]
    with pytest.raises(ValueError, match=r"2 values are not accepted \(rows 3, 4\)"):
        applied(schema_of(field("string", enum=["a", "b"])), cells)
    other = schema_of(field("string", {"outside": "other"}, enum=["a", "b"]))
    assert applied(other, cells)[0] == ["a", "b", "other", "other", None]
    missing = schema_of(field("string", {"outside": "missing"}, enum=["a", "b"]))
    assert applied(missing, cells)[0] == ["a", "b", None, None, None]
    codes = schema_of(field("integer", {"outside": "other"}, enum=[1, 2]))
    assert applied(codes, ["1", "3", "x", ""])[0] == ["1", "other", "other", None]


@pytest.mark.parametrize(
    ("constraints", "fits"),
    [
        ({"pattern": "a[0-9]+"}, [True, False, False, True]),
        ({"pattern": "^a.*$"}, [True, True, False, True]),
        ({"minLength": 3}, [False, True, True, True]),
        ({"maxLength": 2}, [True, False, False, False]),
        ({"enum": ["a1", "a123"], "pattern": "a1.+"}, [False, False, False, True]),
    ],
)
def test_texts_have_a_form(constraints, fits):
    cells = ["a1", "a1x", "xa1", "a123"]
    with pytest.raises(ValueError, match="not accepted"):
        applied(schema_of(field("string", **constraints)), cells)
    values, report = applied(
        schema_of(field("string", {"outside": "missing"}, **constraints)), cells
    )
    assert values == [cell if fit else None for cell, fit in zip(cells, fits, strict=True)]
    assert report.outside == fits.count(False)


def test_required_and_unique_values():
    with pytest.raises(ValueError, match=r"1 required value is missing \(row 2\)"):
        applied(schema_of(field(required=True)), ["1", ""])
    missing = schema_of(field("number", {"outside": "missing"}, required=True, minimum=0))
    with pytest.raises(ValueError, match=r"1 required value is missing \(row 1\)"):
        applied(missing, ["-1", "2"])
    with pytest.raises(ValueError, match=r"2 values repeat an earlier one \(rows 3, 5\)"):
        applied(schema_of(field(unique=True)), ["1", "2", "1.0", "", " 2", ""])
    assert applied(schema_of(field("string", unique=True)), ["a", "", "", "b"])[1].repeated == 0


# Roles


def roles(**content):
    return schema_of(
        field("integer", name="id"),
        field(name="x"),
        field("string", {"role": "target"}, name="kind"),
        field("number", {"role": "weight"}, name="w"),
        {"name": "free", "type": "any", "fedlib": {"role": "ignore"}},
        schema={"primaryKey": "id", **content},
    )


ROWS = pd.DataFrame(
    {"w": ["1", "2"], "kind": ["a", "b"], "more": [0, 0], "id": ["07", "8"], "x": [1, 2]}
)


def test_columns_are_found_by_name_and_have_roles():
    table, report = roles().apply(ROWS)
    assert table.X.to_dict("list") == {"x": [1, 2]}
    assert table.y.tolist() == ["a", "b"]
    assert table.y.dtype.kind == "U"
    assert table.sample_weight.tolist() == [1, 2]
    assert (table.ids.name, table.ids.tolist()) == ("id", ["7", "8"])
    assert report.ignored == ("more",)
    assert str(report) == "columns that are not read: 'more'"


@pytest.mark.parametrize("protected", [False, True])
@pytest.mark.parametrize(
    ("name", "cells", "message"),
    [
        ("id", ["1", "1"], r"column 'id': 1 value repeats an earlier one \(row 2\)"),
        ("id", ["1", ""], "column 'id': 1 required value is missing"),
        ("kind", ["a", ""], "column 'kind': 1 required value is missing"),
        ("w", ["", "1"], "column 'w': 1 required value is missing"),
    ],
)
def test_rows_that_cannot_take_part_are_an_error(name, cells, message, protected):
    limited = {"minimum": 0, "maximum": 9}
    schema = schema_of(
        field("integer", name="id"),
        field(name="x", **limited),
        field("string", {"role": "target"}, name="kind", enum=["a", "b"]),
        field("number", {"role": "weight"}, name="w", **limited),
        schema={"primaryKey": "id"},
    )
    with pytest.raises(ValueError, match=message):
        schema.apply(ROWS.assign(**{name: cells}), protected)


def test_classes_are_numbers_if_the_field_has_numbers():
    for column in (field("boolean"), field("integer"), field("integer", enum=[0, 1])):
        schema = schema_of(column | {"fedlib": {"role": "target"}}, field(name="f"))
        y = schema.apply(pd.DataFrame({"x": ["0", "1"], "f": [1, 2]}))[0].y
        assert y.tolist() == [0.0, 1.0]


def test_missing_and_repeated_columns_are_named():
    with pytest.raises(ValueError, match="no column 'kind', 'w'; the columns are 'id', 'x'"):
        roles().apply(ROWS[["id", "x"]])
    with pytest.raises(ValueError, match="there is more than one column 'x'"):
        roles().apply(pd.concat([ROWS, ROWS[["x"]]], axis=1))


@pytest.mark.parametrize("match", ["exact", "equal", ["equal"]])
def test_other_columns_are_an_error_if_the_descriptor_says_so(match):
    names = ["id", "x", "kind", "w", "free"]
    rows = ROWS.assign(free="")
    roles(fieldsMatch=match).apply(rows[names])
    with pytest.raises(ValueError, match="not in the schema: 'more'"):
        roles(fieldsMatch=match).apply(rows)
    if match == "exact":
        with pytest.raises(ValueError, match="must have the order of the schema"):
            roles(fieldsMatch=match).apply(rows[names[::-1]])


# Protected runs


def protected_schema():
    return schema_of(
        field("number", {"outside": "missing", "fill": 5}, minimum=0, maximum=9),
        field("string", {"fill": "a"}, name="k", enum=["a", "b"], required=True),
        field("boolean", name="t"),
    )


def test_a_protected_run_never_fails_by_its_rows():
    frame = pd.DataFrame(
        {"x": ["10", "-1", "?", ""], "k": ["c", "", "b", "a"], "t": ["1", "x", "", "0"]}
    )
    schema = protected_schema()
    with pytest.raises(ValueError, match="do not fit"):
        schema.apply(frame)
    table, report = schema.apply(frame, protected=True)
    assert table.X["x"].tolist() == [9, 0, 5, 5]
    assert table.X["k"].tolist() == ["other", "a", "b", "a"]
    assert table.X["t"].isna().tolist() == [False, True, True, False]
    first = report.columns[0]
    assert (first.clipped, first.unreadable, first.filled) == (2, 1, 2)
    assert schema.protected().categories == {"k": ("a", "b", "other")}
    assert schema.protected().limits == schema.limits


@given(st.lists(st.text(max_size=4) | st.sampled_from(["a", "7", "1e9", "-3"]), min_size=1))
def test_limits_and_categories_hold_for_any_rows_of_a_protected_run(cells):
    schema = protected_schema()
    cells = [cell.encode("utf-8", "replace").decode() for cell in cells]
    table, _ = schema.apply(pd.DataFrame(dict.fromkeys("xkt", cells), dtype=object), protected=True)
    assert table.X["x"].between(0, 9).all()
    assert {*table.X["k"]} <= {*schema.protected().categories["k"]}
    assert {*table.X["t"].dropna()} <= {0, 1}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (field(minimum=0), "run needs a minimum and a maximum of 'x' in the schema"),
        (field("string"), "run needs an enum of 'x' in the schema"),
        (
            field("number", {"unconfirmed": ["constraints.maximum"]}, minimum=0, maximum=1),
            "needs the confirmation of constraints.maximum of 'x'",
        ),
    ],
)
def test_a_protected_run_needs_declared_and_confirmed_values(column, message):
    with pytest.raises(ValueError, match=message):
        applied(schema_of(column), ["1"], protected=True)


# Data frames and files


def test_frames_of_other_types_are_read():
    frame = pd.DataFrame(
        {
            "x": pd.array([1, None, 3], "Int64"),
            "day": pd.to_datetime(["1970-01-02 23:00", None, "2024-02-29 00:00"]),
            "kind": pd.Categorical(["a", None, "b"]),
            "code": [1.0, np.nan, 2.0],
            "flag": [True, False, True],
            "mixed": [1, "2.5", None],
            "stamp": [20240101, 20240102, 20240103],
            "local": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]).tz_localize("CET"),
        }
    )
    schema = schema_of(
        field("integer"),
        field("date", name="day"),
        field("string", name="kind"),
        field("string", name="code", enum=["1", "2"]),
        field("boolean", name="flag"),
        field(name="mixed"),
        field("date", name="stamp", format="%Y%m%d"),
        field("date", {"timezone": "Europe/Berlin"}, name="local"),
    )
    X = schema.apply(frame)[0].X
    assert X["x"].dropna().tolist() == [1, 3]
    assert X["day"].dropna().tolist() == [1, 19782]
    assert X["kind"].tolist() == ["a", None, "b"]
    assert X["code"].cat.categories.tolist() == ["1", "2"]
    assert X["code"].cat.codes.tolist() == [0, -1, 1]
    assert X["flag"].tolist() == [1, 0, 1]
    assert X["mixed"].dropna().tolist() == [1, 2.5]
    assert X["stamp"].tolist() == X["local"].tolist() == [19723, 19724, 19725]
    raw = read_columns(X)
    assert raw.columns[2].tolist() == ["a", None, "b"]
    assert raw.columns[3].tolist() == ["1", None, "2"]


def test_no_rows_are_a_table(tmp_path):
    schema = schema_of(field(), field("string", name="k"), field("date", name="d"))
    assert len(schema.apply(pd.DataFrame({"x": [], "k": [], "d": []}))[0].X) == 0
    for text in ("x,k,d\n", "x,k,d"):
        (tmp_path / "a.csv").write_text(text)
        assert len(read_with_schema(tmp_path / "a.csv", schema)[0].X) == 0
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(ValueError, match="there is no column 'x'"):
        read_with_schema(tmp_path / "a.csv", schema)


SEMICOLONS = 'k;x\na;1\n"b, ""c""";2\n"two\nlines";\n'
TEXT = 'k,x\na,1\n"b, ""c""",2\n"two\nlines",\n'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (TEXT, {}),
        (TEXT.replace("\n", "\r\n"), {}),
        ("\ufeff" + TEXT, {}),
        (SEMICOLONS, {}),
        ("sep=,\n" + TEXT, {}),
        (TEXT.replace('"', "'"), {"dialect": {"quoteChar": "'"}}),
        (TEXT.replace('""', '\\"'), {"dialect": {"doubleQuote": False, "escapeChar": "\\"}}),
        ("# written by hand\n" + TEXT + "# end", {"dialect": {"commentChar": "#"}}),
        (TEXT.replace(",2", ", 2"), {"dialect": {"skipInitialSpace": True}}),
        (TEXT, {"encoding": "utf-16"}),
        (TEXT, {"dialect": {"delimiter": ","}, "encoding": "ISO-8859-1"}),
    ],
)  # fmt: skip
def test_text_files_have_a_dialect(text, content, tmp_path):
    path = tmp_path / "site.csv"
    path.write_bytes(text.encode(content.get("encoding", "utf-8")))
    schema = schema_of(field("integer"), field("string", name="k"), **content)
    X = read_with_schema(path, schema)[0].X
    quote = "'" if "'" in text else '"'
    texts = [value.replace("\r\n", "\n") for value in X["k"]]
    assert texts == ["a", f"b, {quote}c{quote}", "two\nlines"]
    assert X["x"].dropna().tolist() == [1, 2]
    with gzip.open(tmp_path / "site.csv.gz", "wb") as file:
        file.write(path.read_bytes())
    pd.testing.assert_frame_equal(read_with_schema(tmp_path / "site.csv.gz", schema)[0].X, X)


def test_a_file_without_names_has_those_of_the_schema(tmp_path):
    (tmp_path / "a.csv").write_text("1;a\n2;b\n")
    schema = schema_of(field(), field("string", name="k"), dialect={"header": False})
    X = read_with_schema(tmp_path / "a.csv", schema)[0].X
    assert X.to_dict("list") == {"x": [1, 2], "k": ["a", "b"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x,k\n1,a,b\n2,c\n3\n", "2 rows do not have 2 cells like .* line 2 with 3; .*row.names"),
        (b'x,k\n1,"a\n2,b\n', "a quotation mark is opened and not closed|unexpected end of data"),
        (b'x,k\n1,"a\n2,b\n3,"\n', "line 2 cannot be read as the dialect says: a cell contains a"),
        (b"x,k\n1,a\0\n", "the text contains bytes of zero"),
        (b"<html>\n<p>x, k</p>", "the file is no text, but HTML or XML"),
        (b"x^k\n1^a\n", "another separator than ',', name it in this site's copy"),
        (b"Ward A\nx,k\n1,a\n", "no column 'x', 'k'; .* remove the lines above them"),
        ("x,k\n1,é\n".encode("latin-1"), "the text is not utf-8; declare its encoding"),
        (b"x,k\n1," + b"a" * 70000 + b"\xff\n", "the text is not utf-8; declare its encoding"),
        (b"y,k\n1,a\n", "there is no column 'x'; the columns are 'y', 'k'"),
    ],
)
@pytest.mark.parametrize("dialect", [{}, {"skipInitialSpace": True}])
def test_files_that_cannot_be_read(data, message, dialect, tmp_path):
    (tmp_path / "a.csv").write_bytes(data)
    schema = schema_of(field(), field("string", name="k"), dialect=dialect)
    with pytest.raises(ValueError, match=message):
        read_with_schema(tmp_path / "a.csv", schema)


def test_a_byte_order_mark_says_the_encoding(tmp_path):
    schema = schema_of(field(), field("string", name="k"), encoding="utf-8")
    (tmp_path / "a.csv").write_text("x,k\n1,é\n2,日本\n", "utf-16")
    X = read_with_schema(tmp_path / "a.csv", schema)[0].X
    assert X.to_dict("list") == {"x": [1, 2], "k": ["é", "日本"]}


def test_a_row_may_be_larger_than_a_block(tmp_path):
    (tmp_path / "a.csv").write_text(f"x,k\n1,{'a' * 100}\n2,{'b' * 3_000_000}\n")
    X = read_with_schema(tmp_path / "a.csv", schema_of(field(), field("string", name="k")))[0].X
    assert X["k"].str.len().tolist() == [100, 3_000_000]
    wide = [f"c{i:0100}" for i in range(12_000)]
    (tmp_path / "a.csv").write_text(f"{','.join(wide)}\n{','.join('1' * len(wide))}\n")
    schema = schema_of(*(field(name=name) for name in wide[::100]))
    assert read_with_schema(tmp_path / "a.csv", schema)[0].X.shape == (1, 120)


def test_other_files_are_read(tmp_path):
    frame = pd.DataFrame({"k": ["a", "b"], "x": [1.5, 2.5]})
    frame.to_parquet(tmp_path / "site.parquet")
    table, _ = read_with_schema(
        tmp_path / "site.parquet", schema_of(field(), field("string", name="k"))
    )
    pd.testing.assert_frame_equal(table.X, frame[["x", "k"]], check_dtype=False)
    with pytest.raises(ValueError, match="cannot be read"):
        read_with_schema(tmp_path / "none.csv", schema_of(field()))


def test_a_missing_package_is_named(monkeypatch):
    schema = schema_of(field())
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(ValueError, match="pyarrow is missing: pip install"):
        schema.apply(pd.DataFrame({"x": ["1"]}))


def test_a_table_without_rows_is_read():
    schema = Schema(
        {
            "schema": {
                "fields": [
                    {"name": "town", "type": "string", "constraints": {"enum": ["north", "south"]}},
                    {"name": "age", "type": "number"},
                ]
            }
        }
    )
    table, report = schema.apply(pd.DataFrame({"town": ["north"], "age": [1.0]})[:0])
    assert table.X.shape == (0, 2)
    assert report.n_rows == 0


def test_the_gaps_of_a_masked_array_and_other_tables_are_read():
    schema = schema_of(field(), field(name="z"))
    make = schema.clients(lambda rows: rows, protected=False)
    masked = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])
    np.testing.assert_array_equal(np.asarray(make(masked)), [[1, np.nan], [3, 4]])
    np.testing.assert_array_equal(
        np.asarray(make(pyarrow.table({"z": [1.0], "x": [2.0]}))), [[2.0, 1.0]]
    )
    with pytest.raises(ValueError, match="X must be dense, got a sparse table"):
        make(csr_array([[1.0, 2.0]]))


@pytest.mark.parametrize("start", ["", "# " + "1" * 2**22 + "\n"])
def test_a_small_file_that_unpacks_to_far_more_is_refused_with_a_schema_too(
    start, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedlib.tables.streams.ALWAYS_UNPACKED", 2**20)
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write(start + "x\n" + "1\n" * 2**20)
    schema = schema_of(field(), dialect={"commentChar": "#"})
    with pytest.raises(ValueError, match="unpacks to more than 1,048,576 bytes"):
        schema.apply(tmp_path / "a.csv.gz")


def test_blank_lines_above_rows_without_names_do_not_count(tmp_path):
    (tmp_path / "a.csv").write_text("\n\n1;2\n3;4\n")
    schema = schema_of(field(), field(name="y"), dialect={"header": False})
    table, _ = schema.apply(tmp_path / "a.csv")
    assert table.X.to_numpy().tolist() == [[1, 2], [3, 4]]
