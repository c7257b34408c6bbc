"""Features with categories: by hand, equal to XGBoost, and what clients disclose about them."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import xgboost

import fedlib
from fedlib import LeaveOneSiteOut
from fedlib.boosting.categories import CountLevels, LevelCounts, Table, read_table
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.messages import KeepTrees
from fedlib.core.in_process import InProcess
from fedlib.core.journal import JournalError
from fedlib.core.messages import MessageError, decode, encode
from fedlib.sites import models
from fedlib.testing import Recorder

from .common import METHODS, assert_same_trees, deal, first_message, make_rows
from .exact import RULES, different_nodes

# These tests compare all categories with those of XGBoost.
FederatedXGBClassifier = partial(fedlib.FederatedXGBClassifier, min_category_count=1)
FederatedXGBRegressor = partial(fedlib.FederatedXGBRegressor, min_category_count=1)

COLOURS = pd.DataFrame({"colour": ["red", "blue", "red", "green"]})
HISTOGRAM = {"method": "histogram", "tol": None}
UNKNOWN = "feature 'town' contains 'elsewhere', categories that the training did not have"


def make_mixed(n=300, n_categories=12, missing=0.1, seed=0):
    """Return rows with many categories, numbers and few categories, and a score of each."""
    rng = np.random.default_rng(seed)
    many, few = rng.integers(0, n_categories, n), rng.integers(0, 3, n)
    x = rng.normal(size=n).round(2)
    score = rng.normal(size=n_categories)[many] + (few == 1) + x + rng.normal(scale=0.5, size=n)
    X = pd.DataFrame(
        {
            "town": [f"town {number:02d}" for number in many],
            "x": x,
            "kind": pd.Categorical(np.array(["a", "b", "c"])[few]),
        }
    )
    return X.mask(pd.DataFrame(rng.random(X.shape) < missing, columns=X.columns)), score


def labels_for(objective, score):
    if objective == "binary:logistic":
        return (score > np.median(score)).astype(int)
    if objective == "multi:softprob":
        return np.digitize(score, np.quantile(score, [0.3, 0.7]))
    return np.round(np.exp(score / 2)) if objective == "count:poisson" else score


def estimator_for(objective, n_trees=3, **parameters):
    if objective.startswith(("binary", "multi")):
        return FederatedXGBClassifier(n_trees, objective=objective, **HISTOGRAM, **parameters)
    return FederatedXGBRegressor(n_trees, objective=objective, **HISTOGRAM, **parameters)


def as_categories(X):
    """Return rows with texts as categories, as XGBoost takes them."""
    return X.assign(town=pd.Categorical(X["town"]))


# By hand ----------------------------------------------------------------------------------------


def test_one_category_against_the_others_by_hand():
    """The target of red is 6 and that of the others 0: red goes right, and the mean is 3."""
    model = FederatedXGBRegressor(1, max_depth=1, learning_rate=1.0, reg_lambda=0.0)
    model.fit([(COLOURS[:2], [6.0, 0.0]), (COLOURS[2:], [6.0, 0.0])])
    assert model.model_.levels == (("blue", "green", "red"),)
    assert model.trees_[0].categories == [[2], [], []]
    assert model.trees_[0].value.tolist() == [0, -3, 3]
    assert model.predict(COLOURS).tolist() == [6, 0, 6, 0]


def test_a_partition_by_hand():
    """Both categories with the target 6 have the lowest weights −G/H first: blue and green."""
    X = pd.DataFrame({"colour": ["red", "blue", "green", "white", "red", "blue"]})
    y = [6.0, 0.0, 0.0, 6.0, 6.0, 0.0]
    model = FederatedXGBRegressor(1, max_depth=1, learning_rate=1.0, reg_lambda=0.0)
    tree = model.fit([(X[:3], y[:3]), (X[3:], y[3:])]).trees_[0]
    assert tree.categories[0] == [0, 1]
    assert tree.value.tolist() == [0, 3, -3]


def test_the_conversation_and_what_it_discloses():
    X, score = make_mixed()
    model = FederatedXGBRegressor(1, max_depth=1).fit(deal(X, score, 2))
    start = ["DescribeTargets", "TargetDescription", "CountLevels", "LevelCounts"]
    assert model.ledger_.conversation()[:4] == start
    assert "every category that a client has" in LevelCounts.discloses
    assert model.ledger_.to_frame()["discloses"].str.contains("every category").any()


# XGBoost ----------------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"max_cat_to_onehot": 20},
    {"max_cat_to_onehot": 1, "max_cat_threshold": 3},
    {"reg_alpha": 0.3, "max_delta_step": 0.5, "min_child_weight": 0.5},
    {"grow_policy": "lossguide", "max_leaves": 9, "max_cat_to_onehot": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options) or "defaults")
@pytest.mark.parametrize("missing", [pytest.param(0.0, marks=pytest.mark.exact), 0.15])
def test_two_classes_are_xgboost(options, missing):
    X, score = make_mixed(missing=missing)
    y = labels_for("binary:logistic", score)
    model = estimator_for("binary:logistic", 4, xgboost_rules=RULES, **options)
    trees = model.fit([(X, y)]).trees_
    assert_same_trees(model.fit(deal(X, y, 3)).trees_, trees)
    n_nodes, differences = different_nodes(model, X, y, **{"max_depth": 6, **options})
    assert n_nodes > 40
    assert differences == []
    assert any(map(any, (tree.categories for tree in trees)))


@pytest.mark.parametrize(
    "objective",
    ["multi:softprob", "reg:squarederror", "reg:pseudohubererror", "count:poisson"],
)
def test_each_objective_is_xgboost(objective):
    X, score = make_mixed()
    y = labels_for(objective, score)
    model = estimator_for(objective, xgboost_rules=RULES).fit(deal(X, y, 3))
    assert different_nodes(model, X, y, max_depth=6)[1] == []


def test_packed_histograms_give_the_same_trees():
    X, score = make_mixed()
    trees = estimator_for("reg:squarederror").fit(deal(X, score, 2)).trees_
    packed = estimator_for("reg:squarederror", histograms="packed").fit(deal(X, score, 3))
    assert_same_trees(packed.trees_, trees)


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "count:poisson"])
def test_models_go_to_xgboost_and_back(objective, tmp_path):
    X, score = make_mixed()
    y = labels_for(objective, score)
    model = estimator_for(objective).fit(deal(X, y, 2))
    data = xgboost.DMatrix(as_categories(X), enable_categorical=True)
    expected = model.model_.margins(read_table(X).coded(model.model_.levels))
    booster = model.to_xgboost()
    margins = booster.predict(data, output_margin=True).reshape(len(X), -1)
    np.testing.assert_allclose(margins, expected, rtol=1e-6, atol=1e-6)
    back = type(model).from_xgboost(booster)
    assert back.model_.levels == model.model_.levels
    for tree, other in zip(back.trees_, model.trees_, strict=True):
        np.testing.assert_array_equal(tree.right, other.right)
        np.testing.assert_array_equal(tree.threshold, other.threshold)
    models.save(model, tmp_path / "model.npz")
    loaded = models.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_clients_continue_the_training_of_xgboost():
    """The categories of the booster keep their numbers; a further one counts as another text."""
    X, score = make_mixed()
    data = xgboost.DMatrix(as_categories(X), score, enable_categorical=True)
    booster = xgboost.train({"max_depth": 3, "nthread": 1}, data, 2)
    model = fedlib.FederatedXGBRegressor.from_xgboost(booster)
    np.testing.assert_allclose(model.predict(X), booster.predict(data), rtol=1e-5)
    started, X = list(model.trees_), X.replace("town 03", "another town")
    model.set_params(n_trees=4).fit(deal(X, score, 2))
    assert_same_trees(model.trees_[:2], started)
    assert "another town" not in model.model_.levels[0]
    assert model.losses_[-1] < model.losses_[0]


def test_names_beyond_ascii_survive():
    X = COLOURS.replace({"red": "rouge é", "blue": "青"})
    model = FederatedXGBRegressor(2).fit([(X, [6.0, 0.0, 6.0, 0.0])])
    booster = model.to_xgboost()
    assert type(model).from_xgboost(booster).model_.levels == model.model_.levels
    data = xgboost.DMatrix(X.astype("category"), enable_categorical=True)
    np.testing.assert_allclose(booster.predict(data), model.predict(X))


def test_a_booster_without_names_of_categories_is_refused():
    codes = np.array([[0.0], [1.0], [2.0], [1.0]])
    data = xgboost.DMatrix(codes, [6.0, 0, 6, 0], feature_types=["c"], enable_categorical=True)
    booster = xgboost.train({"min_child_weight": 0}, data, 1)
    with pytest.raises(ValueError, match="must contain the names of its categories"):
        fedlib.FederatedXGBRegressor.from_xgboost(booster)


@pytest.mark.parametrize("names", [["a ", "b", "c"], ["c", "a\t", "b"]])
def test_names_of_a_booster_are_read_as_rows_are(names):
    frame = pd.DataFrame({"c": pd.Categorical(names * 20, names)})
    data = xgboost.DMatrix(frame, np.arange(60) % 3 * 2.0, enable_categorical=True)
    booster = xgboost.train({"max_depth": 2}, data, 2)
    model = fedlib.FederatedXGBRegressor.from_xgboost(booster)
    assert model.model_.levels == (tuple(map(str.strip, names)),)
    np.testing.assert_allclose(model.predict(frame), booster.predict(data), rtol=1e-6)


def test_names_of_a_booster_that_rows_do_not_tell_apart():
    frame = pd.DataFrame({"c": pd.Categorical(["a", "a ", "b"] * 20)})
    data = xgboost.DMatrix(frame, np.arange(60) % 3, enable_categorical=True)
    with pytest.raises(ValueError, match=r"feature 0 must differ .*; got \['a', 'a '\]: rename"):
        fedlib.FederatedXGBRegressor.from_xgboost(xgboost.train({}, data, 1))


# New rows ---------------------------------------------------------------------------------------


def test_an_unseen_category_goes_left_as_in_xgboost():
    X, score = make_mixed(missing=0.0)
    model = estimator_for("reg:squarederror").fit(deal(X, score, 2))
    new = X[:20].assign(town="elsewhere")
    codes = read_table(new).coded(model.model_.levels)
    assert (codes[:, 0] == 12).all()
    booster = model.to_xgboost()
    data = xgboost.DMatrix(
        codes, feature_names=booster.feature_names, feature_types=booster.feature_types,
        enable_categorical=True,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=UNKNOWN):
        found = model.predict(new)
    np.testing.assert_allclose(booster.predict(data), found, rtol=1e-6)


def test_every_way_to_predict_names_unknown_categories():
    X, score = make_mixed(missing=0.0)
    y = score > np.median(score)
    model = FederatedXGBClassifier(2).fit(deal(X, y, 2))
    known, new = X[:20], X[:20].assign(town="elsewhere")
    for method in (
        model.predict, model.predict_proba, model.decision_function, model.predict_contributions,
        lambda X: next(model.staged_predict_proba(X)), lambda X: model.score(X, y[:20]),
    ):  # fmt: skip
        method(known)
        with pytest.warns(UserWarning, match=UNKNOWN):
            method(new)
    regressor = FederatedXGBRegressor(2).fit(deal(X, score, 2))
    with pytest.warns(UserWarning, match=UNKNOWN):
        regressor.score(new, score[:20])
    with pytest.warns(UserWarning, match=UNKNOWN):  # at the client, which is passive
        FederatedXGBRegressor(2).fit([*deal(X, score, 2), (new, None)], passive=[2])
    parts = dict(zip("ABCD", deal(X, y, 4), strict=True))
    parts["D"] = parts["D"][0].assign(town="elsewhere"), parts["D"][1]
    with pytest.warns(UserWarning, match=UNKNOWN):
        LeaveOneSiteOut(FederatedXGBClassifier(2)).fit(parts)


def test_withheld_categories_are_one_category():
    """Rows of rare towns and of towns that no client has named predict the same."""
    X, score = make_mixed(missing=0.0)
    rare = np.arange(len(X)) < 20
    X.loc[rare, "town"] = [f"village {i // 2}" for i in range(20)]
    score = np.where(rare, 20.0, score)
    model = estimator_for("reg:squarederror", min_category_count=5, xgboost_rules=RULES)
    model.fit(deal(X, score, 2))
    assert not any("village" in town for town in model.model_.levels[0])
    assert different_nodes(model, X, score, max_depth=6)[1] == []
    with pytest.warns(UserWarning, match="features 'town' have categories that the model does not"):
        assert len(model.to_xgboost().feature_names) == X.shape[1]
    booster = model.to_xgboost(names=False)
    assert booster.feature_names is None
    codes = read_table(X).coded(model.model_.levels)
    data = xgboost.DMatrix(codes, feature_types=booster.feature_types, enable_categorical=True)
    expected = model.model_.margins(codes)[:, 0]
    np.testing.assert_allclose(booster.predict(data), expected, rtol=1e-6)
    new = pd.concat([X[:1].assign(town="village 99"), X[:1]])
    with pytest.warns(UserWarning, match="feature 'town' contains 'village 0', 'village 99'"):
        unnamed, rare = model.predict(new)
    assert unnamed == rare > 10


def test_a_client_withholds_more_than_the_run_asks_for():
    parts = [(COLOURS, [6.0, 0.0, 6.0, 0.0]), (COLOURS, [6.0, 0.0, 6.0, 0.0])]
    clients = {
        name: BoostingClient((X, ["a", "b", "a", "b"]), min_category_count=count)
        for name, (X, _), count in zip("AB", parts, (2, 1), strict=True)
    }
    recorder = Recorder(clients)
    FederatedXGBClassifier(1, **HISTOGRAM).fit(recorder)
    reply = first_message(recorder.exchanges, LevelCounts, "A")
    assert (reply.categories, reply.counts.tolist(), reply.others.tolist()) == (("red",), [2], [2])
    with pytest.raises(ValueError, match="min_category_count must be at least 1; got 0"):
        BoostingClient(parts[0], min_category_count=0)


def test_rows_for_validation_may_have_other_categories():
    X, score = make_mixed(missing=0.0)
    kept = X[:50].assign(town="elsewhere")
    parts = [(*part, None, (kept, score[:50])) for part in deal(X, score, 2)]
    with pytest.warns(UserWarning, match=UNKNOWN):
        model = FederatedXGBRegressor(3, eval_metric="rmse").fit(parts)
    with pytest.warns(UserWarning, match=UNKNOWN):
        residuals = model.predict(kept) - score[:50]
    rmse = np.sqrt((residuals**2).mean())
    assert model.evals_result_["validation_0"]["rmse"][-1] == pytest.approx(rmse, rel=1e-5)


def test_a_sample_does_not_depend_on_the_clients():
    X, score = make_mixed()
    X["x"] = np.arange(len(X)) % 100 + score  # no two rows are equal
    model = estimator_for("reg:squarederror", subsample=0.5, random_state=0)
    trees = model.fit([(X, score)]).trees_
    assert_same_trees(model.fit(deal(X, score, 3)).trees_, trees)


def test_passive_clients_receive_the_categories():
    X, score = make_mixed()
    parts = [*deal(X, score, 2), (X[:9], None)]
    model = FederatedXGBRegressor(2).fit(parts, passive=[2])
    np.testing.assert_array_equal(model.labels_[2], model.predict(X[:9]))


def test_a_journal_notices_another_text(tmp_path):
    X, score = make_mixed(60)
    other = X.assign(town=X["town"].replace("town 03", "another town"))
    model = FederatedXGBRegressor(1).fit([(X, score)], journal=tmp_path / "journal")
    again = FederatedXGBRegressor(1).fit([(X, score)], journal=tmp_path / "journal")
    assert_same_trees(again.trees_, model.trees_)
    with pytest.raises(JournalError, match="the digest of the data"):
        FederatedXGBRegressor(1).fit([(other, score)], journal=tmp_path / "journal")


@pytest.mark.filterwarnings("ignore::fedlib.boosting.classes.OneClassWarning")
@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_one_class(method):
    """With histograms, the trees are those of the pooled rows."""
    X, y = make_rows(200)
    model = FederatedXGBClassifier(3, method=method, tol=None)
    trees = model.fit([(X[y == 0], y[y == 0]), (X[y == 1], y[y == 1])]).trees_
    assert not model.ledger_.lost
    if method == "histogram":
        assert_same_trees(model.fit([(X, y)]).trees_, trees)


def test_a_column_without_values_fits_text():
    parts = [(COLOURS, [6.0, 0.0, 6.0, 0.0]), (pd.DataFrame({"colour": [np.nan] * 3}), [1.0] * 3)]
    model = FederatedXGBRegressor(2).fit(parts)
    assert model.model_.levels == (("blue", "green", "red"),)
    assert not model.ledger_.lost


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["top_splits", "union"])
def test_text_needs_histograms(method):
    with pytest.raises(ValueError, match="contain text, which needs method='histogram'"):
        FederatedXGBClassifier(method=method).fit([(COLOURS, [0, 1, 0, 1])])


def test_monotone_constraints_do_not_apply_to_text():
    with pytest.raises(ValueError, match="monotone_constraints must be 0 for features 'colour'"):
        FederatedXGBRegressor(monotone_constraints=[1]).fit([(COLOURS, [0, 1, 0, 1])])


def test_numbers_and_text_do_not_agree():
    clients = {
        name: BoostingClient((X, [0, 1, 0, 1]))
        for name, X in {"A": COLOURS, "B": COLOURS, "C": COLOURS.assign(colour=1.0)}.items()
    }
    with pytest.raises(
        ValueError, match="disagree on the content of feature 'colour'.*--text colour"
    ):
        FederatedXGBClassifier(2, **HISTOGRAM).fit(InProcess(clients))
    model = FederatedXGBClassifier(2, **HISTOGRAM).fit(InProcess(clients), min_clients=2)
    assert list(model.ledger_.lost) == ["C"]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((1, 1)), "feature 0 must contain text, as in training; got numbers"),
        (COLOURS.assign(more=1.0), "the columns of the fit: 'more' is additional"),
        (
            COLOURS.rename(columns={"colour": "shade"}),
            "'colour' is missing, and 'shade' is additional",
        ),
    ],
)
def test_new_rows_of_another_kind(X, message):
    model = FederatedXGBRegressor(1).fit([(COLOURS, [6.0, 0.0, 6.0, 0.0])])
    with pytest.raises(ValueError, match=message):
        model.predict(X)


CODES = pd.DataFrame({"children": ["0", "01", "2", "3+"] * 30, "age": np.arange(120.0)})
CODES["children"] = CODES["children"].astype("category")


@pytest.fixture(scope="module")
def of_codes():
    y = (CODES["children"] == "01").astype(float) + 2 * (CODES["children"] == "2")
    return FederatedXGBRegressor(3, min_category_count=1).fit([(CODES, y)])


def test_texts_that_are_all_numbers_stay_text_for_a_model_of_text(of_codes):
    expected = of_codes.predict(CODES[:3])
    assert len(set(expected.tolist())) == 3
    for dtype in (object, "string", "category"):
        codes = CODES[:3].astype({"children": object}).astype({"children": dtype})
        np.testing.assert_array_equal(of_codes.predict(codes), expected)
    found = []
    for text, dtype in (("2.0", "str"), ("9", "category")):  # "2.0" is not the text "2"
        with pytest.warns(UserWarning, match=f"feature 'children' contains '{text}', categories"):
            found.append(
                of_codes.predict(CODES[:1].assign(children=[text]).astype({"children": dtype}))
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.float32, "Int64", object])
def test_numbers_are_the_categories_with_their_texts(of_codes, dtype):
    """A file with the codes 0 and 2 only is read as numbers."""
    gap = of_codes.predict(CODES[:1].assign(children=pd.Categorical([None], ["0"])))
    codes, expected = [0, 2], of_codes.predict(CODES.iloc[[0, 2]])
    rows = pd.DataFrame({"children": pd.Series(codes, dtype=dtype), "age": [0.0, 2.0]})
    np.testing.assert_array_equal(of_codes.predict(rows), expected)
    if dtype in (np.float64, "Int64"):
        rows["children"] = pd.Series([None, 2], dtype=dtype)
        assert of_codes.predict(rows).tolist() == [gap[0], expected[1]]


@pytest.mark.parametrize("odd", [7, 0.5, 2**24 + 1])
def test_a_number_that_is_no_category_is_refused_with_the_remedy(of_codes, odd):
    rows = pd.DataFrame({"children": [0, odd], "age": [0.0, 1.0]})
    with pytest.raises(ValueError, match="got numbers, such as .*no category of the model") as told:
        of_codes.predict(rows)
    assert "X['children'].astype('category'), for a file --text children" in str(told.value)


def test_rows_for_validation_are_read_as_those_for_training():
    y = (CODES["children"] == "01").astype(int)
    plain = CODES.astype({"children": object})
    losses = [
        FederatedXGBClassifier(2, eval_metric="logloss", min_category_count=1)
        .fit([(CODES, y, None, (rows[:3], y[:3]))])
        .evals_result_
        for rows in (CODES, plain)
    ]
    assert losses[0] == losses[1]


def test_text_for_a_model_of_numbers():
    model = FederatedXGBRegressor(1).fit([(COLOURS.assign(colour=1.0), [6.0, 0.0, 6.0, 0.0])])
    with pytest.raises(ValueError, match="feature 'colour' must contain numbers, as in training"):
        model.predict(COLOURS)


REQUEST = CountLevels(np.array([0, 2]), 2)
LEVELS = {
    "sizes": np.array([2, 1]),
    "categories": ("a", "b", "x"),
    "counts": np.array([3, 2, 4]),
    "others": np.array([0, 1]),
}


def test_a_reply_returns_as_it_was():
    reply = LevelCounts(**LEVELS)
    assert REQUEST.accept(decode(encode(reply))) == reply


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sizes": np.array([3]), "others": np.array([0])}, "1 features, 2 were requested"),
        ({"sizes": np.array([2, 2])}, "do not add up"),
        ({"counts": np.array([3, 1, 4])}, "fewer than 2 rows"),
        ({"categories": ("b", "a", "x")}, "sorted and distinct"),
    ],
)
def test_impossible_replies(changed, message):
    with pytest.raises(MessageError, match=message):
        REQUEST.accept(LevelCounts(**LEVELS | changed))


def test_a_client_that_counts_more_rows_than_it_has_leaves():
    def tamper(request, reply):
        message = decode(reply)
        if not isinstance(message, LevelCounts):
            return reply
        return encode(LevelCounts(np.array([1]), ("red",), np.array([99]), np.array([0])))

    clients = {name: BoostingClient((COLOURS, [0, 1, 0, 1])) for name in "ABC"}
    recorder = Recorder(clients, tamper={"C": tamper})
    model = FederatedXGBClassifier(1, **HISTOGRAM).fit(recorder, min_clients=2)
    assert "InvalidReply at CountLevels" in model.ledger_.lost["C"]
    assert model.model_.levels == (("blue", "green", "red"),)


def test_sets_must_fit_the_nodes():
    empty = np.empty(0, np.int32)
    with pytest.raises(MessageError, match="3 bytes of categories for 0 nodes"):
        KeepTrees(
            0.0, np.empty(0, np.int64), empty, np.empty(0, np.float32), np.empty(0, bool),
            np.empty(0, np.float32), right=b"abc",
        )  # fmt: skip


def test_texts_that_are_numbers_stay_numbers():
    table = read_table(pd.DataFrame({"a": ["1", "2"], "b": pd.Categorical([1, None])}))
    assert isinstance(table, Table)
    assert table.numbers[:, 0].tolist() == [1, 2]
    assert table.texts[1].tolist() == ["1", None]
