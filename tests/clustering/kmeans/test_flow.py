"""The flows: small examples by hand, and agreement with scikit-learn."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fedlib import FederatedKMeans
from fedlib.clustering.kmeans.estimator import FederatedKMeansClient
from fedlib.clustering.kmeans.local import child_centres
from fedlib.clustering.kmeans.messages import AssignCentres, FindCentres, Inertia, LocalCentres
from fedlib.core.messages import Done
from fedlib.datasets.partition import split_rows

from .points import blobs, sorted_rows

# Small examples, by hand --------------------------------------------------------------------------


def test_one_shot_by_hand():
    """Two studies on a line, two clusters; a quarter of each study's rows is the update.

    The first study's base is 0, 2 and 10, so its centres are 1 (of two points) and 10; its first
    row, 13, moves 10 to (10 + 13) / 2 = 11.5. The second's base is 1, 1 and 12; its first row, 4,
    moves 1 to (1 * 2 + 4) / 3 = 2. The parent clusters 1, 11.5, 2 and 12.
    """
    parts = [[[13.0], [0.0], [2.0], [10.0]], [[4.0], [1.0], [1.0], [12.0]]]
    model = FederatedKMeans(2, method="one_shot", random_state=0).fit(parts)
    assert sorted_rows(model.local_centers_[:2]) == [[1.0], [11.5]]
    assert sorted_rows(model.local_centers_[2:]) == [[2.0], [12.0]]
    assert sorted(model.local_counts_.tolist()) == [1, 2, 2, 3]
    low, high = model.cluster_centers_.ravel().argsort()
    assert model.cluster_centers_[[low, high], 0].tolist() == [1.5, 11.75]
    assert model.labels_[0].tolist() == [high, low, low, high]
    assert model.labels_[1].tolist() == [low, low, low, high]
    # 0, 2, 4, 1 and 1 belong to 1.5; 13, 10 and 12 belong to 11.75.
    assert model.inertia_ == 1.5**2 + 3 * 0.5**2 + 2.5**2 + 1.25**2 + 1.75**2 + 0.25**2
    assert model.n_features_in_ == 1
    assert not hasattr(model, "n_iter_")


def test_weights_pull_the_parent():
    """The weighted mean of the centres 1 (two points) and 2 (three points) is 1.6."""
    parts = [[[13.0], [0.0], [2.0], [10.0]], [[4.0], [1.0], [1.0], [12.0]]]
    model = FederatedKMeans(2, method="one_shot", weighted=True, random_state=0).fit(parts)
    np.testing.assert_allclose(np.sort(model.cluster_centers_.ravel()), [1.6, (2 * 11.5 + 12) / 3])


def test_lloyd_by_hand():
    """Two rounds: from 0 and 6, the clusters are 0, 2 and 6, 8, 10, and then do not change."""
    parts = [[[0.0], [8.0]], [[2.0], [6.0], [10.0]]]
    model = FederatedKMeans(2, method="lloyd", init=[[0.0], [6.0]]).fit(parts)
    assert model.cluster_centers_.tolist() == [[1.0], [8.0]]
    assert [labels.tolist() for labels in model.labels_] == [[0, 1], [0, 1, 1]]
    assert model.inertia_ == 1 + 1 + 4 + 4
    assert model.n_iter_ == 2
    assert model.ledger_.conversation() == [
        *("SummariseGroups", "GroupMeans"),
        *("SumClusters", "ClusterSums") * 2,
        *("AssignCentres", "Done"),
    ]
    assert not hasattr(model, "local_centers_")


def test_a_centre_without_points_does_not_move():
    """No point is near 100, and no client has to disclose a point to which it could move."""
    with pytest.warns(ConvergenceWarning, match="1 of n_clusters=2 clusters have no points"):
        model = FederatedKMeans(2, method="lloyd", init=[[0.0], [100.0]]).fit([[[1.0]], [[3.0]]])
    assert model.cluster_centers_.tolist() == [[2.0], [100.0]]
    assert [labels.tolist() for labels in model.labels_] == [[0], [0]]


def test_the_conversation_of_one_shot():
    model = FederatedKMeans(3, method="one_shot", random_state=0).fit(np.split(blobs()[0], 3))
    assert model.ledger_.conversation() == [
        *("FindCentres", "LocalCentres"),
        *("MeasureInertia", "Inertia"),
        *("AssignCentres", "Done"),
    ]
    assert len(model.ledger_) == 2 * 3 * 3


def test_the_flow_by_hand():
    """The server sends parameters, with an int as the seed, and then centres."""
    flow = FederatedKMeans(2, method="one_shot", random_state=42).protocol()
    assert next(flow) == FindCentres(2, 0.25, 10, 300, 1e-4, 42)
    reply = LocalCentres(np.array([[0.0], [4.0]]), np.array([2, 3]))
    centres = np.sort(flow.send({"A": reply}).centres, axis=0)
    assert centres.tolist() == [[0.0], [4.0]]
    assert isinstance(flow.send({"A": Inertia(2.5)}), AssignCentres)
    with pytest.raises(StopIteration) as finished:
        flow.send({"A": Done()})
    assert finished.value.value.inertia == 2.5


# One shot -----------------------------------------------------------------------------------------


def test_one_study_keeps_its_centres():
    X = blobs()[0]
    model = FederatedKMeans(3, method="one_shot", random_state=1).fit([X])
    _, centres, _ = child_centres(X, 3, 0.25, n_init=10, max_iter=300, tol=1e-4, random_state=1)
    np.testing.assert_allclose(sorted_rows(model.cluster_centers_), sorted_rows(centres))


def test_a_study_smaller_than_k_has_fewer_centres():
    parts = [blobs()[0], np.empty((0, 2)), [[1.0, 1.0]], [[2.0, 2.0]] * 5, [[0.0, 9.0], [9.0, 0.0]]]
    model = FederatedKMeans(3, method="one_shot", random_state=0).fit(parts)
    assert len(model.local_counts_) == 3 + 0 + 1 + 1 + 2
    assert [len(labels) for labels in model.labels_] == [90, 0, 1, 5, 2]


def test_too_few_distinct_centres_are_refused():
    parts = [[[1.0]] * 9, [[2.0]] * 9]
    assert FederatedKMeans(2, method="one_shot").fit(parts).inertia_ == 0
    with pytest.raises(
        ValueError, match=r"n_clusters must be in 1\.\.2, the number of distinct centres"
    ):
        FederatedKMeans(3, method="one_shot").fit(parts)
    with pytest.raises(
        ValueError, match=r"n_clusters must be in 1\.\.2, the number of distinct means"
    ):
        FederatedKMeans(3).fit(parts)


# Lloyd's iteration against scikit-learn -----------------------------------------------------------


@st.composite
def problems(draw):
    """Draw points without ties, their division between clients, and a start on or off points."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, k, d = draw(st.integers(1, 60)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    assume(k <= n)
    scale, offset = draw(st.sampled_from([(1.0, 0.0), (1e-3, 1.0), (1e6, -3e6), (1e-9, 0.0)]))
    X = offset + scale * random.normal(size=(n, d))
    start = X[random.choice(n, k, replace=False)]
    if draw(st.booleans()):
        start = start + 0.1 * scale * random.normal(size=(k, d))
    client = random.integers(0, draw(st.integers(1, 6)), n)
    return [X[client == c] for c in range(client.max() + 1)], start


def empties_a_cluster(X, centres):
    """Return whether plain Lloyd's iteration has a cluster without points in any round."""
    before = None
    while True:
        labels = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        if len(np.unique(labels)) < len(centres):
            return True
        if before is not None and (labels == before).all():
            return False
        before = labels
        centres = np.array([X[labels == c].mean(axis=0) for c in range(len(centres))])


@given(problems())
@settings(max_examples=100)
def test_lloyd_is_the_centralised_iteration(problem):
    """From the same start, assignments and rounds are equal, and centres agree to 1e-12.

    Except when a cluster loses all points, which scikit-learn moves to a point.
    """
    parts, start = problem
    X = np.concatenate(parts)
    assume(not empties_a_cluster(X, start))
    model = FederatedKMeans(len(start), method="lloyd", init=start, tol=0).fit(parts)
    central = KMeans(len(start), algorithm="lloyd", init=start, n_init=1, tol=0).fit(X)
    assert np.concatenate(model.labels_).tolist() == central.labels_.tolist()
    assert model.n_iter_ == central.n_iter_
    atol = 1e-12 * abs(X).max()
    np.testing.assert_allclose(model.cluster_centers_, central.cluster_centers_, 0, atol)
    np.testing.assert_allclose(model.inertia_, central.inertia_, 1e-9, atol**2)


@pytest.mark.parametrize("options", [{"tol": 0.01}, {"tol": 0.05}, {"max_iter": 2, "tol": 0}])
def test_lloyd_stops_in_the_same_iteration_as_scikit_learn(options):
    """It stops while the centres still move. Labels and inertia are those of the last centres."""
    X = np.random.default_rng(3).random((500, 2)) + 5
    start = X[:4]
    model = FederatedKMeans(4, method="lloyd", init=start, **options).fit(np.split(X, [100, 101]))
    central = KMeans(4, algorithm="lloyd", init=start, n_init=1, **options).fit(X)
    to_the_end = FederatedKMeans(4, method="lloyd", init=start, tol=0).fit([X])
    assert model.n_iter_ == central.n_iter_ < to_the_end.n_iter_
    assert np.concatenate(model.labels_).tolist() == central.labels_.tolist()
    np.testing.assert_allclose(model.cluster_centers_, central.cluster_centers_, rtol=1e-12)
    np.testing.assert_allclose(model.inertia_, central.inertia_, rtol=1e-12)
    np.testing.assert_allclose(model.inertia_, -model.to_sklearn().score(X), rtol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "spatial", "stratified"])
def test_lloyd_finds_the_blobs_from_its_own_start(how):
    """It does so for any division of the rows, even if a client has points of one blob only."""
    X, blob = blobs(300)
    parts = [X[rows] for rows in split_rows(X, 12, blob, how=how, random_state=0)]
    model = FederatedKMeans(3, method="lloyd", n_init=3, random_state=0).fit(parts)
    central = KMeans(3, n_init=3, random_state=0).fit(X)
    np.testing.assert_allclose(model.inertia_, central.inertia_)
    np.testing.assert_allclose(
        sorted_rows(model.cluster_centers_), sorted_rows(central.cluster_centers_)
    )


def test_the_best_of_several_starts_counts():
    X = np.random.default_rng(0).random((300, 2))
    parts = np.split(X, 5)
    one = FederatedKMeans(8, method="lloyd", n_init=1, random_state=0).fit(parts)
    ten = FederatedKMeans(8, method="lloyd", n_init=10, random_state=0).fit(parts)
    assert ten.inertia_ < one.inertia_
    assert len(ten.ledger_.conversation()) < 3 * len(one.ledger_.conversation())


def test_the_order_of_the_clients_does_not_change_lloyds_result():
    X, start = np.random.default_rng(1).normal(size=(400, 3)), np.eye(3)
    parts = np.split(X, [10, 50, 200, 333])
    model = FederatedKMeans(3, method="lloyd", init=start).fit(parts)
    other = FederatedKMeans(3, method="lloyd", init=start).fit(parts[::-1])
    assert model.cluster_centers_.tobytes() == other.cluster_centers_.tobytes()
    assert model.inertia_ == other.inertia_


def test_no_client_discloses_a_row_for_the_start(relay):
    X = np.random.default_rng(5).random((50, 2))
    transport = relay({"A": FederatedKMeansClient(X), "B": FederatedKMeansClient(X[:2])})
    FederatedKMeans(3, method="lloyd", random_state=0).fit(transport)
    first = b"|".join(transport.exchanges[0].reply_bytes.values())
    assert not any(row.tobytes() in first for row in X)


def test_a_start_can_be_given_when_there_are_too_few_points():
    parts = [[[0.0], [1.0]], [[5.0]]]
    with pytest.raises(ValueError, match="or pass init as an array"):
        FederatedKMeans(2, method="lloyd").fit(parts)
    model = FederatedKMeans(2, method="lloyd", init=[[0.0], [5.0]]).fit(parts)
    assert model.cluster_centers_.tolist() == [[0.5], [5.0]]
