"""OpenDocument tables: every type of value, errors, repeated cells, and what is refused.

The files are written here as LibreOffice writes them, because no package of the project does.
"""

import json

import pandas as pd
import pytest
from sheets import cell, formula, ods_cell, write_ods, write_parts

from fedlib.tables.files import SiteFile, read_table
from fedlib.tables.schema import Schema
from fedlib.tables.schema.drafting import draft_schema
from fedlib.tables.streams import ReadOptions


def error(shown):
    """Return a cell as LibreOffice writes an error."""
    more = ' office:string-value="" calcext:value-type="error"'
    return formula("string", None, shown, more)


CODES = ["007", "1E50", "007"]
NOTE = "<office:annotation><text:p>see 7</text:p></office:annotation>"


def column(tmp_path, *cells):
    """Return the values of one column as a schema gets them."""
    write_ods(tmp_path / "a.ods", {"one": [["x", "y"], *([each, 1] for each in cells)]})
    return SiteFile.read(tmp_path / "a.ods", ReadOptions(), True).content.frame["x"].tolist()


def test_values_of_all_types(tmp_path):
    assert column(
        tmp_path,
        cell("percentage", "0.155", "15.5 %"),
        cell("currency", "12.5", "12,50 €", ' office:currency="EUR"'),
        formula("float", "2", "2,00"),
        f'<table:table-cell office:value-type="float" office:value="3">{NOTE}</table:table-cell>',
        f"<table:table-cell>{NOTE}</table:table-cell>",
    ) == [0.155, 12.5, 2, 3, pytest.approx(float("nan"), nan_ok=True)]
    assert column(tmp_path, True, False) == [True, False]
    assert column(tmp_path, cell("date", "2020-03-01"), cell("date", "1880-05-06T07:08:09")) == [
        pd.Timestamp(2020, 3, 1),
        pd.Timestamp(1880, 5, 6, 7, 8, 9),
    ]
    assert column(tmp_path, "007", cell("string", None, "x", ' office:string-value="1E50"')) == [
        "007",
        "1E50",
    ]


def test_durations_are_numbers_of_a_unit(tmp_path):
    times = [cell("time", text) for text in ("PT12H30M00S", "PT30H15M05.5S", "-PT1H00M00S")]
    rows = [["t", "word"], *([time, f"PT{i}H"] for i, time in enumerate([*times, None], 30))]
    write_ods(tmp_path / "a.ods", {"one": rows})
    field = {"name": "t", "type": "number", "fedlib": {"unit": "min"}}
    X = Schema({"schema": {"fields": [field]}}).apply(tmp_path / "a.ods")[0].X
    assert X["t"].tolist()[:3] == [750, 30 * 60 + 15 + 5.5 / 60, -60]
    assert pd.isna(X["t"][3])
    assert column(tmp_path, "PT5H", "a month") == ["PT5H", "a month"]


def test_text_that_looks_like_numbers_stays_text_for_a_schema(tmp_path):
    write_ods(tmp_path / "a.ods", {"one": [["code", "x"], *([c, 1] for c in CODES)]})
    with pytest.raises(ValueError, match="'code' contains '007', whose first zero .* --text code"):
        read_table(tmp_path / "a.ods", raw=True)
    kept = read_table(tmp_path / "a.ods", raw=True, text="code").X["code"]
    assert kept.tolist() == CODES
    fields = [{"name": "code", "type": "string"}, {"name": "x", "type": "integer"}]
    X = Schema({"schema": {"fields": fields}}).apply(tmp_path / "a.ods")[0].X
    assert X["code"].tolist() == CODES


def test_repeated_cells_and_rows_keep_their_places(tmp_path):
    wide = '<table:table-cell table:number-columns-repeated="3"/>'
    empty = f'<table:table-row table:number-rows-repeated="2">{wide}</table:table-row>'
    names = (
        f"<table:table-row>{wide}{ods_cell('a')}{ods_cell('b')}{ods_cell('c')}</table:table-row>"
    )
    twice = cell("float", "2", "2", ' table:number-columns-repeated="2"')
    row = f"{wide}{ods_cell(1)}{twice}</table:table-row>"
    rows = f'<table:table-row table:number-rows-repeated="3">{row}'
    last = f"<table:table-row>{wide}{ods_cell(4)}{ods_cell(5)}{error('#N/A')}</table:table-row>"
    write_ods(tmp_path / "a.ods", {"one": [empty, names, rows, empty, last]})
    X = read_table(tmp_path / "a.ods", raw=True, na_values="#N/A").X
    assert X[["a", "b"]].to_dict("list") == {"a": [1, 1, 1, 4], "b": [2, 2, 2, 5]}
    assert X["c"].isna().tolist() == [False, False, False, True]
    with pytest.raises(ValueError, match="'c' contains the error #N/A in cell F9 of sheet 'one'"):
        read_table(tmp_path / "a.ods")


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (error("#DIV/0!"), "#DIV/0!"),
        (error("Err:502"), "Err:502"),
        (error("#WERT!"), "#WERT!"),
        (formula("float", "0", "#DIV/0!"), "#DIV/0!"),  # OpenOffice
        (formula("float", "0", "Err:502"), "Err:502"),
        (formula("string", None, "#REF!"), "#REF!"),
    ],
)
def test_errors_are_refused_or_named_as_gaps(wrong, name, tmp_path):
    write_ods(tmp_path / "a.ods", {"ward A": [["x", "t"], [1, "a"], [wrong, "b"], [3, "c"]]})
    with pytest.raises(
        ValueError, match=f"'x' contains the error {name} in cell A3 of sheet 'ward A'; .*{name}"
    ):
        read_table(tmp_path / "a.ods", columns="x", raw=True)
    X = read_table(tmp_path / "a.ods", columns="x", raw=True, na_values=name).X["x"]
    assert X.dropna().to_dict() == {0: 1, 2: 3}
    assert read_table(tmp_path / "a.ods", columns="t", raw=True).X["t"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "lost",
    [
        '<table:table-cell table:formula="of:=1+1"/>',
        formula("float", None, "2"),
        cell("date", None, "01.03.20"),
        "<table:table-cell><text:p>2</text:p></table:table-cell>",
    ],
)
def test_a_cell_whose_value_calamine_would_lose_is_refused(lost, tmp_path):
    write_ods(tmp_path / "a.ods", {"one": [["x"], [1], [lost], [3]]})
    with pytest.raises(
        ValueError, match="'x' contains a formula without a stored value in cell A3"
    ):
        read_table(tmp_path / "a.ods", raw=True, na_values="2")


def test_empty_formulas_and_pictures_are_gaps(tmp_path):
    frame = (
        '<draw:frame xmlns:draw="d"><draw:text-box><text:p>2</text:p></draw:text-box></draw:frame>'
    )
    picture = f"<table:table-cell>{frame}</table:table-cell>"
    empty = formula("string", None, "", ' office:string-value=""')
    assert pd.isna(column(tmp_path, picture, empty)).all()


def test_a_sheet_is_named(tmp_path):
    write_ods(tmp_path / "a.ods", {"2024": [["x"], [1]], "notes & more": [["x"], [error("#N/A")]]})
    assert read_table(tmp_path / "a.ods", sheet="2024").X["x"].tolist() == [1]
    with pytest.raises(ValueError, match="error #N/A in cell A2 of sheet 'notes & more'"):
        read_table(tmp_path / "a.ods", sheet="notes & more")
    with pytest.raises(ValueError, match=r"2 sheets: 2024, notes & more; name one with --sheet"):
        read_table(tmp_path / "a.ods")


BOMBS = {
    "rows": '<table:table-row table:number-rows-repeated="99999999">'
    + ods_cell(1)
    + "</table:table-row>",
    "cells": [cell("float", "1", "1", ' table:number-columns-repeated="99999999"')],
    "gap": ['<table:table-cell table:number-columns-repeated="99999999"/>', 1],
    "formulas": [
        '<table:table-cell table:formula="of:=1" table:number-columns-repeated="99999999"/>'
    ],
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_table_of_few_bytes_is_refused_before_its_cells_are_made(bomb, tmp_path):
    write_ods(tmp_path / "a.ods", {"one": [["x"], [1]], "other": [["x"], bomb]})
    with pytest.raises(ValueError, match=r"the table has [0-9,]+ rows and [0-9,]+ columns, which"):
        read_table(tmp_path / "a.ods", sheet="one")


def test_many_tables_count_together(tmp_path):
    row = f'<table:table-row table:number-rows-repeated="9999999">{ods_cell(1)}</table:table-row>'
    write_ods(tmp_path / "a.ods", {str(i): [row] for i in range(5)})
    with pytest.raises(ValueError, match="the table has 39,999,996 rows and 1 columns"):
        read_table(tmp_path / "a.ods", sheet="0", header=False)


def test_other_content_is_refused(tmp_path):
    path = tmp_path / "a.ods"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="it is no .ods file; open it in a spreadsheet program"):
        read_table(path)
    write_parts(path, bytes(2**28 + 1))
    with pytest.raises(ValueError, match="unpacks to more than 268,435,456 bytes"):
        read_table(path)
    write_parts(path, b"\x8f encrypted")
    with pytest.raises(
        ValueError, match=r"its XML cannot be read .*; if it has a password, save it"
    ):
        read_table(path)
    entity = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]>'
    write_ods(path, {"one": [["x"], [1]]}, before=entity)
    with pytest.raises(ValueError, match="the file declares entities"):
        read_table(path)
    inner = "<table:table-cell><table:table/></table:table-cell>"
    write_ods(path, {"one": [["x"], [inner]]})
    with pytest.raises(ValueError, match="a cell contains a table"):
        read_table(path)


def test_drafts_and_checks_of_sheets(tmp_path):
    days = [cell("date", f"2020-03-{i + 1:02}") for i in range(20)]
    rows = [["code", "x", "day"], *([f"00{i % 2}", i, day] for i, day in enumerate(days))]
    write_ods(tmp_path / "a.ods", {"rows": [*rows, ["000", error("#N/A"), None]]})
    schema = draft_schema(tmp_path / "a.ods")
    assert schema.categories["code"] == ("000", "001", "other")
    fields = json.loads(schema.to_json())["schema"]["fields"]
    assert [field["type"] for field in fields] == ["string", "integer", "date"]
    assert fields[1]["missingValues"] == ["", "#N/A"]
    assert schema.check(tmp_path / "a.ods").problems == ()
