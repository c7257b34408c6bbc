"""Pipelines with a schema: open, masked and noisy runs, and what leaves a site before its sums."""

import json

import numpy as np
import pandas as pd
import pytest
from all_protocols import replies_in_clear

from fedlib import (
    FederatedKMeans,
    FederatedPipeline,
    FederatedSummary,
    FederatedXGBClassifier,
    HorizontalDBSCAN,
    Schema,
)
from fedlib.core.columns import read_columns
from fedlib.core.messages import decode, privacy_of
from fedlib.protection.privacy.accounting import privacy_per_request
from fedlib.protection.secure import SecureClient, simulated_identities
from fedlib.protection.secure.points import DescribeFeatures
from fedlib.sites.models import load, save
from fedlib.testing import Recorder, seeded_noise

FIELDS = {
    "age": {
        "type": "number",
        "constraints": {"minimum": 0, "maximum": 100},
        "fedlib": {"fill": 50, "outside": "clip"},
    },
    "bmi": {
        "type": "number",
        "constraints": {"minimum": 10, "maximum": 60, "required": True},
        "fedlib": {"outside": "clip"},
    },
    "sex": {
        "type": "string",
        "constraints": {"enum": ["f", "m"]},
        "fedlib": {"outside": "other"},
    },
    "ill": {"type": "integer", "constraints": {"enum": [0, 1]}, "fedlib": {"role": "target"}},
}
INIT = np.array([[0.3, 0.2, 1, 0, 0], [0.7, 0.4, 0, 1, 0]])  # age, bmi, sex_f, sex_m, sex_other


def schema_of(*names, **changes):
    fields = [{"name": name, **FIELDS[name], **changes.get(name, {})} for name in names or FIELDS]
    return Schema.from_json(json.dumps({"name": "study", "schema": {"fields": fields}}).encode())


SCHEMA = schema_of()


def site(seed, n=90):
    """Return a raw table: the columns in another order, gaps, unknown categories, a further one."""
    rng = np.random.default_rng(seed)
    age = np.where(rng.random(n) < 0.1, np.nan, rng.normal(60, 25, n))
    return pd.DataFrame(
        {
            "id": [f"{seed}-{i}" for i in range(n)],
            "sex": rng.choice(["f", "m ", "?"], n, p=[0.5, 0.4, 0.1]),
            "ill": (age > 60).astype(int),
            "bmi": rng.normal(28, 5, n),
            "age": age,
        }
    )


PARTS = {name: site(seed) for seed, name in enumerate(("north", "south", "east", "west"))}


def kmeans(**options):
    return FederatedKMeans(2, method="lloyd", init=INIT, max_iter=4, **options)


def pipeline(estimator, **options):
    return FederatedPipeline(estimator, schema=SCHEMA, encode="one_hot", **options)


def by_hand():
    """Return the rows of all sites as a protected run has them."""
    X = pd.concat(PARTS.values())[["age", "bmi", "sex"]].reset_index(drop=True)
    X["age"] = X["age"].fillna(50).clip(0, 100)
    X["bmi"] = X["bmi"].clip(10, 60)
    X["sex"] = X["sex"].str.strip().replace("?", "other")
    return X


@pytest.mark.parametrize("scale", [None, "minmax", "standard"])
def test_a_masked_run_equals_scikit_learn_on_the_pooled_rows(scale):
    X = by_hand()
    numbers = X[["age", "bmi"]].to_numpy()
    centre, spread = {
        None: (0, 1),
        "minmax": ([0, 10], [100, 50]),
        "standard": (numbers.mean(axis=0), numbers.std(axis=0)),
    }[scale]
    model = pipeline(kmeans(secure=True), scale=scale).fit(PARTS)
    expected = np.column_stack(
        [(numbers - centre) / spread, *(X["sex"] == one for one in ("f", "m", "other"))]
    )
    transformed = model.transform(pd.concat(PARTS.values()).drop(columns=["ill", "id"]))
    np.testing.assert_allclose(transformed.to_numpy(float), expected.astype(float), rtol=1e-7)
    assert transformed.columns.tolist() == ["age", "bmi", "sex_f", "sex_m", "sex_other"]
    open_model = kmeans().fit([expected.astype(float)])
    np.testing.assert_allclose(
        model.estimator_.cluster_centers_, open_model.cluster_centers_, rtol=1e-6
    )
    assert np.concatenate(model.labels_).tolist() == open_model.labels_[0].tolist()


def test_an_open_run_asks_for_no_kinds_categories_or_extremes():
    model = pipeline(kmeans(), scale="standard", impute="mean").fit(PARTS)
    asked = set(model.ledger_.conversation())
    assert asked == {
        *("DescribeFeatures", "Features", "SumColumns", "ColumnSums", "Preprocess", "Done"),
        *("SumClusters", "ClusterSums", "MeasureInertia", "Inertia", "AssignCentres"),
    } or not asked & {"DescribeColumns", "CountCategories", "FindExtremes"}


def clients_of(estimator, parts):
    make, options = estimator._client_factory([{}] * len(parts))
    clients = {name: make(part, **options[0]) for name, part in parts.items()}
    identities = simulated_identities(list(clients))
    return {name: SecureClient(one, identities[name]) for name, one in clients.items()}


def test_nothing_in_clear_depends_on_rows():
    """Every reply before the first masked values is the same for other rows."""
    replies = []
    for parts in (PARTS, {name: site(seed + 50) for seed, name in enumerate(PARTS)}):
        recorder = Recorder(clients_of(pipeline(kmeans(secure=True)), parts))
        pipeline(kmeans(secure=True), scale="minmax").fit(recorder)
        replies.append(replies_in_clear(recorder))
    assert len(replies[0]) == 3  # the features, the rules, the features after them
    assert replies[0] == replies[1]


@pytest.mark.parametrize("secure", [False, True])
def test_one_epsilon_for_the_whole_run(secure):
    """The sums of the pipeline have a tenth of it, and the protocol the rest."""
    whole = {"epsilon": 80.0, "delta": 1e-6}
    with seeded_noise(0):
        model = pipeline(kmeans(secure=secure, **whole), scale="standard").fit(PARTS)
    numbers = by_hand()[["age", "bmi"]]
    np.testing.assert_allclose(model.model_.rules.centre[:2], numbers.mean(), rtol=0.1)
    np.testing.assert_allclose(model.model_.rules.spread[:2], numbers.std(), rtol=0.4)
    if not secure:
        estimator = pipeline(kmeans(**whole), scale="standard")
        recorder = Recorder({n: c.inner for n, c in clients_of(estimator, PARTS).items()})
        with seeded_noise(0):
            estimator.fit(recorder)
        spent = [
            privacy
            for exchange in recorder.exchanges
            if (privacy := privacy_of(exchange.requests["north"])) is not None
        ]
        assert spent == [
            privacy_per_request(80.0 * 0.1, 1e-6 * 0.1, 1),
            *[privacy_per_request(80.0 * 0.9, 1e-6 * 0.9, 4)] * 4,
        ]


def test_noise_that_hides_a_variance_leaves_no_column_unscaled():
    """A column is scaled by its variance where that is above the noise, and else by its limits."""
    rng = np.random.default_rng(0)
    number = {"type": "number", "constraints": {"minimum": 0, "maximum": 100, "required": True}}
    schema = Schema(
        {"name": "s", "schema": {"fields": [{"name": n, **number} for n in ("wide", "narrow")]}}
    )
    X = pd.DataFrame({"wide": rng.choice([10.0, 90.0], 600), "narrow": rng.normal(50, 1, 600)})
    estimator = FederatedKMeans(2, epsilon=40.0, max_iter=1, random_state=0)
    pipeline = FederatedPipeline(estimator, scale="standard", schema=schema)
    for seed in range(8):  # a noisy variance of the narrow column is as often below 0 as above
        with (
            pytest.warns(UserWarning, match="variance of 'narrow' is not .*epsilon_fraction"),
            seeded_noise(seed),
        ):
            rules = pipeline.fit([X[:300], X[300:]]).model_.rules
        assert rules.spread[0] == pytest.approx(40, rel=0.1)
        assert (rules.centre[1], rules.spread[1]) == (50, 50)


def test_without_sums_of_its_own_the_pipeline_spends_nothing():
    recorder = Recorder({n: c.inner for n, c in clients_of(pipeline(kmeans()), PARTS).items()})
    pipeline(kmeans(epsilon=8.0, delta=1e-6), scale="minmax").fit(recorder)
    first = [e.requests["north"] for e in recorder.exchanges if privacy_of(e.requests["north"])]
    assert privacy_of(first[0]) == privacy_per_request(8.0, 1e-6, 4)


def test_masked_boosting_takes_columns_of_text():
    """The classes and the bounds of all columns follow from the schema."""
    boosting = {"n_trees": 4, "method": "histogram", "tol": None, "max_depth": 3}
    model = pipeline(FederatedXGBClassifier(**boosting, secure=True)).fit(PARTS)
    assert model.estimator_.classes_.tolist() == [0.0, 1.0]
    raw = pd.concat(PARTS.values())
    open_model = FederatedXGBClassifier(
        **boosting, bounds={"age": (0, 100), "bmi": (10, 60), "f": (0, 1), "m": (0, 1), "o": (0, 1)}
    )
    X = by_hand()
    for name, category in zip("fmo", ("f", "m", "other"), strict=True):
        X[name] = (X["sex"] == category) * 1.0
    X = X.drop(columns="sex")
    expected = open_model.fit([(X, raw["ill"].to_numpy())])
    found = model.predict_proba(raw.drop(columns=["ill", "id"]))
    np.testing.assert_allclose(found, expected.predict_proba(X), atol=1e-4)


def test_a_client_that_is_built_again_for_each_request_gives_the_same():
    estimator = pipeline(kmeans(secure=True), scale="standard")
    clients = clients_of(estimator, PARTS)
    identities = {name: client.identity for name, client in clients.items()}
    make, options = estimator._client_factory([{}])

    def rebuild(name):
        return SecureClient(make(PARTS[name], **options[0]), identities[name])

    models = [
        pipeline(kmeans(secure=True), scale="standard").fit(
            Recorder({name: rebuild(name) for name in PARTS}, rebuild=one)
        )
        for one in (None, rebuild)
    ]
    centres = [model.estimator_.cluster_centers_.tolist() for model in models]
    assert centres[0] == centres[1]


def test_new_rows_are_read_by_the_schema_also_after_loading(tmp_path):
    model = pipeline(kmeans(secure=True), scale="minmax").fit(PARTS)
    new = site(9).drop(columns=["ill", "id"])
    expected = model.predict(new)
    save(model, tmp_path / "model.npz")
    loaded = load(tmp_path / "model.npz")
    assert loaded.schema.digest == SCHEMA.digest
    for table in (new, new[["age", "bmi", "sex"]], new.assign(further=1)):
        assert loaded.predict(table).tolist() == expected.tolist()
    assert loaded.transform(new).index.tolist() == new.index.tolist()
    with pytest.raises(ValueError, match="bmi"):
        loaded.predict(new.drop(columns="bmi"))


def test_one_error_lists_everything_that_is_missing():
    """It comes before any message."""
    schema = schema_of(
        "age", "sex", age={"constraints": {}, "fedlib": {}}, sex={"constraints": {}, "fedlib": {}}
    )
    drawn = kmeans(secure=True).set_params(init="k-means++")
    estimator = FederatedPipeline(drawn, schema=schema)
    recorder = Recorder(clients_of(pipeline(kmeans(secure=True)), PARTS))
    with pytest.raises(ValueError, match="secure=True needs method='lloyd'") as error:
        estimator.fit(recorder)
    everything = (
        "(got method='lloyd' and init='k-means++'); encode='one_hot', because there is text in"
        " 'sex'; in the schema of all sites a minimum and a maximum of 'age', an enum of 'sex', a"
        " fill for the gaps of 'age' or required=true"
    )
    assert str(error.value).endswith(everything)
    assert recorder.exchanges == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "robust"}, "scale must be None, 'standard' or 'minmax'"),
        ({"impute": "median"}, "impute None, 'mean' or"),
        ({"categorical": ["age"]}, "categorical None"),
    ],
)
def test_what_a_schema_excludes(options, message):
    with pytest.raises(ValueError, match=message):
        pipeline(kmeans(), **options).protocol()


def test_without_a_schema_masks_and_noise_are_refused():
    for options in ({"secure": True}, {"epsilon": 1.0}):
        with pytest.raises(ValueError, match="needs schema, because the pipeline"):
            FederatedPipeline(kmeans(**options)).protocol()


def test_bounds_are_the_limits_of_the_schema():
    schema = schema_of("age", "bmi")
    grid = HorizontalDBSCAN(10.0, 4, secure=True, schema=schema)
    bounds = {"age": (0, 100), "bmi": (10, 60)}
    rows = {name: by_hand()[["age", "bmi"]][i::4] for i, name in enumerate("abcd")}
    expected = HorizontalDBSCAN(10.0, 4, secure=True, bounds=bounds).fit(rows)
    model = grid.fit(PARTS)
    assert model.cells_.tolist() == expected.cells_.tolist()
    with pytest.raises(ValueError, match="because there is text in 'sex'"):
        HorizontalDBSCAN(10.0, 4, secure=True, schema=schema_of("age", "sex")).protocol()


@pytest.mark.usefixtures("fixed_noise")
def test_a_summary_with_a_schema_asks_for_no_extremes_of_limited_columns():
    model = FederatedSummary(schema=schema_of("age", "sex"), min_category_count=1).fit(PARTS)
    assert model.to_frame().loc["age", ["min", "max"]].isna().all()
    noisy = FederatedSummary(quantiles=(), epsilon=5.0, delta=1e-6, schema=schema_of("age", "bmi"))
    table = noisy.fit(PARTS).to_frame()
    np.testing.assert_allclose(table["mean"], by_hand()[["age", "bmi"]].mean(), rtol=0.1)


def test_parts_may_be_pairs_and_names_of_clients_remain():
    table = PARTS["north"]
    pairs = {
        name: (part[["sex", "bmi", "age"]], part["ill"].to_numpy()) for name, part in PARTS.items()
    }
    boosting = FederatedXGBClassifier(2, method="histogram", tol=None, secure=True)
    model = pipeline(boosting).fit(pairs)
    assert {entry.receiver for entry in model.ledger_} == {"server", *PARTS}
    again = pipeline(boosting).fit(PARTS)
    new = table.drop(columns=["ill", "id"])
    assert model.predict_proba(new).tolist() == again.predict_proba(new).tolist()


def test_messages_of_the_rules_decode():
    recorder = Recorder(clients_of(pipeline(kmeans(secure=True)), PARTS))
    pipeline(kmeans(secure=True), scale="standard").fit(recorder)
    for exchange in recorder.exchanges:
        for data in exchange.request_bytes.values():
            decode(data)


@pytest.mark.parametrize("words", [["true", "false"], ["TRUE", "FALSE", "true?"]])
def test_truth_values_as_texts_are_categories_in_any_spelling(words):
    """Without another text in a column, its truth values are spelled True and False."""
    fields = [
        {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 1}},
        {"name": "k", "type": "string", "constraints": {"enum": words}},
    ]
    schema = Schema({"schema": {"fields": fields}})
    rows = pd.DataFrame({"x": [0.0, 0.2, 0.8, 1.0], "k": ["True", words[0], words[1], "false"]})
    part = {
        "north": pd.concat([rows] * 5),
        "south": pd.concat([rows.assign(k=[True, True, False, False])] * 5),
    }
    model = FederatedPipeline(
        FederatedKMeans(2, method="lloyd", random_state=0), schema=schema, encode="one_hot"
    ).fit(part)
    columns = [f"k_{word}" for word in words]
    hot = model.model_.rules.transform(read_columns(schema.apply(rows)[0].X))[0][columns[:2]]
    assert hot.to_numpy().tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert model.predict(part["south"]).tolist() == model.labels_[0].tolist()
    assert model.labels_[1].tolist() == model.labels_[0].tolist()


def test_a_second_session_begins_without_the_rules_of_the_first():
    """Until other rules arrive, a client describes its raw table, also when it is built again."""
    columns = {name: {"constraints": FIELDS["bmi"]["constraints"]} for name in ("age", "bmi")}
    schema = schema_of("age", "bmi", **columns)
    parts = [site(seed)[["age", "bmi"]].fillna(20).clip(10, 60) for seed in (0, 1)]
    kmeans = FederatedKMeans(2, init=[[-1.0], [1.0]])
    model = FederatedPipeline(kmeans, scale="standard", pca=1, schema=schema)
    make, options = model._client_factory([{}, {}])
    clients = {str(i): make(part, **options[i]) for i, part in enumerate(parts)}
    first = model.fit(Recorder(clients)).model_.model.centres
    for i, client in enumerate(clients.values()):
        client.renew(client.state)
        again = make(parts[i], **options[i])
        again.state = client.state
        assert again.handle(DescribeFeatures()) == client.handle(DescribeFeatures())
        clients[str(i)] = again
    assert np.array_equal(model.fit(Recorder(clients)).model_.model.centres, first)
