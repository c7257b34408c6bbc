"""Secure sums on the command line and over HTTP."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import (
    SITES,
    assert_labels_as_in_process,
    classes,
    flags,
    invoke,
    joining,
    labels,
    refuse,
    serving,
)

from fedlib import ApproximateDBSCAN, FederatedKMeans, FederatedXGBClassifier
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.core.in_process import InProcess
from fedlib.protection.secure import Identity

pytest.importorskip("uvicorn")

BOUNDS = [[-9.0, -9.0], [9.0, 9.0]]


def test_keys_are_secret_and_remain(site):
    before = json.loads(Path("tokens/keys.json").read_text())
    output = invoke("token", "north", "--dir", "tokens")
    after = json.loads(Path("tokens/keys.json").read_text())
    assert list(after) == [*SITES, "north"]
    assert {name: after[name] for name in SITES} == before
    private = Path("tokens/north.key").read_text().strip()
    assert private not in output + Path("tokens/keys.json").read_text()
    assert Path("tokens/north.key").stat().st_mode & 0o077 == 0
    identity = Identity.read("tokens/north.key")
    assert (identity.name, identity.private.hex()) == ("north", private)
    Path("tokens/keys.json").write_text("[]")
    assert "keys.json must contain the sites' public keys" in refuse("token", "south", code=2)


def test_a_secure_run_over_http(command, site):
    np.save("bounds.npy", BOUNDS)
    protocol = ["serve", "approximate-dbscan", "--eps=0.8", "--min-samples=4", "--rho=1.0"]
    options = ["--secure", "--bounds", "bounds.npy", "--ledger-out", "ledger.csv"]
    server, url = serving(command, *options, protocol=protocol)
    sites = [
        joining(command, url, name, "--secure-key", f"tokens/{name}.key", "--state-dir", name)
        for name in SITES
    ]
    for one in (*sites, server):
        one.ends()
    assert_labels_as_in_process(ApproximateDBSCAN(eps=0.8, min_samples=4, rho=1.0))
    assert not {"CellCounts", "GridCounts"} & set(pd.read_csv("ledger.csv")["message"])


def test_secure_boosting_over_http(command, site):
    """The classes and the bounds are options of the server."""
    for name, part in zip(SITES, classes(), strict=True):
        part.to_csv(f"{name}.csv", index=False)
    np.save("bounds.npy", BOUNDS)
    options = {"n_trees": 1, "max_depth": 1, "max_bin": 20, "method": "histogram"}
    given = ["--secure", "--classes", "0,1", "--bounds", "bounds.npy"]
    server, url = serving(command, *given, protocol=["serve", "xgboost", *flags(options)])
    keys = [["--secure-key", f"tokens/{name}.key", "--target", "kind"] for name in SITES]
    sites = [joining(command, url, name, *key) for name, key in zip(SITES, keys, strict=True)]
    for one in (*sites, server):
        one.ends()
    plain = FederatedXGBClassifier(**options, bounds=BOUNDS).fit(
        [(part[["x", "y"]], part["kind"]) for part in classes()]
    )
    for name, expected in zip(SITES, plain.labels_, strict=True):
        assert labels(name).tolist() == expected.tolist()


def test_a_site_without_keys_learns_at_once_that_the_run_has_secure_sums(command, site):
    np.save("bounds.npy", BOUNDS)
    protocol = ["serve", "approximate-dbscan", "--eps=0.8", "--min-samples=4", "--rho=1.0"]
    _, url = serving(command, "--secure", "--bounds", "bounds.npy", protocol=protocol)
    arguments = [url, "--data", "0.csv", "--token-file", "tokens/0.token"]
    text = "the run has secure sums: join with --secure-key NAME.key"
    assert text in refuse("join", *arguments)
    assert text in invoke("doctor", *arguments, code=1)


def test_a_run_ends_at_once_when_every_site_has_refused(command, site):
    np.save("bounds.npy", BOUNDS)
    options = ["--secure", "--bounds", "bounds.npy", "--join-timeout", "600"]
    protocol = ["serve", "horizontal-dbscan", "--cell-size=0.8", "--min-samples=4"]
    server, url = serving(command, *options, protocol=protocol)
    for name in SITES:
        refuse("join", url, "--data", f"{name}.csv", "--token-file", f"tokens/{name}.token")
    output = server.ends(1)
    assert "no client has joined in time" in output
    assert all(f"'{name}': NeverJoined_NoSecureKey at" in output for name in SITES)


def test_the_error_of_a_client_without_keys_names_them():
    transport = InProcess({name: FederatedKMeansClient(np.eye(2)) for name in "abc"})
    start = {"method": "lloyd", "init": [[0.0, 0.0]]}
    with pytest.raises(TypeError, match="the site needs its keys: join with --secure-key"):
        FederatedKMeans(1, **start, secure=True, bounds=[[0, 0], [1, 1]]).fit(transport)


def test_bad_keys_are_reported(site):
    arguments = ["join", "http://127.0.0.1:1", "--data", "0.csv", "--token-file", "tokens/0.token"]
    Path("wrong.key").write_text("no key")
    keys = ["--secure-key", "wrong.key", "--public-keys", "tokens/keys.json"]
    assert "wrong.key must contain a site's private key" in refuse(*arguments, *keys)
    assert "--public-keys needs --secure-key" in refuse(*arguments, *keys[2:], code=2)


def test_a_site_without_the_keys_of_a_masked_run_does_not_join(command, site):
    np.save("bounds.npy", BOUNDS)
    protocol = ["serve", "horizontal-dbscan", "--cell-size=0.8", "--min-samples=4"]
    server, url = serving(command, "--secure", "--bounds=bounds.npy", protocol=protocol)
    name = SITES[0]
    token = ["--data", f"{name}.csv", "--token-file", f"tokens/{name}.token"]
    assert "join with --secure-key NAME.key" in refuse("join", url, *token)
    known = json.loads(Path("tokens/keys.json").read_text())
    known.pop(SITES[2])
    Path("few.json").write_text(json.dumps(known))
    keys = ["--secure-key", f"tokens/{name}.key", "--public-keys", "few.json"]
    refused = refuse("join", url, *token, *keys)
    assert f"has {len(SITES) - 1} sites, and the run {len(SITES)}: get the file keys" in refused
    server.process.kill()
