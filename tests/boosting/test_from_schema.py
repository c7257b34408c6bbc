"""Boosting with a schema: no message describes columns, and columns of text work with any sums."""

import numpy as np
import pandas as pd
import pytest
import xgboost
from all_protocols import replies_in_clear
from sklearn.base import clone

from fedlib import FederatedXGBClassifier, FederatedXGBRegressor, Schema
from fedlib.boosting import tree_client
from fedlib.boosting.categories import CountLevels
from fedlib.boosting.client import BoostingClient
from fedlib.boosting.descriptions import DescribeTargets, DescribeTraining, TrainingDescription
from fedlib.boosting.histograms import SumNoisyHistograms
from fedlib.boosting.messages import BeginBoosting
from fedlib.boosting.secure import gradient_limits, row_sensitivity
from fedlib.core.messages import MessageError
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.sites.models import load, save
from fedlib.testing import Recorder

from .common import assert_same_trees

TOWNS = [f"town {number}" for number in range(9)]
OTHER = {"outside": "other"}
FIELDS = {
    "town": {"type": "string", "constraints": {"enum": TOWNS[::-1]}, "fedlib": OTHER},
    "age": {
        "type": "number",
        "constraints": {"minimum": 0, "maximum": 100},
        "fedlib": {"outside": "clip"},
    },
    "code": {"type": "integer", "constraints": {"enum": [10, 9, 1]}, "fedlib": OTHER},
    "ill": {
        "type": "string",
        "constraints": {"enum": ["yes", "no"]},
        "fedlib": {"role": "target"},
    },
    "cost": {
        "type": "number",
        "constraints": {"minimum": -9, "maximum": 9},
        "fedlib": {"role": "target"},
    },
}
FEATURES = ["town", "age", "code"]
TREES = {
    "n_trees": 3,
    "max_depth": 3,
    "method": "histogram",
    "tol": None,
    "max_bin": 16,
    "reg_lambda": 1.0,
}
GUARANTEE = {"epsilon": 20.0, "delta": 1e-6}


def schema_of(*names, **changes):
    fields = [{"name": name, **FIELDS[name], **changes.get(name, {})} for name in names]
    return Schema({"schema": {"fields": fields}})


SCHEMA = schema_of(*FEATURES, "ill")
COSTS = schema_of(*FEATURES, "cost")


def site(seed, clean=False, n=90):
    """Return a table with all categories; unless ``clean``, with gaps and unknown values, too."""
    rng = np.random.default_rng(seed)
    town, code = rng.integers(0, 9, n), rng.choice([1, 9, 10], n)
    town[:9], code[:3] = range(9), [1, 9, 10]
    age = rng.normal(50, 20, n).round(1).clip(0, 100)
    score = np.sin(town * 2.0) + (code == 9) + age / 50 + rng.normal(scale=0.3, size=n)
    table = pd.DataFrame(
        {
            "ill": np.where(score > 1.5, "yes", "no"),
            "cost": score.round(2),
            "code": code.astype(object),
            "town": np.array(TOWNS, object)[town],
            "age": age,
        }
    )
    if not clean:
        table.loc[10:19, "town"] = ["elsewhere", None] * 5
        table.loc[20:29, "code"] = [77, None] * 5
        table.loc[30:39, "age"] = np.nan
    return table


NAMES = ("north", "south", "east")
CLEAN = {name: site(seed, clean=True) for seed, name in enumerate(NAMES)}
PARTS = {name: site(seed) for seed, name in enumerate(NAMES)}
NEW = pd.concat([site(9), site(10)], ignore_index=True)


def classifier(schema=SCHEMA, **options):
    return FederatedXGBClassifier(**{**TREES, "schema": schema, **options})


def regressor(schema=COSTS, **options):
    return FederatedXGBRegressor(**{**TREES, "schema": schema, **options})


def clients_of(estimator, parts=PARTS):
    make, options = estimator._client_factory([{}])
    clients = {name: make(part, **options[0]) for name, part in parts.items()}
    if not estimator.secure:
        return clients
    identities = simulated_identities(list(clients))
    return {name: SecureClient(one, identities[name]) for name, one in clients.items()}


def assert_same_models(model, other):
    assert model.model_.levels == other.model_.levels
    assert_same_trees(model.trees_, other.trees_)
    for tree, another in zip(model.trees_, other.trees_, strict=True):
        assert tree.categories == another.categories
    assert any(map(any, (tree.categories for tree in model.trees_)))


# In the open ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_cat_to_onehot": 20}, {"subsample": 0.7}])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_the_trees_are_those_of_a_run_that_counts_categories(make, options):
    """Also with three categories, for which an empty one more would make another kind of split."""
    target = "ill" if make is classifier else "cost"
    schema = schema_of(
        *FEATURES,
        target,
        town={"fedlib": {}},
        code={"fedlib": {}},
        age={"constraints": {}, "fedlib": {}},
    )
    model = make(schema, random_state=0, **options).fit(CLEAN)
    plain = make(None, random_state=0, min_category_count=1, **options)
    plain.fit(
        {
            name: (part[FEATURES].astype({"code": "category"}), part[target].to_numpy())
            for name, part in CLEAN.items()
        }
    )
    assert model.model_.levels == (tuple(TOWNS), None, ("1", "10", "9"))
    assert_same_models(model, plain)
    new = pd.concat(CLEAN.values())
    expected = plain.predict(new[FEATURES].astype({"code": "category"}))
    assert model.predict(new).tolist() == expected.tolist()


@pytest.mark.parametrize("make", [classifier, regressor])
def test_no_message_describes_kinds_or_categories(make):
    recorder = Recorder(clients_of(make()))
    model = make().fit(recorder)
    asked = [request for e in recorder.exchanges for request in e.requests.values()]
    assert not any(isinstance(request, CountLevels) for request in asked)
    assert isinstance(asked[0], DescribeTraining | DescribeTargets)
    assert asked[0].agreed
    assert all(reply.kinds == b"" for reply in recorder.exchanges[0].replies.values())
    assert model.model_.levels[0] == ("other", *TOWNS)


def test_a_reply_with_kinds_of_agreed_columns_is_refused():
    request = DescribeTraining(0.3, agreed=True)
    reply = TrainingDescription(1, 1, 0.3, classes=("a",), weights=np.ones(1), kinds=b"\1")
    with pytest.raises(MessageError, match="a schema has them"):
        request.accept(reply)
    assert DescribeTraining(0.3).accept(reply) is reply


def test_a_site_with_other_columns_leaves_the_run():
    clients = clients_of(classifier(), {**PARTS, "west": site(7)})
    part = site(7)
    clients["west"] = BoostingClient((part[["town", "code", "age"]], part["ill"]))
    model = classifier().fit(Recorder(clients), min_clients=3)
    assert list(model.ledger_.lost) == ["west"]


def test_values_follow_the_rule_of_the_schema():
    """An unknown town is "other" here, and a gap if the schema says so."""
    unknown = NEW.assign(town="elsewhere")
    model = classifier().fit(PARTS)
    found = model.predict_proba(unknown)
    assert found.tolist() == model.predict_proba(NEW.assign(town="other")).tolist()
    gaps = schema_of(*FEATURES, "ill", town={"fedlib": {"outside": "missing"}})
    model = classifier(gaps).fit(PARTS)
    assert model.model_.levels[0] == tuple(TOWNS)
    found = model.predict_proba(unknown)
    assert found.tolist() == model.predict_proba(NEW.assign(town=None)).tolist()


def test_categories_that_look_like_something_else_remain_text():
    """Numbers, words for gaps, dates and truth values, also if a site has only some of them."""
    words = ["1", "01", "?", "2020-01-01", "true", "no"]
    fields = [
        {"name": "word", "type": "string", "constraints": {"enum": words}},
        {"name": "cost", "type": "number", "fedlib": {"role": "target"}},
    ]
    parts = [
        pd.DataFrame({"word": pair, "cost": np.repeat(values, 10)})
        for pair, values in (
            (np.repeat(["1", "01"], 10), [0.0, 1.0]),
            (np.repeat(["1", "?"], 10), [0.0, 2.0]),
            (np.repeat(["2020-01-01", "no"], 10), [3.0, 5.0]),
            (np.repeat(["true", "true"], 10), [4.0, 4.0]),
        )
    ]
    model = regressor(Schema({"schema": {"fields": fields}}), learning_rate=1.0, reg_lambda=0.0)
    model.fit(parts)
    assert model.model_.levels == (tuple(sorted(words)),)
    for word, value in {"1": 0, "01": 1, "?": 2, "2020-01-01": 3, "true": 4, "no": 5}.items():
        assert model.predict(pd.DataFrame({"word": [word]})) == pytest.approx([value])


def test_a_continued_model_keeps_its_categories():
    """A town that only the new schema has counts as another text."""
    model = classifier(warm_start=True).fit(PARTS)
    started = list(model.trees_)
    more = schema_of(
        *FEATURES, "ill", town={"constraints": {"enum": [*TOWNS, "town 99"]}, "fedlib": OTHER}
    )
    model.set_params(schema=more, n_trees=5)
    parts = {name: part.replace({"town": {"town 3": "town 99"}}) for name, part in PARTS.items()}
    model.fit(parts)
    assert_same_trees(model.trees_[:3], started)
    assert model.model_.levels[0] == ("other", *TOWNS)
    with pytest.raises(ValueError, match="the columns must be those of the model: 'code' is"):
        model.set_params(schema=schema_of("town", "age", "ill"), n_trees=7).protocol()


# Behind masks and with noise --------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"grow_policy": "lossguide", "max_leaves": 5}])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_secure_trees_are_those_of_the_open_run(make, options, tmp_path):
    limits = {"age": (0, 100)}
    secure = make(secure=True, **options).fit(PARTS)
    plain = make(bounds=limits, **options).fit(PARTS)
    assert_same_models(secure, plain)
    method = "predict_proba" if make is classifier else "predict"
    expected = getattr(plain, method)(NEW)
    np.testing.assert_array_equal(getattr(secure, method)(NEW), expected)
    save(secure, tmp_path / "model.npz")
    loaded = load(tmp_path / "model.npz")
    np.testing.assert_array_equal(getattr(loaded, method)(NEW), expected)
    rows = SCHEMA.rows(NEW, protected=True)
    for f, name in enumerate(FEATURES):
        if (levels := secure.model_.levels[f]) is not None:
            rows[name] = pd.Categorical(rows[name], categories=levels)
    data = xgboost.DMatrix(rows, enable_categorical=True)
    boosted = secure.to_xgboost().predict(data)
    wanted = expected[:, 1] if expected.ndim == 2 else expected
    np.testing.assert_allclose(boosted, wanted, rtol=1e-5)


def test_a_secure_run_has_the_category_other_whatever_the_schema_says():
    gaps = schema_of(*FEATURES, "ill", town={"fedlib": {"outside": "missing"}})
    secure = classifier(gaps, secure=True).fit(PARTS)
    assert_same_models(secure, classifier(bounds={"age": (0, 100)}).fit(PARTS))


def test_nothing_in_clear_depends_on_rows():
    """Every reply before the first masked values is the same for other rows."""
    replies = []
    others = {name: site(seed + 50) for seed, name in enumerate(NAMES)}
    others["north"]["town"] = None
    others["south"][["town", "age"]] = ["elsewhere", np.nan]
    others["east"]["code"] = 9
    for parts in (PARTS, others):
        estimator = classifier(secure=True)
        recorder = Recorder(clients_of(estimator, parts))
        estimator.fit(recorder)
        replies.append(replies_in_clear(recorder))
    assert len(replies[0]) == 1  # the features
    assert replies[0] == replies[1]


@pytest.mark.parametrize("secure", [False, True])
def test_without_noise_private_trees_are_those_of_the_open_run(monkeypatch, secure):
    monkeypatch.setattr(tree_client, "add_noise", lambda values, *_: values)
    private = classifier(secure=secure, **GUARANTEE).fit(PARTS)
    plain = classifier(bounds={"age": (0, 100)}, base_score=0.5).fit(PARTS)
    assert private.model_.levels == plain.model_.levels
    for tree, other in zip(private.trees_, plain.trees_, strict=True):
        assert tree.feature.tolist() == other.feature.tolist()
        assert tree.categories == other.categories
        np.testing.assert_allclose(tree.value, other.value, atol=1e-5)


@pytest.mark.parametrize("secure", [False, True])
def test_noisy_boosting_takes_columns_of_text(secure):
    model = regressor(secure=secure, base_score=1.0, **GUARANTEE).fit(PARTS)
    assert np.isfinite(model.predict(NEW)).all()


def test_no_row_changes_more_than_stated(monkeypatch):
    """Each request of a run, asked of tables with and without a row, with any kind of value."""
    monkeypatch.setattr(tree_client, "add_noise", lambda values, *_: values)
    estimator = classifier(n_trees=2, **GUARANTEE)
    recorder = Recorder(clients_of(estimator))
    estimator.fit(recorder)
    requests = [
        exchange.requests["north"]
        for exchange in recorder.exchanges
        if isinstance(exchange.requests["north"], BeginBoosting | SumNoisyHistograms)
    ]
    begin = requests[0]
    assert np.diff(begin.offsets).tolist() == [11, 17, 5]  # one bin more for missing values
    sensitivity = row_sensitivity(gradient_limits("binary:logistic", 1.0), 3, 1)

    def answers(part):
        client = clients_of(estimator, {"north": part})["north"]
        return [
            reply.sums for request in requests if hasattr(reply := client.handle(request), "sums")
        ]

    whole = answers(PARTS["north"])
    assert len(whole) == 6  # two trees of three levels
    for row in (0, 10, 11, 20, 21, 30, 50):  # known, other and missing values
        rest = answers(PARTS["north"].drop(index=row))
        for sums, without in zip(whole, rest, strict=True):
            change = sums - without
            assert np.count_nonzero(change.any(axis=2)) == 3  # one bin of each feature
            assert 0 < np.abs(change).sum() * 2**sensitivity.digits <= sensitivity.units[0]
            largest = np.sqrt((change**2).sum()) * 2**sensitivity.digits
            assert largest <= sensitivity.units[1]
            assert np.count_nonzero(change) <= sensitivity.n_entries


# Bad input --------------------------------------------------------------------------------------

FREE = {"constraints": {}, "fedlib": {}}


@pytest.mark.parametrize(
    ("make", "changes", "options", "lacking"),
    [
        (
            classifier,
            {"town": FREE},
            {},
            "needs in the schema of all sites an enum of 'town'$",
        ),
        (
            classifier,
            {"town": FREE, "age": FREE, "ill": {"constraints": {}}},
            {"secure": True},
            "True needs in .* an enum of 'town', a minimum and a maximum of 'age',"
            " an enum of 'ill' .the classes.$",
        ),
        (
            classifier,
            {"town": FREE, "ill": {"type": "integer", "constraints": {}}},
            GUARANTEE,
            "epsilon needs in .* an enum of 'town', an enum of 'ill' .the classes.$",
        ),
        (
            regressor,
            {"cost": {"constraints": {}}, "code": {"fedlib": {"unconfirmed": ["enum"]}}},
            {"secure": True},
            "the confirmation of enum of 'code', a minimum and a maximum of 'cost'",
        ),
    ],
)
def test_one_error_lists_everything_before_any_message(make, changes, options, lacking):
    target = "ill" if make is classifier else "cost"
    recorder = Recorder(clients_of(make()))
    estimator = make(schema_of(*FEATURES, target, **changes), **options)
    with pytest.raises(ValueError, match=lacking):
        estimator.fit(recorder)
    assert recorder.exchanges == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "union"}, "'town', 'code' contain text, which needs method='histogram'"),
        ({"monotone_constraints": [1, 0, 0]}, "must be 0 for features 'town', which contain text"),
        ({"bounds": {"age": (0, 1), "town": (0, 1)}}, "got bounds of 'town', whose categories"),
        ({"bounds": {}}, "there are none of 'age'"),
        (
            {"schema": schema_of(*FEATURES)},
            "needs in .* a field with the role 'target'",
        ),
    ],
)
def test_what_does_not_fit_the_schema_is_an_error_before_any_message(options, message):
    with pytest.raises(ValueError, match=message):
        classifier(**options).protocol()


def test_classes_are_those_of_the_schema():
    model = classifier(secure=True).fit(PARTS)
    assert model.classes_.tolist() == ["no", "yes"]
    given = clone(model).set_params(classes=["yes", "no"]).fit(PARTS)
    assert_same_models(given, model)


def test_only_clients_without_a_schema_refuse_text():
    model = FederatedXGBClassifier(
        **TREES, secure=True, classes=["no", "yes"], bounds={"age": (0, 100)}
    )
    part = PARTS["north"]
    with pytest.raises(ValueError, match="'town', 'code' contain text; a schema"):
        model.fit([(part[FEATURES].astype({"code": "category"}), part["ill"])] * 3)


def test_rows_for_validation_are_read_by_the_schema():
    """As a table with all columns, as pairs of features and classes, or as a list of one pair."""
    schema = schema_of(*FEATURES, "ill", age=FIELDS["age"] | {"fedlib": {"outside": "missing"}})
    more = PARTS["south"].assign(extra=1)
    X, y = more[["code", "age", "town", "extra"]], more["ill"].to_numpy()
    options = {**TREES, "eval_metric": "error", "schema": schema}
    found = []
    for evaluated in (more, (X, y), [(X, y)]):
        part = (X, y, None, evaluated)
        found.append(FederatedXGBClassifier(**options).fit([part, part]).evals_result_)
    table = schema.apply(more)[0]
    by_hand = FederatedXGBClassifier(**{**options, "schema": None}, min_category_count=1)
    by_hand.fit([(table.X, table.y, None, (table.X, table.y))] * 2)
    assert found == [by_hand.evals_result_] * 3
    with pytest.raises(ValueError, match="role 'weight', and the schema no such field"):
        FederatedXGBClassifier(**options).fit([(X, y, np.ones(len(y)))] * 2)
    with pytest.raises(ValueError, match="rows do not fit the schema: column 'ill'"):
        FederatedXGBClassifier(**options).fit([(X, y, None, (X, np.repeat("maybe", len(y))))] * 2)
