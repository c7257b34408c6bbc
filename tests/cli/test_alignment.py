"""Sites whose rows overlap and are in different orders, on the command line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import SITES, columns, invoke, joining, refuse, serving

from fedlib import AlignedRows, VerticalDBSCAN

pytest.importorskip("uvicorn")

SERVE = ["serve", "vertical-dbscan", "--eps", "0.4", "--min-samples", "4", "--align"]
KEY = bytes(range(32))
JOIN = ["--ids", "id", "--key", "rows.key", "--protocol", "aligned/vertical-dbscan"]


@pytest.fixture
def tables(site):
    """Write the tables of three sites, each without some rows and in an order of its own."""
    parts = [
        part.sample(n, random_state=i)
        for i, (part, n) in enumerate(zip(columns(), (130, 125, 128), strict=True))
    ]
    for name, part in zip(SITES, parts, strict=True):
        part.to_csv(f"{name}.csv", index=False)
    Path("rows.key").write_bytes(KEY)
    return parts


def test_a_run_that_aligns(command, tables):
    """Equal to the run in process with the same key; rows outside of the overlap have no label."""
    server, url = serving(command, "--ledger-out", "ledger.csv", protocol=SERVE)
    assert "aligned/vertical-dbscan at" in server.output
    sites = [joining(command, url, name, *JOIN, "--n-jobs", "1") for name in SITES]
    for one in (*sites, server):
        one.ends()
    parts, ids = [part.drop(columns="id") for part in tables], [part["id"] for part in tables]
    here = AlignedRows(VerticalDBSCAN(0.4, 4)).fit(parts, ids=ids, key=KEY)
    common = set.intersection(*map(set, ids))
    for name, part, expected in zip(SITES, tables, here.labels_, strict=True):
        written = pd.read_csv(f"labels-{name}.csv", dtype={"id": str})
        assert written["id"].tolist() == part["id"].tolist()
        assert written["label"].notna().tolist() == part["id"].isin(common).tolist()
        np.testing.assert_array_equal(written["label"], expected.astype(float).filled(np.nan))
    ledger = here.ledger_.to_frame().to_csv(index=False, lineterminator="\n")
    assert Path("ledger.csv").read_text() == ledger


def test_a_site_without_identifiers_or_with_repeated_ones_makes_no_call(tables):
    arguments = ["join", "http://127.0.0.1:1", "--token-file", "tokens/0.token", "--data", "0.csv"]
    protocol = ["--protocol", "aligned/vertical-dbscan"]
    error = refuse(*arguments, *protocol, "--columns", "x", "--key", "rows.key")
    assert "ids are missing: alignment needs the identifier of every row" in error
    table = pd.read_csv("0.csv", dtype={"id": str})
    pd.concat([table, table[:3]]).to_csv("0.csv", index=False)
    error = refuse(*arguments, *protocol, "--ids", "id", "--key", "rows.key")
    assert "column 'id' must identify the rows, but 3 identifiers occur more than once" in error


def test_only_protocols_for_different_columns_have_the_option():
    assert "--align" in invoke("serve", "vertical-dbscan", "--help")
    assert "--align" not in invoke("serve", "kmeans", "--help")
    assert "aligned/NAME: A protocol for different columns" in invoke("protocols")
