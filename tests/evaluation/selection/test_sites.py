"""Validation over the sites of one process."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold, LeaveOneGroupOut

from fedlib import (
    DBDC,
    FederatedGaussianMixture,
    FederatedKMeans,
    FederatedPipeline,
    FederatedXGBClassifier,
    Schema,
)
from fedlib.evaluation.selection import cross_validate_sites

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 2)) + 3 * (np.arange(120) % 2)[:, np.newaxis]
Y = (X.sum(axis=1) + RNG.normal(size=120) > 3).astype(int)
ROWS = np.array_split(np.arange(120), 4)
TABLES = [X[rows] for rows in ROWS]
LABELLED = [(X[rows], Y[rows]) for rows in ROWS]
KMEANS = FederatedKMeans(2, method="lloyd", init=[[0.0, 0.0], [3.0, 3.0]])
TREES = FederatedXGBClassifier(3, method="histogram", max_depth=2)


def test_each_site_is_scored_by_a_model_of_the_others():
    result = cross_validate_sites(KMEANS, TABLES, return_estimator=True)
    for i, table in enumerate(TABLES):
        others = KMEANS.fit([part for j, part in enumerate(TABLES) if j != i])
        assert result["estimator"][i].cluster_centers_.tolist() == others.cluster_centers_.tolist()
        assert result["test_score"][i] == others.score(table)
    assert result["test_sites"] == [("0",), ("1",), ("2",), ("3",)]


def test_a_site_without_rows_cannot_be_a_fold():
    parts = {"N": TABLES[0], "E": TABLES[1], "S": X[:0], "W": TABLES[2]}
    with pytest.raises(ValueError, match="must have rows in each fold, but 'S' has none: leave it"):
        cross_validate_sites(KMEANS, parts)
    scores = cross_validate_sites(KMEANS, parts, cv=LeaveOneGroupOut(), groups=[0, 1, 1, 2])
    assert len(scores["test_score"]) == 3


def test_splitters_of_scikit_learn_split_the_sites():
    parts = dict(zip("NESW", LABELLED, strict=True))
    result = cross_validate_sites(
        TREES, parts, cv=LeaveOneGroupOut(), groups=[0, 1, 0, 1], scoring="roc_auc"
    )
    assert result["test_sites"] == [("N", "S"), ("E", "W")]
    model = TREES.fit({"E": parts["E"], "W": parts["W"]})
    held_out, labels = (np.concatenate(one) for one in zip(parts["N"], parts["S"], strict=True))
    wanted = roc_auc_score(labels, model.predict_proba(held_out)[:, 1])
    assert result["test_score"][0] == pytest.approx(wanted)
    folds = cross_validate_sites(TREES, LABELLED, cv=KFold(2), scoring=["accuracy", "f1"])
    assert folds["test_sites"] == [("0", "1"), ("2", "3")]
    assert folds["test_accuracy"].shape == folds["test_f1"].shape == (2,)


def test_scores_have_the_weights_of_the_rows():
    weights = [np.arange(len(table)) % 3.0 for table in TABLES]
    parts = [*zip(TABLES[:3], weights[:3], strict=True), TABLES[3]]
    result = cross_validate_sites(KMEANS, parts, cv=2)
    model = KMEANS.fit(parts[:2])
    wanted = model.score(TABLES[2], sample_weight=weights[2]) + model.score(TABLES[3])
    assert result["test_score"][1] == pytest.approx(wanted)


def test_pipelines_and_schemas():
    limits = {"minimum": -20, "maximum": 20, "required": True}
    fields = [{"name": name, "type": "number", "constraints": limits} for name in ("a", "b")]
    target = {"name": "y", "type": "integer", "constraints": {"enum": [0, 1], "required": True}}
    schema = Schema({"schema": {"fields": [*fields, target | {"fedlib": {"role": "target"}}]}})
    tables = [pd.DataFrame(x, columns=["a", "b"]) for x in TABLES]
    whole = [table.assign(y=y) for table, (_, y) in zip(tables, LABELLED, strict=True)]
    with_schema = FederatedXGBClassifier(3, method="histogram", max_depth=2, schema=schema)
    wanted = cross_validate_sites(TREES, LABELLED)["test_score"]
    assert cross_validate_sites(with_schema, whole)["test_score"].tolist() == wanted.tolist()
    other_order = [tables[0], *(table[["b", "a"]] for table in tables[1:])]
    pipeline = FederatedPipeline(KMEANS, scale=None, impute="mean")
    scores = cross_validate_sites(pipeline, other_order, scoring=negative_inertia)["test_score"]
    wanted = cross_validate_sites(KMEANS, TABLES)["test_score"]
    np.testing.assert_allclose(scores, wanted, rtol=1e-12)


def negative_inertia(pipeline, table, y=None):
    centres = pipeline.estimator_.cluster_centers_
    return -np.square(table.to_numpy()[:, None] - centres).sum(axis=2).min(axis=1).sum()


def test_mixtures_have_a_score():
    mixture = FederatedGaussianMixture(2, method="em", random_state=0)
    result = cross_validate_sites(mixture, TABLES, return_estimator=True)
    assert result["test_score"][0] == result["estimator"][0].score(TABLES[0])


def test_what_cannot_be_validated_is_refused():
    with pytest.raises(TypeError, match="score"):
        cross_validate_sites(DBDC(1.0, 3), TABLES)
    with pytest.raises(ValueError, match="parts must be a list"):
        cross_validate_sites(KMEANS, X)
    with pytest.raises(ValueError, match="n_samples|n_splits|folds"):
        cross_validate_sites(KMEANS, TABLES, cv=9)
    margins = [(rows, y, None, None, rows[:, 0]) for rows, y in LABELLED]
    with pytest.raises(ValueError, match="no base margins.* LeaveOneSiteOut starts"):
        cross_validate_sites(TREES, margins)
    with pytest.raises(ValueError, match="column"):
        cross_validate_sites(KMEANS, [*TABLES[:3], np.full((3, 2), np.nan)])
