"""Validation over sites on the command line."""

from pathlib import Path

import pytest
from cli_helpers import SITES, classes, invoke, refuse

from fedlib import FederatedPipeline, FederatedXGBClassifier, LeaveOneSiteOut
from fedlib.sites import models

pytest.importorskip("starlette")

NAME = "leave-one-site-out/pipeline/xgboost"
SERVE = ["serve", "xgboost", "--n-trees", "2", "--max-depth", "2", "--scale", "standard"]


def test_a_run_that_validates(command, site):
    """Equal to the run in process, with one ledger; the server prints a row per site."""
    for name, part in zip(SITES, classes(), strict=True):
        part.to_csv(f"{name}.csv", index=False)
    files = ["--model-out", "model.json", "--ledger-out", "ledger.csv"]
    options = ["--leave-one-site-out", "--n-bins", "20", "--bind", "127.0.0.1:0"]
    server = command(*SERVE, *options, "--tokens", "tokens/clients.json", *files)
    url = server.prints(r"at (https?://[^\s\"]+)")[1]
    assert f"{NAME} at" in server.output
    join = ["--target", "kind", "--protocol", NAME]
    sites = [
        command("join", url, "--data", f"{name}.csv", "--token-file", f"tokens/{name}.token", *join)
        for name in SITES
    ]
    for one in (*sites, server):
        one.ends()
    parts = {
        name: (part.drop(columns=["kind", *({"id"} & {*part})]), part["kind"].to_numpy())
        for name, part in zip(SITES, classes(), strict=True)
    }
    trees = FederatedXGBClassifier(2, max_depth=2)
    here = LeaveOneSiteOut(FederatedPipeline(trees, scale="standard"), n_bins=20).fit(parts)
    assert here.report() in server.output
    ledger = here.ledger_.to_frame().to_csv(index=False, lineterminator="\n")
    assert Path("ledger.csv").read_text() == ledger
    models.save(here, "here.json")
    assert Path("model.json").read_bytes() == Path("here.json").read_bytes()


def test_who_has_the_option():
    assert "--leave-one-site-out" in invoke("serve", "kmeans", "--help")
    assert "--leave-one-site-out" not in invoke("serve", "vertical-dbscan", "--help")
    assert "--leave-one-site-out" not in invoke("serve", "summary", "--help")
    assert "leave-one-site-out/NAME: Validation over sites" in invoke("protocols")


def test_what_a_validation_cannot_have(site):
    secure = ["--secure", "--bounds", "x=0:1,y=0:1", "--classes", "a,b", "--leave-one-site-out"]
    error = refuse(*SERVE[:2], *secure, "--clients", "3", code=2)
    assert "secure=True needs epsilon, because two folds have other members" in error
    arguments = ["join", "http://127.0.0.1:1", "--token-file", "tokens/0.token", "--data", "0.csv"]
    labels = ["--protocol", "leave-one-site-out/kmeans", "--labels-out", "labels.csv"]
    assert "gives the rows no labels: join without --labels-out" in refuse(*arguments, *labels)
