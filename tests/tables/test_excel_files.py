"""Excel files: sheets, titles, cells of several types, and what is refused.

The files are written here, because no package of the project writes them.
"""

import json
import sys
import zipfile

import pandas as pd
import pytest
from sheets import Raw, write_excel

from fedlib.tables.files import read_table
from fedlib.tables.schema import Schema
from fedlib.tables.schema.drafting import draft_schema

NOT_FOUND = Raw("<v>#N/A</v>", ' t="e"')
DIVIDED = Raw("<f>1/0</f><v>#DIV/0!</v>", ' t="e"')
FORMULA = Raw("<f>1+1</f><v>2</v>")
EMPTY_TEXT = Raw('<f>""</f><v></v>', ' t="str"')
NOT_COMPUTED = Raw("<f>1+1</f><v></v>")
ROWS = [
    ["id", "age", "zip", "crp", "ok"],
    ["p1", 41, "01234", 1.5, True],
    ["p2", 57, "99999", "NA", False],
    ["p3", None, " 04109", 2, True],
]


def test_cells_of_all_types(tmp_path):
    write_excel(tmp_path / "a.xlsx", {"one": ROWS})
    table = read_table(tmp_path / "a.xlsx", raw=True, ids="id", text="zip")
    assert table.ids.tolist() == ["p1", "p2", "p3"]
    assert table.X["age"].fillna(0).tolist() == [41, 57, 0]
    assert table.X["crp"].fillna(0).tolist() == [1.5, 0, 2]
    assert table.X["zip"].tolist() == ["01234", "99999", "04109"]
    assert table.X["ok"].tolist() == [True, False, True]
    weights = read_table(tmp_path / "a.xlsx", columns="id", raw=True, na_values=["p2"]).X
    assert weights["id"].isna().tolist() == [False, True, False]


def test_a_sheet_is_named(tmp_path):
    write_excel(tmp_path / "a.xlsx", {"2024": [["x"], [1]], "notes & more": [["x"], [2]]})
    assert read_table(tmp_path / "a.xlsx", sheet="notes & more").X["x"].tolist() == [2]
    with pytest.raises(ValueError, match=r"2 sheets: 2024, notes & more; name one with --sheet"):
        read_table(tmp_path / "a.xlsx")
    with pytest.raises(ValueError, match="no sheet 'x'; the sheets are 2024, notes & more"):
        read_table(tmp_path / "a.xlsx", sheet="x")


def test_titles_and_empty_rows(tmp_path):
    rows = [["Export of ward A"], [None], ["a", "b", None], [1, 2], [None], [3, 4]]
    write_excel(tmp_path / "a.xlsx", {"one": rows})
    with pytest.raises(ValueError, match=r"column 2 has no name in row 1 .* --skip-lines"):
        read_table(tmp_path / "a.xlsx")
    table = read_table(tmp_path / "a.xlsx", skip_lines=1)
    assert table.X.to_dict("list") == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"raw": True}, "'zip' contains '01234', whose first zero .* --text zip"),
        ([[1, 2], [3, 4]], {}, "the first row contains numbers instead of names; use --no-header"),
        ([[41, "m"], [57, "f"]], {"raw": True}, "looks like values .* --no-header"),
        ([["a", "a"], [1, 2]], {}, "columns with the same name: a"),
        ([], {}, "the sheet is empty"),
        ([["a"], ["1,5"]], {"raw": True}, "got '1,5' in row 1; .* --decimal"),
        ([["a"], [1]], {"separator": ";"}, "separator applies to text files only"),
        ([["a"], [1]], {"encoding": "latin-1"}, "encoding applies to text files only"),
    ],
)
def test_what_is_refused(rows, options, message, tmp_path):
    write_excel(tmp_path / "a.xlsx", {"one": rows})
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.xlsx", **options)


def test_without_names_and_with_decimal_commas(tmp_path):
    write_excel(tmp_path / "a.xlsx", {"one": [[1, "1,5"], [2, "NA"]]})
    X = read_table(tmp_path / "a.xlsx", header=False, decimal=",", raw=True).X
    assert X[:, 0].tolist() == [1, 2]
    assert X[0, 1] == 1.5
    assert pd.isna(X[1, 1])


def test_other_files_with_this_name(tmp_path):
    (tmp_path / "a.xlsx").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="it is no .xlsx file; open it in a .* and save it as"):
        read_table(tmp_path / "a.xlsx")
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", bytes(2**28 + 1))
    with pytest.raises(ValueError, match="unpacks to more than 268,435,456 bytes"):
        read_table(tmp_path / "a.xlsx")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'r="B2"', b'r="XFD1048576"'),
        (b'r="B2"', b'r="ZZZZZZZZ1"'),
        (b'r="B2"', b"r='A4294967295'"),
        (b'<row r="2"', b'<row r="99999999999"'),
    ],
)
def test_a_cell_far_out_is_refused_before_the_cells_in_between_are_made(before, after, tmp_path):
    write_excel(tmp_path / "b.xlsx", {"one": ROWS})
    with (
        zipfile.ZipFile(tmp_path / "b.xlsx") as old,
        zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            if "worksheets/" in name:
                assert before in content
                content = content.replace(before, after)
            new.writestr(name, content)
    with pytest.raises(
        ValueError, match=r"a.xlsx: cannot be read: the table has [0-9,]+ rows and .* save the"
    ):
        read_table(tmp_path / "a.xlsx")


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    write_excel(tmp_path / "a.xlsx", {"one": ROWS})
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ValueError, match=r'pip install "fedlib-study\[excel\]"'):
        read_table(tmp_path / "a.xlsx")


@pytest.mark.parametrize(
    ("rows", "raw", "message"),
    [
        (
            [["a", "b"], [True, 1], [3, 2]],
            False,
            "'a' must contain finite numbers, got 'True' in row 1",
        ),
        ([["a", "b"], ["5 kg", 1], ["6 kg", 2], ["7 kg", 3]], True, "without units .* got '5 kg'"),
        ([["a", "b"], ["'m'", 1], ["'f'", 2]], True, "in quotation marks of another kind"),
    ],
)
def test_cells_that_are_no_numbers(rows, raw, message, tmp_path):
    write_excel(tmp_path / "a.xlsx", {"rows": rows})
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "a.xlsx", raw=raw)


def test_drafts_of_sheets(tmp_path):
    rows = [["code", "id", "x"], *([f"00{i % 2}", 10**17 + i % 2, i] for i in range(20))]
    write_excel(tmp_path / "a.xlsx", {"rows": rows, "notes": [["a"], [1]]})
    with pytest.raises(ValueError, match="there are 2 sheets: rows, notes; name one with --sheet$"):
        draft_schema(tmp_path / "a.xlsx")
    schema = draft_schema(tmp_path / "a.xlsx", sheet="rows")
    assert schema.categories["code"] == ("000", "001", "other")
    assert "id" not in schema.limits
    assert schema.check(tmp_path / "a.xlsx", sheet="rows").problems == ()
    write_excel(tmp_path / "a.xlsx", {"rows": [["Ward A"], ["a", "b"], [1, 2]]})
    with pytest.raises(ValueError, match="has no name in row 1 .* so correct the file"):
        draft_schema(tmp_path / "a.xlsx")


@pytest.mark.parametrize("header", [None, False])
@pytest.mark.parametrize("above", [[], [["", NOT_FOUND], [None]]])
def test_errors_are_refused_or_named_as_gaps(header, above, tmp_path):
    names = [[None, "x", "t", "other"]] if header is None else []
    body = [[None, 1, "a", NOT_FOUND], [None, NOT_FOUND, DIVIDED, 2], [None, DIVIDED, "b", 3]]
    write_excel(tmp_path / "a.xlsx", {"ward A": [*above, *names, *body, [None, FORMULA, "c", 4]]})
    x, t, _ = names[0][1:] if names else "012"
    options = {"header": header, "raw": True, "skip_lines": len(above)}
    row = len(above) + len(names) + 2
    with pytest.raises(
        ValueError, match=f"'{x}' contains the error #N/A in cell B{row} of sheet 'ward A'; .*#N/A"
    ):
        read_table(tmp_path / "a.xlsx", columns=[x], **options)
    with pytest.raises(ValueError, match=f"'{t}' contains the error #DIV/0! in cell C{row} of"):
        read_table(tmp_path / "a.xlsx", columns=[t], na_values="#N/A", **options)
    table = read_table(tmp_path / "a.xlsx", columns=[x, t], na_values="#N/A,#DIV/0!", **options)
    X = pd.DataFrame(table.X)
    assert X.iloc[:, 0].isna().tolist() == [False, True, True, False]
    assert X.iloc[:, 1].isna().tolist() == [False, True, False, False]
    assert X.iloc[3].tolist() == [2, "c"]


def test_formulas_need_stored_values(tmp_path):
    rows = [["a", "b"], [1, EMPTY_TEXT], [2, "m"], [FORMULA, NOT_COMPUTED]]
    write_excel(tmp_path / "a.xlsx", {"one": rows})
    assert read_table(tmp_path / "a.xlsx", columns="a").X["a"].tolist() == [1, 2, 2]
    for na_values in (None, "=1+1"):
        with pytest.raises(
            ValueError, match="'b' contains a formula without a stored value in cell B4 of .* save"
        ):
            read_table(tmp_path / "a.xlsx", raw=True, na_values=na_values)
    rows[1][1] = Raw("<f>1+1</f>", ' t="str"')
    write_excel(tmp_path / "a.xlsx", {"one": rows[:2]})
    with pytest.raises(ValueError, match="'b' contains a formula without a stored value"):
        read_table(tmp_path / "a.xlsx", raw=True)
    rows[1][1] = EMPTY_TEXT
    write_excel(tmp_path / "a.xlsx", {"one": rows[:3]})
    column = read_table(tmp_path / "a.xlsx", raw=True).X["b"]
    assert column.isna().tolist() == [True, False]  # the formula's value is an empty text


def test_errors_and_schemas(tmp_path):
    rows = [["a", "b"], *([i % 3, "m"] for i in range(20)), [NOT_FOUND, "m"]]
    write_excel(tmp_path / "a.xlsx", {"one": rows})
    schema = draft_schema(tmp_path / "a.xlsx")
    descriptor = json.loads(schema.to_json())
    field = descriptor["schema"]["fields"][0]
    assert field["missingValues"] == ["", "#N/A"]
    assert "missingValues" in field["fedlib"]["unconfirmed"]
    assert schema.check(tmp_path / "a.xlsx").problems == ()
    field["missingValues"] = [""]
    with pytest.raises(ValueError, match="'a' contains the error #N/A in cell A22 .*missingValues"):
        Schema(descriptor).check(tmp_path / "a.xlsx")
    write_excel(tmp_path / "a.xlsx", {"one": [*rows, [NOT_COMPUTED, "m"]]})
    with pytest.raises(ValueError, match="a formula without a stored value in cell A23"):
        draft_schema(tmp_path / "a.xlsx")
