"""Text with composed accents and with accents of their own is the same text everywhere."""

import json
import unicodedata

import numpy as np
import pandas as pd
import pytest

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    Schema,
)
from fedlib.boosting.categories import read_table as read_boosting_table
from fedlib.core.column_names import in_order
from fedlib.core.targets import read_classes, read_ids
from fedlib.sites.models import load, save
from fedlib.tables.files import read_table
from fedlib.tables.schema.drafting import draft_schema

COMPOSED, APART = "Größe é", unicodedata.normalize("NFD", "Größe é")


def apart(text):
    return unicodedata.normalize("NFD", text)


FILE = "né,größe,Ziel\nRené,1,Müller\nZoë,não,Jäger\nChloé,3,Müller\n"


def test_the_spellings_differ():
    assert COMPOSED != APART


@pytest.mark.parametrize("in_file", [str, apart])
@pytest.mark.parametrize("option", [str, apart])
def test_files_and_options(tmp_path, in_file, option):
    path = tmp_path / "a.csv"
    path.write_text(in_file(FILE))
    table = read_table(
        path,
        columns=option("größe"),
        target=option("Ziel"),
        ids=option("né"),
        na_values=option("não"),
        raw=True,
    )
    assert table.X.columns.tolist() == ["größe"]
    assert table.X["größe"].isna().tolist() == [False, True, False]
    assert table.y.tolist() == ["Müller", "Jäger", "Müller"]
    assert table.ids.tolist() == ["René", "Zoë", "Chloé"]
    assert (
        read_table(path, text=option("größe"), columns=option("größe"), raw=True).X["größe"][1]
        == "não"
    )
    pd.read_csv(path, na_values=in_file("não")).to_parquet(tmp_path / "a.parquet")
    options = {"columns": option("größe"), "target": option("Ziel")}
    table = read_table(tmp_path / "a.parquet", raw=True, **options)
    assert table.X.columns.tolist() == ["größe"]
    assert table.y.tolist() == ["Müller", "Jäger", "Müller"]


@pytest.mark.parametrize("in_file", [str, apart])
@pytest.mark.parametrize("declared", [str, apart])
def test_schemas(tmp_path, in_file, declared):
    fields = [
        {"name": "né", "type": "string"},
        {"name": "größe", "type": "number", "missingValues": ["não"]},
        {
            "name": "Ziel",
            "type": "string",
            "constraints": {"enum": ["Müller", "Jäger"]},
            "fedlib": {"role": "target"},
        },
    ]
    descriptor = {"name": "a", "schema": {"fields": fields, "primaryKey": "né"}}
    schema = Schema(json.loads(declared(json.dumps(descriptor, ensure_ascii=False))))
    assert schema.digest == Schema(descriptor).digest
    path = tmp_path / "a.csv"
    path.write_text(in_file(FILE))
    for source in (path, pd.read_csv(path)):
        table, report = schema.apply(source)
        assert report.problems == ()
        assert table.X["größe"].isna().tolist() == [False, True, False]
        assert table.y.tolist() == ["Müller", "Jäger", "Müller"]
        assert table.ids.tolist() == ["René", "Zoë", "Chloé"]
    path.write_text(in_file("größe,x\n" + "Zoë,1\nRené,2\n" * 10))
    assert draft_schema(path, target=declared("größe")).classes == ["René", "Zoë"]


def test_patterns_match_what_is_seen(tmp_path):
    field = {"name": "a", "type": "string", "constraints": {"pattern": apart("[éß]+")}}
    schema = Schema({"name": "a", "schema": {"fields": [field]}})
    assert schema.check(pd.DataFrame({"a": [apart("éß"), "é"]})).problems == ()


def test_identifiers_meet():
    assert read_ids([APART, "b"], 2) == [COMPOSED, "b"]
    with pytest.raises(ValueError, match="1 of them occur more than once"):
        read_ids([APART, COMPOSED], 2)


def test_categories_and_columns_of_pipelines(tmp_path):
    parts = [
        pd.DataFrame({COMPOSED: ["é", "b"] * 9, "x": range(18)}),
        pd.DataFrame({"x": range(18), APART: [apart("é"), "b"] * 9}),
    ]
    model = FederatedPipeline(FederatedKMeans(n_clusters=2, random_state=0), encode="one_hot").fit(
        parts
    )
    assert list(model.feature_names_in_) == [COMPOSED, "x"]
    assert model.transform(parts[0]).shape == (18, 3)  # two categories and a number
    np.testing.assert_array_equal(model.transform(parts[0]), model.transform(parts[1]))
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(parts[0]), loaded.predict(parts[1]))


def test_features_classes_and_constraints_of_boosting():
    X = pd.DataFrame({COMPOSED: np.arange(40.0), "t": ["é", "b"] * 20})
    y = np.where(np.arange(40) < 20, "né", "ß")
    far = X.rename(columns={COMPOSED: APART}).assign(t=[*map(apart, X["t"])])
    model = FederatedXGBClassifier(
        n_trees=2, monotone_constraints={APART: 1}, min_category_count=1
    ).fit([(X, y), (far, [*map(apart, y)])])
    assert model.classes_.tolist() == ["né", "ß"]
    np.testing.assert_array_equal(model.predict_proba(X), model.predict_proba(far))
    assert model.score(far, [*map(apart, y)]) == 1
    assert read_classes([APART, COMPOSED]).tolist() == [COMPOSED] * 2


def test_bounds_and_summaries():
    parts = [pd.DataFrame({COMPOSED: [1.0, 2.0]}), pd.DataFrame({APART: [3.0, 4.0]})]
    model = FederatedSummary(bounds={APART: (0, 5)}, epsilon=10.0, quantiles=()).fit(parts)
    assert list(model.feature_names_in_) == [COMPOSED]


def test_models_of_before_have_other_spellings():
    X = pd.DataFrame({COMPOSED: [1.0], "b": [2.0]})
    assert in_order(X, ("b", APART)).columns.tolist() == ["b", COMPOSED]
    table = read_boosting_table(pd.DataFrame({"t": [COMPOSED, "b"]}))
    assert table.coded([("b", APART)]).ravel().tolist() == [1, 0]
