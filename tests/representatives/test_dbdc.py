"""DBDC: toys by hand, its definitions as properties, its conversation, and failures."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.cluster import DBSCAN, KMeans
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score

from fedlib import DBDC, PPDBDC, SDBDC
from fedlib.datasets.shapes import shapes
from fedlib.dbscan import dbscan
from fedlib.messages import Done, Labels, MessageError, encode
from fedlib.partition import split_rows
from fedlib.protocol import LostState, Replies, TooFewClients
from fedlib.representatives.dbdc import (
    BuildLocalModel,
    Coverage,
    DBDCClient,
    LocalModel,
    RelabelPoints,
    specific_core_points,
)
from fedlib.representatives.ppdbdc import PPDBDCClient
from fedlib.representatives.sdbdc import SDBDCClient
from fedlib.transports.in_process import InProcess

LOCAL_MODELS = ["core", "kmeans"]
CONVERSATION = ["BuildLocalModel", "LocalModel", "RelabelPoints", "Done"]


def as_lists(labels):
    return [None if part is None else part.tolist() for part in labels]


def distances(X, Y):
    """Return all distances, in the kernels' arithmetic."""
    total = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        total += (x[:, None] - y) ** 2
    return np.sqrt(total)


# Toys, by hand ----------------------------------------------------------------------------------

# On a line, eps 1, three points make a core point.
FIRST = np.array(
    [
        [0.0],  # border: 0.0, 0.6
        [0.6],  # core: 0.0, 0.6, 1.2: the first core point, so specific; its eps holds core 1.2
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
        [1.5],  # alone, so noise at home; but 0.6 reaches it
        [20.0],  # a cluster of its own: three times the same place
        [20.0],
        [20.0],
    ]
)


def test_toy_with_specific_core_points():
    """0.6 reaches 1 + 0.6, 3.9 and 20.0 have no other core points around, so they reach 1."""
    model = DBDC(eps=1.0, min_samples=3).fit([FIRST, SECOND])
    assert model.representatives_.tolist() == [[0.6], [3.9], [20.0]]
    np.testing.assert_allclose(model.radii_, [1.6, 1.0, 1.0], rtol=1e-9)
    assert model.representative_labels_.tolist() == [0, 1, 2]  # 3.3 apart: more than 2 eps
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [1, 1, 1, 0, 2, 2, 2]]
    assert model.n_features_in_ == 1
    assert not hasattr(model, "weights_")  # nobody says how many points a representative has


def test_eps_global_joins_representatives():
    model = DBDC(1.0, 3, eps_global=3.4).fit([FIRST, SECOND])
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [0, 0, 0, 0, 1, 1, 1]]


def test_toy_with_centroids():
    """The means of the three clusters, each with its furthest point at its radius."""
    model = DBDC(1.0, 3, local_model="kmeans").fit([FIRST, SECOND])
    centroids = [0.95, 11.5 / 3, 20.0]
    np.testing.assert_allclose(model.representatives_.ravel(), centroids, rtol=1e-12)
    np.testing.assert_allclose(model.radii_, [1.05, 11.5 / 3 - 3, 0.0], rtol=1e-9, atol=0)
    assert as_lists(model.labels_) == [[0, 0, 0, 0, -1], [1, 1, 1, 0, 2, 2, 2]]


def test_overlaps_go_to_the_nearest_representative():
    """What two representatives reach belongs to the nearer; midway, to the first of the two."""
    client = DBDCClient([[1.0], [2.0], [1.5]])
    places, radii = np.array([[0.0], [3.0]]), np.array([2.5, 2.5])
    told = RelabelPoints(np.empty(0, np.int64), places, radii, np.array([1, 0]))
    assert client.handle(told) == Done()
    assert client.state == Labels(np.array([1, 0, 1]))


def test_noise_at_several_clients_that_is_a_cluster_together():
    """Six points in one place's reach, two at each of three clients: DBSCAN's cluster is lost."""
    X = np.linspace(0, 1, 6).reshape(-1, 1)
    assert DBSCAN(eps=1.0, min_samples=4).fit_predict(X).tolist() == [0] * 6
    model = DBDC(1.0, 4).fit([X[:2], X[2:4], X[4:]])
    assert as_lists(model.labels_) == [[-1, -1]] * 3
    assert model.representatives_.shape == (0, 1)


@pytest.mark.parametrize("local_model", LOCAL_MODELS)
def test_the_conversation(local_model):
    model = DBDC(1.0, 3, local_model=local_model).fit([FIRST, SECOND])
    assert model.ledger_.conversation() == CONVERSATION
    assert len(model.ledger_) == 8


def test_what_the_clients_are_told():
    """The global model, in lexicographic order: nobody sees whose a representative is."""
    flow = DBDC(1, 3).protocol()
    assert next(flow) == BuildLocalModel(1.0, 3, "core")
    first = LocalModel(np.array([[3.9], [20.0]]), np.array([1.0, 1.2]))
    second = LocalModel(np.array([[0.6], [2.0]]), np.array([1.6, 1.0]))
    told = flow.send(Replies({"A": first, "B": second}))
    places, radii = np.array([[0.6], [2.0], [3.9], [20.0]]), np.array([1.6, 1.0, 1.0, 1.2])
    labels = np.array([0, 0, 0, 1])
    assert told == RelabelPoints(np.empty(0, np.int64), places, radii, labels)
    with pytest.raises(StopIteration) as finished:
        flow.send(Replies({"A": Done(), "B": Done()}))
    assert finished.value.value.representatives.tolist() == [[3.9], [20.0], [0.6], [2.0]]
    assert finished.value.value.labels.tolist() == [0, 1, 0, 0]


# The definitions, as properties -----------------------------------------------------------------


@st.composite
def problems(draw, max_points=60):
    """Draw points on a lattice of tenths, where rounding bites, some repeated, and parameters."""
    n, d = draw(st.integers(1, max_points)), draw(st.integers(1, 2))
    width = {1: 40, 2: 8}[d]
    X = draw(hnp.arrays(np.int64, (n, d), elements=st.integers(-width, width))) / 10
    return X, draw(st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0])), draw(st.integers(1, 6))


def dealt(data, X):
    """Draw how the rows are dealt to clients, and in which order; return each client's rows."""
    n_clients = data.draw(st.integers(1, 4))
    owner = data.draw(hnp.arrays(np.int64, len(X), elements=st.integers(0, n_clients - 1)))
    rows = data.draw(st.permutations(range(len(X))))
    return [np.array([i for i in rows if owner[i] == c], np.int64) for c in range(n_clients)]


def in_order_of(X, parts, rows):
    """Return what belongs to each client's rows in the order of X."""
    everything = np.full(len(X), -9)
    for own, part in zip(rows, parts, strict=True):
        everything[own] = part
    return everything


@given(problems())
def test_specific_core_points(problem):
    """They are core points, none within eps of another, and every core point is within eps of one.

    Each reaches eps beyond the furthest core point within its eps (but for rounding, outwards).
    """
    X, eps, min_samples = problem
    near = distances(X, X) ** 2 <= eps**2
    core = near.sum(axis=1) >= min_samples
    chosen, radii = specific_core_points(X, core, eps)
    assert core[chosen].all()
    assert (near[np.ix_(chosen, chosen)] == np.eye(len(chosen), dtype=bool)).all()
    assert near[np.ix_(core, chosen)].any(axis=1).all()
    for i, radius in zip(chosen, radii, strict=True):
        exact = eps + distances(X[[i]], X[near[i] & core]).max()
        assert exact < radius < exact * (1 + 1e-11)


@given(problems(), st.sampled_from(LOCAL_MODELS))
def test_a_cluster_is_never_lost(problem, local_model):
    """With one client, all points of DBSCAN's clusters are reached: none becomes noise."""
    X, eps, min_samples = problem
    model = DBDC(eps, min_samples, local_model=local_model).fit([X])
    # DBSCAN with eps as the kernels see it: on the lattice many points are at just this distance.
    central = DBSCAN(eps=eps * (1 + 1e-9), min_samples=min_samples).fit_predict(X)
    near = distances(X, X)
    if not ((near > eps) & (near <= eps * (1 + 1e-9))).any():
        assert (model.labels_[0][central >= 0] >= 0).all()
        assert (model.representative_labels_ >= 0).all()


@given(problems(), st.data())
def test_clusters_of_representatives(problem, data):
    """DBSCAN with MinPts 2, and a cluster for each representative that it calls noise."""
    X, eps, min_samples = problem
    model = DBDC(eps, min_samples).fit([X[rows] for rows in dealt(data, X)])
    places = model.representatives_
    if len(places):
        linked = DBSCAN(eps=2, min_samples=2, metric="precomputed").fit_predict(
            np.where(distances(places, places) ** 2 <= (2 * eps) ** 2, 1.0, 3.0)
        )
        alone = linked < 0
        linked[alone] = len(places) + np.arange(alone.sum())
        pairs = set(zip(linked.tolist(), model.representative_labels_.tolist(), strict=True))
        assert len(pairs) == len(set(linked)) == len(set(model.representative_labels_))


@given(problems(), st.sampled_from(LOCAL_MODELS), st.data())
def test_points_go_to_the_nearest_representative(problem, local_model, data):
    """Of those that reach it, and of equals to the lexicographically first; else it is noise."""
    X, eps, min_samples = problem
    rows = dealt(data, X)
    model = DBDC(eps, min_samples, local_model=local_model).fit([X[own] for own in rows])
    order = np.lexsort((model.radii_, *model.representatives_.T[::-1]))
    places, radii = model.representatives_[order], model.radii_[order]
    squared = sum((x[:, None] - y) ** 2 for x, y in zip(X.T, places.T, strict=True))
    squared = np.where(squared <= radii**2, squared, np.inf)
    wanted = np.full(len(X), -1)
    if len(places):
        reached = np.isfinite(squared).any(axis=1)
        wanted[reached] = model.representative_labels_[order][squared.argmin(axis=1)][reached]
    labels = in_order_of(X, model.labels_, rows)
    np.testing.assert_array_equal(labels, wanted)
    np.testing.assert_array_equal(model.predict(X), wanted)


def test_centroids_stay_inside_their_cluster():
    """k-means runs in each local cluster alone, from its specific core points: as scikit-learn."""
    X = np.random.default_rng(0).random((400, 2)) * [4, 1]
    X = X[np.lexsort(X.T[::-1])]
    client = DBDCClient(X)
    core = client.handle(BuildLocalModel(0.15, 6, "core")).representatives
    said = client.handle(BuildLocalModel(0.15, 6, "kmeans")).representatives
    local = dbscan(X, 0.15, 6)
    of_core = local[distances(core, X).argmin(axis=1)]
    assert local.max() >= 1
    wanted = [
        KMeans((of_core == c).sum(), init=core[of_core == c], n_init=1, tol=0).fit(X[local == c])
        for c in range(local.max() + 1)
    ]
    centroids = np.concatenate([each.cluster_centers_ for each in wanted])
    np.testing.assert_allclose(said, centroids, rtol=0, atol=1e-12)


@pytest.mark.parametrize("local_model", LOCAL_MODELS)
def test_it_agrees_with_dbscan(local_model):
    """Shapes far apart, over five clients: each has a fifth of the points, and needs as many."""
    X, _ = shapes(4000)
    rows = split_rows(X, 5, how="uniform", random_state=0)
    model = DBDC(1.8, 2, local_model=local_model).fit([X[own] for own in rows])
    labels = in_order_of(X, model.labels_, rows)
    assert adjusted_rand_score(dbscan(X, 1.8, 10), labels) > 0.97


# What the three share ---------------------------------------------------------------------------

THREE = {
    "core": (DBDC(1.0, 3), DBDCClient),
    "kmeans": (DBDC(1.0, 3, local_model="kmeans"), DBDCClient),
    "sdbdc": (SDBDC(1.0, 3), SDBDCClient),
    "sdbdc stopped": (SDBDC(1.0, 3, coverage=0.5, n_representatives=2), SDBDCClient),
    "ppdbdc": (PPDBDC(1.0, 3), partial(PPDBDCClient, random_state=7)),
    "ppdbdc stopped": (PPDBDC(1.0, 3, n_representatives=2), partial(PPDBDCClient, random_state=7)),
}
each = pytest.mark.parametrize(("estimator", "make"), THREE.values(), ids=THREE)


def fitted(estimator, clients, **how):
    """Fit an estimator over clients; return it and the labels that stay with the clients."""
    model = clone(estimator).fit(InProcess(clients), **how)
    return model, {name: client.state.labels.tolist() for name, client in clients.items()}


@given(problems(), st.sampled_from(sorted(THREE)), st.data())
@settings(max_examples=120)
def test_no_order_matters(problem, which, data):
    """Neither that of the rows nor that of the clients changes a label or a representative."""
    X, eps, min_samples = problem
    estimator, make = THREE[which]
    estimator = clone(estimator).set_params(eps=eps, min_samples=min_samples)
    rows = dealt(data, X)
    model, labels = fitted(estimator, {str(i): make(X[own]) for i, own in enumerate(rows)})
    others = [data.draw(st.permutations(own.tolist())) for own in rows]
    order = data.draw(st.permutations(range(len(rows))))
    other, other_labels = fitted(estimator, {str(i): make(X[others[i]]) for i in order})
    before = in_order_of(X, [labels[str(i)] for i in range(len(rows))], rows)
    after = in_order_of(X, [other_labels[str(i)] for i in range(len(rows))], others)
    np.testing.assert_array_equal(after, before)
    said, said_later = (
        sorted(zip(m.representatives_.tolist(), m.representative_labels_.tolist(), strict=True))
        for m in (model, other)
    )
    assert said == said_later


@each
def test_a_client_without_rows(estimator, make):
    """It says that it has no representatives, and the others' result is as if it were not there."""
    model, labels = fitted(estimator, {"A": make(FIRST), "B": make(np.empty((0, 1)))})
    alone, labels_alone = fitted(estimator, {"A": make(FIRST)})
    assert labels == labels_alone | {"B": []}
    np.testing.assert_array_equal(model.representatives_, alone.representatives_)


@each
def test_without_any_cluster(estimator, make):
    """One point each, far apart: all noise, and predict knows no cluster either."""
    clients = {name: make([[x]]) for name, x in (("A", 0.0), ("B", 50.0), ("C", 99.0))}
    model, labels = fitted(estimator, clients)
    assert labels == {"A": [-1], "B": [-1], "C": [-1]}
    assert model.predict([[0.0], [50.0]]).tolist() == [-1, -1]
    model, labels = fitted(estimator, {"A": make(np.empty((0, 2)))})
    assert labels == {"A": []}
    assert model.representatives_.shape == (0, 2)


@each
def test_repeated_points(estimator, make):
    """Twenty times the same place is a cluster."""
    model, labels = fitted(estimator, {"A": make(np.zeros((20, 2))), "B": make(np.ones((1, 2)))})
    assert labels["A"] == [0] * 20
    assert len(model.representatives_) == len(model.representative_labels_)


@each
def test_a_passive_client_gets_labels(estimator, make):
    """It shares nothing: its points are placed by the others' representatives, as new ones are."""
    clients = {"A": make(FIRST), "B": make(SECOND), "C": make(np.concatenate([FIRST, SECOND]))}
    clients["C"].passive = True
    model, labels = fitted(estimator, clients)
    without, labels_without = fitted(estimator, {"A": make(FIRST), "B": make(SECOND)})
    assert labels["A"] == labels_without["A"]
    np.testing.assert_array_equal(model.representatives_, without.representatives_)
    assert labels["C"] == without.predict(np.concatenate([FIRST, SECOND])).tolist()
    with pytest.raises(ValueError, match="every client is passive"):
        clone(estimator).fit([FIRST], passive=[0])


@each
def test_clients_that_are_rebuilt_for_every_request(estimator, make, reborn):
    """All that a client must remember travels in its state."""
    parts = {"A": FIRST, "B": SECOND}
    _, labels = fitted(estimator, {name: make(X) for name, X in parts.items()})
    transport = reborn(make, parts)
    clone(estimator).fit(transport)
    assert transport.states == {name: encode(Labels(np.array(own))) for name, own in labels.items()}


class Stubborn:
    """Mixed in before a client: it fails at one request, or says what it was told to say."""

    trap: type
    reply = None

    def answer(self, request):
        if type(request).__name__ != self.trap:
            return super().answer(request)
        if self.reply is None:
            raise OSError("disc full of patients")
        return self.reply


def stubborn(make, X, trap, reply=None):
    client = make(X)
    kind = type(client)
    client.__class__ = type("Stubborn" + kind.__name__, (Stubborn, kind), {})
    client.trap, client.reply = trap, reply
    return client


@each
@pytest.mark.parametrize("step", [1, 2])
def test_a_client_that_is_lost(estimator, make, step):
    """Before it has said anything, or when it should take its labels: the others go on."""
    request = type(next(estimator.protocol())).__name__ if step == 1 else "RelabelPoints"
    clients = {"A": make(FIRST), "B": stubborn(make, SECOND, request), "C": make(SECOND)}
    model = clone(estimator).fit(InProcess(clients), min_clients=2)
    assert model.ledger_.lost == {"B": f"OSError at {request}, step {step}"}
    present = {"A": make(FIRST), "C": make(SECOND)} | ({"B": make(SECOND)} if step == 2 else {})
    _, labels = fitted(estimator, present)
    assert clients["A"].state.labels.tolist() == labels["A"]
    assert clients["C"].state.labels.tolist() == labels["C"]
    with pytest.raises(TooFewClients, match="'B': OSError"):
        clone(estimator).fit(InProcess(clients))


@each
def test_clients_that_do_not_fit_together(estimator, make):
    with pytest.raises(ValueError, match="number of features: 1 at '0'; 2 at '1'"):
        clone(estimator).fit([FIRST, np.zeros((3, 2))])
    transport = InProcess({"A": make(FIRST), "B": make(np.zeros((3, 2)))})
    with pytest.raises(ValueError, match="number of features: 1 at 'A'; 2 at 'B'"):
        clone(estimator).fit(transport)
    named = pd.DataFrame({"east": [1.0, 2.0], "north": [1.0, 2.0]})
    clients = {"A": make(named), "B": make(named[["north", "east"]]), "C": make(np.zeros((1, 2)))}
    wanted = "the features: east, north at 'A'; north, east at 'B'"
    with pytest.raises(ValueError, match=wanted):
        clone(estimator).fit(InProcess(clients))


@each
def test_predict_refuses_what_fit_would(estimator, make):
    model = clone(estimator)
    with pytest.raises(NotFittedError):
        model.predict(FIRST)
    model.fit([FIRST, SECOND])
    with pytest.raises(ValueError, match="features"):
        model.predict([[0.0, 1.0]])
    with pytest.raises(ValueError, match="NaN"):
        model.predict([[np.nan]])


@each
def test_what_a_client_cannot_place(estimator, make):
    """Labels for representatives it does not know of, or no memory of what they cover."""
    nobody = np.empty((0, 1)), np.empty(0), np.empty(0, np.int64)
    client = make(FIRST)
    with pytest.raises(LostState, match="has no Coverage"):
        client.handle(RelabelPoints(np.array([0]), *nobody))
    client.state = Coverage(np.array([0, 1, -1, 0, 0]))
    with pytest.raises(ValueError, match="1 labels for more representatives"):
        client.handle(RelabelPoints(np.array([0]), *nobody))
    with pytest.raises(TypeError, match="has no answer to Done"):
        client.handle(Done())


# Lies and mistakes ------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.99, 2.01, 1e300])
def test_a_specific_core_point_that_reaches_too_far(radius):
    """Its radius is between eps and 2 eps, or its client is lost; a centroid's may be any."""
    lie = LocalModel(np.array([[2.6]]), np.array([radius]))
    clients = {"A": DBDCClient(FIRST), "B": stubborn(DBDCClient, FIRST, "BuildLocalModel", lie)}
    model = DBDC(1.0, 3).fit(InProcess(clients), min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at BuildLocalModel, step 1"}
    assert model.representatives_.tolist() == [[0.6]]
    BuildLocalModel(1.0, 3, "kmeans").accept(lie)


@pytest.mark.parametrize("radius", [100.0, 1e300])
def test_a_centroid_that_reaches_too_far(radius):
    """It draws noise to its cluster, and points that it is nearest to; the rest stays."""
    lie = LocalModel(np.array([[6.0]]), np.array([radius]))
    honest, lied_to = DBDCClient(FIRST), DBDCClient(FIRST)
    DBDC(1.0, 3, local_model="kmeans").fit(InProcess({"A": honest}))
    liar = stubborn(DBDCClient, FIRST, "BuildLocalModel", lie)
    model = DBDC(1.0, 3, local_model="kmeans").fit(InProcess({"A": lied_to, "B": liar}))
    assert model.representative_labels_.tolist() == [0, 1]
    before, after = honest.state.labels, lied_to.state.labels
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
def test_no_such_local_model(places, radii):
    with pytest.raises(MessageError):
        LocalModel(np.array(places), np.array(radii))


@pytest.mark.parametrize("local_model", LOCAL_MODELS)
def test_representatives_at_the_end_of_the_world(local_model):
    """A liar's coordinates, whose squares overflow, leave the others' clusters alone."""
    lie = LocalModel(np.array([[1e308], [-1e308]]), np.array([1.0, 1.0]))
    clients = {"A": DBDCClient(FIRST), "B": stubborn(DBDCClient, FIRST, "BuildLocalModel", lie)}
    model = DBDC(1.0, 3, local_model=local_model).fit(InProcess(clients))
    assert clients["A"].state.labels.tolist() == [1, 1, 1, 1, -1]
    assert sorted(model.representative_labels_.tolist()) == [0, 1, 2]


def test_eps_too_large_to_be_doubled():
    """It is said before anyone is asked."""
    with pytest.raises(ValueError, match="eps_global, by default 2 eps, must be finite"):
        next(DBDC(1e308, 3).protocol())


def test_a_client_without_features_at_all():
    lie = LocalModel(np.empty((0, 0)), np.empty(0))
    clients = {"A": stubborn(DBDCClient, FIRST, "BuildLocalModel", lie)}
    with pytest.raises(ValueError, match="have no features"):
        DBDC(1.0, 3).fit(InProcess(clients))


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
def test_bad_parameters_name_themselves(parameters, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter"):
        DBDC(**({"eps": 1.0, "min_samples": 3} | parameters)).fit([FIRST])


@pytest.mark.parametrize("X", [[1.0, 2.0], [[np.nan]], [["a"]], np.empty((3, 0))])
def test_bad_own_data(X):
    with pytest.raises(ValueError, match=r"parts\[1\]: "):
        DBDC(1.0, 3).fit([FIRST, X])


def test_estimator_conventions():
    model = DBDC(0.5, 3, local_model="kmeans")
    assert repr(clone(model)) == "DBDC(eps=0.5, local_model='kmeans', min_samples=3)"
