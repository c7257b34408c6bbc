"""Codes, labels and words: what looks like a number or a gap and is none."""

import pandas as pd
import pytest
from sheets import write_excel

from fedlib.tables import files
from fedlib.tables.files import read_table
from fedlib.tables.schema import Schema
from fedlib.tables.schema.drafting import draft_schema
from fedlib.tables.typed import TypedTable

pa = pytest.importorskip("pyarrow")

ICD = ["1E50", "1E51", "007"]


def written(tmp_path, suffix, values, name="code"):
    """Return a text or Excel file with a column of texts and one of numbers."""
    path = tmp_path / f"a{suffix}"
    frame = pd.DataFrame({name: values, "x": range(len(values))}, dtype=object)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        write_excel(path, {"one": [[*frame], *frame.to_numpy().tolist()]})
    return path


def fields_of(schema):
    return {one["name"]: one for one in schema._descriptor["schema"]["fields"]}


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
@pytest.mark.parametrize("code", ["1E50", "007", "12e3"])
def test_a_code_that_looks_like_a_number_is_refused_or_kept(suffix, code, tmp_path):
    path = written(tmp_path, suffix, [code, "1E51"] * 2)
    for raw in (False, True):
        with pytest.raises(ValueError, match=rf"column 'code' contains '{code}'.*--text code"):
            read_table(path, raw=raw)
    assert read_table(path, raw=True, text="code").X["code"].tolist() == [code, "1E51"] * 2
    field = {"name": "code", "type": "string"}
    schema = Schema({"schema": {"fields": [field]}})
    assert schema.apply(path)[0].X["code"].tolist() == [code, "1E51"] * 2


@pytest.mark.parametrize("text", ["1e+05", "1.5E3", "1e-7", "0", "0.5"])
def test_numbers_with_exponents_as_programs_write_them_are_numbers(text, tmp_path):
    path = written(tmp_path, ".csv", [text, "2"])
    assert read_table(path).X["code"].tolist() == [float(text), 2.0]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_draft_keeps_codes_as_text(suffix, tmp_path):
    draft = draft_schema(written(tmp_path, suffix, ["1E50", "1E51"] * 20))
    assert fields_of(draft)["code"]["constraints"]["enum"] == ["1E50", "1E51"]


def test_a_word_for_a_gap_is_a_word_in_a_text_and_a_gap_among_numbers(tmp_path):
    path = written(tmp_path, ".csv", ["NA", "DE"] * 20, "land")
    draft = fields_of(draft_schema(path))["land"]
    assert draft["constraints"]["enum"] == ["DE", "NA"]
    assert "missingValues" not in draft
    assert set(read_table(path, raw=True).X["land"]) == {"NA", "DE"}
    assert set(draft_schema(path).apply(path)[0].X["land"]) == {"NA", "DE"}
    path = written(tmp_path, ".csv", ["NA", "3"] * 20, "n")
    assert fields_of(draft_schema(path))["n"]["missingValues"] == ["", "NA"]


def test_the_truth_values_of_postgresql_are_drafted_if_both_occur(tmp_path):
    path = written(tmp_path, ".csv", ["t", "f"] * 20, "ill")
    draft = draft_schema(path)
    found = fields_of(draft)["ill"]
    assert (found["type"], found["trueValues"], found["falseValues"]) == ("boolean", ["t"], ["f"])
    assert draft.apply(path)[0].X["ill"].tolist() == [1.0, 0.0] * 20
    only = written(tmp_path, ".csv", ["f"] * 20, "sex")
    assert fields_of(draft_schema(only))["sex"]["type"] == "string"


# Labels


@pytest.fixture
def labelled(monkeypatch, tmp_path):
    """Return a function that makes a file with labels from codes, labels and missing values."""

    def make(codes, labels, missing=None):
        table = TypedTable(
            {"sex": codes, "x": pa.array(range(len(codes)))},
            {"sex": labels},
            {"sex": missing or {}},
        )
        content = files._of_types(table, files.ReadOptions(), True)
        monkeypatch.setattr(files, "_read_file", lambda *_: content)
        path = tmp_path / "a.sav"
        path.touch()
        return path

    return make


def test_a_draft_has_the_labels_in_the_order_of_the_codes(labelled):
    codes = pa.array([2, 1, None, 3] * 10)
    path = labelled(codes, {"2": "female", "1": "male", "3": "other"}, {"9": "refused", "8": ""})
    field = fields_of(draft_schema(path))["sex"]
    assert field["categories"] == [
        {"value": 2, "label": "female"},
        {"value": 1, "label": "male"},
        {"value": 3, "label": "other"},
    ]
    assert field["missingValues"] == ["", {"value": "9", "label": "refused"}, "8"]
    assert (field["type"], field["fedlib"]["outside"]) == ("integer", "other")
    assert "categories" in field["fedlib"]["unconfirmed"]
    assert Schema.from_json(draft_schema(path).to_json()).categories["sex"] == (
        *("2", "1", "3"),
        "other",
    )


def test_a_label_of_one_number_makes_no_categories(labelled):
    path = labelled(pa.array([0, 1, 2, 3, 4] * 10), {"0": "never"})
    assert fields_of(draft_schema(path))["sex"]["type"] == "integer"
    assert "categories" not in fields_of(draft_schema(path))["sex"]


def test_a_check_names_the_codes_with_other_labels(labelled):
    ours = draft_schema(labelled(pa.array([1, 2] * 20), {"1": "male", "2": "female"}))
    path = labelled(pa.array([1, 2] * 20), {"1": "female", "2": " Female "})
    report = ours.check(path)
    assert report.problems == ()
    assert report.labels == (
        "column 'sex': the code 1 is 'female' in the file and 'male' in the schema; if the meaning"
        " differs, correct the codes",
    )
    assert report.labels[0] in report.changes


def test_two_codes_with_one_label_stay_two(labelled):
    path = labelled(pa.array([1, 2, 3] * 10), {"1": "yes", "2": "yes", "3": "no"})
    table = draft_schema(path).apply(path)[0]
    assert table.X["sex"].cat.categories.tolist() == ["1", "2", "3", "other"]
