"""The claims in words: their list, their verdicts, their pages, and the kept results."""

import importlib
import re
from pathlib import Path

import matplotlib as mpl
import nbformat
import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "M": "dbscan_conclusions",
    "K": "kmeans_conclusions",
    "P": "representatives_conclusions",
    "F": "fin_conclusions",
}


@pytest.fixture(scope="module")
def claims():
    """Return the notebooks' module, imported as they import it."""
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.claims.claims")


@pytest.fixture(scope="module")
def kept():
    """Return the kept tests of all claims."""
    return pd.read_csv(ROOT / "book/results/claims.csv", keep_default_na=False)


@pytest.mark.parametrize(
    ("agreeing", "runs", "universal", "status"),
    [
        (4, 4, False, "holds"),
        (4, 4, True, "holds"),
        (3, 4, False, "holds partly"),
        (2, 4, False, "holds partly"),
        (1, 4, False, "refuted"),
        (3, 4, True, "refuted"),
        (0, 1, False, "refuted"),
    ],
)
def test_the_share_of_runs_decides_unless_the_claim_is_universal(
    claims, agreeing, runs, universal, status
):
    assert claims.verdict(agreeing, runs, universal) == status


@pytest.mark.parametrize(("agreeing", "runs"), [(0, 0), (2, 1), (-1, 1)])
def test_a_verdict_needs_runs(claims, agreeing, runs):
    with pytest.raises(ValueError, match="agreeing must be between 0 and runs"):
        claims.verdict(agreeing, runs)


@pytest.mark.parametrize(
    ("limit", "agreeing"),
    [
        ("above 0.5", [False, False, True]),
        ("at least 0.5", [False, True, True]),
        ("below 0.5", [True, False, False]),
        ("at most 0.5", [True, True, False]),
        ("0.4 to 0.6", [False, True, False]),
        ("-1 to 0.2", [True, False, False]),
    ],
)
def test_limits(claims, limit, agreeing):
    assert claims.agrees([0.1, 0.5, 0.9], limit).tolist() == agreeing


def test_a_limit_of_another_form_and_a_missing_value_are_errors(claims):
    with pytest.raises(ValueError, match="limit must be"):
        claims.agrees([0.1], "about 0.5 maybe")
    with pytest.raises(ValueError, match="1 that are missing"):
        claims.agrees([0.1, np.nan], "above 0")


def test_the_counterexample_is_the_run_farthest_from_the_claim(claims):
    index = pd.MultiIndex.from_tuples(
        [("regular", 2), ("regular", 20), ("arbitrary", 20)], names=["split", "n_clients"]
    )
    values = pd.Series([0.95, 0.89, 0.5], index)
    universal = claims.judge(values, "above 0.9", "P", 32, "d", "PPDBDC", "set 1")
    assert universal["status"] == "refuted"
    assert (universal["agreeing"], universal["runs"]) == (1, 3)
    assert universal["counterexample"] == "arbitrary, 20 clients: 0.5"
    assert (universal["low"], universal["measured"], universal["high"]) == (0.5, 0.89, 0.95)
    general = claims.judge(values[:2], "above 0.9", "P", 1)
    assert general["status"] == "holds partly"
    assert claims.judge(values[:1], "above 0.9", "P", 32)["counterexample"] == ""


def test_tests_of_one_claim_are_combined_and_printed_numbers_are_not(claims):
    rows = pd.DataFrame(
        [
            claims.judge([0.95, 0.97], "above 0.9", "P", 32, method="A"),
            claims.judge([0.95, 0.4], "above 0.9", "P", 32, method="B", condition="set 2"),
            claims.judge([0.1], "above 0.9", "P", 32, method="C", printed=True),
            claims.judge([1.0], "above 0", "P", 4),
        ]
    )
    combined = claims.combine(rows).set_index("claim")
    assert combined.loc["P32", ["agreeing", "runs", "status"]].tolist() == [3, 4, "refuted"]
    assert combined.loc["P32", "counterexample"] == "B, set 2, 0.4"
    assert combined.loc["P4", "status"] == "holds"
    assert list(combined.index) == ["P4", "P32"]
    by_method = claims.combine(rows, ["method"]).set_index(["claim", "method"])["status"]
    assert by_method["P32", "A"] == "holds"
    assert claims.combine(rows, printed=True)["counterexample"].tolist() == ["C, 0.1"]


def test_claims_are_numbered_from_one(claims):
    for source, rows in claims.listed().groupby("source"):
        assert source in PAGES
        assert rows["number"].tolist() == list(range(1, len(rows) + 1))
        assert rows["text"].is_unique


@pytest.mark.parametrize("source", PAGES)
def test_the_page_states_every_claim_once_with_its_place(claims, source):
    notebook = nbformat.read(ROOT / f"notebooks/{PAGES[source]}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.findall(rf"^\({source.lower()}-claim-(\d+)\)=\n(.*)", text, re.MULTILINE)
    listed = claims.listed(source=source)
    assert sorted(int(number) for number, _ in found) == listed["number"].tolist()
    places = listed.set_index("number")["place"]
    for number, line in found:
        if source != "M":  # its claims are headings
            assert line.startswith(f"**{source}{number}** ({places[int(number)]}). ")
            universal = listed.set_index("number")["universal"][int(number)]
            assert ("Universal." in line) == universal, line


def test_every_claim_has_kept_tests(claims, kept):
    assert claims.are_tests(kept).all()
    found = set(zip(kept["source"], claims.numbers(kept), strict=True))
    listed = claims.listed()
    assert found == set(zip(listed["source"], listed["number"], strict=True))


def test_kept_verdicts_follow_from_the_kept_numbers_of_runs(claims, kept):
    universal = claims.listed().set_index(["source", "text"])["universal"]
    for row in kept.itertuples():
        of_all = universal[row.source, row.metric]
        assert row.status == claims.verdict(row.agreeing, row.runs, of_all)
        assert bool(row.counterexample) == (row.status != "holds")


def test_kept_tests_name_their_data_and_versions(kept):
    assert kept["versions"].ne("").all()
    measured = kept["run"].ne("printed") & kept["dataset"].ne("")
    assert kept.loc[measured, "sha256"].str.fullmatch("[0-9a-f]{64}").all()


def test_kept_numbers_have_the_statuses_of_numbers_and_their_origin(claims):
    kept = pd.read_csv(ROOT / "book/results/fidelity.csv", keep_default_na=False)
    assert not claims.are_tests(kept).any()
    assert set(kept["status"]) <= {"exact", "within", "misprint", "differs"}
    assert kept["versions"].ne("").all()
    assert kept["sha256"].str.fullmatch("[0-9a-f]{64}").all()


def test_tests_of_a_source_are_rows_of_judge(claims):
    tests = claims.Tests("K")
    tests.add(1, [0.1], "0 to 1", "2d", note="by hand")
    assert tests == [claims.judge([0.1], "0 to 1", "K", 1, "2d", note="by hand")]


def test_numbers_and_tests_of_claims_are_separated(claims):
    study = importlib.import_module("study")
    numbers = study.published().iloc[[5, 2]].assign(runs=1)
    test = pd.DataFrame([claims.judge([0.1], "0 to 1", "K", 1)])
    of_numbers, of_claims = claims.separate(pd.concat([numbers, test]))
    order = study.published()[study.KEY].iloc[[2, 5]].to_numpy().tolist()
    assert of_numbers[study.KEY].to_numpy().tolist() == order
    assert "runs" not in of_numbers
    assert of_claims["table"].tolist() == [test["table"].item()]


def test_numbers_are_counted_once(claims):
    counts = importlib.import_module("study.claims.counts")
    rows = [
        ("M1", "vertical", "", "exact", ""),
        ("M1", "passive 10%", "I", "exact", "found by search over subsets"),
        ("M1", "passive 10%", "mean", "exact", "of the measured runs"),
        ("M1", "data sets", "", "exact", ""),
        ("F", "3.3", "", "within", "below the central 95 % by itself; its row is plausible"),
        ("F", "3.3", "", "within", ""),
        ("F", "5.2", "", "differs", ""),
    ]
    frame = pd.DataFrame(rows, columns=["source", "table", "run", "status", "note"])
    found = counts.of_numbers(frame)
    assert (found["published"], found["results"], found["of data"]) == (7, 5, 2)
    assert (found["predicted"], found["searched"], found["summaries"]) == (1, 1, 1)
    assert (found["within"], found["by row"], found["differs"]) == (2, 1, 0)


def test_the_counts_of_the_last_run_add_up(claims):
    study = importlib.import_module("study")
    counts = importlib.import_module("study.claims.counts")
    found = counts.kept()
    assert found["published"] == len(study.published()) == found["results"] + found["of data"]
    assert found["results"] == sum(found[status] for status in counts.STATUSES)
    assert found["claims"] == len(claims.listed())
