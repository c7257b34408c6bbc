"""The app's template on a grid in this process."""

import importlib
import json
import logging
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from all_protocols import fitted, frozen
from flower_helpers import SITES, model, states
from flwr.app import Context, RecordDict
from flwr.supercore.run import Run

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    HorizontalDBSCAN,
    Schema,
    VerticalDBSCAN,
    datasets,
)
from fedlib.core.protocol import TooFewClients
from fedlib.datasets.partition import split_rows
from fedlib.protection.secure import simulated_identities
from fedlib.sites import models
from fedlib.transports.flower import LocalFlowerGrid
from fedlib.transports.flower_app import TEMPLATE, new


def test_the_app_has_no_dependencies():
    """A package index would deliver another project under the name fedlib."""
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Return the app's two modules and its run's configuration."""
    monkeypatch.syspath_prepend(new(tmp_path / "app"))
    client, server = (
        importlib.import_module(f"fedlib_app.{name}_app") for name in ("client", "server")
    )
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    yield client.app, server.app, config["config"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedlib_app"]:
        del sys.modules[name]


def serve(app, grid):
    """Run the app's server on a grid."""
    app[1](grid, Context(1, 0, {}, RecordDict(), grid.run_config))


def test_the_app_runs_the_protocol_that_its_configuration_names(app, tmp_path, capsys):
    changes = {
        "protocol": "vertical-dbscan",
        "parameters": "eps = 0.3, min_samples = 5",
        "split": "columns",
        "n-clients": 2,
        "output": str(tmp_path / "output"),
    }
    grid = LocalFlowerGrid(app[0], 2, app[2] | changes)
    for node, config in grid.node_configs.items():
        config |= {"labels": str(tmp_path / f"{node}.csv"), "demo": True}
    serve(app, grid)
    X = datasets.load("moons").X
    here = VerticalDBSCAN(eps=0.3, min_samples=5).fit([X[:, :1], X[:, 1:]])
    there = models.load(tmp_path / "output" / "model.npz")
    assert frozen(there.labels_) == frozen(here.labels_)
    for node in grid.node_configs:
        kept = pd.read_csv(tmp_path / f"{node}.csv")["label"]
        assert kept.tolist() == here.labels_.tolist()
    assert "3 exchanges in" in capsys.readouterr().out


def test_the_app_refuses_an_unknown_protocol(app):
    grid = LocalFlowerGrid(app[0], 3, app[2] | {"protocol": "kmean"})
    with pytest.raises(ValueError, match="protocol must be one of .*kmeans.*; got 'kmean'"):
        serve(app, grid)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ("cel_size = 1.0, min_samples = 2", "has no parameter cel_size; it has cell_size, min_"),
        ("min_samples = 2", "horizontal-dbscan needs the parameter cell_size"),
        ("cell_size = 1.0 min_samples", "parameters must be like .*, got 'cell_size = 1.0 min"),
        ("cell_size = -1.0, min_samples = 2", "'cell_size' parameter of HorizontalDBSCAN must be"),
    ],
)
def test_a_mistake_in_the_parameters_is_one_line_in_the_log(app, parameters, error):
    """Flower logs the exception that ends its ServerApp, as here."""
    grid = LocalFlowerGrid(app[0], 3, app[2] | {"parameters": parameters})
    with pytest.raises(ValueError, match=error) as raised:
        serve(app, grid)
    flower, records = logging.getLogger("flwr"), []
    handler = logging.Handler()
    handler.emit = records.append
    flower.addHandler(handler)
    try:
        for one in (raised.value, KeyError("not a mistake of the user")):
            flower.error("%s raised an exception", "ServerApp", exc_info=one)
    finally:
        flower.removeHandler(handler)
    ours, other = records
    assert re.match(f"ServerApp raised an exception: .*{error}", ours.getMessage())
    assert ours.exc_info is None
    assert other.exc_info[0] is KeyError


def test_a_simulated_node_needs_no_configuration(app, tmp_path):
    """Flower's simulation gives each node the count of partitions, and nothing else."""
    grid = LocalFlowerGrid(app[0], 3, app[2] | {"output": str(tmp_path)})
    for config in grid.node_configs.values():
        config |= {"num-partitions": 3}
        assert set(config) == {"partition-id", "num-partitions"}
    serve(app, grid)
    data = datasets.load("moons")
    rows = split_rows(data.X, 3, data.y, random_state=0)
    here = HorizontalDBSCAN(cell_size=0.25, min_samples=5).fit([data.X[one] for one in rows])
    assert fitted(models.load(tmp_path / "model.npz")) == fitted(here)


@pytest.fixture
def sites(app, tmp_path):
    """Return a grid whose nodes have their rows in files."""
    changes = {"parameters": "cell_size = 1.0, min_samples = 2", "min-clients": 2}
    grid = LocalFlowerGrid(app[0], 3, app[2] | changes)
    for config, rows in zip(grid.node_configs.values(), SITES, strict=True):
        config["data"] = str(tmp_path / f"{config['partition-id']}.csv")
        pd.DataFrame(rows, columns=["x"]).to_csv(config["data"], index=False)
    return grid


def test_a_site_has_its_file_and_agrees_to_one_protocol(app, sites, capsys):
    serve(app, sites)
    assert frozen([state.labels for state in states(sites)]) == frozen(model().fit(SITES).labels_)
    sites.node_configs[1001]["protocol"] = "kmeans"  # the only one to which this site agrees
    serve(app, sites)
    assert "client 1 was lost: ValueError at CountCells, step 1" in capsys.readouterr().out


def test_a_site_has_rules_and_a_ledger(app, sites, tmp_path, capsys):
    """The node's rules decline the protocol; its file has its part of the run's ledger."""
    (tmp_path / "policy.toml").write_text("[protocols.kmeans]\n")
    sites.node_configs[1001] |= {
        "policy": str(tmp_path / "policy.toml"),
        "ledger": str(tmp_path / "site.csv"),
    }
    serve(app, sites)
    table = pd.read_csv(tmp_path / "site.csv")
    assert table["message"].tolist() == ["CountCells", "Declined", "AssignCells", "Done"]
    assert table["discloses"][1] == "the rule that forbids the reply (protocol)"
    assert set(table["sender"].astype(str)) == {"server", "1"}
    assert "the rule that forbids the reply (protocol)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ({"dta": "1.csv"}, "node-config must have only the keys .*; got dta"),
        ({"Passive": True}, "node-config must have only the keys .*; got Passive"),
        ({"data": None}, "got data=None, demo=False"),
        ({"data": None, "dta": "1.csv"}, "node-config must have only the keys .*; got dta"),
        ({"demo": True}, "must have either .* or demo=true; got data='"),
        ({"data": None, "demo": "true"}, "got data=None, demo='true'"),
    ],
)
def test_a_mistake_in_a_sites_configuration_is_an_error(app, sites, mistake, text, capsys, caplog):
    config = sites.node_configs[1001]
    del config["num-partitions"]  # which only a simulated node has
    changed = {name: value for name, value in (config | mistake).items() if value is not None}
    config.clear()
    config |= changed
    serve(app, sites)
    assert "client 1 was lost: ValueError at CountCells, step 1" in capsys.readouterr().out
    assert re.search(text, caplog.text)


def test_sites_with_keys_run_secure_sums(app, sites, tmp_path, caplog):
    """A second session of the run is refused. Then a site gets the key of another one."""
    identities = simulated_identities(["0", "1", "2"])
    public = {name: key.hex() for name, key in identities["0"].public_keys.items()}
    (tmp_path / "keys.json").write_text(json.dumps(public))
    for name, config in zip(identities, sites.node_configs.values(), strict=True):
        config["secure-key"] = str(tmp_path / f"{name}.key")
        Path(config["secure-key"]).write_text(identities[name].private.hex())
    bounds = "secure = true, bounds = [[0.0], [10.0]]"
    sites.run_config["parameters"] += f", {bounds}"
    serve(app, sites)
    assert frozen([state.labels for state in states(sites)]) == frozen(model().fit(SITES).labels_)
    with pytest.raises(TooFewClients, match="RepeatedStep at AdvertiseKeys"):
        serve(app, sites)  # another session of the same run would use the identifiers again
    sites.set_run(Run.create_empty(run_id=2))
    sites.node_configs[1001]["secure-key"] = sites.node_configs[1000]["secure-key"]
    with pytest.raises(TooFewClients, match="2 clients remain in a secure sum, at least 3"):
        serve(app, sites)
    assert "the key is that of '0', but this is '1'" in caplog.text


def test_sites_read_their_files_by_a_schema(app, tmp_path):
    """Each site has the columns in another order, and one has a further category."""
    fields = [
        {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 100}},
        {"name": "sex", "type": "string", "constraints": {"enum": ["f", "m"]}},
    ]
    fields[1]["fedlib"] = {"outside": "other"}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"name": "study", "schema": {"fields": fields}}))
    tables = [
        pd.DataFrame({"age": [1.0, 2.0, 80.0], "sex": ["f", "m", "f"]}),
        pd.DataFrame({"sex": ["m", "?", "m"], "age": [90.0, 3.0, 88.0]}),
    ]
    parameters = "n_clusters = 2, method = 'one_shot', random_state = 0, encode = 'one_hot'"
    parameters += f", schema = '{path}'"
    changes = {"protocol": "pipeline/kmeans", "parameters": parameters, "n-clients": 2}
    schema = Schema.read(path)
    changes |= {"output": str(tmp_path / "output"), "schema-digest": schema.digest}
    grid = LocalFlowerGrid(app[0], 2, app[2] | changes)
    for i, config in enumerate(grid.node_configs.values()):
        tables[i].to_csv(tmp_path / f"{i}.csv", index=False)
        config |= {"data": str(tmp_path / f"{i}.csv"), "schema": str(path)}
        config |= {"labels": str(tmp_path / f"{i}-labels.csv")}
    serve(app, grid)
    estimator = FederatedKMeans(2, method="one_shot", random_state=0)
    here = FederatedPipeline(estimator, encode="one_hot", schema=schema).fit(tables)
    for i, labels in enumerate(here.labels_):
        found = pd.read_csv(tmp_path / f"{i}-labels.csv")["label"]
        assert found.tolist() == labels.tolist()
    other = json.loads(path.read_text())
    other["schema"]["fields"][0]["constraints"]["maximum"] = 90
    path.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="schema-digest must be that of the schema"):
        serve(app, grid)


def test_a_site_with_another_schema_takes_no_part(app, tmp_path):
    field = {"name": "age", "type": "number"}
    (tmp_path / "schema.json").write_text(json.dumps({"schema": {"fields": [field]}}))
    (tmp_path / "0.csv").write_text("age\n1\n")
    config = {"partition-id": 0, "data": str(tmp_path / "0.csv")}
    for more, run, text in (
        ({"schema": str(tmp_path / "schema.json")}, {}, "the run has no schema, and this site"),
        ({}, {"schema-digest": "0123"}, "the run has the schema 0123, and this site none"),
    ):
        context = Context(1, 0, config | more, RecordDict(), app[2] | run)
        with pytest.raises(ValueError, match=text):
            sys.modules["fedlib_app.client_app"].read(context)


def test_the_log_of_a_site_names_what_differs_in_its_schema(app, tmp_path, caplog):
    """The server learns the type of the error only."""
    paths = [tmp_path / f"{i}.json" for i in range(3)]
    for path, high in zip(paths, (9, 9, 10), strict=True):
        field = {"name": "age", "type": "number", "constraints": {"maximum": high}}
        path.write_text(json.dumps({"schema": {"fields": [field]}}))
        path.with_suffix(".csv").write_text("age\n1\n2\n8\n9\n")
    schema = Schema.read(paths[0])
    parameters = f"n_clusters = 1, random_state = 0, schema = '{paths[0]}'"
    changes = {"protocol": "kmeans", "parameters": parameters, "n-clients": 3, "min-clients": 2}
    changes |= {"output": "", "schema-digest": schema.digest}
    grid = LocalFlowerGrid(app[0], 3, app[2] | changes)
    for path, config in zip(paths, grid.node_configs.values(), strict=True):
        config |= {"data": str(path.with_suffix(".csv")), "schema": str(path)}
    serve(app, grid)
    assert "column 'age': the maximum is 10 here and 9 there" in caplog.text


def test_a_sites_secret_is_read_from_its_file(app, tmp_path):
    """Vertical DBSCAN with identifiers, which the sites hash with a shared key."""
    X, ids = np.array([[0.1, 0.2], [0.3, 0.1], [9.0, 5.0]]), ["a", "b", "c"]
    changes = {"protocol": "vertical-dbscan", "parameters": "eps = 1.0, min_samples = 2"}
    changes |= {"n-clients": 2, "output": str(tmp_path / "output")}
    grid = LocalFlowerGrid(app[0], 2, app[2] | changes)
    key = tmp_path / "rows.key"
    key.write_bytes(bytes(range(32)))
    for column, config in enumerate(grid.node_configs.values()):
        frame = pd.DataFrame({"patient": ids, "x": X[:, column]})
        frame.to_csv(tmp_path / f"{column}.csv", index=False)
        config |= {"data": str(tmp_path / f"{column}.csv"), "ids": "patient"}
        config |= {"client-n-jobs": 1, "client-key": str(key)}
    serve(app, grid)
    here = VerticalDBSCAN(eps=1.0, min_samples=2).fit([X[:, :1], X[:, 1:]], ids=[ids, ids])
    there = models.load(tmp_path / "output" / "model.npz")
    assert frozen(there.labels_) == frozen(here.labels_)
    other = tmp_path / "other.key"
    other.write_bytes(bytes(32))
    grid.node_configs[1001]["client-key"] = str(other)
    with pytest.raises(ValueError, match="clients disagree on the rows' identifiers"):
        serve(app, grid)
