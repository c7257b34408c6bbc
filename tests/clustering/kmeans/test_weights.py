"""k-means of rows that have weights."""

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans

from fedlib import FederatedKMeans, FederatedPipeline, FederatedSummary, Schema
from fedlib.clustering.kmeans import FederatedKMeansClient
from fedlib.clustering.kmeans.messages import (
    FindCentres,
    LocalCentres,
    SummariseGroups,
    SumWeightedClusters,
    WeightedClusterSums,
)
from fedlib.core.messages import MessageError, decode, encode
from fedlib.protection.policy import GuardedClient, Policy
from fedlib.sites.site import make_client
from fedlib.tables.files import Table
from fedlib.testing import Recorder

from .points import blobs

X, BLOB = blobs()
WEIGHTS = np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
START = X[:3]
BOUNDS = [[-5.0, -5.0], [15.0, 15.0]]
LLOYD = {"method": "lloyd", "init": START}
ONE_SHOT = {"method": "one_shot"}
MASKED = LLOYD | {"secure": True, "bounds": BOUNDS}


def split(X, weights=WEIGHTS):
    return list(zip(np.array_split(X, 3), np.array_split(weights, 3), strict=True))


def repeated():
    return [np.repeat(part, weights.astype(int), axis=0) for part, weights in split(X)]


@pytest.mark.parametrize("protection", [{}, {"secure": True, "bounds": BOUNDS, "max_weight": 3}])
def test_weighted_k_means_is_scikit_learns_on_pooled_rows(protection):
    weights = np.random.default_rng(2).uniform(0, 3, len(X))
    pooled = KMeans(3, init=START, n_init=1, tol=0).fit(X, sample_weight=weights)
    model = FederatedKMeans(3, **LLOYD, tol=0, **protection).fit(split(X, weights))
    np.testing.assert_allclose(model.cluster_centers_, pooled.cluster_centers_, rtol=1e-12)
    assert model.inertia_ == pytest.approx(pooled.inertia_, rel=1e-12)
    assert model.n_iter_ == pooled.n_iter_
    assert np.concatenate(model.labels_).tolist() == pooled.labels_.tolist()
    assert model.score(X, sample_weight=weights) == pytest.approx(-model.inertia_, rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        LLOYD,
        LLOYD | {"tol": 0.5},
        MASKED,
        MASKED | {"tol": 0.5},
        ONE_SHOT | {"weighted": True, "update_fraction": 0.0, "n_init": 1},
    ],
)
def test_integer_weights_count_as_many_equal_rows(options):
    """Also for the tolerance. One shot draws its starts from rows, so the blobs must be apart."""
    of_weights = {"max_weight": 3.0} if "secure" in options else {}
    options = {"random_state": 0} | options
    weighted = FederatedKMeans(3, **options, **of_weights).fit(split(X))
    wanted = FederatedKMeans(3, **options).fit(repeated())
    order = [np.lexsort(one.cluster_centers_.T) for one in (weighted, wanted)]
    np.testing.assert_allclose(
        weighted.cluster_centers_[order[0]], wanted.cluster_centers_[order[1]], rtol=1e-12
    )
    assert weighted.inertia_ == pytest.approx(wanted.inertia_, rel=1e-11)


@pytest.mark.parametrize("options", [LLOYD, {}, ONE_SHOT, ONE_SHOT | {"update_fraction": 0.0}])
def test_rows_of_weight_0_get_a_label_and_shape_nothing(options):
    far = np.array([[1e6, 1e6]])
    with_far = [(np.concatenate([part, far]), np.append(w, 0.0)) for part, w in split(X)]
    model, wanted = (
        FederatedKMeans(3, **options, random_state=0).fit(parts) for parts in (with_far, split(X))
    )
    assert model.cluster_centers_.tolist() == wanted.cluster_centers_.tolist()
    assert model.inertia_ == wanted.inertia_
    assert [len(labels) for labels in model.labels_] == [31, 31, 31]
    assert model.labels_[0][-1] == wanted.predict(far)[0]


@pytest.mark.parametrize("options", [LLOYD, {}, ONE_SHOT, ONE_SHOT | {"weighted": True}])
def test_weights_of_1_give_the_centres_without_weights(options):
    model = FederatedKMeans(3, **options, random_state=0).fit(split(X, np.ones(len(X))))
    wanted = FederatedKMeans(3, **options, random_state=0).fit(np.array_split(X, 3))
    assert model.cluster_centers_.tolist() == wanted.cluster_centers_.tolist()
    assert model.inertia_ == wanted.inertia_


def test_parts_with_and_without_weights():
    """A row without a weight has the weight 1."""
    first, second = X[:45], X[45:]
    mixed = FederatedKMeans(3, **LLOYD).fit([(first, np.full(45, 2.0)), second])
    wanted = FederatedKMeans(3, **LLOYD).fit([np.repeat(first, 2, axis=0), second])
    np.testing.assert_allclose(mixed.cluster_centers_, wanted.cluster_centers_, rtol=1e-13)


@pytest.mark.parametrize("options", [MASKED, LLOYD | {"epsilon": 1.0, "bounds": BOUNDS}])
def test_protected_sums_need_the_largest_weight(options):
    with pytest.raises(ValueError, match="points have weights.*set max_weight"):
        FederatedKMeans(3, **options).fit(split(X))


def test_max_weight_belongs_to_protected_sums():
    with pytest.raises(ValueError, match="max_weight needs secure=True or epsilon"):
        FederatedKMeans(3, **LLOYD, max_weight=2.0).fit(split(X))
    with pytest.raises(ValueError, match=r"at most\s+2\*\*40, got 1e\+15"):
        FederatedKMeans(3, **MASKED, max_weight=1e15).fit(split(X))


@pytest.mark.parametrize("max_weight", [1.5, 0.5])
def test_weights_are_clipped_to_the_largest_one(max_weight):
    model = FederatedKMeans(3, **MASKED, max_weight=max_weight).fit(split(X))
    clipped = split(X, np.minimum(WEIGHTS, max_weight))
    wanted = FederatedKMeans(3, **MASKED, max_weight=3.0).fit(clipped)
    np.testing.assert_allclose(model.cluster_centers_, wanted.cluster_centers_, rtol=1e-12)


@pytest.mark.usefixtures("fixed_noise")
def test_noisy_sums_of_weights_are_near_those_without_noise():
    """With this epsilon, the standard deviation of a centre's noise is below 0.01."""
    options = LLOYD | {"max_iter": 4}
    noisy = FederatedKMeans(
        3, **options, epsilon=1e6, delta=1e-6, bounds=BOUNDS, max_weight=3.0
    ).fit(split(X))
    wanted = FederatedKMeans(3, **options).fit(split(X))
    np.testing.assert_allclose(noisy.cluster_centers_, wanted.cluster_centers_, atol=0.1)


def test_the_schema_names_the_weights_and_the_largest_one():
    limits = {"minimum": -5, "maximum": 15}
    fields = [{"name": name, "type": "number", "constraints": limits} for name in ("a", "b")]
    weight = {"name": "w", "type": "number", "fedlib": {"role": "weight"}}
    weight["constraints"] = {"minimum": 0, "maximum": 3, "required": True}
    schema = Schema({"schema": {"fields": [*fields, weight]}})
    tables = [pd.DataFrame(part, columns=["a", "b"]).assign(w=w) for part, w in split(X)]
    wanted = FederatedKMeans(3, **LLOYD).fit(split(X)).cluster_centers_
    for protection in ({}, {"secure": True}):
        model = FederatedKMeans(3, **LLOYD, schema=schema, **protection)
        np.testing.assert_allclose(model.fit(tables).cluster_centers_, wanted, rtol=1e-12)
        pairs = [(table[["b", "a"]], table["w"]) for table in tables]
        np.testing.assert_allclose(model.fit(pairs).cluster_centers_, wanted, rtol=1e-12)
    with pytest.raises(ValueError, match="finite and at least 0|outside"):
        FederatedKMeans(3, **LLOYD, schema=schema).fit([tables[0].assign(w=-1.0), *tables[1:]])


def test_a_pipeline_passes_weights_on():
    pipeline = FederatedPipeline(FederatedKMeans(3, **LLOYD), scale=None, impute="mean")
    wanted = FederatedKMeans(3, **LLOYD).fit(split(X))
    centres = pipeline.fit(split(X)).estimator_.cluster_centers_
    assert centres.tolist() == wanted.cluster_centers_.tolist()


def test_a_site_passes_the_column_of_weights():
    client = make_client("kmeans", Table(X, sample_weight=WEIGHTS))
    assert client.weight.tolist() == WEIGHTS.tolist()
    assert make_client("dbdc", Table(X, sample_weight=WEIGHTS)).X.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0, 1.0], "sample_weight must be finite and at least 0; got -1 in row 2"),
        ([1.0, 1.0, np.nan], "sample_weight .*row 3"),
        ([1.0, np.inf, 1.0], "sample_weight must be finite and at least 0; got inf in row 2"),
        ([1.0, 1.0], "sample_weight .*3"),
        ([1e12, 1e12, 1e12], r"sample_weight must add up to at most 2\*\*40, got 3e\+12; divide"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=rf"parts\[1\]: {message}"):
        FederatedKMeans(2).fit([X[:3], (X[:3], weights)])


def test_all_weights_0():
    for options in (LLOYD, MASKED | {"max_weight": 1.0}, MASKED | {"max_weight": 1.0, "tol": 0}):
        with pytest.raises(ValueError, match="at least one point must have a weight above 0"):
            FederatedKMeans(3, **options).fit(split(X, np.zeros(len(X))))
    first = (X[:30], np.zeros(30))
    model = FederatedKMeans(3, **LLOYD).fit([first, X[30:]])
    wanted = FederatedKMeans(3, **LLOYD).fit([X[30:]])
    np.testing.assert_allclose(model.cluster_centers_, wanted.cluster_centers_, rtol=1e-13)


def test_a_client_that_lies_about_its_weights_is_excluded():
    clients = {
        name: FederatedKMeansClient(part) for name, part in zip("ABC", split(X), strict=True)
    }

    def double(request, reply):
        sums = decode(reply)
        if not isinstance(sums, WeightedClusterSums):
            return reply
        return encode(WeightedClusterSums(sums.sums, 2 * sums.counts, sums.inertias))

    recorder = Recorder(clients, {"C": double})
    model = FederatedKMeans(3, **LLOYD).fit(recorder, min_clients=2)
    assert list(model.ledger_.lost) == ["C"]


def test_replies_that_no_points_have_are_refused():
    request = FindCentres(2, 0.0, 1, 1, 0.0, 0)
    with pytest.raises(MessageError, match="must have 2 weights or none, got 1"):
        request.accept(LocalCentres(np.zeros((2, 1)), np.ones(2, np.int64), (), (1.0,)))
    sums = SumWeightedClusters(np.zeros((2, 1, 1)))
    counts = np.array([[1.0], [1.1]])
    with pytest.raises(MessageError, match="same sum for every start"):
        sums.accept(WeightedClusterSums(np.zeros((2, 1, 1)), counts, np.zeros(2)))


def test_small_groups_are_left_out_with_their_weights_and_rows_of_weight_0_are_no_group():
    rows = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    part = rows, np.array([2.0, 2.0, 2.0, 1.0, 1.0, 0.0])
    policy = Policy.from_dict({"min_count": 3, "groups": "singly"})
    guarded = GuardedClient(FederatedKMeansClient(part), policy, "kmeans")
    reply = guarded.answer(FindCentres(2, 0.0, 1, 10, 0.0, 0))
    assert (reply.counts.tolist(), reply.weights) == ([3], (6.0,))
    heavy = FederatedKMeansClient((rows, np.array([1.0, 2.0, 3.0, 1.0, 1.0, 0.0])))
    reply = GuardedClient(heavy, policy, "kmeans").answer(FindCentres(2, 0.0, 1, 10, 0.0, 0))
    assert (reply.counts.tolist(), reply.weights) == ([], ())  # a row has half of the weight
    guarded = GuardedClient(FederatedKMeansClient(part), policy, "kmeans")
    sums = guarded.answer(SumWeightedClusters(np.array([[[0.0], [9.0]]])))
    assert sums.rule == "min_count"
    guarded = GuardedClient(FederatedKMeansClient(part), policy, "kmeans")
    assert guarded.answer(SummariseGroups(0)).n_points == 5


def test_centres_that_are_no_means_of_their_points_are_left_out():
    """They can be the means of fewer rows, which the last assignment does not show."""
    X = np.round(np.random.default_rng(1).lognormal(3, 0.5, (200, 1)), 3)
    sent = {}
    for weights in (None, np.ones(200)):
        for tol, max_iter in ((1e9, 1), (0.0, 300)):
            client = FederatedKMeansClient(X if weights is None else (X, weights))
            guarded = GuardedClient(client, Policy.from_dict({"min_count": 10}), "kmeans")
            reply = guarded.answer(FindCentres(4, 0.25, 1, max_iter, tol, 0))
            sent[tol] = len(reply.centres)
            assert any("use tol=0" in one for one in client.problems) == (tol > 0)
        assert sent[1e9] == 0 < sent[0.0]


@pytest.mark.parametrize("far", [20, 100, 1e4])
@pytest.mark.parametrize("n_sites", [2, 5])
def test_starts_are_drawn_by_weight(far, n_sites):
    """Rows without much weight get no centre of their own, wherever they are."""
    rng = np.random.default_rng(n_sites)
    X = np.vstack([rng.normal((x, 0), 0.3, (n, 2)) for x, n in ((0, 300), (3, 300), (far, 20))])
    weights = np.repeat([1.0, 1e-9], [600, 20])
    order = rng.permutation(len(X))
    X, weights = X[order], weights[order]
    best = KMeans(2, n_init=10, random_state=0).fit(X, sample_weight=weights).inertia_
    parts = list(zip(*(np.array_split(one, n_sites) for one in (X, weights)), strict=True))
    for seed in range(3):
        model = FederatedKMeans(2, random_state=seed).fit(parts)
        assert model.inertia_ < 1.01 * best


def test_one_heavy_row_leaves_enough_groups():
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal((x, 0), 0.1, (40, 2)) for x in (0, 5, 9, 14)])
    weights = np.append(np.full(len(X) - 1, 1.0), 1e6)
    model = FederatedKMeans(4, random_state=0).fit(
        [(X[::2], weights[::2]), (X[1::2], weights[1::2])]
    )
    best = KMeans(4, n_init=10, random_state=0).fit(X, sample_weight=weights)
    assert model.inertia_ < 1.01 * best.inertia_


@pytest.mark.parametrize("options", [{"secure": True}, {"epsilon": 1e4}], ids=str)
def test_a_site_logs_once_how_many_weights_it_clips(options, caplog):
    X, weight = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    run = {"bounds": [[0, 0], [20, 20]], "max_weight": 6.0, **options}
    FederatedKMeans(2, init=[[2, 3], [14, 15]], max_iter=5, **run).fit([(X, weight)] * 3)
    assert [one.message for one in caplog.records] == [
        "3 of 10 weights are above max_weight=6, as which they count"
    ] * 3
    caplog.clear()
    FederatedSummary(quantiles=None, **run).fit([(X, weight)] * 3)
    assert caplog.messages.count("3 of 10 weights are above max_weight=6, as which they count") >= 3
