"""Validation: metrics by round equal to XGBoost's, early stopping, and rows that are kept."""

from functools import partial

import numpy as np
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.scores import RowScores
from fedlib.testing import Recorder

from .common import METHODS, assert_same_trees, deal, first_message, make_rows
from .test_objectives import codes, data_for, make_counts, make_three

CASES = {
    "binary:logistic": (make_rows, ["error", "logloss"]),
    "multi:softprob": (make_three, ["merror", "mlogloss"]),
    "reg:squarederror": (make_counts, ["mae", "rmse"]),
    "reg:pseudohubererror": (make_counts, ["rmse", "mphe"]),
    "count:poisson": (make_counts, ["mae", "poisson-nloglik"]),
    "reg:logistic": (partial(data_for, "reg:logistic"), ["mae", "rmse"]),
    "reg:gamma": (partial(data_for, "reg:gamma"), ["gamma-deviance", "gamma-nloglik"]),
    "reg:tweedie": (partial(data_for, "reg:tweedie"), ["rmse", "tweedie-nloglik"]),
}


def estimator_for(objective, **parameters):
    if objective.startswith(("binary", "multi")):
        return FederatedXGBClassifier(objective=objective, tol=None, **parameters)
    return FederatedXGBRegressor(objective=objective, **parameters)


def with_eval_set(make, n_clients=3):
    """Return parts with rows for validation, and these rows of all parts."""
    parts = deal(*make(240, seed=1, missing=0.1), n_clients)
    kept = deal(*make(120, seed=2, missing=0.1), n_clients)
    X, y = (np.concatenate(arrays) for arrays in zip(*kept, strict=True))
    return [(*part, None, of) for part, of in zip(parts, kept, strict=True)], X, y


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("objective", CASES)
def test_the_metrics_are_those_of_xgboost(objective, method):
    """XGBoost evaluates the exported model of each length on the pooled rows."""
    make, metrics = CASES[objective]
    parts, X, y = with_eval_set(make)
    model = estimator_for(
        objective, n_trees=3, method=method, max_depth=3, eval_metric=metrics
    ).fit(parts)
    booster, data = model.to_xgboost(), xgboost.DMatrix(X, codes(y))
    found = model.evals_result_["validation_0"]
    assert list(found) == metrics
    for name in metrics:
        theirs = []
        for k in range(3):
            first = booster[: k + 1]
            first.set_param({"eval_metric": name + "@1.5" * (name == "tweedie-nloglik")})
            theirs.append(float(first.eval_set([(data, "v")]).rpartition(":")[2]))
        assert found[name] == pytest.approx(theirs, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("objective", CASES)
def test_rows_for_validation_do_not_change_the_trees(objective):
    make, _ = CASES[objective]
    parts, _, _ = with_eval_set(make)
    model = estimator_for(objective, n_trees=2, method="histogram", early_stopping_rounds=5)
    plain = estimator_for(objective, n_trees=2, method="histogram")
    trees = plain.fit([(X, y) for X, y, *_ in parts]).trees_
    assert_same_trees(model.fit(parts).trees_[: len(trees)], trees[: len(model.trees_)])
    assert [len(part) for part in model.labels_] == [len(y) for _, y, *_ in parts]


@pytest.mark.parametrize("method", METHODS)
def test_a_share_of_the_rows_is_kept_by_their_values(method):
    """The trees are those of the rows that remain, and do not depend on the clients."""
    X, y = make_rows(400, missing=0.1)
    model = FederatedXGBClassifier(
        4, method=method, tol=None, validation_fraction=0.3, random_state=0
    ).fit(deal(X, y, 3))
    assert not model.ledger_.lost
    assert len(model.evals_result_["validation_0"]["logloss"]) == 4
    if method == "histogram":
        again = FederatedXGBClassifier(**model.get_params()).fit([(X, y)])
        assert_same_trees(again.trees_, model.trees_)
        expected = model.evals_result_["validation_0"]["logloss"]
        assert again.evals_result_["validation_0"]["logloss"] == pytest.approx(expected)
        p = model.base_share_
        assert 0.6 < model.trees_[0].cover[0] / (p * (1 - p)) / 400 < 0.8


def test_early_stopping_keeps_the_best_rounds():
    X, y = make_rows(300)
    model = FederatedXGBClassifier(
        100, method="histogram", tol=None, learning_rate=1.0, early_stopping_rounds=3,
        validation_fraction=0.4, random_state=1,
    ).fit(deal(X, y, 3))  # fmt: skip
    losses = model.evals_result_["validation_0"]["logloss"]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 3 < 100
    assert (model.best_iteration_, model.best_score_) == (best, losses[best])
    assert len(model.trees_) == best + 1
    assert model.ledger_.conversation().count("ScoreRows") == len(losses)


def test_both_stopping_rules_work_together():
    X, y = make_rows(300)
    model = FederatedXGBClassifier(
        50, method="histogram", tol=0.05, validation_fraction=0.2, random_state=0
    ).fit(deal(X, y, 3))
    assert len(model.trees_) < 50
    assert len(model.trees_) == len(model.evals_result_["validation_0"]["logloss"])
    assert -np.diff(model.losses_)[-1] < 0.05


def test_the_auc_lies_within_its_bound():
    from sklearn.metrics import roc_auc_score

    parts, X, y = with_eval_set(make_rows)
    model = FederatedXGBClassifier(3, method="histogram", tol=None, eval_metric=["auc"]).fit(parts)
    for k, p in enumerate(model.staged_predict_proba(X)):
        auc = model.evals_result_["validation_0"]["auc"][k]
        assert abs(auc - roc_auc_score(y, p[:, 1])) <= model.auc_error_[k] + 1e-12
    assert model.best_iteration_ == np.argmax(model.evals_result_["validation_0"]["auc"])


def test_lossguide_validates_too():
    parts, _, _ = with_eval_set(make_three)
    model = FederatedXGBClassifier(
        2, method="histogram", tol=None, objective="multi:softprob", grow_policy="lossguide",
        max_leaves=5, eval_metric="mlogloss",
    ).fit(parts)  # fmt: skip
    plain = FederatedXGBClassifier(**{**model.get_params(), "eval_metric": None})
    assert_same_trees(plain.fit([(X, y) for X, y, *_ in parts]).trees_, model.trees_)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"eval_metric": "rmse"}, "eval_metric must be among auc, error, logloss for"),
        ({"eval_metric": []}, "eval_metric must be among"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"early_stopping_rounds": 0}, "early_stopping_rounds"),
    ],
)
def test_invalid_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(**parameters).protocol()


def test_there_must_be_rows_for_validation():
    with pytest.raises(ValueError, match="no client has rows for validation"):
        FederatedXGBClassifier(1, eval_metric="logloss").fit(deal(*make_rows(), 2))


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        (([[1.0, 2.0]], [0]), "eval_set must have 1 features; got 2"),
        (([[1.0]], [0, 1]), "eval_set: y must contain one class per row, 1; got 2"),
        (([[1.0]], [0], [1.0], []), "an eval_set must be"),
    ],
)
def test_invalid_eval_sets(eval_set, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier().fit([([[1.0], [2.0]], [0, 1], None, eval_set)])


def test_a_lying_client_leaves():
    parts, _, _ = with_eval_set(make_rows)

    def tamper(request, reply):
        from fedlib.core.messages import decode, encode

        message = decode(reply)
        if not isinstance(message, RowScores):
            return reply
        return encode(RowScores(np.zeros(3), 1.0, message.positives, message.negatives))

    clients = {name: BoostingClient(part) for name, part in zip("ABC", parts, strict=True)}
    recorder = Recorder(clients, tamper={"C": tamper})
    model = FederatedXGBClassifier(2, tol=None, eval_metric="logloss").fit(recorder, min_clients=2)
    assert "InvalidReply" in model.ledger_.lost["C"]
    assert first_message(recorder.exchanges, RowScores, "A").weight == len(parts[0][3][1])


def test_the_learning_curve_shows_the_values_and_the_best_round():
    import matplotlib.pyplot as plt

    parts, _, _ = with_eval_set(make_rows)
    model = FederatedXGBClassifier(4, tol=None, eval_metric=["error", "logloss"]).fit(parts)
    figure = plt.figure()
    ax = model.plot(ax=figure.subplots())
    values = model.evals_result_["validation_0"]["logloss"]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), values)
    assert ax.lines[1].get_xdata()[0] == model.best_iteration_ + 1
    with pytest.raises(ValueError, match="metric must be one of error, logloss; got 'auc'"):
        model.plot("auc")
    plt.close(figure)
