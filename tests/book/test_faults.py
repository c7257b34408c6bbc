"""Every fault of every client in every exchange: the outcomes that the page of faults shows."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"  # so few rounds do not converge
)

# The outcome at each request that is not named here is "partly": the model keeps what the client
# had reported before.
FIRST = {
    "CountCells": "without",
    "BuildLocalModel": "without",
    "ChooseRepresentatives": "without",
    "DrawRepresentatives": "without",
    "DescribeClusters": "without",
    "FindCentres": "without",
    "SummariseGroups": "without",
    "DescribeTraining": "without",
}
LAST = {
    "AssignCells": "undisturbed",
    "RelabelPoints": "undisturbed",
    "AssignPoints": "undisturbed",
    "AssignCentres": "undisturbed",
    "AssignComponents": "undisturbed",
    "KeepTrees": "undisturbed",
}


@pytest.fixture(scope="module")
def study():
    """Return the module, imported as the notebooks import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("fault_study")


def check(study, names, clients, faults):
    table = study.outcomes(names, clients, faults)
    assert len(table)
    for row in table.itertuples():
        if row.fault in study.HARMLESS:
            assert (row.outcome, row.error) == ("undisturbed", ""), row
            continue
        assert f"'{row.client}': " in row.error, row
        assert f" at {row.request}, step {row.step}" in row.error, row
        if row.protocol == "VerticalDBSCAN":
            assert row.outcome == "stops", row
        elif row.request in FIRST | LAST:
            assert row.outcome == (FIRST | LAST)[row.request], row
        else:
            assert row.outcome in {"partly", "without", "undisturbed"}, row


@pytest.mark.parametrize("fault", ["timeout", "wrong class", "another number", "after leaving"])
def test_some_faults(study, fault):
    check(study, ["HorizontalDBSCAN", "VerticalDBSCAN", "SDBDC"], ["B"], [fault])


@pytest.mark.liars
def test_every_fault(study):
    check(study, list(study.PROTOCOLS), list(study.CLIENTS), list(study.FAULTS))


def test_clients_that_invent_data(study):
    """No check finds them, and one of them makes the result worthless."""
    damage = study.damage(["HorizontalDBSCAN", "VerticalDBSCAN", "DBDC", "SDBDC", "PPDBDC"])
    assert (damage["excluded"] == 0).all()
    assert (damage["honest"] > 0.5).all()
    assert (damage["invented"].abs() < 0.05).all()
