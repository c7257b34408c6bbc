"""The page that explores the protocols: its runs, its pictures and its controls."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from fedlib import HorizontalDBSCAN
from fedlib.federated import protocols

ROOT = Path(__file__).parents[2]
# They describe columns, choose parameters or judge results: there are no labels to draw.
NOT_DRAWN = {
    "clustering-score",
    "evaluation",
    "xgb-regressor",
    "gaussian-mixture-selection",
    "kmeans-selection",
    "suggest",
    "summary",
}


@pytest.fixture(scope="module")
def explore():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("explore")


@pytest.fixture
def small(explore, monkeypatch):
    """Return the module with sets of 200 points."""
    full = explore.load

    def load(name):
        X, y, source = full(name)
        return explore.Loaded(X[:200], y[:200], source)

    monkeypatch.setattr(explore, "load", load)
    return explore


def test_all_protocols_of_fedlib_can_be_explored(explore):
    named = {name: protocol.estimator for name, protocol in explore.PROTOCOLS.items()}
    ours = {n: e for n, e in protocols().items() if e.__module__.startswith("fedlib.")}
    assert named == {name: kind for name, kind in ours.items() if name not in NOT_DRAWN}


@pytest.mark.parametrize("name", sorted(set(protocols()) - NOT_DRAWN))
def test_a_picture_redrawn_equals_a_new_one(small, name):
    """Nothing of the picture before may remain."""
    settings = small.Settings(name, n_clients=3)
    outcome = small.run(settings)
    assert outcome.has_labels.all()
    used, new = small.Picture(dpi=40), small.Picture(dpi=40)
    other = small.Settings("xgboost" if name == "dbdc" else "dbdc")
    used.draw(other, small.run(other))
    before = used.png()
    used.draw(settings, outcome)
    new.draw(settings, outcome)
    assert used.png() == new.png() != before


def test_labels_are_those_of_fit_with_the_same_passive_clients(small):
    settings = small.Settings(n_clients=4, n_passive=2, parameters={"cell_size": 0.4})
    outcome = small.run(settings)
    parts, rows = small.deal(small.PROTOCOLS[settings.protocol], settings, outcome.X, outcome.y)
    model = HorizontalDBSCAN(0.4, 5).fit(parts, passive=[2, 3])
    for part, labels in zip(rows, model.labels_, strict=True):
        assert (outcome.labels[part] == labels).all()
    assert outcome.recorder.exchanges[0].replies["2"].discloses == "nothing"


@pytest.mark.parametrize(("loss", "counted"), [(0, 100), (1, 200)])
def test_a_lost_client_has_no_labels_and_counts_only_if_it_replied_once(small, loss, counted):
    settings = small.Settings(n_clients=4, n_lost=2, loss=small.LOSSES[loss])
    outcome = small.run(settings)
    assert list(outcome.model.ledger_.lost) == ["0", "1"]
    assert outcome.has_labels.sum() == 100
    assert outcome.model.cell_counts_.sum() == counted
    assert "Client 0 was lost" in small.summarise(settings, outcome)


def test_an_unknown_set_is_refused(explore):
    with pytest.raises(ValueError, match="dataset must be one of .*; got 'iris'"):
        explore.load("iris")


@pytest.fixture
def controls(small):
    return small.Controls()


def test_a_changed_parameter_changes_the_picture_and_the_ledger(controls):
    picture, table = controls.image.value, controls.table.value
    controls.parameters["cell_size"].value = 0.5
    assert controls.settings.parameters["cell_size"] == 0.5
    assert controls.image.value != picture
    assert controls.table.value != table


def test_another_protocol_has_its_own_parameters(controls):
    controls.common["protocol"].value = "kmeans"
    assert list(controls.parameters) == ["n_clusters", "method", "n_init"]
    assert controls.panel.children == tuple(controls.parameters.values())
    assert "LocalCentres" in controls.table.value


def test_a_failed_run_shows_its_reason_and_keeps_the_picture(controls):
    picture = controls.image.value
    controls.common["n_lost"].value = 5
    assert "<b>TooFewClients</b>" in controls.table.value
    assert controls.image.value == picture
    controls.common["n_lost"].value = 0
    assert "CellCounts" in controls.table.value


def test_the_gallery_has_two_panels_per_protocol(small):
    figure = small.gallery(["kmeans", "ppdbdc", "dbdc"])
    titles = [ax.get_title() for ax in figure.axes]
    assert [title for title in titles if title in small.PROTOCOLS] == ["kmeans", "ppdbdc", "dbdc"]
    assert len(titles) == 8
    assert np.char.startswith([t for t in titles if t][1::2], "server: ").all()
