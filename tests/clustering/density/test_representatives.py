"""What DBDC, SDBDC and PPDBDC share: the model, the last request, and how clients and runs end."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fedlib import DBDC, PPDBDC, SDBDC
from fedlib.clustering.density.dbdc import DBDCClient
from fedlib.clustering.density.ppdbdc import PPDBDCClient
from fedlib.clustering.density.representatives import (
    Coverage,
    RelabelPoints,
    RepresentativeClient,
    RepresentativeModel,
    check_count,
    cluster_representatives,
)
from fedlib.clustering.density.sdbdc import SDBDCClient
from fedlib.core.client import LostState
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Done, Labels, MessageError

FIRST = np.array([[0.0], [0.6], [1.2], [2.0], [5.0]])
SECOND = np.array([[3.0], [3.9], [4.6], [1.5], [20.0], [20.0], [20.0]])

SeededPPDBDCClient = partial(PPDBDCClient, random_state=7)
PROTOCOLS = {
    "DBDC, core": (DBDC(1.0, 3), DBDCClient),
    "DBDC, kmeans": (DBDC(1.0, 3, local_model="kmeans"), DBDCClient),
    "SDBDC": (SDBDC(1.0, 3), SDBDCClient),
    "SDBDC, early stop": (SDBDC(1.0, 3, coverage=0.5, n_representatives=2), SDBDCClient),
    "PPDBDC": (PPDBDC(1.0, 3), SeededPPDBDCClient),
    "PPDBDC, early stop": (PPDBDC(1.0, 3, n_representatives=2), SeededPPDBDCClient),
}
each_protocol = pytest.mark.parametrize(
    ("estimator", "make_client"), PROTOCOLS.values(), ids=PROTOCOLS
)

NO_LABELS = np.empty(0, np.int64)
NO_REPRESENTATIVES = np.empty((0, 1)), np.empty(0), NO_LABELS


def fit(estimator, clients, **options):
    """Fit an estimator over clients; return it and each client's labels."""
    model = clone(estimator).fit(InProcess(clients), **options)
    return model, {name: client.state.labels.tolist() for name, client in clients.items()}


def fail_at(request, client):
    """Make a client raise an error at one request, and return it."""
    answer = client.answer

    def answer_or_fail(received):
        if type(received).__name__ == request:
            raise OSError("disc full of patients")
        return answer(received)

    client.answer = answer_or_fail
    return client


# The model ------------------------------------------------------------------------------------


def test_a_model_places_points():
    """A point joins the nearest clustered representative that reaches it; ties go to the first."""
    places = np.array([[4.0], [0.0], [2.0]])
    model = RepresentativeModel(places, np.array([1, 0, -1]), np.array([2.5, 2.0, 9.0]))
    assert model.n_features == 1
    X = np.array([[-2.0], [-2.1], [1.9], [2.0], [2.1], [6.5], [6.6]])
    assert model.place(X).tolist() == [0, -1, 0, 0, 1, 1, -1]


def test_a_model_without_clusters_places_nothing():
    places = np.array([[0.0, 0.0]])
    model = RepresentativeModel(places, np.array([-1]), np.array([1e300]))
    assert model.place(np.zeros((3, 2))).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_one_neighbourhood_is_enough_to_join_core_representatives(order):
    """The neighbourhood of 1.5 contains 0.0, but not the reverse."""
    places, weights = np.array([[0.0], [1.5]])[order], np.array([5, 5])
    radii = np.array([0.2, 0.6])[order]
    joined = cluster_representatives(places, weights, radii, 1.0, 5)
    assert joined.labels.tolist() == [0, 0]
    apart = cluster_representatives(places, weights, np.array([0.4, 0.4]), 1.0, 5)
    assert sorted(apart.labels.tolist()) == [0, 1]


def test_too_many_representatives():
    check_count(np.zeros((9, 1)), None)
    check_count(np.zeros((2, 1)), 2)
    with pytest.raises(MessageError, match="at most 2 representatives, got 3"):
        check_count(np.zeros((3, 1)), 2)


# The last request -------------------------------------------------------------------------------


def test_points_go_to_the_nearest_representative_that_reaches_them():
    """Ties go to the first representative."""
    client = RepresentativeClient([[1.0], [2.0], [1.5], [9.0]])
    places, radii = np.array([[0.0], [3.0]]), np.array([2.5, 2.5])
    assert client.handle(RelabelPoints(NO_LABELS, places, radii, np.array([1, 0]))) == Done()
    assert client.state == Labels(np.array([1, 0, 1, -1]))


def test_covered_points_go_to_their_own_representative():
    """They do so even if another one is nearer. Other points go to the nearest one."""
    client = RepresentativeClient([[2.0], [1.0], [2.5]])
    client.state = Coverage(np.array([1, 0, -1]))
    places, radii = np.array([[1.9]]), np.array([1.0])
    client.handle(RelabelPoints(np.array([-1, 4]), places, radii, np.array([0])))
    assert client.state == Labels(np.array([4, -1, 0]))


@each_protocol
def test_labels_that_do_not_fit_the_state(estimator, make_client):
    """Labels of representatives that the client does not know, or too few labels."""
    client = make_client(FIRST)
    with pytest.raises(LostState, match="has no Coverage"):
        client.handle(RelabelPoints(np.array([0]), *NO_REPRESENTATIVES))
    client.state = Coverage(np.array([0, 1, -1, 0, 0]))
    with pytest.raises(ValueError, match="each representative that covers points: 2; got 1"):
        client.handle(RelabelPoints(np.array([0]), *NO_REPRESENTATIVES))
    with pytest.raises(TypeError, match="has no handler for Done"):
        client.handle(Done())


# Runs -------------------------------------------------------------------------------------------


@st.composite
def problems(draw, max_points=60):
    """Draw points on a lattice of tenths, some of them equal, and parameters.

    Coordinates in tenths are rounded, so that some distances are just above or below eps.
    """
    n, d = draw(st.integers(1, max_points)), draw(st.integers(1, 2))
    width = {1: 40, 2: 8}[d]
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-width, width))) / 10
    return X, draw(st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0])), draw(st.integers(1, 6))


@given(problem=problems(), protocol=st.sampled_from(sorted(PROTOCOLS)), data=st.data())
@settings(max_examples=120)
def test_the_order_of_rows_and_clients_does_not_matter(problem, protocol, data, deal, by_row):
    """The order of rows and clients changes no label and no representative."""
    X, eps, min_samples = problem
    estimator, make_client = PROTOCOLS[protocol]
    estimator = clone(estimator).set_params(eps=eps, min_samples=min_samples)
    rows = deal(data, X)
    names = [str(i) for i in range(len(rows))]
    model, labels = fit(
        estimator, {name: make_client(X[part]) for name, part in zip(names, rows, strict=True)}
    )
    shuffled = [data.draw(st.permutations(part.tolist())) for part in rows]
    clients = {
        names[i]: make_client(X[shuffled[i]]) for i in data.draw(st.permutations(range(len(rows))))
    }
    other_model, other_labels = fit(estimator, clients)
    np.testing.assert_array_equal(
        by_row(shuffled, [other_labels[name] for name in names]),
        by_row(rows, [labels[name] for name in names]),
    )
    representatives, other_representatives = (
        sorted(zip(m.representatives_.tolist(), m.representative_labels_.tolist(), strict=True))
        for m in (model, other_model)
    )
    assert representatives == other_representatives


@each_protocol
def test_a_client_without_rows(estimator, make_client):
    """It has no representatives and does not change the result of the others."""
    clients = {"A": make_client(FIRST), "B": make_client(np.empty((0, 1)))}
    model, labels = fit(estimator, clients)
    alone, labels_alone = fit(estimator, {"A": make_client(FIRST)})
    assert labels == labels_alone | {"B": []}
    np.testing.assert_array_equal(model.representatives_, alone.representatives_)


@each_protocol
def test_without_any_cluster(estimator, make_client):
    """Clients with one point each, far apart: all points are noise, also in `predict`."""
    clients = {name: make_client([[x]]) for name, x in (("A", 0.0), ("B", 50.0), ("C", 99.0))}
    model, labels = fit(estimator, clients)
    assert labels == {"A": [-1], "B": [-1], "C": [-1]}
    assert model.predict([[0.0], [50.0]]).tolist() == [-1, -1]
    model, labels = fit(estimator, {"A": make_client(np.empty((0, 2)))})
    assert labels == {"A": []}
    assert model.representatives_.shape == (0, 2)


@each_protocol
def test_repeated_points(estimator, make_client):
    """Twenty equal points are a cluster."""
    clients = {"A": make_client(np.zeros((20, 2))), "B": make_client(np.ones((1, 2)))}
    model, labels = fit(estimator, clients)
    assert labels["A"] == [0] * 20
    assert len(model.representatives_) == len(model.representative_labels_)


@each_protocol
def test_a_passive_client_gets_labels(estimator, make_client):
    """It shares nothing: the others' representatives place its points, as they place new ones."""
    both = np.concatenate([FIRST, SECOND])
    clients = {"A": make_client(FIRST), "B": make_client(SECOND), "C": make_client(both)}
    clients["C"].passive = True
    model, labels = fit(estimator, clients)
    without, labels_without = fit(estimator, {"A": make_client(FIRST), "B": make_client(SECOND)})
    assert labels["A"] == labels_without["A"]
    np.testing.assert_array_equal(model.representatives_, without.representatives_)
    assert labels["C"] == without.predict(both).tolist()
    with pytest.raises(ValueError, match="every client is passive"):
        clone(estimator).fit([FIRST], passive=[0])


@each_protocol
def test_clients_that_are_rebuilt_before_every_request(estimator, make_client, reborn):
    """All that a client must remember is in its state."""
    parts = {"A": FIRST, "B": SECOND}
    _, labels = fit(estimator, {name: make_client(X) for name, X in parts.items()})
    transport = reborn(make_client, parts)
    clone(estimator).fit(transport)
    for name, client in transport.members.items():
        assert client.state.labels.tolist() == labels[name]


@each_protocol
@pytest.mark.parametrize("step", [1, 2])
def test_a_client_that_is_lost(estimator, make_client, step):
    """The others continue, whether it fails before its reply or at its labels."""
    request = type(next(estimator.protocol())).__name__ if step == 1 else "RelabelPoints"
    clients = {
        "A": make_client(FIRST),
        "B": fail_at(request, make_client(SECOND)),
        "C": make_client(SECOND),
    }
    model = clone(estimator).fit(InProcess(clients), min_clients=2)
    assert model.ledger_.lost == {"B": f"OSError at {request}, step {step}"}
    contributors = {"A": FIRST, "C": SECOND} | ({"B": SECOND} if step == 2 else {})
    _, labels = fit(estimator, {name: make_client(X) for name, X in contributors.items()})
    assert clients["A"].state.labels.tolist() == labels["A"]
    assert clients["C"].state.labels.tolist() == labels["C"]
    with pytest.raises(OSError, match="client 'B' raised this"):
        clone(estimator).fit(InProcess(clients))


@each_protocol
def test_clients_that_do_not_fit_together(estimator, make_client):
    with pytest.raises(ValueError, match="number of features: 1 at '0'; 2 at '1'"):
        clone(estimator).fit([FIRST, np.zeros((3, 2))])
    transport = InProcess({"A": make_client(FIRST), "B": make_client(np.zeros((3, 2)))})
    with pytest.raises(ValueError, match="number of features: 1 at 'A'; 2 at 'B'"):
        clone(estimator).fit(transport)
    named = pd.DataFrame({"east": [1.0, 2.0], "north": [1.0, 2.0]})
    clients = {
        "A": make_client(named),
        "B": make_client(named[["north", "east"]]),
        "C": make_client(np.zeros((1, 2))),
    }
    with pytest.raises(
        ValueError,
        match="the order differs: 'east' is column 2 instead of 1 at 'B'",
    ):
        clone(estimator).fit(InProcess(clients))


# Prediction -------------------------------------------------------------------------------------


@each_protocol
def test_predict_refuses_what_fit_refuses(estimator, make_client):
    model = clone(estimator)
    with pytest.raises(NotFittedError):
        model.predict(FIRST)
    model.fit([FIRST, SECOND])
    with pytest.raises(ValueError, match="features"):
        model.predict([[0.0, 1.0]])
    with pytest.raises(ValueError, match="NaN"):
        model.predict([[np.nan]])


@each_protocol
def test_predict_depends_on_the_model_alone(estimator, make_client):
    """A changed parameter, or a new estimator with the same model, gives the same prediction."""
    X = np.linspace(-2, 22, 200).reshape(-1, 1)
    model, _ = fit(estimator, {"A": make_client(FIRST), "B": make_client(SECOND)})
    before = model.predict(X)
    assert before.max() >= 0
    np.testing.assert_array_equal(before, model.model_.place(X))
    model.set_params(eps=0.01, min_samples=99)
    np.testing.assert_array_equal(model.predict(X), before)
    other = type(model)(eps=5.0, min_samples=1)
    other._set_model(model.model_)
    np.testing.assert_array_equal(other.predict(X), before)
    assert other.n_features_in_ == 1
    np.testing.assert_array_equal(other.representatives_, model.representatives_)
