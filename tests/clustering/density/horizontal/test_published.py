"""The figures that M1 and M2 published for horizontal DBSCAN."""

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler

from fedlib import HorizontalDBSCAN
from fedlib.datasets.partition import split_rows
from fedlib.evaluation.metrics import clustering_scores

NAMES = ["AMI", "ARI", "Purity", "BCubed precision", "BCubed recall"]


def published_scores(published, source, dataset):
    """Return the scores that a source printed for the federated method."""
    rows = published.query(
        "source == @source and table == 'horizontal' and dataset == @dataset"
        " and method == 'horizontal_dbscan'"
    )
    return rows.set_index("metric")["value"][NAMES].to_dict()


def rounded(scores):
    return {name: f"{score:.4f}" for name, score in scores.items()}


def scaled(dataset):
    return MinMaxScaler().fit_transform(dataset.X)


def ten_clients(dataset):
    """Return the rows of ten clients: stratified folds without shuffling."""
    return split_rows(dataset.X, 10, dataset.y)


@pytest.mark.jit
def test_banana_as_published_in_m1(real_data, published, fitted_labels):
    """All five scores agree in all four digits, for nine of ten orders of visiting the cells."""
    banana = real_data("banana")
    X, rows = scaled(banana), ten_clients(banana)
    expected = published_scores(published, "M1", "banana")
    assert expected["AMI"] == "0.9956"
    agree = 0
    for random_state in range(40):
        model = HorizontalDBSCAN(0.03, 4, border="absorb", random_state=random_state)
        labels = fitted_labels(model, X, rows)
        agree += rounded(clustering_scores(banana.y, labels)) == expected
    assert agree >= 36


def test_banana_by_the_pseudocode(real_data, published):
    """The pseudocode does not give the published figures. It depends on no order."""
    banana = real_data("banana")
    labels = HorizontalDBSCAN(0.03, 4).fit([scaled(banana)]).labels_[0]
    scores = rounded(clustering_scores(banana.y, labels))
    assert scores["AMI"] == "0.9746"
    assert scores["AMI"] != published_scores(published, "M1", "banana")["AMI"]


def test_banana_as_published_in_m2(real_data, published, fitted_labels):
    """M2 labels whole cells, and of a client's equal rows only the first one."""
    banana = real_data("banana")
    X, rows = scaled(banana), ten_clients(banana)
    model = HorizontalDBSCAN(0.03, 4, border="absorb", assign="cell", random_state=0)
    labels = np.array(fitted_labels(model, X, rows))
    for part in rows:
        labels[part[pd.DataFrame(X[part]).duplicated()]] = -1
    expected = published_scores(published, "M2", "banana")
    assert expected["AMI"] == "0.9622"
    assert rounded(clustering_scores(banana.y, labels)) == expected


@pytest.mark.jit
def test_s_set1_lies_within_the_spread_over_orders(real_data, published):
    """Each of M1's five scores is between the minimum and the maximum over 200 visiting orders."""
    s_set1 = real_data("s-set1")
    X = scaled(s_set1)
    scores = []
    for seed in range(200):
        model = HorizontalDBSCAN(0.03, 15, border="absorb", random_state=seed).fit([X])
        scores.append(clustering_scores(s_set1.y, model.labels_[0]))
    spread = pd.DataFrame(scores).round(4)
    for name, value in published_scores(published, "M1", "s-set1").items():
        assert spread[name].min() <= float(value) <= spread[name].max()
        assert spread[name].nunique() > 10  # the scores do depend on the order
