"""Columns are compared by name, and labels of every type are read right or refused."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import xgboost

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor
from fedlib.boosting.categories import read_table
from fedlib.boosting.client import BoostingClient, RegressionClient
from fedlib.core.column_names import in_order
from fedlib.core.in_process import InProcess
from fedlib.sites import models
from fedlib.sites.site import make_client
from fedlib.tables.files import Table

from .exact import RULES

ORDER = ["c", "a", "b"]
ESTIMATORS = [FederatedXGBClassifier(4, method="histogram"), FederatedXGBRegressor(4)]


def make_frame(n=80):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.integers(0, 30, (n, 3)).astype(float), columns=list("abc"))
    return X, (2 * X["a"] + X["b"] > 45).astype(int)


X, Y = make_frame()
OTHERS = [
    (X[["a", "b"]], "'c' is missing$"),
    (X.assign(z=1.0), "'z' is additional$"),
    (X.rename(columns={"a": "z"}), "'a' is missing, and 'z' is additional$"),
    (X[["a", "b", "c", "a"]], "must be unique, got repeated 'a'$"),
]


@pytest.fixture(params=ESTIMATORS, ids=["classifier", "regressor"], scope="module")
def model(request):
    return request.param.fit([(X[:40], Y[:40]), (X[40:], Y[40:])])


def staged(method):
    return lambda X: np.array(list(method(X)))


def calls(model):
    """Return every method that takes rows, by name; its result is an array."""
    names = ["predict", "predict_proba", "decision_function"]
    methods = {name: getattr(model, name) for name in names if hasattr(model, name)}
    for name in ("staged_predict", "staged_predict_proba"):
        if hasattr(model, name):
            methods[name] = staged(getattr(model, name))
    return methods | {"score": lambda X: np.array(model.score(X, Y))}


def test_every_method_takes_the_columns_in_any_order(model, tmp_path):
    models.save(model, tmp_path / "model.json")
    for one in (model, models.load(tmp_path / "model.json")):
        for name, method in calls(one).items():
            expected = calls(model)[name](X.to_numpy())
            assert method(X[ORDER]).tobytes() == expected.tobytes(), name


@pytest.mark.parametrize(("table", "message"), OTHERS)
def test_every_method_names_the_differences(table, message, model):
    for method in calls(model).values():
        with pytest.raises(ValueError, match=message):
            method(table)


def test_the_text_is_short_for_many_columns():
    names = [f"feature {i}" * 9 for i in range(300)]
    with pytest.raises(ValueError, match="and 295 more are missing, and 'other'") as error:
        in_order(pd.DataFrame({"other": [1]}), names)
    assert len(str(error.value)) < 600
    assert in_order([[1.0]], names) == [[1.0]]


def test_no_rows_have_no_predictions(model):
    for rows in (X[:0], X[:0][ORDER], np.empty((0, 3))):
        assert model.predict(rows).shape == (0,)
        assert model.predict(rows).dtype == model.predict(X).dtype
    if hasattr(model, "predict_proba"):
        assert model.predict_proba(X[:0]).shape == (0, 2)


def test_no_rows_of_text():
    frame = pd.DataFrame({"k": ["a", "b"] * 10, "x": np.arange(20.0)})
    fitted = FederatedXGBRegressor(2).fit([(frame, frame["x"])])
    assert fitted.predict(frame[:0]).shape == (0,)
    assert fitted.predict(frame[["x", "k"]]).tolist() == fitted.predict(frame).tolist()


# Rows for validation ----------------------------------------------------------------------------


def validated(eval_set, y=Y, **options):
    model = FederatedXGBClassifier(3, method="histogram", eval_metric="logloss", **options)
    return model.fit([(X, y, None, eval_set)])


@pytest.mark.parametrize(
    "eval_set",
    [
        (X[ORDER], Y),
        [X[ORDER], Y],
        [(X, Y)],
        (X.to_numpy(), Y.astype(float)),
        (X, Y.astype(object)),
        (X, Y.astype("category")),
        (X, Y, np.ones(len(Y))),
    ],
)
def test_eval_sets(eval_set):
    expected, fitted = validated((X, Y)), validated(eval_set)
    assert fitted.evals_result_ == expected.evals_result_
    assert fitted.classes_.dtype == expected.classes_.dtype


def test_eval_sets_with_text():
    texts = np.where(Y, "ill", "well")
    fitted = validated((X[ORDER], np.char.add(texts, " ")), texts)
    assert fitted.classes_.tolist() == ["ill", "well"]
    loss = fitted.evals_result_["validation_0"]["logloss"][-1]
    assert loss == pytest.approx(validated((X, Y)).evals_result_["validation_0"]["logloss"][-1])
    assert fitted.score(X, pd.Series(texts + " ", dtype=object)) == fitted.score(X, texts) > 0.9


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        (
            [(X, Y), (X, Y)],
            r"eval_sets=\['validation_0', 'validation_1'\]; got None, without 'validation_1'",
        ),
        ((X,), "an eval_set must be .X, y., .X, y, sample_weight.*got a tuple of 1"),
        (X, "got a DataFrame"),
        ((X[["a", "b"]], Y), "eval_set must have the columns of the fit: 'c' is missing"),
        ((X, Y.where(Y > 0)), "eval_set 'validation_0': y has no class in .* rows, first in row"),
        ((X, Y.astype(str)), "must be text or numbers like the other y; got '1' next to 1"),
    ],
)
def test_refused_eval_sets(eval_set, message):
    with pytest.raises(ValueError, match=rf"^parts\[0\]: .*{message}"):
        validated(eval_set)


def test_an_eval_set_in_the_place_of_the_weights():
    with pytest.raises(ValueError, match=r"\(X, y, None, \(X_eval, y_eval\)\)"):
        FederatedXGBClassifier().fit([(X, Y, (X, Y))])


def test_a_site_with_rows_for_validation_in_another_order():
    def margins(frame):
        table, rows = Table(X, Y.to_numpy()), Table(frame, Y.to_numpy())
        return make_client("xgboost", table, eval_table=rows).X[len(X) :]

    assert margins(X[ORDER]).tolist() == margins(X).tolist()
    with pytest.raises(ValueError, match="eval_set must have .* 'z' is additional"):
        margins(X.rename(columns={"a": "z"}))


# Continued models -------------------------------------------------------------------------------


def continued(start, parts):
    model = type(start).from_xgboost(start.to_xgboost()) if start.n_trees == 0 else start
    return model.set_params(n_trees=4, warm_start=True).fit(parts)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=["classifier", "regressor"])
@pytest.mark.parametrize("imported", [False, True])
def test_a_model_is_continued_by_name(estimator, imported):
    def start():
        first = type(estimator)(2, method="histogram", tol=None).fit([(X, Y)])
        if not imported:
            return first
        more = type(estimator).from_xgboost(first.to_xgboost())
        return more.set_params(method="histogram", tol=None)

    expected = continued(start(), [(X, Y)])
    fitted = continued(start(), [(X[ORDER], Y)])
    assert fitted.losses_ == expected.losses_
    assert fitted.predict(X).tolist() == expected.predict(X).tolist()
    nameless = continued(start(), [(X.to_numpy(), Y)])
    assert nameless.feature_names_in_.tolist() == ["a", "b", "c"]
    for table, message in OTHERS:
        with pytest.raises(ValueError, match=rf"^parts\[0\]: .*{message}"):
            continued(start(), [(table, Y)])
    client = BoostingClient if estimator is ESTIMATORS[0] else RegressionClient
    with pytest.raises(ValueError, match="the order differs: 'a' is column 2 instead of 1"):
        continued(start(), InProcess({"A": client((X[ORDER], Y))}))
    with pytest.raises(ValueError, match="must be those of the model: 'z' is additional"):
        continued(start(), InProcess({"A": client((X.assign(z=1.0), Y))}))


# Categories -------------------------------------------------------------------------------------


def test_a_category_that_is_a_number_has_one_spelling():
    codes = np.arange(40) % 5
    y = np.array([4.0, 0, 9, -3, 7])[codes]
    ints = pd.DataFrame({"k": pd.Categorical(codes)})
    gap = pd.Series(codes, dtype=float).where(np.arange(40) != 3)
    forms = [pd.Series(codes, dtype=float), gap, pd.Series(codes, dtype=object)]
    fitted = FederatedXGBRegressor(5).fit([(ints, y), (ints.astype(float).astype("category"), y)])
    assert fitted.model_.levels == (("0", "1", "2", "3", "4"),)
    for form in forms:
        predicted = fitted.predict(pd.DataFrame({"k": form.astype("category")}))
        same = form.notna().to_numpy()
        assert predicted[same].tolist() == fitted.predict(ints)[same].tolist()
    halves = read_table(pd.DataFrame({"k": pd.Categorical([0.5, 1.0])})).texts[0]
    assert halves.tolist() == ["0.5", "1"]
    mixed = pd.DataFrame({"k": pd.Categorical(np.array([1, "a", True], object))})
    assert read_table(mixed).texts[0].tolist() == ["1", "a", "1"]


def test_the_categories_of_a_model_of_before():
    """They could be "1.0"; text stays as it is."""
    numbers = pd.DataFrame({"k": pd.Categorical([1.0, 2.0, 3.0])})
    levels = [("1.0", "2.0")]
    assert read_table(numbers).coded(levels).ravel().tolist() == [0, 1, 2]
    texts = pd.DataFrame({"k": pd.Categorical(["1.0", "2.0", "x"])})
    assert read_table(texts).coded(levels).ravel().tolist() == [0, 1, 2]
    assert read_table(numbers).coded([("1", "1.0")]).ravel().tolist() == [0, 2, 2]


# XGBoost ----------------------------------------------------------------------------------------

NAMES = ["Größe", "日本 2", "BMI [kg/m2]", "a<b", 'q"t', "b\\s", "\x01", "a", "😀"]
KINDS = ["Århus", "Bergen", "Zürich", "東京", "cork"]


def named():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((60, len(NAMES))), columns=NAMES)
    return frame, sum(frame[name] * i for i, name in enumerate(NAMES))


def test_names_survive_the_way_to_xgboost_and_back():
    frame, y = named()
    fitted = FederatedXGBRegressor(5).fit([(frame, y)])
    booster = fitted.to_xgboost()
    accepted = ["Größe", "日本 2", "BMI (kg/m2)", "a_b", 'q"t', "b\\s", "_", "a", "😀"]
    assert booster.feature_names == accepted
    renamed = xgboost.DMatrix(frame.set_axis(accepted, axis=1))
    np.testing.assert_allclose(booster.predict(renamed), fitted.predict(frame), rtol=1e-6)
    copy = xgboost.Booster()
    copy.load_model(booster.save_raw("ubj"))  # as in a file
    for one in (booster, copy):
        again = FederatedXGBRegressor.from_xgboost(one)
        assert again.feature_names_in_.tolist() == NAMES
        assert again.predict(frame[NAMES[::-1]]).tolist() == fitted.predict(frame).tolist()
    booster.feature_names = [f"f{i}" for i in range(len(NAMES))]
    again = FederatedXGBRegressor.from_xgboost(booster)
    assert again.feature_names_in_.tolist() == booster.feature_names


def test_categories_survive_the_way_to_xgboost_and_back(recwarn):
    pa = pytest.importorskip("pyarrow")
    codes = np.arange(100) % 5
    frame = pd.DataFrame({"k": np.array(KINDS)[codes]})
    y = np.array([0, 9, -4, 5.0, 2])[codes]
    fitted = FederatedXGBRegressor(10, max_cat_to_onehot=1).fit([(frame, y)])
    booster = fitted.to_xgboost()
    arrow = pa.table({"k": pa.array(frame["k"].tolist()).dictionary_encode()})
    data = xgboost.DMatrix(arrow, enable_categorical=True)
    np.testing.assert_allclose(booster.predict(data), fitted.predict(frame), rtol=1e-6)
    again = FederatedXGBRegressor.from_xgboost(booster)
    assert again.model_.levels == fitted.model_.levels
    assert again.predict(frame).tolist() == fitted.predict(frame).tolist()
    assert not recwarn.list


def trained(categories, parameters=None):
    kinds = pd.Categorical(categories * 10)
    y = np.arange(len(kinds)) % len(categories)
    data = xgboost.DMatrix(pd.DataFrame({"k": kinds}), y, enable_categorical=True)
    return xgboost.train({"max_cat_to_onehot": 1} | (parameters or {}), data, 3)


def test_names_of_categories_that_xgboost_has_damaged():
    """Since 3.4, it keeps them whole."""
    if RULES >= "3.4":
        again = FederatedXGBRegressor.from_xgboost(trained(["Åre", "b", "c"]))
        assert again.model_.levels == (("b", "c", "Åre"),)
        return
    with pytest.raises(ValueError, match="damaged the names .* feature 0"):
        FederatedXGBRegressor.from_xgboost(trained(["Å", "b", "c"]))
    with pytest.warns(UserWarning, match="categories of feature 0 are not all ASCII; before 3.4"):
        FederatedXGBRegressor.from_xgboost(trained(["Åre", "b", "c"]))


def test_categories_of_xgboost_that_are_numbers():
    """XGBoost refuses those that are floats."""
    again = FederatedXGBRegressor.from_xgboost(trained([3, 5, 8]))
    assert again.model_.levels == (("3", "5", "8"),)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_booster_that_was_stopped_early_is_imported_with_its_best_rounds(n_classes):
    """As XGBoost's estimators predict, whether it is given as one of them or as a booster."""
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(300, 2)), rng.integers(0, n_classes, 300)
    theirs = xgboost.XGBClassifier(n_estimators=50, early_stopping_rounds=2)
    theirs.fit(rows[:200], y[:200], eval_set=[(rows[200:], y[200:])], verbose=False)
    n_outputs = n_classes if n_classes > 2 else 1
    for given in (theirs, theirs.get_booster()):
        again = FederatedXGBClassifier.from_xgboost(given)
        assert len(again.trees_) == n_outputs * (theirs.best_iteration + 1) < n_outputs * 50
        np.testing.assert_allclose(again.predict_proba(rows), theirs.predict_proba(rows), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"booster": "gblinear"},
            "a gbtree for one of .*; got gblinear for binary:.*: train it with booster='gbtree'",
        ),
        ({"objective": "rank:pairwise"}, "got gbtree for rank:pairwise"),
        ({"objective": "reg:squarederror"}, "got gbtree for reg:.* take the estimator of its obj"),
        (
            {"objective": "multi:softprob", "num_class": 2, "num_parallel_tree": 3},
            "one tree per class and round; got num_parallel_tree=3",
        ),
    ],
)
def test_boosters_that_are_not_supported(options, message):
    rows = np.random.default_rng(0).normal(size=(50, 3))
    data = xgboost.DMatrix(rows, rows[:, 0] > 0)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # gblinear is deprecated
        booster = xgboost.train({"objective": "binary:logistic"} | options, data, 2)
        with pytest.raises(ValueError, match=message):
            FederatedXGBClassifier.from_xgboost(booster)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_trees_that_were_dropped_have_other_weights(n_classes):
    """Each release writes the weights of DART into another place."""
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(200, 3)).astype(np.float32), rng.integers(0, n_classes, 200)
    options = {"objective": "multi:softprob", "num_class": 3} if n_classes == 3 else {}
    options |= {"booster": "dart"} if RULES == "3.2" else {}
    data = xgboost.DMatrix(rows, y)
    booster = xgboost.train({"objective": "binary:logistic", "rate_drop": 0.5, **options}, data, 9)
    assert "weight_drop" in booster.save_raw("json").decode()
    again = FederatedXGBClassifier.from_xgboost(booster)
    margins = booster.predict(data, output_margin=True).reshape(200, -1)
    np.testing.assert_allclose(again.model_.margins(rows), margins, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("other", ["model.json", None, FederatedXGBClassifier()])
def test_what_is_no_booster(other):
    with pytest.raises(TypeError, match="must be an xgboost.Booster or a fitted estimator"):
        FederatedXGBClassifier.from_xgboost(other)


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
def test_several_targets(strategy):
    rows = np.random.default_rng(0).normal(size=(50, 3))
    options = {"tree_method": "hist", "multi_strategy": strategy}
    booster = xgboost.train(options, xgboost.DMatrix(rows, rows[:, :2]), 2)
    with pytest.raises(ValueError, match="must have one target, got 2 targets"):
        FederatedXGBRegressor.from_xgboost(booster)


def test_classes_of_a_booster_are_in_ascending_order():
    booster = FederatedXGBClassifier(2, method="histogram").fit([(X, Y)]).to_xgboost()
    again = FederatedXGBClassifier.from_xgboost(booster, classes=["ill", "well"])
    assert again.classes_.tolist() == ["ill", "well"]
    for classes in (["well", "ill"], ["ill", "ill"], [1, 0]):
        with pytest.raises(ValueError, match="classes must be in ascending order"):
            FederatedXGBClassifier.from_xgboost(booster, classes=classes)
    with pytest.raises(ValueError, match="classes has|classes have no class in 1 row"):
        FederatedXGBClassifier.from_xgboost(booster, classes=["ill", None])


def test_an_ascii_model_has_no_further_attributes():
    booster = FederatedXGBRegressor(2).fit([(X, Y)]).to_xgboost()
    assert json.loads(booster.save_raw("json"))["learner"]["attributes"] == {}


# Labels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [object, "str", "string", "category"])
def test_a_missing_class_is_no_class(dtype):
    y = pd.Series(np.where(Y, "ill", "well"), dtype=object).where(X["a"] > 5).astype(dtype)
    first = int(np.argmax(y.isna())) + 1
    message = rf"^parts\[0\]: y has no class in {y.isna().sum()} rows, first in row {first}: drop"
    with pytest.raises(ValueError, match=message):
        FederatedXGBClassifier().fit([(X, y)])


@pytest.mark.parametrize(
    "convert",
    [
        lambda y: y.astype(object),
        lambda y: y.astype("category"),
        lambda y: y.astype("Int64"),
        lambda y: y.to_frame(),
        lambda y: y.to_numpy()[:, None],
        lambda y: y.tolist(),
    ],
)
def test_labels_of_every_type_give_the_same_model(convert, model):
    fitted = type(model)(4, method="histogram").fit(
        [(X[:40], convert(Y[:40])), (X[40:], convert(Y[40:]))]
    )
    assert fitted.predict(X).tobytes() == model.predict(X).tobytes()


def test_weights_of_every_type_and_refused_ones(model):
    weights = pd.Series(np.arange(80) % 3)
    expected = type(model)(2, method="histogram").fit([(X, Y, weights)]).predict(X)
    for given in (weights.astype(object), weights.astype("Int64"), weights.to_numpy()[:, None]):
        fitted = type(model)(2, method="histogram").fit([(X, Y, given)])
        assert fitted.predict(X).tobytes() == expected.tobytes()
    for wrong, message in (
        (weights.where(weights > 0), "sample_weight has no weight in 27 rows, first in row 1"),
        (weights - 1, "at least 0; got -1 in row 1"),
        (weights * 1e39, "add up to at most"),
        (weights.astype(str), "must contain numbers; got the text"),
    ):
        with pytest.raises(ValueError, match=message):
            type(model)(2).fit([(X, Y, wrong)])
