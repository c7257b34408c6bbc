"""Base margins: where the margins of rows start, as in XGBoost."""

import re
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedlib import FederatedPipeline, FederatedXGBClassifier, FederatedXGBRegressor, Schema
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.boosting.descriptions import DescribeTargets
from fedlib.core.aggregation import Disagreement
from fedlib.core.client import BadRequest
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.testing import Recorder

from .common import TOY, assert_same_trees, deal, each_method, make_rows
from .exact import RULES, different_nodes

RNG = np.random.default_rng(0)
X, Y = make_rows(240, missing=0.1)
KINDS = RNG.integers(0, 3, len(X))
NUMBERS = np.nan_to_num(X[:, 0]) * 3 + 40 + RNG.normal(size=len(X))
MARGINS = RNG.normal(size=len(X)).astype(np.float32)
OF_CLASSES = RNG.normal(size=(len(X), 3)).astype(np.float32)
TASKS = {
    "binary:logistic": (FederatedXGBClassifier, Y, MARGINS),
    "multi:softprob": (FederatedXGBClassifier, KINDS, OF_CLASSES),
    "reg:squarederror": (FederatedXGBRegressor, NUMBERS + 1000 * MARGINS, 1000 * MARGINS),
    "reg:pseudohubererror": (FederatedXGBRegressor, NUMBERS, MARGINS + 40),
    "count:poisson": (FederatedXGBRegressor, NUMBERS.round(), MARGINS + 3),
    "reg:logistic": (FederatedXGBRegressor, Y * 0.5, MARGINS),
    "reg:gamma": (FederatedXGBRegressor, NUMBERS, MARGINS + 3),
    "reg:tweedie": (FederatedXGBRegressor, NUMBERS, MARGINS + 3),
}
FORGOTTEN = "the model was fitted with base_margin, which new rows need, too; got None"
each_task = pytest.mark.parametrize("objective", TASKS)


def parts_of(y, margins, n_clients=3, X=X):
    """Return parts with base margins."""
    parts = deal(X, y, n_clients, 0, margins)
    return [(rows, labels, None, None, starts) for rows, labels, starts in parts]


def fitted(objective, n_trees=4, **options):
    kind, y, margins = TASKS[objective]
    estimator = kind(n_trees, objective=objective, max_depth=3, **options)
    return estimator.fit(parts_of(y, margins))


def predictions(model, X, **options):
    """Return predictions as XGBoost returns them."""
    if not hasattr(model, "predict_proba"):
        return model.predict(X, **options)
    shares = model.predict_proba(X, **options)
    return shares[:, 1] if shares.shape[1] == 2 else shares


@pytest.mark.exact
@each_task
def test_every_node_is_that_of_xgboost(objective):
    kind, y, margins = TASKS[objective]
    model = kind(10, objective=objective, tol=None, xgboost_rules=RULES)
    trees = model.fit(parts_of(y, margins, 1)).trees_
    assert_same_trees(model.fit(parts_of(y, margins, 4)).trees_, trees)
    n_nodes, differences = different_nodes(model, X, y, base_margin=margins)
    assert differences == []
    assert n_nodes > 100


@pytest.mark.jit
@each_task
def test_trees_and_predictions_are_those_of_xgboost(objective):
    """Without base margins, new rows start from the base score, which these margins leave alone."""
    _, y, margins = TASKS[objective]
    model = fitted(objective, xgboost_rules=RULES)
    assert different_nodes(model, X, y, base_margin=margins, max_depth=3)[1] == []
    options = {"objective": objective, "tree_method": "hist", "max_depth": 3, "nthread": 1}
    options |= {"num_class": 3} if objective == "multi:softprob" else {}
    first = xgboost.train(options, xgboost.DMatrix(X, y, base_margin=margins), 1)
    scores = first.save_config().partition('"base_score":"[')[2].partition("]")[0].split(",")
    assert model.model_.base_scores == pytest.approx([float(one) for one in scores], rel=1e-5)
    booster = model.to_xgboost()
    for given in ({}, {"base_margin": margins}):
        expected = booster.predict(xgboost.DMatrix(X, **given))
        with nullcontext() if given else pytest.warns(UserWarning, match=FORGOTTEN):
            found = predictions(model, X, **given)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_new_rows_without_base_margins_are_reported():
    """Every way to predict warns, and `score` takes the margins."""
    model = fitted("binary:logistic")
    for method in (
        model.predict, model.predict_proba, model.decision_function, model.predict_contributions,
        lambda X: next(model.staged_predict_proba(X)), lambda X: model.score(X, Y),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match=FORGOTTEN):
            method(X)
    right = np.mean(model.predict(X, base_margin=MARGINS) == Y)
    assert model.score(X, Y, base_margin=MARGINS) == right
    _, y, margins = TASKS["reg:squarederror"]
    model = fitted("reg:squarederror")
    with pytest.warns(UserWarning, match=FORGOTTEN):
        without = model.score(X, y)
    assert model.score(X, y, base_margin=margins) > without
    values = model.predict_contributions(X, base_margin=margins).sum(axis=1)
    np.testing.assert_allclose(values, model.predict(X, base_margin=margins), rtol=1e-4, atol=1e-2)
    with pytest.raises(ValueError, match="the rows need base_margin like those of the model"):
        model.set_params(n_trees=5, warm_start=True).fit(deal(X, y, 2))


@each_method
def test_all_methods_and_predictions(method):
    """A client's labels, the stages and the log-odds start from its base margins."""
    model = fitted("binary:logistic", method=method)
    for (rows, _, _, _, margins), labels in zip(parts_of(Y, MARGINS), model.labels_, strict=True):
        np.testing.assert_array_equal(labels, model.predict(rows, base_margin=margins))
    stages = list(model.staged_predict_proba(X, base_margin=MARGINS))
    np.testing.assert_array_equal(stages[-1], model.predict_proba(X, base_margin=MARGINS))
    odds = model.decision_function(X, base_margin=MARGINS)
    np.testing.assert_array_equal(odds > 0, model.predict(X, base_margin=MARGINS) == 1)
    one = fitted("reg:squarederror", method=method)
    _, y, margins = TASKS["reg:squarederror"]
    (*_, last) = one.staged_predict(X, base_margin=margins)
    np.testing.assert_array_equal(last, one.predict(X, base_margin=pd.Series(margins)))
    assert np.abs(last - y).mean() < np.abs(margins - y).mean()


@pytest.mark.parametrize("with_margins", [True, False])
def test_metrics_of_eval_sets_are_those_of_xgboost(with_margins):
    """An eval set without base margins starts from the base score, also in XGBoost."""
    parts = parts_of(Y[:200], MARGINS[:200], 2, X[:200])
    new, y, margins = X[200:], Y[200:], MARGINS[200:]
    rest = (None, margins) if with_margins else ()
    (rows, labels, *_, start), other = parts
    parts = [(rows, labels, None, (new, y, *rest), start), other]
    bounds = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    model, text = FederatedXGBClassifier(4, eval_metric="logloss", bounds=bounds), FORGOTTEN
    lacks = "an eval_set needs a base_margin like the other rows"
    with nullcontext() if with_margins else pytest.warns(UserWarning, match=lacks):
        model.fit(parts)
    # the metric of the model's own trees, because the bins are not those of XGBoost
    given = {"base_margin": margins} if with_margins else {}
    with nullcontext() if with_margins else pytest.warns(UserWarning, match=text):
        p = [stage[:, 1] for stage in model.staged_predict_proba(new, **given)]
    expected = [-np.log(np.where(y, one, 1 - one)).mean() for one in p]
    np.testing.assert_allclose(model.evals_result_["validation_0"]["logloss"], expected, rtol=1e-6)
    booster = model.to_xgboost()
    text = booster.eval(xgboost.DMatrix(new, y, **given))
    assert float(text.rpartition(":")[2]) == pytest.approx(expected[-1], rel=1e-5)


def test_only_an_eval_set_with_base_margins():
    """The other rows start from the base score, as if there were none."""
    plain = FederatedXGBClassifier(2).fit(deal(X, Y, 2))
    (rows, y), other = deal(X, Y, 2)
    evaluated = (X[:50], Y[:50], None, MARGINS[:50])
    model = FederatedXGBClassifier(2, eval_metric="error")
    model.fit([(rows, y, None, evaluated), other])
    assert_same_trees(model.trees_, plain.trees_)
    wrong = plain.predict(X[:50], base_margin=MARGINS[:50]) != Y[:50]
    assert model.evals_result_["validation_0"]["error"][-1] == wrong.mean()


def test_a_run_that_continues_starts_from_the_base_margins():
    kind, y, margins = TASKS["count:poisson"]
    once = fitted("count:poisson")
    twice = kind(2, objective="count:poisson", max_depth=3, warm_start=True)
    twice.fit(parts_of(y, margins)).set_params(n_trees=4).fit(parts_of(y, margins))
    np.testing.assert_allclose(
        twice.predict(X, base_margin=margins), once.predict(X, base_margin=margins), rtol=1e-5
    )


def test_rows_of_weight_0_keep_their_base_margins():
    weight = (np.arange(len(X)) % 3 > 0) * 1.0
    counted = weight > 0
    model = FederatedXGBRegressor(3).fit([(X, NUMBERS, weight, None, MARGINS)])
    bare = FederatedXGBRegressor(3)
    bare.fit([(X[counted], NUMBERS[counted], None, None, MARGINS[counted])])
    assert_same_trees(model.trees_, bare.trees_)
    np.testing.assert_array_equal(model.labels_[0], bare.predict(X, base_margin=MARGINS))


def test_a_passive_client_may_lack_them():
    first, second = parts_of(Y, MARGINS, 2)
    alone = FederatedXGBClassifier(2).fit([first])
    with pytest.warns(UserWarning, match="base_margin, which these rows need, too; they have none"):
        model = FederatedXGBClassifier(2).fit([first, second[:2]], passive=[1])
    assert_same_trees(model.trees_, alone.trees_)
    with pytest.warns(UserWarning, match=FORGOTTEN):
        predicted = model.predict(second[0])
    np.testing.assert_array_equal(model.labels_[1], predicted)


def test_a_pipeline_passes_them_on():
    y, margins = NUMBERS + 100 * MARGINS, 100 * MARGINS
    model = FederatedPipeline(FederatedXGBRegressor(3, eval_metric="mae"), impute="mean")
    (rows, labels, *_, starts), other = parts_of(y, margins, 2)
    evaluated = (X[:40], y[:40], None, margins[:40])
    model.fit([(rows, labels, None, evaluated, starts), other])
    found = model.predict(X, base_margin=margins)
    np.testing.assert_array_equal(found[:40], model.predict(X[:40], base_margin=margins[:40]))
    mae = np.abs(found[:40] - y[:40]).mean()
    assert model.evals_result_["validation_0"]["mae"][-1] == pytest.approx(mae, rel=1e-5)
    dropped = FederatedPipeline(FederatedXGBClassifier(2), impute="drop")
    dropped.fit(parts_of(Y, MARGINS, 2))
    kept = ~np.isnan(X).any(axis=1)
    shares = dropped.predict_proba(X, base_margin=MARGINS)
    assert (np.isnan(shares).all(axis=1) == ~kept).all()
    np.testing.assert_array_equal(
        shares[kept], dropped.predict_proba(X[kept], base_margin=MARGINS[kept])
    )


# A schema


def schema(role="base_margin", columns=("start",)):
    """Return the schema of two features, a target and base margins."""
    fields = [{"name": name, "type": "number"} for name in ("a", "b")]
    fields.append({"name": "kind", "type": "integer", "fedlib": {"role": "target"}})
    fields += [{"name": one, "type": "number", "fedlib": {"role": role}} for one in columns]
    return Schema({"schema": {"fields": fields}})


def test_a_schema_names_the_columns():
    tables = [
        pd.DataFrame({"start": m, "kind": y, "b": rows[:, 1], "a": rows[:, 0]})
        for rows, y, _, _, m in parts_of(Y, MARGINS)
    ]
    bare = [(rows[:, :2], y, None, None, m) for rows, y, _, _, m in parts_of(Y, MARGINS)]
    expected = FederatedXGBClassifier(3).fit(bare)
    model = FederatedXGBClassifier(3, schema=schema())
    assert_same_trees(model.fit(tables).trees_, expected.trees_)
    assert_same_trees(model.fit(bare).trees_, expected.trees_)
    evaluated = [(bare[0][0], bare[0][1], None, bare[0][4])]
    model.set_params(eval_metric="error").fit([(*bare[0][:3], evaluated, bare[0][4]), *bare[1:]])
    wrong = expected.predict(bare[0][0], base_margin=bare[0][4]) != bare[0][1]
    assert model.evals_result_["validation_0"]["error"][-1] == wrong.mean()
    no_start = FederatedXGBClassifier(3, schema=schema("ignore"))
    with pytest.raises(ValueError, match="values with the role 'base_margin'"):
        no_start.fit(bare)


def test_a_schema_names_one_column_per_class():
    columns = ["s0", "s1", "s2"]
    parts = parts_of(KINDS, OF_CLASSES, X=X[:, :2])
    tables = [
        pd.DataFrame(rows, columns=["a", "b"]).assign(
            kind=y, **dict(zip(columns, m.T, strict=True))
        )
        for rows, y, _, _, m in parts
    ]
    expected = FederatedXGBClassifier(2).fit(parts)
    model = FederatedXGBClassifier(2, schema=schema(columns=columns))
    assert_same_trees(model.fit(tables).trees_, expected.trees_)
    assert_same_trees(model.fit(parts).trees_, expected.trees_)
    tables[0].loc[0, "s1"] = np.nan
    with pytest.raises(ValueError, match="column 's1': 1 required value is missing"):
        model.fit(tables)


# Errors


def test_all_clients_or_none():
    first, second = parts_of(Y, MARGINS, 2)
    text = "disagree on base_margin, which all or none must have: given at '0'; not given at '1'"
    with pytest.raises(Disagreement, match=text):
        FederatedXGBClassifier(2).fit([first, second[:2]])
    for kind in (FederatedXGBClassifier, FederatedXGBRegressor):
        make = kind.client_class
        clients = {"A": make(first), "B": make(second), "C": make(second[:2])}
        with pytest.raises(Disagreement, match=re.escape("not given at 'C'")):
            kind(2).fit(Recorder(clients))
        model = kind(2).fit(Recorder(clients), min_clients=2)
        assert list(model.ledger_.lost) == ["C"]


@pytest.mark.parametrize("protected", [{"secure": True}, {"epsilon": 1.0}])
def test_masks_and_noise_refuse_them(protected):
    options = {"bounds": [[-5.0] * 4, [5.0] * 4], **protected}
    parts = parts_of(Y, MARGINS, 2)
    text = "base_margin must not be given with secure=True or epsilon, because the margins of rows"
    with pytest.raises(ValueError, match=rf"parts\[0\]: {text}"):
        FederatedXGBClassifier(2, classes=[0, 1], **options).fit(parts)
    with pytest.raises(ValueError, match=f"no field with the role 'base_margin'.*{text}"):
        FederatedXGBClassifier(2, schema=schema(), **protected).protocol()
    client = BoostingClient(parts[0])  # of a site: it refuses the first request of such runs
    with pytest.raises(BadRequest, match=text):
        client.handle(DescribeFeatures())


@pytest.mark.parametrize(
    ("margins", "text"),
    [
        ([1.0], r"base_margin must have 2 rows.*got the shape \(1,\)"),
        ([[1.0, 2.0]] * 2, "base_margin must have 1 column"),
        ([1.0, np.nan], "base_margin"),
        ([1.0, 2.0**41], r"base_margin must be within ±2\*\*40; got 2.19902e\+12"),
        (["a", "b"], "base_margin"),
    ],
)
def test_wrong_margins(margins, text):
    parts = [(*TOY[0], None, None, margins), (*TOY[1], None, None, [0.0, 0.0])]
    if np.ndim(margins) == 2:
        parts[1] = (*TOY[1], None, None, margins)
    with pytest.raises(ValueError, match=text):
        FederatedXGBClassifier(1).fit(parts)


def test_wrong_margins_of_new_rows():
    model = FederatedXGBClassifier(1).fit(TOY)
    with pytest.raises(ValueError, match=r"base_margin must have 1 rows, and 1 column\(s\)"):
        model.predict([[1.0]], base_margin=[0.0, 1.0])


def test_margins_that_no_gradient_can_have():
    client = RegressionClient(([[1.0]], [2.0], None, None, [60.0]))
    with pytest.raises(
        ValueError, match="base_margin must be smaller for objective='count:poisson'"
    ):
        client.handle(DescribeTargets(0.3, objective="count:poisson", parameter=0.7))
    reply = client.handle(DescribeTargets(0.3, objective="reg:squarederror", parameter=0.0))
    assert (reply.has_margins, reply.size) == (True, 64.0)  # above |60 - 2|
