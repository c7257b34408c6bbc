"""A pipeline whose estimator continues: the model goes on, and the preprocessing stays."""

import numpy as np
import pandas as pd
import pytest

from fedlib import (
    FederatedGaussianMixture,
    FederatedPipeline,
    FederatedXGBClassifier,
    Schema,
)
from fedlib.sites import models

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(90, 3)) * [1, 10, 100], columns=["a", "b", "c"])
KIND = (FRAME["a"] + FRAME["b"] / 10 > 0).astype(int).to_numpy()
PARTS = [(FRAME[i::3], KIND[i::3]) for i in range(3)]
TABLES = [FRAME[i::3].assign(kind=KIND[i::3]) for i in range(3)]
LIMITS = {"minimum": -1000, "maximum": 1000, "required": True}
FIELDS = [{"name": name, "type": "number", "constraints": LIMITS} for name in "abc"]
TARGET = {
    "name": "kind",
    "type": "integer",
    "constraints": {"enum": [0, 1]},
    "fedlib": {"role": "target"},
}
SCHEMA = Schema({"schema": {"fields": [*FIELDS, TARGET]}})


def boosted(n_trees, **options):
    return FederatedXGBClassifier(n_trees, max_depth=2, warm_start=True, **options)


def continued(pipeline, parts):
    """Fit 2 rounds and 2 more."""
    pipeline.set_params(estimator__n_trees=2).fit(parts)
    return pipeline.set_params(estimator__n_trees=4).fit(parts)


@pytest.mark.parametrize(
    ("parts", "options", "inner"),
    [
        (PARTS, {"scale": "standard"}, {}),
        (PARTS, {"scale": "robust", "pca": 2}, {}),
        (TABLES, {"scale": "standard", "schema": SCHEMA}, {}),
        (TABLES, {"scale": "standard", "schema": SCHEMA, "pca": 2}, {}),
        (TABLES, {"scale": "standard", "schema": SCHEMA}, {"secure": True, "max_bin": 8}),
    ],
    ids=["plain", "components", "schema", "schema, components", "masked"],
)
def test_two_fits_are_one(parts, options, inner):
    once = FederatedPipeline(boosted(4, **inner), **options).fit(parts)
    twice = continued(FederatedPipeline(boosted(2, **inner), **options), parts)
    assert len(twice.trees_) == 4
    new = FRAME[:20]
    np.testing.assert_array_equal(twice.predict_proba(new), once.predict_proba(new))


def test_the_preprocessing_stays():
    """No statistics are asked for again, also when the rows are other ones."""
    model = FederatedPipeline(boosted(2), scale="standard").fit(PARTS)
    rules, trees = model.model_.rules, model.trees_
    asked = model.ledger_.conversation()
    moved = [(rows + 5, labels) for rows, labels in PARTS]
    model.set_params(estimator__n_trees=3).fit(moved)
    assert model.model_.rules is rules
    assert [tree is old for tree, old in zip(model.trees_, trees, strict=False)] == [True, True]
    assert "DescribeColumns" in asked
    assert "DescribeColumns" not in model.ledger_.conversation()


def test_without_it_each_fit_begins_again():
    model = FederatedPipeline(FederatedXGBClassifier(2), scale="standard").fit(PARTS)
    rules = model.model_.rules
    assert len(model.fit(PARTS).trees_) == 2
    assert model.model_.rules is not rules


def test_mixtures_continue():
    parts = [rows for rows, _ in PARTS]
    options = {"random_state": 0, "tol": 0, "warm_start": True}
    once = FederatedPipeline(FederatedGaussianMixture(2, max_rounds=4, **options), scale="standard")
    model = FederatedPipeline(
        FederatedGaussianMixture(2, max_rounds=2, **options), scale="standard"
    )
    model.fit(parts).fit(parts)
    np.testing.assert_array_equal(model.means_, once.fit(parts).means_)


def test_saved_and_recorded_fits_continue(tmp_path):
    """Also with a journal, which records a seed in a copy of the estimator."""
    options = {"subsample": 0.5}
    model = FederatedPipeline(boosted(2, **options), scale="standard").fit(PARTS)
    models.save(model, tmp_path / "model.json")
    trees = model.trees_
    for one in (model, models.load(tmp_path / "model.json")):
        journal = tmp_path / f"{id(one)}.journal"
        one.set_params(estimator__n_trees=4).fit(PARTS, journal=journal)
        assert len(one.trees_) == 4
        np.testing.assert_array_equal(one.trees_[1].value, trees[1].value)


@pytest.mark.parametrize("options", [{}, {"schema": SCHEMA}], ids=["plain", "schema"])
def test_a_fitted_estimator_inside_continues(options, tmp_path):
    """As a model of XGBoost does, with a journal, too."""
    parts = TABLES if options else PARTS
    inner = boosted(2).fit(PARTS)
    trees = inner.trees_
    model = FederatedPipeline(inner.set_params(n_trees=3), **options)
    model.fit(parts, journal=tmp_path / "run.journal")
    assert len(model.trees_) == 3
    np.testing.assert_array_equal(model.trees_[0].value, trees[0].value)


def test_other_columns_are_refused():
    model = FederatedPipeline(boosted(2), scale="standard").fit(PARTS)
    parts = [(rows.rename(columns={"c": "d"}), labels) for rows, labels in PARTS]
    with pytest.raises(ValueError, match="'c' is missing, and 'd' is additional"):
        model.set_params(estimator__n_trees=3).fit(parts)
    other = Schema({"schema": {"fields": [*FIELDS[:2], TARGET]}})
    with pytest.raises(ValueError, match="columns must be those of the model: 'c' is missing"):
        model.set_params(schema=other).fit(TABLES)


def test_components_of_masked_runs_are_refused():
    options = {"schema": SCHEMA, "scale": "standard", "pca": 2}
    model = FederatedPipeline(boosted(1, secure=True, max_bin=4), **options).fit(TABLES)
    with pytest.raises(ValueError, match="warm_start must be False with pca and secure=True"):
        model.set_params(estimator__n_trees=2).fit(TABLES)
