"""Horizontal DBSCAN as an estimator: parameters, checks of the data, prediction, repeated runs."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fedlib import HorizontalDBSCAN
from fedlib.clustering.density.horizontal import GridModel, HorizontalDBSCANClient
from fedlib.core.in_process import InProcess

ASSIGNS = ["point", "cell"]


def test_it_follows_the_conventions_of_scikit_learn(lists):
    model = HorizontalDBSCAN(0.5, min_samples=3, border="absorb", random_state=4)
    assert model.get_params() == {
        "adjacency": "faces",
        "assign": "point",
        "border": "absorb",
        "cell_size": 0.5,
        "delta": 0.0,
        "epsilon": None,
        "bounds": None,
        "max_cells": None,
        "min_samples": 3,
        "random_state": 4,
        "schema": None,
        "secure": False,
    }
    text = "HorizontalDBSCAN(border='absorb', cell_size=0.5, min_samples=3, random_state=4)"
    assert " ".join(repr(model).split()) == text
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    X = np.random.default_rng(0).normal(size=(80, 2))
    assert lists(twin.fit([X]).labels_) == lists(model.fit([X]).labels_)
    with pytest.raises(TypeError):
        HorizontalDBSCAN(0.5, 3, "absorb")


def test_random_state():
    """The same state gives the same labels; some other states give other labels."""
    X = np.random.default_rng(0).normal(size=(300, 2))

    def labels(random_state):
        model = HorizontalDBSCAN(0.3, 4, border="absorb", random_state=random_state)
        return tuple(model.fit([X]).labels_[0])

    assert labels(7) == labels(7) == labels(np.random.RandomState(7))
    assert len({labels(seed) for seed in range(10)}) > 1


def test_nearest_draws_no_random_number(toy):
    """``border="nearest"`` is deterministic and does not change a random state."""
    state = np.random.RandomState(3)
    HorizontalDBSCAN(1.0, 4, random_state=state).fit(toy.parts)
    assert state.randint(2**31) == np.random.RandomState(3).randint(2**31)


def test_over_a_transport(toy):
    """The labels stay at the clients; the estimator receives cells and no points."""
    clients = {"A": HorizontalDBSCANClient(toy.first), "B": HorizontalDBSCANClient(toy.second)}
    model = HorizontalDBSCAN(1.0, 4).fit(InProcess(clients))
    assert not hasattr(model, "labels_")
    assert [client.state.labels.tolist() for client in clients.values()] == toy.labels
    assert model.predict(toy.first).tolist() == toy.labels[0]
    assert not hasattr(HorizontalDBSCAN(1.0, 4).fit([toy.first]).fit(InProcess(clients)), "labels_")


def test_clients_can_be_used_again(toy):
    """A second run over the same clients gives the same result."""
    clients = {"A": HorizontalDBSCANClient(toy.first), "B": HorizontalDBSCANClient(toy.second)}
    transport = InProcess(clients)
    for _ in range(2):
        HorizontalDBSCAN(1.0, 4).fit(transport)
        assert [client.state.labels.tolist() for client in clients.values()] == toy.labels


def test_clients_can_be_rebuilt_before_each_request(toy, reborn):
    """A client consists of its data and its state: each request may reach another process."""
    transport = reborn(HorizontalDBSCANClient, {"A": toy.first, "B": toy.second})
    model = HorizontalDBSCAN(1.0, 4).fit(transport)
    assert np.array_equal(model.cells_, HorizontalDBSCAN(1.0, 4).fit(toy.parts).cells_)
    labels = [client.state.labels.tolist() for client in transport.members.values()]
    assert labels == toy.labels


@pytest.mark.jit
def test_many_threads(lists):
    """Eight threads that fit at the same time get the labels of one thread.

    A barrier lets them start together, so that the fits overlap on a single core too.
    """
    X = np.random.default_rng(0).normal(size=(4000, 3))
    parts = np.array_split(X, 5)
    barrier = threading.Barrier(8)

    def fit(seed):
        model = HorizontalDBSCAN(
            0.25, 4, border="absorb", assign=ASSIGNS[seed % 2], adjacency="full", random_state=seed
        )
        return lists(model.fit(parts).labels_)

    def fit_together(seed):
        barrier.wait(timeout=60)
        return fit(seed)

    expected = [fit(seed) for seed in range(4)]
    assert expected[0] != expected[1]
    with ThreadPoolExecutor(8) as threads:
        for seed, labels in enumerate(threads.map(fit_together, list(range(4)) * 8)):
            assert labels == expected[seed % 4]


def test_predict_checks_its_points(toy):
    model = HorizontalDBSCAN(1.0, 4)
    with pytest.raises(NotFittedError):
        model.predict(toy.first)
    model.fit(toy.parts)
    with pytest.raises(ValueError, match="X must have 2 features, as the cells do; got 1"):
        model.predict([[1.0]])
    with pytest.raises(ValueError, match="NaN"):
        model.predict([[1.0, math.nan]])
    with pytest.raises(ValueError, match="too small for row 1"):
        model.predict([[1.0, 0.0], [1e19, 0.0]])


def test_predict_after_a_failed_fit(toy):
    """A fit that failed leaves the estimator without a model."""
    model = HorizontalDBSCAN(1e-300, 4)
    with pytest.raises(ValueError, match="cell_size=1e-300 is too small"):
        model.fit([toy.first])
    with pytest.raises(NotFittedError):
        model.predict(toy.first)


def test_predict_ignores_parameters_changed_after_fit():
    X = np.random.default_rng(0).random((200, 2))
    model = HorizontalDBSCAN(0.1, 3).fit([X])
    model.set_params(cell_size=0.3, min_samples=9, assign="cell", adjacency="full")
    np.testing.assert_array_equal(model.predict(X), model.labels_[0])


def test_the_model_alone_places_points():
    """All that prediction needs is in the model: another estimator can use it."""
    X = np.random.default_rng(0).random((200, 2))
    fitted = HorizontalDBSCAN(0.1, 3, assign="cell", adjacency="full").fit([X])
    assert isinstance(fitted.model_, GridModel)
    np.testing.assert_array_equal(fitted.model_.place(X), fitted.labels_[0])
    loaded = HorizontalDBSCAN(7.0, 1)
    loaded._set_model(fitted.model_)
    np.testing.assert_array_equal(loaded.predict(X), fitted.labels_[0])
    assert loaded.n_features_in_ == fitted.model_.n_features == 2
    for name in ("cells_", "cell_counts_", "cell_labels_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(fitted, name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cell_size", 0),
        ("cell_size", 0.0),
        ("cell_size", -1.0),
        ("cell_size", math.nan),
        ("cell_size", math.inf),
        ("cell_size", "1"),
        ("cell_size", None),
        ("cell_size", [1.0]),
        ("min_samples", 0),
        ("min_samples", -3),
        ("min_samples", 1.5),
        ("min_samples", 2.0),
        ("min_samples", "4"),
        ("min_samples", None),
        ("border", "nearst"),
        ("border", None),
        ("assign", "points"),
        ("adjacency", "corners"),
        ("adjacency", 4),
        ("random_state", "seed"),
        ("random_state", -1),
        ("random_state", 0.5),
    ],
)
def test_invalid_parameters(toy, name, value, monkeypatch):
    """The error names the parameter and what is accepted."""
    monkeypatch.setattr("fedlib.core.estimator.run", None)  # no message may leave
    model = HorizontalDBSCAN(**{"cell_size": 1.0, "min_samples": 4, name: value})
    with pytest.raises(ValueError, match=rf"The '{name}' parameter of HorizontalDBSCAN must be .*"):
        model.fit(toy.parts)


def test_the_parameters_of_a_protocol_driven_by_hand_are_checked():
    with pytest.raises(ValueError, match="'cell_size' parameter"):
        HorizontalDBSCAN(-1.0, 2).protocol()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite(toy, value):
    with pytest.raises(ValueError, match=r"^parts\[1\]: Input contains (NaN|infinity)"):
        HorizontalDBSCAN(1.0, 4).fit([toy.first, [[0.0, 1.0], [value, 0.0]]])


@pytest.mark.parametrize(
    "part",
    [
        [],
        [1.0, 2.0],
        3.0,
        [[]],
        np.empty((0, 0)),
        np.zeros((2, 2, 2)),
        [["a", "b"]],
        [[1j, 0]],
        None,
    ],
)
def test_parts_that_are_not_tables(toy, part):
    with pytest.raises(ValueError, match=r"^parts\[1\]: "):
        HorizontalDBSCAN(1.0, 4).fit([toy.first, part])


def test_clients_that_disagree_in_process(toy, monkeypatch):
    monkeypatch.setattr("fedlib.core.estimator.run", None)  # no message may leave
    model = HorizontalDBSCAN(1.0, 4)
    text = "clients disagree on the number of features: 2 at '0', '2'; 1 at '1'"
    with pytest.raises(ValueError, match=text):
        model.fit([toy.first, [[1.0]], toy.second])


def test_clients_that_disagree_elsewhere(toy, relay):
    """Over a transport, the error is raised after the first replies."""
    parts = {"here": toy.first, "there": [[1.0, 2.0, 3.0]], "far": toy.second}
    transport = relay({name: HorizontalDBSCANClient(X) for name, X in parts.items()})
    with pytest.raises(ValueError, match="features: 2 at 'here', 'far'; 3 at 'there'"):
        HorizontalDBSCAN(1.0, 4).fit(transport)
    assert len(transport.exchanges) == 1


def test_features_with_other_names_are_rejected():
    """In process, columns in another order are put right; over a transport, they are named."""
    left = pd.DataFrame({"age": [1.0, 2.0], "pressure": [80.0, 90.0]})
    swapped = left[["pressure", "age"]]
    expected = "features: 'age', 'pressure' at '0'; the order differs: 'age' is column 2 instead of"
    model = HorizontalDBSCAN(1.0, 2).fit([left, swapped])
    assert model.cells_.tolist() == HorizontalDBSCAN(1.0, 2).fit([left, left]).cells_.tolist()
    assert model.predict(swapped).tolist() == model.predict(left).tolist()
    clients = {"0": HorizontalDBSCANClient(left), "1": HorizontalDBSCANClient(swapped)}
    with pytest.raises(ValueError, match=expected):
        HorizontalDBSCAN(1.0, 2).fit(InProcess(clients))
    HorizontalDBSCAN(1.0, 2).fit([left, left.to_numpy()])  # a part without names fits all names


def test_no_clients():
    for parts in ([], InProcess({})):
        with pytest.raises(ValueError, match="there are no clients"):
            HorizontalDBSCAN(1.0, 4).fit(parts)


@pytest.mark.parametrize(
    ("widest", "warns"), [(99.5, False), (100.5, True)], ids=["99 cells", "100 cells"]
)
def test_features_of_very_different_scales(widest, warns, recwarn):
    """Cells -1 and 0 of one feature, and the cells 0 to 99 or 100 of the other one."""
    X = pd.DataFrame({"share": [-0.1, 0.1], "income": [0.5, widest - 0.6]})
    HorizontalDBSCAN(1.0, 1).fit([X])
    texts = [str(one.message) for one in recwarn]
    assert len(texts) == warns
    if warns:
        assert "'income' extends over 100 cells, but 'share' over 2, so it hardly" in texts[0]
