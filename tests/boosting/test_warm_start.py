"""A model that is continued is the model of one run."""

import numpy as np
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.client import BoostingClient
from fedlib.testing import Recorder

from .common import assert_same_trees, deal, make_rows

X, Y = make_rows(150)
PARTS = deal(X, Y, 3)
HISTOGRAM = {"method": "histogram", "tol": None, "max_depth": 3, "random_state": 3}
SEVERAL = {**HISTOGRAM, "objective": "multi:softprob"}
BOUNDS = np.array([[-4.0] * 4, [4.0] * 4])


@pytest.mark.parametrize(
    "parameters",
    [
        {**HISTOGRAM, "method": "top_splits", "subsample": 0.5},
        {**HISTOGRAM, "method": "union", "subsample": 0.5},
        {**HISTOGRAM, "subsample": 0.5},
        {**SEVERAL, "subsample": 0.5},
        {**HISTOGRAM, "colsample_bytree": 0.5},
        {**SEVERAL, "colsample_bylevel": 0.5, "colsample_bynode": 0.7},
        {**HISTOGRAM, "grow_policy": "lossguide", "max_leaves": 4, "colsample_bynode": 0.5},
        {**HISTOGRAM, "validation_fraction": 0.3, "eval_metric": ["auc", "logloss"]},
        {**HISTOGRAM, "validation_fraction": 0.3, "eval_metric": "auc", "subsample": 0.7},
        {**HISTOGRAM, "secure": True, "bounds": BOUNDS, "classes": [0, 1], "subsample": 0.5},
    ],
    ids=str,
)
def test_single_rounds_give_the_model_of_one_run(parameters):
    once = FederatedXGBClassifier(5, **parameters).fit(PARTS).model_
    model = FederatedXGBClassifier(1, warm_start=True, **parameters)
    for n_trees in (1, 2, 4, 5):
        model.set_params(n_trees=n_trees).fit(PARTS)
    assert_same_trees(model.trees_, once.trees)
    for name in ("metrics", "evaluations", "evaluation_errors", "best_round", "seed"):
        assert getattr(model.model_, name) == getattr(once, name)


def test_numbers_are_learnt_from_new_samples_too():
    parts = [(x, x.sum(axis=1)) for x, _ in PARTS]
    options = {"subsample": 0.5, "random_state": 0, "max_depth": 3}
    once = FederatedXGBRegressor(4, **options).fit(parts)
    model = FederatedXGBRegressor(2, warm_start=True, **options).fit(parts)
    assert_same_trees(model.set_params(n_trees=4).fit(parts).trees_, once.trees_)


def test_without_random_state_the_rows_for_validation_stay():
    """Otherwise, rows that have grown trees would judge the next ones."""
    model = FederatedXGBClassifier(
        2, method="histogram", tol=None, validation_fraction=0.3, warm_start=True
    )
    seeds = []
    for n_trees in (2, 4):
        transport = Recorder({str(i): BoostingClient(part) for i, part in enumerate(PARTS)})
        model.set_params(n_trees=n_trees).fit(transport)
        seeds.append(transport.exchanges[0].requests["0"].seed)
    assert seeds[0] == seeds[1] == model.model_.seed


@pytest.mark.parametrize("rounds", [None, 2])
def test_nothing_is_left_to_add(rounds):
    """The clients receive the model, which stays as it is."""
    model = FederatedXGBClassifier(
        20, validation_fraction=0.3, early_stopping_rounds=rounds, warm_start=True, **HISTOGRAM
    ).fit(PARTS)
    before = model.model_
    assert (before.n_rounds < 20) == (rounds is not None)
    model.fit(PARTS)
    assert_same_trees(model.trees_, before.trees)
    for name in ("evaluations", "best_round"):
        assert getattr(model.model_, name) == getattr(before, name)
    predictions = [model.predict(part) for part, _ in PARTS]
    np.testing.assert_array_equal(np.concatenate(model.labels_), np.concatenate(predictions))


def test_more_patience_continues_after_early_stopping():
    options = {**HISTOGRAM, "validation_fraction": 0.3, "learning_rate": 1.0}
    model = FederatedXGBClassifier(30, early_stopping_rounds=1, warm_start=True, **options)
    assert model.fit(PARTS).model_.n_rounds < 30
    once = FederatedXGBClassifier(30, early_stopping_rounds=8, **options).fit(PARTS)
    model.set_params(early_stopping_rounds=8).fit(PARTS)
    assert_same_trees(model.trees_, once.trees_)
    assert model.evals_result_ == once.evals_result_


def test_fewer_rounds_than_the_model_has():
    model = FederatedXGBClassifier(3, warm_start=True, **HISTOGRAM).fit(PARTS)
    before = model.model_
    with pytest.raises(ValueError, match="n_trees must be at least 3, the rounds of the model"):
        model.set_params(n_trees=2).fit(PARTS)
    assert model.model_ is before


def test_rounds_before_validation_have_no_values():
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(X, Y), 3)
    model = FederatedXGBClassifier.from_xgboost(booster)
    model.set_params(
        n_trees=6, method="histogram", tol=None, validation_fraction=0.3, random_state=0
    ).fit(PARTS)
    values = model.evals_result_["validation_0"]["logloss"]
    assert np.isnan(values).tolist() == [True] * 3 + [False] * 3
    assert model.best_iteration_ == 3 + int(np.argmin(values[3:]))
    assert model.best_score_ == min(values[3:])
    assert model.plot().lines[0].get_ydata()[3:].tolist() == values[3:]


@pytest.mark.parametrize(
    ("objective", "before", "after", "message"),
    [
        ("reg:quantileerror", {"quantile_alpha": 0.5}, {"quantile_alpha": 0.75}, "got .0.75"),
        (
            "reg:quantileerror",
            {"quantile_alpha": 0.5},
            {"quantile_alpha": [0.25, 0.5]},
            "0.25, 0.5",
        ),
        ("reg:expectileerror", {"expectile_alpha": 0.5}, {"expectile_alpha": 0.25}, "got .0.25"),
        ("reg:pseudohubererror", {"huber_slope": 1.0}, {"huber_slope": 2.0}, "1.0; got 2.0"),
        ("reg:tweedie", {}, {"tweedie_variance_power": 1.25}, "1.5; got 1.25"),
        ("survival:aft", {}, {"aft_loss_distribution": "extreme"}, "'normal'; got 'extreme'"),
        ("survival:aft", {}, {"aft_loss_distribution_scale": 2.0}, "1.0; got 2.0"),
    ],
)
def test_the_parameters_of_the_objective_stay(objective, before, after, message):
    """Otherwise, further trees would answer another question than the first ones."""
    times = objective == "survival:aft"
    parts = [(x, np.exp(x[:, [0, 0]] if times else x[:, 0])) for x, _ in PARTS]
    model = FederatedXGBRegressor(1, objective=objective, warm_start=True, **before).fit(parts)
    model.fit(parts)
    (name,) = after
    with pytest.raises(ValueError, match=f"the {name} must be that of the model, .*{message}"):
        model.set_params(n_trees=2, **after).fit(parts)
