"""REDCap: what the data dictionary of a project says of the columns of its raw export."""

import csv
import json

import pytest

from fedlib.tables.schema.drafting import draft_schema
from fedlib.tables.schema.redcap import Dictionary

HEADER = (
    "Variable / Field Name,Form Name,Section Header,Field Type,Field Label,"
    '"Choices, Calculations, OR Slider Labels",Field Note,'
    "Text Validation Type OR Show Slider Number,Text Validation Min,Text Validation Max,"
    "Identifier?,Branching Logic (Show field only if...),Required Field?"
)
API = (
    "field_name,form_name,section_header,field_type,field_label,select_choices_or_calculations,"
    "field_note,text_validation_type_or_show_slider_number,text_validation_min,text_validation_max,"
    "identifier,branching_logic,required_field"
)
# The type of the field, its choices, its validation, the limits, and whether it identifies.
VARIABLES = {
    "record_id": ("text",),
    "surname": ("text", "", "", "", "", "y"),
    "sex": ("radio", "1, Male | 2, Female | -999, Not asked"),
    "ward": ("dropdown", "01, Surgery, general | 02, Medicine"),
    "smokes": ("yesno",),
    "signed": ("truefalse",),
    "races": ("checkbox", "1, One | B-2, Two"),
    "pain": ("slider", "none | some | much"),
    "bmi": ("calc", "[weight] / ([height])^2"),
    "age": ("text", "", "integer", "0", "110"),
    "weight": ("text", "", "number_1dp_comma_decimal", "1,5", "300"),
    "dose": ("text", "", "number_comma_decimal"),
    "visit": ("text", "", "date_dmy", "2019-01-01", "today"),
    "seen": ("text", "", "datetime_ymd"),
    "zip": ("text", "", "zipcode"),
    "mail": ("text", "", "email"),
    "notes": ("notes",),
    "scan": ("file",),
    "heading": ("descriptive",),
    "doctor": ("sql", "select 1"),
}


def write_dictionary(path, variables=VARIABLES, header=HEADER, mark=",", encoding="utf-8-sig"):
    names = next(csv.reader([header]))
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerow(names)
        for name, (kind, *more) in variables.items():
            choices, validation, low, high, identifier = [*more, *[""] * (5 - len(more))]
            label = f"What is müßig, {name}?"
            row = [name, "visit_form", "", kind, label, choices, "", validation, low, high]
            writer.writerow([*row, identifier, "", "y"])
    return path


def export(path, n=40, **changed):
    """Write the raw export of a project; a column that is None is left out."""
    days = [f"2020-03-{i % 28 + 1:02}" for i in range(n)]
    columns = {
        "record_id": [f"{i:04}" for i in range(n)],
        "redcap_data_access_group": ["site_a"] * n,
        "surname": [f"Name {i % 3}" for i in range(n)],
        "visit_form_timestamp": [f"{day} 10:00:00" for day in days],
        "sex": ["1", "2"] * (n // 2),
        "ward": ["01", "02"] * (n // 2),
        "smokes": ["1", "0"] * (n // 2),
        "signed": ["1", ""] * (n // 2),
        "races___1": ["0", "1"] * (n // 2),
        "races___b_2": ["0", "0"] * (n // 2),
        "pain": [str(2 * i) for i in range(n)],
        "bmi": [f"{20 + i / 8:.2f}" for i in range(n)],
        "age": [str(30 + i) for i in range(n)],
        "weight": [f"{60 + i},5" for i in range(n)],
        "dose": ["1,500", "2,250"] * (n // 2),
        "visit": days,
        "seen": [f"{day} 10:30" for day in days],
        "zip": ["04109", "99999"] * (n // 2),
        "mail": ["a@b.org", "c@d.org"] * (n // 2),
        "notes": ["fine", "better"] * (n // 2),
        "scan": ["[document]"] * n,
        "doctor": ["7", "8"] * (n // 2),
        "visit_form_complete": ["2", "0"] * (n // 2),
    } | changed
    columns = {name: cells for name, cells in columns.items() if cells is not None}
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*columns], *zip(*columns.values(), strict=True)])
    return path


@pytest.fixture
def site(tmp_path):
    """Return the paths of an export and its dictionary."""
    dictionary = write_dictionary(tmp_path / "dictionary.csv")
    return export(tmp_path / "export.csv"), dictionary


def fields_of(schema):
    return {field["name"]: field for field in json.loads(schema.to_json())["schema"]["fields"]}


def test_types_are_those_of_the_dictionary(site):
    path, dictionary = site
    schema = draft_schema(path, dictionary=dictionary)
    fields = fields_of(schema)
    types = {name: one["type"] for name, one in fields.items() if name not in schema.skipped}
    assert types == {
        "record_id": "string",
        "sex": "integer",
        "ward": "string",
        "smokes": "boolean",
        "signed": "boolean",
        "races___1": "boolean",
        "races___b_2": "boolean",
        "pain": "integer",
        "bmi": "number",
        "age": "integer",
        "weight": "number",
        "dose": "number",
        "visit": "date",
        "zip": "string",
        "doctor": "integer",
        "visit_form_complete": "integer",
    }
    assert {*schema.skipped} == {
        "redcap_data_access_group",
        "surname",
        "visit_form_timestamp",
        "seen",
        "mail",
        "notes",
        "scan",
    }
    assert schema.identifier == "record_id"
    assert schema.check(path).problems == ()


def test_choices_are_labelled_categories_in_their_order(site):
    path, dictionary = site
    fields = fields_of(draft_schema(path, dictionary=dictionary))
    assert fields["sex"]["categories"] == [
        {"value": 1, "label": "Male"},
        {"value": 2, "label": "Female"},
        {"value": -999, "label": "Not asked"},
    ]
    assert fields["ward"]["categories"] == [
        {"value": "01", "label": "Surgery, general"},
        {"value": "02", "label": "Medicine"},
    ]
    assert fields["visit_form_complete"]["categories"] == [
        {"value": 0, "label": "Incomplete"},
        {"value": 1, "label": "Unverified"},
        {"value": 2, "label": "Complete"},
    ]
    assert fields["sex"]["fedlib"]["unconfirmed"] == [
        "role",
        "type",
        "categories",
        "outside",
    ]


def test_limits_of_the_validation_come_before_those_of_the_rows(site):
    path, dictionary = site
    schema = draft_schema(path, dictionary=dictionary)
    fields = fields_of(schema)
    limits = {name: one["constraints"] for name, one in fields.items() if "constraints" in one}
    assert limits["age"] == {"minimum": 0, "maximum": 110}
    assert limits["weight"] == {"minimum": 1.5, "maximum": 300}
    assert limits["visit"] == {"minimum": "2019-01-01"}  # and not "today"
    assert limits["pain"] == {"minimum": 0, "maximum": 100}
    assert limits["bmi"] == {"minimum": 10, "maximum": 30}
    assert "constraints.minimum" in fields["age"]["fedlib"]["unconfirmed"]


def test_decimal_commas_are_where_the_dictionary_and_the_rows_have_them(site):
    path, dictionary = site
    X = draft_schema(path, dictionary=dictionary).apply(path)[0].X
    assert X["weight"].tolist()[:2] == [60.5, 61.5]
    assert X["dose"].tolist()[:2] == [1.5, 2.25]  # without the dictionary, 1500 or 1.5
    points = [f"{60 + i}.5" for i in range(40)]  # an option of the export
    export(path, weight=points, dose=points)
    schema = draft_schema(path, dictionary=dictionary)
    assert schema.apply(path)[0].X["weight"].tolist()[:2] == [60.5, 61.5]
    assert "decimalChar" not in fields_of(schema)["weight"]


def test_rows_that_do_not_fit_the_dictionary_are_named(site):
    path, dictionary = site
    ages = ["31.5", "200", "UNK", *(["40"] * 37)]
    export(path, age=ages, smokes=["yes"] * 10 + ["1"] * 30)
    problems = draft_schema(path, dictionary=dictionary).check(path).problems
    assert [line.replace("cells are", "cell is") for line in problems] == [
        "column 'smokes': 10 cell is not of the column's type (rows 1, 2, 3, 4, 5…)",
        "column 'age': 2 cell is not of the column's type (rows 1, 3)",
        "column 'age': 1 value is not accepted (row 2)",
    ]


def test_zeros_before_numbers_stay_text(site):
    path, dictionary = site
    export(path, age=["007", "008"] * 20)
    X = draft_schema(path, dictionary=dictionary).apply(path)[0]
    assert X.X["age"].tolist()[:2] == ["007", "008"]
    assert X.ids.tolist()[:2] == ["0000", "0001"]


def test_a_record_with_several_rows_is_no_primary_key(site):
    path, dictionary = site
    records = [f"{i // 2:04}" for i in range(40)]
    repeats = {
        "redcap_event_name": ["baseline_arm_1", "year_1_arm_1"] * 20,
        "redcap_repeat_instrument": ["", "visit_form"] * 20,
        "redcap_repeat_instance": ["", "1"] * 20,
    }
    export(path, record_id=records, **repeats)
    schema = draft_schema(path, dictionary=dictionary)
    assert (schema.identifier, "record_id" in schema.skipped) == (None, True)
    assert schema.categories["redcap_event_name"] == ("baseline_arm_1", "year_1_arm_1", "other")
    assert {*repeats} - {*schema.skipped} == {"redcap_event_name"}
    assert schema.check(path).problems == ()


def test_an_identifier_of_persons_is_a_key_only_if_a_person_names_it(site, tmp_path):
    path, _ = site
    named = VARIABLES | {"record_id": ("text", "", "", "", "", "y")}
    dictionary = write_dictionary(tmp_path / "d.csv", named)
    assert draft_schema(path, dictionary=dictionary).identifier is None
    assert draft_schema(path, ids="record_id", dictionary=dictionary).identifier == "record_id"


def test_what_an_export_and_a_dictionary_do_not_share_is_named(site):
    path, dictionary = site
    assert Dictionary.read(dictionary).compare(["sex", "races___1", "extra", EVENT]) == [
        "columns that the dictionary does not have: 'extra'",
        "variables that the export does not have: 'record_id', 'surname', 'ward', 'smokes',"
        " 'signed', 'pain', 'bmi', 'age', 'weight', 'dose', 'visit', 'seen', 'zip', 'mail',"
        " 'notes', 'scan', 'doctor'",
        f"a record can have several rows; export one event or instrument if it must not: '{EVENT}'",
    ]
    export(path, age=None, extra=["1", "2"] * 20)
    schema = draft_schema(path, dictionary=dictionary)
    assert fields_of(schema)["extra"]["type"] == "integer"


EVENT = "redcap_event_name"


def test_dictionaries_of_the_api_and_of_spreadsheets_say_the_same(site, tmp_path):
    path, dictionary = site
    drafted = draft_schema(path, dictionary=dictionary).to_json()
    api = write_dictionary(tmp_path / "api.csv", header=API)
    excel = write_dictionary(tmp_path / "excel.csv", mark=";", encoding="windows-1252")
    assert draft_schema(path, dictionary=api).to_json() == drafted
    assert draft_schema(path, dictionary=excel).to_json() == drafted


def test_other_files_are_refused(site, tmp_path):
    path, dictionary = site
    with pytest.raises(ValueError, match=r"export.csv: it is no data dictionary of REDCap, with"):
        draft_schema(path, dictionary=path)
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ValueError, match="download it in the project"):
        draft_schema(path, dictionary=tmp_path / "empty.csv")
    (tmp_path / "labels.csv").write_text("Record ID,What is your age?\n1,40\n2,50\n")
    with pytest.raises(
        ValueError, match="no column is a variable of the dictionary; export raw data"
    ):
        draft_schema(tmp_path / "labels.csv", dictionary=dictionary)
