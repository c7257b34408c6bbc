"""Runs with a schema over HTTP: each site gives its own copy, and joins no run with another one."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import SITES, invoke, joining, labels, refuse, serving

from fedlib import FederatedKMeans, FederatedPipeline, FederatedXGBClassifier, Schema

pytest.importorskip("uvicorn")

AGE = {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 100}}
SEX = {"name": "sex", "type": "string", "constraints": {"enum": ["f", "m"]}}
FIELDS = [AGE | {"fedlib": {"fill": 50}}, SEX | {"fedlib": {"outside": "other"}}]
PROTOCOL = [
    "serve",
    "kmeans",
    "--n-clusters=2",
    "--method=lloyd",
    "--max-iter=3",
    "--init=init.npy",
]


def write_schema(path, **dialect):
    fields = [field | dialect.pop(field["name"], {}) for field in FIELDS]
    descriptor = {"name": "study", "schema": {"fields": fields}, **dialect}
    Path(path).write_text(json.dumps(descriptor))


@pytest.fixture
def study(site):
    """Files of three sites in forms of their own, and the schema of each."""
    np.save("init.npy", [[0.2, 0, 1, 0], [0.8, 1, 0, 0]])
    write_schema("schema.json")
    rng = np.random.default_rng(0)
    for name in SITES:
        frame = pd.DataFrame(
            {"sex": rng.choice(["f", "m", "x"], 40), "age": rng.uniform(1, 89, 40).round(1)}
        )
        frame.to_csv(f"{name}.csv", index=False)
        write_schema(f"{name}.json")
    first = SITES[0]  # with another separator and decimal commas
    pd.read_csv(f"{first}.csv").to_csv(f"{first}.csv", sep=";", decimal=",", index=False)
    write_schema(f"{first}.json", age={"decimalChar": ","}, dialect={"delimiter": ";"})
    return site


def test_a_noise_free_masked_run_on_files_of_several_forms(command, study):
    options = ["--secure", "--scale=minmax", "--encode=one_hot", "--schema", "schema.json"]
    server, url = serving(command, *options, protocol=PROTOCOL)
    sites = [
        joining(
            command, url, name, "--schema", f"{name}.json", "--secure-key", f"tokens/{name}.key"
        )
        for name in SITES
    ]
    for one in (*sites, server):
        one.ends()
    assert "column 'sex': " in sites[0].output  # the operator reads what has changed
    assert "became 'other'" not in server.output
    schema = Schema.read("schema.json")
    estimator = FederatedKMeans(
        2, method="lloyd", max_iter=3, init=np.load("init.npy"), secure=True
    )
    pipeline = FederatedPipeline(estimator, scale="minmax", encode="one_hot", schema=schema)
    parts = {
        name: pd.read_csv(f"{name}.csv", **({"sep": ";", "decimal": ","} if i == 0 else {}))
        for i, name in enumerate(SITES)
    }
    model = pipeline.fit(parts)
    for name, expected in zip(SITES, model.labels_, strict=True):
        assert labels(name).tolist() == expected.tolist()


def test_masked_boosting_on_files_with_text(command, study):
    """Codes of categories remain text at the sites; bounds and classes are those of the schema."""
    code = {"name": "code", "type": "integer", "constraints": {"enum": [1, 2, 3]}}
    ill = {"name": "ill", "type": "string", "constraints": {"enum": ["no", "yes"]}}
    fields = [*FIELDS, code, ill | {"fedlib": {"role": "target"}}]
    Path("schema.json").write_text(json.dumps({"name": "study", "schema": {"fields": fields}}))
    rng = np.random.default_rng(1)
    parts = {}
    for name in SITES:
        frame = pd.DataFrame({"age": rng.uniform(1, 89, 60).round(1), "code": rng.choice(4, 60)})
        frame["sex"] = rng.choice(["f", "m", "x"], 60)
        frame["ill"] = np.where((frame["code"] == 2) ^ (frame["sex"] == "x"), "yes", "no")
        frame.to_csv(f"{name}.csv", index=False)
        parts[name] = frame
    options = ["--method=histogram", "--secure", "--n-trees=2", "--max-depth=3", "--max-bin=8"]
    protocol = ["serve", "xgboost", *options]
    server, url = serving(command, "--schema", "schema.json", protocol=protocol)
    key = "tokens/{}.key".format
    sites = [
        joining(command, url, name, "--schema", "schema.json", "--secure-key", key(name))
        for name in SITES
    ]
    for one in (*sites, server):
        one.ends()
    model = FederatedXGBClassifier(
        2,
        method="histogram",
        secure=True,
        max_depth=3,
        max_bin=8,
        schema=Schema.read("schema.json"),
    ).fit(parts)
    assert model.model_.levels == (None, ("f", "m", "other"), ("1", "2", "3", "other"))
    for name, expected in zip(SITES, model.labels_, strict=True):
        assert model.classes_[labels(name)].tolist() == expected.tolist()


def test_a_site_with_another_schema_reads_the_differences(command, study):
    other = [AGE | {"constraints": {"minimum": 0, "maximum": 90}}, FIELDS[1]]
    Path("other.json").write_text(json.dumps({"name": "s", "schema": {"fields": other}}))
    options = ["--encode=one_hot", "--schema", "schema.json"]
    server, url = serving(command, *options, "--join-timeout=60", protocol=PROTOCOL)
    name = SITES[1]
    token = ["--token-file", f"tokens/{name}.token"]
    output = refuse("join", url, "--data", f"{name}.csv", "--schema", "other.json", *token)
    assert "the run has another schema" in output
    assert "column 'age': the maximum is 90 here and 100 there" in output
    output = refuse("join", url, "--data", f"{name}.csv", "--protocol", "pipeline/kmeans", *token)
    assert "join with --schema" in output
    checked = invoke(
        "doctor", url, "--data", f"{name}.csv", "--schema", "other.json", *token, code=1
    )
    assert "fix  schema: the run has another schema: column" in checked
    checked = invoke("doctor", url, "--data", f"{name}.csv", "--schema", "schema.json", *token)
    assert "ok   schema: the run has the same" in checked
    server.process.kill()


def test_a_site_with_a_schema_joins_no_run_without_one(command, study):
    server, url = serving(command, "--encode=one_hot", protocol=PROTOCOL)
    name = SITES[1]
    token = ["--token-file", f"tokens/{name}.token"]
    output = refuse("join", url, "--data", f"{name}.csv", "--schema", "schema.json", *token)
    assert "the run has no schema" in output
    server.process.kill()


def test_doctor_names_what_the_schema_does_not_accept(study):
    Path("bad.csv").write_text("age,sex\n41,f\nold,m\n999,f\n")
    given = ["--data", "bad.csv", "--schema", "schema.json"]
    output = invoke("doctor", "http://127.0.0.1:9", *given, code=1)
    assert "fix  data: column 'age': 1 cell is not of the column's type (row 2)" in output
    assert "fix  data: column 'age': 1 value is not accepted (row 3)" in output


def test_options_that_say_something_else_than_the_schema_are_refused(study):
    given = ["--data", f"{SITES[0]}.csv", "--schema", "schema.json"]
    given += ["--token-file", f"tokens/{SITES[0]}.token"]
    output = refuse("join", "http://127.0.0.1:9", *given, "--target=ill", "--text=sex", code=2)
    assert "target 'ill' (the schema has no such column), text (give the type string" in output
