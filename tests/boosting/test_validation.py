"""Validation: metrics by round equal to XGBoost's, early stopping, and rows that are kept."""

from functools import partial

import numpy as np
import pytest
import xgboost
from all_protocols import frozen
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.scores import AREAS, RowScores, score_rows
from fedlib.core.in_process import InProcess
from fedlib.testing import Recorder

from .common import METHODS, assert_same_trees, deal, first_message, make_rows
from .test_objectives import codes, data_for, make_counts, make_three


def above_zero(rows):
    """Return rows with targets above 0, of which percentages are finite."""
    X, y = rows
    return X, y + 1


CASES = {
    "binary:logistic": (make_rows, ["error", "logloss"]),
    "multi:softprob": (make_three, ["merror", "mlogloss"]),
    "reg:squarederror": (lambda *a, **k: above_zero(make_counts(*a, **k)), ["mape", "rmse"]),
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
        ({"eval_metric": "rmse"}, "eval_metric must be among auc, aucpr, error, logloss for"),
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
        FederatedXGBClassifier(1, eval_metric="logloss", method="top_splits").fit(
            deal(*make_rows(), 2)
        )


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        (([[1.0, 2.0]], [0]), "eval_set must have 1 features; got 2"),
        (([[1.0]], [0, 1]), "eval_set 'validation_0': y must contain one class per row, 1; got 2"),
        (([[1.0]], [0], [1.0], [0.5], []), "an eval_set must be"),
    ],
)
def test_invalid_eval_sets(eval_set, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(method="top_splits").fit([([[1.0], [2.0]], [0, 1], None, eval_set)])


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
    model = FederatedXGBClassifier(2, tol=None, eval_metric="logloss", method="top_splits").fit(
        recorder, min_clients=2
    )
    assert "InvalidReply" in model.ledger_.lost["C"]
    assert first_message(recorder.exchanges, RowScores, "A").weight == len(parts[0][3][1])


def test_an_error_of_a_target_of_zero_is_huge_and_finite():
    parts = [([[1.0], [2.0]], [1.0, 3.0], None, ([[1.0]], [0.0]))]
    model = FederatedXGBRegressor(1, eval_metric="mape").fit(parts)
    assert 1e30 < model.best_score_ < np.inf


# Areas below curves -----------------------------------------------------------------------------


def evaluated(model, X, y, metric):
    """Return XGBoost's metric of an exported model."""
    booster = model.to_xgboost()
    booster.set_param({"eval_metric": metric})
    return float(booster.eval_set([(xgboost.DMatrix(X, codes(y)), "v")]).rpartition(":")[2])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_area_below_precision_and_recall_keeps_its_bound(weighted):
    parts, X, y = with_eval_set(make_rows)
    w = np.random.default_rng(0).random(len(y)).astype(np.float32) if weighted else np.ones(len(y))
    if weighted:
        places = np.split(np.arange(len(y)), np.cumsum([len(p[3][1]) for p in parts])[:-1])
        parts = [(*p[:3], (*p[3], w[i])) for p, i in zip(parts, places, strict=True)]
    model = FederatedXGBClassifier(4, method="histogram", eval_metric="aucpr").fit(parts)
    booster = model.to_xgboost()
    for k, (value, error) in enumerate(
        zip(model.evals_result_["validation_0"]["aucpr"], model.aucpr_error_, strict=True)
    ):
        first = booster[: k + 1]
        first.set_param({"eval_metric": "aucpr"})
        data = xgboost.DMatrix(X, y, weight=w)
        theirs = float(first.eval_set([(data, "v")]).rpartition(":")[2])
        assert abs(value - theirs) <= error + 2e-6  # XGBoost prints six digits
        assert 0 < error < 0.1  # few rows, and fewer leaves
    assert model.auc_error_ == []
    assert model.best_iteration_ == np.argmax(model.evals_result_["validation_0"]["aucpr"])


def test_rows_with_equal_probabilities_are_interpolated_as_xgboost_does():
    """With probabilities that are middles of intervals, nothing is lost."""
    rng = np.random.default_rng(1)
    p = (rng.integers(0, 9, 200) * 100 + 0.5) / 1024
    y = (rng.random(200) < p * 1.2).astype(int)
    of_intervals = score_rows(["aucpr"], p[:, None], y, np.ones(200, np.float32), 0.0)
    value, error = AREAS["aucpr"](of_intervals.positives, of_intervals.negatives)
    data = xgboost.DMatrix(np.zeros((200, 1)), y, base_margin=np.log(p / (1 - p)))
    booster = xgboost.train({"eval_metric": "aucpr"}, data, 0)
    theirs = float(booster.eval_set([(data, "v")]).rpartition(":")[2])
    assert value == pytest.approx(theirs, abs=2e-6)
    orders = []
    for tie in (y, -y):  # the best and the worst order of equal rows
        order = np.lexsort((tie, p))[::-1]
        precision = np.cumsum(y[order]) / np.arange(1, 201)
        orders.append((precision * y[order]).sum() / y.sum())
    assert orders[1] - 0.01 < value - error < value < value + error
    assert value + error > orders[0] - 0.01


@pytest.mark.parametrize("missing_class", [False, True])
def test_the_auc_of_several_classes_is_that_of_xgboost(missing_class):
    parts, X, y = with_eval_set(make_three)
    if missing_class:  # in the rows for validation; then XGBoost has no value
        gone = np.unique(y)[0]
        parts = [(*p[:3], (p[3][0][p[3][1] != gone], p[3][1][p[3][1] != gone])) for p in parts]
    model = FederatedXGBClassifier(
        3, method="histogram", objective="multi:softprob", eval_metric=["merror", "auc"]
    ).fit(parts)
    value, error = model.evals_result_["validation_0"]["auc"][-1], model.auc_error_[-1]
    if missing_class:
        kept = y != gone
        X, y = X[kept], y[kept]
        p = model.predict_proba(X)
        present = model.classes_[1:]
        of_class = [roc_auc_score(y == c, p[:, k + 1]) for k, c in enumerate(present)]
        theirs = np.average(of_class, weights=[(y == c).sum() for c in present])
    else:
        theirs = evaluated(model, X, y, "auc")
    assert abs(value - theirs) <= error + 2e-6
    assert 0 < error < 0.02


def test_an_area_is_unknown_without_rows_of_both_classes():
    for area in AREAS.values():
        assert np.isnan([area(np.ones(4), np.zeros(4)), area(np.zeros(4), np.ones(4))]).all()


@pytest.mark.parametrize("metric", ["auc", "aucpr"])
def test_rows_for_validation_of_one_class_give_a_warning_and_no_early_stopping(metric):
    """As in XGBoost, the area is NaN; rounds that cannot be compared end nothing."""
    (X, y), other = deal(*make_rows(200), 2)
    late = X[:20], np.zeros(20, int)
    parts = [(X, y, None, late), other]
    model = FederatedXGBClassifier(7, eval_metric=metric, early_stopping_rounds=2)
    text = f"have one class, so {metric} is NaN; early_stopping_rounds has no effect"
    with pytest.warns(UserWarning, match=text) as caught:
        model.fit(parts)
    assert len(caught) == 1
    assert len(model.trees_) == 7
    assert np.isnan(model.evals_result_["validation_0"][metric]).all()
    assert model.best_iteration_ is None
    assert np.isnan(model.best_score_)
    (X, y), other = deal(*make_three(200), 2)
    three = FederatedXGBClassifier(2, eval_metric=["mlogloss", "auc"])
    with pytest.warns(UserWarning, match="have one class, so auc is NaN: give rows of several"):
        three.fit([(X, y, None, (X[:20], np.full(20, y[0]))), other])
    assert three.best_iteration_ is None


# Several sets -----------------------------------------------------------------------------------


def several_sets(as_list=False):
    """Return parts with two sets of rows, and the parts with each of them alone."""
    names = ["validation_0", "validation_1"] if as_list else ["same year", "next year"]
    parts = deal(*make_rows(200, missing=0.1), 3)
    rows = [deal(*make_rows(90, seed=seed, missing=0.1), 3) for seed in (1, 2)]
    both = []
    for i, part in enumerate(parts):
        sets = {name: of[i] for name, of in zip(names, rows, strict=True)}
        both.append((*part, None, list(sets.values()) if as_list else sets))
    alone = [[(*p, None, of[i]) for i, p in enumerate(parts)] for of in rows]
    return names, both, alone


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("as_list", [False, True])
def test_several_sets_have_the_metrics_of_each(method, as_list):
    names, both, alone = several_sets(as_list)
    options = {"n_trees": 3, "method": method, "eval_metric": ["auc", "logloss"]}
    model = FederatedXGBClassifier(**options, eval_sets=names).fit(both)
    assert list(model.evals_result_) == names
    for name, parts in zip(names, alone, strict=True):
        single = FederatedXGBClassifier(**options).fit(parts)
        assert model.evals_result_[name] == single.evals_result_["validation_0"]
        assert_same_trees(model.trees_, single.trees_)
    assert model.auc_error_ == single.auc_error_  # of the last set
    assert model.best_score_ == min(model.evals_result_[names[-1]]["logloss"])
    assert model.ledger_.conversation().count("ScoreRows") == 2 * 3


def test_the_last_set_stops_early_and_a_client_may_lack_a_set():
    names, both, alone = several_sets()
    both[0] = (*both[0][:3], {names[1]: both[0][3][names[1]]})
    options = {"n_trees": 60, "method": "histogram", "early_stopping_rounds": 2}
    model = FederatedXGBClassifier(**options, eval_sets=names).fit(both)
    single = FederatedXGBClassifier(**options).fit(alone[1])
    assert model.best_iteration_ == single.best_iteration_ < 57
    assert_same_trees(model.trees_, single.trees_)
    assert not model.ledger_.lost


def test_the_curves_of_several_sets():
    import matplotlib.pyplot as plt

    names, both, _ = several_sets()
    model = FederatedXGBClassifier(3, method="histogram", eval_sets=names).fit(both)
    figure = plt.figure()
    ax = model.plot(ax=figure.subplots(), eval_set=names[0])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), model.evals_result_[names[0]]["logloss"])
    assert len(ax.lines) == 1  # the best round is that of the last set
    with pytest.raises(ValueError, match="eval_set must be one of same year, next year"):
        model.plot(eval_set="last year")
    plt.close(figure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_sets": ["a", "a"]}, "eval_sets must be distinct names"),
        ({"eval_sets": [1]}, "eval_sets must be distinct names"),
        (
            {"eval_sets": ["next year"], "validation_fraction": 0.2},
            "validation_fraction must be 0 with eval_sets",
        ),
        ({"eval_sets": ["same year"]}, "must name the sets .*, without 'next year'"),
        (
            {"eval_sets": ["next year", "same year", "far"]},
            "no client has rows for validation named 'far' in eval_sets",
        ),
    ],
)
def test_names_of_sets_that_do_not_fit(options, message):
    _, both, _ = several_sets()
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(2, method="histogram", **options).fit(both)


def test_the_learning_curve_shows_the_values_and_the_best_round():
    import matplotlib.pyplot as plt

    parts, _, _ = with_eval_set(make_rows)
    model = FederatedXGBClassifier(
        4, tol=None, eval_metric=["error", "logloss"], method="top_splits"
    ).fit(parts)
    figure = plt.figure()
    ax = model.plot(ax=figure.subplots())
    values = model.evals_result_["validation_0"]["logloss"]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), values)
    assert ax.lines[1].get_xdata()[0] == model.best_iteration_ + 1
    with pytest.raises(ValueError, match="metric must be one of error, logloss; got 'auc'"):
        model.plot("auc")
    plt.close(figure)


def test_rows_without_a_parameter_for_them_are_named():
    X, y = make_rows(60)
    parts = {"A": (X[:30], y[:30]), "B": (X[30:], y[30:], None, (X[:5], y[:5]))}
    with pytest.warns(UserWarning, match=r"parts\[B\]: the rows for validation are not evaluated"):
        FederatedXGBClassifier(1).fit(parts)


@pytest.mark.parametrize("method", ["histogram", "top_splits", "union"])
def test_a_client_of_an_earlier_run_answers_as_a_new_one(method):
    """Its rows for validation are others in the second run, and so are the sums of weights."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(300, 3)).round(1), rng.integers(1, 5, 300) / 2
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    options = {"max_depth": 3, "max_bin": 16, "method": method}
    runs = [
        FederatedXGBClassifier(3, **options, validation_fraction=fraction, random_state=0)
        for fraction in (0.0, 0.1, 0.3)
    ]

    def clients():
        return {str(i): BoostingClient((X[i::3], y[i::3], weights[i::3])) for i in range(3)}

    again = clients()
    for run in runs:
        repeated = clone(run).fit(InProcess(again))
        assert frozen(repeated.model_) == frozen(run.fit(InProcess(clients())).model_)
