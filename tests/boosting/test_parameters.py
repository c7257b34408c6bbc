"""The parameters of trees: equal to XGBoost where nothing is drawn, and clear errors."""

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.data import drawn_rows, row_keys

from .common import METHODS, assert_same_trees, deal, make_rows
from .exact import RULES, different_nodes
from .test_objectives import codes, make_counts, make_three

MONOTONE = [1, -1, 0, 1]
GROUPS = [[0, 1], [1, 2, 3]]
TREES = [
    {"reg_alpha": 0.7},
    {"max_delta_step": 0.4},
    {"reg_alpha": 0.3, "max_delta_step": 0.5, "reg_lambda": 0.5},
    {"monotone_constraints": MONOTONE},
    {"monotone_constraints": MONOTONE, "reg_alpha": 0.2, "max_delta_step": 0.6},
    {"grow_policy": "lossguide", "max_leaves": 9},
    {"grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
    {"grow_policy": "lossguide", "max_depth": 3},
    {"max_leaves": 5},
    {"grow_policy": "lossguide", "max_leaves": 7, "monotone_constraints": MONOTONE},
    {"interaction_constraints": GROUPS},
    {"interaction_constraints": [[0, 2]]},
    {"interaction_constraints": [[3, 1], [0], [2, 0]], "monotone_constraints": MONOTONE},
    {"interaction_constraints": GROUPS, "grow_policy": "lossguide", "max_leaves": 12},
    {
        "interaction_constraints": GROUPS,
        "grow_policy": "lossguide",
        "max_leaves": 9,
        "monotone_constraints": MONOTONE,
    },
]


def each_of_trees(*by_default):
    """Parametrize a test by `TREES`; all but those numbered here are marked as exact."""
    cases = [
        pytest.param(one, marks=[] if i in by_default else pytest.mark.exact)
        for i, one in enumerate(TREES)
    ]
    return pytest.mark.parametrize("parameters", cases, ids=lambda p: ", ".join(p))


def xgboost_options(parameters):
    options = {"max_depth": 6, **parameters}
    if "monotone_constraints" in options:
        options["monotone_constraints"] = str(tuple(options["monotone_constraints"]))
    if "interaction_constraints" in options:
        options["interaction_constraints"] = str(options["interaction_constraints"])
    return options


@each_of_trees(2, 4, 9, 10, 14)
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_two_classes_are_xgboost_on_the_same_bins(parameters, missing):
    X, y = make_rows(300, missing=missing)
    model = FederatedXGBClassifier(
        4, method="histogram", tol=None, xgboost_rules=RULES, **parameters
    )
    trees = model.fit([(X, y)]).trees_
    assert_same_trees(model.fit(deal(X, y, 3)).trees_, trees)
    n_nodes, differences = different_nodes(model, X, y, **xgboost_options(parameters))
    assert n_nodes > 20
    assert differences == []
    margins = model.to_xgboost().predict(xgboost.DMatrix(X), output_margin=True)
    np.testing.assert_allclose(margins, model.decision_function(X), rtol=1e-6, atol=1e-6)


@each_of_trees(4)
def test_counts_are_xgboost_on_the_same_bins(parameters):
    X, y = make_counts(300, missing=0.1)
    model = FederatedXGBRegressor(
        4, objective="count:poisson", xgboost_rules=RULES, **parameters
    ).fit(deal(X, y, 3))
    assert different_nodes(model, X, y, **xgboost_options(parameters))[1] == []


@each_of_trees(9)
def test_three_classes_are_xgboost_on_the_same_bins(parameters):
    X, y = make_three(300, missing=0.1)
    model = FederatedXGBClassifier(
        3,
        method="histogram",
        objective="multi:softprob",
        tol=None,
        xgboost_rules=RULES,
        **parameters,
    ).fit(deal(X, y, 3))
    assert different_nodes(model, X, codes(y), **xgboost_options(parameters))[1] == []


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_the_weight_of_the_positive_class(factor):
    """The initial share and the trees are those of XGBoost."""
    X, y = make_rows(300)
    model = FederatedXGBClassifier(
        4, method="histogram", tol=None, xgboost_rules=RULES, scale_pos_weight=factor
    )
    model.fit(deal(X, y, 3))
    assert different_nodes(model, X, y, scale_pos_weight=factor, max_depth=6)[1] == []
    options = {"objective": "binary:logistic", "scale_pos_weight": factor}
    booster = xgboost.train(options, xgboost.DMatrix(X, y), 1)
    assert f"{model.base_share_:.4f}"[:5] in f"{float(base_score(booster)):.4f}"


def base_score(booster):
    import json

    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    return config["base_score"].strip("[]")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parameters", TREES[:3])
def test_penalties_apply_to_every_method(method, parameters):
    """With one client and one candidate, the proposals are those of XGBoost's ``exact``."""
    X, y = make_rows(200)
    model = FederatedXGBClassifier(
        4, 1, method=method, tol=None, max_depth=4, xgboost_rules=RULES, **parameters
    )
    model.fit([(X, y)])
    options = {"objective": "binary:logistic", "tree_method": "exact", "max_depth": 4}
    options |= {"base_score": model.base_share_, "nthread": 1, **parameters}
    booster = xgboost.train(options, xgboost.DMatrix(X, y), 4)
    if method != "histogram":
        expected = booster.predict(xgboost.DMatrix(X))
        np.testing.assert_allclose(model.predict_proba(X)[:, 1], expected, atol=1e-5)
    limit = 0.3 * parameters.get("max_delta_step", np.inf)
    assert max(np.abs(tree.value).max() for tree in model.trees_) <= limit + 1e-6


def test_predictions_follow_the_monotone_constraints():
    X, y = make_rows(300)
    model = FederatedXGBClassifier(
        10, method="histogram", tol=None, monotone_constraints=MONOTONE
    ).fit(deal(X, y, 2))
    steps = np.tile(X[:20], (30, 1, 1))
    for feature, direction in enumerate(MONOTONE):
        moved = steps.copy()
        moved[:, :, feature] = np.linspace(-3, 3, 30)[:, None]
        margins = model.decision_function(moved.reshape(-1, 4)).reshape(30, 20)
        if direction:
            assert (direction * np.diff(margins, axis=0) >= 0).all()


# Constraints by name ----------------------------------------------------------------------------

NAMES = ["age", "sex", "bmi", "height"]


def named(parts):
    return [(pd.DataFrame(X, columns=NAMES), y) for X, y in parts]


@pytest.mark.parametrize("kind", [FederatedXGBClassifier, FederatedXGBRegressor])
def test_constraints_by_name_are_those_by_index(kind):
    parts = deal(*make_rows(300), 3)
    options = {"n_trees": 3, "method": "histogram"}
    by_index = kind(**options, monotone_constraints=MONOTONE, interaction_constraints=GROUPS).fit(
        parts
    )
    given = {"age": 1, "sex": -1, "height": np.int64(1)}
    groups = [["age", "sex"], ("sex", 2, "height")]
    by_name = kind(**options, monotone_constraints=given, interaction_constraints=groups)
    assert_same_trees(by_name.fit(named(parts)).trees_, by_index.trees_)
    mixed = kind(
        **options, monotone_constraints={0: 1, 1: -1, 3: 1}, interaction_constraints=GROUPS
    )
    assert_same_trees(mixed.fit(parts).trees_, by_index.trees_)
    plain = kind(**options).fit(parts)
    assert plain.trees_[0].feature.tolist() != by_index.trees_[0].feature.tolist()


def test_only_the_features_of_a_group_are_on_a_path():
    groups = [{0, 1}, {1, 2, 3}]
    model = FederatedXGBClassifier(
        8, method="histogram", interaction_constraints=GROUPS, colsample_bynode=0.6, random_state=0
    ).fit(deal(*make_rows(400), 3))
    longest = 0
    for tree in model.trees_:
        paths = {0: set()}
        for node, f in enumerate(tree.feature.tolist()):
            if f >= 0:
                paths[tree.left[node]] = paths[tree.left[node] + 1] = paths[node] | {f}
        assert all(any(path <= group for group in groups) for path in paths.values())
        longest = max(longest, *map(len, paths.values()))
    assert longest >= 2


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (
            {"monotone_constraints": {"weight": 1}},
            "monotone_constraints must contain the features 'age', .*'height'; got 'weight'",
        ),
        ({"monotone_constraints": {4: 1}}, r"indices of features, 0\.\.3; got 4"),
        ({"interaction_constraints": [[0, -1]]}, r"indices of features, 0\.\.3; got -1"),
        (
            {"interaction_constraints": [["age"], ["weight"]]},
            "interaction_constraints must contain the features 'age', .*; got 'weight'",
        ),
    ],
)
def test_a_constraint_on_an_unknown_feature(constraints, message):
    model = FederatedXGBClassifier(2, method="histogram", **constraints)
    with pytest.raises(ValueError, match=message):
        model.fit(named([make_rows()]))


def test_a_name_needs_features_with_names():
    model = FederatedXGBClassifier(2, method="histogram", monotone_constraints={"age": 1})
    with pytest.raises(ValueError, match="the clients' features have no names; got 'age'"):
        model.fit([make_rows()])


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"monotone_constraints": {"age": 2}}, "one of -1, 0 and 1"),
        ({"monotone_constraints": {1.5: 1}}, "names or indices of features"),
        ({"interaction_constraints": ["age", "sex"]}, "must be a list of lists of features"),
        ({"interaction_constraints": [[0, True]]}, "names or indices of features"),
        ({"interaction_constraints": [[0]], "method": "union"}, "needs method='histogram'"),
    ],
)
def test_a_malformed_constraint_is_refused_before_any_message(constraints, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(**{"method": "histogram", **constraints}).protocol()


# Draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_sample_of_rows_does_not_depend_on_the_clients(method):
    X, y = make_rows(300)
    model = FederatedXGBClassifier(3, method="histogram", tol=None, subsample=0.5, random_state=0)
    trees = model.fit([(X, y)]).trees_
    assert_same_trees(model.fit(deal(X, y, 4)).trees_, trees)
    p = model.base_share_
    n_drawn = [tree.cover[0] / (p * (1 - p)) for tree in trees[:1]]
    assert n_drawn == pytest.approx([drawn_rows_of(X)], rel=1e-5)
    other = FederatedXGBClassifier(3, method=method, tol=None, subsample=0.5, random_state=1)
    assert not other.fit(deal(X, y, 4)).ledger_.lost


def drawn_rows_of(X):
    """Return the number of rows that the first tree uses with random_state=0."""
    seed = np.random.RandomState(0).randint(2**31 - 1)
    return drawn_rows(row_keys(X.astype(np.float32)), 0.5, int(seed), 0).sum()


@pytest.mark.parametrize("name", ["colsample_bytree", "colsample_bylevel", "colsample_bynode"])
def test_features_are_drawn(name):
    X, y = make_rows(300)
    X = np.hstack([X, make_rows(300, seed=1)[0]])
    model = FederatedXGBClassifier(
        6, method="histogram", tol=None, random_state=0, **{name: 0.25}
    ).fit(deal(X, y, 3))
    used = [set(tree.feature[tree.feature >= 0].tolist()) for tree in model.trees_]
    assert len(set.union(*used)) > 2
    if name == "colsample_bytree":
        assert max(map(len, used)) <= 2
    again = FederatedXGBClassifier(**model.get_params()).fit(deal(X, y, 5))
    assert_same_trees(again.trees_, model.trees_)


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "union", "colsample_bynode": 0.5}, "colsample_bynode needs method='histogram'"),
        (
            {"method": "union", "monotone_constraints": [1]},
            "monotone_constraints needs method='histogram'",
        ),
        ({"method": "union", "max_leaves": 4}, "max_leaves needs method='histogram'"),
        ({"method": "union", "grow_policy": "lossguide"}, "grow_policy needs method='histogram'"),
        ({"method": "histogram", "monotone_constraints": [2]}, "one of -1, 0 and 1"),
        ({"max_depth": 0}, "max_depth must be at least 1"),
        ({"objective": "multi:softprob", "scale_pos_weight": 2.0}, "scale_pos_weight must be 1"),
        (
            {"objective": "binary:logistic", "base_score": 1.0},
            "base_score must be above 0 and below 1",
        ),
        ({"subsample": 0.0}, "subsample"),
        ({"reg_alpha": -1.0}, "reg_alpha"),
        ({"max_delta_step": -1.0}, "max_delta_step"),
        ({"scale_pos_weight": 0.0}, "scale_pos_weight"),
        ({"objective": "reg:squarederror"}, "objective"),
    ],
)
def test_a_parameter_that_does_not_apply(parameters, message):
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier(**parameters).protocol()


def test_a_regression_checks_its_base_score():
    with pytest.raises(ValueError, match="base_score must be above 0 for objective='count:poi"):
        FederatedXGBRegressor(objective="count:poisson", base_score=0.0).protocol()


def test_there_must_be_one_constraint_per_feature():
    X, y = make_rows()
    model = FederatedXGBClassifier(method="histogram", monotone_constraints=[1, 0])
    with pytest.raises(ValueError, match="one entry per feature, 4; got 2"):
        model.fit([(X, y)])
