"""Differential privacy on the command line and over HTTP, with the budget of a site."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import SITES, invoke, joining, refuse, serving

from fedlib.core.site_memory import TableMemory
from fedlib.protection.policy import Policy

pytest.importorskip("uvicorn")
pytest.importorskip("opendp")

BOUNDS = [[-2.0, -2.0], [7.0, 7.0]]
PRIVATE = ["serve", "horizontal-dbscan", "--cell-size=1", "--min-samples=4", "--delta=1e-6"]
BUDGET = "budget = { epsilon = 1.2, delta = 1e-6 }\n"  # enough for one run, not for two


def run(command, ledger, *, code=0):
    """Run with noise until all programs end, site 0 with an exit status.

    Return the outputs of site 0 and of the server, and the server's ledger.
    """
    options = ["--epsilon=1", "--bounds", "bounds.npy", "--min-clients=2"]
    server, url = serving(command, *options, "--ledger-out", ledger, protocol=PRIVATE)
    sites = [joining(command, url, name, "--policy", f"{name}.toml") for name in SITES]
    outputs = [sites[0].ends(code), *(one.ends() for one in (*sites[1:], server))]
    return outputs[0], outputs[-1], pd.read_csv(ledger)


def test_a_site_with_a_budget_declines_the_run_that_exceeds_it(command, site, monkeypatch):
    """One run costs epsilon 1, and two cost 1.45. The others have no budget and go on alone."""
    np.save("bounds.npy", BOUNDS)
    for name in SITES:
        Path(f"{name}.toml").write_text(BUDGET if name == "0" else "min_clients = 2\n")
    _, _, ledger = run(command, "first.csv")
    requests = ledger[ledger["message"] == "CountWithNoise"]
    assert len(requests) == 3
    assert requests["discloses"].str.contains(r"the reply has rho=0\.02\d+ \(zCDP\)").all()
    monkeypatch.setenv("FEDLIB_STATE", "state")
    budget = Policy.read("0.toml").budget.of(TableMemory.of_file(Path("0.csv")))
    (charge,) = budget.charges
    assert (charge.protocol, charge.request) == ("horizontal-dbscan", "CountWithNoise")
    assert f"rho={charge.rho:.6g} (zCDP)" in requests["discloses"].iloc[0]
    assert 0.99 < budget.spent <= 1
    assert "charges: 1, with epsilon=0 and rho=0.02" in invoke("memory", "0.csv")

    site_output, server_output, ledger = run(command, "second.csv", code=1)
    assert "declined CountWithNoise: CountWithNoise with rho=0.02" in site_output
    assert "the budget is 1.2 with delta=1e-06 (budget)" in site_output
    assert "client '0' declined CountWithNoise (budget)" in server_output
    counts = ledger[ledger["message"] == "NoisyCounts"]
    assert counts["sender"].astype(str).tolist() == ["1", "2"]
    assert budget.charges == [charge]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["--epsilon=0"],
            "The 'epsilon' parameter of HorizontalDBSCAN must be a float in the range",
        ),
        (["--epsilon=1e7"], "epsilon must be a positive number up to 1e+06, got 10000000.0"),
        (["--epsilon=1", "--delta=1"], "must be a float in the range [0.0, 1.0). Got 1.0 instead."),
    ],
)
def test_a_mistyped_guarantee_is_one_line(site, options, error):
    np.save("bounds.npy", BOUNDS)
    given = ["--bounds", "bounds.npy", "--tokens", "tokens/clients.json", *options]
    assert error in refuse(*PRIVATE, *given, code=2)
