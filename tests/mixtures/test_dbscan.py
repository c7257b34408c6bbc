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
from fedlib.messages import Done, Labels, MessageError, decode
from fedlib.mixtures.dbscan import (
    MAX_POINTS,
    AssignPoints,
    ClusterMixtures,
    DescribeClusters,
    GaussianMixtureDBSCANClient,
    describe_cluster,
    draw_points,
)
from fedlib.mixtures.federated import assign_components
from fedlib.partition import split_rows
from fedlib.protocol import Replies, TooFewClients
from fedlib.transports.in_process import InProcess

EPS = 1.5


def blobs(n=50, seed=0):
    """Return n points around each of (0, 0) and (9, 9)."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0, 1, (n, 2)), rng.normal(9, 1, (n, 2))])


# Three clients: two with both clusters, and one with a few lone points.
PARTS = [blobs(seed=0), blobs(seed=1), np.array([[0.0, 0.0], [9.0, 9.0], [40.0, 40.0]])]


def mixtures(*clusters):
    """Return what a client would say of clusters, each a list of (weight, mean, variance)."""
    flat = [component for _, components in clusters for component in components]
    return ClusterMixtures(
        np.array([size for size, _ in clusters]),
        np.array([len(components) for _, components in clusters]),
        np.array([weight for weight, _, _ in flat], float),
        np.array([mean for _, mean, _ in flat], float),
        np.array([variance * np.eye(2) for _, _, variance in flat]),
    )


# A toy, by hand ---------------------------------------------------------------------------------


def test_the_flow_by_hand():
    """Narrow Gaussians: the drawn points are the means, nearly."""
    flow = GaussianMixtureDBSCAN(1, 3, n_components=2, random_state=0).protocol()
    asked = next(flow)
    assert (asked.eps, asked.min_samples, asked.n_components) == (1.0, 3, 2)
    first = mixtures((6, [(0.5, (0, 0), 1e-12), (0.5, (0.5, 0), 1e-12)]))
    second = mixtures((3, [(1, (1.2, 0), 1e-12)]), (2, [(1, (9, 9), 1e-12)]))
    said = flow.send(Replies({"A": first, "B": second}))
    # 6 + 3 points along a line, each near its neighbours; the 2 at (9, 9) are too few.
    assert isinstance(said, AssignPoints)
    assert said.points.shape == (9, 2)
    assert not said.labels.any()
    assert set(np.unique(said.points.round(3), axis=0)[:, 0]) == {0.0, 0.5, 1.2}
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done(), "B": Done()}))
    model = finished.value.value
    assert model.labels.tolist() == [0] * 9 + [-1] * 2
    assert model.core.tolist() == [True] * 9 + [False] * 2


def test_the_conversation():
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    said = ["DescribeClusters", "ClusterMixtures", "AssignPoints", "Done"]
    assert model.ledger_.conversation() == said
    assert len(model.ledger_) == 12


def test_labels():
    """The lone client's points get the clusters that the others made; (40, 40) is noise."""
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
    """What is noise at its client is described by nothing and drawn by nobody."""
    transport = relay({str(i): GaussianMixtureDBSCANClient(X) for i, X in enumerate(PARTS)})
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(transport)
    own = [DBSCAN(eps=EPS, min_samples=5).fit_predict(X) for X in PARTS]
    for i, labels in enumerate(own):
        sizes = np.bincount(labels[labels >= 0], minlength=labels.max() + 1)
        assert decode(transport.exchanges[0].reply_bytes[str(i)]).sizes.tolist() == sizes.tolist()
    assert len(model.samples_) == sum((labels >= 0).sum() for labels in own)
    # Four points each of a cluster that all five clients share: none of them sees it.
    rng = np.random.default_rng(0)
    thin = [np.concatenate([blobs(seed=i), rng.normal(30, 0.1, (4, 2))]) for i in range(5)]
    assert DBSCAN(eps=EPS, min_samples=5).fit_predict(np.concatenate(thin))[-1] == 2
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(thin)
    assert all((labels[-4:] == -1).all() for labels in model.labels_)
    model.set_params(local_min_samples=4).fit(thin)
    assert all((labels[-4:] == 2).all() for labels in model.labels_)


# Describing a cluster ---------------------------------------------------------------------------


@st.composite
def clusters(draw):
    """Draw few points on a coarse grid: equal ones, ones on a line, ones in a plane."""
    d = draw(st.integers(1, 4))
    n = draw(st.integers(1, 60))
    reach = draw(st.sampled_from([0, 1, 3, 50]))
    points = draw(arrays(np.int64, (n, d), elements=st.integers(-reach, reach)))
    if d > 1 and draw(st.booleans()):
        points[:, -1] = points[:, 0]
    return points * draw(st.sampled_from([1e-3, 1.0, 1e6]))


@given(clusters(), st.integers(1, 12), st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=25)
def test_any_cluster_has_a_mixture(X, n_components, eps):
    """At most n // (2(d + 1)) components, each with d + 1 points or else alone; always valid."""
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
    """Two clusters of n points apart: 6 points a component in two features."""
    X = np.random.default_rng(0).uniform(size=(n, 2)) + 5 * (np.arange(n) % 2)[:, np.newaxis]
    assert len(describe_cluster(X, n_components, 1.0, 0).weights) == wanted


def test_one_fewer_while_a_component_holds_too_few():
    """18 points in two features may have three Gaussians; one of them would hold two points."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (8, 2)), rng.normal(30, 1, (8, 2)), [[0, 60], [1, 60]]])
    mixture = describe_cluster(X, 3, 1.0, 0)
    assert len(mixture.weights) == 2


def test_equal_points():
    """One spherical Gaussian whose variance is 1e-4 · eps²."""
    mixture = describe_cluster(np.full((9, 3), 7.0), 10, 2.0, 0)
    assert mixture.means.tolist() == [[7, 7, 7]]
    np.testing.assert_allclose(mixture.covariances, [4e-4 * np.eye(3)])


def test_drawn_points_follow_the_mixture():
    said = mixtures((30_000, [(0.25, (0, 0), 1), (0.75, (8, 0), 4)]), (10_000, [(1, (0, 90), 1)]))
    drawn = draw_points(said, 0)
    assert len(drawn) == 40_000
    near, far = drawn[:30_000], drawn[30_000:]
    assert (near[:, 0] < 3).mean() == pytest.approx(0.25, abs=0.02)
    np.testing.assert_allclose(far.mean(axis=0), [0, 90], atol=0.05)
    np.testing.assert_allclose(np.cov(far.T), np.eye(2), atol=0.05)
    right = near[near[:, 0] > 8]
    assert right[:, 1].var() == pytest.approx(4, rel=0.05)


def test_drawn_points_have_the_covariance():
    matrix = np.array([[2.0, 1.5], [1.5, 3.0]])
    said = ClusterMixtures(
        np.array([40_000]), np.array([1]), np.ones(1), np.zeros((1, 2)), matrix[np.newaxis]
    )
    np.testing.assert_allclose(np.cov(draw_points(said, 0).T), matrix, atol=0.1)


# Against DBSCAN on all points -------------------------------------------------------------------


@pytest.mark.parametrize("n_clients", [1, 2, 4])
def test_moons(n_clients):
    """Two crescents that no Gaussian fits, and ten do."""
    X, y = make_moons(1200, noise=0.05, random_state=0)
    rows = split_rows(X, n_clients, y)
    model = GaussianMixtureDBSCAN(0.2, 5, random_state=0).fit([X[own] for own in rows])
    central = DBSCAN(eps=0.2, min_samples=5).fit_predict(X)
    labels = np.empty(len(X), int)
    labels[np.concatenate(rows)] = np.concatenate(model.labels_)
    assert adjusted_rand_score(central, labels) > 0.98
    one = GaussianMixtureDBSCAN(0.2, 5, n_components=1, random_state=0)
    one.fit([X[own] for own in rows])
    assert adjusted_rand_score(y[np.concatenate(rows)], np.concatenate(one.labels_)) < 0.5


# Clients with little, or nothing to share; clients that leave, and clients that lie -------------


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


def test_clients_may_be_made_anew(reborn):
    transport = reborn(GaussianMixtureDBSCANClient, dict(zip("ABC", PARTS, strict=True)))
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(transport)
    wanted = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS)
    assert np.array_equal(model.samples_, wanted.samples_)
    for state, labels in zip(transport.states.values(), wanted.labels_, strict=True):
        assert (decode(state, Labels).labels == labels).all()


class Leaving(GaussianMixtureDBSCANClient):
    def __init__(self, X, at):
        super().__init__(X)
        self.at = at

    def answer(self, request):
        if isinstance(request, self.at):
            raise ConnectionError
        return super().answer(request)


@pytest.mark.parametrize(("at", "n_parts"), [(DescribeClusters, 1), (AssignPoints, 2)])
def test_a_client_leaves(at, n_parts):
    """Before it has described its clusters nothing of it is drawn, after that everything."""
    clients = {"A": GaussianMixtureDBSCANClient(PARTS[0]), "B": Leaving(PARTS[1], at)}
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(InProcess(clients), min_clients=1)
    wanted = GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(PARTS[:n_parts])
    assert np.array_equal(model.samples_, wanted.samples_)
    assert clients["B"].state is None
    with pytest.raises(TooFewClients, match="1 of 2 clients left, 2 needed. Lost: 'B'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(InProcess(clients))


def float64(*values):
    array = np.array(values, float)
    return ["float64", list(array.shape), array.tobytes()]


def int64(*values):
    return ["int64", [len(values)], np.array(values, np.int64).tobytes()]


HONEST = mixtures((9, [(0.5, (0, 0), 1), (0.5, (5, 5), 1)]), (9, [(1, (9, 9), 1)]))
EYE = np.eye(2)
LIES = {
    "more points than memory": {"sizes": int64(MAX_POINTS, MAX_POINTS)},
    "a size that overflows": {"sizes": int64(2**63 - 1, 1)},
    "an empty cluster": {"sizes": int64(0, 9)},
    "more sizes than clusters": {"sizes": int64(9, 9, 9)},
    "components that do not add up": {"n_components": int64(1, 1)},
    "more components than asked": {
        "sizes": int64(9),
        "n_components": int64(3),
        "weights": float64(0.2, 0.3, 0.5),
    },
    "weights of more than one": {"weights": float64(0.5, 0.6, 1)},
    "weights between clusters": {"weights": float64(1, 0.5, 0.5)},
    "a weight below zero": {"weights": float64(-0.5, 1.5, 1)},
    "NaN": {"means": float64([np.nan, 0], [5, 5], [9, 9])},
    "far out": {"means": float64([1e101, 0], [5, 5], [9, 9])},
    "no features": {
        "means": float64([], [], []),
        "covariances": ["float64", [3, 0, 0], b""],
    },
    "not square": {"covariances": float64(EYE[:1], EYE[:1], EYE[:1])},
    "no covariance": {"covariances": float64([[1, 2], [2, 1]], EYE, EYE)},
    "skew": {"covariances": float64([[1, 0.5], [0, 1]], EYE, EYE)},
    "singular": {"covariances": float64(0 * EYE, EYE, EYE)},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_client(relay, lie):
    """It is lost with a `MessageError`; the run goes on and is that of the others."""

    def tell(request, reply):
        fields = msgspec.msgpack.decode(msgspec.msgpack.encode(HONEST, enc_hook=to_wire))
        if msgspec.msgpack.decode(reply)["type"] != "ClusterMixtures":
            return reply
        return msgspec.msgpack.encode(fields | LIES.get(lie, {}))

    clients = {name: GaussianMixtureDBSCANClient(X) for name, X in zip("ABC", PARTS, strict=True)}
    model = GaussianMixtureDBSCAN(EPS, 5, n_components=2, random_state=0)
    model.fit(relay(clients, {"B": tell}), min_clients=2)
    assert model.ledger_.lost == {"B": "InvalidReply at DescribeClusters, step 1"}
    wanted = clone(model).fit([PARTS[0], PARTS[2]])
    assert np.array_equal(model.samples_, wanted.samples_)
    lie = "none"
    assert not clone(model).fit(relay(clients, {"B": tell})).ledger_.lost


def to_wire(array):
    return array.dtype.name, array.shape, array.tobytes()


def test_points_of_another_space(relay):
    parts = {"A": PARTS[0], "B": np.zeros((9, 3))}
    with pytest.raises(ValueError, match="number of features: 2 at '0'; 3 at '1'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(list(parts.values()))
    clients = {name: GaussianMixtureDBSCANClient(X) for name, X in parts.items()}
    with pytest.raises(ValueError, match="number of features: 2 at 'A'; 3 at 'B'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(relay(clients))
    named = [pd.DataFrame(PARTS[0], columns=list(names)) for names in ("xy", "yx")]
    clients = {n: GaussianMixtureDBSCANClient(X) for n, X in zip("AB", named, strict=True)}
    with pytest.raises(ValueError, match="the features: x, y at 'A'; y, x at 'B'"):
        GaussianMixtureDBSCAN(EPS, 5).fit(relay(clients))


def test_the_coordinates_never_travel(relay):
    """But for a cluster of equal points: their mean is the point."""
    transport = relay({str(i): GaussianMixtureDBSCANClient(X) for i, X in enumerate(PARTS)})
    GaussianMixtureDBSCAN(EPS, 5, random_state=0).fit(transport)
    assert not [x for x in np.concatenate(PARTS[:2]).ravel() if x.tobytes() in transport.all_bytes]


# Bad input --------------------------------------------------------------------------------------


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


def test_mixtures_are_mixtures():
    with pytest.raises(MessageError, match="weights must sum to 1 in each cluster"):
        mixtures((9, [(0.5, (0, 0), 1)]))


def test_predict_checks_its_points():
    model = GaussianMixtureDBSCAN(EPS, 5, random_state=0)
    with pytest.raises(NotFittedError):
        model.predict(PARTS[0])
    model.fit(PARTS)
    with pytest.raises(ValueError, match="same features"):
        model.predict(np.zeros((1, 3)))


def test_random_state():
    models = [GaussianMixtureDBSCAN(EPS, 5, random_state=s).fit(PARTS) for s in (1, 1, 2)]
    assert np.array_equal(models[0].samples_, models[1].samples_)
    assert not np.array_equal(models[0].samples_, models[2].samples_)
