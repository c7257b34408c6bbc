"""DBSCAN on points drawn from mixtures: the flow, the client and the estimator."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone
from sklearn.cluster import DBSCAN
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score

from fedlib import GaussianMixtureDBSCAN
from fedlib.clustering.mixtures.dbscan import (
    MAX_POINTS,
    AssignPoints,
    ClusterMixtures,
    DescribeClusters,
    GaussianMixtureDBSCANClient,
    describe_cluster,
    draw_points,
)
from fedlib.clustering.mixtures.em import assign_components
from fedlib.core.in_process import InProcess
from fedlib.core.messages import Done, MessageError, decode, encode
from fedlib.core.protocol import Replies
from fedlib.datasets.partition import split_rows

from .points import EYE, float64, int64

EPS = 1.5


def blobs(n=50, seed=0):
    """Return n points around each of (0, 0) and (9, 9)."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0, 1, (n, 2)), rng.normal(9, 1, (n, 2))])


# Three clients: two with both clusters, and one with a few lone points.
PARTS = [blobs(seed=0), blobs(seed=1), np.array([[0.0, 0.0], [9.0, 9.0], [40.0, 40.0]])]


def mixtures(*clusters):
    """Return a client's reply for clusters, each a size and a list of (weight, mean, variance)."""
    flat = [component for _, components in clusters for component in components]
    return ClusterMixtures(
        np.array([size for size, _ in clusters]),
        np.array([len(components) for _, components in clusters]),
        np.array([weight for weight, _, _ in flat], float),
        np.array([mean for _, mean, _ in flat], float),
        np.array([variance * np.eye(2) for _, _, variance in flat]),
    )


# A small example, by hand -------------------------------------------------------------------------


def test_the_flow_by_hand():
    """The Gaussians are narrow, so the drawn points are almost the means."""
    flow = GaussianMixtureDBSCAN(1, 3, n_components=2, random_state=0).protocol()
    request = next(flow)
    assert (request.eps, request.min_samples, request.n_components) == (1.0, 3, 2)
    first = mixtures((6, [(0.5, (0, 0), 1e-12), (0.5, (0.5, 0), 1e-12)]))
    second = mixtures((3, [(1, (1.2, 0), 1e-12)]), (2, [(1, (9, 9), 1e-12)]))
    request = flow.send(Replies({"A": first, "B": second}))
    # 6 + 3 points along a line, close to each other. The 2 points at (9, 9) are too few.
    assert isinstance(request, AssignPoints)
    assert request.points.shape == (9, 2)
    assert not request.labels.any()
    assert set(np.unique(request.points.round(3), axis=0)[:, 0]) == {0.0, 0.5, 1.2}
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done(), "B": Done()}))
    model = finished.value.value
    assert model.labels.tolist() == [0] * 9 + [-1] * 2
    assert model.core.tolist() == [True] * 9 + [False] * 2


def test_the_conversation():
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    messages = ["DescribeClusters", "ClusterMixtures", "AssignPoints", "Done"]
    assert model.ledger_.conversation() == messages
    assert len(model.ledger_) == 12


def test_labels():
    """The third client's points join the clusters of the others; (40, 40) is noise."""
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    assert model.labels_[2].tolist() == [0, 1, -1]
    for labels in model.labels_[:2]:
        assert set(labels[:50]) <= {0, -1}
        assert set(labels[50:]) <= {1, -1}
        assert (labels >= 0).mean() > 0.95
    assert model.n_features_in_ == 2
    assert model.samples_.shape == (len(model.sample_labels_), 2)
    labels = np.concatenate(model.labels_)
    assert (model.predict(np.concatenate(PARTS)) == labels).all()


def test_as_many_points_as_the_clusters_had(relay):
    """No mixture describes the noise of a client, so the server draws no points for it."""
    transport = relay({str(i): GaussianMixtureDBSCANClient(X) for i, X in enumerate(PARTS)})
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(transport)
    local = [DBSCAN(eps=EPS, min_samples=5).fit_predict(X) for X in PARTS]
    for i, labels in enumerate(local):
        sizes = np.bincount(labels[labels >= 0], minlength=labels.max() + 1)
        assert decode(transport.exchanges[0].reply_bytes[str(i)]).sizes.tolist() == sizes.tolist()
    assert len(model.samples_) == sum((labels >= 0).sum() for labels in local)
    # Five clients share a cluster, with four points each: too few for any of them to find it.
    rng = np.random.default_rng(0)
    thin = [np.concatenate([blobs(seed=i), rng.normal(30, 0.1, (4, 2))]) for i in range(5)]
    assert DBSCAN(eps=EPS, min_samples=5).fit_predict(np.concatenate(thin))[-1] == 2
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(thin)
    assert all((labels[-4:] == -1).all() for labels in model.labels_)
    model.set_params(local_min_samples=4).fit(thin)
    assert all((labels[-4:] == 2).all() for labels in model.labels_)


# Describing a cluster -----------------------------------------------------------------------------


@st.composite
def clusters(draw):
    """Draw few points on a coarse grid: many are equal, on a line or in a plane."""
    d = draw(st.integers(1, 4))
    n = draw(st.integers(1, 60))
    width = draw(st.sampled_from([0, 1, 3, 50]))
    points = draw(arrays(np.int64, (n, d), elements=st.integers(-width, width)))
    if d > 1 and draw(st.booleans()):
        points[:, -1] = points[:, 0]
    return points * draw(st.sampled_from([1e-3, 1.0, 1e6]))


@given(clusters(), st.integers(1, 12), st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=25)
def test_any_cluster_has_a_mixture(X, n_components, eps):
    """It has at most n // (2(d + 1)) components, with d + 1 points each if there are several."""
    mixture = describe_cluster(X, n_components, eps, 0)
    n, d = X.shape
    k = len(mixture.weights)
    assert 1 <= k <= min(n_components, max(1, n // (2 * (d + 1))))
    if k > 1:
        assert np.bincount(assign_components(X, mixture), minlength=k).min() >= d + 1
    if len(np.unique(X, axis=0)) < d + 1:
        assert np.array_equal(mixture.covariances[0], mixture.covariances[0, 0, 0] * np.eye(d))
    np.linalg.cholesky(mixture.covariances)  # or an error
    centre, scale = mixture.weights @ mixture.means, np.abs(X).max()
    np.testing.assert_allclose(centre, X.mean(axis=0), atol=1e-9 * (1 + scale))


@pytest.mark.parametrize(
    ("n", "n_components", "wanted"),
    [(5, 10, 1), (6, 10, 1), (11, 10, 1), (12, 10, 2), (600, 4, 4)],
)
def test_how_many_components(n, n_components, wanted):
    """A cluster with two dense parts, 6 points per component in two features."""
    X = np.random.default_rng(0).uniform(size=(n, 2)) + 5 * (np.arange(n) % 2)[:, np.newaxis]
    assert len(describe_cluster(X, n_components, 1.0, 0).weights) == wanted


def test_one_component_fewer_while_one_has_too_few_points():
    """18 points in two features can have three Gaussians, one of which would have two points."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (8, 2)), rng.normal(30, 1, (8, 2)), [[0, 60], [1, 60]]])
    mixture = describe_cluster(X, 3, 1.0, 0)
    assert len(mixture.weights) == 2


def test_a_used_generator_gives_the_same_mixture():
    X, generator = blobs(), np.random.RandomState(3)
    generator.normal(size=5)  # leaves a number for the next call
    assert describe_cluster(X, 3, 1.0, 7, generator) == describe_cluster(X, 3, 1.0, 7)


def test_equal_points():
    """One spherical Gaussian whose variance is 1e-4 · eps²."""
    mixture = describe_cluster(np.full((9, 3), 7.0), 10, 2.0, 0)
    assert mixture.means.tolist() == [[7, 7, 7]]
    np.testing.assert_allclose(mixture.covariances, [4e-4 * np.eye(3)])


def test_drawn_points_follow_the_mixture():
    reply = mixtures((30_000, [(0.25, (0, 0), 1), (0.75, (8, 0), 4)]), (10_000, [(1, (0, 90), 1)]))
    drawn = draw_points(reply, 0)
    assert len(drawn) == 40_000
    near, far = drawn[:30_000], drawn[30_000:]
    assert (near[:, 0] < 3).mean() == pytest.approx(0.25, abs=0.02)
    np.testing.assert_allclose(far.mean(axis=0), [0, 90], atol=0.05)
    np.testing.assert_allclose(np.cov(far.T), np.eye(2), atol=0.05)
    right = near[near[:, 0] > 8]
    assert right[:, 1].var() == pytest.approx(4, rel=0.05)


def test_drawn_points_have_the_covariance():
    matrix = np.array([[2.0, 1.5], [1.5, 3.0]])
    reply = ClusterMixtures(
        np.array([40_000]), np.array([1]), np.ones(1), np.zeros((1, 2)), matrix[np.newaxis]
    )
    np.testing.assert_allclose(np.cov(draw_points(reply, 0).T), matrix, atol=0.1)


# Against DBSCAN on all points ---------------------------------------------------------------------


@pytest.mark.parametrize("n_clients", [1, 2, 4])
def test_moons(n_clients):
    """Two crescents that ten Gaussians fit and one does not."""
    X, y = make_moons(1200, noise=0.05, random_state=0)
    rows = split_rows(X, n_clients, y)
    model = GaussianMixtureDBSCAN(0.2, 5, random_state=0).fit([X[part] for part in rows])
    central = DBSCAN(eps=0.2, min_samples=5).fit_predict(X)
    labels = np.empty(len(X), int)
    labels[np.concatenate(rows)] = np.concatenate(model.labels_)
    assert adjusted_rand_score(central, labels) > 0.98
    one = GaussianMixtureDBSCAN(0.2, 5, n_components=1, random_state=0)
    one.fit([X[part] for part in rows])
    assert adjusted_rand_score(y[np.concatenate(rows)], np.concatenate(one.labels_)) < 0.5


# Clients with few points, passive clients, failures and invalid replies ---------------------------


@pytest.mark.parametrize("d", [1, 2, 5])
def test_only_empty_clients_and_only_noise(d):
    model = GaussianMixtureDBSCAN(1.0, 2, random_state=0)
    model.fit([np.empty((0, d)), np.zeros((1, d)), 9.0 * np.arange(2 * d).reshape(2, d)])
    assert [labels.tolist() for labels in model.labels_] == [[], [-1], [-1, -1]]
    assert model.samples_.shape == (0, d)
    assert model.predict(np.zeros((1, d))).tolist() == [-1]


def test_passive_clients():
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS, passive=[1])
    wanted = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit([PARTS[0], PARTS[2]])
    assert np.array_equal(model.samples_, wanted.samples_)
    assert (model.labels_[1] == model.predict(PARTS[1])).all()
    with pytest.raises(ValueError, match="every client is passive"):
        model.fit(PARTS, passive=[0, 1, 2])


def test_clients_can_be_rebuilt(reborn):
    transport = reborn(GaussianMixtureDBSCANClient, dict(zip("ABC", PARTS, strict=True)))
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(transport)
    wanted = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    assert np.array_equal(model.samples_, wanted.samples_)
    for client, labels in zip(transport.members.values(), wanted.labels_, strict=True):
        assert (client.state.labels == labels).all()


class Leaving(GaussianMixtureDBSCANClient):
    """A client that fails at a request class."""

    def __init__(self, X, at):
        super().__init__(X)
        self.at = at

    def answer(self, request):
        if isinstance(request, self.at):
            raise ConnectionError
        return super().answer(request)


@pytest.mark.parametrize(("at", "n_parts"), [(DescribeClusters, 1), (AssignPoints, 2)])
def test_a_client_leaves(at, n_parts):
    """The server draws points for it only if it has described its clusters."""
    clients = {"A": GaussianMixtureDBSCANClient(PARTS[0]), "B": Leaving(PARTS[1], at)}
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(InProcess(clients), min_clients=1)
    wanted = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS[:n_parts])
    assert np.array_equal(model.samples_, wanted.samples_)
    assert clients["B"].state is None
    with pytest.raises(ConnectionError, match="1 of 2 clients remain, 2 are needed. Lost: 'B'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(InProcess(clients))


VALID = mixtures((9, [(0.5, (0, 0), 1), (0.5, (5, 5), 1)]), (9, [(1, (9, 9), 1)]))
# Fields that make the valid reply invalid.
INVALID = {
    "more points than allowed": {"sizes": int64(MAX_POINTS, MAX_POINTS)},
    "a size that overflows": {"sizes": int64(2**63 - 1, 1)},
    "an empty cluster": {"sizes": int64(0, 9)},
    "more sizes than clusters": {"sizes": int64(9, 9, 9)},
    "components with the wrong sum": {"n_components": int64(1, 1)},
    "more components than requested": {
        "sizes": int64(9),
        "n_components": int64(3),
        "weights": float64(0.2, 0.3, 0.5),
    },
    "weights that sum to more than 1": {"weights": float64(0.5, 0.6, 1)},
    "weights that sum to 1 across clusters": {"weights": float64(1, 0.5, 0.5)},
    "a negative weight": {"weights": float64(-0.5, 1.5, 1)},
    "NaN": {"means": float64([np.nan, 0], [5, 5], [9, 9])},
    "a mean out of range": {"means": float64([1e101, 0], [5, 5], [9, 9])},
    "no features": {
        "means": float64([], [], []),
        "covariances": ["float64", [3, 0, 0], b""],
    },
    "not square": {"covariances": float64(EYE[:1], EYE[:1], EYE[:1])},
    "not positive definite": {"covariances": float64([[1, 2], [2, 1]], EYE, EYE)},
    "not symmetric": {"covariances": float64([[1, 0.5], [0, 1]], EYE, EYE)},
    "singular": {"covariances": float64(0 * EYE, EYE, EYE)},
}


@pytest.mark.parametrize("name", [None, *INVALID])
def test_a_client_with_an_invalid_reply_is_lost(relay, name):
    """The run continues, and its result is that of the other clients."""

    def alter(request, reply):
        if msgspec.msgpack.decode(reply)["type"] != "ClusterMixtures":
            return reply
        return msgspec.msgpack.encode(msgspec.msgpack.decode(encode(VALID)) | INVALID.get(name, {}))

    clients = {name: GaussianMixtureDBSCANClient(X) for name, X in zip("ABC", PARTS, strict=True)}
    model = GaussianMixtureDBSCAN(EPS, 5, n_components=2, random_state=0)
    model.fit(relay(clients, {"B": alter}), min_clients=2)
    if name is None:
        assert not model.ledger_.lost
        return
    assert model.ledger_.lost == {"B": "InvalidReply at DescribeClusters, step 1"}
    wanted = clone(model).fit([PARTS[0], PARTS[2]])
    assert np.array_equal(model.samples_, wanted.samples_)


def test_clients_that_do_not_fit_together(relay):
    parts = {"A": PARTS[0], "B": np.zeros((9, 3))}
    with pytest.raises(ValueError, match="number of features: 2 at '0'; 3 at '1'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(list(parts.values()))
    clients = {name: GaussianMixtureDBSCANClient(X) for name, X in parts.items()}
    with pytest.raises(ValueError, match="number of features: 2 at 'A'; 3 at 'B'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(relay(clients))
    named = [pd.DataFrame(PARTS[0], columns=list(names)) for names in ("xy", "yx")]
    clients = {n: GaussianMixtureDBSCANClient(X) for n, X in zip("AB", named, strict=True)}
    with pytest.raises(ValueError, match="the order differs: 'x' is column 2 instead of 1 at 'B'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(relay(clients))


def test_no_coordinate_is_sent(relay):
    """The only exception is a cluster of equal points, whose mean is the point."""
    transport = relay({str(i): GaussianMixtureDBSCANClient(X) for i, X in enumerate(PARTS)})
    GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(transport)
    assert not [x for x in np.concatenate(PARTS[:2]).ravel() if x.tobytes() in transport.all_bytes]


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eps", 0.0),
        ("eps", np.inf),
        ("eps", "1"),
        ("min_samples", 0),
        ("min_samples", 2.5),
        ("n_components", 0),
        ("local_min_samples", 0),
        ("random_state", "seed"),
    ],
)
def test_bad_parameters(name, value):
    parameters = {"eps": 1.0, "min_samples": 5} | {name: value}
    with pytest.raises(ValueError, match=name):
        GaussianMixtureDBSCAN(**parameters).protocol()


def test_the_weights_of_a_cluster_sum_to_1():
    with pytest.raises(MessageError, match="weights must sum to 1 in each cluster"):
        mixtures((9, [(0.5, (0, 0), 1)]))


def test_predict_checks_its_points():
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0)
    with pytest.raises(NotFittedError):
        model.predict(PARTS[0])
    model.fit(PARTS)
    with pytest.raises(ValueError, match="same number of features"):
        model.predict(np.zeros((1, 3)))


def test_random_state():
    models = [GaussianMixtureDBSCAN(EPS, 5, random_state=s).fit(PARTS) for s in (1, 1, 2)]
    assert np.array_equal(models[0].samples_, models[1].samples_)
    assert not np.array_equal(models[0].samples_, models[2].samples_)


def test_a_parameter_changed_after_fit_does_not_change_predict():
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    X = np.concatenate(PARTS)
    labels = model.predict(X)
    model.set_params(eps=100.0, min_samples=1)
    assert model.predict(X).tolist() == labels.tolist()


def test_the_model_has_all_fitted_attributes():
    """An estimator that only has the model has the same attributes and predictions."""
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    loaded = GaussianMixtureDBSCAN(100.0, 1)
    loaded._set_model(model.model_)
    assert set(vars(model)) - set(vars(loaded)) == {"labels_", "ledger_"}
    X = np.concatenate(PARTS)
    assert loaded.predict(X).tolist() == model.predict(X).tolist()
    assert (model.model_.n_features, model.model_.eps) == (2, EPS)
