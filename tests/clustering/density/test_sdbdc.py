"""SDBDC: examples by hand, its definitions as properties, its requests, and false replies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from fedlib import SDBDC
from fedlib.clustering.density.engine.dbscan import dbscan
from fedlib.clustering.density.representatives import RelabelPoints
from fedlib.clustering.density.sdbdc import (
    ChooseRepresentatives,
    SDBDCClient,
    WeightedRepresentatives,
)
from fedlib.core.messages import MessageError
from fedlib.core.protocol import Replies
from fedlib.datasets.partition import split_rows
from fedlib.datasets.stand_ins import shapes


def as_lists(labels):
    return [part.tolist() for part in labels]


# Examples by hand -------------------------------------------------------------------------------

FIRST = np.array([[0.0], [0.4], [0.8], [1.2], [5.0]])  # 0.4, as good as 0.8, covers 0.0 to 1.2
SECOND = np.array([[2.0], [2.0], [2.6], [8.0]])  # 2.0 is better than 2.6, as it occurs twice


def test_two_clients_by_hand():
    """With eps 1, the radii 0.8 of 0.4 and 0.6 of 2.0 put each in the other's neighbourhood.

    They cover four and three points, so with MinPts 5 both are core representatives.
    """
    model = SDBDC(eps=1.0, min_samples=5).fit([FIRST, SECOND])
    assert model.representatives_.ravel().tolist() == [0.4, 5.0, 2.0, 8.0]
    assert model.weights_.tolist() == [4, 1, 3, 1]
    np.testing.assert_allclose(model.radii_, [0.8, 0.0, 0.6, 0.0])
    assert model.representative_labels_.tolist() == [0, -1, 0, -1]
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, 0, 0, -1]]
    assert model.ledger_.conversation() == [
        "ChooseRepresentatives",
        "WeightedRepresentatives",
        "RelabelPoints",
        "Done",
    ]
    # A new point needs a clustered representative within eps; the first one is at 0.4.
    assert model.predict([[1.39], [-0.7], [3.1], [5.0]]).tolist() == [0, -1, -1, -1]


def test_min_samples_must_grow():
    """Enlarged neighbourhoods count points beyond eps (P, §3.3), so that noise becomes a cluster.

    No point has five neighbours. The representatives, of three and two points, are neighbours.
    """
    X = np.array([[0.0], [0.5], [1.0], [1.9], [2.3]])
    assert dbscan(X, 1.0, 5).tolist() == [-1] * 5
    assert as_lists(SDBDC(1.0, 5).fit([X]).labels_) == [[0] * 5]
    assert as_lists(SDBDC(1.0, 6).fit([X]).labels_) == [[-1] * 5]


def test_an_early_stop():
    """Points that are not covered go to the nearest clustered representative within eps."""
    model = SDBDC(1.0, 3, n_representatives=1).fit([FIRST, [[1.5], [2.0], [2.1], [2.2], [3.3]]])
    assert model.representatives_.ravel().tolist() == [0.4, 2.0]
    assert model.weights_.tolist() == [4, 4]
    # Neither 5.0 nor 3.3 (1.3 from 2.0) has one.
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, 0, 0, 0, -1]]
    # 1.0 and 1.8 are not covered; the nearest representative may be that of another client.
    other = [[1.0], [1.8], [9.0], [9.0], [9.0]]
    model = SDBDC(1.0, 3, coverage=0.6).fit([FIRST, other])
    assert model.representatives_.ravel().tolist() == [0.4, 9.0]
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, -1, 1, 1, 1]]


# The definitions, as properties -----------------------------------------------------------------


@st.composite
def problems(draw):
    """Draw four clients' points on a lattice, some of them equal, and parameters."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 2))
    width = {1: 30, 2: 6}[d]
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-width, width))).astype(float)
    client = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 3)))
    parts = [X[client == c] for c in range(4)]
    return parts, draw(st.sampled_from([0.5, 1.0, 1.5, 3.0])), draw(st.integers(1, 8))


@given(problems())
def test_every_point_is_covered_once(problem):
    """Weights add up to the number of points; radii are the distances to the furthest covered."""
    parts, eps, min_samples = problem
    model = SDBDC(eps, min_samples).fit(parts)
    clients = [SDBDCClient(X) for X in parts]
    for X, client, labels in zip(parts, clients, model.labels_, strict=True):
        reply = client.handle(ChooseRepresentatives(eps, None, 1.0))
        owner = client.state.owner
        assert np.bincount(owner, minlength=len(reply.weights)).tolist() == reply.weights.tolist()
        distance = np.linalg.norm(X - reply.representatives[owner], axis=1)
        assert (distance <= eps).all()
        for r, radius in enumerate(reply.radii):
            assert np.isclose(radius, distance[owner == r].max(), rtol=1e-15)
        places = set(map(tuple, reply.representatives.tolist()))
        assert len(places) == len(reply.weights)  # no point is chosen twice
        assert len(labels) == len(X)
    assert model.weights_.sum() == sum(map(len, parts))


@given(problems())
def test_clustering_of_representatives(problem):
    """A core representative has enough weight within eps + CovRad.

    Two of them are joined if either is in the neighbourhood of the other. Any other representative
    belongs to the nearest core representative in whose neighbourhood it is, or is noise.
    """
    parts, eps, min_samples = problem
    model = SDBDC(eps, min_samples).fit(parts)
    places, labels = model.representatives_, model.representative_labels_
    squared = sum((x[:, None] - x) ** 2 for x in places.T)
    reaches = squared <= (eps + model.radii_[:, None]) ** 2
    core = reaches @ model.weights_ >= min_samples
    joined = (reaches | reaches.T) & np.outer(core, core) | np.eye(len(core), dtype=bool)
    for _ in range(len(core).bit_length()):
        joined = joined @ joined
    same = labels[:, None] == labels
    assert (same == joined)[np.ix_(core, core)].all()
    for i in np.flatnonzero(~core):
        near = core & reaches[:, i]
        if not near.any():
            assert labels[i] == -1
        else:
            smallest = squared[i][near].min()
            assert labels[i] in labels[near & (squared[i] == smallest)]


@given(problems(), st.integers(1, 3), st.sampled_from([0.3, 0.7, 1.0]))
def test_stops(problem, n_representatives, coverage):
    """A client stops at the maximum number of representatives, or when the share is covered."""
    parts, eps, _ = problem
    for X in parts:
        client = SDBDCClient(X)
        complete = client.handle(ChooseRepresentatives(eps, None, 1.0))
        reply = client.handle(ChooseRepresentatives(eps, n_representatives, coverage))
        m = len(reply.weights)
        assert reply.representatives.tolist() == complete.representatives[:m].tolist()
        assert m <= n_representatives
        assert reply.weights.sum() >= coverage * len(X) or m == n_representatives
        if m:
            assert reply.weights[:-1].sum() < coverage * len(X)


def test_it_agrees_with_dbscan(by_row):
    """The shapes are far apart, over five clients, with larger min_samples."""
    X, _ = shapes(4000)
    rows = split_rows(X, 5, how="uniform", random_state=0)
    model = SDBDC(1.8, 15).fit([X[part] for part in rows])
    assert adjusted_rand_score(dbscan(X, 1.8, 10), by_row(rows, model.labels_)) > 0.99


# The last requests ------------------------------------------------------------------------------


def last_requests(**parameters):
    """Return the last requests to two clients that have replied, and to a passive one."""
    flow = SDBDC(1.0, 3, **parameters).protocol()
    next(flow)
    first = WeightedRepresentatives(np.array([[0.0], [5.0]]), np.array([3, 1]), np.array([0.5, 0]))
    second = WeightedRepresentatives(np.array([[7.0]]), np.array([4]), np.array([0.5]))
    return flow.send(Replies({"A": first, "B": second}, declined=["C"]))


def test_a_client_receives_the_clusters_of_its_own_representatives_only():
    """They cover all its points. The passive client needs the places of the others."""
    nothing = np.empty((0, 1)), np.empty(0), np.empty(0, np.int64)
    clusters = np.array([[0.0], [7.0]]), np.ones(2), np.array([0, 1])
    assert last_requests() == {
        "A": RelabelPoints(np.array([0, -1]), *nothing),
        "B": RelabelPoints(np.array([1]), *nothing),
        "C": RelabelPoints(np.empty(0, np.int64), *clusters),
    }


@pytest.mark.parametrize("parameters", [{"n_representatives": 2}, {"coverage": 0.9}])
def test_after_an_early_stop_all_clients_receive_all_clusters(parameters):
    """Representatives that are noise are not sent."""
    clusters = np.array([[0.0], [7.0]]), np.ones(2), np.array([0, 1])
    assert last_requests(**parameters) == {
        "A": RelabelPoints(np.array([0, -1]), *clusters),
        "B": RelabelPoints(np.array([1]), *clusters),
        "C": RelabelPoints(np.empty(0, np.int64), *clusters),
    }


# False replies and invalid input ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "radii", "message"),
    [
        ([[0.0]], [1.01], "radii must be at most 1.0, got 1.01"),
        ([[0.0], [0.5], [9.0]], [1.0, 1.0, 1.0], "at most 2 representatives, got 3"),
    ],
)
def test_a_false_reply(places, radii, message, relay, sends):
    """Points covered beyond eps, or too many representatives: the client is lost."""
    weights = np.full(len(places), 9)
    false_reply = WeightedRepresentatives(np.array(places), weights, np.array(radii))
    clients = {"A": SDBDCClient(FIRST), "B": SDBDCClient(FIRST)}
    transport = relay(clients, {"B": sends(false_reply)})
    model = SDBDC(1.0, 4, n_representatives=2).fit(transport, min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at ChooseRepresentatives, step 1"}
    with pytest.raises(MessageError, match=message):
        ChooseRepresentatives(1.0, 2, 1.0).accept(false_reply)
    assert clients["A"].state.labels.tolist() == [0, 0, 0, 0, -1]


@pytest.mark.parametrize("weights", [[0], [-1], [2**40 + 1], [1, 1]])
def test_invalid_weights(weights):
    with pytest.raises(MessageError):
        WeightedRepresentatives(np.array([[0.0]]), np.array(weights), np.array([0.0]))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"eps": -1}, "eps"),
        ({"min_samples": 0}, "min_samples"),
        ({"n_representatives": 0}, "n_representatives"),
        ({"n_representatives": 1.5}, "n_representatives"),
        ({"coverage": 0}, "coverage"),
        ({"coverage": 1.1}, "coverage"),
    ],
)
def test_errors_name_the_parameter(parameters, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        SDBDC(**({"eps": 1.0, "min_samples": 3} | parameters)).fit([FIRST])


def test_estimator_conventions():
    model = SDBDC(0.5, 3, coverage=0.9)
    assert repr(clone(model)) == "SDBDC(coverage=0.9, eps=0.5, min_samples=3)"
    assert next(model.protocol()) == ChooseRepresentatives(0.5, None, 0.9)
