"""Raw tables on the command line: serve, join and predict with text and gaps."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import HORIZONTAL, SITES, invoke, joining, refuse, rows, serving

from fedlib import FederatedPipeline, FederatedSummary, HorizontalDBSCAN
from fedlib.sites import models

pytest.importorskip("starlette")

RULES = ["--scale", "standard", "--impute", "median", "--encode", "one_hot"]
NAME = "pipeline/horizontal-dbscan"


def tables():
    """Return the rows of three sites with a gap, and with a column of text."""
    parts = [part.assign(sex=["m", "f", ""] * 15) for part in rows()]
    parts[1].loc[parts[1].index[3], "x"] = np.nan
    return parts


@pytest.fixture
def raw_site(site):
    """Write the raw tables of three sites."""
    for name, part in zip(SITES, tables(), strict=True):
        part.to_csv(f"{name}.csv", index=False)
    return site


def test_a_run_that_preprocesses(command, raw_site):
    """Equal to the pipeline in process, with one ledger; the saved model predicts raw rows."""
    options = ["--model-out", "model.npz", "--ledger-out", "ledger.csv"]
    server, url = serving(command, *RULES, *options)
    assert f"{NAME} at" in server.output
    sites = [joining(command, url, name, "--protocol", NAME) for name in SITES]
    for one in (*sites, server):
        one.ends()
    here = FederatedPipeline(
        HorizontalDBSCAN(cell_size=0.5, min_samples=4),
        scale="standard",
        impute="median",
        encode="one_hot",
    ).fit([part.replace({"sex": {"": None}}) for part in tables()])
    for name, expected in zip(SITES, here.labels_, strict=True):
        assert pd.read_csv(f"labels-{name}.csv")["label"].tolist() == expected.tolist()
    ledger = here.ledger_.to_frame().to_csv(index=False, lineterminator="\n")
    assert Path("ledger.csv").read_text() == ledger
    models.save(here, "here.npz")
    assert Path("model.npz").read_bytes() == Path("here.npz").read_bytes()
    invoke("predict", "model.npz", "--data", "1.csv", "--labels-out", "new.csv")
    assert pd.read_csv("new.csv")["label"].tolist() == here.labels_[1].tolist()


def test_a_summary_of_raw_tables(command, raw_site):
    options = ["--categorical", "y", "--quantiles", "0.1,0.5", "--model-out", "summary.json"]
    arguments = ["serve", "summary", *options]
    server, url = serving(command, *arguments[2:], protocol=arguments[:2])
    sites = [
        command(
            "join",
            url,
            "--data",
            f"{name}.csv",
            "--token-file",
            f"tokens/{name}.token",
            "--protocol",
            "summary",
        )
        for name in SITES
    ]
    for one in (*sites, server):
        one.ends()
    parts = [part.replace({"sex": {"": None}}) for part in tables()]
    here = FederatedSummary(categorical=["y"], quantiles=[0.1, 0.5]).fit(parts).to_frame()
    pd.testing.assert_frame_equal(models.load("summary.json").to_frame(), here)
    table = server.output[server.output.index("content") :].splitlines()
    kinds = [line.split()[:2] for line in table[1:4]]
    assert kinds == [["x", "numbers"], ["y", "text"], ["sex", "text"]]


def test_a_site_names_the_pipeline_to_join_with_raw_rows(raw_site):
    arguments = ["join", "http://127.0.0.1:1", "--token-file", "tokens/0.token", "--data", "0.csv"]
    error = refuse(*arguments)
    assert "column 'sex' has no value in row 3; text and gaps need a run that preprocesses" in error
    assert "--protocol pipeline/NAME" in error
    error = refuse(*arguments, "--protocol", "pipeline/kmean", code=2)
    assert "aligned/ or leave-one-site-out/ and one of them; got 'pipeline/kmean'" in error


def test_the_rules_are_checked_before_the_server_listens(raw_site):
    arguments = [*HORIZONTAL, "--tokens", "tokens/clients.json", "--scale", "minmax"]
    assert "bounds of 'x' must be two" in refuse(*arguments, "--bounds", "x=2:1", code=2)
    assert "'ordinal' is not one of" in refuse(*arguments, "--encode", "ordinal", code=2)


def test_the_server_warns_of_scales_in_one_line(command, site):
    """The remedy is in the warning; the run goes on."""
    for name, part in zip(SITES, rows(), strict=True):
        part.assign(x=part["x"] / 100, y=part["y"] * 100).to_csv(f"{name}.csv", index=False)
    server, url = serving(command)
    for one in (*(joining(command, url, name) for name in SITES), server):
        one.ends()
    (line,) = (line for line in server.output.splitlines() if line.startswith("warning: "))
    assert line.startswith("warning: feature 'y' extends over ")
    assert line.endswith("for example with FederatedPipeline(..., scale='standard')")
