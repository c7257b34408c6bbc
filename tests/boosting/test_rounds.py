"""Learning rates by round as in XGBoost, and the callback after each round."""

import warnings

import numpy as np
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.cli.options import parameter_options
from fedlib.sites import models
from fedlib.testing import Recorder

from .common import METHODS, assert_same_trees, deal, make_rows
from .exact import RULES, different_nodes
from .test_validation import CASES, estimator_for

RATES = [0.5, 0.25, 0.1, 0.05]


def falling(n_round):
    return RATES[n_round]


def fit(learning_rate=0.3, objective="binary:logistic", **options):
    X, y = CASES[objective][0](200, missing=0.1)
    options = {"n_trees": 4, "method": "histogram", "max_depth": 3, **options}
    return estimator_for(objective, learning_rate=learning_rate, **options).fit(deal(X, y, 3))


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "reg:gamma"])
def test_rates_are_those_of_the_scheduler_of_xgboost(objective):
    """It sets a rate after a round, for the next one, so its rates begin with the second round."""
    model = fit(RATES, objective, xgboost_rules=RULES)
    X, y = CASES[objective][0](200, missing=0.1)
    codes = np.unique(y, return_inverse=True)[1] if objective == "multi:softprob" else y
    scheduler = xgboost.callback.LearningRateScheduler([*RATES[1:], 1.0].__getitem__)
    train = xgboost.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xgboost, "train", lambda *a: train(*a, callbacks=[scheduler]))
        n_nodes, differences = different_nodes(model, X, codes, max_depth=3, learning_rate=RATES[0])
    assert n_nodes > 20
    assert differences == []
    assert model.learning_rate_ == 0.5


@pytest.mark.parametrize("method", METHODS)
def test_a_function_a_list_and_one_number(method):
    by_list, by_function = (fit(given, method=method) for given in (np.array(RATES), falling))
    assert_same_trees(by_function.trees_, by_list.trees_)
    assert_same_trees(fit([0.3] * 4, method=method).trees_, fit(0.3, method=method).trees_)
    first = fit(0.5, method=method).trees_[0].value
    np.testing.assert_array_equal(by_list.trees_[0].value, first)


def test_a_warm_start_counts_through():
    X, y = make_rows(200)
    parts = deal(X, y, 3)
    whole = FederatedXGBRegressor(4, learning_rate=RATES).fit(parts)
    model = FederatedXGBRegressor(2, learning_rate=RATES, warm_start=True).fit(parts)
    model.set_params(n_trees=4).fit(parts)
    assert_same_trees(model.trees_, whole.trees_)


def test_only_the_first_rate_is_sent():
    X, y = make_rows(90)
    runs = []
    for rates in (RATES, [0.5, 0.5, 0.5, 0.5]):
        client = FederatedXGBRegressor.client_class((X, y))
        recorder = Recorder({"A": client})
        FederatedXGBRegressor(4, learning_rate=rates).fit(recorder)
        runs.append([str(one.requests["A"])[:40] for one in recorder.exchanges])
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.3, 0.3], "one number per round, 4 or more; got"),
        ([0.3, 0.3, 0.3, 1.5], "at most 1 in each round; got 1.5"),
        (lambda n_round: -0.1, "above 0 and at most 1 in each round; got -0.1"),
        ([[0.3]] * 4, "at most 1 in each round"),
        (2.0, "learning_rate"),
    ],
)
def test_rates_out_of_range_are_refused_before_any_message(given, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(4, learning_rate=given).protocol()


# The callback -----------------------------------------------------------------------------------


def test_the_callback_receives_what_the_server_knows():
    reports = []
    model = fit(
        RATES, validation_fraction=0.3, random_state=0, eval_metric=["auc", "logloss"],
        callback=reports.append,
    )  # fmt: skip
    assert [one.n_rounds for one in reports] == [1, 2, 3, 4]
    assert {one.n_trees for one in reports} == {4}
    assert [one.learning_rate for one in reports] == pytest.approx(RATES)
    assert [one.loss for one in reports] == model.losses_
    for name, values in model.evals_result_["validation_0"].items():
        assert [one.evaluations["validation_0"][name] for one in reports] == values
    assert_same_trees(fit(RATES, validation_fraction=0.3, random_state=0).trees_, model.trees_)


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob"])
def test_the_callback_may_end_the_run(objective):
    model = fit(objective=objective, callback=lambda report: report.n_rounds == 2)
    assert model.ended_by_ == "callback"
    assert model.model_.n_rounds == 2
    n = len(model.trees_)
    assert_same_trees(fit(objective=objective).trees_[:n], model.trees_)


def test_with_noise_there_is_no_loss():
    reports = []
    fit(
        epsilon=5.0, delta=1e-6, classes=[0, 1], bounds=[[-2] * 4, [2] * 4], max_depth=2,
        callback=reports.append,
    )  # fmt: skip
    assert [one.loss for one in reports] == [None] * 4


def test_functions_are_not_stored_and_not_on_the_command_line(tmp_path):
    model = fit(falling, callback=lambda report: None)
    with pytest.warns(UserWarning, match="is a function, which is stored as the default") as caught:
        models.save(model, tmp_path / "model.npz")
    assert len(caught) == 2
    loaded = models.load(tmp_path / "model.npz")
    X, _ = make_rows(50)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert "callback" not in {option.name for option in parameter_options(type(model))}


def test_a_journal_continues_a_run_with_functions_and_lists(tmp_path):
    X, y = make_rows(90)
    options = {"learning_rate": falling, "interaction_constraints": [[0], [1, 2]]}
    runs = []
    for _ in range(2):
        model = FederatedXGBRegressor(4, **options, callback=lambda report: None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs.append(model.fit([(X, y)], journal=tmp_path / "run"))
    assert_same_trees(runs[1].trees_, runs[0].trees_)
