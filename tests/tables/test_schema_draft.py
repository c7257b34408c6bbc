"""Drafts: what is inferred from rows, and that no value of a single row is in it."""

import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from frictionless import Resource
from hypothesis import given
from hypothesis import strategies as st

from fedlib.tables.schema import Schema
from fedlib.tables.schema.drafting import MIN_ROWS, draft_schema, round_outward


@pytest.fixture
def cohort():
    """Return rows with every type of column, and values that occur once."""
    rng = np.random.default_rng(0)
    n = 200
    days = pd.Timestamp("1983-05-17") + pd.to_timedelta(rng.integers(0, 9000, n), "D")
    return pd.DataFrame(
        {
            "patient": [f"P{i:06d}" for i in rng.permutation(n)],
            "age": rng.integers(19, 88, n),
            "glucose": np.round(rng.normal(6.37, 1.13, n), 2),
            "smoking": rng.choice(["never", "former", "current"], n).tolist(),
            "town": rng.choice(["A", "B"], n - 9).tolist() + ["Rareville"] * 9,
            "entry": days.strftime("%Y-%m-%d"),
            "visit": days.strftime("%d.%m.%Y"),
            "flag": rng.choice(["true", "false"], n),
            "died": rng.integers(0, 2, n),
            "pressure": [*map(str, rng.integers(80, 190, n - 1)), "NA"],
            "note": [f"free text {i}" if i % 3 else "" for i in range(n)],
        }
    )


def write(frame, folder, **options):
    frame.to_csv(folder / "site.csv", index=False, **options)
    return folder / "site.csv"


def test_types_are_inferred(cohort, tmp_path):
    path = write(cohort, tmp_path)
    schema = draft_schema(path, target="died", ids="patient")
    content = json.loads(schema.to_json())
    types = {field["name"]: field["type"] for field in content["schema"]["fields"]}
    assert types == {
        "patient": "string",
        "age": "integer",
        "glucose": "number",
        "smoking": "string",
        "town": "string",
        "entry": "date",
        "visit": "date",
        "flag": "boolean",
        "died": "boolean",
        "pressure": "integer",
        "note": "string",
    }
    assert (schema.identifier, schema.target, schema.skipped) == ("patient", "died", ("note",))
    assert schema.categories == {
        "smoking": ("current", "former", "never", "other"),
        "town": ("A", "B", "other"),
    }
    assert content["schema"]["fields"][-2]["missingValues"] == ["", "NA"]
    assert draft_schema(path).skipped == ("patient", "note")


def test_the_rows_of_the_draft_fit_it(cohort, tmp_path):
    path = write(cohort, tmp_path)
    schema = draft_schema(path, target="died", ids="patient")
    report = schema.check(path)
    assert report.problems == ()
    assert report.changes == (
        "column 'town': 9 values became 'other' (rows 192, 193, 194, 195, 196…)",
        "columns that are not read: 'note'",
    )


@pytest.mark.parametrize("ids", ["repeated", "missing"])
def test_identifiers_that_are_no_key_are_not_read(ids, cohort, tmp_path):
    patients = [f"p{i // 2}" for i in range(len(cohort))]
    if ids == "missing":
        patients = ["", *cohort["patient"][1:]]
    schema = draft_schema(write(cohort.assign(patient=patients), tmp_path), ids="patient")
    assert (schema.identifier, schema.skipped) == (None, ("patient", "note"))
    assert schema.check(tmp_path / "site.csv").problems == ()


def test_a_rare_class_never_becomes_another_one(cohort, tmp_path):
    schema = draft_schema(write(cohort, tmp_path), target="town")
    assert schema.classes == ["A", "B"]
    with pytest.raises(ValueError, match="column 'town': 9 values are not accepted"):
        schema.apply(tmp_path / "site.csv")
    content = json.loads(schema.to_json())
    own = next(one["fedlib"] for one in content["schema"]["fields"] if one["name"] == "town")
    own["outside"] = "other"  # as drafts of before
    own["unconfirmed"].append("outside")
    with pytest.raises(ValueError, match="column 'town': 9 values are not accepted"):
        Schema(content).apply(tmp_path / "site.csv")
    own["unconfirmed"].remove("outside")  # a person wants it so
    assert Schema(content).apply(tmp_path / "site.csv")[0].y.tolist().count("other") == 9


def test_a_draft_is_a_descriptor_of_the_standard(cohort, tmp_path):
    path = write(cohort[cohort["town"] != "Rareville"], tmp_path, sep=";")
    content = json.loads(draft_schema(path, target="died", ids="patient").to_json())
    assert list(Resource.metadata_validate(content)) == []
    resource = Resource.from_descriptor(content, basepath=str(tmp_path))
    report = resource.validate()
    assert report.valid, report.to_summary()


def test_a_draft_contains_no_value_of_few_rows(cohort, tmp_path):
    path = write(cohort, tmp_path)
    text = draft_schema(path, target="died", ids="patient").to_json().decode()
    for field in json.loads(text)["schema"]["fields"]:
        counts = Counter(map(str, cohort[field["name"]]))
        values = {*re.findall(r"[-+.\w]+", json.dumps(field))} & {*counts}
        # The words for truth values and for gaps, and the natural limit 0, are no values.
        assert all(counts[value] >= MIN_ROWS for value in values - {"NA", "0"}), field
    for name in ("age", "glucose"):
        low, high = Schema.from_json(text.encode()).limits[name]
        assert low < cohort[name].min()
        assert high > cohort[name].max()


def test_two_sites_with_other_rows_often_have_the_same_draft(cohort, tmp_path):
    path = write(cohort.drop(columns=["patient", "note"]), tmp_path)
    first = draft_schema(path)
    again = cohort.sample(frac=1, random_state=1).drop(columns=["patient", "note"])
    assert draft_schema(write(again, tmp_path)).to_json() == first.to_json()


def test_everything_is_unconfirmed(cohort, tmp_path):
    schema = draft_schema(write(cohort, tmp_path), ids="patient")
    unconfirmed = schema.unconfirmed
    assert {*unconfirmed} == {column.name for column in schema.columns}
    assert unconfirmed["age"] == (
        *("role", "type", "constraints.minimum", "constraints.maximum", "unit"),
    )
    assert unconfirmed["visit"][:3] == ("role", "type", "format")
    assert "outside" in unconfirmed["town"]
    with pytest.raises(ValueError, match="a protected run needs the confirmation of role, type"):
        schema.protected()


@pytest.mark.parametrize(
    ("cells", "properties"),
    [
        (["1,5", "2,5"], {"type": "number", "decimalChar": ","}),
        (["1,234.5", "2"], {"type": "number", "groupChar": ","}),
        (["1.234,5", "2"], {"type": "number", "decimalChar": ",", "groupChar": "."}),
        (["31/01/2024", "01/02/2024"], {"type": "date", "format": "%d/%m/%Y"}),
        (["01/31/2024", "01/02/2024"], {"type": "date", "format": "%m/%d/%Y"}),
        (["2024-01-31", "?"], {"type": "date", "missingValues": ["", "?"]}),
        (["True", "False"], {"type": "boolean"}),
        (["a", "1"], {"type": "string"}),
        (["007", "010"], {"type": "string"}),
        (["1,234", "2,345"], {"type": "string"}),  # 1.234 or 1234
    ],
)
def test_how_cells_are_written_is_inferred(cells, properties, tmp_path):
    frame = pd.DataFrame({"x": cells * 10, "y": range(2 * 10)})
    path = write(frame, tmp_path, sep=";")
    schema = draft_schema(path)
    content = json.loads(schema.to_json())
    written = content["schema"]["fields"][0]
    assert {name: written[name] for name in properties} == properties
    assert content["dialect"] == {"delimiter": ";"}
    assert schema.check(path).problems == ()


def test_columns_with_few_values_have_no_limits(tmp_path):
    schema = draft_schema(write(pd.DataFrame({"x": range(2, 11), "d": "2024-01-31"}), tmp_path))
    assert schema.limits == {}


def test_files_in_other_encodings_are_drafted(tmp_path):
    frame = pd.DataFrame({"größe": range(20), "k": ["é", "ü"] * 10})
    path = write(frame, tmp_path, encoding="windows-1252")
    schema = draft_schema(path)
    assert schema.categories == {"k": ("é", "ü", "other")}
    assert json.loads(schema.to_json())["encoding"] == "windows-1252"
    assert schema.check(path).problems == ()


def test_other_files_are_drafted(tmp_path):
    frame = pd.DataFrame({"x": [1.5, None] * 20, "n": range(40), "k": ["a", "b"] * 20})
    frame.to_parquet(tmp_path / "site.parquet")
    schema = draft_schema(tmp_path / "site.parquet")
    assert [column.type for column in schema.columns] == ["number", "integer", "string"]
    assert schema.check(frame).problems == ()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {"target": "c"}, "there is no column 'c'; the columns are 'a', 'b'"),
        ("1,2\n3,4\n", {}, "the first row contains numbers instead of names"),
        ("a,\n1,2\n", {}, "column 2 has no name in line 1; name it"),
        ("", {}, "the file is empty"),
        ("a,a\n1,2\n", {}, "columns with the same name: a; rename them"),
        ("a\nx\ny\n", {}, "no column can be read: 'a': not all values are numbers, dates or truth"),
        ("a,b\n1,2,3\n", {}, "1 rows do not have 2 cells"),
        ("a,b\n1,2\n" * 3000 + "1\n", {}, "1 rows do not have 2 cells .* line 6001 with 1; quote"),
        ("Ward A\na,b\n1,2\n", {}, "if it is a title, .* correct the file: its first line must"),
        ("a  b\n1  2\n", {}, "separated by spaces, which a schema cannot describe; separate them"),
        (
            'a,b\n1,2\n2,"x\n3,y\n',
            {},
            "line 3 cannot be read .* a quotation mark is opened and not",
        ),
        ("'a','b'\n1,2\n", {}, "the name 'a' in line 1 has quotation marks of another kind"),
        ("<html>\n<p>a, b</p>", {}, "is no text, but HTML or XML, .* download the table itself"),
        ("a,b\n1\0,2\n", {}, "contains bytes of zero"),
    ],
)
def test_a_file_that_cannot_be_drafted(text, options, message, tmp_path):
    (tmp_path / "site.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        draft_schema(tmp_path / "site.csv", **options)


numbers = st.floats(-1e90, 1e90).filter(lambda v: v == 0 or abs(v) > 1e-90)


@given(numbers, numbers, st.booleans())
def test_limits_lie_beyond_the_extremes_and_have_one_digit(a, b, integers):
    low, high = sorted((a, b))
    if integers:
        low, high = float(int(low) % 10**6), float(int(low) % 10**6 + int(high) % 10**6)
    below, above = round_outward(low, high, integers)
    assert below < low or below == low == 0 or (low > 0 and below == 0)
    assert above > high or above == high == 0 or (high < 0 and above == 0)
    largest = max(abs(below), abs(above))
    assert float(f"{largest:.0e}") == largest


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "windows-1252"])
def test_the_encoding_is_found(encoding, tmp_path):
    text = "größe,ort\n" + "170,Köln\n180,Ulm\n" * 10
    (tmp_path / "site.csv").write_text(text, encoding)
    schema = draft_schema(tmp_path / "site.csv")
    assert json.loads(schema.to_json())["encoding"] == encoding.removesuffix("-sig")
    assert schema.categories == {"ort": ("Köln", "Ulm", "other")}
    assert schema.check(tmp_path / "site.csv").problems == ()


def test_blanks_before_quotation_marks_are_found(tmp_path):
    (tmp_path / "site.csv").write_text('"a", "b"\n' + '"1", "x, y"\n"2", "z"\n' * 10)
    schema = draft_schema(tmp_path / "site.csv")
    assert json.loads(schema.to_json())["dialect"] == {"delimiter": ",", "skipInitialSpace": True}
    table, _ = schema.apply(tmp_path / "site.csv")
    assert table.X["b"].tolist()[:2] == ["x, y", "z"]


def test_blank_lines_above_the_names_do_not_count(cohort, tmp_path):
    path = write(cohort[["age", "glucose"]], tmp_path)
    expected = draft_schema(path).digest
    path.write_text("\n\n" + path.read_text())
    assert draft_schema(path).digest == expected
