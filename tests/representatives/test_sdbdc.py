"""SDBDC: toys by hand, its definitions as properties, what is said to whom, and lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from fedlib import SDBDC
from fedlib.datasets.shapes import shapes
from fedlib.dbscan import dbscan
from fedlib.messages import Done, MessageError
from fedlib.partition import split_rows
from fedlib.protocol import Replies
from fedlib.representatives.dbdc import RelabelPoints
from fedlib.representatives.sdbdc import (
    ChooseRepresentatives,
    SDBDCClient,
    WeightedRepresentatives,
    cluster_representatives,
)
from fedlib.transports.in_process import InProcess


def as_lists(labels):
    return [part.tolist() for part in labels]


# Toys, by hand ----------------------------------------------------------------------------------

FIRST = np.array([[0.0], [0.4], [0.8], [1.2], [5.0]])  # 0.4, as good as 0.8, covers 0.0 to 1.2
SECOND = np.array([[2.0], [2.0], [2.6], [8.0]])  # 2.0 is the better one for being there twice


def test_toy():
    """Eps 1. The neighbourhood of 0.4 is wider by 0.8, so that it reaches 2.0; 2.0's, by 0.6, does.

    With five points 0.4 and 2.0 are core representatives, which stand for four and three.
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
    # A new point needs a representative of a cluster within eps: 1.4 is as far from 0.4.
    assert model.predict([[1.39], [-0.7], [3.1], [5.0]]).tolist() == [0, -1, -1, -1]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_either_reaches_the_other(order):
    """Of two core representatives the one to the right reaches the other, not the reverse."""
    places, weights = np.array([[0.0], [1.5]])[order], np.array([5, 5])
    radii = np.array([0.2, 0.6])[order]
    joined = cluster_representatives(places, weights, radii, 1.0, 5)
    assert joined.labels.tolist() == [0, 0]
    apart = cluster_representatives(places, weights, np.array([0.4, 0.4]), 1.0, 5)
    assert sorted(apart.labels.tolist()) == [0, 1]


def test_min_samples_must_grow():
    """A widened neighbourhood counts points beyond eps (P, §3.3): noise becomes a cluster.

    No point has five within eps; the representatives of three and of two see each other.
    """
    X = np.array([[0.0], [0.5], [1.0], [1.9], [2.3]])
    assert dbscan(X, 1.0, 5).tolist() == [-1] * 5
    assert as_lists(SDBDC(1.0, 5).fit([X]).labels_) == [[0] * 5]
    assert as_lists(SDBDC(1.0, 6).fit([X]).labels_) == [[-1] * 5]


def test_an_early_stop():
    """One representative a client: what it does not cover looks for the nearest within eps."""
    model = SDBDC(1.0, 3, n_representatives=1).fit([FIRST, [[1.5], [2.0], [2.1], [2.2], [3.3]]])
    assert model.representatives_.ravel().tolist() == [0.4, 2.0]
    assert model.weights_.tolist() == [4, 4]
    # 5.0 has nothing within eps, nor has 3.3 (1.3 from 2.0).
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, 0, 0, 0, -1]]
    # 1.0 and 1.8 are not covered; the nearest representative may be another client's.
    other = [[1.0], [1.8], [9.0], [9.0], [9.0]]
    model = SDBDC(1.0, 3, coverage=0.6).fit([FIRST, other])
    assert model.representatives_.ravel().tolist() == [0.4, 9.0]
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, -1, 1, 1, 1]]


# Its definitions, as properties -----------------------------------------------------------------


@st.composite
def problems(draw):
    """Draw points on a lattice, some repeated, dealt to clients, and parameters."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 2))
    width = {1: 30, 2: 6}[d]
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-width, width))).astype(float)
    owner = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 3)))
    parts = [X[owner == c] for c in range(4)]
    return parts, draw(st.sampled_from([0.5, 1.0, 1.5, 3.0])), draw(st.integers(1, 8))


@given(problems())
def test_every_point_is_covered_once(problem):
    """Weights add up to the clients' points; each point has the label of a representative near."""
    parts, eps, min_samples = problem
    model = SDBDC(eps, min_samples).fit(parts)
    clients = [SDBDCClient(X) for X in parts]
    for X, client, labels in zip(parts, clients, model.labels_, strict=True):
        said = client.handle(ChooseRepresentatives(eps, None, 1.0))
        owner = client.state.owner
        assert np.bincount(owner, minlength=len(said.weights)).tolist() == said.weights.tolist()
        away = np.linalg.norm(X - said.representatives[owner], axis=1)
        assert (away <= eps).all()
        for r, radius in enumerate(said.radii):
            assert np.isclose(radius, away[owner == r].max(), rtol=1e-15)
        places = {tuple(x): i for i, x in enumerate(said.representatives.tolist())}
        assert len(places) == len(said.weights)  # no point is chosen twice
        assert len(labels) == len(X)
    assert model.weights_.sum() == sum(map(len, parts))


@given(problems())
def test_clustering_of_representatives(problem):
    """Weights within eps + CovRad make a core; either reaching the other joins two cores.

    A representative that is no core belongs to the nearest core that reaches it, or is noise.
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
            least = squared[i][near].min()
            assert labels[i] in labels[near & (squared[i] == least)]


@given(problems(), st.integers(1, 3), st.sampled_from([0.3, 0.7, 1.0]))
def test_stops(problem, n_representatives, coverage):
    """No more representatives than allowed, and none once the share is reached."""
    parts, eps, _ = problem
    for X in parts:
        client = SDBDCClient(X)
        everything = client.handle(ChooseRepresentatives(eps, None, 1.0))
        said = client.handle(ChooseRepresentatives(eps, n_representatives, coverage))
        m = len(said.weights)
        assert said.representatives.tolist() == everything.representatives[:m].tolist()
        assert m <= n_representatives
        covered = said.weights.sum()
        assert covered >= coverage * len(X) or m == n_representatives
        if m:
            assert said.weights[:-1].sum() < coverage * len(X)


def test_it_agrees_with_dbscan():
    """Shapes far apart, over five clients: with min_samples raised, nearly DBSCAN's clusters."""
    X, _ = shapes(4000)
    rows = split_rows(X, 5, how="uniform", random_state=0)
    model = SDBDC(1.8, 15).fit([X[own] for own in rows])
    labels = np.empty(len(X), int)
    for own, part in zip(rows, model.labels_, strict=True):
        labels[own] = part
    assert adjusted_rand_score(dbscan(X, 1.8, 10), labels) > 0.99


# What is said to whom ---------------------------------------------------------------------------


def told(**parameters):
    """Drive the flow by hand to what it tells two clients that have spoken, and a passive one."""
    flow = SDBDC(1.0, 3, **parameters).protocol()
    next(flow)
    first = WeightedRepresentatives(np.array([[0.0], [5.0]]), np.array([3, 1]), np.array([0.5, 0]))
    second = WeightedRepresentatives(np.array([[7.0]]), np.array([4]), np.array([0.5]))
    return flow.send(Replies({"A": first, "B": second}, declined=["C"]))


def test_a_client_hears_of_its_own_representatives_alone():
    """All its points are covered: it learns nothing of the others. The passive one needs places."""
    nothing = np.empty((0, 1)), np.empty(0), np.empty(0, np.int64)
    clusters = np.array([[0.0], [7.0]]), np.ones(2), np.array([0, 1])
    assert told() == {
        "A": RelabelPoints(np.array([0, -1]), *nothing),
        "B": RelabelPoints(np.array([1]), *nothing),
        "C": RelabelPoints(np.empty(0, np.int64), *clusters),
    }


@pytest.mark.parametrize("parameters", [{"n_representatives": 2}, {"coverage": 0.9}])
def test_after_an_early_stop_all_hear_of_all_clusters(parameters):
    """Noise stays unsaid."""
    clusters = np.array([[0.0], [7.0]]), np.ones(2), np.array([0, 1])
    assert told(**parameters) == {
        "A": RelabelPoints(np.array([0, -1]), *clusters),
        "B": RelabelPoints(np.array([1]), *clusters),
        "C": RelabelPoints(np.empty(0, np.int64), *clusters),
    }


# Lies and mistakes ------------------------------------------------------------------------------


class Liar(SDBDCClient):
    """A client that says what it was told to say."""

    def answer(self, request):
        return self.lie if isinstance(request, ChooseRepresentatives) else Done()


@pytest.mark.parametrize(
    ("places", "radii"), [([[0.0]], [1.01]), ([[0.0], [0.5], [9.0]], [1.0, 1.0, 1.0])]
)
def test_a_lying_client(places, radii):
    """Points covered from beyond eps, or more representatives than were asked for."""
    liar = Liar(FIRST)
    liar.lie = WeightedRepresentatives(np.array(places), np.full(len(places), 9), np.array(radii))
    clients = {"A": SDBDCClient(FIRST), "B": liar}
    model = SDBDC(1.0, 4, n_representatives=2).fit(InProcess(clients), min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at ChooseRepresentatives, step 1"}
    assert clients["A"].state.labels.tolist() == [0, 0, 0, 0, -1]


@pytest.mark.parametrize("weights", [[0], [-1], [2**40 + 1], [1, 1]])
def test_no_such_weights(weights):
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
def test_bad_parameters_name_themselves(parameters, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        SDBDC(**({"eps": 1.0, "min_samples": 3} | parameters)).fit([FIRST])


def test_estimator_conventions():
    model = SDBDC(0.5, 3, coverage=0.9)
    assert repr(clone(model)) == "SDBDC(coverage=0.9, eps=0.5, min_samples=3)"
    assert next(model.protocol()) == ChooseRepresentatives(0.5, None, 0.9)
