"""DBDC: examples by hand, its definitions as properties, its conversation, and false replies."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.cluster import DBSCAN, KMeans
from sklearn.metrics import adjusted_rand_score

from fedlib import DBDC
from fedlib.clustering.density.dbdc import (
    BuildLocalModel,
    DBDCClient,
    LocalModel,
    specific_core_points,
)
from fedlib.clustering.density.engine.dbscan import dbscan
from fedlib.clustering.density.representatives import RelabelPoints
from fedlib.core.messages import Done, MessageError
from fedlib.core.protocol import Replies
from fedlib.datasets.partition import split_rows
from fedlib.datasets.stand_ins import shapes

LOCAL_MODELS = ["core", "kmeans"]
NO_LABELS = np.empty(0, np.int64)


def as_lists(labels):
    return [part.tolist() for part in labels]


def squared_distances(X, Y):
    """Return all squared distances, rounded as in the kernels."""
    total = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        total += (x[:, None] - y) ** 2
    return total


def within(X, Y, eps):
    """Return which points of X are within eps of which points of Y.

    As in the kernels, squares are compared. A root can be rounded to eps although its square is
    larger: (0.2, 0.3) and (-0.1, -0.1) are 0.5 apart, and their squared distance is above 0.25.
    """
    return squared_distances(X, Y) <= eps * eps


def distances(X, Y):
    """Return all distances, rounded as in the kernels."""
    return np.sqrt(squared_distances(X, Y))


# Examples by hand -------------------------------------------------------------------------------

# On a line, with eps 1, three points make a core point.
FIRST = np.array(
    [
        [0.0],  # border: neighbours 0.0, 0.6
        [0.6],  # core: 0.0, 0.6, 1.2. The first core point, so specific; core 1.2 is within its eps
        [1.2],  # core: 0.6, 1.2, 2.0; covered by 0.6
        [2.0],  # border
        [5.0],  # noise, and nothing reaches it
    ]
)
SECOND = np.array(
    [
        [3.0],  # border: 3.0, 3.9
        [3.9],  # core: 3.0, 3.9, 4.6
        [4.6],  # border
        [1.5],  # alone, so noise at its client; but 0.6 reaches it
        [20.0],  # a cluster: three equal points
        [20.0],
        [20.0],
    ]
)


def test_specific_core_points_by_hand():
    """0.6 reaches 1 + 0.6. No other core points are around 3.9 and 20.0, so they reach 1."""
    model = DBDC(eps=1.0, min_samples=3).fit([FIRST, SECOND])
    assert model.representatives_.tolist() == [[0.6], [3.9], [20.0]]
    np.testing.assert_allclose(model.radii_, [1.6, 1.0, 1.0], rtol=1e-9)
    assert model.representative_labels_.tolist() == [0, 1, 2]  # 3.3 apart: more than 2 eps
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [1, 1, 1, 0, 2, 2, 2]]
    assert model.n_features_in_ == 1
    assert not hasattr(model, "weights_")  # clients do not send numbers of points


def test_eps_global_joins_representatives():
    model = DBDC(1.0, 3, eps_global=3.4).fit([FIRST, SECOND])
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, 0, 0, 0, 1, 1, 1]]


def test_centroids_by_hand():
    """The means of the three clusters, each with the distance to its furthest point."""
    model = DBDC(1.0, 3, local_model="kmeans").fit([FIRST, SECOND])
    centroids = [0.95, 11.5 / 3, 20.0]
    np.testing.assert_allclose(model.representatives_.ravel(), centroids, rtol=1e-12)
    np.testing.assert_allclose(model.radii_, [1.05, 11.5 / 3 - 3, 0.0], rtol=1e-9, atol=0)
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [1, 1, 1, 0, 2, 2, 2]]


def test_noise_at_several_clients_that_is_a_cluster_together():
    """Six neighbours, two at each of three clients: the cluster that DBSCAN finds is lost."""
    X = np.linspace(0, 1, 6).reshape(-1, 1)
    assert DBSCAN(eps=1.0, min_samples=4).fit_predict(X).tolist() == [0] * 6
    model = DBDC(1.0, 4).fit([X[:2], X[2:4], X[4:]])
    assert as_lists(model.labels_) == [[-1, -1]] * 3
    assert model.representatives_.shape == (0, 1)


@pytest.mark.parametrize("local_model", LOCAL_MODELS)
def test_the_conversation(local_model):
    model = DBDC(1.0, 3, local_model=local_model).fit([FIRST, SECOND])
    conversation = ["BuildLocalModel", "LocalModel", "RelabelPoints", "Done"]
    assert model.ledger_.conversation() == conversation
    assert len(model.ledger_) == 8


def test_the_last_request():
    """It contains all representatives in lexicographic order, which hides their clients."""
    flow = DBDC(1, 3).protocol()
    assert next(flow) == BuildLocalModel(1.0, 3, "core")
    first = LocalModel(np.array([[3.9], [20.0]]), np.array([1.0, 1.2]))
    second = LocalModel(np.array([[0.6], [2.0]]), np.array([1.6, 1.0]))
    request = flow.send(Replies({"A": first, "B": second}))
    places, radii = np.array([[0.6], [2.0], [3.9], [20.0]]), np.array([1.6, 1.0, 1.0, 1.2])
    labels = np.array([0, 0, 0, 1])
    assert request == RelabelPoints(NO_LABELS, places, radii, labels)
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done(), "B": Done()}))
    assert finished.value.value.representatives.tolist() == [[3.9], [20.0], [0.6], [2.0]]
    assert finished.value.value.labels.tolist() == [0, 1, 0, 0]


# The definitions, as properties -----------------------------------------------------------------


@st.composite
def problems(draw, max_points=60):
    """Draw points on a lattice of tenths, some of them equal, and parameters.

    Coordinates in tenths are rounded, so that some distances are just above or below eps.
    """
    n, d = draw(st.integers(1, max_points)), draw(st.integers(1, 2))
    width = {1: 40, 2: 8}[d]
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-width, width))) / 10
    return X, draw(st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0])), draw(st.integers(1, 6))


@given(problems())
@example((np.array([[0.2, 0.3], [-0.1, -0.1]]), 0.5, 1))
def test_specific_core_points(problem):
    """They are core points, no two within eps, and every core point is within eps of one of them.

    Each reaches eps further than the furthest core point within its eps, and slightly more to allow
    for rounding.
    """
    X, eps, min_samples = problem
    near = within(X, X, eps)
    core = near.sum(axis=1) >= min_samples
    chosen, radii = specific_core_points(X, core, eps)
    assert core[chosen].all()
    assert (near[np.ix_(chosen, chosen)] == np.eye(len(chosen), dtype=bool)).all()
    assert near[np.ix_(core, chosen)].any(axis=1).all()
    for i, radius in zip(chosen, radii, strict=True):
        exact = eps + distances(X[[i]], X[near[i] & core]).max()
        assert exact < radius < exact * (1 + 1e-11)


@given(problems(), st.sampled_from(LOCAL_MODELS))
@example((np.array([[0.2, 0.3], [-0.1, -0.1]]), 0.5, 2), "core")
def test_a_cluster_is_never_lost(problem, local_model):
    """With one client, every point of DBSCAN's clusters is reached, so none becomes noise."""
    X, eps, min_samples = problem
    model = DBDC(eps, min_samples, local_model=local_model).fit([X])
    # A slightly larger eps, as many distances on the lattice equal eps except for rounding.
    central = DBSCAN(eps=eps * (1 + 1e-9), min_samples=min_samples).fit_predict(X)
    if not (within(X, X, eps * (1 + 1e-9)) & ~within(X, X, eps)).any():
        assert (model.labels_[0][central >= 0] >= 0).all()
        assert (model.representative_labels_ >= 0).all()


@given(problem=problems(), data=st.data())
def test_clusters_of_representatives(problem, data, deal):
    """DBSCAN with MinPts 2, and one more cluster for each representative that is noise there."""
    X, eps, min_samples = problem
    model = DBDC(eps, min_samples).fit([X[rows] for rows in deal(data, X)])
    places = model.representatives_
    if len(places):
        linked = DBSCAN(eps=2, min_samples=2, metric="precomputed").fit_predict(
            np.where(within(places, places, 2 * eps), 1.0, 3.0)
        )
        alone = linked < 0
        linked[alone] = len(places) + np.arange(alone.sum())
        pairs = set(zip(linked.tolist(), model.representative_labels_.tolist(), strict=True))
        assert len(pairs) == len(set(linked)) == len(set(model.representative_labels_))


@given(problem=problems(), local_model=st.sampled_from(LOCAL_MODELS), data=st.data())
def test_points_go_to_the_nearest_representative(problem, local_model, data, deal, by_row):
    """Only those that reach a point count; ties go to the first. Points without one are noise."""
    X, eps, min_samples = problem
    rows = deal(data, X)
    model = DBDC(eps, min_samples, local_model=local_model).fit([X[part] for part in rows])
    order = np.lexsort((model.radii_, *model.representatives_.T[::-1]))
    places, radii = model.representatives_[order], model.radii_[order]
    squared = sum((x[:, None] - y) ** 2 for x, y in zip(X.T, places.T, strict=True))
    squared = np.where(squared <= radii**2, squared, np.inf)
    wanted = np.full(len(X), -1)
    if len(places):
        reached = np.isfinite(squared).any(axis=1)
        wanted[reached] = model.representative_labels_[order][squared.argmin(axis=1)][reached]
    np.testing.assert_array_equal(by_row(rows, model.labels_), wanted)
    np.testing.assert_array_equal(model.predict(X), wanted)


def test_centroids_stay_inside_their_cluster():
    """scikit-learn's k-means in each cluster of the client, from its specific core points."""
    X = np.random.default_rng(0).random((400, 2)) * [4, 1]
    X = X[np.lexsort(X.T[::-1])]
    client = DBDCClient(X)
    core = client.handle(BuildLocalModel(0.15, 6, "core")).representatives
    centroids = client.handle(BuildLocalModel(0.15, 6, "kmeans")).representatives
    local = dbscan(X, 0.15, 6)
    of_core = local[distances(core, X).argmin(axis=1)]
    assert local.max() >= 1
    models = [
        KMeans((of_core == c).sum(), init=core[of_core == c], n_init=1, tol=0).fit(X[local == c])
        for c in range(local.max() + 1)
    ]
    wanted = np.concatenate([model.cluster_centers_ for model in models])
    np.testing.assert_allclose(centroids, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("local_model", LOCAL_MODELS)
def test_it_agrees_with_dbscan(local_model, by_row):
    """The shapes are far apart. Each of five clients has a fifth of the points, so MinPts is 2."""
    X, _ = shapes(4000)
    rows = split_rows(X, 5, how="uniform", random_state=0)
    model = DBDC(1.8, 2, local_model=local_model).fit([X[part] for part in rows])
    assert adjusted_rand_score(dbscan(X, 1.8, 10), by_row(rows, model.labels_)) > 0.97


# False replies and invalid input ----------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.99, 2.01])
def test_a_specific_core_point_with_an_impossible_radius(radius, relay, sends):
    """It is not in eps..2 eps, so the client is lost. That of a centroid may be."""
    false_reply = LocalModel(np.array([[2.6]]), np.array([radius]))
    clients = {"A": DBDCClient(FIRST), "B": DBDCClient(FIRST)}
    model = DBDC(1.0, 3).fit(relay(clients, {"B": sends(false_reply)}), min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at BuildLocalModel, step 1"}
    assert model.representatives_.tolist() == [[0.6]]
    with pytest.raises(MessageError, match="a radius must be in 1.0..2.0"):
        BuildLocalModel(1.0, 3, "core").accept(false_reply)
    BuildLocalModel(1.0, 3, "kmeans").accept(false_reply)


def test_the_radius_of_a_centroid_is_bounded():
    """By 2 eps times the square root of the largest number of points, 2**40."""
    request = BuildLocalModel(0.5, 3, "kmeans")
    request.accept(LocalModel(np.array([[6.0]]), np.array([2.0**20])))
    with pytest.raises(MessageError, match=r"a radius must be in 0.0..1048576"):
        request.accept(LocalModel(np.array([[6.0]]), np.array([2.0**20 + 1])))


@pytest.mark.parametrize("radius", [100.0, 2e6])
def test_a_centroid_with_too_large_a_radius(radius, relay, sends):
    """Its cluster gains the noise, and the points to which it is nearest; the rest stays."""
    false_reply = LocalModel(np.array([[6.0]]), np.array([radius]))
    estimator = DBDC(1.0, 3, local_model="kmeans")
    alone, affected = DBDCClient(FIRST), DBDCClient(FIRST)
    clone(estimator).fit(relay({"A": alone}))
    clients = {"A": affected, "B": DBDCClient(FIRST)}
    model = clone(estimator).fit(relay(clients, {"B": sends(false_reply)}))
    assert model.representative_labels_.tolist() == [0, 1]
    before, after = alone.state.labels, affected.state.labels
    assert -1 in before
    assert after.tolist() == np.where(before < 0, 1, before).tolist()


@pytest.mark.parametrize(
    ("places", "radii"),
    [
        ([[np.nan]], [1.0]),
        ([[np.inf]], [1.0]),
        ([[0.0]], [-1.0]),
        ([[0.0]], [1.0, 1.0]),
        ([0.0], [1.0]),
    ],
)
def test_invalid_local_models(places, radii):
    with pytest.raises(MessageError):
        LocalModel(np.array(places), np.array(radii))


@pytest.mark.parametrize("local_model", LOCAL_MODELS)
def test_representatives_whose_squares_overflow(local_model, relay, sends):
    """Such coordinates do not change the clusters of the others."""
    false_reply = LocalModel(np.array([[1e308], [-1e308]]), np.array([1.0, 1.0]))
    clients = {"A": DBDCClient(FIRST), "B": DBDCClient(FIRST)}
    estimator = DBDC(1.0, 3, local_model=local_model)
    model = estimator.fit(relay(clients, {"B": sends(false_reply)}))
    assert clients["A"].state.labels.tolist() == [1, 1, 1, 1, -1]
    assert sorted(model.representative_labels_.tolist()) == [0, 1, 2]


def test_eps_too_large_to_be_doubled():
    """The error comes before the first request."""
    with pytest.raises(ValueError, match="eps_global, by default 2 eps, must be finite, got inf"):
        next(DBDC(1e308, 3).protocol())


def test_representatives_without_features(relay, sends):
    false_reply = LocalModel(np.empty((0, 0)), np.empty(0))
    with pytest.raises(ValueError, match="have no features"):
        DBDC(1.0, 3).fit(relay({"A": DBDCClient(FIRST)}, {"A": sends(false_reply)}))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"eps": 0}, "eps"),
        ({"eps": np.nan}, "eps"),
        ({"min_samples": 0}, "min_samples"),
        ({"min_samples": 2.5}, "min_samples"),
        ({"local_model": "mean"}, "local_model"),
        ({"eps_global": 0}, "eps_global"),
        ({"eps_global": np.inf}, "eps_global"),
    ],
)
def test_errors_name_the_parameter(parameters, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        DBDC(**({"eps": 1.0, "min_samples": 3} | parameters)).fit([FIRST])


@pytest.mark.parametrize("X", [[1.0, 2.0], [[np.nan]], [["a"]], np.empty((3, 0))])
def test_errors_name_the_part(X):
    with pytest.raises(ValueError, match=r"parts\[1\]: "):
        DBDC(1.0, 3).fit([FIRST, X])


def test_estimator_conventions():
    model = DBDC(0.5, 3, local_model="kmeans")
    assert repr(clone(model)) == "DBDC(eps=0.5, local_model='kmeans', min_samples=3)"
