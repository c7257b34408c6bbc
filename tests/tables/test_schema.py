"""Schemas: what a descriptor means, what is refused, and what two schemas differ in."""

import contextlib
import copy
import json
import re

import pandas as pd
import pytest
from frictionless import Resource
from hypothesis import given
from hypothesis import strategies as st

from fedlib import Schema
from fedlib.core.columns import NUMBER, TEXT
from fedlib.tables.schema import descriptor as limits_of

COHORT = {
    "$schema": "https://datapackage.org/profiles/2.0/dataresource.json",
    "name": "cohort",
    "title": "Cohort",
    "path": "cohort.csv",
    "type": "table",
    "licenses": [{"name": "CC-BY-4.0"}],
    "encoding": "utf-8",
    "dialect": {"delimiter": ";"},
    "schema": {
        "fieldsMatch": "subset",
        "fields": [
            {"name": "patient", "type": "string"},
            {
                "name": "age",
                "title": "Age at entry",
                "type": "integer",
                "constraints": {"minimum": 18, "maximum": 99, "required": True},
                "fedlib": {"unit": "a", "outside": "clip", "fill": 50},
            },
            {
                "name": "glucose",
                "type": "number",
                "decimalChar": ",",
                "constraints": {"minimum": 1.5, "maximum": 40},
                "missingValues": ["", "-9"],
                "fedlib": {"unit": "mmol/l", "outside": "missing"},
            },
            {
                "name": "smoking",
                "type": "string",
                "constraints": {"enum": ["never", "former", "current"]},
                "fedlib": {"outside": "other", "fill": "never"},
            },
            {"name": "stage", "type": "integer", "categories": [{"value": 1, "label": "I"}, 2]},
            {
                "name": "entry",
                "type": "date",
                "format": "%d.%m.%Y",
                "constraints": {"minimum": "01.01.2000", "maximum": "2029-12-31"},
            },
            {"name": "diabetes", "type": "boolean"},
            {"name": "died", "type": "boolean", "fedlib": {"role": "target"}},
            {"name": "w", "type": "number", "fedlib": {"role": "weight"}},
            {"name": "where", "type": "geojson", "fedlib": {"role": "ignore"}},
        ],
        "missingValues": ["", "NA"],
        "primaryKey": ["patient"],
    },
}


def cohort(**changes):
    """Return the cohort's descriptor with changed properties of fields, by name."""
    content = copy.deepcopy(COHORT)
    for field in content["schema"]["fields"]:
        field.update(changes.get(field["name"], {}))
    return content


def one(field, **schema):
    """Return a schema with one feature more than ``field``, so that it may have any role."""
    rest = {"name": "rest", "type": "number"}
    return Schema({"name": "one", "schema": {"fields": [field, rest], **schema}})


# Meaning


def test_a_descriptor_says_what_the_columns_are():
    schema = Schema(COHORT)
    assert schema.features == ("age", "glucose", "smoking", "stage", "entry", "diabetes")
    assert (schema.identifier, schema.target, schema.weight) == ("patient", "died", "w")
    assert schema.skipped == ("where",)
    assert schema.limits == {
        "age": (18, 99),
        "glucose": (1.5, 40),
        "entry": (10957, 21914),
        "diabetes": (0, 1),
        "died": (0, 1),
    }
    assert schema.categories == {
        "smoking": ("never", "former", "current", "other"),
        "stage": ("1", "2"),
    }
    texts = {"patient", "smoking", "stage"}
    assert schema.kinds == {c.name: TEXT if c.name in texts else NUMBER for c in schema.columns}
    assert schema.fills == {"age": 50, "smoking": "never"}
    assert schema.columns[1].unit == "a"


def test_a_descriptor_is_one_of_the_standard():
    assert list(Resource.metadata_validate(COHORT)) == []
    resource = Resource.from_descriptor(COHORT)
    assert resource.schema.get_field("age").constraints == {
        "minimum": 18,
        "maximum": 99,
        "required": True,
    }


def test_a_schema_survives_its_text(tmp_path):
    schema = Schema(COHORT)
    assert json.loads(schema.to_json()) == COHORT
    again = Schema.from_json(b"\xef\xbb\xbf" + schema.to_json())
    assert again.digest == schema.digest
    assert again.difference(schema) == []
    (tmp_path / "schema.json").write_bytes(schema.to_json())
    assert Schema.read(tmp_path / "schema.json").digest == schema.digest
    with pytest.raises(ValueError, match="cannot be read"):
        Schema.read(tmp_path / "none.json")


def test_other_is_appended_once_and_only_where_it_is_used():
    field = {"name": "k", "type": "string", "constraints": {"enum": ["other", "a"]}}
    assert one(field | {"fedlib": {"outside": "other"}}).categories["k"] == ("other", "a")
    assert one({**field, "constraints": {"enum": ["a"]}}).categories["k"] == ("a",)


def test_the_enum_selects_among_the_categories():
    field = {"name": "k", "type": "string", "categories": ["a", "b", "c"]}
    assert one(field).categories["k"] == ("a", "b", "c")
    assert one(field | {"constraints": {"enum": ["c", "a"]}}).categories["k"] == ("c", "a")


# Comparison


ENTRY = {"minimum": "2000-01-01", "maximum": "2029-12-31"}


@pytest.mark.parametrize(
    "changes",
    [
        {"age": {"title": "Alter"}},
        {"age": {"description": "in years"}},
        {"glucose": {"decimalChar": "."}},
        {"diabetes": {"trueValues": ["yes"], "falseValues": ["no"]}},
        {"entry": {"format": "default", "constraints": ENTRY}},
        {"where": {"type": "string"}},
        {"smoking": {"fedlib": {"outside": "other", "fill": "never", "unconfirmed": ["role"]}}},
    ],
)  # fmt: skip
def test_the_digest_ignores_what_does_not_matter_for_a_run(changes):
    first, second = Schema(COHORT), Schema(cohort(**changes))
    assert first.digest == second.digest
    assert first.difference(second) == []


def test_the_digest_ignores_the_form_of_the_file_and_of_the_descriptor():
    content = cohort()
    del content["dialect"], content["encoding"], content["title"]
    content["schema"]["missingValues"] = [{"value": "NA", "label": "unknown"}]
    fields = [dict(reversed(field.items())) for field in content["schema"]["fields"]]
    content["schema"]["fields"] = fields
    assert Schema(content).digest == Schema(COHORT).digest


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"age": {"constraints": {"minimum": 18, "maximum": 90, "required": True}}},
            "column 'age': the maximum is 99 here and 90 there",
        ),
        (
            {"age": {"fedlib": {"outside": "clip", "fill": 50}}},
            "column 'age': the unit is a here and not declared there",
        ),
        (
            {"smoking": {"fedlib": {"outside": "missing", "fill": "never"}}},
            "column 'smoking': the treatment of values outside is other here and missing there",
        ),
        (
            {"age": {"fedlib": {"unit": "a", "outside": "clip", "fill": 51}}},
            "column 'age': the value for gaps is 50 here and 51 there",
        ),
        (
            {"stage": {"categories": [2, 1]}},
            "column 'stage': the list of categories is ('1', '2') here and ('2', '1') there",
        ),
        (
            {"glucose": {"missingValues": ["-99"]}},
            "column 'glucose': the list of missing values is ['-9'] here and ['-99'] there",
        ),
        ({"w": {"name": "v"}}, "column 'w' is only here"),
        ({"where": {"type": "number", "fedlib": {}}}, "column 'where' is only there"),
    ],
)
def test_a_difference_is_one_line(changes, line):
    first, second = Schema(COHORT), Schema(cohort(**changes))
    assert first.digest != second.digest
    assert line in first.difference(second)


def test_the_order_of_columns_matters():
    content = cohort()
    content["schema"]["fields"].reverse()
    second = Schema(content)
    assert second.digest != Schema(COHORT).digest
    assert second.difference(Schema(COHORT)) == ["the order of the columns differs"]


@st.composite
def schemas(draw):
    """Return small schemas that often differ in one property only."""
    bounds = st.none() | st.integers(0, 2)
    fields = []
    for name in draw(st.permutations("ab")):
        if draw(st.booleans()):
            low = draw(bounds)
            constraints = {} if low is None else {"minimum": low}
            own = {"outside": draw(st.sampled_from(["error", "missing"]))}
            field = {"type": draw(st.sampled_from(["number", "integer"]))}
        else:
            values = draw(st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
            constraints = {"enum": values}
            own = {"outside": draw(st.sampled_from(["error", "other"]))}
            field = {"type": "string"}
        fields.append({"name": name, "constraints": constraints, "fedlib": own} | field)
    return Schema({"schema": {"fields": fields}})


@given(schemas(), schemas())
def test_schemas_differ_if_and_only_if_their_digests_do(first, second):
    assert (first.difference(second) == []) == (first.digest == second.digest)
    assert len(first.difference(second)) == len(second.difference(first))


# Refusals


FIELD = {"name": "x", "type": "number"}
TEXTS = {"name": "x", "type": "string"}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"type": "number"}, "fields[0].name must be a text of 1 to 1000 characters"),
        ({"name": "x"}, "'x': type must be one of number, integer, string, boolean, date"),
        ({"name": "x", "type": "geojson"}, "got 'geojson'; a field with the role 'ignore'"),
        (TEXTS | {"format": "email"}, "format must be 'default' for the type 'string'"),
        (FIELD | {"decimalChar": "1"}, "decimalChar must be one character"),
        (FIELD | {"groupChar": "."}, "decimalChar and groupChar must differ"),
        ({"name": "x", "type": "date", "format": "any"}, "format must be 'default' (yyyy-mm-dd)"),
        ({"name": "x", "type": "date", "format": "%Y %H"}, "format must be 'default'"),
        (FIELD | {"constraints": {"exclusiveMinimum": 1}}, "cannot be obeyed: use minimum"),
        (FIELD | {"constraints": {"min": 1}}, "constraints.min is unknown; known are required"),
        (FIELD | {"constraints": {"minimum": "low"}}, "must be a number within ±1e+100, got 'low'"),
        (FIELD | {"constraints": {"minimum": 2, "maximum": 1}}, "minimum must be at most"),
        (FIELD | {"constraints": {"minimum": 1e200}}, "must be a number within"),
        (FIELD | {"constraints": {"required": "yes"}}, "expected `bool`, got `str`"),
        (FIELD | {"constraints": []}, "constraints must be an object, got []"),
        (FIELD | {"constraints": {"pattern": "a"}}, "need the type string"),
        (
            {"name": "x", "type": "integer", "constraints": {"maximum": 1.5}},
            "must be an integer within ±2**53, got 1.5",
        ),
        (
            {"name": "x", "type": "date", "constraints": {"maximum": "2024-02-30"}},
            "must be a date such as '2024-01-31', got '2024-02-30'",
        ),
        ({"name": "x", "type": "boolean", "constraints": {"minimum": 0}}, "truth values have no"),
        ({"name": "x", "type": "boolean", "trueValues": ["0"]}, "trueValues and falseValues must"),
        (TEXTS | {"constraints": {"minimum": 0}}, "needs a number or a date, got a string field"),
        (TEXTS | {"constraints": {"enum": []}}, "must have 1 to 4096 values"),
        (TEXTS | {"constraints": {"enum": ["a", " a"]}}, "must not repeat a value"),
        (TEXTS | {"constraints": {"enum": [1]}}, "must contain texts, got 1"),
        (TEXTS | {"constraints": {"enum": ["a" * 201]}}, "texts of 1 to 200 characters"),
        (TEXTS | {"categories": ["a"], "constraints": {"enum": ["b"]}}, "a subset of categories"),
        (
            {"name": "x", "type": "integer", "constraints": {"enum": [1], "maximum": 2}},
            "makes minimum and maximum superfluous",
        ),
        (TEXTS | {"constraints": {"minLength": 3, "maxLength": 2}}, "from 0 to maxLength"),
        (TEXTS | {"constraints": {"pattern": "("}}, "must be a regular expression of RE2"),
        (TEXTS | {"constraints": {"pattern": "a)|(b"}}, "must be a regular expression of RE2"),
        (TEXTS | {"constraints": {"pattern": r"(a)\1"}}, "without references and look-around"),
        (TEXTS | {"constraints": {"pattern": "[a-z-[aeiou]]"}}, "must be a regular expression"),
        (TEXTS | {"constraints": {"pattern": "a" * 1001}}, "must be a regular expression of RE2"),
        (FIELD | {"fedlib": {"role": "label"}}, "invalid enum value 'label'"),
        (FIELD | {"fedlib": {"unti": "g"}}, "unknown field `unti`"),
        (FIELD | {"fedlib": {"outside": "clip"}}, "clip needs a minimum or a maximum"),
        (FIELD | {"fedlib": {"outside": "other"}}, "other an enum"),
        (TEXTS | {"fedlib": {"outside": "clip"}}, "must be one of error, missing, got 'clip'"),
        (FIELD | {"fedlib": {"fill": "much"}}, "fedlib.fill must be a number"),
        (
            FIELD | {"constraints": {"maximum": 1}, "fedlib": {"fill": 2}},
            "fill must be within the limits, got 2",
        ),
        (
            TEXTS | {"constraints": {"enum": ["a"]}, "fedlib": {"fill": "b"}},
            "fill must be one of the categories, got 'b'",
        ),
        (TEXTS | {"fedlib": {"role": "weight"}}, "the weights must be numbers"),
        (FIELD | {"missingValues": [{"value": 9}]}, "missingValues must contain texts, got 9"),
        (FIELD | {"missingValues": "NA"}, "expected `array | null`, got `str`"),
        (FIELD | {"name": "rest"}, "more than one field 'rest'"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_obeyed_is_refused(field, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        one(field)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"resources": []}, "resources cannot be obeyed: it is a Data Package"),
        ({"fields": []}, "fields cannot be obeyed: it is a Table Schema"),
        ({}, "the property schema is missing"),
        ({"schema": "schema.json"}, "schema must be an object within the descriptor"),
        ({"schema": {"fields": []}}, "schema.fields must have 1 to 65536 entries, got 0"),
        ({"schema": {"fields": {}}}, "expected `array`, got `object` - at `schema.fields`"),
        ({"data": [[1]]}, "data cannot be obeyed: rows belong into the file of each site"),
        ({"$schema": "https://example.org/my.json"}, "$schema must be https://datapackage.org"),
        ({"profile": "my-profile"}, "profile must be 'tabular-data-resource', got 'my-profile'"),
        ({"type": "map"}, "type must be 'table', got 'map'"),
        ({"encoding": "utf-9"}, "encoding must be the name of an encoding such as 'utf-8'"),
        ({"encoding": "zip"}, "encoding must be the name of an encoding"),
        ({"dialect": {"delimiter": "||"}}, "dialect.delimiter must be one ASCII character"),
        ({"dialect": {"headerRows": [1, 2]}}, "dialect.headerRows cannot be obeyed"),
        ({"dialect": {"lineTerminator": ";"}}, "invalid enum value ';' - at `dialect.line"),
        ({"dialect": {"commentChar": ""}}, "commentChar must have at least one character"),
    ],
)
def test_a_resource_that_cannot_be_obeyed_is_refused(content, message):
    base = (
        {}
        if {"resources", "fields"} & {*content} or not content
        else {"schema": {"fields": [FIELD]}}
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        Schema(base | content)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"foreignKeys": [{"fields": ["x"]}]}, "schema.foreignKeys cannot be obeyed: one file"),
        ({"uniqueKeys": [["x"]]}, "use constraints.unique of a field, or primaryKey"),
        ({"primaryKey": ["x", "rest"]}, "schema.primaryKey must be one field"),
        ({"primaryKey": ["y"]}, "primaryKey must be the name of a field, got 'y'"),
        ({"primaryKey": "x"}, "the primary key must have the type string or integer"),
        ({"fieldsMatch": "partial"}, "schema.fieldsMatch must be one of exact, equal, subset"),
    ],
)
def test_a_table_schema_that_cannot_be_obeyed_is_refused(schema, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        one(FIELD, **schema)


def test_roles_do_not_contradict_each_other():
    target = {"type": "number", "fedlib": {"role": "target"}}
    with pytest.raises(ValueError, match="only one field can have the role 'target'"):
        Schema(cohort(w=target))
    with pytest.raises(ValueError, match="no field is left for the features"):
        Schema({"schema": {"fields": [FIELD | {"fedlib": {"role": "target"}}]}})
    for own in ({"role": "ignore"}, {"role": "target"}, {"fill": "x"}, {"outside": "missing"}):
        with pytest.raises(ValueError, match="primary key"):
            Schema(cohort(patient={"fedlib": own}))


def test_empty_lists_of_what_is_refused_are_harmless():
    schema = one(FIELD, foreignKeys=[], uniqueKeys=[], primaryKey=[])
    assert schema.features == ("x", "rest")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"\xff", b'{"schema": NaN}', b"[" * 100_000, b"x" * (2**24 + 1)],
    ids=["empty", "list", "cut", "bytes", "nan", "deep", "long"],
)
def test_a_text_that_is_no_descriptor_is_refused(data):
    with pytest.raises(ValueError, match="the descriptor"):
        Schema.from_json(data)


PROPERTIES = (
    *("schema", "fields", "name", "type", "constraints", "enum", "fedlib", "dialect", "pattern"),
    *("missingValues", "role", "fill", "minimum", "delimiter"),
)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "schema",
                        "fields",
                        "name",
                        "type",
                        "constraints",
                        "enum",
                        "fedlib",
                        "dialect",
                        "missingValues",
                        "role",
                        "fill",
                        "minimum",
                        "pattern",
                        "delimiter",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_a_descriptor_of_a_stranger_is_read_or_refused(content):
    with contextlib.suppress(ValueError):  # any other error fails
        Schema.from_json(json.dumps(content).encode())


def test_sizes_are_bounded(monkeypatch):
    many = [{"name": f"x{i}", "type": "number"} for i in range(limits_of.MAX_FIELDS + 1)]
    with pytest.raises(ValueError, match="entries, got 65537"):
        Schema({"schema": {"fields": many}})
    values = [str(i) for i in range(limits_of.MAX_CATEGORIES + 1)]
    with pytest.raises(ValueError, match="got 4097 of the type string"):
        one(TEXTS | {"constraints": {"enum": values}})
    with pytest.raises(ValueError, match="must have at most 4096 entries"):
        one(TEXTS | {"missingValues": values})


def test_names_in_errors_are_safe_to_print():
    with pytest.raises(ValueError, match="type must be one of") as caught:
        one({"name": "\x1b[2J" + "x" * 500, "type": "\x1b[31m"})
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300
    frame = pd.DataFrame({"\x1b[2J": [1]})
    with pytest.raises(ValueError, match="there is no column") as caught:
        one(FIELD).apply(frame)
    assert "\x1b" not in str(caught.value)


def test_a_pattern_cannot_keep_a_site_busy():
    schema = one(TEXTS | {"constraints": {"pattern": "(a+)+b"}})
    frame = pd.DataFrame({"x": ["a" * 100_000, "aab"], "rest": [1, 2]})
    assert schema.check(frame).columns[0].outside == 1
