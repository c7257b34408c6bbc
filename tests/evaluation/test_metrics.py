"""Scores of clusterings: by hand, against other packages, and in limiting cases."""

import itertools
import math
import tracemalloc

import bcubed
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from fedlib.evaluation.metrics import clustering_scores, matched_accuracy

KEYS = ["AMI", "ARI", "Purity", "BCubed precision", "BCubed recall"]

# Pairs of label arrays of equal length; noise is among the clusters.
labellings = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-1, 5)), min_size=1, max_size=40
).map(lambda rows: tuple(np.array(rows).T))


def test_by_hand():
    true = ["a", "a", "a", "b", "b"]
    predicted = [0, 0, -1, -1, -1]
    scores = clustering_scores(true, predicted)
    assert list(scores) == KEYS
    assert all(type(score) is float for score in scores.values())
    # Cluster 0 has two a, noise one a and two b: 2 + 2 of 5 rows are in the most frequent class.
    assert scores["Purity"] == 4 / 5
    # Precision: the a of cluster 0 have 1, the a in noise 1/3, each b 2/3.
    assert scores["BCubed precision"] == pytest.approx((1 + 1 + 1 / 3 + 2 / 3 + 2 / 3) / 5)
    # Recall: the a of cluster 0 have 2/3, the a in noise 1/3, each b 1.
    assert scores["BCubed recall"] == pytest.approx((2 / 3 + 2 / 3 + 1 / 3 + 1 + 1) / 5)
    # Of 10 pairs, 4 share the class, 4 the cluster and 2 both; 4 · 4 / 10 are expected by chance.
    assert scores["ARI"] == pytest.approx((2 - 1.6) / (4 - 1.6))


@given(labellings)
def test_equal_to_scikit_learn(labels):
    scores = clustering_scores(*labels)
    assert scores["AMI"] == adjusted_mutual_info_score(*labels)
    assert scores["ARI"] == pytest.approx(adjusted_rand_score(*labels), rel=1e-14, abs=0)
    table = contingency_matrix(*labels)
    assert scores["Purity"] == table.max(axis=0).sum() / table.sum()


@given(labellings)
def test_equal_to_the_bcubed_package(labels):
    true, predicted = ({row: {label} for row, label in enumerate(side)} for side in labels)
    scores = clustering_scores(*labels)
    assert scores["BCubed precision"] == pytest.approx(bcubed.precision(predicted, true), rel=1e-12)
    assert scores["BCubed recall"] == pytest.approx(bcubed.recall(predicted, true), rel=1e-12)


@given(labellings)
def test_names_of_clusters_do_not_matter(labels):
    true, predicted = labels
    renamed = clustering_scores(np.array(list("edcba"))[true], 7 - 3 * predicted)
    for key, score in clustering_scores(true, predicted).items():
        assert renamed[key] == pytest.approx(score, rel=1e-9, abs=1e-12), key


@given(labellings)
def test_a_perfect_clustering_scores_one(labels):
    assert clustering_scores(labels[0], labels[0] + 10) == dict.fromkeys(KEYS, 1.0)


def test_limit_cases():
    one_cluster = clustering_scores([0, 0, 1, 1], [-1, -1, -1, -1])
    assert one_cluster == {
        "AMI": 0, "ARI": 0, "Purity": 0.5, "BCubed precision": 0.5, "BCubed recall": 1
    }  # fmt: skip
    singletons = clustering_scores([0, 0, 1, 1], [0, 1, 2, 3])
    assert singletons == {
        "AMI": pytest.approx(0, abs=1e-12), "ARI": 0, "Purity": 1, "BCubed precision": 1,
        "BCubed recall": 0.5,
    }  # fmt: skip
    assert clustering_scores([3], [-1]) == dict.fromkeys(KEYS, 1.0)


def test_many_classes_and_clusters_need_no_dense_table():
    rows = np.arange(4000)
    tracemalloc.start()
    scores = clustering_scores(rows, rows[::-1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scores == dict.fromkeys(KEYS, 1.0)
    assert peak < len(rows) ** 2  # a dense table of int64 has 8 times as many bytes


def test_pairs_beyond_64_bits():
    # Products of numbers of pairs exceed 2^63 from about 60,000 rows on.
    rows = np.arange(200_000)
    true, predicted = rows % 2, (rows % 3 == 0) & (rows % 2 == 0)
    score = clustering_scores(true, predicted)["ARI"]
    assert math.isclose(score, adjusted_rand_score(true, predicted), rel_tol=1e-14)
    assert 0 < score < 1


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([0, 1], [0], "same length, got 2 and 1"),
        ([], [], r"true must be .* shape \(0,\)"),
        ([0], [], r"predicted must be .* shape \(0,\)"),
        ([[0, 1]], [0, 1], r"true must be .* shape \(1, 2\)"),
        ([0, 1], None, r"predicted must be .* shape \(\)"),
        ([0, None], [0, 1], "true ha.* no .* in 1 row, row 2"),
        ([0, 1], np.ma.array([0, 1], mask=[1, 0]), "predicted ha.* no .* in 1 row, row 1"),
    ],
)
@pytest.mark.parametrize("score", [clustering_scores, matched_accuracy])
def test_bad_input(true, predicted, message, score):
    with pytest.raises(ValueError, match=message):
        score(true, predicted)


def test_matched_by_hand():
    true = [0, 0, 0, 0, 1, 1, -1, -1]
    # With 9 as cluster 0, 8 has no match: 2 rows. With 9 as 1 and 8 as 0: 4 rows. Noise adds 2.
    assert matched_accuracy(true, [9, 9, 8, 8, 9, 9, -1, -1]) == 6 / 8
    # Noise never matches a cluster, however many rows they share.
    assert matched_accuracy(true, [-1] * 8) == 2 / 8
    assert matched_accuracy([-1, -1], [0, 0]) == 0
    assert matched_accuracy([0, 0], [-1, 0]) == 1 / 2


@given(labellings)
def test_matching_is_the_best_of_all(labels):
    true, predicted = labels
    true, predicted = np.where(true > 3, -1, true), np.where(predicted > 3, -1, predicted)
    names = range(4)
    best = max(
        np.mean(np.where(predicted < 0, -1, np.array(order)[predicted]) == true)
        for order in itertools.permutations(names)
    )
    assert matched_accuracy(true, predicted) == pytest.approx(best)
    assert matched_accuracy(predicted, true) == pytest.approx(best)  # symmetric
