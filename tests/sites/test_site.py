"""A site's client, made from a protocol's name, a table and options."""

import subprocess
import sys
from importlib import import_module

import numpy as np
import pandas as pd
import pytest

from fedlib import HorizontalDBSCAN
from fedlib.core.registry import CLIENTS, find_estimator, protocols
from fedlib.sites.site import argument_types, client_arguments, make_client
from fedlib.tables.files import Table

X = np.array([[0.1, 0.2], [0.3, 0.1]])


@pytest.mark.parametrize("protocol", protocols())
def test_the_estimator_is_the_one_that_protocols_returns(protocol):
    assert find_estimator(protocol) is protocols()[protocol]


def test_a_site_starts_without_what_its_first_reply_may_not_need():
    """scikit-learn and SciPy import their parts when they are used; these take most of a second."""
    program = (
        "import sys; from fedlib.core.registry import protocols; from fedlib.sites import site;"
        " print(len(protocols()), *sys.modules)"
    )
    run = [sys.executable, "-c", program]
    n_protocols, *modules = subprocess.run(
        run, capture_output=True, text=True, check=True
    ).stdout.split()
    of_package = [one for one in protocols().values() if one.__module__.startswith("fedlib.")]
    assert int(n_protocols) == len(of_package)  # tests may have defined more in this process
    unused = {"sklearn.cluster", "sklearn.mixture", "sklearn.neighbors", "scipy.signal"}
    assert unused & set(modules) == set()


@pytest.mark.parametrize(
    ("protocol", "request_text"),
    [
        ("xgboost", "DescribeTraining(0.3)"),
        ("xgb-regressor", "DescribeTargets(0.3, objective='reg:squarederror', parameter=1.0)"),
    ],
)
def test_boosting_at_a_site_needs_no_scikit_learn_until_its_first_reply(
    protocol, request_text, tmp_path
):
    """The import of scikit-learn would be half of the processor time until then."""
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{i / 7},{i % 2}\n" for i in range(20)))
    program = f"""
import sys
import fedlib.cli.join, fedlib.transports.http.client
from fedlib.core.messages import decode, encode
from fedlib.core.protocol import serve
from fedlib.sites.site import make_client
from fedlib.tables.files import read_table
table = read_table({str(path)!r}, target="y")
client = make_client({protocol!r}, table)
from fedlib.boosting.descriptions import DescribeTargets, DescribeTraining
assert decode(serve(client, encode({request_text}), print)).n_rows == 20
print(*sys.modules)
"""
    run = [sys.executable, "-c", program]
    modules = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert "fedlib.boosting.client" in modules
    assert {"sklearn", "scipy.sparse", "scipy.stats", "joblib"} & set(modules) == set()


@pytest.mark.parametrize("protocol", CLIENTS)
def test_the_listed_clients_are_those_of_the_estimators(protocol):
    module, name = CLIENTS[protocol]
    assert getattr(import_module(module), name) is protocols()[protocol].client_class


def test_a_subclass_of_the_same_name_is_found():
    class Other(HorizontalDBSCAN):
        """A copy."""

        name = "horizontal-dbscan"

    try:
        assert find_estimator("horizontal-dbscan") is protocols()["horizontal-dbscan"] is Other
    finally:
        Other.name = "another-for-test"


@pytest.mark.parametrize("protocol", protocols())
def test_every_argument_has_types(protocol):
    estimator = protocols()[protocol]
    client = estimator.client_class
    assert argument_types(client).keys() == client_arguments(client).keys()


def test_secrets_are_read_from_files(tmp_path):
    key = tmp_path / "rows.key"
    key.write_bytes(bytes(range(32)))
    table = Table(X, ids=pd.Series(["a", "b"], name="patient"))
    client = make_client("vertical-dbscan", table, {"key": str(key), "n_jobs": 1})
    expected = protocols()["vertical-dbscan"].client_class(X, ["a", "b"], bytes(range(32)))
    assert client.digest == expected.digest != ""
    with pytest.raises(ValueError, match="key must be a file that can be read"):
        make_client("vertical-dbscan", table, {"key": str(tmp_path / "none")})
    with pytest.raises(ValueError, match="key must be a file that can be read"):
        make_client("vertical-dbscan", table, {"key": 7})


def test_classes_and_weights_are_part_of_the_data():
    table = Table(X, np.array([0, 1]), np.array([1.0, 2.0]))
    assert type(make_client("xgboost", table)) is protocols()["xgboost"].client_class
    with pytest.raises(ValueError, match="xgboost needs a class or label per row: name the column"):
        make_client("xgboost", Table(X))


@pytest.mark.parametrize(
    ("protocol", "options", "message"),
    [
        ("kmeans", {"agreed": "dbdc"}, "the server runs 'kmeans'; this site agrees to 'dbdc' only"),
        ("dbscan", {}, "the protocol 'dbscan' is unknown here; known are .*dbdc,"),
        ("kmeans", {"options": {"a": 1, "b": 2}}, "a client of kmeans has no option a, b"),
    ],
)
def test_other_clients_are_refused(protocol, options, message):
    with pytest.raises(ValueError, match=message):
        make_client(protocol, Table(X), **options)


def test_a_passive_client():
    assert make_client("kmeans", Table(X), agreed="kmeans", passive=True).passive
    assert not make_client("kmeans", Table(X)).passive


def test_rows_for_validation():
    table = Table(pd.DataFrame(X), np.array([0, 1]))
    client = make_client("xgboost", table, eval_table=table)
    assert (client.n_training, len(client.X)) == (2, 4)
    with pytest.raises(ValueError, match="kmeans takes no rows for validation"):
        make_client("kmeans", table, eval_table=table)
