"""``fedlib schema``."""

from pathlib import Path

import pandas as pd
import pytest
from cli_helpers import invoke, refuse

from fedlib import Schema


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Write the rows of a site; the test runs in their folder."""
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(
        {
            "id": [f"p{i}" for i in range(60)],
            "age": [20 + i for i in range(60)],
            "kind": ["a", "b", "c"] * 20,
        }
    )
    frame.to_csv("site.csv", index=False)
    return frame


def test_a_draft_is_written_and_its_rows_fit(rows):
    output = invoke("schema", "draft", "site.csv", "--ids", "id", "--target", "kind")
    assert output == "schema.json: 3 columns to confirm, 0 not read\n"
    schema = Schema.read("schema.json")
    assert (schema.identifier, schema.target, schema.features) == ("id", "kind", ("age",))
    assert invoke("schema", "check", "schema.json", "site.csv") == (
        "note  columns with unconfirmed properties: 'id', 'age', 'kind'\n"
        f"ok    60 rows fit the schema {schema.digest[:16]}\n"
    )
    assert "schema.json exists; remove it" in refuse("schema", "draft", "site.csv", code=2)
    output = invoke("schema", "draft", "site.csv", "--out", "other.json", "--name", "trial")
    first, second = output.splitlines()
    assert first == "other.json: 2 columns to confirm, 1 not read"
    assert second.startswith("not read: 'id': not all values are numbers, dates or truth values")
    assert b'"name": "trial"' in Path("other.json").read_bytes()


def test_a_draft_names_what_it_does_not_accept(rows):
    """Classes with few rows are no values of a draft, and join no other class in silence."""
    rows["kind"] = ["no"] * 55 + ["yes"] * 5
    rows["id"] = rows["id"][:30] * 2
    rows.to_csv("site.csv", index=False)
    output = invoke("schema", "draft", "site.csv", "--target", "kind", "--ids", "id").splitlines()
    assert output[1].startswith("'id' is no primary key, because its values repeat")
    assert "classes with fewer than 10 rows; add them to constraints.enum" in output[2]
    line = "fix   column 'kind': 5 values are not accepted (rows 56, 57, 58, 59, 60)"
    assert output[3:] == [line]
    assert line in invoke("schema", "check", "schema.json", "site.csv", code=1)
    text = Path("schema.json").read_text()
    assert "yes" not in text
    Path("schema.json").write_text(text.replace('"no"', '"no", "yes"'))
    schema = Schema.read("schema.json")
    assert (schema.classes, schema.skipped, schema.identifier) == (["no", "yes"], ("id",), None)
    assert "ok    60 rows fit" in invoke("schema", "check", "schema.json", "site.csv")


def test_violations_are_listed_without_values(rows):
    invoke("schema", "draft", "site.csv", "--ids", "id")
    rows["age"] = ["old", "-7", *rows["age"][2:]]
    rows["kind"] = ["zzz", *rows["kind"][1:]]
    rows["id"] = ["p1", *rows["id"][1:]]
    rows.assign(more=1).to_csv("odd.csv", index=False)
    output = invoke("schema", "check", "schema.json", "odd.csv", code=1)
    assert output == (
        "fix   column 'id': 1 value repeats an earlier one (row 2); if values may repeat, remove"
        " primaryKey or constraints.unique, or give the column the role 'ignore'\n"
        "fix   column 'age': 1 cell is not of the column's type (row 1)\n"
        "fix   column 'age': 1 value is not accepted (row 2)\n"
        "note  column 'kind': 1 value became 'other' (row 1)\n"
        "note  columns that are not read: 'more'\n"
        "note  columns with unconfirmed properties: 'id', 'age', 'kind'\n"
    )
    assert "old" not in output
    assert "zzz" not in output


def test_files_that_cannot_be_used(rows):
    Path("bad.json").write_text('{"schema": {"fields": []}}')
    assert "bad.json: schema.fields must have" in refuse("schema", "check", "bad.json", "site.csv")
    invoke("schema", "draft", "site.csv")
    rows[["age"]].to_csv("short.csv", index=False)
    error = refuse("schema", "check", "schema.json", "short.csv")
    assert "short.csv: there is no column 'kind'; the columns are 'age'" in error
    error = refuse("schema", "draft", "site.csv", "--out", "x.json", "--target", "no")
    assert "site.csv: there is no column 'no'" in error
    assert not Path("x.json").exists()


def test_a_draft_with_a_dictionary_names_what_the_two_files_do_not_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = "field_name,form_name,field_type,select_choices_or_calculations,identifier"
    Path("dictionary.csv").write_text(
        f'{header}\nrecord_id,a,text,,\nname,a,text,,y\nsex,a,radio,"1, Male | 2, Female",\n'
        "gone,a,text,,\n"
    )
    rows = [f"{i // 2},N,{i % 2 + 1},{i},x{i}" for i in range(40)]
    Path("export.csv").write_text("\n".join(["record_id,name,sex,extra,word", *rows]))
    output = invoke("schema", "draft", "export.csv", "--dictionary", "dictionary.csv").splitlines()
    assert output[0] == "schema.json: 2 columns to confirm, 3 not read"
    assert output[1].startswith("'record_id' is no primary key, because its values repeat")
    assert output[2:5] == [
        "columns that the dictionary does not have: 'extra', 'word'",
        "variables that the export does not have: 'gone'",
        "not read, because they are identifiers, times, files, free text or added by REDCap:"
        " 'name'",
    ]
    assert output[5].startswith("not read: 'word': not all values are numbers")
    assert len(output) == 6
    assert "no data dictionary" in refuse(
        "schema", "draft", "export.csv", "--dictionary", "export.csv", "--out", "b.json"
    )
