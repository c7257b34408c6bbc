"""Scores of clusterings: by hand, against scikit-learn on the pooled rows, and with liars."""

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score

from fedlib import FederatedClusteringScore, FederatedPipeline
from fedlib.core.aggregation import Disagreement
from fedlib.core.messages import MessageError
from fedlib.core.protocol import TooFewClients
from fedlib.evaluation.clustering import ClusteringScoreClient
from fedlib.evaluation.messages import (
    ClusterDistances,
    LabelledMoments,
    MeasureDistances,
    SumLabelledRows,
)
from fedlib.sites import models
from fedlib.testing import Recorder


def labelled(seed=0, sizes=(60, 1, 0, 41), n_clusters=4):
    """Return parts with clusters of different shapes and sizes, and with noise."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-3, 3, (n_clusters, 3))
    parts = []
    for n in sizes:
        labels = rng.integers(-1, n_clusters, n)
        X = centres[labels] + rng.normal(size=(n, 3)) * [0.1, 1, 5]
        parts.append((pd.DataFrame(X + 1000, columns=["a", "b", "c"]), labels))
    return parts


def pooled(parts, noise="exclude"):
    X, labels = pd.concat([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    kept = labels >= 0 if noise == "exclude" else np.ones(len(labels), bool)
    return X.to_numpy()[kept], labels[kept]


def simplified_silhouette(X, labels):
    """Return the score by its definition, one row after the other."""
    centroids = {k: X[labels == k].mean(axis=0) for k in np.unique(labels)}
    scores = []
    for x, own in zip(X, labels, strict=True):
        distances = {k: np.sqrt(((x - c) ** 2).sum()) for k, c in centroids.items()}
        a = distances.pop(own)
        b = min(distances.values())
        scores.append((b - a) / max(a, b) if (labels == own).sum() > 1 else 0.0)
    return np.mean(scores)


def test_a_toy_by_hand():
    """Cluster 0: the rows 0 and 4 at one site, 2 at the other. Cluster 1: 11 and 13.

    Silhouettes: (12-2)/12, (8-2)/8, (10-0)/10; (9-1)/9, (11-1)/11. Mean distances 4/3 and 1, and
    the centroids 2 and 12: Davies-Bouldin (4/3 + 1)/10. Within: 8 + 2. All rows have the mean 6, so
    between: 3·16 + 2·36 = 120; Calinski-Harabasz 120·3/10.
    """
    model = FederatedClusteringScore().fit(
        [([[0.0], [4.0], [-99.0]], [0, 0, -1]), ([[2.0], [11.0], [13.0]], [0, 1, 1])]
    )
    silhouettes = [(10 / 12 + 6 / 8 + 1) / 3, (8 / 9 + 10 / 11) / 2]
    assert model.model_.silhouettes == pytest.approx(silhouettes)
    assert model.scores_ == pytest.approx(
        {
            "simplified silhouette": (3 * silhouettes[0] + 2 * silhouettes[1]) / 5,
            "Davies-Bouldin": 7 / 30,
            "Calinski-Harabasz": 36.0,
        }
    )
    assert (model.n_noise_, model.n_withheld_, model.n_features_in_) == (1, 0, 1)
    assert model.ledger_.conversation() == [
        "SumLabelledRows", "LabelledMoments", "MeasureDistances", "ClusterDistances",
    ]  # fmt: skip


@pytest.mark.parametrize("noise", ["exclude", "cluster"])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_scores_of_the_pooled_rows(seed, noise):
    parts = labelled(seed)
    model = FederatedClusteringScore(noise=noise).fit(parts)
    X, labels = pooled(parts, noise)
    expected = {
        "simplified silhouette": simplified_silhouette(X, labels),
        "Davies-Bouldin": davies_bouldin_score(X, labels),
        "Calinski-Harabasz": calinski_harabasz_score(X, labels),
    }
    assert model.scores_ == pytest.approx(expected, rel=1e-9)
    assert model.n_noise_ == sum((y < 0).sum() for _, y in parts)


def test_profiles_equal_those_of_pandas():
    parts = labelled()
    frame = FederatedClusteringScore().fit(parts).to_frame()
    X, labels = pooled(parts)
    grouped = pd.DataFrame(X, columns=["a", "b", "c"]).groupby(labels)
    assert frame.index.tolist() == [0, 1, 2, 3]
    assert frame["count"].tolist() == grouped.size().tolist()
    assert frame["share"].sum() == pytest.approx(1)
    for name in "abc":
        np.testing.assert_allclose(frame[f"{name} mean"], grouped[name].mean(), rtol=1e-12)
        np.testing.assert_allclose(frame[f"{name} std"], grouped[name].std(), rtol=1e-9)


@settings(max_examples=30)
@example([[(0, 0), (1, 1), (1, 3), (3, 3), (-3, 3)], [(-1, 3)]])  # equal centroids
@example([[(0, 0), (0, 3), (-2, 3), (3, 3)], [(-1, 3)]])
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-5, 5), st.integers(-1, 3)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_any_rows(parts):
    """Ties, equal centroids, empty clients and single rows, as in scikit-learn where it has scores.

    The scores do not depend on how the rows are distributed.
    """
    data = [(np.array([[x] for x, _ in p], float).reshape(-1, 1), [k for _, k in p]) for p in parts]
    model = FederatedClusteringScore(noise="cluster").fit(data)
    rows = [row for part in parts for row in part]
    X, labels = np.array([[x] for x, _ in rows], float), np.array([k for _, k in rows])
    n_clusters = len(set(labels.tolist()))
    if n_clusters < 2:
        assert all(np.isnan(score) for score in model.scores_.values())
    else:
        assert model.scores_["simplified silhouette"] == pytest.approx(_by_definition(X, labels))
    if 1 < n_clusters < len(rows):
        scores = [davies_bouldin_score(X, labels), calinski_harabasz_score(X, labels)]
        assert [*model.scores_.values()][1:] == pytest.approx(scores, rel=1e-9)


def _by_definition(X, labels):
    """As above, with 0 for a row that lies on two centroids."""
    with np.errstate(invalid="ignore"):
        centroids = [X[labels == k].mean(axis=0) for k in np.unique(labels)]
        codes = np.unique(labels, return_inverse=True)[1]
        apart = np.linalg.norm(X[:, np.newaxis] - centroids, axis=2)
        a = apart[np.arange(len(X)), codes]
        apart[np.arange(len(X)), codes] = np.inf
        b = apart.min(axis=1)
        s = np.nan_to_num((b - a) / np.maximum(a, b))
    return np.where(np.bincount(codes)[codes] > 1, s, 0.0).mean()


def test_small_groups_are_withheld():
    """Site 0 has one row of cluster 1, which counts nowhere; site 1 has three."""
    first = [[0.0], [1.0], [77.0]], [0, 0, 1]
    second = [[10.0], [11.0], [12.0]], [1, 1, 1]
    recorder = Recorder({"A": ClusteringScoreClient(first), "B": ClusteringScoreClient(second)})
    model = FederatedClusteringScore(min_group_size=2).fit(recorder)
    assert np.float64(77).tobytes() not in recorder.all_bytes
    assert model.n_withheld_ == 1
    assert model.to_frame()["0 mean"].tolist() == [0.5, 11.0]
    alone = FederatedClusteringScore().fit([([[0.0], [1.0]], [0, 0]), second])
    assert model.scores_ == pytest.approx(alone.scores_)


def test_fewer_than_two_clusters():
    """The profiles exist, the scores do not."""
    model = FederatedClusteringScore().fit([([[1.0], [3.0]], [0, 0]), ([[9.0]], [-1])])
    assert np.isnan([*model.scores_.values()]).all()
    assert model.to_frame()[["count", "0 mean"]].values.tolist() == [[2.0, 2.0]]
    noise = FederatedClusteringScore().fit([([[1.0]], [-1])])
    assert noise.to_frame().empty
    assert noise.n_noise_ == 1


def test_in_a_pipeline():
    """The scores of the scaled rows, from raw tables."""
    parts = labelled()
    model = FederatedPipeline(FederatedClusteringScore(), scale="standard").fit(parts)
    X, labels = pooled(parts)
    everything = pd.concat([X for X, _ in parts]).to_numpy()
    scaled = (X - everything.mean(axis=0)) / everything.std(axis=0)
    scores = model.estimator_.scores_
    assert scores["Davies-Bouldin"] == pytest.approx(davies_bouldin_score(scaled, labels))
    assert model.report() == model.estimator_.report()


def test_the_table_and_the_figure():
    model = FederatedClusteringScore()
    for method in (model.to_frame, model.plot):
        with pytest.raises(NotFittedError):
            method()
    model.fit(labelled())
    ax = model.plot().axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]
    assert ax.get_yticklabels()[0].get_text() == f"cluster 0 (n={model.model_.counts[0]})"
    texts = [text.get_text() for text in ax.texts]
    assert texts == [f"{mean:.3g}" for mean in model.model_.means.ravel()]
    assert "Davies-Bouldin" in model.report()
    assert "b mean" in model.report()


def test_conventions(tmp_path):
    model = FederatedClusteringScore(min_group_size=2)
    assert clone(model).get_params() == model.get_params()
    models.save(model.fit(labelled()), tmp_path / "scores.json")
    loaded = models.load(tmp_path / "scores.json")
    pd.testing.assert_frame_equal(loaded.to_frame(), model.to_frame())
    assert not hasattr(model, "labels_")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (([[1.0]], [0, 1]), "labels must contain one cluster per row, 1; got 2"),
        (([[1.0], [2.0]], [0, 0.5]), "integers from -1 to 2.*53, got 0.5 in row 2"),
        (([[1.0], [2.0]], [0, -2]), "got -2 in row 2"),
        (
            ([[1.0], [2.0]], [np.nan, 0]),
            "labels have no cluster in 1 row, row 1: leave this row out",
        ),
        (([[1.0]], ["a"]), "got the text 'a' in row 1"),
        (([[1.0]], [0], [1.0]), r"a part must be \(X, labels\), without weights"),
        (([[1e101]], [0]), r"X must lie within ±1e\+100"),
        (([[np.nan]], [0]), "impute='mean'"),
    ],
)
def test_bad_parts(part, message):
    with pytest.raises(ValueError, match=rf"parts\[0\]: .*{message}"):
        FederatedClusteringScore().fit([part])


@pytest.mark.parametrize("parameters", [{"noise": "drop"}, {"min_group_size": 0}])
def test_bad_parameters(parameters):
    with pytest.raises(ValueError, match=f"'{next(iter(parameters))}' parameter"):
        FederatedClusteringScore(**parameters).protocol()


def test_too_many_clusters():
    parts = [([[0.0], [1.0]], [0, 0]), ([[0.0], [1.0], [2.0]], [0, 1, 2])]
    with pytest.raises(ValueError, match="client '1' must have at most max_clusters=2 clu.*got 3"):
        FederatedClusteringScore(max_clusters=2).fit(parts)
    recorder = Recorder(
        {name: ClusteringScoreClient(part) for name, part in zip("AB", parts, strict=True)}
    )
    model = FederatedClusteringScore(max_clusters=2).fit(recorder, min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at SumLabelledRows, step 1"}


def test_features_that_differ():
    with pytest.raises(Disagreement, match="the number of features"):
        FederatedClusteringScore().fit([([[1.0]], [0]), ([[1.0, 2.0]], [0])])


# Clients that fail or lie


def recorder(tamper=None):
    parts = dict(zip("ABC", labelled(sizes=(30, 40, 30)), strict=True))
    return Recorder({name: ClusteringScoreClient(part) for name, part in parts.items()}, tamper)


def without_b():
    parts = labelled(sizes=(30, 40, 30))
    return FederatedClusteringScore().fit([parts[0], parts[2]])


@pytest.mark.parametrize("step", [1, 2])
def test_a_lost_client_has_no_part_in_the_scores(step):
    seen = []

    def fail(request, reply):
        seen.append(request)
        return None if len(seen) == step else reply

    model = FederatedClusteringScore().fit(recorder({"B": fail}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert model.report() == without_b().report()
    seen.clear()
    with pytest.raises(TooFewClients, match="Lost: 'B'"):
        FederatedClusteringScore().fit(recorder({"B": fail}))


def test_a_passive_client_shares_nothing():
    parts = labelled(sizes=(30, 40, 30))
    model = FederatedClusteringScore().fit(parts, passive=[1])
    assert model.report() == without_b().report()


LIES = {
    "labels in another order": ("LabelledMoments", "labels", lambda v: v[::-1]),
    "noise as a cluster": ("LabelledMoments", "labels", lambda v: v - 1),
    "larger squares": ("LabelledMoments", "squares", lambda v: 0 * v),
    "smaller distances": ("ClusterDistances", "distances", lambda v: 0 * v),
    "larger distances": ("ClusterDistances", "distances", lambda v: 9 * v),
    "larger silhouettes": ("ClusterDistances", "silhouettes", lambda v: 99 + v),
    "smaller silhouettes": ("ClusterDistances", "silhouettes", lambda v: v - 99),
    "a cluster less": ("ClusterDistances", None, lambda v: v[1:]),
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_leaves(name):
    kind, field, change = LIES[name]

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        for key in [field] if field else ["distances", "silhouettes"]:
            if fields["type"] == kind:
                dtype, shape, data = fields[key]
                value = change(np.frombuffer(data, dtype).reshape(shape))
                fields[key] = [dtype, value.shape, value.tobytes()]
        return msgspec.msgpack.encode(fields)

    model = FederatedClusteringScore().fit(recorder({"B": tamper}), min_clients=2)
    assert list(model.ledger_.lost) == ["B"]
    assert model.ledger_.lost["B"].startswith("InvalidReply at ")
    assert model.report() == without_b().report()


def moments(labels=(0, 1), counts=(2, 2), squares=1.0, n_noise=0, n_withheld=0, features=()):
    shape = len(labels), 1
    return LabelledMoments(
        np.array(labels), np.array(counts), np.zeros(shape), np.full(shape, squares), n_noise,
        n_withheld, features,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "reply", "message"),
    [
        (("exclude", 1, 1), moments(), "at most 1 entries, got 2"),
        (("exclude", 1, 9), moments(labels=(1, 0)), "distinct and sorted"),
        (("exclude", 1, 9), moments(labels=(-1, 0), n_noise=2), "only if noise is a cluster"),
        (("cluster", 1, 9), moments(labels=(-1, 0), n_noise=3), "must be n_noise"),
        (("exclude", 3, 9), moments(), "at least 3"),
        (("exclude", 1, 9), moments(n_withheld=1), "n_withheld must be 0"),
        (("exclude", 1, 9), moments(counts=(1, 2)), "squares must be 0"),
        (("exclude", 1, 9), moments(features=("a", "b")), "one name per feature"),
    ],
)
def test_impossible_moments_are_refused(parameters, reply, message):
    with pytest.raises(MessageError, match=message):
        SumLabelledRows(*parameters).accept(reply)


def test_impossible_distances_are_refused():
    centres = np.zeros((2, 1))
    with pytest.raises(MessageError, match="distinct and sorted"):
        MeasureDistances("exclude", 1, np.array([1, 0]), centres)
    request = MeasureDistances("exclude", 1, np.array([0, 1]), centres)
    with pytest.raises(MessageError, match="must have 2 clusters, got 3"):
        request.accept(ClusterDistances(np.zeros(3), np.zeros(3)))


def test_a_request_without_a_cluster():
    """A client does not attribute rows to another cluster."""
    client = ClusteringScoreClient(([[0.0], [1.0]], [0, 1]))
    with pytest.raises(ValueError, match="must contain all clusters described before"):
        client.handle(MeasureDistances("exclude", 1, np.array([0, 2]), np.zeros((2, 1))))


def test_a_cluster_without_rows():
    """A client cannot have distances of it."""

    def tamper(request, reply):
        fields = msgspec.msgpack.decode(reply)
        if fields["type"] == "ClusterDistances":
            fields["silhouettes"] = ["float64", (2,), np.array([0.5, 0.5]).tobytes()]
        return msgspec.msgpack.encode(fields)

    parts = {"A": ([[0.0], [1.0], [9.0], [8.0]], [0, 0, 1, 1]), "B": ([[0.0], [1.0]], [0, 0])}
    clients = {name: ClusteringScoreClient(part) for name, part in parts.items()}
    model = FederatedClusteringScore().fit(Recorder(clients, {"B": tamper}), min_clients=1)
    assert model.ledger_.lost == {"B": "InvalidReply at MeasureDistances, step 2"}


@pytest.mark.parametrize(
    "convert",
    [
        lambda labels: labels.astype(object),
        lambda labels: labels.astype(float),
        lambda labels: labels[:, None],
        lambda labels: pd.Series(labels, dtype="Int64"),
        lambda labels: pd.Categorical(labels),
        lambda labels: np.ma.array(labels),
        lambda labels: labels.tolist(),
    ],
)
def test_labels_of_every_type_have_the_same_scores(convert):
    parts = [(X, np.asarray(labels)) for X, labels in labelled()]
    expected = FederatedClusteringScore().fit(parts).scores_
    converted = [(X, convert(labels)) for X, labels in parts]
    assert FederatedClusteringScore().fit(converted).scores_ == expected


def test_masked_labels_are_no_noise():
    """Such are the labels of rows that alignment has left out."""
    labels = np.ma.array([0, 0, 1, 1], mask=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="labels have no cluster in 2 rows, first in row 2: leave"):
        FederatedClusteringScore().fit([(np.zeros((4, 1)), labels)])
