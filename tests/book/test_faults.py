"""Every fault of every client in every exchange: the outcomes that the page of faults shows."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"  # so few rounds do not converge
)

PARTS = 8  # into which the protocols are divided, so that several processes can share the work
# In the first exchange, the outcome at these requests is "without": no random numbers are drawn for
# the clients in turn.
FIRST = {
    "CountCells",
    "BuildLocalModel",
    "ChooseRepresentatives",
    "DrawRepresentatives",
    "DescribeClusters",
    "FindCentres",
    "SummariseGroups",
    "DescribeTraining",
    "DescribeTargets",
    "DescribeColumns",
    "ReportMagnitude",
}
# These deliver a complete model: the outcome is "undisturbed".
LAST = {
    "AssignCells",
    "RelabelPoints",
    "AssignPoints",
    "AssignCentres",
    "AssignComponents",
    "KeepTrees",
}
# These compute everything again without the lost client.
AGAIN = {"FederatedSummary", "FederatedClusteringScore", "FederatedEvaluation"}


@pytest.fixture(scope="module")
def study():
    """Return the module, imported as the notebooks import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.measuring.fault_study")


def check(study, names, clients, faults):
    table = study.outcomes(names, clients, faults)
    assert len(table)
    for row in table.itertuples():
        if row.fault in study.HARMLESS:
            assert (row.outcome, row.error) == ("undisturbed", ""), row
            continue
        assert f"'{row.client}': " in row.error, row
        assert f" at {row.request}, step {row.step}" in row.error, row
        assert row.outcome in expected(study, row), row


def expected(study, row):
    """Return the outcomes that are right when a client is lost."""
    if row.protocol in study.NEED_ALL:
        return {"stops"}
    if row.protocol in study.SECURE and row.request not in LAST:
        return {"stops"}  # of three sites, all are needed for a sum
    if row.protocol in AGAIN or (row.step == 1 and row.request in FIRST):
        return {"without"}
    if row.request in LAST:
        return {"undisturbed"}
    return {"partly", "without", "undisturbed"}


@pytest.mark.parametrize("fault", ["timeout", "wrong class", "another number", "after leaving"])
def test_some_faults(study, fault):
    names = ["HorizontalDBSCAN", "VerticalDBSCAN", "SDBDC", "AlignedRows", *study.SECURE[:1]]
    names += ["FederatedKMeans, epsilon", "HorizontalDBSCAN, secure, epsilon"]
    check(study, [*names, "FederatedClusteringScore", "FederatedEvaluation"], ["B"], [fault])


@pytest.mark.liars
@pytest.mark.parametrize("client", "ABC")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault(study, part, client):
    check(study, list(study.PROTOCOLS)[part::PARTS], [client], list(study.FAULTS))


def test_clients_that_invent_data(study):
    """No check finds them, and one of them makes the result worthless."""
    damage = study.damage(["HorizontalDBSCAN", "VerticalDBSCAN", "DBDC", "SDBDC", "PPDBDC"])
    assert (damage["excluded"] == 0).all()
    assert (damage["honest"] > 0.5).all()
    assert (damage["invented"].abs() < 0.05).all()
