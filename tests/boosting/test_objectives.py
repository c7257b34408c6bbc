"""Every objective: by hand, equal to XGBoost, in all methods, and with labels that it refuses."""

import json

import numpy as np
import pytest
import xgboost
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.descriptions import TargetDescription
from fedlib.core.in_process import InProcess
from fedlib.testing import Recorder

from .common import assert_same_trees, deal, each_method, first_message, make_rows
from .exact import RULES, different_nodes

REGRESSIONS = [
    "reg:squarederror",
    "reg:pseudohubererror",
    "count:poisson",
    "reg:logistic",
    "reg:gamma",
    "reg:tweedie",
]
SOFTPROB = {"objective": "multi:softprob", "tol": None}
each_regression = pytest.mark.parametrize("objective", REGRESSIONS)


def make_counts(n=120, seed=0, missing=0.0):
    """Return rows and whole numbers that grow with the second feature."""
    X, y = make_rows(n, seed=seed, missing=missing)
    return X, np.round(np.exp(np.nan_to_num(X[:, 1]) / 2) + 3 * y)


def make_three(n=150, seed=0, missing=0.0):
    """Return rows of three classes."""
    X, y = make_rows(n, seed=seed, missing=missing)
    return X, np.array(["a", "b", "c"])[y + (np.nan_to_num(X[:, 2]) > 0.5)]


def estimator_for(objective, **parameters):
    if objective == "multi:softprob":
        return FederatedXGBClassifier(**SOFTPROB, **parameters)
    return FederatedXGBRegressor(objective=objective, **parameters)


def data_for(objective, n=120, **options):
    if objective == "multi:softprob":
        return make_three(n, **options)
    X, y = make_counts(n, **options)
    return X, for_objective(y, objective)


def for_objective(y, objective):
    """Return numbers that the objective allows."""
    if objective == "reg:logistic":
        return (y - y.min()) / (y.max() - y.min())
    if objective in ("reg:gamma", "reg:tweedie"):
        return y - y.min() + (objective == "reg:gamma")
    return np.round(y) if objective == "count:poisson" else y


def codes(y):
    return np.unique(y, return_inverse=True)[1] if y.dtype.kind == "U" else y


# By hand ----------------------------------------------------------------------------------------


def test_squared_error_by_hand():
    """The mean is 20. Left of 2.5, G = 2·10 and H = 2, so the leaf is −20/(2 + 1) · 0.3 = −2."""
    model = FederatedXGBRegressor(1, max_depth=1).fit(
        [([[1.0], [2.0]], [10, 10]), ([[3.0], [4.0]], [30, 30])]
    )
    assert model.base_score_ == 20
    assert model.trees_[0].value.tolist() == pytest.approx([0, -2, 2])
    assert model.predict([[0.0], [9.0]]).tolist() == pytest.approx([18, 22])
    assert model.losses_ == [100]


def test_poisson_by_hand():
    """The mean is 2, so g = 2 − y and h = 2·e^0.7 for each row."""
    model = FederatedXGBRegressor(1, max_depth=1, objective="count:poisson", min_child_weight=0)
    model.fit([([[1.0], [2.0]], [1, 3])])
    step = 1 / (2 * np.exp(0.7) + 1)
    assert model.trees_[0].value.tolist() == pytest.approx([0, -0.3 * step, 0.3 * step])
    assert model.predict([[1.0]]) == pytest.approx(2 * np.exp(-0.3 * step))


@pytest.mark.parametrize(
    ("objective", "power", "y", "sums"),
    [
        # The mean is 2, and the ratios to it are 1/2 and 3/2: g = 1 - ratio, h = ratio.
        ("reg:gamma", 1.5, (1, 3), [(0.5, 0.5), (-0.5, 1.5)]),
        # The mean is 1: g = 1 - y and h = (power - 1) y + 2 - power.
        ("reg:tweedie", 1.25, (0, 2), [(1, 0.75), (-1, 1.25)]),
        # The mean is 1/2: g = 1/2 - y, h = 1/4.
        ("reg:logistic", 1.5, (0.25, 0.75), [(0.25, 0.25), (-0.25, 0.25)]),
    ],
)
def test_the_first_tree_by_hand(objective, power, y, sums):
    model = FederatedXGBRegressor(
        1, max_depth=1, objective=objective, tweedie_variance_power=power, min_child_weight=0
    )
    model.fit([([[1.0]], y[:1]), ([[2.0]], y[1:])])
    expected = [-0.3 * g / (h + 1) for g, h in sums]
    assert model.trees_[0].value.tolist() == pytest.approx([0, *expected])
    assert model.base_score_ == np.mean(y)


def test_softprob_by_hand():
    """P = 1/3 for each class; the first class has g = −2/3 and h = 4/9 in its row."""
    parts = [([[0.0], [1.0]], ["a", "b"]), ([[2.0]], ["c"])]
    model = FederatedXGBClassifier(
        1, **SOFTPROB, max_depth=1, method="histogram", min_child_weight=0
    )
    model.fit(parts)
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert len(model.trees_) == 3
    first = model.trees_[0]
    left = (2 / 3) / (4 / 9 + 1) * 0.3
    right = (-2 / 3) / (8 / 9 + 1) * 0.3
    assert first.value.tolist() == pytest.approx([0, left, right])
    assert model.predict([[0.0], [2.0]]).tolist() == ["a", "c"]
    assert model.predict_proba([[0.0]]).sum() == pytest.approx(1)


# XGBoost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["multi:softprob", *REGRESSIONS])
def test_the_initial_prediction_is_that_of_xgboost(objective):
    X, y = data_for(objective)
    model = estimator_for(objective, n_trees=1).fit(deal(X, y, 3))
    options = {"num_class": 3} if objective == "multi:softprob" else {}
    options |= {"objective": objective, "nthread": 1}
    booster = xgboost.train(options, xgboost.DMatrix(X, codes(y)), 1)
    theirs = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    np.testing.assert_allclose(model.model_.base_scores, json.loads(theirs), rtol=1e-6)


def scaled_targets(name, objective):
    if name == "counts":
        return data_for(objective, n=400)
    X, y = load_diabetes(return_X_y=True)
    if objective == "count:poisson":
        return X, np.round(y)
    return X, for_objective((y - y.mean()) / y.std(), objective)


@pytest.mark.jit
@each_regression
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("name", ["counts", "diabetes"])
def test_a_regression_is_xgboost_on_the_same_bins(name, missing, objective):
    """The same structure for any distribution over 2–9 clients, and leaves within 1e-6."""
    X, y = scaled_targets(name, objective)
    X = np.where(np.random.default_rng(7).random(X.shape) < missing, np.nan, X)
    options = {"gamma": 0.2, "min_child_weight": 0.5, "reg_lambda": 2.0} if missing else {}
    model = FederatedXGBRegressor(8, objective=objective, xgboost_rules=RULES, **options)
    trees = model.fit([(X, y)]).trees_
    case = REGRESSIONS.index(objective) + 3 * bool(missing) + 2 * (name == "counts")
    assert_same_trees(model.fit(deal(X, y, 2 + case, case)).trees_, trees)
    n_nodes, differences = different_nodes(model, X, y, max_depth=6, **options)
    assert n_nodes > 100
    assert differences == []


@pytest.mark.jit
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("load", [load_iris, load_wine, load_digits])
def test_several_classes_are_xgboost_on_the_same_bins(load, missing):
    X, y = load(return_X_y=True)
    X = np.where(np.random.default_rng(7).random(X.shape) < missing, np.nan, X)
    model = FederatedXGBClassifier(4, method="histogram", xgboost_rules=RULES, **SOFTPROB)
    trees = model.fit([(X, y)]).trees_
    assert_same_trees(model.fit(deal(X, y, 5, 1)).trees_, trees)
    n_nodes, differences = different_nodes(model, X, y, max_depth=6)
    assert n_nodes > 50 * model.classes_.size / 3
    assert differences == []


@each_method
@pytest.mark.parametrize("objective", ["multi:softprob", *REGRESSIONS])
def test_to_xgboost_predicts_the_same(objective, method):
    X, y = data_for(objective, missing=0.1)
    model = estimator_for(objective, n_trees=4, method=method, max_depth=3).fit(deal(X, y, 3))
    new = xgboost.DMatrix(X)
    booster = model.to_xgboost()
    margins = booster.predict(new, output_margin=True).reshape(len(X), -1)
    expected = model.model_.margins(X.astype(np.float32))
    np.testing.assert_allclose(margins, expected, rtol=1e-6, atol=1e-6)
    predicted = model.predict(X) if objective in REGRESSIONS else model.predict_proba(X)
    np.testing.assert_allclose(booster.predict(new), predicted, rtol=1e-5, atol=1e-6)


@each_method
@pytest.mark.parametrize("objective", ["multi:softprob", *REGRESSIONS])
def test_every_method_lowers_the_loss(objective, method):
    X, y = data_for(objective, n=200, missing=0.1)
    model = estimator_for(objective, n_trees=6, method=method).fit(deal(X, y, 3))
    assert (np.diff(model.losses_) < 0).all()
    assert model.losses_[-1] < 0.8 * model.losses_[0]
    np.testing.assert_array_equal(model.labels_[0], model.predict(deal(X, y, 3)[0][0]))
    assert not model.ledger_.lost


@pytest.mark.parametrize("method", ["top_splits", "union"])
@pytest.mark.parametrize("objective", ["multi:softprob", *REGRESSIONS])
def test_one_client_grows_the_trees_of_exact_xgboost(objective, method):
    X, y = data_for(objective, n=200)
    if objective == "reg:squarederror":  # sums of whole numbers would give equal gains
        y = y + np.random.default_rng(0).normal(size=len(y))
    model = estimator_for(
        objective,
        n_trees=5,
        n_candidates=1,
        method=method,
        max_depth=4,
        base_score=0.5,
        xgboost_rules=RULES,
    ).fit([(X, y)])
    options = {"num_class": 3} if objective == "multi:softprob" else {}
    options |= {"objective": objective, "tree_method": "exact", "max_depth": 4, "nthread": 1}
    booster = xgboost.train(options | {"base_score": 0.5}, xgboost.DMatrix(X, codes(y)), 5)
    ours = model.predict_proba(X) if objective == "multi:softprob" else model.predict(X)
    np.testing.assert_allclose(ours, booster.predict(xgboost.DMatrix(X)), rtol=1e-4, atol=1e-5)


# The conversation -------------------------------------------------------------------------------


def test_the_trees_of_a_round_grow_side_by_side():
    """Three classes cost as many exchanges as two."""
    X, y = make_three()
    model = FederatedXGBClassifier(2, method="histogram", max_depth=2, **SOFTPROB)
    model.fit(deal(X, y, 3))
    names = model.ledger_.conversation()
    assert names.count("BuildPackedHistograms") == 4
    assert len(model.trees_) == 6
    assert names[:2] == ["DescribeTraining", "TrainingDescription"]


def test_the_conversation_of_a_regression():
    model = FederatedXGBRegressor(1, max_depth=1).fit(deal(*make_counts(), 3))
    start = ["DescribeTargets", "TargetDescription"]
    start += ["CountBuckets", "RowsPerBucket"] * 3 + ["BeginBoosting", "Done"]
    rest = ["BuildPackedHistograms", "PackedHistograms", "KeepTrees", "Done"]
    assert model.ledger_.conversation() == start + rest


def test_a_client_is_described_by_its_mean_and_variance():
    X, y = make_counts()
    recorder = Recorder({"A": RegressionClient((X, y))})
    FederatedXGBRegressor(1).fit(recorder)
    reply = first_message(recorder.exchanges, TargetDescription, "A")
    assert reply.total / reply.weight == pytest.approx(y.mean())
    assert reply.squares / reply.weight - y.mean() ** 2 == pytest.approx(y.var())


# Labels -----------------------------------------------------------------------------------------


def test_a_class_that_only_one_client_has():
    """Pooled XGBoost knows all classes; so do all clients, and no tree is lost."""
    X, y = make_three()
    parts = [(X[y == label], y[y == label]) for label in "abc"]
    model = FederatedXGBClassifier(3, method="histogram", **SOFTPROB)
    trees = model.fit(parts).trees_
    assert_same_trees(model.fit([(X, y)]).trees_, trees)
    assert len(trees) == 9


@pytest.mark.parametrize("objective", ["reg:gamma", "reg:tweedie"])
def test_a_far_initial_prediction_excludes_no_client(objective):
    X, y = data_for(objective)
    model = FederatedXGBRegressor(3, objective=objective, base_score=1e-3, max_delta_step=0.7)
    model.fit(deal(X, y, 3))
    assert not model.ledger_.lost
    assert (np.diff(model.losses_) < 0).all()


@pytest.mark.parametrize(
    ("objective", "y", "message"),
    [
        ("reg:gamma", 0.0, "y must be above 0 for objective='reg:gamma'; got 0.0"),
        ("reg:tweedie", -1.0, "y must be at least 0 for objective='reg:tweedie'; got -1.0"),
        ("reg:logistic", 1.5, "y must be in 0..1 for objective='reg:logistic'; got 1.5"),
    ],
)
def test_targets_that_the_objective_does_not_allow(objective, y, message):
    """XGBoost refuses them, too."""
    with pytest.raises(ValueError, match=message):
        FederatedXGBRegressor(objective=objective).fit([([[1.0], [2.0]], [0.5, y])])
    with pytest.raises(xgboost.core.XGBoostError):
        xgboost.train({"objective": objective}, xgboost.DMatrix([[1.0], [2.0]], [0.5, y]), 1)


@pytest.mark.parametrize("power", [1.2, 1.9])
def test_a_variance_power_goes_to_xgboost_and_back(power):
    X, y = data_for("reg:tweedie")
    options = {"objective": "reg:tweedie", "tweedie_variance_power": power}
    model = FederatedXGBRegressor(4, xgboost_rules=RULES, **options).fit(deal(X, y, 2))
    n_nodes, differences = different_nodes(model, X, y, **options)
    assert n_nodes > 50
    assert differences == []
    taken = FederatedXGBRegressor.from_xgboost(model.to_xgboost())
    assert taken.tweedie_variance_power == pytest.approx(power)
    assert taken.model_.parameter == model.model_.parameter
    whole = FederatedXGBRegressor(6, xgboost_rules=RULES, **options).fit(deal(X, y, 2))
    taken.set_params(n_trees=6).fit(deal(X, y, 2))
    np.testing.assert_array_equal(taken.predict(X), whole.predict(X))


def test_negative_counts_are_refused_before_any_message():
    X, y = make_counts()
    model = FederatedXGBRegressor(objective="count:poisson")
    message = r"parts\[1\]: y must be at least 0 for objective='count:poisson'; got -1.0"
    with pytest.raises(ValueError, match=message):
        model.fit([(X, y), (X, np.where(y > 3, -1, y))])
    clients = {"A": RegressionClient((X, y)), "B": RegressionClient((X, -y))}
    with pytest.raises(ValueError, match="'B': ValueError at DescribeTargets"):
        model.fit(InProcess(clients))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", "b"], "y must contain numbers"),
        ([0.0, np.nan], "y has no number in 1 row, row 2: drop this row"),
        ([0.0, 2.0**41], "finite and within"),
        ([0.0], "y must contain one number per row, 2; got 1"),
    ],
)
def test_invalid_targets(y, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBRegressor().fit([([[1.0], [2.0]], y)])


def test_counts_that_are_all_0_have_no_initial_prediction():
    model = FederatedXGBRegressor(1, objective="count:poisson")
    with pytest.raises(ValueError, match="no initial prediction.*give a base_score"):
        model.fit([([[1.0], [2.0]], [0, 0])])
    given = model.set_params(base_score=0.5).fit([([[1.0], [2.0]], [0, 0])])
    assert (given.predict([[1.0]]) < 0.5).all()


def test_rows_without_weight_are_no_rows():
    with pytest.raises(ValueError, match="at least one row must have a weight above 0"):
        FederatedXGBRegressor().fit([([[1.0], [2.0]], [1, 2], [0.0, 0.0])])
    X, y = make_three()
    weighted = (np.concatenate([X, X]), np.concatenate([y, y[::-1]]), [1.0] * 150 + [0.0] * 150)
    model = FederatedXGBClassifier(2, method="histogram", **SOFTPROB)
    trees = model.fit([(X, y)]).trees_
    for tree, other in zip(model.fit([weighted]).trees_, trees, strict=True):
        np.testing.assert_allclose(tree.cover[0], other.cover[0])


def test_a_constant_feature_and_a_missing_one_are_never_split():
    X, y = make_counts()
    X = np.column_stack([np.full(len(X), 3.0), np.full(len(X), np.nan), X])
    model = FederatedXGBRegressor(5, xgboost_rules=RULES).fit(deal(X, y, 2))
    assert min(tree.feature[tree.feature >= 0].min() for tree in model.trees_) == 2
    assert different_nodes(model, X, y)[1] == []


def test_a_constant_target_needs_no_tree():
    X, _ = make_counts()
    model = FederatedXGBRegressor(2).fit(deal(X, np.full(len(X), 7.0), 2))
    assert [len(tree) for tree in model.trees_] == [1, 1]
    assert (model.predict(X) == 7).all()


def test_a_client_without_targets_must_be_passive():
    X, y = make_counts()
    with pytest.raises(ValueError, match="'1': ValueError at DescribeTargets"):
        FederatedXGBRegressor().fit([(X, y), (X, None)])
    model = FederatedXGBRegressor(2).fit([(X, y), (X, None)], passive=[1])
    np.testing.assert_array_equal(model.labels_[1], model.predict(X))


@pytest.mark.parametrize("label", ["b", 1])
def test_one_class_is_not_enough(label):
    with pytest.raises(ValueError, match="at least 2 classes; the clients have 1"):
        FederatedXGBClassifier(**SOFTPROB).fit([([[1.0], [2.0]], [label, label])])


def test_two_classes_are_not_three():
    X, y = make_three()
    with pytest.raises(ValueError, match="2 classes; the clients have 3"):
        FederatedXGBClassifier(objective="binary:logistic").fit(
            InProcess({"A": BoostingClient((X, y))})
        )


# The objective of classes -------------------------------------------------------------------------


@each_method
def test_the_classes_decide_on_the_objective(method):
    """And before the run if they are known: the model is that of the objective by name."""
    X, y = make_rows()
    several = y + (X[:, 2] > 0.5)
    options = {"method": method, "tol": None, "validation_fraction": 0.2, "random_state": 0}
    for labels, objective in ((y, "binary:logistic"), (several, "multi:softprob")):
        parts = deal(X, labels, 2)
        model = FederatedXGBClassifier(2, **options).fit(parts)
        named = FederatedXGBClassifier(2, objective=objective, **options).fit(parts)
        assert_same_trees(model.trees_, named.trees_)
        assert model.model_.objective == objective
        assert model.evals_result_ == named.evals_result_
        assert len(model.set_params(n_trees=3, warm_start=True).fit(parts).trees_) == (
            3 if objective == "binary:logistic" else 9
        )


def test_agreed_classes_decide_on_the_objective():
    X, y = make_rows()
    several = y + (X[:, 2] > 0.5)
    bounds = [[-4.0] * 4, [4.0] * 4]
    for classes, labels in (([0, 1], y), ([0, 1, 2], several)):
        model = FederatedXGBClassifier(
            1, method="histogram", tol=None, secure=True, bounds=bounds, classes=classes
        ).fit(deal(X, labels, 2))
        assert len(model.trees_) == (1 if len(classes) == 2 else 3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"scale_pos_weight": 2.0},
            "scale_pos_weight must be 1 for .*follows from 3 classes; got 2",
        ),
        ({"eval_metric": "aucpr"}, "among auc, merror, mlogloss for .*, which follows from 3 cl"),
        ({"eval_metric": ["auc", "merror", "error"]}, "eval_metric must be among auc, aucpr, err"),
        ({"objective": "binary:logistic"}, "there must be 2 classes; the clients have 3"),
    ],
)
def test_parameters_that_do_not_fit_the_classes(parameters, message):
    X, y = make_rows()
    model = FederatedXGBClassifier(1, method="histogram", validation_fraction=0.2, **parameters)
    with pytest.raises(ValueError, match=message):
        model.fit([(X, y + (X[:, 2] > 0.5))])


@pytest.mark.parametrize(
    ("parameters", "ended_by"),
    [
        ({"n_trees": 3}, "n_trees"),
        ({"n_trees": 50, "tol": 0.05}, "tol"),
        ({"n_trees": 50, "early_stopping_rounds": 1}, "early_stopping_rounds"),
    ],
)
def test_a_model_says_what_ended_it(parameters, ended_by):
    X, y = make_rows()
    options = {"method": "histogram", "tol": None, "validation_fraction": 0.4, "random_state": 0}
    model = FederatedXGBClassifier(**options | parameters | {"learning_rate": 1.0}).fit([(X, y)])
    assert model.ended_by_ == ended_by
    assert (len(model.trees_) < model.n_trees) == (ended_by != "n_trees")
