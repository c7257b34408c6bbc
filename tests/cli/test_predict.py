"""``fedlib predict``: the same as `predict` of the saved estimator, or one line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import CASES, classes, fitted, invoke, refuse, rows

from fedlib import FederatedKMeans, FederatedPipeline, FederatedXGBClassifier, Schema
from fedlib.core.registry import protocols
from fedlib.sites import models

PREDICTING = [name for name in CASES if hasattr(protocols()[name], "predict")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the first site's rows; the test runs in it."""
    monkeypatch.chdir(tmp_path)
    rows()[0].assign(patient=[f"p{i}" for i in range(45)]).to_csv("rows.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("name", PREDICTING)
def test_labels_are_those_of_the_estimator(name, folder):
    estimator = fitted(name)
    models.save(estimator, "model.npz")
    invoke(
        "predict", "model.npz", "--data", "rows.csv", "--ids", "patient", "--labels-out", "o.csv"
    )
    table = pd.read_csv("o.csv", dtype=str)  # some versions of pandas err in the last bit
    assert table.columns.tolist() == ["patient", "label"]
    expected = estimator.predict(rows()[0])
    assert table["label"].to_numpy(str).astype(expected.dtype).tolist() == expected.tolist()
    np.save("rows.npy", rows()[0].to_numpy())
    invoke("predict", "model.npz", "--data", "rows.npy", "--labels-out", "o.npy")
    assert np.load("o.npy").tolist() == expected.tolist()


def test_probabilities_of_a_classifier(folder):
    estimator = fitted("xgboost")
    models.save(estimator, "model.json")
    classes()[1].to_csv("new.csv", index=False)
    arguments = ["--data", "new.csv", "--target", "kind", "--labels-out", "out.csv"]
    invoke("predict", "model.json", *arguments, "--probabilities")
    table = pd.read_csv("out.csv", dtype=str)  # some versions of pandas err in the last bit
    assert table.columns.tolist() == ["label", "probability_0", "probability_1"]
    expected = estimator.predict_proba(rows()[1])
    shares = table[["probability_0", "probability_1"]].to_numpy().astype(np.float64)
    assert shares.astype(expected.dtype).tobytes() == expected.tobytes()


def test_a_boosted_model_reads_the_columns_by_name(folder):
    estimator = fitted("xgboost")
    models.save(estimator, "model.json")
    table = classes()[1]
    features = list(estimator.feature_names_in_)
    table[["kind", *features[::-1]]].to_csv("new.csv", index=False)
    arguments = ["predict", "model.json", "--data", "new.csv", "--labels-out", "out.csv"]
    invoke(*arguments, "--target", "kind")
    assert pd.read_csv("out.csv")["label"].tolist() == estimator.predict(rows()[1]).tolist()
    assert "X must have the columns of the fit: 'kind' is additional" in refuse(*arguments)
    last = features[-1]
    error = refuse(*arguments, "--columns", ",".join(features[:-1]))
    assert f"X must have the columns of the fit: '{last}' is missing" in error


def test_probabilities_of_a_mixture(folder):
    estimator = fitted("gaussian-mixture")
    models.save(estimator, "model.npz")
    arguments = ["--data", "rows.csv", "--columns", "x,y", "--labels-out", "out.csv"]
    invoke("predict", "model.npz", *arguments, "--probabilities")
    names = ["label", *(f"probability_{i}" for i in range(3))]
    assert pd.read_csv("out.csv").columns.tolist() == names
    shares = np.loadtxt("out.csv", delimiter=",", skiprows=1)[:, 1:]  # reads every digit
    assert shares.tolist() == estimator.predict_proba(rows()[0]).tolist()


@pytest.mark.parametrize(
    ("name", "options", "message", "code"),
    [
        ("no.npz", "", "'no.npz' does not exist", 2),
        ("rows.csv", "", "rows.csv: not a model file", 1),
        ("kmeans", "--columns x", "rows.csv: ", 1),
        ("kmeans", "", "column 'patient' must contain finite numbers, got 'p0' in row 1", 1),
        ("kmeans", "--columns x,y --probabilities", "kmeans has no probabilities", 1),
        ("kmeans", "--columns x,y --probabilities --labels-out o.npy", "needs a .csv file", 2),
        ("kmeans", "--columns x,y --labels-out no/o.csv", "does not exist or cannot be", 2),
        ("vertical-dbscan", "--columns x,y", "vertical-dbscan has no predictions for new rows", 1),
    ],
)
def test_an_error_is_reported_in_one_line(name, options, message, code, folder):
    path = name
    if name in CASES:
        path = f"{name}.npz"
        models.save(fitted(name), path)
    arguments = ["predict", path, "--data", "rows.csv", "--labels-out", "out.csv"]
    assert message in refuse(*arguments, *options.split(), code=code)
    assert not Path("out.csv").exists()


def test_a_model_with_a_schema_reads_the_rows_by_it(folder):
    """Here, the file has other words for truth values and gaps, dates, and values outside."""
    fields = [
        {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 99}},
        {"name": "born", "type": "date", "format": "%d.%m.%Y"},
        {"name": "wet", "type": "boolean", "trueValues": ["ja"], "falseValues": ["nein"]},
        {"name": "town", "type": "string", "constraints": {"enum": ["x", "y"]}},
        {"name": "ill", "type": "boolean", "trueValues": ["T"], "falseValues": ["F"]},
        {"name": "id", "type": "string"},
    ]
    fields[0]["fedlib"], fields[3]["fedlib"] = {"outside": "clip"}, {"outside": "other"}
    fields[4]["fedlib"] = {"role": "target"}
    descriptor = {"fields": fields, "missingValues": ["", "-"], "primaryKey": "id"}
    schema = Schema({"schema": descriptor, "dialect": {"delimiter": ";"}})
    table = pd.DataFrame(
        {
            "id": [f"p{i}" for i in range(40)],
            "town": ["x", "y", "z", "-"] * 10,
            "wet": ["ja", "nein"] * 20,
            "born": ["31.12.1950", "01.02.2001"] * 20,
            "age": [150, 20, 50, 80] * 10,
            "ill": ["T", "F"] * 20,
        }
    )
    model = FederatedXGBClassifier(3, method="histogram", schema=schema).fit([table, table])
    models.save(model, "model.npz")
    table.drop(columns="ill").to_csv("new.csv", sep=";", index=False)
    arguments = ["predict", "model.npz", "--data", "new.csv", "--labels-out", "out.csv"]
    output = invoke(*arguments, "--probabilities")
    assert "column 'age': 10 numbers became the limits" in output
    written = pd.read_csv("out.csv")
    assert written["id"].tolist() == table["id"].tolist()
    assert written["label"].tolist() == model.predict(table).tolist() == [1.0, 0.0] * 20
    table.drop(columns="id").to_csv("new.csv", sep=";", index=False)
    invoke(*arguments)
    assert pd.read_csv("out.csv").columns.tolist() == ["label"]
    assert "new.csv: there is no column 'id'" in refuse(*arguments, "--ids=id")
    table.assign(id="p1").to_csv("new.csv", sep=";", index=False)
    assert "column 'id': 39 values repeat an earlier one" in refuse(*arguments)
    refused = refuse(*arguments, "--separator=,", "--target=sick", "--sample-weight=w", code=2)
    for part in (
        "target 'sick' (the schema has 'ill')",
        "'w' (the schema has no such",
        "delimiter",
    ):
        assert part in refused


@pytest.mark.parametrize("kind", ["classes", "clusters", "pipeline"])
def test_a_site_reads_new_rows_by_its_copy_of_the_schema(folder, kind):
    """Its files have semicolons, decimal commas and another encoding."""
    limits = {"minimum": -10, "maximum": 10}
    fields = [{"name": name, "type": "number", "constraints": limits} for name in ("crp", "größe")]
    fields.append({"name": "ill", "type": "integer", "fedlib": {"role": "target"}})
    content = {"schema": {"fields": fields}}
    Path("copy.json").write_text(
        json.dumps(
            {
                "encoding": "cp1252",
                "dialect": {"delimiter": ";"},
                "schema": {
                    "fields": [one | {"decimalChar": ","} for one in fields[:2]] + fields[2:]
                },
            }
        )
    )
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(80, 2)).round(3), columns=["crp", "größe"])
    rows["ill"] = (rows["crp"] > 0).astype(int)
    estimator = {
        "classes": FederatedXGBClassifier(3, schema=Schema(content)),
        "clusters": FederatedKMeans(2, random_state=0, schema=Schema(content)),
        "pipeline": FederatedPipeline(FederatedKMeans(2, random_state=0), schema=Schema(content)),
    }[kind]
    models.save(estimator.fit([rows[:40], rows[40:]]), "model.npz")
    new = rows[:20].drop(columns="ill")
    new.to_csv("new.csv", index=False)
    new.to_csv("neu.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    found = []
    for data, *options in (["new.csv"], ["neu.csv", "--schema", "copy.json"]):
        invoke("predict", "model.npz", "--data", data, "--labels-out", "out.csv", *options)
        found.append(pd.read_csv("out.csv")["label"].tolist())
    assert found[0] == found[1]
    assert len(set(found[0])) == 2
    arguments = ["predict", "model.npz", "--data", "neu.csv", "--labels-out", "out.csv"]
    assert "which --schema names" in refuse(*arguments, "--separator=;", code=2)
    Path("copy.json").write_text(json.dumps({"schema": {"fields": fields[:2]}}))
    assert "is no copy of the schema of the model" in refuse(*arguments, "--schema=copy.json")
    models.save(FederatedKMeans(2).fit([rows[["crp"]]]), "model.npz")
    assert "had no schema" in refuse(*arguments, "--schema=copy.json", code=2)


def test_a_schema_has_the_base_margins_of_new_rows(folder):
    fields = [{"name": name, "type": "number"} for name in "xy"]
    fields.append({"name": "kind", "type": "integer", "fedlib": {"role": "target"}})
    fields.append({"name": "start", "type": "number", "fedlib": {"role": "base_margin"}})
    schema = Schema({"schema": {"fields": fields}})
    parts = [part.assign(start=part["x"] - 2) for part in classes()]
    estimator = FederatedXGBClassifier(2, schema=schema).fit(parts)
    models.save(estimator, "model.json")
    parts[0].drop(columns="kind").to_csv("new.csv", index=False)
    arguments = ["predict", "model.json", "--data", "new.csv", "--labels-out", "out.csv"]
    invoke(*arguments)
    expected = estimator.predict(parts[0], base_margin=parts[0]["start"])
    assert pd.read_csv("out.csv")["label"].tolist() == expected.tolist()
    parts[0][["x", "y"]].to_csv("new.csv", index=False)
    assert "'start'" in refuse(*arguments)


def test_what_the_model_needs_and_the_file_lacks_is_a_warning(folder):
    """Base margins, and categories that the training did not have, by the name of the column."""
    table = rows()[0].assign(ward=["a", "b", "c"] * 15)
    y, starts = classes()[0]["kind"], table["x"] - 2
    model = FederatedXGBClassifier(2).fit([(table, y, None, None, starts)] * 2)
    models.save(model, "model.json")
    arguments = ["predict", "model.json", "--data", "new.csv", "--labels-out", "out.csv"]
    table.assign(start=starts).to_csv("new.csv", index=False)
    invoke(*arguments, "--base-margin", "start")
    table.assign(ward="q").to_csv("new.csv", index=False)
    with pytest.warns(UserWarning, match="feature|base_margin") as caught:
        invoke(*arguments)
    texts = [str(one.message) for one in caught]
    assert len(texts) == 2
    assert texts[0].startswith("feature 'ward' contains 'q', categories that the training did not")
    assert texts[1].startswith("the model was fitted with base_margin, which new rows need")
