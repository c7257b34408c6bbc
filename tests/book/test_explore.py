"""The page that explores the protocols: its runs, its pictures and its controls."""

import importlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fedlib import HorizontalDBSCAN
from fedlib.core.registry import protocols

ROOT = Path(__file__).parents[2]
# They describe columns, choose parameters or judge results: there are no labels to draw.
NOT_DRAWN = {
    "clustering-score",
    "evaluation",
    "regression-score",
    "xgb-regressor",
    "gaussian-mixture-selection",
    "kmeans-selection",
    "pca",
    "suggest",
    "summary",
}


@pytest.fixture(scope="module")
def explore():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "notebooks")
        yield importlib.import_module("study.interactive.explore")


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
    with pytest.raises(ValueError, match="dataset must be a file or one of .*; got 'iris'"):
        explore.load("iris")


TABLE = "age,crp,ldl,class\n" + "".join(
    f"{20 + i % 7 + 40 * (i % 2)},{i % 5 + 90 * (i % 2)},3.{i},{'ab'[i % 2]}\n" for i in range(60)
)


def test_your_own_table_is_drawn_by_its_first_two_columns(explore, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    settings = explore.Settings(dataset=str(path), n_clients=3, parameters={"cell_size": 0.5})
    outcome = explore.run(settings)
    assert outcome.X.shape == (60, 2)
    np.testing.assert_allclose(outcome.X.std(axis=0), 1)
    assert outcome.scores["ARI"] == 1.0
    assert "60 points of mine.csv (your columns age and crp)" in explore.summarise(
        settings, outcome
    )
    path.write_text(TABLE.replace("age", "years"))  # a changed file is read again
    assert explore.load(str(path)).source == "your columns years and crp"


BAD_TABLES = {
    "a,b\n1,x\n2,y\n": "'b'",
    "a,b\n1,\n2,3\n": "'b'",
    "a,class\n1,u\n2,v\n": "2 columns of numbers besides 'class', got 2 rows and 1 columns",
    "a,b\n1,2\n": "got 1 rows and 2 columns",
    "a,b\n1,2\n3,2\n": "all values of column 'b' are equal",
}


@pytest.mark.parametrize(("text", "reason"), BAD_TABLES.items())
def test_a_table_that_cannot_be_drawn_is_refused(explore, tmp_path, text, reason):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"mine.csv.*{reason}"):
        explore.load(str(path))


def test_a_missing_table_is_refused_by_name(explore, tmp_path):
    with pytest.raises(ValueError, match="absent.csv"):
        explore.load(str(tmp_path / "absent.csv"))


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


def upload(controls, name, text):
    """Do what the browser does when the reader chooses a file."""
    content = memoryview(text.encode())
    file = {"name": name, "type": "text/csv", "size": len(content), "content": content}
    controls.upload.value = (file | {"last_modified": datetime(2024, 1, 1, tzinfo=UTC)},)


def test_an_uploaded_table_becomes_the_data_set(controls):
    picture = controls.image.value
    upload(controls, "mine.csv", TABLE)
    assert controls.common["dataset"].label == "mine.csv"
    assert "60 points of mine.csv" in controls.table.value
    assert controls.image.value != picture
    controls.common["dataset"].value = "circles"
    assert "points of circles" in controls.table.value


def test_a_bad_upload_shows_its_reason_and_changes_nothing(controls):
    picture, chosen = controls.image.value, controls.common["dataset"].value
    upload(controls, "mine.csv", "a,b\n1,x\n2,y\n")
    assert "<b>UnreadableFile</b>: mine.csv: " in controls.table.value
    assert (controls.image.value, controls.common["dataset"].value) == (picture, chosen)


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
