"""A site's rules, its ledger, and the inspection of replies, on the command line."""

import re
import tomllib
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from cli_helpers import PAGE, SITES, invoke, joining, labels, refuse, rows, serving
from click.testing import CliRunner

from fedlib import HorizontalDBSCAN
from fedlib.cli.inspect import as_text, review
from fedlib.clustering.density.horizontal import CellCounts, CountCells
from fedlib.protection.policy import Policy
from fedlib.protection.policy.rules import KINDS

pytest.importorskip("uvicorn")


def part_of(ledger, name):
    """Return the rows of a server's ledger that concern a site, as text."""
    table = pd.read_csv(ledger)
    mine = table[(table["sender"].astype(str) == name) | (table["receiver"].astype(str) == name)]
    return mine.to_csv(index=False, lineterminator="\n")


def test_sites_with_rules(command, site):
    """One site shares large cells only, one declines, one looks at its reply and sends it."""
    Path("0.toml").write_text("min_count = 2\nmin_clients = 3\n")
    Path("1.toml").write_text("[protocols.kmeans]\n")
    server, url = serving(command, "--ledger-out", "ledger.csv", "--min-clients", "2")
    first = joining(command, url, "0", "--policy", "0.toml", "--ledger-out", "site-0.csv")
    second = joining(command, url, "1", "--policy", "1.toml", "--ledger-out", "site-1.csv")
    arguments = ["--data", "2.csv", "--token-file", "tokens/2.token", "--labels-out"]
    output = invoke("inspect", url, *arguments, "labels-2.csv", "--confirm", input="y\n")
    for one in (first, second, server):
        one.ends()
    assert re.search(r"^CountCells, \d+ bytes: the cell size\n  cell_size 0.5\nCellC", output, re.M)
    assert "Send this reply? [y/N]" in output
    assert re.search(r"^warning: left \d+ of \d+ groups out of CellCounts", first.output, re.M)
    declined = "warning: declined CountCells: the protocol 'horizontal-dbscan' is not allowed"
    assert declined in second.output
    assert "warning: client '1' declined CountCells (protocol)" in server.output
    assert "the rule that forbids the reply (protocol)" in Path("ledger.csv").read_text()
    for name in SITES[:2]:
        assert Path(f"site-{name}.csv").read_text() == part_of("ledger.csv", name)
    parts = rows()
    cells = np.floor(parts[0] / 0.5)
    large = cells.groupby(["x", "y"])["x"].transform("size") >= 2
    shared = [parts[0][large], parts[2]]
    model = HorizontalDBSCAN(0.5, 4).fit(shared)
    assert labels("2").tolist() == model.labels_[1].tolist()
    assert labels("1").tolist() == model.predict(parts[1]).tolist()


@pytest.mark.parametrize(
    ("confirm", "answer", "sent"), [(True, "n\n", False), (True, "y\n", True), (False, "", True)]
)
def test_a_reply_is_sent_only_if_it_is_confirmed(confirm, answer, sent):
    request, reply = CountCells(1.0), CellCounts(np.zeros((1, 2), np.int64), np.array([3]))
    with CliRunner().isolation(input=answer):
        assert review(request, reply, confirm=confirm) is sent


def test_an_interrupt_at_the_question_ends_the_site(monkeypatch):
    """It is not an error of the site, so no failure is sent."""
    reply = CellCounts(np.zeros((1, 2), np.int64), np.array([3]))

    def interrupt(*_, **__):
        raise click.Abort

    monkeypatch.setattr("click.confirm", interrupt)
    with pytest.raises(KeyboardInterrupt):
        review(CountCells(1.0), reply, confirm=True)


def test_an_invalid_policy_stops_the_site_before_any_call(site, monkeypatch):
    monkeypatch.setattr("httpx.Client.request", None)
    Path("policy.toml").write_text("min_count = 'five'\n")
    arguments = ["join", "http://127.0.0.1:1", "--token-file", "tokens/0.token", "--data", "0.csv"]
    error = refuse(*arguments, "--policy", "policy.toml")
    assert error == ("Error: policy.toml: min_count must be an integer from 1 on; got 'five'")
    Path("policy.toml").write_text("[protocols.kmeans]\n")
    error = refuse(*arguments, "--policy", "policy.toml", "--protocol", "dbdc")
    assert error == "Error: the protocol dbdc is not allowed by the policy, only kmeans"


def test_a_site_that_never_joined_has_an_empty_ledger(site):
    arguments = ["join", "http://127.0.0.1:1", "--token-file", "tokens/0.token", "--data", "0.csv"]
    refuse(*arguments, "--patience", "0", "--ledger-out", "site.csv")
    assert len(pd.read_csv("site.csv")) == 0


def test_large_arrays_are_shortened():
    text = as_text(CellCounts(np.zeros((1000, 2), np.int64), np.ones(1000, np.int64)))
    assert "cells (1000, 2) int64" in text
    assert len(text.splitlines()) < 20


def test_the_page_has_a_valid_policy_with_every_rule():
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (text,) = [block for block in blocks if "min_count" in block]
    policy = Policy.from_dict(tomllib.loads(text))
    assert policy.protocols
    assert all(rule in text for rule in (*KINDS, "parameters", "in ="))
